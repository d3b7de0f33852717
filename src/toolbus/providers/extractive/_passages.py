"""The selection of the passages that answer the question best, from the lines that were read.

A passage is a part of one scope: its head, and its lines with words of the question. The weight of a word grows with
its rarity in the searched files, and a line that defines a name counts more than one that uses it. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...core.text_structure import Line, Scope, is_form, is_secondary, read_structure
from ._question import Question, Term

_LITERAL = re.compile(
    r"(?:^|[\s=(,:])(?:-?\d[\d_.]*|None|True|False|null|true|false|undefined|\"[^\"]*\"|'[^']*')\s*(?:[,);}#]|//|$)"
)
# A short word may have only these endings: "log" is in "logs" and "logging", but not in "logic".
_INFLECTED = r"(?i:e?s|e?d|ings?|ers?|[bdgmnprt](?:ings?|ed|ers?))?(?![a-z])"
_DOCTEST = re.compile(r"\s*>>> ")
_NUMBER = re.compile(r"(?<![\w.])\d")
_CONSEQUENCE = re.compile(
    r"\b(?:raise|raises|raised|throw|throws|error|except|catch|return|returns|warn)\b", re.IGNORECASE
)
_INDEX_NAMES = frozenset({"__init__", "index", "mod", "readme", "lib", "main"})
_FUNCTIONS = frozenset({"def", "function", "function*", "func", "fn"})
_FIELDS = frozenset({"class", "struct", "enum", "interface", "type", "record"})
_CONSTRUCTORS = frozenset({"__init__", "constructor", "__new__", "new"})
_REACH_LINES = 5  # the distance in lines within which lines count together
_MAX_LINES = (14, 9, 6, 6, 5)  # of the best passage, of the second best, and so on
_MAX_FIELD_LINES = 26  # of a class whose fields are the answer
_MIN_SCORE = 0.5  # of a quoted passage, as a share of the best passage's score


@dataclass(slots=True)
class Passage:
    """Lines of one scope, in order, with those of its head.

    `terms` are the words of the question in the scope, in the names around it and in its path; `own` are those in the
    scope's lines.
    """

    scope: Scope
    score: float
    lines: list[Line] = field(default_factory=list[Line])
    terms: set[Term] = field(default_factory=set[Term])
    own: set[Term] = field(default_factory=set[Term])


class Weigher:
    """The weights of the question's terms, and a search for the terms in lines and paths."""

    def __init__(self, question: Question, files_with_word: Mapping[str, int], files: int) -> None:
        self.question = question
        self.weights = {term: term.weight * _rarity(term, files_with_word, files) for term in question.terms}
        self.total = sum(self.weights.values())
        self._patterns = {term: _pattern(term) for term in question.terms}

    def in_text(self, text: str) -> Iterable[Term]:
        """Return the terms that occur in `text`."""
        return (term for term, pattern in self._patterns.items() if pattern.search(text))

    def in_line(self, line: Line, scope: Scope) -> dict[Term, float]:
        """Return the terms in a line of `scope`, each with its quality: highest in the name that the line defines."""
        found: dict[Term, float] = {}
        local = scope.what in _FUNCTIONS and line.kind == "assign"
        for term in self.in_text(line.text):
            if line.kind == "import":
                found[term] = 0.2
            elif line.name and not local and self._patterns[term].search(line.name):
                exact = line.name.lower() in term.forms
                defines = line.kind in ("define", "heading")
                found[term] = (
                    (4.0 if term.identifier else 2.6)
                    if exact and defines
                    else 2.0
                    if defines
                    else 1.7
                    if exact
                    else 1.5
                )
            else:
                found[term] = (
                    0.5 if _DOCTEST.match(line.text) else 0.8 if line.kind == "code" or len(line.text) > 300 else 1.0
                )
        return found

    def in_path(self, path: str) -> dict[Term, float]:
        """Return the terms in a file's path, each with its quality: highest if the term is the file's name."""
        *directories, name = path.split("/")
        base = name.partition(".")[0].lower()
        if base in _INDEX_NAMES and directories:
            base = directories.pop().lower()
        joined = self._joined(base.strip("_"))
        said: dict[Term, float] = dict.fromkeys(joined, 1.5)
        for term in self.in_text(path):
            forms = term.forms
            if term in joined or is_form(base.strip("_"), forms):
                said[term] = 1.5
            else:
                said[term] = 1.0 if any(is_form(each.lower(), forms) for each in directories) else 0.5
        return said

    def _joined(self, base: str) -> set[Term]:
        """Return the consecutive terms of the question that form the file's name together, as in webbrowser.py."""
        joined: set[Term] = set()
        for first, second in zip(self.question.terms, self.question.terms[1:], strict=False):
            for form in first.forms:
                rest = base.removeprefix(form).lstrip("_-")
                if base.startswith(form) and any(rest.startswith(f) and len(rest) <= len(f) + 4 for f in second.forms):
                    joined |= {first, second}
        return joined


