"""Text that others wrote, made safe to show: one line, and nothing in it that steers a terminal or hides in a log.

Pure. What a model, a tool or a file says must not change colours, titles or the cursor of whoever reads it.
"""

from __future__ import annotations

import re

__all__ = ["CSI", "DIRECTION", "STRING", "clean", "clip", "one_line"]

# ECMA-48: CSI sequences; strings (OSC, DCS, APC, PM, SOS) up to their terminator; and the short escapes.
CSI = r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}"
"""The beginning of a control sequence, as a pattern."""
STRING = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,1000}"
"""The beginning of a control string, as a pattern."""
_ESCAPE = re.compile(rf"{CSI}[@-~]|{STRING}(?:\x07|\x1b\\|\x9c)|\x1b[ -/]{{0,8}}[0-~]")
DIRECTION = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""The characters that turn the direction of writing, for a pattern's brackets: they make a line look like another."""
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{DIRECTION}]")
_DIRECTION = re.compile(rf"[{DIRECTION}]")


def clean(text: str) -> str:
    """`text` without escape sequences, control characters and those of direction; tabs and line breaks stay."""
    return _CONTROL.sub("", _ESCAPE.sub("", text))


def one_line(text: str) -> str:
    """`text` clean and on one line, each run of white space as one space."""
    spaced = " ".join(_DIRECTION.sub("", _ESCAPE.sub("", text)).split())
    return " ".join(_CONTROL.sub("", spaced).split())  # what is removed may have stood between spaces


def clip(text: str, length: int) -> str:
    """`text` if it has at most `length` characters (at least 1), else its beginning with … as the last one."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"
