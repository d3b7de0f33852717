"""Calls over a real NATS server: the contract of executors, and what happens when a worker or the server dies."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import nats
import pytest
import worker_child
from pydantic import SecretStr
from remote_workers import Broker, Held, Said, model, ran, worker_here, worker_process
from worker_child import TOOLS, in_pool

from support import forked
from support.nats_server import NatsServer
from support.skipped_time import skip
from toolbus import EventBus, Limits, RequestSession, Runtime, ToolContext, ToolRegistry, tool
from toolbus.errors import ConfigurationError
from toolbus.events import ToolCallCompleted, ToolCallPaused, ToolCallRequested, encode
from toolbus.messages import AssistantMessage, Message, UserMessage
from toolbus.records import replace
from toolbus.remote import _nats_connection
from toolbus.remote import nats as over_nats
from toolbus.remote._nats_connection import Connection
from toolbus.remote._transport import Unavailable
from toolbus.remote.nats import NatsExecutor, ToolWorker
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, calls, check_executor, text

driver: Any = nats
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-tools-on-other-machines.md"


@pytest.fixture(params=["asyncio"])  # nats-py works on asyncio only
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


def runtime_of(broker: Broker, *names: str, **options: Any) -> Runtime[None]:
    executor = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    return Runtime(model(*names), tools=TOOLS, executors=[executor], **options)


async def line_of(process: forked.Process) -> str:
    """Return the next note of a worker's handlers."""
    return (await anyio.to_thread.run_sync(process.stdout.readline)).decode().strip()


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Path]:
    worker_child.NOTES[:] = [tmp_path / "notes"]
    yield tmp_path / "notes"
    worker_child.NOTES.clear()


async def test_the_executor_keeps_the_contract_with_its_tools_in_another_process(broker: Broker, notes: Path) -> None:
    server, prefix = broker
    with worker_process(broker, notes, "contract"):
        report = await check_executor(
            lambda bus, _tools: NatsExecutor(server.url, pool="contract", prefix=prefix).attach(
                bus, ToolRegistry(in_pool("contract")), lambda: None
            ),
            elsewhere=True,
            max_concurrency=4,
            quiet_seconds=0.2,
        )
    assert report.skipped == ()


async def test_a_call_runs_on_a_worker_with_the_deps_of_the_worker(broker: Broker, notes: Path) -> None:
    async with worker_here(broker, deps="of here"), runtime_of(broker, "quick") as runtime:
        result = await runtime.run("Go.")
    assert result.tool_calls[0].content == "deps of here"


async def test_the_transcript_is_sent_along_for_the_tools_that_ask_for_it_only(broker: Broker, notes: Path) -> None:
    history: list[Message] = [UserMessage(content="one\ntwo"), AssistantMessage(text="\u2028 three")]
    async with worker_here(broker), runtime_of(broker, "recall", "quick") as runtime:
        bodies = list[bytes]()
        client = await driver.connect(broker[0].url)

        async def on_call(message: Any) -> None:
            bodies.append(message.data)

        await client.subscribe(f"{broker[1]}.call.>", cb=on_call)
        await client.flush()
        result = await runtime.run("Go.", history=history)
        await client.drain()
    recalled, quick = result.tool_calls
    assert recalled.content == "user: one\ntwo | assistant: \u2028 three | user: Go. | assistant: "
    assert quick.ok
    assert sorted(body.count(b"\n") for body in bodies) == [0, 1]


async def test_a_call_with_a_damaged_transcript_is_not_run(broker: Broker, said: Said) -> None:
    held = Held()
    requested = ToolCallRequested(
        request_id="r", call_id="c", name="held", arguments={}, round=0, timeout_seconds=30, idempotency_key="c"
    )
    async with worker_here(broker, [held.tool]):
        client = await driver.connect(broker[0].url)
        await client.jetstream().publish(f"{broker[1]}.call.gpu.r.c", encode(requested) + b'\n[{"role":"nobody"}]')
        await said.until("was not run: the transcript")
        await client.close()
    assert not held.runs


