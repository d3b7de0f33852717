"""`Runtime.statistics` and `Runtime.health`: numbers of the parts in one value, and the answer to a probe."""

from __future__ import annotations

import sys
import threading
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from support.journaled import JournaledStore
from toolbus import Runtime, tool
from toolbus.durability import OnStoreFailure
from toolbus.errors import ProviderRejected, StoreUnavailable
from toolbus.events import ApprovalRequested, ModelResponded
from toolbus.storage import Entry
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, calls, error, text
from toolbus.toolsets.sub_request import sub_request_tool

pytestmark = pytest.mark.anyio


@tool(needs_approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


@tool
async def look() -> str:
    """Look."""
    return "seen"


async def test_requests_that_have_failed_are_counted_by_the_code_of_the_error() -> None:
    steps = [error(ProviderRejected("answered 401")), text("Fine."), error(ProviderRejected("answered 401"))]
    async with Runtime(ScriptedProvider(steps)) as runtime:
        for expected in ({"provider_rejected": 1}, {"provider_rejected": 1}, {"provider_rejected": 2}):
            await runtime.start("Hello?").result()
            found = runtime.statistics()
            assert (found.failed, found.appends, found.append_seconds) == (expected, 0, 0)
            assert (found.store_calls_pending, found.refused) == (0, 0)


async def test_one_value_has_the_numbers_of_the_runtime_and_its_parts() -> None:
    model = ScriptedProvider([calls(("pay", {})), text("Paid.")])
    store = MemoryStore(journal=True)
    async with Runtime(model, tools=[pay], store=store, max_sessions=1, max_queued=2) as runtime:
        async with runtime.bus.subscribe(ApprovalRequested) as questions:
            first = runtime.start("Pay.")
            question = await anext(questions)
            second = runtime.start("Wait.")
            found = runtime.statistics()
            assert (found.running, found.queued, found.free_capacity, found.pending_approvals) == (1, 1, 1, 1)
            assert found.phases == {"ready": 0, "model": 0, "tools": 0, "people": 1}
            assert found.leases == 1, "the other one has not begun"
            assert found.store_calls_pending == 0
            assert found.dispatcher == runtime.dispatcher.statistics()
            assert found.bus == runtime.bus.statistics()
            second.cancel()
            runtime.bus.publish(question.decided(approved=True))
            await first.result()
            await second.result()
        found = runtime.statistics()
        assert (found.phases["people"], found.pending_approvals, found.queued) == (0, 0, 0)
        assert (found.appends > 3, found.append_failures, found.store_unavailable) == (True, 0, False)
        assert found.append_seconds > 0


@pytest.mark.parametrize("is_below", [False, True])
async def test_a_request_that_waits_for_a_background_call_does_not_wait_for_a_person(is_below: bool) -> None:
    go = anyio.Event()

    @tool(background=True)
    async def order() -> str:
        """Order."""
        await go.wait()
        return "ordered"

    model = ScriptedProvider([calls(("order", {})), text("I have ordered."), text("It is there.")])
    above = ScriptedProvider([calls(("buy", {"task": "Order."})), text("Done.")])
    buy = sub_request_tool("buy", "Buy.", provider=model, tools=[order])
    options: Any = {"tools": [buy], "provider": above} if is_below else {"tools": [order]}
    async with Runtime(model) as runtime, runtime.bus.subscribe(ModelResponded) as replies:
        session = runtime.start("Order.", **options)
        while (await anext(replies)).message.text != "I have ordered.":
            pass
        await anyio.wait_all_tasks_blocked()
        assert runtime.statistics().phases == {"ready": 0, "model": 0, "tools": 1, "people": 0}
        go.set()
        assert (await session.result()).ok


async def test_a_runtime_is_ready_until_it_is_full_or_closes() -> None:
    runtime = Runtime(ScriptedProvider([calls(("pay", {})), text("Paid.")]), tools=[pay], max_sessions=1, max_queued=0)
    assert not runtime.health().ready
    assert runtime.health().reasons == ("the runtime is not running",)
    async with runtime:
        assert (runtime.health().ready, runtime.health().reasons) == (True, ())
        async with runtime.bus.subscribe(ApprovalRequested) as questions:
            session = runtime.start("Pay.")
            question = await anext(questions)
            assert not runtime.health().ready
            assert runtime.health().reasons == ("no more requests are accepted: 1 running, 0 waiting",)
            runtime.bus.publish(question.decided(approved=True))
            await session.result()
        await runtime.drain()
        assert runtime.health().reasons == ("the runtime is closing",)
        assert not runtime.health().degraded


async def test_a_store_that_is_away_and_a_call_that_does_not_end_degrade_a_runtime() -> None:
    began, go = anyio.Event(), anyio.Event()

    @tool
    async def stubborn() -> str:
        """Ignore the cancellation."""
        began.set()
        with anyio.CancelScope(shield=True):
            await go.wait()
        return "late"

    async def fails() -> None:
        raise StoreUnavailable("away")

    store = MemoryStore(journal=True)
    async with Runtime(ScriptedProvider([calls(("stubborn", {}))]), tools=[stubborn], store=store) as runtime:
        session = runtime.start("Go.")
        with anyio.fail_after(30):
            await began.wait()
            session.cancel()
            await session.result()
        health = runtime.health()
        assert health.degraded
        assert health.reasons == ("cancelled calls that still run: 1 (stubborn)",)
        go.set()
        writer = runtime._journal_writer  # pyright: ignore[reportPrivateUsage]
        assert writer is not None
        await writer._pending.attempt(fails())  # pyright: ignore[reportPrivateUsage]
        assert "the store fails" in runtime.health().reasons


@pytest.mark.parametrize("on_store_failure", ["stop", "warn"])
async def test_a_store_that_refuses_a_step_degrades_a_runtime_until_it_takes_one(
    on_store_failure: OnStoreFailure, caplog: pytest.LogCaptureFixture
) -> None:
    fails = False
    healths: list[tuple[str, ...]] = []

    async def before(_entry: Entry) -> None:
        if fails:
            raise StoreUnavailable("no route to host")

    @tool
    async def cut() -> str:
        """Lose the store."""
        nonlocal fails
        fails = True
        return "cut"

    @tool
    async def mend() -> str:
        """Find the store again."""
        nonlocal fails
        healths.append(runtime.health().reasons)
        fails = False
        return "mended"

    provider = ScriptedProvider([calls(("cut", {})), calls(("mend", {})), text("done")])
    store = JournaledStore(before)
    runtime = Runtime(provider, tools=[cut, mend], store=store, on_store_failure=on_store_failure)
    async with runtime:
        result = await runtime.start("go").result()
        if on_store_failure == "stop":
            healths.append(runtime.health().reasons)
            fails = False
            await runtime.start("again", provider=ScriptedProvider([text("done")])).result()
            with anyio.fail_after(30):
                while runtime.health().degraded:  # until the end of the first request is written as well
                    await anyio.lowlevel.checkpoint()
        assert result.outcome == ("failed" if on_store_failure == "stop" else "completed")
        assert healths == [("the store fails",)]
        assert runtime.health().reasons == ()
        assert runtime.statistics().leases == 0
    lines = [each.getMessage() for each in caplog.records if each.getMessage().startswith("the store")]
    assert lines[0].startswith("the store failed, and the call is repeated until it answers: ")
    assert len([each for each in lines if "failed" in each]) == 1


@pytest.mark.repeats("statistics in the middle of everything else")
async def test_numbers_may_be_read_in_any_thread_while_requests_run() -> None:
    ends, read = threading.Event(), 0

    def keep_reading() -> None:
        nonlocal read
        while not ends.is_set():
            runtime.statistics()
            runtime.health()
            read += 1

    model = ScriptedProvider(lambda asked: text("ok") if len(asked.messages) > 1 else calls(("look", {})))
    store, before = MemoryStore(journal=True), sys.getswitchinterval()
    async with Runtime(model, tools=[look], store=store, detailed_statistics=True) as runtime:
        sys.setswitchinterval(1e-6)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.to_thread.run_sync, keep_reading)
                for _ in range(10):
                    async with anyio.create_task_group() as requests:
                        for _ in range(20):
                            requests.start_soon(runtime.run, "go")
                ends.set()
        finally:
            sys.setswitchinterval(before)
    assert read > 20
    assert runtime.statistics().tools["look"].calls == 200
