"""The options that the adapters share: names, limits, keys, URLs. No message ever quotes a key."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from ..._option_checks import POSITIVE, check, is_http_url, whole
from ...errors import ApplicationError, ConfigurationError, MissingExtra
from ..vendors import Vendor

ApiKey: TypeAlias = str | Callable[[], Awaitable[str]]
"""A key, or an async callable that returns the key before each request, for keys that expire."""

MAX_REPLY_BYTES = 8 * 2**20
"""The size at which reading a reply stops: far beyond any real reply, and small enough for the memory."""

NO_KEY = "none"
"""The key for servers without keys, which ignore it, because the SDKs require one."""

_SECRET_HEADERS = ("auth", "key", "token", "secret", "cookie")


def check_limits(model: str, timeout_seconds: float, max_reply_bytes: int) -> None:
    """Raise `ConfigurationError` for an empty name and for impossible limits."""
    if not model:
        raise ConfigurationError("the model's name is empty")
    check("timeout_seconds", timeout_seconds, POSITIVE)
    check("max_reply_bytes", max_reply_bytes, whole(1))


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


def client_options(vendor: Vendor, client: Any, **given: Any) -> dict[str, Any]:
    """Return the options `given` for an SDK's client, with `api_key` and `base_url` completed from the environment.

    With a ready `client`, no option may be given, and `base_url` is the client's. Raises `ConfigurationError` for
    this, for a missing or malformed key, and for a `base_url` that is missing or cannot be that of a server. Without
    the SDK, raises `MissingExtra` before anything else is asked for. The first import takes a second or two.
    """
    if client is not None:
        if any(value is not None for value in given.values()):
            *names, last = (f"{name}=" for name in given)
            raise ConfigurationError(
                f"client= has its own key, URL and headers: leave {', '.join(names)} and {last} out"
            )
        return {**given, "base_url": _checked_url(str(client.base_url))}
    try:
        import_module("httpx2")
        import_module(vendor.adapter)
    except ImportError as exc:
        raise MissingExtra(vendor.adapter, vendor.adapter) from exc
    other_url = given["base_url"] or _url_from_environment(vendor)
    url = other_url or vendor.url
    if not url:
        raise ConfigurationError(f"there is no URL for {vendor.title}: set {vendor.url_variable}, or pass base_url=")
    key = given["api_key"] or os.environ.get(vendor.key_variable) or ""
    if not callable(key) and not (key := key.strip()) and vendor.needs_key and not (other_url and vendor.url):
        ways = f"pass api_key=, or name another server with base_url= or {vendor.url_variable}"
        ways = ways if vendor.url else "or pass api_key="
        raise ConfigurationError(f"there is no API key for {vendor.title}: set {vendor.key_variable}, {ways}")
    key = key if callable(key) else clean_key(key or NO_KEY)
    return {**given, "api_key": key, "base_url": _checked_url(url)}


def _url_from_environment(vendor: Vendor) -> str:
    url = os.environ.get(vendor.url_variable, "").strip()
    return url.rstrip("/").removesuffix(vendor.url_path) + vendor.url_path if url else ""


def _checked_url(url: str) -> str:
    """Return the URL if it can be that of a server. Raises `ConfigurationError` otherwise."""
    if not is_http_url(url):
        shown = re.sub(r"//[^/]*@", "//***@", url)
        raise ConfigurationError(f"base_url {shown!r} is not a server's URL: it must look like http://host:port/v1")
    return url