def _rarity(term: Term, files_with_word: Mapping[str, int], files: int) -> float:
    counts = [files_with_word[form] for form in term.forms if form in files_with_word]
    if not counts:
        return 1.0
    return 0.3 + math.log(1 + (files + 0.5) / (max(counts) + 0.5)) / math.log(1 + (files + 0.5) / 0.5)


def _pattern(term: Term) -> re.Pattern[str]:
    """Return the pattern of a term: the start of a word or of a part of an identifier; a short word also ends there."""
    forms: list[str] = []
    for form in term.forms:
        escaped = re.escape(form)
        ending = _INFLECTED if len(form) <= 3 else ""
        hump = form[0].upper() + re.escape(form[1:])
        forms.append(rf"(?<![A-Za-z])(?i:{escaped}){ending}|(?<=[a-z])(?:{hump}|{re.escape(form.upper())}){ending}")
        if len(form) > 3:  # the term may end a compound word, as "level" does in "compresslevel"
            forms.append(rf"(?<=[A-Za-z]{{3}})(?i:{escaped}(?:e?s)?)(?![A-Za-z])")
    return re.compile("|".join(forms))


def best_passages(weigher: Weigher, lines: Mapping[str, Mapping[int, str]]) -> list[Passage]:
    """Return the passages that are worth quoting, at most five, best first."""
    scopes = [scope for path, known in lines.items() for scope in read_structure(path, known)]
    passages = [passage for scope in scopes if (passage := _weigh(weigher, scope)) is not None]
    passages.sort(key=lambda passage: (-passage.score, passage.scope.path, passage.scope.lines[0].number))
    return _select(weigher, passages)


def _weigh(weigher: Weigher, scope: Scope) -> Passage | None:
    """Return a scope as a scored passage; None for a scope without words of the question.

    The score is that of the best spot in the scope, a few lines long, with the words in its names and its path. The
    rest of the scope adds little, so that a long function does not win because every word occurs somewhere in it.
    """
    said = [(line, terms) for line in scope.lines if (terms := weigher.in_line(line, scope))]
    if not said:
        return None
    context = weigher.in_path(scope.path)
    around = scope.parent
    while around is not None:
        for term in weigher.in_text(around.name):
            context[term] = context.get(term, 0.0) + 0.8
        around = around.parent
    best, spot = max(
        (_spot(weigher, scope, said, index, context) for index in range(len(said))), key=lambda item: item[0]
    )
    own = {term for _, terms in said for term in terms}
    elsewhere = sum(weigher.weights[term] for term in own if term not in spot)
    score = best + 0.25 * elsewhere
    if is_secondary(scope.path):
        score *= 0.5
    return Passage(scope, score, terms=own | set(context), own=own)


def _spot(
    weigher: Weigher,
    scope: Scope,
    said: Sequence[tuple[Line, dict[Term, float]]],
    index: int,
    context: Mapping[Term, float],
) -> tuple[float, dict[Term, float]]:
    """Return the score of the lines around one line, and the terms in them."""
    centre = said[index][0]
    spot: dict[Term, float] = {}
    literal = False
    for line, terms in _around(said, index):
        nearness = 1 - abs(line.number - centre.number) / (2 * _REACH_LINES)
        for term, quality in terms.items():
            spot[term] = max(spot.get(term, 0.0), quality * nearness)
        literal = literal or _gives_value(line, scope)
    for line in scope.head[:1]:  # the head counts for all of its scope
        for term, quality in weigher.in_line(line, scope).items():
            spot[term] = max(spot.get(term, 0.0), 0.7 * quality)
    score = sum(weigher.weights[term] * quality for term, quality in spot.items())
    score += sum(weigher.weights[term] * (0.8 if term in spot else 0.5) * quality for term, quality in context.items())
    covered = sum(weigher.weights[term] for term in {*spot, *context}) / weigher.total
    score *= 0.4 + 0.6 * covered
    if literal and weigher.question.wants_values:
        score *= 1.3
        if centre.kind == "assign" and len(list(weigher.in_text(centre.name))) > 1 and _gives_value(centre, scope):
            score *= 1.3  # such as BUFFER_SIZE = 10, for a question about the size of a buffer
    return score, spot


def _around(said: Sequence[tuple[Line, dict[Term, float]]], index: int) -> Iterable[tuple[Line, dict[Term, float]]]:
    centre = said[index][0].number
    first = index
    while first and centre - said[first - 1][0].number <= _REACH_LINES:
        first -= 1
    for item in said[first:]:
        if item[0].number - centre > _REACH_LINES:
            return
        yield item


