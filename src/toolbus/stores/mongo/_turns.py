"""The addition of turns to conversations, whole or not at all, though each of a turn's messages is a document.

A conversation has its own document, with the number of its messages and the turn that is being added (`pending`).
Updates of that document are atomic, so they decide:

1. The turn is written into it, if no other turn is pending. From now on any process can finish the addition.
2. The messages' documents are inserted. Readers through toolbus do not see them, since they are after the end.
3. The end is moved after them, and the pending turn is removed.

Any process that finds a pending turn does 2 and 3, also if the process that began is dead or only slow: the ids and
times of documents depend only on the turn, so they are inserted once, and only one process succeeds in moving the end.
A turn that is in the conversation already, by its id, is not added again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any
from uuid import uuid4

from pymongo.operations import DeleteOne, InsertOne, UpdateOne

from ...messages import Message
from .._encoding import UNREADABLE, Fetch, Turn, digests_in, message_from
from ._blobs import Blobs, put_blobs
from ._connection import Document, ServerConnection
from ._deleting import ABSENT, finish_forgetting, turn_owner
from ._documents import documents_of, seen_digest, session_ids

# The size of a turn, or of a document's messages, beyond which they are stored as a large value.
_INLINE_BYTES = 2**20
# The separator of messages: compact JSON contains no newline.
_SEPARATOR = b"\n"
_WAITING = 100  # turns that are read at once


def put_turn(database: ServerConnection, turn: Turn, turn_id: str) -> Document:
    """Store a turn's large values, and return the turn as it is kept in a document until its messages are inserted."""
    data = _SEPARATOR.join(each for each, _, _ in turn.messages)
    blobs = dict(turn.blobs)
    payload: Document = {"turn": turn_id, "title": turn.title, "size_bytes": turn.size_bytes}
    if turn.request_id:
        payload["request_id"] = turn.request_id
    if len(data) > _INLINE_BYTES:
        digest = sha256(data).digest()
        blobs[digest] = data
        payload["blob"] = digest.hex()
    else:
        payload["data"] = data.decode()
    if blobs:
        put_blobs(database, turn_owner(turn_id), blobs)
    return payload


# ------------------------------------------------------------------------------------------------- adding


def publish(database: ServerConnection, turns: Sequence[tuple[str, Document]]) -> None:
    """Add turns to the ends of their conversations, in their order, except those that are there already."""
    waiting = list(turns)
    while waiting:
        first: dict[str, Document] = {}
        for conversation_id, payload in waiting:
            first.setdefault(conversation_id, payload)
        done = _publish_each(database, first)
        waiting = [each for each in waiting if not (each[0] in done and each[1] is first[each[0]])]


def remember(database: ServerConnection, turn: Turn, turn_id: str) -> None:
    """Add a turn that is in no journal. Its id makes sure that it is added once, also if the first reply was lost."""
    if turn.messages:
        publish(database, [(turn.conversation_id, put_turn(database, turn, turn_id))])


def _publish_each(database: ServerConnection, wanted: Mapping[str, Document]) -> set[str]:
    """Try to add a turn to each conversation, and return those where it is done. Others had a turn pending."""
    states = _states(database, wanted)
    now = database.now()
    operations: list[UpdateOne | InsertOne[Document]] = []
    for conversation_id, payload in wanted.items():
        state, pending = states.get(conversation_id), {**payload, "at": now}
        if state is None:
            operations.append(InsertOne(_new(database, conversation_id, pending)))
        elif not state["pending_turn"] and not state["forgotten"]:
            operations.append(_claimed(state, pending))
    database.bulk(database.conversations, operations)
    states = _states(database, wanted)
    complete(database, [each for each in states.values() if each["pending_turn"] and not each["forgotten"]])
    for each in states.values():
        if each["forgotten"]:
            finish_forgetting(database, each)
    return {each for each, state in states.items() if state["pending_turn"] == wanted[each]["turn"]}


def _states(database: ServerConnection, ids: Iterable[str]) -> dict[str, Document]:
    return {each["_id"]: each for each in database.conversations.find({"_id": {"$in": [*ids]}})}


