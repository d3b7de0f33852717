"""Seeded simulation: the real bus, sessions, dispatcher, runtime and turn machine where everything goes wrong.

    from toolbus.testing.simulation import run_seed, simulate

    simulate(1000)          # raises SimulationFailed with the first seed that breaks an invariant
    run_seed(4711)          # the same again, event for event

Time is virtual and chance is seeded, so a seed is a whole run of several conversations: a model, tools, people,
strangers, listeners and a store, none of them reliable. The invariants of docs/reference/guarantees.md that can be seen
from outside are checked at every event, and at the end nothing may hang, leak or stay open.
"""

from ._findings import SeedReport, SimulationFailed
from ._run import run_seed
from ._simulate import SimulationReport, simulate

__all__ = ["SeedReport", "SimulationFailed", "SimulationReport", "run_seed", "simulate"]
