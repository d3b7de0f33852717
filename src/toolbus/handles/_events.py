"""The events of one request for one reader, wherever the request runs, and also while it moves."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Generic, cast

import anyio

from ..bus import Cursor, EventT, Subscription
from ..durability import ReadAlong
from ..errors import BusError, ConfigurationError
from ..events import EVENT_TYPES, Event, ModelResponded, ModelRetrying, RequestEnding, RequestResumed, TextDelta
from ..session import RequestSession
from ._exchange import LiveEvents


class RequestEvents(Generic[EventT]):
    """An asynchronous iterator over the events of one request. Made by `RequestHandle.events`. For one reader.

    While the request runs in this process, all its events come as they happen: see `RequestSession.events`. With a
    relay, so do those of a request in another process. Without one, its facts come, and the `MessageAppended` events
    derived from them, within the handle's `seconds` after they are written; signals, such as pieces of text, do not.
    The iteration ends after the request's ending. It continues when the request moves to another process, or comes from
    one; the facts in between come from the store.

    Cancelling a wait for the next event loses nothing. Reading raises `UnknownRequest`, the `StoreError` of the
    journal, and `ResumeMismatch` for a request whose journal does not fit its conversation; it may be tried again.
    """

    def __init__(
        self,
        request_id: str,
        local: Callable[[], RequestSession | None],
        stored: Callable[[], ReadAlong],
        cursor: Cursor | None,
        kinds: tuple[type[Any], ...],
        *,
        capacity: int,
        sub_requests: bool,
        seconds: float,
        join: Callable[[str, bool], Awaitable[LiveEvents | None]] | None,
    ) -> None:
        """`join(cursor, facts_only)` returns the events after a cursor from the process that runs the request.

        `local` returns the session of a request that runs in this process.
        """
        self._local = local
        self._capacity, self._sub_requests = capacity, sub_requests
        self._stored = stored
        self._kinds = frozenset(kinds or EVENT_TYPES)
        self._seconds = seconds
        self._cursor = cursor or Cursor(request_id)
        self._from_now = cursor is None
        self._is_counted = cursor is not None  # whether `_cursor` is the position in the request
        self._newest = ""  # the id of the newest fact that was read
        self._ready: deque[Event] = deque()
        self._reads: ReadAlong | None = None
        self._is_over = False
        self._join = join
        self._joins_at = 0.0
        self._live: LiveEvents | None = None
        self._heard: Subscription[Any] | None = None
        if (session := local()) is not None:
            self._hear(session, "now" if cursor is None else str(cursor))

    def __aiter__(self) -> RequestEvents[EventT]:
        return self

    async def __anext__(self) -> EventT:
        while True:
            event = await self._next()
            if type(event) in self._kinds:
                return cast("EventT", event)

    @property
    def cursor(self) -> str:
        """The position after the newest event that was read, for `events(after=cursor)` of any handle or session.

        Raises `BusError` for events that begin with "now", and for those of some kinds only.
        """
        if self._from_now or len(self._kinds) < len(EVENT_TYPES):
            raise BusError("these events have no cursor; read all events, with events() or events(after=cursor)")
        return str(self._cursor)

    def close(self) -> None:
        """Stop reading, also in another task, which ends then. Idempotent."""
        self._is_over = True
        self._ready.clear()
        if self._heard is not None:
            self._heard.close()
        if self._live is not None:
            self._live.close()

    async def aclose(self) -> None:
        """Stop reading, for `contextlib.aclosing`. Idempotent."""
        self.close()

    async def _next(self) -> Event:
        while not self._ready:
            if self._is_over:
                raise StopAsyncIteration
            if self._heard is not None:
                try:
                    event = await anext(self._heard)
                except StopAsyncIteration:
                    # Unless the request had ended before, it was left, so that another process continues it.
                    self._heard = None
                    self._is_over = self._is_over or self._had_ended
                else:
                    self._move(event)
                    self._is_over = isinstance(event, RequestEnding) and event.request_id == self._cursor.request_id
                    return event
            else:
                await (self._read() if self._live is None else self._listen(self._live))
        event = self._ready.popleft()
        self._move(event)
        return event

    def _hear(self, session: RequestSession, after: str) -> None:
        """Read from a session in this process.

        All kinds are read, because only then can the position be known at which the store continues.
        """
        self._heard = session.events(after=after, capacity=self._capacity, sub_requests=self._sub_requests)
        result = session.snapshot().result
        self._had_ended = result is not None and not result.resumable

    def _move(self, event: Event) -> None:
        self._cursor.move(event)
        if event.is_fact and event.request_id == self._cursor.request_id:
            self._newest = event.event_id

    async def _listen(self, live: LiveEvents) -> None:
        event = await anext(live, None)
        if event is None:
            # The store has what was missed.
            self._live = self._reads = None
        else:
            self._ready.append(event)
            if isinstance(event, RequestEnding):
                self._is_over = True
                live.close()

    async def _read(self) -> None:
        if (
            self._reads is not None
            and (session := self._local()) is not None
            and not session.snapshot().view.is_released
        ):
            # This process has taken the request over, and the reader has all that was in the store before. It may even
            # have a step that the session has written and not published yet; then it comes back after its next look.
            with suppress(ConfigurationError):
                self._hear(session, str(self._cursor))
                self._reads = None
                return
        if self._join is not None and self._reads is not None and anyio.current_time() >= self._joins_at:
            # The reader has all that was in the store. A process that ends each stream at once is not asked at once.
            self._joins_at = anyio.current_time() + self._seconds
            facts_only = all(kind.is_fact for kind in self._kinds)
            self._live = await self._join(str(self._cursor), facts_only)
            if self._live is not None:
                if self._is_over:  # It was closed meanwhile.
                    self._live.close()
                return
        if self._reads is None:
            reads = self._stored()
            events = self._missing(await reads.read())
            self._reads = reads  # A first read that fails, or is cancelled, is a first read again.
        else:
            await anyio.sleep_until(self._looks_at)
            events = await self._reads.read()
        # On the loop's clock: a reader that gives up and comes back waits no longer for the next look at the store.
        self._looks_at = anyio.current_time() + self._seconds
        if not self._is_over:  # Otherwise it was closed meanwhile.
            self._ready.extend(self._with_rest(events))
            self._is_over = self._reads.has_ended

    def _with_rest(self, events: list[Event]) -> list[Event]:
        """Put the rest of a reply before its fact, if only the beginning of its text came from another process."""
        for index, event in enumerate(events if self._joins_at else ()):
            if isinstance(event, ModelResponded) and (rest := event.message.text[self._cursor.chars :]):
                if not self._cursor.chars:
                    break
                piece = TextDelta(
                    request_id=event.request_id,
                    conversation_id=event.conversation_id,
                    parent_id=event.parent_id,
                    metadata=event.metadata,
                    message_id=event.message.message_id,
                    text=rest,
                    round=event.round,
                    at=event.at,
                )
                return [*events[:index], piece, *events[index:]]
            if isinstance(event, (ModelResponded, ModelRetrying, RequestResumed)):
                break
        return events

    def _missing(self, events: list[Event]) -> list[Event]:
        """Return those of all events so far that the reader does not have."""
        ids = [each.event_id for each in events if each.is_fact]
        if self._newest in ids:
            # Calls that could not begin any more are in the store, and were not published.
            self._cursor.facts = ids.index(self._newest) + 1
        elif not self._is_counted:
            self._cursor.facts = len(ids)
        elif self._newest:
            # With `on_store_failure="warn"` the reader may have facts that the store never got.
            self._cursor.facts = min(self._cursor.facts, len(ids))
        self._is_counted = True
        return self._cursor.after(events)
