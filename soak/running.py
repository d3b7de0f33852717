"""Processes that run tests with one mutant each.

There are two ways. A *loaded* process has imported toolbus and collected the tests once, unchanged. It forks for each
mutant, and the fork exchanges the code of the functions that the mutant changes, which takes a few milliseconds. This
cannot show a change outside of functions, or of what a function did while modules were imported. For those, a *fresh*
process imports toolbus with the change, and collects its tests, which takes seconds.

In both, the processes that a test starts load the changed module too (`soak/children`). A process that runs no further
test for too long is killed.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.abc
import importlib.machinery
import json
import marshal
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, TypeAlias

import pytest

from .mutants import Mutant, mutants_of, mutated
from .recording import SOURCES, watch_children

__all__ = ["LOADED_ONLY_IMPORTS", "NOT_APPLIED", "Child", "Loaded", "Result", "fresh", "new_folder"]

_START_SECONDS = 40.0  # the time to load toolbus and to collect tests
_TEST_SECONDS = 10.0  # the time that a test may take in addition, for the machine may be busy
_SLOWER = 6.0  # how many times its recorded time a test may take
_MEMORY_BYTES = 6 * 2**30
_FAILED, _NONE_RAN = 1, 5  # exit statuses of pytest
_POLL_SECONDS = 0.02

NOT_APPLIED = "not applied"
"""What a loaded process says of a change that it cannot make."""
LOADED_ONLY_IMPORTS = "imports"
"""What a loaded process says of a survivor whose function also ran while modules were imported."""

_OPTIONS = ("--assert=plain", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist")
# Plain asserts: pytest would load toolbus itself to rewrite its asserts, since toolbus has a plugin of pytest.


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a mutant: `verdict` is one of `mutating.Verdict`, or one of the two words above.

    `by` are the tests that have failed, or the one that stood still.
    """

    verdict: str
    by: list[str]
    ran: int
    took: float


# ------------------------------------------------------------------------------------------------ one process


def new_folder(within: Path | None = None) -> Path:
    """Make a folder that others may enter: PostgreSQL does not run as root."""
    made = Path(tempfile.mkdtemp(prefix="soak", dir=within))
    made.chmod(0o711)
    return made


class Child:
    """A forked process that runs tests, and the watch over it. It writes a line for each test that begins or fails."""

    def __init__(self, run: Callable[[Path], int], tests: Sequence[str], longest: float, start: float, home: Path):
        """Fork, and let the fork run `run` in a folder of its own. `longest` is the recorded time of one test."""
        self._folder = new_folder(home)
        self._tests = tests
        self._patience = _TEST_SECONDS + _SLOWER * longest
        self._written = 0
        self._began = time.monotonic()
        self._until = self._began + start + self._patience
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            status = 3
            try:
                status = run(self._folder)
            finally:
                os._exit(status)

    def result(self) -> Result | None:
        """Return its outcome; None while it runs."""
        now = time.monotonic()
        done, status = os.waitpid(self._pid, os.WNOHANG)
        if not done:
            with contextlib.suppress(OSError):
                if (size := (self._folder / "tests.jsonl").stat().st_size) != self._written:
                    self._written, self._until = size, now + self._patience
            if now < self._until:
                return None
            self.end()
            return self._result("stood still", now)
        return self._result(self._verdict(os.waitstatus_to_exitcode(status)), now)

    def end(self) -> None:
        """Kill it, with all processes that its tests have started."""
        self._kill()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def clear(self) -> None:
        """Kill what its tests have left running, and remove its folder."""
        self._kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)

    def _verdict(self, code: int) -> str:
        if (word := _text(self._folder / "word")) in (NOT_APPLIED, LOADED_ONLY_IMPORTS):
            return word
        if code not in (0, _NONE_RAN):
            return "noticed"
        return "survived" if self._lines("began") else "no test"

    def _result(self, verdict: str, now: float) -> Result:
        by, began = self._lines("failed"), self._lines("began")
        if verdict == "noticed" and not by:
            by = [_last_line(self._folder / "output")]
        elif verdict == "stood still":
            by = began[-1:]
        result = Result(verdict, by, len(began), now - self._began)
        self.clear()
        return result

    def _lines(self, word: str) -> list[str]:
        lines = _text(self._folder / "tests.jsonl").splitlines()
        return [key for said, key in map(json.loads, lines) if said == word]


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8")
    return ""


def _last_line(path: Path) -> str:
    lines = [line for line in _text(path).splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it ended without a word"


class _Reports:
    """A pytest plugin that writes which tests begin and which fail, and runs the chosen ones in their order."""

    def __init__(self, keys: Sequence[str], folder: Path) -> None:
        self._order = {key: place for place, key in enumerate(keys)}
        self._output = folder / "tests.jsonl"
        self.failed = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._order), key=lambda item: self._order[item.nodeid]
        )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write("began", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = True
            self._write("failed", report.nodeid)

    def _write(self, word: str, key: str) -> None:
        with self._output.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps([word, key])}\n")


