"""A store in PostgreSQL, which processes on many machines can share. Needs the extra `postgres`.

Knows the driver psycopg (version 3), which is imported when the first connection is made. Everything else is in
`sql`, the engine that it shares with SQLite.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Generator, Iterable, Sequence
from functools import cache
from hashlib import sha256
from time import monotonic
from types import ModuleType
from typing import Any, Literal, cast, get_args

from .._option_checks import POSITIVE, check, one_of
from ..errors import ConfigurationError, MissingExtra, StoreDamaged, StoreError, StoreUnavailable
from ..storage import Durability
from ._thread import TIMEOUT_SECONDS
from .sql import FORMAT, MANY, Database, DatabaseStore, Row, Rows, bring_up_to_date

__all__ = ["PostgresStore"]

_TYPES = {"blob": "bytea", "whole": "bigint", "real": "double precision", "text": 'text COLLATE "C"'}
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
# With the collation "C", `lower` changes only ASCII letters.
_FIND = """strpos(lower(coalesce(m.text, convert_from(b.data, 'UTF8') COLLATE "C")), ?) > 0"""
# Classes of SQLSTATE: https://www.postgresql.org/docs/current/errcodes-appendix.html
_OWN_FAULTS = ("22", "23", "54")  # data exceptions, integrity constraint violations, limits (long ids in an index)
_AGAIN = ("40001", "40P01")  # serialization failure, deadlock
_READ_ONLY = "25006"
_LOCKED = "55P03"
# The same for connections, rollbacks, too many clients, lock time-outs, and a server that is shut down.
_UNAVAILABLE = ("08", _READ_ONLY, "40", "53300", _LOCKED, "57")
_DAMAGED = ("XX001", "XX002")


class PostgresStore(DatabaseStore):
    """A store in the PostgreSQL database at `conninfo`: see `Store` and `JournalStore`.

    `conninfo` is a URL (`postgresql://user@host/database`) or a string of options in the form that libpq takes. The
    tables are in `schema`, which is created if it does not exist; its name has lower-case letters, digits and
    underscores. Needs PostgreSQL 12 or newer. Connect to the server itself, or to a pooler in session mode. Each store
    has one connection to write, and another one to read, made at the first read.

    `timeout_seconds` is the time in which each call is done or fails. `durability` sets what a commit survives. With
    "power" the server syncs each commit to its disk before it counts (`synchronous_commit=on`, and as many replicas as
    the server is set up for). With "process" it does not wait for the disk (`synchronous_commit=off`): a crash of the
    server, not of this process, may lose the newest commits (with the server's default settings at most those of the
    last 0.6 s), and never damages older data (https://www.postgresql.org/docs/current/wal-async-commit.html).

    With several hosts, the first one that answers and can be written is used, so a store follows its primary (set
    `target_session_attrs` to change this). Each of them has at least two seconds, so with more than two that hang,
    `open` may take longer than four.

    Leases use the server's clock. Errors: `StoreUnavailable` for a server that is out of reach, restarts or does not
    answer within `timeout_seconds`; `StoreError` for values and statements that it refuses; `StoreDamaged`. At opening,
    `ConfigurationError` for a `conninfo` that cannot be read and for a database whose encoding is not UTF-8, and
    `MissingExtra` without psycopg. A broken connection is made again by the next call; if it broke before its commit
    was sent, by the same call.

    Example:
        from toolbus import Runtime
        from toolbus.stores.postgres import PostgresStore

        store = PostgresStore("postgresql://shop@127.0.0.1/shop", schema="toolbus")
        runtime = Runtime("extractive", store=store)  # connects when it is entered
    """

    def __init__(
        self,
        conninfo: str,
        *,
        schema: str = "toolbus",
        durability: Durability = "power",
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        check("durability", durability, one_of(*get_args(Durability)))
        check("timeout_seconds", timeout_seconds, POSITIVE)
        if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
            raise ConfigurationError(
                f"schema is {schema!r}; pass lower-case letters, digits and underscores, not beginning with pg_"
            )
        self.schema = schema
        self.durability = durability
        super().__init__(
            "toolbus PostgreSQL",
            lambda deadline, reads: _Postgres(conninfo, schema, durability, deadline, timeout_seconds, reads=reads),
            timeout_seconds=timeout_seconds,
        )


@cache
def _in_dialect(statement: str) -> str:
    now = "extract(epoch from transaction_timestamp())::double precision"
    return statement.replace("{now}", now).replace("{find}", _FIND).replace("?", "%s")


@cache
def _with_arrays(statement: Rows) -> str:
    """Return the statement with one array for each column instead of rows of values."""
    names = [f"column{number}" for number in range(1, len(statement.types) + 1)]
    row = _in_dialect(statement.row[1:-1])
    for name in names:
        row = row.replace("%s", f"given.{name}", 1)
    arrays = ", ".join(f"%b::{_TYPES[each].partition(' COLLATE')[0]}[]" for each in statement.types)
    head = _in_dialect(statement.head).removesuffix("VALUES ")
    source = f"unnest({arrays}) AS given({', '.join(names)})"
    return f"{head}SELECT {row} FROM {source}{statement.tail}"  # noqa: S608 -- constants of ours


def _psycopg() -> ModuleType:
    try:
        import psycopg  # noqa: PLC0415 -- an extra
    except ImportError as exc:
        raise MissingExtra("postgres", "psycopg") from exc
    return psycopg


@cache
def _connection_class() -> type[Any]:
    """Return a connection class that gives up at its deadline, since a hung server ignores `statement_timeout`."""
    base: type[Any] = _psycopg().Connection

    class Connection(base):
        deadline = float("inf")

        def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
            parent: Any = super()
            return parent.wait(_until(gen, self), *args, **options)

    return Connection


def _until(gen: Generator[Any, Any, Any], connection: Any) -> Generator[Any, Any, Any]:
    """Run `gen` until the connection's deadline. The driver resumes it at least ten times per second."""
    try:
        state = next(gen)
        while True:
            ready = yield state
            state = gen.send(ready)
            if monotonic() > connection.deadline:
                connection.pgconn.finish()
                raise _psycopg().OperationalError("the server did not answer in time")
    except StopIteration as end:
        return end.value


class _Postgres(Database):
    """A connection to the server."""

    for_update = " FOR UPDATE"
    for_update_unlocked = " FOR UPDATE SKIP LOCKED"

    def __init__(
        self, conninfo: str, schema: str, durability: Durability, deadline: float, seconds: float, *, reads: bool
    ) -> None:
        super().__init__()
        self._psycopg = _psycopg()
        self._schema = schema
        self._connection: Any = None
        self._seconds = seconds
        self.deadline = deadline
        hosts, target = _hosts_in(conninfo)
        try:
            # libpq takes whole seconds, at least 2, for each host: one that hangs leaves time for those after it.
            whole = max(2, int(self.remaining_seconds / len(hosts)))
            self._connection = _connection_class().connect(
                conninfo, autocommit=True, connect_timeout=whole, target_session_attrs=target
            )
            self._prepare(durability, reads=reads)
        except self._psycopg.Error as exc:
            self.close()
            raise self.translated(exc) from exc
        except BaseException:
            self.close()
            raise

    @property
    def deadline(self) -> float:
        return self._deadline

    @deadline.setter
    def deadline(self, moment: float) -> None:
        self._deadline = moment
        if getattr(self, "_connection", None) is not None:
            self._connection.deadline = moment

    def _prepare(self, durability: Durability, *, reads: bool) -> None:
        self._connection.deadline = self._deadline
        run, found = self._connection.execute, self._connection.info
        if (encoding := found.parameter_status("server_encoding")) != "UTF8":
            raise ConfigurationError(
                f"database {found.dbname} has the encoding {encoding}, which cannot store all texts; make another one, "
                "by CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
            )
        run(
            "SELECT set_config('search_path', %s, false), set_config('synchronous_commit', %s, false), "
            "set_config('client_min_messages', 'warning', false), "
            # At other levels, simultaneous endings in one conversation fail.
            "set_config('default_transaction_isolation', 'read committed', false)",
            (self._schema, "on" if durability == "power" else "off"),
        )
        self._limit(self._seconds)
        if self._format() < FORMAT:
            with self.transaction():
                run("SELECT pg_advisory_xact_lock(%s)", (_lock_key("tables", self._schema),))
                self._make_tables()
        if reads:
            run("SET default_transaction_read_only = on")

    def _limit(self, seconds: float, *, is_local: bool = False) -> None:
        """Have the server end a statement, and a transaction that is idle, after `seconds`."""
        self._connection.execute(
            "SELECT set_config('statement_timeout', %(limit)s, %(local)s), "
            "set_config('idle_in_transaction_session_timeout', %(limit)s, %(local)s)",
            {"limit": f"{int(seconds * 1_000)}ms", "local": is_local},
        )

    def _format(self) -> int:
        """Return the format of the tables; 0 if they do not exist."""
        # `to_regclass` is not used here: it may answer from before the wait for the lock that there is no table.
        if not self.one("SELECT 1 FROM pg_tables WHERE schemaname = ? AND tablename = 'format'", (self._schema,)):
            return 0
        # A schema that the user may not use would be skipped, and the table would seem to be missing.
        row = self.one(f"SELECT number FROM {self._schema}.format")  # noqa: S608 -- the name was checked
        if row is not None and row[0] > FORMAT:
            bring_up_to_date(self, _TYPES, row[0], self._where())
        return 0 if row is None else row[0]

    def _make_tables(self) -> None:
        found = self._format()
        if found == 0:
            tables = "SELECT count(*) FROM information_schema.tables WHERE table_schema = ?"
            if self.rows(tables, (self._schema,))[0][0]:
                raise StoreError(f"{self._where()} has tables of another program; pass another schema")
            if not self.rows("SELECT 1 FROM pg_namespace WHERE nspname = ?", (self._schema,)):
                self.run(f"CREATE SCHEMA {self._schema}")
            self.run("CREATE TABLE format (number bigint NOT NULL)")
            self.run("INSERT INTO format (number) VALUES (0)")
        self.run("UPDATE format SET number = ?", (bring_up_to_date(self, _TYPES, found, self._where()),))

    def _where(self) -> str:
        return f"schema {self._schema} of database {self._connection.info.dbname}"

    # --------------------------------------------------------------------------------------------- statements

    def rows(self, statement: str, values: Row = ()) -> Sequence[Row]:
        return cast("Sequence[Row]", self._connection.execute(_in_dialect(statement), values).fetchall())

    def run(self, statement: str, values: Row = ()) -> int:
        return self._connection.execute(_in_dialect(statement), values).rowcount

    def run_many(self, statement: str, values: Sequence[Row]) -> int:
        """See `Database`. Uses pipeline mode: one round trip to the server for all rows."""
        if len(values) > 1 and (many := MANY.get(statement)) is not None:
            return self.insert(many, values)
        with self._connection.cursor() as cursor:
            cursor.executemany(_in_dialect(statement), values)
            return cursor.rowcount

    def insert(self, statement: Rows, values: Sequence[Row]) -> int:
        """See `Database`. Sends each column as one array: the driver takes as long for a statement as for many rows."""
        if len(values) == 1:  # The driver itself refuses some values, with clearer words.
            return self.run(str(statement), values[0])
        columns = [list(column) for column in zip(*values, strict=True)]
        return self._connection.execute(_with_arrays(statement), columns).rowcount

    def scan(self, statement: str, values: Row = ()) -> Iterable[Row]:
        return self.rows(statement, values)

    def lock(self, name: Literal["deleted", "blobs"], *, exclusive: bool = True) -> None:
        function = "pg_advisory_xact_lock" if exclusive else "pg_advisory_xact_lock_shared"
        self.rows(f"SELECT {function}(?)", (_lock_key(name, self._schema),))

    def begin(self, *, reading: bool = False) -> None:
        self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if reading else "BEGIN")
        if self.remaining_seconds > self._seconds:  # A job that may take longer than other calls.
            self._limit(self.remaining_seconds, is_local=True)

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        with contextlib.suppress(self._psycopg.Error):
            if not self._connection.closed and self._connection.info.transaction_status:
                self._connection.execute("ROLLBACK")

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(self._psycopg.Error):
                self._connection.close()

    # ------------------------------------------------------------------------------------------------- errors

    def translated(self, exc: Exception) -> Exception:
        if not isinstance(exc, self._psycopg.Error):
            return StoreError(f"PostgreSQL cannot take a value: {exc}") if isinstance(exc, UnicodeError) else exc
        state, text = _state(exc), f"PostgreSQL: {' '.join(str(exc).split())}"
        if state.startswith(_DAMAGED):
            return StoreDamaged(text)
        # Without a state there was no answer; while connecting, the cause may also be a wrong password.
        if state.startswith(_UNAVAILABLE) or (not state and isinstance(exc, self._psycopg.OperationalError)):
            return StoreUnavailable(text)
        return StoreError(text)

    def is_broken(self, exc: Exception) -> bool:
        """See `Database`. A server that cannot be written any more may have left its role to another one."""
        return bool(self._connection.closed) or bool(exc and self._connection.broken) or _state(exc) == _READ_ONLY

    def is_own_fault(self, exc: Exception) -> bool:
        """See `Database`. An error that the driver raises before it sends anything has no state."""
        if isinstance(exc, self._psycopg.Error):
            state = _state(exc)
            return state.startswith(_OWN_FAULTS) or (not state and isinstance(exc, self._psycopg.DataError))
        return isinstance(exc, (ValueError, TypeError, OverflowError))

    @contextlib.contextmanager
    def without_waiting(self) -> Generator[None]:
        self.for_update = " FOR UPDATE NOWAIT"
        try:
            yield
        finally:
            self.for_update = _Postgres.for_update

    def is_locked(self, exc: Exception) -> bool:
        return _state(exc) == _LOCKED

    def may_try_again(self, exc: Exception) -> bool:
        if self.in_doubt or not isinstance(exc, self._psycopg.Error):
            return False
        return _state(exc) in _AGAIN or self.is_broken(exc)


