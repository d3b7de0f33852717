"""Arbitration: one terminal event for each call, whoever races whom, and nothing that vanishes silently."""

from __future__ import annotations

import logging

import anyio
import anyio.lowlevel
import pytest
from bus_events import completed, failed, hear, opened, signal
from hypothesis import given
from hypothesis import strategies as st

from toolbus import EventBus
from toolbus.errors import BusError
from toolbus.events import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    DeadLetter,
    Event,
    StatusChanged,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallPaused,
    ToolCallResumed,
)

pytestmark = pytest.mark.leaves("buses", reason="requests are opened by hand, and no session ends them")


async def test_a_question_that_is_asked_again_is_the_newest_one():
    bus = EventBus()
    mailbox = opened(bus, "a", "b")
    for call_id in ("a", "b", "a"):
        question = ApprovalRequested(request_id="r", call_id=call_id, name="pay", arguments={}, timeout_seconds=1.0)
        bus.arbitration.open_approval(mailbox, question)
    assert [each.call_id for each in bus.arbitration.pending_approvals()] == ["b", "a"]


@pytest.mark.guarantee("G06")
async def test_the_first_terminal_event_of_a_call_wins():
    bus = EventBus()
    mailbox = opened(bus, "c")
    heard = hear(bus)
    first = completed("c", content="first")
    assert bus.arbitration.is_open("r", "c")
    assert bus.publish(first) is True
    assert not bus.arbitration.is_open("r", "c")
    assert mailbox.drain() == [first]
    assert heard == [first]


@pytest.mark.guarantee("G06", "G07")
async def test_a_later_terminal_event_goes_out_as_late_and_reaches_no_session():
    bus = EventBus()
    mailbox = opened(bus, "c")
    first = failed("c")
    bus.publish(first)
    heard = hear(bus)
    second = ToolCallCompleted(
        request_id="r",
        conversation_id="k",
        parent_id="p",
        metadata={"tenant": 7},
        call_id="c",
        name="look_up",
        content="too late",
    )
    assert bus.publish(second) is False
    assert bus.publish(failed("c", error="later still")) is False
    assert mailbox.drain() == [first]
    late, later = heard
    assert isinstance(late, ToolCallLate)
    assert (late.event_type, late.content, late.error) == ("tool_call_completed", "too late", "")
    assert (late.request_id, late.conversation_id, late.parent_id, late.call_id) == ("r", "k", "p", "c")
    assert late.metadata == {"tenant": 7}
    assert late.event_id != second.event_id
    assert isinstance(later, ToolCallLate)
    assert (later.event_type, later.content, later.error) == ("tool_call_failed", "", "later still")
    assert bus.statistics().late_results == 2


@pytest.mark.guarantee("G06", "G07")
async def test_a_call_that_its_session_has_claimed_is_late_for_everybody_else():
    bus = EventBus()
    mailbox = opened(bus, "c")
    assert bus.arbitration.claim("r", "c") is True
    assert bus.arbitration.claim("r", "c") is False
    assert bus.publish(completed("c")) is False
    assert mailbox.drain() == []
    assert bus.statistics().late_results == 1


@pytest.mark.guarantee("G06")
async def test_a_session_that_claims_a_call_after_its_result_finds_the_result_in_the_mailbox():
    bus = EventBus()
    mailbox = opened(bus, "c")
    bus.publish(completed("c"))
    assert bus.arbitration.claim("r", "c") is False
    assert len(mailbox) == 1


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("12"), st.sampled_from("cft")), max_size=30))
@pytest.mark.guarantee("G05", "G06")
def test_whoever_races_whom_each_open_call_gets_one_terminal_event_and_every_other_is_reported(
    moves: list[tuple[str, str, str]],
):
    async def race() -> None:
        bus = EventBus()
        heard = hear(bus)
        mailboxes = {"a": opened(bus, "1", "2", request_id="a")}  # nobody has opened request b
        claimed: set[tuple[str, str]] = set()
        for request, call, kind in moves:
            if kind == "t":  # its session's time-out
                if bus.arbitration.claim(request, call):
                    claimed.add((request, call))
            else:
                bus.publish((completed if kind == "c" else failed)(call, request))
        terminal = [(e.request_id, e.call_id) for e in heard if isinstance(e, (ToolCallCompleted, ToolCallFailed))]
        assert len(terminal) == len(set(terminal))
        assert not claimed & set(terminal)
        assert {("a", each.call_id) for each in mailboxes["a"].drain()} == set(terminal)
        assert len(heard) == sum(kind != "t" for _, _, kind in moves)  # nothing vanished
        assert sum(isinstance(e, DeadLetter) for e in heard) == sum(r == "b" and k != "t" for r, _, k in moves)

    anyio.run(race)


