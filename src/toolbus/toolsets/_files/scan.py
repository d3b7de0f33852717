"""Going through the text of many files within a budget, and what every kind of search shares.

Knows the tree; does not know what is looked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .budget import Budget
from .patterns import compile_glob, fixed_directory
from .tree import Tree

__all__ = ["Block", "Bounds", "Scan", "blocks", "cut_line", "is_secondary"]

_NAMES_PER_FILE = 4  # names of files and directories that a walk looks at, for each file that may be searched
_NAMED_TOO_LARGE = 10

# Tests, vendored and generated sources tell how something is used, rarely what it is: they come after the rest.
_SECONDARY = re.compile(
    r"(?:^|/)(?:tests?|testing|testdata|idle_test|__tests__|specs?|fixtures|mocks?|examples?|demos?|benchmarks?|vendor(?:ed)?|"
    r"_vendor|third_party|external|dist|build|generated|migrations|locale|i18n|changelogs?)/"
    r"|(?:^|/)(?:test_[^/]*|[^/]*_test|[^/]*[.-](?:test|spec|min|bundle|lock)|conftest|change(?:s|log)|history|news)"
    r"\.[^/.]+$",
    re.IGNORECASE,
)


@dataclass(slots=True, frozen=True, kw_only=True)
class Bounds:
    """How much one call may look at, and how much it may return. The defaults suit a model's context window."""

    max_results: int = 50
    max_result_bytes: int = 24_000
    max_line_chars: int = 300
    max_read_lines: int = 400
    max_file_bytes: int = 4_194_304
    max_scan_bytes: int = 268_435_456
    max_scan_files: int = 50_000
    max_scan_seconds: float = 10.0

    def budget(self, *, share: float = 1.0) -> Budget:
        """What one call may spend from now on, or a share of the time."""
        return Budget(seconds=share * self.max_scan_seconds, names=_NAMES_PER_FILE * self.max_scan_files)


class Block(NamedTuple):
    """A piece of a file's text: whole lines, or a part of one line that is too long."""

    line: int
    """The index of its first line, from 0."""
    text: bytes
    """Lines end with a line feed; the last one has none."""
    begins: bool
    """Whether it begins where a line does."""
    ends: bool
    """Whether it ends where a line does."""


def blocks(text: bytes, size: int) -> Iterator[Block]:
    """The blocks of a text, of at most `size` bytes each, since what is done with one holds the interpreter's lock.

    The parts of a line that is longer overlap by half, so that what is looked for is whole in one of them.
    """
    start = line = 0
    end = len(text) - text.endswith(b"\n")
    begins = True
    windows = b"\r\n" in text
    while start < len(text):
        stop = _stop(text, start, end, size, begins=begins)
        ends = stop == end or text.startswith(b"\n", stop)
        piece = text[start:stop]
        if windows:
            last = stop - start - text.startswith(b"\r\n", stop - 1)
            piece = piece[:last].replace(b"\r\n", b"\n")
        yield Block(line, piece, begins, ends)
        if ends:
            line += text.count(b"\n", start, stop + 1)
            start, begins = stop + 1, True
        else:
            start, begins = _before_character(text, start + size // 2), False


def _stop(text: bytes, start: int, end: int, size: int, *, begins: bool) -> int:
    """Where the block that begins at `start` ends; `end` is the text's."""
    if not begins:  # the rest of a long line, and nothing of the lines after it
        at = text.find(b"\n", start, min(start + size + 1, end))
        if at >= 0:
            return at
    if end - start <= size:
        return end
    at = text.rfind(b"\n", start, start + size + 1)
    return at if at >= 0 else _before_character(text, start + size)


def _before_character(text: bytes, at: int) -> int:
    """The end of the last whole character of UTF-8 before `at`."""
    for back in range(4):
        if text[at - back] & 0xC0 != 0x80:
            return at - back
    return at


@dataclass(slots=True)
class Scan:
    """One pass over the files. After it, the counts say what was looked at and `stopped` why it ended early."""

    tree: Tree
    bounds: Bounds
    glob: str
    budget: Budget = field(init=False)
    files: int = 0
    bytes_read: int = 0
    too_large: list[str] = field(default_factory=list[str])
    stopped: str = ""

    def __post_init__(self) -> None:
        self.budget = self.bounds.budget()

    def texts(self) -> Iterator[tuple[str, bytes]]:
        """Path and text (UTF-8) of every file that is wanted, until the budget is spent."""
        wanted = compile_glob(self.glob)
        for entry in self.tree.walk(self.budget, fixed_directory(self.glob)):
            if not wanted(entry.path):
                continue
            if entry.size_bytes > self.bounds.max_file_bytes:
                # A binary file would not be searched anyhow.
                if len(self.too_large) < _NAMED_TOO_LARGE and entry.read(1, self.budget.over) is not None:
                    self.too_large.append(entry.path)
                continue
            if self._enough():
                break
            text = entry.read(self.bounds.max_file_bytes, self.budget.over)
            if text is None:
                continue
            self.files += 1
            self.bytes_read += len(text)
            yield entry.path, text
        self.stopped = self.stopped or self.budget.stopped

    def _enough(self) -> bool:
        if self.files >= self.bounds.max_scan_files:
            self.stopped = f"stopped after {self.files} files"
        elif self.bytes_read >= self.bounds.max_scan_bytes:
            self.stopped = f"stopped after {self.bytes_read} bytes"
        return bool(self.stopped)

    def look_again(self) -> None:
        """Give the second look at what was found a quarter of the time, whatever the first one has taken."""
        self.budget = self.bounds.budget(share=0.25)

    def report(self) -> dict[str, Any]:
        """What was searched, and what was not."""
        told: dict[str, Any] = {"files_searched": self.files}
        if self.too_large:
            told["skipped_too_large"] = self.too_large
        if self.stopped:
            told["stopped"] = self.advice
        return told

    @property
    def advice(self) -> str:
        """Why the search ended early, and what to do; empty where it did not."""
        return f"{self.stopped}; narrow the search with glob" if self.stopped else ""


def is_secondary(path: str) -> bool:
    """Whether the path looks like a test, an example, vendored or generated."""
    return _SECONDARY.search(path) is not None


def cut_line(line: str, max_chars: int, at: int = 0, *, begins: bool = True, ends: bool = True) -> str:
    """`line` if it is short enough, else the part around character `at`, with a mark where something is missing.

    `begins` and `ends` tell whether `line` has both ends, or is itself a part of a longer one.
    """
    line = line.rstrip()
    start = max(0, min(at - max_chars // 3, len(line) - max_chars))
    stop = start + max_chars
    before = "[cut] " if start or not begins else ""
    after = " [cut]" if stop < len(line) or not ends else ""
    return f"{before}{line[start:stop]}{after}"
