"""The public testing kit.

A model that follows a script, a harness that answers the model's calls, virtual time, a census of what is left, a stub
of a model server that speaks vendors' wire formats (`wire`), and the contract of a provider as one test.
"""

from ..providers.scripted import ScriptedProvider, calls, error, text
from .census import assert_idle
from .harness import Harness
from .provider_contract import ContractBroken, ContractReport, check_live_provider, check_provider, provider_checks
from .virtual_time import VirtualDeadlock, VirtualTimeLoop, advance, settle, virtual_backend, virtual_backends
from .wire import WireServer

__all__ = [
    "ContractBroken",
    "ContractReport",
    "Harness",
    "ScriptedProvider",
    "VirtualDeadlock",
    "VirtualTimeLoop",
    "WireServer",
    "advance",
    "assert_idle",
    "calls",
    "check_live_provider",
    "check_provider",
    "error",
    "provider_checks",
    "settle",
    "text",
    "virtual_backend",
    "virtual_backends",
]
