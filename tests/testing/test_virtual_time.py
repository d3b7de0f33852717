"""Virtual time: what jumps, what waits, and what is told when nothing can happen any more."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import anyio
import anyio.abc
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest

from toolbus.errors import ConfigurationError, ToolbusError
from toolbus.testing import VirtualDeadlock, VirtualTimeLoop, advance, settle, virtual_backend, virtual_backends

anyio_backend = virtual_backends()


async def test_an_hour_passes_in_milliseconds_and_ends_exactly_on_time():
    began = time.process_time()
    await anyio.sleep(3600)
    assert time.process_time() - began < 0.1
    assert anyio.current_time() == 3600


async def test_every_test_begins_at_time_zero_again():
    assert anyio.current_time() == 0
    await anyio.sleep(1)


async def test_timers_fire_in_the_order_of_their_moments():
    fired: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await anyio.sleep(seconds)
        fired.append((name, anyio.current_time()))

    async with anyio.create_task_group() as group:
        group.start_soon(sleeper, "c", 30)
        group.start_soon(sleeper, "a", 0.25)
        group.start_soon(sleeper, "b", 1)
    assert fired == [("a", 0.25), ("b", 1), ("c", 30)]


async def test_a_timeout_fires_though_nothing_else_could_ever_run():
    with pytest.raises(TimeoutError), anyio.fail_after(86_400 * 3):
        await anyio.Event().wait()
    assert anyio.current_time() == 86_400 * 3


async def test_time_stands_still_while_a_task_can_run():
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 1)
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        assert anyio.current_time() == 0


async def test_time_stands_still_while_a_worker_thread_works():
    release = threading.Event()
    seen: list[float] = []

    async def work() -> None:
        await anyio.to_thread.run_sync(release.wait)
        seen.append(anyio.current_time())

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 60)
        group.start_soon(work)
        threading.Timer(0.05, release.set).start()
    assert seen == [0]
    assert anyio.current_time() == 60


async def test_a_thread_that_calls_back_into_the_loop_is_answered_at_once():
    def work() -> float:
        return anyio.from_thread.run_sync(anyio.current_time)

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 60)
        assert await anyio.to_thread.run_sync(work) == 0


async def test_a_thread_that_nobody_waits_for_any_more_lets_time_pass():
    release = threading.Event()
    began = time.perf_counter()
    async with anyio.create_task_group() as group:

        async def work() -> None:
            await anyio.to_thread.run_sync(release.wait, abandon_on_cancel=True)

        group.start_soon(work)
        await advance(30, wait_for_threads=False)
        group.cancel_scope.cancel()
    await anyio.sleep(3600)
    release.set()
    assert anyio.current_time() == 3630
    assert time.perf_counter() - began < 4.5  # under the patience with threads, of which none was needed


async def test_advance_runs_everything_due_on_the_way_and_at_its_end_and_nothing_later():
    fired: list[float] = []

    async def sleeper(seconds: float) -> None:
        await anyio.sleep(seconds)
        fired.append(anyio.current_time())

    async with anyio.create_task_group() as group:
        for seconds in (10, 5, 10.5, 10):
            group.start_soon(sleeper, seconds)
        await advance(10)
        assert fired == [5, 10, 10]
        assert anyio.current_time() == 10
        await advance(0)
        assert fired == [5, 10, 10]
    assert fired == [5, 10, 10, 10.5]


async def test_advance_waits_for_a_thread_that_works_before_time_passes():
    async with anyio.create_task_group() as group:
        seen: list[float] = []

        async def work() -> None:
            await anyio.to_thread.run_sync(time.sleep, 0.02)
            seen.append(anyio.current_time())

        group.start_soon(work)
        await advance(30)
        assert seen == [0]


async def test_cancelling_advance_leaves_the_time_where_it_is():
    with anyio.move_on_after(3):
        await advance(10)
    assert anyio.current_time() == 3
    await settle()


async def test_settle_returns_when_only_time_could_move_anything():
    steps: list[int] = []

    async def work() -> None:
        for step in range(5):
            await anyio.lowlevel.checkpoint()
            steps.append(step)
        await anyio.sleep(1)
        steps.append(99)

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await settle()
        assert steps == [0, 1, 2, 3, 4]
        assert anyio.current_time() == 0


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), timedelta(seconds=1)])
async def test_time_cannot_advance_backwards_or_without_end(seconds: Any):
    with pytest.raises(ConfigurationError, match=r"seconds is .*; it must be a finite number of at least 0"):
        await advance(seconds)


def test_the_same_program_takes_the_same_way_each_time_on_asyncio():
    async def program() -> list[tuple[int, float]]:
        seen: list[tuple[int, float]] = []

        async def each(number: int) -> None:
            await anyio.sleep(number % 3)
            seen.append((number, anyio.current_time()))

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(each, number)
        return seen

    backend, options = virtual_backend("asyncio")
    first, second = (anyio.run(program, backend=backend, backend_options=options) for _ in range(2))
    assert first == second


def test_a_deadlock_on_asyncio_is_an_error_that_names_the_line_that_waits():
    async def waits_for_nobody() -> None:
        await anyio.Event().wait()

    with pytest.raises(VirtualDeadlock, match=r"(?s)nothing can run any more at 0 s.*in .*waits_for_nobody") as caught:
        anyio.run(waits_for_nobody, backend="asyncio", backend_options={"loop_factory": _impatient})
    assert isinstance(caught.value, ToolbusError)


def test_no_deadlock_is_reported_while_a_foreign_thread_may_still_call_the_loop():
    async def waits() -> float:
        event = asyncio.Event()
        threading.Timer(0.05, asyncio.get_running_loop().call_soon_threadsafe, [event.set]).start()
        await event.wait()
        return anyio.current_time()

    assert anyio.run(waits, backend="asyncio", backend_options={"loop_factory": VirtualTimeLoop}) == 0


def test_a_thread_that_hangs_holds_the_clock_only_as_long_as_patience_lasts():
    release = threading.Event()

    async def main() -> float:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, release.wait)
            await anyio.sleep(1)
            await anyio.sleep(1)
            release.set()
        return anyio.current_time()

    assert anyio.run(main, backend="asyncio", backend_options={"loop_factory": _impatient}) == 2


def test_time_stands_still_while_an_executor_works():
    seen: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 60)
            await loop.run_in_executor(None, time.sleep, 0.05)
            seen.append(loop.time())

    backend, options = virtual_backend("asyncio")
    anyio.run(main, backend=backend, backend_options=options)
    assert seen == [0]


class _SlowToClose(ThreadPoolExecutor):
    """An executor that closes once `awaited` is set, or after `seconds` in which it was not."""

    def __init__(self, seconds: float) -> None:
        super().__init__(1)
        self.seconds = seconds
        self.awaited = threading.Event()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.awaited.wait(self.seconds)
        super().shutdown(wait, cancel_futures=cancel_futures)


def test_time_stands_still_while_an_executor_closes():
    loop = VirtualTimeLoop()
    with contextlib.closing(loop):
        executor = _SlowToClose(0.2)
        loop.set_default_executor(executor)
        loop.run_until_complete(loop.run_in_executor(None, str))
        timer = loop.call_later(300, executor.awaited.set)  # as Python 3.12 and later set one themselves
        loop.run_until_complete(loop.shutdown_default_executor())
        assert loop.time() == 0
        timer.cancel()


def test_an_executor_that_hangs_holds_the_closing_only_as_long_as_patience_lasts():
    loop = _impatient()
    with contextlib.closing(loop):
        executor = _SlowToClose(10)
        loop.set_default_executor(executor)
        loop.run_until_complete(loop.run_in_executor(None, str))
        loop.call_later(300, executor.awaited.set)
        loop.run_until_complete(loop.shutdown_default_executor())
        assert loop.time() == 300


def test_sockets_work_though_time_does_not_wait_for_them():
    received: list[bytes] = []

    async def main() -> None:
        async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener:
            port = listener.extra(anyio.abc.SocketAttribute.local_port)

            async def serve(stream: anyio.abc.SocketStream) -> None:
                async with stream:
                    await stream.send(b"hello")

            async with anyio.create_task_group() as group:
                group.start_soon(listener.serve, serve)
                async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                    received.append(await stream.receive())
                group.cancel_scope.cancel()

    backend, options = virtual_backend("asyncio")
    anyio.run(main, backend=backend, backend_options=options)
    assert received == [b"hello"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("function", [advance, settle])
def test_on_real_time_the_helpers_say_how_to_get_virtual_time(backend: str, function: object):
    async def main() -> None:
        await (advance(1) if function is advance else settle())

    with pytest.raises(ConfigurationError, match="virtual_backends"):
        anyio.run(main, backend=backend)


def test_an_unknown_backend_is_refused():
    with pytest.raises(ConfigurationError, match="'curio' is not a backend"):
        virtual_backend("curio")  # pyright: ignore[reportArgumentType]


def _impatient() -> VirtualTimeLoop:
    return VirtualTimeLoop(thread_patience_seconds=0.05)
