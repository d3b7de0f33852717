"""The search for words: the lines where most of the words occur close together, with more weight for rare words.

It takes two passes. The first counts every word in every file and keeps the files that look best (BM25, with a bonus
for words in the path). The second reads the lines of only those files, and prefers lines that define a name over lines
that use it. Nothing is indexed or kept between calls, because files change.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...core.text_structure import is_form, is_secondary, spaced, words_in
from ...errors import ToolError
from ...tool_results import ToolResult
from .._files.scan import Scan, blocks, cut_line

_MAX_WORDS = 24
_MAX_CANDIDATES = 60  # files that the second pass reads
_MAX_SPOTS_PER_FILE = 3
_REACH_LINES = 8  # lines around a spot whose words count for it
_MAX_HITS = 4_000  # lines of one file that get a weight
_BLOCK_BYTES = 262_144
# The length beyond which a line is taken for minified code or data.
_WRITTEN_CHARS = 500
# The bytes of a line that are decoded, before it is cut to what is shown.
_SHOWN_BYTES = 65_536
_FEW_FILES = 12
# The indentation from which on an assignment is taken for that of a local variable.
_LOCAL_INDENT = 8
# The most occurrences of one word in one file that are counted.
_MAX_COUNT = 64
# The weight of an occurrence at the end of a compound, such as "size" in "blocksize".
_JOINED = 0.7
# The weight of any other occurrence inside a longer word, such as "limit" in "delimiter".
_INNER = 0.15
# BM25's k1 and b. The usual b is 0.75; it is lower here, because long modules are not worse.
_SATURATION, _LENGTH = 1.2, 0.6

# The endings that may follow a short word of the query: "log" is in logs, logged and logging, not in logic.
_INFLECTED = re.compile(rb"(?:e?s|e?d|ings?|ers?|[bdgmnprt](?:ings?|ed|ers?))?(?![a-z])")
_PLURAL = re.compile(rb"(?:e?s)?(?![a-z])")
_DEFINES = re.compile(
    r"^\s*(?:(?:export|default|public|private|protected|internal|static|abstract|final|async|unsafe|inline|virtual|"
    r"override|declare|sealed|pub(?:\([^)]*\))?)\s+)*"
    r"(?:def|class|function\*?|func|fn|struct|enum|trait|interface|type|module|namespace|impl|record|#define)\s+"
    r"(?:\([^)]*\)\s*)?([A-Za-z_$][\w$]*)"
)
_ASSIGNS = re.compile(
    r"^\s*(?:(?:export|const|let|var|static|pub|final|readonly|public|private|protected)\s+)*"
    r"[\"'`]?([A-Za-z_$][\w$.-]*)[\"'`]?\s*(?::[^=]{1,80})?(?:=(?![=>])|:=|:\s)\s*\S"
)
_IMPORTS = re.compile(
    r"^\s*(?:from\s+\S+\s+import\b|import\b|#\s*include\b|using\s|use\s|(?:const|var|let)\s.*\brequire\()"
)
_HEADING = re.compile(r"^#{1,6}\s+\S")
_PROSE = re.compile(r"\.(?:md|mdx|markdown|rst|txt|adoc)$", re.IGNORECASE)


def split_words(query: str) -> list[str]:
    """Return the words of a query, in lower case, each once, without the punctuation around them.

    Where a language has no spaces between words, the words are pairs of characters.
    """
    words = (word.strip("\"'`()[]{}<>,;:?!.").lower() for word in spaced(query).split())
    return list(dict.fromkeys(word for word in words if word))[:_MAX_WORDS]


@dataclass(slots=True)
class _Word:
    """A word of the query, and the number of files that contain it."""

    text: str
    needle: bytes
    files: int = field(init=False)
    rarity: float = field(init=False)
    path_rarity: float = field(init=False)

    def count(self, text: bytes, folded: bytes) -> float:
        """Return how often the word occurs in `text`, by weight; `folded` is the same text in lower case."""
        needle, size = self.needle, len(self.needle)
        at = folded.find(needle)
        found = 0.0
        while at >= 0 and found < _MAX_COUNT:
            found += self.quality(text, folded, at, size)
            at = folded.find(needle, at + size)
        return found

    @staticmethod
    def quality(text: bytes, folded: bytes, at: int, size: int) -> float:
        """Return an occurrence's weight: 1 if a word, or a part of an identifier, begins at `at`, and less inside one.

        A short word counts only as a whole word, or in a form of it: any other occurrence of it has weight 0.
        """
        begins = not folded[at - 1 : at].isalpha() or (text[at - 1 : at].islower() and text[at : at + 1].isupper())
        if size > 3:
            if begins:
                return 1.0
            return _JOINED if at >= 3 and folded[at - 3 : at].isalpha() and _PLURAL.match(folded, at + size) else _INNER
        ends = _INFLECTED.match(folded, at + size) or text[at + size : at + size + 1].isupper()
        return 1.0 if begins and ends else 0.0


@dataclass(slots=True)
class _File:
    path: str
    size: int
    counts: list[float]
    in_path: list[float]
    score: float = 0.0


@dataclass(slots=True)
class _Spot:
    score: float
    path: str
    line: int
    text: str
    words: list[str]


def search_words(scan: Scan, query: str, max_results: int) -> ToolResult:
    """Return the best spots, best first, with the words near each, and the number of files with each word."""
    words = [_Word(text, text.encode("utf-8", "replace")) for text in split_words(query)]
    if not words:
        raise ToolError("the query has no words; pass words separated by spaces")
    files = _count(scan, words)
    spots = _best_spots(scan, files, words, max_results)
    spots.sort(key=lambda spot: (-spot.score, spot.path, spot.line))
    matches: list[dict[str, Any]] = []
    used = 0
    for spot in spots[:max_results]:
        match = {
            "path": spot.path,
            "line": spot.line,
            "text": cut_line(spot.text, scan.bounds.max_line_chars),
            "words": spot.words,
            "score": round(spot.score, 2),
        }
        used += len(str(match).encode("utf-8", "replace"))
        if used > scan.bounds.max_result_bytes:
            break
        matches.append(match)
    data: dict[str, Any] = {
        "matches": matches,
        "files_with_word": {word.text: word.files for word in words},
        "files_matched": len(files),
        **scan.report(),
    }
    if len(matches) < len(spots) or len(files) > _MAX_CANDIDATES:
        data["truncated"] = True
    said = f"the best {len(matches)} passages in {len(files)} files that contain some of the words"
    if not matches:
        said = f"none of the words occurs in any of {scan.files} files"
    return ToolResult(message=f"{said}; {scan.advice}" if scan.stopped else said, data=data)


def _best_spots(scan: Scan, files: Sequence[_File], words: Sequence[_Word], max_results: int) -> list[_Spot]:
    scan.begin_second_pass()
    # A glob may leave few files; then more spots of each are shown.
    few = len(files) <= 3
    spots: list[_Spot] = []
    for rank, file in enumerate(files[:_MAX_CANDIDATES]):
        limit = max_results if few else 2 * _MAX_SPOTS_PER_FILE if rank < 2 else _MAX_SPOTS_PER_FILE
        spots += _spots(scan, file, words, limit)
        if scan.budget.over():
            scan.stopped = scan.stopped or scan.budget.stopped
            break
    return spots


def _count(scan: Scan, words: Sequence[_Word]) -> list[_File]:
    """Return the files that contain a word, best first. Sets the rarity of each word."""
    files: list[_File] = []
    for path, text in scan.texts():
        counts = _counts(scan, text, words)
        in_path = _in_path(path, words)
        if any(counts) or any(in_path):
            files.append(_File(path, len(text), counts, in_path))
    for index, word in enumerate(words):
        word.files = sum(file.counts[index] > 0 for file in files)
        if scan.files >= _FEW_FILES:
            word.rarity = math.log(1 + (scan.files - word.files + 0.5) / (word.files + 0.5))
        else:
            # Every one of so few files may contain the word, so the rarity comes from the number of occurrences.
            word.rarity = math.log(1 + scan.bytes_read / 40 / (1 + sum(file.counts[index] for file in files)))
        in_paths = sum(file.in_path[index] > 0 for file in files)
        word.path_rarity = (word.rarity + math.log(1 + (scan.files - in_paths + 0.5) / (in_paths + 0.5))) / 2
    for file in files:
        times_average = file.size and file.size * scan.files / scan.bytes_read
        length = 1 - _LENGTH + _LENGTH * min(4.0, times_average)
        for word, count, bonus in zip(words, file.counts, file.in_path, strict=True):
            file.score += word.rarity * count * (_SATURATION + 1) / (count + _SATURATION * length)
            file.score += word.path_rarity * bonus
        file.score *= _prior(file)
    files.sort(key=lambda file: (-file.score, file.path))
    return files


def _counts(scan: Scan, text: bytes, words: Sequence[_Word]) -> list[float]:
    """Return how often each word occurs in a text, by weight."""
    counts = [0.0] * len(words)
    for block in blocks(text, _BLOCK_BYTES):
        folded = _folded(block.text)
        for index, word in enumerate(words):
            if counts[index] < _MAX_COUNT:
                counts[index] = min(_MAX_COUNT, counts[index] + word.count(block.text, folded))
        if scan.budget.over():
            break
    return counts


def _folded(text: bytes) -> bytes:
    """Return a text in lower case, in which each byte belongs to the same character as in `text`."""
    if text.isascii():
        return text.lower()
    decoded = text.decode("utf-8", "surrogateescape")
    folded = decoded.lower().encode("utf-8", "surrogateescape")
    if len(folded) == len(text):
        return folded
    return "".join(map(_folded_evenly, decoded)).encode("utf-8", "surrogateescape")


@functools.lru_cache(4_096)
def _folded_evenly(char: str) -> str:
    """Return a character in lower case, unless that takes another number of bytes, as for the Kelvin sign."""
    folded = char.lower()
    return folded if len(folded.encode("utf-8", "replace")) == len(char.encode("utf-8", "replace")) else char


def _prior(file: _File) -> float:
    """Return the factor of a file's score, which is lower for tests and vendored sources."""
    return 0.5 if is_secondary(file.path) else 1.0


