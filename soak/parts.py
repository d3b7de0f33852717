"""The parts of a soak that are commands: simulations, kills, remote faults, pages, fuzzing and hostile servers.

Each part runs its command again and again, with another seed each time, until its time is over. The last run is cut
off, which is not a failure. This module knows nothing of mutants.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .recording import PLACE, ROOT

__all__ = [
    "HOSTILE",
    "PARTS",
    "Outcome",
    "Part",
    "Time",
    "fuzzing",
    "hostile",
    "kills",
    "pages",
    "remote",
    "run_recording",
    "scale",
    "simulation",
]

_JOBS = os.cpu_count() or 1
_PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
_APPROVALS = 1_000  # how many approvals from another process one run gives
_WORLDS = 10_000  # more than the worlds of one run
_SHARES = 40  # how many times 250 simulated requests are worded for pages in one run
_CLIENTS = 1_000  # how many slow and vanished clients one request has
_LIVE_SECONDS = 30  # how long a page watches 200 live requests with 2,000 events a second
_FAULTS = 20  # how many random moments each fault of remote calls has in one run
_FLEET_REQUESTS = 100_000  # on 20 processes, in virtual time
_FLEET_REQUESTS_A_SECOND = 80  # requests that are simulated in a second of real time, at least
_KILLS = 40  # how many random moments one run has, in addition to the named ones
_ENDS_SECONDS = 20.0  # how long a command may take to end once its time is over
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|errors?)")
HOSTILE = (
    "tests/fuzz/test_*.py",
    "tests/providers/test_*_stream.py",
    "tests/providers/test_calls_in_text.py",
    "tests/providers/test_odd_servers.py",
    "tests/providers/test_openai_faults.py",
    "tests/providers/test_openai_quirks.py",
    "tests/providers/test_provider_contract.py",
    "tests/schemas/test_*.py",
    "tests/secrets/test_marked_secrets.py",
    "tests/toolsets/test_mcp_*.py",
    "tests/toolsets/test_workspace*.py",
    "tests/**/test_*hostile*.py",
    "tests/**/test_*bounds*.py",
)


@dataclass(slots=True)
class Time:
    """The time that a part may take. `until` is a moment of `time.monotonic`."""

    until: float

    @property
    def left(self) -> float:
        """The seconds that are left; never below zero."""
        return max(0.0, self.until - time.monotonic())


@dataclass(slots=True)
class Outcome:
    """The outcome of a part. `summary` is for the table; each of `problems` says which command reproduces it."""

    summary: str = ""
    problems: list[str] = field(default_factory=list[str])


Part = Callable[[int, Time], Outcome]
"""A function that runs a part, with a seed, for the time that it is given."""


@dataclass(slots=True)
class _Ran:
    status: int | None  # None if it was cut off
    output: str


def _run(command: Sequence[str], given: Time, variables: Mapping[str, str] | None = None) -> _Ran:
    """Run a command until it ends, or a little beyond its time; processes that it leaves running are ended, too."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(variables or {})}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = process.wait(given.left)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ENDS_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return _Ran(status, output.read())


def _problem(ran: _Ran, command: Sequence[str], variables: Mapping[str, str]) -> str:
    """The end of the output, and the command that reproduces it."""
    shown = shlex.join([Path(command[0]).name, *command[1:]])
    settings = "".join(f"{name}={shlex.quote(value)} " for name, value in variables.items())
    tail = "\n".join(line for line in ran.output.splitlines()[-60:] if line.strip())
    return f"{tail}\n\n  again: {settings}{shown}"


