"""Responses of a web application that show a request. They are Starlette's, so they also work in FastAPI."""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, Protocol

import anyio
import anyio.lowlevel
import anyio.to_thread

from .._option_checks import FLAG, POSITIVE, check, check_implements
from ..bus import Cursor, TextFold, UnknownCursor
from ..core.endings import explain
from ..errors import ConfigurationError, StoreUnavailable, SubscriptionOverflow
from ..events import (
    Event,
    ModelResponded,
    ModelRetrying,
    ReceiverFailed,
    RequestEnding,
    RequestFailed,
    RequestResumed,
    SteeringAdded,
    SubscriberLagged,
    TextDelta,
    ToolCallFailed,
    encode,
)
from ..handles import RequestHandle
from ..messages import Message
from ..records import replace
from ..session import RequestSession
from ._agui import AguiEncoder
from ._encoder import LOST, Chunk, EventEncoder, sse_frame
from ._incoming import ClientRequest
from ._starlette import PlainTextResponse, Response, StreamingResponse
from ._vercel import VercelEncoder

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_SETTLING_SECONDS = 0.05
"""The time in which events that were under way may come before a page is asked for its answer."""
_ANSWER_SECONDS = 5.0
"""The time in which the answers of a page take effect, perhaps in another process, before it is asked once more."""
_STORE_SECONDS = 1.0
"""The time between two attempts to read from a store that is away."""
_TURN_SECONDS = 0.02
"""The time after which other tasks may run, between two events of a long backlog."""
_LAST_FRAMES_SECONDS = 1.0
"""The time that a client gets to read the last frame of a stream that the server has to end."""

# Without `no-transform`, proxies of development servers compress a stream, and hold it back until its end.
_UNCHANGED = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}


class EventReader(Protocol):
    """The events of a request for one reader. A `Subscription` is one."""

    @property
    def cursor(self) -> str:
        """The position after the newest event that was read."""
        ...

    def __aiter__(self) -> AsyncIterator[Any]:
        """Iterate over the events."""
        ...

    async def aclose(self) -> None:
        """Stop listening."""
        ...


class ShownRequest(Protocol):
    """A request that can be shown: a `RequestSession`, or a `RequestHandle` to a request of any process.

    Example:
        from toolbus.web import EventReader, EventsResponse, ShownRequest

        def page(request: ShownRequest) -> EventsResponse:  # a session, or a handle of a request anywhere
            return EventsResponse(request)

        async def read(request: ShownRequest) -> str:  # where a page that comes back continues
            reader: EventReader = request.events()
            await reader.aclose()
            return reader.cursor
    """

    request_id: str

    async def has_ended(self) -> bool:
        """Return whether the request has ended. Raises `UnknownRequest` if there is no such request."""
        ...

    def events(self, *, after: str = "", capacity: int = 1_000) -> EventReader:
        """Subscribe to the events, from the beginning or after a cursor."""
        ...

    def cancel(self, reason: str = "") -> object:
        """Ask the request to end, at once or as an awaitable."""
        ...


class _Patient:
    """The events of a reader. While its store is away, it is asked again: a browser would give up after an error.

    A reader does not wait for events that it has already, nor does a server for a fast client. So other tasks may run
    here, because a request may have 10,000 facts, or results of megabytes.
    """

    def __init__(self, reader: EventReader) -> None:
        self._reader = reader
        self._iterator = aiter(reader)
        self._turn_ends = 0.0

    @property
    def cursor(self) -> str:
        return self._reader.cursor

    def __aiter__(self) -> _Patient:
        return self

    async def __anext__(self) -> Any:
        if anyio.current_time() >= self._turn_ends:
            await anyio.lowlevel.checkpoint()
            self._turn_ends = anyio.current_time() + _TURN_SECONDS
        while True:
            try:
                return await anext(self._iterator)
            except StoreUnavailable:
                await anyio.sleep(_STORE_SECONDS)

    async def aclose(self) -> None:
        await self._reader.aclose()


