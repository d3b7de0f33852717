"""The executor beside the sessions, over a broker that loses and delays messages, in virtual time."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import orjson
import pytest
from msgspec import structs

from toolbus import EventBus, Tool, ToolRegistry, tool
from toolbus.clock import wall_time_from
from toolbus.errors import LimitReached
from toolbus.events import (
    Event,
    RequestCompleted,
    Spent,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallProgress,
    ToolCallRequested,
    encode,
)
from toolbus.messages import Usage, UserMessage
from toolbus.records import replace
from toolbus.remote._bodies import MAX_BYTES, Reference, call_body, large_call
from toolbus.remote._executor import RemoteExecutor
from toolbus.remote._transport import Damaged, Full, Key, NotTaken, Then, Unavailable
from toolbus.testing import advance, settle, virtual_backends

anyio_backend = virtual_backends()
pytestmark = pytest.mark.leaves("buses", reason="requests are opened by hand, and no session ends them")

KEY = ("r", "c")
PAYLOAD = Reference(*KEY, "a" * 64, 1_000, 1)
QUESTION = {"prompt": {"role": "user", "content": "How many?"}}
ASK = b"?" + orjson.dumps(
    {"do": "ask", "id": "q", "request": KEY[0], "call": KEY[1], "worker": "w", "content": QUESTION}
)
EXTERNAL: Tool = Tool("outside", "Ask outside.", {"type": "object"}, external=True)


@pytest.fixture(autouse=True)
def no_error_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [each for each in caplog.get_records("call") if each.levelno >= logging.ERROR]


@tool(pool="gpu")
async def echo() -> str:
    """Answer."""
    return "said"


@tool(pool="gpu", idempotent=True)
async def again() -> str:
    """Answer, and perhaps once more."""
    return "said"


@tool(pool="other")
async def elsewhere() -> str:
    """Answer in another pool."""
    return "said"


@tool(pool="gpu", needs_transcript=True)
async def recall() -> str:
    """Answer from the transcript."""
    return "said"


class FakeBroker:
    """The link of the executor. It takes each call at once, unless it `is_away`, and keeps what is in `answer`.

    A call is acknowledged with `outcome`, if that is there.
    """

    max_bytes = 1_000_000

    def __init__(self) -> None:
        self.payloads = self
        self.is_away = self.hangs = self.never_again = False
        self.carries_all = True
        self.outcome: Unavailable | None = None
        self.answer: bytes | None = None
        self.patience: list[float] = []
        self.did: list[Any] = []
        self.waiting: list[Then] = []
        self.last: list[bytes] = []
        self.bodies: list[bytes] = []
        self.seconds = 0.0  # that a payload takes
        self.to_worker: list[str] = []  # the kinds of the messages
        self.trouble: Exception | None = None
        self.payload = b""
        self.since = self.known_since = 0.0
        self.asked = 0  # how often since when it keeps calls

    def listen(self, heard: Any, reconnected: Any) -> None:
        self.heard, self.reconnected = heard, reconnected

    def carries(self, key: Key) -> bool:
        return self.carries_all and key[0] == KEY[0]

    async def send(
        self, key: Key, body: bytes, remaining_seconds: float, then: Then, *, seconds: float, again: bool
    ) -> None:
        del key, remaining_seconds
        self.bodies.append(body)
        self.patience.append(seconds)
        self.did.append("send again" if again else "send")
        await anyio.lowlevel.checkpoint()
        if self.is_away:
            then(Unavailable("away"))
        elif self.outcome is not None:
            then(self.outcome)
        else:
            self.waiting.append(then)

    def acknowledge(self) -> None:
        for then in self.waiting:
            then(True)
        self.waiting.clear()

    async def tell(self, worker: str, body: bytes) -> None:
        assert worker == "w"
        self.to_worker.append(orjson.loads(body[1:])["do"])
        if self.is_away:
            raise Unavailable("away")
        await anyio.lowlevel.checkpoint()

    async def find(self, key: Key) -> bytes | None:
        assert key == KEY
        await anyio.lowlevel.checkpoint()
        if self.is_away:
            raise Unavailable("away")
        return self.answer

    async def kept_since(self) -> float:
        if self.is_away:
            raise Unavailable("away")
        self.asked += 1
        self.known_since = self.since
        return self.since

    async def stop(self, key: Key, *, never_again: bool) -> None:
        assert key[0] == KEY[0]
        self.did.append("stop")
        self.never_again = never_again
        await (anyio.sleep_forever() if self.hangs else anyio.lowlevel.checkpoint())

    async def keep(self, key: Key, body: bytes) -> Reference:
        assert key == KEY
        self.did.append("keep")
        await anyio.sleep(self.seconds)
        if self.trouble is not None:
            raise self.trouble
        return Reference(*KEY, "d" * 64, len(body), 1)

    async def load(self, reference: Reference) -> bytes:
        assert reference == PAYLOAD
        self.did.append("load")
        await anyio.sleep(self.seconds)
        if self.trouble is not None:
            raise self.trouble
        return self.payload

    async def drop(self, key: Key, digest: str = "") -> None:
        assert key == KEY
        self.did.append("drop one" if digest else "drop")
        await anyio.lowlevel.checkpoint()

    async def forget(self, request_id: str, *, calls_too: bool, payloads_too: bool, never_again: bool) -> None:
        assert request_id == KEY[0]
        assert not never_again
        self.did.append({"calls": calls_too, "payloads": payloads_too})
        await anyio.lowlevel.checkpoint()


class Scene:
    """One call of one request, the broker that has to carry it, and the terminal event of the call."""

    def __init__(self, bus: EventBus, broker: FakeBroker, view: Any) -> None:
        self.bus, self.broker, self.view = bus, broker, view
        self.ended: list[Event] = []
        self.mailbox: Any = None
        bus.connect((ToolCallCompleted, ToolCallFailed), self.ended.append)
        self.requested = ToolCallRequested(
            request_id=KEY[0],
            call_id=KEY[1],
            name="echo",
            arguments={},
            round=0,
            timeout_seconds=60.0,
            idempotency_key="k",
        )

    async def request(self, deadline: float = 60.0, *, resumed: bool = False) -> None:
        if self.mailbox is None:
            self.mailbox = self.bus.arbitration.open_mailbox(KEY[0], self.view)
        self.bus.arbitration.open_calls(self.mailbox, [self.requested.call_id])
        self.requested = replace(self.requested, at=self.bus.clock(), timeout_seconds=deadline, resumed=resumed)
        self.bus.arbitration.announce(self.requested)
        await settle()

    def enlarge(self) -> None:
        """Make the call too large for one message."""
        self.requested = replace(self.requested, arguments={"words": "x" * 2_000})
        self.broker.max_bytes = 1_000

    def answer_questions(self, child: Callable[[], Child]) -> None:
        """Let the request answer the questions of its calls, each with a sub-request that `child` makes."""

        def made(*_args: Any, **_options: Any) -> Child:
            return child()

        self.view.is_stopping, self.view.metadata, self.view.instrumentation = False, {}, ()
        self.view.child = made

    def end(self) -> None:
        self.bus.arbitration.announce(RequestCompleted(request_id=KEY[0], text="Done.", usage=Usage()))

    def hear(self, event: Event) -> None:
        self.broker.heard(encode(event))


@asynccontextmanager
async def scene(*, leaves: bool = False, others: bool = True) -> AsyncGenerator[Scene]:
    """A request on a bus with an executor. If it `leaves`, a cancelled runtime leaves it for another process.

    Other requests have the tool only with `others`.
    """
    bus, broker = EventBus(), FakeBroker()
    tools = ToolRegistry([echo] if others else [])
    own = ToolRegistry([echo, again, recall, elsewhere, EXTERNAL])
    view: Any = SimpleNamespace(is_released=False, tools=own, calls={}, messages=[UserMessage(content="Go.")])

    @asynccontextmanager
    async def connect() -> AsyncGenerator[Any]:
        try:
            yield broker
        finally:
            # What was on its way arrives before the connection is closed.
            broker.acknowledge()
            for body in broker.last:
                broker.heard(body)
            broker.did.append("close")

    def on_cancelled() -> None:
        broker.did.append("cancelled")
        view.is_released = leaves

    async with RemoteExecutor(bus, tools, "gpu", connect, on_cancelled):
        yield Scene(bus, broker, view)


@pytest.mark.guarantee("G25")
@pytest.mark.parametrize(("deadline", "patience"), [(60.0, 2.0), (1.0, 0.9), (0.1, 0.05)])
async def test_a_call_waits_for_its_acknowledgement_for_as_long_as_its_deadline_leaves_time(
    deadline: float, patience: float
) -> None:
    async with scene() as here:
        await here.request(deadline)
        assert here.broker.patience == [pytest.approx(patience)]


@pytest.mark.guarantee("G25")
@pytest.mark.parametrize(
    ("outcome", "sent"),
    [
        (None, ["send"]),  # The broker may have taken it, and says no more.
        (Unavailable("away"), ["send", *["send again"] * 3]),
        (NotTaken("away"), ["send"] * 4),
    ],
)
async def test_a_call_that_the_broker_does_not_take_is_sent_again_and_lost_just_before_its_deadline(
    outcome: Unavailable | None, sent: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with scene() as here:
        here.broker.is_away, here.broker.outcome = outcome is None, outcome
        await here.request(1.0)
        await advance(0.7)
        assert not here.ended
        assert here.broker.did == sent
        await advance(0.29)
        [ended] = here.ended
        assert isinstance(ended, ToolCallFailed)
        assert (ended.reason, ended.outcome_unknown) == ("lost", True)
        assert here.broker.did[-1] == "stop"
        assert caplog.text.count("call c was not sent yet: away") == 1


async def test_each_time_that_the_broker_is_away_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with scene() as here:
        here.broker.is_away = True
        await here.request()
        await advance(1.0)
        here.broker.is_away = False
        await advance(2.0)
        here.broker.acknowledge()
        here.requested = replace(here.requested, call_id="d", event_id="another")
        here.broker.is_away = True
        await here.request()
        assert [each.getMessage() for each in caplog.records] == [
            "call c was not sent yet: away",
            "call d was not sent yet: away",
        ]


async def test_calls_that_are_requested_at_once_are_all_sent() -> None:
    async with scene() as here:
        await here.request()
        both = [replace(here.requested, call_id=each, event_id=each) for each in ("d", "e")]
        here.bus.arbitration.open_calls(here.mailbox, ["d", "e"])
        for each in both:
            here.bus.arbitration.announce(each)
        await settle()
        assert here.broker.did == ["send"] * 3


@pytest.mark.parametrize("view", ["its own tools", "another source of tools", "no view"])
async def test_a_call_runs_by_the_tools_of_its_request_or_else_of_all_requests(view: str) -> None:
    async with scene(others=view != "its own tools") as here:
        if view == "another source of tools":
            here.view.tools = ()
        elif view == "no view":
            here.view = None
        await here.request()
        assert here.broker.did == ["send"]


@pytest.mark.parametrize(("name", "parts"), [("echo", 1), ("recall", 2)])
async def test_the_transcript_goes_only_to_a_tool_that_asks_for_it(name: str, parts: int) -> None:
    async with scene() as here:
        here.requested = replace(here.requested, name=name)
        await here.request()
        [body] = here.broker.bodies
        assert len(body.split(b"\n")) == parts
        assert (b"Go." in body) == (parts == 2)


@pytest.mark.parametrize(
    ("name", "calls"),
    [("elsewhere", {}), ("outside", {}), ("unknown", {}), ("echo", {KEY[1]: SimpleNamespace(requested_at=None)})],
)
async def test_a_call_for_another_executor_or_one_that_has_to_wait_is_not_sent(name: str, calls: Any) -> None:
    async with scene() as here:
        here.view.calls = calls
        here.requested = replace(here.requested, name=name)
        await here.request()
        assert here.broker.did == []


@pytest.mark.parametrize("wrong", [{"metadata": {"user": object()}}, {"arguments": {"number": 2**70}}])
async def test_a_call_that_cannot_be_written_as_json_fails_and_the_executor_still_sends_others(wrong: Any) -> None:
    async with scene() as here:
        right, here.requested = here.requested, replace(here.requested, **wrong)
        await here.request()
        [ended] = here.ended
        assert isinstance(ended, ToolCallFailed)
        assert (ended.reason, ended.outcome_unknown) == ("error", False)
        assert ended.error.startswith("The call cannot be sent to a worker: ")
        here.bus.arbitration.open_calls(here.bus.arbitration.mailboxes[KEY[0]], [KEY[1]])
        here.bus.arbitration.announce(right)
        await settle()
        assert here.broker.did == ["send"]


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize(
    ("resumed", "reconnects", "seconds"), [(True, False, 1.0), (False, True, 1.0), (False, False, 10.0)]
)
async def test_an_answer_that_did_not_arrive_is_found_soon_where_one_may_have_been_missed(
    resumed: bool, reconnects: bool, seconds: float
) -> None:
    async with scene() as here:
        await here.request(resumed=resumed)
        here.broker.acknowledge()
        here.broker.answer = encode(here.requested.completed("said"))
        if reconnects:
            here.broker.reconnected()
        await advance(seconds - 0.1)
        assert not here.ended
        await advance(0.2)
        [ended] = here.ended
        assert isinstance(ended, ToolCallCompleted)
        assert ended.content == "said"
        here.end()
        await settle()
        assert here.broker.did[-1] == {"calls": True, "payloads": resumed}


@pytest.mark.guarantee("G24")
async def test_a_look_for_an_answer_that_fails_is_repeated_once_the_broker_is_back() -> None:
    async with scene() as here:
        await here.request()
        here.broker.acknowledge()
        here.broker.answer = encode(here.requested.completed("said"))
        here.broker.reconnected()
        here.broker.is_away = True
        await advance(1.1)
        here.broker.is_away = False
        await advance(1)
        assert [each.type for each in here.ended] == ["tool_call_completed"]


@pytest.mark.guarantee("G24")
async def test_a_resumed_call_whose_answer_is_kept_is_not_sent_again_and_one_without_is() -> None:
    """While the broker is away, nobody knows whether it has an answer."""
    async with scene() as here:
        here.broker.answer = encode(here.requested.completed("said"))
        await here.request(resumed=True)
        assert [each.type for each in here.ended] == ["tool_call_completed"]
        assert here.broker.did == []
    async with scene() as here:
        here.broker.is_away = True
        await here.request(resumed=True)
        assert here.broker.did == []
        here.broker.is_away = False
        await advance(0.3)
        assert (here.ended, here.broker.did) == ([], ["send again"])


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize(
    ("name", "outcome", "is_lost", "then", "reason"),
    [
        ("echo", Unavailable("away"), True, "stop", "interrupted"),
        ("echo", Unavailable("away"), False, "send again", ""),
        ("echo", NotTaken("away"), True, "send", ""),
        ("again", Unavailable("away"), True, "send again", ""),
    ],
)
async def test_a_call_that_a_broker_may_have_taken_before_it_lost_its_data_is_sent_again_only_if_it_may(
    name: str, outcome: Unavailable, is_lost: bool, then: str, reason: str
) -> None:
    async with scene() as here:
        here.requested = replace(here.requested, name=name)
        here.broker.outcome = outcome
        await here.request()
        here.broker.since, here.broker.outcome = float(is_lost), None
        await advance(0.3)
        assert [getattr(each, "reason", "") for each in here.ended] == [reason] * bool(reason)
        assert here.broker.did == ["send", then]


@pytest.mark.guarantee("G24")
async def test_a_broker_is_asked_once_for_all_calls_that_it_may_have_lost() -> None:
    async with scene() as here:
        for seconds in (0.0, 0.3):
            await advance(seconds)
            here.broker.outcome = Unavailable("away")
            for number in range(3):
                here.requested = replace(here.requested, call_id=f"{number} {seconds}", event_id=f"{number} {seconds}")
                await here.request()
            here.broker.outcome = None
        await advance(0.3)
        assert here.broker.did == [*["send"] * 3, *["send again"] * 3] * 2
        assert here.broker.asked == 2


@pytest.mark.guarantee("G25")
async def test_a_broker_that_does_not_say_whether_it_has_an_answer_loses_the_call_just_before_its_deadline() -> None:
    async with scene() as here:
        here.broker.find = hang  # type: ignore[method-assign]
        await here.request(1.0, resumed=True)
        await advance(0.85)
        assert not here.ended
        await advance(0.1)
        assert [getattr(each, "reason", "") for each in here.ended] == ["lost"]


async def hang(key: Key) -> bytes | None:
    assert key == KEY
    await anyio.sleep_forever()
    raise AssertionError


@pytest.mark.guarantee("G24")
async def test_a_large_answer_of_a_resumed_call_is_read_again_after_the_broker_was_away() -> None:
    async with scene() as here:
        here.broker.answer = b"@" + orjson.dumps(structs.asdict(PAYLOAD))
        here.broker.trouble = Unavailable("away")
        await here.request(resumed=True)
        assert (here.broker.did, here.ended) == (["load"], [])
        here.broker.trouble, here.broker.payload = None, encode(here.requested.completed("said"))
        await advance(1.1)
        assert [each.type for each in here.ended] == ["tool_call_completed"]


@pytest.mark.guarantee("G24")
async def test_an_event_that_cannot_be_an_answer_of_the_call_does_not_end_it() -> None:
    async with scene() as here:
        await here.request()
        here.broker.acknowledge()
        answer = here.requested.completed("said")
        here.hear(replace(answer, name="another"))
        here.hear(replace(answer, call_id="another"))
        here.hear(here.requested)
        here.broker.heard(b"no event")
        assert not here.ended
        here.hear(answer)
        here.hear(answer)
        assert [each.type for each in here.ended] == ["tool_call_completed"]


async def test_only_the_ids_of_an_answer_are_its_workers() -> None:
    async with scene() as here:
        here.requested = replace(here.requested, conversation_id="conv", parent_id="above", metadata={"user": "Ada"})
        await here.request()
        answer = here.requested.completed("said")
        here.hear(replace(answer, conversation_id="forged", parent_id="forged", metadata={"user": "Bob"}))
        assert here.ended == [replace(answer, event_id=here.ended[0].event_id, at=here.ended[0].at)]


@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize(("resumed", "stopped"), [(False, ["stop"]), (True, ["stop", "drop"])])
async def test_a_call_that_is_settled_elsewhere_is_stopped_also_if_the_broker_takes_it_later(
    is_taken: bool, resumed: bool, stopped: list[str]
) -> None:
    """Of a resumed call, the broker may keep payloads of the process that has run its request before.

    That process may also send it yet, so the broker keeps that it has begun.
    """
    async with scene() as here:
        await here.request(resumed=resumed)
        if is_taken:
            here.broker.acknowledge()
        here.bus.publish(here.requested.failed("too late", reason="timeout"))
        await settle()
        send = "send again" if resumed else "send"
        assert (here.broker.did, here.broker.never_again) == ([send, *stopped], resumed)
        here.broker.acknowledge()
        await settle()
        assert here.broker.did == [send, *stopped, *(stopped * (not is_taken))]


@pytest.mark.guarantee("G20", "G24")
@pytest.mark.parametrize(
    ("then", "did"),
    [
        ("published", ["stop"]),
        ("taken over", []),
        ("ended", ["stop", {"calls": True, "payloads": False}]),
        ("failed for its store", []),
        ("closed", []),
    ],
)
async def test_a_call_is_deleted_once_its_outcome_is_published_and_not_if_another_process_continues_its_request(
    then: str, did: list[Any]
) -> None:
    """A process that stood still past its lease settles a call before it learns that another one waits for the answer."""
    async with scene() as here:
        await here.request()
        here.broker.acknowledge()
        here.bus.arbitration.claim(*KEY)
        here.bus.arbitration.announce(RequestCompleted(request_id="another", text="Done.", usage=Usage()))
        await settle()
        assert here.broker.did == ["send"]
        here.view.is_released = then in ("taken over", "failed for its store")
        if then == "taken over":
            await advance(1.5)
            here.view.is_released = False  # It is forgotten by now.
        if then in ("published", "taken over"):
            here.bus.arbitration.announce(here.requested.failed("too late", reason="timeout"))
        elif then != "closed":
            here.end()
        await settle()
        assert sorted(map(str, here.broker.did[1:])) == sorted(map(str, did))
    assert here.broker.did[1 + len(did) :] == (["stop", "close"] if then == "closed" else ["close"])


@pytest.mark.guarantee("G24")
async def test_a_call_that_was_settled_elsewhere_is_deleted_before_its_marks_when_its_request_ends() -> None:
    """Its own deletion may have failed. Without its mark, a worker would run it once more."""
    async with scene() as here:
        await here.request()
        here.broker.acknowledge()
        here.bus.publish(here.requested.failed("too late", reason="timeout"))
        here.end()
        await settle()
        assert {"calls": True, "payloads": False} in here.broker.did


async def test_a_call_that_the_broker_takes_while_the_executor_leaves_is_stopped_again() -> None:
    async with scene() as here:
        await here.request()
        stop = here.broker.stop

        async def stop_late(key: Key, *, never_again: bool) -> None:
            await stop(key, never_again=never_again)
            here.broker.acknowledge()

        here.broker.stop = stop_late  # type: ignore[method-assign]
    assert here.broker.did == ["send", "stop", "stop", "close"]


async def test_a_call_that_the_broker_has_not_taken_yet_is_not_looked_for() -> None:
    async with scene() as here:
        await here.request()
        here.broker.answer = encode(here.requested.completed("said"))
        here.broker.reconnected()
        await advance(1.5)
        assert not here.ended
        here.broker.acknowledge()
        here.broker.reconnected()
        await advance(1)
        assert [each.type for each in here.ended] == ["tool_call_completed"]


@pytest.mark.parametrize(
    ("resumed", "is_away", "is_lost", "kept"),
    [
        (False, False, False, {"calls": False, "payloads": False}),
        (False, True, False, {"calls": True, "payloads": False}),
        (True, False, False, {"calls": True, "payloads": True}),
        (False, False, True, {"calls": False, "payloads": True}),
    ],
)
async def test_all_that_the_broker_may_keep_of_a_request_is_deleted_at_its_end_and_nothing_else_is_asked_for(
    resumed: bool, is_away: bool, is_lost: bool, kept: dict[str, bool]
) -> None:
    """Of a call whose worker `is_lost`, the broker may keep a part of the answer."""
    async with scene() as here:
        here.broker.is_away = is_away
        await here.request(resumed=resumed)
        here.broker.is_away = False
        await advance(0.3)
        here.broker.acknowledge()
        here.hear(here.requested.failed("lost", reason="interrupted") if is_lost else here.requested.completed("said"))
        here.end()
        await settle()
        assert here.broker.did[-1] == kept
        assert "stop" not in here.broker.did


async def test_what_is_kept_of_a_question_is_deleted_with_its_request() -> None:
    async with scene() as here:
        here.view.is_stopping = False
        await here.request()
        here.broker.acknowledge()
        here.broker.trouble = Unavailable("away")
        ask = {"do": "ask", "id": "1", "request": "r", "call": "c", "worker": "w", "payload": structs.asdict(PAYLOAD)}
        here.broker.heard(b"?" + orjson.dumps(ask))
        await settle()
        here.hear(here.requested.completed("said"))
        here.end()
        await settle()
        assert here.broker.did[-2:] == ["load", {"calls": False, "payloads": True}]


async def test_of_more_requests_than_an_executor_remembers_nothing_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolbus.remote._executor._MAX_REQUESTS", 0)
    async with scene() as here:
        await here.request()
        here.hear(here.requested.completed("said"))
        here.end()
        await settle()
        assert here.broker.did == ["send"]


async def test_a_call_whose_ids_are_too_long_for_the_broker_fails_with_the_limit() -> None:
    async with scene() as here:
        here.broker.carries_all = False
        await here.request()
        [ended] = here.ended
        assert isinstance(ended, ToolCallFailed)
        assert (ended.reason, ended.limit, ended.outcome_unknown) == ("limit", "too long for the broker", False)
        assert here.broker.did == []


@pytest.mark.guarantee("G24")
async def test_progress_is_reported_while_its_call_is_open() -> None:
    async with scene() as here:
        progress: list[ToolCallProgress] = []
        here.bus.connect(ToolCallProgress, progress.append)
        await here.request()
        for each in (0.5, 1.0):
            here.hear(ToolCallProgress(request_id=KEY[0], call_id=KEY[1], name="echo", done=each))
            if each == 0.5:
                here.hear(here.requested.completed("said"))
        assert [each.done for each in progress] == [0.5]


@pytest.mark.parametrize(("hangs", "seconds"), [(False, 0), (True, 2)])
async def test_an_executor_that_is_closed_ends_its_calls_and_stops_their_workers(hangs: bool, seconds: float) -> None:
    async with scene() as here:
        await here.request()
        here.broker.hangs = hangs
        left_at = anyio.current_time()
    assert anyio.current_time() - left_at == seconds
    [ended] = here.ended
    assert isinstance(ended, ToolCallFailed)
    assert (ended.reason, ended.error, ended.outcome_unknown) == ("cancelled", "The executor was closed.", True)
    assert here.broker.did == ["send", "stop", "close"]


@pytest.mark.guarantee("G18")
@pytest.mark.parametrize(("leaves", "did"), [(False, ["stop"]), (True, [])])
async def test_a_cancelled_host_stops_the_calls_of_its_requests_unless_they_continue_elsewhere(
    leaves: bool, did: list[str]
) -> None:
    with anyio.CancelScope() as host:
        async with scene(leaves=leaves) as here:
            await here.request()
            here.broker.last.append(encode(here.requested.completed("said")))
            host.cancel()
            await anyio.lowlevel.checkpoint()
    assert here.broker.did == ["send", "cancelled", *did, "close"]
    assert [each.type for each in here.ended] == ["tool_call_failed"] * len(did)
    assert here.bus.arbitration.is_open(*KEY) is leaves
    assert here.bus.arbitration.watch(*KEY, lambda: None) is leaves, "another executor may take the call on"
    here.bus.publish(here.requested.failed("too late", reason="timeout"))
    assert here.broker.did[-1] == "close"


class Child:
    """A sub-request that has used up some tokens, and fails or runs on."""

    spent = Spent(usage=Usage(output_tokens=7))

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails
        self.is_running = False

    async def run(self) -> None:
        if self.fails:
            raise LimitReached("too many rounds")
        self.is_running = True
        try:
            await anyio.sleep_forever()
        finally:
            self.is_running = False


@pytest.mark.parametrize("how", ["the call is settled elsewhere", "the worker is silent"])
async def test_a_question_ends_when_its_handler_no_longer_waits(how: str) -> None:
    child = Child(fails=False)
    async with scene() as here:
        here.answer_questions(lambda: child)
        await here.request()
        here.broker.heard(ASK)
        await settle()
        assert here.broker.to_worker == ["runs"]
        await advance(14)
        assert child.is_running
        if how == "the worker is silent":
            await advance(3)
        else:
            here.bus.publish(here.requested.failed("too late", reason="timeout"))
            await settle()
        assert not child.is_running


async def test_what_several_questions_have_used_up_is_added_and_a_lost_message_ends_nothing() -> None:
    async with scene() as here:
        here.answer_questions(lambda: Child(fails=True))
        await here.request()
        for number in range(3):
            here.broker.is_away = number == 1
            here.broker.heard(ASK.replace(b'"q"', b'"q%d"' % number))
            await settle()
        assert here.broker.to_worker == ["runs", "failed"] * 3
        here.hear(here.requested.completed("said"))
    [ended] = here.ended
    assert isinstance(ended, ToolCallCompleted)
    assert ended.spent == Spent(usage=Usage(output_tokens=21))


async def test_a_call_and_a_request_that_cannot_be_deleted_from_the_broker_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def away(*_: Any, **__: Any) -> None:
        raise Unavailable("away")

    async with scene() as here:
        here.broker.stop = here.broker.forget = away  # type: ignore[method-assign]
        await here.request()
        here.broker.acknowledge()
        here.bus.publish(here.requested.failed("too late", reason="timeout"))
        here.end()
        await settle()
    assert {each.getMessage() for each in caplog.records} == {
        f"the broker keeps what it has of {what}: away" for what in ("call c", "request r")
    }


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("ending", ["answered", "lost", "closed"])
async def test_what_the_questions_of_a_call_have_used_up_counts_however_the_call_ends(ending: str, fails: bool) -> None:
    async with scene() as here:
        here.answer_questions(lambda: Child(fails=fails))
        await here.request()
        here.broker.heard(ASK)
        await settle()
        if ending == "answered":
            here.hear(here.requested.completed("said"))
        elif ending == "lost":
            here.broker.trouble = Damaged("gone")
            here.broker.heard(PAYLOAD.line)
            await settle()
    [ended] = here.ended
    assert isinstance(ended, ToolCallCompleted | ToolCallFailed)
    assert ended.spent == Child.spent


# ------------------------------------------------------------------------------------------------ payloads


async def test_a_call_that_does_not_fit_into_a_message_is_kept_until_it_has_its_answer() -> None:
    async with scene() as here:
        here.enlarge()
        await here.request()
        assert here.broker.did == ["keep", "send"]
        [body] = here.broker.bodies
        assert b"xxx" not in body
        here.broker.acknowledge()
        here.hear(here.requested.completed("said"))
        here.end()
        await settle()
        assert sorted(map(str, here.broker.did[2:])) == ["drop one", "{'calls': False, 'payloads': True}"]


@pytest.mark.parametrize(("more", "did"), [(0, ["send"]), (-1, ["keep", "send"])])
async def test_a_call_of_just_the_size_of_a_message_is_sent_in_one(more: int, did: list[str]) -> None:
    with wall_time_from(lambda: 1_000.5):
        async with scene() as here:
            here.requested = replace(here.requested, arguments={"words": "x" * 2_000}, at=here.bus.clock())
            here.broker.max_bytes = len(call_body(here.requested, None)) + more
            await here.request()
            assert here.broker.did == did


@pytest.mark.parametrize(("more", "did"), [(0, ["keep", "send"]), (-1, ["keep", "drop one"])])
async def test_a_large_call_whose_head_has_just_the_size_of_a_message_is_sent(more: int, did: list[str]) -> None:
    with wall_time_from(lambda: 1_000.5):
        async with scene() as here:
            here.enlarge()
            here.requested = replace(here.requested, at=here.bus.clock())
            body = call_body(here.requested, None)
            here.broker.max_bytes = len(large_call(here.requested, Reference(*KEY, "d" * 64, len(body), 1))) + more
            await here.request()
            assert here.broker.did == did


async def test_a_large_call_is_kept_again_while_the_broker_is_away() -> None:
    async with scene() as here:
        here.enlarge()
        here.broker.trouble = Unavailable("away")
        await here.request()
        here.broker.trouble = None
        await advance(0.3)
        assert here.broker.did == ["keep", "keep", "send"]


@pytest.mark.guarantee("G25")
async def test_a_large_call_that_the_broker_does_not_keep_is_lost_just_before_its_deadline() -> None:
    async with scene() as here:
        here.enlarge()
        here.broker.seconds = 60.0
        await here.request(1.0)
        await advance(0.95)
        [ended] = here.ended
        assert isinstance(ended, ToolCallFailed)
        assert (ended.reason, here.broker.did) == ("lost", ["keep", "stop", "drop"])


@pytest.mark.parametrize(("name", "what"), [("echo", "The arguments of the call are"), ("recall", "The call with its")])
async def test_a_large_call_for_which_the_broker_has_no_space_fails_with_the_limit(name: str, what: str) -> None:
    async with scene() as here:
        here.enlarge()
        here.requested = replace(here.requested, name=name)
        here.broker.trouble = Full("no space")
        await here.request()
        [ended] = here.ended
        assert isinstance(ended, ToolCallFailed)
        assert (ended.reason, ended.limit) == ("limit", "larger than the free space of the broker")
        assert ended.error.startswith(what)
        assert here.broker.did == ["keep"]


async def test_a_large_call_that_is_settled_while_it_is_kept_is_deleted_and_not_sent() -> None:
    async with scene() as here:
        here.enlarge()
        here.broker.seconds = 1.0
        await here.request()
        here.bus.publish(here.requested.failed("too late", reason="timeout"))
        await advance(1.5)
        assert here.broker.did == ["keep", "stop", "drop", "drop one"]


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize("resumed", [False, True])
async def test_a_large_answer_is_read_once_however_often_it_is_heard(resumed: bool) -> None:
    async with scene() as here:
        here.broker.seconds = 1.5
        here.broker.payload = encode(here.requested.completed("said"))
        if resumed:
            here.broker.answer = PAYLOAD.line
        await here.request(resumed=resumed)
        here.broker.acknowledge()
        here.broker.heard(PAYLOAD.line)
        here.broker.heard(PAYLOAD.line)
        await advance(2)
        [ended] = here.ended
        assert isinstance(ended, ToolCallCompleted)
        assert ended.content == "said"
        here.broker.heard(PAYLOAD.line)
        here.end()
        await settle()
        assert here.broker.did == ["load" if resumed else "send", *["load"] * (not resumed), here.broker.did[-1]]
        assert here.broker.did[-1] == {"calls": resumed, "payloads": True}


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize(
    ("trouble", "payload", "reason"),
    [(Damaged("gone"), b"", "lost"), (None, b"no event", "lost"), (None, b"x" * (MAX_BYTES + 1), "limit")],
)
async def test_a_large_answer_that_cannot_be_read_ends_its_call_which_ran(
    trouble: Exception | None, payload: bytes, reason: str
) -> None:
    async with scene() as here:
        await here.request()
        here.broker.trouble, here.broker.payload = trouble, payload
        here.broker.heard(PAYLOAD.line)
        await settle()
        [ended] = here.ended
        assert isinstance(ended, ToolCallFailed)
        assert (ended.reason, ended.outcome_unknown) == (reason, True)


@pytest.mark.guarantee("G24")
async def test_a_large_answer_that_cannot_be_read_now_is_read_at_the_next_look() -> None:
    async with scene() as here:
        await here.request()
        here.broker.acknowledge()
        here.broker.answer, here.broker.payload = PAYLOAD.line, encode(here.requested.completed("said"))
        here.broker.trouble = Unavailable("away")
        here.broker.heard(PAYLOAD.line)
        await settle()
        assert not here.ended
        here.broker.trouble = None
        await advance(1.1)
        assert [each.type for each in here.ended] == ["tool_call_completed"]


async def test_a_large_answer_to_a_call_that_was_settled_meanwhile_is_dropped() -> None:
    async with scene() as here:
        here.broker.seconds, here.broker.payload = 1.0, encode(here.requested.completed("said"))
        await here.request()
        here.broker.heard(PAYLOAD.line)
        await settle()
        here.bus.publish(here.requested.failed("too late", reason="timeout"))
        await advance(1.5)
        assert [each.type for each in here.ended] == ["tool_call_failed"]
