"""The work of `repair` and of the rules grows with the messages, whatever their ids: steps of the interpreter are counted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import pytest

from toolbus.core import transcript
from toolbus.core.transcript import Rules, repair, validate
from toolbus.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage

pytestmark = pytest.mark.guarantee("G08")


def asks(*ids: str) -> AssistantMessage:
    return AssistantMessage(tool_calls=tuple(ToolCall(name="clock", call_id=each) for each in ids))


def gives(call_id: str) -> ToolMessage:
    return ToolMessage(call_id=call_id, name="clock", content="noon")


def steps(act: Callable[[], object]) -> int:
    """How many instructions of the transcript's module `act` takes."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != transcript.__file__:
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


USER = UserMessage(content="hi")
SHAPES: dict[str, Callable[[int], Iterable[Message]]] = {
    "orphans of one id": lambda n: [USER, *[gives("a")] * n],
    "second results of one call": lambda n: [USER, asks("a"), *[gives("a")] * n],
    "calls of one id in one reply": lambda n: [USER, asks(*["a"] * n), *[gives("a")] * n],
    "calls without ids in one reply": lambda n: [USER, asks(*[""] * n)],
    "ids that are taken": lambda n: [USER, asks(*["a"] * (n // 2), *(f"a-{each}" for each in range(n // 2)))],
    "replies of one id, and their results at the end": lambda n: [USER, *[asks("a")] * n, USER, *[gives("a")] * n],
    "replies of one id, answered, and then again": lambda n: [
        USER,
        *[asks("a"), gives("a")] * n,
        USER,
        *[gives("a")] * n,
    ],
    "results in reverse": lambda n: [
        USER,
        asks(*map(str, range(n))),
        *(gives(str(each)) for each in reversed(range(n))),
    ],
    "no results": lambda n: [USER, *[asks("a", "b")] * n],
    "notes between": lambda n: [USER, asks("a"), *[SystemMessage(text="note")] * n, gives("a")],
    "no opening": lambda n: [asks("a"), gives("a")] * n,
    "valid": lambda n: [USER, asks("a", "b"), gives("a"), gives("b"), AssistantMessage(text="ok")] * n,
}


@pytest.mark.repeats("a thousand messages")
@pytest.mark.parametrize("shape", SHAPES)
def test_ten_times_the_messages_are_ten_times_the_work_to_repair(shape: str) -> None:
    few, many = list(SHAPES[shape](100)), list(SHAPES[shape](1_000))
    steps_of_few = steps(lambda: repair(few))
    assert steps_of_few > 100
    assert steps(lambda: repair(many)) <= 11 * steps_of_few
    validate(repair(many))


def test_ten_thousand_orphans_of_one_id_are_ten_times_the_work_of_a_thousand() -> None:
    thousand: list[Message] = [USER, *[gives("a")] * 1_000]
    ten_thousand: list[Message] = [USER, *[gives("a")] * 10_000]
    assert steps(lambda: repair(ten_thousand)) <= 11 * steps(lambda: repair(thousand))
    assert repair(ten_thousand) == [USER]


def test_the_rules_take_as_many_steps_for_the_last_message_as_for_the_first() -> None:
    def per_turn(turns: int) -> int:
        rules = Rules()
        messages = list(SHAPES["valid"](turns))
        for each in messages:
            rules.add(each)
        return steps(lambda: [rules.add(each) for each in messages[:5]])

    assert len({per_turn(turns) for turns in (1, 10, 1_000)}) == 1


def test_made_ids_are_not_looked_for_again_and_again() -> None:
    repaired = repair([USER, asks(*["a"] * 50, *[""] * 50)])
    reply = repaired[1]
    assert isinstance(reply, AssistantMessage)
    expected = ["a", *(f"a-{n}" for n in range(2, 51)), *(f"call-{n}" for n in range(1, 51))]
    assert [call.call_id for call in reply.tool_calls] == expected
