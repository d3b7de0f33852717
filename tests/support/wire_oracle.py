"""The rules of each vendor's API for a message list, checked only on the wire dictionaries.

The rules come from the documentation and the errors of the APIs, and not from toolbus's own code: `toolbus.core` is not
imported here, so that its mistakes are not repeated. Each check raises `AssertionError`, which names the message.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

from toolbus.messages import Message, to_anthropic, to_ollama, to_openai, to_openai_responses

Wire = dict[str, Any]

_NAME = re.compile(r"[a-zA-Z0-9_-]+")  # function and tool names, everywhere


def check_wires(messages: Sequence[Message]) -> None:
    """Check that the vendors accept all four wire forms of `messages`."""
    check_openai(to_openai(messages))
    check_responses(to_openai_responses(messages))
    check_anthropic(to_anthropic(messages))
    check_ollama(to_ollama(messages))


# --------------------------------------------------------------------------------------------- chat completions


def check_openai(wire: Sequence[Wire]) -> None:
    """Check messages of chat completions."""
    json.dumps(wire, allow_nan=False)
    seen: set[str] = set()
    unanswered: list[str] = []
    for index, each in enumerate(wire):
        where = f"openai messages[{index}]: {each}"
        role, content = each["role"], each.get("content")
        assert role in {"system", "developer", "user", "assistant", "tool"}, where
        if role == "tool":
            assert unanswered, f"a tool message that answers nothing, {where}"
            assert each["tool_call_id"] == unanswered.pop(0), f"in another order than the calls, {where}"
            assert isinstance(content, str) or content, where
            continue
        assert not unanswered, f"{unanswered} not answered before {where}"
        called = each.get("tool_calls")
        assert called is None or role == "assistant", where
        assert called is None or len(called) > 0, f"an empty list of calls is refused, {where}"
        assert content is not None or called, f"null only beside calls, {where}"
        assert isinstance(content, str) or content is None or len(content) > 0, f"an empty list of parts, {where}"
        for call in called or ():
            assert call["type"] == "function", where
            assert isinstance(call["function"]["arguments"], str), where
            _check_name(call["function"]["name"], where)
            _check_id(call["id"], seen, where, longest=40)
            unanswered.append(call["id"])
    assert not unanswered, f"{unanswered} not answered at the end of openai messages"


def _check_id(wire_id: Any, seen: set[str], where: str, longest: int = 1_000) -> None:
    assert isinstance(wire_id, str), where
    assert len(wire_id) <= longest, f"string too long, expected a string with maximum length {longest}, {where}"
    assert wire_id, f"an empty id, {where}"
    assert wire_id not in seen, f"{wire_id} is used twice, {where}"
    seen.add(wire_id)


def _check_name(name: Any, where: str, longest: int = 64) -> None:
    assert isinstance(name, str), where
    assert _NAME.fullmatch(name), f"the name {name!r} does not match the pattern, {where}"
    assert len(name) <= longest, f"the name {name!r} is too long, {where}"


# --------------------------------------------------------------------------------------------------- anthropic

_ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]+")


def check_anthropic(wire: Wire) -> None:
    """Check messages of Anthropic's Messages API."""
    json.dumps(wire, allow_nan=False)
    if "system" in wire:
        system = wire["system"]
        texts = [system] if isinstance(system, str) else [block["text"] for block in system]
        assert texts, f"empty instructions are refused: {system!r}"
        assert all(text.strip() for text in texts), f"blank instructions are refused: {system!r}"
    messages: list[Wire] = wire["messages"]
    for index, (each, role) in enumerate(zip(messages, itertools.cycle(["user", "assistant"]), strict=False)):
        assert each["role"] == role, f"roles do not alternate at anthropic messages[{index}]: {each}"
    seen: set[str] = set()
    unanswered: list[str] = []
    for index, each in enumerate(messages):
        where = f"anthropic messages[{index}]: {each}"
        blocks = _blocks(each, where)
        kinds = [block["type"] for block in blocks]
        answers = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert answers == unanswered, f"{unanswered} have to be answered here, once each, {where}"
        assert kinds[: len(answers)] == ["tool_result"] * len(answers), f"results come first, {where}"
        unanswered = []
        if each["role"] == "user":
            assert not {"tool_use", "thinking"} & {*kinds}, where
            continue
        assert "thinking" not in kinds[-1], f"the final block cannot be thinking, {where}"
        for block in blocks:
            if block["type"] != "tool_use":
                continue
            assert isinstance(block["input"], dict), where
            _check_name(block["name"], where, longest=128)
            _check_id(block["id"], seen, where)
            assert _ANTHROPIC_ID.fullmatch(block["id"]), f"the id is refused, {where}"
            unanswered.append(block["id"])
    assert not unanswered, f"{unanswered} not answered at the end of anthropic messages"


