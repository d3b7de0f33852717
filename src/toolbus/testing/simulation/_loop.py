"""Virtual time in which everything has a reproducible order, and in which processes can be paused.

The module knows asyncio; it knows a process only as the value of a context variable.
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

_Held = tuple[asyncio.Handle, Callable[..., object], tuple[Any, ...], contextvars.Context]


class _Task(asyncio.Task[Any]):
    """A task whose hash is its number, not its address, because task groups cancel in the order of a set."""

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
    """An event loop in virtual time with a reproducible order of everything."""

    def __init__(self) -> None:
        super().__init__()
        _Task.numbers = itertools.count()
        self.set_task_factory(_steady)  # type: ignore[arg-type] -- asyncio's own signature is wider than it says
        self._held: dict[int, list[_Held]] = {}
        self._pauses = True  # False once all pauses were ended

    @classmethod
    def running(cls) -> SteadyLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, cls)
        return loop

    def pause(self, process: object, seconds: float) -> None:
        """Run nothing of a process for `seconds`; callbacks that become due meanwhile run afterwards, in order."""
        raise NotImplementedError

    def wake_all(self) -> None:
        """End all pauses, and begin no other: cancelled tasks have to run, or the loop would wait for them for ever."""


class PausingLoop(SteadyLoop):
    """An event loop whose processes can be paused, which costs a little in each callback."""

    def pause(self, process: object, seconds: float) -> None:
        if not self._pauses:
            return
        self._held[id(process)] = []
        contextvars.Context().run(self.call_later, seconds, self._wake, id(process))

    def wake_all(self) -> None:
        self._pauses = False
        for held in list(self._held):
            self._wake(held)

    def _wake(self, held: int) -> None:
        for handle, callback, args, context in self._held.pop(held, ()):
            if not handle.cancelled():
                super().call_soon(callback, *args, context=context)

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        """Do as asyncio does, unless the process of the context is paused."""
        context = context or contextvars.copy_context()
        ours: list[asyncio.Handle] = []
        made = super().call_soon(self._unless_paused, ours, callback, args, context, context=context)
        ours.append(made)
        return made

    def call_at(
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Do as asyncio does, unless the process of the context is paused."""
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
    """Cancel the scopes of a `SteadyLoop` in a reproducible order, while the block is open.

    anyio keeps the scopes inside a scope in a set, so their order is that of their addresses, as with tasks.
    """
    kind: Any = type(anyio.CancelScope())
    kind.__hash__ = _number_of_host
    try:
        yield
    finally:
        del kind.__hash__


def _number_of_host(scope: Any) -> int:
    return hash(scope._host_task)  # noqa: SLF001 -- set before the scope joins its parent


def _steady(loop: Any, coroutine: Any, **keywords: Any) -> _Task:
    return _Task(coroutine, loop=loop, **keywords)
