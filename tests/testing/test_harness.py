"""The harness: events in, events out, and failures that tell what happened."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from toolbus import EventBus, Limits, Runtime, ToolContext, ToolDispatcher, ToolRegistry, ToolResult, tool
from toolbus.errors import ConfigurationError
from toolbus.events import (
    ApprovalRequested,
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
from toolbus.messages import AssistantMessage, ImagePart, Message, TextPart, ToolMessage, UserMessage
from toolbus.protocols import ToolSpec
from toolbus.testing import Harness, ScriptedProvider, asked, assert_idle, calls, hang, text, virtual_backends

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
    reported = str(caught.value)
    assert "no ToolCallRequested(name='get_weather', where=...)" in reported
    assert "0.000s  MessageAppended message=user 'Weather in Paris?'" in reported
    assert "MessageAppended message=assistant 'Sunny.'" in reported
    assert reported.splitlines()[-1].split()[1] == "RequestCompleted"


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


@pytest.mark.parametrize("tools", ["get_weather", ToolSpec(name="get_weather")])
def test_one_tool_alone_is_refused_where_a_list_is_asked_for(tools: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^tools is .*; pass a list"):
        Harness([], tools=tools)


async def test_a_misspelt_field_is_reported_and_not_waited_for():
    async with harness() as h:
        with pytest.raises(ConfigurationError, match=r"ToolCallRequested has no field nane; it has .*name, arguments"):
            await h.expect(ToolCallRequested, nane="get_weather")


async def test_the_name_of_an_event_type_is_refused_where_the_type_belongs():
    name: Any = "tool_call_requested"
    async with harness() as h:
        with pytest.raises(TypeError, match="'tool_call_requested' is not an event type"):
            h.seen(name)
        with pytest.raises(TypeError, match="'tool_call_requested' is not an event type"):
            await h.expect(name)


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
        assert (await h.expect(ToolCallRequested)).timeout_seconds == 5
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


async def test_a_failure_says_what_came_instead():
    async with harness(calls(WEATHER, ("get_weather", {"city": "Rome"})), text("Done.")) as h:
        session = h.start("?")
        rome = await h.expect(ToolCallRequested, arguments={"city": "Rome"})
        h.complete(rome)
        h.complete(await h.expect(ToolCallRequested))
        await session.result()
        with pytest.raises(AssertionError) as caught:
            await h.expect(ToolCallRequested, name="get_weather", arguments={"city": "Rome"})
        reported = str(caught.value).splitlines()[0]
        assert "there was one with arguments={'city': 'Paris'}, one that an earlier expect returned" in reported
        with pytest.raises(AssertionError, match=r"one that where= refused, and \d+ more"):
            await h.expect(StatusChanged, where=lambda _: False)


async def test_the_timeline_leaves_a_short_request_id_out_of_ids_only():
    async with Harness([calls(("add", {"a": 1})), text("Done.")], tools=["add"]) as h:
        session = h.start("Add", request_id="a")
        h.complete(await h.expect(ToolCallRequested, name="add"))
        await session.result()
    [line] = [each for each in h.timeline().splitlines() if "ToolCallRequested" in each]
    assert "ToolCallRequested call_id='_0_0' vendor='scripted' name='add' arguments={'a': 1}" in line


async def test_pieces_of_one_text_are_one_line_of_the_timeline():
    async with harness(text("One after the other.", 4)) as h:
        await h.run("?")
    assert "TextDelta in 4 pieces text='One after the other.'" in h.timeline()
    assert "usage" not in h.timeline()  # nothing was counted, so there is nothing to say


async def test_handlers_run_where_that_is_asked_for_and_the_test_answers_the_rest():
    @tool
    async def get_weather(city: str) -> str:
        """Weather."""
        return f"sunny in {city}"

    script = [calls(WEATHER, ("get_time", {})), text("Done.")]
    async with Harness(script, tools=[get_weather, "get_time"], run_tools=True) as h:
        session = h.start("?")
        h.complete(await h.expect(ToolCallRequested, name="get_time"), "noon")
        result = await session.result()
        assert [each.content for each in result.tool_calls] == ["sunny in Paris", "noon"]
        result = await h.run("?", provider=ScriptedProvider([text("Done.")]))
        assert result.ok
    await assert_idle(h.bus)


async def test_a_call_that_waits_for_a_person_is_approved_or_denied():
    async with harness(calls(WEATHER, WEATHER), text("Done.")) as h:
        session = h.start("?", needs_approval=True)
        first = await h.expect(ApprovalRequested)
        second = await h.expect(ApprovalRequested)
        assert h.pending_approvals == [first, second]
        with pytest.raises(AssertionError, match="not decided: get_weather"):
            h.assert_no_pending()
        assert h.approve(first, arguments={"city": "Rome"}, by="ann")
        assert h.deny(second, "too dear")
        requested = await h.expect(ToolCallRequested)
        assert requested.arguments == {"city": "Rome"}
        h.complete(requested)
        result = await session.result()
        h.assert_no_pending()
        assert not h.deny(second)
        with pytest.raises(AssertionError, match="addressed to nobody: approval_decided"):
            h.assert_no_pending()
    assert "approved=False" in h.timeline()
    assert [each.reason for each in result.tool_calls] == ["", "denied"]
    assert "too dear" in result.tool_calls[1].error


async def test_messages_that_are_asked_come_behind_the_history():
    said: list[Message] = [UserMessage(content="I am Ann."), AssistantMessage(text="Hello, Ann.")]
    async with Harness([text("Ann.")]) as h:
        result = await h.run([UserMessage(content="Who am I?")], history=said)  # pyright: ignore[reportArgumentType]
    assert result.history_count == 2
    assert [each.role for each in result.messages] == ["user", "assistant"] * 2


async def test_a_conversation_goes_on_with_the_transcript_so_far():
    script = [text("Sunny."), text("Rainy.", expect=lambda request: len(request.messages) == 3)]
    async with harness(*script, strict=True) as h:
        await h.run("Weather in Paris?")
        result = await h.run("And in Rome?", history=h.transcript)
        assert [each.role for each in h.transcript] == ["user", "assistant"] * 2
        assert result.history_count == 2
        same: list[Message] = [*h.transcript, UserMessage(content="Thanks.")]
        assert (await h.run(same, provider=ScriptedProvider([text("Bye.")]))).history_count == 4  # pyright: ignore[reportArgumentType]


async def test_images_go_both_ways():
    picture = ImagePart(url="https://example.com/a.png")
    script = [calls(("look", {}), expect=asked(images=1, last_user="What is this?")), text("A cat.")]
    async with Harness(script, tools=["look"], strict=True) as h:
        session = h.start(["What is this?", picture])
        h.complete(await h.expect(ToolCallRequested), [TextPart(text="closer"), picture])
        await session.result()
    (message,) = [each for each in h.transcript if isinstance(each, ToolMessage)]
    assert picture in message.parts


async def test_requests_of_a_runtime_on_the_same_bus_are_watched():
    bus = EventBus()

    @tool
    async def get_weather(city: str) -> str:
        """Weather."""
        await anyio.sleep(1)
        return "sunny"

    runtime = Runtime(provider=ScriptedProvider([calls(WEATHER), text("Sunny.")]), tools=[get_weather], bus=bus)
    async with Harness(bus=bus) as h, runtime:
        runtime.start("?")
        await h.expect(RequestCompleted, within_seconds=5, text="Sunny.")
        with pytest.raises(AssertionError, match="no ToolCallFailed"):
            await h.expect(ToolCallFailed)
        with pytest.raises(ConfigurationError, match="no provider"):
            h.start("?")


# ------------------------------------------------------------------------------------------------- strict


async def left(*steps: object, request: bool = True, **options: object) -> str:
    """What a strict harness says when it is left at once."""
    with pytest.raises(AssertionError) as caught:
        async with harness(*steps, strict=True, **options) as h:
            if request:
                h.start("?")
                await h.settle()
    assert "events so far" in str(caught.value)
    await assert_idle()
    return str(caught.value).splitlines()[0]


async def test_a_strict_harness_is_left_when_all_is_over():
    assert "not answered: get_weather" in await left()
    assert "1 request(s) still running" in await left(hang())
    assert "the script has 1 step left over: text('b')" in await left(text("a"), text("b"))
    assert "2 steps left over" in await left(request=False)


async def test_a_strict_harness_minds_receivers_that_raise_and_subscriptions_that_stay():
    def broken(_event: object) -> None:
        raise ValueError("mine")

    bus = EventBus()
    disconnect = bus.connect(StatusChanged, broken)
    assert "mine" in await left(text("a"), bus=bus)
    disconnect()
    subscription = bus.subscribe(StatusChanged, name="screen").open()
    assert "left over: subscription screen" in await left(text("a"), bus=bus)
    subscription.close()


async def test_a_strict_harness_minds_tasks_that_stay():
    async with anyio.create_task_group() as group:
        with pytest.raises(AssertionError, match="left over: task"):
            async with harness(text("a"), strict=True) as h:
                group.start_soon(anyio.sleep_forever)
                await h.run("?")
        async with harness(text("a"), strict=True) as h:  # what was there before is nobody's concern
            await h.run("?")
        group.cancel_scope.cancel()


async def test_what_the_script_did_not_expect_fails_the_block_whatever_became_of_the_request():
    with pytest.raises(AssertionError, match=r"the newest user message: 'Paris\?', not 'Rome\?'(?s:.*)RequestFailed"):
        async with harness(text("a", expect=asked(last_user="Rome?"))) as h:
            assert not (await h.run("Paris?")).ok
    with pytest.raises(AssertionError, match="the script has 1 step, and one more was asked for"):
        async with harness(text("a")) as h:
            await h.run("?")
            await h.run("?")


async def test_an_exception_that_leaves_the_block_says_what_the_script_missed():
    with pytest.raises(ValueError, match="mine") as caught:
        async with harness(text("a", expect=asked(last_user="Rome?"))) as h:
            await h.run("Paris?")
            raise ValueError("mine")
    assert "not 'Rome?'" in caught.value.__notes__[0]
    assert h.exception_with_timeline is caught.value


async def test_a_function_that_did_not_run_is_named_after_its_timeout():
    @tool
    async def count() -> int:
        """Count."""
        return 3

    advice = "\ncount did not run: pass run_tools=True, or answer with complete()"
    script = [calls(("count", {}), ("weigh", {})), text("Done.")]
    with pytest.raises(AssertionError) as caught:
        async with Harness(script, tools=[count, "weigh"]) as h:
            assert (await h.run("?")).tool_calls[0].ok
    assert caught.value.__notes__[0].endswith(advice)
    with pytest.raises(AssertionError) as caught:
        async with Harness(script, tools=[count, "weigh"], run_tools=True) as h:
            assert (await h.run("?")).tool_calls[1].ok
    assert "did not run" not in caught.value.__notes__[0]


@tool
async def greet(context: ToolContext[str]) -> str:
    """Greet the user."""
    return f"Hello {context.deps}."


async def test_a_tool_that_runs_needs_its_deps_as_in_production():
    async with Harness([calls(("greet", {})), text("Done.")], tools=[greet, "wave"], run_tools=True) as h:
        with pytest.raises(ConfigurationError, match=r"tool 'greet' takes a ToolContext\[str\], and there are no deps"):
            h.start("?")
        result = await h.run("?", deps="Ada")
    assert result.tool_calls[0].content == "Hello Ada."


async def test_a_tool_that_the_test_answers_needs_no_deps():
    async with Harness([calls(("greet", {})), text("Done.")], tools=[greet]) as h:
        session = h.start("?")
        h.complete(await h.expect(ToolCallRequested), "Hello.")
        assert (await session.result()).ok


@pytest.mark.parametrize("runs", [True, False])
async def test_a_registry_may_change_as_in_production(runs: bool):
    registry = ToolRegistry()
    async with Harness([calls(("greet", {})), text("Done.")], tools=registry, run_tools=runs) as h:
        registry.add(greet)
        session = h.start("?", deps="Ada")
        requested = await h.expect(ToolCallRequested, name="greet")
        if not runs:
            h.complete(requested, "Hello Ada.")
        assert (await session.result()).tool_calls[0].content == "Hello Ada."


async def test_what_is_not_the_event_of_a_call_or_a_question_cannot_be_answered():
    async with harness() as h:
        session = h.start("?")
        requested = await h.expect(ToolCallRequested)
        wrong: Any = requested.call_id
        with pytest.raises(TypeError, match=r"is not the event to answer; pass what `await harness.expect\(ToolCallR"):
            h.complete(wrong, "Sunny.")
        with pytest.raises(TypeError, match="is not the event to answer"):
            h.fail(wrong, "no")
        wrong = requested
        with pytest.raises(
            TypeError, match=r"^a ToolCallRequested \(.*`await harness.expect\(ApprovalRequested\)` ret"
        ):
            h.approve(wrong)
        with pytest.raises(TypeError, match="is not the event to answer"):
            h.deny(wrong)
        h.complete(requested, "Sunny.")
        await session.result()


@pytest.mark.parametrize("twice", [["greet", greet], ["a", "a"]], ids=["name-and-tool", "names"])
def test_two_tools_of_one_name_are_refused(twice: Any):
    with pytest.raises(ConfigurationError, match="same name"):
        Harness([], tools=twice)
