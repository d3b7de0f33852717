"""The index of one tree, which is updated before each search.

Knows the tree, the chunks, the file that stores them, and the embedding model if it is installed; knows no tools.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import anyio
import anyio.from_thread
import anyio.to_thread

from ..._option_checks import ABOVE_ZERO, check
from ...errors import ConfigurationError, MissingExtra, ToolError
from .._files.budget import Budget
from .._files.patterns import compile_glob, fixed_directory
from .._files.tree import FileEntry, Tree
from ._chunks import Chunk, chunk_text, is_source
from ._embedding import Embedder, check_installed, load_embedder
from ._ranking import CANDIDATES, Ranked, lexical, reranked
from ._storage import FORMAT, FileState, Storage, forget, opened
from ._words import as_query

_T = TypeVar("_T")
# The bytes of sources in one transaction: other processes wait for a third of a second.
_BATCH_BYTES = 1_048_576
_BATCH_FILES = 100
# The names of files and directories that a pass may process, for each file that may be indexed.
_NAMES_PER_FILE = 20
# The age below which a file may change again without a new modification time.
_FRESH_NS = 2_000_000_000
_LOCK_SECONDS = 0.05


@dataclass(slots=True, frozen=True)
class CodeHit:
    """A piece of a file that fits a query. `id` is "path#start:end": lines from 1, both inclusive.

    `score` is larger for a better hit, and can be compared only within the hits of one search.
    """

    id: str
    text: str
    score: float


@runtime_checkable
class Retriever(Protocol):
    """A search for pieces of code, such as `CodeIndex`. Implement it yourself if you have an index already."""

    def hybrid_search(self, query: str, top_k: int) -> Awaitable[Sequence[CodeHit]] | Sequence[CodeHit]:
        """Return at most `top_k` hits, best first; no hits if nothing fits.

        An `async def` runs on the event loop and is cancelled with the call; a plain method runs in a thread, and
        cancellation waits for its end. The text of a `ToolError` is sent to the model; any other exception is logged.
        """
        ...


@dataclass(slots=True, frozen=True)
class IndexReport:
    """The result of an update of an index.

    `files`, `changed` and `removed` count files; `skipped` counts those that were too large or exceeded `max_chunks`.
    `chunks` is the number of chunks now.
    """

    files: int
    changed: int
    removed: int
    skipped: int
    chunks: int
    seconds: float


class CodeIndex:
    """Hybrid search over the sources below `root`: a `Retriever`.

    The index has the files that the workspace tools list, if their names are those of sources or prose, or match
    `glob`. Python is divided into functions, methods and classes by its syntax tree, everything else by definitions,
    headings and indentation. Each search first updates the index with the files that have changed (by modification time
    and size, then by a digest), so the first search takes longest; if it is cancelled, its work so far is kept. Then
    SQLite's FTS5 finds candidates by their words, with identifiers split, and a small embedding model on this machine
    orders the best fifty by their meaning; the vectors of chunks are kept too. `rerank=False` never uses the model,
    `rerank=True` requires it; by default it is used if the extra `code` is installed.

    The index is a file below `cache_dir` (by default toolbus/code-context in the user's cache folder) with mode 0600.
    It contains the text of the sources, and may be deleted at any time. Several threads and processes may use it at
    once. Files larger than `max_file_bytes`, and files beyond `max_files` or `max_chunks`, are left out; so are the
    files after twenty times `max_files` names of files and directories. Raises `ConfigurationError` for a root that is
    not a directory, or a bound that is not above 0, and with `rerank=True` `MissingExtra` if the extra is not
    installed.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        glob: str = "",
        rerank: bool | None = None,
        cache_dir: str | Path | None = None,
        max_file_bytes: int = 524_288,
        max_files: int = 20_000,
        max_chunks: int = 200_000,
    ) -> None:
        bounds = {"max_file_bytes": max_file_bytes, "max_files": max_files, "max_chunks": max_chunks}
        for name, value in bounds.items():
            check(f"CodeIndex: {name}", value, ABOVE_ZERO)
        self._rerank = _can_rerank() if rerank is None else rerank
        if rerank:
            check_installed()
        self._load: Callable[[], Embedder] = load_embedder
        self._tree = Tree(root)
        self._wanted = compile_glob(glob) if glob.strip() else is_source
        self._below = fixed_directory(glob)
        self.max_file_bytes = max_file_bytes
        """The size of the largest file that is indexed."""
        self._max_files = max_files
        self.max_chunks = max_chunks
        """The most chunks that the index may have."""
        # Everything on which the content depends is in the name, so that two indexes never undo each other's work.
        options = "\0".join([self._tree.root, glob, *map(str, bounds.values())])
        digest = hashlib.sha256(options.encode("utf-8", "surrogateescape")).hexdigest()[:24]
        folder = Path(cache_dir) if cache_dir is not None else default_cache_dir()
        self.path = folder / f"{digest}-{FORMAT}.db"
        self._lock = threading.Lock()

    async def hybrid_search(self, query: str, top_k: int) -> list[CodeHit]:
        """See `Retriever`; runs in a thread. Raises `ToolError` if the tree cannot be read or the index not stored."""
        return await _in_thread(self._search, query, top_k)

    async def refresh(self) -> IndexReport:
        """Update the index without a search, for example when an application starts.

        Runs in a thread. A cancelled update keeps its work so far. Raises `ToolError` as `hybrid_search` does.
        """
        return await _in_thread(self._refresh)

    # -------------------------------------------------------------------------------------------- in a thread

    def _search(self, query: str, top_k: int, check: Callable[[], None]) -> list[CodeHit]:
        with self._storage(check) as storage:
            _Update(self, storage, check).run()
            return [
                CodeHit(f"{row.path}#{row.start}:{row.end}", row.text, score)
                for row, score in self._ranked(storage, query, top_k, check)
            ]

    def _refresh(self, check: Callable[[], None]) -> IndexReport:
        with self._storage(check) as storage:
            return _Update(self, storage, check).run()

    def _ranked(self, storage: Storage, query: str, top_k: int, check: Callable[[], None]) -> Ranked:
        words = as_query(query)
        if not words:
            return []
        if not self._rerank:
            return lexical(storage, words, top_k)
        found = lexical(storage, words, max(top_k, CANDIDATES))
        return reranked(storage, self._load(), query, found, check)[:top_k]

    @contextlib.contextmanager
    def _storage(self, check: Callable[[], None]) -> Generator[Storage]:
        while not self._lock.acquire(timeout=_LOCK_SECONDS):
            check()
        try:
            self._discard_damaged(check)
            with opened(self.path, check) as storage:
                yield storage
        except (OSError, sqlite3.Error) as exc:
            raise ToolError(f"the index of the sources cannot be stored in {self.path.parent}: {exc}") from exc
        finally:
            self._lock.release()

    def _discard_damaged(self, check: Callable[[], None]) -> None:
        """Delete the file if it is not a SQLite database, or if its tables cannot be read."""
        try:
            with opened(self.path, check) as storage:
                storage.file("")
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            forget(self.path)

    # -------------------------------------------------------------------------------------------- the tree

    def sources(self, budget: Budget) -> Iterator[FileEntry]:
        """Return the files to index, at most `max_files` of them."""
        entries = (entry for entry in self._tree.walk(budget, self._below) if self._wanted(entry.path))
        return (entry for _, entry in zip(range(self._max_files), entries, strict=False))

    def budget(self, check: Callable[[], None]) -> Budget:
        """Return the budget of one pass over the tree; `check` raises when the caller does not wait any more."""
        return _UntilGivenUp(check, names=_NAMES_PER_FILE * self._max_files)


