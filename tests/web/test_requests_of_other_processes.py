"""A page that is served by another process than the one that runs its request: shown, asked and answered as here."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from test_responses import Client, texts_of
from ui_grammar import check_vercel

from toolbus import Runtime, Tool, tool
from toolbus.providers.scripted import ScriptedProvider, calls, text
from toolbus.stores.sqlite import SqliteStore
from toolbus.web import EventsResponse, TextResponse, VercelResponse, read_vercel


@tool(needs_approval=True)
async def remove(path: str) -> str:
    """Remove a file."""
    return f"removed {path}"


LOCATE: Tool = Tool(name="locate", description="Ask.", schema={"type": "object"}, external=True)


def worker(path: Path) -> Runtime:
    script = [calls(("remove", {"path": "/a"}), ("locate", {}), text="May I?"), text("It is gone.")]
    model = ScriptedProvider(lambda request: script[request.round])
    return Runtime(model, tools=[remove, LOCATE], store=SqliteStore(path), on_approval="wait")


@pytest.mark.parametrize("backend", ["here", "elsewhere"])
async def test_a_page_is_shown_and_answers_in_any_process(backend: str, tmp_path: Path):
    path = tmp_path / "toolbus.db"
    async with worker(path) as one, worker(path) as two:
        session = one.start("Remove it.")
        await session.accepted()
        handle = (one if backend == "here" else two).request(session.request_id)
        with anyio.fail_after(60):
            asked = await Client().read(VercelResponse(handle, client_tools=["locate"]))
            before = check_vercel(asked.chunks)
            (question,) = [each for each in asked.chunks if each["type"] == "tool-approval-request"]
            parts = [
                {
                    "type": "dynamic-tool",
                    "toolCallId": question["toolCallId"],
                    "state": "approval-responded",
                    "approval": {"id": question["approvalId"], "approved": True},
                },
                {
                    "type": "tool-locate",
                    "toolCallId": f"{session.request_id}_0_1",
                    "state": "output-available",
                    "output": "Kyiv",
                },
            ]
            body = {"id": "chat", "messages": [{"role": "assistant", "parts": parts}]}
            incoming = read_vercel(json.dumps(body))
            assert incoming.request_id == session.request_id
            assert await incoming.answer(handle, client_tools=["locate"], by="Ann") == 2
            rest = await Client().read(VercelResponse(handle, client_tools=["locate"], answered=incoming.answered))
            after = check_vercel(rest.chunks, known=[question["toolCallId"], f"{session.request_id}_0_1"])
            result = await session.result()
            events = await Client().read(EventsResponse(handle))
            words = await Client().read(TextResponse(handle))
            known = [
                await Client(last_event_id=each.frames[-1]["id"]).read(EventsResponse(handle))
                for each in (events, words)
            ]
    assert [*before.values(), *after.values()] == ["May I?", "It is gone."]
    assert [each.content for each in result.tool_calls] == ["removed /a", "Kyiv"]
    assert list(texts_of(events.frames).values()) == ["May I?", "It is gone."]
    assert words.text == "May I?\n\nIt is gone."
    assert [each.status for each in known] == [204, 204]
