"""`ToolContext.ask` of handlers on workers, which the session's process answers, on a real NATS server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import nats
import orjson
import pytest
from pydantic import BaseModel
from remote_workers import Broker, Said, worker_here

from support.collected import Collected
from support.skipped_time import skip
from toolbus import Limits, Runtime, Tool, ToolContext, tool
from toolbus.errors import ConfigurationError, LimitReached, NotRunning
from toolbus.events import (
    RequestCancelled,
    RequestStarted,
    ToolCallCompleted,
    ToolCallRequested,
    decode,
    encode,
)
from toolbus.messages import Message, Usage, UserMessage
from toolbus.protocols import ModelRequest
from toolbus.remote import _questions as questions
from toolbus.remote.nats import NatsExecutor
from toolbus.testing import ScriptedProvider, calls, hang, text

driver: Any = nats


@pytest.fixture(params=["asyncio"])  # nats-py works on asyncio only
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides look for each other often."""
    monkeypatch.setattr(questions, "BEAT_SECONDS", 0.05)


class Model:
    """A model that calls `work` in a request, and gives `answers` to the questions of sub-requests."""

    def __init__(self, *answers: Any, name: str = "work") -> None:
        self.asked: list[ModelRequest] = []
        self.questions = anyio.Event()
        self._answers = list(answers)
        self._name = name
        self.provider = ScriptedProvider(self._reply)

    def _reply(self, request: ModelRequest) -> Any:
        if any(each.name == self._name for each in request.tools):
            once = calls((self._name, {}), usage=Usage(output_tokens=5))
            return text("Done.") if request.messages[-1].role == "tool" else once
        self.asked.append(request)
        self.questions.set()
        return self._answers.pop(0)


@asynccontextmanager
async def listening(broker: Broker, subject: str) -> AsyncGenerator[tuple[Any, Any]]:
    """Return a client of the same account, and what it hears on a subject."""
    put, heard = anyio.create_memory_object_stream[Any](1_000)
    client = await driver.connect(broker[0].url)
    await client.subscribe(f"{broker[1]}.{subject}", cb=put.send)
    await client.flush()
    try:
        yield client, heard
    finally:
        await client.close()
        put.close()
        heard.close()


def work(handler: Callable[[ToolContext[Any]], Any], **options: Any) -> Tool:
    async def run(context: ToolContext[Any]) -> Any:
        """Work with the model's help."""
        return await handler(context)

    return tool(name="work", pool="gpu", **options)(run)


def runtime_of(broker: Broker, model: Model, worked: Tool, **options: Any) -> Runtime[None]:
    executor = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    return Runtime(model.provider, tools=[worked], executors=[executor], **options)


class Answer(BaseModel):
    """An answer with two fields."""

    word: str
    count: int


async def test_a_handler_on_a_worker_asks_the_model_of_its_session_within_the_limits_of_the_request(
    broker: Broker,
) -> None:
    async def handler(context: ToolContext[Any]) -> str:
        result = await context.ask(
            "How many?",
            history=[UserMessage(content="Earlier.")],
            instructions="Count.",
            output=Answer,
            limits=Limits(max_rounds=2),
        )
        assert isinstance(result.output, Answer)
        return f"{result.outcome} {result.output.word} {result.output.count} {result.usage.output_tokens}"

    model, worked = Model(text('{"word": "cats", "count": 3}', usage=Usage(output_tokens=7))), work(handler)
    started = list[RequestStarted]()
    async with worker_here(broker, [worked]), runtime_of(broker, model, worked) as runtime:
        runtime.bus.connect(RequestStarted, started.append)
        result = await runtime.run("Go.")
    (asked,) = model.asked
    own, sub = started
    call = result.tool_calls[0]
    assert call.error == ""
    assert call.content == "completed cats 3 7"
    assert [getattr(each, "text", "") for each in asked.messages] == ["Count.", "Earlier.", "How many?"]
    assert sub.parent_request_id == own.request_id
    # The reply to the question counts for the request.
    assert result.usage.output_tokens == 5 + 7


