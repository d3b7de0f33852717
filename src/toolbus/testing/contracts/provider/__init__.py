"""The contract of a provider as one test: `check_provider`.

The package knows the protocol (`toolbus.protocols.Provider`), the stub server of `toolbus.testing.wire`, and no
provider.

Invariants:

1. The stub answers on a real socket. A fake HTTP client would hide the faults of connections: cuts, resets, stalls.
2. After a check that fails, the next check gets another provider. The old one may be in any state, and its faults would
   fail checks that have nothing to do with them.

Example:
    from toolbus.testing.contracts.provider import provider_checks

    print(len(provider_checks()) > 10)  # True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from ....protocols import Provider
from ...wire import Dialect, WireServer, dialect_of
from .._checks import Check, ContractBroken, ContractReport, Failure, run_all, run_check
from . import _failing, _lifetime, _reading, _sending
from ._bench import CHECKS, Bench
from ._live import check_live_provider

__all__ = ["ContractBroken", "ContractReport", "Failure", "check_live_provider", "check_provider", "provider_checks"]

_CHECKS = CHECKS.of(_reading, _failing, _sending, _lifetime)
_MAX_REPLY_BYTES = 8 * 2**20


def provider_checks() -> dict[str, str]:
    """Return the promise of each check of `check_provider`, by the check's name, in the order in which they run."""
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

    `make_provider` is called with the URL of the stub and returns a provider that talks to it. All checks share one
    provider; a new one is made after a check that fails, and for each check that needs one of its own. Each provider
    with an `aclose` is closed. Give it a key of at least 8 characters: the suite searches errors for the key. `dialect`
    is the wire format that the stub speaks: "openai" (chat completions), "responses", "anthropic", "ollama", or a
    `toolbus.testing.wire.Dialect` of your own.

    Checks of features that the wire format does not have (`Dialect.lacks`) are left out. `only` runs only the named
    checks, and `without` leaves the named ones out; `provider_checks()` lists the names. `max_reply_bytes` is the size
    at which the provider stops reading. `patience_seconds` bounds every wait for a provider that does nothing; a
    provider that keeps the contract never needs it.

    All checks run, whatever fails. Raises `ContractBroken`, an `AssertionError` that names each check that failed, what
    was expected and what came; `ConfigurationError` for names of checks or dialects that do not exist. Works on asyncio
    and trio, and only in real time.
    """
    chosen = _CHECKS.chosen(only, without, "provider_checks")
    spoken = dialect_of(dialect)
    with WireServer(dialect=spoken) as server:
        bench = Bench(server, make_provider, patience_seconds=patience_seconds, max_reply_bytes=max_reply_bytes)
        await run_all(chosen, bench, spoken.lacks, lambda each: _run(each, bench))
        await bench.close_provider()
    return bench.report("provider")


async def _run(check: Check[Bench], bench: Bench) -> bool:
    """Run a check and return whether it passed. After a failure the next check gets another provider."""
    bench.prepare()
    try:
        passed = await run_check(check, bench, math.inf)  # each wait inside is bounded
    finally:
        bench.server.script = ()
        bench.server.release()
    if not passed:
        await bench.close_provider()
    return passed
