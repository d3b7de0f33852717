"""Virtual time for tests, on asyncio and on trio: a time-out of an hour takes no time, and fires when it should.

The module knows both event loops, and only the errors of toolbus. trio has a virtual clock of its own; asyncio gets the
event loop in `_virtual_loop`. On both, time stands still while anything can run or a worker thread works, and then
jumps to the next timer.

Example:
    import pytest

    from toolbus.testing.virtual_time import advance, settle, virtual_backend, virtual_backends

    name, options = virtual_backend("asyncio")  # anyio.run(main, backend=name, backend_options=options)

    @pytest.mark.parametrize("anyio_backend", virtual_backends("asyncio", "trio"))
    async def test_an_hour_takes_no_time(anyio_backend) -> None:
        await advance(3_600)
        await settle()
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .._option_checks import NOT_NEGATIVE, check
from ..errors import ConfigurationError, MissingExtra
from ._virtual_loop import VirtualDeadlock, VirtualTimeLoop

if TYPE_CHECKING:
    import pytest

__all__ = ["VirtualDeadlock", "VirtualTimeLoop", "advance", "settle", "virtual_backend", "virtual_backends"]

BackendName: TypeAlias = Literal["asyncio", "trio"]


def virtual_backend(name: BackendName) -> tuple[str, dict[str, Any]]:
    """Return an anyio backend whose time is virtual, and its options. Each call makes new ones: their time begins at 0.

        backend, options = virtual_backend("trio")
        anyio.run(main, backend=backend, backend_options=options)

    Raises `ConfigurationError` for another name, and `MissingExtra` if trio is not installed.
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
    raise ConfigurationError(f"{name!r} is not a backend; use 'asyncio' or 'trio'")


def virtual_backends(*names: BackendName) -> Any:
    """Return a pytest fixture that runs a module's async tests on both event loops, or on `names`, in virtual time.

        anyio_backend = virtual_backends()  # in the test module

    Each test has its own clock that begins at 0. The fixture is function-scoped, so the async fixtures of the
    module have to be function-scoped as well. Needs pytest with anyio's plugin.
    """
    import pytest  # noqa: PLC0415 -- the other helpers work without it

    def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
        return virtual_backend(request.param)

    return pytest.fixture(params=names or ("asyncio", "trio"))(anyio_backend)


async def advance(seconds: float, *, wait_for_threads: bool = True) -> None:
    """Let `seconds` of virtual time pass, and return once everything that is due by then has run.

    Timers on the way fire one after the other, each at its own moment. Worker threads take no virtual time: `advance`
    waits for them before time passes, unless `wait_for_threads` is false, which is for tests of threads that hang. A
    task that never blocks keeps `advance` from returning. Cancelling `advance` leaves the time where it is.

    Raises `ConfigurationError` on an event loop whose time is real, and for seconds that are negative or not finite.
    """
    check("seconds", seconds, NOT_NEGATIVE)
    await _virtual_clock().advance(seconds, wait_for_threads=wait_for_threads)


async def settle(*, wait_for_threads: bool = True) -> None:
    """Return once nothing more can run until time passes. No virtual time passes meanwhile.

    Also waits for worker threads, for at most five seconds of real time, unless `wait_for_threads` is false. Raises
    `ConfigurationError` on an event loop whose time is real.
    """
    await _virtual_clock().settle(wait_for_threads=wait_for_threads)


def _virtual_clock() -> Any:
    """Return the object that moves the time of the running event loop: a `VirtualTimeLoop`, or the trio module."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        from . import _virtual_trio as _trio  # noqa: PLC0415 -- trio runs, so it is installed

        if _trio.is_virtual():
            return _trio
    else:
        if isinstance(loop, VirtualTimeLoop):
            return loop
    raise ConfigurationError(
        "the time of this event loop is real; let the test ask for the fixture toolbus_clock (pytest), put "
        "`anyio_backend = virtual_backends()` into the test module, or run the loop with `virtual_backend(...)`"
    )
