"""Many readers of one request: they begin in turns, so that no round of the event loop runs all of them."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest
from bus_events import fact, said

from toolbus import EventBus
from toolbus.bus import Subscription
from toolbus.bus._subscriptions import _TURNS, Turns  # pyright: ignore[reportPrivateUsage]

READERS = 10 * _TURNS


async def wait_until_blocked() -> None:
    for _ in range(3):
        await anyio.wait_all_tasks_blocked()


class Readers:
    """Readers of everything, and what each of them has read. Some `hang` after their first event."""

    def __init__(self, bus: EventBus, hang: int = 0) -> None:
        self.read: list[list[str]] = [[] for _ in range(READERS)]
        self.scopes = [anyio.CancelScope() for _ in range(READERS)]
        self._bus = bus
        self._hang = hang

    async def run(self, number: int) -> None:
        with self.scopes[number]:
            async with self._bus.subscribe() as subscription:
                await self._follow(number, subscription)

    async def _follow(self, number: int, subscription: Subscription) -> None:
        async for event in subscription:
            self.read[number] += said([event])
            if number < self._hang:
                await anyio.sleep_forever()

    @property
    def begun(self) -> int:
        return sum(map(bool, self.read))


async def test_readers_begin_in_turns_and_all_of_them_read():
    bus = EventBus()
    readers = Readers(bus)
    async with anyio.create_task_group() as group:
        for number in range(READERS):
            group.start_soon(readers.run, number)
        await wait_until_blocked()
        bus.arbitration.announce(fact("a"))
        rounds = 0
        while (before := readers.begun) < READERS:
            await anyio.lowlevel.checkpoint()
            assert readers.begun - before <= 2 * _TURNS  # A checkpoint may end in the next round.
            rounds += 1
        assert rounds >= READERS / _TURNS / 2
        bus.arbitration.announce(fact("b"))
        await wait_until_blocked()
        assert readers.read == [["a", "b"]] * READERS
        group.cancel_scope.cancel()


@pytest.mark.guarantee("G03")
async def test_readers_that_hang_or_are_cancelled_hold_up_no_other_reader():
    bus = EventBus()
    readers = Readers(bus, hang=2 * _TURNS)
    async with anyio.create_task_group() as group:
        for number in range(READERS):
            group.start_soon(readers.run, number)
        await wait_until_blocked()
        bus.arbitration.announce(fact("a"))
        for scope in readers.scopes[: 3 * _TURNS]:  # Some of them were woken, and some wait for their turn.
            scope.cancel()
        bus.arbitration.announce(fact("b"))
        await wait_until_blocked()
        assert readers.read[3 * _TURNS :] == [["a", "b"]] * (READERS - 3 * _TURNS)
        bus.arbitration.announce(fact("c"))
        await wait_until_blocked()
        assert readers.read[3 * _TURNS :] == [["a", "b", "c"]] * (READERS - 3 * _TURNS)
        group.cancel_scope.cancel()


@pytest.mark.parametrize("is_closed", [False, True])
def test_readers_that_another_event_loop_has_left_behind_do_not_count(is_closed: bool):
    bus, read = EventBus(), list[str]()

    async def follow() -> None:
        async with bus.subscribe() as subscription:
            async for event in subscription:
                read.extend(said([event]))

    async def turn() -> None:
        for _ in range(5):
            await anyio.lowlevel.checkpoint()

    async def publish() -> list[str]:
        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await turn()
            for number in range(3):
                bus.arbitration.announce(fact(str(number)))
                await turn()
            group.cancel_scope.cancel()
        return read

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: None)  # asyncio reports tasks that were left behind.
    left_behind = [loop.create_task(follow()) for _ in range(2 * _TURNS)]
    loop.run_until_complete(turn())
    if is_closed:
        loop.close()
    assert asyncio.run(publish()) == ["0", "1", "2"]
    if not is_closed:
        for each in left_behind:
            each.cancel()
        loop.run_until_complete(asyncio.wait(left_behind))
        loop.close()


def test_readers_of_another_event_loop_hand_no_turn_on():
    turns, old, new = Turns(), anyio.Event(), [anyio.Event() for _ in range(_TURNS + 1)]
    turns.wake(old, turns.loops)
    turns.renew()
    turns.left(old, 0)
    for each in new:
        turns.wake(each, turns.loops)
    assert [each.is_set() for each in new] == [True] * _TURNS + [False]
