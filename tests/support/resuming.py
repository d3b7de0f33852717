"""A request that is cut off after each of its steps, and then resumed: the scene, its shortened journals, the checks.

A process that was killed before a step was durable leaves a journal that ends with the step before. Here such journals
are made from the entries of one whole run, each in a store of its own, and another runtime resumes each of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from endings.ended_well import ENDINGS, TERMINAL, assert_valid, calls_in, listen
from support.journaled import JournaledStore
from toolbus import RequestResult, Runtime, Tool, ToolContext, tool
from toolbus.clock import wall_time_from
from toolbus.events import (
    Event,
    HistoryCompressed,
    ModelResponded,
    RequestResumed,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import AssistantMessage, Message, Usage, UserMessage
from toolbus.protocols import ModelRequest, NativeOutput, Provider
from toolbus.providers.scripted import Step
from toolbus.records import replace
from toolbus.storage import Entry
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider

__all__ = ["PROMPT", "Lab", "Scene", "Wall", "cut_off", "facts_of", "model", "virtual_wall", "virtual_walls"]

PROMPT = "Do it all."
_BEGAN = 1_750_000_000.0
_walls: list[Wall] = []


class Wall:
    """A wall clock that follows the event loop's virtual time, and that can be set to another moment."""

    def __init__(self) -> None:
        self._offset = _BEGAN

    def __call__(self) -> float:
        return self._offset + anyio.current_time()

    def put_to(self, moment: float) -> None:
        """Set the clock: buses that are made afterwards use it, and so do leases."""
        self._offset = moment - anyio.current_time()


@contextmanager
def virtual_wall() -> Generator[Wall]:
    """Let leases, and deadlines after a restart, follow the event loop's time."""
    wall = Wall()
    _walls.append(wall)
    with wall_time_from(wall):
        yield wall
    _walls.remove(wall)


def virtual_walls() -> Any:
    """Return the fixture `wall` of a module: each of its tests runs in a `virtual_wall`."""

    @pytest.fixture(autouse=True)
    def wall() -> Iterator[Wall]:
        with virtual_wall() as wall:
            yield wall

    return wall


def model(*steps: Step, vendor: str = "scripted", native_output: NativeOutput = "") -> ScriptedProvider:
    """A model that chooses its reply by the number of its replies since the prompt, so only by the transcript."""

    def reply(request: ModelRequest) -> Step:
        return steps[replies_in(request.messages)]

    return ScriptedProvider(reply, vendor=vendor, native_output=native_output)


def replies_in(messages: Sequence[Message]) -> int:
    """The number of the model's replies since the prompt, including those to notes on its output."""
    count = 0
    for message in messages:
        if isinstance(message, UserMessage) and message.text == PROMPT:
            count = 0
        count += isinstance(message, AssistantMessage)
    return count


