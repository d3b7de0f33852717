"""The store in MongoDB: what is the server's, what becomes of it when the server fails, and when a process dies."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from random import Random
from time import monotonic
from typing import Any, cast
from unittest.mock import Mock

import anyio
import pytest
from bson.errors import InvalidDocument
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    DuplicateKeyError,
    ExecutionTimeout,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
)

from support.deadline_clock import DeadlineClock
from support.mongo_server import MongoServer
from support.store_entries import entry, text_of, turn
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
from toolbus.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from toolbus.records import replace
from toolbus.storage import Durability, Entry
from toolbus.stores import _read_ahead
from toolbus.stores._encoding import turn_of, written
from toolbus.stores.mongo import MessageFields, MongoStore, _blobs, _journal, _turns, _upkeep
from toolbus.stores.mongo._connection import Names, Server, ServerConnection, _index
from toolbus.stores.mongo._conversations import conversations, history
from toolbus.stores.mongo._deleting import delete_requests, finish_forgetting
from toolbus.stores.mongo._journal import Step, append_all, facts
from toolbus.stores.mongo._leases import request
from toolbus.stores.mongo._order import drop_old_turns, take_turn
from toolbus.stores.mongo._turns import remember
from toolbus.stores.mongo._upkeep import forget, prune_conversations, prune_requests, statistics

NAMES = Names("sessionId", "sender", "content", "messageType", "timestamp", "data", "messages", "toolbus_")


@contextmanager
def direct(database: tuple[str, str]) -> Generator[Any]:
    """The database, as another program has it."""
    with MongoClient[dict[str, Any]](database[0]) as client:
        yield client[database[1]]


async def write_whole(store: MongoStore, request_id: str = "r", text: str = "three") -> None:
    """A request of two steps and an ending: facts 0-1, 2-3, 4."""
    await store.append(entry(request_id, 0, "zero", "one", agreed={"limit": 3}))
    await store.append(entry(request_id, 2, "two", text))
    await store.append(entry(request_id, 4, "end", ending="completed", turn=turn(f"q {request_id}")))


async def unavailable(*asked: Callable[[], Awaitable[object]]) -> list[StoreUnavailable]:
    """Ask all at once: the errors that come, of which there has to be one for each, in time."""
    caught: list[StoreUnavailable] = []

    async def ask(each: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(StoreUnavailable, match="is out of reach, or did not answer in time") as reported:
            await each()
        caught.append(reported.value)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for each in asked:
                tasks.start_soon(ask, each)
    return caught


@contextmanager
def hurried(store: MongoStore, seconds: float) -> Generator[None]:
    """Give up each call in the block after `seconds`; calls before and after it have time on a slow machine, too."""
    with pytest.MonkeyPatch.context() as patched:
        for thread in (store._writer, store._reader):
            patched.setattr(thread, "_timeout_seconds", seconds)
        yield


# ------------------------------------------------------------------------------------------------- the server


@pytest.mark.guarantee("G11")
async def test_many_appends_at_once_are_sent_together(mongo_database: tuple[str, str]) -> None:
    async with aclosing(MongoStore(*mongo_database)) as store:
        await store.open()
        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(store.append, entry(f"r{number}"))
        counted = await store.statistics()
        assert (counted.requests, counted.appends) == (200, 200)
        assert counted.commits <= 20


@pytest.mark.guarantee("G20")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_leases_go_by_the_servers_clock(mongo_database: tuple[str, str], anyio_backend: str) -> None:
    async with aclosing(MongoStore(*mongo_database)) as ours, aclosing(MongoStore(*mongo_database)) as theirs:
        await ours.append(entry(lease_seconds=3_600))
        with wall_time_from(lambda: 4_000_000_000.0):
            assert await theirs.take("r", "other", 60) is None
        assert await ours.release("r", 1)
        assert await theirs.take("r", "other", 60) is not None
        with pytest.raises(LeaseLost):
            await ours.append(entry("r", 1))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_entries_that_are_refused_do_not_harm_those_that_are_sent_with_them(
    mongo_database: tuple[str, str], anyio_backend: str
) -> None:
    refused: dict[str, str] = {}

    async def append(request_id: str, seq: int) -> None:
        owner = "\ud83d" if request_id == "half an owner" else "worker"
        try:
            await store.append(replace(entry(request_id, seq), owner=owner))
        except StoreError as exc:
            refused[request_id] = str(exc)

    async with aclosing(MongoStore(*mongo_database)) as store:
        await store.append(entry("a"))
        await store.append(entry("b"))
        async with anyio.create_task_group() as tasks:
            for request_id, seq in (("a", 1), ("b", 0), ("nul\0", 0), ("x", 3), ("\ud83d", 0), ("c", 0)):
                tasks.start_soon(append, request_id, seq)
            tasks.start_soon(append, "half an owner", 0)
        assert {*refused} == {"b", "nul\0", "x", "\ud83d", "half an owner"}
        assert "cannot take a value" in refused["half an owner"]
        assert refused["b"] == "request b is in the journal already"
        assert "cannot be an id" in refused["nul\0"]
        assert (await store.statistics()).facts == 4


@pytest.mark.guarantee("G21")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_server_that_is_started_again_is_unavailable_meanwhile_and_then_used_again(
    mongo: MongoServer, mongo_database: tuple[str, str], anyio_backend: str, clock: DeadlineClock
) -> None:
    async with aclosing(MongoStore(*mongo_database, timeout_seconds=60)) as store:
        await write_whole(store)
        mongo.kill()
        with hurried(store, 0.5):  # of the driver's clock: the store's own stands still, so that the driver reports why
            caught = await unavailable(lambda: store.append(entry("s")), lambda: store.facts("r"))
        assert all(isinstance(each.__cause__, PyMongoError) for each in caught)
        mongo.start()
        await store.append(entry("s"))
        assert len(await store.facts("r")) == 5
        mongo.kill()
        mongo.start()
        await store.append(entry("s", 1))  # at the first attempt of the caller
        assert len(await store.facts("s")) == 2


@pytest.mark.guarantee("G21")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_server_that_does_not_answer_is_given_up_in_time(
    mongo: MongoServer, mongo_database: tuple[str, str], anyio_backend: str, clock: DeadlineClock
) -> None:
    async with aclosing(MongoStore(*mongo_database, timeout_seconds=60)) as store:
        await write_whole(store)
        with mongo.halted(), hurried(store, 1.5), clock.running():
            await unavailable(lambda: store.append(entry("s")), lambda: store.history("c"))
        assert await store.history("c") == turn("q r")
        record = await store.request("s")  # what was sent when the server stood still, it may have done since
        await store.append(entry("s", 0 if record is None else 1))
        assert [each.seq for each in await store.facts("s")] == [*range(1 if record is None else 2)]


@pytest.mark.guarantee("G23")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_data_of_a_newer_format_are_refused_by_name(mongo_database: tuple[str, str], anyio_backend: str) -> None:
    async with aclosing(MongoStore(*mongo_database)) as store:
        await store.open()
    with direct(mongo_database) as database:
        database["toolbus_info"].update_one({"_id": "format"}, {"$set": {"number": 99}})
    async with aclosing(MongoStore(*mongo_database)) as store:
        with pytest.raises(UnsupportedStoreFormat, match=r"database .* was written by a newer toolbus, in format 99"):
            await store.history("c")


@pytest.mark.guarantee("G22")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_damage_is_named_with_its_place(mongo_database: tuple[str, str], anyio_backend: str) -> None:
    damages = {
        "changed": 3,
        "gone": 2,
        "gone, and a lost write overlaps the next step": 2,
        "agreed": 0,
        "end": 4,
        "longer": 5,
        "hash": 5,
        "shorter": 2,
        "empty": 3,
        "odd": 3,
    }
    async with aclosing(MongoStore(*mongo_database)) as store:
        for request_id in damages:
            await write_whole(store, request_id)
        with direct(mongo_database) as database:
            steps, requests = database["toolbus_steps"], database["toolbus_requests"]
            changed = steps.find_one({"request_id": "changed", "seq": 2})
            changed["facts"][1]["data"] += " "
            steps.update_one({"_id": changed["_id"]}, {"$set": {"facts": changed["facts"]}})
            rows: dict[str, list[Any]] = {"shorter": [], "empty": [{}], "odd": [{"data": 5, "hash": ""}]}
            for request_id, more in rows.items():
                step = steps.find_one({"request_id": request_id, "seq": 2})
                steps.update_one({"_id": step["_id"]}, {"$set": {"facts": [step["facts"][0], *more]}})
            steps.delete_one({"request_id": "gone", "seq": 2})
            steps.delete_one({"request_id": "end", "seq": 4})
            lost = steps.find_one_and_delete({"request_id": "gone, and a lost write overlaps the next step", "seq": 2})
            steps.insert_one({**lost, "_id": f"{lost['_id']}x", "step_end": 4})
            requests.update_one({"_id": "agreed"}, {"$set": {"agreed": '{"limit":4}'}})
            requests.update_one({"_id": "longer"}, {"$set": {"next_seq": 6}})
            requests.update_one({"_id": "hash"}, {"$set": {"hash": "00" * 32}})
        for request_id, seq in damages.items():
            with pytest.raises(StoreDamaged) as caught:
                await store.facts(request_id)
            assert (caught.value.request_id, caught.value.seq) == (request_id, seq)


@pytest.mark.guarantee("G22")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("damage", [{"agreed": "{"}, {"agreed": 1}, {"conversation_id": 1}, {"size_bytes": "x"}])
async def test_a_request_whose_record_is_damaged_is_listed_with_the_others_and_never_held(
    mongo_database: tuple[str, str], damage: dict[str, object], anyio_backend: str
) -> None:
    async with aclosing(MongoStore(*mongo_database)) as store:
        for request_id in "ab":
            await store.append(entry(request_id, 0, "zero", lease_seconds=0))
        with direct(mongo_database) as database:
            database["toolbus_requests"].update_one({"_id": "a"}, {"$set": damage})
        for _ in range(2):
            assert [each.request_id for each in await store.unfinished()] == ["a", "b"]
            assert [each.request_id for each in await store.unfinished(limit=1)] == ["a"]
            with pytest.raises(StoreDamaged, match=r"its (agreed options|document) cannot be read"):
                await store.take("a", "me", 60)


@pytest.mark.guarantee("G22")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_request_that_is_damaged_or_deleted_while_it_is_listed_does_not_hide_the_others(
    mongo_database: tuple[str, str], anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(self: Collection[Any], condition: Any, *args: Any, **options: Any) -> Any:
        if self.name == "toolbus_requests" and "_id" in condition:
            self.delete_one({"_id": "b"})
        return real(self, condition, *args, **options)

    real = cast("Any", Collection).find
    async with aclosing(MongoStore(*mongo_database)) as store:
        for request_id in "abcd":
            await store.append(entry(request_id, 0, "zero", lease_seconds=0))
        with direct(mongo_database) as database:
            database["toolbus_requests"].update_one({"_id": "c"}, {"$set": {"started_at": "at noon"}})
        assert [each.request_id for each in await store.unfinished()] == ["c", "a", "b", "d"]
        monkeypatch.setattr(Collection, "find", find)
        assert [each.request_id for each in await store.requests()] == ["d", "a", "c"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_damage_to_what_is_kept_of_a_conversation_is_named(
    mongo_database: tuple[str, str], anyio_backend: str
) -> None:
    async with aclosing(MongoStore(*mongo_database)) as store:
        await store.remember("c", turn("one"))
        with direct(mongo_database) as database:
            database["messages"].update_one({"content": "one"}, {"$set": {"data.toolbus.messages": "{}"}})
        with pytest.raises(
            StoreDamaged,
            match="message 0 of conversation 'c' is damaged: the messages that toolbus has kept in it were changed",
        ):
            await store.history("c")


@pytest.mark.guarantee("G22")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_large_agreed_options_come_back_and_without_them_a_request_is_damaged(
    mongo_database: tuple[str, str], anyio_backend: str
) -> None:
    agreed = {"instructions": ["x" * 15_000] * 100}  # No text is so large that it would be stored apart.
    async with aclosing(MongoStore(*mongo_database)) as store:
        await store.append(entry("r", agreed=agreed))
        record = await store.request("r")
        assert record is not None
        assert (record.agreed, len(await store.facts("r"))) == (agreed, 1)
        with direct(mongo_database) as database:
            database["toolbus_blobs"].delete_many({})
        with pytest.raises(StoreDamaged, match="damaged at fact 0: the request's agreed options are missing"):
            await store.facts("r")
        with pytest.raises(StoreDamaged, match="its agreed options cannot be read"):
            await store.request("r")


@pytest.mark.guarantee("G22")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_document_without_its_fields_and_a_missing_large_text_are_damage(
    mongo_database: tuple[str, str], anyio_backend: str
) -> None:
    async with aclosing(MongoStore(*mongo_database)) as store:
        await store.append(entry("r"))
        await store.remember("c", turn("x" * 20_000))
        with direct(mongo_database) as database:
            database["toolbus_requests"].update_one({"_id": "r"}, {"$unset": {"next_seq": ""}})
            database["toolbus_blobs"].delete_many({})
        with pytest.raises(StoreDamaged, match="has a document that is not as it was written: KeyError"):
            await store.facts("r")
        with pytest.raises(
            StoreDamaged, match=r"message 0 of conversation 'c' is damaged: the large text \w+ is missing"
        ):
            await store.history("c")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_deletion_that_a_killed_process_has_left_is_finished_by_the_next_call(
    mongo_database: tuple[str, str], anyio_backend: str
) -> None:
    async with aclosing(MongoStore(*mongo_database)) as store:
        for each in ("c", "d", "e", "f"):
            await store.remember(each, turn("old"))
        with direct(mongo_database) as database:
            talks, messages = database["toolbus_conversations"], database["messages"]
            talks.update_many({"_id": {"$ne": "f"}}, {"$set": {"forgotten": True}})
            await store.remember("c", turn("new"))
            assert [each.text for each in await store.history("c")] == ["new", "answer to new"]
            assert await store.history("d") == []
            assert {each["_id"] for each in talks.find()} == {"c", "e", "f"}
            assert {each.conversation_id for each in await store.conversations()} == {"c", "f"}
            assert {each["_id"] for each in talks.find()} == {"c", "f"}
            assert messages.count_documents({}) == 4


# ------------------------------------------------------------------------------------------ indexes and upkeep


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_toolbus_searches_for_has_an_index(mongo_database: tuple[str, str], anyio_backend: str) -> None:
    async with aclosing(MongoStore(*mongo_database)) as store:
        await store.open()
    with direct(mongo_database) as database:
        found = {
            name: {tuple(index["key"]) for index in database[name].list_indexes()} - {("_id",)}
            for name in ("messages", "toolbus_requests", "toolbus_inbox", "toolbus_conversations")
        }
    assert found == {
        "messages": {("sessionId", "timestamp"), ("data.toolbus.turn", "timestamp")},
        "toolbus_inbox": {("state", "request_id", "position")},
        "toolbus_requests": {
            ("ending", "lease_until"),
            ("ended_at",),
            ("owner",),
            ("conversation_id",),
            ("started_at",),
            ("has_turn",),
        },
        "toolbus_conversations": {("updated_at",), ("pending_turn",), ("forgotten",)},
    }


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_search_in_the_conversations_of_one_user_reads_no_messages_of_others(
    mongo_database: tuple[str, str], anyio_backend: str
) -> None:
    async with aclosing(MongoStore(*mongo_database)) as store:
        for conversation_id in ("ann/c", "bob/c"):
            await store.remember(conversation_id, turn("apples"))
        with direct(mongo_database) as database:
            database.messages.update_many({"sessionId": "bob/c"}, {"$set": {"data.toolbus.messages": "no apples"}})
        assert [each.conversation_id for each in await store.conversations(search="apples", prefix="ann/")] == ["ann/c"]
        with pytest.raises(StoreDamaged, match="conversation 'bob/c'"):
            await store.conversations(search="apples")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_list_of_the_conversations_of_one_user_reads_no_messages_of_others(
    mongo_database: tuple[str, str], anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def find(self: Collection[Any], condition: Any, *args: Any, **options: Any) -> Any:
        if self.name == "messages" and "_id" not in condition:
            asked.append(condition.get("sessionId"))
        return real(self, condition, *args, **options)

    real = cast("Any", Collection).find
    async with aclosing(MongoStore(*mongo_database)) as store:
        with direct(mongo_database) as database:
            documents = [{"sessionId": each, "sender": "user", "content": "Hi."} for each in ("ann/c", "bob/c", "ab")]
            database.messages.insert_many(documents)
        monkeypatch.setattr(Collection, "find", find)
        assert [each.conversation_id for each in await store.conversations(prefix="ann/")] == ["ann/c"]
        assert asked == [{"$regex": "^ann/"}, {"$in": ["ann/c"]}]
        assert [each.conversation_id for each in await store.conversations(prefix="ab")] == ["ab"]
        assert asked[2:] == [None, {"$in": ["ab"]}]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_search_reads_only_messages_that_hold_all_of_the_text(
    mongo_database: tuple[str, str], anyio_backend: str
) -> None:
    async with aclosing(MongoStore(*mongo_database)) as store:
        await store.remember("whole", turn("apples"))
        await store.remember("part", turn("pears"))
        with direct(mongo_database) as database:
            damage = {"$set": {"data.toolbus.messages": "apple, and pples"}}
            database.messages.update_many({"sessionId": "part"}, damage)
        assert [each.conversation_id for each in await store.conversations(search="apples")] == ["whole"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_size_of_a_journal_is_that_of_its_steps(mongo_database: tuple[str, str], anyio_backend: str) -> None:
    async with aclosing(MongoStore(*mongo_database)) as store:
        # Times and ids have different numbers of digits.
        steps = [
            replace(step, facts=[replace(each, at=1.5, event_id=f"e{step.seq}") for each in step.facts])
            for step in map(entry, "rrr", (0, 1, 2))
        ]
        sizes = [await store.append(step) for step in steps]
        record = await store.request("r")
    assert sizes[1] - sizes[0] == sizes[0] == sizes[2] - sizes[1]
    assert record is not None
    assert record.fact_count == 3


@pytest.mark.parametrize(("code", "will_do"), [(85, True), (86, True), (13, False)])
def test_an_index_with_another_name_or_other_options_will_do(code: int, will_do: bool) -> None:
    class Indexed:
        def create_index(self, *_keys: object, **_options: object) -> None:
            raise OperationFailure("it exists", code)

    collection: Any = Indexed()
    with contextlib.nullcontext() if will_do else pytest.raises(OperationFailure):
        _index(collection, ["updated_at"])


def test_an_index_that_takes_too_long_is_shown_as_the_command_that_makes_it() -> None:
    class Indexed:
        name, full_name = "messages", "shop.messages"

        def create_index(self, *_keys: object, **_options: object) -> None:
            raise ExecutionTimeout("operation exceeded time limit", 50)

    collection: Any = Indexed()
    with pytest.raises(StoreUnavailable, match=r"shop\.messages is so large that an index takes too long") as caught:
        _index(collection, ["sessionId", "data.toolbus.turn"])
    assert """db.getCollection('messages').createIndex({"sessionId": 1, "data.toolbus.turn": 1})""" in str(caught.value)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_turn_that_a_process_died_over_is_listed(
    mongo_database: tuple[str, str], anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_given: object) -> None:
        raise OperationFailure("killed")

    async with aclosing(MongoStore(*mongo_database)) as store:
        with monkeypatch.context() as patch:
            patch.setattr(_turns, "complete", die)
            with pytest.raises(StoreError):
                await store.remember("c", turn("one"))
        assert [(each.conversation_id, each.message_count) for each in await store.conversations()] == [("c", 2)]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_old_conversations_are_pruned_in_batches_unless_they_have_a_newer_request(
    mongo_database: tuple[str, str], anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_upkeep, "_CONVERSATIONS", 2)
    async with aclosing(MongoStore(*mongo_database)) as store:
        for name in ("a", "b", "c", "d", "e", "new", "running", "ran"):
            await store.remember(name, turn(name))
        await store.append(entry("running", conversation_id="running"))
        await store.append(entry("ran", conversation_id="ran", ending="completed"))
        with direct(mongo_database) as database:
            conversations, requests = database["toolbus_conversations"], database["toolbus_requests"]
            conversations.update_many({}, {"$set": {"updated_at": 999.0}})
            conversations.update_one({"_id": "new"}, {"$set": {"updated_at": 1000.0}})
            requests.update_one({"_id": "ran"}, {"$set": {"ended_at": 1000.0}})
        before = await store.statistics()
        done = await store.prune(before=1000.0, conversations=True)
        after = await store.statistics()
        left = {each.conversation_id for each in await store.conversations()}
        assert left == {"new", "running", "ran"}
        assert (done.requests, done.conversations) == (0, 5)
        assert done.size_bytes == before.size_bytes - after.size_bytes > 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_messages_that_a_unique_index_of_another_application_refuses_are_not_lost_and_harm_no_other_conversation(
    mongo_database: tuple[str, str], anyio_backend: str
) -> None:
    async with aclosing(MongoStore(*mongo_database)) as store:
        with direct(mongo_database) as database:
            database["messages"].create_index("sender", unique=True)
            await store.remember("a", turn("a"))
            with pytest.raises(StoreError, match=r"\(code 11000\)"):
                await store.remember("b", turn("b"))
            await store.append(entry("r", conversation_id="c", ending="completed", turn=turn("c")))
            for conversation_id in ("b", "c"):
                with pytest.raises(StoreError, match=r"\(code 11000\)"):
                    await store.history(conversation_id)
            database["toolbus_conversations"].insert_one({**_FORGOTTEN_CONVERSATION, "_id": "d"})
            assert [each.conversation_id for each in await store.conversations()] == ["a"]
            assert database["toolbus_conversations"].find_one({"_id": "d"}) is None
            assert (await store.prune(before=1e12)).requests == 0
            database["messages"].drop_indexes()
        for conversation_id in ("a", "b", "c"):
            assert await store.history(conversation_id) == turn(conversation_id)
        before = await store.statistics()
        done = await store.prune(before=1e12)
        assert (done.requests, done.size_bytes) == (1, before.size_bytes - (await store.statistics()).size_bytes)
        assert done.size_bytes > 100


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_conversation_whose_turn_a_unique_index_of_another_application_refuses_can_be_deleted(
    mongo_database: tuple[str, str], anyio_backend: str
) -> None:
    large = [UserMessage(content=f"{number}" + "x" * 100_000) for number in range(30)]
    async with aclosing(MongoStore(*mongo_database)) as store:
        await store.remember("a", turn("a"))
        with direct(mongo_database) as database:
            database["messages"].create_index("sender", unique=True)
            with pytest.raises(StoreError, match=r"\(code 11000\)"):
                await store.remember("b", large)
            for number, conversation_id in enumerate("bcc"):
                ended = entry(f"r{number}", conversation_id=conversation_id, ending="completed", turn=large)
                await store.append(ended)
            for conversation_id in "bc":
                assert await store.forget(conversation_id)
                assert await store.history(conversation_id) == []
                assert not await store.forget(conversation_id)
            left = {
                name: database[name].count_documents({})
                for name in ("messages", "toolbus_blobs", "toolbus_requests", "toolbus_conversations", "toolbus_turns")
            }
        assert left == {
            "messages": 2,
            "toolbus_blobs": 0,
            "toolbus_requests": 0,
            "toolbus_conversations": 1,
            "toolbus_turns": 0,
        }
        assert await store.history("a") == turn("a")


_FORGOTTEN_CONVERSATION: dict[str, Any] = {"generation": "g", "messages": 2, "pending_turn": "", "forgotten": True}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_pending_turn_that_is_damaged_does_not_keep_those_of_other_conversations(
    mongo_database: tuple[str, str], anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aclosing(MongoStore(*mongo_database)) as store:
        with monkeypatch.context() as patched:
            patched.setattr(_turns, "complete", Mock(side_effect=OperationFailure("killed")))
            for each in ("damaged", "whole"):
                with pytest.raises(StoreError):
                    await store.remember(each, turn(each))
        with direct(mongo_database) as database:
            damage = {"$set": {"pending.blob": "00"}, "$unset": {"pending.data": ""}}
            database["toolbus_conversations"].update_one({"_id": "damaged"}, damage)
        assert [each.conversation_id for each in await store.conversations()] == ["whole"]
        with pytest.raises(StoreDamaged):
            await store.history("damaged")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_deleted_request_takes_along_nothing_of_others(
    mongo_database: tuple[str, str], anyio_backend: str
) -> None:
    async with aclosing(MongoStore(*mongo_database)) as store:
        for request_id, ending in (("a", "completed"), ("a:b", None)):
            await store.append(replace(entry(request_id), ending=ending, conversation_id="of a"))
        assert await store.take_turn("of a", "a:b", "worker", 60)
        assert await store.take_turn("never begun", "x", "worker", 0)
        assert (await store.prune(before=1e12)).requests == 1
        assert len(await store.facts("a:b")) == 1
        with direct(mongo_database) as database:
            assert [each["_id"] for each in database["toolbus_turns"].find()] == ["of a"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_requests_that_are_large_together_are_pruned_in_several_calls(
    mongo_database: tuple[str, str], anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruned: list[int] = []

    def delete(database: ServerConnection, found: Sequence[Any]) -> tuple[int, int]:
        pruned.append(len(found))
        return delete_requests(database, found)

    monkeypatch.setattr(_upkeep, "delete_requests", delete)
    async with aclosing(MongoStore(*mongo_database)) as store:
        for number in range(5):
            size = await store.append(entry(f"r{number}", 0, "x" * 1_000, ending="completed"))
            monkeypatch.setattr(_read_ahead, "MAX_BYTES", 2 * size + 10)
        assert (await store.prune(before=1e12)).requests == 5
    assert pruned == [2, 2, 1, 0]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_many_requests_are_deleted_with_as_few_commands_as_one(
    mongo_database: tuple[str, str], anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    async with aclosing(MongoStore(*mongo_database)) as store:
        for conversation_id, requests in (("one", 1), ("many", 30)):
            async with anyio.create_task_group() as tasks:
                for number in range(requests):
                    one = entry(f"{conversation_id} {number}", conversation_id=conversation_id, ending="completed")
                    tasks.start_soon(store.append, one)
        with monkeypatch.context() as patched:
            for name in WRITES:
                patched.setattr(Collection, name, counting(sent, name))
            assert await store.forget("one")
            by_one = len(sent)
            sent.clear()
            assert await store.forget("many")
            assert len(sent) == by_one
        assert (await store.statistics()).requests == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_step_is_written_by_two_commands(
    mongo_database: tuple[str, str], anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    async with aclosing(MongoStore(*mongo_database)) as store:
        await store.append(entry("r"))
        for name in {*WRITES, "find", "find_one_and_update"}:
            monkeypatch.setattr(Collection, name, counting(sent, name))
        await store.append(entry("r", 1))
    assert sent == ["toolbus_steps.insert_many", "toolbus_requests.bulk_write"]


def counting(sent: list[str], name: str) -> Callable[..., Any]:
    real = getattr(Collection, name)

    def write(self: Collection[Any], *args: Any, **options: Any) -> Any:
        sent.append(f"{self.name}.{name}")
        return real(self, *args, **options)

    return write


# ----------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_result_of_fifty_mebibytes_comes_back_and_goes_with_its_request(
    mongo_database: tuple[str, str], anyio_backend: str
) -> None:
    text = "line of a log 0123456789\n" * (50 * 2**20 // 25)
    result = ToolMessage(call_id="call", name="tool", content=text)
    async with aclosing(MongoStore(*mongo_database, timeout_seconds=20.0)) as store:
        await store.append(entry("r", 0, text))
        [stored] = await store.facts("r")
        assert text_of(stored.fact) == text
        await store.append(entry("r", 1, ending="completed", turn=[UserMessage(content="?"), result]))
        assert (await store.history("c"))[1] == result
        assert await store.forget("c")
    with direct(mongo_database) as database:
        assert [database[f"toolbus_{name}"].count_documents({}) for name in ("blobs", "steps", "requests")] == [0, 0, 0]


@pytest.mark.guarantee("G22")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_large_text_in_many_pieces_comes_back_and_each_missing_piece_is_damage(
    mongo_database: tuple[str, str], anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_CHUNK_BYTES", "_FIRST_BYTES"):
        monkeypatch.setattr(_blobs, name, 1_000)
    text = Random(7).randbytes(20_000).hex()  # It cannot be compressed to less than a half.
    async with aclosing(MongoStore(*mongo_database)) as store:
        await store.append(entry("r", 0, text))
        assert [text_of(each.fact) for each in await store.facts("r")] == [text]
        with direct(mongo_database) as database:
            blobs = database["toolbus_blobs"]
            pieces = [*blobs.find().sort("_id", 1)]
            assert len(pieces) > 20
            for piece in (pieces[0], pieces[11], pieces[-1]):
                blobs.delete_one({"_id": piece["_id"]})
                with pytest.raises(StoreDamaged, match=r"the large text \w+ is missing, or was changed"):
                    await store.facts("r")
                blobs.insert_one(piece)
        assert [text_of(each.fact) for each in await store.facts("r")] == [text]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("together_bytes", "of_history", "of_journal"), [(2**24, 1, 1), (100_000, 4, 5), (1, 20, 21)])
async def test_large_texts_are_read_together_up_to_a_bound(
    mongo_database: tuple[str, str],
    anyio_backend: str,
    monkeypatch: pytest.MonkeyPatch,
    together_bytes: int,
    of_history: int,
    of_journal: int,
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(_read_ahead, "MAX_BYTES", together_bytes)

    def find(self: Collection[dict[str, Any]], *args: Any, **options: Any) -> Any:
        if self.name == "toolbus_blobs":
            asked.append(1)
        return real(self, *args, **options)

    def read(database: Any, keys: Sequence[tuple[str, bytes]]) -> dict[tuple[str, bytes], bytes]:
        found = really(database, keys)
        assert len(found) == 1 or sum(map(len, found.values())) <= together_bytes
        return found

    texts = [f"{number} ".ljust(20_000, "x") for number in range(20)]
    async with aclosing(MongoStore(*mongo_database)) as store:
        # The last one has the text of the first one again.
        await store.append(entry("r", 0, *texts, texts[0]))
        # In the conversation, each message is a document, and those of two turns have different owners.
        for some in (texts[:7], texts[7:]):
            await store.remember("c", [UserMessage(content=each) for each in some])
        real, really = Collection[dict[str, Any]].find, _blobs._read
        monkeypatch.setattr(Collection, "find", find)
        monkeypatch.setattr(_blobs, "_read", read)
        assert [text_of(each.fact) for each in await store.facts("r")] == [*texts, texts[0]]
        in_journal = len(asked)
        asked.clear()
        assert [each.text for each in await store.history("c")] == texts
        assert (len(asked), in_journal) == (of_history, of_journal)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_server_reads_large_texts_about_once(
    mongo_database: tuple[str, str], anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_read_ahead, "MAX_BYTES", 300_000)
    monkeypatch.setattr(_blobs, "_FIRST_BYTES", 1_000)
    was_read: list[int] = []

    def find(self: Collection[dict[str, Any]], *args: Any, **options: Any) -> Any:
        if self.name == "toolbus_blobs":
            # The server reads whole documents, also for a query that returns only some of their fields.
            was_read.extend(len(each["data"]) for each in real(self, args[0]))
        return real(self, *args, **options)

    texts = [Random(number).randbytes(50_000).hex() for number in range(20)]  # Each can be compressed to a half.
    async with aclosing(MongoStore(*mongo_database)) as store:
        await store.append(entry("r", 0, *texts))
        real = Collection[dict[str, Any]].find
        monkeypatch.setattr(Collection, "find", find)
        assert [text_of(each.fact) for each in await store.facts("r")] == texts
        assert sum(was_read) < 1.2 * sum(map(len, texts))


@pytest.mark.guarantee("G22")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("asked", ["history", "search", "request", "requests", "facts"])
async def test_what_is_deleted_while_its_large_texts_are_read_is_missing_and_not_damaged(
    mongo_database: tuple[str, str], anyio_backend: str, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    deleted: list[bool] = []

    def read(database: Any, keys: Sequence[tuple[str, bytes]]) -> dict[tuple[str, bytes], bytes]:
        if not deleted:
            deleted.append(forget(database, "c", []))
        return real(database, keys)

    async with aclosing(MongoStore(*mongo_database)) as store:
        long = "x" * 2 * 2**20
        await store.append(entry("r", agreed={"instructions": long}))
        await store.append(entry("r", 1, long, ending="completed", turn=turn(long)))
        reads: dict[str, Callable[[], Awaitable[Any]]] = {
            "history": lambda: store.history("c"),
            "search": lambda: store.conversations(search="xx"),
            "request": lambda: store.request("r"),
            "requests": lambda: store.requests(),
            "facts": lambda: store.facts("r"),
        }
        real = _blobs._read
        monkeypatch.setattr(_blobs, "_read", read)
        assert not await reads[asked]()
        assert deleted == [True]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_search_reads_the_large_texts_of_many_messages_together(
    mongo_database: tuple[str, str], anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def read(database: Any, keys: Sequence[tuple[str, bytes]]) -> dict[tuple[str, bytes], bytes]:
        asked.append(len(keys))
        return real(database, keys)

    async with aclosing(MongoStore(*mongo_database)) as store:
        for number in range(12):
            await store.remember(f"c{number % 2}", [UserMessage(content=f"{number} ".ljust(20_000, "x") + str(number))])
        real = _blobs._read
        monkeypatch.setattr(_blobs, "_read", read)
        assert [each.conversation_id for each in await store.conversations(search="xx11")] == ["c1"]
        assert asked == [12]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_turn_of_many_messages_leaves_nothing_when_it_is_forgotten(
    mongo_database: tuple[str, str], anyio_backend: str
) -> None:
    messages = [UserMessage(content=f"{number}" + "x" * 100_000) for number in range(30)]
    async with aclosing(MongoStore(*mongo_database)) as store:
        await store.remember("c", messages)
        assert await store.history("c") == messages
        assert await store.forget("c")
    with direct(mongo_database) as database:
        assert [database[name].count_documents({}) for name in ("messages", "toolbus_blobs")] == [0, 0]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_many_small_results_of_one_reply_are_a_large_value_of_its_document(
    mongo_database: tuple[str, str], anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def read(database: Any, keys: Sequence[tuple[str, bytes]]) -> dict[tuple[str, bytes], bytes]:
        asked.append(len(keys))
        return real(database, keys)

    real = _blobs._read
    calls = tuple(ToolCall(name="read", call_id=f"{number}") for number in range(80))
    replies: list[Message] = []
    for part in ("begin", "end"):
        results = [ToolMessage(call_id=each.call_id, name="read", content=part.ljust(15_000, "x")) for each in calls]
        replies += [AssistantMessage(tool_calls=calls), *results]
    messages = [UserMessage(content="Read."), *replies, AssistantMessage(text="Done.")]
    async with aclosing(MongoStore(*mongo_database)) as store:
        await store.remember("c", messages)
        with direct(mongo_database) as database:
            own = [each["data"]["toolbus"] for each in database["messages"].find().sort("timestamp", 1)]
            assert ["messages" in each for each in own] == [True, False, False, True]
        monkeypatch.setattr(_blobs, "_read", read)
        assert await store.history("c") == messages
        assert asked == [2]  # Both documents' values are read together.
        assert [each.conversation_id for each in await store.conversations(search="endxx")] == ["c"]
        assert await store.forget("c")
        with direct(mongo_database) as database:
            assert database["toolbus_blobs"].count_documents({}) == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_step_of_many_small_texts_may_be_larger_than_a_document(
    mongo_database: tuple[str, str], anyio_backend: str
) -> None:
    texts = [f"{number} ".ljust(15_000, "x") for number in range(1_120)]  # 16.8 MB, none of which is long
    messages = [UserMessage(content=each) for each in texts[:80]]
    async with aclosing(MongoStore(*mongo_database, timeout_seconds=20.0)) as store:
        await store.append(entry("r", 0, *texts))
        await store.append(entry("r", 1_120, ending="completed", turn=messages))
        assert len(await store.facts("r", start=1_119)) == 2
        assert await store.history("c") == messages
        assert await store.forget("c")
    with direct(mongo_database) as database:
        assert database["toolbus_blobs"].count_documents({}) == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_large_step_that_is_not_sent_in_time_fails_nobody_else(
    mongo_database: tuple[str, str], monkeypatch: pytest.MonkeyPatch, anyio_backend: str
) -> None:
    def late(*_: object) -> None:
        raise NetworkTimeout("too much to send")

    monkeypatch.setattr(_journal, "put_blobs", late)
    refused: list[str] = []

    async def append(request_id: str, text: str) -> None:
        try:
            await store.append(entry(request_id, 0, text))
        except StoreUnavailable:
            refused.append(request_id)

    async with aclosing(MongoStore(*mongo_database)) as store:
        await store.open()
        async with anyio.create_task_group() as tasks:
            for request_id, text in (("a", "x"), ("large", "x" * 2**21), ("b", "x")):
                tasks.start_soon(append, request_id, text)
        assert refused == ["large"]
        assert await store.request("large") is None
        assert (await store.statistics()).requests == 2


# ---------------------------------------------------------------------------------- processes that die


class Died(BaseException):
    """The process is dead: nothing behind this is done."""


WRITES = ("insert_one", "insert_many", "update_one", "update_many", "bulk_write", "delete_one", "delete_many")


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, writes: int) -> Generator[None]:
    """A process that dies at a write: behind so many, and of an insertion of several documents behind the first."""
    left = [writes]

    def deadly(name: str) -> Callable[..., Any]:
        real = getattr(Collection, name)

        def write(self: Collection[Any], given: Any, *args: Any, **options: Any) -> Any:
            if left[0] == 0:
                if name in ("insert_many", "bulk_write") and len(given) > 1:
                    real(self, given[:1], *args, **options)
                raise Died
            left[0] -= 1
            return real(self, given, *args, **options)

        return write

    with monkeypatch.context() as patched:
        for name in WRITES:
            patched.setattr(Collection, name, deadly(name))
        yield


class Process:
    """Opens connections to one database, as processes do one after the other."""

    def __init__(self, database: tuple[str, str]) -> None:
        url, name = database
        self._server = Server(url, "the server", name, NAMES, syncs=False, timeout_seconds=30.0)
        self._opened: list[ServerConnection] = []

    def open(self) -> ServerConnection:
        self._opened.append(ServerConnection(self._server, monotonic() + 30))
        return self._opened[-1]

    def close(self) -> None:
        for each in self._opened:
            each.close()


@pytest.fixture
def process(mongo_database: tuple[str, str]) -> Iterator[Process]:
    made = Process(mongo_database)
    yield made
    made.close()


def append(database: ServerConnection, *entries: Entry) -> Sequence[int | StoreError]:
    return append_all(database, [Step(written(each), f"{each.request_id} {each.seq}") for each in entries])


def deaths(monkeypatch: pytest.MonkeyPatch, process: Process, act: Callable[[ServerConnection, str], object]) -> Iterator[tuple[str, bool]]:  # fmt: skip
    """Act in a new conversation, with a death at each write in turn: the conversation, and whether it got to its end."""
    database = process.open()
    for writes in range(40):
        conversation_id = f"c{writes}"
        try:
            with dying(monkeypatch, writes):
                act(database, conversation_id)
        except Died:
            yield conversation_id, False
        else:
            yield conversation_id, True
            return
    raise AssertionError("it never came to its end")


def test_steps_of_one_request_that_wait_together_are_written_in_their_order(process: Process):
    database = process.open()
    steps = [entry("r", 0, "zero"), entry("s", 0, "x" * 2**21), entry("r", 1, "one"), entry("r", 2, "two")]
    assert all(isinstance(outcome, int) for outcome in append(database, *steps))
    assert [each.seq for each in facts(database, "r", 0)] == [0, 1, 2]
    assert [each.seq for each in facts(database, "s", 0)] == [0]


@pytest.mark.guarantee("G11")
def test_a_death_while_a_request_is_written_leaves_all_or_nothing_of_each_step_and_of_its_turn(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = [UserMessage(content="long " * 5_000), *turn("asked")]

    def act(database: ServerConnection, conversation_id: str) -> None:
        ids: dict[str, Any] = {"conversation_id": conversation_id}
        append(database, entry(f"r {conversation_id}", 0, "zero", "one " * 5_000, agreed={"limit": 3}, **ids))
        append(database, entry(f"r {conversation_id}", 2, "two", **ids))
        append(database, entry(f"r {conversation_id}", 3, "end", **ids, ending="completed", turn=long))

    seen: list[tuple[int, bool]] = []
    for conversation_id, _ in deaths(monkeypatch, process, act):
        other = process.open()
        request_id = f"r {conversation_id}"
        record = request(other, request_id)
        places = [each.seq for each in facts(other, request_id, 0)]
        assert places == [*range(0 if record is None else record.fact_count)]
        has_ended = record is not None and record.ending is not None
        if not has_ended:
            again = entry(
                request_id, len(places), "end", conversation_id=conversation_id, ending="completed", turn=long
            )
            assert history(other, conversation_id) == []
            assert isinstance(append(other, again)[0], int)
        listed = [(each.conversation_id, each.message_count) for each in conversations(other, "long", "", 1)]
        assert listed == [(conversation_id, 3)]
        assert history(other, conversation_id) == long
        seen.append((len(places), has_ended))
    assert {*seen} == {(0, False), (2, False), (3, False), (4, True)}


def test_a_death_while_a_turn_is_remembered_leaves_all_or_nothing_of_it(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(database: ServerConnection, conversation_id: str) -> None:
        remember(database, turn_of(conversation_id, turn("before")), f"1 {conversation_id}")
        remember(database, turn_of(conversation_id, turn("newest")), f"2 {conversation_id}")

    seen: set[int] = set()
    for conversation_id, _ in deaths(monkeypatch, process, act):
        other = process.open()
        found = [*history(other, conversation_id)]
        assert found == [*turn("before"), *turn("newest")][: len(found)]
        seen.add(len(found))
        act(other, conversation_id)  # which adds each of the two once, by its id
        assert history(other, conversation_id) == [*turn("before"), *turn("newest")]
        assert [each.message_count for each in conversations(other, "", "", 1)] == [4]
    assert seen == {0, 2, 4}


def test_a_death_while_things_are_deleted_leaves_all_or_nothing_of_each(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(database: ServerConnection, conversation_id: str) -> None:
        ids: dict[str, Any] = {"conversation_id": conversation_id}
        append(database, entry(f"r {conversation_id}", 0, "long " * 5_000, **ids))
        append(database, entry(f"r {conversation_id}", 1, **ids, ending="completed", turn=turn("long " * 5_000)))
        forget(database, conversation_id, [])

    for conversation_id, _ in deaths(monkeypatch, process, act):
        other = process.open()
        assert len(history(other, conversation_id)) in (0, 2)
        record = request(other, f"r {conversation_id}")
        assert len(facts(other, f"r {conversation_id}", 0)) == (0 if record is None else record.fact_count)
        if record is not None and record.ending is None:
            append(other, entry(f"r {conversation_id}", 1, conversation_id=conversation_id, ending="failed"))
        forget(other, conversation_id, [])
        assert (history(other, conversation_id), request(other, f"r {conversation_id}")) == ([], None)
    other = process.open()
    prune_requests(other, 1e12)
    prune_conversations(other, 1e12, None)
    left = statistics(other)
    assert (left.requests, left.facts, left.conversations, left.size_bytes) == (0, 0, 0, 0)
    assert not [*other.requests.find(), *other.conversations.find(), *other.messages.find()]


@contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch, writes: int, act: Callable[[], object]) -> Generator[list[int]]:
    """A slow process: behind so many of its writes, another one acts before the next."""
    left = [writes]

    def slow(name: str) -> Callable[..., Any]:
        real = getattr(Collection, name)

        def write(self: Collection[Any], *args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == -1:
                act()
            return real(self, *args, **options)

        return write

    with monkeypatch.context() as patched:
        for name in WRITES:
            patched.setattr(Collection, name, slow(name))
        yield left


@pytest.mark.guarantee("G34")
@pytest.mark.parametrize("is_used_again", [False, True])
def test_a_slow_process_adds_no_turn_to_a_conversation_that_was_deleted_meanwhile(
    process: Process, monkeypatch: pytest.MonkeyPatch, is_used_again: bool
) -> None:
    database, other = process.open(), process.open()
    anew = turn("anew") if is_used_again else []
    deletions = 0
    for writes in range(20):
        c, r = f"deleted {is_used_again} {writes}", f"r {is_used_again} {writes}"
        deleted: list[bool] = []

        def delete(c: str = c, deleted: list[bool] = deleted) -> None:
            with contextlib.suppress(StoreError):  # The request has not ended yet.
                deleted.append(forget(other, c, []))
                remember(other, turn_of(c, anew), f"anew in {c}")

        append(database, entry(r, conversation_id=c))
        with interrupted(monkeypatch, writes, delete) as left:
            append(database, entry(r, 1, conversation_id=c, ending="completed", turn=turn("old")))
        if left[0] >= 0:
            break
        if deleted:
            deletions += 1
            assert history(other, c) == anew
            assert {each["data"]["toolbus"]["turn"] for each in other.messages.find({"sessionId": c})} <= {
                f"anew in {c}"
            }
            assert (forget(other, c, []), request(other, r)) == (is_used_again, None)
    assert deletions == 4


@pytest.mark.guarantee("G34")
def test_the_turn_of_a_request_that_is_being_deleted_is_not_added_any_more(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, other = process.open(), process.open()
    ids = "being deleted"
    with monkeypatch.context() as patched:
        patched.setattr(_journal, "publish", Mock(side_effect=AutoReconnect("gone")))
        append(database, entry(ids, 0, conversation_id=ids, ending="completed", turn=turn("old")))
    other.requests.update_one({"_id": ids}, {"$set": {"ending": "deleted"}})
    assert history(database, ids) == []
    assert other.messages.find_one({"sessionId": ids}) is None


def test_a_turn_that_cannot_be_added_does_not_delay_those_of_other_conversations(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = process.open()
    with monkeypatch.context() as patched:
        patched.setattr(_journal, "publish", Mock(side_effect=AutoReconnect("gone")))
        for each in ("waits damaged", "waits whole"):
            append(database, entry(each, 0, conversation_id=each, ending="completed", turn=turn("old")))
    database.requests.update_one({"_id": "waits damaged"}, {"$set": {"turn.data": "no JSON"}})
    monkeypatch.setattr(_turns, "_WAITING", 1)
    assert [each.conversation_id for each in conversations(database, "", "waits ", 10)] == ["waits whole"]
    database.requests.delete_one({"_id": "waits damaged"})
    database.conversations.delete_one({"_id": "waits damaged"})


@pytest.mark.guarantee("G34")
def test_a_slow_deletion_leaves_what_was_written_after_another_process_had_finished_it(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, other = process.open(), process.open()
    for writes in range(20):
        c, r = f"slowly deleted {writes}", f"slow r {writes}"

        def finish(c: str = c, r: str = r) -> None:
            assert history(other, c) == []
            append(other, entry(f"new {r}", conversation_id=c, ending="completed", turn=turn("long " * 5_000)))

        append(database, entry(r, conversation_id=c, ending="completed", turn=turn("old " * 5_000)))
        database.conversations.update_one({"_id": c}, {"$set": {"forgotten": True}})
        with interrupted(monkeypatch, writes, finish) as left:
            history(database, c)
        if left[0] >= 0:
            break
        assert history(other, c) == turn("long " * 5_000)
        assert [each.fact.type for each in facts(other, f"new {r}", 0)] == ["message_appended"]
        assert request(other, r) is None
    assert left[0] == 0 < writes
    append(database, entry("late", conversation_id="late", ending="completed", turn=turn("old")))
    database.conversations.update_one({"_id": "late"}, {"$set": {"forgotten": True}})
    marked = database.conversations.find_one({"_id": "late"})
    assert marked is not None
    assert history(other, "late") == []
    append(other, entry("new late", conversation_id="late", ending="completed", turn=turn("new")))
    finish_forgetting(database, marked)
    assert history(other, "late") == turn("new")
    assert request(other, "new late") is not None


@pytest.mark.guarantee("G34")
@pytest.mark.parametrize("anew", [None, [], turn("anew")])
def test_a_history_that_is_deleted_while_it_is_read_is_not_returned_in_part(
    process: Process, monkeypatch: pytest.MonkeyPatch, anew: list[Message] | None
) -> None:
    database, other = process.open(), process.open()
    conversation_id = f"read with {anew}"
    remember(database, turn_of(conversation_id, turn("old")), conversation_id)

    def find(self: Collection[Any], condition: Any, *args: Any, **options: Any) -> Any:
        found = real(self, condition, *args, **options)
        if self.name != "messages" or done:
            return found
        done.append(True)
        read = [next(found)]
        if anew is None:  # The deletion is not finished yet.
            other.conversations.update_one({"_id": conversation_id}, {"$set": {"forgotten": True}})
        else:
            forget(other, conversation_id, [])
            remember(other, turn_of(conversation_id, anew), f"anew in {conversation_id}")
        return read

    done: list[bool] = []
    real = cast("Any", Collection).find
    monkeypatch.setattr(Collection, "find", find)
    assert history(database, conversation_id) == (anew or [])
    assert done


@pytest.mark.guarantee("G34")
def test_a_turn_that_is_added_just_before_a_deletion_is_deleted_with_the_others(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, other = process.open(), process.open()
    remember(database, turn_of("c", turn("old")), "old turn")
    with interrupted(monkeypatch, 1, lambda: remember(other, turn_of("c", turn("new")), "new turn")) as left:
        assert forget(database, "c", [])
    assert left[0] < 0
    assert not [*other.conversations.find(), *other.messages.find()]


def test_the_slot_that_a_process_left_when_it_died_is_deleted_and_those_that_are_used_are_not(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = process.open()
    with dying(monkeypatch, 1), pytest.raises(Died):
        take_turn(database, "left", "r left", "me", 60.0)
    append(database, entry("r runs", conversation_id="runs"))
    for conversation_id, seconds in (("held", 60.0), ("over", -1.0), ("runs", -1.0)):
        assert take_turn(database, conversation_id, f"r {conversation_id}", "me", seconds)
    for before, left in ((0.0, {"left", "held", "over", "runs"}), (1e12, {"held", "runs"})):
        drop_old_turns(database, before)
        assert {each["_id"] for each in database.requests.find()} == {f"r {each}" for each in left}
        assert {each["_id"] for each in database.turns.find()} == left - {"left"}


@pytest.mark.guarantee("G34")
def test_a_reader_that_finishes_a_deletion_leaves_the_turn_to_the_request_that_has_it(process: Process) -> None:
    database, other = process.open(), process.open()
    remember(database, turn_of("has a turn", turn("old")), "old turn")
    database.conversations.update_one({"_id": "has a turn"}, {"$set": {"forgotten": True}})
    assert take_turn(database, "has a turn", "first", "me", 60.0)
    assert history(database, "has a turn") == []
    assert not take_turn(other, "has a turn", "second", "you", 60.0)


def test_the_end_of_a_journal_is_remembered_until_its_request_ends_so_that_no_append_reads_it(process: Process) -> None:
    database = process.open()
    append(database, entry("r", 0), entry("s", 0))
    append(database, entry("r", 1), entry("s", 1, ending="completed", turn=turn("s")))
    assert [*database.heads] == ["r"]


@pytest.mark.parametrize("failing", ["publish", "mark_taken"])
@pytest.mark.parametrize(("exc", "is_raised"), [(AutoReconnect("gone"), False), (ZeroDivisionError(), True)])
def test_an_ending_counts_though_its_turn_or_what_it_took_could_not_be_noted_yet(
    process: Process, monkeypatch: pytest.MonkeyPatch, exc: Exception, is_raised: bool, failing: str
) -> None:
    # What the last step has taken is marked before the next one is written, and what that one takes afterwards.
    works = ["mark_taken"]

    def fail(*_args: Any) -> None:
        if failing in works:
            works.clear()
        else:
            raise exc

    database = process.open()
    with monkeypatch.context() as patched:
        patched.setattr(_journal, failing, fail)
        ids = f"{failing} {is_raised}"
        ending = entry(ids, 0, conversation_id=ids, ending="completed", turn=turn("late"))
        if is_raised:
            with pytest.raises(ZeroDivisionError):
                append(database, ending)
        else:
            append(database, ending)
    assert history(process.open(), ids) == turn("late")


@contextmanager
def losing_a_reply(monkeypatch: pytest.MonkeyPatch, writes: int) -> Generator[list[int]]:
    """A connection that breaks once, when the server has done a write and before it says so."""
    left = [writes]

    def unreliable(name: str) -> Callable[..., Any]:
        real = getattr(Collection, name)

        def write(self: Collection[Any], *args: Any, **options: Any) -> Any:
            left[0] -= 1
            reported = real(self, *args, **options)
            if left[0] == -1:
                raise AutoReconnect("connection closed")
            return reported

        return write

    with monkeypatch.context() as patched:
        for name in (*WRITES, "find_one_and_update"):
            patched.setattr(Collection, name, unreliable(name))
        yield left


@pytest.mark.guarantee("G21")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_was_done_when_its_reply_was_lost_is_reported_as_done_and_done_once(
    mongo_database: tuple[str, str], monkeypatch: pytest.MonkeyPatch, anyio_backend: str
) -> None:
    async with aclosing(MongoStore(*mongo_database, durability="process")) as store:
        await store.open()
        for writes in range(40):
            c, r = f"c{writes}", f"r{writes}"
            with losing_a_reply(monkeypatch, writes) as left:
                await store.append(entry(r, 0, "zero " * 5_000, conversation_id=c, lease_seconds=0))
                taken = await store.take(r, "another", 60)
                assert taken is not None
                assert (await store.send(CancelRequested(request_id=r, event_id="stop"))).state == "waiting"
                await store.append(entry(r, 1, epoch=2, conversation_id=c))
                await store.append(entry(r, 2, epoch=2, conversation_id=c, ending="completed", turn=turn("asked")))
                await store.remember(c, turn("more"))
                await store.append(entry(f"{r} b", 0, conversation_id=c))
                assert await store.abandon(f"{r} b", 1)
                found = [await store.history(c), [each.seq for each in await store.facts(r)], await store.request(r)]
                assert await store.forget(c)
            assert found[:2] == [[*turn("asked"), *turn("more")], [0, 1, 2]]
            assert (taken.epoch, taken.fact_count) == (2, 1)
            if left[0] >= 0:
                break
        assert left[0] >= 0
        assert (await store.statistics()).requests == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_step_whose_reply_was_lost_counts_though_another_process_has_gone_on_since(
    mongo_database: tuple[str, str], process: Process, anyio_backend: str
) -> None:
    async with aclosing(MongoStore(*mongo_database)) as store:
        first, other = process.open(), process.open()
        step = Step(written(entry("r", 0, lease_seconds=0)), "first")
        assert isinstance(append_all(first, [step])[0], int)
        assert await store.take("r", "other", 60) is not None
        append(other, entry("r", 1, epoch=2))
        assert isinstance(append_all(first, [step])[0], int)
        [refused] = append_all(first, [Step(written(entry("r", 0)), "another")])
        assert str(refused) == "request r is in the journal already"
        assert [each.seq for each in facts(other, "r", 0)] == [0, 1]


@pytest.mark.guarantee("G21")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_the_server_refuses_is_reported_with_its_code_and_without_what_was_written(
    mongo_database: tuple[str, str], monkeypatch: pytest.MonkeyPatch, anyio_backend: str
) -> None:
    faults: dict[str, Exception] = {
        "not authorized (code 13)": OperationFailure("not authorized", 13, {"errmsg": "not authorized"}),
        "disk full (code 14031)": BulkWriteError(
            {"writeErrors": [{"code": 14031, "errmsg": "disk full", "op": {"x": "secret"}}], "writeConcernErrors": []}
        ),
        "index: m_1 (code 11000)": BulkWriteError(
            {
                "writeErrors": [{"code": 11000, "errmsg": "index: m_1 dup key: secret", "op": {"_id": "other"}}],
                "writeConcernErrors": [],
            }
        ),
        "index: s_1 (code 11000)": DuplicateKeyError(
            "index: s_1 dup key: secret", 11000, {"code": 11000, "errmsg": "index: s_1 dup key: secret"}
        ),
        "no details (code 1)": OperationFailure("no details", 1),
        "one (code 1); two (code 2); three (code 3)": BulkWriteError(
            {
                "writeErrors": [
                    {"code": number, "errmsg": text} for number, text in enumerate(("one", "two", "three", "four"), 1)
                ],
                "writeConcernErrors": [],
            }
        ),
        "cannot take a value": InvalidDocument("too large"),
    }
    async with aclosing(MongoStore(*mongo_database)) as store:
        await store.open()
        for reported, fault in faults.items():

            def refuse(*_: object, fault: Exception = fault, **__: object) -> None:
                raise fault

            with monkeypatch.context() as patched:
                patched.setattr(Collection, "insert_many", refuse)
                with pytest.raises(StoreError) as caught:
                    await store.append(entry("r"))
            assert reported in str(caught.value)
            assert not caught.value.retryable
            assert "secret" not in str(caught.value)
            assert "four" not in str(caught.value)
        await store.append(entry("r"))


@pytest.mark.guarantee("G21")
@pytest.mark.parametrize(
    "fault",
    [
        OperationFailure("could not reach the shard", 6),
        WriteConcernError("the primary steps down", 91),
        ExecutionTimeout("operation exceeded time limit", 50),
        BulkWriteError({"writeErrors": [{"code": 133, "errmsg": "no primary"}], "writeConcernErrors": []}),
        BulkWriteError({"writeErrors": [], "writeConcernErrors": [{"code": 64, "errmsg": "waiting for replication"}]}),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_the_server_could_not_confirm_is_an_error_that_may_be_gone_later(
    process: Process, fault: Exception
) -> None:
    reported = process.open().translated(fault)
    assert isinstance(reported, StoreUnavailable)
    assert reported.retryable
    assert "is out of reach, or did not answer in time" in str(reported)


# --------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_durability_is_whether_a_majority_has_it_on_disk(
    mongo_database: tuple[str, str], anyio_backend: str
) -> None:
    concerns: dict[Durability, dict[str, object]] = {"power": {"w": "majority", "j": True}, "process": {"w": 1}}
    for durability, concern in concerns.items():
        async with aclosing(MongoStore(*mongo_database, durability=durability)) as store:
            assert await store._write(lambda database: database.requests.write_concern.document) == concern
            await store.remember("c", turn(durability))


def test_what_cannot_be_a_store_is_refused_and_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "mongodb://127.0.0.1:1"
    with pytest.raises(ConfigurationError, match="durability is 'never'"):
        MongoStore(url, durability="never")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="timeout_seconds is 0; it must be a finite number above 0"):
        MongoStore("mongodb://127.0.0.1", timeout_seconds=0)
    for name in ("", "a b", "a/b", "a$b", "x" * 64):
        with pytest.raises(ConfigurationError, match="database is "):
            MongoStore(url, name)
    for name in ("", "a b", "system.users", "toolbus_steps"):
        with pytest.raises(ConfigurationError, match="messages is "):
            MongoStore(url, messages=name)
    for fields in (MessageFields(data="a.b"), MessageFields(content="$x"), MessageFields(content="sender")):
        with pytest.raises(ConfigurationError, match="fields is "):
            MongoStore(url, fields=fields)
    for wrong in ("", "http://host", "mongodb://me:secret@", "mongodb://me:sec:ret@host/x"):
        with pytest.raises(ConfigurationError, match="the URL is not a valid MongoDB URL") as caught:
            MongoStore(wrong)
        assert "secret" not in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"No such file or directory: '/missing\.pem'"):
        MongoStore("mongodb://127.0.0.1/?tls=true&tlsCAFile=/missing.pem")
    # What is not percent-encoded in a password cuts it into pieces, and none of these is told.
    for wrong in ("mongodb://me:1/secret@host/", "mongodb+srv://me:secret/2@host/", "mongodb+srv://me:secret?2@host/"):
        with pytest.raises(ConfigurationError, match="percent-encode user name") as caught:
            MongoStore(wrong)
        assert "secret" not in str(caught.value)
        assert caught.value.__context__ is None
    for right in (url, "mongodb+srv://host", "mongodb+srv://host/?appName=a:b", "mongodb+srv://me:secret@host/"):
        assert MongoStore(right).journal is not None
    monkeypatch.setitem(sys.modules, "pymongo", None)
    with pytest.raises(MissingExtra, match=r"pip install 'toolbus\[mongo\]'"):
        MongoStore(url)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_option_that_the_driver_refuses_when_it_connects_is_named(anyio_backend: str) -> None:
    async with aclosing(MongoStore("mongodb://127.0.0.1:1/?authMechanism=GSSAPI")) as store:
        with pytest.raises(
            StoreError, match=r"toolbus at mongodb://127\.0\.0\.1:1: GSSAPI requires a username"
        ) as caught:
            await store.open()
        assert not caught.value.retryable


@pytest.mark.guarantee("G21")
@pytest.mark.parametrize("password", ["secret", "secret#2"])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_nobody_behind_the_address_is_reported_without_the_password(
    anyio_backend: str, password: str, clock: DeadlineClock
) -> None:
    url = f"mongodb://me:{password}@127.0.0.1:1/?retryWrites=false"
    async with aclosing(MongoStore(url, timeout_seconds=0.3)) as store:
        with pytest.raises(
            StoreUnavailable, match=r"database toolbus at mongodb://127\.0\.0\.1:1 is out of reach"
        ) as caught:
            await store.open()
        assert "secret" not in str(caught.value)


def test_steps_that_were_written_keep_their_outcomes_when_the_server_fails_on_those_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def append_each(_database: Any, group: Any) -> dict[int, int]:
        if group == ["second"]:
            raise error
        return {0: 7}

    def translate(_exc: Exception) -> Exception:
        return translated

    database: Any = Mock(in_time=contextlib.nullcontext, translated=translate)
    monkeypatch.setattr(_journal, "_rounds", Mock(return_value=[["first"], ["second"], ["third"]]))
    monkeypatch.setattr(_journal, "_append_each", append_each)
    steps: Any = [None, None, None]
    error, translated = AutoReconnect("away"), StoreUnavailable("away")
    assert append_all(database, steps) == [7, translated, translated]
    error = translated = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        append_all(database, steps)


async def test_a_conversation_of_one_message_is_listed_and_counted(mongo_database: tuple[str, str]) -> None:
    async with aclosing(MongoStore(*mongo_database)) as store:
        await store.remember("c", [UserMessage(content="Hello?")])
        assert [(each.conversation_id, each.message_count) for each in await store.conversations()] == [("c", 1)]
        counted = await store.statistics()
        assert (counted.conversations, counted.messages) == (1, 1)


@pytest.mark.parametrize(
    ("steps", "start", "end", "missing"),
    [
        ([], 0, 5, 0),
        ([(0, 0)], 0, 5, 1),
        ([(0, 1), (3, 4)], 0, 5, 2),
        ([(2, 2), (0, 1)], 0, 5, 3),
        ([(0, 1), (2, 2), (3, 4)], 1, 5, 5),
        ([(0, 1), (2, 2), (3, 4)], 0, 4, 3),
        ([(1, 2)], 0, 5, 0),
    ],
)
def test_the_first_fact_that_is_missing_is_named(
    steps: list[tuple[int, int]], start: int, end: int, missing: int
) -> None:
    documents = [{"seq": first, "step_end": last} for first, last in steps]
    assert _journal._first_missing(documents, start, end) == missing


@pytest.mark.guarantee("G11")
def test_steps_after_one_that_is_refused_or_written_already_are_written_all_the_same(process: Process) -> None:
    database = process.open()
    append(database, entry("beside once"))
    once, refused = Step(written(entry("beside once", 1)), "t"), Step(written(entry("beside unknown", 7)), "t")
    assert [isinstance(each, int) for each in append_all(database, [once])] == [True]
    steps = [refused, once, Step(written(entry("beside one")), "t"), once, Step(written(entry("beside two")), "t")]
    outcomes = append_all(database, steps)
    assert [type(each).__name__ for each in outcomes] == ["LeaseLost", *["int"] * 4]
    assert [request(database, each.written.request_id) is not None for each in steps] == [False, *[True] * 4]
