"""What the tests of remote calls share: workers in this process and in others, and a tool that holds."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import worker_child
from worker_child import TOOLS

from support import forked
from support.nats_server import NatsServer
from toolbus import tool
from toolbus.remote.nats import ToolWorker
from toolbus.testing import ScriptedProvider, calls, text

Broker = tuple[NatsServer, str]
"""The server, and the prefix of one test."""


@contextmanager
def worker_process(broker: Broker, notes: Path, pool: str = "gpu", most: int = 4) -> Generator[forked.Process]:
    server, prefix = broker
    with forked.Process(worker_child.main, server.url, prefix, pool, most, 0.5, str(notes)) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process


@asynccontextmanager
async def worker_here(broker: Broker, tools: Any = TOOLS, **options: Any) -> AsyncGenerator[ToolWorker]:
    worker = ToolWorker(broker[0].url, tools, pool="gpu", prefix=broker[1], **options)
    ready = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run, ready.set)
        await ready.wait()
        yield worker
        group.cancel_scope.cancel()


def model(*names: str) -> ScriptedProvider:
    wanted: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in names]
    return ScriptedProvider([calls(*wanted), text("Done.")])


def ran(notes: Path) -> list[str]:
    return notes.read_text().splitlines()


class Held:
    """A tool whose handler holds until it is released, and counts its runs."""

    def __init__(self, *, idempotent: bool = True) -> None:
        self.began, self.released, self.runs = anyio.Event(), anyio.Event(), 0

        @tool(pool="gpu", idempotent=idempotent)
        async def held() -> str:
            """Hold."""
            self.runs += 1
            self.began.set()
            await self.released.wait()
            return "held"

        self.tool = held


class Said(logging.Handler):
    """What was logged about remote calls."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.changed = anyio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.changed.set()
        self.changed = anyio.Event()

    async def until(self, words: str, count: int = 1) -> None:
        with anyio.fail_after(30):
            while sum(words in line for line in self.lines) < count:
                await self.changed.wait()