def _tests(
    seed: int, given: Time, command: Callable[[int], tuple[list[str], dict[str, str]]], *, once: bool = False
) -> tuple[Outcome, Counter[str]]:
    """Run tests with one seed after the other, and count the outcomes that they print."""
    outcome, counts = Outcome(), Counter[str]()
    while given.left > 0 and not outcome.problems:
        arguments, variables = command(seed + counts["runs"])
        ran = _run([*_PYTEST, *arguments], given, variables)
        if ran.status is None:
            counts["cut off"] += 1
            if re.search(r"^(FAILED|ERROR) ", ran.output, re.MULTILINE):
                outcome.problems.append(_problem(ran, [*_PYTEST, *arguments], variables))
            break
        counts["runs"] += 1
        for number, word in _COUNTS.findall(ran.output[-2_000:]):
            counts[word.rstrip("s") if word.startswith("error") else word] += int(number)
        if ran.status:
            outcome.problems.append(_problem(ran, [*_PYTEST, *arguments], variables))
        if once:
            break
    return outcome, counts


def _said(counts: Counter[str], *words: str) -> str:
    return ", ".join(f"{counts[word]} {word}" for word in words if counts[word])


def run_recording(files: Sequence[str], folder: str, given: Time) -> bool:
    """Record these files of tests into `folder` (see `recording`). Return False if the time was too short.

    It does not matter here if some tests fail: they are not used. Raises `RuntimeError` if the tests could not be run.
    """
    command = [*_PYTEST, "-p", "soak.recording", "-n", str(_JOBS), "--dist", "loadfile", *files]
    ran = _run(command, given, {PLACE: folder})
    if ran.status not in (0, 1, None):
        raise RuntimeError(_problem(ran, command, {PLACE: folder}))
    return ran.status is not None


# ------------------------------------------------------------------------------------------------ the parts


def simulation(seed: int, given: Time) -> Outcome:
    """Simulate worlds from fresh seeds, from `seed` upwards; each of them is checked at every event."""
    toolbus = [sys.executable, "-m", "toolbus", "simulate"]
    seconds = max(1.0, given.left - 5)
    options = ["--first", str(seed), "--seeds", "1000000000", "--seconds", f"{seconds:.0f}", "--jobs", str(_JOBS)]
    command = [*toolbus, *options, "--json", "--keep-going"]
    ran = _run(command, Time(given.until + 60))
    printed: dict[str, object] = {}
    with contextlib.suppress(ValueError):
        printed = json.loads(ran.output[ran.output.index("{") : ran.output.rindex("}") + 1])
    outcome = Outcome(f"{printed.get('requests', 0)} requests of {printed.get('seeds', 0)} seeds, from {seed} on")
    if ran.status != 0:
        broken = json.dumps(printed["broken"], indent=2) if "broken" in printed else ""
        outcome.problems.append(f"{broken}\n{_problem(ran, command, {})}".strip())
    return outcome


def kills(seed: int, given: Time) -> Outcome:
    """Kill processes at random moments, on SQLite and on PostgreSQL, and continue their requests in others."""

    def command(seed: int) -> tuple[list[str], dict[str, str]]:
        variables = {"TOOLBUS_KILLS": str(_KILLS), "TOOLBUS_KILLS_SEED": str(seed)}
        return ["tests/durability/test_kill.py", "-n", "2", "-rs"], variables

    outcome, counts = _tests(seed, given, command)
    outcome.summary = (
        f"{counts['passed'] * _KILLS} random moments, {_said(counts, 'runs', 'failed', 'skipped', 'cut off')}"
    )
    return outcome


def remote(seed: int, given: Time) -> Outcome:
    """Stop and kill workers, kill the NATS server and cut the network at random moments of calls that run elsewhere.

    Also approve requests from another process, and kill their owners.
    """

    def command(seed: int) -> tuple[list[str], dict[str, str]]:
        variables = {
            "TOOLBUS_FAULTS": str(_FAULTS),
            "TOOLBUS_FAULTS_SEED": str(seed % 2**32),
            "TOOLBUS_APPROVALS": str(_APPROVALS),
            "TOOLBUS_APPROVALS_SEEDS": str(_FAULTS),
            "TOOLBUS_APPROVALS_SEED": str(seed % 2**32),
        }
        tests = ["tests/remote/test_nats_faults.py", "tests/handles/test_commands_survive_kills.py"]
        return [*tests, "-n", str(_JOBS), "-rs"], variables

    outcome, counts = _tests(seed, given, command)
    outcome.summary = _said(counts, "runs", "passed", "failed", "skipped", "cut off")
    return outcome


