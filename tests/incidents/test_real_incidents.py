"""Incidents with real parts: an event loop that is blocked, and a disk that is full. See the table's rows."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from incidents.operator_view import Operator
from support.results import result_of
from toolbus import Runtime
from toolbus.events import LoopBlocked
from toolbus.stores.sqlite import SqliteStore
from toolbus.testing import ScriptedProvider, text

pytestmark = pytest.mark.anyio


async def test_the_event_loop_is_blocked():
    heard: list[LoopBlocked] = []
    with Operator("The event loop is blocked") as operator:
        model = ScriptedProvider([text("ok")])
        async with Runtime(model, blocked_loop_seconds=0.5, instrumentation=[operator.telemetry]) as runtime:
            runtime.bus.connect(LoopBlocked, heard.append)
            assert operator.written.wait(60)
            with anyio.fail_after(60):
                while not heard:
                    await anyio.lowlevel.checkpoint()
            operator.assert_seen(runtime)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the store's thread does the same on both
async def test_the_disk_is_full(tmp_path: Path):
    store = SqliteStore(tmp_path / "small.db")

    async def room_for(more: int) -> None:
        def give(database: Any) -> None:
            [[pages]] = database.rows("PRAGMA page_count")
            database.rows(f"PRAGMA max_page_count = {pages + more}")

        await store._writer.run(give)

    with Operator("The disk is full") as operator:
        runtime = Runtime(
            ScriptedProvider(lambda _request: text(os.urandom(40_000).hex())),
            store=store,
            instrumentation=[operator.telemetry],
        )
        async with runtime:
            assert (await runtime.run("fits")).outcome == "completed"
            await room_for(4)
            assert (await result_of(runtime.run("does not fit"))).outcome == "failed"
            operator.assert_seen(runtime)
            await room_for(10_000)
            assert (await runtime.run("fits again")).outcome == "completed"
            with anyio.fail_after(60):
                while runtime.health().degraded:
                    await anyio.lowlevel.checkpoint()
