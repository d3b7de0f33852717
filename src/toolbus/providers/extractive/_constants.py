"""Constants that the best passages name: `timeout=DEFAULT_TIMEOUT` is of little use without its value. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...core.text_structure import Line, Scope
from ._passages import Passage
from ._question import Question, split_identifier
from ._transcript import Turn

_MAX_NAMES = 3
_CONSTANT = re.compile(r"(?P<value>=\s*(?:\w+\.)*)?\b(?P<name>_?[A-Z][A-Z0-9]*_[A-Z0-9_]*[A-Z0-9]|_?[A-Z]{3,}[0-9]*)\b")
_DEFINED = re.compile(r"\s*(?:(?:export|const|static|let|var|pub|final)\s+)*(\w+)\s*(?::[^=]*)?=(?!=)")


def constants_in(question: Question, passages: Sequence[Passage]) -> list[str]:
    """Return the names in capitals that the best two passages use as values, or that contain a word of the question."""
    forms = [form for term in question.terms for form in term.forms]
    names: dict[str, None] = {}
    for passage in passages[:2]:
        for line in passage.lines:
            for match in _CONSTANT.finditer(line.text):
                pieces = split_identifier(match["name"])
                if match["value"] or any(piece.startswith(form) for piece in pieces for form in forms):
                    names[match["name"]] = None
    return list(names)[:_MAX_NAMES]


def constant_passages(names: Sequence[str], passages: Sequence[Passage], turn: Turn) -> list[Passage]:
    """Return one passage for each name, with the line that defines it, preferably in the file of the best passage."""
    best_path = passages[0].scope.path if passages else ""
    defined: dict[str, Passage] = {}
    lines = [(path, number, text) for path, known in turn.lines.items() for number, text in known.items()]
    lines += [(each.path, each.line, each.text) for search in turn.searches for each in search.locations]
    for path, number, text in sorted(lines, key=lambda item: item[0] != best_path):
        match = _DEFINED.match(text)
        if match and match[1] in names and match[1] not in defined:
            line = Line(number, text, "assign", match[1])
            defined[match[1]] = Passage(Scope(path, lines=[line]), 0.0, [line])
    return [defined[name] for name in names if name in defined]