_INDEX_NAMES = frozenset({"__init__", "index", "mod", "main", "readme", "lib"})


def _in_path(path: str, words: Sequence[_Word]) -> list[float]:
    """Return the bonus of each word for its occurrence in the path, which is highest for the file's own name."""
    *directories, name = path.split("/")
    stem = name.partition(".")[0].lower() or name.lower()
    if stem in _INDEX_NAMES and directories:
        stem = directories.pop().lower()
    lowered = path.lower()
    parts = [piece.lower() for piece in words_in(path)]
    joined = _joined_in(stem, words)
    bonus: list[float] = []
    for word in words:
        text = word.text
        if text not in lowered:
            bonus.append(0.0)
        elif text in joined or is_form(stem.strip("_"), (text,)):
            bonus.append(2.0)
        elif any(is_form(directory.lower(), (text,)) for directory in directories):
            bonus.append(1.3)
        elif any(part == text or (len(text) > 3 and part.startswith(text)) for part in parts):
            bonus.append(0.7)
        elif len(text) > 4:
            bonus.append(0.4)
        else:
            bonus.append(0.0)
    return bonus


def _joined_in(stem: str, words: Sequence[_Word]) -> set[str]:
    """Return words that follow each other in the query and form the file's name: "web browser" and webbrowser.py."""
    joined: set[str] = set()
    for first, second in itertools.pairwise(words):
        rest = stem.strip("_").removeprefix(first.text)
        if rest != stem and rest.lstrip("_-").startswith(second.text) and len(rest) <= len(second.text) + 4:
            joined |= {first.text, second.text}
    return joined


