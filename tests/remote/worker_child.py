"""A worker process for the tests, which runs `main`: see `support.forked`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import nats.js  # pyright: ignore[reportMissingTypeStubs, reportUnusedImport] # noqa: F401 -- imported before the first fork

from toolbus import Tool, ToolContext, tool
from toolbus.remote.nats import ToolWorker
from toolbus.testing.contract_tools import CONTRACT_TOOLS

NOTES: list[Path] = []


def say(line: str) -> None:
    """Write a line for the test, which waits for it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def note(what: str) -> None:
    with NOTES[0].open("a") as file:
        file.write(f"{what}\n")
    say(what)


@tool(pool="gpu", idempotent=True)
async def safe(context: ToolContext[Any]) -> str:
    """Run, and hang at the first attempt."""
    note(f"safe {context.idempotency_key}")
    if context.attempt == 1:
        await anyio.sleep_forever()
    return f"attempt {context.attempt}"


@tool(pool="gpu")
async def once() -> str:
    """Hang."""
    note("once")
    await anyio.sleep_forever()
    return "never"


@tool(pool="gpu")
async def quick(context: ToolContext[Any]) -> str:
    """Answer with what the worker has."""
    note("quick")
    return f"deps {context.deps}"


@tool(pool="gpu", needs_transcript=True)
async def recall(context: ToolContext[Any]) -> str:
    """Answer with what was said."""
    return " | ".join(f"{each.role}: {getattr(each, 'text', '')}" for each in context.messages)


@tool(pool="gpu", idempotent=True, timeout_seconds=60)
async def wait_again(path: str, context: ToolContext[Any]) -> str:
    """Wait for a file. The call may run twice."""
    note(f"wait_again {context.idempotency_key}")
    await file_at(path)
    return f"attempt {context.attempt}"


@tool(pool="gpu", timeout_seconds=60)
async def wait_once(path: str, context: ToolContext[Any]) -> str:
    """Wait for a file. The call may not run twice."""
    note(f"wait_once {context.idempotency_key}")
    await file_at(path)
    return f"attempt {context.attempt}"


async def file_at(path: str) -> None:
    while not Path(path).exists():  # noqa: ASYNC110, ASYNC240 -- the test makes it, in another process
        await anyio.sleep(0.01)


@tool(pool="gpu", idempotent=True, timeout_seconds=60)
async def work_again(number: int, seconds: float) -> str:
    """Take some time. The call may run twice."""
    note(f"work_again {number}")
    await anyio.sleep(seconds)
    return f"work_again {number}"


@tool(pool="gpu", timeout_seconds=60)
async def work_once(number: int, seconds: float) -> str:
    """Take some time. The call may not run twice."""
    note(f"work_once {number}")
    await anyio.sleep(seconds)
    return f"work_once {number}"


TOOLS: list[Tool] = [safe, once, quick, recall, wait_again, wait_once, work_again, work_once]


def in_pool(pool: str) -> list[Tool]:
    """The tools of `check_executor`, declared for a pool."""
    return [
        Tool(handler=each.handler, pool=pool) if each.handler and not each.spec.pool else each
        for each in CONTRACT_TOOLS
    ]


async def main(url: str, prefix: str, pool: str, most: int, lease_seconds: float, notes: str) -> None:
    NOTES.append(Path(notes))
    worker = ToolWorker(
        url,
        in_pool(pool) if pool == "contract" else TOOLS,
        pool=pool,
        prefix=prefix,
        deps="of the worker",
        max_concurrency=most,
        lease_seconds=lease_seconds,
    )
    await worker.run(lambda: say("ready"))
