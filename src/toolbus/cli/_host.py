"""The host that runs requests for the command: an event loop in its own thread, and the handling of signals.

The main thread waits, reads prompts and takes signals. Ctrl-C therefore works whatever a tool does to the loop, and
the loop of a chat keeps its connections while the user types.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from types import FrameType, TracebackType
from typing import Any, TypeAlias, TypeVar

import anyio
import anyio.from_thread

from ..durability import OptionsFor, Resumption
from ..events import ApprovalDecided, ApprovalRequested, Event
from ..request_result import RequestResult
from ..runtime import Runtime
from ..session import RequestSession
from ..storage import RequestRecord
from ._approval import Person
from ._pending_approvals import PendingApprovals
from ._terminal.screen import Screen

_T = TypeVar("_T")
_SignalHandler: TypeAlias = Callable[[int, FrameType | None], None]

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""The signals by which people and systems end a program."""
_FRAME_SECONDS = 0.1
if sys.platform != "win32":
    # The signal that interrupts a read on the main thread. It is ignored unless handled, so a late one does no harm
    # (Go's scheduler uses it for the same reason). On Windows, a question stays open until something is typed.
    _WAKE = signal.SIGURG


@contextlib.contextmanager
def signals_handled(handlers: Mapping[int, _SignalHandler]) -> Generator[None]:
    """Handle signals inside. Outside the main thread, leave the existing handlers in effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_process(number: int) -> None:
    """End this process by a signal, as if nothing handled it."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


class Terminated(BaseException):
    """SIGTERM arrived while input was read from a person."""


class _Settled(BaseException):
    """The open question no longer needs an answer."""


@contextlib.asynccontextmanager
async def _entered(around: AbstractContextManager[object]) -> AsyncGenerator[None]:
    with around:
        yield


