"""The objects that the pytest plugin's fixtures return: a clock for a test, and a factory of strict harnesses.

The plugin imports this module when a test asks for one of them. It knows anyio's pytest plugin, and no hooks.

Example:
    from toolbus.events import ToolCallRequested
    from toolbus.testing import calls, text
    from toolbus.testing.fixtures import Clock, HarnessFactory

    async def test_the_clock_stands_still(toolbus_harness: HarnessFactory, toolbus_clock: Clock) -> None:
        script = [calls(("get_order", {"number": 7})), text("It took too long.")]
        async with toolbus_harness(script, tools=["get_order"]) as harness:
            session = harness.start("Where is order 7?")
            await harness.expect(ToolCallRequested)
            await toolbus_clock.advance(30)
            assert (await session.result()).tool_calls[0].reason == "timeout"
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import anyio

from ..bus import EventBus
from ..core.limits import Limits
from ..errors import ConfigurationError
from ..protocols import Provider, ToolSpec
from ..providers.scripted import Script
from ..tools import ToolLike
from .harness import Harness
from .virtual_time import advance, settle, virtual_backend

__all__ = ["Clock", "HarnessFactory", "on_virtual_time"]

# These options of a backend choose its clock.
_CLOCK_OPTIONS = frozenset({"loop_factory", "use_uvloop", "clock", "instruments"})


class Clock:
    """The virtual time of a test, which the fixture `toolbus_clock` returns."""

    @property
    def now(self) -> float:
        """The virtual seconds since the test began. Read it inside the event loop."""
        return anyio.current_time()

    async def advance(self, seconds: float, *, wait_for_threads: bool = True) -> None:
        """Let `seconds` pass, and return once everything due by then has run: see `toolbus.testing.advance`."""
        await advance(seconds, wait_for_threads=wait_for_threads)

    async def settle(self, *, wait_for_threads: bool = True) -> None:
        """Return once nothing more can run until time passes: see `toolbus.testing.settle`."""
        await settle(wait_for_threads=wait_for_threads)


@contextmanager
def on_virtual_time(backend: Any) -> Generator[Clock]:
    """Run the tests and fixtures of anyio's pytest plugin on `backend` in virtual time, from 0, while this is open.

    `backend` is a value of the fixture `anyio_backend`. Raises `ConfigurationError` if the plugin already runs an event
    loop with real time, and for an event loop that is neither asyncio's nor trio's.

    Example:
        from collections.abc import Iterator

        import pytest

        from toolbus.testing.fixtures import Clock, on_virtual_time

        @pytest.fixture
        def clock(anyio_backend: str) -> Iterator[Clock]:  # as the fixture toolbus_clock does
            with on_virtual_time(anyio_backend) as clock:
                yield clock
    """
    from anyio.pytest_plugin import get_runner  # noqa: PLC0415 -- imports pytest

    name, options = cast("tuple[Any, dict[str, Any]]", backend) if isinstance(backend, tuple) else (backend, {})
    kept = {option: value for option, value in options.items() if option not in _CLOCK_OPTIONS}
    # While this runner exists, anyio's plugin reuses it: async fixtures and the test run on this event loop as well.
    with get_runner(name, {**kept, **virtual_backend(name)[1]}) as runner:
        try:
            runner.run_fixture(settle, {})
        except ConfigurationError as exc:
            raise ConfigurationError(
                "toolbus_clock found an event loop with real time: an async fixture of a wider scope (module, session) "
                "keeps it running. Make that fixture function-scoped"
            ) from exc
        yield Clock()


class HarnessFactory:
    """A factory of strict harnesses, which the fixture `toolbus_harness` returns. It is called like `Harness`."""

    def __init__(self) -> None:
        self._made: list[Harness] = []

    def __call__(
        self,
        provider: Provider | Script | None = None,
        *,
        tools: Iterable[str | ToolLike | ToolSpec] = (),
        run_tools: bool = False,
        limits: Limits | None = None,
        bus: EventBus | None = None,
    ) -> Harness:
        """Return a strict harness, which is still to be entered: see `Harness`."""
        harness = Harness(provider, tools=tools, run_tools=run_tools, limits=limits, bus=bus, strict=True)
        self._made.append(harness)
        return harness

    def timelines_missing_from(self, exception: BaseException) -> Iterator[tuple[str, str]]:
        """Return a title and a timeline for each harness whose timeline `exception` does not carry."""
        for number, harness in enumerate(self._made):
            if harness.events and harness.exception_with_timeline is not exception:
                yield f"toolbus_harness{f' {number}' if len(self._made) > 1 else ''}", harness.timeline()