class _EventStream(StreamingResponse):
    """A response that sends frames, and a comment whenever nothing was sent for `heartbeat_seconds`.

    It sends by itself, because the base class leaves an async generator open when a client disconnects. FastAPI reads
    the default of `status_code` to describe a route with this class, and raises an error without one.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        source: ShownRequest,
        *,
        after: str = "",
        heartbeat_seconds: float = 15.0,
        cancel_on_disconnect: bool = False,
        headers: Mapping[str, str] | None = None,
        status_code: int = 200,
    ) -> None:
        check_implements(source, ShownRequest, "pass what runtime.start(...) or runtime.request(id) returns")
        self._heartbeat_seconds = check("heartbeat_seconds", heartbeat_seconds, POSITIVE)
        self._cancel_on_disconnect = check("cancel_on_disconnect", cancel_on_disconnect, FLAG)
        self._source = source
        self._after = after
        self._has_ended = False
        # Subscribe now, so that no signal is missed before the first byte is sent.
        self._events = _Patient(self._subscribe())
        self._is_complete = False
        own = {**_UNCHANGED, **(headers or {})}
        super().__init__(self._frames(), status_code, own)

    def _subscribe(self) -> EventReader:
        """Return the events that the frames are made of."""
        return self._source.events()

    @abstractmethod
    def _frames(self) -> AsyncGenerator[bytes]:
        """Yield the frames, to the end of the request."""
        ...

    def _last_frames(self) -> bytes:
        """Return the frames that end a stream before its request has ended; nothing after its last frame."""
        return b"" if self._has_ended else sse_frame({"error": LOST}, event="stream_closed")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_ended = await self._source.has_ended()  # It raises now, so that the application can answer 404.
        if scope.get("method") == "HEAD":
            await self._events.aclose()
            await Response(headers=self.headers)(scope, receive, send)
            return
        came_back = dict(scope["headers"]).get(b"last-event-id", b"").decode("latin-1")
        if came_back:  # It is newer than the `after` of an address, which the browser repeats.
            await self._events.aclose()
            self._after = came_back
            try:
                Cursor.read("", came_back)
                self._events = _Patient(self._subscribe())
            except UnknownCursor as exc:
                await PlainTextResponse(f"Last-Event-ID: {exc}", 400)(scope, receive, send)
                return
        async with aclosing(self._frames()) as frames:
            first = b""
            if has_ended and self._after:
                first = await anext(frames, b"")  # It comes without a wait, if there is one.
                if not first:
                    await Response(status_code=204)(scope, receive, send)
                    return
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._watch, receive, group.cancel_scope)
                    await self._send_all(send, first, frames)
                    group.cancel_scope.cancel()
            except* OSError:  # servers of ASGI 2.4 raise it in `send` when the client has disconnected
                await self._on_disconnect()
        if self.background is not None:
            await self.background()

    async def _watch(self, receive: Receive, sending: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await self._on_disconnect()
        sending.cancel()

    async def _on_disconnect(self) -> None:
        # A server reports a disconnection also after the last frame.
        if self._cancel_on_disconnect and not self._is_complete:
            cancelled = self._source.cancel("the client went away")  # without effect once the request has ended
            if inspect.isawaitable(cancelled):
                await cancelled

    async def _send_all(self, send: Send, first: bytes, frames: AsyncGenerator[bytes]) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._sent_at = anyio.current_time()
        try:
            async with anyio.create_task_group() as heart:
                heart.start_soon(self._beat, send)
                if first:
                    await self._send(send, first)
                async for each in frames:
                    await self._send(send, each)
                heart.cancel_scope.cancel()
            self._is_complete = True
        except BaseException:
            # The server may have cancelled this task, or the source may have failed.
            with anyio.move_on_after(_LAST_FRAMES_SECONDS, shield=True):
                await send({"type": "http.response.body", "body": self._last_frames(), "more_body": False})
            raise
        await send({"type": "http.response.body", "body": self._last_frames(), "more_body": False})

    async def _beat(self, send: Send) -> None:
        while True:
            await anyio.sleep_until(self._sent_at + self._heartbeat_seconds)
            if anyio.current_time() >= self._sent_at + self._heartbeat_seconds:
                await self._send(send, b": \n\n")

    async def _send(self, send: Send, body: bytes) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        self._sent_at = anyio.current_time()


class EventsResponse(_EventStream):
    """Every event of a request as a server-sent event, in order: `id: CURSOR`, `event: TYPE`, `data: JSON`.

    Texts for operators are left out: `detail` of a call that failed, `error` of `ModelRetrying`, and
    `ReceiverFailed`; `error` of `RequestFailed` is the explanation for people. The ending of the request is the
    last event. A browser that reconnects sends `Last-Event-ID`, and gets what it does not have, from any process
    that has the request's journal; `after` does the same for a client that has none. Values of the application's
    metadata that JSON does not have are written as text. The stream ends with the event `stream_closed` if the
    server stops, if the request continues in another process, or if the client is more than 1,000 facts behind:
    then it should connect again. A slow client may miss signals, and gets `subscriber_lagged` for them. A client
    that comes back with the id of the ending gets 204, after which an `EventSource` does not connect again.

    A comment is sent after `heartbeat_seconds` without an event. If a client disconnects, the request continues,
    unless `cancel_on_disconnect` is true.
    """

    def _subscribe(self) -> EventReader:
        return self._source.events(after=self._after)

    async def _frames(self) -> AsyncGenerator[bytes]:
        async with aclosing(self._events) as events:
            try:
                async for event in events:
                    self._has_ended = isinstance(event, RequestEnding) and event.request_id == self._source.request_id
                    if (shown := _for_clients(event)) is not None:
                        yield sse_frame(encode(shown, default=str).decode(), event=shown.type, event_id=events.cursor)
            except (SubscriptionOverflow, UnknownCursor):
                return


def _for_clients(event: Event) -> Event | None:
    """Return an event without texts that are for operators, such as those of exceptions; None if nothing is left."""
    match event:
        case ToolCallFailed():
            return replace(event, detail="") if event.detail else event
        case ModelRetrying():
            return replace(event, error="")
        case RequestFailed():
            return replace(event, error=explain(event))
        case ReceiverFailed():
            return None
        case _:
            return event


class TextResponse(_EventStream):
    """The text of a request in pieces, as `session.text()` has it: `event: text` with `{"text": "..."}`.

    The event `end` is the last one, with `outcome`, `reason` and, for people, `explanation`; a stream without it was
    cut off, and a client that reconnects with `Last-Event-ID` gets the rest. See `EventsResponse` for everything else.
    """

    async def _frames(self) -> AsyncGenerator[bytes]:
        fold = TextFold()
        missing = _MissingText(Cursor.read(self._source.request_id, self._after or "0.0"))
        async with aclosing(self._events) as events:
            try:
                async for event in events:
                    known, new = missing.split(event)
                    for each in known:
                        fold.feed(each)
                    text = "".join(piece for each in new for piece in fold.feed(each))
                    frames = sse_frame({"text": text}, event="text", event_id=events.cursor) if text else b""
                    if isinstance(event, RequestEnding) and new:
                        self._has_ended = True
                        # The ids are equal, so a client that had only the text could not come back for the end.
                        frames += sse_frame(_end_of(event), event="end", event_id=events.cursor)
                    if frames:
                        yield frames
            except SubscriptionOverflow:
                return


def _end_of(ending: RequestEnding) -> dict[str, str]:
    about = {"request_id": ending.request_id, "outcome": ending.outcome, "reason": ending.reason}
    return {**about, "explanation": explain(ending)}


class _MissingText:
    """The part of a request's text that a client does not have. `known` is the cursor of what it has."""

    __slots__ = ("_facts", "_given", "_has_gap", "_known_chars", "_known_facts")

    def __init__(self, known: Cursor) -> None:
        self._known_facts = known.facts
        self._known_chars = known.chars  # of the reply that was arriving after these facts
        self._facts = 0
        self._given = 0  # characters of the reply that is arriving
        self._has_gap = False

    def split(self, event: Event) -> tuple[list[Event], list[Event]]:
        """Return the events that the client knows, and the others. After a gap, text waits for the whole reply."""
        self._facts += event.is_fact
        if event.is_fact and self._facts <= self._known_facts:
            return [event], []
        self._has_gap |= isinstance(event, SubscriberLagged)
        known = self._known_chars
        if isinstance(event, TextDelta):
            if self._has_gap:
                return [], []
            self._known_chars, self._given = 0, self._given + len(event.text)
            return [replace(event, text=event.text[:known])] if known else [], [replace(event, text=event.text[known:])]
        if isinstance(event, ModelResponded):
            message, given = event.message, known or self._given
            rest: list[Event] = [event]
            if text := message.text[given:]:
                rest.insert(0, TextDelta(message_id=message.message_id, text=text))
            self._begin_anew()
            return [TextDelta(message_id=message.message_id, text=message.text[:known])] if known else [], rest
        if isinstance(event, (ModelRetrying, RequestResumed)):
            self._begin_anew()
            return [TextDelta(message_id="void", text="void")] if known else [], [event]
        return [], [event]

    def _begin_anew(self) -> None:
        self._known_chars = self._given = 0
        self._has_gap = False


