"""The text of the answer: its origin, then quoted lines by file, or the words that were not found. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...core.text_structure import Line
from ._passages import Passage, Weigher
from ._question import Question
from ._transcript import Turn

_WHAT_THIS_IS = "This answer was made by searching, reading and quoting: no language model took part."
_MAX_QUOTED = 3  # Of the others, the answer has only the positions, so that it stays a page


def quoted_answer(weigher: Weigher, passages: list[Passage], turn: Turn) -> str:
    """Return an answer in Markdown with the passages by file, best first: a heading `path:line`, and numbered lines."""
    found = {term for passage in passages for term in passage.terms}
    words = _listed(term.text for term in weigher.question.terms if term in found)
    files: dict[str, dict[int, str]] = {}
    for passage in passages[:_MAX_QUOTED]:
        lines = files.setdefault(passage.scope.path, {})
        lines.update((line.number, line.text.rstrip()) for line in (*_context(passage), *passage.lines))
    parts = [f"{_WHAT_THIS_IS} These lines fit the words {words} best:"]
    parts += [_block(path, lines) for path, lines in files.items()]
    if len(passages) > _MAX_QUOTED:
        parts.append(
            f"See also {_listed(f'`{each.scope.path}:{each.lines[0].number}`' for each in passages[_MAX_QUOTED:])}."
        )
    missing = [term.text for term in weigher.question.terms if term not in found]
    if missing:
        parts.append(f"Not found near these lines: {_listed(missing)}.")
    parts += _failures(turn)
    return "\n\n".join(parts)


def _block(path: str, lines: dict[int, str]) -> str:
    """Return the lines of a file in their order, in a fence. A mark stands for lines between them that are left out."""
    numbers = sorted(lines)
    width = len(str(numbers[-1]))
    shown: list[str] = []
    for before, number in zip([numbers[0], *numbers], numbers, strict=False):
        if number - before > 1:
            shown.append(f"{'...':>{width}}")
        shown.append(f"{number:>{width}}  {lines[number]}".rstrip())
    ticks = max([2, *(len(run) for text in lines.values() for run in re.findall("`+", text))])
    fence = "`" * (ticks + 1)
    return "\n".join([f"**`{path}:{numbers[0]}`**", "", f"{fence}text", *shown, fence])


def nothing_found_answer(question: Question, turn: Turn) -> str:
    """Return the answer when nothing was found: the words that were searched, and the number of files."""
    files = max((search.files_searched for search in turn.searches), default=0)
    words = _listed(term.text for term in question.terms)
    return "\n\n".join([f"{_WHAT_THIS_IS} It found nothing for: {words} ({files} files searched).", *_failures(turn)])


def nothing_to_look_for_answer() -> str:
    """Return the answer to a question that has only words without content."""
    return (
        f"{_WHAT_THIS_IS} The question has no word to search for; ask with names or words that occur in the files, "
        "or choose a provider with a language model."
    )


def missing_tools_answer(names: Iterable[str]) -> str:
    """Return the answer when the request does not offer the workspace tools."""
    return (
        f"{_WHAT_THIS_IS} It needs the workspace tools, and was not given {_listed(names)}; "
        "add toolbus.toolsets.workspace.workspace_tools(directory) to the tools, "
        "or choose a provider with a language model."
    )


def _context(passage: Passage) -> list[Line]:
    """Return the heads of the definitions around the passage, outermost first."""
    heads: list[Line] = []
    around = passage.scope.parent
    while around is not None and len(heads) < 2:
        heads[:0] = around.head[:1]
        around = around.parent
    return heads


def _failures(turn: Turn) -> list[str]:
    return [f"Some calls failed: {'; '.join(turn.failures[:3])}."] if turn.failures else []


def _listed(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))
