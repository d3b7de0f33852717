"""What `toolbus simulate` shows while it runs: a line that moves on a terminal, and nothing elsewhere."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from desk import Command, Terminal

from toolbus.cli._arguments import parse
from toolbus.cli._commands import simulate as _simulate
from toolbus.cli._terminal.live_screen import LiveScreen
from toolbus.cli._terminal.screen import Screen
from toolbus.testing.simulation import SeedReport, SimulationFailed, SimulationReport, _parallel


def seed(number: int) -> SeedReport:
    return SeedReport(seed=number, digest="", events=0, requests=0, virtual_seconds=0.0)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is drawn at each seed, and a second goes by from each to the next."""
    moments = iter(range(1_000_000))
    monkeypatch.setattr("toolbus.cli._commands.simulate.time.monotonic", lambda: float(next(moments)))


@pytest.mark.usefixtures("always")
def test_a_terminal_shows_how_many_seeds_are_done_how_fast_and_how_many_are_broken(terminal: Terminal) -> None:
    progress = _simulate._Progress(LiveScreen(io.StringIO(), terminal), 2_000)
    progress.count(seed(1))
    progress.count(SimulationFailed(2, "G19", "G19: it broke", ""))
    first, second = terminal.getvalue().split("\r")
    assert "1 of 2,000 seeds" in first
    assert "1 a second" in first
    assert "broken" not in first
    assert "2 of 2,000 seeds" in second
    assert "1 broken" in second


@pytest.mark.usefixtures("always")
def test_the_line_is_gone_when_the_seeds_are_done(terminal: Terminal) -> None:
    out = io.StringIO()
    assert _simulate.run_simulation(parse(["simulate", "--seeds", "3"]), LiveScreen(out, terminal)) == 0
    assert "3 of 3 seeds" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[2K")
    assert out.getvalue().startswith("3 seeds held")


@pytest.mark.usefixtures("always")
def test_the_line_is_gone_after_ctrl_c(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def simulate(*_: Any, on_seed: Callable[[SeedReport], None], **_more: Any) -> None:
        on_seed(seed(1))
        assert "1 of 1,000 seeds" in terminal.getvalue()
        raise KeyboardInterrupt

    monkeypatch.setattr(_simulate, "simulate", simulate)
    with pytest.raises(KeyboardInterrupt):
        _simulate.run_simulation(parse(["simulate"]), LiveScreen(io.StringIO(), terminal))
    assert terminal.getvalue().endswith("\r\x1b[2K")


@pytest.mark.usefixtures("always")
def test_seeds_that_run_for_so_many_seconds_are_counted_without_a_total(terminal: Terminal) -> None:
    options = parse(["simulate", "--seconds", "1"])
    assert _simulate.run_simulation(options, LiveScreen(io.StringIO(), terminal)) == 0
    assert "1 seeds" in terminal.getvalue()
    assert " of " not in terminal.getvalue()


def test_a_process_with_several_seeds_runs_no_further_one_when_the_seconds_are_over() -> None:
    [found] = _parallel._run_share([5, 6, 7], 0.0, keep_going=True)
    assert isinstance(found, SeedReport)
    assert found.seed == 5


def test_the_most_frequent_endings_and_faults_come_first_and_checks_in_the_order_of_their_ids(
    toolbus: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = SimulationReport(
        seeds=1,
        outcomes=Counter(failed=1, completed=2),
        faults=Counter({"a tool fails": 1, "the store is away": 2}),
        checks=Counter(G02=3, G01=1),
    )

    def simulate(_seeds: int, **_options: Any) -> SimulationReport:
        return report

    monkeypatch.setattr(_simulate, "simulate", simulate)
    lines = toolbus("simulate").out.splitlines()
    assert lines[1:] == [
        "  requests ended: completed 2, failed 1",
        "  what went wrong: the store is away 2, a tool fails 1",
        "  checks: G01 1, G02 3",
    ]


def test_a_file_or_a_pipe_has_no_such_line(toolbus: Command) -> None:
    ended = toolbus("simulate", "--seeds", "3")
    assert (ended.status, ended.err) == (0, "")
    plain = io.StringIO()
    _simulate._Progress(Screen(io.StringIO(), plain), 3).count(seed(1))
    assert plain.getvalue() == ""
