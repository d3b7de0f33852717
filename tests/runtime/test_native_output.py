"""Structured output by the provider's own means: when it is asked for natively, and what comes of what it answers."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field, SecretStr

from toolbus import Compression, Interceptor, Limits, Runtime, ToolContext, sub_request_tool, tool
from toolbus.core.transcript import validate
from toolbus.errors import ConfigurationError, NativeOutputUnsupported, ProviderUnavailable
from toolbus.events import Event, ModelResponded, ModelRetrying
from toolbus.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from toolbus.protocols import Emit, ModelReply, ModelRequest, NativeOutput, OutputMode
from toolbus.testing import ScriptedProvider, calls, error, text, virtual_backends

anyio_backend = virtual_backends()


class Forecast(BaseModel):
    city: str
    celsius: int = Field(ge=-90, le=60)


PARIS = '{"city": "Paris", "celsius": 21}'
HOT = '{"city": "Paris", "celsius": 210}'
WANTED = Forecast(city="Paris", celsius=21)
CALLED = calls(("final_answer", PARIS))
LOOKED = calls(("get_weather", {"city": "Paris"}))


@tool
async def get_weather(city: str) -> str:
    """Weather in a city."""
    return f"21 degrees in {city}"


def native(*steps: Any, can: NativeOutput = "alone") -> ScriptedProvider:
    return ScriptedProvider(steps, native_output=can)


def asked(request: ModelRequest) -> tuple[bool, list[str]]:
    """Whether the reply is held to a schema, and the tools that are offered."""
    return request.output_schema is not None, [spec.name for spec in request.tools]


def asked_in(provider: ScriptedProvider) -> list[tuple[bool, list[str]]]:
    return [asked(each) for each in provider.requests]


NATIVELY: tuple[bool, list[str]] = (True, [])
BY_TOOL: tuple[bool, list[str]] = (False, ["final_answer"])


# ------------------------------------------------------------------------------------------------- which way


async def test_a_provider_that_can_is_given_the_schema_and_no_tool() -> None:
    provider = native(text(PARIS))
    heard: list[ModelResponded] = []
    async with Runtime(provider) as runtime:
        runtime.bus.connect(ModelResponded, heard.append)
        result = await runtime.run("Weather in Paris?", output=Forecast)
    assert (result.outcome, result.output, result.text) == ("completed", WANTED, PARIS)
    assert asked_in(provider) == [NATIVELY]
    assert (provider.requests[0].output_schema or {})["properties"].keys() == {"city", "celsius"}
    assert [each.native_output for each in heard] == [True]
    validate(result.messages)


async def test_a_provider_that_cannot_is_offered_the_tool() -> None:
    class Plain:
        """A provider that knows nothing of schemas."""

        vendor = "plain"

        def __init__(self) -> None:
            self.inner = ScriptedProvider([CALLED])

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            return await self.inner.respond(request, emit)

    plain = Plain()
    async with Runtime(plain) as runtime:
        assert (await runtime.run("Weather in Paris?", output=Forecast)).output == WANTED
    assert asked_in(plain.inner) == [BY_TOOL]


async def test_without_an_output_nothing_is_said_of_a_schema() -> None:
    provider = native(text("Sunny."))
    async with Runtime(provider, output_mode="native") as runtime:
        assert (await runtime.run("Weather in Paris?")).text == "Sunny."
    assert asked_in(provider) == [(False, [])]


async def test_where_tools_are_offered_the_answer_is_one_of_them_and_the_last_one_is_native() -> None:
    provider = native(LOOKED, LOOKED, text(PARIS), can="with_tools")
    async with Runtime(provider, tools=[get_weather], limits=Limits(max_rounds=2)) as runtime:
        result = await runtime.run("Weather in Paris?", output=Forecast)
    assert (result.outcome, result.reason, result.output) == ("stopped", "max_rounds=2", WANTED)
    assert asked_in(provider) == [(False, ["get_weather", "final_answer"])] * 2 + [NATIVELY]
    validate(result.messages)


async def test_the_mode_tool_never_asks_natively() -> None:
    provider = native(CALLED)
    async with Runtime(provider, output_mode="tool") as runtime:
        assert (await runtime.run("Weather in Paris?", output=Forecast)).output == WANTED
    assert asked_in(provider) == [BY_TOOL]


async def test_the_mode_native_asks_natively_beside_tools_too() -> None:
    provider = native(LOOKED, text(PARIS), can="with_tools")
    async with Runtime(provider, tools=[get_weather]) as runtime:
        result = await runtime.run("Weather in Paris?", output=Forecast, output_mode="native")
    assert result.output == WANTED
    assert asked_in(provider) == [(True, ["get_weather"])] * 2


@pytest.mark.parametrize(
    ("can", "tools", "reported"),
    [
        (
            "",
            [],
            "cannot hold replies to the schema of this output, or its server has refused it; say 'auto' or 'tool'",
        ),
        ("alone", [get_weather], "can hold replies to a schema only in a request without tools; say 'auto' or 'tool'"),
    ],
)
async def test_the_mode_native_is_refused_before_anything_is_asked_where_it_cannot_be(
    can: NativeOutput, tools: list[Any], reported: str
) -> None:
    provider = native(can=can)
    async with Runtime(provider, tools=tools) as runtime:
        with pytest.raises(ConfigurationError, match=rf"output_mode is 'native', and the provider .* {reported}"):
            runtime.start("Weather in Paris?", output=Forecast, output_mode="native")
    assert provider.requests == []


async def test_a_model_of_one_round_that_cannot_fails_the_request() -> None:
    async with Runtime(native(), provider_for_round=lambda _round: native(can="")) as runtime:
        result = await runtime.start("Weather in Paris?", output=Forecast, output_mode="native").result()
    assert (result.outcome, result.reason) == ("failed", "configuration_error")
    assert "say 'auto' or 'tool'" in str(result.error)


@pytest.mark.parametrize(
    ("mode", "can", "expected"),
    [
        ("auto", "alone", (False, ["read_result", "final_answer"])),
        ("native", "with_tools", (True, ["read_result"])),
        ("native", "alone", NATIVELY),
    ],
)
async def test_the_tool_that_reads_a_shortened_result_is_offered_as_far_as_the_provider_can(
    mode: OutputMode, can: NativeOutput, expected: tuple[bool, list[str]]
) -> None:
    call = ToolCall(name="get_weather", arguments="{}", call_id="c1", provider_call_id="1")
    history: list[Message] = [
        UserMessage(content="Weather in Paris?"),
        AssistantMessage(tool_calls=(call,)),
        ToolMessage(call_id="c1", name="get_weather", content="21 degrees, " * 250),
        AssistantMessage(text="21 degrees."),
    ]
    provider = native(text(PARIS) if expected[0] else CALLED, can=can)
    async with Runtime(provider, compression=Compression(max_context_tokens=700)) as runtime:
        result = await runtime.run("As data?", history=history, output=Forecast, output_mode=mode)
    assert result.output == WANTED
    assert asked_in(provider) == [expected]


@pytest.mark.parametrize("mode", ["Native", "", 1, ["native"]])
async def test_another_word_is_refused(mode: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"output_mode is .*; it must be one of 'auto', 'native', 'tool'"):
        Runtime(native(), output_mode=mode)
    with pytest.raises(ConfigurationError, match="native_output is 'yes'; it must be one of '', 'alone', 'with_tools'"):
        ScriptedProvider([], native_output="yes")  # type: ignore[arg-type]


async def test_a_sub_request_is_asked_in_the_mode_of_the_one_above() -> None:
    below = native(CALLED)
    expert = sub_request_tool("expert", "Knows.", provider=below, output=Forecast)
    above = native(calls(("expert", {"task": "Paris?"})), text("21."))
    async with Runtime(above, tools=[expert], output_mode="tool") as runtime:
        assert (await runtime.run("Weather in Paris?")).text == "21."
    assert asked_in(below) == [BY_TOOL]


@pytest.mark.parametrize(("mode", "step"), [("native", text(PARIS)), ("tool", CALLED)])
@pytest.mark.parametrize("tools", [[], [get_weather]])
async def test_guidance_names_only_tools_that_are_offered(mode: OutputMode, step: Any, tools: list[Any]) -> None:
    provider = native(step, can="with_tools")
    async with Runtime(provider, tools=tools, guidance=True) as runtime:
        await runtime.run("Weather in Paris?", output=Forecast, output_mode=mode)
    first, *_ = provider.requests[0].messages
    guidance = first.text if isinstance(first, SystemMessage) else ""
    assert [name for name in ("get_weather", "final_answer") if name in guidance] == asked(provider.requests[0])[1]


# ------------------------------------------------------------------------------------------------- wrong answers


async def test_a_native_answer_that_breaks_the_type_is_sent_back_in_words_that_fit_it() -> None:
    provider = native(text(HOT), text(PARIS))
    async with Runtime(provider) as runtime:
        result = await runtime.run("Weather in Paris?", output=Forecast)
    assert result.output == WANTED
    assert asked_in(provider) == [NATIVELY, NATIVELY]
    newest = provider.requests[1].messages[-1]
    assert isinstance(newest, UserMessage)
    assert "$.celsius" in newest.text
    assert newest.text.endswith("Answer again, with the whole JSON and nothing else.")


async def test_behind_interceptors_it_is_sent_back_in_the_same_words() -> None:
    class Shouts(Interceptor):
        async def on_answer(self, text: str, context: ToolContext[Any]) -> str:
            return text.upper().replace("CITY", "city").replace("CELSIUS", "celsius")

    provider = native(text(HOT), text(PARIS))
    async with Runtime(provider, interceptors=[Shouts()]) as runtime:
        result = await runtime.run("Weather in Paris?", output=Forecast)
    assert result.output == Forecast(city="PARIS", celsius=21)
    newest = provider.requests[1].messages[-1]
    assert isinstance(newest, UserMessage)
    assert newest.text.endswith("Answer again, with the whole JSON and nothing else.")


async def test_native_answers_are_repaired_as_often_as_others() -> None:
    provider = native(*[text("It is warm.")] * 3)
    async with Runtime(provider) as runtime:
        result = await runtime.start("Weather in Paris?", output=Forecast).result()
    assert (result.outcome, result.reason, len(provider.requests)) == ("failed", "invalid_output", 3)


async def test_a_model_that_calls_the_tool_all_the_same_has_answered() -> None:
    provider = native(CALLED)
    async with Runtime(provider) as runtime:
        assert (await runtime.run("Weather in Paris?", output=Forecast)).output == WANTED


async def test_a_secret_in_a_native_answer_is_reported_nowhere() -> None:
    class Login(BaseModel):
        user: str
        password: SecretStr

    reported: list[Event] = []
    async with Runtime(native(text('{"user": "ada", "password": "s3cret-word"}'))) as runtime:
        runtime.bus.connect(Event, reported.append)
        result = await runtime.run("Make a login.", output=Login)
    assert result.output.password.get_secret_value() == "s3cret-word"
    assert "s3cret-word" not in repr(reported)
    assert "s3cret-word" not in repr(result.messages)


# ------------------------------------------------------------------------------------------------- refusing servers

REFUSED = error(NativeOutputUnsupported("no schemas here", status=400))


@pytest.mark.guarantee("G35")
async def test_a_server_that_takes_no_schema_is_asked_again_by_the_tool_in_the_same_round() -> None:
    provider = native(REFUSED, text("Hm."), CALLED)
    heard: list[ModelRetrying] = []
    async with Runtime(provider) as runtime:
        runtime.bus.connect(ModelRetrying, heard.append)
        result = await runtime.run("Weather in Paris?", output=Forecast)
    assert (result.outcome, result.output) == ("completed", WANTED)
    assert asked_in(provider) == [NATIVELY, BY_TOOL, BY_TOOL]
    assert [each.round for each in provider.requests] == [0, 0, 1]
    assert [(each.reason, each.delay_seconds) for each in heard] == [("native_output_unsupported", 0.0)]


async def test_with_the_mode_native_it_fails_with_an_error_of_its_own() -> None:
    provider = native(REFUSED)
    async with Runtime(provider) as runtime:
        with pytest.raises(NativeOutputUnsupported, match="no schemas here"):
            await runtime.run("Weather?", output=Forecast, output_mode="native")
    assert len(provider.requests) == 1


async def test_a_server_that_is_away_is_unavailable_and_not_asked_in_another_way() -> None:
    away = error(ProviderUnavailable("nobody there", retryable=True))
    provider = native(*[away] * 3)
    async with Runtime(provider) as runtime:
        result = await runtime.start("Weather in Paris?", output=Forecast).result()
    assert (result.outcome, result.reason) == ("failed", "provider_unavailable")
    assert asked_in(provider) == [NATIVELY] * 3


@pytest.mark.parametrize("mode", ["auto", "native", "tool"])
async def test_a_refusal_is_no_wrong_answer_whatever_the_mode(mode: OutputMode) -> None:
    provider = native(text("I can't help with that.", finish_reason="refusal"))
    async with Runtime(provider) as runtime:
        result = await runtime.start("Weather in Paris?", output=Forecast, output_mode=mode).result()
    assert (result.outcome, result.reason, len(provider.requests)) == ("failed", "content_filtered", 1)
    assert "I can't help with that." in str(result.error)
