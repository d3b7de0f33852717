"""A request is cancelled at each of its suspensions and of its handlers', enumerated: it always ends well.

Three rounds, with tools that complete, wait, swallow their cancellation, break or take time in their cleanup, or run in
a thread. Cancelled in three ways: by its handle, by a scope around `run`, and on asyncio by `Task.cancel`.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from endings.ended_well import assert_ended_well, assert_goes_on, assert_kept, assert_left_idle, assert_valid, listen
from endings.stepping import Moment, Place, stepped
from support.journaled import JournaledStore
from toolbus import RequestResult, RequestSession, Runtime, tool
from toolbus.events import Event, ToolCallCompleted, ToolCallFailed, ToolCallStarted
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.storage import Entry
from toolbus.testing import ScriptedProvider, advance, calls, text, virtual_backends

anyio_backend = virtual_backends()

pytestmark = pytest.mark.repeats("the same request, ended at each of its places")

GRACE_SECONDS = 5.0


# ------------------------------------------------------------------------------------------------- what is cancelled


@dataclass
class Stage:
    """The request that is stepped now, by its session's suspensions or its handlers'."""

    place: Place
    of_handlers: bool = False
    journal: bool = False
    session: RequestSession | None = None
    answers: list[bool] = field(default_factory=list[bool])  # what `session.cancel` said

    def cancel_session(self) -> None:
        assert self.session is not None
        self.answers.append(self.session.cancel("enough"))


STAGES: list[Stage] = []


def counted(function: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
    """A handler whose suspensions are counted, if the handlers' are."""

    @functools.wraps(function)
    async def handler(*args: Any, **arguments: Any) -> str:
        coroutine: Any = function(*args, **arguments)
        if STAGES and STAGES[-1].of_handlers:
            coroutine = stepped(coroutine, STAGES[-1].place)
        return await coroutine

    return handler


@tool
@counted
async def completes(n: int) -> str:
    """Complete at once."""
    return f"completed {n}"


@tool
@counted
async def waits(n: int) -> str:
    """Wait."""
    await anyio.sleep(1)
    await anyio.sleep(1)
    return f"waited {n}"


@tool
@counted
async def swallows(n: int) -> str:
    """Swallow the cancellation."""
    try:
        await anyio.sleep(2)
    except anyio.get_cancelled_exc_class():
        return f"swallowed {n}"
    return f"slept {n}"


@tool
@counted
async def breaks(n: int) -> str:
    """Break in the cleanup."""
    try:
        await anyio.sleep(1.5)
    except anyio.get_cancelled_exc_class():
        raise RuntimeError("the cleanup broke") from None
    return f"done {n}"


@tool
@counted
async def delays(n: int) -> str:
    """Take two seconds for the cleanup."""
    try:
        await anyio.sleep(1.5)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(2)
    return f"cleaned {n}"


@tool
def threaded(n: int) -> str:
    """Run in a thread."""
    return f"threaded {n}"


TOOLS = [completes, waits, swallows, breaks, delays, threaded]


def round_of(number: int, *names: str) -> Any:
    return calls(*((name, {"n": number}) for name in names))


def script(*threaded: str) -> list[Any]:
    return [
        round_of(0, "completes", "waits", "swallows", *threaded),
        round_of(1, "breaks", "delays", "completes"),
        round_of(2, "swallows", *threaded, "waits"),
        text("All done."),
    ]


class Model:
    """A model that takes its time, and follows the script in each request."""

    vendor = "slow"

    def __init__(self) -> None:
        steps = script("threaded")
        self._script = ScriptedProvider(lambda request: steps[request.round])

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        assert_valid(request.messages)
        await anyio.sleep(0.5)
        return await self._script.respond(request, emit)


async def slowly(_entry: Entry) -> None:
    await anyio.sleep(0.01)


# ------------------------------------------------------------------------------------------------- how it is cancelled


async def by_handle(runtime: Runtime, stage: Stage, **options: Any) -> None:
    stage.place.act = stage.cancel_session
    await runtime.run("Go.", **options)


