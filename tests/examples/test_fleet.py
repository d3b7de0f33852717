"""The fleet: requests finish although the processes that run them and their calls are killed in the middle."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.environments import importing_from

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60.0


class Run:
    """The example without a terminal: what is typed, and the lines that it has shown."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def type(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def until(self, who: str, what: str, *, times: int = 1) -> None:
        """Wait until a process has said something so often."""
        with self._more:
            seen = self._more.wait_for(lambda: len(self.said(who, what)) >= times, PATIENCE_SECONDS)
        assert seen, "\n".join(self.lines)

    def said(self, who: str, what: str = "") -> list[str]:
        return [line for line in self.lines if line[10:].startswith(who) and what in line]

    def end(self) -> int:
        """End the input, and return the exit status, which comes once all questions are answered."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        status = self.process.wait(PATIENCE_SECONDS)
        self._thread.join()
        return status

    def _read(self) -> None:
        for line in self.process.stdout or ():
            with self._more:
                self.lines.append(line.rstrip())
                self._more.notify_all()


@pytest.fixture
def run() -> Iterator[Run]:
    command = [sys.executable, "-m", "examples.fleet"]
    environment = importing_from(ROOT, FLEET_SECONDS="3")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Run(process)
        finally:
            process.kill()


@pytest.mark.guarantee("G19", "G24")
def test_requests_finish_although_a_web_process_and_a_worker_are_killed_in_their_middle(run: Run) -> None:
    for name in ("web-1", "web-2", "pictures", "sums"):
        run.until(name, "is ready")
    run.type("A cat")
    run.until("web-1", "request started")
    run.type("A dog")
    run.until("web-2", "request started")
    run.until("pictures", "attempt 1", times=2)
    run.type("1")
    run.type("3")
    run.until("pictures", "WAS KILLED")
    of_web_1 = len(run.said("web-1"))
    run.type("3")
    assert run.end() == 0
    assert {line.split("] ")[1].split(" (")[0] for line in run.said("answer")} == {
        "Here is a picture of 'A cat', with 4 letters.",
        "Here is a picture of 'A dog', with 4 letters.",
    }
    # The other web process has continued the request, the worker has drawn again, and the dead one says nothing.
    [begun] = run.said("web-1", "request started")
    request = begun[begun.index("[") : begun.index("]") + 1]
    assert run.said("web-2", f"{request} request resumed")
    assert run.said("web-2", f"{request} request completed")
    assert len(run.said("pictures", "attempt 2")) == 2
    assert len(run.said("sums", "attempt")) == 2
    assert len(run.said("web-1")) == of_web_1
