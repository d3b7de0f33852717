"""Facts and messages to bytes and back; large texts apart; the chain of hashes that shows damage. Pure.

A value is stored as its JSON. Where that is large, each long text in it (the content of a result, an artifact, a file)
is stored once, as a blob named by its SHA-256, however many facts and messages have it; what is stored of the value is

    @[[["message","content"],"<digest>"], ...]<TAB>
    {"type": "message_appended", "message": {"content": null, ...}, ...}

with the path of each text that was taken out. JSON never begins with `@`, and paths point from the outside, so nothing
that users write can be taken for a reference.

The facts of a request are a chain: each row's hash covers the one before it, its place, its step's last place and its
data; the first builds on the request's ids and what was agreed. So of a row that is changed, gone, moved or put in, at
least one hash tells; where the end is missing, the request's own row does, which has the last one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from struct import Struct
from struct import error as StructError  # noqa: N812 -- a class
from typing import Any, NamedTuple, cast

import orjson
from pydantic import TypeAdapter, ValidationError

from ..errors import StoreError, StoreFormat
from ..events import Event, decode, encode
from ..messages import Message
from ..storage import Entry
from ._texts import message_text, title_of

__all__ = [
    "LARGE_BYTES",
    "UNREADABLE",
    "Begun",
    "Fetch",
    "Head",
    "Turn",
    "Written",
    "agreed_from",
    "chain_start",
    "chained",
    "conversation_start",
    "digests_in",
    "fact_from",
    "message_from",
    "searchable",
    "split",
    "stored",
    "turn_of",
    "whole",
    "written",
]

LARGE_BYTES = 16 * 1024
"""From which size on a text is stored apart. Below, a row in another table costs more than a copy."""

_REFERENCES = b"@"
_PLACE = Struct(">QQ")

UNREADABLE = (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError, StructError)
"""What comes of reading values that damage has made something else of."""

Fetch = Callable[[bytes], bytes]
"""The blob of a digest. Raises `KeyError` where it is missing or is not what was written."""


class Head(NamedTuple):
    """The end of one request's journal: the next place, the bytes so far, the last hash; and the lease's epoch."""

    epoch: int
    seq: int
    size_bytes: int
    hash: bytes


@dataclass(slots=True)
class Begun:
    """What stands in a request's first entry beside its facts."""

    owner: str
    lease_seconds: float
    agreed: bytes


@dataclass(slots=True)
class Turn:
    """A turn's messages: of each its data, and its text to search in, or the digest of that."""

    conversation_id: str
    request_id: str
    title: str
    messages: list[tuple[bytes, str | None, bytes | None]]
    blobs: dict[bytes, bytes]
    size_bytes: int


@dataclass(slots=True)
class Written:
    """An entry as it is stored, but for its hashes: `rows` are types and data, `blobs` the large texts by digest."""

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


# ------------------------------------------------------------------------------------------------- to bytes


def written(entry: Entry) -> Written:
    """The entry as it is stored. Raises `StoreError` for a value that no JSON can carry."""
    rows: list[tuple[str, bytes]] = []
    blobs: dict[bytes, bytes] = {}
    size = 0
    try:
        for fact in entry.facts:
            data = encode(fact)
            if len(data) >= LARGE_BYTES:
                data = split(data, blobs)
            size += len(data)
            rows.append((fact.type, data))
        made = Written(entry.request_id, entry.conversation_id, entry.epoch, entry.seq, rows, size, blobs)
        if entry.seq == 0:
            agreed = split(_json(dict(entry.agreed or {})), blobs)
            made.begun = Begun(entry.owner, entry.lease_seconds, agreed)
        if entry.ending is not None:
            made.ending = entry.ending
            if entry.turn:
                made.turn = turn_of(entry.conversation_id, entry.turn, request_id=entry.request_id)
    except (TypeError, ValueError, RecursionError) as exc:
        raise StoreError(f"a step of request {entry.request_id} cannot be written: {exc}") from exc
    made.size_bytes += sum(map(len, blobs.values()))
    return made


