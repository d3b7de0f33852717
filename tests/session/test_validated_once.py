"""A call's arguments are validated once: by the turn machine, whose result the handler is called with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import anyio
import pytest
from pydantic import AfterValidator

from toolbus import EventBus, RequestSession, ToolDispatcher, ToolRegistry, tool
from toolbus.events import ApprovalRequested
from toolbus.testing import ScriptedProvider, calls, text, virtual_backends
from toolbus.tools import Tool

anyio_backend = virtual_backends()

seen: list[int] = []


def counted(value: int) -> int:
    seen.append(value)
    return value


Counted = Annotated[int, AfterValidator(counted)]


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


async def request(tools: Sequence[Tool], *asked: tuple[str, dict[str, Any]], bus: EventBus) -> list[str]:
    """The results that the model reads."""
    registry = ToolRegistry(tools)
    async with ToolDispatcher(bus, registry):
        session = RequestSession(bus, ScriptedProvider([calls(*asked), text("Done.")]), "go", tools=registry)
        with anyio.fail_after(60):
            result = await session.run()
    return [each.content for each in result.messages if each.role == "tool"]


async def test_a_call_is_validated_once() -> None:
    @tool
    async def add(a: Counted, b: Counted = 1) -> int:
        return a + b

    assert await request([add], ("add", {"a": 2}), ("add", {"a": 3, "b": 4}), bus=EventBus()) == ["3", "7"]
    assert seen == [2, 3, 4]


async def test_each_further_attempt_gets_arguments_of_its_own() -> None:
    attempts: list[list[int]] = []

    @tool(retries=2, retry_on=(ConnectionError,))
    async def take(items: list[Counted]) -> str:
        attempts.append(list(items))
        items.clear()
        if len(attempts) < 3:
            raise ConnectionError("busy")
        return "taken"

    assert await request([take], ("take", {"items": [1, 2]}), bus=EventBus()) == ["taken"]
    assert attempts == [[1, 2]] * 3
    assert seen == [1, 2] * 3


async def test_equal_calls_share_no_arguments() -> None:
    @tool
    async def take(items: list[int]) -> list[int]:
        items.append(0)
        return items

    same = ("take", {"items": [1]})
    assert await request([take], same, same, bus=EventBus()) == ["[1,0]"] * 2


async def test_a_call_runs_with_what_was_approved_and_not_with_what_was_asked() -> None:
    bus = EventBus()
    bus.connect(ApprovalRequested, lambda asked: bus.publish(asked.decided(approved=True, arguments={"items": [7]})))

    @tool(needs_approval=True)
    async def take(items: list[Counted]) -> list[int]:
        return items

    assert await request([take], ("take", {"items": [1]}), bus=bus) == ["[7]"]
    assert seen == [1, 7]


async def test_a_tool_that_was_replaced_before_its_call_ran_validates_for_itself() -> None:
    """The model's call was judged by the tool that was offered; another one of the same name runs it."""

    @tool(name="take")
    async def before(items: list[Counted]) -> str:
        raise AssertionError("it was replaced")

    @tool(name="take")
    async def after(items: list[Counted]) -> list[int]:
        return items

    bus = EventBus()
    offered, running = ToolRegistry([before]), ToolRegistry([after])
    async with ToolDispatcher(bus, running):
        provider = ScriptedProvider([calls(("take", {"items": [5]})), text("Done.")])
        # Specs are no registry: the dispatcher looks tools up in its own.
        session = RequestSession(bus, provider, "go", tools=list(offered.specs.values()))
        with anyio.fail_after(60):
            result = await session.run()
    assert [each.content for each in result.messages if each.role == "tool"] == ["[5]"]
    assert seen == [5, 5]
