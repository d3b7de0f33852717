from __future__ import annotations

import re
from typing import Any

import anyio
import pytest

from toolbus.errors import ConfigurationError, ProviderUnavailable, ScriptError
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
from toolbus.providers.scripted import ScriptedProvider, calls, error, hang, text
from toolbus.records import replace
from toolbus.testing import asked, settle, virtual_backends

anyio_backend = virtual_backends()


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
    assert repr(provider) == "ScriptedProvider(1 step left)"
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


async def test_asking_for_more_than_there_is_says_what_was_asked() -> None:
    provider = ScriptedProvider([text("done")])
    await ask(provider)
    request = asking("And in Rome? " + "x" * 100, round=1, tools=[ToolSpec(name="get_weather"), ToolSpec(name="b")])
    with pytest.raises(ScriptError) as caught:
        await ask(provider, request)
    reported = str(caught.value)
    assert "the script has 1 step, and one more was asked for; it was asked in round 1" in reported
    assert "tools offered: get_weather, b\n  user 'And in Rome? xxx" in reported
    with pytest.raises(ScriptError, match="tools offered: none"):
        await ask(ScriptedProvider([]), ModelRequest(messages=[]))
    with pytest.raises(ScriptError, match="one more was asked for"):
        provider.assert_done()
    assert provider.problems == [reported]


def test_steps_left_over_are_named() -> None:
    def later(_request: ModelRequest) -> Any: ...

    provider = ScriptedProvider([calls(("a", {}), ("b", {})), text("bye"), error(ValueError("x")), hang(), later])
    assert provider.steps_remaining == 5
    with pytest.raises(ScriptError) as caught:
        provider.assert_done()
    assert "5 steps left over" in str(caught.value)
    assert "calls(a, b), text('bye'), error(ValueError('x')), hang(), later(request)" in str(caught.value)


async def test_requests_are_remembered_as_they_were() -> None:
    provider = ScriptedProvider([text("one"), text("two")])
    messages: list[Message] = [UserMessage(content="hi")]
    request = ModelRequest(messages=messages, request_id="r")
    await provider.respond(request, lambda _: None)
    messages.append(AssistantMessage(text="one"))
    await provider.respond(request, lambda _: None)
    assert [len(each.messages) for each in provider.requests] == [1, 2]
    assert provider.requests[0].request_id == "r"


@pytest.mark.parametrize("script", [text("Hello."), "Hello.", None])
def test_a_script_that_is_no_list_is_refused(script: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"the script is .*; pass a list of steps, such as \[text\("):
        ScriptedProvider(script)


async def asks_a_database(_request: ModelRequest) -> Any: ...


@pytest.mark.parametrize("script", [lambda: text("Hello."), asks_a_database])
def test_a_script_that_is_no_function_of_the_request_is_refused(script: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"the script is .*; pass a list of steps, or a function, not async"):
        ScriptedProvider(script)


@pytest.mark.parametrize("given", [None, 5, b"Hello."])
def test_a_reply_that_is_no_text_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"content is .*; pass a string"):
        text(given)


@pytest.mark.parametrize("given", ["down", ProviderUnavailable, BaseException("x")])
def test_an_error_that_is_no_exception_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"exception is .*; pass an exception, such as ProviderUnavailable\("):
        error(given)


def test_the_steps_of_an_iterator_are_kept() -> None:
    steps: Any = (text(each) for each in ("One.", "Two."))
    assert ScriptedProvider(steps).steps_remaining == 2


async def test_what_is_no_step_is_refused() -> None:
    wrong: Any = ["hello"]
    with pytest.raises(ConfigurationError, match=r"step 0 is 'hello', which is not a step: use calls"):
        ScriptedProvider(wrong)

    def function(_request: ModelRequest) -> Any: ...

    with pytest.raises(ConfigurationError, match=r"what the script's function returned is None"):
        await ask(ScriptedProvider(function))
    with pytest.raises(ConfigurationError, match="1 ids for 2 calls"):
        calls(("a", {}), ("b", {}), ids=["x"])
    with pytest.raises(ConfigurationError, match="joined, are 'Rain', not 'Sunny'"):
        text("Sunny", ["Ra", "in"])


# ------------------------------------------------------------------------------------------------- time


