"""The encoder for Vercel's UI message stream, for `useChat` of the AI SDK 6 and 7."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal

from msgspec import msgpack

from .._option_checks import Rule, check
from ..events import (
    ApprovalRequested,
    PlanChanged,
    RequestCancelled,
    RequestEnding,
    RequestFailed,
    StatusChanged,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallProgress,
)
from ..messages import Message, ToolMessage, to_vercel
from ..messages.wire import MALFORMED, json_text
from ..records import fields_of, json_bytes
from ._encoder import ASKS_BELOW, CLOSED, LOST, VOID_CALL, Chunk, EventEncoder, PartKind
from ._history import failure_in, parsed, shown_messages
from ._shown_call import ShownCall

_MAX_REFUSED_BYTES = 2**20
_VERSIONS = Rule(lambda given: given in {6, 7}, "it must be 6 or 7, the version of the AI SDK")


def _readable(value: Any) -> Any:
    """Return a value, or its JSON as text for an object with names such as `__proto__`, which pages refuse.

    A page gets only the first MiB of such a text, because escaping its quotes takes long.
    """
    if isinstance(value, str) or not _may_be_refused(value):
        return value
    data = json_bytes(value, str)
    is_refused = b'"__proto__":' in data or (b'"constructor":{' in data and b'"prototype":' in data)
    return data[:_MAX_REFUSED_BYTES].decode(errors="ignore") if is_refused else value


def _may_be_refused(value: Any) -> bool:
    """Return whether a value may have such names. This form is quick to write, since it escapes no characters."""
    try:
        data = msgpack.encode(value, enc_hook=str)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return True
    return b"__proto__" in data or b"prototype" in data


def _failure(shown_id: str, reason: str, error: str) -> Chunk:
    """Return the part that says why a call has failed: a call that was denied has not failed for its user."""
    return {"type": "data-failure", "id": shown_id, "data": {"reason": reason, "error": error}}


def page_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the stored messages of a conversation as pages have seen them arrive: see `VercelEncoder`."""
    shown = to_vercel(shown_messages(messages), form="ui")
    for message in shown:
        message["parts"] = [each for part in message["parts"] for each in _as_arrived(part)]
    return shown


