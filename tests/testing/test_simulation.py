"""The seeded simulation: five hundred worlds hold, each seed is the same each time, and failures tell how to see them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import orjson
import pytest

from toolbus.bus import Mailbox
from toolbus.cli import main
from toolbus.errors import ConfigurationError
from toolbus.events import Event
from toolbus.testing.simulation import SimulationFailed, _parallel, run_seed, simulate
from toolbus.testing.simulation._loop import PausingLoop, SteadyLoop

SEEN = [f"G{number:02}" for number in (*range(1, 14), 16, 17, 19, 20, 24, 26, 28, 32, 34, 35, 36)]
"""The guarantees that a world can show to be broken."""

SEEN_LESS = ["G18", "G21", "G25"]
"""Those for which a process has to be drained or killed, or a store or a broker to fail."""

SIMULATE = [sys.executable, "-m", "toolbus", "simulate"]


def without_coverage(**more: str) -> dict[str, str]:
    """The environment for a process that is not measured: that takes four times as long."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    return {**kept, **more}


@pytest.mark.guarantee("G01", "G02", "G03", "G04", "G05", "G06", "G07", "G08", "G09", "G10", "G11", "G12", "G13")
@pytest.mark.guarantee("G16", "G17", "G18", "G19", "G20", "G21", "G24", "G25", "G26", "G28", "G32", "G34", "G35", "G36")
def test_five_hundred_worlds_hold() -> None:
    done = subprocess.run(
        [*SIMULATE, "--seeds", "500", "--json"], env=without_coverage(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    report = orjson.loads(done.stdout)
    assert report["seeds"] == 500
    assert {"completed", "stopped", "failed", "cancelled", "refused", "released"} <= report["outcomes"].keys()
    assert report["requests"] > 1_000
    assert set(SEEN) <= report["checks"].keys()
    assert min(report["checks"][each] for each in SEEN) > 200
    assert min(report["checks"][each] for each in SEEN_LESS) > 10
    assert {"process killed", "process paused", "resumed", "store: no answer"} <= report["faults"].keys()
    report["faults"].pop("command unknown", None)  # only for a request that is deleted at the same moment
    assert min(report["faults"].values()) > 10


@pytest.mark.repeats("ten worlds, twice")
def test_a_seed_is_the_same_each_time_and_in_each_process() -> None:
    seeds = range(10)
    here = [run_seed(seed).digest for seed in seeds]
    assert [run_seed(seed).digest for seed in seeds] == here
    assert len(set(here)) == len(here)
    program = "from toolbus.testing.simulation import run_seed; print(*(run_seed(s).digest for s in range(10)))"
    # With another hash seed than in this process, sets of texts have another order.
    environment = without_coverage(PYTHONHASHSEED="1" if os.environ.get("PYTHONHASHSEED") != "1" else "2")
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == here


@pytest.mark.repeats("the same worlds again")
def test_many_seeds_are_counted_together_on_one_process_or_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_parallel, "_SHARE", 2)  # so that each process gets more than one
    reported: list[int] = []
    alone = simulate(10, first=100, on_seed=lambda one: reported.append(one.seed))
    assert reported == list(range(100, 110))
    together = simulate(10, first=100, jobs=2)
    assert (together.seeds, together.events, together.checks) == (alone.seeds, alone.events, alone.checks)
    assert (together.outcomes, together.faults, together.requests) == (alone.outcomes, alone.faults, alone.requests)
    assert alone.seeds_per_second > 0


def at_interrupts(_seeds: list[int], _ends: float, *, keep_going: bool) -> list[Any]:
    return [signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, ())]


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals of this kind are a Unix thing")
def test_ctrl_c_ends_the_processes_that_run_seeds_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_parallel, "_run_share", at_interrupts)
    assert list(_parallel.run_in_processes([1], 1, None)) == [signal.SIG_DFL, set()]
    assert at_interrupts([], 0.0, keep_going=False)[1] == set()


def test_processes_that_run_seeds_end_when_the_one_that_started_them_is_gone() -> None:
    program = (
        "import os; from toolbus.testing.simulation import _parallel\n_parallel._SHARE = 1\n"
        "if __name__ == '__main__':\n for _ in _parallel.run_in_processes(range(2), 1, None): os._exit(7)"
    )
    done = subprocess.run(  # it returns when nobody has its pipes any more
        [sys.executable, "-c", program], env=without_coverage(), capture_output=True, timeout=30, check=False
    )
    assert done.returncode == 7


def test_time_that_is_up_begins_no_more_seeds() -> None:
    assert simulate(10_000, seconds=1e-9).seeds == 1


