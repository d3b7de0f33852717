"""Faults of machines and networks while calls run elsewhere: nothing is lost, reported twice, or run twice that may not.

The first half has each fault at the worst moment, and the second half all of them at random moments: one of each in the
suite, and with TOOLBUS_FAULTS=20 so many of each; TOOLBUS_FAULTS_SEED=4711 makes them others.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import nats
import pytest
from remote_workers import Broker, Held, model, ran, worker_here, worker_process
from worker_child import TOOLS

from support import forked
from support.nats_server import NatsServer
from support.tcp_proxy import TcpProxy
from toolbus import Limits, RequestResult, Runtime, tool
from toolbus.events import Event, ToolCallCompleted, ToolCallFailed, ToolCallStarted
from toolbus.remote.nats import NatsExecutor
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, calls, text

pytestmark = [
    pytest.mark.guarantee("G24"),
    pytest.mark.filterwarnings("ignore:unclosed <StreamWriter"),  # nats-py leaves the one of a cut connection
    pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="stopping a process is POSIX's"),
]
driver: Any = nats


@pytest.fixture(params=["asyncio"])  # nats-py works on asyncio only
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


def executor_of(broker: Broker, port: int = 0) -> NatsExecutor:
    return NatsExecutor(f"nats://127.0.0.1:{port}" if port else broker[0].url, pool="gpu", prefix=broker[1])


async def until_ran(notes: Path, count: int) -> None:
    while not notes.exists() or len(ran(notes)) < count:  # noqa: ASYNC110, ASYNC240 -- another process writes it
        await anyio.sleep(0.005)


# ------------------------------------------------------------------------------------------ at the worst moment


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "once"])
async def test_a_worker_that_was_stopped_past_its_lease_and_continues_changes_nothing(
    broker: Broker, tmp_path: Path, *, idempotent: bool
) -> None:
    notes, file = tmp_path / "notes", tmp_path / "file"
    name = "wait_again" if idempotent else "wait_once"
    reported: list[Event] = []
    provider = ScriptedProvider(
        [calls((name, {"path": str(file)})), text("Done."), calls(("quick", {})), text("Done.")]
    )
    with anyio.fail_after(60), worker_process(broker, notes, most=1) as first:
        async with Runtime(provider, tools=TOOLS, executors=[executor_of(broker)]) as runtime:
            runtime.bus.connect((ToolCallCompleted, ToolCallFailed), reported.append)
            session = runtime.start("Go.")
            await until_ran(notes, 1)
            first.send_signal(signal.SIGSTOP)
            with worker_process(broker, notes, most=1):
                if idempotent:
                    await until_ran(notes, 2)
                    file.touch()
                result = await session.result()
            file.touch()
            first.send_signal(signal.SIGCONT)
            # The slot of the worker is free again only once its late answer has been dealt with.
            assert (await runtime.run("Again.")).tool_calls[0].ok
    [call], [kind, _] = result.tool_calls, reported
    if idempotent:
        assert (call.content, kind.type, len(set(ran(notes)[:2])), len(ran(notes))) == (
            *("attempt 2", "tool_call_completed", 1, 3),
        )
    else:
        assert (call.reason, call.outcome_unknown, ran(notes)[1:]) == ("interrupted", True, ["quick"])


@pytest.mark.parametrize("ends", ["forwarded", "cut"])
async def test_an_answer_that_comes_while_the_session_is_cut_off_is_reported_when_the_network_is_back(
    broker: Broker, ends: str
) -> None:
    held, reported = Held(idempotent=False), list[Event]()
    client: Any = await driver.connect(broker[0].url)
    answers = await client.subscribe(f"{broker[1]}.done.>")
    async with TcpProxy("127.0.0.1", broker[0].port) as proxy, worker_here(broker, [held.tool]):
        executor = executor_of(broker, proxy.port)
        async with Runtime(model("held"), tools=[held.tool], executors=[executor]) as runtime:
            runtime.bus.connect((ToolCallCompleted, ToolCallFailed), reported.append)
            session = runtime.start("Go.")
            await held.began.wait()
            proxy.hold()
            held.released.set()
            await answers.next_msg(timeout=30)
            await anyio.wait_all_tasks_blocked()
            assert reported == []
            proxy.forward() if ends == "forwarded" else proxy.cut()
            assert (await session.result()).tool_calls[0].content == "held"
    await client.close()
    assert (held.runs, len(reported)) == (1, 1)


@pytest.mark.guarantee("G25")
async def test_a_session_that_stays_cut_off_ends_its_calls_at_their_deadlines(broker: Broker) -> None:
    held = Held()

    @tool(pool="gpu", timeout_seconds=0.5)
    async def other() -> None:
        """Never arrive at the worker."""

    tools = [held.tool, other]
    limits = Limits(tool_timeout_seconds=6.0)  # enough for the first call to begin on a machine that stands still
    provider = ScriptedProvider([calls(("held", {})), calls(("other", {})), text("Done.")])
    async with TcpProxy("127.0.0.1", broker[0].port) as proxy, worker_here(broker, tools):
        executor = executor_of(broker, proxy.port)
        async with Runtime(provider, tools=tools, executors=[executor], limits=limits) as runtime:
            session = runtime.start("Go.")
            # What the worker says comes after the acknowledgement of the call, without which the call would be lost.
            async for _ in session.events(ToolCallStarted):
                break
            proxy.hold()
            result = await session.result()
            proxy.cut()
    assert [each.reason for each in result.tool_calls] == ["timeout", "lost"]


@pytest.mark.parametrize("lost", ["consumer", "streams"])
async def test_what_the_server_has_lost_is_made_again_for_the_next_calls(broker: Broker, lost: str) -> None:
    @tool(pool="gpu", idempotent=True)
    async def echo(text: str) -> str:
        """Return the text."""
        return text

    texts = "small", "x" * 2_000_000, "small", "x" * 2_000_000
    provider = ScriptedProvider([step for each in texts for step in (calls(("echo", {"text": each})), text("Done."))])
    with anyio.fail_after(60):
        async with (
            worker_here(broker, [echo]),
            Runtime(provider, tools=[echo], executors=[executor_of(broker)]) as runtime,
        ):
            for position, each in enumerate(texts):
                if position == 2:
                    client = await driver.connect(broker[0].url)
                    if lost == "consumer":
                        await client.jetstream().delete_consumer(f"{broker[1]}_calls", "pool_gpu")
                    else:
                        for name in ("calls", "answers", "parts"):
                            await client.jetstream().delete_stream(f"{broker[1]}_{name}")
                    await client.close()
                (call,) = (await runtime.run("Go.")).tool_calls
                assert (call.error, call.content) == ("", each)


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "once"])
async def test_a_call_that_the_server_has_lost_before_its_request_is_resumed_runs_again_only_if_it_may(
    broker: Broker, *, idempotent: bool
) -> None:
    held, store = Held(idempotent=idempotent), MemoryStore(journal=True)

    def runtime() -> Runtime[None]:
        return Runtime(
            answering("held", {}), tools=[held.tool], executors=[executor_of(broker)], store=store, drain_seconds=0
        )

    with anyio.CancelScope() as host:
        async with worker_here(broker, [held.tool]), runtime() as first:
            first.start("Go.")
            await held.began.wait()
            host.cancel()
            await anyio.sleep_forever()
    client = await driver.connect(broker[0].url)
    for name in ("calls", "answers"):
        await client.jetstream().delete_stream(f"{broker[1]}_{name}")
    await client.close()
    held.released.set()
    async with worker_here(broker, [held.tool]), runtime() as second:
        (session,) = await second.resume()
        (call,) = (await session.result()).tool_calls
    expected = (2, "held", "") if idempotent else (1, "", "interrupted")
    assert (held.runs, call.content, call.reason) == expected
    assert call.outcome_unknown is not idempotent


async def test_of_two_that_resume_a_request_at_once_one_reports_the_answer(broker: Broker) -> None:
    held, store, reported = Held(idempotent=False), MemoryStore(journal=True), list[Event]()

    def runtime() -> Runtime[None]:
        made = Runtime(
            answering("held", {}), tools=[held.tool], executors=[executor_of(broker)], store=store, drain_seconds=0
        )
        made.bus.connect((ToolCallCompleted, ToolCallFailed), reported.append)
        return made

    async with worker_here(broker, [held.tool]):
        with anyio.CancelScope() as host:
            async with runtime() as first:
                first.start("Go.")
                await held.began.wait()
                host.cancel()
                await anyio.sleep_forever()
        async with runtime() as second, runtime() as third:
            results = await resumed_by(second, third, between=held.released.set)
    assert [result.tool_calls[0].content for result in results] == ["held"]
    assert (held.runs, len(reported)) == (1, 1)


def answering(*call: Any) -> ScriptedProvider:
    """A model that makes one reply with calls, in whichever process, and then ends."""
    return ScriptedProvider(lambda request: text("Done.") if request.messages[-1].role == "tool" else calls(call))


async def resumed_by(
    *runtimes: Runtime[None], between: Callable[[], object] = lambda: None
) -> list[RequestResult[Any]]:
    """Resume all requests of the store in all runtimes at once, and return the results of those that got one."""
    found: list[Any] = []

    async def resume(each: Runtime[None]) -> None:
        found.extend(await each.resume())

    async with anyio.create_task_group() as group:
        for each in runtimes:
            group.start_soon(resume, each)
    await anyio.wait_all_tasks_blocked()
    between()
    return [await each.result() for each in found]


# ------------------------------------------------------------------------------------------ at random moments


class World:
    """Two worker processes, a server, and a network between the session and the server; `chance` picks the moments."""

    def __init__(self, server: NatsServer, proxy: TcpProxy, workers: list[forked.Process], seed: str) -> None:
        self.server, self.proxy, self.workers = server, proxy, workers
        self.chance = random.Random(seed)

    async def some_time(self, most: float = 0.6) -> None:
        await anyio.sleep(self.chance.uniform(0, most))


async def worker_stopped(world: World) -> None:
    world.workers[0].send_signal(signal.SIGSTOP)
    await anyio.sleep(world.chance.uniform(0.4, 1.6))  # the lease is 0.5 s
    world.workers[0].send_signal(signal.SIGCONT)


async def worker_killed(world: World) -> None:
    world.workers[0].kill()


async def server_killed(world: World) -> None:
    world.server.kill()
    await world.some_time()
    world.server.start()


async def cut_off(world: World) -> None:
    world.proxy.hold()
    await world.some_time(2.0)
    world.proxy.forward() if world.chance.random() < 0.5 else world.proxy.cut()


Fault = Callable[[World], Coroutine[Any, Any, None]]
FAULTS: list[Fault] = [worker_stopped, worker_killed, server_killed, cut_off]
COUNT = int(os.environ.get("TOOLBUS_FAULTS", "1"))
SEED = int(os.environ.get("TOOLBUS_FAULTS_SEED", "20"))


@pytest.mark.repeats("the lines of calls over NATS, with other moments")
@pytest.mark.parametrize("seed", range(SEED, SEED + COUNT))
@pytest.mark.parametrize("resumers", [0, 2], ids=["", "resumed"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_nothing_is_lost_or_reported_twice_and_nothing_runs_twice_that_may_not(
    broker: Broker, tmp_path: Path, fault: Fault, resumers: int, seed: int
) -> None:
    notes, reported, store = tmp_path / "notes", list[Event](), MemoryStore(journal=True)
    chance = random.Random(f"calls {seed}")
    made = [
        (name, {"number": number, "seconds": chance.uniform(0, 0.8)})
        for number in range(4)
        for name in ("work_again", "work_once")
    ]
    provider = ScriptedProvider(lambda request: text("Done.") if request.messages[-1].role == "tool" else calls(*made))

    def runtime(port: int) -> Runtime[None]:
        made = Runtime(provider, tools=TOOLS, executors=[executor_of(broker, port)], store=store, drain_seconds=0)
        made.bus.connect((ToolCallCompleted, ToolCallFailed), reported.append)
        return made

    with anyio.fail_after(90), ExitStack() as stack:
        workers = [stack.enter_context(worker_process(broker, notes, most=2)) for _ in range(2)]
        async with TcpProxy("127.0.0.1", broker[0].port) as proxy:
            world = World(broker[0], proxy, workers, f"{fault.__name__} {resumers} {seed}")
            result = await under(fault, world, lambda: runtime(proxy.port), resumers)
    assert result is not None
    runs = Counter(ran(notes))
    assert {each: count for each, count in runs.items() if each.startswith("work_once") and count > 1} == {}
    assert sorted(Counter(getattr(each, "call_id", "") for each in reported).values()) == [1] * len(made)
    for call, (name, arguments) in zip(result.tool_calls, made, strict=True):
        is_answered = call.content == f"{name} {arguments['number']}" and runs[call.content] >= 1
        assert is_answered or (name == "work_once" and call.reason == "interrupted"), call


async def under(
    fault: Fault, world: World, runtime: Callable[[], Runtime[None]], resumers: int
) -> RequestResult[Any] | None:
    """Run a request while the fault happens; with `resumers`, its process ends too, and so many resume it at once."""
    results: list[RequestResult[Any]] = []
    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as host:
            async with runtime() as first:
                session = first.start("Go.")
                await world.some_time(0.3)
                group.start_soon(fault, world)
                if resumers:
                    await world.some_time(0.3)
                    host.cancel()
                    await anyio.sleep_forever()
                results.append(await session.result())
        if not results:
            async with runtime() as second, runtime() as third:
                results += await resumed_by(second, third)
    return results[0] if results else None
