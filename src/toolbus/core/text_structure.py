"""The structure of a text: the kind of each line, the definition or section that it belongs to, and its words. Pure.

The structure is read from indentation, which is right for nearly all well-formatted code, and from headings in prose;
no language is parsed.

Example:
    from toolbus.core.text_structure import is_form, is_prose, is_secondary, read_structure, spaced, words_in

    scopes = read_structure("shop.py", {1: "class Shop:", 2: "    def open(self): ..."})
    print(scopes[0].what, words_in("getOrder"))  # class ['get', 'Order']
    print(is_prose("README.md"), is_secondary("tests/shop.py"), is_form("orders", ["order"]))  # True True True
    print(spaced("設定のAPI").split())  # ['設定', '定の', 'API']
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

__all__ = ["Kind", "Line", "Scope", "is_form", "is_prose", "is_secondary", "read_structure", "spaced", "words_in"]

Kind: TypeAlias = Literal["blank", "define", "assign", "heading", "import", "comment", "text", "code"]

_MODIFIERS = (
    r"(?:(?:export|default|public|private|protected|internal|static|abstract|final|async|unsafe|inline|virtual|"
    r"override|declare|sealed|pub(?:\([^)]*\))?)\s+)*"
)
_DEFINE = re.compile(
    rf"^\s*{_MODIFIERS}(?:(?P<what>def|class|function\*?|func|fn|struct|enum|trait|interface|type|namespace|impl|record)\s+"
    r"(?:\([^)]*\)\s*)?|#define\s+)(?P<name>[A-Za-z_$][\w$]*)"
)
# A method in JavaScript, C or Java looks like `name(arguments) {`. So do the statements that are excluded by name.
_METHOD = re.compile(
    r"^\s*(?:[\w<>\[\],*&:]+\s+){0,5}(?!(?:if|for|while|switch|catch|return|else|with)\b)([A-Za-z_$][\w$]*)\s*\([^;]*\)\s*\{\s*$"
)
_ARROW = re.compile(rf"^\s*{_MODIFIERS}(?:const|let|var)\s+([A-Za-z_$][\w$]*)\s*=.*(?:=>|function\b)")
_ASSIGN = re.compile(
    rf"^\s*(?:[-*]\s+)?{_MODIFIERS}(?:(?:const|let|var|readonly|final)\s+)*[\"'`]?(?P<name>[A-Za-z_$][\w$.-]*)[\"'`]?\s*"
    r"(?::[^=\"'(]{1,80})?(?:=(?![=>~])|:=|:\s+|\|\|=)\s*(?P<value>\S.*)$"
)
_KEYWORD = re.compile(
    r"^\s*(?:else|try|except|finally|if|elif|for|while|with|return|case|default|match|lambda|yield|raise|assert|async)\b"
)
_IMPORT = re.compile(
    r"^\s*(?:from\s+\S+\s+import\b|import\b|#\s*include\b|using\s|use\s|(?:const|var|let)\s.*\brequire\()"
)
_COMMENT = re.compile(r"^\s*(?:#(?!\w)|#\s|//|/\*|\*\s|\*/|--\s|;;|<!--)")
_HEADING = re.compile(r"^(#{1,6})\s+\S")
_UNDERLINE = re.compile(r"^([=\-~^\"'`*+#:.])\1{2,}\s*$")
_PROSE = re.compile(
    r"\.(?:md|mdx|markdown|rst|txt|adoc|html?)$|(?:^|/)(?:readme|license|changes|changelog|news)[^/]*$", re.IGNORECASE
)
# Tests, vendored and generated sources show how something is used, rarely its definition: they come last.
_SECONDARY = re.compile(
    r"(?:^|/)(?:(?:\w+_)?tests?|testing|testdata|__tests__|specs?|fixtures|mocks?|examples?|demos?|benchmarks?|vendor(?:ed)?|"
    r"_vendor|third_party|external|dist|build|generated|migrations|locale|i18n|changelogs?)/"
    r"|(?:^|/)(?:test_[^/]*|[^/]*_(?:test|spec)|[^/]*[.-](?:test|spec|min|bundle|lock)|conftest)\.[^/.]+$"
    r"|(?:^|/)(?:change(?:s|log)|history|news)\.(?:md|rst|txt)$",
    re.IGNORECASE,
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\dA-Za-z_]+")
# Chinese characters, kana and Hangul; and the punctuation of these languages.
_UNSPACED = re.compile(
    r"([\u3005\u3041-\u3096\u309d-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    r"\uff66-\uff9f\U00020000-\U000323af]+)|[\u3000-\u3004\u3006-\u3020\u30fb\uff01-\uff0f\uff1a-\uff20\uff5b-\uff65]+"
)
_ENDING = re.compile(r"e?|e?s|e?d|ings?|ers?|ions?|ations?|[bdgmnprt](?:ings?|ed|ers?)|y|ies")
_MIN_PARAGRAPH_LINES = 5  # Shorter paragraphs are joined.
_QUOTES = ('"""', "'''")


