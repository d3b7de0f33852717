"""The status line of one request: what goes out, to whom, and what it costs while nobody listens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from toolbus.bus import EventBus
from toolbus.core.turn import Phase, TurnState
from toolbus.events import (
    CallOutcome,
    Event,
    MessageAppended,
    ModelResponded,
    ModelRetrying,
    ReceiverFailed,
    RequestCompleted,
    RequestStarted,
    RoundStarted,
    StatusChanged,
    SteeringAdded,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallProgress,
    ToolCallRequested,
    ToolCallRetrying,
)
from toolbus.messages import AssistantMessage, ToolCall, UserMessage
from toolbus.protocols import ToolSpec
from toolbus.status import StatusPublisher
from toolbus.testing import advance, virtual_backends

anyio_backend = virtual_backends()
pytestmark = pytest.mark.leaves("buses", reason="requests are opened by hand, and no session ends them")

SPECS = {"weather": ToolSpec(name="weather", status="Looking {city} up")}
LOOKING = ("executing", "Looking Paris up")
STARTED = ("submitted", "Analyzing request...")


class Publisher(StatusPublisher):
    """Whose request has no state: what has happened so far is what it was told."""

    reported: list[Event]

    def _so_far(self) -> list[Event]:
        return self.reported


class Desk:
    """A request `r` on a bus, told as its session would: announced first, then to the publisher."""

    def __init__(self) -> None:
        self.bus = EventBus()
        self.bus.arbitration.bind()
        self.asked = 0
        self.state = TurnState("r", conversation_id="c", parent_id="u", metadata={"tenant": "t"})
        self.reported: list[Event] = []
        self.publisher = Publisher(self.bus, self.state, self.specs)
        self.publisher.reported = self.reported

    def specs(self) -> dict[str, ToolSpec]:
        self.asked += 1
        return SPECS

    def publish(self, kind: type[Event], **fields: Any) -> None:
        event: Event = kind(**{**self.state.envelope(self.bus.clock()), **fields})
        self.bus.arbitration.announce(event)
        self.publish_all([event])

    def publish_all(self, events: Sequence[Event]) -> None:
        self.reported += events
        for event in events:
            if isinstance(event, RoundStarted):
                self.state.round, self.state.attempts, self.state.phase = event.round, 1, Phase.MODEL
            elif isinstance(event, ModelRetrying):
                self.state.attempts += 1
            elif isinstance(event, ModelResponded):
                self.state.phase = Phase.TOOLS
        self.publisher.publish(events)

    def start(self) -> None:
        self.publish(RequestStarted, timeout_seconds=120.0)

    def request(self, call_id: str = "a", name: str = "weather", **arguments: Any) -> None:
        fields = {
            "arguments": arguments or {"city": "Paris"},
            "round": 0,
            "timeout_seconds": 30.0,
            "idempotency_key": "k",
        }
        self.publish(ToolCallRequested, call_id=call_id, name=name, **fields)

    def complete(self, call_id: str = "a") -> None:
        self.publish(ToolCallCompleted, call_id=call_id, name="weather", content="sunny")

    def progress(self, message: str, request_id: str = "r") -> None:
        event = ToolCallProgress(request_id=request_id, call_id="a", name="weather", message=message)
        self.bus.publish(event)

    def listen(self) -> list[tuple[str, str]]:
        said: list[tuple[str, str]] = []
        self.bus.connect(StatusChanged, lambda event: said.append((event.stage, event.text)))
        return said


async def test_each_change_goes_out_once_with_the_request_s_envelope():
    desk = Desk()
    heard: list[Event] = []
    desk.bus.connect(Event, heard.append)
    desk.start()
    desk.publish(RoundStarted, round=0, message_count=1)
    await advance(5)
    desk.request()
    desk.complete()
    desk.publish(RoundStarted, round=1, message_count=3, call_outcomes=(CallOutcome(name="weather", ok=True),))
    desk.publish(RequestCompleted, text="Sunny.")
    said = [each for each in heard if isinstance(each, StatusChanged)]
    assert [(each.stage, each.text) for each in said] == [
        STARTED,
        LOOKING,
        ("processing", "Processing tool results..."),
        ("complete", "Done"),
    ]
    for each in said:
        assert (each.request_id, each.conversation_id, each.parent_id) == ("r", "c", "u")
        assert each.metadata == {"tenant": "t"}
    assert said[1].at - said[0].at == pytest.approx(5)
    assert [heard.index(said[0]), heard.index(said[1])] == [1, 4], "a status comes behind the fact that it tells of"


async def test_while_nobody_listens_nothing_is_built_and_nothing_is_heard():
    desk = Desk()
    before = desk.bus.statistics().position
    desk.start()
    desk.request()
    desk.publisher.take_piece(TextDelta, "r")
    desk.complete()
    desk.publish(RequestCompleted)
    assert desk.bus.statistics().position - before == 4
    assert desk.asked == 0
    assert not desk.bus.arbitration.wants(ToolCallProgress, "r")
    assert not desk.bus.statistics().subscriptions


async def test_a_status_that_was_only_read_leaves_no_subscription_to_progress():
    desk = Desk()
    desk.start()
    desk.request("a")
    assert desk.publisher.status == LOOKING
    desk.publish(SteeringAdded, text="Be quick.")  # which changes no status
    assert not desk.bus.arbitration.wants(ToolCallProgress, "r")


async def test_listeners_that_have_left_leave_no_subscription_to_progress():
    desk = Desk()
    async with desk.bus.subscribe(StatusChanged):
        desk.start()
    desk.request("a")
    assert not desk.bus.arbitration.wants(ToolCallProgress, "r")


async def test_whoever_begins_to_listen_midway_hears_the_next_change_right():
    desk = Desk()
    desk.start()
    desk.request("a")
    desk.request("b", "other")
    said = desk.listen()
    assert desk.publisher.status == ("executing", "Using Other...")
    desk.complete("b")
    assert said == [LOOKING]
    assert desk.publisher.status == LOOKING


async def test_a_call_that_fails_leaves_the_line_to_one_that_still_runs():
    desk = Desk()
    said = desk.listen()
    desk.start()
    desk.request("a")
    desk.request("b", "other")
    desk.publish(ToolCallFailed, call_id="b", name="other", reason="error", error="no")
    assert said == [STARTED, LOOKING, ("executing", "Using Other..."), LOOKING]


def facts_of_a_long_request() -> list[Sequence[Event]]:
    """Steps as a session makes them: a start, then replies with calls, their results, a retry, a steered round."""
    user = MessageAppended(message=UserMessage(content="x"))
    steps: list[Sequence[Event]] = [[RequestStarted(timeout_seconds=1.0), user, RoundStarted(round=0, message_count=1)]]
    for number in range(4):
        calls = tuple(ToolCall(name="weather", call_id=f"{number}{each}") for each in "ab")
        steps += [
            [ModelRetrying(round=number, reason="provider_unavailable")],
            [
                ModelResponded(round=number, message=AssistantMessage(tool_calls=calls)),
                *(
                    ToolCallRequested(
                        call_id=call.call_id, name="weather", arguments={"city": call.call_id}, round=number, timeout_seconds=1.0, idempotency_key="k"
                    )
                    for call in calls
                ),
            ],
            [ToolCallCompleted(call_id=calls[1].call_id, name="weather", content="")],
            [
                ToolCallFailed(call_id=calls[0].call_id, name="weather", reason="error", error=""),
                RoundStarted(
                    round=number + 1, message_count=1, call_outcomes=(CallOutcome(name="weather", ok=number % 2 == 0),)
                ),
            ],
        ]  # fmt: skip
    steps += [[SteeringAdded(text="and?")], [user, RoundStarted(round=5, message_count=1)]]
    return [*steps, [RequestCompleted(outcome="stopped", reason="max_rounds=5", limit="max_rounds")]]


@pytest.mark.parametrize("since", range(len(facts_of_a_long_request())))
async def test_whoever_begins_to_listen_at_any_step_hears_the_present_and_then_what_the_others_hear(since: int):
    always, midway = Desk(), Desk()
    everything, heard = always.listen(), list[tuple[str, str]]()
    for number, step in enumerate(facts_of_a_long_request()):
        if number == since:
            heard = midway.listen()
        before = len(everything)
        for desk in (always, midway):
            desk.publish_all(step)
        if number == since:
            assert heard == everything[-1:]
            heard.clear()
        elif number > since:
            assert heard == everything[before:]
            heard.clear()
        for desk in (always, midway):
            desk.publisher.take_piece(ToolArgumentsDelta, "")
        heard.clear()
    assert midway.publisher.status == always.publisher.status == ("error", "I stopped after 5 steps without finishing.")


async def test_a_listener_of_this_request_alone_is_enough_and_one_of_another_is_not():
    desk = Desk()
    async with desk.bus.subscribe(StatusChanged, request_id="r") as mine:
        async with desk.bus.subscribe(StatusChanged, request_id="q"):
            desk.start()
        event = mine.receive_nowait()
        assert isinstance(event, StatusChanged)
        assert event.text == "Analyzing request..."
    desk.request()
    assert desk.bus.statistics().position == 3


async def test_what_was_said_to_nobody_who_still_listens_is_said_again():
    desk = Desk()
    said: list[StatusChanged] = []
    disconnect = desk.bus.connect(StatusChanged, said.append)
    desk.start()
    disconnect()
    desk.request()
    disconnect = desk.bus.connect(StatusChanged, said.append)
    desk.start()
    assert [each.text for each in said] == ["Analyzing request..."] * 2


async def test_a_listener_that_comes_while_a_reply_arrives_hears_of_it_with_the_next_piece():
    desk = Desk()
    desk.start()
    desk.publish(RoundStarted, round=0, message_count=1)
    said = desk.listen()
    desk.publisher.take_piece(TextDelta, "r")
    assert said == [("streaming", "Formulating final response...")]


async def test_pieces_of_the_reply_are_reported_by_their_first_of_each_kind():
    desk = Desk()
    said = desk.listen()
    desk.publish(RoundStarted, round=0, message_count=1)
    for _ in range(3):
        desk.publisher.take_piece(ToolArgumentsDelta, "r")
    desk.publish(TextDelta, message_id="m", text="x")
    desk.publisher.take_piece(TextDelta, "r")
    assert said == [
        STARTED,
        ("streaming", "Selecting appropriate tools..."),
        ("streaming", "Formulating final response..."),
    ]


async def test_what_tools_say_of_themselves_is_heard_until_the_request_ends():
    desk = Desk()
    said = desk.listen()
    desk.request()
    assert desk.bus.arbitration.wants(ToolCallProgress, "r")
    desk.progress("half")
    desk.progress("of another request", "q")
    desk.bus.publish(
        ToolCallRetrying(request_id="r", call_id="a", name="weather", attempt=1, error="", delay_seconds=1)
    )
    assert said[1:] == [("executing", "half"), ("executing", "Trying Weather again...")]
    desk.publish(RequestCompleted)
    assert not desk.bus.arbitration.wants(ToolCallProgress, "r")
    assert not desk.bus.statistics().subscriptions


async def test_requests_of_one_bus_share_an_ear_and_the_last_one_lets_it_go():
    one, other = Desk(), Desk()
    other.bus = one.bus
    other.publisher = Publisher(one.bus, TurnState("q"), one.specs)
    other.publisher.reported = other.reported
    said = one.listen()
    one.request()
    other.publish(ToolCallRequested, request_id="q", call_id="b", name="other", arguments={}, round=0, timeout_seconds=1.0, idempotency_key="k")  # fmt: skip
    before = len(said)
    one.progress("of a call that the other does not have", "q")
    assert len(said) == before
    one.publish(RequestCompleted)
    assert one.bus.arbitration.wants(ToolCallProgress, "q")
    other.publish(RequestCompleted, request_id="q")
    assert not one.bus.arbitration.wants(ToolCallProgress, "q")


async def test_overheard_progress_keeps_nothing_and_breaks_nobody():
    desk = Desk()
    failures: list[Event] = []
    desk.bus.connect(ReceiverFailed, failures.append)
    said = desk.listen()
    desk.request()
    for number in range(100):
        desk.progress(f"{number} of 100")
    assert (len(said), failures) == (101, [])


async def test_a_narrated_sentence_is_shown_for_the_newest_call_and_kept_for_the_others():
    desk = Desk()
    said = desk.listen()
    desk.request("a")
    desk.request("b", "other")
    desk.publisher.narrate("r", "a", "Checking the sky")
    desk.publisher.narrate("r", "b", "Doing it")
    desk.complete("b")
    desk.complete("a")
    desk.publisher.narrate("r", "a", "Too late")
    assert said == [
        LOOKING,
        ("executing", "Using Other..."),
        ("executing", "Doing it"),
        ("executing", "Checking the sky"),
    ]
