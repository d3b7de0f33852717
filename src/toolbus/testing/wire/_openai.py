"""Chat completions, as OpenAI's servers and compatible ones stream them. Wire facts: the `openai` SDK's chat types."""

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
from ...protocols import FinishReason, ToolSpec
from ...schemas import as_object
from ._dialect import STATUSES, Lack, OneRoute, Pairing, Stream, error_answer, objects_of, sse, text_of
from ._schemas import schema_problems
from ._script import HttpRequest, WireCall, WireFault, WireReply, WireRequest
from ._server import Answer

# All other reasons have the same name at the vendor.
_REASONS: Mapping[FinishReason, str] = {"refusal": "stop", "other": "eos"}
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SETTINGS = {
    "temperature": "temperature",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning_effort",
    "parallel_tool_calls": "parallel_tool_calls",
}
_WINDOW_TOKENS = 8192  # for error texts


class OpenAIDialect(OneRoute):
    """`POST /v1/chat/completions` with server-sent events."""

    name = "openai"
    root = "/v1"
    route = "/v1/chat/completions"
    lacks: frozenset[Lack] = frozenset({"cache_write_tokens", "opaque_reasoning"})

    # ----------------------------------------------------------------------------------------------- writing

    def render(self, reply: WireReply) -> Stream:
        """Write chunks, the finish reason, usage in its own chunk, and `[DONE]`."""
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": piece} for piece in reply.reasoning_pieces()]
        deltas += [{"content": piece} for piece in reply.text_pieces()]
        if reply.refusal:
            deltas.append({"refusal": reply.refusal})
        for index, call in enumerate(reply.calls):
            deltas += _call_deltas(index, call)
        reason = reply.ended()
        frames = [b": a comment, as some gateways send\n\n"]
        frames += [sse(_chunk(reply, delta)) for delta in deltas]
        frames.append(sse(_chunk(reply, {}, finish_reason=_REASONS.get(reason, reason))))
        whole_from = len(frames)
        if reply.usage is not None:
            frames.append(sse({**_chunk(reply, {}), "choices": [], "usage": _usage(reply.usage)}))
        return Stream((*frames, sse("[DONE]")), whole_from)

    def refusals(self, fault: WireFault) -> Sequence[Answer]:
        """Return OpenAI's error bodies; for a context that is too long, also those of vLLM and llama.cpp."""
        if fault.kind == "native_output":
            return [error_answer(status, body, fault) for status, body in _NO_SCHEMAS]
        if fault.kind != "context_overflow":
            return openai_refusals(fault)
        said = f"This model's maximum context length is {_WINDOW_TOKENS} tokens. However, "
        own = _error(f"{said}your messages resulted in 10001 tokens. Please reduce the length of the messages.")
        own["error"].update(param="messages", code="context_length_exceeded")
        vllm = _error(
            f"{said}you requested 10001 tokens (9001 in the messages, 1000 in the completion).", "BadRequestError"
        )
        llama_cpp = {
            "code": 400,
            "message": f"the request exceeds the available context size ({_WINDOW_TOKENS} tokens), try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 10001,
            "n_ctx": _WINDOW_TOKENS,
        }
        return [error_answer(400, body, fault) for body in (own, vllm, {"error": llama_cpp})]

    def breaks(self, message: str) -> Sequence[bytes]:
        """Return error objects in place of a chunk: one with a type, and one with a status."""
        return [
            sse({"error": {"message": message, "type": "server_error", "param": None, "code": None}}),
            sse({"error": {"message": message, "code": 503}}),
        ]

    def garbage(self) -> bytes:
        return b"data: \xff\xfe {]garbage\n\n"

    # ----------------------------------------------------------------------------------------------- reading

    def read(self, request: HttpRequest) -> WireRequest:
        body = as_object(request.body)
        pairing = Pairing(unique=False)
        messages = [_message(wire, pairing) for wire in objects_of(body.get("messages"))]
        tools = tool_specs([as_object(tool.get("function")) for tool in objects_of(body.get("tools"))])
        settings = {name: body[key] for key, name in _SETTINGS.items() if key in body}
        problems = list(pairing.finish(messages))
        if (choice := body.get("tool_choice")) is not None:
            settings["tool_choice"] = (
                choice if isinstance(choice, str) else as_object(choice.get("function")).get("name")
            )
        problems += () if tools else tool_settings(body)
        schema, wrong = output_schema(as_object(body.get("response_format")), "json_schema")
        problems += wrong
        problems += [f"the tool name {tool.name!r} is not valid" for tool in tools if not _NAME.fullmatch(tool.name)]
        return WireRequest(
            model=str(body.get("model") or ""),
            messages=tuple(messages),
            tools=tools,
            output_schema=schema,
            settings=settings,
            problems=tuple(problems),
        )


def _call_deltas(index: int, call: WireCall) -> list[dict[str, Any]]:
    head: dict[str, Any] = {"index": index, "type": "function", "function": {"name": call.name, "arguments": ""}}
    if call.call_id is not None:
        head["id"] = call.call_id
    pieces = [{"index": index, "function": {"arguments": piece}} for piece in call.streamed()]
    return [{"tool_calls": [each]} for each in (head, *pieces)]