class _PageResponse(_EventStream):
    """A response that sends the chunks of an encoder."""

    def __init__(
        self,
        source: ShownRequest,
        encoder: EventEncoder,
        *,
        stays_open: bool,
        headers: Mapping[str, str] | None,
        **options: Any,
    ) -> None:
        self._encoder = encoder
        self._stays_open = check("stays_open", stays_open, FLAG)
        super().__init__(source, headers={**encoder.headers, **(headers or {})}, **options)

    async def _frames(self) -> AsyncGenerator[bytes]:
        encoder = self._encoder
        async with aclosing(self._events) as events:
            iterator = aiter(events)
            try:
                # A page that has sent answers has them already.
                pending, facts = ((), 0) if encoder.waits_for_effect else await _pending_messages(self._source)
                while not encoder.ended:
                    if pending and facts <= 0:  # The messages that the request took before are shown.
                        yield b"".join(sse_frame(chunk) for each in pending for chunk in encoder.feed(each))
                        pending = ()
                    pauses = encoder.waits_for_client and not self._stays_open
                    seconds = _ANSWER_SECONDS if encoder.waits_for_effect else _SETTLING_SECONDS
                    chunks: list[Chunk] = []
                    with anyio.move_on_after(seconds if pauses else math.inf) as patience:
                        event = await anext(iterator)
                        facts -= _is_counted(event, self._source.request_id)
                        chunks = encoder.feed(event)
                    if patience.cancelled_caught:
                        chunks = encoder.pause()
                    if chunks:
                        yield b"".join(sse_frame(each) for each in chunks)
            except (StopAsyncIteration, SubscriptionOverflow):
                return

    def _last_frames(self) -> bytes:
        return b"".join(sse_frame(each) for each in self._encoder.close())


