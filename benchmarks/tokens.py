"""Measure how far token estimates are off, and how fast they are.

    python benchmarks/tokens.py

The errors compare `tests/data/recorded_usage.csv`, which has what vendors reported for recorded calls, with what
toolbus estimates for the same counts of characters. `calibrated` is what an application would have seen: its requests
in order, each estimated with what was learned from earlier ones; the first one, without any calibration, is left out.
The speed is that of `estimate_text` over texts made here, in characters of UTF-8.
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Iterable
from pathlib import Path

from toolbus.core.tokens import Calibration, estimate_text

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.recorded_usage import FITTED, Row, percentile, rows

LEAST = 5  # a group with fewer rows gets no line of its own
SMALL = 100  # reported tokens: below this, most are those that a vendor adds to each request


def line(name: str, ratios: list[float]) -> str:
    errors = [abs(each - 1) for each in ratios]
    figures = f"{percentile(errors, 0.5):.1%} | {percentile(errors, 0.9):.1%} | {percentile(ratios, 0.5):.2f}"
    return f"| {name} | {len(ratios)} | {figures} |"


def table(title: str, groups: Iterable[tuple[str, list[float]]]) -> None:
    print(f"\n{title}\n\n| what | rows | median error | 90 % of errors below | median estimate / reported |")
    print("| --- | --- | --- | --- | --- |")
    for name, ratios in groups:
        if len(ratios) >= LEAST:
            print(line(name, ratios))


def by_family(chosen: list[Row]) -> list[tuple[str, list[float]]]:
    names = sorted({row.family for row in chosen})
    return [(name, [row.ratio for row in chosen if row.family == name]) for name in names]


def sequences(chosen: list[Row]) -> dict[tuple[str, str, str, bool], list[Row]]:
    """The requests of each application, in the order of their paths: one repository and model, with tools or not."""
    found: dict[tuple[str, str, str, bool], list[Row]] = {}
    for row in chosen:
        found.setdefault((row.source, row.vendor, row.model, row.tools > 0), []).append(row)
    return {key: each for key, each in found.items() if len(each) > 1}


def calibrated(each: list[Row]) -> list[float]:
    """The ratios of estimated to reported tokens, with what was known at that time; the first request is left out."""
    calibration = Calibration()
    ratios: list[float] = []
    for row in each:
        expected = calibration.overhead(row.model) + calibration.factor(row.model) * row.estimated
        ratios.append(expected / row.reported)
        calibration.observe(row.model, round(row.estimated), row.reported)
    return ratios[1:]


def errors() -> None:
    found = rows()
    inputs = [row for row in found if row.kind == "in"]
    plain, tools = [row for row in inputs if not row.tools], [row for row in inputs if row.tools]
    replies = [row for row in found if row.kind == "out"]
    table(
        f"{FITTED}, to which the weights were fitted",
        [
            (f"{name}, {label}", [row.ratio for row in chosen if row.held_out is held and row.family == FITTED])
            for name, chosen in (
                ("requests without tools", plain),
                (f"those of {SMALL} tokens and more", [row for row in plain if row.reported >= SMALL]),
                ("replies", replies),
                ("a sentence in 20 languages", [row for row in found if row.kind == "text"]),
            )
            for label, held in (("fitted", False), ("held out", True))
        ],
    )
    texts = [row for row in (*plain, *replies) if row.reported >= SMALL or row.content == "not English"]
    contents = sorted({row.content for row in texts})
    for label, held in (("fitted", False), ("held out", True)):
        chosen = [row for row in texts if row.family == FITTED and row.held_out is held]
        table(
            f"{FITTED}, by content, {label}",
            [(name, [row.ratio for row in chosen if row.content == name]) for name in contents],
        )
    older = [row for row in found if row.kind == "text" and row.family == "gpt"]
    table("A sentence in 20 languages, older vocabulary", [("gpt-4", [row.ratio for row in older])])
    large = [row for row in inputs if row.reported >= SMALL]
    table("Requests without tools, uncalibrated", by_family([row for row in large if not row.tools]))
    table("Requests with tools, uncalibrated", by_family([row for row in large if row.tools]))
    table("Replies, uncalibrated", by_family(replies))
    for title, least in (("all sizes", 0), ("of 500 tokens and more", 500)):
        groups: list[tuple[str, list[float]]] = []
        for label, chosen in (("without tools", plain), ("with tools", tools)):
            several = sequences([row for row in chosen if row.reported >= least])
            groups.append((f"{label}, uncalibrated", [row.ratio for each in several.values() for row in each[1:]]))
            groups.append((f"{label}, calibrated", [ratio for each in several.values() for ratio in calibrated(each)]))
        table(f"All vendors, one request after another, {title}", groups)


def speed() -> None:
    prose = "The history of an idea is seldom shorter than the idea; people, though, remember only the idea. " * 1_000
    record = '{"id": 48213, "name": "Ada Lovelace", "tags": ["maths", "engines"], "active": true, "score": 97.25},\n'
    texts = {
        "ASCII prose": prose,
        "JSON": record * 1_000,
        "CJK": "你好。今天的天气很好。我们一起去公园散步吧。" * 1_500,
    }
    print("\n| text | MB/s | a message of 200 characters |\n| --- | --- | --- |")
    for name, text in texts.items():
        size = len(text.encode())
        seconds = min(timeit.repeat(lambda text=text: estimate_text(text), number=10, repeat=5)) / 10
        short = min(timeit.repeat(lambda text=text[:200]: estimate_text(text), number=1_000, repeat=5)) / 1_000
        print(f"| {name} | {size / seconds / 1e6:.0f} | {short * 1e6:.1f} us |")


if __name__ == "__main__":
    errors()
    speed()
