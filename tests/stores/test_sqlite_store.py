"""The store in a SQLite file: paths, modes, formats, shared commits, faults of its file and its disk."""

# pyright: reportPrivateUsage=false
# ruff: noqa: ASYNC240 -- the file of a test is no reason to wait

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import shutil
import sqlite3
import stat
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import aclosing, closing
from hashlib import sha256
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from support.deadline_clock import DeadlineClock
from support.environments import importing_from
from support.store_entries import entry, text_of, turn, write_whole
from toolbus.errors import (
    ConfigurationError,
    LeaseLost,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    TurnLost,
    UnsupportedStoreFormat,
)
from toolbus.events import CancelRequested, RequestStarted
from toolbus.messages import ToolMessage, UserMessage
from toolbus.records import replace
from toolbus.storage import Durability, InboxReceipt, JournalStore, Store
from toolbus.stores import _encoding, _read_ahead, sqlite
from toolbus.stores._encoding import written
from toolbus.stores.archive import Archive, verify
from toolbus.stores.sql import Database, Row, _schema
from toolbus.stores.sql import _append as append
from toolbus.stores.sql import _order as order
from toolbus.stores.sql._inbox import send_all
from toolbus.stores.sql._order import WantedTurn, take_all
from toolbus.stores.sql.find import requests
from toolbus.stores.sqlite import SqliteStore, has_reset_race

RECORDED = Path(__file__).parent.parent / "data" / "stores" / "format-1.sqlite"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def narrow_umask() -> Iterator[None]:
    before = os.umask(0o777)
    yield
    os.umask(before)


async def test_a_store_is_its_own_journal_and_archive(path: Path) -> None:
    store = SqliteStore(path)
    assert isinstance(store, Store)
    assert isinstance(store.journal, Archive)
    journal: JournalStore = store.journal
    assert journal is store
    assert not path.exists()
    await store.aclose()


# ------------------------------------------------------------------------------------------------- the file


async def test_the_file_and_its_logs_are_for_their_owner_alone(path: Path, narrow_umask: None) -> None:
    async with aclosing(SqliteStore(path)) as store:
        await store.append(entry())
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
        assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}


async def refusal(path: Path) -> str:
    store = SqliteStore(path)
    with pytest.raises(StoreError) as caught:
        await store.open()
    await store.aclose()
    return str(caught.value)


async def test_each_path_that_cannot_be_used_is_named_at_the_start_with_what_to_do(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "such.db"
    assert (
        await refusal(missing) == f"{missing} cannot be created: there is no folder {missing.parent}; create it first"
    )
    assert await refusal(tmp_path) == f"{tmp_path} is a folder; pass the path of a file in it"
    assert await refusal(tmp_path / ("a" * 300)) == f"{tmp_path / ('a' * 300)} cannot be opened: File name too long"
    text = tmp_path / "notes.txt"
    text.write_text("This is a text, and no database. " * 100)
    assert await refusal(text) == f"{text} is not a SQLite database, or its beginning is damaged; pass another path"
    assert text.read_text().startswith("This is a text")
    foreign = tmp_path / "foreign.db"
    with closing(sqlite3.connect(foreign)) as database:
        database.execute("CREATE TABLE things (x)")
    assert f"{foreign} is a database of another program (application id 0, 1 tables" in await refusal(foreign)
    for wrong in ("", ":memory:", "file:x?mode=ro", "sqlite:///toolbus.db"):
        with pytest.raises(ConfigurationError, match="not the path of a file"):
            SqliteStore(wrong)
    with pytest.raises(ConfigurationError, match="durability is 'never'; it must be 'power' or 'process'"):
        SqliteStore(text, durability="never")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="timeout_seconds is 0; it must be a finite number above 0"):
        SqliteStore(text, timeout_seconds=0)


