"""Valid documents broken in ways that nobody thought of: bytes and texts anywhere, JSON values by their structure."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

JUNK: list[Any] = [
    None,
    True,
    -1,
    2.5,
    10**40,
    "",
    "x",
    "\ud800",
    "\x00\ufeff",
    "data:text/plain,\ud800%",
    "data:text/plain;base64,ü",
    "data:,",
    '{"ok":false',
    [],
    {},
    [5],
    ["text"],
    [[]],
    [None],
    {"type": []},
    {"type": "text", "text": {}},
    {"a": {"b": "\udc00"}},
    [{"type": {}}],
]
"""What may stand where something else belongs. Also what cannot be hashed, encoded or read as a number."""

PIECES = [
    *[b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"0", b"1e999", b"-", b"NaN", b"null", b"\x00", b"\xff", b"\n"],
    *[b"\xef\xbb\xbf", b"\\ud800", b"\xed\xa0\x80", b"9" * 30, b'"a":1,"a":2', b"data:", b"event: x\n", b"\r\n\r\n"],
]


@st.composite
def broken_bytes(draw: st.DrawFn, documents: st.SearchStrategy[bytes]) -> bytes:
    """A document with a few bytes taken out, put in, repeated or cut off."""
    found = bytearray(draw(documents))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(found)))
        until = min(len(found), at + draw(st.integers(0, 12)))
        match draw(st.sampled_from(["put", "put", "take", "repeat", "cut", "flip"])):
            case "put":
                found[at:at] = draw(st.sampled_from(PIECES) | st.binary(max_size=3))
            case "take":
                del found[at:until]
            case "repeat":
                found[at:at] = found[at:until] * draw(st.integers(1, 5))
            case "cut":
                del found[at:]
            case _ if at < len(found):
                found[at] ^= 1 << draw(st.integers(0, 7))
            case _:
                pass
    return bytes(found)


def broken_texts(documents: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """The same of a text; what is no UTF-8 becomes lone surrogates, or marks."""
    written = broken_bytes(documents.map(lambda text: text.encode("utf-8", "surrogatepass")))
    return st.builds(_decoded, written, st.sampled_from(["replace", "surrogateescape"]))


def _decoded(data: bytes, errors: str) -> str:
    return data.decode("utf-8", errors)


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """All containers in `value` with each of their keys or indices."""
    inside: Any = value
    pairs: Any = inside.items() if isinstance(value, dict) else enumerate(inside) if isinstance(value, list) else ()
    for key, each in pairs:
        found.append((inside, key))
        _places(each, found)
    return found


@st.composite
def broken_values(draw: st.DrawFn, documents: st.SearchStrategy[Any], *, most: int = 3) -> Any:
    """A document with some values replaced, left out, doubled, wrapped or swapped with others of it."""
    found = copy.deepcopy(draw(documents))
    for _ in range(draw(st.integers(1, most))):
        places = _places(found, [])
        if not places:
            return draw(st.sampled_from(JUNK))
        within: Any
        within, key = places[draw(st.integers(0, len(places) - 1))]
        match draw(st.sampled_from(["junk", "junk", "junk", "take", "double", "wrap", "swap"])):
            case "junk":
                within[key] = copy.deepcopy(draw(st.sampled_from(JUNK)))
            case "take":
                del within[key]
            case "double" if isinstance(key, int):
                within.insert(key, copy.deepcopy(within[key]))
            case "wrap":
                within[key] = [within[key]]
            case _:
                other, there = places[draw(st.integers(0, len(places) - 1))]
                within[key] = copy.deepcopy(other[there])
    return found