class Host:
    """One runtime that can be asked from the main thread: `with Host(...) as host: host.ask("...")`.

    `show` is called with every event of the running request, in order, on the loop's thread; `tick` is called there ten
    times a second while a request runs. `person` is asked the questions of the request and its sub-requests, one by
    one, on the main thread. `around` is entered on the loop's thread once the runtime runs, and left before it ends;
    `before` is entered there before the runtime, and left after it. `signal` is the last signal that cancelled a
    request, or None.
    """

    def __init__(
        self,
        runtime: Runtime,
        screen: Screen,
        show: Callable[[Event], None],
        tick: Callable[[], None] | None,
        person: Person | None = None,
        around: AbstractContextManager[object] | None = None,
        before: AbstractAsyncContextManager[object] | None = None,
    ) -> None:
        self.signal: int | None = None
        self._runtime = runtime
        self._screen = screen
        self._show = show
        self._tick = tick
        self._person = person
        self._around = around
        self._before = before
        self._waiting = PendingApprovals()
        self._asked: ApprovalRequested | None = None  # the open question
        self._sessions: Sequence[RequestSession] = ()
        self._request_ids: set[str] = set()
        # If set, a signal leaves the requests for another process instead of cancelling them.
        self._leaves = False
        self._asking = False
        self._prompting = False
        self._portal: anyio.from_thread.BlockingPortal | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Host:
        handlers: dict[int, _SignalHandler] = dict.fromkeys(ENDING_SIGNALS, self._on_signal)
        if sys.platform != "win32":
            handlers[_WAKE] = self._on_wake
        with ExitStack() as stack:
            stack.enter_context(signals_handled(handlers))
            self._portal = stack.enter_context(anyio.from_thread.start_blocking_portal(name="toolbus"))
            stack.callback(self._runtime.bus.connect(Event, self._receive))
            if self._before is not None:
                stack.enter_context(self._portal.wrap_async_context_manager(self._before))
            stack.enter_context(self._portal.wrap_async_context_manager(self._runtime))
            if self._around is not None:
                # It is entered and left on the loop's thread, because it listens to the bus.
                stack.enter_context(self._portal.wrap_async_context_manager(_entered(self._around)))
            # The screen writes on the loop's thread, where sessions may be cancelled.
            self._screen.on_failure = self._cancel
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, value, trace)

    def ask(self, question: str, conversation_id: str | None = None) -> RequestResult[Any]:
        """Run one request to its end and show it. The first Ctrl-C or SIGTERM cancels it, the second kills the process.

        Raises what `Runtime.start` raises.
        """
        self._leaves = False
        return self._run_to_end(self._ask, question, conversation_id)

    def resume(self, options: OptionsFor, ended: Callable[[RequestResult[Any]], None]) -> Resumption:
        """Resume the store's unfinished requests and run all of them to their ends: see `Runtime.resume`.

        `ended` is called with each result on the loop's thread. The first Ctrl-C or SIGTERM leaves the requests
        unfinished.
        """
        self._leaves = True
        return self._run_to_end(self._resume, options, ended)

    def _run_to_end(self, task: Callable[..., Awaitable[_T]], *arguments: Any) -> _T:
        """Run requests on the loop's thread, and ask their questions on this one meanwhile."""
        assert self._portal is not None
        self.signal = None
        self._waiting = waiting = PendingApprovals()
        self._asking = True
        try:
            future = self._portal.start_task_soon(task, *arguments)
            future.add_done_callback(lambda _: waiting.close())
            while (call := waiting.next()) is not None:
                decided = self._decided(call)
                if decided is not None:
                    self._runtime.bus.publish_threadsafe(decided)
            return future.result()
        finally:
            self._asking = False
            self._sessions = ()

    @contextlib.contextmanager
    def prompting(self) -> Generator[None]:
        """Inside, make Ctrl-C raise `KeyboardInterrupt` and SIGTERM `Terminated`: for reading from a person."""
        self._prompting = True
        try:
            yield
        except SystemError as exc:
            # A signal that ends `input` sets its exception, and then CPython checks for signals once more. If the
            # wake-up signal has arrived by then, its handler is called with that exception set, and CPython reports
            # this as a SystemError.
            if isinstance(exc.__cause__, (KeyboardInterrupt, Terminated, _Settled)):
                raise exc.__cause__ from None
            raise
        finally:
            self._prompting = False

    def _decided(self, call: ApprovalRequested) -> ApprovalDecided | None:
        """Return the person's decision, or None if the call was settled meanwhile or the request is being cancelled."""
        person = self._person
        # Questions are received only where there is a person.
        assert person is not None
        known = person.known(call)
        if known is not None:
            return known
        with self._screen.held():
            self._asked = call
            try:
                with self.prompting():
                    if self.signal is None and self._waiting.is_open(call):
                        return person.decide(call)
            except (KeyboardInterrupt, Terminated):
                # The signal handler has already cancelled the request.
                self._screen.ask("\n")
            except _Settled:
                self._screen.ask("\n  An answer is no longer needed.\n")
            finally:
                self._asked = None
        return None

    # ------------------------------------------------------------------------------------- on the loop's thread

    async def _ask(self, question: str, conversation_id: str | None) -> RequestResult[Any]:
        session = self._runtime.start(question, conversation_id=conversation_id)
        self._request_ids = {session.request_id}
        await self._finish([session])
        return await session.result()

    async def _resume(self, options: OptionsFor, ended: Callable[[RequestResult[Any]], None]) -> Resumption:
        def noted(request: RequestRecord) -> Any:
            # The request publishes events before `resume` returns.
            self._request_ids.add(request.request_id)
            return options(request)

        resumption = await self._runtime.resume(options=noted)
        await self._finish(resumption, ended)
        return resumption

    async def _finish(
        self, sessions: Iterable[RequestSession], ended: Callable[[RequestResult[Any]], None] | None = None
    ) -> None:
        """Wait for the end of the requests, and keep the screen and the questions up to date meanwhile."""
        self._sessions = tuple(sessions)
        self._cancel()
        async with anyio.create_task_group() as group:
            if self._tick is not None or self._person is not None:
                group.start_soon(self._animate)
            async with anyio.create_task_group() as waits:
                for session in self._sessions:
                    waits.start_soon(self._wait_for, session, ended)
            self._waiting.end()
            while self._asked is not None:  # noqa: ASYNC110 -- the main thread clears it
                await anyio.sleep(_FRAME_SECONDS)
            group.cancel_scope.cancel()

    @staticmethod
    async def _wait_for(session: RequestSession, ended: Callable[[RequestResult[Any]], None] | None) -> None:
        result = await session.result()
        if ended is not None:
            ended(result)

    async def _animate(self) -> None:
        while True:
            await anyio.sleep(_FRAME_SECONDS)
            if self._tick is not None:
                self._tick()
            self._wake_main_thread()

    def _wake_main_thread(self) -> None:
        """Interrupt the main thread's read, so that it checks whether the open question still needs an answer.

        The interruption also delivers a Ctrl-C that came just before readline began to wait; otherwise it would stay
        pending until a key is pressed.
        """
        thread = threading.main_thread().ident
        if sys.platform != "win32" and self._asked is not None and self.signal is None and thread is not None:
            signal.pthread_kill(thread, _WAKE)

    def _receive(self, event: Event) -> None:
        if event.request_id in self._request_ids:
            self._show(event)
        # Only this host's requests run here, so events with other request ids belong to their sub-requests.
        if self._person is not None:
            self._waiting.receive(event)

    def _cancel(self) -> None:
        """Cancel the running requests, or leave them, if a signal or a failure asked for it, even before they began."""
        if self.signal is not None:
            why = f"cancelled by {signal.Signals(self.signal).name}"
        elif self._screen.failure is not None:
            why = "the answer cannot be written"
        else:
            return
        for session in self._sessions:
            session.release(why) if self._leaves else session.cancel(why)

    def _on_loop_soon(self, function: Callable[[], None]) -> None:
        assert self._portal is not None
        # A RuntimeError says that the loop has ended.
        with contextlib.suppress(RuntimeError):
            self._portal.start_task_soon(function)

    # ------------------------------------------------------------------------------------- on the main thread

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        first = self._asking and self.signal is None
        if first:
            self.signal = number
            self._on_loop_soon(self._cancel)
        if self._prompting and (first or not self._asking):
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated
        if not first:
            # This is the second signal, or the host is closing: the process ends at once.
            end_process(number)

    def _on_wake(self, _number: int, _frame: FrameType | None) -> None:
        if self.signal is not None:
            # The handler of SIGINT and SIGTERM has raised, or will: see `prompting`.
            return
        asked = self._asked
        is_needed = asked is None or self._waiting.is_open(asked)
        if self._prompting and not is_needed:
            raise _Settled
