"""Handlers in processes: plain data goes there and back, and whatever happens there, nothing is left running here.

In real time, since the virtual one does not wait for processes; but no test sleeps: a handler that has begun connects to
the test, and the connection ends with its process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_process
import process_tools
import pytest
from dispatch_desk import Desk

from support.skipped_time import skip
from toolbus import EventBus, Limits, RequestSession, ToolDispatcher, ToolRegistry
from toolbus.events import ToolCallStarted, decode, encode
from toolbus.messages import FilePart, ImagePart
from toolbus.testing import ScriptedProvider, calls, text
from toolbus.tools import Tool

pytestmark = pytest.mark.leaves("buses", reason="requests are opened by hand, and no session ends them")

GENERIC = "The tool failed with an internal error."
DIED = "The tool's process ended before it answered."


class Visit:
    """A handler that has begun, in its process."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self.pid = pid

    async def gone(self) -> bool:
        """Wait until the process is gone, so that its id is free."""
        with anyio.fail_after(60), self._connection:
            await anyio.wait_readable(self._connection)
            with contextlib.suppress(ConnectionResetError):
                assert self._connection.recv(1) == b""
            while is_alive(self.pid):  # until it has been waited for
                await anyio.lowlevel.checkpoint()
        return True

    def let_go(self, word: bytes) -> None:
        self._connection.sendall(word)
        self._connection.close()


class Door:
    """Where handlers tell that they have begun."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]

    async def visit(self) -> Visit:
        with anyio.fail_after(30):
            await anyio.wait_readable(self._listener)
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            await anyio.wait_readable(connection)
        return Visit(connection, int(connection.recv(100)))

    def close(self) -> None:
        self._listener.close()


@pytest.fixture(scope="module", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """Let the tests share an event loop, and with trio its processes: starting one takes a third of a second."""
    del anyio_backend
    yield  # noqa: PT022 -- what returns is over, and its event loop with it


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.close()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The processes that are started during the test."""
    processes: list[Any] = []
    start: Callable[..., Awaitable[Any]] = anyio.open_process

    async def open_process(*args: Any, **options: Any) -> Any:
        process = await start(*args, **options)
        processes.append(process)
        return process

    monkeypatch.setattr(anyio.to_process, "open_process", open_process)
    return processes


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def registry() -> ToolRegistry:
    tools: list[Tool] = [each for each in vars(process_tools).values() if isinstance(each, Tool)]
    return ToolRegistry(tools)


async def reported(desk: Desk, call_id: str = "c") -> Any:
    """The call's ending. Processes take their time to start."""
    return await desk.ending(call_id, seconds=30)


async def ending_of(name: str, **arguments: Any) -> Any:
    desk = Desk()
    async with ToolDispatcher(desk.bus, registry()) as dispatcher:
        desk.ask(name, **arguments)
        event = await reported(desk)
        await anyio.wait_all_tasks_blocked()
        statistics = dispatcher.statistics()
        assert (statistics.running, statistics.processes, statistics.threads, statistics.overdue) == (0, 0, 0, ())
        assert statistics.processes_peak == 1
    assert decode(encode(event)) == event
    return event


# ------------------------------------------------------------------------------------------------- there and back


async def test_a_handler_runs_in_another_process_which_is_used_again():
    desk = Desk()
    async with ToolDispatcher(desk.bus, registry()):
        pids: set[int] = set()
        for number in range(3):
            desk.ask("where", str(number))
            pids.add((await reported(desk, str(number))).data)
    assert len(pids) == 1
    assert os.getpid() not in pids


async def test_arguments_become_what_the_signature_says_and_the_whole_result_comes_back():
    event = await ending_of("describe", place={"city": "Paris"}, day="2026-02-28")
    said = '{"ok":true,"message":"Paris on 28.02. for 1","affected":1,"data":{"day":"2026-02-28","nested":[1,null]}}'
    assert event.content == said
    assert event.data == {"day": "2026-02-28", "nested": [1, None]}
    assert [(each.name, each.content, each.media_type) for each in event.artifacts] == [("a", "b", "text/csv")]
    assert event.affected == ("x",)
    file = FilePart.from_bytes(b"file", "application/pdf", "a.pdf")
    assert event.parts == (ImagePart.from_bytes(b"plot", "image/png"), file)


