"""Warnings of the library as lines on stderr, for commands that nobody has asked for a log."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator

from ..core.plain_text import clean, one_line
from ._terminal.screen import Screen

__all__ = ["warnings_shown"]


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


class _WarningHandler(logging.Handler):
    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        self._screen.report(f"toolbus: {one_line(clean(record.getMessage()))}")
