"""Tools by which a model steers its own request: to end it, and to keep a plan. Optional: give those that you want.

    Runtime(..., tools=[search, task_complete, give_up, update_plan])

The turn machine answers them itself (`core.control`), so no dispatcher and no listener has to.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..core.control import UPDATE_PLAN
from ..protocols import Control
from ..tools import Tool

__all__ = ["give_up", "task_complete", "update_plan"]

_TEXT = {"type": "string", "minLength": 1}


def _control(control: Control, name: str, description: str, properties: dict[str, Any]) -> Tool[..., Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    made: Tool[..., Any] = Tool(name, description, schema, external=True)
    made.spec = dataclasses.replace(made.spec, control=control)
    return made


task_complete = _control(
    "complete",
    "task_complete",
    "Say that the task is done. Call it alone, in the end; the request ends with this answer.",
    {"answer": {**_TEXT, "description": "The answer for the user."}},
)
"""Ends the request `completed`, with `answer` as its text, when the other calls of the reply have ended."""

give_up = _control(
    "give_up",
    "give_up",
    "Say that the task cannot be done. Call it alone, when every way that you know has failed.",
    {"reason": {**_TEXT, "description": "Why it cannot be done, for the user."}},
)
"""Ends the request `stopped`, with the model's `reason`."""

update_plan = _control(
    "plan",
    UPDATE_PLAN,
    "Write down the plan for a task of several steps, or change it: always the whole plan, with each step's status.",
    {
        "steps": {
            "type": "array",
            "minItems": 1,
            "maxItems": 50,
            "items": {
                "type": "object",
                "properties": {
                    "text": {**_TEXT, "description": "What is done in this step."},
                    "status": {"enum": ["pending", "active", "done", "dropped"]},
                },
                "required": ["text"],
                "additionalProperties": False,
            },
        }
    },
)
"""Keeps a plan. Each change is a `PlanChanged`; the plan stands behind the instructions in every round, also of the
conversation's later turns, whatever is cut from the history."""
