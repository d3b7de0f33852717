"""Whatever a handler raises becomes one `ToolCallFailed`, and the dispatcher goes on; only what is the host's passes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from dispatch_desk import Desk

from toolbus import EventBus, RequestSession, ToolDispatcher, ToolError, ToolRegistry, ToolRetry, tool
from toolbus.core import backoff
from toolbus.errors import InvalidArguments
from toolbus.events import ToolCallFailed, ToolCallStarted, encode
from toolbus.testing import ScriptedProvider, calls, text
from toolbus.tools import Tool

pytestmark = pytest.mark.leaves("buses", reason="requests are opened by hand, and no session ends them")

GENERIC = "The tool failed with an internal error."


class Odd(BaseException):
    """Nobody expects this one."""


class Speechless(ToolError):
    """Its text is code, which may fail as well."""

    def __str__(self) -> str:
        raise AttributeError("city")


def raising(exception: BaseException, *, sync: bool) -> Tool:
    async def fail() -> None:
        await anyio.lowlevel.checkpoint()
        raise exception

    def fail_in_thread() -> None:
        raise exception

    return Tool("fail", handler=fail_in_thread if sync else fail)


@tool
async def fine() -> str:
    """Fine."""
    return "fine"


def through_a_future(exception: BaseException) -> Tool:
    def in_thread() -> None:
        raise exception

    async def fail() -> None:
        await anyio.to_thread.run_sync(in_thread)

    return Tool("fail", handler=fail)


MADE: dict[str, Callable[[BaseException], Tool]] = {
    "async": lambda exception: raising(exception, sync=False),
    "sync": lambda exception: raising(exception, sync=True),
    "future": through_a_future,
}


async def failure_of(failing: Tool) -> ToolCallFailed:
    """How the call fails; and afterwards the dispatcher still runs tools."""
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([failing, fine])) as dispatcher:
        desk.ask("fail", "c1")
        event = await desk.failed("c1")
        desk.ask("fine", "c2")
        assert (await desk.completed("c2")).content == "fine"
        await anyio.wait_all_tasks_blocked()
        statistics = dispatcher.statistics()
        assert (statistics.running, statistics.queued, statistics.threads, statistics.overdue) == (0, 0, 0, ())
    assert len(desk.endings("c1")) == 1
    assert encode(event)
    return event


class Unsplittable(ExceptionGroup[Exception]):
    """What a library's own group may be."""

    def derive(self, excs: Any, /) -> Any:
        raise RuntimeError("cannot be split")

    @property
    def exceptions(self) -> Any:  # type: ignore[override]
        raise RuntimeError("cannot be read")


