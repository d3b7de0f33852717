"""A cancel scope or a task group that other people's code leaves open harms nobody but that code."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
from dispatch_desk import Desk, View

from toolbus import EventBus, Runtime, ToolDispatcher, ToolRegistry, _open_scopes, tool
from toolbus._open_scopes import StrandedTasks
from toolbus.events import RequestCancelled, RequestCompleted, RequestFailed, ToolCallLate
from toolbus.interceptors import Interceptor
from toolbus.messages import UserMessage
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.testing import ScriptedProvider, calls, text, virtual_backends
from toolbus.tools import Tool

anyio_backend = virtual_backends()
pytestmark = [
    pytest.mark.leaves("buses", reason="requests are opened by hand, and no session ends them"),
    pytest.mark.guarantee("G15"),
]
NAMED = "has left a cancel scope or a task group open"


class Client:
    """Opened lazily, by whoever uses it first, and never closed. It answers until its connection is lost."""

    def __init__(self) -> None:
        self.group: anyio.abc.TaskGroup | None = None
        self.lost = anyio.Event()
        self.asked = 0
        self._asked = anyio.Event()
        self._questions: list[anyio.Event] = []

    async def ask(self) -> int:
        if self.group is None:
            self.group = anyio.create_task_group()
            await self.group.__aenter__()
            self.group.start_soon(self._answer)
            self.group.start_soon(self._watch)
        answered = anyio.Event()
        self._questions.append(answered)
        self._asked.set()
        await answered.wait()
        return self.asked

    async def _answer(self) -> None:
        while True:
            await self._asked.wait()
            self._asked = anyio.Event()
            while self._questions:
                self.asked += 1
                self._questions.pop().set()

    async def _watch(self) -> None:
        await self.lost.wait()
        raise ConnectionError("lost")


class Others:
    """Calls that wait until they are let go, and are nobody's business meanwhile."""

    def __init__(self) -> None:
        self.go = anyio.Event()

        async def wait() -> str:
            await self.go.wait()
            await anyio.lowlevel.checkpoint()
            return "waited"

        self.tool = Tool("wait", handler=wait)


