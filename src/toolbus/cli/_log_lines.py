"""Log records on the screen: as lines of a log, as warnings, or not at all where nobody has asked for a log."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator

from .._logs import message_of
from ..core.plain_text import clean, one_line
from ._terminal.screen import Screen

MCP_SDK = ("mcp", "client")
"""The loggers of the MCP SDK, which logs each line of a server that it cannot read, with a traceback."""


@contextlib.contextmanager
def log_shown(screen: Screen, level: str | None) -> Generator[None]:
    """Inside, log to stderr. Without a level, toolbus's own records are left out: the screen shows the same facts."""
    handler = ScreenHandler(screen)
    handler.setFormatter(_LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    with (
        _changed("", logging.WARNING if level is None else level.upper(), handler),
        silenced("toolbus", *MCP_SDK) if level is None else contextlib.nullcontext(),
    ):
        yield


@contextlib.contextmanager
def warnings_shown(screen: Screen, name: str) -> Generator[None]:
    """Inside, report what is logged by the logger `name` from WARNING on, each record as one line, on stderr only."""
    handler = ScreenHandler(screen)
    handler.setFormatter(_WarningFormatter())
    with _changed(name, logging.WARNING, handler, propagates=False):
        yield


@contextlib.contextmanager
def silenced(*names: str) -> Generator[None]:
    """Inside, drop what the loggers of these names log, and those below them that have no level of their own.

    Without any handler, Python writes warnings to stderr as they are, with what controls a terminal.
    """
    with contextlib.ExitStack() as stack:
        for each in names:
            stack.enter_context(_changed(each, logging.CRITICAL + 1))
        yield


@contextlib.contextmanager
def _changed(
    name: str, level: int | str, handler: logging.Handler | None = None, *, propagates: bool = True
) -> Generator[None]:
    """Inside, give a logger another level and one more handler."""
    logger = logging.getLogger(name)
    level_before, propagated = logger.level, logger.propagate
    logger.setLevel(level)
    logger.propagate = propagated and propagates
    if handler is not None:
        logger.addHandler(handler)
    try:
        yield
    finally:
        if handler is not None:
            logger.removeHandler(handler)
        logger.setLevel(level_before)
        logger.propagate = propagated


class ScreenHandler(logging.Handler):
    """A log handler that writes records to stderr, between the other lines."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception:
            # For example, the arguments do not fit the message.
            text = f"{record.levelname} {record.name}: {message_of(record)}"
        self._screen.report(clean(text))


class _LineFormatter(logging.Formatter):
    """A formatter of records, of which no second line begins like a record: a part of a tool's error could."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\n", "\n  ")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- named by `logging`
        record.message = one_line(record.message)
        return super().formatMessage(record)


class _WarningFormatter(logging.Formatter):
    """A formatter of records as the command's own lines, without tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        return f"toolbus: {one_line(record.getMessage())}"
