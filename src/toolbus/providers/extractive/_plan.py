"""The next step of a turn, from its results so far: search, read, search again with better words, answer.

Pure: the same turn gives the same step. The rounds are bounded by construction: two searches, two reads, the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeAlias

from ...core.text_structure import is_secondary
from ._constants import constant_passages, constants_in
from ._passages import Weigher, best_passages
from ._question import Question, Term
from ._transcript import Location, Search, Turn

SEARCH_TOOL, READ_TOOL = "search_text", "read_lines"
Call: TypeAlias = tuple[str, dict[str, Any]]

_FIRST_READS, _LATER_READS = 8, 6
_BEFORE, _AFTER = 60, 100  # the numbers of lines that are read before and after a found line


def next_calls(question: Question, turn: Turn) -> list[Call]:
    """Return the calls of the next round; none when it is time to answer."""
    if not question.terms:
        return []
    if turn.search_rounds == 0:
        return _first_search(question)
    if turn.search_rounds > turn.read_rounds:
        if calls := _reads(question, turn, _FIRST_READS if turn.read_rounds == 0 else _LATER_READS):
            return calls
        return _in_other_words(question, turn) if turn.search_rounds == 1 and not turn.lines else []
    return _second_search(question, turn) if turn.search_rounds == 1 else []


def weigher_of(question: Question, turn: Turn) -> Weigher:
    """Return the weights of the question's terms, with the rarity of words that the widest search reported."""
    counts: dict[str, int] = {}
    files = 0
    for search in turn.searches:
        if search.mode == "words" and not search.arguments.get("glob"):
            counts |= search.files_with_word
            files = max(files, search.files_searched)
    return Weigher(question, counts, files)


def _first_search(question: Question) -> list[Call]:
    words = _forms(question.searched)
    calls: list[Call] = [_words(words, 24)]
    if names := [word for term in question.terms if term.weight >= 1.0 for word in term.forms if word.isalnum()]:
        # A glob may have 500 bytes, and a letter takes up to four.
        beginnings = ",".join(name[:14] for name in names[:8])
        calls.append(_words(words, 12, f"**/{{{beginnings}}}*"))
    calls += [
        (SEARCH_TOOL, {"query": _definition_of(name), "mode": "regex", "ignore_case": False, "max_results": 40})
        for name in question.identifiers[:3]
    ]
    return calls


def _words(words: Iterable[str], max_results: int, glob: str = "") -> Call:
    arguments: dict[str, Any] = {"query": " ".join(words), "mode": "words", "max_results": max_results}
    return SEARCH_TOOL, arguments | ({"glob": glob} if glob else {})


def _exactly(path: str) -> str:
    """Return the glob that matches only this path: `[id].js` is a file's name in some projects."""
    return re.sub(r"([\[{*?\\])", r"[\1]", path)


def _definition_of(name: str) -> str:
    escaped = re.escape(name)
    return (
        r"(?:\b(?:def|class|function\*?|func|fn|struct|enum|trait|interface|type|const|let|var|#define)[ \t]+"
        r"|^[ \t]*[\"']?)"
        rf"{escaped}\b(?:[ \t]*[(<{{\[]|[\"']?[ \t]*(?::[^=]*)?[:=][ \t]*\S|$)"
    )


def _in_other_words(question: Question, turn: Turn) -> list[Call]:
    """Return a search for the words that were not searched yet, such as those that seemed too common at first."""
    tried = {word for search in turn.searches for word in str(search.arguments.get("query", "")).split()}
    fresh = [word for word in _forms(question.terms) if word not in tried]
    return [_words(fresh, 24)] if fresh else []


def _second_search(question: Question, turn: Turn) -> list[Call]:
    """Return searches in the files of the best passages, for the words they lack, and for the constants they name."""
    passages = best_passages(weigher_of(question, turn), turn.lines)
    files = list(dict.fromkeys(passage.scope.path for passage in passages))[:2]
    words = _forms(question.terms)
    calls = [_words(words, 12, _exactly(path)) for path in files]
    if files and "/" in files[0]:
        calls.append(_words(words, 6, _exactly(files[0].rpartition("/")[0]) + "/*"))
    missing = [term for term in question.searched if all(term not in passage.own for passage in passages)]
    if missing and files:
        calls.append(_words(_forms(missing), 3, _exactly(files[0])))
    names = constants_in(question, passages)
    known = {line.name for passage in constant_passages(names, passages, turn) for line in passage.lines}
    calls += [
        (
            SEARCH_TOOL,
            {"query": rf"^[ \t]*{name}[ \t]*(?::[^=]*)?=", "mode": "regex", "ignore_case": False, "max_results": 4},
        )
        for name in names
        if name not in known
    ]
    return calls


def _forms(terms: Iterable[Term]) -> list[str]:
    return list(dict.fromkeys(form for term in terms for form in term.forms))


def _reads(question: Question, turn: Turn, limit: int) -> list[Call]:
    """Return reads around the best locations that were not read yet; reads that overlap become one."""
    wanted: dict[str, list[tuple[int, int]]] = {}
    count = 0
    latest = max((search.round for search in turn.searches), default=0)
    for location in _interesting(question, [search for search in turn.searches if search.round == latest]):
        if count >= limit:
            break
        spans = wanted.setdefault(location.path, [])
        if location.line in turn.lines.get(location.path, ()) or any(
            low <= location.line <= high - 20 for low, high in spans
        ):
            continue
        spans.append((max(1, location.line - _BEFORE), location.line + _AFTER))
        count += 1
    return [
        (READ_TOOL, {"path": path, "start": low, "end": high})
        for path, spans in wanted.items()
        for low, high in _merged(spans)
    ]


def _interesting(question: Question, searches: list[Search]) -> list[Location]:
    """Return the definitions that were searched by name and the best ranked locations, alternating between them.

    Scores of different searches cannot be compared, so the ranked searches alternate as well.
    """
    by_path = Weigher(question, {}, 1)
    named = [location for search in searches if search.mode != "words" for location in search.locations]
    named.sort(key=lambda location: -sum(by_path.in_path(location.path).values()) + is_secondary(location.path))
    queues = [named[:4], *(search.locations for search in searches if search.mode == "words")]
    depth = max(map(len, queues))
    return [location for index in range(depth) for queue in queues for location in queue[index : index + 1]]


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if merged and low <= merged[-1][1] + 1 and high - merged[-1][0] < 300:
            merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    return merged