@pytest.mark.parametrize("request_id", ["*", ">", "a.b", "a b", "ü", "=2a"])
async def test_any_request_id_reaches_its_worker(broker: Broker, notes: Path, request_id: str) -> None:
    bus, tools = EventBus(), ToolRegistry(TOOLS)
    executor = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    async with worker_here(broker, deps="here"), executor.attach(bus, tools, lambda: None):
        result = await RequestSession(bus, model("quick"), "Go.", tools=tools, request_id=request_id).run()
    assert result.tool_calls[0].content == "deps here"


async def test_ids_that_are_too_long_for_the_broker_end_their_call_and_no_other_one(
    broker: Broker, notes: Path, said: Said
) -> None:
    bus, tools = EventBus(), ToolRegistry(TOOLS)
    executor = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    async with worker_here(broker, deps="here"), executor.attach(bus, tools, lambda: None):
        for request_id, expected in (("x" * 5_000, "limit"), ("ü" * 1_000, "limit"), ("x" * 1_000, "deps here")):
            session = RequestSession(bus, model("quick"), "Go.", tools=tools, request_id=request_id)
            call = (await session.run()).tool_calls[0]
            assert (call.reason or call.content) == expected
    assert said.lines == []


@pytest.mark.guarantee("G24")
async def test_a_call_of_a_killed_worker_runs_again_under_its_key_if_it_may(broker: Broker, notes: Path) -> None:
    with worker_process(broker, notes) as first:
        async with runtime_of(broker, "safe") as runtime:
            session = runtime.start("Go.")
            assert (await line_of(first)).partition(" ")[0] in {"safe", "once"}
            first.kill()
            first.wait()
            with worker_process(broker, notes):
                result = await session.result()
    keys = ran(notes)
    assert (result.tool_calls[0].content, len(keys), len(set(keys))) == ("attempt 2", 2, 1)


@pytest.mark.guarantee("G24")
async def test_a_call_of_a_killed_worker_that_may_not_run_twice_ends_as_interrupted(
    broker: Broker, notes: Path
) -> None:
    with worker_process(broker, notes) as first:
        async with runtime_of(broker, "once") as runtime:
            session = runtime.start("Go.")
            assert (await line_of(first)).partition(" ")[0] in {"safe", "once"}
            first.kill()
            first.wait()
            with worker_process(broker, notes):
                result = await session.result()
    call = result.tool_calls[0]
    assert (call.ok, call.reason, ran(notes)) == (False, "interrupted", ["once"])


async def test_a_call_that_is_requested_while_the_server_is_away_runs_when_it_is_back(
    broker: Broker, notes: Path
) -> None:
    async with worker_here(broker, deps="here"), runtime_of(broker, "quick") as runtime:
        broker[0].kill()
        session = runtime.start("Go.")
        await anyio.wait_all_tasks_blocked()
        broker[0].start()
        assert (await session.result()).tool_calls[0].content == "deps here"
    assert ran(notes) == ["quick"]


