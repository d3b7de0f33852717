"""The same scripted request gives the same facts, whatever the wire format and the provider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from toolbus import EventBus, Runtime, tool
from toolbus.errors import ToolError
from toolbus.events import Event, ModelResponded, ReasoningDelta, TextDelta, ToolArgumentsDelta
from toolbus.messages import Usage
from toolbus.protocols import Provider
from toolbus.providers import OpenAIProvider
from toolbus.providers.anthropic import AnthropicProvider
from toolbus.providers.ollama import OllamaProvider
from toolbus.records import Record
from toolbus.testing import ScriptedProvider, WireServer, calls, text
from toolbus.testing.wire import DIALECTS

KEY = "sk-not-a-real-key"
ANSWER = "Zürich: 21 °C 😀. Nobody knows 東京."
USAGE = Usage(input_tokens=100, output_tokens=20)

SCRIPT = [
    calls(
        ("get_weather", {"city": "Zürich"}),
        ("get_weather", {"city": "東京"}),
        ("get_time", {}),
        text="One moment.",
        reasoning="Three things to look up: 😀…",
        usage=USAGE,
    ),
    calls(("get_weather", {"city": "東京", "try_harder": True}), usage=USAGE, reasoning="Again, harder."),
    text(ANSWER, pieces=["Zürich: ", "21 °C 😀", ". Nobody knows 東京."], usage=USAGE),
]
"""Three rounds: calls in parallel, one of which fails; one that breaks its schema; the answer."""


@tool
async def get_weather(city: str) -> dict[str, Any]:
    """Current weather in a city."""
    if city == "東京":
        raise ToolError(f"there is no station in {city} 🗼")
    return {"city": city, "celsius": 21, "sky": "Föhn"}


@tool(sequential=True)
async def get_time() -> str:
    """The time now."""
    return "12:00"


MAKERS: dict[str, Callable[[str], Provider]] = {
    "openai": lambda url: OpenAIProvider("stub", api_key=KEY, base_url=url),
    "responses": lambda url: OpenAIProvider("stub", api="responses", api_key=KEY, base_url=url),
    "anthropic": lambda url: AnthropicProvider("stub", api_key=KEY, base_url=url),
    "ollama": lambda url: OllamaProvider("stub", host=url),
}


async def heard(provider: Provider) -> list[Event]:
    """All that happens on the bus in one request."""
    bus = EventBus()
    events: list[Event] = []
    bus.connect(Event, events.append)
    async with Runtime(provider, tools=[get_weather, get_time], bus=bus, instructions="Be brief. 短く!") as runtime:
        result = await runtime.run("Wie ist das Wetter in Zürich, and in 東京?")
    assert (result.outcome, result.text) == ("completed", ANSWER)
    assert [call.ok for call in result.tool_calls] == [True, False, True, False]
    return events


async def heard_over(dialect: str) -> tuple[list[Event], WireServer]:
    with WireServer(SCRIPT, dialect=dialect) as server:
        provider: Any = MAKERS[dialect](server.base_url)
        try:
            return await heard(provider), server
        finally:
            await provider.aclose()


VARIES = frozenset(
    {"at", "conversation_id", "duration_seconds", "event_id", "model", "provider_call_id", "vendor", "vendor_data"}
)
"""Times, the provider's own ids and names, and what only it reads. Ids of calls and messages are made from places, so
they agree."""


def plain(value: Any, request_id: str) -> Any:
    """A fact's value, without what differs from one request to the next."""
    if isinstance(value, Record):
        names = [name for name in value.__struct_fields__ if name not in VARIES]
        return (type(value).__name__, *((name, plain(getattr(value, name), request_id)) for name in names))
    if isinstance(value, str):
        return value.replace(request_id, "R")
    if isinstance(value, dict):
        return sorted((name, plain(each, request_id)) for name, each in value.items())  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, (list, tuple)):
        return [plain(each, request_id) for each in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def facts(events: list[Event]) -> list[Any]:
    """The facts, in order, each with all that it says."""
    reported = [event for event in events if event.is_fact]
    place = 0
    while place < len(reported):  # calls of a round end in any order
        end = place
        while end < len(reported) and reported[end].type in {
            "tool_call_started",
            "tool_call_completed",
            "tool_call_failed",
        }:
            end += 1
        reported[place:end] = sorted(reported[place:end], key=lambda event: (event.type, getattr(event, "call_id", "")))
        place = end + 1
    return [plain(event, event.request_id) for event in reported]


def joined(events: list[Event], kind: type[TextDelta | ReasoningDelta]) -> str:
    return "|".join(event.text for event in events if isinstance(event, kind))


@pytest.mark.parametrize("dialect", MAKERS)
async def test_the_same_three_rounds_give_the_same_facts_whatever_the_provider(dialect: str) -> None:
    scripted = await heard(ScriptedProvider(SCRIPT))
    streamed, server = await heard_over(dialect)
    assert facts(streamed) == facts(scripted)
    assert joined(streamed, TextDelta).replace("|", "") == joined(scripted, TextDelta).replace("|", "")
    assert joined(streamed, ReasoningDelta).replace("|", "") == joined(scripted, ReasoningDelta).replace("|", "")
    assert len(joined(streamed, TextDelta).split("|")) > 4, "the text came in pieces"
    if "split_arguments" not in DIALECTS[dialect].lacks:
        assert len([event for event in streamed if isinstance(event, ToolArgumentsDelta)]) > 6
    assert {event.vendor for event in streamed if isinstance(event, ModelResponded)} == {
        MAKERS[dialect]("http://x").vendor
    }
    assert [server.read(number).problems for number in range(3)] == [(), (), ()]


async def test_the_same_three_rounds_send_the_same_conversation_whatever_the_provider() -> None:
    """What the model reads before its answer: the same words, calls and results on every wire."""
    read: dict[str, Any] = {}
    for dialect in MAKERS:
        _, server = await heard_over(dialect)
        last = server.read()
        read[dialect] = (
            [tool.name for tool in last.tools],
            [(message.role, said(message)) for message in last.messages],
        )
    assert read["openai"] == read["responses"] == read["anthropic"] == read["ollama"]
    assert [role for role, _ in read["openai"][1]] == [
        "system", "user", "assistant", "tool", "tool", "tool", "assistant", "tool",
    ]  # fmt: skip


def said(message: Any) -> Any:
    if message.role == "assistant":
        return (message.text, [(call.name, call.arguments.replace(" ", "")) for call in message.tool_calls])
    if message.role == "user":
        parts = message.content
        return parts if isinstance(parts, str) else "".join(part.text for part in parts)
    return message.text if message.role == "system" else (message.name, message.content)
