"""Entries for tests of stores: requests that are written step by step, with distinguishable facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolbus.events import Event, MessageAppended
from toolbus.messages import AssistantMessage, Message, ToolMessage, UserMessage
from toolbus.storage import Ending, Entry
from toolbus.stores.sql import DatabaseStore


def fact(text: str, request_id: str = "r", conversation_id: str = "c") -> MessageAppended:
    """A fact with a tool's result."""
    message = ToolMessage(call_id="call", name="tool", content=text)
    return MessageAppended(request_id=request_id, conversation_id=conversation_id, message=message)


def text_of(event: Event) -> str:
    """The text of such a fact."""
    assert isinstance(event, MessageAppended)
    assert isinstance(event.message, ToolMessage)
    return event.message.content


def entry(
    request_id: str = "r",
    seq: int = 0,
    *texts: str,
    conversation_id: str = "c",
    epoch: int = 1,
    ending: Ending | None = None,
    turn: Sequence[Message] = (),
    agreed: Mapping[str, Any] | None = None,
    lease_seconds: float = 3_600.0,
) -> Entry:
    """A step of one request: a fact for each text, or one."""
    facts: list[Event] = [fact(each, request_id, conversation_id) for each in texts or (f"fact {seq}",)]
    return Entry(
        request_id=request_id,
        conversation_id=conversation_id,
        epoch=epoch,
        seq=seq,
        facts=facts,
        owner="worker",
        lease_seconds=lease_seconds,
        agreed=agreed,
        ending=ending,
        turn=turn,
    )


def turn(text: str) -> list[Message]:
    return [UserMessage(content=text), AssistantMessage(text=f"answer to {text}")]


async def write_whole(store: DatabaseStore, request_id: str = "r", conversation_id: str = "c", *more: str) -> None:
    """A request of two steps and an ending: facts 0-1, 2-3, 4."""
    await store.append(entry(request_id, 0, "zero", "one", conversation_id=conversation_id, agreed={"limit": 3}))
    await store.append(entry(request_id, 2, "two", *(more or ("three",)), conversation_id=conversation_id))
    seq = 3 + len(more or ("three",))
    await store.append(
        entry(request_id, seq, "end", conversation_id=conversation_id, ending="completed", turn=turn(f"q {request_id}"))
    )
