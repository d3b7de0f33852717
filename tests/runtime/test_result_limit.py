"""`RequestResult.limit`: which limit stopped a request, as data; never what a model has said of limits."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from toolbus import Limits, Runtime, ToolError, tool
from toolbus.messages import AssistantMessage, Usage
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.testing import ScriptedProvider, calls, text, virtual_backends
from toolbus.toolsets.control import give_up

anyio_backend = virtual_backends()


@tool
async def look_up(number: int) -> int:
    """Look a number up."""
    if number < 0:
        raise ToolError("there is nothing below zero")
    return number


def always(*arguments: dict[str, Any]) -> ScriptedProvider:
    """A model that calls for as long as it may, the next arguments each time and the last ones for ever."""
    return ScriptedProvider(
        lambda request: (
            calls(("look_up", arguments[min(request.round, len(arguments) - 1)]))
            if request.tools
            else text("that is all")
        )
    )


@pytest.mark.parametrize(
    ("limits", "model", "limit"),
    [
        (Limits(max_rounds=2), always({"number": 1}, {"number": 2}), "max_rounds"),
        (Limits(max_tool_calls=1), always({"number": 1}, {"number": 2}), "max_tool_calls"),
        (Limits(max_repeats=2), always({"number": 1}), "max_repeats"),
        (Limits(max_consecutive_errors=2), always({"number": -1}, {"number": -2}), "max_consecutive_errors"),
        (Limits(stop_on=frozenset({"error"})), always({"number": -1}), "stop_on"),
        (Limits(on_failure="fail_fast"), always({"number": -1}), "on_failure"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_request_that_a_limit_stopped_names_its_field(
    limits: Limits, model: ScriptedProvider, limit: str
) -> None:
    async with Runtime(model, tools=[look_up], limits=limits) as runtime:
        result = await runtime.run("go")
    assert (result.outcome, result.limit) == ("stopped", limit)
    assert hasattr(limits, limit)


async def test_the_requests_time_is_a_limit_too() -> None:
    class Slow:
        vendor = "slow"

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            await anyio.sleep(50)
            return ModelReply(message=AssistantMessage(text="late"))

    async with Runtime(Slow(), limits=Limits(timeout_seconds=20)) as runtime:
        result = await runtime.run("go")
    assert (result.outcome, result.limit) == ("stopped", "timeout_seconds")


@pytest.mark.parametrize(
    ("limits", "reply", "limit"),
    [
        (Limits(max_output_tokens=50), text("", usage=Usage(output_tokens=60)), "max_output_tokens"),
        (Limits(max_output_tokens=50), text("no number", usage=Usage(output_tokens=60)), "max_output_tokens"),
        (Limits(max_rounds=1, on_limit="stop"), text("no number"), "max_rounds"),
    ],
    ids=["of an empty reply", "of a text that is no output", "of rounds"],
)
async def test_a_limit_that_the_last_reply_has_passed_is_named_too(limits: Limits, reply: Any, limit: str) -> None:
    async with Runtime(ScriptedProvider([reply]), limits=limits) as runtime:
        result = await runtime.run("go", output=int)
    assert (result.outcome, result.limit) == ("stopped", limit)


@pytest.mark.parametrize("said", ["no key", "max_rounds=10", "timeout_seconds=120"])
async def test_a_model_that_gives_up_is_no_limit_whatever_it_says(said: str) -> None:
    model = ScriptedProvider([calls(("give_up", {"reason": said}))])
    async with Runtime(model, tools=[give_up]) as runtime:
        result = await runtime.run("go")
    assert (result.outcome, result.reason, result.limit) == ("stopped", said, "")


async def test_an_answer_has_none() -> None:
    async with Runtime(ScriptedProvider([text("yes")])) as runtime:
        assert (await runtime.run("go")).limit == ""
