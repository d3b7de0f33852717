"""Parked requests: what only waits for days leaves memory, and an answer from any process continues it."""

from __future__ import annotations

import gc
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from support.resuming import Lab, Wall, virtual_walls
from toolbus import Limits, RequestSession, Runtime, Tool
from toolbus.errors import ConfigurationError
from toolbus.events import (
    ApprovalDecided,
    ApprovalRequested,
    DeadLetter,
    Event,
    RequestResumed,
    ToolCallCompleted,
    ToolCallRequested,
)
from toolbus.remote import Client
from toolbus.storage import RequestRecord
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, advance, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()
wall = virtual_walls()
pytestmark = pytest.mark.guarantee("G32")

LONG, DAY = 600.0, 86_400.0  # LONG has twenty leases, and the store is looked at each second of it
LIMITS = Limits(timeout_seconds=10 * DAY, tool_timeout_seconds=10 * DAY, approval_timeout_seconds=10 * DAY)
EXTERNAL: Tool = Tool("outside", "Ask outside.", {"type": "object"}, external=True, validate=lambda _arguments: None)


def node(store: MemoryStore, *steps: Any, lab: Lab | None = None, **options: Any) -> Runtime:
    replies = steps or (calls(("wipe", {"n": 1})), text("Done."))
    lab = lab or Lab()
    tools = [lab.tool("wipe", 1, needs_approval=True), lab.tool("look", 200, idempotent=True), EXTERNAL]
    options = {"park_after_seconds": 60.0, "limits": LIMITS, "on_approval": "wait", "drain_seconds": 0, **options}
    model = ScriptedProvider(lambda request: replies[request.round])
    return Runtime(model, tools=tools, store=store, **options)


async def record_of(store: MemoryStore, request_id: str) -> RequestRecord:
    assert store.journal is not None
    record = await store.journal.request(request_id)
    assert record is not None
    return record


async def test_a_request_that_only_waits_leaves_memory_and_an_answer_from_elsewhere_continues_it() -> None:
    store, lab = MemoryStore(journal=True), Lab()
    async with node(store, lab=lab) as runtime:
        await runtime.resume(watch=True)
        session = runtime.start("go")
        await settle()
        [question] = session.pending_approvals
        await advance(100)
        result = await session.result()
        assert (result.resumable, result.reason) == (True, "parked")
        assert runtime.session(session.request_id) is None
        assert (await record_of(store, session.request_id)).owner == ""
        await advance(LONG)
        assert (await record_of(store, session.request_id)).epoch == 1  # nobody has looked after it
        handle = Client(store).request(session.request_id)
        assert [each.event_id for each in await handle.pending_approvals()] == [question.event_id]
        assert await handle.approve(question) == "queued"
        done = await handle.result()
        assert (done.outcome, done.text) == ("completed", "Done.")
        assert await handle.approve(question) == "ended"
    assert len(lab.runs) == 1


async def test_a_request_is_parked_at_the_second_look_after_its_time_which_comes_twice_in_it() -> None:
    async with node(MemoryStore(journal=True)) as runtime:
        await runtime.resume(watch=True)
        session = runtime.start("go")
        await settle()
        await advance(89)
        assert not session.ended
        await advance(2)
        assert session.ended


async def test_a_reader_hears_the_request_on_after_it_was_parked() -> None:
    store = MemoryStore(journal=True)
    async with node(store) as runtime:
        await runtime.resume(watch=True)
        session = runtime.start("go")
        handle, found = runtime.request(session.request_id), list[Event]()
        async with anyio.create_task_group() as tasks:

            async def read() -> None:
                found.extend([each async for each in handle.events() if each.is_fact])

            tasks.start_soon(read)
            await advance(200)
            [question] = await handle.pending_approvals()
            assert await handle.approve(question) == "queued"
        assert store.journal is not None
        facts = [each.fact.event_id for each in await store.journal.facts(session.request_id)]
        assert [each.event_id for each in found if not each.is_derived] == facts
        assert sum(isinstance(each, RequestResumed) for each in found) == 1


async def test_an_external_answer_after_three_days_and_five_restarts_is_reported_once(wall: Wall) -> None:
    store, heard = MemoryStore(journal=True), list[Event]()
    steps = (calls(("outside", {})), text("Answered."))
    async with node(store, *steps) as runtime:
        await runtime.resume(watch=True)
        session = runtime.start("go")
        await settle()
        await advance(200)
    for _ in range(5):
        async with node(store, *steps) as runtime:
            runtime.bus.connect((ToolCallCompleted, DeadLetter), heard.append)
            await runtime.resume(watch=True)
            await advance(200)
            assert runtime.session(session.request_id) is None
        wall.put_to(wall() + 0.6 * DAY)
    assert store.journal is not None
    [request] = [
        each.fact for each in await store.journal.facts(session.request_id) if isinstance(each.fact, ToolCallRequested)
    ]
    answer = request.completed("42")
    handle = Client(store).request(session.request_id)
    assert [await handle.inject(answer) for _ in range(3)] == ["queued"] * 3
    async with node(store, *steps) as runtime:
        runtime.bus.connect((ToolCallCompleted, DeadLetter), heard.append)
        await runtime.resume(watch=True)
        assert (await handle.result()).text == "Answered."
        assert await handle.inject(answer) == "done"
    assert [each.event_id for each in heard] == [answer.event_id]


async def test_a_request_that_is_being_parked_has_its_questions_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(journal=True)
    journal: Any = store.journal
    park = journal.park

    async def slowly(*given: Any) -> Any:
        await anyio.sleep(1)
        return await park(*given)

    monkeypatch.setattr(journal, "park", slowly)
    async with node(store) as runtime:
        await runtime.resume(watch=True)
        session = runtime.start("go")
        await settle()
        [question] = session.pending_approvals
        assert (await session.result()).reason == "parked"
        assert runtime.session(session.request_id) is session
        [asked] = await runtime.request(session.request_id).pending_approvals()
        assert asked.event_id == question.event_id


