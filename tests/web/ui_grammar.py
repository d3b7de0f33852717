"""The rules of both UI protocols, written from their specifications, without anything of `toolbus.web`.

A stream is a list of chunks, from a beginning to an end. A rule that is broken raises `AssertionError`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

Chunk = dict[str, Any]

VERCEL = {
    "start": {"messageId", "messageMetadata"},
    "start-step": set[str](),
    "finish-step": set[str](),
    "reset-step": set[str](),
    "text-start": {"id"},
    "text-delta": {"id", "delta"},
    "text-end": {"id"},
    "reasoning-start": {"id"},
    "reasoning-delta": {"id", "delta"},
    "reasoning-end": {"id"},
    "tool-input-start": {"toolCallId", "toolName"},
    "tool-input-delta": {"toolCallId", "inputTextDelta"},
    "tool-input-available": {"toolCallId", "toolName", "input"},
    "tool-input-error": {"toolCallId", "toolName", "input", "errorText"},
    "tool-approval-request": {"toolCallId", "approvalId"},
    "tool-output-available": {"toolCallId", "output"},
    "tool-output-error": {"toolCallId", "errorText"},
    "tool-output-denied": {"toolCallId"},
    "data-reset-step": {"data", "transient"},
    "data-status": {"data", "transient"},
    "data-plan": {"data", "id"},
    "data-steering": {"data", "transient"},
    "data-steered": {"data", "id"},
    "data-failure": {"data", "id"},
    "message-metadata": {"messageMetadata"},
    "finish": {"finishReason"},
    "abort": {"reason"},
    "error": {"errorText"},
}


def check_vercel(chunks: Sequence[Chunk], *, known: Collection[str] = ()) -> dict[str, str]:
    """Check a stream; `known` are the calls that the page has from an earlier one. Return the texts by their ids."""
    assert chunks[0]["type"] == "start"
    texts: dict[str, str] = {}
    open_parts: set[tuple[str, str]] = set()
    calls = dict.fromkeys(known, "available")
    in_step = is_over = False
    for position, chunk in enumerate(chunks):
        kind = chunk["type"]
        assert VERCEL[kind] <= chunk.keys(), chunk
        assert not is_over or (kind == "error" and chunks[position - 1].get("finishReason") == "error"), chunk
        assert kind != "start" or position == 0
        sort, _, act = kind.partition("-")
        if sort in {"text", "reasoning"}:
            part = (sort, chunk["id"])
            assert (part in open_parts) == (act != "start"), chunk
            if act == "start":
                open_parts.add(part)
                if sort == "text":
                    texts[chunk["id"]] = ""
            elif act == "end":
                open_parts.remove(part)
            elif sort == "text":
                texts[chunk["id"]] += chunk["delta"]
        elif kind == "start-step":
            assert not in_step
            in_step = True
        elif kind == "finish-step":
            assert in_step
            assert not open_parts
            in_step = False
        elif kind in {"reset-step", "data-reset-step"}:
            assert in_step
            assert not open_parts
        elif sort == "tool":
            _check_tool(calls, kind, chunk)
        elif kind in {"finish", "abort", "error"}:
            is_over = True
    assert is_over
    assert not open_parts
    assert not in_step
    if chunks[-1].get("finishReason") != "tool-calls" and chunks[-1] != {
        "type": "error",
        "errorText": "The connection ends here, and the work is not finished.",
    }:
        assert set(calls.values()) <= {"done"}, calls
    return texts


def _check_tool(calls: dict[str, str], kind: str, chunk: Chunk) -> None:
    call_id = chunk["toolCallId"]
    state = calls.get(call_id)
    assert state != "done", chunk
    if kind == "tool-input-start":
        assert state is None, chunk
        calls[call_id] = "arriving"
    elif kind in {"tool-input-delta", "tool-input-error"}:
        assert state == "arriving" or (state == "asked" and kind.endswith("error")), chunk
        if kind.endswith("error"):
            calls[call_id] = "done"
    elif kind == "tool-input-available":
        assert state in {"arriving", "asked", "available"}, chunk
        calls[call_id] = "available"
    elif kind == "tool-approval-request" and state == "arriving":  # The call of a tool of the page.
        calls[call_id] = "asked"
    else:
        assert state == "available" or (state == "asked" and kind == "tool-output-denied"), chunk
        is_replaced = chunk.get("preliminary") or chunk.get("output") == "A decision is needed."
        if kind != "tool-approval-request" and not is_replaced:
            calls[call_id] = "done"


AGUI = {
    "RUN_STARTED": {"threadId", "runId"},
    "MESSAGES_SNAPSHOT": {"messages"},
    "RUN_FINISHED": {"threadId", "runId", "outcome"},
    "RUN_ERROR": {"message"},
    "STEP_STARTED": {"stepName"},
    "STEP_FINISHED": {"stepName"},
    "TEXT_MESSAGE_START": {"messageId", "role"},
    "TEXT_MESSAGE_CONTENT": {"messageId", "delta"},
    "TEXT_MESSAGE_END": {"messageId"},
    "REASONING_START": {"messageId"},
    "REASONING_MESSAGE_START": {"messageId", "role"},
    "REASONING_MESSAGE_CONTENT": {"messageId", "delta"},
    "REASONING_MESSAGE_END": {"messageId"},
    "REASONING_END": {"messageId"},
    "TOOL_CALL_START": {"toolCallId", "toolCallName"},
    "TOOL_CALL_ARGS": {"toolCallId", "delta"},
    "TOOL_CALL_END": {"toolCallId"},
    "TOOL_CALL_RESULT": {"toolCallId", "messageId", "content"},
    "CUSTOM": {"name", "value"},
}
_OPENS = {
    "STEP_STARTED": "step",
    "TEXT_MESSAGE_START": "text",
    "REASONING_START": "span",
    "REASONING_MESSAGE_START": "reasoning",
    "TOOL_CALL_START": "call",
}
_CONTINUES = {"TEXT_MESSAGE_CONTENT": "text", "REASONING_MESSAGE_CONTENT": "reasoning", "TOOL_CALL_ARGS": "call"}
_CLOSES = {
    "STEP_FINISHED": "step",
    "TEXT_MESSAGE_END": "text",
    "REASONING_END": "span",
    "REASONING_MESSAGE_END": "reasoning",
    "TOOL_CALL_END": "call",
}


def check_agui(chunks: Sequence[Chunk], *, known: Collection[str] = ()) -> dict[str, str]:
    """Check a run; `known` are the calls that the page has from an earlier one. Return the texts by their ids."""
    assert chunks[0]["type"] == "RUN_STARTED"
    texts: dict[str, str] = {}
    open_parts: set[tuple[str, str]] = set()
    seen: set[tuple[str, str]] = set()
    unanswered = set(known)
    for position, chunk in enumerate(chunks):
        kind = chunk["type"]
        assert AGUI[kind] <= chunk.keys(), chunk
        assert (kind == "RUN_STARTED") == (position == 0)
        assert (kind in {"RUN_FINISHED", "RUN_ERROR"}) == (position == len(chunks) - 1), chunk
        name = chunk.get("stepName") or chunk.get("toolCallId") or chunk.get("messageId", "")
        if sort := _OPENS.get(kind):
            assert (sort, name) not in seen, chunk
            seen.add((sort, name))
            open_parts.add((sort, name))
            if sort == "call":
                unanswered.add(name)
            elif sort == "text":
                texts[name] = ""
        elif sort := _CONTINUES.get(kind):
            assert (sort, name) in open_parts, chunk
            if sort == "text":
                texts[name] += chunk["delta"]
        elif sort := _CLOSES.get(kind):
            open_parts.remove((sort, name))
        elif kind == "TOOL_CALL_RESULT":
            assert ("call", name) not in open_parts
            unanswered.remove(name)
    assert not open_parts
    last = chunks[-1]
    if last["type"] == "RUN_FINISHED" and last["outcome"]["type"] == "interrupt":
        assert last["outcome"]["interrupts"]
        assert {each["toolCallId"] for each in last["outcome"]["interrupts"]} <= unanswered
    elif last["type"] == "RUN_FINISHED":
        assert set(last["outcome"].get("pendingToolCallIds", ())) == unanswered
    elif last.get("code") != "stream_closed":
        assert not unanswered
    return texts
