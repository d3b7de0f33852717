"""The files below one root: the walk over them, and opening them, without ever leaving the root.

Each directory on a path is opened through the descriptor of its parent, without following symbolic links, so a
directory that is swapped between a check and an open cannot lead outside. On a platform without such calls, paths are
resolved and compared instead. A name is checked in the spelling in which its directory lists it: a file system that
ignores case would otherwise open `.GIT/config`, which no rule covers. Knows ignore rules and the budget of a call, and
not tools.
"""

from __future__ import annotations

import codecs
import contextlib
import difflib
import functools
import heapq
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import ConfigurationError, ToolError
from .budget import Budget
from .patterns import DEFAULT_IGNORED, IgnoreRules, composed, parse_gitignore

_HAS_DIR_FD = os.open in os.supports_dir_fd and os.scandir in os.supports_fd and hasattr(os, "O_NOFOLLOW")
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY = os.O_RDONLY | _NOFOLLOW | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
# Without O_NONBLOCK the open of a FIFO waits for a writer that may never come.
_FILE = (
    os.O_RDONLY | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
)
# The depth of a walk: each level holds a descriptor.
_MAX_DEPTH = 40
# The longest path: a longer one could not be opened by name.
_MAX_PATH_BYTES = 4_000
_MAX_IGNORE_BYTES = 65_536
# The bytes that are searched for a NUL to recognise a binary file, similar to git.
_SNIFF_BYTES = 8_192
# The names that are sorted at once: sorting holds the interpreter's lock, 3 ms for this many.
_SORTED_AT_ONCE = 10_000
_DECODED_AT_ONCE = 65_536
_SUGGESTION_NAMES = 20_000
_SUGGESTION_SECONDS = 1.0
_MAX_NAME_CHARS = 255
_SHOWN_CHARS = 300
_SIMILAR = 0.6


@dataclass(slots=True, frozen=True)
class FileEntry:
    """A regular file of the walk. `path` is relative to the root, with `/`, in the form of `composed`.

    `size_bytes` and `modified_ns` (since 1970) are those of the directory listing. `name` and `directory` are for
    opening the file, and are valid only until the walk continues.
    """

    path: str
    size_bytes: int
    name: str
    directory: int | None
    modified_ns: int = 0

    def read(self, limit_bytes: int, over: Callable[[], bool]) -> bytes | None:
        """Return the first `limit_bytes`, or None if the file is binary, unreadable or not a regular file any more.

        Returns less if `over` returns True, because the time is over.
        """
        try:
            with _opened(self.name, self.directory) as handle:
                return _read(handle, limit_bytes, over)
        except OSError:
            return None


