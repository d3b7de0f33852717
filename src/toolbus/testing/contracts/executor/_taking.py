"""Checks of which calls an executor runs, and how often."""

from __future__ import annotations

from ....events import DeadLetter, ToolCallCompleted, ToolCallLate, ToolCallRequested
from ....records import replace
from ...contract_tools import CONTRACT_TOOLS
from ._bench import Bench, Caller, check


@check("exactly-once")
async def exactly_once(bench: Bench) -> None:
    """Each call that the executor accepts gets exactly one terminal event, no late event and no dead letter."""
    async with bench.executor() as caller:
        calls = [
            caller.ask("contract_echo", said="a"),
            caller.ask("contract_fail", way="tool_error", text="no"),
            caller.ask("contract_fail", way="error", text="no"),
            caller.ask("contract_unwritable", kind="bytes"),
            caller.ask("contract_add", a="one"),
            caller.ask("contract_value"),
        ]
        await caller.answers(calls)
        await caller.quiet()
        for each in calls:
            bench.expect(f"terminal events of {each.name}", 1, len(caller.endings(each)))
        beside = [each.type for each in caller.events if isinstance(each, (ToolCallLate, DeadLetter))]
        bench.expect("other events", [], beside)


@check("unknown-tools")
async def unknown_tools(bench: Bench) -> None:
    """Calls of tools that the executor does not have are left to others."""
    async with bench.executor() as caller:
        await _is_ignored(bench, caller, caller.ask("contract_unknown", a=1))


@check("external-tools")
async def external_tools(bench: Bench) -> None:
    """Calls of tools that are marked as external are left to others, though the executor has these tools."""
    async with bench.executor() as caller:
        await _is_ignored(bench, caller, caller.ask("contract_external"))


@check("other-pools")
async def other_pools(bench: Bench) -> None:
    """Calls of tools in a pool that the executor does not serve are left to others, though it has these tools."""
    async with bench.executor() as caller:
        await _is_ignored(bench, caller, caller.ask("contract_elsewhere"))


async def _is_ignored(bench: Bench, caller: Caller, requested: ToolCallRequested) -> None:
    await caller.quiet()
    bench.expect(f"terminal events of {requested.name}", [], caller.endings(requested))
    if not caller.endings(requested):
        caller.settle(requested, "completed")  # another executor could answer it


@check("before-and-after")
async def before_and_after(bench: Bench) -> None:
    """Calls that were requested before the block was entered, or after it was left, are not run."""
    caller = bench.caller()
    before = caller.ask("contract_echo", said="before")
    async with bench.make(caller.bus, CONTRACT_TOOLS):
        await caller.quiet()
    after = caller.ask("contract_echo", said="after")
    async with bench.executor() as another:  # wait as long as an answer would take
        await another.quiet()
    bench.expect("terminal events of a call from before", [], caller.endings(before))
    bench.expect("terminal events of a call from after", [], caller.endings(after))


@check("answered-before", "notes")
async def answered_before(bench: Bench) -> None:
    """A call that already has an answer when it arrives is left as it is: its handler does not run."""
    caller = bench.caller()
    key = f"answered before {caller.request_id}"

    def answer(requested: ToolCallRequested) -> None:
        if requested.name == "contract_add":
            caller.bus.publish(requested.completed("quicker"))

    caller.bus.connect(ToolCallRequested, answer)
    async with bench.make(caller.bus, CONTRACT_TOOLS):
        requested = caller.ask("contract_add", a=1, b=2, key=key)
        await caller.quiet()
        bench.expect("notes of the handler", [], await caller.notes(key))
        bench.expect("late answers", 0, len(caller.late_events(requested)))


@check("never-opened", "notes")
async def never_opened(bench: Bench) -> None:
    """A call that no session has opened on the bus is not run: its request is forged, or comes from elsewhere."""
    async with bench.executor() as caller:
        key = f"never opened {caller.request_id}"
        forged = replace(caller.open("contract_add", a=1, b=2, key=key), call_id="of nobody")
        caller.bus.publish(forged)
        await caller.quiet()
        bench.expect("notes of the handler", [], await caller.notes(key))
        bench.expect("terminal events of a call that nobody opened", [], caller.endings(forged))


@check("requested-twice", "notes")
async def requested_twice(bench: Bench) -> None:
    """A call that is requested a second time, while it runs or after it is done, is run once."""
    async with bench.executor() as caller:
        key = f"requested twice {caller.request_id}"
        requested = caller.ask("contract_add", a=1, b=2, key=key)
        caller.bus.publish(requested)
        await caller.answer(requested)
        caller.bus.publish(requested)
        await caller.quiet()
        bench.expect("notes of the handler", ["ran"], await caller.notes(key))
        bench.expect(
            "terminal events, and late ones",
            (1, 0),
            (len(caller.endings(requested)), len(caller.late_events(requested))),
        )


@check("shared-bus", "notes", "sharing")
async def shared_bus(bench: Bench) -> None:
    """If several executors on a bus have a tool, one of them runs a call, and the others ignore it."""
    async with bench.executor() as caller, bench.make(caller.bus, CONTRACT_TOOLS):
        key = f"shared bus {caller.request_id}"
        calls = [caller.ask("contract_add", a=number, b=1, key=key) for number in range(5)]
        answers = await caller.answers(calls)
        await caller.quiet()
        bench.expect("notes of the handlers", ["ran"] * 5, await caller.notes(key))
        data = [each.data if isinstance(each, ToolCallCompleted) else each for each in answers]
        bench.expect("the results", [1, 2, 3, 4, 5], data)
        bench.expect("late answers", 0, sum(len(caller.late_events(each)) for each in calls))
