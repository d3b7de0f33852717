"""A test that hangs, in whichever way, is named and ended by a time limit of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
HANGING = {
    "test_it_waits_for_ever[asyncio]",
    "test_it_waits_for_ever[trio]",
    "test_it_spins[asyncio]",
    "test_it_spins[trio]",
    "test_it_spins_in_virtual_time[asyncio]",
    "test_it_spins_in_virtual_time[trio]",
    "test_it_swallows_what_should_end_it",
    "test_its_fixture_cannot_be_undone",
    "test_it_is_busy",
    "test_it_waits_for_a_thread",
    "test_it_keeps_the_interpreters_lock",
}


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


@pytest.mark.timeout(300)
def test_each_test_that_hangs_is_named_and_ended_and_the_others_run(tmp_path: Path):
    done = run(tmp_path, "test_it", "-n", "3", "--dist", "worksteal", "--max-worker-restart", "20")
    named = re.findall(r"^(PASSED|FAILED|ERROR) \S+::(test_[^\s:]+)", done.stdout, re.MULTILINE)
    assert {name for outcome, name in named if outcome != "PASSED"} == HANGING, done.stdout + done.stderr
    assert ("PASSED", "test_it_ends") in named
    assert "test_it_swallows_what_should_end_it has run for 0.4 s\n" in done.stderr, "it is named before it ends"


def test_a_process_without_tests_waits_for_those_that_have_some_and_ends_in_good_order(tmp_path: Path):
    done = run(tmp_path, "wait_for_it", "-n", "2", sample=PATIENT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "ends").read_text(encoding="utf-8") == "its end\n" * 2


def test_the_stack_of_a_test_that_keeps_the_interpreters_lock_names_it(tmp_path: Path):
    done = run(tmp_path, "test_it_keeps_the_interpreters_lock")
    assert done.returncode == 1
    assert "in test_it_keeps_the_interpreters_lock\n" in done.stderr


def test_each_test_of_the_suite_has_a_limit(pytestconfig: pytest.Config):
    assert pytestconfig.pluginmanager.has_plugin("timeout")
    assert pytestconfig.pluginmanager.has_plugin("support.time_limits")
    assert float(pytestconfig.getini("timeout")) == 120
