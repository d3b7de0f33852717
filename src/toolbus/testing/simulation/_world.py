"""A simulated world: everything that is drawn from a seed, and the model. Actors keep the rules of toolbus.

Every actor draws its decisions from a `Chance` of its own, named after the decision, so that equal seeds make equal
worlds. Time is virtual.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio
import orjson

from ...core.compression import Compression
from ...core.limits import Limits
from ...errors import ProviderRejected, ProviderUnavailable
from ...events import ToolCallCompleted, ToolCallFailed
from ...messages import AssistantMessage, ToolCall, Usage
from ...protocols import ArgumentsPiece, Emit, ModelReply, ModelRequest, TextPiece
from ...records import replace
from ._chance import Chance
from ._disk import Disk
from ._guard import Guard
from ._plans import Plan, plans_of
from ._tools import PROCESS, TOOLS, show

if TYPE_CHECKING:
    from ._people import Command

__all__ = ["World"]

_BEATS = 2  # times in a second at which many things happen at once
_NAMES = [each.name for each in TOOLS]
_ARGUMENTS = {"good": 8.0, "wrong": 0.5, "broken": 0.5, "more": 0.3}


class World:
    """A world that is drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        chance = self.chance("world")
        self.max_settled = chance.pick([1, 10_000])
        self.faults: Counter[str] = Counter()
        # What whoever answers external calls has decided on each: moments and answers. It outlives all processes.
        self.answers: dict[str, list[tuple[float, ToolCallCompleted | ToolCallFailed]]] = {}
        self.tool_seconds = chance.pick([0.5, 2.0, 5.0])
        self.model_seconds = chance.pick([1.0, 4.0, 10.0])
        self.approval_seconds = chance.pick([3.0, 20.0])
        self.favourite = chance.pick(_NAMES)  # the model's favourite tool, so that a world shows much of one kind
        self.is_quiet = chance.says(0.4)  # strangers do not race with tools and people
        self.requests = chance.whole(1, 5)
        self.conversations = chance.whole(1, 2)
        self.max_sessions = chance.pick([1, 2, 8])
        self.workers = chance.pick([1, 2, 8])
        self.window = chance.pick([None, None, None, 900, 2500])
        self.disk = Disk(self, journals=chance.says(0.45))
        self.has_inbox = self.disk.journals and chance.says(0.5)
        self.park_after_seconds = chance.pick([None, 0.1, 0.5]) if self.has_inbox else None
        self.commands: list[Command] = []  # through handles
        self.lease_seconds = chance.pick([2.0, 10.0, 30.0])
        self.plans: list[Plan] = plans_of(self.chance("plans"), self.model_seconds, journals=self.disk.journals)
        if len(self.plans) > 1 and chance.says(0.3):
            self.favourite = "risky"  # a question is open when the process dies
        self.model = Model(self)
        self.has_archivist = self.chance("archivist").says(0.3)
        self.interceptors = [Guard(self)] if self.chance("guard").says(0.2) else []
        # Only some worlds have the tool that answers, since an answer ends what else might happen.
        self.tools = (*TOOLS, show) if self.chance("show").says(0.3) else TOOLS
        self.tools_below = TOOLS[:3] if chance.says(0.7) else self.tools

    def chance(self, name: str) -> Chance:
        """Return the chance for decisions on `name`."""
        return Chance(self.seed, name)

    def limits(self, name: str) -> Limits:
        """Return limits for a request: narrow ones, so that requests reach them."""
        chance = self.chance(f"limits {name}")
        return Limits(
            timeout_seconds=chance.pick([4.0, 30.0, 120.0]),
            tool_timeout_seconds=self.tool_seconds,
            model_timeout_seconds=self.model_seconds,
            stream_idle_seconds=self.model_seconds / 2,
            approval_timeout_seconds=self.approval_seconds,
            background_timeout_seconds=2 * self.tool_seconds,
            max_rounds=chance.whole(1, 5),
            max_facts=chance.pick([20, 10_000, 10_000, 10_000]),
            max_tool_calls=chance.pick([1, 4, 100]),
            max_calls_per_round=chance.pick([2, 64]),
            max_consecutive_errors=chance.pick([1, 3, 9]),
            on_limit=chance.pick(["answer", "stop"]),
            on_failure=chance.pick(["collect", "collect", "collect", "fail_fast"]),
        )

    def options(self, name: str) -> dict[str, Any]:
        """Return options for a request."""
        chance = self.chance(f"options {name}")
        return {
            "limits": self.limits(name),
            "late_results": chance.pick(["event", "event", "drop", "next_turn"]),
            "note_failures": chance.says(0.2),
            "needs_approval": chance.pick([None, None, False]) if chance.says(0.2) else None,
            "compression": self.compression,
        }

    @property
    def compression(self) -> Compression | None:
        """The compression of histories, if the world has one."""
        return None if self.window is None else Compression(max_context_tokens=self.window, keep_turns=1)

    def moment(self, chance: Chance, deadline: float) -> float:
        """Return a time to do something, around a deadline from now; often a time at which others do something too."""
        then = anyio.current_time() + chance.around(deadline)
        return math.ceil(then * _BEATS) / _BEATS if chance.says(0.3) else then


class Model:
    """A model that returns any reply that a model may return, at any time."""

    vendor = "simulated"
    model = "any"

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked: Counter[str] = Counter()

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Implement `Provider`."""
        world = self._world
        process = PROCESS.get()
        process.watch.sent(request.messages)
        if process.has_turns:
            world.disk.archive.check_sent(process.watch, request.request_id, request.messages)
        self._asked[request.request_id] += 1
        chance = world.chance(f"model {request.request_id} {self._asked[request.request_id]}")
        if chance.says(0.08):
            await self._fail(chance)
        if chance.says(0.2):
            await anyio.sleep_until(world.moment(chance, world.model_seconds))
        else:
            await anyio.sleep(chance.below(0.2))
        reply = self._reply(request, chance, self._asked[request.request_id])
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

    def _reply(self, request: ModelRequest, chance: Chance, number: int) -> ModelReply:
        usage = Usage(input_tokens=chance.whole(1, 99), output_tokens=chance.whole(1, 9))
        calls: tuple[ToolCall, ...] = ()
        text = ""
        if request.tools and chance.says(0.75):
            calls = tuple(self._call(chance, index) for index in range(chance.pick([1, 1, 2, 3, 4])))
            if show.spec in request.tools and self._world.chance(f"show {request.request_id} {number}").says(0.3):
                calls = tuple(replace(each, name=show.name) for each in calls)
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
