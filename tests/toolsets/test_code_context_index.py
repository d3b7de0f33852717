"""The index of a tree: what it finds, how it follows changes, and that nothing breaks it."""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import sys
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from toolbus.errors import ConfigurationError, ToolError
from toolbus.toolsets._files.tree import FileEntry
from toolbus.toolsets.code_context import CodeIndex, _index, _storage

posix = pytest.mark.skipif(sys.platform == "win32", reason="modes of files")
LONG_AGO_NS = 1_600_000_000 * 10**9


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    write(root / "src/lease.py", 'class Lease:\n    def renewForLonger(self):\n        """Hold it."""\n')
    write(root / "src/mail.py", "def send(message):\n    smtp.deliver(message)\n")
    write(root / "notes.md", "# Mail\n\nEvery message is delivered once.\n")
    write(root / "image.png", "send message")
    write(root / "built/mail.py", "def send(message): ...\n")
    write(root / ".gitignore", "built/\n")
    return root


def write(path: Path, text: str, *, changed_ns: int = LONG_AGO_NS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(changed_ns, changed_ns))


def index_of(tree: Path, **options: Any) -> CodeIndex:
    return CodeIndex(tree, cache_dir=tree.parent / "cache", rerank=False, **options)


async def ids(index: CodeIndex, query: str) -> list[str]:
    return [hit.id for hit in await index.hybrid_search(query, 5)]


async def test_words_find_identifiers_by_their_parts_and_by_their_stems(tree: Path):
    index = index_of(tree)
    assert await ids(index, "renewing a lease") == ["src/lease.py#1:3"]
    (hit,) = await index.hybrid_search("holds", 5)
    assert hit.text == 'class Lease:\n    def renewForLonger(self):\n        """Hold it."""'
    assert hit.score > 0
    assert set(await ids(index, "delivers messages")) == {"src/mail.py#1:2", "notes.md#1:3"}
    assert len(await index.hybrid_search("delivers messages", 1)) == 1


async def test_what_is_ignored_or_no_source_is_not_found_and_a_query_without_words_finds_nothing(tree: Path):
    index = index_of(tree)
    assert (await index.refresh()).files == 3
    assert not [each for each in await ids(index, "send message") if not each.startswith(("src/", "notes"))]
    assert await ids(index, "?!") == []
    assert await ids(index, "nowhere") == []


async def test_a_glob_says_which_files_are_indexed(tree: Path):
    assert await ids(index_of(tree, glob="*.md"), "message") == ["notes.md#1:3"]


async def test_tests_come_behind_what_they_test(tree: Path):
    for number in range(3):
        write(tree / f"tests/test_quota{number}.py", "def quota(): quota quota\n")
    write(tree / "src/quota.py", "def quota(limit):\n    return limit\n")
    assert (await ids(index_of(tree), "quota"))[0] == "src/quota.py#1:2"


async def test_only_changed_files_are_read_again(tree: Path):
    index = index_of(tree)
    assert (await index.refresh()).changed == 3
    assert (await index.refresh()).changed == 0
    write(tree / "src/mail.py", "def post(letter): ...\n", changed_ns=LONG_AGO_NS + 1)
    (tree / "notes.md").unlink()
    report = await index_of(tree).refresh()
    assert (report.files, report.changed, report.removed, report.chunks) == (2, 1, 1, 2)
    assert (await index.refresh()).removed == 0
    assert await ids(index, "post letter") == ["src/mail.py#1:1"]
    assert await ids(index, "message") == []


async def test_a_file_of_which_only_the_time_has_changed_is_read_once_and_keeps_its_chunks(
    tree: Path, monkeypatch: pytest.MonkeyPatch
):
    index = index_of(tree)
    await index.refresh()
    os.utime(tree / "src/mail.py", ns=(LONG_AGO_NS + 5, LONG_AGO_NS + 5))
    read, really = list[str](), FileEntry.read

    def reading(entry: FileEntry, *bounds: Any) -> bytes | None:
        read.append(entry.path)
        return really(entry, *bounds)

    monkeypatch.setattr(FileEntry, "read", reading)
    assert [(await index.refresh()).changed for _ in range(2)] == [0, 0]
    assert read == ["src/mail.py"]
    assert await ids(index, "smtp") == ["src/mail.py#1:2"]


async def test_a_file_that_is_written_twice_in_one_tick_of_the_clock_is_read_again(tree: Path):
    now = time.time_ns()
    index = index_of(tree)
    write(tree / "src/mail.py", "def send(aaaa): ...\n", changed_ns=now)
    assert await ids(index, "aaaa")
    write(tree / "src/mail.py", "def send(bbbb): ...\n", changed_ns=now)
    assert await ids(index, "aaaa") == []
    assert await ids(index, "bbbb") == ["src/mail.py#1:1"]


