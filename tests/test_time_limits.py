"""A test that hangs, in whichever way, is named and ended by a time limit of its own."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hanging_tests import run_one
from support import forked

ROOT = Path(__file__).parents[1]
SAMPLE = """
import collections
import itertools
import threading

import anyio
import anyio.lowlevel
import pytest
import trio

import support.time_limits
import toolbus.testing.fixtures

support.time_limits._MIN_GRACE_SECONDS = 0.5
pytestmark = pytest.mark.timeout(0.4)


async def test_it_waits_for_ever():
    await anyio.sleep_forever()


async def test_it_spins():
    while True:
        await anyio.lowlevel.checkpoint()


async def test_it_spins_in_virtual_time(toolbus_clock):
    while True:
        await anyio.sleep(60)


class TestAsyncio:
    @pytest.fixture
    def anyio_backend(self):
        return "asyncio"

    @pytest.fixture
    async def stubborn(self):
        yield
        await anyio.sleep_forever()

    async def test_it_swallows_what_should_end_it(self):
        while True:
            try:
                threading.Event().wait()
            except BaseException:
                pass

    async def test_its_fixture_cannot_be_undone(self, stubborn):
        await anyio.sleep_forever()


def test_it_is_busy():
    while True:
        pass


def test_it_waits_for_a_thread():
    thread = threading.Thread(target=threading.Event().wait)
    thread.start()
    thread.join()


def test_it_keeps_the_interpreters_lock():
    collections.deque(itertools.repeat(None), maxlen=0)


@pytest.mark.timeout(60)
def test_it_ends():
    pass
"""
KEEPS_THE_LOCK = "test_it_keeps_the_interpreters_lock"
HANGING = [
    "test_it_waits_for_ever[asyncio]",
    "test_it_waits_for_ever[trio]",
    "test_it_spins[asyncio]",
    "test_it_spins[trio]",
    "test_it_spins_in_virtual_time[asyncio]",
    "test_it_spins_in_virtual_time[trio]",
    "TestAsyncio::test_it_swallows_what_should_end_it",
    "TestAsyncio::test_its_fixture_cannot_be_undone",
    "test_it_is_busy",
    "test_it_waits_for_a_thread",
    KEEPS_THE_LOCK,
]


PATIENT = """
import atexit
import pathlib
import threading

import pytest

import support.time_limits

support.time_limits._LAST_SECONDS = 0.1
atexit.register(lambda: print(end="its end\\n", file=open(pathlib.Path(__file__).with_name("ends"), "a")))


@pytest.mark.parametrize("seconds", [0, 2])
def test_the_others_wait_for_it(seconds):
    threading.Event().wait(seconds)
"""


def run(folder: Path, chosen: str, *options: str, sample: str = SAMPLE) -> subprocess.CompletedProcess[str]:
    """Run tests of a sample with the suite's configuration. One that does not end by itself fails the test."""
    (folder / "test_sample.py").write_text(sample, encoding="utf-8")
    ours = ["-c", str(ROOT / "pyproject.toml"), "-p", "support.time_limits", "-p", "no:cacheprovider", "-k", chosen]
    ours += ["-p", "no:hypothesispytest"]  # which takes a third of each process's time
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE", "PYTEST"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "--tb=short", *ours, *options, str(folder / "test_sample.py")],
        cwd=folder,
        env={**variables, "PYTHONPATH": str(ROOT / "tests"), "COLUMNS": "500"},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )


def test_each_test_that_hangs_is_named_and_ended(tmp_path: Path):
    (tmp_path / "test_sample.py").write_text(SAMPLE, encoding="utf-8")
    with contextlib.ExitStack() as running:
        processes = {
            name: running.enter_context(forked.Process(run_one, f"{tmp_path / 'test_sample.py'}::{name}"))
            for name in [*HANGING, "test_it_ends"]
        }
        printed = {name: process.stdout.read().decode() for name, process in processes.items()}
        codes = {name: process.wait() for name, process in processes.items()}
    assert codes == {**dict.fromkeys(HANGING, 1), "test_it_ends": 0}, printed
    named = {name for name in HANGING if f"::{name} has run for 0.4 s\n" in printed[name]}
    # While a test keeps the lock, no Python code can name it. The stack that C code prints at the end does.
    assert {*HANGING} - named == {KEEPS_THE_LOCK}, printed
    assert f"in {KEEPS_THE_LOCK}\n" in printed[KEEPS_THE_LOCK]


@pytest.mark.timeout(300)
def test_a_test_whose_process_is_ended_is_named_and_the_others_run(tmp_path: Path):
    chosen = "swallows_what or keeps_the_interpreters or test_it_ends"
    done = run(tmp_path, chosen, "-n", "1", "--max-worker-restart", "20")
    named = re.findall(r"^(PASSED|FAILED|ERROR) \S+::(test_[^\s:]+)", done.stdout, re.MULTILINE)
    failed = {"test_it_swallows_what_should_end_it", KEEPS_THE_LOCK}
    assert {name for outcome, name in named if outcome != "PASSED"} == failed, done.stdout + done.stderr
    assert ("PASSED", "test_it_ends") in named
    assert "test_it_swallows_what_should_end_it has run for 0.4 s\n" in done.stderr, "it is named before it ends"


def test_a_process_without_tests_waits_for_those_that_have_some_and_ends_in_good_order(tmp_path: Path):
    done = run(tmp_path, "wait_for_it", "-n", "2", sample=PATIENT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "ends").read_text(encoding="utf-8") == "its end\n" * 2


def test_each_test_of_the_suite_has_a_limit(pytestconfig: pytest.Config):
    assert pytestconfig.pluginmanager.has_plugin("timeout")
    assert pytestconfig.pluginmanager.has_plugin("support.time_limits")
    assert float(pytestconfig.getini("timeout")) == 120
