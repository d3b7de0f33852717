"""Tools that are declared for a pool: an executor of the runtime that serves the pool runs their calls, and nobody else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest

from toolbus import EventBus, Runtime, Tool, ToolContext, ToolRegistry, tool
from toolbus.dispatcher import ToolDispatcher
from toolbus.errors import ConfigurationError
from toolbus.events import ToolCallCompleted, ToolCallFailed, ToolCallLate, ToolCallRequested
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, advance, calls, settle, text, virtual_backends
from toolbus.testing import hang as never

anyio_backend = virtual_backends()


class Deps:
    """What only the executor's side has."""


@tool
async def here() -> str:
    """Run here."""
    return "here"


@tool(pool="gpu")
async def draw() -> str:
    """Draw."""
    return "drawn"


@tool(pool="gpu", idempotent=True)
async def hang() -> None:
    """Draw for ever."""
    await anyio.sleep_forever()


@tool(pool="gpu")
async def with_deps(context: ToolContext[Deps]) -> str:
    """Use what only the executor has."""
    return type(context.deps).__name__


class Local:
    """A pool of this process, with a dispatcher of its own."""

    def __init__(self, *pools: str) -> None:
        self.pools: Collection[str] = pools
        self.dispatchers: list[ToolDispatcher] = []

    def attach(
        self, bus: EventBus, tools: ToolRegistry, on_cancelled: Callable[[], object]
    ) -> AbstractAsyncContextManager[Any]:
        made = ToolDispatcher(bus, tools, pools=self.pools, max_concurrency=8, on_cancelled=on_cancelled)
        self.dispatchers.append(made)
        return self.dispatchers[-1]

    @property
    def ran(self) -> int:
        return max(each.statistics().running_peak for each in self.dispatchers)


def model(*names: str) -> ScriptedProvider:
    wanted: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in names]
    return ScriptedProvider([calls(*wanted), text("Done.")])


async def test_a_call_runs_in_the_executor_of_its_pool_and_the_others_ignore_it() -> None:
    gpu, idle = Local("gpu"), Local("tpu", "npu")
    async with Runtime(model("draw", "here"), tools=[draw, here], executors=[gpu, idle]) as runtime:
        late: list[ToolCallLate] = []
        runtime.bus.connect(ToolCallLate, late.append)
        result = await runtime.run("Draw.")
        assert [call.content for call in result.tool_calls] == ["drawn", "here"]
        assert (gpu.ran, idle.ran, runtime.dispatcher.statistics().running_peak) == (1, 0, 1)
    assert late == []


@pytest.mark.parametrize(("pools", "known"), [((), "none"), (("cpu", "tpu"), "'cpu', 'tpu'")])
async def test_a_pool_that_no_executor_serves_is_refused_when_the_runtime_starts(
    pools: Sequence[str], known: str
) -> None:
    executors = [Local(*pools)] if pools else []
    runtime = Runtime(model("draw"), tools=[here, draw], executors=executors)
    with pytest.raises(ConfigurationError) as raised:
        await runtime.__aenter__()
    assert str(raised.value) == (
        f"tool 'draw' runs in the pool 'gpu', which no executor serves (the pools are: {known}); pass one that does: "
        "Runtime(executors=[...])"
    )
    assert runtime.bus.statistics().receivers == 0


async def test_a_tool_that_a_request_brings_is_refused_before_the_request_begins() -> None:
    async with Runtime(model("here"), tools=[here]) as runtime:
        with pytest.raises(ConfigurationError, match="tool 'draw' runs in the pool 'gpu', which no executor serves"):
            runtime.start("Draw.", tools=[draw])
        assert (await runtime.run("Here.")).text == "Done."


