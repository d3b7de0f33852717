"""The public testing kit: a model that follows a script, virtual time, and a harness that answers the model's calls."""

from ..providers.scripted import ScriptedProvider, calls, error, text
from .census import assert_idle
from .harness import Harness
from .virtual_time import VirtualDeadlock, VirtualTimeLoop, advance, settle, virtual_backend, virtual_backends

__all__ = [
    "Harness",
    "ScriptedProvider",
    "VirtualDeadlock",
    "VirtualTimeLoop",
    "advance",
    "assert_idle",
    "calls",
    "error",
    "settle",
    "text",
    "virtual_backend",
    "virtual_backends",
]
