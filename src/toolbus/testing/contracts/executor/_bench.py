"""The bench on which an executor is checked: it requests calls, collects the answers, and records failures."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import anyio

from ....bus import EventBus
from ....events import ToolCallCompleted, ToolCallFailed, ToolCallRequested
from ....tools import Tool
from ... import contract_tools
from ...contract_tools import CONTRACT_TOOLS
from .._caller import Caller as BaseCaller
from .._caller import numbers
from .._checks import Checks, Ledger

MakeExecutor: TypeAlias = Callable[[EventBus, Sequence[Tool]], AbstractAsyncContextManager[Any]]
"""Returns an executor for the calls of these tools on this bus."""

Lack: TypeAlias = Literal["sync", "context", "progress", "notes", "sharing"]
"""The features that an executor may lack: see `check_executor`."""

TWO_AT_ONCE: Final = "two at once"
BOUND: Final = "bound"
"""The needs of a check besides the features that `lacks` may name: handlers at once, and a bound on them."""


class Caller(BaseCaller):
    """One request on its own bus, with an executor on the bus."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench, bench.patience_seconds)
        self.bench = bench
        self.stubborn: list[str] = []  # keys of handlers that cannot be stopped

    def open(self, name: str, *, deadline_seconds: float = 3_600.0, **arguments: Any) -> ToolCallRequested:
        """Open a call without publishing it."""
        return self.open_call(name, arguments, deadline_seconds=deadline_seconds)

    def ask(self, name: str, *, deadline_seconds: float = 3_600.0, **arguments: Any) -> ToolCallRequested:
        requested = self.open(name, deadline_seconds=deadline_seconds, **arguments)
        self.bus.publish(requested)
        return requested

    async def completed(self, name: str, **arguments: Any) -> ToolCallCompleted:
        """Request a call that has to succeed."""
        answer = await self.answer(self.ask(name, **arguments))
        if not isinstance(answer, ToolCallCompleted):
            self.bench.give_up(f"the call of {name}", "completed", answer)
        return answer

    async def failed(self, name: str, **arguments: Any) -> ToolCallFailed:
        """Request a call that has to fail."""
        answer = await self.answer(self.ask(name, **arguments))
        if not isinstance(answer, ToolCallFailed):
            self.bench.give_up(f"the call of {name} with {arguments}", "failed", answer)
        return answer

    async def quiet(self) -> None:
        """Listen for events that must not come: wait until one more call is answered, and then for `quiet_seconds`."""
        await self.completed("contract_echo", said="all quiet")
        await anyio.sleep(self.bench.quiet_seconds)

    # ------------------------------------------------------------------------------------- notes of handlers

    async def notes(self, key: str, least: int = 0) -> list[str]:
        """Return the notes that handlers made under a key. Waits until there are `least` notes."""
        seconds = self.bench.patience_seconds if least else 0.0
        if self.bench.elsewhere:
            answer: Any = await self.completed("contract_notes", key=key, count=least, seconds=seconds)
            return answer.data
        return await contract_tools.contract_notes(key, least, seconds)

    async def held(self, name: str = "contract_hold", **arguments: Any) -> tuple[ToolCallRequested, str]:
        """Request a call, wait until its handler has begun and holds, and return the call and its key."""
        key = f"key-{next(numbers)}"
        if arguments.get("deaf") or name == "contract_hold_sync":
            self.stubborn.append(key)
        requested = self.ask(name, key=key, **arguments)
        notes = await self.notes(key, 1)
        if notes != ["began"]:
            self.bench.give_up(f"the notes of {name}", ["began"], notes)
        return requested, key

    async def release(self, key: str) -> None:
        """Release the handlers that hold under a key."""
        if self.bench.elsewhere:
            await self.completed("contract_release", key=key)
        else:
            contract_tools.release(key)

    def release_later(self, key: str) -> None:
        """Release handlers at the end of a check, without waiting for them."""
        if self.bench.elsewhere:
            self.ask("contract_release", key=key)
        else:
            contract_tools.release(key)


@dataclass(eq=False)
class Bench(Ledger):
    """The state of a check: a way to make an executor, the executor's declared features, and the failures."""

    make: MakeExecutor
    elsewhere: bool
    max_concurrency: int | None
    patience_seconds: float
    quiet_seconds: float
    _callers: list[Caller] = field(default_factory=list[Caller], init=False)

    def caller(self) -> Caller:
        """Return a request on a bus without an executor."""
        caller = Caller(self)
        self._callers.append(caller)
        return caller

    @asynccontextmanager
    async def executor(self) -> AsyncGenerator[Caller]:
        """A request whose calls an executor runs inside the block."""
        caller = self.caller()
        async with self.make(caller.bus, CONTRACT_TOOLS):
            try:
                yield caller
            finally:
                for key in caller.stubborn:
                    caller.release_later(key)

    def clear(self) -> None:
        """End the requests that the check has left."""
        for caller in self._callers:
            caller.leave()
        self._callers.clear()


CHECKS: Checks[Bench] = Checks()
"""All checks by name."""
check = CHECKS.check
