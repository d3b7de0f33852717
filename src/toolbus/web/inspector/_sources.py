"""The sources of what the inspector shows: a runtime in this process, a store that other processes use, or a recording.

Each gives the same: a list of requests, one request to follow, a handle for commands where there are any, and a
recording of a request. Knows runtimes, stores and recordings, and nothing of HTTP.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ...clock import wall_time
from ...core.turn import TurnState, apply_all, with_messages
from ...errors import ConfigurationError, ToolbusError, UnknownRequest
from ...events import (
    EVENT_TYPES,
    Event,
    HistoryCompressed,
    ReasoningDelta,
    RequestEnding,
    RequestStarted,
    StatusChanged,
    TextDelta,
    ToolArgumentsDelta,
)
from ...handles import RequestHandle
from ...messages import Message, SystemMessage
from ...remote import Client
from ...runtime import Runtime
from ...session import SessionView
from ...storage import Store
from ...testing.recording import (
    RecordedRequest,
    Recording,
    RecordingError,
    read_recording,
    recorded_from_journal,
    recorded_from_session,
)
from ._event_log import EventLog, LoggedRequest
from ._fold import RequestFold, ToolFacts, no_tool
from ._stored import FollowedRequest, StoredList, shortened

MAX_LISTED = 300
"""The number of requests in the list."""
_UNHEARD = (TextDelta, ReasoningDelta, ToolArgumentsDelta, StatusChanged)
"""Types to which the inspector does not listen: they would make each session do work for it."""
_HEARD = tuple(each for each in EVENT_TYPES if each not in _UNHEARD)
MAX_FOLLOWED = 32
"""The most stored requests that are followed, and streams. A closed request is read again from its beginning."""


class Followed(Protocol):
    """One request that somebody follows. `events` are the newest, `first` is the number of the first of them.

    Once `is_closed`, because its source needs the space for others, it gets no more events: follow the request again.
    """

    fold: RequestFold
    version: int
    is_closed: bool

    @property
    def events(self) -> Sequence[Event]: ...
    @property
    def first(self) -> int: ...

    async def update(self) -> None:
        """Take what is new; `version` has changed if there was something. Raises `ToolbusError`."""
        ...


class Source(Protocol):
    """A source of requests, as the module describes it. `name` is what is inspected; `can_act` permits commands."""

    name: str
    can_act: bool

    async def open(self) -> None:
        """Open files and connections. Idempotent."""

    async def aclose(self) -> None:
        """Close them."""

    def now(self) -> float:
        """Return the moment that is shown, in seconds since the epoch."""
        ...

    async def requests(self) -> list[dict[str, Any]]:
        """Return the newest requests, and all that are open, as rows, the newest first. Raises `StoreError`."""
        ...

    async def statistics(self) -> Mapping[str, Any]:
        """Return the numbers of the source, as JSON values."""
        ...

    async def follow(self, request_id: str) -> Followed:
        """Return a request to follow. Raises `UnknownRequest`, and the errors of stores."""
        ...

    def handle(self, request_id: str) -> RequestHandle:
        """Return the handle for commands. Raises `ConfigurationError` for a source without commands."""
        ...

    def sent(self, request_id: str, followed: Followed) -> Sequence[Message] | None:  # noqa: ARG002 -- for live requests
        """Return the messages that the model got last; None if they are not known: some were shortened."""
        return None if followed.fold.compressions else list(followed.fold.messages)

    async def recorded(self, request_id: str) -> list[RecordedRequest]:
        """Return a request for a recording. Raises `ToolbusError` with the reason why it cannot be recorded."""
        ...


class _SourceWithHandles(Source):
    """The parts of a source whose requests take commands. `handle` returns the handle of a request."""

    can_act = True

    def __init__(self, name: str, handle: Callable[[str], RequestHandle], tool_facts: ToolFacts) -> None:
        self.name = name
        self._handle = handle
        self._facts_of_tools = tool_facts
        self._followed: dict[str, FollowedRequest] = {}

    async def aclose(self) -> None:
        while self._followed:
            self._followed.popitem()[1].close()

    def now(self) -> float:
        return wall_time()

    def handle(self, request_id: str) -> RequestHandle:
        return self._handle(request_id)

    async def follow(self, request_id: str) -> Followed:
        """Return a request that is read from a store; those that were asked for last stay open."""
        if request_id not in self._followed:
            await self.handle(request_id).has_ended()  # It raises for an unknown request.
        found = self._followed.pop(request_id, None)  # Another task may have opened it meanwhile.
        self._followed[request_id] = found or FollowedRequest(self.handle(request_id), self._facts_of_tools)
        if len(self._followed) > MAX_FOLLOWED:
            self._followed.pop(next(iter(self._followed))).close()
        return self._followed[request_id]


class LiveSource(_SourceWithHandles):
    """A runtime in this process, with the requests that its store has from earlier."""

    def __init__(self, runtime: Runtime[Any]) -> None:
        super().__init__("runtime", runtime.request, self._tool_facts)
        self._runtime = runtime
        self._log = EventLog(self._tool_facts)
        journal = runtime.store.journal
        self._stored = None if journal is None else StoredList(journal)
        runtime.bus.connect(_HEARD, self._hear)

    def _hear(self, event: Event) -> None:
        request = self._log.add(event)
        if request is None or event.request_id != request.fold.request_id:
            return
        has_ended = isinstance(event, RequestEnding)
        if has_ended and self._runtime.journal is None:
            session = self._runtime.session(event.request_id)
            if session is not None:
                self._log.keep(event.request_id, ended=session.snapshot())
        # A window that has shortened something is looked at while there is one.
        is_other = request.sent is not None if has_ended else isinstance(event, HistoryCompressed)
        if is_other and (view := self._view(event.request_id)) is not None:
            self._log.keep(event.request_id, sent=_sent_by(view))

    def _view(self, request_id: str) -> SessionView | None:
        """Return the view of a request that runs, or that works for a call of another one."""
        if (session := self._runtime.session(request_id)) is not None:
            return session.snapshot().view
        view = self._runtime.bus.arbitration.view(request_id)
        return view if isinstance(view, SessionView) else None

    def _tool_facts(self, request_id: str, name: str) -> tuple[bool, str]:
        view = self._view(request_id)
        spec = (self._runtime.tools.specs if view is None else view.state.tools).get(name)
        return (False, "") if spec is None else (spec.external, spec.pool)

    async def requests(self) -> list[dict[str, Any]]:
        rows = [await each.summary() for each in self._log.newest(MAX_LISTED)]
        if self._stored is None:
            return rows
        stored = await self._stored.rows(MAX_LISTED, without=self._log)
        return shortened([*rows, *stored], MAX_LISTED)

    async def statistics(self) -> Mapping[str, Any]:
        health = self._runtime.health()
        found = dataclasses.asdict(self._runtime.statistics())
        return {"ready": health.ready, "reasons": list(health.reasons), "requests_watched": len(self._log), **found}

    async def follow(self, request_id: str) -> Followed:
        logged = self._log.get(request_id)
        if logged is not None and isinstance(logged.events[0] if not logged.first else None, RequestStarted):
            return logged
        try:
            return await super().follow(request_id)
        except ToolbusError:
            if logged is None:
                raise
            return logged

    def sent(self, request_id: str, followed: Followed) -> Sequence[Message] | None:
        if (view := self._view(request_id)) is not None:
            return _sent_by(view)
        kept = followed.sent if isinstance(followed, LoggedRequest) else None
        return super().sent(request_id, followed) if kept is None else kept

    async def recorded(self, request_id: str) -> list[RecordedRequest]:
        journal = self._runtime.store.journal
        if journal is not None and await journal.request(request_id) is not None:
            view = self._view(request_id)
            specs = self._runtime.tools.specs if view is None else view.state.tools
            return [await _from_journal(self._runtime.store, request_id, list(specs.values()))]
        logged = self._log.get(request_id)
        if logged is None or (logged.ended is None and self._view(request_id) is None):
            raise ConfigurationError(
                "this request is not in memory any more, and no journal has it: it was deleted, or the runtime has no "
                "store with a journal, such as SqliteStore"
            )
        if logged.ended is None:
            raise ConfigurationError("this request has no journal, so it can be recorded only after it has ended")
        return [recorded_from_session(logged.ended.view, logged.ended.facts)]


def _sent_by(view: SessionView) -> list[Message]:
    instructions = view.options.get("instructions")
    system = [SystemMessage(text=instructions)] if isinstance(instructions, str) else []
    return [*system, *view.window.sent]


class StoreSource(_SourceWithHandles):
    """A store that other processes use. Commands reach them through its inbox."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._client = Client(store)
        super().__init__(name, self._client.request, _any_tool)
        self._is_open = False
        journal = store.journal
        assert journal is not None  # `Client` has looked.
        self._journal = journal
        self._stored = StoredList(journal)

    async def open(self) -> None:
        """See `Source`. Raises `StoreError`."""
        if not self._is_open:
            await self._client.__aenter__()
            self._is_open = True

    async def aclose(self) -> None:
        await super().aclose()
        if self._is_open:
            self._is_open = False
            await self._client.__aexit__(None, None, None)

    async def requests(self) -> list[dict[str, Any]]:
        return await self._stored.rows(MAX_LISTED)

    async def statistics(self) -> Mapping[str, Any]:
        return dataclasses.asdict(await self._journal.statistics())

    async def recorded(self, request_id: str) -> list[RecordedRequest]:
        """See `Source`. Without the tools, which no store has."""
        return [await _from_journal(self._store, request_id, [])]


