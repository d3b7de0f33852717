"""The client: one conversation, in which autoplay and the user take turns."""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping

import anyio

from toolbus import Compression, Limits, Runtime
from toolbus.errors import ConfigurationError, Overloaded
from toolbus.protocols import Provider
from toolbus.records import replace
from toolbus.stores import SqliteStore
from toolbus.toolsets.mcp import McpServer, McpToolOptions, McpTools

from .screen import SHOWN, Screen, TokenCounter

__all__ = ["COMPRESSION", "LIMITS", "TOOLS", "play"]

LIMITS = replace(Limits.thorough(), on_limit="stop")
"""The limits of a turn: after 20 rounds, it ends with an error."""

COMPRESSION = Compression(keep_turns=10, max_context_tokens=8_000)
"""The compression: ten turns are sent whole. In older ones, results of queries become a line, and those of actions keep
200 characters. The window is never exceeded."""

TOOLS: Mapping[str, McpToolOptions] = {
    "login": {"keep_full_results": True},  # its result contains the session
    **{name: {"kind": "action"} for name in ("travel", "mine", "sell", "refuel")},
}
"""The options that the server does not state. Its hints say which tools only read, and its schemas what is secret."""

FAILURES = 3
"""The number of failed turns in a row after which autoplay stops."""

INSTRUCTIONS = (
    "You play a space trader by its tools, as the pilot {pilot}, password {password}. Log in when you have no session, "
    "or yours is not known. Mine at belts, sell at ports, and earn as much as you can. When a tool reports an "
    "error, act on it. When a turn is done, say in one sentence what you have done."
)


async def play(
    provider: Provider | str,
    server: McpServer,
    store: SqliteStore,
    screen: Screen,
    *,
    pilot: str,
    password: str,
    turns: int,
    typed: AsyncIterable[str],
    waits: bool,
) -> bool:
    """Play `turns` turns and the lines of `typed`, with `waits` until its end. Return whether autoplay was not stopped.

    The pilot's name is the conversation's id. Raises `ConfigurationError`, `StoreError`, and the screen's errors.
    """
    counter = TokenCounter()
    runtime = Runtime(
        provider,
        store=store,
        instructions=INSTRUCTIONS.format(pilot=pilot, password=password),
        secrets=[("password", password)],  # thanks to its name, a turn from an earlier start gets the new password
        limits=LIMITS,
        compression=COMPRESSION,
        interceptors=[counter],
        drain_seconds=LIMITS.timeout_seconds,  # so the last typed line is answered
    )
    runtime.bus.connect(SHOWN, screen.on_event)
    was_stopped = False
    # The game is trusted with its own secrets, and this request has no others.
    server = replace(server, tool_options=TOOLS, needs_approval=False)
    async with McpTools([server], registry=runtime.tools) as mcp:
        if not mcp.status()[0].connected:
            raise ConfigurationError(f"the game cannot be reached: {mcp.status()[0].reason}")
        async with runtime:
            known = len(await store.history(pilot))
            screen.show(f"conversation {pilot!r} {'continues' if known else 'begins'}; messages stored: {known}")
            for cut_off in await runtime.resume():
                await cut_off.result()
            async with anyio.create_task_group() as group:
                group.start_soon(_listen, runtime, screen, pilot, typed)
                was_stopped = await _autoplay(runtime, screen, pilot, turns)
                if not waits or screen.is_gone:
                    group.cancel_scope.cancel()
    screen.check()
    screen.show(f"\n{counter.report()}")
    return not was_stopped


async def _listen(runtime: Runtime, screen: Screen, pilot: str, typed: AsyncIterable[str]) -> None:
    """Start a turn for each line; it runs after the current turn, and before autoplay's next one."""
    async for line in typed:
        try:
            runtime.start(line, conversation_id=pilot, metadata={"who": "you"})
            screen.heard(line)
        except Overloaded as exc:
            screen.show(f"   … {line!r} is not taken: {exc}")


async def _autoplay(runtime: Runtime, screen: Screen, pilot: str, turns: int) -> bool:
    """Play `turns` turns while the screen is there. Return whether too many in a row have failed."""
    failures = 0
    for turn in range(1, turns + 1):
        who = {"who": f"autoplay {turn}/{turns}"}
        result = await runtime.start(f"Turn {turn}: keep playing.", conversation_id=pilot, metadata=who).result()
        failures = failures + 1 if result.outcome == "failed" else 0
        if failures == FAILURES:
            screen.show(f"\nautoplay stops: {FAILURES} turns in a row have failed")
            return True
        if screen.is_gone:
            break
    return False
