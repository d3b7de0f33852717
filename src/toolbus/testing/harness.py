"""The harness: a request on a bus where the test itself answers the calls, event by event.

Puts a bus, sessions and the virtual time together; knows no runtime, and starts no dispatcher.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio

from ..bus import EventBus
from ..core.limits import Limits
from ..errors import ConfigurationError
from ..events import (
    DeadLetter,
    Event,
    FailureReason,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from ..messages import AssistantMessage, Message, ToolMessage, UserMessage, user_text
from ..protocols import Provider, ToolSpec
from ..providers.scripted import Script, ScriptedProvider
from ..results import render
from ..session import RequestSession
from ..tools import Tool, Toolish
from .virtual_time import advance, settle

if TYPE_CHECKING:
    import anyio.abc

__all__ = ["Harness", "event_line"]

E = TypeVar("E", bound=Event)
_TERMINAL = (ToolCallCompleted, ToolCallFailed)
_ENVELOPE = frozenset({"type", "event_id", "request_id", "conversation_id", "parent_id", "at", "metadata"})
_WIDTH = 160


class Harness:
    """Runs requests on a bus on which nobody runs tools: the test sees each call and answers it.

        script = [calls(("get_weather", {"city": "Paris"})), text("Sunny.")]
        async with Harness(script, tools=["get_weather"]) as harness:
            session = harness.start("Weather in Paris?")
            requested = await harness.expect(ToolCallRequested, name="get_weather")
            harness.complete(requested, {"sky": "clear"})
            result = await session.result()
            harness.assert_no_pending()

    `provider` is a `Provider`, or the script of a `ScriptedProvider`. `tools` are what the model is offered: names
    (any arguments are taken), functions, `Tool`s or `ToolSpec`s, of which handlers never run. To run them, enter a
    `ToolDispatcher(harness.bus, registry)` as well. `limits` are the default of its requests. `bus` is a bus of the
    application; without it there is a fresh one.

    Works in real and in virtual time; `advance` needs virtual time. Leaving the block cancels the requests that still
    run and waits for their end. What fails is an `AssertionError` with the timeline of the events so far; any other
    exception that leaves the block carries the timeline as a note.
    """

    def __init__(
        self,
        provider: Provider | Script,
        *,
        tools: Iterable[str | Toolish | ToolSpec] = (),
        limits: Limits | None = None,
        bus: EventBus | None = None,
    ) -> None:
        self.provider: Provider = (
            cast("Provider", provider) if hasattr(provider, "respond") else ScriptedProvider(cast("Script", provider))
        )
        self.tools = [_spec_of(each) for each in tools]
        self.bus = bus if bus is not None else EventBus()
        self.sessions: list[RequestSession] = []
        self._limits = limits
        self._log: list[tuple[float, Event]] = []
        self._taken: set[int] = set()
        self._changed: anyio.Event | None = None
        self._group: anyio.abc.TaskGroup | None = None
        self._disconnect: Callable[[], None] | None = None

    async def __aenter__(self) -> Harness:
        if self._group is not None:
            raise ConfigurationError("the harness is entered already")
        self._disconnect = self.bus.connect(Event, self._on_event)
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(self, kind: object, value: BaseException | None, traceback: object) -> None:
        group, disconnect = self._group, self._disconnect
        assert group is not None
        assert disconnect is not None
        if value is not None and not isinstance(value, _Failure) and self._log:
            value.add_note(f"events so far:\n{self.timeline()}")
        try:
            for session in self.sessions:
                session.cancel("the harness was left")
            # Without the exception, which the group would wrap in another one.
            await group.__aexit__(None, None, None)
        finally:
            disconnect()
            self._group = None

    # ------------------------------------------------------------------------------------------------- the request

    def start(self, prompt: str | Sequence[Message], **options: Any) -> RequestSession:
        """Begin a request in a task of its own and return its session at once.

        `options` are those of `RequestSession`; `provider`, `tools` and `limits` default to the harness's.
        """
        if self._group is None:
            raise ConfigurationError("the harness is not entered; use `async with Harness(...) as harness:`")
        options.setdefault("tools", self.tools)
        options.setdefault("limits", self._limits)
        session = RequestSession(self.bus, options.pop("provider", self.provider), prompt, **options)
        self.sessions.append(session)
        self._group.start_soon(self._run, session)
        return session

    async def _run(self, session: RequestSession) -> None:
        try:
            await session.run()
        finally:
            self._wake()

    @property
    def transcript(self) -> Sequence[Message]:
        """The messages of the newest request so far."""
        if not self.sessions:
            raise self._failure("no request was started, so there is no transcript")
        return self.sessions[-1].messages

    # --------------------------------------------------------------------------------------------------- injecting

    def inject(self, event: Event) -> bool:
        """Publish any event; whether the bus accepted it (see `EventBus.publish`)."""
        return self.bus.publish(event)

    def complete(self, requested: ToolCallRequested, value: Any = None) -> bool:
        """Answer a call as if its handler had returned `value`. False when it was settled before."""
        rendered = render(value)
        return self.bus.publish(
            ToolCallCompleted(
                **self._envelope(requested),
                content=rendered.content,
                data=rendered.data,
                artifacts=rendered.artifacts,
                affected=rendered.affected,
            )
        )

    def fail(
        self,
        requested: ToolCallRequested,
        error: str,
        *,
        reason: FailureReason = "error",
        retryable: bool = False,
        outcome_unknown: bool = False,
    ) -> bool:
        """Answer a call as failed. False when it was settled before."""
        return self.bus.publish(
            ToolCallFailed(
                **self._envelope(requested),
                reason=reason,
                error=error,
                retryable=retryable,
                outcome_unknown=outcome_unknown,
            )
        )

    async def advance(self, seconds: float, *, wait_for_threads: bool = True) -> None:
        """Let virtual time pass: see `toolbus.testing.advance`."""
        await advance(seconds, wait_for_threads=wait_for_threads)

    async def settle(self) -> None:
        """Let everything run that can without time passing: see `toolbus.testing.settle`."""
        await settle()

    # --------------------------------------------------------------------------------------------------- observing

    @property
    def events(self) -> list[Event]:
        """All events since the block was entered, in the order of the bus."""
        return [event for _, event in self._log]

    def seen(self, kind: type[E], **fields: Any) -> list[E]:
        """The events of `kind` so far whose `fields` have these values."""
        _check_fields(kind, fields)
        return [event for event in self.events if isinstance(event, kind) and _matches(event, fields)]

    async def expect(
        self,
        kind: type[E],
        *,
        where: Callable[[E], bool] | None = None,
        within_seconds: float | None = None,
        **fields: Any,
    ) -> E:
        """The next event of `kind` that no `expect` has returned yet, whose `fields` have these values.

        Looks at what happened already, then waits: for `within_seconds`, or else until all requests of the harness
        have ended. In virtual time waiting lets time pass. Fails with the timeline when there is no such event.
        """
        _check_fields(kind, fields)
        with anyio.CancelScope() as scope:
            if within_seconds is not None:
                scope.deadline = anyio.current_time() + within_seconds
            while True:
                for index, (_, event) in enumerate(self._log):
                    if index in self._taken or not isinstance(event, kind) or not _matches(event, fields):
                        continue
                    if where is None or where(event):
                        self._taken.add(index)
                        return event
                if within_seconds is None and all(session.ended for session in self.sessions):
                    break
                if self._changed is None:
                    self._changed = anyio.Event()
                await self._changed.wait()
        wanted = ", ".join(f"{name}={value!r}" for name, value in fields.items())
        if where is not None:
            wanted += ", where=..." if wanted else "where=..."
        raise self._failure(f"there was no {kind.__name__}({wanted})")

    @property
    def pending(self) -> list[ToolCallRequested]:
        """The calls that were requested and have no terminal event yet, oldest first."""
        settled = {(each.request_id, each.call_id) for each in self.events if isinstance(each, _TERMINAL)}
        requested = [each for each in self.events if isinstance(each, ToolCallRequested)]
        return [each for each in requested if (each.request_id, each.call_id) not in settled]

    def assert_no_pending(self) -> None:
        """Fail when a requested call has no terminal event, or an event was addressed to nobody."""
        if pending := self.pending:
            raise self._failure(f"not answered: {', '.join(f'{each.name} ({each.call_id})' for each in pending)}")
        if letters := self.seen(DeadLetter):
            raise self._failure(f"addressed to nobody: {', '.join(each.letter_type for each in letters)}")

    def timeline(self) -> str:
        """The events so far, a line each, with the seconds since the first."""
        if not self._log:
            return "  (no event yet)"
        began = self._log[0][0]
        return "\n".join(f"{moment - began:10.3f}s  {event_line(event)}" for moment, event in self._log)

    # --------------------------------------------------------------------------------------------------- internals

    def _envelope(self, requested: ToolCallRequested) -> dict[str, Any]:
        at = self.bus.clock()
        return {
            "request_id": requested.request_id,
            "conversation_id": requested.conversation_id,
            "parent_id": requested.parent_id,
            "metadata": requested.metadata,
            "at": at,
            "call_id": requested.call_id,
            "name": requested.name,
            "duration_seconds": at - requested.at,
        }

    def _on_event(self, event: Event) -> None:
        self._log.append((anyio.current_time(), event))
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def _failure(self, problem: str) -> AssertionError:
        return _Failure(f"{problem}; events so far:\n{self.timeline()}")


class _Failure(AssertionError):
    """A failure that tells the timeline itself."""


def _spec_of(given: str | Toolish | ToolSpec) -> ToolSpec:
    if isinstance(given, ToolSpec):
        return given
    if isinstance(given, str):
        return ToolSpec(name=given)
    return (given if isinstance(given, Tool) else Tool(handler=given)).spec


def _check_fields(kind: type[Event], fields: dict[str, Any]) -> None:
    known = {field.name for field in dataclasses.fields(kind)}
    if unknown := fields.keys() - known:
        raise ConfigurationError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")


def _matches(event: Event, fields: dict[str, Any]) -> bool:
    return all(getattr(event, name) == value for name, value in fields.items())


def event_line(event: Event) -> str:
    """An event's name and those of its own fields that say something; ids without the request's, which is long."""
    parts: list[str] = []
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if field.name not in _ENVELOPE and value not in (None, "", (), 0, False):
            parts.append(f"{field.name}={_said(value) if field.name == 'message' else repr(value)}")
    line = " ".join([type(event).__name__, *parts])
    if event.request_id:
        line = line.replace(event.request_id, "")
    return line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"


def _said(message: Any) -> str:
    """A message of a transcript (or a progress report's text) in short."""
    if isinstance(message, UserMessage):
        return f"user {user_text(message)!r}"
    if isinstance(message, ToolMessage):
        return f"tool {message.name} {message.content!r}"
    if isinstance(message, AssistantMessage):
        called = ", ".join(f"{call.name}({call.arguments})" for call in message.tool_calls)
        return f"assistant {message.text!r}" + (f" calls {called}" if called else "")
    return repr(message)