class Tree:
    """A root directory, resolved once. Holds no descriptor between calls; safe to use from several threads."""

    def __init__(self, root: str | Path, *, include_ignored: bool = False) -> None:
        given = os.fspath(root)
        try:
            self.root = os.path.realpath(given, strict=True)
        except (OSError, ValueError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
            raise ConfigurationError(f"the workspace root {given!r} cannot be used: {reason}") from exc
        if not Path(self.root).is_dir():
            raise ConfigurationError(f"the workspace root {given!r} is not a directory")
        self._include_ignored = include_ignored

    # ------------------------------------------------------------------------------------------ walking

    def walk(self, budget: Budget, below: str = "") -> Iterator[FileEntry]:
        """Yield every regular file that is not ignored, in the order of names within each directory.

        Skips symbolic links, directories that cannot be listed, paths of more than 4,000 bytes, and SQLite databases in
        use, which must not be opened (`_is_in_use`). Of names that differ only in their form of Unicode, yields the
        first. Directories outside of `below`, which is empty or ends with a slash, are not listed. Ends early when the
        budget is spent; `budget.stopped` has the reason. Raises `ToolError` if the root cannot be read any more.
        """
        try:
            with _directory(self.root, None) as descriptor:
                yield from self._walk(descriptor, "", [], budget, below)
        except OSError as exc:
            raise ToolError(f"the workspace cannot be read any more: {exc.strerror}") from exc

    def _walk(
        self, directory: int | str, base: str, rules: list[IgnoreRules], budget: Budget, below: str
    ) -> Iterator[FileEntry]:
        entries, is_there = _listed(directory, budget)
        if not self._include_ignored:
            if base and is_there("pyvenv.cfg"):
                return
            if is_there(".gitignore"):
                rules = [*rules, *self._rules_in(directory, base, budget)]
        seen: set[str] = set()
        for entry in entries:
            path = base + composed(entry.name)
            if not entry.name.isascii():
                if path in seen:
                    continue
                seen.add(path)
            try:
                is_directory = entry.is_dir(follow_symlinks=False)
                if not _can_be_named(path):
                    continue
                if is_directory and not (f"{path}/".startswith(below) or below.startswith(f"{path}/")):
                    continue  # It is neither below the wanted directory, nor on the way to it.
                if self._ignored(path, entry.name, rules, budget, is_directory=is_directory):
                    continue
                if budget.over():
                    return
                if is_directory:
                    if base.count("/") < _MAX_DEPTH:
                        with _directory(*_child(directory, entry.name)) as descriptor:
                            yield from self._walk(descriptor, f"{path}/", rules, budget, below)
                elif entry.is_file(follow_symlinks=False) and not _is_in_use(entry.name, is_there):
                    status = entry.stat(follow_symlinks=False)
                    name, parent = _child(directory, entry.name)
                    yield FileEntry(path, status.st_size, name, parent, status.st_mtime_ns)
            except OSError:
                # The entry is unreadable, or was removed or replaced since the listing.
                continue

    def _ignored(
        self, path: str, name: str, rules: Iterable[IgnoreRules], budget: Budget, *, is_directory: bool
    ) -> bool:
        if self._include_ignored:
            return False
        if name in DEFAULT_IGNORED:
            return True
        subject = f"{path}/" if is_directory else path
        ignored = False
        # The rules of a deeper directory override those above it.
        for each in rules:
            ignored = ignored if (verdict := each.verdict(subject, budget.over)) is None else verdict
        return ignored

    def _rules_in(self, directory: int | str, base: str, budget: Budget) -> list[IgnoreRules]:
        try:
            with _opened(*_child(directory, ".gitignore")) as handle:
                data = os.read(handle, _MAX_IGNORE_BYTES)
        except OSError:
            return []
        if len(data) == _MAX_IGNORE_BYTES:
            # The last rule may be cut, and would have another meaning.
            data = data[: data.rfind(b"\n") + 1]
        rules = parse_gitignore(data.decode("utf-8", "replace"), base, budget.over)
        return [rules] if rules else []

    # ------------------------------------------------------------------------------------------ one file

    @contextlib.contextmanager
    def open(self, path: str, budget: Budget) -> Generator[tuple[str, int]]:
        """Open the regular file at `path`, and yield its path relative to the root and a descriptor, closed after that.

        Symbolic links that stay inside the root are followed. Raises `ToolError` for a path that is outside, missing,
        ignored, a directory, or not a regular file, with a text that helps a model to continue.
        """
        given = path.strip()
        # It is used only in messages.
        path = path if len(path) <= _SHOWN_CHARS else f"{path[:_SHOWN_CHARS]}..."
        with contextlib.ExitStack() as stack:
            try:
                parts = self._inside(given)
                directory: int | str = stack.enter_context(_directory(self.root, None))
                rules: list[IgnoreRules] = []
                name, shown = "", list[str]()
                for depth, part in enumerate(parts, 1):
                    name = _listed_name(directory, part, budget)
                    shown.append(composed(name))
                    is_directory = depth < len(parts)
                    self._refuse_ignored(path, shown, directory, rules, budget, is_directory=is_directory)
                    if is_directory:
                        directory = stack.enter_context(_directory(*_child(directory, name)))
                if not parts:
                    raise IsADirectoryError
                if _is_in_use(name, functools.partial(_is_there, directory)):
                    raise _InUse(name)
                handle = stack.enter_context(_opened(*_child(directory, name)))
            except (OSError, ValueError) as exc:
                raise self._explain(path, exc) from exc
            yield "/".join(shown), handle

    def read(self, path: str, limit_bytes: int, budget: Budget) -> bytes | None:
        """Return the first `limit_bytes` of a file by its path in the walk, or None if that fails.

        Returns less if the budget's time is over.
        """
        try:
            with self.open(path, budget) as (_, handle):
                return _read(handle, limit_bytes, budget.over)
        except (ToolError, OSError):
            return None

    def _inside(self, path: str) -> list[str]:
        """Return the parts of `path` below the root, with links resolved."""
        if not path:
            raise ToolError("the path is empty; pass a file's path relative to the workspace's root")
        if "\0" in path:
            raise ToolError("the path contains a NUL character")
        if len(path.encode()) > _MAX_PATH_BYTES:
            raise ToolError(f"no such file: {path[:_SHOWN_CHARS]!r}... is longer than {_MAX_PATH_BYTES} bytes")
        real = os.path.realpath(os.path.join(self.root, path))  # noqa: PTH118 -- realpath of text
        if real == self.root:
            return []
        prefix = self.root if self.root.endswith(os.sep) else self.root + os.sep
        if not real.startswith(prefix):
            raise ToolError(f"{path!r} is outside of the workspace; pass a path relative to the workspace's root")
        parts = list(Path(real[len(prefix) :]).parts)
        if len(parts) > _MAX_DEPTH + 1:
            # Each level takes a descriptor while the file is opened.
            raise ToolError(f"{path[:_SHOWN_CHARS]!r} is more than {_MAX_DEPTH} directories deep")
        return parts

    def _refuse_ignored(
        self,
        path: str,
        parts: list[str],
        directory: int | str,
        rules: list[IgnoreRules],
        budget: Budget,
        *,
        is_directory: bool,
    ) -> None:
        """Raise `ToolError` for `path` if its first `parts`, the last of which is in `directory`, are ignored.

        Adds the rules of that directory to `rules`.
        """
        if self._include_ignored:
            return
        rules += self._rules_in(directory, "".join(f"{each}/" for each in parts[:-1]), budget)
        if self._ignored("/".join(parts), parts[-1], rules, budget, is_directory=is_directory):
            raise ToolError(f"{path!r} is ignored in this workspace (.gitignore, or not part of its sources)")
        if budget.over():
            raise ToolError(f"{path!r} is not read: it takes too long to find out whether it is ignored")

    def _explain(self, path: str, exc: Exception) -> ToolError:
        if isinstance(exc, IsADirectoryError):
            return ToolError(f"{path!r} is a directory; call list_files with glob={path.rstrip('/') + '/**'!r}")
        if isinstance(exc, _InUse):
            return ToolError(f"{path!r} belongs to an SQLite database that is in use, and is not read")
        if isinstance(exc, (FileNotFoundError, NotADirectoryError)):
            return ToolError(f"no such file: {path!r}{self._suggest(path)}")
        if isinstance(exc, _NotAFile):
            return ToolError(f"{path!r} is not a regular file")
        return ToolError(f"{path!r} cannot be read: {getattr(exc, 'strerror', None) or exc}")

    def _suggest(self, path: str) -> str:
        """Return a hint that names files with the same name, or else a similar one, found within a second."""
        budget = Budget(seconds=_SUGGESTION_SECONDS, names=_SUGGESTION_NAMES)
        wanted = path.strip().replace("\\", "/").rpartition("/")[2].lower()[:_MAX_NAME_CHARS]
        names = [(each.path.rpartition("/")[2].lower(), each.path) for each in self.walk(budget)]
        close = [each for name, each in names if name == wanted] or _similar(wanted, dict(names), budget)
        return f"; did you mean {' or '.join(repr(each) for each in close[:3])}?" if close else ""


def _similar(wanted: str, names: dict[str, str], budget: Budget) -> list[str]:
    """Return the paths of the three names most similar to `wanted` by difflib, within the budget."""
    matcher = difflib.SequenceMatcher()
    matcher.set_seq2(wanted)
    scored: list[tuple[float, str]] = []
    for name in names:
        if budget.over():
            break
        matcher.set_seq1(name)
        # The quick ones are upper bounds.
        ratios = matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio
        if all((newest := ratio()) >= _SIMILAR for ratio in ratios):
            scored.append((newest, name))
    return [names[name] for _, name in heapq.nlargest(3, scored)]


def _listed(directory: int | str, budget: Budget) -> tuple[Iterable[os.DirEntry[str]], Callable[[str], bool]]:
    """Return a directory's entries by name, within the budget, and a function that says whether a name is in it."""
    runs: list[list[os.DirEntry[str]]] = [[]]
    is_there: Callable[[str], bool] | None = None
    with os.scandir(directory) as scanned:
        for entry in scanned:
            if budget.over() or not budget.take_name():
                is_there = functools.partial(_is_there, directory)
                break
            if len(runs[-1]) == _SORTED_AT_ONCE:
                runs.append([])
            runs[-1].append(entry)
    for run in runs:
        run.sort(key=_name)
    is_there = is_there or frozenset(entry.name for run in runs for entry in run).__contains__
    return runs[0] if len(runs) == 1 else heapq.merge(*runs, key=_name), is_there


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


class _NotAFile(OSError):
    """A FIFO, a socket or a device."""


class _InUse(OSError):
    """An SQLite database that some process has open."""


# The endings of the files that SQLite keeps beside a database while it is open.
_BESIDE = ("-wal", "-shm")


def _is_in_use(name: str, is_there: Callable[[str], bool]) -> bool:
    """Return whether a file belongs to an SQLite database that is open, for example the store of this process.

    A process that opens and closes such a file loses its locks on it, and the database may be damaged then
    (sqlite.org/howtocorrupt.html, 2.2). So it is recognised by the files beside it, and not by its content.
    """
    return any(
        is_there(name + ending) or (name.endswith(ending) and is_there(name.removesuffix(ending))) for ending in _BESIDE
    )


def _is_there(directory: int | str, name: str) -> bool:
    try:
        _status(directory, name)
    except OSError:
        return False
    return True


def _status(directory: int | str, name: str) -> os.stat_result:
    path, parent = _child(directory, name)
    return os.stat(path, dir_fd=parent, follow_symlinks=False)


def _listed_name(directory: int | str, name: str, budget: Budget) -> str:
    """Return `name` as `directory` lists it, in any form of Unicode. Raises `OSError` if it lists no such name.

    The listing is read only if another spelling could lead to the same file. An ASCII name that does not lead there in
    the other case has no other spelling.
    """
    if name.isascii() and not _is_same(directory, name, name.swapcase()):
        return name
    wanted, found = composed(name), ""
    with os.scandir(directory) as scanned:
        for entry in scanned:
            if budget.over():
                raise TimeoutError("it takes too long to find its name in its directory")
            if entry.name == name:
                return name
            if composed(entry.name) == wanted:
                found = entry.name
    if not found:
        raise FileNotFoundError(name)
    return found


def _is_same(directory: int | str, name: str, other: str) -> bool:
    """Return whether two different names in a directory lead to the same file."""
    if name == other:
        return False
    try:
        return os.path.samestat(*(_status(directory, each) for each in (other, name)))
    except OSError:
        return False


def _can_be_named(path: str) -> bool:
    """Return whether a model can write this path in a call and have the file opened."""
    try:
        return len(path.encode()) <= _MAX_PATH_BYTES
    except UnicodeEncodeError:
        return False


def _child(directory: int | str, name: str) -> tuple[str, int | None]:
    """Return the arguments to open `name` in `directory`: by descriptor, or by path if the platform needs it."""
    return (name, directory) if isinstance(directory, int) else (f"{directory}{os.sep}{name}", None)


@contextlib.contextmanager
def _directory(name: str, parent: int | None) -> Generator[int | str]:
    if not _HAS_DIR_FD:
        _check_no_link(name)
        yield name
        return
    descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _opened(name: str, parent: int | None) -> Generator[int]:
    if not _HAS_DIR_FD:
        _check_no_link(name)
    descriptor = os.open(name, _FILE, dir_fd=parent)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(name)
        if not stat.S_ISREG(mode):
            raise _NotAFile(name)
        yield descriptor
    finally:
        os.close(descriptor)


def _check_no_link(name: str) -> None:
    if os.path.realpath(name) != os.path.normpath(name):
        raise FileNotFoundError(name)


def _read(handle: int, limit_bytes: int, over: Callable[[], bool]) -> bytes | None:
    """Return up to `limit_bytes` of text, as UTF-8; None for a binary file."""
    head = os.read(handle, _SNIFF_BYTES)
    is_utf16 = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    if b"\0" in head and not is_utf16:
        return None
    pieces = [head]
    limit_bytes -= len(head)
    if len(head) < _SNIFF_BYTES:
        # The file has no more bytes, and a second read would cost as much as the first.
        limit_bytes = 0
    while limit_bytes > 0 and not over() and (piece := os.read(handle, min(limit_bytes, 1 << 20))):
        pieces.append(piece)
        limit_bytes -= len(piece)
    text = b"".join(pieces)
    return as_utf8(text, over) if is_utf16 else text.removeprefix(b"\xef\xbb\xbf")


def as_utf8(text: bytes, over: Callable[[], bool]) -> bytes:
    """Return UTF-16 text, which begins with a byte order mark, as UTF-8; less of it if `over` returns True.

    It is decoded in pieces, because damaged text is slow to decode, and decoding holds the interpreter's lock.
    """
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    pieces: list[bytes] = []
    for start in range(0, len(text), _DECODED_AT_ONCE):
        if over():
            break
        pieces.append(decoder.decode(text[start : start + _DECODED_AT_ONCE]).encode())
    return b"".join(pieces) + decoder.decode(b"", final=True).encode()
