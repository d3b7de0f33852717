"""The bench on which a provider is checked: it asks the provider, against the stub, and records failures."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from ....errors import ProviderError
from ....messages import AssistantMessage, ImagePart, Message, SystemMessage, ToolMessage, UserMessage
from ....protocols import (
    ArgumentsPiece,
    Delta,
    ModelReply,
    ModelRequest,
    NativeOutput,
    Provider,
    ReasoningPiece,
    TextPiece,
    ToolSpec,
)
from ...wire import Dialect, HttpRequest, Lack, WireBreak, WireReply, WireRequest, WireServer, WireStep
from .._checks import Checks, Ledger, Run, json_or_text

WEATHER = ToolSpec(
    name="get_weather",
    description="Current weather in a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CLOCK = ToolSpec(name="get_time", description="The time now.")
FORECAST: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1},
        "celsius": {"anyOf": [{"type": "integer", "minimum": -90}, {"type": "null"}], "default": None},
        "rain": {"$ref": "#/$defs/Rain", "description": "If any.", "default": "none"},
    },
    "required": ["city"],
    "$defs": {"Rain": {"type": "string", "enum": ["none", "some"]}},
}
CITY = '{"city": "Zürich 😀"}'


@dataclass(slots=True)
class Outcome:
    """The outcome of one `respond`: a reply or an error, the pieces emitted, and the requests that the server received.

    If there is neither a reply nor an error, `respond` did not return in time.
    """

    reply: ModelReply | None = None
    error: Exception | None = None
    deltas: list[Delta] = field(default_factory=list[Delta])
    requests: Sequence[HttpRequest] = ()

    @property
    def text(self) -> str:
        """The pieces of text, joined."""
        return "".join(each.text for each in self.deltas if isinstance(each, TextPiece))

    @property
    def reasoning(self) -> str:
        """The pieces of reasoning, joined."""
        return "".join(each.text for each in self.deltas if isinstance(each, ReasoningPiece))

    @property
    def arguments(self) -> dict[int, str]:
        """The pieces of arguments, joined, by the index of their call."""
        found: dict[int, str] = {}
        for each in self.deltas:
            if isinstance(each, ArgumentsPiece):
                found[each.index] = found.get(each.index, "") + each.text
        return found

    def __str__(self) -> str:
        if self.reply is not None:
            return f"the reply {self.reply.message!r}"
        if self.error is None:
            return "nothing: it did not return in time"
        return f"{type(self.error).__name__}: {self.error}"


class Running:
    """A `respond` that is under way."""

    def __init__(self) -> None:
        self.outcome = Outcome()
        self.scope = anyio.CancelScope()
        self.ended = False
        self._happened = anyio.Event()

    async def run(self, provider: Provider, request: ModelRequest) -> None:
        """Ask the provider, and keep its reply or its error."""
        with self.scope:
            try:
                self.outcome.reply = await provider.respond(request, self._emit)
            except Exception as exc:  # the check decides which errors are right
                self.outcome.error = exc
        self.ended = True
        self._happened.set()

    def _emit(self, delta: Delta) -> None:
        self.outcome.deltas.append(delta)
        self._happened.set()

    async def wait(self, what: Callable[[], bool], seconds: float) -> bool:
        """Wait until `what()` is true, which is tested at each piece and at the end."""
        with anyio.move_on_after(seconds):
            while not what() and not self.ended:
                self._happened = anyio.Event()
                await self._happened.wait()
        return what()


def request_of(*messages: Message, **options: Any) -> ModelRequest:
    """Return a request with two tools of its own; by default it has one question."""
    options.setdefault("tools", copy.deepcopy((WEATHER, CLOCK)))
    return ModelRequest(messages=messages or (UserMessage(content="Weather in Zürich?"),), **options)


@dataclass(eq=False)
class Bench(Ledger):
    """The state of a check: the provider, the stub that it talks to, and the failures."""

    server: WireServer
    make: Callable[[str], Provider]
    patience_seconds: float
    max_reply_bytes: int
    _provider: Provider | None = field(default=None, init=False)

    @property
    def provider(self) -> Provider:
        """The provider that is checked: one for all checks, and another one after a check that has failed."""
        assert self._provider is not None
        return self._provider

    def prepare(self) -> None:
        """Make a provider unless there is one. Raises any error of making it."""
        if self._provider is None:
            self._provider = self.make(self.server.base_url)

    async def close_provider(self) -> None:
        provider, self._provider = self._provider, None
        if provider is not None:
            await close(provider)

    @property
    def dialect(self) -> Dialect:
        return self.server.dialect

    # ------------------------------------------------------------------------------------------ recording

    def fail(self, what: str, expected: object, got: object) -> None:
        super().fail(what, expected, str(got) if isinstance(got, Outcome) else got)

    # --------------------------------------------------------------------------------------------- asking

    async def attempt(self, step: WireStep, *, request: ModelRequest | None = None) -> Outcome:
        """Ask once. The server repeats its answer, so only the received requests show a provider that asks again."""
        self.server.script = lambda _: step
        return await self.respond(request or request_of())

    async def respond(self, request: ModelRequest) -> Outcome:
        """Ask once, with the server's current script."""
        first = len(self.server.requests)
        async with self.started(request) as running:
            await running.wait(lambda: running.ended, self.patience_seconds)
        running.outcome.requests = self.server.requests[first:]
        return running.outcome

    @asynccontextmanager
    async def started(self, request: ModelRequest) -> AsyncGenerator[Running]:
        """Begin to ask. When the block is left, a `respond` that still runs is cancelled, and has returned."""
        running = Running()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(running.run, self.provider, request)
            try:
                yield running
            finally:
                running.scope.cancel()
                with anyio.CancelScope(shield=True):
                    if not await running.wait(lambda: running.ended, self.patience_seconds):
                        self.server.hang_up()  # for a provider that ignores its cancellation

    async def held(self, step: WireBreak, until: Callable[[Outcome], bool]) -> Outcome:
        """Return what has been emitted while the server stalls, once `until` is true; then let the server continue."""
        self.server.script = [step]
        async with self.started(request_of()) as running:
            stalled = await self.until(lambda: self.server.stalls > 0)
            self.require("the server", "asked", running.outcome, ok=stalled)
            await running.wait(lambda: until(running.outcome), self.patience_seconds)
            seen = Outcome(deltas=[*running.outcome.deltas])
            self.server.release()
            await running.wait(lambda: running.ended, self.patience_seconds)
        if running.outcome.reply is None:
            self.fail("a server that continues after a while", "a reply", running.outcome)
        return seen

    async def ask(self, step: WireStep, *, request: ModelRequest | None = None) -> tuple[ModelReply, Outcome]:
        """Ask, and require a reply."""
        outcome = await self.attempt(step, request=request)
        if outcome.reply is None:
            self.give_up("the request", "a reply", outcome)
        return outcome.reply, outcome

    async def send(self, request: ModelRequest) -> WireRequest:
        """Ask, and return the request as the server read it. A request that breaks the vendor's rules is a failure."""
        await self.ask(WireReply(text="Well."), request=request)
        sent = self.server.read()
        self.expect("the vendor's rules that the request breaks", (), sent.problems)
        return sent

    async def failing(
        self, what: str, step: WireStep, kind: type[ProviderError] | None = None, *, retryable: bool = True
    ) -> ProviderError | None:
        """Ask, and require an error, of exactly this `kind` if one is given. Returns None, recorded, if none came."""
        outcome = await self.attempt(step)
        error = outcome.error
        if not isinstance(error, ProviderError):
            self.fail(what, "a ProviderError", outcome)
            return None
        if kind is not None:
            self.expect(what, (kind.__name__, retryable), (type(error).__name__, error.retryable))
        return error

    async def until(self, what: Callable[[], bool]) -> bool:
        """Wait until a condition is true on the server. Returns False after `patience_seconds`."""
        return await self.server.reached(what, self.patience_seconds)


