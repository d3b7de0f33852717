"""What "a request ended well" means, checked from outside: events, transcript, all vendors' wire formats, follow-up."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from support.wire_oracle import check_wires
from toolbus import EventBus, RequestResult, Runtime
from toolbus.core.transcript import Dialect, validate
from toolbus.errors import StoreError
from toolbus.events import (
    CancelRequested,
    Event,
    MessageAppended,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RequestStarted,
    StatusChanged,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
)
from toolbus.messages import AssistantMessage, Message, ToolMessage, UserMessage
from toolbus.testing import ScriptedProvider, assert_idle, text

ENDINGS = (RequestCompleted, RequestFailed, RequestCancelled)
TERMINAL = (ToolCallCompleted, ToolCallFailed)


def listen(bus: EventBus) -> list[Event]:
    """All events of the bus from now on, in its order."""
    heard: list[Event] = []
    bus.connect(Event, heard.append)
    return heard


def of_request(events: Iterable[Event], request_id: str) -> list[Event]:
    return [event for event in events if event.request_id == request_id]


def stages(events: Iterable[Event]) -> list[tuple[str, str]]:
    """What the status line said, in order."""
    return [(event.stage, event.text) for event in events if isinstance(event, StatusChanged)]


def facts(events: Iterable[Event]) -> list[str]:
    """The types of the facts, in order."""
    return [event.type for event in events if event.is_fact]


def assert_ended_well(events: Sequence[Event], result: RequestResult[Any]) -> None:
    """One ending, which is the last event; one terminal event for each call; a transcript that all vendors take."""
    mine = of_request(events, result.request_id)
    endings = [event for event in mine if isinstance(event, ENDINGS)]
    assert len(endings) == 1, [event.type for event in mine]
    late = {"tool_call_late", "dead_letter", "tool_call_progress", "tool_call_retrying", "tool_call_started"}
    behind = [event.type for event in mine[mine.index(endings[0]) + 1 :] if event.type not in late]
    assert behind == []
    asked_before = itertools.dropwhile(lambda event: isinstance(event, (CancelRequested, SteeringAdded)), mine)
    assert isinstance(next(asked_before), RequestStarted) or result.outcome == "failed"  # before it could begin
    assert sum(isinstance(event, RequestStarted) for event in mine) <= 1
    assert_calls_answered_once(mine, result)
    assert_valid(result.messages)


def assert_calls_answered_once(events: Sequence[Event], result: RequestResult[Any]) -> None:
    """Each call of this turn's replies has exactly one terminal event, and nothing else has one."""
    asked = calls_in(result.new_messages)
    reported = calls_in(event.message for event in events if isinstance(event, MessageAppended))
    assert set(reported) <= set(asked)
    heard = Counter(event.call_id for event in events if isinstance(event, TERMINAL))
    if isinstance(result.error, StoreError):  # how a call ended that is not in the journal nobody hears (G31)
        assert heard <= Counter(asked)
    else:
        assert heard == Counter(asked)


def calls_in(messages: Iterable[Message]) -> list[str]:
    return [call.call_id for each in messages if isinstance(each, AssistantMessage) for call in each.tool_calls]


def assert_valid(messages: Sequence[Message]) -> None:
    """By our own rules, in every dialect, and by the vendors' on the wire, which are checked without ours."""
    for dialect in get_args(Dialect):
        validate(messages, dialect)
    check_wires(messages)


def assert_kept(events: Sequence[Event], result: RequestResult[Any], *, before: int | None = None) -> None:
    """Each result that was told before (all, or the first so many events) stands in the transcript as it was told."""
    reported = {
        event.call_id: event.content
        for event in of_request(events if before is None else events[:before], result.request_id)
        if isinstance(event, ToolCallCompleted)
    }
    kept = {message.call_id: message.content for message in result.messages if isinstance(message, ToolMessage)}
    assert reported.items() <= kept.items()


async def assert_goes_on(runtime: Runtime, conversation_id: str, earlier: Sequence[Message]) -> RequestResult[Any]:
    """A follow-up turn completes, and its model sees all that was said, in a valid transcript."""
    provider = ScriptedProvider([text("Still here.")])
    result = await runtime.run("And now?", conversation_id=conversation_id, provider=provider)
    assert (result.outcome, result.text) == ("completed", "Still here.")
    (request,) = provider.requests
    seen = [message for message in request.messages if message.role != "system"]
    assert_valid(seen)
    assert_valid(result.messages)
    assert isinstance(seen[-1], UserMessage)
    assert seen[:-1] == [message for message in earlier if message.role != "system"]
    return result


async def assert_left_idle(runtime: Runtime) -> None:
    """Nothing is left on the runtime's bus and in its dispatcher. To be called behind its block."""
    await assert_idle(runtime.bus)
    statistics = runtime.dispatcher.statistics()
    assert (statistics.running, statistics.queued, statistics.idle_workers) == (0, 0, 0)
    assert (statistics.threads, statistics.processes, statistics.overdue) == (0, 0, ())
