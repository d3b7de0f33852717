"""Ollama's own API: one JSON object in each line. Wire facts: the `ollama` SDK's types."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ...errors import ConfigurationError
from ...messages import (
    AssistantMessage,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from ...schemas import as_object
from ._dialect import STATUSES, Lack, OneRoute, Pairing, Stream, error_answer, objects_of
from ._openai import tool_specs
from ._script import HttpRequest, WireCall, WireFault, WireReply, WireRequest
from ._server import Answer

_TOO_LONG = (
    (400, "prompt too long; exceeded max context length by 1809 tokens"),
    (400, "the input length exceeds the context length"),
    (500, "the input length exceeds the context length"),  # other versions of the server
)
_SETTINGS = {"temperature": "temperature", "num_predict": "max_output_tokens"}
_NO_SCHEMAS = ((400, "invalid JSON schema in format"), (500, "failed to parse grammar"))


class OllamaDialect(OneRoute):
    """`POST /api/chat` with lines of JSON."""

    name = "ollama"
    route = "/api/chat"
    lacks: frozenset[Lack] = frozenset(
        {
            "argument_text",
            "cache_write_tokens",
            "cached_tokens",
            "content_filter",
            "ids",
            "opaque_reasoning",
            "parallel_tool_calls",
            "reasoning_tokens",
            "refusal",
            "split_arguments",
            "tool_choice",
        }
    )

    # ----------------------------------------------------------------------------------------------- writing

    def render(self, reply: WireReply) -> Stream:
        """Write pieces of the message, whole calls without ids, and a last line with `done`."""
        messages: list[dict[str, Any]] = [{"content": "", "thinking": piece} for piece in reply.reasoning_pieces()]
        messages += [{"content": piece} for piece in reply.text_pieces()]
        messages += [{"content": "", "tool_calls": [_call(call)]} for call in reply.calls]
        head = {"model": reply.model, "created_at": "2026-01-01T00:00:00Z"}
        lines = [{**head, "message": {"role": "assistant", **each}, "done": False} for each in messages]
        last: dict[str, Any] = {**head, "message": {"role": "assistant", "content": ""}, "done": True}
        last["done_reason"] = {"length": "length", "other": "unload"}.get(reply.ended(), "stop")
        if reply.usage is not None:
            last |= {"prompt_eval_count": reply.usage.input_tokens, "eval_count": reply.usage.output_tokens}
        frames = tuple(_line(each) for each in (*lines, {**last, "total_duration": 1}))
        return Stream(frames, len(frames), "application/x-ndjson")

    def refusals(self, fault: WireFault) -> Sequence[Answer]:
        """Return an object that has only the error's text."""
        if fault.kind == "context_overflow":
            return [error_answer(status, {"error": said}, fault) for status, said in _TOO_LONG]
        if fault.kind == "native_output":
            return [error_answer(status, {"error": said}, fault) for status, said in _NO_SCHEMAS]
        return [error_answer(STATUSES[fault.kind], {"error": fault.message}, fault)]

    def breaks(self, message: str) -> Sequence[bytes]:
        """Return a line with an error."""
        return [_line({"error": message})]

    def garbage(self) -> bytes:
        return b"\xff\xfe {]garbage\n"

    # ----------------------------------------------------------------------------------------------- reading

    def read(self, request: HttpRequest) -> WireRequest:
        """Implement `Dialect.read`. Calls get ids by position; a result belongs to the oldest open call of its tool."""
        body = as_object(request.body)
        pairing = Pairing(unique=True)
        messages: list[Message] = []
        for index, wire in enumerate(objects_of(body.get("messages"))):
            messages.append(_message(index, wire, pairing))
        options = as_object(body.get("options"))
        settings = {name: options[key] for key, name in _SETTINGS.items() if key in options}
        if think := body.get("think"):
            settings["reasoning_effort"] = "on" if think is True else think
        return WireRequest(
            model=str(body.get("model") or ""),
            messages=tuple(messages),
            tools=tool_specs([as_object(tool.get("function")) for tool in objects_of(body.get("tools"))]),
            output_schema=as_object(body.get("format")) or None,
            settings=settings,
            problems=pairing.finish(messages),
        )


def _line(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False)
    # Go's writer escapes these two separators, because clients split lines at them.
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").encode() + b"\n"


def _call(call: WireCall) -> dict[str, Any]:
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise ConfigurationError(f"Ollama's arguments are objects, and {call.arguments!r} is not an object")
    return {"function": {"name": call.name, "arguments": cast("dict[str, Any]", arguments)}}


def _message(index: int, wire: Mapping[str, Any], pairing: Pairing) -> Message:
    role, content = wire.get("role"), str(wire.get("content") or "")
    if role == "tool":
        name = str(wire.get("tool_name") or wire.get("name") or "")
        wire_id = next((call.call_id for call in pairing.waiting() if call.name == name), f"none of {name!r}")
        pairing.result(wire_id)
        return ToolMessage(call_id=wire_id, name=name, content=content, parts=_images(wire))
    pairing.other(f"a message of {role}")
    if role == "assistant":
        calls: list[ToolCall] = []
        for number, each in enumerate(objects_of(wire.get("tool_calls"))):
            function = as_object(each.get("function"))
            given = function.get("arguments")
            if not isinstance(given, Mapping):
                pairing.problems.append(f"the arguments of {function.get('name')!r} are not an object")
            text = json.dumps(given, ensure_ascii=False)
            calls.append(ToolCall(name=str(function.get("name")), arguments=text, call_id=f"call_{index}_{number}"))
            pairing.call(calls[-1])
        return AssistantMessage(text=content, tool_calls=tuple(calls), reasoning=str(wire.get("thinking") or ""))
    if role == "system":
        return SystemMessage(text=content)
    if role != "user":
        pairing.problems.append(f"{role!r} is not a role")
    images = _images(wire)
    return UserMessage(content=(TextPart(text=content), *images) if images else content)


def _images(wire: Mapping[str, Any]) -> tuple[ImagePart, ...]:
    return tuple(ImagePart(url=f"data:;base64,{each}") for each in cast("Sequence[Any]", wire.get("images") or ()))
