"""The command's store: opening it, and the look-ups in it before a request begins.

A store that cannot be opened is reported in one line. This module imports the database driver, so it must be imported
only where something is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio

from ..core.plain_text import clean, one_line
from ..errors import ConfigurationError, StoreError
from ..storage import ConversationRecord, Entry, PruneReport, RequestRecord
from ..stores.sql import find as _finding
from ..stores.sql.find import FoundRequest
from ..stores.sqlite import SqliteStore
from ._store_location import StoreLocation, location_of
from ._terminal.screen import Screen
from ._terminal.text import cut

COMMAND = "command"
"""The key, in a request's `agreed` record, of the command line options that the request was begun with."""

SERVED = "served"
"""The key in `COMMAND` that marks the requests of `toolbus serve`, which continues those that it has left."""

_MAX_REQUESTS = 1_000  # requests that are looked at
_PROMPT_COLUMNS = 60


class CommandStore(SqliteStore):
    """A `SqliteStore` that also keeps the command line options of a request, so that `toolbus resume` can reuse them.

    `command` holds the options of the requests that begin in this process.
    """

    def __init__(self, path: Path, command: Mapping[str, Any] | None = None) -> None:
        super().__init__(path)
        self._command = dict(command or {})

    async def append(self, entry: Entry) -> int:
        """Append an entry, as `JournalStore.append` does; the first entry of a request also gets the `command`."""
        if entry.seq == 0 and self._command:
            entry = replace(entry, agreed={**(entry.agreed or {}), COMMAND: self._command})
        return await super().append(entry)

    def continues(self, request: RequestRecord) -> bool:
        """Return whether this process continues the unfinished request by itself."""
        return SERVED in self._command and request.agreed.get(COMMAND) == self._command

    async def unfinished(self, *, limit: int = _MAX_REQUESTS) -> Sequence[RequestRecord]:
        """Return what `JournalStore.unfinished` does; for `toolbus serve`, only what an equal command has begun."""
        if SERVED not in self._command:
            return await super().unfinished(limit=limit)
        return [each for each in await super().unfinished(limit=_MAX_REQUESTS) if self.continues(each)][:limit]

    async def found_requests(
        self, *, conversation_id: str | None = None, is_unfinished: bool = False
    ) -> Sequence[FoundRequest]:
        """Return requests with their prompts: see `toolbus.stores.sql.find.requests`."""
        return await self._read(_finding.requests, conversation_id, is_unfinished, _MAX_REQUESTS)

    async def prunable(self, *, before: float, conversations: bool) -> PruneReport:
        """Return the counts of what `prune` would delete."""
        return await self._read(_finding.prunable, before, conversations)

    async def conversation(self, given: str) -> ConversationRecord | None:
        """Return the conversation with this id, or with the only id that begins like this, or None.

        Raises `ConfigurationError` if several ids begin like this.
        """
        found = await self._named("conversation", given)
        return None if found is None else await self._read(_finding.conversation, found)

    async def request_named(self, given: str) -> RequestRecord | None:
        """Return the request with this id, or with the only id that begins like this, or None.

        Raises `ConfigurationError` if several ids begin like this.
        """
        found = await self._named("request", given)
        return None if found is None else await self.request(found)

    async def _named(self, kind: Literal["conversation", "request"], given: str) -> str | None:
        # The database refuses lone surrogates. No id contains them, so replacing them changes no result.
        given = given.encode("utf-8", "replace").decode()
        found = await self._read(_finding.ids_that_begin, kind, given)
        if len(found) > 1:
            raise ConfigurationError(f"several {kind}s begin with {given!r}: pass more of the id")
        return found[0] if found and given else None


@dataclass(slots=True, frozen=True)
class OpenStore:
    """An open store with its location, and the `conversation` that is being continued, if any."""

    store: CommandStore
    location: StoreLocation
    conversation: ConversationRecord | None = None

    @property
    def is_asked_for(self) -> bool:
        """True if the user named the store, instead of getting the default one."""
        return bool(self.location.asked_by)


# ------------------------------------------------------------------------------------------------- opening


def open_store_for(options: argparse.Namespace, screen: Screen, command: Mapping[str, Any]) -> OpenStore | None:
    """Open the store of `ask` and `chat`, with the conversation to continue; return None where nothing is kept.

    Reports unfinished requests that can be resumed. Raises `ConfigurationError` if a store that the user named cannot
    be used, and if the conversation does not exist. If the default store cannot be used, this is reported, and None is
    returned.
    """
    location = location_of(options, os.environ)
    wanted: str | None = options.continue_
    if location is None:
        assert wanted is not None
        raise ConfigurationError("--continue needs a store, and nothing is kept here (--no-store, or TOOLBUS_STORE)")
    try:
        store = CommandStore(_made(location), command)
        conversation, waiting = anyio.run(partial(_look, store, wanted, notes=not options.quiet))
    except (StoreError, OSError) as exc:
        if location.asked_by or wanted is not None:
            raise ConfigurationError(f"{location.asked_by or '--continue'}: {_said(exc)}") from exc
        if not options.quiet:
            screen.report(clean(f"toolbus: nothing is kept: {_said(exc)}; --store PATH names another file"))
        return None
    if waiting:
        screen.remark(clean(_remark(waiting, location)))
    return OpenStore(store, location, conversation)