async def test_a_file_that_may_not_be_written_is_refused_at_the_start(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.touch()

    def access(_path: object, mode: int) -> bool:
        return mode != os.W_OK

    monkeypatch.setattr(os, "access", access)  # root may write anything
    assert await refusal(path) == (
        f"{path} cannot be written by this user; check the permissions of the file, and whether its disk is read-only"
    )

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    other = path.with_name("other.db")
    monkeypatch.setattr(os, "open", refuse)
    assert (
        await refusal(other) == f"{other} cannot be created: Permission denied; check the permissions of {path.parent}"
    )


@pytest.mark.guarantee("G23")
async def test_a_file_of_a_newer_format_is_refused_by_name_and_left_alone(path: Path) -> None:
    async with aclosing(SqliteStore(path)) as store:
        await store.append(entry())
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    store = SqliteStore(path)
    with pytest.raises(
        UnsupportedStoreFormat, match=f"{path} was written by a newer toolbus, in format 99; this version knows"
    ):
        await store.facts("r")
    await store.aclose()
    assert path.read_bytes() == before


@pytest.mark.guarantee("G23")
async def test_a_file_that_was_recorded_in_format_1_is_read_and_goes_on(path: Path) -> None:
    shutil.copy(RECORDED, path)
    async with aclosing(SqliteStore(path)) as store:
        assert [each.step_end for each in await store.facts("ended")] == [1, 1, 3, 3, 4]
        assert len(await store.history("talk")) == 2
        [left] = await store.unfinished()
        assert (left.request_id, left.fact_count, left.agreed) == ("left", 2, {"limit": 3})
        taken = await store.take("left", "somebody", 60)
        assert taken is not None
        await store.append(entry("left", 2, epoch=taken.epoch, conversation_id="talk", ending="completed"))
        assert (await verify(store)).problems == []


@pytest.mark.guarantee("G23")
async def test_an_older_format_is_brought_up_to_date_in_one_transaction(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(RECORDED, path)

    def add_a_column(database: Database, types: object) -> None:
        database.run("ALTER TABLE requests ADD COLUMN colour TEXT")

    def fail(database: Database, types: object) -> None:
        raise StoreError("the step failed")

    def do_nothing(database: Database, types: object) -> None:
        pass

    steps: list[Any] = [*_schema._STEPS, add_a_column]
    for module in (_schema, sqlite):
        monkeypatch.setattr(module, "FORMAT", 3)
    monkeypatch.setattr(_schema, "_STEPS", [*steps, fail])
    assert await refusal(path) == "the step failed"
    monkeypatch.setattr(_schema, "_STEPS", [*steps, do_nothing])
    async with aclosing(SqliteStore(path)) as store:
        assert len(await store.facts("ended")) == 5
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (3,)
        assert "colour" in [row[1] for row in database.execute("PRAGMA table_info(requests)")]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("durability", "level"), [("power", 2), ("process", 1)])
async def test_durability_is_how_far_sqlite_syncs(
    path: Path, durability: Durability, level: int, anyio_backend: str
) -> None:
    async with aclosing(SqliteStore(path, durability=durability)) as store:
        run = store._writer.run
        assert await run(lambda database: database.rows("PRAGMA synchronous")) == [(level,)]
        assert await run(lambda database: database.rows("PRAGMA journal_mode")) == [("wal",)]


# ---------------------------------------------------------------------------------------- appends and threads


@pytest.mark.guarantee("G11")
async def test_a_thousand_appends_at_once_share_few_commits(path: Path) -> None:
    async with aclosing(SqliteStore(path)) as store:
        await store.open()
        async with anyio.create_task_group() as tasks:
            for number in range(1_000):
                tasks.start_soon(store.append, entry(f"r{number}", conversation_id=f"c{number}"))
        counted = await store.statistics()
        assert (counted.requests, counted.facts, counted.appends) == (1_000, 1_000, 1_000)
        assert counted.commits <= 20
        assert counted.queued_peak >= 1_000 / counted.commits


async def test_entries_that_are_refused_do_not_harm_those_that_share_their_commit(path: Path) -> None:
    outcomes: dict[str, object] = {}
    causes: dict[str, BaseException | None] = {}

    async def append(name: str, request_id: str, seq: int, epoch: int = 1) -> None:
        try:
            outcomes[name] = await store.append(entry(request_id, seq, epoch=epoch))
        except StoreError as exc:
            outcomes[name] = type(exc), str(exc)
            causes[name] = exc.__cause__

    async with aclosing(SqliteStore(path)) as store:
        for known in ("a", "b", "c"):
            await store.append(entry(known))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append, "good", "a", 1)
            tasks.start_soon(append, "again", "b", 0)
            tasks.start_soon(append, "stale", "c", 1, 7)
            tasks.start_soon(append, "unknown", "x", 1)
            tasks.start_soon(append, "half a character", "\ud83d", 0)
            tasks.start_soon(append, "begins", "d", 0)
        assert isinstance(outcomes.pop("good"), int)
        assert isinstance(outcomes.pop("begins"), int)
        assert outcomes.pop("again") == (StoreError, "request b is in the journal already")
        assert outcomes.pop("unknown") == (LeaseLost, str(LeaseLost("x", 1)))
        assert outcomes.pop("stale") == (LeaseLost, str(LeaseLost("c", 7)))
        assert [*outcomes] == ["half a character"]
        assert isinstance(causes["half a character"], (TypeError, UnicodeError))
        assert (await store.statistics()).facts == 5
        await store.append(entry("a", 2))


async def test_turns_and_inputs_that_are_refused_do_not_harm_those_that_share_their_commit(path: Path) -> None:
    half = "\ud83d"
    inputs = [CancelRequested(request_id=each, event_id=each) for each in ("a", half, "x")]
    turns = [WantedTurn(each, each, "owner", 60) for each in ("b", half, "a", "b")]
    async with aclosing(SqliteStore(path)) as store:
        await store.append(entry("a"))
        sent = await store._writer.run(lambda database: send_all(database, inputs))
        assert [each.state if isinstance(each, InboxReceipt) else type(each) for each in sent] == [
            *("waiting", StoreError, "unknown"),
        ]
        taken = await store._writer.run(lambda database: take_all(database, turns))
        assert [each if isinstance(each, bool) else type(each) for each in taken] == [True, StoreError, True, True]
        assert not await store.take_turn("b", "another", "another", 60)
        with pytest.raises(StoreError, match="cannot take a value"):
            await store.take_turn(half, "r", "owner", 60)


