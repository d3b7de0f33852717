"""What tests name on the command line: `--provider scenes:scripted`, `--tools scenes:weather`."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread

from toolbus import ToolContext, ToolError, ToolRegistry, tool
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.providers.scripted import ScriptedProvider, Step, calls, text
from toolbus.toolsets.control import give_up, task_complete, update_plan

script: Any = []
seen: list[ModelRequest] = []


def forget() -> None:
    global script
    script = []
    seen.clear()
    did.clear()
    asked.clear()
    holding.clear()


def play(*steps: Any) -> None:
    """The script of the provider that is made next."""
    global script
    script = list(steps)


class _Recording:
    vendor = "scripted"

    def __init__(self, steps: Sequence[Step]) -> None:
        self._inner = ScriptedProvider(steps)

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        await anyio.lowlevel.checkpoint()
        try:
            return await self._inner.respond(request, emit)
        finally:
            seen.extend(self._inner.requests)
            self._inner.requests.clear()


def scripted() -> _Recording:
    return _Recording(script)


class Quiet(_Recording):
    """Answers without streaming."""

    def __init__(self) -> None:
        super().__init__(script)

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        return await super().respond(request, lambda _delta: None)


def broken() -> _Recording:
    raise RuntimeError("no\nluck")


@tool
async def get_weather(city: str) -> str:
    """Current weather in a city."""
    return f"Sunny in {city}."


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


@tool
async def closed() -> str:
    """Always fails."""
    raise ToolError("the archive is \x1b[31mclosed\x1b[0m\non sundays")


@tool
async def forging() -> str:
    """Has a bug, and a server's text in it."""
    raise ValueError("bad\n2026-01-01 00:00:00,000 ERROR root: forged")


@tool
async def raising() -> str:
    """Has a bug."""
    raise LookupError("a bug in the tool")


@tool
async def printing() -> str:
    """Prints, as tools do."""
    print("printed by the tool")  # noqa: T201
    return "ok"


@tool
async def logging_too() -> str:
    """Logs."""
    logger = logging.getLogger("a_tool")
    logger.info("not wanted")
    logger.warning("no \x1b[31mapples")
    return "ok"


@tool
async def step_by_step(context: ToolContext[None]) -> str:
    """Tells how far it is."""
    await context.progress("pages", done=3, total=4)
    return "ok"


@tool
async def interrupted() -> str:
    """Has its user press Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)
    await anyio.sleep_forever()
    return ""


@tool
async def terminated() -> str:
    """Has somebody terminate the process."""
    os.kill(os.getpid(), signal.SIGTERM)
    await anyio.sleep_forever()
    return ""


ready = ScriptedProvider(())
everything = [get_weather, add, closed, forging, raising, printing, logging_too, step_by_step, interrupted, terminated]
a_pair = (add, get_weather)


class _Callable:
    __name__ = "callable_object"

    def __call__(self, a: int) -> int:
        """Take a number."""
        return a


callable_object = _Callable()
registry = ToolRegistry([get_weather])
also_search = [tool(name="search_text")(add)]
no_tools = 42
half = [get_weather, 42]


# ------------------------------------------------------------------------------------------------ approvals

did: list[str] = []


@tool(destructive=True)
async def delete_file(path: str, force: bool = False) -> str:
    """Delete a file."""
    did.append(f"{path}!" if force else path)
    return f"{path} is gone"


@tool(needs_approval=True)
async def send_mail(to: str) -> str:
    """Send a mail."""
    did.append(to)
    return "sent"


@tool
async def failing() -> str:
    """Fails, once somebody is being asked about another call."""
    await anyio.to_thread.run_sync(asked.wait, 20)
    raise ToolError("out of paper")


@tool(name="delete_file", destructive=True)
async def _another_delete_file(path: str) -> str:
    """Delete a file, but not as the one above does."""
    did.append(path)
    return f"{path} is gone"


@tool
async def helper(task: str, context: ToolContext[None]) -> str:
    """Hands a task to a request of its own, which deletes what the task names."""
    script = [calls(("delete_file", {"path": task})), text("Helped.")]
    return (await context.ask(task, provider=ScriptedProvider(script), tools=[_another_delete_file])).text


asked = threading.Event()
dangerous = [delete_file, send_mail, failing, get_weather, printing, helper, update_plan, task_complete, give_up]


# ------------------------------------------------------------------------------------------------ cut off

holding: list[anyio.Event] = []
"""While there is an event in it, the tools below tell it that they run, and never return."""


async def _held(name: str) -> str:
    if holding:
        holding[0].set()
        await anyio.sleep_forever()
    did.append(name)
    return f"{name} is done"


@tool
async def send(to: str) -> str:
    """Send something, which must not happen twice."""
    return await _held(f"send {to}")


@tool(idempotent=True)
async def fetch(what: str) -> str:
    """Fetch something, which may happen twice."""
    return await _held(f"fetch {what}")


resumable = [send, fetch, delete_file, interrupted]
