"""The timers behind the deadlines of requests (`toolbus._timers`): exact, cheap to move, and without a leak."""

from __future__ import annotations

import contextvars
import gc
import weakref

import anyio
import pytest

from toolbus._timers import Timer, Timers
from toolbus.clock import SessionClock
from toolbus.testing import virtual_backends

anyio_backend = virtual_backends()


def timers() -> Timers:
    return SessionClock().timers


async def when(timer: Timer) -> float:
    """Return the moment at which the timer's scope is cancelled, counted from now."""
    began = anyio.current_time()
    with anyio.CancelScope() as timer.scope:
        await anyio.sleep_forever()
    return anyio.current_time() - began


async def test_a_timer_cancels_its_scope_at_its_deadline() -> None:
    timer = timers().timer()
    timer.set(anyio.current_time() + 3)
    assert await when(timer) == pytest.approx(3)


@pytest.mark.parametrize(("first", "then"), [(3, 7), (7, 3)], ids=["later", "earlier"])
async def test_a_timer_that_is_moved_fires_at_its_new_deadline_and_once(first: float, then: float) -> None:
    timer = timers().timer()
    began = anyio.current_time()
    timer.set(began + first)
    timer.set(began + then)
    assert await when(timer) == pytest.approx(then)
    with anyio.CancelScope() as timer.scope:
        await anyio.sleep(20)
    assert not timer.scope.cancelled_caught


@pytest.mark.parametrize("seconds", [1, 0])
async def test_a_deadline_that_has_passed_cancels_at_once(seconds: float) -> None:
    timer = timers().timer()
    timer.scope = anyio.CancelScope()
    timer.set(anyio.current_time() - seconds)
    assert timer.scope.cancel_called


async def test_a_timer_that_has_fired_can_be_set_again() -> None:
    timer = timers().timer()
    timer.set(anyio.current_time() + 1)
    assert await when(timer) == pytest.approx(1)
    timer.set(anyio.current_time() + 2)
    assert await when(timer) == pytest.approx(2)


async def test_timers_do_not_delay_one_another() -> None:
    many, seen = timers(), list[tuple[int, float]]()
    began = anyio.current_time()

    async def wait(number: int, seconds: float) -> None:
        timer = many.timer()
        timer.set(began + 100)  # the usual order: far away first
        timer.set(began + seconds)
        seen.append((number, await when(timer)))

    async with anyio.create_task_group() as group:
        for number, seconds in enumerate((5, 1, 3, 3, 2)):
            group.start_soon(wait, number, float(seconds))
    assert [moment for _, moment in seen] == pytest.approx([1, 2, 3, 3, 5])
    assert {number for number, _ in seen[2:4]} == {2, 3}


async def test_a_closed_timer_cancels_nothing_and_holds_nothing() -> None:
    timer = timers().timer()
    timer.set(anyio.current_time() + 1)
    with anyio.CancelScope() as timer.scope:
        scope = timer.scope
        timer.close()
        await anyio.sleep(5)
    assert not scope.cancel_called
    assert timer.scope is None


@pytest.mark.parametrize("deadlines", [(600,), (600, 300)], ids=["set", "set-and-moved"])
async def test_closed_timers_take_no_memory_for_long(deadlines: tuple[int, ...]) -> None:
    """Else each request of the last ten minutes would: its deadline is that far away."""
    many = timers()
    refs: list[weakref.ref[Timer]] = []

    class Seen(Timer):
        __slots__ = ("__weakref__",)

    alive = many.timer()
    alive.set(anyio.current_time() + 600)
    for _ in range(5_000):
        timer = Seen(many)
        timer.scope = anyio.CancelScope()
        for seconds in deadlines:
            timer.set(anyio.current_time() + seconds)
        refs.append(weakref.ref(timer))
        timer.close()
    del timer
    gc.collect()
    assert sum(ref() is not None for ref in refs) <= 2_000
    assert await when(alive) == pytest.approx(600)


async def test_a_timer_keeps_no_context_alive() -> None:
    class Held:
        pass

    variable: contextvars.ContextVar[Held] = contextvars.ContextVar("variable")
    held = Held()
    ref = weakref.ref(held)
    timer = timers().timer()

    context = contextvars.copy_context()
    context.run(variable.set, held)
    context.run(timer.set, anyio.current_time() + 600)
    del held, context
    gc.collect()
    assert ref() is None