async def test_a_disk_that_fails_while_entries_are_written_one_by_one_fails_them_all(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, groups = append._Group.write, list[int]()

    def fails(group: append._Group) -> None:
        groups.append(len(group.outcomes))
        write(group)
        if len(groups) == 3:
            raise sqlite3.OperationalError("disk I/O error")

    async with aclosing(SqliteStore(path)) as store:
        await store.append(entry("a"))
        monkeypatch.setattr(append._Group, "write", fails)
        entries = [written(each) for each in (entry("a"), entry("b"), entry("c"))]
        with pytest.raises(StoreError, match="disk I/O error"):
            await store._writer.run(lambda database: append.append_all(database, entries))
        assert groups == [3, 1, 1]
        assert await store.request_ids() == ["a"]


async def test_an_entry_that_is_refused_without_a_reason_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_group: append._Group) -> None:
        raise append._Refused

    async with aclosing(SqliteStore(path)) as store:
        await store.append(entry("a"))
        monkeypatch.setattr(append._Group, "write", refuses)
        with pytest.raises(StoreError, match="request a cannot be written, for an unknown reason"):
            await store.append(entry("a", 1))


async def test_a_disk_that_fails_while_the_reason_of_a_refusal_is_looked_up_is_the_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_group: append._Group) -> None:
        raise append._Refused

    def rows(self: sqlite._Sqlite, statement: str, values: Row = ()) -> Sequence[Row]:
        if statement.startswith("SELECT 1 FROM agreements"):
            raise sqlite3.OperationalError("disk I/O error")
        return real(self, statement, values)

    async with aclosing(SqliteStore(path)) as store:
        real = sqlite._Sqlite.rows
        monkeypatch.setattr(append._Group, "write", refuses)
        with pytest.raises(TurnLost):
            await store.append(entry("a"))
        monkeypatch.setattr(sqlite._Sqlite, "rows", rows)
        with pytest.raises(StoreError, match="disk I/O error"):
            await store.append(entry("a"))


async def test_the_prompts_of_listed_requests_are_read_also_long_ones_and_a_damaged_one_is_empty(path: Path) -> None:
    prompts = {"long": "x" * 20_000, "lost": "y" * 20_000, "short": "Hi."}
    async with aclosing(SqliteStore(path)) as store:
        for request_id, prompt in prompts.items():
            begun = RequestStarted(request_id=request_id, prompt=prompt, timeout_seconds=1.0)
            await store.append(replace(entry(request_id), facts=[begun]))
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("DELETE FROM blobs WHERE digest = ?", (sha256(prompts["lost"].encode()).digest(),))
        found = await store._read(requests, None, False, 100)
        assert {each.record.request_id: each.prompt for each in found} == {**prompts, "lost": ""}


async def test_the_ends_of_journals_are_remembered_up_to_a_bound(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_encoding, "_MAX_HEADS", 2)
    async with aclosing(SqliteStore(path)) as store:
        for each in "abc":
            await store.append(entry(each))
        assert await store._writer.run(lambda database: [*database.heads]) == ["b", "c"]
        await store.append(entry("a", 1))
        await store.append(entry("c", 1, ending="completed"))
        assert await store._writer.run(lambda database: [*database.heads]) == ["a"]


async def test_a_file_that_cannot_have_a_log_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect: Any = sqlite3.connect

    def in_memory(_path: Path, **options: Any) -> Any:
        return connect(":memory:", **options)

    monkeypatch.setattr(sqlite3, "connect", in_memory)
    async with aclosing(SqliteStore(path)) as store:
        with pytest.raises(StoreError, match=r"cannot have a write-ahead log \(its journal mode stays memory\)"):
            await store.open()


async def run_program(program: str, path: Path) -> int:
    """The exit code of a program that has `path` and the tests' modules."""
    env = importing_from(Path(__file__).parent.parent)
    done = await anyio.run_process([sys.executable, "-c", program, str(path)], env=env, check=False, stderr=None)
    return done.returncode


TAKES_OVER = """
import asyncio, sys
from contextlib import aclosing
from support.store_entries import entry
from toolbus.stores.sqlite import SqliteStore

async def main():
    async with aclosing(SqliteStore(sys.argv[1])) as store:
        assert await store.take("r", "other", 3_600)
        await store.append(entry("r", 1, "theirs", epoch=2))

asyncio.run(main())
"""


@pytest.mark.guarantee("G20")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_process_that_was_taken_over_by_another_one_cannot_write_any_more(
    path: Path, anyio_backend: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_has_warned", [])
    async with aclosing(SqliteStore(path)) as store:
        await store.append(entry(lease_seconds=0))
        assert await run_program(TAKES_OVER, path) == 0
        with pytest.raises(LeaseLost):
            await store.append(entry("r", 1, "ours"))
        assert [text_of(each.fact) for each in await store.facts("r")] == ["fact 0", "theirs"]
        with caplog.at_level(logging.WARNING, "toolbus.store"):
            for _ in range(2):
                assert not await store.renew("nobody", 60)
        reported = [each for each in caplog.messages if "several processes write" in each]
        assert len(reported) == has_reset_race(sqlite3.sqlite_version_info)


def test_a_library_without_the_statements_that_the_store_needs_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 24, 0))
    SqliteStore(path)
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 23, 1))
    with pytest.raises(ConfigurationError, match=r"needs 3\.24 or newer"):
        SqliteStore(path)


