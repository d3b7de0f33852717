"""A simulated world around a real runtime: a model, people, strangers, listeners and a store, none of them reliable.

Every actor draws its decisions from a `Chance` of its own, named after what it decides on, so that equal seeds give
equal worlds. Time is virtual. What the actors do is legal: a broken invariant is never theirs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import anyio
import orjson

from ...bus import EventBus
from ...core.compression import Compression
from ...core.limits import Limits
from ...errors import ProviderRejected, ProviderUnavailable, SubscriptionOverflow
from ...events import (
    FACT_TYPES,
    ApprovalRequested,
    Event,
    RequestStarted,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallProgress,
    ToolCallRequested,
)
from ...messages import AssistantMessage, Message, ToolCall, Usage
from ...protocols import ArgumentsPiece, Emit, ModelReply, ModelRequest, TextPiece
from ...stores.memory import MemoryStore
from ._chance import Chance
from ._tools import TOOLS

if TYPE_CHECKING:
    import anyio.abc

    from ...session import RequestSession
    from ._watch import Watch

__all__ = ["World"]

_BEATS = 2  # moments in a second at which much happens at once
_NAMES = [each.name for each in TOOLS]
_ARGUMENTS = {"good": 8.0, "wrong": 0.5, "broken": 0.5, "more": 0.3}


class World:
    """What a seed makes of the world."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        chance = self.chance("world")
        self.watch: Watch
        self.group: anyio.abc.TaskGroup
        self.bus = EventBus(max_settled=chance.pick([1, 10_000]))
        self.faults: Counter[str] = Counter()
        self.dropping: set[str] = set()  # requests that want no late results
        self.tool_seconds = chance.pick([0.5, 2.0, 5.0])
        self.model_seconds = chance.pick([1.0, 4.0, 10.0])
        self.approval_seconds = chance.pick([3.0, 20.0])
        self.favourite = chance.pick(_NAMES)  # of the model's, so that a world shows much of one kind
        self.is_quiet = chance.says(0.4)  # nobody races the tools and the people
        self.requests = chance.whole(1, 5)
        self.conversations = chance.whole(1, 2)
        self.places = chance.pick([1, 2, 8])
        self.workers = chance.pick([1, 2, 8])
        self.window = chance.pick([None, None, None, 900, 2500])
        self.leaves_early = chance.says(0.15)
        self.store = Store(self, journals=chance.says(0.4))
        self.model = Model(self)
        self.tools_below = TOOLS[:3] if chance.says(0.7) else TOOLS

    def chance(self, name: str) -> Chance:
        """The decisions on `name`."""
        return Chance(self.seed, name)

    def limits(self, name: str) -> Limits:
        """Limits for a request: narrow ones, so that they are met."""
        chance = self.chance(f"limits {name}")
        return Limits(
            timeout_seconds=chance.pick([4.0, 30.0, 120.0]),
            tool_timeout_seconds=self.tool_seconds,
            model_timeout_seconds=self.model_seconds,
            stream_idle_seconds=self.model_seconds / 2,
            approval_timeout_seconds=self.approval_seconds,
            max_rounds=chance.whole(1, 5),
            max_tool_calls=chance.pick([1, 4, 100]),
            max_calls_per_round=chance.pick([2, 64]),
            max_consecutive_errors=chance.pick([1, 3, 9]),
            on_limit=chance.pick(["answer", "stop"]),
            on_failure=chance.pick(["collect", "collect", "collect", "fail_fast"]),
        )

    def options(self, name: str) -> dict[str, Any]:
        """Options for a request."""
        chance = self.chance(f"options {name}")
        return {
            "limits": self.limits(name),
            "late_results": chance.pick(["event", "event", "drop", "next_turn"]),
            "note_failures": chance.says(0.2),
            "approval": chance.pick([None, None, False]) if chance.says(0.2) else None,
            "compression": None if self.window is None else Compression(max_context_tokens=self.window, keep_turns=1),
        }

    def moment(self, chance: Chance, deadline: float) -> float:
        """A moment to do something, around a deadline from now; often one at which others do something too."""
        then = anyio.current_time() + chance.around(deadline)
        return math.ceil(then * _BEATS) / _BEATS if chance.says(0.3) else then

    # ------------------------------------------------------------------------------------------------------ people

    def on_started(self, event: RequestStarted) -> None:
        """People and the host have plans for each request that begins."""
        chance = self.chance(f"people {event.request_id}")
        view = self.bus.view(event.request_id)
        if view is None:
            return
        if view.options.get("late_results") == "drop":
            self.dropping.add(event.request_id)
        session = cast("RequestSession", view)  # every view in this process is one
        if chance.says(0.2):
            self.group.start_soon(self._steer, session, self.moment(chance, self.model_seconds))
        if chance.says(0.2):
            self.group.start_soon(self._cancel, session, self.moment(chance, self.tool_seconds))

    async def _steer(self, session: RequestSession, moment: float) -> None:
        await anyio.sleep_until(moment)
        self.faults["steered"] += session.steer("hurry")

    async def _cancel(self, session: RequestSession, moment: float) -> None:
        await anyio.sleep_until(moment)
        self.faults["cancelled"] += session.cancel("never mind")

    def on_question(self, event: ApprovalRequested) -> None:
        """Somebody is asked: he answers, or not, or twice."""
        chance = self.chance(f"approval {event.call_id}")
        for _ in range(chance.pick([1, 1, 1, 2, 0])):
            self.group.start_soon(self._decide, event, self.moment(chance, self.approval_seconds), chance)

    async def _decide(self, event: ApprovalRequested, moment: float, chance: Chance) -> None:
        await anyio.sleep_until(moment)
        self.faults["decided"] += 1
        edited = {**event.arguments, "n": 7} if chance.says(0.2) else None
        approved = chance.says(0.7)
        self.bus.publish(event.decided(approved=approved, arguments=edited, remember=chance.says(0.2)))

    # --------------------------------------------------------------------------------------------------- strangers

    def on_requested(self, event: ToolCallRequested) -> None:
        """Whoever answers calls from elsewhere: late, twice, or never; and one who answers calls of others."""
        chance = self.chance(f"stranger {event.call_id}")
        if event.name == "outside":
            for _ in range(chance.pick([1, 1, 1, 2, 0])):
                self.group.start_soon(self._answer, event, self.moment(chance, event.deadline), chance)
        elif not self.is_quiet and chance.says(0.1):
            self.group.start_soon(self._answer, event, self.moment(chance, event.deadline), chance)
        if not self.is_quiet and chance.says(0.03):
            stray = ToolCallCompleted(request_id=event.request_id, call_id="nobody's", name="x", content="x")
            self.group.start_soon(self._publish, stray)

    async def _answer(self, event: ToolCallRequested, moment: float, chance: Chance) -> None:
        await anyio.sleep_until(moment)
        await self._publish(
            event.completed("from outside") if chance.says(0.8) else event.failed("gone", reason="lost")
        )

    async def _publish(self, event: ToolCallCompleted | ToolCallFailed) -> None:
        """Nothing vanishes: an answer is taken, or becomes a letter that all can see, unless they want to drop it."""
        letters = self.watch.letters
        if not self.bus.publish(event):
            self.faults["answered too late, or to nobody"] += 1
            told = self.watch.letters > letters or event.request_id in self.dropping
            self.watch.note("G05", told, f"{event.type} of {event.call_id} vanished")

    # --------------------------------------------------------------------------------------------------- listeners

    def raising(self, name: str) -> Callable[[Event], None]:
        """A receiver that raises at times."""
        chance = self.chance(f"receiver {name}")

        def receive(event: Event) -> None:
            if chance.says(0.05):
                self.faults["receiver raised"] += 1
                raise RuntimeError(f"{name} cannot hear {event.type}")

        return receive

    def talking(self, event: Event) -> None:
        """A receiver that answers an event with an event."""
        if isinstance(event, ToolCallRequested) and event.round == 0:
            self.bus.publish(
                ToolCallProgress(request_id=event.request_id, call_id=event.call_id, name=event.name, message="heard")
            )

    async def subscriber(self, name: str) -> None:
        """Reads events, slowly or not at all."""
        chance = self.chance(f"subscriber {name}")
        kinds = [] if chance.says(0.5) else [chance.pick(FACT_TYPES)]
        subscription = self.bus.subscribe(
            *kinds,
            capacity=chance.pick([1, 3, 1_000]),
            overflow=chance.pick(["drop_oldest", "drop_newest", "coalesce", "disconnect"]),
            name=name,
        )
        hangs, seconds = chance.says(0.2), chance.pick([0.0, 0.0, 0.3])
        position = 0
        async with subscription:
            if hangs:
                self.faults["subscriber hangs"] += 1
                await anyio.sleep_forever()
            try:
                async for _ in subscription:
                    self.watch.note("G01", subscription.position > position, f"{name} reads events out of order")
                    position = subscription.position
                    if seconds:
                        await anyio.sleep(seconds)
            except SubscriptionOverflow:
                self.faults["subscriber overflowed"] += 1