@pytest.mark.parametrize("options", [{"seeds": 0}, {"seeds": 1, "jobs": 0}])
def test_numbers_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="is 0; it must be a whole number of at least 1"):
        simulate(**options)


@pytest.fixture
def leaking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug: sessions are not woken."""

    def lose(self: Mailbox, event: Event, cause: BaseException | None = None) -> None:
        """Nothing comes in."""

    monkeypatch.setattr(Mailbox, "put", lose)


def test_a_world_that_is_stopped_pauses_no_process_any_more() -> None:
    """A paused process cannot end, and while its tasks are cancelled, virtual time stands still."""

    async def after_the_stop() -> float:
        loop = SteadyLoop.running()
        loop.wake_all()
        loop.pause(None, 60)
        await anyio.sleep(1)
        return loop.time()

    assert anyio.run(after_the_stop, backend_options={"loop_factory": PausingLoop}) == 1


@pytest.mark.usefixtures("leaking")
def test_a_failure_tells_its_seed_its_guarantee_and_the_timeline() -> None:
    with pytest.raises(SimulationFailed) as failed:
        simulate(100)
    failure = failed.value
    assert failure.guarantee.startswith("G")
    text = str(failure)
    assert text.startswith(f"seed {failure.seed} broke {failure.guarantee}: ")
    assert f"toolbus simulate --seed {failure.seed}" in text
    assert "RequestStarted" in text


@pytest.mark.usefixtures("leaking")
def test_with_keep_going_all_seeds_run_and_those_that_break_are_listed_by_kind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reported: list[int] = []
    report = simulate(12, keep_going=True, on_seed=lambda one: reported.append(one.seed))
    assert (report.seeds, reported) == (12, [*range(12)])
    broken = sorted(seed for seeds in report.broken.values() for seed in seeds)
    assert 1 <= len(report.broken) < len(broken) < 12
    for kind, seeds in report.broken.items():
        with pytest.raises(SimulationFailed) as failed:
            run_seed(seeds[0])
        assert failed.value.kind == kind
        assert kind.startswith(failed.value.guarantee)
    assert main(["simulate", "--seeds", "12", "--keep-going"]) == 1
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.startswith(f"{12 - len(broken)} of 12 seeds held, ")
    for kind, seeds in report.broken.items():
        assert f"  broken, {len(seeds)}: {kind}: {', '.join(map(str, seeds))}\n" in said.out
    assert main(["simulate", "--seeds", "12", "--keep-going", "--json"]) == 1
    assert orjson.loads(capsys.readouterr().out)["broken"] == report.broken


def test_several_processes_keep_going_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_a_thread(jobs: int, **_options: Any) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(jobs)

    def broken(seeds: list[int], _ends: float, *, keep_going: bool) -> list[Any]:
        return [(seed, "G06", f"G06: call s{seed}_1_0_0 was made twice", "") for seed in seeds]

    monkeypatch.setattr(_parallel, "ProcessPoolExecutor", in_a_thread)
    monkeypatch.setattr(_parallel, "_run_share", broken)
    (failed,) = _parallel.run_in_processes([3], 1, None, keep_going=True)
    assert isinstance(failed, SimulationFailed)
    assert (failed.seed, failed.kind) == (3, "G06: call # was made twice")
    with pytest.raises(SimulationFailed, match="seed 3 broke G06"):
        list(_parallel.run_in_processes([3], 1, None))


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        ("G19: s1_f ended failed, and the journal says stopped", "G19: # ended failed, and the journal says stopped"),
        ("G19: conversation c1 has ['s1_2_u'] twice", "G19: conversation c1 has [#] twice"),
        (
            "G17: the handler of s1_2a_0_0 runs 2.40659 s after it was to stop",
            "G17: the handler of # runs N s after it was to stop",
        ),
        ("G12: s1_1_0_0 times out 1e-05 s early", "G12: # times out N s early"),
    ],
)
def test_problems_that_differ_in_ids_and_numbers_alone_are_of_one_kind(problem: str, kind: str) -> None:
    assert SimulationFailed(1, problem[:3], problem, "").kind == kind


@pytest.mark.usefixtures("leaking")
def test_the_command_tells_a_failure_and_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--seeds", "100"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "again: toolbus simulate --seed" in said.err
    seed = said.err.split()[2]
    assert main(["simulate", "--seed", seed, "--json"]) == 1
    assert orjson.loads(capsys.readouterr().out)["seed"] == int(seed)


def test_the_command_tells_what_was_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--seeds", "5"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("5 seeds held, ")
    assert "requests ended: " in said
    assert "checks: G01 " in said
    assert main(["simulate", "--seed", "3"]) == 0
