"""The part of a soak that changes toolbus at random, and checks whether the tests notice.

Its goal is that tests notice 98 % of the changes that are not known to be equivalent. `equivalent.toml` lists the
equivalent ones, with reasons. An entry holds for one change of one text in one function. Where several lines of the
function have that text, the entry names its line, so that it hides nothing else. Its mutants are run as well: if a test
notices one, the entry is reported as wrong.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .mutants import Mutant, mutants_of
from .mutating import Job, jobs_for, preload, run_jobs
from .parts import Outcome, Time, run_recording
from .recording import LEFT_OUT, ROOT, SOURCES, Record, stale_files

__all__ = ["GOAL", "Equivalents", "Tally", "mutations", "picked"]

GOAL = 0.98
RECORD = ROOT / ".dev" / "soak" / "tests.json"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
_NOT_MUTATED = ("toolbus/testing/",)  # the checks of others: planted bugs and wrong stores test those
_MAX_A_SECOND = 20.0  # more mutants than can run in a second
_REPORT_SECONDS = 60.0


@dataclass(slots=True)
class Equivalents:
    """Changes that are known to change nothing, by path, function, texts before and after, and line ("" for any)."""

    known: dict[tuple[str, str, str, str, str], str] = field(default_factory=dict[tuple[str, str, str, str, str], str])

    @classmethod
    def read(cls, path: Path = EQUIVALENT) -> Equivalents:
        """Read them from the file. Raises `KeyError` for an entry that lacks something, for example its reason."""
        found: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", [])
        names = ("path", "where", "before", "after")
        return cls({(*(each[name] for name in names), each.get("line", "")): each["why"] for each in found})

    def why(self, mutant: Mutant) -> str | None:
        """The reason why nobody can notice this change; None if a test should notice it."""
        change = (mutant.path, mutant.where, mutant.before, mutant.after)
        return self.known.get((*change, "")) or self.known.get((*change, mutant.text.strip()))


def all_mutants(at: Sequence[str] = ()) -> list[Mutant]:
    """Every change of every file; or those at one of these places: "bus/_bus.py:120", "bus/_bus.py", "core/turn"."""
    found: list[Mutant] = []
    for path in sorted(SOURCES.rglob("*.py")):
        name = str(path.relative_to(SOURCES))
        if not name.startswith(_NOT_MUTATED) and (not at or any(each.partition(":")[0] in name for each in at)):
            found += mutants_of(path.read_text(encoding="utf-8"), name)
    return [each for each in found if not at or any(_is_at(each, one) for one in at)]


def _is_at(mutant: Mutant, place: str) -> bool:
    path, _, line = place.strip("/").partition(":")
    is_there = mutant.path.endswith(f"/{path}") or f"/{path}/" in f"/{mutant.path}" or mutant.path == path
    return is_there and (not line or int(line) == mutant.line)


def picked(mutants: Sequence[Mutant], seed: int) -> list[Mutant]:
    """All of them in an order that the seed gives."""
    order = [*mutants]
    random.Random(seed).shuffle(order)
    return order


@dataclass(slots=True)
class Tally:
    """The verdicts on the mutants."""

    known: Equivalents
    jobs: list[Job] = field(default_factory=list[Job])

    def add(self, job: Job) -> None:
        """Record a mutant's verdict; a mutant that survived is printed at once."""
        assert job.mutant is not None
        self.jobs.append(job)
        if job.verdict in _ALIVE and self.known.why(job.mutant) is None:
            print(f"  {job.verdict}: src/{job.mutant}  ({job.ran} tests)", flush=True)

    @property
    def judged(self) -> list[Job]:
        """The jobs that have a verdict."""
        return [job for job in self.jobs if job.verdict != "not run"]

    def table(self) -> str:
        """A line for each package, the one with the most changes that nobody has noticed first.

        If all changes are of one package, a line for each of its modules.
        """
        judged = self.judged
        name_of = _package if len({_package(job) for job in judged}) > 1 else _module
        every = Counter(map(name_of, judged))
        missed = Counter(name_of(job) for job in judged if job.verdict in _ALIVE and self._why(job) is None)
        ranked = sorted(every, key=lambda name: (-missed[name], name))
        return "\n".join(f"  {missed[name]:4} of {every[name]:5} not noticed in {name}" for name in ranked)

    def outcome(self) -> Outcome:
        """The share of mutants that were noticed, and what to do about the others."""
        judged = self.judged
        if not judged:
            return Outcome("no change was tried in this time; give it more --minutes")
        alive = [job for job in judged if job.verdict in _ALIVE]
        unknown = [job for job in alive if self._why(job) is None]
        noticed = len(judged) - len(alive)
        share = noticed / (noticed + len(unknown)) if noticed or unknown else 1.0
        still = sum(job.verdict == "stood still" for job in judged)
        summary = f"{noticed} of {noticed + len(unknown)} noticed ({share:.1%}; {still} stood still)"
        if known := len(alive) - len(unknown):
            summary += f", {known} known to be equivalent"
        outcome = Outcome(summary)
        for job in judged:
            if job.verdict == "noticed" and (why := self._why(job)) is not None:
                outcome.problems.append(f"{EQUIVALENT.name} says {why!r} of src/{job.mutant}, and {job.by[0]} fails")
        if share < GOAL:
            lines = [f"src/{job.mutant}  ({job.verdict}, {job.ran} tests)\n    again: {_again(job)}" for job in unknown]
            head = f"fewer than {GOAL:.0%} were noticed; add a test, or an entry to {EQUIVALENT.name}:"
            outcome.problems.append("\n".join([head, *lines]))
        return outcome

    def _why(self, job: Job) -> str | None:
        return None if job.mutant is None else self.known.why(job.mutant)