class Model:
    """A model that says anything that a model may say, when it likes."""

    vendor = "simulated"
    model = "any"

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked: Counter[str] = Counter()

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """See `Provider`."""
        world = self._world
        world.watch.sent(request.messages)
        self._asked[request.request_id] += 1
        chance = world.chance(f"model {request.request_id} {self._asked[request.request_id]}")
        if chance.says(0.08):
            await self._fail(chance)
        if chance.says(0.2):
            await anyio.sleep_until(world.moment(chance, world.model_seconds))
        else:
            await anyio.sleep(chance.below(0.2))
        reply = self._reply(request, chance)
        for piece in (reply.message.text[:4], reply.message.text[4:]):
            if piece:
                emit(TextPiece(piece))
                if chance.says(0.1):
                    await anyio.sleep(chance.around(world.model_seconds / 2))
        for index, call in enumerate(reply.message.tool_calls):
            emit(ArgumentsPiece(index, call.name, call.arguments))
        return reply

    async def _fail(self, chance: Chance) -> None:
        world = self._world
        world.faults["model failed"] += 1
        await anyio.sleep(chance.below(0.1))
        if chance.says(0.1):
            raise ProviderRejected("no such model", vendor="simulated", status=404)
        wait = chance.pick([None, None, 1.0, 100.0])
        raise ProviderUnavailable("busy", vendor="simulated", retryable=True, retry_after_seconds=wait)

    def _reply(self, request: ModelRequest, chance: Chance) -> ModelReply:
        usage = Usage(input_tokens=chance.whole(1, 99), output_tokens=chance.whole(1, 9))
        calls: tuple[ToolCall, ...] = ()
        text = ""
        if request.tools and chance.says(0.75):
            calls = tuple(self._call(chance, index) for index in range(chance.pick([1, 1, 2, 3, 4])))
        if not calls or chance.says(0.3):
            text = "" if chance.says(0.08) else f"said {request.round} " * chance.pick([1, 1, 40])
        return ModelReply(
            message=AssistantMessage(text=text, tool_calls=calls), usage=usage, vendor=self.vendor, model=self.model
        )

    def _call(self, chance: Chance, index: int) -> ToolCall:
        name = self._world.favourite if chance.says(0.3) else chance.pick(_NAMES)
        if chance.says(0.04):
            name = "unknown"
        arguments = orjson.dumps({"n": chance.whole(0, 3)}).decode()
        kind = chance.weighted(_ARGUMENTS)
        if kind == "wrong":
            arguments = '{"n":"many"}'
        elif kind == "broken":
            arguments = '{"n":'
        elif kind == "more":
            arguments = '{"n":1,"extra":true}'
        return ToolCall(name=name, arguments=arguments, provider_call_id=chance.pick(["", "call", f"call_{index}"]))


