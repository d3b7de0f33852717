"""Many requests on many processes, in virtual time: the simulation of `soak.scale`, in small."""

from __future__ import annotations

import pytest
from soak.scale import Plan, simulate


@pytest.mark.guarantee("G19", "G32")
def test_a_fleet_whose_processes_are_killed_and_replaced_loses_nothing_and_asks_its_store_for_little() -> None:
    plan = Plan(requests=300, processes=6, begin_seconds=60, decide_seconds=120, kills=6)
    report = simulate(plan)
    assert report.problems == []
    figures = report.figures
    assert figures["processes killed"] >= 8
    assert figures["requests whose process was killed"] > 20
    # A lease lasts 30 s, and processes look for requests each second.
    assert figures["  seconds until another has it, longest"] < 33
    assert figures["seconds from a decision to its call, 99 %"] < 33
    # All processes look for the same requests; each is to be taken by one, without the others asking for it too.
    assert figures["takes of leases that were refused"] < 0.15 * report.calls["take"]


def test_the_simulation_notices_a_request_that_nobody_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("soak.scale._PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("toolbus.durability._resume._WATCH_SECONDS", 10_000.0)
    report = simulate(Plan(requests=20, processes=2, begin_seconds=10, decide_seconds=10, kills=2))
    assert report.problems