async def _pending_messages(source: ShownRequest) -> tuple[Sequence[SteeringAdded], int]:
    """Return the messages that the request has not taken yet, and the number of its facts, which come before them."""
    while True:
        try:
            if isinstance(source, RequestSession):
                return source.pending_messages, source.snapshot().view.state.facts
            if isinstance(source, RequestHandle):
                pending = await source.pending_messages()
                return pending, (await source.record()).fact_count if pending else 0
        except StoreUnavailable:
            await anyio.sleep(_STORE_SECONDS)
        else:
            return (), 0


def _is_counted(event: Event, request_id: str) -> bool:
    return event.is_fact and not event.is_derived and event.request_id == request_id


class VercelResponse(_PageResponse):
    """A request as a UI message stream for `useChat`. `VercelEncoder` explains its first three options.

    The stream ends with the request, and also when the page has to answer before anything can happen, because `useChat`
    sends approvals and results with its next request: pass them to the session with `ClientRequest.answer`, and respond
    with `answered=incoming.answered`. With `stays_open` it waits until somebody else has answered. A page that
    reconnects (`resume: true`) gets the message from its beginning, and ends up with the same message. If the server
    stops, or a client is more than 1,000 facts behind, the last chunk is an `error`. See `EventsResponse` for the rest.
    """

    def __init__(
        self,
        source: ShownRequest,
        *,
        client_tools: Collection[str] = (),
        answered: Collection[str] = (),
        ai_sdk_version: Literal[6, 7] = 6,
        stays_open: bool = False,
        heartbeat_seconds: float = 15.0,
        cancel_on_disconnect: bool = False,
        headers: Mapping[str, str] | None = None,
        status_code: int = 200,
    ) -> None:
        super().__init__(
            source,
            VercelEncoder(client_tools=client_tools, answered=answered, ai_sdk_version=ai_sdk_version),
            stays_open=stays_open,
            heartbeat_seconds=heartbeat_seconds,
            cancel_on_disconnect=cancel_on_disconnect,
            headers=headers,
            status_code=status_code,
        )

    def _last_frames(self) -> bytes:
        return super()._last_frames() + sse_frame("[DONE]")


