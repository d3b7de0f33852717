"""The contract of executors: the dispatcher keeps it, and its checks bite: who is wrong in one way fails that one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import wrong_executors as wrong

from toolbus import EventBus, Tool, ToolDispatcher, ToolRegistry
from toolbus.errors import ConfigurationError
from toolbus.events import ToolCallCompleted, ToolCallFailed, ToolCallProgress, ToolCallRequested, decode, encode
from toolbus.testing import ContractBroken, check_executor, executor_checks, virtual_backends
from toolbus.testing.contract_tools import CONTRACT_TOOLS

anyio_backend = virtual_backends()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that an executor leaves here stays for good."""
    monkeypatch.setattr("toolbus.testing.census._PATIENCE_SECONDS", 0.2)


Tools = Sequence[Tool]
BOUND = {"max_concurrency": 3}

# ------------------------------------------------------------------------------------------------- the dispatcher


@pytest.mark.guarantee("G06", "G07", "G12", "G14", "G15", "G17")
@pytest.mark.parametrize("options", [{}, {"max_concurrency": 3}, {"max_concurrency": 1}, {"max_threads": 2}], ids=str)
async def test_the_dispatcher_keeps_the_contract(options: dict[str, Any]) -> None:
    most = options.get("max_concurrency")
    report = await check_executor(
        lambda bus, tools: ToolDispatcher(bus, ToolRegistry(tools), **options), max_concurrency=most
    )
    assert {*report.passed, *report.skipped} == set(executor_checks())
    assert set(report.skipped) == {
        None: {"bounds"},
        3: set[str](),
        1: {"side-by-side", "hanging-handlers", "hanging-threads"},
    }.get(most, set())


@pytest.mark.guarantee("G13")
async def test_the_dispatcher_keeps_the_contract_with_tools_that_are_tried_again() -> None:
    def make(bus: EventBus, tools: Tools) -> ToolDispatcher:
        again = [Tool(handler=each.handler, pool=each.spec.pool, retries=2) if each.handler else each for each in tools]
        return ToolDispatcher(bus, ToolRegistry(again))

    report = await check_executor(make, patience_seconds=60)
    assert report.skipped == ("bounds",)


async def test_the_dispatcher_keeps_the_contract_with_each_tool_bounded_by_itself() -> None:
    def make(bus: EventBus, tools: Tools) -> ToolDispatcher:
        bounded = [
            Tool(handler=each.handler, pool=each.spec.pool, max_concurrency=8) if each.handler else each
            for each in tools
        ]
        return ToolDispatcher(bus, ToolRegistry(bounded))

    await check_executor(make)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_the_dispatcher_keeps_the_contract_in_real_time(anyio_backend: str) -> None:
    report = await check_executor(lambda bus, tools: ToolDispatcher(bus, ToolRegistry(tools)), quiet_seconds=0.01)
    assert report.skipped == ("bounds",)


# ------------------------------------------------------------------------------------------------- elsewhere

_ANSWERS = (ToolCallCompleted, ToolCallFailed, ToolCallProgress)


class Relay:
    """An executor whose tools run on another bus: what passes between the two are lines of JSON, one after the other.

    The worker has requests of its own. It is told what was settled here, and what it answers is told here.
    """

    def __init__(self, bus: EventBus, **options: Any) -> None:
        self.bus = bus
        self.far = EventBus()
        self.options = options
        self.running: dict[str, ToolCallRequested] = {}

    def request(self, requested: ToolCallRequested) -> None:
        tools = {tool.name for tool in CONTRACT_TOOLS if not (tool.spec.external or tool.spec.pool)}
        ids = (requested.request_id, requested.call_id)
        if requested.name in tools and self.bus.arbitration.watch(*ids, lambda: self.stop(requested)):
            self.running[requested.call_id] = requested
            self.send.send_nowait(encode(requested))

    def stop(self, requested: ToolCallRequested) -> None:
        del self.running[requested.call_id]
        self.send.send_nowait(encode(requested.failed("settled over there", reason="cancelled")))

    def answered(self, answer: Any) -> None:
        arrived: Any = decode(encode(answer))
        if arrived.call_id in self.running:
            if not isinstance(arrived, ToolCallProgress):
                del self.running[arrived.call_id]
                self.bus.arbitration.unwatch(arrived.request_id, arrived.call_id)
            self.bus.publish(arrived)

    async def carry(self, lines: Any) -> None:
        async for line in lines:
            event: Any = decode(line)
            if isinstance(event, ToolCallRequested):
                self.far.arbitration.adopt(event, remaining_seconds=event.timeout_seconds)
            else:
                self.far.publish(event)

    def close(self) -> None:
        for requested in [*self.running.values()]:  # some may not have arrived yet
            self.answered(requested.failed("the relay was closed", reason="cancelled", outcome_unknown=True))

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[None]:
        self.send, lines = anyio.create_memory_object_stream[bytes](1_000)
        dispatcher = ToolDispatcher(self.far, ToolRegistry(CONTRACT_TOOLS), **self.options)
        raised: Exception | None = None
        async with anyio.create_task_group() as group, self.send, lines, dispatcher:
            group.start_soon(self.carry, lines)
            self.far.connect(_ANSWERS, self.answered)
            disconnect = self.bus.connect(ToolCallRequested, self.request)
            try:
                yield
            except Exception as exc:
                raised = exc  # else the group would wrap it
            finally:
                disconnect()
                self.close()
                group.cancel_scope.cancel()
        if raised is not None:
            raise raised