async def test_a_connection_that_cannot_be_used_is_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closings: list[None] = []

    class Seen(sqlite3.Connection):
        def close(self) -> None:
            closings.append(None)
            super().close()

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Seen))
    path.write_bytes(b"no database " * 1_000)
    async with aclosing(SqliteStore(path)) as store:
        with pytest.raises(StoreError):
            await store.history("c")
    assert closings


async def test_one_warning_is_logged_and_only_after_another_process_has_written(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_has_warned", [])
    monkeypatch.setattr(sqlite, "has_reset_race", bool)  # whatever version is here
    reported: list[int] = []
    async with aclosing(SqliteStore(path)) as store, aclosing(SqliteStore(path)) as other:
        for writer in (store, other, other):
            await writer.append(entry(f"r{len(reported)}"))
            await store.renew("nobody", 60)
            reported.append(sum("several processes write" in each for each in caplog.messages))
    assert reported == [0, 1, 1]


def test_which_versions_of_sqlite_have_the_race() -> None:
    affected = {(3, 40, 1), (3, 44, 5), (3, 45, 0), (3, 50, 6), (3, 51, 2)}
    repaired = {(3, 44, 6), (3, 50, 7), (3, 51, 3), (3, 52, 0), (4, 0, 0)}
    assert {each for each in chain(affected, repaired) if has_reset_race(each)} == affected


async def test_a_store_that_was_closed_opens_again_and_leaves_no_thread(path: Path) -> None:
    store = SqliteStore(path)
    await write_whole(store)
    await store.aclose()
    assert not store._writer.is_running
    assert [each.name for each in path.parent.iterdir()] == ["store.db"]
    assert len(await store.history("c")) == 2
    await store.remember("c", turn("more"))
    assert len(await store.history("c")) == 4
    await store.aclose()


ENDS_EARLY = """
import asyncio, sys
from support.store_entries import entry
from toolbus.stores.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    await store.append(entry("first"))
    tasks = [asyncio.ensure_future(store.append(entry(f"r{number}"))) for number in range(50)]
    await asyncio.sleep(0)
    sys.exit(3)

asyncio.new_event_loop().run_until_complete(main())
"""


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_is_queued_when_the_program_ends_is_written(path: Path, anyio_backend: str) -> None:
    assert await run_program(ENDS_EARLY, path) == 3
    async with aclosing(SqliteStore(path)) as store:
        assert (await store.statistics()).requests == 51


WRITES_ON = """
import asyncio, sys
from support.store_entries import entry
from toolbus.stores.sqlite import SqliteStore

async def write(store, number):
    for seq in range(1_000_000):
        await store.append(entry(f"r{number}", seq, "some text " * 50))
        print(number, seq, flush=True)

async def main():
    store = SqliteStore(sys.argv[1], durability="process")
    await asyncio.gather(*[write(store, number) for number in range(8)])

asyncio.run(main())
"""


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_of_a_killed_process_each_append_that_had_returned_is_there_and_whole(
    path: Path, anyio_backend: str
) -> None:
    env = importing_from(Path(__file__).parent.parent)
    reported: list[bytes] = []
    async with await anyio.open_process([sys.executable, "-c", WRITES_ON, str(path)], env=env) as process:
        assert process.stdout is not None
        while sum(each.count(b"\n") for each in reported) < 400:
            reported.append(await process.stdout.receive())
        process.kill()
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                reported.append(await process.stdout.receive())
    lines = [line.split() for line in b"".join(reported).splitlines(keepends=True) if line.endswith(b"\n")]
    returned = {int(number): int(seq) for number, seq in lines}
    async with aclosing(SqliteStore(path)) as store:
        assert len(returned) == 8
        for number, seq in returned.items():
            assert len(await store.facts(f"r{number}")) in {
                seq + 1,
                seq + 2,
            }  # the last may not have been told any more
        assert (await verify(store)).problems == []


FORKS = """
import asyncio, os, sys
from support.store_entries import entry
from toolbus.stores.sqlite import SqliteStore

store = SqliteStore(sys.argv[1])
loop = asyncio.new_event_loop()
loop.run_until_complete(store.append(entry("parent")))
child = os.fork()
if child == 0:
    asyncio.new_event_loop().run_until_complete(store.append(entry("child")))
    store._writer.finish(5)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
loop.run_until_complete(store.append(entry("parent", 1)))
loop.run_until_complete(store.aclose())
"""


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_forked_child_has_a_connection_of_its_own(path: Path, anyio_backend: str) -> None:
    assert await run_program(FORKS, path) == 0
    async with aclosing(SqliteStore(path)) as store:
        assert len(await store.facts("parent")) == 2
        assert len(await store.facts("child")) == 1


# ------------------------------------------------------------------------------------------------- faults


@pytest.mark.guarantee("G21")
async def test_a_file_that_another_process_locks_is_unavailable_and_works_when_it_lets_go(
    path: Path, clock: DeadlineClock
) -> None:
    async with aclosing(SqliteStore(path, timeout_seconds=0.2)) as store:
        await store.append(entry())
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match=f"{path} is locked by another process") as caught:
                await store.append(entry("r", 1))
            assert caught.value.retryable
            assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
            with clock.running(), pytest.raises(StoreUnavailable):
                await store.take("r", "somebody", 60)
            assert len(await store.facts("r")) == 1
            other.execute("ROLLBACK")
        await store.append(entry("r", 1))
        assert len(await store.facts("r")) == 2


