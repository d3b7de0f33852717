"""The three tools: their descriptions for the model, and the walk, search or read that each call performs."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ..._option_checks import ABOVE_ZERO, check
from ...errors import ToolError
from ...tool_results import ToolResult
from ...tools import Tool
from .._files.budget import Budget
from .._files.patterns import compile_glob, fixed_directory
from .._files.scan import Bounds, Scan, cut_line
from .._files.tree import Tree, as_utf8
from ._rank import search_words
from ._search import checked_query, regex_finder, search_lines, text_finder

# The most bytes of one line that are kept.
_LINE_PIECE = 65_536
# The most characters of a result beside its text: names, counts, forty directories.
_NAMES_CHARS = 16_384
_Glob = Annotated[
    str, Field(description="Only these files: '*.py' at any depth, 'src/**/*.ts', '*.{md,rst}'. Empty: all.")
]


def workspace_tools(
    root: str | Path,
    *,
    include_ignored: bool = False,
    max_results: int = 50,
    max_result_bytes: int = 24_000,
    max_line_chars: int = 300,
    max_read_lines: int = 400,
    max_file_bytes: int = 4_194_304,
    max_scan_bytes: int = 268_435_456,
    max_scan_files: int = 50_000,
    max_scan_seconds: float = 10.0,
) -> list[Tool]:
    """Return the read-only tools `list_files`, `search_text` and `read_lines` over the directory `root`.

    Paths are relative to `root`, with `/`; lines count from 1. Files outside of the root, binary files, files ignored
    by a .gitignore, and files in directories such as .git or node_modules are neither listed nor read;
    `include_ignored` lifts the last two rules. One call returns at most `max_results` matches (twenty times as many
    paths), `max_read_lines` lines and about `max_result_bytes` of text, with each line cut to `max_line_chars`; a
    search skips files larger than `max_file_bytes`. Every call ends after `max_scan_seconds` (a search for words after
    a quarter more) or four times `max_scan_files` names of files and directories; a search also after `max_scan_files`
    files or `max_scan_bytes`, and reading lines after `max_scan_bytes`. The result says what was cut.

    Handlers are synchronous, may run in several threads at once, keep no state, and hold the interpreter's lock for at
    most about 30 ms, whatever a model or a file contains: the size of regular expressions and globs is bounded for
    this, and a line that is too long for a regular expression is matched in parts that overlap by half. Raises
    `ConfigurationError` for a root that is not a directory, or a bound that is not above 0.

    Example:
        from toolbus import Runtime
        from toolbus.testing import ScriptedProvider, calls, text
        from toolbus.toolsets.workspace import workspace_tools

        model = ScriptedProvider([calls(("list_files", {})), text("There is a README.")])
        async with Runtime(model, tools=workspace_tools(".")) as runtime:
            result = await runtime.run("What is here?")
        print(result.tool_calls[0].ok)  # True
    """
    bounds = Bounds(
        max_results=max_results,
        max_result_bytes=max_result_bytes,
        max_line_chars=max_line_chars,
        max_read_lines=max_read_lines,
        max_file_bytes=max_file_bytes,
        max_scan_bytes=max_scan_bytes,
        max_scan_files=max_scan_files,
        max_scan_seconds=max_scan_seconds,
    )
    for name in Bounds.__slots__:
        check(f"workspace_tools: {name}", getattr(bounds, name), ABOVE_ZERO)
    workspace = _Workspace(Tree(root, include_ignored=include_ignored), bounds)
    handlers: list[Callable[..., ToolResult]] = [workspace.list_files, workspace.search_text, workspace.read_lines]
    # Results are cut to the bounds already; in JSON, escaped quotes take twice as much.
    whole = _NAMES_CHARS + 2 * bounds.max_result_bytes
    return [Tool(handler=each, max_result_chars=whole, idempotent=True) for each in handlers]


class _Workspace:
    """The handlers. Their docstrings and annotations are the descriptions that the model reads."""

    def __init__(self, tree: Tree, bounds: Bounds) -> None:
        self._tree = tree
        self._bounds = bounds

    def list_files(
        self,
        glob: _Glob = "",
        max_results: Annotated[int, Field(ge=1, description="How many paths at most.")] = 200,
    ) -> ToolResult:
        """List the text and other files of the workspace, as paths relative to its root, in order of path.

        Ignored files and directories are left out. If there are too many, the result counts them by directory.
        """
        wanted = compile_glob(glob)
        budget = self._bounds.budget()
        allowed = min(max_results, 20 * self._bounds.max_results)
        shown: list[str] = []
        directories: Counter[str] = Counter()
        total = used = 0
        for entry in self._tree.walk(budget, fixed_directory(glob)):
            if not wanted(entry.path):
                continue
            total += 1
            directories["/".join(entry.path.split("/")[:-1][:2]) or "."] += 1
            used += len(entry.path.encode()) + 3
            if total <= allowed and used <= self._bounds.max_result_bytes:
                shown.append(entry.path)
        data: dict[str, Any] = {"files": shown, "total": total}
        said = f"{total} files" if total else f"no file matches {glob!r}" if glob else "the workspace has no files"
        if len(shown) < total:
            data["truncated"] = True
            data["directories"] = dict(directories.most_common(40))
            said = f"cut: the first {len(shown)} of {total} files; narrow the glob"
        if budget.stopped:
            data["stopped"] = f"{budget.stopped}, so there may be more; name a directory in the glob"
            said = f"{said}; {data['stopped']}"
        return ToolResult(message=said, data=data)

    def search_text(
        self,
        query: Annotated[str, Field(description="What to look for; see mode.")],
        mode: Annotated[
            Literal["text", "regex", "words"],
            Field(
                description="'text': the characters as they are. 'regex': a regular expression, matched line by line, "
                "without look-around and back-references. 'words': words separated by spaces, each also the beginning "
                "of a longer word ('limit' finds max_limits); gives the lines where most of them occur together, "
                "best first."
            ),
        ] = "text",
        glob: _Glob = "",
        ignore_case: Annotated[bool, Field(description="Whether a and A are the same; always so for words.")] = True,  # noqa: FBT002 -- called by name
        max_results: Annotated[int, Field(ge=1, description="How many matches at most.")] = 30,
    ) -> ToolResult:
        """Search the text of the workspace's files; gives path, line number and text of each matching line.

        Binary and ignored files are left out. Read around a match with read_lines.
        """
        scan = Scan(self._tree, self._bounds, glob)
        allowed = min(max_results, self._bounds.max_results)
        checked_query(query)
        if mode == "words":
            return search_words(scan, query, allowed)
        finder = regex_finder if mode == "regex" else text_finder
        return search_lines(scan, query, finder(query, ignore_case=ignore_case), allowed)

    def read_lines(
        self,
        path: Annotated[str, Field(description="The file's path, relative to the workspace's root.")],
        start: Annotated[int, Field(ge=1, description="The first line; lines count from 1.")] = 1,
        end: Annotated[int | None, Field(ge=1, description="The last line; left out: as many as fit.")] = None,
    ) -> ToolResult:
        """Read lines of a text file. Each line of the text is its number, a tab, and the line."""
        if end is not None and end < start:
            raise ToolError(f"end is {end} and start is {start}; end must not be below start")
        budget = self._bounds.budget()
        with self._tree.open(path, budget) as (relative, handle):
            try:
                with io.BufferedReader(io.FileIO(handle, closefd=False), _LINE_PIECE) as reader:
                    return self._read(relative, reader, budget, start, end)
            except OSError as exc:
                raise ToolError(f"{relative!r} cannot be read: {exc.strerror or exc}") from exc

    def _read(
        self, path: str, file: io.BufferedReader[io.FileIO], budget: Budget, start: int, end: int | None
    ) -> ToolResult:
        bounds = self._bounds
        text, whole_text = self._text(path, file, budget)
        lines = _Lines(text, bounds.max_scan_bytes, budget)
        last = min(end if end is not None else start + bounds.max_read_lines, start + bounds.max_read_lines - 1)
        taken: list[str] = []
        used = number = 0
        for number, (line, whole) in enumerate(lines, start=1):
            if number >= start:
                text = line.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").rstrip("\r\n")
                taken.append(f"{number}\t{cut_line(text, bounds.max_line_chars, ends=whole)}")
                used += len(taken[-1].encode()) + 2
            if number == last or used > bounds.max_result_bytes:
                break
        number += lines.count_rest()
        return self._result(path, taken, start, end, number if whole_text and not lines.stopped else None)

    def _text(self, path: str, file: io.BufferedReader[io.FileIO], budget: Budget) -> tuple[io.BufferedIOBase, bool]:
        """Return the file as UTF-8, and whether that is all of it."""
        head = file.peek(8_192)[:8_192]
        if head.startswith((b"\xff\xfe", b"\xfe\xff")):
            data = file.read(self._bounds.max_file_bytes)
            return io.BytesIO(as_utf8(data, budget.over)), not file.peek(1)
        if b"\0" in head:
            raise ToolError(f"{path!r} is a binary file")
        return file, True

    @staticmethod
    def _result(path: str, taken: list[str], start: int, end: int | None, total: int | None) -> ToolResult:
        """Return the result; `total` is the number of lines of the file, or None if it is too large to count them."""
        if not taken and total is not None:
            raise ToolError(f"{path!r} has {total} lines; line {start} is past its end")
        if not taken:
            raise ToolError(f"{path!r} is too large to read at line {start}")
        final = start + len(taken) - 1
        data: dict[str, Any] = {"path": path, "start": start, "end": final, "text": "\n".join(taken)}
        said = f"{path}, lines {start} to {final}"
        if total is not None:
            data["total_lines"] = total
            said += f" of {total}"
        if total is None or final < (total if end is None else min(end, total)):
            data["truncated"] = True
            said += f"; cut, continue with start={final + 1}"
        return ToolResult(message=said, data=data)


class _Lines:
    """The lines of a file, each with True if it is whole. Only the beginning of a long line is kept.

    Ends early after `max_bytes`, or when the budget is spent; `stopped` is True then.
    """

    def __init__(self, file: io.BufferedIOBase, max_bytes: int, budget: Budget) -> None:
        self._file = file
        self._bytes_left = max_bytes
        self._budget = budget
        self.stopped = False

    def __iter__(self) -> Iterator[tuple[bytes, bool]]:
        while piece := self._piece():
            line, whole = piece, True
            while not piece.endswith(b"\n") and (piece := self._piece()):
                whole = False
            yield line, whole and not self.stopped

    def count_rest(self) -> int:
        """Read to the end, and return the number of lines after those that were read before."""
        count, piece = 0, b"\n"
        while following := self._piece(whole=False):
            piece = following
            count += piece.count(b"\n")
        return count + (not piece.endswith(b"\n"))

    def _piece(self, *, whole: bool = True) -> bytes:
        """Return a line or the beginning of one, or without `whole` the bytes that are available at once."""
        if self._bytes_left <= 0 or self._budget.over():
            self.stopped = True
            return b""
        piece = self._file.readline(_LINE_PIECE) if whole else self._file.read1(_LINE_PIECE)
        self._bytes_left -= len(piece)
        return piece
