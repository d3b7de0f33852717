"""No canary in the bytes of a SQLite file, nor of its log, nor of what is exported from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.secret_scene import SecretScene, leaks
from toolbus.stores.archive import export_to
from toolbus.stores.sqlite import SqliteStore


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the scene itself is played on both elsewhere
async def test_no_canary_is_in_the_bytes_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "toolbus.db"
    store = SqliteStore(path)
    await SecretScene(store).play()
    log = path.with_name("toolbus.db-wal")
    looked_at = path.read_bytes() + (log.read_bytes() if log.exists() else b"")
    exported = tmp_path / "all.jsonl"
    await export_to(store, exported)
    await store.aclose()
    assert b"tool_call_requested" in looked_at  # it is what was meant
    assert leaks(looked_at) == []
    assert leaks(exported.read_bytes()) == []