class Lab:
    """A record of the runs of tools in one process: the name and the key of each, in order."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, str]] = []

    def keys(self, name: str = "") -> Counter[str]:
        return Counter(key for each, key in self.runs if name in ("", each))

    def tool(self, name: str, seconds: float = 1.0, result: Any = None, **options: Any) -> Tool:
        """A tool that records its run, takes `seconds`, and returns `result`, or its name and key."""

        async def handler(context: ToolContext[Any], n: int = 0) -> Any:
            self.runs.append((name, context.idempotency_key))
            await anyio.sleep(seconds)
            if isinstance(result, Exception):
                raise result
            return f"{name} {n}" if result is None else result

        handler.__name__, handler.__doc__ = name, f"Run {name}."
        return tool(**options)(handler)

    def standard(self) -> list[Tool]:
        """One tool of each kind."""
        return [
            self.tool("pay", 2),
            self.tool("look", 2, idempotent=True),
            self.tool("step_on", 1, sequential=True),
            self.tool("sure_step", 1, sequential=True, idempotent=True),
            self.tool("wipe", 1, needs_approval=True),
            self.tool("fetch", 1, result="0123456789" * 1_000, idempotent=True),
        ]


@dataclass
class Scene:
    """A request and everything around it. All of it is made again for each process.

    `before` prepares the store, `options` are the request's, `people` are connected to the runtime's bus, and `meddle`
    runs beside the request, but only in the first process. `exact` says whether a run without interrupted calls has to
    leave the same messages, wherever it was cut off.
    """

    models: Callable[[], Sequence[Provider]]
    tools: Callable[[Lab], list[Any]] = Lab.standard
    wall: Wall = field(default_factory=lambda: _walls[-1])
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    again: dict[str, Any] = field(default_factory=dict[str, Any])
    before: Callable[[MemoryStore], Any] | None = None
    people: Callable[[Runtime], object] | None = None
    meddle: Callable[[Runtime, Any], Any] | None = None
    exact: bool = True

    def runtime(self, store: MemoryStore, lab: Lab, **options: Any) -> Runtime:
        runtime = Runtime(providers=self.models(), tools=self.tools(lab), store=store, **options)
        if self.people is not None:
            self.people(runtime)
        return runtime

    async def whole(self) -> Whole:
        """Run it without an interruption."""
        store, lab = JournaledStore(), Lab()
        if self.before is not None:
            await self.before(store)
        earlier = await store.history("c")
        options: dict[str, Any] = {"conversation_id": "c", **self.options}
        async with self.runtime(store, lab) as runtime:
            session = runtime.start(PROMPT, **options)
            if self.meddle is not None:
                await self.meddle(runtime, session)
            result = await session.result()
        return Whole(store.entries, result, earlier, lab)


@dataclass
class Whole:
    """A run without an interruption: its entries, its ending, and the earlier messages of its conversation."""

    entries: list[Entry]
    result: RequestResult[Any]
    earlier: Sequence[Message]
    lab: Lab


async def cut_off(whole: Whole, steps: int, store: MemoryStore | None = None) -> MemoryStore:
    """A store with the first `steps` steps of the request, whose process has died."""
    if store is None:
        store = MemoryStore(journal=True)
        if whole.earlier:
            await store.remember("c", whole.earlier)
    assert store.journal is not None
    for entry in whole.entries[:steps]:
        await store.journal.append(replace(entry, owner="gone", has_turn=False))
    await store.journal.release(whole.entries[0].request_id, 1)
    return store


async def facts_of(store: MemoryStore, request_id: str) -> list[Event]:
    assert store.journal is not None
    return [each.fact for each in await store.journal.facts(request_id)]


@dataclass
class Resumed:
    """The outcome of a request that was cut off."""

    result: RequestResult[Any]
    heard: list[Event]
    before: list[Event]
    facts: list[Event]
    lab: Lab
    store: MemoryStore

    @property
    def open_before(self) -> dict[str, ToolCallRequested]:
        """The calls that had been requested, but had not ended, when the process died."""
        requested = {fact.call_id: fact for fact in self.before if isinstance(fact, ToolCallRequested)}
        ended = {fact.call_id for fact in self.before if isinstance(fact, TERMINAL)}
        return {call_id: fact for call_id, fact in requested.items() if call_id not in ended}


async def go_on(scene: Scene, store: MemoryStore) -> Resumed:
    """Resume the only request of the store in another process, to its end."""
    assert store.journal is not None
    (record,) = await store.journal.unfinished()
    before = await facts_of(store, record.request_id)
    scene.wall.put_to(before[-1].at + 0.5)  # at once after the process has died
    lab = Lab()
    async with scene.runtime(store, lab) as runtime:
        heard = listen(runtime.bus)
        resumption = await runtime.resume(options=lambda _record: scene.again)
        assert (resumption.problems, resumption.held) == ((), 0)
        (session,) = resumption
        result = await session.result()
        for each in runtime.providers:
            for request in getattr(each, "requests", ()):
                assert_valid(request.messages)
        recalled = await runtime.recall(record.request_id, options=lambda _record: scene.again)
    assert recalled is not None
    for name in ("outcome", "reason", "text", "output", "messages", "usage", "rounds", "cost", "affected"):
        assert getattr(recalled, name) == getattr(result, name), name
    return Resumed(result, heard, before, await facts_of(store, record.request_id), lab, store)


def assert_reported_once(resumed: Resumed) -> None:
    """Check G19 from the outside."""
    result, facts, before = resumed.result, resumed.facts, resumed.before
    endings = [fact for fact in facts if isinstance(fact, ENDINGS)]
    assert endings == facts[-1:], [fact.type for fact in facts]
    assert [
        event for event in resumed.heard if isinstance(event, ENDINGS) and event.request_id == result.request_id
    ] == (endings)
    assert facts[: len(before)] == before
    resumptions = [fact.resumption for fact in facts if isinstance(fact, RequestResumed)]
    assert resumptions == [*range(1, len(resumptions) + 1)]
    assert any(isinstance(fact, RequestResumed) for fact in facts[len(before) :])
    mine = [fact.message for fact in facts if isinstance(fact, ModelResponded)]
    ended = [fact for fact in facts if isinstance(fact, TERMINAL)]
    assert Counter(fact.call_id for fact in ended) == Counter(calls_in(mine))
    assert_valid(result.messages)
    committed = {fact.call_id for fact in before if isinstance(fact, TERMINAL)}
    again = [event.call_id for event in resumed.heard if isinstance(event, TERMINAL) and event.call_id in committed]
    assert again == []
    contents = {message.call_id: message.content for message in result.messages if message.role == "tool"}
    for fact in ended:
        if isinstance(fact, ToolCallCompleted):
            assert contents[fact.call_id] == fact.content


def assert_run_as_promised(resumed: Resumed, idempotent: Sequence[str]) -> None:
    """Check that only tools that may run twice do, under the same key; calls of other tools end as interrupted."""
    facts, before = resumed.facts, resumed.before
    ended = {fact.call_id: fact for fact in facts if isinstance(fact, TERMINAL)}
    assert all(fact.idempotency_key == fact.call_id for fact in facts if isinstance(fact, ToolCallRequested))
    known = {fact.call_id for fact in before if isinstance(fact, ToolCallRequested)}
    now = Counter(fact.call_id for fact in facts[len(before) :] if isinstance(fact, ToolCallRequested))
    assert {*now.values()} <= {1}
    may = {call_id for call_id, request in resumed.open_before.items() if request.name in idempotent}
    in_time = {call_id for call_id in may if "time is over" not in getattr(ended[call_id], "error", "")}
    assert in_time <= {*now} & known <= may
    for call_id, request in resumed.open_before.items():
        ending = ended[call_id]
        if request.name in idempotent:
            assert call_id not in in_time or isinstance(ending, ToolCallCompleted) or ending.reason != "interrupted"
        else:
            assert isinstance(ending, ToolCallFailed)
            assert (ending.reason, ending.outcome_unknown) == ("interrupted", True)
    for name, key in resumed.lab.runs:
        assert key not in resumed.open_before or name in idempotent, name
    assert all(count == 1 for count in resumed.lab.keys().values())


async def assert_remembered(resumed: Resumed, whole: Whole) -> None:
    """Check that the turn is in its conversation, once, after the earlier messages."""
    history = await resumed.store.history("c")
    assert list(history) == [*whole.earlier, *resumed.result.messages[len(whole.earlier) :]]
    assert resumed.result.journaled


def usage_in(facts: Sequence[Event]) -> Usage:
    total = Usage()
    for fact in facts:
        if isinstance(fact, (ModelResponded, HistoryCompressed)):
            total = total + fact.usage
        elif isinstance(fact, TERMINAL) and fact.spent is not None:
            total = total + fact.spent.usage
    return total


async def assert_goes_on_everywhere(
    scene: Scene, *, idempotent: Sequence[str] = ("look", "sure_step", "fetch"), again: bool = False
) -> int:
    """Cut the scene off after each step but the last, resume it, and check the result. Return the number of steps.

    With `again`, the resumed run is cut off a second time, after each of its own steps.
    """
    whole = await scene.whole()
    count = 0
    for steps in range(1, len(whole.entries)):
        resumed = await go_on(scene, await cut_off(whole, steps))
        await _check(scene, resumed, whole, idempotent)
        count += 1
        if again:
            entries = await _entries_of(resumed.store, whole.entries[0])
            whole_again = replace(whole, entries=entries)
            for more in range(steps + 1, len(entries)):
                await _check(scene, await go_on(scene, await cut_off(whole_again, more)), whole, idempotent)
                count += 1
    return count


async def _entries_of(store: MemoryStore, first: Entry) -> list[Entry]:
    """The steps of a request, for another store."""
    assert store.journal is not None
    steps: dict[int, Entry] = {}
    for each in await store.journal.facts(first.request_id):
        step = steps.setdefault(each.step_end, replace(first, seq=each.seq, facts=[]))
        step.facts = [*step.facts, each.fact]
    return [*steps.values()]


def _unnumbered(message: Message) -> Message:
    """The message without the number of its attempt: a reply that is asked for again is a new part."""
    if not isinstance(message, AssistantMessage):
        return message
    return replace(message, message_id=re.sub(r"(_r\d+)_\d+$", r"\1", message.message_id))


async def _check(scene: Scene, resumed: Resumed, whole: Whole, idempotent: Sequence[str]) -> None:
    try:
        assert_reported_once(resumed)
        assert_run_as_promised(resumed, idempotent)
        await assert_remembered(resumed, whole)
        assert resumed.result.usage == usage_in(resumed.facts)
        if scene.exact and not any(
            isinstance(fact, ToolCallFailed) and fact.reason == "interrupted" for fact in resumed.facts
        ):
            assert list(map(_unnumbered, resumed.result.messages)) == list(map(_unnumbered, whole.result.messages))
            for name in ("outcome", "reason", "text", "output", "usage", "rounds", "cost"):
                assert getattr(resumed.result, name) == getattr(whole.result, name), name
    except AssertionError as exc:
        for title, facts in (("before:", resumed.before), ("then:", resumed.facts[len(resumed.before) :])):
            exc.add_note("\n  ".join([title, *(fact.type for fact in facts)]))
        raise
