"""The machines of a simulated world, whose workers run the calls of remote tools, and the checks of these calls.

A machine is killed, paused, drained or cancelled as a process is, and another one follows. Machines live as long as the
world: they know nothing of the processes whose calls they run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import anyio
import orjson

from ...bus import EventBus
from ...events import Event, TerminalEvent, ToolCallCompleted, decode
from ...remote.nats import NatsExecutor, ToolWorker
from ._broker import CONNECTING_SECONDS, Client, Message, Server
from ._findings import Broken
from ._loop import SteadyLoop
from ._plans import Plan, plans_of
from ._tools import IDEMPOTENT, POOL, PROCESS, REMOTE, REMOTE_TOOLS
from ._watch import OUTSIDE, Watch

if TYPE_CHECKING:
    from ._process import Process
    from ._world import World

_URL = "nats://broker"
_STOP = f"toolbus.stop.{POOL}"
_CALLS = (f"toolbus.call.{POOL}.", f"toolbus.part.{POOL}.")
_EPSILON = 1e-5
_SOON_SECONDS = 0.2
_LOST_ANSWER_SECONDS = 15.0
"""The time in which a session finds an answer whose message was lost, if its connection is not cut meanwhile."""


class Machine:
    """One worker, until it is killed or has left. `next_may_begin` is set when it is killed, paused or left."""

    def __init__(self, fleet: Fleet, name: str, plan: Plan) -> None:
        world = self.world = fleet.world
        self.watch = fleet.watch
        self.is_dead = False
        self.next_may_begin = anyio.Event()
        self.stopped: dict[str, float] = {}  # by call, the time at which the worker has heard that it is settled
        self._name = name
        self._plan = plan
        self._fleet = fleet
        self._scope = anyio.CancelScope()
        self._pauses: list[tuple[float, float]] = []
        self._sent = self._steps = 0
        self.worker = ToolWorker(
            _URL,
            REMOTE_TOOLS,
            pool=POOL,
            max_concurrency=fleet.max_calls,
            lease_seconds=fleet.lease_seconds,
            secrets=[("key", world.secret)] if world.secrets else (),
        )

    def named(self, name: str) -> str:
        """Return the name of a `Chance` that no other machine has."""
        return f"{name} of {self._name}"

    async def run(self) -> None:
        """Run calls until the worker is left or killed."""
        PROCESS.set(cast("Process", self))  # A handler needs nothing that only a process has.
        try:
            with self._scope:
                await self._fleet.server.answers()
                async with anyio.create_task_group() as group:
                    if not (self._plan.at_append or self._plan.at_event or self._plan.way == "finished"):
                        group.start_soon(self._end_in_time)
                    await self.worker.run()
                    group.cancel_scope.cancel()
        except BaseException:
            if not self.is_dead:
                raise
        finally:
            self.next_may_begin.set()

    def was_paused(self, since: float) -> bool:
        """Return whether the machine was paused at some time since then."""
        return any(began + seconds >= since for began, seconds in self._pauses)

    def count_sent(self) -> None:
        """Count a message, and end before or after the one of the plan."""
        self._sent += 1
        if self._sent == self._plan.at_append:
            if self._plan.is_before:
                self._end()
            else:
                asyncio.get_running_loop().call_soon(self._end)

    def count_step(self) -> None:
        """Count the beginning, or the end, of a handler's work, and end at the one of the plan."""
        self._steps += 1
        if self._plan.at_event and self._steps == 1 + self._plan.at_event % 5:
            self._end()

    async def _end_in_time(self) -> None:
        await anyio.sleep(CONNECTING_SECONDS + self._plan.after_seconds)
        self._end()

    def _end(self) -> None:
        way = self._plan.way
        self.world.faults["machine gone"] += 1
        if way == "paused":
            self._pauses.append((anyio.current_time(), self._plan.pause_seconds))
            SteadyLoop.running().pause(self, self._plan.pause_seconds)
            self._fleet.server.context.run(self.next_may_begin.set)
        elif way == "drained":
            self.worker.drain()
        else:
            self.is_dead = way == "killed"
            self._scope.cancel()


