"""The buffer of one slow reader: four policies, gaps in their place, and sums that always hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from bus_events import delta, fact, said, signal
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from toolbus.bus import Overflow
from toolbus.bus._buffer import EventBuffer
from toolbus.errors import ConfigurationError
from toolbus.events import Event, ReasoningDelta, SubscriberLagged, TextDelta, ToolArgumentsDelta
from toolbus.records import replace

POLICIES: tuple[Overflow, ...] = ("drop_oldest", "drop_newest", "coalesce", "disconnect")


def filled(policy: Overflow, capacity: int, *events: Event, first: int = 1) -> EventBuffer:
    """A buffer that was offered these events at positions from `first`."""
    buffer = EventBuffer(capacity, policy)
    for position, event in enumerate(events, first):
        buffer.offer(position, event)
    return buffer


def read(buffer: EventBuffer) -> list[Event]:
    events: list[Event] = []
    while (event := buffer.take()) is not None:
        events.append(event)
    return events


def shown(event: Event) -> str:
    if isinstance(event, SubscriberLagged):
        return f"gap {event.first_position}-{event.last_position} of {event.count}"
    return said([event])[0]


def shows(buffer: EventBuffer) -> list[str]:
    return [shown(event) for event in read(buffer)]


def s(*texts: str) -> list[Event]:
    return [signal(text) for text in texts]


# -------------------------------------------------------------------------------------------------- the policies


@pytest.mark.parametrize("policy", POLICIES)
def test_what_fits_comes_out_as_it_went_in(policy: Overflow):
    events = [signal("a"), fact("b"), signal("c")]
    buffer = filled(policy, 3, *events)
    assert read(buffer) == events
    assert buffer.position == 3
    assert (buffer.offered, buffer.taken, buffer.dropped, buffer.merged) == (3, 3, 0, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_empty_buffer_gives_nothing_and_stands_at_no_position(policy: Overflow):
    buffer = EventBuffer(1, policy)
    assert buffer.take() is None
    assert buffer.position == 0


@pytest.mark.guarantee("G02")
@pytest.mark.parametrize("policy", ["drop_oldest", "coalesce"])
def test_the_oldest_signals_go_first_and_leave_one_gap(policy: Overflow):
    buffer = filled(policy, 2, *s("a", "b", "c", "d", "e"))
    assert shows(buffer) == ["gap 1-3 of 3", "d", "e"]


@pytest.mark.guarantee("G02")
def test_drop_newest_keeps_what_is_inside_and_tells_of_the_rest_behind_it():
    buffer = filled("drop_newest", 2, *s("a", "b", "c", "d", "e"))
    assert shows(buffer) == ["a", "b", "gap 3-5 of 3"]


@pytest.mark.guarantee("G02")
def test_disconnect_ends_at_the_first_event_without_a_place_and_keeps_what_is_inside():
    buffer = EventBuffer(2, "disconnect")
    assert [buffer.offer(position, event) for position, event in enumerate(s("a", "b", "c", "d"), 7)] == [
        True,
        True,
        False,
        False,
    ]
    assert buffer.failed_at == 9
    assert shows(buffer) == ["a", "b"]
    assert (buffer.offered, buffer.taken) == (2, 2)


@pytest.mark.guarantee("G02")
@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "coalesce"])
def test_facts_are_never_dropped_signals_make_room_for_them(policy: Overflow):
    buffer = filled(policy, 3, signal("a"), fact("1"), signal("b"), fact("2"), fact("3"))
    assert buffer.failed_at is None
    assert [text for text in shows(buffer) if not text.startswith("gap")] == ["1", "2", "3"]


@pytest.mark.guarantee("G02")
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("drop_oldest", ["gap 1-1 of 1", "1", "b", "2"]),
        ("drop_newest", ["a", "1", "gap 3-3 of 1", "2"]),
    ],
)
def test_the_policy_says_which_signal_makes_room_for_a_fact(policy: Overflow, expected: list[str]):
    buffer = filled(policy, 3, signal("a"), fact("1"), signal("b"), fact("2"))
    assert shows(buffer) == expected


@pytest.mark.guarantee("G02")
@pytest.mark.parametrize("policy", POLICIES)
def test_a_buffer_full_of_facts_alone_is_over_at_the_next_fact(policy: Overflow):
    buffer = filled(policy, 2, fact("1"), fact("2"))
    assert buffer.offer(3, fact("3")) is False
    assert buffer.failed_at == 3
    assert buffer.offer(4, signal("later")) is False
    assert shows(buffer) == ["1", "2"]
    assert (buffer.offered, buffer.taken, buffer.dropped) == (2, 2, 0)


@pytest.mark.guarantee("G02")
@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "coalesce"])
def test_a_signal_that_finds_nothing_but_facts_is_itself_dropped_and_announced_in_its_place(policy: Overflow):
    buffer = filled(policy, 2, fact("1"), fact("2"), signal("a"), signal("b"))
    assert buffer.failed_at is None
    assert shows(buffer) == ["1", "2", "gap 3-4 of 2"]
    buffer.offer(5, fact("3"))
    assert shows(buffer) == ["3"]


# ----------------------------------------------------------------------------------------------------------- gaps


@pytest.mark.guarantee("G02")
def test_gaps_stand_where_events_are_missing_and_neighbours_are_one():
    buffer = filled("drop_oldest", 4, signal("a"), fact("1"), signal("b"), signal("c"))
    buffer.offer(5, fact("2"))
    assert buffer.take() == SubscriberLaggedLike(1, 1, 1)
    buffer.offer(6, fact("3"))
    buffer.offer(7, fact("4"))
    assert shows(buffer) == ["1", "gap 3-4 of 2", "2", "3", "4"]


@dataclass
class SubscriberLaggedLike:
    """Equal to the gap with these numbers, whatever its id and time."""

    first_position: int
    last_position: int
    count: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SubscriberLagged) and (
            self.first_position,
            self.last_position,
            self.count,
        ) == (other.first_position, other.last_position, other.count)

    __hash__ = None  # pyright: ignore[reportAssignmentType]


@pytest.mark.guarantee("G02")
def test_a_gap_joins_the_gaps_on_both_its_sides():
    buffer = EventBuffer(3, "drop_newest")
    for position, event in enumerate([fact("1"), signal("a"), signal("b")], 1):
        buffer.offer(position, event)
    buffer.offer(4, signal("dropped at once"))  # facts, a, b, then a gap of position 4
    buffer.offer(5, fact("2"))  # takes b's place: its gap joins the one behind
    buffer.offer(6, fact("3"))  # takes a's place: all three are one
    assert shows(buffer) == ["1", "gap 2-4 of 3", "2", "3"]


@pytest.mark.guarantee("G02")
def test_positions_of_a_gap_are_those_of_the_bus_though_not_all_between_them_matched():
    buffer = EventBuffer(1, "drop_oldest")
    for position in (10, 20, 30, 40):
        buffer.offer(position, signal(str(position)))
    assert shown(_next(buffer)) == "gap 10-30 of 3"
    assert buffer.position == 30
    assert shown(_next(buffer)) == "40"
    assert buffer.position == 40


def test_a_gap_that_was_read_is_not_told_again_and_the_next_one_begins_anew():
    buffer = filled("drop_oldest", 1, *s("a", "b"))
    assert shows(buffer) == ["gap 1-1 of 1", "b"]
    buffer.offer(3, signal("c"))
    buffer.offer(4, signal("d"))
    assert shows(buffer) == ["gap 3-3 of 1", "d"]


@pytest.mark.guarantee("G02")
def test_the_gaps_inside_are_bounded_as_the_events_are():
    """Every other event is a fact that stays, so gaps cannot join: still at most one beside each event."""
    buffer = EventBuffer(10, "drop_oldest")
    position = 0
    while buffer.failed_at is None:
        position += 1
        buffer.offer(position, fact(str(position)) if position % 2 else signal(str(position)))
    assert len(read(buffer)) <= 2 * 10 + 1


# ------------------------------------------------------------------------------------------------------- merging


@pytest.mark.guarantee("G02")
def test_adjacent_deltas_of_one_message_merge_into_one_with_the_firsts_identity():
    first = delta("Hel")
    buffer = filled("coalesce", 10, first, delta("lo "), delta("world"))
    assert (buffer.length, buffer.merged, buffer.offered) == (1, 2, 3)
    merged = _next(buffer)
    assert isinstance(merged, TextDelta)
    assert (merged.text, merged.event_id, merged.at) == ("Hello world", first.event_id, first.at)
    assert first.text == "Hel"
    assert buffer.position == 3


@pytest.mark.parametrize(
    "other",
    [
        delta("b", message_id="other message"),
        delta("b", request_id="other request"),
        ReasoningDelta(message_id="m", request_id="r", text="b"),
        ToolArgumentsDelta(message_id="m", request_id="r", text="b", index=0, name=""),
        signal("b"),
        fact("b"),
    ],
    ids=["message", "request", "kind", "arguments", "signal", "fact"],
)
def test_what_is_no_neighbour_of_the_same_text_does_not_merge_and_parts_what_does(other: Event):
    events = [delta("a"), other, delta("c")]
    buffer = filled("coalesce", 10, *events)
    assert read(buffer) == events
    assert buffer.merged == 0


def test_reasoning_merges_as_text_does():
    pieces = [ReasoningDelta(message_id="m", text=text) for text in ("I ", "think")]
    (merged,) = read(filled("coalesce", 10, *pieces))
    assert isinstance(merged, ReasoningDelta)
    assert merged.text == "I think"


def _arguments(text: str, index: int = 0, name: str = "look_up") -> ToolArgumentsDelta:
    return ToolArgumentsDelta(message_id="m", index=index, name=name, text=text)


def test_arguments_merge_for_one_call_and_keep_its_name():
    merged, other = read(filled("coalesce", 10, _arguments('{"a'), _arguments('":1}', name=""), _arguments("{}", 1)))
    assert isinstance(merged, ToolArgumentsDelta)
    assert (merged.text, merged.name, merged.index) == ('{"a":1}', "look_up", 0)
    assert isinstance(other, ToolArgumentsDelta)
    assert other.index == 1


def test_a_name_that_comes_late_is_not_merged_away():
    first, second = read(filled("coalesce", 10, _arguments("", name=""), _arguments("{")))
    assert isinstance(first, ToolArgumentsDelta)
    assert isinstance(second, ToolArgumentsDelta)
    assert (first.name, second.name) == ("", "look_up")


def test_only_coalesce_merges():
    for policy in POLICIES:
        assert filled(policy, 10, delta("a"), delta("b")).merged == (1 if policy == "coalesce" else 0)


@pytest.mark.guarantee("G02")
def test_deltas_do_not_merge_across_a_gap():
    buffer = filled("coalesce", 1, fact("1"), delta("a"), delta("b"))
    assert shows(buffer) == ["1", "gap 2-3 of 2"]
    buffer = filled("coalesce", 1, fact("1"), delta("a"))
    assert shown(_next(buffer)) == "1"
    buffer.offer(3, delta("b"))
    assert shows(buffer) == ["gap 2-2 of 1", "b"]


@pytest.mark.guarantee("G02")
def test_a_merged_delta_that_is_dropped_counts_with_all_its_pieces():
    buffer = filled("coalesce", 2, delta("a"), delta("b"), delta("c"), signal("x"), signal("y"))
    assert (buffer.merged, buffer.dropped, buffer.length) == (0, 3, 2)
    assert shows(buffer) == ["gap 1-3 of 3", "x", "y"]


def test_a_delta_that_was_read_is_not_merged_into():
    buffer = filled("coalesce", 10, delta("a"))
    assert shows(buffer) == ["a"]
    buffer.offer(2, delta("b"))
    assert shows(buffer) == ["b"]


def test_merging_copies_each_piece_once_however_many_there_are(monkeypatch: pytest.MonkeyPatch):
    copies: list[int] = []

    def counting(event: Event, **changes: Any) -> Event:
        copies.append(len(changes["text"]))
        return replace(event, **changes)

    monkeypatch.setattr("toolbus.bus._buffer.replace", counting)
    buffer = filled("coalesce", 10, *(delta("x") for _ in range(1000)))
    assert copies == []
    assert shows(buffer) == ["x" * 1000]
    assert copies == [1000]


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_below_one_is_refused(capacity: int):
    with pytest.raises(ConfigurationError, match=f"capacity is {capacity}"):
        EventBuffer(capacity, "drop_oldest")


def test_an_unknown_policy_is_refused_and_the_known_ones_are_named():
    unknown: Any = "block"
    policies = "'drop_oldest', 'drop_newest', 'coalesce', 'disconnect'"
    with pytest.raises(ConfigurationError, match=f"'block'; it must be one of {policies}"):
        EventBuffer(1, unknown)


# ------------------------------------------------------------------------------------------- against a naive model


@dataclass
class Place:
    """One place of the model: events that were merged into one, or, when `gone`, dropped."""

    events: list[tuple[int, Event]]
    gone: bool = False


@dataclass
class Model:
    """What the buffer should do, written down slowly: a plain list of places, searched from its ends."""

    capacity: int
    policy: Overflow
    places: list[Place] = field(default_factory=list[Place])
    over: bool = False
    delivered: int = 0
    merged: int = 0
    dropped: int = 0

    def kept(self) -> list[Place]:
        return [place for place in self.places if not place.gone]

    def offer(self, position: int, event: Event) -> bool:
        if self.over:
            return False
        last = self.places[-1] if self.places else None
        if self.policy == "coalesce" and last and not last.gone and _same_text(last.events[0][1], event):
            last.events.append((position, event))
            return True
        signals = [place for place in self.kept() if not place.events[0][1].is_fact]
        new = Place([(position, event)])
        if len(self.kept()) >= self.capacity:
            if self.policy == "disconnect" or (event.is_fact and not signals):
                self.over = True
                return False
            if event.is_fact or (signals and self.policy != "drop_newest"):
                signals[-1 if self.policy == "drop_newest" else 0].gone = True
            else:
                new.gone = True
        self.places.append(new)
        return True

    def take(self) -> tuple[list[str], int] | None:
        """What is read next, in words, and the position that it stands at."""
        if not self.places:
            return None
        place = self.places.pop(0)
        events = list(place.events)
        if not place.gone:
            self.delivered += 1
            self.merged += len(events) - 1
            return ["".join(said([event for _, event in events]))], events[-1][0]
        while self.places and self.places[0].gone:
            events += self.places.pop(0).events
        self.dropped += len(events)
        return [f"gap {events[0][0]}-{events[-1][0]} of {len(events)}"], events[-1][0]

    def inside(self, *, gone: bool) -> int:
        return sum(len(place.events) for place in self.places if place.gone is gone)


def _same_text(one: Event, other: Event) -> bool:
    return isinstance(one, TextDelta) and isinstance(other, TextDelta) and one.message_id == other.message_id


class BufferAgainstModel(RuleBasedStateMachine):
    """Offers and reads in any order. The sums hold at every step, not only at the end."""

    buffer: EventBuffer
    model: Model

    @initialize(capacity=st.integers(1, 5), policy=st.sampled_from(POLICIES))
    def begin(self, capacity: int, policy: Overflow) -> None:
        self.buffer = EventBuffer(capacity, policy)
        self.model = Model(capacity, policy)
        self.position = 0
        self.matched = 0
        self.peak = 0
        self.last_read = 0

    @rule(kind=st.sampled_from(["fact", "signal", "delta m", "delta n"]), skipped=st.integers(1, 3))
    def offer(self, kind: str, skipped: int) -> None:
        self.position += skipped  # events that do not match have positions too
        name = f"<{self.position}>"
        event: Event = fact(name) if kind == "fact" else signal(name) if kind == "signal" else delta(name, kind)
        stands = self.buffer.offer(self.position, event)
        assert stands is self.model.offer(self.position, event)
        if stands:
            self.matched += 1
        self.peak = max(self.peak, len(self.model.kept()))

    @rule(times=st.integers(1, 4))
    def take(self, times: int) -> None:
        for _ in range(times):
            event = self.buffer.take()
            expected = self.model.take()
            if expected is None:
                assert event is None
                return
            assert event is not None
            assert ([shown(event)], self.buffer.position) == expected
            assert self.buffer.position > self.last_read
            self.last_read = self.buffer.position

    @precondition(lambda self: self.model.over)
    @rule()
    def what_is_over_stays_over(self) -> None:
        assert self.buffer.failed_at is not None
        assert self.buffer.offer(self.position + 1, signal("no")) is False

    @invariant()
    def the_sums_hold(self) -> None:
        if not hasattr(self, "buffer"):
            return
        buffer, model = self.buffer, self.model
        assert buffer.length == len(model.kept()) <= buffer.capacity
        assert buffer.peak == self.peak
        assert buffer.offered == self.matched
        assert buffer.taken + buffer.merged + buffer.dropped + buffer.length == self.matched
        assert buffer.taken == model.delivered
        assert buffer.dropped == model.dropped + model.inside(gone=True)
        assert buffer.merged == model.merged + model.inside(gone=False) - len(model.kept())
        assert (buffer.failed_at is not None) is model.over

    def teardown(self) -> None:
        if not hasattr(self, "buffer"):
            return
        while (expected := self.model.take()) is not None:
            event = self.buffer.take()
            assert event is not None
            assert ([shown(event)], self.buffer.position) == expected
        assert self.buffer.take() is None
        assert self.buffer.length == 0
        assert self.buffer.taken + self.buffer.merged + self.buffer.dropped == self.matched


BufferAgainstModel.TestCase.settings = settings(stateful_step_count=40)


@pytest.mark.guarantee("G02")
class TestBufferAgainstModel(BufferAgainstModel.TestCase): ...


def _next(buffer: EventBuffer) -> Event:
    event = buffer.take()
    assert event is not None
    return event
