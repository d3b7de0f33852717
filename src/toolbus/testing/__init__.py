"""The public testing kit: everything that an application needs to test its agents without a real model.

The package knows toolbus's public protocols and events, both event loops of anyio, and pytest. It offers:

- a model that follows a script (`ScriptedProvider`), and a harness in which the test answers the model's tool calls;
- virtual time for asyncio and trio;
- a census that finds the tasks, requests and subscriptions that a test has left over;
- a stub of a model server that speaks the vendors' wire formats (`wire`);
- contract suites for providers, executors, stores, tools and toolsets, each of them run by one test;
- a block on requests to real models;
- recordings of real requests, and their replay;
- the pytest fixtures `toolbus_harness` and `toolbus_clock`.

It must not be imported by the packages that run an application.

Invariants:

1. Importing the package imports no other module of the testing kit; each name is imported when it is first used. The
   pytest plugin is in this package and is loaded in every pytest run, so an eager import would slow down all of them.
2. Models on other machines are blocked only by the pytest plugin or by `forbid_network_providers`, never by an
   import. Otherwise importing a helper would change what an application may do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import imported_when_used

if TYPE_CHECKING:
    from ..providers.expectations import asked
    from ..providers.scripted import ScriptedProvider, Step, calls, error, hang, text
    from ._virtual_loop import VirtualDeadlock, VirtualTimeLoop
    from .census import assert_idle
    from .contracts.executor import check_executor, executor_checks
    from .contracts.provider import ContractBroken, ContractReport, check_live_provider, check_provider, provider_checks
    from .contracts.store import check_store, store_checks
    from .contracts.tool import ExampleCall, check_tools, check_toolset, tool_checks, toolset_checks
    from .fixtures import Clock, HarnessFactory
    from .harness import Harness
    from .network import allow_network_providers, forbid_network_providers
    from .recording import Recorder, RecordingError, ReplayDifference, ReplayReport, read_recording, record, replay
    from .virtual_time import advance, settle, virtual_backend, virtual_backends
    from .wire import WireServer

__all__ = [
    "Clock",
    "ContractBroken",
    "ContractReport",
    "ExampleCall",
    "Harness",
    "HarnessFactory",
    "Recorder",
    "RecordingError",
    "ReplayDifference",
    "ReplayReport",
    "ScriptedProvider",
    "Step",
    "VirtualDeadlock",
    "VirtualTimeLoop",
    "WireServer",
    "advance",
    "allow_network_providers",
    "asked",
    "assert_idle",
    "calls",
    "check_executor",
    "check_live_provider",
    "check_provider",
    "check_store",
    "check_tools",
    "check_toolset",
    "error",
    "executor_checks",
    "forbid_network_providers",
    "hang",
    "provider_checks",
    "read_recording",
    "record",
    "replay",
    "settle",
    "store_checks",
    "text",
    "tool_checks",
    "toolset_checks",
    "virtual_backend",
    "virtual_backends",
]

_MODULES = {
    ".census": ["assert_idle"],
    ".contracts.executor": ["check_executor", "executor_checks"],
    ".fixtures": ["Clock", "HarnessFactory"],
    ".harness": ["Harness"],
    ".network": ["allow_network_providers", "forbid_network_providers"],
    ".contracts.provider": [
        "ContractBroken",
        "ContractReport",
        "check_live_provider",
        "check_provider",
        "provider_checks",
    ],
    ".recording": [
        "Recorder",
        "RecordingError",
        "ReplayDifference",
        "ReplayReport",
        "read_recording",
        "record",
        "replay",
    ],
    ".contracts.store": ["check_store", "store_checks"],
    ".contracts.tool": ["ExampleCall", "check_tools", "check_toolset", "tool_checks", "toolset_checks"],
    ".virtual_time": ["VirtualDeadlock", "VirtualTimeLoop", "advance", "settle", "virtual_backend", "virtual_backends"],
    ".wire": ["WireServer"],
    "..providers.expectations": ["asked"],
    "..providers.scripted": ["ScriptedProvider", "Step", "calls", "error", "hang", "text"],
}

if not TYPE_CHECKING:  # A type checker would take every name that is spelt wrong.
    __getattr__, __dir__ = imported_when_used(__name__, _MODULES)
