"""The session alone on a bus: no runtime, no dispatcher; results come by event injection."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

import anyio
import pytest

from toolbus import EventBus, Interceptor, Limits, Price, RequestSession, Tool, ToolContext, tool
from toolbus.core.transcript import validate
from toolbus.errors import (
    ConfigurationError,
    InvalidHistory,
    LimitReached,
    ProviderError,
    RequestCancelledError,
    StoreUnavailable,
)
from toolbus.events import (
    CancelRequested,
    DeadLetter,
    Event,
    MessageAppended,
    ModelResponded,
    ModelRetrying,
    ReasoningDelta,
    RequestCompleted,
    RequestStarted,
    StatusChanged,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallRequested,
    encode,
)
from toolbus.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from toolbus.protocols import ArgumentsPiece, Emit, ModelReply, ModelRequest, ReasoningPiece, TextPiece, ToolSpec
from toolbus.providers.scripted import ScriptedProvider, Step, calls, error, text


@tool(external=True)
async def get_weather(city: str) -> dict[str, Any]:  # pyright: ignore[reportReturnType] -- answered on the bus
    """Weather in a city."""


def complete(bus: EventBus, requested: ToolCallRequested, content: str = '{"ok":true}') -> bool:
    return bus.publish(
        ToolCallCompleted(
            request_id=requested.request_id, call_id=requested.call_id, name=requested.name, content=content
        )
    )


def fail(bus: EventBus, requested: ToolCallRequested, message: str = "no") -> bool:
    return bus.publish(
        ToolCallFailed(
            request_id=requested.request_id,
            call_id=requested.call_id,
            name=requested.name,
            reason="error",
            error=message,
        )
    )


def two_cities() -> ScriptedProvider:
    return ScriptedProvider(
        [calls(("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})), text("Sunny in both.")]
    )


class Hanging:
    """A model that answers when it is told to."""

    vendor = "hanging"

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.go_on = anyio.Event()

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        self.asked.set()
        await self.go_on.wait()
        return ModelReply(message=AssistantMessage(text="at last"))


@pytest.mark.guarantee("G09")
async def test_results_join_the_transcript_in_call_order_whatever_order_they_come_in() -> None:
    bus = EventBus()
    session = RequestSession(bus, two_cities(), "Weather?", tools=[get_weather])
    async with bus.subscribe(ToolCallRequested) as requests, anyio.create_task_group() as group:
        group.start_soon(session.run)
        with anyio.fail_after(30):
            paris, rome = await anext(requests), await anext(requests)
            assert isinstance(paris, ToolCallRequested)
            assert isinstance(rome, ToolCallRequested)
            complete(bus, rome, "Rome is warm")
            fail(bus, paris, "Paris is closed")
            result = await session.result()
    assert [type(message) for message in result.messages] == [
        UserMessage,
        AssistantMessage,
        ToolMessage,
        ToolMessage,
        AssistantMessage,
    ]
    first, second = result.messages[2], result.messages[3]
    assert isinstance(first, ToolMessage)
    assert isinstance(second, ToolMessage)
    assert (first.is_error, first.content) == (True, '{"ok":false,"reason":"error","error":"Paris is closed"}')
    assert (second.is_error, second.content) == (False, "Rome is warm")
    assert [call.ok for call in result.tool_calls] == [False, True]
    assert result.text == "Sunny in both."
    validate(result.messages, "anthropic")


@pytest.mark.guarantee("G04")
async def test_a_result_that_is_published_while_the_request_is_reported_is_not_lost() -> None:
    bus = EventBus()
    bus.connect(ToolCallRequested, lambda event: complete(bus, event))
    session = RequestSession(bus, two_cities(), "Weather?", tools=[get_weather])
    with anyio.fail_after(30):
        result = await session.run()
    assert result.outcome == "completed"
    assert [call.ok for call in result.tool_calls] == [True, True]


@pytest.mark.guarantee("G06")
async def test_every_call_gets_one_terminal_event_though_everybody_answers_twice() -> None:
    bus = EventBus()
    accepted: list[bool] = []

    def answer_twice(event: ToolCallRequested) -> None:
        accepted.extend([complete(bus, event, "first"), complete(bus, event, "second"), fail(bus, event)])

    bus.connect(ToolCallRequested, answer_twice)
    heard: list[Event] = []
    bus.connect((ToolCallCompleted, ToolCallFailed), heard.append)
    late: list[ToolCallLate] = []
    bus.connect(ToolCallLate, late.append)
    result = await RequestSession(bus, two_cities(), "Weather?", tools=[get_weather]).run()
    assert accepted == [True, False, False] * 2
    assert len(heard) == 2
    assert [event.content for event in late] == ["second", "", "second", ""]
    assert [call.content for call in result.tool_calls] == ["first", "first"]


@pytest.mark.guarantee("G07")
@pytest.mark.parametrize("options", [{}, {"late_results": None}])
async def test_a_result_after_the_ending_is_late_and_changes_nothing(options: dict[str, Any]) -> None:
    bus = EventBus()
    requested: list[ToolCallRequested] = []
    bus.connect(ToolCallRequested, requested.append)
    bus.connect(ToolCallRequested, lambda event: complete(bus, event))
    result = await RequestSession(bus, two_cities(), "Weather?", tools=[get_weather], **options).run()
    before = list(result.messages)
    late: list[ToolCallLate] = []
    bus.connect(ToolCallLate, late.append)
    assert complete(bus, requested[0], "too late") is False
    assert [event.content for event in late] == ["too late"]
    assert result.messages == before


@pytest.mark.guarantee("G06")
async def test_refused_calls_get_their_terminal_event_without_a_request() -> None:
    script = ScriptedProvider(
        [
            calls(
                ("get_weather", "{not json"),
                ("get_weather", {"city": 3}),
                ("get_whether", {"city": "Paris"}),
                ("get_weather", "[1]"),
                ("get_weather", '{"city": "Paris", "city": "Rome"}'),
            ),
            text("I give up."),
        ]
    )
    bus = EventBus()
    failed: list[ToolCallFailed] = []
    bus.connect(ToolCallFailed, failed.append)
    requested: list[Event] = []
    bus.connect(ToolCallRequested, requested.append)
    limits = Limits(max_consecutive_errors=10)
    result = await RequestSession(bus, script, "Weather?", tools=[get_weather], limits=limits).run()
    assert requested == []
    assert [event.reason for event in failed] == [
        "invalid_arguments",
        "invalid_arguments",
        "unknown_tool",
        "invalid_arguments",
        "invalid_arguments",
    ]
    assert "not valid JSON" in failed[0].error
    assert failed[1].error == "$.city: Input should be a valid string"
    assert failed[2].error == "There is no tool 'get_whether'. The tools are: get_weather."
    assert "object" in failed[3].error
    assert "'city' twice" in failed[4].error
    assert result.outcome == "completed"
    validate(result.messages)


async def test_calls_under_duplicate_and_empty_provider_ids_both_run_and_are_paired_by_place() -> None:
    script = ScriptedProvider(
        [
            calls(
                ("get_weather", {"city": "Paris"}),
                ("get_weather", {"city": "Rome"}),
                ("get_weather", {"city": "Oslo"}),
                ids=["same", "same", ""],
            ),
            text("done"),
        ]
    )
    bus = EventBus()
    bus.connect(ToolCallRequested, lambda event: complete(bus, event, event.arguments["city"]))
    result = await RequestSession(bus, script, "Weather?", tools=[get_weather]).run()
    assert [call.content for call in result.tool_calls] == ["Paris", "Rome", "Oslo"]
    assert len({call.call_id for call in result.tool_calls}) == 3


async def test_an_empty_reply_is_asked_for_once_more() -> None:
    bus = EventBus()
    retried: list[ModelRetrying] = []
    bus.connect(ModelRetrying, retried.append)
    result = await RequestSession(bus, ScriptedProvider([text(""), text("here")]), "hi").run()
    assert (result.outcome, result.text, [event.reason for event in retried]) == ("completed", "here", ["empty_reply"])


async def test_a_second_empty_reply_fails_the_request_by_name() -> None:
    result = await RequestSession(EventBus(), ScriptedProvider([text(""), text(" ")]), "hi").run()
    assert (result.outcome, result.reason) == ("failed", "empty_reply")
    with pytest.raises(ProviderError, match="neither text nor tool calls"):
        result.raise_for_outcome()


async def test_a_provider_s_error_ends_the_request_failed_with_the_error_itself() -> None:
    gone = ProviderError("the server is gone", vendor="test", status=503, retryable=True)
    limits = Limits(max_model_attempts=1)
    result = await RequestSession(EventBus(), ScriptedProvider([error(gone)]), "hi", limits=limits).run()
    assert (result.outcome, result.reason, result.error) == ("failed", "provider_error", gone)
    with pytest.raises(ProviderError) as caught:
        result.raise_for_outcome()
    assert caught.value is gone
    assert gone.result is result


async def test_a_broken_provider_fails_the_request_and_not_the_host(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        vendor = "broken"

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            raise ZeroDivisionError("oops")

    class Wrong:
        vendor = "wrong"

        async def respond(self, request: ModelRequest, emit: Emit) -> Any:
            return "text"

    result = await RequestSession(EventBus(), Broken(), "hi").run()
    assert (result.outcome, result.reason) == ("failed", "application_error")
    assert "ZeroDivisionError: oops" in str(result.error)
    assert "Traceback" in caplog.text
    result = await RequestSession(EventBus(), Wrong(), "hi").run()
    assert "gave a str, not a ModelReply" in str(result.error)


NOT_TEXT: list[tuple[dict[str, Any], str]] = [
    (
        {"tool_calls": (ToolCall(name="get_weather", arguments=cast("Any", {"city": "Paris"})),)},
        "arguments of get_weather as a dict; pass the text of their JSON",
    ),
    ({"tool_calls": (ToolCall(name=cast("Any", 5), arguments="{}"),)}, "name of a call as an int; pass a string"),
    ({"text": None}, "text as a NoneType; pass a string, which may be empty"),
    ({"text": "Hello.", "reasoning": None}, "reasoning as a NoneType; pass a string, which may be empty"),
]


@pytest.mark.parametrize("interceptors", [[], [Interceptor()]], ids=["plain", "intercepted"])
@pytest.mark.parametrize(("fields", "problem"), NOT_TEXT)
async def test_a_provider_that_gives_something_other_than_text_fails_with_what_to_give(
    fields: dict[str, Any], problem: str, interceptors: list[Interceptor]
) -> None:
    class Wrong:
        vendor = "wrong"

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            return ModelReply(message=AssistantMessage(**fields), usage=Usage(input_tokens=7))

    result = await RequestSession(EventBus(), Wrong(), "hi", interceptors=interceptors).run()
    assert (result.outcome, result.reason, result.usage.input_tokens) == ("failed", "application_error", 7)
    assert str(result.error) == f"the provider gave the {problem}"


@pytest.mark.parametrize("interceptors", [[], [Interceptor()]], ids=["plain", "intercepted"])
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("Hello.", "a str, not a ModelReply"),
        (ModelReply(message=cast("Any", "Hello.")), "the message as a str; pass AssistantMessage(...)"),
        (
            ModelReply(message=AssistantMessage(text="Hello."), usage=cast("Any", {"input_tokens": 7})),
            "the usage as a dict; pass Usage(...)",
        ),
    ],
    ids=["reply", "message", "usage"],
)
async def test_a_provider_that_gives_something_other_than_a_reply_fails_with_what_to_give(
    given: Any, problem: str, interceptors: list[Interceptor]
) -> None:
    class Wrong:
        vendor = "wrong"

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            return given

    limits, prices = Limits(max_cost=1.0), {"*": Price(input_per_million=1.0, output_per_million=1.0)}
    options: Any = {"interceptors": interceptors, "limits": limits, "prices": prices}
    result = await RequestSession(EventBus(), Wrong(), "hi", **options).run()
    assert (result.outcome, result.reason) == ("failed", "application_error")
    assert str(result.error) == f"the provider gave {problem}"


@pytest.mark.guarantee("G10")
async def test_a_model_that_never_stops_calling_is_stopped_and_asked_for_an_answer_without_tools() -> None:
    seen: list[int] = []

    def script(request: ModelRequest) -> Any:
        seen.append(len(request.tools))
        return calls(("get_weather", {"city": f"city {request.round}"})) if request.tools else text("What I know.")

    bus = EventBus()
    bus.connect(ToolCallRequested, lambda event: complete(bus, event))
    session = RequestSession(bus, ScriptedProvider(script), "go", tools=[get_weather])
    result = await session.run()
    assert (result.outcome, result.reason, result.text) == ("stopped", "max_rounds=10", "What I know.")
    assert seen == [1] * 10 + [0]
    assert result.explanation == "I stopped after 10 steps without finishing."
    assert await session.result() is result
    with pytest.raises(LimitReached, match="max_rounds=10") as caught:
        result.raise_for_outcome()
    assert (caught.value.limit, caught.value.value) == ("max_rounds", 10)
    assert caught.value.result is result


async def test_on_limit_stop_ends_with_the_last_text_and_no_further_call() -> None:
    bus = EventBus()
    bus.connect(ToolCallRequested, lambda event: complete(bus, event))
    script = ScriptedProvider(lambda request: calls(("get_weather", {"city": str(request.round)}), text="Looking."))
    limits = Limits(max_rounds=2, on_limit="stop")
    result = await RequestSession(bus, script, "go", tools=[get_weather], limits=limits).run()
    assert (result.outcome, result.reason, result.text, result.rounds) == ("stopped", "max_rounds=2", "Looking.", 2)


@pytest.mark.guarantee("G08", "G16")
async def test_a_cancel_settles_open_calls_keeps_finished_ones_and_leaves_a_valid_transcript() -> None:
    bus = EventBus()
    session = RequestSession(bus, two_cities(), "Weather?", tools=[get_weather])
    async with bus.subscribe(ToolCallRequested) as requests, anyio.create_task_group() as group:
        group.start_soon(session.run)
        with anyio.fail_after(30):
            paris = await anext(requests)
            assert isinstance(paris, ToolCallRequested)
            complete(bus, paris, "done in time")
            assert session.cancel("the user left") is True
            result = await session.result()
    assert (result.outcome, result.reason) == ("cancelled", "the user left")
    assert [call.reason for call in result.tool_calls] == ["", "cancelled"]
    assert result.tool_calls[0].content == "done in time"
    validate(result.messages, "openai")
    validate(result.messages, "anthropic")
    assert session.cancel() is False
    with pytest.raises(RequestCancelledError, match="the user left"):
        result.raise_for_outcome()


async def test_a_cancel_reaches_a_model_call_in_flight() -> None:
    bus, model = EventBus(), Hanging()
    session = RequestSession(bus, model, "hi")
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        with anyio.fail_after(30):
            await model.asked.wait()
            assert bus.publish(CancelRequested(request_id=session.request_id, reason="by event")) is True
            result = await session.result()
    assert (result.outcome, result.reason) == ("cancelled", "by event")
    assert bus.publish(CancelRequested(request_id=session.request_id)) is False


async def test_a_cancel_before_the_start_ends_the_request_before_the_model_is_asked() -> None:
    bus, model = EventBus(), Hanging()
    session = RequestSession(bus, model, "hi")
    assert session.cancel("never mind") is True
    result = await session.run()
    assert (result.outcome, result.reason, model.asked.is_set()) == ("cancelled", "never mind", False)


async def test_the_host_s_cancellation_ends_the_request_and_passes() -> None:
    bus, model = EventBus(), Hanging()
    ended: list[Event] = []
    session = RequestSession(bus, model, "hi")
    events = session.events()
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await model.asked.wait()
        group.cancel_scope.cancel()
    assert (await session.result()).outcome == "cancelled"
    async for event in events:
        ended.append(event)
    assert ended[-1].type == "request_cancelled"
    assert bus.statistics().mailboxes == 0


async def test_steering_joins_at_the_next_round_boundary() -> None:
    bus = EventBus()
    script = ScriptedProvider([calls(("get_weather", {"city": "Paris"})), text("In Celsius: 20.")])
    session = RequestSession(bus, script, "Weather?", tools=[get_weather])

    def steer_then_answer(event: ToolCallRequested) -> None:
        assert session.steer("In Celsius, please.") is True
        complete(bus, event)

    bus.connect(ToolCallRequested, steer_then_answer)
    result = await session.run()
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "user", "assistant"]
    assert isinstance(result.messages[3], UserMessage)
    assert result.messages[3].content == "In Celsius, please."


async def test_steering_while_the_model_answers_gets_an_answer_of_its_own() -> None:
    bus, model = EventBus(), Hanging()
    session = RequestSession(bus, model, "hi")
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await model.asked.wait()
        session.steer("and in Rome?")
        model.go_on.set()
        result = await session.result()
    assert [message.role for message in result.messages] == ["user", "assistant", "user", "assistant"]


@pytest.mark.parametrize("is_heard", [True, False], ids=["from-the-beginning", "late"])
async def test_the_status_after_steering_is_the_same_for_whoever_asks_late(is_heard: bool) -> None:
    bus, seen = EventBus(), list[tuple[str, ...]]()

    def reply(request: ModelRequest) -> Step:
        if request.round == 0:
            assert session.steer("and in Rome?")
            return text("In Paris it rains.")
        seen.append(tuple(session.status))
        return text("In Rome it does not.")

    if is_heard:
        bus.connect(StatusChanged, lambda _: None)
    session = RequestSession(bus, ScriptedProvider(reply), "Weather?")
    await session.run()
    assert seen == [("processing", "Analyzing request...")]


@pytest.mark.guarantee("G01")
async def test_events_come_in_order_from_the_call_of_events_to_the_ending() -> None:
    bus = EventBus()
    bus.connect(ToolCallRequested, lambda event: complete(bus, event))
    session = RequestSession(bus, two_cities(), "Weather?", tools=[get_weather], metadata={"tenant": "t1"})
    events = session.events()
    other = RequestSession(bus, ScriptedProvider([text("other")]), "hi")
    await other.run()
    await session.run()
    heard = [event async for event in events]
    assert [event.type for event in heard if event.is_fact] == [
        "request_started",
        "message_appended",
        "round_started",
        "model_responded",
        "message_appended",
        "tool_call_requested",
        "tool_call_completed",
        "tool_call_requested",
        "tool_call_completed",
        "message_appended",
        "message_appended",
        "round_started",
        "model_responded",
        "message_appended",
        "request_completed",
    ]
    assert {event.request_id for event in heard} == {session.request_id}
    assert all(event.metadata == {"tenant": "t1"} for event in heard if event.is_fact and "call_c" not in event.type)
    assert len({event.event_id for event in heard}) == len(heard)
    again = [event.event_id async for event in session.events()]
    assert sorted(again) == sorted(event.event_id for event in heard if event.is_fact)
    assert bus.statistics().subscriptions == ()


async def test_events_of_one_kind_end_with_the_request_too() -> None:
    session = RequestSession(EventBus(), ScriptedProvider([text("Hello.")]), "hi")
    events = session.events(ModelResponded)
    await session.run()
    assert [event.type async for event in events] == ["model_responded"]


async def test_text_streams_as_it_comes_and_final_only_leaves_earlier_rounds_out() -> None:
    def script() -> ScriptedProvider:
        return ScriptedProvider([calls(("get_weather", {"city": "Paris"}), text="Let me see. "), text("It is sunny.")])

    bus = EventBus()
    bus.connect(ToolCallRequested, lambda event: complete(bus, event))
    session = RequestSession(bus, script(), "Weather?", tools=[get_weather])
    everything, final = session.text(), session.text(final_only=True)
    await session.run()
    assert "".join([piece async for piece in everything]) == "Let me see. \n\nIt is sunny."
    assert "".join([piece async for piece in final]) == "It is sunny."
    assert "".join([piece async for piece in session.text()]) == "Let me see. \n\nIt is sunny."


async def test_text_of_a_provider_that_does_not_stream_comes_whole() -> None:
    class Whole:
        vendor = "whole"

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            return ModelReply(message=AssistantMessage(text="all at once"))

    session = RequestSession(EventBus(), Whole(), "hi")
    pieces = session.text()
    await session.run()
    assert [piece async for piece in pieces] == ["all at once"]


async def test_a_delta_names_the_message_that_it_will_become() -> None:
    session = RequestSession(EventBus(), ScriptedProvider([text("Hello you.", pieces=["Hello ", "you."])]), "hi")
    events = session.events(TextDelta, MessageAppended)
    result = await session.run()
    deltas = [event async for event in events if isinstance(event, TextDelta)]
    assert [delta.text for delta in deltas] == ["Hello ", "you."]
    assert {delta.message_id for delta in deltas} == {result.messages[-1].message_id}


async def test_each_kind_of_piece_becomes_its_event_whatever_class_of_it_a_provider_has_derived() -> None:
    class Timed(TextPiece, frozen=True):
        """A piece, and when it came."""

    class Streams:
        vendor = "streams"

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            emit(ReasoningPiece("Hm. "))
            emit(Timed("Hel"))
            emit(TextPiece("lo"))
            emit(ArgumentsPiece(index=0, name="add", text="{}"))
            return ModelReply(message=AssistantMessage(text="Hello"))

    bus = EventBus()
    heard: list[TextDelta | ReasoningDelta | ToolArgumentsDelta] = []
    bus.connect((TextDelta, ReasoningDelta, ToolArgumentsDelta), heard.append)
    result = await RequestSession(bus, Streams(), "hi").run()
    assert [(type(each), each.text) for each in heard] == [
        (ReasoningDelta, "Hm. "),
        (TextDelta, "Hel"),
        (TextDelta, "lo"),
        (ToolArgumentsDelta, "{}"),
    ]
    assert {(each.message_id, each.round) for each in heard} == {(result.messages[-1].message_id, 0)}


async def test_pieces_that_a_provider_emits_after_its_reply_are_ignored() -> None:
    kept: list[Emit] = []

    class Stray:
        vendor = "stray"

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            kept.append(emit)
            return ModelReply(message=AssistantMessage(text="done"))

    bus = EventBus()
    heard: list[Event] = []
    bus.connect(TextDelta, heard.append)
    await RequestSession(bus, Stray(), "hi").run()
    kept[0](TextPiece("too late"))
    assert heard == []


@pytest.mark.parametrize("kind", ["text", "sync", "async"])
async def test_instructions_are_put_in_front_and_asked_for_at_each_round(kind: str) -> None:
    asked: list[str] = []

    def sync_instructions(context: ToolContext[str]) -> str:
        asked.append(context.last_user_message)
        return f"Be kind to {context.deps}."

    async def async_instructions(context: ToolContext[str]) -> str:
        return sync_instructions(context)

    given: dict[str, Any] = {"text": "Be kind to Ada.", "sync": sync_instructions, "async": async_instructions}
    bus = EventBus()
    bus.connect(ToolCallRequested, lambda event: complete(bus, event))
    script = two_cities()
    session = RequestSession(bus, script, "Weather?", tools=[get_weather], instructions=given[kind], deps="Ada")
    result = await session.run()
    systems = [request.messages[0] for request in script.requests]
    assert [message.text for message in systems if isinstance(message, SystemMessage)] == ["Be kind to Ada."] * 2
    assert [message.role for message in script.requests[0].messages] == ["system", "user"]
    assert result.messages[0].role == "user"
    assert asked == ([] if kind == "text" else ["Weather?", "Weather?"])


async def test_instructions_that_raise_fail_the_request_with_their_error() -> None:
    def broken(_context: ToolContext[Any]) -> str:
        raise KeyError("name")

    result = await RequestSession(EventBus(), ScriptedProvider([text("x")]), "hi", instructions=broken).run()
    assert (result.outcome, result.reason) == ("failed", "application_error")
    assert "KeyError" in str(result.error)


async def test_a_history_is_copied_and_continued() -> None:
    history: list[Message] = [
        UserMessage(content="first"),
        AssistantMessage(text="one"),
        UserMessage(content="second"),
    ]
    session = RequestSession(EventBus(), ScriptedProvider([text("two")]), history)
    result = await session.run()
    assert len(history) == 3
    assert [message.role for message in result.new_messages] == ["user", "assistant"]
    assert result.history_count == 2
    dictionaries = [{"role": "user", "content": "from a dictionary"}]
    script = ScriptedProvider([text("ok")])
    result = await RequestSession(EventBus(), script, dictionaries).run()
    assert isinstance(result.messages[0], UserMessage)
    assert result.messages[0].content == "from a dictionary"


async def test_a_history_that_ends_with_results_goes_on_without_a_prompt() -> None:
    history: list[Message] = [
        UserMessage(content="Weather?"),
        AssistantMessage(tool_calls=(ToolCall(name="get_weather", call_id="c1"),)),
        ToolMessage(call_id="c1", name="get_weather", content="sunny"),
    ]
    result = await RequestSession(EventBus(), ScriptedProvider([text("Sunny.")]), history).run()
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (SystemMessage(text=cast("Any", None)), r"SystemMessage\.text is a NoneType"),
        (UserMessage(content=cast("Any", None)), r"UserMessage\.content is a NoneType"),
        (UserMessage(content=cast("Any", ("a", 1))), "the content has a str"),
        (AssistantMessage(text=cast("Any", None)), r"AssistantMessage\.text is a NoneType"),
        (AssistantMessage(text="a", reasoning=cast("Any", 3)), r"AssistantMessage\.reasoning is an int"),
        (AssistantMessage(text="a", tool_calls=cast("Any", None)), "tool_calls is a NoneType"),
        (AssistantMessage(tool_calls=cast("Any", ("f",))), "tool_calls is a tuple"),
        (
            AssistantMessage(tool_calls=(ToolCall(name="f", arguments=cast("Any", {}), call_id="c"),)),
            r"ToolCall\.arguments is a dict",
        ),
        (ToolMessage(call_id="c", name="f", content=cast("Any", {})), r"ToolMessage\.content is a dict"),
        (UserMessage(content=(TextPart(text=cast("Any", None)),)), r"the content: TextPart\.text is a NoneType"),
        (UserMessage(content=(ImagePart(url=cast("Any", None)),)), r"the content: ImagePart\.url is a NoneType"),
        (ToolMessage(call_id="c", name="f", content="", parts=cast("Any", None)), "parts is a NoneType"),
        (SystemMessage(text="a", message_id=cast("Any", 3)), r"SystemMessage\.message_id is an int"),
        (UserMessage(content="a", message_id=cast("Any", 3)), r"UserMessage\.message_id is an int"),
        (UserMessage(content=(TextPart(text="a"),), message_id=cast("Any", 3)), r"UserMessage\.message_id is an int"),
        (AssistantMessage(text="a", message_id=cast("Any", 3)), r"AssistantMessage\.message_id is an int"),
        (AssistantMessage(text="a", vendor_data=cast("Any", 3)), "vendor_data is an int"),
        (ToolMessage(call_id="c", name="f", content="", message_id=cast("Any", 3)), r"ToolMessage\.message_id is"),
        (ToolMessage(call_id=cast("Any", 3), name="f", content=""), r"ToolMessage\.call_id is an int"),
        (ToolMessage(call_id="c", name=cast("Any", None), content=""), r"ToolMessage\.name is a NoneType"),
        (AssistantMessage(tool_calls=(ToolCall(name=cast("Any", 3), call_id="c"),)), r"ToolCall\.name is an int"),
        (AssistantMessage(tool_calls=(ToolCall(name="f", call_id=cast("Any", 3)),)), r"ToolCall\.call_id is an int"),
        (
            AssistantMessage(tool_calls=(ToolCall(name="f", call_id="c", provider_call_id=cast("Any", 3)),)),
            r"ToolCall\.provider_call_id is an int",
        ),
        (
            ToolMessage(call_id="c", name="f", content="", parts=(ImagePart(url=cast("Any", 3)),)),
            r"parts: ImagePart\.url is an int",
        ),
    ],
)
def test_a_message_whose_fields_have_wrong_types_is_refused_with_its_index(wrong: Any, problem: str) -> None:
    said = UserMessage(content="Hello")
    with pytest.raises(ConfigurationError, match=rf"messages\[1\]: {problem}"):
        RequestSession(EventBus(), ScriptedProvider([]), [said, wrong, said])


def test_a_prompt_with_a_part_whose_text_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"the prompt: TextPart\.text is a NoneType"):
        RequestSession(EventBus(), ScriptedProvider([]), UserMessage(content=(TextPart(text=cast("Any", None)),)))


def test_a_prompt_whose_id_is_a_number_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"the prompt: UserMessage\.message_id is an int"):
        RequestSession(EventBus(), ScriptedProvider([]), UserMessage(content="Hello", message_id=cast("Any", 3)))


def test_a_history_with_an_orphan_is_refused_with_its_index() -> None:
    orphan: list[Message] = [
        UserMessage(content="hi"),
        ToolMessage(call_id="x", name="t", content="?"),
        UserMessage(content="go on"),
    ]
    with pytest.raises(InvalidHistory, match=r"history\[1\]") as caught:
        RequestSession(EventBus(), ScriptedProvider([]), orphan)
    assert caught.value.index == 1
    for nothing in ([], "", " \n", [SystemMessage(text="Be kind.")], [UserMessage(content=())]):
        with pytest.raises(ConfigurationError, match="nothing to ask"):
            RequestSession(EventBus(), ScriptedProvider([]), nothing)


async def test_a_session_runs_once() -> None:
    session = RequestSession(EventBus(), ScriptedProvider([text("x")]), "hi")
    await session.run()
    with pytest.raises(ConfigurationError, match="runs once"):
        await session.run()


async def test_specs_alone_are_answered_by_whoever_listens() -> None:
    spec = ToolSpec(name="get_weather", description="Weather")
    bus = EventBus()
    bus.connect(ToolCallRequested, lambda event: complete(bus, event))
    result = await RequestSession(bus, two_cities(), "Weather?", tools=[spec]).run()
    assert result.outcome == "completed"
    with pytest.raises(ConfigurationError):
        RequestSession(bus, two_cities(), "Weather?", tools=[spec, spec])


async def test_the_journal_is_written_before_anything_is_reported() -> None:
    order: list[str] = []

    class Recording:
        async def append(self, request_id: str, seq: int, facts: Sequence[Event]) -> None:
            assert seq == len([entry for entry in order if entry.startswith("wrote")])
            await anyio.lowlevel.checkpoint()
            order.extend(f"wrote {fact.type}" for fact in facts)

    bus = EventBus()
    bus.connect(Event, lambda event: order.append(f"told {event.type}"))
    bus.connect(ToolCallRequested, lambda event: complete(bus, event))
    session = RequestSession(bus, two_cities(), "Weather?", tools=[get_weather], journal=Recording())
    result = await session.run()
    assert result.outcome == "completed"
    for kind in ("request_started", "tool_call_requested", "request_completed"):
        assert order.index(f"wrote {kind}") < order.index(f"told {kind}")
    assert [entry for entry in order if entry.startswith("wrote")][-1] == "wrote request_completed"


@pytest.mark.parametrize("failure", [OSError("disk full"), StoreUnavailable("disk full")])
async def test_a_journal_that_fails_ends_the_request_and_starts_no_call(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    class Full:
        async def append(self, request_id: str, seq: int, facts: Sequence[Event]) -> None:
            if any(isinstance(fact, ToolCallRequested) for fact in facts):
                raise failure

    bus = EventBus()
    reported: list[str] = []
    bus.connect(Event, lambda event: reported.append(event.type))
    session = RequestSession(bus, two_cities(), "Weather?", tools=[get_weather], journal=Full())
    result = await session.run()
    assert result.outcome == "failed"
    assert failure in (result.error, result.error and result.error.__cause__)
    assert str(result.error) == ("OSError: disk full" if isinstance(failure, OSError) else "disk full")
    # Another process may continue from what a store has that is only away.
    assert result.resumable is isinstance(failure, StoreUnavailable)
    assert "tool_call_requested" not in reported
    assert [event.type async for event in session.events()][-1] == "request_failed"
    assert reported[-2:] == ["status_changed", "request_failed"]
    assert "tool_call_failed" not in reported  # nobody hears a fact that is not in the journal
    assert [call.reason for call in result.tool_calls] == ["interrupted", "interrupted"]
    validate(result.messages)
    assert bus.statistics().open_calls == 0
    assert ("the session broke" if isinstance(failure, OSError) else "its store failed") in caplog.text


async def test_accepted_returns_once_the_request_has_begun() -> None:
    model = Hanging()
    session = RequestSession(EventBus(), model, "hi")
    async with anyio.create_task_group() as group:
        assert not session.is_accepted
        group.start_soon(session.run)
        with anyio.fail_after(30):
            await session.accepted()
            assert session.is_accepted
            await session.accepted()
            model.go_on.set()
            await session.result()
            await session.accepted()


async def test_calls_and_failures_are_logged_with_their_ids(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="toolbus")
    bus = EventBus()
    bus.connect(
        ToolCallRequested,
        lambda event: complete(bus, event) if event.arguments["city"] == "Paris" else fail(bus, event),
    )
    session = RequestSession(bus, two_cities(), "Weather?", tools=[get_weather], metadata={"tenant": "t1"})
    result = await session.run()
    request, (first, second) = session.request_id, (call.call_id for call in result.tool_calls)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", f"request {request} started"),
        ("INFO", f"call {first}: tool get_weather is requested"),
        ("INFO", f"call {second}: tool get_weather is requested"),
        ("INFO", f"call {first}: tool get_weather completed in 0.000 s"),
        ("WARNING", f"call {second}: tool get_weather failed in 0.000 s: error: no"),
        ("INFO", f"request {request} completed in 0.0 s, 2 rounds, 2 calls, 0/0 tokens"),
    ]
    failed: Any = next(record for record in caplog.records if record.levelname == "WARNING")
    assert failed.request_id == session.request_id
    assert failed.call_id == result.tool_calls[1].call_id
    assert failed.metadata == {"tenant": "t1"}


async def test_the_timeline_tells_what_happened() -> None:
    bus = EventBus()
    bus.connect(
        ToolCallRequested,
        lambda event: complete(bus, event) if event.arguments["city"] == "Paris" else fail(bus, event, "closed"),
    )
    result = await RequestSession(bus, two_cities(), "Weather?", tools=[get_weather]).run()
    lines = result.timeline().splitlines()
    assert "2 calls" in lines[1]
    assert "✓ get_weather" in lines[2]
    assert "✗ get_weather" in lines[3]
    assert "error: closed" in lines[3]
    assert lines[-1].endswith("completed; 0 tokens in, 0 out")
    assert result.trace[0].retries == ()


@pytest.mark.guarantee("G05")
async def test_an_answer_to_a_call_that_nobody_made_becomes_a_dead_letter() -> None:
    bus = EventBus()
    letters: list[DeadLetter] = []
    bus.connect(DeadLetter, letters.append)
    assert bus.publish(ToolCallCompleted(request_id="r", call_id="c", name="n", content="x")) is False
    assert [letter.event_type for letter in letters] == ["tool_call_completed"]


async def test_the_last_answer_s_failure_does_not_hide_the_limit() -> None:
    bus = EventBus()
    bus.connect(ToolCallRequested, lambda event: complete(bus, event))
    script = ScriptedProvider([calls(("get_weather", {"city": "Paris"})), error(ProviderError("gone"))])
    limits = Limits(max_rounds=1)
    result = await RequestSession(bus, script, "go", tools=[get_weather], limits=limits).run()
    assert (result.outcome, result.reason, result.error) == ("stopped", "max_rounds=1", None)


def test_a_started_event_tells_prompt_and_deadline() -> None:
    bus = EventBus()
    started: list[RequestStarted] = []
    bus.connect(RequestStarted, started.append)
    completed: list[RequestCompleted] = []
    bus.connect(RequestCompleted, completed.append)

    async def main() -> None:
        await RequestSession(bus, ScriptedProvider([text("x")]), "hi", limits=Limits(timeout_seconds=7)).run()

    anyio.run(main)
    assert (started[0].prompt, started[0].timeout_seconds) == ("hi", 7)
    assert completed[0].text == "x"


def test_a_tool_needs_no_handler_when_it_is_external() -> None:
    assert Tool("x", "y", {"type": "object"}, external=True, validate=lambda _arguments: None).spec.external


async def test_a_reader_that_is_cancelled_between_pieces_loses_none() -> None:
    bus, model = EventBus(), Hanging()
    session = RequestSession(bus, model, "hi")
    stream = session.text()
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await model.asked.wait()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anext(stream)
        assert scope.cancelled_caught
        model.go_on.set()
        assert [piece async for piece in stream] == ["at last"]
        await stream.aclose()


async def test_an_event_answers_itself_with_all_its_ids() -> None:
    bus = EventBus()
    terminal: list[Event] = []
    bus.connect((ToolCallCompleted, ToolCallFailed), terminal.append)
    bus.connect(
        ToolCallRequested,
        lambda event: bus.publish(
            event.completed("sun", data={"sky": "clear"})
            if event.arguments["city"] == "Paris"
            else event.failed("closed", reason="denied", retryable=True)
        ),
    )
    session = RequestSession(bus, two_cities(), "Weather?", tools=[get_weather], metadata={"tenant": "t1"})
    result = await session.run()
    assert [(call.ok, call.data, call.reason) for call in result.tool_calls] == [
        (True, {"sky": "clear"}, ""),
        (False, None, "denied"),
    ]
    for event in terminal:
        assert (event.conversation_id, event.metadata) == (session.conversation_id, {"tenant": "t1"})


async def test_half_a_surrogate_pair_anywhere_still_makes_events_that_can_be_written() -> None:
    bus = EventBus()
    lines: list[bytes] = []
    bus.connect(Event, lambda event: lines.append(encode(event)))
    bus.connect(
        ToolCallRequested, lambda event: bus.publish(event.completed("half \ud800", data={"k\ud801": ["\ud802"]}))
    )
    result = await RequestSession(bus, two_cities(), "What is \ud83d?", tools=[get_weather]).run()
    assert result.outcome == "completed"
    assert any(b"half ?" in line for line in lines)
    assert any(b"What is ??" in line for line in lines)


async def test_instructions_that_give_nothing_add_no_message_and_what_is_no_text_fails_the_request() -> None:
    script = ScriptedProvider([text("ok")])

    def nothing(_context: ToolContext[Any]) -> Any:
        return None

    def number(_context: ToolContext[Any]) -> Any:
        return 3

    assert (await RequestSession(EventBus(), script, "hi", instructions=nothing).run()).ok
    assert [message.role for message in script.requests[0].messages] == ["user"]
    result = await RequestSession(EventBus(), script, "hi", instructions=number).run()
    assert (result.reason, "gave an int" in str(result.error)) == ("application_error", True)
