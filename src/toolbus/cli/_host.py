"""Runs requests for the command: an event loop in a thread of its own, and what signals do to a request.

The main thread waits, reads prompts and takes signals, so that Ctrl-C works whatever a tool does to the loop, and the
loop of a chat (with its connections) lives on while the user types.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack
from types import FrameType, TracebackType
from typing import Any

import anyio
import anyio.from_thread

from ..events import Event
from ..outcome import RequestResult
from ..runtime import Runtime
from ..session import RequestSession
from ._screen import Screen

__all__ = ["Host", "Terminated"]

_FRAME_SECONDS = 0.1


class Terminated(BaseException):
    """SIGTERM, while nothing runs that could be cancelled."""


class Host:
    """One runtime, ready to be asked from the main thread: `with Host(...) as host: host.ask("...")`.

    `show` is told of every event of the request that runs, in order, on the loop's thread; `tick` is called there ten
    times a second meanwhile. `signal` is the last signal that cancelled a request, or None.
    """

    def __init__(
        self, runtime: Runtime, screen: Screen, show: Callable[[Event], None], tick: Callable[[], None] | None
    ) -> None:
        self.signal: int | None = None
        self._runtime = runtime
        self._screen = screen
        self._show = show
        self._tick = tick
        self._session: RequestSession | None = None
        self._request_id = ""
        self._asking = False
        self._prompting = False
        self._portal: anyio.from_thread.BlockingPortal | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Host:
        with ExitStack() as stack:
            stack.enter_context(self._signals())
            self._portal = stack.enter_context(anyio.from_thread.start_blocking_portal(name="toolbus"))
            stack.callback(self._runtime.bus.connect(Event, self._hear))
            stack.enter_context(self._portal.wrap_async_context_manager(self._runtime))
            self._screen.on_failure = self._cancel  # it writes on the loop's thread
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._screen.on_failure = None
        self._stack.__exit__(kind, value, trace)

    def ask(self, question: str, conversation_id: str | None = None) -> RequestResult[Any]:
        """Run one request to its end, showing it. The first Ctrl-C or SIGTERM cancels it, the second kills.

        Raises what `Runtime.start` raises.
        """
        assert self._portal is not None
        self.signal = None
        self._asking = True
        try:
            return self._portal.call(self._carry_out, question, conversation_id)
        finally:
            self._asking = False
            self._session = None

    @contextlib.contextmanager
    def prompting(self) -> Generator[None]:
        """Inside, Ctrl-C raises `KeyboardInterrupt` and SIGTERM `Terminated`: for reading from a person."""
        self._prompting = True
        try:
            yield
        finally:
            self._prompting = False

    # ------------------------------------------------------------------------------------- on the loop's thread

    async def _carry_out(self, question: str, conversation_id: str | None) -> RequestResult[Any]:
        self._session = session = self._runtime.start(question, conversation_id=conversation_id)
        self._request_id = session.request_id
        self._cancel()
        if self._tick is None:
            return await session.result()
        async with anyio.create_task_group() as group:
            group.start_soon(self._animate, self._tick)
            await session.result()
            group.cancel_scope.cancel()
        return await session.result()

    async def _animate(self, tick: Callable[[], None]) -> None:
        while True:
            await anyio.sleep(_FRAME_SECONDS)
            tick()

    def _hear(self, event: Event) -> None:
        if event.request_id == self._request_id:
            self._show(event)

    def _cancel(self) -> None:
        """Cancel the request that runs, if that was asked for, even before it began."""
        if self._session is None:
            return
        if self.signal is not None:
            self._session.cancel(f"cancelled by {signal.Signals(self.signal).name}")
        elif self._screen.failure is not None:
            self._session.cancel("the answer cannot be written")

    def _soon(self, function: Callable[[], None]) -> None:
        assert self._portal is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._portal.start_task_soon(function)

    # ------------------------------------------------------------------------------------- on the main thread

    @contextlib.contextmanager
    def _signals(self) -> Generator[None]:
        """Take SIGINT and SIGTERM; off the main thread, leave them to whoever has them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self._on_signal) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._asking and self.signal is None:
            self.signal = number
            self._soon(self._cancel)
        elif self._prompting:
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated
        else:  # the second time, or while everything closes
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
