"""Messages of Vercel's AI SDK: for models in version 4 and since version 5, and for pages."""

from __future__ import annotations

import copy
import json
import re
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messages.wire_strategies import no_parts, result_parts, transcripts
from toolbus import Runtime
from toolbus.core.transcript import repair, validate
from toolbus.errors import InvalidHistory
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
    VercelForm,
    from_vercel,
    to_openai,
    to_vercel,
)
from toolbus.messages._vercel_core import current_part  # pyright: ignore[reportPrivateUsage]
from toolbus.messages.wire import arguments_object
from toolbus.records import replace
from toolbus.session._inputs import split_messages
from toolbus.testing import ScriptedProvider, text

FORMS: tuple[VercelForm, ...] = get_args(VercelForm)
PNG = "iVBORw0KGgo="
IMAGE = ImagePart(url=f"data:image/png;base64,{PNG}")


def call(wire_id: str, name: str = "look", arguments: str = '{"x":1}') -> ToolCall:
    return ToolCall(name=name, arguments=arguments, call_id=wire_id, provider_call_id=wire_id)


TALK: list[Message] = [
    SystemMessage(text="Be brief."),
    UserMessage(content="Look at both."),
    AssistantMessage(text="Let me look.", reasoning="Two calls.", tool_calls=(call("a"), call("b", arguments="{}"))),
    ToolMessage(call_id="a", name="look", content='{"seen":["a cat"]}'),
    ToolMessage(call_id="b", name="look", content="too dark", is_error=True),
    AssistantMessage(text="A cat."),
]

MODEL: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Look at both."},
    {
        "role": "assistant",
        "content": [
            {"type": "reasoning", "text": "Two calls."},
            {"type": "text", "text": "Let me look."},
            {"type": "tool-call", "toolCallId": "a", "toolName": "look", "input": {"x": 1}},
            {"type": "tool-call", "toolCallId": "b", "toolName": "look", "input": {}},
        ],
    },
    {
        "role": "tool",
        "content": [
            {
                "type": "tool-result",
                "toolCallId": "a",
                "toolName": "look",
                "output": {"type": "json", "value": {"seen": ["a cat"]}},
            },
            {
                "type": "tool-result",
                "toolCallId": "b",
                "toolName": "look",
                "output": {"type": "error-text", "value": "too dark"},
            },
        ],
    },
    {"role": "assistant", "content": "A cat."},
]

CORE: list[Any] = [
    *MODEL[:2],
    {
        "role": "assistant",
        "content": [
            {"type": "reasoning", "text": "Two calls."},
            {"type": "text", "text": "Let me look."},
            {"type": "tool-call", "toolCallId": "a", "toolName": "look", "args": {"x": 1}},
            {"type": "tool-call", "toolCallId": "b", "toolName": "look", "args": {}},
        ],
    },
    {
        "role": "tool",
        "content": [
            {"type": "tool-result", "toolCallId": "a", "toolName": "look", "result": {"seen": ["a cat"]}},
            {"type": "tool-result", "toolCallId": "b", "toolName": "look", "result": "too dark", "isError": True},
        ],
    },
    MODEL[-1],
]

UI: list[Any] = [
    {"id": "message-0", "role": "system", "parts": [{"type": "text", "text": "Be brief."}]},
    {"id": "message-1", "role": "user", "parts": [{"type": "text", "text": "Look at both."}]},
    {
        "id": "message-2",
        "role": "assistant",
        "parts": [
            {"type": "step-start"},
            {"type": "reasoning", "text": "Two calls."},
            {"type": "text", "text": "Let me look."},
            {
                "type": "dynamic-tool",
                "toolName": "look",
                "toolCallId": "a",
                "state": "output-available",
                "input": {"x": 1},
                "output": {"seen": ["a cat"]},
            },
            {
                "type": "dynamic-tool",
                "toolName": "look",
                "toolCallId": "b",
                "state": "output-error",
                "input": {},
                "errorText": "too dark",
            },
            {"type": "step-start"},
            {"type": "text", "text": "A cat."},
        ],
    },
]

