"""The scan over the text of many files within a budget, which every kind of search uses.

Knows the tree, and not what a search looks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .budget import Budget
from .patterns import compile_glob, fixed_directory
from .tree import Tree

# The names of files and directories that a walk may process, for each file that may be searched.
_NAMES_PER_FILE = 4
_NAMED_TOO_LARGE = 10


@dataclass(slots=True, frozen=True, kw_only=True)
class Bounds:
    """The bounds of what one call may read and return. The defaults suit a model's context window."""

    max_results: int = 50
    max_result_bytes: int = 24_000
    max_line_chars: int = 300
    max_read_lines: int = 400
    max_file_bytes: int = 4_194_304
    max_scan_bytes: int = 268_435_456
    max_scan_files: int = 50_000
    max_scan_seconds: float = 10.0

    def budget(self, *, share: float = 1.0) -> Budget:
        """Return the budget of one call from now on, with a share of the time."""
        return Budget(seconds=share * self.max_scan_seconds, names=_NAMES_PER_FILE * self.max_scan_files)


class Block(NamedTuple):
    """A piece of a file's text: whole lines, or a part of one line that is too long."""

    line: int
    """The index of the block's first line in the file, from 0."""
    text: bytes
    """The text, with a line feed after each line but the last one."""
    begins: bool
    """True if the block begins where a line begins."""
    ends: bool
    """True if the block ends where a line ends."""


def blocks(text: bytes, size: int) -> Iterator[Block]:
    """Yield the blocks of a text, of at most `size` bytes each, because matching a block holds the interpreter's lock.

    The parts of a longer line overlap by half, so that a match is whole in one of them.
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
    """Return the end of the block that begins at `start`; `end` is the end of the text."""
    if not begins:
        # The block is the rest of a long line, without the lines after it.
        at = text.find(b"\n", start, min(start + size + 1, end))
        if at != -1:
            return at
    if end - start <= size:
        return end
    at = text.rfind(b"\n", start, start + size + 1)
    return at if at >= 0 else _before_character(text, start + size)


def _before_character(text: bytes, at: int) -> int:
    """Return the end of the last whole UTF-8 character before `at`."""
    return next((at - back for back in range(4) if text[at - back] & 0xC0 != 0x80), at)


@dataclass(slots=True)
class Scan:
    """One pass over the files. Afterwards, the counts say what was read, and `stopped` why the pass ended early."""

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
        """Yield the path and the text (UTF-8) of every file that matches, until the budget is spent."""
        wanted = compile_glob(self.glob)
        for entry in self.tree.walk(self.budget, fixed_directory(self.glob)):
            if not wanted(entry.path):
                continue
            if entry.size_bytes > self.bounds.max_file_bytes:
                # Binary files are not named, because they would not be searched anyway.
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

    def begin_second_pass(self) -> None:
        """Give the second pass a quarter of the time, however long the first one has taken."""
        self.budget = self.bounds.budget(share=0.25)

    def report(self) -> dict[str, Any]:
        """Return the fields of the result about what was searched and what was not."""
        fields: dict[str, Any] = {"files_searched": self.files}
        if self.too_large:
            fields["skipped_too_large"] = self.too_large
        if self.stopped:
            fields["stopped"] = self.advice
        return fields

    @property
    def advice(self) -> str:
        """The reason why the search ended early, and what to do; empty if it did not."""
        return f"{self.stopped}; narrow the search with glob" if self.stopped else ""


def cut_line(line: str, max_chars: int, at: int = 0, *, begins: bool = True, ends: bool = True) -> str:
    """Return `line` if it is short enough, else the part around character `at`, with marks where text is missing.

    `begins` and `ends` say whether `line` has its two ends, or is itself a part of a longer line.
    """
    line = line.rstrip()
    start = max(0, min(at - max_chars // 3, len(line) - max_chars))
    stop = start + max_chars
    before = "[cut] " if start or not begins else ""
    after = " [cut]" if stop < len(line) or not ends else ""
    return f"{before}{line[start:stop]}{after}"