def named(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The tools that the log names, once for each time."""
    return [record.getMessage().split()[3] for record in caplog.records if NAMED in record.getMessage()]


async def test_a_client_that_a_handler_left_open_works_on_and_takes_nobody_down_when_it_fails(
    caplog: pytest.LogCaptureFixture,
):
    client, others = Client(), Others()

    @tool
    async def ask() -> int:
        """Ask the client."""
        return await client.ask()

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([ask, others.tool])) as dispatcher:
        desk.ask("ask", "c1")
        assert (await desk.completed("c1")).content == "1"
        for number in range(4):
            desk.ask("wait", f"other {number}")
        desk.ask("ask", "c2")
        assert (await desk.completed("c2")).content == "2", "its tasks run on"
        await anyio.wait_all_tasks_blocked()
        client.lost.set()
        await anyio.wait_all_tasks_blocked()
        others.go.set()
        for number in range(4):
            assert (await desk.completed(f"other {number}")).content == "waited"
        assert dispatcher.statistics().leaked_tasks == 1
    assert named(caplog) == ["ask"]
    assert dispatcher.statistics().leaked_tasks == 0


async def open_group() -> None:
    group = anyio.create_task_group()
    await group.__aenter__()
    group.start_soon(anyio.sleep, 10)


async def open_failing_group() -> None:
    async def fail() -> None:
        await anyio.sleep(1)
        raise ValueError

    group = anyio.create_task_group()
    await group.__aenter__()
    group.start_soon(fail)


async def open_deadline() -> None:
    anyio.move_on_after(1).__enter__()


async def leave_a_generator() -> None:
    async def pages() -> AsyncIterator[int]:
        with anyio.fail_after(1):
            for number in range(3):
                yield number

    left.append(pages())
    async for _page in left[-1]:
        return


left: list[AsyncIterator[int]] = []
OPENS: Sequence[Callable[[], Any]] = (open_group, open_failing_group, open_deadline, leave_a_generator)


@pytest.mark.parametrize("opens", OPENS)
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "waits"])
async def test_whatever_is_left_open_is_cancelled_later_in_nobodys_call(
    opens: Callable[[], Any], waits: bool, caplog: pytest.LogCaptureFixture
):
    @tool
    async def careless() -> str:
        """Leave something open."""
        await opens()
        if waits:
            await anyio.lowlevel.checkpoint()
        return "opened"

    @tool
    async def sleep() -> str:
        """Sleep for longer than what was left open lasts."""
        await anyio.sleep(20)
        return "slept"

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([careless, sleep]), max_concurrency=2) as dispatcher:
        for number in range(6):  # without a wait, one worker would run them all
            desk.ask("careless" if number % 2 else "sleep", f"{number}", seconds=600)
        for number in range(6):
            ending = await desk.completed(f"{number}", seconds=300)
            assert ending.content == ("opened" if number % 2 else "slept")
        assert (dispatcher.statistics().running, dispatcher.statistics().queued) == (0, 0)
        assert dispatcher.statistics().leaked_tasks == 3
    assert named(caplog) == ["careless"] * 3


@pytest.mark.parametrize("opens", OPENS)
async def test_a_handler_that_opens_something_and_fails_is_reported_as_it_failed(
    opens: Callable[[], Any], caplog: pytest.LogCaptureFixture
):
    @tool
    async def careless() -> None:
        """Leave something open and fail."""
        await opens()
        raise LookupError

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([careless])):
        desk.ask("careless")
        assert (await desk.failed()).error == "The tool failed with an internal error."
    assert named(caplog) == ["careless"]


async def test_what_was_left_open_and_fails_during_its_own_call_fails_that_call_alone(
    caplog: pytest.LogCaptureFixture,
):
    others = Others()

    @tool
    async def careless() -> None:
        """Wait inside of what is left open."""
        await open_failing_group()
        await anyio.sleep_forever()

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([careless, others.tool])):
        desk.ask("wait", "other")
        desk.ask("careless")
        assert (await desk.failed()).error == "The tool was cancelled from within."
        desk.ask("wait", "later")
        others.go.set()
        assert (await desk.completed("other")).content == (await desk.completed("later")).content == "waited"
    assert named(caplog) == ["careless"]


@pytest.mark.parametrize("opens", OPENS)
async def test_a_call_that_is_cancelled_inside_of_what_it_left_open_ends(
    opens: Callable[[], Any], caplog: pytest.LogCaptureFixture
):
    @tool
    async def careless() -> None:
        """Leave something open and wait."""
        await opens()
        await anyio.sleep_forever()

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([careless])) as dispatcher:
        desk.ask("careless")
        await anyio.wait_all_tasks_blocked()
        desk.settle()
        await anyio.wait_all_tasks_blocked()
        assert (dispatcher.statistics().running, dispatcher.statistics().overdue) == (0, ())
    assert len(desk.endings()) == 1
    assert desk.seen(ToolCallLate) == []
    assert named(caplog) == ["careless"]


@pytest.mark.parametrize("opens", OPENS)
@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
async def test_the_host_can_cancel_what_holds_something_that_was_left_open(opens: Callable[[], Any], ended: bool):
    @tool
    async def careless() -> None:
        """Leave something open."""
        await opens()
        if not ended:
            await anyio.sleep_forever()

    desk = Desk()
    with anyio.CancelScope() as scope:
        async with ToolDispatcher(desk.bus, ToolRegistry([careless])):
            desk.ask("careless")
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    (ending,) = desk.endings()
    assert ending.type == ("tool_call_completed" if ended else "tool_call_failed")
    if not ended:
        failed = await desk.failed()
        assert (failed.reason, failed.outcome_unknown) == ("cancelled", True)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_keyboard_interrupt_from_inside_of_what_was_left_open_reaches_the_host(backend: str):
    @tool
    async def careless() -> None:
        """Leave something open; meanwhile somebody presses Ctrl-C."""
        await open_group()
        raise KeyboardInterrupt

    async def main() -> None:
        desk = Desk()
        async with ToolDispatcher(desk.bus, ToolRegistry([careless])):
            desk.ask("careless")
            await anyio.sleep_forever()

    with pytest.raises(BaseException) as caught:  # alone, or in the dispatcher's group
        anyio.run(main, backend=backend)
    exception = caught.value
    while isinstance(exception, BaseExceptionGroup):
        (exception,) = exception.exceptions  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    assert isinstance(exception, KeyboardInterrupt)


async def test_the_calls_in_line_after_a_careless_one_go_to_another_worker():
    tasks: list[int] = []

    @tool
    async def careless() -> None:
        """Leave something open."""
        tasks.append(anyio.get_current_task().id)
        await open_group()

    @tool
    async def quick() -> None:
        """Do not wait."""
        tasks.append(anyio.get_current_task().id)

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([careless, quick])):
        for call_id, name in (("1", "quick"), ("2", "careless"), ("3", "quick"), ("4", "quick")):
            desk.ask(name, call_id)
        for call_id in "1234":
            await desk.completed(call_id)
    assert tasks[0] == tasks[1] != tasks[2] == tasks[3]


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
async def test_an_interceptor_of_results_that_leaves_something_open_harms_nobody_else(
    late: bool, caplog: pytest.LogCaptureFixture
):
    class Careless(Interceptor):
        async def after_tool(self, call: Any, result: Any, context: Any) -> Any:
            await open_failing_group()
            return result

    others, begun = Others(), anyio.Event()

    @tool
    async def stubborn() -> str:
        """Swallow the cancellation."""
        begun.set()
        if late:
            with anyio.CancelScope(shield=True):
                await others.go.wait()
        return "done"

    view = View()
    view.interceptors = [Careless()]
    desk = Desk(view=view)
    async with ToolDispatcher(desk.bus, ToolRegistry([stubborn, others.tool])):
        desk.ask("stubborn")
        await begun.wait()
        if late:
            desk.settle()
        view.interceptors = []
        desk.ask("wait", "other")
        view.interceptors = [Careless()]
        if late:
            others.go.set()
            assert (await desk.hear(ToolCallLate))[0].content == "done"
        else:
            assert (await desk.completed()).content == "done"
        await anyio.sleep(5)
        others.go.set()
        assert (await desk.completed("other")).content == "waited"
    assert named(caplog)[0] == "stubborn"


# ------------------------------------------------------------------------------------------------- requests


class CarelessProvider:
    """Answers, and leaves something open when it is asked for "open"."""

    vendor = "careless"

    def __init__(self, opens: Callable[[], Any]) -> None:
        self._opens = opens
        self.go = anyio.Event()

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        message = request.messages[-1]
        assert isinstance(message, UserMessage)
        if message.content == "open":
            await self._opens()
        elif message.content == "wait":
            await self.go.wait()
        await anyio.lowlevel.checkpoint()
        return await ScriptedProvider([text("answered")]).respond(request, emit)


@pytest.mark.parametrize("opens", OPENS)
async def test_a_provider_that_leaves_something_open_in_a_request_ends_no_other(
    opens: Callable[[], Any], caplog: pytest.LogCaptureFixture
):
    provider, bus = CarelessProvider(opens), EventBus()
    endings: list[str] = []
    bus.connect((RequestCompleted, RequestFailed, RequestCancelled), lambda event: endings.append(event.request_id))
    async with Runtime(provider, bus=bus) as runtime:
        others = [runtime.start("wait") for _ in range(3)]
        careless = runtime.start("open")
        assert (await careless.result()).text == "answered"
        await anyio.sleep(30)
        provider.go.set()
        for other in others:
            assert (await other.result()).text == "answered"
        assert (await runtime.start("hello").result()).text == "answered"
    assert len(endings) == len(set(endings)) == 5
    (record,) = [each for each in caplog.records if NAMED in each.getMessage()]
    assert record.request_id == careless.request_id  # type: ignore[attr-defined]


async def test_an_interceptor_of_prompts_that_leaves_something_open_ends_no_other_request(
    caplog: pytest.LogCaptureFixture,
):
    class Careless(Interceptor):
        async def on_prompt(self, prompt: UserMessage, context: Any) -> UserMessage:
            await open_deadline()
            return prompt

    async with Runtime(ScriptedProvider(lambda _: text("answered"))) as runtime:
        assert (await runtime.start("one", interceptors=[Careless()]).result()).outcome == "failed"
        await anyio.sleep(30)
        assert (await runtime.start("two").result()).text == "answered"
    assert caplog.records, "it does not go by in silence"


async def test_an_error_in_a_task_that_left_something_open_reaches_the_host():
    async def careless() -> None:
        await open_group()
        raise LookupError

    left_open: list[bool] = []
    tasks = StrandedTasks()
    group = await tasks.open()
    group.start_soon(tasks.contain, lambda: left_open.append(True), careless)
    with anyio.fail_after(10), contextlib.suppress(anyio.get_cancelled_exc_class()):
        await anyio.sleep_forever()
    with pytest.raises(ExceptionGroup) as raised:
        await tasks.leave()
    assert [type(each) for each in raised.value.exceptions] == [LookupError]
    assert left_open == [True]


async def test_a_runtime_goes_on_after_its_tool_lost_a_client_that_was_opened_lazily():
    client = Client()

    @tool
    async def ask() -> int:
        """Ask the client."""
        return await client.ask()

    def script(request: ModelRequest) -> Any:
        return text("done") if request.round else calls(("ask", {}))

    async with Runtime(ScriptedProvider(script), tools=[ask]) as runtime:
        assert (await runtime.run("one")).tool_calls[0].content == "1"
        client.lost.set()
        await anyio.wait_all_tasks_blocked()
        client.group, client.lost = None, anyio.Event()
        assert (await runtime.run("two")).tool_calls[0].content == "2"
        assert runtime.dispatcher.statistics().leaked_tasks == 2
        assert runtime.health().reasons == ("tasks in which a tool left a cancel scope or a task group open: 2",)


def test_only_an_error_that_replaced_the_end_of_a_stranded_task_belongs_to_it():
    def last_of(*errors: BaseException) -> BaseException:
        for earlier, later in itertools.pairwise(errors):
            later.__context__ = earlier
        return errors[-1]

    stranded = _open_scopes._Stranded()
    assert _open_scopes._is_stranded(stranded)
    assert _open_scopes._is_stranded(last_of(stranded, KeyError(), ValueError()))
    assert not _open_scopes._is_stranded(last_of(KeyError(), ValueError()))
    assert not _open_scopes._is_stranded(None)
