"""The index's file: SQLite with FTS5, which several processes may use at once. Knows chunks, and no tree or model.

Its content can be made again from the sources, so a damaged file is deleted. Its name contains the number of the
format, so that different versions of toolbus use different files.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ._chunks import Chunk
from ._words import split_identifiers

FORMAT = 4
"""A part of the file's name. Raise it when the tables, the chunks, their words or the model's vectors change."""

# The longest wait for the writes of another process, whose transactions take well under a second.
_BUSY_SECONDS = 30.0
# The time for which SQLite itself waits, for example for the log of a process that is just ending.
_LOCK_SECONDS = 0.25
# The time between two checks whether the caller still waits.
_CHECK_SECONDS = 0.05
_NAME_WEIGHT, _PATH_WEIGHT, _BODY_WEIGHT = 4.0, 2.0, 1.0

_TABLES = """
CREATE TABLE IF NOT EXISTS files (
    path TEXT PRIMARY KEY, modified_ns INTEGER NOT NULL, size_bytes INTEGER NOT NULL, digest BLOB NOT NULL,
    skipped INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL, start INTEGER NOT NULL, last INTEGER NOT NULL,
    name TEXT NOT NULL, text TEXT NOT NULL, vector BLOB
);
CREATE INDEX IF NOT EXISTS chunks_of_file ON chunks (path);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (name, path, body, content='', tokenize='porter unicode61');
"""


@dataclass(slots=True, frozen=True)
class FileState:
    """The data by which a changed file is recognised. `skipped` is true if its chunks were too many for the index."""

    modified_ns: int
    size_bytes: int
    digest: bytes
    skipped: bool = False


@dataclass(slots=True, frozen=True)
class Row:
    """A chunk as it is stored. `score` is that of the lexical search; larger is better."""

    id: int
    path: str
    start: int
    end: int
    name: str
    text: str
    vector: bytes | None
    score: float


class Storage:
    """One connection, used by one thread. `check` is called during a wait for another process, and may raise."""

    def __init__(self, connection: sqlite3.Connection, check: Callable[[], None]) -> None:
        self._connection = connection
        self._check = check

    def prepare(self) -> None:
        """Set up the connection, and create the tables if they do not exist."""
        self._patiently(lambda: self._connection.execute("PRAGMA journal_mode = WAL"))
        # After a power failure the newest files are indexed again.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        if self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'words'").fetchone() is None:
            with self.writing():
                for statement in _TABLES.split(";\n"):
                    self._connection.execute(statement)

    @contextlib.contextmanager
    def writing(self) -> Generator[None]:
        """Run a block in a transaction, after waiting for that of another process."""
        self._patiently(lambda: self._connection.execute("BEGIN IMMEDIATE"))
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _patiently(self, begin: Callable[[], object]) -> None:
        ends = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                begin()
                return
            except sqlite3.OperationalError as exc:
                if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > ends:
                    raise
            self._check()
            time.sleep(_CHECK_SECONDS)

    # -------------------------------------------------------------------------------------------- files

    def files(self) -> dict[str, FileState]:
        """Return the state of each indexed file, by its path."""
        rows = self._connection.execute("SELECT path, modified_ns, size_bytes, digest, skipped FROM files")
        return {path: FileState(modified, size, digest, bool(out)) for path, modified, size, digest, out in rows}

    def file(self, path: str) -> FileState | None:
        """Return the present state of one indexed file; None for an unknown one."""
        row = self._connection.execute(
            "SELECT modified_ns, size_bytes, digest, skipped FROM files WHERE path = ?", (path,)
        ).fetchone()
        return FileState(row[0], row[1], row[2], bool(row[3])) if row else None

    def count(self) -> int:
        """Return the number of chunks."""
        return self._connection.execute("SELECT count(*) FROM chunks").fetchone()[0]

    def count_of(self, path: str) -> int:
        """Return the number of chunks of one file."""
        return self._connection.execute("SELECT count(*) FROM chunks WHERE path = ?", (path,)).fetchone()[0]

    def replace(self, path: str, state: FileState, chunks: Iterable[Chunk]) -> None:
        """Replace a file's chunks. Chunks that have not changed keep their vectors."""
        vectors = self._drop_chunks(path)
        for chunk in chunks:
            vector = vectors.get((chunk.name, chunk.text))
            cursor = self._connection.execute(
                "INSERT INTO chunks (path, start, last, name, text, vector) VALUES (?, ?, ?, ?, ?, ?)",
                (path, chunk.start, chunk.end, chunk.name, chunk.text, vector),
            )
            self._connection.execute(
                "INSERT INTO words (rowid, name, path, body) VALUES (?, ?, ?, ?)",
                (cursor.lastrowid, *_words(path, chunk.name, chunk.text)),
            )
        self.touch(path, state)

    def touch(self, path: str, state: FileState) -> None:
        """Store the state of a file."""
        self._connection.execute(
            "INSERT OR REPLACE INTO files (path, modified_ns, size_bytes, digest, skipped) VALUES (?, ?, ?, ?, ?)",
            (path, state.modified_ns, state.size_bytes, state.digest, state.skipped),
        )

    def remove(self, path: str) -> None:
        """Delete a file and its chunks."""
        self._drop_chunks(path)
        self._connection.execute("DELETE FROM files WHERE path = ?", (path,))

    def _drop_chunks(self, path: str) -> dict[tuple[str, str], bytes]:
        """Delete a file's chunks, and return their vectors by name and text."""
        rows = self._connection.execute("SELECT id, name, text, vector FROM chunks WHERE path = ?", (path,)).fetchall()
        for row_id, name, text, _ in rows:
            # A contentless table needs the old values to delete a row.
            self._connection.execute(
                "INSERT INTO words (words, rowid, name, path, body) VALUES ('delete', ?, ?, ?, ?)",
                (row_id, *_words(path, name, text)),
            )
        self._connection.execute("DELETE FROM chunks WHERE path = ?", (path,))
        return {(name, text): vector for _, name, text, vector in rows if vector is not None}

    # -------------------------------------------------------------------------------------------- search

    def search(self, query: str, limit: int) -> list[Row]:
        """Return at most `limit` chunks that fit an FTS5 query best, by BM25, best first."""
        found = self._connection.execute(
            "SELECT c.id, c.path, c.start, c.last, c.name, c.text, c.vector, hit.score FROM ("
            " SELECT rowid, -bm25(words, ?, ?, ?) AS score FROM words WHERE words MATCH ? ORDER BY score DESC LIMIT ?"
            ") AS hit JOIN chunks AS c ON c.id = hit.rowid ORDER BY hit.score DESC, c.path, c.start",
            (_NAME_WEIGHT, _PATH_WEIGHT, _BODY_WEIGHT, query, limit),
        )
        return [Row(*row) for row in found]

    def keep_vectors(self, vectors: Sequence[tuple[int, bytes]]) -> None:
        """Store vectors of chunks, by the chunks' ids. Vectors of chunks that were deleted are ignored."""
        with self.writing():
            self._connection.executemany(
                "UPDATE chunks SET vector = ? WHERE id = ?", [(vector, row_id) for row_id, vector in vectors]
            )


def _words(path: str, name: str, text: str) -> tuple[str, str, str]:
    return split_identifiers(name), split_identifiers(path), split_identifiers(text)


@contextlib.contextmanager
def opened(path: Path, check: Callable[[], None]) -> Generator[Storage]:
    """Open the index in the file `path`, which is created if it does not exist, with mode 0600.

    Raises `OSError` if that is impossible, and `sqlite3.DatabaseError` for a damaged file.
    """
    _make(path)
    connection = sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None)
    with contextlib.closing(connection):
        storage = Storage(connection, check)
        storage.prepare()
        yield storage


def _make(path: Path) -> None:
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Another process may create the file just before.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def forget(path: Path) -> None:
    """Delete the index's file and the files that SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
