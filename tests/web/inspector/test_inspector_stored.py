"""The list of a store's requests and one request that is read along: what is read of them, how often, and what is kept."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from toolbus import Runtime
from toolbus.errors import StoreDamaged
from toolbus.events import Event, RequestCompleted, RequestStarted, TextDelta
from toolbus.providers.scripted import ScriptedProvider, hang, text
from toolbus.remote import Client
from toolbus.storage import Entry
from toolbus.stores import MemoryStore
from toolbus.testing import virtual_backends
from toolbus.web.inspector import _stored
from toolbus.web.inspector._stored import FollowedRequest, StoredList

anyio_backend = virtual_backends()


class Read:
    """The list of a journal to which requests are written, with what was read of each since the last look."""

    def __init__(self) -> None:
        self.store = MemoryStore(journal=True)
        journal: Any = self.store.journal
        assert journal is not None
        self.journal = journal
        self.list = StoredList(journal)
        self.reads: list[tuple[str, int]] = []
        self.damaged = ""
        self._facts = journal.facts
        journal.facts = self.facts

    async def facts(self, request_id: str, *, start: int = 0) -> Any:
        self.reads.append((request_id, start))
        if request_id == self.damaged:
            raise StoreDamaged("fact 0 is not what was written", request_id=request_id, seq=0)
        return await self._facts(request_id, start=start)

    async def begin(self, request_id: str) -> None:
        started = RequestStarted(request_id=request_id, prompt=f"Prompt {request_id}", timeout_seconds=1)
        await self._write(request_id, 0, started)

    async def end(self, request_id: str) -> None:
        await self._write(request_id, 1, RequestCompleted(request_id=request_id), ending="completed")

    async def _write(self, request_id: str, seq: int, fact: Any, **more: Any) -> None:
        entry = Entry(request_id=request_id, conversation_id="c", epoch=1, seq=seq, facts=[fact], **more)
        await self.journal.append(entry)

    async def rows(self, limit: int = 300) -> tuple[list[dict[str, Any]], list[tuple[str, int]]]:
        """The rows, and what was read for them."""
        self.reads.clear()
        return await self.list.rows(limit), [*self.reads]


async def test_of_each_request_only_new_facts_are_read():
    read = Read()
    await read.begin("a")
    await read.begin("b")
    await read.end("a")
    rows, reads = await read.rows()
    assert [(each["request_id"], each["prompt"], each["state"]) for each in rows] == [
        ("b", "Prompt b", "released"),
        ("a", "Prompt a", "completed"),
    ]
    assert sorted(reads) == [("a", 0), ("b", 0)]
    assert (await read.rows())[1] == []
    await read.end("b")
    rows, reads = await read.rows()
    assert (rows[0]["state"], reads) == ("completed", [("b", 1)])
    assert (await read.rows())[1] == []


async def test_thirty_requests_are_read_for_one_answer_and_the_others_have_what_their_records_say():
    read = Read()
    for number in range(32):
        await read.begin(f"r{number}")
    await read.end("r0")
    rows, reads = await read.rows()
    assert (len(reads), len(rows)) == (30, 32)
    ended, record = rows[-1], await read.journal.request("r0")
    assert (ended["request_id"], ended["prompt"], ended["state"]) == ("r0", "", "completed")
    assert (ended["started_at"], ended["ended_at"]) == (record.started_at, record.ended_at)
    assert 0 < ended["started_at"] < ended["ended_at"]
    rows, reads = await read.rows()
    assert (len(reads), rows[-1]["prompt"]) == (2, "Prompt r0")


async def test_a_request_that_ends_after_it_was_read_is_the_same_as_one_that_is_read_once():
    read = Read()
    await read.begin("a")
    await read.rows()
    await read.end("a")
    [row], _ = await read.rows()
    [other] = await StoredList(read.journal).rows(9)
    assert row == other


async def test_the_requests_that_were_listed_last_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_stored, "_MAX_KEPT", 2)
    read = Read()
    for name in ("a", "b", "c"):
        await read.begin(name)
        await read.end(name)
        await read.rows(1)
    assert (await read.rows(2))[1] == []  # c and b
    assert sorted((await read.rows(3))[1]) == [("a", 0)]
    for name in ("d", "e"):
        await read.begin(name)
        await read.end(name)
    assert len((await read.rows(5))[1]) >= 3
    assert len((await read.rows(5))[1]) >= 3  # Of five, two are kept each time.


async def test_a_damaged_request_is_read_again_only_when_it_has_grown():
    read = Read()
    await read.begin("a")
    read.damaged = "a"
    for reads in (1, 0):
        [row], found = await read.rows()
        assert (len(found), row["state"]) == (reads, "released")
        assert "fact 0 is not what was written" in row["doing"]
    await read.end("a")
    read.damaged = ""
    [row], found = await read.rows()
    assert (len(found), "not what was written" in row["doing"]) == (1, False)


async def test_a_request_is_held_while_its_lease_lasts(monkeypatch: pytest.MonkeyPatch):
    read = Read()
    await read.begin("a")
    record = await read.journal.take("a", "somebody", 30)
    for moment, state in ((record.lease_until - 1, "running"), (record.lease_until, "released")):
        monkeypatch.setattr(_stored, "wall_time", lambda moment=moment: moment)
        [row], _ = await read.rows()
        assert row["state"] == state
    assert row["doing"] == "is held by no process, and waits to be resumed"


async def test_long_journals_are_read_with_checkpoints(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_stored, "_SLICE", 2)
    read = Read()
    await read.begin("a")
    await read.end("a")
    taken = 0
    checkpoint = anyio.lowlevel.checkpoint

    async def counted() -> None:
        nonlocal taken
        taken += 1
        await checkpoint()

    await read.rows()
    without = StoredList(read.journal)
    monkeypatch.setattr(anyio.lowlevel, "checkpoint", counted)
    await without.rows(9)
    assert taken == 1


async def test_a_request_is_read_along_for_a_moment_at_a_time_and_its_newest_events_are_kept(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(_stored, "_MAX_EVENTS", 3)
    store = MemoryStore(journal=True)
    async with Runtime(ScriptedProvider([hang(), text("Yes.")]), store=store, drain_seconds=0) as runtime:
        session = runtime.start("Hello?")
        await anyio.sleep(1)
        followed = FollowedRequest(Client(store).request(session.request_id), lambda _request_id, _name: (False, ""))
        began = anyio.current_time()
        await followed.update()
        assert anyio.current_time() - began == pytest.approx(0.3)
        assert (followed.version, followed.first, len(followed.events)) == (3, 0, 3)
        session.cancel()
        await session.result()
        await anyio.sleep(1)
        await followed.update()
        assert followed.version == followed.first + 3 > 3
        version, began = followed.version, anyio.current_time()
        await followed.update()
        assert (followed.version, anyio.current_time() - began) == (version, 0)
        assert followed.fold.summary()["state"] == "cancelled"


async def test_a_request_with_many_events_holds_up_nobody_while_it_is_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_stored, "_SLICE", 10)
    turns = 0

    class Many:
        request_id = "r"

        async def events(self) -> AsyncGenerator[Event]:
            for _ in range(100):
                yield TextDelta(request_id="r", message_id="m", text="x")

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    handle: Any = Many()
    followed = FollowedRequest(handle, lambda _request_id, _name: (False, ""))
    async with anyio.create_task_group() as group:
        group.start_soon(count)
        await anyio.lowlevel.checkpoint()
        before = turns
        await followed.update()
        group.cancel_scope.cancel()
    assert followed.version == 100
    assert turns - before >= 5
