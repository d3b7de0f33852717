"""Going through the text of many files within a budget, and what every kind of search shares.

Knows the tree; does not know what is looked for.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ._tree import Tree

__all__ = ["Bounds", "Scan", "cut_line", "is_secondary"]

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


@dataclass(slots=True)
class Scan:
    """One pass over the files. After it, the counts say what was looked at and `stopped` why it ended early."""

    tree: Tree
    bounds: Bounds
    wanted: Callable[[str], bool]
    files: int = 0
    bytes_read: int = 0
    too_large: list[str] = field(default_factory=list[str])
    stopped: str = ""

    def texts(self) -> Iterator[tuple[str, bytes]]:
        """Path and text (UTF-8, lines end with a line feed) of every file that is wanted, until the budget is spent."""
        ends = time.monotonic() + self.bounds.max_scan_seconds
        for entry in self.tree.walk():
            if not self.wanted(entry.path):
                continue
            if entry.size_bytes > self.bounds.max_file_bytes:
                if entry.read(1) is not None:  # a binary file would not be searched anyhow
                    self.too_large.append(entry.path)
                continue
            self.stopped = self._spent(ends)
            if self.stopped:
                return
            text = entry.read(self.bounds.max_file_bytes)
            if text is None:
                continue
            self.files += 1
            self.bytes_read += len(text)
            yield entry.path, text.replace(b"\r\n", b"\n") if b"\r" in text else text

    def _spent(self, ends: float) -> str:
        if self.files >= self.bounds.max_scan_files:
            return f"stopped after {self.files} files; narrow the search with glob"
        if self.bytes_read >= self.bounds.max_scan_bytes:
            return f"stopped after {self.bytes_read} bytes; narrow the search with glob"
        if time.monotonic() > ends:
            return f"stopped after {self.bounds.max_scan_seconds:g} seconds; narrow the search with glob"
        return ""

    def report(self) -> dict[str, Any]:
        """What was searched, and what was not."""
        told: dict[str, Any] = {"files_searched": self.files}
        if self.too_large:
            told["skipped_too_large"] = self.too_large[:10]
        if self.stopped:
            told["stopped"] = self.stopped
        return told


def is_secondary(path: str) -> bool:
    """Whether the path looks like a test, an example, vendored or generated."""
    return _SECONDARY.search(path) is not None


def cut_line(line: str, max_chars: int, at: int = 0) -> str:
    """`line` if it is short enough, else the part around character `at`, with a mark where something is missing."""
    line = line.rstrip()
    if len(line) <= max_chars:
        return line
    start = max(0, min(at - max_chars // 3, len(line) - max_chars))
    piece = line[start : start + max_chars]
    return f"{'[cut] ' if start else ''}{piece}{' [cut]' if start + max_chars < len(line) else ''}"
