"""Publishing: order, positions, the trampoline and its bounds, what it costs, what is counted."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import astuple
from types import FrameType
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from bus_events import completed, delta, fact, hear, opened, said, signal
from hypothesis import given
from hypothesis import strategies as st

from toolbus import EventBus
from toolbus.bus import Subscription
from toolbus.errors import BusError, ConfigurationError, NotRunning
from toolbus.events import (
    CancelRequested,
    Event,
    ModelRetrying,
    ReasoningDelta,
    ReceiverFailed,
    StatusChanged,
    TextDelta,
    ToolCallCompleted,
)

pytestmark = pytest.mark.leaves("buses", reason="requests are opened by hand, and no session ends them")


@pytest.mark.guarantee("G01")
async def test_a_receiver_and_a_subscriber_see_all_events_in_the_order_of_publishing():
    bus = EventBus()
    heard = hear(bus)
    async with bus.subscribe() as subscription:
        for number in range(200):
            bus.publish(signal(str(number)) if number % 3 else delta(str(number)))
        read = [event for _ in range(200) if (event := subscription.receive_nowait())]
    assert said(heard) == [str(number) for number in range(200)]
    assert read == heard


@pytest.mark.guarantee("G01")
async def test_each_of_two_publishers_is_heard_in_its_own_order_though_they_take_turns():
    bus = EventBus()

    async def publisher(name: str) -> None:
        for number in range(20):
            bus.publish(signal(f"{name}{number}"))
            await anyio.lowlevel.checkpoint()

    async with bus.subscribe(StatusChanged) as subscription, anyio.create_task_group() as group:
        group.start_soon(publisher, "a")
        group.start_soon(publisher, "b")
        with anyio.fail_after(30):
            heard = [(await anext(subscription)) for _ in range(40)]
    for name in "ab":
        assert [text for text in said(heard) if text[0] == name] == [f"{name}{number}" for number in range(20)]


@pytest.mark.guarantee("G01")
async def test_positions_are_dense_from_one_also_over_events_that_nobody_hears():
    bus = EventBus()
    assert bus.statistics().position == 0
    bus.publish(delta("nobody hears this"))
    assert bus.statistics().position == 1
    seen: list[int] = []
    async with bus.subscribe(StatusChanged) as subscription:
        for number in range(10):
            bus.publish(signal(str(number)))
            bus.publish(delta("not wanted"))
            assert subscription.receive_nowait() is not None
            seen.append(subscription.position)
    assert seen == list(range(2, 22, 2))
    assert bus.statistics().position == 21


@pytest.mark.guarantee("G01")
def test_events_published_by_receivers_get_positions_of_their_own():
    bus = EventBus()
    seen: list[tuple[str, int]] = []
    bus.connect(StatusChanged, lambda event: seen.append((event.text, bus.statistics().position)))
    bus.connect(StatusChanged, lambda event: bus.publish(delta("x")) if event.text == "a" else None)
    bus.connect(TextDelta, lambda event: seen.append((event.text, bus.statistics().position)))
    bus.publish(signal("a"))
    bus.publish(signal("b"))
    assert seen == [("a", 1), ("x", 2), ("b", 3)]


def test_an_event_that_is_published_is_accepted_though_nobody_hears_it():
    assert EventBus().publish(signal()) is True


# ------------------------------------------------------------------------------------------------ the trampoline


@pytest.mark.guarantee("G03")
def test_what_a_receiver_publishes_is_delivered_after_the_event_that_it_was_told_of():
    bus = EventBus()
    first = hear(bus)
    inside: list[list[str]] = []

    def answers(event: StatusChanged) -> None:
        if event.text == "question":
            assert bus.publish(signal("answer 1")) is True
            assert bus.publish(signal("answer 2")) is True
            inside.append(said(first))

    bus.connect(StatusChanged, answers)
    last = hear(bus)
    bus.publish(signal("question"))
    bus.publish(signal("next"))
    assert inside == [["question"]]
    assert said(first) == said(last) == ["question", "answer 1", "answer 2", "next"]


@given(st.data())
@pytest.mark.guarantee("G03")
def test_every_listener_sees_the_same_order_whatever_receivers_publish(data: st.DataObject):
    """A random tree of answers: each event, by its text, is answered by up to two receivers with up to three events."""
    bus = EventBus(max_causal_depth=100)
    answers = data.draw(
        st.dictionaries(st.integers(0, 12), st.lists(st.integers(1, 4), max_size=3), max_size=8), label="answers"
    )

    def answerer(by: int) -> Callable[[StatusChanged], None]:
        def answer(event: StatusChanged) -> None:
            number = int(event.text)
            for step in answers.get(number * 2 + by, ()):
                bus.publish(signal(str(number + step)))

        return answer

    first = hear(bus)
    bus.connect(StatusChanged, answerer(0))
    middle = hear(bus)
    bus.connect(StatusChanged, answerer(1))
    last = hear(bus, StatusChanged)
    roots = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3), label="roots")
    for root in roots:
        bus.publish(signal(str(root)))
    expected = [each for root in roots for each in _breadth_first(answers, root)]
    assert said(first) == said(middle) == said(last) == [str(number) for number in expected]
    assert first == middle == last


def _breadth_first(answers: dict[int, list[int]], root: int) -> list[int]:
    """The order in which a queue delivers an event, its answers, and theirs."""
    queue = [root]
    for number in queue:
        for by in (0, 1):
            queue.extend(number + step for step in answers.get(number * 2 + by, ()))
    return queue


@pytest.mark.guarantee("G03")
async def test_subscribers_and_receivers_agree_on_the_order_when_a_receiver_settles_a_call():
    bus = EventBus()
    opened(bus, "c")
    bus.connect(StatusChanged, lambda _: bus.publish(completed("c")))
    heard = hear(bus)
    async with bus.subscribe() as everything, bus.subscribe(request_id="r") as mine:
        bus.publish(signal("go"))
        bus.publish(signal("and again"))
        for subscription in (everything, mine):
            read = [event for _ in range(10) if (event := subscription.receive_nowait())]
            assert read == heard
    assert said(heard) == ["go", "tool_call_completed", "and again", "tool_call_late"]


@pytest.mark.guarantee("G03")
def test_receivers_that_go_round_in_a_circle_are_stopped_and_nobody_else_is_harmed():
    bus = EventBus(max_causal_depth=10)
    refused: list[BusError] = []

    def circling(event: StatusChanged) -> None:
        try:
            bus.publish(signal(str(int(event.text) + 1)))
        except BusError as exc:
            refused.append(exc)
            raise

    bus.connect(StatusChanged, circling)
    heard = hear(bus, StatusChanged)
    failures = hear(bus, ReceiverFailed)
    assert bus.publish(signal("0")) is True
    assert said(heard) == [str(number) for number in range(11)]
    assert len(refused) == 1
    assert "status_changed was not published" in str(refused[0])
    assert "10 deep" in str(refused[0])
    (failure,) = failures
    assert isinstance(failure, ReceiverFailed)
    assert "circling" in failure.receiver
    assert failure.error.startswith("BusError: ")
    bus.publish(signal("10"))  # the depth is counted anew for each event from outside
    assert said(heard)[11:] == [str(number) for number in range(10, 21)]


@pytest.mark.guarantee("G03")
def test_a_circle_is_seen_through_events_of_several_types():
    bus = EventBus(max_causal_depth=6)
    bus.connect(TextDelta, lambda _: bus.publish(signal()))
    bus.connect(StatusChanged, lambda _: bus.publish(delta("")))
    heard = hear(bus)
    bus.publish(delta(""))
    assert [event.type for event in heard] == ["text_delta", "status_changed"] * 3 + ["text_delta", "receiver_failed"]


@pytest.mark.guarantee("G03")
def test_a_receiver_that_floods_the_queue_is_stopped_and_what_had_a_place_is_delivered():
    bus = EventBus(max_queued=5)
    published: list[str] = []

    def floods(_: StatusChanged) -> None:
        for number in range(100):
            bus.publish(delta(str(number)))
            published.append(str(number))

    bus.connect(StatusChanged, floods)
    heard = hear(bus, TextDelta)
    failures = hear(bus, ReceiverFailed)
    bus.publish(signal())
    assert published == said(heard) == ["0", "1", "2", "3", "4"]
    assert len(failures) == 1
    assert bus.statistics().queued_peak == 6  # the flood, and the news of its end


@pytest.mark.guarantee("G03", "G05")
async def test_a_terminal_event_that_the_bound_refuses_has_settled_nothing():
    bus = EventBus(max_causal_depth=1)
    opened(bus, "c")
    bus.connect(StatusChanged, lambda _: bus.publish(delta("")))
    bus.connect(TextDelta, lambda _: bus.publish(completed("c")))
    bus.publish(signal())
    assert bus.statistics().receiver_failures == 1
    assert bus.arbitration.is_open("r", "c")
    assert bus.publish(completed("c")) is True


@pytest.mark.parametrize("bound", ["max_causal_depth", "max_queued"])
def test_a_bound_below_one_is_refused(bound: str):
    with pytest.raises(ConfigurationError, match=f"{bound}=0"):
        EventBus(**{bound: 0})


def test_a_memory_of_settled_calls_below_none_is_refused():
    with pytest.raises(ConfigurationError, match="max_settled=-1"):
        EventBus(max_settled=-1)


# ---------------------------------------------------------------------------------------------------------- wants


async def test_the_bus_wants_what_a_receiver_or_a_subscriber_of_everybody_listens_to():
    bus = EventBus()
    assert not bus.arbitration.wants(TextDelta, "r")
    disconnect = bus.connect(TextDelta, lambda _: None)
    assert bus.arbitration.wants(TextDelta, "r")
    assert bus.arbitration.wants(TextDelta)
    assert not bus.arbitration.wants(ReasoningDelta, "r")
    disconnect()
    assert not bus.arbitration.wants(TextDelta, "r")
    async with bus.subscribe(ReasoningDelta):
        assert bus.arbitration.wants(ReasoningDelta, "r")
        assert not bus.arbitration.wants(TextDelta, "r")
    assert not bus.arbitration.wants(ReasoningDelta, "r")


async def test_the_bus_wants_what_a_subscriber_to_one_request_listens_to_for_that_request_alone():
    bus = EventBus()
    async with bus.subscribe(TextDelta, request_id="mine"):
        assert bus.arbitration.wants(TextDelta, "mine")
        assert not bus.arbitration.wants(TextDelta, "other")
        assert not bus.arbitration.wants(TextDelta)
        assert not bus.arbitration.wants(ReasoningDelta, "mine")
    assert not bus.arbitration.wants(TextDelta, "mine")


async def test_the_bus_wants_what_a_subscriber_to_a_request_and_its_sub_requests_listens_to_only_for_those():
    bus = EventBus()
    async with bus.subscribe(TextDelta, request_id="mine", sub_requests=True):
        bus.arbitration.open_mailbox("below", parent_id="mine")
        bus.arbitration.open_mailbox("other")
        wanted = [bus.arbitration.wants(TextDelta, each) for each in ("mine", "below", "other")]
        assert wanted == [True, True, False]
        assert not bus.arbitration.wants(ReasoningDelta, "below")
        for each in ("below", "other"):
            bus.arbitration.close_mailbox(bus.arbitration.mailboxes[each])


# --------------------------------------------------------------------------------------------------- cost in counts


def _python_calls(function: Callable[[], Any]) -> list[str]:
    """The names of the Python functions that `function` calls, itself not counted."""
    names: list[str] = []

    def profile(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)

    before = sys.getprofile()
    gc.disable()  # what it calls, it calls at any moment
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
        gc.enable()
    return names[1:]


def test_publishing_with_nobody_listening_calls_two_functions_and_no_more():
    bus = EventBus()
    event = signal()

    def publish() -> None:
        bus.publish(event)

    assert _python_calls(publish) == ["publish", "announce"]


async def test_publishing_costs_the_same_however_many_sessions_and_subscribers_to_others_there_are():
    def cost(sessions: int) -> int:
        bus = EventBus()
        subscriptions: list[Subscription] = []
        for number in range(sessions):
            opened(bus, "c", request_id=f"r{number}")
            subscriptions.append(bus.subscribe(request_id=f"r{number}").open())
        bus.connect(ToolCallCompleted, lambda _: None)
        event, answer = signal(request_id="r0"), completed(request_id="r0")

        def publish() -> None:
            bus.publish(event)
            bus.publish(answer)

        calls = len(_python_calls(publish))
        for each in subscriptions:
            each.close()
        return calls

    assert cost(1) == cost(10) == cost(1000)


async def test_publishing_for_one_request_touches_no_subscription_to_another(monkeypatch: pytest.MonkeyPatch):
    offered: list[str] = []
    offer = Subscription.offer

    def counting(self: Subscription, position: int, event: Event) -> None:
        offered.append(self.name)
        offer(self, position, event)

    monkeypatch.setattr(Subscription, "offer", counting)
    bus = EventBus()
    asked: list[str] = []

    def where(name: str) -> Callable[[Event], bool]:
        return lambda _: not asked.append(name)

    others = [
        bus.subscribe(request_id=f"r{number}", name=f"r{number}", where=where(f"r{number}")).open()
        for number in range(100)
    ]
    async with bus.subscribe(TextDelta, name="of another type", where=where("of another type")):
        for _ in range(3):
            bus.publish(signal(request_id="r42"))
    assert offered == asked == ["r42"] * 3
    for each in others:
        each.close()


# ----------------------------------------------------------------------------------------------------- statistics


async def test_statistics_tell_depths_and_peaks_and_losses():
    bus = EventBus()
    before = bus.statistics()
    assert astuple(before) == (*[0] * 11, ())
    a, b = opened(bus, "1", "2", request_id="a"), opened(bus, "1", request_id="b")
    bus.arbitration.close_mailbox(b)
    bus.publish(completed("1", "a"))
    bus.publish(completed("1", "a"))
    bus.publish(completed("9", "z"))
    disconnect = bus.connect((TextDelta, ReasoningDelta), lambda _: None)
    async with bus.subscribe(StatusChanged, capacity=2, name="slow") as slow, bus.subscribe(request_id="a"):
        for number in range(5):
            bus.publish(signal(str(number)))
        assert slow.receive_nowait() is not None  # the gap
        assert slow.receive_nowait() is not None
        now = bus.statistics()
    assert (now.mailboxes, now.mailboxes_peak) == (1, 2)
    assert (now.open_calls, now.open_calls_peak) == (1, 3)
    assert now.settled_remembered == 2
    assert (now.late_results, now.dead_letters, now.receiver_failures) == (1, 1, 0)
    assert now.receivers == 2
    assert now.position == 3 + 6
    assert [each.name for each in now.subscriptions] == ["slow", ""]
    of_slow = now.subscriptions[0]
    assert (of_slow.capacity, of_slow.buffered, of_slow.peak) == (2, 1, 2)
    assert (of_slow.matched, of_slow.delivered, of_slow.merged, of_slow.dropped) == (5, 1, 0, 3)
    disconnect()
    bus.arbitration.close_mailbox(a)
    after = bus.statistics()
    assert (after.mailboxes, after.open_calls, after.receivers, after.subscriptions) == (0, 0, 0, ())
    assert after.mailboxes_peak == 2


async def test_a_subscription_to_many_types_is_counted_once():
    bus = EventBus()
    async with bus.subscribe(name="everything"):
        assert [each.name for each in bus.statistics().subscriptions] == ["everything"]


def test_the_peak_of_the_queue_is_kept():
    bus = EventBus()

    def answers(event: StatusChanged) -> None:
        for _ in range(int(event.text)):
            bus.publish(delta(""))

    bus.connect(StatusChanged, answers)
    bus.publish(signal("7"))
    bus.publish(signal("2"))
    assert bus.statistics().queued_peak == 7


def test_announcing_broadcasts_without_asking_who_is_addressed():
    bus = EventBus()
    heard = hear(bus)
    bus.arbitration.announce(fact("told, not asked", request_id="unknown"))
    assert said(heard) == ["told, not asked"]
    assert isinstance(heard[0], CancelRequested)
    assert bus.statistics().dead_letters == 0


def test_a_bus_has_no_clock_before_it_has_a_loop_and_publishes_all_the_same():
    bus = EventBus()
    heard = hear(bus, ModelRetrying)
    with pytest.raises(NotRunning, match="no event loop runs here"):
        _ = bus.clock
    assert bus.publish(ModelRetrying(round=0, reason="empty_reply"))
    assert len(heard) == 1


@pytest.mark.parametrize("given", [StatusChanged, CancelRequested, {}, "status_changed", None], ids=repr)
def test_what_is_not_an_event_cannot_be_published(given: Any):
    bus = EventBus()
    heard = hear(bus)
    with pytest.raises(TypeError, match="is not an event; publish an instance"):
        bus.publish(given)
    assert (heard, bus.statistics().position) == ([], 0)
