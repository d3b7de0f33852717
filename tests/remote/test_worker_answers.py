"""The answers of a worker over a broker that loses acknowledgements: which of them are sent to its node, and when."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from toolbus import ToolContext, ToolRegistry, tool
from toolbus.core.approval import definition_of
from toolbus.errors import NotRunning
from toolbus.events import ToolCallCompleted, ToolCallFailed, ToolCallRequested, decode, encode
from toolbus.records import replace
from toolbus.remote._bodies import Reference, large_call
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


@tool(pool="gpu")
async def act(context: ToolContext[Any], word: str = "") -> str:
    """Answer at once."""
    return f"{context.call_id} {word}".strip()


@tool(pool="other")
async def elsewhere() -> str:
    """Answer in another pool."""
    return "said"


TOOLS = ToolRegistry([echo, act, elsewhere])
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

ACTS = replace(REQUESTED, name="act", definition=definition_of(TOOLS.specs["act"]))
ACT = encode(ACTS)


SMALL_BYTES = 250
"""The bytes of a message that a reference fits into, and no answer."""


class FakeBroker:
    """Both a link and its only delivery. `outcomes` are what the broker says of an answer, one after the other.

    It is away as often as `away` says of "fetch", "find", "done", "keep" or "load".
    """

    max_bytes = 1_000_000
    name = "worker"
    lease_seconds = 60.0
    body, node, remaining_seconds, attempt, is_again = encode(REQUESTED), "node", 90.0, 1, False
    payload = encode(REQUESTED)

    def __init__(
        self, *outcomes: bool | Unavailable, kept: str = "own", begun: Sequence[Begun | Unavailable] = ()
    ) -> None:
        self.key: Key = KEY
        self.begun: list[Begun | Unavailable] = [*begun]  # the broker's answers to a call that begins
        self.finds = 0
        self.outcomes, self.kept = [*outcomes], kept
        self.did: list[str] = []
        self.at: list[float] = []  # the moments of writing an answer, and of renewing the lease
        self.over = anyio.Event()
        self.calls: list[Any] = [self]
        self.left: list[Any] = []  # calls that come with the last fetch
        self.to_node: list[bytes] = []  # the answers
        self.asked: list[int] = []  # how many calls were asked for
        self.written = self.known = b""  # its own answer, and one from before
        self.payloads = self
        self.away: dict[str, int] = {}

    def _answer(self, what: str) -> None:
        if self.away.get(what, 0) > 0:
            self.away[what] -= 1
            raise Unavailable("away")

    def listen(self, stopped: Any, heard: Any) -> None:
        del heard
        self.stop = stopped

    def deliver(self, *calls: FakeBroker) -> None:
        """Answer the fetch that waits with these calls."""
        self.calls = [*calls]
        self.over.set()
        self.over = anyio.Event()

    async def fetch(self, most: int) -> Sequence[Any]:
        self.asked.append(most)
        self._answer("fetch")
        if not self.calls:
            await self.over.wait()
        found, self.calls = self.calls, []
        return found

    async def rest(self) -> Sequence[Any]:
        return self.left

    async def keep(self, key: Key, body: bytes) -> Reference:
        self.did.append("keep")
        self._answer("keep")
        await anyio.sleep(1)
        return Reference(*key, "d" * 64, len(body), 1)

    async def load(self, reference: Reference) -> bytes:
        del reference
        self.did.append("load")
        self._answer("load")
        return self.payload

    async def drop(self, key: Key, digest: str) -> None:
        assert (key, digest) == (KEY, "d" * 64)
        self.did.append("drop")
        self.over.set()

    async def find(self, key: Key) -> bytes | None:
        assert key == KEY
        self.finds += 1
        self._answer("find")
        if self.known:
            return self.known
        if self.begun or not self.did:
            return None
        return self.written if self.kept == "own" else b"another"

    async def answer(self, key: Key, body: bytes, then: Then) -> None:
        assert key[0] == KEY[0]
        self.written = body
        self.did.append("answer")
        self.at.append(anyio.current_time())
        then(self.outcomes.pop(0))

    def tell(self, node: str, body: bytes, *, may_be_lost: bool) -> None:
        assert node == "node"
        if not may_be_lost:
            self.to_node.append(body)
            assert body.startswith(b"@") or isinstance(decode(body), (ToolCallCompleted, ToolCallFailed))
            self.did.append("tell")

    async def flush(self) -> None:
        if self.did[-1:] == ["tell"]:
            self.over.set()

    async def renew(self) -> None:
        self.at.append(anyio.current_time())

    async def done(self) -> None:
        self._answer("done")
        self.did.append("done")
        if self.kept != "own" and self.max_bytes > SMALL_BYTES:
            self.over.set()

    async def give_back(self) -> None:
        self.did.append("give back")
        self.over.set()

    async def begin(self) -> Begun:
        outcome = self.begun.pop(0)
        if not self.begun:
            self.over.set()
        if isinstance(outcome, Unavailable):
            raise outcome
        return outcome


def worker_of(broker: FakeBroker, most: int = 1, tools: ToolRegistry = TOOLS) -> Worker:
    @asynccontextmanager
    async def connect() -> AsyncGenerator[Any]:
        yield broker

    return Worker(tools, "gpu", connect, max_concurrency=most)


@asynccontextmanager
async def running(worker: Worker, seconds: float = 100.0) -> AsyncGenerator[None]:
    """Run the worker beside the block, which makes it drain; all of it has `seconds`."""
    with anyio.fail_after(seconds):
        async with anyio.create_task_group() as group:
            group.start_soon(worker.run)
            yield


async def done_by(broker: FakeBroker, tools: ToolRegistry = TOOLS) -> list[str]:
    worker = worker_of(broker, tools=tools)
    began = anyio.current_time()
    async with running(worker):
        await broker.over.wait()
        worker.drain()
    assert not worker.running
    broker.at = [round(each - began, 1) for each in broker.at]
    return broker.did


@pytest.mark.guarantee("G24")
async def test_a_lease_is_given_up_after_the_answer_is_kept_and_before_it_is_sent_to_the_node() -> None:
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


async def test_a_worker_counts_its_answers_and_shows_the_requests_of_its_calls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "toolbus.remote")
    broker = FakeBroker(True)
    worker = worker_of(broker)
    async with running(worker):
        await anyio.sleep(10)
        view = worker.bus.arbitration.view(KEY[0])
        assert view is not None
        assert (view.request_id, view.conversation_id, view.metadata) == ("r", "talk", {"user": "Ada"})
        assert (view.is_stopping, view.is_released) == (False, False)
        assert (worker.answered, worker.broker_unavailable, len(worker.running)) == (0, False, 1)
        await broker.over.wait()
        worker.drain()
    assert worker.answered == 1
    assert caplog.records == [], "the broker was never away"


async def test_a_worker_asks_again_while_the_broker_is_away_and_logs_each_change_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "toolbus.remote")
    broker = FakeBroker(True)
    broker.away = {"fetch": 5}
    worker = worker_of(broker)
    async with running(worker):
        await anyio.sleep(0.9)
        assert (len(broker.asked), worker.broker_unavailable) == (5, True)
        await anyio.sleep(0.2)
        assert (len(broker.asked), worker.broker_unavailable) == (6, False)
        await broker.over.wait()
        worker.drain()
    assert [each.getMessage() for each in caplog.records] == [
        "the broker does not answer: away",
        "the broker answers again",
    ]


async def test_a_worker_asks_for_as_many_calls_as_it_has_room_for_and_drains_when_all_are_answered() -> None:
    broker, slow = FakeBroker(True, True), FakeBroker(True)
    slow.key = ("r", "d")
    slow.body = encode(replace(REQUESTED, call_id="d"))
    worker = worker_of(broker, most=3)
    async with running(worker, seconds=200):
        await anyio.sleep(1)
        assert broker.asked == [3, 2]
        broker.deliver(slow)
        await anyio.sleep(1)
        assert broker.asked == [3, 2, 1]
        worker.drain()
        broker.over.set()
        await anyio.sleep(49)
        assert [*worker.running] == [slow.key]
        assert broker.did[:1] == ["answer"]
    assert (worker.answered, worker.running, worker.bus.statistics().receivers) == (2, {}, 0)


async def test_an_answer_whose_acknowledgement_was_lost_is_this_worker_s_own_and_is_sent_to_the_node() -> None:
    assert await done_by(FakeBroker(Unavailable("lost"), False)) == ["answer", "answer", "done", "tell"]


@pytest.mark.guarantee("G24")
async def test_an_answer_after_another_worker_s_is_not_sent_to_the_node() -> None:
    assert await done_by(FakeBroker(False, kept="another's")) == ["answer", "done"]


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize("what", ["find", "done"])
async def test_a_step_of_an_answer_that_the_broker_did_not_take_is_done_again(what: str) -> None:
    broker = FakeBroker(*[False, True] if what == "find" else [True])
    broker.away = {what: 1}
    assert await done_by(broker) == (["answer", "answer"] if what == "find" else ["answer"]) + ["done", "tell"]


async def test_a_large_answer_is_kept_until_the_broker_takes_it_and_then_referred_to() -> None:
    broker = FakeBroker(True)
    broker.max_bytes, broker.away = SMALL_BYTES, {"keep": 2}
    assert await done_by(broker) == ["keep", "keep", "keep", "answer", "done", "tell"]
    assert broker.written.startswith(b"@")


async def test_the_payload_of_a_large_answer_that_does_not_count_is_dropped() -> None:
    broker = FakeBroker(False, kept="another's")
    broker.max_bytes = SMALL_BYTES
    assert await done_by(broker) == ["keep", "answer", "done", "drop"]


async def test_the_payload_of_a_large_answer_whose_call_is_stopped_meanwhile_is_dropped() -> None:
    broker = FakeBroker()
    broker.max_bytes = SMALL_BYTES
    worker = worker_of(broker)
    async with running(worker):
        await anyio.sleep(50.5)
        broker.stop(KEY)
        assert not worker.running
        await broker.over.wait()
        worker.drain()
    assert broker.did == ["keep", "drop"]


async def test_an_answer_that_is_not_acknowledged_while_a_cancelled_worker_leaves_is_not_sent_again() -> None:
    broker, waiting = FakeBroker(), list[Then]()

    async def answer(_key: Key, _body: bytes, then: Then) -> None:
        waiting.append(then)

    broker.answer = answer  # type: ignore[method-assign]

    @asynccontextmanager
    async def connect() -> AsyncGenerator[Any]:
        try:
            yield broker
        finally:
            waiting[0](Unavailable("closed"))

    worker = Worker(TOOLS, "gpu", connect, max_concurrency=1)
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        await anyio.sleep(55)
        assert len(waiting) == 1
        group.cancel_scope.cancel()
    assert worker.running == {}


@pytest.mark.guarantee("G17")
async def test_a_call_that_was_settled_elsewhere_before_it_is_begun_does_not_run() -> None:
    """A worker that stood still hears of both at once, in any order."""
    broker, other = FakeBroker(), FakeBroker(True)
    broker.calls = []
    other.key, other.body = ("r", "d"), encode(replace(REQUESTED, call_id="d"))
    worker = worker_of(broker, most=2)
    async with running(worker):
        await anyio.sleep(1)
        broker.stop(KEY)
        broker.deliver(broker, other)
        await anyio.sleep(1)
        assert (broker.did, [*worker.running]) == (["done"], [other.key])
        for each in range(1_000):
            broker.stop(("others", f"{each}"))
        broker.stop(other.key)
        broker.deliver(broker)
        await anyio.sleep(1)
        assert [*worker.running] == [KEY], "only the newest are remembered"
        broker.stop(KEY)
        worker.drain()
        broker.deliver()


async def test_a_call_whose_payload_cannot_be_read_now_is_left_for_its_next_delivery() -> None:
    broker = FakeBroker(True)
    broker.body, broker.away = large_call(REQUESTED, Reference(*KEY, "a" * 64, 1_000, 1)), {"load": 1}
    worker = worker_of(broker)
    async with running(worker, seconds=200):
        await anyio.sleep(1)
        assert (broker.did, worker.running) == (["load"], {})
        broker.deliver(broker)
        await broker.over.wait()
        worker.drain()
    assert broker.did == ["load", "load", "answer", "done", "tell"]
    assert isinstance(decode(broker.written), ToolCallCompleted)


@pytest.mark.parametrize(
    "payload", [b"{", encode(replace(REQUESTED, name="act")), encode(replace(REQUESTED, call_id="d"))]
)
async def test_a_call_with_the_payload_of_another_one_is_lost_and_does_not_run(payload: bytes) -> None:
    broker = FakeBroker(True)
    broker.body, broker.payload = large_call(REQUESTED, Reference(*KEY, "a" * 64, 1_000, 1)), payload
    assert await done_by(broker) == ["load", "answer", "done", "tell"]
    answer = decode(broker.written)
    assert isinstance(answer, ToolCallFailed)
    assert (answer.reason, answer.outcome_unknown) == ("lost", False)


async def test_a_call_with_a_payload_runs_with_its_arguments() -> None:
    whole = replace(REQUESTED, name="act", arguments={"word": "hi"}, definition=definition_of(TOOLS.specs["act"]))
    broker = FakeBroker(True, begun=["mine"])
    broker.body, broker.payload = large_call(whole, Reference(*KEY, "a" * 64, 1_000, 1)), encode(whole)
    assert await done_by(broker) == ["load", "answer", "done", "tell"]
    answer = decode(broker.written)
    assert isinstance(answer, ToolCallCompleted)
    assert answer.content == "c hi"


@pytest.mark.parametrize(("is_again", "resumed", "finds"), [(False, False, 0), (True, False, 1), (False, True, 1)])
async def test_an_answer_is_looked_for_where_the_call_may_have_run_before(
    is_again: bool, resumed: bool, finds: int
) -> None:
    broker = FakeBroker(True)
    broker.is_again, broker.body = is_again, encode(replace(REQUESTED, resumed=resumed))
    assert await done_by(broker) == ["answer", "done", "tell"]
    assert broker.finds == finds


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        encode(replace(REQUESTED, call_id="d")),
        encode(REQUESTED.completed("said")),
        large_call(REQUESTED, Reference("r", "d", "a" * 64, 1_000, 1)),
        pytest.param(encode(REQUESTED) + b"\n@" + b'{"x":' * 9_999, id="deep"),
    ],
)
async def test_a_delivery_that_is_not_its_call_is_removed_and_logged(
    body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    broker = FakeBroker()
    broker.body, broker.kept = body, "another's"
    assert await done_by(broker) == ["done"]
    assert "a call for the pool 'gpu' was not run" in caplog.text


@pytest.mark.parametrize("changes", [{"name": "none"}, {"name": "elsewhere"}, {"definition": "older"}])
async def test_calls_of_a_tool_that_the_worker_lacks_are_given_back_and_logged_once(
    changes: Any, caplog: pytest.LogCaptureFixture
) -> None:
    deliveries = [FakeBroker() for _ in range(2)]
    for number, each in enumerate(deliveries):
        each.key = ("r", f"c{number}")
        each.body = encode(replace(REQUESTED, call_id=f"c{number}", **changes))
    deliveries[0].calls = [*deliveries]
    worker = worker_of(deliveries[0], most=2)
    async with running(worker, seconds=10):
        for each in deliveries:
            await each.over.wait()
        worker.drain()
    assert [each.did for each in deliveries] == [["give back"]] * 2
    assert len([each for each in caplog.records if "are given back to the broker" in each.getMessage()]) == 1


async def test_a_call_whose_tool_is_removed_while_its_payload_is_loaded_is_given_back() -> None:
    class Slow(FakeBroker):
        async def load(self, reference: Reference) -> bytes:
            tools.remove("act")
            return await super().load(reference)

    tools, broker = ToolRegistry([act]), Slow(begun=["mine"])
    broker.body, broker.payload = large_call(ACTS, Reference(*KEY, "a" * 64, 1_000, 1)), ACT
    assert await done_by(broker, tools) == ["load", "give back"]


async def test_a_call_without_the_digest_of_its_tool_runs_by_its_name() -> None:
    broker = FakeBroker(True)
    broker.body = encode(replace(REQUESTED, definition=""))
    assert await done_by(broker) == ["answer", "done", "tell"]


async def test_a_call_that_comes_while_the_worker_drains_is_given_back() -> None:
    broker = FakeBroker()
    broker.calls, broker.left = [], [broker]
    worker = worker_of(broker)
    worker.drain()
    with anyio.fail_after(1):
        await worker.run()
    assert broker.did == ["give back"]


async def test_a_call_that_is_delivered_again_while_it_runs_is_given_up_by_its_newest_delivery() -> None:
    broker = FakeBroker(True)
    again = FakeBroker()
    broker.left = [again]  # The lease has ended while the call runs here.
    worker = worker_of(broker)
    async with running(worker):
        await anyio.sleep(10)
        worker.drain()
        await broker.over.wait()
    assert (broker.did, again.did) == (["answer", "tell"], ["done"])


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
    async with running(worker):
        await broker.over.wait()
        worker.drain()
    assert broker.did == ["answer", "done", "tell"]


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize(
    ("begun", "did", "finds"),
    [
        (["mine"], ["answer", "done", "tell"], 0),
        (["taken"], ["answer", "done", "tell"], 0),
        ([Unavailable("lost"), Unavailable("lost"), "mine"], ["answer", "done", "tell"], 2),
        ([Unavailable("lost"), "taken"], [], 1),
        ([Unavailable("lost"), "settled"], [], 1),
    ],
    ids=["mine", "taken", "lost twice", "lost and taken", "lost and settled"],
)
async def test_a_call_whose_beginning_was_not_acknowledged_is_begun_again_and_left_if_another_has_begun_it(
    begun: list[Begun | Unavailable], did: list[str], finds: int
) -> None:
    broker = FakeBroker(True, begun=begun)
    broker.body, taken = ACT, begun == ["taken"]
    assert await done_by(broker) == did
    assert (broker.begun, broker.finds) == ([], finds)
    if did:
        assert isinstance(answer := decode(broker.written), ToolCallFailed if taken else ToolCallCompleted)
        assert getattr(answer, "reason", "") == ("interrupted" if taken else "")
        assert getattr(answer, "outcome_unknown", taken) is taken


async def test_an_answer_that_is_kept_already_is_sent_to_the_node_and_the_call_does_not_run_again() -> None:
    broker = FakeBroker()
    broker.is_again, broker.known = True, encode(REQUESTED.completed("before"))
    assert await done_by(broker) == ["done", "tell"]
    assert broker.to_node == [broker.known]


async def test_the_lease_of_a_call_that_began_late_is_renewed_as_long_as_it_runs() -> None:
    broker = FakeBroker(True)
    broker.is_again, broker.lease_seconds, broker.away = True, 30.0, {"find": 2}
    assert await done_by(broker) == ["answer", "done", "tell"]
    assert broker.at == [10, 20, 30, 40, 50, 50.4]


async def test_a_worker_that_cannot_begin_a_call_offers_it_to_others_after_the_time_of_a_lease(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = FakeBroker(True, begun=[*[Unavailable("no permission")] * 400, "settled"])
    broker.body = ACT
    assert await done_by(broker) == []
    assert broker.at[:2] == [20, 40]
    assert broker.at[-1] <= 60, "80 seconds have passed"
    assert [each.levelname for each in caplog.records] == ["WARNING"], "the first time only"


async def test_a_worker_that_drains_leaves_a_call_that_it_could_not_begin() -> None:
    broker = FakeBroker(begun=[Unavailable("away")] * 1_000)
    broker.body = ACT
    worker = worker_of(broker)
    async with running(worker, seconds=10):
        await anyio.sleep(1)
        worker.drain()
        broker.over.set()
    assert broker.did == []
