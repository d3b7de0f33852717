"""Publishing from threads, and a bus that outlives its event loop or moves to another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import cast

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from bus_events import completed, hear, opened, said, signal

from toolbus import EventBus, Runtime
from toolbus.errors import BusError
from toolbus.events import Event, StatusChanged
from toolbus.testing import ScriptedProvider, hang

pytestmark = pytest.mark.leaves("buses", reason="requests are opened by hand, and no session ends them")


def _in_thread(function: Callable[[], object]) -> object:
    """What `function` returns, or raises, in a thread that anyio knows nothing of."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(function())
        except Exception as exc:
            outcome.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return outcome[0]


async def test_a_thread_publishes_in_the_loops_thread_and_learns_whether_it_was_accepted():
    bus = EventBus()
    mailbox = opened(bus, "c")
    threads: list[int] = []
    bus.connect(Event, lambda _: threads.append(threading.get_ident()))
    event = completed("c")

    def twice() -> list[bool]:
        return [bus.publish_threadsafe(event), bus.publish_threadsafe(event)]

    with anyio.fail_after(30):
        assert await anyio.to_thread.run_sync(_in_thread, twice) == [True, False]
    assert threads == [threading.get_ident()] * 2
    assert mailbox.drain() == [event]


@pytest.mark.guarantee("G01")
async def test_events_of_one_thread_arrive_in_order_among_those_of_others():
    bus = EventBus()

    def work(name: str) -> None:
        for number in range(20):
            bus.publish_threadsafe(signal(f"{name}{number}"))

    with anyio.fail_after(30):
        async with bus.subscribe(StatusChanged) as subscription, anyio.create_task_group() as group:
            for name in "ab":
                group.start_soon(anyio.to_thread.run_sync, work, name)
            heard = said([await anext(subscription) for _ in range(40)])
    for name in "ab":
        assert [text for text in heard if text[0] == name] == [f"{name}{number}" for number in range(20)]


async def test_what_publish_raises_reaches_the_thread():
    bus = EventBus(max_causal_depth=1)
    bus.arbitration.bind()
    errors: list[object] = []

    def circling(event: StatusChanged) -> None:
        try:
            bus.publish_threadsafe(event)
        except BusError as exc:
            errors.append(exc)

    bus.connect(StatusChanged, circling)
    with anyio.fail_after(30):
        assert await anyio.to_thread.run_sync(bus.publish_threadsafe, signal()) is True
    assert len(errors) == 1


async def test_on_the_loops_own_thread_it_publishes_directly():
    bus = EventBus()
    bus.arbitration.bind()
    heard = hear(bus)
    assert bus.publish_threadsafe(signal("a")) is True
    assert said(heard) == ["a"]
    assert bus.publish_threadsafe(completed("unknown")) is False


def test_a_bare_callback_of_asyncio_publishes_directly():
    bus = EventBus()
    heard = hear(bus)

    async def main() -> None:
        bus.arbitration.bind()
        called = asyncio.Event()

        def callback() -> None:
            bus.publish_threadsafe(signal("from a callback"))
            called.set()

        asyncio.get_running_loop().call_soon(callback)
        await called.wait()

    asyncio.run(main())
    assert said(heard) == ["from a callback"]


def test_publish_in_another_thread_than_the_running_loop_is_refused_and_tells_nobody():
    bus = EventBus()
    heard = hear(bus)

    async def main() -> object:
        bus.arbitration.bind()
        return await anyio.to_thread.run_sync(_in_thread, lambda: bus.publish(signal()))

    outcome = anyio.run(main)
    assert isinstance(outcome, BusError)
    assert (
        "status_changed was published in another thread than that of the bus's event loop; use publish_threadsafe"
        in str(outcome)
    )
    assert said(heard) == []
    assert bus.publish(signal("behind it")) is True  # no loop runs any more that could miss it


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_session_that_is_cancelled_in_another_thread_says_how_to_do_it():
    async with Runtime(ScriptedProvider([hang()])) as runtime:
        session = runtime.start("?")
        with pytest.raises(BusError, match=r"or call the method of a session with anyio\.from_thread\.run_sync$"):
            await anyio.to_thread.run_sync(session.cancel)
        assert await anyio.to_thread.run_sync(anyio.from_thread.run_sync, session.cancel)
        assert (await session.result()).outcome == "cancelled"


def test_publish_in_another_thread_than_trio_s_is_refused_by_trio_itself():
    bus = EventBus()

    async def main() -> object:
        bus.arbitration.bind()
        async with bus.subscribe(StatusChanged) as subscription, anyio.create_task_group() as group:
            group.start_soon(anext, subscription)
            await anyio.wait_all_tasks_blocked()
            outcome = await anyio.to_thread.run_sync(_in_thread, lambda: bus.publish(signal()))
            group.cancel_scope.cancel()
        return outcome

    with pytest.raises(RuntimeError, match="async context"):
        raise cast("Exception", anyio.run(main, backend="trio"))


def test_before_it_has_a_loop_it_says_what_to_start():
    bus = EventBus()
    with pytest.raises(BusError, match="no event loop yet: start a Runtime"):
        bus.publish_threadsafe(signal())
    assert isinstance(_in_thread(lambda: bus.publish_threadsafe(signal())), BusError)
    assert bus.statistics().position == 0


def _bind(bus: EventBus, backend: str) -> None:
    async def main() -> None:
        bus.arbitration.bind()

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_after_the_loop_has_ended_it_says_so_to_every_thread_and_publishes_nothing(backend: str):
    bus = EventBus()
    _bind(bus, backend)
    event = signal()
    with pytest.raises(BusError, match="loop of this bus has ended; status_changed was not published"):
        bus.publish_threadsafe(event)
    outcome = _in_thread(lambda: bus.publish_threadsafe(event))
    assert isinstance(outcome, BusError)
    assert "has ended" in str(outcome)
    assert bus.statistics().position == 0


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_bus_that_outlives_its_loop_learns_the_next_one(backend: str):
    bus = EventBus()
    heard = hear(bus)

    async def main(name: str) -> None:
        mailbox = bus.arbitration.open_mailbox("r")
        assert bus.clock() == pytest.approx(bus.clock(), abs=60)
        await anyio.to_thread.run_sync(bus.publish_threadsafe, signal(name))
        bus.arbitration.close_mailbox(mailbox)

    for name in ("first", "second"):
        anyio.run(main, name, backend=backend)
    assert said(heard) == ["first", "second"]


@pytest.mark.guarantee("G27")
async def test_the_clock_is_set_once_for_a_loop_however_often_somebody_starts_on_the_bus(
    monkeypatch: pytest.MonkeyPatch,
):
    import time

    bus = EventBus()
    bus.arbitration.bind()
    clock, now = bus.clock, bus.clock()
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 3600)  # the wall clock jumps
    async with bus.subscribe(), bus.subscribe():
        bus.arbitration.open_mailbox("r")
        bus.arbitration.bind()
    assert bus.clock is clock
    assert 0 <= bus.clock() - now < 60


async def test_the_clock_reads_like_the_wall_clock_and_runs_like_the_loops():
    import time

    bus = EventBus()
    clock = bus.clock
    assert bus.clock is clock
    assert abs(clock() - time.time()) < 5
    assert clock.on_loop(clock() + 10) == pytest.approx(anyio.current_time() + 10, abs=5)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_after_its_loop_has_ended_what_the_bus_tells_still_carries_a_time(backend: str):
    bus = EventBus()
    _bind(bus, backend)
    heard = hear(bus)
    event = completed("unknown")
    assert bus.publish(event) is False
    assert abs(heard[0].at - event.at) < 5
