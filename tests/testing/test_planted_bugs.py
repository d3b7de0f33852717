"""The simulation bites: each bug that is planted is found, soon, by a guarantee that it breaks, and again by its seed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testing.planted_bugs import PLANTED
from toolbus.testing.simulation import SimulationFailed, run_seed

MAX_SEEDS = 10_000


def found(first_seed: int) -> SimulationFailed | None:
    """The first failure from this seed on, and then from seed 0 on."""
    for seed in (*range(first_seed, MAX_SEEDS), *range(first_seed)):
        try:
            run_seed(seed)
        except SimulationFailed as exc:
            return exc
    return None


@pytest.mark.repeats("up to thousands of worlds")
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    planted = PLANTED[name]
    planted.plant(monkeypatch)
    failure = found(planted.first_seed)
    assert failure is not None, f"{name} was not found in {MAX_SEEDS} seeds"
    record_property("seed", failure.seed)
    assert failure.guarantee in planted.breaks, failure.problem
    with pytest.raises(SimulationFailed) as again:
        run_seed(failure.seed)
    assert str(again.value) == str(failure)
    monkeypatch.undo()
    run_seed(failure.seed)  # it was the bug, and not the seed


def test_there_are_bugs_enough() -> None:
    assert len(PLANTED) >= 12
