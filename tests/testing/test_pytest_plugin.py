"""The pytest plugin, as the suites of others have it: each run here is a pytest of its own.

Most runs are forked, because a new interpreter takes most of a second to import pytest and toolbus.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import forked
from testing.plugin_runs import run_pytest

WITHOUT_TRIO = "import sys; sys.modules['trio'] = None; sys.exit(__import__('pytest').main(sys.argv[1:]))"


@dataclass
class Run:
    """A run of pytest: what it printed, and how each test ended, by its name."""

    code: int
    reported: str

    @property
    def outcomes(self) -> dict[str, str]:
        """By test; a test whose set-up and tear-down failed as well counts by the last line."""
        lines = re.findall(r"^(PASSED|FAILED|ERROR) (?:\w+/)?test_\w+\.py::(\S+)", self.reported, re.MULTILINE)
        return {name: outcome.lower() for outcome, name in lines}


def run(folder: Path, source: str, *options: str, code: str = "", ini: str = "") -> Run:
    """Run pytest on a test file with this source; with `code`, in a new interpreter that runs this code."""
    (folder / "test_it.py").write_text(source, encoding="utf-8")
    (folder / "pytest.ini").write_text(f"[pytest]\n{ini}\n", encoding="utf-8")
    ours = ["-rA", "-p", "no:cacheprovider", "-W", "error", "--strict-markers", "--strict-config", *options]
    ours += ["-p", "no:hypothesispytest"]  # nobody asks for it here, and it takes a third of a second
    if not code:
        with forked.Process(run_pytest, str(folder), ours) as process:
            reported = process.stdout.read().decode()
            return Run(process.wait() or 0, reported)
    done = subprocess.run(
        [sys.executable, "-c", code, *ours],
        cwd=folder,
        # Not measured: that takes twice as long.
        env={name: os.environ[name] for name in os.environ if "COVERAGE" not in name},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return Run(done.returncode, done.stdout + done.stderr)


def test_the_plugin_is_there_by_itself(pytestconfig: pytest.Config):
    assert pytestconfig.pluginmanager.has_plugin("toolbus"), "install the package anew, with its entry points"


def test_loading_the_plugin_loads_next_to_nothing():
    code = (
        "import pytest, sys, json; before = {*sys.modules}; import toolbus.testing.pytest_plugin; "
        "print(json.dumps(sorted({*sys.modules} - before)))"
    )
    reported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(reported) == [
        "toolbus",
        "toolbus._lazy",
        "toolbus.network",
        "toolbus.testing",
        "toolbus.testing.network",
        "toolbus.testing.pytest_plugin",
    ]


# ------------------------------------------------------------------------------------------------- the clock

CLOCK = """
import anyio, pytest

entered = []

@pytest.fixture(autouse=True)
async def early():
    entered.append(anyio.current_time())
    yield
    await anyio.sleep(3600)

@pytest.fixture
async def slow():
    await anyio.sleep(100)
    yield "slow"

async def test_time_is_virtual(toolbus_clock):
    assert toolbus_clock.now == entered[-1] == 0
    await anyio.sleep(3600)
    await toolbus_clock.advance(30)
    await toolbus_clock.settle()
    assert toolbus_clock.now == 3630

async def test_of_its_fixtures_too(slow, toolbus_clock):
    assert (slow, toolbus_clock.now) == ("slow", 100)

@pytest.mark.usefixtures("toolbus_clock")
class TestOfAClass:
    async def test_one(self):
        assert anyio.current_time() == 0

def test_without_a_loop(toolbus_clock):
    pass

@pytest.mark.anyio
async def test_after_it_time_is_real(request):
    assert anyio.current_time() > 1
"""


def test_the_clock_makes_the_time_of_a_test_and_of_its_fixtures_virtual(tmp_path: Path):
    done = run(tmp_path, CLOCK.replace("await anyio.sleep(3600)\n\n@pytest", "await anyio.sleep(0)\n\n@pytest"))
    assert done.code == 0, done.reported
    assert len(done.outcomes) == 10  # each on asyncio and on trio; no mark, no mode


OF_ANOTHER_PLUGIN = """
import pytest

@pytest.mark.{mark}
async def test_waits(toolbus_clock):
    pass
