"""Questions of a request: answered by the application's function, denied where nobody can answer, and left to wait."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from support.slow_journal import SlowJournal
from toolbus import EventBus, Limits, RequestSession, Runtime, Tool, sub_request_tool, tool
from toolbus.core.transcript import validate
from toolbus.errors import ConfigurationError
from toolbus.events import (
    ApprovalDecided,
    ApprovalRequested,
    DeadLetter,
    Event,
    StatusChanged,
    TextDelta,
    ToolCallRequested,
)
from toolbus.messages import ToolMessage
from toolbus.session import Resumed, SessionStart
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, advance, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()

HOUR = 3_600
WAY_OUT = (
    "toolbus denied the call: nobody can be asked. The application has to give on_approval=, listen for "
    "ApprovalRequested, or set on_approval='wait' and decide on pending_approvals"
)


@tool(needs_approval=True)
async def remove(path: str) -> str:
    """Remove a file."""
    return f"{path} is gone"


def removing(*paths: str) -> ScriptedProvider:
    """A model that removes these files at once, and then answers."""
    wanted = [("remove", {"path": path}) for path in paths or ("a",)]
    return ScriptedProvider(lambda request: text("done") if request.round else calls(*wanted))


def desk() -> Tool:
    return sub_request_tool("desk", "Does what it is told.", provider=removing(), tools=[remove])


def asking_the_desk() -> ScriptedProvider:
    return ScriptedProvider(lambda request: text("done") if request.round else calls(("desk", {"task": "go"})))


async def yes(_question: ApprovalRequested) -> bool:
    return True


# ------------------------------------------------------------------------------------------------ nobody answers


async def test_a_question_that_nobody_can_answer_is_denied_at_once_and_model_and_log_read_the_way_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Runtime(removing(), tools=[remove]) as runtime:
        result = await runtime.run("Remove a.")
        assert anyio.current_time() == 0
    (call,) = result.tool_calls
    assert (result.outcome, call.reason, call.error) == ("completed", "denied", WAY_OUT)
    (read,) = [each for each in result.messages if isinstance(each, ToolMessage)]
    assert WAY_OUT in read.content
    nobody = WAY_OUT.removeprefix("toolbus denied the call: ")
    assert [each.getMessage() for each in caplog.records] == [f"call {call.call_id}: tool remove is denied: {nobody}"]
    validate(result.messages)


async def test_only_the_calls_that_need_an_approval_are_denied() -> None:
    @tool
    async def look(path: str) -> str:
        """Look at a file."""
        return f"{path} is there"

    both = calls(("remove", {"path": "a"}), ("look", {"path": "a"}))
    async with Runtime(ScriptedProvider([both, text("done")]), tools=[remove, look]) as runtime:
        result = await runtime.run("Remove a.")
    assert [call.content or call.reason for call in result.tool_calls] == ["denied", "a is there"]


def _nothing(_event: Event) -> None:
    """Hear an event, and do nothing."""


Listen = Callable[[Runtime, RequestSession], Any]
HEARING: dict[str, Listen] = {
    "a receiver": lambda runtime, _: runtime.bus.connect(ApprovalRequested, _nothing),
    "a receiver of all events": lambda runtime, _: runtime.bus.connect(Event, _nothing),
    "a subscription": lambda runtime, _: runtime.bus.subscribe(ApprovalRequested),
    "the events of the request": lambda _, session: session.events(),
    "its questions": lambda _, session: session.events(ApprovalRequested),
}
DEAF: dict[str, Listen] = {
    "a receiver of other events": lambda runtime, _: runtime.bus.connect((StatusChanged, ApprovalDecided), _nothing),
    "a subscription to other events": lambda runtime, _: runtime.bus.subscribe(TextDelta),
    "other events of the request": lambda _, session: session.events(ToolCallRequested),
    "the text of the request": lambda _, session: session.text(),
    "the events of another request": lambda runtime, _: runtime.bus.subscribe(request_id="another"),
}


async def decided_after(listen: Listen) -> float:
    """Return the seconds after which a question is denied to which this listener says nothing."""
    async with Runtime(removing(), tools=[remove]) as runtime, AsyncExitStack() as stack:
        session = runtime.start("Remove a.")
        listener = listen(runtime, session)
        if hasattr(listener, "__aenter__"):
            await stack.enter_async_context(listener)
        result = await session.result()
        assert [call.reason for call in result.tool_calls] == ["denied"]
        return anyio.current_time()


@pytest.mark.parametrize("listen", HEARING.values(), ids=HEARING)
async def test_a_question_waits_for_whoever_hears_it(listen: Listen) -> None:
    assert await decided_after(listen) == HOUR


@pytest.mark.parametrize("listen", DEAF.values(), ids=DEAF)
async def test_who_does_not_hear_the_question_cannot_answer_it(listen: Listen) -> None:
    assert await decided_after(listen) == 0


async def test_a_question_that_was_heard_waits_although_its_listener_goes_away() -> None:
    async with Runtime(removing(), tools=[remove]) as runtime:
        disconnect = runtime.bus.connect(ApprovalRequested, lambda _question: disconnect())
        result = await runtime.run("Remove a.")
        assert anyio.current_time() == HOUR
    assert result.tool_calls[0].error == "Nobody decided on the call in time (approval_timeout_seconds=3600)."


@pytest.mark.parametrize("where", ["pending approvals", "a journal"])
@pytest.mark.parametrize("below", [False, True], ids=["", "in a sub-request"])
async def test_a_question_that_can_be_found_later_waits_for_its_time(where: str, below: bool) -> None:
    journal: dict[str, Any] = {"store": MemoryStore(journal=True), "inbox_poll_seconds": 60}  # of virtual time
    options: dict[str, Any] = journal if where == "a journal" else {"on_approval": "wait"}
    provider, tools = (asking_the_desk(), [desk()]) if below else (removing(), [remove])
    async with Runtime(provider, tools=tools, **options) as runtime:
        result = await runtime.run("Remove a.")
        assert result.outcome == "completed"
        assert anyio.current_time() == HOUR


async def test_a_sub_request_that_can_ask_nobody_is_denied_at_once() -> None:
    async with Runtime(asking_the_desk(), tools=[desk()]) as runtime:
        result = await runtime.run("Remove a.")
        assert anyio.current_time() == 0
    assert result.ok


# ------------------------------------------------------------------------------------------- the application answers


@pytest.mark.parametrize("approved", [True, False])
async def test_the_applications_function_decides(approved: bool) -> None:
    asked: list[ApprovalRequested] = []

    async def decide(question: ApprovalRequested) -> bool:
        asked.append(question)
        return approved

    async with Runtime(removing(), tools=[remove], on_approval=decide) as runtime:
        result = await runtime.run("Remove a.")
    assert [each.arguments for each in asked] == [{"path": "a"}]
    (call,) = result.tool_calls
    assert (call.content or call.error) == ("a is gone" if approved else "A person denied the call.")


async def test_a_decision_may_edit_explain_and_be_remembered() -> None:
    asked: list[ApprovalRequested] = []

    async def decide(question: ApprovalRequested) -> ApprovalDecided:
        asked.append(question)
        return question.decided(approved=True, arguments={"path": "b"}, by="Ada", remember=True)

    async with Runtime(removing(), tools=[remove]) as runtime:
        for _ in range(2):
            result = await runtime.run("Remove a.", conversation_id="c", on_approval=decide)
            assert [call.ok for call in result.tool_calls] == [True]
    assert len(asked) == 1


async def test_all_questions_of_a_reply_are_asked_at_once_and_answered_in_any_order() -> None:
    order = {"a": 3, "b": 1, "c": 2}

    async def decide(question: ApprovalRequested) -> bool:
        await anyio.sleep(order[question.arguments["path"]])
        return True

    requested: list[str] = []
    async with Runtime(removing("a", "b", "c"), tools=[remove], on_approval=decide) as runtime:
        runtime.bus.connect(ToolCallRequested, lambda event: requested.append(event.arguments["path"]))
        result = await runtime.run("Remove all.")
        assert anyio.current_time() == 3
    assert requested == ["b", "c", "a"]
    assert [call.content for call in result.tool_calls] == ["a is gone", "b is gone", "c is gone"]


@pytest.mark.parametrize("answer", [None, "yes", 1, ValueError("oh")], ids=repr)
async def test_a_function_that_fails_or_returns_something_else_denies_the_call(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    async def decide(_question: ApprovalRequested) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with Runtime(removing(), tools=[remove], on_approval=decide) as runtime:
        result = await runtime.run("Remove a.")
    assert result.tool_calls[0].error == "toolbus denied the call: the application's on_approval failed"
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.getMessage().endswith(": on_approval failed, so tool remove is denied")
    if not isinstance(answer, Exception):
        assert "return True, False or question.decided(...)" in caplog.text


@pytest.mark.parametrize("ends", ["decided by somebody else", "time is over", "cancelled"])
async def test_the_function_is_cancelled_once_its_answer_is_not_needed_any_more(ends: str) -> None:
    given_up: list[float] = []
    letters: list[DeadLetter] = []

    async def decide(_question: ApprovalRequested) -> bool:
        try:
            await anyio.sleep_forever()
        finally:
            given_up.append(anyio.current_time())
        return True

    @tool
    async def wait() -> None:
        """Take a long time."""
        await anyio.sleep(20)

    script = ScriptedProvider([calls(("remove", {"path": "a"}), ("wait", {})), text("done")])
    limits = Limits(approval_timeout_seconds=5)
    async with Runtime(script, tools=[remove, wait], on_approval=decide, limits=limits) as runtime:
        asked: list[ApprovalRequested] = []
        runtime.bus.connect(ApprovalRequested, asked.append)
        runtime.bus.connect(DeadLetter, letters.append)
        session = runtime.start("Remove a.")
        await advance(2)
        if ends == "cancelled":
            session.cancel()
        elif ends != "time is over":
            runtime.bus.publish(asked[0].decided(approved=True))
        await session.result()
    assert given_up == [5 if ends == "time is over" else 2]
    assert letters == []


async def test_a_sub_request_asks_the_same_function() -> None:
    async with Runtime(asking_the_desk(), tools=[desk()], on_approval=yes) as runtime:
        decided: list[ApprovalDecided] = []
        runtime.bus.connect(ApprovalDecided, decided.append)
        result = await runtime.run("Remove a.")
    assert [each.approved for each in decided] == [True]
    assert decided[0].request_id != result.request_id


async def test_a_function_is_asked_again_by_the_process_that_resumes_the_request() -> None:
    store, asked = MemoryStore(journal=True), list[ApprovalRequested]()

    async def never(question: ApprovalRequested) -> bool:
        asked.append(question)
        await anyio.sleep_forever()
        return True

    async def decide(question: ApprovalRequested) -> bool:
        asked.append(question)
        return True

    async with Runtime(removing(), tools=[remove], store=store, on_approval=never) as runtime:
        runtime.start("Remove a.")
        await settle()
    async with Runtime(removing(), tools=[remove], store=store, on_approval=decide) as runtime:
        (resumed,) = (await runtime.resume()).sessions
        result = await resumed.result()
    assert [call.ok for call in result.tool_calls] == [True]
    assert len({each.event_id for each in asked}) == 1
    assert len(asked) == 2


async def test_a_session_without_a_runtime_asks_too() -> None:
    bus = EventBus()
    removed: list[ToolCallRequested] = []
    limits = Limits(tool_timeout_seconds=1)
    bus.connect(ToolCallRequested, removed.append)
    session = RequestSession(bus, removing(), "Remove a.", tools=[remove], on_approval=yes, limits=limits)
    await session.run()
    assert [each.arguments for each in removed] == [{"path": "a"}]


async def test_a_session_that_has_ended_elsewhere_refuses_to_run_in_the_same_way_with_and_without_answers() -> None:
    journal = SlowJournal()
    ended = RequestSession(EventBus(), ScriptedProvider([text("done")]), "hi", journal=journal)
    await ended.run()
    start = SessionStart(resumed=Resumed(facts=journal.facts, history=()))
    again = RequestSession(EventBus(), removing(), "hi", request_id=ended.request_id, on_approval=yes, start=start)
    with pytest.raises(ConfigurationError, match="runs once"):
        await again.run()


async def test_a_host_that_cancels_a_request_cancels_its_questions() -> None:
    over: list[str] = []

    async def decide(_question: ApprovalRequested) -> bool:
        try:
            await anyio.sleep_forever()
        finally:
            over.append("asking")
        return True

    async with Runtime(removing(), tools=[remove], on_approval=decide) as runtime:
        with anyio.move_on_after(1):
            await runtime.run("Remove a.")
        assert over == ["asking"]
        assert runtime.bus.statistics().mailboxes == 0