@pytest.mark.guarantee("G24")
async def test_the_answer_of_a_call_survives_a_kill_of_the_server_while_it_runs(broker: Broker) -> None:
    held = Held()
    executor = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    async with (
        worker_here(broker, [held.tool]),
        Runtime(model("held"), tools=[held.tool], executors=[executor]) as runtime,
    ):
        session = runtime.start("Go.")
        await held.began.wait()
        broker[0].kill()
        held.released.set()
        await anyio.wait_all_tasks_blocked()
        broker[0].start()
        assert (await session.result()).tool_calls[0].content == "held"
    assert held.runs == 1


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "once"])
async def test_an_answer_that_comes_while_no_session_runs_or_later_is_reported_when_the_request_is_resumed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, *, idempotent: bool, when: str
) -> None:
    """A process that was suspended may send the call once more when all is over: it runs again only if it may."""
    held, store = Held(idempotent=idempotent), MemoryStore(journal=True)
    send, sent = over_nats._SessionLink.send, list[Any]()

    async def noted(self: Any, key: Any, body: bytes, *args: Any, **options: Any) -> None:
        sent.append((key, body))
        await send(self, key, body, *args, **options)

    monkeypatch.setattr(over_nats._SessionLink, "send", noted)

    def runtime() -> Runtime[None]:
        executor = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
        provider = ScriptedProvider(
            lambda request: text("Done.") if request.messages[-1].role == "tool" else calls(("held", {}))
        )
        return Runtime(provider, tools=[held.tool], executors=[executor], store=store, drain_seconds=0)

    async with worker_here(broker, [held.tool]):
        with anyio.CancelScope() as host:
            async with runtime() as first:
                first.start("Go.")
                await held.began.wait()
                host.cancel()
                await anyio.sleep_forever()
        if when == "before":
            held.released.set()
        async with runtime() as second:
            (session,) = await second.resume()
            await anyio.wait_all_tasks_blocked()
            held.released.set()
            assert (await session.result()).tool_calls[0].content == "held"
        assert held.runs == 1
        session_side: Any = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
        async with session_side._link() as link:
            key, body = sent[0]
            assert await kept(link.send, key, body)
            with anyio.fail_after(30):
                while await link.find(key) is None:
                    await anyio.lowlevel.checkpoint()
    assert held.runs == (2 if idempotent else 1)


@pytest.mark.guarantee("G24")
async def test_a_call_that_was_stopped_for_good_is_not_begun_when_it_is_sent_again(broker: Broker) -> None:
    key = ("r", "c")
    session_side: Any = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    worker_side: Any = ToolWorker(broker[0].url, TOOLS, pool="gpu", prefix=broker[1])
    async with session_side._link() as session, worker_side._link() as worker:
        for never_again, begins in ((False, "mine"), (True, "taken")):
            await session.stop(key, never_again=never_again)
            assert await kept(session.send, key, b"call")
            (delivery,) = await worker.fetch(1)
            assert await delivery.begin() == begins
            assert await worker.find(key) is None
            await delivery.done()


@pytest.mark.guarantee("G25")
async def test_a_call_that_the_server_does_not_take_is_lost_at_its_deadline_and_never_runs(
    broker: Broker, notes: Path
) -> None:
    async with worker_here(broker), runtime_of(broker, "once", limits=Limits(tool_timeout_seconds=0.3)) as runtime:
        broker[0].kill()
        call = (await runtime.run("Go.")).tool_calls[0]
        broker[0].start()
    assert (call.reason, call.outcome_unknown) == ("lost", True)
    async with worker_here(broker, deps="here"), runtime_of(broker, "quick") as runtime:
        assert (await runtime.run("Go.")).tool_calls[0].content == "deps here"
    assert ran(notes) == ["quick"]


@pytest.mark.guarantee("G25")
async def test_a_call_that_the_server_took_before_it_was_gone_ends_at_its_deadline(broker: Broker) -> None:
    held = Held()
    executor = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    async with (
        worker_here(broker, [held.tool]),
        Runtime(
            model("held"), tools=[held.tool], executors=[executor], limits=Limits(tool_timeout_seconds=30)
        ) as runtime,
    ):
        session = runtime.start("Go.")
        await held.began.wait()
        broker[0].kill()
        skip(30)
        assert (await session.result()).tool_calls[0].reason == "timeout"
        broker[0].start()


async def test_a_worker_with_another_definition_leaves_the_call_to_another_one(
    broker: Broker, notes: Path, said: Said
) -> None:
    @tool(pool="gpu", name="quick")
    async def other() -> str:
        """Another definition."""
        raise AssertionError

    async with worker_here(broker, [other]), runtime_of(broker, "quick") as runtime:
        session = runtime.start("Go.")
        await said.until("another definition of the tool")
        async with worker_here(broker, deps="right"):
            assert (await session.result()).tool_calls[0].content == "deps right"


