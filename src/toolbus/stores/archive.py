"""Archives of stores: verify all data of a store, export it to a file of JSON lines, import it into another store.

Works with any store that implements `Archive` beside the protocols of `toolbus.storage`, so data can be moved from one
kind of store to another. Knows no database.

The file has a header; then the requests that have ended, with their facts and the inputs in their inboxes, the
conversations with their messages, and the other requests; and an end with their numbers. Each line is a JSON object.
Its last field is a hash of the line and of all lines before it, so a line that was changed, lost or moved is noticed,
and so is a file whose end is missing.

Example:
    import tempfile
    from pathlib import Path

    from toolbus import SqliteStore
    from toolbus.stores.archive import Archive, ArchiveReport, Input, export_to, import_from, verify

    folder = Path(tempfile.mkdtemp())
    store: Archive = SqliteStore(folder / "toolbus.db")
    verified: ArchiveReport = await verify(store)
    inputs: list[Input] = [each for each in await store.inputs("121fe48e") if isinstance(each, tuple)]
    moved: ArchiveReport = await export_to(store, folder / "all.jsonl")
    other = SqliteStore(folder / "other.db")
    await import_from(other, folder / "all.jsonl")
    print(verified.problems, moved.requests, inputs)  # [] 0 []
    await store.aclose()
    await other.aclose()
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Protocol, cast, runtime_checkable

import anyio
import anyio.to_thread
import orjson

from .._version import __version__
from ..errors import StoreDamaged, StoreError, UnsupportedStoreFormat
from ..events import Event, decode, encode
from ..messages import Message
from ..records import JsonForm, json_bytes
from ..storage import ConversationRecord, InboxReceipt, RequestRecord, StoredFact

__all__ = ["Archive", "ArchiveReport", "Input", "Salvaged", "export_to", "import_from", "verify"]

_FORMAT = 1
_HASH = b',"hash":"'
_BATCH_LINES = 500  # lines that are written at once, in a thread
_request = JsonForm[RequestRecord](RequestRecord, "request")
_conversation = JsonForm[ConversationRecord](ConversationRecord, "conversation")
_message = JsonForm[Message](Message, "message")
_receipt = JsonForm[InboxReceipt](InboxReceipt, "receipt")

Input = tuple[Event, InboxReceipt]
"""An input of a request's inbox with its receipt, whose state is "waiting", "taken" or "refused"."""

_Found = tuple[RequestRecord, "Salvaged", Sequence[Input | StoreError]]


@dataclass(slots=True)
class Salvaged:
    """The readable facts of a request: whole steps up to the first damage, and the damage, if there is any."""

    facts: list[StoredFact] = field(default_factory=list[StoredFact])
    damage: StoreError | None = None


@runtime_checkable
class Archive(Protocol):
    """A store whose data can be listed and restored piece by piece. Raises the same errors as `JournalStore`."""

    async def request_ids(self, *, after: str = "") -> Sequence[str]:
        """Return some ids of requests that come after the id `after`, always in the same order; none after the last."""
        ...

    async def request(self, request_id: str) -> RequestRecord | None:
        """See `JournalStore`."""
        ...

    async def salvage(self, request_id: str) -> Salvaged:
        """Return a request's facts, as far as they are whole."""
        ...

    async def inputs(self, request_id: str) -> Sequence[Input | StoreError]:
        """Return the inputs of a request in the order of sending; for one that cannot be read, the error."""
        ...

    async def conversation_records(self, *, after: str | None = None) -> Sequence[ConversationRecord]:
        """Return some conversations after the id `after`, or with None from the first one on: see `request_ids`."""
        ...

    async def turns(self, conversation_id: str) -> Sequence[tuple[str, Message]]:
        """Return a conversation's messages, each with the id of its request; the id is empty if no journal has it."""
        ...

    async def faults(self) -> Sequence[str]:
        """Return the faults outside of requests and conversations, as sentences."""
        ...

    async def restore_request(
        self, record: RequestRecord, facts: Sequence[StoredFact], inputs: Sequence[Input]
    ) -> None:
        """Write a request with its times, ending, epoch and inbox, without a lease; all or nothing under cancellation.

        Raises `StoreError` if the store has the request already.
        """
        ...

    async def restore_conversation(self, record: ConversationRecord, turns: Sequence[tuple[str, Message]]) -> None:
        """Write a conversation with its times and title; all or nothing under cancellation.

        Raises `StoreError` if the store has the conversation already.
        """
        ...