def _gives_value(line: Line, scope: Scope) -> bool:
    """Return whether the line assigns a literal value to a parameter, a field or a name outside of functions."""
    lasting = line in scope.head or (line.kind == "assign" and scope.what not in _FUNCTIONS)
    return lasting and _LITERAL.search(line.text) is not None


def _select(weigher: Weigher, passages: Sequence[Passage]) -> list[Passage]:
    chosen: list[Passage] = []
    seen: set[Term] = set()
    rest = list(passages[:60])
    while rest and len(chosen) < len(_MAX_LINES):
        worth = {id(passage): passage.score * (1 + 0.5 * _fresh(weigher, passage.own - seen)) for passage in rest}
        best = max(rest, key=lambda passage: worth[id(passage)])
        rest.remove(best)
        if chosen and worth[id(best)] < _MIN_SCORE * chosen[0].score:
            break
        best.lines = _lines_of(weigher, best.scope, _MAX_LINES[len(chosen)])
        seen |= best.own
        chosen.append(best)
    return chosen


def _fresh(weigher: Weigher, terms: Iterable[Term]) -> float:
    return sum(weigher.weights[term] for term in terms) / weigher.total


def _lines_of(weigher: Weigher, scope: Scope, max_lines: int) -> list[Line]:
    """Return the lines to quote, in the order of the text.

    A short definition or section that the question names is quoted completely. Otherwise the head is quoted, then the
    best lines up to `max_lines`. Of a class, the fields are quoted too if the question asks for values, and the heads
    of its methods that the question names.
    """
    named = _named(weigher, scope)
    body = [line for line in scope.lines if line.kind != "blank"]
    if named and scope.head and scope.what not in _FIELDS and len(body) <= 1.6 * max_lines:
        return body
    kept = {line.number: line for line in scope.head[:1]}
    if scope.what in _FIELDS:
        wanted = _fields(weigher, scope) if named and weigher.question.wants_values else []
        wanted += [
            line
            for each in scope.inside
            if any(weigher.in_text(each.name))
            for line in [*each.head[:1], *[line for line in each.doc if line.kind == "text"][:1]]
        ][: max_lines // 2]
        kept |= {line.number: line for line in wanted}
        max_lines = max(max_lines, len(kept) + 5)
    scores = _line_scores(weigher, scope, named)
    top = max((scores[line.number] for line in scope.lines if line not in scope.head[:1]), default=0.0)
    for line in sorted(scope.lines, key=lambda line: (-scores[line.number], line.number)):
        if len(kept) >= max_lines or scores[line.number] < 0.3 * top or scores[line.number] <= 0:
            break
        kept[line.number] = line
    return [kept[number] for number in sorted(kept)]


def _fields(weigher: Weigher, scope: Scope) -> list[Line]:
    """Return the fields of a class, and the parameters of its constructor."""
    fields = [line for line in scope.lines if line.kind == "assign"]
    for each in scope.inside:
        if each.name in _CONSTRUCTORS:
            fields += each.head
    spoken = [line for line in fields if any(weigher.in_text(line.text))]
    return [*spoken[:8], *fields][:_MAX_FIELD_LINES]


def _named(weigher: Weigher, scope: Scope) -> float:
    """Return the sum of the weights of the terms in the scope's own name."""
    return sum(weigher.weights[term] for term in weigher.in_text(scope.name))


def _line_scores(weigher: Weigher, scope: Scope, named: float) -> dict[int, float]:
    """Return a score for each line, from its own words, those of its neighbours, and its role in the scope."""
    question = weigher.question
    own: dict[int, float] = {}
    for line in scope.lines:
        score = sum(weigher.weights[term] * quality for term, quality in weigher.in_line(line, scope).items())
        if score and question.wants_values and _gives_value(line, scope):
            score *= 1.6
        elif score and question.wants_values and line.kind == "assign" and _NUMBER.search(line.text):
            score *= 1.4
        if score and question.wants_consequence and _CONSEQUENCE.search(line.text):
            score *= 1.4
        own[line.number] = score
    scores: dict[int, float] = {}
    for line in scope.lines:
        score = own[line.number]
        if line.kind != "blank":
            score += 0.35 * max(own.get(line.number - 1, 0.0), own.get(line.number + 1, 0.0))
            score += named * _part(question, scope, line)
        scores[line.number] = score
    return scores


def _part(question: Question, scope: Scope, line: Line) -> float:
    """Return the value of a line's role (signature, summary, field) in a scope that the question names."""
    if line in scope.head:
        return 1.2 if question.wants_values else 0.8
    if line in scope.doc:
        return 0.8 if scope.doc.index(line) < 3 else 0.4
    if scope.what in _FIELDS and line.kind == "assign":
        return 1.2 if question.wants_values else 0.5
    if scope.what == "section":
        return 0.5
    return 0.0
