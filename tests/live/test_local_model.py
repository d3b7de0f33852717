"""A real model on real servers: three APIs, each by the adapter of the vendor that it imitates. Opt-in: `-m live`.

llama.cpp's server is started here, and the first run downloads 130 MB. vLLM's is asked if `VLLM_BASE_URL` names one that
runs: see `smollm2_for_vllm.py`. Ollama is asked if `TOOLBUS_LIVE_OLLAMA_MODEL` is "smollm2", also by its own API: see
`smollm2_for_ollama.py`. A model of this size says strange things, but the same ones each time: with
`temperature=0` it always takes the likeliest word.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from local_model import CONTEXT_TOKENS, PARALLEL, LocalModel
from pydantic import BaseModel

from toolbus import Limits, Runtime, Tool, tool
from toolbus.errors import ContextOverflow
from toolbus.events import Event, ModelRetrying, TextDelta, ToolArgumentsDelta
from toolbus.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from toolbus.protocols import ModelSettings, Provider
from toolbus.providers import AnthropicProvider, OllamaProvider, OpenAIProvider
from toolbus.providers.ollama._client import host_url

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
NO_CHANCE = ModelSettings(max_output_tokens=60, temperature=0.0)


@dataclass
class Server:
    """A server with the model: its vendor's name, its URL without a path, and the API that only some tests use."""

    vendor: str
    url: str
    api: str = "chat"


def _ollama(server: Server) -> Provider:
    if server.vendor != "ollama":
        pytest.skip("only Ollama has this API")
    return OllamaProvider("smollm2", host=server.url, context_tokens=CONTEXT_TOKENS)


APIS: dict[str, Callable[[Server], Provider]] = {
    "chat": lambda server: OpenAIProvider("smollm2", vendor=server.vendor, base_url=f"{server.url}/v1"),
    "responses": lambda server: OpenAIProvider("smollm2", api="responses", api_key="none", base_url=f"{server.url}/v1"),
    "messages": lambda server: AnthropicProvider("smollm2", api_key="none", base_url=server.url),
    "ollama": _ollama,
}
RUNNING: dict[str, Server] = {}
if url := os.environ.get("VLLM_BASE_URL", "").removesuffix("/v1"):
    RUNNING["vllm"] = Server("vllm", url)
if os.environ.get("TOOLBUS_LIVE_OLLAMA_MODEL") == "smollm2":
    RUNNING["ollama"] = Server("ollama", host_url(os.environ.get("OLLAMA_HOST", ""), option="OLLAMA_HOST"), "ollama")


@pytest.fixture(scope="module", params=["llamacpp", *RUNNING])
def server(request: pytest.FixtureRequest) -> Generator[Server]:
    if request.param in RUNNING:
        yield RUNNING[request.param]
        return
    running = LocalModel()
    yield Server("llamacpp", running.url)
    running.close()


@asynccontextmanager
async def asking(
    server: Server, api: str = "", *, tools: Sequence[Tool] = (), settings: ModelSettings = NO_CHANCE
) -> AsyncGenerator[Runtime]:
    """A runtime that asks the model by one of the APIs, or by the server's own."""
    provider: Any = APIS[api or server.api](server)
    try:
        async with Runtime(provider, tools=tools, settings=settings) as runtime:
            yield runtime
    finally:
        await provider.aclose()


@tool
async def get_weather(city: str) -> str:
    """Current weather in a city."""
    return f"21 degrees in {city}"


def earlier_turns() -> list[Message]:
    """A history in which the model has called the tool, and has repeated what it said."""
    turns: list[Message] = []
    for number, city in enumerate(["Rome", "Berlin", "Oslo"]):
        call = ToolCall(name="get_weather", arguments=f'{{"city": "{city}"}}', call_id=f"h{number}")
        turns += [
            UserMessage(content=f"Weather in {city}?"),
            AssistantMessage(tool_calls=(call,)),
            ToolMessage(call_id=f"h{number}", name="get_weather", content=f"{number + 3} degrees in {city}"),
            AssistantMessage(text=f"It is {number + 3} degrees in {city}."),
        ]
    return turns


@pytest.mark.parametrize("api", APIS)
async def test_a_real_model_calls_a_tool_and_reads_its_result(api: str, server: Server) -> None:
    heard: list[Event] = []
    async with asking(server, api, tools=[get_weather]) as runtime:
        session = runtime.start("Weather in Paris?", history=earlier_turns())
        async with session.events() as events:
            async for event in events:
                heard.append(event)
        result = await session.result()
    assert (result.outcome, result.text) == ("completed", "It is 21 degrees in Paris.")
    assert [(each.name, each.arguments, each.content) for each in result.tool_calls] == [
        ("get_weather", {"city": "Paris"}, "21 degrees in Paris")
    ]
    assert "".join(each.text for each in heard if isinstance(each, TextDelta)) == result.text
    assert "Paris" in "".join(each.text for each in heard if isinstance(each, ToolArgumentsDelta))
    assert result.usage.input_tokens > 300
    assert result.usage.output_tokens > 20


class Place(BaseModel):
    """A city."""

    name: Literal["Paris", "Rome"]
    country: Literal["France", "Italy"]


async def test_the_server_holds_a_real_model_to_a_schema(server: Server) -> None:
    async with asking(server) as runtime:
        result = await runtime.run("The capital of France", output=Place, output_mode="native")
    assert type(result.output) is Place


async def test_a_prompt_beyond_the_window_is_refused_with_the_servers_numbers(server: Server) -> None:
    async with asking(server) as runtime:
        result = await runtime.start("word " * 9_000).result()
    assert isinstance(result.error, ContextOverflow)
    assert str(CONTEXT_TOKENS) in str(result.error)


async def test_a_long_conversation_is_shortened_after_the_server_has_refused_it(server: Server) -> None:
    turns: list[Message] = []
    for number in range(60):
        turns += [UserMessage(content=f"Remember {number}: " + "word " * 100), AssistantMessage(text="I do.")]
    heard: list[ModelRetrying] = []
    async with asking(server) as runtime:
        runtime.bus.connect(ModelRetrying, heard.append)
        result = await runtime.run("Say hello.", history=turns)
    assert result.outcome == "completed"
    assert [each.reason for each in heard] == ["context_overflow"]


async def test_no_request_is_asked_again_because_the_server_closes_its_connections(server: Server) -> None:
    heard: list[ModelRetrying] = []
    short = ModelSettings(max_output_tokens=3, temperature=0.0)
    async with asking(server, settings=short) as runtime:
        runtime.bus.connect(ModelRetrying, heard.append)
        for number in range(40):
            result = await runtime.run(f"Say {number}.", limits=Limits(max_model_attempts=2))
            assert result.usage.output_tokens == 3
    assert heard == []


async def test_the_server_stops_writing_for_a_request_that_was_cancelled(server: Server) -> None:
    endless: Any = ModelSettings(max_output_tokens=3_000, temperature=0.0, extra_body={"ignore_eos": True})
    async with asking(server, settings=endless) as runtime:
        async with runtime.bus.subscribe(TextDelta) as pieces:
            sessions = [runtime.start(f"Count from {number}.") for number in range(2 * PARALLEL)]
            await anext(aiter(pieces))
        for each in sessions:
            each.cancel("enough")
        assert [(await each.result()).outcome for each in sessions] == ["cancelled"] * 2 * PARALLEL
        result = await runtime.run("Say hello.", settings=NO_CHANCE)
    assert result.outcome == "completed"
