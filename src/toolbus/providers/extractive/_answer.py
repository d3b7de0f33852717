"""The answer: what this is, then quoted lines with their `path:line`, or an honest word on what was not found. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ...core.text_structure import Line
from ._passages import Passage, Weigher
from ._question import Question
from ._transcript import Turn

__all__ = ["missing_tools_answer", "nothing_found_answer", "nothing_to_look_for_answer", "quoted_answer"]

_WHAT_THIS_IS = "This answer is made by search, read and quote: no language model took part."


def quoted_answer(weigher: Weigher, passages: list[Passage], turn: Turn) -> str:
    """The passages, best first, each line as `path:line: text`."""
    found = {term for passage in passages for term in passage.terms}
    parts = [
        f"{_WHAT_THIS_IS} The lines that fit best for {_listed(t.text for t in weigher.question.terms if t in found)}:"
    ]
    quoted: set[tuple[str, int]] = set()
    for passage in passages:
        path = passage.scope.path
        lines = [*_context(passage), *passage.lines]
        fresh = [line for line in lines if (path, line.number) not in quoted]
        quoted.update((path, line.number) for line in fresh)
        if fresh:
            parts.append("\n".join(f"    {path}:{line.number}: {line.text.rstrip()}" for line in fresh))
    missing = [term.text for term in weigher.question.terms if term not in found]
    if missing:
        parts.append(f"Not found near these lines: {_listed(missing)}.")
    parts += _troubles(turn)
    return "\n\n".join(parts)


def nothing_found_answer(question: Question, turn: Turn) -> str:
    """An honest word: for which words, in how many files."""
    files = max((search.files_searched for search in turn.searches), default=0)
    words = _listed(term.text for term in question.terms)
    return "\n\n".join([f"{_WHAT_THIS_IS} It found nothing for: {words} ({files} files searched).", *_troubles(turn)])


def nothing_to_look_for_answer() -> str:
    """For a question of nothing but small words."""
    return (
        f"{_WHAT_THIS_IS} The question holds no word to search for; ask with names or words that stand in the files, "
        "or choose a provider with a language model."
    )


def missing_tools_answer(names: Iterable[str]) -> str:
    """For a runtime without the workspace tools."""
    return (
        f"{_WHAT_THIS_IS} It needs the workspace tools, and was not given {_listed(names)}; "
        "add toolbus.toolsets.workspace.workspace_tools(directory) to the tools, "
        "or choose a provider with a language model."
    )


def _context(passage: Passage) -> list[Line]:
    """The heads of the definitions around the passage, outermost first."""
    heads: list[Line] = []
    around = passage.scope.parent
    while around is not None and len(heads) < 2:
        heads[:0] = around.head[:1]
        around = around.parent
    return heads


def _troubles(turn: Turn) -> list[str]:
    return [f"Some calls failed: {'; '.join(turn.failures[:3])}."] if turn.failures else []


def _listed(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))
