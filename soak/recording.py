"""A record of which tests run which lines of toolbus, and how long each test takes, renewed for files that change.

The module is a pytest plugin (`-p soak.recording`) and the reader of its record. A line is identified by its function
and its text, so that it is recognised after other changes have moved it. For each line, only the cheapest tests of each
file are kept, most of them from the folder of tests that mirrors the line's, and only their runs on asyncio, except of
the files about code that only trio runs. From Python 3.12 on, the lines that run in processes which a test has started
are recorded for that test, too (see `soak/children`). If other tests use such a process as well, they are not known to
do so.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import linecache
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

import pytest

__all__ = [
    "LEFT_OUT",
    "PLACE",
    "ROOT",
    "SOURCES",
    "Record",
    "likeness",
    "line_key",
    "nearness",
    "stale_files",
    "watch_children",
]

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"
PLACE = "SOAK_RECORD"
"""The variable that names the folder where the plugin puts what it has recorded."""

LEFT_OUT = (
    "tests/docs_site",
    "tests/packaging",
    "tests/live",
    "tests/typing",
    "tests/durability/test_kill.py",
    "tests/durability/test_shared_requests.py",
    "tests/test_benchmarks.py",
    "tests/test_guarantees.py",
    "tests/test_language.py",
    "tests/test_layers.py",
    "tests/test_soak.py",
    "tests/testing/test_pytest_plugin.py",
)
"""The tests that take long and run toolbus only in other processes, or not at all: folders and files."""
_WORD = re.compile("[a-z]+")
_COMMON = frozenset(
    ["asyncio", "else", "from", "none", "return", "self", "test", "that", "toolbu", "true", "when", "which", "with"]
)
_ON_TRIO_TOO = ("tests/test_timers.py", "tests/dispatcher/test_dispatch_left_open.py")
_SCHEDULED = Path("/proc/self/schedstat")
_CHILDREN = str(Path(__file__).with_name("children"))
_MAX_SECONDS = 60.0  # a test that takes longer is not used
_OWN_TESTS = 600  # how many tests of the mirrored folder come first
_MAX_TESTS = 800  # how many tests are recorded for one line


def line_key(path: str, function: str, text: str) -> str:
    """A line of a function (empty: outside of functions) of a file below the folder of sources."""
    return f"{path}:{function}|{text.strip()}"


def nearness(path: str, key: str) -> int:
    """Return how many folders a file of the sources and a test have in common: tests mirror the sources."""
    ours, theirs = (each.partition(":")[0].split("/")[1:-1] for each in (path, key))
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))))


def likeness(key: str, test: str) -> int:
    """Return how many words of a line, its function and its file are in the name of a test and of its file."""
    return len(_words(key) & _words(test))


@functools.cache
def _words(key: str) -> frozenset[str]:
    path, _, rest = key.partition(":")
    found = (each.rstrip("s") for each in _WORD.findall(f"{path.rpartition('/')[2]} {rest}".lower()))
    return frozenset(each for each in found if len(each) > 3) - _COMMON


@dataclass(slots=True)
class Record:
    """`files` are digests of files of tests, and `lines` the tests by line.

    `seconds` are what each test takes if it does not have to wait for a processor.
    """

    files: dict[str, str] = field(default_factory=dict[str, str])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    lines: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read the record from its file; it is empty if no file can be read."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, IndexError):
            found = json.loads(path.read_bytes())
            names = [*found["seconds"]]
            lines = {line: [names[at] for at in ran] for line, ran in found["lines"].items()}
            return cls(found["files"], found["seconds"], lines)
        return cls()

    def write(self, path: Path) -> None:
        """Replace the file in one step, also while another process does."""
        places = {name: place for place, name in enumerate(self.seconds)}
        lines = {line: [places[name] for name in ran] for line, ran in self.lines.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        written = {"files": self.files, "seconds": self.seconds, "lines": lines}
        partial.write_text(json.dumps(written), encoding="utf-8")
        partial.replace(path)

    def renew(self, files: Mapping[str, str], folder: Path, *, whole: bool) -> None:
        """Take over what the plugin has written into `folder` about these files, and forget files that no longer exist.

        Unless the recording is `whole`, the last file of each process is left to the next recording; so are files with
        a test that has failed, or that took too long, because the machine may have been busy.
        """
        parts = sorted(folder.glob("*.jsonl"))
        done = {*files} if whole else self._finished(parts) & {*files}
        there = {name for name in {*self.files, *files} if (ROOT / name).exists()}
        self.seconds = {key: each for key, each in self.seconds.items() if _file_of(key) in there - done}
        lines = {line: {key for key in ran if key in self.seconds} for line, ran in self.lines.items()}
        incomplete: set[str] = set()
        for part in parts:
            for key, seconds, ran in _read(part):
                if seconds is None:
                    incomplete.add(_file_of(key))
                elif _file_of(key) in done:
                    self.seconds[key] = seconds
                    for line in ran:
                        lines.setdefault(line, set()).add(key)
        for part in folder.glob("*.child"):
            key, ran = _read_child(part)
            if _file_of(key) in done and key in self.seconds:
                for line in ran:
                    lines.setdefault(line, set()).add(key)
        self.lines = {line: self._chosen(line, ran) for line, ran in lines.items() if ran}
        self.files = {name: digest for name, digest in self.files.items() if name in there}
        self.files |= {name: digest for name, digest in files.items() if name in done - incomplete}

    def _chosen(self, line: str, ran: Iterable[str]) -> list[str]:
        """The tests of a line that are kept: half of the lines run in hundreds of tests, and most only pass through."""
        every = self._spread(ran)
        if len(every) <= _MAX_TESTS:
            return every
        near = {key: nearness(line, key) for key in every}
        own = sorted((key for key in every if near[key]), key=lambda key: -near[key])[:_OWN_TESTS]
        return list(dict.fromkeys([*own, *sorted(every, key=lambda key: -likeness(line, key))]))[:_MAX_TESTS]

    def _spread(self, ran: Iterable[str]) -> list[str]:
        """The tests from all files in turn, the cheapest of each file first."""
        of_file: dict[str, int] = {}
        ranked: list[tuple[int, float, str]] = []
        for seconds, key in sorted((self.seconds[key], key) for key in ran):
            rank = of_file[_file_of(key)] = of_file.get(_file_of(key), -1) + 1
            ranked.append((rank, seconds, key))
        return [key for _, _, key in sorted(ranked)]

    @staticmethod
    def _finished(parts: Iterable[Path]) -> set[str]:
        """The files of tests that were recorded, without the last one of each process."""
        finished: set[str] = set()
        busy: set[str] = set()
        for part in parts:
            files = [_file_of(key) for key, _, _ in _read(part)]
            finished.update(files)
            busy.update(files[-1:])
        return finished - busy


def _read(part: Path) -> Iterator[tuple[str, float | None, list[str]]]:
    """The complete lines that one process has written: a test, its seconds, None if it is not used, and its lines."""
    with part.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("]\n"):
                key, seconds, ran = json.loads(line)
                yield key, seconds, ran


def _read_child(part: Path) -> tuple[str, list[str]]:
    """Return the test that has started a process, and the lines that the process has run."""
    key, *rows = part.read_text(encoding="utf-8").splitlines()
    ran = (row.split("\t") for row in rows)
    return key, [_key_at(path, function, int(number)) for path, function, number in ran]


def _key_at(path: str, function: str, number: int) -> str:
    """Return the key of a line of a function; an expression that Python compiles to a function is part of its own."""
    while function.rpartition(".")[2] in _WITHIN:
        function = function.rpartition(".<locals>.")[0]
    return line_key(str(Path(path).relative_to(SOURCES)), function, linecache.getline(path, number))


def _file_of(key: str) -> str:
    return key.partition("::")[0]


def watch_children() -> None:
    """Let processes that are started from now on run `children/sitecustomize.py` first."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([_CHILDREN, *([before] if before else [])])