UI_OF_VERSION_4: list[Any] = [
    {"id": "0", "role": "system", "content": "Be brief.", "parts": [{"type": "text", "text": "Be brief."}]},
    {"id": "1", "role": "user", "content": "Look at both.", "parts": [{"type": "text", "text": "Look at both."}]},
    {
        "id": "2",
        "role": "assistant",
        "content": "Let me look.A cat.",
        "createdAt": "2026-11-23T06:00:00.000Z",
        "reasoning": "Two calls.",
        "toolInvocations": [],
        "parts": [
            {"type": "reasoning", "reasoning": "Two calls.", "details": [{"type": "text", "text": "Two calls."}]},
            {"type": "text", "text": "Let me look."},
            {
                "type": "tool-invocation",
                "toolInvocation": {
                    "state": "result",
                    "step": 0,
                    "toolCallId": "a",
                    "toolName": "look",
                    "args": {"x": 1},
                    "result": {"seen": ["a cat"]},
                },
            },
            {
                "type": "tool-invocation",
                "toolInvocation": {
                    "state": "result",
                    "step": 0,
                    "toolCallId": "b",
                    "toolName": "look",
                    "args": {},
                    "result": '{"ok":false,"error":"too dark"}',
                },
            },
            {"type": "text", "text": "A cat."},
        ],
    },
]


# --------------------------------------------------------------------------------------------- whole conversations


@pytest.mark.parametrize(("form", "wire"), [("model", MODEL), ("core", CORE), ("ui", UI)])
def test_a_whole_conversation_reads_as_messages_and_back_again(form: VercelForm, wire: list[Any]) -> None:
    assert from_vercel(wire) == TALK
    assert to_vercel(TALK, form=form) == wire


def test_a_page_of_version_4_reads_as_steps() -> None:
    failed = ToolMessage(call_id="b", name="look", content='{"ok":false,"error":"too dark"}', is_error=True)
    assert from_vercel(UI_OF_VERSION_4) == [*TALK[:4], failed, TALK[5]]


STORED: list[Any] = [
    {"role": "user", "content": "Show me tickets for project X."},
    {
        "role": "assistant",
        "tool_calls": [{"toolCallId": "call1", "toolName": "get_tickets", "args": {"project": "X"}}],
    },
    {"role": "tool", "tool_call_id": "call1", "content": '[{"id":"T1", "summary":"Ticket 1"}]'},
    {"role": "assistant", "content": "Here is ticket T1: Ticket 1 summary..."},
]


@pytest.mark.parametrize("wire", [STORED, MODEL, CORE, UI, UI_OF_VERSION_4], ids=range(5))
async def test_a_request_continues_any_of_them(wire: list[Any]) -> None:
    asked: list[Any] = []

    def answer(request: Any) -> Any:
        asked.append(request.messages)
        return text("Ticket 2.")

    async with Runtime(ScriptedProvider(answer)) as runtime:
        result = await runtime.run("Now show me tickets for project Y.", history=wire)
    assert result.text == "Ticket 2."
    assert [replace(message, message_id="") for message in asked[0][:-1]] == from_vercel(wire)
    newest = UserMessage(content="And Z?")
    assert split_messages([*wire, *to_vercel([newest])]) == (from_vercel(wire), newest)


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
def test_any_transcript_survives_each_form(form: VercelForm, data: st.DataObject) -> None:
    # Version 4 has no files in results.
    messages = data.draw(transcripts(beside=no_parts if form == "core" else result_parts))
    before = copy.deepcopy(messages)
    wire = to_vercel(messages, form=form)
    assert messages == before
    back = from_vercel(json.loads(json.dumps(wire)))
    assert carried(back, form) == carried(messages, form)


def carried(messages: list[Message], form: VercelForm) -> list[Any]:
    """What the form can carry of a transcript, with results told by the position of their call."""
    found: list[Any] = []
    places: dict[str, int] = {}
    for message in messages:
        if isinstance(message, AssistantMessage):
            places |= {each.call_id: len(places) + place for place, each in enumerate(message.tool_calls)}
            calls = [(each.name, arguments_object(each.arguments)) for each in message.tool_calls]
            found.append((message.text, message.reasoning, calls, message.vendor_data))
        elif isinstance(message, ToolMessage):
            is_error = message.is_error and (not message.parts or message.content.startswith('{"ok":false'))
            found.append((places[message.call_id], message.name, message.content, message.parts, is_error))
        elif isinstance(message, UserMessage) and form == "ui" and [*map(type, message.content)] == [TextPart]:
            found.append(UserMessage(content=message.content[0].text))  # type: ignore[union-attr] -- just tested
        else:
            found.append(message)
    return found


