"""The option `--record` and the command `toolbus replay`: write requests to a file, and replay them from it."""

from __future__ import annotations

import argparse
import contextlib
import stat
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from ..core.plain_text import clean
from ..errors import ConfigurationError
from ..records import json_bytes
from ..runtime import Runtime
from ..testing.recording import RecordingError, ReplayDifference, record, replay
from ._log_lines import silenced
from ._main import FAILED
from ._terminal.screen import Screen
from ._terminal.text import counted, escape_json


@contextlib.asynccontextmanager
async def recorded(options: argparse.Namespace, runtime: Runtime, screen: Screen) -> AsyncGenerator[None]:
    """Record the requests that the runtime runs inside. Raises `ConfigurationError` if the file cannot be created."""
    path: str = options.record
    with contextlib.ExitStack() as stack:
        try:
            recording = record(path, runtime, signals=options.record_signals, mask=options.record_masked)
            recorder = stack.enter_context(recording)
        except RecordingError as exc:
            raise ConfigurationError(f"--record {exc}") from exc
        yield
        try:
            stack.close()
        except RecordingError as exc:
            # The requests have their answers all the same, so this does not fail the command.
            screen.report(clean(f"toolbus: {exc}"))
            return
    if not options.quiet:
        counts = f"{counted(recorder.requests, 'request')}, {counted(recorder.facts, 'fact')}"
        screen.report(clean(f"toolbus: recorded in {path}: {counts}; toolbus replay {path} compares it"))


def recording_at(given: str, option: str = "") -> Path:
    """Return the path of a recording that a command is to read. Raises `ConfigurationError` if there is no file."""
    path, is_there = Path(given), False
    try:
        is_there = stat.S_ISREG(path.stat().st_mode)  # `Path.is_file` would hide all errors, from Python 3.14 on.
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as exc:
        raise ConfigurationError(f"{option}{path} cannot be read: {exc.strerror or exc}") from exc
    if not is_there:
        raise ConfigurationError(f"{option}there is no file {path}")
    return path


def replay_files(options: argparse.Namespace, screen: Screen) -> int:
    """Replay each file, print its outcome, and return the exit status.

    Raises `ConfigurationError` for a missing file.
    """
    paths = [recording_at(each) for each in options.files]
    status = 0
    for path in paths:
        with silenced("toolbus"):
            # The calls that failed when they were recorded fail again.
            found = _replayed(path, options.ignore)
        status = status if found["same"] else FAILED
        if options.json:
            screen.data(escape_json(json_bytes(found, str).decode()))
        elif found["same"]:
            counts = f"{counted(found['requests'], 'request')}, {counted(found['facts'], 'fact')}"
            screen.data(clean(f"{path}: the same ({counts})"))
        else:
            screen.data(clean(found["problem"]))
    return status


def _replayed(path: Path, ignore: list[str]) -> dict[str, Any]:
    """Return the outcome of one file, as `--json` prints it."""
    found: dict[str, Any] = {"file": str(path), "same": False}
    try:
        replayed = anyio.run(partial(replay, path, ignore=ignore))
    except ReplayDifference as exc:
        where = {"line": exc.line, "request_id": exc.request_id, "field": exc.field}
        return {**found, **where, "expected": exc.expected, "got": exc.got, "problem": str(exc)}
    except RecordingError as exc:
        return {**found, "line": exc.line, "problem": str(exc)}
    except OSError as exc:
        return {**found, "problem": f"{path}: {exc.strerror or exc}"}
    return {**found, "same": True, "requests": len(replayed.results), "facts": replayed.facts}
