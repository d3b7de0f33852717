"""Lives that are killed: a program that runs requests on a store, is killed at a place or a moment, and begins again.

    forked.Process(kill_child.main, {"store": "sqlite", "place": FOLDER, "lanes": 4, "cases": [...]})

This process has imported everything, and forks: a lane for each few cases, and from there a life for each time that a case
has to begin again, so that a life costs milliseconds. A case says where its lives are killed, one after the other: at
the n-th time that a named point is passed (`["after append settled", 1]`), or after such a part of a whole life's time
(`0.3`). The last life is not killed. Then the lane compares what three ledgers say, and writes a line of JSON: what was wrong, and how
many lives there were.

The ledgers are files that each life appends to, a line by one `write`: what tools ran, with their keys; what facts
were heard; and what the journal had when a life began. They outlive a killed
process, since the operating system has them. Calls of `outside` are written to a ledger as well, which a process of
its own reads: it outlives all lives of its case, and answers each call once. Each life injects all answers that there
are, whether its requests wait for them or an earlier life took them.

Nothing in the library knows of this: the points are passed by wrapping methods of the objects that are used.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import anyio

from toolbus import Limits, Runtime, Tool, ToolContext, sub_request_tool, tool
from toolbus.core.transcript import validate
from toolbus.core.turn import TurnState, apply_all
from toolbus.events import (
    ApprovalRequested,
    DeadLetter,
    Event,
    ModelResponded,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RequestResumed,
    RequestStarted,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallPaused,
    ToolCallRequested,
    ToolCallResumed,
    decode,
    encode,
)
from toolbus.messages import AssistantMessage, UserMessage
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.providers.scripted import Step
from toolbus.storage import Entry
from toolbus.stores.sqlite import SqliteStore
from toolbus.testing import ScriptedProvider, calls, text

ENDINGS = (RequestCompleted, RequestFailed, RequestCancelled)
TERMINAL = (ToolCallCompleted, ToolCallFailed)
ENDS = ("request_completed", "request_failed", "request_cancelled")
LEASE_SECONDS = 0.06
PATIENCE_SECONDS = 30.0  # of a life, and of a case: far over what a loaded machine needs
IDEMPOTENT = ("look", "sure_step")
DRAINED = 3  # the exit code of a life that was drained

# Of each job the model's replies, in order: what it says follows from the transcript alone.
JOBS: dict[str, list[Step]] = {
    "pay and look": [calls(("pay", {"n": 1}), ("look", {"n": 2}), ("pay", {"n": 3})), text("Paid.")],
    "and then?": [text("Then nothing.")],
    "in order": [calls(("step_on", {"n": 1}), ("sure_step", {"n": 2}), ("step_on", {"n": 3})), text("In order.")],
    "with leave": [calls(("wipe", {"n": 1}), ("look", {"n": 2})), calls(("pay", {"n": 3})), text("Wiped.")],
    "from outside": [calls(("outside", {"n": 1}), ("look", {"n": 2}), ("outside", {"n": 3})), text("Answered.")],
    "handed over": [calls(("hand_over", {"task": "inside"}), ("look", {"n": 1})), text("Handed over.")],
    "inside": [calls(("pay_inside", {"n": 1})), text("Paid inside.")],
}
CONVERSATIONS = (("pay and look", "and then?"), ("in order",), ("with leave",), ("handed over",), ("from outside",))

KINDS = ("begun", "requested", "settled", "asked", "paused", "unpaused", "ended")
POINTS = (
    *(f"{when} append {kind}" for when in ("before", "after") for kind in KINDS),
    *(f"{when} commit" for when in ("before", "after")),
    *(
        f"{name} {where} its line"
        for name in ("pay", "look", "step_on", "sure_step", "wipe")
        for where in ("before", "after")
    ),
    "pay_inside before its line",
    "pay_inside after its line",
    "hand_over after its end",
    "model asked",
    "model answers",
    "model has answered",
    "told tool_call_requested",
    "told tool_call_completed",
    "told approval_requested",
    "told request_completed",
    "after renew",
    "answer injected",
    "answer recorded",
)
RESUMING = (
    "after unfinished",
    "before take",
    "after take",
    "after facts",
    "after history",
    "before append resumed",
    "after append resumed",
    "told request_resumed",
)
DRAINING = ("before release", "after release", "drained", "store closed")


# ---------------------------------------------------------------------------------------------------- a life


class Ledger:
    """A file that lines are appended to, each whole."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *values: Any) -> None:
        os.write(self._file, json.dumps(values).encode() + b"\n")


