"""CPU time of a request in other runtimes, against a toolbus session. Each runtime has its own process and environment.

The environments are made from benchmarks/peers/NAME.txt. There is one for each runtime, because their requirements
contradict one another. If an environment cannot be made, the runtime's row says so. The process of a runtime stays, and
takes turns with toolbus, which runs in this process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

from .plumbing import Effort, Goal, Row, alternate, compared, cpu_us, run, shown_us
from .work import at_once, sessions

PEERS = Path(__file__).parent / "peers"
ENVIRONMENTS = Path(__file__).parents[1] / ".dev" / "peer-environments"
REQUESTS, PEER_REQUESTS = 1_000, 200
GOALS = {
    "autogen-core": Goal(5.0, at_least=True),
    "langgraph": Goal(20.0, at_least=True),
    "llama-index-workflows": Goal(20.0, at_least=True),
    "openai-agents": Goal(20.0, at_least=True),
    "pydantic-ai": Goal(20.0, at_least=True),
    "bubus": None,  # bubus is only a bus, without an agent loop
}
WIDTHS = {"bubus": 10}  # bubus refuses more than 100 pending events
TURN_SECONDS = 120.0


class PeerFailed(Exception):
    """The error of a runtime that cannot be measured; its text says why."""


class Peer:
    """A runtime's process, which is ready to measure."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self._process = process
        self.name = name
        self.version: str = self._answer()["version"]

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        watchdog = threading.Timer(TURN_SECONDS, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise PeerFailed(f"{self.name} has ended, or did not answer within {TURN_SECONDS:.0f} s")
        return json.loads(line)

    async def cpu_us(self, requests: int, width: int) -> float:
        """CPU time of a request, in microseconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{requests} {width}\n")
        self._process.stdin.flush()
        return self._answer()


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment, which is made at the first use, and again when its lock file changes.

    Raises `PeerFailed` if it cannot be made. `dev.py bench` names the uv to use in the variable UV, and the registry in
    the variables of uv.
    """
    lock, home = PEERS / f"{name}.txt", ENVIRONMENTS / name
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    stamp = home / ".toolbus-peer"
    key = hashlib.sha256(f"{sys.version_info[:2]} {home}".encode() + lock.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="utf-8") == key:
        return python
    uv = os.environ.get("UV") or shutil.which("uv")
    if not uv:
        raise PeerFailed("did not install: there is no uv; `python3 dev.py bench` brings it")
    for command in (
        ["venv", "--quiet", "--clear", "--no-project", "--python", sys.executable, str(home)],
        ["pip", "install", "--quiet", "--python", str(python), "--requirements", str(lock)],
    ):
        done = subprocess.run([uv, *command], check=False, capture_output=True, text=True, cwd=PEERS)
        if done.returncode:
            print(f"{name} does not install:\n{done.stderr.strip()}", file=sys.stderr)  # it may name a registry
            raise PeerFailed("did not install; standard error says why")
    stamp.write_text(key, encoding="utf-8")
    return python


@contextlib.contextmanager
def started(name: str, python: Path | str) -> Generator[Peer]:
    """Start the process of a runtime for one block. Raises `PeerFailed` with the last line of its output."""
    command = [str(python), str(PEERS / "work.py"), name]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        said: list[str] = []
        assert process.stderr is not None
        reader = threading.Thread(target=said.extend, args=(process.stderr,), daemon=True)
        reader.start()
        try:
            yield Peer(process, name)
        except (PeerFailed, OSError) as exc:
            process.kill()
            reader.join(5)
            last = next((line.strip() for line in reversed(said) if line.strip()), str(exc))
            raise PeerFailed(last[:200]) from exc
        finally:
            process.kill()
            reader.join(5)


async def measured(name: str, python: Path | str, effort: Effort) -> Row:
    """Measure one installed peer, and return its row."""
    goal = GOALS.get(name)
    width = WIDTHS.get(name, 100)
    ours_count, their_count = effort.of(REQUESTS, least=2), effort.of(PEER_REQUESTS, least=2)
    with started(name, python) as peer:
        async with sessions() as one:
            await at_once(one, ours_count, width)
            ours, theirs = await alternate(
                effort.repeats,
                lambda: cpu_us(at_once(one, ours_count, width), ours_count),
                lambda: peer.cpu_us(their_count, width),
            )
    figures = compared(theirs, ours)
    return Row(
        f"{name} {peer.version}".strip(),
        shown_us(figures.theirs),
        shown_us(figures.ours),
        figures.ratio,
        figures.lowest,
        figures.highest,
        goal=goal,
        remark=f"{width} at once",
    )


async def _figure(effort: Effort) -> list[Row]:
    rows: list[Row] = []
    for name, goal in GOALS.items():
        try:
            rows.append(await measured(name, python_of(name), effort))
        except PeerFailed as exc:
            rows.append(Row(name, "-", "-", goal=goal, remark=str(exc)))
    return rows


def peers(effort: Effort) -> list[Row]:
    """Measure the CPU time of a request in other runtimes, as a multiple of toolbus's."""
    return run(_figure, effort)
