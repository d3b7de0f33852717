"""An estimate of the tokens of a message from its characters, corrected by the usage that providers report. Pure.

It knows no vendor and downloads no vocabulary. The numbers below were fitted to usage that vendors reported for
recorded calls; `docs/explanation/token-estimates.md` has the errors, `tests/data/recorded_usage.csv` the data.

Example:
    from toolbus.core.tokens import Calibration, Tokenizer, count_classes, estimate_message, weigh
    from toolbus.core.tokens import estimate_text, estimate_tools
    from toolbus.messages import UserMessage

    print(estimate_text("Why did order 7 arrive late?") in range(5, 12))  # True
    words: Tokenizer = lambda text: len(text.split())  # for Compression(tokenizer=words)
    print(estimate_message(UserMessage(content="two words"), words) >= 2)  # True
    print(weigh(count_classes("a")) > 0, estimate_tools([]))  # True 0
    calibration = Calibration()  # learns how far a model's own counts are from the estimates
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

from ..messages import AssistantMessage, FilePart, ImagePart, Message, Part, SystemMessage, TextPart, UserMessage
from ..protocols import ToolSpec

__all__ = [
    "Calibration",
    "Tokenizer",
    "count_classes",
    "estimate_message",
    "estimate_text",
    "estimate_tools",
    "weigh",
]

Tokenizer: TypeAlias = Callable[[str], int]
"""A function that returns the tokens of a text: a vendor's tokenizer, instead of `estimate_text`.

It must be pure, and cheap enough to be called once for each new text of a transcript.
"""

WEIGHTS: dict[str, float] = {
    # Tokenizers first split a text into runs, in which a word includes the blank before it. These classes count runs.
    "words": 1.06,
    "long_words": 0.18,  # every eight letters in a row
    "blobs": 4.0,  # every sixteen letters in a row: encoded data, not a word. Set, not fitted, since prose has no blobs
    "humps": 0.92,  # camelCase
    "numbers": 1.53,
    "digits": 0.43,
    "punctuation": 0.67,  # runs of punctuation
    "rules": 0.25,  # every four punctuation marks in a row
    "lines": 0.40,
    "indents": 1.15,  # runs of two blanks or more
    "padding": 0.5,  # every sixteen blanks in a row. Set, not fitted
    # The classes below count characters, by the first byte of their UTF-8 form.
    "accents": 0.70,  # Latin letters beyond ASCII, also counted in words. Set: the fit gives 0.95, Vietnamese 0.13
    "cyrillic": 0.28,  # Cyrillic and Greek
    "semitic": 0.42,  # Hebrew, Arabic and neighbouring scripts
    "indic": 0.40,  # from Devanagari to Thai
    "cjk": 0.72,  # kana and Han
    "hangul": 0.56,
    "symbols": 0.5,  # dashes, quotes, arrows, boxes. Set, since they are rare in the fitted data
    "emoji": 1.2,  # all characters beyond the basic plane. Set for the same reason
}
"""The tokens for one occurrence of each class, in the order of `count_classes`."""

MESSAGE_TOKENS = 5
"""The role and separators of one message; OpenAI's cookbook counts 3 and a role, and 3 more for the reply."""
CALL_TOKENS = 12
"""The text around a call's name and arguments, with its id: 5 (GPT) to 39 (Claude) in the recorded usage."""
TOOL_TOKENS = 5
"""The text around a tool's name, description and schema."""
TOOLS_TOKENS = 12
"""The tokens that a vendor adds once for a request with tools: 11 for GPT, hundreds for others.

Claude adds 508 and Command 1,347; `Calibration` learns the difference.
"""
IMAGE_TOKENS = 1_000
"""One image. Vendors count pixels: 258 for a tile (Gemini), 765 for 1024 x 1024 (GPT-4o), up to 1,600 (Claude)."""
FILE_TOKENS = 3_000
"""One file that is not text. Vendors count pages of a PDF: 258 each (Gemini), 1,500 to 3,000 each (Claude)."""

_BASE64_CHARACTERS_PER_TOKEN = 5.3  # 4 characters encode 3 bytes, and 4 bytes of prose are about one token

_MAX_COUNTED_CHARS = 2**20  # They take some 10 ms.

_CONTINUATION = bytes(range(0x80, 0xC0))  # the UTF-8 bytes after the first one of a character


# The class of the first bytes of characters below each end. Below 0xE2 are Latin Extended Additional (Vietnamese), and
# the far rarer Georgian, Khmer and Ethiopic.
_ENDS = {0xCE: "e", 0xD5: "c", 0xE0: "h", 0xE1: "i", 0xE2: "e", 0xE3: "s", 0xEA: "k", 0xEE: "g", 0xF0: "s"}


