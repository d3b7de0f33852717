"""The command's store: opened, or told in one line why not; what is looked up in it before a request begins.

Imports the database's driver: to be imported only where something is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio

from ..core.plain_text import clean, one_line
from ..errors import ConfigurationError, StoreError
from ..storage import ConversationRecord, Entry, Pruned, RequestRecord
from ..stores._sql import find as _finding
from ..stores._sql.find import FoundRequest
from ..stores.sqlite import SqliteStore
from ._store_place import Place, place_of
from ._terminal.screen import Screen
from ._terminal.text import cut

__all__ = ["COMMAND", "Kept", "KeptStore", "ago", "closing", "conversation_of", "existing", "kept_for", "run", "whose"]

COMMAND = "command"
"""In what is agreed for a request: how it was asked for on the command line."""

_MOST = 1_000  # requests or ids that are looked at
_PROMPT_COLUMNS = 60
_T = TypeVar("_T")


class KeptStore(SqliteStore):
    """A `SqliteStore` that also keeps how a request was asked for, so that `toolbus resume` knows what it needs.

    `command` is that of the requests which are begun here.
    """

    def __init__(self, path: Path, command: Mapping[str, Any] | None = None) -> None:
        super().__init__(path)
        self._command = dict(command or {})

    async def append(self, entry: Entry) -> int:
        """See `JournalStore.append`."""
        if entry.seq == 0 and self._command:
            entry = replace(entry, agreed={**(entry.agreed or {}), COMMAND: self._command})
        return await super().append(entry)

    async def requests(
        self, *, conversation_id: str | None = None, is_unfinished: bool = False, limit: int = _MOST
    ) -> Sequence[FoundRequest]:
        """Requests with their prompts: see `toolbus.stores._finding.requests`."""
        look = partial(_finding.requests, conversation_id=conversation_id, is_unfinished=is_unfinished, limit=limit)
        return await self._read(look)

    async def prunable(self, *, before: float, conversations: bool) -> Pruned:
        """What `prune` would delete."""
        return await self._read(lambda database: _finding.prunable(database, before, conversations=conversations))

    async def conversation(self, given: str) -> ConversationRecord | None:
        """The conversation with this id, or with the one id that begins so. Raises `ConfigurationError` for several."""
        found = await self._named("conversation", given)
        return None if found is None else await self._read(lambda database: _finding.conversation(database, found))

    async def request_named(self, given: str) -> RequestRecord | None:
        """The request with this id, or with the one id that begins so. Raises `ConfigurationError` for several."""
        found = await self._named("request", given)
        return None if found is None else await self.request(found)

    async def _named(self, kind: Literal["conversation", "request"], given: str) -> str | None:
        given = given.encode("utf-8", "replace").decode()  # what no id has, the database would not even look for
        found = await self._read(lambda database: _finding.ids_that_begin(database, kind, given, 2))
        if len(found) > 1:
            raise ConfigurationError(f"several {kind}s begin with {given!r}: give more of the id")
        return found[0] if found and given else None


@dataclass(slots=True, frozen=True)
class Kept:
    """What a request is kept in. `conversation` is the one that goes on, if any."""

    store: KeptStore
    place: Place
    conversation: ConversationRecord | None = None

    @property
    def is_asked_for(self) -> bool:
        """Whether somebody named the store, and did not just get the default one."""
        return bool(self.place.asked_by)


def run(function: Callable[..., Awaitable[_T]], *arguments: Any) -> _T:
    """What an async function returns, on a loop of its own."""

    async def done() -> _T:
        return await function(*arguments)

    return anyio.run(done)


# ------------------------------------------------------------------------------------------------- opening


def kept_for(options: argparse.Namespace, screen: Screen, command: Mapping[str, Any]) -> Kept | None:
    """The store of `ask` and `chat`, ready, with the conversation that they go on with; None where nothing is kept.

    Tells of requests that wait to be gone on with. Raises `ConfigurationError` for a place that was asked for and
    cannot be had, and for a conversation that is not there; without the default place it goes on, and says so.
    """
    place = place_of(options, os.environ)
    wanted: str | None = options.continue_
    if place is None:
        assert wanted is not None
        raise ConfigurationError("--continue needs a store, and nothing is kept here (--no-store, or TOOLBUS_STORE)")
    try:
        store = KeptStore(_made(place), command)
        looks = partial(_look, store, wanted, tells=not options.quiet)
        conversation, waiting = run(looks)
    except (StoreError, OSError) as exc:
        if place.asked_by or wanted is not None:
            raise ConfigurationError(f"{place.asked_by or '--continue'}: {_said(exc)}") from exc
        if not options.quiet:
            screen.tell(clean(f"toolbus: nothing is kept: {_said(exc)}; --store PATH names another place"))
        return None
    if waiting:
        screen.remark(clean(_remark(waiting, place)))
    return Kept(store, place, conversation)


def existing(options: argparse.Namespace) -> tuple[KeptStore, Place] | None:
    """The store that there is, for commands that look into it. None where the default one was never made.

    Raises `ConfigurationError` where none is kept, and for a path with nothing there.
    """
    place = place_of(options, os.environ)
    if place is None:
        raise ConfigurationError("TOOLBUS_STORE is none, so nothing is kept; --store PATH names a store")
    if place.path is None or not _is_there(place.path):
        if place.asked_by:
            raise ConfigurationError(f"{place.asked_by}: there is no store {place.path}")
        return None
    return KeptStore(place.path), place


def _is_there(path: Path) -> bool:
    """Whether there is something. Raises `ConfigurationError` where that cannot be looked up."""
    try:
        return path.exists()
    except OSError as exc:
        raise ConfigurationError(f"{path} cannot be looked for: {exc.strerror or exc}") from exc


def _made(place: Place) -> Path:
    """The file's path, whose folder is there. Raises `OSError`."""
    if place.path is None:
        raise OSError("there is no home folder")
    if not place.asked_by:
        place.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return place.path


