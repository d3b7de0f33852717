"""Stands between a coroutine and its event loop, and does something at one of its suspensions, counted from 0."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Moment: TypeAlias = Literal["suspended", "resumed"]
"""Just before the coroutine waits, or when it goes on and has not been told of it yet."""


def _nothing() -> None:
    """Nothing."""


@dataclass
class Place:
    """The suspension number `at` of all that are stepped by it, in their order, and what is to be done there."""

    at: int
    moment: Moment
    act: Callable[[], object] = field(default=_nothing)
    count: int = 0
    reached: bool = False

    def pass_by(self, moment: Moment) -> None:
        if moment != self.moment:
            return
        self.count += 1
        if self.count == self.at + 1:
            self.reached = True
            self.act()


@types.coroutine
def stepped(coroutine: Coroutine[Any, Any, Any], place: Place) -> Generator[Any, Any, Any]:
    """Await `coroutine` in this task. Works on both backends, as `toolbus.execution.in_context` does."""
    try:
        yielded = coroutine.send(None)
        while True:
            place.pass_by("suspended")
            try:
                sent = yield yielded
            except BaseException as exc:  # thrown in by the loop: the coroutine's
                place.pass_by("resumed")
                yielded = coroutine.throw(exc)
            else:
                place.pass_by("resumed")
                yielded = coroutine.send(sent)
    except StopIteration as stop:
        return stop.value