def _spots(scan: Scan, file: _File, words: Sequence[_Word], limit: int) -> list[_Spot]:
    """Return the best spots of one file, apart from each other, at most `limit` of them."""
    text = scan.tree.read(file.path, scan.bounds.max_file_bytes, scan.budget)
    if not text:
        return []
    prose = _PROSE.search(file.path) is not None
    hits = _hits(scan, text, words, prose=prose)
    prior = _prior(file)
    scored: list[_Spot] = []
    for position, hit in enumerate(hits):
        near = _near(hits, position)
        score = sum(words[word].rarity * weight for word, weight in near.items())
        score += 0.3 * sum(words[word].rarity * weight for word, weight in hit.weights.items())
        own = [words[word].text for word in near]
        scored.append(_Spot(prior * (score + 0.4 * file.score), file.path, hit.line + 1, hit.text, own))
        if scan.budget.over():
            break
    if not hits:
        first = next((hit for hit in _lines(text) if hit[1].strip()), (0, b""))
        scored.append(_Spot(0.4 * file.score, file.path, first[0] + 1, _shown(first[1]), []))
    chosen: list[_Spot] = []
    for spot in sorted(scored, key=lambda spot: (-spot.score, spot.line)):
        if all(abs(spot.line - other.line) > _REACH_LINES for other in chosen):
            chosen.append(spot)
            if len(chosen) == limit:
                break
    return chosen


