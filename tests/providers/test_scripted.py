from __future__ import annotations

from typing import Any

import pytest

from toolbus.errors import ConfigurationError, ProviderUnavailable, ScriptError
from toolbus.messages import AssistantMessage, Message, ToolCall, Usage, UserMessage
from toolbus.protocols import (
    ArgumentsPiece,
    Delta,
    ModelReply,
    ModelRequest,
    Provider,
    ReasoningPiece,
    TextPiece,
    ToolSpec,
)
from toolbus.providers.scripted import ScriptedProvider, calls, error, text


def asking(said: str = "hi", **options: Any) -> ModelRequest:
    return ModelRequest(messages=[UserMessage(content=said)], **options)


async def ask(provider: ScriptedProvider, request: ModelRequest | None = None) -> tuple[ModelReply, list[Delta]]:
    deltas: list[Delta] = []
    return await provider.respond(request or asking(), deltas.append), deltas


def test_it_is_a_provider() -> None:
    provider = ScriptedProvider([])
    assert isinstance(provider, Provider)
    assert provider.vendor == "scripted"
    assert ScriptedProvider([], vendor="openai").vendor == "openai"


async def test_steps_are_given_in_order() -> None:
    provider = ScriptedProvider(
        [
            calls(("get_weather", {"city": "Paris"}), ("get_time", '{"zone": '), text="One moment."),
            text("Sunny.", usage=Usage(input_tokens=7), finish_reason="length"),
        ]
    )
    first, _ = await ask(provider)
    assert first.message == AssistantMessage(
        text="One moment.",
        tool_calls=(
            ToolCall(name="get_weather", arguments='{"city":"Paris"}', provider_call_id="call_0"),
            ToolCall(name="get_time", arguments='{"zone": ', provider_call_id="call_1"),
        ),
    )
    assert (first.finish_reason, first.vendor, first.model) == ("tool_calls", "scripted", "script")
    assert repr(provider) == "ScriptedProvider(1 steps left)"
    second, _ = await ask(provider)
    assert second.message == AssistantMessage(text="Sunny.")
    assert (second.finish_reason, second.usage) == ("length", Usage(input_tokens=7))
    provider.assert_done()


async def test_pieces_joined_are_the_reply() -> None:
    provider = ScriptedProvider(
        [calls(("a", {"city": "Paris"}), ("b", ""), ("c", "{}"), text="One moment.", reasoning="Let me think.")]
    )
    reply, deltas = await ask(provider)
    assert "".join(each.text for each in deltas if isinstance(each, TextPiece)) == reply.message.text
    assert "".join(each.text for each in deltas if isinstance(each, ReasoningPiece)) == reply.message.reasoning
    for index, call in enumerate(reply.message.tool_calls):
        pieces = [each for each in deltas if isinstance(each, ArgumentsPiece) and each.index == index]
        assert "".join(each.text for each in pieces) == call.arguments
        assert {each.name for each in pieces} <= {call.name}
    assert [type(each).__name__ for each in deltas] == ["ReasoningPiece"] * 3 + ["TextPiece"] * 3 + (
        ["ArgumentsPiece"] * 5
    )


@pytest.mark.parametrize(
    ("pieces", "streamed"), [(["Su", "", "nny."], ["Su", "", "nny."]), (2, ["Sun", "ny."]), (0, ["Sunny."])]
)
async def test_a_script_may_say_how_text_is_cut(pieces: Any, streamed: list[str]) -> None:
    _, deltas = await ask(ScriptedProvider([text("Sunny.", pieces)]))
    assert deltas == [TextPiece(each) for each in streamed]


async def test_an_empty_reply_has_no_pieces() -> None:
    reply, deltas = await ask(ScriptedProvider([text("")]))
    assert (reply.message, deltas) == (AssistantMessage(), [])


async def test_ids_may_be_scripted_even_empty_or_repeated_ones() -> None:
    reply, _ = await ask(ScriptedProvider([calls(("a", {}), ("b", {}), ("c", {}), ids=["x", "x", ""])]))
    assert [each.provider_call_id for each in reply.message.tool_calls] == ["x", "x", ""]
    assert [each.call_id for each in reply.message.tool_calls] == ["", "", ""]