class Fate:
    """Where this life ends."""

    def __init__(self, point: str = "", nth: int = 1) -> None:
        self._point, self._left = point, nth

    def passes(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


_KINDS: dict[type[Event], str] = {
    RequestStarted: "begun",
    RequestResumed: "resumed",
    RequestCompleted: "ended",
    ApprovalRequested: "asked",
    ToolCallRequested: "requested",
    ToolCallPaused: "paused",
    ToolCallResumed: "unpaused",
    ToolCallCompleted: "settled",
    ToolCallFailed: "settled",
}


def kinds_of(entry: Entry) -> list[str]:
    return sorted({_KINDS[type(fact)] for fact in entry.facts if type(fact) in _KINDS})


def wrap_store(store: Any, fate: Fate) -> None:
    """Have the store's calls pass points."""
    append, database = store.append, store._writer

    async def appended(entry: Entry) -> int:
        for kind in kinds_of(entry):
            fate.passes(f"before append {kind}")
        size = await append(entry)
        for kind in kinds_of(entry):
            fate.passes(f"after append {kind}")
        return size

    def passing(name: str, before: bool = False) -> None:
        method: Callable[..., Awaitable[Any]] = getattr(store, name)

        async def passed(*args: Any, **options: Any) -> Any:
            if before:
                fate.passes(f"before {name}")
            result = await method(*args, **options)
            fate.passes(f"after {name}")
            return result

        setattr(store, name, passed)

    store.append = appended
    for name in ("unfinished", "take", "facts", "history", "renew", "release"):
        passing(name, before=name in ("take", "release"))
    connect = database._connect

    def connected(deadline: float) -> Any:
        connection = connect(deadline)
        commit = connection.commit

        def committed() -> None:
            fate.passes("before commit")
            commit()
            fate.passes("after commit")

        connection.commit = committed
        return connection

    database._connect = connected


class Life:
    """One process's work: go on with what is unfinished, begin what has not been begun, and end when all has ended."""

    def __init__(self, case: Case, number: int, fate: Fate) -> None:
        self.case, self.number, self.fate = case, number, fate
        self.runs, self.heard, self.asked = Ledger(case.runs), Ledger(case.heard), Ledger(case.asked)
        self.group: Any = None
        self.drain_at = case.drains.get(number, 0)
        self.appends = 0

    # ------------------------------------------------------------------------------------------- the model

    async def respond(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        self.fate.passes("model asked")
        job = next(each.text for each in reversed(request.messages) if isinstance(each, UserMessage))
        await anyio.sleep(0.001)
        self.fate.passes("model answers")
        place = next(
            at for at, each in enumerate(request.messages) if isinstance(each, UserMessage) and each.text == job
        )
        step = JOBS[job.split(":")[0]][sum(isinstance(each, AssistantMessage) for each in request.messages[place:])]
        reply = await ScriptedProvider([step]).respond(request, _emit)
        self.fate.passes("model has answered")
        return reply

    @property
    def vendor(self) -> str:
        return "kill"

    # ------------------------------------------------------------------------------------------ who listens

    def hear(self, event: Event) -> None:
        if event.is_fact and not event.is_derived:
            call_id = getattr(event, "call_id", "")
            self.heard.write(self.number, event.type, event.request_id, call_id, event.event_id)
        elif isinstance(event, DeadLetter):
            self.heard.write(self.number, "dead letter", event.request_id, event.call_id, event.event_id)
        if isinstance(event, ToolCallRequested) and event.name == "outside":
            self.asked.write(encode(event).decode())
        self.fate.passes(f"told {event.type}")

    async def inject_answers(self, runtime: Runtime) -> None:
        given: set[str] = set()
        while True:
            for answer in self.case.answers():
                session = runtime.session(answer.request_id)
                if answer.event_id not in given and session is not None:
                    if not session.inject(answer):
                        assert session.snapshot().view.released
                        continue
                    self.fate.passes("answer injected")
                    assert session.inject(answer)  # a transport may deliver twice
                    self.group.start_soon(self.hold_recorded, session, answer)
                    given.add(answer.event_id)
            await anyio.sleep(0.01)

    async def hold_recorded(self, session: Any, answer: Event) -> None:
        recorded = await session.recorded(answer)
        assert recorded or (await session.result()).resumable
        self.fate.passes("answer recorded")

    def decide(self, runtime: Runtime, asked: ApprovalRequested) -> None:
        async def decide() -> None:
            await anyio.sleep(0.02 if asked.name == "pay_inside" else 0.002)  # so that its pause is a step of its own
            runtime.bus.publish(asked.decided(approved=True, by="Ada"))

        self.group.start_soon(decide)

    # ------------------------------------------------------------------------------------------- its course

    async def live(self) -> int:
        _living.append(self)
        store = self.case.store()
        wrap_store(store, self.fate)
        runtime = Runtime(
            self,  # type: ignore[arg-type]
            tools=_tools(),
            store=store,
            lease_seconds=LEASE_SECONDS,
            drain_seconds=0,
            limits=Limits(max_consecutive_errors=50),
        )
        runtime.bus.connect(Event, self.hear)
        runtime.bus.connect(ApprovalRequested, functools.partial(self.decide, runtime))
        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as self.group:
                async with runtime:
                    self.group.start_soon(self.inject_answers, runtime)
                    drained = await self.work(runtime, store)
                    if drained:
                        await runtime.drain(timeout_seconds=0)
                        self.fate.passes("drained")
                self.group.cancel_scope.cancel()
        self.fate.passes("store closed")
        return DRAINED if drained else 0

    async def work(self, runtime: Runtime, store: Any) -> bool:
        mine = await self.go_on(runtime, store) if self.number else {}
        for at, prompts in enumerate(CONVERSATIONS):
            conversation_id = f"{self.case.name} {at}"
            reported = {each.text for each in await store.history(conversation_id) if isinstance(each, UserMessage)}
            for prompt in prompts:
                if self.drain_at and prompt != prompts[0]:
                    continue  # what has not begun yet is cancelled by a drain
                if prompt not in reported | {*mine}:
                    mine[prompt] = runtime.start(prompt, conversation_id=conversation_id, metadata={"job": prompt})
        if self.drain_at:
            for session in mine.values():
                await session.accepted()  # what has not begun is cancelled
            heard = [0]
            enough = anyio.Event()

            def count(_event: Event) -> None:
                heard[0] += 1
                if heard[0] >= self.drain_at:
                    enough.set()

            runtime.bus.connect(Event, count)
            await enough.wait()
            return True
        for session in mine.values():
            result = await session.result()
            assert result.outcome == "completed", (result.outcome, result.reason, result.error)
        return False

    async def go_on(self, runtime: Runtime, store: Any) -> dict[str, Any]:
        """Resume until nothing unfinished is left that is not ours; the sessions by their prompts."""
        sessions: dict[str, Any] = {}
        while True:
            if not sessions:
                self.heard.write(self.number, "committed", await committed(store, self.case.name))
            resumption = await runtime.resume()
            assert not resumption.problems, resumption.problems
            for session in resumption:
                sessions[_job(session.metadata)] = session
            unfinished = [each for each in await requests_of(store, self.case.name) if each[1] is None]
            if {each[0] for each in unfinished} <= {each.request_id for each in sessions.values()}:
                return sessions
            await anyio.sleep(0.02)


# --------------------------------------------------------------------------------------------------- the tools

_living: list[Life] = []


class _Inside:
    """The model of sub-requests: that of the life that there is now."""

    vendor = "kill"

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        return await _living[-1].respond(request, emit)


def _tool(name: str, seconds: float = 0.002, **options: Any) -> Tool:
    async def handler(context: ToolContext[Any], n: int = 0) -> str:
        life = _living[-1]
        await anyio.sleep(seconds)
        life.fate.passes(f"{name} before its line")
        life.runs.write(life.number, name, context.idempotency_key)
        life.fate.passes(f"{name} after its line")
        await anyio.sleep(seconds)
        return f"{name} {n}"

    handler.__name__, handler.__doc__ = name, f"{name}."
    return tool(**options)(handler)


@functools.cache
def _tools() -> list[Tool]:
    """Made once, before any life: schemas take time."""
    inside = _tool("pay_inside", 0.01, needs_approval=True)
    handed = sub_request_tool("hand_over", "Hand over.", provider=_Inside(), tools=[inside])
    handler: Any = handed.handler

    @functools.wraps(handler)
    async def hand_over(task: str, context: ToolContext[Any]) -> Any:
        result = await handler(task, context)
        _living[-1].fate.passes("hand_over after its end")
        return result

    return [
        _tool("pay"),
        _tool("look", idempotent=True),
        _tool("step_on", sequential=True),
        _tool("sure_step", sequential=True, idempotent=True),
        _tool("wipe", needs_approval=True),
        Tool("hand_over", "Hand over.", handler=hand_over),
        Tool("outside", "Ask outside.", {"type": "object"}, external=True, validate=lambda _arguments: None),
    ]


# ----------------------------------------------------------------------------------------------------- reading


async def requests_of(store: Any, name: str) -> list[tuple[str, str | None, str]]:
    """The requests of a case, with their endings and conversations: no store lists those that have ended."""
    rows: list[Any] = await store._read(functools.partial(_rows, name=name))
    return [(row[0], row[1], row[2]) for row in rows]


def _rows(database: Any, name: str) -> Any:
    statement = "SELECT request_id, ending, conversation_id FROM requests WHERE substr(conversation_id, 1, ?) = ?"
    return database.rows(f"{statement} ORDER BY ended_at, started_at", (len(name) + 1, f"{name} "))


def _job(metadata: Mapping[str, Any] | None) -> str:
    assert metadata is not None
    return metadata["job"]


async def committed(store: Any, name: str) -> list[str]:
    """The calls whose terminal event the journal has."""
    found: list[str] = []
    for request_id, _, _ in await requests_of(store, name):
        facts: list[Any] = await cast("Any", type(store)).facts(store, request_id)  # not the wrapped one
        found += [each.fact.call_id for each in facts if isinstance(each.fact, TERMINAL)]
    return found


# ---------------------------------------------------------------------------------------------------- a case


class Case:
    """Lives, one after the other, until all that was to be done is done; and what they have left."""

    def __init__(self, config: dict[str, Any], lane: int, given: dict[str, Any]) -> None:
        self.name: str = given["name"]
        self.fates: list[Any] = given["fates"]
        self.drains: dict[int, int] = {int(life): at for life, at in given.get("drains", {}).items()}
        self._config, self._lane = config, lane
        folder = Path(config["place"])
        self.database = folder / f"{self.name.replace(' ', '_')}.db"
        self.runs, self.heard, self.asked, self.answered = (
            folder / f"{self.name.replace(' ', '_')}.{what}" for what in ("runs", "heard", "asked", "answered")
        )
        self.said = folder / f"{self.name.replace(' ', '_')}.said"
        self.kills = 0
        self.whole_seconds = self.life_seconds = 0.0

    def store(self) -> Any:
        if self._config["store"] == "sqlite":
            return SqliteStore(self.database, durability="process")
        from toolbus.stores.postgres import PostgresStore

        return PostgresStore(self._config["url"], schema=f"lane_{self._lane}", durability="process")

    def answers(self) -> list[ToolCallCompleted]:
        """The answers to calls of `outside` so far, oldest first. The line that is being written is left out."""
        text = self.answered.read_text() if self.answered.exists() else ""
        return [cast("ToolCallCompleted", decode(json.loads(each)[0])) for each in text.split("\n")[:-1]]

    def answer(self) -> None:
        """Answer each call of `outside` once, soon or late. Does not return."""
        chance, done = random.Random(self.name), set[str]()
        ledger = Ledger(self.answered)
        seen = 0
        while True:
            lines = self.asked.read_text().split("\n")[:-1] if self.asked.exists() else []
            lines, seen = lines[seen:], len(lines)
            for requested in (cast("ToolCallRequested", decode(json.loads(line)[0])) for line in lines):
                if requested.call_id not in done:
                    done.add(requested.call_id)
                    time.sleep(chance.choice((0, 0.005, 0.05, 0.15)))
                    ledger.write(encode(requested.completed(f"answer to {requested.call_id}")).decode())
            time.sleep(0.01)

    @contextmanager
    def answering(self) -> Generator[None]:
        """Have a process of its own answer, which outlives the lives."""
        answerer = os.fork()
        if not answerer:
            try:
                self.answer()
            finally:
                os._exit(1)
        try:
            yield
        finally:
            os.kill(answerer, signal.SIGKILL)
            os.waitpid(answerer, 0)

    def run(self) -> dict[str, Any]:
        with self.answering():
            return self._run()

    def _run(self) -> dict[str, Any]:
        began, life = time.monotonic(), 0
        problems: list[str] = []
        try:
            while True:
                fate = self.fates[life] if life < len(self.fates) else None
                code = self._one_life(life, fate)
                life += 1
                if code == -signal.SIGKILL:
                    self.kills += 1
                elif code == DRAINED:
                    continue
                else:
                    if code:
                        problems.append(f"life {life - 1} ended by {code}: {self.said.read_text()[-3_000:]}")
                    break
                if time.monotonic() - began > PATIENCE_SECONDS:
                    problems.append("it does not come to an end")
                    break
            problems += anyio.run(self.compare)
        except Exception:
            problems.append(traceback.format_exc())
        if not problems:
            for path in (self.database, self.runs, self.heard, self.asked, self.answered, self.said):
                for each in path.parent.glob(f"{path.name}*"):
                    each.unlink()
        return {"name": self.name, "lives": life, "kills": self.kills, "problems": problems}

    def _one_life(self, number: int, fate: Any) -> int:
        at = Fate(*cast("tuple[str, int]", fate)) if isinstance(fate, list) else Fate()
        began = time.monotonic()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                said = os.open(self.said, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                os.dup2(said, 2)
                code = anyio.run(Life(self, number, at).live)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        if isinstance(fate, float):
            time.sleep(fate * self.whole_seconds)
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        self.life_seconds = time.monotonic() - began
        return os.waitstatus_to_exitcode(status)

    # ------------------------------------------------------------------------------------------- comparing

    async def compare(self) -> list[str]:
        store = self.store()
        try:
            return await self._problems(store)
        finally:
            await store.aclose()

    async def _problems(self, store: Any) -> list[str]:
        found: list[str] = []
        runs = [tuple(json.loads(line)) for line in self.runs.read_text().splitlines()]
        heard = [tuple(json.loads(line)) for line in self.heard.read_text().splitlines()]
        ran = Counter(key for _, _, key in runs)
        rows = await requests_of(store, self.name)
        facts = {each: [fact.fact for fact in await store.facts(each)] for each, _, _ in rows}
        found += _endings(rows, facts)
        requested: dict[str, list[ToolCallRequested]] = {}
        for request_id, mine in facts.items():
            found += _calls(request_id, mine)
            for fact in mine:
                if isinstance(fact, ToolCallRequested):
                    requested.setdefault(fact.call_id, []).append(fact)
                elif isinstance(fact, ToolCallCompleted) and fact.name == "outside":
                    if fact.content != f"answer to {fact.call_id}":
                        found.append(f"{fact.call_id} is answered {fact.content!r}")
                elif isinstance(fact, ToolCallFailed) and fact.name == "outside":
                    found.append(f"{fact.call_id} failed: {fact.error}")
                elif isinstance(fact, ToolCallCompleted) and fact.name != "hand_over" and not ran[fact.call_id]:
                    found.append(f"{fact.name} {fact.call_id} is completed, and has not run")
        for _, name, key in runs:
            if name != "pay_inside" and key not in requested:
                found.append(f"{name} {key} has run, and was never requested")
        for key, count in ran.items():
            name = next(name for _, name, each in runs if each == key)
            if count > (len(requested.get(key, ())) if name in IDEMPOTENT else 1):
                found.append(f"{name} {key} has run {count} times")
        found += _reports(facts, heard)
        outside = {each.call_id for each in self.answers()}
        found += [
            f"{line[3]} has a dead letter in life {line[0]}"
            for line in heard
            if line[3:] and line[3] in outside and line[1] == "dead letter"
        ]
        for at, prompts in enumerate(CONVERSATIONS):
            found += await self._history(store, f"{self.name} {at}", prompts, rows, facts)
        return found

    async def _history(
        self, store: Any, conversation_id: str, prompts: Sequence[str], rows: Sequence[Any], facts: dict[str, Any]
    ) -> list[str]:
        history = list(await store.history(conversation_id))
        validate(history)
        expected = [
            message
            for request_id, _, conversation in rows
            if conversation == conversation_id
            for message in apply_all(TurnState(request_id), facts[request_id]).messages
        ]
        reported = [each.text for each in history if isinstance(each, UserMessage)]
        if reported != [*prompts]:
            return [f"{conversation_id} has the prompts {reported}"]
        return [] if history == expected else [f"{conversation_id} is not what its requests have written"]


def _endings(rows: Sequence[Any], facts: dict[str, list[Any]]) -> list[str]:
    found = [f"{request_id} ended {ending}" for request_id, ending, _ in rows if ending != "completed"]
    found += [
        f"{request_id} has not one ending, at its end"
        for request_id, mine in facts.items()
        if [fact for fact in mine if isinstance(fact, ENDINGS)] != mine[-1:]
    ]
    jobs = Counter[str](
        _job(fact.metadata) for mine in facts.values() for fact in mine if isinstance(fact, RequestStarted)
    )
    wanted = Counter(prompt for prompts in CONVERSATIONS for prompt in prompts)
    return found if jobs == wanted else [*found, f"begun were {jobs}"]


def _calls(request_id: str, mine: Sequence[Any]) -> list[str]:
    """Each call of a reply has one terminal event in the journal."""
    asked = Counter(
        call.call_id for fact in mine if isinstance(fact, ModelResponded) for call in fact.message.tool_calls
    )
    ended = Counter(fact.call_id for fact in mine if isinstance(fact, TERMINAL))
    return [] if asked == ended else [f"{request_id}: calls {asked} have terminal events {ended}"]


def _reports(facts: dict[str, list[Any]], heard: Sequence[Any]) -> list[str]:
    """What was heard, against what is durable."""
    found: list[str] = []
    written = {fact.event_id for mine in facts.values() for fact in mine}
    before: dict[int, set[str]] = {}
    for line in heard:
        if line[1] == "committed":
            before.setdefault(line[0], set()).update(line[2])
    counts: Counter[tuple[Any, ...]] = Counter()
    for life, kind, *rest in heard:
        if kind in ("committed", "dead letter") or rest[0] not in facts:  # sub-requests are in no journal
            continue
        request_id, call_id, event_id = rest
        if event_id not in written:
            found.append(f"{kind} of {request_id} was heard in life {life}, and is not written")
        if kind == "approval_requested":
            continue  # each life asks again, by the same event
        counts[event_id] += 1
        if kind in ENDS:
            counts["ending", request_id] += 1
        elif kind in ("tool_call_completed", "tool_call_failed"):
            counts["terminal", call_id] += 1  # over all lives
            if call_id in before.get(life, ()):
                found.append(f"{kind} of {call_id} was told again in life {life}")
    return [*found, *(f"{what} was told {count} times" for what, count in counts.items() if count > 1)]


# ---------------------------------------------------------------------------------------------------- lanes


def _serve(config: dict[str, Any], lane: int) -> None:
    """Run a lane's cases. The first one is not killed, and says how long a life takes while the other lanes work."""
    cases: list[dict[str, Any]] = [{"name": f"whole {lane}", "fates": []}, *config["cases"][lane :: config["lanes"]]]
    whole_seconds = 0.0
    for given in cases:
        case = Case(config, lane, given)
        case.whole_seconds = whole_seconds
        line = json.dumps(case.run()) + "\n"
        os.write(1, line.encode())
        whole_seconds = whole_seconds or case.life_seconds


async def _warm_up(case: Case) -> list[str]:
    await Life(case, 0, Fate()).live()
    return await case.compare()


def main(config: dict[str, Any]) -> None:
    lanes = config["lanes"]
    if config["store"] != "sqlite":
        importlib.import_module("psycopg")  # once, and not in each life

    os.environ.pop("TOOLBUS_DEBUG", None)
    warm = Case({**config, "lanes": 1}, lanes, {"name": "warm", "fates": []})
    with warm.answering():
        problems = anyio.run(_warm_up, warm)  # so that no life has to build schemas first
    assert not problems, problems
    gc.collect()
    gc.freeze()  # else each collection in a life would copy pages
    pids: list[int] = []
    for lane in range(lanes):
        pid = os.fork()
        if not pid:
            try:
                _serve(config, lane)
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
