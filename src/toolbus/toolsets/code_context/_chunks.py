"""The division of a file's text into chunks: functions, methods, heads of classes, sections, and the text between them.

Python is divided by its syntax tree; everything else, and Python that does not parse, by indentation and headings. Pure
except for one filter of warnings.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...core.text_structure import read_structure

# The bounds of one chunk; longer functions are split.
_MAX_LINES = 80
_MAX_CHARS = 6_000
# The lines below which a block is joined with its neighbour, outside of Python.
_SMALL_LINES = 12
# The lines below which a class stays one chunk.
_SMALL_CLASS_LINES = 30
# The characters that are parsed at once: the parser holds the interpreter's lock, for about 20 ms.
_PARSED_CHARS = 49_152
# The tokens that are parsed at once: about 50 ms in the worst case.
_MAX_PARSED_TOKENS = 25_000
# The average length of lines beyond which a file is minified, or data.
_MAX_AVERAGE_LINE = 300
# The characters of a line that are searched for a definition.
_LINE_CHARS = 300
# The lines whose structure is read at once: with many more, garbage collection holds the interpreter's lock.
_LINES_AT_ONCE = 20_000
_PARSED_AS = "<code context>"
_TOKEN = re.compile(r"\w+|[^\w\s]")
_BEGINS = ("def ", "class ", "async def ", "@")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

_SUFFIX_LIST = (
    ".py .pyi .pyx .js .mjs .cjs .jsx .ts .tsx .mts .vue .svelte .java .kt .kts .scala .groovy .c .h .cc .cpp .cxx "
    ".hpp .hh .m .mm .cs .fs .go .rs .rb .php .pl .pm .lua .r .jl .swift .dart .ex .exs .erl .hs .ml .mli .clj .el "
    ".lisp .sh .bash .zsh .fish .ps1 .sql .proto .graphql .css .scss .less .html .md .mdx .rst .adoc .txt .toml .ini "
    ".cfg .yaml .yml .cmake .gradle .tf .nix .zig"
)
_SUFFIXES = frozenset(_SUFFIX_LIST.split())
_NAMES = frozenset({"Makefile", "Dockerfile", "Justfile", "Rakefile", "CMakeLists.txt"})


@dataclass(slots=True, frozen=True)
class Chunk:
    """The lines `start` to `end` of a file, from 1 and inclusive. `name` is the name that they define, or empty."""

    start: int
    end: int
    name: str
    text: str


def is_source(path: str) -> bool:
    """Return whether a file of this name was probably written by people: code, configuration or prose."""
    name = path.rpartition("/")[2]
    stem, dot, suffix = name.rpartition(".")
    if not dot:
        return name in _NAMES
    return f".{suffix.lower()}" in _SUFFIXES and not stem.endswith((".min", "-lock", ".bundle"))


def chunk_text(path: str, text: str) -> list[Chunk]:
    """Return the chunks of a file, in order. They do not overlap; lines without a word may be in no chunk."""
    lines = text.split("\n")
    if len(text) > _MAX_AVERAGE_LINE * len(lines):
        return []
    spans = _python(lines) if path.endswith((".py", ".pyi")) else None
    if spans is None:
        spans = _other(path, lines)
    return [chunk for start, end, name in spans for chunk in _chunks(lines, start, end, name)]


# A span is a piece of a file: first line, last line, name.
_Span = tuple[int, int, str]


# ------------------------------------------------------------------------------------------------- Python


def _python(lines: Sequence[str]) -> list[_Span] | None:
    """Return the spans of a Python file, or None if it does not parse."""
    # Warnings about the sources are of no use to a caller that searches them. The filter is only for this file name.
    warnings.filterwarnings("ignore", module=_PARSED_AS)
    spans: list[_Span] = []
    for first, last in _pieces(lines):
        # The parser takes a carriage return for the end of a line too, which would change the line numbers.
        source = "\n".join(lines[first - 1 : last]).replace("\r", " ")
        try:
            module = ast.parse(source, _PARSED_AS) if _is_parsed_soon(source) else None
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            # Too many brackets raise MemoryError.
            module = None
        if module is None:
            return None
        ast.increment_lineno(module, first - 1)
        _statements(module.body, "", first, last, spans)
    return spans


def _is_parsed_soon(source: str) -> bool:
    """Return whether a piece is parsed fast. The time grows with its tokens, and dense text has many more of them."""
    if len(source) > 2 * _PARSED_CHARS:
        return False
    return sum(1 for _ in _TOKEN.finditer(source)) <= _MAX_PARSED_TOKENS


def _pieces(lines: Sequence[str]) -> Iterable[tuple[int, int]]:
    """Yield the first and last lines of pieces that can be parsed separately. They begin at unindented definitions.

    A line in a multi-line string may look like such a definition; then a piece does not parse.
    """
    first, size = 1, 0
    for number, line in enumerate(lines, start=1):
        if size > _PARSED_CHARS and line.startswith(_BEGINS) and not lines[number - 2].startswith("@"):
            yield first, number - 1
            first, size = number, 0
        size += len(line) + 1
    yield first, len(lines)


def _statements(body: Iterable[ast.stmt], prefix: str, start: int, last: int, spans: list[_Span]) -> None:
    """Add the spans of a module's or a class's statements, which fill the lines `start` to `last`.

    Lines between two statements, such as a comment, belong to the second.
    """
    # The first of the lines that have no name of their own and are not in a span yet.
    begin = start
    previous = start - 1
    for statement in body:
        end = statement.end_lineno or statement.lineno
        if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
            if begin <= previous:
                spans.append((begin, previous, prefix))
            _definition(statement, f"{prefix}.{statement.name}" if prefix else statement.name, previous + 1, spans)
            begin = end + 1
        previous = max(previous, end)
    if begin <= last:
        spans.append((begin, last, prefix))


def _definition(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, name: str, start: int, spans: list[_Span]
) -> None:
    end = node.end_lineno or node.lineno
    if isinstance(node, _FUNCTIONS) or end - start < _SMALL_CLASS_LINES:
        spans.append((start, end, name))
    else:
        _statements(node.body, name, start, end, spans)


# --------------------------------------------------------------------------------------------- other files


def _other(path: str, lines: Sequence[str]) -> list[_Span]:
    """Return the spans from one definition or heading to the next; small neighbours are joined."""
    names: dict[int, str] = {}
    for first in range(0, len(lines), _LINES_AT_ONCE):
        piece = enumerate(lines[first : first + _LINES_AT_ONCE], start=first + 1)
        scopes = read_structure(path, {number: line[:_LINE_CHARS] for number, line in piece})
        names |= {scope.lines[0].number: scope.name for scope in scopes}
    starts = sorted(names.items())
    spans: list[_Span] = []
    for index, (start, name) in enumerate(starts):
        end = starts[index + 1][0] - 1 if index + 1 < len(starts) else len(lines)
        if spans and end - spans[-1][0] < _SMALL_LINES:
            spans[-1] = (spans[-1][0], end, f"{spans[-1][2]} {name}".strip())
        else:
            spans.append((start, end, name))
    return spans


# --------------------------------------------------------------------------------------------------- sizes


def _chunks(lines: Sequence[str], start: int, end: int, name: str) -> Iterable[Chunk]:
    """Yield the chunks of a span: its lines without blank ones at the ends, in pieces that are short enough."""
    while start <= end:
        if not lines[start - 1].strip():
            start += 1
            continue
        last = _cut(lines, start, end)
        text_end = last
        while not lines[text_end - 1].strip():
            text_end -= 1
        text = "\n".join(lines[start - 1 : text_end])
        if any(char.isalnum() for char in text):
            yield Chunk(start, text_end, name, text[:_MAX_CHARS])
        start = last + 1


def _cut(lines: Sequence[str], start: int, end: int) -> int:
    """Return the last line of the piece that begins at `start`: before the least indented line of its last third."""
    size = 0
    last = start
    for number in range(start, min(end, start + _MAX_LINES - 1) + 1):
        size += len(lines[number - 1]) + 1
        if size > _MAX_CHARS:
            break
        last = number
    if last == end:
        return end
    candidates = range(start + 2 * (last - start) // 3 + 1, last + 2)
    best = min(candidates, key=lambda number: (_depth(lines[number - 1]), -number))
    return max(best - 1, start)


def _depth(line: str) -> int:
    """Return the indentation of a line; a very large one for a blank line, which should not begin a chunk."""
    return len(line) - len(line.lstrip()) if line.strip() else 1_000
