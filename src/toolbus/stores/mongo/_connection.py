"""A connection to MongoDB: collections and indexes, the server's clock, and error translation.

Imports the driver (extra `mongo`), and is itself imported when a `MongoStore` is made. Knows nothing about the content
of documents.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from time import monotonic
from typing import Any, TypeAlias

import pymongo
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from pymongo import MongoClient, ReadPreference, WriteConcern
from pymongo.collection import Collection
from pymongo.errors import (
    BulkWriteError,
    ConnectionFailure,
    ExecutionTimeout,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
)
from pymongo.operations import DeleteMany, DeleteOne, InsertOne, UpdateOne

from ...errors import StoreDamaged, StoreError, StoreUnavailable, UnsupportedStoreFormat
from .._encoding import Head, Heads

Document: TypeAlias = dict[str, Any]
_Operation: TypeAlias = UpdateOne | InsertOne[Document] | DeleteOne | DeleteMany

FORMAT = 1
"""The number of the format that this version writes. A database with a newer format is refused."""

FREE: Document = {"owner": "", "lease_until": 0.0}
"""The fields of a request whose lease nobody has."""

DUPLICATE = 11000
"""The code of an error about a unique key (MongoDB: src/mongo/base/error_codes.yml, DuplicateKey)."""

_INDEX_CONFLICTS = (85, 86)  # IndexOptionsConflict and IndexKeySpecsConflict in the same file
# In the same file, the errors of a router whose shard does not answer: HostUnreachable, HostNotFound, NetworkTimeout,
# FailedToSatisfyReadPreference, NetworkInterfaceExceededTimeLimit, ExceededTimeLimit and SocketException.
_NO_ANSWER = {6, 7, 89, 133, 202, 262, 9001}
# The time after which the server's clock is read again.
_CLOCK_SECONDS = 30.0
# The longest round trip whose answer is used: a slower one is too inexact.
_CLOCK_GRAIN_SECONDS = 0.25
# The most reads of the clock at the beginning, which end with a round trip as short as `_CLOCK_EXACT_SECONDS`.
_CLOCK_TRIES = 3
_CLOCK_EXACT_SECONDS = 0.005
_OWN_FAULTS = (BSONError, UnicodeError, OverflowError, TypeError, ValueError)
_OPTIONS: CodecOptions[Document] = CodecOptions(
    document_class=dict,
    tz_aware=True,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,  # returns dates that Python cannot represent as numbers
    unicode_decode_error_handler="replace",
)


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the fields of message documents, and of the collections."""

    session: str
    sender: str
    content: str
    kind: str
    timestamp: str
    data: str
    messages: str
    prefix: str

    @property
    def own(self) -> str:
        """The path of the field that toolbus adds to its message documents."""
        return f"{self.data}.toolbus"


class Server:
    """The data that the connections of one store share: how to reach the server, and the offset of its clock."""

    def __init__(
        self, url: str, shown: str, database: str, names: Names, *, syncs: bool, timeout_seconds: float
    ) -> None:
        self.url = url
        self.shown = shown
        self.database = database
        self.names = names
        self.timeout_seconds = timeout_seconds
        self.concern = WriteConcern(w="majority", j=True) if syncs else WriteConcern(w=1)
        self.is_prepared = False
        self._lock = threading.Lock()
        self._offset = math.nan
        self._asked_at: float | None = None
        self._newest = -math.inf

    def now(self, client: MongoClient[Document]) -> float:
        """Return seconds since the epoch by the server's clock, computed from its last answer.

        They are never less than those returned before.
        """
        moment = monotonic()
        if self._asked_at is None or moment - self._asked_at > _CLOCK_SECONDS:
            # On a busy machine one answer may take long. The first offset dates messages until the next one is known.
            tries, best = (_CLOCK_TRIES, math.inf) if self._asked_at is None else (1, _CLOCK_GRAIN_SECONDS)
            for _ in range(tries):
                before = monotonic()
                local = client.admin.command("hello")["localTime"]
                moment = monotonic()
                if moment - before < best:
                    best = moment - before
                    server = local.replace(tzinfo=local.tzinfo or UTC).timestamp()
                    self._offset = server - (before + moment) / 2
                    self._asked_at = moment
                if best < _CLOCK_EXACT_SECONDS:
                    break
        with self._lock:
            self._newest = max(self._newest, moment + self._offset)
            return moment_of(self._newest)


def moment_of(seconds: float) -> float:
    """Round a moment to milliseconds, the precision of MongoDB: such numbers come back unchanged from every server."""
    return round(seconds, 3)