def _kind(byte: int) -> str:
    """Return the class of the characters whose UTF-8 form begins with `byte`."""
    if byte < 0x80:
        character = chr(byte)
        found = (
            ("a", character.islower()),
            ("A", character.isupper()),
            ("0", character.isdigit()),
            ("\n", character == "\n"),
            (" ", character.isspace()),
        )
        return next((kind for kind, holds in found if holds), ".")
    return next((kind for end, kind in _ENDS.items() if byte < end), "x")


_KINDS = b"".join(_kind(byte).encode() for byte in range(256))


def _only(kinds: bytes) -> bytes:
    """Return a translation table that maps `kinds` to "x" and all else to a blank."""
    return bytes(0x78 if byte in kinds else 0x20 for byte in range(256))


_LETTERS, _DIGITS, _MARKS, _BLANKS = _only(b"aAe"), _only(b"0"), _only(b"."), _only(b" ")


def _runs(only: bytes, end: bytes = b"x") -> int:
    """Return the number of runs of "x" that end with `end`."""
    return only.count(end + b" ") + only.endswith(end)


def count_classes(text: str) -> tuple[int, ...]:
    """Return the occurrences of each class of `WEIGHTS`, in that order. Takes a few passes over bytes, all in C.

    Appending characters never lowers a count. Lone surrogates count as Hangul, since they begin with the same byte.
    """
    raw = text.encode("utf-8", "surrogatepass")
    kinds = raw.translate(_KINDS, _CONTINUATION)
    letters, marks = kinds.translate(_LETTERS), kinds.translate(_MARKS)
    digits = kinds.translate(_DIGITS) if b"0" in kinds else b""
    blanks = kinds.translate(_BLANKS) if b"  " in kinds else b""
    ascii_counts = (
        letters.count(b" x") + letters.startswith(b"x"),  # Counting the starts of runs is faster than their ends.
        letters.count(b"x" * 8),
        letters.count(b"x" * 16),
        kinds.count(b"aA"),
        _runs(digits),
        digits.count(b"x"),
        _runs(marks),
        marks.count(b"x" * 4),
        kinds.count(b"\n"),
        _runs(blanks, b"xx"),
        blanks.count(b"x" * 16),
    )
    if len(kinds) == len(raw):
        return (*ascii_counts, 0, 0, 0, 0, 0, 0, 0, 0)
    return ascii_counts + tuple(kinds.count(kind) for kind in (b"e", b"c", b"h", b"i", b"k", b"g", b"s", b"x"))


def weigh(counts: Sequence[int]) -> float:
    """Return the tokens for counts of `count_classes`; it is linear, so counts of several texts may be added first."""
    return sum(count * weight for count, weight in zip(counts, WEIGHTS.values(), strict=True))


def estimate_text(text: str) -> int:
    """Return the estimated tokens of `text`: 0 only for an empty text.

    Of a text that no model could read, only the beginning is counted, and the rest is taken to be like it.
    """
    parts = max(1.0, len(text) / _MAX_COUNTED_CHARS)
    return max(1, round(weigh(count_classes(text[:_MAX_COUNTED_CHARS])) * parts)) if text else 0


def estimate_message(message: Message, count: Tokenizer = estimate_text) -> int:
    """Return the estimated input tokens of `message`, with what vendors put around it; `count` counts its texts.

    Images and files have a flat number, as `data:` URLs too (`IMAGE_TOKENS`, `FILE_TOKENS`), except that the text of an
    inline text file counts by its length. Reasoning counts only where `vendor_data` is sent back with the message,
    since no vendor is sent any without it; signatures and encrypted reasoning count as the text that they stand for.
    """
    if isinstance(message, SystemMessage):
        return MESSAGE_TOKENS + count(message.text)
    if isinstance(message, UserMessage):
        content = message.content
        texts = count(content) if isinstance(content, str) else sum(_part(part, count) for part in content)
        return MESSAGE_TOKENS + texts
    if isinstance(message, AssistantMessage):
        calls = sum(CALL_TOKENS + count(call.name) + count(call.arguments) for call in message.tool_calls)
        reasoning = count(message.reasoning) if message.vendor_data else 0
        return MESSAGE_TOKENS + count(message.text) + reasoning + calls
    return MESSAGE_TOKENS + count(message.content) + sum(_part(part, count) for part in message.parts)


def _part(part: Part, count: Tokenizer) -> int:
    if isinstance(part, TextPart):
        return count(part.text)
    if isinstance(part, ImagePart):
        return IMAGE_TOKENS
    return _file(part)


def _file(part: FilePart) -> int:
    if part.media_type.startswith("text/") and part.url.startswith("data:"):
        return round(len(part.url) / _BASE64_CHARACTERS_PER_TOKEN)
    return FILE_TOKENS


