"""The encoding of facts and messages: to bytes and back, with large texts apart and hashes that show damage. Pure.

A value is stored as its JSON. If the JSON is large, each long text in it (the content of a result, an artifact, a file)
is stored once, as a blob named by its SHA-256, however many facts and messages contain it. The value is then stored as

    @[[["message","content"],"<digest>"], ...]<TAB>
    {"type": "message_appended", "message": {"content": null, ...}, ...}

with the path of each text that was taken out. JSON never begins with `@`, and the paths are outside of the value, so
nothing that users write can be taken for a reference.

The facts of a request form a chain: each row's hash covers the hash before it, the row's position, the position of the
last fact of its step, and its data; the first hash builds on the request's ids and its agreed options. So at least one
hash is wrong if a row was changed, deleted, moved or inserted. If the end is missing, the request's own row shows it,
because that row has the last hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from struct import Struct
from struct import error as StructError  # noqa: N812 -- a class
from typing import Any, NamedTuple, TypeVar, cast

import orjson

from ..errors import DecodeError, StoreDamaged, StoreError, UnsupportedStoreFormat
from ..events import Event, decode, encode
from ..messages import Message
from ..records import JsonForm, json_bytes
from ..storage import ConversationRecord, Entry, RequestRecord
from ._texts import title_of

LARGE_BYTES = 16 * 1024
"""The size from which on a text is stored apart. Below it, a row in another table costs more than a copy."""

_REFERENCES = b"@"
_message = JsonForm[Message](Message, "message")
_POSITIONS = Struct(">QQ")
_MAX_HEADS = 10_000
_HeadT = TypeVar("_HeadT")

UNREADABLE = (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError, StructError)
"""The exceptions that reading a damaged value may raise."""

Fetch = Callable[[bytes], bytes]
"""A function from a digest to its blob. Raises `KeyError` if the blob is missing or is not what was written."""


class Damage(Exception):
    """A fact at position `seq` is not what was written."""

    def __init__(self, seq: int, what: str) -> None:
        super().__init__(what)
        self.seq = seq


def journal_damaged(request_id: str, seq: int, what: str) -> StoreDamaged:
    """Return the error for a journal in which a fact is not what was written."""
    text = f"the journal of request {request_id} is damaged at fact {seq}: {what}"
    return StoreDamaged(text, request_id=request_id, seq=seq)


class Head(NamedTuple):
    """The end of one request's journal: the next position, the bytes so far, the last hash; and the lease's epoch."""

    epoch: int
    seq: int
    size_bytes: int
    hash: bytes


class Heads(dict[str, _HeadT]):
    """The heads of the journals that a connection has written itself, by request: the newest 10,000.

    A head that was dropped costs a query at the next step of its request.
    """

    def keep(self, heads: Iterable[tuple[str, _HeadT | None]]) -> None:
        """Remember heads; None drops the head of a request that is not written any more."""
        for request_id, head in heads:
            self.pop(request_id, None)
            if head is not None:
                self[request_id] = head
        while len(self) > _MAX_HEADS:
            del self[next(iter(self))]


@dataclass(slots=True)
class Begun:
    """The parts of a request's first entry that are not facts: the lease and the agreed options."""

    owner: str
    lease_seconds: float
    agreed: bytes
    has_turn: bool = False


@dataclass(slots=True)
class Turn:
    """A turn's messages: for each its data, and its text to search in or the digest of that text."""

    conversation_id: str
    request_id: str
    title: str
    messages: list[tuple[bytes, str | None, bytes | None]]
    blobs: dict[bytes, bytes]
    size_bytes: int


@dataclass(slots=True)
class Written:
    """An entry as it is stored, without its hashes.

    `rows` are types and data, `blobs` the large texts by digest, and `received` the ids of inputs that become "taken".
    """

    request_id: str
    conversation_id: str
    epoch: int
    seq: int
    rows: list[tuple[str, bytes]]
    size_bytes: int
    blobs: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    begun: Begun | None = None
    ending: str | None = None
    turn: Turn | None = None
    received: Sequence[str] = ()


