"""The contract of a provider as one test: `check_provider`.

Knows the seam (`toolbus.protocols.Provider`), the stub server of `toolbus.testing.wire`, and no provider.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from ....protocols import Provider
from ...wire import Dialect, WireServer, dialect_of
from .._checks import Check, Checks, ContractBroken, ContractReport, Failure, run_all, run_check
from . import _failing, _living, _reading, _sending
from ._bench import CHECKS, Bench
from ._live import LIVE_CHECKS, live_failures

__all__ = ["ContractBroken", "ContractReport", "Failure", "check_live_provider", "check_provider", "provider_checks"]

_CHECKS: Checks[Bench] = Checks(
    {
        name: each
        for module in (_reading, _failing, _sending, _living)  # which put their checks into the table
        for name, each in CHECKS.items()
        if each.run.__module__ == module.__name__
    }
)
_MAX_REPLY_BYTES = 8 * 2**20


def provider_checks() -> dict[str, str]:
    """All checks of `check_provider`: name, and what it holds, in the order in which they run."""
    return _CHECKS.holds()


async def check_provider(
    make_provider: Callable[[str], Provider],
    *,
    dialect: str | Dialect = "openai",
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    patience_seconds: float = 10.0,
    max_reply_bytes: int = _MAX_REPLY_BYTES,
) -> ContractReport:
    """Check that a provider keeps the contract of `toolbus.protocols.Provider`, against a stub server on a real socket.

        async def test_my_provider_keeps_the_contract():
            await check_provider(lambda url: MyProvider("stub", api_key="not-a-real-key", base_url=url))

    `make_provider` is called with the URL of the stub and gives a provider that talks to it: one for all checks,
    another one after a check that fails, and a few for checks that need their own. Each that has an `aclose` is closed.
    Give it a key of at least 8 characters: the suite looks for it in errors. `dialect` is the wire format that the stub
    speaks: "openai" (chat completions), "responses", "anthropic", "ollama", or a `toolbus.testing.wire.Dialect` of
    one's own.

    Checks that the wire format cannot say anything about (`Dialect.lacks`) are left out. `only` runs some checks alone,
    `without` all but some: the names are those of `provider_checks()`. `max_reply_bytes` is where the provider stops
    reading. `patience_seconds` bounds every wait for a provider that does nothing; one that keeps the contract never
    needs it.

    All checks run, whatever fails. Raises `ContractBroken`, an `AssertionError` that names each check that failed, what
    was expected and what came; `ConfigurationError` for names of checks or dialects that there are not. Works on
    asyncio and trio, in real time: no virtual clock.
    """
    chosen = _CHECKS.chosen(only, without, "provider_checks")
    spoken = dialect_of(dialect)
    with WireServer(dialect=spoken) as server:
        bench = Bench(server, make_provider, patience_seconds=patience_seconds, max_reply_bytes=max_reply_bytes)
        await run_all(chosen, bench, spoken.lacks, lambda each: _run(each, bench))
        await bench.let_go()
    return bench.report("provider")


async def check_live_provider(provider: Provider) -> ContractReport:
    """Check a provider against the service that it talks to: a text, a tool's round trip, parallel calls, usage.

    Asks five times, for a few hundred tokens in all. A model that will not call tools, or not two at once, fails. The
    provider stays open. Raises `ContractBroken` as `check_provider` does, also for errors of the service.
    """
    if failures := await live_failures(provider):
        raise ContractBroken(failures, len(LIVE_CHECKS))
    return ContractReport(LIVE_CHECKS, ())


async def _run(check: Check[Bench], bench: Bench) -> bool:
    """Whether it passed. One that failed has left the provider in whatever state: the next one gets another."""
    bench.prepare()
    try:
        passed = await run_check(check, bench, math.inf)  # each wait within is bounded
    finally:
        bench.server.script = ()
        bench.server.release()
    if not passed:
        await bench.let_go()
    return passed