@pytest.mark.guarantee("G21")
def test_a_lock_is_waited_for_until_the_deadline_also_where_the_job_before_had_a_little_less_time(
    path: Path, clock: DeadlineClock
) -> None:
    """A transaction that gave up before the deadline of its oldest append would fail the others too."""
    database = sqlite._Sqlite(path, "process", clock.now + 0.15, reads=False)
    with closing(sqlite3.connect(path, isolation_level=None)) as other, closing(database):
        other.execute("BEGIN IMMEDIATE")
        database.deadline = clock.now + 0.23
        with clock.running(), pytest.raises(sqlite3.OperationalError, match="locked"):
            database.begin()
        assert clock.now >= database.deadline


async def test_two_that_open_one_new_file_at_once_both_work_on_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one has looked at the file before the first one makes the tables, and waits for its turn."""
    first: list[sqlite._Sqlite] = []
    begin = sqlite._Sqlite.begin

    def begin_second(self: sqlite._Sqlite, *, reading: bool = False) -> None:
        if not first:
            monkeypatch.undo()
            first.append(sqlite._Sqlite(path, "process", monotonic() + 60, reads=False))
        begin(self, reading=reading)

    monkeypatch.setattr(sqlite._Sqlite, "begin", begin_second)
    async with aclosing(SqliteStore(path)) as store:
        await store.append(entry())
        with closing(first[0]) as other:
            assert other.rows("SELECT request_id FROM requests") == [("r",)]
        assert len(await store.facts("r")) == 1


CODES: dict[int, tuple[type[StoreError], str, bool]] = {
    1: (StoreError, "planted", False),  # SQLITE_ERROR
    5: (StoreUnavailable, "is locked by another process", False),  # SQLITE_BUSY
    261: (StoreUnavailable, "is locked by another process", False),  # SQLITE_BUSY_RECOVERY
    6: (StoreUnavailable, "is locked by another process", False),  # SQLITE_LOCKED
    8: (StoreError, "cannot be written", True),  # SQLITE_READONLY
    1032: (StoreError, "cannot be written", True),  # SQLITE_READONLY_DBMOVED
    9: (StoreUnavailable, "did not answer in time", False),  # SQLITE_INTERRUPT
    10: (StoreError, "planted", True),  # SQLITE_IOERR
    266: (StoreError, "planted", True),  # SQLITE_IOERR_READ
    11: (StoreDamaged, "is damaged", True),  # SQLITE_CORRUPT
    779: (StoreDamaged, "is damaged", True),  # SQLITE_CORRUPT_INDEX
    13: (StoreError, "there is no space", False),  # SQLITE_FULL
    4874: (StoreError, "there is no space", True),  # SQLITE_IOERR_SHMSIZE
    14: (StoreError, "cannot be opened", True),  # SQLITE_CANTOPEN
    15: (StoreError, "planted", True),  # SQLITE_PROTOCOL
    26: (StoreDamaged, "is not a SQLite database", True),  # SQLITE_NOTADB
}
"""By SQLite's result code (https://sqlite.org/rescode.html): the error, its words, and whether the file is opened anew."""


