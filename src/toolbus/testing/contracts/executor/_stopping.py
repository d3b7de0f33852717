"""Checks of how calls are stopped: when somebody else settles them, and when the executor is left."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from ....events import ToolCallCompleted, ToolCallFailed, ToolCallRequested
from ...census import Census
from ...contract_tools import CONTRACT_TOOLS
from .._checks import expect_exceptions_pass, expect_nothing_left
from ._bench import Bench, Caller, check


@check("settled-by-others", "notes")
async def settled_by_others(bench: Bench) -> None:
    """After a terminal event from somebody else, the handler is stopped, and nothing more is published about it."""
    async with bench.executor() as caller:
        for how in ("timeout", "cancelled", "completed"):
            requested, key = await caller.held()
            caller.settle(requested, how)
            bench.expect(f"notes of a handler whose call is {how}", ["began", "stopped"], await caller.notes(key, 2))
            await caller.quiet()
            bench.expect(f"terminal events of a call that is {how}", 1, len(caller.endings(requested)))
            bench.expect(f"late events of a call that is {how}", [], caller.late_events(requested))
            await caller.release(key)


@check("late-results", "notes")
async def late_results(bench: Bench) -> None:
    """A result after the call was settled causes no second terminal event, and at most one late event."""
    async with bench.executor() as caller:
        requested, key = await caller.held(deaf=True)
        caller.settle(requested)
        await caller.release(key)
        notes = await caller.notes(key, 2)
        bench.require("notes of a handler that cannot be cancelled", "two", notes, ok=len(notes) == 2)
        await caller.quiet()
        bench.expect("terminal events", 1, len(caller.endings(requested)))
        late = caller.late_events(requested)
        bench.require("late ones", "one at most", late, ok=len(late) <= 1)


@check("no-timers", "notes")
async def no_timers(bench: Bench) -> None:
    """The executor keeps no timers: a call past its deadline continues until it is settled, and its result counts."""
    async with bench.executor() as caller:
        key = f"no timers {caller.request_id}"
        requested = caller.ask("contract_hold", deadline_seconds=bench.quiet_seconds / 4, key=key)
        await caller.notes(key, 1)
        await anyio.sleep(bench.quiet_seconds)
        bench.expect("terminal events past the deadline", [], caller.endings(requested))
        await caller.release(key)
        answer = await caller.answer(requested)
        bench.expect("its result", f"held {key}", answer.content if isinstance(answer, ToolCallCompleted) else answer)


@check("leaving", "notes")
async def leaving(bench: Bench) -> None:
    """Leaving the block stops the running handlers, and answers the open calls as `cancelled`."""
    async with bench.executor() as caller:
        running, key = await caller.held()
        calls = [running]
        if bench.max_concurrency is not None and bench.max_concurrency > 1:  # waiting calls as well
            calls += [caller.ask("contract_hold", key=key) for _ in range(2 * bench.max_concurrency)]
    await _is_over(bench, caller, calls, key)


@check("host-cancellation", "notes")
async def host_cancellation(bench: Bench) -> None:
    """A cancellation of the task that entered the block reaches that task, and stops the calls in the same way."""
    caller = bench.caller()
    held: list[tuple[ToolCallRequested, str]] = []
    with anyio.CancelScope() as scope:
        async with bench.make(caller.bus, CONTRACT_TOOLS):
            held.append(await caller.held())
            scope.cancel()
            await anyio.sleep_forever()
    bench.require("the host's cancellation", "reaches the host", "it was swallowed", ok=scope.cancelled_caught)
    [(requested, key)] = held
    await _is_over(bench, caller, [requested], key)


async def _is_over(bench: Bench, caller: Caller, calls: Sequence[ToolCallRequested], key: str) -> None:
    for each in calls:
        endings = caller.endings(each)
        reasons = [ending.reason if isinstance(ending, ToolCallFailed) else ending for ending in endings]
        bench.expect(f"terminal events of {each.name} when the block is left", ["cancelled"], reasons)
    if bench.elsewhere:  # a message stops the handler there, and it may still be under way
        async with bench.executor() as another:
            notes = await another.notes(key, 2)
    else:
        notes = await caller.notes(key)
        await caller.release(key)
    all_stopped = notes.count("began") == notes.count("stopped") > 0 and "ended" not in notes
    bench.require("notes of the handlers", "each that began was stopped", notes, ok=all_stopped)


@check("exceptions-pass")
async def exceptions_pass(bench: Bench) -> None:
    """An exception that the block raises comes out unchanged, not in a group."""
    await expect_exceptions_pass(bench, bench.executor())


@check("nothing-left")
async def nothing_left(bench: Bench) -> None:
    """After the block no task, thread, process or subscription is left, whatever happened in it."""
    census = Census()
    caller = bench.caller()
    try:
        async with bench.make(caller.bus, CONTRACT_TOOLS):
            await caller.answers(
                [caller.ask("contract_echo", said="a"), caller.ask("contract_fail", way="error", text="b")]
            )
            caller.ask("contract_hold", key=caller.request_id)
            await anyio.sleep(bench.quiet_seconds)
    finally:
        caller.leave()
    await expect_nothing_left(bench, census, caller.bus)
