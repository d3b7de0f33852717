"""Requests that were cut off, as a process leaves them that is gone: in a store, with nobody's lease."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import anyio
import scenes

from toolbus import Runtime
from toolbus.cli._open_store import CommandStore
from toolbus.events import ApprovalRequested
from toolbus.providers.scripted import ScriptedProvider, calls

COMMAND = {"provider": "scenes:scripted", "dir": ".", "tools": ["scenes:resumable"]}
NOBODY = 2**22 + 4711  # more than Linux has processes
_T = TypeVar("_T")


def with_store(path: Path, function: Callable[[CommandStore], Awaitable[_T]]) -> _T:
    """What an async function of the store returns."""

    async def done() -> _T:
        store = CommandStore(path)
        try:
            return await function(store)
        finally:
            await store.aclose()

    return anyio.run(done)


def cut_off(
    path: Path,
    call: tuple[str, dict[str, Any]],
    prompt: str,
    *,
    command: Mapping[str, Any] | None = COMMAND,
    **options: Any,
) -> str:
    """Begin a request that calls a tool, and leave it while that runs, or waits for a person. Its id.

    `options` are those of the request.
    """
    path.parent.mkdir(parents=True, exist_ok=True)

    async def begun() -> str:
        reached = anyio.Event()
        scenes.holding.append(reached)
        provider = ScriptedProvider([calls(call)])
        store = CommandStore(path, command)
        async with Runtime(provider, tools=scenes.resumable, store=store, drain_seconds=0) as runtime:
            runtime.bus.connect(ApprovalRequested, lambda _question: reached.set())
            session = runtime.start(prompt, **options)
            with anyio.fail_after(60):
                await reached.wait()
        scenes.holding.clear()
        assert (await session.result()).resumable
        return session.request_id

    return anyio.run(begun)


def hold(path: Path, request_id: str, seconds: float, *, process: int | None = None, host: str = "") -> None:
    """Have a process hold the request: of this machine and this one, unless said otherwise."""
    owner = f"{host or socket.gethostname()}:{os.getpid() if process is None else process}:x"
    assert with_store(path, lambda store: store.take(request_id, owner, seconds)) is not None