async def test_forged_answers_and_calls_are_refused(broker: Broker, notes: Path, said: Said) -> None:
    requested: list[ToolCallRequested] = []
    async with worker_here(broker, deps="here"), runtime_of(broker, "quick", "quick") as runtime:
        runtime.bus.connect(ToolCallRequested, requested.append)
        await runtime.run("Go.")
        client: Any = await driver.connect(broker[0].url)
        forged = f"{broker[1]}.call.gpu"
        for subject, body in ((f"{forged}.a.b", encode(requested[0])), (f"{forged}.a.=ff", b"{"), (f"{forged}.x", b"")):
            await client.jetstream().publish(subject, body)
        await said.until("was not run", 3)
        await client.close()
    assert ran(notes) == ["quick", "quick"]


async def forged(broker: Broker, requested: ToolCallRequested, kind: str, body: bytes) -> None:
    """Publish `body` as the answer of a call, as another client of the same account can."""
    names: Any = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    key = (requested.request_id, requested.call_id)
    client: Any = await driver.connect(broker[0].url)
    if kind == "node":
        call = await client.jetstream().get_last_msg(f"{broker[1]}_calls", names._broker.subject("call", key))
        await client.publish(names._broker.node(call.headers["Toolbus-Node"]), body)
    else:
        await client.jetstream().publish(names._broker.subject("done", key), body)
    await client.close()


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize("kind", ["node", "done"])
async def test_the_credentials_of_the_broker_are_the_boundary_of_trust_and_a_forged_result_is_reported_once_too(
    broker: Broker, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolbus.remote._executor._ALL_LOOKS", 1)
    held, asked, reported = Held(), list[ToolCallRequested](), list[ToolCallCompleted]()
    executor = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    async with (
        worker_here(broker, [held.tool]),
        Runtime(model("held"), tools=[held.tool], executors=[executor]) as runtime,
    ):
        runtime.bus.connect(ToolCallRequested, asked.append)
        runtime.bus.connect(ToolCallCompleted, reported.append)
        session = runtime.start("Go.")
        await held.began.wait()
        await forged(broker, asked[0], kind, encode(asked[0].completed("forged")))
        if kind == "done":
            # The broker keeps the first answer, and the worker's own comes too late.
            held.released.set()
        result = await session.result()
        held.released.set()
    assert ([each.content for each in reported], result.tool_calls[0].content) == (["forged"], "forged")


async def test_an_answer_that_is_damaged_or_of_another_tool_is_refused_and_the_worker_s_own_counts(
    broker: Broker, said: Said
) -> None:
    held, asked = Held(), list[ToolCallRequested]()
    executor = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    async with (
        worker_here(broker, [held.tool]),
        Runtime(model("held"), tools=[held.tool], executors=[executor]) as runtime,
    ):
        runtime.bus.connect(ToolCallRequested, asked.append)
        session = runtime.start("Go.")
        await held.began.wait()
        other = replace(asked[0].completed("forged"), name="other")
        paused = ToolCallPaused(request_id=asked[0].request_id, call_id=asked[0].call_id)
        for body in (b"{", encode(asked[0]), encode(other), encode(paused)):
            await forged(broker, asked[0], "node", body)
        await said.until("was not accepted", 4)
        held.released.set()
        assert (await session.result()).tool_calls[0].content == "held"


async def test_nothing_is_kept_of_a_call_once_its_request_has_ended(broker: Broker, notes: Path) -> None:
    async with worker_here(broker), runtime_of(broker, "quick") as runtime:
        await runtime.run("Go.")
    client: Any = await driver.connect(broker[0].url)
    for stream in ("calls", "answers"):
        info = await client.jetstream().stream_info(f"{broker[1]}_{stream}")
        assert info.state.messages == 0
    await client.close()


async def test_a_call_asks_the_broker_only_to_keep_the_call_and_its_answer(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(pool="gpu", idempotent=True)
    async def echo() -> str:
        """Answer."""
        return "said"

    written: Counter[str] = Counter()
    publish: Any = driver.NATS.publish

    async def counted(client: Any, subject: str, *args: Any, **kwargs: Any) -> None:
        written[".".join(subject.split(".")[1:4] if subject.startswith("$JS") else [subject.split(".")[1]])] += 1
        await publish(client, subject, *args, **kwargs)

    async with worker_here(broker, [echo]):
        round_of: list[tuple[str, dict[str, Any]]] = [("echo", {})] * 10
        asked = ScriptedProvider([*[calls(*round_of) for _ in range(3)], text("Done.")])
        async with Runtime(
            asked, tools=[echo], executors=[NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])]
        ) as runtime:
            monkeypatch.setattr(driver.NATS, "publish", counted)
            result = await runtime.run("Go.")
    assert [each.content for each in result.tool_calls] == ["said"] * 30
    assert written.pop("node") <= 30  # Answers and signals go together.
    assert written.pop(f"ACK.{broker[1]}_calls.pool_gpu") == 30
    assert written.pop("API.CONSUMER.MSG", 0) < 10
    assert written == {"call": 30, "done": 30, "API.STREAM.PURGE": 1}


