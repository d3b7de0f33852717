"""Processes for tests that run a program of ours: forked from a process that has imported it, and not started anew.

    with forked.Process(worker_child.main, url, prefix) as process:      # calls it in another process
        assert process.stdout.readline() == b"ready\n"
        process.kill()

A new interpreter takes over a second of CPU time to import toolbus, and a fork some milliseconds. This file is the
program of the process that forks. A test process has one, which `start` starts; it imports a program's module at its
first use. When the test process ends, whatever ends it, the forking process kills the processes that still run. Whatever
a forked process has started is killed when that process ends.

Async tests have a fixture that starts it before them: the census would count a process that starts within a test. The
forked processes are its children, so the census does not see them; a test uses `with`, at whose end its process is
killed. None is measured for coverage. POSIX only.

`multiprocessing` has a server that forks, too. Its processes outlive a test process that is killed, have no input and output
of their own, and leave behind what they have started.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import anyio
import anyio.lowlevel

_MOST_BYTES = 2**16
"""The size of a request to fork: far more than the arguments of any program."""


@functools.cache
def start() -> _Forker:
    """Return the process of this test process that forks. It ends with the test process."""
    forker = _Forker()
    atexit.register(forker.close)
    return forker


class _Forker:
    """The forking process, as the test process sees it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, json.dumps([theirs.fileno(), sys.path])],
                pass_fds=[theirs.fileno()],
                env={name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")},
                start_new_session=True,  # only the test process handles Ctrl-C on the terminal
            )

    def close(self) -> None:
        """End the process, and with it those that it has forked."""
        self._socket.close()
        self._process.wait()

    def fork(self, function: Callable[..., Any], arguments: Sequence[Any], files: Sequence[int]) -> int:
        """Fork a process, and return its id. It gets copies of the files: stdin, stdout, stderr, and its end."""
        request = json.dumps([inspect.getfile(function), function.__name__, arguments]).encode()
        assert len(request) <= _MOST_BYTES, "the arguments are too large"
        with self._lock:
            socket.send_fds(self._socket, [request], files)
            answer = self._socket.recv(_MOST_BYTES)
        assert answer, "the process that forks has ended: see its traceback in the output"
        return int(answer)


class Process:
    """A process that calls a function of a module, which may be async. At the end of `with`, it is killed."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        """The arguments cross as JSON."""
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        ours_end, theirs_end = os.pipe()
        try:
            self.pid = start().fork(function, arguments, [theirs_in, theirs_out, 2, theirs_end])
        finally:
            for each in (theirs_in, theirs_out, theirs_end):
                os.close(each)
        self.stdin = os.fdopen(ours_in, "wb", buffering=0)
        self.stdout = os.fdopen(ours_out, "rb")
        self._end = os.fdopen(ours_end, "rb", buffering=0)
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.wait(0) is None:
            with contextlib.suppress(ProcessLookupError):  # It may end at this moment.
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL to the process, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for the end, and return the exit code as `Popen` does; None if the time is over before."""
        if self.returncode is None and select.select([self._end], [], [], seconds)[0]:
            self.returncode = int(self._end.read() or -signal.SIGKILL)
        return self.returncode

    def close(self) -> None:
        """Kill the process unless it has ended, and close the files. This may be called twice."""
        if self._end.closed:
            return
        self.kill()
        self.wait()
        for each in (self.stdin, self.stdout, self._end):
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ------------------------------------------------------------------------------------------------- the forking process


def _fork_on_request(requests: socket.socket) -> None:
    """Fork a process for each request, until the test process has ended. In a forked process, run its program."""
    signal.signal(signal.SIGCHLD, _wake)  # so that the end of a process wakes `select`
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    ends: dict[int, int] = {}  # by process id, the file for the exit code
    while True:
        ready = select.select([requests, woken], [], [])[0]
        if woken in ready:
            os.read(woken, _MOST_BYTES)
            _report_ends(ends)
        if requests not in ready:
            continue
        request, files, _, _ = socket.recv_fds(requests, _MOST_BYTES, 4)
        if not request:
            break
        path, name, arguments = json.loads(request)
        function = getattr(_imported(Path(path)), name)
        process_id = os.fork()
        if not process_id:
            os.setsid()  # It leads a group, and can have a terminal.
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            for each in (woken, wakes, files.pop(), *ends.values()):
                os.close(each)
            _run(function, arguments, files)
            return
        ends[process_id] = files.pop()
        for each in files:
            os.close(each)
        requests.sendall(str(process_id).encode())
    for each in ends:
        os.kill(each, signal.SIGKILL)  # It may not lead its group yet.
        _kill_group(each)


def _wake(_number: int, _frame: object) -> None:
    """Do nothing: the signal has written to the pipe."""


def _report_ends(ends: dict[int, int]) -> None:
    for process_id in [*ends]:
        ended, status = os.waitpid(process_id, os.WNOHANG)
        if ended:
            _kill_group(process_id)
            with os.fdopen(ends.pop(process_id), "wb") as file:
                file.write(str(os.waitstatus_to_exitcode(status)).encode())


def _kill_group(process_id: int) -> None:
    """Kill a forked process, and what it has started, unless all of them have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS permits no signal to ended processes.
        os.killpg(process_id, signal.SIGKILL)


def _imported(path: Path) -> ModuleType:
    """Import a module of a test's folder."""
    if path.stem not in sys.modules:
        sys.path.insert(0, str(path.parent))
        importlib.import_module(path.stem)
        anyio.run(anyio.lowlevel.checkpoint)  # This imports the event loop.
        gc.collect()
        gc.freeze()  # so that a collection in a forked process copies no page
    return sys.modules[path.stem]


def _run(function: Callable[..., Any], arguments: Sequence[Any], files: Sequence[int]) -> None:
    for standard, each in enumerate(files):
        os.dup2(each, standard)
        os.close(each)
    if inspect.iscoroutinefunction(function):
        anyio.run(function, *arguments)
    else:
        function(*arguments)


if __name__ == "__main__":
    number, sys.path[:] = json.loads(sys.argv[1])
    _fork_on_request(socket.socket(fileno=number))
