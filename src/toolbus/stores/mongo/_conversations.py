"""Conversations in MongoDB: their histories, lists of them, and searches in them.

Each reader first adds the turns that another process has left unfinished. The form of documents is in `_documents`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import orjson
from pymongo import DESCENDING

from ...core.transcript import repair
from ...errors import StoreDamaged
from ...messages import AssistantMessage, Message, ToolCall, ToolMessage
from ...storage import ConversationRecord
from .._encoding import conversation_from, searchable
from .._texts import folded, title_of
from ._blobs import Blobs
from ._connection import Document, Names, ServerConnection
from ._deleting import finish_forgetting
from ._documents import conversation_id_of, expanded, is_edited, own_part, session_ids, sort_key_of
from ._turns import complete, large_in, messages_in, publish_waiting

# The characters of a search that are sent to the server; documents with that beginning are then compared here.
_PATTERN_CHARS = 1_000
_BATCH = 100  # documents of a search that are looked through at once
_HEXADECIMAL = "0123456789abcdef"
_PENDING = {"pending_turn": {"$gt": ""}, "forgotten": False}
_FORGOTTEN = {"forgotten": True}


def finish_pending(database: ServerConnection) -> None:
    """Finish turns and deletions of conversations that were begun by a process that died or is slow.

    What cannot be finished is left, and reported to the readers of its own conversation.
    """
    with database.ignoring_errors():
        publish_waiting(database)
        complete(database, list(database.conversations.find(_PENDING)))
        for state in list(database.conversations.find(_FORGOTTEN)):
            finish_forgetting(database, state)
        return
    # One of them cannot be finished. That must not delay the others.
    ids = {each["conversation_id"] for each in database.requests.find({"has_turn": True}, ["conversation_id"])}
    for condition in (_PENDING, _FORGOTTEN):
        ids |= {each["_id"] for each in database.conversations.find(condition, ["_id"])}
    for conversation_id in sorted(ids):
        with database.ignoring_errors():
            settled(database, conversation_id)


def settled(database: ServerConnection, conversation_id: str) -> Document | None:
    """Return a conversation's own document, after its pending turns; None if toolbus has written nothing there."""
    publish_waiting(database, conversation_id)
    while True:
        state = database.conversations.find_one({"_id": conversation_id})
        if state is None:
            return None
        if state["forgotten"]:
            finish_forgetting(database, state)
        elif state["pending_turn"]:
            complete(database, [state])
        else:
            return state


# ------------------------------------------------------------------------------------------------ histories


def history(database: ServerConnection, conversation_id: str) -> Sequence[Message]:
    """See `Store.history`."""
    condition = {database.names.session: {"$in": session_ids(conversation_id)}}
    while True:
        state = settled(database, conversation_id)
        documents = _in_order(database, state, database.messages.find(condition))
        if _is_whole(database, state, documents):
            try:
                return _messages(database, documents)
            except StoreDamaged:
                # Its large values are missing also if it was deleted meanwhile.
                if _still_exists(database, state):
                    raise


def _is_whole(database: ServerConnection, state: Document | None, documents: Sequence[Document]) -> bool:
    """Return whether the conversation was not deleted while its documents were read.

    Some may be missing nevertheless, because another application has deleted them.
    """
    own = [own_part(database.names, each) for each in documents]
    if state is not None and sum(each["count"] for each in own if each is not None) == state["messages"]:
        return True
    return _still_exists(database, state)


def _still_exists(database: ServerConnection, state: Document | None) -> bool:
    """Return False if a conversation was deleted after its document was read."""
    if state is None:
        return True
    there = {"_id": state["_id"], "generation": state["generation"], "forgotten": False}
    return database.conversations.find_one(there, ["_id"]) is not None


def _in_order(database: ServerConnection, state: Document | None, documents: Iterable[Document]) -> list[Document]:
    """Return the documents of a conversation by time, and those of toolbus at the same time by position."""
    names = database.names
    placed: list[tuple[tuple[float, int, str], Document]] = []
    for each in documents:
        if _is_there(names, state, each):
            own = own_part(names, each)
            at, own_id = sort_key_of(names, each)
            placed.append(((at, -1 if own is None else own["position"], own_id), each))
    placed.sort(key=lambda each: each[0])
    return [each for _, each in placed]


