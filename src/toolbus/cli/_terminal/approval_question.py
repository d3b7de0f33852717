"""The question whether a call may run: how the call is shown whole, and what an answer means. Pure.

Who approves must see what will run, so nothing is left out in silence here, and what a terminal would not show as it is
(control characters, invisible ones, those that turn the direction of writing) is escaped and not removed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ...core.plain_text import one_line
from .text import cells, cut, visible, visible_json, wrapped

__all__ = ["Answer", "What", "argument_rows", "arguments_in_line", "help_for", "prompt_for", "read_answer"]

What: TypeAlias = Literal["run", "deny", "edit", "help"]

_WORDS: Mapping[str, tuple[What, bool]] = {
    **dict.fromkeys(("y", "yes"), ("run", False)),
    **dict.fromkeys(("n", "no"), ("deny", False)),
    **dict.fromkeys(("a", "always"), ("run", True)),
    **dict.fromkeys(("v", "never"), ("deny", True)),
    **dict.fromkeys(("e", "edit"), ("edit", False)),
}
_HELP = (
    ("y", "run it, this once"),
    ("n", "do not run it; what is typed behind the n is told to the model: n use the other file"),
    ("a", "run it, and from now on every call of {name} in this conversation, without asking"),
    ("e", "edit the arguments, and then decide"),
    ("v", "do not run it, and no call of {name} in this conversation any more; a reason may be typed behind it"),
)
_ROOM = 8  # columns that an answer needs behind the question
_ROWS_EACH = 6  # of one argument, so that a long one does not push the others off the screen
_ROWS = 24


@dataclass(slots=True, frozen=True)
class Answer:
    """What a person typed. `remember`: for the conversation; `reason` goes with a denial."""

    what: What
    remember: bool = False
    reason: str = ""


def read_answer(line: str) -> Answer:
    """The meaning of `line`. An empty one denies; what cannot be told for sure asks for help."""
    word, _, rest = one_line(line).partition(" ")
    if not word:
        return Answer("deny")
    what, remember = _WORDS.get(word.rstrip(",.:;").lower(), ("help", False))
    if rest and what != "deny":  # "yes, but not that one" must not run it
        return Answer("help")
    return Answer(what, remember, rest)


def prompt_for(width: int, arrow: str) -> str:
    """The question itself, short where the long one would leave no room for the answer."""
    whole = f"  Run it? [y]es, [n]o, [a]lways, [e]dit, ne[v]er {arrow} "
    return whole if cells(whole) + _ROOM <= width else f"  Run it? [y/n/a/e/v/?] {arrow} "


def help_for(name: str, width: int) -> str:
    """What the letters mean, for the tool that people know as `name`."""
    return "\n".join(
        textwrap.fill(told.format(name=name), max(width, 20), initial_indent=f"  {letter}  ", subsequent_indent=" " * 5)
        for letter, told in _HELP
    )


def arguments_in_line(arguments: Mapping[str, Any]) -> str:
    """All arguments in one line, whole: `path="notes.txt" force=true`."""
    return " ".join(_pair(name, value) for name, value in arguments.items())


def argument_rows(arguments: Mapping[str, Any], width: int, *, ellipsis: str = "…", whole: bool = False) -> list[str]:
    """The arguments below each other in rows of at most `width` columns. `whole` leaves nothing out."""
    rows: list[str] = []
    for number, (name, value) in enumerate(arguments.items()):
        if len(rows) >= _ROWS and not whole:
            rows.append(cut(f"{ellipsis} {len(arguments) - number:,} more arguments (? shows all)", width, ellipsis))
            break
        own = wrapped(_pair(name, value), width)
        if len(own) > _ROWS_EACH and not whole:
            left = sum(map(len, own[_ROWS_EACH - 1 :]))
            told = cut(f"{ellipsis} {left:,} more characters (? shows all)", width, ellipsis)
            own = [*own[: _ROWS_EACH - 1], told]
        rows += own
    return rows


def _pair(name: str, value: Any) -> str:
    return f"{visible(name)}={visible_json(value)}"
