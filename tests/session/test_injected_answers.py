"""Answers that come from outside of the application: only an open external call takes one, and it counts once."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import anyio
import pytest

from toolbus import Runtime, Tool, tool
from toolbus.errors import BusError
from toolbus.events import (
    CancelRequested,
    DeadLetter,
    Event,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallLate,
    ToolCallRequested,
    decode,
    encode,
)
from toolbus.records import replace
from toolbus.session import RequestSession
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, advance, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()

ran: list[str] = []


@tool
async def look() -> str:
    """Look."""
    ran.append("look")
    return "seen"


@tool
async def wait_here() -> str:
    """Wait."""
    await anyio.sleep_forever()
    return ""


def outside(**options: Any) -> Tool:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    return Tool("ask", "Ask somebody.", schema, external=True, validate=lambda _arguments: None, **options)


async def asked(runtime: Runtime) -> tuple[RequestSession, ToolCallRequested]:
    """A request whose external call is open, and the request of that call as a transport brings it."""
    heard: list[ToolCallRequested] = []
    runtime.bus.connect(ToolCallRequested, lambda each: heard.append(each) if each.name == "ask" else None)
    session = runtime.start("Ask.", metadata={"tenant": "ours"})
    await settle()
    (requested,) = heard
    came = decode(encode(requested))
    assert isinstance(came, ToolCallRequested)
    return session, came


def asking(*others: str) -> ScriptedProvider:
    wanted: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in ("ask", *others)]
    return ScriptedProvider([calls(*wanted), text("Done.")])


async def test_an_answer_from_outside_counts_once_however_often_it_comes() -> None:
    async with Runtime(asking(), tools=[outside()]) as runtime:
        heard: list[Event] = []
        runtime.bus.connect((ToolCallCompleted, ToolCallLate), heard.append)
        session, requested = await asked(runtime)
        answer = replace(requested.completed("Blue."), metadata={"tenant": "theirs"})
        assert [session.inject(answer), session.inject(answer)] == [True, True]
        assert not session.inject(requested.completed("Green."))
        result = await session.result()
        assert session.inject(answer)
        assert await session.recorded(answer)
    assert result.tool_calls[0].content == "Blue."
    assert [(type(each), each.metadata) for each in heard] == [
        (ToolCallCompleted, {"tenant": "ours"}),
        (ToolCallLate, {"tenant": "ours"}),
    ]


UNUSABLE: dict[str, dict[str, Any]] = {
    "it is not JSON: Type is not JSON serializable: decimal.Decimal, at data.prices[1].tea": {
        "data": {"prices": [1, {"tea": Decimal(3)}]}
    },
    "it is not JSON: Type is not JSON serializable: decimal.Decimal, at metadata.rate": {
        "metadata": {"rate": Decimal(3)}
    },
    "event.content: Expected str, got object": {"content": {"price": 3}},
}


@pytest.mark.guarantee("G06")
@pytest.mark.parametrize("problem", UNUSABLE)
@pytest.mark.parametrize("journal", [True, False])
async def test_an_answer_on_the_bus_that_cannot_be_used_fails_its_call_and_says_where_it_is_wrong(
    problem: str, caplog: pytest.LogCaptureFixture, *, journal: bool
) -> None:
    async with Runtime(asking(), tools=[outside()], store=MemoryStore(journal=journal)) as runtime:
        session, requested = await asked(runtime)
        answer = replace(requested.completed("Blue."), **UNUSABLE[problem])
        is_taken = runtime.bus.publish(answer)
        result = await session.result()
        assert await session.recorded(answer) is (is_taken or not journal)
    (call,) = result.tool_calls
    assert (result.outcome, call.ok) == ("completed", is_taken)
    # Without a journal, the data and the metadata of an answer may hold anything.
    assert is_taken is (not journal and "content" not in problem)
    if not is_taken:
        assert (call.reason, call.error) == ("error", f"The answer of ask cannot be used: {problem}.")
        assert f"call {requested.call_id}: the answer to tool ask cannot be used: {problem}" in caplog.messages


@pytest.mark.parametrize("journal", [True, False])
async def test_other_inputs_on_the_bus_that_cannot_be_used_are_refused_and_say_why(*, journal: bool) -> None:
    async with Runtime(asking(), tools=[outside()], store=MemoryStore(journal=journal)) as runtime:
        session, requested = await asked(runtime)
        heard: list[DeadLetter] = []
        runtime.bus.connect(DeadLetter, heard.append)
        wrong: Any = {"really": True}
        assert not runtime.bus.publish(SteeringAdded(request_id=session.request_id, text=wrong))
        assert not runtime.bus.publish(CancelRequested(request_id=session.request_id, reason=wrong))
        assert runtime.bus.publish(requested.completed("Blue."))
        assert not runtime.bus.publish(replace(requested.completed(""), content=wrong))
        assert (await session.result()).text == "Done."
    said = "it cannot be used: event.{}: Expected str, got object"
    assert [each.reason for each in heard] == [said.format("text"), said.format("reason")]


async def test_events_from_outside_that_answer_no_open_external_call_are_refused_and_nothing_runs() -> None:
    ran.clear()
    async with Runtime(asking("wait_here"), tools=[outside(), wait_here, look]) as runtime:
        session, requested = await asked(runtime)
        heard: list[Event] = []
        runtime.bus.connect(Event, heard.append)
        other = requested.call_id[:-1] + "1"
        forged: dict[str, Event] = {
            "the ToolCallRequested is refused": replace(requested, name="look"),
            "the SteeringAdded is refused": SteeringAdded(request_id=session.request_id, text="Do it."),
            "made no such call": replace(requested.completed("x"), call_id="nobody's"),
            "wait_here is not an external tool": replace(requested.completed("x"), call_id=other, name="wait_here"),
        }
        more = [replace(requested.completed("x"), request_id="another"), replace(requested.completed("x"), name="look")]
        for problem, event in [*forged.items(), *(("made no such call", each) for each in more)]:
            with pytest.raises(BusError, match=problem):
                session.inject(event)
        await settle()
        assert (heard, ran) == ([], [])
        session.cancel()


async def test_a_call_that_waits_for_approval_takes_no_answer_from_outside() -> None:
    async with Runtime(asking(), tools=[outside(needs_approval=True)], on_approval="wait") as runtime:
        session = runtime.start("Ask.")
        await settle()
        (question,) = session.pending_approvals
        answer = ToolCallCompleted(
            request_id=session.request_id, call_id=question.call_id, name="ask", content="approved by me"
        )
        with pytest.raises(BusError, match="was not requested"):
            session.inject(answer)
        session.cancel()


async def test_a_request_of_a_call_that_nobody_opened_here_runs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    ran.clear()
    async with Runtime(asking(), tools=[outside(), look]) as runtime:
        session, requested = await asked(runtime)
        runtime.bus.publish(replace(requested, request_id="another", name="look"))
        runtime.bus.publish(replace(requested, request_id="another", call_id="another_0_0", name="look"))
        await advance(1)
        assert ran == []
        session.cancel()
    assert "was not run: no session here has opened it" in caplog.text


async def test_a_request_that_was_left_for_another_process_takes_no_answer_and_reports_none() -> None:
    heard: list[Event] = []
    async with Runtime(asking(), tools=[outside()], store=MemoryStore(journal=True)) as runtime:
        session, requested = await asked(runtime)
        runtime.bus.connect((ToolCallCompleted, ToolCallLate, DeadLetter), heard.append)
        assert await runtime.drain(timeout_seconds=0) == 1
        assert (await session.result()).resumable
        assert not session.inject(requested.completed("Blue."))
    assert heard == []
