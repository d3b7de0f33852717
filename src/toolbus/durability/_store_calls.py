"""Calls of a store: with a time limit, with errors that toolbus knows, and repeated until the store has taken them.

Knows the errors of stores, and time. Must not know sessions, nor what a call writes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from ..errors import LeaseLost, StoreError, StoreUnavailable, ToolbusError
from ..storage import TIMEOUT_SECONDS

T = TypeVar("T")

_logger = logging.getLogger("toolbus.store")
_RETRY_SECONDS = 1.0  # between attempts


async def call_store(call: Awaitable[T]) -> T:
    """Await a call of a store. An exception that is not a `ToolbusError` is raised as a `StoreError`."""
    try:
        return await call
    except ToolbusError:
        raise
    except Exception as exc:
        raise StoreError(f"{type(exc).__name__}: {exc}") from exc


async def call_store_in_time(call: Awaitable[T]) -> T:
    """Await a call as `call_store` does; after `TIMEOUT_SECONDS` cancel the call and raise `StoreUnavailable`."""
    with anyio.move_on_after(TIMEOUT_SECONDS):
        return await call_store(call)
    raise no_answer()


def no_answer() -> StoreUnavailable:
    """Return the error for a store that did not answer in `TIMEOUT_SECONDS`."""
    return StoreUnavailable(f"the store did not answer in {TIMEOUT_SECONDS:g} s")


class PendingCalls:
    """The calls that a store has still to take, by request id: at most one for each request.

    The log reports once that the store fails, and once that it answers again.
    """

    def __init__(self) -> None:
        # By request id: the call, the conversation of a call that writes the end of a turn, and whether it writes.
        self._calls: dict[str, tuple[Callable[[], Awaitable[object]], str, bool]] = {}
        self._attempts: dict[str, anyio.Event] = {}  # by request id, for the calls that are being tried
        self._changed = anyio.Event()
        self.fails = False
        """True if the last call failed, which the log has reported, so that the store is away as far as is known."""

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._calls

    def add(
        self,
        request_id: str,
        call: Callable[[], Awaitable[object]],
        conversation_id: str = "",
        *,
        writes: bool = True,
    ) -> None:
        """Repeat `call` until the store has taken it. It replaces an earlier call of the request.

        `conversation_id` is that of a call which writes the end of a turn: see `flush`. A call that only `writes` if
        the store has something that it should not have does not show that the store answers again: its disk may be
        full.
        """
        self._calls[request_id] = call, conversation_id, writes
        self._changed.set()

    async def attempt(self, call: Awaitable[object]) -> StoreError | None:
        """Await `call` for at most `TIMEOUT_SECONDS`. Return the reason why it failed, or None.

        A `LeaseLost` is an answer: the request is another process's now, so nothing is left to do. The log reports the
        first failure, and that the store answers again once a call works and none is pending.
        """
        try:
            with contextlib.suppress(LeaseLost):
                await call_store_in_time(call)
        except StoreError as exc:
            self.report(exc)
            return exc
        if not self._calls:
            self.report(None)
        return None

    async def wait(self, until: float) -> None:
        """Return at `until` on the loop's clock, when a call is added, or when it is time to try again."""
        self._changed = anyio.Event()
        if self._calls:
            until = min(until, anyio.current_time() + _RETRY_SECONDS)
        with anyio.CancelScope(deadline=until):
            await self._changed.wait()

    async def flush(self, conversation_id: str = "") -> StoreError | None:
        """Try each call once, in order, or those that write ends of turns of one conversation.

        Returns the first failure. After a retryable one, the others are not tried.
        """
        first: StoreError | None = None
        for request_id, (_, of_turn, _) in [*self._calls.items()]:
            if conversation_id not in ("", of_turn):
                continue
            problem = await self._try(request_id)
            first = first or problem
            # The other calls would fail in the same way, and meanwhile the leases have to be renewed.
            if problem is not None and problem.retryable:
                break
        return first

    async def _try(self, request_id: str) -> StoreError | None:
        """Try a call once, unless it is being tried: then wait for that. Return the reason why it failed, or None."""
        if (other := self._attempts.get(request_id)) is not None:
            await other.wait()
            return StoreUnavailable("the store has not taken the end of a request yet") if request_id in self else None
        waiting = self._calls.get(request_id)
        if waiting is None:
            return None
        done = self._attempts[request_id] = anyio.Event()
        try:
            problem = await self.attempt(waiting[0]())
        finally:
            del self._attempts[request_id]
            done.set()
        if self._calls.get(request_id) is waiting:
            del self._calls[request_id]
            if problem is not None:
                # The call moves to the end, so that one that never works does not keep the others from being tried.
                self._calls[request_id] = waiting
        if problem is None and not self._calls and waiting[2]:
            self.report(None)
        return problem

    def report(self, problem: StoreError | None) -> None:
        """Note that a call of the store has failed, or that the store answers. Logs a change."""
        if problem is None and self.fails:
            _logger.info("the store answers again")
        elif problem is not None and not self.fails:
            _logger.warning("the store failed, and the call is repeated until it answers: %s", problem)
        self.fails = problem is not None
