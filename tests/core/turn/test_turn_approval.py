"""A call that a person has to approve: it is asked for once, for what it is, and nothing runs before they say so."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pytest
from turn_driver import TOOLS, Turn, call, completed, decided, failed, of

from toolbus.core import approval
from toolbus.core.approval import definition_of
from toolbus.core.limits import Limits
from toolbus.core.turn import AwaitCalls, CallModel, Elapsed
from toolbus.errors import InvalidArguments
from toolbus.events import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    Event,
    RequestCancelled,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
    decode,
    encode,
)
from toolbus.messages import ToolMessage
from toolbus.protocols import ToolSpec
from toolbus.records import replace


def _small(arguments: Mapping[str, Any]) -> None:
    if arguments.get("n", 0) > 9:
        raise InvalidArguments("$.n: at most 9")


PAY = ToolSpec(name="pay", description="Pay n.", needs_approval=True, validate=_small)
SEND = ToolSpec(name="send", needs_approval=lambda arguments: bool(arguments["far"]))
OFFERED = {**TOOLS, "pay": PAY, "send": SEND}


def asked(*arguments: str, **agreed: Any) -> Turn:
    """A turn whose model has called `pay` with each of these arguments."""
    turn = Turn(tools=OFFERED, **agreed)
    turn.call(*(call("pay", each) for each in arguments or ['{"n":1}']))
    return turn


def requests(turn: Turn) -> list[tuple[str, dict[str, Any]]]:
    return [(each.call_id, each.arguments) for each in of(ToolCallRequested, turn.facts)]


def deep(levels: int) -> list[Any]:
    return [deep(levels - 1)] if levels else []


def failures(facts: list[Event]) -> list[tuple[str, str, str]]:
    return [(each.call_id, each.reason, each.error) for each in of(ToolCallFailed, facts)]


# ---------------------------------------------------------------------------------------------- one decision


@pytest.mark.guarantee("G26")
def test_a_call_that_needs_approval_is_asked_for_and_not_requested() -> None:
    turn = asked()
    (question,) = of(ApprovalRequested, turn.facts)
    assert (question.call_id, question.name, question.arguments) == ("r_0_0", "pay", {"n": 1})
    assert (question.timeout_seconds, question.definition) == (3_600.0, definition_of(PAY))
    assert requests(turn) == []
    assert turn.waiting.deadline == turn.now + 3_600


@pytest.mark.guarantee("G26")
def test_an_approved_call_runs_with_the_arguments_that_were_shown() -> None:
    turn = asked()
    turn.now += 100
    decision, requested = turn.approve("r_0_0")
    assert isinstance(decision, ApprovalDecided)
    assert isinstance(requested, ToolCallRequested)
    assert (requested.arguments, requested.timeout_seconds) == ({"n": 1}, 30.0)
    assert turn.waiting.deadline == turn.now + 30


@pytest.mark.guarantee("G26")
def test_a_decision_is_used_once() -> None:
    turn = asked()
    facts = turn.step(*(decided("r_0_0", arguments={"n": number}) for number in (2, 3)))
    assert len(of(ApprovalDecided, facts)) == 1
    assert requests(turn) == [("r_0_0", {"n": 2})]
    assert turn.deny("r_0_0") == []


@pytest.mark.guarantee("G26")
def test_an_approval_is_for_one_call_and_its_equal_sibling_waits_on() -> None:
    turn = asked('{"n":1}', '{"n":1}')
    turn.approve("r_0_1")
    assert requests(turn) == [("r_0_1", {"n": 1})]
    turn.complete("r_0_1")
    assert list(turn.state.open_calls) == ["r_0_0"]
    turn.deny("r_0_0")
    assert [each.is_error for each in turn.state.messages if isinstance(each, ToolMessage)] == [True, False]


@pytest.mark.guarantee("G26")
def test_an_approval_of_one_round_says_nothing_of_the_same_call_in_the_next() -> None:
    turn = asked()
    turn.approve("r_0_0")
    turn.complete()
    turn.call(call("pay", '{"n":1}'))
    assert [each.call_id for each in of(ApprovalRequested, turn.facts)] == ["r_0_0", "r_1_0"]
    assert requests(turn) == [("r_0_0", {"n": 1})]


def test_a_denial_is_told_to_the_model_with_who_and_why() -> None:
    turn = asked()
    facts = turn.deny("r_0_0", by="Ada", reason="too dear")
    assert failures(facts) == [("r_0_0", "denied", "Ada denied the call: too dear")]
    assert not of(ToolCallFailed, facts)[0].outcome_unknown
    assert isinstance(turn.command, CallModel)


def test_a_denial_without_a_word_is_a_denial() -> None:
    assert failures(asked().deny("r_0_0")) == [("r_0_0", "denied", "A person denied the call.")]


@pytest.mark.parametrize("call_id", ["r_0_9", "r_1_0", "", "r_0_1"])
def test_a_decision_for_a_call_that_does_not_wait_means_nothing(call_id: str) -> None:
    turn = Turn(tools=OFFERED)
    turn.call(call("pay"), call("clock"))
    assert turn.approve(call_id) == []


def test_siblings_that_need_no_approval_run_meanwhile() -> None:
    turn = Turn(tools=OFFERED)
    turn.call(call("pay"), call("clock"))
    assert requests(turn) == [("r_0_1", {})]
    turn.complete("r_0_1")
    assert isinstance(turn.command, AwaitCalls)


# ------------------------------------------------------------------------------------------ edited arguments


@pytest.mark.guarantee("G26")
def test_edited_arguments_replace_the_calls() -> None:
    turn = asked()
    turn.approve("r_0_0", arguments={"n": 9})
    assert requests(turn) == [("r_0_0", {"n": 9})]


@pytest.mark.guarantee("G26")
def test_empty_edited_arguments_are_arguments_too() -> None:
    turn = asked()
    turn.approve("r_0_0", arguments={})
    assert requests(turn) == [("r_0_0", {})]


@pytest.mark.guarantee("G26")
@pytest.mark.parametrize(
    ("edited", "why"),
    [
        ({"n": 10}, "at most 9"),
        ({"n": "many"}, "not supported"),
        ({"n": {1, 2}}, "they are not JSON"),
        ({"text": "\ud800"}, "they are not JSON"),
        ({1: 2}, "they are not JSON"),
        ({"n": 2**70}, "they are not JSON"),
        ({"n": deep(251)}, "they are not JSON"),
        ([1], "they are not an object"),
    ],
)
def test_edited_arguments_are_validated_again_and_a_slip_refuses_the_call(edited: Any, why: str) -> None:
    turn = asked()
    facts = turn.approve("r_0_0", arguments=edited)
    ((call_id, reason, error),) = failures(facts)
    assert all(decode(encode(each)) == each for each in facts), "a journal can keep them"
    assert (call_id, reason) == ("r_0_0", "invalid_arguments")
    assert error.startswith("The arguments that it was approved with are invalid")
    assert why in error
    assert requests(turn) == []
    assert isinstance(turn.command, CallModel)


def test_edited_arguments_are_the_requests_own_and_as_json_has_them() -> None:
    turn = asked()
    edited = {"n": 1, "to": ("Ada",)}
    turn.approve("r_0_0", arguments=edited)
    edited["n"] = 1_000_000
    assert requests(turn) == [("r_0_0", {"n": 1, "to": ["Ada"]})]


# -------------------------------------------------------------------------------------- the tool's definition


@pytest.mark.guarantee("G26")
@pytest.mark.parametrize("changed", [{"description": "Pay twice n."}, {"parameters": {"type": "object"}}])
def test_an_approval_of_a_tool_that_has_changed_asks_again_and_runs_nothing(changed: dict[str, Any]) -> None:
    turn = asked()
    new = replace(PAY, **changed)
    turn.offer({**OFFERED, "pay": new})
    turn.now += 10
    facts = turn.approve("r_0_0")
    (question,) = of(ApprovalRequested, facts)
    assert (question.call_id, question.arguments, question.definition) == ("r_0_0", {"n": 1}, definition_of(new))
    assert requests(turn) == []
    assert turn.waiting.deadline == turn.now + 3_600
    turn.approve("r_0_0")
    assert requests(turn) == [("r_0_0", {"n": 1})]
    assert (turn.state.tool_calls, turn.state.waiting) == (1, 0)
    assert turn.state.deadline == turn.state.started_at + 600 + 10


@pytest.mark.guarantee("G26")
def test_a_decision_on_an_earlier_definition_asks_again_and_is_not_taken() -> None:
    turn = asked()
    facts = turn.approve("r_0_0", definition="that of an earlier question")
    (question,) = facts
    assert isinstance(question, ApprovalRequested)
    assert (question.call_id, question.arguments, question.definition) == ("r_0_0", {"n": 1}, definition_of(PAY))
    turn.approve("r_0_0", definition=question.definition)
    assert requests(turn) == [("r_0_0", {"n": 1})]


def test_a_decision_on_an_earlier_definition_of_a_tool_that_was_removed_refuses_the_call() -> None:
    turn = asked()
    turn.offer(TOOLS)
    assert failures(turn.approve("r_0_0", definition="that of an earlier question"))[0][1] == "unknown_tool"


def test_what_a_person_was_not_told_of_a_tool_is_no_part_of_its_definition() -> None:
    assert definition_of(replace(PAY, timeout_seconds=5, sequential=True, validate=print)) == definition_of(PAY)
    assert definition_of(replace(PAY, parameters=dict(PAY.parameters))) == definition_of(PAY)


def test_the_digest_of_a_definition_is_made_once_and_a_bounded_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approval, "_MAX_DIGESTS", 3)
    monkeypatch.setattr(approval, "_digests", kept := dict[int, Any]())
    specs = [replace(PAY, description=f"Pay {number}.") for number in range(8)]
    digests = [definition_of(each) for each in specs]
    assert len({*digests}) == 8
    assert len(kept) <= 3
    monkeypatch.setattr(hashlib, "sha256", None)
    assert definition_of(specs[-1]) == digests[-1]


def test_a_tool_that_was_removed_meanwhile_is_not_run() -> None:
    turn = asked()
    turn.offer(TOOLS)
    assert failures(turn.approve("r_0_0")) == [
        ("r_0_0", "unknown_tool", "The tool 'pay' was removed before the call was approved.")
    ]


def test_a_denial_needs_no_tool() -> None:
    turn = asked()
    turn.offer({})
    assert failures(turn.deny("r_0_0"))[0][1] == "denied"


# ----------------------------------------------------------------------------------------------------- expiry


@pytest.mark.guarantee("G26")
def test_a_call_that_nobody_decides_on_expires_to_denied() -> None:
    turn = asked(limits=Limits(approval_timeout_seconds=60))
    assert turn.elapse(59.999) == []
    facts = turn.elapse(0.001)
    assert failures(facts) == [("r_0_0", "denied", "Nobody decided on the call in time (approval_timeout_seconds=60).")]
    assert not of(ToolCallFailed, facts)[0].outcome_unknown
    assert turn.approve("r_0_0") == []
    assert requests(turn) == []
    assert isinstance(turn.command, CallModel)


def test_each_call_expires_at_its_own_time() -> None:
    turn = Turn(Limits(approval_timeout_seconds=60), tools={**OFFERED, "pay": replace(PAY, sequential=True)})
    turn.call(call("pay", '{"n":1}'), call("pay", '{"n":2}'))
    turn.elapse()
    assert [each.call_id for each in of(ApprovalRequested, turn.facts)] == ["r_0_0", "r_0_1"]
    assert turn.waiting.deadline == turn.now + 60


# ----------------------------------------------------------------------------------------------- remembering


def test_an_approval_to_be_remembered_lets_later_calls_run_whatever_their_arguments() -> None:
    turn = asked()
    turn.approve("r_0_0", remember=True)
    turn.complete()
    turn.call(call("pay", '{"n":2}'), call("send", '{"far":true}'))
    assert requests(turn)[1:] == [("r_1_0", {"n": 2})]
    assert [each.name for each in of(ApprovalRequested, turn.facts)] == ["pay", "send"]


def test_a_denial_to_be_remembered_denies_later_calls() -> None:
    turn = asked()
    turn.deny("r_0_0", remember=True)
    facts = turn.call(call("pay", '{"n":2}'))
    assert failures(facts) == [("r_1_0", "denied", "pay was denied, and that was to be remembered.")]
    assert of(ApprovalRequested, facts) == []


@pytest.mark.guarantee("G26")
@pytest.mark.parametrize("approved", [True, False])
def test_what_is_remembered_of_a_tool_ends_with_its_definition(approved: bool) -> None:
    turn = asked()
    turn.step(decided("r_0_0", approved, remember=True))
    turn.complete()
    turn.offer({**OFFERED, "pay": replace(PAY, description="Pay all.")})
    assert [each.call_id for each in of(ApprovalRequested, turn.call(call("pay", '{"n":2}')))] == ["r_1_0"]


def test_a_decision_is_not_remembered_unless_it_says_so() -> None:
    turn = asked()
    turn.approve("r_0_0")
    assert turn.state.granted == {}


# ---------------------------------------------------------------------------------------------------- policies


def test_a_rule_of_the_tool_asks_where_its_arguments_say_so() -> None:
    turn = Turn(tools=OFFERED)
    turn.call(call("send", '{"far":false}'), call("send", '{"far":true}'))
    assert requests(turn) == [("r_0_0", {"far": False})]
    assert [each.call_id for each in of(ApprovalRequested, turn.facts)] == ["r_0_1"]


def _is_clock(spec: ToolSpec, _arguments: Mapping[str, Any]) -> bool:
    return spec.name == "clock"


def _has_arguments(_spec: ToolSpec, arguments: Mapping[str, Any]) -> Any:
    return arguments  # true enough


def _breaks(*_: Any) -> bool:
    raise KeyError("far")


@pytest.mark.parametrize(
    ("policy", "needed"),
    [
        (None, {"pay"}),
        (True, {"pay", "clock"}),
        (False, set[str]()),
        (_is_clock, {"clock"}),
        (_has_arguments, {"pay"}),
        (_breaks, {"pay", "clock"}),
    ],
)
def test_a_policy_of_the_request_stands_in_the_place_of_the_tools_marks(policy: Any, needed: set[str]) -> None:
    turn = Turn(tools=OFFERED, needs_approval=policy)
    turn.call(call("pay", '{"n":1}'), call("clock"))
    assert {each.name for each in of(ApprovalRequested, turn.facts)} == needed
    assert {each.name for each in of(ToolCallRequested, turn.facts)} == {"pay", "clock"} - needed


def test_a_rule_that_breaks_means_that_a_person_is_asked() -> None:
    turn = Turn(tools={"send": replace(SEND, needs_approval=_breaks)})
    turn.call(call("send", '{"n":1}'))
    assert len(of(ApprovalRequested, turn.facts)) == 1
    assert [(each[1], type(each[2])) for each in turn.state.raised] == [(True, KeyError)]


def test_arguments_that_are_invalid_are_put_to_nobody() -> None:
    turn = asked('{"n":10}', "{")
    assert of(ApprovalRequested, turn.facts) == []
    assert {each.reason for each in of(ToolCallFailed, turn.facts)} == {"invalid_arguments"}


# ------------------------------------------------------------------------------------- clocks, stops, intruders


def test_waiting_stops_the_requests_clock_and_it_goes_on_by_what_was_left() -> None:
    turn = asked(limits=Limits(timeout_seconds=20, max_repeats=9))
    turn.now += 1_000
    turn.approve("r_0_0")
    assert turn.state.deadline == turn.now + 20
    assert turn.waiting.deadline == turn.now + 20
    turn.now += 5
    turn.complete()
    assert turn.waiting.deadline == turn.now + 15


def test_waits_that_overlap_stop_the_clock_once() -> None:
    turn = asked('{"n":1}', '{"n":2}')
    turn.now += 10
    turn.deny("r_0_0")
    turn.now += 7
    turn.approve("r_0_1")
    assert turn.state.deadline == turn.state.started_at + 600 + 17


def test_a_call_that_is_approved_while_another_waits_has_the_time_that_was_left() -> None:
    turn = asked('{"n":1}', '{"n":2}', limits=Limits(timeout_seconds=20))
    turn.now += 500
    turn.approve("r_0_0")
    assert of(ToolCallRequested, turn.facts)[0].timeout_seconds == 20
    turn.elapse()
    assert [(each.call_id, each.reason) for each in of(ToolCallFailed, turn.facts)] == [("r_0_0", "timeout")]
    assert list(turn.state.open_calls) == ["r_0_1"]


def test_the_time_of_the_request_is_not_over_while_it_waits() -> None:
    turn = asked(limits=Limits(timeout_seconds=20))
    assert turn.elapse(3_000) == []
    turn.steer("Hurry.")
    turn.deny("r_0_0")
    assert isinstance(turn.command, CallModel)
    assert turn.roles == ["user", "assistant", "tool", "user"]


def test_a_cancel_while_a_call_waits_ends_the_request_and_runs_nothing() -> None:
    turn = asked()
    facts = turn.cancel()
    assert failures(facts) == [("r_0_0", "cancelled", "The request was cancelled.")]
    assert not of(ToolCallFailed, facts)[0].outcome_unknown
    assert isinstance(turn.state.ending, RequestCancelled)


def test_an_approval_behind_a_cancel_runs_nothing() -> None:
    turn = asked()
    facts = turn.step(CancelRequested(request_id="r"), decided("r_0_0", remember=True))
    assert requests(turn) == []
    assert isinstance(facts[-1], RequestCancelled)
    assert turn.state.granted == {definition_of(PAY): True}


def test_an_approval_behind_a_failure_that_ends_the_request_runs_nothing() -> None:
    turn = Turn(Limits(on_failure="fail_fast"), tools=OFFERED)
    turn.call(call(), call("pay", '{"n":1}'))
    turn.step(failed("r_0_0"), decided("r_0_1"))
    assert [each for each, _ in requests(turn)] == ["r_0_0"]
    assert turn.stopped_by == "on_failure=fail_fast"


@pytest.mark.guarantee("G06")
@pytest.mark.parametrize("at", [0.0, 1_000_050.0, 9e12])
def test_a_result_for_a_call_that_waits_settles_it_and_no_foreign_clock_ends_the_request(at: float) -> None:
    turn = asked()
    turn.now += 100
    turn.step(completed("r_0_0", at=at))
    assert isinstance(turn.state.calls[0].outcome, ToolCallCompleted)
    assert turn.state.waiting == 0
    began = turn.state.started_at
    assert turn.state.deadline == {0.0: began + 600, 1_000_050.0: began + 650, 9e12: began + 600 + 3_600}[at]
    assert turn.approve("r_0_0") == []
    assert isinstance(turn.command, CallModel)


def test_a_deadline_that_is_told_too_early_means_nothing_while_a_call_waits() -> None:
    turn = asked()
    assert turn.step(Elapsed()) == []


def test_a_call_that_was_asked_for_counts_once() -> None:
    turn = asked('{"n":1}', '{"n":1}', '{"n":1}')
    assert turn.state.tool_calls == 3
    turn.approve("r_0_0", "r_0_1", "r_0_2")
    assert turn.state.tool_calls == 3
