"""The bench on which an executor is checked: it requests calls, hears the answers, and writes down what is wrong."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Literal, TypeAlias

import anyio

from ...bus import EventBus
from ...events import (
    DeadLetter,
    Event,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallProgress,
    ToolCallRequested,
)
from ...tools import Tool
from .. import contract_tools
from .._contract import Abandoned, Failure
from ..contract_tools import CONTRACT_TOOLS

__all__ = [
    "BOUND",
    "CHECKS",
    "TWO_AT_ONCE",
    "Bench",
    "Check",
    "Desk",
    "Lack",
    "MakeExecutor",
    "Terminal",
    "check",
    "shown",
]

MakeExecutor: TypeAlias = Callable[[EventBus, Sequence[Tool[..., Any]]], AbstractAsyncContextManager[Any]]
"""Gives an executor for the calls of these tools on this bus."""

Lack: TypeAlias = Literal["sync", "context", "progress", "notes", "sharing"]
"""What an executor may say that it cannot: see `check_executor`."""

Terminal: TypeAlias = ToolCallCompleted | ToolCallFailed
_TERMINAL = (ToolCallCompleted, ToolCallFailed)
_SHOWN = 400  # characters of what came, in a report
_numbers = count(1)


TWO_AT_ONCE: Final = "two at once"
BOUND: Final = "bound"
"""What a check may need beside what an executor can lack by its own word."""


class Desk:
    """One request on a bus of its own, with an executor on it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.bus = EventBus()
        self.request_id = f"request-{next(_numbers)}"
        self.events: list[Event] = []
        self._changed = anyio.Event()
        self.bus.connect((*_TERMINAL, ToolCallLate, ToolCallProgress, DeadLetter), self._hear)
        self.mailbox = self.bus.open_mailbox(self.request_id)
        self.stubborn: list[str] = []  # keys of what cannot be stopped

    def leave(self) -> None:
        """End the request."""
        self.bus.close_mailbox(self.mailbox)

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()
        self._changed = anyio.Event()

    # ------------------------------------------------------------------------------------------- requesting

    def open(self, name: str, *, deadline_seconds: float = 3_600.0, **arguments: Any) -> ToolCallRequested:
        """Open a call, and tell nobody."""
        call_id = f"{self.request_id}_{next(_numbers)}"
        self.bus.open_calls(self.mailbox, [call_id])
        return ToolCallRequested(
            request_id=self.request_id,
            conversation_id=f"conversation of {self.request_id}",
            parent_id=f"parent of {call_id}",
            metadata={"tenant": "Zürich"},
            at=self.bus.clock(),
            call_id=call_id,
            name=name,
            arguments=arguments,
            round=0,
            deadline=deadline_seconds,
            idempotency_key=f"key of {call_id}",
        )

    def ask(self, name: str, *, deadline_seconds: float = 3_600.0, **arguments: Any) -> ToolCallRequested:
        """Request a call."""
        requested = self.open(name, deadline_seconds=deadline_seconds, **arguments)
        self.bus.publish(requested)
        return requested

    def settle(self, requested: ToolCallRequested, how: str = "timeout") -> None:
        """Settle a call in the executor's place: by another's result, or as failed for that reason."""
        failed: Any = how
        ending = requested.completed("another's") if how == "completed" else requested.failed(how, reason=failed)
        if not self.bus.publish(ending):
            self.bench.fail(f"{requested.name}, about to be settled by somebody else", "open", self.endings(requested))
            raise Abandoned

    # --------------------------------------------------------------------------------------------- hearing

    def endings(self, requested: ToolCallRequested) -> list[Terminal]:
        """The terminal events of a call so far."""
        return [each for each in self.events if isinstance(each, _TERMINAL) and each.call_id == requested.call_id]

    def lates(self, requested: ToolCallRequested) -> list[ToolCallLate]:
        """What was told of a call after it was settled."""
        return [each for each in self.events if isinstance(each, ToolCallLate) and each.call_id == requested.call_id]

    async def until(self, what: Callable[[], bool]) -> bool:
        """Wait until something is so, which is asked at each event; False after `patience_seconds`."""
        with anyio.move_on_after(self.bench.patience_seconds):
            while not what():
                await self._changed.wait()
        return what()

    async def answers(self, calls: Iterable[ToolCallRequested]) -> list[Terminal]:
        """The first terminal event of each call. A call without one ends the check."""
        wanted = [*calls]
        await self.until(lambda: all(self.endings(each) for each in wanted))
        for each in wanted:
            if not self.endings(each):
                self.bench.fail(f"the call of {each.name}", "answered", "no terminal event")
                raise Abandoned
        return [self.endings(each)[0] for each in wanted]

    async def answer(self, requested: ToolCallRequested) -> Terminal:
        """The terminal event of a call."""
        return (await self.answers([requested]))[0]

    async def completed(self, name: str, **arguments: Any) -> ToolCallCompleted:
        """Request what has to succeed."""
        answer = await self.answer(self.ask(name, **arguments))
        if isinstance(answer, ToolCallCompleted):
            return answer
        self.bench.fail(f"the call of {name}", "completed", answer)
        raise Abandoned

    async def failed(self, name: str, **arguments: Any) -> ToolCallFailed:
        """Request what has to fail."""
        answer = await self.answer(self.ask(name, **arguments))
        if isinstance(answer, ToolCallFailed):
            return answer
        self.bench.fail(f"the call of {name} with {arguments}", "failed", answer)
        raise Abandoned

    async def quiet(self) -> None:
        """Listen for what must not come: all calls before are through when one behind them is, and a while is over."""
        await self.completed("contract_echo", said="all quiet")
        await anyio.sleep(self.bench.quiet_seconds)

    # ------------------------------------------------------------------------------------- notes of handlers

    async def notes(self, key: str, least: int = 0) -> list[str]:
        """What handlers have written down under a key; waits for so many notes."""
        seconds = self.bench.patience_seconds if least else 0.0
        if self.bench.elsewhere:
            told: Any = await self.completed("contract_notes", key=key, count=least, seconds=seconds)
            return told.data
        return await contract_tools.contract_notes(key, least, seconds)

    async def held(self, name: str = "contract_hold", **arguments: Any) -> tuple[ToolCallRequested, str]:
        """A call whose handler has begun, and holds; and its key."""
        key = f"key-{next(_numbers)}"
        if arguments.get("deaf") or name == "contract_hold_sync":
            self.stubborn.append(key)
        requested = self.ask(name, key=key, **arguments)
        notes = await self.notes(key, 1)
        if notes != ["began"]:
            self.bench.fail(f"the notes of {name}", ["began"], notes)
            raise Abandoned
        return requested, key

    async def release(self, key: str) -> None:
        """Let handlers go on."""
        if self.bench.elsewhere:
            await self.completed("contract_release", key=key)
        else:
            await contract_tools.contract_release(key)

    def let_go(self, key: str) -> None:
        """Let handlers go on, at the end of a check, without waiting for it."""
        if self.bench.elsewhere:
            self.ask("contract_release", key=key)
        else:
            contract_tools.release(key)