async def test_a_worker_that_drains_answers_what_runs_and_returns(broker: Broker, notes: Path) -> None:
    worker = ToolWorker(broker[0].url, TOOLS, pool="gpu", prefix=broker[1])
    with anyio.fail_after(30):
        await worker.run(worker.drain)


def test_a_worker_runs_in_one_event_loop_after_the_other(broker: Broker) -> None:
    worker = ToolWorker(broker[0].url, TOOLS, pool="gpu", prefix=broker[1])
    for _ in range(3):
        anyio.run(worker.run, worker.drain)


@pytest.mark.usefixtures("impatient")
async def test_a_wrong_url_is_refused_when_the_runtime_starts() -> None:
    executor = NatsExecutor("nats://user:hunter2@127.0.0.1:1", pool="gpu")
    with pytest.raises(ConfigurationError, match=r"the NATS server at nats://127\.0\.0\.1:1 cannot be used") as raised:
        async with Runtime(model("quick"), tools=TOOLS, executors=[executor]):
            pass
    assert "hunter2" not in str(raised.value)


async def test_a_server_may_take_as_long_for_the_streams_as_for_the_connection(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_side: Any = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    worker_side: Any = ToolWorker(broker[0].url, TOOLS, pool="gpu", prefix=broker[1])
    async with AsyncExitStack() as stack:
        with monkeypatch.context() as patched:
            patched.setattr(_nats_connection, "_ANSWER_SECONDS", 0.0)  # the time for later answers
            for each in (session_side, worker_side):
                await stack.enter_async_context(each._link())


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_trio_is_refused_with_the_reason(broker: Broker) -> None:
    with pytest.raises(ConfigurationError, match="needs asyncio: nats-py does not work on trio"):
        async with runtime_of(broker, "quick"):
            pass


async def kept(write: Any, key: tuple[str, str], body: bytes) -> bool:
    """Send a call or write an answer. Returns whether it is the first one of its call."""
    outcomes: list[Any] = []
    acknowledged = anyio.Event()

    def then(outcome: Any) -> None:
        outcomes.append(outcome)
        acknowledged.set()

    if write.__name__ != "answer":
        await write(key, body, 60.0, then, seconds=60.0, again=False)
    else:
        await write(key, body, then)
    await acknowledged.wait()
    return outcomes[0]


@pytest.mark.guarantee("G24")
async def test_only_one_delivery_begins_a_call_and_none_a_call_that_was_settled(broker: Broker) -> None:
    key = ("r", "c")
    session_side: Any = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    worker_side: Any = ToolWorker(broker[0].url, TOOLS, pool="gpu", prefix=broker[1], lease_seconds=0.3)
    async with (
        session_side._link() as session,
        worker_side._link() as worker,
    ):
        await kept(session.send, key, b"settled")
        (late,) = await worker.fetch(1)
        await session.forget("r", calls_too=True, payloads_too=False, never_again=False)
        assert await late.begin() == "settled"
        assert await kept(session.send, key, b"call")
        assert not await kept(session.send, key, b"sent again")
        (first,) = await worker.fetch(1)
        with anyio.fail_after(60):
            while not (found := await worker.fetch(1)):
                pass  # until its lease has ended
        (second,) = found
        assert (first.body, second.body, second.attempt) == (b"call", b"call", 2)
        assert (await first.begin(), await second.begin()) == ("mine", "taken")
        assert (await first.begin(), await second.begin()) == ("mine", "taken"), "each knows its own mark"
        assert [await kept(worker.answer, key, body) for body in (b"1", b"2")] == [True, False]
        assert await session.find(key) == b"1"


@pytest.mark.guarantee("G24")
async def test_a_call_whose_beginning_was_not_acknowledged_runs_once(
    broker: Broker, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, lost = Connection.publish, list[bytes]()

    async def losing(self: Connection, subject: str, body: bytes) -> bool:
        outcome = await publish(self, subject, body)
        if ".begun." in subject and not lost:
            lost.append(body)
            raise Unavailable("the acknowledgement was lost")
        return outcome

    monkeypatch.setattr(Connection, "publish", losing)
    held = Held(idempotent=False)
    held.released.set()
    async with worker_here(broker, [held.tool]):
        runtime = Runtime(
            model("held"), tools=[held.tool], executors=[NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])]
        )
        async with runtime:
            result = await runtime.run("Go.")
    assert (held.runs, len(lost)) == (1, 1)
    assert [call.content for call in result.tool_calls] == ["held"]
    assert sum("was not begun yet: the acknowledgement was lost" in line for line in said.lines) == 1


