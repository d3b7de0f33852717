"""Checks of how a toolset is opened and closed, and of the behaviour of its tools before and after."""

from __future__ import annotations

from collections.abc import Iterable

import anyio

from ....errors import ToolbusError
from ....events import ToolCallCompleted
from ....tools import Tool
from .._checks import expect_exceptions_pass
from ._bench import EXAMPLES, ToolsetBench, in_words, said, steps, toolset_check, until
from ._running import leaves_nothing

_MOMENTS = (0, 1, 2, 5, 10, 30)  # steps after which an opening is cancelled


@toolset_check("opening", EXAMPLES)
async def opening(bench: ToolsetBench) -> None:
    """An open toolset has its tools in its registry, and they work; each toolset of the kind has the same tools."""
    names: list[list[str]] = []
    for _ in range(2):
        async with bench.opened() as toolset:
            names.append([*toolset.registry.specs])
            await bench.work(toolset.registry)
    bench.require("the tools in the registry of an open toolset", "some", "none", ok=bool(names[0]))
    bench.expect("the tools of another toolset", names[0], names[1])


@toolset_check("before", EXAMPLES)
async def before(bench: ToolsetBench) -> None:
    """Before a toolset is open, its registry does not have its tools yet, or their calls fail at once and say why."""
    toolset = bench.make()
    await _fail_at_once(bench, [*toolset.registry], "before it is open")


@toolset_check("closing", EXAMPLES)
async def closing(bench: ToolsetBench) -> None:
    """After a toolset is closed, its registry is empty, and calls of tools that somebody still has fail and say why."""
    async with bench.opened() as toolset:
        held = [*toolset.registry]
        await bench.work(held)
    bench.expect("the tools in the registry of a closed toolset", [], [*toolset.registry.specs])
    await _fail_at_once(bench, held, "when it is closed")


async def _fail_at_once(bench: ToolsetBench, tools: Iterable[Tool], when: str) -> None:
    """Check that the examples of these tools fail, with a reason, within the grace."""
    there = {each.name: each for each in tools}
    async with bench.calls(there.values()) as calls:
        for example in bench.examples:
            if example.name not in there:
                continue
            requested = calls.ask(example)
            with anyio.move_on_after(bench.grace_seconds):
                await calls.until(lambda requested=requested: bool(calls.endings(requested)))
            if not (endings := calls.endings(requested)):
                bench.fail(f"the call of {example.name} {when}", "failed at once", "it waits")
                calls.settle(requested)
                continue
            bench.require(
                f"the call of {example.name} {when}", "failed, and says why", said(endings[0]), ok=in_words(endings[0])
            )


@toolset_check("again", EXAMPLES)
async def again(bench: ToolsetBench) -> None:
    """A closed toolset can be opened again, and works; or it says clearly that it cannot, by a `ToolbusError`."""
    toolset = bench.make()
    names: list[str] = []
    async with toolset:
        names += toolset.registry.specs
    try:
        async with toolset:
            bench.expect("the tools of a toolset that is opened again", names, [*toolset.registry.specs])
            await bench.work(toolset.registry, ", when it is opened again")
    except ToolbusError as exc:
        bench.require("the error of a toolset that cannot be opened again", "a sentence", "nothing", ok=bool(str(exc)))


@toolset_check("entered-twice", EXAMPLES)
async def entered_twice(bench: ToolsetBench) -> None:
    """Opening an open toolset a second time is a `ToolbusError`, and the toolset works as before."""
    async with bench.opened() as toolset:
        try:
            async with toolset:
                bench.fail("an open toolset that is entered", "refused with a ToolbusError", "it was entered")
        except ToolbusError:
            pass
        else:
            return  # the inner block has closed it
        await bench.work(toolset.registry, ", after a second opening")


@toolset_check("two-at-once", EXAMPLES)
async def two_at_once(bench: ToolsetBench) -> None:
    """Two toolsets can be open at once, each with its own tools; after one is closed, the other one still works."""
    async with bench.opened() as first:
        async with bench.opened() as second:
            bench.require(
                "the registries of two toolsets", "two", "they have one", ok=first.registry is not second.registry
            )
            shared = [each.name for each in first.registry if each is second.registry.get(each.name)]
            bench.expect("tools that two have in common", [], shared)
            await bench.work(first.registry, ", beside another toolset")
            await bench.work(second.registry, ", beside another toolset")
        await bench.work(first.registry, ", when another toolset is closed")


@toolset_check("closing-in-calls", EXAMPLES)
async def closing_in_calls(bench: ToolsetBench) -> None:
    """A toolset closes within the grace though calls run; each call ends, with a result or a failure that says why."""
    for moment in (0, 1, 3, None):
        async with bench.calls(()) as calls:
            async with bench.opened() as toolset:
                calls.add(toolset.registry)
                requested = [calls.ask(each) for each in bench.examples]
                await until(moment)
                began = anyio.current_time()
            took = anyio.current_time() - began
            ok = took <= bench.grace_seconds
            bench.require("closing while calls run", f"{bench.grace_seconds:g} s at most", f"{took:.1f} s", ok=ok)
            for answer in await calls.answers(requested):
                fine = isinstance(answer, ToolCallCompleted) or in_words(answer)
                label = f"the call of {answer.name} during which it was closed"
                bench.require(label, "a result, or a failure that says why", said(answer), ok=fine)


@toolset_check("exceptions-pass")
async def exceptions_pass(bench: ToolsetBench) -> None:
    """An exception that the block raises comes out unchanged, not in a group."""
    await expect_exceptions_pass(bench, bench.opened())


@toolset_check("cancelled")
async def cancelled(bench: ToolsetBench) -> None:
    """A cancellation passes at any moment, while the toolset opens and while it is open, and closes the toolset."""
    for moment in (*_MOMENTS, None):
        toolset = bench.make()
        swallowed = False
        async with leaves_nothing(bench):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_cancel, scope, moment)
                    async with toolset:
                        if moment is None:
                            scope.cancel()
                        await anyio.sleep_forever()
                swallowed = True
            swallowed = swallowed or not scope.cancelled_caught
        bench.require("the host's cancellation", "reaches the host", "it was swallowed", ok=not swallowed)
        bench.expect("the tools in the registry after it", [], [*toolset.registry.specs])


async def _cancel(scope: anyio.CancelScope, moment: int | None) -> None:
    if moment is not None:
        await steps(moment)
        scope.cancel()


@toolset_check("all-closed", EXAMPLES)
async def all_closed(bench: ToolsetBench) -> None:
    """After the block no task, thread, process, open file or temporary file is left, though a call was running."""
    async with bench.opened() as toolset:  # a first run makes the things that are made once
        await bench.work(toolset.registry)
    async with leaves_nothing(bench), bench.calls(()) as calls, bench.opened() as toolset:
        calls.add(toolset.registry)
        await calls.answer(calls.ask(bench.examples[0]))
        for each in bench.examples:
            calls.ask(each)
        await steps(1)
