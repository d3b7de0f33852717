"""The inspector as an ASGI application: its page, its streams and the commands. Knows HTTP, and decides nothing."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import aclosing, asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.to_thread

from ..._option_checks import check
from ...errors import BusError, ConfigurationError, ToolbusError, UnknownRequest
from ...records import json_bytes
from ...runtime import Runtime
from .._encoder import sse_frame
from .._guard import LOOPBACK_HOSTS, Guard, content_policy, read_body
from .._incoming import json_object
from .._middleware import IS_RUNTIME
from .._page_files import file_routes
from .._starlette import HTTPException, PlainTextResponse, Request, Response, Route, Starlette, StreamingResponse
from ._actions import ACTIONS, Refused, act, exported
from ._event_list import EventFilter, listed
from ._shown import shown_json, shown_text
from ._sources import MAX_FOLLOWED, Followed, LiveSource, Source
from ._transcript import transcript

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_FRAME_SECONDS = 0.25
"""The least time between two frames of a stream."""
_LOAD = 10
"""After a frame, a stream waits for this multiple of the frame's time: it uses at most a tenth of the event loop."""
_HEARTBEAT_SECONDS = 15.0
_PROBLEM_SECONDS = 2.0
_INDEX = "index.html"
_FILES = (
    *("app.js", "parts.js", "style.css", "time.js"),
    *("vendor/hooks.mjs", "vendor/htm.mjs", "vendor/preact.mjs", "vendor/LICENSES.txt"),
)
_PAGE = {"/": _INDEX, **{f"/static/{each}": each for each in _FILES}}
"""The page and its files by their paths. They contain no data of a request."""

Frames = AsyncGenerator[bytes]


def create_inspector(
    runtime: Runtime[Any], *, token: str = "", hosts: Collection[str] = LOOPBACK_HOSTS, by: str = "inspector"
) -> Inspector:
    """Return a page that shows the requests of `runtime`, and gives them commands. It is an ASGI application to mount.

        inspector = create_inspector(runtime)
        app.mount("/inspector", inspector)
        print(f"http://127.0.0.1:8000/inspector/#token={inspector.token}")

    From now on it listens to all events of the runtime but the pieces of replies, and keeps those of the newest 1,000
    requests, at most about 64 MiB. So a question to a person waits, even if nobody else listens for it. Older requests
    are read from the runtime's store, if it has a journal. Everybody who knows the `token` sees and decides everything;
    without a given token, a random one is made. `hosts` are the names under which the page is reached, without ports:
    only programs on this machine reach it unless other names are given. `by` is the name that decisions carry.

    Secrets are masked only where they can be recognised, so protect the page as you protect the transcripts of all
    requests. Raises `ConfigurationError` for a token that is too short, and `MissingExtra` without Starlette.
    """
    check("runtime", runtime, IS_RUNTIME)
    return Inspector(LiveSource(runtime), token=token, hosts=hosts, by=by)


