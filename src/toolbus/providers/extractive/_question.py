"""The reading of a question: its words with their weights, its identifiers, and the kind of answer that is wanted.

The module is pure. It knows English and program text in general, and no project and no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ...core.text_structure import spaced, words_in


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# These words have no content in a question.
_STOP = _word_set(
    """
    a about above across actually after again all already also although always am an and any anybody anyone
    anything are aren arent around as at b be because been before being below between both but by c can cannot
    could couldn d did didn do does doesn doing don done each either else etc even ever every everything exactly
    few for from further had has hasn have haven having he hello help her here hers hi him his how however i if
    in inside instead into is isn it its itself just kind know let like ll m made make makes many may maybe me
    might mine more most much must my nor not now of off often ok on once one ones only onto or other our ours
    out outside over own part particular per please possible put quite rather re really s same say see shall she
    should show shows since so some somebody someone something still such t tell than thanks that the their
    theirs them then there these they thing things this those though through thus to together too under until up
    upon us use used user uses using usually ve very via want was wasn way ways we were what whatever when
    whenever where whether which while who whole whom whose why will with within without won would yet you your
    yours explain describe find give list mention name named names located location defined definition define
    declared happen happens happened come comes go goes look looks mean means meaning work works working
    """
)
# These words have content, but occur everywhere. They weigh less, and are searched only if there are few other words.
_WEAK = _word_set(
    """
    code file files function functions method methods class classes module modules library package project
    program value values variable variables argument arguments parameter parameters option options object
    objects call calls called get gets set sets handle handles handled handling return returns returned take
    takes need needs needed support supports supported provide provides implement implemented implements
    implementation allow allows allowed do python javascript different first last new available run runs running
    create created creates given give check checks checked behave behaves determine determined decide decides
    decided treat treats type types able long big often add added cause causes purpose role
    """
)
# Programs write these short forms in addition to the words.
_SHORT_FORMS = {
    "maximum": "max", "minimum": "min", "directory": "dir", "directories": "dir", "environment": "env",
    "configuration": "config", "configure": "config", "configured": "config", "length": "len", "message": "msg",
    "temporary": "tmp", "connection": "conn", "authentication": "auth", "authorization": "auth", "authenticate": "auth",
    "database": "db", "integer": "int", "application": "app", "specification": "spec", "colour": "color",
    "colours": "color", "documentation": "doc", "expression": "expr", "regular": "regex", "number": "num",
    "asynchronous": "async", "initialize": "init", "initialized": "init", "repository": "repo", "statistics": "stat",
    "parentheses": "paren", "dependency": "dep", "dependencies": "dep", "millisecond": "ms", "milliseconds": "ms",
}  # fmt: skip
_EXTENSIONS = _word_set(
    "py pyi js mjs cjs ts tsx jsx json jsonc md mdx rst txt toml cfg ini yml yaml html css "
    "go rs c h cpp hpp java rb sh sql lock xml"
)
# For questions with these words, `name = value` is likely the answer.
_VALUE = re.compile(
    r"\b(?:defaults?|values?|constants?|how (?:many|much|long|big|large|often)|maximum|minimum|max|min|limits?|number|"
    r"size|sizes|timeouts?|version|port|which|settings?|options?|list)\b",
    re.IGNORECASE,
)
_CONSEQUENCE = re.compile(r"\b(?:what happens|errors?|exceptions?|raises?|raised|fails?|refused?)\b", re.IGNORECASE)
_HOW = re.compile(r"\bhow (?:long|many|much|big|large|often|far|fast|high|deep|exactly)\b", re.IGNORECASE)
# The word next to one of these is a name: "the warnings module", "class Runtime".
_KINDS = "module|package|library|class|function|method|command|script|decorator|exception|provider|component|hook"
_POINTED_AT = re.compile(rf"\b(\w+) (?:{_KINDS})\b|\b(?:{_KINDS}) (\w+)")
_NAME = re.compile(r"(?<=[\w,;:] )[A-Z][a-z]\w+")  # in the middle of a sentence
_TOKEN = re.compile(r"(?:--?)?[^\W\d][\w]*(?:[.\-/][^\W\d]\w*)*(?:\(\))?|\d+(?:\.\d+)*|_\w+")
_VOWEL = re.compile(r"[aeiouy]")
_ENDINGS = (("ation", 4), ("ion", 5), ("ing", 4), ("ed", 4))  # with the number of letters that must remain
_FOLLOW_UP = re.compile(
    r"^\s*(?:and|but|so|also|what about|how about|then)\b|\b(?:it|its|they|them|their|this|those)\b", re.IGNORECASE
)


@dataclass(slots=True, frozen=True)
class Term:
    """A word to look for. `forms` are beginnings of matching words; an `identifier` is written as in a program."""

    text: str
    forms: tuple[str, ...]
    weight: float = 1.0
    identifier: bool = False


@dataclass(slots=True, frozen=True)
class Question:
    """The terms of a question, in its order, and the kind of line that answers it."""

    terms: tuple[Term, ...]
    wants_values: bool = False
    wants_consequence: bool = False

    @property
    def searched(self) -> tuple[Term, ...]:
        """The terms worth their own search: all but the weak ones, unless there is little else."""
        strong = tuple(term for term in self.terms if term.weight >= 0.5)
        return strong if len(strong) >= 2 or len(strong) == len(self.terms) else self.terms

    @property
    def identifiers(self) -> tuple[str, ...]:
        """The names that are written like identifiers in a program, without the part before their last dot."""
        return tuple(dict.fromkeys(term.text.rpartition(".")[2] for term in self.terms if term.identifier))

    def widened(self) -> Question:
        """Return the question with the words in its identifiers added, for when the identifiers were not found."""
        known = {form for term in self.terms for form in term.forms}
        pieces = [piece for name in self.identifiers for piece in split_identifier(name) if piece not in _STOP]
        terms = (Term(piece, _forms(piece), 0.8) for piece in dict.fromkeys(pieces))
        return replace(self, terms=(*self.terms, *(term for term in terms if not known.intersection(term.forms))))


def read_question(text: str, earlier: Sequence[str] = ()) -> Question:
    """Read the question `text`. A follow-up takes its subject from the `earlier` questions, newest first."""
    terms = _terms(text)
    strong = sum(term.weight >= 0.5 for term in terms)
    if earlier and (strong < 2 or (strong < 4 and _FOLLOW_UP.search(text))):
        known = {form for term in terms for form in term.forms}
        terms += [
            Term(term.text, term.forms, 0.5 * term.weight, term.identifier)
            for term in _terms(earlier[0])
            if not known.intersection(term.forms)
        ]
    return Question(
        terms=tuple(terms[:16]),
        wants_values=_VALUE.search(text) is not None,
        wants_consequence=_CONSEQUENCE.search(text) is not None,
    )


def _terms(text: str) -> list[Term]:
    found: dict[tuple[str, ...], Term] = {}
    text = _HOW.sub("how", text)
    quoted = {piece for span in re.findall(r"`([^`]+)`", text) for piece in _TOKEN.findall(span)}
    pointed_at = {match[1] or match[2] for match in _POINTED_AT.finditer(text)}
    named = set(_NAME.findall(text))
    for token in _TOKEN.findall(spaced(text)):
        for term in _of_token(token, quoted=token in quoted or token in named):
            known = found.get(term.forms)
            weighed = replace(term, weight=1.4) if token in pointed_at and term.weight == 1.0 else term
            if known is None or known.weight < weighed.weight:
                found[term.forms] = weighed
    return list(found.values())


def _of_token(token: str, *, quoted: bool) -> Iterable[Term]:
    called = token.endswith("()")
    name = token.removesuffix("()").lstrip("-")
    lowered = name.lower()
    if re.search(r"[._/]", name.strip("_")) or (name.startswith("_") and len(name) > 2):
        yield from _of_path(name)
    elif quoted or called or (re.search(r"[a-z][A-Z]|[A-Z][A-Z]+[a-z]{2}", name) and len(name) > 3):
        yield Term(name, (lowered,), 1.5, identifier=True)
    elif "-" in name:
        for piece in name.split("-"):
            yield from _of_token(piece, quoted=False)
    elif lowered in _STOP or (len(lowered) == 1 and lowered != lowered.upper()):
        return
    else:
        weight = 0.4 if lowered in _WEAK else 0.7 if lowered in ("default", "defaults") else 1.0
        yield Term(lowered, _forms(name), weight)


def _forms(word: str) -> tuple[str, ...]:
    lowered = word.lower()
    if word.isupper() or (word[:-1].isupper() and word.endswith("s")):  # "URLs" is a plural, "HTTPS" is not
        return (word.removesuffix("s").lower(),)
    forms = tuple(form for form in stem(lowered) if form == lowered or form not in _STOP | _WEAK)
    short = _SHORT_FORMS.get(lowered)
    return (*forms, short) if short else forms


def _of_path(name: str) -> Iterable[Term]:
    """Yield the terms of a dotted name or path (`socket.create_connection`, `src/app.js`); the last part weighs most.

    The whole name is not a term, because it occurs where the thing is used, not where it is defined. The whole path of
    a file is one.
    """
    parts = [part for part in re.split(r"[./]", name) if part.strip("_")]
    if parts[-1].lower() in _EXTENSIONS:
        yield Term(name, (name.lower(),), 1.2)
        return
    for part in parts[:-1]:
        yield Term(part, (part.lower(),), 1.0)
    yield Term(parts[-1], (parts[-1].lower(),), 1.5, identifier=True)


def split_identifier(name: str) -> list[str]:
    """Return the words in a snake_case or camelCase name, in lower case, without words of one letter."""
    return [piece.lower() for piece in words_in(name) if len(piece) > 1]


def stem(word: str) -> tuple[str, ...]:
    """Return the beginnings that the forms of an English word share: "handl" for "handles" and "handling".

    Endings are cut only if at least four letters remain; if the forms share too little, there are two beginnings.
    """
    base = _singular(word)
    if base.endswith("y") and len(base) > 4 and base[-2] not in "aeou":
        return (base, f"{base[:-1]}i")
    for ending, least in _ENDINGS:
        cut = base.removesuffix(ending)
        if cut == base or cut.endswith("e") or not _VOWEL.search(cut):
            continue
        doubled = len(cut) > 3 and cut[-1] == cut[-2] and cut[-1] not in "lsz"
        cut = cut[:-1] if doubled else cut
        if len(cut) >= least:
            return (cut,)
        if doubled:
            return (base, cut)
    return (base[:-1],) if base.endswith("e") and len(base) > 4 else (base,)


def _singular(word: str) -> str:
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    if word.endswith(("sses", "xes", "ches", "shes", "zzes")):
        return word[:-2]
    return word[:-1]
