"""The public testing kit: a model that follows a script, and time that passes only when a test wants it to."""

from ..providers.scripted import ScriptedProvider, calls, error, text
from .virtual_time import VirtualDeadlock, VirtualTimeLoop, advance, settle, virtual_backend, virtual_backends

__all__ = [
    "ScriptedProvider",
    "VirtualDeadlock",
    "VirtualTimeLoop",
    "advance",
    "calls",
    "error",
    "settle",
    "text",
    "virtual_backend",
    "virtual_backends",
]
