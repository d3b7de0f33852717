"""Hypothesis strategies for all kinds of message lists: valid ones, broken ones, and absurd ones."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from messages.wire_strategies import argument_texts, files, images, provider_ids, transcripts
from toolbus.messages import (
    AssistantMessage,
    Message,
    Part,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from toolbus.records import replace

call_ids = st.sampled_from(["a", "b", "c", "a-2", "call-1", ""])
texts = st.sampled_from(["", " ", "\n\t", "text", "more text "])
parts: st.SearchStrategy[Part] = texts.map(lambda text: TextPart(text=text)) | images | files
names = st.sampled_from(["clock", "weather", "functions.clock (now)", ""])  # models invent names
wire_ids = provider_ids | st.sampled_from(["long" * 20, "a.b", "a"])
message_ids = st.sampled_from(["", "m1", "m2"])
calls = st.builds(ToolCall, name=names, arguments=argument_texts, call_id=call_ids, provider_call_id=wire_ids)


def _kept_by_vendors(reply: AssistantMessage, kind: str, own: str) -> AssistantMessage:
    """The reply with its vendor's data, or with the rest of that data after an edit.

    `own` makes the ids of its items unique.
    """
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    said: list[Any] = [{"type": "text", "text": reply.text}] if reply.text.strip() else []
    uses: list[Any] = [_use(call.provider_call_id or "toolu_1", call.name) for call in reply.tool_calls]
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}}
    found: dict[str, Any] = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    extras = [{"extra_content": {"google": {"thought_signature": "t"}}} for _ in reply.tool_calls]
    blocks: dict[str, list[Any]] = {
        "thinking": [thinking, *said, *uses],
        "only thinking": [thinking],
        "a call that was taken out": [thinking, *said, *uses, _use("x", "gone")],
        "a search of its own": [search, found, *said, *uses],
    }
    reasoning: dict[str, Any] = {"type": "reasoning", "id": f"rs_{own}", "summary": [], "encrypted_content": "x"}
    spoken: list[Any] = [{"type": "message", "id": f"msg_{own}", "role": "assistant", "content": len(reply.text)}] if reply.text else []  # fmt: skip
    items: dict[str, list[Any]] = {
        "items": [reasoning, *spoken, *({"type": "function_call", "id": f"fc_{own}_{n}"} for n in range(len(reply.tool_calls)))],
        "only a reasoning item": [reasoning],
        "an item that was taken out": [reasoning, *spoken, {"type": "function_call", "id": f"fc_{own}"}],
    }  # fmt: skip
    kept: dict[str, Any] | None = {"anthropic": {"content": blocks[kind]}} if kind in blocks else None
    if kind in items:
        kept = {"openai": {"responses": items[kind]}}
    if kind == "extras" and extras:
        kept = {"openai": {"tool_calls": extras}}
    elif kind == "audio":
        kept = {"openai": {"message": {"audio": {"id": "audio_1"}}}}
    return replace(reply, vendor_data=kept)


def _use(wire_id: str, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": wire_id, "name": name, "input": {}}


_KINDS = [
    "",
    "",
    "",
    "thinking",
    "only thinking",
    "a call that was taken out",
    "a search of its own",
    "extras",
    "audio",
]
replies = st.builds(
    _kept_by_vendors,
    st.builds(
        AssistantMessage,
        text=texts,
        reasoning=st.sampled_from(["", "Hm."]),
        tool_calls=st.lists(calls, max_size=3).map(tuple),
        message_id=message_ids,
    ),
    st.sampled_from(_KINDS),
    st.uuids().map(lambda each: each.hex),
)
results = st.builds(
    ToolMessage,
    call_id=call_ids,
    name=names,
    content=st.uuids().map(str),
    parts=st.just(()) | st.lists(images, max_size=1).map(tuple),
    is_error=st.booleans(),
    message_id=message_ids,
)
messages: st.SearchStrategy[Message] = (
    st.builds(SystemMessage, text=texts, message_id=message_ids)
    | st.builds(UserMessage, content=texts | st.lists(parts, max_size=2).map(tuple), message_id=message_ids)
    | replies
    | replies
    | results
    | results
)
heaps = st.lists(messages, max_size=14)
"""Messages in any order, which are hardly ever valid."""


def _numbered(history: list[Message]) -> list[Message]:
    """The messages with distinguishable results."""
    return [
        replace(each, content=f"{each.content} #{place}") if isinstance(each, ToolMessage) else each
        for place, each in enumerate(history)
    ]


@st.composite
def mishandled(draw: st.DrawFn) -> list[Message]:
    """Valid transcripts as applications mishandle them: cut, merged, shuffled, repeated, and with foreign ids."""
    history = list(_numbered(draw(transcripts())))
    if draw(st.booleans()):
        history += _numbered(draw(transcripts()))
    for _ in range(draw(st.integers(0, 4))):
        if not history:
            break
        place = draw(st.integers(0, len(history) - 1))
        act = draw(st.sampled_from(["cut the front", "cut the end", "drop", "twice", "move", "ids", "empty", "note"]))
        each = history[place]
        if act == "cut the front":
            del history[:place]
        elif act == "cut the end":
            del history[place:]
        elif act == "drop":
            del history[place]
        elif act == "twice":
            history.insert(draw(st.integers(0, len(history))), each)
        elif act == "move":
            history.insert(draw(st.integers(0, len(history) - 1)), history.pop(place))
        elif act == "ids":
            history = [_with_poor_ids(each) for each in history]
        elif act == "empty":
            history.insert(place, draw(st.sampled_from(_EMPTY)))
        else:
            history.insert(place, SystemMessage(text="By the way."))
    return history


_EMPTY: list[Message] = [AssistantMessage(), UserMessage(content=""), UserMessage(content=())]


def _with_poor_ids(message: Message) -> Message:
    """Messages of a server that counts its calls from 0 in each reply."""
    if isinstance(message, AssistantMessage):
        poor = tuple(replace(each, call_id=f"call_{n}") for n, each in enumerate(message.tool_calls))
        return replace(message, tool_calls=poor)
    if isinstance(message, ToolMessage):
        return replace(message, call_id=f"call_{len(message.content) % 3}")
    return message


histories = heaps | mishandled()
"""Any list of messages."""