# ------------------------------------------------------------------------------------------------- to bytes


def written(entry: Entry) -> Written:
    """Return the entry as it is stored. Raises `StoreError` for a value that JSON cannot represent."""
    rows: list[tuple[str, bytes]] = []
    blobs: dict[bytes, bytes] = {}
    size = 0
    try:
        for fact in entry.facts:
            data = split(encode(fact), blobs)
            size += len(data)
            rows.append((fact.type, data))
        made = Written(entry.request_id, entry.conversation_id, entry.epoch, entry.seq, rows, size, blobs)
        made.received = entry.received
        if entry.seq == 0:
            agreed = split(json_bytes(dict(entry.agreed or {})), blobs)
            made.begun = Begun(entry.owner, entry.lease_seconds, agreed, entry.has_turn)
        if entry.ending is not None:
            made.ending = entry.ending
            if entry.turn:
                made.turn = turn_of(entry.conversation_id, entry.turn, request_id=entry.request_id)
    except (TypeError, ValueError, RecursionError) as exc:
        raise StoreError(f"a step of request {entry.request_id} cannot be written: {exc}") from exc
    made.size_bytes += sum(map(len, blobs.values()))
    return made


def turn_of(conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> Turn:
    """Return messages as they are stored. Raises `StoreError` for a value that JSON cannot represent."""
    blobs: dict[bytes, bytes] = {}
    rows: list[tuple[bytes, str | None, bytes | None]] = []
    size = 0
    try:
        for message in messages:
            data = split(json_bytes(message), blobs)
            size += len(data)
            text = message.text
            digest = sha256(text.encode("utf-8", "replace")).digest() if len(text) >= LARGE_BYTES else None
            # A text with NUL is not searched in its blob, because PostgreSQL has no NUL in texts.
            is_apart = digest in blobs and "\0" not in text
            rows.append((data, None, digest) if is_apart else (data, searchable(text), None))
    except (TypeError, ValueError, RecursionError) as exc:
        raise StoreError(f"a turn of conversation {conversation_id!r} cannot be written: {exc}") from exc
    size += sum(map(len, blobs.values()))
    title = searchable(title_of(messages))
    return Turn(conversation_id, request_id, title, rows, blobs, size)


def searchable(text: str) -> str:
    """Return a text that every database can keep in a column: without NUL and without lone surrogates."""
    if "\0" in text:
        text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def split(data: bytes, blobs: dict[bytes, bytes]) -> bytes:
    """Return the bytes to store for an object's JSON; if it is large, its long texts are moved to `blobs`."""
    if len(data) < LARGE_BYTES:
        return data
    taken: list[tuple[list[str | int], str]] = []

    def without(value: Any, path: list[str | int]) -> Any:
        if isinstance(value, str):
            if len(value) >= LARGE_BYTES:
                text = value.encode()
                digest = sha256(text)
                blobs[digest.digest()] = text
                taken.append((path, digest.hexdigest()))
                return None
        elif isinstance(value, dict):
            return {key: without(each, [*path, key]) for key, each in cast("dict[str, Any]", value).items()}
        elif isinstance(value, list):
            return [without(each, [*path, i]) for i, each in enumerate(cast("list[Any]", value))]
        return value

    rest = without(orjson.loads(data), [])
    return _REFERENCES + orjson.dumps(taken) + b"\t" + orjson.dumps(rest) if taken else data


# ----------------------------------------------------------------------------------------------- from bytes


def whole(data: bytes, fetch: Fetch) -> bytes:
    """Return the JSON that was stored as `data`.

    Raises `KeyError` for a missing or changed blob, and `ValueError` for data that does not have the stored form.
    """
    if not data.startswith(_REFERENCES):
        return data
    references, _, rest = data[1:].partition(b"\t")
    value: Any = orjson.loads(rest)
    for path, digest in orjson.loads(references):
        text = fetch(bytes.fromhex(digest)).decode()
        holder = value
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = text
    return orjson.dumps(value)


def stored(value: object) -> bytes:
    """Return a column's bytes. Raises `ValueError` if damage has turned them into something else."""
    if isinstance(value, bytes):
        return value
    # SQLite keeps a type with each value, so damage may have turned bytes into a text.
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    raise ValueError(f"the column has {type(value).__name__} instead of bytes")


def digests_in(data: bytes) -> Sequence[bytes]:
    """Return the digests of the blobs that a stored value refers to.

    Raises `ValueError` for data that does not have the stored form.
    """
    if not data.startswith(_REFERENCES):
        return ()
    return [bytes.fromhex(digest) for _, digest in orjson.loads(data[1:].partition(b"\t")[0])]


def fact_from(data: bytes, fetch: Fetch, where: str) -> Event:
    """Return the fact that was stored as `data`, whose hash was checked. `where` names the fact in error messages.

    Raises `UnsupportedStoreFormat` for a fact that this version does not know, and the errors of `whole`.
    """
    text = whole(data, fetch)
    try:
        return decode(text)
    except DecodeError as exc:
        raise UnsupportedStoreFormat(f"{where} has a form that this version of toolbus does not know: {exc}") from exc


def message_from(data: bytes, fetch: Fetch, where: str) -> Message:
    """Return the message that was stored as `data`: see `fact_from`."""
    text = whole(data, fetch)
    try:
        return _message.read(text)
    except DecodeError as exc:
        raise UnsupportedStoreFormat(f"{where} has a form that this version of toolbus does not know: {exc}") from exc


def agreed_from(data: bytes, fetch: Fetch) -> Mapping[str, Any]:
    """Return the agreed options of a request. Raises the errors of `whole`."""
    return orjson.loads(whole(data, fetch))


_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("request_id", "conversation_id", "owner"), str),
    **dict.fromkeys(("epoch", "fact_count", "size_bytes"), int),
    **dict.fromkeys(("lease_until", "started_at"), (int, float)),
    "ended_at": (int, float, type(None)),
    "ending": (str, type(None)),
}


