"""What real servers, gateways and proxies were seen to send that no specification has, and what becomes of it."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from support import wire_events
from support.openai_server import OpenAIServer, Reply, chunk
from toolbus import Runtime, tool
from toolbus.errors import ContextOverflow, InvalidHistory, ProviderRejected, ProviderUnavailable
from toolbus.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Part,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
    from_anthropic,
    from_openai,
    to_anthropic,
)
from toolbus.protocols import ArgumentsPiece, Delta, ModelReply, ModelRequest, TextPiece
from toolbus.providers import AnthropicProvider, OpenAIProvider
from toolbus.providers._shared.errors import retry_after
from toolbus.providers._shared.request_parts import shown_image
from toolbus.providers._shared.stream_events import EventLines, JsonLines
from toolbus.providers._shared.wire_text import without_half_characters
from toolbus.providers.anthropic._errors import AnthropicErrors
from toolbus.providers.anthropic._request import request_body
from toolbus.providers.anthropic._stream import MessageBuilder
from toolbus.providers.ollama._stream import ReplyBuilder as OllamaBuilder
from toolbus.providers.openai._calls_in_text import calls_in_text
from toolbus.providers.openai._chat_stream import ReplyBuilder
from toolbus.providers.openai._errors import OpenAIErrors
from toolbus.providers.openai._responses_stream import ResponseBuilder
from toolbus.records import json_bytes
from toolbus.stores import SqliteStore
from toolbus.testing.wire import WireCall, WireReply, WireServer

OPENAI = OpenAIErrors(vendor="stub", where="http://stub/v1", hint="look")
ANTHROPIC = AnthropicErrors(vendor="anthropic", where="http://stub", hint="look")
HUGE = 123456789012345678901234567890
BRACKETS = '{"a": ' + "[" * 5000  # what a model writes that repeats a token until its limit


def read(body: bytes, kind: Any = ReplyBuilder, deltas: list[Delta] | None = None) -> ModelReply:
    """The reply in the body of a stream, as the provider would read it."""
    seen: list[Delta] = [] if deltas is None else deltas
    builder = kind(model="m", emit=seen.append, limit_bytes=100_000, errors=OPENAI)
    lines = (JsonLines if kind is OllamaBuilder else EventLines)(100_000, OPENAI)
    for event, data in [*lines.feed(body), *lines.finish()]:
        builder.feed(event, data)
    return builder.finish()


def stream(*events: Any) -> bytes:
    return b"".join(
        b"data: " + (each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n\n" for each in events
    )


def whole(kind: Any, body: dict[str, Any]) -> ModelReply:
    seen: list[Delta] = []
    builder = kind(model="m", emit=seen.append, limit_bytes=100_000, errors=OPENAI)
    builder.whole(body)
    return builder.finish()


HI = stream(chunk({"content": "hi"}), chunk(finish_reason="stop"))


# --------------------------------------------------------------------------------------------- lines


def test_an_error_that_llama_cpp_sends_as_a_field_of_its_own_is_no_empty_reply() -> None:
    problem = b'{"code":400,"message":"the request exceeds the available context size","type":"invalid_request_error"}'
    with pytest.raises(ContextOverflow, match="available context size"):
        read(b"error: " + problem + b"\n\ndata: [DONE]\n\n")
    with pytest.raises(ProviderUnavailable, match="slot unavailable"):
        read(b"error: slot unavailable\n\ndata: [DONE]\n\n")


def test_a_server_that_knows_only_an_older_version_of_anthropics_api_is_asked_for_that_one_by_a_header() -> None:
    said = {
        "type": "invalid_request_error",
        "message": "Unsupported anthropic-version header: 2026-10-21",
    }  # Xinference
    error = ANTHROPIC.status(400, {}, {"type": "error", "error": said})
    assert "2026-10-21; ask it by an older version: default_headers={'anthropic-version': '2023-06-01'}" in str(error)
    assert "default_headers" not in str(ANTHROPIC.status(400, {}, {"type": "error", "error": {"message": "no"}}))


@pytest.mark.parametrize("noise", [b"data:\n\n", b"data: \n\n", b"event: ping\ndata:\n\n", b"\xef\xbb\xbf"])
def test_signs_of_life_without_data_and_a_mark_of_the_byte_order_are_no_part_of_the_reply(noise: bytes) -> None:
    assert read(noise + HI).message.text == "hi"


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n\r\ndata: [DONE]\n\n"])
def test_an_object_in_the_place_of_a_stream_is_read(end: bytes) -> None:
    problem = b'{"error": {"message": "no quota left", "code": "insufficient_quota"}}'
    with pytest.raises(ProviderRejected, match="no quota left"):
        read(problem + end)
    with pytest.raises(ProviderRejected, match="no quota left"):
        read(HI[: HI.index(b"\n\n") + 2] + problem + end)
    reply = read(b'{"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}' + end)
    assert reply.message.text == "hi"


async def answered(body: str) -> ModelReply:
    """The reply in a body that calls itself JSON."""
    with OpenAIServer([Reply(body=body, headers={"Content-Type": "application/json"})]) as server:
        provider = OpenAIProvider("m", base_url=server.base_url)
        reply = await provider.respond(ModelRequest(messages=(UserMessage(content="hi"),)), lambda _: None)
        await provider.aclose()
    return reply


async def test_a_body_with_a_byte_order_mark_and_half_a_character_is_read() -> None:
    body = "\ufeff" + json.dumps({"choices": [{"message": {"content": "hi \ud83d"}, "finish_reason": "stop"}]})
    assert (await answered(body)).message.text == "hi \N{REPLACEMENT CHARACTER}"


def test_events_without_an_empty_line_between_them_are_told_apart() -> None:
    events = [chunk({"content": "a"}), chunk({"content": "b"}), chunk(finish_reason="stop")]
    body = b"".join(b"data: " + json.dumps(each).encode() + b"\n" for each in events)
    assert read(body + b"data: [DONE]\n").message.text == "ab"
    written = json.dumps(chunk({"content": "c"}, finish_reason="stop"), indent=1).replace("\n", "\ndata: ")
    assert read(b"data: " + written.encode() + b"\n\n").message.text == "c"


@pytest.mark.parametrize("begin", ["", "\n\n", ": comment\n\n", "event: message\n"])
async def test_a_stream_that_calls_itself_json_is_read(begin: str) -> None:
    assert (await answered(begin + HI.decode() + "data: [DONE]\n\n")).message.text == "hi"


# ------------------------------------------------------------------------------------- chat completions


@pytest.mark.parametrize("kind", [ReplyBuilder, MessageBuilder, ResponseBuilder])
@pytest.mark.parametrize("body", [{}, {"code": 500, "msg": "404 NOT_FOUND", "success": False}])
def test_a_gateways_own_words_with_status_200_are_no_empty_reply(kind: Any, body: dict[str, Any]) -> None:
    with pytest.raises(ProviderUnavailable, match=r"NOT_FOUND|\{\}"):
        whole(kind, body)


@pytest.mark.parametrize("choices", [None, []])
def test_a_completion_without_choices_is_no_empty_reply_and_its_words_are_reported(choices: Any) -> None:
    said = {"choices": choices, "base_resp": {"status_code": 1004, "status_msg": "login fail"}}
    with pytest.raises(ProviderUnavailable, match=r"answered with no completion: .*login fail"):
        whole(ReplyBuilder, said)
    for end in ((), (b"[DONE]",)):
        with pytest.raises(ProviderUnavailable, match=r"answered with no completion: .*login fail"):
            read(stream(said, *end))


def test_a_refusal_with_status_200_is_read_to_its_end() -> None:
    words = "This model's maximum context length is 163840 tokens. However, you requested 170000 tokens."
    said = {"id": "c" * 40, "object": "chat.completion.chunk", "created": 1_784_000_000, "model": "m" * 40}
    own = {**said, "base_resp": {"status_code": 1039, "status_msg": words}}
    deep_infra = {**said, "choices": None, "error_type": "BadRequestError", "error_message": words}
    for kind in (ReplyBuilder, MessageBuilder, ResponseBuilder):
        with pytest.raises(ContextOverflow, match="163840") as caught:
            whole(kind, own)
        assert caught.value.limit_tokens == 163_840
    for before in ((), (chunk({"role": "assistant", "content": ""}),)):
        with pytest.raises(ContextOverflow, match="163840"):
            read(stream(*before, deep_infra, b"[DONE]"))


def test_an_error_inside_a_choice_is_raised_as_what_it_is() -> None:
    """OpenRouter reports there what happened at the model's server."""
    choice = {"index": 0, "finish_reason": "error", "error": {"code": 400, "message": "no such tool"}}
    with pytest.raises(ProviderRejected, match="no such tool"):
        whole(ReplyBuilder, {"choices": [{**choice, "message": {"role": "assistant", "content": ""}}]})
    with pytest.raises(ProviderUnavailable, match="slow down"):
        read(
            stream(chunk({"content": "a"}), {"choices": [{"index": 0, "error": {"code": 429, "message": "slow down"}}]})
        )
    with pytest.raises(ProviderUnavailable, match="over capacity"):
        read(stream(chunk({"content": "a"}), {**chunk({}), "x_groq": {"error": "over capacity"}}))