SIGNED = {"anthropic": {"signature": "c2ln"}}
EXTRAS: dict[str, list[list[dict[str, Any]]]] = {
    "model": [
        [{"type": "reasoning", "text": "Hm.", "providerOptions": SIGNED}],
        [{"type": "text", "text": "More.", "providerOptions": {"openai": {"itemId": "msg_1"}}}],
        [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}],
        [{"type": "file", "data": "https://a/b.pdf", "mediaType": "application/pdf"}],
        [{"type": "custom", "kind": "openai.compaction", "providerOptions": {"openai": {"id": "cmp"}}}],
        [
            {"type": "tool-call", "toolCallId": "s", "toolName": "search", "input": {}, "providerExecuted": True},
            {"type": "tool-result", "toolCallId": "s", "toolName": "search", "output": {"type": "json", "value": []}},
        ],
    ],
    "core": [
        [{"type": "reasoning", "text": "Hm.", "signature": "c2ln", "providerOptions": SIGNED}],
        [{"type": "redacted-reasoning", "data": "ZW5j"}],
        [{"type": "file", "data": "aGk=", "mimeType": "text/plain"}],
    ],
    "ui": [
        [{"type": "reasoning", "text": "Hm.", "providerMetadata": SIGNED}],
        [{"type": "file", "mediaType": "application/pdf", "url": "https://a/b.pdf"}],
        [{"type": "source-url", "sourceId": "1", "url": "https://a"}, {"type": "data-weather", "data": {"sky": 1}}],
        [
            {
                "type": "dynamic-tool",
                "toolName": "search",
                "toolCallId": "s",
                "providerExecuted": True,
                "state": "output-available",
                "input": {},
                "output": [],
            }
        ],
    ],
}
"""What replies may have that no message expresses, in each form."""


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
def test_what_is_read_is_written_back(form: VercelForm, data: st.DataObject) -> None:
    wire = to_vercel(data.draw(transcripts()), form=form)
    for message in wire:
        if message["role"] == "assistant" and data.draw(st.booleans()):
            extra = data.draw(st.sampled_from(EXTRAS[form]))
            if isinstance(message.get("content"), str):
                message["content"] = [{"type": "text", "text": message["content"]}]
            parts = message["parts" if form == "ui" else "content"]
            at = data.draw(st.integers(int(form == "ui"), len(parts)))
            parts[at:at] = extra
    assert to_vercel(from_vercel(json.loads(json.dumps(wire))), form=form) == wire


@given(transcripts())
def test_written_messages_are_valid_once_they_are_read(messages: list[Message]) -> None:
    for form in FORMS:
        validate(from_vercel(to_vercel(messages, form=form)))


# --------------------------------------------------------------------------------------------- parts of results


@pytest.mark.parametrize(
    ("output", "content", "is_error"),
    [
        ({"type": "text", "value": "a"}, "a", False),
        ({"type": "json", "value": {"a": [1.5, None]}}, '{"a":[1.5,null]}', False),
        ({"type": "json", "value": 42}, "42", False),
        ({"type": "json", "value": "a"}, "a", False),
        ({"type": "error-text", "value": "no"}, "no", True),
        ({"type": "error-json", "value": {"ok": False}}, '{"ok":false}', True),
        ({"type": "execution-denied", "reason": "not now"}, "The call was denied: not now", True),
        ({"type": "execution-denied"}, "The call was denied.", True),
    ],
)
def test_the_output_of_a_result_is_its_text(output: dict[str, Any], content: str, is_error: bool) -> None:
    result = {"type": "tool-result", "toolCallId": "a", "toolName": "look", "output": output}
    [message] = from_vercel([{"role": "tool", "content": [result]}])
    assert message == ToolMessage(call_id="a", name="look", content=content, is_error=is_error)