def has_right_types(record: RequestRecord) -> bool:
    """Return whether the fields of a record have their types: a database may have kept a text in place of a number."""
    return all(isinstance(getattr(record, name), kind) for name, kind in _TYPES.items())


def conversation_from(values: Sequence[object]) -> ConversationRecord:
    """Return a conversation's record from its id, title, number of messages, and times.

    A value of another type becomes empty or 0, so that the other conversations can be listed.
    """
    conversation_id, title = (each if isinstance(each, str) else "" for each in values[:2])
    messages, started_at, updated_at = (each if isinstance(each, (int, float)) else 0 for each in values[2:])
    return ConversationRecord(
        conversation_id=conversation_id,
        title=title,
        message_count=int(messages),
        started_at=float(started_at),
        updated_at=float(updated_at),
    )


# ----------------------------------------------------------------------------------------------- the chain


def chain_start(request_id: str, conversation_id: str, agreed: bytes) -> bytes:
    """Return the hash that the first fact's hash builds on."""
    return sha256(orjson.dumps([request_id, conversation_id, agreed.decode("utf-8", "replace")])).digest()


def conversation_start(conversation_id: str) -> bytes:
    """Return the hash that the first message's hash builds on."""
    return sha256(conversation_id.encode("utf-8", "replace")).digest()


def chained(before: bytes, seq: int, step_end: int, data: bytes) -> bytes:
    """Return the hash of the row after the one with the hash `before`.

    For a message, `seq` and `step_end` are both its position.
    """
    return sha256(before + _POSITIONS.pack(seq, step_end) + data).digest()
