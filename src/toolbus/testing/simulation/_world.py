"""A simulated world: everything that is drawn from a seed, and the model. Actors follow the rules of toolbus.

Equal seeds make equal worlds: see the package's invariants.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio
import orjson
from pydantic import BaseModel, Field

from ...core.compression import Compression
from ...core.limits import Limits
from ...core.output import FINAL_ANSWER
from ...core.prices import Price
from ...errors import NativeOutputUnsupported, ProviderRejected, ProviderUnavailable
from ...events import TerminalEvent
from ...messages import AssistantMessage, ToolCall, Usage
from ...protocols import ArgumentsPiece, Emit, ModelReply, ModelRequest, NativeOutput, TextPiece
from ...records import replace
from ...secrets import REFERENCE
from ._chance import Chance
from ._disk import Disk
from ._guard import Guard
from ._inbox import LossyRelay
from ._machines import Fleet
from ._plans import Plan, plans_of
from ._tools import PROCESS, REMOTE_TOOLS, TOOLS, show, unlock

if TYPE_CHECKING:
    from ._people import Command
    from ._process import Process

_TIMES_A_SECOND = 2  # moments in each second at which many things happen together
_ARGUMENTS = {"good": 8.0, "wrong": 0.5, "broken": 0.5, "more": 0.3}
_PRICES = {"*": Price(input_per_million=10_000.0, output_per_million=100_000.0)}
_MODES = ["auto", "tool", "native"]
_ANSWERS = {'{"n":%d}': 6.0, 'It is:\n```json\n{"n":%d}\n```': 1.0, '{"n":-%d}': 1.0, '{"n":%d': 1.0}


class Verdict(BaseModel):
    """The structured output of a request."""

    n: int = Field(ge=0)


class World:
    """A world that is drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        chance = self.chance("world")
        self.max_settled = chance.pick([1, 10_000])
        self.faults: Counter[str] = Counter()
        # By external call: the answers that are given from outside, and their times. They outlive all processes.
        self.answers: dict[str, list[tuple[float, TerminalEvent]]] = {}
        self.tool_seconds = chance.pick([0.5, 2.0, 5.0])
        self.model_seconds = chance.pick([1.0, 4.0, 10.0])
        self.approval_seconds = chance.pick([3.0, 20.0])
        self.favourite = chance.pick(TOOLS).name  # the model's favourite tool, so that a world shows much of one kind
        self.is_quiet = chance.says(0.4)  # strangers do not race with tools and people
        self.requests = chance.whole(1, 5)
        self.conversations = chance.whole(1, 2)
        self.max_sessions = chance.pick([1, 2, 8])
        self.workers = chance.pick([1, 2, 8])
        self.window = chance.pick([None, None, None, 900, 2500])
        self.disk = Disk(self, journals=chance.says(0.45))
        self.has_inbox = self.disk.journals and chance.says(0.5)
        self.relay = LossyRelay(self) if self.has_inbox and self.chance("relays").says(0.5) else None
        self.park_after_seconds = chance.pick([None, 0.1, 0.5]) if self.has_inbox else None
        self.commands: list[Command] = []  # through handles
        self.lease_seconds = chance.pick([2.0, 10.0, 30.0])
        self.plans: list[Plan] = plans_of(self.chance("plans"), self.model_seconds, journals=self.disk.journals)
        if len(self.plans) > 1 and chance.says(0.3):
            self.favourite = "risky"  # a question is open when the process dies
        models = self.chance("models")
        self.models = [Model(self, number) for number in range(models.pick([1, 1, 2, 3]))]
        self.outage = 0.08 if len(self.models) == 1 else models.pick([0.08, 0.6])  # the part of calls that fail
        self.has_tight_limits = self.chance("spending").says(0.25)  # limits of tokens and cost are narrow
        archivist = self.chance("archivist")
        self.has_archivist = archivist.says(0.3)
        if self.has_archivist and archivist.says(0.5):
            self.favourite = "risky"  # a decision is remembered when the conversation is deleted
        # What requests do while their conversation is busy. In most worlds they wait, so that conversations grow.
        self.on_busy = ["queue", "refuse", "replace"] if self.chance("busy").says(0.3) else ["queue"]
        self.replacing = set[str]()  # conversations in which a turn was asked for that replaces others
        self.interceptors = [Guard(self)] if self.chance("guard").says(0.2) else []
        # The application names the first secret, and a tool returns the second one.
        self.secrets: Sequence[str] = (f"swordfish{seed}", f"marlin{seed}") if self.chance("secrets").says(0.2) else ()
        self.secret = self.secrets[0] if self.secrets else ""
        # Only some worlds have the tool whose result is the answer, because an answer ends the request.
        shows = self.chance("show").says(0.3)
        remote = self.chance("pools")
        self.fleet = Fleet(self) if remote.says(0.25) else None
        self.processes: list[Process] = []
        self.tools = (*TOOLS, *((unlock,) if self.secrets else ()), *((show,) if shows else ()))
        self.tools_below = TOOLS[:3] if chance.says(0.7) else (*TOOLS, show) if shows else TOOLS
        if self.fleet is not None:
            self.favourite = remote.pick(REMOTE_TOOLS).name
            self.tools, self.tools_below = (*self.tools, *REMOTE_TOOLS), (*self.tools_below, *REMOTE_TOOLS)
        chance = self.chance("output")
        self.output = Verdict if chance.says(0.3) else None  # of most requests
        self.native: NativeOutput = chance.pick(["", "alone", "with_tools"])

    def chance(self, name: str) -> Chance:
        """Return the chance for decisions on `name`."""
        return Chance(self.seed, name)

    def limits(self, name: str) -> Limits:
        """Return limits for a request: narrow ones, so that requests reach them."""
        chance, spends = self.chance(f"limits {name}"), self.chance(f"spends {name}")
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
            max_input_tokens=150 if self.has_tight_limits and spends.says(0.4) else 1_000_000,
            max_output_tokens=15 if self.has_tight_limits and spends.says(0.4) else 100_000,
            max_cost=2.0 if self.has_tight_limits and spends.says(0.4) else None,
            max_model_attempts=self.chance(f"attempts {name}").pick([1, 3, 3, 3]),
            max_output_repairs=self.chance(f"repairs {name}").whole(1, 2),
            on_limit=chance.pick(["answer", "stop"]),
            on_failure=chance.pick(["collect", "collect", "collect", "fail_fast"]),
        )

    def options(self, name: str) -> dict[str, Any]:
        chance = self.chance(f"options {name}")
        return {
            "limits": self.limits(name),
            "late_results": chance.pick(["event", "event", "drop", "next_turn"]),
            "note_failures": chance.says(0.2),
            "needs_approval": chance.pick([None, None, False]) if chance.says(0.2) else None,
            "compression": self.compression,
            "prices": _PRICES,
            "metadata": {"key": self.secret} if self.secrets else None,
            "output": self.output if self.chance(f"output {name}").says(0.8) else None,
            "on_busy": self.chance(f"busy {name}").pick(self.on_busy),
            "output_mode": self.chance(f"mode {name}").pick(_MODES[: 3 if self.native == "with_tools" else 2]),
        }

    @property
    def compression(self) -> Compression | None:
        """The compression of histories, if the world has one."""
        return None if self.window is None else Compression(max_context_tokens=self.window, keep_turns=1)

    def moment(self, chance: Chance, deadline: float) -> float:
        """Return a time to do something, around a deadline from now; often a time at which others do something too."""
        then = anyio.current_time() + chance.around(deadline)
        return math.ceil(then * _TIMES_A_SECOND) / _TIMES_A_SECOND if chance.says(0.3) else then