def _chunk(reply: WireReply, delta: Mapping[str, Any], *, finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": reply.model}
    return {**head, "choices": [choice], "usage": None}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _error(message: str, kind: str = "invalid_request_error", code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


_FAULTS: Mapping[str, tuple[str, str | None]] = {
    "rate_limited": ("requests", "rate_limit_exceeded"),
    "server_error": ("server_error", None),
    "loading": ("unavailable_error", None),
    "bad_request": ("invalid_request_error", None),
    "unauthorised": ("invalid_request_error", "invalid_api_key"),
    "not_found": ("invalid_request_error", "model_not_found"),
}


_NO_SCHEMA = (
    "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model. Learn more about "
    "supported models at the Structured Outputs guide: https://platform.openai.com/docs/guides/structured-outputs"
)
_NO_SCHEMAS: Sequence[tuple[int, Any]] = (
    (400, _error(_NO_SCHEMA)),
    (400, _error("`response_format` does not support streaming")),  # Groq
    (400, _error("This response_format type is unavailable now")),  # DeepSeek
    (422, {"detail": [{"loc": ["body", "response_format"], "msg": "Extra inputs are not permitted"}]}),
    (404, _error("No endpoints found that support the requested parameters: response_format", code="404")),
)


def output_schema(wire: Mapping[str, Any], location: str = "") -> tuple[Mapping[str, Any] | None, list[str]]:
    """Return the schema in a format (below `location`, if given), and the rules of strict mode that it breaks."""
    if not wire:
        return None, []
    inner = as_object(wire.get(location)) if location else wire
    schema = as_object(inner.get("schema"))
    problems = [] if wire.get("type") == "json_schema" else [f"a format of type {wire.get('type')!r}"]
    if not _NAME.fullmatch(str(inner.get("name") or "")):
        problems.append(f"the name {inner.get('name')!r} of the output's schema is not valid")
    if inner.get("strict"):
        problems += schema_problems(schema, requires_all=True, with_bounds=True)
    return schema, problems


def tool_settings(body: Mapping[str, Any]) -> list[str]:
    """Return the settings of tools in a request without tools, as problems."""
    return [f"{key} without tools" for key in ("tool_choice", "parallel_tool_calls", "tools") if key in body]


def openai_refusals(fault: WireFault) -> list[Answer]:
    """Return OpenAI's answer to a fault, which is the same for both APIs."""
    return [error_answer(STATUSES[fault.kind], _error(fault.message, *_FAULTS[fault.kind]), fault)]


def tool_specs(functions: Sequence[Mapping[str, Any]]) -> tuple[ToolSpec, ...]:
    """Return the offered tools, from objects with their name, description and parameters."""
    return tuple(
        ToolSpec(
            name=str(each.get("name") or ""),
            description=str(each.get("description") or ""),
            parameters=as_object(each.get("parameters")),
        )
        for each in functions
    )


def _message(wire: Mapping[str, Any], pairing: Pairing) -> Message:
    role = wire.get("role")
    content = wire.get("content")
    if role == "tool":
        wire_id = str(wire.get("tool_call_id") or "")
        return ToolMessage(call_id=wire_id, name=pairing.result(wire_id), content=text_of(content))
    pairing.other(f"a message of {role}")
    if role == "assistant":
        return _reply(wire, pairing)
    if role in {"system", "developer"}:
        return SystemMessage(text=text_of(content))
    if role != "user":
        pairing.problems.append(f"{role!r} is not a role")
    if isinstance(content, str):
        return UserMessage(content=content)
    return UserMessage(content=tuple(_part(part, pairing) for part in objects_of(content)))


def _reply(wire: Mapping[str, Any], pairing: Pairing) -> AssistantMessage:
    calls: list[ToolCall] = []
    for each in objects_of(wire.get("tool_calls")):
        function = as_object(each.get("function"))
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            pairing.problems.append(f"the arguments of {function.get('name')!r} are not text")
            arguments = json.dumps(arguments)
        calls.append(ToolCall(name=str(function.get("name")), arguments=arguments, call_id=str(each.get("id") or "")))
        pairing.call(calls[-1])
    if not calls and not wire.get("content"):
        pairing.problems.append("a reply with neither content nor tool_calls")
    reasoning = wire.get("reasoning_content") or wire.get("reasoning") or ""
    return AssistantMessage(text=text_of(wire.get("content")), tool_calls=tuple(calls), reasoning=str(reasoning))


def _part(part: Mapping[str, Any], pairing: Pairing) -> Part:
    kind = part.get("type")
    if kind == "text":
        return TextPart(text=str(part.get("text")))
    if kind == "image_url":
        return ImagePart(url=str(as_object(part.get("image_url")).get("url")))
    if kind == "file":
        file = as_object(part.get("file"))
        return FilePart(url=str(file.get("file_data")), media_type="", name=str(file.get("filename") or ""))
    pairing.problems.append(f"a part of type {kind!r}")
    return TextPart(text="")