def test_an_error_object_without_an_error_field_is_one() -> None:
    problem = {"object": "error", "message": "The model `x` does not exist.", "type": "NotFoundError", "code": 404}
    for attempt in (lambda: whole(ReplyBuilder, problem), lambda: read(stream(problem, b"[DONE]"))):
        with pytest.raises(ProviderRejected, match="does not exist") as caught:
            attempt()
        assert caught.value.status == 404


def test_arguments_as_an_object_keep_every_digit_and_half_characters_break_nothing() -> None:
    for written in (f'{{"n": {HUGE}}}', '{"n": "\\ud83d"}'):
        event = json.dumps(chunk({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "?"}}]}))
        event = event.replace('"?"', written).replace('"finish_reason": null', '"finish_reason": "tool_calls"')
        (call,) = read(stream(event.encode())).message.tool_calls
        assert call.arguments == written


@pytest.mark.parametrize(
    "empty", [{"index": 0}, {"id": "", "type": "function"}, {"index": 0, "function": {"name": None, "arguments": ""}}]
)
def test_an_empty_call_beside_the_text_is_none(empty: dict[str, Any]) -> None:
    reply = read(stream(chunk({"tool_calls": [empty]})) + HI)
    assert reply.message == AssistantMessage(text="hi")
    called = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    deltas: list[Delta] = []
    reply = read(stream(chunk({"tool_calls": [empty]}), chunk({"tool_calls": [called]}), b"[DONE]"), deltas=deltas)
    assert reply.message.tool_calls == (ToolCall(name="f", arguments="{}", provider_call_id="c"),)
    assert deltas == [ArgumentsPiece(0, "f", "{}")]


