"""The census finds whatever is left over, and nothing of the runner's own. How the suite takes it: tests/endings."""

from __future__ import annotations

import asyncio
import functools
import gc
import operator
import threading
import time
from collections.abc import Callable

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from toolbus import EventBus
from toolbus.testing import Harness, assert_idle, text, virtual_backends
from toolbus.testing.census import Census

anyio_backend = virtual_backends()


async def test_an_idle_bus_and_no_task_pass():
    bus = EventBus()
    async with Harness([text("Sunny.")], bus=bus) as harness:
        await harness.start("?").result()
    await assert_idle(bus)
    await assert_idle()


async def test_a_task_that_is_about_to_end_passes():
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(anyio.lowlevel.checkpoint)
        await assert_idle()


async def test_a_task_that_stays_is_named():
    async def stays_for_ever() -> None:
        await anyio.sleep_forever()

    async def starts_it() -> None:
        async with anyio.create_task_group() as inner:
            inner.start_soon(stays_for_ever)

    async with anyio.create_task_group() as group:
        group.start_soon(starts_it)
        with pytest.raises(AssertionError, match=r"left over: .*stays_for_ever"):
            await assert_idle()
        running = anyio.get_running_tasks()
        await assert_idle(ignore=running)
        group.cancel_scope.cancel()


async def test_a_census_in_a_child_task_does_not_count_those_above_it():
    async with anyio.create_task_group() as group:
        group.start_soon(assert_idle)


async def test_a_request_and_an_open_call_are_found():
    bus = EventBus()
    mailbox = bus.arbitration.open_mailbox("r")
    bus.arbitration.open_calls(mailbox, ["c"])
    with pytest.raises(AssertionError, match=r"1 request\(s\) that did not end; 1 open call\(s\)"):
        await assert_idle(bus)
    bus.arbitration.claim("r", "c")
    bus.arbitration.close_mailbox(mailbox)


async def test_a_subscription_is_found_by_name():
    bus = EventBus()
    with pytest.raises(AssertionError, match=r"subscription audit; subscription \(unnamed\)"):
        async with bus.subscribe(name="audit"), bus.subscribe():
            await assert_idle(bus)
    await assert_idle(bus)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_bare_asyncio_task_is_found():
    async def bare() -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(bare(), name="bare task")
    with pytest.raises(
        AssertionError, match=r"left over: task bare task at \S*test_census\.py:\d+, in test_a_bare\S*bare$"
    ):
        await assert_idle()
    task.cancel()
    await assert_idle()


# ------------------------------------------------------------------------------------------------- threads


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hangs here hangs for good."""
    monkeypatch.setattr("toolbus.testing.census._PATIENCE_SECONDS", 0.2)


async def give_up_thread(work: Callable[[], object]) -> None:
    """Leave a worker thread at `work`, as a tool's is behind its deadline. Nothing in it but `work` is Python."""
    began = threading.Event()
    steps: Callable[[], object] = functools.partial(list[object], map(operator.call, [began.set, work]))
    async with anyio.create_task_group() as group:
        group.start_soon(functools.partial(anyio.to_thread.run_sync, steps, abandon_on_cancel=True))
        while not began.is_set():
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()


@pytest.mark.parametrize("kind", ["python", "builtin"])
async def test_a_worker_thread_that_works_is_found_and_one_that_waits_in_the_pool_is_not(kind: str):
    await anyio.to_thread.run_sync(int)
    await Census().assert_nothing_left()
    census = Census()
    lock = threading.Lock()
    lock.acquire()
    await give_up_thread(
        functools.partial(lock.acquire, timeout=5) if kind == "builtin" else lambda: lock.acquire(timeout=5)
    )
    with pytest.raises(AssertionError, match="left over: thread"):
        await census.assert_nothing_left()
    await census.assert_nothing_left(but=("threads",))
    lock.release()
    await census.assert_nothing_left()


async def test_a_thread_that_worked_before_is_nobodys_concern():
    release = threading.Event()
    await give_up_thread(lambda: release.wait(5))
    await Census().assert_nothing_left()
    release.set()


async def test_a_thread_that_is_about_to_end_passes():
    census = Census()
    await give_up_thread(lambda: time.sleep(0.02))
    await census.assert_nothing_left()


async def test_a_thread_passes_that_could_not_end_because_the_process_stood_still(monkeypatch: pytest.MonkeyPatch):
    release, stops, now = threading.Event(), [0, 60, 0], time.monotonic

    def sleep(seconds: float) -> None:
        if stops:
            monkeypatch.setattr(time, "monotonic", functools.partial(operator.add, now(), stops.pop()))
        else:
            release.set()
        release.wait(seconds)

    census = Census()
    await give_up_thread(release.wait)
    monkeypatch.setattr("toolbus.testing.census.time.sleep", sleep)
    try:
        await census.assert_nothing_left()
    finally:
        release.set()


async def test_a_thread_of_nobodys_pool_is_found_by_its_code():
    def stays_for_ever() -> None:
        release.wait(5)

    census = Census()
    release = threading.Event()
    thread = threading.Thread(target=stays_for_ever, name="mine")
    thread.start()
    with pytest.raises(AssertionError, match=r"thread mine in "):
        await census.assert_nothing_left()
    release.set()
    thread.join()
    await census.assert_nothing_left()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_thread_of_the_loops_executor_counts_while_it_works():
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, int)
    census = Census()
    await Census().assert_nothing_left()
    began, release = threading.Event(), threading.Event()
    waiting = loop.run_in_executor(None, lambda: (began.set(), release.wait(5)))
    began.wait(60)
    with pytest.raises(AssertionError, match="thread asyncio_0"):
        await census.assert_nothing_left()
    release.set()
    await waiting
    await census.assert_nothing_left()


async def test_a_census_of_an_idle_loop_costs_a_few_milliseconds_at_most():
    await anyio.to_thread.run_sync(int)
    gc.collect()  # asyncio also looks at the tasks that earlier tests have left as garbage
    Census()
    took: list[float] = []
    for _ in range(5):  # a busy machine makes some of them slow
        began = time.process_time()
        for _ in range(10):
            await Census().assert_nothing_left(EventBus())
        took.append((time.process_time() - began) / 10)
    assert min(took) < 0.005  # 0.3 ms alone, with nothing else on the machine; each test of the suite has one
