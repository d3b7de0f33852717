"""Readers of vendors' dictionaries, on broken ones: messages or `InvalidHistory`, and nothing else, soon."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import broken_values

from messages.wire_strategies import transcripts
from toolbus.core.transcript import repair, validate
from toolbus.errors import InvalidHistory
from toolbus.events import MessageAppended, decode, encode
from toolbus.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    ToolCall,
    UserMessage,
    from_anthropic,
    from_ollama,
    from_openai,
    from_openai_responses,
    from_vercel,
    to_anthropic,
    to_ollama,
    to_openai,
    to_openai_responses,
    to_vercel,
)
from toolbus.messages.detect import read_dictionaries

WRITERS: dict[str, Callable[[list[Message]], Any]] = {
    "openai": lambda messages: to_openai(messages, reasoning_field="reasoning_content"),
    "responses": to_openai_responses,
    "anthropic": to_anthropic,
    "ollama": to_ollama,
    "vercel": to_vercel,
    "vercel-core": partial(to_vercel, form="core"),
    "vercel-ui": partial(to_vercel, form="ui"),
}
READERS: dict[str, Callable[[Any], list[Message]]] = {
    "openai": from_openai,
    "responses": from_openai_responses,
    "anthropic": from_anthropic,
    "ollama": from_ollama,
    "vercel": from_vercel,
    "vercel-core": from_vercel,
    "vercel-ui": from_vercel,
}
RICH: dict[str, Any] = {
    "openai": [
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}]},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}],
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}, "x": 1}],
            "reasoning": "hm",
            "audio": {"id": "a"},
        },
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "b"}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": '[Result 1 above, of call "c", came with 1 attachment:]'},
                {"type": "image_url", "image_url": {"url": "https://a"}},
            ],
        },
        {"role": "user", "content": [{"type": "file", "file": {"file_data": "data:text/plain,a", "filename": "n"}}]},
    ],
    "responses": [
        {"role": "user", "content": [{"type": "input_file", "file_data": "aGk=", "filename": "n"}]},
        {
            "type": "reasoning",
            "id": "rs",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "encrypted_content": "x",
        },
        {
            "type": "message",
            "id": "msg",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "a", "annotations": []}, {"type": "refusal", "refusal": "n"}],
        },
        {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": {"a": 1}},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "https://a"}]},
        {"type": "web_search_call", "id": "ws", "status": "completed"},
    ],
    "anthropic": {
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [{"type": "document", "source": {"type": "url", "url": "https://a"}}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                    {"type": "tool_use", "id": "c", "name": "f", "input": {"a": {"b": [1]}}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c",
                        "content": [
                            {"type": "text", "text": "a"},
                            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                            {"type": "search_result", "source": "x"},
                        ],
                    },
                    {
                        "type": "document",
                        "title": "t",
                        "context": "text/csv",
                        "source": {"type": "text", "media_type": "text/plain", "data": "a"},
                    },
                ],
            },
        ],
    },
    "ollama": [
        {"role": "user", "content": "a", "images": ["iVBORw0KGgo="]},
        {
            "role": "assistant",
            "content": "",
            "thinking": "hm",
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "tool_name": "f", "tool_call_id": "c", "content": "b", "images": ["/9j/"]},
    ],
    "vercel": [
        {"role": "user", "content": [{"type": "file", "data": {"type": "text", "text": "a"}, "mediaType": "text"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "reasoning", "text": "hm", "providerOptions": {"anthropic": {"signature": "s"}}},
                {"type": "file", "data": "aGk=", "mediaType": "text/plain"},
                {"type": "tool-call", "toolCallId": "s", "toolName": "g", "input": {}, "providerExecuted": True},
                {"type": "tool-result", "toolCallId": "s", "toolName": "g", "output": {"type": "json", "value": 1}},
                {"type": "tool-call", "toolCallId": "c", "toolName": "f", "input": {"a": {"b": [1]}}},
                {"type": "tool-approval-request", "approvalId": "q", "toolCallId": "c"},
            ],
        },
        {
            "role": "tool",
            "content": [
                {"type": "tool-approval-response", "approvalId": "q", "approved": True},
                {
                    "type": "tool-result",
                    "toolCallId": "c",
                    "toolName": "f",
                    "output": {
                        "type": "content",
                        "value": [{"type": "text", "text": "a"}, {"type": "image-url", "url": "https://a"}],
                    },
                },
            ],
        },
    ],
    "vercel-core": [
        {
            "role": "user",
            "content": "a",
            "experimental_attachments": [{"contentType": "image/png", "url": "https://a"}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "reasoning", "text": "hm", "signature": "s"},
                {"type": "redacted-reasoning", "data": "x"},
                {"type": "tool-call", "toolCallId": "c", "toolName": "f", "args": {"a": 1}},
            ],
        },
        {
            "role": "tool",
            "content": [
                {
                    "type": "tool-result",
                    "toolCallId": "c",
                    "toolName": "f",
                    "result": {"a": 1},
                    "isError": True,
                    "experimental_content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}],
                }
            ],
        },
        {"role": "assistant", "tool_calls": [{"toolCallId": "d", "toolName": "f", "args": {}}]},
        {"role": "tool", "tool_call_id": "d", "content": "b"},
    ],
    "vercel-ui": [
        {"id": "1", "role": "user", "parts": [{"type": "file", "mediaType": "image/png", "url": "https://a"}]},
        {
            "id": "2",
            "role": "assistant",
            "parts": [
                {"type": "step-start"},
                {"type": "reasoning", "text": "hm", "providerMetadata": {"anthropic": {"signature": "s"}}},
                {"type": "reasoning", "details": [{"type": "text", "text": "a"}, {"type": "redacted", "data": "x"}]},
                {"type": "tool-f", "toolCallId": "c", "state": "output-available", "input": {"a": 1}, "output": [1]},
                {
                    "type": "dynamic-tool",
                    "toolName": "f",
                    "toolCallId": "d",
                    "state": "output-denied",
                    "input": {},
                    "approval": {"id": "q", "approved": False, "reason": "no"},
                },
                {"type": "step-start"},
                {
                    "type": "tool-invocation",
                    "toolInvocation": {"state": "result", "toolCallId": "e", "toolName": "f", "args": {}, "result": 1},
                },
                {"type": "text", "text": "a", "state": "done"},
                {"type": "source-url", "sourceId": "s", "url": "https://a"},
                {"type": "data-x", "data": {"y": 1}},
            ],
        },
    ],
}
"""What histories of a vendor may hold that `to_openai` and its like do not write."""

EXAMPLES = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def documents(form: str) -> st.SearchStrategy[Any]:
    return st.just(RICH[form]) | transcripts().map(WRITERS[form])


def read(reader: Callable[[Any], list[Message]], wire: Any) -> list[Message] | None:
    """The messages, which have the types that they say; None where they are refused in words."""
    try:
        found = reader(wire)
    except InvalidHistory as exc:
        assert exc.index >= 0  # noqa: PT017 -- it may be raised, or not
        assert len(str(exc)) < 2_000  # noqa: PT017
        return None
    for each in found:
        with contextlib.suppress(TypeError):  # what a vendor keeps may be no JSON, such as an integer of 40 digits
            decode(encode(MessageAppended(message=each)))
    return found


def go_on(found: list[Message]) -> None:
    """What was read can be mended and sent to anybody."""
    repaired = repair(found)
    validate(repaired)
    for form, write in WRITERS.items():
        wire = write(repaired)
        read(READERS[form], wire)


@pytest.mark.parametrize("form", READERS)
@EXAMPLES
@given(data=st.data())
def test_a_broken_history_is_read_or_refused_in_words(form: str, data: st.DataObject) -> None:
    wire = data.draw(broken_values(documents(form)))
    if isinstance(wire, (list, dict)):
        found = read(READERS[form], wire)
        if found is not None:
            go_on(found)


@EXAMPLES
@given(data=st.data(), form=st.sampled_from(sorted(READERS)))
def test_a_broken_history_of_an_unknown_form_is_read_or_refused_in_words(form: str, data: st.DataObject) -> None:
    messages: Any = data.draw(broken_values(documents(form)))
    if isinstance(messages, list) and all(isinstance(each, dict) for each in cast("list[Any]", messages)):
        read(read_dictionaries, messages)


# ------------------------------------------------------------------------------------------------- what was found

USER = {"role": "user", "content": "a"}
FOUND: list[tuple[str, Any]] = [
    *((form, [{"role": [], "content": "a"}]) for form in READERS),
    ("openai", [{"role": "assistant", "tool_calls": 2.5}]),
    ("responses", [{"type": {}, "role": "user", "content": "a"}]),
    ("responses", [{"role": "user", "content": [{"type": ["input_text"], "text": "a"}]}]),
    ("anthropic", {"system": [5], "messages": [USER]}),
    ("anthropic", {"system": True, "messages": [USER]}),
    ("anthropic", {"messages": True}),
    ("anthropic", [{"role": "user", "content": [{"type": [], "text": "a"}]}]),
    ("anthropic", [{"role": "assistant", "content": [{"signature": "s"}]}]),
]


@pytest.mark.parametrize(("form", "wire"), FOUND, ids=repr)
def test_what_has_the_wrong_type_is_refused_in_words(form: str, wire: Any) -> None:
    with pytest.raises(InvalidHistory):
        READERS[form](wire)


def test_what_looks_like_a_file_and_can_not_be_read_is_sent_all_the_same() -> None:
    for url in ("data:text/plain,\ud800%", "data:text/plain;base64,ü", "data:image/png;base64,ü"):
        parts = (FilePart(url=url, media_type="text/plain"), ImagePart(url=url))
        for write in WRITERS.values():
            assert write([UserMessage(content=parts)])


@pytest.mark.parametrize("number", ["1", "1" * 25], ids=["a short number", "a long number"])
@pytest.mark.parametrize("levels", [247, 254, 900, 1_010, 1_023, 5_000, 100_000])
def test_arguments_that_are_nested_deeper_than_they_can_be_written_are_sent_quoted(levels: int, number: str) -> None:
    written = '{"a": ' + "[" * levels + number + "]" * levels + "}"
    messages: list[Message] = [AssistantMessage(tool_calls=(ToolCall(name="f", arguments=written, call_id="c"),))]
    assert written in str(to_anthropic(messages))


def test_arguments_that_are_nested_too_deeply_to_be_written_are_refused() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(InvalidHistory, match="are not valid JSON"):
        from_ollama([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": deep}}]}])
