"""What stores in SQL do at once for many requests, and what they do not do for each: leases, lists, and inputs."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.postgres_server import PostgresServer
from support.store_entries import entry
from toolbus.errors import InboxFull, StoreError
from toolbus.events import CancelRequested, Event
from toolbus.storage import MAX_WAITING_INPUTS
from toolbus.stores import sqlite
from toolbus.stores.postgres import PostgresStore
from toolbus.stores.sql import DatabaseStore
from toolbus.stores.sql import _functions as functions
from toolbus.stores.sql import _inbox as inbox
from toolbus.stores.sql import _read as read
from toolbus.stores.sqlite import SqliteStore


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer) -> AsyncIterator[Any]:
    if request.param == "sqlite":
        async with aclosing(SqliteStore(tmp_path / "store.db", durability="process")) as made:
            yield made
        return
    with postgres.database() as url:
        async with aclosing(PostgresStore(url)) as made:
            yield made


async def rows(store: DatabaseStore, statement: str) -> Sequence[Sequence[Any]]:
    return await store._read(lambda database: database.rows(statement))


async def _run(store: DatabaseStore, statement: str, values: Sequence[Any] = ()) -> None:
    await store._write(lambda database: database.run(statement, values))


def cancel(request_id: str, event_id: str) -> CancelRequested:
    return CancelRequested(request_id=request_id, event_id=event_id, reason="enough")


async def send_all(store: Any, events: Sequence[Event]) -> dict[str, object]:
    """Send inputs at once, and return the receipt of each, or its error, in the order of sending."""
    outcomes: dict[str, object] = {}

    async def send(event: Event) -> None:
        outcomes.setdefault(event.event_id, None)
        try:
            outcomes[event.event_id] = (await store.send(event)).state
        except (InboxFull, StoreError) as exc:
            outcomes[event.event_id] = type(exc).__name__

    async with anyio.create_task_group() as tasks:
        for each in events:
            tasks.start_soon(send, each)
    return outcomes


async def test_a_renewal_writes_one_row_and_all_leases_of_the_owner_last_longer(store: Any) -> None:
    for number in range(20):
        await store.append(entry(f"r{number}"))
    leases = "SELECT request_id, lease_until FROM requests ORDER BY request_id"
    before = await rows(store, leases)
    assert len(await store.renew("worker", 90_000)) == 20
    assert await rows(store, leases) == before
    for request_id, until in before:
        assert (await store.request(request_id)).lease_until > until + 80_000
    assert await store.take("r1", "heir", 60) is None


async def test_the_requests_of_a_process_that_died_before_its_first_renewal_are_found(store: Any) -> None:
    await store.append(entry("begun", lease_seconds=0))
    await store.append(entry("taken", lease_seconds=0))
    await store.take("taken", "another", 0)
    assert [each.request_id for each in await store.unfinished()] == ["begun", "taken"]


async def test_owners_that_have_been_gone_for_long_are_forgotten_unless_they_have_requests(store: Any) -> None:
    for owner in ("with one", "without", "here"):
        await store.renew(owner, 60)
    await store.append(entry("left", lease_seconds=0))
    await _run(store, "UPDATE owners SET lease_until = 1 WHERE owner <> 'here'")
    await store.renew("here", 60)
    assert await rows(store, "SELECT owner FROM owners ORDER BY owner") == [("here",), ("worker",)]
    assert [each.request_id for each in await store.unfinished()] == ["left"]


async def test_inputs_that_are_sent_at_once_share_transactions_and_keep_their_bounds_and_their_order(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[int] = []
    send_group = functions.send_all

    def counted(database: Any, events: Sequence[Event]) -> Any:
        groups.append(len(events))
        return send_group(database, events)

    monkeypatch.setattr(functions, "send_all", counted)
    for request_id in ("full", "other"):
        await store.append(entry(request_id))
    many = [cancel("full", f"f{number:03}") for number in range(MAX_WAITING_INPUTS + 20)]
    few = [cancel("other", f"o{number}") for number in range(3)]
    outcomes = await send_all(store, [*many, *few, few[0], cancel("nobody", "n")])
    assert [each for each in outcomes.values() if each == "InboxFull"] == ["InboxFull"] * 20
    assert [outcomes[each.event_id] for each in few] == ["waiting"] * 3
    assert outcomes["n"] == "unknown"
    waiting = [each.event_id for each in await store.waiting("worker", limit=200)]
    accepted = [event_id for event_id, outcome in outcomes.items() if outcome == "waiting"]
    assert waiting == sorted(accepted, key=lambda event_id: event_id[0])
    assert len(groups) <= 3
    assert sum(groups) == len(many) + 5


async def test_an_input_that_the_database_cannot_take_does_not_harm_those_that_are_sent_beside_it(store: Any) -> None:
    await store.append(entry("r"))
    outcomes = await send_all(store, [cancel("r", "a"), cancel("r", "\ud800"), cancel("r", "b")])
    assert outcomes == {"a": "waiting", "\ud800": "StoreError", "b": "waiting"}


async def test_inputs_that_cannot_be_read_do_not_keep_the_others_waiting(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await store.append(entry("r"))
    for event_id in ("a", "b", "c", "d", "e"):
        await store.send(cancel("r", event_id))
    await _run(store, "UPDATE inbox SET data = ? WHERE event_id < 'c'", (b'{"type": "of_tomorrow"}',))
    for _ in range(2):
        assert [each.event_id for each in await store.waiting("worker", without=["c"], limit=1)] == ["d"]
    logged = [each.getMessage().partition(" in its inbox cannot be read")[0] for each in caplog.records]
    assert logged == ["request r: input a", "request r: input b"]


async def test_inputs_for_other_requests_and_known_ones_do_not_keep_those_of_a_request_waiting(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "_LISTED", 2)
    for request_id in ("a", "b", "c"):
        await store.append(entry(request_id))
        for number in range(3):
            await store.send(cancel(request_id, f"{request_id}{number}"))

    async def waiting(**options: Any) -> list[str]:
        return [each.event_id for each in await store.waiting("worker", **options)]

    assert await waiting(request_id="b") == ["b0", "b1", "b2"]
    assert await waiting(request_id="c", limit=2) == ["c0", "c1"]
    assert await waiting(without=["a0", "a1", "a2"], limit=4) == ["b0", "b1", "b2", "c0"]
    assert await waiting(request_id="c", without=["c1"]) == ["c0", "c2"]


async def test_an_input_with_a_text_in_place_of_its_bytes_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    async with aclosing(SqliteStore(tmp_path / "store.db", durability="process")) as store:
        await store.append(entry("r"))
        for event_id, data in (("a", "text"), ("b", 10**12), ("c", None)):
            await store.send(cancel("r", event_id))
            if data is not None:
                await _run(store, "UPDATE inbox SET data = ? WHERE event_id = ?", (data, event_id))
        assert [each.event_id for each in await store.waiting("worker")] == ["c"]


async def test_looking_for_free_requests_reads_no_others(tmp_path: Path) -> None:
    async with aclosing(SqliteStore(tmp_path / "store.db", durability="process")) as store:
        await store.append(entry("r"))
        plan = await rows(store, f"EXPLAIN QUERY PLAN {read._FREE.replace('{now}', '1e9').replace('?', '100')}")
    used = [str(row[3]) for row in plan]
    assert not [each for each in used if each.startswith(("SCAN r", "SCAN h", "SCAN o", "SCAN d"))]
    for index in ("requests_free (lease_until<?)", "owners_out (lease_until<?)", "requests_held (owner=? AND lease"):
        assert [each for each in used if index in each]


async def test_a_list_of_requests_reads_the_agreed_options_of_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[list[str]] = []

    def explained(self: sqlite._Sqlite, statement: str, values: Sequence[Any] = ()) -> Sequence[Any]:
        if statement.startswith("SELECT r.request_id"):
            plans.append([str(row[3]) for row in real(self, f"EXPLAIN QUERY PLAN {statement}", values)])
        return real(self, statement, values)

    real = sqlite._Sqlite.rows
    monkeypatch.setattr(sqlite._Sqlite, "rows", explained)
    async with aclosing(SqliteStore(tmp_path / "store.db", durability="process")) as store:
        await store.append(entry("r"))
        assert len(await store.requests(limit=1)) == 1
    [used] = plans
    assert [each for each in used if each.startswith("SCAN")] == ["SCAN r", "SCAN f"]


async def test_a_search_in_the_conversations_of_one_user_reads_no_messages_of_others(tmp_path: Path) -> None:
    async with aclosing(SqliteStore(tmp_path / "store.db", durability="process")) as store:
        await store.append(entry("r"))
        looks = f"{read.LISTED} WHERE {read._HAS.replace('{find}', 'm.text = 1')} AND substr(conversation_id, 1, 4) = 'ann/'"
        used = [str(row[3]) for row in await rows(store, f"EXPLAIN QUERY PLAN {looks}")]
    assert "SEARCH m USING INDEX sqlite_autoindex_messages_1 (conversation_id=? AND position>?)" in used
    assert [each for each in used if each.startswith("CORRELATED")]
