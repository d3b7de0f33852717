"""Three parallel calls, and all that can become of each, in each order in which that can happen: 729 triples.

Whatever it is, each call has one result, in call order; the transcript is valid; what was completed stays.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest
from turn_driver import Turn, call, completed, decided, failed, of, replied

from toolbus.core.limits import Limits
from toolbus.core.transcript import validate
from toolbus.core.turn import Input, ModelReplied, advance
from toolbus.errors import InvalidArguments
from toolbus.events import (
    ApprovalRequested,
    CancelRequested,
    Event,
    RequestCancelled,
    RequestCompleted,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import ToolMessage
from toolbus.protocols import ToolSpec


def _refuse(_arguments: object) -> None:
    raise InvalidArguments("$.city: a string is required")


TOOLS = {
    each.name: each
    for each in (
        ToolSpec(name="quick", timeout_seconds=10),
        ToolSpec(name="slow", timeout_seconds=60),
        ToolSpec(name="picky", validate=_refuse),
        ToolSpec(name="pay", needs_approval=True),
    )
}
# What becomes of a call: the tool that it names, and the reason of its failure; "" for a success.
KINDS = {
    "completed": ("quick", ""),
    "completed twice": ("quick", ""),
    "failed": ("quick", "error"),
    "timed out": ("quick", "timeout"),
    "unknown": ("nothing", "unknown_tool"),
    "invalid": ("picky", "invalid_arguments"),
    "denied": ("pay", "denied"),
    "forbidden": ("quick", "denied"),
    "cancelled": ("slow", "cancelled"),
}
NOT_REQUESTED = {"unknown", "invalid", "denied", "forbidden"}
EVENTS = ("completed", "completed twice", "failed", "denied")


def events_of(kind: str, call_id: str) -> list[Input]:
    if kind == "failed":
        return [failed(call_id)]
    if kind == "denied":
        return [decided(call_id, approved=False)]
    again: list[Input] = [failed(call_id), completed(call_id, "second")] if kind == "completed twice" else []
    return [completed(call_id, f"done {call_id}"), *again]


class QuickTurn(Turn):
    """Without the checks of each step: there are thousands of turns here, and the other tests make them."""

    def step(self, *inputs: Input) -> list[Event]:
        made, _ = advance(self.state, inputs, self.now)
        self.facts += made
        return made


def play(triple: Sequence[str], order: Sequence[int]) -> Turn:
    turn = QuickTurn(Limits(max_consecutive_errors=9), tools=TOOLS)
    calls = [call(KINDS[kind][0], f'{{"n":{place}}}') for place, kind in enumerate(triple)]
    denied = {place: "It is forbidden." for place, kind in enumerate(triple) if kind == "forbidden"}
    turn.step(ModelReplied(replied("", *calls).reply, denied))
    for place in order:
        turn.step(*events_of(triple[place], f"r_0_{place}"))
    if "timed out" in triple:
        turn.elapse()
    if "cancelled" in triple:
        turn.step(CancelRequested(request_id="r", reason="enough"))
        turn.step(completed("r_0_0", "late"), failed("r_0_1"), completed("r_0_2", "late"))
    else:
        turn.step(completed("r_0_0", "late"), failed("r_0_1"), completed("r_0_2", "late"))
        turn.reply("This is what I know.")
    return turn


def check(turn: Turn, triple: Sequence[str]) -> None:
    settled = {each.call_id: each for each in of(ToolCallCompleted, turn.facts)} | {
        each.call_id: each for each in of(ToolCallFailed, turn.facts)
    }
    ends = Counter(each.call_id for each in turn.facts if isinstance(each, (ToolCallCompleted, ToolCallFailed)))
    assert ends == {f"r_0_{place}": 1 for place in range(3)}
    requested = {each.call_id for each in of(ToolCallRequested, turn.facts)}
    assert requested == {f"r_0_{place}" for place, kind in enumerate(triple) if kind not in NOT_REQUESTED}
    assert len(of(ApprovalRequested, turn.facts)) == triple.count("denied")
    results = [each for each in turn.state.messages if isinstance(each, ToolMessage)]
    assert [each.call_id for each in results] == ["r_0_0", "r_0_1", "r_0_2"]
    for place, (kind, result) in enumerate(zip(triple, results, strict=True)):
        outcome = settled[result.call_id]
        reason = KINDS[kind][1]
        if isinstance(outcome, ToolCallCompleted):
            assert (reason, result.is_error, result.content) == ("", False, f"done r_0_{place}")
        else:
            assert (outcome.reason, result.is_error) == (reason, True)
            assert outcome.outcome_unknown is (kind in {"timed out", "cancelled"})
    ending = turn.state.ending
    assert isinstance(ending, RequestCancelled if "cancelled" in triple else RequestCompleted)
    assert turn.facts[-1] is ending
    for dialect in ("openai", "anthropic"):
        validate(turn.state.messages, dialect)
    follow_up = QuickTurn(history=turn.state.messages, prompt="And now?")
    follow_up.reply("Later.")
    validate(follow_up.state.messages)


@pytest.mark.guarantee("G06", "G07", "G08", "G09")
@pytest.mark.parametrize("first", KINDS)
def test_three_calls_have_one_result_each_whatever_becomes_of_them_and_in_whatever_order(first: str) -> None:
    for second, third in itertools.product(KINDS, repeat=2):
        triple = (first, second, third)
        places = [place for place, kind in enumerate(triple) if kind in EVENTS]
        for order in itertools.permutations(places):
            check(play(triple, order), triple)
