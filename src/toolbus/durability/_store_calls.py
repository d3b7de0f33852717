"""What a runtime still owes its store: to be told until the store has taken it. And how a store is asked at all.

Knows stores' errors and time, and neither sessions nor what is told.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from ..errors import LeaseLost, StoreError, StoreUnavailable, ToolbusError

__all__ = ["ANSWER_SECONDS", "Owed", "answered", "asked"]

T = TypeVar("T")

ANSWER_SECONDS = 4.5
"""That a store has to answer, so that a session, which waits for 5 seconds (G21), is told what is wrong."""

_logger = logging.getLogger("toolbus.store")
_RETRY_SECONDS = 1.0  # between attempts


async def asked(what: Awaitable[T]) -> T:
    """What a store gives; of what one raises that is none of toolbus's errors, a `StoreError`."""
    try:
        return await what
    except ToolbusError:
        raise
    except Exception as exc:
        raise StoreError(f"{type(exc).__name__}: {exc}") from exc


async def answered(what: Awaitable[T]) -> T:
    """`asked`, or a `StoreUnavailable` when the store does not answer in `ANSWER_SECONDS`; it is cancelled then."""
    with anyio.move_on_after(ANSWER_SECONDS):
        return await asked(what)
    raise StoreUnavailable(f"the store did not answer in {ANSWER_SECONDS:g} s")


class Owed:
    """By request, what the store has still to be told. The log says once that the store fails, and that it is back."""

    def __init__(self) -> None:
        self._owed: dict[str, Callable[[], Awaitable[object]]] = {}
        self._changed = anyio.Event()
        self._fails = False  # whether the log has told

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._owed

    def __bool__(self) -> bool:
        return bool(self._owed)

    def owe(self, request_id: str, what: Callable[[], Awaitable[object]]) -> None:
        """Do `what`, again and again, until the store has taken it."""
        self._owed[request_id] = what
        self._changed.set()

    async def try_now(self, what: Awaitable[object], *, heals: bool = True) -> StoreError | None:
        """Await `what`, within the time that a store has; why it failed. What is another process's needs no more care.

        The log tells of the first failure, and when the store answers again, if that `heals` what has failed.
        """
        try:
            await answered(what)
        except LeaseLost:
            return None
        except StoreError as exc:
            self._note(exc)
            return exc
        if heals:
            self._note(None)
        return None

    async def wait(self, until: float) -> None:
        """Return at `until` on the loop's clock, or when it is time to try again."""
        self._changed = anyio.Event()
        if self._owed:
            until = min(until, anyio.current_time() + _RETRY_SECONDS)
        with anyio.CancelScope(deadline=until):
            await self._changed.wait()

    async def flush(self) -> None:
        """Try once to tell the store all of it."""
        for request_id, owed in list(self._owed.items()):
            problem = await self.try_now(owed())
            if problem is None:
                if self._owed.get(request_id) is owed:
                    del self._owed[request_id]
            elif problem.retryable:
                if self._owed.get(request_id) is owed:  # the next time others are told first, or it would keep them up
                    self._owed[request_id] = self._owed.pop(request_id)
                return  # nobody is told any more than this one; the leases have to be renewed meanwhile

    def _note(self, problem: StoreError | None) -> None:
        if problem is None and self._fails:
            _logger.info("the store answers again")
        elif problem is not None and not self._fails:
            _logger.warning("the store failed, and is asked again and again: %s", problem)
        self._fails = problem is not None
