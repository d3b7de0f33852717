"""Inputs from other processes over MongoDB: commands end to end, and processes that die between two documents."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any
from unittest.mock import Mock

import anyio
import pytest
from pymongo.collection import Collection

from support.mongo_server import MongoServer
from support.store_entries import entry
from toolbus import Runtime, tool
from toolbus.errors import InboxFull, StoreError
from toolbus.events import CancelRequested, Event
from toolbus.records import replace
from toolbus.remote import Client
from toolbus.storage import MAX_WAITING_INPUTS, InboxReceipt
from toolbus.stores.mongo import MongoStore, _inbox
from toolbus.stores.mongo._connection import ServerConnection
from toolbus.testing import ScriptedProvider, calls, text

pytestmark = pytest.mark.guarantee("G32")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Nothing behind the store's threads knows of event loops: see `test_mongo_contract.py`."""
    return "asyncio"


@pytest.fixture
def opened(mongo: MongoServer) -> Any:
    with mongo.database() as (url, name):
        yield lambda: MongoStore(url, name, durability="process")


def cancel(event_id: str) -> CancelRequested:
    return CancelRequested(request_id="r", event_id=event_id, reason="enough")


async def take(store: Any, seq: int, given: Event) -> None:
    """Append a step with an input as its fact."""
    step = entry("r", seq)
    step.facts, step.received = [given], [given.event_id]
    await store.append(step)


async def put(store: MongoStore, collection: str, id_: str, **fields: Any) -> None:
    """Put back what a process would have written later, had it not died."""
    await store._write(lambda database: getattr(database, collection).update_one({"_id": id_}, {"$set": fields}))


async def test_an_approval_from_another_process_reaches_a_request_also_a_parked_one(
    opened: Callable[[], Any],
) -> None:
    runs: list[int] = []

    @tool(needs_approval=True)
    async def wipe(n: int) -> str:
        """Wipe it."""
        runs.append(n)
        return "wiped"

    model = ScriptedProvider(lambda request: (calls(("wipe", {"n": 1})), text("Wiped."))[request.round])
    options: dict[str, Any] = {"tools": [wipe], "on_approval": "wait", "inbox_poll_seconds": 0.02}
    with anyio.fail_after(60):
        async with (
            Runtime(model, store=opened(), park_after_seconds=0.1, **options) as runtime,
            Client(opened()) as client,
        ):
            await runtime.resume(watch=True)
            first, second = [runtime.start("go") for _ in range(2)]
            for session in (first, second):
                await session.accepted()
            assert (await second.result()).resumable
            for session in (first, second):
                handle = client.request(session.request_id)
                [question] = await handle.pending_approvals()
                assert await handle.approve(question) in ("done", "queued")
                assert (await handle.result()).text == "Wiped."
    assert runs == [1, 1]


async def test_an_input_that_a_step_has_taken_is_taken_although_its_process_died_before_marking_it(
    opened: Callable[[], Any],
) -> None:
    async with aclosing(opened()) as store:
        await store.append(entry("r"))
        for name in ("a", "b"):
            await store.send(cancel(name))
        await take(store, 1, cancel("a"))
        await put(store, "inbox", "r:a", state="waiting")
        assert await store.receipt("r", "a") == InboxReceipt(state="taken")
        assert await store.send(cancel("a")) == InboxReceipt(state="taken")
        assert [each.event_id for each in await store.waiting("worker")] == ["b"]
        await store.settle("r", "a", "refused", "too late")
        assert await store.receipt("r", "a") == InboxReceipt(state="taken")
        await take(store, 2, cancel("b"))
        assert [await store.receipt("r", each) for each in ("a", "b")] == [InboxReceipt(state="taken")] * 2
        assert await store.waiting("worker") == []


async def test_an_input_whose_sender_died_before_waking_its_request_wakes_it_when_it_is_sent_again(
    opened: Callable[[], Any],
) -> None:
    async with aclosing(opened()) as store:
        await store.append(entry("r"))
        assert await store.park("r", 1, 3_600)
        await store.send(cancel("a"))
        await put(store, "requests", "r", lease_until=4e9)
        assert await store.unfinished() == []
        assert await store.send(cancel("a")) == InboxReceipt(state="waiting", is_held=False)
        assert [each.request_id for each in await store.unfinished()] == ["r"]


