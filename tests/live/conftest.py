"""The report of `pytest -m live`, which names the services that it found."""

from __future__ import annotations

import os

import pytest
from live_services import reported


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if "live" in config.option.markexpr and "not live" not in config.option.markexpr:
        terminalreporter.write_line(reported(os.environ))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let these tests reach real services; toolbus's plugin blocks them for all other tests."""
    if item.get_closest_marker("live"):
        item.add_marker("allow_network_providers")