async def test_files_past_the_bounds_are_left_out_and_counted(tree: Path):
    report = await index_of(tree, max_file_bytes=60).refresh()
    assert (report.files, report.skipped) == (2, 1)
    report = await index_of(tree, max_files=1).refresh()
    assert (report.files, report.chunks) == (1, 1)
    index = index_of(tree, max_chunks=2)
    assert (await index.refresh()).skipped == 1
    report = await index.refresh()
    assert (report.changed, report.skipped, report.chunks) == (0, 1, 2)


async def test_a_file_that_changes_in_a_full_index_has_the_room_that_it_had(tree: Path):
    index = index_of(tree, max_chunks=3)
    assert (await index.refresh()).chunks == 3
    write(tree / "src/mail.py", "def post(letter):\n    smtp.deliver(letter)\n", changed_ns=LONG_AGO_NS + 1)
    report = await index.refresh()
    assert (report.changed, report.skipped, report.chunks) == (1, 0, 3)
    assert await ids(index, "letter") == ["src/mail.py#1:2"]


async def test_binary_files_and_files_that_are_no_utf8_break_nothing(tree: Path):
    (tree / "src/binary.py").write_bytes(b"\0\1\2")
    (tree / "src/latin.py").write_bytes(b"def gr\xf6sse(): return 'warehouse'\r\n")
    assert await ids(index_of(tree), "warehouse") == ["src/latin.py#1:1"]


@posix
async def test_the_index_is_for_its_owner_alone(tree: Path):
    index = index_of(tree)
    await index.refresh()
    assert index.path.stat().st_mode & 0o777 == 0o600
    assert index.path.parent.stat().st_mode & 0o777 == 0o700


async def test_a_damaged_index_is_made_anew(tree: Path):
    index = index_of(tree)
    index.path.parent.mkdir()
    index.path.write_bytes(b"no database" * 1_000)
    assert await ids(index, "lease") == ["src/lease.py#1:3"]


async def test_an_index_that_cannot_be_opened_now_is_kept(tree: Path, monkeypatch: pytest.MonkeyPatch):
    index = index_of(tree)
    await index.refresh()
    forget = Mock()
    with monkeypatch.context() as patch:
        patch.setattr(_index, "forget", forget)
        patch.setattr(_storage.Storage, "file", Mock(side_effect=sqlite3.OperationalError("disk I/O error")))
        with pytest.raises(ToolError, match=r"cannot be stored in .*: disk I/O error"):
            await index.refresh()
    forget.assert_not_called()


def test_a_block_that_fails_writes_nothing_and_the_next_one_can_write(tmp_path: Path):
    def contents(storage: _storage.Storage) -> list[Any]:
        return storage._connection.execute("SELECT x FROM y").fetchall()

    with _storage.opened(tmp_path / "a.db", lambda: None) as storage:
        storage._connection.execute("CREATE TABLE y (x)")
        with pytest.raises(ZeroDivisionError), storage.writing():
            storage._connection.execute("INSERT INTO y VALUES (1)")
            raise ZeroDivisionError
        assert contents(storage) == []
        with storage.writing():
            storage._connection.execute("INSERT INTO y VALUES (2)")
        assert contents(storage) == [(2,)]


def test_a_file_has_the_same_state_by_itself_as_in_the_list_of_all(tmp_path: Path):
    with _storage.opened(tmp_path / "a.db", lambda: None) as storage:
        for name, skipped in (("a.py", True), ("b.py", False)):
            storage.replace(name, _storage.FileState(3, 5, b"digest", skipped), [])
        assert len(storage.files()) == 2
        assert {name: storage.file(name) for name in storage.files()} == storage.files()
        assert storage.file("c.py") is None


async def test_an_index_that_cannot_be_kept_is_an_error_for_the_model(tree: Path):
    (tree.parent / "cache").write_text("a file")
    with pytest.raises(ToolError, match="cannot be stored in"):
        await index_of(tree).refresh()


