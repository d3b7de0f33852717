"""What callers give as prompt, history, provider and tools: what is accepted, and what is refused in which words."""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import Any

import pytest

from toolbus import EventBus, RequestSession, Runtime, Tool, ToolContext, tool
from toolbus.errors import ConfigurationError, InvalidHistory
from toolbus.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
    to_anthropic,
    to_ollama,
    to_openai,
    to_openai_responses,
    to_vercel,
)
from toolbus.protocols import ModelRequest, ToolSpec
from toolbus.records import replace
from toolbus.session import provider_list, read_messages, read_prompt, tool_registry, tool_source
from toolbus.session._inputs import split_messages
from toolbus.testing import ScriptedProvider, calls, text
from toolbus.tools import ToolRegistry

HELLO = UserMessage(content="Hello")
WIRE: dict[str, Any] = {"role": "user", "content": "Hello"}
IMAGE = ImagePart(url="https://example.com/a.png")


@tool
async def echo(said: str) -> str:
    """Say it again."""
    return said


def plain(said: str) -> str:
    """Say it again."""
    return said


# -------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ("hello", "history is a str ('hello'); pass a list of messages, such as [UserMessage(content='Hello')]"),
        (b"hello", "history is a bytes (b'hello'); pass a list of messages"),
        (HELLO, "history is a UserMessage ("),
        (WIRE, "history is a dict ({'content': 'Hello', 'role': 'user'}); pass a list"),
        (123, "history is an int (123); pass a list of messages"),
        (["hello"], "history[0] is a str ('hello'); pass a message there, such as UserMessage(content='Hello')"),
        ([HELLO, None], "history[1] is a NoneType (None); pass a message there"),
        ([WIRE, "hello"], "history[1] is a str ('hello'); pass a message there"),
        ([WIRE, HELLO], "history mixes the two forms: history[0] is a dictionary and history[1] a message; turn"),
        ([HELLO, WIRE], "history mixes the two forms: history[1] is a dictionary and history[0] a message; turn"),
    ],
)
def test_a_history_that_is_no_list_of_messages_is_refused(given: Any, reported: str):
    with pytest.raises(ConfigurationError, match=re.escape(reported)):
        read_messages(given)


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        (123, "messages is an int (123); pass a list of messages"),
        (None, "messages is a NoneType (None); pass a list of messages"),
        (["a"], "messages[0] is a str ('a'); pass a message there"),
        ([UserMessage(content=123)], "the prompt is an int (123); pass text, a UserMessage, or a list"),  # type: ignore[arg-type]
        ([UserMessage(content=None)], "the prompt is a NoneType (None); pass text"),  # type: ignore[arg-type]
        (
            [UserMessage(content=(ImagePart(url="photo.png"),))],
            "the url of the ImagePart is a str ('photo.png'), and not a URL; for a file, pass ImagePart.from_bytes(",
        ),
        ([UserMessage(content=[7])], "the prompt is a list with an int (7) in it; its parts are text, TextPart("),  # type: ignore[arg-type]
        ([UserMessage(content=[HELLO])], "in it; pass the newest question as text or as a UserMessage, and the"),  # type: ignore[arg-type]
        ([UserMessage(content=[WIRE])], "the prompt is a list with a dict ({'content': 'Hello', 'role': 'user'})"),  # type: ignore[arg-type]
        ("", "there is nothing to ask: the prompt is empty"),
        ([UserMessage(content=())], "there is nothing to ask: the prompt is empty"),
        (
            [UserMessage(content=(TextPart(text=" "), TextPart(text="")))],
            "there is nothing to ask: the prompt is empty",
        ),
        ([], "there is nothing to ask: the prompt is empty"),
        ([AssistantMessage(text="Hi.")], "there is nothing to ask: the history has no user message"),
    ],
)
def test_a_prompt_that_asks_nothing_is_refused(given: Any, reported: str):
    with pytest.raises(ConfigurationError, match=re.escape(reported)):
        split_messages(given)


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        (
            "extractive",
            "the provider is the name 'extractive', and names are for a Runtime: pass toolbus.providers.res",
        ),
        (["extractive"], "the provider is the name 'extractive'"),
        (ScriptedProvider, "the provider is the class ScriptedProvider; make one of it: ScriptedProvider(...)"),
        ([ScriptedProvider([]), ScriptedProvider], "the provider is the class ScriptedProvider"),
        (b"openai", "the provider is a bytes (b'openai'), which has no respond(request, emit)"),
        (7, "the provider is an int (7), which has no respond(request, emit): pass a toolbus.protocols.Provider"),
        ([], "a request needs a provider"),
    ],
)
def test_what_is_no_provider_is_refused(given: Any, reported: str):
    with pytest.raises(ConfigurationError, match=re.escape(reported)):
        provider_list(given)


