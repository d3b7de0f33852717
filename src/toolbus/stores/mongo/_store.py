"""`MongoStore`: the options, the two threads, and the calls of the protocols.

The functions on documents are in `_engine`, which imports the driver and is imported when the first store is made.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, get_args
from uuid import uuid4

from ..._option_checks import POSITIVE, check, one_of
from ...errors import ConfigurationError, MissingExtra, StoreError
from ...events import Event
from ...messages import Message
from ...storage import Durability, Entry, InboxReceipt, PruneReport, RequestRecord
from .._encoding import searchable, turn_of
from .._thread import TIMEOUT_SECONDS
from .._threaded_store import ThreadedStore

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,119}")
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNQUOTED = "percent-encode user name and password in it, for example with urllib.parse.quote_plus"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFields:
    """The names of the fields of message documents. The defaults are typical of support chat applications."""

    session: str = "sessionId"
    sender: str = "sender"
    content: str = "content"
    kind: str = "messageType"
    timestamp: str = "timestamp"
    data: str = "data"


class MongoStore(ThreadedStore[Any]):
    """A store in the database `database` of a MongoDB server or replica set: see `Store`, `JournalStore` and `Inbox`.

        MongoStore("mongodb://127.0.0.1:27017")
        MongoStore("mongodb+srv://user:password@cluster.example.net", "assistant", messages="messages")

    **Conversations** are documents in the collection `messages`, in a form that is typical of support chat
    applications: `sessionId`, `sender`, `content`, `messageType`, `timestamp`, `data.toolCalls` and `data.toolResults`;
    `fields` gives them other names. toolbus writes one document for each prompt and each reply, with the reply's calls
    and their results, and keeps the exact messages in `data.toolbus` of the same document. Documents of other
    applications are read too, in the order of `timestamp`, then `_id`, and repaired to a valid transcript; so is a
    document of toolbus that another application has edited. A document that it has deleted is missing.
    `conversation_id` is the session's id as text; a session with an ObjectId is found by the 24 digits of the ObjectId.

    **Atomicity.** The server needs no transactions: it changes one document at a time atomically, and each of these
    changes decides:

    - A step is written by the update of its request's document, with epoch and position as the condition: of two
      writers at one position only one succeeds, and a process whose lease was taken does not. The step's own document
      is inserted before. A process that dies in between leaves a step that no request leads to: it is never read, and
      is deleted with the request.
    - An ending is written by the same kind of update, with the turn's messages in it. A process that dies after it
      leaves a turn that is not among the messages yet: the next reader of the conversation or of the list, in any
      process, adds it, by the turn's id and so only once. Readers through toolbus never see the ending without the
      turn; another application may, until then.
    - An input from another process stops waiting by the update of its request's document that ends the step with it.
    - A turn is added to its conversation through the conversation's own document: the turn is noted there as pending,
      its messages are inserted, and the end is moved after them. Any process that finds a pending turn completes it.
      Readers through toolbus see the whole turn or nothing; another application may see its first messages before.
    - Everything that is deleted is marked first. If the process dies, the next deletion continues; the deletion of a
      conversation is also continued by its next reader.

    `timeout_seconds` is the time in which each call is done or fails. `durability` sets what a commit survives. With
    "power" a majority of the replica set has it in its journal on disk (`w="majority", j=True`). With "process" the
    primary has accepted it (`w=1`): it survives the end of this process; a crash of the server, or a change of the
    primary, may lose the newest commits.

    Leases use the server's clock, which is read every 30 seconds. Texts of at least 16 KiB, and other values of more
    than 1 MiB, are stored apart, in compressed chunks of at most 8 MiB, so the limit of 16 MiB per document does not
    apply; a value that takes longer than `timeout_seconds` to send is refused with `StoreUnavailable`. Errors:
    `StoreUnavailable` for a server that is out of reach, has no primary or does not answer in time; `StoreError` for
    values and commands that it refuses; `StoreDamaged`. The driver reconnects by itself. Needs MongoDB 4.4 or newer; on
    a sharded cluster, reads and writes use the primaries of the shards. Raises `MissingExtra` without pymongo, and
    `ConfigurationError` for an invalid URL or name.

    Beside `messages` there are the collections `requests`, `steps`, `inbox`, `conversations`, `turns`, `blobs` and
    `info`, whose names begin with `prefix`. `conversations` includes those of other applications, where each document
    counts as a message; `statistics` counts none of their documents, and `forget` deletes them too. The server does the
    search, except in long texts and in tool results of other applications. Two threads, each with a client, start at
    their first job: one writes and one reads.

    Example:
        from toolbus import Runtime
        from toolbus.stores.mongo import MessageFields, MongoStore

        fields = MessageFields(session="chatId", content="text")  # where the application keeps them already
        store = MongoStore("mongodb://127.0.0.1:27017", "shop", messages="chat_messages", fields=fields)
        runtime = Runtime("extractive", store=store)
    """

    def __init__(
        self,
        url: str,
        database: str = "toolbus",
        *,
        messages: str = "messages",
        prefix: str = "toolbus_",
        fields: MessageFields | None = None,
        durability: Durability = "power",
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        check("durability", durability, one_of(*get_args(Durability)))
        check("timeout_seconds", timeout_seconds, POSITIVE)
        called = _names(messages, prefix, fields or MessageFields())
        engine = self._engine = _engine()
        self.database = database
        self.durability = durability
        shown = _checked(url, database)
        names = engine.Names(**called)
        syncs = durability == "power"
        server = engine.Server(url, shown, database, names, syncs=syncs, timeout_seconds=timeout_seconds)
        super().__init__(
            f"toolbus MongoDB {database}",
            engine,
            lambda deadline, _reads: engine.ServerConnection(server, deadline),
            engine.append_all,
            timeout_seconds,
        )

    async def open(self) -> None:
        """Connect, check that the database can be used, and create its indexes if they are missing.

        Otherwise the first call does so. Raises `StoreError`, whose text says what is wrong.
        """
        await self._write(lambda database: database.now())

    def _around(self, database: Any, *, reads: bool) -> AbstractContextManager[None]:
        del reads
        return database.in_time()

    # ----------------------------------------------------------------------------------------- conversations

    async def remember(self, conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> None:
        """See `Store.remember`."""
        _check_id(conversation_id)
        turn = turn_of(conversation_id, messages, request_id=request_id)
        await self._write(self._engine.remember, turn, _token())

    async def forget(self, conversation_id: str) -> bool:
        """See `Store.forget`. Also deletes the conversation's documents of other applications."""
        marked: list[str] = []
        return await self._write(self._engine.forget, conversation_id, marked)

    # -------------------------------------------------------------------------------------------- the journal

    async def append(self, entry: Entry) -> int:
        """See `JournalStore.append`. All waiting entries are sent together."""
        _check_id(entry.request_id)
        _check_id(entry.conversation_id)
        return await self._writer.append(self._engine.Step(await self._encoded(entry), _token()))

    async def take(self, request_id: str, owner: str, seconds: float) -> RequestRecord | None:
        """See `JournalStore.take`."""
        return await self._write(self._engine.take, request_id, owner, seconds, _token())

    async def abandon(self, request_id: str, epoch: int) -> bool:
        """See `JournalStore.abandon`."""
        return await self._write(self._engine.abandon, request_id, epoch, _token())

    async def take_turn(self, conversation_id: str, request_id: str, owner: str, seconds: float) -> bool:
        """See `JournalStore.take_turn`."""
        _check_id(conversation_id)
        return await self._write(self._engine.take_turn, conversation_id, request_id, owner, seconds)

    # ---------------------------------------------------------------------------------------------- the inbox

    async def send(self, event: Event) -> InboxReceipt:
        """See `Inbox.send`."""
        _check_id(event.event_id)
        return await super().send(event)

    # ------------------------------------------------------------------------------------------------ deleting

    async def prune(self, *, before: float, conversations: bool = False) -> PruneReport:
        """See `JournalStore.prune`. Keeps conversations in which other applications have written.

        Uses many small jobs, with appends in between; may be cancelled.
        """
        done = PruneReport()
        while some := await self._write(self._engine.prune_requests, before):
            done += some
            if not some.requests:
                break
        # Most of them were deleted with their requests.
        await self._write(self._engine.drop_old_turns, before)
        after: str | None = None
        while conversations:
            some, after = await self._write(self._engine.prune_conversations, before, after)
            done += some
            conversations = after is not None
        return done


