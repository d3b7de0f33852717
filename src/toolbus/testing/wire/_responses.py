"""OpenAI's Responses API: items, and a stream of typed events. Wire facts: the `openai` SDK's types of responses."""

from __future__ import annotations

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
from ...schemas import as_object
from ._dialect import Lack, OneRoute, Pairing, Stream, error_answer, objects_of, sse, text_of
from ._openai import openai_refusals, output_schema, tool_settings, tool_specs
from ._script import HttpRequest, WireCall, WireFault, WireReply, WireRequest
from ._server import Answer

_SETTINGS = {
    "temperature": "temperature",
    "max_output_tokens": "max_output_tokens",
    "parallel_tool_calls": "parallel_tool_calls",
}
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_NO_SCHEMAS = (
    "Invalid parameter: 'text.format' of type 'json_schema' is not supported with model version `stub`.",
    "Unknown parameter: 'text.format'.",
)
_TOO_LONG = "Your input exceeds the context window of this model. Please adjust your input and try again."


class ResponsesDialect(OneRoute):
    """`POST /v1/responses` with server-sent events."""

    name = "responses"
    root = "/v1"
    route = "/v1/responses"
    lacks: frozenset[Lack] = frozenset()

    # ----------------------------------------------------------------------------------------------- writing

    def render(self, reply: WireReply) -> Stream:
        """Write events from `response.created` to `response.completed` or `response.incomplete`, which complete it."""
        events = _Events(reply)
        events.begin()
        if reply.reasoning_pieces() or reply.opaque_reasoning:
            events.reasoning()
        if reply.text_pieces():
            events.message(reply.text_pieces(), "output_text", "text")
        if reply.refusal:
            events.message((reply.refusal,), "refusal", "refusal")
        for call in reply.calls:
            events.call(call, cut=reply.ended() == "length" and call is reply.calls[-1])
        events.end()
        return Stream(tuple(events.frames), len(events.frames))

    def refusals(self, fault: WireFault) -> Sequence[Answer]:
        """Return OpenAI's error bodies; for a context that is too long, also a stream that fails."""
        if fault.kind == "native_output":
            return [
                error_answer(400, {"error": {"message": each, "type": "invalid_request_error"}}, fault)
                for each in _NO_SCHEMAS
            ]
        if fault.kind != "context_overflow":
            return openai_refusals(fault)
        error = {"message": _TOO_LONG, "type": "invalid_request_error", "param": "input"}
        events = _Events(WireReply())
        events.begin()
        events.fail("context_length_exceeded", _TOO_LONG)
        stream = Answer(headers={"Content-Type": "text/event-stream"}, frames=events.frames)
        return [error_answer(400, {"error": {**error, "code": "context_length_exceeded"}}, fault), stream]

    def breaks(self, message: str) -> Sequence[bytes]:
        """Return the event `error`, and a response that failed."""
        error = {"type": "error", "code": "server_error", "message": message, "param": None, "sequence_number": 99}
        events = _Events(WireReply())
        events.fail("server_error", message)
        return [sse(error, "error"), events.frames[0]]

    def garbage(self) -> bytes:
        return b"event: response.output_text.delta\ndata: \xff\xfe {]garbage\n\n"

    def opaque(self, reply: WireReply) -> Sequence[str]:
        """Return the encrypted content of the reasoning item."""
        return (_encrypted(reply),) if reply.reasoning_pieces() or reply.opaque_reasoning else ()

    # ----------------------------------------------------------------------------------------------- reading

    def read(self, request: HttpRequest) -> WireRequest:
        body = as_object(request.body)
        reader = _Reader()
        if isinstance(instructions := body.get("instructions"), str) and instructions:
            reader.messages.append(SystemMessage(text=instructions))
        given = body.get("input")
        for item in [{"role": "user", "content": given}] if isinstance(given, str) else objects_of(given):
            reader.item(item)
        reader.flush()
        offered = objects_of(body.get("tools"))
        tools = tool_specs(offered)
        settings = {name: body[key] for key, name in _SETTINGS.items() if key in body}
        if effort := as_object(body.get("reasoning")).get("effort"):
            settings["reasoning_effort"] = effort
        if (choice := body.get("tool_choice")) is not None:
            settings["tool_choice"] = choice if isinstance(choice, str) else as_object(choice).get("name")
        problems = list(reader.pairing.finish(reader.messages))
        problems += [f"a tool of type {each.get('type')!r}" for each in offered if each.get("type") != "function"]
        problems += () if tools else tool_settings(body)
        schema, wrong = output_schema(as_object(as_object(body.get("text")).get("format")))
        problems += wrong
        return WireRequest(
            model=str(body.get("model") or ""),
            messages=tuple(reader.messages),
            tools=tools,
            output_schema=schema,
            settings=settings,
            opaque=tuple(reader.opaque),
            problems=tuple(problems),
        )


