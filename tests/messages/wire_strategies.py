"""Hypothesis strategies for transcripts as sessions make them: every call answered, in call order."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from toolbus.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    Part,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)
names = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(words, json_values, max_size=3)
malformed = st.sampled_from(['{"city": "Par', "[1]", "3", "nul", '{"x": NaN}', '{"x": 1e999}', "not json", "{'a': 1}"])
argument_texts = objects.map(json.dumps) | malformed
provider_ids = st.sampled_from(["", "call_0", "call_1", "functions.f:0"]) | st.from_regex(
    r"toolu_[0-9]{3}", fullmatch=True
)

images = st.sampled_from(["https://example.com/a.png", "data:image/png;base64,iVBORw0KGgo="]).map(
    lambda url: ImagePart(url=url)
)
files = st.sampled_from(
    [
        FilePart(url="data:application/pdf;base64,JVBERi0=", media_type="application/pdf", name="a.pdf"),
        FilePart(url="data:application/pdf;base64,JVBERi0=", media_type="application/pdf"),
        FilePart(url="data:text/plain;base64,aGVsbG8=", media_type="text/plain", name="hello.txt"),
    ]
)
parts: st.SearchStrategy[Part] = words.map(lambda text: TextPart(text=text)) | images | files


result_parts = st.lists(parts, max_size=3).map(tuple)
no_parts: st.SearchStrategy[tuple[Part, ...]] = st.just(())


@st.composite
def transcripts(draw: st.DrawFn, beside: st.SearchStrategy[tuple[Part, ...]] = no_parts) -> list[Message]:
    """One system message or none, then turns: a user message, rounds of calls with results, an answer.

    `beside` are the parts that results have.
    """
    found: list[Message] = []
    if draw(st.booleans()):
        found.append(SystemMessage(text=draw(words)))
    number = 0
    for _ in range(draw(st.integers(1, 3))):
        content = draw(words | st.lists(parts, min_size=1, max_size=3).map(tuple))
        found.append(UserMessage(content=content))
        for _ in range(draw(st.integers(0, 2))):
            calls: list[ToolCall] = []
            for _ in range(draw(st.integers(1, 3))):
                number += 1
                calls.append(
                    ToolCall(
                        name=draw(names),
                        arguments=draw(argument_texts),
                        call_id=f"minted{number}",
                        provider_call_id=draw(provider_ids),
                    )
                )
            found.append(AssistantMessage(text=draw(st.just("") | words), tool_calls=tuple(calls)))
            for call in calls:
                failed = draw(st.booleans())
                content = '{"ok":false,"reason":"error","error":"x"}' if failed else draw(words)
                result = ToolMessage(
                    call_id=call.call_id, name=call.name, content=content, parts=draw(beside), is_error=failed
                )
                found.append(result)
        found.append(AssistantMessage(text=draw(words)))
    return found
