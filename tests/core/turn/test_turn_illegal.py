"""What cannot be is refused: facts in the wrong phase or place, and questions that have no answer yet."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
from turn_driver import TOOLS, Turn, call, completed, failed

from toolbus.core.limits import Limits
from toolbus.core.message_list import Messages
from toolbus.core.turn import Start, TurnState, advance, apply, pending
from toolbus.errors import ProtocolViolation
from toolbus.events import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    Event,
    MessageAppended,
    ModelResponded,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RequestStarted,
    RoundStarted,
    SteeringAdded,
    TextDelta,
    ToolCallRequested,
)
from toolbus.messages import AssistantMessage, SystemMessage, ToolCall, ToolMessage, UserMessage


def new() -> TurnState:
    return TurnState("r")


def ready() -> TurnState:
    return apply(new(), RequestStarted(timeout_seconds=100, at=0.0))


def model() -> TurnState:
    return apply(ready(), RoundStarted(round=0, message_count=0, at=0.0))


REPLY = AssistantMessage(
    tool_calls=tuple(ToolCall(name="clock", call_id=f"r_0_{place}") for place in range(2)), message_id="r_r0"
)


def was_replied() -> TurnState:
    return apply(model(), ModelResponded(round=0, message=REPLY, at=0.0))


def tools() -> TurnState:
    state = was_replied()
    for place in range(2):
        apply(state, requested(f"r_0_{place}"))
    return state


def settled() -> TurnState:
    return apply(apply(tools(), completed("r_0_0")), failed("r_0_1"))


def ended() -> TurnState:
    return apply(ready(), RequestCompleted())


def requested(call_id: str) -> ToolCallRequested:
    return ToolCallRequested(
        call_id=call_id, name="clock", arguments={}, round=0, timeout_seconds=30, idempotency_key=call_id, at=0.0
    )


def result(call_id: str) -> MessageAppended:
    return MessageAppended(message=ToolMessage(call_id=call_id, name="clock", content="x"))


STATES: dict[str, Callable[[], TurnState]] = {
    each.__name__: each for each in (new, ready, model, was_replied, tools, settled, ended)
}
FACTS: dict[str, Event] = {
    "start": RequestStarted(timeout_seconds=1),
    "user": MessageAppended(message=UserMessage(content="x")),
    "system": MessageAppended(message=SystemMessage(text="x")),
    "reply": MessageAppended(message=REPLY),
    "result": result("r_0_0"),
    "round": RoundStarted(round=0, message_count=0),
    "later round": RoundStarted(round=2, message_count=0),
    "responded": ModelResponded(round=0, message=REPLY),
    "responded elsewhere": ModelResponded(round=1, message=REPLY),
    "requested": requested("r_0_0"),
    "foreign request": requested("r_7_0"),
    "completed": completed("r_0_0"),
    "foreign result": completed("r_7_0"),
    "failed": failed("r_0_1"),
    "decision on a call that does not wait": ApprovalDecided(call_id="r_0_0", approved=True),
    "steering": SteeringAdded(text="x"),
    "cancel": CancelRequested(),
    "end": RequestCompleted(),
    "failure": RequestFailed(reason="x", error="x"),
    "cancelled": RequestCancelled(),
    "signal": TextDelta(message_id="m", text="x"),
    "fact of a later version": ApprovalRequested(call_id="r_0_0", name="clock", arguments={}, timeout_seconds=1),
}
ENDINGS = {"end", "failure", "cancelled"}
LEGAL: dict[str, set[str]] = {
    "new": {"start"},
    "ready": {"user", "system", "round", "steering", "cancel"} | ENDINGS,
    "model": {"responded", "steering", "cancel"} | ENDINGS,
    "was_replied": {"requested", "completed", "failed", "fact of a later version", "steering", "cancel"},
    "tools": {"completed", "failed", "steering", "cancel"},
    "settled": {"user", "system", "steering", "cancel"} | ENDINGS,
    "ended": set(),
}


@pytest.mark.parametrize("fact", FACTS)
@pytest.mark.parametrize("state", STATES)
def test_an_illegal_fact_is_refused_and_leaves_the_state_as_it_was(state: str, fact: str) -> None:
    subject = STATES[state]()
    before = copy.deepcopy(subject)
    if fact in LEGAL[state]:
        assert apply(subject, FACTS[fact]) is subject
        assert subject.facts == before.facts + 1
        return
    with pytest.raises(ProtocolViolation):
        apply(subject, FACTS[fact])
    assert subject == before


def refused(state: TurnState, fact: Event, why: str) -> None:
    before = copy.deepcopy(state)
    with pytest.raises(ProtocolViolation, match=why):
        apply(state, fact)
    assert state == before


def test_replies_and_results_are_appended_by_other_facts_and_their_events_are_refused() -> None:
    refused(settled(), result("r_0_0"), "is derived")
    refused(settled(), MessageAppended(message=REPLY), "is derived")


def test_a_call_is_settled_once() -> None:
    refused(apply(tools(), completed("r_0_0")), failed("r_0_0"), "'r_0_0' is not open")


def test_a_call_is_requested_once() -> None:
    refused(tools(), requested("r_0_0"), "was requested before")


def test_a_reply_with_the_same_id_twice_is_refused() -> None:
    twice = AssistantMessage(tool_calls=(ToolCall(name="clock", call_id="x"), ToolCall(name="clock", call_id="x")))
    refused(model(), ModelResponded(round=0, message=twice), "same id")


def test_a_violation_says_what_was_illegal_and_where() -> None:
    refused(ended(), CancelRequested(), "CancelRequested is illegal in phase 'ended'")


def test_a_request_begins_once() -> None:
    turn = Turn()
    with pytest.raises(ProtocolViolation, match="begun already"):
        advance(turn.state, [Start(None)], 0.0)


@pytest.mark.parametrize("state", ["new", "ready", "settled"])
def test_nothing_is_pending_in_the_middle_of_a_step(state: str) -> None:
    with pytest.raises(ProtocolViolation, match="the step was not finished"):
        pending(STATES[state]())


def test_nothing_follows_before_the_start_and_after_the_end() -> None:
    assert [advance(STATES[each](), [], 0.0)[0] for each in ("new", "ended")] == [[], []]


def test_a_call_that_was_never_requested_before_a_crash_can_still_be_given_up() -> None:
    state = apply(was_replied(), CancelRequested(reason="no"))
    *failures, cancelled = advance(state, [], 9.0)[0]
    assert [(each.type, each.duration_seconds) for each in failures] == [("tool_call_failed", 0.0)] * 2  # type: ignore[attr-defined]
    assert isinstance(cancelled, RequestCancelled)


# --------------------------------------------------------------------------------------- the view of messages


def test_a_view_of_the_messages_does_not_grow_and_stands_behind_its_system_message() -> None:
    turn = Turn(Limits(), history=[UserMessage(content="a"), AssistantMessage(text="b")])
    system = SystemMessage(text="be brief")
    plain, led = Messages(turn.state.messages), Messages(turn.state.messages, system)
    expected = list(turn.state.messages)
    turn.call(call(), call())
    turn.complete()
    assert len(turn.state.messages) > len(expected)
    assert (len(plain), list(plain)) == (3, expected)
    assert (len(led), list(led)) == (4, [system, *expected])
    assert [led[place] for place in (0, 1, -1, -4)] == [system, expected[0], expected[-1], system]
    assert (plain[0], plain[-1]) == (expected[0], expected[-1])
    assert (led[:2], plain[1:]) == ([system, expected[0]], expected[1:])
    for place in (4, -5):
        with pytest.raises(IndexError):
            led[place]
    assert set(TOOLS) == {"weather", "clock"}


def test_states_are_equal_if_all_of_their_fields_are():
    assert TurnState("r") == TurnState("r")
    assert TurnState("r") != TurnState("r", conversation_id="another")
    assert TurnState("r") != "r"
