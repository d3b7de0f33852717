"""The answers of a worker over a broker that loses acknowledgements: which of them its node is told, and when."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from toolbus import ToolContext, ToolRegistry, tool
from toolbus.core.approval import definition_of
from toolbus.errors import NotRunning
from toolbus.events import ToolCallCompleted, ToolCallRequested, decode, encode
from toolbus.remote._transport import Begun, Key, Then, Unavailable
from toolbus.remote._worker import Worker
from toolbus.testing import virtual_backends

anyio_backend = virtual_backends()

KEY = ("r", "c")


@tool(pool="gpu", idempotent=True)
async def echo(context: ToolContext[Any]) -> str:
    """Answer after 50 seconds."""
    await anyio.sleep(50)
    return f"{context.request_id} {context.conversation_id} {context.metadata}"


TOOLS = ToolRegistry([echo])
REQUESTED = ToolCallRequested(
    request_id=KEY[0],
    call_id=KEY[1],
    name="echo",
    arguments={},
    conversation_id="talk",
    metadata={"user": "Ada"},
    round=0,
    timeout_seconds=90.0,
    idempotency_key="k",
    definition=definition_of(TOOLS.specs["echo"]),
)


class FakeBroker:
    """Both a link and its only delivery. `outcomes` are what the broker says of an answer, one after the other."""

    max_bytes = 1_000_000
    name, payloads = "worker", None
    lease_seconds = 60.0
    key, body, node, remaining_seconds, attempt, is_again = KEY, encode(REQUESTED), "node", 90.0, 1, False

    def __init__(self, *outcomes: bool | Unavailable, kept: str = "own") -> None:
        self.outcomes, self.kept = [*outcomes], kept
        self.did: list[str] = []
        self.at: list[float] = []  # the moments of writing an answer, and of renewing the lease
        self.over = anyio.Event()
        self.calls: list[Any] = [self]
        self.written = b""

    def listen(self, stopped: Any, heard: Any) -> None:
        del stopped, heard

    async def fetch(self, most: int) -> Sequence[Any]:
        del most
        if not self.calls:
            await self.over.wait()
        found, self.calls = self.calls, []
        return found

    async def rest(self) -> Sequence[Any]:
        return ()

    async def find(self, key: Key) -> bytes | None:
        assert key == KEY
        return self.written if self.kept == "own" else b"another"

    async def answer(self, key: Key, body: bytes, then: Then) -> None:
        assert key == KEY
        self.written = body
        self.did.append("answer")
        self.at.append(anyio.current_time())
        then(self.outcomes.pop(0))

    def tell(self, node: str, body: bytes, *, may_be_lost: bool) -> None:
        assert node == "node"
        if not may_be_lost:
            assert isinstance(decode(body), ToolCallCompleted)
            self.did.append("tell")

    async def flush(self) -> None:
        if self.did[-1:] == ["tell"]:
            self.over.set()

    async def renew(self) -> None:
        self.at.append(anyio.current_time())

    async def done(self) -> None:
        self.did.append("done")
        if self.kept != "own":
            self.over.set()

    async def give_back(self) -> None: ...

    async def begin(self) -> Begun:
        return "mine"


def worker_of(broker: FakeBroker) -> Worker:
    @asynccontextmanager
    async def connect() -> AsyncGenerator[Any]:
        yield broker

    return Worker(TOOLS, "gpu", connect, max_concurrency=1)


async def done_by(broker: FakeBroker) -> list[str]:
    worker = worker_of(broker)
    began = anyio.current_time()
    with anyio.fail_after(100):
        async with anyio.create_task_group() as group:
            group.start_soon(worker.run)
            await broker.over.wait()
            worker.drain()
    assert not worker.running
    broker.at = [round(each - began, 1) for each in broker.at]
    return broker.did


@pytest.mark.guarantee("G24")
async def test_a_lease_is_given_up_after_the_answer_is_kept_and_before_the_node_is_told() -> None:
    assert await done_by(FakeBroker(True)) == ["answer", "done", "tell"]


async def test_an_answer_is_written_until_the_broker_takes_it() -> None:
    away = Unavailable("away")
    broker = FakeBroker(away, away, True)
    assert await done_by(broker) == ["answer", "answer", "answer", "done", "tell"]
    assert broker.at == [20, 40, 50, 50.2, 50.4], "the lease of a minute is renewed every 20 seconds"


async def test_a_handler_on_a_worker_knows_its_request_and_its_conversation() -> None:
    broker = FakeBroker(True)
    await done_by(broker)
    answer = decode(broker.written)
    assert isinstance(answer, ToolCallCompleted)
    assert answer.content == "r talk {'user': 'Ada'}"


async def test_an_answer_whose_acknowledgement_was_lost_is_this_worker_s_own_and_told() -> None:
    assert await done_by(FakeBroker(Unavailable("lost"), False)) == ["answer", "answer", "done", "tell"]


@pytest.mark.guarantee("G24")
async def test_an_answer_after_another_worker_s_is_not_told() -> None:
    assert await done_by(FakeBroker(False, kept="another's")) == ["answer", "done"]


async def test_a_worker_that_runs_is_not_run_a_second_time_and_answers_as_before() -> None:
    broker = FakeBroker(True)
    worker = worker_of(broker)
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(NotRunning, match="running already"):
            await worker.run()
        await broker.over.wait()
        worker.drain()
    assert broker.did == ["answer", "done", "tell"]
    await worker.run(worker.drain)


async def test_a_worker_that_is_drained_before_it_runs_returns_at_once_and_runs_the_next_time() -> None:
    broker = FakeBroker(True)
    broker.calls, broker.did = [], ["nothing"]
    worker = worker_of(broker)
    worker.drain()
    with anyio.fail_after(1):
        await worker.run()
    with anyio.move_on_after(1) as scope:
        await worker.run()
    assert scope.cancelled_caught


async def test_a_call_that_was_cancelled_with_its_worker_runs_when_it_is_delivered_to_the_same_one_again() -> None:
    broker = FakeBroker(True)
    worker = worker_of(broker)
    with anyio.move_on_after(10):
        await worker.run()
    assert not worker.running
    broker.calls = [broker]
    with anyio.fail_after(100):
        async with anyio.create_task_group() as group:
            group.start_soon(worker.run)
            await broker.over.wait()
            worker.drain()
    assert broker.did == ["answer", "done", "tell"]
