"""The language of docstrings, comments and messages: plain English, with the field's words (house style, rules 13 to 20)."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.shape import statements_in

ROOT = Path(__file__).parents[1]
READ = ("src/toolbus", "dev.py", "benchmarks", "docs_site", "soak", "examples", "tests/support", "tests/**/conftest.py")

QUESTIONS = frozenset(
    "how what whatever when where whether which who whoever whom whose why".split()  # noqa: SIM905 -- a line of words
)

PHRASES = [  # what is not said, and what is; each begins with a word
    (r"\b(is|are|was|were|be|been) told\b", "is published, reported or logged"),
    (r"\btells? of\b", "reports"),
    (r"\bunless told\b", "unless stated otherwise"),
    (r"(?-i:\b(is|are|was|were) none\b(?! of))", "is not a ..., or: does not exist"),
    (
        r"\b(that|it|this|which|he|she) (is|are) no (?!longer|more|limit|need|way|such|reason|other|worse|better)",
        "is not a",
    ),
    (r"\bgo(es|ing)? on\b(?! the (bus|event))|\bwent on\b", "continue"),
    (r"\bmend(s|ed|ing)?\b", "repair"),
    (r"\bow(e|es|ed|ing)\b", "has still to write, or to report"),
    (r"\bshel(f|ves)\b|\bhouse\b|\brooms?\b", "the thing itself"),
    (r"\balone\b", "only"),
    (
        r"\bbehind (a|an|the|its|their|our|it|them|that|this) (\w+ )?(instructions|message|line|name|text|word|time-out|id)",
        "after",
    ),
    (r"\bin the place of\b", "in place of, or instead of"),
    (r"\b(for|to|by) who\b", "whoever, or a process that"),
    (r"(?<= )say,|(?<=\()say ", "for example"),
    (r"\bas (it )?may be\b", "plain words"),
    (r"\b(the|its|their|a|which|each|of) places?\b(?! (in|of) (the )?(memory|line))", "position, slot or location"),
    (r"\bgives? way\b", "yields"),
]
ALLOWED = [
    r"stand[- ]alone",
    r"[\"']alone[\"']",  # the value of `NativeOutput`
    r"\bplace(s|d)? (a|an|the|it|them) ",
]

SUSPECT = re.compile(rf"\b(?:{'|'.join(phrase for phrase, _ in PHRASES)})", re.IGNORECASE)
"""Any of the phrases: one look at a whole file, most of which have none."""


ASKED = re.compile(rf"[\"'][\s`,.:;\\]*({'|'.join(QUESTIONS)})\b", re.IGNORECASE)
"""A string that begins with a question word. Only files with one are parsed, to see whether it is a docstring."""


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """The lines of a module's comments, and its string literals."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            yield token.start[0], token.string


def docstrings_of(source: str) -> Iterator[tuple[int, str]]:
    for node in statements_in(ast.parse(source)):
        documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if documented and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text


def findings(path: Path) -> list[str]:
    """The mistakes in a module: each phrase with its line, and what to write instead."""
    where = path.relative_to(ROOT)
    source = path.read_text(encoding="utf-8")
    found = [
        f"{where}:{line}: begins with a question word: {text.splitlines()[0][:60]!r}"
        for line, text in (docstrings_of(source) if ASKED.search(source) else ())
        if text.split()[0].strip("`,.:;").lower() in QUESTIONS
    ]
    suspect = SUSPECT.search(re.sub("|".join(ALLOWED), "", source))
    for line, text in texts_of(source) if suspect else ():
        for allowed in ALLOWED:
            text = re.sub(allowed, "", text)
        found += [
            f"{where}:{line + text[: match.start()].count(chr(10))}: {match[0]!r}; write: {instead}"
            for phrase, instead in PHRASES
            for match in re.finditer(phrase, text, re.IGNORECASE)
        ]
    return found


def findings_in_prose(path: Path) -> list[str]:
    """The phrases in a page, outside of code and of the targets of links."""
    text = path.read_text(encoding="utf-8")
    for left_out in (r"^( *)(```+).*?^\1\2", r"`[^`\n]+`", r"\]\([^)]+\)", *ALLOWED):
        text = re.sub(left_out, lambda found: "\n" * found[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    return [
        f"{path.relative_to(ROOT)}:{text[: match.start()].count(chr(10)) + 1}: {match[0]!r}; write: {instead}"
        for phrase, instead in PHRASES
        for match in re.finditer(phrase, text, re.IGNORECASE)
    ]


def files_of(name: str) -> list[Path]:
    """The Python files of a folder, or those that match a pattern."""
    return sorted((ROOT / name).rglob("*.py") if (ROOT / name).is_dir() else ROOT.glob(name))


@pytest.mark.parametrize("name", READ)
def test_docstrings_comments_and_messages_are_in_plain_words(name: str):
    paths = files_of(name)
    found = [each for path in paths for each in findings(path)]
    assert paths
    assert not found, "\n".join(found)


@pytest.mark.parametrize("pattern", ["*.md", "docs/**/*.md", "examples/**/*.md", "tests/data/**/*.md"])
def test_pages_are_in_plain_words(pattern: str):
    pages = sorted(ROOT.glob(pattern))
    found = [each for page in pages for each in findings_in_prose(page)]
    assert pages
    assert not found, "\n".join(found)


def test_what_is_wrong_on_a_page_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("test_language.ROOT", tmp_path)
    page = tmp_path / "x.md"
    page.write_text("# It goes on\n\n`is told` [a](going-on.md)\n\n```\nalone\n```\n\nalone\n", encoding="utf-8")
    assert [each.partition(": ")[0] for each in findings_in_prose(page)] == ["x.md:1", "x.md:9"]


def test_what_is_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("test_language.ROOT", tmp_path)
    path = tmp_path / "x.py"
    path.write_text('"""What it is."""\n\nx = 1  # is told\ny = "it goes on"\n', encoding="utf-8")
    assert [each.partition(": ")[0] for each in findings(path)] == [
        "x.py:1",
        "x.py:3",
        "x.py:4",
    ]


if __name__ == "__main__":  # for the folders or files that are named: python tests/test_language.py src/toolbus/cli
    import sys

    for path in (each for name in sys.argv[1:] or READ for each in files_of(name)):
        sys.stdout.writelines(f"{each}\n" for each in findings(path))