@pytest.mark.parametrize(
    ("item", "part"),
    [
        ({"type": "text", "text": "b"}, TextPart(text="b")),
        ({"type": "image-data", "data": PNG, "mediaType": "image/png"}, IMAGE),
        ({"type": "media", "data": PNG, "mediaType": "image/png"}, IMAGE),
        ({"type": "image", "data": PNG}, IMAGE),
        ({"type": "image-url", "url": "https://a/b"}, ImagePart(url="https://a/b")),
        (
            {"type": "file-data", "data": "aGk=", "mediaType": "text/plain", "filename": "n"},
            FilePart(url="data:text/plain;base64,aGk=", media_type="text/plain", name="n"),
        ),
        ({"type": "file-url", "url": "https://a"}, FilePart(url="https://a", media_type="application/octet-stream")),
        ({"type": "file", "data": {"type": "data", "data": PNG}, "mediaType": "image"}, IMAGE),
    ],
)
def test_a_result_may_have_images_and_files(item: dict[str, Any], part: Any) -> None:
    output = {"type": "content", "value": [{"type": "text", "text": "a"}, item]}
    result = {"type": "tool-result", "toolCallId": "a", "toolName": "look", "output": output}
    [message] = from_vercel([{"role": "tool", "content": [result]}])
    assert message == ToolMessage(call_id="a", name="look", content="a", parts=(part,))
    assert from_vercel(to_vercel([message])) == [message]


def test_version_4_gets_the_images_of_a_result_and_a_line_for_each_other_file() -> None:
    pdf = FilePart(url="https://a/b.pdf", media_type="application/pdf")
    message = ToolMessage(call_id="a", name="look", content="a", parts=(IMAGE, pdf))
    [wire] = to_vercel([message], form="core")
    assert wire["content"][0]["experimental_content"] == [
        {"type": "text", "text": "a"},
        {"type": "image", "data": PNG, "mimeType": "image/png"},
        {"type": "text", "text": "[a file of type application/pdf at https://a/b.pdf]"},
    ]
    [back] = from_vercel([wire])
    assert isinstance(back, ToolMessage)
    assert (back.content, back.parts[0]) == ("a", IMAGE)


@pytest.mark.parametrize(
    "content", ['{"a": 1}', '{"a":1,"a":2}', "[1", '{"a":1e400}', "7", "[" * 2_000, '{"type":"content","value":[1]}']
)
@pytest.mark.parametrize("form", FORMS)
def test_text_that_is_not_the_shortest_json_stays_as_it_is(content: str, form: VercelForm) -> None:
    messages = [
        TALK[1],
        AssistantMessage(tool_calls=(call("a"),)),
        ToolMessage(call_id="a", name="look", content=content),
    ]
    assert content in str(to_vercel(messages, form=form))
    assert from_vercel(to_vercel(messages, form=form)) == messages


@pytest.mark.parametrize("names", [("tool_call_id", "name"), ("toolCallId", "toolName")])
def test_a_result_that_is_only_a_text_has_the_id_and_the_name_beside_it(names: tuple[str, str]) -> None:
    wire = {"role": "tool", "content": "seen", **dict(zip(names, ("a", "look"), strict=True))}
    assert from_vercel([wire]) == [ToolMessage(call_id="a", name="look", content="seen")]


# --------------------------------------------------------------------------------------------- parts of a page

INPUT: dict[str, Any] = {"type": "tool-look", "toolCallId": "a", "input": {"x": 1}}
DENIED = {"id": "q", "approved": False, "reason": "not now"}


