"""`toolbus worker` with a real NATS server: what it serves, how it ends, what it shows and what it refuses."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import concurrent.futures
import io
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from desk import Command, Terminal

from support import nats_server
from support.nats_server import NatsServer
from toolbus import Runtime, tool
from toolbus.cli._arguments import parse
from toolbus.cli._commands import worker as _worker
from toolbus.cli._terminal.live_screen import LiveScreen
from toolbus.cli._terminal.screen import Screen
from toolbus.core.approval import definition_of
from toolbus.remote import _nats_connection
from toolbus.remote.nats import NatsExecutor, WorkerStatistics
from toolbus.testing import ScriptedProvider, calls, text

TOOLS = '''
from pathlib import Path
from toolbus import tool

@tool(pool="gpu", idempotent=True, timeout_seconds=60)
def hold(path: str) -> str:
    """Hold until somebody writes to a pipe."""
    print("the handler holds", flush=True)
    return Path(path).read_text()

@tool(pool="gpu")
async def fail() -> str:
    """Fail."""
    raise LookupError("a bug in the tool")

@tool(pool="cpu")
async def other() -> str:
    """Belong to another pool."""
    return "x"

tools = [hold, fail, other]
'''
WORKER = ("worker", "pooled:tools", "--pool", "gpu")


@tool(pool="gpu", idempotent=True, timeout_seconds=60)
def hold(path: str) -> str:
    """Hold until somebody writes to a pipe."""
    return path


@tool(pool="gpu")
async def fail() -> str:
    """Fail."""
    return ""


@pytest.fixture(params=["asyncio"])  # nats-py works on asyncio only
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def nats() -> NatsServer:
    return nats_server.shared()


@pytest.fixture
def broker(nats: NatsServer, folder: Path) -> Iterator[tuple[NatsServer, str]]:
    """The server, a prefix that no other test uses, and the module `pooled` in the current directory."""
    (folder / "pooled.py").write_text(TOOLS, encoding="utf-8")
    yield nats, nats_server.unused_prefix()
    nats.revive()
    sys.modules.pop("pooled", None)


class Process:
    """A running worker, and the lines that it writes to stderr."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen, self.lines = popen, list[str]()

    async def until(self, words: str) -> str:
        assert self.popen.stderr is not None
        while True:
            line = (await anyio.to_thread.run_sync(self.popen.stderr.readline)).decode()
            assert line, self.lines
            self.lines.append(line)
            if words in line:
                return line

    async def ended(self) -> int:
        assert self.popen.stderr is not None
        rest = await anyio.to_thread.run_sync(self.popen.stderr.read)
        self.lines += rest.decode().splitlines(keepends=True)
        return await anyio.to_thread.run_sync(self.popen.wait)


@contextmanager
def serving(broker: tuple[NatsServer, str], *more: str) -> Generator[Process]:
    command = [sys.executable, "-m", "toolbus", *WORKER, "--url", broker[0].url, "--prefix", broker[1], *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ) as popen:
        try:
            yield Process(popen)
        finally:
            popen.kill()