def _said(exc: Exception) -> str:
    if isinstance(exc, OSError) and exc.strerror:
        return f"{exc.filename}: {exc.strerror}" if exc.filename else exc.strerror
    return one_line(str(exc))


# ------------------------------------------------------------------------------------------------- looking


async def _look(
    store: KeptStore, wanted: str | None, *, tells: bool
) -> tuple[ConversationRecord | None, Sequence[FoundRequest]]:
    try:
        await store.open()
        conversation = None if wanted is None else await conversation_of(store, wanted)
        waiting = await store.requests(is_unfinished=True) if tells else ()
    except BaseException:
        await store.aclose()
        raise
    # It stays open: the request's runtime, on another loop, goes on with it and closes it.
    return conversation, [each for each in waiting if whose(each.record) in ("nobody", "gone")]


async def conversation_of(store: KeptStore, wanted: str) -> ConversationRecord:
    """The conversation with this id, or with an id that begins so; the newest one for an empty text.

    Raises `ConfigurationError` where there is none.
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
        f"--continue: there is no conversation {wanted!r}; toolbus store list shows those there are"
    )


Whose = Literal["nobody", "gone", "running", "elsewhere"]


def whose(record: RequestRecord) -> Whose:
    """Who holds an unfinished request: nobody (any more), a process of this machine that is gone or runs, another one.

    Of a process that is gone the lease still runs for a few seconds. Process numbers are those that this process sees:
    from within a container, one of the machine may seem to be gone. So this is for telling, and never for taking.
    """
    if not record.owner or record.lease_until <= time.time():
        return "nobody"
    host, _, rest = record.owner.partition(":")
    number = rest.partition(":")[0]
    if host != socket.gethostname() or not number.isdigit() or os.name == "nt":  # there os.kill would end it
        return "elsewhere"
    return "running" if _is_running(int(number)) else "gone"


def _is_running(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


def _remark(waiting: Sequence[FoundRequest], place: Place) -> str:
    resume = f"toolbus resume{place.options}"
    if len(waiting) == 1:
        prompt = cut(one_line(waiting[0].prompt), _PROMPT_COLUMNS)
        told = f'a request of {ago(waiting[0].record.begun_at)} is unfinished ("{prompt}")'
        return f"toolbus: {told}: {resume} goes on with it, {resume} --abandon drops it"
    return f"toolbus: {len(waiting)} requests are unfinished: {resume} goes on with them, {resume} --abandon drops them"


def ago(moment: float) -> str:
    """A moment that is past, as people say it."""
    seconds = max(0.0, time.time() - moment)
    for name, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name} ago"
    return "a moment ago" if seconds < 60 else "a minute ago"


def closing(store: KeptStore) -> contextlib.AbstractAsyncContextManager[KeptStore]:
    """The store, which is closed at the end."""
    return contextlib.aclosing(store)