@pytest.mark.parametrize("park_after_seconds", [0.01, 0.2, 1.0])
async def test_a_request_that_is_parked_sooner_than_its_inbox_is_read_gets_its_answer(
    park_after_seconds: float,
) -> None:
    store = MemoryStore(journal=True)
    async with node(store, park_after_seconds=park_after_seconds, inbox_poll_seconds=2.0) as runtime:
        await runtime.resume(watch=True)
        session = runtime.start("go")
        await settle()
        [question] = session.pending_approvals
        assert (await session.result()).reason == "parked"
        await advance(10)
        handle = runtime.request(session.request_id)
        assert await handle.approve(question) == "queued"
        with anyio.fail_after(10):
            assert (await handle.result()).text == "Done."
        assert (await record_of(store, session.request_id)).epoch == 2  # it was continued once


async def test_a_deadline_that_passes_while_it_is_parked_ends_the_wait_in_time() -> None:
    store = MemoryStore(journal=True)
    limits = Limits(timeout_seconds=10 * DAY, approval_timeout_seconds=LONG)
    async with node(store, limits=limits) as runtime:
        await runtime.resume(watch=True)
        session = runtime.start("go")
        began = anyio.current_time()
        result = await runtime.request(session.request_id).result()
        assert LONG <= anyio.current_time() - began < LONG + 10
        assert (result.text, result.tool_calls[0].reason) == ("Done.", "denied")


async def ask_somebody(_question: ApprovalRequested) -> bool:
    """Decide in days, as an application does that has sent a mail."""
    await anyio.sleep(3 * DAY)
    return True


@pytest.mark.parametrize("case", ["a tool runs", "run", "nobody watches", "no parking", "the application decides"])
async def test_what_does_anything_else_is_not_parked(case: str) -> None:
    store = MemoryStore(journal=True)
    steps = (calls(("wipe", {"n": 1}), ("look", {"n": 1})), text("Done.")) if case == "a tool runs" else ()
    options: dict[str, Any] = {"park_after_seconds": None if case == "no parking" else 60}
    if case == "the application decides":
        options["on_approval"] = ask_somebody
    async with node(store, *steps, **options) as runtime:
        if case != "nobody watches":
            await runtime.resume(watch=True)
        async with anyio.create_task_group() as tasks:
            if case == "run":
                tasks.start_soon(runtime.run, "go")
            else:
                runtime.start("go")
            await advance(195)
            [question] = runtime.pending_approvals()
            assert (await record_of(store, question.request_id)).owner
            session = runtime.session(question.request_id)
            assert session is not None
            session.approve(question)


@pytest.mark.parametrize("how", ["here", "elsewhere"])
@pytest.mark.parametrize("moment", [0, 1, 2, 3, 5, 8])
async def test_a_decision_that_comes_while_it_is_parked_is_not_lost(how: str, moment: int) -> None:
    store, lab = MemoryStore(journal=True), Lab()
    async with node(store, lab=lab) as runtime:
        await runtime.resume(watch=True)
        session = runtime.start("go")
        await settle()
        [question] = session.pending_approvals
        handle = (runtime if how == "here" else Client(store)).request(session.request_id)
        assert session.park()
        for _ in range(moment):
            await anyio.lowlevel.checkpoint()
        assert await handle.approve(question) in ("done", "queued")
        assert (await handle.result()).tool_calls[0].ok
        assert store.journal is not None
        facts = [each.fact for each in await store.journal.facts(session.request_id)]
    assert sum(isinstance(each, ApprovalDecided) for each in facts) == 1
    assert len(lab.runs) == 1


async def test_a_result_that_comes_while_it_is_parked_is_kept_and_continues_it() -> None:
    store = MemoryStore(journal=True)
    async with node(store, calls(("outside", {})), text("Answered.")) as runtime:
        await runtime.resume(watch=True)
        session = runtime.start("go")
        requests = runtime.bus.subscribe(ToolCallRequested)
        async with requests:
            requested = await anext(requests)
        assert session.park()
        assert runtime.bus.publish(requested.completed("42"))
        result = await runtime.request(session.request_id).result()
        assert (result.text, result.tool_calls[0].content) == ("Answered.", "42")


async def test_a_thousand_parked_requests_hold_no_session() -> None:
    store = MemoryStore(journal=True)
    async with node(store) as runtime:
        await runtime.resume(watch=True)
        started = {runtime.start("go").request_id for _ in range(1_000)}
        await advance(200)
        assert runtime.statistics().running == 0
        gc.collect()
        sessions = [each for each in gc.get_objects() if type(each) is RequestSession]
        assert not [each for each in sessions if each.request_id in started]
        assert store.journal is not None
        assert (await store.journal.statistics()).unfinished == 1_000
        assert not await store.journal.unfinished()


async def test_a_runtime_that_watched_itself_the_last_time_only_parks_nothing() -> None:
    runtime = node(MemoryStore(journal=True))
    async with runtime:
        await runtime.resume(watch=True)
    async with runtime:
        session = runtime.start("go")
        await advance(200)
        assert runtime.session(session.request_id) is session


async def test_parking_needs_an_inbox() -> None:
    with pytest.raises(ConfigurationError, match="park_after_seconds needs a store with an inbox"):
        Runtime(ScriptedProvider([]), park_after_seconds=60)
    with pytest.raises(ConfigurationError, match="park_after_seconds"):
        Runtime(ScriptedProvider([]), park_after_seconds=0, store=MemoryStore(journal=True))
