"""The files below one root: walking them and opening them, without ever leaving it.

Each directory on the way is opened by its own descriptor and no symbolic link is followed there, so nothing that is
swapped between a check and an open leads outside. Where the platform has no such calls, paths are resolved and compared
instead. Knows ignore rules; does not know tools.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import ConfigurationError, ToolError
from ._patterns import DEFAULT_IGNORED, IgnoreRules, parse_gitignore

__all__ = ["FileEntry", "Tree"]

_HAS_DIR_FD = os.open in os.supports_dir_fd and os.scandir in os.supports_fd and hasattr(os, "O_NOFOLLOW")
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY = os.O_RDONLY | _NOFOLLOW | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
# Without O_NONBLOCK the open of a FIFO waits for a writer that may never come.
_FILE = (
    os.O_RDONLY | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
)
_MAX_DEPTH = 40  # each level of a walk holds a descriptor
_MAX_IGNORE_BYTES = 65_536
_SNIFF_BYTES = 8_192  # where git looks for a NUL byte, too
_SUGGESTION_FILES = 20_000


@dataclass(slots=True, frozen=True)
class FileEntry:
    """A regular file of the walk. `path` is relative to the root, with `/`.

    `size_bytes` and `modified_ns` (since 1970) are what the listing said.

    `name` and `directory` are for opening it, and hold only until the walk goes on.
    """

    path: str
    size_bytes: int
    name: str
    directory: int | None
    modified_ns: int = 0

    def read(self, limit_bytes: int) -> bytes | None:
        """The first `limit_bytes`, or None for what cannot be read or is no regular file any more."""
        try:
            with _opened(self.name, self.directory) as handle:
                return _read(handle, limit_bytes)
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

    def walk(self) -> Iterator[FileEntry]:
        """Every regular file that is not ignored, by name within each directory. Symbolic links are passed over.

        So are directories that cannot be listed, and SQLite databases in use, which must not be opened (`_is_in_use`).
        Raises `ToolError` when the root is gone.
        """
        try:
            with _directory(self.root, None) as descriptor:
                yield from self._walk(descriptor, "", [], 0)
        except OSError as exc:
            raise ToolError(f"the workspace cannot be read any more: {exc.strerror}") from exc

    def _walk(self, directory: int | str, base: str, rules: list[IgnoreRules], depth: int) -> Iterator[FileEntry]:
        with os.scandir(directory) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name)
        by_name = {entry.name: entry for entry in entries}
        if not self._include_ignored:
            if "pyvenv.cfg" in by_name and base:
                return
            if ".gitignore" in by_name:
                rules = [*rules, *self._rules_in(directory, base)]
        for entry in entries:
            path = base + entry.name
            try:
                is_directory = entry.is_dir(follow_symlinks=False)
                if not _is_utf8(entry.name) or self._ignored(path, entry.name, rules, is_directory=is_directory):
                    continue
                if is_directory:
                    if depth < _MAX_DEPTH:
                        with _directory(*_child(directory, entry.name)) as descriptor:
                            yield from self._walk(descriptor, f"{path}/", rules, depth + 1)
                elif entry.is_file(follow_symlinks=False) and not _is_in_use(entry.name, by_name.__contains__):
                    status = entry.stat(follow_symlinks=False)
                    name, parent = _child(directory, entry.name)
                    yield FileEntry(path, status.st_size, name, parent, status.st_mtime_ns)
            except OSError:  # unreadable, or gone or swapped since the listing
                continue

    def _ignored(self, path: str, name: str, rules: Iterable[IgnoreRules], *, is_directory: bool) -> bool:
        if self._include_ignored:
            return False
        if name in DEFAULT_IGNORED:
            return True
        subject = f"{path}/" if is_directory else path
        ignored = False
        for each in rules:  # a deeper file overrules those above it
            ignored = ignored if (verdict := each.verdict(subject)) is None else verdict
        return ignored

    def _rules_in(self, directory: int | str, base: str) -> list[IgnoreRules]:
        try:
            with _opened(*_child(directory, ".gitignore")) as handle:
                rules = parse_gitignore(os.read(handle, _MAX_IGNORE_BYTES).decode("utf-8", "replace"), base)
        except OSError:
            return []
        return [rules] if rules else []

    # ------------------------------------------------------------------------------------------ one file

    @contextlib.contextmanager
    def open(self, path: str) -> Generator[tuple[str, int]]:
        """Open the regular file at `path`: its path relative to the root, and a descriptor that is closed behind you.

        Symbolic links that stay inside the root are followed. Raises `ToolError` for a path that is outside, missing,
        ignored, a directory, or no regular file, with text that helps a model to go on.
        """
        parts = self._inside(path)
        with contextlib.ExitStack() as stack:
            try:
                directory: int | str = stack.enter_context(_directory(self.root, None))
                self._refuse_ignored(path, parts, directory, stack)
                for part in parts[:-1]:
                    directory = stack.enter_context(_directory(*_child(directory, part)))
                if not parts:
                    raise IsADirectoryError
                _refuse_database(*_child(directory, parts[-1]))
                handle = stack.enter_context(_opened(*_child(directory, parts[-1])))
            except (OSError, ValueError) as exc:
                raise self._explain(path, exc) from exc
            yield "/".join(parts), handle

    def read(self, path: str, limit_bytes: int) -> bytes | None:
        """The first `limit_bytes` of a file as the walk names it, or None where that fails."""
        try:
            with self.open(path) as (_, handle):
                return _read(handle, limit_bytes)
        except (ToolError, OSError):
            return None

    def _inside(self, path: str) -> list[str]:
        """The parts of `path` below the root, links resolved."""
        if not path.strip():
            raise ToolError("the path is empty; give a file's path relative to the workspace's root")
        if "\0" in path:
            raise ToolError("the path holds a NUL character")
        try:
            real = os.path.realpath(os.path.join(self.root, path.strip()))  # noqa: PTH118 -- realpath of text
        except (OSError, ValueError) as exc:  # a name that is too long, a lone surrogate
            raise ToolError(f"no such file: {path!r}") from exc
        if real == self.root:
            return []
        prefix = self.root if self.root.endswith(os.sep) else self.root + os.sep
        if not real.startswith(prefix):
            raise ToolError(f"{path!r} is outside of the workspace; give a path relative to the workspace's root")
        return list(Path(real[len(prefix) :]).parts)

    def _refuse_ignored(self, path: str, parts: list[str], root: int | str, stack: contextlib.ExitStack) -> None:
        if self._include_ignored:
            return
        directory: int | str = root
        rules: list[IgnoreRules] = []
        for depth, part in enumerate(parts):
            rules += self._rules_in(directory, "".join(f"{each}/" for each in parts[:depth]))
            last = depth == len(parts) - 1
            if self._ignored("/".join(parts[: depth + 1]), part, rules, is_directory=not last):
                raise ToolError(f"{path!r} is ignored in this workspace (.gitignore, or not part of its sources)")
            if not last:
                directory = stack.enter_context(_directory(*_child(directory, part)))

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
        """Files whose name is the one asked for, else those with a similar path."""
        wanted = path.strip().replace("\\", "/").rsplit("/", 1)[-1].lower()
        known = [entry.path for _, entry in zip(range(_SUGGESTION_FILES), self.walk(), strict=False)]
        close = [each for each in known if each.rsplit("/", 1)[-1].lower() == wanted]
        if not close:
            names = {each.rsplit("/", 1)[-1].lower(): each for each in known}
            close = [names[name] for name in difflib.get_close_matches(wanted, names, n=3)]
        return f"; did you mean {' or '.join(repr(each) for each in close[:3])}?" if close else ""


class _NotAFile(OSError):
    """A FIFO, a socket or a device."""


class _InUse(OSError):
    """An SQLite database that somebody has open."""


_BESIDE = ("-wal", "-shm")  # what stands beside an SQLite database while it is open


def _is_in_use(name: str, is_there: Callable[[str], bool]) -> bool:
    """Whether a file belongs to an SQLite database that is open, as the store of this process may be.

    A process that opens and closes such a file loses its locks on it, and the database may be damaged then
    (sqlite.org/howtocorrupt.html, 2.2). So it is told by the names beside it, and not by what is in it.
    """
    return any(
        is_there(name + ending) or (name.endswith(ending) and is_there(name.removesuffix(ending))) for ending in _BESIDE
    )


def _refuse_database(name: str, parent: int | None) -> None:
    def is_there(each: str) -> bool:
        try:
            os.stat(each, dir_fd=parent, follow_symlinks=False)
        except OSError:
            return False
        return True

    if _is_in_use(name, is_there):
        raise _InUse(name)


def _is_utf8(name: str) -> bool:
    """Whether a model could ever write this name."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _child(directory: int | str, name: str) -> tuple[str, int | None]:
    """How to open `name` in `directory`: by its descriptor, or by path where there are none."""
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


def _read(handle: int, limit_bytes: int) -> bytes | None:
    """Up to `limit_bytes` of text, as UTF-8; None for a binary file."""
    head = os.read(handle, _SNIFF_BYTES)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return (head + _rest(handle, limit_bytes - len(head))).decode("utf-16", "replace").encode()
    if b"\0" in head:
        return None
    if len(head) < _SNIFF_BYTES:
        return head.removeprefix(b"\xef\xbb\xbf")
    return (head + _rest(handle, limit_bytes - len(head))).removeprefix(b"\xef\xbb\xbf")


def _rest(handle: int, limit_bytes: int) -> bytes:
    pieces: list[bytes] = []
    while limit_bytes > 0 and (piece := os.read(handle, min(limit_bytes, 1 << 20))):
        pieces.append(piece)
        limit_bytes -= len(piece)
    return b"".join(pieces)
