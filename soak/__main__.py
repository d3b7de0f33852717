"""Look for bugs for as long as the user chooses, and print in one table what was found.

    python3 dev.py soak                                     all parts, for ten minutes together
    python3 dev.py soak --minutes 120                       for two hours
    python3 dev.py soak --only simulation,kills             some of them
    python3 dev.py soak --only fuzzing --seed 4711          again, from a seed that was printed
    python3 dev.py soak --only mutations --at bus/_bus.py:120    all changes of one line
    python3 dev.py soak --only mutations --at core/turn     all changes of one package, or module

hostile     hostile model servers, MCP servers, schemas, patterns and files
kills       processes that are killed at random moments, on SQLite and PostgreSQL
remote      faults of workers, the NATS server and the network at random moments; approvals
pages       10,000 simulated requests a run, in both protocols of pages; 1,000 slow clients; the inspector under load
scale       a fleet of processes with up to 100,000 requests in virtual time; its whole size takes 20 minutes
fuzzing     the tests of Hypothesis without a fixed seed
simulation  whole worlds from seeds that were never used
mutations   random changes of src/toolbus; the tests have to notice 98 % of them

Each part picks a seed and prints it. A part that ends early leaves its time to the parts after it. The first run of
`mutations` records for some minutes which test runs which line, into .dev/soak; later runs record only the tests that
have changed. Delete this folder after functions have moved, because no old test is known to run them where they are
now. The exit status is 0 if nothing was found.
"""

from __future__ import annotations

import argparse
import functools
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from .mutations import mutations
from .parts import PARTS, Outcome, Part, Time

_SHARES = {
    "hostile": 1.0,
    "kills": 2.0,
    "remote": 2.0,
    "pages": 1.0,
    "scale": 1.0,
    "fuzzing": 2.0,
    "simulation": 3.0,
    "mutations": 3.0,
}
_MINUTES = 10.0


@dataclass(slots=True)
class _Row:
    name: str
    seed: int
    seconds: float
    outcome: Outcome

    def __str__(self) -> str:
        word = "FAILED" if self.outcome.problems else "ok"
        return f"{word:7} {self.name:11} {self.seconds:6.0f} s  seed {self.seed}: {self.outcome.summary}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that were asked for, and return the exit status."""
    options = parse(arguments)
    parts: dict[str, Part] = {
        **PARTS,
        "mutations": functools.partial(mutations, at=options.at, within=options.tests, jobs=options.jobs),
    }
    chosen = [name for name in parts if name in options.only]
    ends = time.monotonic() + options.minutes * 60
    rows: list[_Row] = []
    for place, name in enumerate(chosen):
        seed = options.seed if options.seed is not None else 10**9 + secrets.randbelow(9 * 10**9)
        began = time.monotonic()
        share = _SHARES[name] / sum(_SHARES[each] for each in chosen[place:])
        given = Time(began + max(0.0, ends - began) * share)
        print(f"{name}: seed {seed}, for {given.left:.0f} s", flush=True)
        rows.append(_Row(name, seed, 0.0, Outcome("cut off")))
        try:
            rows[-1].outcome = parts[name](seed, given)
        except KeyboardInterrupt:
            return _print(rows) or 130
        finally:
            rows[-1].seconds = time.monotonic() - began
    return _print(rows)


def _print(rows: Sequence[_Row]) -> int:
    for row in rows:
        for problem in row.outcome.problems:
            print(f"\n{row.name}, seed {row.seed}:\n{problem}")
    print()
    for row in rows:
        print(row)
    failed = [row for row in rows if row.outcome.problems]
    for row in failed:
        print(f"again: python3 dev.py soak --only {row.name} --seed {row.seed}")
    return 1 if failed else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; exit with a message if it is wrong."""
    known = [*PARTS, "mutations"]

    def names(text: str) -> list[str]:
        given = [each.strip() for each in text.split(",")]
        if wrong := [each for each in given if each not in known]:
            raise argparse.ArgumentTypeError(f"there is no part {wrong[0]!r}; there are {', '.join(known)}")
        return given

    def positive(text: str) -> float:
        if not 0 < (number := float(text)) < 100_000:
            raise argparse.ArgumentTypeError(f"{text} is not a number of minutes above zero")
        return number

    parser = argparse.ArgumentParser(
        "dev.py soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--minutes", type=positive, default=_MINUTES, help=f"for all parts; default {_MINUTES:g}")
    parser.add_argument("--only", type=names, default=known, metavar="PART,...", help="run only these parts")
    parser.add_argument("--seed", type=int, help="the seed of each part, instead of one that is picked")
    parser.add_argument(
        "--at",
        action="append",
        default=[],
        metavar="PATH[:LINE]",
        help="mutations: every change of this package, module or line",
    )
    parser.add_argument(
        "--tests",
        action="append",
        default=[],
        metavar="PATH",
        help="mutations: only tests of this file or folder may notice",
    )
    parser.add_argument("--jobs", type=int, help="mutations: how many run at once; default: one for each processor")
    return parser.parse_args(arguments)


def _stop(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)  # the table is printed even so
    sys.exit(main())
