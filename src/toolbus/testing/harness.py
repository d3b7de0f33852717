"""The harness: a request on a bus where the test itself answers the tool calls, event by event.

The module combines a bus, sessions, tools and virtual time; it knows no runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

import anyio

from .._option_checks import shown
from ..bus import EventBus
from ..core.limits import Limits
from ..dispatcher import ToolDispatcher
from ..errors import ConfigurationError, ScriptError
from ..events import (
    ApprovalDecided,
    ApprovalRequested,
    DeadLetter,
    Event,
    FailureReason,
    ReceiverFailed,
    RequestEnding,
    RequestStarted,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from ..messages import Message, PromptLike
from ..protocols import Provider, ToolSpec
from ..providers.scripted import Script, ScriptedProvider
from ..request_result import OutputT, RequestResult
from ..session import MessagesLike, RequestSession, read_messages, read_prompt
from ..tool_results import render
from ..tools import ToolLike, ToolRegistry, tool_list
from ._timeline import event_line, near_misses, timeline
from .census import assert_idle
from .virtual_time import advance, settle

if TYPE_CHECKING:
    import anyio.abc
    from typing_extensions import TypeForm

__all__ = ["Harness", "event_line"]

E = TypeVar("E", bound=Event)
_TERMINAL = (ToolCallCompleted, ToolCallFailed)


class Harness:
    """A runner of requests whose tool calls the test itself answers, event by event.

        script = [calls(("get_weather", {"city": "Paris"})), text("Sunny.")]
        async with Harness(script, tools=["get_weather"]) as harness:
            session = harness.start("Weather in Paris?")
            requested = await harness.expect(ToolCallRequested, name="get_weather")
            harness.complete(requested, {"sky": "clear"})
            result = await session.result()
            harness.assert_no_pending()

    `provider` is a `Provider`, or the script of a `ScriptedProvider`; omit it if the requests are started elsewhere,
    for example by a `Runtime` on the same bus. `tools` are offered to the model: names (which accept any arguments),
    functions, `Tool`s or `ToolSpec`s. With `run_tools` the handlers of functions and `Tool`s run, in a `ToolDispatcher`
    on the harness's bus, and the test answers the other calls; without it no handler runs. `limits` are the default
    limits of its requests. `bus` is a bus of the application; without it the harness makes a new one.

    The harness works in real and in virtual time; `advance` needs virtual time. Leaving the block cancels the requests
    that still run and waits for them to end. With `strict`, leaving the block also fails unless everything is over: see
    `assert_over`.

    Every failure is an `AssertionError` with the timeline of the events so far; any other exception that leaves the
    block carries the timeline as a note. If a `ScriptedProvider` was asked for a step that its script does not have, or
    for a step that contradicts its `expect=`, leaving the block fails, whatever became of the request.

    Example:
        from toolbus.events import ToolCallRequested
        from toolbus.testing import calls, text
        from toolbus.testing.harness import Harness

        script = [calls(("get_order", {"number": 7})), text("It is in Rome.")]
        async with Harness(script, tools=["get_order"]) as harness:
            session = harness.start("Where is order 7?")
            call = await harness.expect(ToolCallRequested, name="get_order")
            harness.complete(call, {"city": "Rome"})
            print((await session.result()).text)  # It is in Rome.
    """

    def __init__(
        self,
        provider: Provider | Script | None = None,
        *,
        tools: Iterable[str | ToolLike | ToolSpec] = (),
        run_tools: bool = False,
        limits: Limits | None = None,
        bus: EventBus | None = None,
        strict: bool = False,
    ) -> None:
        self.provider: Provider | None = _provider_of(provider)
        self._tools, self._run_tools = _OfferedTools(tools, run_tools=run_tools), run_tools
        self.bus = bus if bus is not None else EventBus()
        self.sessions: list[RequestSession] = []
        # The newest exception that carries the timeline.
        self.exception_with_timeline: BaseException | None = None
        self._limits = limits
        self._strict = strict
        self._log: list[tuple[float, Event]] = []
        self._taken: set[int] = set()
        self._running: set[str] = set()
        self._changed: anyio.Event | None = None
        self._group: anyio.abc.TaskGroup | None = None
        self._parts = AsyncExitStack()
        self._tasks: list[anyio.TaskInfo] = []

    async def __aenter__(self) -> Harness:
        if self._group is not None:
            raise ConfigurationError("the harness is entered already")
        self._tasks = anyio.get_running_tasks() if self._strict else []
        async with AsyncExitStack() as stack:
            stack.callback(self.bus.connect(Event, self._on_event))
            if self._run_tools:
                await stack.enter_async_context(ToolDispatcher(self.bus, self._tools.registry))
            self._parts = stack.pop_all()
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(self, kind: object, value: BaseException | None, traceback: object) -> None:
        # pytest then shows the test's own line.
        __tracebackhide__ = True
        group = self._group
        assert group is not None
        if value is not None:
            self._annotate(value)
        try:
            if value is None and self._strict:
                self.assert_over()
        finally:
            try:
                for session in self.sessions:
                    session.cancel("the harness was left")
                # The exception is not passed on, because the group would wrap it in another one.
                await group.__aexit__(None, None, None)
            finally:
                self._group = None
                await self._parts.aclose()
        if value is None:
            self._assert_as_scripted()
            if self._strict:
                with self._with_timeline():
                    await assert_idle(self.bus, ignore=self._tasks)

    def _annotate(self, value: BaseException) -> None:
        """Add the timeline to the exception that leaves the block, unless the exception already carries it."""
        if value is not self.exception_with_timeline:
            for problem in self._problems():
                value.add_note(problem)
            if self._log:
                value.add_note(self._story())
        self.exception_with_timeline = value

    # ------------------------------------------------------------------------------------------------ the requests

    @overload
    def start(
        self, prompt: PromptLike, *, history: MessagesLike = (), output: None = None, **options: Any
    ) -> RequestSession[None]: ...
    @overload
    def start(
        self, prompt: PromptLike, *, history: MessagesLike = (), output: TypeForm[OutputT], **options: Any
    ) -> RequestSession[OutputT]: ...
    def start(self, prompt: PromptLike, *, history: MessagesLike = (), **options: Any) -> RequestSession[Any]:
        """Start a request in its own task and return its session at once.

        `prompt` is text, a `UserMessage`, a list of texts, images and files, or a whole transcript that ends with a
        user message. `history` holds the messages before the prompt: `history=harness.transcript` continues the
        conversation. `options` are those of `RequestSession`; `provider`, `tools` and `limits` default to the
        harness's.
        """
        if self._group is None:
            raise ConfigurationError("the harness is not entered; use `async with Harness(...) as harness:`")
        provider = options.pop("provider", self.provider)
        if provider is None:
            raise ConfigurationError("the harness has no provider; pass a script: Harness([text('Hello.')])")
        options.setdefault("tools", self._tools)
        options.setdefault("limits", self._limits)
        session = RequestSession(self.bus, provider, _messages(history, prompt), **options)
        self.sessions.append(session)
        self._group.start_soon(self._run, session)
        return session

    @overload
    async def run(
        self, prompt: PromptLike, *, history: MessagesLike = (), output: None = None, **options: Any
    ) -> RequestResult[None]: ...
    @overload
    async def run(
        self, prompt: PromptLike, *, history: MessagesLike = (), output: TypeForm[OutputT], **options: Any
    ) -> RequestResult[OutputT | None]: ...
    async def run(self, prompt: PromptLike, *, history: MessagesLike = (), **options: Any) -> RequestResult[Any]:
        """Call `start` and wait for the result, for requests in which the test has no call to answer."""
        return await self.start(prompt, history=history, **options).result()

    async def _run(self, session: RequestSession) -> None:
        try:
            await session.run()
        finally:
            self._wake()

    @property
    def transcript(self) -> Sequence[Message]:
        """The messages of the newest request so far. Fails if no request was started."""
        __tracebackhide__ = True
        if not self.sessions:
            raise self._failure("no request was started, so there is no transcript")
        return self.sessions[-1].messages

    # -------------------------------------------------------------------------------------------------- publishing

    def inject(self, event: Event) -> bool:
        """Publish any event, and return whether the bus accepted it (see `EventBus.publish`)."""
        return self.bus.publish(event)

    def complete(self, requested: ToolCallRequested, value: Any = None) -> bool:
        """Answer a call as if its handler had returned `value`: a text, JSON values, images, a `ToolResult`, ...

        Returns False if the call was settled before, or nobody waits for it. Raises `UnserializableResult`.
        """
        _check_event(requested, ToolCallRequested)
        rendered = render(value)
        return self.bus.publish(
            requested.completed(
                rendered.content,
                parts=rendered.parts,
                data=rendered.data,
                artifacts=rendered.artifacts,
                affected=rendered.affected,
                duration_seconds=self.bus.clock() - requested.at,
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
        """Answer a call as failed. Returns False if the call was settled before, or nobody waits for it."""
        _check_event(requested, ToolCallRequested)
        return self.bus.publish(
            requested.failed(
                error,
                reason=reason,
                retryable=retryable,
                outcome_unknown=outcome_unknown,
                duration_seconds=self.bus.clock() - requested.at,
            )
        )

    def approve(
        self,
        requested: ApprovalRequested,
        *,
        arguments: dict[str, Any] | None = None,
        by: str = "",
        remember: bool = False,
    ) -> bool:
        """Approve a call that waits for a person, maybe with other `arguments`. Returns False if it is too late."""
        _check_event(requested, ApprovalRequested)
        return self.bus.publish(requested.decided(approved=True, arguments=arguments, by=by, remember=remember))

    def deny(self, requested: ApprovalRequested, reason: str = "", *, by: str = "", remember: bool = False) -> bool:
        """Deny a call that waits for a person; the model is sent `reason`. Returns False if it is too late."""
        _check_event(requested, ApprovalRequested)
        return self.bus.publish(requested.decided(approved=False, reason=reason, by=by, remember=remember))

    async def advance(self, seconds: float, *, wait_for_threads: bool = True) -> None:
        """Let virtual time pass: see `toolbus.testing.advance`."""
        await advance(seconds, wait_for_threads=wait_for_threads)

    async def settle(self) -> None:
        """Let everything run that can run before time passes: see `toolbus.testing.settle`."""
        await settle()

    # --------------------------------------------------------------------------------------------------- observing

    @property
    def events(self) -> list[Event]:
        """All events since the block was entered, in the order in which the bus delivered them."""
        return [event for _, event in self._log]

    def seen(self, kind: type[E], **fields: Any) -> list[E]:
        """Return the events of `kind` so far whose `fields` have these values."""
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
        """Return the next event of `kind` that no `expect` has returned yet, and whose `fields` have these values.

        `where` is a further condition, a function of the event. Looks at the events so far, oldest first, then waits:
        for `within_seconds`, or else until all requests on the bus have ended. In virtual time, waiting lets time pass.
        Fails with the timeline if there is no such event. A cancelled `expect` returns no event, so a later one can
        return it. Raises `TypeError` if `kind` is not a type of events, and `ConfigurationError` for a field that it
        does not have.
        """
        __tracebackhide__ = True
        _check_fields(kind, fields)
        with anyio.CancelScope() as scope:
            if within_seconds is not None:
                scope.deadline = anyio.current_time() + within_seconds
            looked_at = 0
            while True:
                for index in range(looked_at, len(self._log)):
                    event = self._log[index][1]
                    if index in self._taken or not isinstance(event, kind) or not _matches(event, fields):
                        continue
                    if where is None or where(event):
                        self._taken.add(index)
                        return event
                looked_at = len(self._log)
                all_ended = not self._running and all(session.ended for session in self.sessions)
                if within_seconds is None and all_ended:
                    break
                if self._changed is None:
                    self._changed = anyio.Event()
                await self._changed.wait()
        wanted = [*(f"{name}={value!r}" for name, value in fields.items()), *(["where=..."] if where else [])]
        known = ((event, index in self._taken) for index, (_, event) in enumerate(self._log))
        raise self._failure(f"there was no {kind.__name__}({', '.join(wanted)}){near_misses(known, kind, fields)}")

    @property
    def pending(self) -> list[ToolCallRequested]:
        """The calls that were requested and have no terminal event yet, oldest first."""
        settled = self._calls_of(*_TERMINAL)
        return [each for each in self.seen(ToolCallRequested) if (each.request_id, each.call_id) not in settled]

    @property
    def pending_approvals(self) -> list[ApprovalRequested]:
        """The calls that wait for a person, oldest first."""
        settled = self._calls_of(ApprovalDecided, *_TERMINAL)
        return [each for each in self.seen(ApprovalRequested) if (each.request_id, each.call_id) not in settled]

    def assert_no_pending(self) -> None:
        """Fail if a requested call has no terminal event, an approval has no decision, or an event had no receiver."""
        __tracebackhide__ = True
        if pending := self.pending:
            raise self._failure(f"not answered: {', '.join(f'{each.name} ({each.call_id})' for each in pending)}")
        if waiting := self.pending_approvals:
            raise self._failure(f"not decided: {', '.join(f'{each.name} ({each.call_id})' for each in waiting)}")
        if letters := self.seen(DeadLetter):
            raise self._failure(f"addressed to nobody: {', '.join(each.event_type for each in letters)}")

    def assert_over(self) -> None:
        """Fail unless all is over: no pending call, no running request, no unused step, and no receiver that raised."""
        __tracebackhide__ = True
        self.assert_no_pending()
        if running := [each for each in self.sessions if not each.ended]:
            raise self._failure(f"{len(running)} request(s) still running; await their result(), or cancel() them")
        if failed := self.seen(ReceiverFailed):
            raise self._failure("; ".join(f"{each.receiver} raised {each.error}" for each in failed))
        self._assert_as_scripted()
        if isinstance(self.provider, ScriptedProvider):
            with self._with_timeline(ScriptError):
                self.provider.assert_done()

    def timeline(self) -> str:
        """Return one line for each event so far, with the seconds since the first event."""
        return timeline(self._log)

    # --------------------------------------------------------------------------------------------------- internals

    def _on_event(self, event: Event) -> None:
        self._log.append((anyio.current_time(), event))
        if isinstance(event, RequestStarted):
            self._running.add(event.request_id)
        elif isinstance(event, RequestEnding):
            self._running.discard(event.request_id)
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def _calls_of(self, *kinds: type[Event]) -> set[tuple[str, str]]:
        return {(each.request_id, getattr(each, "call_id", "")) for each in self.events if isinstance(each, kinds)}

    def _problems(self) -> list[str]:
        return self.provider.problems if isinstance(self.provider, ScriptedProvider) else []

    def _assert_as_scripted(self) -> None:
        __tracebackhide__ = True
        if problems := self._problems():
            raise self._failure(problems[0])

    @contextmanager
    def _with_timeline(self, kind: type[Exception] = AssertionError) -> Generator[None]:
        """Turn an exception of `kind` into a failure with the timeline."""
        __tracebackhide__ = True
        try:
            yield
        except kind as exc:
            raise self._failure(str(exc)) from None

    def _failure(self, problem: str) -> AssertionError:
        failure = self.exception_with_timeline = AssertionError(f"{problem}; {self._story()}")
        return failure

    def _story(self) -> str:
        """Return the timeline, with advice if a function was waited for that this harness does not run."""
        overdue = {each.name for each in self.seen(ToolCallFailed) if each.reason == "timeout"}
        idle = sorted(overdue & self._tools.registry.specs.keys() if not self._run_tools else ())
        advice = f"\n{', '.join(idle)} did not run: pass run_tools=True, or answer with complete()" if idle else ""
        return f"events so far:\n{self.timeline()}{advice}"


def _provider_of(given: Provider | Script | None) -> Provider | None:
    if given is None or hasattr(given, "respond"):
        return cast("Provider | None", given)
    return ScriptedProvider(cast("Script", given))


class _OfferedTools:
    """The tools of a harness: those of a registry as they are now, and those that only have a definition."""

    def __init__(self, tools: Any, *, run_tools: bool) -> None:
        definitions: list[ToolSpec] = []
        if isinstance(tools, ToolRegistry):
            self.registry = tools
        else:
            given = tool_list(tools)
            specs = [ToolSpec(name=each) if isinstance(each, str) else each for each in given]
            definitions = [each for each in specs if isinstance(each, ToolSpec)]
            self.registry = ToolRegistry(each for each in specs if not isinstance(each, ToolSpec))
        self.needs_deps: Mapping[str, str] = self.registry.needs_deps if run_tools else {}
        self._definitions = {each.name: each for each in definitions}
        if len({*self.registry.specs, *self._definitions}) < len(self.registry) + len(definitions):
            raise ConfigurationError("two tools of the harness have the same name; give each name once")
        self._seen: Mapping[str, ToolSpec] | None = None
        self._specs: Mapping[str, ToolSpec] = {}

    @property
    def specs(self) -> Mapping[str, ToolSpec]:
        """See `ToolSource`. It is the same snapshot until the registry changes."""
        if self.registry.specs is not self._seen:
            self._seen = self.registry.specs
            self._specs = {**self._seen, **self._definitions}
        return self._specs


def _messages(history: MessagesLike, prompt: PromptLike) -> Any:
    """Return the messages for a session: the history and then the prompt, which may itself be a transcript."""
    if isinstance(prompt, Sequence) and any(hasattr(each, "role") for each in prompt):
        return [*read_messages(history), *prompt]
    return [*read_messages(history), read_prompt(prompt)]


def _check_event(given: object, kind: type[Event]) -> None:
    if not isinstance(given, kind):
        name = kind.__name__
        raise TypeError(f"{shown(given)} is not the event to answer; pass what `await harness.expect({name})` returns")


def _check_fields(kind: type[Event], fields: dict[str, Any]) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Event)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{kind!r} is not an event type; see toolbus.events")
    known = kind.__struct_fields__
    if unknown := fields.keys() - set(known):
        wrong = ", ".join(sorted(unknown))
        raise ConfigurationError(f"{kind.__name__} has no field {wrong}; it has {', '.join(known)}")


def _matches(event: Event, fields: dict[str, Any]) -> bool:
    return all(getattr(event, name) == value for name, value in fields.items())