def stale_files(record: Record, files: Iterable[Path]) -> dict[str, str]:
    """The files of tests that are new or have changed since they were recorded, with their digests."""
    now = {str(each.relative_to(ROOT)): hashlib.sha256(each.read_bytes()).hexdigest()[:16] for each in files}
    return {name: digest for name, digest in now.items() if record.files.get(name) != digest}


# ------------------------------------------------------------------------------------------------- the plugin


_Tracer: TypeAlias = Callable[[FrameType, str, Any], Any]
_HOME = f"{SOURCES / 'toolbus'}{os.sep}"
_TOOL = 3  # a number that is free for tools of one's own
_WITHIN = {"<lambda>", "<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"}


class _Lines:
    """The lines of toolbus that run, from `begin` to `end`, in all threads; each is a number of its code and of itself.

    Python 3.12 and later tell a line once and then run it as fast as before. On 3.11 each line is traced each time.
    """

    def __init__(self) -> None:
        self.seen: set[tuple[int, int]] = set()
        self.codes: dict[int, CodeType] = {}  # they are kept alive, so that no other object gets their ids
        self._tracers: dict[int, tuple[CodeType, _Tracer | None]] = {}
        self._monitoring: Any = getattr(sys, "monitoring", None)
        if self._monitoring is not None:
            events = self._monitoring.events
            self._monitoring.use_tool_id(_TOOL, "soak")
            self._monitoring.register_callback(_TOOL, events.PY_START, self._started)
            self._monitoring.register_callback(_TOOL, events.LINE, self._reached)

    def begin(self) -> None:
        """Forget what was seen, and look from now on."""
        self.seen.clear()
        if self._monitoring is not None:
            self._monitoring.set_events(_TOOL, self._monitoring.events.PY_START)
            self._monitoring.restart_events()
        else:
            threading.settrace(self._trace)
            sys.settrace(self._trace)

    def end(self) -> None:
        """Look no more."""
        if self._monitoring is not None:
            self._monitoring.set_events(_TOOL, 0)
        else:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    def _started(self, code: CodeType, _offset: int) -> Any:
        if code.co_filename.startswith(_HOME):
            self.codes[id(code)] = code
            self._monitoring.set_local_events(_TOOL, code, self._monitoring.events.LINE)
        return self._monitoring.DISABLE

    def _reached(self, code: CodeType, line: int) -> Any:
        self.seen.add((id(code), line))
        return self._monitoring.DISABLE

    def _trace(self, frame: FrameType, _event: str, _argument: Any) -> _Tracer | None:
        """Trace the call of a function; return the function that traces its lines, only for functions of toolbus."""
        code = frame.f_code
        known = self._tracers.get(id(code))
        if known is None:
            is_ours = code.co_filename.startswith(_HOME)
            known = self._tracers[id(code)] = code, self._tracer(id(code)) if is_ours else None
            self.codes[id(code)] = code
        return known[1]

    def _tracer(self, which: int) -> _Tracer:
        add = self.seen.add

        def trace(frame: FrameType, _event: str, _argument: Any) -> _Tracer:
            if (number := frame.f_lineno) is not None:  # pyright: ignore[reportUnnecessaryComparison] -- code of no line
                add((which, number))
            return trace

        return trace