def _new(database: ServerConnection, conversation_id: str, pending: Document) -> Document:
    """Return the document of a new conversation, with its first turn pending."""
    session, others = conversation_id, session_ids(conversation_id)[1:]
    if others and (found := database.messages.find_one({database.names.session: {"$in": others}})) is not None:
        # The other application uses an ObjectId or a number for this session.
        session = found[database.names.session]
    return {
        "_id": conversation_id,
        "session": session,
        "generation": uuid4().hex,
        "title": "",
        "started_at": pending["at"],
        "updated_at": pending["at"],
        "messages": 0,
        "size_bytes": 0,
        "newest": 0,
        "forgotten": False,
        "pending_turn": pending["turn"],
        "pending": pending,
    }


def _claimed(state: Document, pending: Document) -> UpdateOne:
    guard = {"pending_turn": "", "messages": state["messages"], "forgotten": False}
    return UpdateOne(
        {"_id": state["_id"], "generation": state["generation"], **guard},
        {"$set": {"pending_turn": pending["turn"], "pending": pending}},
    )


def complete(database: ServerConnection, states: Sequence[Document]) -> None:
    """Complete the pending turns of conversations.

    A turn whose request was deleted belongs to a conversation that was deleted, perhaps while its process was slow: it
    is not added to the conversation that has the same id now.
    """
    if not states:
        return
    there = _positions_of(database, [each["pending_turn"] for each in states])
    deleted = _deleted(database, [each["pending"]["request_id"] for each in states if "request_id" in each["pending"]])
    documents: list[Document] = []
    ends: list[UpdateOne | DeleteOne] = []
    for state in states:
        turn, change = state["pending_turn"], {"pending_turn": ""}
        guard = {name: state[name] for name in ("generation", "pending_turn", "messages", "forgotten")}
        is_there = any(position < state["messages"] for position in there.get((turn, state["generation"]), ()))
        is_deleted = state["pending"].get("request_id") in deleted
        if not is_there and not is_deleted:
            made, change = _added(database, state)
            documents += made
        if is_deleted and not state["messages"]:
            ends.append(DeleteOne({"_id": state["_id"], **guard}))
        else:
            ends.append(UpdateOne({"_id": state["_id"], **guard}, {"$set": change, "$unset": {"pending": ""}}))
    database.insert(database.messages, documents)
    if database.bulk(database.conversations, ends) < len(ends):
        _remove_from_deleted(database, states)


def _remove_from_deleted(database: ServerConnection, states: Sequence[Document]) -> None:
    """Remove the turns that were added to conversations which another process deletes, or has finished and deleted."""
    own, left = database.names.own, _states(database, [each["_id"] for each in states])
    for each in states:
        there = left.get(each["_id"])
        if there is None or there["generation"] != each["generation"] or there["forgotten"]:
            condition = {f"{own}.turn": each["pending_turn"], f"{own}.generation": each["generation"]}
            database.messages.delete_many(condition)


def _deleted(database: ServerConnection, requests: Sequence[str]) -> set[str]:
    """Return those of the requests that are not there any more."""
    if not requests:
        return set()
    condition = {"_id": {"$in": requests}, "ending": {"$nin": ABSENT}}
    return {*requests} - {each["_id"] for each in database.requests.find(condition, ["_id"])}


def _positions_of(database: ServerConnection, turns: Sequence[str]) -> dict[tuple[str, Any], list[int]]:
    """Return the positions of turns in their conversations, by turn and generation, for turns that are there."""
    own = database.names.own
    positions: dict[tuple[str, Any], list[int]] = {}
    for each in database.messages.find({f"{own}.turn": {"$in": turns}}, [database.names.data]):
        found = each[database.names.data]["toolbus"]
        positions.setdefault((found["turn"], found["generation"]), []).append(found["position"])
    return positions


