"""A SQLite file under a runtime whose disk is full or broken, or which another process holds: typed errors, no call
begun that is not written, and work goes on."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from endings.ended_well import ENDINGS, assert_valid, listen
from support.deadline_clock import DeadlineClock
from support.results import result_of
from toolbus import RequestResult, Runtime, ToolContext, tool
from toolbus.errors import StoreDamaged, StoreError, StoreUnavailable
from toolbus.events import ToolCallRequested
from toolbus.messages import AssistantMessage, UserMessage
from toolbus.protocols import ModelRequest
from toolbus.providers.scripted import Step
from toolbus.stores import sqlite
from toolbus.stores.sqlite import SqliteStore
from toolbus.testing import ScriptedProvider, calls, text

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # what the store's thread does is the same on both


def every(_statement: str) -> bool:
    return True


class Disk:
    """Makes call number `at` of all connections fail, from 0: before it is done, or after it.

    Only calls with a statement that `counts` are numbered.
    """

    def __init__(self) -> None:
        self.fail(-1, 0)

    def fail(self, at: int, code: int, *, after: bool = False, counts: Callable[[str], bool] = every) -> None:
        self.at, self.count, self.code, self.after, self.counts = at, 0, code, after, counts
        self.is_hit = False

    def passes(self, statement: str, *, is_done: bool) -> None:
        if not self.counts(statement):
            return
        if not is_done:
            self.count += 1
        if self.count - 1 == self.at and not self.is_hit and is_done == self.after:
            self.is_hit = True
            error = sqlite3.OperationalError(f"planted: {self.code}")
            error.sqlite_errorcode = self.code
            raise error


def use(connection: type[sqlite3.Connection], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let SQLite stores connect by a class of connections."""

    class Driver:
        """The module `sqlite3`."""

        def __getattr__(self, name: str) -> Any:
            return getattr(sqlite3, name)

        def connect(self, *args: Any, **options: Any) -> sqlite3.Connection:
            return sqlite3.connect(*args, factory=connection, **options)

    monkeypatch.setattr(sqlite, "sqlite3", Driver())


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()

    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *args: Any) -> sqlite3.Cursor:
            disk.passes(statement, is_done=False)
            cursor = super().execute(statement, *args)
            disk.passes(statement, is_done=True)
            return cursor

        def executemany(self, statement: str, *args: Any) -> sqlite3.Cursor:
            disk.passes(statement, is_done=False)
            return super().executemany(statement, *args)

    use(Connection, monkeypatch)
    return disk


