"""Large values, compressed and in chunks, since a document may have at most 16 MiB.

Each value belongs to an owner, a request or a turn, and is deleted with it. Knows nothing about the values' content.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import islice, pairwise
from typing import TypeAlias

from bson.binary import Binary
from pymongo.operations import DeleteMany

from .._encoding import Fetch
from .._read_ahead import MAX_BYTES, MAX_VALUES, ReadAhead, fitting
from ._connection import Document, ServerConnection, prefix_of

_Key: TypeAlias = tuple[str, bytes]  # an owner and a digest

_CHUNK_BYTES = 8 * 2**20
# The size of a value's first chunk. The first chunks of many values are read before the sizes of the values are known,
# and the server reads each document as a whole, even for a few of its fields.
_FIRST_BYTES = MAX_BYTES // MAX_VALUES


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

    `wanted` are those that will be needed, in this order: see `ReadAhead`.
    """

    def __init__(self, database: ServerConnection, wanted: Iterable[_Key] = ()) -> None:
        # A method of this object would refer to it: only the garbage collector would free the values.
        self._values = ReadAhead(partial(_read, database), wanted)

    def of(self, owner: str) -> Fetch:
        """Return a function that fetches the values of one owner."""
        return lambda digest: self._values.value((owner, digest), digest)


def _read(database: ServerConnection, keys: Sequence[_Key]) -> dict[_Key, bytes]:
    """Return the first of these values that are not too large together."""
    chunks = _chunks(database, [_chunk_id(key, 0) for key in keys])
    firsts = {key: chunks[name] for key in keys if (name := _chunk_id(key, 0)) in chunks}
    some = islice(firsts.items(), fitting(each["size_bytes"] for each in firsts.values()))
    ids = {key: [_chunk_id(key, number) for number in range(first["chunks"])] for key, first in some}
    chunks |= _chunks(database, [name for names in ids.values() for name in names[1:]])
    values = {
        key: _unpacked(b"".join(bytes(chunks[name]["data"]) for name in names if name in chunks))
        for key, names in ids.items()
    }
    return {key: data for key, data in values.items() if sha256(data).digest() == key[1]}


def _chunks(database: ServerConnection, ids: Sequence[str]) -> dict[str, Document]:
    return {each["_id"]: each for each in database.blobs.find({"_id": {"$in": ids}})} if ids else {}


def _owner_id(owner: str) -> str:
    return sha256(owner.encode("utf-8", "replace")).hexdigest()[:32]


def _chunk_id(key: _Key, number: int) -> str:
    return f"{_owner_id(key[0])}:{key[1].hex()}:{number:04d}"


def _unpacked(data: bytes) -> bytes:
    try:
        return zlib.decompress(data)
    except zlib.error:
        return b""
