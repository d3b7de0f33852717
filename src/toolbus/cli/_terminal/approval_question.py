"""The question whether a tool call may run: the complete display of the call, and the meaning of an answer. Pure.

The person who approves must see what will run. Therefore nothing is left out silently, and characters that a terminal
would not show (control characters, invisible ones, those that change the writing direction) are escaped, not removed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ...core.plain_text import one_line
from .text import cells, cut, visible, visible_json, wrapped

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
    ("n", "do not run it; text after the n is sent to the model as the reason: n use the other file"),
    ("a", "run it, and from now on every call of {name} in this conversation, without asking"),
    ("e", "edit the arguments, and then decide"),
    ("v", "do not run it, nor any later call of {name} in this conversation; a reason may follow the v"),
)
_ANSWER_COLUMNS = 8  # columns that an answer needs after the question
_ROWS_EACH = 6
"""The most rows for one argument, so that a long one does not push the others off the screen."""

_ROWS = 24  # rows for all arguments


@dataclass(slots=True, frozen=True)
class Answer:
    """A person's answer. `remember` extends it to the whole conversation; `reason` belongs to a denial."""

    what: What
    remember: bool = False
    reason: str = ""


def read_answer(line: str) -> Answer:
    """Return the meaning of `line`. An empty line denies; an unclear one asks for help."""
    word, _, rest = one_line(line).partition(" ")
    if not word:
        return Answer("deny")
    what, remember = _WORDS.get(word.rstrip(",.:;").lower(), ("help", False))
    # An answer such as "yes, but not that one" must not run the call.
    if rest and what != "deny":
        return Answer("help")
    return Answer(what, remember, rest)


def prompt_for(width: int, arrow: str) -> str:
    """Return the question, in a short form where the long one would leave no space for the answer."""
    whole = f"  Run it? [y]es, [n]o, [a]lways, [e]dit, ne[v]er {arrow} "
    return whole if cells(whole) + _ANSWER_COLUMNS <= width else f"  Run it? [y/n/a/e/v/?] {arrow} "


def help_for(name: str, width: int) -> str:
    """Return the explanation of the letters, for the tool with the display name `name`."""
    return "\n".join(
        textwrap.fill(text.format(name=name), max(width, 20), initial_indent=f"  {letter}  ", subsequent_indent=" " * 5)
        for letter, text in _HELP
    )


def arguments_in_line(arguments: Mapping[str, Any]) -> str:
    """Return all arguments, complete, in one line: `path="notes.txt" force=true`."""
    return " ".join(_pair(name, value) for name, value in arguments.items())


def argument_rows(arguments: Mapping[str, Any], width: int, *, ellipsis: str = "…", whole: bool = False) -> list[str]:
    """Return the arguments one below the other in rows of at most `width` columns. `whole` leaves nothing out."""
    rows: list[str] = []
    for number, (name, value) in enumerate(arguments.items()):
        if len(rows) >= _ROWS and not whole:
            rows.append(cut(f"{ellipsis} {len(arguments) - number:,} more arguments (? shows all)", width, ellipsis))
            break
        own = wrapped(_pair(name, value), width)
        if len(own) > _ROWS_EACH and not whole:
            left = sum(map(len, own[_ROWS_EACH - 1 :]))
            rest = cut(f"{ellipsis} {left:,} more characters (? shows all)", width, ellipsis)
            own = [*own[: _ROWS_EACH - 1], rest]
        rows += own
    return rows


def _pair(name: str, value: Any) -> str:
    return f"{visible(name)}={visible_json(value)}"