def _is_there(names: Names, state: Document | None, document: Document) -> bool:
    """Return whether a document is in its conversation: if it is of toolbus, not after its end or before a deletion."""
    own = own_part(names, document)
    if own is None:
        return True
    return state is not None and own["generation"] == state["generation"] and own["position"] < state["messages"]


def _messages(database: ServerConnection, documents: Sequence[Document]) -> list[Message]:
    """Return the messages of documents: exactly those of toolbus if all are unedited, else as a valid transcript."""
    unedited, blobs = _unedited_parts(database, documents)
    found: list[Message] = []
    for each, own in zip(documents, unedited, strict=True):
        found += _said_in(database, each, own, blobs)
    return found if None not in unedited else repair(_with_calls(found))


def _unedited_parts(
    database: ServerConnection, documents: Sequence[Document]
) -> tuple[list[Mapping[str, Any] | None], Blobs]:
    """Return the part of toolbus in each document, and their large values.

    It is None for a document that another application has written or edited.
    """
    names = database.names
    parts = [own_part(names, each) for each in documents]
    unedited = [
        None if own is None or is_edited(names, each, own) else own for each, own in zip(documents, parts, strict=True)
    ]
    return unedited, Blobs(database, (key for own in unedited if own is not None for key in large_in(own)))


def _said_in(
    database: ServerConnection, document: Document, own: Mapping[str, Any] | None, blobs: Blobs
) -> Sequence[Message]:
    """Return the messages of a document, whose unedited part is `own`."""
    names = database.names
    if own is None:
        return expanded(names, document, is_ours=own_part(names, document) is not None)
    return _own_messages(database, conversation_id_of(names, document), own, blobs)


def _own_messages(
    database: ServerConnection, conversation_id: str, own: Mapping[str, Any], blobs: Blobs
) -> list[Message]:
    where = f"message {own['position']} of conversation {conversation_id!r}"
    try:
        return messages_in(database, own, blobs, where)
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as exc:
        why = exc.args[0] if exc.args else "it cannot be read"
        raise StoreDamaged(f"{where} is damaged: {why}") from exc


