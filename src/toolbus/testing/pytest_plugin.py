"""toolbus's pytest plugin: the fixtures `toolbus_harness` and `toolbus_clock`, and no real models in tests.

Every pytest run in an environment with toolbus loads this module, so it imports only pytest and two tiny modules, and
the rest when a test asks for it. It works with every plugin for async tests. Only `toolbus_clock` needs anyio's plugin,
which is part of anyio.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from .network import allow_network_providers, forbid_network_providers

if TYPE_CHECKING:
    from .fixtures import Clock, HarnessFactory

_MARKER = "allow_network_providers"
_OPTION = "toolbus_allow_network_providers"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the one option, for the command line and for the configuration file."""
    says = "let toolbus's providers reach real models in all tests (otherwise by marker: allow_network_providers)"
    parser.getgroup("toolbus").addoption("--toolbus-allow-network-providers", action="store_true", help=says)
    parser.addini(_OPTION, says, type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Block real models."""
    config.addinivalue_line("markers", f"{_MARKER}: toolbus's providers may reach real models in this test")
    if not (config.getoption(_OPTION) or config.getini(_OPTION)):
        forbid_network_providers()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Allow real models in a test that has the marker, and in its fixtures."""
    with allow_network_providers() if item.get_closest_marker(_MARKER) else nullcontext():
        return (yield)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Put the clock before a test's other function-scoped fixtures, so that async fixtures also run on its time."""
    names: list[str] = getattr(item, "fixturenames", [])
    if "toolbus_clock" in names:
        known: dict[str, Any] = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
        names.remove("toolbus_clock")
        wider = [at for at, name in enumerate(names) if name in known and known[name][-1].scope != "function"]
        names.insert(wider[-1] + 1 if wider else 0, "toolbus_clock")


@pytest.fixture
def toolbus_clock(request: pytest.FixtureRequest, anyio_backend: Any) -> Iterator[Clock]:
    """Virtual time for this test; an hour passes at once: `toolbus_clock.now`, `await toolbus_clock.advance(30)`.

    The test and its async fixtures run on the event loop that `anyio_backend` names (on asyncio and, if it is
    installed, trio), with their own clock that begins at 0. No other mark is needed. For a module or a class:
    `pytestmark = pytest.mark.usefixtures("toolbus_clock")`.
    """
    from .fixtures import on_virtual_time  # noqa: PLC0415 -- see the module's docstring

    for mark in ("asyncio", "trio"):
        if request.node.get_closest_marker(mark) is not None:
            pytest.fail(
                f"pytest-{mark} runs this test, in real time; toolbus_clock needs anyio's plugin: remove the mark "
                f"{mark}, or write anyio_mode = auto instead of the mode of pytest-{mark}",
                pytrace=False,
            )
    with on_virtual_time(anyio_backend) as clock:
        yield clock


@pytest.fixture
def toolbus_harness() -> HarnessFactory:
    """A factory of strict harnesses: call it like `Harness`. When the test fails, the report shows their events.

    async with toolbus_harness(script, tools=[...]) as harness: ...
    """
    from .fixtures import HarnessFactory as Factory  # noqa: PLC0415

    return Factory()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Add the timelines of a failing test to its report, unless its exception carries them."""
    try:
        return (yield)
    except BaseException as exc:
        factory: HarnessFactory | None = getattr(item, "funcargs", {}).get("toolbus_harness")
        for title, timeline in () if factory is None else factory.timelines_missing_from(exc):
            item.add_report_section("call", title, timeline)
        raise