def _settle_in(folder: Path) -> None:
    """Make the fork a process group of its own, which reads nothing, writes into `folder`, and has bounds."""
    import resource  # noqa: PLC0415 -- only POSIX has it

    os.setsid()
    captured = os.open(folder / "output", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(captured, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    # anyio's worker processes would run this file as a script, but it is a module of a package.
    vars(sys.modules["__main__"]).pop("__file__", None)
    os.environ.update(TMPDIR=str(folder), HYPOTHESIS_STORAGE_DIRECTORY=str(folder / "hypothesis"))
    tempfile.tempdir = str(folder)


# ------------------------------------------------------------------------------------------------ the changed module


@functools.cache
def _source(path: str) -> str:
    return (SOURCES / path).read_text(encoding="utf-8")


@functools.cache
def _mutants(path: str) -> list[Mutant]:
    return mutants_of(_source(path), path)


def _compiled(path: str, mutant: Mutant | None) -> CodeType:
    return compile(mutated(_source(path), mutant), str(SOURCES / path), "exec")


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A loader of the changed module."""

    def __init__(self, mutant: Mutant | None) -> None:
        path = mutant.path if mutant is not None else "toolbus/bus/_bus.py"
        parts = Path(path).with_suffix("").parts
        self._path = SOURCES / path
        self._is_package = parts[-1] == "__init__"
        self._name = ".".join(parts[:-1] if self._is_package else parts)
        self.code = _compiled(path, mutant)

    def tell_children(self, folder: Path) -> None:
        """Let the processes that tests start load the changed module, too."""
        compiled = folder / "changed"
        compiled.write_bytes(marshal.dumps(self.code))
        compiled.chmod(0o644)
        os.environ["SOAK_MUTANT"] = json.dumps([self._name, str(self._path), self._is_package, str(compiled)])
        watch_children()

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
        exec(self.code, module.__dict__)


# ------------------------------------------------------------------------------------------------ a fresh process


def fresh(mutant: Mutant | None, tests: Sequence[str], longest: float, home: Path) -> Child:
    """Begin a process that imports toolbus with the change. This process must not have imported toolbus."""

    def run(folder: Path) -> int:
        _settle_in(folder)
        changed = _Changed(mutant)
        changed.tell_children(folder)
        sys.meta_path.insert(0, changed)
        files = sorted({key.partition("::")[0] for key in tests})
        options = [*_OPTIONS, *(["-x"] if mutant is not None else []), f"--basetemp={folder / 'tests'}"]
        return int(pytest.main([*options, *files], plugins=[_Reports(tests, folder)]))

    return Child(run, tests, longest, _START_SECONDS, home)


# ------------------------------------------------------------------------------------------------ a loaded process


class Loaded:
    """The loaded process, as its parent sees it. This process must not have imported toolbus."""

    def __init__(self, files: Sequence[str], home: Path) -> None:
        """Fork. The fork collects the tests of these files, which takes up to a minute."""
        self._folder = new_folder(home)
        theirs, self._commands = os.pipe()
        self._results, answers = os.pipe()
        os.set_blocking(self._results, False)
        self._partial = b""
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._commands)
            os.close(self._results)
            status = 3
            try:
                status = _serve(files, theirs, answers, self._folder)
            finally:
                os._exit(status)
        os.close(theirs)
        os.close(answers)

    def begin(self, number: int, mutant: Mutant | None, tests: Sequence[str], longest: float) -> None:
        """Let it run these tests; `number` names the result."""
        which = None if mutant is None else (mutant.path, mutant.number)
        os.write(self._commands, f"{json.dumps([number, which, [*tests], longest])}\n".encode())

    def results(self) -> Iterator[tuple[int, Result]]:
        """The results since the last call. Raises `RuntimeError` if the process has ended."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._results, 65_536):
                self._partial += data
            raise RuntimeError(f"the process that has loaded the tests ended: {_last_line(self._folder / 'output')}")
        *lines, self._partial = self._partial.split(b"\n")
        for line in lines:
            number, verdict, by, ran, took = json.loads(line)
            yield number, Result(verdict, by, ran, took)

    def close(self) -> None:
        """End it, with the processes that it has forked."""
        os.close(self._commands)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        os.close(self._results)


def _serve(files: Sequence[str], commands: int, answers: int, folder: Path) -> int:
    captured = os.open(folder / "output", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(captured, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = _Server(commands, answers, folder)
    sys.setprofile(server.note)
    return int(pytest.main([*_OPTIONS, *sorted(files)], plugins=[server]))


_Key: TypeAlias = tuple[str, int]


class _Server:
    """A pytest plugin that runs no tests after their collection, but forks for each command, and answers."""

    def __init__(self, commands: int, answers: int, folder: Path) -> None:
        self._commands, self._answers, self._folder = commands, answers, folder
        self._children: dict[int, Child] = {}
        self._items: dict[str, pytest.Item] = {}
        self._functions: dict[str, list[FunctionType]] = {}
        self._imported: set[tuple[str, str, int]] = set()
        self._notices = Counter[str]()
        self._home = f"{SOURCES}{os.sep}"

    def note(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Note which functions run before the loop: a fork comes too late to change what they did."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self._home):
            self._imported.add((code.co_filename, code.co_qualname, code.co_firstlineno))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        sys.setprofile(None)
        self._items = {item.nodeid: item for item in session.items}
        gc.unfreeze()
        for each in gc.get_objects():
            if isinstance(each, FunctionType) and each.__code__.co_filename.startswith(self._home):
                self._functions.setdefault(each.__code__.co_filename, []).append(each)
        gc.collect()
        gc.freeze()
        _capture(session).stop_global_capturing()  # its files would be those of all forks
        partial, is_open = b"", True
        while is_open or self._children:
            if select.select([self._commands] if is_open else [], [], [], _POLL_SECONDS if self._children else None)[0]:
                data = os.read(self._commands, 2**20)
                is_open = bool(data)
                *lines, partial = (partial + data).split(b"\n")
                for line in lines:
                    self._begin(session, *json.loads(line))
                if not is_open:
                    for child in self._children.values():
                        child.end()
            self._answer()
        return True

    def _answer(self) -> None:
        for number, child in [*self._children.items()]:
            if (result := child.result()) is not None:
                del self._children[number]
                self._notices.update(result.by[:1])
                answer = [number, result.verdict, result.by, result.ran, result.took]
                with contextlib.suppress(BrokenPipeError):
                    os.write(self._answers, f"{json.dumps(answer)}\n".encode())

    def _begin(
        self, session: pytest.Session, number: int, which: list[Any] | None, tests: list[str], longest: float
    ) -> None:
        mutant: Mutant | None = None if which is None else _mutants(str(which[0]))[int(which[1])]
        # A test that has noticed a change often notices the next one, too.
        keys = sorted((key for key in tests if key in self._items), key=lambda key: -self._notices[key])

        def run(folder: Path) -> int:
            _settle_in(folder)
            if mutant is not None and (word := self._apply(mutant, folder)):
                (folder / "word").write_text(word)
                if word == NOT_APPLIED:
                    return 0
            status = self._run(session, [self._items[key] for key in keys], folder, stops=mutant is not None)
            if status:
                (folder / "word").unlink(missing_ok=True)
            return status

        self._children[number] = Child(run, keys, longest, 0.0, self._folder)

    def _apply(self, mutant: Mutant, folder: Path) -> str:
        """Change the functions, and return why this does not show the whole change; an empty text if it does."""
        changed = _Changed(mutant)
        changed.tell_children(folder)
        swaps = _swaps(_compiled(mutant.path, None), changed.code)
        if swaps is None:
            return NOT_APPLIED
        path = str(SOURCES / mutant.path)
        done: set[_Key] = set()
        for function in self._functions.get(path, ()):
            key = function.__code__.co_qualname, function.__code__.co_firstlineno
            if key in swaps:
                try:
                    function.__code__ = swaps[key]
                except ValueError:  # it has other free variables
                    return NOT_APPLIED
                done.add(key)
        if not done:
            return NOT_APPLIED
        return LOADED_ONLY_IMPORTS if any((path, *key) in self._imported for key in done) else ""

    def _run(self, session: pytest.Session, items: Sequence[pytest.Item], folder: Path, *, stops: bool) -> int:
        _capture(session).start_global_capturing()
        reports = _Reports([], folder)
        session.config.pluginmanager.register(reports)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if reports.failed and stops:
                break
        session.config.hook.pytest_sessionfinish(session=session, exitstatus=0)  # which undoes what is left
        return _FAILED if reports.failed else 0


def _capture(session: pytest.Session) -> Any:
    return session.config.pluginmanager.getplugin("capturemanager")


def _swaps(before: CodeType, after: CodeType) -> dict[_Key, CodeType] | None:
    """Return the functions that differ, with their new code; None if something else differs, or two look the same."""
    old, new = (_by_key(code) for code in (before, after))
    if old.keys() != new.keys():
        return None
    differ = {key: new[key] for key in old if old[key] != new[key]}
    if any(len(codes) != 1 for codes in differ.values()):
        return None
    return {key: code for key, [code] in differ.items()}


def _by_key(code: CodeType) -> Mapping[_Key, list[CodeType]]:
    found: dict[_Key, list[CodeType]] = {}
    for each in _within(code):
        found.setdefault((each.co_qualname, each.co_firstlineno), []).append(each)
    return found


def _within(code: CodeType) -> Iterable[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _within(each)