def test_a_message_beside_the_last_delta_is_not_said_again() -> None:
    last = {"index": 0, "delta": {}, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    assert read(stream(chunk({"content": "hi"}), {"choices": [last]})).message.text == "hi"
    assert whole(ReplyBuilder, {"choices": [last]}).message.text == "hi"


def test_a_model_that_repeats_a_bracket_for_ever_breaks_nothing() -> None:
    def fragment(arguments: str, reason: str | None = None) -> dict[str, Any]:
        function = {"name": "f", "arguments": arguments}
        return chunk({"tool_calls": [{"index": 0, "id": "c", "function": function}]}, finish_reason=reason)

    (call,) = read(stream(fragment(BRACKETS), fragment("[", "length"))).message.tool_calls
    assert call.arguments == BRACKETS + "["
    with pytest.raises(ProviderUnavailable, match="before the reply was whole"):
        read(stream(fragment(BRACKETS), b"[DONE]"))
    for kind in (ReplyBuilder, ResponseBuilder, MessageBuilder):
        with pytest.raises(ProviderUnavailable, match="not a JSON object"):
            read(stream(BRACKETS.encode()), kind)
    with pytest.raises(ProviderUnavailable, match="not a JSON object"):
        read(BRACKETS.encode() + str(HUGE).encode() + b"\n", OllamaBuilder)


# -------------------------------------------------------------------------------------------- Anthropic


def message(*blocks: list[dict[str, Any]], reason: str = "tool_use") -> bytes:
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"model": "m", "usage": {}}}]
    for index, (content, *deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": content})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return stream(*events, {"type": "message_delta", "delta": {"stop_reason": reason}}, {"type": "message_stop"})


THOUGHT: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": ""},
    {"type": "thinking_delta", "thinking": "hm"},
    {"type": "signature_delta", "signature": "c2ln"},
]


