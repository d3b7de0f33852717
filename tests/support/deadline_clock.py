"""The clock of the stores' deadlines, which moves when a test says so: a busy machine makes no call late."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic

import pytest

__all__ = ["DeadlineClock"]

_MODULES = ("_thread", "sql._database", "sqlite", "postgres", "mongo._connection")


class DeadlineClock:
    """A replacement of `time.monotonic` in the stores of a test. It stands still until the test sets `now`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self._began: float | None = None
        self._speed = 1.0
        for each in _MODULES:
            monkeypatch.setattr(f"toolbus.stores.{each}.monotonic", self)

    def __call__(self) -> float:
        return self.now if self._began is None else self.now + (monotonic() - self._began) * self._speed

    @contextmanager
    def running(self, speed: float = 1.0) -> Generator[None]:
        """Let real time pass in the block, `speed` times as fast: for deadlines that end a wait for another program."""
        self._began, self._speed = monotonic(), speed
        try:
            yield
        finally:
            self.now, self._began = self(), None