class ServerConnection:
    """A client of the server, used by one thread.

    `deadline`, on the clock `time.monotonic`, is the moment by which the running call has to be done or have failed.
    `heads` are the ends of the journals that this connection has written itself, each with the ids of the last step and
    of the first; they may be out of date, which is safe, because each append is guarded by the condition of its update.
    `unreadable` are the ids of inputs that this connection could not read: each is logged once, and not read again.
    """

    def __init__(self, server: Server, deadline: float) -> None:
        self.deadline = deadline
        self.heads = Heads[tuple[Head, str, str]]()
        self.unreadable: set[str] = set()
        self.names = server.names
        self._server = server
        wait = int(server.timeout_seconds * 1_000)
        try:
            self._client: MongoClient[Document] = MongoClient(
                server.url, appname="toolbus", serverSelectionTimeoutMS=wait, connectTimeoutMS=wait
            )
        except Exception as exc:
            # An option, a file or a host's name is wrong: the client has not connected yet.
            raise StoreError(f"{self._where()}: {exc}") from exc
        database = self._client.get_database(
            server.database, _OPTIONS, read_preference=ReadPreference.PRIMARY, write_concern=server.concern
        )
        prefix = server.names.prefix
        self.messages: Collection[Document] = database[server.names.messages]
        self.requests: Collection[Document] = database[f"{prefix}requests"]
        self.steps: Collection[Document] = database[f"{prefix}steps"]
        self.inbox: Collection[Document] = database[f"{prefix}inbox"]
        self.conversations: Collection[Document] = database[f"{prefix}conversations"]
        self.turns: Collection[Document] = database[f"{prefix}turns"]
        self.blobs: Collection[Document] = database[f"{prefix}blobs"]
        self._info: Collection[Document] = database[f"{prefix}info"]
        try:
            if not server.is_prepared:
                with self.in_time():
                    self._prepare()
                server.is_prepared = True
        except Exception as exc:
            self.close()
            error = self.translated(exc)
            raise error from (None if error is exc else exc)

    def _prepare(self) -> None:
        self._info.update_one({"_id": "format"}, {"$setOnInsert": {"number": FORMAT}}, upsert=True)
        found = self._info.find_one({"_id": "format"})
        number = FORMAT if found is None else int(found["number"])
        if number > FORMAT:
            raise UnsupportedStoreFormat(
                f"{self._where()} was written by a newer toolbus, in format {number}; this version knows formats up to "
                f"{FORMAT}: upgrade toolbus"
            )
        names = self.names
        for collection, keys in (
            (self.messages, [names.session, names.timestamp]),
            (self.messages, [f"{names.own}.turn", names.timestamp]),
            (self.requests, ["ending", "lease_until"]),
            (self.inbox, ["state", "request_id", "position"]),
            (self.requests, ["ended_at"]),
            (self.requests, ["owner"]),
            (self.requests, ["conversation_id"]),
            (self.requests, ["started_at"]),
            (self.conversations, ["updated_at"]),
            (self.conversations, ["pending_turn"]),
            (self.conversations, ["forgotten"]),
        ):
            _index(collection, keys)
        _index(self.requests, ["has_turn"], sparse=True)

    @contextlib.contextmanager
    def in_time(self) -> Generator[None]:
        """Make the driver's calls in this block fail at the deadline."""
        with pymongo.timeout(max(0.01, self.deadline - monotonic())):
            yield

    def now(self) -> float:
        """Return seconds since the epoch, by the server's clock."""
        return self._server.now(self._client)

    # ----------------------------------------------------------------------------------------------- writing

    def insert(self, collection: Collection[Document], documents: Sequence[Document]) -> None:
        """Insert the documents that are not there yet. A document with the same id has the same content."""
        if not documents:
            return
        try:
            with _only_duplicates():
                collection.insert_many(documents, ordered=False)
        except _Duplicates as exc:
            ids = {each["op"]["_id"] for each in exc.result["writeErrors"]}
            # Otherwise a unique index of another application has refused one of them.
            if len([*collection.find({"_id": {"$in": [*ids]}}, ["_id"])]) < len(ids):
                raise BulkWriteError(dict(exc.result)) from exc

    def bulk(self, collection: Collection[Document], operations: Sequence[_Operation]) -> int:
        """Do all operations, whether or not each has an effect, and return how many have inserted or found a document.

        A duplicate is not inserted. Deletions are not counted.
        """
        if not operations:
            return 0
        try:
            with _only_duplicates():
                result = collection.bulk_write(operations, ordered=False).bulk_api_result
        except _Duplicates as exc:
            result = exc.result
        return result["nInserted"] + result["nUpserted"] + result["nMatched"]

    # ------------------------------------------------------------------------------------------------- errors

    def translated(self, exc: Exception) -> Exception:
        """Return the `StoreError` for an error of the database, and any other exception unchanged."""
        if isinstance(exc, StoreError):
            return exc
        where = self._where()
        if isinstance(exc, (PyMongoError, BSONError)):
            if _is_unavailable(exc):
                return StoreUnavailable(f"{where} is out of reach, or did not answer in time: {_words_of(exc)}")
            if isinstance(exc, BSONError):
                return StoreError(f"{where} cannot take a value: {exc}")
            return StoreError(f"{where}: {_words_of(exc)}")
        if isinstance(exc, (UnicodeError, OverflowError)):
            return StoreError(f"{where} cannot take a value: {exc}")
        if isinstance(exc, (KeyError, AttributeError)):
            return StoreDamaged(f"{where} has a document that is not as it was written: {exc!r}")
        return exc

    @contextlib.contextmanager
    def ignoring_errors(self) -> Generator[None]:
        """Ignore errors of the database in this block: the next reader does the work that it leaves undone."""
        try:
            yield
        except Exception as exc:
            if not isinstance(self.translated(exc), StoreError):
                raise

    def may_try_again(self, exc: Exception) -> bool:
        """Return whether the same call may work at once. It may be repeated, because ids prevent duplicates."""
        return isinstance(exc, ConnectionFailure) and not exc.timeout

    def is_broken(self, exc: Exception) -> bool:
        """Return whether a new client has to be made. A client replaces broken connections by itself."""
        return isinstance(exc, InvalidOperation)

    def close(self) -> None:
        """Close the client. Raises nothing."""
        with contextlib.suppress(PyMongoError):
            self._client.close()

    def _where(self) -> str:
        return f"database {self._server.database} at {self._server.shown}"


