"""Virtual time in which everything has the same order each time, and in which processes can stand still.

Knows asyncio, and of processes only which one a context variable names.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import anyio

from .._virtual_loop import VirtualTimeLoop
from ._tools import PROCESS

__all__ = ["PausingLoop", "SteadyLoop", "steady_scopes"]

_Held = tuple[asyncio.Handle, Callable[..., object], tuple[Any, ...], contextvars.Context]


class _Task(asyncio.Task[Any]):
    """A task whose place in a set is its number, not its address: task groups cancel in the order of a set."""

    numbers = itertools.count()

    _number: int

    def __new__(cls, *_args: Any, **_keywords: Any) -> _Task:
        made = super().__new__(cls)
        made._number = next(cls.numbers)
        return made

    def __hash__(self) -> int:
        return self._number

    __eq__ = object.__eq__


class SteadyLoop(VirtualTimeLoop):
    """Virtual time, and the same order of everything each time."""

    def __init__(self) -> None:
        super().__init__()
        _Task.numbers = itertools.count()
        self.set_task_factory(_steady)  # type: ignore[arg-type] -- asyncio's own signature is wider than it says
        self._held: dict[int, list[_Held]] = {}

    @classmethod
    def running(cls) -> SteadyLoop:
        """The loop that runs now."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, cls)
        return loop

    def pause(self, process: object, seconds: float) -> None:
        """Have nothing of a process run for so long: what is due meanwhile runs then, in its order."""
        raise NotImplementedError

    def wake_all(self) -> None:
        """Let all go on that stand still: what is cancelled has to run, else the loop would wait for it for ever."""


class PausingLoop(SteadyLoop):
    """One whose processes can stand still, which costs a little of each callback."""

    def pause(self, process: object, seconds: float) -> None:
        """See `SteadyLoop`."""
        self._held[id(process)] = []
        contextvars.Context().run(self.call_later, seconds, self._wake, id(process))

    def wake_all(self) -> None:
        """See `SteadyLoop`."""
        for held in list(self._held):
            self._wake(held)

    def _wake(self, held: int) -> None:
        for handle, callback, args, context in self._held.pop(held, ()):
            if not handle.cancelled():
                super().call_soon(callback, *args, context=context)

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        """As asyncio's, unless the process whose context it is stands still."""
        context = context or contextvars.copy_context()
        ours: list[asyncio.Handle] = []
        made = super().call_soon(self._unless_paused, ours, callback, args, context, context=context)
        ours.append(made)
        return made

    def call_at(
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's, unless the process whose context it is stands still."""
        context = context or contextvars.copy_context()
        ours: list[asyncio.Handle] = []
        made = super().call_at(when, self._unless_paused, ours, callback, args, context, context=context)
        ours.append(made)
        return made

    def _unless_paused(
        self,
        ours: list[asyncio.Handle],
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
    ) -> None:
        held = self._held.get(id(context.get(PROCESS))) if self._held else None
        if held is None:
            callback(*args)
        else:
            held.append((ours[0], callback, args, context))


@contextmanager
def steady_scopes() -> Generator[None]:
    """Inside of a `SteadyLoop`: one scope after the other is cancelled in an order that is the same each time.

    anyio keeps the scopes within a scope in a set, so their order is that of their addresses, as with tasks.
    """
    kind: Any = type(anyio.CancelScope())
    kind.__hash__ = _number_of_host
    try:
        yield
    finally:
        del kind.__hash__


def _number_of_host(scope: Any) -> int:
    return hash(scope._host_task)  # noqa: SLF001 -- set before it joins those of another one


def _steady(loop: Any, coroutine: Any, **keywords: Any) -> _Task:
    return _Task(coroutine, loop=loop, **keywords)
