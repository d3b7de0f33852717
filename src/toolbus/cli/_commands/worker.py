"""`toolbus worker`: runs the calls of one pool on this machine, until a signal drains it."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from concurrent.futures import wait
from types import FrameType

import anyio
import anyio.from_thread

from ...core.approval import definition_of
from ...core.plain_text import clean
from ...errors import ConfigurationError
from ...remote.nats import ToolWorker, WorkerStatistics
from ...tools import ToolRegistry
from .._host import ENDING_SIGNALS, end_process, signals_handled
from .._load import load_own_tools
from .._log_lines import warnings_shown
from .._requests import output_on_stderr
from .._terminal.screen import Line, Mark, Screen
from .._terminal.text import duration

_FRAME_SECONDS = 0.25
_NOTE_SECONDS = 60.0


def work(options: argparse.Namespace, screen: Screen) -> int:
    """Serve the pool until a signal drains the worker, or only check it. Raises `ConfigurationError`."""
    quiet = options.log_level is not None
    with (
        output_on_stderr(options, screen),
        contextlib.nullcontext() if quiet else warnings_shown(screen, "toolbus"),
    ):
        tools = ToolRegistry()
        load_own_tools(options.tools, "worker", tools)
        served = [each.name for each in tools.specs.values() if each.pool == options.pool]
        if not served:
            pools = sorted({each.pool for each in tools.specs.values() if each.pool})
            has = f"its tools are of the pools {', '.join(pools)}" if pools else "none of its tools has a pool"
            raise ConfigurationError(f"worker {options.tools}: no tool is of the pool {options.pool!r}: {has}")
        worker = ToolWorker(
            options.url,
            tools,
            pool=options.pool,
            max_concurrency=options.concurrency,
            lease_seconds=options.lease,
            prefix=options.prefix,
            secrets=[_secret(each) for each in options.secret],
        )
        if options.check:
            return _check(options, screen, worker, tools)
        _Serving(options, screen, worker, served).run()
        return 0


def _secret(given: str) -> tuple[str, str]:
    """Return the name and the value of a secret. Raises `ConfigurationError`, which does not show the value."""
    name, _, variable = given.partition("=")
    if not (name and variable):
        raise ConfigurationError("--secret: pass a name and an environment variable, such as mail=MAIL_PASSWORD")
    if not (value := os.environ.get(variable)):
        raise ConfigurationError(f"--secret {name}: the environment variable {variable} is not set")
    return name, value


def _check(options: argparse.Namespace, screen: Screen, worker: ToolWorker, tools: ToolRegistry) -> int:
    anyio.run(worker.check)
    screen.data("The connection, JetStream and the permissions are as a worker needs them.")
    for each in tools.specs.values():
        left = "" if each.pool == options.pool else "  (not served by this worker)"
        screen.data(clean(f"{each.name}  pool {each.pool or '-'}  definition {definition_of(each)}{left}"))
    return 0


class _Serving:
    """A worker that runs in its own thread, and its display and signals in the main thread."""

    def __init__(self, options: argparse.Namespace, screen: Screen, worker: ToolWorker, served: list[str]) -> None:
        self._screen = screen
        self._worker = worker
        self._quiet: bool = options.quiet
        self._name = f"Pool {options.pool}"
        self._serves = f"{options.concurrency} at once: {', '.join(served)}"
        self._signal: int | None = None
        self._began: float | None = None
        self._noted_at = 0.0
        self._noted = WorkerStatistics(running=0, answered=0, broker_unavailable=False)

    def run(self) -> None:
        """Serve until the worker has drained. Raises `ConfigurationError` if the broker cannot be used."""
        with (
            signals_handled(dict.fromkeys(ENDING_SIGNALS, self._on_signal)),
            anyio.from_thread.start_blocking_portal(name="toolbus") as portal,
        ):
            future = portal.start_task_soon(self._worker.run, self._ready)
            drains = False
            # The wait is cut into pieces, because Python runs the handlers of signals only between them.
            while not wait([future], _FRAME_SECONDS).done:
                if self._signal is not None and not drains:
                    drains = True
                    portal.start_task_soon(self._worker.drain)
                    self._note("start", f"takes no more calls; {self._counts()}; a second signal ends it at once")
                self._look()
            future.result()
        self._note("ok", f"drained; {self._worker.statistics().answered:,} answered")

    def _ready(self) -> None:
        self._note("start", self._serves)
        self._began = self._noted_at = time.monotonic()

    def _look(self) -> None:
        """Draw the live line. Add a line when the broker is away or back, and in a log for each minute with news."""
        if self._began is None or self._quiet:
            return
        now, found, live = time.monotonic(), self._worker.statistics(), self._screen.live
        if live:
            tail = duration(now - self._began)
            self._screen.busy(Line(mark="work", name=self._name, detail=self._counts(), tail=tail))
        is_news = found != self._noted and not live and now - self._noted_at >= _NOTE_SECONDS
        if is_news or found.broker_unavailable != self._noted.broker_unavailable:
            self._noted, self._noted_at = found, now
            self._note("work", self._counts())

    def _counts(self) -> str:
        found = self._worker.statistics()
        away = "; the broker does not answer" if found.broker_unavailable else ""
        return f"{found.running:,} running, {found.answered:,} answered{away}"

    def _note(self, mark: Mark, detail: str) -> None:
        if not self._quiet:
            tail = "" if self._began is None else duration(time.monotonic() - self._began)
            self._screen.note(Line(mark=mark, name=self._name, detail=detail, tail=tail))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._signal is None:
            self._signal = number
        else:
            end_process(number)
