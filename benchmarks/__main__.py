"""Measure what toolbus costs, and write the table and the plot of docs/performance.md.

    python3 dev.py bench                        all figures, and the page
    python3 dev.py bench --without-peers        without the other runtimes, which need installing
    python3 dev.py bench --quick --only cpu     one figure with fewer runs, printed only
    python3 dev.py bench --only cpu --write     one figure again, and the page with the other figures unchanged

Each figure is measured in a process of its own, in which the two sides take turns. If a figure fails, its row says so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from . import report
from .against_peers import peers
from .journaled import durable
from .latency import latency
from .listeners import events
from .memory import memory, parked, resident_set
from .overhead import cpu, on_trio
from .plumbing import FULL, QUICK, Effort, Figure, Goal, Row
from .remote import remote
from .scaling import many_rounds, many_sessions
from .startup import startup
from .streaming import streaming
from .telemetry import telemetry

FIGURES: dict[str, Figure] = {
    "cpu": cpu,
    "trio": on_trio,
    "journaled": durable,
    "peers": peers,
    "sessions": many_sessions,
    "rounds": many_rounds,
    "events": events,
    "latency": latency,
    "memory": memory,
    "resident": resident_set,
    "parked": parked,
    "streaming": streaming,
    "startup": startup,
    "telemetry": telemetry,
    "remote": remote,
}
EFFORTS = {
    "sessions": Effort(5),
    "rounds": Effort(5),
    "latency": Effort(5),
    "memory": Effort(5),
    "resident": Effort(5),
    "parked": Effort(5),
    "remote": Effort(5),
}
MAX_SECONDS = 600.0
RESULTS = report.ROOT / ".dev" / "bench.json"


def effort_of(name: str, *, quick: bool) -> Effort:
    """The effort for a figure. A figure with long runs has fewer of them, but at least five."""
    return QUICK if quick else EFFORTS.get(name, FULL)


def in_a_process(name: str, *, quick: bool) -> list[Row]:
    """The rows of a figure, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks", "--inside", name, *(["--quick"] if quick else [])]
    try:
        done = subprocess.run(
            command, cwd=report.ROOT, check=False, capture_output=True, text=True, timeout=MAX_SECONDS
        )
    except subprocess.TimeoutExpired:
        return [Row(name, "-", "-", remark=f"did not end within {MAX_SECONDS:.0f} s")]
    if done.stderr.strip():
        print(f"\n{done.stderr.strip()}", file=sys.stderr)
    if done.returncode:
        said = [line.strip(" |+-") for line in done.stderr.splitlines()]
        return [Row(name, "-", "-", remark=f"failed: {next(filter(None, reversed(said)), 'it printed nothing')}")]
    return rows_from(json.loads(done.stdout.splitlines()[-1]))


def rows_from(data: Sequence[dict[str, Any]]) -> list[Row]:
    """Read rows that were written as JSON."""
    return [replace(Row(**row), goal=Goal(**row["goal"]) if row["goal"] else None) for row in data]


def measure(names: Sequence[str], *, quick: bool, left_out: Sequence[str] = ()) -> dict[str, list[Row]]:
    """Measure these figures, and return their rows by name. Prints the name of each figure, and then its time."""
    results: dict[str, list[Row]] = {}
    for name in names:
        if name in left_out:
            results[name] = [Row("other runtimes", "-", "-", remark="left out")]
            continue
        began = time.monotonic()
        print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
        results[name] = in_a_process(name, quick=quick)
        print(f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return results


def kept(path: Path = RESULTS) -> dict[str, Any]:
    """The results of the last run that wrote the page; empty if there was no such run."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}


def written(results: dict[str, list[Row]], about: dict[str, str]) -> dict[str, list[Row]]:
    """Write the page and the plot, and return all results: these, and older ones of the same machine and versions."""
    before = kept()
    same = all(before.get("about", {}).get(key) == about[key] for key in ("python", "packages", "machine"))
    older = {name: rows_from(rows) for name, rows in before.get("results", {}).items()} if same else {}
    found = {name: results.get(name) or older.get(name, []) for name in FIGURES}
    data = {"about": about, "results": {name: [asdict(row) for row in rows] for name, rows in found.items()}}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(data), encoding="utf-8")
    report.draw(found)
    report.write_page(report.section(found, about))
    return found


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dev.py bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(FIGURES), metavar="NAME", help=", ".join(FIGURES))
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs; the page stays as it is")
    parser.add_argument("--without-peers", action="store_true", help="leave the other runtimes out")
    parser.add_argument("--write", action="store_true", help="with --only: write the page as well")
    parser.add_argument("--inside", choices=list(FIGURES), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.inside:
        rows = FIGURES[options.inside](effort_of(options.inside, quick=options.quick))
        print(json.dumps([asdict(row) for row in rows]))
        return 0
    before = report.load()
    names: list[str] = options.only or list(FIGURES)
    results = measure(names, quick=options.quick, left_out=["peers"] if options.without_peers else [])
    about = {**report.environment(), "date": report.today(), "load": f"{before} before, {report.load()} after"}
    if not options.quick and (options.write or not options.only):
        results = written(results, about)
    print(f"{', '.join(about.values())}\n\n{report.table(results)}")
    return 1 if any(row.remark.startswith("failed:") for rows in results.values() for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
