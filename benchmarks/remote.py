"""Calls over NATS against the bare client, in the same run and with the same server; idle workers; commands to others.

`python -m benchmarks --only remote`. Both sides keep calls and answers in JetStream, on the disk, and their workers are
processes of their own: one message for a call, one for its answer, each acknowledged. The bare side knows neither
deadlines, leases, definitions nor answers that come twice.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
from nats.js import api

from toolbus import EventBus, Runtime, ToolRegistry, tool
from toolbus.bus import Mailbox
from toolbus.core.approval import definition_of
from toolbus.events import Event, RequestCompleted, TextDelta, ToolCallCompleted, ToolCallRequested, new_id
from toolbus.messages import AssistantMessage
from toolbus.protocols import ModelReply, TextPiece
from toolbus.remote import Client
from toolbus.remote.nats import NatsExecutor, NatsRelay, ToolWorker
from toolbus.stores.sqlite import SqliteStore
from toolbus.testing import ScriptedProvider

from .plumbing import Effort, Goal, Row, alternate, compared, measured, run, shown, shown_us

WIDTHS = {1: 300, 100: 3_000, 1_000: 3_000}
"""How many calls are open at once, and how many are made in one run."""
_POOL = "bench"
_TEXT = "z" * 100
_CALLS_OF_A_REQUEST = 6  # as in the other figures: at its end, what the broker keeps of them is deleted
_IDLE_SECONDS = 5.0
_MAX_SECONDS = 120.0
_SPEAKERS, _PIECES = 100, 500
driver: Any = nats

Call = Callable[[], Awaitable[object]]


@tool(pool=_POOL, idempotent=True)
async def echo(said: str) -> str:
    """Return what was said."""
    return said


# ------------------------------------------------------------------------------------------------ the bare client


async def _bare_worker(url: str, name: str) -> None:
    connection = await driver.connect(url)
    stream = connection.jetstream()
    await stream.add_stream(name=name, subjects=[f"{name}.>"])
    settings = api.ConsumerConfig(durable_name="worker", ack_policy=api.AckPolicy.EXPLICIT, max_ack_pending=10_000)
    calls = await stream.pull_subscribe(f"{name}.call", durable="worker", config=settings)
    _say("ready")

    async def answer(message: Any) -> None:
        await stream.publish(f"{name}.done.{message.headers['id']}", message.data)
        await message.ack()

    running: set[asyncio.Task[None]] = set()
    while True:
        try:
            messages = await calls.fetch(256, timeout=5)
        except TimeoutError:  # The driver raises two kinds of them, of which only one is its own.
            continue
        for each in messages:
            task = asyncio.create_task(answer(each))
            running.add(task)
            task.add_done_callback(running.discard)


@asynccontextmanager
async def _bare(url: str, name: str) -> AsyncGenerator[Call]:
    connection = await driver.connect(url)
    stream = connection.jetstream()
    waits: dict[str, asyncio.Future[None]] = {}

    async def answered(message: Any) -> None:
        waits.pop(message.subject.rsplit(".", 1)[1]).set_result(None)

    await connection.subscribe(f"{name}.done.>", cb=answered)

    async def call() -> None:
        call_id = new_id()
        waits[call_id] = answer = asyncio.get_running_loop().create_future()
        await stream.publish(f"{name}.call", _TEXT.encode(), headers={"Nats-Msg-Id": call_id, "id": call_id})
        await answer

    yield call
    await connection.close()


# ------------------------------------------------------------------------------------------------ toolbus


async def _worker(url: str, name: str) -> None:
    await ToolWorker(url, [echo], pool=_POOL, prefix=name, max_concurrency=1_000).run(lambda: _say("ready"))


@asynccontextmanager
async def toolbus_calls(url: str, name: str) -> AsyncGenerator[Call]:
    """Calls of toolbus on the worker `name`: a function that makes one call and waits for its answer."""
    bus, tools = EventBus(), ToolRegistry([echo])
    arguments = {"said": _TEXT}
    async with NatsExecutor(url, pool=_POOL, prefix=name).attach(bus, tools, lambda: None):
        waits: dict[str, asyncio.Future[Event]] = {}

        def answered(event: ToolCallCompleted) -> None:
            waits.pop(event.call_id).set_result(event)

        bus.connect(ToolCallCompleted, answered)
        begun: list[tuple[Mailbox, list[str]]] = []

        async def call() -> None:
            if not begun or len(begun[-1][1]) == _CALLS_OF_A_REQUEST:
                begun.append((bus.arbitration.open_mailbox(f"r{new_id()}"), []))
            mailbox, made = begun[-1]
            call_id = new_id()
            made.append(call_id)
            waits[call_id] = answer = asyncio.get_running_loop().create_future()
            bus.arbitration.open_calls(mailbox, [call_id])
            requested = ToolCallRequested(
                request_id=mailbox.request_id,
                call_id=call_id,
                name="echo",
                arguments=arguments,
                round=0,
                timeout_seconds=600.0,
                idempotency_key=call_id,
                definition=definition_of(tools.specs["echo"]),
                at=bus.clock(),
            )
            bus.arbitration.announce(requested)
            await answer
            mailbox.drain()
            if len(made) == _CALLS_OF_A_REQUEST and not mailbox.open_calls:
                bus.arbitration.close_mailbox(mailbox)
                bus.arbitration.announce(RequestCompleted(request_id=mailbox.request_id, outcome="completed", text=""))

        yield call


# ------------------------------------------------------------------------------------------------ relayed events


class _Speaker(ScriptedProvider):
    """A model that says so many pieces when the benchmark is ready."""

    def __init__(self, pieces: int) -> None:
        super().__init__([])
        self.pieces = pieces
        self.begins = asyncio.Event()

    async def respond(self, request: Any, emit: Any) -> ModelReply:
        del request
        await self.begins.wait()
        for number in range(self.pieces):
            emit(TextPiece("token "))
            if number % 10 == 0:
                await asyncio.sleep(0)
        return ModelReply(message=AssistantMessage(text="token " * self.pieces))


async def _speak(url: str, path: str, pieces: str) -> None:
    """Run requests whose pieces another process reads."""
    model = _Speaker(int(pieces))
    async with Runtime(model, store=SqliteStore(path), relay=NatsRelay(url)) as runtime:
        sessions = [runtime.start("Go.") for _ in range(_SPEAKERS)]
        for session in sessions:
            await session.accepted()
            _say(session.request_id)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        model.begins.set()
        for session in sessions:
            await session.result()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def _relayed(url: str, effort: Effort) -> Row:
    """The time in which one process reads 1,000 pieces of text of another one."""
    pieces = effort.of(_PIECES, least=10)
    times = [1e6 / await _relayed_once(url, pieces) for _ in range(min(3, effort.repeats))]
    name = f"1,000 pieces of text, of {_SPEAKERS} requests in another process"
    return measured(name, times, "ms", Goal(50.0), remark=f"{shown(1e6 / statistics.median(times))} pieces a second")


async def _relayed_once(url: str, pieces: int) -> float:
    with tempfile.TemporaryDirectory(prefix="toolbus-") as folder:
        path = str(Path(folder) / "requests.db")
        command = [sys.executable, "-m", "benchmarks.remote", "speak", url, path, str(pieces)]
        with subprocess.Popen(  # noqa: ASYNC220 -- nothing else runs here
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            ids = [process.stdout.readline().strip() for _ in range(_SPEAKERS)]
            heard: list[int] = []
            first = 0.0

            async def read(request_id: str) -> None:
                nonlocal first
                async for event in client.request(request_id).events():
                    if isinstance(event, TextDelta):
                        first = first or time.perf_counter()
                        heard.append(event.text.count("token "))

            async with Client(SqliteStore(path), relay=NatsRelay(url)) as client, asyncio.timeout(_MAX_SECONDS):
                readers = [asyncio.create_task(read(each)) for each in ids]
                await asyncio.sleep(1)
                process.stdin.write("go\n")
                process.stdin.flush()
                await asyncio.gather(*readers)
            seconds = time.perf_counter() - first
            process.communicate("end\n")
    if (found := sum(heard)) != (said := _SPEAKERS * pieces):
        raise RuntimeError(f"{found:,} of {said:,} pieces were heard")
    return found / seconds


# ------------------------------------------------------------------------------------------------ measuring


@dataclass
class _Ran:
    """One run of one side: seconds for a call and CPU seconds of this process for a call, and calls a second."""

    latency: float
    cpu: float
    rate: float


async def _measured(side: Callable[[], Any], width: int, count: int) -> _Ran:
    async with side() as call:
        for _ in range(3):
            await call()
        latencies: list[float] = []
        left = iter(range(count))

        async def lane() -> None:
            for _ in left:
                began = time.perf_counter()
                await call()
                latencies.append(time.perf_counter() - began)

        started, cpu = time.perf_counter(), time.process_time()
        # Without this bound, a worker that has ended would let the benchmark stand still.
        async with asyncio.timeout(_MAX_SECONDS):
            await asyncio.gather(*[lane() for _ in range(width)])
        seconds = time.perf_counter() - started
        return _Ran(statistics.median(latencies), (time.process_time() - cpu) / count, count / seconds)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextmanager
def worker_process(kind: str, url: str, name: str) -> Generator[subprocess.Popen[str]]:
    """Run a worker, "toolbus" or "bare", in a process of its own while the block is open."""
    command = [sys.executable, "-m", "benchmarks.remote", kind, url, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"the {kind} worker did not start")
            yield process
        finally:
            process.kill()


async def _calls(url: str, effort: Effort) -> list[Row]:
    ours, theirs = f"t{new_id()}", f"b{new_id()}"
    rows: list[Row] = []
    with worker_process("toolbus", url, ours), worker_process("bare", url, theirs):
        for width, most in WIDTHS.items():
            count = effort.of(most, least=width if effort.share < 0.01 else 20)
            runs: dict[str, list[_Ran]] = {"toolbus": [], "bare": []}

            async def side(
                kind: str, width: int = width, count: int = count, runs: dict[str, list[_Ran]] = runs
            ) -> float:
                make = toolbus_calls if kind == "toolbus" else _bare
                name = ours if kind == "toolbus" else theirs
                runs[kind].append(await _measured(lambda: make(url, name), width, count))
                return 0.0

            await alternate(effort.repeats, lambda: side("toolbus"), lambda: side("bare"))
            rows += _rows_of(width, runs["toolbus"], runs["bare"])
    return rows


def _rows_of(width: int, ours: list[_Ran], theirs: list[_Ran]) -> list[Row]:
    at_once = "1 at a time" if width == 1 else f"{width:,} at once"
    found: list[Row] = []
    if width == 1:
        both = compared([each.latency * 1e6 for each in ours], [each.latency * 1e6 for each in theirs])
        found.append(
            Row(
                f"latency of a call over NATS, {at_once}",
                shown_us(both.ours),
                f"nats-py, {shown_us(both.theirs)}",
                both.ratio,
                both.lowest,
                both.highest,
                goal=Goal(1.5),
            )
        )
    both = compared([each.rate for each in ours], [each.rate for each in theirs])
    cpu = statistics.median(each.cpu for each in ours) * 1e6, statistics.median(each.cpu for each in theirs) * 1e6
    found.append(
        Row(
            f"calls a second over NATS, {at_once}",
            shown(both.ours),
            f"nats-py, {shown(both.theirs)}",
            both.ratio,
            both.lowest,
            both.highest,
            goal=Goal(0.7, at_least=True),
            remark=f"CPU of a call beside the session: {shown_us(cpu[0])}, with nats-py {shown_us(cpu[1])}",
        )
    )
    return found


async def _idle(url: str, effort: Effort) -> Row:
    """The CPU time of a worker that waits, as thousandths of a second for each second."""
    import psutil

    seconds = max(0.2, _IDLE_SECONDS * effort.share)
    shares: list[float] = []
    with worker_process("toolbus", url, f"i{new_id()}") as process:
        watched = psutil.Process(process.pid)
        for _ in range(min(3, effort.repeats)):
            before = watched.cpu_times()
            await asyncio.sleep(seconds)
            after = watched.cpu_times()
            spent = after.user + after.system - before.user - before.system
            shares.append(max(0.01, spent * 1e3 / seconds))
    return measured("idle worker, CPU for each second", shares, "ms", Goal(10.0), against="a second")


async def _unknown(effort: Effort) -> Row:
    """The time until a command to an unknown request is answered."""
    times: list[float] = []
    with tempfile.TemporaryDirectory(prefix="toolbus-") as folder:
        async with Client(SqliteStore(Path(folder) / "requests.db")) as client:
            for number in range(effort.of(100, least=3)):
                began = time.perf_counter()
                if await client.request(f"unknown {number}").cancel() != "unknown":
                    raise RuntimeError("the request is known")
                times.append((time.perf_counter() - began) * 1e3)
    return measured("a command to an unknown request, on SQLite", times, "ms", Goal(50.0))


async def _remote(effort: Effort) -> list[Row]:
    # This is the server that the tests use, from a wheel with the broker's own program.
    from tests.support.nats_server import NatsServer

    server = NatsServer()
    try:
        return [
            *await _calls(server.url, effort),
            await _idle(server.url, effort),
            await _unknown(effort),
            await _relayed(server.url, effort),
        ]
    finally:
        server.close()


def remote(effort: Effort) -> list[Row]:
    """Measure calls on another machine, with everything on this one."""
    return run(_remote, effort)


if __name__ == "__main__":
    kind, *given = sys.argv[1:]
    roles: dict[str, Callable[..., Any]] = {"toolbus": _worker, "bare": _bare_worker, "speak": _speak}
    asyncio.run(roles[kind](*given))