def _as_arrived(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the part as a page has seen it arrive, and the reason of a failed call."""
    if "input" in part:
        given = part["input"]
        # The text of arguments that are not an object, and that of integers that JSON writers refuse.
        text = given[MALFORMED] if list(given) == [MALFORMED] else json_text(0, given, "arguments")
        part = {**part, "input": _readable(parsed(text))}
    if part.get("state") != "output-error":
        return [part]
    if (failure := failure_in(part["errorText"])) is None:
        return [part]
    reason, error = failure
    return [{**part, "errorText": error}, _failure(part["toolCallId"], reason, error)]


class VercelEncoder(EventEncoder):
    """The chunks of a UI message stream: one message of the assistant, whose id is the request's.

    The default is understood by versions 6 and 7 of the AI SDK. A reply may be void, because the model is asked again
    or a guardrail has refused it. With `ai_sdk_version=7`, `reset-step` removes it from the page. With the default, it
    stays above the next reply, unless the page removes it at the transient part `data-reset-step`. Calls are dynamic
    tools, except those of `client_tools`, which are the page's own. See `EventEncoder` for the rest.
    """

    headers: ClassVar[Mapping[str, str]] = {"x-vercel-ai-ui-message-stream": "v1"}

    def __init__(
        self, *, client_tools: Collection[str] = (), answered: Collection[str] = (), ai_sdk_version: Literal[6, 7] = 6
    ) -> None:
        super().__init__(client_tools=client_tools, answered=answered)
        self._version = check("ai_sdk_version", ai_sdk_version, _VERSIONS)

    def on_start(self, request_id: str, conversation_id: str) -> None:
        metadata = {"requestId": request_id, "conversationId": conversation_id}
        self.emit("start", messageId=request_id, messageMetadata=metadata)

    def on_step(self, number: int) -> None:  # noqa: ARG002 -- the base's
        self.emit("start-step")

    def on_step_end(self, number: int) -> None:  # noqa: ARG002 -- the base's
        self.emit("finish-step")

    def on_part_start(self, kind: PartKind, shown_id: str) -> None:
        self.emit(f"{kind}-start", id=shown_id)

    def on_part(self, kind: PartKind, shown_id: str, piece: str) -> None:
        self.emit(f"{kind}-delta", id=shown_id, delta=piece)

    def on_part_end(self, kind: PartKind, shown_id: str) -> None:
        self.emit(f"{kind}-end", id=shown_id)

    def on_void_reply(self) -> None:
        if self._version >= 7:
            self.emit("reset-step")
        else:
            self.emit("data-reset-step", data={}, transient=True)

    def _emit_of(self, kind: str, call: ShownCall, **fields: Any) -> None:
        dynamic: dict[str, Any] = {} if self.is_client_tool(call.name) else {"dynamic": True}
        self.emit(kind, toolCallId=call.shown_id, **{key: _readable(fields[key]) for key in fields}, **dynamic)

    def on_call(self, call: ShownCall, reply_id: str) -> None:  # noqa: ARG002 -- the base's
        self._emit_of("tool-input-start", call, toolName=call.name)

    def on_arguments(self, call: ShownCall, piece: str) -> None:
        self.emit("tool-input-delta", toolCallId=call.shown_id, inputTextDelta=piece)

    def on_whole_call(self, call: ShownCall, rest: str) -> None:
        """Show the rest of the arguments of the page's own tool: its question comes without the whole arguments."""
        if rest and self.is_client_tool(call.name):
            self.on_arguments(call, rest)

    def _replaces_arguments(self, name: str) -> bool:
        """Return False for the page's own tools, whose questions come without the whole arguments."""
        return not self.is_client_tool(name)

    def on_arguments_known(self, call: ShownCall) -> None:
        self._emit_of("tool-input-available", call, toolName=call.name, input=dict(call.arguments))

    def on_void_call(self, call: ShownCall) -> None:
        self._fail(call, VOID_CALL)

    def _fail(self, call: ShownCall, text: str) -> None:
        if call.is_open:
            self._emit_of("tool-output-error", call, errorText=text)
        else:
            self._emit_of("tool-input-error", call, toolName=call.name, input=parsed(call.text), errorText=text)

    def on_question(self, call: ShownCall, question: ApprovalRequested) -> None:  # noqa: ARG002 -- the base's
        self.emit("tool-approval-request", toolCallId=call.shown_id, approvalId=call.approval_id)

    def on_paused(self, call: ShownCall) -> None:
        # A page sends its decisions once each call of the step is decided or has an output, which the result replaces.
        self._emit_of("tool-output-available", call, output=ASKS_BELOW)

    def on_closed(self, call: ShownCall) -> None:
        self._emit_of("tool-output-available", call, output=CLOSED)

    def on_progress(self, call: ShownCall, event: ToolCallProgress) -> None:
        output = {"message": event.message, "done": event.done, "total": event.total}
        self._emit_of("tool-output-available", call, output=output, preliminary=True)

    def on_result(self, call: ShownCall, event: ToolCallCompleted) -> None:
        # The call of a control tool, such as `final_answer`, is not requested.
        if not call.is_open and not self.has_answered(call):
            self._emit_of("tool-input-available", call, toolName=call.name, input=parsed(call.text))
        output: Any = event.content if event.data is None else event.data
        if event.parts:  # The form that a page gets from `to_vercel` after a reload.
            message = ToolMessage(call_id=event.call_id, name=event.name, content=event.content, parts=event.parts)
            output = to_vercel([message], form="ui")[0]["parts"][-1]["output"]
        self._emit_of("tool-output-available", call, output=output)

    def on_failure(self, call: ShownCall, event: ToolCallFailed) -> None:
        # A page sends results of its own tools only once each call of the step has an output or an error. A denied one
        # has neither: only a page that was asked about the call expects that, and has no other call to answer.
        is_last = not any(self.is_client_tool(each.name) for each in self._calls.values())
        if event.reason == "denied" and call.question is not None and is_last:
            self.emit("tool-output-denied", toolCallId=call.shown_id)
        else:
            self._fail(call, event.error)
        self._out.append(_failure(call.shown_id, event.reason, event.error))

    def on_status(self, event: StatusChanged) -> None:
        self.emit("data-status", data={"stage": event.stage, "text": event.text}, transient=True)

    def on_plan(self, event: PlanChanged) -> None:
        self.emit("data-plan", id="plan", data=[fields_of(each) for each in event.steps])

    def on_steering(self, event: SteeringAdded) -> None:
        self.emit("data-steering", data={"text": event.text}, transient=True)

    def on_steered(self, shown_id: str, text: str) -> None:
        self.emit("data-steered", id=shown_id, data={"text": text})

    def on_end(self, ending: RequestEnding, explanation: str) -> None:
        usage = {"inputTokens": ending.usage.input_tokens, "outputTokens": ending.usage.output_tokens}
        reason = {"completed": "stop", "failed": "error"}.get(ending.outcome, "other")
        metadata = {"outcome": ending.outcome, "explanation": explanation, "usage": usage}
        if isinstance(ending, RequestCancelled):
            self.emit("message-metadata", messageMetadata=metadata)
            self.emit("abort", reason=explanation)
            return
        self.emit("finish", finishReason=reason, messageMetadata=metadata)
        if isinstance(ending, RequestFailed):
            # A page reads nothing after an error.
            self.emit("error", errorText=explanation)

    def on_pause(self, waiting: list[ShownCall]) -> None:  # noqa: ARG002 -- the base's
        self.emit("finish", finishReason="tool-calls")

    def on_lost(self) -> None:
        self.emit("error", errorText=LOST)