async def test_a_worker_refuses_tools_whose_secrets_stay_with_the_session() -> None:
    @tool(pool="gpu")
    async def secret(token: SecretStr) -> str:
        """Take a secret."""
        return token.get_secret_value()

    with pytest.raises(ConfigurationError, match=r"the tools secret take secrets.*secrets=\[\(name, value\)\]"):
        ToolWorker("nats://127.0.0.1", [secret], pool="gpu")


async def test_a_worker_serves_its_pool_beside_tools_of_the_session_that_take_secrets(
    broker: Broker, notes: Path
) -> None:
    @tool
    async def secret(token: SecretStr) -> str:
        """Take a secret."""
        return token.get_secret_value()

    async with worker_here(broker, [secret, *TOOLS], deps="here"), runtime_of(broker, "quick") as runtime:
        assert (await runtime.run("Go.")).tool_calls[0].content == "deps here"


async def test_a_call_that_reaches_a_worker_while_it_drains_runs_at_once_on_another_one(
    broker: Broker, notes: Path
) -> None:
    held = Held()
    tools, provider = [held.tool, *TOOLS], ScriptedProvider([calls(("held", {})), calls(("quick", {})), text("Done.")])
    executor = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    with anyio.fail_after(60):  # the lease is longer
        async with (
            worker_here(broker, tools, deps="old", lease_seconds=600) as old,
            Runtime(provider, tools=tools, executors=[executor]) as runtime,
        ):
            first = runtime.start("Go.")
            await held.began.wait()
            old.drain()
            second = runtime.start("Go.")
            async with worker_here(broker, tools, deps="new", lease_seconds=600):
                result = await second.result()
            held.released.set()
            assert (await first.result()).tool_calls[0].content == "held"
    assert (result.tool_calls[0].content, ran(notes)) == ("deps new", ["quick"])


async def test_an_outage_of_the_broker_is_logged_once_and_so_is_its_end(broker: Broker, said: Said) -> None:
    async with worker_here(broker) as worker:
        broker[0].kill()
        await said.until("the broker does not answer")
        away = worker.statistics()
        broker[0].start()
        await said.until("the broker answers again")
        assert (away.broker_unavailable, worker.statistics().broker_unavailable) == (True, False)
    assert len(said.lines) == 2