async def by_scope(runtime: Runtime, stage: Stage, **options: Any) -> None:
    with anyio.CancelScope() as scope:
        stage.place.act = scope.cancel
        await runtime.run("Go.", **options)
    assert scope.cancelled_caught or not stage.place.reached or outcome_of(stage) == "completed"


async def by_task(runtime: Runtime, stage: Stage, **options: Any) -> None:
    task = asyncio.create_task(runtime.run("Go.", **options))
    stage.place.act = task.cancel
    await asyncio.wait([task])
    assert task.cancelled() or outcome_of(stage) == "completed"


def outcome_of(stage: Stage) -> str:
    """How the request has ended, which must be known by now."""
    assert stage.session is not None
    assert stage.session.ended
    result: RequestResult[Any] | None = getattr(stage.session, "_result", None)
    assert result is not None
    return result.outcome


HOW = {"handle": by_handle, "scope": by_scope, "task": by_task}


@pytest.fixture(autouse=True)
def stepping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps the sessions of requests with the metadata `stepped`."""
    run = RequestSession.run

    def stepped_run(session: RequestSession, **options: Any) -> Any:
        running = run(session, **options)
        if not (session.metadata or {}).get("stepped"):
            return running
        stage = STAGES[-1]
        stage.session = session
        return running if stage.of_handlers else stepped(running, stage.place)

    monkeypatch.setattr(RequestSession, "run", stepped_run)


async def play(stage: Stage, how: str) -> None:
    """One request, cancelled at its place in one way, with all that has to hold afterwards."""
    STAGES[:] = [stage]
    store = JournaledStore(slowly) if stage.journal else None
    async with Runtime(Model(), tools=TOOLS, grace_seconds=GRACE_SECONDS, store=store) as runtime:
        heard = listen(runtime.bus)
        await HOW[how](runtime, stage, conversation_id="c", metadata={"stepped": True})
        assert stage.session is not None
        result = await stage.session.result()
        check(stage, result, heard)
        await advance(GRACE_SECONDS + 0.1)
        statistics = runtime.dispatcher.statistics()
        assert (statistics.running, statistics.queued, statistics.threads, statistics.overdue) == (0, 0, 0, ())
        await assert_goes_on_idle(runtime, result)
        assert_ended_well(heard, result)  # nothing that came later has changed it
    await assert_left_idle(runtime)


async def assert_goes_on_idle(runtime: Runtime, result: RequestResult[Any]) -> None:
    await assert_goes_on(runtime, "c", result.messages)
    assert runtime.bus.statistics().mailboxes == 0
    assert runtime.bus.statistics().open_calls == 0


def check(stage: Stage, result: RequestResult[Any], heard: Sequence[Event]) -> None:
    assert_ended_well(heard, result)
    assert_kept(heard, result)
    assert_not_begun_behind_their_end(heard)
    if stage.answers == [True]:
        assert (result.outcome, result.reason) == ("cancelled", "enough")
    elif result.outcome == "cancelled":
        assert stage.place.reached
        assert "cancelled" in result.reason
    else:
        assert (result.outcome, result.text) == ("completed", "All done.")
        # All was done when it was cancelled; a journal's last append is shielded, or done again.
        at_the_end = stage.place.count - stage.place.at <= (3 if stage.journal else 1)
        assert not stage.place.reached or stage.of_handlers or at_the_end


def assert_not_begun_behind_their_end(heard: Sequence[Event]) -> None:
    ended: set[str] = set()
    for event in heard:
        if isinstance(event, (ToolCallCompleted, ToolCallFailed)):
            ended.add(event.call_id)
        elif isinstance(event, ToolCallStarted):
            assert event.call_id not in ended


async def everywhere(how: str, moment: Moment, *, of_handlers: bool = False, journal: bool = False) -> int:
    """Cancel at each suspension, until there is none of that number. Returns how many there are."""
    for at in itertools.count():
        stage = Stage(Place(at, moment), of_handlers, journal)
        try:
            await play(stage, how)
        except BaseException as exc:
            exc.add_note(f"cancelled by {how} at suspension {at}, {moment}, of {'handlers' if of_handlers else 'run'}")
            raise
        if not stage.place.reached:
            return at
    raise AssertionError


# ------------------------------------------------------------------------------------------------- at each suspension

MOMENTS: tuple[Moment, ...] = ("suspended", "resumed")
WAYS = [(how, moment) for how in ("handle", "scope") for moment in MOMENTS]


@pytest.mark.guarantee("G06", "G07", "G09", "G16", "G17")
@pytest.mark.parametrize("journal", [False, True], ids=["", "journal"])
@pytest.mark.parametrize(("how", "moment"), WAYS)
async def test_a_request_that_is_cancelled_at_any_suspension_ends_well(how: str, moment: Moment, journal: bool) -> None:
    assert await everywhere(how, moment, of_handlers=False, journal=journal) >= (20 if journal else 10)


@pytest.mark.guarantee("G06", "G07", "G09", "G16", "G17")
@pytest.mark.parametrize(("how", "moment"), WAYS)
async def test_a_request_that_is_cancelled_at_any_suspension_of_its_handlers_ends_well(
    how: str, moment: Moment
) -> None:
    assert await everywhere(how, moment, of_handlers=True) >= 9


@pytest.mark.guarantee("G06", "G07", "G09", "G16", "G17")
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    ("of_handlers", "journal"), [(False, False), (True, False), (False, True)], ids=["run", "handlers", "journal"]
)
async def test_a_request_whose_asyncio_task_is_cancelled_at_any_suspension_ends_well(
    moment: Moment, of_handlers: bool, journal: bool
) -> None:
    assert await everywhere("task", moment, of_handlers=of_handlers, journal=journal) >= 9


# ------------------------------------------------------------------------------------------------- two turns at once


async def two_turns(at: int, moment: Moment, stepped_turn: int) -> bool:
    """Two turns of one conversation at once, of which one is cancelled. Returns whether it was."""
    stage = Stage(Place(at, moment))
    stage.place.act = stage.cancel_session
    STAGES[:] = [stage]
    async with Runtime(Model(), tools=TOOLS, grace_seconds=GRACE_SECONDS) as runtime:
        heard = listen(runtime.bus)
        sessions = [
            runtime.start(f"Turn {number}.", conversation_id="c", metadata={"stepped": number == stepped_turn})
            for number in range(2)
        ]
        results = [await session.result() for session in sessions]
        for result in results:
            assert_ended_well(heard, result)
            assert_kept(heard, result)
        assert_not_begun_behind_their_end(heard)
        other = results[1 - stepped_turn]
        assert (other.outcome, other.text) == ("completed", "All done.")
        assert results[stepped_turn].outcome == ("cancelled" if stage.answers == [True] else "completed")
        first, second = results
        if second.history_count:
            assert second.messages[: second.history_count] == first.messages
            earlier = second.messages
        else:  # it was cancelled while it waited, and leaves nothing in the conversation
            assert (second.outcome, stepped_turn) == ("cancelled", 1)
            earlier = first.messages
        reported = [message.text for message in second.new_messages if message.role == "user"]
        assert reported == ["Turn 1."]
        await assert_goes_on(runtime, "c", earlier)
    await assert_left_idle(runtime)
    return stage.place.reached


@pytest.mark.guarantee("G08", "G09", "G16")
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("stepped_turn", [0, 1], ids=["first", "second"])
async def test_of_two_turns_at_once_one_is_cancelled_at_any_suspension_and_the_other_completes(
    moment: Moment, stepped_turn: int
) -> None:
    for at in itertools.count():
        try:
            if not await two_turns(at, moment, stepped_turn):
                assert at >= 10
                return
        except BaseException as exc:
            exc.add_note(f"turn {stepped_turn} was cancelled at suspension {at}, {moment}")
            raise
