"""The same conversation gives the same events, whoever plays the model: a script, or a real server over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support import openai_server
from support.openai_server import OpenAIServer
from toolbus import EventBus, Runtime
from toolbus.events import Event, ModelResponded, RequestCompleted, TextDelta, ToolArgumentsDelta, ToolCallRequested
from toolbus.providers import OpenAIProvider
from toolbus.testing import ScriptedProvider, calls, text
from toolbus.toolsets.workspace import workspace_tools

SRC = Path(__file__).parent.parent.parent / "src"
SEARCH = ("search_text", {"query": "max_rounds: int", "glob": "**/limits.py"})
LIST = ("list_files", {"glob": "**/core/*.py"})
READ = ("read_lines", {"path": "toolbus/core/limits.py", "start": 17, "end": 120})
ANSWER = "toolbus/core/limits.py says: max_rounds is 10."


async def heard(provider: Any) -> list[Event]:
    bus = EventBus()
    events: list[Event] = []
    bus.connect(Event, events.append)
    async with Runtime(provider, tools=workspace_tools(SRC), bus=bus) as runtime:
        result = await runtime.run("Which limits stop a request, and what are their defaults?")
    assert (result.outcome, result.text) == ("completed", ANSWER)
    assert all(call.ok for call in result.tool_calls)
    assert "max_rounds: int = 10" in result.tool_calls[2].content
    return events


def shape(events: list[Event]) -> list[tuple[Any, ...]]:
    """What is the same whoever answers: facts in order, with what they say and without ids, times and tokens."""
    reported: list[tuple[Any, ...]] = []
    for event in events:
        if isinstance(event, ToolCallRequested):
            reported.append((event.type, event.name, event.arguments, event.round))
        elif isinstance(event, ModelResponded):
            reported.append((event.type, event.round, event.message.text, len(event.message.tool_calls)))
        elif isinstance(event, RequestCompleted):
            reported.append((event.type, event.outcome, event.text))
        elif event.is_fact and not event.type.startswith("tool_call_c"):  # these come in the order in which tools end
            reported.append((event.type,))
    return reported


async def test_a_server_that_splits_arguments_across_chunks_gives_the_events_of_the_script() -> None:
    scripted = await heard(ScriptedProvider([calls(SEARCH, LIST), calls(READ), text(ANSWER)]))
    replies = [openai_server.calls(SEARCH, LIST), openai_server.calls(READ), openai_server.text(ANSWER)]
    with OpenAIServer(replies) as server:
        provider = OpenAIProvider("test-model", api_key="k", base_url=server.base_url)
        try:
            streamed = await heard(provider)
        finally:
            await provider.aclose()
    assert shape(streamed) == shape(scripted)
    for events in (scripted, streamed):
        assert "".join(event.text for event in events if isinstance(event, TextDelta)) == ANSWER
        pieces = [event for event in events if isinstance(event, ToolArgumentsDelta)]
        assert len(pieces) > 3, "the arguments come in several pieces"
    assert [message["role"] for message in server.requests[2].messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "tool",
    ]