"""


@pytest.mark.parametrize("mark", ["asyncio", "trio"])
def test_the_clock_refuses_a_test_that_another_plugin_runs_in_real_time(mark: str, tmp_path: Path):
    ini = f"markers =\n    {mark}: pytest-asyncio and pytest-trio have such a mark, and put it on tests by themselves"
    done = run(tmp_path, OF_ANOTHER_PLUGIN.format(mark=mark), ini=ini)
    assert set(done.outcomes.values()) == {"error"}
    assert f"pytest-{mark} runs this test, in real time; toolbus_clock needs anyio's plugin" in done.reported


def test_the_clock_runs_on_the_loops_that_the_suite_has_chosen(tmp_path: Path):
    backends = (
        "asyncio",
        ("trio", {"strict_exception_groups": True}),
        ("asyncio", {"debug": True, "use_uvloop": False}),
    )
    for number, backend in enumerate(backends):
        folder = tmp_path / f"suite_{number}"
        folder.mkdir()
        (folder / "conftest.py").write_text(
            f"import pytest\n\n@pytest.fixture(scope='session')\ndef anyio_backend():\n    return {backend!r}\n",
            "utf-8",
        )
        name = backend if isinstance(backend, str) else backend[0]
        (folder / f"test_{number}.py").write_text(
            "import sniffio_free as s\n\n"
            f"async def test_now_{number}(toolbus_clock, anyio_backend_name):\n"
            "    await toolbus_clock.advance(5)\n"
            "    assert toolbus_clock.now == 5\n"
            f"    assert s.loop() == anyio_backend_name == {name!r}\n",
            "utf-8",
        )
    (tmp_path / "sniffio_free.py").write_text(
        "import asyncio\n\ndef loop():\n    try:\n        asyncio.get_running_loop()\n        return 'asyncio'\n"
        "    except RuntimeError:\n        return 'trio'\n",
        "utf-8",
    )
    done = run(tmp_path, "")
    assert done.code == 0, done.reported
    assert {*done.outcomes} == {"test_now_0", "test_now_1", "test_now_2"}


def test_a_virtual_backend_of_the_suite_stays_virtual_under_the_clock(tmp_path: Path):
    source = """
from toolbus.testing import virtual_backends
anyio_backend = virtual_backends()

async def test_now(toolbus_clock):
    await toolbus_clock.advance(5)
    assert toolbus_clock.now == 5
"""
    done = run(tmp_path, source)
    assert (done.code, len(done.outcomes)) == (0, 2), done.reported


def test_an_async_fixture_of_a_wider_scope_is_told_to_be_in_the_way_of_the_clock(tmp_path: Path):
    source = """
import pytest

@pytest.fixture(scope="module")
async def wide(anyio_backend):
    yield

async def test_clock(wide, toolbus_clock):
    pass

@pytest.mark.anyio
async def test_other(wide):
    pass
"""
    done = run(tmp_path, source)
    assert "toolbus_clock found an event loop with real time" in done.reported
    assert "Make that fixture function-scoped" in done.reported
    assert set(done.outcomes.values()) == {"passed", "error"}


def test_without_trio_the_clock_runs_on_asyncio(tmp_path: Path):
    (tmp_path / "conftest.py").write_text(
        "import pytest\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n", "utf-8"
    )
    source = (
        "async def test_now(toolbus_clock):\n    await toolbus_clock.advance(5)\n    assert toolbus_clock.now == 5\n"
    )
    done = run(tmp_path, source, code=WITHOUT_TRIO)
    assert (done.code, done.outcomes) == (0, {"test_now": "passed"}), done.reported


def test_without_anyios_plugin_everything_else_goes_on(tmp_path: Path):
    source = """
import anyio
from toolbus.testing import text

def test_plain():
    pass

def test_harness(toolbus_harness):
    async def main():
        async with toolbus_harness([text("Hello.")]) as harness:
            assert (await harness.run("Hello?")).text == "Hello."
    anyio.run(main)

def test_clock(toolbus_clock):
    pass
"""
    done = run(tmp_path, source, "-p", "no:anyio")
    assert done.outcomes == {"test_plain": "passed", "test_harness": "passed", "test_clock": "error"}
    assert "fixture 'anyio_backend' not found" in done.reported


# ------------------------------------------------------------------------------------------------- the harness

HARNESS = """
from toolbus.events import ToolCallRequested
from toolbus.testing import HarnessFactory, calls, text

SCRIPT = [calls(("get_weather", {"city": "Paris"})), text("Sunny.")]