def is_own_fault(exc: Exception) -> bool:
    """Return whether the written values may be the cause of `exc`, so that other entries can be written."""
    return isinstance(exc, _OWN_FAULTS) and not isinstance(exc, StoreError)


def prefix_of(beginning: str) -> Document:
    """Return the condition for ids that start with `beginning` and a colon."""
    return {"$gte": f"{beginning}:", "$lt": f"{beginning};"}


def _index(collection: Collection[Document], keys: Sequence[str], **options: Any) -> None:
    """Create an index, unless there is one with another name or other options."""
    try:
        collection.create_index([*keys], name=f"toolbus_{'_'.join(keys)}"[:100], **options)
    except ExecutionTimeout as exc:
        shown = ", ".join(f'"{key}": 1' for key in keys)
        raise StoreUnavailable(
            f"{collection.full_name} is so large that an index takes too long; make it in the server's shell: "
            f"db.getCollection({collection.name!r}).createIndex({{{shown}}})"
        ) from exc
    except OperationFailure as exc:
        if exc.code not in _INDEX_CONFLICTS:
            raise


class _Duplicates(Exception):
    """Some documents of a bulk write existed already, and nothing else went wrong. `result` is the server's answer."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        super().__init__()
        self.result = result


@contextlib.contextmanager
def _only_duplicates() -> Generator[None]:
    try:
        yield
    except BulkWriteError as exc:
        faults: Sequence[Mapping[str, Any]] = exc.details["writeErrors"]
        others = [each for each in faults if each["code"] != DUPLICATE]
        if others or exc.details["writeConcernErrors"]:
            raise
        raise _Duplicates(exc.details) from exc


def _is_unavailable(exc: Exception) -> bool:
    if isinstance(exc, BulkWriteError):
        codes = {each["code"] for each in exc.details["writeErrors"]}
        return bool(exc.timeout or exc.details["writeConcernErrors"] or not codes.isdisjoint(_NO_ANSWER))
    if isinstance(exc, OperationFailure) and exc.code in _NO_ANSWER:
        return True
    return isinstance(exc, (ConnectionFailure, WriteConcernError)) or (
        isinstance(exc, PyMongoError) and bool(exc.timeout)
    )


def _words_of(exc: Exception) -> str:
    """Return the driver's error text without the values that were to be written."""
    if isinstance(exc, BulkWriteError):
        faults = [*exc.details.get("writeErrors", ()), *exc.details.get("writeConcernErrors", ())]
        return "; ".join(map(_words_of_fault, faults[:3]))
    if isinstance(exc, OperationFailure):
        return _words_of_fault({"errmsg": str(exc), "code": exc.code, **(exc.details or {})})
    return str(exc).partition(", Timeout:")[0]


def _words_of_fault(fault: Mapping[str, Any]) -> str:
    return f"{str(fault.get('errmsg')).partition(' dup key: ')[0]} (code {fault.get('code')})"