class Model:
    """A model that may return any reply that is permitted, at any time. `number` is its position, from 0."""

    vendor = "simulated"

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self.model = f"model {number or ''}".strip()
        self._asked: Counter[str] = Counter()

    def native_output(self, _schema: object) -> NativeOutput:
        return self._world.native

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        world = self._world
        process = PROCESS.get()
        watch = process.watch
        watch.sent(request.request_id, request.messages, self._number)
        watch.hides(request.messages, "the model is sent")
        if process.has_turns:
            world.disk.archive.check_sent(watch, request.request_id, request.messages)
        self._asked[request.request_id] += 1
        chance = world.chance(f"{self.model} {request.request_id} {self._asked[request.request_id]}")
        if chance.says(world.outage):
            await self._fail(request, chance)
        if chance.says(0.2):
            await anyio.sleep_until(world.moment(chance, world.model_seconds))
        else:
            await anyio.sleep(chance.below(0.2))
        reply = self._reply(request, chance, self._asked[request.request_id])
        for piece in (reply.message.text[:12], reply.message.text[12:]):
            if piece:
                emit(TextPiece(piece))
                if chance.says(0.1):
                    await anyio.sleep(chance.around(world.model_seconds / 2))
        for index, call in enumerate(reply.message.tool_calls):
            emit(ArgumentsPiece(index, call.name, call.arguments))
        if chance.says(0.04):
            await self._fail(request, chance)
        watch.replied(request.request_id, reply.message)
        return reply

    async def _fail(self, request: ModelRequest, chance: Chance) -> None:
        world = self._world
        world.faults["model failed"] += 1
        await anyio.sleep(chance.below(0.1))
        if request.output_schema is not None and chance.says(0.5):
            raise NativeOutputUnsupported("no schemas here", vendor="simulated")
        if chance.says(0.1):
            world.faults["model refused"] += 1
            PROCESS.get().watch.refused(request.request_id, math.inf)
            raise ProviderRejected("no such model", vendor="simulated", status=404)
        wait = chance.pick([None, None, 1.0, 100.0])
        PROCESS.get().watch.refused(request.request_id, wait or 0.0)
        raise ProviderUnavailable("busy", vendor="simulated", retryable=True, retry_after_seconds=wait)

    def _reply(self, request: ModelRequest, chance: Chance, number: int) -> ModelReply:
        usage = Usage(input_tokens=chance.whole(1, 99), output_tokens=chance.whole(1, 9))
        calls: tuple[ToolCall, ...] = ()
        text = ""
        if request.tools and chance.says(0.75):
            calls = tuple(self._call(request, chance, index) for index in range(chance.pick([1, 1, 2, 3, 4])))
            if show.spec in request.tools and self._world.chance(f"show {request.request_id} {number}").says(0.3):
                calls = tuple(replace(each, name=show.name) for each in calls)
        if not calls or chance.says(0.3):
            said = f"said {request.round} {self._world.secret}"
            text = "" if chance.says(0.08) else said * chance.pick([1, 1, 40])
        is_offered = any(each.name == FINAL_ANSWER for each in request.tools)
        if (is_offered or request.output_schema is not None) and chance.says(0.7):
            answer = chance.weighted(_ANSWERS) % chance.whole(10, 999)
            is_call = is_offered and chance.says(0.6)
            others = calls if is_call and chance.says(0.3) else ()
            calls = (*others, ToolCall(name=FINAL_ANSWER, arguments=answer)) if is_call else ()
            text = "" if is_call else answer
        return ModelReply(
            message=AssistantMessage(text=text, tool_calls=calls), usage=usage, vendor=self.vendor, model=self.model
        )

    def _call(self, request: ModelRequest, chance: Chance, index: int) -> ToolCall:
        name = self._world.favourite if chance.says(0.3) else chance.pick(self._world.tools).name
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
        if name == "unlock" and kind == "good":
            known = [self._world.secret, *REFERENCE.findall(repr([*request.messages]))]
            arguments = orjson.dumps({"n": 1, "key": chance.pick(known)}).decode()
        return ToolCall(name=name, arguments=arguments, provider_call_id=chance.pick(["", "call", f"call_{index}"]))