@pytest.mark.parametrize(
    ("part", "result"),
    [
        ({"state": "output-available", "output": "a"}, ToolMessage(call_id="a", name="look", content="a")),
        ({"state": "output-available"}, ToolMessage(call_id="a", name="look", content="null")),
        (
            {"state": "output-error", "errorText": "no"},
            ToolMessage(call_id="a", name="look", content="no", is_error=True),
        ),
        (
            {"state": "output-denied", "approval": DENIED},
            ToolMessage(call_id="a", name="look", content="The call was denied: not now", is_error=True),
        ),
        (
            {"state": "approval-responded", "approval": DENIED},
            ToolMessage(call_id="a", name="look", content="The call was denied: not now", is_error=True),
        ),
        ({"state": "approval-responded", "approval": {"id": "q", "approved": True}}, None),
        ({"state": "approval-requested", "approval": {"id": "q"}}, None),
        ({"state": "input-available"}, None),
        ({"state": "input-streaming"}, None),
    ],
)
def test_the_state_of_a_tool_says_whether_there_is_a_result(part: dict[str, Any], result: Message | None) -> None:
    page = [UI[1], {"id": "2", "role": "assistant", "parts": [{"type": "step-start"}, {**INPUT, **part}]}]
    found = from_vercel(page)
    assert found == [TALK[1], AssistantMessage(tool_calls=(call("a"),)), *([result] if result else [])]
    if not result:
        with pytest.raises(InvalidHistory, match="a result for call 'a' is missing"):
            validate([*found, UserMessage(content="Well?")])


def test_what_a_vendor_wants_back_with_a_call_goes_back_with_it() -> None:
    part = {**INPUT, "callProviderMetadata": SIGNED, "state": "output-available", "output": "ok"}
    found = from_vercel([{"role": "assistant", "parts": [part]}])
    call, *_ = to_vercel(found)[0]["content"]
    assert (call["type"], call["providerOptions"]) == ("tool-call", SIGNED)


def test_arguments_that_could_not_be_read_are_kept_as_text() -> None:
    part = {**INPUT, "input": None, "rawInput": '{"x', "state": "output-error", "errorText": "not JSON"}
    [reply, _] = from_vercel([{"role": "assistant", "parts": [part]}])
    assert isinstance(reply, AssistantMessage)
    assert reply.tool_calls[0].arguments == '{"x'


@pytest.mark.parametrize(
    ("part", "read"),
    [
        ({"type": "image", "image": "https://a/b.png"}, ImagePart(url="https://a/b.png")),
        ({"type": "image", "image": PNG}, IMAGE),
        ({"type": "image", "image": PNG, "mimeType": "image/png"}, IMAGE),
        ({"type": "file", "data": PNG, "mediaType": "image/*"}, IMAGE),
        (
            {"type": "file", "data": {"type": "url", "url": "https://a"}, "mediaType": "image"},
            ImagePart(url="https://a"),
        ),
        (
            {"type": "file", "data": {"type": "url", "url": "https://a", "text": "hi"}, "mediaType": "image"},
            ImagePart(url="https://a"),
        ),
        (
            {"type": "file", "data": {"type": "text", "text": "hi"}, "mediaType": "text"},
            FilePart(url="data:text/plain;base64,aGk=", media_type="text/plain"),
        ),
        (
            {"type": "file", "data": "aGk=", "mimeType": "text/csv", "filename": "n"},
            FilePart(url="data:text/csv;base64,aGk=", media_type="text/csv", name="n"),
        ),
    ],
)
def test_files_of_the_user_are_read_from_each_version(part: dict[str, Any], read: Any) -> None:
    wire = [{"role": "user", "content": [{"type": "text", "text": "See:"}, part]}]
    assert from_vercel(wire) == [UserMessage(content=(TextPart(text="See:"), read))]


def test_the_files_beside_a_text_of_version_4_are_read() -> None:
    files = [{"name": "a.png", "contentType": "image/png", "url": IMAGE.url}]
    parts = [{"type": "text", "text": "See:"}]
    for more in ({}, {"parts": parts}):
        wire = {"id": "1", "role": "user", "content": "See:", "experimental_attachments": files, **more}
        assert from_vercel([wire]) == [UserMessage(content=(TextPart(text="See:"), IMAGE))]


# --------------------------------------------------------------------------------------------- what replies keep


