"""The words of code and of questions: identifiers split into parts, and a question as an FTS5 query. Pure."""

from __future__ import annotations

import re

from ...core.text_structure import spaced, words_in

_MAX_TERMS = 32
# The longest word: longer runs of letters and digits are encoded data.
_MAX_WORD_CHARS = 64
_IDENTIFIER = re.compile(r"[^\W_]\w*")
# These words of questions occur in most comments. Without them a query of a sentence is several times faster.
_STOP_LIST = (
    "a about all am an and any are as at be been being but by can could did do does done for from give gives had "
    "has have how i if in into is it its just make makes may me my no not of on one or our out over please shall "
    "should show so some than that the their them then there these they this those to up us use used uses using "
    "was we were what when where which while who whom whose why will with without would you your find function "
    "method class code"
)
_STOPPED = frozenset(_STOP_LIST.split())


def split_identifiers(text: str) -> str:
    """Return the words of `text`, with identifiers split: "getUserName" is "get User Name", MAX_SIZE is "MAX SIZE".

    Where a language has no spaces between words, the words are pairs of characters.
    """
    words: list[str] = []
    for match in _IDENTIFIER.finditer(text):
        for word in (match[0],) if match[0].isascii() else spaced(match[0]).split():
            if len(word) <= _MAX_WORD_CHARS:
                words += [word] if word.islower() and word.isalpha() else words_in(word)
    return " ".join(words)


def as_query(question: str) -> str:
    """Return an FTS5 query for any of the question's words; empty without words. No word is taken as syntax."""
    words = list(dict.fromkeys(word.lower() for word in split_identifiers(question).split()))
    telling = [word for word in words if word not in _STOPPED] or words
    return " OR ".join(f'"{word}"' for word in telling[:_MAX_TERMS])
