"""Python runs this at its start, in processes that tests start, and loads the changed module there as well.

The folder is on `PYTHONPATH` only while tests run with a mutant (see `soak.running`). The variable names the module,
its file, whether it is a package, and the file with its compiled code.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import marshal
import os
import sys
from pathlib import Path
from types import ModuleType
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


if "SOAK_MUTANT" in os.environ:
    sys.meta_path.insert(0, _Changed(*json.loads(os.environ["SOAK_MUTANT"])))