class Disguised(Exception):
    """Says of itself that it is of no class."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("of no class")

    def __repr__(self) -> str:
        raise SystemExit(1)


class Mute(ToolError):
    """Ends the process when it is read."""

    def __str__(self) -> str:
        raise SystemExit(1)


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise SystemExit(1)


class Unnamed(Exception, metaclass=Nameless):
    """Ends the process when its class is named."""


class Unnotable(Exception):
    """Cannot be shown in a traceback."""

    @property
    def __notes__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no notes")


def nested(innermost: BaseException, depth: int) -> BaseException:
    """A group in a group, and so on: deeper than Python recurses."""
    for _ in range(depth):
        innermost = BaseExceptionGroup("deeper", [innermost])
    return innermost


def doubled(depth: int) -> BaseException:
    """A group that has each group twice: two to the power of `depth` exceptions, in little memory."""
    each: BaseException = ValueError("again")
    for _ in range(depth):
        each = BaseExceptionGroup[BaseException]("twice", [each, each])
    return each


def circular() -> BaseException:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    return one


def chained(length: int) -> BaseException:
    first = error = ValueError("first")
    for _ in range(length):
        error.__cause__ = ValueError("next")
        error = error.__cause__
    return first


def with_a_huge_note() -> BaseException:
    error = ValueError("small")
    error.add_note("x" * 50_000_000)
    return error


HOSTILE: dict[str, Callable[[], BaseException]] = {
    "nested": lambda: nested(ValueError("inside"), 5_000),
    "nested system exit": lambda: nested(SystemExit(1), 5_000),
    "unsplittable": lambda: Unsplittable("own", [ValueError("a"), KeyError("b")]),
    "unsplittable inside": lambda: BaseExceptionGroup("", [Unsplittable("own", [ValueError("a")]), SystemExit(1)]),
    "doubled": lambda: doubled(60),
    "circular": circular,
    "chained": lambda: chained(20_000),
    "disguised": Disguised,
    "disguised in a group": lambda: ExceptionGroup("", [Disguised(), ValueError()]),
    "mute": Mute,
    "no notes": Unnotable,
    "unnamed": Unnamed,
    "huge note": with_a_huge_note,
    "huge": lambda: ValueError("x" * 50_000_000),
    "huge cause": lambda: BaseExceptionGroup("y" * 50_000_000, [ValueError("x" * 50_000_000)]),
}


@pytest.mark.guarantee("G15", "G12")
@pytest.mark.parametrize(
    ("name", "how"),
    # A future of asyncio's own never gets an exception whose `__class__` raises, so that handler waits for its deadline.
    [(name, how) for name in HOSTILE for how in MADE if (name, how) != ("disguised", "future")],
)
async def test_an_exception_that_is_made_to_harm_is_a_failure_in_a_generic_sentence(
    name: str, how: str, caplog: pytest.LogCaptureFixture
):
    exception = HOSTILE[name]()
    began = time.thread_time()
    event = await failure_of(MADE[how](exception))
    assert time.thread_time() - began < 2, "it costs no more than another one, or a little"
    assert (event.reason, event.error, event.retryable) == ("error", GENERIC, False)
    assert any("tool fail failed" in record.getMessage() for record in caplog.records)


@pytest.mark.guarantee("G13", "G15")
@pytest.mark.parametrize("name", list(HOSTILE))
async def test_an_exception_that_is_made_to_harm_is_tried_again_like_any_other(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(backoff, "_FIRST_SECONDS", 0.001)
    attempts: list[int] = []

    async def fail() -> None:
        attempts.append(1)
        raise HOSTILE[name]()  # noqa: RSE102 -- it is a function

    failing = Tool("fail", handler=fail, retries=1, retry_on=(Exception,))
    assert (await failure_of(failing)).error == GENERIC
    assert len(attempts) == (1 if name in {"nested system exit", "unsplittable inside"} else 2)


async def test_the_text_of_a_failure_is_cut_where_nobody_could_read_it_and_says_how_much_is_missing():
    event = await failure_of(raising(ToolError("x" * 30_000_000), sync=False))
    assert event.error.startswith("xxx")
    assert event.error.endswith("x... (29,900,000 more characters)")
    assert len(event.error) < 101_000


EXCEPTIONS: list[BaseException] = [
    ValueError("the password is 123"),
    SystemExit(3),
    StopIteration(1),
    StopAsyncIteration(),
    RecursionError(),
    MemoryError(),
    TimeoutError(),
    Odd(),
    Speechless(),
    ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
    BaseExceptionGroup("one", [SystemExit(1)]),
]
RAISED = [
    *((how, exception) for how in MADE for exception in EXCEPTIONS),
    # Out of a future of its own, asyncio itself throws this one at the whole task, past every guard.
    ("async", GeneratorExit()),
    ("sync", GeneratorExit()),
]


@pytest.mark.guarantee("G15")
@pytest.mark.parametrize(
    ("how", "exception"), RAISED, ids=lambda each: each if isinstance(each, str) else type(each).__name__
)
async def test_any_exception_is_a_failure_in_a_generic_sentence(
    exception: BaseException, how: str, caplog: pytest.LogCaptureFixture
):
    event = await failure_of(MADE[how](exception))
    assert (event.reason, event.error, event.retryable) == ("error", GENERIC, False)
    (record,) = [each for each in caplog.records if each.name == "toolbus.dispatcher"]
    assert record.levelno == logging.ERROR
    # Python replaces a `StopIteration` by an exception that no line of the handler has raised.
    is_replaced = "?" if isinstance(exception, StopIteration) else ""
    assert re.fullmatch(
        rf"call \w+: tool fail failed: \w+( at {re.escape(__file__)}:\d+){is_replaced}", record.getMessage()
    )
    assert record.exc_info is not None
    assert record.exc_info[0] is not None
    assert (record.request_id, record.call_id) == ("r", "c1")  # type: ignore[attr-defined]


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_stray_cancellation_is_a_failure(sync: bool, caplog: pytest.LogCaptureFixture, anyio_backend_name: str):
    event = await failure_of(raising(asyncio.CancelledError(), sync=sync))
    expected = "The tool was cancelled from within." if anyio_backend_name == "asyncio" else GENERIC
    assert (event.reason, event.error) == ("error", expected)
    assert "tool fail failed" in caplog.text


@pytest.mark.parametrize("is_settled", [False, True])
async def test_a_stray_cancellation_is_not_the_hosts_and_leaves_no_call_overdue(is_settled: bool):
    desk, called = Desk(), list[str]()

    async def fail() -> None:
        if is_settled:  # between the end of the handler and the report of its failure
            helpers.start_soon(settle)
        raise asyncio.CancelledError

    async def settle() -> None:
        desk.settle()

    registry = ToolRegistry([Tool("fail", handler=fail)])
    async with (
        anyio.create_task_group() as helpers,
        ToolDispatcher(desk.bus, registry, on_cancelled=lambda: called.append("cancelled")) as dispatcher,
    ):
        desk.ask("fail")
        await anyio.wait_all_tasks_blocked()
        assert (len(desk.endings()), dispatcher.statistics().overdue, called) == (1, (), [])


async def test_a_cancellation_from_the_handlers_own_task_is_a_failure(anyio_backend_name: str):
    if anyio_backend_name != "asyncio":
        return  # trio has no cancellation that a task can throw at another

    @tool
    async def fail() -> None:
        """Fail."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await anyio.lowlevel.checkpoint()

    assert (await failure_of(fail)).error == "The tool was cancelled from within."


