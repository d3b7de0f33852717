"""Waits before failed operations are tried again: the same everywhere, since journals of other processes depend on it."""

from __future__ import annotations

import pytest

from toolbus.core.backoff import backoff_seconds

LONGEST = [0.5, 1, 2, 4, 8, 8, 8]


@pytest.mark.parametrize(("attempts", "longest"), [*enumerate(LONGEST, 1), (1_000, 8), (10**9, 8)])
def test_the_longest_wait_doubles_up_to_eight_seconds_and_the_seed_takes_up_to_half_of_it(
    attempts: int, longest: float
):
    assert backoff_seconds(attempts, "") == longest / 2, "the least share, since the sum of nothing is 0"
    waits = [backoff_seconds(attempts, f"request {number}") / longest for number in range(300)]
    assert 0.5 <= min(waits) < 0.51
    assert 0.99 < max(waits) <= 1
    assert sum(waits) / len(waits) == pytest.approx(0.75, abs=0.03)
    assert backoff_seconds(attempts, "request 7") == waits[7] * longest
