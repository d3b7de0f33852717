"""The choice of which messages of a stored conversation a page shows, whatever its protocol. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from ..core.output import FINAL_ANSWER
from ..core.result_notes import background_note_id, result_in
from ..core.turn import asks_for_repair
from ..events import Event, MessageAppended, ModelResponded
from ..messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from ..messages.wire import written
from ..records import json_bytes
from ..schemas import has_big_number, has_many_values

_ANSWER = "_answer"  # The end of the id of an answer by a tool.
_OK = '{"ok":true}'  # The result of a control tool.


def shown_messages(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the stored messages of a conversation as pages have seen them arrive.

    Messages that only the model reads are left out: instructions, notes, and requests to repair an output. A result in
    a note is shown as the result of its call, and an answer in a call as a text.
    """
    notes = {each.message_id: each for each in messages if isinstance(each, SystemMessage)}
    calls = {call.call_id: call for each in messages if isinstance(each, AssistantMessage) for call in each.tool_calls}
    answer: AssistantMessage | None = None  # by a tool; it is shown at the end of its request
    newest = AssistantMessage()  # the newest reply that has a text
    for each in messages:
        if answer is not None and not _is_of(each, answer):
            yield answer
            answer = None
        for shown in () if _is_for_model(each) else _as_shown(each, notes, calls):
            if not isinstance(shown, AssistantMessage):
                yield shown
            elif shown.message_id.endswith(_ANSWER):
                # The model may have written the answer as a text, too.
                answer = None if newest.text == shown.text and _is_of(newest, shown) else shown
            else:
                answer = None  # The model was asked again, because the answer did not have the right form.
                newest = shown if shown.text.strip() else newest
                yield shown
    if answer is not None:
        yield answer


def insert_cut_off(messages: list[Message], facts: Sequence[Event]) -> None:
    """Insert the reply with which a request has ended, if the transcript does not have it: it has only reasoning.

    `messages` are those of its conversation, and `facts` the last ones of the request.
    """
    replied = next((each for each in facts if isinstance(each, ModelResponded) and each.message.interrupted), None)
    if replied is None or replied.message.text.strip() or not replied.message.reasoning.strip():
        return
    after = facts[facts.index(replied) :]
    following = {each.message.message_id for each in after if isinstance(each, MessageAppended)}
    for at in range(len(messages), 0, -1):
        message_id = messages[at - 1].message_id
        if message_id.startswith(f"{replied.request_id}_") and message_id not in following:
            messages.insert(at, replied.message)
            return


def _is_of(message: Message, answer: AssistantMessage) -> bool:
    """Return whether a message is of the same request as an answer."""
    return message.message_id.startswith(answer.message_id.removesuffix("answer"))


def failure_in(content: str) -> tuple[str, str] | None:
    """Return the reason and the error of a failed call, from what the model has read; None for another text.

    See `toolbus.tool_results.failure_content`.
    """
    match parsed(content):
        case {"reason": str(reason), "error": str(error)}:
            return reason, error
        case _:
            return None


def parsed(text: str) -> Any:
    """Return the value of arguments that may be invalid; their text if a reader of JSON would refuse or round them."""
    data = text.encode("utf-8", "replace")
    if has_many_values(data):
        return text
    try:
        value = orjson.loads(data)
        if has_big_number(data):
            value = json.loads(data)  # orjson reads an integer over 64 bits as a float.
        written(value)
    except (TypeError, ValueError, RecursionError):
        return text
    return value


def _is_for_model(message: Message) -> bool:
    return isinstance(message, SystemMessage) or (
        isinstance(message, UserMessage) and asks_for_repair(message.message_id)
    )


def _as_shown(message: Message, notes: Mapping[str, SystemMessage], calls: Mapping[str, ToolCall]) -> list[Message]:
    call = calls.get(message.call_id) if isinstance(message, ToolMessage) else None
    if call is None:
        return [message]
    if (note := notes.get(background_note_id(call.call_id))) is not None:
        return [result_in(note, call)]
    if not (answer := _answer_in(call) if message.text == _OK else ""):
        return [message]
    request_id = call.call_id.rsplit("_", 2)[0]
    return [message, AssistantMessage(text=answer, message_id=f"{request_id}{_ANSWER}")]


def _answer_in(call: ToolCall) -> str:
    """Return the answer in a call that has ended its request; empty for another call."""
    match call.name, parsed(call.arguments):
        case "task_complete", {"answer": str(answer)}:
            return answer
        case name, arguments if name == FINAL_ANSWER:
            return json_bytes(arguments).decode()
        case _:
            return ""