@pytest.mark.guarantee("G06")
async def test_calls_of_different_requests_may_have_the_same_id():
    bus = EventBus()
    a, b = opened(bus, "c", request_id="a"), opened(bus, "c", request_id="b")
    bus.publish(completed("c", "a", "for a"))
    bus.publish(completed("c", "b", "for b"))
    assert [each.content for each in a.drain()] == ["for a"]
    assert [each.content for each in b.drain()] == ["for b"]


# ---------------------------------------------------------------------------------------------------- dead letters


@pytest.mark.guarantee("G05")
@pytest.mark.parametrize("make", [completed, failed])
async def test_a_terminal_event_for_an_unknown_call_becomes_a_dead_letter(
    make: type[ToolCallCompleted], caplog: pytest.LogCaptureFixture
):
    bus = EventBus()
    mailbox = opened(bus, "c")
    heard = hear(bus)
    event: Event = make("unknown")  # pyright: ignore[reportCallIssue]
    assert bus.publish(event) is False
    (letter,) = heard
    assert isinstance(letter, DeadLetter)
    assert (letter.event_type, letter.rejected_event_id) == (event.type, event.event_id)
    assert (letter.request_id, letter.call_id) == ("r", "unknown")
    assert "no such call" in letter.reason
    assert mailbox.drain() == []
    assert bus.statistics().dead_letters == 1
    assert [(record.levelno, record.name) for record in caplog.records] == [(logging.WARNING, "toolbus.bus")]


@pytest.mark.guarantee("G05")
@pytest.mark.parametrize(
    ("event", "call_id"),
    [
        (CancelRequested(request_id="r", conversation_id="k", parent_id="p", metadata={"tenant": 7}), ""),
        (SteeringAdded(request_id="r", conversation_id="k", parent_id="p", metadata={"tenant": 7}, text="no"), ""),
        (
            ApprovalDecided(
                request_id="r", conversation_id="k", parent_id="p", metadata={"tenant": 7}, call_id="c", approved=True
            ),
            "c",
        ),
    ],
    ids=["cancel", "steer", "approve"],
)
def test_what_people_ask_of_a_request_that_does_not_run_becomes_a_dead_letter(event: Event, call_id: str):
    bus = EventBus()
    heard = hear(bus)
    assert bus.publish(event) is False
    (letter,) = heard
    assert isinstance(letter, DeadLetter)
    assert (letter.event_type, letter.rejected_event_id, letter.call_id) == (event.type, event.event_id, call_id)
    assert (letter.request_id, letter.conversation_id, letter.parent_id) == ("r", "k", "p")
    assert letter.metadata == {"tenant": 7}
    assert letter.at == event.at  # no loop, no clock


@pytest.mark.guarantee("G05")
async def test_a_dead_letter_of_a_receiver_is_delivered_after_what_the_receiver_was_told_of():
    bus = EventBus()
    bus.connect(StatusChanged, lambda _: bus.publish(completed("unknown")))
    heard = hear(bus)
    bus.publish(signal())
    assert [event.type for event in heard] == ["status_changed", "dead_letter"]