@dataclass(slots=True)
class Line:
    """One line: its number from 1, its kind, the name that it defines, and its indentation in columns."""

    number: int
    text: str
    kind: Kind
    name: str = ""
    indent: int = 0


@dataclass(slots=True)
class Scope:
    """A definition or section with its own lines, without those of scopes inside it.

    `head` has the lines of its signature or heading, `doc` those of the docstring or of the comment above it; both are
    also in `lines`. `what` is the keyword of the definition, "function", "macro" or "section". The scope of a file's
    top level has no head.
    """

    path: str
    parent: Scope | None = None
    head: list[Line] = field(default_factory=list[Line])
    doc: list[Line] = field(default_factory=list[Line])
    lines: list[Line] = field(default_factory=list[Line])
    what: str = ""
    inside: list[Scope] = field(default_factory=list["Scope"])

    @property
    def name(self) -> str:
        """The name that the head defines; a heading's text; empty at the top level."""
        return (self.head[0].name or self.head[0].text) if self.head else ""


def words_in(identifiers: str) -> list[str]:
    """Return the words of identifiers: "get", "User" and "Name" for getUserName, "MAX" and "SIZE" for MAX_SIZE."""
    return _WORD.findall(identifiers)


def spaced(text: str) -> str:
    """Return a text with each run of Chinese, Japanese or Korean characters as its pairs of neighbours, without marks.

    These languages put no spaces between words, or few. Most of their words have two characters or more, so the pairs
    of a question are found in a text that has its words.
    """
    return text if text.isascii() else _UNSPACED.sub(_pairs, text)


def _pairs(run: re.Match[str]) -> str:
    chars = run[1] or ""
    pairs = [chars[at : at + 2] for at in range(len(chars) - 1)] or [chars]
    return f" {' '.join(pairs)} "


def is_form(word: str, beginnings: Iterable[str]) -> bool:
    """Return whether `word` is one of the beginnings plus, at most, a grammatical ending."""
    return any(word.startswith(each) and _ENDING.fullmatch(word, len(each)) for each in beginnings)


def is_prose(path: str) -> bool:
    """Return whether the file, by its name, is prose and not code."""
    return _PROSE.search(path) is not None


def is_secondary(path: str) -> bool:
    """Return whether the path looks like a test, an example, or a vendored or generated file."""
    return _SECONDARY.search(path) is not None


def read_structure(path: str, known: Mapping[int, str]) -> list[Scope]:
    """Return the scopes of a file, in order, from its `known` lines by number. A gap in them ends every open scope."""
    prose = is_prose(path)
    scopes: list[Scope] = []
    region: list[tuple[int, str]] = []
    for number in sorted(known):
        if region and number != region[-1][0] + 1:
            scopes += _prose_scopes(path, region) if prose else _code_scopes(path, region)
            region = []
        region.append((number, known[number]))
    if region:
        scopes += _prose_scopes(path, region) if prose else _code_scopes(path, region)
    return [part for scope in scopes for part in ([scope] if scope.head else _paragraphs(scope))]


def _paragraphs(scope: Scope) -> list[Scope]:
    """Return the lines outside of every definition as paragraphs, which end at blank lines."""
    parts = [Scope(scope.path)]
    filled = 0  # the number of lines of the newest part that are not blank
    for line in scope.lines:
        lines = parts[-1].lines
        if lines and (line.number - lines[-1].number > 2 or (line.kind == "blank" and filled >= _MIN_PARAGRAPH_LINES)):
            parts.append(Scope(scope.path))
            filled = 0
        parts[-1].lines.append(line)
        filled += line.kind != "blank"
    return [part for part in parts if any(line.kind != "blank" for line in part.lines)]


# ------------------------------------------------------------------------------------------------- prose


def _prose_scopes(path: str, region: list[tuple[int, str]]) -> list[Scope]:
    """Return a scope for each heading. Markdown's headings nest by level, underlined ones by first use of the mark."""
    scopes = [Scope(path)]
    open_scopes: list[tuple[int, Scope]] = []
    underlines: list[str] = []
    for position, (number, text) in enumerate(region):
        below = region[position + 1][1] if position + 1 < len(region) else ""
        level = 0
        if match := _HEADING.match(text):
            level = len(match[1])
        elif text.strip() and text[0].isalnum() and (match := _UNDERLINE.match(below)) and len(below) >= len(text) - 3:
            if match[1] not in underlines:
                underlines.append(match[1])
            level = 1 + underlines.index(match[1])
        kind: Kind = "heading" if level else "text" if text.strip() else "blank"
        line = Line(number, text, kind, text.strip("# \t") if level else "", _indent(text))
        if level:
            while open_scopes and open_scopes[-1][0] >= level:
                open_scopes.pop()
            scopes.append(Scope(path, open_scopes[-1][1] if open_scopes else None, [line], what="section"))
            open_scopes.append((level, scopes[-1]))
        scopes[-1].lines.append(line)
    return [scope for scope in scopes if scope.lines]