@pytest.mark.guarantee("G15")
@pytest.mark.parametrize("waits", [False, True], ids=["leaves it behind", "swallows it"])
async def test_a_cancellation_that_a_handler_leaves_behind_reaches_nobody_elses_call(
    waits: bool, anyio_backend_name: str
):
    if anyio_backend_name != "asyncio":
        return  # trio has no cancellation that a task can throw at another

    @tool
    async def careless() -> str:
        """Cancel its own task, and answer all the same."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if waits:
            with contextlib.suppress(asyncio.CancelledError):
                await anyio.lowlevel.checkpoint()
        return "done"

    @tool
    async def innocent() -> str:
        """Wait a moment."""
        await anyio.lowlevel.checkpoint()
        return "fine"

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([careless, innocent])):
        for number in range(6):
            desk.ask("innocent" if number % 2 else "careless", f"{number}")
        for number in range(6):
            assert (await desk.completed(f"{number}")).content == ("fine" if number % 2 else "done")
        await anyio.lowlevel.checkpoint()


async def test_a_scope_inside_the_handler_is_the_handlers_own_business():
    @tool
    async def patient() -> str:
        """Give up by itself."""
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anyio.Event().wait()
        return "gave up"

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([patient])):
        desk.ask("patient")
        assert (await desk.completed()).content == "gave up"


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize(
    ("exception", "reason", "reported", "retryable"),
    [
        (ToolError("no such city"), "error", "no such city", False),
        (ToolError(), "error", "The tool failed.", False),
        (ToolRetry("ask with a country"), "error", "ask with a country", True),
        (InvalidArguments("$.city: too short"), "invalid_arguments", "$.city: too short", False),
        (ToolError("half \ud83d"), "error", "half ?", False),
        (ExceptionGroup("", [ExceptionGroup("", [ToolError("deep inside")])]), "error", "deep inside", False),
    ],
    ids=["error", "no words", "retry", "arguments", "surrogate", "group"],
)
async def test_what_is_said_to_the_model_reaches_it_as_written(
    exception: Exception, reason: str, reported: str, retryable: bool, sync: bool, caplog: pytest.LogCaptureFixture
):
    event = await failure_of(raising(exception, sync=sync))
    assert (event.reason, event.error, event.retryable) == (reason, reported, retryable)
    assert caplog.records == [], "it is no accident, so no traceback is logged"


async def test_a_failure_in_a_handlers_own_task_group_is_reported():
    @tool
    async def fail() -> None:
        """Fail."""

        async def child() -> None:
            raise ToolError("the child broke")

        async with anyio.create_task_group() as group:
            group.start_soon(child)
            await anyio.Event().wait()

    assert (await failure_of(fail)).error == "the child broke"


@pytest.mark.parametrize(("value", "named"), [(b"raw", "bytes"), (object(), "object"), ({1: object()}, "object")])
async def test_a_result_that_cannot_be_written_names_its_type(value: Any, named: str):
    @tool
    async def fail() -> Any:
        """Fail."""
        return value

    event = await failure_of(fail)
    assert event.reason == "error"
    assert named in event.error


async def test_arguments_that_nobody_checked_are_checked_before_the_handler_runs():
    @tool
    async def double(number: int) -> int:
        """Double."""
        raise AssertionError

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([double])):
        desk.ask("double", number="3")
        event = await desk.failed()
    assert (event.reason, event.error) == ("invalid_arguments", "$.number: Input should be a valid integer")


async def test_the_result_has_the_exception_and_the_model_the_generic_sentence():
    broken = ValueError("the password is 123")

    @tool
    async def fail() -> None:
        """Fail."""
        raise broken

    bus = EventBus()
    provider = ScriptedProvider([calls(("fail", {})), text("Sorry.")])
    async with ToolDispatcher(bus):
        result = await RequestSession(bus, provider, "Go.", tools=[fail]).run()
    (call,) = result.tool_calls
    assert call.exception is broken
    assert call.error == GENERIC
    assert broken.__traceback__ is not None
    assert "password" not in str(provider.requests[1].messages)


# ------------------------------------------------------------------------------------------------- the host's


def interrupted(backend: str, failing: Tool) -> tuple[BaseException, list[ToolCallFailed]]:
    """What reaches the host, and what was told of the call."""
    reported: list[ToolCallFailed] = []

    async def main() -> None:
        desk = Desk()
        desk.bus.connect(ToolCallFailed, reported.append)
        async with ToolDispatcher(desk.bus, ToolRegistry([failing])):
            desk.ask("fail")
            await anyio.Event().wait()

    with pytest.raises(BaseException) as caught:  # alone, or in the dispatcher's group
        anyio.run(main, backend=backend)
    return caught.value, reported


@pytest.mark.guarantee("G15")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize(
    "make",
    [
        KeyboardInterrupt,
        lambda: BaseExceptionGroup("", [KeyboardInterrupt()]),
        lambda: nested(KeyboardInterrupt(), 5_000),
        lambda: BaseExceptionGroup("", [ValueError(), Unsplittable("", [ValueError()]), KeyboardInterrupt()]),
    ],
    ids=["alone", "grouped", "deep", "beside what cannot be split"],
)
def test_a_keyboard_interrupt_reaches_the_host_and_the_call_is_answered(
    backend: str, sync: bool, make: Callable[[], BaseException]
):
    exception, reported = interrupted(backend, raising(make(), sync=sync))
    while isinstance(exception, BaseExceptionGroup):
        exception = exception.exceptions[0]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    assert isinstance(exception, KeyboardInterrupt)
    assert [(each.call_id, each.reason) for each in reported] == [("c", "error")]


@pytest.mark.guarantee("G15")
@pytest.mark.parametrize("how", ["inside", "outside"])
async def test_the_hosts_cancellation_passes_and_leaves_one_terminal_event_for_each_call(how: str):
    desk = Desk()
    begun: list[int] = []

    @tool(max_concurrency=2)
    async def wait(number: int) -> None:
        """Wait."""
        begun.append(number)
        await anyio.Event().wait()

    async def host(scope: anyio.CancelScope) -> None:
        with scope:
            async with ToolDispatcher(desk.bus, ToolRegistry([wait, fine])):
                desk.ask("fine", "first")
                await desk.completed("first")  # so that there is an idle worker
                for number in range(6):
                    desk.ask("wait", str(number), number=number)
                await anyio.wait_all_tasks_blocked()
                if how == "inside":
                    scope.cancel()
                await anyio.Event().wait()

    scope = anyio.CancelScope()
    async with anyio.create_task_group() as group:
        group.start_soon(host, scope)
        if how == "outside":
            await desk.hear(ToolCallFailed, 0)
            while len(begun) < 2:
                await anyio.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    assert sorted(begun) == [0, 1], "what waited must not begin in a host that is cancelled"
    for number in range(6):
        (ending,) = desk.endings(str(number))
        assert isinstance(ending, ToolCallFailed)
        assert (ending.reason, ending.outcome_unknown) == ("cancelled", number < 2)


async def test_a_call_that_comes_while_the_host_is_being_cancelled_does_not_run(monkeypatch: pytest.MonkeyPatch):
    """The window between the host's cancellation and the dispatcher's leaving its bus."""
    desk = Desk()
    ran: list[str] = []

    @tool
    async def note(word: str) -> str:
        """Note."""
        ran.append(word)
        return word

    with anyio.CancelScope() as scope:
        async with ToolDispatcher(desk.bus, ToolRegistry([note])) as dispatcher:
            desk.ask("note", "c1", word="before")
            await desk.completed("c1")
            await anyio.wait_all_tasks_blocked()
            assert dispatcher.statistics().idle_workers == 1
            scope.cancel()
            desk.ask("note", "new", word="for the idle worker")
            desk.ask("note", "newer", word="for a new worker")
            with contextlib.suppress(anyio.get_cancelled_exc_class()), anyio.CancelScope(shield=True):
                await desk.ending("new")
                await desk.ending("newer")
    assert "for a new worker" not in ran
    assert len(desk.endings("new")) == len(desk.endings("newer")) == 1


async def test_a_group_of_cancellations_from_trios_own_nursery_is_a_cancellation(
    anyio_backend_name: str, caplog: pytest.LogCaptureFixture
):
    if anyio_backend_name != "trio":
        return
    import trio

    @tool
    async def wait() -> None:
        """Wait in trio's own nursery."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()

    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([wait])):
        desk.ask("wait", "c1")
        desk.ask("wait", "c2")
        await anyio.wait_all_tasks_blocked()
        desk.settle("c1")
        await anyio.wait_all_tasks_blocked()
    assert len(desk.endings("c1")) == 1
    assert (await desk.failed("c2")).reason == "cancelled"
    assert caplog.records == []


async def test_a_receiver_that_interrupts_the_end_of_the_dispatcher_leaves_no_handler_running():
    class Interrupt(BaseException):
        """What only the host may raise."""

    @tool
    async def endless() -> str:
        """Wait."""
        await anyio.sleep_forever()
        return ""

    def interrupt(event: ToolCallFailed) -> None:
        if event.call_id == "queued":
            raise Interrupt

    desk = Desk()
    dispatcher = ToolDispatcher(desk.bus, ToolRegistry([endless]), max_concurrency=1)
    with pytest.raises(Interrupt):
        async with dispatcher:
            desk.bus.connect(ToolCallFailed, interrupt)
            desk.ask("endless", "running")
            desk.ask("endless", "queued")
            await desk.hear(ToolCallStarted)
    assert dispatcher.statistics().running == 0
    lasted = {each.call_id: each.duration_seconds for each in desk.seen(ToolCallFailed)}
    assert lasted.keys() == {"queued", "running"}
    assert lasted["queued"] == 0, "it never began"
