"""An upper bound on the cost of untrusted regular expressions, and a matcher that takes linear time. Pure.

Expressions are matched by Rust's engine, whose time grows linearly with the text. The time for each character depends
on the number of positions that the expression has once its counted repetitions are written out. That number is counted
here, from above: `(a{20}|b){5}` has 105.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from pydantic_core import SchemaError, SchemaValidator, core_schema

MAX_CHARS = 2_000
"""The length of the longest expression that is read: one for dates with leap years has 400 characters."""

MAX_POSITIONS = 20_000
"""The most positions that an expression may have, written out: `^.{1,1000}$` has 1,000."""

# The nanoseconds are measured with jsonschema-rs 0.60.3 on the expressions that are worst for its engine, and rounded
# up; tests/schemas/test_schema_bounds.py measures them again.
_FEW, _FEW_NS = 8, 15  # the engine's automaton then has at most 2**8 states, which all stay in its cache
_SOME, _SOME_NS = 12, 120
_MANY_NS, _POSITION_NS = 800, 60
_COMPILE_NS, _COMPILE_POSITION_NS = 20_000, 10_000
_MAX_COMPILE_POSITIONS = 1_500  # above this number the engine refuses the expression for its size
_LETTER_NS, _CLASS_NS, _WIDE_CLASS_NS, _FOLDED_CLASS_NS = 8_000, 60_000, 900_000, 5_000_000

_COUNT = re.compile(r"\{\s*+(\d*+)\s*+(?:,\s*+(\d*+)\s*+)?\}")  # possessive, so it takes linear time
_GROUP = re.compile(r"\?(?:P?<[A-Za-z_]\w*>|([a-zA-Z-]*)([:)]))")


@dataclass(frozen=True, slots=True)
class PatternCost:
    """The highest cost of an expression, in nanoseconds: once to compile it, and for each character to match it."""

    compile_ns: int
    match_ns: int


def cost_of(pattern: str) -> PatternCost:
    """Return the highest cost of `pattern`. Raises `ValueError` with the reason for one that is refused."""
    if len(pattern) > MAX_CHARS:
        raise ValueError(f"it has {len(pattern)} characters; at most {MAX_CHARS} are allowed")
    reader = _Reader(pattern)
    positions = reader.read()
    if positions > MAX_POSITIONS:
        raise ValueError(f"with its repetitions written out it has more than {MAX_POSITIONS} parts")
    if positions <= _FEW:
        match_ns = _FEW_NS
    elif positions <= _SOME:
        match_ns = _SOME_NS
    else:
        match_ns = _MANY_NS + _POSITION_NS * positions
    written_out = min(positions, _MAX_COMPILE_POSITIONS)
    return PatternCost(_COMPILE_NS + reader.compile_ns + _COMPILE_POSITION_NS * written_out, match_ns)


class _Reader:
    """One pass over an expression. It need not be valid: what is not understood counts as literal characters."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._folds = re.search(r"\(\?[a-zA-Z]*i", pattern) is not None
        self.compile_ns = 0

    def read(self) -> int:
        """Return the number of positions, with counted repetitions written out."""
        pattern, at = self._pattern, 0
        outer: list[int] = []  # the positions before each open group, within the group around it
        total = atom = 0  # the positions of the innermost group, and those that a repetition would repeat
        while at < len(pattern):
            char = pattern[at]
            if char == "(":
                at = self._group(at + 1)
                outer.append(total)
                total, atom = 1, 0
                continue
            if char == ")" and outer:
                atom, total = total, outer.pop() + total
            elif char == "{" and (count := _COUNT.match(pattern, at)):
                times = max(int(count[1] or 0) + (count[2] is not None), int(count[2] or 0), 1)
                total, atom = total + atom * (times - 1), atom * times
                at = count.end() - 1
            elif char in "^$|" or (char in "*+?" and pattern[at - 1 : at] in ("*", "+", "?")):
                atom = 1
                total += 1
            elif char not in "*+?":
                at = self._atom(at) - 1
                atom = 1
                total += 1
            at += 1
            if total > MAX_POSITIONS:
                return total
        return total + sum(outer)

    def _group(self, at: int) -> int:
        """Return the index at which the inside of a group begins."""
        found = _GROUP.match(self._pattern, at)
        if found is None:  # This includes look-around, which the engine refuses.
            return at
        if "x" in (found[1] or ""):
            raise ValueError("the flag x is not supported")
        return found.end() - (found[2] == ")")

    def _atom(self, at: int) -> int:
        """Return the index after the character, escape or class at `at`, and add the cost of compiling it."""
        pattern, char = self._pattern, self._pattern[at]
        if char == "[":
            return self._class(at + 1)
        if char != "\\":
            self.compile_ns += _CLASS_NS if char == "." else _LETTER_NS
            return at + 1
        name = pattern[at + 1 : at + 2]
        self.compile_ns += self._escape_ns(name)
        if name in "pPxu" and pattern[at + 2 : at + 3] == "{":
            closing = pattern.find("}", at)
            return len(pattern) if closing < 0 else closing + 1
        return at + 2

    def _escape_ns(self, name: str) -> int:
        return _WIDE_CLASS_NS if name in ("p", "P", "s", "S", "w", "W") else _CLASS_NS

    def _class(self, at: int) -> int:
        pattern = self._pattern
        self.compile_ns += _FOLDED_CLASS_NS if self._folds else _CLASS_NS
        at += pattern.startswith("^", at)
        # In some dialects a "]" here ends the class, and in others it does not.
        if pattern.startswith("]", at):
            raise ValueError("a class of characters begins with ']'; write '\\]'")
        while at < len(pattern) and pattern[at] != "]":
            if pattern[at] == "\\":
                self.compile_ns += self._escape_ns(pattern[at + 1 : at + 2])
                at += 1
            at += 1
        return at + 1


def matcher(pattern: str) -> Callable[[str], bool] | None:
    """Return a function that tests whether `pattern` is found in a text; None for a pattern that cannot be used."""
    try:
        find = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")).isinstance_python
    except SchemaError:
        return None
    return find