@pytest.mark.parametrize("options", [{}, {"max_concurrency": 3}, {"max_concurrency": 1}], ids=str)
async def test_an_executor_whose_tools_are_elsewhere_is_asked_what_they_saw(options: dict[str, Any]) -> None:
    most = options.get("max_concurrency")
    report = await check_executor(
        lambda bus, _tools: Relay(bus, **options).run(), elsewhere=True, max_concurrency=most, lacks=["sharing"]
    )
    assert len(report.passed) == {None: 34, 3: 35, 1: 23}[most], report


# ------------------------------------------------------------------------------------------------- wrong ones

WRONG: dict[str, tuple[type[wrong.Right], ...]] = {
    "text": (wrong.StripsTexts,),
    "sync-handlers": (wrong.AwaitsEverything,),
    "values": (wrong.WritesValuesAsPython, wrong.ForgetsData),
    "whole-results": (wrong.ForgetsParts, wrong.ForgetsWhatWasAffected),
    "unserializable-results": (wrong.WritesWhatItCannot,),
    "ids": (wrong.ForgetsMetadata, wrong.ForgetsTheParentOfFailures),
    "tool-errors": (wrong.HidesToolErrors, wrong.NeverRetryable),
    "internal-errors": (wrong.TellsSecrets,),
    "base-exceptions": (wrong.LetsExitsThrough,),
    "sync-failures": (wrong.TellsSecretsOfThreads,),
    "arguments": (wrong.TrustsArguments,),
    "arguments-untouched": (wrong.SharesArguments,),
    "exactly-once": (wrong.AnswersTwice, wrong.AnnouncesTwice),
    "unknown-tools": (wrong.RefusesUnknownTools,),
    "external-tools": (wrong.TakesExternalTools,),
    "other-pools": (wrong.TakesOtherPools,),
    "before-and-after": (wrong.StaysConnected,),
    "answered-before": (wrong.DoesNotAskWhoWasFirst,),
    "never-opened": (wrong.RunsWhatIsForged,),
    "requested-twice": (wrong.RunsWhatComesAgain,),
    "shared-bus": (wrong.IgnoresItsNeighbours,),
    "many-at-once": (wrong.MixesResultsUp,),
    "side-by-side": (wrong.OneAtATime,),
    "bounds": (wrong.NoBounds, wrong.RunsWhatWasSettled),
    "hanging-handlers": (wrong.WaitsForTheDeaf,),
    "hanging-threads": (wrong.OneThread,),
    "context": (wrong.ForgetsTheKey,),
    "context-variables": (wrong.SharesTheContext,),
    "progress": (wrong.KeepsProgressToItself,),
    "settled-by-others": (wrong.NeverStops, wrong.TellsOfTheStop),
    "late-results": (wrong.AnnouncesLateResults, wrong.TellsLateResultsTwice),
    "no-timers": (wrong.KeepsTimers,),
    "leaving": (wrong.LeavesCallsOpen, wrong.SaysLost),
    "host-cancellation": (wrong.SwallowsTheHostsCancellation,),
    "exceptions-pass": (wrong.GroupsExceptions,),
    "nothing-left": (wrong.LeavesAThread, wrong.LeavesASubscription),
}
"""By check, the executors that fail it."""

ALSO: dict[type[wrong.Right], set[str]] = {
    wrong.OneAtATime: {"hanging-handlers", "hanging-threads"},
    wrong.LeavesCallsOpen: {"host-cancellation"},
    wrong.SaysLost: {"host-cancellation"},
}
"""What an executor that fails one check cannot but fail too."""
SAYS: dict[type[wrong.Right], int] = {wrong.NoBounds: 2, wrong.RunsWhatWasSettled: 2}
"""How many calls at once an executor claims to run, where it claims anything."""
REAL = {wrong.OneAtATime, wrong.OneThread}
"""Those in which threads hang, for which virtual time waits in earnest."""
KINDS = [
    pytest.param(check, kind, id=kind.__name__) for check, kinds in WRONG.items() for kind in kinds if kind not in REAL
]


