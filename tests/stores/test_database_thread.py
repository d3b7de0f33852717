"""The thread that owns a connection: what is cancelled, who is woken, and what becomes of a connection that breaks."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import gc
import math
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from support.deadline_clock import DeadlineClock
from toolbus import storage
from toolbus.errors import StoreError, StoreUnavailable
from toolbus.stores import _thread
from toolbus.stores._thread import DatabaseThread
from toolbus.stores.sql import Database, Row


class Broken(Exception):
    """What the driver of `Fake` raises when its connection broke."""


class Fake(Database):
    """A connection that does nothing, and can stand still."""

    opened = 0
    closed = 0

    def __init__(self) -> None:
        super().__init__()
        Fake.opened += 1

    def rows(self, statement: str, values: Row = ()) -> Sequence[Row]:
        return ()

    run = run_many = insert = begin = commit = rollback = lock = scan = rows  # type: ignore[assignment]

    def close(self) -> None:
        Fake.closed += 1

    def translated(self, exc: Exception) -> Exception:
        return StoreUnavailable(f"broken: {exc}") if isinstance(exc, Broken) else exc

    def is_broken(self, exc: Exception) -> bool:
        return isinstance(exc, Broken)

    def is_own_fault(self, exc: Exception) -> bool:
        return False

    def may_try_again(self, exc: Exception) -> bool:
        return isinstance(exc, Broken) and not self.in_doubt


Thread = DatabaseThread[Fake, int]


def write(_database: Fake, entries: Sequence[int]) -> Sequence[int]:
    return [each * 10 for each in entries]


@asynccontextmanager
async def running(
    connect: Callable[[float], Fake] = lambda _deadline: Fake(), *, writes: bool = True
) -> AsyncGenerator[Thread]:
    Fake.opened = Fake.closed = 0
    thread = Thread("fake", connect, write if writes else None, timeout_seconds=5)
    try:
        yield thread
    finally:
        await thread.aclose()


class Gate:
    """Holds the thread up, once it has come there."""

    def __init__(self) -> None:
        self.is_there = threading.Event()
        self.opens = threading.Event()
        self.passed = 0

    def __call__(self, _database: Fake) -> int:
        self.is_there.set()
        assert self.opens.wait(60)
        self.passed += 1
        return self.passed

    async def reached(self) -> None:
        while not self.is_there.is_set():
            await anyio.lowlevel.checkpoint()


async def test_all_that_waits_behind_a_call_is_one_group_and_wakes_together() -> None:
    gate, results = Gate(), list[int]()

    async def append(thread: Thread, number: int) -> None:
        results.append(await thread.append(number))

    async with running() as thread, anyio.create_task_group() as tasks:
        tasks.start_soon(thread.run, gate)
        await gate.reached()
        for number in range(100):
            tasks.start_soon(append, thread, number)
        await anyio.wait_all_tasks_blocked()
        gate.opens.set()
    assert sorted(results) == [each * 10 for each in range(100)]
    assert (thread.appends, thread.commits, thread.queued_peak) == (100, 1, 100)
    assert (Fake.opened, Fake.closed) == (1, 1)


@pytest.mark.guarantee("G11")
async def test_what_is_cancelled_in_the_queue_is_not_done_and_what_has_begun_is_waited_for() -> None:
    gate, behind = Gate(), Gate()
    ended: list[str] = []

    async def call(name: str, thread: Thread, what: Gate, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await thread.run(what)
        finally:
            ended.append(name)

    begun, queued = anyio.CancelScope(), anyio.CancelScope()
    async with running() as thread, anyio.create_task_group() as tasks:
        tasks.start_soon(call, "begun", thread, gate, begun)
        await gate.reached()
        tasks.start_soon(call, "queued", thread, behind, queued)
        await anyio.wait_all_tasks_blocked()
        begun.cancel()
        queued.cancel()
        await anyio.wait_all_tasks_blocked()
        assert ended == ["queued"]
        gate.opens.set()
    assert (ended, gate.passed, behind.passed) == (["queued", "begun"], 1, 0)
    assert begun.cancelled_caught


async def test_a_reading_that_is_cancelled_waits_for_nothing() -> None:
    gate = Gate()
    async with running(writes=False) as thread:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(thread.run, gate)
                await gate.reached()
                scope.cancel()
        assert gate.passed == 0
        gate.opens.set()


@pytest.mark.guarantee("G21")
async def test_a_job_that_came_too_late_in_the_queue_is_given_up_and_the_next_one_is_done(
    clock: DeadlineClock,
) -> None:
    gate = Gate()
    async with running() as thread, anyio.create_task_group() as tasks:
        tasks.start_soon(thread.run, gate)
        await gate.reached()

        async def late() -> None:
            with pytest.raises(
                StoreUnavailable, match="did not answer in time: other calls were queued before this one"
            ):
                await thread.append(1)

        tasks.start_soon(late)
        await anyio.wait_all_tasks_blocked()
        clock.now += 5
        gate.opens.set()
    async with running() as thread:
        assert await thread.append(2) == 20


@pytest.mark.guarantee("G21")
def test_a_job_is_given_up_before_those_who_wait_for_the_store_give_it_up() -> None:
    assert _thread.TIMEOUT_SECONDS < storage.TIMEOUT_SECONDS


@pytest.mark.guarantee("G21")
@pytest.mark.parametrize("in_doubt", [False, True])
async def test_the_oldest_append_of_a_group_fails_no_other_one_when_its_time_is_over(
    clock: DeadlineClock, *, in_doubt: bool
) -> None:
    """If the group may have been written nevertheless, all of it fails: another attempt could write it twice."""
    gate, groups, outcomes = Gate(), list[list[int]](), dict[int, str]()

    def slow(database: Fake, entries: Sequence[int]) -> Sequence[int]:
        groups.append([*entries])
        if len(groups) == 1:
            clock.now = database.deadline
            database.in_doubt = in_doubt
            raise StoreUnavailable("somebody else holds the lock")
        return write(database, entries)

    async def append(thread: Thread, number: int) -> None:
        try:
            outcomes[number] = str(await thread.append(number))
        except StoreUnavailable:
            outcomes[number] = "unavailable"

    thread = Thread("fake", lambda _deadline: Fake(), slow)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(thread.run, gate)
        await gate.reached()
        tasks.start_soon(append, thread, 1)
        await anyio.wait_all_tasks_blocked()
        clock.now += 1
        tasks.start_soon(append, thread, 2)
        await anyio.wait_all_tasks_blocked()
        gate.opens.set()
    await thread.aclose()
    assert outcomes == {1: "unavailable", 2: "unavailable" if in_doubt else "20"}
    assert groups == ([[1, 2]] if in_doubt else [[1, 2], [2]])


async def test_a_connection_that_broke_is_made_again_for_the_same_job_unless_in_a_commit() -> None:
    calls: list[bool] = []

    def breaks(database: Fake) -> int:
        calls.append(database.in_doubt)
        if len(calls) == 1:
            raise Broken("once")
        return len(calls)

    def breaks_in_commit(database: Fake) -> int:
        database.in_doubt = True
        raise Broken("in a commit")

    async with running() as thread:
        assert await thread.run(breaks) == 2
        assert (Fake.opened, Fake.closed) == (2, 1)
        with pytest.raises(StoreUnavailable, match="broken: in a commit") as caught:
            await thread.run(breaks_in_commit)
        assert isinstance(caught.value.__cause__, Broken)
        assert await thread.run(lambda _database: 3) == 3
        assert (Fake.opened, Fake.closed) == (3, 2)


async def test_a_connection_that_breaks_twice_fails_the_job_and_not_the_next_one() -> None:
    tried = 0

    def breaks(_database: Fake) -> int:
        nonlocal tried
        tried += 1
        raise Broken(f"the {tried}. time")

    async with running() as thread:
        with pytest.raises(StoreUnavailable, match=r"broken: the 2\. time"):
            await thread.run(breaks)
        assert await thread.run(lambda _database: 3) == 3
        assert (tried, Fake.opened, Fake.closed) == (2, 3, 2)


async def test_a_job_that_failed_when_its_time_was_over_is_not_done_again(clock: DeadlineClock) -> None:
    tried = 0

    def breaks_late(database: Fake) -> int:
        nonlocal tried
        tried += 1
        clock.now = database.deadline
        raise Broken("late")

    async with running() as thread:
        with pytest.raises(StoreUnavailable, match="broken: late"):
            await thread.run(breaks_late)
    assert tried == 1


async def test_entries_that_are_refused_are_not_counted_and_a_group_without_others_is_no_commit() -> None:
    def refuses_odd_ones(_database: Fake, entries: Sequence[int]) -> Sequence[int | StoreError]:
        return [StoreError("it is odd") if each % 2 else each for each in entries]

    async def append(number: int) -> None:
        with suppress(StoreError):
            await thread.append(number)

    thread: Thread = Thread("fake", lambda _deadline: Fake(), refuses_odd_ones)
    for numbers in ([1], [2], [3, 4, 6]):
        gate = Gate()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(thread.run, gate)
            await gate.reached()
            for each in numbers:
                tasks.start_soon(append, each)
            await anyio.wait_all_tasks_blocked()
            gate.opens.set()
    await thread.aclose()
    assert (thread.appends, thread.commits, thread.queued_peak) == (3, 2, 3)


async def test_a_group_is_bounded_and_has_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_thread, "_GROUP", 3)
    gate, groups = Gate(), list[tuple[str, int]]()

    def other(_database: Fake, entries: Sequence[int]) -> Sequence[int]:
        groups.append(("other", len(entries)))
        return entries

    def own(_database: Fake, entries: Sequence[int]) -> Sequence[int]:
        groups.append(("own", len(entries)))
        return entries

    thread: Thread = Thread("fake", lambda _deadline: Fake(), own)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(thread.run, gate)
        await gate.reached()
        for number in range(4):
            tasks.start_soon(thread.append, number)
            await anyio.wait_all_tasks_blocked()
        for number in range(2):
            tasks.start_soon(thread.together, other, number)
            await anyio.wait_all_tasks_blocked()
        gate.opens.set()
    await thread.aclose()
    assert groups == [("own", 3), ("own", 1), ("other", 2)]
    assert (thread.appends, thread.commits) == (4, 2)
    assert thread.queued_peak == 6


async def test_a_reading_that_is_cancelled_is_hurried_and_the_one_after_it_is_not(clock: DeadlineClock) -> None:
    gate, running_one = Gate(), Gate()
    deadlines = list[float]()

    def waits(database: Fake) -> None:
        running_one(database)
        deadlines.append(database.deadline)

    async def read(scope: anyio.CancelScope, what: Callable[[Fake], object]) -> None:
        with scope:
            await thread.run(what)

    scopes = [anyio.CancelScope() for _ in range(3)]
    async with running(writes=False) as thread, anyio.create_task_group() as tasks:
        tasks.start_soon(thread.run, gate)
        await gate.reached()
        for scope, what in zip(
            scopes, (waits, waits, lambda database: deadlines.append(database.deadline)), strict=True
        ):
            tasks.start_soon(read, scope, what)
            await anyio.wait_all_tasks_blocked()
        gate.opens.set()
        await running_one.reached()
        for scope in scopes[:2]:
            scope.cancel()
        await anyio.wait_all_tasks_blocked()
        running_one.opens.set()
    # The second one was taken from the queue, and not begun.
    assert deadlines == [-math.inf, clock.now + 5]


async def test_a_database_that_cannot_be_opened_says_why_each_time_until_it_can() -> None:
    left = [1, 2]

    def connect(_deadline: float) -> Fake:
        if left:
            raise StoreError(f"no database, and {left.pop()} more times")
        return Fake()

    async with running(connect) as thread:
        for number in (2, 1):
            with pytest.raises(StoreError, match=f"no database, and {number} more times"):
                await thread.append(1)
        assert await thread.append(1) == 10


def test_several_event_loops_may_use_one_thread_at_once() -> None:
    thread = Thread("fake", lambda _deadline: Fake(), write)
    results: list[int] = []

    async def main() -> None:
        for number in range(20):
            results.append(await thread.append(number))

    loops = [threading.Thread(target=anyio.run, args=(main,), kwargs={"backend": each}) for each in ("asyncio", "trio")]
    for each in loops:
        each.start()
    for each in loops:
        each.join()
    anyio.run(thread.aclose)
    assert sorted(results) == sorted(each * 10 for each in [*range(20)] * 2)


def test_a_loop_that_is_gone_before_its_answer_harms_nobody() -> None:
    thread, gate = Thread("fake", lambda _deadline: Fake(), write), Gate()
    loop = asyncio.new_event_loop()
    task = loop.create_task(thread.run(gate))
    loop.run_until_complete(asyncio.sleep(0))
    assert gate.is_there.wait(60)
    loop.close()
    gate.opens.set()
    cast("Any", task.get_coro()).close()
    cast("Any", task)._log_destroy_pending = False
    assert anyio.run(thread.append, 1) == 10
    thread.finish(60)


async def test_what_waits_in_the_queue_is_not_done_if_its_loop_ends_first() -> None:
    gate, done = Gate(), list[str]()

    def note(_database: Fake) -> None:
        done.append("too late")

    async with running() as thread, anyio.create_task_group() as tasks:
        tasks.start_soon(thread.run, gate)
        await gate.reached()
        waiting = thread.run(note)
        waiting.send(None)
        waiting.close()
        gate.opens.set()
    assert done == []


def test_a_task_that_is_cancelled_in_the_moment_of_its_answer_does_not_wait_for_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thread, settle_all = Thread("fake", lambda _deadline: Fake(), write), _thread._settle_all

    async def main() -> None:
        task = asyncio.ensure_future(thread.run(lambda _database: 1))

        def settle_and_cancel(jobs: Any) -> None:
            settle_all(jobs)
            task.cancel()

        monkeypatch.setattr(_thread, "_settle_all", settle_and_cancel)
        assert await asyncio.wait({task}, timeout=60) == ({task}, set())
        assert task.cancelled()

    asyncio.run(main())
    thread.finish(60)


async def test_a_thread_whose_store_is_dropped_ends() -> None:
    thread = Thread("fake", lambda _deadline: Fake(), write)
    await thread.append(1)
    [worker] = [each for each in threading.enumerate() if each.name == "fake"]
    del thread
    gc.collect()
    await anyio.to_thread.run_sync(worker.join, 10)
    assert not worker.is_alive()


def test_an_interpreter_that_exits_waits_for_five_seconds_for_each_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = list[float]()
    monkeypatch.setattr(_thread, "_running", [SimpleNamespace(finish=waits.append)] * 2)
    _thread._finish_all()
    assert waits == [5, 5]


async def test_a_forked_child_starts_anew_though_the_parent_held_the_lock() -> None:
    async with running() as thread:
        assert await thread.run(lambda _database: 1) == 1
        with thread._lock:
            thread.after_fork()
            assert not thread._lock.locked(), "nobody in the child would release the parent's lock"
        queue, parents = cast("tuple[Any, threading.Thread]", _thread._left_to_the_parent.pop())
        try:
            assert not thread.is_running
            assert await thread.run(lambda _database: 2) == 2
            assert (Fake.opened, Fake.closed) == (2, 0)
        finally:
            queue.put(_thread._End())
            parents.join()
