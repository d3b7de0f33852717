"""Whatever blocks the event loop is named while it does so, with the functions that run. Real time, as a thread looks."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import ctypes
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from time import thread_time

import anyio
import anyio.lowlevel
import pytest

from toolbus import Runtime, tool
from toolbus.errors import ConfigurationError
from toolbus.events import LoopBlocked
from toolbus.runtime import _loop_watch
from toolbus.testing import ScriptedProvider, calls, text

pytestmark = pytest.mark.anyio
SECONDS = 0.1


class Lines(logging.Handler):
    """Sets `written` when the watching thread writes its line, so that what blocks the loop knows when to end."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "is blocked" in record.getMessage():
            self.lines.append(record.getMessage())
            self.written.set()

    def block(self) -> None:
        """Block the thread until the watch has reported that."""
        assert self.written.wait(60)


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    logging.getLogger("toolbus.runtime").addHandler(handler)
    yield handler
    logging.getLogger("toolbus.runtime").removeHandler(handler)


def runtime_of(*tools: object, seconds: float | None = SECONDS) -> Runtime:
    provider = ScriptedProvider([calls(*[(each.name, {}) for each in tools]), text("done")])  # type: ignore[attr-defined]
    return Runtime(provider, tools=tools, blocked_loop_seconds=seconds)  # type: ignore[arg-type]


async def until(heard: list[LoopBlocked]) -> None:
    with anyio.fail_after(60):
        while not heard:
            await anyio.lowlevel.checkpoint()


async def test_code_that_blocks_the_loop_is_named_while_it_blocks_and_published_afterwards(lines: Lines):
    heard: list[LoopBlocked] = []

    def work_for_long() -> None:
        lines.block()
        time.sleep(2.5 * SECONDS)  # The watch looks at its end again and again.

    async with runtime_of() as runtime:
        runtime.bus.connect(LoopBlocked, heard.append)
        work_for_long()
        await until(heard)
        await anyio.lowlevel.checkpoint()
        lines.written.clear()
        lines.block()  # The second block is reported too.
    # A busy machine may keep the loop from its thread at other moments, too.
    (line,) = [each for each in lines.lines if "work_for_long" in each]
    assert line.startswith("the event loop is blocked for more than 0.1 s, by wait (")
    innermost = line.index("block (")
    assert innermost < line.index("work_for_long (") < line.index("test_code_that_blocks")
    (blocked,) = [each for each in heard if "work_for_long" in each.stack]
    assert blocked.seconds >= 3.5 * SECONDS
    assert len(blocked.stack.split(" < ")) == 12
    assert (blocked.name, blocked.request_id, "\n" in line) == ("", "", False)


async def test_a_tool_that_blocks_the_loop_is_one_event_with_its_name(lines: Lines, monkeypatch: pytest.MonkeyPatch):
    heard: list[LoopBlocked] = []
    monkeypatch.setattr("toolbus.dispatcher._thread_run._BLOCKING_SECONDS", SECONDS)

    @tool
    async def spin() -> str:
        """Block the loop."""
        lines.block()
        return "done"

    async with runtime_of(spin) as runtime:
        runtime.bus.connect(LoopBlocked, heard.append)
        session = runtime.start("go")
        await session.result()
        assert [each.request_id for each in heard if each.name == "spin"] == [session.request_id]
        assert runtime.statistics().dispatcher.loop_blocks == 1
        await anyio.sleep(3 * SECONDS)  # in which the watch would publish an event of its own
        assert [each for each in heard if "spin" in each.stack] == []
    assert [each for each in lines.lines if "spin (" in each]


async def test_code_that_keeps_the_interpreter_s_lock_is_reported_afterwards(caplog: pytest.LogCaptureFixture):
    heard: list[LoopBlocked] = []

    def match(letters: int) -> float:
        """Match a pattern whose time doubles with each letter, and return its seconds of CPU, so that no stop of the machine counts."""
        began = thread_time()
        re.match("(a+)+$", "a" * letters + "b")
        return thread_time() - began

    # Three letters more take eight times as long.
    letters = 3 + next(each for each in range(15, 57) if match(each) > 5 / 8 * SECONDS)
    async with runtime_of() as runtime:
        runtime.bus.connect(LoopBlocked, heard.append)
        # The thread sleeps nearly all the time. If it is awake at that moment, it sees the function that matches.
        # A machine that stands still at that moment is the reason that is named.
        while heard == [] or heard[-1].stack or "by code that kept the interpreter's lock" not in caplog.text:
            heard.clear()
            caplog.clear()
            match(letters)
            await until(heard)
    assert heard[-1].seconds > 2 * SECONDS


async def test_a_process_that_did_not_run_is_not_reported_as_code_that_blocks(caplog: pytest.LogCaptureFixture):
    heard: list[LoopBlocked] = []
    # It keeps the interpreter's lock and uses no CPU. So no thread runs, as while a process is suspended.
    sleep = ctypes.PyDLL(None).usleep
    async with runtime_of() as runtime:
        runtime.bus.connect(LoopBlocked, heard.append)
        # The thread sleeps nearly all the time. If it is awake at that moment, it sees this function.
        while not any(not each.stack for each in heard):
            heard.clear()
            # The watch also counts the time since its last look, a quarter of SECONDS in which the process may have run.
            sleep(int(20 * SECONDS * 1_000_000))
            await until(heard)
    assert any("the process was suspended, or the machine is busy" in each.getMessage() for each in caplog.records)


async def test_the_watch_ends_with_the_runtime_and_is_off_unless_asked_for():
    def watching() -> bool:
        found = [each for each in threading.enumerate() if "watches" in each.name]
        assert all(each.daemon for each in found), "it keeps no program from its end"
        return bool(found)

    async with runtime_of(seconds=None):
        assert not watching()
    async with runtime_of():
        assert watching()
    for each in threading.enumerate():
        if "watches" in each.name:
            each.join(60)
    assert not watching()


@pytest.mark.parametrize("seconds", [0, -1, "5"])
def test_seconds_that_make_no_sense_are_refused(seconds: object):
    with pytest.raises(ConfigurationError, match="blocked_loop_seconds is"):
        Runtime(ScriptedProvider([text("x")]), blocked_loop_seconds=seconds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("took", "used", "said"),
    [
        (2.0, 0.0, None),
        (2.1, 0.0, "stood still for 2.1 s"),
        (10.0, 0.49, "stood still for 10.0 s"),
        (10.0, 0.51, "by code that kept the interpreter's lock"),
    ],
)
def test_a_loop_that_stands_still_while_the_process_uses_no_time_is_not_blocked_by_code(
    took: float, used: float, said: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def post(function: Callable[..., None], *given: object) -> None:
        if function == watch._give_sign:
            function(*given)

    watch = _loop_watch._LoopWatch.__new__(_loop_watch._LoopWatch)
    watch._seconds, watch._post, watch._counts, watch._blocks = 1.0, post, (0, 0), lambda: 0
    monkeypatch.setattr(_loop_watch, "perf_counter", lambda: took)
    monkeypatch.setattr(_loop_watch, "process_time", lambda: used)
    watch._look(0.0, 0.0)
    assert [said in each.getMessage() for each in caplog.records if said] == [True] * (said is not None)
    assert bool(caplog.records) is (said is not None)
