"""Runs of the tests that could notice a change of toolbus.

This process imports pytest and the dependencies of toolbus and its tests, but not toolbus, and lets other processes run
the tests that the record names (see `running`), the cheapest first: at first for a few seconds, and if none of them
fails, further tests within a bound. A child that hangs is killed, and counts as noticed. A control is an unchanged
toolbus, which runs the tests that have failed with mutants: if a test fails there too, its failures do not count.
"""

from __future__ import annotations

import gc
import importlib
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, cast

from .mutants import Mutant, users_of
from .recording import SOURCES, Record, line_key
from .running import LOADED_ONLY_IMPORTS, NOT_APPLIED, Child, Loaded, Result, fresh, new_folder

__all__ = ["Job", "Verdict", "control_of", "jobs_for", "preload", "run_jobs"]

Verdict: TypeAlias = Literal["noticed", "stood still", "survived", "no test", "not run"]

_FIRST_SECONDS, _ALL_SECONDS = 2.0, 30.0  # bounds of the recorded time of the tests that run first, and of all
_FIRST_FILES = 5
_LEAST_SECONDS = 0.02  # the least time that a test takes, its set-up included
_POLL_SECONDS = 0.02
_LAST_SECONDS = 40.0  # how long the last ones may take when the time is over

# The modules of others that toolbus, its tests and pytest's plugins import. Missing ones are skipped.
_OTHERS = (
    "anthropic anyio anyio._backends._asyncio anyio._backends._trio anyio.pytest_plugin asyncio blinker email.message",
    "fastapi http.server httpx httpx2 hypothesis.stateful hypothesis.strategies importlib.metadata jsonschema",
    "jsonschema_rs logging.handlers mcp mcp.client mcp.server.fastmcp multiprocessing numpy ollama openai orjson",
    "psycopg pydantic pymongo sqlite3 starlette.applications subprocess trio trio.testing unittest.mock uvicorn xdist",
)


@dataclass(slots=True)
class Job:
    """One mutant, or, without one, a control. `tests` are run in this order, and the longest takes `longest` seconds.

    `by` are the tests that have failed: only the first one, or, for a control, all.
    """

    mutant: Mutant | None
    tests: list[str]
    longest: float = 0.0
    verdict: Verdict = "not run"
    by: list[str] = field(default_factory=list[str])
    ran: int = 0
    took: float = 0.0


def preload() -> list[str]:
    """Import the dependencies, and return those that are missing. Raises if one of them has imported toolbus."""
    missing: list[str] = []
    for name in " ".join(_OTHERS).split():
        try:
            importlib.import_module(name)
        except Exception:  # the tests report a dependency that is broken
            missing.append(name)
    loaded = [name for name in sys.modules if name.partition(".")[0] == "toolbus"]
    if loaded:
        raise RuntimeError(f"toolbus was imported before it could be changed: {loaded[:3]}")
    gc.collect()
    gc.freeze()
    return missing


# ------------------------------------------------------------------------------------------------ which tests


def jobs_for(mutants: Sequence[Mutant], record: Record) -> Iterator[Job]:
    """A job for each mutant."""
    by_function: dict[str, set[str]] = {}
    for line, ran in record.lines.items():
        by_function.setdefault(line.partition("|")[0], set()).update(ran)
    for mutant in mutants:
        found = _tests_of(mutant, record, by_function)
        first = _mixed(found, record, _FIRST_SECONDS, _FIRST_FILES)
        others = _mixed([key for key in found if key not in {*first}], record, _ALL_SECONDS)
        yield _job(mutant, [*first, *others], record)


def control_of(tests: Sequence[str], record: Record) -> Job:
    """A job that runs these tests with an unchanged toolbus."""
    return _job(None, tests, record)


def _job(mutant: Mutant | None, tests: Sequence[str], record: Record) -> Job:
    return Job(mutant, [*tests], max((_seconds(key, record) for key in tests), default=0.0))


def _seconds(key: str, record: Record) -> float:
    return max(record.seconds.get(key, 0.0), _LEAST_SECONDS)


def _tests_of(mutant: Mutant, record: Record, by_function: Mapping[str, set[str]]) -> list[str]:
    """The tests that run the changed line, or its function if the line itself was not recorded.

    For a change outside of functions, or in one that runs only when its module is imported: the tests that run a
    function which mentions a name that the statement binds, or else any function of the file.
    """
    function = mutant.where
    if function and not function.endswith("."):
        if found := record.lines.get(line_key(mutant.path, function, mutant.text)):
            return found
        while function:
            if tests := by_function.get(f"{mutant.path}:{function}"):
                return sorted(tests)
            function = function.rpartition(".<locals>.")[0]  # this function was not recorded by itself
    users: set[str] = set()
    for path in _where_known(mutant):
        users.update(f"{path}:{name}" for name in users_of((SOURCES / path).read_text(encoding="utf-8"), mutant.names))
    found = {key for name in users for key in by_function.get(name, ())}
    if not found:
        found = {key for name, keys in by_function.items() if name.startswith(f"{mutant.path}:") for key in keys}
    return sorted(found)


