"""The stub speaks as the vendors do: their own SDKs read it, and what they send is understood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import anthropic
import anyio
import anyio.to_thread
import httpx2
import ollama
import openai
import pytest

from toolbus.errors import ConfigurationError
from toolbus.messages import AssistantMessage, ImagePart, TextPart, ToolMessage, Usage, UserMessage
from toolbus.testing import WireServer, calls, error, hang, text
from toolbus.testing.wire import DIALECTS, WireBreak, WireCall, WireFault, WirePage, WireReply

REPLY = WireReply(
    reasoning=("Let me ", "see."),
    text=("Grüezi, ", "Zürich 😀"),
    calls=(
        WireCall(name="get_weather", arguments='{"city": "Zürich"}', call_id="id_a"),
        WireCall(name="get_time", arguments="", call_id="id_b"),
    ),
    usage=Usage(input_tokens=100, output_tokens=20, cached_tokens=40, reasoning_tokens=8),
    model="stub-model-of-today",
)


# ---------------------------------------------------------------------------------------- what the SDKs read


def read_openai(url: str) -> dict[str, Any]:
    said, thought, arguments, last = "", "", {0: "", 1: ""}, None
    names: list[str] = []
    with openai.OpenAI(api_key="k", base_url=url, max_retries=0) as client:
        for chunk in client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        ):
            last = chunk
            for choice in chunk.choices:
                said += choice.delta.content or ""
                thought += getattr(choice.delta, "reasoning_content", None) or ""
                for call in choice.delta.tool_calls or ():
                    names += [call.function.name] if call.function and call.function.name else []
                    arguments[call.index] += (call.function and call.function.arguments) or ""
    assert last is not None
    assert last.usage is not None
    assert last.usage.prompt_tokens_details is not None
    counted = (last.usage.prompt_tokens, last.usage.prompt_tokens_details.cached_tokens)
    return {"text": said, "reasoning": thought, "names": names, "arguments": [*arguments.values()], "tokens": counted}


def read_responses(url: str) -> dict[str, Any]:
    with (
        openai.OpenAI(api_key="k", base_url=url, max_retries=0) as client,
        client.responses.stream(model="m", input="hi") as stream,
    ):
        whole = stream.get_final_response()
    items = {each.type: each for each in whole.output}
    made = [each for each in whole.output if each.type == "function_call"]
    reasoning: Any = items["reasoning"]
    assert reasoning.encrypted_content == "encrypted:Let me see."
    assert whole.usage is not None
    return {
        "text": whole.output_text,
        "reasoning": reasoning.summary[0].text,
        "names": [each.name for each in made],
        "arguments": [each.arguments for each in made],
        "tokens": (whole.usage.input_tokens, whole.usage.input_tokens_details.cached_tokens),
    }


def read_anthropic(url: str) -> dict[str, Any]:
    with (
        anthropic.Anthropic(api_key="k", base_url=url, max_retries=0) as client,
        client.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]) as stream,
    ):
        whole = stream.get_final_message()
    blocks: list[Any] = [*whole.content]
    assert [each.type for each in blocks] == ["thinking", "text", "tool_use", "tool_use"]
    assert blocks[0].signature == "signature:Let me see."
    assert whole.stop_reason == "tool_use"
    cached = whole.usage.cache_read_input_tokens or 0
    return {
        "text": blocks[1].text,
        "reasoning": blocks[0].thinking,
        "names": [each.name for each in blocks[2:]],
        "arguments": ['{"city": "Zürich"}' if each.input else "" for each in blocks[2:]],
        "tokens": (whole.usage.input_tokens + cached, cached),
    }


def read_ollama(url: str) -> dict[str, Any]:
    client: Any = ollama.Client(host=url)
    parts = [*client.chat(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)]
    client._client.close()  # it has no other way
    made = [call for part in parts for call in part.message.tool_calls or ()]
    assert (parts[-1].done, parts[-1].done_reason) == (True, "stop")
    return {
        "text": "".join(part.message.content or "" for part in parts),
        "reasoning": "".join(part.message.thinking or "" for part in parts),
        "names": [call.function.name for call in made],
        "arguments": ['{"city": "Zürich"}' if call.function.arguments else "" for call in made],
        "tokens": (parts[-1].prompt_eval_count, 40),
    }


READERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "openai": read_openai,
    "responses": read_responses,
    "anthropic": read_anthropic,
    "ollama": read_ollama,
}


@pytest.mark.parametrize("dialect", READERS)
def test_the_vendors_own_sdk_reads_a_scripted_reply(dialect: str) -> None:
    with WireServer([REPLY], dialect=dialect) as server:
        read = READERS[dialect](server.base_url)
    assert read == {
        "text": "Grüezi, Zürich 😀",
        "reasoning": "Let me see.",
        "names": ["get_weather", "get_time"],
        "arguments": ['{"city": "Zürich"}', ""],
        "tokens": (100, 40),
    }


def test_a_script_of_the_scripted_model_serves_a_wire_too() -> None:
    with WireServer([calls(("get_weather", {"city": "Zürich"})), text("Sunny.")]) as server:
        assert read_openai(server.base_url)["names"] == ["get_weather"]
        assert read_openai(server.base_url)["text"] == "Sunny."
        with pytest.raises(openai.InternalServerError, match="the stub's script has 2 steps, and step 2 was asked for"):
            read_openai(server.base_url)
        with pytest.raises(ConfigurationError, match="a step that raises"):
            server.answer_of(error(KeyError("x")))


# ------------------------------------------------------------------------------------------- what is meant

IMAGE = "iVBORw0KGgo="


def asked_openai() -> dict[str, Any]:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    return {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Where?"}, image]},
            {"role": "assistant", "content": "Hm.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "here"},
        ],
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
        "tool_choice": "required",
        "max_completion_tokens": 9,
    }


def asked_responses() -> dict[str, Any]:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE}"}
    return {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Where?"}, image]},
            {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "blob"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hm."}]},
            {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"at": 1}'},
            {"type": "function_call_output", "call_id": "a", "output": "here"},
        ],
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
        "tool_choice": "required",
        "max_output_tokens": 9,
    }


def asked_anthropic() -> dict[str, Any]:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}}
    thinking = {"type": "thinking", "thinking": "", "signature": "blob"}
    call = {"type": "tool_use", "id": "a", "name": "look", "input": {"at": 1}}
    return {
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Where?"}, image]},
            {"role": "assistant", "content": [thinking, {"type": "text", "text": "Hm."}, call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "here"}]},
        ],
        "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any"},
        "max_tokens": 9,
    }


def asked_ollama() -> dict[str, Any]:
    return {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Where?", "images": [IMAGE]},
            {
                "role": "assistant",
                "content": "Hm.",
                "tool_calls": [{"function": {"name": "look", "arguments": {"at": 1}}}],
            },
            {"role": "tool", "tool_name": "look", "content": "here"},
        ],
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
        "options": {"num_predict": 9},
    }


PATHS = {
    "openai": "/chat/completions",
    "responses": "/responses",
    "anthropic": "/v1/messages",
    "ollama": "/api/chat",
}
ASKED = {
    "openai": asked_openai,
    "responses": asked_responses,
    "anthropic": asked_anthropic,
    "ollama": asked_ollama,
}


def sent(dialect: str, body: dict[str, Any]) -> WireServer:
    with WireServer([WireReply(text="Well.")], dialect=dialect) as server:
        response = httpx2.post(f"{server.base_url}{PATHS[dialect]}", json={"model": "m", **body})
        assert response.status_code == 200
        return server


@pytest.mark.parametrize("dialect", PATHS)
def test_a_request_means_the_same_whatever_the_dialect(dialect: str) -> None:
    meant = sent(dialect, ASKED[dialect]()).read()
    assert meant.problems == ()
    assert (meant.model, [tool.name for tool in meant.tools]) == ("m", ["look"])
    assert meant.settings["max_output_tokens"] == 9
    assert meant.settings.get("tool_choice", "required") == "required"
    system, user, reply, result = meant.messages
    assert getattr(system, "text", "") == "Be brief."
    assert isinstance(user, UserMessage)
    assert isinstance(reply, AssistantMessage)
    first, image = user.content
    assert (first, getattr(image, "url", "").partition(",")[2]) == (TextPart(text="Where?"), IMAGE)
    assert isinstance(image, ImagePart)
    [call] = reply.tool_calls
    assert (reply.text, call.name, call.arguments) == ("Hm.", "look", '{"at": 1}')
    assert result == ToolMessage(call_id=call.call_id, name="look", content="here")
    assert meant.opaque == (("blob",) if dialect in {"responses", "anthropic"} else ())


@pytest.mark.parametrize("dialect", PATHS)
def test_a_result_that_is_missing_or_somewhere_else_is_a_problem(dialect: str) -> None:
    body = ASKED[dialect]()
    messages = body["input" if dialect == "responses" else "messages"]
    result = messages.pop()
    assert "has no result before the end" in str(sent(dialect, body).read().problems)
    messages.insert(1 if dialect != "openai" else 2, result)
    assert "which no call directly before it has" in str(sent(dialect, body).read().problems)


Change: TypeAlias = Callable[[Any], Any]
REFUSED: list[tuple[str, Change, str]] = [
    ("openai", lambda body: body["messages"][2]["tool_calls"][0].update(id=""), "has no id"),
    (
        "openai",
        lambda body: body["messages"][2]["tool_calls"].append(body["messages"][2]["tool_calls"][0]),
        "used twice",
    ),
    ("openai", lambda body: body["messages"][2]["tool_calls"][0]["function"].update(arguments={}), "are not text"),
    ("openai", lambda body: body.pop("tools"), "tool_choice without tools"),
    ("openai", lambda body: body["messages"].append({"role": "assistant"}), "neither content nor tool_calls"),
    ("openai", lambda body: body["messages"].append({"role": "tools", "content": "x"}), "'tools' is not a role"),
    (
        "openai",
        lambda body: body["tools"][0]["function"].update(name="look at"),
        "the tool name 'look at' is not valid",
    ),
    ("openai", lambda body: body["messages"][1]["content"].append({"type": "img"}), "a part of type 'img'"),
    ("openai", lambda body: body.update(messages=[]), "there are no messages"),
    (
        "responses",
        lambda body: body["input"].append({"type": "reasoning"}),
        "reasoning without the text or call that it led to",
    ),
    (
        "responses",
        lambda body: body["input"].append({"type": "item_reference"}),
        "an item of type 'item_reference'",
    ),
    ("responses", lambda body: body["tools"][0].update(type="fn"), "a tool of type 'fn'"),
    ("responses", lambda body: body["input"][0]["content"].append({"type": "text"}), "a part of type 'text'"),
    ("anthropic", lambda body: body.pop("max_tokens"), "max_tokens is missing"),
    ("anthropic", lambda body: body["messages"].insert(0, body["messages"][0]), "a message of user after user"),
    ("anthropic", lambda body: body["messages"].pop(0), "a message of assistant after nothing"),
    (
        "anthropic",
        lambda body: body["messages"][1]["content"].reverse(),
        "thinking after the text or call that it led to",
    ),
    ("anthropic", lambda body: body["messages"][1]["content"][2].update(id="a b"), "characters that are not allowed"),
    ("anthropic", lambda body: body["messages"][1]["content"][2].update(input="{}"), "is not an object"),
    ("anthropic", lambda body: body["messages"][1]["content"][1].update(text=" "), "a text block without text"),
    (
        "anthropic",
        lambda body: body["messages"][2]["content"].insert(0, {"type": "text", "text": "x"}),
        "after other blocks",
    ),
    ("ollama", lambda body: body["messages"][3].update(tool_name="search"), "no call directly before it"),
    (
        "ollama",
        lambda body: body["messages"][2]["tool_calls"][0]["function"].update(arguments="{}"),
        "are not an object",
    ),
]


@pytest.mark.parametrize(("dialect", "change", "problem"), REFUSED)
def test_what_a_vendor_refuses_is_a_problem(dialect: str, change: Change, problem: str) -> None:
    body = ASKED[dialect]()
    change(body)
    assert problem in str(sent(dialect, body).read().problems)


# ------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("dialect", DIALECTS)
def test_refusals_have_the_vendors_statuses_and_words(dialect: str) -> None:
    def answer(fault: WireFault) -> httpx2.Response:
        with WireServer([fault], dialect=dialect) as server:
            return httpx2.post(f"{server.base_url}{PATHS[dialect]}", json={})

    limited = answer(WireFault(kind="rate_limited", message="slower", retry_after_seconds=7))
    assert (limited.status_code, limited.headers["retry-after"]) == (429, "7")
    assert "slower" in limited.text
    overflow = answer(WireFault(kind="context_overflow"))
    assert overflow.status_code == 400
    assert any(words in overflow.text for words in ("maximum context length", "context window", "too long"))


def test_a_route_that_there_is_not_is_a_404_and_is_recorded() -> None:
    with WireServer() as server:
        assert httpx2.get(f"{server.origin}/v1/models").status_code == 404
    assert [each.path for each in server.requests] == ["/v1/models"]


def test_a_web_page_is_one() -> None:
    with WireServer([WirePage(status=502)]) as server:
        page = httpx2.post(f"{server.base_url}/chat/completions", json={})
    assert (page.status_code, page.headers["content-type"]) == (502, "text/html; charset=utf-8")


@pytest.mark.parametrize("how", ["cut", "reset"])
@pytest.mark.parametrize("after", [None, 2])
def test_a_stream_that_is_cut_is_seen_as_such(how: Any, after: int | None) -> None:
    with (
        WireServer([WireBreak(reply=REPLY, how=how, after=after)]) as server,
        pytest.raises((httpx2.RemoteProtocolError, httpx2.ReadError)),
    ):
        httpx2.post(f"{server.base_url}/chat/completions", json={})


async def test_an_answer_that_stands_still_goes_on_when_it_is_released() -> None:
    step = WireBreak(reply=REPLY, how="stall", after=4)
    with WireServer([step, step]) as server:
        read: list[dict[str, Any]] = []

        async def one() -> None:
            read.append(await anyio.to_thread.run_sync(read_openai, server.base_url))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            tasks.start_soon(one)
            assert await server.reached(lambda: server.stalls == 2, 5)
            assert read == []
            server.release()
        assert [each["text"] for each in read] == ["Grüezi, Zürich 😀"] * 2
        assert not server.left.is_set()


def test_arguments_that_a_wire_cannot_say_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="Ollama's arguments are objects"):
        DIALECTS["ollama"].render(WireReply(calls=(WireCall(name="a", arguments="{nope"),)))


def test_what_a_server_cannot_send_is_refused_when_it_is_scripted() -> None:
    wrong: list[tuple[Any, str]] = [
        ("Sunny.", r"step 1 is a str \('Sunny.'\); use calls\(...\), text\(...\), WireReply"),
        (hang(), "a step that raises or hangs cannot go over a wire: use WireFault or WireBreak"),
    ]
    with WireServer() as server:
        for step, reported in wrong:
            with pytest.raises(ConfigurationError, match=reported):
                WireServer([text("Hello."), step])
            with pytest.raises(ConfigurationError, match=reported):
                server.script = [text("Hello."), step]


def test_a_fault_or_a_break_of_another_kind_is_refused_with_the_kinds() -> None:
    kind: Any = "overloaded"
    with pytest.raises(ConfigurationError, match="kind is 'overloaded'; it must be one of 'rate_limited', 'server_err"):
        WireFault(kind=kind)
    with pytest.raises(ConfigurationError, match="how is 'overloaded'; it must be one of 'cut', 'reset'"):
        WireBreak(reply=WireReply(), how=kind)
