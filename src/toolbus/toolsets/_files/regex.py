"""Regular expressions of models: parsed, measured, and matched in pieces. Pure; no I/O.

No call may hold the interpreter's lock for long, because a thread that holds it blocks the event loop too:

1. The engine is pydantic's, which never backtracks. The time of a match is at most the pattern's steps times the bytes
   of the text, times about 15 to 25 ns.
2. The engine gets only what was parsed here and written again, so that the counted steps are those that it makes. A
   pattern of more than `_MAX_STEPS` is refused before it is compiled: compiling takes up to 60 ms for the largest.
3. A text is matched in pieces of at most `Pattern.piece_bytes`, so short that each takes at most 25 ms.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from pydantic_core import SchemaError, SchemaValidator, core_schema

from ...errors import ToolError

Matcher = Callable[[str], bool]

_MAX_CHARS = 1_500
_MAX_STEPS = 1_500
_STEPS_TIMES_BYTES = 1_000_000
_MAX_PIECE_BYTES = 262_144
# The steps of a class such as \w, which has hundreds of ranges: each copy takes 0.3 ms to compile.
_HEAVY_STEPS = 15
# The steps of a range over much of Unicode, counted once: finding the other case of each letter takes up to 3.6 ms.
_FOLDED_STEPS = 100
_ITEMS_PER_STEP = 8
# An expression that matches nothing, and compiles as fast as one character.
_NEVER = "[a&&b]"
# The placeholders for the ends of a line, until it is known whether a piece has them.
_BEGIN, _END = "\0begin", "\0end"

_COUNT = re.compile(r"\{(?:([0-9]{1,9})(,([0-9]{0,9}))?|,([0-9]{1,9}))\}")
_GROUP = re.compile(r"\(\?(?:P?<[A-Za-z_][A-Za-z0-9_]*>|([ims]*)(?:-([ims]+))?(?::|\)))")
_LOOK_AROUND = re.compile(r"\(\?<?[=!]")
_NAMED = re.compile(r"\(\?P[=>]")
_CODE_POINT = re.compile(r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[xuU]\{[0-9A-Fa-f]{1,8}\})")
_PROPERTY = re.compile(r"\\[pP](?:[A-Za-z]|\{[^{}\\]{1,60}\})")
_POSIX = re.compile(r"\[:\^?[a-z]{4,6}:\]")
_LIGHT_ESCAPES = frozenset("dDsSbBntrfva")
_SPECIAL = frozenset(r"\.+*?()|[]{}^$#&-~/ ")


def engine(expression: str) -> Matcher:
    """Return a function that says whether the engine finds `expression` in a text. Raises `SchemaError`."""
    schema = core_schema.str_schema(pattern=expression, regex_engine="rust-regex")
    return SchemaValidator(schema).isinstance_python


class Pattern:
    r"""A regular expression that is matched line by line. `^`, `$`, `\A` and `\z` are the ends of a line.

    Raises `ToolError`, with the reason, for a pattern that cannot be compiled or is too large. Used by one thread.
    """

    def __init__(self, pattern: str, *, ignore_case: bool) -> None:
        reader = _Reader(pattern)
        self._parts = reader.parts
        self._pattern = pattern
        self._flags = "(?im)" if ignore_case else "(?m)"
        self._matchers: dict[tuple[bool, bool], Matcher] = {}
        self.literal = reader.literal
        """The longest run of word characters that every match contains: a text without it need not be matched."""
        self.piece_bytes = min(_STEPS_TIMES_BYTES // reader.steps, _MAX_PIECE_BYTES)
        """The most bytes of UTF-8 that one text may have."""
        self.matcher(begins=True, ends=True)

    def matcher(self, *, begins: bool, ends: bool) -> Matcher:
        """Return a function that says whether the pattern matches in a text: in lines, or in a piece of a line."""
        key = (begins or _BEGIN not in self._parts, ends or _END not in self._parts)
        if key not in self._matchers:
            anchors = {_BEGIN: "^" if key[0] else _NEVER, _END: "$" if key[1] else _NEVER}
            try:
                self._matchers[key] = engine(self._flags + "".join(anchors.get(part, part) for part in self._parts))
            except SchemaError as exc:
                # The reason is after the last "error: ", or else after "SchemaError: ".
                _refuse(self._pattern, str(exc).rpartition("rror: ")[2])
        return self._matchers[key]


def _refuse(pattern: str, why: str) -> NoReturn:
    raise ToolError(
        f"the regular expression {pattern[:200]!r} is not valid: {why}. The syntax has no look-around and no "
        "back-references; use mode='text' to search for the characters as they are."
    )


def _too_large(pattern: str) -> NoReturn:
    raise ToolError(
        f"the regular expression {pattern[:200]!r} is too large: repetitions count as often as they may occur, and a "
        r"class such as \w{20} for several characters each. Use smaller counts, * or +, or search for a part of it."
    )


class _Reader:
    """A parser of a pattern, from left to right. `parts` is then the text for the engine, and `steps` its size."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        # For each open group, the steps before it.
        self._groups: list[int] = []
        # The steps of the current group before its newest item.
        self._before = 1
        # The steps of the newest item, which a repetition would multiply.
        self._item = 0
        # The steps that are counted once, even inside a repetition.
        self._once = 0
        # The literal characters just before; None once no literal is in every match any more.
        self._run: str | None = ""
        self.literal = ""
        self.parts: list[str] = []
        if len(pattern) > _MAX_CHARS:
            _too_large(pattern)
        while self._at < len(pattern):
            self._read()
            if self._before + self._item + self._once > _MAX_STEPS:
                _too_large(pattern)
        self.steps = self._before + self._item + self._once + sum(self._groups)
        if self.steps > _MAX_STEPS:
            _too_large(pattern)
        self._end_run()

    def _end_run(self, *, without: int = 0) -> None:
        if self._run is None:
            self.literal = ""
        else:
            self.literal = max(self.literal, self._run[: len(self._run) - without], key=len)
            self._run = ""

    def _refuse(self, why: str) -> NoReturn:
        _refuse(self._pattern, why)

    def _add(self, steps: int, part: str, length: int = 1) -> None:
        self._before += self._item
        self._item = steps
        self.parts.append(part)
        self._at += length

    def _read(self) -> None:
        char = self._pattern[self._at]
        if self._run is not None and not self._groups and char.isascii() and (char.isalnum() or char == "_"):
            self._run += char
            self._add(1, char)
            return
        self._end_run(without=1 if char in "?*{" else 0)
        if char == "\\":
            self._escape()
        elif char == "[":
            self._class()
        elif char == "(":
            self._open()
        elif char == ")":
            inner = self._before + self._item
            self._before, self._item = (self._groups.pop() if self._groups else 1), inner
            self._add_to_item(")")
        elif char in "*+?":
            self._item += 1
            self._add_to_item(char)
        elif char == "{":
            self._repetition()
        elif char in "^$":
            self._add(1, _BEGIN if char == "^" else _END)
        elif char in ".|":
            self._run = None if char == "|" and not self._groups else self._run
            self._add(1, char)
        else:
            self._add(1 if char.isascii() else 4, escaped(char))

    def _add_to_item(self, part: str, length: int = 1) -> None:
        self.parts.append(part)
        self._at += length

    def _repetition(self) -> None:
        count = _COUNT.match(self._pattern, self._at)
        if count is None:
            # The brace is a literal one, as in "function .* {".
            self._add(1, r"\{")
            return
        least = int(count[1] or 0)
        limit = int(count[3] or count[4] or least)
        open_ended = count[2] == ","
        self._item = (self._item + 1) * max(limit + open_ended, 1)
        end = "" if open_ended else str(limit)
        self._add_to_item(f"{{{least},{end}}}" if count[2] or count[4] else f"{{{least}}}", len(count[0]))

    def _open(self) -> None:
        rest = self._pattern[self._at : self._at + 200]
        opening = "("
        if rest.startswith("(?"):
            group = _GROUP.match(rest)
            if _LOOK_AROUND.match(rest):
                self._refuse(f"look-around, {rest[:4]}...), is not supported")
            if _NAMED.match(rest):
                self._refuse(f"back-references, {rest[:4]}...), are not supported")
            if group is None:
                self._refuse(f"the group {rest[:6]}...) is not supported; (?: ), (?P<name> ) and (?i) are")
            opening = group[0]
            if group[1] is not None:
                opening = _flags(group[1], group[2] or "", opening[-1])
            if group[0].endswith(")"):
                self._run = None
                self._add(0, opening, len(group[0]))
                return
            self._at += len(group[0]) - 1
        self._add(0, opening)
        self._groups.append(self._before)
        self._before, self._item = 1, 0

    def _escape(self) -> None:
        following = self._pattern[self._at + 1 : self._at + 2]
        if following and following in "0123456789kg":
            self._refuse(rf"back-references, \{following}, are not supported")
        if following in ("A", "z", "Z"):
            self._add(1, _BEGIN if following == "A" else _END, 2)
        elif following in ("w", "W"):
            self._add(_HEAVY_STEPS, f"\\{following}", 2)
        elif following and following in _LIGHT_ESCAPES:
            self._add(2, f"\\{following}", 2)
        elif named := _PROPERTY.match(self._pattern, self._at):
            self._once += _FOLDED_STEPS
            self._add(_HEAVY_STEPS, named[0], len(named[0]))
        elif code := _CODE_POINT.match(self._pattern, self._at):
            self._add(4, code[0], len(code[0]))
        elif following and not following.isalpha():
            self._add(1 if following.isascii() else 4, escaped(following), 2)
        else:
            self._refuse(rf"the escape \{following} is not known; write a backslash as \\")

    # ------------------------------------------------------------------------------------------ classes

    def _class(self) -> None:
        """Parse a class in brackets as Python does: brackets, `&&` and `~~` inside of it are characters."""
        parts = ["["]
        self._at += 1
        if self._pattern.startswith("^", self._at):
            parts.append("^")
            self._at += 1
        heavy = far = False
        wide = items = 0
        while (char := self._pattern[self._at : self._at + 1]) != "]" or items == 0:
            if not char:
                self._refuse("a class in brackets is not closed")
            part = self._class_item(char, parts[-1])
            parts.append(part)
            items += 1
            far = far or not part.isascii() or part.startswith((r"\x", r"\u", r"\U"))
            heavy = heavy or far or part.startswith((r"\w", r"\W", r"\p", r"\P"))
            wide += part.startswith((r"\W", r"\D", r"\S", r"\p", r"\P", "[:^"))
        self._once += _FOLDED_STEPS * (wide + (parts.count("-") if far else 0))
        steps = (_HEAVY_STEPS if heavy else 1) + items // _ITEMS_PER_STEP
        self._add(steps, "".join(parts) + "]")

    def _class_item(self, char: str, before: str) -> str:
        """Parse the item of a class that begins here, and return its text for the engine."""
        if posix := _POSIX.match(self._pattern, self._at):
            self._at += len(posix[0])
            return posix[0]
        if char != "\\":
            self._at += 1
            return char if char == "-" != before else escaped(char)
        following = self._pattern[self._at + 1 : self._at + 2]
        if special := (_PROPERTY.match(self._pattern, self._at) or _CODE_POINT.match(self._pattern, self._at)):
            self._at += len(special[0])
            return special[0]
        self._at += 2
        if following == "b":
            return "\b"
        if following and following in "wWdDsSntrfva":
            return f"\\{following}"
        if not following or following.isalnum():
            self._refuse(rf"the escape \{following} is not known in a class; write a backslash as \\")
        return escaped(following)


def _flags(on: str, off: str, end: str) -> str:
    """Return a group's flags without `m`, which would change the meaning of the ends of a line."""
    on, off = on.replace("m", ""), off.replace("m", "")
    if end == ")" and not on and not off:
        return "(?:)"
    return f"(?{on}{'-' if off else ''}{off}{end}"


def escaped(text: str) -> str:
    """Return `text` escaped, so that the engine takes each character literally."""
    return "".join(f"\\{char}" if char in _SPECIAL else char for char in text)