def _hosts_in(conninfo: str) -> tuple[list[str], str]:
    """Return the hosts of a conninfo, at least one, and its `target_session_attrs`, by default "read-write".

    Raises `ConfigurationError` for an invalid one, without quoting it or libpq, since it may have a password.
    """
    psycopg = _psycopg()
    try:
        given = psycopg.conninfo.conninfo_to_dict(conninfo)
    except (psycopg.Error, UnicodeError):
        raise ConfigurationError(
            "the conninfo cannot be read; pass a URL, such as postgresql://user@host/database, or options, such as "
            "'host=localhost dbname=mine'"
        ) from None
    hosts = str(given.get("host") or "").split(",")
    # Sockets are paths, or begin with an @.
    if any("@" in each[1:] for each in hosts if not each.startswith("/")):
        raise ConfigurationError(
            "the conninfo has an @ in its host, so an @ in the user name or password is not percent-encoded: "
            "write %40 for it there"
        )
    return hosts, str(given.get("target_session_attrs") or os.environ.get("PGTARGETSESSIONATTRS") or "read-write")


def _lock_key(what: str, schema: str) -> int:
    """Return the key of an advisory lock. The schema is part of it, because such keys are for a whole database."""
    return int.from_bytes(sha256(f"toolbus {what} {schema}".encode()).digest()[:8], signed=True)


def _state(exc: Exception) -> str:
    return str(getattr(exc, "sqlstate", None) or "")