def called(arguments: str) -> list[dict[str, Any]]:
    return [
        {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        {"type": "input_json_delta", "partial_json": arguments},
    ]


def test_brackets_for_ever_after_a_thought_are_arguments_that_cannot_be_read() -> None:
    reply = read(message(THOUGHT, called(BRACKETS), reason="max_tokens"), MessageBuilder)
    assert (reply.finish_reason, reply.message.tool_calls[0].arguments) == ("length", BRACKETS)


@pytest.mark.parametrize(
    "arguments", [f'{{"n": {HUGE}}}', '{"n": ' + "[" * 300 + "]" * 300 + "}"], ids=["huge", "deep"]
)
async def test_arguments_that_no_store_can_write_are_the_models_mistake_and_end_no_request(
    arguments: str, tmp_path: Any
) -> None:
    @tool
    def f(n: Any = 0) -> str:
        """Take anything."""
        return f"{n}"

    script = [WireReply(reasoning="hm", calls=(WireCall(name="f", arguments=arguments),)), WireReply(text="Sorry.")]
    with WireServer(script, dialect="anthropic") as server:
        provider = AnthropicProvider("m", base_url=server.base_url)
        async with Runtime(provider=provider, tools=[f], store=SqliteStore(tmp_path / "x.db")) as runtime:
            result = await runtime.run("Go.", conversation_id="c")
        await provider.aclose()
        assert server.read(1).problems == ()
    assert (result.outcome, result.text) == ("completed", "Sorry.")
    (failure,) = [each for each in result.messages if isinstance(each, ToolMessage)]
    assert "invalid_arguments" in failure.content


def test_a_large_integer_in_a_call_that_arrives_whole_stays_exact() -> None:
    reply = read(message([{"type": "tool_use", "id": "t", "name": "f", "input": {"n": HUGE}}]), MessageBuilder)
    assert json.loads(reply.message.tool_calls[0].arguments) == {"n": HUGE}


@pytest.mark.parametrize("odd", [{"type": "new", "text": {"a": 1}}, {"type": 5}, {"type": "new", "n": "\ud83d"}])
def test_blocks_of_a_kind_that_is_not_known_yet_may_have_anything_in_them(odd: dict[str, Any]) -> None:
    reply = read(message([odd], reason="end_turn"), MessageBuilder)
    (kept,) = (reply.message.vendor_data or {})["anthropic"]["content"]
    assert kept == {
        "type": str(odd["type"]),
        **({"n": "?"} if "n" in odd else {}),
        **({"text": {"a": 1}} if "text" in odd else {}),
    }


def test_a_call_of_the_servers_own_tool_that_was_cut_off_does_not_go_back_without_its_result() -> None:
    def search(number: int, kind: str = "server_tool_use") -> list[dict[str, Any]]:
        return [{"type": kind, "id": f"srv_{number}", "name": "web_search", "input": {"query": "x"}}]

    result: list[dict[str, Any]] = [{"type": "web_search_tool_result", "tool_use_id": "srv_0", "content": []}]
    said = [{"type": "text", "text": "Look:"}]
    for reason, ids in (("max_tokens", ["srv_0"]), ("pause_turn", ["srv_0", "srv_1", "srv_2"])):
        blocks = (search(0), result, said, search(1), search(2, "mcp_tool_use"))
        reply = read(message(*blocks, reason=reason), MessageBuilder)
        (sent_back,) = to_anthropic([reply.message])["messages"]
        assert [each["id"] for each in sent_back["content"] if "id" in each] == ids
        assert reply.message.text == "Look:"
    inside = [{"type": "tool_use", "id": "t", "name": "f", "input": {}, "caller": {"type": "c", "tool_id": "srv_1"}}]
    reply = read(message(search(1), inside, reason="max_tokens"), MessageBuilder)
    (sent_back,) = to_anthropic([reply.message])["messages"]
    assert [each["id"] for each in sent_back["content"]] == ["srv_1", "t"]


def test_citations_that_are_no_list_break_nothing() -> None:
    said = [{"type": "text", "text": "hi", "citations": "x"}, {"type": "citations_delta", "citation": {"url": "u"}}]
    reply = read(message(said, reason="end_turn"), MessageBuilder)
    assert reply.message.vendor_data == {
        "anthropic": {"content": [{"type": "text", "text": "hi", "citations": [{"url": "u"}]}]}
    }


# -------------------------------------------------------------------------------------------- Responses


def ended(*output: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"status": "completed", "output": list(output)}}


