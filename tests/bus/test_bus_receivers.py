"""Receivers: who is called, in which order, and what one of them can do to the others (nothing)."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import logging
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest
from bus_events import completed, delta, hear, opened, said, signal

from toolbus import EventBus, tool
from toolbus.events import (
    EVENT_TYPES,
    Event,
    ReasoningDelta,
    ReceiverFailed,
    StatusChanged,
    TextDelta,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)

pytestmark = pytest.mark.leaves("buses", reason="requests are opened by hand, and no session ends them")


@pytest.mark.guarantee("G03")
def test_receivers_are_called_in_the_order_of_connection():
    bus = EventBus()
    called: list[int] = []

    def receiver(number: int) -> Callable[[Event], None]:
        return lambda _: called.append(number)

    for number in range(50):
        bus.connect(StatusChanged if number % 2 else Event, receiver(number))
    bus.publish(signal())
    assert called == list(range(50))


def test_the_order_holds_after_receivers_in_between_have_left_and_come_back():
    bus = EventBus()
    called: list[str] = []

    def receiver(name: str) -> Callable[[Event], None]:
        return lambda _: called.append(name)

    disconnects = {name: bus.connect(StatusChanged, receiver(name)) for name in "abcd"}
    disconnects["b"]()
    disconnects["a"]()
    bus.connect(StatusChanged, lambda _: called.append("a again"))
    bus.publish(signal())
    assert called == ["c", "d", "a again"]


def test_a_receiver_comes_after_those_before_it_even_where_the_memory_of_one_that_left_is_used_again():
    bus = EventBus()
    called: list[int] = []

    def receiver(number: int) -> Callable[[Event], None]:
        return lambda _: called.append(number)

    left = [bus.connect(StatusChanged, receiver(number)) for number in range(20)]
    while left:
        left.pop(0)()
    for number in range(20):
        bus.connect(StatusChanged, receiver(number))
    bus.publish(signal())
    assert called == [*range(20)]


def test_a_receiver_hears_its_types_alone():
    bus = EventBus()
    one, two, all_of_them = hear(bus, StatusChanged), list[Event](), hear(bus)
    bus.connect((TextDelta, ReasoningDelta), two.append)
    events = [signal("s"), delta("t"), ReasoningDelta(message_id="m", text="r")]
    for event in events:
        bus.publish(event)
    assert one == events[:1]
    assert two == events[1:]
    assert all_of_them == events


def test_one_receiver_connected_twice_is_called_twice_and_leaves_one_at_a_time():
    bus = EventBus()
    heard: list[Event] = []
    first, second = bus.connect(StatusChanged, heard.append), bus.connect(StatusChanged, heard.append)
    bus.publish(signal())
    assert len(heard) == 2
    first()
    first()
    bus.publish(signal())
    assert len(heard) == 3
    second()
    bus.publish(signal())
    assert len(heard) == 3


def test_receivers_are_held_strongly():
    class Listener:
        def __init__(self) -> None:
            self.heard: list[Event] = []

        def reported(self, event: Event) -> None:
            self.heard.append(event)

    bus = EventBus()
    listener = Listener()
    heard, reference = listener.heard, weakref.ref(listener)
    disconnect = bus.connect(StatusChanged, listener.reported)
    del listener
    gc.collect()
    bus.publish(signal())
    assert len(heard) == 1
    disconnect()
    del disconnect
    gc.collect()
    assert reference() is None


def test_a_receiver_that_is_disconnected_by_an_earlier_one_is_not_called_any_more():
    bus = EventBus()
    later: list[Event] = []
    bus.connect(StatusChanged, lambda _: disconnect())
    disconnect = bus.connect(StatusChanged, later.append)
    last = hear(bus)
    bus.publish(signal())
    assert later == []
    assert len(last) == 1


def test_a_receiver_that_disconnects_itself_skips_nobody():
    bus = EventBus()
    once: list[Event] = []

    def only_once(event: Event) -> None:
        once.append(event)
        disconnect()

    disconnect = bus.connect(StatusChanged, only_once)
    others = [hear(bus, StatusChanged) for _ in range(3)]
    bus.publish(signal("1"))
    bus.publish(signal("2"))
    assert said(once) == ["1"]
    assert [said(each) for each in others] == [["1", "2"]] * 3


def test_a_receiver_that_is_connected_during_a_delivery_hears_the_next_event():
    bus = EventBus()
    late: list[Event] = []
    disconnect = bus.connect(StatusChanged, lambda _: (bus.connect(StatusChanged, late.append), disconnect()))
    bus.publish(signal("1"))
    assert late == []
    bus.publish(signal("2"))
    assert said(late) == ["2"]


# ------------------------------------------------------------------------------------------- receivers that raise


@pytest.mark.guarantee("G03")
def test_a_receiver_that_raises_becomes_an_event_and_nobody_else_is_hurt(caplog: pytest.LogCaptureFixture):
    bus = EventBus()
    before = hear(bus)

    def broken(event: StatusChanged) -> None:
        raise LookupError(f"cannot find {event.text}")

    bus.connect(StatusChanged, broken)
    behind = hear(bus)
    event = StatusChanged(
        stage="idle", text="it", request_id="r", conversation_id="k", parent_id="p", metadata={"tenant": 7}
    )
    assert bus.publish(event) is True
    assert before == behind == [event, before[1]]
    failure = before[1]
    assert isinstance(failure, ReceiverFailed)
    assert failure.receiver.endswith("broken")
    assert failure.receiver.startswith(f"{__name__}.")
    assert (failure.event_type, failure.failed_event_id) == ("status_changed", event.event_id)
    assert failure.error == "LookupError: cannot find it"
    assert (failure.request_id, failure.conversation_id, failure.parent_id) == ("r", "k", "p")
    assert failure.metadata == {"tenant": 7}
    assert bus.statistics().receiver_failures == 1
    (record,) = caplog.records
    assert (record.levelno, record.name) == (logging.ERROR, "toolbus.bus")
    assert record.exc_info is not None
    assert record.exc_info[0] is LookupError


@pytest.mark.guarantee("G03")
async def test_a_receiver_that_raises_harms_no_subscriber_and_no_session():
    bus = EventBus()
    mailbox = opened(bus, "c")
    bus.connect(Event, _raise)
    async with bus.subscribe(ToolCallCompleted) as subscription:
        assert bus.publish(completed("c")) is True
        assert subscription.receive_nowait() == mailbox.drain()[0]


@pytest.mark.guarantee("G03")
def test_a_listener_of_failures_that_fails_does_not_go_on_for_ever():
    bus = EventBus()
    bus.connect(StatusChanged, _raise)
    bus.connect(ReceiverFailed, _raise)
    heard = hear(bus)
    bus.publish(signal())
    assert [event.type for event in heard] == ["status_changed", "receiver_failed"]
    assert bus.statistics().receiver_failures == 2


@pytest.mark.guarantee("G03")
def test_a_listener_of_failures_that_causes_failures_is_stopped_by_the_bound_on_depth():
    bus = EventBus(max_causal_depth=10)
    bus.connect(StatusChanged, _raise)
    bus.connect(ReceiverFailed, lambda _: bus.publish(signal()))
    heard = hear(bus)
    bus.publish(signal())
    assert len(heard) <= 12


@pytest.mark.guarantee("G03")
def test_a_failure_goes_out_after_what_was_published_before_it():
    bus = EventBus()

    def publishes_and_raises(_: StatusChanged) -> None:
        bus.publish(delta("x"))
        raise ValueError

    bus.connect(StatusChanged, publishes_and_raises)
    heard = hear(bus)
    bus.publish(signal())
    assert [event.type for event in heard] == ["status_changed", "text_delta", "receiver_failed"]


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.guarantee("G03")
def test_an_exception_that_cannot_be_printed_is_reported_by_its_type():
    bus = EventBus()

    def broken(_: Event) -> None:
        raise _Unprintable

    bus.connect(StatusChanged, broken)
    failures = hear(bus, ReceiverFailed)
    bus.publish(signal())
    assert isinstance(failures[0], ReceiverFailed)
    assert failures[0].error == "_Unprintable"


@pytest.mark.guarantee("G03")
async def test_a_stray_cancellation_out_of_a_receiver_does_not_cancel_the_publisher():
    bus = EventBus()
    stray: list[BaseException] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class() as exc:
            stray.append(exc)
            raise

    def broken(_: Event) -> None:
        raise stray[0]

    bus.connect(StatusChanged, broken)
    heard = hear(bus)
    assert bus.publish(signal()) is True
    assert [event.type for event in heard] == ["status_changed", "receiver_failed"]


@pytest.mark.guarantee("G03")
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_is_the_hosts_reaches_it_after_everybody_was_told_everything(kind: type[BaseException]):
    bus = EventBus()

    def interrupted(_: StatusChanged) -> None:
        bus.publish(delta("answer"))
        raise kind("stop")

    bus.connect(StatusChanged, interrupted)
    bus.connect(StatusChanged, interrupted)
    heard = hear(bus)
    with pytest.raises(kind, match="stop"):
        bus.publish(signal())
    expected = ["status_changed", "text_delta", "text_delta", "receiver_failed", "receiver_failed"]
    assert sorted(event.type for event in heard) == sorted(expected)
    assert bus.publish(delta("and all is well again")) is True
    assert said(heard)[-1] == "and all is well again"


def test_without_an_event_loop_no_exception_of_the_host_is_taken_for_a_cancellation():
    bus = EventBus()

    def broken(_: Event) -> None:
        raise asyncio.CancelledError

    bus.connect(StatusChanged, broken)
    with pytest.raises(asyncio.CancelledError):
        bus.publish(signal())


# ---------------------------------------------------------------------------------------------- what is refused


class _AsyncCallable:
    async def __call__(self, event: Event) -> None: ...


async def _async_receiver(event: Event) -> None: ...


async def _async_generator(event: Event) -> AsyncIterator[Event]:
    yield event


@pytest.mark.parametrize(
    "receiver",
    [
        _async_receiver,
        _async_generator,
        _AsyncCallable(),
        _AsyncCallable().__call__,
        functools.partial(_async_receiver),
        functools.partial(_AsyncCallable()),
    ],
    ids=["function", "generator", "callable", "method", "partial", "partial of a callable"],
)
def test_an_async_receiver_is_refused_and_pointed_to_subscriptions(receiver: Any):
    bus = EventBus()
    with pytest.raises(TypeError, match=r"is async, .* bus\.subscribe"):
        bus.connect(StatusChanged, receiver)
    assert bus.statistics().receivers == 0


@pytest.mark.guarantee("G03")
def test_a_receiver_that_turns_out_to_be_async_when_called_fails_as_an_event():
    bus = EventBus()
    made: list[Any] = []

    def receiver(event: Event) -> object:
        made.append(_async_receiver(event))
        return made[-1]

    bus.connect(StatusChanged, receiver)
    failures = hear(bus, ReceiverFailed)
    bus.publish(signal())  # and no warning that a coroutine was never awaited
    assert isinstance(failures[0], ReceiverFailed)
    assert "is async" in failures[0].error
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED


def test_what_a_receiver_returns_is_ignored():
    bus = EventBus()
    bus.connect(StatusChanged, lambda _: "anything")
    assert bus.publish(signal())
    assert bus.statistics().receiver_failures == 0


def print_city(city: str) -> None:
    """Print a city."""


async def async_print_city(city: str) -> None:
    """Print a city."""


@pytest.mark.parametrize("receiver", [None, "print", 3])
def test_what_cannot_be_called_is_no_receiver(receiver: Any):
    with pytest.raises(TypeError, match="cannot be called"):
        EventBus().connect(StatusChanged, receiver)


@pytest.mark.parametrize("handler", [print_city, async_print_city])
def test_a_tool_is_not_a_receiver(handler: Callable[..., Any]):
    bus = EventBus()
    with pytest.raises(TypeError, match=r"Tool\('.*print_city'\) is a tool"):
        bus.connect(StatusChanged, tool(handler))
    assert bus.statistics().receivers == 0


@pytest.mark.parametrize("function", [_async_receiver, _AsyncCallable(), "print", 3, False])
@pytest.mark.parametrize("option", ["where", "until"])
def test_what_cannot_decide_inline_is_no_filter_of_a_subscription(option: str, function: Any):
    options: dict[str, Any] = {option: function}
    with pytest.raises(TypeError, match=f"{option} is .*; pass a function that is not async"):
        EventBus().subscribe(StatusChanged, **options)


class _OwnEvent(StatusChanged, frozen=True): ...


@pytest.mark.parametrize("kind", ["status_changed", int, None, signal(), (StatusChanged, str), _OwnEvent])
async def test_what_is_no_event_type_is_refused_by_connect_and_subscribe(kind: Any):
    bus = EventBus()
    with pytest.raises(TypeError, match="not an event type"):
        bus.connect(kind, print)
    with pytest.raises(TypeError, match="not an event type"):
        bus.subscribe(StatusChanged, kind)


async def test_subscribe_says_that_it_takes_no_tuple_of_types_as_connect_does():
    kinds: Any = (StatusChanged, TextDelta)
    with pytest.raises(TypeError, match="is not an event type; pass the types in it one by one"):
        EventBus().subscribe(kinds)


def test_event_means_every_type():
    bus = EventBus()
    bus.connect(Event, lambda _: None)
    assert bus.statistics().receivers == len(EVENT_TYPES)
    assert all(bus.arbitration.wants(kind) for kind in EVENT_TYPES)


def test_a_receiver_without_a_name_is_told_by_its_repr():
    class Listener:
        def __repr__(self) -> str:
            return "<the audit log>"

        def __call__(self, event: Event) -> None:
            raise ValueError

    bus = EventBus()
    bus.connect(StatusChanged, Listener())
    failures = hear(bus, ReceiverFailed)
    bus.publish(signal())
    assert isinstance(failures[0], ReceiverFailed)
    assert failures[0].receiver.endswith("<the audit log>")


async def test_a_tool_handler_can_be_one_receiver_and_one_publish():
    bus = EventBus()
    mailbox = opened(bus, "c")
    bus.connect(ToolCallRequested, lambda event: bus.publish(completed(event.call_id, content=event.name)))
    bus.publish(
        ToolCallRequested(
            request_id="r", call_id="c", name="weather", arguments={}, round=0, timeout_seconds=30, idempotency_key="k"
        )
    )
    assert [event.content for event in mailbox.drain()] == ["weather"]
    assert bus.publish(ToolCallFailed(request_id="r", call_id="c", name="", reason="timeout", error="")) is False


def _raise(_: Event) -> None:
    raise ValueError("broken")
