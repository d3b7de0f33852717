"""The messages between processes of one store, over a relay: events of requests for readers elsewhere, and wake-ups.

The process that runs a request sends its events to those that read them, and to nobody else. Must not know which relay
it is.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Literal

import anyio
import msgspec

from .._option_checks import check_implements
from ..bus import Subscription
from ..errors import DecodeError, ToolbusError
from ..events import Event, decode, encode, new_id
from ..records import JsonForm
from ..session import RequestSession
from ._relay import Relay, RelayLink

BEAT_SECONDS = 5.0
"""The seconds between two messages in which a reader says that it still reads."""
SILENCE_SECONDS = 3 * BEAT_SECONDS
"""After this time without a message, each side gives the other up."""
MAX_STREAMS = 10_000
"""The readers in other processes that one process serves. Others read from the store."""
_BATCH_BYTES = 65_536
_HEAD_BYTES = 1_024
_BUFFER_BYTES = 8 * 2**20
_PAUSE = 64
_LEAVE_SECONDS = 1.0
_logger = logging.getLogger("toolbus.handles")


class _Message(msgspec.Struct, omit_defaults=True):
    """The first line of each message; in "events", one event a line follows.

    read    begin to send events of `request` after a cursor to the address `to`, as the stream `id`
    events  part `n` of the stream `id`; with `over`, nothing follows
    stay    whoever reads at the address `to` is still there
    stop    end the stream `id`
    look    look into the inbox, and answer to the address `to` when the input `id` is settled
    looked  the input `id` is settled
    """

    do: Literal["read", "events", "stay", "stop", "look", "looked"]
    id: str = ""
    to: str = ""
    request: str = ""
    after: str = ""
    n: int = 0
    facts_only: bool = False
    over: bool = False


_message = JsonForm[_Message](_Message, "its first line")


class _Served(msgspec.Struct, eq=False):
    """A stream of events to a reader elsewhere, until the deadline of `scope`."""

    to: str
    scope: anyio.CancelScope


class LiveEvents:
    """The events of a request from the process that runs it, for one reader, which awaits them with `anext`.

    They end after the last event, and also when the process is silent, the request has left it, or a message was lost:
    then the reader continues with the store.
    """

    def __init__(self, exchange: Exchange, owner: str, request_id: str) -> None:
        self.owner = owner
        self.stream = new_id()
        self._exchange = exchange
        self.request_id = request_id
        self._bodies: deque[bytes] = deque()
        self._bytes = 0
        self._next = 0
        self._is_over = False
        self._came = anyio.Event()
        self._heard_at = anyio.current_time()

    def hear(self, message: _Message, rest: bytes) -> None:
        """Take a part of the stream. A part that does not follow the one before, or one too many, ends the stream."""
        self._heard_at = anyio.current_time()
        if message.n != self._next or self._bytes > _BUFFER_BYTES:
            # A message was lost, or the reader is too slow: it reads what it has, and joins again.
            self._is_over = True
        if not self._is_over:
            self._next += 1
            if rest:
                self._bodies.extend(rest.split(b"\n"))
                self._bytes += len(rest) + 1
            self._is_over = message.over
        self._came.set()

    async def __anext__(self) -> Event:
        if len(self._bodies) % _PAUSE == 0:
            await anyio.lowlevel.checkpoint()
        while not self._bodies:
            if self._is_over:
                self.close()
                raise StopAsyncIteration
            with anyio.move_on_after(self._heard_at + SILENCE_SECONDS - anyio.current_time()) as scope:
                await self._came.wait()
                self._came = anyio.Event()
            if scope.cancelled_caught:
                self._is_over = True
        body = self._bodies.popleft()
        self._bytes -= len(body) + 1
        try:
            event = decode(body)
        except DecodeError as exc:
            _logger.warning("an event of request %s from another process was not read: %s", self.request_id, exc)
            event = None
        if event is None or event.request_id != self.request_id:
            self.close()
            raise StopAsyncIteration
        return event

    def end(self) -> None:
        """Take nothing more. What has come is still read."""
        self._is_over = True
        self._came.set()

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self.end()
        self._exchange.leave(self)


class Exchange:
    """One process's part in the messages.

    `name` returns the address: the name under which the process holds leases, if it does, and otherwise a new id.
    `local` returns the session of a request that runs here. `look(event_id, settled)` looks into the inbox at once, and
    calls `settled` when it knows what became of the input.
    """

    def __init__(
        self,
        relay: Relay,
        name: Callable[[], str],
        *,
        local: Callable[[str], RequestSession | None],
        look: Callable[[str, Callable[[], None]], None] | None,
    ) -> None:
        check_implements(relay, Relay, "pass a Relay, such as NatsRelay(url)")
        self.address = ""
        self._name = name
        self._relay = relay
        self._local = local
        self._look = look
        self._reading: dict[str, LiveEvents] = {}
        self._served: dict[str, _Served] = {}
        self._looking: dict[str, anyio.Event] = {}
        self._link: RelayLink | None = None

    async def __aenter__(self) -> None:
        self.address = self._name()
        async with AsyncExitStack() as stack:
            link = await stack.enter_async_context(self._relay.connected(self.address, self._on_heard))
            self._group = await stack.enter_async_context(anyio.create_task_group())
            self._link = link
            self._group.start_soon(self._beat)
            self._stack = stack.pop_all()

    async def __aexit__(self, *exc_info: object) -> None:
        self._link = None
        self._group.cancel_scope.cancel()
        await self._stack.aclose()

    # ------------------------------------------------------------------------------------------------- reading

    async def join(self, owner: str, request_id: str, after: str, *, facts_only: bool) -> LiveEvents | None:
        """Return the events after a cursor from the process `owner`; None if it cannot be asked."""
        if not owner or owner == self.address or self._link is None:
            return None
        live = LiveEvents(self, owner, request_id)
        self._reading[live.stream] = live
        asked = _Message(
            do="read", id=live.stream, to=self.address, request=request_id, after=after, facts_only=facts_only
        )
        try:
            await self._link.send(owner, _body(asked))
        except BaseException:
            # The owner may have the message already, and would send events for as long as this process lives.
            self.leave(live)
            raise
        return live

    def begins_here(self, request_id: str) -> None:
        """Let the readers of a request that this process takes over know, whose owner may have died without a word."""
        for live in self._reading.values():
            if live.request_id == request_id:
                live.end()

    def leave(self, live: LiveEvents) -> None:
        """End a stream for its reader, and let the process that sends it know. Idempotent."""
        if self._reading.pop(live.stream, None) is not None and self._link is not None:
            self._group.start_soon(self._link.send, live.owner, _body(_Message(do="stop", id=live.stream)))

    async def ask_to_look(self, owner: str, event_id: str) -> anyio.Event:
        """Let `owner` look into its inbox at once. The event is set when it has settled the input."""
        settled = self._looking.setdefault(event_id, anyio.Event())
        if self._link is not None and owner:
            await self._link.send(owner, _body(_Message(do="look", id=event_id, to=self.address)))
        return settled

    def forget(self, event_id: str) -> None:
        """Wait no longer for an input to be settled. Idempotent."""
        self._looking.pop(event_id, None)

    async def _beat(self) -> None:
        while self._link is not None:
            await anyio.sleep(BEAT_SECONDS)
            for owner in {each.owner for each in self._reading.values()}:
                await self._link.send(owner, _body(_Message(do="stay", to=self.address)))

    # ------------------------------------------------------------------------------------------------- serving

    def _on_heard(self, body: bytes) -> None:
        if self._link is None:  # The process begins, or leaves.
            return
        head, _, rest = body.partition(b"\n")
        try:
            message = _message.read(head)
        except DecodeError as exc:
            _logger.debug("a message of another process was not read: %s", exc)
            return
        match message.do:
            case "events":
                if (live := self._reading.get(message.id)) is not None:
                    live.hear(message, rest)
            case "looked":
                if (settled := self._looking.get(message.id)) is not None:
                    settled.set()
            case "look":
                if self._look is not None:
                    self._look(message.id, lambda: self._say(message.to, _Message(do="looked", id=message.id)))
            case "stop":
                if (served := self._served.get(message.id)) is not None:
                    served.scope.cancel()
            case "stay":
                for served in self._served.values():
                    if served.to == message.to:
                        served.scope.deadline = anyio.current_time() + SILENCE_SECONDS
            case "read":
                self._serve(message, self._link)

    def _serve(self, message: _Message, link: RelayLink) -> None:
        session = self._local(message.request)
        if session is None or message.id in self._served or len(self._served) >= MAX_STREAMS:
            self._group.start_soon(link.send, message.to, _ending(message))
            return
        served = _Served(message.to, anyio.CancelScope(deadline=anyio.current_time() + SILENCE_SECONDS))
        self._served[message.id] = served
        self._group.start_soon(self._send_events, message, session, served, link)

    def _say(self, address: str, message: _Message) -> None:
        if self._link is not None:
            self._group.start_soon(self._link.send, address, _body(message))

    async def _send_events(self, message: _Message, session: RequestSession, served: _Served, link: RelayLink) -> None:
        part, over = 0, False
        try:
            with served.scope:
                events: Subscription[Any] = session.events(after=message.after)
                try:
                    while not over:
                        bodies, is_last = await _some(events, link.max_bytes, facts_only=message.facts_only)
                        await _send_part(link, message, part, bodies, over=is_last)
                        part, over = part + 1, is_last
                finally:
                    events.close()
        except ToolbusError as exc:
            _logger.debug("a reader of request %s in another process is not served: %s", message.request, exc)
        finally:
            del self._served[message.id]
            if not over and not served.scope.cancel_called:
                with anyio.move_on_after(_LEAVE_SECONDS, shield=True):
                    await link.send(message.to, _ending(message))


async def _some(events: Subscription[Any], max_bytes: int, *, facts_only: bool) -> tuple[list[bytes], bool]:
    """Wait for events, and return those that are there, encoded, and whether they were the last ones."""
    left = min(_BATCH_BYTES, max_bytes) - _HEAD_BYTES
    bodies: list[bytes] = []
    event: Event | None = None
    with anyio.move_on_after(BEAT_SECONDS) as beat:
        event = await anext(events, None)
    if event is None:
        return bodies, not beat.cancelled_caught
    while event is not None:
        if event.is_fact or not facts_only:
            # An application's own signal that is not JSON reaches no other process. Facts are in the journal.
            with contextlib.suppress(TypeError):
                bodies.append(encode(event))
                left -= len(bodies[-1])
        event = events.receive_nowait() if left > 0 else None
    return bodies, False


async def _send_part(link: RelayLink, message: _Message, part: int, bodies: list[bytes], *, over: bool) -> None:
    body = b"\n".join((_body(_Message(do="events", id=message.id, n=part, over=over)), *bodies))
    # What the relay does not carry is read from the store, as after a lost message.
    await link.send(message.to, body if len(body) <= link.max_bytes else _ending(message))


def _ending(message: _Message) -> bytes:
    """A last part without events, after which the reader continues with the store."""
    return _body(_Message(do="events", id=message.id, over=True))


def _body(message: _Message) -> bytes:
    return msgspec.json.encode(message)