class Inspector:
    """An ASGI application: see `create_inspector`. `token` has to come with each request for data."""

    def __init__(
        self, source: Source, *, token: str = "", hosts: Collection[str] = LOOPBACK_HOSTS, by: str = "inspector"
    ) -> None:
        self.token = token or secrets.token_urlsafe(24)
        self._source = source
        self._by = by
        self._streams = 0
        policy = content_policy(script_hashes=[_import_map_hash()])
        self._app = Guard(self._routes(), token=self.token, open_paths=_PAGE, hosts=hosts, policy=policy)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, as an ASGI application does."""
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Open the source for the body of the `async with`. Raises `ToolbusError` and `OSError`."""
        await self._source.open()
        try:
            yield
        finally:
            await self._source.aclose()

    def _routes(self) -> Starlette:
        one = "/api/requests/{request_id}"
        return Starlette(
            routes=[
                *file_routes("inspector", _PAGE),
                Route("/api/overview", self._overview),
                Route(one, self._request),
                Route(f"{one}/events", self._events),
                Route(f"{one}/{{action}}", self._act, methods=["POST"]),
            ],
            exception_handlers={ToolbusError: _on_error, Refused: _on_error},
        )

    # -------------------------------------------------------------------------------------------------- streams

    async def _overview(self, _request: Request) -> Response:
        last: dict[str, Any] | None = None

        async def look() -> list[bytes]:
            nonlocal last
            before, last = last, None
            last = {
                "source": self._source.name,
                "can_act": self._source.can_act,
                "requests": await self._source.requests(),
                "statistics": shown_json(await self._source.statistics()),
            }
            return [] if last == before else [self._frame("overview", last)]

        return self._stream(_frames(look))

    async def _request(self, request: Request) -> Response:
        request_id: str = request.path_params["request_id"]
        followed = await self._source.follow(request_id)  # An unknown request is 404, before the stream begins.
        seen: tuple[Followed, int] | None = None
        shown: tuple[int, int] | None = None

        async def look() -> list[bytes]:
            nonlocal followed, seen, shown
            if followed.is_closed:
                followed = await self._source.follow(request_id)
            await followed.update()
            if (followed, followed.version) == seen:
                return []
            seen, fold = (followed, followed.version), followed.fold
            frames = [self._frame("view", {**fold.view(), "event_count": followed.version})]
            await anyio.lowlevel.checkpoint()
            if shown != (fold.message_count, len(fold.compressions)):
                shown = fold.message_count, len(fold.compressions)
                sent = self._source.sent(request_id, followed)
                # In a thread, since finding secrets in many texts takes long.
                work = partial(transcript, list(fold.messages), sent, count=fold.message_count)
                rows = await anyio.to_thread.run_sync(work)
                frames.append(self._frame("transcript", rows))
            return frames

        return self._stream(_frames(look))

    def _frame(self, event: str, data: dict[str, Any]) -> bytes:
        return sse_frame({"now": self._source.now(), **data}, event=event)

    def _stream(self, frames: Frames) -> Response:
        """Return a response of server-sent events. At most 32 pages are served at once."""
        if self._streams >= MAX_FOLLOWED:
            raise HTTPException(503, f"{MAX_FOLLOWED} streams are open; close a page")
        return _Stream(frames, self._count)

    def _count(self, change: int) -> None:
        self._streams += change

    # ---------------------------------------------------------------------------------------- events and actions

    async def _events(self, request: Request) -> Response:
        asked = request.query_params
        followed = await self._source.follow(request.path_params["request_id"])
        await followed.update()
        wanted = EventFilter(
            kind=cast("Any", asked.get("kind") or "all"),
            types=frozenset(each for each in asked.get("types", "").split(",") if each),
            search=asked.get("search", "")[:200],
            call_id=asked.get("call_id", ""),
            request_id=asked.get("request_id", ""),
        )
        before = asked.get("before", "")
        if before and not (before.isascii() and before.isdigit() and len(before) < 16):
            raise ConfigurationError("before is the number of an event")
        about = {"first": followed.first, "count": followed.version}
        work = partial(
            listed, list(followed.events), wanted, first=followed.first, before=int(before) if before else None
        )
        return _json({**await anyio.to_thread.run_sync(work), **about})

    async def _act(self, request: Request) -> Response:
        request_id, action = request.path_params["request_id"], request.path_params["action"]
        if action != "record" and action not in ACTIONS:
            raise HTTPException(404)
        given = json_object(await read_body(request) or b"{}")
        if action == "record":
            return _json(await exported(self._source, request_id))
        return _json(await act(self._source, request_id, action, given, self._by))


class _Stream(StreamingResponse):
    """A response of server-sent events, which closes its generator however it ends. `count` is called with 1 and -1."""

    media_type = "text/event-stream"

    def __init__(self, frames: Frames, count: Callable[[int], None]) -> None:
        super().__init__(frames, headers={"X-Accel-Buffering": "no"})
        self._frames = frames
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the response; for HEAD, only its headers."""
        if scope["method"] == "HEAD":
            await self._frames.aclose()
            await Response(headers=self.headers)(scope, receive, send)
            return
        await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        self._count(1)
        try:
            async with aclosing(self._frames):
                await super().stream_response(send)
        finally:
            self._count(-1)


async def _frames(look: Callable[[], Awaitable[list[bytes]]]) -> Frames:
    """Yield the frames of what has changed, which `look` returns, and a problem that it raises.

    It looks at most four times a second, and less often where a look takes long. After 15 seconds without a frame, it
    yields a comment.
    """
    sent_at = anyio.current_time()
    while True:
        began = anyio.current_time()
        seconds = _FRAME_SECONDS
        try:
            frames = await look()
        except ToolbusError as exc:
            frames, seconds = [sse_frame({"problem": shown_text(str(exc), 500)}, event="problem")], _PROBLEM_SECONDS
        if not frames and anyio.current_time() - sent_at >= _HEARTBEAT_SECONDS:
            frames = [b": \n\n"]
        for each in frames:
            sent_at = anyio.current_time()
            yield each
        took = anyio.current_time() - began
        await anyio.sleep(max(seconds, min(took * _LOAD, _PROBLEM_SECONDS)))


def _json(data: dict[str, Any]) -> Response:
    return Response(json_bytes(data, str), media_type="application/json")


async def _on_error(_request: Request, exc: Exception) -> Response:
    """Return an error as one sentence, with the status that fits."""
    status = 503
    if isinstance(exc, UnknownRequest):
        status = 404
    elif isinstance(exc, (Refused, BusError)):
        status = 409
    elif isinstance(exc, ToolbusError) and exc.fault == "caller":
        status = 400
    return PlainTextResponse(shown_text(str(exc), 500), status)


def _import_map_hash() -> str:
    """Return the hash by which the page's policy admits its import map, which has to be inline."""
    page = (files(__name__.rpartition(".")[0]) / "static" / _INDEX).read_bytes()
    found = re.search(rb'<script type="importmap">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return "sha256-" + base64.b64encode(hashlib.sha256(found[1]).digest()).decode()
