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
import sys
from collections.abc import Generator
from uuid import uuid4

from .guarded_process import HOST, GuardedProcess, GuardedServer, data_folder, free_port, takes_connections

_PORTS_TRIED = 5


@functools.cache
def shared() -> MongoServer:
    """Return the running server that all tests of this process share. It ends with the process."""
    server = MongoServer()
    atexit.register(server.close)
    return server


class MongoServer(GuardedServer):
    """A server for pymongo: see `GuardedServer`."""

    _name = "nx-27017"

    def __init__(self) -> None:
        """Start it without data, in about 0.3 s. Writes reach the disk at once only with `j=true` in the URL."""
        for left in reversed(range(_PORTS_TRIED)):
            self.folder = data_folder(prefix="toolbus-mongo-")
            """The folder of the data, with a file for each database; it is deleted at the end."""
            self.port = free_port()
            self._process = GuardedProcess(self._command(), folder=self.folder)
            try:
                self.start()
                return
            except RuntimeError:  # another process may have taken the port meanwhile
                self.close()
                if not left:
                    raise

    @property
    def url(self) -> str:
        """The URL for `MongoClient`, which stays the same after `kill` and `start`."""
        return f"mongodb://{HOST}:{self.port}/?directConnection=true"

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

    def _command(self) -> list[str]:
        # Otherwise, all servers of the machine would share the names of its log and of the file with its process id.
        names = ["--log-file", str(self.folder / "server.log"), "--pid-file", str(self.folder / "pid")]
        place = ["--host", HOST, "--port", str(self.port), "--data-dir", str(self.folder / "data")]
        return [sys.executable, "-I", "-m", "nx_27017.nx_27017", *place, *names]

    def _is_ready(self) -> bool:
        return takes_connections(self.port)