def _engine():  # noqa: ANN202 -- a module, whose own names are its type
    """Return the module whose functions need the driver; it is imported when the first store is made."""
    try:
        import_module("pymongo")
    except ImportError as exc:
        raise MissingExtra("mongo", "pymongo") from exc
    from . import _engine as _mongo_engine  # noqa: PLC0415 -- it imports an extra

    return _mongo_engine


def _names(messages: str, prefix: str, called: MessageFields) -> dict[str, str]:
    """Return the names of fields and collections. Raises `ConfigurationError` for an invalid name."""
    for what, name in (("messages", messages), ("prefix", f"{prefix}info")):
        if not _NAME.fullmatch(name) or name.startswith("system."):
            raise ConfigurationError(f"{what} is {name!r}; pass letters, digits and underscores")
    if messages in {
        f"{prefix}{own}" for own in ("requests", "steps", "inbox", "conversations", "turns", "blobs", "info")
    }:
        raise ConfigurationError(
            f"messages is {messages!r}, a collection that toolbus uses itself; pass another name or prefix"
        )
    names = {each.name: getattr(called, each.name) for each in fields(called)}
    if not all(_FIELD.fullmatch(name) for name in names.values()) or len({*names.values()}) < len(names):
        raise ConfigurationError(f"fields is {called}; pass different names of letters, digits and underscores")
    return {**names, "messages": messages, "prefix": prefix}


