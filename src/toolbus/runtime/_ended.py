"""The requests that have ended and can still be asked for, within bounds. Knows sessions, and has no timer."""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from ..core.arguments import CONTAINERS
from ..core.output import OutputType
from ..events import EVENT_TYPES, Event, ModelResponded, RequestEnding, ToolCallCompleted
from ..handles import record_of
from ..messages import Message, UserMessage, size_of
from ..protocols import Provider, ToolSource
from ..records import JsonForm, json_bytes
from ..session import RequestSession, Resumed, SessionOptions, SessionStart, tool_source
from ..storage import Ending, RequestRecord, ending_of

if TYPE_CHECKING:
    from ..bus import EventBus
    from ..session import SessionSnapshot

_MAX_REQUESTS = 10_000
_MAX_BYTES = 64 * 2**20
# The bytes of a request's own messages and artifacts up to which its facts are written as JSON. Writing 8 MiB of quotes
# takes 150 ms.
_MAX_WRITTEN_BYTES = 2**20
_FACTS = JsonForm[list[Event]](list[Union[EVENT_TYPES]], "facts")  # noqa: UP007 -- a tuple made at run time
# The bytes of a request beside its facts, measured on CPython 3.11.
_REQUEST_BYTES = 1_000
# The bytes of a session that is kept itself, for each fact and beside its messages.
_OBJECT_BYTES = 500
# The bytes of each JSON value that it has read from the text of arguments, or of a result with data.
_VALUE_BYTES = 100
# A session is made with a prompt. This one is not used, because the facts have the request's own.
_PROMPT = UserMessage(content="-")
# What is kept of a request that is not there.
_ABSENT = (None, -math.inf, 0)


@dataclass(slots=True, frozen=True)
class _Ended:
    """One request: its facts as JSON, and what a session needs beside them.

    As JSON, the facts are a few objects that the garbage collector does not look into. As events they would be dozens
    for each request, and the collector would take as long as half of the request did.
    """

    facts: bytes
    facts_count: int
    history: tuple[Message, ...]
    conversation_id: str
    providers: Sequence[Provider]
    tools: ToolSource
    options: SessionOptions
    output: OutputType[Any] | None
    started_at: float
    ended_at: float
    ending: Ending | None

    def record(self, request_id: str) -> RequestRecord:
        """Return the record of this request."""
        return RequestRecord(
            request_id=request_id,
            conversation_id=self.conversation_id,
            started_at=self.started_at,
            ended_at=self.ended_at,
            ending=self.ending,
            fact_count=self.facts_count,
        )


class EndedRequests:
    """The requests that ended in the last `seconds`; at most 10,000, and 64 MiB of facts and earlier messages.

    Those that ended first are dropped first: when another one ends, or when one is asked for. A request that a journal
    has with its ending is read from there. One that has published no ending here, or only that the store failed, so
    that any process continues it, has not ended. None of them is kept.
    """

    def __init__(self, bus: EventBus, seconds: float) -> None:
        self._bus = bus
        self._seconds = seconds
        self._bytes = 0
        # Each with the moment of its end and its bytes. The session itself is kept if its facts are large, or cannot
        # make it again, because they are not JSON, or the session has broken.
        self._kept: OrderedDict[str, tuple[_Ended | RequestSession, float, int]] = OrderedDict()

    def add(self, session: RequestSession, found: SessionSnapshot) -> None:
        """Keep a request that has just ended, with its session's inner state, if it has to be kept."""
        if not self._seconds or found.result is None or found.result.journaled:
            return
        if not found.facts or not isinstance(found.facts[-1], RequestEnding):
            return
        if found.result.resumable and found.view.is_released:
            return
        state, view = found.view.state, found.view
        history = tuple(state.messages[: state.history_count])
        facts = b""
        size, added = size_of(history), size_of(state.messages[state.history_count :])
        for fact in found.facts:
            if type(fact) is ToolCallCompleted and fact.artifacts:
                added += sum([len(each.content) for each in fact.artifacts])
        if len(found.facts) == state.facts and added <= _MAX_WRITTEN_BYTES:
            with contextlib.suppress(TypeError):
                facts = json_bytes(found.facts)
        kept: _Ended | RequestSession = session
        if facts:
            size += _REQUEST_BYTES + len(facts)
            kept = _Ended(
                facts=facts,
                facts_count=state.facts,
                history=history,
                conversation_id=session.conversation_id,
                providers=view.providers,
                tools=_tools_of(found),
                options=view.options,
                output=state.output,
                started_at=found.facts[0].at,
                ended_at=found.facts[-1].at,
                ending=ending_of(found.facts[-1]),
            )
        else:
            size += added + _OBJECT_BYTES * state.facts + _VALUE_BYTES * _count_values(found.facts)
        _, _, before = self._kept.pop(session.request_id, _ABSENT)
        self._kept[session.request_id] = (kept, self._bus.clock.loop_time(), size)
        self._bytes += size - before
        self._drop_old()

    def get(self, request_id: str) -> RequestSession | None:
        """Return a session of a request that has ended, if it is still kept: with its result, its events and its text.

        The exceptions of handlers are gone.
        """
        self._drop_old()
        ended, _, _ = self._kept.get(request_id, _ABSENT)
        if not isinstance(ended, _Ended):
            return ended
        facts = _FACTS.read(ended.facts)
        return RequestSession(
            self._bus,
            ended.providers,
            [*ended.history, _PROMPT],
            tools=ended.tools,
            conversation_id=ended.conversation_id,
            request_id=request_id,
            output=ended.output,
            start=SessionStart(resumed=Resumed(facts=facts, history=())),
            **ended.options,
        )

    def records(self, matches: Callable[[str], bool]) -> list[RequestRecord]:
        """Return the records of the requests whose conversation `matches`, in the order in which they ended."""
        self._drop_old()
        return [
            each.record(request_id) if isinstance(each, _Ended) else record_of(each)
            for request_id, (each, _, _) in self._kept.items()
            if matches(each.conversation_id)
        ]

    def clear(self) -> None:
        """Drop all of them."""
        self._kept.clear()
        self._bytes = 0

    def _drop_old(self) -> None:
        before = self._bus.clock.loop_time() - self._seconds
        while self._kept:
            _, moment, size = next(iter(self._kept.values()))
            if moment > before and len(self._kept) <= _MAX_REQUESTS and self._bytes <= _MAX_BYTES:
                return
            self._kept.popitem(last=False)
            self._bytes -= size


def _count_values(facts: Sequence[Event]) -> int:
    """Return about how many JSON values the arguments of calls have, and the data of results."""
    texts: list[str] = []
    for fact in facts:
        if isinstance(fact, ModelResponded):
            texts += [call.arguments for call in fact.message.tool_calls]
        elif isinstance(fact, ToolCallCompleted) and type(fact.data) in CONTAINERS:
            texts.append(fact.content)
    return sum(text.count(sign) for text in texts for sign in ",[{")


def _tools_of(found: SessionSnapshot) -> ToolSource:
    """Return the tools that the request had last, without the one for its output."""
    had, tools = found.view.state.tools, found.view.tools
    return tools if tools.specs is had else tool_source([each for each in had.values() if each.control != "output"])
