"""Which test runs which functions of toolbus, and how long it takes: recorded once, and anew for files that changed.

A plugin of pytest (`-p soak.recording`), and what reads its record. Tests are recorded on asyncio alone. What a test
runs in other processes is not seen.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

__all__ = ["LEFT_OUT", "PLACE", "ROOT", "SOURCES", "Record", "stale_files"]

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"
PLACE = "SOAK_RECORD"
"""The variable that names the folder where the plugin puts what it has recorded."""

LEFT_OUT = ("tests/packaging", "tests/live", "tests/typing", "tests/durability", "tests/test_benchmarks.py")
"""They run toolbus in processes of their own, or not at all."""
_LONGEST_SECONDS = 60.0  # A test that takes longer is not used.


def _new_tests() -> dict[str, tuple[float, list[str]]]:
    return {}


@dataclass(slots=True)
class Record:
    """`files` are digests of files of tests, `tests` by id what each took in seconds and the functions that it ran.

    A function is "toolbus/core/turn.py:decide".
    """

    files: dict[str, str] = field(default_factory=dict[str, str])
    tests: dict[str, tuple[float, list[str]]] = field(default_factory=_new_tests)

    @classmethod
    def read(cls, path: Path) -> Record:
        """What was recorded; nothing, where there is no record that can be read."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(path.read_bytes())
            names = found["functions"]
            tests = {key: (seconds, [names[at] for at in ran]) for key, (seconds, ran) in found["tests"].items()}
            return cls(found["files"], tests)
        return cls()

    def write(self, path: Path) -> None:
        """Replace the file in one step."""
        places: dict[str, int] = {}
        tests = {
            key: (round(seconds, 4), [places.setdefault(name, len(places)) for name in ran])
            for key, (seconds, ran) in self.tests.items()
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"files": self.files, "functions": [*places], "tests": tests}), encoding="utf-8")
        partial.replace(path)

    def renew(self, files: Mapping[str, str], folder: Path, *, whole: bool) -> None:
        """Take over what the plugin has put into `folder` about these files, and forget files that are gone.

        Unless it is the `whole`, the file that each process was busy with is left to the next recording.
        """
        fresh: dict[str, tuple[float, list[str]]] = {}
        seen: set[str] = set()
        for part in sorted(folder.glob("*.jsonl")):
            lines = [json.loads(line) for line in part.read_text(encoding="utf-8").splitlines() if line.endswith("]")]
            fresh.update({key: (seconds, ran) for key, seconds, ran in lines})
            seen.update(_file_of(key) for key, _, _ in lines)
        for part in [] if whole else sorted(folder.glob("*.jsonl")):
            lines = part.read_text(encoding="utf-8").splitlines()
            seen -= {_file_of(json.loads(line)[0]) for line in lines[-2:] if line.endswith("]")}
        done = {*files} if whole else seen & {*files}
        there = {name for name in {*self.files, *files} if (ROOT / name).exists()}
        kept = {key: each for key, each in self.tests.items() if _file_of(key) in there - done}
        self.tests = kept | {key: each for key, each in fresh.items() if _file_of(key) in done}
        self.files = {name: digest for name, digest in self.files.items() if name in there}
        self.files |= {name: digest for name, digest in files.items() if name in done}

    def by_function(self) -> dict[str, list[str]]:
        """The tests that run each function."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for key, (_, ran) in self.tests.items():
            for name in ran:
                found[name].append(key)
        return found


def _file_of(key: str) -> str:
    return key.partition("::")[0]


def stale_files(record: Record, files: Iterable[Path]) -> dict[str, str]:
    """Those of the files of tests that are new, or others than when they were recorded, with their digests."""
    now = {str(each.relative_to(ROOT)): hashlib.sha256(each.read_bytes()).hexdigest()[:16] for each in files}
    return {name: digest for name, digest in now.items() if record.files.get(name) != digest}


# ------------------------------------------------------------------------------------------------- the plugin


class _Recorder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[int, CodeType] = {}
        self._failed: set[str] = set()
        self._files: dict[str, str | None] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        seen = self._seen = {}
        began = time.perf_counter()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            seconds = time.perf_counter() - began
            if item.nodeid not in self._failed and seconds < _LONGEST_SECONDS:
                names = {name for code in [*seen.values()] if (name := self._name(code))}
                line = json.dumps([item.nodeid, round(seconds, 4), sorted(names)])
                with (self._folder / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
                    file.write(f"{line}\n")

    def _trace(self, frame: FrameType, _event: str, _argument: Any) -> None:
        code = frame.f_code
        self._seen[id(code)] = code  # kept, so that the id is nobody else's

    def _name(self, code: CodeType) -> str:
        """Its function, if it is one of toolbus's."""
        where = self._files.get(code.co_filename, "")
        if where == "":
            path = Path(code.co_filename)
            where = str(path.relative_to(SOURCES)) if path.is_relative_to(SOURCES) else None
            self._files[code.co_filename] = where
        return f"{where}:{code.co_qualname}" if where else ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:  # skipped ones notice nothing
            self._failed.add(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is the same on trio need not be run a second time."""
    on_trio = [item for item in items if "trio" in str(getattr(getattr(item, "callspec", None), "params", ""))]
    if on_trio:
        config.hook.pytest_deselected(items=on_trio)
        gone = {*map(id, on_trio)}
        items[:] = [item for item in items if id(item) not in gone]


def pytest_configure(config: pytest.Config) -> None:
    """Record, where a folder is named."""
    if folder := os.environ.get(PLACE):
        config.pluginmanager.register(_Recorder(Path(folder)))
