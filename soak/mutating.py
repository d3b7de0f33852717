"""Runs of the tests that could notice a change of toolbus.

This process imports pytest and the dependencies of toolbus and its tests, but not toolbus, and lets other processes run
the tests that the record names (see `running`), the cheapest first: at first for a few seconds, and if none of them
fails, further tests within a bound. A child that hangs is killed, and counts as noticed.
"""

from __future__ import annotations

import functools
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
from .recording import SOURCES, Record, likeness, line_key, nearness
from .running import LOADED_ONLY_IMPORTS, NOT_APPLIED, Child, Loaded, Result, fresh, new_folder

__all__ = ["Job", "Verdict", "jobs_for", "preload", "run_jobs"]

Verdict: TypeAlias = Literal["noticed", "stood still", "survived", "no test", "not run"]

# Bounds of the recorded time of the tests that run first, of those of the mirrored folder, and of all others.
_FIRST_SECONDS, _NEAR_SECONDS, _OTHER_SECONDS = 2.0, 45.0, 75.0
_FIRST_FILES = 5
_FEW_TESTS = 3
_MIN_SECONDS = 0.02  # the least time that a test takes, its set-up included
_POLL_SECONDS = 0.02
_LAST_SECONDS = 40.0  # how long the last ones may take when the time is over

_API = "tests/test_public_api.py::test_the_signatures_and_defaults_of_a_public_module_are_those_that_are_recorded"
_PAGE = "tests/test_bounds_page.py::test_the_page_states_the_bound_or_the_time_that_applies"
# The modules of others that toolbus, its tests and pytest's plugins import. Missing ones are skipped.
_OTHERS = (
    "anthropic anyio anyio._backends._asyncio anyio._backends._trio anyio.pytest_plugin asyncio blinker email.message",
    "fastapi http.server httpx httpx2 hypothesis.stateful hypothesis.strategies importlib.metadata jsonschema",
    "jsonschema_rs logging.handlers mcp mcp.client mcp.server.fastmcp multiprocessing numpy ollama openai orjson",
    "psycopg pydantic pymongo sqlite3 starlette.applications subprocess trio trio.testing unittest.mock uvicorn xdist",
)


