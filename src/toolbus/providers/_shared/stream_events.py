"""Splits a streamed body into its events: server-sent events, or one JSON value in each line. Does no I/O."""

from __future__ import annotations

import codecs

from .errors import ErrorTranslator

__all__ = ["EventLines", "JsonLines"]


class _Lines:
    """Bytes, in pieces of any size, as lines."""

    __slots__ = ("_begun", "_buffer", "_errors", "_limit_bytes")

    def __init__(self, limit_bytes: int, errors: ErrorTranslator) -> None:
        """One event may have `limit_bytes`; more raises `ReplyTooLarge` in `feed`."""
        self._begun = False  # a line has come, and with it any mark of the byte order
        self._buffer = bytearray()  # grows in place: a long line comes in many pieces
        self._limit_bytes = limit_bytes
        self._errors = errors

    def feed(self, piece: bytes) -> list[tuple[str, bytes]]:
        """The events that `piece` completes, as (event name, data)."""
        self._buffer += piece
        lines: list[bytes] = []
        if b"\n" in piece:
            *lines, rest = bytes(self._buffer).split(b"\n")
            self._buffer = bytearray(rest)
        self._bound(len(self._buffer))
        found: list[tuple[str, bytes]] = []
        for line in lines:
            self._line(self._bare(line), found)
        return found

    def finish(self) -> list[tuple[str, bytes]]:
        """What the end of the body completes: a last event without its empty line."""
        found: list[tuple[str, bytes]] = []
        self._line(self._bare(bytes(self._buffer)), found)
        self._line(b"", found)
        self._buffer = bytearray()
        return found

    def _bare(self, line: bytes) -> bytes:
        """A line without its end; the first without the mark of the byte order that some servers begin with."""
        first, self._begun = not self._begun, True
        return (line.removeprefix(codecs.BOM_UTF8) if first else line).rstrip(b"\r")

    def _bound(self, size_bytes: int) -> None:
        if size_bytes > self._limit_bytes:
            raise self._errors.too_large(self._limit_bytes)

    def _line(self, line: bytes, found: list[tuple[str, bytes]]) -> None:
        raise NotImplementedError


class EventLines(_Lines):
    """Server-sent events, but for those whose data is empty: proxies send them as signs of life.

    Data under the name `error` is an event of that name: llama.cpp said its errors so until late in 2025. A line that
    is an object is an event too: gateways send errors, and whole replies, in a stream's place.
    """

    __slots__ = ("_data", "_event", "_size_bytes")

    def __init__(self, limit_bytes: int, errors: ErrorTranslator) -> None:
        """One event may have `limit_bytes`; more raises `ReplyTooLarge` in `feed`."""
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
        if line.startswith(b"{"):
            self._bound(len(line))
            found.append(("", line))
            return
        name, _, value = line.partition(b":")
        if name in {b"data", b"error"}:
            self._size_bytes += len(value) + 1  # an empty line of data has its weight too
            self._bound(self._size_bytes)
            self._data.append(value.removeprefix(b" "))
            self._event = b"error" if name == b"error" else self._event
        elif name == b"event":
            self._event = value.strip()


class JsonLines(_Lines):
    """One JSON value in each line (NDJSON). Its events have no name, and empty lines are none."""

    __slots__ = ()

    def _line(self, line: bytes, found: list[tuple[str, bytes]]) -> None:
        self._bound(len(line))
        if line.strip():
            found.append(("", line))
