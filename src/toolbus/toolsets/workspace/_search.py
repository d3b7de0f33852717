"""Searching for a text or a regular expression, line by line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import ToolError
from ...results import ToolResult
from ._patterns import compile_regex, literal_in
from ._scan import Scan, cut_line, is_secondary

__all__ = ["checked_query", "regex_finder", "search_lines", "text_finder"]

# Given a file's text, the lines that match: index from 0, the line, and where in it the match begins.
Finder = Callable[[bytes], list[tuple[int, str, int]]]


def text_finder(query: str, *, ignore_case: bool) -> Finder:
    """Finds the characters of `query` as they are."""
    if not ignore_case:
        return _literal(query.encode("utf-8", "replace"), lambda text: text)
    if query.isascii():
        return _literal(query.lower().encode(), bytes.lower)
    return _literal(
        query.lower().encode("utf-8", "replace"), lambda text: text.decode("utf-8", "replace").lower().encode()
    )


def _literal(needle: bytes, fold: Callable[[bytes], bytes]) -> Finder:
    def find(text: bytes) -> list[tuple[int, str, int]]:
        folded = fold(text)
        if needle not in folded:
            return []
        lines = text.split(b"\n")
        return [
            (index, lines[index].decode("utf-8", "replace"), max(0, at))
            for index, line in enumerate(folded.split(b"\n"))
            if (at := line.find(needle)) >= 0
        ]

    return find


def regex_finder(pattern: str, *, ignore_case: bool) -> Finder:
    """Finds the lines in which `pattern` matches."""
    matches = compile_regex(pattern, ignore_case=ignore_case)
    literal = literal_in(pattern)
    needle = (literal.lower() if ignore_case else literal).encode()
    whole_file_first = not any(odd in pattern for odd in (r"\A", r"\z", "(?-"))  # these know where a text begins

    def find(text: bytes) -> list[tuple[int, str, int]]:
        if needle and needle not in (text.lower() if ignore_case else text):
            return []
        decoded = text.decode("utf-8", "replace")
        if whole_file_first and not matches(decoded):
            return []
        return [(index, line, 0) for index, line in enumerate(decoded.split("\n")) if matches(line)]

    return find


def search_lines(scan: Scan, query: str, find: Finder, max_results: int) -> ToolResult:
    """The lines that match, in order of path and line, tests and vendored sources last; cut to the bounds, visibly."""
    found: list[tuple[str, list[tuple[int, str, int]]]] = []
    kept_lines = total = 0
    for path, text in scan.texts():
        if hits := find(text):
            total += len(hits)
            found.append((path, hits[:max_results]))
            kept_lines += len(found[-1][1])
            if kept_lines > 50 * max_results:  # what comes last would never be shown: forget it, keep the counts
                found.sort(key=lambda item: is_secondary(item[0]))
                kept_lines = _forget(found, 10 * max_results)
    found.sort(key=lambda item: is_secondary(item[0]))
    matches, shown_files = _within_bounds(scan, found, max_results)
    data: dict[str, Any] = {"matches": matches, "total_matches": total, "files_matched": len(found), **scan.report()}
    if len(matches) < total:
        data["truncated"] = True
        data["more_in"] = [path for path, _ in found if path not in shown_files][:20]
    return ToolResult(message=_sentence(query, len(matches), total, len(found), scan), data=data)


def _forget(found: list[tuple[str, list[tuple[int, str, int]]]], keep: int) -> int:
    """Drop the hits beyond the first `keep`; how many are left."""
    left = 0
    for index, (path, hits) in enumerate(found):
        found[index] = (path, hits[: max(0, keep - left)])
        left += len(found[index][1])
    return left


def _within_bounds(
    scan: Scan, found: list[tuple[str, list[tuple[int, str, int]]]], max_results: int
) -> tuple[list[dict[str, Any]], set[str]]:
    matches: list[dict[str, Any]] = []
    files: set[str] = set()
    used = 0
    for path, hits in found:
        for index, line, at in hits:
            text = cut_line(line, scan.bounds.max_line_chars, at)
            used += len(path) + len(text.encode()) + 40  # the keys and quotes of a match's JSON
            if len(matches) == max_results or used > scan.bounds.max_result_bytes:
                return matches, files
            matches.append({"path": path, "line": index + 1, "text": text})
            files.add(path)
    return matches, files


def _sentence(query: str, shown: int, total: int, files: int, scan: Scan) -> str:
    if not total:
        said = f"no line of {scan.files} files matches {query!r}"
    elif shown < total:
        said = f"cut: the first {shown} of {total} matching lines in {files} files; narrow the query or the glob"
    else:
        said = f"{total} matching lines in {files} files"
    return f"{said}; {scan.stopped}" if scan.stopped else said


def checked_query(query: str) -> str:
    """The query, or a `ToolError` for one that can match nothing."""
    if not query.strip():
        raise ToolError("the query is empty; give the text to look for")
    if "\n" in query:
        raise ToolError("the query has several lines, and the search is by line; look for one of them")
    return query
