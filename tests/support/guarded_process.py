"""A server process that never outlives the test process: a guard starts it, and kills it when the test process ends.

The guard is this file, run as a program of its own. It reads a pipe whose other end the test process holds; when that
end closes (after a normal end, a crash or a `kill -9`), the guard kills the server with all its children and deletes
its folder. Since the server is the guard's child, it can be killed and started again within a test without a new child
process for the census to find.

This module knows processes and signals, and nothing about any one server. POSIX only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import psutil

_PATIENCE_SECONDS = 30.0
"""The time in which a signal must have an effect: far more than a busy machine needs."""
_POLL_SECONDS = 0.001
_START_SECONDS = 60.0
_START_POLL_SECONDS = 0.005
HOST = "127.0.0.1"
_MEMORY = Path("/dev/shm")
_FREE_BYTES = 4 * 2**30
"""Far more than the servers of all test processes write; half of the memory is the usual size."""


class GuardedProcess:
    """One program under a guard, in a folder that is deleted with it. `start` starts it, and may be called again."""

    def __init__(self, command: Sequence[str | Path], *, folder: Path, user: str | None = None) -> None:
        """`user` is the user of the program (only root may name one). Its output is `log`, in `folder`."""
        self.log = folder / "log"
        self.pid = 0
        """The process id of the program; 0 if it was not started, or was killed here."""
        self._lock = threading.Lock()
        variables = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
        options = {"command": [str(part) for part in command], "folder": str(folder), "user": user}
        self._guard = subprocess.Popen(
            [sys.executable, "-I", __file__, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
            start_new_session=True,  # only the test process handles Ctrl-C on the terminal
        )

    def start(self) -> int:
        """Start the program, and return its process id. It may not listen yet."""
        assert not self.pid, "it runs already"
        self.pid = self._ask("start")
        return self.pid

    def kill(self) -> None:
        """Send SIGKILL to the program and its children at one moment, and return when they have ended."""
        self._ask("kill")
        self.pid = 0

    def halt(self) -> None:
        """Send SIGSTOP to the program and its children: connections stay open, without any answer."""
        self._ask("halt")

    def resume(self) -> None:
        """Send SIGCONT to all processes that `halt` has stopped. It has no effect on a running program."""
        self._ask("resume")

    def has_ended(self) -> bool:
        """Return whether the program has ended, by itself or by `kill`."""
        return self._ask("ended") == 1

    def close(self) -> None:
        """Kill the program if it runs, delete its folder, and end the guard. This may be called twice."""
        with self._lock, contextlib.suppress(BrokenPipeError):
            self._guard.communicate(timeout=2 * _PATIENCE_SECONDS)
        self.pid = 0

    def _ask(self, what: str) -> int:
        with self._lock:
            assert self._guard.stdin is not None
            assert self._guard.stdout is not None
            self._guard.stdin.write(what + "\n")
            self._guard.stdin.flush()
            answer = self._guard.stdout.readline()
        if not answer:
            raise RuntimeError(f"the guard ended instead of answering {what!r}")
        return int(answer)


class GuardedServer(ABC):
    """A server with its data, running from the start until `close` or the end of this process, whatever ends it.

    A subclass makes `_process`, and then calls `start`. `_name` is the server's in errors.
    """

    _name: str
    _process: GuardedProcess

    @abstractmethod
    def _is_ready(self) -> bool:
        """Return whether the server accepts connections."""

    @property
    def pid(self) -> int:
        """The server's process id; 0 after `kill`."""
        return self._process.pid

    def start(self) -> None:
        """Start it (again) with the existing data, and wait until it accepts connections. It must not be running."""
        self._process.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_ready():
            if self._process.has_ended() or time.monotonic() > deadline:
                said = self._process.log.read_text(errors="replace")
                raise RuntimeError(f"{self._name} did not start; its log:\n{said}")
            time.sleep(_START_POLL_SECONDS)

    def kill(self) -> None:
        """Send SIGKILL to all its processes at one moment, as when a machine dies. Connections break."""
        self._process.kill()

    def halt(self) -> None:
        """Send SIGSTOP to all its processes: connections stay open without an answer, and new ones hang."""
        self._process.halt()

    def resume(self) -> None:
        """Send SIGCONT to all its processes."""
        self._process.resume()

    @contextlib.contextmanager
    def halted(self) -> Generator[None]:
        """Halt the server for the length of the block."""
        self.halt()
        try:
            yield
        finally:
            self.resume()

    def revive(self) -> None:
        """Make the server run again, after `kill` or `halt`. It has no effect on a running server."""
        self.resume()
        if self._process.has_ended():
            self._process.pid = 0
            self.start()

    def close(self) -> None:
        """Stop the server and delete its data. This may be called twice."""
        self._process.close()