async def test_what_the_bus_tells_by_itself_carries_the_time_of_its_clock():
    bus = EventBus()
    opened(bus, "c")
    heard = hear(bus)
    before = bus.clock()
    old = ToolCallCompleted(request_id="r", call_id="unknown", name="", content="", at=5.0)
    bus.publish(old)
    assert before <= heard[0].at <= bus.clock()


# ------------------------------------------------------------------------------------------- mailboxes and control


@pytest.mark.guarantee("G04")
async def test_a_result_published_before_its_session_waits_is_not_lost():
    bus = EventBus()
    mailbox = opened(bus, "c")
    event = completed("c")
    bus.publish(event)
    with anyio.fail_after(30):
        await mailbox.wait()
    assert mailbox.drain() == [event]
    assert mailbox.drain() == []


@pytest.mark.guarantee("G04")
async def test_a_session_takes_a_result_before_a_cancellation_that_came_earlier():
    bus = EventBus()
    mailbox = opened(bus, "c")
    cancelled, event = CancelRequested(request_id="r", reason="enough"), completed("c")
    bus.publish(cancelled)
    bus.publish(event)
    assert mailbox.drain() == [event, cancelled]


@pytest.mark.guarantee("G04")
async def test_a_receiver_that_answers_while_the_request_is_still_being_told_loses_nothing():
    bus = EventBus()
    mailbox = opened(bus, "1", "2")
    bus.connect(StatusChanged, lambda event: bus.publish(completed(event.text)))
    bus.publish(signal("2"))
    bus.publish(signal("1"))
    with anyio.fail_after(30):
        await mailbox.wait()
    assert [event.call_id for event in mailbox.drain()] == ["2", "1"]


@pytest.mark.guarantee("G04")
async def test_a_session_that_waits_is_woken_and_gets_everything_in_order():
    bus = EventBus()
    mailbox = opened(bus, "1", "2")
    got: list[Event] = []
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:

            async def session() -> None:
                await mailbox.wait()
                got.extend(mailbox.drain())

            group.start_soon(session)
            await anyio.wait_all_tasks_blocked()
            events = [completed("1"), completed("2")]
            for event in events:
                bus.publish(event)
    assert got == events


@pytest.mark.guarantee("G04")
async def test_a_wait_that_is_cancelled_loses_no_result_and_can_be_begun_again():
    bus = EventBus()
    mailbox = opened(bus, "c")
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(mailbox.wait)
            await anyio.wait_all_tasks_blocked()
            bus.publish(completed("c"))
            scope.cancel()
    assert mailbox.on_put is None
    with anyio.fail_after(30):
        await mailbox.wait()
    assert len(mailbox) == 1


@pytest.mark.guarantee("G04", "G05")
@pytest.mark.parametrize(
    "event",
    [
        CancelRequested(request_id="r"),
        SteeringAdded(request_id="r", text="more"),
    ],
    ids=["cancel", "steer"],
)
async def test_what_people_ask_of_a_request_goes_to_its_mailbox_and_to_everybody(event: Event):
    bus = EventBus()
    mailbox, other = opened(bus), opened(bus, request_id="other")
    heard = hear(bus)
    assert bus.publish(event) is True
    assert mailbox.drain() == heard == [event]
    assert other.drain() == []


@pytest.mark.guarantee("G05")
async def test_an_approval_that_nobody_asked_for_becomes_a_dead_letter():
    bus = EventBus()
    mailbox = opened(bus)
    heard = hear(bus)
    assert bus.publish(ApprovalDecided(request_id="r", call_id="c", approved=True)) is False
    assert [event.type for event in heard] == ["dead_letter"]
    assert mailbox.drain() == []


@pytest.mark.guarantee("G05")
@pytest.mark.parametrize("kind", [ToolCallPaused, ToolCallResumed], ids=["pause", "resume"])
async def test_a_pause_goes_to_the_mailbox_of_an_open_call_and_to_everybody(
    kind: type[ToolCallPaused | ToolCallResumed],
):
    bus = EventBus()
    mailbox, other = opened(bus, "c"), opened(bus, "c", request_id="other")
    heard = hear(bus)
    event = kind(request_id="r", call_id="c")
    assert bus.publish(event) is True
    assert mailbox.drain() == heard == [event]
    assert other.drain() == []
    assert bus.arbitration.is_open("r", "c")


