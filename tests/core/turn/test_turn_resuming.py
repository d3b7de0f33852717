"""The turn machine: what becomes of the calls of a process that is gone, when one of them ends the request."""

from __future__ import annotations

import pytest
from turn_driver import Turn, call, of, replied

from toolbus.core.limits import Limits
from toolbus.core.turn import Resume
from toolbus.events import RequestCompleted, RequestResumed, ToolCallFailed, ToolCallRequested
from toolbus.protocols import ToolSpec

LOOK = ToolSpec(name="look", idempotent=True)
PAY = ToolSpec(name="pay")


@pytest.mark.guarantee("G19")
@pytest.mark.parametrize("order", [("look", "pay"), ("pay", "look")])
def test_no_call_runs_again_beside_one_that_ends_the_request(order: tuple[str, str]) -> None:
    turn = Turn(Limits(on_failure="fail_fast"), tools={"look": LOOK, "pay": PAY})
    turn.step(replied("", *(call(name) for name in order)))
    facts = turn.step(Resume())
    assert not [each for each in facts if isinstance(each, ToolCallRequested)]
    assert [each.reason for each in facts if isinstance(each, ToolCallFailed)] == ["interrupted", "interrupted"]
    assert isinstance(facts[-1], RequestCompleted)
    assert facts[-1].reason == "on_failure=fail_fast"


def test_a_call_runs_again_beside_one_that_does_not() -> None:
    turn = Turn(tools={"look": LOOK, "pay": PAY})
    turn.step(replied("", call("look"), call("pay")))
    facts = turn.step(Resume())
    assert [each.name for each in facts if isinstance(each, ToolCallRequested)] == ["look"]
    assert [each.name for each in facts if isinstance(each, ToolCallFailed)] == ["pay"]


ASK = ToolSpec(name="ask", external=True)
DRAW = ToolSpec(name="ask", pool="gpu")


@pytest.mark.guarantee("G19")
@pytest.mark.parametrize("elsewhere", [ASK, DRAW], ids=["external", "pool"])
def test_a_call_that_is_answered_elsewhere_is_requested_again_under_the_same_id_and_key(elsewhere: ToolSpec) -> None:
    turn = Turn(tools={"ask": elsewhere, "look": LOOK})
    before = turn.step(replied("", call("ask"), call("look")))
    facts = turn.step(Resume())
    first, again = ([each for each in made if isinstance(each, ToolCallRequested)] for made in (before, facts))
    assert [(each.call_id, each.idempotency_key, each.arguments) for each in again] == [
        (each.call_id, each.idempotency_key, each.arguments) for each in first
    ]
    assert [each.resumed for each in first + again] == [False, False, True, True]


def test_a_call_of_an_external_tool_that_has_changed_is_interrupted() -> None:
    turn = Turn(tools={"ask": ASK})
    turn.step(replied("", call("ask")))
    turn.state.tools = {"ask": ToolSpec(name="ask", description="Another question.", external=True)}
    facts = turn.step(Resume())
    assert [each.reason for each in facts if isinstance(each, ToolCallFailed)] == ["interrupted"]


@pytest.mark.guarantee("G19")
@pytest.mark.parametrize("before", [ToolSpec(name="ask"), ASK, DRAW], ids=["here", "external", "pool"])
@pytest.mark.parametrize("now", [ASK, DRAW, ToolSpec(name="ask", pool="cpu"), ToolSpec(name="ask", idempotent=True)])
def test_a_call_that_would_run_elsewhere_or_by_another_promise_now_is_interrupted(
    before: ToolSpec, now: ToolSpec
) -> None:
    turn = Turn(tools={"ask": before})
    turn.step(replied("", call("ask")))
    turn.state.tools = {"ask": now}
    again = [each for each in turn.step(Resume()) if isinstance(each, (ToolCallRequested, ToolCallFailed))]
    assert isinstance(again[0], ToolCallRequested if now is before else ToolCallFailed)


def test_a_model_call_gets_its_whole_time_again_and_its_reply_another_id() -> None:
    turn = Turn(Limits(model_timeout_seconds=60))
    turn.now += 50
    turn.step(Resume())
    assert turn.waiting.deadline == turn.now + 60
    turn.reply("Done.")
    assert turn.state.messages[-1].message_id == "r_r0_1"


def test_a_model_call_that_waits_for_its_next_attempt_still_waits_after_a_restart() -> None:
    turn = Turn(Limits(model_timeout_seconds=60))
    turn.break_model()
    before = turn.waiting.deadline
    turn.step(Resume())
    assert turn.waiting.deadline == before > turn.now + 60


@pytest.mark.parametrize(("seconds", "until"), [(None, 100), (25.0, 70 + 25), (90.0, 70 + 60)])
def test_a_request_has_the_time_that_is_left_or_that_it_is_given(seconds: float | None, until: float) -> None:
    turn = Turn(Limits(timeout_seconds=100, model_timeout_seconds=60))
    turn.now += 70
    turn.step(Resume(seconds))
    assert turn.waiting.deadline == turn.state.started_at + until
    (again,) = of(RequestResumed, turn.step(Resume(seconds)))
    assert again.resumption == 2


def test_the_time_for_which_a_call_waited_for_a_person_does_not_count() -> None:
    turn = Turn(Limits(timeout_seconds=100), tools={"look": LOOK, "pay": PAY})
    turn.step(replied("", call("look"), call("pay")))
    turn.now += 10
    turn.pause("r_0_0")
    turn.now += 1_000
    facts = turn.step(Resume())
    assert [each.name for each in of(ToolCallRequested, facts)] == ["look"]
    assert (turn.state.waiting, turn.state.deadline) == (0, turn.state.started_at + 100 + 1_000)