@dataclass(slots=True)
class ArchiveReport:
    """The numbers of what was verified, exported or imported, and the `problems` that were found: empty without any.

    `inputs` counts all inputs of inboxes, whether they wait or not. The numbers of an export do not include data that
    could not be read.
    """

    requests: int = 0
    facts: int = 0
    inputs: int = 0
    conversations: int = 0
    messages: int = 0
    problems: list[StoreError] = field(default_factory=list[StoreError])


# ------------------------------------------------------------------------------------------------- looking


async def verify(store: Archive) -> ArchiveReport:
    """Read all data of the store, and check that it is what was written. Changes nothing.

    Damage is reported, not raised: each of the `problems` is a `StoreDamaged` that names the request and the first fact
    that is not whole, or describes another fault; or an `UnsupportedStoreFormat` for a fact that this version does not
    know. May be called while requests run. Raises `StoreError` if the store cannot be read at all.
    """
    found = ArchiveReport()
    async for record, salvaged, inputs in _requests(store, found.problems):
        _count(found, record, salvaged.facts, inputs)
        if salvaged.damage is not None:
            found.problems.append(salvaged.damage)
    async for conversation, turns in _conversations(store, found.problems):
        _count(found, conversation, turns)
    found.problems += [StoreDamaged(each) for each in await store.faults()]
    return found


async def _requests(store: Archive, problems: list[StoreError]) -> AsyncIterator[_Found]:
    after = ""
    while ids := await store.request_ids(after=after):
        async for each in _named(store, ids, problems):
            yield each
        after = ids[-1]


async def _named(store: Archive, ids: Iterable[str], problems: list[StoreError]) -> AsyncIterator[_Found]:
    for request_id in ids:
        try:
            record = await store.request(request_id)
            if record is not None:
                salvaged = await store.salvage(request_id)
                # A request that runs may have grown since its record was read, and may even have ended.
                del salvaged.facts[record.fact_count :]
                yield record, salvaged, await store.inputs(request_id)
        except (StoreDamaged, UnsupportedStoreFormat) as exc:
            problems.append(exc)


async def _conversations(
    store: Archive, problems: list[StoreError]
) -> AsyncIterator[tuple[ConversationRecord, Sequence[tuple[str, Message]]]]:
    after: str | None = None
    while records := await store.conversation_records(after=after):
        for record in records:
            try:
                yield record, await store.turns(record.conversation_id)
            except (StoreDamaged, UnsupportedStoreFormat) as exc:
                problems.append(exc)
        after = records[-1].conversation_id


# ------------------------------------------------------------------------------------------------ exporting


async def export_to(store: Archive, path: str | os.PathLike[str]) -> ArchiveReport:
    """Write all data of the store to a new file that only its owner can read (mode 0600).

    Of a damaged request, the whole steps before the damage are written; its record keeps the ending that it had. An
    input that is not part of the written facts, and was not refused, will wait in the importing store. The file is not
    a snapshot of one moment: a request that runs during the export is written in its state at that time, and as ended
    if the file has its turn. Raises `StoreError`, also for a file that exists already or cannot be written. A file
    whose export was cancelled has no end, so that it cannot be imported.
    """
    done = ArchiveReport()
    writer = await anyio.to_thread.run_sync(_Writer, Path(os.fspath(path)))
    try:
        await writer.add({"toolbus": "archive", "format": _FORMAT, "version": __version__})
        running: dict[str, int] = {}  # the numbers of facts of unfinished requests
        async for record, salvaged, inputs in _requests(store, done.problems):
            if record.ending is None:
                running[record.request_id] = record.fact_count
            else:
                await _export_request(writer, (record, salvaged, inputs), done)
        ended: set[str] = set()
        async for record, turns in _conversations(store, done.problems):
            await writer.add({"conversation": dataclasses.asdict(record), "messages": len(turns)})
            for request_id, message in turns:
                await writer.add({"request_id": request_id, "message": message})
            ended.update([request_id for request_id, _ in turns])
            _count(done, record, turns)
        # Unfinished requests come after the conversations. A request whose turn was exported has ended, and any other
        # one continues. Otherwise the importing store would have a turn twice, or not at all.
        async for record, salvaged, inputs in _named(store, running, done.problems):
            if record.request_id not in ended:
                record.ending = record.ended_at = None
                del salvaged.facts[running[record.request_id] :]
            await _export_request(writer, (record, salvaged, inputs), done)
        await writer.add({"end": _numbers(done)})
        await anyio.to_thread.run_sync(writer.finish)
    finally:
        writer.close()
    return done


