"""A conversation is the same over every store: what a later turn sends is what the earlier ones were, tools and all."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from toolbus import Runtime, ToolError, tool
from toolbus.events import Artifact
from toolbus.messages import AssistantMessage, ImagePart, Message, ToolMessage, UserMessage, to_openai
from toolbus.storage import Entry, Store
from toolbus.stores import _encoding, _threaded_store
from toolbus.stores.memory import MemoryStore
from toolbus.stores.sqlite import SqliteStore
from toolbus.testing import ScriptedProvider, calls, text
from toolbus.tool_results import ToolResult

Opened: TypeAlias = Callable[[], Store]

PIXEL = ImagePart.from_bytes(b"\x89PNG\r\n\x1a\n", "image/png")


@tool
async def find_tickets(project: str) -> list[dict[str, Any]]:
    """Find tickets."""
    return [{"id": f"{project}-{number}", "title": "Füße kalt 🥶"} for number in range(3)]


@tool
async def close_ticket(ticket: str) -> str:
    """Close a ticket."""
    raise ToolError(f"{ticket} is closed already")


@tool
async def read_log() -> str:
    """Read the log."""
    return "line\n" * 30_000


SCRIPT = [
    calls(("find_tickets", {"project": "X"}), ("close_ticket", {"ticket": "X-1"}), ("read_log", {})),
    text("Three tickets; X-1 is closed already."),
]


async def talk(opened: Opened) -> tuple[list[Message], list[Message]]:
    """Two turns by two runtimes; what the first has left, and what the second has sent in front of its prompt."""
    tools = [find_tickets, close_ticket, read_log]
    async with Runtime(ScriptedProvider(SCRIPT), tools=tools, store=opened()) as runtime:
        first = await runtime.run(["What of project X?", PIXEL], conversation_id="c1")
        assert first.ok, first.reason
    script = ScriptedProvider([text("Still three.")])
    async with Runtime(script, tools=tools, store=opened(), max_result_chars=1_000_000) as runtime:
        second = await runtime.run("And now?", conversation_id="c1")
        assert second.ok, second.reason
        assert (found := await runtime.store.conversations(search="füße KALT"))
        assert (found[0].conversation_id, found[0].title, found[0].message_count) == ("c1", "What of project X?", 8)
    return first.messages, list(script.requests[0].messages)[:-1]


def check(first: list[Message], sent: list[Message]) -> None:
    assert sent == first
    results = [message for message in sent if isinstance(message, ToolMessage)]
    assert [each.is_error for each in results] == [False, True, False]
    assert len(results[2].content) == 150_000
    assert [each["role"] for each in to_openai(sent)] == ["user", "assistant", "tool", "tool", "tool", "assistant"]


async def test_in_memory() -> None:
    store = MemoryStore()
    check(*await talk(lambda: store))


async def test_in_sqlite(tmp_path: Path) -> None:
    check(*await talk(lambda: SqliteStore(tmp_path / "toolbus.db")))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # its threads are those of SQLite's store
async def test_in_postgresql(postgres_url: str) -> None:
    from toolbus.stores.postgres import PostgresStore

    check(*await talk(lambda: PostgresStore(postgres_url)))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # its threads are those of SQLite's store
async def test_in_mongodb(mongo_database: tuple[str, str]) -> None:
    from toolbus.stores.mongo import MongoStore

    url, name = mongo_database
    check(*await talk(lambda: MongoStore(url, name)))


def watched_encoding(patch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each entry of a journal was encoded in the event loop, from now on."""
    are_in_loop: list[bool] = []
    encoded = _encoding.written

    def watched(entry: Entry) -> Any:
        are_in_loop.append(threading.current_thread() is threading.main_thread())
        return encoded(entry)

    patch.setattr(_threaded_store, "written", watched)
    return are_in_loop


async def test_the_messages_of_a_long_history_are_not_encoded_in_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    are_in_loop = watched_encoding(monkeypatch)
    history = [UserMessage(content="question " * 100_000), AssistantMessage(text="answer " * 100_000)]
    async with Runtime(ScriptedProvider([text("ok")]), store=SqliteStore(tmp_path / "store.db")) as runtime:
        result = await runtime.run("And now?", history=history)
        stored = await runtime.store.history(result.conversation_id)
    assert (are_in_loop[0], are_in_loop[-1]) == (False, False)  # the beginning has the history, and the ending the turn
    assert list(stored[:2]) == history


@pytest.mark.parametrize(
    ("result", "reply", "in_threads"),
    [
        ("short", "short", 0),
        ("a" * (2**20 + 1), "short", 2),  # the result, and the turn
        ("short", "a" * (2**20 + 1), 2),  # the reply, and the turn
        (ToolResult(message="short", artifacts=[Artifact(name="whole", content="a" * 2**20)]), "short", 1),
    ],
    ids=["short", "result", "reply", "artifact"],
)
async def test_long_results_and_replies_are_not_encoded_in_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: Any, reply: str, in_threads: int
) -> None:
    @tool
    async def read() -> Any:
        """Read it."""
        return result

    are_in_loop = watched_encoding(monkeypatch)
    script = ScriptedProvider([calls(("read", {}), text=reply), text("ok")])
    async with Runtime(script, tools=[read], store=SqliteStore(tmp_path / "store.db")) as runtime:
        await runtime.run("And now?", conversation_id="c1")
    assert are_in_loop.count(False) == in_threads
