"""Checks of which calls an executor runs, and how often."""

from __future__ import annotations

from dataclasses import replace

from ....events import DeadLetter, ToolCallCompleted, ToolCallLate, ToolCallRequested
from ...contract_tools import CONTRACT_TOOLS
from ._bench import Bench, Desk, check

__all__: list[str] = []


@check("exactly-once")
async def exactly_once(bench: Bench) -> None:
    """Each call that the executor accepts gets exactly one terminal event, no late event and no dead letter."""
    async with bench.executor() as desk:
        calls = [
            desk.ask("contract_echo", said="a"),
            desk.ask("contract_fail", way="tool_error", text="no"),
            desk.ask("contract_fail", way="error", text="no"),
            desk.ask("contract_unwritable", kind="bytes"),
            desk.ask("contract_add", a="one"),
            desk.ask("contract_value"),
        ]
        await desk.answers(calls)
        await desk.quiet()
        for each in calls:
            bench.expect(f"terminal events of {each.name}", 1, len(desk.endings(each)))
        beside = [each.type for each in desk.events if isinstance(each, (ToolCallLate, DeadLetter))]
        bench.expect("other events", [], beside)


@check("unknown-tools")
async def unknown_tools(bench: Bench) -> None:
    """Calls of tools that the executor does not have are left to others."""
    async with bench.executor() as desk:
        await _left_alone(bench, desk, desk.ask("contract_unknown", a=1))


@check("external-tools")
async def external_tools(bench: Bench) -> None:
    """Calls of tools that are marked as external are left to others, though the executor has these tools."""
    async with bench.executor() as desk:
        await _left_alone(bench, desk, desk.ask("contract_external"))


async def _left_alone(bench: Bench, desk: Desk, requested: ToolCallRequested) -> None:
    await desk.quiet()
    bench.expect(f"terminal events of {requested.name}", [], desk.endings(requested))
    if not desk.endings(requested):
        desk.settle(requested, "completed")  # another executor could answer it


@check("before-and-after")
async def before_and_after(bench: Bench) -> None:
    """Calls that were requested before the block was entered, or after it was left, are not run."""
    desk = bench.desk()
    before = desk.ask("contract_echo", said="before")
    async with bench.make(desk.bus, CONTRACT_TOOLS):
        await desk.quiet()
    after = desk.ask("contract_echo", said="after")
    async with bench.executor() as another:  # wait as long as an answer would take
        await another.quiet()
    bench.expect("terminal events of a call from before", [], desk.endings(before))
    bench.expect("terminal events of a call from after", [], desk.endings(after))


@check("answered-before", "notes")
async def answered_before(bench: Bench) -> None:
    """A call that already has an answer when it arrives is left as it is: its handler does not run."""
    desk = bench.desk()
    key = f"answered before {desk.request_id}"

    def answer(requested: ToolCallRequested) -> None:
        if requested.name == "contract_add":
            desk.bus.publish(requested.completed("quicker"))

    desk.bus.connect(ToolCallRequested, answer)
    async with bench.make(desk.bus, CONTRACT_TOOLS):
        requested = desk.ask("contract_add", a=1, b=2, key=key)
        await desk.quiet()
        bench.expect("notes of the handler", [], await desk.notes(key))
        bench.expect("late answers", 0, len(desk.lates(requested)))


@check("never-opened", "notes")
async def never_opened(bench: Bench) -> None:
    """A call that no session has opened on the bus is not run: its request is forged, or comes from elsewhere."""
    async with bench.executor() as desk:
        key = f"never opened {desk.request_id}"
        forged = replace(desk.open("contract_add", a=1, b=2, key=key), call_id="of nobody")
        desk.bus.publish(forged)
        await desk.quiet()
        bench.expect("notes of the handler", [], await desk.notes(key))
        bench.expect("terminal events of a call that nobody opened", [], desk.endings(forged))


@check("told-twice", "notes")
async def told_twice(bench: Bench) -> None:
    """A call that is requested a second time, while it runs or after it is done, is run once."""
    async with bench.executor() as desk:
        key = f"told twice {desk.request_id}"
        requested = desk.ask("contract_add", a=1, b=2, key=key)
        desk.bus.publish(requested)
        await desk.answer(requested)
        desk.bus.publish(requested)
        await desk.quiet()
        bench.expect("notes of the handler", ["ran"], await desk.notes(key))
        bench.expect(
            "terminal events, and late ones", (1, 0), (len(desk.endings(requested)), len(desk.lates(requested)))
        )


@check("shared-bus", "notes", "sharing")
async def shared_bus(bench: Bench) -> None:
    """If several executors on a bus have a tool, one of them runs a call, and the others ignore it."""
    async with bench.executor() as desk, bench.make(desk.bus, CONTRACT_TOOLS):
        key = f"shared bus {desk.request_id}"
        calls = [desk.ask("contract_add", a=number, b=1, key=key) for number in range(5)]
        answers = await desk.answers(calls)
        await desk.quiet()
        bench.expect("notes of the handlers", ["ran"] * 5, await desk.notes(key))
        data = [each.data if isinstance(each, ToolCallCompleted) else each for each in answers]
        bench.expect("the results", [1, 2, 3, 4, 5], data)
        bench.expect("late answers", 0, sum(len(desk.lates(each)) for each in calls))
