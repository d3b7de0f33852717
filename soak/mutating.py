"""Runs of the tests that could notice a change of toolbus, in processes that have everything else loaded already.

One process imports pytest and the dependencies of toolbus and its tests, and forks for each mutant. The child loads
toolbus, with the change in one module, and runs the tests that the record names, the cheapest first: at first for a few
seconds, and if none of them fails, further tests within a bound. A child that hangs is killed, and counts as noticed. A
control is an unchanged toolbus, which runs the tests that have failed with mutants: if a test fails there too, its
failures do not count.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias

import pytest

from .mutants import Mutant, mutated, users_of
from .recording import SOURCES, Record, line_key

__all__ = ["Job", "Verdict", "control_of", "jobs_for", "preload", "run_jobs"]

Verdict: TypeAlias = Literal["noticed", "stood still", "survived", "no test", "not run"]

_FIRST_SECONDS, _ALL_SECONDS = 2.0, 30.0  # bounds of the recorded time of the tests that run first, and of all
_FIRST_FILES = 5
_LEAST_SECONDS = 0.02  # the least time that a test takes, its set-up included
_SLOWER = 6.0  # how many times its recorded time a test may take
_START_SECONDS = 40.0  # the time to load toolbus and to collect tests
_MEMORY_BYTES = 4 * 2**30
_FAILED, _NONE_RAN = 1, 5  # exit statuses of pytest

# The modules of others that toolbus, its tests and pytest's plugins import. Missing ones are skipped.
_OTHERS = (
    "anthropic anyio anyio._backends._asyncio anyio._backends._trio anyio.pytest_plugin asyncio blinker email.message",
    "fastapi http.server httpx httpx2 hypothesis.stateful hypothesis.strategies importlib.metadata jsonschema",
    "jsonschema_rs logging.handlers mcp mcp.client mcp.server.fastmcp multiprocessing numpy ollama openai orjson",
    "psycopg pydantic pymongo sqlite3 starlette.applications subprocess trio trio.testing unittest.mock uvicorn xdist",
)


@dataclass(slots=True)
class Job:
    """One mutant, or, without one, a control. `helpings` are the tests to run, `seconds` the time that each one took.

    `by` are the tests that have failed: only the first one, or, for a control, all.
    """

    mutant: Mutant | None
    helpings: list[list[str]]
    seconds: list[float]
    verdict: Verdict = "not run"
    by: list[str] = field(default_factory=list[str])
    ran: int = 0
    took: float = 0.0


@dataclass(slots=True)
class _Child:
    job: Job
    helping: int
    pid: int
    folder: Path
    began: float
    until: float
    output: Path = field(init=False)

    def __post_init__(self) -> None:
        self.output = self.folder / "failed"


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
        helpings = [each for each in (first, others) if each]
        yield Job(mutant, helpings, [sum(_seconds(key, record) for key in each) for each in helpings])


def control_of(tests: Sequence[str], record: Record) -> Job:
    """A job that runs these tests with an unchanged toolbus."""
    return Job(None, [[*tests]], [sum(_seconds(key, record) for key in tests)])


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


# ------------------------------------------------------------------------------------------------ in the child


class _Chosen:
    """A pytest plugin that runs the chosen tests in their order, and records which fail."""

    def __init__(self, keys: Sequence[str], output: Path) -> None:
        self._order = {key: place for place, key in enumerate(keys)}
        self._output = output

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._order), key=lambda item: self._order[item.nodeid]
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self._output.open("a", encoding="utf-8") as file:
                file.write(f"{report.nodeid}\n")


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A loader of the changed module."""

    def __init__(self, mutant: Mutant | None) -> None:
        self._path = SOURCES / (mutant.path if mutant is not None else "toolbus/bus/_bus.py")
        parts = self._path.relative_to(SOURCES).with_suffix("").parts
        self._is_package = parts[-1] == "__init__"
        self._name = ".".join(parts[:-1] if self._is_package else parts)
        self._mutant = mutant

    def find_spec(self, fullname: str, _path: Any, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=str(self._path), is_package=self._is_package)
        spec.has_location = True
        if self._is_package:
            spec.submodule_search_locations = [str(self._path.parent)]
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:  # noqa: ARG002 -- the protocol's
        return None

    def exec_module(self, module: ModuleType) -> None:
        tree = mutated(self._path.read_text(encoding="utf-8"), self._mutant)
        exec(compile(tree, str(self._path), "exec"), module.__dict__)


