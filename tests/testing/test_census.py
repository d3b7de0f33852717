"""The census finds whatever is left over, and nothing of the runner's own."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest

from toolbus import EventBus
from toolbus.testing import Harness, assert_idle, text, virtual_backends

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
    mailbox = bus.open_mailbox("r")
    bus.open_calls(mailbox, ["c"])
    with pytest.raises(AssertionError, match=r"1 request\(s\) that did not end; 1 open call\(s\)"):
        await assert_idle(bus)


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
    with pytest.raises(AssertionError, match="bare task"):
        await assert_idle()
    task.cancel()
    await assert_idle()
