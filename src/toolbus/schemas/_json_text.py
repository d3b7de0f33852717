"""Measurements and repairs of JSON text that comes from outside, made before it is parsed. Pure.

The cost of reading JSON depends on its values and not on its bytes: 8 MiB of `[],` take a second of the event loop,
8 MiB of one string a hundredth of that. The functions here take at most 8 ms for each MiB.
"""

from __future__ import annotations

import re

MAX_VALUES = 100_000
"""The most values in one JSON text that is read: they take 50 ms, and a model writes far fewer."""

_NO_SEPARATORS = bytes({*range(256)} - {*b",[{"})
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_BLOCK_BYTES = 2**18
# A backslash, a surrogate pair, or half of one.
_ESCAPES = re.compile(rb"\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u[dD][89a-fA-F]..", re.DOTALL)
_MAX_ESCAPES = 50_000  # of a message, which take 20 ms
_BIG = b"0" * 19  # 2**63 has 19 digits; an integer with fewer is exact in every reader


def has_big_number(data: bytes) -> bool:
    """Return whether there are 19 digits in a row, so that a fast reader may have turned an integer into a float."""
    return _BIG in data.translate(_DIGITS)


def with_whole_characters(text: bytes) -> bytes:
    """Return a JSON text with a replacement character for each half of a surrogate pair.

    JavaScript writes such a half where it has cut a text within an emoji, and most readers refuse the whole JSON text.
    A text with more than 50,000 backslashes or surrogates is returned unchanged, because more would take too long.
    """
    if b"\\ud" not in text and b"\\uD" not in text:
        return text
    parts, at = list[bytes](), 0
    for number, found in enumerate(_ESCAPES.finditer(text)):
        if number == _MAX_ESCAPES:
            return text
        if len(found[0]) == len(rb"\ud83d"):
            parts += (text[at : found.start()], rb"\ufffd")
            at = found.end()
    return b"".join((*parts, text[at:]))


def has_many_values(*texts: bytes, limit: int = MAX_VALUES) -> bool:
    """Return whether JSON texts have more than `limit` values together.

    Each member of an object and each item of a list counts.
    """
    if sum(map(len, texts)) < 2 * limit or sum(map(_separators, texts)) <= limit:
        return False
    # Most of the separators may be in strings, which do not count.
    values = 0
    for text in texts:
        values += _values(text, limit)
        if values > limit:
            return True
    return False


def _values(data: bytes, limit: int) -> int:
    """Return the number of values in a JSON text, or a number above `limit` if there are more."""
    values = quotes = 0
    begun = b""  # the backslash at the end of a block that escapes the first character of the next one
    for start in range(0, len(data), _BLOCK_BYTES):
        block = begun + data[start : start + _BLOCK_BYTES]
        begun = b""
        in_string = quotes % 2
        unescaped = block.count(b'"')
        if b"\\" in block:
            # A replacement of the same length is faster, because nothing moves.
            if b"\\\\" in block:
                block = block.replace(b"\\\\", b"__")
            begun = block[-1:] if block.endswith(b"\\") else b""
            block = block.removesuffix(b"\\")
            escaped = block.count(b'\\"')
            unescaped -= escaped
            if escaped and unescaped:
                block = block.replace(b'\\"', b"__")
        quotes += unescaped
        if quotes > 4 * limit:  # A member needs at most four quotes: two for its key and two for its value.
            return limit + 1
        if unescaped:
            block = b"".join(block.split(b'"')[in_string::2])
        elif in_string:
            continue
        values += _separators(block)
        if values > limit:
            break
    return values


def _separators(data: bytes) -> int:
    # Counting each of the three would take twice as long.
    return len(data.translate(None, _NO_SEPARATORS))
