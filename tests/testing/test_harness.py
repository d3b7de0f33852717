"""The harness: events in, events out, and failures that tell what happened."""

from __future__ import annotations

import anyio
import pytest

from toolbus import EventBus, Limits, ToolDispatcher, ToolRegistry, ToolResult, tool
from toolbus.errors import ConfigurationError
from toolbus.events import (
    RequestCancelled,
    RequestCompleted,
    RoundStarted,
    StatusChanged,
    SteeringAdded,
    TextDelta,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import ToolMessage
from toolbus.protocols import ToolSpec
from toolbus.testing import Harness, ScriptedProvider, assert_idle, calls, text, virtual_backends

anyio_backend = virtual_backends()

WEATHER = ("get_weather", {"city": "Paris"})


def harness(*steps: object, **options: object) -> Harness:
    return Harness(list(steps or (calls(WEATHER), text("Sunny."))), tools=["get_weather"], **options)  # pyright: ignore[reportArgumentType]


async def test_the_test_answers_a_call_and_the_model_gets_the_answer():
    async with harness() as h:
        session = h.start("Weather in Paris?")
        requested = await h.expect(ToolCallRequested, name="get_weather")
        assert requested.arguments == {"city": "Paris"}
        assert h.complete(requested, {"sky": "clear"}) is True
        result = await session.result()
        h.assert_no_pending()
    assert (result.outcome, result.text) == ("completed", "Sunny.")
    assert [type(each).__name__ for each in h.transcript] == [
        "UserMessage",
        "AssistantMessage",
        "ToolMessage",
        "AssistantMessage",
    ]
    assert isinstance(h.transcript[2], ToolMessage)
    assert h.transcript[2].content == '{"sky":"clear"}'
    await assert_idle(h.bus)


async def test_a_tool_result_keeps_what_it_affected():
    async with harness() as h:
        session = h.start("?")
        h.complete(await h.expect(ToolCallRequested), ToolResult(message="done", affected=["a.txt"]))
        assert (await session.result()).affected == ["a.txt"]


async def test_a_call_that_the_test_fails_is_a_failure_for_the_model():
    async with harness() as h:
        session = h.start("?")
        assert h.fail(await h.expect(ToolCallRequested), "no such city", retryable=True) is True
        await session.result()
    (message,) = [each for each in h.transcript if isinstance(each, ToolMessage)]
    assert message.is_error
    assert message.content == '{"ok":false,"reason":"error","error":"no such city"}'
    assert h.seen(ToolCallFailed)[0].retryable


async def test_a_second_answer_is_refused():
    async with harness() as h:
        session = h.start("?")
        requested = await h.expect(ToolCallRequested)
        assert h.complete(requested, 1) is True
        assert h.complete(requested, 2) is False
        assert h.fail(requested, "again") is False
        await session.result()


async def test_expect_returns_each_event_once_and_leaves_the_others():
    async with harness(calls(WEATHER, ("get_weather", {"city": "Rome"}), WEATHER), text("Done.")) as h:
        session = h.start("?")
        rome = await h.expect(ToolCallRequested, arguments={"city": "Rome"})
        first = await h.expect(ToolCallRequested)
        last = await h.expect(ToolCallRequested, where=lambda each: each.name == "get_weather")
        assert [each.arguments["city"] for each in (first, rome, last)] == ["Paris", "Rome", "Paris"]
        assert first.call_id != last.call_id
        for each in (first, rome, last):
            h.complete(each)
        await session.result()


async def test_expect_waits_and_lets_virtual_time_pass():
    async with harness() as h:
        h.start("?")
        failed = await h.expect(ToolCallFailed)
        assert failed.reason == "timeout"
        assert anyio.current_time() == 30


async def test_expect_fails_with_the_timeline_once_all_requests_have_ended():
    async with harness(text("Sunny.")) as h:
        h.start("Weather in Paris?")
        with pytest.raises(AssertionError) as caught:
            await h.expect(ToolCallRequested, name="get_weather", where=lambda _: True)
    told = str(caught.value)
    assert "no ToolCallRequested(name='get_weather', where=...)" in told
    assert "0.000s  MessageAppended message=user 'Weather in Paris?'" in told
    assert "MessageAppended message=assistant 'Sunny.'" in told
    assert told.splitlines()[-1].split()[1] == "RequestCompleted"


async def test_expect_fails_at_once_when_nothing_runs():
    async with harness() as h:
        with pytest.raises(AssertionError, match=r"no RoundStarted\(\)(?s:.*)no event yet"):
            await h.expect(RoundStarted)
    assert anyio.current_time() == 0


async def test_expect_gives_up_after_the_seconds_that_it_was_given():
    async with harness() as h:
        h.start("?")
        with pytest.raises(AssertionError, match=r"no RequestCompleted\(where=\.\.\.\)"):
            await h.expect(RequestCompleted, within_seconds=7, where=lambda _: False)
        assert anyio.current_time() == 7


async def test_a_misspelt_field_is_told_and_not_waited_for():
    async with harness() as h:
        with pytest.raises(ConfigurationError, match="ToolCallRequested has no field nane"):
            await h.expect(ToolCallRequested, nane="get_weather")


async def test_calls_without_an_answer_are_pending():
    async with harness() as h:
        session = h.start("?")
        requested = await h.expect(ToolCallRequested)
        assert h.pending == [requested]
        with pytest.raises(AssertionError, match=r"not answered: get_weather(?s:.*)ToolCallRequested"):
            h.assert_no_pending()
        h.complete(requested)
        await session.result()
        assert h.pending == []


async def test_an_event_addressed_to_nobody_does_not_go_unnoticed():
    async with harness() as h:
        assert h.inject(SteeringAdded(request_id="nobody", text="hello")) is False
        with pytest.raises(AssertionError, match="addressed to nobody: steering_added"):
            h.assert_no_pending()


async def test_any_event_can_be_injected_and_all_are_seen_in_order():
    async with harness(text("Sunny.")) as h:
        assert h.inject(StatusChanged(stage="waiting", text="Waiting")) is True
        session = h.start("?")
        await session.result()
    assert isinstance(h.events[0], StatusChanged)
    assert isinstance(h.events[-1], RequestCompleted)
    assert "".join(each.text for each in h.seen(TextDelta)) == "Sunny."


async def test_a_request_that_runs_when_the_block_is_left_is_cancelled():
    async with harness() as h:
        session = h.start("?")
        await h.expect(ToolCallRequested)
    assert (await session.result()).outcome == "cancelled"
    assert h.seen(RequestCancelled)[0].reason == "the harness was left"
    assert anyio.current_time() == 0
    await assert_idle(h.bus)


async def test_an_exception_leaves_the_block_as_it_is_with_the_timeline_as_a_note():
    with pytest.raises(ValueError, match="mine") as caught:
        async with harness() as h:
            h.start("Weather in Paris?")
            await h.expect(ToolCallRequested)
            raise ValueError("mine")
    assert caught.value.args == ("mine",)
    (note,) = caught.value.__notes__
    assert [line.split()[1] for line in note.splitlines()[-2:]] == ["ToolCallRequested", "StatusChanged"]


async def test_a_failure_of_the_harness_tells_the_timeline_once():
    with pytest.raises(AssertionError) as caught:
        async with harness() as h:
            h.start("?")
            await h.expect(ToolCallRequested)
            h.assert_no_pending()
    assert not hasattr(caught.value, "__notes__")


async def test_being_cancelled_from_outside_ends_the_requests():
    h = harness()
    with anyio.move_on_after(5) as scope:
        async with h:
            h.start("?")
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert isinstance(h.events[-1], RequestCancelled)
    await assert_idle(h.bus)


async def test_limits_tools_and_provider_may_differ_for_one_request():
    async with harness(limits=Limits(tool_timeout_seconds=5)) as h:
        session = h.start("?")
        assert (await h.expect(ToolCallRequested)).deadline == 5
        await session.result()
        other = h.start("?", limits=Limits(), provider=ScriptedProvider([text("Other.")]), tools=())
        assert (await other.result()).text == "Other."
    assert h.sessions == [session, other]


async def test_tools_are_names_functions_tools_or_specs_and_their_handlers_never_run():
    ran: list[str] = []

    def plain(city: str) -> None:
        """Plain."""
        ran.append(city)

    @tool
    async def decorated(city: str) -> None:
        """Decorated."""
        ran.append(city)

    script = [calls(("plain", {"city": "a"}), ("decorated", {"city": "b"}), ("spec", {}), ("named", {})), text("Done.")]
    async with Harness(script, tools=[plain, decorated, ToolSpec(name="spec"), "named"]) as h:
        session = h.start("?")
        for name in ("plain", "decorated", "spec", "named"):
            h.complete(await h.expect(ToolCallRequested, name=name))
        assert (await session.result()).ok
    assert ran == []


async def test_a_dispatcher_on_the_harness_bus_runs_the_tools():
    @tool
    async def get_weather(city: str) -> str:
        """Weather."""
        return f"sunny in {city}"

    async with harness() as h, ToolDispatcher(h.bus, ToolRegistry([get_weather])):
        await h.start("?").result()
        assert h.seen(ToolCallCompleted)[0].content == "sunny in Paris"


async def test_a_bus_of_the_application_is_used_and_left_as_it_was():
    bus = EventBus()
    async with harness(text("Sunny."), bus=bus) as h:
        await h.start("?").result()
        assert bus.statistics().receivers > 0
    assert bus.statistics().receivers == 0
    with pytest.raises(ConfigurationError, match="not entered"):
        h.start("?")


async def test_the_harness_is_entered_once_at_a_time_and_has_no_transcript_before_a_request():
    async with harness() as h:
        with pytest.raises(ConfigurationError, match="entered already"):
            await h.__aenter__()
        with pytest.raises(AssertionError, match="no request was started"):
            _ = h.transcript


async def test_settle_and_advance_move_the_request_and_nothing_else():
    async with harness() as h:
        session = h.start("?")
        await h.settle()
        assert len(h.pending) == 1
        await h.advance(29)
        assert not session.ended
        await h.advance(1)
        assert session.ended