async def test_an_output_that_does_not_fit_its_type_is_repaired_by_the_model_or_reported(broker: Broker) -> None:
    async def handler(context: ToolContext[Any]) -> str:
        listed = await context.ask("Which?", output=list[int])
        wrong = await context.ask("How many?", output=Answer, limits=Limits(max_output_repairs=1))
        return f"{listed.output} {wrong.outcome} {wrong.output} {type(wrong.error).__name__}"

    model, worked = Model(text("many"), text("[1, 2]"), text('{"word": 1}'), text("{}"), text("[]")), work(handler)
    async with worker_here(broker, [worked]), runtime_of(broker, model, worked) as runtime:
        call = (await runtime.run("Go.")).tool_calls[0]
    assert call.content == "[1, 2] failed None InvalidOutput"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tools": [Answer]}, r"context.ask\(tools=\) of a handler on a worker: .* with its own model and no tools"),
        ({"provider": "x", "deps": 1}, r"context.ask\(provider=, deps=\)"),
        ({"instructions": print}, "have to be a text"),
    ],
)
async def test_what_cannot_go_along_is_refused_by_name(broker: Broker, options: Any, words: str) -> None:
    async def handler(context: ToolContext[Any]) -> str:
        with pytest.raises(ConfigurationError, match=words):
            await context.ask("How many?", **options)
        return "refused"

    model, worked = Model(), work(handler)
    async with worker_here(broker, [worked]), runtime_of(broker, model, worked) as runtime:
        assert (await runtime.run("Go.")).tool_calls[0].content == "refused"
    assert not model.asked


async def test_a_request_without_limits_left_refuses_the_question(broker: Broker) -> None:
    async def handler(context: ToolContext[Any]) -> str:
        with pytest.raises(LimitReached, match="has used up its limits"):
            await context.ask("How many?")
        return "refused"

    worked = work(handler)
    model = Model()
    limits = Limits(max_output_tokens=5)
    async with worker_here(broker, [worked]), runtime_of(broker, model, worked, limits=limits) as runtime:
        result = await runtime.run("Go.")
    assert not model.asked
    assert [each.content for each in result.tool_calls] == ["refused"]


@pytest.mark.parametrize("how", ["cancel", "deadline", "own time-out"])
async def test_a_question_ends_with_its_call_and_with_the_handler_that_asks_and_what_it_used_up_counts(
    broker: Broker, how: str
) -> None:
    own, gave_up = anyio.CancelScope(), anyio.Event()

    async def handler(context: ToolContext[Any]) -> str:
        try:
            with own:
                await context.ask("How many?", output=Answer)
        finally:
            gave_up.set()
        return "without an answer"

    model, worked = Model(text("many", usage=Usage(output_tokens=7)), hang()), work(handler)
    ended = list[RequestCancelled]()
    limits = Limits(tool_timeout_seconds=10)
    with anyio.fail_after(60):
        async with worker_here(broker, [worked]), runtime_of(broker, model, worked, limits=limits) as runtime:
            runtime.bus.connect(RequestCancelled, ended.append)
            session = runtime.start("Go.")
            while len(model.asked) < 2:  # The model has to repair its first answer.
                await anyio.lowlevel.checkpoint()
            if how == "cancel":
                session.cancel()
            elif how == "own time-out":
                own.cancel()
            else:
                skip(10)
            result = await session.result()
            await gave_up.wait()
            while not any(each.request_id != session.request_id for each in ended):
                await anyio.lowlevel.checkpoint()
    call = result.tool_calls[0]
    assert (call.content or call.reason) == {
        "cancel": "cancelled",
        "deadline": "timeout",
        "own time-out": "without an answer",
    }[how]
    assert result.usage.output_tokens == 5 + 7