async def _export_request(writer: _Writer, found: _Found, done: ArchiveReport) -> None:
    record, salvaged, inputs = found
    if salvaged.damage is not None:
        done.problems.append(salvaged.damage)
    if not salvaged.facts:
        return
    readable = [each for each in inputs if not isinstance(each, StoreError)]
    counts = {"facts": len(salvaged.facts), "inputs": len(readable)}
    await writer.add({"request": dataclasses.asdict(record), **counts})
    for each in salvaged.facts:
        fact = orjson.Fragment(encode(each.fact))
        await writer.add({"seq": each.seq, "step_end": each.step_end, "fact": fact})
    taken = {each.fact.event_id for each in salvaged.facts}
    for event, receipt in readable:
        # The facts that are written may be older than the receipt: one that is not among them has not been taken yet.
        state = receipt.state if receipt.state == "refused" else "taken" if event.event_id in taken else "waiting"
        written = dataclasses.replace(receipt, state=state)
        await writer.add({"receipt": dataclasses.asdict(written), "input": orjson.Fragment(encode(event))})
    _count(done, record, salvaged.facts, inputs)


def _count(
    found: ArchiveReport,
    record: RequestRecord | ConversationRecord,
    rows: Sequence[object],
    inputs: Sequence[object] = (),
) -> None:
    """Count a request with its facts and its readable inputs, or a conversation with its messages."""
    if isinstance(record, RequestRecord):
        found.requests += 1
        found.facts += len(rows)
        unreadable = [each for each in inputs if isinstance(each, StoreError)]
        found.inputs += len(inputs) - len(unreadable)
        found.problems += unreadable
    else:
        found.conversations += 1
        found.messages += len(rows)


def _numbers(done: ArchiveReport) -> dict[str, int]:
    return {name: number for name, number in dataclasses.asdict(done).items() if name != "problems"}


class _Writer:
    """A writer of lines in batches. Each line has a hash of itself and of all lines before it."""

    def __init__(self, path: Path) -> None:
        try:
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as exc:
            raise StoreError(f"{path} exists already; pass the path of a new file") from exc
        except OSError as exc:
            raise StoreError(f"{path} cannot be created: {exc.strerror or exc}") from exc
        self._path = path
        self._file: IO[bytes] = os.fdopen(opened, "wb")
        self._last = b""
        self._lines: list[bytes] = []

    async def add(self, value: dict[str, Any]) -> None:
        body = json_bytes(value)
        self._last = _next_hash(self._last, body)
        self._lines.append(body[:-1] + _HASH + self._last + b'"}\n')
        if len(self._lines) >= _BATCH_LINES:
            await anyio.to_thread.run_sync(self._write)

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        with self._reporting():
            self._file.writelines(lines)

    def finish(self) -> None:
        """Write the remaining lines, and sync the file to the disk."""
        self._write()
        with self._reporting():
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        with self._reporting():
            self._file.close()

    @contextlib.contextmanager
    def _reporting(self) -> Generator[None]:
        try:
            yield
        except OSError as exc:
            raise StoreError(f"{self._path} cannot be written: {exc.strerror or exc}") from exc


def _next_hash(before: bytes, body: bytes) -> bytes:
    return sha256(before + body).hexdigest().encode()


# ---------------------------------------------------------------------------------------- reading it again


