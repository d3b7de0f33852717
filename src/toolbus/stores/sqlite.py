"""A store in one SQLite file, which processes on one machine can share. Needs only the standard library.

Knows the driver `sqlite3`, files and their modes. Everything else is in `sql`, the engine that it shares with
PostgreSQL.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
import sys
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from itertools import chain
from math import ceil
from pathlib import Path
from time import monotonic, sleep
from typing import Literal, get_args

from .._option_checks import POSITIVE, check, one_of
from ..clock import wall_time
from ..errors import ConfigurationError, StoreDamaged, StoreError, StoreUnavailable
from ..storage import Durability
from ._thread import TIMEOUT_SECONDS
from .sql import FORMAT, MANY, Database, DatabaseStore, Row, Rows, bring_up_to_date

if sys.platform != "win32":
    import fcntl

__all__ = ["SqliteStore"]

APPLICATION_ID = 0x54426A6C
"""The number in the file's header that distinguishes it from the databases of other programs: "TBjl"."""

_logger = logging.getLogger("toolbus.store")
_OLDEST = (3, 24, 0)  # the first version with ON CONFLICT DO NOTHING
_TYPES = {"blob": "BLOB", "whole": "INTEGER", "real": "REAL", "text": "TEXT"}
# The size to which SQLite cuts the write-ahead log's file when the log starts again from its beginning.
_WAL_BYTES = 64 * 1024 * 1024
# The steps of SQLite's virtual machine between two checks of the deadline: well under a millisecond.
_CHECK_EVERY = 10_000
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_INTERRUPT)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# The most rows of values in one statement. A row has at most seven, and older versions take 999 values in all.
_PIECE = 128
_HAS_UPDATE_FROM = sqlite3.sqlite_version_info >= (3, 33)
_OWN_FAULTS = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, ValueError, TypeError, OverflowError)
_has_warned: list[bool] = []


class _Replaced(Exception):
    """The path of the database, or of its write-ahead log, leads to another file than the open one, or to none."""