@pytest.mark.guarantee("G05")
@pytest.mark.parametrize("kind", [ToolCallPaused, ToolCallResumed], ids=["pause", "resume"])
async def test_a_pause_of_a_call_that_is_not_open_becomes_a_dead_letter(kind: type[ToolCallPaused | ToolCallResumed]):
    bus = EventBus()
    mailbox = opened(bus, "c")
    bus.publish(completed("c"))
    mailbox.drain()
    heard = hear(bus)
    events = [kind(request_id=request, call_id=call) for request, call in [("r", "c"), ("r", "never"), ("gone", "c")]]
    assert [bus.publish(event) for event in events] == [False, False, False]
    letters = [each for each in heard if isinstance(each, DeadLetter)]
    assert len(letters) == len(heard)
    assert [(each.rejected_event_id, each.event_type) for each in letters] == [
        (each.event_id, each.type) for each in events
    ]
    assert [each.call_id for each in letters] == ["c", "never", "c"]
    assert mailbox.drain() == []


async def test_a_request_has_one_mailbox_at_a_time():
    bus = EventBus()
    mailbox = bus.arbitration.open_mailbox("r")
    with pytest.raises(BusError, match="'r' has a mailbox already"):
        bus.arbitration.open_mailbox("r")
    bus.arbitration.close_mailbox(mailbox)
    again = bus.arbitration.open_mailbox("r")
    bus.arbitration.close_mailbox(mailbox)  # the old one is closed already, and the new one is not its business
    assert bus.publish(CancelRequested(request_id="r")) is True
    assert len(again) == 1


@pytest.mark.guarantee("G05")
async def test_a_result_for_a_request_that_has_ended_is_reported_as_late_and_does_not_vanish():
    bus = EventBus()
    mailbox, other = opened(bus, "1", "2"), opened(bus, "1", request_id="other")
    bus.publish(completed("1"))
    bus.arbitration.close_mailbox(mailbox)
    heard = hear(bus)
    assert bus.publish(completed("2")) is False
    assert [event.type for event in heard] == ["tool_call_late"]
    assert len(mailbox) == 1
    assert bus.statistics().open_calls == 1
    assert bus.publish(completed("1", "other")) is True
    assert len(other) == 1


async def test_the_exception_behind_a_failure_reaches_the_session_and_no_listener():
    bus = EventBus()
    mailbox = opened(bus, "1", "2", "3")
    heard = hear(bus)
    cause = ValueError("the traceback")
    bus.publish(failed("1"), cause=cause)
    bus.publish(failed("2"))
    bus.publish(completed("3"), cause=cause)
    assert mailbox.cause("1") is cause
    assert mailbox.cause("2") is None
    assert mailbox.cause("3") is None
    assert "traceback" not in repr(heard)


async def test_handlers_see_of_a_request_what_its_session_shows_while_it_runs():
    bus = EventBus()
    view: object = object()
    mailbox = bus.arbitration.open_mailbox("r", view)  # pyright: ignore[reportArgumentType]
    assert bus.arbitration.view("r") is view
    assert bus.arbitration.view("other") is None
    bus.arbitration.close_mailbox(mailbox)
    assert bus.arbitration.view("r") is None


# --------------------------------------------------------------------------------------------- bounded memory, watches


@pytest.mark.guarantee("G05")
async def test_the_memory_of_settled_calls_is_bounded_and_what_it_forgot_becomes_a_dead_letter():
    bus = EventBus(max_settled=3)
    opened(bus, *"12345")
    for call_id in "12345":
        bus.publish(completed(call_id))
    assert bus.statistics().settled_remembered == 3
    heard = hear(bus)
    for call_id in "12345":
        assert bus.publish(completed(call_id)) is False
    assert [event.type for event in heard] == ["dead_letter"] * 2 + ["tool_call_late"] * 3