def data_folder(prefix: str) -> Path:
    """Make a folder for a server's data: in memory if enough is free, because a disk may take milliseconds for a commit.

    What a killed server has written stays there as it does on a disk.
    """
    return Path(tempfile.mkdtemp(prefix=prefix, dir=_MEMORY if _has_space(_MEMORY) else None))


def _has_space(folder: Path) -> bool:
    if not os.access(folder, os.W_OK):
        return False
    system = os.statvfs(folder)
    runs_no_programs = system.f_flag & getattr(os, "ST_NOEXEC", 0)  # Linux has it.
    return system.f_bavail * system.f_frsize > _FREE_BYTES and not runs_no_programs


def free_port() -> int:
    """Return a port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def takes_connections(port: int) -> bool:
    """Return whether somebody listens on a port of this machine."""
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=10):
        return True
    return False


# ------------------------------------------------------------------------------------------------- the guard


def _guard(options: dict[str, Any]) -> None:
    folder = Path(options["folder"])
    server: subprocess.Popen[Any] | None = None
    try:
        for line in sys.stdin:
            what, answer = line.strip(), 0
            if what == "start":
                server = _started(options, folder)
                answer = server.pid
            elif what == "ended":
                answer = int(server is None or server.poll() is not None)
            elif server is not None:
                _do(what, server)
            sys.stdout.write(f"{answer}\n")
            sys.stdout.flush()
    finally:
        if server is not None:
            _end(server)
        shutil.rmtree(folder, ignore_errors=True)


def _started(options: dict[str, Any], folder: Path) -> subprocess.Popen[Any]:
    as_user: dict[str, Any] = {}
    if options["user"] is not None:
        as_user = {"user": options["user"], "group": _group_of(options["user"]), "extra_groups": ()}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            options["command"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
            **as_user,
        )


def _group_of(user: str) -> int:
    import pwd

    return pwd.getpwnam(user).pw_gid


def _do(what: str, server: subprocess.Popen[Any]) -> None:
    if what == "halt":
        _halt(server)
    elif what == "resume":
        for process in _family(server):
            _signal(process, signal.SIGCONT)
    elif what == "kill":
        _kill(server)


def _family(server: subprocess.Popen[Any]) -> list[psutil.Process]:
    """The program, then all its descendants."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if server.poll() is None:
            parent = psutil.Process(server.pid)
            return [parent, *parent.children(recursive=True)]
    return []


def _signal(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _halt(server: subprocess.Popen[Any]) -> None:
    halted: set[psutil.Process] = set()
    while new := set(_family(server)) - halted:  # until no process is left that could start another
        for process in new:
            _signal(process, signal.SIGSTOP)
        halted |= new


def _kill(server: subprocess.Popen[Any]) -> None:
    _halt(server)  # so that no child continues after its parent has ended
    family = _family(server)
    for process in family:
        _signal(process, signal.SIGKILL)
    server.wait()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while any(_lives(process) for process in family[1:]) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _lives(process: psutil.Process) -> bool:
    """Return whether a process runs. A zombie does not: in some containers, PID 1 never collects orphans."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _end(server: subprocess.Popen[Any]) -> None:
    """End the server by SIGQUIT, with which PostgreSQL releases its shared memory; its data is deleted anyway."""
    for process in _family(server):
        _signal(process, signal.SIGCONT)
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        server.send_signal(signal.SIGQUIT)
        server.wait(_PATIENCE_SECONDS / 2)
    _kill(server)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the guard ends when its pipe closes, after its server
    _guard(json.loads(sys.argv[1]))
