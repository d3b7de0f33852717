"""The command `toolbus store`: shows the contents of the store as tables, and maintains it."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import anyio

from ...core.plain_text import clean, one_line
from ...errors import ConfigurationError, StoreError
from ...records import json_bytes
from ...storage import ConversationRecord, RequestRecord
from ...stores.archive import ArchiveReport, export_to, import_from, verify
from ...stores.sql.find import FoundRequest
from .._main import FAILED
from .._open_store import CommandStore, existing, holder_of, opened_store
from .._store_location import StoreLocation, location_of
from .._terminal.screen import Screen
from .._terminal.text import cells, counted, cut, escape_json, padded
from .._terminal.timeline import message_lines, timeline

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")

_MAX_LINE_CHARS = 10_000

_Command = Callable[[CommandStore, argparse.Namespace, Screen], Awaitable[int]]


def run_store_command(options: argparse.Namespace, screen: Screen) -> int:
    """Run `toolbus store COMMAND`, and return the exit status. Raises `ConfigurationError` and `StoreError`."""
    name: str | None = options.store_command
    if name is None:
        raise ConfigurationError(f"name a command: store {', '.join(_COMMANDS)} (see toolbus store --help)")
    if name == "prune":
        options.before_at = _moment(options.before)
    found = _made(options) if name == "import" else existing(options)
    if found is None:
        return _nothing(options, screen)
    store, _location = found
    return anyio.run(_done, store, _COMMANDS[name], options, screen)


async def _done(store: CommandStore, command: _Command, options: argparse.Namespace, screen: Screen) -> int:
    async with opened_store(store):
        return await command(store, options, screen)


def _made(options: argparse.Namespace) -> tuple[CommandStore, StoreLocation]:
    """Return the store to import into, which may be a new one."""
    location = location_of(options, os.environ)
    if location is None or location.path is None:
        raise ConfigurationError("there is no store to import into; --store PATH names one")
    if not location.asked_by:
        try:
            location.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise StoreError(f"{location.path.parent} cannot be created: {exc.strerror or exc}") from exc
    return CommandStore(location.path), location


def _nothing(options: argparse.Namespace, screen: Screen) -> int:
    """Report that the default store was never created."""
    if options.store_command == "show":
        raise ConfigurationError(f"there is no conversation or request {options.id!r}: nothing is kept yet")
    if getattr(options, "json", False):
        screen.data("[]" if options.store_command == "list" else "{}")
    else:
        screen.data("Nothing is kept yet: toolbus ask and toolbus chat keep their conversations here.")
    return 0


# --------------------------------------------------------------------------------------------- inspecting


async def _stats(store: CommandStore, options: argparse.Namespace, screen: Screen) -> int:
    found = await store.statistics()
    size = sum(_size_of(f"{store.path}{ending}") for ending in ("", "-wal", "-shm"))
    if options.json:
        counts = dataclasses.asdict(found)
        kept = {name: counts[name] for name in ("requests", "unfinished", "facts", "conversations", "messages")}
        _print_json({"path": str(store.path), "file_bytes": size, **kept, "size_bytes": found.size_bytes}, screen)
        return 0
    rows = [
        ("store", str(store.path)),
        ("conversations", f"{found.conversations:,}, with {counted(found.messages, 'message')}"),
        ("requests", f"{found.requests:,}, of which {found.unfinished:,} unfinished; {counted(found.facts, 'fact')}"),
        ("size", f"{_size(found.size_bytes)}; the file takes {_size(size)}"),
    ]
    _table(rows, screen)
    return 0


async def _list(store: CommandStore, options: argparse.Namespace, screen: Screen) -> int:
    found = await store.conversations(search=options.search, limit=options.limit)
    if options.json:
        _print_json([dataclasses.asdict(each) for each in found], screen)
    elif not found:
        screen.data("There is no such conversation." if options.search else "There is no conversation yet.")
    else:
        _table([_row(each) for each in found], screen)
    return 0


def _row(each: ConversationRecord) -> Sequence[str]:
    return each.conversation_id, _when(each.updated_at), counted(each.message_count, "message"), one_line(each.title)


async def _show(store: CommandStore, options: argparse.Namespace, screen: Screen) -> int:
    conversation = await store.conversation(options.id)
    if conversation is not None:
        return await _show_conversation(store, conversation, options, screen)
    request = await store.request_named(options.id)
    if request is None:
        raise ConfigurationError(
            f"{store.path} has no conversation or request {options.id!r}. `toolbus store list` shows conversations, "
            "and `toolbus store show` of a conversation its requests; `--store FILE` names another store"
        )
    return await _show_request(store, request, options, screen)


async def _show_conversation(
    store: CommandStore, record: ConversationRecord, options: argparse.Namespace, screen: Screen
) -> int:
    messages = await store.history(record.conversation_id)
    requests = await store.found_requests(conversation_id=record.conversation_id)
    if options.json:
        known = [{**dataclasses.asdict(each.record), "prompt": each.prompt} for each in requests]
        _print_json({**dataclasses.asdict(record), "requests": known, "messages": messages}, screen)
        return 0
    _table([_row(record)], screen)
    screen.data("")
    for line in message_lines(messages, screen.columns, whole=options.whole):
        screen.data(clean(line))
    if requests:
        screen.data("\nrequests")
        _table([_request_row(each) for each in requests], screen, indent="  ")
    return 0


def _request_row(found: FoundRequest) -> Sequence[str]:
    record = found.record
    return record.request_id, _when(record.started_at), _state(record), one_line(found.prompt)


def _state(record: RequestRecord) -> str:
    if record.ending is not None:
        return record.ending
    return "runs" if holder_of(record) in ("running", "elsewhere") else "unfinished"


async def _show_request(store: CommandStore, record: RequestRecord, options: argparse.Namespace, screen: Screen) -> int:
    found = await store.salvage(record.request_id)
    facts = [each.fact for each in found.facts]
    if options.json:
        _print_json({**dataclasses.asdict(record), "facts": facts}, screen)
    else:
        took = f"{counted(record.fact_count, 'fact')}, {_size(record.size_bytes)}"
        _table([(record.request_id, _when(record.started_at), _state(record), took)], screen)
        screen.data(f"conversation {one_line(record.conversation_id)}\n")
        for line in timeline(facts, _MAX_LINE_CHARS if options.whole else screen.columns):
            screen.data(clean(line))
    if found.damage is not None:
        raise found.damage
    return 0


# ------------------------------------------------------------------------------------------- maintenance


async def _prune(store: CommandStore, options: argparse.Namespace, screen: Screen) -> int:
    before, also = options.before_at, options.conversations
    if options.dry_run:
        found = await store.prunable(before=before, conversations=also)
    else:
        found = await store.prune(before=before, conversations=also)
    if options.json:
        _print_json({"before": before, "is_dry_run": options.dry_run, **dataclasses.asdict(found)}, screen)
        return 0
    what = counted(found.requests, "request")
    if also:
        what += f" and {counted(found.conversations, 'conversation')}"
    verb = "would be deleted" if options.dry_run else "deleted"
    kept = "" if also else "; conversations stay (--conversations deletes them too)"
    screen.data(f"{what} from before {_when(before)} {verb}, {_size(found.size_bytes)}{kept}")
    return 0


def _moment(given: str) -> float:
    """Parse the age or date of `--before` into seconds since the epoch. Raises `ConfigurationError`."""
    age = _AGE.fullmatch(given.strip().lower())
    try:
        if age is None:
            moment = datetime.fromisoformat(given.strip()).timestamp()
        else:
            moment = time.time() - float(age[1]) * _SECONDS[age[2]]
        # This raises for a moment before the year 1, which cannot be displayed.
        _local(moment)
    except (ValueError, OverflowError, OSError):
        moment = math.nan
    if math.isnan(moment):
        raise ConfigurationError(
            f"--before {given}: pass an age, such as 30d, 12h or 2w, or a date, such as 2026-01-31"
        )
    return moment


async def _verify(store: CommandStore, options: argparse.Namespace, screen: Screen) -> int:
    found = await verify(store)
    problems = [one_line(str(each)) for each in found.problems]
    if options.json:
        counts = {each.name: getattr(found, each.name) for each in dataclasses.fields(found)}
        _print_json({**counts, "problems": problems}, screen)
    else:
        for problem in problems:
            screen.data(clean(problem))
        ending = counted(len(problems), "problem") if problems else "everything is as it was written"
        screen.data(f"{_counts(found)}: {ending}")
    return FAILED if problems else 0


async def _export(store: CommandStore, options: argparse.Namespace, screen: Screen) -> int:
    done = await export_to(store, options.to)
    for problem in done.problems:
        screen.report(clean(f"toolbus: left out: {one_line(str(problem))}"))
    screen.data(clean(f"{_counts(done)} written to {options.to}"))
    return FAILED if done.problems else 0


async def _import(store: CommandStore, options: argparse.Namespace, screen: Screen) -> int:
    done = await import_from(store, options.file)
    screen.data(clean(f"{_counts(done)} read into {store.path}"))
    return 0


def _counts(counts: ArchiveReport) -> str:
    requests = f"{counted(counts.requests, 'request')} with {counted(counts.facts, 'fact')}"
    return f"{requests}, {counted(counts.conversations, 'conversation')} with {counted(counts.messages, 'message')}"


_COMMANDS: Mapping[str, _Command] = {
    "stats": _stats,
    "list": _list,
    "show": _show,
    "prune": _prune,
    "verify": _verify,
    "export": _export,
    "import": _import,
}


# ------------------------------------------------------------------------------------------------- lines


def _table(rows: Sequence[Sequence[str]], screen: Screen, *, indent: str = "") -> None:
    """Print columns as wide as they have to be; the last one is cut at the terminal's width."""
    cleaned = [[one_line(each) for each in row] for row in rows]
    for *first, last in padded(cleaned):
        head = "  ".join(first)
        left = screen.columns - cells(head) - len(indent) - 2
        screen.data(f"{indent}{head}  {cut(last.rstrip(), max(left, 10), screen.ellipsis)}")


def _when(moment: float) -> str:
    """Return a moment as people write it; "?" for one that no calendar has, which a damaged store may contain."""
    try:
        return _local(moment).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return "?"


def _local(moment: float) -> datetime:
    return datetime.fromtimestamp(moment)  # noqa: DTZ006 -- people expect local time


def _size(number: float) -> str:
    for unit in _UNITS[:-1]:
        if number < 1_024:
            return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:,.1f} {unit}"
        number /= 1_024
    return f"{number:,.1f} {_UNITS[-1]}"


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError:
        return 0


def _print_json(value: Any, screen: Screen) -> None:
    screen.data(escape_json(json_bytes(value, str).decode()))
