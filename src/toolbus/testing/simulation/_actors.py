"""The other actors on a process's bus: people, strangers who answer calls, and listeners. All are unreliable."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio

from ...errors import SubscriptionOverflow
from ...events import (
    FACT_TYPES,
    ApprovalRequested,
    CancelRequested,
    Event,
    RequestResumed,
    RequestStarted,
    SteeringAdded,
    TerminalEvent,
    ToolCallCompleted,
    ToolCallProgress,
    ToolCallRequested,
)
from ._chance import Chance
from ._people import People
from ._tools import EXTERNAL
from ._watch import OUTSIDE

if TYPE_CHECKING:
    from ._process import Process


class Actors:
    """The actors of one process; they live as long as the process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._bus = process.bus
        self._faults = process.world.faults
        self._dropping: set[str] = set()  # requests with late_results="drop"

    def listen(self) -> None:
        """Connect to the bus, before anything is published on it."""
        bus, chance = self._bus, self._chance("listeners")
        bus.connect(RequestStarted, self._on_begun)
        bus.connect(RequestResumed, self._on_begun)
        bus.connect(ApprovalRequested, self._on_question)
        bus.connect(ToolCallRequested, self._on_requested)
        if chance.says(0.5):
            bus.connect(chance.pick(FACT_TYPES), self._raising("one"))
            bus.connect(Event, self._raising("all"))
        if chance.says(0.5):
            bus.connect(ToolCallRequested, self._talking)
        self._people = People(
            self._world,
            self._process.group,
            self._process.watch,
            self._process.runtime.request,
            self._process.named("at the runtime"),
        )
        for answers in self._world.answers.values():
            self._give(answers)  # early: the calls are not requested again yet
        for number in range(chance.whole(0, 2)):
            self._process.group.start_soon(self._subscriber, f"subscriber {number}")

    def _chance(self, name: str) -> Chance:
        return self._world.chance(self._process.named(name))

    # ------------------------------------------------------------------------------------------------------ people

    def _on_begun(self, event: RequestStarted | RequestResumed) -> None:
        """Make people's plans for a request that begins or is resumed: to steer it, or to cancel it."""
        chance = self._chance(f"people {event.request_id}")
        view = self._bus.arbitration.view(event.request_id)
        if view is None:
            return
        if view.options.get("late_results") == "drop":
            self._dropping.add(event.request_id)
        if self._process.world.has_inbox and isinstance(event, RequestStarted) and not event.parent_request_id:
            self._people.plan(event.request_id)
        if chance.says(0.2):
            self._process.group.start_soon(self._steer, event, self._world.moment(chance, self._world.model_seconds))
        if chance.says(0.2):
            self._process.group.start_soon(self._cancel, event, self._world.moment(chance, self._world.tool_seconds))

    async def _steer(self, begun: Event, moment: float) -> None:
        await anyio.sleep_until(moment)
        if self._bus.arbitration.view(begun.request_id) is not None:
            self._faults["steered"] += self._bus.publish(
                SteeringAdded(**self._addressed(begun), text=f"hurry {self._world.secret}")
            )

    async def _cancel(self, begun: Event, moment: float) -> None:
        await anyio.sleep_until(moment)
        if self._bus.arbitration.view(begun.request_id) is not None:
            self._faults["cancelled"] += self._bus.publish(
                CancelRequested(**self._addressed(begun), reason=f"never mind {self._world.secret}")
            )

    def _addressed(self, begun: Event) -> dict[str, Any]:
        return {"request_id": begun.request_id, "conversation_id": begun.conversation_id}

    def _on_question(self, event: ApprovalRequested) -> None:
        """Let a person answer a question: once, twice, or never."""
        chance = self._chance(f"approval {event.call_id}")
        for _ in range(chance.pick([1, 1, 1, 2, 0])):
            self._process.group.start_soon(
                self._decide, event, self._world.moment(chance, self._world.approval_seconds), chance
            )

    async def _decide(self, event: ApprovalRequested, moment: float, chance: Chance) -> None:
        await anyio.sleep_until(moment)
        self._faults["decided"] += 1
        edited = {**event.arguments, "n": 7} if chance.says(0.2) else None
        decided = event.decided(approved=chance.says(0.7), arguments=edited, remember=chance.says(0.5))
        if self._bus.publish(decided) and decided.approved and decided.remember:
            self._process.watch.trusts(event.request_id)

    # --------------------------------------------------------------------------------------------------- strangers

    def _on_requested(self, event: ToolCallRequested) -> None:
        """Let strangers answer: external calls early, late, twice or never, and sometimes the calls of other tools."""
        chance = self._chance(f"stranger {event.call_id}")
        if event.name in EXTERNAL:
            self._give(self._answers_of(event))
        elif not self._world.is_quiet and chance.says(0.1):
            moment = self._world.moment(chance, event.timeout_seconds)
            self._process.group.start_soon(self._publish, self._answer(event, chance), moment)
        if not self._world.is_quiet and chance.says(0.03):
            stray = ToolCallCompleted(request_id=event.request_id, call_id="nobody's", name="x", content="x")
            self._process.group.start_soon(self._publish, stray)

    def _answers_of(self, event: ToolCallRequested) -> list[tuple[float, TerminalEvent]]:
        """Return the answers to an external call, with their times: the same in each process that requests it."""
        known = self._world.answers
        if event.call_id not in known:
            chance = self._world.chance(f"outside {event.call_id}")
            known[event.call_id] = [
                (self._world.moment(chance, event.timeout_seconds), self._answer(event, chance))
                for _ in range(chance.pick([1, 1, 1, 2, 0]))
            ]
        return known[event.call_id]

    def _give(self, answers: list[tuple[float, TerminalEvent]]) -> None:
        for moment, answer in answers:
            self._process.group.start_soon(self._publish, answer, moment)

    def _answer(self, event: ToolCallRequested, chance: Chance) -> TerminalEvent:
        secret = self._world.secret
        if chance.says(0.8):
            return event.completed(f"{OUTSIDE} {secret}".strip())
        return event.failed(f"gone {secret}", reason="lost")

    async def _publish(self, event: TerminalEvent, moment: float = 0.0) -> None:
        """Publish an answer, and check that it is accepted, becomes a dead letter, or is dropped as requested."""
        await anyio.sleep_until(moment)
        letters = self._process.watch.letters
        if not self._bus.publish(event):
            self._faults["answered too late, or to nobody"] += 1
            waits = self._process.watch.journal is not None  # the answer waits for the append of earlier facts
            is_seen = self._process.watch.letters > letters or waits or event.request_id in self._dropping
            self._process.watch.note("G05", is_seen, f"{event.type} of {event.call_id} vanished")

    # --------------------------------------------------------------------------------------------------- listeners

    def _raising(self, name: str) -> Callable[[Event], None]:
        """Return a receiver that sometimes raises."""
        chance = self._chance(f"receiver {name}")

        def receive(event: Event) -> None:
            if chance.says(0.05):
                self._faults["receiver raised"] += 1
                raise RuntimeError(f"{name} cannot hear {event.type}")

        return receive

    def _talking(self, event: Event) -> None:
        """Answer an event with an event."""
        if isinstance(event, ToolCallRequested) and event.round == 0:
            self._bus.publish(
                ToolCallProgress(request_id=event.request_id, call_id=event.call_id, name=event.name, message="heard")
            )

    async def _subscriber(self, name: str) -> None:
        """Read events, slowly or not at all."""
        chance = self._chance(f"subscriber {name}")
        kinds = [] if chance.says(0.5) else [chance.pick(FACT_TYPES)]
        subscription = self._bus.subscribe(
            *kinds,
            capacity=chance.pick([1, 3, 1_000]),
            overflow=chance.pick(["drop_oldest", "drop_newest", "coalesce", "disconnect"]),
            name=name,
        )
        hangs, seconds = chance.says(0.2), chance.pick([0.0, 0.0, 0.3])
        position = 0
        async with subscription:
            if hangs:
                self._faults["subscriber hangs"] += 1
                await anyio.sleep_forever()
            try:
                async for _ in subscription:
                    self._process.watch.note(
                        "G01", subscription.position > position, f"{name} reads events out of order"
                    )
                    position = subscription.position
                    if seconds:
                        await anyio.sleep(seconds)
            except SubscriptionOverflow:
                self._faults["subscriber overflowed"] += 1