class AguiResponse(_PageResponse):
    """A request as an AG-UI run, for `HttpAgent`: see `AguiEncoder` for the options, `VercelResponse` for the rest.

    `incoming` is the client's request, with its thread, run and answers. For a page that connects, the run begins with
    `messages`: see `AguiEncoder.begin`. Then `source` may be None, for a conversation in which nothing runs; with
    `explanation`, the run says why the newest request has no whole answer.
    """

    def __init__(
        self,
        source: ShownRequest | None,
        incoming: ClientRequest,
        *,
        messages: Sequence[Message] | None = None,
        explanation: str = "",
        client_tools: Collection[str] = (),
        stays_open: bool = False,
        heartbeat_seconds: float = 15.0,
        cancel_on_disconnect: bool = False,
        headers: Mapping[str, str] | None = None,
        status_code: int = 200,
    ) -> None:
        if source is None and messages is None:
            raise ConfigurationError("a run without a request shows messages; give messages=")
        self._messages = messages
        self._explanation = explanation
        self._agui = AguiEncoder(
            incoming.conversation_id,
            incoming.run_id,
            protocol_version=incoming.protocol_version,
            client_tools=client_tools,
            answered=incoming.answered,
        )
        super().__init__(
            source or _NoRequest(),
            self._agui,
            stays_open=stays_open,
            heartbeat_seconds=heartbeat_seconds,
            cancel_on_disconnect=cancel_on_disconnect,
            headers=headers,
            status_code=status_code,
        )

    async def _frames(self) -> AsyncGenerator[bytes]:
        if self._messages is not None:
            # In a thread, since a long conversation takes long to write.
            yield await anyio.to_thread.run_sync(self._first_frames, self._messages)
        if isinstance(self._source, _NoRequest):
            yield b"".join(map(sse_frame, self._agui.pause()))
            return
        async with aclosing(super()._frames()) as frames:
            async for each in frames:
                yield each

    def _first_frames(self, messages: Sequence[Message]) -> bytes:
        about = {"request_id": self._source.request_id, "explanation": self._explanation}
        return b"".join(map(sse_frame, self._agui.begin(messages, **about)))


class _NoRequest:
    """A conversation in which nothing runs, in place of a request. It is its own reader, and gives no events."""

    request_id = cursor = ""

    async def has_ended(self) -> bool:
        return False

    def events(self, *, after: str = "", capacity: int = 1_000) -> EventReader:  # noqa: ARG002 -- the protocol's
        return self

    def cancel(self, reason: str = "") -> None:
        """Do nothing."""

    def __aiter__(self) -> _NoRequest:
        return self

    async def __anext__(self) -> Event:
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Do nothing."""
