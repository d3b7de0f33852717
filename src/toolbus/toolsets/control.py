"""Tools by which a model controls its own request: it can end the request, or keep a plan. Pass those that you want.

    Runtime(..., tools=[search, task_complete, give_up, update_plan])

The turn machine answers these calls itself (`core.turn`), without a dispatcher or listener. The functions below only
describe the tools to the model, and are never called.

Example:
    from toolbus import Runtime
    from toolbus.testing import ScriptedProvider, calls
    from toolbus.toolsets.control import give_up, task_complete, update_plan

    model = ScriptedProvider([calls(("task_complete", {"answer": "All sorted."}))])
    async with Runtime(model, tools=[task_complete, give_up, update_plan]) as runtime:
        print((await runtime.run("Sort my mail.")).text)  # All sorted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from ..protocols import Control
from ..records import replace
from ..tools import Tool

__all__ = ["give_up", "task_complete", "update_plan"]

_Text = Annotated[str, Field(min_length=1)]


class _Step(TypedDict):
    text: Annotated[_Text, Field(description="What is done in this step.")]
    status: NotRequired[Literal["pending", "active", "done", "dropped"]]


def _control(control: Control) -> Callable[[Callable[..., None]], Tool[..., None]]:
    def decorate(function: Callable[..., None]) -> Tool[..., None]:
        made: Tool = Tool(handler=function)
        made.spec = replace(made.spec, control=control)
        return made

    return decorate


@_control("complete")
def task_complete(answer: Annotated[_Text, Field(description="The answer for the user.")]) -> None:
    """Say that the task is done. Call it without other tools, at the end: the request ends with this answer."""


@_control("give_up")
def give_up(reason: Annotated[_Text, Field(description="Why it cannot be done, for the user.")]) -> None:
    """Say that the task cannot be done. Call it without other tools, when every way that you know has failed."""


@_control("plan")
def update_plan(
    steps: Annotated[list[_Step], Field(min_length=1, max_length=50, description="All steps, in their order.")],
) -> None:
    """Write down the plan for a task of several steps, or change it: the whole plan, with the status of each step."""
