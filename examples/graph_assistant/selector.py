"""Selectors, such as `type == 'human' and age > 30`: they are read by a pattern, and never evaluated."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Condition", "read_selector"]

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_CONDITION = re.compile(
    r"\s*(?P<name>[A-Za-z_]\w*)\s*"
    rf"(?P<operator>{'|'.join(_OPERATORS)})\s*"
    r"""(?:'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<number>-?\d+(?:\.\d+)?)(?![\w.]))\s*"""
    r"(?P<then>\band\b|\Z)"
)
_GRAMMAR = (
    "write conditions such as type == 'human' and age > 30: a property, one of "
    f"{', '.join(_OPERATORS)}, and a text in quotes or a number; several are joined by and"
)


@dataclass(frozen=True)
class Condition:
    """A condition on one property of a node."""

    name: str
    operator: str
    value: str | float

    def holds(self, data: Mapping[str, Any]) -> bool:
        """Return whether the property exists and fulfils the condition. A text is never less or more than a number."""
        if self.name not in data:
            return False
        try:
            return _OPERATORS[self.operator](data[self.name], self.value)
        except TypeError:
            return False


def read_selector(text: str) -> list[Condition]:
    """The conditions of a selector, at least one. Raises `ValueError` with the mistake and the correct form."""
    conditions: list[Condition] = []
    place, more = 0, True
    while more:
        match = _CONDITION.match(text, place)
        if match is None:
            rest = text[place:].strip()
            wrong = (
                f"the selector cannot be read from {rest[:60]!r} on" if rest else "a condition is missing at the end"
            )
            raise ValueError(f"{wrong}; {_GRAMMAR}")
        quoted = match["single"] if match["single"] is not None else match["double"]
        conditions.append(
            Condition(match["name"], match["operator"], quoted if quoted is not None else float(match["number"]))
        )
        place, more = match.end(), bool(match["then"])
    return conditions