class Toolset:
    def __init__(self) -> None:
        self.registry = ToolRegistry()


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        (echo, "tools is a Tool (Tool('echo')), a single one; pass a list: tools=[echo]"),
        (plain, "a single one; pass a list: tools=[plain]"),
        (ToolSpec(name="far"), "a single one; pass a list: tools=[far]"),
        (ToolRegistry, "tools is the class ToolRegistry; pass a list of functions, @tool or Tool, or a ToolRegistry"),
        ("echo", "tools is a str ('echo'); pass a list of functions, @tool or Tool, or a ToolRegistry"),
        ({"echo": 1}, "tools is a dict ({'echo': 1}); pass a list of functions"),
        (3, "tools is an int (3); pass a list of functions"),
        (Toolset(), "); enter the toolset, and pass its registry: tools=toolset.registry"),
        ([Toolset()], ") is not a tool; enter the toolset, and pass its registry: tools=toolset.registry"),
        (["echo"], "a str ('echo') is not a tool; pass a function, a @tool or a Tool"),
    ],
)
def test_tools_that_are_no_list_are_refused(given: Any, reported: str):
    for read in (tool_source, tool_registry):
        with pytest.raises(ConfigurationError, match=re.escape(reported)):
            read(given)


def test_tools_and_specs_do_not_mix_and_names_are_given_once():
    for given in ([echo, ToolSpec(name="far")], [ToolSpec(name="far"), ToolSpec(name="far")]):
        with pytest.raises(ConfigurationError, match="pass tools or specs, not both, and each name once"):
            tool_source(given)