@pytest.mark.usefixtures("hasty")
async def test_lost_messages_are_sent_again_and_the_model_is_asked_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handler(context: ToolContext[Any]) -> str:
        return (await context.ask("How many?")).text

    lost = list[str]()

    def losing(hear: Any, *kinds: str) -> Any:
        def heard(self: Any, line: bytes) -> None:
            kind = orjson.loads(line[1:])["do"]
            if kind in kinds and kind not in lost:
                lost.append(kind)
            else:
                hear(self, line)

        return heard

    monkeypatch.setattr(questions.Answering, "hear", losing(questions.Answering.hear, "ask"))
    monkeypatch.setattr(questions.Asking, "hear", losing(questions.Asking.hear, "runs", "done"))
    model, worked = Model(text("three")), work(handler)
    async with worker_here(broker, [worked]), runtime_of(broker, model, worked) as runtime:
        assert (await runtime.run("Go.")).tool_calls[0].content == "three"
    assert (sorted(lost), len(model.asked)) == (["ask", "done", "runs"], 1)


@pytest.mark.parametrize(("asked", "answered"), [(2**21, 2**21), (2**21, 10), (10, 2**21)])
async def test_a_question_and_an_answer_that_do_not_fit_into_one_message_cross(
    broker: Broker, asked: int, answered: int
) -> None:
    async def handler(context: ToolContext[Any]) -> str:
        history: list[Message] = [UserMessage(content="x" * asked)]
        result = await context.ask("How many?", history=history)
        assert [len(getattr(each, "text", "")) for each in result.messages] == [asked, 9, answered]
        return str(len(result.text))

    model, worked = Model(text("y" * answered)), work(handler)
    async with worker_here(broker, [worked]), runtime_of(broker, model, worked) as runtime:
        assert (await runtime.run("Go.")).tool_calls[0].content == str(answered)
    client = await driver.connect(broker[0].url)
    info = await client.jetstream().stream_info(f"{broker[1]}_parts")
    await client.close()
    assert info.state.messages == 0


REQUESTED = ToolCallRequested(
    request_id="r", call_id="c", name="work", arguments={}, round=0, timeout_seconds=30, idempotency_key="c"
)


@pytest.mark.usefixtures("hasty")
async def test_a_handler_whose_session_is_gone_is_told_so(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "SILENCE_SECONDS", 0.5)

    async def handler(context: ToolContext[Any]) -> str:
        with pytest.raises(NotRunning, match="the process that runs the request does not answer"):
            await context.ask("How many?")
        return "alone"

    worked = work(handler)
    async with worker_here(broker, [worked]), listening(broker, "done.gpu.r.c") as (client, heard):
        names = {"Toolbus-Node": "gone", "Toolbus-Remaining-Seconds": "30"}
        await client.jetstream().publish(f"{broker[1]}.call.gpu.r.c", encode(REQUESTED), headers=names)
        answer = decode((await heard.receive()).data)
    assert isinstance(answer, ToolCallCompleted)
    assert answer.content == "alone"


class Open:
    """A call that is open, with its handler waiting, and the node that a forger would have to know."""

    def __init__(self, broker: Broker) -> None:
        self.began, self.released = anyio.Event(), anyio.Event()
        self.model = Model(text("forged", usage=Usage(output_tokens=7)))
        self.worked = work(self._wait)
        self.broker = broker

    async def _wait(self, context: ToolContext[Any]) -> str:
        self.began.set()
        await self.released.wait()
        return "own"


HOW_MANY = {"prompt": {"role": "user", "content": "How many?"}}


