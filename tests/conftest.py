"""The parts that all tests share: truly immutable events, both event loops, and the census after each async test."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import inspect
import os
import ssl
import sys
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any, get_args

import coverage
import pytest
from hypothesis import is_hypothesis_test, settings

from support import blocking, time_limits
from toolbus import EventBus
from toolbus.testing.census import Census, Remains

# An example may take any time, since the suite shares the machine with others: `support.time_limits` ends what hangs.
# Each run makes other examples; `dev.py soak --only fuzzing` makes twenty times as many, unless a test sets its number.
settings.register_profile("toolbus", deadline=None, max_examples=50)
settings.load_profile("toolbus")

REPEATS = "repeats(reason): the test runs the same lines again and again, so the quick half leaves it out"
LEAVES = "leaves(*remains, reason): the test leaves tasks, threads, processes or buses in use behind, and why it may"


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run each async test on both backends. They are named, so that a missing trio makes the suite fail."""
    return request.param


# ------------------------------------------------------------------------------------------------- the census

_buses: list[EventBus] = []  # the buses that the current test has made, held until its census
_failed = pytest.StashKey[bool]()


def _note_buses() -> None:
    make = EventBus.__init__

    @functools.wraps(make)
    def noting(self: EventBus, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        _buses.append(self)

    EventBus.__init__ = noting


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", LEAVES)
    config.addinivalue_line("markers", REPEATS)
    config.pluginmanager.register(time_limits)
    _report_only_what_is_shown(config)
    blocking.report_nothing()
    _note_buses()
    # pydantic has no plugins here, and would look for them in all packages, in each process that a test starts: 0.03 s.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Processes that tests start are not measured for coverage: their code is also tested here.
        for name in [each for each in os.environ if each.startswith("COVERAGE_PROCESS")]:
            del os.environ[name]


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> None:
    """Make the census the first fixture of each async test, so that it runs after all other fixtures were undone."""
    if collector.istestfunction(obj, name) and inspect.iscoroutinefunction(obj):
        pytest.mark.usefixtures("census")(obj)


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.excinfo is not None:
        item.stash[_failed] = True


@pytest.fixture
async def census(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Fail if the test has left something, unless `@pytest.mark.leaves` says what and why.

    A test that has failed is not checked, because its failure matters more.
    """
    but = _remains_of(request.node)
    _buses.clear()
    before = Census()
    yield
    buses = tuple(_buses)
    _buses.clear()
    if not request.node.stash.get(_failed, False):
        await before.assert_nothing_left(*buses, but=but)


def _remains_of(node: pytest.Item) -> set[Remains]:
    allowed: set[Remains] = set()
    for mark in node.iter_markers("leaves"):
        if not mark.kwargs.get("reason") or not mark.args or not {*mark.args} <= {*get_args(Remains)}:
            raise pytest.UsageError(f"{node.nodeid}: write {LEAVES.partition(':')[0]}, of {get_args(Remains)}")
        allowed.update(mark.args)
    return allowed


# ------------------------------------------------------------------------------------------------- its time


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Turn the garbage collector off meanwhile: all these objects stay, and looking at them again takes a second."""
    gc.disable()
    try:
        with _first_of_its_run():
            return (yield)
    finally:
        gc.enable()


@contextlib.contextmanager
def _first_of_its_run() -> Generator[None]:
    """Let one process of pytest-xdist collect before the others, which then find all modules compiled.

    Compiling takes 13 of the 22 seconds that a process needs where no bytecode is kept yet.
    """
    kept = sys.pycache_prefix
    if "PYTEST_XDIST_WORKER" not in os.environ or kept is None or sys.dont_write_bytecode:
        yield
        return
    Path(kept).mkdir(parents=True, exist_ok=True)
    with Path(kept, "collecting.lock").open("a") as lock:  # the system releases it if this process is killed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another one collects: the rest wait for it, and not for each other
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def _report_only_what_is_shown(config: pytest.Config) -> None:
    """Let a process of pytest-xdist send two messages for a test that passes, and not six.

    The controller uses the others only for `-v`, `--durations` and `--junit-xml`. Sending and reading them takes as much
    time as an empty test.
    """
    option = config.option
    sender: Any = next((each for each in config.pluginmanager.get_plugins() if hasattr(each, "sendevent")), None)
    if sender is None or option.verbose > 0 or option.durations is not None or option.xmlpath:
        return
    send = sender.sendevent

    def send_what_is_shown(name: str, **values: Any) -> None:
        report = values.get("data", {})
        is_shown = name not in {"logstart", "logfinish", "testreport"} or (
            name == "testreport" and (report["outcome"] != "passed" or report["when"] == "call" or report["sections"])
        )
        if is_shown:
            send(name, **values)

    sender.sendevent = send_what_is_shown


LONGEST = {
    "test_kill.py",
    "test_wheel.py",
    "test_simulation.py",
    "test_store_faults.py",
    "test_turn_stateful.py",
    "test_shared_requests.py",
    "test_damaged_journals.py",
    "test_extractive_quality.py",
    "test_mongo_contract.py",
    "test_planted_bugs.py",
}
"""The files with tests of 5 to 15 seconds on an idle machine; on a busy one, each of these tests has five minutes."""
NOT_QUICK = LONGEST | {
    "test_benchmarks.py",
    "test_dev.py",
    "test_pytest_plugin.py",
    "test_time_limits.py",
}
"""These files, and files that start many interpreters or that measure: together, a quarter of the suite's time."""
READERS = {
    "test_guarantees.py",
    "test_language.py",
    "test_layers.py",
    "test_log_lines.py",
    "test_site.py",
    "test_troubleshooting.py",
}
"""The files whose tests read sources and pages: the same on every Python, and they run hardly any line of toolbus."""


def pytest_addoption(parser: pytest.Parser) -> None:
    says = "leave out what runs the same lines again (on trio, by Hypothesis, marked `repeats`) and the longest files"
    parser.addoption("--quick", action="store_true", help=says)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow tests if only quick ones are wanted, and let the longest tests begin first.

    A long test that begins last would keep all other processes waiting.
    """
    if config.getoption("quick"):
        left_out = {item for item in items if _repeats(item) or item.path.name in NOT_QUICK}
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=[*left_out])
    for item in items:
        if item.path.name in LONGEST:
            item.add_marker(pytest.mark.timeout(300))
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Remove two costs that each test would pay again, once all modules are imported."""
    gc.collect()
    # All objects that exist now stay, so no collection needs to look at them: each takes 0.4 s, and a nested pytest
    # runs five. Hypothesis must be imported before: it looks for the owners of its objects, and misses frozen ones.
    gc.freeze()
    # A full collection looks at all that tests have imported and kept since, and frees next to nothing: with Python's
    # threshold of 10, these took a tenth of the suite's time.
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, 100)
    if not any(item.get_closest_marker("live") for item in session.items):
        # No other test uses TLS, and each client of an SDK would read the machine's certificates, which takes 40 ms.
        ssl.SSLContext.load_verify_locations = _trust_nobody


@pytest.fixture(scope="module")
def nothing_else_to_collect() -> None:
    """Let the garbage collector pass over all objects of earlier tests, for tests that collect again and again.

    It passes over them for the rest of the run. `gc.unfreeze` would return those of the collection of tests as well: a
    million, with which each collection in a later test takes a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def without_garbage_collection() -> Generator[None]:
    """Turn the garbage collector off, for tests that parse all sources.

    It would look at the syntax trees again and again, which takes longer than to make them.
    """
    gc.disable()
    yield
    gc.enable()


def pytest_sessionfinish() -> None:
    """Keep what was measured before pytest-xdist hears that this process has ended.

    Ten seconds after that it kills the process, and on a busy machine saving takes longer.
    """
    measured = coverage.Coverage.current() if "PYTEST_XDIST_WORKER" in os.environ else None
    if measured is not None:
        measured.save()


def _trust_nobody(self: ssl.SSLContext, *_: Any, **__: Any) -> None:
    """Load no certificates. A TLS connection, if a test made one, would fail, because the context trusts nobody."""


def _repeats(item: pytest.Item) -> bool:
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    backend = parameters.get("anyio_backend")
    return (
        backend == "trio"
        or (isinstance(backend, tuple) and "trio" in backend)  # a tuple has options, such as a virtual clock
        or is_hypothesis_test(getattr(item, "obj", None))
        or item.get_closest_marker("repeats") is not None
        or item.path.name in READERS
    )