def _in_child(job: Job, helping: int, folder: Path, output: Path) -> int:
    import resource  # noqa: PLC0415 -- only POSIX has it

    keys = job.helpings[helping]
    os.setsid()
    captured = os.open(folder / "output", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(captured, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    os.environ.update(TMPDIR=str(folder), HYPOTHESIS_STORAGE_DIRECTORY=str(folder / "hypothesis"))
    tempfile.tempdir = str(folder)
    sys.meta_path.insert(0, _Changed(job.mutant))
    files = sorted({key.partition("::")[0] for key in keys})
    # Plain asserts: pytest would load toolbus itself to rewrite its asserts, since toolbus has a plugin of pytest.
    options = [
        "--assert=plain",
        *(["-x"] if job.mutant is not None else []),
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        f"--basetemp={folder / 'tests'}",
    ]
    return int(pytest.main([*options, *files], plugins=[_Chosen(keys, output)]))


# ----------------------------------------------------------------------------------------------- in the parent


def run_jobs(jobs: Iterator[Job], until: float, side_by_side: int) -> Iterator[Job]:
    """Run jobs until the time (of `time.monotonic`) is over, and yield each of them as soon as it has its verdict."""
    children: list[_Child] = []
    waiting: list[tuple[Job, int]] = []
    home = _folder()
    try:
        while True:
            while len(children) < side_by_side and time.monotonic() < until:
                job, helping = waiting.pop(0) if waiting else (next(jobs, None), 0)
                if job is None:
                    break
                if not job.helpings:
                    job.verdict = "no test"
                    yield job
                    continue
                children.append(_begin(job, helping, _folder(home)))
            if not children:
                break
            time.sleep(0.02)
            for child in [*children]:
                if (ended := _ended(child, until)) is None:
                    continue
                children.remove(child)
                if ended:
                    yield child.job
                else:
                    waiting.append((child.job, child.helping + 1))
        for job, _ in waiting:  # their first tests noticed nothing, and there was no time for the others
            job.verdict = "not run"
            yield job
    finally:
        for child in children:
            _end(child)
        shutil.rmtree(home, ignore_errors=True)


def _folder(within: Path | None = None) -> Path:
    """Make a folder that others may enter: PostgreSQL does not run as root."""
    made = Path(tempfile.mkdtemp(prefix="soak", dir=within))
    made.chmod(0o711)
    return made


def _begin(job: Job, helping: int, folder: Path) -> _Child:
    sys.stdout.flush()
    sys.stderr.flush()
    began = time.monotonic()
    output = folder / "failed"
    pid = os.fork()
    if pid == 0:
        status = 3
        try:
            status = _in_child(job, helping, folder, output)
        finally:
            os._exit(status)
    return _Child(job, helping, pid, folder, began, began + _START_SECONDS + _SLOWER * job.seconds[helping])


def _ended(child: _Child, until: float) -> bool | None:
    """Return whether the job is done; None while it runs, False if it continues with its next tests."""
    job, now = child.job, time.monotonic()
    done, status = os.waitpid(child.pid, os.WNOHANG)
    if not done:
        if now < child.until and now < until + _START_SECONDS:
            return None
        job.verdict = "stood still" if now >= child.until else "not run"
        job.by = _text(child.output).splitlines()
        _end(child)
        job.took += now - child.began
        return True
    code = os.waitstatus_to_exitcode(status)
    job.took += now - child.began
    job.ran += len(job.helpings[child.helping])
    is_silent = code in (0, _NONE_RAN)
    if is_silent and child.helping + 1 < len(job.helpings):
        _clear(child)
        return False
    job.verdict = ("survived" if code == 0 or child.helping else "no test") if is_silent else "noticed"
    if not is_silent:
        job.by = _text(child.output).splitlines() if code == _FAILED else []
        job.by = job.by or [_last_line(child.folder / "output")]
    _clear(child)
    return True


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8")
    return ""


def _last_line(path: Path) -> str:
    lines = [line for line in _text(path).splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it ended without a word"


def _end(child: _Child) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child.pid, 0)
    _clear(child)


def _clear(child: _Child) -> None:
    """Kill the child with all processes that its tests have left running."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    shutil.rmtree(child.folder, ignore_errors=True)
