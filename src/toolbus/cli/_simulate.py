"""`toolbus simulate`: runs seeds of the simulation, and says what they did or which one broke an invariant."""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter

import orjson

from ..testing.simulation import SimulationFailed, SimulationReport, run_seed, simulate
from ._screen import Screen

__all__ = ["run_simulation"]

FAILED = 1


def run_simulation(options: argparse.Namespace, screen: Screen) -> int:
    """Run the seeds that are asked for; the exit status."""
    try:
        report = _run(options)
    except SimulationFailed as exc:
        if options.json:
            told = {"seed": exc.seed, "guarantee": exc.guarantee, "problem": exc.problem}
            screen.say(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode() + "\n")
        screen.tell(f"toolbus: {exc}")
        return FAILED
    if options.json:
        names = [each.name for each in dataclasses.fields(report)]
        found = {name: getattr(report, name) for name in (*names, "seeds_per_second")}
        screen.say(orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode() + "\n")
    else:
        screen.say(_table(report))
    return 0


def _run(options: argparse.Namespace) -> SimulationReport:
    if options.seed is None:
        return simulate(options.seeds, first=options.first, seconds=options.seconds, jobs=options.jobs)
    report = SimulationReport()
    report.add(run_seed(options.seed))
    return report


def _table(report: SimulationReport) -> str:
    speed = f", {report.seeds_per_second:.0f} a second" if report.seconds else ""
    counts = f"{report.requests} requests, {report.events} events, {report.checks.total()} checks"
    lines = [
        f"{report.seeds} seeds held{speed}: {counts}",
        _row("requests ended", report.outcomes),
        _row("what went wrong", report.faults),
        _row("checks", Counter(dict(sorted(report.checks.items())))),
    ]
    return "\n".join(lines) + "\n"


def _row(title: str, counted: Counter[str]) -> str:
    items = counted.items() if title == "checks" else counted.most_common()
    return f"  {title}: " + ", ".join(f"{name} {count}" for name, count in items)