async def test_a_right_executor_keeps_the_contract() -> None:
    report = await check_executor(wrong.Right)
    assert report.skipped == ("bounds",)


async def failures(kind: type[wrong.Right], patience_seconds: float, only: Sequence[str] | None = None) -> set[str]:
    try:
        with pytest.raises(ContractBroken) as caught:
            await check_executor(kind, only=only, max_concurrency=SAYS.get(kind), patience_seconds=patience_seconds)
    finally:
        while wrong.LeavesAThread.left:
            wrong.LeavesAThread.left.pop().set()
        while wrong.LeavesASubscription.left:
            wrong.LeavesASubscription.left.pop().close()
    return {*caught.value.checks} - ALSO.get(kind, set())


@pytest.mark.parametrize(("check", "kind"), KINDS)
async def test_an_executor_that_is_wrong_in_one_way_fails_the_check_for_it_and_no_other(
    check: str, kind: type[wrong.Right], anyio_backend_name: str
) -> None:
    # Asyncio shows that no other check fails: a right executor passes all checks on both event loops.
    only = None if anyio_backend_name == "asyncio" else [check]
    assert await failures(kind, patience_seconds=5.0, only=only) == {check}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("check", "kind"), [("side-by-side", wrong.OneAtATime), ("hanging-threads", wrong.OneThread)])
async def test_an_executor_that_runs_too_little_at_once_fails_the_check_for_it_and_no_other(
    check: str, kind: type[wrong.Right], anyio_backend: str
) -> None:
    waits = {check} | ALSO.get(kind, set())  # These wait for what never comes, and all others have to pass meanwhile.
    others = [each for each in executor_checks() if each not in waits]
    await check_executor(kind, only=others, max_concurrency=SAYS.get(kind), patience_seconds=60)
    assert await failures(kind, patience_seconds=0.3, only=[*waits]) == {check}


def test_each_check_has_an_executor_that_fails_it() -> None:
    assert list(WRONG) == list(executor_checks())


# ------------------------------------------------------------------------------------------------- the report


async def test_a_report_names_each_check_with_what_was_expected_and_what_came() -> None:
    class Wrong(wrong.StripsTexts, wrong.ForgetsTheKey):
        pass

    with pytest.raises(ContractBroken) as caught:
        await check_executor(Wrong, only=["text", "values", "context"])
    lines = str(caught.value).splitlines()
    assert lines[0] == "the executor breaks its contract in 2 of 3 checks"
    assert lines[2:5] == ["text: the content", r"    expected: ' Zürich 😀\x00\n'", r"    got:      'Zürich 😀\x00'"]
    assert caught.value.checks == ("text", "context")


async def test_an_executor_that_raises_anything_is_reported_and_the_other_checks_go_on() -> None:
    class Breaks(wrong.Right):
        async def __aenter__(self) -> wrong.Right:
            raise ZeroDivisionError("a bug of mine")

    with pytest.raises(ContractBroken, match="ZeroDivisionError: a bug of mine") as caught:
        await check_executor(Breaks, only=["text", "values"])
    assert caught.value.checks == ("text", "values")


async def test_what_an_executor_says_that_it_cannot_is_left_out() -> None:
    report = await check_executor(wrong.Right, lacks=["sync", "context", "notes"])
    assert {"sync-handlers", "sync-failures", "context", "progress", "leaving"} < set(report.skipped)
    with pytest.raises(ConfigurationError, match="may lack sync, context, progress, notes, sharing, not threads"):
        await check_executor(wrong.Right, lacks=["threads"])  # type: ignore[list-item]


async def test_checks_can_be_chosen_and_left_out() -> None:
    report = await check_executor(wrong.Right, only=["text", "values", "bounds"], without=["values"])
    assert (report.passed, report.skipped) == (("text",), ("bounds",))
    with pytest.raises(ConfigurationError, match="there are no checks txet"):
        await check_executor(wrong.Right, only=["txet"])


def test_every_check_says_what_it_holds() -> None:
    assert all(holds.endswith(".") and len(holds) > 30 for holds in executor_checks().values())


def test_the_how_to_page_lists_the_checks() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "write-an-executor.md"
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert rows == [f"| `{name}` | {holds} |" for name, holds in executor_checks().items()]
