"""Large values, compressed and in chunks, since a document may have at most 16 MiB.

Each value belongs to an owner, a request or a turn, and is deleted with it. Knows nothing about the values' content.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import accumulate, islice, pairwise
from typing import TypeAlias

from bson.binary import Binary
from pymongo.operations import DeleteMany

from .._encoding import Fetch
from ._connection import Document, ServerConnection, prefix_of

_Key: TypeAlias = tuple[str, bytes]  # an owner and a digest

_CHUNK_BYTES = 8 * 2**20
_AHEAD = 500  # values that are read together
_AHEAD_BYTES = 16 * 2**20
# The size of a value's first chunk. The first chunks of many values are read before the sizes of the values are known,
# and the server reads each document as a whole, even for a few of its fields.
_FIRST_BYTES = _AHEAD_BYTES // _AHEAD


def put_blobs(database: ServerConnection, owner: str, blobs: Mapping[bytes, bytes]) -> None:
    """Store large values for `owner`, by their digests."""
    documents: list[Document] = []
    for digest, data in sorted(blobs.items()):
        # This leaves a tenth to a half of a text, in less time than sending the rest would take.
        packed = zlib.compress(data, 1)
        bounds = [0, *range(_FIRST_BYTES, len(packed), _CHUNK_BYTES), len(packed)]
        size = {"chunks": len(bounds) - 1, "size_bytes": len(data)}
        for number, (start, end) in enumerate(pairwise(bounds)):
            documents.append({"_id": _chunk_id((owner, digest), number), **size, "data": Binary(packed[start:end])})
    database.insert(database.blobs, documents)


def delete_blobs(database: ServerConnection, owners: Iterable[str]) -> None:
    """Delete the large values of these owners."""
    database.bulk(database.blobs, [DeleteMany({"_id": prefix_of(_owner_id(owner))}) for owner in owners])


class Blobs:
    """The large values of several owners, each compared with its digest.

    `wanted` are the values in the order in which they will be needed. The next of them are read together, since each
    query takes a round trip to the server: at most `_AHEAD`, and `_AHEAD_BYTES` or one value. Only these are kept, so
    that a long journal is not in memory twice. Any other value is read by itself, and not kept.
    """

    def __init__(self, database: ServerConnection, wanted: Iterable[_Key] = ()) -> None:
        self._database = database
        self._wanted = [*wanted]
        self._next = 0
        self._kept: dict[_Key, bytes] = {}

    def of(self, owner: str) -> Fetch:
        """Return a function that fetches the values of one owner."""
        return partial(self._value, owner)

    def _value(self, owner: str, digest: bytes) -> bytes:
        key = owner, digest
        found = self._kept
        if key not in found:
            try:
                self._next = self._wanted.index(key, self._next)
            except ValueError:
                found = self._read([key])
            else:
                found = self._kept = self._read([*dict.fromkeys(self._wanted[self._next : self._next + _AHEAD])])
        if key not in found:
            raise KeyError(f"the large text {digest.hex()} is missing, or was changed")
        return found[key]

    def _read(self, keys: Sequence[_Key]) -> dict[_Key, bytes]:
        """Return the first of these values that are not too large together."""
        chunks = self._chunks([_chunk_id(key, 0) for key in keys])
        firsts = {key: chunks[name] for key in keys if (name := _chunk_id(key, 0)) in chunks}
        total = accumulate(each["size_bytes"] for each in firsts.values())
        some = islice(firsts.items(), max(1, sum(each <= _AHEAD_BYTES for each in total)))
        ids = {key: [_chunk_id(key, number) for number in range(first["chunks"])] for key, first in some}
        chunks |= self._chunks([name for names in ids.values() for name in names[1:]])
        values = {
            key: _unpacked(b"".join(bytes(chunks[name]["data"]) for name in names if name in chunks))
            for key, names in ids.items()
        }
        return {key: data for key, data in values.items() if sha256(data).digest() == key[1]}

    def _chunks(self, ids: Sequence[str]) -> dict[str, Document]:
        return {each["_id"]: each for each in self._database.blobs.find({"_id": {"$in": ids}})} if ids else {}


def _owner_id(owner: str) -> str:
    return sha256(owner.encode("utf-8", "replace")).hexdigest()[:32]


def _chunk_id(key: _Key, number: int) -> str:
    return f"{_owner_id(key[0])}:{key[1].hex()}:{number:04d}"


def _unpacked(data: bytes) -> bytes:
    try:
        return zlib.decompress(data)
    except zlib.error:
        return b""
