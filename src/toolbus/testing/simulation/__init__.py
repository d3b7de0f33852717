"""Seeded simulation: the real bus, sessions, dispatcher, runtime and turn machine under random faults.

    from toolbus.testing.simulation import run_seed, simulate

    simulate(1000)          # raises SimulationFailed with the first seed that breaks an invariant
    run_seed(4711)          # the same again, event for event

Time is virtual and random numbers are seeded, so a seed determines a whole run of several conversations with a model,
tools, people, strangers (other code that answers calls), listeners and a store, all of them unreliable. The guarantees
of docs/reference/guarantees.md that can be observed from outside are checked at every event, and at the end nothing may
hang, leak or stay open.

The package knows the public API of toolbus, the pure core and asyncio. The checks (`_watch`, `_end`) know nothing of
how a world is made: they see events, results and the journal.

Invariants:

1. A seed is the same run on every machine. Ids, clocks, random numbers and the order in which tasks are cancelled come
   from the seed; otherwise a failure could not be reproduced.
2. Every actor draws from a stream of random numbers of its own, named after its decision. With one shared stream, a
   small change of timing would change all later decisions, and a reduced world would not show the same failure.
3. Actors do only what the documentation allows. If an actor broke a rule itself, a broken guarantee would not be a bug
   of toolbus.
4. A killed process writes, publishes and counts nothing more, as after SIGKILL. If it did, the checks
   would see effects that no real process has.

Example:
    from toolbus.testing.simulation import SimulationReport, simulate

    report: SimulationReport = simulate(1, first=7)  # raises SimulationFailed, with the seed and a timeline
    print(report.seeds)  # 1
"""

from ._findings import SeedReport, SimulationFailed
from ._run import run_seed
from ._simulate import SimulationReport, simulate

__all__ = ["SeedReport", "SimulationFailed", "SimulationReport", "run_seed", "simulate"]
