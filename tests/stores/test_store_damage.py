"""Damage in a store is found and named, and what is whole before it stays readable (G22)."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import aclosing, closing
from pathlib import Path

import anyio
import pytest

from support.store_entries import entry, text_of, turn, write_whole
from toolbus import Runtime
from toolbus.cli._open_store import CommandStore
from toolbus.errors import StoreDamaged, StoreError, StoreUnavailable, UnsupportedStoreFormat
from toolbus.events import Event
from toolbus.storage import PruneReport
from toolbus.stores import sqlite
from toolbus.stores._encoding import Fetch, chained, fact_from
from toolbus.stores.archive import verify
from toolbus.stores.sql import Row
from toolbus.stores.sql import _archive as archive
from toolbus.stores.sql import _read as read
from toolbus.stores.sqlite import SqliteStore
from toolbus.testing import ScriptedProvider, hang, text

pytestmark = [pytest.mark.guarantee("G22"), pytest.mark.parametrize("anyio_backend", ["asyncio"])]

LONG = "a long text " * 2_000
# What is done to facts 0-1, 2-3, 4 of request "r" (the content of 3 is a large text, stored apart), the place that is
# named, and how many facts are whole steps before it.
DAMAGE = {
    "changed data": ("UPDATE facts SET data = replace(data, 'two', 'TWO') WHERE request_id = 'r' AND seq = 2", 2, 2),
    "one bit": ("UPDATE facts SET data = CAST(data || ' ' AS BLOB) WHERE request_id = 'r' AND seq = 1", 1, 0),
    "a changed hash": ("UPDATE facts SET hash = zeroblob(32) WHERE request_id = 'r' AND seq = 3", 3, 2),
    "a changed step": ("UPDATE facts SET step_end = 4 WHERE request_id = 'r' AND seq = 2", 2, 2),
    "a row that is gone": ("DELETE FROM facts WHERE request_id = 'r' AND seq = 1", 1, 0),
    "the first row": ("DELETE FROM facts WHERE request_id = 'r' AND seq = 0", 0, 0),
    "a tail that is gone": ("DELETE FROM facts WHERE request_id = 'r' AND seq >= 3", 3, 2),
    "a whole step that is gone": ("DELETE FROM facts WHERE request_id = 'r' AND seq >= 2", 2, 2),
    "all rows": ("DELETE FROM facts WHERE request_id = 'r'", 0, 0),
    "swapped rows": ("UPDATE facts SET seq = 5 - seq WHERE request_id = 'r' AND seq IN (2, 3)", 2, 2),
    "another request's row": (
        "UPDATE facts SET (data, hash) = (SELECT data, hash FROM facts WHERE request_id = 's') WHERE rowid = 5",
        4,
        4,
    ),
    "a row that was put in": (
        "INSERT INTO facts SELECT request_id, 5, 5, type, data, hash FROM facts WHERE request_id = 'r' AND seq = 4",
        5,
        5,
    ),
    "a changed large text": ("UPDATE blobs SET data = replace(data, 'long', 'wrong')", 3, 2),
    "a large text that is gone": ("DELETE FROM blobs", 3, 2),
    "what was agreed": ("UPDATE agreements SET data = CAST('{\"limit\":9}' AS BLOB) WHERE request_id = 'r'", 0, 0),
    "what was agreed is gone": ("DELETE FROM agreements WHERE request_id = 'r'", 0, 0),
    "the request's row": ("DELETE FROM requests WHERE request_id = 'r'", 0, 0),
    "the request's last hash": ("UPDATE requests SET hash = zeroblob(32) WHERE request_id = 'r'", 4, 5),
    "the request's next place": ("UPDATE requests SET next_seq = 4 WHERE request_id = 'r'", 4, 5),
}


@pytest.mark.parametrize("kind", DAMAGE)
async def test_each_kind_of_damage_is_named_with_its_place_and_what_is_before_it_is_given(
    tmp_path: Path, kind: str, anyio_backend: str
) -> None:
    statement, seq, whole = DAMAGE[kind]
    path = tmp_path / "store.db"
    async with aclosing(SqliteStore(path, durability="process")) as store:
        await write_whole(store, "r", "c", LONG)
        await write_whole(store, "s", "d")
        assert (await verify(store)).problems == []
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            _swap_safely(database, statement)
        with pytest.raises(StoreDamaged) as caught:
            await store.facts("r")
        assert (caught.value.request_id, caught.value.seq) == ("r", seq)
        assert str(caught.value).startswith(f"the journal of request r is damaged at fact {seq}: ")
        if kind in ("a row that is gone", "the first row"):
            assert str(caught.value).endswith(": the fact is missing")
        salvaged = await store.salvage("r")
        assert salvaged.damage is not None
        assert [text_of(each.fact) for each in salvaged.facts] == ["zero", "one", "two", LONG, "end"][:whole]
        assert len(await store.facts("s")) == 5
        problems = (await verify(store)).problems
        assert problems
        assert all(getattr(each, "request_id", "r") in {"r", ""} for each in problems)


async def test_the_facts_before_a_page_that_the_database_cannot_read_are_given(
    tmp_path: Path, anyio_backend: str
) -> None:
    path = tmp_path / "store.db"
    async with aclosing(SqliteStore(path, durability="process")) as store:
        for seq in range(60):
            await store.append(entry("r", seq, f"text {seq} ".ljust(1_000, "x")))
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    page = data.index(b"text 40 ") // size * size
    data[page : page + 8] = b"\xff" * 8
    path.write_bytes(data)
    async with aclosing(SqliteStore(path, durability="process")) as store:
        with pytest.raises(StoreDamaged, match=r"at fact \d+: .* is damaged: database disk image is malformed"):
            await store.facts("r")
        salvaged = await store.salvage("r")
        assert salvaged.damage is not None
        assert 30 < len(salvaged.facts) <= 40


async def test_a_fault_while_facts_are_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anyio_backend: str
) -> None:
    def scan(self: sqlite._Sqlite, statement: str, values: Row = ()) -> Iterable[Row]:
        yield from list(real(self, statement, values))[:1]
        exc = sqlite3.OperationalError("interrupted")
        exc.sqlite_errorcode = sqlite3.SQLITE_INTERRUPT
        raise exc

    async with aclosing(SqliteStore(tmp_path / "store.db", durability="process")) as store:
        await store.append(entry("r", 0, "zero", "one"))
        real = sqlite._Sqlite.scan
        monkeypatch.setattr(sqlite._Sqlite, "scan", scan)
        for read in (store.facts, store.salvage):
            with pytest.raises(StoreUnavailable, match="did not answer in time"):
                await read("r")


def _swap_safely(database: sqlite3.Connection, statement: str) -> None:
    """Places are unique, so that two rows change theirs by way of a third."""
    if "5 - seq" in statement:
        database.execute("UPDATE facts SET seq = -seq WHERE request_id = 'r' AND seq IN (2, 3)")
        statement = "UPDATE facts SET seq = 5 + seq WHERE request_id = 'r' AND seq < 0"
    assert database.execute(statement).rowcount > 0


@pytest.mark.parametrize(("seq", "step_end"), [(1, 3), (1, 0), (2, 1), (3, 4)])
async def test_steps_that_overlap_are_damage_although_each_hash_is_right(
    tmp_path: Path, seq: int, step_end: int, anyio_backend: str
) -> None:
    path = tmp_path / "store.db"
    async with aclosing(SqliteStore(path, durability="process")) as store:
        await store.append(entry("r", 0, "zero", "one"))
        await store.append(entry("r", 2, "two", "three"))
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("UPDATE facts SET step_end = ? WHERE seq = ?", (step_end, seq))
            (digest,) = database.execute("SELECT hash FROM facts WHERE seq = ?", (seq - 1,)).fetchone()
            rows = database.execute("SELECT seq, step_end, data FROM facts WHERE seq >= ? ORDER BY seq", (seq,))
            for at, ends, data in rows.fetchall():
                digest = chained(digest, at, ends, data)
                database.execute("UPDATE facts SET hash = ? WHERE seq = ?", (digest, at))
            database.execute("UPDATE requests SET hash = ?", (digest,))
        with pytest.raises(StoreDamaged, match="the steps overlap"):
            await store.facts("r")


async def test_a_request_whose_journal_was_cut_back_to_what_is_whole_goes_on(
    tmp_path: Path, anyio_backend: str
) -> None:
    path = tmp_path / "store.db"
    async with aclosing(SqliteStore(path)) as store:
        await store.append(entry("r", 0, "zero", "one"))
        await store.append(entry("r", 2, "two", "three"))
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("DELETE FROM facts WHERE seq = 3")
        assert await store.cut("r", 7) is None
        assert await store.cut("r", 1) == 2
        await store.append(entry("r", 2, "two again"))
        assert [text_of(each.fact) for each in await store.facts("r")] == ["zero", "one", "two again"]
        assert (await verify(store)).problems == []


async def test_a_journal_whose_first_fact_is_damaged_is_cut_back_to_its_beginning(
    tmp_path: Path, anyio_backend: str
) -> None:
    async with aclosing(SqliteStore(tmp_path / "store.db")) as store:
        await store.append(entry("r", 0, "zero", "one"))
        with closing(sqlite3.connect(store.path, isolation_level=None)) as database:
            database.execute("UPDATE facts SET hash = zeroblob(32) WHERE seq = 0")
        assert await store.cut("r", 1) == 0
        record = await store.request("r")
        assert record is not None
        assert (record.fact_count, record.size_bytes, await store.facts("r")) == (0, 0, [])
        assert (await verify(store)).problems == []


async def test_damage_before_the_facts_that_are_read_is_named_with_its_place(
    tmp_path: Path, anyio_backend: str
) -> None:
    async with aclosing(SqliteStore(tmp_path / "store.db")) as store:
        await write_whole(store)
        with closing(sqlite3.connect(store.path, isolation_level=None)) as database:
            database.execute("DELETE FROM facts WHERE seq = 1")
            with pytest.raises(StoreDamaged, match="damaged at fact 1: the fact is missing"):
                await store.facts("r", start=2)
            database.execute("UPDATE requests SET next_seq = 'five'")
            with pytest.raises(StoreDamaged, match="damaged at fact 2: its row cannot be read"):
                await store.facts("r", start=2)


async def test_a_fact_of_a_newer_toolbus_is_no_damage_and_what_is_before_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anyio_backend: str
) -> None:
    def unknown(data: bytes, fetch: Fetch, where: str) -> Event:
        if b"three" in data:
            raise UnsupportedStoreFormat(f"{where} is newer")
        return fact_from(data, fetch, where)

    monkeypatch.setattr(read, "fact_from", unknown)
    async with aclosing(SqliteStore(tmp_path / "store.db")) as store:
        await write_whole(store)
        with pytest.raises(UnsupportedStoreFormat, match="fact 3 of request r is newer"):
            await store.facts("r")
        salvaged = await store.salvage("r")
        assert ([each.seq for each in salvaged.facts], type(salvaged.damage)) == ([0, 1], UnsupportedStoreFormat)


@pytest.mark.parametrize("gone", ["agreements", "requests"])
async def test_a_request_of_which_nothing_is_whole_is_not_cut_back(
    tmp_path: Path, gone: str, anyio_backend: str
) -> None:
    path = tmp_path / "store.db"
    async with aclosing(SqliteStore(path)) as store:
        await store.append(entry("r", 0, "zero", "one"))
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("DELETE FROM facts")
            database.execute(f"DELETE FROM {gone}")
        with pytest.raises(StoreDamaged, match="damaged at fact 0: the request's agreed options are missing"):
            await store.cut("r", 1)


@pytest.mark.parametrize(
    "statement",
    ["UPDATE agreements SET data = x'7b' WHERE request_id = ?", "UPDATE requests SET epoch = 'x' WHERE request_id = ?"],
)
async def test_a_request_whose_record_is_damaged_keeps_no_other_from_going_on(
    tmp_path: Path, statement: str, anyio_backend: str
) -> None:
    store = SqliteStore(tmp_path / "store.db", durability="process")
    hangs = Runtime(ScriptedProvider([hang()] * 3), store=store, drain_seconds=0)
    async with hangs:
        left = [hangs.start("go").request_id for _ in range(3)]
        for each in left:
            session = hangs.session(each)
            assert session is not None
            await session.accepted()
    with closing(sqlite3.connect(store.path, isolation_level=None)) as database:
        assert database.execute(statement, (left[1],)).rowcount == 1
    async with Runtime(ScriptedProvider([text("done")] * 2), store=store) as runtime:
        for goes_on in ({left[0], left[2]}, set[str]()):  # the second time, too, it is told and not held
            resumption = await runtime.resume()
            assert {each.request_id for each in resumption} == goes_on
            [problem] = resumption.problems
            assert (problem.request.request_id, resumption.held) == (left[1], 0)
            assert isinstance(problem.error, StoreDamaged)
            assert [(await each.result()).outcome for each in resumption] == ["completed"] * len(goes_on)


@pytest.mark.parametrize("column", ["started_at", "lease_until", "size_bytes", "owner", "conversation_id"])
async def test_a_value_of_another_type_in_a_request_hides_no_other_request(
    tmp_path: Path, column: str, anyio_backend: str
) -> None:
    async with aclosing(CommandStore(tmp_path / "store.db")) as store:
        for each in ("r", "s"):
            await store.append(entry(each, conversation_id=each, lease_seconds=0))
        with closing(sqlite3.connect(store.path, isolation_level=None)) as database:
            database.execute(f"UPDATE requests SET {column} = x'00' WHERE request_id = 'r'")
        found = await store.found_requests(is_unfinished=True)
        assert {each.record.request_id for each in found} == {"r", "s"}
        assert {each.request_id for each in await store.requests()} == {"r", "s"}
        with pytest.raises(StoreDamaged, match="damaged at fact 0: its row cannot be read"):
            await store.take("r", "me", 60)


async def test_a_size_of_another_type_does_not_keep_old_data_from_being_deleted(
    tmp_path: Path, anyio_backend: str
) -> None:
    async with aclosing(CommandStore(tmp_path / "store.db")) as store:
        sizes = [await store.append(entry(each, conversation_id=each, ending="completed")) for each in ("r", "s")]
        await store.remember("c", turn("said"))
        with closing(sqlite3.connect(store.path, isolation_level=None)) as database:
            database.execute("UPDATE requests SET size_bytes = 'x' WHERE request_id = 'r'")
            database.execute("UPDATE conversations SET size_bytes = 'y'")
        assert await store.prune(before=1e12, conversations=True) == PruneReport(
            requests=2, conversations=1, size_bytes=sizes[1]
        )


async def test_a_value_of_another_type_in_a_conversation_hides_no_other_one(tmp_path: Path, anyio_backend: str) -> None:
    async with aclosing(CommandStore(tmp_path / "store.db")) as store:
        for each in ("c", "d"):
            await store.remember(each, turn(each))
        with closing(sqlite3.connect(store.path, isolation_level=None)) as database:
            database.execute("UPDATE conversations SET updated_at = 'x', messages = 'y' WHERE conversation_id = 'c'")
        listed = {each.conversation_id: each for each in await store.conversations()}
        assert [(each, listed[each].updated_at > 0, listed[each].message_count) for each in "cd"] == [
            ("c", False, 0),
            ("d", True, 2),
        ]
        assert await store.conversation("c") == listed["c"]
        assert "there are times of another type in the row of conversation 'c'" in [
            str(each) for each in (await verify(store)).problems
        ]
        with pytest.raises(StoreDamaged, match="conversation 'c' is damaged"):
            await store.remember("c", turn("more"))
        await store.append(entry("s"))
        outcomes = dict[str, str]()

        async def end(request_id: str, conversation_id: str, seq: int) -> None:
            last = entry(request_id, seq, conversation_id=conversation_id, ending="completed", turn=turn("end"))
            try:
                await store.append(last)
                outcomes[request_id] = "written"
            except StoreError as exc:
                outcomes[request_id] = str(exc).partition(" at ")[0]

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end, "r", "c", 0)
            tasks.start_soon(end, "s", "d", 1)
        assert outcomes == {"r": "conversation 'c' is damaged", "s": "written"}
        assert len(await store.history("d")) == 4


async def test_a_conversation_that_was_changed_is_not_given(tmp_path: Path, anyio_backend: str) -> None:
    path = tmp_path / "store.db"
    statements = {
        "UPDATE messages SET data = replace(data, 'first', 'other') WHERE position = 0": 0,
        "UPDATE messages SET data = 5 WHERE position = 1": 1,
        "DELETE FROM messages WHERE position = 1": 1,
        "DELETE FROM messages WHERE position = 3": 3,
        "UPDATE conversations SET hash = zeroblob(32)": 4,
        "DELETE FROM conversations": 0,
    }
    for number, (statement, place) in enumerate(statements.items()):
        async with aclosing(SqliteStore(path.with_name(f"{number}.db"))) as store:
            await store.remember("c", turn("first"))
            await store.remember("c", turn("second"))
            with closing(sqlite3.connect(store.path, isolation_level=None)) as database:
                assert database.execute(statement).rowcount == 1
            with pytest.raises(StoreDamaged, match=f"conversation 'c' is damaged at message {place}: "):
                await store.history("c")
            assert len((await verify(store)).problems) == 1


async def test_rows_that_belong_to_nothing_are_reported(
    tmp_path: Path, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_PAGE", 1)
    path = tmp_path / "store.db"
    async with aclosing(SqliteStore(path)) as store:
        await write_whole(store, "r", "c", LONG)
        await store.remember("c", turn(f"another {LONG}"))
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            for statement in ("DELETE FROM requests", "DELETE FROM conversations", "UPDATE blobs SET data = x'00'"):
                database.execute(statement)
        texts = [str(each) for each in (await verify(store)).problems]
    assert texts[:2] == [
        "there are facts of request 'r', which is not in the journal",
        "there are messages of conversation 'c', which is not in the list",
    ]
    assert [each.startswith("the large text ") for each in texts[2:]] == [True, True, True]


async def test_pages_that_were_overwritten_are_found_or_held_nothing(tmp_path: Path, anyio_backend: str) -> None:
    path = tmp_path / "store.db"
    ids = [f"r{number}" for number in range(12)]
    async with aclosing(SqliteStore(path)) as store:
        for each in ids:
            await write_whole(store, each, f"c{each}")
        before = [await store.facts(each) for each in ids]
    pristine = path.read_bytes()
    damaged = 0
    for page in range(1, len(pristine) // 4096):
        path.write_bytes(pristine[: page * 4096 + 3_000] + bytes(16) + pristine[page * 4096 + 3_016 :])
        async with aclosing(SqliteStore(path, durability="process")) as store:
            try:
                is_damaged = bool((await verify(store)).problems)
                if not is_damaged:
                    assert [await store.facts(each) for each in ids] == before
            except StoreDamaged:
                is_damaged = True
        damaged += is_damaged
    assert damaged >= 6


async def test_a_file_whose_tables_have_names_that_are_no_text_is_damaged(tmp_path: Path, anyio_backend: str) -> None:
    path = tmp_path / "store.db"
    async with aclosing(SqliteStore(path)) as store:
        await store.append(entry("r"))
    path.write_bytes(path.read_bytes().replace(b"tablerequestsrequests", b"tablerequ\xd8stsrequests"))
    async with aclosing(SqliteStore(path)) as store:
        with pytest.raises(StoreDamaged, match=f"{path} is damaged: "):
            await store.open()
