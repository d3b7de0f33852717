"""The figures as a table, as a plot, and as a part of docs/performance.md, with their machine and versions."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .plumbing import Goal, Row, Unit, shown

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
PLOT = ROOT / "docs" / "performance.svg"
BEGIN = "<!-- bench:begin (written by `python3 dev.py bench`) -->"
END = "<!-- bench:end -->"
PACKAGES = ("anyio", "blinker", "orjson", "pydantic", "trio")
UNITS: dict[Unit, str] = {"times": " times", "ms": " ms", "KiB": " KiB", "MiB": " MiB", "GiB": " GiB"}
Results = Mapping[str, Sequence[Row]]


def environment() -> dict[str, str]:
    """The versions and the kind of machine, without anything that identifies it."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    implementation = f"{platform.python_implementation()} {platform.python_version()}"
    machine = f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    return {"python": implementation, "packages": versions, "machine": machine}


def _processor() -> str:
    """The system's name for its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "processor unknown"


def load() -> str:
    """The machine's load, if the system reports it."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def today() -> str:
    """The date in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


# ------------------------------------------------------------------------------------------------ the table


def table(results: Results) -> str:
    """All rows, as Markdown."""
    lines = [
        "| figure | toolbus | against | ratio or value (lowest - highest) | goal | met | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for rows in results.values():
        lines += [_line(row) for row in rows]
    return "\n".join(lines)


def _line(row: Row) -> str:
    value = "-"
    if row.value is not None:
        spread = f"({shown(row.lowest)} - {shown(row.highest)})"
        value = f"{shown(row.value)}{UNITS[row.unit]} {spread}"
    met = {True: "yes", False: "**no**", None: ""}[row.met]
    cells = [row.name, row.ours, row.against, value, _goal(row.goal, row.unit), met, row.remark]
    return "".join(f"| {cell.replace('|', '/')} " if cell else "| " for cell in cells) + "|"


def _goal(goal: Goal | None, unit: Unit) -> str:
    if goal is None:
        return ""
    return f"{'at least' if goal.at_least else 'at most'} {goal.bound:g}{UNITS[unit]}"


# ------------------------------------------------------------------------------------------------- the page


def section(results: Results, about: Mapping[str, str]) -> str:
    """The text between the marks of the page."""
    missed = [row.name for rows in results.values() for row in rows if row.met is False]
    unknown = [row.name for rows in results.values() for row in rows if row.goal and row.value is None]
    said = f"Short of their goals: {'; '.join(missed)}." if missed else "No figure is short of its goal."
    if unknown:
        said += f" Not measured: {'; '.join(unknown)}."
    return "\n\n".join(
        [
            f"{about['date']}, {about['python']}, {about['packages']}. {about['machine']}; load {about['load']}.",
            f"![CPU time of a request against other runtimes, and each figure against its goal]({PLOT.name})",
            table(results),
            said,
        ]
    )


def write_page(text: str, page: Path = PAGE) -> None:
    """Replace the text between the marks of the page. Raises `ValueError` if a mark is missing."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page.name} has no {BEGIN} ... {END}")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


# ------------------------------------------------------------------------------------------------- the plot


def multiples(results: Results) -> list[tuple[str, float]]:
    """CPU time of a request in each runtime, as a multiple of the careful loop's; the cheapest first."""
    rows = [row for row in results.get("cpu", ()) if row.value is not None and "100 at once" in row.name]
    if not rows:
        return []
    found = [("the careful loop", 1.0)]
    found += [(_runtime_of(row), row.value or 0.0) for row in rows]
    session = rows[0].value or 0.0
    found += [(row.name, row.value * session) for row in results.get("peers", ()) if row.value is not None]
    return sorted(found, key=lambda pair: pair[1])


def _runtime_of(row: Row) -> str:
    """The name of a row of the group `cpu` in the plot."""
    name = row.name.replace(", 100 at once", "")
    return name if "careful loop" in name else f"toolbus: {name}"


def goals(results: Results) -> dict[str, float]:
    """The goals of `multiples`, by their names."""
    rows = [row for row in results.get("cpu", ()) if "100 at once" in row.name]
    return {_runtime_of(row): row.goal.bound for row in rows if row.goal is not None}


def shares(results: Results) -> list[tuple[str, float]]:
    """The share of its bound that each figure with a goal uses; above 1, the goal is missed."""
    rows = [(group, row, row.goal, row.value) for group, rows in results.items() for row in rows]
    return [
        (
            f"CPU against {row.name}" if group == "peers" else row.name,
            goal.bound / value if goal.at_least else value / goal.bound,
        )
        for group, row, goal, value in rows
        if goal is not None and value
    ]


# These colours differ also for people who do not tell red from green.
_OWN, _OTHERS, _MISSED = "#2a6fb0", "#8a8a8a", "#e07b00"


def draw(results: Results, path: Path = PLOT) -> None:
    """Draw both as bars, as an SVG that is the same for the same figures."""
    mpl: Any = importlib.import_module("matplotlib")  # its type hints are incomplete

    mpl.use("svg")
    from matplotlib import pyplot as plt

    upper, lower = multiples(results), shares(results)
    settings = {"svg.fonttype": "none", "svg.hashsalt": "toolbus", "font.size": 8, "font.family": "sans-serif"}
    with mpl.rc_context(settings):
        heights = [max(len(upper), 1), max(len(lower), 1)]
        size = (9, 1.6 + 0.22 * sum(heights))
        made: Any = plt.subplots(2, 1, figsize=size, height_ratios=heights, layout="constrained")
        figure, (first, second) = made
        colours = [_OWN if name.startswith("toolbus") else _OTHERS for name, _ in upper]
        _bars(first, upper, colours)
        first.set(
            xscale="log", title="CPU time of a request, as a multiple of the careful loop's (log scale; | is a goal)"
        )
        ticks = [1, 2, 5, 10, 20, 50, 100]
        first.set_xticks(ticks, [str(each) for each in ticks])
        first.minorticks_off()
        aims = goals(results)
        marked = [(aims[name], place) for place, (name, _) in enumerate(upper) if name in aims]
        for aim, place in marked:
            first.plot([aim, aim], [place - 0.4, place + 0.4], color="black", linewidth=1.6)
        _bars(second, lower, [_OWN if share <= 1 else _MISSED for _, share in lower])
        second.axvline(1, color="black", linewidth=0.8, zorder=2)
        second.set(title="Each figure in units of its goal (1): shorter is better, and orange ones miss it")
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)
    # Trailing blanks, which matplotlib writes, would be in every diff.
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")


def _bars(axes: Any, pairs: Sequence[tuple[str, float]], colours: Sequence[str]) -> None:
    places = range(len(pairs))
    bars = axes.barh(places, [value for _, value in pairs], color=colours)
    axes.set_yticks(places, [name for name, _ in pairs])
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # A line would cross the number.
    axes.bar_label(bars, [f"{value:.3g}" for _, value in pairs], padding=2, bbox=paper)
    axes.margins(x=0.1, y=0.01)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
