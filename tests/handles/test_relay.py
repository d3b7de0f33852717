"""A relay between processes: events come as they happen, commands are taken at once, and what is lost comes later."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import anyio
import msgspec
import pytest

from support.journaled import late_answers
from support.local_relay import LocalRelay
from support.resuming import Lab, virtual_walls
from toolbus import Runtime
from toolbus.errors import ConfigurationError
from toolbus.events import (
    Event,
    ModelResponded,
    ReasoningDelta,
    RequestCompleted,
    RequestResumed,
    StatusChanged,
    TextDelta,
    ToolCallCompleted,
    ToolCallRequested,
    encode,
)
from toolbus.handles import Exchange, RequestHandle
from toolbus.protocols import Emit, ModelReply, ModelRequest, ReasoningPiece
from toolbus.remote import Client
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, advance, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()
wall = virtual_walls()
pytestmark = pytest.mark.guarantee("G32")

SPOKEN = "One two three four five six seven eight nine ten."
FORGED = encode(TextDelta(request_id="another", message_id="m", text="forged"))


class SlowRelay(LocalRelay):
    """Takes a second for each message."""

    async def send(self, address: str, body: bytes) -> None:
        await anyio.sleep(1)
        await super().send(address, body)


def spoken() -> Any:
    """A reply of ten words, one a second."""
    pieces = [f"{word} " for word in SPOKEN.split()[:-1]] + ["ten."]
    return text(SPOKEN, pieces, delays=1.0)


def node(
    store: MemoryStore, relay: LocalRelay | None, *replies: Any, lab: Lab | None = None, **options: Any
) -> Runtime:
    lab = lab or Lab()
    model = ScriptedProvider(lambda request: replies[request.round])
    tools = [lab.tool("wipe", 1, needs_approval=True), lab.tool("look", 20, idempotent=True)]
    return Runtime(model, tools=tools, store=store, relay=relay, lease_seconds=30, on_approval="wait", **options)


async def read(handle: RequestHandle, into: list[Event], after: str = "") -> None:
    async for event in handle.events(after=after):
        into.append(event)


async def test_pieces_of_text_come_to_another_process_as_they_are_said() -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    async with node(store, relay, spoken()) as runtime, node(store, relay) as other:
        session = runtime.start("go")
        await settle()
        heard: list[str] = []

        async def listen() -> None:
            async for piece in other.request(session.request_id).text():
                heard.append(piece)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            await advance(3.5)
            assert "".join(heard) == "One two three "
            await advance(2)
            assert "".join(heard) == "One two three four five "
            await advance(10)
        assert "".join(heard) == SPOKEN


async def test_a_reader_that_comes_in_the_middle_of_a_reply_gets_the_text_so_far_and_comes_back_at_any_place() -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    async with node(store, relay, spoken()) as runtime, node(store, relay) as other:
        session = runtime.start("go")
        cursor, heard = "", ""
        for _ in range(12):
            await advance(1)
            reads = other.request(session.request_id).events(after=cursor)
            with anyio.move_on_after(0.5):
                async for event in reads:
                    heard += event.text if isinstance(event, TextDelta) else ""
                    # Between two readings, the rest of the text may have become a fact.
                    heard = event.message.text if isinstance(event, ModelResponded) else heard
            cursor = reads.cursor
            reads.close()
        assert heard == SPOKEN
        await settle()
        exchange: Any = runtime._link.exchange  # pyright: ignore[reportPrivateUsage]
        assert not exchange._served


async def test_a_reader_that_comes_while_the_model_reasons_gets_the_reasoning_so_far_and_comes_back() -> None:
    """A page of another process had the end of the reasoning, and then all of it below the text."""

    class Thinks(ScriptedProvider):
        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            for piece in ("Let ", "me ", "count. "):
                emit(ReasoningPiece(piece))
                await anyio.sleep(1)
            return await super().respond(request, emit)

    relay, store = LocalRelay(), MemoryStore(journal=True)
    async with Runtime(Thinks([spoken()]), store=store, relay=relay) as runtime, node(store, relay) as other:
        session = runtime.start("go")
        await advance(1.5)
        heard: list[Event] = []
        reads = other.request(session.request_id).events()
        with anyio.move_on_after(1):
            async for event in reads:
                heard.append(event)
        reads.close()
        await advance(2)
        await read(other.request(session.request_id), heard, reads.cursor)
    reasoning = [each.text for each in heard if isinstance(each, ReasoningDelta)]
    assert reasoning == ["Let me ", "count. "]


async def test_events_of_a_request_are_sent_only_while_somebody_reads_them() -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    async with node(store, relay, spoken()) as runtime, node(store, relay) as other:
        session = runtime.start("go")
        await advance(3)
        assert relay.sent == []
        with anyio.move_on_after(2):
            await read(other.request(session.request_id), [])
        await advance(1)
        # The reader of this test gives up without closing its events, as a process that dies would.
        await advance(60)
        assert (await session.result()).text == SPOKEN
        exchange: Any = runtime._link.exchange  # pyright: ignore[reportPrivateUsage]
        assert not exchange._served


async def test_readers_in_other_processes_leave_no_subscriptions_of_a_request_that_still_waits() -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    async with node(store, relay, calls(("wipe", {"n": 1})), text("Done.")) as runtime, node(store, relay) as other:
        session = runtime.start("go")
        await settle()
        reads = other.request(session.request_id).events()
        with anyio.move_on_after(1):
            while True:
                await anext(reads)
        assert len(runtime.bus.statistics().subscriptions) == 1
        await reads.aclose()
        await settle()
        assert not runtime.bus.statistics().subscriptions
        assert not session.ended
        session.cancel()


@pytest.mark.parametrize("seed", range(10))
async def test_with_any_messages_lost_no_fact_is_missed_or_comes_twice_and_the_text_is_whole(seed: int) -> None:
    loses = (0.0, 0.1, 0.5, 1.0)[seed % 4]
    relay, store = LocalRelay(loses=loses, seed=seed), MemoryStore(journal=True)
    replies = (calls(("look", {"n": 1})), spoken(), spoken())
    async with node(store, relay, *replies) as runtime, node(store, relay) as other:
        session = runtime.start("go")
        await settle()
        heard: list[Event] = []
        said: list[str] = []

        async def listen() -> None:
            async for piece in other.request(session.request_id).text():
                said.append(piece)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, other.request(session.request_id), heard)
            tasks.start_soon(listen)
            await advance(120)
        facts = [each async for each in session.events() if each.is_fact]
    assert [each for each in heard if each.is_fact] == facts
    assert "".join(said).split() == SPOKEN.split()
    rounds = {each.round for each in heard if isinstance(each, TextDelta)}
    assert rounds == {1} or (loses and not rounds), "of lost messages, all may be those with pieces"


async def test_a_command_to_another_process_is_done_at_once() -> None:
    relay, store, lab = LocalRelay(), MemoryStore(journal=True), Lab()
    replies = (calls(("wipe", {"n": 1})), text("Done."))
    async with (
        node(store, relay, *replies, lab=lab, inbox_poll_seconds=1_000) as runtime,
        Client(store, relay=relay, inbox_poll_seconds=1_000) as client,
    ):
        session = runtime.start("go")
        await settle()
        handle = client.request(session.request_id)
        began = anyio.current_time()
        [question] = await handle.pending_approvals()
        assert await handle.approve(question) == "done"
        assert anyio.current_time() == began
        assert await handle.approve(question) == "ended"
        assert (await handle.result()).text == "Done."
        assert anyio.current_time() == began + 1  # The tool's own second.
        assert await client.request("unknown").cancel() == "unknown"
        exchange: Any = client._exchange  # pyright: ignore[reportPrivateUsage]
        assert not exchange._looking
    assert len(lab.runs) == 1


async def test_a_client_that_was_not_entered_does_without_the_relay() -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    async with node(store, relay, calls(("look", {"n": 1})), text("Done.")) as runtime:
        session = runtime.start("go")
        await settle()
        handle, heard = Client(store, relay=relay).request(session.request_id), list[Event]()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, handle, heard)
            assert await handle.cancel() == "done"
    assert heard
    assert relay.sent == []


@pytest.mark.parametrize(("relay", "seconds"), [(LocalRelay(loses=1.0), 2.0), (None, 0.25)])
async def test_a_command_without_a_wake_up_is_done_at_the_next_look(relay: LocalRelay | None, seconds: float) -> None:
    store = MemoryStore(journal=True)
    async with (
        node(store, relay, calls(("wipe", {"n": 1})), text("Done.")) as runtime,
        Client(store, relay=relay) as client,
    ):
        session = runtime.start("go")
        await settle()
        began = anyio.current_time()
        assert await client.request(session.request_id).cancel() == "done"
        assert anyio.current_time() - began == 2 * seconds, "one look takes the command, and the next one sees it taken"
        assert (await session.result()).outcome == "cancelled"


async def test_a_command_that_has_to_wait_is_not_asked_about_again_and_again() -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    replies = (calls(("look", {"n": 1})), text("Done."))
    async with (
        node(store, relay, *replies, max_sessions=1) as heir,
        Client(store, relay=relay) as client,
    ):
        async with node(store, relay, *replies, drain_seconds=0) as old:
            session = old.start("go")
            await settle()
        busy = heir.start("busy")
        await settle()
        assert len(await heir.resume()) == 1, "it waits for the slot"
        relay.sent.clear()
        began = anyio.current_time()
        assert await client.request(session.request_id).steer("more") == "queued"
        assert anyio.current_time() == began + 5
        assert len(relay.sent) == 3, "once for each look of the client, every 2 s"
        busy.cancel()
        result = await client.request(session.request_id).result()
    assert [each.text for each in result.messages if each.role == "user"] == ["go", "more"]


async def test_many_inputs_at_once_are_read_without_waiting_in_between() -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    async with (
        node(store, relay, calls(("look", {"n": 1})), text("Done."), inbox_poll_seconds=1_000) as runtime,
        Client(store, relay=relay, inbox_poll_seconds=1_000) as client,
    ):
        session = runtime.start("go")
        await settle()
        answers: list[str] = []

        async def steer(number: int) -> None:
            answers.append(await client.request(session.request_id).steer(f"{number}"))

        async with anyio.create_task_group() as tasks:
            for number in range(90):
                tasks.start_soon(steer, number)
        assert answers == ["done"] * 90
        session.cancel()


async def test_a_reader_continues_where_its_request_moves_to() -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    replies = (calls(("look", {"n": 1})), spoken())
    heard: list[Event] = []
    async with node(store, relay, *replies) as heir, Client(store, relay=relay) as client:
        async with node(store, relay, *replies, drain_seconds=0) as old:
            session = old.start("go")
            await advance(5)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read, client.request(session.request_id), heard)
                await advance(5)
                await old.drain()
                await heir.resume()
                await advance(25)
                assert "".join(each.text for each in heard if isinstance(each, TextDelta)) != ""
                assert not isinstance(heard[-1], RequestCompleted)
        stored: Any = store.journal
        facts = [each.fact.event_id for each in await stored.facts(session.request_id)]
    assert [each.event_id for each in heard if each.is_fact and not each.is_derived] == facts
    assert isinstance(heard[-1], RequestCompleted)


async def test_a_reader_that_is_a_step_ahead_of_the_process_that_it_asks_is_sent_back_to_the_store_at_once() -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    heard: list[Event] = []
    async with node(store, relay, calls(("look", {"n": 1})), text("Done.")) as runtime, node(store, relay) as other:
        session = runtime.start("go")
        await settle()
        async with anyio.create_task_group() as tasks:
            with late_answers(store, 2):
                await advance(20)
                tasks.start_soon(read, other.request(session.request_id), heard)
                await advance(1)
                assert any(isinstance(each, ToolCallCompleted) for each in heard)
            await advance(5)
            assert isinstance(heard[-1], RequestCompleted)


@pytest.mark.parametrize("ends", ["left", "cancelled", "raised"])
async def test_readers_of_a_process_that_ends_continue_with_the_store_at_once(ends: str) -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    replies = (calls(("look", {"n": 1})), text("Done."))
    heard: list[Event] = []
    async with (
        node(store, relay, *replies) as heir,
        Client(store, relay=relay) as client,
        anyio.create_task_group() as tasks,
    ):
        with anyio.CancelScope() as host, suppress(ZeroDivisionError):
            async with node(store, relay, *replies, drain_seconds=0) as old:
                session = old.start("go")
                await settle()
                tasks.start_soon(read, client.request(session.request_id), heard)
                await advance(1)
                if ends == "cancelled":
                    host.cancel()
                    await anyio.lowlevel.checkpoint()
                if ends == "raised":
                    raise ZeroDivisionError
        await heir.resume()
        await advance(2)
        assert any(isinstance(each, RequestResumed) for each in heard)
        tasks.cancel_scope.cancel()


async def test_a_reader_whose_own_process_takes_the_request_over_reads_on_at_once() -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    heard: list[Event] = []
    async with node(store, relay, calls(("look", {"n": 1})), spoken(), drain_seconds=0) as old:
        session = old.start("go")
        await settle()
        async with (
            node(store, relay, calls(("look", {"n": 1})), spoken(), inbox_poll_seconds=100) as heir,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(read, heir.request(session.request_id), heard)
            await advance(1)
            live = len(heard)
            # To the reader it looks as if the owner had been killed: nothing more comes from it.
            relay.loses = 1.0
            await old.drain()
            await advance(3)
            assert len(heard) == live
            await heir.resume()
            await advance(1)
            assert any(isinstance(each, RequestResumed) for each in heard)
            await advance(25)
            assert "".join(each.text for each in heard if isinstance(each, TextDelta)) != ""
            await advance(25)
        stored: Any = store.journal
        facts = [each.fact.event_id for each in await stored.facts(session.request_id)]
    assert [each.event_id for each in heard if each.is_fact and not each.is_derived] == facts
    assert isinstance(heard[-1], RequestCompleted)


async def test_a_process_that_falls_silent_is_given_up_and_the_reader_continues_with_the_store() -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    heard: list[Event] = []
    async with node(store, relay, calls(("look", {"n": 1})), spoken()) as runtime, node(store, relay) as other:
        session = runtime.start("go")
        await advance(15)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, other.request(session.request_id), heard)
            await advance(1)
            relay.loses, live = 1.0, len(heard)
            await advance(13.5)
            assert len(heard) == live
            await advance(1)
            assert len(heard) > live, "15 seconds after the last message"
            await advance(60)
        facts = [each async for each in session.events() if each.is_fact]
        exchange: Any = other._link.exchange  # pyright: ignore[reportPrivateUsage]
        assert not exchange._reading
    assert [each for each in heard if each.is_fact] == facts


async def test_a_reader_beyond_those_that_a_process_serves_reads_from_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolbus.handles._exchange.MAX_STREAMS", 1)
    relay, store = LocalRelay(), MemoryStore(journal=True)
    first, second = list[Event](), list[Event]()
    async with node(store, relay, calls(("look", {"n": 1})), spoken()) as runtime, node(store, relay) as other:
        session = runtime.start("go")
        await settle()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, other.request(session.request_id), first)
            await advance(1)
            tasks.start_soon(read, other.request(session.request_id), second)
            await advance(21.5)
            assert any(isinstance(each, TextDelta) for each in first)
            assert any(isinstance(each, ToolCallCompleted) for each in second)
    facts = [each for each in first if each.is_fact]
    assert second == facts


async def test_many_pieces_of_text_share_messages_of_the_size_that_the_relay_carries() -> None:
    relay, store = LocalRelay(max_bytes=8_000), MemoryStore(journal=True)
    many = text("!" * 200, ["!"] * 200)
    async with node(store, relay, calls(("look", {"n": 1})), many) as runtime, node(store, relay) as other:
        session = runtime.start("go")
        await settle()
        heard: list[Event] = []
        await read(other.request(session.request_id), heard)
    pieces = [each for each in heard if isinstance(each, TextDelta)]
    asked = [body for _, body in relay.sent if b'"do":"read"' in body]
    parts = [body for _, body in relay.sent if b'"!"' in body]
    assert (len(pieces), len(asked)) == (200, 1)
    assert sum(map(len, parts)) / len(parts) > 6_000


@pytest.mark.parametrize("host", ["cancelled", "left"])
async def test_a_process_whose_relay_hangs_ends_after_a_second(host: str) -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    async with Client(store, relay=relay) as client, anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            async with node(store, relay, calls(("look", {"n": 1})), drain_seconds=0) as runtime:
                session = runtime.start("go")
                await settle()
                tasks.start_soon(anext, client.request(session.request_id).text())
                await advance(1)
                relay.hangs = True
                began = anyio.current_time()
                if host == "cancelled":
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
        assert anyio.current_time() - began == 1
        tasks.cancel_scope.cancel()
        relay.hangs = False


async def test_a_reader_that_has_much_to_read_lets_other_tasks_run_from_time_to_time() -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    many = text("word " * 400, ["word "] * 400)
    async with node(store, relay, calls(("look", {"n": 1})), many) as runtime, node(store, relay) as other:
        session = runtime.start("go")
        await settle()
        reads = other.request(session.request_id).events()
        with anyio.move_on_after(0.5):
            while True:
                await anext(reads)
        turns = 0
        read_in: list[int] = []

        async def turn() -> None:
            nonlocal turns
            while True:
                await anyio.lowlevel.checkpoint()
                turns += 1

        async with anyio.create_task_group() as tasks:
            await advance(25)
            tasks.start_soon(turn)
            async for _ in reads:
                read_in.append(turns)
            tasks.cancel_scope.cancel()
    begun, *others = Counter(read_in).values()
    assert begun
    assert len(others) > 1  # trio may run the reader twice in a row
    assert all(number % 64 == 0 for number in others), "not after each event"


async def test_a_reader_from_now_on_that_loses_its_stream_misses_no_later_fact() -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    heard: list[Event] = []
    async with node(store, relay, spoken()) as runtime, node(store, relay) as other:
        session = runtime.start("go")
        await advance(1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, other.request(session.request_id), heard, "now")
            await advance(3)
            relay.loses = 1.0
            await advance(60)
        facts = [each async for each in session.events() if each.is_fact]
    later = [each for each in heard if each.is_fact]
    assert isinstance(later[0], ModelResponded)
    assert later == facts[-len(later) :]
    assert "".join(each.text for each in heard if isinstance(each, TextDelta)) == SPOKEN


async def test_a_reader_over_a_relay_reads_the_store_once() -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    journal: Any = store.journal
    read_facts, starts = journal.facts, list[int]()

    async def noted(request_id: str, *, start: int = 0) -> Any:
        starts.append(start)
        return await read_facts(request_id, start=start)

    async with node(store, relay, spoken()) as runtime, node(store, relay) as other:
        session = runtime.start("go")
        await settle()
        journal.facts = noted
        await read(other.request(session.request_id), [])
    assert starts == [0]


async def test_text_that_another_process_begins_anew_is_read_from_its_beginning() -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    async with node(store, relay, spoken()) as heir, Client(store, relay=relay) as client:
        async with node(store, relay, spoken(), drain_seconds=0) as old:
            session = old.start("go")
            await settle()
            pieces = client.request(session.request_id).text()
            heard = [await anext(pieces), await anext(pieces)]
            relay.loses = 1.0
        await heir.resume()
        await advance(12)
        heard += [piece async for piece in pieces]
    assert "".join(heard) == f"One two \n\n{SPOKEN}"


async def test_events_that_are_closed_end_at_once_for_a_task_that_waits_for_the_next_one() -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    async with node(store, relay, calls(("look", {"n": 1})), text("Done.")) as runtime, node(store, relay) as other:
        session = runtime.start("go")
        await settle()
        reads = other.request(session.request_id).events()

        async def wait() -> None:
            async for _ in reads:
                pass

        with anyio.fail_after(2):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await advance(1)
                reads.close()
        session.cancel()


async def test_events_may_be_closed_after_their_client() -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    async with node(store, relay, calls(("look", {"n": 1})), text("Done.")) as runtime:
        session = runtime.start("go")
        await settle()
        async with Client(store, relay=relay) as client:
            reads = client.request(session.request_id).events()
            with anyio.move_on_after(1):
                while True:
                    await anext(reads)
        reads.close()
        session.cancel()


async def test_messages_have_the_form_that_processes_of_other_releases_read() -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    async with node(store, relay, spoken()) as runtime, node(store, relay) as other:
        session = runtime.start("go")
        await settle()
        reads = other.request(session.request_id).events()
        assert [each async for each in reads]
        reads.close()
        await advance(20)
    heads = [msgspec.json.decode(body.partition(b"\n")[0]) for _, body in relay.sent]
    asked, begun, *between, ended, stopped = heads
    stream, reader = asked["id"], asked["to"]
    assert asked == {"do": "read", "id": stream, "to": reader, "request": session.request_id, "after": asked["after"]}
    assert begun == {"do": "events", "id": stream}
    assert {"do": "stay", "to": reader} in between
    assert {each["do"] for each in between} == {"stay", "events"}
    assert ended == {"do": "events", "id": stream, "n": ended["n"], "over": True}
    assert stopped == {"do": "stop", "id": stream}


async def test_a_slow_reader_holds_a_bounded_number_of_bytes_and_misses_no_fact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolbus.handles._exchange._BUFFER_BYTES", 2_000)
    relay, store = LocalRelay(max_bytes=3_000), MemoryStore(journal=True)
    async with node(store, relay, spoken()) as runtime, node(store, relay) as other:
        session = runtime.start("go")
        await settle()
        reads = other.request(session.request_id).events()
        heard = [await anext(reads)]
        live: Any = None
        while not isinstance(heard[-1], RequestCompleted):
            await advance(2)
            live = reads._live or live  # pyright: ignore[reportPrivateUsage]
            assert live is None or live._bytes < 6_000
            heard.append(await anext(reads))
        assert live is not None
        assert live._bytes == 0, "what was read needs no space any more"
        facts = [each async for each in session.events() if each.is_fact]
    assert [each for each in heard if each.is_fact] == facts


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\x00",
        b'{"do":"fall"}',
        b'{"do":"read","request":7}',
        b'{"do":"read","id":"x","to":"nobody","request":"*.>","after":"nonsense"}',
        b'{"do":"stop","id":"x"}',
        b'{"do":"stay"}',
        b'{"do":"events","id":"x","n":-5}',
        b'{"do":"looked","id":"x"}',
        b'{"do":"look","id":"x","to":"nobody"}',
        pytest.param(b'{"do":"stay","x":' + b'{"x":' * 9_999, id="deep"),
    ],
)
async def test_damaged_and_forged_messages_do_nothing(body: bytes) -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    lab = Lab()
    async with node(store, relay, calls(("look", {"n": 1})), text("Done."), lab=lab) as runtime:
        forged = ToolCallRequested(
            request_id="r",
            call_id="c",
            name="wipe",
            arguments={"n": 1},
            round=0,
            timeout_seconds=9.0,
            idempotency_key="k",
        )
        for heard in [*relay.heard.values()]:
            heard(body)
            heard(body + b"\n" + encode(forged))
        assert (await runtime.run("go")).text == "Done."
    assert len(lab.runs) == 1


@pytest.mark.parametrize("damaged", [[b"{damaged"], [FORGED], [b"{damaged", FORGED]])
async def test_events_of_another_request_and_damaged_ones_end_the_stream_and_never_reach_a_reader(
    damaged: list[bytes],
) -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    async with node(store, relay, spoken()) as runtime, Client(store, relay=relay) as client:
        session = runtime.start("go")
        await settle()
        heard: list[Event] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, client.request(session.request_id), heard)
            await advance(2)
            exchange: Any = client._exchange  # pyright: ignore[reportPrivateUsage]
            [stream] = exchange._reading
            head = msgspec.json.encode({"do": "events", "id": stream, "n": exchange._reading[stream]._next})
            relay.heard[exchange.address](b"\n".join((head, *damaged)))
            await advance(20)
            assert not exchange._reading
        facts = [each async for each in session.events() if each.is_fact]
    assert [each for each in heard if each.is_fact] == facts
    assert all(each.request_id == session.request_id for each in heard)


async def test_a_reader_that_gives_up_while_it_asks_for_a_stream_leaves_none_behind() -> None:
    relay, store = LocalRelay(), MemoryStore(journal=True)
    async with node(store, relay, spoken()) as runtime, Client(store, relay=relay) as client:
        session = runtime.start("go")
        await settle()
        relay.hangs = True
        with anyio.move_on_after(1):
            await read(client.request(session.request_id), [])
        relay.hangs = False
        await advance(6)
        said = [msgspec.json.decode(body.partition(b"\n")[0])["do"] for _, body in relay.sent]
    assert said == ["read", "stop"]


async def test_events_that_are_closed_while_they_ask_for_a_stream_leave_none_behind() -> None:
    relay, store = SlowRelay(), MemoryStore(journal=True)
    async with (
        node(store, relay, spoken()) as runtime,
        Client(store, relay=relay) as client,
        anyio.create_task_group() as tasks,
    ):
        session = runtime.start("go")
        await settle()
        events = client.request(session.request_id).events()

        async def read_all() -> None:
            async for _ in events:
                pass

        tasks.start_soon(read_all)
        await advance(0.5)
        events.close()
        await advance(3)
        said = [msgspec.json.decode(body.partition(b"\n")[0])["do"] for _, body in relay.sent]
        assert (said[0], said[-1]) == ("read", "stop")
        assert not runtime.bus.statistics().subscriptions


async def test_an_event_of_the_application_that_is_not_json_stops_no_runtime_and_a_reader_elsewhere_misses_no_fact() -> (
    None
):
    relay, store = LocalRelay(), MemoryStore(journal=True)
    async with node(store, relay, spoken()) as runtime, Client(store, relay=relay) as client:
        session = runtime.start("go")
        await settle()
        heard: list[Event] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, client.request(session.request_id), heard)
            await advance(3)
            runtime.bus.publish(
                StatusChanged(request_id=session.request_id, stage="waiting", text="Wait.", metadata={"user": object()})
            )
        facts = [each async for each in session.events() if each.is_fact]
    assert [each for each in heard if each.is_fact] == facts


async def test_a_relay_needs_a_store_that_processes_share() -> None:
    with pytest.raises(ConfigurationError, match="relay needs a store that processes share"):
        Runtime(ScriptedProvider([]), relay=LocalRelay())


class CountedStore(MemoryStore):
    """A store that counts how often it is open."""

    opened = 0

    async def open(self) -> None:
        self.opened += 1

    async def aclose(self) -> None:
        self.opened = 0


class NoRelay(LocalRelay):
    @asynccontextmanager
    async def connected(self, address: str, heard: Callable[[bytes], None]) -> AsyncGenerator[LocalRelay]:
        raise ConfigurationError("no server answers")
        yield self


@pytest.mark.parametrize("make", [Client, node])
async def test_a_relay_that_is_out_of_reach_leaves_no_store_open(make: Callable[..., Any]) -> None:
    store = CountedStore(journal=True)
    with pytest.raises(ConfigurationError, match="no server answers"):
        async with make(store, relay=NoRelay()):
            pass
    assert not store.opened


async def test_a_question_that_cannot_be_sent_is_no_stream_and_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    left, made = list[Any](), list[Any]()
    exchange = Exchange(LocalRelay(), lambda: "me", local=lambda _: None, look=None)
    exchange._link = cast("Any", SimpleNamespace(send=AsyncMock(side_effect=OSError("no way out"))))  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(exchange, "leave", left.append)
    with pytest.raises(OSError, match="no way out"):
        made.append(await exchange.join("another", "r", "", facts_only=False))
    assert (len(left), made) == (1, [])
