"""`ToolDispatcher`: claims the calls that are requested on the bus, runs their handlers and publishes the results.

The dispatcher has no timers for deadlines. When a session's deadline passes, the session settles the call with a
`ToolCallFailed`; the dispatcher watches its calls on the bus, and cancels the handler then. `_schedule` decides which
call may run now. The package's docstring has the invariants.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import os
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import anyio.lowlevel

from .._open_scopes import StrandedTasks, raise_elsewhere
from .._option_checks import NOT_NEGATIVE, check, listed, whole
from ..errors import NotRunning
from ..events import ToolCallRequested
from ..failures import Failure, classify, is_being_cancelled, is_cancellation, keyboard_interrupt_of, leaves_of
from ..interceptors import screened, screens_results
from ..secrets import secrets_of
from ..tool_results import RenderedResult, render
from ..tools import Tool, ToolContext, ToolRegistry
from ._cache import ResultCache
from ._observed import observed, observed_in_process
from ._overdue import Overdue
from ._processes import run_in_process
from ._reports import Reports, as_sent
from ._retries import retry_delay
from ._schedule import Job, Schedule
from ._thread_run import HandlerNotStarted, ThreadRun, in_context
from ._workers import Then, Worker, WorkerPool

if TYPE_CHECKING:
    import anyio.abc

    from ..bus import EventBus
    from ..protocols import RequestView

_CLOSED = "The dispatcher was closed."


@dataclass(slots=True, frozen=True)
class DispatcherStatistics:
    """The numbers of calls and workers now, and their peaks since the dispatcher was made.

    `running` counts the handlers that hold a slot, `retrying` those among them that wait for their next attempt, and
    `suspended` those that hold no slot while they wait for a child request. `processes` counts the processes in which
    handlers run, without the idle ones, which are kept for later calls. `cached` is the number of results that are
    kept, `cache_hits` the number of calls that were answered with another call's result. `overdue` names the tools of
    handlers that were cancelled and still run, and of threads that were given up. `leaked_tasks` counts the tasks in
    which a tool has left a cancel scope or a task group open: they take no other call, and end with the dispatcher.
    `loop_blocks` counts how often a tool has blocked the event loop for more than half a second.
    """

    running: int
    running_peak: int
    queued: int
    queued_peak: int
    idle_workers: int
    threads: int
    threads_peak: int
    processes: int
    processes_peak: int
    suspended: int
    retrying: int
    cached: int
    cache_hits: int
    overdue: tuple[str, ...]
    leaked_tasks: int
    loop_blocks: int


class ToolDispatcher:
    """An executor that runs tool calls in this process. Usually there is one for each bus.

        async with ToolDispatcher(bus, registry):
            ...

    The tool of a call is looked up in the registry of the call's own request first, then in `registry`. Calls of
    `external` tools, of tools in another pool than `pools`, and of tools that are in neither registry, are left to
    other executors on the bus. The pool "" is that of tools without one. `max_concurrency` bounds the handlers that run
    at once; further calls wait in order, and their deadlines count meanwhile. `max_threads` bounds the threads of sync
    handlers. A thread cannot be killed, so one that outlives its call's deadline keeps its slot until it ends, and when
    all slots are occupied in this way, calls fail at once. A handler that was cancelled, or a thread that was given up,
    is logged once at WARNING if it still runs `grace_seconds` later. Nothing waits for such a handler except the end of
    the dispatcher's block: it cancels all handlers and waits until each has ended. It does not wait for threads.

    `max_processes` (by default the number of cores) bounds the processes of handlers with `isolation="process"`. These
    are killed when their call is cancelled or its deadline passes, and if a process dies, its call fails. A process
    that has finished its call is kept for later calls until the event loop ends.

    The handler of a tool with `retries` is tried again after waits that double from about half a second, as long as the
    next wait ends before the call's deadline. A call keeps its slots while it waits, so that a tool that is down is not
    asked by more and more calls. `ToolCallRetrying` and `ToolCallStarted` are published for each attempt.

    The results of tools with `cache_seconds` are kept, at most 1,000 and 64 MiB of them, and shared. A call with the
    tool and the arguments of a kept result is answered at once. A call that equals one under way takes no slot: it
    waits for that one, and gets its result or its failure. If the one that runs is cancelled or times out, the next one
    in the queue runs instead.

    Calls that run when the host cancels the dispatcher end as `cancelled`. `on_cancelled` is called inline before the
    first of them is answered. Calls of requests that are released by then (`RequestSession.release`) are not answered,
    because the process in which the request continues publishes how they end.

    A handler runs in the context (`contextvars`) of the session that requested the call. Whatever the handler raises,
    including `SystemExit`, becomes a `ToolCallFailed`; only `KeyboardInterrupt` and the host's cancellation pass
    through. If a handler leaves a cancel scope or a task group open, that is logged with the tool's name, and the task
    takes no other call.
    """

    def __init__(
        self,
        bus: EventBus,
        registry: ToolRegistry | None = None,
        *,
        pools: Collection[str] = ("",),
        max_concurrency: int = 1_000,
        max_threads: int = 40,
        max_processes: int | None = None,
        grace_seconds: float = 5.0,
        on_cancelled: Callable[[], object] | None = None,
    ) -> None:
        if max_processes is None:
            max_processes = os.cpu_count() or 1
        check("max_concurrency", max_concurrency, whole(1))
        check("max_threads", max_threads, whole(1))
        check("max_processes", max_processes, whole(1))
        check("grace_seconds", grace_seconds, NOT_NEGATIVE)
        self.registry = registry if registry is not None else ToolRegistry()
        self._bus = bus
        self._pools = frozenset(listed("pools", pools, "pass a list of names of pools"))
        self._reports = Reports(bus)
        self._cache = ResultCache(self._reports)
        ready: deque[Job] = deque()
        self._stranded = StrandedTasks()
        self._workers = WorkerPool[Job](ready, self._perform, self._give_up, self._start, self._stranded.stay)
        self._schedule = Schedule(max_concurrency, max_threads, max_processes, ready, self._workers.call)
        self._overdue = Overdue(grace_seconds, self._reports, self._start)
        self._retrying = 0
        self._on_cancelled = on_cancelled
        self._disconnect: Callable[[], None] = _nothing
        self._group: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> ToolDispatcher:
        if self._group is not None:
            raise NotRunning("the dispatcher is running already")
        self._bus.arbitration.bind()
        self._token = anyio.lowlevel.current_token()
        self._context = contextvars.copy_context()
        self._group = await self._stranded.open()
        self._workers.is_open = True
        self._reports.open()
        self._overdue.open()
        self._disconnect = self._bus.connect(ToolCallRequested, self._on_requested)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        group = self._group
        assert group is not None
        self._disconnect()
        self._reports.is_closing = True
        try:
            for job in self._schedule.waiting():
                # A call with a worker waits to take its slots again; its handler is cancelled below, with the others.
                if job.worker is None:
                    self._schedule.unqueue(job)
                    # A receiver may interrupt this.
                    self._fail(job, Failure("cancelled", _CLOSED))
        finally:
            self._overdue.close(self._workers.running())
            group.cancel_scope.cancel()
            try:
                await self._stranded.leave()
            finally:
                self._workers.close()
                self._group = None

    # ------------------------------------------------------------------------------------------------- receivers

    def _on_requested(self, request: ToolCallRequested) -> None:
        arbitration = self._bus.arbitration
        mailbox = arbitration.mailboxes.get(request.request_id)
        view = None if mailbox is None else mailbox.view
        tool, is_ours = self._find(request, view)
        if tool is None:
            if is_ours:
                self._reports.refused(request, Failure("unknown_tool", f"The tool {request.name!r} was removed."))
            return
        arguments, bound = request.arguments, None
        call = None if view is None else view.calls.get(request.call_id)
        if call is not None:
            if call.requested_at is None or call.arguments is None:
                # The session has not requested this call: it waits for an approval, or for its turn.
                return
            arguments = call.arguments
            if call.bound is not None and call.bound[0] is tool.spec:
                bound = call.bound[1]
        job = Job(request, tool, self._schedule.gates_of(tool), arguments, bound, view, request.attempt)
        if not arbitration.watch(request.request_id, request.call_id, functools.partial(self._on_settled, job)):
            # Another executor runs this call, or it is settled already.
            return
        if request.resumed and not tool.spec.idempotent:
            # What ran the call has ended with its process, and may have run it.
            error = f"The process ended while {request.name} ran; it may have had its effect."
            self._fail(job, Failure("interrupted", error, unknown=True))
            return
        if tool.cache_seconds is not None and not self._screens(job) and not self._cache.enter(job):
            return
        needs_thread = not tool.is_async and tool.isolation == "thread"
        if needs_thread and self._overdue.threads() >= self._schedule.threads.capacity:
            error = "No thread is free: all are held by calls that outlived their deadline."
            self._fail(job, Failure("error", error, retryable=True))
        else:
            self._schedule.admit(job)

    def _find(self, request: ToolCallRequested, view: RequestView | None) -> tuple[Tool | None, bool]:
        """Return the tool to run, if this dispatcher has to run it, and whether it has to refuse an unknown tool."""
        source = None if view is None else view.tools
        tool: Tool | None = None
        if isinstance(source, ToolRegistry):
            tool = source.get(request.name)
        if tool is None:
            tool = self.registry.get(request.name)
        if tool is None:
            return None, "" in self._pools and isinstance(source, ToolRegistry)
        is_ours = not tool.spec.external and tool.spec.pool in self._pools
        return (tool, True) if is_ours else (None, False)

    def _on_settled(self, job: Job) -> None:
        """Stop the handler of a call that was settled elsewhere: by a deadline, a cancellation or another answer.

        Its child requests end even if the handler, such as a thread, outlives the call.
        """
        for ask in job.asks:
            ask.cancel()
        if job.settled:
            return  # This dispatcher has settled it.
        job.settled = True
        successor = None if job.flight is None else self._cache.leave(job)
        if job.worker is None:
            self._schedule.unqueue(job)
        else:
            self._overdue.add(job)
            job.worker.scope.cancel()
        if successor is not None:
            self._schedule.admit(successor)

    # --------------------------------------------------------------------------------------------------- running

    def _start(self, function: Callable[..., Any], *args: Any) -> None:
        """Start a task in the dispatcher's task group."""
        assert self._group is not None
        # The dispatcher's own context is used, so that a worker does not keep its first caller's context alive.
        self._context.copy().run(self._group.start_soon, function, *args)

    def _give_up(self, job: Job) -> None:
        """End a call that has its slots but will not begin, as it is settled, about to be settled, or cancelled here.

        A call that nobody else settles is cancelled because the host has cancelled the dispatcher.
        """
        if not (job.settled or job.stops):
            self._begin_closing()
            self._fail(job, Failure("cancelled", _CLOSED))
        self._schedule.leave(job)

    def _begin_closing(self) -> None:
        """Note that the host was cancelled, or interrupted by a handler: later failures may be a consequence of that.

        The first time, this calls `on_cancelled`.
        """
        if not self._reports.is_closing:
            self._reports.is_closing = True
            if self._on_cancelled is not None:
                self._on_cancelled()

    async def _perform(self, job: Job, worker: Worker) -> Then:
        """Run one call and publish its terminal event. Returns what the worker does next; raises what the host handles.

        That is a `KeyboardInterrupt` or the host's cancellation.
        """
        view = job.view
        # The call may have been settled after it was admitted.
        if job.settled or (view is not None and view.is_stopping):
            self._give_up(job)
            return "next"
        job.worker = worker
        # `anyio.CancelScope` looks for the backend, and initialises what it has made a second time.
        worker.scope = scope = type(worker.scope)()
        job.started_at = self._reports.now()
        self._reports.started(job)
        # A `with` block would leave the scope even while trio's task groups are open in it.
        scope.__enter__()
        screens, rendered, failed = False, None, None
        try:
            value = await (self._attempts(job) if job.tool.retries else self._attempt(job))
            rendered = self._rendered(job, value)
            screens = self._screens(job)
            if screens and not job.settled:
                rendered = await in_context(
                    job, self._screened(job, rendered), self._workers.on_wait, self._reports.blocked
                )
        except BaseException as exc:
            # A handler may raise anything; what has to pass is raised again below.
            failed = exc
        left_open = worker.trio_task is not None and bool(worker.trio_task.child_nurseries)
        if not left_open:
            try:
                scope.__exit__(None, None, None)
            except RuntimeError:
                # Another scope is open inside this one.
                left_open = True
        try:
            if left_open:
                self._reports.left_open(job)
            if failed is not None:
                return self._on_exception(job, scope, failed, left_open=left_open)
        finally:
            failed = None  # Its traceback refers to this frame: only the garbage collector would free the two.
            runs_on = job.run is not None
            if not runs_on and self._overdue.jobs:
                self._overdue.discard(job)
            self._schedule.leave(job, thread_still_runs=runs_on)
        assert rendered is not None
        if screens and job.settled:
            self._start(self._complete_late, job, rendered)
        else:
            self._complete(job, rendered)
        return "stay" if left_open else "end" if scope.cancel_called else "next"

    def _rendered(self, job: Job, value: Any) -> RenderedResult:
        """Return a handler's value as it is to be sent; for the cache, the whole of it.

        Each request that is served from the cache may ask for a different part of the result.
        """
        rendered = value if type(value) is RenderedResult else render(value)
        return rendered if job.flight is not None else as_sent(job, rendered)

    def _screens(self, job: Job) -> bool:
        """Return whether an interceptor of the call's request screens results."""
        view = job.view
        return view is not None and bool(view.interceptors) and screens_results(view.interceptors)

    async def _screened(self, job: Job, rendered: RenderedResult) -> RenderedResult:
        shown = secrets_of(job.view).mask(rendered)
        return await screened(job.view.interceptors if job.view else (), job.request, shown, self._tool_context(job))

    async def _complete_late(self, job: Job, rendered: RenderedResult) -> None:
        """Publish a result that came too late, after the request's interceptors. Runs in its own task."""
        on_left_open = functools.partial(self._reports.left_open, job)
        await self._stranded.contain(on_left_open, self._screen_late, job, rendered)

    async def _screen_late(self, job: Job, rendered: RenderedResult) -> None:
        try:
            self._complete(job, await in_context(job, self._screened(job, rendered), _nothing, self._reports.blocked))
        except BaseException as exc:
            # The application's code raised, in a task of the dispatcher.
            closes = is_being_cancelled()
            if keyboard_interrupt_of(exc) or (closes and is_cancellation(exc)):
                raise
            if not closes:
                self._fail(job, classify(exc), exc)

    def _attempt(self, job: Job) -> Awaitable[Any]:
        """Return one run of the handler, with its own copy of the arguments, to be awaited.

        It returns the handler's value; a `RenderedResult` from a process, and if an instrumentation listens.
        """
        tool, arguments = job.tool, job.arguments
        bound, job.bound = job.bound, None
        if tool.secrets is not None:
            arguments = secrets_of(job.view).deliver(arguments, tool.secrets)
        is_observed = job.view is not None and job.view.instrumentation
        if tool.isolation == "process":
            if is_observed:
                running = observed_in_process(job, arguments)
                return in_context(job, running, self._workers.on_wait, self._reports.blocked)
            self._workers.on_wait()
            return run_in_process(tool, arguments)
        call = tool.prepare(arguments, self._tool_context(job) if tool.wants_context else None, bound)
        if is_observed:
            call = observed(job, call)
        running = call() if tool.is_async else self._in_thread(job, call)
        return in_context(job, running, self._workers.on_wait, self._reports.blocked)

    async def _attempts(self, job: Job) -> Any:
        """Run the handler until it succeeds or may not be tried again. Between attempts the call keeps its slots."""
        while True:
            try:
                return await self._attempt(job)
            except Exception as exc:
                delay = None if is_being_cancelled() else retry_delay(job, exc, self._reports.now())
                if delay is None:
                    raise
                self._reports.retrying(job, classify(exc), exc, delay)
            self._workers.on_wait()
            self._retrying += 1
            try:
                await anyio.sleep(delay)
            finally:
                self._retrying -= 1
            if job.stops:
                raise HandlerNotStarted
            job.attempt += 1
            self._reports.started(job)

    async def _in_thread(self, job: Job, call: Callable[[], Any]) -> Any:
        def on_late_end(value: Any, error: BaseException | None) -> None:
            # If the event loop has ended, nobody is left to receive the result.
            with contextlib.suppress(anyio.RunFinishedError):
                anyio.from_thread.run_sync(self._on_late_thread, job, value, error, token=self._token)

        run = ThreadRun(call, lambda: not job.stops, on_late_end)
        try:
            value = await run.wait()
        except anyio.get_cancelled_exc_class():
            if run.abandon():
                job.run = run
                self._overdue.add(job)
            raise
        # A sync function may return a coroutine.
        while inspect.isawaitable(value):
            value = await value
        return value

    def _on_late_thread(self, job: Job, value: Any, error: BaseException | None) -> None:
        """Publish the outcome of a thread that was given up and has ended now. Called on the event loop's thread."""
        self._overdue.discard(job)
        self._schedule.leave(job)
        if inspect.iscoroutine(value):
            # Nobody awaits this coroutine any more.
            value.close()
        if error is None:
            try:
                rendered = self._rendered(job, value)
                if not self._screens(job):
                    self._complete(job, rendered)
                elif self._group is not None:
                    # A closed dispatcher cannot screen a result, so it may not publish it.
                    self._start(self._complete_late, job, rendered)
            except Exception as exc:
                # The thread called this, so nobody else would report the error.
                error = exc
        if error is not None:
            self._fail(job, classify(error), error)

    def _on_exception(self, job: Job, scope: anyio.CancelScope, exc: BaseException, *, left_open: bool) -> Then:
        """Publish how a handler failed. Returns what the worker does next; raises what the host handles."""
        then: Then = "stay" if left_open else "end" if scope.cancel_called else "next"
        if type(exc) is HandlerNotStarted:
            job.worker = None
            return then
        cancelled, interrupt = is_cancellation(exc), keyboard_interrupt_of(exc)
        if cancelled and scope.cancel_called and job.settled:
            # The handler ended because it was cancelled here.
            return then
        # In a scope that was left open, the cancellation of that scope cannot be distinguished from the host's.
        by_host = not left_open and is_being_cancelled()
        if not job.settled and (by_host or interrupt is not None):
            self._begin_closing()
        if cancelled and by_host:
            self._fail(job, Failure("cancelled", _CLOSED, unknown=True), exc)
            raise next(leaves_of(exc))
        if cancelled:
            # A stray cancellation cannot be distinguished from that of an event loop which shuts down; this task ends
            # in either case. Such a loop cancels all tasks before any of them runs, so the task that is started here
            # runs after the request's task.
            self._start(self._end_after_stray_cancellation, job, exc)
            return "stay" if left_open else "end"
        self._fail(job, classify(exc), exc)
        if interrupt is None:
            return then
        # While a scope is left open, an exception that this task raises would not reach the task group.
        if left_open:
            self._start(raise_elsewhere, interrupt)
            return then
        raise interrupt

    async def _end_after_stray_cancellation(self, job: Job, exc: BaseException) -> None:
        # The call may have been settled after its handler ended.
        self._overdue.discard(job)
        if not job.settled:
            if by_host := is_being_cancelled():
                self._begin_closing()
            self._fail(job, Failure("cancelled", _CLOSED, unknown=True) if by_host else classify(exc), exc)

    def _tool_context(self, job: Job) -> ToolContext[Any]:
        request, view = job.request, job.view

        async def ask(prompt: Any, **options: Any) -> Any:
            if view is None:
                raise NotRunning("the calling request does not run in this process, so it cannot have a child request")
            if not job.settled:
                child, scope = view.child(request.call_id, prompt, **options), anyio.CancelScope()
                job.asks += (scope,)
                async with self._schedule.stepped_out(job):
                    try:
                        with scope:
                            return await child.run()
                    finally:
                        job.asks = tuple([each for each in job.asks if each is not scope])
                        job.spent = child.spent if job.spent is None else job.spent + child.spent
            raise NotRunning("the call has ended, so it cannot have a child request any more")

        async def progress(message: str, done: float | None, total: float | None) -> None:
            self._reports.progress(job, message, done, total)
            await anyio.lowlevel.checkpoint()

        return ToolContext(
            deps=None if view is None else view.deps,
            name=request.name,
            request_id=request.request_id,
            conversation_id=request.conversation_id,
            call_id=request.call_id,
            attempt=job.attempt,
            idempotency_key=request.idempotency_key,
            messages=() if view is None else view.messages,
            metadata=request.metadata,
            progress=progress,
            ask=ask,
        )

    def _complete(self, job: Job, rendered: RenderedResult) -> None:
        """Publish the result of a call, and of those that wait for it."""
        if job.flight is None:
            self._reports.completed(job, rendered)
        else:
            self._cache.completed(job, rendered)

    def _fail(self, job: Job, failure: Failure, cause: BaseException | None = None) -> None:
        if job.flight is None:
            self._reports.failed(job, failure, cause)
        else:
            self._cache.failed(job, failure, cause)

    def statistics(self) -> DispatcherStatistics:
        """Return the present numbers of calls, workers, threads and processes, from any thread.

        Costs O(overdue calls).
        """
        return DispatcherStatistics(
            running=self._schedule.overall.used,
            running_peak=self._schedule.overall.peak,
            queued=self._schedule.queued,
            queued_peak=self._schedule.queued_peak,
            idle_workers=len(self._workers.idle),
            threads=self._schedule.threads.used,
            threads_peak=self._schedule.threads.peak,
            processes=self._schedule.processes.used,
            processes_peak=self._schedule.processes.peak,
            suspended=self._schedule.outside,
            retrying=self._retrying,
            cached=len(self._cache),
            cache_hits=self._cache.hits,
            overdue=tuple(job.tool.name for job in self._overdue),
            leaked_tasks=len(self._stranded),
            loop_blocks=self._reports.blocks,
        )


def _nothing() -> None:
    """Do nothing: a placeholder while there is nothing to disconnect."""