async def test_a_cancelled_pass_ends_soon_and_what_it_has_written_stays(tree: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_index, "_BATCH_FILES", 1)
    with anyio.CancelScope() as scope:
        plain = _index.chunk_text

        def chunk_text(path: str, text: str) -> Any:
            if path == "src/lease.py":  # the second
                anyio.from_thread.run_sync(scope.cancel)
            return plain(path, text)

        monkeypatch.setattr(_index, "chunk_text", chunk_text)
        await index_of(tree).refresh()
    assert scope.cancelled_caught
    monkeypatch.undo()
    assert (await index_of(tree).refresh()).changed == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_pass_ends_when_asyncio_cancels_the_task_that_waits_for_it(tree: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[str] = []
    reached, cancelled = threading.Event(), threading.Event()

    def chunk_text(path: str, _text: str) -> list[Any]:
        seen.append(path)
        reached.set()
        cancelled.wait(60)
        return []

    monkeypatch.setattr(_index, "chunk_text", chunk_text)
    index = index_of(tree)
    task = asyncio.create_task(index.refresh())
    await anyio.to_thread.run_sync(reached.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cancelled.set()
    assert await anyio.to_thread.run_sync(index._lock.acquire, True, 60)  # the pass has ended
    assert len(seen) == 1


def test_a_pass_that_finds_nothing_ends_as_well_when_nobody_waits_for_it_any_more(tree: Path):
    for number in range(300):
        (tree / f"{number}.py").touch()
    looks = 0

    def check() -> None:
        nonlocal looks
        looks += 1
        if looks == 100:
            raise CancelledError

    with pytest.raises(CancelledError):
        index_of(tree, glob="*.nothing")._refresh(check)
    assert looks == 100


async def test_a_pass_looks_at_twenty_names_for_each_file_that_there_may_be(tree: Path):
    for number in range(30):
        (tree / f"zz{number}.py").touch()
    assert (await index_of(tree, glob="zz*.py", max_files=1).refresh()).files == 1
    write(tree / "zzz/last.py", "here")
    assert (await index_of(tree, glob="last.py", max_files=1).refresh()).files == 0
    assert (await index_of(tree, glob="last.py", max_files=2).refresh()).files == 1


async def test_a_search_that_waits_for_another_one_can_be_cancelled(tree: Path):
    index = index_of(tree)
    with index._lock, anyio.move_on_after(0.01) as scope:
        await index.refresh()
    assert scope.cancelled_caught


def test_indexes_that_are_brought_up_to_date_at_once_agree(tree: Path, monkeypatch: pytest.MonkeyPatch):
    """Two connections to one file: for SQLite the same as two processes."""
    monkeypatch.setattr(_index, "_BATCH_FILES", 2)
    for number in range(30):
        write(tree / f"src/part{number}.py", f"def part_{number}():\n    return {number}\n")
    broken: list[BaseException] = []

    def refresh() -> None:
        try:
            index_of(tree)._refresh(lambda: None)
        except BaseException as exc:
            broken.append(exc)

    threads = [threading.Thread(target=refresh) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert broken == []
    report = index_of(tree)._refresh(lambda: None)
    assert (report.files, report.changed, report.chunks) == (33, 0, 33)
    found = index_of(tree)._search("part 7", 5, lambda: None)
    assert found[0].id == "src/part7.py#1:2"
    assert len({hit.id for hit in found}) == len(found)


async def test_what_another_process_has_indexed_meanwhile_is_not_read_again(
    tree: Path, monkeypatch: pytest.MonkeyPatch
):
    index = index_of(tree, max_chunks=2)
    find = index.sources

    def find_later(*given: Any) -> Any:
        index_of(tree, max_chunks=2)._refresh(lambda: None)
        return find(*given)

    monkeypatch.setattr(index, "sources", find_later)
    report = await index.refresh()
    assert (report.files, report.changed, report.skipped, report.chunks) == (3, 0, 1, 2)


@pytest.mark.parametrize(("statement", "waits"), [("SELECT * FROM nowhere", False), ("BEGIN IMMEDIATE", True)])
def test_only_another_process_that_writes_is_waited_for_and_not_for_ever(
    statement: str, waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    looks: list[None] = []
    monkeypatch.setattr(_storage, "_BUSY_SECONDS", 0.02)
    monkeypatch.setattr(_storage, "_CHECK_SECONDS", 0.01)
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "a.db", timeout=0, isolation_level=None)) as other,
        contextlib.closing(sqlite3.connect(tmp_path / "a.db", timeout=0, isolation_level=None)) as connection,
    ):
        other.execute("BEGIN IMMEDIATE")

        def look() -> None:
            looks.append(None)
            assert len(looks) < 100

        with pytest.raises(sqlite3.OperationalError):
            _storage.Storage(connection, look)._patiently(lambda: connection.execute(statement))
    assert bool(looks) == waits


def test_bounds_that_make_no_sense_and_a_missing_root_are_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="max_chunks"):
        CodeIndex(tmp_path, max_chunks=0)
    with pytest.raises(ConfigurationError, match="cannot be used"):
        CodeIndex(tmp_path / "missing")


@pytest.mark.parametrize(
    ("platform", "folder"), [("linux", ".cache"), ("darwin", "Library/Caches"), ("win32", "AppData/Local")]
)
def test_the_default_place_is_the_platforms_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, folder: str
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    assert _index.default_cache_dir(platform) == tmp_path / folder / "toolbus" / "code-context"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    assert _index.default_cache_dir("linux") == tmp_path / "own" / "toolbus" / "code-context"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", Mock(return_value="~"))
    with pytest.raises(ConfigurationError, match="there is no home folder to keep the index in; pass cache_dir"):
        _index.default_cache_dir(platform)