@pytest.mark.guarantee("G21")
@pytest.mark.parametrize("code", CODES)
async def test_each_fault_of_sqlite_is_reported_by_its_own_error_and_the_store_works_again(
    path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, words, is_opened_anew = CODES[code]
    async with aclosing(SqliteStore(path)) as store:
        await store.append(entry())
        before = await store._writer.run(id)

        def fail(*_: Any, **__: Any) -> None:
            error = sqlite3.OperationalError("planted")
            error.sqlite_errorcode = code
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(sqlite._Sqlite, "insert", fail)
            with pytest.raises(StoreError, match=words) as caught:
                await store.append(entry("r", 1))
        assert type(caught.value) is kind
        assert caught.value.retryable is (kind is StoreUnavailable)
        await store.append(entry("r", 1))
        assert len(await store.facts("r")) == 2
        assert (await store._writer.run(id) != before) is is_opened_anew


@pytest.mark.guarantee("G21")
async def test_a_full_disk_is_a_typed_error_and_work_goes_on_when_there_is_room_again(path: Path) -> None:
    async with aclosing(SqliteStore(path)) as store:
        await store.append(entry())
        pages = (await store._writer.run(lambda database: database.rows("PRAGMA page_count")))[0][0]
        await store._writer.run(lambda database: database.rows(f"PRAGMA max_page_count = {pages}"))
        with pytest.raises(StoreError, match=f"there is no space for {path}: database or disk is full") as caught:
            await store.append(entry("r", 1, "large " * 2_000))
        assert not caught.value.retryable
        assert len(await store.facts("r")) == 1
        await store._writer.run(lambda database: database.rows("PRAGMA max_page_count = 100000"))
        await store.append(entry("r", 1, "large " * 2_000))
        assert len(await store.facts("r")) == 2


@pytest.mark.guarantee("G21")
async def test_all_appends_of_a_commit_that_fails_are_reported_each_by_an_error_of_its_own(
    path: Path, clock: DeadlineClock
) -> None:
    errors: list[StoreError] = []

    async def append(number: int) -> None:
        try:
            await store.append(entry(f"r{number}"))
        except StoreUnavailable as exc:
            errors.append(exc)

    async with aclosing(SqliteStore(path, timeout_seconds=0.2)) as store:
        await store.open()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with clock.running():
                async with anyio.create_task_group() as tasks:
                    for number in range(5):
                        tasks.start_soon(append, number)
        assert len({id(each) for each in errors}) == 5
        assert (await store.statistics()).requests == 0


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


async def test_a_reading_that_takes_too_long_is_given_up(path: Path, clock: DeadlineClock) -> None:
    def read(database: Database) -> object:
        clock.now = database.deadline + 1
        return database.rows(ENDLESS)

    async with aclosing(SqliteStore(path)) as store:
        with pytest.raises(StoreUnavailable, match="did not answer in time: interrupted"):
            await store._read(read)
        assert await store.history("c") == []


async def test_a_reading_that_is_cancelled_ends_however_long_it_would_have_taken(path: Path) -> None:
    begun = threading.Event()

    def read(database: Database) -> object:
        begun.set()
        return database.rows(ENDLESS)

    async with aclosing(SqliteStore(path)) as store, anyio.create_task_group() as tasks:
        tasks.start_soon(functools.partial(store._read, read, seconds=600.0))
        while not begun.is_set():
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


@pytest.mark.guarantee("G22")
async def test_a_file_whose_beginning_was_overwritten_is_reported_as_damaged(path: Path) -> None:
    async with aclosing(SqliteStore(path)) as store:
        await write_whole(store)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096 * 3)
    async with aclosing(SqliteStore(path)) as store:
        with pytest.raises(StoreDamaged):
            for request in ("r", "x"):
                await store.facts(request)
                await store.history("c")
                await store.statistics()
                await store.append(entry(request))


# ------------------------------------------------------------------------------------------- what is deleted


async def test_pruning_deletes_old_requests_and_the_large_texts_that_nobody_else_has(path: Path) -> None:
    large, shared = "only here " * 5_000, "in the conversation too " * 2_000
    async with aclosing(SqliteStore(path)) as store:

        async def blobs() -> int:
            return (await store._read(lambda database: database.rows("SELECT count(*) FROM blobs")))[0][0]

        await store.append(entry("old", 0, large, shared))
        message = ToolMessage(call_id="call", name="tool", content=shared)
        await store.append(entry("old", 2, ending="completed", turn=[*turn("q"), message]))
        await store.append(entry("open", 0, large))
        assert await blobs() == 2
        record = await store.request("old")
        assert record is not None
        assert record.ended_at is not None
        assert (await store.prune(before=record.ended_at)).requests == 0
        done = await store.prune(before=record.ended_at + 1)
        assert (done.requests, done.conversations, done.size_bytes) == (1, 0, record.size_bytes)
        assert await blobs() == 2
        assert [each.conversation_id for each in await store.conversations(search="in the CONVERSATION")] == ["c"]
        await store.abandon("open", 1)
        done = await store.prune(before=record.ended_at + 60, conversations=True)
        assert (done.requests, done.conversations) == (1, 1)
        assert await blobs() == 0
        assert (await store.statistics()).size_bytes == 0
        assert (await verify(store)).problems == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_turns_of_pruned_requests_are_deleted_with_them_in_batches_and_not_all_at_once(
    path: Path, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []

    def drop_old(database: Database, before: float) -> None:
        left.append(database.rows("SELECT count(*) FROM turns")[0][0])
        real(database, before)

    real = order.drop_old
    monkeypatch.setattr(order, "drop_old", drop_old)
    async with aclosing(SqliteStore(path)) as store:
        for number in range(3):
            assert await store.take_turn(f"c{number}", f"r{number}", "worker", 0)
            await store.append(entry(f"r{number}", conversation_id=f"c{number}", ending="completed"))
        assert await store.take_turn("c", "never begun", "worker", 0)
        assert (await store.prune(before=1e12)).requests == 3
        assert left == [1]
        assert await store._read(lambda database: database.rows("SELECT * FROM turns")) == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("together_bytes", "queries"), [(2**24, 2), (100_000, 8), (1, 39)])
