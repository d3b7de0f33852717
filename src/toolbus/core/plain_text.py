r"""Text from outside made safe to show: without characters that control a terminal or hide content in a log. Pure.

The output of a model, a tool or a file must not change the colours, the title or the cursor of a reader's terminal.

Example:
    from toolbus.core.plain_text import clean, clip, one_line

    print(clean("\x1b[31mred\x1b[0m"))  # red
    print(one_line("two\nlines"))  # two lines
    print(clip("a long line", 6))  # a lon…
"""

from __future__ import annotations

import re

__all__ = ["CSI", "DIRECTION", "STRING", "clean", "clip", "one_line"]

# ECMA-48 defines CSI sequences, strings (OSC, DCS, APC, PM, SOS) that end with a terminator, and short escapes.
CSI = r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}"
"""The beginning of a control sequence, as a pattern."""
# A string contains no beginning of another one: in a text of beginnings, each would be read to the end of the bound.
STRING = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f\n]{0,1000}"
"""The beginning of a control string, as a pattern."""
_ESCAPE = re.compile(rf"{CSI}[@-~]|{STRING}(?:\x07|\x1b\\|\x9c)|\x1b[ -/]{{0,8}}[0-~]")
DIRECTION = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""The characters that change the direction of writing, for use inside a pattern's brackets.

They can make a line look like a different one.
"""
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{DIRECTION}]+")
_DIRECTION = re.compile(rf"[{DIRECTION}]+")


def clean(text: str) -> str:
    """Return `text` without escape sequences, control and direction characters; tabs and line breaks stay."""
    return _CONTROL.sub("", _ESCAPE.sub("", text))


def one_line(text: str) -> str:
    """Return `text` clean and on one line, with each run of white space replaced by one space."""
    spaced = " ".join(_DIRECTION.sub("", _ESCAPE.sub("", text)).split())
    # Removing a control character between two spaces leaves a run of spaces, so the text is split once more.
    return " ".join(_CONTROL.sub("", spaced).split())


def clip(text: str, length: int) -> str:
    """Return `text` if it has at most `length` characters (at least 1), else its beginning with … as the last one."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"
