"""Which of the lines that were read answer the question, and how well.

A passage is a part of one scope: its head, and the lines in it that speak of the question's words. Words count by how
rare they are in the searched tree, and more where a line defines something than where it uses it. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...core.text_structure import Line, Scope, read_structure
from ._question import Question, Term

__all__ = ["Passage", "Weigher", "best_passages", "is_secondary"]

# Tests, examples and vendored sources tell how a thing is used, rarely what it is.
_SECONDARY = re.compile(
    r"(?:^|/)(?:tests?|testing|testdata|\w+_tests?|__tests__|specs?|fixtures|mocks?|examples?|demos?|benchmarks?|vendor(?:ed)?|"
    r"_vendor|third_party|external|dist|build|generated)/|(?:^|/)(?:test_[^/]*|[^/]*[._-](?:test|spec|min))\.\w+$",
    re.IGNORECASE,
)
_LITERAL = re.compile(
    r"(?:^|[\s=(,:])(?:-?\d[\d_.]*|None|True|False|null|true|false|undefined|\"[^\"]*\"|'[^']*')\s*(?:[,);}#]|//|$)"
)
# What may stand behind a short word: "log" is in logs and logging, not in logic.
_INFLECTED = r"(?i:e?s|e?d|ings?|ers?|[bdgmnprt](?:ings?|ed|ers?))?(?![a-z])"
_ENDING = re.compile(r"e?|e?s|e?d|ings?|ers?|ions?|ations?|[bdgmnprt](?:ings?|ed|ers?)|y|ies")
_DOCTEST = re.compile(r"\s*>>> ")
_NUMBER = re.compile(r"(?<![\w.])\d")
_CONSEQUENCE = re.compile(
    r"\b(?:raise|raises|raised|throw|throws|error|except|catch|return|returns|warn)\b", re.IGNORECASE
)
_INDEX_NAMES = frozenset({"__init__", "index", "mod", "readme", "lib", "main"})
_FUNCTIONS = frozenset({"def", "function", "function*", "func", "fn"})
_FIELDS = frozenset({"class", "struct", "enum", "interface", "type", "record"})
_CONSTRUCTORS = frozenset({"__init__", "constructor", "__new__", "new"})
_REACH = 5  # lines around a spot that count for it
_ROOM = (14, 9, 6, 6, 5)  # lines of the best passage, of the second best ...
_FIELD_ROOM = 26  # lines of a class whose fields are the answer
_WORTH = 0.5  # of the best passage's score


@dataclass(slots=True)
class Passage:
    """Lines of one scope, in order, with the head's.

    `terms` are the words of the question that the scope, the names around it or its path hold, `own` those in its
    lines.
    """

    scope: Scope
    score: float
    lines: list[Line] = field(default_factory=list[Line])
    terms: set[Term] = field(default_factory=set[Term])
    own: set[Term] = field(default_factory=set[Term])


class Weigher:
    """How much each term of the question counts, and where it stands in a line."""

    def __init__(self, question: Question, files_with_word: Mapping[str, int], files: int) -> None:
        self.question = question
        self.weights = {term: term.weight * _rarity(term, files_with_word, max(files, 1)) for term in question.terms}
        self.total = sum(self.weights.values()) or 1.0
        self._patterns = {term: _pattern(term) for term in question.terms}

    def in_text(self, text: str) -> Iterable[Term]:
        """The terms that stand in `text`."""
        return (term for term, pattern in self._patterns.items() if pattern.search(text))

    def in_line(self, line: Line, scope: Scope) -> dict[Term, float]:
        """The terms in a line of `scope`, each with how much it says there: most in the name that the line defines."""
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
        """The terms in a file's path: most where a term is its name."""
        *directories, name = path.split("/")
        base = name.split(".", 1)[0].lower()
        if base in _INDEX_NAMES and directories:
            base = directories.pop().lower()
        joined = self._joined(base.strip("_"))
        said: dict[Term, float] = dict.fromkeys(joined, 1.5)
        for term in self.in_text(path):
            forms = term.forms
            if term in joined or _is_form(base.strip("_"), forms):
                said[term] = 1.5
            else:
                said[term] = 1.0 if any(_is_form(each.lower(), forms) for each in directories) else 0.5
        return said

    def _joined(self, base: str) -> set[Term]:
        """Terms that follow each other in the question and make up the file's name, as in webbrowser.py."""
        joined: set[Term] = set()
        for first, second in zip(self.question.terms, self.question.terms[1:], strict=False):
            for form in first.forms:
                rest = base.removeprefix(form).lstrip("_-")
                if base.startswith(form) and any(rest.startswith(f) and len(rest) <= len(f) + 4 for f in second.forms):
                    joined |= {first, second}
        return joined


