"""`toolbus status`: what is unfinished in a store, who holds it, and what waits for a person."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import anyio
import orjson
from cut_off import NOBODY, cut_off, hold, with_store
from desk import Command
from scenes import resumable

from toolbus import Runtime, SqliteStore
from toolbus.testing import ScriptedProvider


def test_a_store_that_was_never_made_has_nothing(toolbus: Command, kept: Path):
    ended = toolbus("status")
    assert ended.out == "unfinished requests: 0; held: 0; parked: 0; free: 0; questions: 0\n"
    assert orjson.loads(toolbus("status", "--json").out)["requests"] == []
    assert toolbus("status", "--store", "nowhere.db").status == 2


def test_unfinished_requests_are_shown_with_their_holders_and_open_questions(toolbus: Command, kept: Path):
    free = cut_off(kept, ("send", {"to": "you"}), "One?")
    held = cut_off(kept, ("delete_file", {"path": "a"}), "Two\x1b[31m?")
    hold(kept, held, 60, host="other")
    ended = toolbus("status")
    first, *rows = ended.out.splitlines()
    assert first == "unfinished requests: 2; held: 1; parked: 0; free: 1; questions: 1"
    by_id = {row.split()[0]: row for row in rows}
    assert "  free" in by_id[free]
    assert by_id[free].endswith("One?")
    assert "held by other:" in by_id[held]
    assert by_id[free].index("One?") == by_id[held].index("Two"), "the columns are aligned"
    assert "  waits for a decision: delete_file, asked a moment ago" in rows
    assert "\x1b" not in ended.out
    whole = orjson.loads(toolbus("status", "--json").out)
    assert (whole["unfinished"], whole["held"], whole["free"], whole["pending_approvals"]) == (2, 1, 1, 1)
    one = {each["request_id"]: each for each in whole["requests"]}
    assert (one[free]["holder"], one[free]["lease_seconds"], one[free]["pending_approvals"]) == (None, 0.0, [])
    assert one[free]["damage"] is None
    assert 0 < one[held]["lease_seconds"] <= 60
    assert [each["name"] for each in one[held]["pending_approvals"]] == ["delete_file"]


def test_the_lease_of_a_killed_process_is_held_until_it_runs_out(toolbus: Command, kept: Path):
    request_id = cut_off(kept, ("send", {"to": "you"}), "One?")
    hold(kept, request_id, 60, process=NOBODY)
    assert "held: 1" in toolbus("status").out
    past = cut_off(kept, ("send", {"to": "you"}), "Two?")
    hold(kept, past, -1, process=NOBODY)
    assert "held: 1; parked: 0; free: 1" in toolbus("status").out


def test_a_parked_request_is_not_free(toolbus: Command, kept: Path):
    request_id = cut_off(kept, ("send", {"to": "you"}), "One?")
    hold(kept, request_id, 60)
    assert with_store(kept, lambda store: store.park(request_id, 2, 60))
    first, row = toolbus("status").out.splitlines()
    assert first == "unfinished requests: 1; held: 0; parked: 1; free: 0; questions: 0"
    assert "  parked  " in row
    assert orjson.loads(toolbus("status", "--json").out)["requests"][0]["parked"]


def test_a_request_that_several_processes_have_taken_over_shows_how_often(toolbus: Command, kept: Path):
    cut_off(kept, ("delete_file", {"path": "a"}), "One?")

    async def taken_over() -> None:
        async with Runtime(ScriptedProvider([]), tools=resumable, store=SqliteStore(kept), drain_seconds=0) as runtime:
            (session,) = await runtime.resume()
            await session.accepted()

    anyio.run(taken_over)
    assert "resumed" not in toolbus("status").out
    anyio.run(taken_over)
    assert "\n  resumed 2 times\n" in toolbus("status").out
    assert orjson.loads(toolbus("status", "--json").out)["requests"][0]["resumptions"] == 2


def test_a_damaged_journal_is_shown_with_its_request(toolbus: Command, kept: Path):
    request_id = cut_off(kept, ("send", {"to": "you"}), "One?")
    with contextlib.closing(sqlite3.connect(kept)) as database:
        database.execute("UPDATE facts SET data = ? WHERE seq = 1", (b"{}",))
        database.commit()
    out = toolbus("status").out
    assert request_id in out
    [damaged] = [line for line in out.splitlines() if line.startswith("  damaged: ")]
    [found] = orjson.loads(toolbus("status", "--json").out)["requests"]
    assert damaged.startswith(f"  damaged: {found['damage']}")
