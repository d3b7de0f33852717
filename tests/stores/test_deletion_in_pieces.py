"""What is deleted from an SQL store is gone for readers at once, and its rows go in pieces, so that no write waits long."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.postgres_server import PostgresServer
from support.store_entries import entry, text_of
from toolbus.errors import StoreError
from toolbus.events import SteeringAdded
from toolbus.messages import UserMessage
from toolbus.stores import _read_ahead
from toolbus.stores.archive import verify
from toolbus.stores.postgres import PostgresStore
from toolbus.stores.sql import Database, DatabaseStore
from toolbus.stores.sql import _upkeep as upkeep
from toolbus.stores.sqlite import SqliteStore

pytestmark = [pytest.mark.guarantee("G20"), pytest.mark.parametrize("anyio_backend", ["asyncio"])]

TABLES = {"large texts": "blobs", "messages": "messages", "facts": "facts"}


@pytest.fixture(params=["sqlite", "postgres"])
def opened(
    request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer
) -> Iterator[Callable[[], DatabaseStore]]:
    if request.param == "sqlite":
        yield lambda: SqliteStore(tmp_path / "store.db", durability="process")
    else:
        with postgres.database() as url:
            yield lambda: PostgresStore(url, durability="process")


async def count(store: DatabaseStore, table: str) -> int:
    return (await store._read(lambda database: database.rows(f"SELECT count(*) FROM {table}")))[0][0]


async def write(store: DatabaseStore, what: str, conversation_id: str, texts: list[str]) -> None:
    if what == "facts":
        await store.append(
            entry(f"request of {conversation_id}", 0, *texts, conversation_id=conversation_id, ending="completed")
        )
    await store.remember(conversation_id, [UserMessage(content=each) for each in texts])


def dying_after(monkeypatch: pytest.MonkeyPatch, pieces: int, table: str) -> list[int]:
    """The process dies after some pieces. Returns the list that gets the number of rows before each piece."""
    left: list[int] = []
    real = upkeep.delete_some

    def delete_some(database: Database) -> bool:
        if len(left) == pieces:
            raise StoreError("the process dies here")
        left.append(database.rows(f"SELECT count(*) FROM {table}")[0][0])
        return real(database)

    monkeypatch.setattr(upkeep, "delete_some", delete_some)
    return left


@pytest.mark.parametrize(
    ("what", "bound", "next_deletion"),
    [
        # Each pair of values occurs at least once.
        (what, bound, "prune" if (place + number) % 2 else "forget")
        for place, what in enumerate(TABLES)
        for number, bound in enumerate(["bytes", "rows", "one"])
    ],
)
async def test_a_conversation_is_deleted_in_pieces_and_the_next_deletion_continues_after_a_crash(
    opened: Callable[[], DatabaseStore],
    what: str,
    next_deletion: str,
    bound: str,
    anyio_backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, size = TABLES[what], 20_000 if what == "large texts" else 5_000
    if bound == "bytes":
        monkeypatch.setattr(_read_ahead, "MAX_BYTES", 2 * size + 2_000)
    elif bound == "one":
        monkeypatch.setattr(_read_ahead, "MAX_BYTES", 1)
    else:
        monkeypatch.setattr(upkeep, "_MAX_ROWS", 2)
        monkeypatch.setattr(upkeep, "_MAX_TEXTS", 2)
        monkeypatch.setattr(_read_ahead, "MAX_BYTES", 2**16)
    texts = [f"{number} ".ljust(size, "x") for number in range(10)]
    async with aclosing(opened()) as store:
        await write(store, what, "c", texts)
        await write(store, what, "kept", texts[:1])
        with monkeypatch.context() as patch:
            left = dying_after(patch, 25, table)
            with pytest.raises(StoreError, match="the process dies here"):
                while True:
                    await store.forget("c")
        assert left[0] == 10 + (what != "large texts")  # one of the large texts is in both
        assert left[-1] == 1
        assert {earlier - later for earlier, later in pairwise(left)} <= {0, 1, 2}

    async with aclosing(opened()) as store:
        await write(store, what, "d", texts)
        with monkeypatch.context() as patch:
            dying_after(patch, 2, table)
            with pytest.raises(StoreError, match="the process dies here"):
                await store.forget("d")
        assert await count(store, table) > 1
        assert list(await store.history("d")) == []
        assert list(await store.requests(conversation_id="d")) == []
        assert list(await store.facts("request of d")) == []
        assert [each.conversation_id for each in await store.conversations()] == ["kept"]
        assert (await verify(store)).problems == []
        # The same id is used again, with one of the texts that are not deleted yet.
        await store.remember("d", [UserMessage(content=texts[9])])
        assert await store.conversations(search="5 x") == []
        if next_deletion == "forget":
            assert not await store.forget("unknown")
        else:
            await store.prune(before=0.0)
        assert await count(store, table) == 1 + (what != "facts")
        assert await count(store, "deleted") == 0
        assert [each.text for each in await store.history("d")] == [texts[9]]
        await store.remember("d", [UserMessage(content="more")])
        assert [each.text for each in await store.history("d")] == [texts[9], "more"]
        assert (await verify(store)).problems == []
        for conversation_id in ("d", "kept"):
            assert await store.forget(conversation_id)
        for each in ("facts", "messages", "blobs", "blob_uses", "agreements", "inbox", "deleted", "turns"):
            assert await count(store, each) == 0


async def test_a_conversation_that_is_deleted_twice_before_its_rows_are_gone_leaves_nothing(
    opened: Callable[[], DatabaseStore], anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aclosing(opened()) as store:
        with monkeypatch.context() as patch:
            dying_after(patch, 0, "messages")
            sizes: list[int] = []
            for text in ("first", "second"):
                await store.remember("c", [UserMessage(content=text)] * 3)
                assert [each.text for each in await store.history("c")] == [text] * 3
                with pytest.raises(StoreError, match="the process dies here"):
                    await store.forget("c")
                [[size]] = await store._read(lambda database: database.rows("SELECT size_bytes FROM deleted"))
                sizes.append(size)
        assert sizes[1] > 1.5 * sizes[0]
        await store.remember("c", [UserMessage(content="third")])
        assert not await store.forget("unknown")
        assert [each.text for each in await store.history("c")] == ["third"]
        assert await count(store, "messages") == 1


async def test_a_request_begins_again_only_after_all_its_rows_are_deleted(
    opened: Callable[[], DatabaseStore], anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aclosing(opened()) as store:
        await store.append(entry("r", 0, "first"))
        await store.send(SteeringAdded(request_id="r", conversation_id="c", text="more"))
        await store.append(entry("r", 1, ending="completed"))
        record, facts = await store.request("r"), await store.facts("r")
        assert record is not None
        with monkeypatch.context() as patch:
            dying_after(patch, 0, "facts")
            with pytest.raises(StoreError, match="the process dies here"):
                await store.forget("c")
        assert await count(store, "inbox") == 0
        with pytest.raises(StoreError, match="request r is in the journal already"):
            await store.append(entry("r", 0, "again"))
        with pytest.raises(StoreError, match="request r is in the store already"):
            await store.restore_request(record, facts, [])
        await store.prune(before=0.0)
        await store.append(entry("r", 0, "again"))
        assert [text_of(each.fact) for each in await store.facts("r")] == ["again"]


async def test_many_requests_are_deleted_together_as_far_as_they_are_small(
    opened: Callable[[], DatabaseStore], anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aclosing(opened()) as store:
        for number in range(5):
            size = await store.append(entry(f"r{number}", 0, "x" * 1_000, ending="completed"))
        monkeypatch.setattr(_read_ahead, "MAX_BYTES", 2 * (size + 16_384) + 100)
        with monkeypatch.context() as patch:
            left = dying_after(patch, 9, "facts")
            assert (await store.prune(before=1e12)).requests == 5
        assert left == [5, 3, 1, 0]


DELETIONS: dict[str, Callable[[Database], object]] = {
    "a conversation": lambda database: upkeep.forget(database, "c"),
    "requests": lambda database: upkeep.prune_requests(database, 0.0, 10),
    "conversations": lambda database: upkeep.prune_conversations(database, 0.0, 10),
    "what is left of them": upkeep.delete_some,
}


@pytest.mark.parametrize("what", DELETIONS)
async def test_deletions_of_several_processes_do_not_mix_and_lock_in_one_order(
    opened: Callable[[], DatabaseStore], what: str, monkeypatch: pytest.MonkeyPatch, anyio_backend: str
) -> None:
    """Both databases delete alike; SQLite has one writer, and so its locks do nothing."""

    def delete(database: Database) -> None:
        real = database.lock

        def lock(name: Any, *, exclusive: bool = True) -> None:
            locked.append((name, exclusive))
            real(name, exclusive=exclusive)

        monkeypatch.setattr(database, "lock", lock)
        DELETIONS[what](database)

    locked: list[tuple[str, bool]] = []
    async with aclosing(opened()) as store:
        await store.remember("c", [UserMessage(content="Hello?")])
        await store._write(delete)
    assert locked == [("deleted", True), ("blobs", True)]
