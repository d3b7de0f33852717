"""The figures of `tests/data/recorded_usage.csv`, and the estimates of toolbus; see the README beside the file."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from toolbus.core import tokens

__all__ = ["FITTED", "Row", "percentile", "rows"]

_DATA = Path(__file__).parents[1] / "data" / "recorded_usage.csv"
_HELD_OUT = {  # nothing was fitted to the figures of these sources
    "DataDog/dd-trace-py",
    "aloekun/study-ai-agent",
    "crewAIInc/crewAI",
    "datawhalechina/llm-cookbook",
    "open-telemetry/opentelemetry-python-contrib",
    "patterns-ai-core/langchainrb",
}
_HELD_OUT_LANGUAGES = {
    *("Telugu", "Marathi", "Urdu", "Persian", "Vietnamese", "Japanese", "Italian", "Spanish", "French", "English")
}
FITTED = "gpt-4o, gpt-4.1"
"""The family whose reports the weights were fitted to: OpenAI's vocabulary of 2024, and no hidden reasoning."""
_FAMILIES = [
    (re.compile(r"(^|/)(gpt-4o|gpt-4\.1)"), FITTED),
    (re.compile(r"(^|/)(gpt-5|o1|o3|o4)"), "gpt-5, o1 to o4"),
    *[
        (re.compile(name), name)
        for name in (
            "gpt-oss",
            "gpt",
            "claude",
            "gemini",
            "mistral",
            "llama",
            "command",
            "nova",
            "grok",
            "deepseek",
            "qwen",
        )
    ],
]


@dataclass(slots=True, frozen=True, kw_only=True)
class Row:
    """One recorded request (`in`), reply (`out`) or published sentence (`text`): its reported and estimated tokens."""

    kind: str
    source: str
    path: str
    vendor: str
    model: str
    characters: int
    tools: int
    reported: int
    estimated: float
    classes: tuple[int, ...]

    @property
    def held_out(self) -> bool:
        return self.path in _HELD_OUT_LANGUAGES if self.kind == "text" else self.source in _HELD_OUT

    @property
    def family(self) -> str:
        """The vendor of the vocabulary, wherever the model was served."""
        return next((name for pattern, name in _FAMILIES if pattern.search(self.model.lower())), "other")

    @property
    def content(self) -> str:
        """The kind of the text, by its classes of characters."""
        counts = dict(zip(tokens.WEIGHTS, self.classes, strict=True))
        foreign = sum(counts[each] for each in ("accents", "cyrillic", "semitic", "indic", "cjk", "hangul"))
        if foreign * 20 >= self.characters:
            return "not English"
        return "JSON and the like" if counts["punctuation"] * 2 >= counts["words"] else "English prose"

    @property
    def ratio(self) -> float:
        return self.estimated / self.reported


def _classes(text: str) -> tuple[int, ...]:
    counts = [int(each) for each in text.split()]
    return (*counts, *[0] * (len(tokens.WEIGHTS) - len(counts)))


def rows() -> list[Row]:
    """Read all rows, sorted by source and path."""
    found: list[Row] = []
    with _DATA.open(encoding="utf-8", newline="") as file:
        for each in csv.DictReader(file):
            messages, calls, tools = int(each["messages"]), int(each["calls"]), int(each["tools"])
            classes = _classes(each["text_classes"])
            estimated = tokens.weigh(classes)
            estimated += messages * tokens.MESSAGE_TOKENS + calls * tokens.CALL_TOKENS
            if tools:
                estimated += tokens.TOOLS_TOKENS + tools * tokens.TOOL_TOKENS
                estimated += tokens.weigh(_classes(each["tool_classes"]))
            found.append(
                Row(
                    kind=each["kind"],
                    source=each["source"],
                    path=each["path"],
                    vendor=each["vendor"],
                    model=each["model"],
                    characters=int(each["characters"]),
                    tools=tools,
                    reported=int(each["reported_tokens"]),
                    estimated=estimated,
                    classes=classes,
                )
            )
    return found


def percentile(values: list[float], share: float) -> float:
    """The value that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
