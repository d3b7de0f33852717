"""What every test shares: real immutability of events, both event loops, and the census behind each async test."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import AsyncIterator
from typing import Any, get_args

import pytest

# Events are frozen to Python itself only if this is set before toolbus is imported.
if "toolbus.events" in sys.modules:  # the plugin of pytest, which is there before this, imports none of them
    raise RuntimeError(
        "toolbus.events was imported before tests/conftest.py could set TOOLBUS_DEBUG; do not load it by -p"
    )
os.environ["TOOLBUS_DEBUG"] = "1"

from toolbus import EventBus
from toolbus.testing.census import Census, Remains

LEAVES = "leaves(*remains, reason): the test leaves tasks, threads, processes or buses in use behind, and why it may"


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Each async test runs on both. Named here, so that a missing trio fails instead of halving the suite."""
    return request.param


# ------------------------------------------------------------------------------------------------- the census

_buses: list[EventBus] = []  # those that the current test has made, held until its census
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
    _note_buses()


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> None:
    """Ask for the census in front of all that an async test asks for, so that it comes behind all that is undone."""
    if collector.istestfunction(obj, name) and inspect.iscoroutinefunction(obj):
        pytest.mark.usefixtures("census")(obj)


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.excinfo is not None:
        item.stash[_failed] = True


@pytest.fixture
async def census(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Nothing is left of the test, unless `@pytest.mark.leaves` says what and why.

    A test that has failed is not counted as well: its failure is what matters.
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
