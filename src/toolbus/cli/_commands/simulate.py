"""The command `toolbus simulate`: runs seeds of the simulation, and reports their counts or a broken invariant."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Iterable

import orjson

from ...testing.simulation import SeedReport, SimulationFailed, SimulationReport, run_seed, simulate
from .._main import FAILED
from .._terminal.screen import Line, Screen

_REDRAW_SECONDS = 0.1


def run_simulation(options: argparse.Namespace, screen: Screen) -> int:
    """Run the seeds that the options ask for, and return the exit status."""
    try:
        report = _run(options, screen)
    except SimulationFailed as exc:
        if options.json:
            failure = {"seed": exc.seed, "guarantee": exc.guarantee, "problem": exc.problem}
            screen.say(orjson.dumps(failure, option=orjson.OPT_INDENT_2).decode() + "\n")
        screen.report(f"toolbus: {exc}")
        return FAILED
    finally:
        screen.busy(None)
    if options.json:
        names = [each.name for each in dataclasses.fields(report)]
        found = {name: getattr(report, name) for name in (*names, "seeds_per_second")}
        screen.say(orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode() + "\n")
    else:
        screen.say(_table(report))
    return FAILED if report.broken else 0


def _run(options: argparse.Namespace, screen: Screen) -> SimulationReport:
    if options.seed is None:
        progress = _Progress(screen, None if options.seconds else options.seeds)
        return simulate(
            options.seeds,
            first=options.first,
            seconds=options.seconds,
            jobs=options.jobs,
            keep_going=options.keep_going,
            on_seed=progress.count,
        )
    report = SimulationReport()
    report.add(run_seed(options.seed))
    return report


class _Progress:
    """The live line of a terminal: finished seeds (of `total`), their rate, and how many are broken so far."""

    def __init__(self, screen: Screen, total: int | None) -> None:
        self._screen = screen
        self._total = total
        self._began = self._drawn = time.monotonic()
        self._done = self._broken = 0

    def count(self, one: SeedReport | SimulationFailed) -> None:
        """Count one finished seed, and redraw the line at most every `_REDRAW_SECONDS`."""
        self._done += 1
        self._broken += isinstance(one, SimulationFailed)
        now = time.monotonic()
        if now - self._drawn >= _REDRAW_SECONDS:
            self._drawn = now
            of = "" if self._total is None else f" of {self._total:,}"
            rate = f"{self._done / (now - self._began):,.0f} a second"
            broken = f"{self._broken:,} broken" if self._broken else ""
            self._screen.busy(Line(mark="work", name=f"{self._done:,}{of} seeds", detail=rate, tail=broken))


def _table(report: SimulationReport) -> str:
    speed = f", {report.seeds_per_second:.0f} a second" if report.seconds else ""
    counts = f"{report.requests} requests, {report.events} events, {report.checks.total()} checks"
    broken = sum(map(len, report.broken.values()))
    of_all = f"{report.seeds - broken} of " if broken else ""
    held = f"{of_all}{report.seeds} seed{'s' if report.seeds != 1 else ''} held"
    lines = [
        f"{held}{speed}: {counts}",
        _row("requests ended", report.outcomes.most_common()),
        _row("what went wrong", report.faults.most_common()),
        _row("checks", sorted(report.checks.items())),
        *(
            f"  broken, {len(seeds)}: {kind}: {str(sorted(seeds))[1:-1]}"
            for kind, seeds in sorted(report.broken.items())
        ),
    ]
    return "\n".join(lines) + "\n"


def _row(title: str, counted: Iterable[tuple[str, int]]) -> str:
    return f"  {title}: " + ", ".join(f"{name} {count}" for name, count in counted)