def pages(seed: int, given: Time) -> Outcome:
    """Word simulated requests for pages, in both protocols, and check the protocols' rules; serve slow clients.

    Also watch 200 live requests with the inspector in a browser.
    """

    def command(seed: int) -> tuple[list[str], dict[str, str]]:
        # Each run has worlds of its own, not those of the run before it but one.
        variables = {"TOOLBUS_WEB_SHARES": str(_SHARES), "TOOLBUS_WEB_SEED": str(seed * _WORLDS % 2**32)}
        variables |= {"TOOLBUS_WEB_CLIENTS": str(_CLIENTS), "TOOLBUS_INSPECTOR_SECONDS": str(_LIVE_SECONDS)}
        names = ("test_encoders_simulated.py", "test_slow_clients.py", "inspector/test_inspector_page.py")
        tests = [f"tests/web/{each}" for each in names]
        return [*tests, "-n", str(_JOBS), "-k", "rules or slow or 200_live", "-o", "timeout=0"], variables

    outcome, counts = _tests(seed, given, command)
    outcome.summary = f"{counts['runs'] * _SHARES * 250} requests, {_said(counts, 'runs', 'failed', 'cut off')}"
    return outcome


def fuzzing(seed: int, given: Time) -> Outcome:
    """Run the tests of Hypothesis, with fresh seeds and more examples."""

    def command(seed: int) -> tuple[list[str], dict[str, str]]:
        options = ["-p", "soak.fuzzing", "--hypothesis-profile=soak", f"--hypothesis-seed={seed}"]
        return ["-m", "hypothesis and not live", *options, "-n", str(_JOBS), "--dist", "worksteal"], {}

    outcome, counts = _tests(seed, given, command)
    outcome.summary = _said(counts, "runs", "passed", "failed", "error", "cut off")
    return outcome


def hostile(seed: int, given: Time) -> Outcome:
    """Run the tests of hostile model servers, MCP servers, schemas, patterns and files, with fresh hash seeds."""
    files = sorted({str(each.relative_to(ROOT)) for pattern in HOSTILE for each in ROOT.glob(pattern)})

    def command(seed: int) -> tuple[list[str], dict[str, str]]:
        variables = {"PYTHONHASHSEED": str(seed % 2**32)}
        return [*files, "-n", str(_JOBS), "--dist", "worksteal", "-m", "not live and not hypothesis"], variables

    outcome, counts = _tests(seed, given, command, once=True)
    outcome.summary = _said(counts, "passed", "failed", "error", "skipped", "cut off")
    return outcome


def scale(seed: int, given: Time) -> Outcome:
    """Run a fleet of processes with as many requests as the time allows, at most 100,000, in virtual time."""
    count = max(1_000, min(_FLEET_REQUESTS, int(given.left * _FLEET_REQUESTS_A_SECOND)))
    command = [sys.executable, "-m", "soak.scale", "--requests", str(count), "--seed", str(seed % 2**32)]
    ran = _run(command, given)
    print(ran.output)
    if ran.status is None:
        return Outcome(f"{count:,} requests, cut off")
    outcome = Outcome(f"{count:,} requests on 20 processes")
    if ran.status:
        outcome.problems.append(_problem(ran, command, {}))
    return outcome


PARTS: dict[str, Part] = {
    "hostile": hostile,
    "kills": kills,
    "remote": remote,
    "pages": pages,
    "scale": scale,
    "fuzzing": fuzzing,
    "simulation": simulation,
}