def _checked(url: str, database: str) -> str:
    """Return the URL without login and options. Raises `ConfigurationError` for an invalid URL or database name."""
    from pymongo.errors import PyMongoError  # noqa: PLC0415 -- an extra
    from pymongo.uri_parser import parse_uri  # noqa: PLC0415 -- an extra

    # The URL is split as the driver does it: `urlsplit` would take a password up to a `#` in it for the host.
    scheme, _, rest = url.partition("://")
    authority = rest.partition("?")[0].partition("/")[0]
    login, _, hosts = authority.rpartition("@")
    why: object = None
    if not url.startswith("mongodb+srv://"):
        try:
            parse_uri(url)
        except (PyMongoError, ValueError, OSError) as exc:
            # With an `@` later in the URL, the password has a `/` or `?`, and the driver's text may quote a part of it.
            why = _UNQUOTED if "@" in rest[len(authority) :] else exc
    elif not login and ":" in hosts:
        # Parsing would make the driver query name servers. A host of this scheme has no port.
        why = _UNQUOTED
    if why is not None:
        raise ConfigurationError(f"the URL is not a valid MongoDB URL: {why}")
    if not re.fullmatch(r"[^\s/\\.\"$*<>:|?\0]{1,63}", database):
        raise ConfigurationError(f"database is {database!r}; pass a name of letters, digits and underscores")
    return f"{scheme}://{hosts}"


def _check_id(given: str) -> None:
    """Refuse an id that not all applications, drivers and indexes support: with NUL or with a lone surrogate."""
    if "\0" in given or searchable(given) != given:
        raise StoreError(f"{given!r} cannot be an id in MongoDB: it contains a NUL or a lone surrogate")


def _token() -> str:
    return uuid4().hex
