"""Subscriptions: filters, ends, gaps in place, and readers that are slow, cancelled, broken or hang."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest
from bus_events import completed, delta, fact, hear, opened, said, signal

from toolbus import EventBus
from toolbus.bus import Overflow, Subscription
from toolbus.errors import BusError, ConfigurationError, NotRunning, SubscriptionOverflow
from toolbus.events import (
    CancelRequested,
    Event,
    ReceiverFailed,
    StatusChanged,
    SubscriberLagged,
    TextDelta,
    ToolCallCompleted,
)

pytestmark = pytest.mark.leaves("buses", reason="requests are opened by hand, and no session ends them")


def drain(subscription: Subscription) -> list[Event]:
    events: list[Event] = []
    while (event := subscription.receive_nowait()) is not None:
        events.append(event)
    return events


async def read_all(subscription: Subscription) -> list[Event]:
    """What is read until the subscription ends by itself."""
    with anyio.fail_after(30):
        return [event async for event in subscription]


# ------------------------------------------------------------------------------------------------------- filters


async def test_without_a_filter_a_subscription_gets_everything():
    bus = EventBus()
    heard = hear(bus)
    async with bus.subscribe() as subscription:
        bus.publish(signal("a"))
        bus.arbitration.announce(fact("b", request_id=""))
        bus.publish(delta("c", request_id="other"))
        assert drain(subscription) == heard


async def test_a_subscription_to_types_gets_these_types_of_all_requests():
    bus = EventBus()
    async with bus.subscribe(TextDelta, CancelRequested) as subscription:
        for event in (signal("a"), delta("b", request_id="x"), fact("c", request_id="y")):
            bus.arbitration.announce(event)
        assert said(drain(subscription)) == ["b", "c"]


async def test_a_subscription_to_a_request_gets_its_events_alone_and_of_its_types_alone():
    bus = EventBus()
    async with bus.subscribe(request_id="r") as all_types, bus.subscribe(TextDelta, request_id="r") as deltas:
        for event in (signal("a"), delta("b"), delta("c", request_id="other"), signal("d", request_id="")):
            bus.publish(event)
        assert said(drain(all_types)) == ["a", "b"]
        assert said(drain(deltas)) == ["b"]


async def test_where_filters_further_and_is_asked_about_matching_events_alone():
    bus = EventBus()
    asked: list[str] = []

    def where(event: Event) -> bool:
        asked.extend(said([event]))
        return isinstance(event, StatusChanged) and event.text > "b"

    async with bus.subscribe(StatusChanged, where=where) as subscription:
        for event in (signal("a"), delta("z"), signal("c"), signal("d")):
            bus.publish(event)
        assert said(drain(subscription)) == ["c", "d"]
    assert asked == ["a", "c", "d"]
    assert subscription.statistics().matched == 2


async def test_until_ends_the_subscription_after_its_event_which_is_delivered():
    bus = EventBus()
    async with bus.subscribe(StatusChanged, until=lambda event: said([event]) == ["b"]) as subscription:
        for text in "abc":
            bus.publish(signal(text))
        assert bus.statistics().subscriptions == ()
        assert said(await read_all(subscription)) == ["a", "b"]


async def test_until_of_a_request_is_asked_about_types_that_are_not_wanted_too():
    bus = EventBus()
    ending: Callable[[Event], bool] = lambda event: isinstance(event, CancelRequested)  # noqa: E731
    async with bus.subscribe(TextDelta, request_id="r", until=ending) as subscription:
        bus.arbitration.announce(delta("a"))
        bus.arbitration.announce(fact("of another", request_id="other"))
        bus.arbitration.announce(delta("b"))
        bus.arbitration.announce(fact("the end"))
        bus.arbitration.announce(delta("c"))
        assert said(await read_all(subscription)) == ["a", "b"]


async def test_until_that_is_true_for_an_event_which_where_refuses_ends_it_all_the_same():
    bus = EventBus()
    async with bus.subscribe(StatusChanged, where=lambda _: False, until=lambda _: True) as subscription:
        bus.publish(signal())
        assert await read_all(subscription) == []


@pytest.mark.parametrize("request_id", [None, "r"])
async def test_two_subscriptions_to_the_same_come_and_go_without_harming_each_other(request_id: str | None):
    bus = EventBus()
    first = bus.subscribe(StatusChanged, request_id=request_id).open()
    second = bus.subscribe(StatusChanged, request_id=request_id).open()
    bus.publish(signal("a"))
    first.close()
    bus.publish(signal("b"))
    second.close()
    bus.publish(signal("c"))
    assert said(drain(first)) == ["a"]
    assert said(drain(second)) == ["a", "b"]
    assert bus.statistics().subscriptions == ()


async def test_a_subscription_that_ends_itself_during_a_delivery_skips_no_other():
    bus = EventBus()
    ending = [bus.subscribe(StatusChanged, until=lambda _: True).open() for _ in range(3)]
    async with bus.subscribe(StatusChanged) as staying:
        bus.publish(signal("a"))
        bus.publish(signal("b"))
        assert said(drain(staying)) == ["a", "b"]
    assert [said(drain(each)) for each in ending] == [["a"]] * 3


@pytest.mark.parametrize("kwargs", [{"capacity": 0}, {"capacity": -5}, {"overflow": "block"}])
def test_a_capacity_below_one_and_an_unknown_policy_are_refused_at_once(kwargs: dict[str, int]):
    with pytest.raises(ConfigurationError):
        EventBus().subscribe(**kwargs)  # pyright: ignore[reportArgumentType]


# ------------------------------------------------------------------------------------------------------ overflow


@pytest.mark.guarantee("G02")
async def test_a_gap_is_announced_in_place_with_the_positions_of_the_bus():
    bus = EventBus()
    bus.publish(delta("not heard"))
    async with bus.subscribe(StatusChanged, capacity=2) as subscription:
        assert subscription.position == 0
        for number in range(5):
            bus.publish(signal(str(number)))
            bus.publish(delta("does not match, but has a position"))
        lagged, *rest = drain(subscription)
    assert isinstance(lagged, SubscriberLagged)
    assert (lagged.first_position, lagged.last_position, lagged.count) == (2, 6, 3)
    assert said(rest) == ["3", "4"]
    assert subscription.position == 11, "one position is of `SubscriptionFull`"


@pytest.mark.guarantee("G02")
@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest", "coalesce"])
async def test_no_result_is_lost_to_a_reader_that_is_too_slow_for_the_signals(overflow: Overflow):
    bus = EventBus()
    opened(bus, *"abcde")
    async with bus.subscribe(capacity=5, overflow=overflow) as subscription:
        for call_id in "abcde":
            for number in range(100):
                bus.publish(signal(f"{call_id}{number}"))
            bus.publish(completed(call_id))
        events = drain(subscription)
    assert [event.call_id for event in events if isinstance(event, ToolCallCompleted)] == list("abcde")
    reported = sum(event.count for event in events if isinstance(event, SubscriberLagged))
    assert reported + sum(not isinstance(event, SubscriberLagged) for event in events) == 506
    statistics = subscription.statistics()
    assert statistics.matched == statistics.delivered + statistics.merged + statistics.dropped == 506, (
        "with `SubscriptionFull`"
    )
    assert (statistics.peak, statistics.buffered) == (5, 0)


@pytest.mark.guarantee("G02")
@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest", "coalesce", "disconnect"])
async def test_full_of_facts_it_gives_what_is_inside_and_then_says_that_it_overflowed(overflow: Overflow):
    bus = EventBus()
    async with bus.subscribe(capacity=2, overflow=overflow) as subscription:
        for text in "abc":
            bus.arbitration.announce(fact(text))
        assert bus.statistics().subscriptions == ()
        bus.arbitration.announce(fact("d"))
        read: list[Event] = []
        with (
            anyio.fail_after(30),
            pytest.raises(SubscriptionOverflow, match="buffer of 2 events was full at bus position 3") as c,
        ):
            async for event in subscription:
                read.append(event)
    assert said(read) == ["a", "b"]
    assert (c.value.capacity, c.value.position) == (2, 3)
    with pytest.raises(SubscriptionOverflow):
        await anext(subscription)


@pytest.mark.guarantee("G02")
async def test_reading_without_waiting_tells_of_the_overflow_too():
    bus = EventBus()
    async with bus.subscribe(capacity=1, overflow="disconnect") as subscription:
        bus.publish(signal("a"))
        bus.publish(signal("b"))
        assert said([await anext(subscription)]) == ["a"]
        with pytest.raises(SubscriptionOverflow):
            subscription.receive_nowait()


async def test_nothing_is_read_after_aclose_and_no_overflow_is_reported():
    bus = EventBus()
    async with bus.subscribe(capacity=1, overflow="disconnect") as subscription:
        bus.publish(signal("a"))
        bus.publish(signal("b"))
    await subscription.aclose()
    assert subscription.receive_nowait() is None
    assert [each async for each in subscription] == []


@pytest.mark.guarantee("G02")
async def test_an_overflow_wakes_a_reader_that_waits():
    """A reader that has been woken, but has not run yet, is behind by as much as is published meanwhile."""
    bus = EventBus()
    seen: list[object] = []

    async def reader(subscription: Subscription) -> None:
        try:
            async for event in subscription:
                seen.extend(said([event]))
        except SubscriptionOverflow as exc:
            seen.append(exc.position)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group, bus.subscribe(capacity=2, overflow="disconnect") as events:
            group.start_soon(reader, events)
            await anyio.wait_all_tasks_blocked()
            for text in "abc":
                bus.publish(signal(text))
            await anyio.wait_all_tasks_blocked()
    assert seen == ["a", "b", 3]


async def test_coalescing_joins_the_text_that_a_slow_reader_missed():
    bus = EventBus()
    async with bus.subscribe(TextDelta, capacity=2, overflow="coalesce") as subscription:
        for text in ("Hel", "lo ", "world"):
            bus.publish(delta(text))
            bus.publish(signal("does not part them, as it does not match"))
        bus.publish(delta("other", message_id="n"))
        assert said(drain(subscription)) == ["Hello world", "other"]
    statistics = subscription.statistics()
    assert (statistics.matched, statistics.delivered, statistics.merged, statistics.dropped) == (4, 2, 2, 0)


# --------------------------------------------------------------------------------------- waiting, ending, cancelling


async def test_a_reader_that_waits_gets_the_next_event():
    bus = EventBus()
    got: list[Event] = []
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group, bus.subscribe(StatusChanged) as subscription:

            async def reader() -> None:
                got.extend([await anext(subscription), await anext(subscription)])

            group.start_soon(reader)
            await anyio.wait_all_tasks_blocked()
            bus.publish(delta("not this"))
            await anyio.wait_all_tasks_blocked()
            bus.publish(signal("a"))
            await anyio.wait_all_tasks_blocked()
            bus.publish(signal("b"))
            await anyio.wait_all_tasks_blocked()
            assert said(got) == ["a", "b"]


@pytest.mark.guarantee("G02")
@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_cancelling_a_wait_loses_nothing(cancelled_first: bool):
    """Either the reader got the event before it noticed the cancellation, or the event is still inside."""
    bus = EventBus()
    got: list[Event] = []
    async with bus.subscribe(StatusChanged) as subscription:

        async def reader() -> None:
            got.append(await anext(subscription))

        for text in "abc":
            async with anyio.create_task_group() as group:
                group.start_soon(reader)
                await anyio.wait_all_tasks_blocked()
                if cancelled_first:
                    group.cancel_scope.cancel()
                bus.publish(signal(text))
                group.cancel_scope.cancel()
            got.extend(drain(subscription))
    assert said(got) == ["a", "b", "c"]
    assert subscription.statistics().delivered == 3


async def test_closing_while_a_reader_waits_ends_its_iteration():
    bus = EventBus()
    ended: list[list[Event]] = []
    subscription = bus.subscribe(StatusChanged).open()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:

            async def reader() -> None:
                ended.append([event async for event in subscription])

            group.start_soon(reader)
            await anyio.wait_all_tasks_blocked()
            bus.publish(signal("a"))
            await anyio.wait_all_tasks_blocked()
            subscription.close()
    assert [said(each) for each in ended] == [["a"]]


@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest", "coalesce"])
async def test_a_reader_that_waits_is_woken_by_the_first_of_many_and_by_what_comes_after_others_have_read(
    overflow: Overflow,
):
    bus = EventBus()
    got: list[Event] = []
    async with bus.subscribe(StatusChanged, overflow=overflow) as subscription:

        async def reader() -> None:
            got.extend([event async for event in subscription])

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(reader)
                await anyio.wait_all_tasks_blocked()
                bus.publish(signal("a"))
                assert said(drain(subscription)) == ["a"]
                await anyio.wait_all_tasks_blocked()  # it was woken for nothing, and waits again
                for text in "bcd":
                    bus.publish(signal(text))
                await anyio.wait_all_tasks_blocked()
                assert subscription.statistics().delivered == 4
                subscription.close()
    assert said(got) == ["b", "c", "d"]


async def test_what_is_inside_when_it_is_closed_can_still_be_read():
    bus = EventBus()
    async with bus.subscribe(StatusChanged) as subscription:
        bus.publish(signal("a"))
        bus.publish(signal("b"))
    bus.publish(signal("c"))
    subscription.close()
    assert said(await read_all(subscription)) == ["a", "b"]
    assert subscription.receive_nowait() is None


async def test_it_listens_from_opening_on_and_not_from_the_first_read():
    bus = EventBus()
    subscription = bus.subscribe(StatusChanged)
    bus.publish(signal("before"))
    assert not bus.arbitration.wants(StatusChanged)
    async with contextlib.aclosing(subscription.open()) as opened_one:
        assert opened_one.open() is subscription
        bus.publish(signal("after"))
        assert said(drain(subscription)) == ["after"]
    assert not bus.arbitration.wants(StatusChanged)


async def test_what_has_ended_stays_ended_though_it_is_entered_after_that():
    bus = EventBus()
    subscription = bus.subscribe(StatusChanged, until=lambda _: True).open()
    bus.publish(signal("a"))
    async with subscription:
        bus.publish(signal("b"))
        assert said(await read_all(subscription)) == ["a"]


async def test_what_was_closed_before_it_was_opened_has_ended():
    bus = EventBus()
    subscription = bus.subscribe(StatusChanged)
    subscription.close()
    async with subscription:
        bus.publish(signal("a"))
        assert await read_all(subscription) == []


async def test_reading_what_was_never_entered_says_to_enter_it():
    with pytest.raises(BusError, match=r"'mine', new> hears nothing yet; enter it first: async with bus\.subscribe"):
        await read_all(EventBus().subscribe(StatusChanged, name="mine"))


def test_opening_needs_an_event_loop_and_leaves_nothing_behind_without_one():
    bus = EventBus()
    subscription = bus.subscribe(StatusChanged)
    with pytest.raises(NotRunning, match="no event loop runs here"):
        subscription.open()
    subscription.close()
    assert bus.statistics().subscriptions == ()


@pytest.mark.guarantee("G03")
async def test_a_second_reader_is_refused_and_the_first_goes_on():
    bus = EventBus()
    got: list[Event] = []
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group, bus.subscribe(StatusChanged, name="mine") as subscription:

            async def reader() -> None:
                got.append(await anext(subscription))

            group.start_soon(reader)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(BusError, match="'mine', open> is read by another task"):
                await anext(subscription)
            bus.publish(signal("a"))
    assert said(got) == ["a"]


@pytest.mark.guarantee("G03")
async def test_a_subscriber_that_never_reads_affects_nobody():
    bus = EventBus()
    heard = hear(bus)
    opened(bus, "c")
    async with bus.subscribe(capacity=1, name="hangs") as hangs, bus.subscribe() as other:
        for number in range(500):
            assert bus.publish(signal(str(number))) is True
        assert bus.publish(completed("c")) is True
        assert drain(other) == heard
        assert len(heard) == 502, "with `SubscriptionFull`"
        assert hangs.statistics().buffered == 1


@pytest.mark.guarantee("G03")
async def test_a_reader_that_never_runs_out_of_events_gives_way_to_others():
    bus = EventBus()
    steps = 0

    async def other() -> None:
        nonlocal steps
        while True:
            steps += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group, bus.subscribe(StatusChanged) as subscription:
        for number in range(640):
            bus.publish(signal(str(number)))
        group.start_soon(other)
        async for event in subscription:
            if said([event]) == ["639"]:
                break
        group.cancel_scope.cancel()
    assert 5 <= steps <= 20


# ------------------------------------------------------------------------------------------- predicates that raise


class _Broken:
    """A predicate that raises at the event with this text."""

    def __init__(self, text: str, error: BaseException) -> None:
        self.text = text
        self.error = error
        self.calls = 0

    def __call__(self, event: Event) -> bool:
        self.calls += 1
        if said([event]) == [self.text]:
            raise self.error
        return self.text == "never"


@pytest.mark.guarantee("G03")
@pytest.mark.parametrize("option", ["where", "until"])
async def test_a_predicate_that_raises_harms_nobody_and_is_told_to_everybody_and_to_its_reader(option: str):
    bus = EventBus()
    error = AttributeError("no such field")
    broken = _Broken("b", error)

    def where(event: Event) -> bool:
        return not broken(event)

    async with (
        bus.subscribe(name="before") as before,
        bus.subscribe(
            StatusChanged,
            name="broken",
            where=where if option == "where" else None,
            until=broken if option == "until" else None,
        ) as subscription,
        bus.subscribe(name="behind") as behind,
    ):
        for text in "abc":
            assert bus.publish(signal(text)) is True
        read = [drain(each) for each in (before, behind)]
        assert read[0] == read[1]
        assert said(read[0]) == ["a", "b", "receiver_failed", "c"]
        failure = read[0][2]
        assert isinstance(failure, ReceiverFailed)
        assert "'broken'" in failure.receiver
        assert failure.error == "AttributeError: no such field"
        assert failure.failed_event_id == read[0][1].event_id
        assert said([await anext(subscription)]) == ["a"]
        with anyio.fail_after(30), pytest.raises(BusError, match="`where` or `until` raised") as caught:
            await anext(subscription)
        assert caught.value.__cause__ is error
        with pytest.raises(BusError):
            subscription.receive_nowait()
    assert broken.calls == 2
    assert bus.statistics().receiver_failures == 1


@pytest.mark.guarantee("G03")
async def test_a_predicate_that_raises_wakes_its_reader():
    bus = EventBus()
    failures: list[BusError] = []
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            broken = _Broken("a", ValueError())
            async with bus.subscribe(StatusChanged, where=broken) as subscription:

                async def reader() -> None:
                    try:
                        await anext(subscription)
                    except BusError as exc:
                        failures.append(exc)

                group.start_soon(reader)
                await anyio.wait_all_tasks_blocked()
                bus.publish(signal("a"))
                await anyio.wait_all_tasks_blocked()
                assert len(failures) == 1


@pytest.mark.guarantee("G03")
async def test_what_a_predicate_publishes_comes_after_what_it_was_asked_about():
    bus = EventBus()

    def where(event: Event) -> bool:
        if said([event]) == ["a"]:
            bus.publish(signal("answer"))
        return True

    async with bus.subscribe(StatusChanged, where=where) as first, bus.subscribe(StatusChanged) as second:
        bus.publish(signal("a"))
        bus.publish(signal("b"))
        assert said(drain(first)) == said(drain(second)) == ["a", "answer", "b"]


def test_a_subscription_says_its_name_and_state():
    assert repr(EventBus().subscribe(name="audit")) == "<Subscription 'audit', new>"
