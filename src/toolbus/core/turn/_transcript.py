"""The messages that a reply and the results of its calls append to the transcript, and the events for them. Pure.

A journal holds a reply and a result once: `ModelResponded` appends its message, unless that is empty, and the fact that
settles the last call of a round appends the results, in call order. The rules here are therefore part of the format of
journals: changed, they would change the transcripts of requests that are resumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...events import Event, MessageAppended, ModelResponded, ToolCallCompleted, ToolCallFailed, ToolCallRequested
from ...messages import AssistantMessage, Message, Part, SystemMessage, ToolMessage
from ...tool_results import failure_content
from ..result_notes import TICKET, background_note
from ..result_size import max_chars_of
from ._state import CallState, TurnState

_SETTLING = (ToolCallCompleted, ToolCallFailed, ToolCallRequested)


def is_empty(message: AssistantMessage) -> bool:
    """Return whether a reply has neither text nor calls, so that it does not join the transcript."""
    return not message.tool_calls and not message.text.strip()


def result_message(each: CallState) -> ToolMessage:
    """Return the message with the result of a settled call, as the model reads it; a ticket for an open call."""
    outcome = each.outcome
    parts: tuple[Part, ...] = ()
    failed = isinstance(outcome, ToolCallFailed)
    if outcome is None:
        content = TICKET
    elif isinstance(outcome, ToolCallCompleted):
        content, parts = outcome.content, outcome.parts
    else:
        content = failure_content(outcome.reason, outcome.error)
    return ToolMessage(
        call_id=each.call.call_id,
        name=each.call.name,
        content=content,
        parts=parts,
        is_error=failed,
        message_id=f"{each.call.call_id}_t",
    )


def background_note_of(state: TurnState, each: CallState) -> SystemMessage:
    """Return the note with the result of a settled call for which the model has read a ticket."""
    assert each.outcome is not None
    return background_note(
        each.call, each.outcome, max_chars_of(state.tools.get(each.call.name), state.max_result_chars)
    )


def with_messages(state: TurnState, facts: Iterable[Event], *, since_round: int = 0) -> list[Event]:
    """Return `facts` in order, each followed by the `MessageAppended` events that are derived from it.

    They have been applied to `state`, and other facts may have been since. The results of the calls of rounds before
    `since_round` are left out.
    """
    settled = {each.settled_last: each for each in state.rounds[since_round:] if each.settled_last}
    found: list[Event] = []
    for fact in facts:
        found.append(fact)
        if isinstance(fact, ModelResponded):
            appended: Sequence[Message] = () if is_empty(fact.message) else (fact.message,)
        elif isinstance(fact, _SETTLING) and (ended := settled.get((fact.call_id, fact.event_id))):
            appended = state.messages[ended.results_at : ended.results_at + len(ended.calls)]
        else:
            continue
        for number, message in enumerate(appended):
            derived = MessageAppended(
                event_id=f"{fact.event_id}_m{number}",
                request_id=state.request_id,
                conversation_id=state.conversation_id,
                parent_id=state.parent_id,
                at=fact.at,
                metadata=state.metadata,
                message=message,
            )
            found.append(derived)
    return found
