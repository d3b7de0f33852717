"""All that a store has, to a file and into another store, of another kind as well."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import asdict
from errno import ENOSPC
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from support.store_entries import entry, turn, write_whole
from toolbus.errors import StoreDamaged, StoreError, UnsupportedStoreFormat
from toolbus.events import SteeringAdded
from toolbus.messages import AssistantMessage, UserMessage
from toolbus.stores import archive
from toolbus.stores.archive import export_to, import_from, verify
from toolbus.stores.postgres import PostgresStore
from toolbus.stores.sql import DatabaseStore, _archive
from toolbus.stores.sqlite import SqliteStore
from toolbus.testing.contracts.store._samples import all_messages, facts_of_all_types

LONG = "a long text " * 2_000


@asynccontextmanager
async def two_stores(folder: Path) -> AsyncGenerator[tuple[SqliteStore, SqliteStore]]:
    """A store to export from, and one to import into."""
    async with (
        aclosing(SqliteStore(folder / "a.db", durability="process")) as store,
        aclosing(SqliteStore(folder / "b.db", durability="process")) as target,
    ):
        yield store, target


async def contents(store: DatabaseStore) -> Sequence[Any]:
    """All that can be read, but for leases."""
    found: list[Any] = []
    for request_id in await store.request_ids():
        record = await store.request(request_id)
        assert record is not None
        record.owner, record.lease_until = "", 0.0
        found += [record, await store.facts(request_id), await store.inputs(request_id)]
    for each in await store.conversation_records():
        found += [each, await store.turns(each.conversation_id)]
    return found


async def fill(store: DatabaseStore) -> None:
    await write_whole(store, "ended", "talk", LONG)
    step = entry("all facts", conversation_id="talk", agreed={"long": LONG})
    step.facts = [*facts_of_all_types()]
    await store.append(step)
    await store.append(entry("all facts", len(step.facts), "open"))
    for text in ("taken", "refused", "waits", LONG):
        await store.send(SteeringAdded(request_id="all facts", text=text, event_id=text[:7]))
    taken = entry("all facts", len(step.facts) + 1, "taken")
    taken.facts, taken.received = [SteeringAdded(request_id="all facts", text="taken", event_id="taken")], ["taken"]
    await store.append(taken)
    await store.settle("all facts", "refused", "refused", "too late")
    await store.append(entry("given up", 0, lease_seconds=0))
    held = await store.take("given up", "somebody", 60)
    assert held is not None
    await store.abandon("given up", held.epoch)
    await store.remember("", all_messages())
    await store.remember("empty", [])
    await store.remember("talk", turn("more"))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_is_exported_from_sqlite_is_the_same_in_postgresql_and_back(
    tmp_path: Path, postgres_url: str, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    async with (
        aclosing(SqliteStore(tmp_path / "a.db")) as one,
        aclosing(PostgresStore(postgres_url)) as two,
        aclosing(SqliteStore(tmp_path / "b.db")) as three,
    ):
        await fill(one)
        monkeypatch.setattr(_archive, "_PAGE", 2)
        done = await export_to(one, first)
        assert (done.requests, done.conversations, done.problems) == (3, 3, [])
        assert stat.S_IMODE(first.stat().st_mode) == 0o600
        assert await import_from(two, first) == done
        await export_to(two, second)
        await import_from(three, second)
        monkeypatch.undo()
        expected = await contents(one)
        assert await contents(two) == expected
        assert await contents(three) == expected
        for store in (two, three):
            verified = await verify(store)
            assert asdict(verified) == asdict(done)
        assert [each.request_id for each in await two.unfinished()] == ["all facts"]
        assert await two.take("all facts", "another", 60) is not None
        assert [each.event_id for each in await two.waiting("another")] == ["waits", LONG[:7]]
        with pytest.raises(StoreError, match=r"request 'ended' of .* is in the store already; nothing was imported"):
            await import_from(three, first)


async def test_an_export_that_was_changed_or_breaks_off_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path, other = tmp_path / "export.jsonl", tmp_path / "other.jsonl"
    async with aclosing(SqliteStore(tmp_path / "a.db", durability="process")) as store:
        await write_whole(store)
        await export_to(store, path)
        with pytest.raises(StoreError, match=f"{path} exists already"):
            await export_to(store, path)
    lines = path.read_bytes().splitlines(keepends=True)
    assert [next(iter(json.loads(line))) for line in lines][:3] == ["toolbus", "request", "seq"]
    wrong = {
        "its line 3 is not what was exported": [*lines[:2], lines[2].replace(b"zero", b"nil!"), *lines[3:]],
        "its line 4 is not what was exported": [*lines[:3], *lines[4:]],
        "it has no end": lines[:-1],
        "its line 1 is not what was exported": [b"{}\n"],
        "its line 5 is not what was exported": [*lines[:4], lines[4][:-9]],
    }
    async with aclosing(SqliteStore(tmp_path / "b.db", durability="process")) as target:
        for text, content in wrong.items():
            other.write_bytes(b"".join(content))
            with pytest.raises(StoreDamaged, match=text):
                await import_from(target, other)
        with pytest.raises(StoreError, match=r"missing.jsonl cannot be read: No such file"):
            await import_from(target, tmp_path / "missing.jsonl")
        assert (await target.statistics()).requests == 0
        await import_from(target, path)
        assert len(await target.facts("r")) == 5


def rehashed(lines: list[bytes]) -> bytes:
    """The lines, without their hashes, as a file whose hashes are right: whoever writes a file can write them too."""
    last, found = b"", list[bytes]()
    for line in lines:
        last = sha256(last + line).hexdigest().encode()
        found.append(line[:-1] + b',"hash":"' + last + b'"}\n')
    return b"".join(found)


@pytest.mark.parametrize(
    ("at", "was", "made", "message"),
    [
        (2, b'"seq":0', b'"seq":', "its line 3 is not what was exported"),
        (1, b'"epoch":1', b'"epoch":"1"', r"request.epoch: Expected int, got str"),
        (1, b'"request_id":"r"', b'"request_id":7', r"request.request_id: Expected str, got int"),
        (0, b'"title":', b'"title":[],"was":', r"conversation.title: Expected str, got array"),
    ],
)
async def test_a_file_with_right_hashes_and_wrong_values_is_refused_before_anything_is_written(
    tmp_path: Path, at: int, was: bytes, made: bytes, message: str
) -> None:
    path = tmp_path / "export.jsonl"
    async with aclosing(SqliteStore(tmp_path / "a.db", durability="process")) as store:
        await write_whole(store)
        await export_to(store, path)
    lines = [each.rpartition(b',"hash":')[0] + b"}" for each in path.read_bytes().splitlines()]
    at = next(index for index, each in enumerate(lines) if index >= at and was in each)
    lines[at] = lines[at].replace(was, made, 1)
    path.write_bytes(rehashed(lines))
    async with aclosing(SqliteStore(tmp_path / "b.db", durability="process")) as target:
        with pytest.raises(StoreError, match=message):
            await import_from(target, path)
        assert (await target.statistics()).requests == 0


@pytest.mark.guarantee("G23")
async def test_an_export_of_a_newer_toolbus_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "export.jsonl"
    async with aclosing(SqliteStore(tmp_path / "a.db", durability="process")) as store:
        with monkeypatch.context() as patched:
            patched.setattr("toolbus.stores.archive._FORMAT", 9)
            await export_to(store, path)
        with pytest.raises(
            UnsupportedStoreFormat,
            match=f"{path} was written by toolbus .*, in format 9 of archives; this version knows",
        ):
            await import_from(store, path)


@pytest.mark.guarantee("G22")
async def test_of_a_damaged_request_what_is_whole_is_exported_and_the_rest_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    async with two_stores(tmp_path) as (store, target):
        await write_whole(store, "r")
        await write_whole(store, "s", "d")
        await store.remember("e", turn("lost"))
        with closing(sqlite3.connect(store.path, isolation_level=None)) as database:
            database.execute("DELETE FROM facts WHERE request_id = 'r' AND seq = 3")
            database.execute("DELETE FROM messages WHERE conversation_id = 'e'")
        done = await export_to(store, path)
        assert (done.requests, done.facts, done.conversations) == (2, 7, 2)
        assert [str(each).partition(":")[0] for each in done.problems] == [
            "the journal of request r is damaged at fact 3",
            "conversation 'e' is damaged at message 0",
        ]
        await import_from(target, path)
        assert [each.seq for each in await target.facts("r")] == [0, 1]
        assert (await verify(target)).problems == []


async def test_a_request_that_ends_while_it_is_exported_is_written_as_its_record_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "export.jsonl"
    async with two_stores(tmp_path) as (store, target):
        await store.append(entry("r"))
        salvage = store.salvage

        async def salvage_later(request_id: str) -> Any:
            if len(await store.facts(request_id)) == 1:
                await store.append(entry(request_id, 1, ending="completed"))
            return await salvage(request_id)

        monkeypatch.setattr(store, "salvage", salvage_later)
        done = await export_to(store, path)
        assert (done.requests, done.facts, done.problems) == (1, 1, [])
        await import_from(target, path)
        [left] = await target.unfinished()
        assert (left.ending, left.fact_count, len(await target.facts("r"))) == (None, 1, 1)


@pytest.mark.parametrize("ends", ["before the conversations", "after them"])
async def test_a_request_that_ends_during_an_export_has_its_turn_once_or_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    path = tmp_path / "export.jsonl"
    async with two_stores(tmp_path) as (store, target):
        await store.append(entry("r"))
        await store.append(entry("later", conversation_id="c"))
        records, is_after = store.conversation_records, ends == "after them"

        async def records_while_it_ends(*, after: str | None = None) -> Any:
            found = await records(after=after) if is_after else ()
            if await store.unfinished(limit=9) == [] and not await store.history("c"):
                await store.append(entry("r", 1, ending="completed", turn=turn("hello")))
            return found if is_after else await records(after=after)

        monkeypatch.setattr(store, "conversation_records", records_while_it_ends)
        await export_to(store, path)
        await import_from(target, path)
        history = [each.text for each in await target.history("c") if isinstance(each, (UserMessage, AssistantMessage))]
        record = await target.request("r")
        assert record is not None
        if is_after:
            assert (record.ending, record.fact_count, history) == (None, 1, [])
        else:
            assert (record.ending, record.fact_count, history) == ("completed", 2, ["hello", "answer to hello"])
        assert "later" in [each.request_id for each in await target.unfinished()]
        assert (await verify(target)).problems == []


async def test_an_input_that_is_taken_while_its_request_is_exported_waits_in_the_other_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_stores(tmp_path) as (store, target):
        await store.append(entry("r"))
        given = SteeringAdded(request_id="r", text="shorter", event_id="i")
        await store.send(given)
        salvage = store.salvage

        async def salvage_later(request_id: str) -> Any:
            if (await store.receipt("r", "i")).state == "waiting":
                taken = entry("r", 1)
                taken.facts, taken.received = [given], ["i"]
                await store.append(taken)
            return await salvage(request_id)

        monkeypatch.setattr(store, "salvage", salvage_later)
        done = await export_to(store, tmp_path / "all.jsonl")
        assert (done.facts, done.inputs) == (1, 1)
        await import_from(target, tmp_path / "all.jsonl")
        assert (await store.receipt("r", "i")).state == "taken"
        assert (await target.send(given)).state == "waiting"
        assert await target.take("r", "another", 60) is not None
        assert await target.waiting("another") == [given]


@pytest.mark.guarantee("G22")
async def test_an_input_that_cannot_be_read_is_reported_and_the_others_are_exported(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as (store, target):
        await store.append(entry("r"))
        for name in ("bad", "good"):
            await store.send(SteeringAdded(request_id="r", text=name, event_id=name))
        with closing(sqlite3.connect(store.path, isolation_level=None)) as database:
            database.execute("UPDATE inbox SET data = ? WHERE event_id = 'bad'", (b"{",))
        for report in (await verify(store), await export_to(store, tmp_path / "all.jsonl")):
            [problem] = report.problems
            assert str(problem).startswith("input bad in the inbox of request r cannot be read: ")
            assert (type(problem), report.requests, report.inputs) == (StoreDamaged, 1, 1)
        await import_from(target, tmp_path / "all.jsonl")
        assert await target.take("r", "another", 60) is not None
        assert [each.event_id for each in await target.waiting("another")] == ["good"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_conversation_without_messages_does_not_keep_an_archive_from_being_read(
    tmp_path: Path, anyio_backend: str
) -> None:
    async with aclosing(SqliteStore(tmp_path / "one.db")) as one, aclosing(SqliteStore(tmp_path / "two.db")) as two:
        await one.remember("c", turn("hello"))
        await one.remember("d", [])
        for each in "cd":
            await two.remember(each, [])
        await export_to(one, tmp_path / "all.jsonl")
        await import_from(two, tmp_path / "all.jsonl")
        assert [await two.history(each) for each in "cd"] == [turn("hello"), []]
        assert (await verify(two)).problems == []


async def test_an_export_is_the_same_in_whatever_batches_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aclosing(SqliteStore(tmp_path / "a.db", durability="process")) as store:
        await write_whole(store)
        await export_to(store, tmp_path / "at once.jsonl")
        monkeypatch.setattr(archive, "_BATCH_LINES", 2)
        sizes: list[int] = []
        write = archive._Writer._write

        def counted(writer: archive._Writer) -> None:
            sizes.append(len(writer._lines))
            write(writer)

        monkeypatch.setattr(archive._Writer, "_write", counted)
        await export_to(store, tmp_path / "in batches.jsonl")
    written = (tmp_path / "in batches.jsonl").read_bytes()
    assert written == (tmp_path / "at once.jsonl").read_bytes()
    assert (sum(sizes), {*sizes[:-1]}, sizes[-1] < 2) == (written.count(b"\n"), {2}, True)


async def test_a_file_that_cannot_be_created_or_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aclosing(SqliteStore(tmp_path / "a.db", durability="process")) as store:
        await write_whole(store)
        with pytest.raises(StoreError, match=r"nowhere/all.jsonl cannot be created: No such file or directory"):
            await export_to(store, tmp_path / "nowhere" / "all.jsonl")

        def full(_number: int) -> None:
            raise OSError(ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match=r"all.jsonl cannot be written: No space left on device"):
            await export_to(store, tmp_path / "all.jsonl")


async def test_a_request_whose_record_is_damaged_is_reported_and_the_others_are_exported(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as (store, target):
        await write_whole(store, "r")
        await write_whole(store, "s", "d")
        with closing(sqlite3.connect(store.path, isolation_level=None)) as database:
            database.execute("UPDATE requests SET epoch = 'one' WHERE request_id = 'r'")
        for report in (await verify(store), await export_to(store, tmp_path / "all.jsonl")):
            assert (report.requests, [type(each) for each in report.problems]) == (1, [StoreDamaged])
        await import_from(target, tmp_path / "all.jsonl")
        assert await target.request_ids() == ["s"]


HEADER: dict[str, Any] = {"toolbus": "archive", "format": 1, "version": "0"}
NOTHING = {"requests": 0, "facts": 0, "inputs": 0, "conversations": 0, "messages": 0}


@pytest.mark.parametrize(
    ("lines", "kind", "words"),
    [
        ([HEADER | {"toolbus": "other"}], StoreError, "is not an archive of a toolbus store"),
        ([HEADER | {"format": "1"}], StoreError, "is not an archive of a toolbus store"),
        ([HEADER, {"end": NOTHING | {"facts": 1}}], StoreDamaged, "'facts': 0.* but its end says .*'facts': 1"),
        ([HEADER, {"request": {"soul": 1}, "facts": 0}, {"end": NOTHING}], UnsupportedStoreFormat, "line 2 or a later"),
        ([HEADER, {"conversation": {"conversation_id": "c"}}, {"end": NOTHING}], UnsupportedStoreFormat, "line 2 or a"),
    ],
)
async def test_a_file_that_something_else_has_written_is_refused(
    tmp_path: Path, lines: list[dict[str, Any]], kind: type[StoreError], words: str
) -> None:
    writer = archive._Writer(tmp_path / "all.jsonl")
    for each in lines:
        await writer.add(each)
    writer.finish()
    writer.close()
    async with aclosing(SqliteStore(tmp_path / "a.db", durability="process")) as store:
        with pytest.raises(kind, match=words) as caught:
            await import_from(store, tmp_path / "all.jsonl")
        assert type(caught.value) is kind
        assert (await store.statistics()).requests == 0


async def test_what_a_store_has_already_is_not_restored_again(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as (store, target):
        await write_whole(store)
        record, facts, turns = await store.request("r"), await store.facts("r"), await store.turns("c")
        [conversation] = await store.conversation_records()
        assert record is not None
        with pytest.raises(StoreError, match="request r cannot be restored: its first facts are missing"):
            await target.restore_request(record, facts[2:], [])
        for attempt in (target.restore_request(record, facts, []), target.restore_conversation(conversation, turns)):
            await attempt
        with pytest.raises(StoreError, match="request r is in the store already"):
            await target.restore_request(record, facts, [])
        with pytest.raises(StoreError, match="conversation 'c' is in the store already"):
            await target.restore_conversation(conversation, turns)
        assert await contents(target) == await contents(store)
