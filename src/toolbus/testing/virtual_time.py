"""Virtual time for tests, on asyncio and on trio: a time-out of an hour takes no time, and fires when it should.

Knows both event loops, and nothing of toolbus but its errors. trio brings a virtual clock; asyncio gets the loop in
`_loop`. On both, time stands still while anything can run or a worker thread works, and then jumps to the next timer.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..errors import ConfigurationError, MissingExtra
from ._virtual_loop import VirtualDeadlock, VirtualTimeLoop

if TYPE_CHECKING:
    import pytest

__all__ = ["VirtualDeadlock", "VirtualTimeLoop", "advance", "settle", "virtual_backend", "virtual_backends"]

BackendName: TypeAlias = Literal["asyncio", "trio"]


def virtual_backend(name: BackendName) -> tuple[str, dict[str, Any]]:
    """An anyio backend whose time is virtual, with its options: made anew at each call, so that time begins at 0.

        backend, options = virtual_backend("trio")
        anyio.run(main, backend=backend, backend_options=options)

    Raises `ConfigurationError` for another name, and `MissingExtra` where trio is not installed.
    """
    if name == "asyncio":
        return "asyncio", {"loop_factory": VirtualTimeLoop}
    if name == "trio":
        try:
            from . import _virtual_trio as _trio  # noqa: PLC0415 -- trio is optional
        except ImportError as exc:
            raise MissingExtra("trio", "trio") from exc
        clock = _trio.new_clock()
        return "trio", {"clock": clock, "instruments": [_trio.ThreadWatch(clock)]}
    raise ConfigurationError(f"{name!r} is no backend; there are 'asyncio' and 'trio'")


def virtual_backends(*names: BackendName) -> Any:
    """A pytest fixture: with it, each async test of a module runs on both loops (or on those named) in virtual time.

        anyio_backend = virtual_backends()  # in the test module

    Each test has a clock of its own that begins at 0. The fixture is function-scoped, so async fixtures of the module
    have to be as well. Needs pytest with anyio's plugin.
    """
    import pytest  # noqa: PLC0415 -- the other helpers work without it

    def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
        return virtual_backend(request.param)

    return pytest.fixture(params=names or ("asyncio", "trio"))(anyio_backend)


async def advance(seconds: float, *, wait_for_threads: bool = True) -> None:
    """Let `seconds` of virtual time pass, and return once everything that is due by then has run.

    Timers on the way fire one after the other, each at its own moment. Worker threads take no virtual time: they are
    waited for before it passes, unless `wait_for_threads` is false, for tests of threads that hang. A task that never
    blocks keeps this from returning. Cancelling it leaves the time where it is.

    Raises `ConfigurationError` on an event loop whose time is real, and for seconds that are negative or no number.
    """
    if not 0 <= seconds < math.inf:
        raise ConfigurationError(f"time cannot advance by {seconds!r} seconds")
    await _clockwork().advance(seconds, wait_for_threads=wait_for_threads)


async def settle(*, wait_for_threads: bool = True) -> None:
    """Return once nothing can run any more unless time passes. No virtual time passes meanwhile.

    Waits for worker threads too, for at most some seconds of real time, unless `wait_for_threads` is false. Raises
    `ConfigurationError` on an event loop whose time is real.
    """
    await _clockwork().settle(wait_for_threads=wait_for_threads)


def _clockwork() -> Any:
    """What moves the time of the running event loop: a `VirtualTimeLoop`, or the module `_trio`."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        from . import _virtual_trio as _trio  # noqa: PLC0415 -- it is there: this is trio

        if _trio.is_virtual():
            return _trio
    else:
        if isinstance(loop, VirtualTimeLoop):
            return loop
    raise ConfigurationError(
        "the time of this event loop is real; let the test ask for the fixture toolbus_clock (pytest), put "
        "`anyio_backend = virtual_backends()` into the test module, or run the loop with `virtual_backend(...)`"
    )
