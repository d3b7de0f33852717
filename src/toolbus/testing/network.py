"""No real models in tests, unless they are allowed.

Imports nothing of toolbus when it is loaded but the one switch: the pytest plugin loads it in every run.
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
_allowed = 0  # how many ask for it now; a number, since they may overlap in any order


@contextmanager
def allow_network_providers() -> Generator[None]:
    """In this block `respond` of real providers may reach any server, in all tasks and threads of the process.

    Only needed where they are blocked: in pytest, by toolbus's plugin. Servers on this machine are never blocked.
    """
    global _allowed  # noqa: PLW0603 -- for the process: see `network.forbid`
    _allowed += 1
    try:
        yield
    finally:
        _allowed -= 1


def forbid_network_providers() -> None:
    """From now on `respond` of real providers raises `ConfigurationError` for servers on other machines.

    The pytest plugin does it for all tests; call it yourself in other test runners.
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
    except ValueError:  # a name
        return False
