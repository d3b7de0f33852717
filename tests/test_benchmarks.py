"""The benchmarks run, each with next to nothing to do, so that they do not rot; their figures are not looked at."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
import pytest
from benchmarks import __main__ as bench
from benchmarks import against_peers, report
from benchmarks.plumbing import Effort, Goal, Row, alternate, compared

pytestmark = pytest.mark.usefixtures("nothing_else_to_collect")

TINY = Effort(repeats=1, share=0.001)
ROWS = {
    "cpu": [
        Row("session, 100 at once", "400 us", "careful loop, 200 us", 2.5, 2.0, 3.0, goal=Goal(2.0)),
        Row("Runtime.run, 100 at once", "500 us", "careful loop, 200 us", 3.0, 2.0, 3.0),
    ],
    "peers": [
        Row("slow 1.0", "400 us", "12 ms", 30.0, 29.0, 31.0, goal=Goal(20.0, at_least=True)),
        Row("gone", "-", "-", goal=Goal(5.0, at_least=True), remark="did not install: no network | none"),
    ],
    "memory": [Row("session", "9 KiB", "a task, 1 KiB", 9.0, 9.0, 9.0, unit="KiB", goal=Goal(12.0))],
}


@pytest.mark.repeats("requests of the suite, again and again")
@pytest.mark.parametrize("name", [name for name in bench.FIGURES if name != "peers"])
def test_a_figure_gives_rows_with_a_value_within_its_spread(name: str):
    rows = bench.FIGURES[name](TINY)
    assert rows
    for row in rows:
        assert row.value is not None
        assert 0 < row.lowest <= row.value <= row.highest < math.inf
        assert row.ours[0].isdigit()
    assert bench.rows_from([asdict(row) for row in rows]) == rows


def test_a_peers_process_takes_turns_with_toolbus():
    row = anyio.run(against_peers.measured, "raw", sys.executable, TINY)
    assert row.value is not None
    assert row.value > 0


def test_a_peer_that_does_not_install_or_breaks_is_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch):
    def python_of(name: str) -> str:
        if name == "bubus":
            return sys.executable
        raise against_peers.PeerFailed("did not install: no network")

    monkeypatch.setattr(against_peers, "python_of", python_of)
    rows = against_peers.peers(TINY)
    assert [row.name for row in rows] == list(against_peers.GOALS)
    assert {row.remark for row in rows[:-1]} == {"did not install: no network"}
    assert "bubus" in rows[-1].remark
    assert all(row.value is None for row in rows)


@pytest.mark.parametrize("name", list(against_peers.GOALS))
def test_a_peer_is_locked_in_exact_versions(name: str):
    wanted = (against_peers.PEERS / f"{name}.in").read_text(encoding="utf-8").split()
    locked = (against_peers.PEERS / f"{name}.txt").read_text(encoding="utf-8").splitlines()[1:]
    assert {*wanted} <= {*locked}
    assert all("==" in line for line in locked)


async def test_sides_take_turns_and_every_other_time_backwards():
    order: list[str] = []

    def side(name: str) -> Any:
        async def one() -> float:
            order.append(name)
            return len(order)

        return one

    assert await alternate(3, side("a"), side("b")) == [[1, 4, 5], [2, 3, 6]]
    assert "".join(order) == "abbaab"


def test_a_ratio_is_the_median_of_neighbouring_runs():
    figures = compared([2.0, 30.0, 4.0], [1.0, 10.0, 1.0])
    assert (figures.ours, figures.theirs) == (4.0, 1.0)
    assert (figures.ratio, figures.lowest, figures.highest) == (3.0, 2.0, 4.0)


def test_the_table_has_a_line_for_each_row_and_says_what_is_short_of_its_goal():
    lines = report.table(ROWS).splitlines()
    assert {line.count("|") for line in lines} == {8}
    assert lines[2] == (
        "| session, 100 at once | 400 us | careful loop, 200 us | 2.5 times (2 - 3) | at most 2 times | **no** | |"
    )
    assert "| at least 20 times | yes |" in lines[4]
    about: dict[str, str] = dict.fromkeys(["date", "python", "packages", "machine", "load"], "x")
    text = report.section(ROWS, about)
    assert "Short of their goals: session, 100 at once. Not measured: gone." in text


def test_only_what_is_between_the_marks_of_the_page_is_written_anew(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", encoding="utf-8")
    report.write_page("new", page)
    report.write_page("newer", page)
    assert page.read_text(encoding="utf-8") == f"before\n{report.BEGIN}\n\nnewer\n\n{report.END}\nafter\n"
    page.write_text("no marks", encoding="utf-8")
    with pytest.raises(ValueError, match="bench:begin"):
        report.write_page("new", page)


def test_the_page_holds_the_marks_and_a_table_of_this_shape():
    text = report.PAGE.read_text(encoding="utf-8")
    table = text.partition(report.BEGIN)[2].partition(report.END)[0]
    assert report.table({}).splitlines()[0] in table
    assert report.PLOT.exists()


@pytest.mark.repeats("it draws, with matplotlib")
def test_the_plot_shows_all_runtimes_and_all_goals(tmp_path: Path):
    assert [name for name, _ in report.multiples(ROWS)] == [
        "the careful loop",
        "toolbus: session",
        "toolbus: Runtime.run",
        "slow 1.0",
    ]
    assert report.multiples(ROWS)[-1][1] == 75.0
    assert report.shares(ROWS) == [("session, 100 at once", 1.25), ("CPU against slow 1.0", 20 / 30), ("session", 0.75)]
    assert report.goals(ROWS) == {"toolbus: session": 2.0}
    report.draw(ROWS, tmp_path / "plot.svg")
    drawn = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert "slow 1.0" in drawn
    assert len(drawn) < 40_000


def test_one_figure_is_printed_alone_and_leaves_the_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def in_a_process(name: str, *, quick: bool) -> list[Row]:
        assert quick
        return ROWS[name]

    def write_page(_text: str) -> None:
        raise AssertionError

    monkeypatch.setattr(bench, "in_a_process", in_a_process)
    monkeypatch.setattr(report, "write_page", write_page)
    assert bench.main(["--quick", "--only", "cpu", "peers", "--without-peers"]) == 0
    printed = capsys.readouterr().out
    assert "| session, 100 at once |" in printed
    assert "| other runtimes | - | - | - | | | left out |" in printed
