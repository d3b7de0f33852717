"""Sends a body through the SDK's client, and takes the answer before the SDK reads it.

The SDK does the host, the headers, the key, redirects and connections. Body and answer are ours, because its `chat`

- walks the whole history through models at each call, and reads from the disk an image whose base64 is a file's name,
- keeps of a tool's parameters no `anyOf` and no nested `properties`, and knows no `truncate`,
- reads lines of any length, breaks them at U+0085 as well, and loses generators half way when reading stops early

(ollama 0.6.3, `_types.py` and `_client.py`), and has no call for a body of one's own. But what its constructor does not
know it hands on to its HTTP library: so hooks there put the body in, and take the answer out.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ...errors import MissingExtra

if TYPE_CHECKING:
    from httpx import Request, Response
    from ollama import AsyncClient

__all__ = ["make_client", "post"]


class _Underway:
    """One request on its way through the SDK."""

    __slots__ = ("body", "response")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.response: Response | None = None


_UNDERWAY: ContextVar[_Underway] = ContextVar("toolbus_ollama_underway")


def make_client(url: str, **options: Any) -> AsyncClient:
    """A client of the SDK for `post`; `options` are the HTTP library's. Raises `MissingExtra`."""
    try:
        import ollama  # noqa: PLC0415 -- an optional dependency, and slow to import
    except ImportError as exc:
        raise MissingExtra("ollama", "ollama") from exc
    return ollama.AsyncClient(host=url, event_hooks={"request": [_put_in], "response": [_take_out]}, **options)


async def post(client: AsyncClient, model: str, body: bytes) -> Response:
    """The answer to `body`, whatever its status; it is still to be read, and the caller closes it.

    Raises what the HTTP library raises where there is no answer. Nothing is left open under cancellation.
    """
    underway = _Underway(body)
    untyped: Any = client  # the SDK leaves a type argument of its `chat` out
    token = _UNDERWAY.set(underway)
    try:
        async for _ in await untyped.chat(model, stream=True):
            pass
    except Exception:
        if underway.response is None:
            raise
        # What the SDK makes of a refusal without its words; we have both.
    finally:
        _UNDERWAY.reset(token)
    assert underway.response is not None, "the SDK's client calls its hooks"
    return underway.response


async def _put_in(request: Request) -> None:
    if request.method == "POST":  # a redirect may have made a GET of it
        body = _UNDERWAY.get().body
        request.stream = type(request)("POST", request.url, content=body).stream
        request.headers["Content-Length"] = str(len(body))


async def _take_out(response: Response) -> None:
    if response.has_redirect_location:
        return
    kind = type(response)  # of whichever HTTP library the SDK uses
    _UNDERWAY.get().response = kind(
        response.status_code, headers=response.headers, stream=response.stream, request=response.request
    )
    response.stream = kind(200, content=b"").stream
