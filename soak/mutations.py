"""The part of a soak that changes toolbus at random, and looks whether the tests notice.

Its goal is that 98 % of the changes are noticed that are not known to be equivalent. Which those are, and why, stands
in `equivalent.toml`. An entry holds for one change of one text in one function, so that it hides nothing else, and its
mutants are run all the same: one that a test notices is reported as a wrong entry.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .mutants import Mutant, mutants_of
from .mutating import Job, jobs_for, preload, run_jobs
from .parts import Outcome, Time, run_recording
from .recording import LEFT_OUT, ROOT, SOURCES, Record, stale_files

__all__ = ["GOAL", "Equivalents", "mutations", "picked"]

GOAL = 0.98
RECORD = ROOT / ".dev" / "soak" / "tests.json"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
_NOT_MUTATED = ("toolbus/testing/",)  # what checks others: planted bugs and wrong stores hold that
_EACH_CONTROL = 20  # so many mutants have one control among them


@dataclass(slots=True)
class Equivalents:
    """Changes that are known to change nothing, by path, function, and the texts before and after."""

    known: dict[tuple[str, str, str, str], str] = field(default_factory=dict[tuple[str, str, str, str], str])

    @classmethod
    def read(cls, path: Path = EQUIVALENT) -> Equivalents:
        """Those of the file. Raises `KeyError` for an entry that lacks something, its reason for example."""
        found: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", [])
        return cls({(each["path"], each["where"], each["before"], each["after"]): each["why"] for each in found})

    def why(self, mutant: Mutant) -> str | None:
        """Why nobody can notice this one; None where somebody should."""
        return self.known.get((mutant.path, mutant.where, mutant.before, mutant.after))


def all_mutants(at: Sequence[str] = ()) -> list[Mutant]:
    """Every change of every file; or those whose "path:line" ends with, or is, one of `at`."""
    found: list[Mutant] = []
    for path in sorted(SOURCES.rglob("*.py")):
        name = str(path.relative_to(SOURCES))
        if not name.startswith(_NOT_MUTATED) and (not at or any(each.partition(":")[0] in name for each in at)):
            found += mutants_of(path.read_text(encoding="utf-8"), name)
    return [each for each in found if not at or any(f"{each.path}:{each.line}".endswith(one) for one in at)]


def picked(mutants: Sequence[Mutant], seed: int) -> list[Mutant | None]:
    """All of them in an order that the seed gives, and controls (None) among them."""
    order: list[Mutant] = [*mutants]
    random.Random(seed).shuffle(order)
    mixed: list[Mutant | None] = []
    for place, each in enumerate(order):
        if place % _EACH_CONTROL == 0:
            mixed.append(None)
        mixed.append(each)
    return mixed


@dataclass(slots=True)
class _Tally:
    seed: int
    counts: Counter[str] = field(default_factory=Counter[str])
    survivors: list[Job] = field(default_factory=list[Job])
    problems: list[str] = field(default_factory=list[str])

    def add(self, job: Job, known: Equivalents) -> None:
        mutant = job.mutant
        if mutant is None:
            self.counts["controls"] += 1
            if job.verdict in ("noticed", "stood still"):
                self.problems.append(
                    f"an unchanged toolbus fails, so no verdict counts that its test has given: {job.by}"
                )
            return
        self.counts[job.verdict] += 1
        is_alive = job.verdict in ("survived", "no test")
        if (why := known.why(mutant)) is None:
            if is_alive:
                self.survivors.append(job)
                print(f"  {job.verdict}: src/{mutant}  ({job.ran} tests)", flush=True)
        elif is_alive:
            self.counts["known to be equivalent"] += 1
        elif job.verdict == "noticed":
            self.problems.append(f"{EQUIVALENT.name} says {why!r} of src/{mutant}, and {job.by} fails")

    def outcome(self) -> Outcome:
        counts = self.counts
        noticed = counts["noticed"] + counts["stood still"]
        judged = noticed + len(self.survivors)
        share = noticed / judged if judged else 1.0
        told = f"{noticed} of {judged} noticed ({share:.1%}; {counts['stood still']} stood still)"
        if counts["known to be equivalent"]:
            told += f", {counts['known to be equivalent']} known to be equivalent"
        outcome = Outcome(f"{told}, {counts['controls']} controls", self.problems)
        if share < GOAL:
            lines = [
                f"src/{job.mutant}  ({job.verdict})\n    again: python3 dev.py soak --only mutations --at {_at(job)}"
                for job in self.survivors
            ]
            outcome.problems.append(
                "\n".join(
                    [f"fewer than {GOAL:.0%} were noticed; add a test, or an entry to {EQUIVALENT.name}:", *lines]
                )
            )
        return outcome


def _at(job: Job) -> str:
    assert job.mutant is not None
    return f"{job.mutant.path}:{job.mutant.line}"


def record_of_tests(given: Time) -> Record:
    """The record, brought up to date within the time."""
    record = Record.read(RECORD)
    left_out = [ROOT / each for each in LEFT_OUT]
    files = [
        each
        for each in sorted((ROOT / "tests").rglob("test_*.py"))
        if not any(each == one or one in each.parents for one in left_out)
    ]
    if stale := stale_files(record, files):
        print(f"  recording which tests run what, of {len(stale)} files", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            is_whole = run_recording([*stale], folder, given)
            record.renew(stale, Path(folder), whole=is_whole)
            record.write(RECORD)
        if not is_whole:
            print("  there was no time for all of them; the next soak records the others", flush=True)
    return record


def mutations(seed: int, given: Time, *, at: Sequence[str] = (), jobs: int | None = None) -> Outcome:
    """Change toolbus at random, one change at a time, and run the tests that could notice it."""
    if not hasattr(os, "fork"):
        return Outcome("left out: this system cannot fork")
    record = record_of_tests(given)
    if not record.tests:
        return Outcome("no tests were recorded in this time; give it --minutes 30 once")
    mutants = all_mutants(at)
    chosen: list[Mutant | None] = [*mutants] if at else picked(mutants, seed)
    preload()
    tally, known = _Tally(seed), Equivalents.read()
    until = time.monotonic() + 10 * 60 * len(chosen) if at else given.until
    for job in run_jobs(_named(jobs_for(chosen, record)), until=until, side_by_side=jobs or os.cpu_count() or 1):
        if at and job.mutant is not None:
            print(f"  {job.verdict}: src/{job.mutant}  {job.by}", flush=True)
        tally.add(job, known)
    return tally.outcome()


def _named(jobs: Iterator[Job]) -> Iterator[Job]:
    """Jobs; what has begun is written where a terminal shows it."""
    for number, job in enumerate(jobs, 1):
        if sys.stderr.isatty():
            print(f"\r  mutant {number}", end="\r", file=sys.stderr, flush=True)
        yield job
