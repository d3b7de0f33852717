"""One process of a simulated world: a bus, a runtime and the other actors. It may be killed or paused at any time."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio

from ...bus import EventBus
from ...errors import ConversationBusy, NotRunning, Overloaded, StoreError, ToolbusError
from ...events import Event, RequestResumed, ToolCallCompleted, ToolCallFailed
from ...request_result import RequestResult
from ...runtime import Runtime
from ...session import RequestSession
from ...storage import RequestRecord
from ._accounts import Request
from ._actors import Actors
from ._archive import Archivist
from ._broker import CONNECTING_SECONDS
from ._disk import Handle
from ._findings import Broken
from ._inbox import InboxHandle
from ._loop import SteadyLoop
from ._plans import Plan
from ._tools import PROCESS
from ._turns import Turns
from ._watch import Watch

if TYPE_CHECKING:
    import anyio.abc

    from ._world import World

_PATIENCE_SECONDS = 300.0  # virtual; more than any lease, and any fault of the disk


class Process:
    """Process `number` of a world. `next_may_begin` is set when it was killed, paused or left.

    `epoch` is the wall clock's time when the event loop's time is 0; `stop` is called with a broken invariant.
    """

    def __init__(self, world: World, number: int, plan: Plan, epoch: float, stop: Callable[[Broken], object]) -> None:
        self.world = world
        self.number = number
        self.plan = plan
        chance = world.chance(self.named("process"))
        self.on_store_failure: str = chance.pick(["stop", "stop", "warn"])
        self.bus = EventBus(max_settled=world.max_settled)
        self.group: anyio.abc.TaskGroup
        self.handle = (InboxHandle if world.has_inbox else Handle)(world.disk, self)
        self.runtime: Runtime
        self._watches = world.park_after_seconds is not None  # whether its runtime takes over what becomes free
        self.watch = Watch(
            self.bus,
            epoch,
            stop,
            secrets=world.secrets,
            journal=self.handle if world.disk.journals else None,
        )
        self.next_may_begin = anyio.Event()
        self.results: list[tuple[RequestResult[Any], Request | None]] = []  # with the request's events until then
        self._started: list[RequestSession] = []  # sessions without a caller that waits for the result
        self._newest: dict[str, RequestSession] = {}  # by request: its newest session in this process
        self.refused = 0
        self.order: list[Event] = []
        self.is_dead = False
        self._scope = anyio.CancelScope()
        self._host = anyio.CancelScope()  # around the runtime and its callers
        self._appends = 0
        self._events = 0
        self._grace = chance.pick([1.0, 30.0])
        self._archivist = Archivist(self)
        self._turns = Turns(self)

    @property
    def has_turns(self) -> bool:
        """True if requests of this process run one at a time in each conversation: see G34 for the exceptions."""
        return not (self.world.disk.journals and self.on_store_failure == "warn")

    def named(self, name: str) -> str:
        """Return the name of a `Chance` that later processes do not share."""
        return f"{name} in {self.number}" if self.number else name

    async def run(self) -> None:
        """Run until the process is left or killed."""
        PROCESS.set(self)
        try:
            with self._scope:
                await self._live()
        except BaseException:
            if not self.is_dead:
                raise
        finally:
            self.next_may_begin.set()

    async def _live(self) -> None:
        plan = self.plan
        if self.world.fleet is not None:
            await self.world.fleet.server.answers()
        self.bus.connect(Event, self.watch)
        if plan.at_event:
            self.bus.connect(Event, self._count_event)
        self.runtime = runtime = self._runtime()
        async with anyio.create_task_group() as self.group:
            Actors(self).listen()
            self._archivist.listen()
            for guard in self.world.interceptors:
                self.bus.connect(ToolCallCompleted, functools.partial(guard.check, self.watch))
            if (fleet := self.world.fleet) is not None:
                self.bus.connect((ToolCallCompleted, ToolCallFailed), functools.partial(fleet.check, self))
            self.bus.connect(Event, self.order.append)
            if plan.way in ("killed", "paused", "cancelled") and not (plan.at_append or plan.at_event):
                self.group.start_soon(self._end_in_time)
            with self._host:
                await self._use(runtime)
            for session in tuple(self._started):
                await self._wait_for(session)
            await self._check_leases()
            self.watch.listeners()
            self._check_dispatcher(runtime)
            self.group.cancel_scope.cancel()

    async def _use(self, runtime: Runtime) -> None:
        world, plan = self.world, self.plan
        async with runtime, anyio.create_task_group() as asking:
            if self._watches:
                self.bus.connect(RequestResumed, self._on_resumed)
                asking.start_soon(self._watch_all, runtime)
            elif self.number:
                asking.start_soon(self._resume_all, runtime, asking)
            for number in range(1 if self.number else world.requests):
                asking.start_soon(self._ask, runtime, number)
            self._archivist.begin(asking)
            if plan.way == "drained":
                await anyio.sleep(plan.after_seconds)
                await runtime.drain(timeout_seconds=world.chance(self.named("drain")).below(3.0))

    def _runtime(self) -> Runtime:
        world = self.world
        return Runtime(
            providers=world.models,
            tools=world.tools,
            executors=[world.fleet.executor()] if world.fleet is not None else (),
            secrets=[("key", world.secret)] if world.secrets else None,
            instructions=f"The key is {world.secret}." if world.secrets else None,
            interceptors=world.interceptors,
            store=self.handle,
            bus=self.bus,
            max_sessions=world.max_sessions,
            max_queued=4,
            max_concurrency=world.workers,
            drain_seconds=self._grace,
            grace_seconds=1.0,
            lease_seconds=world.lease_seconds,
            relay=world.relay,
            inbox_poll_seconds=0.5 if world.has_inbox and world.relay is None else None,
            park_after_seconds=world.park_after_seconds,
            on_store_failure="warn" if self.on_store_failure == "warn" else "stop",
        )

    # ------------------------------------------------------------------------------------------------- requests

    async def _ask(self, runtime: Runtime, number: int) -> None:
        world = self.world
        name = self.named(str(number))
        chance = world.chance(f"request {name}")
        await anyio.sleep(chance.pick([0.0, 0.0, 0.5, 3.0]))
        conversation = f"c{chance.whole(1, world.conversations)}"
        host = anyio.CancelScope()
        if chance.says(0.2):
            world.faults["host cancelled"] += 1
            host.deadline = world.moment(chance, world.tool_seconds)
        options: dict[str, Any] = {"conversation_id": conversation, **world.options(name)}
        prompt = f"q{number} {world.secret}"
        with host, self.asking(options):
            if chance.says(0.8 if self._watches else 0.3):
                await self.ask(prompt, **options)
            else:
                self._turns.asks(options)
                self._take(await runtime.run(prompt, **options))

    async def ask(self, prompt: str, **options: Any) -> None:
        """Run a request in a task of the runtime."""
        self._turns.asks(options)
        session = self.runtime.start(prompt, **options)
        self._turns.starts(session, options["on_busy"], self._started)
        self.world.disk.archive.gives(session.request_id, options.get("history", ()))
        self._note_session(session)
        await self._wait_for(session)

    @contextmanager
    def asking(self, options: dict[str, Any]) -> Generator[None]:
        """Accept the errors that the caller of a request with these options has to expect."""
        try:
            yield
        except (Overloaded, ConversationBusy, NotRunning) as exc:
            self.refused += 1
            self._turns.refused(exc, options["on_busy"])
        except ToolbusError as exc:
            if exc.result is None:
                raise
            self._take(exc.result)

    async def _resume_all(self, runtime: Runtime, asking: anyio.abc.TaskGroup) -> None:
        """Resume the requests that other processes have left, until none is left."""
        disk, began = self.world.disk, anyio.current_time()
        while disk.unfinished() and anyio.current_time() - began < _PATIENCE_SECONDS:
            try:
                for session in await runtime.resume(options=self._options):
                    self.world.faults["resumed"] += 1
                    self._note_session(session)
                    asking.start_soon(self._wait_for, session)
            except NotRunning:
                return
            except StoreError:
                pass
            await anyio.sleep(self.world.lease_seconds)

    async def _watch_all(self, runtime: Runtime) -> None:
        """Let the runtime resume requests that become free, until no request is unfinished."""
        disk, began = self.world.disk, anyio.current_time()
        is_watching = False
        while anyio.current_time() - began < _PATIENCE_SECONDS:
            try:
                if not is_watching:
                    await runtime.resume(options=self._options, watch=True)
                    is_watching = True
            except NotRunning:
                return
            except StoreError:
                pass
            await anyio.sleep(self.world.lease_seconds)
            if not disk.unfinished():
                return

    def _on_resumed(self, event: Event) -> None:
        session = self.runtime.session(event.request_id)
        if session is not None:
            self.world.faults["resumed"] += 1
            self._note_session(session)
            self.group.start_soon(self._wait_for, session)

    def _options(self, record: RequestRecord) -> dict[str, Any]:
        output = self.world.output if record.agreed.get("output") else None
        return {"compression": self.world.compression, "output": output}

    def _note_session(self, session: RequestSession) -> None:
        self._started.append(session)
        self._newest[session.request_id] = session

    async def _wait_for(self, session: RequestSession) -> None:
        result = await session.result()
        self._started.remove(session)
        if self._newest[session.request_id] is session:
            self._take(result, is_carried=True)
        elif not self.is_dead:
            # Nobody waited for this session, and the request was resumed here: its events are those of the new session.
            self.results.append((result, None))

    def _take(self, result: RequestResult[Any], *, is_carried: bool = False) -> None:
        """Keep a result. If the request was left, check that its facts are durable and that it can be resumed."""
        if self.is_dead:
            return
        known = self.watch.requests.get(result.request_id)
        self.results.append((result, known and known.until_now()))
        request_id, disk = result.request_id, self.world.disk
        self._turns.check(result)
        if self.has_turns:
            disk.archive.check(self.watch, result)
        if is_carried and disk.journals:
            self._check_cancellation(result)
        if not (disk.journals and result.resumable) or not self.handle.is_ours(request_id):
            return
        ending, request = disk.endings.get(request_id), self.watch.requests.get(request_id)
        if self.handle.has_failed(request_id):
            return  # nobody knows which facts were written, and the others may be written once more
        self.watch.note("G18", ending is None, f"{request_id} was left to be resumed, and has ended as {ending}")
        if request is None:
            return
        known = {fact.event_id for fact in disk.facts(request_id)}
        for call_id, call in request.calls.items():
            is_kept = not isinstance(call.terminal, ToolCallCompleted) or call.terminal.event_id in known
            self.watch.note("G18", is_kept, f"the request of {call_id} was left, and its result is lost")
            is_cancelled = isinstance(call.terminal, ToolCallFailed) and call.terminal.reason == "cancelled"
            asked = request.cancelled_at < float("inf") or request.limits.on_failure == "fail_fast"
            self.watch.note("G18", asked or not is_cancelled, f"{call_id} was cancelled, and its request was left")

    def _check_cancellation(self, result: RequestResult[Any]) -> None:
        """Check that only people have cancelled a request that the runtime holds and that has begun."""
        request = self.watch.requests.get(result.request_id)
        if request is None or result.outcome != "cancelled" or result.resumable or not request.replies:
            return
        asked = request.cancelled_at < float("inf") or self.handle.has_failed(result.request_id)
        self.watch.note("G18", asked, f"{result.request_id} was cancelled with its runtime, and not left")

    # --------------------------------------------------------------------------------------------------- endings

    def _count_event(self, _event: Event) -> None:
        self._events += 1
        if self._events == self.plan.at_event:
            self._end()

    def count_append(self, *, is_before: bool) -> bool:
        """Count an append, which is about to be durable or has become so. Returns whether the process ends at it."""
        self._appends += is_before
        plan = self.plan
        ends = plan.at_append > 0 and self._appends == plan.at_append and is_before is plan.is_before
        if ends:
            self._end()
        return ends

    async def _end_in_time(self) -> None:
        if self.world.fleet is not None:
            await anyio.sleep(CONNECTING_SECONDS)  # A process that is paused during this time could not connect.
        await anyio.sleep(self.plan.after_seconds)
        self._end()

    def _end(self) -> None:
        if self.plan.way == "killed":
            self.kill()
        elif self.plan.way == "paused":
            self._pause(self.plan.pause_seconds)
        elif self.plan.way == "cancelled":
            self.world.faults["runtime cancelled"] += 1
            self._host.cancel()

    def kill(self) -> None:
        """End as by SIGKILL: no effect of this process is seen from now on."""
        if self.is_dead:
            return
        self.world.faults["process killed"] += 1
        self.is_dead = self.watch.is_over = True
        self.handle.die()
        self._scope.cancel()
        self.next_may_begin.set()

    def _pause(self, seconds: float) -> None:
        """Pause as by SIGSTOP, and continue after `seconds` as by SIGCONT."""
        self.world.faults["process paused"] += 1
        self.watch.note_pause(seconds)
        SteadyLoop.running().pause(self, seconds)
        contextvars.Context().run(self.next_may_begin.set)

    async def _check_leases(self) -> None:
        """Check that requests that were left while the store worked can be taken at once."""
        journal = self.world.disk.memory.journal
        for result, _ in self.results:
            if not result.resumable or journal is None or self.world.disk.newest_fault >= 0:
                continue
            record = await journal.request(result.request_id)
            is_free = record is None or not record.owner or not self.handle.is_ours(result.request_id)
            self.watch.note("G18", is_free, f"{result.request_id} was left, and its lease was not given back")

    def _check_dispatcher(self, runtime: Runtime) -> None:
        watch, left = self.watch, runtime.dispatcher.statistics()
        watch.note("G17", not left.running, f"{left.running} handlers still run after the runtime was left")
        watch.note("G17", not left.queued, f"{left.queued} calls wait after the runtime was left")
        watch.note("G17", not left.overdue, f"{left.overdue} cancelled handlers still run after the runtime was left")
        watch.note("G13", not left.retrying, f"{left.retrying} calls wait to be retried after the runtime was left")