async def test_ten_thousand_settled_calls_are_remembered_by_default():
    bus = EventBus()
    numbers = [str(number) for number in range(10_001)]
    opened(bus, *numbers)
    for call_id in numbers:
        bus.arbitration.claim("r", call_id)
    assert bus.statistics().settled_remembered == 10_000
    heard = hear(bus)
    bus.publish(completed("0"))
    bus.publish(completed("1"))
    assert [event.type for event in heard] == ["dead_letter", "tool_call_late"]


async def test_a_bus_that_remembers_no_settled_call_still_arbitrates():
    bus = EventBus(max_settled=0)
    mailbox = opened(bus, "c")
    heard = hear(bus)
    assert [bus.publish(completed("c")) for _ in range(2)] == [True, False]
    assert [event.type for event in heard] == ["tool_call_completed", "dead_letter"]
    assert len(mailbox) == 1
    bus.arbitration.open_calls(mailbox, ["d"])
    assert bus.arbitration.claim("r", "d", late="drop")
    assert bus.statistics().settled_remembered == 0


async def test_an_executor_is_told_once_when_somebody_settles_its_call_and_before_everybody_hears_it():
    bus = EventBus()
    mailbox = opened(bus, "1", "2", "3")
    reported: list[str] = []
    for call_id in ("1", "2", "3"):
        bus.arbitration.watch("r", call_id, lambda call_id=call_id: reported.append(call_id))
    bus.connect(ToolCallCompleted, lambda event: reported.append(f"heard {event.call_id}"))
    bus.arbitration.unwatch("r", "3")
    bus.arbitration.unwatch("r", "3")
    bus.publish(completed("1"))
    bus.publish(completed("1"))
    bus.arbitration.claim("r", "2")
    bus.publish(completed("3"))
    assert reported == ["1", "heard 1", "2", "heard 3"]
    bus.arbitration.open_calls(mailbox, ["1", "2"])  # a watch is for one answer
    bus.publish(completed("1"))
    bus.arbitration.claim("r", "2")
    assert reported[4:] == ["heard 1"]


@pytest.mark.guarantee("G17")
async def test_no_executor_takes_a_call_on_that_is_not_open_whatever_the_bus_has_forgotten():
    bus = EventBus(max_settled=0)
    opened(bus, "1", "2")
    bus.arbitration.claim("r", "1")
    assert bus.arbitration.watch("r", "1", lambda: None) is False
    assert bus.arbitration.watch("r", "nobody's", lambda: None) is False
    assert bus.arbitration.watch("r", "2", lambda: None) is True
    assert bus.arbitration.watch("elsewhere", "1", lambda: None) is False


@pytest.mark.guarantee("G03", "G04")
async def test_a_watch_that_raises_loses_no_result(caplog: pytest.LogCaptureFixture):
    bus = EventBus()
    mailbox = opened(bus, "c")
    heard = hear(bus)

    def broken() -> None:
        raise RuntimeError("an executor's fault")

    bus.arbitration.watch("r", "c", broken)
    assert bus.publish(completed("c")) is True
    assert mailbox.drain() == heard
    assert len(heard) == 1
    assert bus.publish(completed("c")) is False
    assert "call c: the watch on it failed" in caplog.text


@pytest.mark.guarantee("G06")
async def test_all_calls_of_a_round_are_open_before_the_first_is_reported():
    bus = EventBus()
    mailbox = opened(bus, "1", "2", "3")

    def answers_all(_: StatusChanged) -> None:
        for call_id in ("3", "2", "1"):
            assert bus.publish(completed(call_id)) is True

    bus.connect(StatusChanged, answers_all)
    bus.publish(signal("the first call is told"))
    assert bus.statistics().receiver_failures == 0
    assert [event.call_id for event in mailbox.drain()] == ["3", "2", "1"]
    await anyio.lowlevel.checkpoint()
