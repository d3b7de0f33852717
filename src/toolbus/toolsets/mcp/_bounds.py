"""Bounds on what servers send, which hold before it is read as JSON.

The SDK reads a message on the event loop, which takes time for each value in it, and bounds neither the values nor a
line of a program. A body or a line that exceeds the bounds is not read.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import orjson

from ...schemas import MAX_VALUES, has_many_values, with_whole_characters

LINES = "toolbus_lines"
"""The name of an encoding: UTF-8 in lines that `bounded_lines` bounds."""

_MAX_OTHER_VALUES = 10_000  # of a message, outside of its result
_SHOWN_BYTES = 2_000  # of a line that is not a message
_BOUND: ContextVar[tuple[int, Callable[[str], object], Callable[[str], object]]] = ContextVar("toolbus_mcp_lines")


def excess(data: bytes | bytearray, max_bytes: int) -> str:
    """Return the bound that a JSON text exceeds, such as "has more than 1000 bytes", or ""."""
    if len(data) > max_bytes:
        return f"has more than {max_bytes} bytes"
    text = bytes(data)
    if has_many_values(text):
        return f"has more than {MAX_VALUES:,} values"
    if has_many_values(text, limit=_MAX_OTHER_VALUES) and not _has_result_only(text):
        return f"has more than {_MAX_OTHER_VALUES:,} values, and not only in a result that is strict JSON"
    return ""


def _has_result_only(text: bytes) -> bool:
    """Return whether all large values of a message are in its result, an object. The SDK reads that once.

    It compares every other field with all kinds of messages, and copies it each time.
    """
    try:
        message: Any = orjson.loads(text)
    except orjson.JSONDecodeError:  # It may have NaN in it, which the SDK reads.
        return False
    if not isinstance(message, dict):
        return False
    fields = cast("dict[str, Any]", message)
    is_object = isinstance(fields.pop("result", None), dict)
    return is_object and not any(isinstance(value, (dict, list)) for value in fields.values())


@contextmanager
def bounded_lines(
    max_bytes: int, on_excess: Callable[[str], object], on_other: Callable[[str], object]
) -> Generator[None]:
    """Bound the lines of streams that tasks started here decode with the encoding `LINES`.

    `on_excess` is called for the first line that exceeds the bounds, with the reason; all later lines are dropped.
    `on_other` is called with each line that is not a message, even after the SDK has stopped reading messages. Such a
    line is dropped, because the SDK would log a traceback for it.
    """
    token = _BOUND.set((max_bytes, on_excess, on_other))
    try:
        yield
    finally:
        _BOUND.reset(token)


class _Lines(codecs.IncrementalDecoder):
    """Decodes whole lines, so that the SDK never joins a piece to a long line."""

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._max_bytes, self._on_excess, self._on_other = _BOUND.get()
        self._line = bytearray()  # the beginning of the line that has not ended yet
        self._is_over = False

    def decode(self, input: Any, final: bool = False) -> str:  # noqa: A002, ARG002, FBT001, FBT002 -- as in `codecs`
        if self._is_over:
            return ""
        # Lines within one piece are as short as a piece, so only the first one and the last one may be too long.
        first, *others = bytes(input).split(b"\n")
        self._line += first
        why = excess(self._line, self._max_bytes) if others or len(self._line) > self._max_bytes else ""
        if why:
            self._is_over = True
            self._line.clear()
            self._on_excess(f"a line {why}")
            return ""
        if not others:
            return ""
        whole = b""
        for line in (self._line, *others[:-1]):
            start = line[:_SHOWN_BYTES].removeprefix(codecs.BOM_UTF8).lstrip()
            if start.startswith(b"{") and b'"jsonrpc"' in line:
                whole += with_whole_characters(bytes(line).removeprefix(codecs.BOM_UTF8)) + b"\n"
            else:
                self._on_other(start.decode("utf-8", "replace"))
        self._line = bytearray(others[-1])
        return whole.decode("utf-8", self.errors)


def _found(name: str) -> codecs.CodecInfo | None:
    if name != LINES:
        return None
    return codecs.CodecInfo(codecs.utf_8_encode, codecs.utf_8_decode, incrementaldecoder=_Lines, name=LINES)


codecs.register(_found)