class Desk:
    """Runs requests on a file, and keeps what tools ran."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.store = SqliteStore(path, durability="process", **options)
        self.ran: Counter[str] = Counter()

    def runtime(self, **options: Any) -> Runtime:
        @tool
        async def pay(n: int, context: ToolContext[Any]) -> str:
            """Pay."""
            self.ran[context.idempotency_key] += 1
            return f"paid {n}"

        def respond(request: ModelRequest) -> Step:
            newest = [at for at, each in enumerate(request.messages) if isinstance(each, UserMessage)][-1]
            replied = sum(isinstance(each, AssistantMessage) for each in request.messages[newest:])
            return text("Paid.") if replied else calls(("pay", {"n": 1}), ("pay", {"n": 2}))

        return Runtime(ScriptedProvider(respond), tools=[pay], store=self.store, **options)

    async def check(self, results: list[RequestResult[Any]]) -> None:
        """Nothing ran that is not written, nothing ran twice, and the conversation has each turn at most once."""
        store = self.store
        written: set[str] = set()
        for result in results:
            assert_valid(result.messages)
            for each in await store.facts(result.request_id):
                if isinstance(each.fact, ToolCallRequested):
                    written.add(each.fact.call_id)
        assert {*self.ran} <= written
        assert set(self.ran.values()) <= {1}
        history = await store.history("c")
        assert_valid(history)
        prompts = Counter(each.text for each in history if isinstance(each, UserMessage))
        assert set(prompts.values()) <= {1}, prompts


FAULTS: dict[str, tuple[int, type[StoreError]]] = {
    "full": (sqlite3.SQLITE_FULL, StoreError),
    "broken": (sqlite3.SQLITE_IOERR, StoreError),
    "busy": (sqlite3.SQLITE_BUSY, StoreUnavailable),
    "damaged": (sqlite3.SQLITE_CORRUPT, StoreDamaged),
}


AGAIN = pytest.mark.repeats("the same calls, with another fault")


def counted(fault: str) -> Callable[[str], bool]:
    """Return a function that says whether a fault is tried at a call with this statement.

    `full` is tried at each call. The other faults leave out the statements that make the tables of a new file: all of
    them are in one transaction. `lost` is tried only at commits: after any other call, the transaction is undone, as it
    is for `broken`.
    """
    if fault == "full":
        return every
    if fault == "lost":
        return lambda statement: statement == "COMMIT"
    return lambda statement: "CREATE" not in statement


@pytest.mark.guarantee("G11", "G21")
@pytest.mark.parametrize(
    "fault", ["full", *(pytest.param(each, marks=AGAIN) for each in (*FAULTS, "lost") if each != "full")]
)
async def test_whichever_call_of_the_database_fails_the_next_request_works(
    tmp_path: Path, disk: Disk, fault: str
) -> None:
    kind: type[StoreError]
    code, kind = FAULTS.get(fault, (sqlite3.SQLITE_IOERR, StoreError))
    at = hits = opened = failed_to_open = 0
    while True:
        desk = Desk(tmp_path / f"{at}.db")
        disk.fail(at, code, after=fault == "lost", counts=counted(fault))
        results: list[RequestResult[Any]] = []
        try:
            async with desk.runtime() as runtime:
                heard = listen(runtime.bus)
                results.append(await result_of(runtime.run("first", conversation_id="c")))
                is_hit = disk.is_hit
                disk.at = -1
                results.append(await result_of(runtime.run("second", conversation_id="c")))
        except StoreError as exc:
            opened += isinstance(exc, kind)
            failed_to_open += 1
            is_hit, disk.at = True, -1
            async with desk.runtime() as runtime:
                heard = listen(runtime.bus)
                results.append(await result_of(runtime.run("second", conversation_id="c")))
        if not is_hit:
            break
        hits += 1
        first, last = results[0], results[-1]
        assert first.outcome == "completed" or isinstance(first.error, kind), (at, first.outcome, first.error)
        assert (last.outcome, last.journaled) == ("completed", True), (at, last.error)
        endings = Counter(event.request_id for event in heard if isinstance(event, ENDINGS))
        assert set(endings.values()) == {1}
        await desk.check(results)
        left = {each.request_id for each in await desk.store.unfinished()}
        assert left <= {each.request_id for each in results if each.resumable}
        assert (await desk.store.statistics()).unfinished == len(left), "its lease is given back"
        await desk.store.aclose()
        at += 1
    assert hits > (5 if fault == "lost" else 40)
    assert opened == failed_to_open > 0


@pytest.mark.guarantee("G21")
async def test_a_request_that_only_warns_survives_any_one_failure(tmp_path: Path, disk: Disk) -> None:
    for at in range(1_000):
        desk = Desk(tmp_path / f"{at}.db")
        await desk.store.open()
        disk.fail(at, sqlite3.SQLITE_FULL)
        async with desk.runtime(on_store_failure="warn") as runtime:
            result = await result_of(runtime.run("first", conversation_id="c"))
        is_hit, disk.at = disk.is_hit, -1
        # What it cannot go on without is what the conversation has.
        assert result.outcome == "completed" or result.rounds == 0, (at, result.error)
        await desk.check([result])
        if result.outcome == "completed":
            record = await desk.store.request(result.request_id)
            assert record is not None
            assert (record.ending, record.fact_count) == ("completed", len(await desk.store.facts(result.request_id)))
            assert [*await desk.store.history("c")] == result.messages
            assert result.journaled
        await desk.store.aclose()
        if not is_hit:
            return
    raise AssertionError


def hold(path: Path) -> sqlite3.Connection:
    """Another program that writes."""
    other = sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    return other


@pytest.mark.guarantee("G21")
async def test_a_file_that_another_program_holds_is_an_error_in_time_and_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DeadlineClock(monkeypatch)  # It stands still: only the waits for the lock take time.
    desk = Desk(tmp_path / "held.db", timeout_seconds=0.3)
    async with desk.runtime() as runtime:
        first = await runtime.run("first", conversation_id="c")
        with closing(hold(desk.store.path)):
            began = time.monotonic()
            refused = await result_of(runtime.run("second", conversation_id="c"))
            assert time.monotonic() - began < 30
            assert isinstance(refused.error, StoreUnavailable)
            assert "locked" in str(refused.error)
            assert sum(desk.ran.values()) == 2
        result = await runtime.run("third", conversation_id="c")
        assert result.outcome == "completed"
        await desk.check([first, refused, result])
    async with desk.runtime(on_store_failure="warn") as runtime:
        other = hold(desk.store.path)
        session = runtime.start("fourth", conversation_id="c")
        result = await session.result()
        assert (result.outcome, result.journaled) == ("completed", False)
        other.close()
    assert result.journaled  # written when the runtime was left
    assert [*await desk.store.history("c")] == result.messages
    await desk.store.aclose()


class Waits:
    """SQLite's waits for locks, which only move the clock. The program `lets_go` of its lock in the next one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = clock = DeadlineClock(monkeypatch)
        self.lets_go: list[sqlite3.Connection] = []
        waits = self

        class Connection(sqlite3.Connection):
            wait_seconds = 0.0

            def execute(self, statement: str, *args: Any) -> sqlite3.Cursor:
                if statement.startswith("PRAGMA busy_timeout = "):
                    self.wait_seconds = int(statement.rpartition(" ")[2]) / 1_000
                    statement = "PRAGMA busy_timeout = 0"
                try:
                    return super().execute(statement, *args)
                except sqlite3.OperationalError as exc:
                    if exc.sqlite_errorcode != sqlite3.SQLITE_BUSY or not self.wait_seconds:
                        raise
                    if not waits.lets_go:
                        clock.now += self.wait_seconds
                        raise
                waits.lets_go.pop().close()
                return super().execute(statement, *args)

        use(Connection, monkeypatch)