def _is_form(word: str, beginnings: Iterable[str]) -> bool:
    """Whether `word` is one of the beginnings, but for the ending that grammatical forms differ in."""
    return any(word.startswith(each) and _ENDING.fullmatch(word, len(each)) for each in beginnings)


def _rarity(term: Term, files_with_word: Mapping[str, int], files: int) -> float:
    counts = [files_with_word[form] for form in term.forms if form in files_with_word]
    if not counts:
        return 1.0
    return 0.3 + math.log(1 + (files + 0.5) / (max(counts) + 0.5)) / math.log(1 + (files + 0.5) / 0.5)


def _pattern(term: Term) -> re.Pattern[str]:
    """A beginning of a word, or of a part of an identifier; short words must end there, too."""
    forms: list[str] = []
    for form in term.forms:
        escaped = re.escape(form)
        ending = _INFLECTED if len(form) <= 3 else ""
        hump = form[0].upper() + re.escape(form[1:])
        forms.append(rf"(?<![A-Za-z])(?i:{escaped}){ending}|(?<=[a-z])(?:{hump}|{re.escape(form.upper())}){ending}")
        if len(form) > 3:  # the end of a compound without a joint, "level" in "compresslevel"
            forms.append(rf"(?<=[A-Za-z]{{3}})(?i:{escaped}(?:e?s)?)(?![A-Za-z])")
    return re.compile("|".join(forms))


def is_secondary(path: str) -> bool:
    """Whether the path looks like a test, an example, vendored or generated."""
    return _SECONDARY.search(path) is not None


def best_passages(weigher: Weigher, lines: Mapping[str, Mapping[int, str]]) -> list[Passage]:
    """The passages worth quoting, five at most, best first."""
    scopes = [scope for path, known in lines.items() for scope in read_structure(path, known)]
    passages = [passage for scope in scopes if (passage := _weigh(weigher, scope)) is not None]
    passages.sort(key=lambda passage: (-passage.score, passage.scope.path, passage.scope.lines[0].number))
    return _select(weigher, passages)


