"""The guard in front of an application on this machine: who may send requests, how large, and what a page may load.

Any page in the same browser can send requests to a server on loopback, and an attacker can make a host name resolve to
it (DNS rebinding). So the guard compares `Host` and `Origin` first. Knows ASGI and HTTP, and must not know requests of
toolbus.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import anyio

from .._option_checks import check, whole
from ..errors import ConfigurationError
from ._starlette import ClientDisconnect, HTTPException, PlainTextResponse, Request

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
"""The names under which a server on loopback is reached."""
MAX_BODY_BYTES = 2**20
"""The size of a request's body, unless stated otherwise."""
_BODY_SECONDS = 10.0
"""The time in which a body has to arrive."""
_MIN_TOKEN_CHARS = 16
_FROM_PROXIES = ("forwarded", "x-forwarded-for", "x-real-ip")
"""Headers in which a proxy on this machine says who its client is."""

PAGE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers that keep a response out of frames, caches and other origins."""


def content_policy(*, script_hashes: Collection[str] = ()) -> str:
    """Return a Content-Security-Policy for a page that loads everything from its own server, and is in no frame.

    `script_hashes` are those of inline scripts, such as "sha256-...": an import map has to be inline. No other inline
    script or style runs, and no text is evaluated.
    """
    scripts = " ".join(["'self'", *(f"'{each}'" for each in script_hashes)])
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )


async def read_body(request: Request, *, max_bytes: int = MAX_BODY_BYTES, seconds: float = _BODY_SECONDS) -> bytes:
    """Return the body of a request. Raises `HTTPException`: 413 for more than `max_bytes`, 408 for a slow client."""
    body = bytearray()
    try:
        with anyio.fail_after(seconds):
            async with aclosing(request.stream()) as pieces:
                async for piece in pieces:
                    body += piece
                    if len(body) > max_bytes:
                        raise HTTPException(413, f"the body has over {max_bytes:,} bytes; send less")
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {seconds:g} seconds") from None
    except ClientDisconnect:
        raise HTTPException(400, "the client went away") from None
    return bytes(body)


class Guard:
    """An ASGI application that passes only permitted requests on to `app`, and adds headers to its responses.

    A request is refused with 403 if its `Host` is not one of `hosts` (names without a port; None accepts any), if its
    `Origin` is not its own host, or if a browser says that another site has sent it. With the default `hosts`, only
    clients on this machine are served, whatever the server listens on; what a proxy on this machine passes on counts as
    its client's, if the proxy names it. With a `token`, requests need `Authorization: Bearer TOKEN`, and get 401
    without it, except those for one of `open_paths`. A body that is declared longer than `max_body_bytes` gets 413;
    handlers read with `read_body`.

    Each response gets `policy` as its Content-Security-Policy, and headers that keep it out of frames, caches and other
    origins, unless it has these headers itself. Raises `ConfigurationError` for a token that is too short.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str = "",
        open_paths: Collection[str] = (),
        hosts: Collection[str] | None = LOOPBACK_HOSTS,
        policy: str = "",
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        if token and (len(token) < _MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token):
            raise ConfigurationError(
                f"the token has to have at least {_MIN_TOKEN_CHARS} ASCII characters, without spaces; "
                "secrets.token_urlsafe() makes one"
            )
        if isinstance(hosts, str):
            raise ConfigurationError('hosts is a list, such as hosts=["inspector.example.com"]')
        self._app = app
        self._token = token.encode()
        self._open_paths = frozenset(open_paths)
        self._is_local = hosts is LOOPBACK_HOSTS
        self._hosts = None if hosts is None else frozenset(each.lower() for each in hosts)
        self._max_body_bytes = check("max_body_bytes", max_body_bytes, whole(0))
        self._headers = {**PAGE_HEADERS, "Content-Security-Policy": policy or content_policy()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "there are no web sockets here"})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in cast("list[tuple[bytes, bytes]]", scope["headers"])
        }

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": self._with_own(message.get("headers", []))}
            await send(message)

        refused = self._refusal(scope, headers)
        if refused is None:
            await self._app(scope, receive, guarded)
            return
        status, reason = refused
        extra = {"WWW-Authenticate": "Bearer"} if status is HTTPStatus.UNAUTHORIZED else {}
        response = PlainTextResponse(f"{status.value} {status.phrase}: {reason}\n", status, extra)
        await response(scope, receive, guarded)

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> tuple[HTTPStatus, str] | None:
        """Return the reason why a request is refused, or None for a permitted one."""
        host = headers.get("host", "").lower()
        if self._hosts is not None and _name_of(host) not in self._hosts:
            return HTTPStatus.FORBIDDEN, "this server is not reached under the name in the header Host"
        if self._is_local and not _is_loopback(scope, headers):
            return HTTPStatus.FORBIDDEN, "this server is for programs on its own machine"
        if not _is_from_here(host, headers):
            return HTTPStatus.FORBIDDEN, "a page of another origin has sent this request"
        if self._token and _path_of(scope) not in self._open_paths and not self._has_token(headers):
            return HTTPStatus.UNAUTHORIZED, "send the token that the server has printed, as a bearer token"
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            return HTTPStatus.BAD_REQUEST, "the header Content-Length is not a number"
        if len(length) > 18 or int(length) > self._max_body_bytes:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has over {self._max_body_bytes:,} bytes; send less"
        return None

    def _has_token(self, headers: Mapping[str, str]) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token)

    def _with_own(self, headers: Any) -> list[tuple[bytes, bytes]]:
        given = list(cast("list[tuple[bytes, bytes]]", headers))
        names = {name.lower() for name, _ in given}
        own = [(name.lower().encode(), value.encode()) for name, value in self._headers.items()]
        return [*given, *((name, value) for name, value in own if name not in names)]


def _is_from_here(host: str, headers: Mapping[str, str]) -> bool:
    """Return whether a page of this server, or no page at all, has sent the request."""
    if origin := headers.get("origin", "").lower():
        # "null", and whatever else is not the origin of a page on some host, names none.
        named = origin.partition("://")[2]
        return bool(named) and named == host
    # Without `Origin`, a browser still says where a request comes from. Following a link from elsewhere is fine.
    if headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document":
        return True
    return headers.get("sec-fetch-site", "none") in ("none", "same-origin")


def _name_of(host: str) -> str:
    """Return a `Host` without its port."""
    name, _, port = host.rpartition(":")
    return name if name and port.isascii() and port.isdigit() else host


def _path_of(scope: Scope) -> str:
    """Return the path inside of the application, which may be mounted below another path."""
    path, root = cast("str", scope["path"]), cast("str", scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _is_loopback(scope: Scope, headers: Mapping[str, str]) -> bool:
    """Return whether the client is on this machine, as far as the server and proxies on this machine know."""
    client = cast("tuple[str, int] | None", scope.get("client"))
    if client is not None and _is_own(client[0]) is False:  # A server may listen on a Unix socket, without addresses.
        return False
    named = ",".join(headers.get(each, "") for each in _FROM_PROXIES)
    return all(_is_own(each.strip()) for each in named.split(",") if each.strip())


def _is_own(text: str) -> bool | None:
    """Return whether an address is one of loopback; None for a text that is not an address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