def runtime(broker: tuple[NatsServer, str], name: str, arguments: dict[str, Any]) -> Runtime[None]:
    provider = ScriptedProvider([calls((name, arguments)), text("Done.")])
    return Runtime(provider, tools=[hold, fail], executors=[NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_it_and_a_call_that_runs_is_answered(
    broker: tuple[NatsServer, str], folder: Path, number: int
) -> None:
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    with anyio.fail_after(60), serving(broker, "--concurrency", "2") as worker:
        assert "Pool gpu  2 at once: hold, fail" in await worker.until("Pool gpu")
        async with runtime(broker, "hold", {"path": str(pipe)}) as session_side:
            session = session_side.start("Go.")
            await worker.until("the handler holds")
            worker.popen.send_signal(number)
            assert "1 running, 0 answered; a second signal ends it at once" in await worker.until("no more calls")
            await anyio.to_thread.run_sync(pipe.write_text, "held")
            assert (await session.result()).tool_calls[0].content == "held"
        assert await worker.ended() == 0
    assert "drained; 1 answered" in worker.lines[-1]


async def test_a_second_signal_ends_it_at_once(broker: tuple[NatsServer, str], folder: Path) -> None:
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    with anyio.fail_after(60), serving(broker) as worker:
        await worker.until("Pool gpu")
        async with runtime(broker, "hold", {"path": str(pipe)}) as session_side:
            session = session_side.start("Go.")
            await worker.until("the handler holds")
            worker.popen.send_signal(signal.SIGTERM)
            await worker.until("no more calls")
            worker.popen.send_signal(signal.SIGTERM)
            assert await worker.ended() == -signal.SIGTERM
            session.cancel("seen")
            await session.result()


async def test_a_bug_of_a_tool_is_one_line_and_the_tools_output_goes_to_stderr(
    broker: tuple[NatsServer, str],
) -> None:
    with anyio.fail_after(60), serving(broker) as worker:
        await worker.until("Pool gpu")
        async with runtime(broker, "fail", {}) as session_side:
            assert (await session_side.run("Go.")).tool_calls[0].reason == "error"
        assert "tool fail failed: LookupError" in await worker.until("fail failed")
        worker.popen.send_signal(signal.SIGTERM)
        assert await worker.ended() == 0
        assert worker.popen.stdout is not None
        assert worker.popen.stdout.read() == b""
    assert not any("Traceback" in line for line in worker.lines)


async def test_an_outage_of_the_broker_is_shown_and_so_is_its_end(broker: tuple[NatsServer, str]) -> None:
    with anyio.fail_after(60), serving(broker) as worker:
        await worker.until("Pool gpu")
        broker[0].kill()
        await worker.until("0 running, 0 answered; the broker does not answer")
        broker[0].start()
        assert "the broker does not answer" not in await worker.until("Pool gpu  0 running, 0 answered")


def test_the_check_lists_the_definitions_as_they_are_compared(toolbus: Command, broker: tuple[NatsServer, str]) -> None:
    ended = toolbus(*WORKER, "--url", broker[0].url, "--prefix", broker[1], "--check")
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "The connection, JetStream and the permissions are as a worker needs them."
    assert lines[1] == f"hold  pool gpu  definition {definition_of(hold.spec)}"
    assert lines[3].startswith("other  pool cpu  definition ")
    assert lines[3].endswith("  (not served by this worker)")


def test_secrets_come_from_variables_and_a_pool_has_one_lease(
    toolbus: Command, broker: tuple[NatsServer, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
from pydantic import SecretStr
from toolbus import tool

@tool(pool="gpu")
async def fetch(token: SecretStr) -> str:
    \"\"\"Fetch.\"\"\"
    return "x"
"""
    (folder / "pooled.py").write_text(code, encoding="utf-8")
    check = ("worker", "pooled:fetch", "--pool", "gpu", "--url", broker[0].url, "--prefix", broker[1], "--check")
    monkeypatch.setenv("MAIL_PASSWORD", "hunter2-hunter2")
    monkeypatch.setenv("SHORT", "abc")
    assert toolbus(*check, "--lease", "5", "--secret", "mail=MAIL_PASSWORD").status == 0
    for more, words in (
        ((), "give the worker its own: secrets=[(name, value)]"),
        (("--secret", "mail"), "--secret: pass a name and an environment variable, such as mail=MAIL_PASSWORD"),
        (("--secret", "mail=NOT_SET"), "--secret mail: the environment variable NOT_SET is not set"),
        (("--secret", "mail=SHORT"), "secrets is not valid; "),
        (("--secret", "mail=MAIL_PASSWORD", "--lease", "7"), "have another lease; pass the same one"),
    ):
        ended = toolbus(*check, *more)
        assert (ended.status, words in ended.err, "hunter2" in ended.err) == (2, True, False), ended.err


@pytest.mark.parametrize("check", [(), ("--check",)], ids=["serve", "check"])
def test_a_server_that_cannot_be_reached_is_one_line_without_the_password(
    toolbus: Command, broker: tuple[NatsServer, str], check: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_nats_connection, "_CONNECT_SECONDS", 0.3)
    ended = toolbus(*WORKER, "--url", "nats://user:hunter2@127.0.0.1:1", *check)
    assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert ended.err.startswith("toolbus: the NATS server at nats://127.0.0.1:1 cannot be used: ")
    assert "hunter2" not in ended.err


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("pooled:tools", "--pool", "tpu"), "no tool is of the pool 'tpu': its tools are of the pools cpu, gpu"),
        (("scenes:add", "--pool", "gpu"), "no tool is of the pool 'gpu': none of its tools has a pool"),
        (("nowhere:tools", "--pool", "gpu"), "worker nowhere:tools: there is no module 'nowhere'; run toolbus from"),
        (("pooled:tools", "--pool", "gpu", "--prefix", "a.b"), "prefix is 'a.b'; use letters, digits, '_' and '-'"),
        (("pooled:tools", "--pool", "gpu", "--concurrency", "0"), "argument --concurrency: '0' is not a whole number"),
        (("pooled:tools",), "the following arguments are required: --pool"),
    ],
)
def test_what_cannot_be_served_is_refused_before_the_broker_is_asked(
    toolbus: Command, broker: tuple[NatsServer, str], arguments: tuple[str, ...], reported: str
) -> None:
    ended = toolbus("worker", *arguments, "--url", "nats://127.0.0.1:1")
    assert (ended.status, ended.out) == (2, "")
    assert reported in ended.err


# ------------------------------------------------------------------------------------------------- the display


class Doing:
    """A worker that does nothing, with the statistics that a test gives it."""

    def __init__(self) -> None:
        self.now = WorkerStatistics(running=0, answered=0, broker_unavailable=False)

    def statistics(self) -> WorkerStatistics:
        return self.now


class Draining(Doing):
    """A worker that is sent a signal when it begins, and drains until its display was drawn three more times."""

    def __init__(self) -> None:
        super().__init__()
        self.drained = self.drawn = 0

    def statistics(self) -> WorkerStatistics:
        self.drawn += self.drained > 0
        return self.now

    async def run(self, ready: Any) -> None:
        ready()
        os.kill(os.getpid(), signal.SIGTERM)
        while self.drawn < 4:
            await anyio.lowlevel.checkpoint()

    async def drain(self) -> None:
        self.drained += 1


def shown(screen: Screen, monkeypatch: pytest.MonkeyPatch, *more: str, began: float = 0.0) -> tuple[Any, Doing, Any]:
    """A display that began when its clock was at `began`, its worker, and the clock."""
    clock: Any = SimpleNamespace(now=began)
    monkeypatch.setattr("toolbus.cli._commands.worker.time.monotonic", lambda: clock.now)
    options = parse([*WORKER, "--url", "nats://h", "--concurrency", "4", *more])
    worker: Any = Doing()
    serving = _worker._Serving(options, screen, worker, ["hold"])
    serving._ready()
    return serving, worker, clock


def test_a_terminal_has_a_live_line(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    serving, worker, clock = shown(LiveScreen(io.StringIO(), terminal), monkeypatch, began=5.0)
    worker.now, clock.now = WorkerStatistics(running=3, answered=1_204, broker_unavailable=False), 66.0
    before = terminal.getvalue()
    serving._look()
    drawn = terminal.getvalue().removeprefix(before)
    assert "3 running, 1,204 answered" in drawn
    assert "1 min 1 s" in drawn
    assert "\n" not in drawn


def test_a_log_has_a_line_for_each_minute_with_news(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    serving, worker, clock = shown(Screen(io.StringIO(), log), monkeypatch)
    for clock.now, answered in ((30.0, 1), (60.0, 2), (90.0, 3), (120.0, 4), (180.0, 4), (240.0, 4)):
        worker.now = WorkerStatistics(running=0, answered=answered, broker_unavailable=False)
        serving._look()
    numbers = [line.split(" answered")[0].split()[-1] for line in log.getvalue().splitlines() if "answered" in line]
    assert numbers == ["2", "4"]


def test_a_line_says_how_long_the_worker_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    serving, worker, clock = shown(Screen(io.StringIO(), log), monkeypatch, began=5.0)
    worker.now, clock.now = WorkerStatistics(running=0, answered=1, broker_unavailable=False), 66.0
    serving._look()
    assert log.getvalue().endswith("0 running, 1 answered  1 min 1 s\n")


def test_a_log_has_no_line_of_a_worker_that_has_done_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    serving, _, clock = shown(Screen(io.StringIO(), log), monkeypatch)
    clock.now = 61.0
    serving._look()
    assert "answered" not in log.getvalue()


def test_one_signal_drains_a_worker_once_and_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    log, worker, waits = io.StringIO(), Draining(), set[float]()

    def wait(futures: Any, seconds: float) -> Any:
        waits.add(seconds)
        return concurrent.futures.wait(futures, 0.01)

    monkeypatch.setattr(_worker, "wait", wait)
    options = parse([*WORKER, "--url", "nats://h"])
    given: Any = worker
    _worker._Serving(options, Screen(io.StringIO(), log), given, ["hold"]).run()
    assert (worker.drained, log.getvalue().count("takes no more calls"), waits) == (1, 1, {0.25})


def test_quiet_leaves_only_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    serving, worker, clock = shown(Screen(io.StringIO(), log), monkeypatch, "--quiet")
    worker.now, clock.now = WorkerStatistics(running=1, answered=1, broker_unavailable=True), 90.0
    serving._look()
    assert log.getvalue() == ""