def _where_known(mutant: Mutant) -> list[str]:
    """The files that mention a name which the changed statement binds, including its own."""
    if not mutant.names:
        return []
    sources = [each for each in SOURCES.rglob("*.py") if each.is_file()]
    return [
        str(each.relative_to(SOURCES))
        for each in sources
        if any(name in each.read_text(encoding="utf-8") for name in mutant.names)
    ]


def _mixed(keys: Sequence[str], record: Record, seconds: float, files: int | None = None) -> list[str]:
    """The cheapest tests, taken from all files in turn, up to a number of seconds and of files."""
    by_file: dict[str, list[str]] = {}
    for key in sorted(keys, key=lambda each: record.seconds[each]):
        by_file.setdefault(key.partition("::")[0], []).append(key)
    queues = [*by_file.values()][:files]
    chosen: list[str] = []
    while queues and seconds > 0:
        for queue in queues:
            key = queue.pop(0)
            chosen.append(key)
            seconds -= _seconds(key, record)
        queues = [queue for queue in queues if queue]
    return chosen


# ----------------------------------------------------------------------------------------------- running them


def run_jobs(jobs: Sequence[Job], until: float, side_by_side: int) -> Iterator[Job]:
    """Run jobs until the time (of `time.monotonic`) is over, and yield each of them as soon as it has its verdict.

    A job begins in the process that has loaded the tests, and is repeated in a fresh one if that shows more.
    """
    home = new_folder()
    runner: _Runner | None = None
    try:
        runner = _Runner(sorted({key.partition("::")[0] for job in jobs for key in job.tests}), home)
        waiting = iter(jobs)
        while True:
            while runner.busy < side_by_side and time.monotonic() < until:
                if runner.begin_fresh():
                    continue
                if (job := next(waiting, None)) is None:
                    break
                if job.tests:
                    runner.begin(job)
                else:
                    job.verdict = "no test"
                    yield job
            if not runner.busy or time.monotonic() > until + _LAST_SECONDS:
                break
            time.sleep(_POLL_SECONDS)
            yield from runner.ended()
        yield from runner.unfinished()
    finally:
        if runner is not None:
            runner.close()
        shutil.rmtree(home, ignore_errors=True)


class _Runner:
    """The jobs that run: in the loaded process, or each in a fresh one."""

    def __init__(self, files: Sequence[str], home: Path) -> None:
        self._home = home
        self._loaded = Loaded(files, home)
        self._begun: dict[int, Job] = {}
        self._fresh: list[tuple[Child, Job]] = []
        self._again: list[Job] = []  # jobs that wait for a fresh process
        self._number = 0

    @property
    def busy(self) -> int:
        """How many run."""
        return len(self._begun) + len(self._fresh)

    def begin(self, job: Job) -> None:
        """Begin a job in the loaded process."""
        self._number += 1
        self._begun[self._number] = job
        self._loaded.begin(self._number, job.mutant, job.tests, job.longest)

    def begin_fresh(self) -> bool:
        """Begin a job that waits for a fresh process; return False if none does."""
        if self._again:
            job = self._again.pop(0)
            self._fresh.append((fresh(job.mutant, job.tests, job.longest, self._home), job))
            return True
        return False

    def ended(self) -> Iterator[Job]:
        """The jobs that have their verdicts now."""
        for number, result in self._loaded.results():
            job = self._begun.pop(number)
            if result.verdict in (NOT_APPLIED, LOADED_ONLY_IMPORTS):
                self._again.append(job)
            else:
                yield _judged(job, result)
        for child, job in [*self._fresh]:
            if (result := child.result()) is not None:
                self._fresh.remove((child, job))
                yield _judged(job, result)

    def unfinished(self) -> Iterator[Job]:
        """The jobs that were begun, and have no verdict."""
        yield from (*self._begun.values(), *(job for _, job in self._fresh), *self._again)

    def close(self) -> None:
        """End all processes."""
        for child, _ in self._fresh:
            child.end()
            child.clear()
        self._loaded.close()


def _judged(job: Job, result: Result) -> Job:
    job.verdict = cast("Verdict", result.verdict)
    job.by, job.ran = result.by, result.ran
    job.took += result.took
    return job
