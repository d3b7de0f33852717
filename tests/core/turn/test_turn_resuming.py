"""The turn machine: what becomes of the calls of a process that is gone, when one of them ends the request."""

from __future__ import annotations

import pytest
from turn_driver import Turn, call, replied

from toolbus.core.limits import Limits
from toolbus.core.turn import Resume
from toolbus.events import RequestCompleted, ToolCallFailed, ToolCallRequested
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
