"""The events of the newest requests, kept in memory for the inspector, within bounds. Knows events, and no bus."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import anyio.lowlevel
import msgspec

from ...events import Event, MessageAppended, ModelResponded, RequestEnding, RequestStarted
from ...messages import Message, size_of
from ...session import SessionSnapshot
from ._fold import RequestFold, ToolFacts

MAX_REQUESTS = 1_000
MAX_BYTES = 64 * 2**20
_MAX_EVENTS = 5_000
_SLICE = 50  # events that are folded without a checkpoint
_EVENT_BYTES = 600


class LoggedRequest:
    """The events of one request and of its sub-requests. They are folded when somebody looks.

    `events` are the newest 5,000 events, and `first` is the number of the first of them. `version` counts all events.
    `sent` are the messages that the model got last, if they differ from the transcript. `ended` is the snapshot of a
    request that has ended and has no journal.
    """

    def __init__(self, request_id: str, tool_facts: ToolFacts) -> None:
        self.fold = RequestFold(request_id, tool_facts)
        self.events: deque[Event] = deque(maxlen=_MAX_EVENTS)
        self.version = 0
        self.is_closed = False
        self.size_bytes = 0
        self.sent: Sequence[Message] | None = None
        self.ended: SessionSnapshot | None = None
        self._sizes: deque[int] = deque()  # of the events, in their order
        self._waiting: deque[Event] = deque()
        self._summary: tuple[int, dict[str, Any]] | None = None

    @property
    def first(self) -> int:
        """The number of the first event that is kept."""
        return self.version - len(self.events)

    def add(self, event: Event) -> None:
        self.events.append(event)
        self.version += 1
        self._waiting.append(event)
        self._sizes.append(_size_of(event))
        self.size_bytes += self._sizes[-1]
        if len(self._sizes) > len(self.events):
            self.size_bytes -= self._sizes.popleft()
        if len(self._waiting) >= _MAX_EVENTS:  # Nobody looks, and the oldest of them is about to be forgotten.
            self._fold(_SLICE)

    async def update(self) -> None:
        """Fold the events that wait, with checkpoints."""
        while self._waiting:
            self._fold(_SLICE)
            await anyio.lowlevel.checkpoint()

    async def summary(self) -> dict[str, Any]:
        """Return the request as a row of the list."""
        if self._summary is None or self._summary[0] != self.version:
            await self.update()
            self._summary = self.version, self.fold.summary()
        return self._summary[1]

    def _fold(self, limit: int) -> None:
        for _ in range(min(limit, len(self._waiting))):
            self.fold.feed(self._waiting.popleft())


class EventLog:
    """The newest requests with their events: at most 1,000 requests, and about 64 MiB.

    Those that ended first are dropped first. `tool_facts` are as for `RequestFold`.
    """

    def __init__(
        self, tool_facts: ToolFacts, *, max_requests: float = MAX_REQUESTS, max_bytes: float = MAX_BYTES
    ) -> None:
        self._tool_facts = tool_facts
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._requests: dict[str, LoggedRequest] = {}  # the oldest first
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._roots: dict[str, str] = {}  # by the id of a request, that of the request above all
        self._below: dict[str, list[str]] = {}  # by the id of a request above all, those of the others
        self._bytes = 0

    def add(self, event: Event) -> LoggedRequest | None:
        """Take an event, and return the request to which it belongs; None for one that belongs to no request."""
        if not event.request_id:
            return None
        root = self._roots.get(event.request_id)
        if root is None:
            root = self._root_of(event)
        request = self._requests[root]
        size = request.size_bytes
        request.add(event)
        if isinstance(event, RequestEnding) and event.request_id == root:
            self._ended[root] = None
        self._grow(root, request.size_bytes - size)
        return request

    def keep(
        self, request_id: str, *, sent: Sequence[Message] | None = None, ended: SessionSnapshot | None = None
    ) -> None:
        """Keep these beside the events of a request that is here: see `LoggedRequest`."""
        request, size = self._requests[request_id], 0
        if sent is not None:
            size -= size_of(request.sent or ())
            request.sent, size = sent, size + size_of(sent)
        if ended is not None:
            state = ended.view.state
            request.ended, size = ended, size + size_of(state.messages[: state.history_count])
        request.size_bytes += size
        self._grow(request_id, size)

    def get(self, request_id: str) -> LoggedRequest | None:
        """Return a request, by its id or by that of a request below it."""
        return self._requests.get(self._roots.get(request_id, request_id))

    def newest(self, limit: int) -> Iterable[LoggedRequest]:
        """Return the requests that began last, the newest first."""
        return list(islice(reversed(self._requests.values()), limit))

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    def _root_of(self, event: Event) -> str:
        above = event.parent_request_id if isinstance(event, RequestStarted) else ""
        root = self._roots.get(above, event.request_id) if above else event.request_id
        self._roots[event.request_id] = root
        if root not in self._requests:
            self._requests[root] = LoggedRequest(root, self._tool_facts)
        if root != event.request_id:
            self._below.setdefault(root, []).append(event.request_id)
        return root

    def _grow(self, request_id: str, size_bytes: int) -> None:
        """Count more bytes for a request. Beyond the bounds, drop others."""
        self._bytes += size_bytes
        while len(self._requests) > 1 and (len(self._requests) > self._max_requests or self._bytes > self._max_bytes):
            oldest = next((each for each in self._ended if each != request_id), None)
            oldest = oldest or next(each for each in self._requests if each != request_id)
            self._ended.pop(oldest, None)
            dropped = self._requests.pop(oldest)
            dropped.is_closed = True
            self._bytes -= dropped.size_bytes
            for each in (oldest, *self._below.pop(oldest, ())):
                self._roots.pop(each, None)


# An application's own values, which are not JSON, count nothing.
_encode = msgspec.json.Encoder(enc_hook=lambda _value: None).encode


def _size_of(event: Event) -> int:
    """Return the bytes that an event keeps in memory, as an estimate."""
    if isinstance(event, (ModelResponded, MessageAppended)):
        # Writing a long message takes longer than looking at its texts.
        return _EVENT_BYTES + size_of((event.message,))
    try:
        return _EVENT_BYTES + len(_encode(event))
    except (TypeError, UnicodeEncodeError, RecursionError):
        return _EVENT_BYTES + len(repr(event))