_ALIVE = ("survived", "no test")


def _module(job: Job) -> str:
    assert job.mutant is not None
    return job.mutant.path


def _package(job: Job) -> str:
    return _module(job).rpartition("/")[0]


def _again(job: Job) -> str:
    assert job.mutant is not None
    return f"python3 dev.py soak --only mutations --at {job.mutant.path}:{job.mutant.line}"


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
        # If there is a record, bringing it up to date may take a third of the time.
        within = Time(time.monotonic() + given.left / 3) if record.seconds else given
        with tempfile.TemporaryDirectory() as folder:
            is_whole = run_recording([*stale], folder, within)
            record.renew(stale, Path(folder), whole=is_whole)
            record.write(RECORD)
        if not is_whole:
            print("  there was no time for all of them; the next soak records the others", flush=True)
    return record


def mutations(
    seed: int, given: Time, *, at: Sequence[str] = (), within: Sequence[str] = (), jobs: int | None = None
) -> Outcome:
    """Change toolbus at random, one change at a time, and run the tests that could notice it."""
    if not hasattr(os, "fork"):
        return Outcome("left out: this system cannot fork")
    try:
        record = record_of_tests(given)
    except RuntimeError as exc:
        return Outcome("the tests could not be recorded", [str(exc)])
    if not record.seconds:
        return Outcome("no tests were recorded in this time; use --minutes 30 once")
    mutants = all_mutants(at)
    preload()
    tally, began = Tally(Equivalents.read()), time.monotonic()
    until = began + given.left
    side_by_side = jobs or os.cpu_count() or 1
    chosen = [*jobs_for(mutants if at else picked(mutants, seed)[: int(given.left * _MAX_A_SECOND)], record, within)]
    reported_at, unfit = began, set[str]()
    with contextlib.suppress(KeyboardInterrupt):  # the verdicts so far count
        for job in run_jobs(chosen, until, side_by_side, unfit):
            tally.add(job)
            if any(":" in each for each in at):
                print(f"  {job.verdict}: src/{job.mutant}  {' '.join(job.by)}", flush=True)
            elif time.monotonic() - reported_at > _REPORT_SECONDS:
                reported_at = time.monotonic()
                print(f"  {len(tally.jobs)} mutants so far", flush=True)
    if unfit:
        print(f"  not used, as they fail without a change too: {' '.join(sorted(unfit))}", flush=True)
    print(tally.table(), flush=True)
    return tally.outcome()