def test_what_only_a_page_shows_stays_with_its_reply_and_reaches_no_model() -> None:
    source = {"type": "source-url", "sourceId": "1", "url": "https://a"}
    page = [UI[1], {"id": "2", "role": "assistant", "parts": [source, {"type": "text", "text": "A cat."}, source]}]
    found = from_vercel(page)
    assert [part["type"] for part in to_vercel(found, form="ui")[1]["parts"]] == [
        "step-start",
        "source-url",
        "text",
        "source-url",
    ]
    assert to_vercel(found)[1] == to_vercel(found, form="core")[1] == {"role": "assistant", "content": "A cat."}
    assert to_openai(found)[1] == {"role": "assistant", "content": "A cat."}


@pytest.mark.parametrize("more", [{"providerExecuted": True}, {}])
def test_a_call_that_the_vendor_has_run_is_no_call_of_a_tool(more: dict[str, Any]) -> None:
    ran: dict[str, Any] = {"type": "tool-call", "toolCallId": "s", "toolName": "search", "input": {}, **more}
    output: dict[str, Any] = {"type": "json", "value": []}
    result: dict[str, Any] = {"type": "tool-result", "toolCallId": "s", "toolName": "search", "output": output}
    wire: list[Any] = [MODEL[1], {"role": "assistant", "content": [ran, result, {"type": "text", "text": "Nothing."}]}]
    found = from_vercel(wire)
    assert isinstance(found[1], AssistantMessage)
    assert (found[1].text, found[1].tool_calls) == ("Nothing.", ())
    validate(found)
    assert to_vercel(found) == wire
    assert to_vercel(found, form="core")[1]["content"] == [{"type": "text", "text": "Nothing."}]


@pytest.mark.parametrize("more", [{"providerExecuted": True}, {"toolCallId": {}}, {"toolCallId": "s"}])
def test_only_a_call_belongs_to_a_vendor_or_not(more: dict[str, Any]) -> None:
    file = {"type": "file", "data": "https://a/b.pdf", "mediaType": "application/pdf", **more}
    call: dict[str, Any] = {"type": "tool-call", "toolCallId": "s", "toolName": "search", "input": {}}
    call["providerExecuted"] = True
    [wire] = to_vercel(from_vercel([{"role": "assistant", "content": [file, call]}]), form="core")
    assert [part["type"] for part in wire["content"]] == ["file"]


def test_a_call_that_the_vendor_has_run_may_lack_its_input() -> None:
    ran = {"type": "tool-call", "toolCallId": "s", "toolName": "search", "providerExecuted": True}
    found = from_vercel([MODEL[1], {"role": "assistant", "content": [ran, {"type": "text", "text": "Nothing."}]}])
    assert to_vercel(found, form="ui")[1]["parts"][1]["input"] is None


def test_what_a_page_shows_after_the_last_step_stays_with_it() -> None:
    data = {"type": "data-progress", "data": 3}
    said = {"type": "text", "text": "A cat."}
    found = from_vercel([UI[1], {"role": "assistant", "parts": [said, {"type": "step-start"}, data]}])
    assert to_vercel(found, form="ui")[1]["parts"] == [{"type": "step-start"}, said, data]


def test_a_reply_with_nothing_for_a_model_is_left_out() -> None:
    data = {"type": "data-progress", "data": 3}
    assert from_vercel([UI[1], {"role": "assistant", "parts": [{"type": "step-start"}, data]}]) == [TALK[1]]


def test_an_edited_reply_is_written_with_its_signed_reasoning_and_its_new_text() -> None:
    thought = {"type": "reasoning", "text": "Hm.", "providerOptions": SIGNED}
    [reply] = from_vercel([{"role": "assistant", "content": [thought, {"type": "text", "text": "old"}]}])
    assert isinstance(reply, AssistantMessage)
    [wire] = to_vercel([replace(reply, text="new")])
    assert wire["content"] == [thought, {"type": "text", "text": "new"}]


def test_decisions_of_people_are_read_and_their_results_stay() -> None:
    asked = {"type": "tool-approval-request", "approvalId": "q", "toolCallId": "a"}
    decided = {"type": "tool-approval-response", "approvalId": "q", "approved": True}
    wire: list[Any] = copy.deepcopy(MODEL)
    wire[2]["content"].append(asked)
    wire[3]["content"].insert(0, decided)
    assert from_vercel(wire) == TALK