def estimate_tools(specs: Iterable[ToolSpec], count: Tokenizer = estimate_text) -> int:
    """Return the estimated input tokens of the tools' descriptions: 0 without tools.

    Callers should keep the number while the tools stay the same.
    """
    each = [TOOL_TOKENS + count(spec.name) + count(spec.description) + count(_json(spec.parameters)) for spec in specs]
    return TOOLS_TOKENS + sum(each) if each else 0


def _json(value: object) -> str:
    try:
        return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # Lone surrogates and integers over 64 bits are about as long in Python's form.
        return repr(value)


def _plain(value: Any) -> Any:
    """Return a form that orjson can write: mappings as dictionaries, all else as its `repr`."""
    return dict(value) if hasattr(value, "keys") else repr(value)


_LOWEST, _HIGHEST = 0.3, 4.0
_MAX_OVERHEAD = 2_000  # tokens; more than any vendor's overhead in the recorded usage
_STEP = 2.0  # the largest factor by which one report may differ from the expected number
_DECAY = 0.8  # the factor by which each new report reduces the weight of the older ones
_MAX_MARGIN = 0.25
_PRIOR = 0.03  # the weight of the factor 1 before there are reports; a report weighs at most 1, and 0.25 where it fits
_ABSURD = 20.0  # a report that is off by this factor, apart from overhead, is not explained by a tokenizer


@dataclass(slots=True)
class _Line:
    """The line `reported = overhead + factor * estimated`: decayed sums for least squares of the relative errors."""

    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    factor: float = 1.0
    overhead: float = 0.0
    margin: float = 0.0

    def add(self, x: float, y: float) -> None:
        weight = 1 / (x + y) ** 2
        self.weight = self.weight * _DECAY + weight
        self.x = self.x * _DECAY + weight * x
        self.y = self.y * _DECAY + weight * y
        self.xx = self.xx * _DECAY + weight * x * x
        self.xy = self.xy * _DECAY + weight * x * y
        self._solve()
        more = y / (self.overhead + self.factor * x) - 1
        self.margin = min(max(more, self.margin * _DECAY, 0.0), _MAX_MARGIN)

    def _solve(self) -> None:
        xx, xy = self.xx + _PRIOR, self.xy + _PRIOR
        factor = (xy * self.weight - self.x * self.y) / (xx * self.weight - self.x * self.x)
        overhead = (self.y - min(max(factor, _LOWEST), _HIGHEST) * self.x) / self.weight
        self.overhead = min(max(overhead, 0.0), float(_MAX_OVERHEAD))
        self.factor = min(max((xy - self.overhead * self.x) / xx, _LOWEST), _HIGHEST)  # the best beside that overhead


class Calibration:
    """A correction of estimates, learned for each model from the usage that its provider reports.

    `overhead(model) + factor(model) * estimate` is the calibrated estimate. The factor reflects the model's vocabulary,
    the overhead what its vendor adds to each request, hundreds of tokens for some. A factor without an overhead would
    have to be 5 for a short request with tools, and 1.1 for a long one.

    The correction is a line through the reports, in which older ones count less. It stays near the factor 1 as long as
    requests are too small or too similar to tell factor and overhead apart. The factor is bounded by 0.3 and 4, the
    overhead by 0 and 2,000 tokens. One odd report moves them by a limited step; a report that is zero, negative or
    absurd is ignored. One object may serve all sessions of a runtime; it is meant for one thread. It keeps the
    `max_models` that were used last, in constant memory each.
    """

    __slots__ = ("_lines", "_max_models")

    def __init__(self, *, max_models: int = 256) -> None:
        self._max_models = max_models
        self._lines: OrderedDict[str, _Line] = OrderedDict()

    def observe(self, model: str, estimated: int, actual: int) -> None:
        """Learn that `actual` input tokens were reported for a request whose uncalibrated estimate was `estimated`.

        `model` is "vendor:model". `actual` is all the input, including what was read from the provider's cache.
        """
        if estimated <= 0:
            return
        expected = self.overhead(model) + self.factor(model) * estimated
        if not expected / _ABSURD <= actual <= expected * _ABSURD + _MAX_OVERHEAD:
            return
        line = self._lines.setdefault(model, _Line())
        line.add(estimated, min(max(actual, expected / _STEP), expected * _STEP + _MAX_OVERHEAD))
        if len(self._lines) > self._max_models:
            self._lines.popitem(last=False)

    def factor(self, model: str) -> float:
        """Return the factor for an estimate for `model`: 1 where nothing was observed."""
        return self._line(model).factor

    def overhead(self, model: str) -> float:
        """Return the tokens to add to an estimate for `model`, once for a request: 0 where nothing was observed."""
        return self._line(model).overhead

    def margin(self, model: str) -> float:
        """Return the share by which recent reports exceeded the calibrated estimate, at most 0.25.

        A limit should leave this share free.
        """
        return self._line(model).margin

    def _line(self, model: str) -> _Line:
        line = self._lines.get(model)
        if line is None:
            return _Line()
        self._lines.move_to_end(model)
        return line
