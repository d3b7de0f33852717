"""Constants that the best passages name: `timeout=DEFAULT_TIMEOUT` says little until its value is quoted, too. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...core.text_structure import Line, Scope
from ._passages import Passage
from ._question import Question, split_identifier
from ._transcript import Turn

__all__ = ["constant_passages", "constants_in"]

_MOST = 3
_CONSTANT = re.compile(r"(?P<value>=\s*(?:\w+\.)*)?\b(?P<name>_?[A-Z][A-Z0-9]*_[A-Z0-9_]*[A-Z0-9]|_?[A-Z]{3,}[0-9]*)\b")
_DEFINED = re.compile(r"\s*(?:(?:export|const|static|let|var|pub|final)\s+)*(\w+)\s*(?::[^=]*)?=(?!=)")


def constants_in(question: Question, passages: Sequence[Passage]) -> list[str]:
    """Names in capitals that the best two passages give as a value, or that hold a word of the question."""
    forms = [form for term in question.terms for form in term.forms]
    names: dict[str, None] = {}
    for passage in passages[:2]:
        for line in passage.lines:
            for match in _CONSTANT.finditer(line.text):
                pieces = split_identifier(match["name"])
                if match["value"] or any(piece.startswith(form) for piece in pieces for form in forms):
                    names[match["name"]] = None
    return list(names)[:_MOST]


def constant_passages(names: Sequence[str], passages: Sequence[Passage], turn: Turn) -> list[Passage]:
    """One passage per name with the line that defines it; that of the file which names it, where several do."""
    home = passages[0].scope.path if passages else ""
    defined: dict[str, Passage] = {}
    lines = [(path, number, text) for path, known in turn.lines.items() for number, text in known.items()]
    lines += [(place.path, place.line, place.text) for search in turn.searches for place in search.places]
    for path, number, text in sorted(lines, key=lambda item: item[0] != home):
        match = _DEFINED.match(text)
        if match and match[1] in names and match[1] not in defined:
            line = Line(number, text, "assign", match[1])
            defined[match[1]] = Passage(Scope(path, lines=[line]), 0.0, [line])
    return [defined[name] for name in names if name in defined]