def test_repeated_ids_are_paired_by_position() -> None:
    messages = from_vercel([*MODEL, *MODEL[2:]])
    validate(messages)
    assert (
        len(
            {
                each.call_id
                for message in messages
                if isinstance(message, AssistantMessage)
                for each in message.tool_calls
            }
        )
        == 4
    )
    assert repair(messages) == messages


# --------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (
            {"role": "user", "content": [{"type": "hologram"}]},
            "content[0] is a part of type 'hologram', not one of text,",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": ["x"]}]},
            "content[1] is a part of type ",
        ),
        ({"role": "assistant", "content": [{"type": "image", "image": "x"}]}, "content[0] is a part of type 'image'"),
        (
            {"role": "tool", "content": [{"type": "text", "text": "x"}]},
            "content[0] is a part of type 'text', not one of",
        ),
        ({"role": "user", "parts": [{"type": "data-place", "data": 1}]}, "parts[0] is a part of type 'data-place'"),
        (
            {"role": "assistant", "parts": [{"type": "text", "text": "a"}, {"type": "toys"}]},
            "parts[1] is a part of type",
        ),
        (
            {"role": "system", "parts": [{"type": "file", "url": "x"}]},
            "parts[0] is a part of type 'file', not one of text",
        ),
        ({"role": "assistant", "parts": [{**INPUT, "state": "dreaming"}]}, "parts[0] has the state 'dreaming'"),
        (
            {"role": "user", "parts": [{"type": "file", "providerReference": {"openai": "f"}}]},
            "parts[0] is a file that",
        ),
        ({"role": "data", "content": "a"}, "role 'data' is not one of system, user, assistant, tool"),
        (
            {"role": "assistant", "content": "a", "toolInvocations": []},
            "toolInvocations beside a content have no order",
        ),
        (
            {"role": "user", "content": [{"type": "image", "image": {"0": 137}}]},
            "content[0] has neither a URL nor base64",
        ),
        (
            {"role": "user", "content": [{"type": "file", "data": {"type": "text", "text": 7}, "mediaType": "a/b"}]},
            "content[0] has neither a URL nor base64",
        ),
        (
            {"role": "user", "content": [{"type": "file", "mediaType": "a/b"}]},
            "content[0] has neither a URL nor base64",
        ),
        ({"role": "assistant", "content": [{"type": "text", "text": 7}]}, "a part's text must be text, not int"),
        ({"role": "system", "content": [{"type": "text", "text": 7}]}, "a part's text must be text, not int"),
    ],
)
def test_what_is_not_known_is_refused_by_name(message: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidHistory, match=re.escape(f"history[1]: {problem}")):
        from_vercel([MODEL[1], message])


@pytest.mark.parametrize(
    ("output", "path"),
    [
        ({"type": "video", "value": 1}, "content[0].output is a part of type 'video'"),
        (
            {"type": "content", "value": [{"type": "file-id", "fileId": "f"}]},
            "content[0].output[0] is a part of type 'file-id'",
        ),
        ({"type": "content", "value": [{"type": "image-url"}]}, "content[0].output[0] has neither a URL nor base64"),
        ("text", "the output of a result must be an object, not str"),
    ],
)
def test_an_unknown_part_of_a_result_is_refused_by_its_path(output: Any, path: str) -> None:
    result = {"type": "tool-result", "toolCallId": "a", "toolName": "look", "output": output}
    with pytest.raises(InvalidHistory, match=re.escape(path)):
        from_vercel([{"role": "tool", "content": [result]}])


@pytest.mark.parametrize(
    ("more", "options"),
    [
        ({"signature": "c2ln"}, {"anthropic": {"signature": "c2ln"}}),
        (
            {"signature": "c2ln", "providerOptions": {"openai": {"a": 1}}},
            {"openai": {"a": 1}, "anthropic": {"signature": "c2ln"}},
        ),
        ({"signature": ""}, None),
    ],
)
def test_the_signature_of_an_old_part_of_reasoning_becomes_an_option_of_its_vendor(more: Any, options: Any) -> None:
    found = current_part(0, {"type": "reasoning", "text": "Hm.", **more})
    assert found.get("providerOptions") == options