class FleetWatch(Watch):
    """The checks of what workers do: see `Watch` for the arguments."""

    def __init__(self, fleet: Fleet, epoch: float, stop: Callable[[Broken], object]) -> None:
        super().__init__(EventBus(), epoch, stop, secrets=fleet.world.secrets)
        self._fleet = fleet
        self._keys: dict[str, str] = {}  # by call
        self._begun: Counter[str] = Counter()
        self.running: dict[tuple[str, Machine], float] = {}  # handlers, and when they began

    def begins(self, request_id: str, call_id: str, key: str) -> None:
        """Check that a handler on a machine has the key of its call, and begins once unless its tool is idempotent."""
        machine = _machine()
        machine.count_step()
        if machine.is_dead:
            return
        self._begun[call_id] += 1
        call = self._fleet.taken("call", request_id, call_id)
        is_idempotent = call is not None and getattr(call, "name", "") in IDEMPOTENT
        has_given_up = request_id in self._fleet.world.disk.given_up
        may_begin = self._begun[call_id] == 1 or is_idempotent or has_given_up
        self.note("G24", may_begin, f"{call_id} is not idempotent, and begins twice")
        self.note("G24", self._keys.setdefault(call_id, key) == key, f"{call_id} runs again with another key")
        self.running[call_id, machine] = anyio.current_time()

    def runs(self, request_id: str, call_id: str) -> None:
        """Check that no handler on a machine continues after it was to stop, or without a session that may stop it."""
        machine, now = _machine(), anyio.current_time()
        machine.count_step()
        if machine.is_dead:
            return
        self.running.pop((call_id, machine), None)
        since = now - machine.stopped.get(call_id, now)
        # Without its store, or one that cannot know yet, a call may run in two processes.
        if request_id in self._fleet.world.disk.given_up or call_id in self._fleet.unfenced:
            return
        holds = since <= _EPSILON
        self.note("G17", holds, f"the handler of {call_id} runs {since:g} s after its worker was to stop it")
        for process in machine.world.processes:
            holds = process.is_dead or self._is_needed(process, request_id, call_id)
            self.note("G17", holds, f"the handler of {call_id} runs, and its session has stopped no worker")

    def _is_needed(self, process: Process, request_id: str, call_id: str) -> bool:
        """Return whether a session waits for the answer of a call, has just settled it, or wants it to be stopped."""
        request = process.watch.requests.get(request_id)
        call = None if request is None else request.calls.get(call_id)
        if call is None or call.requested is None or call.terminal is None or call_id in self._fleet.stopping:
            return True
        answer = self._fleet.taken("done", request_id, call_id)
        is_answered = answer is not None and answer.event_id == call.terminal.event_id
        return is_answered or self._now() < call.settled_at + process.watch.slack_seconds + _SOON_SECONDS


def _machine() -> Machine:
    return cast("Machine", PROCESS.get())


