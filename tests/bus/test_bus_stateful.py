"""The bus against a simple model of what it promises, whatever is asked of it and in whatever order.

Listeners raise, answer, come and go while events are delivered; calls are opened, settled, claimed, watched and
forgotten; subscriptions overflow in every way. The model is lists and sets, and knows nothing of how the bus does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from toolbus import EventBus
from toolbus.bus import Mailbox, Overflow, Subscription
from toolbus.errors import BusError, SubscriptionOverflow
from toolbus.events import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    DeadLetter,
    Event,
    ReceiverFailed,
    StatusChanged,
    SteeringAdded,
    SubscriberLagged,
    SubscriptionFull,
    TextDelta,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallPaused,
    ToolCallRequested,
    ToolCallResumed,
)
from toolbus.protocols import LateResults

T = TypeVar("T")
Key = tuple[str, str]
Said = tuple[Any, ...]
TERMINAL = (ToolCallCompleted, ToolCallFailed)
MAX_SETTLED = 4
REQUESTS = ["a", "b", "c", "d"]
KINDS: list[tuple[type[Event], ...]] = [
    (Event,),
    (StatusChanged,),
    (TextDelta, StatusChanged),
    (ToolCallRequested,),
    TERMINAL,
    (ToolCallLate, DeadLetter),
    (ReceiverFailed,),
    (CancelRequested, SteeringAdded, ApprovalDecided),
]
FATAL = object()


def said(event: Event) -> Said:
    """What an event says, without what is new in each run."""
    match event:
        case StatusChanged() | TextDelta():
            own: Said = (event.text,)
        case ToolCallRequested() | ToolCallCompleted() | ToolCallFailed() | ToolCallPaused() | ToolCallResumed():
            own = (event.call_id,)
        case ToolCallLate():
            own = (event.call_id, event.event_type, event.for_next_turn)
        case DeadLetter():
            own = (event.call_id, event.event_type)
        case ReceiverFailed():
            own = (event.event_type,)
        case SubscriptionFull():
            own = (event.capacity, event.ended)
        case CancelRequested():
            own = (event.reason,)
        case SteeringAdded():
            own = (event.text,)
        case ApprovalDecided():
            own = (event.call_id, event.approved)
        case _:
            own = ()
    return (event.type, event.request_id, *own)


@dataclass(eq=False)
class Receiver:
    """A receiver of the bus, and what the model says that it has heard."""

    kinds: tuple[type[Event], ...]
    does: str
    heard: list[Said] = field(default_factory=list[Said])
    expected: list[Said] = field(default_factory=list[Said])
    connected: bool = True
    disconnect: Callable[[], None] = lambda: None

    def hears(self, event: Event) -> bool:
        return isinstance(event, self.kinds)


@dataclass
class Entry:
    """An event in a buffer, or a gap (without `event`), and how many events at which positions it stands for."""

    first: int
    last: int
    event: Event | None
    text: str = ""
    count: int = 1

    @property
    def is_signal(self) -> bool:
        return self.event is not None and not self.event.is_fact


@dataclass(eq=False)
class Listener:
    """A subscription, and a list of what has to be in it."""

    kinds: tuple[type[Event], ...]
    request_id: str | None
    family: bool
    picky: bool
    leaving: bool
    capacity: int
    overflow: Overflow
    subscription: Subscription
    inside: list[Entry] = field(default_factory=list[Entry])
    is_open: bool = True
    failed_at: int | None = None
    broken: bool = False
    matched: int = 0
    delivered: int = 0
    merged: int = 0
    dropped: int = 0
    position: int = 0
    is_full: bool = False  # since the reader has come to a gap
    reports: bool = False  # what has to be told: that it is full

    def offer(self, position: int, event: Event) -> bool:
        """Take an event in. False when the predicate raised."""
        matches = isinstance(event, self.kinds)
        if matches and self.picky and says(event, "bad"):
            self.broken, self.is_open = True, False
            return False
        ends = self.leaving and says(event, "end")
        if matches:
            self.put(position, event)
        if ends:
            self.is_open = False
        return True

    def put(self, position: int, event: Event) -> None:
        newest = self.inside[-1] if self.inside else None
        if (
            self.overflow == "coalesce"
            and isinstance(event, TextDelta)
            and newest is not None
            and isinstance(newest.event, TextDelta)
            and (newest.event.request_id, newest.event.message_id) == (event.request_id, event.message_id)
        ):
            newest.text += event.text
            newest.last, newest.count = position, newest.count + 1
            self.merged += 1
            self.matched += 1
            return
        entry = Entry(position, position, event, getattr(event, "text", ""))
        if sum(each.event is not None for each in self.inside) < self.capacity:
            self.matched += 1
            self.inside.append(entry)
            return
        signals = [place for place, each in enumerate(self.inside) if each.is_signal]
        if self.overflow == "disconnect" or (event.is_fact and not signals):
            self.failed_at, self.is_open, self.reports = position, False, True
            return
        self.reports, self.is_full = not self.is_full, True
        self.matched += 1
        self.inside.append(entry)
        if not event.is_fact and (self.overflow == "drop_newest" or not signals):
            self.drop(len(self.inside) - 1)
        else:
            self.drop(signals[-1] if self.overflow == "drop_newest" else signals[0])

    def drop(self, place: int) -> None:
        gap = self.inside[place]
        gap.event = None
        self.dropped += gap.count
        self.merged -= gap.count - 1
        joined: list[Entry] = []
        for each in self.inside:
            if joined and each.event is None and joined[-1].event is None:
                joined[-1].last = each.last
                joined[-1].count += each.count
            else:
                joined.append(each)
        self.inside = joined

    def take(self) -> Any:
        """What reading gives: an event in words, a gap, nothing, or an error."""
        if self.inside:
            entry = self.inside.pop(0)
            self.position = entry.last
            if entry.event is None:
                self.is_full = False
                return ("gap", entry.first, entry.last, entry.count)
            self.delivered += 1
            words = said(entry.event)
            return (*words[:2], entry.text) if isinstance(entry.event, TextDelta) else words
        if self.failed_at is not None:
            return SubscriptionOverflow
        return BusError if self.broken else None


def says(event: Event, word: str) -> bool:
    return isinstance(event, StatusChanged) and event.text == word


class AnyBus(RuleBasedStateMachine):
    """A bus, and the model beside it: what is in `self` without an underscore belongs to the model."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._bus = EventBus(max_settled=MAX_SETTLED)
        self._mailboxes: dict[str, Mailbox] = {}
        self._failures: list[Mailbox] = []
        self.position = 0
        self.requests: dict[str, list[Event]] = {}
        self.lates: dict[str, LateResults] = {}
        self.above: dict[str, list[str]] = {}  # of those that run: as it was when they began, nearest first
        self.open: dict[Key, str] = {}
        self.settled: dict[Key, LateResults] = {}
        self.questions: set[Key] = set()
        self.watched: dict[Key, list[str]] = {}
        self.fired: dict[int, int] = {}
        self.watches: list[tuple[Key, list[str], list[str]]] = []
        self.receivers: list[Receiver] = []
        self.listeners: list[Listener] = []
        self.late = self.dead = self.failures = 0
        self.waiting: list[Event] = []
        self.delivering = False
        self.fatal = False
        self.calls = 0
        self.numbers: dict[str, int] = {}

    @initialize(parents=st.lists(st.booleans(), min_size=2, max_size=2))
    def begin(self, parents: list[bool]) -> None:
        """Two requests, so that there is something to do from the beginning."""
        self.begin_request("a", "event", REQUESTS[0] if parents[0] else "")
        self.begin_request("b", "next_turn" if parents[1] else "drop", "a")
        self.call("a", True)

    def _run(self, does: Callable[[], T]) -> T:
        """Do something on the event loop, and give what it gave; `FATAL` where it raised an interrupt."""

        async def on_loop() -> Any:
            try:
                return does()
            except KeyboardInterrupt:
                return FATAL

        return self._loop.run_until_complete(on_loop())

    def _await(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(coroutine)

    # ------------------------------------------------------------------------------------- the model's bus

    def tell(self, event: Event) -> None:
        """Broadcast, in the model."""
        self.waiting.append(event)
        if self.delivering:
            return
        self.delivering = True
        while self.waiting:
            self.deliver(self.waiting.pop(0))
        self.delivering = False

    def deliver(self, event: Event) -> None:
        self.position += 1
        for each in [each for each in self.receivers if each.connected and each.hears(event)]:
            if each.connected:
                each.expected.append(said(event))
                self.react(each, event)
        for listener in self.hearing(event):
            if listener.is_open and not listener.offer(self.position, event):
                self.fail(event)
            if listener.reports:
                listener.reports, ended = False, listener.failed_at is not None
                self.tell(SubscriptionFull(name="", capacity=listener.capacity, ended=ended))

    def hearing(self, event: Event) -> list[Listener]:
        is_open = [each for each in self.listeners if each.is_open]
        found = [each for each in is_open if each.request_id is None and isinstance(event, each.kinds)]
        found += [each for each in is_open if each.request_id == event.request_id]
        for above in self.above.get(event.request_id, []):
            found += [each for each in is_open if each.family and each.request_id == above]
        return found

    def fail(self, event: Event) -> None:
        self.failures += 1
        if not isinstance(event, ReceiverFailed):
            failed = ReceiverFailed(
                receiver="", event_type=event.type, failed_event_id="", error="", request_id=event.request_id
            )
            self.tell(failed)

    def react(self, receiver: Receiver, event: Event) -> None:
        """What a receiver does, in the model."""
        match receiver.does:
            case "raise":
                self.fail(event)
            case "interrupt" if says(event, "ping"):
                self.fatal = True
                self.fail(event)
            case "answer" if says(event, "ping"):
                self.publish(status("pong", event.request_id))
            case "answer" if isinstance(event, ToolCallRequested):
                self.publish(event.completed("nested"))
                self.publish(event.failed("second"))
            case "leave":
                receiver.connected = False
            case "unplug" if says(event, "ping"):
                for each in self.receivers:
                    each.connected = each.connected and each.does != "quiet"
            case "plug" if says(event, "ping"):
                self.receivers.append(Receiver((Event,), "quiet"))
            case _:
                pass

    def publish(self, event: Event) -> bool:
        """Publish, in the model."""
        key = (event.request_id, getattr(event, "call_id", ""))
        if isinstance(event, TERMINAL):
            if key in self.open:
                self.requests[self.open[key]].append(event)
                self.settle(key)
            else:
                self.too_late(event, key)
                return False
        elif isinstance(event, (CancelRequested, SteeringAdded, ApprovalDecided, ToolCallPaused, ToolCallResumed)):
            nobody = event.request_id not in self.requests
            nobody = nobody or (isinstance(event, ApprovalDecided) and key not in self.questions)
            nobody = nobody or (isinstance(event, (ToolCallPaused, ToolCallResumed)) and key not in self.open)
            if nobody:
                self.bury(event)
                return False
            if isinstance(event, ApprovalDecided):
                self.questions.remove(key)
            self.requests[event.request_id].append(event)
        self.tell(event)
        return True

    def too_late(self, event: ToolCallCompleted | ToolCallFailed, key: Key) -> None:
        if key not in self.settled:
            self.bury(event)
            return
        self.late += 1
        policy = self.settled[key]
        if policy != "drop":
            ids = {
                "request_id": event.request_id,
                "call_id": event.call_id,
                "name": event.name,
                "event_type": event.type,
            }
            self.tell(ToolCallLate(**ids, content="", error="", for_next_turn=policy == "next_turn"))  # type: ignore[arg-type]

    def bury(self, event: Event) -> None:
        self.dead += 1
        letter = DeadLetter(
            event_type=event.type,
            rejected_event_id="",
            call_id=getattr(event, "call_id", ""),
            reason="",
            request_id=event.request_id,
        )
        self.tell(letter)

    def settle(self, key: Key) -> None:
        owner = self.open.pop(key)
        self.questions.discard(key)
        self.settled[key] = self.lates[owner]
        if len(self.settled) > MAX_SETTLED:
            del self.settled[next(iter(self.settled))]
        if (watch := self.watched.pop(key, None)) is not None:
            watch.append("settled")

    # ------------------------------------------------------------------------------------- both, compared

    def _publish(self, event: Event) -> None:
        expected = self.publish(event)
        came = self._run(lambda: self._bus.publish(event))
        self._compare(came, expected)

    def _compare(self, came: Any, expected: Any) -> None:
        fatal, self.fatal = self.fatal, False
        assert came is FATAL if fatal else came == expected

    def _receiver(self, kinds: tuple[type[Event], ...], does: str, to: Receiver | None = None) -> None:
        """Connect to the bus what the model has, or is to have."""
        own = to or Receiver(kinds, does)
        if to is None:
            self.receivers.append(own)

        def hear(event: Event) -> None:
            own.heard.append(said(event))
            match does:
                case "raise":
                    raise ValueError("of a receiver")
                case "interrupt" if says(event, "ping"):
                    raise KeyboardInterrupt
                case "answer" if says(event, "ping"):
                    self._bus.publish(status("pong", event.request_id))
                case "answer" if isinstance(event, ToolCallRequested):
                    self._bus.publish(event.completed("nested"))
                    self._bus.publish(event.failed("second"))
                case "leave":
                    own.disconnect()
                case "unplug" if says(event, "ping"):
                    for each in self.receivers:
                        if each.does == "quiet":
                            each.disconnect()
                case "plug" if says(event, "ping"):
                    fresh = [each for each in self.receivers if each.does == "quiet" and id(each) not in self.fired]
                    self._receiver((Event,), "quiet", fresh[0])
                case _:
                    pass

        self.fired[id(own)] = 1
        own.disconnect = self._bus.connect(kinds, hear)

    # ------------------------------------------------------------------------------------- what may happen

    @rule(
        kinds=st.sampled_from(KINDS),
        does=st.sampled_from(["quiet", "quiet", "raise", "interrupt", "answer", "answer", "leave", "unplug", "plug"]),
    )
    def connect(self, kinds: tuple[type[Event], ...], does: str) -> None:
        if sum(each.connected for each in self.receivers) < 6:
            self._receiver(kinds, does)

    @precondition(lambda self: any(each.connected for each in self.receivers))
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from([each for each in self.receivers if each.connected]))
        chosen.connected = False
        chosen.disconnect()
        chosen.disconnect()

    @rule(request_id=st.sampled_from(REQUESTS), text=st.sampled_from(["ping", "ping", "x", "bad", "end"]))
    def signal(self, request_id: str, text: str) -> None:
        self._publish(status(text, request_id))

    @rule(request_id=st.sampled_from(REQUESTS[:2]), message_id=st.sampled_from("mn"), texts=st.integers(1, 4))
    def stream(self, request_id: str, message_id: str, texts: int) -> None:
        for number in range(texts):
            self._publish(TextDelta(request_id=request_id, message_id=message_id, text=f"{number};"))

    @rule(
        request_id=st.sampled_from(REQUESTS),
        late=st.sampled_from(["event", "event", "next_turn", "drop"]),
        parent=st.sampled_from(["", *REQUESTS]),
    )
    def begin_request(self, request_id: str, late: LateResults, parent: str) -> None:
        above = [parent, *self.above.get(parent, [])]
        parent = "" if request_id in above else parent
        if request_id in self.requests:
            with pytest.raises(BusError):
                self._run(lambda: self._bus.arbitration.open_mailbox(request_id))
            return
        mailbox = self._run(lambda: self._bus.arbitration.open_mailbox(request_id, parent_id=parent))
        mailbox.late = late
        self._mailboxes[request_id] = mailbox
        self.requests[request_id] = []
        self.lates[request_id] = late
        if parent:
            self.above[request_id] = above

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def end_request(self, data: st.DataObject) -> None:
        """What it leaves open counts as settled."""
        self.end_request_of(data.draw(st.sampled_from(sorted(self.requests))))

    def end_request_of(self, request_id: str) -> None:
        self.drain(request_id)
        mailbox = self._mailboxes.pop(request_id)
        for _ in range(2):
            self._run(lambda: self._bus.arbitration.close_mailbox(mailbox))
        for key in [key for key, owner in self.open.items() if owner == request_id]:
            self.settle(key)
        del self.requests[request_id]
        self.above.pop(request_id, None)

    @rule(request_id=st.sampled_from(REQUESTS))
    def read_mailbox(self, request_id: str) -> None:
        if request_id in self.requests:
            self.drain(request_id)

    def drain(self, request_id: str) -> None:
        """Results and pauses of calls first, then what people asked, each in its order."""
        expected = self.requests[request_id]
        reports = [each for each in expected if isinstance(each, (*TERMINAL, ToolCallPaused, ToolCallResumed))]
        asked = [each for each in expected if each not in reports]
        came = self._run(self._mailboxes[request_id].drain)
        assert [said(each) for each in came] == [said(each) for each in reports + asked]
        expected.clear()

    @rule(request_id=st.sampled_from(REQUESTS), tell=st.booleans())
    def call(self, request_id: str, tell: bool) -> None:
        if request_id not in self.requests:
            return
        self.calls += 1
        call_id = f"call{self.calls}"
        self._run(lambda: self._bus.arbitration.open_calls(self._mailboxes[request_id], [call_id]))
        self.open[request_id, call_id] = request_id
        if tell:
            self._publish(requested((request_id, call_id)))

    @rule(data=st.data(), failed=st.booleans(), again=st.booleans())
    def answer(self, data: st.DataObject, failed: bool, again: bool) -> None:
        """A call that is open, was settled, or never was."""
        key = data.draw(self.keys())
        for _ in range(1 + again):
            event = requested(key)
            self._publish(event.failed("no") if failed else event.completed("yes"))

    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        self._claim(data.draw(self.keys()))

    def _claim(self, key: Key) -> None:
        is_open = key in self.open
        if is_open:
            self.settle(key)
        assert self._run(lambda: self._bus.arbitration.claim(*key)) is is_open
        assert not self._bus.arbitration.is_open(*key)

    @rule(data=st.data(), raising=st.booleans())
    def watch(self, data: st.DataObject, raising: bool) -> None:
        self._watch(data.draw(self.keys()), raising=raising)

    def _watch(self, key: Key, *, raising: bool) -> None:
        reported: list[str] = []
        expected: list[str] = []

        def settled() -> None:
            reported.append("settled")
            if raising:
                raise ValueError("of a watch")

        taken = key not in self.watched and key in self.open
        assert self._run(lambda: self._bus.arbitration.watch(*key, settled)) is taken
        if taken:
            self.watched[key] = expected
            self.watches.append((key, reported, expected))

    @rule(data=st.data())
    def unwatch(self, data: st.DataObject) -> None:
        self._unwatch(data.draw(self.keys()))

    def _unwatch(self, key: Key) -> None:
        self.watched.pop(key, None)
        self._run(lambda: self._bus.arbitration.unwatch(*key))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def ask_a_person(self, data: st.DataObject) -> None:
        self._ask(data.draw(st.sampled_from(sorted(self.open))))

    def _ask(self, key: Key) -> None:
        if key not in self.open:
            return
        question = ApprovalRequested(request_id=key[0], call_id=key[1], name="pay", arguments={}, timeout_seconds=1.0)
        self._run(lambda: self._bus.arbitration.open_approval(self._mailboxes[self.open[key]], question))
        self.questions.add(key)

    @rule(data=st.data(), approved=st.booleans(), again=st.booleans())
    def decide(self, data: st.DataObject, approved: bool, again: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.questions)) if self.questions else self.keys())
        for _ in range(1 + again):
            self._publish(ApprovalDecided(request_id=key[0], call_id=key[1], approved=approved))

    @rule(data=st.data(), kind=st.sampled_from([ToolCallPaused, ToolCallResumed]))
    def pause(self, data: st.DataObject, kind: type[ToolCallPaused | ToolCallResumed]) -> None:
        key = data.draw(self.keys())
        self._publish(kind(request_id=key[0], call_id=key[1]))

    @rule(request_id=st.sampled_from(REQUESTS), steer=st.booleans())
    def say(self, request_id: str, steer: bool) -> None:
        if steer:
            self._publish(SteeringAdded(request_id=request_id, text="faster"))
        else:
            self._publish(CancelRequested(request_id=request_id, reason="enough"))

    # Single steps seldom meet: these put some in a row that have to do with one another.

    @rule(
        request_id=st.sampled_from(REQUESTS),
        steps=st.lists(
            st.sampled_from(["tell", "ask", "decide", "complete", "fail", "claim", "watch", "pause", "unwatch"]),
            min_size=2,
            max_size=6,
        ),
    )
    def live_a_call(self, request_id: str, steps: list[str]) -> None:
        """One call, to which these things happen in a row."""
        if request_id not in self.requests:
            self.begin_request(request_id, "drop" if len(steps) % 2 else "event", "a" if request_id != "a" else "")
        self.call(request_id, False)
        key = (request_id, f"call{self.calls}")
        for each in steps:
            match each:
                case "tell":
                    self._publish(requested(key))
                case "ask":
                    self._ask(key)
                case "decide":
                    self._publish(ApprovalDecided(request_id=request_id, call_id=key[1], approved=True))
                case "complete":
                    self._publish(requested(key).completed("yes"))
                case "fail":
                    self._publish(requested(key).failed("no"))
                case "claim":
                    self._claim(key)
                case "watch":
                    self._watch(key, raising=False)
                case "unwatch":
                    self._unwatch(key)
                case _:
                    self._publish(ToolCallPaused(request_id=request_id, call_id=key[1]))
            self.every_watch_was_told_once_if_its_call_was_settled()

    @rule(
        several=st.lists(
            st.sampled_from(["quiet", "raise", "answer", "leave", "unplug", "plug", "interrupt"]),
            min_size=2,
            max_size=4,
        ),
        texts=st.lists(st.sampled_from(["ping", "x"]), min_size=1, max_size=3),
    )
    def listen_and_hear(self, several: list[str], texts: list[str]) -> None:
        """Several receivers at once, and what they do to one another."""
        for each in several:
            self.connect((Event,), each)
        for text in texts:
            self.signal("a", text)
        if sum(each.connected for each in self.receivers) > 4:
            for each in self.receivers:
                each.connected = False
                each.disconnect()

    @rule(
        data=st.data(),
        overflow=st.sampled_from(["drop_oldest", "drop_newest", "coalesce", "disconnect"]),
        capacity=st.integers(1, 4),
        events=st.lists(st.sampled_from("mmnxxf"), min_size=3, max_size=14),
        request_id=st.sampled_from([None, "a", "c"]),
    )
    def overflow(
        self, data: st.DataObject, overflow: Overflow, capacity: int, events: list[str], request_id: str | None
    ) -> None:
        """A subscription that is slow: signals, deltas of two messages, and facts."""
        self.subscribe((Event,), request_id, request_id is not None, False, False, capacity, overflow)
        parent = ["a", "b"][len(events) % 2]
        self.begin_request("d", "event", parent)
        for number, each in enumerate(events):
            if each == "f":
                self.say("d", True)
            elif each == "x":
                self.signal(REQUESTS[number % 4], "x")
            else:
                self._publish(TextDelta(request_id="d", message_id=each, text=f"{number};"))
        self.read(data, len(events) // 2, False)
        if len(events) % 3 == 0:
            self.end_request_of("d")

    def keys(self) -> st.SearchStrategy[Key]:
        some = [*self.open, *self.settled, *self.watched, ("a", "call1"), ("d", "call0")]
        return st.sampled_from(sorted(set(some)))

    # ------------------------------------------------------------------------------------- slow listeners

    @rule(
        kinds=st.sampled_from(KINDS),
        request_id=st.none() | st.sampled_from(REQUESTS[:3]),
        family=st.booleans(),
        picky=st.booleans(),
        leaving=st.booleans(),
        capacity=st.integers(1, 4),
        overflow=st.sampled_from(["drop_oldest", "drop_newest", "coalesce", "disconnect"]),
    )
    def subscribe(
        self,
        kinds: tuple[type[Event], ...],
        request_id: str | None,
        family: bool,
        picky: bool,
        leaving: bool,
        capacity: int,
        overflow: Overflow,
    ) -> None:
        if sum(each.is_open for each in self.listeners) >= 5:
            return
        family = family and request_id is not None

        def where(event: Event) -> bool:
            if says(event, "bad"):
                raise ValueError("of a predicate")
            return True

        subscription = self._bus.subscribe(
            *kinds,
            request_id=request_id,
            sub_requests=family,
            where=where if picky else None,
            until=(lambda event: says(event, "end")) if leaving else None,
            capacity=capacity,
            overflow=overflow,
        )
        self._run(subscription.open)
        self.listeners.append(Listener(kinds, request_id, family, picky, leaving, capacity, overflow, subscription))

    @precondition(lambda self: self.listeners)
    @rule(data=st.data(), count=st.integers(1, 5), awaiting=st.booleans())
    def read(self, data: st.DataObject, count: int, awaiting: bool) -> None:
        listener = data.draw(st.sampled_from(self.listeners))
        for _ in range(count):
            waits = listener.is_open and not listener.inside
            expected = listener.take()
            came = self._read(listener.subscription, awaiting=awaiting and not waits)
            assert came == expected
            assert listener.subscription.position == listener.position

    def _read(self, subscription: Subscription, *, awaiting: bool) -> Any:
        try:
            event = self._await(anext(subscription)) if awaiting else self._run(subscription.receive_nowait)  # type: ignore[arg-type]
        except StopAsyncIteration:
            return None
        except (SubscriptionOverflow, BusError) as exc:
            return type(exc)
        if isinstance(event, SubscriberLagged):
            return ("gap", event.first_position, event.last_position, event.count)
        return None if event is None else said(event)

    @precondition(lambda self: any(each.is_open for each in self.listeners))
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        listener = data.draw(st.sampled_from([each for each in self.listeners if each.is_open]))
        listener.is_open = False
        for _ in range(2):
            self._run(listener.subscription.close)

    @precondition(lambda self: any(not each.is_open for each in self.listeners))
    @rule()
    def enter_what_has_ended(self) -> None:
        """What has ended stays ended."""
        for each in self.listeners:
            if not each.is_open:
                self._run(each.subscription.open)

    # ------------------------------------------------------------------------------------- what has to hold

    @invariant()
    def every_receiver_has_heard_what_it_had_to_in_order(self) -> None:
        for each in self.receivers:
            assert each.heard == each.expected

    @invariant()
    def every_watch_was_told_once_if_its_call_was_settled(self) -> None:
        for key, reported, expected in self.watches:
            assert reported == expected, key

    @invariant()
    def the_numbers_are_the_models(self) -> None:
        found = self._bus.statistics()
        assert (found.position, self._bus.statistics().position) == (self.position, self.position)
        assert (found.late_results, found.dead_letters, found.receiver_failures) == (
            self.late,
            self.dead,
            self.failures,
        )
        assert (found.mailboxes, found.open_calls) == (len(self.requests), len(self.open))
        assert found.settled_remembered == len(self.settled) <= MAX_SETTLED
        assert found.open_calls_peak >= found.open_calls
        assert len(found.subscriptions) == sum(each.is_open for each in self.listeners)
        for request_id, mailbox in self._mailboxes.items():
            assert len(mailbox.open_calls) == sum(owner == request_id for owner in self.open.values())
            assert len(mailbox) == len(self.requests[request_id])

    @invariant()
    def every_subscription_accounts_for_each_event(self) -> None:
        for each in self.listeners:
            found = each.subscription.statistics()
            inside = sum(entry.event is not None for entry in each.inside)
            # What is merged counts as such when it was delivered, and its entry as one event inside until then.
            assert (found.matched, found.delivered, found.merged, found.dropped, found.buffered) == (
                each.matched,
                each.delivered,
                each.merged,
                each.dropped,
                inside,
            )
            assert found.matched == found.delivered + found.merged + found.dropped + found.buffered
            assert found.peak <= each.capacity

    @invariant()
    def the_bus_knows_what_somebody_wants_to_hear(self) -> None:
        for kind in (StatusChanged, ToolCallLate):
            sample = status("x", "b") if kind is StatusChanged else letter("b")
            wanted = any(each.connected and each.hears(sample) for each in self.receivers)
            wanted = wanted or any(isinstance(sample, each.kinds) for each in self.hearing(sample))
            assert self._bus.arbitration.wants(kind, "b") is wanted

    def teardown(self) -> None:
        """Everything is read to its end, and then nothing is left."""
        for each in self.listeners:
            each.is_open = False
            each.subscription.close()
            while (expected := each.take()) is not None:
                assert self._read(each.subscription, awaiting=False) == expected
                if isinstance(expected, type):
                    break
        for request_id in [*self.requests]:
            self.drain(request_id)
            self._bus.arbitration.close_mailbox(self._mailboxes[request_id])
        for each in self.receivers:
            each.disconnect()
        found = self._bus.statistics()
        assert (found.mailboxes, found.open_calls, found.receivers, found.subscriptions) == (0, 0, 0, ())
        assert not self._bus.arbitration.wants(StatusChanged, "b")
        self._loop.close()


def status(text: str, request_id: str) -> StatusChanged:
    return StatusChanged(stage="executing", text=text, request_id=request_id)


def letter(request_id: str) -> ToolCallLate:
    return ToolCallLate(
        request_id=request_id,
        call_id="",
        name="",
        event_type="tool_call_failed",
        content="",
        error="",
        for_next_turn=False,
    )


def requested(key: Key) -> ToolCallRequested:
    return ToolCallRequested(
        request_id=key[0],
        call_id=key[1],
        name="look_up",
        arguments={},
        round=0,
        timeout_seconds=1.0,
        idempotency_key="",
    )


@pytest.mark.guarantee("G01", "G02", "G03", "G04", "G05", "G06", "G07")
class TestAnyBus(AnyBus.TestCase):
    settings = settings(
        stateful_step_count=30,
        suppress_health_check=[HealthCheck.too_slow],
    )