async def test_large_texts_are_read_together_up_to_a_bound(
    path: Path, anyio_backend: str, monkeypatch: pytest.MonkeyPatch, together_bytes: int, queries: int
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(_read_ahead, "MAX_BYTES", together_bytes)

    def rows(self: sqlite._Sqlite, statement: str, values: Row = ()) -> Sequence[Row]:
        asked.append(statement)
        found = real(self, statement, values)
        if statement.startswith("SELECT digest, data "):
            assert len(found) == 1 or sum(len(data) for _, data in found) <= together_bytes
        return found

    texts = [f"{number} ".ljust(20_000, "x") for number in range(20)]
    async with aclosing(SqliteStore(path, durability="process")) as store:
        # The last one has the text of the first one again.
        await store.append(entry("r", 0, *texts, texts[0]))
        await store.remember("c", [UserMessage(content=each) for each in texts])
        real = sqlite._Sqlite.rows
        monkeypatch.setattr(sqlite._Sqlite, "rows", rows)
        assert [text_of(each.fact) for each in await store.facts("r")] == [*texts, texts[0]]
        asked.clear()
        assert [each.text for each in await store.history("c")] == texts
        assert sum("FROM blobs" in each for each in asked) == queries


@pytest.mark.guarantee("G22")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_large_text_that_the_database_cannot_read_is_damage_only_where_it_is_used(
    path: Path, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{number} ".ljust(20_000, "x") for number in range(5)]
    bad = sha256(texts[3].encode()).digest()

    def rows(self: sqlite._Sqlite, statement: str, values: Row = ()) -> Sequence[Row]:
        if statement.startswith("SELECT digest, data ") and bad in values:
            exc = sqlite3.DatabaseError("database disk image is malformed")
            exc.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise exc
        return real(self, statement, values)

    async with aclosing(SqliteStore(path, durability="process")) as store:
        for number, each in enumerate(texts):
            await store.append(entry("r", number, each))
        real = sqlite._Sqlite.rows
        monkeypatch.setattr(sqlite._Sqlite, "rows", rows)
        found = await store.salvage("r")
        assert [text_of(each.fact) for each in found.facts] == texts[:3]
        assert isinstance(found.damage, StoreDamaged)
        assert found.damage.seq == 3


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_outage_while_large_texts_are_read_is_no_damage_and_is_not_asked_again(
    path: Path, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def rows(self: sqlite._Sqlite, statement: str, values: Row = ()) -> Sequence[Row]:
        if asked or "digest, coalesce(length(data), 0)" in statement:
            asked.append(statement)
            exc = sqlite3.OperationalError("disk I/O error")
            exc.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise exc
        return real(self, statement, values)

    async with aclosing(SqliteStore(path, durability="process")) as store:
        await store.append(entry("r", 0, *[f"{number} ".ljust(20_000, "x") for number in range(3)]))
        real = sqlite._Sqlite.rows
        monkeypatch.setattr(sqlite._Sqlite, "rows", rows)
        with pytest.raises(StoreError, match="disk I/O error"):
            await store.facts("r")
        assert [each.split(" FROM")[0] for each in asked] == ["SELECT digest, coalesce(length(data), 0)"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_conversation_of_many_requests_is_deleted_with_as_few_queries_as_one_of_one_request(
    path: Path, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def rows(self: sqlite._Sqlite, statement: str, values: Row = ()) -> Sequence[Row]:
        asked.append(statement)
        return real(self, statement, values)

    async with aclosing(SqliteStore(path)) as store:
        for conversation_id, requests in (("one", 1), ("many", 21)):
            for number in range(requests):
                one = entry(
                    f"{conversation_id} {number}", 0, f"{number} large " * 3_000, conversation_id=conversation_id
                )
                one.ending = "completed"
                await store.append(one)
        real = sqlite._Sqlite.rows
        monkeypatch.setattr(sqlite._Sqlite, "rows", rows)
        assert await store.forget("one")
        by_one = len(asked)
        asked.clear()
        assert await store.forget("many")
        assert len(asked) == by_one
        assert (
            await store._read(lambda database: database.rows("SELECT 1 FROM blobs UNION ALL SELECT 1 FROM blob_uses"))
            == []
        )


@pytest.mark.guarantee("G20")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_nothing_is_written_to_a_file_that_was_deleted_or_replaced_while_it_was_open(
    tmp_path: Path, how: str, anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with aclosing(SqliteStore(tmp_path / "store.db")) as store:
        await store.append(entry("before"))
        assert len(await store.requests()) == 1
        for each in tmp_path.iterdir():
            each.unlink()
        if how == "replaced":
            async with aclosing(SqliteStore(store.path)) as other:
                await other.append(entry("of another"))
        await store.append(entry("after"))
        with pytest.raises(LeaseLost, match="request before was taken over"):
            await store.append(entry("before", 1))
        expected = {"after", "of another"} if how == "replaced" else {"after"}
        assert {each.request_id for each in await store.requests()} == expected
        async with aclosing(SqliteStore(store.path)) as reader:
            assert {each.request_id for each in await reader.requests()} == expected
    assert "was deleted or replaced while it was open" in caplog.text


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_backup_that_replaces_an_open_file_does_not_get_the_log_of_that_file(
    tmp_path: Path, anyio_backend: str
) -> None:
    path, backup, kept = tmp_path / "store.db", tmp_path / "backup.db", tmp_path / "kept.db"
    async with aclosing(SqliteStore(path)) as one, aclosing(SqliteStore(path)) as two:
        await one.append(entry("saved"))
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as target:
            source.backup(target)
        for number in range(20):
            await one.append(entry(f"lost {number}", 0, "long " * 5_000))
        assert len(await two.requests()) == 21
        assert await two.release("lost 1", 1)
        path.rename(kept)
        backup.rename(path)
        await two.append(entry("after"))
        await one.append(entry("also after"))
        for each in (one, two):
            assert {found.request_id for found in await each.requests()} == {"saved", "after", "also after"}
    async with aclosing(SqliteStore(path)) as again, aclosing(SqliteStore(kept)) as old:
        assert (await verify(again)).problems == []
        assert (len(await again.requests()), len(await old.requests())) == (3, 21)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_nothing_is_written_to_a_log_that_was_deleted_while_it_was_open(
    tmp_path: Path, anyio_backend: str
) -> None:
    async with aclosing(SqliteStore(tmp_path / "store.db")) as store:
        await store.append(entry("before"))
        for suffix in ("-wal", "-shm"):
            (tmp_path / f"store.db{suffix}").unlink()
        async with aclosing(SqliteStore(store.path)) as other:
            await store.append(entry("after"))
            assert {each.request_id for each in await other.requests()} == {"before", "after"}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("link", ["of the file", "of its folder"])
async def test_a_link_that_leads_to_another_file_is_followed_and_the_log_of_the_first_file_is_kept(
    tmp_path: Path, link: str, anyio_backend: str
) -> None:
    paths = [tmp_path / "one" / "store.db", tmp_path / "two" / "store.db"]
    for each in paths:
        each.parent.mkdir()
    current = tmp_path / "current"
    targets = paths if link == "of the file" else [each.parent for each in paths]
    current.symlink_to(targets[0])
    async with (
        aclosing(SqliteStore(current if link == "of the file" else current / "store.db")) as store,
        aclosing(SqliteStore(paths[0])) as first,
    ):
        await store.append(entry("before"))
        assert len(await first.requests()) == 1
        current.unlink()
        current.symlink_to(targets[1])
        await store.append(entry("after"))
        await first.append(entry("also in the first"))
        found = [{each.request_id for each in await reader.requests()} for reader in (store, first)]
        assert found == [{"after"}, {"before", "also in the first"}]
        assert [(await verify(each)).problems for each in (store, first)] == [[], []]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_nothing_is_written_to_a_file_whose_folder_was_deleted(tmp_path: Path, anyio_backend: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    async with aclosing(SqliteStore(folder / "store.db")) as store:
        await store.append(entry("before"))
        shutil.rmtree(folder)
        with pytest.raises(StoreError, match="there is no folder"):
            await store.append(entry("too early"))
        folder.mkdir()
        await store.append(entry("after"))
        assert [each.request_id for each in await store.requests()] == ["after"]


async def test_a_file_that_was_replaced_is_unavailable_while_its_log_cannot_be_removed(
    tmp_path: Path, clock: DeadlineClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, kept, waits = tmp_path / "store.db", tmp_path / "kept.db", set[float]()

    def wait(seconds: float) -> None:
        waits.add(seconds)
        clock.now += seconds

    monkeypatch.setattr(sqlite, "sleep", wait)
    async with aclosing(SqliteStore(path, timeout_seconds=0.2)) as store:
        await store.append(entry("before"))
        path.rename(kept)
        folder = os.open(tmp_path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            with pytest.raises(StoreUnavailable, match="check the permissions of its folder"):
                await store.append(entry("too early"))
        finally:
            os.close(folder)
        await store.append(entry("after"))
        assert [each.request_id for each in await store.requests()] == ["after"]
    assert waits == {0.01}


APPENDS_MANY = """
import asyncio, sys
from contextlib import aclosing
from support.store_entries import entry
from toolbus.stores.sqlite import SqliteStore

async def main():
    async with aclosing(SqliteStore(sys.argv[1])) as store:
        for number in range(99):
            await store.append(entry(f"of another {number}", 0, f"{number:,} " * 6_000))
        print("written", flush=True)
        sys.stdin.readline()

asyncio.run(main())
"""


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_log_that_was_deleted_does_not_overwrite_what_another_process_has_written_since(
    path: Path, anyio_backend: str
) -> None:
    async with aclosing(SqliteStore(path)) as store:
        for number in range(30):
            await store.append(entry(f"before {number}", 0, "long " * 1_000))
        for suffix in ("-wal", "-shm"):
            path.with_name(f"{path.name}{suffix}").unlink()
        env = importing_from(Path(__file__).parent.parent)
        async with await anyio.open_process([sys.executable, "-c", APPENDS_MANY, str(path)], env=env) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert (await process.stdout.receive()).startswith(b"written")
            await store.append(entry("after"))
            assert len(await store.requests()) == 100
            assert (await verify(store)).problems == []
            await process.stdin.send(b"\n")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_number_that_is_too_large_for_the_database_is_refused(tmp_path: Path, anyio_backend: str) -> None:
    async with aclosing(SqliteStore(tmp_path / "store.db")) as store:
        with pytest.raises(StoreError, match="cannot take a value: Python int too large"):
            await store.conversations(limit=2**63)


async def test_a_file_whose_identity_the_system_cannot_say_is_not_taken_for_a_replaced_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path) -> None:
        raise PermissionError("the disk is odd")

    async with aclosing(SqliteStore(tmp_path / "a.db")) as store:
        await store.append(entry("r1"))
        with monkeypatch.context() as patch:
            patch.setattr(sqlite, "_file_at", refuse)
            await store.append(entry("r2"))
        assert {each.request_id for each in await store.requests()} == {"r1", "r2"}
