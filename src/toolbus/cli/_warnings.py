"""Log records of the library: its warnings as lines on stderr, or nothing, where nobody has asked for a log."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator

from ..core.plain_text import clean, one_line
from ._terminal.screen import Screen

MCP_SDK = ("mcp", "client")
"""The loggers of the MCP SDK, which logs each line of a server that it cannot read, with a traceback."""


@contextlib.contextmanager
def warnings_shown(screen: Screen, name: str) -> Generator[None]:
    """Inside, report what is logged by the logger `name` from WARNING on, each record as one line, on stderr only."""
    logger = logging.getLogger(name)
    handler = _WarningHandler(screen)
    before = (logger.level, logger.propagate)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


@contextlib.contextmanager
def silenced(*names: str) -> Generator[None]:
    """Inside, drop what the loggers of these names log, and those below them that have no level of their own.

    Without any handler, Python writes warnings to stderr as they are, with what controls a terminal.
    """
    before = [(each, each.level) for each in map(logging.getLogger, names)]
    for logger, _ in before:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in before:
            logger.setLevel(level)


class _WarningHandler(logging.Handler):
    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        self._screen.report(f"toolbus: {one_line(clean(record.getMessage()))}")