class RecordingSource(Source):
    """The requests of a recording. They have happened, so there are no commands.

    Example:
        from toolbus.web.inspector import Inspector, RecordingSource

        inspector = Inspector(RecordingSource("support.jsonl"))  # `toolbus inspect --recording support.jsonl`
    """

    can_act = False

    def __init__(self, path: str | Path) -> None:
        self.name = Path(path).name
        self._path = Path(path)
        self._recording: Recording | None = None
        self._ends_at = 0.0
        self._log = EventLog(no_tool, max_bytes=math.inf, max_requests=math.inf)

    async def open(self) -> None:
        """Read the file. Raises `RecordingError` and `OSError`."""
        if self._recording is None:
            recording = read_recording(self._path, partial=True)
            for event in heapq.merge(
                *[_with_messages(each) for each in recording.requests],
                sorted(recording.signals, key=lambda each: each.at),
                key=lambda each: each.at,
            ):
                self._log.add(event)
                self._ends_at = max(self._ends_at, event.at)
            self._recording = recording

    def now(self) -> float:
        """Return the moment of the newest event: a request without an ending has lasted until then."""
        return self._ends_at

    async def requests(self) -> list[dict[str, Any]]:
        return [await each.summary() for each in self._log.newest(MAX_LISTED)]

    async def statistics(self) -> Mapping[str, Any]:
        recording = self._read()
        requests, signals = len(recording.requests), len(recording.signals)
        return {"written_by": recording.toolbus, "requests": requests, "facts": recording.facts, "signals": signals}

    async def follow(self, request_id: str) -> Followed:
        logged = self._log.get(request_id)
        if logged is None:
            raise UnknownRequest(f"the recording has no request {request_id!r}")
        return logged

    def handle(self, request_id: str) -> RequestHandle:
        """Raise `ConfigurationError`."""
        del request_id
        raise ConfigurationError("a recording takes no commands, because its requests have happened")

    async def recorded(self, request_id: str) -> list[RecordedRequest]:
        """See `Source`. With the requests below."""
        wanted = {request_id}
        found: list[RecordedRequest] = []
        for each in self._read().requests:
            first = each.facts[0] if each.facts else None
            above = first.parent_request_id if isinstance(first, RequestStarted) else ""
            if each.request_id in wanted or above in wanted:
                wanted.add(each.request_id)
                found.append(each)
        if not found:
            raise UnknownRequest(f"the recording has no request {request_id!r}")
        return found

    def _read(self) -> Recording:
        if self._recording is None:
            raise RecordingError(self._path, 0, "the file was not read yet")
        return self._recording


def _any_tool(_request_id: str, _name: str) -> tuple[bool, str]:
    """Treat any tool as external: a store does not have the tools, and wrong answers are refused later."""
    return True, ""


def _with_messages(request: RecordedRequest) -> list[Event]:
    """Return the facts with the messages that are derived from them, as a reader of a store gets them."""
    state = TurnState(request.request_id, str(request.agreed.get("conversation_id", "")))
    try:
        return with_messages(apply_all(state, request.facts), request.facts)
    except (ToolbusError, AttributeError, TypeError, KeyError, ValueError):
        # The facts are from another version, for example, or were edited. They are shown without messages.
        return list(request.facts)


async def _from_journal(store: Store, request_id: str, tools: Sequence[Any]) -> RecordedRequest:
    journal = store.journal
    record = None if journal is None else await journal.request(request_id)
    if journal is None or record is None:
        raise UnknownRequest(f"the store has no request {request_id!r}")
    history = await store.history(record.conversation_id)
    return recorded_from_journal(record, await journal.facts(request_id), history, tools)
