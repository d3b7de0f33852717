"""`RequestResult.limit`: which limit stopped a request, as data; never what a model has said of limits."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from toolbus import Limits, Runtime, ToolError, tool
from toolbus.errors import LimitReached
from toolbus.messages import AssistantMessage, ToolMessage, Usage
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.testing import ScriptedProvider, calls, hang, text, virtual_backends
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
        result = await runtime.start("go", output=int).result()
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


# ------------------------------------------------------------------------------------------------- repeats


@tool
async def get_status() -> str:
    """Say how it is going."""
    return "waiting"


def keeps_calling(name: str, times: int) -> ScriptedProvider:
    """A model that makes the same call so often, or as long as it may, and then answers."""
    return ScriptedProvider(
        lambda request: calls((name, {})) if request.tools and request.round < times else text("that is all")
    )


async def test_five_rolls_of_dice_go_on() -> None:
    rolls = iter(range(1, 9))

    @tool
    async def roll_dice() -> int:
        """Roll the dice."""
        return next(rolls)

    async with Runtime(keeps_calling("roll_dice", 8), tools=[roll_dice]) as runtime:
        result = await runtime.run("go")
    assert (result.outcome, len(result.tool_calls)) == ("completed", 8)
    assert all(call.ok for call in result.tool_calls)


@pytest.mark.parametrize("times", [4, 5])
async def test_a_status_that_is_asked_for_four_or_five_times_goes_on(times: int) -> None:
    async with Runtime(keeps_calling("get_status", times), tools=[get_status]) as runtime:
        result = await runtime.run("go")
    assert (result.outcome, [call.ok for call in result.tool_calls]) == ("completed", [True] * times)


async def test_a_loop_of_one_call_is_told_so_at_the_sixth_and_stopped_at_the_seventh() -> None:
    provider = keeps_calling("get_status", 99)
    async with Runtime(provider, tools=[get_status]) as runtime:
        result = await runtime.run("go")
    assert (result.outcome, result.reason, result.text) == ("stopped", "max_repeats=5", "that is all")
    assert [call.ok for call in result.tool_calls] == [True] * 5 + [False] * 2
    read = provider.requests[6].messages[-1]
    assert isinstance(read, ToolMessage)
    assert "get_status was called 5 times in a row with the same arguments" in read.content
    assert "the same call once more ends the request" in read.content


async def test_a_tool_that_is_a_poll_is_asked_until_there_is_something_to_say() -> None:
    @tool(repeatable=True)
    async def get_build() -> str:
        """Say whether the build is done."""
        return "still building"

    async with Runtime(keeps_calling("get_build", 15), tools=[get_build], limits=Limits.thorough()) as runtime:
        result = await runtime.run("go")
    assert (result.outcome, len(result.tool_calls)) == ("completed", 15)


@pytest.mark.parametrize(
    ("limits", "value"),
    [(Limits(max_rounds=2), 2), (Limits(timeout_seconds=0.25), 0.25), (Limits(stop_on=frozenset({"error"})), "error")],
    ids=["a count", "a fraction", "a reason"],
)
async def test_the_exception_of_a_limit_has_its_name_and_value(limits: Limits, value: object) -> None:
    model = always({"number": -1} if limits.stop_on else {"number": 1})
    async with Runtime(
        ScriptedProvider([hang()]) if limits.timeout_seconds < 1 else model, tools=[look_up], limits=limits
    ) as runtime:
        result = await runtime.run("go")
    with pytest.raises(LimitReached) as raised:
        result.raise_for_outcome()
    assert raised.value.reason == f"{raised.value.limit}={value}"
    assert raised.value.value == value
