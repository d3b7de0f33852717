"""OpenAI's calls that are no function's: named in an error where nobody here runs them, unwrapped where they wrap some."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from support.openai_server import OpenAIServer, calls, text
from support.wire_events import Frame, chat, chat_call, completed, function_call, item, read
from toolbus import Runtime, tool
from toolbus.errors import ProviderRejected, ReplyTooLarge
from toolbus.events import ToolCallCompleted
from toolbus.messages import AssistantMessage, ToolCall
from toolbus.protocols import ArgumentsPiece, Delta, ModelReply
from toolbus.providers import OpenAIProvider
from toolbus.providers.openai._wrapped_calls import CallUnwrapper

# ------------------------------------------------------------------------------------------------ named in an error

UNRUN: list[Frame] = [
    {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "run", "input": "print(1)"},
    {"type": "local_shell_call", "id": "lsh_1", "call_id": "call_1", "action": {"type": "exec", "command": ["ls"]}},
    {"type": "shell_call", "id": "sh_1", "call_id": "call_1", "action": {"commands": ["ls"]}},
    {"type": "apply_patch_call", "id": "apc_1", "call_id": "call_1", "operation": {"type": "delete_file"}},
    {"type": "computer_call", "id": "cu_1", "call_id": "call_1", "action": {"type": "screenshot"}},
    {"type": "mcp_approval_request", "id": "mcpr_1", "name": "delete", "arguments": "{}", "server_label": "x"},
]


@pytest.mark.parametrize("wire_item", UNRUN, ids=lambda each: each["type"])
@pytest.mark.parametrize("where", ["finished", "at the end only"])
def test_an_item_that_only_the_application_could_run_is_named(wire_item: Frame, where: str) -> None:
    frames = [item(0, wire_item), completed()] if where == "finished" else [completed(wire_item)]
    with pytest.raises(ProviderRejected, match=f"an item of type '{wire_item['type']}'") as caught:
        read("responses", frames)
    assert not caught.value.retryable
    assert "toolbus runs functions only" in str(caught.value)


SERVERS: list[Frame] = [
    {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    {"type": "code_interpreter_call", "id": "ci_1", "code": "1"},
    {"type": "mcp_call", "id": "mcp_1", "name": "x", "arguments": "{}", "server_label": "x"},
    {"type": "tool_search_call", "id": "ts_1", "call_id": None, "execution": "server"},
]


@pytest.mark.parametrize("wire_item", SERVERS, ids=lambda each: each["type"])
def test_what_the_vendor_runs_itself_is_no_error(wire_item: Frame) -> None:
    assert read("responses", [item(0, wire_item), item(1, function_call(1)), completed()]).message.tool_calls


def test_a_shell_that_the_vendor_ran_has_its_output_beside_it() -> None:
    shell: Frame = {"type": "shell_call", "id": "sh_1", "call_id": "call_9", "environment": {"type": "container"}}
    output: Frame = {"type": "shell_call_output", "id": "sho_1", "call_id": "call_9", "output": []}
    assert read("responses", [item(0, shell), item(1, output), item(2, function_call(1)), completed()]).message


def test_a_custom_call_of_chat_completions_is_named() -> None:
    custom = {"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "run", "input": "x"}}
    with pytest.raises(ProviderRejected, match="a tool call of type 'custom'"):
        read("openai", [chat(custom)])


def test_a_function_under_another_type_is_a_function() -> None:
    builtin = {**chat_call(0, name="$web_search"), "type": "builtin_function"}
    reply = read("openai", [chat(builtin), chat(finish_reason="tool_calls")])
    assert [call.name for call in reply.message.tool_calls] == ["$web_search"]


# ------------------------------------------------------------------------------------------------ the wrapper


def wrapper(*uses: Any, name: str = "multi_tool_use.parallel", **more: Any) -> ToolCall:
    arguments = orjson.dumps({"tool_uses": list(uses), **more}).decode()
    return ToolCall(name=name, arguments=arguments, provider_call_id="call_1")


def use(name: str, **parameters: Any) -> dict[str, Any]:
    return {"recipient_name": f"functions.{name}", "parameters": parameters}


def settled(*called: ToolCall, offered: frozenset[str] = frozenset({"a", "b"})) -> tuple[list[Delta], ModelReply]:
    deltas: list[Delta] = []
    unwrapper = CallUnwrapper(deltas.append, offered)
    for place, call in enumerate(called):
        unwrapper(ArgumentsPiece(place, call.name, call.arguments))
    message = AssistantMessage(text="Both.", tool_calls=called, vendor_data={"openai": {"responses": []}})
    return deltas, unwrapper.settle(ModelReply(message=message, finish_reason="tool_calls"))


@pytest.mark.parametrize("name", ["multi_tool_use.parallel", "multi_tool_use_parallel", "parallel"])
def test_the_calls_in_the_wrapper_are_the_calls_of_the_reply(name: str) -> None:
    deltas, reply = settled(wrapper(use("a", n=1), use("b"), name=name))
    assert reply.message == AssistantMessage(
        text="Both.",
        tool_calls=(
            ToolCall(name="a", arguments='{"n":1}', provider_call_id="call_1"),
            ToolCall(name="b", arguments="{}"),
        ),
    )
    assert deltas == [ArgumentsPiece(0, name, ""), ArgumentsPiece(0, "a", '{"n":1}'), ArgumentsPiece(1, "b", "{}")]


def test_other_calls_keep_their_places() -> None:
    other = ToolCall(name="b", arguments='{"m":2}', provider_call_id="call_2")
    deltas, reply = settled(wrapper(use("a", n=1), use("a", n=2)), other)
    assert [(call.name, call.arguments) for call in reply.message.tool_calls] == [
        ("a", '{"n":1}'),
        ("b", '{"m":2}'),
        ("a", '{"n":2}'),
    ]
    assert [each for each in deltas if each.text] == [
        ArgumentsPiece(1, "b", '{"m":2}'),
        ArgumentsPiece(0, "a", '{"n":1}'),
        ArgumentsPiece(2, "a", '{"n":2}'),
    ]


@pytest.mark.parametrize(
    "call",
    [
        wrapper(),
        wrapper(use("a"), "b"),
        wrapper(use("a"), {"parameters": {}}),
        wrapper(use("a"), {"recipient_name": "functions.", "parameters": {}}),
        wrapper(use("a"), {"recipient_name": "a", "parameters": [1]}),
        wrapper(use("multi_tool_use.parallel")),
        wrapper(use("a"), more=1),
        ToolCall(name="parallel", arguments='{"tool_uses": ['),
        ToolCall(name="parallel", arguments='{"tool_uses": 3}'),
        ToolCall(name="other", arguments=wrapper(use("a")).arguments),
    ],
)
def test_a_wrapper_that_cannot_be_read_stays_as_the_model_wrote_it(call: ToolCall) -> None:
    _, reply = settled(call)
    assert reply.message.tool_calls == (call,)


def test_a_tool_that_is_offered_under_the_name_is_that_tool() -> None:
    call = wrapper(use("a"), name="parallel")
    _, reply = settled(call, offered=frozenset({"a", "parallel"}))
    assert reply.message.tool_calls == (call,)


@tool
async def get_weather(city: str) -> str:
    """Weather in a city."""
    return f"sunny in {city}"


@pytest.mark.guarantee("G06")
async def test_the_calls_in_a_wrapper_run_and_their_results_go_back() -> None:
    uses = [use("get_weather", city="Paris"), use("get_weather", city="Rome")]
    with OpenAIServer([calls(("multi_tool_use.parallel", {"tool_uses": uses})), text("Sunny.")]) as server:
        provider = OpenAIProvider("m", api_key="k", base_url=server.base_url)
        async with Runtime(provider=provider, tools=[get_weather]) as runtime:
            done: list[str] = []
            runtime.bus.connect(ToolCallCompleted, lambda event: done.append(event.content))
            result = await runtime.run("Weather?")
        await provider.aclose()
    assert result.text == "Sunny."
    assert sorted(done) == ["sunny in Paris", "sunny in Rome"]
    sent = server.requests[-1].messages
    assert [call["function"]["name"] for call in sent[-3]["tool_calls"]] == ["get_weather"] * 2
    assert [each["tool_call_id"] for each in sent[-2:]] == [call["id"] for call in sent[-3]["tool_calls"]]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # How many calls a wrapper has is pure code.
async def test_a_wrapper_of_too_many_calls_is_a_reply_that_is_too_large(anyio_backend: str) -> None:
    uses = [use("get_weather", city="Paris")] * 1_001
    with OpenAIServer([calls(("parallel", {"tool_uses": uses}))]) as server:
        provider = OpenAIProvider("m", api_key="k", base_url=server.base_url)
        async with Runtime(provider=provider, tools=[get_weather]) as runtime:
            result = await runtime.start("Weather?").result()
        await provider.aclose()
    assert result.reason == ReplyTooLarge.code