CALL = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f"}
SAID = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}


@pytest.mark.parametrize("field", [{}, {"arguments": None}, {"arguments": ""}])
def test_a_finished_call_without_its_arguments_has_those_of_its_pieces(field: dict[str, Any]) -> None:
    events = [
        {"type": "response.output_item.added", "output_index": 0, "item": {**CALL, "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"a": 1}'},
        {"type": "response.function_call_arguments.done", "output_index": 0, **field},
        {"type": "response.output_item.done", "output_index": 0, "item": {**CALL, **field}},
    ]
    for last in (ended(), ended({**CALL, **field})):
        (call,) = read(stream(*events, last), ResponseBuilder).message.tool_calls
        assert call == ToolCall(name="f", arguments='{"a": 1}', provider_call_id="c")


@pytest.mark.parametrize("content", [[], "", None, [{"type": "output_text", "text": ""}]])
def test_a_finished_message_without_its_text_has_that_of_its_pieces(content: Any) -> None:
    events = [
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "hi"},
        {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": ""},
        {"type": "response.output_item.done", "output_index": 0, "item": {**SAID, "content": content}},
    ]
    for last in (ended(), ended({**SAID, "content": content})):
        deltas: list[Delta] = []
        assert read(stream(*events, last), ResponseBuilder, deltas).message.text == "hi"
        assert deltas == [TextPiece("hi")]


def test_items_that_the_last_event_leaves_out_do_not_have_the_others_said_twice() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
    done = [
        {"type": "response.output_item.done", "output_index": place, "item": item}
        for place, item in enumerate((thought, SAID))
    ]
    deltas: list[Delta] = []
    reply = read(stream(*done, ended(SAID)), ResponseBuilder, deltas)
    assert reply.message.text == "hi"
    assert [each for each in deltas if isinstance(each, TextPiece)] == [TextPiece("hi")]


def test_a_large_integer_in_arguments_that_are_an_object_stays_exact() -> None:
    deltas: list[Delta] = []
    reply = read(stream(ended({**CALL, "arguments": {"n": HUGE}})), ResponseBuilder, deltas)
    assert json.loads(reply.message.tool_calls[0].arguments) == {"n": HUGE}
    assert deltas == [ArgumentsPiece(0, "f", reply.message.tool_calls[0].arguments)]


# ----------------------------------------------------------------------------------------------- errors


EXTRA = {"extra": "10**400"}
KEPT: dict[str, list[wire_events.Frame]] = {
    "openai": [wire_events.chat(wire_events.chat_call(0, **EXTRA), finish_reason="tool_calls")],
    "responses": [wire_events.completed({"type": "message", "id": "m", **EXTRA})],
    "anthropic": [wire_events.start("m", {"type": "new", **EXTRA}), *wire_events.end()],
}


@pytest.mark.parametrize("wire", KEPT)
def test_an_integer_that_no_store_can_write_is_the_providers_error(wire: str) -> None:
    frames = [orjson.dumps(frame).replace(b'"10**400"', b"1" + b"0" * 400) for frame in KEPT[wire]]
    with pytest.raises(ProviderUnavailable, match="sent an integer with more than 308 digits"):
        wire_events.read(wire, frames)


def test_dates_of_any_size_are_no_crash() -> None:
    far = "Mon, 01 Jan 20000000000000000000 00:00:00"
    assert retry_after({"retry-after": far}) is None
    assert retry_after({"retry-after": "Mon, 01 Jan 2024 00:00:00 +99999999999999999999"}) is None
    assert retry_after({"retry-after": "Mon, 01 Jan 2024 00:00:00 GMT", "date": far}) == 0


def test_half_a_character_in_a_servers_words_breaks_nothing_and_can_be_written() -> None:
    for body in ({"detail": [{"msg": "bad", "input": "\ud83d"}]}, {"error": {"message": "bad \ud83d"}}):
        error = OPENAI.status(422, {}, body)
        assert "bad" in str(error)
        str(error).encode()


# ------------------------------------------------------------------------------------ what is sent again


def sent(*parts: Part, is_error: bool | None = None) -> Any:
    """The content of a message with these parts as Anthropic gets it: of the user, or of a result."""
    messages: Any = (UserMessage(content=parts),)
    if is_error is not None:
        call = AssistantMessage(tool_calls=(ToolCall(name="f", call_id="c"),))
        messages = (call, ToolMessage(call_id="c", name="f", content="no", parts=parts, is_error=is_error))
    body = request_body("m", ModelRequest(messages=messages), max_output_tokens=9, cache="off")
    content = body["messages"][-1]["content"]
    return content if is_error is None else content[0]["content"]


@pytest.mark.parametrize("head", ["image/jpg;base64", "IMAGE/JPEG;base64", "image/jpeg;name=a.jpg;base64"])
def test_an_image_goes_under_the_one_name_that_its_kind_has(head: str) -> None:
    part = ImagePart(url=f"data:{head},AAAA")
    assert sent(part)[0]["source"] == {"type": "base64", "media_type": "image/jpeg", "data": "AAAA"}
    assert shown_image(part) == ImagePart(url="data:image/jpeg;base64,AAAA")


def test_documents_that_the_api_refuses_go_as_a_word() -> None:
    latin = FilePart.from_bytes("caf\xe9".encode("latin-1"), "text/csv", "a.csv")
    link = FilePart(url="https://example.com/a.txt", media_type="text/plain")
    assert sent(latin) == "[a file a.csv of type text/csv]"
    assert sent(link) == "[a file of type text/plain at https://example.com/a.txt]"
    (document,) = sent(FilePart(url="data:Application/PDF;base64,AAAA", media_type="Application/PDF"))
    assert document["source"]["media_type"] == "application/pdf"
    (document,) = sent(FilePart(url="data:TEXT/plain;base64,aGk=", media_type="TEXT/plain"))
    assert document["source"] == {"type": "text", "media_type": "text/plain", "data": "hi"}


def test_a_failed_result_is_text_alone_as_the_api_demands() -> None:
    parts = (
        ImagePart(url="data:image/png;base64,AAAA"),
        FilePart(url="data:text/plain;base64,aGk=", media_type="text/plain"),
        TextPart(text="more"),
    )
    assert [each["type"] for each in sent(*parts, is_error=False)] == ["text", "image", "document", "text"]
    failed = sent(*parts, is_error=True)
    assert {each["type"] for each in failed} == {"text"}
    assert [each["text"] for each in failed] == [
        "no", "[an image, not shown beside an error]", "[file]\nhi\n[end of file]", "more",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "part",
    [
        {"type": "file", "file": {"file_id": "file-1", "file_data": None}},
        {"type": "image_url", "image_url": {"url": None}},
    ],
)
def test_a_part_that_points_nowhere_is_refused_with_its_index(part: dict[str, Any]) -> None:
    with pytest.raises(InvalidHistory) as caught:
        from_openai([{"role": "user", "content": [part]}])
    assert caught.value.index == 0


def test_reasoning_among_the_parts_of_a_reply_is_read_from_a_history_as_from_a_stream() -> None:
    content = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "hi"}]
    message = {"role": "assistant", "content": content}
    replies = [*from_openai([message]), whole(ReplyBuilder, {"choices": [{"message": message}]}).message]
    assert replies == [AssistantMessage(text="hi", reasoning="hm")] * 2


def test_a_text_that_is_none_is_refused_in_a_reply_as_well() -> None:
    for role in ("assistant", "system", "user"):
        with pytest.raises(InvalidHistory, match="a block's text must be text, not list"):
            from_anthropic([{"role": role, "content": [{"type": "text", "text": ["hi"]}]}])


def test_a_history_with_a_large_integer_in_a_call_after_a_thought_can_be_stored_and_goes_back() -> None:
    wire: list[Any] = [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"n": HUGE}},
    ]
    (back,) = from_anthropic([{"role": "assistant", "content": wire}])
    assert json.loads(json_bytes(back))["vendor_data"]
    assert to_anthropic([back])["messages"][0]["content"] == wire


def test_half_a_character_in_a_call_as_text_can_be_written() -> None:
    (call,) = calls_in_text('{"name": "f", "arguments": {"a": "\\ud83d"}}', {"f"})
    assert call.arguments.encode() == b'{"a": "\\ud83d"}'


def test_half_a_character_in_a_request_leaves_large_integers_exact() -> None:
    assert without_half_characters({"a": "\ud83d", "n": HUGE}) == {"a": "?", "n": HUGE}