def _added(database: ServerConnection, state: Document) -> tuple[list[Document], Document]:
    """Return the documents of a conversation's pending turn, and the change of the conversation's own document."""
    pending, names = state["pending"], database.names
    owner = turn_owner(pending["turn"])
    encoded = _encoded(database, pending, owner)
    fetch = _ahead(database, owner, encoded)
    where = f"a turn of conversation {state['_id']!r}"
    messages = [message_from(each, fetch, where) for each in encoded]
    at = max(int(pending["at"] * 1_000), state["newest"] + 1)
    documents: list[Document] = []
    common = {"turn": pending["turn"], "generation": state["generation"]}
    made = documents_of(names, state["session"], messages, turn=pending["turn"], at_milliseconds=at)
    for document, first, last in made:
        own: Document = {**common, "position": state["messages"] + first, "count": last - first}
        own |= _kept(database, owner, encoded[first:last])
        if "blob" in pending:
            # Its owner has this large value at least, and perhaps messages of this document.
            own["large"] = True
        own["seen"] = seen_digest(names, document)
        document[names.data]["toolbus"] = own
        documents.append(document)
    change: Document = {
        "pending_turn": "",
        "messages": state["messages"] + len(encoded),
        "size_bytes": state["size_bytes"] + pending["size_bytes"],
        "title": state["title"] or pending["title"],
        "updated_at": pending["at"],
        "newest": at + len(documents) - 1,
    }
    return documents, change


def _encoded(database: ServerConnection, pending: Document, owner: str) -> list[bytes]:
    data = pending.get("data")
    found = Blobs(database).of(owner)(bytes.fromhex(pending["blob"])) if data is None else data.encode()
    return found.split(_SEPARATOR)


def _kept(database: ServerConnection, owner: str, encoded: Sequence[bytes]) -> Document:
    """Return the fields in which toolbus keeps a document's messages: inline, or as a large value if they are long.

    Inline messages are one text, in which the server can search.
    """
    data = _SEPARATOR.join(encoded)
    kept: Document = {"digest": sha256(data).hexdigest()}
    if len(data) > _INLINE_BYTES:
        put_blobs(database, owner, {sha256(data).digest(): data})
    else:
        kept["messages"] = data.decode()
        if any(digests_in(each) for each in encoded):
            kept["large"] = True
    return kept


def large_in(own: Mapping[str, Any]) -> Sequence[tuple[str, bytes]]:
    """Return owners and digests of the large values that are needed to read the messages of a document, in order."""
    try:
        owner, text = turn_owner(own["turn"]), own.get("messages")
        if text is None:
            return [(owner, bytes.fromhex(own["digest"]))]
        return [(owner, digest) for each in text.encode().split(_SEPARATOR) for digest in digests_in(each)]
    except UNREADABLE:
        return ()  # The damage is reported when the messages are read.


def messages_in(database: ServerConnection, own: Mapping[str, Any], blobs: Blobs, where: str) -> list[Message]:
    """Return the messages that toolbus has kept in its document. Raises `KeyError` if they were changed.

    `blobs` are the values of `large_in`, perhaps with those of other documents.
    """
    owner, text = turn_owner(own["turn"]), own.get("messages")
    fetch = blobs.of(owner)
    data = fetch(bytes.fromhex(own["digest"])) if text is None else text.encode()
    if sha256(data).hexdigest() != own["digest"]:
        raise KeyError("the messages that toolbus has kept in it were changed")
    encoded = data.split(_SEPARATOR)
    if text is None:
        fetch = _ahead(database, owner, encoded)
    return [message_from(each, fetch, where) for each in encoded]


def _ahead(database: ServerConnection, owner: str, encoded: Sequence[bytes]) -> Fetch:
    return Blobs(database, ((owner, digest) for each in encoded for digest in digests_in(each))).of(owner)


# ---------------------------------------------------------------------------------------------- finishing


def publish_waiting(database: ServerConnection, conversation_id: str | None = None) -> None:
    """Add the turns of ended requests whose process has not added them itself."""
    condition: Document = {"has_turn": True}
    if conversation_id is not None:
        condition["conversation_id"] = conversation_id
    while found := list(database.requests.find(condition).sort("ended_at").limit(_WAITING)):
        publish(database, [(each["conversation_id"], each["turn"]) for each in found])
        mark_published(database, [each["_id"] for each in found])


def mark_published(database: ServerConnection, requests: Sequence[str]) -> None:
    """Note that the turns of these requests are among the messages."""
    condition = {"_id": {"$in": [*requests]}, "has_turn": True}
    database.requests.update_many(condition, {"$unset": {"has_turn": "", "turn": ""}})