async def test_what_the_model_gets_of_a_result_is_decided_here_and_the_whole_comes_back():
    event = await ending_of("list_rows")
    assert (event.content, event.data) == ("3 rows", [1, 2, 3])
    event = await ending_of("save_rows")
    assert (event.content, event.data) == ('{"ok":true,"message":"Saved.","affected":2}', [1, 2, 3])


async def test_arguments_that_do_not_fit_are_refused_before_a_process_is_asked(started: list[Any]):
    event = await ending_of("describe", place={"city": 3}, day="2026-02-28")
    assert (event.reason, event.error) == ("invalid_arguments", "$.place.city: Input should be a valid string")
    assert started == []


SCHEMA = {"type": "object"}
MADE: list[tuple[Tool, dict[str, Any], str]] = [
    (Tool("it", handler=process_tools.plain, isolation="process"), {"day": "2026-02-28"}, "date"),
    (Tool("it", "Of it.", SCHEMA, process_tools.plain, isolation="process"), {"day": "2026-02-28"}, "str"),
    (Tool("it", handler=process_tools.Shop.open, isolation="process"), {"day": 3}, "Shop 3"),
    (Tool("it", handler=process_tools.Shop.close, isolation="process"), {"day": 3}, "closed 3"),
]


@pytest.mark.parametrize(("made", "arguments", "content"), MADE, ids=["types", "schema", "class method", "static"])
async def test_a_tool_that_is_made_elsewhere_finds_its_handler(made: Tool, arguments: dict[str, Any], content: str):
    desk = Desk()
    async with ToolDispatcher(desk.bus, ToolRegistry([made])):
        desk.ask("it", **arguments)
        assert (await reported(desk)).content == content


async def test_a_name_that_leads_elsewhere_is_a_failure_that_the_log_explains(caplog: pytest.LogCaptureFixture):
    desk = Desk()
    made = Tool("it", handler=process_tools.gone_handler, isolation="process")
    async with ToolDispatcher(desk.bus, ToolRegistry([made])):
        desk.ask("it")
        assert (await reported(desk)).error == GENERIC
    assert "gone in process_tools is 3 in the tool's process, and not the tool's handler" in caplog.text


async def test_what_a_handler_writes_and_reads_does_not_reach_the_pipes():
    desk = Desk()
    async with ToolDispatcher(desk.bus, registry()):
        for number in range(2):
            desk.ask("speak", str(number))
            assert (await reported(desk, str(number))).content == "spoken"


async def test_a_handler_may_write_to_stderr_as_much_as_it_likes():
    assert (await ending_of("complain")).content == "complained"


@pytest.mark.parametrize(
    ("how", "status"),
    [("returns", "0"), ("exits", "0"), ("exits with 3", "3"), ("exits with words", "1"), ("fails", "1")],
)
async def test_what_a_handler_forks_ends_with_it_and_answers_no_call(how: str, status: str):
    assert (await ending_of("fork", how=how)).content == status


# ------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("how", "reason", "error", "retryable"),
    [
        ("ToolError", "error", "no such city ?", False),
        ("ToolRetry", "error", "ask with a country", True),
        ("InvalidArguments", "invalid_arguments", "$.city: too short", False),
        ("grouped", "error", "deep inside", False),
    ],
)
async def test_the_authors_words_reach_the_model(
    how: str, reason: str, error: str, retryable: bool, caplog: pytest.LogCaptureFixture
):
    event = await ending_of("fail", how=how)
    assert (event.reason, event.error, event.retryable) == (reason, error, retryable)
    assert caplog.records == []