async def _in_thread(work: Callable[..., _T], *arguments: Any) -> _T:
    """Run `work(*arguments, check)` in a thread, where `check` raises when the caller does not wait any more.

    `check_cancelled` by itself knows only cancel scopes, and not asyncio's own `Task.cancel`, by which servers and
    terminal applications end their tasks: the thread would continue over the whole tree, and delay the process's exit.
    """
    given_up = threading.Event()

    def check() -> None:
        if given_up.is_set():
            raise CancelledError
        anyio.from_thread.check_cancelled()

    try:
        return await anyio.to_thread.run_sync(work, *arguments, check)
    finally:
        given_up.set()


class _UntilGivenUp(Budget):
    """The budget of one pass over the tree: without a time limit, it ends when the caller does not wait any more."""

    def __init__(self, check: Callable[[], None], *, names: int) -> None:
        super().__init__(seconds=math.inf, names=names)
        self._check = check

    def over(self) -> bool:
        """Return False, or raise the error of `check`."""
        self._check()
        return False


class _Update:
    """One pass over the tree, which updates the index with the changed files."""

    def __init__(self, index: CodeIndex, storage: Storage, check: Callable[[], None]) -> None:
        self._index = index
        self._storage = storage
        self._check = check
        self._known = storage.files()
        self._chunks = storage.count()
        self._batch: list[tuple[str, FileState, list[Chunk] | None]] = []
        self._batch_bytes = 0
        self._changed = self._skipped = 0

    def run(self) -> IndexReport:
        began = time.monotonic()
        seen: set[str] = set()
        budget = self._index.budget(self._check)
        for entry in self._index.sources(budget):
            if entry.size_bytes > self._index.max_file_bytes:
                self._skipped += 1
                continue
            seen.add(entry.path)
            self._update_file(entry, budget)
        self._check()
        self._write()
        removed = [path for path in self._known if path not in seen]
        for start in range(0, len(removed), _BATCH_FILES):
            self._check()
            with self._storage.writing():
                for path in removed[start : start + _BATCH_FILES]:
                    self._storage.remove(path)
        chunks = self._storage.count()
        return IndexReport(
            len(seen), self._changed, len(removed), self._skipped, chunks, round(time.monotonic() - began, 3)
        )

    def _update_file(self, entry: FileEntry, budget: Budget) -> None:
        known = self._known.get(entry.path)
        stamp = (entry.modified_ns, entry.size_bytes)
        if known is not None and stamp == (known.modified_ns, known.size_bytes):
            self._skipped += known.skipped
            return
        # Another process may have indexed the file in the meantime.
        now = self._storage.file(entry.path)
        if now is not None and stamp == (now.modified_ns, now.size_bytes):
            self._skipped += now.skipped
            return
        read_at = time.time_ns()
        data = entry.read(self._index.max_file_bytes, budget.over)
        if data is None:
            # The file is binary, or was removed.
            data = b""
        digest = hashlib.sha256(data).digest()
        fresh = read_at - entry.modified_ns < _FRESH_NS
        state = FileState(-1 if fresh else entry.modified_ns, entry.size_bytes, digest)
        if known is not None and known.digest == digest and not known.skipped:
            if state != known:
                self._add(entry.path, state, None, 0)
            return
        chunks = chunk_text(entry.path, data.decode("utf-8", "replace").replace("\r\n", "\n"))
        if known is not None:
            # The new chunks replace the old ones.
            self._chunks -= self._storage.count_of(entry.path)
        if self._chunks + len(chunks) > self._index.max_chunks:
            state = FileState(state.modified_ns, state.size_bytes, digest, skipped=True)
            chunks = []
            self._skipped += 1
        self._chunks += len(chunks)
        self._changed += 1
        self._add(entry.path, state, chunks, len(data))

    def _add(self, path: str, state: FileState, chunks: list[Chunk] | None, size: int) -> None:
        self._batch.append((path, state, chunks))
        self._batch_bytes += size
        if self._batch_bytes >= _BATCH_BYTES or len(self._batch) >= _BATCH_FILES:
            self._write()

    def _write(self) -> None:
        if not self._batch:
            return
        with self._storage.writing():
            for path, state, chunks in self._batch:
                if chunks is None:
                    self._storage.touch(path, state)
                elif self._storage.file(path) != state:
                    # Otherwise another process has stored this state already.
                    self._storage.replace(path, state, chunks)
        self._batch.clear()
        self._batch_bytes = 0


def _can_rerank() -> bool:
    try:
        check_installed()
    except MissingExtra:
        return False
    return True


def default_cache_dir(platform: str = sys.platform) -> Path:
    """Return the platform's usual folder for caches. Raises `ConfigurationError` without a home folder.

    It is $XDG_CACHE_HOME (https://specifications.freedesktop.org/basedir-spec/latest/), Apple's "Caches", or Windows'
    local application data.
    """
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 -- Path.home() raises where this leaves "~"
    if platform == "darwin":
        folder = home / "Library" / "Caches"
    elif platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "")
        folder = folder if folder.is_absolute() else home / ".cache"
    if not folder.is_absolute():
        raise ConfigurationError("CodeIndex: there is no home folder to keep the index in; pass cache_dir")
    return folder / "toolbus" / "code-context"