async def import_from(store: Archive, path: str | os.PathLike[str]) -> ArchiveReport:
    """Read a file that `export_to` has written into a store, which may have data already.

    The whole file is checked before anything is written. Raises `StoreDamaged` for a line that is not what was exported
    or a file without an end, `UnsupportedStoreFormat` for a file of a newer toolbus, and `StoreError` for a file that
    cannot be read, or if one of its requests or conversations is in the store already. Each request and each
    conversation is written as a whole, without a lease; after an error or a cancellation, those that were written stay,
    so import the file again only into another store. The store that was exported keeps its data: resume each request in
    only one of the two stores.
    """
    name = Path(os.fspath(path))
    for kind, each in await anyio.to_thread.run_sync(_checked, name):
        if await (store.request(each) if kind == "request" else store.turns(each)):
            raise StoreError(f"{kind} {each!r} of {name} is in the store already; nothing was imported")
    done = ArchiveReport()
    pieces = _pieces(name)
    while (piece := await anyio.to_thread.run_sync(next, pieces, None)) is not None:
        record, rows, inputs = piece
        if isinstance(record, RequestRecord):
            await store.restore_request(record, cast("list[StoredFact]", rows), inputs)
        else:
            await store.restore_conversation(record, cast("list[tuple[str, Message]]", rows))
        _count(done, record, rows, inputs)
    return done


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines of a file with their numbers from 1. Raises `StoreDamaged` at the first wrong hash."""
    last = b""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                body, found, rest = line.rstrip(b"\r\n").rpartition(_HASH)
                last = _next_hash(last, body + b"}")
                if not found or rest != last + b'"}':
                    raise _wrong_line(path, number)
                try:
                    read = orjson.loads(body + b"}")
                except orjson.JSONDecodeError as exc:
                    raise _wrong_line(path, number) from exc
                yield number, read
    except OSError as exc:
        raise StoreError(f"{path} cannot be read: {exc.strerror or exc}") from exc


def _wrong_line(path: Path, number: int) -> StoreDamaged:
    return StoreDamaged(f"{path} is not an archive, or its line {number} is not what was exported")


def _checked(path: Path) -> list[tuple[str, str]]:
    """Return the kind and the id of everything in a file.

    Raises a `StoreError` unless the file is complete and all of it can be read.
    """
    last: dict[str, Any] = {}
    for number, line in _lines(path):
        if number == 1:
            _check_header(path, line)
        last = line
    if "end" not in last:
        raise StoreDamaged(f"{path} is incomplete: it has no end; export the store again")
    counted, found = ArchiveReport(), list[tuple[str, str]]()
    for record, rows, inputs in _pieces(path):
        _count(counted, record, rows, inputs)
        if isinstance(record, RequestRecord):
            found.append(("request", record.request_id))
        else:
            found.append(("conversation", record.conversation_id))
    if _numbers(counted) != last["end"]:
        raise StoreDamaged(f"{path} contains {_numbers(counted)}, but its end says {last['end']}")
    return found


def _check_header(path: Path, line: dict[str, Any]) -> None:
    if line.get("toolbus") != "archive" or not isinstance(line.get("format"), int):
        raise StoreError(f"{path} is not an archive of a toolbus store")
    if line["format"] > _FORMAT:
        raise UnsupportedStoreFormat(
            f"{path} was written by toolbus {line.get('version')}, in format {line['format']} of archives; this "
            f"version knows formats up to {_FORMAT}: upgrade toolbus"
        )


_Piece = tuple[RequestRecord | ConversationRecord, list[Any], list[Input]]


def _pieces(path: Path) -> Iterator[_Piece]:
    """Yield the requests with their facts and inputs, and the conversations with their messages."""
    lines = _lines(path)
    for number, line in lines:
        try:
            if "request" in line:
                record, facts = _request.read_values(line["request"]), _rows(lines, line["facts"], _fact)
                yield record, facts, _rows(lines, line["inputs"], _input)
            elif "conversation" in line:
                yield _conversation.read_values(line["conversation"]), _rows(lines, line["messages"], _turn), []
        except (ValueError, TypeError, KeyError) as exc:
            where = f"{path}, line {number} or a later one,"
            raise UnsupportedStoreFormat(
                f"{where} has a form that this version of toolbus does not know: {exc}"
            ) from exc


def _rows(lines: Iterator[tuple[int, dict[str, Any]]], count: int, made: Callable[[dict[str, Any]], Any]) -> list[Any]:
    rows: list[Any] = []
    for _ in range(count):
        # The lines cannot end here, because `_checked` has checked their number.
        _, line = next(lines)
        rows.append(made(line))
    return rows


def _fact(line: dict[str, Any]) -> StoredFact:
    return StoredFact(seq=line["seq"], step_end=line["step_end"], fact=decode(orjson.dumps(line["fact"])))


def _input(line: dict[str, Any]) -> Input:
    return decode(orjson.dumps(line["input"])), _receipt.read_values(line["receipt"])


def _turn(line: dict[str, Any]) -> tuple[str, Message]:
    return line["request_id"], _message.read_values(line["message"])
