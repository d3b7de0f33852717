"""Questions that nobody answers: each is reported once, after `remind_after_seconds`. Virtual time."""

from __future__ import annotations

import logging

import pytest

from support.journaled import JournaledStore
from toolbus import EventBus, Runtime, tool
from toolbus.errors import ConfigurationError
from toolbus.events import ApprovalOverdue, ApprovalRequested
from toolbus.testing import ScriptedProvider, advance, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def scripted(*amounts: int) -> ScriptedProvider:
    return ScriptedProvider([calls(*[("pay", {"amount": each}) for each in amounts]), text("done")])


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "has waited" in each.getMessage()]


async def test_a_question_that_is_open_for_so_long_is_reported_once(caplog: pytest.LogCaptureFixture):
    overdue: list[ApprovalOverdue] = []
    async with Runtime(scripted(1), tools=[pay], on_approval="wait", remind_after_seconds=600) as runtime:
        runtime.bus.connect(ApprovalOverdue, overdue.append)
        session = runtime.start("go", metadata={"tenant": "t"})
        await settle()
        (question,) = runtime.pending_approvals()
        await advance(599)
        assert (overdue, runtime.health().reasons) == ([], ())
        await advance(2)
        assert [(each.call_id, each.name, each.metadata) for each in overdue] == [
            (question.call_id, "pay", {"tenant": "t"})
        ]
        assert overdue[0].seconds == pytest.approx(600, abs=0.1)
        assert runtime.health().degraded
        assert runtime.health().reasons == ("overdue decisions of people: 1",)
        await advance(1200)
        assert len(overdue) == 1
        runtime.bus.publish(question.decided(approved=True))
        assert (await session.result()).outcome == "completed"
        assert runtime.health().reasons == ()
    assert lines(caplog) == [f"call {question.call_id}: tool pay has waited for a person's decision for 600 s"]
    assert [each.levelno for each in caplog.records if "has waited" in each.getMessage()] == [logging.WARNING]


async def test_each_question_has_its_own_time_and_an_answered_one_is_not_reported(caplog: pytest.LogCaptureFixture):
    async with Runtime(scripted(1), tools=[pay], on_approval="wait", remind_after_seconds=10) as runtime:
        first = runtime.start("one")
        await advance(4)
        second = runtime.start("two", provider=scripted(2))
        await advance(4)
        (answered,) = first.pending_approvals
        (kept,) = second.pending_approvals
        runtime.bus.publish(answered.decided(approved=False))
        await advance(5)
        assert lines(caplog) == []
        await advance(2)
        assert lines(caplog) == [f"call {kept.call_id}: tool pay has waited for a person's decision for 10 s"]
        second.cancel()
        await second.result()


async def test_an_overdue_question_is_not_reported_again_with_the_next_one(caplog: pytest.LogCaptureFixture):
    async with Runtime(scripted(1), tools=[pay], on_approval="wait", remind_after_seconds=10) as runtime:
        sessions = [runtime.start("one")]
        await advance(11)
        sessions.append(runtime.start("two", provider=scripted(2)))
        await advance(11)
        calls_reported = [line.split()[1].rstrip(":") for line in lines(caplog)]
        assert calls_reported == [session.pending_approvals[0].call_id for session in sessions]
        assert runtime.health().reasons == ("overdue decisions of people: 2",)
        for session in sessions:
            session.cancel()
            await session.result()


async def test_a_question_that_is_asked_again_after_a_restart_is_overdue_at_once(caplog: pytest.LogCaptureFixture):
    store, bus = JournaledStore(), EventBus()
    async with Runtime(scripted(1), tools=[pay], store=store, bus=bus) as runtime:
        session = runtime.start("go")
        await session.accepted()
        await settle()
    await advance(100)
    async with Runtime(scripted(1), tools=[pay], store=store, bus=bus, remind_after_seconds=60) as runtime:
        asked: list[ApprovalRequested] = []
        disconnect = runtime.bus.connect(ApprovalRequested, asked.append)
        (session,) = await runtime.resume()
        await settle()
        assert len(asked) == 1
        assert lines(caplog) == [f"call {asked[0].call_id}: tool pay has waited for a person's decision for 100 s"]
        session.cancel()
        await session.result()
        disconnect()
    assert bus.statistics().receivers == 0  # The runtime leaves nothing on a bus that goes on.


async def test_without_the_option_nothing_is_reported(caplog: pytest.LogCaptureFixture):
    async with Runtime(scripted(1), tools=[pay], on_approval="wait") as runtime:
        session = runtime.start("go")
        await advance(3000)
        assert lines(caplog) == []
        session.cancel()
        await session.result()


@pytest.mark.parametrize("seconds", [0, -1, "5"])
def test_seconds_that_make_no_sense_are_refused(seconds: object):
    with pytest.raises(ConfigurationError, match="remind_after_seconds is"):
        Runtime(scripted(1), remind_after_seconds=seconds)  # type: ignore[arg-type]
