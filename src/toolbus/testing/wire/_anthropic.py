"""Anthropic's Messages API: blocks, and a stream of named events. Wire facts: the `anthropic` SDK's types."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    Part,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from ...protocols import FinishReason
from ...schemas import as_object
from ._dialect import STATUSES, Lack, OneRoute, Pairing, Stream, error_answer, objects_of, sse, text_of
from ._openai import tool_specs
from ._schemas import schema_problems
from ._script import HttpRequest, WireCall, WireFault, WireReply, WireRequest
from ._server import Answer

_REASONS: Mapping[FinishReason, str] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "refusal": "refusal",
    "other": "pause_turn",
}
_FAULTS = {
    "rate_limited": "rate_limit_error",
    "server_error": "api_error",
    "loading": "overloaded_error",
    "bad_request": "invalid_request_error",
    "unauthorised": "authentication_error",
    "not_found": "not_found_error",
}
_TOO_LONG = (
    (400, "invalid_request_error", "prompt is too long: 10001 tokens > 8192 maximum"),
    (
        400,
        "invalid_request_error",
        "input length and `max_tokens` exceed context limit: 8000 + 4096 > 8192, decrease either and try again",
    ),
    (413, "request_too_large", "Request exceeds the maximum size"),
)
_NO_SCHEMAS = (
    "'claude-3-haiku-20240307' does not support output format.",
    "output_config.format: Extra inputs are not permitted",
)
_SETTINGS = {"temperature": "temperature", "max_tokens": "max_output_tokens"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ID = re.compile(r"[a-zA-Z0-9_-]+")


class AnthropicDialect(OneRoute):
    """`POST /v1/messages` with server-sent events."""

    name = "anthropic"
    route = "/v1/messages"
    lacks: frozenset[Lack] = frozenset({"content_filter"})

    # ----------------------------------------------------------------------------------------------- writing

    def render(self, reply: WireReply) -> Stream:
        """Write events from `message_start` to `message_stop`; after `message_delta` a reply may count as complete."""
        usage = reply.usage or Usage()
        message: dict[str, Any] = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": reply.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage, 1),
        }
        events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
        blocks = _blocks(reply)
        for index, (block, deltas) in enumerate(blocks):
            events.append({"type": "content_block_start", "index": index, "content_block": block})
            if index == 0:
                events.append({"type": "ping"})
            events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            events.append({"type": "content_block_stop", "index": index})
        delta = {"stop_reason": _REASONS.get(reply.ended(), "end_turn"), "stop_sequence": None}
        thinking = {"output_tokens_details": {"thinking_tokens": usage.reasoning_tokens}}
        whole = {**_usage(usage, usage.output_tokens), **thinking}
        events.append({"type": "message_delta", "delta": delta, "usage": whole})
        events.append({"type": "message_stop"})
        return Stream(tuple(sse(each, each["type"]) for each in events), len(events) - 1)

    def refusals(self, fault: WireFault) -> Sequence[Answer]:
        """Return Anthropic's error bodies; "loading" is an overload, as 503 and as Anthropic's own 529."""
        if fault.kind == "context_overflow":
            return [error_answer(status, _error(kind, said), fault) for status, kind, said in _TOO_LONG]
        if fault.kind == "native_output":
            return [error_answer(400, _error("invalid_request_error", said), fault) for said in _NO_SCHEMAS]
        body = _error(_FAULTS[fault.kind], fault.message)
        statuses = (STATUSES[fault.kind], *([529] if fault.kind == "loading" else []))
        return [error_answer(each, body, fault) for each in statuses]

    def breaks(self, message: str) -> Sequence[bytes]:
        """Return events `error`, of two types."""
        return [sse(_error(kind, message), "error") for kind in ("overloaded_error", "api_error")]

    def garbage(self) -> bytes:
        return b"event: content_block_delta\ndata: \xff\xfe {]garbage\n\n"

    def opaque(self, reply: WireReply) -> Sequence[str]:
        """Return the signature of thinking, and the data of redacted thinking."""
        signature = (_signature(reply),) if reply.reasoning_pieces() else ()
        return (*signature, *([reply.opaque_reasoning] if reply.opaque_reasoning else []))

    # ----------------------------------------------------------------------------------------------- reading

    def read(self, request: HttpRequest) -> WireRequest:
        body = as_object(request.body)
        reader = _Reader()
        if system := text_of(body.get("system")):
            reader.messages.append(SystemMessage(text=system))
        for wire in objects_of(body.get("messages")):
            reader.message(wire)
        problems = list(reader.pairing.finish(reader.messages))
        offered = objects_of(body.get("tools"))
        tools = tool_specs([{**tool, "parameters": tool.get("input_schema")} for tool in offered])
        if not isinstance(body.get("max_tokens"), int):
            problems.append("max_tokens is missing")
        if "tool_choice" in body and not tools:
            problems.append("tool_choice without tools")
        schema = None
        if output_format := as_object(as_object(body.get("output_config")).get("format")):
            schema = as_object(output_format.get("schema"))
            problems += schema_problems(schema, requires_all=False, with_bounds=False)
        return WireRequest(
            model=str(body.get("model") or ""),
            messages=tuple(reader.messages),
            tools=tools,
            output_schema=schema,
            settings=_settings(body),
            opaque=tuple(reader.opaque),
            problems=tuple(problems),
        )


def _signature(reply: WireReply) -> str:
    return f"signature:{''.join(reply.reasoning_pieces())}"


def _blocks(reply: WireReply) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return each block as it starts, with its deltas."""
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if thinking := reply.reasoning_pieces():
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in thinking]
        signed = {"type": "signature_delta", "signature": _signature(reply)}
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, [*deltas, signed]))
    if reply.opaque_reasoning:
        blocks.append(({"type": "redacted_thinking", "data": reply.opaque_reasoning}, []))
    if text := (*reply.text_pieces(), *([reply.refusal] if reply.refusal else [])):
        blocks.append(({"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in text]))
    return blocks + [_call_block(call) for call in reply.calls]


def _call_block(call: WireCall) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    block: dict[str, Any] = {"type": "tool_use", "name": call.name, "input": {}}
    if call.call_id is not None:
        block["id"] = call.call_id
    pieces = ("", *call.streamed())  # the first piece is always empty
    return block, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]


def _usage(usage: Usage, output_tokens: int) -> dict[str, Any]:
    """Return usage on the wire. The vendor's input tokens are those that were not read from or written to a cache."""
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "output_tokens": output_tokens,
    }


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def _settings(body: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name: body[key] for key, name in _SETTINGS.items() if key in body}
    thinking = as_object(body.get("thinking"))
    effort = as_object(body.get("output_config")).get("effort")
    if effort or thinking.get("type") in {"enabled", "adaptive"}:
        settings["reasoning_effort"] = effort or "on"
    choice = as_object(body.get("tool_choice"))
    if choice:
        kind = str(choice.get("type"))
        settings["tool_choice"] = choice.get("name") if kind == "tool" else _CHOICES.get(kind, kind)
    if "disable_parallel_tool_use" in choice:
        settings["parallel_tool_calls"] = not choice["disable_parallel_tool_use"]
    return settings


class _Reader:
    """A reader of the message list, in which roles alternate and results are blocks of a user message."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.opaque: list[str] = []
        self.pairing = Pairing(unique=True)
        self._last_role = ""

    def message(self, wire: Mapping[str, Any]) -> None:
        role, content = str(wire.get("role")), wire.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else objects_of(content)
        if role not in {"user", "assistant"}:
            self.pairing.problems.append(f"{role!r} is not a role")
        if role == self._last_role or (not self._last_role and role != "user"):
            self.pairing.problems.append(f"a message of {role} after {self._last_role or 'nothing'}")
        if not blocks:
            self.pairing.problems.append(f"an empty message of {role}")
        self._last_role = role
        self.pairing.problems += [
            "a text block without text"
            for block in blocks
            if block.get("type") == "text" and not str(block.get("text") or "").strip()
        ]
        if role == "assistant":
            self._reply(blocks)
        else:
            self._said(blocks)

    def _reply(self, blocks: Sequence[Mapping[str, Any]]) -> None:
        self.pairing.other("a reply")
        text = reasoning = ""
        calls: list[ToolCall] = []
        for block in blocks:
            kind = block.get("type")
            if kind == "text":
                text += str(block.get("text"))
            elif kind == "thinking":
                reasoning += str(block.get("thinking"))
                self.opaque.append(str(block.get("signature")))
            elif kind == "redacted_thinking":
                self.opaque.append(str(block.get("data")))
            elif kind == "tool_use":
                calls.append(self._call(block))
            else:
                self.pairing.problems.append(f"a block of type {kind!r} in a reply")
            if kind in {"thinking", "redacted_thinking"} and (text or calls):
                self.pairing.problems.append("thinking after the text or call that it led to")
        self.messages.append(AssistantMessage(text=text, reasoning=reasoning, tool_calls=tuple(calls)))

    def _call(self, block: Mapping[str, Any]) -> ToolCall:
        wire_id, given = str(block.get("id") or ""), block.get("input")
        if not _ID.fullmatch(wire_id):
            self.pairing.problems.append(f"the id {wire_id!r} has characters that are not allowed")
        if not isinstance(given, Mapping):
            self.pairing.problems.append(f"the input of {block.get('name')!r} is not an object")
        call = ToolCall(name=str(block.get("name")), arguments=json.dumps(given, ensure_ascii=False), call_id=wire_id)
        self.pairing.call(call)
        return call

    def _said(self, blocks: Sequence[Mapping[str, Any]]) -> None:
        parts: list[Part] = []
        for block in blocks:
            if block.get("type") == "tool_result":
                if parts:
                    self.pairing.problems.append("a tool_result after other blocks of its message")
                self._result(block)
            else:
                parts.append(self._part(block))
        self.pairing.other("the end of the user message")
        if parts:
            self.messages.append(UserMessage(content=tuple(parts)))

    def _result(self, block: Mapping[str, Any]) -> None:
        wire_id, content = str(block.get("tool_use_id") or ""), block.get("content")
        parts = tuple(part for each in objects_of(content) if not isinstance(part := self._part(each), TextPart))
        failed = bool(block.get("is_error"))
        if failed and not content:
            self.pairing.problems.append("an error without content")
        name = self.pairing.result(wire_id)
        result = ToolMessage(call_id=wire_id, name=name, content=text_of(content), parts=parts, is_error=failed)
        self.messages.append(result)

    def _part(self, block: Mapping[str, Any]) -> Part:
        kind = block.get("type")
        if kind == "text":
            return TextPart(text=str(block.get("text")))
        source = as_object(block.get("source"))
        media_type = str(source.get("media_type") or "")
        url = str(source.get("url") or f"data:{media_type};base64,{source.get('data')}")
        if kind == "image":
            return ImagePart(url=url)
        if kind == "document":
            return FilePart(url=url, media_type=media_type, name=str(block.get("title") or ""))
        self.pairing.problems.append(f"a block of type {kind!r}")
        return TextPart(text="")