def test_what_is_shown_of_a_value_is_short():
    with pytest.raises(ConfigurationError) as caught:
        read_messages("x" * 10_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("prompt", [123, [7], [HELLO], [WIRE], [{"type": "text", "text": "a"}], IMAGE, b"a", None])
async def test_a_runtime_starts_nothing_for_a_wrong_prompt(prompt: Any):
    async with Runtime(ScriptedProvider([text("Hi.")])) as runtime:
        with pytest.raises(ConfigurationError, match="the prompt is"):
            runtime.start(prompt)
        with pytest.raises(ConfigurationError, match="history is a str"):
            runtime.start("Hello?", history="hello")  # type: ignore[arg-type]
        assert (await runtime.run("Hello?")).text == "Hi."


@pytest.mark.parametrize(
    ("provider", "options"), [("extractive", {}), (ScriptedProvider, {}), (ScriptedProvider([]), {"tools": echo})]
)
def test_a_session_refuses_wrong_types_when_it_is_made(provider: Any, options: Any):
    with pytest.raises(ConfigurationError):
        RequestSession(EventBus(), provider, "Hello?", **options)


# ------------------------------------------------------------------------------------------------------- accepted


@pytest.mark.parametrize("given", ["Hello", HELLO, [HELLO], (HELLO,), [WIRE]])
def test_a_prompt_is_text_a_message_or_a_list_that_ends_with_it(given: Any):
    assert split_messages(given) == ([], HELLO)


def test_a_prompt_may_be_a_list_of_texts_images_and_files():
    file = FilePart.from_bytes(b"%PDF", "application/pdf", "bill.pdf")
    prompt = read_prompt(["What is this?", IMAGE, file, TextPart(text="And this?")])
    parts = (TextPart(text="What is this?"), IMAGE, file, TextPart(text="And this?"))
    assert prompt == UserMessage(content=parts)
    assert read_prompt([IMAGE]) == UserMessage(content=(IMAGE,))
    assert split_messages([HELLO, AssistantMessage(text="Hi."), prompt])[1] == prompt


def test_a_prompt_may_have_parts():
    message = UserMessage(content=(TextPart(text="Hello"),))
    assert split_messages(message) == ([], message)


def test_a_history_is_copied_and_may_be_empty():
    given = [HELLO, AssistantMessage(text="Hi.")]
    read = read_messages(given)
    assert read == given
    assert read is not given
    assert read_messages([]) == []


def test_a_history_of_messages_is_read_without_a_call_for_each_because_that_holds_the_event_loop() -> None:
    counted = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal counted
        counted += event == "call"

    given = [HELLO, AssistantMessage(text="Hello.")] * 1_000
    sys.setprofile(count)
    try:
        read = read_messages(given)
    finally:
        sys.setprofile(None)
    assert read == given
    assert read is not given
    assert counted < 100


def test_a_history_may_end_with_the_models_words():
    history = [HELLO, AssistantMessage(text="Hi.")]
    assert split_messages(history) == (history, None)


def test_a_broken_history_is_refused_with_its_index():
    with pytest.raises(InvalidHistory, match=r"history\[1\]"):
        split_messages([HELLO, AssistantMessage()])


def test_providers_are_one_or_several():
    one, other = ScriptedProvider([]), ScriptedProvider([])
    assert provider_list(one) == (one,)
    assert provider_list([one, other]) == (one, other)


def test_tools_are_a_registry_tools_functions_or_specs():
    registry = ToolRegistry([echo])
    assert tool_source(registry) is registry
    assert tool_registry(registry) is registry
    assert list(tool_source([echo, plain]).specs) == ["echo", "plain"]
    assert list(tool_registry(each for each in (echo, Tool("p", handler=plain))).specs) == ["echo", "p"]
    assert list(tool_source([ToolSpec(name="far")]).specs) == ["far"]


# -------------------------------------------------------------------------------- histories of other vendors


CALL = ToolCall(name="get_weather", arguments='{"city":"Paris"}', call_id="c", provider_call_id="c")
ROUND: list[Message] = [
    UserMessage(content="Weather?"),
    AssistantMessage(tool_calls=(CALL,)),
    ToolMessage(call_id="c", name="get_weather", content="clear"),
    AssistantMessage(text="The sky is clear."),
]
SEEN: list[Message] = [UserMessage(content=(TextPart(text="What is it?"), ImagePart(url="data:image/png;base64,iVBO")))]
TALK: list[Message] = [HELLO, AssistantMessage(text="Hi.")]


def from_the_wire(message: Message) -> Message:
    """Ollama has no ids, so they are made anew."""
    if isinstance(message, ToolMessage):
        return replace(message, call_id="c")
    if isinstance(message, AssistantMessage) and message.tool_calls:
        return replace(message, tool_calls=(replace(message.tool_calls[0], call_id="c", provider_call_id="c"),))
    return message


@pytest.mark.parametrize("history", [ROUND, SEEN, TALK])
@pytest.mark.parametrize(
    "write",
    [
        to_openai,
        to_openai_responses,
        to_ollama,
        to_anthropic,
        to_vercel,
        partial(to_vercel, form="core"),
        partial(to_vercel, form="ui"),
    ],
)
def test_a_history_of_any_vendor_is_read_as_what_it_is(write: Any, history: list[Message]):
    wire = write(history)
    read = read_messages(wire["messages"] if write is to_anthropic else wire)
    assert [from_the_wire(each) for each in read] == history


THINKING: dict[str, Any] = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
ITEM: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}


def test_what_one_vendor_wants_back_is_kept_with_its_history():
    claude = [WIRE, {"role": "assistant", "content": [THINKING, {"type": "text", "text": "Hi."}]}]
    assert to_anthropic(read_messages(claude))["messages"] == claude
    said: dict[str, Any] = {
        "type": "message",
        "role": "assistant",
        "id": "msg_1",
        "content": [{"type": "output_text", "text": "Hi."}],
    }
    assert to_openai_responses(read_messages([WIRE, ITEM, said])) == [WIRE, ITEM, said]


@pytest.mark.parametrize("kind", ["message", None])
def test_replies_that_anthropics_sdk_dumped_are_its_own(kind: str | None):
    use: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}}
    reply: dict[str, Any] = {
        "id": "msg_1",
        "type": kind,
        "role": "assistant",
        "content": [use],
        "stop_reason": "tool_use",
    }
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "clear"}]}
    read = read_messages([WIRE, {name: each for name, each in reply.items() if each}, result])
    assert [each.role for each in read] == ["user", "assistant", "tool"]


SEEN_AT = ImagePart(url="https://a/b.png")
NOTE = "data:text/plain;base64,aGk="


