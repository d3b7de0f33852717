"""Calls and answers that are too large for one message, on a real NATS server: kept, read, removed, and refused."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import nats
import orjson
import pytest
from remote_workers import Broker, Held, Said, worker_here

from toolbus import Limits, Runtime, ToolContext, tool
from toolbus.core.arguments import MAX_CHARS
from toolbus.events import ToolCallCompleted, ToolCallRequested, encode
from toolbus.messages import Message, UserMessage
from toolbus.remote._nats_connection import Connection
from toolbus.remote._nats_parts import Parts
from toolbus.remote.nats import NatsExecutor
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, calls, text

driver: Any = nats
MIB = 2**20
WORDS = "x" * (MAX_CHARS - 100)  # nearly as much as a model may write


@pytest.fixture(params=["asyncio"])  # nats-py works on asyncio only
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@tool(pool="gpu", needs_transcript=True)
async def echo(words: str, context: ToolContext[Any]) -> str:
    """Answer with the words, and the length of the transcript."""
    return f"{sum(len(getattr(each, 'text', '')) for each in context.messages)} {words}"


@tool(pool="gpu", summarize=lambda _: "very many")
async def many() -> list[int]:
    """Answer with as many values as a result may have; the message about it has some more."""
    return [10**12] * 99_999


def runtime_of(broker: Broker, *asked: tuple[str, dict[str, Any]], tools: Any = (), **options: Any) -> Runtime[None]:
    def reply(request: Any) -> Any:
        return text("Done.") if request.messages[-1].role == "tool" else calls(*asked)

    executor = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    tools = [echo, many, *tools]
    return Runtime(ScriptedProvider(reply), tools=tools, executors=[executor], **options)


class Stream:
    """The stream of payloads, as another client of the account sees it."""

    def __init__(self, client: Any, prefix: str) -> None:
        self.client, self.prefix, self.jet = client, prefix, client.jetstream()

    async def parts(self) -> dict[str, int]:
        info = await self.jet.stream_info(f"{self.prefix}_parts", subjects_filter=">")
        return info.state.subjects or {}

    async def tamper(self, how: str) -> None:
        """Remove the second part of each payload, which is text only, or replace its bytes by as many others."""
        for subject in [each for each in await self.parts() if each.endswith(".1")]:
            size = len((await self.jet.get_last_msg(f"{self.prefix}_parts", subject)).data)
            await self.jet.purge_stream(f"{self.prefix}_parts", subject=subject)
            if how == "other bytes":
                await self.jet.publish(subject, b"y" * size)


@asynccontextmanager
async def stream_of(broker: Broker) -> AsyncGenerator[Stream]:
    client = await driver.connect(broker[0].url)
    try:
        yield Stream(client, broker[1])
    finally:
        await client.close()


async def until(found: Callable[[], Any]) -> None:
    with anyio.fail_after(60):
        while not await found():
            await anyio.lowlevel.checkpoint()


async def test_a_large_call_with_its_transcript_and_its_large_result_cross_and_are_removed(broker: Broker) -> None:
    words = "ü\n" * (MIB // 2)
    history: list[Message] = [UserMessage(content="x" * 2 * MIB)]
    async with worker_here(broker, [echo]), stream_of(broker) as stream:
        async with runtime_of(broker, ("echo", {"words": words}), ("echo", {"words": "few"})) as runtime:
            result = await runtime.run("Go.", history=history)
        assert [each.error for each in result.tool_calls] == ["", ""]
        assert [
            each.content == f"{2 * MIB + 3} {said}"
            for each, said in zip(result.tool_calls, (words, "few"), strict=True)
        ] == [True, True]
        assert await stream.parts() == {}


async def test_a_call_s_payload_is_removed_when_the_call_has_ended_and_its_answer_s_with_the_request(
    broker: Broker,
) -> None:
    held, words = Held(), WORDS
    asked: list[tuple[str, dict[str, Any]]] = [("echo", {"words": words}), ("held", {})]
    async with worker_here(broker, [echo, held.tool]), stream_of(broker) as stream:
        async with runtime_of(broker, *asked, tools=[held.tool]) as runtime:
            session = runtime.start("Go.")
            async for event in session.events(ToolCallCompleted):
                assert event.name == "echo"
                break

            async def only_the_answer_is_left() -> bool:
                parts = await stream.parts()
                return len({subject.rsplit(".", 2)[1] for subject in parts}) == 1 and len(parts) == 3

            await until(only_the_answer_is_left)
            held.released.set()
            await session.result()
        assert await stream.parts() == {}


async def test_what_no_payload_may_be_is_refused_with_the_limit(broker: Broker) -> None:
    history: list[Message] = [UserMessage(content="x" * 9 * MIB)]
    asked: list[tuple[str, dict[str, Any]]] = [("echo", {"words": "few"}), ("many", {})]
    async with worker_here(broker, [echo, many]), runtime_of(broker, *asked) as runtime:
        too_long, too_many = (await runtime.run("Go.", history=history)).tool_calls
    assert (too_long.reason, too_long.outcome_unknown) == ("limit", False)
    assert too_long.error == "The call with its transcript is larger than 8,388,608 bytes."
    assert (too_many.reason, too_many.outcome_unknown) == ("limit", True)
    assert too_many.error == "The call ran, but its result is of more than 100,000 values."


async def test_what_the_server_has_no_space_for_is_refused_with_the_limit(broker: Broker, said: Said) -> None:
    runs = list[int]()

    @tool(pool="gpu")
    async def grow(words: str) -> str:
        """Answer with more words."""
        runs.append(len(words))
        return words * 3

    async with stream_of(broker) as stream, worker_here(broker, [grow]):
        await stream.jet.add_stream(
            name=f"{broker[1]}_parts", subjects=[f"{broker[1]}.part.>"], max_bytes=MIB + MIB // 2, discard="new"
        )
        async with runtime_of(broker, ("grow", {"words": WORDS}), tools=[grow]) as runtime:
            refused = (await runtime.run("Go.")).tool_calls[0]
        async with runtime_of(broker, ("grow", {"words": "x" * (MIB + MIB // 4)}), tools=[grow]) as runtime:
            ran = (await runtime.run("Go.")).tool_calls[0]
    assert (refused.reason, refused.outcome_unknown, ran.reason, ran.outcome_unknown) == ("limit", False, "limit", True)
    assert refused.error == "The arguments of the call are larger than the free space of the broker."
    assert runs == [MIB + MIB // 4]
    assert sum("maximum bytes exceeded" in each for each in said.lines) == 2


@pytest.mark.parametrize("how", ["gone", "other bytes"])
async def test_a_call_whose_payload_is_not_there_ends_and_never_runs(broker: Broker, how: str) -> None:
    async with stream_of(broker) as stream, runtime_of(broker, ("echo", {"words": WORDS})) as runtime:
        session = runtime.start("Go.")

        async def is_sent() -> bool:
            return (await stream.jet.stream_info(f"{broker[1]}_calls")).state.messages > 0

        await until(is_sent)
        await stream.tamper(how)
        async with worker_here(broker, [echo]):
            call = (await session.result()).tool_calls[0]
    assert (call.reason, call.outcome_unknown) == ("lost", False)
    assert "The call did not run" in call.error


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize("how", ["whole", "gone", "other bytes"])
async def test_a_large_answer_outlives_its_session_and_one_that_is_not_there_is_lost(
    broker: Broker, said: Said, how: str
) -> None:
    store = MemoryStore(journal=True)
    held = Held()

    @tool(pool="gpu")
    async def draw() -> str:
        """Hold, and answer at length."""
        held.runs += 1
        held.began.set()
        await held.released.wait()
        return "x" * 2 * MIB

    def runtime() -> Runtime[None]:
        return runtime_of(broker, ("draw", {}), tools=[draw], store=store, drain_seconds=0)

    async with stream_of(broker) as stream, worker_here(broker, [draw]) as worker:
        async with runtime() as first:
            first.start("Go.")
            await held.began.wait()
        held.released.set()

        async def is_answered() -> bool:
            await anyio.lowlevel.checkpoint()
            return worker.statistics().answered > 0

        await until(is_answered)
        if how != "whole":
            await stream.tamper(how)
        async with runtime() as second:
            (session,) = await second.resume()
            call = (await session.result()).tool_calls[0]
        assert await stream.parts() == {}
    if how == "whole":
        assert (len(call.content), call.error) == (2 * MIB, "")
    else:
        assert (call.reason, call.outcome_unknown) == ("lost", True)
        assert any("the answer of call" in each and "was lost" in each for each in said.lines)
    assert held.runs == 1


@pytest.mark.guarantee("G24")
async def test_a_worker_that_is_lost_while_it_keeps_its_answer_leaves_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = list[int]()

    @tool(pool="gpu", idempotent=True)
    async def draw(context: ToolContext[Any]) -> str:
        """Answer at length."""
        runs.append(context.attempt)
        return "x" * 3 * MIB

    hangs, publish = anyio.Event(), Connection.publish

    async def half(self: Connection, subject: str, body: bytes) -> bool:
        if ".part." in subject and subject.endswith(".1") and not hangs.is_set():
            hangs.set()
            await anyio.sleep_forever()
        return await publish(self, subject, body)

    monkeypatch.setattr(Connection, "publish", half)
    async with stream_of(broker) as stream:
        async with runtime_of(broker, ("draw", {}), tools=[draw]) as runtime:
            session = runtime.start("Go.")
            async with worker_here(broker, [draw], lease_seconds=5):
                await hangs.wait()
            assert len(await stream.parts()) == 1
            async with worker_here(broker, [draw], lease_seconds=5):
                call = (await session.result()).tool_calls[0]
        assert await stream.parts() == {}
    assert (len(call.content), runs) == (3 * MIB, [1, 2])


REFERENCE = {"request": "r", "call": "c", "digest": "0" * 64, "bytes": 10, "parts": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"bytes": 10**12},
        {"parts": 10**9},
        {"parts": 0},
        {"bytes": -1},
        {"digest": "0.>"},
        {"call": "other"},
        {"call": 1},
    ],
    ids=str,
)
async def test_forged_references_are_refused_and_nothing_is_read(
    broker: Broker, said: Said, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(*_: Any) -> Any:
        raise AssertionError("read")

    monkeypatch.setattr(Parts, "load", read)
    line = b"@" + orjson.dumps({**REFERENCE, **changes})
    held = Held()
    requested = ToolCallRequested(
        request_id="r", call_id="c", name="held", arguments={}, round=0, timeout_seconds=30, idempotency_key="c"
    )
    executor: Any = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    limits = Limits(tool_timeout_seconds=20)
    async with (
        worker_here(broker, [held.tool]),
        runtime_of(broker, ("held", {}), tools=[held.tool], limits=limits) as runtime,
        stream_of(broker) as stream,
    ):
        await stream.jet.publish(f"{broker[1]}.call.gpu.r.c", encode(requested) + b"\n" + line)
        await said.until("was not run")
        assert not held.runs
        asked = list[ToolCallRequested]()
        runtime.bus.connect(ToolCallRequested, asked.append)
        session = runtime.start("Go.")
        await held.began.wait()
        key = (asked[0].request_id, asked[0].call_id)
        call = await stream.jet.get_last_msg(f"{broker[1]}_calls", executor._broker.subject("call", key))
        node = executor._broker.node(call.headers["Toolbus-Node"])
        own = {"request": key[0], "call": key[1]}
        await stream.client.publish(node, b"@" + orjson.dumps({**REFERENCE, **own, **changes}))
        await stream.client.flush()
        held.released.set()
        assert (await session.result()).tool_calls[0].content == "held"
