"""Sending of a body through the SDK's client, with its answer taken before the SDK reads it.

The SDK handles the host, the headers, the key, redirects and connections. toolbus writes the body and reads the answer
itself, because the SDK's `chat`

- converts the whole history to models at each call, and reads a file from the disk if an image's base64 is its name,
- drops `anyOf` and nested `properties` from the parameters of a tool, and does not know `truncate`,
- reads lines of any length, splits them at U+0085 as well, and does not close its generators when reading stops early

(ollama 0.6.3, `_types.py` and `_client.py`), and because the SDK has no method for a given body. But its constructor
passes unknown options on to its HTTP library: so hooks of that library put the body in, and take the answer out.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ...errors import ConfigurationError, MissingExtra
from .._shared.clients import bound_refusal, watch_connection

if TYPE_CHECKING:
    from httpx import Request, Response
    from ollama import AsyncClient


class _Underway:
    """A request that the SDK is sending."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.response: Response | None = None


_UNDERWAY: ContextVar[_Underway] = ContextVar("toolbus_ollama_underway")


def make_client(url: str, **options: Any) -> AsyncClient:
    """Make a client of the SDK for `post`; `options` are those of the HTTP library. Raises `MissingExtra`."""
    try:
        import ollama  # noqa: PLC0415 -- an optional dependency, and slow to import
    except ImportError as exc:
        raise MissingExtra("ollama", "ollama") from exc
    return ollama.AsyncClient(
        host=url, event_hooks={"request": [watch_connection, _put_in], "response": [_take_out]}, **options
    )


async def post(client: AsyncClient, model: str, body: bytes) -> Response:
    """Return the answer to `body`, of any status. The caller has to read and close it.

    Raises what the HTTP library raises if there is no answer. Under cancellation nothing is left open.
    """
    underway = _Underway(body)
    untyped: Any = client  # the types of the SDK's `chat` are incomplete
    token = _UNDERWAY.set(underway)
    try:
        async for _ in await untyped.chat(model, stream=True):
            pass
    except Exception:
        if underway.response is None:
            raise
        # The SDK raises its own error for a refusal. The answer, with the server's message, is already here.
    finally:
        _UNDERWAY.reset(token)
    assert underway.response is not None, "the SDK's client has not called its hooks"
    return underway.response


async def _put_in(request: Request) -> None:
    if request.method == "POST":  # a redirect may have changed the method to GET
        body = _UNDERWAY.get().body
        request.stream = type(request)("POST", request.url, content=body).stream
        request.headers["Content-Length"] = str(len(body))


async def _take_out(response: Response) -> None:
    await bound_refusal(response)
    if response.has_redirect_location:
        return
    kind = type(response)  # the class of whichever HTTP library the SDK uses
    _UNDERWAY.get().response = kind(
        response.status_code, headers=response.headers, stream=response.stream, request=response.request
    )
    response.stream = kind(200, content=b"").stream


_PORT = 11434
_PORTS = {"http": 80, "https": 443}


def host_url(host: str, *, option: str) -> str:
    """Return the URL of the server. Scheme, port and path may be missing; "all interfaces" means this machine.

    A path of `/v1`, which is the OpenAI-compatible endpoint, is removed. Raises `ConfigurationError`, which names the
    `option` that `host` comes from, and hides a password.
    """
    text = host.strip().strip("\"'")
    given = "://" in text
    try:
        parts = urlsplit(text if given else f"http://{text}")
        name = parts.hostname or "127.0.0.1"
        port = parts.port or (_PORTS.get(parts.scheme) if given else None) or _PORT
        problem = "" if parts.scheme in _PORTS else f"its scheme {parts.scheme!r} is neither http nor https"
    except ValueError as exc:
        problem = str(exc)
        parts, name, port = urlsplit(""), "", 0
    if problem:
        shown = "***@" + text.rpartition("@")[2] if "@" in text else text
        raise ConfigurationError(f"{option} is {shown!r}, which is not a host: {problem}")
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, name)  # noqa: S104 -- a server may listen there, and a client cannot connect there
    user = parts.netloc.rpartition("@")[0]
    shown = f"[{name}]" if ":" in name else name
    return f"{parts.scheme}://{user}{'@' if user else ''}{shown}:{port}{parts.path.rstrip('/').removesuffix('/v1')}"
