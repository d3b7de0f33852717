"""The wall clock in tests of stores, which moves when a test says so."""

from __future__ import annotations


class Clock:
    """Seconds since the epoch, which pass when they are let pass."""

    def __init__(self) -> None:
        self.now = 1_750_000_000.0

    def __call__(self) -> float:
        return self.now

    async def let_pass(self, seconds: float) -> None:
        self.now += seconds