@dataclass(slots=True)
class Job:
    """One mutant, or none, to run the tests with. The longest of `tests` takes `longest` seconds.

    `by` are the tests that have failed: only the first one, or, without a mutant, all.
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


def jobs_for(mutants: Sequence[Mutant], record: Record, within: Sequence[str] = ()) -> Iterator[Job]:
    """A job for each mutant; if `within` names files or folders of tests, only with tests from there."""
    places = tuple(each.rstrip("/") for each in within)
    by_function: dict[str, set[str]] = {}
    for line, ran in record.lines.items():
        by_function.setdefault(line.partition("|")[0], set()).update(ran)
    known: dict[tuple[object, ...], list[str]] = {}
    for mutant in mutants:
        which = (mutant.path, mutant.where, mutant.text, mutant.names)
        if which not in known:
            own, found = (
                [key for key in keys if not places or key.startswith(places)]
                for keys in _tests_of(mutant, record, by_function)
            )
            known[which] = _chosen(mutant, own, found, record)
        yield _job(mutant, known[which], record)


def _chosen(mutant: Mutant, own: Sequence[str], found: Sequence[str], record: Record) -> list[str]:
    """Return a few cheap tests, then `own` tests, of the folder that mirrors the file if there are any, then others.

    The cheapest come first, since one slow test takes the time of a hundred that look at single functions. A test whose
    name has words of the changed line may cost more.
    """
    first = _mixed(found, record, _FIRST_SECONDS, _FIRST_FILES)
    near = {key: nearness(mutant.path, key) for key in own if key not in {*first}}
    most = max(near.values(), default=0)
    nearest = [key for key, folders in near.items() if folders == most]
    chosen = dict.fromkeys([*first, *_cheapest(mutant, nearest, record, _NEAR_SECONDS)])
    return [*chosen, *_cheapest(mutant, [key for key in found if key not in chosen], record, _OTHER_SECONDS)]


def _job(mutant: Mutant | None, tests: Sequence[str], record: Record) -> Job:
    return Job(mutant, [*tests], max((_seconds(key, record) for key in tests), default=0.0))


def _seconds(key: str, record: Record) -> float:
    return max(record.seconds.get(key, 0.0), _MIN_SECONDS)


def _tests_of(mutant: Mutant, record: Record, by_function: Mapping[str, set[str]]) -> tuple[list[str], list[str]]:
    """The tests that run the changed line, or its function if the line itself was not recorded.

    If they are few, those of its file may run the line too, in a process that another test has started. If most tests
    of the function are not among them, the line may be newer than the record of these tests.

    For a change outside of functions, or in one that runs only when its module is imported: the tests of the mirrored
    folder, which may only read what is made then, those of what is promised to users, and those that run a function
    which mentions a name that the statement binds, or else any function of the file. The first list has those that are
    likely to notice the change: those of the folder, and those that run a function of its own file, if there are any.
    """
    function = mutant.where
    if function and not function.endswith("."):
        if found := record.lines.get(line_key(mutant.path, function, mutant.text)):
            others = by_function.get(f"{mutant.path}:{function}", set[str]())
            if len(found) < _FEW_TESTS:
                return found, [*found, *_tests_of_file(mutant.path, by_function)]
            return found, [*found, *(others if 2 * len(found) < len(others) else ())]
        while function:
            if tests := by_function.get(f"{mutant.path}:{function}"):
                found = sorted(tests | _tests_of_promises(mutant, record))  # The change may be one of a default.
                return found, found
            function = function.rpartition(".<locals>.")[0]  # this function was not recorded by itself
    users = [f"{path}:{name}" for path in _where_known(mutant) for name in users_of(_texts()[path], mutant.names)]
    own = {key for name in users if name.startswith(f"{mutant.path}:") for key in by_function.get(name, ())}
    found = {key for name in users for key in by_function.get(name, ())}
    found = found or _tests_of_file(mutant.path, by_function)
    depth = mutant.path.count("/") - 1
    mirrored = {key for key in record.seconds if depth and nearness(mutant.path, key) == depth}
    mirrored |= _tests_of_promises(mutant, record)
    return sorted((own or found) | mirrored), sorted(found | mirrored)


def _tests_of_file(path: str, by_function: Mapping[str, set[str]]) -> set[str]:
    return {key for name, keys in by_function.items() if name.startswith(f"{path}:") for key in keys}


def _tests_of_promises(mutant: Mutant, record: Record) -> set[str]:
    """The tests of what is promised to users: they run no function of the file, so they are not recorded for it.

    These are the tests of the recorded signatures and defaults of the public modules to which the changed file belongs,
    and those of the constants on the page of bounds that the changed statement binds.
    """
    parts = mutant.path.removesuffix(".py").removesuffix("/__init__").split("/")
    api = [f"{_API}[{'.'.join(parts[:length])}]" for length in range(2, len(parts) + 1)]
    page = [f"{_PAGE}[{'.'.join([*parts[1:], name])}]" for name in mutant.names]
    return {key for key in (*api, *page) if key in record.seconds}


def _where_known(mutant: Mutant) -> list[str]:
    """The files that mention a name which the changed statement binds, including its own."""
    return [path for path, text in _texts().items() if any(name in text for name in mutant.names)]


@functools.cache
def _texts() -> dict[str, str]:
    sources = sorted(each for each in SOURCES.rglob("*.py") if each.is_file())
    return {str(each.relative_to(SOURCES)): each.read_text(encoding="utf-8") for each in sources}


def _cheapest(mutant: Mutant, keys: Sequence[str], record: Record, seconds: float) -> Iterator[str]:
    """The tests that cost least for the words that they have in common with the line, up to a number of seconds."""
    line = line_key(mutant.path, mutant.where, mutant.text)
    for key in sorted(keys, key=lambda each: _seconds(each, record) / (1 + likeness(line, each)) ** 2):
        if seconds <= 0:
            return
        seconds -= _seconds(key, record)
        yield key


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


def run_jobs(jobs: Sequence[Job], until: float, side_by_side: int, unfit: set[str] | None = None) -> Iterator[Job]:
    """Run jobs until the time (of `time.monotonic`) is over, and yield each of them as soon as it has its verdict.

    A job begins in the process that has loaded the tests, and is repeated in a fresh one if that shows more. The first
    time that a test notices a change, it runs without a change, too: if it fails again, it is added to `unfit`, and
    the job is repeated without it.
    """
    home = new_folder()
    runner: _Runner | None = None
    try:
        files = sorted({key.partition("::")[0] for job in jobs for key in job.tests})
        runner = _Runner(files, home, set() if unfit is None else unfit)
        waiting = iter(jobs)
        while True:
            while runner.busy < side_by_side and time.monotonic() < until:
                if runner.begin_waiting():
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
    """The jobs that run, in the loaded process or in a fresh one, and the controls of tests that have noticed."""

    def __init__(self, files: Sequence[str], home: Path, unfit: set[str]) -> None:
        self._home = home
        self._loaded = Loaded(files, home)
        self._unfit = unfit
        self._fit: set[str] = set()
        self._begun: dict[int, Job] = {}
        self._controls: dict[int, str] = {}
        self._fresh: list[tuple[Child, Job]] = []
        self._for_fresh: list[Job] = []
        self._again: list[Job] = []
        self._doubted: dict[str, list[tuple[Job, Result]]] = {}  # verdicts that wait for the control of this test
        self._number = 0

    @property
    def busy(self) -> int:
        """The number of things that run."""
        return len(self._begun) + len(self._fresh) + len(self._controls)

    def begin(self, job: Job) -> None:
        """Begin a job in the loaded process."""
        job.tests = [key for key in job.tests if key not in self._unfit]
        self._begun[self._submit(job.mutant, job.tests, job.longest)] = job

    def begin_waiting(self) -> bool:
        """Begin something that waits for a free place; return False if nothing does."""
        controlled = self._controls.values()
        if key := next((key for key in self._doubted if key not in controlled), None):
            longest = max(job.longest for job, _ in self._doubted[key])
            self._controls[self._submit(None, [key], longest)] = key
        elif self._for_fresh:
            job = self._for_fresh.pop(0)
            self._fresh.append((fresh(job.mutant, job.tests, job.longest, self._home), job))
        elif self._again:
            self.begin(self._again.pop(0))
        else:
            return False
        return True

    def _submit(self, mutant: Mutant | None, tests: Sequence[str], longest: float) -> int:
        self._number += 1
        self._loaded.begin(self._number, mutant, tests, longest)
        return self._number

    def ended(self) -> Iterator[Job]:
        """The jobs that have their verdicts now."""
        for number, result in self._loaded.results():
            if number in self._controls:
                yield from self._controlled(self._controls.pop(number), result)
            else:
                yield from self._taken_in(self._begun.pop(number), result)
        for child, job in [*self._fresh]:
            if (result := child.result()) is not None:
                self._fresh.remove((child, job))
                yield from self._taken_in(job, result)

    def _taken_in(self, job: Job, result: Result) -> Iterator[Job]:
        key = next((key for key in result.by if "::" in key), None)
        if result.verdict in (NOT_APPLIED, LOADED_ONLY_IMPORTS):
            self._for_fresh.append(job)
        elif key in self._unfit:
            self._again.append(job)
        elif key is not None and job.mutant is not None and key not in self._fit:
            self._doubted.setdefault(key, []).append((job, result))
        else:
            yield _judged(job, result)

    def _controlled(self, key: str, control: Result) -> Iterator[Job]:
        (self._unfit if control.verdict != "survived" else self._fit).add(key)
        for job, result in self._doubted.pop(key):
            yield from self._taken_in(job, result)

    def unfinished(self) -> Iterator[Job]:
        """The jobs that were begun, and have no verdict."""
        doubted = (job for each in self._doubted.values() for job, _ in each)
        yield from (*self._begun.values(), *(job for _, job in self._fresh), *self._for_fresh, *self._again, *doubted)

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