async def test_an_error_step_raises_every_time_it_is_reached() -> None:
    failure = ProviderUnavailable("down", retryable=True)
    provider = ScriptedProvider([error(failure), text("up again")])
    with pytest.raises(ProviderUnavailable, match="down") as caught:
        await ask(provider)
    assert caught.value is failure
    assert (await ask(provider))[0].message.text == "up again"


async def test_a_step_may_be_a_function_of_the_request() -> None:
    provider = ScriptedProvider([lambda request: lambda again: text(f"round {again.round}, {len(request.messages)}")])
    reply, _ = await ask(provider, asking(round=3))
    assert reply.message.text == "round 3, 1"


async def test_a_function_is_a_whole_script_without_an_end() -> None:
    provider = ScriptedProvider(lambda request: text(str(request.round)), record=False)
    for number in range(5):
        assert (await ask(provider, asking(round=number)))[0].message.text == str(number)
    provider.assert_done()
    assert provider.requests == []
    assert repr(provider) == "ScriptedProvider(a function)"


async def test_replies_of_one_step_share_nothing_that_a_session_writes_to() -> None:
    step = calls(("a", {}))
    provider = ScriptedProvider([step, step])
    (first, _), (second, _) = await ask(provider), await ask(provider)
    first.message.tool_calls[0].call_id = "minted"
    first.message.message_id = "minted"
    assert second.message == AssistantMessage(tool_calls=(ToolCall(name="a", provider_call_id="call_0"),))


async def test_asking_for_more_than_there_is_says_what_was_asked() -> None:
    provider = ScriptedProvider([text("done")])
    await ask(provider)
    request = asking("And in Rome? " + "x" * 100, round=1, tools=[ToolSpec(name="get_weather"), ToolSpec(name="b")])
    with pytest.raises(ScriptError) as caught:
        await ask(provider, request)
    assert "the script has 1 steps, and step 1 was asked for: round 1" in str(caught.value)
    assert "'And in Rome? xxx" in str(caught.value)
    assert "…" in str(caught.value)
    assert "tools offered: get_weather, b" in str(caught.value)
    with pytest.raises(ScriptError, match="last words were '', tools offered: none"):
        await ask(ScriptedProvider([]), ModelRequest(messages=[]))


def test_steps_left_over_are_named() -> None:
    def later(_request: ModelRequest) -> Any: ...

    provider = ScriptedProvider([calls(("a", {}), ("b", {})), text("bye"), error(ValueError("x")), later])
    assert provider.steps_left == 4
    with pytest.raises(ScriptError) as caught:
        provider.assert_done()
    assert "4 steps that nobody asked for" in str(caught.value)
    assert "calls(a, b), text('bye'), error(ValueError('x')), later(request)" in str(caught.value)


async def test_requests_are_remembered_as_they_were() -> None:
    provider = ScriptedProvider([text("one"), text("two")])
    messages: list[Message] = [UserMessage(content="hi")]
    request = ModelRequest(messages=messages, request_id="r")
    await provider.respond(request, lambda _: None)
    messages.append(AssistantMessage(text="one"))
    await provider.respond(request, lambda _: None)
    assert [len(each.messages) for each in provider.requests] == [1, 2]
    assert provider.requests[0].request_id == "r"


async def test_what_is_no_step_is_refused() -> None:
    wrong: Any = ["hello"]
    with pytest.raises(ConfigurationError, match=r"step 0 is 'hello', which is no step: use calls"):
        ScriptedProvider(wrong)

    def function(_request: ModelRequest) -> Any: ...

    with pytest.raises(ConfigurationError, match=r"what the script's function returned is None"):
        await ask(ScriptedProvider(function))
    with pytest.raises(ConfigurationError, match="1 ids for 2 calls"):
        calls(("a", {}), ("b", {}), ids=["x"])
    with pytest.raises(ConfigurationError, match="joined, are 'Rain', not 'Sunny'"):
        text("Sunny", ["Ra", "in"])
