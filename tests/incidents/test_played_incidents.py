"""Incidents in virtual time: the lines, metrics and health that an operator sees are those of the table's row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from incidents.incident_table import INCIDENTS, PAGE, page
from incidents.operator_view import Operator
from support.collected import Collected
from support.journaled import JournaledStore
from support.resuming import virtual_wall
from toolbus import Limits, Runtime, tool
from toolbus.errors import Overloaded, ProviderRejected, ProviderUnavailable, StoreUnavailable
from toolbus.events import StatusChanged
from toolbus.storage import Entry
from toolbus.testing import ScriptedProvider, advance, calls, error, hang, settle, text, virtual_backends

anyio_backend = virtual_backends()


def test_the_page_has_the_table_of_the_incidents():
    written = PAGE.read_text(encoding="utf-8")
    assert written == page(written), "run tests/incidents/incident_table.py as a program"
    assert len(INCIDENTS) == 11


async def test_the_store_is_away():
    is_away = False

    async def before(_entry: Entry) -> None:
        if is_away:
            raise StoreUnavailable("no route to host")

    def unless_away(call: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def called(*arguments: object) -> object:
            await before(arguments[0])  # type: ignore[arg-type]
            return await call(*arguments)

        return called

    @tool(idempotent=True)
    async def work() -> str:
        """Take a second."""
        await anyio.sleep(1)
        return "done"

    with Operator("The store does not answer") as operator:
        store = JournaledStore(before)
        for name in ("release", "abandon", "request", "renew"):
            setattr(store.journal, name, unless_away(getattr(store.journal, name)))
        model = ScriptedProvider(lambda asked: text("ok") if len(asked.messages) > 1 else calls(("work", {})))
        async with Runtime(model, tools=[work], store=store, instrumentation=[operator.telemetry]) as runtime:
            begun = runtime.start("one")
            await begun.accepted()
            is_away = True
            assert (await begun.result()).resumable
            await runtime.start("refused").result()
            operator.assert_seen(runtime)
            is_away = False
            await advance(5)
            (again,) = await runtime.resume()
            assert (await again.result()).outcome == "completed"
            await advance(5)
            assert runtime.health().reasons == ()


async def test_a_model_is_flapping():
    busy = error(ProviderUnavailable("busy", retryable=True))
    with Operator("A model fails often") as operator:
        async with Runtime(ScriptedProvider([busy, busy, text("ok")]), instrumentation=[operator.telemetry]) as runtime:
            assert (await runtime.run("go")).text == "ok"
            operator.assert_seen(runtime)
    assert len(operator.lines) == 2


async def test_a_model_refuses_every_request():
    refused = error(ProviderRejected("openai answered 401 (Unauthorized)"))
    with Operator("A model refuses every request") as operator:
        async with Runtime(ScriptedProvider([refused] * 2), instrumentation=[operator.telemetry]) as runtime:
            for _ in range(2):
                await runtime.start("go").result()
            operator.assert_seen(runtime)
            assert runtime.statistics().failed == {"provider_rejected": 2}


async def test_a_tool_hangs():
    let_go = anyio.Event()

    @tool
    async def hang() -> str:
        """Ignore the cancellation."""
        with anyio.CancelScope(shield=True):
            await let_go.wait()
        await anyio.lowlevel.checkpoint()
        raise AssertionError

    with Operator("A tool hangs") as operator:
        model = ScriptedProvider([calls(("hang", {})), text("sorry")])
        limits = Limits(tool_timeout_seconds=2)
        async with Runtime(model, tools=[hang], limits=limits, instrumentation=[operator.telemetry]) as runtime:
            await runtime.run("go")
            await advance(10)
            assert runtime.statistics().dispatcher.overdue == ("hang",)
            health = runtime.health()
            assert "toolbus.tool.overdue" in operator.troubles
            let_go.set()
            await advance(1)
            assert health.degraded
            assert runtime.health().reasons == ()
            operator.assert_seen(runtime, health)  # the metric of the handler's time comes with its end


async def test_the_queue_is_full():
    with Operator("The queue is full") as operator:
        runtime = Runtime(
            ScriptedProvider([hang()]), max_sessions=1, max_queued=1, instrumentation=[operator.telemetry]
        )
        async with runtime:
            sessions = [runtime.start("go") for _ in range(2)]
            await settle()
            for _ in range(3):
                with pytest.raises(Overloaded):
                    runtime.start("one too many")
            operator.assert_seen(runtime)
            assert runtime.statistics().refused == 3
            for each in reversed(sessions):
                each.cancel()
                await each.result()
            assert runtime.health().reasons == ()


async def test_a_subscriber_is_slow():
    with Operator("A subscriber is slow") as operator:
        model = ScriptedProvider([text("a long reply in many pieces " * 20)])
        async with Runtime(model, instrumentation=[operator.telemetry]) as runtime:
            async with runtime.bus.subscribe(StatusChanged, capacity=1, name="page"):
                await runtime.run("go")
                await runtime.run("go", provider=ScriptedProvider([text("ok")]))
            operator.assert_seen(runtime)


async def test_approvals_are_forgotten():
    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    with Operator("Approvals are overdue") as operator:
        model = ScriptedProvider([calls(("pay", {})), text("done")])
        runtime = Runtime(
            model, tools=[pay], on_approval="wait", remind_after_seconds=900, instrumentation=[operator.telemetry]
        )
        async with runtime:
            session = runtime.start("go")
            await advance(1000)
            operator.assert_seen(runtime)
            (question,) = runtime.pending_approvals()
            session.approve(question)
            await session.result()
            assert runtime.health().reasons == ()


async def test_a_lease_is_lost():
    with virtual_wall() as wall, Operator("A lease is lost") as operator:
        store = JournaledStore()
        stale = Runtime(ScriptedProvider([hang()]), store=store, lease_seconds=3, instrumentation=[operator.telemetry])
        fresh = Runtime(ScriptedProvider([text("done")]), store=store)
        async with stale, fresh:
            session = stale.start("go")
            await session.accepted()
            wall.put_to(wall() + 3_600)  # as if the process had been stopped for an hour
            (again,) = await fresh.resume()
            await advance(2)
            assert (await session.result()).resumable
            assert (await again.result()).text == "done"
            operator.assert_seen(stale)


async def test_the_questions_of_a_request_that_is_lost_or_left_wait_no_more():
    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    def asking() -> ScriptedProvider:
        return ScriptedProvider([calls(("pay", {})), text("done")])

    def waiting() -> list[int]:
        return [value for _, value in collected.metrics["toolbus.approvals.pending"]]

    collected = Collected()
    with virtual_wall() as wall:
        store = JournaledStore()
        stale = Runtime(asking(), tools=[pay], store=store, lease_seconds=3, instrumentation=[collected.telemetry])
        async with stale, Runtime(asking(), tools=[pay], store=store) as fresh:
            lost = stale.start("lost")
            await settle()
            assert waiting() == [1]
            wall.put_to(wall() + 3_600)
            (again,) = await fresh.resume()
            await advance(2)
            assert (await lost.result()).resumable
            assert waiting() == [0]
            again.cancel()
            await again.result()