def turn_of(conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> Turn:
    """Messages as they are stored. Raises `StoreError` for a value that no JSON can carry."""
    blobs: dict[bytes, bytes] = {}
    rows: list[tuple[bytes, str | None, bytes | None]] = []
    size = 0
    try:
        for message in messages:
            data = split(_json(message), blobs)
            size += len(data)
            text = message_text(message)
            digest = sha256(text.encode("utf-8", "replace")).digest() if len(text) >= LARGE_BYTES else None
            # NUL, which PostgreSQL has in no text, would be in the blob as well
            is_apart = digest in blobs and "\0" not in text
            rows.append((data, None, digest) if is_apart else (data, searchable(text), None))
    except (TypeError, ValueError, RecursionError) as exc:
        raise StoreError(f"a turn of conversation {conversation_id!r} cannot be written: {exc}") from exc
    size += sum(map(len, blobs.values()))
    title = searchable(title_of(messages))
    return Turn(conversation_id, request_id, title, rows, blobs, size)


def searchable(text: str) -> str:
    """A text as databases can have it in a column: without NUL, and without half characters."""
    if "\0" in text:
        text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_without_halves(value))


def _without_halves(value: Any) -> Any:
    """The value with a question mark for each half of a surrogate pair, as `encode` has it for facts."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _without_halves({each.name: getattr(value, each.name) for each in dataclasses.fields(value)})
    if isinstance(value, dict):
        mapping = cast("dict[Any, Any]", value)
        return {_without_halves(key): _without_halves(each) for key, each in mapping.items()}
    if isinstance(value, (list, tuple)):
        return [_without_halves(each) for each in cast("list[Any]", value)]
    return value


def split(data: bytes, blobs: dict[bytes, bytes]) -> bytes:
    """What is stored of a value: its JSON, or where that is large, with its long texts put into `blobs`."""
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
    """The JSON that was stored as `data`. Raises `KeyError` for a blob, `ValueError` for data of no such form."""
    if not data.startswith(_REFERENCES):
        return data
    references, _, rest = data[1:].partition(b"\t")
    value: Any = orjson.loads(rest)
    for path, digest in orjson.loads(references):
        text = fetch(bytes.fromhex(digest)).decode()
        if not path:
            value = text
            continue
        holder = value
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = text
    return orjson.dumps(value)


def stored(value: object) -> bytes:
    """A column's bytes. Raises `ValueError` where damage has made something else of them."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):  # SQLite keeps the type beside the value
        return value.encode("utf-8", "surrogateescape")
    raise ValueError(f"there are no bytes, but {type(value).__name__}")


def digests_in(data: bytes) -> Sequence[bytes]:
    """The blobs that a stored value refers to. Raises `ValueError` for data of no such form."""
    if not data.startswith(_REFERENCES):
        return ()
    return [bytes.fromhex(digest) for _, digest in orjson.loads(data[1:].partition(b"\t")[0])]


def fact_from(data: bytes, fetch: Fetch, where: str) -> Event:
    """The fact that was stored as `data`, whose hash is right. `where` is for errors.

    Raises `StoreFormat` for one that this version does not know, and what `whole` raises.
    """
    text = whole(data, fetch)
    try:
        return decode(text)
    except ValueError as exc:  # DecodeError
        raise StoreFormat(f"{where} is of a form that this version of toolbus does not know: {exc}") from exc


@cache
def _messages() -> TypeAdapter[Message]:
    """Made when it is first needed: it costs a command more than opening its store does."""
    return TypeAdapter(Message)


def message_from(data: bytes, fetch: Fetch, where: str) -> Message:
    """The message that was stored as `data`: see `fact_from`."""
    text = whole(data, fetch)
    try:
        return _messages().validate_json(text, strict=True)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False, include_context=False)[0]["msg"]
        raise StoreFormat(f"{where} is of a form that this version of toolbus does not know: {first}") from exc


def agreed_from(data: bytes, fetch: Fetch) -> Mapping[str, Any]:
    """What was agreed for a request: see `whole`."""
    return orjson.loads(whole(data, fetch))


# ----------------------------------------------------------------------------------------------- the chain


def chain_start(request_id: str, conversation_id: str, agreed: bytes) -> bytes:
    """What the first fact's hash builds on."""
    return sha256(orjson.dumps([request_id, conversation_id, agreed.decode("utf-8", "replace")])).digest()


def conversation_start(conversation_id: str) -> bytes:
    """What the first message's hash builds on."""
    return sha256(conversation_id.encode("utf-8", "replace")).digest()


def chained(before: bytes, seq: int, step_end: int, data: bytes) -> bytes:
    """The hash of a row behind the one whose hash is `before`. Of a message, both places are its position."""
    return sha256(before + _PLACE.pack(seq, step_end) + data).digest()
