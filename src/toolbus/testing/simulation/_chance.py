"""Reproducible random decisions: every actor of a simulated world has its own stream of random numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
Name = TypeVar("Name", bound=str)

_NEARLY = 1e-6  # seconds; more than the rounding of a clock that counts from the epoch
_BLINK = 1e-3


class Chance:
    """Decisions drawn from a seed and the actor's name."""

    __slots__ = ("_random",)

    def __init__(self, seed: int, name: str) -> None:
        self._random = random.Random(f"{seed}/{name}")  # noqa: S311 -- the numbers have to be the same each time

    def says(self, probability: float) -> bool:
        """Return True with this probability."""
        return self._random.random() < probability

    def below(self, limit: float) -> float:
        """Return a number from 0 to `limit`."""
        return self._random.random() * limit

    def whole(self, least: int, limit: int) -> int:
        """Return a whole number, both ends included."""
        return self._random.randint(least, limit)

    def pick(self, choices: Sequence[T]) -> T:
        """Return one of the choices."""
        return self._random.choice(choices)

    def weighted(self, choices: dict[Name, float]) -> Name:
        """Return one of the keys, as often as their weights say."""
        return self._random.choices(list(choices), list(choices.values()))[0]

    def around(self, deadline: float) -> float:
        """Return a delay that is often at a deadline, exactly or nearly, because races happen there."""
        kind = self._random.random()
        if kind < 0.35:
            return 0.0
        if kind < 0.6:
            return self._random.random() * deadline
        near = (deadline, deadline - _NEARLY, deadline + _NEARLY, deadline - _BLINK, deadline + _BLINK, deadline * 2)
        return max(0.0, self._random.choice(near))