def _encrypted(reply: WireReply) -> str:
    return reply.opaque_reasoning or f"encrypted:{''.join(reply.reasoning_pieces())}"


class _Events:
    """The events of one response, in order."""

    def __init__(self, reply: WireReply) -> None:
        self.frames: list[bytes] = []
        self._reply = reply
        self._output: list[dict[str, Any]] = []

    def _add(self, kind: str, **fields: Any) -> None:
        self.frames.append(sse({"type": kind, "sequence_number": len(self.frames), **fields}, kind))

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": self._reply.model,
            "output": self._output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": None,
            **fields,
        }

    def begin(self) -> None:
        self._add("response.created", response=self._response("in_progress"))
        self._add("response.in_progress", response=self._response("in_progress"))

    def reasoning(self) -> None:
        location = {"item_id": "rs_1", "output_index": len(self._output)}
        item: dict[str, Any] = {"id": "rs_1", "type": "reasoning", "summary": []}
        self._add("response.output_item.added", output_index=location["output_index"], item=item)
        pieces = self._reply.reasoning_pieces()
        if pieces:
            text = "".join(pieces)
            name = "response.reasoning_summary"
            location["summary_index"] = 0
            self._add(f"{name}_part.added", **location, part={"type": "summary_text", "text": ""})
            for piece in pieces:
                self._add(f"{name}_text.delta", **location, delta=piece)
            self._add(f"{name}_text.done", **location, text=text)
            self._add(f"{name}_part.done", **location, part={"type": "summary_text", "text": text})
            item = {**item, "summary": [{"type": "summary_text", "text": text}]}
        self._done({**item, "encrypted_content": _encrypted(self._reply)})

    def message(self, pieces: Sequence[str], kind: str, field: str) -> None:
        index = len(self._output)
        item: dict[str, Any] = {"id": f"msg_{index}", "type": "message", "role": "assistant", "content": []}
        self._add("response.output_item.added", output_index=index, item={**item, "status": "in_progress"})
        location = {"item_id": item["id"], "output_index": index, "content_index": 0}
        more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
        extra: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
        self._add("response.content_part.added", **location, part={"type": kind, field: "", **more})
        for piece in pieces:
            self._add(f"response.{kind}.delta", **location, delta=piece, **extra)
        text = "".join(pieces)
        self._add(f"response.{kind}.done", **location, **{field: text}, **extra)
        part = {"type": kind, field: text, **more}
        self._add("response.content_part.done", **location, part=part)
        self._done({**item, "status": "completed", "content": [part]})

    def call(self, call: WireCall, *, cut: bool) -> None:
        index = len(self._output)
        item: dict[str, Any] = {"id": f"fc_{index}", "type": "function_call", "name": call.name, "arguments": ""}
        if call.call_id is not None:
            item["call_id"] = call.call_id
        self._add("response.output_item.added", output_index=index, item={**item, "status": "in_progress"})
        location = {"item_id": item["id"], "output_index": index}
        for piece in call.streamed():
            self._add("response.function_call_arguments.delta", **location, delta=piece)
        self._add("response.function_call_arguments.done", **location, name=call.name, arguments=call.arguments)
        self._done({**item, "arguments": call.arguments, "status": "incomplete" if cut else "completed"})

    def _done(self, item: dict[str, Any]) -> None:
        self._add("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)

    def end(self) -> None:
        usage = None if self._reply.usage is None else _usage(self._reply.usage)
        reason = _INCOMPLETE.get(self._reply.ended())
        if reason is None:
            self._add("response.completed", response=self._response("completed", usage=usage))
            return
        cut = self._response("incomplete", usage=usage, incomplete_details={"reason": reason})
        self._add("response.incomplete", response=cut)

    def fail(self, code: str, message: str) -> None:
        error = {"code": code, "message": message}
        self._add("response.failed", response=self._response("failed", error=error))


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


class _Reader:
    """A reader that joins items into messages: consecutive reasoning, text and calls are one reply."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.opaque: list[str] = []
        self.pairing = Pairing(unique=True)
        self._reply: dict[str, Any] | None = None  # the fields of the reply that is read now

    def item(self, item: Mapping[str, Any]) -> None:
        kind = item.get("type") or "message"
        if kind == "function_call_output":
            self.flush()
            self._result(item)
        elif kind == "reasoning":
            if item.get("encrypted_content"):
                self.opaque.append(str(item["encrypted_content"]))
            summary = "".join(str(part.get("text") or "") for part in objects_of(item.get("summary")))
            self._open()["reasoning"] += summary
        elif kind == "function_call":
            if not isinstance(item.get("arguments"), str):
                self.pairing.problems.append(f"the arguments of {item.get('name')!r} are not text")
            call = ToolCall(
                name=str(item.get("name")),
                arguments=str(item.get("arguments")),
                call_id=str(item.get("call_id") or ""),
            )
            reply = self._open()
            reply["tool_calls"] = (*reply["tool_calls"], call)
        elif item.get("role") == "assistant":
            self._open()["text"] += text_of(item.get("content"))
        elif kind == "message":
            self.flush()
            self._said(str(item.get("role")), item.get("content"))
        else:
            self.pairing.problems.append(f"an item of type {kind!r}")

    def _open(self) -> dict[str, Any]:
        if self._reply is None:
            self._reply = {"text": "", "reasoning": "", "tool_calls": ()}
        return self._reply

    def flush(self) -> None:
        """End the current reply, if there is one."""
        if self._reply is None:
            return
        self.pairing.other("a reply")
        reply = AssistantMessage(**self._reply)
        for call in reply.tool_calls:
            self.pairing.call(call)
        if not reply.text and not reply.tool_calls:
            self.pairing.problems.append("reasoning without the text or call that it led to")
        self.messages.append(reply)
        self._reply = None

    def _result(self, item: Mapping[str, Any]) -> None:
        wire_id = str(item.get("call_id") or "")
        name = self.pairing.result(wire_id)
        output = item.get("output")
        parts = tuple(part for each in objects_of(output) if not isinstance(part := self._part(each), TextPart))
        self.messages.append(ToolMessage(call_id=wire_id, name=name, content=text_of(output), parts=parts))

    def _said(self, role: str, content: object) -> None:
        self.pairing.other(f"a message of {role}")
        if role in {"system", "developer"}:
            self.messages.append(SystemMessage(text=text_of(content)))
            return
        if role != "user":
            self.pairing.problems.append(f"{role!r} is not a role")
        parts = content if isinstance(content, str) else tuple(self._part(each) for each in objects_of(content))
        self.messages.append(UserMessage(content=parts))

    def _part(self, part: Mapping[str, Any]) -> Part:
        kind = part.get("type")
        if kind == "input_text":
            return TextPart(text=str(part.get("text")))
        if kind == "input_image":
            return ImagePart(url=str(part.get("image_url")))
        if kind == "input_file":
            data = str(part.get("file_data") or part.get("file_url"))
            return FilePart(url=data, media_type="", name=str(part.get("filename") or ""))
        self.pairing.problems.append(f"a part of type {kind!r} in the input")
        return TextPart(text=str(part.get("text") or ""))
