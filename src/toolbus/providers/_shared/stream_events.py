"""Splitters of a streamed body into events: server-sent events, or one JSON value in each line. They do no I/O."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod

from .errors import ErrorTranslator


class Lines(ABC):
    """A splitter of bytes, which come in pieces of any size, into lines."""

    def __init__(self, limit_bytes: int, errors: ErrorTranslator) -> None:
        """Bound one event by `limit_bytes`: for a larger one, `feed` raises `ReplyTooLarge`."""
        self._begun = False  # whether a line has come, and with it the byte order mark, if any
        self._buffer = bytearray()  # grows without copies, since a long line comes in many pieces
        self._limit_bytes = limit_bytes
        self.errors = errors

    def feed(self, piece: bytes) -> list[tuple[str, bytes]]:
        """Return the events that `piece` completes, as (event name, data)."""
        self._buffer += piece
        lines: list[bytes] = []
        if b"\n" in piece:
            *lines, rest = bytes(self._buffer).split(b"\n")
            self._buffer = bytearray(rest)
        self.bound(len(self._buffer))
        found: list[tuple[str, bytes]] = []
        for line in lines:
            self._line(self._bare(line), found)
        return found

    def finish(self) -> list[tuple[str, bytes]]:
        """Return the events that the end of the body completes: a last event without its empty line."""
        found: list[tuple[str, bytes]] = []
        self._line(self._bare(bytes(self._buffer)), found)
        self._line(b"", found)
        return found

    def _bare(self, line: bytes) -> bytes:
        """Return a line without its end, and the first line without the byte order mark that some servers send."""
        first, self._begun = not self._begun, True
        return (line.removeprefix(codecs.BOM_UTF8) if first else line).rstrip(b"\r")

    def bound(self, size_bytes: int) -> None:
        """Raise `ReplyTooLarge` for more bytes than the limit."""
        if size_bytes > self._limit_bytes:
            raise self.errors.too_large(self._limit_bytes)

    @abstractmethod
    def _line(self, line: bytes, found: list[tuple[str, bytes]]) -> None:
        """Process one line, and add the events that it completes."""


class EventLines(Lines):
    """A splitter into server-sent events, without events of empty data, which proxies send as signs of life.

    A field `error` is an event of that name: llama.cpp sent its errors so until late in 2025. A line that is a JSON
    object, or a list of objects, is an event too: some gateways send errors, and whole replies, instead of a stream. A
    field of data that begins an object after the end of another one is the next event, since some gateways leave out
    the empty line.
    """

    def __init__(self, limit_bytes: int, errors: ErrorTranslator) -> None:
        """Bound one event by `limit_bytes`: for a larger one, `feed` raises `ReplyTooLarge`."""
        super().__init__(limit_bytes, errors)
        self._data: list[bytes] = []
        self._event = b""
        self._size_bytes = 0

    def _line(self, line: bytes, found: list[tuple[str, bytes]]) -> None:
        if not line:
            if data := b"\n".join(self._data).strip():
                found.append((self._event.decode("utf-8", "replace"), data))
            self._data, self._event, self._size_bytes = [], b"", 0
            return
        if line.startswith((b"{", b"[{")):
            self.bound(len(line))
            found.append(("", line))
            return
        name, _, value = line.partition(b":")
        if name in {b"data", b"error"}:
            if self._data and self._data[-1].endswith(b"}") and value.lstrip().startswith((b"{", b"[DONE]")):
                self._line(b"", found)
            self._size_bytes += len(value) + 1  # an empty line of data counts as well
            self.bound(self._size_bytes)
            self._data.append(value.removeprefix(b" "))
            self._event = b"error" if name == b"error" else self._event
        elif name == b"event":
            self._event = value.strip()


class JsonLines(Lines):
    """A splitter into lines of one JSON value each (NDJSON). Events have no name, and empty lines are skipped."""

    def _line(self, line: bytes, found: list[tuple[str, bytes]]) -> None:
        self.bound(len(line))
        if line.strip():
            found.append(("", line))
