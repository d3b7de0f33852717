"""The checks of options that all adapters share: names, limits, keys, URLs. No message ever quotes a key."""

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
"""A key, or an async callable that returns the key before each request, for keys that expire."""

MAX_REPLY_BYTES = 8 * 2**20
"""The size at which reading a reply stops: far beyond any real reply, and small enough for the memory."""

_SECRET_HEADERS = ("auth", "key", "token", "secret", "cookie")


def check_limits(model: str, timeout_seconds: float, max_reply_bytes: int) -> None:
    """Raise `ConfigurationError` for an empty name and for impossible limits."""
    if not model:
        raise ConfigurationError("the model's name is empty")
    if not 0 < timeout_seconds < math.inf:
        raise ConfigurationError(f"timeout_seconds is {timeout_seconds}; it must be above 0 and finite")
    if max_reply_bytes < 1:
        raise ConfigurationError(f"max_reply_bytes is {max_reply_bytes}; it must be at least 1")


def clean_key(key: object) -> str:
    """Return the key without white space around it. Raises `ConfigurationError`, which quotes no part of the key."""
    text = key.strip() if isinstance(key, str) else ""
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigurationError("api_key is not a key: it must be text of printable ASCII characters without spaces")
    return text


async def ask_for_key(key: ApiKey) -> str:
    """Return the key for the next request.

    Raises `ApplicationError` when the callable fails, and `ConfigurationError` for a malformed key.
    """
    try:
        found = await key() if callable(key) else key
    except Exception as exc:
        raise ApplicationError(f"the api_key callable raised {type(exc).__name__}") from exc
    return clean_key(found)


def checked_url(url: str) -> str:
    """Return the URL if it can be that of a server. Raises `ConfigurationError` otherwise."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        shown = re.sub(r"//[^/]*@", "//***@", url)
        raise ConfigurationError(f"base_url {shown!r} is not a server's URL: it must look like http://host:port/v1")
    return url


def shown_url(url: str) -> str:
    """Return the URL in a form for people: without user and password, query and fragment."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))


def secrets_in(url: str, headers: Mapping[str, str] | None) -> Iterator[str]:
    """Yield the texts that must not be shown, from a URL and from the headers that the application gave."""
    for name, value in (headers or {}).items():
        if any(word in name.lower() for word in _SECRET_HEADERS):
            yield value
    if password := urlsplit(url).password:
        yield password
