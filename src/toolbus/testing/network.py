"""A block on real models in tests, unless a test allows them.

The pytest plugin loads this module in every run, so it imports only the switch in `toolbus.network`.

Example:
    from toolbus.providers.openai import OpenAIProvider
    from toolbus.testing.network import allow_network_providers, forbid_network_providers

    forbid_network_providers()  # in conftest.py
    with allow_network_providers():  # in a test that means it
        OpenAIProvider("gpt-5-mini", api_key="the-key")
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from ..network import forbid

__all__ = ["allow_network_providers", "forbid_network_providers"]

_HOW = (
    "mark the test with @pytest.mark.allow_network_providers, use `with toolbus.testing.allow_network_providers():`, "
    "or run pytest with --toolbus-allow-network-providers"
)
# The number of open blocks that allow the network; they may overlap in any order.
_allowed = 0


@contextmanager
def allow_network_providers() -> Generator[None]:
    """Let `respond` of real providers reach any server in this block, in all tasks and threads of the process.

    Only needed if servers are blocked: in pytest, by toolbus's plugin. Servers on this machine are never blocked.
    """
    global _allowed  # noqa: PLW0603 -- the block is one for the process: see `network.forbid`
    _allowed += 1
    try:
        yield
    finally:
        _allowed -= 1


def forbid_network_providers() -> None:
    """Make `respond` of real providers raise `ConfigurationError` for servers on other machines, from now on.

    The pytest plugin calls this for all tests; call it yourself in other test runners.
    """
    forbid(_object)


def _object(vendor: str, url: str) -> None:
    from ..errors import ConfigurationError  # noqa: PLC0415 -- see the module's docstring

    if _allowed or _is_here(url):
        return
    raise ConfigurationError(f"a test was about to ask {vendor} at {url}, and real models are blocked in tests: {_HOW}")


def _is_here(url: str) -> bool:
    import ipaddress  # noqa: PLC0415
    from urllib.parse import urlsplit  # noqa: PLC0415

    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # The host is a name.
        return False
