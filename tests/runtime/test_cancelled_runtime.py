"""A runtime whose host cancels it from outside: what it carries is left, whichever of its tasks is cancelled first."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from support.journaled import JournaledStore
from toolbus import Runtime, Tool, ToolResult, tool
from toolbus.errors import NotRunning, ToolError
from toolbus.events import Event, RequestCancelled, RequestStarted, ToolCallCompleted, ToolCallFailed, ToolCallRequested
from toolbus.instrumentation import Instrumentation
from toolbus.messages import ToolMessage
from toolbus.protocols import ModelRequest, Provider
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, advance, calls, hang, settle, text, virtual_backends

anyio_backend = virtual_backends()

NOTHING: dict[str, Any] = {}
REQUESTS = 6
"""At once, so that sessions and workers are cancelled in several orders: on trio it is another one each time."""


class Tools:
    """`look` may run twice and `pay` may not; both take a minute, the first time. `ran` counts how often each began."""

    def __init__(self, *, raises: bool = False) -> None:
        self.ran: Counter[str] = Counter()
        self.is_down = True
        self.raises = raises
        self.all = [Tool(handler=self.look, idempotent=True), Tool(handler=self.pay), quick]

    async def look(self) -> str:
        """Look."""
        return await self._take("look")

    async def pay(self) -> str:
        """Pay."""
        return await self._take("pay")

    async def _take(self, name: str) -> str:
        self.ran[name] += 1
        if self.is_down:
            try:
                await anyio.sleep(60)
            except anyio.get_cancelled_exc_class():
                if self.raises:
                    raise ToolError("the line went dead") from None
                raise
        return "done"


@tool
async def quick() -> str:
    """Answer at once."""
    return "done"


def asks(*names: str) -> Callable[[Any], Any]:
    """A model that calls these, and then tells what it has read."""

    def reply(request: Any) -> Any:
        results = [each for each in request.messages if isinstance(each, ToolMessage)]
        return (
            text(" | ".join(each.content for each in results))
            if results
            else calls(*[(name, NOTHING) for name in names])
        )

    return reply


def runtime_of(store: Any, tools: Tools, *names: str, **options: Any) -> Runtime:
    return Runtime(ScriptedProvider(asks(*names)), tools=tools.all, store=store, **options)


def heard(runtime: Runtime, *kinds: type[Event]) -> list[Any]:
    events: list[Any] = []
    runtime.bus.connect(kinds, events.append)
    return events


async def facts_of(store: JournaledStore) -> list[Event]:
    return [fact for entry in store.entries for fact in entry.facts]


@pytest.mark.guarantee("G06", "G18", "G19")
@pytest.mark.parametrize("raises", [False, True], ids=["cancelled", "raising when it is"])
async def test_calls_that_run_when_the_host_cancels_the_runtime_are_reported_by_the_one_that_goes_on(
    raises: bool,
) -> None:
    store, tools = JournaledStore(), Tools(raises=raises)
    with anyio.CancelScope() as host:
        async with runtime_of(store, tools, "look", "pay", "quick") as runtime:
            ends = heard(runtime, ToolCallCompleted, ToolCallFailed, RequestCancelled)
            left = [runtime.start("go") for _ in range(REQUESTS)]
            await advance(1)
            host.cancel()
            await anyio.sleep_forever()
    results = [await each.result() for each in left]
    assert {(each.outcome, each.resumable) for each in results} == {("cancelled", True)}
    assert [(each.name, each.type) for each in ends] == [("quick", "tool_call_completed")] * REQUESTS
    assert not [fact for fact in await facts_of(store) if isinstance(fact, (ToolCallFailed, RequestCancelled))]
    assert tools.ran == {"look": REQUESTS, "pay": REQUESTS}

    tools.is_down = False
    async with runtime_of(store, tools, "look", "pay", "quick") as runtime:
        ends = heard(runtime, ToolCallCompleted, ToolCallFailed)
        results = [await each.result() for each in await runtime.resume()]
    assert len(results) == REQUESTS
    for result in results:
        look, pay, _ = result.tool_calls
        assert (result.outcome, look.content) == ("completed", "done")
        assert pay.reason == "interrupted"
    assert all(each.outcome_unknown for each in ends if isinstance(each, ToolCallFailed))
    assert Counter(each.name for each in ends) == {"look": REQUESTS, "pay": REQUESTS}
    assert tools.ran == {"look": 2 * REQUESTS, "pay": REQUESTS}


@pytest.mark.guarantee("G18", "G19")
@pytest.mark.parametrize("kind", [RequestStarted, ToolCallRequested, ToolCallCompleted])
async def test_whatever_the_runtime_does_when_it_is_cancelled_its_requests_go_on(kind: type[Event]) -> None:
    store, tools = JournaledStore(), Tools()
    with anyio.CancelScope() as host:
        async with runtime_of(store, tools, "quick", "look") as runtime:
            runtime.bus.connect(kind, lambda _event: host.cancel())
            session = runtime.start("go")
            await session.result()
    assert (await session.result()).resumable
    tools.is_down = False
    async with runtime_of(store, tools, "quick", "look") as runtime:
        (result,) = [await each.result() for each in await runtime.resume()]
    first, second = result.tool_calls
    assert second.content == "done"
    assert first.reason == ("" if kind is ToolCallCompleted else "interrupted"), "it had been asked for"


@pytest.mark.guarantee("G18")
async def test_a_request_that_is_resumed_is_left_once_more_and_one_that_waits_for_the_model_too() -> None:
    store = JournaledStore()
    for again in range(3):
        with anyio.CancelScope() as host:
            async with Runtime(ScriptedProvider([hang()]), store=store) as runtime:
                session = (await runtime.resume()).sessions[0] if again else runtime.start("go")
                await settle()
                host.cancel()
                await anyio.sleep_forever()
        assert (await session.result()).resumable
    async with Runtime(ScriptedProvider([text("Here I am.")]), store=store) as runtime:
        assert [(await each.result()).text for each in await runtime.resume()] == ["Here I am."]


@pytest.mark.guarantee("G16")
async def test_a_request_in_a_task_that_is_cancelled_with_the_runtime_is_cancelled() -> None:
    store, tools = JournaledStore(), Tools()
    with anyio.CancelScope() as host:
        async with runtime_of(store, tools, "look", "pay") as runtime, anyio.create_task_group() as callers:
            ended = heard(runtime, ToolCallFailed, RequestCancelled)
            for _ in range(REQUESTS):
                callers.start_soon(runtime.run, "go")
            await advance(1)
            host.cancel()
    assert Counter(each.type for each in ended) == {"tool_call_failed": 2 * REQUESTS, "request_cancelled": REQUESTS}
    assert {each.error for each in ended if isinstance(each, ToolCallFailed)} == {"The request was cancelled."}
    async with runtime_of(store, tools, "look") as runtime:
        assert len(await runtime.resume()) == 0


@pytest.mark.guarantee("G18", "G19")
async def test_a_request_of_a_task_that_outlives_the_runtime_is_left() -> None:
    store, tools = JournaledStore(), Tools()
    results: list[Any] = []

    async def call(runtime: Runtime) -> None:
        results.append(await runtime.run("go"))

    async with anyio.create_task_group() as callers:
        with anyio.CancelScope() as host:
            async with runtime_of(store, tools, "look") as runtime:
                callers.start_soon(call, runtime)
                await advance(1)
                host.cancel()
                try:
                    await anyio.sleep_forever()
                finally:  # what the host has to clear up first
                    with anyio.CancelScope(shield=True):
                        await advance(1)
    (result,) = results
    assert (result.outcome, result.reason, result.resumable) == ("cancelled", "the runtime was cancelled", True)
    assert not [fact for fact in await facts_of(store) if isinstance(fact, ToolCallFailed)]


@pytest.mark.guarantee("G06", "G16")
async def test_without_a_journal_every_call_ends_here() -> None:
    tools = Tools()
    with anyio.CancelScope() as host:
        async with runtime_of(None, tools, "look", "pay") as runtime:
            ends = heard(runtime, ToolCallFailed, RequestCancelled)
            for _ in range(REQUESTS):
                runtime.start("go")
            await advance(1)
            host.cancel()
            await anyio.sleep_forever()
    assert Counter(each.type for each in ends) == {"tool_call_failed": 2 * REQUESTS, "request_cancelled": REQUESTS}
    # The requests are cancelled with their tasks, and not left.
    assert "the runtime was cancelled" not in {each.reason for each in ends if isinstance(each, RequestCancelled)}


async def test_the_turn_of_a_caller_who_was_cancelled_is_remembered_by_a_store_that_takes_its_time() -> None:
    class Slow(MemoryStore):
        async def remember(self, conversation_id: str, messages: Any, *, request_id: str = "") -> None:
            await anyio.sleep(1)
            await super().remember(conversation_id, messages, request_id=request_id)

    store = Slow()
    async with Runtime(ScriptedProvider([calls(("quick", NOTHING)), hang()]), tools=[quick], store=store) as runtime:
        with anyio.move_on_after(5):
            await runtime.run("go", conversation_id="c")
        assert [each.role for each in await store.history("c")] == ["user", "assistant", "tool"]


async def test_a_turn_that_has_not_begun_is_cancelled_with_the_runtime() -> None:
    store, tools = JournaledStore(), Tools()
    with anyio.CancelScope() as host:
        async with runtime_of(store, tools, "look") as runtime:
            first, second = [runtime.start("go", conversation_id="c") for _ in range(2)]
            await advance(1)
            host.cancel()
            await anyio.sleep_forever()
    assert [(await each.result()).resumable for each in (first, second)] == [True, False]


@pytest.mark.guarantee("G15", "G19")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_keyboard_interrupt_in_a_handler_is_not_what_its_call_ended_with(backend: str) -> None:
    store, tools = JournaledStore(), Tools()
    ends: list[Any] = []

    async def interrupted() -> str:
        """Be interrupted, the first time."""
        if tools.is_down:
            raise KeyboardInterrupt
        return "done"

    tools.all.append(Tool(handler=interrupted, idempotent=True))

    async def run() -> None:
        async with runtime_of(store, tools, "interrupted") as runtime:
            runtime.bus.connect(ToolCallFailed, ends.append)
            runtime.start("go")
            await anyio.sleep_forever()

    async def go_on() -> list[str]:
        async with runtime_of(store, tools, "interrupted") as runtime:
            return [(await each.result()).text for each in await runtime.resume()]

    with pytest.raises(BaseException) as raised:
        anyio.run(run, backend=backend)
    assert "KeyboardInterrupt" in repr(raised.value)
    assert ends == []
    tools.is_down = False
    assert anyio.run(go_on, backend=backend) == ["done"]


@pytest.mark.guarantee("G15")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("where", ["provider", "summarize", "instrumentation"])
def test_a_keyboard_interrupt_in_code_of_the_application_reaches_the_host(backend: str, where: str) -> None:
    def interrupt(at: str) -> None:
        if at == where:
            raise KeyboardInterrupt

    def answer(request: ModelRequest) -> Any:
        interrupt("provider")
        return text("done") if request.round else calls(("look", {}))

    def summarize(_data: Any) -> str:
        interrupt("summarize")
        return "short"

    class Watching(Instrumentation):
        def model(self, request: ModelRequest, provider: Provider) -> AbstractContextManager[None]:
            interrupt("instrumentation")
            return nullcontext()

    async def look() -> ToolResult:
        """Look."""
        return ToolResult(data=[1])

    async def run() -> None:
        tools = [Tool(handler=look, summarize=summarize)]
        async with Runtime(ScriptedProvider(answer), tools=tools, instrumentation=[Watching()]) as runtime:
            await runtime.start("go").result()

    with pytest.raises(BaseException) as raised:  # alone, or in the runtime's group
        anyio.run(run, backend=backend)
    assert "KeyboardInterrupt" in repr(raised.value)


@pytest.mark.guarantee("G18", "G19")
def test_a_loop_that_cancels_all_tasks_one_by_one_leaves_what_the_runtime_carries() -> None:
    """As `asyncio.run` does when its main function has returned, and as servers do."""
    store, tools = JournaledStore(), Tools()
    ends: list[Any] = []

    async def hold() -> None:
        async with runtime_of(store, tools, "look") as runtime:
            runtime.bus.connect((ToolCallFailed, RequestCancelled), ends.append)
            for _ in range(REQUESTS):
                runtime.start("go")
            await anyio.sleep_forever()

    holding: list[asyncio.Task[None]] = []

    async def main() -> None:
        holding.append(asyncio.create_task(hold()))
        with anyio.fail_after(10):
            while tools.ran["look"] < REQUESTS:
                await anyio.lowlevel.checkpoint()

    async def go_on() -> list[str]:
        async with runtime_of(store, tools, "look") as runtime:
            return [(await each.result()).text for each in await runtime.resume()]

    asyncio.run(main())
    assert ends == []
    tools.is_down = False
    assert asyncio.run(go_on()) == ["done"] * REQUESTS


@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("journal", [False, True])
async def test_the_store_is_closed_though_a_handler_takes_its_time_to_end_and_a_provider_cannot_be_closed(
    monkeypatch: pytest.MonkeyPatch, journal: bool
) -> None:
    closed: list[str] = []

    class Store(MemoryStore):
        async def aclose(self) -> None:
            await anyio.lowlevel.checkpoint()
            closed.append("store")

    class Provider(ScriptedProvider):
        async def aclose(self) -> None:
            closed.append("provider")
            raise OSError("the line went dead")

    async def tidies_up() -> str:
        """Run, and tidy up."""
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(2)
        return "done"

    def resolve(_name: str) -> Provider:
        return Provider([calls(("tidies_up", NOTHING))])

    monkeypatch.setattr("toolbus.runtime._models.resolve", resolve)
    with pytest.raises(OSError, match="went dead"), anyio.CancelScope() as host:
        async with Runtime("made:here", tools=[tidies_up], store=Store(journal=journal)) as runtime:
            runtime.start("go")
            await advance(1)
            host.cancel()
            await anyio.sleep_forever()
    assert closed == ["store", "provider"]


@pytest.mark.guarantee("G10", "G18")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # of the tasks that never began
@pytest.mark.parametrize("journal", [False, True])
def test_requests_whose_tasks_are_cancelled_before_they_began_end_and_keep_no_place(journal: bool) -> None:
    runtime = Runtime(ScriptedProvider(lambda _: text("Hello.")), store=MemoryStore(journal=journal), max_sessions=1)
    started: list[Any] = []

    async def hold() -> None:
        async with runtime:
            started.extend(runtime.start("go") for _ in range(3))
            for each in asyncio.all_tasks():
                each.cancel()
            await anyio.sleep_forever()

    async def again() -> str:
        with anyio.fail_after(30):
            async with runtime:
                return (await runtime.run("go")).text

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(hold())
    gc.collect()  # so that the warning comes here
    assert [each.ended for each in started] == [True] * 3
    assert asyncio.run(again()) == "Hello."


async def test_a_runtime_that_is_entered_again_knows_no_request_that_ended_before() -> None:
    runtime = Runtime(ScriptedProvider([text("Hello.")]))
    async with runtime:
        request_id = (await runtime.run("go")).request_id
        assert await runtime.recall(request_id)
    async with runtime:
        assert await runtime.recall(request_id) is None


async def test_a_runtime_that_was_left_by_an_exception_takes_no_more_requests() -> None:
    refused: list[bool] = []

    @tool
    async def slow() -> None:
        """Ask for more at the end."""
        try:
            await anyio.sleep_forever()
        finally:
            with pytest.raises(NotRunning):
                runtime.start("more")
            refused.append(True)

    runtime = Runtime(ScriptedProvider([calls(("slow", NOTHING))]), tools=[slow])
    with pytest.raises(ZeroDivisionError):
        async with runtime:
            runtime.start("go")
            await advance(1)
            raise ZeroDivisionError
    assert refused == [True]


def test_a_task_that_is_cancelled_while_the_runtime_drains_ends_as_cancelled() -> None:
    async def host() -> None:
        async with Runtime(ScriptedProvider([hang()])) as runtime:
            runtime.start("go")

    async def main() -> None:
        task = asyncio.create_task(host())
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(main())