def _busy_seconds() -> float:
    """Return a time that stands still while this thread waits for a processor, which others use."""
    try:
        waited = int(_SCHEDULED.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):  # a system that does not say so
        waited = 0
    return time.perf_counter() - waited / 1e9


class _Recorder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines = _Lines()
        self._failed: set[str] = set()
        self._skipped: set[str] = set()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        began = _busy_seconds()
        self._lines.begin()
        try:
            return (yield)
        finally:
            self._lines.end()
            seconds = max(0.0, _busy_seconds() - began)  # the kernel may count a wait a little longer than it was
            if item.nodeid not in self._skipped:
                row: list[Any] = [item.nodeid, None, []]
                if item.nodeid not in self._failed and seconds < _MAX_SECONDS:
                    row[1:] = round(seconds, 4), sorted({*map(self._key, [*self._lines.seen])})
                with (self._folder / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
                    file.write(f"{json.dumps(row)}\n")

    def _key(self, seen: tuple[int, int]) -> str:
        code = self._lines.codes[seen[0]]
        return _key_at(code.co_filename, code.co_qualname, seen[1])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:  # a skipped test notices nothing
            self._skipped.add(report.nodeid)
        elif report.failed:
            self._failed.add(report.nodeid)


def _parameters(item: pytest.Item) -> Mapping[str, object]:
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the runs on trio, which run the same lines a second time, but for a few files."""
    on_trio = [
        item
        for item in items
        if "trio" in str(_parameters(item).get("anyio_backend")) and not item.nodeid.startswith(_ON_TRIO_TOO)
    ]
    if on_trio:
        config.hook.pytest_deselected(items=on_trio)
        gone = {*map(id, on_trio)}
        items[:] = [item for item in items if id(item) not in gone]


def pytest_configure(config: pytest.Config) -> None:
    """Record, if the variable names a folder."""
    if folder := os.environ.get(PLACE):
        watch_children()
        config.pluginmanager.register(_Recorder(Path(folder)))
