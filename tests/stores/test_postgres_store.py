"""The store in PostgreSQL: what of it is the server's, and what becomes of it when the server fails."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from hashlib import sha256
from typing import Any, cast
from unittest.mock import AsyncMock

import anyio
import psycopg
import pytest

from support.deadline_clock import DeadlineClock
from support.postgres_server import PostgresServer
from support.store_entries import entry, text_of, turn, write_whole
from toolbus.clock import wall_time_from
from toolbus.errors import (
    ConfigurationError,
    LeaseLost,
    MissingExtra,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    UnsupportedStoreFormat,
)
from toolbus.events import CancelRequested
from toolbus.messages import UserMessage
from toolbus.storage import Durability
from toolbus.stores import postgres as postgres_store
from toolbus.stores._encoding import written
from toolbus.stores.archive import verify
from toolbus.stores.postgres import PostgresStore
from toolbus.stores.sql import Database, DatabaseStore, Row
from toolbus.stores.sql import _upkeep as upkeep
from toolbus.stores.sql._append import append_all
from toolbus.stores.sql._inbox import send_all
from toolbus.stores.sql._order import WantedTurn, take_all


def run(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.mark.guarantee("G11")
async def test_many_appends_at_once_share_few_commits(postgres_url: str) -> None:
    async with aclosing(PostgresStore(postgres_url)) as store:
        await store.open()
        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(store.append, entry(f"r{number}"))
        counted = await store.statistics()
        assert (counted.requests, counted.appends) == (200, 200)
        assert counted.commits <= 20


async def test_a_database_that_cannot_store_all_texts_is_refused_when_it_is_opened(postgres_url: str) -> None:
    run(postgres_url, "CREATE DATABASE narrow ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        server, _, options = postgres_url.partition("?")
        narrow = f"{server.rpartition('/')[0]}/narrow?{options}"
        async with aclosing(PostgresStore(narrow)) as store:
            with pytest.raises(ConfigurationError, match="database narrow has the encoding LATIN1"):
                await store.open()
    finally:
        run(postgres_url, "DROP DATABASE narrow WITH (FORCE)")


@pytest.mark.guarantee("G20")
async def test_leases_go_by_the_servers_clock(postgres_url: str) -> None:
    async with aclosing(PostgresStore(postgres_url)) as ours, aclosing(PostgresStore(postgres_url)) as theirs:
        await ours.append(entry(lease_seconds=3_600))
        with wall_time_from(lambda: 4_000_000_000.0):
            assert await theirs.take("r", "other", 60) is None
        assert await ours.release("r", 1)
        assert await theirs.take("r", "other", 60) is not None
        with pytest.raises(LeaseLost):
            await ours.append(entry("r", 1))


async def test_entries_that_are_refused_do_not_harm_those_that_share_their_commit(postgres_url: str) -> None:
    refused: dict[str, str] = {}
    long = "".join(sha256(bytes([each])).hexdigest() for each in range(200))  # more than an index takes

    async def append(request_id: str, seq: int) -> None:
        try:
            await store.append(entry(request_id, seq))
        except StoreError as exc:
            refused[request_id] = str(exc)

    async with aclosing(PostgresStore(postgres_url)) as store:
        await store.append(entry("a"))
        await store.append(entry("b"))
        async with anyio.create_task_group() as tasks:
            for request_id, seq in (("a", 1), ("b", 0), ("nul\0", 0), ("x", 3), ("\ud83d", 0), (long, 0), ("c", 0)):
                tasks.start_soon(append, request_id, seq)
        assert {*refused} == {"b", "nul\0", "x", "\ud83d", long}
        assert "maximum size" in refused[long]
        assert refused["b"] == "request b is in the journal already"
        assert "NUL" in refused["nul\0"]
        assert (await store.statistics()).facts == 4


@pytest.mark.parametrize("how", ["inputs", "turns"])
async def test_inputs_and_turns_of_several_requests_do_not_hold_one_while_they_wait_for_another(
    postgres_url: str, how: str
) -> None:
    """Otherwise they and a process that writes many requests at once, in an order of its own, wait for each other."""
    table, key = ("requests", "request_id") if how == "inputs" else ("turns", "conversation_id")
    async with aclosing(PostgresStore(postgres_url)) as ours, aclosing(PostgresStore(postgres_url)) as theirs:
        for each in ("first", "second"):
            if how == "inputs":
                await ours.append(entry(each, conversation_id=each))
            else:
                await ours.take_turn(each, each, "worker", 60)
        await theirs.open()
        together: Any = partial(send_all, events=[CancelRequested(request_id=each) for each in ("first", "second")])
        if how == "turns":
            together = partial(take_all, wanted=[WantedTurn(each, "x", "other", 60) for each in ("first", "second")])
        with psycopg.connect(postgres_url) as holder:
            holder.execute(f"SELECT 1 FROM toolbus.{table} WHERE {key} = 'second' FOR UPDATE".encode())
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(theirs._writer.run, together)
                while not run(postgres_url, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
                    await anyio.lowlevel.checkpoint()
                step = entry("first", 1 if how == "inputs" else 0, conversation_id="first")
                step.has_turn = how == "turns"
                await ours.append(step)
                holder.rollback()
        if how == "inputs":
            waiting = await ours.waiting("worker")
            assert sorted(each.request_id for each in waiting) == ["first", "second"]


async def test_a_turn_waits_for_a_request_that_is_written_now_although_its_lease_has_run_out(postgres_url: str) -> None:
    """Its transaction does not wait: the other one has more rows locked, and might wait for rows that are locked here."""
    async with aclosing(PostgresStore(postgres_url, timeout_seconds=2)) as store:
        for each in ("first", "second"):
            await store.append(entry(each, lease_seconds=0))
        with psycopg.connect(postgres_url) as holder:
            holder.execute("SELECT 1 FROM toolbus.requests WHERE request_id = 'second' FOR UPDATE")
            assert not await store.take_turn("c", "third", "other", 60)
            assert not await store.take_turn("c", "third", "other", 60)
        assert await store.take_turn("c", "third", "other", 60)
        for each in ("first", "second"):
            with pytest.raises(LeaseLost):
                await store.append(entry(each, 1))


async def test_steps_that_are_written_one_by_one_lock_conversations_in_the_order_of_groups(postgres_url: str) -> None:
    async with aclosing(PostgresStore(postgres_url)) as ours, aclosing(PostgresStore(postgres_url)) as theirs:
        await ours.append(entry("refused"))
        ids = ("second", "first")
        for each in ids:
            await ours.append(entry(each, conversation_id=each))
            await ours.remember(each, [UserMessage(content="before")])
        prompt = [UserMessage(content="prompt")]
        steps = [entry(each, 1, conversation_id=each, ending="completed", turn=prompt) for each in ids]
        with psycopg.connect(postgres_url) as holder:
            holder.execute("SELECT 1 FROM toolbus.conversations WHERE conversation_id = 'first' FOR UPDATE")
            async with anyio.create_task_group() as tasks:
                entries = [written(each) for each in (entry("refused"), *steps)]
                tasks.start_soon(ours._writer.run, partial(append_all, entries=entries))
                while not run(postgres_url, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
                    await anyio.lowlevel.checkpoint()
                await theirs.remember("second", [UserMessage(content="meanwhile")])
                holder.rollback()
        texts = [each.text for each in await ours.history("second")]
        assert texts == ["before", "meanwhile", "prompt"]


@pytest.mark.guarantee("G21")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_server_that_restarts_is_unavailable_meanwhile_and_then_used_again(
    postgres: PostgresServer, postgres_url: str, anyio_backend: str
) -> None:
    async with aclosing(PostgresStore(postgres_url)) as store:
        await write_whole(store)
        postgres.kill()
        for _ in range(2):
            with pytest.raises(StoreUnavailable) as caught:
                await store.append(entry("s"))
            assert isinstance(caught.value.__cause__, psycopg.Error)
            with pytest.raises(StoreUnavailable):
                await store.facts("r")
        postgres.start()
        await store.append(entry("s"))
        assert len(await store.facts("r")) == 5
        postgres.kill()
        postgres.start()
        await store.append(entry("s", 1))  # at the first attempt: nothing of it was sent when the connection broke
        assert len(await store.facts("s")) == 2


@pytest.mark.guarantee("G21")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_server_that_does_not_answer_is_given_up_in_time(
    postgres: PostgresServer, postgres_url: str, anyio_backend: str, clock: DeadlineClock
) -> None:
    async with aclosing(PostgresStore(postgres_url, timeout_seconds=60)) as store:
        await write_whole(store)
        with (
            postgres.halted(),
            clock.running(200),
            pytest.raises(StoreUnavailable, match="did not answer in time"),
            anyio.fail_after(30),
        ):
            await store.append(entry("s"))
        await store.append(entry("t"))
        assert await store.request("s") is None


@pytest.mark.guarantee("G21")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_row_that_somebody_else_locks_is_unavailable_until_he_lets_go(
    postgres_url: str, anyio_backend: str
) -> None:
    hasty = PostgresStore(postgres_url, timeout_seconds=0.3)
    async with aclosing(PostgresStore(postgres_url)) as store, aclosing(hasty):
        await store.append(entry())
        with psycopg.connect(postgres_url) as other:
            other.execute("SELECT * FROM toolbus.requests FOR UPDATE")
            with pytest.raises(StoreUnavailable, match=r"timeout|in time"):
                await hasty.append(entry("r", 1))
        await store.append(entry("r", 1))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_check_of_all_data_may_take_longer_than_a_request_waits(postgres_url: str, anyio_backend: str) -> None:
    def limits(database: Any) -> Any:
        names = "'statement_timeout', 'idle_in_transaction_session_timeout'"
        return {int(row[0]) for row in database.rows(f"SELECT setting FROM pg_settings WHERE name IN ({names})")}

    async with aclosing(PostgresStore(postgres_url, timeout_seconds=30)) as store:
        for seconds, least, most in ((None, 30_000, 30_000), (600, 500_000, 600_000), (None, 30_000, 30_000)):
            assert all(least <= each <= most for each in await store._read(limits, seconds=seconds))


async def test_two_stores_make_the_tables_at_once_and_others_tables_are_left_alone(postgres_url: str) -> None:
    one, two = PostgresStore(postgres_url, schema="mine"), PostgresStore(postgres_url, schema="mine")
    async with aclosing(one), aclosing(two), anyio.create_task_group() as tasks:
        tasks.start_soon(one.remember, "c", turn("a"))
        tasks.start_soon(two.remember, "c", turn("b"))
    async with aclosing(PostgresStore(postgres_url, schema="mine")) as store:
        assert len(await store.history("c")) == 4
    run(postgres_url, "CREATE TABLE public.things (x int)")
    async with aclosing(PostgresStore(postgres_url, schema="public")) as store:
        with pytest.raises(StoreError, match=r"schema public of database .* has tables of another program"):
            await store.open()
    run(postgres_url, "CREATE ROLE visitor LOGIN")
    try:
        async with aclosing(PostgresStore(postgres_url.replace("postgres@", "visitor@"), schema="mine")) as store:
            with pytest.raises(StoreError, match="permission denied for schema mine"):
                await store.open()
    finally:
        run(postgres_url, "DROP ROLE visitor")


async def test_where_the_default_is_another_isolation_level_processes_do_not_fail_each_other(postgres_url: str) -> None:
    strict = f"{postgres_url}&options=-cdefault_transaction_isolation%3Dserializable"
    stores = [PostgresStore(strict) for _ in range(4)]

    async def end_some(store: PostgresStore, number: int) -> None:
        for each in range(5):
            await store.append(entry(f"r{number}-{each}", ending="completed", turn=turn("hello")))

    async with anyio.create_task_group() as tasks:
        for number, store in enumerate(stores):
            tasks.start_soon(end_some, store, number)
    assert len(await stores[0].history("c")) == 4 * 5 * 2
    for store in stores:
        await store.aclose()


@pytest.mark.guarantee("G23")
async def test_tables_of_a_newer_format_are_refused_by_name(postgres_url: str) -> None:
    async with aclosing(PostgresStore(postgres_url)) as store:
        await store.open()
    run(postgres_url, "UPDATE toolbus.format SET number = 99")
    async with aclosing(PostgresStore(postgres_url)) as store:
        with pytest.raises(
            UnsupportedStoreFormat, match=r"schema toolbus of database .* was written by a newer .* in format 99"
        ):
            await store.history("c")


@pytest.mark.guarantee("G22")
async def test_damage_is_named_with_its_place(postgres_url: str) -> None:
    async with aclosing(PostgresStore(postgres_url)) as store:
        await write_whole(store)
        run(postgres_url, "UPDATE toolbus.facts SET data = data || ' '::bytea WHERE seq = 3")
        with pytest.raises(StoreDamaged) as caught:
            await store.facts("r")
        assert (caught.value.request_id, caught.value.seq) == ("r", 3)
        assert [each.seq for each in (await store.salvage("r")).facts] == [0, 1]
        [problem] = (await verify(store)).problems
        assert str(problem) == str(caught.value)


@pytest.mark.guarantee("G22")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("state", "error"),
    [("XX001", StoreDamaged), ("XX002", StoreDamaged), ("53300", StoreUnavailable), ("XX000", StoreError)],
)
async def test_what_the_server_reports_is_told_by_its_code(
    postgres_url: str, state: str, error: type[StoreError], anyio_backend: str
) -> None:
    async with aclosing(PostgresStore(postgres_url)) as store:
        await store.append(entry())
        run(postgres_url, f"CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''a page is "
            f"broken'' USING ERRCODE = ''{state}''; END'")  # fmt: skip
        run(postgres_url, "CREATE TRIGGER fail BEFORE INSERT ON toolbus.facts EXECUTE FUNCTION fail()")
        with pytest.raises(StoreError, match="PostgreSQL: a page is broken") as caught:
            await store.append(entry("r", 1))
        assert type(caught.value) is error


@pytest.mark.guarantee("G22")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_large_text_that_the_database_cannot_read_is_damage_only_where_it_is_used(
    postgres_url: str, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{number} ".ljust(20_000, "x") for number in range(5)]
    bad = sha256(texts[3].encode()).digest()

    def rows(self: Any, statement: str, values: Row = ()) -> Any:
        if statement.startswith("SELECT digest, data ") and bad in values:
            self._connection.execute("DO $$ BEGIN RAISE 'a bad page' USING ERRCODE = 'XX001'; END $$")
        return real(self, statement, values)

    async with aclosing(PostgresStore(postgres_url)) as store:
        for number, each in enumerate(texts):
            await store.append(entry("r", number, each))
        real = postgres_store._Postgres.rows
        monkeypatch.setattr(postgres_store._Postgres, "rows", rows)
        found = await store.salvage("r")
        assert [text_of(each.fact) for each in found.facts] == texts[:3]
        assert isinstance(found.damage, StoreDamaged)
        assert found.damage.seq == 3


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("durability", "setting"), [("power", "on"), ("process", "off")])
async def test_durability_is_whether_a_commit_waits_for_the_servers_disk(
    postgres_url: str, durability: Durability, setting: str, anyio_backend: str
) -> None:
    async with aclosing(PostgresStore(postgres_url, durability=durability)) as store:
        assert await store._writer.run(lambda database: database.rows("SHOW synchronous_commit")) == [(setting,)]


async def test_old_requests_are_pruned_with_their_large_texts(postgres_url: str) -> None:
    async with aclosing(PostgresStore(postgres_url)) as store:
        await write_whole(store, "r", "c", "large " * 5_000)
        record = await store.request("r")
        assert record is not None
        assert record.ended_at is not None
        done = await store.prune(before=record.ended_at + 60, conversations=True)
        assert (done.requests, done.conversations) == (1, 1)
        assert run(postgres_url, "SELECT count(*) FROM toolbus.blobs") == [(0,)]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("how", ["prune", "forget", "forget an empty one"])
async def test_a_turn_that_comes_while_its_conversation_is_deleted_begins_it_anew(
    postgres_url: str, how: str, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, delete = anyio.Event(), upkeep._delete_conversations
    token, old = anyio.lowlevel.current_token(), 0 if how == "forget an empty one" else 2

    def slowly(database: Any, found: Sequence[Any]) -> int:
        anyio.from_thread.run_sync(begun.set, token=token)
        waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        for _ in range(1_000 if found else 0):
            if run(postgres_url, f"{waits} UNION SELECT 1 FROM toolbus.conversations WHERE messages > {old}"):
                break
        return delete(database, found)

    monkeypatch.setattr(upkeep, "_delete_conversations", slowly)
    async with aclosing(PostgresStore(postgres_url)) as ours, aclosing(PostgresStore(postgres_url)) as theirs:
        await ours.remember("c" if old else "other", turn("old"))
        await theirs.open()
        [[now]] = run(postgres_url, "SELECT extract(epoch from clock_timestamp())::float")
        async with anyio.create_task_group() as tasks:
            if how == "prune":
                tasks.start_soon(lambda: ours.prune(before=cast("float", now), conversations=True))
            else:
                tasks.start_soon(ours.forget, "c")
            await begun.wait()
            tasks.start_soon(theirs.remember, "c", turn("new"))
        assert await ours.history("c") == turn("new")
        assert (await verify(ours)).problems == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_turn_that_began_before_its_conversation_was_deleted_comes_after_all_messages_that_are_left(
    postgres_url: str, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        aclosing(PostgresStore(postgres_url)) as ours,
        aclosing(PostgresStore(f"{postgres_url}&application_name=late")) as theirs,
    ):
        await ours.remember("c", turn("first"))
        await theirs.open()
        with psycopg.connect(postgres_url, autocommit=True) as holder:
            holder.execute("SELECT pg_advisory_lock(1)")
            holder.execute("""CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
 'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END'""")
            # Its turn waits after the beginning of its statement, which does not see what is committed meanwhile.
            holder.execute("""CREATE TRIGGER wait BEFORE INSERT ON toolbus.conversations FOR EACH ROW
 WHEN (current_setting('application_name') = 'late') EXECUTE FUNCTION wait()""")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(theirs.remember, "c", turn("new"))
                while not holder.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND objid = 1").fetchall():
                    await anyio.lowlevel.checkpoint()
                await ours.remember("c", turn("second"))
                with monkeypatch.context() as patch:
                    patch.setattr(DatabaseStore, "_delete_rest", AsyncMock())
                    assert await ours.forget("c")
                holder.execute("SELECT pg_advisory_unlock(1)")
        assert await ours.history("c") == turn("new")
        await ours.prune(before=0.0)
        assert await ours.history("c") == turn("new")
        assert (await verify(ours)).problems == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("exclusive", "mode"), [(False, "ShareLock"), (True, "ExclusiveLock")])
async def test_writers_of_large_texts_share_a_lock_that_a_deletion_does_not_share(
    postgres_url: str, anyio_backend: str, exclusive: bool, mode: str
) -> None:
    def held(database: Database) -> Sequence[Row]:
        with database.transaction():
            database.lock("blobs", exclusive=exclusive)
            return database.rows("SELECT mode FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")

    async with aclosing(PostgresStore(postgres_url)) as store:
        assert await store._write(held) == [(mode,)]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_messages_are_deleted_while_others_write_large_texts(
    postgres_url: str, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aclosing(PostgresStore(postgres_url)) as store:
        await store.remember("c", turn("old"))
        with monkeypatch.context() as patch:
            patch.setattr(DatabaseStore, "_delete_rest", AsyncMock())
            assert await store.forget("c")
        with psycopg.connect(postgres_url) as writer:
            key = postgres_store._lock_key("blobs", "toolbus")
            writer.execute("SELECT pg_advisory_xact_lock_shared(%s)", (key,))
            assert await store._write(upkeep.delete_some)
            assert run(postgres_url, "SELECT count(*) FROM toolbus.messages") == [(0,)]


async def test_what_cannot_be_a_store_is_refused_and_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for schema in ("", "Upper", "pg_mine", "a b", 'a"b', "x" * 64):
        with pytest.raises(ConfigurationError, match="schema is "):
            PostgresStore("dbname=x", schema=schema)
    with pytest.raises(ConfigurationError, match="durability is 'never'"):
        PostgresStore("dbname=x", durability="never")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="timeout_seconds is 0; it must be a finite number above 0"):
        PostgresStore("dbname=x", timeout_seconds=0)
    with pytest.raises(StoreUnavailable, match="Connection refused"):
        await _opened("postgresql://u@127.0.0.1:1/x?sslmode=disable")
    with pytest.raises(ConfigurationError, match="the conninfo cannot be read; pass a URL") as caught:
        await _opened("postgresql//me:secret@host/database")
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__
    # What is not percent-encoded in a password makes something else of it, and no piece of that is told.
    for password, why in (
        ("my@secret", "has an @ in its host"),
        ("my@s", "has an @ in its host"),
        ("my%ecsecret", "cannot be read"),
    ):
        with pytest.raises(ConfigurationError, match=why) as caught:
            await _opened(f"postgresql://me:{password}@127.0.0.1:1/database")
        assert "secret" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"pip install 'toolbus\[postgres\]'"):
        await _opened("dbname=x")


@pytest.mark.guarantee("G21")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_server_that_cannot_be_written_is_left_until_it_can(
    postgres_url: str, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [[name]] = run(postgres_url, "SELECT current_database()")
    async with aclosing(PostgresStore(postgres_url)) as store:
        await store.append(entry("r"))
        await store.aclose()
        run(postgres_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        for asked in (store.append(entry("s")), store.history("c")):
            with pytest.raises(StoreUnavailable, match="session is read-only"):
                await asked
        async with aclosing(PostgresStore(f"{postgres_url}&target_session_attrs=any")) as reader:
            assert await reader.request("r") is not None
        with monkeypatch.context() as patch:
            patch.setenv("PGTARGETSESSIONATTRS", "any")
            async with aclosing(PostgresStore(postgres_url)) as reader:
                assert await reader.request("r") is not None
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(b"SET default_transaction_read_only = off")
            connection.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only".encode())
        await store.append(entry("s"))
        # The server of an open connection may become one that only follows another.
        await store._write(lambda database: database.run("SET default_transaction_read_only = on"))
        await store.append(entry("t"))


@pytest.mark.parametrize(("hosts", "seconds"), [(1, 4), (2, 2), (4, 2)])
async def test_a_host_that_hangs_leaves_time_for_those_after_it(
    hosts: int, seconds: int, monkeypatch: pytest.MonkeyPatch, clock: DeadlineClock
) -> None:
    given: list[int] = []

    class Hangs:
        @staticmethod
        def connect(_conninfo: str, *, connect_timeout: int, **_more: Any) -> None:
            given.append(connect_timeout)
            raise psycopg.OperationalError("timeout expired")

    monkeypatch.setattr(postgres_store, "_connection_class", lambda: Hangs)
    with pytest.raises(StoreUnavailable, match="timeout expired"):
        await _opened(f"postgresql://{','.join(f'db{number}' for number in range(hosts))}/x")
    assert set(given) == {seconds}


async def _opened(conninfo: str) -> None:
    async with aclosing(PostgresStore(conninfo, timeout_seconds=4.0)) as store:
        await store.open()
