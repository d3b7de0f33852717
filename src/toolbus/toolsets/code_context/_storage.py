"""The index's file: SQLite with FTS5, which several processes may use at once. Knows chunks; knows no tree, no model.

What is in it can be made again from the sources, so a file that is damaged is thrown away. Its name holds the format's
number, so that versions of toolbus do not fight over one.
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

__all__ = ["FORMAT", "FileState", "Row", "Storage", "forget", "opened"]

FORMAT = 2
"""Part of the file's name. To be raised when the tables, the chunks, their words or the model's vectors change."""

_BUSY_SECONDS = 30.0  # how long another process may write; its transactions take well under a second
_LOCK_SECONDS = 0.25  # SQLite itself waits for this long, such as for the log of a process that ends just now
_LOOK_SECONDS = 0.05  # between two looks at whether the caller still waits
_NAME_WEIGHT, _PATH_WEIGHT, _BODY_WEIGHT = 4.0, 2.0, 1.0

_TABLES = """
CREATE TABLE IF NOT EXISTS files (
    path TEXT PRIMARY KEY, modified_ns INTEGER NOT NULL, size_bytes INTEGER NOT NULL, digest BLOB NOT NULL,
    left_out INTEGER NOT NULL
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
    """What tells whether a file has changed. `left_out` is true where there was no room for its chunks."""

    modified_ns: int
    size_bytes: int
    digest: bytes
    left_out: bool = False


@dataclass(slots=True, frozen=True)
class Row:
    """A chunk as it is kept. `score` is that of the lexical search, better when larger."""

    id: int
    path: str
    start: int
    end: int
    name: str
    text: str
    vector: bytes | None
    score: float


class Storage:
    """One connection, of one thread. `check` is called while another process is waited for, and may raise."""

    def __init__(self, connection: sqlite3.Connection, check: Callable[[], None]) -> None:
        self._connection = connection
        self._check = check

    def prepare(self) -> None:
        """Set the connection up, and make the tables where there are none."""
        self._patiently(lambda: self._connection.execute("PRAGMA journal_mode = WAL"))
        self._connection.execute("PRAGMA synchronous = NORMAL")  # a loss of power costs the newest files' indexing
        if self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'words'").fetchone() is None:
            with self.writing():
                for statement in _TABLES.split(";\n"):
                    self._connection.execute(statement)

    @contextlib.contextmanager
    def writing(self) -> Generator[None]:
        """A transaction. Waits for that of another process."""
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
            time.sleep(_LOOK_SECONDS)

    # -------------------------------------------------------------------------------------------- files

    def files(self) -> dict[str, FileState]:
        """What is known of each file, by its path."""
        rows = self._connection.execute("SELECT path, modified_ns, size_bytes, digest, left_out FROM files")
        return {path: FileState(modified, size, digest, bool(out)) for path, modified, size, digest, out in rows}

    def file(self, path: str) -> FileState | None:
        """What is known of one file just now."""
        row = self._connection.execute(
            "SELECT modified_ns, size_bytes, digest, left_out FROM files WHERE path = ?", (path,)
        ).fetchone()
        return FileState(row[0], row[1], row[2], bool(row[3])) if row else None

    def count(self) -> int:
        """How many chunks there are."""
        return self._connection.execute("SELECT count(*) FROM chunks").fetchone()[0]

    def count_of(self, path: str) -> int:
        """How many of them are a file's."""
        return self._connection.execute("SELECT count(*) FROM chunks WHERE path = ?", (path,)).fetchone()[0]

    def replace(self, path: str, state: FileState, chunks: Iterable[Chunk]) -> None:
        """Put a file's chunks in the place of those that it had; of those that stay as they were, vectors stay."""
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
        """Write down how a file is now."""
        self._connection.execute(
            "INSERT OR REPLACE INTO files (path, modified_ns, size_bytes, digest, left_out) VALUES (?, ?, ?, ?, ?)",
            (path, state.modified_ns, state.size_bytes, state.digest, state.left_out),
        )

    def remove(self, path: str) -> None:
        """Forget a file."""
        self._drop_chunks(path)
        self._connection.execute("DELETE FROM files WHERE path = ?", (path,))

    def _drop_chunks(self, path: str) -> dict[tuple[str, str], bytes]:
        """Delete a file's chunks, and give the vectors that they had, by name and text."""
        rows = self._connection.execute("SELECT id, name, text, vector FROM chunks WHERE path = ?", (path,)).fetchall()
        for row_id, name, text, _ in rows:  # a table without contents has to be told what it forgets
            self._connection.execute(
                "INSERT INTO words (words, rowid, name, path, body) VALUES ('delete', ?, ?, ?, ?)",
                (row_id, *_words(path, name, text)),
            )
        self._connection.execute("DELETE FROM chunks WHERE path = ?", (path,))
        return {(name, text): vector for _, name, text, vector in rows if vector is not None}

    # -------------------------------------------------------------------------------------------- search

    def search(self, query: str, limit: int) -> list[Row]:
        """The chunks that fit an FTS5 query best, by BM25, best first."""
        found = self._connection.execute(
            "SELECT c.id, c.path, c.start, c.last, c.name, c.text, c.vector, hit.score FROM ("
            " SELECT rowid, -bm25(words, ?, ?, ?) AS score FROM words WHERE words MATCH ? ORDER BY score DESC LIMIT ?"
            ") AS hit JOIN chunks AS c ON c.id = hit.rowid ORDER BY hit.score DESC, c.path, c.start",
            (_NAME_WEIGHT, _PATH_WEIGHT, _BODY_WEIGHT, query, limit),
        )
        return [Row(*row) for row in found]

    def keep_vectors(self, vectors: Sequence[tuple[int, bytes]]) -> None:
        """Keep vectors of chunks, by the chunks' ids. Those of chunks that are gone are passed over."""
        with self.writing():
            self._connection.executemany(
                "UPDATE chunks SET vector = ? WHERE id = ?", [(vector, row_id) for row_id, vector in vectors]
            )


def _words(path: str, name: str, text: str) -> tuple[str, str, str]:
    return split_identifiers(name), split_identifiers(path), split_identifiers(text)


@contextlib.contextmanager
def opened(path: Path, check: Callable[[], None]) -> Generator[Storage]:
    """The index in the file `path`, which is made for its owner alone (0600) where there is none.

    Raises `OSError` where that is impossible, and `sqlite3.DatabaseError` for a file that is damaged.
    """
    _make(path)
    connection = sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=True)
    with contextlib.closing(connection):
        storage = Storage(connection, check)
        storage.prepare()
        yield storage


def _make(path: Path) -> None:
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):  # another process was faster
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def forget(path: Path) -> None:
    """Delete the index's file and what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