async def timed(step: Any) -> list[tuple[float, str]]:
    """When each piece came, and when it was over."""
    came: list[tuple[float, str]] = []
    began = anyio.current_time()
    try:
        await ScriptedProvider([step]).respond(
            asking(), lambda delta: came.append((anyio.current_time() - began, delta.text))
        )
    finally:
        came.append((anyio.current_time() - began, "over"))
    return came


@pytest.mark.parametrize(
    ("delays", "came"),
    [
        (2, [(2, "a"), (4, "b"), (4, "over")]),
        ([1, 0.5], [(1, "a"), (1.5, "b"), (1.5, "over")]),
        ([0, 0, 3], [(0, "a"), (0, "b"), (3, "over")]),
        ([4], [(4, "a"), (4, "b"), (4, "over")]),
    ],
)
async def test_pieces_take_the_time_that_the_script_says(delays: Any, came: list[tuple[float, str]]) -> None:
    assert await timed(text("ab", ["a", "b"], delays=delays)) == came


async def test_calls_and_replies_without_pieces_take_time_too() -> None:
    assert await timed(text("", delays=7)) == [(7, "over")]
    assert [when for when, _ in await timed(calls(("a", {"b": 1}), delays=1))] == [1, 2, 3, 3]


async def test_an_error_may_come_in_the_middle_of_a_stream() -> None:
    deltas: list[Delta] = []
    failure = ProviderUnavailable("cut")
    with pytest.raises(ProviderUnavailable, match="cut"):
        await ScriptedProvider([error(failure, after="It is su")]).respond(asking(), deltas.append)
    assert "".join(each.text for each in deltas) == "It is su"
    deltas.clear()
    with pytest.raises(ProviderUnavailable, match="cut"):
        await ScriptedProvider([error(failure, after=calls(("a", {})), delays=5)]).respond(asking(), deltas.append)
    assert deltas == [ArgumentsPiece(0, "a", "{"), ArgumentsPiece(0, "a", "}")]
    assert anyio.current_time() == 10


@pytest.mark.parametrize(("step", "said"), [(hang(), []), (hang(after="It is", delays=[1]), ["It", " i", "s"])])
async def test_a_step_may_hang_from_the_beginning_or_stand_still_midway(step: Any, said: list[str]) -> None:
    deltas: list[Delta] = []
    async with anyio.create_task_group() as group:
        group.start_soon(ScriptedProvider([step]).respond, asking(), deltas.append)
        with anyio.move_on_after(10_000) as scope:
            await anyio.sleep_forever()
        assert scope.cancelled_caught
        await settle()
        assert [each.text for each in deltas] == said
        group.cancel_scope.cancel()


def test_delays_that_cannot_be_are_refused() -> None:
    for delays in (-1, float("nan"), [0, float("inf")], [1, 1, 1, 1]):
        with pytest.raises(ConfigurationError, match="for 2 pieces; pass seconds"):
            text("ab", 2, delays=delays)


# ------------------------------------------------------------------------------------------------- expectations

WEATHER = ToolMessage(call_id="1", name="get_weather", content='{"ok":false,"reason":"timeout","at":{"x":1,"y":2}}')
ASKED = ModelRequest(
    messages=[
        SystemMessage(text="Be brief."),
        UserMessage(content=(TextPart(text="And in Rome?"), ImagePart(url="https://example.com/a.png"))),
        AssistantMessage(tool_calls=(ToolCall(name="get_weather"), ToolCall(name="read"))),
        WEATHER,
        ToolMessage(call_id="2", name="read", content="plain"),
    ],
    tools=[ToolSpec(name="get_weather"), ToolSpec(name="read")],
    round=1,
)


def is_question(said: str) -> bool:
    return said.endswith("?")


def never(_said: str) -> bool:
    return False


