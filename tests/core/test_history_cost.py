"""What a round of a long history costs: the same at 10, 100 and 1,000 rounds. Counted in calls, not in seconds."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from toolbus.core.compression import Compression
from toolbus.core.history import History
from toolbus.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from toolbus.protocols import ToolSpec

NAMES = ("look", "move", "other")
SPECS = {
    "look": ToolSpec(name="look", kind="query"),
    "move": ToolSpec(name="move", kind="action"),
    "other": ToolSpec(name="other"),
}
STEPS = 200
"""How many rounds are measured, so that the rare ones in which turns leave are among them."""


def one_round(number: int) -> list[Message]:
    asked = [ToolCall(name=name, arguments=f'{{"n":{number}}}', call_id=f"{number}_{name}") for name in NAMES]
    return [
        AssistantMessage(tool_calls=tuple(asked)),
        *(ToolMessage(call_id=each.call_id, name=each.name, content=f"word {number} " * 40) for each in asked),
    ]


def calls_of_a_round(rounds: int, window: int | None, *, turns: bool) -> float:
    """Python and C functions called for a round behind so many, on average."""
    messages: list[Message] = [UserMessage(content="go")]
    history = History(messages, Compression())
    counted = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    for number in range(rounds + STEPS):
        messages += one_round(number)
        if turns:
            messages += [AssistantMessage(text="Done."), UserMessage(content=f"question {number}")]
        if number >= rounds:
            sys.setprofile(count)
        history.take(SPECS)
        if window is not None:
            history.fit(window)
        history.view()
        sys.setprofile(None)
    return counted / STEPS


@pytest.mark.repeats("a thousand rounds")
@pytest.mark.parametrize("turns", [False, True], ids=["one turn", "a turn each"])
@pytest.mark.parametrize("window", [None, 8_000])
def test_a_round_costs_the_same_however_long_the_history_is(window: int | None, *, turns: bool) -> None:
    at_10, at_100, at_1000 = (calls_of_a_round(rounds, window, turns=turns) for rounds in (10, 100, 1000))
    if window is None:
        assert at_10 == pytest.approx(at_100, rel=0.01) == pytest.approx(at_1000, rel=0.01)
    assert at_1000 <= 1.1 * at_100
    assert at_1000 <= 1.2 * at_10
