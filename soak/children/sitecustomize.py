"""Python runs this at its start, in processes that tests start.

The folder is on `PYTHONPATH` only while tests run with a mutant (see `soak.running`) or are recorded (see
`soak.recording`). With a mutant, the changed module is loaded here as well: the variable names the module, its file,
whether it is a package, and the file with its compiled code. While tests are recorded, the lines that run here are
written down for the test that has started the process. Only Python 3.12 and later can do that without great cost.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import json
import marshal
import os
import sys
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A loader of the changed module."""

    def __init__(self, name: str, path: str, is_package: bool, compiled: str) -> None:  # noqa: FBT001 -- from JSON
        self._name, self._path, self._is_package, self._compiled = name, path, is_package, compiled

    def find_spec(self, fullname: str, _path: Any, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=self._path, is_package=self._is_package)
        spec.has_location = True
        if self._is_package:
            spec.submodule_search_locations = [str(Path(self._path).parent)]
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:  # noqa: ARG002 -- the protocol's
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(marshal.loads(Path(self._compiled).read_bytes()), module.__dict__)


def _record(monitoring: Any, folder: str, test: str) -> None:
    """Write each line of toolbus that runs, once and at once: processes of tests are often killed."""
    tool, events = 3, monitoring.events
    home = f"{Path(__file__).resolve().parents[2] / 'src'}{os.sep}"
    # The descriptor is not closed, since the process may run lines of toolbus until its very end.
    file = os.open(f"{folder}/{os.getpid()}.child", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{test}\n".encode())

    def started(code: CodeType, _offset: int) -> Any:
        if code.co_filename.startswith(home):
            monitoring.set_local_events(tool, code, events.LINE)
        return monitoring.DISABLE

    def reached(code: CodeType, line: int) -> Any:
        with contextlib.suppress(OSError):
            os.write(file, f"{code.co_filename}\t{code.co_qualname}\t{line}\n".encode())
        return monitoring.DISABLE

    monitoring.use_tool_id(tool, "soak")
    monitoring.register_callback(tool, events.PY_START, started)
    monitoring.register_callback(tool, events.LINE, reached)
    monitoring.set_events(tool, events.PY_START)


_monitoring: Any = getattr(sys, "monitoring", None)
if _monitoring is not None and {"SOAK_RECORD", "PYTEST_CURRENT_TEST"} <= os.environ.keys():
    with contextlib.suppress(OSError):  # Some processes may not write there.
        _record(_monitoring, os.environ["SOAK_RECORD"], os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0])
if "SOAK_MUTANT" in os.environ:
    sys.meta_path.insert(0, _Changed(*json.loads(os.environ["SOAK_MUTANT"])))
