"""The calls that the turn machine answers itself: the end of the task, the plan, pages of long results. Pure.

A control tool is offered to the model like any other tool, and its calls never reach the bus as requests. The specs
are in `toolbus.toolsets.control`, `toolbus.core.output` and `toolbus.core.read_result`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ...events import PlanChanged, PlanStep, ToolCallCompleted
from ...messages import AssistantMessage, Message, ToolCall, ToolMessage
from ..arguments import parse_arguments
from ..read_result import read_page
from ._facts import Facts
from ._state import TurnState

UPDATE_PLAN = "update_plan"
ENDINGS = frozenset({"complete", "give_up", "output"})
"""The controls that end the request. They start no work, so `max_tool_calls` does not bar them."""
_OK = '{"ok":true}'
_MARKS = {"pending": " ", "active": ">", "done": "x", "dropped": "-"}


def answer_control(state: TurnState, call: ToolCall, control: str, arguments: dict[str, Any], facts: Facts) -> None:
    """Settle a call of a control tool. `arguments` are valid; the event carries them as its `data`."""
    content = _OK
    if control == "plan":
        facts.emit(PlanChanged, steps=read_plan(arguments))
    elif control == "read":
        content = read_page(state.messages, arguments, state.max_result_chars)
    facts.emit(ToolCallCompleted, call_id=call.call_id, name=call.name, content=content, data=arguments)


def read_plan(arguments: dict[str, Any]) -> tuple[PlanStep, ...]:
    """Return the steps in valid arguments of `update_plan`."""
    steps = cast("list[dict[str, Any]]", arguments["steps"])
    return tuple(PlanStep(text=each["text"], status=each.get("status", "pending")) for each in steps)


def plan_in(messages: Sequence[Message]) -> tuple[PlanStep, ...]:
    """Return the newest plan in a transcript, from the conversation's earlier turns; empty without a plan."""
    refused: set[str] = set()
    for message in reversed(messages):
        if isinstance(message, ToolMessage):
            if message.is_error:
                refused.add(message.call_id)
        elif isinstance(message, AssistantMessage):
            for call in reversed(message.tool_calls):
                if call.name == UPDATE_PLAN and call.call_id not in refused and (plan := _plan_of(call)):
                    return plan
            refused.clear()  # Ids are unique only within one reply.
    return ()


def _plan_of(call: ToolCall) -> tuple[PlanStep, ...]:
    try:
        plan = read_plan(parse_arguments(call.arguments))
        checked = all(step.text and step.text == str(step.text) and step.status in _MARKS for step in plan)
    except (ValueError, TypeError, KeyError, AttributeError):  # A history from elsewhere was not validated.
        return ()
    return plan if checked else ()


def plan_text(plan: tuple[PlanStep, ...]) -> str:
    """Return the plan in the form in which the model is reminded of it, after the instructions."""
    lines = [f"[{_MARKS.get(step.status, ' ')}] {step.text}" for step in plan]
    return "Your plan (x is done, > is under way, - was dropped):\n" + "\n".join(lines)