@pytest.mark.parametrize("way", ["at once", "in a conversation", "resumed"])
async def test_a_tool_that_a_sub_request_brings_is_refused_before_the_sub_request_begins(way: str) -> None:
    desk = Runtime(model("draw"), tools=[draw], executors=[Local("gpu")]).as_tool("desk", "Draws.")
    asked = ScriptedProvider([calls(("desk", {"task": "Draw."})), text("Done.")])
    options: Any = {"tools": [desk], "executors": [Local("cpu")], "store": MemoryStore(journal=True)}
    if way == "resumed":
        async with Runtime(ScriptedProvider([never()]), **options) as runtime:
            runtime.start("Draw.")
            await settle()
    async with Runtime(asked, **options) as runtime:
        if way == "resumed":
            (session,) = await runtime.resume()
            result = await session.result()
        else:
            result = await runtime.run("Draw.", conversation_id="c" if way == "in a conversation" else None)
    assert (
        "tool 'draw' runs in the pool 'gpu', which no executor serves (the pools are: 'cpu')"
        in result.tool_calls[0].detail
    )


async def test_a_tool_that_a_request_brings_runs_in_its_pool() -> None:
    gpu = Local("gpu")
    async with Runtime(model("draw"), executors=[gpu]) as runtime:
        assert (await runtime.run("Draw.", tools=[draw])).tool_calls[0].content == "drawn"
    assert gpu.ran == 1


async def test_a_tool_that_was_removed_is_refused_once_though_two_dispatchers_hear_its_call() -> None:
    tools, bus, late = ToolRegistry([draw, here]), EventBus(), list[ToolCallLate]()
    bus.connect(ToolCallLate, late.append)
    bus.connect(ToolCallRequested, lambda requested: tools.remove(requested.name))  # before the dispatchers hear it
    async with Runtime(model("here"), tools=tools, bus=bus, executors=[Local("gpu")]) as runtime:
        result = await runtime.run("Here.")
    assert (result.tool_calls[0].reason, late) == ("unknown_tool", [])


async def test_the_deps_of_a_tool_in_a_pool_are_those_of_its_executor() -> None:
    async with Runtime(model("with_deps"), tools=[with_deps], executors=[Local("gpu")]) as runtime:
        session = runtime.start("Go.")  # without deps, which a tool that runs here would need
        await advance(1)
        assert (await session.result()).tool_calls[0].ok


async def test_an_external_tool_has_no_pool() -> None:
    with pytest.raises(ConfigurationError, match="leave pool out, or give it a handler"):
        tool(name="both", external=True, pool="gpu")(lambda: None)


@pytest.mark.guarantee("G18")
async def test_calls_in_a_pool_are_left_for_resume_when_the_runtime_is_cancelled_from_outside() -> None:
    store, hanging = MemoryStore(journal=True), ScriptedProvider(lambda _request: calls(("hang", {})))
    with anyio.CancelScope() as host:
        async with Runtime(hanging, tools=[hang], executors=[Local("gpu")], store=store, drain_seconds=0) as runtime:
            sessions = [runtime.start("Draw.") for _ in range(8)]
            await advance(1)
            host.cancel()
            await anyio.sleep_forever()
    assert store.journal is not None
    for session in sessions:
        assert (await session.result()).resumable
        facts = [each.fact for each in await store.journal.facts(session.request_id)]
        assert not [each for each in facts if isinstance(each, (ToolCallCompleted, ToolCallFailed))]
    async with Runtime(hanging, tools=[hang], executors=[Local("gpu")], store=store, drain_seconds=0) as runtime:
        assert len(await runtime.resume()) == 8


@pytest.mark.guarantee("G19")
async def test_a_pool_of_this_process_does_not_run_a_call_again_that_may_have_had_its_effect() -> None:
    store, ran = MemoryStore(journal=True), list[str]()

    def recorded(name: str, *, idempotent: bool) -> Tool:
        async def handler() -> str:
            ran.append(name)
            await anyio.sleep(5)
            return name

        return Tool(name, handler=handler, pool="gpu", idempotent=idempotent)

    tools = [recorded("once", idempotent=False), recorded("again", idempotent=True)]

    def runtime() -> Runtime[None]:
        script = ScriptedProvider(lambda asked: text("Done.") if asked.round else calls(("once", {}), ("again", {})))
        return Runtime(script, tools=tools, executors=[Local("gpu")], store=store, drain_seconds=0)

    async with runtime() as first:
        first.start("go")
        await advance(1)
    async with runtime() as second:
        (session,) = await second.resume()
        result = await session.result()
    assert sorted(ran) == ["again", "again", "once"]
    once, again = result.tool_calls
    assert (once.reason, once.outcome_unknown, again.content) == ("interrupted", True, "again")
