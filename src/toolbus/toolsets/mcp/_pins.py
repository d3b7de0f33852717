"""Pins: digests of a tool's definition when it was first seen, by which a later change is noticed."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import time
from collections.abc import Generator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import orjson

from ...errors import ConfigurationError

if sys.platform != "win32":
    import fcntl

_logger = logging.getLogger("toolbus.mcp")
_PARTS = {
    "description": ("title", "description"),
    "input schema": ("inputSchema",),
    "output schema": ("outputSchema",),
    "annotations": ("annotations",),
}
_MAX_ATTEMPTS, _ATTEMPT_SECONDS = 40, 0.002  # The event loop waits for at most 80 ms.


def pin_of(definition: Mapping[str, Any]) -> str:
    """Return the digests of the parts of a tool's definition (in its wire form) that a model or a person relies on."""
    return " ".join(_digest([definition.get(key) for key in keys]) for keys in _PARTS.values())


def _digest(value: object) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def difference(pinned: str, now: str) -> str:
    """Return the parts of a tool that differ from its pin, in words; empty if none differs."""
    if pinned == now:
        return ""
    old, new = pinned.split(" "), now.split(" ")
    names = [name for name, one, other in zip(_PARTS, old, new, strict=False) if one != other]
    if len(old) != len(new) or not names:
        names = ["definition"]
    *others, last = names
    parts = f"{', '.join(others)} and {last}" if others else last
    return f"its {parts} changed since it was pinned"


class Pins:
    """The pins by tool name: in memory, in a mapping of the application, or in a JSON file. For one event loop."""

    def __init__(self, kept: MutableMapping[str, str] | str | Path | None) -> None:
        self._path = Path(kept) if isinstance(kept, (str, Path)) else None
        self._pins: MutableMapping[str, str] = {} if kept is None else _read(kept) if self._path else cast("Any", kept)

    def get(self, name: str) -> str | None:
        """Return the pin of a tool, or None if it has none."""
        return self._pins.get(name)

    def set(self, pins: Mapping[str, str]) -> None:
        """Make these the pins of their tools, and leave all others as they are."""
        self._write(pins, pins)

    def add(self, pins: Mapping[str, str]) -> list[str]:
        """Pin the tools that have no pin yet. Return those that another process has pinned with another definition."""
        seen = {name: pin for name, pin in pins.items() if self._pins.get(name) is None}
        self._write(seen, {})
        return [name for name, pin in seen.items() if self._pins.get(name) != pin]

    def _write(self, pins: Mapping[str, str], changed: Mapping[str, str]) -> None:
        """Add `pins` of tools without one, and `changed` in any case. The new file is written beside the old one."""
        self._pins.update(pins)
        if self._path is None or not pins:
            return
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        try:
            with _locked(self._path.parent):
                # Other processes may have written theirs since this one has read the file.
                read = _read(self._path)
                self._pins.update({name: read[name] for name in pins.keys() - changed.keys() if name in read})
                kept = {**self._pins, **read, **changed}
                beside.write_bytes(orjson.dumps(kept, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))
                beside.replace(self._path)
        except (OSError, ConfigurationError) as exc:
            # The pins are still used by this process.
            _logger.warning("the pins of MCP tools could not be written to %s: %s", self._path, exc)


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Hold a lock for the files of pins in a folder, which ends with its process. Raises `OSError`."""
    if sys.platform == "win32":  # A folder cannot be opened there.
        yield
        return
    held = os.open(folder, os.O_RDONLY)
    try:
        for left in reversed(range(_MAX_ATTEMPTS)):
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # Another process has it for a millisecond, unless it is suspended.
                if not left:
                    raise
                time.sleep(_ATTEMPT_SECONDS)
        yield
    finally:
        os.close(held)


def _read(path: object) -> dict[str, str]:
    file = Path(cast("str", path))
    try:
        read: object = orjson.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, orjson.JSONDecodeError) as exc:
        raise ConfigurationError(f"the pins of MCP tools cannot be read from {file}: {exc}") from exc
    if not isinstance(read, dict) or not all(isinstance(each, str) for each in cast("dict[str, Any]", read).values()):
        raise ConfigurationError(f"{file} does not contain pins of MCP tools: it is not a JSON object of texts")
    return cast("dict[str, str]", read)
