"""The suite's own census: each async test fails that leaves something, unless it says what and why."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from pathlib import Path

import anyio
import anyio.to_process
import pytest

from toolbus.testing.census import Census

CONFTEST = Path(__file__).parent.parent / "conftest.py"
SAMPLE = """
import subprocess
import sys
import threading

import anyio
import anyio.lowlevel
import pytest

import toolbus.testing.census
from toolbus import EventBus

toolbus.testing.census._PATIENCE_SECONDS = 0.1  # what hangs here hangs for good

HANGS = [sys.executable, "-c", "import time; time.sleep(60)"]
kept = []


@pytest.fixture
async def background():
    async with anyio.create_task_group() as group:
        yield group
        group.cancel_scope.cancel()


async def leave(what):
    if what == "a request":
        bus = EventBus()
        bus.arbitration.open_calls(bus.arbitration.open_mailbox("r"), ["c"])
    elif what == "a subscription":
        EventBus().subscribe(name="audit").open()
    elif what == "a process":
        kept.append(subprocess.Popen(HANGS))
    elif what == "a thread":
        release = threading.Event()
        kept.append(release)
        threading.Thread(target=release.wait, args=(60,)).start()
    elif what == "a task":
        group = anyio.create_task_group()
        await group.__aenter__()
        group.start_soon(anyio.sleep, 60)
        kept.append(group)


KINDS = [
    ("a request", "buses"), ("a subscription", "buses"), ("a process", "processes"), ("a thread", "threads"),
]


@pytest.mark.parametrize(("what", "kind"), KINDS)
async def test_leaves(what, kind):
    await leave(what)


@pytest.mark.parametrize(
    ("what", "kind"),
    [pytest.param(*each, marks=pytest.mark.leaves(each[1], reason="to see that it may")) for each in KINDS],
)
async def test_may_leave(what, kind):
    await leave(what)


async def test_leaves_a_task(background):
    background.start_soon(anyio.sleep, 60)


class TestAsyncioTask:
    @pytest.mark.parametrize("anyio_backend", ["asyncio"])
    async def test_leaves_a_bare_task(self):
        import asyncio
        kept.append(asyncio.create_task(asyncio.sleep(60), name="bare"))


@pytest.mark.leaves("buses")
async def test_without_a_reason():
    pass


@pytest.mark.leaves("crumbs", reason="it is lunch")
async def test_of_no_such_kind():
    pass


async def test_fails_by_itself():
    await leave("a request")
    raise KeyError("mine")


def test_sync_is_let_alone():
    kept.append(subprocess.Popen(HANGS))


def test_clears_up():
    for each in kept:
        if isinstance(each, subprocess.Popen):
            each.kill()
            each.wait()
        elif isinstance(each, threading.Event):
            each.set()
"""


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What pytest says of each test of the sample: its outcome, and for an error the reason."""
    place = tmp_path_factory.mktemp("sample")
    (place / "conftest.py").write_text(CONFTEST.read_text(encoding="utf-8"), encoding="utf-8")
    (place / "test_sample.py").write_text(SAMPLE, encoding="utf-8")
    (place / "pytest.ini").write_text("[pytest]\nanyio_mode = auto\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-rA", "--tb=line", "-p", "no:cacheprovider", "--strict-markers"]
    wide = {**os.environ, "COLUMNS": "500", "PYTHONPATH": str(CONFTEST.parent)}
    done = subprocess.run(command, cwd=place, env=wide, capture_output=True, text=True, timeout=60, check=False)
    reported: dict[str, str] = {}
    for line in done.stdout.splitlines():
        outcome, _, rest = line.partition(" ")
        if outcome in {"PASSED", "FAILED", "ERROR"}:
            name, _, reason = rest.partition(" - ")
            reported[f"{outcome} {name.rpartition('::')[2]}"] = reason
    assert reported, done.stdout + done.stderr
    return reported


@pytest.mark.parametrize("what", ["a request-buses", "a subscription-buses", "a process-processes", "a thread-threads"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_test_that_leaves_something_fails_unless_it_is_marked(endings: dict[str, str], backend: str, what: str):
    assert "left over" in endings[f"ERROR test_leaves[{backend}-{what}]"]
    assert f"PASSED test_may_leave[{backend}-{what}]" in endings
    assert f"ERROR test_may_leave[{backend}-{what}]" not in endings


def test_what_is_left_is_named(endings: dict[str, str]):
    assert "1 request(s) that did not end; 1 open call(s)" in endings["ERROR test_leaves[trio-a request-buses]"]
    assert "subscription audit" in endings["ERROR test_leaves[asyncio-a subscription-buses]"]
    assert "task bare" in endings["ERROR test_leaves_a_bare_task[asyncio]"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_census_comes_behind_what_fixtures_undo(endings: dict[str, str], backend: str):
    assert f"PASSED test_leaves_a_task[{backend}]" in endings
    assert f"ERROR test_leaves_a_task[{backend}]" not in endings


@pytest.mark.parametrize("test", ["test_without_a_reason", "test_of_no_such_kind"])
def test_a_mark_without_a_reason_or_for_nothing_that_is_known_is_refused(endings: dict[str, str], test: str):
    assert "write leaves(*remains, reason)" in endings[f"ERROR {test}[asyncio]"]


def test_a_test_that_fails_is_not_counted_as_well(endings: dict[str, str]):
    assert "mine" in endings["FAILED test_fails_by_itself[asyncio]"]
    assert "ERROR test_fails_by_itself[asyncio]" not in endings


def test_sync_tests_are_let_alone(endings: dict[str, str]):
    assert "PASSED test_sync_is_let_alone" in endings


# ------------------------------------------------------------------------------------------------- processes


def hang() -> None:
    time.sleep(60)


async def test_a_worker_process_that_waits_in_the_pool_is_not_counted_and_one_that_works_is(
    monkeypatch: pytest.MonkeyPatch,
):
    census = Census()
    await anyio.to_process.run_sync(os.getpid)
    await census.assert_nothing_left()
    async with anyio.create_task_group() as group:
        group.start_soon(functools.partial(anyio.to_process.run_sync, hang, cancellable=True))
        await anyio.wait_all_tasks_blocked()
        with monkeypatch.context() as impatient, pytest.raises(AssertionError, match=r"process \d+"):
            impatient.setattr("toolbus.testing.census._PATIENCE_SECONDS", 0.2)
            await census.assert_nothing_left(but=("tasks",))
        group.cancel_scope.cancel()
    await census.assert_nothing_left()


async def test_a_child_that_has_ended_and_that_nobody_has_waited_for_is_counted(monkeypatch: pytest.MonkeyPatch):
    census = Census()
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])  # noqa: ASYNC220 -- it is not waited for
    with monkeypatch.context() as impatient, pytest.raises(AssertionError, match=f"process {child.pid}"):
        impatient.setattr("toolbus.testing.census._PATIENCE_SECONDS", 0.2)
        await census.assert_nothing_left()
    child.wait()
    await census.assert_nothing_left()
