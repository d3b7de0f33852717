"""The tools of a simulated world: each misbehaves in its own way, as the chance of its call decides.

A handler reads its process (or its machine), and so its world, from the context variable `PROCESS`, which reaches
handlers like any of an application's. Some tools are idempotent: their calls may run once more if nobody knows whether
they have run.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import anyio
from pydantic import SecretStr

from ...errors import ToolbusError, ToolError, ToolRetry
from ...tool_results import ToolResult
from ...tools import Tool, ToolContext, tool

if TYPE_CHECKING:
    from ._process import Process

PROCESS: ContextVar[Process] = ContextVar("toolbus_simulated_process")

POOL = "far"
"""The pool of the tools whose calls run on other machines."""

_OUTCOMES = {"text": 6.0, "data": 2.0, "result": 2.0, "long": 1.0, "raise": 2.0, "tell": 1.0, "again": 1.0, "exit": 0.3}


async def _behave(context: ToolContext[Any] | None, name: str) -> Any:
    """Wait about as long as the call may take, then end in one of the ways."""
    process = PROCESS.get()
    world = process.world
    if context is not None:
        process.watch.begins(context.request_id, context.call_id, context.idempotency_key)
    chance = world.chance(f"{name}/{context.call_id if context else ''}/{context.attempt if context else 0}")
    await anyio.sleep_until(world.moment(chance, world.tool_seconds))
    if context is not None:
        process.watch.runs(context.request_id, context.call_id)
    kind = chance.weighted(_OUTCOMES)
    if context is not None and chance.says(0.1):
        await context.progress(f"half way {world.secret}", done=1, total=2)
    if kind == "raise":
        raise ValueError(f"broken {world.secret}")
    if kind == "tell":
        raise ToolError(f"there is no such thing {world.secret}")
    if kind == "again":
        raise ToolRetry(f"say it otherwise {world.secret}")
    if kind == "exit":
        raise SystemExit(3)
    if kind == "data":
        return {"n": chance.whole(0, 9), "of": name, "with": world.secret}
    if kind == "result":
        return ToolResult(message="done", data=[1, 2, 3], affected=[name])
    return f"{name} {world.secret}" * (2_000 if kind == "long" else 1)


@tool
async def work(n: int, context: ToolContext[Any]) -> Any:
    """Do something."""
    return await _behave(context, f"work {n}")


@tool(retries=2, idempotent=True)
async def flaky(n: int, context: ToolContext[Any]) -> Any:
    """Do something that sometimes fails."""
    return await _behave(context, f"flaky {n}")


@tool(sequential=True, kind="action")
async def serial(n: int, context: ToolContext[Any]) -> Any:
    """Do something, one after the other."""
    return await _behave(context, f"serial {n}")


@tool(destructive=True)
async def risky(n: int, context: ToolContext[Any]) -> Any:
    """Do what cannot be taken back."""
    return await _behave(context, f"risky {n}")


@tool(cache_seconds=3, kind="query", idempotent=True)
async def shared(n: int) -> Any:
    """Look something up."""
    return await _behave(None, f"shared {n}")


@tool(idempotent=True)
async def stubborn(n: int, context: ToolContext[Any]) -> Any:
    """Do something, and do not want to be cancelled."""
    try:
        return await _behave(context, f"stubborn {n}")
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            await anyio.sleep(n)
        if n % 2:
            return "all the same"
        raise


async def _ask(context: ToolContext[Any], n: int, **options: Any) -> Any:
    world = PROCESS.get().world
    try:
        result = await context.ask(f"part {n} {world.secret}", output=world.output if n > 1 else None, **options)
    except ToolbusError as exc:
        raise ToolError(f"could not ask: {exc}") from exc
    return result.text or result.reason


@tool
async def deep(n: int, context: ToolContext[Any]) -> Any:
    """Ask its own request."""
    return await _ask(context, n, tools=PROCESS.get().world.tools_below)


outside: Tool = Tool(
    "outside",
    "Answered by somebody else on the bus.",
    {"type": "object", "properties": {"n": {"type": "integer"}}},
    external=True,
    validate=lambda _arguments: None,
)

afar: Tool = Tool(
    "afar",
    "Answered by somebody else on the bus, while the model continues.",
    {"type": "object", "properties": {"n": {"type": "integer"}}},
    external=True,
    background=True,
    validate=lambda _arguments: None,
)


@tool(background=True, idempotent=True)
async def brew(n: int, context: ToolContext[Any]) -> Any:
    """Do something while the model continues."""
    return await _behave(context, f"brew {n}")


@tool(return_direct=True)
async def show(n: int, context: ToolContext[Any]) -> Any:
    """Answer the person."""
    return await _behave(context, f"show {n}")


@tool
async def unlock(n: int, key: SecretStr, context: ToolContext[Any]) -> Any:
    """Use a secret, and return another one."""
    process, value = PROCESS.get(), key.get_secret_value()
    process.watch.note("G36", value in process.world.secrets, f"{context.call_id} got {value}")
    return {"did": await _behave(context, f"unlock {n}"), "next": SecretStr(process.world.secrets[1])}


@tool(pool=POOL, timeout_seconds=40)
async def reach(n: int, context: ToolContext[Any]) -> Any:
    """Do something on another machine."""
    return await _behave(context, f"reach {n}")


@tool(pool=POOL, retries=1, idempotent=True, needs_transcript=True)
async def haul(n: int, context: ToolContext[Any]) -> Any:
    """Do something on another machine that fails at times."""
    return await _behave(context, f"haul {n}")


@tool(pool=POOL, destructive=True)
async def launch(n: int, context: ToolContext[Any]) -> Any:
    """Do on another machine what cannot be taken back."""
    return await _behave(context, f"launch {n}")


@tool(pool=POOL, background=True, idempotent=True, timeout_seconds=40)
async def ship(n: int, context: ToolContext[Any]) -> Any:
    """Do something on another machine while the model continues."""
    return await _behave(context, f"ship {n}")


@tool(pool=POOL, idempotent=True, timeout_seconds=40)
async def consult(n: int, context: ToolContext[Any]) -> Any:
    """Ask the model from another machine."""
    await _behave(context, f"consult {n}")
    return await _ask(context, n)


TOOLS: tuple[Tool, ...] = (work, flaky, serial, risky, shared, stubborn, deep, outside, afar, brew)
REMOTE_TOOLS: tuple[Tool, ...] = (reach, haul, launch, ship, consult)
_ALL = (*TOOLS, *REMOTE_TOOLS, unlock, show)
NEEDS_APPROVAL = frozenset(each.name for each in _ALL if each.spec.needs_approval)
EXTERNAL = frozenset(each.name for each in _ALL if each.spec.external)
IDEMPOTENT = frozenset(each.name for each in _ALL if each.spec.idempotent)
BACKGROUND = frozenset(each.name for each in _ALL if each.spec.background)
DIRECT = frozenset(each.name for each in _ALL if each.spec.return_direct)
REMOTE = frozenset(each.name for each in REMOTE_TOOLS)
RETRIES = {each.name: each.retries for each in _ALL}
"""The names of the tools whose calls need a person's approval, are answered by others, may run once more after a crash,
do not delay their request, answer it directly, or run on machines whose signals may be lost; and each tool's retries.
"""
