"""A server for the real pymongo, from the wheel `nx-27017`: MongoDB's wire protocol over SQLite.

    server = mongo_server.shared()             # one per test process, started at the first use
    with server.database() as (url, name):     # empty
        MongoClient(url)[name]
    server.kill(); server.start()              # a crash, and the same data again on the same port

It is not MongoDB, for which no package was found. nx-27017 0.8.1 supports what `tests/stores/test_database_servers.py`
tests: unique keys (E11000, compound ones too, in races as well), compare-and-set by update and by find_one_and_update,
upsert with $set, $setOnInsert and $inc, ordered bulks, sort, limit, getMore, and all data after a `kill -9`. It
differs from MongoDB in the following, without an error unless one is named:
- `$or` beside another field may be evaluated wrongly (seen with a comparison in it), and then an update changes another
  document. With both inside `$and` it is right.
- `$push` of a document stores its JSON as a string. `$addToSet`, and lists in `$set` and in inserts, store it.
- replacing with upsert invents an `_id` instead of using the filter's; so write with `$set`.
- numbers as `_id` sort as text, and replacements and `$group` return them as text. Strings are right.
- null and missing: `{"x": None}` within `$or` does not find a null, `$ne: None` finds documents without x, and a unique
  index accepts many of them. Unique indexes ignore partialFilterExpression (E11000 for documents that it leaves out).
- a document as `_id` and an update by a pipeline are refused; filters do not find an index into a list ("x.2").
- E11000 names no keyPattern, and making an index over duplicates fails with an error without a code.
- transactions do not isolate; there are no change streams. The retry after a lost reply is written a second time.

Use it from a fixture with a wider scope than one test (`tests/stores/conftest.py` has `mongo`), because the census
would count a server that starts within a test. It listens on the loopback interface, at a free port.

If the wheel is missing, `shared` fails, and so do the tests that use it: none of them is skipped.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import socket
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from uuid import uuid4

from .guarded_process import GuardedProcess

_PATIENCE_SECONDS = 30.0
_POLL_SECONDS = 0.01
_PORTS_TRIED = 5
_HOST = "127.0.0.1"


@functools.cache
def shared() -> MongoServer:
    """Return the running server that all tests of this process share. It ends with the process."""
    server = MongoServer()
    atexit.register(server.close)
    return server


class MongoServer:
    """A server with its data, running from the start until `close` or the end of this process, whatever ends it."""

    def __init__(self) -> None:
        """Start it without data, in about 0.3 s. Writes reach the disk at once only with `j=true` in the URL."""
        for left in reversed(range(_PORTS_TRIED)):
            self.folder = Path(tempfile.mkdtemp(prefix="toolbus-mongo-"))
            """The folder of the data, with a file for each database; it is deleted at the end."""
            self.port = _free_port()
            self._process = GuardedProcess(self._command(), folder=self.folder)
            try:
                self.start()
                return
            except RuntimeError:  # another process may have taken the port meanwhile
                self.close()
                if not left:
                    raise

    @property
    def pid(self) -> int:
        """The server's process id; 0 after `kill`."""
        return self._process.pid

    @property
    def url(self) -> str:
        """The URL for `MongoClient`, which stays the same after `kill` and `start`."""
        return f"mongodb://{_HOST}:{self.port}/?directConnection=true"

    @contextlib.contextmanager
    def database(self) -> Generator[tuple[str, str]]:
        """Yield the server's URL and the name of an unused database.

        The server runs again after the block, even if the block has killed or halted it. The data stays until the
        server ends.
        """
        try:
            yield self.url, f"test_{uuid4().hex}"
        finally:
            self.revive()

    def start(self) -> None:
        """Start it (again) with the existing data, and wait until it accepts connections. It must not be running."""
        self._process.start()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self._takes_connections():
            if self._process.has_ended() or time.monotonic() > deadline:
                said = self._process.log.read_text(errors="replace")
                raise RuntimeError(f"nx-27017 did not start; its log:\n{said}")
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        """Send SIGKILL, as when a machine dies. Connections break."""
        self._process.kill()

    def halt(self) -> None:
        """Send SIGSTOP: connections stay open without an answer, and new ones hang."""
        self._process.halt()

    def resume(self) -> None:
        """Send SIGCONT."""
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

    def _command(self) -> list[str]:
        # Otherwise, all servers of the machine would share the names of its log and of the file with its process id.
        names = ["--log-file", str(self.folder / "server.log"), "--pid-file", str(self.folder / "pid")]
        place = ["--host", _HOST, "--port", str(self.port), "--data-dir", str(self.folder / "data")]
        return [sys.executable, "-I", "-m", "nx_27017.nx_27017", *place, *names]

    def _takes_connections(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((_HOST, self.port), timeout=1):
            return True
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return probe.getsockname()[1]
