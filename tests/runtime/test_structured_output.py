"""Structured output over a runtime: `output=` gives a validated value, in bounded rounds."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationInfo, field_validator

from toolbus import Limits, Runtime, tool
from toolbus.core.transcript import validate
from toolbus.errors import ConfigurationError, InvalidOutput, LimitReached, RequestCancelledError
from toolbus.events import ApprovalRequested, Event, RequestCompleted, ToolCallRequested
from toolbus.messages import UserMessage
from toolbus.protocols import ModelRequest, ToolSpec
from toolbus.testing import ScriptedProvider, calls, text, virtual_backends

anyio_backend = virtual_backends()


class Forecast(BaseModel):
    city: str
    celsius: int = Field(ge=-90, le=60)
    day: dt.date


RIGHT = {"city": "Paris", "celsius": 21, "day": "2026-02-28"}
HOT = {**RIGHT, "celsius": 210}
WANTED = Forecast(city="Paris", celsius=21, day=dt.date(2026, 2, 28))


@tool
async def get_weather(city: str) -> str:
    """Weather in a city."""
    return f"21 degrees in {city}"


def asked_again(request: ModelRequest) -> str:
    newest = request.messages[-1]
    assert isinstance(newest, UserMessage)
    return newest.text


@pytest.mark.guarantee("G35")
async def test_the_model_gives_its_answer_by_a_tool_and_the_result_has_the_type_that_was_asked_for() -> None:
    script = ScriptedProvider([calls(("get_weather", {"city": "Paris"})), calls(("final_answer", RIGHT))])
    heard: list[Event] = []
    async with Runtime(script, tools=[get_weather]) as runtime:
        runtime.bus.connect(Event, heard.append)
        result = await runtime.run("Weather in Paris?", output=Forecast)
        city: str = result.output.city  # what a type checker sees
    assert (result.outcome, result.output, city) == ("completed", WANTED, "Paris")
    assert [spec.name for spec in script.requests[0].tools] == ["get_weather", "final_answer"]
    assert [event.type for event in heard].count("tool_call_requested") == 1  # nobody has to run the answer
    ending = heard[-1]
    assert isinstance(ending, RequestCompleted)
    assert ending.output == RIGHT
    validate(result.messages)


async def test_the_answer_may_also_be_written_as_json() -> None:
    script = ScriptedProvider([text('Here it is:\n```json\n{"city":"Paris","celsius":21,"day":"2026-02-28"}\n```')])
    async with Runtime(script) as runtime:
        assert (await runtime.run("Weather in Paris?", output=Forecast)).output == WANTED


@pytest.mark.parametrize(
    "reply",
    [text("[1, 2, 3]"), text('{"value": [1, 2, 3]}'), calls(("final_answer", {"value": [1, 2, 3]}))],
    ids=["bare", "wrapped", "called"],
)
async def test_a_type_that_is_no_object_may_be_asked_for(reply: Any) -> None:
    async with Runtime(ScriptedProvider([reply])) as runtime:
        result = await runtime.run("Three primes?", output=list[int])
    assert result.output == [1, 2, 3]


async def test_a_tool_with_the_name_of_the_answer_s_is_refused_where_an_output_is_asked_for() -> None:
    async def final_answer() -> str:
        """Answer."""
        return "42"

    async with Runtime(ScriptedProvider([text("hello")]), tools=[final_answer]) as runtime:
        assert (await runtime.run("hi")).outcome == "completed"
        with pytest.raises(ConfigurationError, match=r"a tool is named final_answer, which output= needs"):
            await runtime.run("Weather in Paris?", output=Forecast)


async def test_a_request_without_an_output_has_none() -> None:
    async with Runtime(ScriptedProvider([text("{}")])) as runtime:
        assert (await runtime.run("hi")).output is None


# ------------------------------------------------------------------------------------------------- repairs


@pytest.mark.guarantee("G35")
async def test_a_text_that_is_no_answer_is_sent_back_with_what_is_wrong() -> None:
    script = ScriptedProvider([text("About 21 degrees."), text('{"city": "Paris"}'), calls(("final_answer", RIGHT))])
    async with Runtime(script) as runtime:
        result = await runtime.run("Weather in Paris?", output=Forecast)
    assert (result.outcome, result.output) == ("completed", WANTED)
    assert "not the answer that was asked for" in asked_again(script.requests[1])
    assert "$.celsius" in asked_again(script.requests[2])
    assert "final_answer" in asked_again(script.requests[2])
    validate(result.messages)


async def test_a_call_with_a_wrong_answer_fails_like_any_other_and_the_model_can_mend_it() -> None:
    script = ScriptedProvider([calls(("final_answer", HOT)), calls(("final_answer", RIGHT))])
    async with Runtime(script) as runtime:
        result = await runtime.run("Weather in Paris?", output=Forecast)
    assert result.output == WANTED
    assert [call.reason for call in result.tool_calls] == ["invalid_arguments", ""]
    assert "$.celsius" in result.tool_calls[0].error


@pytest.mark.guarantee("G35")
@pytest.mark.parametrize(
    ("limits", "asked"), [(Limits(), 3), (Limits(max_output_repairs=1), 2), (Limits(max_output_repairs=0), 1)]
)
async def test_the_repairs_are_bounded_and_then_the_request_fails(limits: Limits, asked: int) -> None:
    script = ScriptedProvider(lambda _request: text("I would rather chat."))
    async with Runtime(script, limits=limits) as runtime:
        result = await runtime.start("Weather in Paris?", output=Forecast).result()
        follow_up = await runtime.run("Then chat", conversation_id=result.conversation_id)
    assert (result.outcome, result.reason, result.output) == ("failed", "invalid_output", None)
    assert isinstance(result.error, InvalidOutput)
    assert f"max_output_repairs={limits.max_output_repairs}" in str(result.error)
    assert len(script.requests) == asked + 1
    assert follow_up.text == "I would rather chat."
    validate(result.messages)


async def test_an_invalid_output_is_raised() -> None:
    script = ScriptedProvider(lambda _request: text("I would rather chat."))
    async with Runtime(script) as runtime:
        with pytest.raises(InvalidOutput, match="max_output_repairs=2") as caught:
            await runtime.run("Weather in Paris?", output=Forecast)
    assert (caught.value.result.output, caught.value.result.text) == (None, "I would rather chat.")


# ------------------------------------------------------------------------------------------------- limits


def only_the_answer(request: ModelRequest) -> Any:
    """Looks things up for as long as it may."""
    names = [spec.name for spec in request.tools]
    return calls(("final_answer", RIGHT)) if names == ["final_answer"] else calls(("get_weather", {"city": "Paris"}))


async def test_the_last_answer_after_a_limit_can_still_give_the_output() -> None:
    script = ScriptedProvider(only_the_answer)
    async with Runtime(script, tools=[get_weather], limits=Limits(max_rounds=2)) as runtime:
        result = await runtime.run("Weather in Paris?", output=Forecast)
    assert (result.outcome, result.reason, result.output) == ("stopped", "max_rounds=2", WANTED)
    assert len(script.requests) == 3
    validate(result.messages)


async def test_a_last_answer_that_is_none_ends_the_request_by_its_limit() -> None:
    def chats(request: ModelRequest) -> Any:
        return text("Warm.") if len(request.tools) == 1 else calls(("get_weather", {"city": "Paris"}))

    async with Runtime(ScriptedProvider(chats), tools=[get_weather], limits=Limits(max_rounds=1)) as runtime:
        result = await runtime.start("Weather in Paris?", output=Forecast).result()
        assert (result.outcome, result.output) == ("stopped", None)
        assert result.reason == "max_rounds=1"
        assert result.text == "Warm."
        with pytest.raises(LimitReached, match="max_rounds=1"):
            result.raise_for_outcome()


@pytest.mark.guarantee("G35")
async def test_run_returns_an_output_of_the_type_that_was_asked_for_or_raises() -> None:
    endless = ScriptedProvider(lambda _request: calls(("get_weather", {"city": "Paris"})))
    limits = Limits(max_rounds=1, on_limit="stop")
    async with Runtime(endless, tools=[get_weather], limits=limits) as runtime:
        with pytest.raises(LimitReached, match="max_rounds=1") as stopped:
            await runtime.run("Weather in Paris?", output=Forecast)
        runtime.bus.connect(ToolCallRequested, lambda event: runtime.session(event.request_id).cancel("enough"))  # type: ignore[union-attr]
        with pytest.raises(RequestCancelledError, match="enough") as cancelled:
            await runtime.run("Weather in Paris?", output=Forecast)
    assert [each.value.result.outcome for each in (stopped, cancelled)] == ["stopped", "cancelled"]


@pytest.mark.guarantee("G35")
async def test_none_is_an_output_if_the_type_has_it_also_at_a_limit() -> None:
    def finds_nothing(request: ModelRequest) -> Any:
        is_last = len(request.tools) == 1
        return calls(("final_answer", {"value": None}) if is_last else ("get_weather", {"city": "Paris"}))

    async with Runtime(ScriptedProvider(finds_nothing), tools=[get_weather], limits=Limits(max_rounds=1)) as runtime:
        result = await runtime.run("Weather in Paris?", output=Forecast | None)
    assert (result.outcome, result.output) == ("stopped", None)


async def test_an_output_that_no_call_is_counted_for_comes_when_the_calls_are_used_up() -> None:
    script = ScriptedProvider([calls(("get_weather", {"city": "Paris"})), calls(("final_answer", RIGHT))])
    async with Runtime(script, tools=[get_weather], limits=Limits(max_tool_calls=1)) as runtime:
        result = await runtime.run("Weather in Paris?", output=Forecast)
    assert (result.outcome, result.output) == ("completed", WANTED)


async def test_a_conversation_goes_on_behind_a_structured_answer() -> None:
    script = ScriptedProvider([calls(("final_answer", RIGHT)), text("As I said.")])
    async with Runtime(script) as runtime:
        first = await runtime.run("Weather in Paris?", output=Forecast)
        second = await runtime.run("Sure?", conversation_id=first.conversation_id)
    assert (second.text, second.output) == ("As I said.", None)
    assert second.messages[: len(first.messages)] == first.messages
    assert [spec.name for spec in script.requests[1].tools] == []
    validate(second.messages)


class Known(BaseModel):
    city: str

    @field_validator("city")
    @classmethod
    def exists(cls, city: str, info: ValidationInfo) -> str:
        deps: Any = info.context
        if city not in deps["cities"]:
            raise ValueError(f"there is no {city}")
        return city


@pytest.mark.parametrize("by_call", [True, False])
async def test_validators_of_the_output_get_the_deps_and_the_model_reads_their_errors(by_call: bool) -> None:
    def answers(request: ModelRequest) -> Any:
        answer = {"city": "Paris" if request.round else "Pariss"}
        return calls(("final_answer", answer)) if by_call else text(json.dumps(answer))

    async with Runtime(ScriptedProvider(answers), deps={"cities": {"Paris"}}) as runtime:
        result = await runtime.run("Where?", output=Known)
    assert result.output == Known.model_construct(city="Paris")
    assert "there is no Pariss" in str(result.messages[2])


@pytest.mark.parametrize("by_call", [True, False])
async def test_a_bug_in_a_validator_of_the_output_is_logged_with_its_traceback(
    by_call: bool, caplog: pytest.LogCaptureFixture
) -> None:
    answer = calls(("final_answer", {"city": "Paris"})) if by_call else text('{"city": "Paris"}')
    limits = Limits(max_rounds=1, on_limit="stop")
    async with Runtime(ScriptedProvider([answer]), limits=limits, deps={"towns": ()}) as runtime:
        result = await runtime.start("Where?", output=Known).result()
    (line,) = [each for each in caplog.records if each.levelname == "ERROR"]
    whose = f"call {result.tool_calls[0].call_id}: a validator of tool final_answer" if by_call else "the output"
    assert (whose in line.message, line.exc_info is not None and line.exc_info[0]) == (True, KeyError)
    assert line.__dict__["request_id"] == result.request_id


async def test_a_bug_in_a_validator_of_arguments_or_in_a_policy_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool
    async def travel(to: Known) -> str:
        """Travel to a city."""
        return "arrived"

    def policy(spec: ToolSpec, arguments: Mapping[str, Any]) -> bool:
        raise KeyError("limit")

    both = calls(("travel", {"to": {"city": "Paris"}}), ("get_weather", {"city": "Paris"}))
    script = ScriptedProvider([both, text("Sorry.")])
    async with Runtime(script, tools=[travel, get_weather], needs_approval=policy) as runtime:
        result = await runtime.run("Go.", on_approval=approve)
    assert [each.ok for each in result.tool_calls] == [False, True]
    broken = [each for each in caplog.records if each.levelname == "ERROR"]
    assert [each.message.partition(": ")[2] for each in broken] == [
        "a validator of tool travel failed",
        "needs_approval of tool get_weather failed, so a person has to approve the call",
    ]
    assert [each.exc_info[0] for each in broken if each.exc_info] == [TypeError, KeyError]
    assert [each.__dict__["call_id"] for each in broken] == [each.call_id for each in result.tool_calls]


async def approve(_question: ApprovalRequested) -> bool:
    return True