RIGHT: list[dict[str, Any]] = [
    {"last_user": "And in Rome?"},
    {"last_user": re.compile("Rome")},
    {"last_user": is_question},
    {"instructions": "Be brief."},
    {"tools": ["read", "get_weather"]},
    {"results": {"get_weather": {"reason": "timeout", "at": {"x": 1}}, "read": "plain", "write": None}},
    {"results": {"read": re.compile("la")}},
    {"images": 1},
    {"round": 1},
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"last_user": "And?"}, "the newest user message: 'And in Rome?', not 'And?'"),
    ({"last_user": re.compile("Paris")}, "not re.compile('Paris')"),
    ({"last_user": never}, "not what the function expects"),
    ({"instructions": ""}, "the instructions: 'Be brief.', not ''"),
    ({"tools": []}, "the tools offered are ['get_weather', 'read'], not []"),
    ({"results": {"get_weather": {"reason": "error"}}}, "the newest result of get_weather is {'ok': False"),
    ({"results": {"get_weather": {"at": {"z": 1}}}}, "not {'at': {'z': 1}}"),
    ({"results": {"get_weather": {"reason": "timeout", "at": 3}}}, "not {'reason': 'timeout', 'at': 3}"),
    ({"results": {"get_weather": [1]}}, "the newest result of get_weather is {'ok': False"),
    ({"results": {"read": 1}}, "is 'plain', which is not JSON, and not 1"),
    ({"results": {"read": "other"}}, "the newest result of read: 'plain', not 'other'"),
    ({"results": {"write": "x"}}, "there is no result of write"),
    ({"results": {"read": None}}, "there is a result of read"),
    ({"native_output": True}, "the reply does not have to be JSON of a schema"),
    ({"images": 0}, "the newest user message has 1 images, not 0"),
    ({"round": 0, "images": 2}, "has 1 images, not 2; it is round 1, not 0"),
]


@pytest.mark.parametrize("expected", RIGHT)
async def test_a_request_that_was_expected_is_answered(expected: dict[str, Any]) -> None:
    provider = ScriptedProvider([text("ok", expect=asked(**expected))])
    assert (await ask(provider, ASKED))[0].message.text == "ok"
    provider.assert_done()


@pytest.mark.parametrize(("expected", "problem"), WRONG)
async def test_a_request_that_was_not_expected_is_reported_with_all_that_was_asked(
    expected: dict[str, Any], problem: str
) -> None:
    provider = ScriptedProvider([text("one"), calls(("a", {}), expect=asked(**expected))])
    await ask(provider)
    with pytest.raises(ScriptError) as caught:
        await ask(provider, ASKED)
    reported = str(caught.value)
    assert reported.startswith("step 1, calls(a), expects another request: ")
    assert problem in reported
    assert reported.endswith(
        "; it was asked in round 1, tools offered: get_weather, read\n"
        "  system 'Be brief.'\n"
        "  user 'And in Rome?' and 1 image(s)\n"
        "  assistant '' calls get_weather({}), read({})\n"
        f"  tool get_weather {WEATHER.content!r}\n"
        "  tool read 'plain'"
    )
    with pytest.raises(ScriptError, match="expects another request"):
        provider.assert_done()


async def test_a_long_text_that_was_not_expected_is_reported_by_its_beginning() -> None:
    provider = ScriptedProvider([text("ok", expect=asked(last_user="short"))])
    with pytest.raises(ScriptError, match=r"the newest user message: '(long ){20,40}l?o?n?g?…, not 'short'"):
        await ask(provider, replace(ASKED, messages=[UserMessage(content="long " * 200)]))


async def test_a_request_whose_reply_is_held_to_a_schema_is_told_apart() -> None:
    held = replace(ASKED, output_schema={"type": "object"})
    provider = ScriptedProvider([text("{}", expect=asked(native_output=each)) for each in (True, False)])
    assert (await ask(provider, held))[0].message.text == "{}"
    with pytest.raises(ScriptError, match=r"the reply has to be JSON of a schema; it was asked in round 1, .* schema"):
        await ask(provider, held)


async def test_an_expectation_may_be_any_function_of_the_request() -> None:
    def asserting(request: ModelRequest) -> None:
        assert request.round == 0, "not the first"

    def mistaken(request: ModelRequest) -> object:
        return request.nothing  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]

    def refusing(request: ModelRequest) -> bool:
        return not request.messages

    for expect, problem in [
        (asserting, "not the first"),
        (mistaken, "mistaken raised AttributeError"),
        (refusing, "refusing(request) is False"),
    ]:
        provider = ScriptedProvider(lambda _, expect=expect: error(ValueError("x"), expect=expect))
        with pytest.raises(ScriptError) as caught:
            await ask(provider, ASKED)
        assert "a step, error(ValueError('x')), expects another request: " in str(caught.value)
        assert problem in str(caught.value)
    await ask(ScriptedProvider([text("ok", expect=asserting)]))


def test_an_expectation_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expects nothing"):
        asked()
    wrong: Any = "Rome?"
    with pytest.raises(ConfigurationError, match=r"expect is 'Rome\?'; pass asked"):
        text("x", expect=wrong)
