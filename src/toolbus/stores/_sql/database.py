"""What the shared engine asks of a database: a connection that runs its statements, and says what an error means.

Statements are written once, in SQL that SQLite and PostgreSQL both take: `?` stands for a value, `{now}` for the moment
by the store's clock. Each dialect is one class. Knows errors, and no driver.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from .._encoding import Head

__all__ = ["Database", "Row", "Rows"]

Row = Sequence[Any]
_HEADS = 10_000  # of running requests; one that is dropped costs a look-up at its next step


@dataclass(frozen=True, slots=True)
class Rows:
    """A statement with a row of values in it, such as `(?, ?)`, which can be repeated with commas in between."""

    head: str
    row: str
    tail: str = ""

    def __str__(self) -> str:
        return self.head + self.row + self.tail


class Database(ABC):
    """An open connection. Used by one thread.

    `deadline`, on the clock `time.monotonic`, is when what is being done has to have failed. `heads` are the ends of
    the journals that this connection has written itself: the guard of each append makes them safe to trust.
    """

    for_update = ""
    """Behind a SELECT, locks its rows to the end of the transaction."""

    def __init__(self) -> None:
        self.deadline = 0.0
        self.in_doubt = False
        self.heads: dict[str, Head] = {}

    @property
    def seconds_left(self) -> float:
        """Until the deadline; at least a little, so that a time-out of it is not taken for none."""
        return max(0.01, self.deadline - monotonic())

    def keep_heads(self, heads: Iterable[tuple[str, Head | None]]) -> None:
        """Remember the ends of journals, by request; None for one that is not written any more."""
        known = self.heads
        for request_id, head in heads:
            if head is not None:
                known[request_id] = head
            else:
                known.pop(request_id, None)
        while len(known) > _HEADS:
            del known[next(iter(known))]

    # --------------------------------------------------------------------------------------------- statements

    @abstractmethod
    def rows(self, statement: str, values: Row = ()) -> Sequence[Row]:
        """All rows of a SELECT."""

    @abstractmethod
    def run(self, statement: str, values: Row = ()) -> int:
        """Run a statement; how many rows it has changed."""

    @abstractmethod
    def run_many(self, statement: str, values: Sequence[Row]) -> int:
        """Run a statement for each row of values; how many rows were changed in all."""

    def insert(self, statement: Rows, values: Sequence[Row]) -> int:
        """As `run_many`, for a statement that may have many rows of values."""
        return self.run_many(str(statement), values)

    @abstractmethod
    def scan(self, statement: str, values: Row = ()) -> Iterable[Row]:
        """The rows of a SELECT one by one, so that those in front of one that cannot be read are had."""

    def one(self, statement: str, values: Row = ()) -> Row | None:
        """The first row of a SELECT, if there is one."""
        found = self.rows(statement, values)
        return found[0] if found else None

    @abstractmethod
    def lock_blobs(self, *, alone: bool) -> None:
        """Keep large texts from being deleted while they are referred to anew; `alone` is whoever deletes them."""

    # ------------------------------------------------------------------------------------------- transactions

    @abstractmethod
    def begin(self, *, reading: bool = False) -> None:
        """Begin a transaction: to write, or to read what there is at one moment."""

    @abstractmethod
    def commit(self) -> None:
        """Make it durable."""

    @abstractmethod
    def rollback(self) -> None:
        """Undo it. Raises nothing: a connection that cannot is broken."""

    @contextlib.contextmanager
    def transaction(self, *, reading: bool = False) -> Generator[None]:
        """A transaction around a block: committed behind it, undone by what it raises."""
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

    def own_faults(self, limit: int) -> Sequence[str]:
        """What the database itself finds wrong with its file, where it can look: at most so many sentences."""
        del limit
        return ()

    # ------------------------------------------------------------------------------------------------- errors

    @abstractmethod
    def translated(self, exc: Exception) -> Exception:
        """What `exc` is to a caller: a `StoreError`; what is no error of the database, as it is."""

    @abstractmethod
    def is_broken(self, exc: Exception) -> bool:
        """Whether another connection has to be made before anything else is done."""

    @abstractmethod
    def is_own_fault(self, exc: Exception) -> bool:
        """Whether it may be the fault of what was to be written, so that other entries can be written."""

    def may_try_again(self, exc: Exception) -> bool:
        """Whether the same may work at once, and nothing of it is written."""
        del exc
        return False

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection. Raises nothing."""
