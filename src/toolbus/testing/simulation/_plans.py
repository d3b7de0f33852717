"""The plan of each process in a simulated world: it is left, drained, cancelled, killed or paused, then replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ._chance import Chance

Way: TypeAlias = Literal["finished", "drained", "cancelled", "killed", "paused"]
_WAYS: dict[Way, float] = {"killed": 6.0, "paused": 2.5, "cancelled": 2.5, "drained": 1.5}


@dataclass(slots=True, kw_only=True)
class Plan:
    """The way in which one process ends. Seconds are virtual.

    It ends `after_seconds`, or at append number `at_append` to the journal (before or after it), or at event number
    `at_event`. `pause_seconds` is the length of a pause; the next process begins `next_after_seconds` later.
    """

    way: Way
    after_seconds: float = 0.0
    at_append: int = 0
    is_before: bool = False
    at_event: int = 0
    pause_seconds: float = 0.0
    next_after_seconds: float = 0.0


def plans_of(chance: Chance, model_seconds: float, *, journals: bool) -> list[Plan]:
    """Return the plans of a world's processes, one after the other; without a journal one process is enough."""
    if not journals:
        return [_drained(chance, model_seconds) if chance.says(0.15) else Plan(way="finished")]
    deaths = chance.pick([0, 0, 0, 0, 1, 1, 1, 2, 3])
    return [*(_death(chance, model_seconds) for _ in range(deaths)), Plan(way="finished")]


def _drained(chance: Chance, model_seconds: float) -> Plan:
    return Plan(way="drained", after_seconds=chance.around(model_seconds))


def _death(chance: Chance, model_seconds: float) -> Plan:
    way = chance.weighted(_WAYS)
    if way == "drained":
        plan = _drained(chance, model_seconds)
    else:
        plan = Plan(way=way, pause_seconds=chance.pick([1.0, 5.0, 40.0]))
        when = chance.whole(0, 2)
        if when == 0:
            plan.after_seconds = chance.around(model_seconds) + chance.below(2.0)
        elif when == 1:
            plan.at_append, plan.is_before = chance.whole(1, 20), chance.says(0.5)
        else:
            plan.at_event = chance.whole(1, 60)
    plan.next_after_seconds = chance.pick([0.0, 0.0, 1.0, 10.0])
    return plan
