"""The optional tools by which a model steers its own request: what it is told of them, and what they take."""

from __future__ import annotations

from typing import Any

import pytest

from toolbus.errors import InvalidArguments
from toolbus.tools import Tool, ToolRegistry
from toolbus.toolsets.control import give_up, task_complete, update_plan

CONTROLS: dict[str, Tool[..., None]] = {each.spec.control: each for each in (task_complete, give_up, update_plan)}


def test_each_has_a_control_of_its_own_and_a_description() -> None:
    assert {control: each.spec.name for control, each in CONTROLS.items()} == {
        "complete": "task_complete",
        "give_up": "give_up",
        "plan": "update_plan",
    }
    assert all(each.spec.description.endswith(".") for each in CONTROLS.values())
    assert not any(each.spec.needs_approval or each.spec.sequential for each in CONTROLS.values())


def test_they_stand_in_a_registry_like_any_other_tool() -> None:
    registry = ToolRegistry([*CONTROLS.values()])
    assert [each.control for each in registry.specs.values()] == ["complete", "give_up", "plan"]


def test_the_schema_of_a_plan_says_what_a_step_is() -> None:
    schema: Any = update_plan.spec.parameters
    step = schema["$defs"]["_Step"]
    assert step["required"] == ["text"]
    assert step["properties"]["status"]["enum"] == ["pending", "active", "done", "dropped"]
    assert (schema["properties"]["steps"]["minItems"], schema["properties"]["steps"]["maxItems"]) == (1, 50)


@pytest.mark.parametrize(
    ("control", "arguments"),
    [
        ("complete", {"answer": "noon"}),
        ("give_up", {"reason": "no clock"}),
        ("plan", {"steps": [{"text": "look"}]}),
        ("plan", {"steps": [{"text": "look", "status": "dropped"}] * 50}),
    ],
)
def test_what_they_take(control: str, arguments: dict[str, Any]) -> None:
    CONTROLS[control].spec.validate(arguments)


@pytest.mark.parametrize(
    ("control", "arguments", "path"),
    [
        ("complete", {}, "$.answer"),
        ("complete", {"answer": ""}, "$.answer"),
        ("complete", {"answer": 3}, "$.answer"),
        ("complete", {"answer": "noon", "why": "x"}, "$.why"),
        ("give_up", {"reason": None}, "$.reason"),
        ("plan", {"steps": []}, "$.steps"),
        ("plan", {"steps": [{"text": "look"}] * 51}, "$.steps"),
        ("plan", {"steps": [{"status": "done"}]}, "$.steps[0].text"),
        ("plan", {"steps": [{"text": "look", "status": "x"}]}, "$.steps[0].status"),
        ("plan", {"steps": [{"text": "look", "by": "me"}]}, "$.steps[0].by"),
    ],
)
def test_what_they_refuse_with_its_place(control: str, arguments: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        CONTROLS[control].spec.validate(arguments)
    assert str(caught.value).startswith(path)