def _with_calls(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with a call inserted before each result that has none; its arguments are unknown."""
    asked: dict[str, int] = {}
    repaired: list[Message] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            for call in message.tool_calls:
                asked[call.call_id] = asked.get(call.call_id, 0) + 1
        elif isinstance(message, ToolMessage):
            if asked.get(message.call_id):
                asked[message.call_id] -= 1
            elif message.call_id and message.name:
                repaired.append(AssistantMessage(tool_calls=(ToolCall(name=message.name, call_id=message.call_id),)))
        repaired.append(message)
    return repaired


# --------------------------------------------------------------------------------------------------- lists


def conversations(database: ServerConnection, search: str, prefix: str, limit: int) -> Sequence[ConversationRecord]:
    """See `Store.conversations`. Includes those of other applications."""
    finish_pending(database)
    if limit <= 0:
        return []
    condition: Document = {"messages": {"$gt": 0}, "forgotten": False}
    chosen = {each for each in _with_text(database, search, prefix) if each.startswith(prefix)} if search else None
    if chosen is not None:
        condition["_id"] = {"$in": [*chosen]}
    elif prefix:
        condition["_id"] = {"$regex": f"^{re.escape(prefix)}"}
    # The server sorts only by time, for which there is an index. The ids are compared below.
    newest = database.conversations.find(condition).sort("updated_at", DESCENDING).limit(limit)
    found = {each["_id"]: _record_of(each) for each in newest}
    others = _others(database, limit, prefix, chosen)
    more = [*others.keys() - found.keys()]
    if more:
        condition["_id"] = {"$in": more}
        found |= {each["_id"]: _record_of(each) for each in database.conversations.find(condition)}
    for conversation_id, session in others.items():
        found[conversation_id] = _with_others(database, conversation_id, session, found.get(conversation_id))
    return sorted(found.values(), key=lambda each: (-each.updated_at, each.conversation_id))[:limit]


def _record_of(state: Document) -> ConversationRecord:
    return conversation_from([state.get(each) for each in ("_id", "title", "messages", "started_at", "updated_at")])


def _others(database: ServerConnection, limit: int, prefix: str, chosen: set[str] | None) -> dict[str, Any]:
    """Return the sessions with the newest documents of other applications, newest first, by conversation id."""
    names = database.names
    found: dict[str, Any] = {}
    condition: Document = {**_begins(database, prefix), f"{names.own}.turn": None}
    for each in database.messages.find(condition, [names.session]).sort(names.timestamp, DESCENDING):
        conversation_id, session = conversation_id_of(names, each), each.get(names.session)
        is_chosen = conversation_id.startswith(prefix) and (chosen is None or conversation_id in chosen)
        if is_chosen and session in session_ids(conversation_id):
            found.setdefault(conversation_id, session)
            if len(found) == limit:
                break
    return found


def _with_others(
    database: ServerConnection, conversation_id: str, session: Any, known: ConversationRecord | None
) -> ConversationRecord:
    """Return a conversation's record with the documents of other applications, each counted as a message."""
    names = database.names
    condition: Document = {names.session: {"$in": [session]}, f"{names.own}.turn": None}
    fields = [names.timestamp, names.sender]
    found = sorted(database.messages.find(condition, fields), key=lambda each: sort_key_of(names, each))
    times = [sort_key_of(names, each)[0] / 1_000 for each in found]
    count, title = len(found), ""
    prompt = next((each["_id"] for each in found if each.get(names.sender) == "user"), None)
    if prompt is not None and (first := database.messages.find_one({"_id": prompt})) is not None:
        title = title_of(expanded(names, first))
    if known is not None:
        title = known.title or title
        count += known.message_count
        times += [known.started_at, known.updated_at]
    return ConversationRecord(
        conversation_id=conversation_id,
        title=title,
        message_count=count,
        started_at=min(times, default=0.0),
        updated_at=max(times, default=0.0),
    )


def _with_text(database: ServerConnection, search: str, prefix: str) -> set[str]:
    """Return the ids of the conversations with a message that contains this text.

    Conversations that `prefix` leaves out, for example those of other users, are not searched.
    """
    names, wanted = database.names, folded(searchable(search))
    found: set[str] = set()
    begins = _begins(database, prefix)
    for condition in _conditions(database, search):
        documents = database.messages.find({**begins, **condition})
        while batch := list(islice(documents, _BATCH)):
            ids = {conversation_id_of(names, each) for each in batch} - found
            states = {each["_id"]: each for each in database.conversations.find({"_id": {"$in": [*ids]}})}
            placed = [(conversation_id_of(names, each), each) for each in batch]
            placed = [(of, each) for of, each in placed if of in ids and _is_there(names, states.get(of), each)]
            unedited, blobs = _unedited_parts(database, [each for _, each in placed])
            for (conversation_id, each), own in zip(placed, unedited, strict=True):
                try:
                    if conversation_id not in found and any(
                        wanted in folded(message.text) for message in _said_in(database, each, own, blobs)
                    ):
                        found.add(conversation_id)
                except StoreDamaged:
                    if _still_exists(database, states.get(conversation_id)):
                        raise
    return found


def _begins(database: ServerConnection, prefix: str) -> Document:
    """Return the condition for sessions that begin with a prefix; none if these may be numbers or ObjectIds."""
    return {database.names.session: {"$regex": f"^{re.escape(prefix)}"}} if prefix.strip(_HEXADECIMAL) else {}


def _conditions(database: ServerConnection, search: str) -> Iterator[Document]:
    """Yield conditions for documents that may contain the text. The server checks most; the rest are checked here."""
    names = database.names
    # JSON contains a text unchanged, except for quotes, backslashes and control characters.
    written = orjson.dumps(searchable(search)).decode()[1:-1]
    yield {f"{names.own}.messages": {"$regex": _pattern(written)}}
    yield {f"{names.own}.large": True}
    yield {f"{names.own}.turn": None, names.content: {"$regex": _pattern(search)}}
    yield {f"{names.own}.turn": None, f"{names.data}.toolResults": {"$exists": True}}


def _pattern(text: str) -> str:
    """Return a regular expression that finds a text, whatever the case of its ASCII letters."""
    pieces: list[str] = []
    for each in text[:_PATTERN_CHARS]:
        if each.isascii() and each.isalpha():
            pieces.append(f"[{each.lower()}{each.upper()}]")
        else:
            pieces.append("\\x00" if each == "\0" else re.escape(each))
    return "".join(pieces)
