"""Whoever listens late misses no fact and no text, with a journal and without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from toolbus import EventBus, RequestSession, Runtime, Tool, tool
from toolbus.errors import BusError, ConfigurationError
from toolbus.events import (
    Event,
    ModelResponded,
    ReasoningDelta,
    RequestCompleted,
    RequestStarted,
    TextDelta,
    ToolCallCompleted,
    ToolCallRequested,
)
from toolbus.messages import AssistantMessage
from toolbus.protocols import Emit, ModelReply, ModelRequest, ReasoningPiece, TextPiece
from toolbus.providers.scripted import ScriptedProvider, calls, text
from toolbus.stores.memory import MemoryStore
from toolbus.stores.sqlite import SqliteStore


@tool
def look_up(city: str) -> str:
    """Look up a city."""
    return f"{city} is sunny"


SCRIPT = [calls(("look_up", {"city": "Paris"}), text="Let me see."), text("It is sunny.", 3)]
"""The texts "Let me see." and "It is sunny.", in pieces, with a call between."""


def without_signals(events: list[Event]) -> list[Event]:
    return [each for each in events if each.is_fact]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("kinds", [(), (RequestStarted, ToolCallCompleted, RequestCompleted)], ids=["all", "some"])
async def test_who_listens_after_the_end_gets_the_same_facts(
    store: str, kinds: tuple[Any, ...], tmp_path: Path
) -> None:
    kept = MemoryStore() if store == "memory" else SqliteStore(tmp_path / "toolbus.db")
    async with Runtime(ScriptedProvider(SCRIPT), tools=[look_up], store=kept) as runtime:
        session = runtime.start("How is Paris?")
        heard = [each async for each in session.events(*kinds)]
        await session.result()
        assert [each async for each in session.events(*kinds)] == without_signals(heard)
        assert [each async for each in session.events(*kinds, after="now")] == []
        assert "".join([piece async for piece in session.text()]) == "Let me see.\n\nIt is sunny."
    assert isinstance(heard[0], RequestStarted)
    assert isinstance(heard[-1], RequestCompleted)


@pytest.mark.parametrize("where", ["session", "handle"])
async def test_events_that_were_closed_give_no_more(where: str) -> None:
    async with Runtime(ScriptedProvider(SCRIPT), tools=[look_up]) as runtime:
        session = runtime.start("How is Paris?")
        await session.result()
        read = session if where == "session" else runtime.request(session.request_id)
        events, pieces = read.events(), read.text()
        assert isinstance(await anext(events), RequestStarted)
        assert await anext(pieces)
        await events.aclose()
        await pieces.aclose()
        assert ([each async for each in events], [each async for each in pieces]) == ([], [])
        assert isinstance(await anext(session.events(after=events.cursor)), Event)


class Streams:
    """A model whose answer stops after its first two pieces, until `goes_on`."""

    vendor = "streams"

    def __init__(self) -> None:
        self.waits = anyio.Event()
        self.goes_on = anyio.Event()

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        for piece in ("One, ", "two, "):
            emit(TextPiece(piece))
        self.waits.set()
        await self.goes_on.wait()
        emit(TextPiece("three."))
        return ModelReply(message=AssistantMessage(text="One, two, three."))


async def test_who_comes_in_mid_reply_gets_the_text_so_far_and_then_its_pieces() -> None:
    model = Streams()
    session = RequestSession(EventBus(), model, "Count.")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.run)
        await model.waits.wait()
        late, new = session.text(), session.events(after="now")
        model.goes_on.set()
        assert [piece async for piece in late] == ["One, two, ", "three."]
        assert [type(each) for each in [each async for each in new]][:2] == [TextDelta, ModelResponded]


async def test_who_comes_in_mid_reply_gets_the_reasoning_so_far_before_the_text() -> None:
    """A page that was loaded while the model thought had the end of its reasoning, and then all of it below the text."""

    class Thinks(Streams):
        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            emit(ReasoningPiece("Let me "))
            emit(ReasoningPiece("count. "))
            return await super().respond(request, emit)

    model = Thinks()
    async with Runtime(model) as runtime:
        session = runtime.start("Count.")
        await model.waits.wait()
        readers = [session.events(), runtime.request(session.request_id).events(), session.events(after="3.0")]
        back = session.events(after="3.5.7")  # It has some of both.
        model.goes_on.set()
        for reader in readers:
            pieces = [each for each in [each async for each in reader] if isinstance(each, (ReasoningDelta, TextDelta))]
            assert [each.text for each in pieces] == ["Let me count. ", "One, two, ", "three."]
        pieces = [each for each in [each async for each in back] if isinstance(each, (ReasoningDelta, TextDelta))]
        assert [each.text for each in pieces] == ["count. ", "two, ", "three."]
        assert {reader.cursor.count(".") for reader in readers} == {1}, "a reply that is whole has no reasoning to come"


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_who_comes_right_after_two_answers_hears_each_once(store: str, tmp_path: Path) -> None:
    ask: Tool = Tool(name="ask", description="Ask outside.", schema={"type": "object"}, external=True)
    kept = MemoryStore() if store == "memory" else SqliteStore(tmp_path / "toolbus.db")
    model = ScriptedProvider([calls(("ask", {}), ("ask", {})), text("Good.")])
    async with Runtime(model, tools=[ask], store=kept) as runtime:
        session = runtime.start("Ask.")
        async with session.events(ToolCallRequested) as requests:
            requested = [await anext(requests), await anext(requests)]
        for each in requested:
            assert session.inject(each.completed("yes"))
        # Nobody has run since, so the session has not taken the answers yet.
        heard = [each async for each in session.events()]
        again = [each async for each in session.events()]
    for events in (heard, again):
        assert [each.content for each in events if isinstance(each, ToolCallCompleted)] == ["yes", "yes"]
    assert without_signals(heard) == without_signals(again)


async def test_every_moment_of_a_request_is_early_enough() -> None:
    """A reader who subscribes at any event of the request ends with all of its facts, each once, in order."""
    async with Runtime(ScriptedProvider(SCRIPT), tools=[look_up]) as runtime:
        readers: list[Any] = []
        session = runtime.start("How is Paris?")
        runtime.bus.connect(Event, lambda event: readers.append(session.events()) if event.is_fact else None)
        await session.result()
        facts = [each async for each in session.events()]
        assert len(readers) > 8
        for reader in readers:
            assert without_signals([each async for each in reader]) == facts


async def test_a_request_that_was_left_has_not_ended_here_and_its_result_can_be_had_where_it_ends(
    tmp_path: Path,
) -> None:
    path = tmp_path / "toolbus.db"
    waiting, answers = Streams(), ScriptedProvider([text("Hello.")])
    async with Runtime(waiting, store=SqliteStore(path), drain_seconds=0) as runtime:
        left = runtime.start("Hi")
        await waiting.waits.wait()
        await runtime.drain()
        assert (await left.result()).resumable
        assert runtime.session(left.request_id) is None
        async with Runtime(answers, store=SqliteStore(path)) as other:
            (resumed,) = await other.resume()
            result = await resumed.result()
            assert await other.request(left.request_id).result() == result


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_a_reader_who_comes_back_with_its_cursor_gets_the_facts_that_it_has_not(
    store: str, tmp_path: Path
) -> None:
    kept = MemoryStore() if store == "memory" else SqliteStore(tmp_path / "toolbus.db")
    async with Runtime(ScriptedProvider(SCRIPT), tools=[look_up], store=kept) as runtime:
        session = runtime.start("How is Paris?")
        heard: list[tuple[str, Event]] = [("", Event())]
        events = session.events()
        heard += [(events.cursor, each) async for each in events]
        await session.result()
        for index, (cursor, _) in enumerate(heard):
            missed = without_signals([each for _, each in heard[index + 1 :]])
            again = session.events(after=cursor)
            assert [each async for each in again] == missed
            assert again.cursor == heard[-1][0]


async def test_a_reader_who_comes_back_in_mid_reply_gets_the_rest_of_its_text() -> None:
    model = Streams()
    async with Runtime(model) as runtime:
        session = runtime.start("Go.")
        events = session.events()
        async for event in events:
            if isinstance(event, TextDelta):
                break
        first, cursor = event, events.cursor
        await model.waits.wait()
        again = session.events(after=cursor)
        pieces: list[str] = []
        async for event in again:
            pieces += [event.text] if isinstance(event, TextDelta) else []
            if pieces and not model.goes_on.is_set():
                model.goes_on.set()
        result = await session.result()
    assert isinstance(first, TextDelta)
    assert first.text + "".join(pieces) == result.text


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_a_reader_who_has_everything_and_comes_back_gets_nothing_more(store: str, tmp_path: Path) -> None:
    """A browser's `EventSource` comes back with the last id whenever a stream ends."""
    kept = MemoryStore() if store == "memory" else SqliteStore(tmp_path / "toolbus.db")
    async with Runtime(ScriptedProvider(SCRIPT), tools=[look_up], store=kept) as runtime:
        request_id = (await runtime.run("How is Paris?")).request_id
        events = runtime.request(request_id).events()
        assert [each async for each in events]
        assert [each async for each in runtime.request(request_id).events(after=events.cursor)] == []
        assert [each async for each in runtime.request(request_id).events(after="now")] == []


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ("", "a cursor"),
        ("17", 'after is \'17\'; pass a cursor of `events()`, such as "17.250", or "now"'),
        ("-1.0", "pass a cursor"),
        ("1.0.0.0", "pass a cursor"),
        ("99.0", "the cursor 99.0 is not one of request"),
    ],
)
async def test_a_wrong_cursor_is_refused_with_what_to_give(after: str, words: str) -> None:
    async with Runtime(ScriptedProvider([text("Hello.")])) as runtime:
        session = runtime.start("Go.")
        await session.result()
        if not after:
            for events in (session.events(RequestStarted), session.events(after="now")):
                with pytest.raises(BusError, match="has no cursor; read all events"):
                    events.cursor  # noqa: B018 -- it raises
            return
        with pytest.raises(ConfigurationError) as raised:
            [each async for each in session.events(after=after)]
        assert words in str(raised.value)