ACCOUNTS = """
authorization {{ users = [
    {{ user: whole, password: p }}
    {{ user: worker, password: p, permissions: {{
        {permissions}
    }} }}
    {{ user: deaf, password: p, permissions: {{ subscribe: ["_INBOX.>"], publish: ["$JS.API.>", "toolbus.begun.>"] }} }}
] }}
"""


@pytest.fixture
def accounts() -> Iterator[NatsServer]:
    """A server with the accounts `whole`, `worker` (what the how-to gives a worker) and `deaf`."""
    found = re.search(r"^publish = \[.*?^subscribe = \[.*?\]$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    server = NatsServer(ACCOUNTS.format(permissions=found[0]))
    yield server
    server.close()


def url_of(server: NatsServer, user: str) -> str:
    return server.url.replace("//", f"//{user}:p@")


@tool(pool="gpu")
async def repeat(words: str, context: ToolContext[Any]) -> str:
    """Repeat words that are too many for one message, and the model's answer."""
    return words * 2 + (await context.ask("More?")).text


async def test_the_check_names_all_that_an_account_lacks_and_what_the_how_to_gives_a_worker_is_enough(
    accounts: NatsServer, notes: Path
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        await ToolWorker(url_of(accounts, "deaf"), TOOLS, pool="gpu").check()
    for lacking in (
        'subscription to "toolbus.stop.gpu"',
        'to "toolbus.done.gpu.',
        'to "$js.ack.toolbus_calls.pool_gpu',
    ):
        assert lacking in str(raised.value)
    assert "begun" not in str(raised.value)
    worker = ToolWorker(url_of(accounts, "worker"), [*TOOLS, repeat], pool="gpu", deps="confined")
    await worker.check()
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        executor = NatsExecutor(url_of(accounts, "whole"), pool="gpu")
        asked = calls(("quick", {}), ("repeat", {"words": "x" * 2**20}))
        provider = ScriptedProvider([asked, text("No."), text("Done.")])
        async with Runtime(provider, tools=[*TOOLS, repeat], executors=[executor]) as runtime:
            quick, repeated = (await runtime.run("Go.")).tool_calls
            assert (quick.content, len(repeated.content)) == ("deps confined", 2**21 + 3)
        group.cancel_scope.cancel()


async def test_a_check_leaves_calls_that_wait_alone_and_nothing_behind(broker: Broker) -> None:
    session_side: Any = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    worker_side: Any = ToolWorker(broker[0].url, TOOLS, pool="gpu", prefix=broker[1])
    async with session_side._link() as session:
        await kept(session.send, ("r", "c"), b"waits")
        await worker_side.check()
        async with worker_side._link() as worker:
            (delivery,) = await worker.fetch(1)
            assert (delivery.body, delivery.attempt) == (b"waits", 1)
        info = await session._connection.stream.stream_info(f"{broker[1]}_answers")
        assert info.state.messages == 0


async def test_a_worker_finds_the_answer_of_a_call_and_says_so_if_it_cannot_look(broker: Broker) -> None:
    worker_side: Any = ToolWorker(broker[0].url, TOOLS, pool="gpu", prefix=broker[1])
    session_side: Any = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    async with session_side._link(), worker_side._link() as worker:
        assert await worker.find(("r", "c")) is None
        assert await kept(worker.answer, ("r", "c"), b"done")
        assert await worker.find(("r", "c")) == b"done"
        await worker.connection.client.close()
        with pytest.raises(Unavailable):
            await worker.find(("r", "c"))


@pytest.mark.usefixtures("impatient")
async def test_wrong_credentials_are_refused_with_their_reason(accounts: NatsServer) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be used: .*[Aa]uthorization.*$") as raised:
        await ToolWorker(url_of(accounts, "nobody"), TOOLS, pool="gpu").check()
    assert "-js" not in str(raised.value)


async def test_a_worker_whose_account_may_not_serve_its_pool_says_which_permission_is_lacking(
    accounts: NatsServer,
) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be served: no permission for .*pool_cpu"):
        await ToolWorker(url_of(accounts, "worker"), in_pool("cpu"), pool="cpu").run()