async def test_all_is_over(toolbus_harness: HarnessFactory, toolbus_clock):
    async with toolbus_harness(SCRIPT, tools=["get_weather"]) as harness:
        session = harness.start("Weather?")
        harness.complete(await harness.expect(ToolCallRequested), "clear")
        assert (await session.result()).ok

async def test_something_is_left(toolbus_harness, toolbus_clock):
    async with toolbus_harness(SCRIPT, tools=["get_weather"]) as harness:
        harness.start("Weather?")
        await harness.expect(ToolCallRequested)

async def test_another_text(toolbus_harness, toolbus_clock):
    async with toolbus_harness([text("Hello.")]) as first:
        await first.run("One?")
    async with toolbus_harness([text("Hello.")]) as second:
        result = await second.run("Two?")
    assert result.text == "Hallo."
"""


def test_the_harness_fixture_is_strict_and_its_events_stand_in_the_report(tmp_path: Path):
    done = run(tmp_path, HARNESS, "-p", "no:logging", "-k", "trio")
    assert {name.partition("[")[0]: outcome for name, outcome in done.outcomes.items()} == {
        "test_all_is_over": "passed",
        "test_something_is_left": "failed",
        "test_another_text": "failed",
    }
    reported = done.reported.partition("FAILURES")[2].partition("short test summary")[0]
    left, other = re.split(r"_+ test_another_text\S* _+", reported)
    assert "AssertionError: not answered: get_weather" in left
    assert "Captured toolbus_harness" not in left  # the failure carries them itself
    assert left.count("RequestStarted") == 1
    assert "harness.py" not in left  # of the traceback, only the test's own lines
    assert "Captured toolbus_harness 0 call" in other
    assert "RequestStarted prompt='One?'" in other
    assert "RequestStarted prompt='Two?'" in other


def test_two_parallel_calls_of_which_one_times_out_take_milliseconds(tmp_path: Path):
    source = """
import time
from toolbus.events import ToolCallRequested
from toolbus.testing import calls, text

SCRIPT = [calls(("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})), text("Rome: 24.")]

async def test_one_of_two(toolbus_harness, toolbus_clock):
    began = time.process_time()  # its own time: on a busy machine, other processes have most of a second
    async with toolbus_harness(SCRIPT, tools=["get_weather"]) as harness:
        session = harness.start("Where is it warmer?")
        rome = await harness.expect(ToolCallRequested, arguments={"city": "Rome"})
        harness.complete(rome, {"celsius": 24})
        await harness.advance(seconds=30)
        result = await session.result()
    assert [call.reason for call in result.tool_calls] == ["timeout", ""]
    assert time.process_time() - began < 1.0  # of 30 virtual ones; some 0.01
"""
    done = run(tmp_path, source)
    assert (done.code, len(done.outcomes)) == (0, 2), done.reported


# ------------------------------------------------------------------------------------------------- real models

NETWORK = """
import pytest
from toolbus.errors import ConfigurationError
from toolbus.network import check_allowed
from toolbus.testing import allow_network_providers

def ask():
    check_allowed("openai", "https://api.openai.com/v1")

def test_plain():
    ask()

@pytest.mark.allow_network_providers
def test_marked():
    ask()

def test_in_a_block():
    with allow_network_providers():
        ask()

@pytest.fixture
def asking():
    ask()

@pytest.mark.allow_network_providers
def test_marked_with_a_fixture(asking):
    pass
"""


def test_real_models_are_blocked_unless_a_mark_or_a_block_allows_them(tmp_path: Path):
    done = run(tmp_path, NETWORK)
    assert done.outcomes == {
        "test_plain": "failed",
        "test_marked": "passed",
        "test_in_a_block": "passed",
        "test_marked_with_a_fixture": "passed",
    }
    assert "real models are blocked in tests: mark the test with @pytest.mark.allow_network_providers" in done.reported


@pytest.mark.parametrize(
    ("option", "ini"),
    [(("--toolbus-allow-network-providers",), ""), ((), "toolbus_allow_network_providers = true")],
)
def test_they_may_be_allowed_for_all_tests(tmp_path: Path, option: tuple[str, ...], ini: str):
    done = run(tmp_path, NETWORK, *option, ini=ini)
    assert (done.code, set(done.outcomes.values())) == (0, {"passed"}), done.reported