async def test_an_input_whose_request_ends_while_it_is_sent_is_not_kept(
    opened: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_one_and_update(self: Collection[Any], *args: Any, **options: Any) -> Any:
        self.update_one({"_id": "r"}, {"$set": {"ending": "completed"}})
        return real(self, *args, **options)

    made: MongoStore = opened()
    async with aclosing(made) as store:
        await store.append(entry("r"))
        real = Collection[Any].find_one_and_update
        monkeypatch.setattr(Collection, "find_one_and_update", find_one_and_update)
        assert await store.send(cancel("a")) == InboxReceipt(state="ended")
        assert await store._read(lambda database: database.inbox.count_documents({})) == 0


async def test_at_the_moment_at_which_a_lease_runs_out_nobody_holds_an_input(
    opened: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aclosing(opened()) as store:
        await store.append(entry("r"))
        await store.send(cancel("a"))
        end = (await store.request("r")).lease_until
        for now, is_held in ((end - 0.001, True), (end, False)):
            monkeypatch.setattr(ServerConnection, "now", Mock(return_value=now))
            assert await store.receipt("r", "a") == InboxReceipt(state="waiting", is_held=is_held)
            assert [each.request_id for each in await store.unfinished()] == ([] if is_held else ["r"])


async def test_inputs_that_cannot_be_read_are_logged_once_and_do_not_keep_the_others_waiting(
    opened: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with aclosing(opened()) as store:
        await store.append(entry("r"))
        for each in ("a", "b", "c"):
            await store.send(cancel(each))
        await put(store, "inbox", "r:a", data=b'{"type": "of_tomorrow"}')
        await put(store, "inbox", "r:b", data="text")
        for _ in range(2):
            assert [each.event_id for each in await store.waiting("worker")] == ["c"]
    logged = [each.getMessage().partition(" in its inbox cannot be read")[0] for each in caplog.records]
    assert logged == ["request r: input a", "request r: input b"]


async def test_inputs_that_ended_requests_did_not_take_do_not_keep_others_waiting(
    opened: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_inbox, "_LISTED", 2)
    made: MongoStore = opened()
    async with aclosing(made) as store:
        for request_id in ("ended", "forgotten", "r"):
            await store.append(entry(request_id, conversation_id=request_id))
        for name in ("left", "taken"):
            await store.send(replace(cancel(name), request_id="ended"))
        await store.send(replace(cancel("orphan"), request_id="forgotten"))
        await store.send(cancel("late"))
        ending = entry("ended", 1, conversation_id="ended", ending="completed")
        ending.facts, ending.received = [cancel("taken")], ["taken"]
        await store.append(ending)
        await put(store, "inbox", "ended:taken", state="waiting")  # Its process died before it could mark it.
        await store._write(lambda database: database.requests.delete_one({"_id": "forgotten"}))
        assert [each.event_id for each in await store.waiting("worker")] == ["late"]
        assert await store._read(lambda database: database.inbox.count_documents({})) == 2
        states = [(await store.receipt("ended", name)).state for name in ("left", "taken")]
        assert states == ["ended", "taken"]


async def test_inputs_for_requests_of_others_do_not_keep_those_of_a_process_waiting(
    opened: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_inbox, "_LISTED", 2)
    async with aclosing(opened()) as store:
        for request_id in ("a", "b", "r"):
            await store.append(entry(request_id, conversation_id=request_id))
        for number in range(3):
            for request_id in ("a", "b", "r"):
                await store.send(replace(cancel(f"{request_id}{number}"), request_id=request_id))
        assert await store.release("a", 1)  # Nobody resumes it.
        assert (await store.take("a", "another", 3_600)) is not None
        assert await store.release("b", 1)
        assert [each.event_id for each in await store.waiting("worker")] == ["r0", "r1", "r2"]
        assert [each.event_id for each in await store.waiting("worker", limit=2)] == ["r0", "r1"]
        assert [each.event_id for each in await store.waiting("another", request_id="a")] == ["a0", "a1", "a2"]
        assert await store.waiting("another", request_id="r") == []


async def test_a_request_whose_inputs_are_all_taken_stays_parked_although_one_is_not_marked(
    opened: Callable[[], Any],
) -> None:
    async with aclosing(opened()) as store:
        await store.append(entry("r"))
        await store.send(cancel("a"))
        await take(store, 1, cancel("a"))
        await put(store, "inbox", "r:a", state="waiting")  # Its process died before it could mark it.
        assert await store.park("r", 1, 3_600)
        assert await store.unfinished() == []


async def test_an_input_that_the_database_cannot_take_does_not_harm_those_that_are_sent_with_it(
    opened: Callable[[], Any],
) -> None:
    outcomes: dict[str, str] = {}

    async def send(store: MongoStore, given: CancelRequested) -> None:
        try:
            outcomes[given.event_id] = (await store.send(given)).state
        except StoreError as exc:
            outcomes[given.event_id] = str(exc)

    async with aclosing(opened()) as store:
        await store.append(entry("r"))
        async with anyio.create_task_group() as tasks:
            for given in (cancel("a"), replace(cancel("half a request"), request_id="\ud83d"), cancel("b")):
                tasks.start_soon(send, store, given)
    assert "cannot take a value" in outcomes.pop("half a request")
    assert outcomes == {"a": "waiting", "b": "waiting"}


async def test_inputs_that_are_sent_at_once_keep_their_bound_and_their_order(opened: Callable[[], Any]) -> None:
    sent: list[str] = []
    outcomes: dict[str, str] = {}

    async def send(store: MongoStore, name: str) -> None:
        sent.append(name)
        try:
            outcomes[name] = (await store.send(cancel(name))).state
        except InboxFull:
            outcomes[name] = "full"

    async with aclosing(opened()) as store:
        await store.append(entry("r"))
        await send(store, "known")
        async with anyio.create_task_group() as tasks:
            for number in range(MAX_WAITING_INPUTS + 9):
                tasks.start_soon(send, store, "known" if number == 50 else f"i{number}")
            tasks.start_soon(send, store, "i0")
            tasks.start_soon(send, store, "i50")
        waiting = [each.event_id for each in await store.waiting("worker", limit=200)]
    assert [*outcomes.values()].count("full") == 10
    assert waiting == [each for each in dict.fromkeys(sent) if outcomes[each] == "waiting"]