@pytest.mark.guarantee("G21")
async def test_by_default_a_lock_is_waited_for_and_an_error_comes_within_five_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Waits(monkeypatch)
    desk = Desk(tmp_path / "held.db")
    async with desk.runtime() as runtime:
        with closing(hold(desk.store.path)):
            began = waits.clock.now
            refused = await result_of(runtime.run("first", conversation_id="c"))
            assert 3 <= waits.clock.now - began < 5
            assert isinstance(refused.error, StoreUnavailable)
        waits.lets_go.append(hold(desk.store.path))
        began = waits.clock.now
        second = await runtime.run("second", conversation_id="c")
        assert (second.outcome, waits.lets_go, waits.clock.now) == ("completed", [], began)
        result = await runtime.run("third", conversation_id="c")
        assert not refused.resumable
    await desk.check([result, refused, second])
    assert len([each for each in result.messages if isinstance(each, UserMessage)]) == 2, "one has not begun"
    await desk.store.aclose()


@pytest.mark.guarantee("G21")
async def test_on_a_disk_that_gets_room_again_work_goes_on(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "full.db")

    def room_for(more: int) -> Any:
        def give(database: Any) -> None:
            [pages] = database._connection.execute("PRAGMA page_count").fetchone()
            database._connection.execute(f"PRAGMA max_page_count = {pages + more}")

        return desk.store._writer.run(give)

    results: list[RequestResult[Any]] = []
    async with desk.runtime() as runtime:
        results.append(await runtime.run("0", conversation_id="c"))
        await room_for(6)
        while results[-1].outcome == "completed":
            assert len(results) < 100
            results.append(await result_of(runtime.run(f"{len(results)}", conversation_id="c")))
        assert "there is no space" in str(results[-1].error)
        again = await result_of(runtime.run("while full", conversation_id="c"))
        assert again.outcome == "failed"
        await room_for(10_000)
        results += [again, await runtime.run("afterwards", conversation_id="c")]
        assert results[-1].outcome == "completed"
        await desk.check(results)
    left = {each.request_id for each in await desk.store.unfinished()}
    assert left <= {each.request_id for each in results if each.resumable}
    assert (await desk.store.statistics()).unfinished == len(left)
    await desk.store.aclose()