def _blocks(message: Wire, where: str) -> list[Wire]:
    content = message["content"]
    blocks: list[Wire] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    assert blocks, f"an empty message, {where}"
    for block in blocks:
        if block["type"] == "text":
            assert block["text"].strip(), f"a blank text, {where}"
        if block["type"] == "tool_result":
            inner: Any = block.get("content") or ""
            assert not (block.get("is_error") and not inner), f"an error without a word, {where}"
            for part in () if isinstance(inner, str) else inner:
                assert part["type"] in {"text", "image", "document"}, where
                assert part["type"] != "text" or part["text"].strip(), f"a blank text in a result, {where}"
    return blocks


# ------------------------------------------------------------------------------------------------------ ollama


def check_ollama(wire: Sequence[Wire]) -> None:
    """Check messages of Ollama's /api/chat, which accepts a wrong order, but then shows the model other messages."""
    json.dumps(wire, allow_nan=False)
    unanswered: list[str] = []
    before = ""
    for index, each in enumerate(wire):
        where = f"ollama messages[{index}]: {each}"
        role = each["role"]
        assert role in {"system", "user", "assistant", "tool"}, where
        assert isinstance(each.get("content", ""), str), where
        if role == "tool":
            assert unanswered, f"a tool message that answers nothing, {where}"
            assert each["tool_name"] == unanswered.pop(0), f"the result of another tool, {where}"
        else:
            assert not unanswered, f"{unanswered} not answered before {where}"
        called: list[Wire] = each.get("tool_calls") or []
        assert not called or role == "assistant", where
        # The server merges neighbouring messages, and keeps only the calls of the first one.
        assert not (called and before == "assistant"), f"calls that the server loses, {where}"
        for call in called:
            assert isinstance(call["function"]["arguments"], dict), where
            unanswered.append(call["function"]["name"])
        before = role
    assert not unanswered, f"{unanswered} not answered at the end of ollama messages"


# --------------------------------------------------------------------------------------------------- responses


def check_responses(items: Sequence[Wire]) -> None:
    """Check the input of OpenAI's Responses API by its strictest imitators: outputs come directly after their calls."""
    json.dumps(items, allow_nan=False)
    call_ids: set[str] = set()
    item_ids: set[str] = set()
    unanswered: list[str] = []
    for index, each in enumerate(items):
        where = f"responses input[{index}]: {each}"
        kind = each.get("type", "message")
        if "id" in each:
            _check_id(each["id"], item_ids, where)
        if kind == "function_call_output":
            assert unanswered, f"no tool call found for function call output, {where}"
            assert each["call_id"] == unanswered.pop(0), f"in another order than the calls, {where}"
            assert isinstance(each["output"], str) or each["output"], where
            continue
        assert not unanswered or kind == "function_call" or _is_of_reply(each), (
            f"{unanswered} not answered before {where}"
        )
        if kind == "function_call":
            assert isinstance(each["arguments"], str), where
            _check_name(each["name"], where)
            _check_id(each["call_id"], call_ids, where, longest=64)
            unanswered.append(each["call_id"])
        elif kind == "reasoning":
            after = items[index + 1] if index + 1 < len(items) else {}
            assert _is_of_reply(after), f"reasoning without its required following item, {where}"
        elif kind == "message":
            assert each["role"] in {"system", "developer", "user", "assistant"}, where
            assert isinstance(each["content"], str) or each["content"], f"no content, {where}"
    assert not unanswered, f"{unanswered} not answered at the end of responses input"


def _is_of_reply(item: Wire) -> bool:
    kind = item.get("type", "message")
    return bool(item) and kind != "function_call_output" and (kind != "message" or item.get("role") == "assistant")