class SqliteStore(DatabaseStore):
    """A store in the file `path`: see `Store` and `JournalStore`.

    The file is created when the store is opened. Only its owner can read and write it (mode 0600) and the two files
    that SQLite keeps beside it (`-wal`, `-shm`). Its folder has to exist. The mode of an existing file is not changed.
    Several processes of one machine may use the file at once; it has to be on a disk of that machine, because SQLite's
    log cannot be shared over a network (https://sqlite.org/wal.html, 1.). If the file is deleted or replaced while it
    is open, this is logged, and the next call uses the file that is at the path then.

    `durability` sets what a commit survives. With "power" each commit is synced to the disk before it counts: it
    survives a loss of power, if the disk really writes what it reports as synced (`synchronous=FULL` in WAL mode). With
    "process" a commit is only handed to the operating system (`synchronous=NORMAL`): it survives the end of the
    process, also by a crash; a loss of power or a crash of the operating system may lose the newest commits, and never
    damages the file (https://sqlite.org/pragma.html#pragma_synchronous).

    Leases use this machine's clock. Each call is done or fails within `timeout_seconds`; only a disk that hangs without
    an error cannot be interrupted, and a call then lasts as long as the disk hangs. Errors: `StoreUnavailable` if
    another process holds the file's lock for too long, by default for more than four seconds; `StoreError`, for example
    for a full disk; `StoreDamaged`.

    Example:
        import tempfile
        from pathlib import Path

        from toolbus import Runtime
        from toolbus.stores.sqlite import SqliteStore
        from toolbus.testing import ScriptedProvider, text

        path = Path(tempfile.mkdtemp(), "toolbus.db")
        async with Runtime(ScriptedProvider([text("Hello.")]), store=SqliteStore(path)) as runtime:
            await runtime.run("Hello?", conversation_id="user-1")
        async with Runtime(ScriptedProvider([]), store=SqliteStore(path)) as runtime:  # after a restart
            print(len(await runtime.store.history("user-1")))  # 2
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "power",
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        check("durability", durability, one_of(*get_args(Durability)))
        check("timeout_seconds", timeout_seconds, POSITIVE)
        name = os.fspath(path)
        if not name or name.startswith((":memory:", "file:")) or "://" in name:
            raise ConfigurationError(
                f"{name!r} is not the path of a file; pass one, such as 'toolbus.db', or use MemoryStore"
            )
        if sqlite3.sqlite_version_info < _OLDEST:
            raise ConfigurationError(f"SQLite is {sqlite3.sqlite_version} here; SqliteStore needs 3.24 or newer")
        self.path = Path(name)
        self.durability = durability
        full = self.path.absolute()
        super().__init__(
            f"toolbus {self.path.name}",
            lambda deadline, reads: _Sqlite(full, durability, deadline, reads=reads),
            timeout_seconds=timeout_seconds,
        )

    async def renew(self, owner: str, seconds: float) -> Collection[str]:
        """See `JournalStore.renew`."""
        renewed = await super().renew(owner, seconds)
        if not _has_warned and has_reset_race(sqlite3.sqlite_version_info):
            await self._writer.run(_warn_of_reset_race)
        return renewed


def has_reset_race(version: tuple[int, ...]) -> bool:
    """Return whether this version of SQLite may, rarely, damage a file that several connections write at once.

    It is "the WAL-reset bug" of 3.7.0 to 3.51.2, fixed in 3.51.3, 3.50.7 and 3.44.6 (https://sqlite.org/wal.html, 11.).
    """
    if version[:2] in ((3, 44), (3, 50)):
        return version < ((3, 44, 6) if version[1] == 44 else (3, 50, 7))
    return version < (3, 51, 3)


def _warn_of_reset_race(database: Database) -> None:
    """Log the warning, if another process has written the file: each process has one connection that writes."""
    assert isinstance(database, _Sqlite)
    if database.others_have_written():
        _has_warned.append(True)
        _logger.warning(
            "several processes write %s, and SQLite %s has a bug that can, rarely, damage such a file (the WAL-reset "
            "bug, https://sqlite.org/wal.html); use SQLite 3.51.3 or newer, 3.50.7 or 3.44.6, or only one process",
            database.path,
            sqlite3.sqlite_version,
        )


@cache
def _in_dialect(statement: str) -> str:
    return statement.replace("{now}", "toolbus_now()").replace("{find}", _FIND)


@cache
def _many_rows(statement: Rows, rows: int) -> str:
    return _in_dialect(statement.head + ", ".join([statement.row] * rows) + statement.tail)


# SQLite's `lower` changes only ASCII letters.
_FIND = "instr(lower(coalesce(m.text, CAST(b.data AS TEXT))), ?) > 0"


class _Sqlite(Database):
    """A connection to the file. One that is made with `reads` cannot write."""

    def __init__(self, path: Path, durability: Durability, deadline: float, *, reads: bool) -> None:
        super().__init__()
        self.path = path
        self.deadline = deadline
        # SQLite, too, follows links before it names the log.
        self._real_path = Path(os.path.realpath(path))
        _make_file(self._real_path)
        self._log_path = self._real_path.with_name(f"{self._real_path.name}-wal")
        try:
            self._file = _file_at(self._real_path)
            self._connection = sqlite3.connect(
                self._real_path, timeout=self.remaining_seconds, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as exc:
            raise self.translated(exc) from exc
        self._waits = 0
        # The time of the transaction, which is one moment for all that it writes.
        self._now = wall_time()
        self._is_reading = False  # whether the newest transaction only reads
        try:
            self._prepare(durability, reads=reads)
        except (sqlite3.Error, UnicodeDecodeError, _Replaced) as exc:
            self.close()
            raise self.translated(exc) from exc
        except BaseException:
            self.close()
            raise

    def _prepare(self, durability: Durability, *, reads: bool) -> None:
        run = self._connection.execute
        self._wait_for_locks()
        self._connection.create_function("toolbus_now", 0, lambda: self._now)
        found = self._format()
        [mode] = run("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(
                f"{self.path} cannot have a write-ahead log (its journal mode stays {mode}); put it on a local disk"
            )
        run(f"PRAGMA synchronous = {'FULL' if durability == 'power' else 'NORMAL'}")
        if durability == "power":
            # Without these, macOS syncs only to the disk's own cache. Elsewhere they have no effect.
            run("PRAGMA fullfsync = ON")
            run("PRAGMA checkpoint_fullfsync = ON")
        run(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        [self._version] = run("PRAGMA data_version").fetchone()
        # SQLite has opened the log to read that, and keeps its file as long as anybody has the database open.
        self._log = _file_at(self._log_path)
        if found < FORMAT:
            with self.transaction():
                bring_up_to_date(self, _TYPES, self._format(), str(self.path))
                run(f"PRAGMA application_id = {APPLICATION_ID}")
                run(f"PRAGMA user_version = {FORMAT}")
        if reads:
            run("PRAGMA query_only = ON")
        self._connection.set_progress_handler(self._is_late, _CHECK_EVERY)

    def _format(self) -> int:
        """Return the format of the file; 0 for an empty file. Raises `StoreError` for a file of another program."""
        run = self._connection.execute
        [application], [found] = run("PRAGMA application_id").fetchone(), run("PRAGMA user_version").fetchone()
        if application == APPLICATION_ID:
            if found > FORMAT:
                bring_up_to_date(self, _TYPES, found, str(self.path))
            return found
        [tables] = run("SELECT count(*) FROM sqlite_master").fetchone()
        if application or found or tables:
            raise StoreError(
                f"{self.path} is a database of another program (application id {application}, {tables} tables and "
                "indexes); pass the path of a toolbus store, or of a new file"
            )
        return 0

    def others_have_written(self) -> bool:
        """Return whether another connection has written the file since the last call."""
        before = self._version
        [self._version] = self._connection.execute("PRAGMA data_version").fetchone()
        return self._version != before

    def _is_late(self) -> bool:
        return monotonic() > self.deadline

    def _wait_for_locks(self) -> None:
        """Have SQLite wait for locks until the deadline, or up to a tenth of a second longer.

        It does not wait for less: a transaction that gives up before the deadline of its oldest append would fail
        appends that have time left.
        """
        wait = ceil(min(self.remaining_seconds, TIMEOUT_SECONDS) * 1_000)
        if not wait <= self._waits <= wait + 100:
            self._connection.execute(f"PRAGMA busy_timeout = {wait}")
            self._waits = wait

    # --------------------------------------------------------------------------------------------- statements

    def lock(self, name: Literal["deleted", "blobs"], *, exclusive: bool = True) -> None:
        """See `Database`. Nothing to do, because SQLite has one writer at a time."""

    def rows(self, statement: str, values: Row = ()) -> Sequence[Row]:
        return self._connection.execute(_in_dialect(statement), values).fetchall()

    def run(self, statement: str, values: Row = ()) -> int:
        return self._connection.execute(_in_dialect(statement), values).rowcount

    def run_many(self, statement: str, values: Sequence[Row]) -> int:
        many = MANY.get(statement)
        if many is not None and len(values) > 1 and _HAS_UPDATE_FROM:
            return self.insert(many, values)
        return self._connection.executemany(_in_dialect(statement), values).rowcount

    def insert(self, statement: Rows, values: Sequence[Row]) -> int:
        """See `Database`. Inserts many rows with one statement.

        `executemany` releases the interpreter's lock for each row, and has to get it back from a busy event loop: 1,000
        rows took up to a second, and one statement takes a tenth of that. It is faster without an event loop too. The
        rows of a statement are a power of 2, so that few statements are prepared.
        """
        done, first, left = 0, 0, len(values)
        execute = self._connection.execute
        while left:
            size = min(_PIECE, 1 << (left.bit_length() - 1))
            flat = tuple(chain.from_iterable(values[first : first + size]))
            done += execute(_many_rows(statement, size), flat).rowcount
            first += size
            left -= size
        return done

    def scan(self, statement: str, values: Row = ()) -> Iterable[Row]:
        return self._connection.execute(_in_dialect(statement), values)

    def begin(self, *, reading: bool = False) -> None:
        """See `Database`. A commit to a file that nobody can open any more would be lost."""
        try:
            is_replaced = _file_at(self.path) != self._file or _file_at(self._log_path) != self._log
        except OSError:  # SQLite itself describes a fault of the disk better.
            is_replaced = False
        if is_replaced:
            self._leave_file()
            raise _Replaced
        self._wait_for_locks()
        self._is_reading = reading
        self._connection.execute("BEGIN" if reading else "BEGIN IMMEDIATE")
        self._now = wall_time()

    def _leave_file(self) -> None:
        """Keep what was committed to the file that is open, and keep it out of the file that is at its path now.

        SQLite would apply the write-ahead log of a replaced file to the new one, so this removes that log.
        """
        if sys.platform == "win32":  # It does not replace open files.
            return
        try:
            is_gone, log = _file_at(self._real_path) != self._file, _file_at(self._log_path)
            # A replaced file may have been kept under another name. If only its log was deleted, and there is a new
            # one, another process has opened the file since, and a checkpoint would overwrite what it has written.
            if is_gone or log is None:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            if is_gone and log == self._log:
                self._remove_log()
        except OSError as exc:
            raise StoreUnavailable(
                f"{self.path} was replaced while it was open, and the log of the old file, {self._log_path}, cannot be "
                f"removed: {exc.strerror or exc}; check the permissions of its folder, and whether that is locked"
            ) from exc

    def _remove_log(self) -> None:
        """Remove the open log. The folder's lock keeps two processes from removing one that is for the new file."""
        assert sys.platform != "win32"
        folder = os.open(self._log_path.parent, os.O_RDONLY)
        try:
            while True:
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if self._is_late():
                        raise
                    sleep(0.01)
            if _file_at(self._log_path) == self._log:
                self._real_path.with_name(f"{self._real_path.name}-shm").unlink(missing_ok=True)
                self._log_path.unlink()
        finally:
            os.close(folder)

    def commit(self) -> None:
        """See `Database`. After a page that cannot be read, SQLite reports it again, although nothing was written."""
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as exc:
            if not self._is_reading or _code(exc) not in _DAMAGED:
                raise
            self.rollback()

    def rollback(self) -> None:
        """See `Database`. After a full disk or an I/O error, SQLite has rolled back already."""
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def own_faults(self, limit: int) -> Sequence[str]:
        found = [row[0] for row in self.rows(f"PRAGMA integrity_check({int(limit)})")]
        return [] if found == ["ok"] else [f"SQLite reports about the file: {each}" for each in found]

    # ------------------------------------------------------------------------------------------------- errors

    def translated(self, exc: Exception) -> Exception:
        if isinstance(exc, _Replaced):
            return StoreUnavailable(f"{self.path} was deleted or replaced while it was open")
        if isinstance(exc, UnicodeDecodeError):
            # SQLite quotes a table's name, or a part of a statement, that damage has turned into something else.
            return StoreDamaged(f"{self.path} is damaged: {exc}")
        if not isinstance(exc, sqlite3.Error):
            is_value = isinstance(exc, (UnicodeError, OverflowError))
            return StoreError(f"{self.path} cannot take a value: {exc}") if is_value else exc
        code = _code(exc)
        if str(exc).startswith("Could not decode to UTF-8"):
            return StoreDamaged(f"{self.path} is damaged: {exc}")
        if code in _BUSY:
            return StoreUnavailable(f"{self.path} is locked by another process, or did not answer in time: {exc}")
        if code == sqlite3.SQLITE_NOTADB:
            return StoreDamaged(f"{self.path} is not a SQLite database, or its beginning is damaged; pass another path")
        if code == sqlite3.SQLITE_CORRUPT:
            return StoreDamaged(f"{self.path} is damaged: {exc}")
        # A file that nobody has open needs some space to be opened at all.
        if code == sqlite3.SQLITE_FULL or getattr(exc, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHMSIZE:
            return StoreError(f"there is no space for {self.path}: {exc}; free some on its disk")
        if code == sqlite3.SQLITE_READONLY:
            return StoreError(f"{self.path} cannot be written: {exc}; check the permissions of the file and its folder")
        if code == sqlite3.SQLITE_CANTOPEN:
            return StoreError(
                f"{self.path} cannot be opened: {exc}; check that it and its folder exist, and their permissions"
            )
        return StoreError(f"{self.path}: {exc}")

    def may_try_again(self, exc: Exception) -> bool:
        return isinstance(exc, _Replaced)

    def is_broken(self, exc: Exception) -> bool:
        """See `Database`. After the disk failed, SQLite's cache of the file may be out of date."""
        if isinstance(exc, _Replaced):
            _logger.warning(
                "%s was deleted or replaced while it was open; the file that is there now is used", self.path
            )
            return True
        return isinstance(exc, sqlite3.Error) and _code(exc) in (
            *_DAMAGED,
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_PROTOCOL,
        )

    def is_own_fault(self, exc: Exception) -> bool:
        return isinstance(exc, _OWN_FAULTS)


def _file_at(path: Path) -> tuple[int, int] | None:
    """Return the identity of the file at a path, if there is one. Raises `OSError` if the system cannot say."""
    try:
        found = os.stat(path)  # noqa: PTH116 -- each transaction does this, and `Path.stat` takes twice as long
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _code(exc: sqlite3.Error) -> int:
    """Return SQLite's primary result code: https://sqlite.org/rescode.html."""
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF


def _make_file(path: Path) -> None:
    """Create the file, unless it exists, with mode 0600. SQLite gives its other two files the same mode.

    A file that exists is not opened here: closing it again would drop the locks of this process's other connections
    (https://sqlite.org/howtocorrupt.html, 2.2).
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = 0
    except OSError as exc:
        raise StoreError(f"{path} cannot be opened: {exc.strerror or exc}") from exc
    if stat.S_ISDIR(mode):
        raise StoreError(f"{path} is a folder; pass the path of a file in it")
    if mode:
        for needed, word in ((os.R_OK, "read"), (os.W_OK, "written")):
            if not os.access(path, needed):
                raise StoreError(
                    f"{path} cannot be {word} by this user; check the permissions of the file, and whether its disk is "
                    "read-only"
                )
        return
    if not path.parent.is_dir():
        raise StoreError(f"{path} cannot be created: there is no folder {path.parent}; create it first")
    try:
        made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        # Another process has just created it.
        return
    except OSError as exc:
        raise StoreError(
            f"{path} cannot be created: {exc.strerror or exc}; check the permissions of {path.parent}"
        ) from exc
    try:
        if sys.platform != "win32":
            # The umask may have removed permissions from the mode above.
            os.fchmod(made, 0o600)
    finally:
        os.close(made)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Sync the folder, so that the new file's name survives a loss of power. Systems that cannot do it are ignored."""
    with contextlib.suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