class Bench:
    """What a check has: how to make an executor, what it is said to do, and a list of failures."""

    def __init__(
        self,
        make: MakeExecutor,
        *,
        elsewhere: bool,
        max_concurrency: int | None,
        patience_seconds: float,
        quiet_seconds: float,
    ) -> None:
        self.name = ""
        self.make = make
        self.elsewhere = elsewhere
        self.max_concurrency = max_concurrency
        self.patience_seconds = patience_seconds
        self.quiet_seconds = quiet_seconds
        self.failures: list[Failure] = []
        self._desks: list[Desk] = []

    def desk(self) -> Desk:
        """A request on a bus without an executor."""
        desk = Desk(self)
        self._desks.append(desk)
        return desk

    @asynccontextmanager
    async def executor(self) -> AsyncGenerator[Desk]:
        """A desk whose calls are run in the block."""
        desk = self.desk()
        async with self.make(desk.bus, CONTRACT_TOOLS):
            try:
                yield desk
            finally:
                for key in desk.stubborn:
                    desk.let_go(key)

    def clear(self) -> None:
        """End what the check has left."""
        for desk in self._desks:
            desk.leave()
        self._desks.clear()

    # --------------------------------------------------------------------------------------- writing down

    def fail(self, what: str, expected: object, came: object) -> None:
        """Write a failure down."""
        self.failures.append(Failure(self.name, what, shown(expected), shown(came)))

    def expect(self, what: str, expected: object, came: object) -> None:
        """Write a failure down unless the two are equal."""
        if expected != came:
            self.fail(what, expected, came)

    def require(self, what: str, expected: str, came: object, *, ok: bool) -> None:
        """Write a failure down unless `ok`."""
        if not ok:
            self.fail(what, expected, came)


# ------------------------------------------------------------------------------------------------- the checks' table


Run: TypeAlias = Callable[[Bench], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what it is called, what it holds, what it needs of an executor, and how it goes."""

    name: str
    holds: str
    needs: frozenset[str]
    run: Run


CHECKS: dict[str, Check] = {}
"""All checks by name."""


def check(name: str, *needs: str) -> Callable[[Run], Run]:
    """Put a function among the checks. Its docstring says what it holds."""

    def add(run: Run) -> Run:
        CHECKS[name] = Check(name, " ".join((run.__doc__ or "").split()), frozenset(needs), run)
        return run

    return add


def shown(value: object) -> str:
    """A value for a report."""
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"