def existing(options: argparse.Namespace) -> tuple[CommandStore, StoreLocation] | None:
    """Return the existing store, for commands that inspect it, or None if the default one was never created.

    Raises `ConfigurationError` where nothing is kept, and for a path that does not exist.
    """
    location = location_of(options, os.environ)
    if location is None:
        raise ConfigurationError("nothing is kept here (TOOLBUS_STORE=none); --store PATH names a store")
    if location.path is None or not _is_there(location.path):
        if location.asked_by:
            raise ConfigurationError(f"{location.asked_by}: there is no store {location.path}")
        return None
    return CommandStore(location.path), location


def _is_there(path: Path) -> bool:
    """Return whether the path exists. Raises `ConfigurationError` if the system cannot say."""
    try:
        path.stat()  # `Path.exists` would hide all errors, from Python 3.14 on.
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as exc:
        raise ConfigurationError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    return True


def _made(location: StoreLocation) -> Path:
    """Return the file's path, after creating the folder of the default one. Raises `OSError`."""
    if location.path is None:
        raise OSError("there is no home folder")
    if not location.asked_by:
        location.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return location.path


def _said(exc: Exception) -> str:
    if isinstance(exc, OSError) and exc.strerror:
        return f"{exc.filename}: {exc.strerror}" if exc.filename else exc.strerror
    return one_line(str(exc))


# ------------------------------------------------------------------------------------------------- look-ups


async def _look(
    store: CommandStore, wanted: str | None, *, notes: bool
) -> tuple[ConversationRecord | None, Sequence[FoundRequest]]:
    try:
        await store.open()
        conversation = None if wanted is None else await conversation_of(store, wanted)
        waiting = await store.found_requests(is_unfinished=True) if notes else ()
    except BaseException:
        await store.aclose()
        raise
    # The store stays open: the request's runtime, on another event loop, uses it next and closes it.
    left = [each for each in waiting if holder_of(each.record) in ("nobody", "gone")]
    return conversation, [each for each in left if not store.continues(each.record)]


async def conversation_of(store: CommandStore, wanted: str) -> ConversationRecord:
    """Return the conversation with this id, or with an id that begins like this; the newest one for an empty text.

    Raises `ConfigurationError` if it does not exist.
    """
    if not wanted:
        newest = await store.conversations(limit=1)
        if not newest:
            raise ConfigurationError(f"--continue: there is no conversation yet in {store.path}")
        return newest[0]
    found = await store.conversation(wanted)
    if found is not None:
        return found
    raise ConfigurationError(
        f"--continue: there is no conversation {wanted!r}; toolbus store list shows the existing ones"
    )


Holder = Literal["nobody", "gone", "running", "elsewhere"]


def holder_of(record: RequestRecord) -> Holder:
    """Return the kind of holder of an unfinished request.

    That is nobody (any more), a process of this machine that is gone or still runs, or a process elsewhere. The lease
    of a process that is gone is still valid for a few seconds. Process ids are those that this process sees: inside a
    container, a process of the host may seem to be gone. The result is therefore only for display, and never a reason
    to take the request.
    """
    if not record.owner or record.lease_until <= time.time():
        return "nobody"
    host, _, rest = record.owner.partition(":")
    number = rest.partition(":")[0]
    # On Windows, os.kill would end the process instead of checking it.
    if host != socket.gethostname() or not number.isdecimal() or os.name == "nt":
        return "elsewhere"
    return "running" if _is_running(int(number)) else "gone"


def _is_running(number: int) -> bool:
    try:
        os.kill(number, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # The process exists and belongs to another user.
    return True


def _remark(waiting: Sequence[FoundRequest], location: StoreLocation) -> str:
    resume = f"toolbus resume{location.options}"
    if len(waiting) == 1:
        prompt = cut(one_line(waiting[0].prompt), _PROMPT_COLUMNS)
        unfinished = f'a request from {ago(waiting[0].record.started_at)} is unfinished ("{prompt}")'
        return f"toolbus: {unfinished}: {resume} continues it, {resume} --abandon drops it"
    return f"toolbus: {len(waiting)} requests are unfinished: {resume} continues them, {resume} --abandon drops them"


def ago(moment: float) -> str:
    """Describe a past moment (in seconds since the epoch) in words, such as "5 minutes ago"."""
    seconds = time.time() - moment
    for name, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name} ago"
    return "a moment ago" if seconds < 60 else "a minute ago"


@contextlib.asynccontextmanager
async def opened_store(store: CommandStore) -> AsyncGenerator[None]:
    """Open the store, and close it at the end. Raises `StoreError`."""
    async with contextlib.aclosing(store):
        await store.open()
        yield
