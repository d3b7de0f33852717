"""Every ending that a request can have, in one table: whatever it is, the request ends well and the talk goes on."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
import pytest
from pydantic import BaseModel

from endings.ended_well import (
    ENDINGS,
    assert_ended_well,
    assert_goes_on,
    assert_kept,
    assert_left_idle,
    assert_valid,
    listen,
)
from support.journaled import JournaledStore
from support.results import result_of
from toolbus import (
    Denied,
    Interceptor,
    Limits,
    Price,
    RequestResult,
    RequestSession,
    Runtime,
    ToolContext,
    ToolError,
    tool,
)
from toolbus.errors import ProviderRejected, ProviderUnavailable
from toolbus.events import ApprovalRequested, CancelRequested, Event, ModelRetrying, RequestStarted, ToolCallRetrying
from toolbus.messages import Message, Usage, UserMessage
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.providers.scripted import Step
from toolbus.storage import Entry
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, calls, error, settle, text, virtual_backends
from toolbus.tool_results import RenderedResult
from toolbus.toolsets.control import give_up, task_complete

anyio_backend = virtual_backends()


# ------------------------------------------------------------------------------------------------- tools and models


@tool
async def look_up(key: str) -> str:
    """Look a key up, in a second."""
    await anyio.sleep(1)
    return f"{key} it is"


@tool
async def at_once(key: str) -> str:
    """Look a key up, at once."""
    return f"{key} at once"


@tool(return_direct=True)
async def shown(key: str) -> str:
    """Show a key, in a second."""
    await anyio.sleep(1)
    return f"{key}, as it is"


@tool
async def broken(key: str) -> str:
    """Fail."""
    raise ToolError(f"no {key}")


@tool
async def for_ever() -> str:
    """Wait for ever."""
    await anyio.sleep_forever()
    return ""


@tool
async def swallows() -> str:
    """Wait for ever, and return a value when cancelled."""
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        return "swallowed"
    return ""


@tool(needs_approval=True)
async def delete(key: str) -> str:
    """Delete a key."""
    return f"{key} is gone"


@tool(sequential=True)
async def in_order(key: str) -> str:
    """Wait for ever, one after the other."""
    await anyio.sleep_forever()
    return key


@tool(retries=3)
async def tried_again() -> str:
    """Fail for a moment."""
    raise OSError("for a moment")


TOOLS = [look_up, at_once, shown, broken, for_ever, swallows, delete, in_order, tried_again, task_complete, give_up]
AT_ONCE = ("at_once", {"key": "a"})
LOOK_UP = ("look_up", {"key": "b"})
FOR_EVER: tuple[str, dict[str, str]] = ("for_ever", {})
BROKEN = ("broken", {"key": "c"})


class Slow:
    """A model that takes its time."""

    vendor = "slow"

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        await anyio.sleep(1_000)
        raise AssertionError("it was not stopped")


class NoModel:
    """A model that gives what is no reply."""

    vendor = "none"

    async def respond(self, request: ModelRequest, emit: Emit) -> Any:
        return {"text": "hi"}


class Forbids(Interceptor):
    """Denies at one place, or fails there."""

    def __init__(self, place: str, exception: Exception) -> None:
        self.place = place
        self.exception = exception

    def _at(self, place: str) -> None:
        if place == self.place:
            raise self.exception

    async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
        self._at("prompt")
        return prompt

    async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Any) -> ModelReply:
        self._at("model")
        return await ask(request)

    async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
        self._at("tool")
        return arguments

    async def after_tool(self, call: Any, result: RenderedResult, context: ToolContext[Any]) -> RenderedResult:
        self._at("result")
        return result

    async def on_answer(self, text: str, context: ToolContext[Any]) -> str:
        self._at("answer")
        return text


class Answer(BaseModel):
    """An answer with a type."""

    celsius: int


def unavailable(_request: ModelRequest) -> Step:
    return error(ProviderUnavailable("come back later", retryable=True))


def raises(_request: ModelRequest) -> Step:
    raise KeyError("a bug of the model's")


def no_instructions(_context: ToolContext[Any]) -> str:
    raise KeyError("a bug of the application's")


# ------------------------------------------------------------------------------------------------- the table

Act: TypeAlias = Callable[[Runtime, RequestSession, Sequence[Event]], Awaitable[None]]
"""What somebody does while the request runs."""


@dataclass
class Case:
    """One ending: what the model says, how the request is made, what happens meanwhile, and how it has to end."""

    name: str
    outcome: str
    reason: str
    script: Any = field(default_factory=list[Any])
    act: Act | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    completed: int = 0  # calls whose results have to be kept

    def provider(self) -> Any:
        return self.script if hasattr(self.script, "respond") else ScriptedProvider(self.script)


def limited(**limits: Any) -> dict[str, Any]:
    return {"limits": Limits(**limits)}


def tokens(input_tokens: int = 0, output_tokens: int = 0) -> Usage:
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens)


COMPLETED = [
    Case("text", "completed", "", [text("Hi.")]),
    Case("text after calls", "completed", "", [calls(AT_ONCE, LOOK_UP), text("Hi.")], completed=2),
    Case("text after a failure", "completed", "", [calls(AT_ONCE, BROKEN), text("Hi.")], completed=1),
    Case("an empty reply, then text", "completed", "", [text(""), text("Hi.")]),
    Case("an error, then text", "completed", "", [unavailable, text("Hi.")]),
    Case("task_complete", "completed", "", [calls(AT_ONCE, ("task_complete", {"answer": "Hi."}))], completed=2),
    Case("an answer by a tool", "completed", "", [calls(("shown", {"key": "a"}), text="Look:")], completed=1),
    Case("answers by tools", "completed", "", [calls(("shown", {"key": "a"}), ("shown", {"key": "b"}))], completed=2),
    Case("output by a call", "completed", "", [calls(("final_answer", {"celsius": 3}))], options={"output": Answer}, completed=1),
    Case("output by text", "completed", "", [text('{"celsius": 3}')], options={"output": Answer}),
    Case("output repaired", "completed", "", [text("3"), text('{"celsius": 3}')], options={"output": Answer}),
    Case("noted failures", "completed", "", [calls(BROKEN), text("Hi.")], options={"note_failures": True}),
]  # fmt: skip
STOPPED = [
    Case("give_up", "stopped", "no key", [calls(AT_ONCE, ("give_up", {"reason": "no key"}))], completed=2),
    Case("rounds", "stopped", "max_rounds=1", [calls(AT_ONCE), text("So far.")], None, limited(max_rounds=1), 1),
    Case("rounds, stop", "stopped", "max_rounds=1", [calls(AT_ONCE)], None, limited(max_rounds=1, on_limit="stop"), 1),
    Case("rounds, calls in the last answer", "stopped", "max_rounds=1", [calls(AT_ONCE), calls(AT_ONCE)], None, limited(max_rounds=1), 1),
    Case("rounds, no last answer", "stopped", "max_rounds=1", [calls(AT_ONCE), error(ProviderRejected("no"))], None, limited(max_rounds=1), 1),
    Case("rounds, an empty last answer", "stopped", "max_rounds=1", [calls(AT_ONCE), text("")], None, limited(max_rounds=1), 1),
    Case("calls", "stopped", "max_tool_calls=1", [calls(AT_ONCE, LOOK_UP), text("One.")], None, limited(max_tool_calls=1), 1),
    Case("errors", "stopped", "max_consecutive_errors=2", [calls(BROKEN), calls(BROKEN), text("Down.")], None, limited(max_consecutive_errors=2)),
    Case("repeats", "stopped", "max_repeats=2", [*[calls(AT_ONCE)] * 4, text("Again.")], None, limited(max_repeats=2), 2),
    Case("time, in a tool", "stopped", "timeout_seconds=5", [calls(LOOK_UP, FOR_EVER)], None, limited(timeout_seconds=5), 1),
    Case("time, in the model", "stopped", "timeout_seconds=5", Slow(), None, limited(timeout_seconds=5)),
    Case("time, in a swallowing tool", "stopped", "timeout_seconds=5", [calls(AT_ONCE, ("swallows", {}))], None, limited(timeout_seconds=5), 1),
    Case("input tokens", "stopped", "max_input_tokens=5", [calls(AT_ONCE, usage=tokens(6))], None, limited(max_input_tokens=5), 1),
    Case("output tokens", "stopped", "max_output_tokens=5", [calls(AT_ONCE, usage=tokens(0, 6))], None, limited(max_output_tokens=5), 1),
    Case("cost", "stopped", "max_cost=5", [calls(AT_ONCE, usage=tokens(6))], None, {**limited(max_cost=5.0), "prices": {"*": Price(input_per_million=1_000_000, output_per_million=0)}}, 1),
    Case("fail_fast", "stopped", "on_failure=fail_fast", [calls(AT_ONCE, BROKEN, FOR_EVER)], None, limited(on_failure="fail_fast"), 1),
    Case("fail_fast, swallowing", "stopped", "on_failure=fail_fast", [calls(("swallows", {}), BROKEN)], None, limited(on_failure="fail_fast")),
    Case("stop_on", "stopped", "stop_on=unknown_tool", [calls(AT_ONCE, ("nothing", {}))], None, limited(stop_on={"unknown_tool"})),
    Case("stop_on a time-out", "stopped", "stop_on=timeout", [calls(LOOK_UP, FOR_EVER)], None, limited(stop_on={"timeout"}, tool_timeout_seconds=5), 1),
]  # fmt: skip
FAILED = [
    Case("rejected", "failed", "provider_rejected", [calls(AT_ONCE), error(ProviderRejected("no key"))], completed=1),
    Case("unavailable", "failed", "provider_unavailable", [unavailable] * 3),
    Case("silent", "failed", "provider_timeout", Slow(), None, limited(model_timeout_seconds=5, max_model_attempts=1)),
    Case("empty twice", "failed", "empty_reply", [calls(AT_ONCE), text(""), text("")], completed=1),
    Case("output never valid", "failed", "invalid_output", [text("3")] * 3, options={"output": Answer}),
    Case("denied prompt", "failed", "denied", [], options={"interceptors": [Forbids("prompt", Denied("not here"))]}),
    Case("denied model call", "failed", "denied", [], options={"interceptors": [Forbids("model", Denied("not now"))]}),
    Case("denied answer", "failed", "denied", [calls(AT_ONCE), text("No.")], None, {"interceptors": [Forbids("answer", Denied("no"))]}, 1),
    *(
        Case(f"broken interceptor: {place}", "failed", "application_error", [calls(AT_ONCE), text("No.")], None, {"interceptors": [Forbids(place, KeyError("x"))]}, completed)
        for place, completed in (("prompt", 0), ("model", 0), ("tool", 0), ("answer", 1))
    ),
    Case("no price", "failed", "configuration_error", [text("Hi.")], None, {**limited(max_cost=5.0), "prices": {"another": Price(input_per_million=1, output_per_million=1)}}),
    Case("broken instructions", "failed", "application_error", options={"instructions": no_instructions}),
    Case("broken provider", "failed", "application_error", [calls(AT_ONCE), raises], completed=1),
    Case("no reply", "failed", "application_error", NoModel()),
    Case("no script", "failed", "script_error", [calls(AT_ONCE)], completed=1),
]  # fmt: skip


async def cancel_at_once(_runtime: Runtime, session: RequestSession, _heard: Sequence[Event]) -> None:
    assert session.cancel("enough")


async def cancel_later(_runtime: Runtime, session: RequestSession, _heard: Sequence[Event]) -> None:
    await settle()
    assert session.cancel("enough")


async def cancel_by_event(runtime: Runtime, session: RequestSession, _heard: Sequence[Event]) -> None:
    await settle()
    assert runtime.bus.publish(CancelRequested(request_id=session.request_id, reason="enough"))


def cancel_on(kind: type[Event]) -> Act:
    async def act(_runtime: Runtime, session: RequestSession, heard: Sequence[Event]) -> None:
        await settle()
        assert any(isinstance(event, kind) for event in heard)
        assert session.cancel("enough")

    return act


async def drain(runtime: Runtime, _session: RequestSession, _heard: Sequence[Event]) -> None:
    await settle()
    assert await runtime.drain(timeout_seconds=5) == 1


CANCELLED = [
    Case("before the start", "cancelled", "enough", [], cancel_at_once),
    Case("in the model call", "cancelled", "enough", Slow(), cancel_later),
    Case("in tools", "cancelled", "enough", [calls(AT_ONCE, FOR_EVER, LOOK_UP)], cancel_later, completed=1),
    Case("in a swallowing tool", "cancelled", "enough", [calls(("swallows", {}), AT_ONCE)], cancel_later, completed=1),
    Case("in sequential tools", "cancelled", "enough", [calls(("in_order", {"key": "1"}), ("in_order", {"key": "2"}))], cancel_later),
    Case("while a tool waits to be tried again", "cancelled", "enough", [calls(("tried_again", {}))], cancel_on(ToolCallRetrying)),
    Case("while it waits for approval", "cancelled", "enough", [calls(("delete", {"key": "x"}), AT_ONCE)], cancel_on(ApprovalRequested), completed=1),
    Case("while it backs off", "cancelled", "enough", [calls(AT_ONCE), unavailable], cancel_on(ModelRetrying), completed=1),
    Case("by an event", "cancelled", "enough", [calls(AT_ONCE, FOR_EVER)], cancel_by_event, completed=1),
    Case("drained", "cancelled", "the runtime is closing", [calls(AT_ONCE, FOR_EVER)], drain, completed=1),
]  # fmt: skip
CASES = [*COMPLETED, *STOPPED, *FAILED, *CANCELLED]


# ------------------------------------------------------------------------------------------------- the checks

CONVERSATION = "c"


async def talk_before(runtime: Runtime) -> list[Message]:
    """A first turn with a call, so that each ending stands behind a history."""
    provider = ScriptedProvider([calls(AT_ONCE), text("Hello.")])
    result = await runtime.run("Hello?", conversation_id=CONVERSATION, provider=provider, limits=Limits())
    return result.messages


async def check(
    runtime: Runtime, result: RequestResult[Any], heard: Sequence[Event], history: Sequence[Message], case: Case
) -> None:
    assert (result.outcome, result.reason) == (case.outcome, case.reason), result.timeline()
    # A turn that is cancelled before it has begun knows nothing of its conversation, and leaves nothing there.
    stands = history if case.name == "before the start" else result.messages
    assert stands[: len(history)] == history
    assert_ended_well(heard, result)
    assert_kept(heard, result)
    assert sum(call.ok for call in result.tool_calls) == case.completed
    await assert_goes_on(runtime, CONVERSATION, stands)


@pytest.mark.guarantee("G06", "G08", "G09", "G10")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_request_ends_well_whatever_its_ending_is(case: Case) -> None:
    runtime = Runtime(ScriptedProvider([]), tools=TOOLS)
    async with runtime:
        history = await talk_before(runtime)
        heard = listen(runtime.bus)
        provider = case.provider()
        session = runtime.start("Go.", conversation_id=CONVERSATION, provider=provider, **case.options)
        if case.act is not None:
            await case.act(runtime, session, heard)
        result = await session.result()
        for request in getattr(provider, "requests", ()):
            assert_valid([each for each in request.messages if each.role != "system"])
        if case.name != "drained":
            await check(runtime, result, heard, history, case)
    await assert_left_idle(runtime)
    if case.name == "drained":
        async with runtime:
            await check(runtime, result, heard, history, case)
        await assert_left_idle(runtime)


@pytest.mark.guarantee("G10", "G16")
async def test_a_turn_that_is_cancelled_behind_another_one_ends_at_once_and_harms_nobody() -> None:
    async with Runtime(ScriptedProvider([calls(LOOK_UP), text("First.")]), tools=TOOLS) as runtime:
        heard = listen(runtime.bus)
        first = runtime.start("First?", conversation_id=CONVERSATION)
        second = runtime.start("Second?", conversation_id=CONVERSATION)
        third = runtime.start("Third?", conversation_id=CONVERSATION, provider=ScriptedProvider([text("Third.")]))
        await settle()
        assert second.cancel("enough")
        cancelled = await second.result()
        assert not first.ended
        assert (cancelled.outcome, cancelled.reason) == ("cancelled", "enough")
        results = [await first.result(), await third.result()]
        assert [result.text for result in results] == ["First.", "Third."]
        for result in (*results, cancelled):
            assert_ended_well(heard, result)
        await assert_goes_on(runtime, CONVERSATION, results[1].messages)
    await assert_left_idle(runtime)


@pytest.mark.guarantee("G10", "G16")
async def test_a_request_that_is_cancelled_while_it_waits_for_a_place_ends_at_once() -> None:
    async with Runtime(Slow(), tools=TOOLS, max_sessions=1) as runtime:
        heard = listen(runtime.bus)
        running = runtime.start("First?")
        waiting = runtime.start("Second?", conversation_id=CONVERSATION)
        await settle()
        waiting.cancel("enough")
        result = await waiting.result()
        assert (result.outcome, result.reason, running.ended) == ("cancelled", "enough", False)
        assert_ended_well(heard, result)
        running.cancel()
        await running.result()
        await assert_goes_on(runtime, CONVERSATION, [])  # it has never begun
    await assert_left_idle(runtime)


# ------------------------------------------------------------------------------------------------- the host

MOMENTS: dict[str, tuple[Any, int]] = {
    "in the model call": (Slow(), 0),
    "in tools": ([calls(AT_ONCE, FOR_EVER, ("swallows", {}))], 1),
    "while it waits for approval": ([calls(AT_ONCE, ("delete", {"key": "x"}))], 1),
    "while it backs off": ([unavailable], 0),
}
HOSTS = ("run", "task group", "runtime's scope", "runtime's scope while it drains", "exception")
BY_SESSION = ("run", "task group")


@pytest.mark.guarantee("G06", "G08", "G09", "G10", "G16")
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("host", HOSTS)
async def test_a_request_ends_cancelled_with_its_host(host: str, moment: str) -> None:
    script, completed = MOMENTS[moment]
    case = Case(host, "cancelled", "", script, completed=completed)
    options: dict[str, Any] = {"conversation_id": CONVERSATION, "provider": case.provider()}
    runtime = Runtime(ScriptedProvider([]), tools=TOOLS)
    with anyio.CancelScope() as around, contextlib.suppress(KeyError):
        async with runtime:
            history = await talk_before(runtime)
            heard = listen(runtime.bus)
            if host in BY_SESSION:
                session = await run_and_cancel(runtime, heard, options, whole=host == "task group")
            else:
                session = runtime.start("Go.", **options)
                await settle()
                if host == "exception":
                    raise KeyError("mine")
                around.cancel()
                if not host.endswith("drains"):
                    await anyio.sleep_forever()
    result = await session.result()
    hosts = {"the host cancelled the request", "the runtime was left by an exception", "the runtime was cancelled"}
    assert result.reason in hosts
    case.reason = result.reason
    if host not in BY_SESSION:  # the handlers are cancelled with it: one that swallows that may still be in time
        case.completed = sum(call.ok for call in result.tool_calls)
        assert case.completed >= completed
    await assert_left_idle(runtime)
    async with runtime:
        await check(runtime, result, heard, history, case)
    await assert_left_idle(runtime)


async def run_and_cancel(
    runtime: Runtime, heard: Sequence[Event], options: Mapping[str, Any], *, whole: bool
) -> RequestSession:
    """Cancel `run` as far as it comes without time, or the `whole` task group that it runs in."""
    sessions: list[RequestSession] = []
    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()

        async def run() -> None:
            with scope:
                await runtime.run("Go.", **options)
                raise AssertionError("it was cancelled, and has returned")

        group.start_soon(run)
        await settle()
        (started,) = [event for event in heard if isinstance(event, RequestStarted)]
        session = runtime.session(started.request_id)
        assert session is not None
        sessions.append(session)
        (group.cancel_scope if whole else scope).cancel()
    return sessions[0]


# ------------------------------------------------------------------------------------------------- stores


class Faulty(JournaledStore):
    """A store whose journal fails at one append of the newest request."""

    def __init__(self) -> None:
        super().__init__(self.at_an_append)
        self.appends = 0
        self.fails_at = -1
        self.hangs = False

    async def at_an_append(self, _entry: Entry) -> None:
        place, self.appends = self.appends, self.appends + 1
        await anyio.lowlevel.checkpoint()
        if place == self.fails_at:
            if self.hangs:
                await anyio.sleep_forever()
            raise OSError("the disk is full")


SCRIPT = [calls(AT_ONCE, LOOK_UP), calls(AT_ONCE, BROKEN), text("Done.")]
APPENDS = 7  # of such a request


@pytest.mark.guarantee("G06", "G08", "G09", "G10", "G11", "G31")
@pytest.mark.parametrize("fault", ["raises", "hangs"])
@pytest.mark.parametrize("place", range(APPENDS))
async def test_a_journal_that_fails_leaves_the_request_and_harms_no_other_turn(
    place: int, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Faulty()
    runtime = Runtime(ScriptedProvider([]), tools=TOOLS, store=store)
    async with runtime:
        history = await talk_before(runtime)
        heard = listen(runtime.bus)
        store.appends, store.fails_at, store.hangs = 0, place, fault == "hangs"
        result = await result_of(runtime.run("Go.", conversation_id=CONVERSATION, provider=ScriptedProvider(SCRIPT)))
        assert (result.outcome, result.reason) == ("failed", "store_unavailable" if store.hangs else "store_error")
        assert (result.resumable, result.journaled) == (place > 0, False), "a first step that failed has begun nothing"
        mine = [event for event in heard if event.request_id == result.request_id and event.is_fact]
        mine = [event for event in mine if not event.is_derived]
        assert [event.type for event in mine if isinstance(event, ENDINGS)] == [mine[-1].type] == ["request_failed"]
        written = {fact.event_id for entry in store.entries for fact in entry.facts}
        assert [event.type for event in mine if event.event_id not in written] == ["request_failed"]
        assert_valid(result.messages)
        assert_kept(heard, result)
        await settle()  # the step is offered once more, and the request let go
        kept = [*await store.history(CONVERSATION)]
        is_ended = place == APPENDS - 1
        assert kept == ([*result.messages] if is_ended else history)
        await assert_goes_on(runtime, CONVERSATION, kept)
        assert store.journal is not None
        left = await store.journal.unfinished()
        assert [each.request_id for each in left] == ([result.request_id] if 0 < place < APPENDS - 1 else [])
    await assert_left_idle(runtime)
    reported = [
        each for each in caplog.records if each.levelno > logging.INFO and "tool broken failed" not in each.getMessage()
    ]
    of_it = [each for each in reported if getattr(each, "request_id", "") == result.request_id]
    assert [(each.levelname, each.exc_info) for each in of_it] == [("WARNING", None)]


class Forgetful(MemoryStore):
    """A store that does not find a conversation once."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = False

    async def history(self, conversation_id: str) -> Sequence[Message]:
        if self.broken:
            self.broken = False
            raise OSError("gone")
        return await super().history(conversation_id)


@pytest.mark.guarantee("G10")
async def test_a_store_that_does_not_find_the_history_fails_one_turn_and_no_other() -> None:
    store = Forgetful()
    async with Runtime(ScriptedProvider([]), tools=TOOLS, store=store) as runtime:
        history = await talk_before(runtime)
        heard = listen(runtime.bus)
        store.broken = True
        result = await result_of(runtime.run("Go.", conversation_id=CONVERSATION))
        assert (result.outcome, result.reason, result.messages) == ("failed", "store_error", [])
        assert [event.type for event in heard if event.request_id == result.request_id and event.is_fact] == [
            "request_failed"
        ]
        await assert_goes_on(runtime, CONVERSATION, history)
    await assert_left_idle(runtime)
