"""The encoder for AG-UI, for `HttpAgent` of `@ag-ui/client` 1 and of 0.0.59, which CopilotKit uses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ..core.turn import was_steered
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
from ..messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from ..messages.wire import split_data_url
from ..records import fields_of
from ._encoder import CLOSED, LOST, VOID_CALL, Chunk, EventEncoder, PartKind
from ._history import failure_in, shown_messages
from ._incoming import result_id
from ._shown_call import ShownCall

_PROTOCOL_VERSION = "1.0"
_LATEST = 253_402_300_799.0
"""The last second of the year 9999, the latest time that can be written, for a question that is open for longer."""
_PARTS: Mapping[PartKind, tuple[str, str]] = {
    "text": ("TEXT_MESSAGE", "assistant"),
    "reasoning": ("REASONING_MESSAGE", "reasoning"),
}
_DECISION = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "reason": {"type": "string"},
        "editedArgs": {"type": "object", "description": "All arguments, instead of those of the call"},
    },
    "required": ["approved"],
}


class AguiEncoder(EventEncoder):
    """The events of an AG-UI run, whose ids the client has chosen: `input.conversation_id` and `input.run_id`.

    A question to a person is an interrupt, and a call of `client_tools` ends the run without a result: the client
    answers with its next run. Progress, status, plan, and messages of the user that the model has not read yet
    (`steering`) are custom events. Clients before version 1 do not send their `protocol_version`: they get no outcome
    that they would refuse, results without images and files, and questions without the time at which they expire. See
    `EventEncoder` for the rest.

    Example:
        from toolbus.events import RequestStarted
        from toolbus.web import AguiEncoder

        encoder = AguiEncoder("thread-1", "run-1")
        chunks = encoder.feed(RequestStarted(prompt="Hello?", timeout_seconds=600))
        print(chunks[0]["type"])  # RUN_STARTED
    """

    def __init__(
        self,
        thread_id: str,
        run_id: str,
        *,
        protocol_version: str = _PROTOCOL_VERSION,
        client_tools: Collection[str] = (),
        answered: Collection[str] = (),
    ) -> None:
        super().__init__(client_tools=client_tools, answered=answered)
        self._run = {"threadId": thread_id, "runId": run_id}
        self._is_old = not protocol_version
        self._explanation = ""

    def begin(self, messages: Sequence[Message], *, request_id: str = "", explanation: str = "") -> list[Chunk]:
        """Begin the run of a page that connects: with the conversation so far, before the first event.

        `messages` are those of the store, and the prompt of the request whose events follow. What the store has of
        `request_id` after its prompt is left out, since its events show it. If no request runs, `pause` ends the run,
        with the `explanation` why the newest request has no whole answer.
        """
        self._explanation = explanation
        own = f"{request_id}_"
        known = [
            each
            for each in messages
            if not request_id
            or not each.message_id.startswith(own)
            or (isinstance(each, UserMessage) and not was_steered(each, request_id))
        ]
        shown = [made for at, each in enumerate(shown_messages(known)) for made in self._messages(at, each)]
        self._has_begun = True
        self.on_start(request_id, "")
        self.emit("MESSAGES_SNAPSHOT", messages=shown)
        return self._taken()

    def _messages(self, position: int, message: Message) -> Iterator[Chunk]:
        """Yield a message of the store as a page has it, with the ids that it had when it arrived."""
        about: Chunk = {"id": message.message_id or f"message-{position}", "role": message.role}
        match message:
            case UserMessage():
                content = message.content
                yield {**about, "content": content if isinstance(content, str) else [*map(_part, content)]}
            case ToolMessage():
                failure = failure_in(message.content) if message.is_error else None
                content = self._content(failure[1] if failure else message.content, message.parts)
                about["id"] = result_id(message.call_id)
                yield {**about, "toolCallId": message.call_id, "content": content}
            case AssistantMessage():
                if message.reasoning:
                    yield {"id": f"{about['id']}_r", "role": "reasoning", "content": message.reasoning}
                said = {"content": message.text} if message.text else {}
                calls = {"toolCalls": [_called(each) for each in message.tool_calls]} if message.tool_calls else {}
                if said or calls:
                    yield {**about, **said, **calls}
            case _:
                return

    def _content(self, text: str, parts: Sequence[Part]) -> str | list[Chunk]:
        """Return the content of a result. Clients before version 1 read only text."""
        if self._is_old or not parts:
            return text
        return [{"type": "text", "text": text}, *map(_part, parts)]

    def on_start(self, request_id: str, conversation_id: str) -> None:  # noqa: ARG002 -- the base's
        self.emit("RUN_STARTED", **self._run, protocolVersion=_PROTOCOL_VERSION)

    def on_step(self, number: int) -> None:
        self.emit("STEP_STARTED", stepName=f"round-{number}")

    def on_step_end(self, number: int) -> None:
        self.emit("STEP_FINISHED", stepName=f"round-{number}")

    def on_part_start(self, kind: PartKind, shown_id: str) -> None:
        if kind == "reasoning":
            self.emit("REASONING_START", messageId=shown_id)
        name, role = _PARTS[kind]
        self.emit(f"{name}_START", messageId=shown_id, role=role)

    def on_part(self, kind: PartKind, shown_id: str, piece: str) -> None:
        self.emit(f"{_PARTS[kind][0]}_CONTENT", messageId=shown_id, delta=piece)

    def on_part_end(self, kind: PartKind, shown_id: str) -> None:
        self.emit(f"{_PARTS[kind][0]}_END", messageId=shown_id)
        if kind == "reasoning":
            self.emit("REASONING_END", messageId=shown_id)

    def on_call(self, call: ShownCall, reply_id: str) -> None:
        self.emit("TOOL_CALL_START", toolCallId=call.shown_id, toolCallName=call.name, parentMessageId=reply_id)

    def on_arguments(self, call: ShownCall, piece: str) -> None:
        self.emit("TOOL_CALL_ARGS", toolCallId=call.shown_id, delta=piece)

    def on_whole_call(self, call: ShownCall, rest: str) -> None:
        if rest:
            self.on_arguments(call, rest)
        self.emit("TOOL_CALL_END", toolCallId=call.shown_id)

    def on_arguments_known(self, call: ShownCall) -> None:
        """Add nothing: the arguments were shown as the model wrote them, and cannot be replaced."""

    def on_void_call(self, call: ShownCall) -> None:
        if call.state == "arriving":
            self.emit("TOOL_CALL_END", toolCallId=call.shown_id)
        self._answer(call, VOID_CALL)

    def _answer(self, call: ShownCall, content: str | list[dict[str, Any]]) -> None:
        if self.has_answered(call):
            return  # The client has added the result to its messages, and would have it twice.
        about = {"messageId": result_id(call.shown_id), "toolCallId": call.shown_id}
        self.emit("TOOL_CALL_RESULT", **about, content=content, role="tool")

    def on_question(self, call: ShownCall, question: ApprovalRequested) -> None:
        """Add nothing: questions are asked at the end of the run."""

    def on_closed(self, call: ShownCall) -> None:
        self._answer(call, CLOSED)

    def on_progress(self, call: ShownCall, event: ToolCallProgress) -> None:
        value = {"toolCallId": call.shown_id, "message": event.message, "done": event.done, "total": event.total}
        self.emit("CUSTOM", name="progress", value=value)

    def on_result(self, call: ShownCall, event: ToolCallCompleted) -> None:
        self._answer(call, self._content(event.content, event.parts))

    def on_failure(self, call: ShownCall, event: ToolCallFailed) -> None:
        self._answer(call, event.error)

    def on_status(self, event: StatusChanged) -> None:
        self.emit("CUSTOM", name="status", value={"stage": event.stage, "text": event.text})

    def on_plan(self, event: PlanChanged) -> None:
        self.emit("CUSTOM", name="plan", value=[fields_of(each) for each in event.steps])

    def on_steering(self, event: SteeringAdded) -> None:
        self.emit("CUSTOM", name="steering", value={"text": event.text})

    def on_steered(self, shown_id: str, text: str) -> None:
        self.emit("TEXT_MESSAGE_START", messageId=shown_id, role="user")
        self.on_part("text", shown_id, text)
        self.on_part_end("text", shown_id)

    def on_end(self, ending: RequestEnding, explanation: str) -> None:
        usage = [{"inputTokens": ending.usage.input_tokens, "outputTokens": ending.usage.output_tokens}]
        if isinstance(ending, RequestFailed):
            self.emit("RUN_ERROR", message=explanation, code=ending.reason, usage=usage)
            return
        self._explanation = explanation
        self._finish({"type": "cancelled" if isinstance(ending, RequestCancelled) else "success"}, usage=usage)

    def on_pause(self, waiting: list[ShownCall]) -> None:
        # Both a question and a tool of the page may be open. A success may not have a question.
        questions = [(each, each.question) for each in waiting if each.state == "asked"]
        interrupts = [_interrupt(call, question) for call, question in questions if question is not None]
        if self._is_old:  # Once a question has expired, they begin no run any more, not even to cancel it.
            interrupts = [{name: each[name] for name in each if name != "expiresAt"} for each in interrupts]
        outcome: dict[str, Any] = {"type": "interrupt", "interrupts": interrupts}
        if not interrupts:
            outcome = {"type": "success", "pendingToolCallIds": [each.shown_id for each in waiting]}
        self._finish(outcome)

    def _finish(self, outcome: dict[str, Any], **fields: Any) -> None:
        is_new = outcome["type"] == "cancelled" or "pendingToolCallIds" in outcome
        known = {} if self._is_old and is_new else {"outcome": outcome}
        said = {"result": {"explanation": self._explanation}} if self._explanation else {}
        self.emit("RUN_FINISHED", **self._run, **known, **fields, **said)

    def on_lost(self) -> None:
        self.emit("RUN_ERROR", message=LOST, code="stream_closed")


def _interrupt(call: ShownCall, question: ApprovalRequested) -> dict[str, Any]:
    expires = datetime.fromtimestamp(min(question.at + question.timeout_seconds, _LATEST), UTC)
    return {
        "id": call.approval_id,
        "reason": "tool_call",
        "message": f"Approve this call of {call.name}?",
        "toolCallId": call.shown_id,
        "responseSchema": _DECISION,
        "expiresAt": expires.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "metadata": {"toolName": call.name, "arguments": dict(call.arguments)},
    }


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    inline = split_data_url(part.url)
    source = {"type": "url", "value": part.url}
    if inline is not None:
        source = {"type": "data", "mimeType": inline[0], "value": inline[1]}
    name = {"metadata": {"filename": part.name}} if isinstance(part, FilePart) and part.name else {}
    return {"type": "image" if isinstance(part, ImagePart) else "document", "source": source, **name}


def _called(call: ToolCall) -> Chunk:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