class Fleet:
    """The machines of a world, their broker, and the checks of calls that are on both."""

    def __init__(self, world: World) -> None:
        self.world = world
        chance = world.chance("fleet")
        self.server = Server(world)
        self.server.on_sent, self.server.on_heard = self._on_sent, self._on_heard
        self.server.on_lease_ended = self._on_lease_ended
        self.lease_seconds = chance.pick([2.0, 10.0])
        self.max_calls = chance.pick([1, 2, 8])
        self.plans = [
            plans_of(world.chance(f"machine {number}"), world.tool_seconds, journals=True)
            for number in range(chance.whole(1, 2))
        ]
        self.watch: FleetWatch
        self._machines: list[Machine] = []
        self.stopping: set[str] = set()  # calls that a session wants to be stopped
        self.unfenced: set[str] = set()  # calls that a process has sent after it was replaced
        self._tried: dict[tuple[object, str], float] = {}  # when a process has first sent a part of a call
        self._is_closed = False

    @property
    def pauses(self) -> bool:
        """True if a machine is to be paused."""
        return any(plan.way == "paused" for plans in self.plans for plan in plans)

    def executor(self) -> NatsExecutor:
        """Return what a runtime needs for the calls of remote tools."""
        return NatsExecutor(_URL, pool=POOL)

    async def run(self, epoch: float, stop: Callable[[Broken], object]) -> None:
        """Run machines until `close`, and until their calls are answered."""
        self.watch, self._epoch = FleetWatch(self, epoch, stop), epoch
        self.server.epoch = epoch
        async with anyio.create_task_group() as group:
            for number, plans in enumerate(self.plans):
                group.start_soon(self._run_one_after_the_other, group, f"machine {number}", plans)

    async def _run_one_after_the_other(self, group: anyio.abc.TaskGroup, name: str, plans: list[Plan]) -> None:
        for number, plan in enumerate(plans):
            if self._is_closed:
                return
            machine = Machine(self, f"{name}.{number}", plan)
            self._machines.append(machine)
            group.start_soon(machine.run)
            await machine.next_may_begin.wait()
            await anyio.sleep(plan.next_after_seconds)

    def close(self) -> None:
        """Let all workers drain."""
        self._is_closed = True
        for machine in self._machines:
            machine.worker.drain()

    # ----------------------------------------------------------------------------------------------- the checks

    def taken(self, kind: str, request_id: str, call_id: str) -> Event | None:
        """Return the call or the first answer that the broker has ever taken under these ids."""
        found = self.server.taken.get(f"toolbus.{kind}.{POOL}.{request_id}.{call_id}")
        if found is None:
            return None
        body = found[1]
        if body.startswith(b"@"):
            parts = f"toolbus.part.{POOL}.{request_id}.{call_id}.{orjson.loads(body[1:])['digest']}."
            numbers = range(orjson.loads(body[1:])["parts"])
            body = b"".join(self.server.taken[f"{parts}{number}"][1] for number in numbers)
        return decode(body.partition(b"\n")[0])

    def _on_sent(self, client: Client, message: Message) -> None:
        self.watch.hides(message.data, "the broker is given")
        if message.subject == _STOP:
            self.stopping.add(orjson.loads(message.data)[1])
        elif message.subject.startswith(_CALLS):
            request_id, call_id = message.subject.split(".")[3:5]
            self._tried.setdefault((client.owner, call_id), anyio.current_time())
            if self.world.disk.holders.get(request_id, client.owner) is not client.owner:
                # The process was paused after the call was written, and does not know yet that it was replaced.
                self.unfenced.add(call_id)
        if isinstance(client.owner, Machine) and not message.subject.startswith("$"):
            client.owner.count_sent()

    def _on_heard(self, client: Client, message: Message) -> None:
        if message.subject == _STOP and isinstance(client.owner, Machine):
            client.owner.stopped.setdefault(orjson.loads(message.data)[1], anyio.current_time())

    def _on_lease_ended(self, subject: str, client: Client, seconds: float) -> None:
        """Check that a worker that was running and connected all the time has kept the lease of a call that it runs."""
        call_id, machine = subject.rpartition(".")[2], client.owner
        now = asyncio.get_running_loop().time()  # in no task
        assert isinstance(machine, Machine)
        began = self.watch.running.get((call_id, machine), now)
        is_lost = client.is_gone or call_id in machine.stopped or machine.was_paused(now - 2 * seconds)
        is_lost = is_lost or client.cut_at(now, now - 2 * seconds) is not None
        holds = is_lost or now - began < seconds
        self.watch.note("G24", holds, f"{call_id} runs on a machine that was connected, and its lease has ended")

    def check(self, process: Process, event: TerminalEvent) -> None:
        """Check the outcome of a call of a remote tool against what the broker has of it."""
        if event.name not in REMOTE or (event.content if isinstance(event, ToolCallCompleted) else "").startswith(
            OUTSIDE
        ):
            return
        watch, ids = process.watch, (event.request_id, event.call_id)
        # Without its store, a request may run in two processes, of which one deletes what the other one waits for.
        is_lost = event.request_id in self.world.disk.given_up or self.server.has_lost
        if isinstance(event, ToolCallCompleted):
            first = self.taken("done", *ids)
            is_first = is_lost or (first is not None and first.event_id == event.event_id)
            watch.note("G24", is_first, f"the result of {event.call_id} is not the first one that was kept")
        elif event.reason == "timeout" and not watch.slack_seconds:
            call, answer = (
                self.server.taken.get(f"toolbus.{kind}.{POOL}.{'.'.join(ids)}") for kind in ("call", "done")
            )
            now, settled_at = anyio.current_time(), event.at - self._epoch
            # The store may have used up all the time.
            is_late = self._tried.get((process, event.call_id), now) > settled_at - _SOON_SECONDS
            watch.note("G25", call is not None or is_late, f"{event.call_id} times out, and the broker never had it")
            requested = watch.requests[event.request_id].calls[event.call_id].requested
            if answer is not None and requested is not None and not is_lost:
                waited = now - max(answer[0], requested.at - self._epoch)
                clients = [each for each in self.server.clients if each.owner is process]
                is_cut = any(each.cut_at(now, now - _LOST_ANSWER_SECONDS) for each in clients)
                is_cut = is_cut or waited < _LOST_ANSWER_SECONDS
                watch.note("G24", is_cut, f"{event.call_id} times out, and its answer was there for {waited:g} s")

    def check_end(self, watch: Watch) -> None:
        """Check that no worker has calls and, if nothing had a fault, that the broker has none either."""
        for machine in self._machines:
            running = machine.worker.statistics().running
            watch.check("G17", machine.is_dead or not running, f"{running} calls are left on a machine")
        had_no_faults = not (self.server.is_ill or self.server.cuts) and all(
            plan.way == "finished" for plans in (*self.plans, self.world.plans) for plan in plans
        )
        left = [each for each in self.server.kept if each.startswith(_CALLS[0])]
        watch.check("G24", not (had_no_faults and left), f"the broker still has the calls {left}")
