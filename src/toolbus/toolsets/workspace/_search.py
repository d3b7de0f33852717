"""The search for a text or a regular expression, line by line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ...core.text_structure import is_secondary
from ...errors import ToolError
from ...tool_results import ToolResult
from .._files.regex import Pattern
from .._files.scan import Block, Scan, blocks, cut_line

_BLOCK_BYTES = 262_144
# The longest query: less than half a block, so that a match in a long line is whole in one of its parts.
_MAX_QUERY_BYTES = 4_096


class Hit(NamedTuple):
    """A line that matches: its index from 0, and its text as it is shown, which may be cut."""

    line: int
    text: str


class Finder(NamedTuple):
    """A function that finds the matching lines in a block of at most `block_bytes`.

    A match is the line's index in the block, its text, and the character at which the match begins.
    """

    block_bytes: int
    find: Callable[[Block], Iterable[tuple[int, str, int]]]


def text_finder(query: str, *, ignore_case: bool) -> Finder:
    """Return a finder of the characters of `query` as they are."""
    if len(query.encode("utf-8", "replace")) > _MAX_QUERY_BYTES:
        raise ToolError(f"the query is longer than {_MAX_QUERY_BYTES} bytes; look for a part of it")
    if not ignore_case:
        return _literal(query.encode("utf-8", "replace"), lambda text: text)
    if query.isascii():
        return _literal(query.lower().encode(), bytes.lower)
    return _literal(
        query.lower().encode("utf-8", "replace"), lambda text: text.decode("utf-8", "replace").lower().encode()
    )


def _literal(needle: bytes, fold: Callable[[bytes], bytes]) -> Finder:
    def find(block: Block) -> Iterable[tuple[int, str, int]]:
        folded = fold(block.text)
        if needle not in folded:
            return
        lines = block.text.split(b"\n")
        for index, line in enumerate(folded.split(b"\n")):
            if (at := line.find(needle)) >= 0:
                yield index, lines[index].decode("utf-8", "replace"), len(line[:at].decode("utf-8", "replace"))

    return Finder(_BLOCK_BYTES, find)


def regex_finder(query: str, *, ignore_case: bool) -> Finder:
    """Return a finder of the lines in which the regular expression `query` matches."""
    pattern = Pattern(query, ignore_case=ignore_case)
    needle = (pattern.literal.lower() if ignore_case else pattern.literal).encode()
    matches_line = pattern.matcher(begins=True, ends=True)

    def find(block: Block) -> Iterable[tuple[int, str, int]]:
        # Ignoring case, the engine takes some letters beyond ASCII for k or s, which `lower` does not.
        certain = needle and (block.text.isascii() or not ignore_case)
        if certain and needle not in (block.text.lower() if ignore_case else block.text):
            return ()
        text = shown = block.text.decode("utf-8", "replace")
        if not text.isascii() and len(text.encode()) > len(block.text):
            # Each byte that is not UTF-8 has become a character of three bytes.
            text = text.replace("\N{REPLACEMENT CHARACTER}", "?")
        if not pattern.matcher(begins=block.begins, ends=block.ends)(text):
            return ()
        lines = text.split("\n")
        if len(lines) == 1:
            return [(0, shown, 0)]
        matching = [index for index, line in enumerate(lines) if matches_line(line)]
        lines = shown.split("\n")  # as `read_lines` shows them
        return [(index, lines[index], 0) for index in matching]

    return Finder(pattern.piece_bytes, find)


def search_lines(scan: Scan, query: str, finder: Finder, max_results: int) -> ToolResult:
    """Return the matching lines by path and line, tests and vendored sources last. The result says what was cut."""
    found: list[tuple[str, list[Hit]]] = []
    kept_lines = total = 0
    for path, text in scan.texts():
        hits, count = _hits(scan, text, finder, max_results)
        if count:
            total += count
            found.append((path, hits))
            kept_lines += len(hits)
            if kept_lines > 50 * max_results:
                # The last lines would never be shown, so only their counts are kept.
                found.sort(key=lambda item: is_secondary(item[0]))
                kept_lines = _forget(found, 10 * max_results)
    found.sort(key=lambda item: is_secondary(item[0]))
    matches, shown_files = _within_bounds(scan, found, max_results)
    data: dict[str, Any] = {"matches": matches, "total_matches": total, "files_matched": len(found), **scan.report()}
    if len(matches) < total:
        data["truncated"] = True
        data["more_in"] = [path for path, _ in found if path not in shown_files][:20]
    return ToolResult(message=_sentence(query, len(matches), total, len(found), scan), data=data)


def _hits(scan: Scan, text: bytes, finder: Finder, limit: int) -> tuple[list[Hit], int]:
    """Return the first `limit` matching lines of a file, and the number of all."""
    hits: list[Hit] = []
    count, newest = 0, -1
    for block in blocks(text, finder.block_bytes):
        for index, line, at in finder.find(block):
            if block.line + index == newest:
                # The line was found already in another part of the same long line.
                continue
            newest = block.line + index
            count += 1
            if len(hits) < limit:
                shown = cut_line(line, scan.bounds.max_line_chars, at, begins=block.begins, ends=block.ends)
                hits.append(Hit(newest, shown))
        if scan.budget.over():
            break
    return hits, count


def _forget(found: list[tuple[str, list[Hit]]], keep: int) -> int:
    """Drop the hits beyond the first `keep`, and return how many are left."""
    left = 0
    for index, (path, hits) in enumerate(found):
        found[index] = (path, hits[: max(0, keep - left)])
        left += len(found[index][1])
    return left


def _within_bounds(
    scan: Scan, found: list[tuple[str, list[Hit]]], max_results: int
) -> tuple[list[dict[str, Any]], set[str]]:
    matches: list[dict[str, Any]] = []
    files: set[str] = set()
    used = 0
    for path, hits in found:
        for hit in hits:
            # The keys and quotes of a match take about 40 bytes of JSON.
            used += len(path) + len(hit.text.encode()) + 40
            if len(matches) == max_results or used > scan.bounds.max_result_bytes:
                return matches, files
            matches.append({"path": path, "line": hit.line + 1, "text": hit.text})
            files.add(path)
    return matches, files


def _sentence(query: str, shown: int, total: int, files: int, scan: Scan) -> str:
    if not total:
        said = f"no line of {scan.files} files matches {query!r}"
    elif shown < total:
        said = f"cut: the first {shown} of {total} matching lines in {files} files; narrow the query or the glob"
    else:
        said = f"{total} matching lines in {files} files"
    return f"{said}; {scan.advice}" if scan.stopped else said


def checked_query(query: str) -> str:
    """Return the query. Raises `ToolError` for a query that cannot match anything."""
    if not query.strip():
        raise ToolError("the query is empty; pass the text to look for")
    if "\n" in query:
        raise ToolError("the query has several lines, and the search is by line; look for one of them")
    return query
