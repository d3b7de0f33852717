"""Structured output over real sockets: what each vendor's wire is asked for, and what comes of what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from support.openai_server import OpenAIServer, Reply, text
from toolbus import Limits, ModelSettings, Runtime
from toolbus.core.output import OutputType
from toolbus.errors import NativeOutputUnsupported
from toolbus.messages import SystemMessage, UserMessage
from toolbus.protocols import ModelRequest
from toolbus.providers import OpenAIProvider
from toolbus.providers.anthropic import AnthropicProvider
from toolbus.providers.anthropic._request import request_body as anthropic_body
from toolbus.providers.ollama import OllamaProvider
from toolbus.testing import calls
from toolbus.testing.wire import DIALECTS, HttpRequest, WireBreak, WireFault, WireReply, WireServer, WireStep

KEY = "sk-not-a-real-key"
MAKERS: dict[str, Callable[[str], Any]] = {
    "openai": lambda url: OpenAIProvider("stub", api_key=KEY, base_url=url),
    "responses": lambda url: OpenAIProvider("stub", api="responses", api_key=KEY, base_url=url),
    "anthropic": lambda url: AnthropicProvider("stub", api_key=KEY, base_url=url),
    "ollama": lambda url: OllamaProvider("stub", host=url),
}


class Weather(BaseModel):
    city: str
    celsius: int


PARIS = '{"city": "Paris", "celsius": 21}'
WANTED = Weather(city="Paris", celsius=21)


async def ask(server: WireServer, **options: Any) -> Any:
    provider = MAKERS[server.dialect.name](server.base_url)
    try:
        async with Runtime(provider) as runtime:
            return await runtime.start("Weather in Paris?", output=Weather, **options).result()
    finally:
        await close(provider)


async def close(provider: Any) -> None:
    await provider.aclose()


# ------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("dialect", ["openai", "responses", "anthropic"])
async def test_a_refusal_ends_the_request_at_once_whatever_the_wire(dialect: str) -> None:
    refusal = WireReply(refusal="I cannot help with that.")
    with WireServer(lambda _: refusal, dialect=dialect) as server:
        result = await ask(server)
    assert (result.outcome, result.reason, len(server.requests)) == ("failed", "content_filtered", 1)


# ------------------------------------------------------------------------------------------------- native output


def schema_sent(dialect: str, body: Any) -> Any:
    """What the vendor reads as the schema, where it reads it."""
    if dialect == "openai":
        return body["response_format"]["json_schema"]["schema"]
    if dialect == "responses":
        return body["text"]["format"]["schema"]
    return body["output_config"]["format"]["schema"] if dialect == "anthropic" else body["format"]


@pytest.mark.parametrize("dialect", MAKERS)
async def test_the_answer_is_asked_for_in_the_vendors_own_field(dialect: str) -> None:
    with WireServer([WireReply(text=PARIS)], dialect=dialect) as server:
        result = await ask(server)
    assert (result.outcome, result.output) == ("completed", WANTED)
    sent = server.read()
    assert (sent.problems, sent.tools) == ((), ())
    assert schema_sent(dialect, server.requests[0].body)["properties"].keys() == {"city", "celsius"}


@pytest.mark.parametrize("dialect", MAKERS)
async def test_servers_that_may_tell_the_model_nothing_have_the_schema_in_the_instructions(dialect: str) -> None:
    with WireServer([WireReply(text=PARIS)], dialect=dialect) as server:
        await ask(server, instructions="Be brief.")
    system, *others = server.read().messages
    assert isinstance(system, SystemMessage)
    assert [type(each) for each in others] == [UserMessage]
    assert system.text.startswith("Be brief.\n\nAnswer with JSON of this schema, and with nothing else:\n{")
    assert '"celsius"' in system.text


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_openai_itself_has_the_schema_once(api: Any) -> None:
    with WireServer([WireReply(text=PARIS)], dialect="openai" if api == "chat" else api) as server:
        provider = OpenAIProvider("stub", api=api, api_key=KEY, base_url=server.base_url, compatible=False)
        assert provider.native_output({}) == "with_tools"
        try:
            async with Runtime(provider) as runtime:
                assert (await runtime.run("Weather in Paris?", output=Weather)).output == WANTED
        finally:
            await close(provider)
    assert not any(isinstance(each, SystemMessage) for each in server.read().messages)


def test_anthropic_itself_has_the_schema_once() -> None:
    request = ModelRequest(messages=[UserMessage(content="hi")], output_schema=OutputType(Weather).spec.parameters)
    options: Any = {"max_output_tokens": 9, "cache": "off"}
    assert "system" not in anthropic_body("stub", request, **options)
    assert "celsius" in anthropic_body("stub", request, **options, compatible=True)["system"]


@pytest.mark.parametrize(("dialect", "field"), [("responses", "text"), ("anthropic", "output_config")])
async def test_what_extra_body_says_beside_the_schema_leaves_it_there(dialect: str, field: str) -> None:
    settings = ModelSettings(extra_body={field: {"verbosity": "low"}})
    with WireServer([WireReply(text=PARIS)], dialect=dialect) as server:
        await ask(server, settings=settings)
    body = server.requests[0].body
    assert body[field].keys() == {"format", "verbosity"}


async def test_effort_and_the_schema_stand_side_by_side() -> None:
    with WireServer([WireReply(text=PARIS)], dialect="anthropic") as server:
        await ask(server, settings=ModelSettings(reasoning_effort="low"))
    assert server.requests[0].body["output_config"].keys() == {"effort", "format"}


# ------------------------------------------------------------------------------------------------- without schemas

WORDINGS = [
    (name, number)
    for name, dialect in DIALECTS.items()
    for number in range(len(dialect.refusals(WireFault(kind="native_output"))))
]


@pytest.mark.parametrize(("dialect", "wording"), WORDINGS)
async def test_a_server_that_knows_no_schemas_is_asked_for_a_call_and_that_is_remembered(
    dialect: str, wording: int
) -> None:
    def answer(request: HttpRequest) -> WireStep:
        if DIALECTS[dialect].read(request).output_schema is not None:
            return WireFault(kind="native_output", wording=wording)
        return calls(("final_answer", PARIS))

    with WireServer(answer, dialect=dialect) as server:
        provider = MAKERS[dialect](server.base_url)
        try:
            async with Runtime(provider) as runtime:
                outputs = [(await runtime.run("Weather in Paris?", output=Weather)).output for _ in range(3)]
        finally:
            await close(provider)
    assert outputs == [WANTED] * 3
    offered = [[tool.name for tool in server.read(number).tools] for number in range(len(server.requests))]
    assert offered == [[]] + [["final_answer"]] * 3


@pytest.mark.parametrize("dialect", MAKERS)
async def test_a_server_that_says_so_inside_a_stream_is_understood_as_well(dialect: str) -> None:
    wording = 1 if dialect == "anthropic" else 0  # its other one is overload, which passes
    said = "failed to parse grammar"
    refusal = WireBreak(reply=WireReply(text="{"), how="error", after=1, message=said, wording=wording)
    with WireServer([refusal, calls(("final_answer", PARIS))], dialect=dialect) as server:
        result = await ask(server)
    assert (result.outcome, result.output, len(server.requests)) == ("completed", WANTED, 2)
    assert [tool.name for tool in server.read().tools] == ["final_answer"]


async def test_a_schema_that_is_refused_says_nothing_of_others() -> None:
    refusal = WireFault(kind="bad_request", message="Invalid schema for response_format 'final_answer': too deep")
    with WireServer([refusal], dialect="openai") as server:
        provider = OpenAIProvider("stub", api_key=KEY, base_url=server.base_url)
        one, other = OutputType(Weather).spec.parameters, OutputType(int).spec.parameters
        request = ModelRequest(messages=[UserMessage(content="hi")], output_schema=one)
        try:
            with pytest.raises(NativeOutputUnsupported, match="too deep"):
                await provider.respond(request, lambda _: None)
        finally:
            await close(provider)
    assert (provider.native_output(one), provider.native_output(other)) == ("", "alone")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (WireFault(kind="bad_request", message="unknown model"), "provider_rejected"),
        (WireFault(kind="bad_request", message="Invalid schema for function 'x'"), "provider_rejected"),
        (WireFault(kind="unauthorised", message="no response_format for you"), "provider_rejected"),
        (WireFault(kind="loading", message="response_format is loaded", retry_after_seconds=0), "provider_unavailable"),
    ],
)
async def test_other_errors_stay_what_they_are(fault: WireFault, reason: str) -> None:
    with WireServer(lambda _: fault, dialect="openai") as server:
        result = await ask(server, limits=Limits(max_model_attempts=1))
    assert (result.outcome, result.reason, len(server.requests)) == ("failed", reason, 1)


async def test_a_server_that_is_away_is_unavailable() -> None:
    with WireServer() as server:
        url = f"{server.origin}/structured-outputs/grammar/v1"
    provider = MAKERS["openai"](url)
    try:
        async with Runtime(provider) as runtime:
            once = Limits(max_model_attempts=1)
            result = await runtime.start("Weather?", output=Weather, output_mode="native", limits=once).result()
    finally:
        await close(provider)
    assert (result.outcome, result.reason) == ("failed", "provider_unavailable")


# ------------------------------------------------------------------------------------------------- Groq's word for it


@pytest.mark.parametrize("in_stream", [False, True], ids=["status", "stream"])
async def test_json_that_the_server_itself_finds_invalid_is_a_wrong_answer_of_the_models(in_stream: bool) -> None:
    said = "Failed to validate JSON. Please adjust your prompt. See 'failed_generation' for more details."
    failed = {"message": said, "type": "invalid_request_error", "code": "json_validate_failed"}
    failed["failed_generation"] = '{"city": "Paris", "celsius": "warm"}'
    first = Reply(chunks=[{"error": failed}]) if in_stream else Reply(status=400, body={"error": failed})
    with OpenAIServer([first, text(PARIS)]) as server:
        provider = OpenAIProvider("stub", api_key=KEY, base_url=server.base_url)
        try:
            async with Runtime(provider) as runtime:
                result = await runtime.run("Weather in Paris?", output=Weather)
        finally:
            await close(provider)
    assert (result.outcome, result.output) == ("completed", WANTED)
    *_, wrong, reported = server.requests[1].messages
    assert wrong == {"role": "assistant", "content": '{"city": "Paris", "celsius": "warm"}'}
    assert "$.celsius" in reported["content"]
    assert "response_format" in server.requests[1].body