@pytest.mark.parametrize(
    "changes",
    [
        {"call": "other"},
        {"request": "other"},
        {"request": "*", "call": ">"},
        {"do": "stop"},
        {"do": "stay"},
        {"do": "done"},
        {"do": "nonsense"},
        {"content": {"prompt": 1}},
        {"content": {**HOW_MANY, "limits": {"max_rounds": -1}}},
        {"content": {**HOW_MANY, "history": [{"role": "nobody"}]}},
        {"content": {**HOW_MANY, "output": {"type": "object", "properties": {"a": {"$ref": "https://elsewhere"}}}}},
        {"content": None},
        {"payload": {"request": "r", "call": "c", "digest": "0" * 64, "bytes": 10, "parts": 1}},
        {"payload": {"request": "r", "call": "c", "digest": "0" * 64, "bytes": 10**12, "parts": 1}},
        {"worker": ">", "call": "other"},
        {"worker": "../x.y", "call": "other"},
        {"worker": "x" * 5_000},
        b"?",
        b"?{",
        b"?[]",
    ],
    ids=lambda given: str(given)[:80],
)
async def test_a_forged_question_does_nothing(broker: Broker, said: Said, changes: Any) -> None:
    given = Open(broker)
    prefix = broker[1]
    async with (
        worker_here(broker, [given.worked]),
        listening(broker, "call.>") as (client, heard),
        runtime_of(broker, given.model, given.worked) as runtime,
    ):
        session = runtime.start("Go.")
        call = await heard.receive()
        await given.began.wait()
        requested = decode(call.data)
        assert isinstance(requested, ToolCallRequested)
        asks = {
            "do": "ask",
            "id": "1",
            "request": requested.request_id,
            "call": requested.call_id,
            "worker": "w",
            "content": HOW_MANY,
        }
        line = changes if isinstance(changes, bytes) else b"?" + orjson.dumps({**asks, **changes})
        await client.publish(f"{prefix}.node.gpu.{call.headers['Toolbus-Node']}", line)
        await client.flush()
        given.released.set()
        result = await session.result()
    assert result.tool_calls[0].content == "own"
    assert not given.model.asked
    assert not any("Traceback" in each for each in said.lines)


async def test_a_question_is_answered_no_more_than_once_for_its_id_and_not_after_its_call(broker: Broker) -> None:
    given = Open(broker)
    async with (
        worker_here(broker, [given.worked]),
        listening(broker, "call.>") as (client, calls_heard),
        listening(broker, "worker.gpu.w") as (_, heard),
        runtime_of(broker, given.model, given.worked) as runtime,
    ):
        session = runtime.start("Go.")
        call = await calls_heard.receive()
        await given.began.wait()
        requested = decode(call.data)
        assert isinstance(requested, ToolCallRequested)
        asks = {"do": "ask", "id": "1", "request": requested.request_id, "call": requested.call_id, "worker": "w"}
        line = b"?" + orjson.dumps({**asks, "content": HOW_MANY})

        async def send(*lines: bytes) -> list[str]:
            await client.publish(f"{broker[1]}.node.gpu.{call.headers['Toolbus-Node']}", b"\n".join(lines))
            return [orjson.loads((await heard.receive()).data[1:])["do"] for _ in lines]

        # Whoever knows the node can ask, as a worker that has the call could: once for each id.
        assert (await send(line, line))[:2] == ["runs", "runs"]
        assert orjson.loads((await heard.receive()).data[1:])["do"] == "done"
        assert await send(line) == ["done"]
        given.released.set()
        result = await session.result()
        assert await send(line) == ["unknown"]
    assert (len(given.model.asked), result.usage.output_tokens) == (1, 5 + 7)


async def test_a_call_has_a_bounded_number_of_questions_at_the_same_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "_MAX_OF_CALL", 3)
    refused = list[str]()
    enough = anyio.Event()

    async def handler(context: ToolContext[Any]) -> str:
        async def ask() -> None:
            try:
                await context.ask("How many?")
            except LimitReached as exc:
                refused.append(str(exc))
                enough.set()

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(ask)
            await enough.wait()
            tasks.cancel_scope.cancel()
        return "enough"

    model, worked = Model(hang(), hang(), hang()), work(handler)
    async with worker_here(broker, [worked]), runtime_of(broker, model, worked) as runtime:
        assert (await runtime.run("Go.")).tool_calls[0].content == "enough"
    assert refused == ["the call has 3 questions to the model already"]


async def test_a_question_is_inside_of_the_call_s_span_on_the_worker(broker: Broker) -> None:
    async def handler(context: ToolContext[Any]) -> str:
        return (await context.ask("How many?")).text

    collected, model, worked = Collected(), Model(text("three")), work(handler)
    runtime = runtime_of(broker, model, worked, instrumentation=[collected.telemetry])
    async with worker_here(broker, [worked], instrumentation=[collected.telemetry]), runtime:
        await runtime.run("Go.")
    assert collected.tree == [
        "invoke_agent",
        "  chat",
        "  execute_tool work",
        "    invoke_agent",
        "      chat",
        "  chat",
    ]