def _weigh(weigher: Weigher, scope: Scope) -> Passage | None:
    """How well a scope speaks of the question; None for one that does not.

    What counts is the best spot in it, a few lines long, with what its names and its path say; the rest of the scope
    adds little, so that a long function is not better for holding every word somewhere.
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
    """The score of the lines around one of them, and the terms there."""
    centre = said[index][0]
    spot: dict[Term, float] = {}
    literal = False
    for line, terms in _around(said, index):
        nearness = 1 - abs(line.number - centre.number) / (2 * _REACH)
        for term, quality in terms.items():
            spot[term] = max(spot.get(term, 0.0), quality * nearness)
        literal = literal or _gives_value(line, scope)
    for line in scope.head[:1]:  # the head speaks for all of its scope
        for term, quality in weigher.in_line(line, scope).items():
            spot[term] = max(spot.get(term, 0.0), 0.7 * quality)
    score = sum(weigher.weights[term] * quality for term, quality in spot.items())
    score += sum(weigher.weights[term] * (0.8 if term in spot else 0.5) * quality for term, quality in context.items())
    covered = sum(weigher.weights[term] for term in {*spot, *context}) / weigher.total
    score *= 0.4 + 0.6 * covered
    if literal and weigher.question.wants_values:
        score *= 1.3
        if centre.kind == "assign" and len(list(weigher.in_text(centre.name))) > 1 and _gives_value(centre, scope):
            score *= 1.3  # BUFFER_SIZE = 10, and the buffer's size is what was asked for
    return score, spot


def _around(said: Sequence[tuple[Line, dict[Term, float]]], index: int) -> Iterable[tuple[Line, dict[Term, float]]]:
    centre = said[index][0].number
    first = index
    while first and centre - said[first - 1][0].number <= _REACH:
        first -= 1
    for item in said[first:]:
        if item[0].number - centre > _REACH:
            return
        yield item


def _gives_value(line: Line, scope: Scope) -> bool:
    """Whether the line gives a name that lasts, a parameter or a field a literal value."""
    lasting = line in scope.head or (line.kind == "assign" and scope.what not in _FUNCTIONS)
    return lasting and _LITERAL.search(line.text) is not None


def _select(weigher: Weigher, passages: Sequence[Passage]) -> list[Passage]:
    chosen: list[Passage] = []
    seen: set[Term] = set()
    rest = list(passages[:60])
    while rest and len(chosen) < len(_ROOM):
        worth = {id(passage): passage.score * (1 + 0.5 * _fresh(weigher, passage.own - seen)) for passage in rest}
        best = max(rest, key=lambda passage: worth[id(passage)])
        rest.remove(best)
        if chosen and worth[id(best)] < _WORTH * chosen[0].score:
            break
        best.lines = _lines_of(weigher, best.scope, _ROOM[len(chosen)])
        seen |= best.own
        chosen.append(best)
    return chosen


def _fresh(weigher: Weigher, terms: Iterable[Term]) -> float:
    return sum(weigher.weights[term] for term in terms) / weigher.total


def _lines_of(weigher: Weigher, scope: Scope, room: int) -> list[Line]:
    """The lines to quote, in the order of the text.

    All of a short definition or section that the question names; else the head, then the best lines until the room is
    filled. Of a class also its fields, where values were asked for, and the heads inside it that are named.
    """
    named = _named(weigher, scope)
    body = [line for line in scope.lines if line.kind != "blank"]
    if named and scope.head and scope.what not in _FIELDS and len(body) <= 1.6 * room:
        return body
    kept = {line.number: line for line in scope.head[:1]}
    if scope.what in _FIELDS:
        wanted = _fields(weigher, scope) if named and weigher.question.wants_values else []
        wanted += [
            line
            for each in scope.inside
            if any(weigher.in_text(each.name))
            for line in [*each.head[:1], *each.doc[:1]]
            if line.kind != "comment"
        ][: room // 2]
        kept |= {line.number: line for line in wanted}
        room = max(room, len(kept) + 5)
    scores = _line_scores(weigher, scope, named)
    top = max((scores[line.number] for line in scope.lines if line not in scope.head[:1]), default=0.0)
    for line in sorted(scope.lines, key=lambda line: (-scores[line.number], line.number)):
        if len(kept) >= room or scores[line.number] < 0.3 * top or scores[line.number] <= 0:
            break
        kept[line.number] = line
    return [kept[number] for number in sorted(kept)]


def _fields(weigher: Weigher, scope: Scope) -> list[Line]:
    """The fields of a class, and the parameters of its constructor."""
    fields = [line for line in scope.lines if line.kind == "assign"]
    for each in scope.inside:
        if each.name in _CONSTRUCTORS:
            fields += each.head
    spoken = [line for line in fields if any(weigher.in_text(line.text))]
    return [*spoken[:8], *fields][:_FIELD_ROOM]


def _named(weigher: Weigher, scope: Scope) -> float:
    """How much of the question the scope's own name holds."""
    return sum(weigher.weights[term] for term in weigher.in_text(scope.name))


def _line_scores(weigher: Weigher, scope: Scope, named: float) -> dict[int, float]:
    """A score for each line, from its own words, those of its neighbours, and its part in the scope."""
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
    """What a line's part in a scope that the question names is worth: signature, summary, fields."""
    if line in scope.head:
        return 1.2 if question.wants_values else 0.8
    if line in scope.doc:
        return 0.8 if scope.doc.index(line) < 3 else 0.4
    if scope.what in _FIELDS and line.kind == "assign":
        return 1.2 if question.wants_values else 0.5
    if scope.what == "section":
        return 0.5 if line.number - scope.lines[0].number < 8 else 0.2
    return 0.0
