"""The composition root: `Runtime` owns the task group, the bus, the dispatcher, the store and admission."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic, Never, Self, Unpack, get_args, overload

import anyio
import anyio.lowlevel

from .._option_checks import FLAG, NOT_NEGATIVE, POSITIVE, Rule, check, one_of, or_none
from ..bus import EventBus
from ..clock import running_loop
from ..core.tokens import Calibration
from ..core.transcript import repair
from ..dispatcher import ToolDispatcher
from ..durability import (
    JournalWriter,
    OnStoreFailure,
    OptionsFor,
    Resumption,
    StoredRequests,
    UnfinishedRequests,
    call_store_in_time,
)
from ..errors import (
    ConfigurationError,
    MissingExtra,
    NotRunning,
    UnknownRequest,
)
from ..events import ApprovalRequested, ToolCallLate, new_id
from ..handles import Authorize, OpenRequest, Relay, RequestHandle, open_requests
from ..instrumentation import observed_process
from ..messages import Message, PromptLike, UserMessage
from ..protocols import Provider
from ..session import (
    Earlier,
    OnBusy,
    RequestOptions,
    RequestSession,
    Resumed,
    SessionOptions,
    SessionStart,
    check_options,
    merged_options,
    read_messages,
    read_prompt,
    tool_registry,
)
from ..status import Narrator
from ..storage import WRITE_SECONDS, Journal, RequestRecord, Store
from ..stores.memory import MemoryStore
from ..tools import DepsT, Tool, ToolLike, ToolOptions, ToolRegistry
from ..toolsets.sub_request import sub_request_tool
from ._admission import Admission, Ticket
from ._ended import EndedRequests
from ._executors import PoolExecutor, check_pools, pool_executors
from ._loop_watch import watch_loop
from ._models import Models
from ._reminders import Reminders
from ._running import CANCELLED, CLOSING, RunningRequests
from ._statistics import Numbers, RuntimeHealth, RuntimeStatistics
from ._store_link import StoreLink
from ._tally import Tally
from ._turns import Turns

if TYPE_CHECKING:
    from typing_extensions import TypeForm  # unlike `type`, also unions and literals

    from ..request_result import OutputT, RequestResult

_IS_BUS = Rule(lambda given: isinstance(given, EventBus), "pass an EventBus")

_TWO_LINES = """

    async with runtime:
        result = await runtime.run("...")"""


class Runtime(Generic[DepsT]):
    """An actor runtime that runs requests: `async with Runtime("openai:gpt-5-mini", tools=[...]) as runtime: ...`.

    `provider` is a `Provider` or a name such as "openai:MODEL", "groq:MODEL" or "extractive". Without one, the
    environment variable TOOLBUS_PROVIDER is read; if that is not set either, a `ConfigurationError` names the variables
    that were read. With `providers=[a, b]`, a request falls back to `b` if `a` stays overloaded, silent or unreachable.
    `tools` are functions, `Tool`s or a `ToolRegistry`, which may change while requests run. `executors` run the calls
    of tools that are declared for a `pool`; a pool that none of them serves is refused with `ConfigurationError` when
    the runtime is entered, and when a request brings such a tool (see `PoolExecutor`). `narrator` is a fast model that
    writes the status line while tools run: see `toolbus.status.Narrator`. `defaults` are the requests'
    `SessionOptions`, such as `instructions` (the system prompt) and `limits`. For a type checker, `Deps` is the type of
    its `deps`: write `Runtime[Deps](...)` where only the requests are given them.

    At most `max_sessions` requests run at once and `max_queued` wait; one more raises `Overloaded`. A turn of a
    conversation that is busy waits; with `on_busy="refuse"` it is refused, and with "replace" it ends the turns before
    it, with the outcome `cancelled`. `max_concurrency`, `max_threads` and
    `max_processes` bound the handlers of tools (see `ToolDispatcher`). A handler that still runs `grace_seconds` after
    it was cancelled is logged. Without a journal, a request that has ended is kept for `keep_ended_seconds`, so that a
    reader that comes late misses nothing (`request`, `recall`); at most 10,000 are kept, and 64 MiB of them.

    What is stuck is logged, counted (`toolbus.telemetry`) and published, each once: a handler that outlives its call, a
    subscription whose reader is too slow, a request whose lease another process has taken. With `remind_after_seconds`
    also a question that nobody has answered for so long (`ApprovalOverdue`), and with `blocked_loop_seconds`, such as
    0.5, whatever keeps the event loop from everything else for longer, with the functions that run meanwhile
    (`LoopBlocked`); a thread looks four times in that time. A tool that blocks the loop is named in any case. With
    `detailed_statistics`, `statistics` has the numbers of each tool and model, which costs about 1 us for each call.

    `store` keeps conversations; without one they are in memory. A store with a journal also keeps what requests do,
    before they do it, so that `resume` continues them in another process. The lease on each request is renewed; it runs
    out `lease_seconds` after this process has stopped renewing it. If such a store fails, a request fails before its
    next effect, and is left for `resume`. With `on_store_failure="warn"` the request continues and a warning is logged;
    a crash would lose what it did since. If the store has an inbox, other processes may command the requests that run
    here: the runtime looks into it every `inbox_poll_seconds` (0.25) while it has requests. With a `relay`, such as
    `toolbus.remote.nats.NatsRelay`, that all processes of the store share, it looks at once, and otherwise every 2 s in
    case a message is lost; and its requests' events reach readers in other processes as they happen. See `request`.

    With `park_after_seconds`, a request that was begun with `start` and has for so long waited only for people or for
    answers to `external` calls leaves the memory of this runtime; the first `resume(watch=True)` that sees an input for
    it, or its deadline, continues it. Its session's result is then `resumable`, with the reason "parked": watch and
    command such requests by `request`. Nothing is parked while this runtime does not watch itself.

    Leaving the block cleanly drains: no new requests are accepted, running ones get `drain_seconds`, and the rest is
    cancelled, or left for `resume` if there is a journal. Leaving it by an exception does so at once. Then the store is
    closed, also one that was given; a provider is closed only if it was made from a name. The runtime may be entered
    again afterwards. Conversations are kept if the store can be opened again after closing.

    Example:
        from toolbus import Limits, Runtime, tool
        from toolbus.testing import ScriptedProvider, calls, text

        @tool
        async def get_order(number: int) -> str:
            "Get an order."
            return f"order {number} is in Rome"

        model = ScriptedProvider([calls(("get_order", {"number": 7})), text("It is in Rome.")])
        async with Runtime(model, tools=[get_order], limits=Limits(max_rounds=5)) as runtime:
            session = runtime.start("Where is order 7?", conversation_id="user-1")
            async for piece in session.text():
                print(piece)  # It is in Rome.
            result = await session.result()
        print(result.outcome, result.rounds)  # completed 2
    """

    journal: Journal | None
    """The journal to which sessions write; None if the store has no journal."""

    # The state from entering the runtime until it is left.
    _is_running = False
    _watch: anyio.CancelScope | None = None  # of the task that takes over what other processes leave
    _thread: int
    _loop: anyio.lowlevel.EventLoopToken
    _closing: bool

    def __init__(
        self,
        provider: Provider | str | None = None,
        *,
        providers: Sequence[Provider | str] | None = None,
        tools: Iterable[ToolLike] | ToolRegistry = (),
        executors: Iterable[PoolExecutor] = (),
        narrator: Narrator | Provider | str | None = None,
        store: Store | None = None,
        bus: EventBus | None = None,
        max_sessions: int = 10_000,
        max_queued: int = 1_000,
        max_concurrency: int = 1_000,
        max_threads: int = 40,
        max_processes: int | None = None,
        drain_seconds: float = 10.0,
        grace_seconds: float = 5.0,
        on_busy: OnBusy = "queue",
        on_store_failure: OnStoreFailure = "stop",
        lease_seconds: float = 30.0,
        keep_ended_seconds: float = 60.0,
        relay: Relay | None = None,
        inbox_poll_seconds: float | None = None,
        park_after_seconds: float | None = None,
        remind_after_seconds: float | None = None,
        blocked_loop_seconds: float | None = None,
        detailed_statistics: bool = False,
        **defaults: Unpack[SessionOptions[DepsT]],
    ) -> None:
        check_options(defaults, SessionOptions, "Runtime", beside=_PARAMETERS)
        self._on_busy: OnBusy = check("on_busy", on_busy, one_of(*get_args(OnBusy)))
        self._drain_seconds = check("drain_seconds", drain_seconds, NOT_NEGATIVE)
        check("keep_ended_seconds", keep_ended_seconds, NOT_NEGATIVE)
        check("remind_after_seconds", remind_after_seconds, or_none(POSITIVE))
        self._reminders = None if remind_after_seconds is None else Reminders(remind_after_seconds)
        self._blocked_loop_seconds = check("blocked_loop_seconds", blocked_loop_seconds, or_none(POSITIVE))
        self._models = Models()
        self.providers = self._models.given(provider, providers) or self._models.from_environment()
        self.provider = self.providers[0]
        self.tools = tool_registry(tools)
        self.bus = EventBus() if bus is None else check("bus", bus, _IS_BUS)
        self._tally = Tally(self.bus) if check("detailed_statistics", detailed_statistics, FLAG) else None
        self.store: Store = store if store is not None else MemoryStore()
        self.dispatcher = ToolDispatcher(
            self.bus,
            self.tools,
            max_concurrency=max_concurrency,
            max_threads=max_threads,
            max_processes=max_processes,
            grace_seconds=grace_seconds,
            on_cancelled=self._on_cancelled,
        )
        self._defaults = defaults
        self._link = StoreLink(
            self.store,
            self.session,
            lease_seconds=lease_seconds,
            on_failure=on_store_failure,
            relay=relay,
            inbox_poll_seconds=inbox_poll_seconds,
            park_after_seconds=park_after_seconds,
        )
        self.journal = self._journal_writer = self._link.writer
        self._executors = pool_executors(executors)
        self._narrator = self._models.narrator(narrator)
        writer = self._journal_writer
        stored = None if writer is None else partial(self._stored, writer, None)
        self._turns = Turns(self.store, writer, stored, self.request)
        self._start = SessionStart(
            calibration=Calibration(), check_tools=partial(check_pools, executors=self._executors)
        )
        self._admission = Admission(max_sessions, max_queued)
        self._entered = threading.Lock()  # Several threads may try at once.
        ended = EndedRequests(self.bus, keep_ended_seconds)
        self._requests = RunningRequests(self.bus, self._admission, self._turns, ended, has_journal=writer is not None)
        self._numbers = Numbers(self.bus, self.dispatcher, self._admission, self._requests, writer, self._reminders)

    def __repr__(self) -> str:
        models = [self._models.name_of(each) for each in self.providers]
        state = "not running" if not self._is_running else "closing" if self._closing else "running"
        requests = len(self._requests.sessions)
        return f"<Runtime {' | '.join(models)}, {state}, tools: {len(self.tools)}, requests: {requests}>"

    # ------------------------------------------------------------------------------------------------- lifetime

    if not TYPE_CHECKING:  # Type checkers refuse `with Runtime(...)` by themselves.

        def __enter__(self) -> Never:
            raise NotRunning(
                "a runtime is entered with `async with Runtime(...) as runtime:`, in an async function or a notebook; "
                'in a script without async functions, call Runtime(...).run_sync("...") without a block'
            )

        def __exit__(self, *exc_info: object) -> None:
            """Do nothing. Python looks this method up before it calls `__enter__`."""

    async def __aenter__(self) -> Self:
        check_pools(self.tools.specs, self._executors)
        if not self._entered.acquire(blocking=False):
            raise NotRunning(
                "the runtime is running already; leave its `async with` block before you enter it again. Threads share "
                "one block: see anyio.from_thread.start_blocking_portal"
            )
        async with AsyncExitStack() as stack:
            stack.callback(self._entered.release)
            self._closing = False
            self._thread, self._loop = threading.get_ident(), anyio.lowlevel.current_token()
            await stack.enter_async_context(self.dispatcher)
            for executor in self._executors:
                await stack.enter_async_context(executor.attach(self.bus, self.tools, self._on_cancelled))
            if self._narrator is not None:
                await stack.enter_async_context(self._narrator.attach(self.bus))
            stack.callback(self.bus.connect(ToolCallLate, self._turns.conversations.late))
            if self._tally is not None:
                stack.callback(self.bus.connect(Tally.KINDS, self._tally))
            if (instrumentation := self._defaults.get("instrumentation")) is not None:
                stack.enter_context(observed_process(instrumentation, self.bus, self._numbers))
            if self._reminders is not None:
                await stack.enter_async_context(self._reminders.attach(self.bus))
            if (seconds := self._blocked_loop_seconds) is not None:
                stack.enter_context(watch_loop(self.bus, seconds, lambda: self.dispatcher.statistics().loop_blocks))
            if self._link.exchange is not None:
                await stack.enter_async_context(self._link.exchange)
            # The store is the last part: if another one fails, nobody would close it.
            await self._link.open()
            self._parts = stack.pop_all()
        await self._requests.open()
        self._is_running = True
        self._link.serve(self._requests.group, self._may_be_parked)
        return self

    def _may_be_parked(self) -> Collection[str]:
        """Return the requests that have their own task, while this runtime takes over what becomes free."""
        return () if self._watch is None or self._closing else self._requests.tickets

    async def __aexit__(self, kind: type[BaseException] | None, *_exc_info: object) -> None:
        try:
            if kind is None:
                await self.drain()
            else:
                self._cancel_now("the runtime was left by an exception")
        except BaseException:  # The task was cancelled while the runtime drained.
            self._cancel_now(CANCELLED)
            raise
        finally:
            self._link.stop()
            try:
                await self._leave()
            finally:  # A cancellation while handlers still end must not keep the parts open.
                with anyio.CancelScope(shield=True, deadline=anyio.current_time() + WRITE_SECONDS):
                    await self._close_parts()

    async def _leave(self) -> None:
        try:
            await self._requests.leave()
        finally:
            self._is_running, self._watch = False, None
            self._requests.ended.clear()
            await self._parts.aclose()

    def _cancel_now(self, reason: str) -> None:
        self._close_entrance()
        self._requests.cancel_now(reason)

    def _close_entrance(self) -> None:
        """Take no more requests, nor take over those of others."""
        self._closing = True
        if self._watch is not None:
            self._watch.cancel()

    def _on_cancelled(self) -> None:
        """Leave the requests that have a journal, because the host is cancelling all tasks.

        It cancels the dispatcher's tasks in the same pass and in no known order, so the dispatcher calls this before it
        answers the first call that runs: the answer would become the call's result in the journal.
        """
        if self._journal_writer is not None and self._is_running:
            self._cancel_now(CANCELLED)

    async def _close_parts(self) -> None:
        # The stack closes its entries from the last one on, each of them even if another one fails.
        async with AsyncExitStack() as last:
            self._models.close_with(last)
            last.push_async_callback(self.store.aclose)
            if self._journal_writer is not None:
                await self._journal_writer.flush()

    async def drain(self, *, timeout_seconds: float | None = None) -> int:
        """Refuse new requests, wait `timeout_seconds` for those that run, cancel the rest, and return their number.

        `timeout_seconds` is `drain_seconds` unless stated otherwise. With a journal, the rest is not cancelled but left
        in the store, so that `resume` can continue it (see `RequestResult.resumable`); a request that only waits for a
        person is left at once. A log line has the number of requests that were left.
        """
        self._close_entrance()
        return await self._requests.drain(self._drain_seconds if timeout_seconds is None else timeout_seconds)

    # ------------------------------------------------------------------------------------------------- requests

    @overload
    def start(self, prompt: PromptLike, **options: Unpack[RequestOptions[DepsT]]) -> RequestSession[None]: ...
    @overload
    def start(
        self, prompt: PromptLike, *, output: TypeForm[OutputT], **options: Unpack[RequestOptions[DepsT]]
    ) -> RequestSession[OutputT]: ...
    def start(
        self, prompt: PromptLike, *, output: Any = None, **options: Unpack[RequestOptions[DepsT]]
    ) -> RequestSession[Any]:
        """Start a request in its own task and return its session at once; see `RequestOptions`.

        `prompt` is text, a `UserMessage`, or a list of texts, images and files. Raises `Overloaded` if the slots and
        the queue are full, `ConversationBusy` with `on_busy="refuse"`, `NotRunning` outside the `async with` block and
        while the runtime closes, `InvalidHistory`, and `ConfigurationError`. If it raises, nothing was started.
        """
        session, ticket = self._prepare(prompt, output, options)
        self._requests.spawn(session, ticket)
        return session

    @overload
    async def run(self, prompt: PromptLike, **options: Unpack[RequestOptions[DepsT]]) -> RequestResult[None]: ...
    @overload
    async def run(
        self, prompt: PromptLike, *, output: TypeForm[OutputT], **options: Unpack[RequestOptions[DepsT]]
    ) -> RequestResult[OutputT]: ...
    async def run(
        self, prompt: PromptLike, *, output: Any = None, **options: Unpack[RequestOptions[DepsT]]
    ) -> RequestResult[Any]:
        """Run a request in this task and return its result. Cancelling the call cancels the request.

        The options and errors are those of `start`. A request that fails, for example because its model cannot be
        reached, raises `RequestResult.error`, whose `result` has everything up to the failure. A request that was
        stopped by a limit, or cancelled, returns a result: see `RequestResult.outcome`. `output` is a type for the
        answer, such as a pydantic model, and `result.output` is a validated value of it. Without such a value, a
        request that was stopped raises `LimitReached`, and one that was cancelled `RequestCancelledError`.
        """
        session, ticket = self._prepare(prompt, output, options)
        result: RequestResult[Any] = await self._requests.carry_out(session, ticket)
        if result.error is not None or (output is not None and not session.snapshot().has_output):
            result.raise_for_outcome()
        return result

    @overload
    def run_sync(
        self, prompt: PromptLike, *, backend: str = "asyncio", **options: Unpack[RequestOptions[DepsT]]
    ) -> RequestResult[None]: ...
    @overload
    def run_sync(
        self,
        prompt: PromptLike,
        *,
        output: TypeForm[OutputT],
        backend: str = "asyncio",
        **options: Unpack[RequestOptions[DepsT]],
    ) -> RequestResult[OutputT]: ...
    def run_sync(
        self,
        prompt: PromptLike,
        *,
        output: Any = None,
        backend: str = "asyncio",
        **options: Unpack[RequestOptions[DepsT]],
    ) -> RequestResult[Any]:
        """Enter the runtime, run one request, and leave it again: `run` for scripts, with the same options and errors.

        Conversations are kept from one call to the next. Raises `NotRunning` inside an event loop.
        """
        check("backend", backend, one_of("asyncio", "trio"))

        async def once() -> RequestResult[Any]:
            async with self:
                return await self.run(prompt, output=output, **options)

        try:
            anyio.get_current_task()
        except Exception:  # noqa: S110 -- no event loop runs here, which is right; the type differs by version
            pass
        else:
            raise NotRunning(
                "run_sync() cannot be called while an event loop is running, as in a notebook or an async "
                f"function; there, write:{_TWO_LINES}"
            )
        try:
            return anyio.run(once, backend=backend)
        except LookupError as exc:
            if backend == "trio" and find_spec("trio") is None:
                raise MissingExtra("trio", "trio") from exc
            raise

    def as_tool(self, name: str, description: str, *, tool_options: ToolOptions | None = None) -> Tool:
        """Return a tool that hands a task to a sub-request with this runtime's model, tools and defaults.

        The sub-requests run on the caller's bus and dispatcher; this runtime need not be entered for them. See
        `sub_request_tool`.
        """
        given = self._merged({})
        return sub_request_tool(
            name, description, provider=self.providers, tools=self.tools, tool_options=tool_options, **given
        )

    def session(self, request_id: str) -> RequestSession | None:
        """Return the session of a request that runs or waits in this runtime; None for any other: see `request`."""
        return self._requests.sessions.get(request_id)

    def request(
        self, request_id: str, *, authorize: Authorize | None = None, options: OptionsFor | None = None
    ) -> RequestHandle:
        """Return a handle to watch and control a request, whichever process runs it, also after it has ended.

        Use it if the id comes from outside, for example from a web page, because another worker process may run the
        request. A request that has ended is in the journal or, without one, is kept for `keep_ended_seconds`. The
        request is looked up when the handle is used, so this raises nothing, and costs nothing. `authorize` decides who
        may give a command: see `RequestHandle`. `options` are as for `recall`.
        """
        writer = self._journal_writer
        return RequestHandle(
            request_id,
            local=self._requests.find,
            stored=None if writer is None else self._stored(writer, options),
            authorize=authorize,
            seconds=self._link.inbox_poll_seconds,
            exchange=self._link.exchange,
            secrets=self._defaults.get("secrets") or (),
        )

    async def requests(
        self,
        *,
        conversation_id: str | None = None,
        prefix: str = "",
        is_unfinished: bool = False,
        limit: int = 100,
    ) -> Sequence[RequestRecord]:
        """Return the records of a conversation's requests, or of all, at most `limit`, the newest first.

        They are those that run here, or have ended in the last `keep_ended_seconds`, and those in the journal, if there
        is one. With `prefix`, they are only those of conversations whose id begins with this text, such as those of one
        tenant; with `is_unfinished`, only those that have not ended. A request that has not begun has no facts. Raises
        `StoreError`, and `NotRunning`.
        """
        self._check_usable({})
        stored: Sequence[RequestRecord] = ()
        if self._journal_writer is not None:
            found = self._journal_writer.store.requests(
                conversation_id=conversation_id, prefix=prefix, is_unfinished=is_unfinished, limit=limit
            )
            stored = await call_store_in_time(found)

        def matches(each: str) -> bool:
            return conversation_id in (None, each) and each.startswith(prefix)

        return self._requests.listed(stored, matches, is_unfinished=is_unfinished, limit=limit)

    async def open_requests(
        self, *, conversation_id: str | None = None, prefix: str = "", limit: int = 100
    ) -> Sequence[OpenRequest]:
        """Return the requests that have not ended, with their open questions: at most `limit`, the newest first.

        They are those of all processes that share the store; `conversation_id` and `prefix` are as in `requests`. Those
        that wait to begin are only the ones that wait here. The facts of each request that does not run here are read,
        so this is for a page, and not for each call. Raises `StoreError`, and `NotRunning`.
        """
        records = await self.requests(conversation_id=conversation_id, prefix=prefix, is_unfinished=True, limit=limit)
        journal = None if self._journal_writer is None else self._journal_writer.store
        return await open_requests(records, journal, self.session)

    def statistics(self) -> RuntimeStatistics:
        """Return statistics of this runtime and of its parts. May be called from any thread.

        Takes O(requests + listeners); nothing is computed between calls.
        """
        return self._numbers.statistics(self._tally)

    def health(self) -> RuntimeHealth:
        """Return whether this runtime accepts requests now, and what is wrong with it. For probes: it never blocks."""
        stopped = "the runtime is not running" if not self._is_running else CLOSING if self._closing else ""
        return self._numbers.health(stopped)

    def pending_approvals(self) -> tuple[ApprovalRequested, ...]:
        """Return the open approval questions of all requests that run in this process, oldest first.

        See `RequestSession.pending_approvals`. Requests that another process has left are included after `resume`.
        """
        return self.bus.arbitration.pending_approvals()

    async def resume(self, *, options: OptionsFor | None = None, limit: int = 1_000, watch: bool = False) -> Resumption:
        """Continue unfinished requests of the store that no process holds: at most `limit`, the oldest first.

        With `watch`, this runtime also continues what becomes free later, until it drains: a second after another
        process has drained, and `lease_seconds` after one has died, as far as `max_sessions` and `max_queued` let it. A
        request that cannot continue is logged, and tried again each minute. `runtime.session` returns the sessions.
        A later call with `watch` replaces the `options` of the earlier one.

        Each request continues from its last durable fact, in its own task. A tool call that had been requested may
        have run: it is requested once more, under the same key, if its tool is `idempotent`, `external` or of a pool
        and its definition is the same; otherwise it ends as `interrupted`. Questions to people are asked again, and
        deadlines continue by the wall clock. The end of a call that is in the journal is not published again.

        Options that are data (limits, settings, instructions as text, metadata and so on) are taken from the journal.
        The rest comes from this runtime, and from `options`, a function of the request's record that returns options of
        `run`: its `deps`, `tools`, `provider`, `output`; `limits` give the request new time. A request that cannot
        continue is left unchanged, and is among the `problems`. Raises `StoreError`, `NotRunning`, and
        `ConfigurationError` for a store without a journal.
        """
        self._check_usable({})
        writer = self._journal_writer
        if writer is None:
            raise ConfigurationError(
                "the store has no journal, so there is nothing to resume; give Runtime a store that lasts, "
                "such as SqliteStore('toolbus.db')"
            )
        unfinished = UnfinishedRequests(self._stored(writer, options), writer)
        found = await unfinished.resume(self._start_resumed, limit)
        if watch:
            self._keep_watching(unfinished, found)
        return found

    async def recall(self, request_id: str, *, options: OptionsFor | None = None) -> RequestResult[Any] | None:
        """Return the result of a request that has ended, whichever process it ran in.

        It comes from this process if the request has ended here in the last `keep_ended_seconds`, and otherwise from
        the journal. Neither has the exceptions of handlers. Returns None for a request that has not ended or is
        unknown. `options` are as for `resume`. Raises `StoreError`, `NotRunning` and `ResumeMismatch`.
        """
        self._check_usable({})
        if (session := self._requests.ended.get(request_id)) is not None:
            return session.snapshot().result
        if self._journal_writer is None:
            return None
        with suppress(UnknownRequest):  # It was deleted meanwhile.
            return await self._stored(self._journal_writer, options).recall(request_id)
        return None

    # ------------------------------------------------------------------------------------------------- internals

    def _stored(self, writer: JournalWriter, options: OptionsFor | None) -> StoredRequests:
        return StoredRequests(self.store, writer.store, self._continue, options, self._defaults.get("instructions"))

    def _keep_watching(self, unfinished: UnfinishedRequests, found: Resumption) -> None:
        self._check_usable({})  # The runtime may have begun to close meanwhile.
        if self._watch is not None:
            self._watch.cancel()
        self._watch = scope = anyio.CancelScope()

        async def watch() -> None:
            with scope:
                await unfinished.watch(self._start_resumed, lambda: self._admission.free_capacity, found)

        self._requests.group.start_soon(watch)

    def _start_resumed(self, session: RequestSession, started_at: float) -> None:
        """Continue a request that another process has begun, once its conversation's turn and a slot are free."""
        self._check_usable({})  # The runtime may have begun to close meanwhile.
        ticket = self._admission.take(session.conversation_id, started_at=started_at)
        self._requests.sessions[session.request_id] = session
        if self._link.exchange is not None:
            self._link.exchange.begins_here(session.request_id)
        self._requests.spawn(session, ticket)

    def _check_usable(self, options: RequestOptions) -> None:
        check_options(options, RequestOptions, "a request", beside=("output",))
        if not self._is_running or self._closing:
            if self._is_running:
                raise NotRunning("the runtime is closing, and takes no more requests")
            raise NotRunning(
                "the runtime is not running; requests run inside its `async with` block, which RuntimeMiddleware "
                f"enters if it is around a whole web application:{_TWO_LINES}"
            )
        if threading.get_ident() != self._thread:
            raise NotRunning(
                "a request was begun in another thread than the runtime's; "
                "use anyio.from_thread.run(runtime.run, prompt), or anyio.from_thread.run_sync(runtime.start, prompt)"
            )
        if running_loop() != self._loop:
            raise NotRunning(
                "the runtime was entered in another event loop of this thread; enter it in the one that runs now, for "
                "example in a fixture of the same scope"
            )

    def _prepare(self, prompt: PromptLike, output: Any, options: RequestOptions) -> tuple[RequestSession, Ticket]:
        self._check_usable(options)
        get = options.get
        conversation_id, history = get("conversation_id"), get("history")
        given = [] if history is None else read_messages(history)
        if get("repair_history"):
            given = repair(given)
        request_id = new_id()
        own_id = conversation_id or f"c{request_id}"
        on_busy = get("on_busy") or self._on_busy
        ticket = self._admission.take(own_id, queue=on_busy != "refuse")

        prepare = partial(
            self._turns.begin,
            request_id,
            own_id,
            ticket,
            is_named=conversation_id is not None,
            on_busy=on_busy,
            has_history=bool(given),
        )
        try:
            waits = conversation_id is not None or not ticket.running
            start = self._start
            if waits:
                start = SessionStart(calibration=start.calibration, check_tools=start.check_tools, prepare=prepare)
            newest = read_prompt(prompt)
            session = self._make([*given, newest] if given else newest, output, options, request_id, start)
            if self._journal_writer is not None:
                self._journal_writer.register(session, history_length=len(given), replaces=on_busy == "replace")
        except BaseException:
            ticket.give_back()
            raise
        if on_busy == "replace" and not ticket.is_lined_up:  # The conversation has other requests here.
            self._requests.replace(own_id)
        self._requests.sessions[request_id] = session
        return session, ticket

    def _continue(
        self, messages: Sequence[Message], output: Any, options: RequestOptions, request_id: str, resumed: Resumed
    ) -> RequestSession:
        """Make the session of a request that another process has begun."""
        conversation_id = options.get("conversation_id") or ""

        async def prepare() -> Earlier:
            return await self._turns.resume(request_id, conversation_id, self._requests.tickets[request_id])

        start = SessionStart(
            calibration=self._start.calibration, check_tools=self._start.check_tools, prepare=prepare, resumed=resumed
        )
        return self._make(messages, output, options, request_id, start)

    def _make(
        self,
        messages: UserMessage | Sequence[Message],
        output: Any,
        options: RequestOptions,
        request_id: str,
        start: SessionStart,
    ) -> RequestSession:
        get = options.get
        tools = self.tools
        if (given := get("tools")) is not None:
            tools = tool_registry(given)
            check_pools(tools.specs, self._executors)
        return RequestSession(
            self.bus,
            self._models.given(get("provider"), get("providers")) or self.providers,
            messages,
            tools=tools,
            conversation_id=get("conversation_id") or "",
            request_id=request_id,
            journal=self.journal,
            output=output,
            start=start,
            **self._merged(options),
        )

    def _merged(self, options: RequestOptions) -> SessionOptions:
        """Return the options of one session: the request's options, and the runtime's defaults for the others."""
        return merged_options(self._defaults, options, self._models.resolve)


# The names of a runtime's parameters, without the options of its requests.
_PARAMETERS = ("provider", *(Runtime.__init__.__kwdefaults__ or ()))