@pytest.mark.parametrize(
    ("part", "read"),
    [
        ({"type": "image_url", "image_url": {"url": SEEN_AT.url}}, SEEN_AT),
        ({"type": "input_image", "image_url": SEEN_AT.url}, SEEN_AT),
        ({"type": "image", "source": {"type": "url", "url": SEEN_AT.url}}, SEEN_AT),
        ({"type": "image", "image": SEEN_AT.url}, SEEN_AT),
        ({"type": "file", "file": {"file_data": NOTE}}, FilePart(url=NOTE, media_type="text/plain")),
        ({"type": "file", "data": "aGk=", "mediaType": "text/plain"}, FilePart(url=NOTE, media_type="text/plain")),
        ({"type": "text", "text": "hi", "providerOptions": {"openai": {}}}, TextPart(text="hi")),
    ],
)
def test_one_part_of_a_message_shows_which_vendor_s_form_a_history_has(part: dict[str, Any], read: Any):
    assert read_messages([{"role": "user", "content": [part]}]) == [UserMessage(content=(read,))]


def test_images_that_a_gateway_puts_beside_a_reply_make_no_other_form_of_it():
    drawn = {"role": "assistant", "content": "Here.", "images": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    assert to_openai(read_messages([WIRE, drawn])) == [WIRE, drawn]


async def test_a_sub_request_takes_what_a_request_does():
    asked: list[Message] = []

    @tool
    async def look(context: ToolContext[None]) -> str:
        """Look at it."""
        return (await context.ask(["What is it?", IMAGE])).text

    def answer(request: ModelRequest) -> Any:
        asked.append(request.messages[-1])
        newest = request.messages[-1]
        return (
            calls(("look", {})) if newest == UserMessage(content="Hello", message_id=newest.message_id) else text("Ok.")
        )

    async with Runtime(ScriptedProvider(answer), tools=[look]) as runtime:
        assert (await runtime.run(["Hello", IMAGE])).text == "Ok."
        assert (await runtime.run("Hello")).text == "Ok."
    parts = (TextPart(text="What is it?"), IMAGE)
    assert [each.content for each in asked if isinstance(each, UserMessage)] == [
        (TextPart(text="Hello"), IMAGE),
        "Hello",
        parts,
    ]


def test_a_note_amid_an_anthropic_history_is_a_system_message():
    notes = [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": [{"type": "text", "text": "Now."}]},
    ]
    read = read_messages([WIRE, {"role": "assistant", "content": [THINKING, {"type": "text", "text": "Hi."}]}, *notes])
    assert read[2:] == [SystemMessage(text="Be brief."), SystemMessage(text="Now.")]


@pytest.mark.parametrize(
    ("history", "index", "reported"),
    [
        (
            [WIRE, ITEM, {"role": "tool", "content": "1"}],
            2,
            "OpenAI's chat completions or Ollama's or Vercel's, and those before it",
        ),
        (
            [to_openai(ROUND)[1], {"role": "user", "content": [{"type": "tool_result"}]}],
            1,
            "the form of Anthropic's, and",
        ),
        ([{**WIRE, "content": [{"type": "image_url"}, {"type": "input_text"}]}], 0, "it mixes forms"),
        (
            [
                {**WIRE, "parts": [{"type": "text", "text": "Hello"}]},
                {"role": "assistant", "content": "Hi.", "thinking": "Hm."},
            ],
            1,
            "it has the form of Ollama's, and those before it that of Vercel's",
        ),
        ([WIRE, {"role": "assistant", "text": "Hi."}], 1, "message objects: pydantic.TypeAdapter(list[Message])."),
        ([{"role": "tool", "call_id": "c", "name": "f", "content": "1"}], 0, "the fields of a toolbus message"),
    ],
)
def test_a_history_of_two_forms_is_refused_with_its_place(history: Any, index: int, reported: str):
    with pytest.raises(InvalidHistory, match=re.escape(reported)) as caught:
        read_messages(history)
    assert caught.value.index == index


def test_an_sdks_object_in_a_history_is_refused_with_what_to_do():
    class Dumped:
        def model_dump(self) -> dict[str, Any]:
            return WIRE

    with pytest.raises(ConfigurationError, match=r"history\[1\] is a Dumped .*model_dump\(exclude_none=True\)"):
        read_messages([WIRE, Dumped()])  # type: ignore[list-item]
