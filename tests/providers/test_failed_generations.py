"""Groq's `tool_use_failed`: what the model wrote and the server could not read goes back to the model as its own call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.openai_server import OpenAIServer, Reply, chunk, status, text
from toolbus import Interceptor, Limits, RequestResult, Runtime, ToolContext, tool
from toolbus.events import ModelRetrying
from toolbus.messages import ToolCall, ToolMessage, UserMessage
from toolbus.protocols import Delta, ModelReply, ModelRequest, TextPiece
from toolbus.providers import OpenAIProvider
from toolbus.providers.openai._failed_generation import INVALID_JSON, FailedGeneration, failed_calls
from toolbus.testing import Harness
from toolbus.testing.wire import Answer, LoopbackServer

MESSAGE = "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details."


def error(generation: str | None, code: str = "tool_use_failed") -> dict[str, Any]:
    """The body that Groq answers with."""
    fields = {} if generation is None else {"failed_generation": generation}
    return {"error": {"message": MESSAGE, "type": "invalid_request_error", "code": code, **fields}}


def answered(generation: str | None, code: str = "tool_use_failed") -> Reply:
    return status(400, body=error(generation, code))


def broken_off(generation: str, *before: dict[str, Any]) -> Reply:
    fields = error(generation)["error"]
    return Reply(chunks=[*before, {"error": {**fields, "status_code": 400}}])


@tool
async def get_weather(city: str) -> str:
    """Weather in a city."""
    return f"sunny in {city}"


async def run(*replies: Reply, **options: Any) -> tuple[RequestResult, list[dict[str, Any]]]:
    """The result, and the messages that the model was last sent."""
    with OpenAIServer(list(replies)) as server:
        provider = OpenAIProvider("m", api_key="k", base_url=server.base_url, vendor="groq")
        async with Runtime(provider=provider, tools=[get_weather]) as runtime:
            result = await runtime.run("Weather?", **options)
        await provider.aclose()
        return result, server.requests[-1].messages


def results(result: RequestResult) -> list[str]:
    return [each.content for each in result.messages if isinstance(each, ToolMessage)]


WRONG = '{"name": "get_weather", "arguments": {"town": "Paris"}}'
MALFORMED = '{"name": "get_weather", "arguments": city = Paris\n}'
TAGGED = '<function=get_weather{"town": "Paris"}</function>'


@pytest.mark.parametrize("generation", [WRONG, MALFORMED, TAGGED])
@pytest.mark.parametrize("reply", [answered, broken_off], ids=["as a status", "in the stream"])
async def test_a_call_that_the_server_could_not_read_goes_back_to_the_model(reply: Any, generation: str) -> None:
    result, sent = await run(reply(generation), text("Sorry."))
    assert (result.outcome, result.text) == ("completed", "Sorry.")
    assert "invalid_arguments" in results(result)[0]
    assert sent[-2]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert json.loads(sent[-1]["content"])["reason"] == "invalid_arguments"


async def test_a_call_of_a_tool_that_there_is_not_goes_back_with_those_that_there_are() -> None:
    result, _ = await run(answered('{"name": "get_wheather", "arguments": {"city": "Paris"}}'), text("Sorry."))
    assert "The tools are: get_weather." in results(result)[0]


async def test_a_model_that_never_learns_is_stopped_by_the_limit_of_errors() -> None:
    limits = Limits(max_consecutive_errors=2, on_limit="stop")
    result, _ = await run(*[answered(WRONG)] * 3, limits=limits)
    assert (result.outcome, result.reason) == ("stopped", "max_consecutive_errors=2")


async def test_text_that_came_before_stays_in_the_reply() -> None:
    result, sent = await run(broken_off(WRONG, chunk({"content": "Let me look."})), text("Sorry."))
    assert sent[-2]["content"] == "Let me look."
    assert result.outcome == "completed"


async def test_text_that_came_before_stays_in_a_reply_over_the_responses_api() -> None:
    def piece(kind: str, item: int, part: int, delta: str) -> dict[str, Any]:
        return {"type": f"response.{kind}.delta", "output_index": item, "content_index": part, "delta": delta}

    pieces = [
        piece("reasoning_text", 0, 0, "Hm."),
        piece("output_text", 1, 0, "Let me "),
        piece("output_text", 1, 0, "look"),
        piece("output_text", 1, 1, "."),
        piece("output_text", 2, 0, "Now."),
    ]
    frames = [f"data: {json.dumps(each)}\n\n".encode() for each in (*pieces, {"type": "error", **error(WRONG)})]
    answer = Answer(headers={"Content-Type": "text/event-stream"}, frames=frames)
    asked = ModelRequest(messages=(UserMessage(content="Weather?"),), tools=(get_weather.spec,))
    with LoopbackServer(lambda _: answer) as server:
        provider = OpenAIProvider("m", api_key="k", base_url=server.origin, vendor="groq", api="responses")
        reply = await provider.respond(asked, lambda _: None)
        await provider.aclose()
    assert (reply.message.text, [call.name for call in reply.message.tool_calls]) == (
        "Let me look.\n\nNow.",
        ["get_weather"],
    )


@pytest.mark.guarantee("G28")
@pytest.mark.parametrize(
    "reply",
    [
        answered("It is sunny in Paris."),
        answered(None),
        answered("{", "output_parse_failed"),
        broken_off("Tool use failed: no tool can be called with name get_cars"),
    ],
)
async def test_where_no_call_can_be_made_out_the_model_is_asked_again(reply: Reply) -> None:
    with OpenAIServer([reply, text("Sunny.")]) as server:
        provider = OpenAIProvider("m", api_key="k", base_url=server.base_url, vendor="groq")
        async with Harness(provider, tools=["get_weather"]) as harness:
            result = await harness.start("Weather?").result()
            assert [each.reason for each in harness.seen(ModelRetrying)] == ["provider_unavailable"]
        await provider.aclose()
    assert result.text == "Sunny."


@pytest.mark.parametrize(
    ("generation", "calls"),
    [
        (WRONG, [("get_weather", '{"town": "Paris"}')]),
        ('[{"name": "a", "parameters": {}}, {"name": "b", "parameters": {"n": 1}}]', [("a", "{}"), ("b", '{"n": 1}')]),
        ('<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>', [("a", "{}")]),
        (MALFORMED, [("get_weather", "city = Paris")]),
        ('{"name": "a", "arguments": {"n": 1}', [("a", '{"n": 1')]),
        ('<function=a>{"n": 1}</function>', [("a", '{"n": 1}')]),
        ('<function=a>{"city": "Köln"}</function>', [("a", '{"city": "Köln"}')]),
        ('<function=a{"n": 1}></function>', [("a", '{"n": 1}')]),
        ('<function=a({"n": 1})</function>\n<function=b {"m": 2}></function>', [("a", '{"n": 1}'), ("b", '{"m": 2}')]),
        ('a{"n": 1}</function>', [("a", '{"n": 1}')]),
        ('<function=a>{"n": </function>', [("a", '{"n":')]),
        ("It is sunny.", []),
        ("<function=a", []),
        ("<function=" * 1000, []),
        ("{" * 100_000, []),
        (None, []),
        (3, []),
    ],
)
def test_calls_are_made_out_in_what_models_write(generation: object, calls: list[tuple[str, str]]) -> None:
    assert failed_calls(generation) == tuple(ToolCall(name=name, arguments=arguments) for name, arguments in calls)


async def test_without_tools_there_is_no_call_to_go_back() -> None:
    with OpenAIServer([answered(WRONG), text("Sunny.")]) as server:
        provider = OpenAIProvider("m", api_key="k", base_url=server.base_url, vendor="groq")
        async with Harness(provider) as harness:
            assert (await harness.start("Weather?").result()).text == "Sunny."
        await provider.aclose()


@pytest.mark.parametrize(("said", "emitted", "whole"), [("", [TextPiece("{oh")], "{oh"), ("Well", [], "Well")])
def test_an_answer_that_the_server_could_not_read_is_passed_on_unless_it_was_streamed(
    said: str, emitted: list[Delta], whole: str
) -> None:
    failed = FailedGeneration("no", vendor="groq", status=400, codes={INVALID_JSON}, generation="{oh")
    deltas: list[Delta] = []
    reply = failed.reply(said, model="m", emit=deltas.append, offered=())
    assert reply is not None
    assert (deltas, reply.message.text, reply.finish_reason, reply.vendor_finish_reason) == (emitted, whole, "stop", "")


async def test_a_reply_of_calls_that_the_server_could_not_read_says_so() -> None:
    replies: list[ModelReply] = []

    class Seen(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Any) -> ModelReply:
            replies.append(await ask(request))
            return replies[-1]

    await run(answered(WRONG), text("Sorry."), interceptors=[Seen()])
    assert [(each.finish_reason, each.vendor_finish_reason) for each in replies] == [
        ("tool_calls", "tool_use_failed"),
        ("stop", "stop"),
    ]
