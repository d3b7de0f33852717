"""The registry: names, order, snapshots; and what a running request sees of a change."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from toolbus import EventBus, RequestSession, ToolDispatcher
from toolbus.errors import ConfigurationError, NotRunning
from toolbus.messages import UserMessage
from toolbus.protocols import ModelRequest, ToolSpec
from toolbus.testing import ScriptedProvider, calls, text
from toolbus.tools import Tool, ToolContext, ToolRegistry, tool


@tool
async def one() -> str:
    """One."""
    return "1"


def two() -> str:
    """Two."""
    return "2"


def test_a_name_in_place_of_the_function_is_refused_with_what_to_write():
    name: Any = "find_order"
    with pytest.raises(ConfigurationError, match=r"to name a tool, write @tool\(name='find_order'\)"):
        tool(name)


def test_a_decorator_around_a_tool_is_refused():
    # It would lose the options and the docstring of the tool.
    @functools.wraps(one)
    def logged() -> Any:
        return one()

    with pytest.raises(ConfigurationError, match=r"^a decorator is around Tool\('one'\); write @tool above all other"):
        ToolRegistry([logged])


async def never(_arguments: object) -> bool:
    return False


@pytest.mark.parametrize("given", ["no", 1, lambda: True, never])
def test_a_tools_approval_is_a_flag_or_a_function_of_the_arguments(given: Any):
    with pytest.raises(ConfigurationError, match=r"needs_approval is .*; use True, False or a function of the arg"):
        tool(needs_approval=given)(two)


@pytest.mark.parametrize(
    ("option", "given", "advice"),
    [
        ("status", 5, r"tool 'two': status is 5; pass a sentence, such as 'Looking \{city\} up'"),
        ("status", len, "tool 'two': status is <built-in function len>; pass a sentence"),
        ("external", 1, "tool 'two': external is 1; say True or False"),
        ("description", 5, "tool 'two': description is 5; pass a string"),
        ("name", 5, "a tool's name is 5; pass a string"),
    ],
)
def test_a_text_of_a_tool_is_checked_when_the_tool_is_made(option: str, given: Any, advice: str):
    # A status of another kind was noticed only when the tool ran, as a bug of the session.
    options: dict[str, Any] = {option: given}
    with pytest.raises(ConfigurationError, match=advice):
        tool(**options)(two)


@pytest.mark.parametrize("given", [(two,), ("two", two)])
def test_a_function_in_another_place_is_refused_with_the_place_for_it(given: Any):
    with pytest.raises(ConfigurationError, match=r"needs a handler, .*; pass the function as handler="):
        Tool(*given)


def test_tools_and_functions_are_registered_in_order():
    registry = ToolRegistry([one, two])
    assert [each.name for each in registry] == ["one", "two"] == list(registry.specs)
    assert registry.get("one") is one
    assert registry.get("three") is None
    assert ("two" in registry, "three" in registry, len(registry)) == (True, False, 2)
    assert registry.specs["one"] is one.spec


def test_a_name_is_taken_once():
    registry = ToolRegistry([one])
    with pytest.raises(ConfigurationError, match=r"already a tool 'one'; give one of them another name="):
        registry.add(one)
    added = registry.add(two)
    assert registry.get("two") is added


def test_replacing_keeps_the_place_and_adds_where_there_was_none():
    registry = ToolRegistry([one, two])
    other = Tool("one", "Another.", {}, lambda: "11", validate=lambda _: None)
    assert registry.replace(other) is other
    assert [each.description for each in registry] == ["Another.", "Two."]
    registry.remove("two")
    registry.replace(two)
    assert list(registry.specs) == ["one", "two"]


def test_removing_what_is_not_there_raises():
    with pytest.raises(KeyError, match="one"):
        ToolRegistry().remove("one")


def test_what_is_no_tool_is_refused():
    nonsense: Any = "get_weather"
    with pytest.raises(ConfigurationError, match=r"^a str \('get_weather'\) is not a tool; pass a fun"):
        ToolRegistry([nonsense])


def test_specs_are_a_snapshot_that_is_made_anew_after_a_change():
    registry = ToolRegistry([one])
    before = registry.specs
    assert registry.specs is before
    registry.add(two)
    assert list(before) == ["one"]
    assert list(registry.specs) == ["one", "two"]
    registry.remove("one")
    assert list(registry.specs) == ["two"]
    read_only: Any = before
    with pytest.raises(TypeError):
        read_only["two"] = read_only["one"]


def test_iterating_stands_a_change():
    registry = ToolRegistry([one, two])
    for each in registry:
        registry.remove(each.name)
    assert len(registry) == 0


async def test_a_running_request_sees_a_change_at_its_next_round():
    registry = ToolRegistry([one])

    @tool
    async def grow() -> str:
        """Learn something."""
        registry.add(two)
        registry.remove("one")
        return "grown"

    registry.add(grow)
    offered: list[list[str]] = []
    script = iter([calls(("grow", {})), calls(("two", {}), ("one", {})), text("Done.")])

    def step(request: ModelRequest) -> Any:
        offered.append([each.name for each in request.tools])
        return next(script)

    bus = EventBus()
    async with ToolDispatcher(bus, registry):
        result = await RequestSession(bus, ScriptedProvider(step), "Go.", tools=registry).run()
    assert offered == [["one", "grow"], ["grow", "two"], ["grow", "two"]]
    assert [(each.name, each.content, each.reason) for each in result.tool_calls] == [
        ("grow", "grown", ""),
        ("two", "2", ""),
        ("one", "", "unknown_tool"),
    ]
    assert "The tools are: grow, two." in result.tool_calls[2].error


def test_specs_that_differ_only_in_their_functions_are_equal():
    first, second = (ToolSpec(name="grow", validate=lambda _arguments: None) for _ in range(2))
    assert first == second
    assert repr(first) == repr(second)


async def test_options_beside_a_function_are_not_lost():
    async def pay(amount: int) -> str:
        """Pay."""
        return f"{amount}"

    untyped: Any = tool
    assert untyped(pay, needs_approval=True, name="pay_now").spec.needs_approval is True
    assert untyped(pay, needs_approval=True, name="pay_now").name == "pay_now"


# ------------------------------------------------------------------------------------------------- context


async def test_a_context_of_ones_own_is_enough_to_test_a_handler():
    @tool
    async def greet(context: ToolContext[str]) -> str:
        """Greet."""
        await context.progress("thinking", done=1, total=2)
        return f"Hi {context.deps}, you said {context.last_user_message!r}"

    messages = [UserMessage(content="first"), UserMessage(content="hello")]
    assert await greet(ToolContext(deps="Ada", messages=messages)) == "Hi Ada, you said 'hello'"
    assert ToolContext(deps=None).last_user_message == ""


async def test_only_a_handler_can_ask_and_progress_outside_of_a_runtime_is_lost():
    context = ToolContext(deps=None)
    await context.progress("half way", done=1, total=2)
    with pytest.raises(NotRunning, match=r"ask\(\) works in the handler of a tool"):
        await context.ask("Why?")


def test_two_descriptions_of_a_tool_are_equal_whatever_functions_they_have():
    """After a restart the functions are new objects, and the model is offered the same tools."""
    first, second = (
        ToolSpec(name="grow", validate=lambda _arguments: None, needs_approval=lambda _call: True) for _ in range(2)
    )
    assert first == second
    assert first != ToolSpec(name="shrink")
