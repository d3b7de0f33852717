"""The text of the answer: its origin, then quoted lines with `path:line`, or the words that were not found. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ...core.text_structure import Line
from ._passages import Passage, Weigher
from ._question import Question
from ._transcript import Turn

__all__ = ["missing_tools_answer", "nothing_found_answer", "nothing_to_look_for_answer", "quoted_answer"]

_WHAT_THIS_IS = "This answer is made by search, read and quote: no language model took part."


def quoted_answer(weigher: Weigher, passages: list[Passage], turn: Turn) -> str:
    """Return an answer with the passages, best first, and each line as `path:line: text`."""
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
    parts += _failures(turn)
    return "\n\n".join(parts)


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