@pytest.mark.guarantee("G15")
@pytest.mark.parametrize("how", ["ValueError", "Busy", "SystemExit", "KeyboardInterrupt", "GeneratorExit", "two"])
async def test_any_exception_there_is_a_failure_here_with_its_traceback_in_the_log(
    how: str, caplog: pytest.LogCaptureFixture
):
    event = await ending_of("fail", how=how)
    assert (event.reason, event.error, event.outcome_unknown) == ("error", GENERIC, False)
    (record,) = [each for each in caplog.records if each.name == "toolbus.dispatcher"]
    assert record.levelno == logging.ERROR
    assert re.fullmatch(
        rf"call c: tool fail failed: \w+ at {re.escape(process_tools.__file__)}:\d+", record.getMessage()
    )
    assert "raise made_of(how)" in caplog.text


@pytest.mark.parametrize(("what", "named"), [("bytes", "bytes"), ("object", "object")])
async def test_a_result_that_cannot_be_written_names_its_type(what: str, named: str):
    event = await ending_of("give", what=what)
    assert f"type {named}" in event.error


async def test_the_result_has_the_failure_and_the_model_reads_a_sentence():
    bus = EventBus()
    provider = ScriptedProvider([calls(("fail", {"how": "ValueError"})), text("Sorry.")])
    async with ToolDispatcher(bus):
        result = await RequestSession(bus, provider, "Go.", tools=[process_tools.fail]).run()
    (call,) = result.tool_calls
    assert call.error == GENERIC
    assert "ValueError: the password is 123" in str(call.exception)
    assert "password" not in str(provider.requests[1].messages)


async def test_a_process_that_dies_is_a_failure_and_the_next_call_gets_another_one(
    started: list[Any], caplog: pytest.LogCaptureFixture
):
    desk = Desk()
    async with ToolDispatcher(desk.bus, registry()):
        desk.ask("die", "c1")
        event = await reported(desk, "c1")
        assert (event.reason, event.error, event.outcome_unknown) == ("error", DIED, True)
        assert "tool die failed: the process ended before it answered" in caplog.text
        assert "Traceback" not in caplog.text, "it would have only lines of toolbus"
        desk.ask("where", "c2")
        assert is_alive((await reported(desk, "c2")).data)
    assert [each.returncode is None for each in started][-1:] == [True]


