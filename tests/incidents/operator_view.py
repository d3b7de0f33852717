"""The view of an operator on a runtime: the lines of its log, its metrics and its health."""

from __future__ import annotations

import logging
import re
import threading
from types import TracebackType
from typing import Any, Self

from incidents.incident_table import INCIDENTS, READY, Incident
from support.collected import Collected
from toolbus import Runtime
from toolbus.runtime import RuntimeHealth
from toolbus.telemetry import OpenTelemetry, _names

# Metrics that count work, of which only what failed is trouble.
OF_WORK = {_names.REQUEST_SECONDS, _names.MODEL_SECONDS, _names.TOOL_SECONDS, _names.TOOL_CALLS}
LEFT_OUT = {
    _names.TOKEN_USAGE,
    _names.MODEL_COST,
    _names.REQUESTS_RUNNING,
    _names.REQUESTS_RESUMED,
    _names.LEASES,
    _names.JOURNAL_APPENDS,
    _names.JOURNAL_SECONDS,
}


class Operator(logging.Handler):
    """Sees what the log and the metrics have in this block, and compares it with the row of one incident."""

    def __init__(self, incident: str) -> None:
        super().__init__(logging.WARNING)
        (self.incident,) = [each for each in INCIDENTS if each.name == incident]
        self.collected = Collected()
        self.lines: list[str] = []
        self.written = threading.Event()
        self._seen: set[str] = set()

    @property
    def telemetry(self) -> OpenTelemetry:
        return self.collected.telemetry

    def __enter__(self) -> Self:
        logging.getLogger("toolbus").addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        logging.getLogger("toolbus").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        assert record.levelno == logging.WARNING, f"{record.levelname}: {record.getMessage()}"
        self.lines.append(record.getMessage())
        self.written.set()

    @property
    def troubles(self) -> set[str]:
        """The metrics that show trouble now, or did so when they were looked at, each with its type of error."""
        found = self._seen
        for name, points in self.collected.metrics.items():
            for attributes, value in points:
                kind: Any = attributes.get(_names.ERROR_TYPE, "")
                if value and name not in LEFT_OUT and (kind or name not in OF_WORK):
                    found.add(f"{name}{{{kind}}}" if kind else name)
        return found

    def assert_seen(self, runtime: Runtime[Any], health: RuntimeHealth | None = None) -> None:
        """Compare all with the row: no line, metric or reason is missing, and there is no other one.

        `health` is that of a moment before, if it has changed since.
        """
        row: Incident = self.incident
        patterns = [re.escape(each).replace("…", ".*") for each in row.lines]
        matched = [
            next((at for at, each in enumerate(patterns) if re.fullmatch(each, line)), line) for line in self.lines
        ]
        assert list(dict.fromkeys(matched)) == list(range(len(patterns))), self.lines
        assert self.troubles == set(row.metrics), self.troubles
        health = health or runtime.health()
        assert (health.reasons or (READY,)) == row.health
