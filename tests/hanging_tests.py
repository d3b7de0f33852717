"""The program of `test_time_limits.py`: pytest on one test, in a process that is forked after the imports."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

for name in ("trio", "support.time_limits", "toolbus.testing.fixtures", "toolbus.testing.pytest_plugin"):
    importlib.import_module(name)

OPTIONS = [
    *("-c", str(Path(__file__).parents[1] / "pyproject.toml"), "--rootdir", "."),
    *("-p", "support.time_limits", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # The plugin of toolbus is imported already.
]


def run_one(test: str) -> None:
    """Run one test, and print all that pytest and the process print to standard output."""
    os.dup2(1, 2)
    os.chdir(Path(test.partition("::")[0]).parent)
    for each in [each for each in os.environ if each.startswith("PYTEST")]:
        del os.environ[each]
    sys.exit(pytest.main([*OPTIONS, test]))