def at_once(_attempts: int, _seed: str) -> float:
    return 0.0


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize(
    ("name", "arguments", "attempts", "error"),
    [
        ("fail_again", {"how": "Busy"}, 3, GENERIC),
        ("fail_again", {"how": "two"}, 1, GENERIC),
        ("fail_again", {"how": "ValueError"}, 1, GENERIC),
        ("fail_again", {"how": "ToolRetry"}, 1, "ask with a country"),
        ("die_again", {}, 2, DIED),
    ],
    ids=["listed", "half listed", "not listed", "for the model", "died"],
)
async def test_a_handler_that_failed_there_is_tried_again(
    name: str, arguments: dict[str, Any], attempts: int, error: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("toolbus.dispatcher._retries.backoff_seconds", at_once)
    desk = Desk()
    async with ToolDispatcher(desk.bus, registry()):
        desk.ask(name, **arguments)
        assert (await reported(desk)).error == error
    assert [each.attempt for each in desk.seen(ToolCallStarted)] == list(range(1, attempts + 1))


# ------------------------------------------------------------------------------------------------- killing


@pytest.mark.guarantee("G12", "G17")
async def test_a_handler_that_loops_for_ever_is_killed_at_its_deadline(door: Door):
    bus = EventBus()
    provider = ScriptedProvider([calls(("where", {})), calls(("spin", {"port": door.port})), text("Done.")])
    async with ToolDispatcher(bus, grace_seconds=60) as dispatcher, anyio.create_task_group() as group:
        limits = Limits(timeout_seconds=60, tool_timeout_seconds=30)
        spin = Tool("spin", handler=process_tools.spin.handler, isolation="process", timeout_seconds=20)
        tools: list[Tool] = [process_tools.where, spin]
        session = RequestSession(bus, provider, "Go.", tools=tools, limits=limits)
        group.start_soon(session.run)
        visit = await door.visit()
        skip(20)
        assert await visit.gone()
        result = await session.result()
        with anyio.fail_after(60):
            while dispatcher.statistics().overdue:
                await anyio.lowlevel.checkpoint()
        assert (dispatcher.statistics().processes, dispatcher.statistics().running) == (0, 0)
    assert [each.reason for each in result.tool_calls] == ["", "timeout"]
    assert bus.statistics().late_results == 0


@pytest.mark.guarantee("G17")
@pytest.mark.parametrize("how", ["settled", "closed"])
async def test_a_handler_whose_call_is_cancelled_is_killed(door: Door, how: str):
    desk = Desk()
    async with ToolDispatcher(desk.bus, registry()) as dispatcher:
        desk.ask("spin", port=door.port)
        visit = await door.visit()
        assert is_alive(visit.pid)
        if how == "settled":
            desk.settle()
            assert await visit.gone()
            desk.ask("where", "next")
            assert (await reported(desk, "next")).data != visit.pid
    if how == "closed":
        assert await visit.gone()
    assert dispatcher.statistics().processes == 0
    reason = "timeout" if how == "settled" else "cancelled"
    ending = await desk.failed()
    assert (ending.reason, ending.outcome_unknown) == (reason, how == "closed")
    assert desk.bus.statistics().late_results == 0


async def test_a_call_that_is_cancelled_while_its_process_starts_leaves_none_behind(started: list[Any]):
    desk = Desk()
    async with ToolDispatcher(desk.bus, registry(), max_processes=1) as dispatcher:
        desk.ask("die", "c0")  # so that none is idle
        await reported(desk, "c0")
        before = len(started)
        desk.ask("where", "c1")
        with anyio.fail_after(60):
            while len(started) == before:
                await anyio.lowlevel.checkpoint()
        assert desk.settle("c1")
        desk.ask("where", "c2")
        pid = (await reported(desk, "c2")).data
        assert [each.pid for each in started[before:]] == [pid], "it was not lost, and serves the next call"
        assert dispatcher.statistics().overdue == ()
    assert len(desk.endings("c1")) == 1


async def test_a_process_that_died_while_it_was_idle_fails_nobodys_call():
    desk = Desk()
    async with ToolDispatcher(desk.bus, registry()):
        desk.ask("where", "c1")
        pid = (await reported(desk, "c1")).data
        os.kill(pid, 9)
        desk.ask("where", "c2")
        assert (await desk.completed("c2", seconds=30)).data != pid


async def test_a_process_that_cannot_start_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def broken(*_: Any, **__: Any) -> Any:
        raise anyio.BrokenWorkerProcess

    monkeypatch.setattr(anyio.to_process, "run_sync", broken)
    event = await ending_of("where")
    assert (event.error, event.outcome_unknown) == ("The tool's process could not be started.", False)
    assert "the process could not be started" in caplog.text


# ------------------------------------------------------------------------------------------------- places


@pytest.mark.parametrize(("cores", "expected"), [(3, 3), (None, 1)])
async def test_by_default_as_many_processes_run_as_the_machine_has_cores(
    cores: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
):
    async def run_sync(function: Callable[..., object], *_: object, **__: object) -> None:
        if function.__name__ == "run_handler":
            await anyio.sleep_forever()

    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(anyio.to_process, "run_sync", run_sync)
    desk = Desk()
    async with ToolDispatcher(desk.bus, registry()) as dispatcher:
        for number in range(4):
            desk.ask("where", str(number))
        await anyio.wait_all_tasks_blocked()
        statistics = dispatcher.statistics()
    assert (statistics.processes, statistics.queued) == (expected, 4 - expected)


@pytest.mark.guarantee("G14")
async def test_at_most_so_many_processes_run_and_the_others_wait_in_order(door: Door):
    desk = Desk()
    async with ToolDispatcher(desk.bus, registry(), max_processes=1, max_threads=1) as dispatcher:
        for number in range(3):
            desk.ask("wait", str(number), port=door.port)
        for number in range(3):
            visit = await door.visit()
            statistics = dispatcher.statistics()
            assert (statistics.processes, statistics.threads, statistics.queued) == (1, 0, 2 - number)
            visit.let_go(b"word")
            assert (await reported(desk, str(number))).content == "word"
        assert dispatcher.statistics().processes_peak == 1
