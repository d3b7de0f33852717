"""A worker that is gone: the lines, metrics and health that an operator sees are those of the incident's row."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
import pytest
from remote_workers import Broker, model, worker_process
from worker_child import TOOLS

from incidents.operator_view import Operator
from toolbus import Runtime
from toolbus.remote.nats import NatsExecutor


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # nats-py works on asyncio only
async def test_a_worker_is_gone(broker: Broker, tmp_path: Path):
    notes = tmp_path / "notes"
    notes.touch()
    executor = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    with Operator("A worker died") as operator, worker_process(broker, notes) as first:
        runtime = Runtime(model("once"), tools=TOOLS, executors=[executor], instrumentation=[operator.telemetry])
        async with runtime:
            session = runtime.start("Go.")
            assert await anyio.to_thread.run_sync(first.stdout.readline) == b"once\n"
            first.kill()
            first.wait()
            with worker_process(broker, notes):
                result = await session.result()
            assert result.tool_calls[0].reason == "interrupted"
            operator.assert_seen(runtime)
