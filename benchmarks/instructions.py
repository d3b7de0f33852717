"""Count the processor's instructions for a request and for a start, by valgrind: a busy machine changes nothing.

    python benchmarks/instructions.py [requests] [--few 100] [--many 300] [--at-once 100] [--top 12] [--json]
    python benchmarks/instructions.py start [--json]

`requests`: the work of `work.py`, 3 rounds of 2 tool calls, then a text, by the loop that a careful engineer writes by
hand and by toolbus: only sessions, sessions with one listener on every event type, and `Runtime.run`. Each of them runs
twice, with few and with many requests, under `valgrind --tool=callgrind` and with PYTHONHASHSEED=0. The difference
divided by the difference in requests is the cost of one request, without the start of Python and one-time set-up. A
second table lists the C functions that take most of it. It takes three minutes of CPU time. Instructions are not time:
one that misses the cache counts as much as one that hits it.

`start`: the cost of `import toolbus`, of all its public names, and of `toolbus --version`, against the imports of its
dependencies and against a Python that does nothing, with bytecode that is already compiled.

Without valgrind, the command says so and exits with status 2.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MISSING = "instructions.py: valgrind is not installed, and nothing else counts instructions (apt install valgrind)"
DEPENDENCIES = "import pydantic, anyio, blinker, orjson"
USED = "from pydantic import BaseModel, TypeAdapter; import anyio.from_thread, anyio.to_thread, blinker, orjson"
"""The parts of the dependencies that a runtime needs: two of them load most of their modules at first use."""
CAREFUL, SESSION = "careful loop", "session"
HEARD, RUNTIME = "session, one listener on every type", "Runtime.run"
SIDES = (CAREFUL, SESSION, HEARD, RUNTIME)
ROOT = Path(__file__).parents[1]
STARTS = {
    "python -c pass": "pass",
    "toolbus --version": "import sys; sys.argv[1:] = ['--version']; from toolbus.cli import main; main()",
    DEPENDENCIES: DEPENDENCIES,
    "import toolbus": "import toolbus",
    USED: USED,
    "from toolbus import Runtime, tool": "from toolbus import Runtime, tool",
    "from toolbus import *": "from toolbus import *",
}


class Bench:
    """A copy of toolbus and of this folder: a file that is edited meanwhile would be compiled in only one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("src", "benchmarks"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.environment = {**kept, "PYTHONHASHSEED": "0", "PYTHONPATH": str(folder / "src")}

    def run(self, *command: str | Path) -> None:
        """Run a command, silently unless it fails."""
        done = subprocess.run(
            command, check=False, cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"instructions.py: {command[0]} has failed\n{done.stderr.strip()[-2000:]}")

    def count(self, *arguments: str) -> Counter[str]:
        """Count the instructions of one run of Python with these arguments, by C function."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "out")
            options = ["--quiet", "--tool=callgrind", f"--callgrind-out-file={out}"]
            self.run("valgrind", *options, sys.executable, *arguments)
            return by_function(out)


@contextlib.contextmanager
def bench() -> Generator[Bench]:
    with tempfile.TemporaryDirectory(prefix="instructions-") as folder:
        yield Bench(Path(folder))


def by_function(file: Path) -> Counter[str]:
    """Sum up Callgrind's file: https://valgrind.org/docs/manual/cl-format.html."""
    names: dict[str, str] = {}
    costs: Counter[str] = Counter()
    function, is_of_a_call = "", False
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith(("fn=", "cfn=")):
                number, _, name = line.partition("=")[2].strip().partition(" ")
                name = names.setdefault(number, name)
                if line.startswith("fn="):
                    function = name
            elif line.startswith("calls="):
                is_of_a_call = True  # the next line is the cost of the callee, which is counted there
            elif line[0] in "0123456789+-*":
                if not is_of_a_call:
                    costs[function.partition("'")[0]] += int(line.split()[1])
                is_of_a_call = False
    return costs


async def work(side: str, requests: int, at_once: int) -> None:
    """Run so many requests of one side: the work that is counted."""
    from . import work as works

    if side == CAREFUL:
        await works.at_once(works.careful, requests, at_once)
        return
    made = {
        SESSION: works.sessions,
        HEARD: lambda: works.sessions(bus=works.heard_bus()),
        RUNTIME: works.requests,
    }
    async with made[side]() as one:
        await works.at_once(one, requests, at_once)


def count_requests(options: argparse.Namespace) -> dict[str, Counter[str]]:
    """Instructions of one request, by C function, for each side. Runs at the same time give the same counts."""
    inside = ("-m", "benchmarks.instructions", "inside", "--at-once", str(options.at_once), "--side")
    found: dict[str, Counter[str]] = {}
    with bench() as copy, ThreadPoolExecutor(os.cpu_count()) as pool:
        for side in SIDES:  # so that all modules are compiled
            copy.run(sys.executable, *inside, side)
        runs = [
            [
                pool.submit(copy.count, *inside, side, "--many", str(requests))
                for requests in (options.few, options.many)
            ]
            for side in SIDES
        ]
        for side, (few, many) in zip(SIDES, runs, strict=True):
            more = many.result()
            more.subtract(few.result())
            found[side] = Counter({name: round(cost / (options.many - options.few)) for name, cost in more.items()})
    return found


def print_requests(found: dict[str, Counter[str]], top: int) -> None:
    base = found[CAREFUL].total()
    print(f"{'instructions of a request':40s} {'':>11s} {'ratio':>6s}")
    for side, costs in found.items():
        print(f"{side:40s} {costs.total():11,d} {costs.total() / base:6.2f}")
    print(f"\n{'where they go, by C function':40s} {SESSION:>11s} {CAREFUL:>13s}")
    for name, cost in found[SESSION].most_common(top):
        print(f"{name[:40]:40s} {cost:11,d} {found[CAREFUL][name]:13,d}")


def count_starts() -> dict[str, int]:
    """Instructions of one process each."""
    with bench() as copy, ThreadPoolExecutor(os.cpu_count()) as pool:
        for code in STARTS.values():
            copy.run(sys.executable, "-c", code)
        runs = [pool.submit(copy.count, "-c", code) for code in STARTS.values()]
        return {name: run.result().total() for name, run in zip(STARTS, runs, strict=True)}


def print_starts(found: dict[str, int]) -> None:
    nothing = found["python -c pass"]
    imports = found[DEPENDENCIES]
    print(f"{'million instructions':60.60s} {'in all':>7s} {'of pass':>8s} {'of the dependencies':>20s}")
    for name, cost in found.items():
        print(f"{name:60.60s} {cost / 1e6:7.1f} {cost / nothing:8.2f} {cost / imports:20.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["requests", "start", "inside"], default="requests")
    parser.add_argument("--few", type=int, default=100, help="requests of the shorter run")
    parser.add_argument("--many", type=int, default=300, help="requests of the longer run")
    parser.add_argument("--at-once", type=int, default=100, help="requests that run side by side")
    parser.add_argument("--top", type=int, default=12, help="how many C functions to show")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--side", choices=SIDES, default=SESSION, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.what == "inside":
        asyncio.run(work(options.side, options.many, options.at_once))
        return
    if shutil.which("valgrind") is None:
        print(MISSING, file=sys.stderr)
        sys.exit(2)
    if options.many <= options.few or options.few % options.at_once or options.many % options.at_once:
        parser.error("--many must be more than --few, and both must be multiples of --at-once")
    if options.what == "start":
        starts = count_starts()
        print(json.dumps(starts)) if options.json else print_starts(starts)
        return
    requests = count_requests(options)
    if options.json:
        totals = {side: costs.total() for side, costs in requests.items()}
        parts = {side: dict(costs.most_common(options.top)) for side, costs in requests.items()}
        print(json.dumps({"instructions": totals, "by_function": parts}))
    else:
        print_requests(requests, options.top)


if __name__ == "__main__":
    main()
