"""The program of `test_pytest_plugin.py`: pytest in a folder, in a process that is forked after the imports."""

from __future__ import annotations

import importlib
import os
import sys

import pytest

for name in ("trio", "toolbus.testing.fixtures", "toolbus.testing.pytest_plugin"):
    importlib.import_module(name)


def run_pytest(folder: str, options: list[str]) -> None:
    """Run the tests of a folder, and print all that pytest and the process print to standard output."""
    os.dup2(1, 2)
    os.chdir(folder)
    sys.path.insert(0, folder)
    for each in [each for each in os.environ if each.startswith("PYTEST")]:
        del os.environ[each]
    # The plugin of toolbus is imported already.
    sys.exit(pytest.main([*options, "-W", "ignore::pytest.PytestAssertRewriteWarning"]))
