"""What adapters check of their options alike: names, limits, keys, URLs. Nothing of a key is ever quoted."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TypeAlias
from urllib.parse import urlsplit, urlunsplit

from ...errors import ApplicationError, ConfigurationError

__all__ = [
    "MAX_REPLY_BYTES",
    "ApiKey",
    "ask_for_key",
    "check_limits",
    "checked_url",
    "clean_key",
    "secrets_in",
    "shown_url",
]

ApiKey: TypeAlias = str | Callable[[], Awaitable[str]]
"""A key, or an async callable that is asked before each request, for keys that expire."""

MAX_REPLY_BYTES = 8 * 2**20
"""Where reading a reply stops: far beyond any real one, and still harmless in memory."""

_SECRET_HEADERS = ("auth", "key", "token", "secret", "cookie")


def check_limits(model: str, timeout_seconds: float, max_reply_bytes: int) -> None:
    """Raise `ConfigurationError` for an empty name and for limits that are none."""
    if not model:
        raise ConfigurationError("the model's name is empty")
    if not 0 < timeout_seconds < math.inf:
        raise ConfigurationError(f"timeout_seconds is {timeout_seconds}; it must be above 0 and finite")
    if max_reply_bytes < 1:
        raise ConfigurationError(f"max_reply_bytes is {max_reply_bytes}; it must be at least 1")


def clean_key(key: object) -> str:
    """The key without white space around it. Raises `ConfigurationError`, which quotes nothing of it."""
    text = key.strip() if isinstance(key, str) else ""
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigurationError("api_key is no key: it must be text of printable ASCII characters without spaces")
    return text


async def ask_for_key(key: ApiKey) -> str:
    """The key for the next request. Raises `ApplicationError` when a callable fails, and `ConfigurationError`."""
    try:
        found = await key() if callable(key) else key
    except Exception as exc:
        raise ApplicationError(f"the api_key callable raised {type(exc).__name__}") from exc
    return clean_key(found)


def checked_url(url: str) -> str:
    """The URL, if it can be one of a server. Raises `ConfigurationError`."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        shown = re.sub(r"//[^/]*@", "//***@", url)
        raise ConfigurationError(f"base_url {shown!r} is no URL of a server: it must look like http://host:port/v1")
    return url


def shown_url(url: str) -> str:
    """The URL for people: without user and password, query and fragment."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))


def secrets_in(url: str, headers: Mapping[str, str] | None) -> Iterator[str]:
    """What may not be shown of a URL and of headers that the application gave."""
    for name, value in (headers or {}).items():
        if any(word in name.lower() for word in _SECRET_HEADERS):
            yield value
    if password := urlsplit(url).password:
        yield password