class _Hit(NamedTuple):
    """A line that contains a word: its index from 0, its text, and the weight of each of its words."""

    line: int
    text: str
    weights: dict[int, float]


def _hits(scan: Scan, text: bytes, words: Sequence[_Word], *, prose: bool) -> list[_Hit]:
    """Return the lines that contain a word."""
    hits: list[_Hit] = []
    for index, line in _lines(text, words):
        folded = _folded(line)
        own: dict[int, float] = {}
        for number, word in enumerate(words):
            at = folded.find(word.needle)
            if at >= 0 and (quality := min(1.0, word.count(line, folded))):
                own[number] = quality
        if own:
            hits.append(_Hit(index, _shown(line), _weighed(line, own, words, prose=prose)))
        if len(hits) == _MAX_HITS or scan.budget.over():
            break
    return hits


def _lines(text: bytes, words: Sequence[_Word] = ()) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a text with their indexes. With `words`, skip the blocks that contain no word of them.

    Only the first part of a line that is longer than a block counts, because no person wrote such a line.
    """
    for block in blocks(text, _BLOCK_BYTES):
        folded = _folded(block.text) if words else b""
        if block.begins and (not words or any(word.needle in folded for word in words)):
            yield from enumerate(block.text.split(b"\n"), block.line)


def _shown(line: bytes) -> str:
    return line[:_SHOWN_BYTES].decode("utf-8", "replace")


def _weighed(raw: bytes, own: dict[int, float], words: Sequence[_Word], *, prose: bool) -> dict[int, float]:
    """Return the weights of a line's words: more in the name that the line defines, and less in an import."""
    line = _shown(raw)
    if len(line) > _WRITTEN_CHARS:
        # The line is minified code or data, and not written by a person.
        return {number: 0.3 * quality for number, quality in own.items()}
    if prose:
        factor = 1.6 if _HEADING.match(line) else 1.0
        return {number: factor * quality for number, quality in own.items()}
    if _IMPORTS.match(line):
        return {number: 0.3 * quality for number, quality in own.items()}
    if defines := _DEFINES.match(line):
        named, otherwise, name = 2.2, 1.5, defines[1].lower()
    elif (assigns := _ASSIGNS.match(line)) and len(line) - len(line.lstrip()) < _LOCAL_INDENT:
        named, otherwise, name = 1.6, 1.1, assigns[1].lower()
    else:
        return own
    return {number: (named if words[number].text in name else otherwise) * quality for number, quality in own.items()}


def _near(hits: list[_Hit], position: int) -> dict[int, float]:
    """Return each word's best weight within reach of the hit at `position`, which decreases with the distance."""
    centre = hits[position].line
    near: dict[int, float] = {}
    start = position
    while start and centre - hits[start - 1].line <= _REACH_LINES:
        start -= 1
    for hit in itertools.islice(hits, start, None):
        distance = abs(hit.line - centre)
        if distance > _REACH_LINES:
            break
        for word, weight in hit.weights.items():
            near[word] = max(near.get(word, 0.0), weight * (1 - distance / (2.5 * _REACH_LINES)))
    return near
