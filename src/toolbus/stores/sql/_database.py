"""The interface of a database for the shared engine: a connection that runs statements and classifies errors.

Statements are written once, in SQL that SQLite and PostgreSQL both take: `?` stands for a value, and `{now}` for the
present moment by the store's clock. Each dialect is one class. Knows errors, and no driver.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal, TypeVar

from .._encoding import Head, Heads

Row = Sequence[Any]
_I = TypeVar("_I")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Rows:
    """A statement that contains a row of values, such as `(?, ?)`, which can be repeated with commas in between.

    `head` ends with VALUES. `types` are those of the row's values: "text", "whole", "real" or "blob".
    """

    head: str
    row: str
    types: tuple[str, ...]
    tail: str = ""

    def __str__(self) -> str:
        return self.head + self.row + self.tail


class Database(ABC):
    """An open connection, used by one thread.

    `deadline`, on the clock `time.monotonic`, is the moment by which the running call has to be done or have failed.
    `heads` are the ends of the journals that this connection has written itself; they may be out of date, which is
    safe, because each append is guarded by a condition in its statement. `unreadable` are the inputs that this
    connection could not read, by request and id: each is logged once, and not read again.
    """

    for_update = ""
    """The clause that, at the end of a SELECT, locks its rows until the end of the transaction.

    In a transaction for several items (`together`) it does not wait for rows that others have locked. Otherwise it
    could wait for a process that writes many requests in an order of its own, and that waits for rows locked here.
    """

    for_update_unlocked = ""
    """The clause that locks the rows that nobody else has locked, and leaves out the others instead of waiting."""

    def __init__(self) -> None:
        self.deadline = -math.inf
        self.in_doubt = False
        self.heads = Heads[Head]()
        self.unreadable: set[tuple[str, str]] = set()

    @property
    def remaining_seconds(self) -> float:
        """The seconds until the deadline, at least 0.01, because drivers take a time-out of 0 for no time-out."""
        return max(0.01, self.deadline - monotonic())

    # --------------------------------------------------------------------------------------------- statements

    @abstractmethod
    def rows(self, statement: str, values: Row = ()) -> Sequence[Row]:
        """Return all rows of a SELECT."""

    @abstractmethod
    def run(self, statement: str, values: Row = ()) -> int:
        """Run a statement, and return the number of rows that it has changed."""

    @abstractmethod
    def run_many(self, statement: str, values: Sequence[Row]) -> int:
        """Run a statement for each row of values, and return the number of rows that were changed in all."""

    @abstractmethod
    def insert(self, statement: Rows, values: Sequence[Row]) -> int:
        """Do the same as `run_many`, for a statement that may contain many rows of values."""

    @abstractmethod
    def scan(self, statement: str, values: Row = ()) -> Iterable[Row]:
        """Return the rows of a SELECT one by one, so that the rows before an unreadable row are returned too."""

    def one(self, statement: str, values: Row = ()) -> Row | None:
        """Return the first row of a SELECT, or None if there is no row."""
        found = self.rows(statement, values)
        return found[0] if found else None

    @abstractmethod
    def lock(self, name: Literal["deleted", "blobs"], *, exclusive: bool = True) -> None:
        """Take a lock until the end of the transaction. Without `exclusive`, it is shared with others.

        "deleted" is for deletions. "blobs" is for uses of large texts: shared to add some, exclusive to remove some.
        A transaction that takes both takes "deleted" first.
        """

    # ------------------------------------------------------------------------------------------- transactions

    @abstractmethod
    def begin(self, *, reading: bool = False) -> None:
        """Begin a transaction: one that writes, or with `reading` one that sees the data of one moment."""

    @abstractmethod
    def commit(self) -> None:
        """Commit the transaction, which makes it durable."""

    @abstractmethod
    def rollback(self) -> None:
        """Undo the transaction. Raises nothing: a connection that cannot roll back is broken."""

    @contextlib.contextmanager
    def transaction(self, *, reading: bool = False) -> Generator[None]:
        """Run a block in a transaction, which is committed after the block, or rolled back if the block raises."""
        self.in_doubt = False
        self.begin(reading=reading)
        try:
            yield
            self.in_doubt = not reading
            self.commit()
            self.in_doubt = False
        except BaseException:
            self.rollback()
            raise

    def together(self, work: Callable[[Sequence[_I]], Sequence[_T]], items: Sequence[_I]) -> Sequence[_T | Exception]:
        """Do `work` for items in one transaction, and return the outcome of each: a result, or an error.

        If one of them is at fault, or its row is locked, each has its own transaction. Raises an error that concerns
        all of them, such as a full disk; then none is done.
        """
        is_several = len(items) > 1
        try:
            with self.transaction(), self.without_waiting() if is_several else contextlib.nullcontext():
                return work(items)
        except Exception as exc:
            if not (self.is_own_fault(exc) or (is_several and self.is_locked(exc))):
                raise
            if is_several:
                return [outcome for each in items for outcome in self.together(work, [each])]
            return [self.translated(exc)]

    def own_faults(self, limit: int) -> Sequence[str]:
        """Return the faults that the database finds in its own file, as at most `limit` sentences, if it can check."""
        del limit
        return ()

    # ------------------------------------------------------------------------------------------------- errors

    @abstractmethod
    def translated(self, exc: Exception) -> Exception:
        """Return the `StoreError` for an error of the database, and any other exception unchanged."""

    @abstractmethod
    def is_broken(self, exc: Exception) -> bool:
        """Return whether a new connection has to be made before anything else is done."""

    @abstractmethod
    def is_own_fault(self, exc: Exception) -> bool:
        """Return whether the written values may be the cause of `exc`, so that other entries can be written."""

    def without_waiting(self) -> contextlib.AbstractContextManager[None]:
        """Let `for_update` not wait for locked rows in this block, if the database locks rows."""
        return contextlib.nullcontext()

    def is_locked(self, exc: Exception) -> bool:  # noqa: ARG002 -- by default, no database locks rows
        """Return whether a row is locked, for which a block `without_waiting` does not wait."""
        return False

    @abstractmethod
    def may_try_again(self, exc: Exception) -> bool:
        """Return whether the same call may work at once, because none of it was written."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Raises nothing."""