# ------------------------------------------------------------------------------------------------- code


def _code_scopes(path: str, region: list[tuple[int, str]]) -> list[Scope]:
    """Return the scopes of consecutive lines, the first of which may be in the middle of a docstring.

    The lines are read once as code and once for each kind of open quote. The reading with the most definitions and
    imports outside of strings is the right one.
    """
    outside = _read_code(path, region, "")
    if region[0][0] == 1 or not any(quote in text for _, text in region for quote in _QUOTES):
        return outside
    return max((outside, *(_read_code(path, region, quote) for quote in _QUOTES)), key=_code_lines)


def _code_lines(scopes: list[Scope]) -> int:
    return sum(line.kind in ("define", "import", "assign") for scope in scopes for line in scope.lines)


def _read_code(path: str, region: list[tuple[int, str]], quote: str) -> list[Scope]:
    top = Scope(path)
    scopes = [top]
    stack = [(-1, top)]
    above: list[Line] = []  # the comments and decorators directly above the line
    head_until = -1
    described: Scope | None = None  # the scope of which only head and docstring were read so far
    for position, (number, text) in enumerate(region):
        line = _line(number, text, in_text=bool(quote))
        quote, opened = _quote_state(text, quote)
        if opened and line.kind == "code":
            line.kind = "text"
        if (
            line.kind not in ("blank", "text")
            and position > head_until
            and not text.lstrip().startswith((")", "]", "}"))
        ):
            while stack[-1][0] >= line.indent:
                stack.pop()
        if line.kind == "define":
            scope = Scope(path, stack[-1][1], what=_what(text))
            stack[-1][1].inside.append(scope)
            head_until = _end_of_head(region, position)
            outer = stack[-1][1].lines
            # The comments above belong to this scope, so they are removed from the end of the outer one.
            while above and outer and outer[-1].number >= above[0].number:
                outer.pop()
            scope.doc += above
            scope.lines += above
            scopes.append(scope)
            stack.append((line.indent, scope))
            described = scope
        scope = stack[-1][1]
        scope.lines.append(line)
        if scope.what and position <= head_until:
            scope.head.append(line)
        elif scope is described and line.kind in ("text", "blank"):
            scope.doc.append(line)
        elif line.kind != "comment":
            described = None
        if line.kind == "comment" or text.lstrip().startswith("@"):
            above.append(line)
        else:
            above = []
    return [scope for scope in scopes if scope.lines]


def _what(text: str) -> str:
    match = _DEFINE.match(text)
    return (match["what"] or "macro") if match else "function"


def _line(number: int, text: str, *, in_text: bool) -> Line:
    indent = _indent(text)
    if not text.strip():
        return Line(number, text, "blank", indent=indent)
    if in_text or text.lstrip().startswith(_QUOTES):
        return Line(number, text, "text", indent=indent)
    if match := _DEFINE.match(text):
        return Line(number, text, "define", match["name"], indent)
    if _IMPORT.match(text):
        return Line(number, text, "import", indent=indent)
    if _COMMENT.match(text):
        return Line(number, text, "comment", indent=indent)
    if match := (_ARROW.match(text) or _METHOD.match(text)):
        return Line(number, text, "define", match[1], indent)
    if not _KEYWORD.match(text) and (match := _ASSIGN.match(text)):
        return Line(number, text, "assign", match["name"], indent)
    return Line(number, text, "code", indent=indent)


def _quote_state(text: str, quote: str) -> tuple[str, bool]:
    """Return the triple quote that is open after this line, or an empty text, and whether the line opened one."""
    opened = False
    at = 0
    while True:
        if quote:
            end = text.find(quote, at)
            if end < 0:
                return quote, opened
            quote, at = "", end + 3
        else:
            starts = [(text.find(each, at), each) for each in _QUOTES if text.find(each, at) >= 0]
            if not starts:
                return "", opened
            start, quote = min(starts)
            opened, at = True, start + 3


def _end_of_head(region: list[tuple[int, str]], position: int) -> int:
    """Return the position of the line that closes the brackets of the signature at `position`, within thirty lines."""
    depth = 0
    for index in range(position, min(position + 30, len(region))):
        text = region[index][1]
        depth += text.count("(") + text.count("[") - text.count(")") - text.count("]")
        if depth <= 0:
            return index
    return position


def _indent(text: str) -> int:
    expanded = text.expandtabs(4)
    return len(expanded) - len(expanded.lstrip())