class Store:
    """Conversations in memory, and perhaps a journal; slow at times, and at times out of order."""

    def __init__(self, world: World, *, journals: bool) -> None:
        self._world = world
        self._chance = world.chance("store")
        self._memory = MemoryStore()
        self._fails = self._chance.says(0.3)
        self.journal: Store | None = self if journals else None
        self._written: dict[str, list[Event]] = {}
        self._durable: set[str] = set()
        self.broken: set[str] = set()  # requests of which an append has failed

    def is_durable(self, fact: Event) -> bool:
        """Whether the journal has this fact."""
        return fact.event_id in self._durable

    def facts(self, request_id: str) -> Sequence[Event]:
        """What was written of a request, in order."""
        return self._written.get(request_id, ())

    def has_failed(self, request_id: str) -> bool:
        """Whether an append for this request has failed."""
        return request_id in self.broken

    async def append(self, request_id: str, seq: int, facts: Sequence[Event]) -> None:
        """See `Journal`."""
        chance = self._chance
        self._world.watch.note(
            "G01", seq == len(self.facts(request_id)), f"the journal of {request_id} has a gap at {seq}"
        )
        self._world.watch.note("G11", request_id not in self.broken, f"{request_id} goes on after its journal failed")
        try:
            if chance.says(0.2):
                await anyio.sleep(chance.pick([0.1, 4.0, 6.0] if self._fails else [0.01, 0.5]))
            self._maybe_full(0.05)
        except BaseException:
            self.broken.add(request_id)
            self._world.faults["journal failed"] += 1
            raise
        self._written.setdefault(request_id, []).extend(facts)
        self._durable.update(fact.event_id for fact in facts)

    def _maybe_full(self, probability: float) -> None:
        if self._fails and self._chance.says(probability):
            raise OSError(28, "no space left")

    async def history(self, conversation_id: str) -> Sequence[Message]:
        """See `Store`."""
        if self._chance.says(0.1):
            await anyio.sleep(self._chance.below(1.0))
        return await self._memory.history(conversation_id)

    async def remember(self, conversation_id: str, messages: Sequence[Message]) -> None:
        """See `Store`."""
        self._maybe_full(0.1)
        await self._memory.remember(conversation_id, messages)

    async def aclose(self) -> None:
        """See `Store`."""
