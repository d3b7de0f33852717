"""A server for real pymongo to talk to, from the wheel `nx-27017`: MongoDB's wire protocol over SQLite.

    server = mongo_server.shared()             # one per test process, started by the first who asks
    with server.database() as (url, name):     # empty
        MongoClient(url)[name]
    server.kill(); server.start()              # a crash, and the same data again on the same port

It is not MongoDB, for which no package was found. nx-27017 0.8.1 keeps what `tests/stores/test_database_servers.py`
shows: unique keys (E11000, compound ones too, in races as well), compare-and-set by update and by find_one_and_update,
upsert with $set, $setOnInsert and $inc, ordered bulks, sort, limit, getMore, and all of it over a `kill -9`. Not, and
without an error unless one is named:
- `$or` beside another field may bind wrongly (seen with a comparison in it), and an update then hits another document.
  With both inside `$and` it is right.
- `$push` of a document stores its JSON as a string. `$addToSet`, and lists in `$set` and in inserts, keep it.
- replacing with upsert makes up an `_id` instead of taking the filter's; so write with `$set`.
- numbers as `_id` sort as text, and come back as text from replacements and `$group`. Strings are right.
- null and missing: `{"x": None}` within `$or` does not find a null, `$ne: None` finds what has no x, and a unique index
  lets many in that have no x. Unique indexes heed no partialFilterExpression (E11000 for what it leaves out).
- a document as `_id` and an update by a pipeline are refused; a place in a list ("x.2") is not found in a filter.
- E11000 names no keyPattern, and an error without a code comes when an index is made over duplicates.
- transactions do not isolate; there are no change streams. A lost reply's retry is not recognised: it is written twice.

Ask for it in a fixture of a wider scope than a test's (`tests/stores/conftest.py` has `mongo`): the census would count
a server that starts within a test. It listens on the loopback interface, at a free port.

Where the wheel is missing `shared` fails, and so do the tests that ask for it: none is skipped.
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
    """The server of this test process, running; the same one for all. Ends with the process."""
    server = MongoServer()
    atexit.register(server.close)
    return server


class MongoServer:
    """A server with its data, running from the start until `close` or the end of this process, whatever ends it."""

    def __init__(self) -> None:
        """Start it, empty: some 0.3 s. Writes reach the system at once, the disk only with `j=true` in the URL."""
        for left in reversed(range(_PORTS_TRIED)):
            self.folder = Path(tempfile.mkdtemp(prefix="toolbus-mongo-"))
            """Holds the data, a file for each database; deleted at the end."""
            self.port = _free_port()
            self._process = GuardedProcess(self._command(), folder=self.folder)
            try:
                self.start()
                return
            except RuntimeError:  # somebody else may have taken the port meanwhile
                self.close()
                if not left:
                    raise

    @property
    def pid(self) -> int:
        """Its process id; 0 after `kill`."""
        return self._process.pid

    @property
    def url(self) -> str:
        """What `MongoClient` takes. The same over `kill` and `start`."""
        return f"mongodb://{_HOST}:{self.port}/?directConnection=true"

    @contextlib.contextmanager
    def database(self) -> Generator[tuple[str, str]]:
        """The server's URL and the name of a database that nobody has used.

        Leaves a running server behind: one that the block has killed or halted is brought back. The data stays until
        the server ends.
        """
        try:
            yield self.url, f"test_{uuid4().hex}"
        finally:
            self.revive()

    def start(self) -> None:
        """Start it (again) on the data there is, and wait until it takes connections. It must not be running."""
        self._process.start()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self._takes_connections():
            if self._process.has_ended() or time.monotonic() > deadline:
                said = self._process.log.read_text(errors="replace")
                raise RuntimeError(f"nx-27017 did not start; its log:\n{said}")
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        """SIGKILL, as when a machine dies. Connections break."""
        self._process.kill()

    def halt(self) -> None:
        """SIGSTOP: connections stay open, nobody answers, new ones hang."""
        self._process.halt()

    def resume(self) -> None:
        """SIGCONT."""
        self._process.resume()

    @contextlib.contextmanager
    def halted(self) -> Generator[None]:
        """Halted for as long as the block takes."""
        self.halt()
        try:
            yield
        finally:
            self.resume()

    def revive(self) -> None:
        """Bring it back whatever was done to it. Does nothing to one that runs."""
        self.resume()
        if self._process.has_ended():
            self._process.pid = 0
            self.start()

    def close(self) -> None:
        """Stop it and delete its data. May be called twice."""
        self._process.close()

    def _command(self) -> list[str]:
        # Its log and the file with its process id would else have one name for all servers of the machine.
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
