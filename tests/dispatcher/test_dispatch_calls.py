"""Calls that go well: which tool runs, with what, in whose context, and what is published of it."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest
from dispatch_desk import Desk, View

from toolbus import EventBus, RequestSession, ToolDispatcher, ToolRegistry, tool
from toolbus.errors import ConfigurationError, NotRunning
from toolbus.events import (
    Event,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallProgress,
    ToolCallRequested,
    ToolCallStarted,
    decode,
    encode,
)
from toolbus.messages import UserMessage
from toolbus.testing import ScriptedProvider, calls, text
from toolbus.tools import Tool, ToolContext

pytestmark = pytest.mark.leaves("buses", reason="requests are opened by hand, and no session ends them")

caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="nobody")


@tool
async def echo(word: str) -> str:
    """Echo."""
    return word


@tool
def shout(word: str) -> dict[str, Any]:
    """Shout, in a thread."""
    return {"word": word.upper(), "main": threading.current_thread() is threading.main_thread()}


async def test_an_async_handler_answers_with_its_value_and_the_calls_ids():
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([echo])):
        desk.ask("echo", word="hi")
        event = await desk.completed()
    assert event.content == "hi"
    assert (event.request_id, event.conversation_id, event.parent_id) == ("r", "conversation", "parent")
    assert (event.call_id, event.name, event.metadata) == ("c", "echo", {"tenant": "t"})
    assert event.duration_seconds >= 0
    assert [type(each) for each in desk.events] == [ToolCallRequested, ToolCallStarted, ToolCallCompleted]
    started = desk.seen(ToolCallStarted)[0]
    assert (started.call_id, started.name, started.attempt) == ("c", "echo", 1)
    assert started.at <= event.at


@pytest.mark.guarantee("G14")
async def test_a_sync_handler_runs_in_a_thread():
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([shout])) as dispatcher:
        desk.ask("shout", word="hi")
        event = await desk.completed()
        assert event.data == {"word": "HI", "main": False}
        assert dispatcher.statistics().threads == 0
        assert dispatcher.statistics().threads_peak == 1


async def test_a_sync_function_may_return_a_coroutine():
    async def twice(word: str) -> Any:
        return echo(word)

    def later(word: str, *, deep: bool) -> Any:
        return twice(word) if deep else echo(word)

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([later])):
        for deep in (False, True):  # also one whose value has to be awaited
            desk.ask("later", word="hi", deep=deep)
            assert (await desk.completed()).content == "hi"


async def test_artifacts_and_what_was_affected_stand_on_the_event():
    from toolbus import ToolResult
    from toolbus.events import Artifact

    @tool
    async def save() -> ToolResult:
        """Save."""
        return ToolResult(message="Saved.", data=1, artifacts=[Artifact(name="a", content="b")], affected=["x"])

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([save])):
        desk.ask("save")
        event = await desk.completed()
    assert (event.content, event.data) == ('{"ok":true,"message":"Saved.","affected":1,"data":1}', 1)
    assert (event.artifacts, event.affected) == ((Artifact(name="a", content="b"),), ("x",))
    assert decode(encode(event)) == event


async def test_handlers_get_copies_and_cannot_change_the_event():
    @tool
    async def collect(items: list[int]) -> int:
        """Collect."""
        items.append(1)
        return len(items)

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([collect])):
        desk.ask("collect", items=[])
        assert (await desk.completed()).data == 1
    assert desk.seen(ToolCallRequested)[0].arguments == {"items": []}


async def test_nobody_is_told_of_a_start_that_nobody_hears():
    bus = EventBus()
    mailbox = bus.arbitration.open_mailbox("r")
    bus.arbitration.open_calls(mailbox, ["c"])
    async with ToolDispatcher(bus, ToolRegistry([echo])):
        before = bus.statistics().position
        bus.publish(
            ToolCallRequested(
                request_id="r",
                call_id="c",
                name="echo",
                arguments={"word": "hi"},
                round=0,
                timeout_seconds=1,
                idempotency_key="",
            )
        )
        with anyio.fail_after(30):
            await mailbox.wait()
    assert bus.statistics().position - before == 2


# ------------------------------------------------------------------------------------------------- context


async def test_the_context_tells_the_call():
    @tool
    async def look(context: ToolContext[dict[str, int]]) -> dict[str, Any]:
        """Look."""
        return {
            "deps": context.deps,
            "said": context.last_user_message,
            "count": len(context.messages),
            "ids": [context.name, context.request_id, context.conversation_id, context.call_id],
            "key": context.idempotency_key,
            "attempt": context.attempt,
            "metadata": context.metadata,
        }

    desk = Desk(view=View(deps={"user": 1}, messages=[UserMessage(content="first"), UserMessage(content="hello")]))
    async with ToolDispatcher(desk.bus, ToolRegistry([look])):
        desk.ask("look")
        assert (await desk.completed()).data == {
            "deps": {"user": 1},
            "said": "hello",
            "count": 2,
            "ids": ["look", "r", "conversation", "c"],
            "key": "key-c",
            "attempt": 1,
            "metadata": {"tenant": "t"},
        }


async def test_without_a_view_of_the_request_the_context_is_empty():
    @tool
    async def look(context: ToolContext[Any]) -> list[Any]:
        """Look."""
        with pytest.raises(NotRunning, match="does not run in this process"):
            await context.ask("Who are you?")
        return [context.deps, list(context.messages)]

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([look])):
        desk.ask("look")
        assert (await desk.completed()).data == [None, []]


async def test_progress_is_reported_in_order_from_async_and_from_sync_handlers():
    @tool
    async def work(context: ToolContext[None]) -> str:
        """Work."""
        await context.progress("begun \ud83d", done=1, total=2)
        counted: Any = Decimal("0.5")
        await context.progress(done=counted, total=counted)
        await context.progress()
        return "done"

    @tool
    def work_in_thread(context: ToolContext[None]) -> str:
        """Work in a thread."""
        anyio.from_thread.run(context.progress, "half way")
        return "done"

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([work, work_in_thread])):
        desk.ask("work", "c1")
        await desk.ending("c1")
        desk.ask("work_in_thread", "c2")
        await desk.ending("c2")
    reported = desk.seen(ToolCallProgress)
    assert [(each.call_id, each.message, each.done, each.total) for each in reported] == [
        ("c1", "begun ?", 1, 2),
        ("c1", "", 0.5, 0.5),
        ("c1", "", None, None),
        ("c2", "half way", None, None),
    ]
    assert all(encode(each) for each in reported)
    kinds = [type(each) for each in desk.events if each.request_id == "r"]
    assert kinds.index(ToolCallProgress) < kinds.index(ToolCallCompleted)


async def test_progress_is_a_checkpoint_and_silent_after_the_calls_end():
    kept: list[ToolContext[None]] = []

    @tool
    async def keep(context: ToolContext[None]) -> str:
        """Keep."""
        kept.append(context)
        return "kept"

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([keep])):
        desk.ask("keep")
        await desk.completed()
        await kept[0].progress("too late")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await kept[0].progress("never")
        assert scope.cancelled_caught
    assert desk.seen(ToolCallProgress) == []


async def test_the_callers_context_variables_reach_handlers_and_do_not_leak():
    @tool
    async def who() -> list[str]:
        """Who."""
        seen = [caller.get()]
        caller.set("the handler")
        await anyio.lowlevel.checkpoint()
        seen.append(caller.get())
        async with anyio.create_task_group() as group:
            group.start_soon(child, seen)
        return seen

    async def child(seen: list[str]) -> None:
        seen.append(caller.get())

    @tool
    def who_in_thread() -> list[str]:
        """Who, in a thread."""
        seen = [caller.get()]
        caller.set("the thread")
        return seen

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([who, who_in_thread])) as dispatcher:
        for name in ("Ada", "Bob"):
            caller.set(name)
            desk.ask("who", f"{name}-1")
            desk.ask("who_in_thread", f"{name}-2")
            assert (await desk.completed(f"{name}-1")).data == [name, "the handler", "the handler"]
            assert (await desk.completed(f"{name}-2")).data == [name]
            assert caller.get() == name
        caller.set("nobody")
        desk.ask("who", "last")
        assert (await desk.completed("last")).data[0] == "nobody"
        assert dispatcher.statistics().idle_workers == 2, "the workers were the same all the time"


async def test_a_handler_of_two_calls_at_once_sees_its_own_caller_at_every_step():
    gate = anyio.Event()

    @tool
    async def who() -> list[str]:
        """Who."""
        before = caller.get()
        await gate.wait()
        return [before, caller.get()]

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([who])):
        for name in ("Ada", "Bob"):
            caller.set(name)
            desk.ask("who", name)
        await anyio.wait_all_tasks_blocked()
        gate.set()
        for name in ("Ada", "Bob"):
            assert (await desk.completed(name)).data == [name, name]


# ------------------------------------------------------------------------------------------------- whose tool


async def test_a_requests_own_tool_comes_before_the_registrys():
    async def of_the_registry(word: str) -> str:
        return "registry"

    ours = Tool("echo", handler=of_the_registry)
    desk = Desk(view=View([echo]))
    async with ToolDispatcher(desk.bus, ToolRegistry([ours])):
        desk.ask("echo", word="mine")
        assert (await desk.completed()).content == "mine"


async def test_an_external_tool_is_left_to_others():
    approve: Tool = Tool("approve", "Ask a person.", {"type": "object"}, external=True)
    desk = Desk(view=View([approve]))
    async with ToolDispatcher(desk.bus, ToolRegistry([Tool("approve", handler=echo.handler)])):
        desk.ask("approve")
        await anyio.wait_all_tasks_blocked()
        assert desk.endings() == []
        assert desk.bus.publish(ToolCallCompleted(request_id="r", call_id="c", name="approve", content="yes"))
    assert [each.content for each in desk.seen(ToolCallCompleted)] == ["yes"]


async def test_a_tool_that_was_removed_since_is_unknown():
    view = View([echo])
    desk = Desk(view=view)
    async with ToolDispatcher(desk.bus):
        view.tools.remove("echo")
        desk.ask("echo", word="hi")
        event = await desk.failed()
    assert (event.reason, event.error) == ("unknown_tool", "The tool 'echo' was removed.")
    assert event.at >= desk.seen(ToolCallRequested)[0].at


async def test_a_tool_that_nobody_here_has_is_left_to_others():
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([echo])):
        desk.ask("elsewhere")
        await anyio.wait_all_tasks_blocked()
    assert desk.endings() == []


async def test_a_tool_replaced_at_run_time_is_the_one_that_runs():
    registry = ToolRegistry([echo])

    async def louder(word: str) -> str:
        return word.upper()

    desk = Desk()
    async with ToolDispatcher(desk.bus, registry):
        registry.replace(Tool("echo", handler=louder))
        desk.ask("echo", word="hi")
        assert (await desk.completed()).content == "HI"


async def test_two_dispatchers_on_one_bus_each_run_their_own_tools():
    desk = Desk()
    one, other = ToolDispatcher(desk.bus, ToolRegistry([echo])), ToolDispatcher(desk.bus, ToolRegistry([shout]))
    async with one, other:
        desk.ask("echo", "c1", word="hi")
        desk.ask("shout", "c2", word="hi")
        assert (await desk.completed("c1")).content == "hi"
        assert (await desk.completed("c2")).data["word"] == "HI"
    assert (one.statistics().running_peak, other.statistics().running_peak) == (1, 1)


async def test_two_dispatchers_with_the_same_tool_still_give_one_terminal_event():
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([echo])), ToolDispatcher(desk.bus, ToolRegistry([echo])):
        desk.ask("echo", word="hi")
        await desk.completed()
        await anyio.wait_all_tasks_blocked()
    assert len(desk.endings()) == 1
    assert len(desk.seen(ToolCallLate)) <= 1


@pytest.mark.guarantee("G26")
async def test_a_request_for_a_call_that_nobody_opened_runs_nothing(caplog: pytest.LogCaptureFixture):
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([echo])) as dispatcher:
        desk.bus.publish(desk.request("echo", "unopened", word="hi"))
        await anyio.wait_all_tasks_blocked()
        assert dispatcher.statistics().running_peak == 0
    assert "call unopened was not run: no session here has opened it" in caplog.text


# ------------------------------------------------------------------------------------------------- life


async def test_a_dispatcher_is_entered_once_at_a_time_and_may_be_entered_again():
    desk = Desk()
    dispatcher = ToolDispatcher(desk.bus, ToolRegistry([echo]))
    async with dispatcher:
        with pytest.raises(NotRunning, match="is running already"):
            await dispatcher.__aenter__()
    desk.ask("echo", "outside", word="hi")
    await anyio.wait_all_tasks_blocked()
    assert desk.endings("outside") == []
    async with dispatcher:
        desk.ask("echo", "inside", word="hi")
        await desk.completed("inside")


@pytest.mark.parametrize("entered_before", [0, 1])
@pytest.mark.parametrize("by_host", [True, False])
async def test_on_cancelled_is_called_once_for_the_hosts_cancellation_and_never_for_the_end_of_the_block(
    by_host: bool, entered_before: int
):
    @tool
    async def hang() -> None:
        """Hang."""
        await anyio.sleep_forever()

    desk, called = Desk(), list[str]()
    registry = ToolRegistry([hang])
    dispatcher = ToolDispatcher(desk.bus, registry, max_concurrency=2, on_cancelled=lambda: called.append("cancelled"))
    for _ in range(entered_before):
        async with dispatcher:
            await anyio.wait_all_tasks_blocked()
    with anyio.CancelScope() as host:
        async with dispatcher:
            for number in range(4):
                desk.ask("hang", str(number))
            await anyio.wait_all_tasks_blocked()
            if by_host:
                host.cancel()
                with anyio.CancelScope(shield=True):  # so that the handlers are cancelled before the block is left
                    await anyio.wait_all_tasks_blocked()
                await anyio.sleep_forever()
    assert called == (["cancelled"] if by_host else [])
    assert [(await desk.failed(str(number))).reason for number in range(4)] == ["cancelled"] * 4
    assert (dispatcher.statistics().queued, dispatcher.statistics().running) == (0, 0)


@pytest.mark.parametrize("stops", [True, False])
async def test_a_call_that_is_given_up_before_its_handler_began_is_ended_by_nobody_else(stops: bool):
    view, called = View(), list[str]()
    desk = Desk(view=view)
    async with ToolDispatcher(desk.bus, ToolRegistry([echo]), on_cancelled=lambda: called.append("cancelled")):
        desk.ask("echo", word="hi")
        if stops:
            view.is_stopping = True  # The request is about to end, and then settles its calls.
        else:
            desk.settle()
        before = len(desk.events)
        await anyio.wait_all_tasks_blocked()
        assert (desk.events[before:], called) == ([], [])


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # of the worker that never began
def test_a_call_whose_worker_is_cancelled_before_it_began_has_an_ending():
    desks: list[Desk] = []

    async def main() -> None:
        desks.append(desk := Desk())
        async with ToolDispatcher(desk.bus, ToolRegistry([echo])):
            desk.ask("echo", word="hi")
            for each in asyncio.all_tasks():
                each.cancel()
            await anyio.sleep_forever()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    gc.collect()  # so that the warning comes here
    (ending,) = desks[0].endings("c")
    assert isinstance(ending, ToolCallFailed)
    assert ending.reason == "cancelled"


async def test_a_dispatcher_without_requests_binds_its_bus_to_the_event_loop():
    bus, heard = EventBus(), list[Event]()
    bus.connect(SteeringAdded, heard.append)
    event = SteeringAdded(request_id="r", text="hi")
    async with ToolDispatcher(bus, ToolRegistry([echo])):
        assert not await anyio.to_thread.run_sync(bus.publish_threadsafe, event)
    assert heard == []


@pytest.mark.parametrize("options", [{"max_concurrency": 0}, {"max_threads": 0}])
def test_bounds_below_one_are_refused(options: dict[str, Any]):
    with pytest.raises(ConfigurationError, match="a whole number of at least 1"):
        ToolDispatcher(EventBus(), **options)


async def test_a_session_with_a_scripted_model_gets_results_in_call_order():
    @dataclass
    class Deps:
        user: str

    gate = anyio.Event()

    @tool
    async def slow(context: ToolContext[Deps]) -> str:
        """Slow."""
        await gate.wait()
        return f"for {context.deps.user}, who said {context.last_user_message}"

    @tool
    async def quick() -> str:
        """Quick."""
        gate.set()
        return "quick"

    bus = EventBus()
    provider = ScriptedProvider([calls(("slow", {}), ("quick", {})), text("Done.")])
    async with ToolDispatcher(bus):
        session = RequestSession(bus, provider, "please", tools=[slow, quick], deps=Deps("Ada"))
        with anyio.fail_after(30):
            result = await session.run()
    assert [each.content for each in result.tool_calls] == ["for Ada, who said please", "quick"]
    assert bus.statistics().open_calls == 0


async def test_frameworks_that_need_their_own_task_work_inside_a_handler(anyio_backend_name: str):
    """Time-outs, child tasks and threads of the event loop itself, in a task that is not the handler's own."""

    @tool
    async def native() -> str:
        """Native."""
        if anyio_backend_name == "asyncio":
            async with asyncio.timeout(5):
                await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
            return await asyncio.to_thread(lambda: "ok")
        import trio

        with trio.fail_after(30):
            return await trio.to_thread.run_sync(lambda: "ok")

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([native])):
        for number in range(2):
            desk.ask("native", str(number))
            assert (await desk.completed(str(number))).content == "ok"


async def test_events_of_a_call_carry_ids_of_their_own():
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([echo])):
        for number in range(3):
            desk.ask("echo", str(number), word="hi")
            await desk.completed(str(number))
    ids = [event.event_id for event in desk.events]
    assert len(set(ids)) == len(ids)
    assert all(isinstance(decode(encode(event)), Event) for event in desk.events)
    assert desk.seen(ToolCallFailed) == []