def can_hold(provider: Provider, schema: Mapping[str, Any]) -> NativeOutput:
    """Return whether, and how, the provider says that it can hold replies to the schema."""
    native_output = getattr(provider, "native_output", None)
    return "" if native_output is None else native_output(schema)


async def close(provider: Provider) -> None:
    aclose = getattr(provider, "aclose", None)
    if aclose is not None:
        await aclose()


# ------------------------------------------------------------------------------------------------- the checks' table


CHECKS: Checks[Bench] = Checks()
"""All checks by name. A check is left out if the dialect lacks one of its needs."""


def check(name: str, *needs: Lack) -> Callable[[Run[Bench]], Run[Bench]]:
    return CHECKS.check(name, *needs)


# ------------------------------------------------------------------------------------------------- comparing


def facts_of(messages: Sequence[Message]) -> list[tuple[Any, ...]]:
    """Return the contents of messages, without what differs between wires: ids, and how messages are put together."""
    facts: list[tuple[Any, ...]] = []
    for each in messages:
        if isinstance(each, SystemMessage):
            facts.append(("system", each.text))
        elif isinstance(each, UserMessage):
            if text := each.text:
                facts.append(("user", text))
            facts += _images(() if isinstance(each.content, str) else each.content)
        elif isinstance(each, ToolMessage):
            facts.append(("result", each.name, each.content))
            facts += _images(each.parts)
        else:
            facts += _reply_facts(each)
    return facts


def _reply_facts(message: AssistantMessage) -> list[tuple[Any, ...]]:
    said = [("reply", message.text)] if message.text else []
    return [*said, *(("call", call.name, json_or_text(call.arguments)) for call in message.tool_calls)]


def _images(parts: Sequence[object]) -> list[tuple[Any, ...]]:
    return [("image", part.url.partition(",")[2]) for part in parts if isinstance(part, ImagePart)]
