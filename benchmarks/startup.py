"""The CPU time, user and system, of a process that imports toolbus, or that prints its version.

Each run is a new process, and reads the bytecode that the first one has written: this is the cost that a user pays from
the second time on. Disturbances only add time, so the lowest median of three blocks of runs counts, on each side. Both
sides load the environment's `site`, with the .pth files of all installed packages.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

from .plumbing import Effort, Goal, Row, alternate, compared, run, shown_us

BLOCKS = 3
NEEDED = "pydantic, anyio, blinker, orjson"
BYTECODE = Path(__file__).parents[1] / ".dev" / "bytecode"


def _children_seconds() -> float:
    """The CPU time, user and system, of child processes that have ended; 0 if the system does not report it."""
    if sys.platform == "win32":
        return 0.0
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _environment() -> dict[str, str]:
    """These variables, and those that make Python write its bytecode, under .dev, as `dev.py test` does."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {"PYTHONPYCACHEPREFIX": str(BYTECODE), **kept}


async def _process_us(command: Sequence[str], environment: dict[str, str]) -> float:
    """The CPU time of one process in microseconds, or its wall time if the system does not report CPU time."""
    before, started = _children_seconds(), time.perf_counter()
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)  # noqa: ASYNC221 -- this call is measured
    wall = time.perf_counter() - started
    spent = _children_seconds() - before
    return 1e6 * (spent or wall)


async def _row(
    name: str, ours: Sequence[str], theirs: Sequence[str], against: str, goal: float | None, effort: Effort
) -> Row:
    environment = _environment()
    medians: list[tuple[float, float]] = []
    ratios: list[float] = []
    for _ in range(min(BLOCKS, effort.repeats)):
        first, second = await alternate(
            effort.repeats,
            lambda: _process_us(ours, environment),
            lambda: _process_us(theirs, environment),
        )
        figures = compared(first, second)
        medians.append((figures.ours, figures.theirs))
        ratios.append(figures.ratio)
    mine, other = (min(side) for side in zip(*medians, strict=True))
    ratios.append(mine / other)
    return Row(
        name,
        shown_us(mine),
        f"{against}, {shown_us(other)}",
        ratios[-1],
        min(ratios),
        max(ratios),
        goal=None if goal is None else Goal(goal),
        remark="bytecode cached on both sides",
    )


def _toolbus_command() -> list[str]:
    """The installed script, or the module if no script is installed."""
    script = Path(sysconfig.get_path("scripts"), "toolbus.exe" if os.name == "nt" else "toolbus")
    return [str(script)] if script.exists() else [sys.executable, "-m", "toolbus"]


async def _figure(effort: Effort) -> list[Row]:
    python = sys.executable
    needed = f"import {NEEDED}"
    imports, all_of_it = [python, "-c", "import toolbus"], [python, "-c", "from toolbus import Runtime"]
    theirs, nothing = [python, "-c", needed], [python, "-c", "pass"]
    version = [*_toolbus_command(), "--version"]
    for command in (imports, all_of_it, theirs, nothing, version):  # the first run writes the bytecode
        await _process_us(command, _environment())
    return [
        await _row("import toolbus", imports, theirs, needed, 1.3, effort),
        await _row("from toolbus import Runtime", all_of_it, theirs, needed, None, effort),
        await _row("toolbus --version", version, nothing, "python -c pass", 6.0, effort),
    ]


def startup(effort: Effort) -> list[Row]:
    """Measure the CPU time of new processes."""
    return run(_figure, effort)
