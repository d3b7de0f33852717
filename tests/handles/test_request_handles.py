"""Handles: a request is watched and commanded from the process that runs it, and in the same way from any other one."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from support.journaled import late_answers
from support.local_relay import LocalRelay
from support.resuming import Lab, virtual_walls
from toolbus import Limits, RequestSession, Runtime, Tool
from toolbus.bus import Cursor
from toolbus.durability import InboxReader
from toolbus.durability._inbox_reader import INPUTS_AT_ONCE
from toolbus.errors import (
    BusError,
    ConfigurationError,
    NotAuthorized,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    UnknownRequest,
)
from toolbus.events import (
    ApprovalDecided,
    CancelRequested,
    DeadLetter,
    Event,
    MessageAppended,
    ModelResponded,
    RequestCompleted,
    RequestStarted,
    SteeringAdded,
    TextDelta,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.handles import RequestHandle, _handle  # pyright: ignore[reportPrivateUsage]
from toolbus.handles._events import RequestEvents
from toolbus.messages import AssistantMessage, UserMessage
from toolbus.records import replace
from toolbus.remote import Client
from toolbus.storage import MAX_WAITING_INPUTS
from toolbus.stores.memory import MemoryStore
from toolbus.stores.sqlite import SqliteStore
from toolbus.testing import ScriptedProvider, advance, calls, hang, settle, text, virtual_backends

anyio_backend = virtual_backends()
wall = virtual_walls()
pytestmark = pytest.mark.guarantee("G32")

External: Tool = Tool("outside", "Ask outside.", {"type": "object"}, external=True, validate=lambda _arguments: None)


def store_of() -> MemoryStore:
    return MemoryStore(journal=True)


def node(store: MemoryStore, *steps: Any, lab: Lab | None = None, more: Sequence[Tool] = (), **options: Any) -> Runtime:
    """A runtime as another process would have it: `steps` are what its model answers, round by round."""
    lab = lab or Lab()
    replies = steps or (calls(("wipe", {"n": 1})), text("Done."))
    tools = [
        lab.tool("wipe", 1, needs_approval=True),
        lab.tool("look", 20, idempotent=True),
        External,
        *more,
    ]
    model = ScriptedProvider(lambda request: replies[request.round])
    if _relays:
        options.setdefault("relay", _relays[0])
    return Runtime(model, tools=tools, store=store, lease_seconds=30, on_approval="wait", **options)


_relays: list[LocalRelay] = []
"""The relay between all nodes of a test, if it has one."""


@pytest.fixture(params=["here", "elsewhere", "client", "relayed"])
def where(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "relayed":
        _relays.append(LocalRelay())
    yield request.param
    _relays.clear()


@asynccontextmanager
async def handle_on(
    session: RequestSession, runtime: Runtime, where: str, **options: Any
) -> AsyncGenerator[RequestHandle]:
    """A handle on a request of `runtime`: in its own process, in that of another runtime, or in one without a model."""
    if where == "here":
        yield runtime.request(session.request_id, **options)
    elif where == "client":
        yield Client(runtime.store).request(session.request_id, **options)
    else:
        assert isinstance(runtime.store, MemoryStore)
        async with node(runtime.store) as other:
            yield other.request(session.request_id, **options)


# ----------------------------------------------------------------------------------------------- commands


async def test_a_question_is_found_and_approved_wherever_its_request_runs(where: str) -> None:
    lab = Lab()
    async with node(store_of(), lab=lab) as runtime:
        session = runtime.start("go", conversation_id="talk")
        await settle()
        async with handle_on(session, runtime, where) as handle:
            [question] = await handle.pending_approvals()
            assert await handle.approve(question, by="Ada") == "done"
            decision = await anext(session.events(ApprovalDecided))
            assert (decision.approved, decision.by, decision.remember) == (True, "Ada", False)
            assert await handle.pending_approvals() == ()
            result = await handle.result()
            assert (result.conversation_id, result.outcome, result.text) == ("talk", "completed", "Done.")
            assert await handle.approve(question, by="Bob") == "ended"
    assert len(lab.runs) == 1


async def test_a_decision_that_comes_too_late_does_not_wait_for_the_result_of_another_call() -> None:
    replies = calls(("wipe", {"n": 1}), ("aside", {})), text("Done.", delays=100)
    aside: Tool = Tool("aside", "Ask aside.", {"type": "object"}, external=True, background=True)
    async with node(store_of(), *replies, more=[aside]) as runtime:
        session = runtime.start("go")
        await settle()
        [question] = session.pending_approvals
        handle = runtime.request(session.request_id)
        assert await handle.approve(question) == "done"
        await settle()
        request = next(each for each in session.snapshot().facts if isinstance(each, ToolCallRequested))
        await advance(1)
        assert session.inject(request.completed("seen"))  # It waits until the model has answered.
        before = anyio.current_time()
        assert await handle.approve(question, by="Bob") == "ended"
        assert anyio.current_time() == before
        session.cancel()


async def test_a_handle_knows_the_record_and_the_ending_of_its_request(where: str) -> None:
    async with node(store_of()) as runtime:
        session = runtime.start("go", conversation_id="talk")
        await settle()
        async with handle_on(session, runtime, where) as handle:
            assert not await handle.has_ended()
            record = await handle.record()
            assert (record.request_id, record.conversation_id, record.ending) == (session.request_id, "talk", None)
            assert record.started_at == session.snapshot().view.state.started_at
            assert record.fact_count == sum([each.is_fact and not each.is_derived async for each in _so_far(session)])
            session.cancel()
            await session.result()
            assert await handle.has_ended()
            assert (await handle.record()).ending == "cancelled"


async def _so_far(session: RequestSession) -> AsyncGenerator[Event]:
    with anyio.move_on_after(0.1):
        async for event in session.events():
            yield event


async def test_a_request_that_ran_here_has_the_result_of_its_session() -> None:
    async with node(store_of(), text("Done.")) as runtime:
        session = runtime.start("go")
        handle = runtime.request(session.request_id)
        assert (await handle.record()).started_at, "it begins now"
        assert await handle.result() is await session.result()


async def test_a_denial_reaches_the_model_with_its_reason(where: str) -> None:
    lab = Lab()
    async with node(store_of(), lab=lab) as runtime:
        session = runtime.start("go")
        await settle()
        async with handle_on(session, runtime, where) as handle:
            [question] = await handle.pending_approvals()
            assert await handle.deny(question, reason="not today") == "done"
            decision = await anext(session.events(ApprovalDecided))
            assert (decision.approved, decision.remember) == (False, False)
            [call] = (await handle.result()).tool_calls
            assert (call.reason, "not today" in call.error) == ("denied", True)
    assert not lab.runs


async def test_edited_arguments_are_what_runs(where: str) -> None:
    async with node(store_of()) as runtime:
        session = runtime.start("go")
        await settle()
        async with handle_on(session, runtime, where) as handle:
            [question] = await handle.pending_approvals()
            assert await handle.approve(question, arguments={"n": 7}) == "done"
            assert (await handle.result()).tool_calls[0].content == "wipe 7"


async def test_a_request_is_cancelled_and_steered_wherever_it_runs(where: str) -> None:
    async with node(store_of(), calls(("look", {"n": 1})), calls(("look", {"n": 2})), text("Done.")) as runtime:
        session = runtime.start("go")
        await settle()
        async with handle_on(session, runtime, where) as handle:
            assert await handle.steer("be brief") == "done"
            await advance(25)
            assert any(isinstance(each, UserMessage) and each.text == "be brief" for each in session.messages)
            assert await handle.cancel("enough") == "done"
            result = await handle.result()
            assert (result.outcome, result.reason) == ("cancelled", "enough")
            assert await handle.cancel("again") == "ended"
            assert await handle.steer("again") == "ended"


async def test_an_external_answer_counts_once_however_often_and_wherever_it_is_given(where: str) -> None:
    heard: list[Event] = []
    async with node(store_of(), calls(("outside", {})), text("Done.")) as runtime:
        runtime.bus.connect((ToolCallCompleted, DeadLetter), heard.append)
        session = runtime.start("go")
        await settle()
        requested = [each async for each in _until_requested(session)][-1]
        answer = requested.completed("42")
        async with handle_on(session, runtime, where) as handle:
            assert await handle.inject(answer) == "done"
            assert await handle.inject(answer) == "done"
            assert (await handle.result()).tool_calls[0].content == "42"
            assert await handle.inject(replace(answer, event_id="another")) == "ended"
    assert [each.event_id for each in heard if isinstance(each, ToolCallCompleted)] == [answer.event_id]


async def _until_requested(session: RequestSession) -> AsyncGenerator[ToolCallRequested]:
    async for event in session.events(ToolCallRequested):
        yield event
        return


async def test_an_answer_to_a_call_of_another_kind_is_refused_with_the_reason(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with node(store_of(), calls(("look", {"n": 1})), text("Done.")) as runtime:
        session = runtime.start("go")
        await settle()
        requested = [each async for each in _until_requested(session)][-1]
        async with handle_on(session, runtime, where) as handle:
            with pytest.raises(BusError, match="look is not an external tool"):
                await handle.inject(requested.completed("forged"))
            with pytest.raises(BusError, match="only a ToolCallCompleted or a ToolCallFailed"):
                await handle.inject(CancelRequested(request_id=session.request_id))
            assert (await handle.result()).tool_calls[0].content == "look 1"


@pytest.mark.parametrize("data", [2**70, object()])
async def test_an_answer_that_no_journal_can_keep_is_refused_and_another_one_counts(where: str, data: object) -> None:
    async with node(store_of(), calls(("outside", {})), text("Done.")) as runtime:
        session = runtime.start("go")
        await settle()
        requested = [each async for each in _until_requested(session)][-1]
        async with handle_on(session, runtime, where) as handle:
            with pytest.raises(BusError, match="it is not JSON"):
                await handle.inject(replace(requested.completed("42"), data={"n": data}))
            assert await handle.inject(requested.completed("42")) == "done"
            assert (await handle.result()).text == "Done."


async def test_an_answer_that_the_other_process_could_not_read_is_refused_where_it_is_given() -> None:
    async with node(store_of(), calls(("outside", {})), text("Done.")) as runtime:
        session = runtime.start("go")
        await settle()
        requested = [each async for each in _until_requested(session)][-1]
        handle = Client(runtime.store).request(session.request_id)
        with pytest.raises(BusError, match=r"this tool_call_completed is refused: .*content"):
            await handle.inject(replace(requested.completed("42"), content=cast("Any", None)))
        assert await handle.inject(requested.completed("42")) == "done"
        assert (await handle.result()).text == "Done."


async def test_a_session_in_the_place_of_its_id_is_refused() -> None:
    async with Runtime(ScriptedProvider([text("Hello.")])) as runtime:
        session: Any = runtime.start("Hello?")
        with pytest.raises(ConfigurationError, match=r"request_id is <RequestSession .*>; pass a string"):
            runtime.request(session)


async def test_an_unknown_request_is_answered_at_once() -> None:
    for handle in (Client(store_of()).request("no such"), node(store_of()).request("no such")):
        before = anyio.current_time()
        assert await handle.cancel() == "unknown"
        assert anyio.current_time() == before
        for wait in (handle.result, handle.pending_approvals, handle.has_ended, handle.events().__anext__):
            with pytest.raises(UnknownRequest, match="no such"):
                await wait()


async def test_a_request_that_is_deleted_while_it_is_looked_up_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of()
    async with node(store, text("Done."), text("Done.")) as runtime:
        ended, recalled = [await runtime.run("go", conversation_id=each) for each in "cd"]
    facts = store.journal.facts  # type: ignore[union-attr]

    async def deleting(request_id: str, *, start: int = 0) -> Any:
        await store.forget("c" if request_id == ended.request_id else "d")
        return await facts(request_id, start=start)

    monkeypatch.setattr(store.journal, "facts", deleting)
    with pytest.raises(UnknownRequest, match="the store has no request"):
        await Client(store).request(ended.request_id).result()
    async with node(store, text("Done.")) as runtime:
        assert await runtime.recall(recalled.request_id) is None


async def test_a_runtime_without_a_journal_knows_the_requests_that_run_in_it() -> None:
    async with node(MemoryStore()) as runtime:
        session = runtime.start("go")
        await settle()
        handle = runtime.request(session.request_id)
        [question] = await handle.pending_approvals()
        assert await handle.approve(question) == "done"
        assert (await handle.result()).ok
        assert [each async for each in handle.text()] == ["Done."]
        assert [each async for each in handle.events(after="now")] == []
        assert await runtime.request("other").cancel() == "unknown"
        with pytest.raises(UnknownRequest, match="no journal"):
            await runtime.request("other").result()


async def test_a_request_that_ended_too_long_ago_is_not_listed() -> None:
    async with Runtime(ScriptedProvider([text("Hello.")]), keep_ended_seconds=60) as runtime:
        result = await runtime.run("Hi")
        assert [each.request_id for each in await runtime.requests()] == [result.request_id]
        await advance(61)
        assert list(await runtime.requests()) == []


@pytest.mark.parametrize("prompt", ["hi", "hi " * 1_000_000], ids=["short", "long"])
async def test_the_record_of_a_request_that_has_ended_says_when_it_has(prompt: str) -> None:
    async with Runtime(ScriptedProvider([hang()]), limits=Limits(timeout_seconds=5)) as runtime:
        result = await runtime.run(prompt)
        (record,) = await runtime.requests()
    assert (record.request_id, record.ending) == (result.request_id, "stopped")
    assert record.ended_at is not None
    assert record.ended_at - record.started_at == pytest.approx(5)


async def test_a_command_for_a_request_that_nobody_runs_waits_for_the_one_that_takes_it_over() -> None:
    store, lab = store_of(), Lab()
    async with node(store, lab=lab, drain_seconds=0) as old:
        session = old.start("go")
        await settle()
        [question] = session.pending_approvals
    handle = Client(store).request(session.request_id)
    before = anyio.current_time()
    assert await handle.approve(question) == "queued"
    assert anyio.current_time() == before
    async with node(store, lab=lab) as heir:
        await heir.resume()
        assert (await handle.result()).tool_calls[0].ok
    assert len(lab.runs) == 1


async def test_a_reader_that_is_a_step_ahead_of_the_session_that_takes_the_request_over_misses_nothing() -> None:
    store, lab, relay = store_of(), Lab(), LocalRelay()
    journal: Any = store.journal

    async with node(store, lab=lab, relay=relay, drain_seconds=0) as old:
        session = old.start("go")
        await settle()
    async with node(store, lab=lab, relay=relay) as heir:
        heard: list[Event] = []

        async def read() -> None:
            heard.extend([each async for each in heir.request(session.request_id).events()])

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await advance(1)
            with late_answers(store, 2):
                await heir.resume()
                await advance(1)
            await advance(5)
            [question] = heir.pending_approvals()
            assert await heir.request(session.request_id).approve(question) == "done"
        stored = [each.fact.type for each in await journal.facts(session.request_id)]
    assert [each.type for each in heard if each.is_fact and not each.is_derived] == stored
    assert any(isinstance(each, TextDelta) for each in heard), "the rest came from the session"
    assert relay.sent == [], "nobody else has run the request meanwhile"


@pytest.mark.guarantee("G31")
def events_of(looks: list[list[list[Event]]], live: list[Event]) -> RequestEvents:
    """The events of a request "r" for a reader whose stream has `live` and is then cut.

    Each of `looks` is what one reader of the store finds, in portions.
    """

    class Stored:
        def __init__(self) -> None:
            self._looks = iter(looks.pop(0))
            self.has_ended = False

        async def read(self) -> list[Event]:
            found = next(self._looks)
            self.has_ended = any(isinstance(each, RequestCompleted) for each in found)
            return found

    class Live:
        def __init__(self) -> None:
            self._events = iter(live)

        async def __anext__(self) -> Event:
            for event in self._events:
                return event
            raise StopAsyncIteration

        def close(self) -> None: ...

    streams = [Live()]

    async def join(_after: str, _facts_only: bool) -> Any:
        return streams.pop() if streams else None

    stored: Any = Stored
    return RequestEvents(
        "r", lambda: None, stored, Cursor("r"), (), capacity=9, sub_requests=False, seconds=1.0, join=join
    )


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_reader_that_lost_its_stream_continues_with_the_store_after_the_newest_fact_that_it_has(
    is_stored: bool,
) -> None:
    """With `on_store_failure="warn"`, another process continues a request from an earlier fact than readers have."""
    settled = ToolCallFailed(
        event_id="settled", request_id="r", call_id="c", name="wait", reason="cancelled", error="over"
    )
    begun = RequestStarted(event_id="begun", request_id="r", timeout_seconds=9.0)
    options: dict[str, Any] = {"arguments": {}, "round": 0, "timeout_seconds": 9.0, "idempotency_key": "c"}
    # It could not begin any more, so nobody has heard it.
    asked = ToolCallRequested(event_id="asked", request_id="r", call_id="c", name="wait", **options)
    ending = RequestCompleted(event_id="ending", request_id="r", text="Done.")
    lost = SteeringAdded(event_id="lost", request_id="r", text="lost")
    looks: list[list[list[Event]]] = [
        [[begun]],
        [[begun, asked, settled, ending]] if is_stored else [[begun], [ending]],
    ]
    events = events_of(looks, [settled] if is_stored else [lost, settled])
    assert [each async for each in events] == [begun, *([] if is_stored else [lost]), settled, ending]


@pytest.mark.parametrize("looks_again", [False, True])
async def test_the_rest_of_a_reply_comes_from_the_store_after_the_stream_was_lost_whenever_it_is_written(
    looks_again: bool,
) -> None:
    begun = RequestStarted(event_id="begun", request_id="r", timeout_seconds=9.0)
    said = ModelResponded(event_id="said", request_id="r", round=0, message=AssistantMessage(text="One two three"))
    ending = RequestCompleted(event_id="ending", request_id="r", text="One two three")
    whole: list[Event] = [begun, said, ending]
    looks: list[list[list[Event]]] = [[[begun]], [[begun], whole[1:]] if looks_again else [whole]]
    events = events_of(looks, [TextDelta(request_id="r", message_id="m", text="One ", round=0)])
    heard = [each async for each in events]
    assert [each for each in heard if each.is_fact] == whole
    assert [each.text for each in heard if isinstance(each, TextDelta)] == ["One ", "two three"]


async def test_a_command_that_was_acknowledged_survives_the_death_of_the_process_that_took_it() -> None:
    store, lab = store_of(), Lab()
    journal: Any = store.journal
    append, dies = journal.append, anyio.Event()

    async def append_or_die(entry: Any) -> int:
        if entry.received:
            dies.set()
            await anyio.sleep_forever()
        return await append(entry)

    async with node(store, lab=lab) as old:
        session = old.start("go")
        await settle()
        [question] = session.pending_approvals
        journal.append = append_or_die
        assert await Client(store).request(session.request_id).approve(question) == "queued"
        assert dies.is_set()
        journal.append = append
        session.release("as if it had died")
    async with node(store, lab=lab) as heir:
        await heir.resume()
        assert (await heir.request(session.request_id).result()).tool_calls[0].ok
    assert len(lab.runs) == 1


async def test_a_command_is_an_entry_of_the_journal_together_with_its_fact() -> None:
    store = store_of()
    journal: Any = store.journal
    received: list[tuple[list[str], list[str]]] = []
    append = journal.append

    async def noted(entry: Any) -> int:
        received.append(([*entry.received], [each.event_id for each in entry.facts]))
        return await append(entry)

    journal.append = noted
    async with node(store) as runtime:
        session = runtime.start("go")
        await settle()
        [question] = session.pending_approvals
        assert await Client(store).request(session.request_id).approve(question) == "done"
        decisions = [
            each.fact.event_id
            for each in await journal.facts(session.request_id)
            if isinstance(each.fact, ApprovalDecided)
        ]
        assert [(ids, ids[0] in facts) for ids, facts in received if ids] == [(decisions, True)]


async def test_steering_while_the_model_is_asked_waits_for_the_reply_and_is_not_lost() -> None:
    store = store_of()
    async with node(store, text("Thinking.", 2, delays=20), text("Done.")) as runtime:
        session = runtime.start("go")
        await settle()
        began = anyio.current_time()
        assert await Client(store).request(session.request_id).steer("and Rome?") == "queued"
        assert anyio.current_time() - began == 5
        result = await session.result()
        assert result.text == "Done."
        assert [each.text for each in result.messages if isinstance(each, UserMessage)] == ["go", "and Rome?"]


async def test_steering_that_comes_while_its_request_is_left_is_given_where_it_continues() -> None:
    store = store_of()
    journal: Any = store.journal
    append = journal.append

    async def append_late(entry: Any) -> int:
        await anyio.sleep(2)
        return await append(entry)

    steps = (text("Thinking.", 2, delays=20), text("Done."))
    async with node(store, *steps) as heir:
        async with node(store, *steps, drain_seconds=0) as old:
            session = old.start("go")
            await settle()
            await journal.send(SteeringAdded(request_id=session.request_id, text="and Rome?"))
            await advance(1)
            journal.append = append_late
            session.release("it moves")
            await journal.send(SteeringAdded(request_id=session.request_id, text="and Oslo?"))
            await advance(1)
            journal.append = append
        await heir.resume()
        result = await heir.request(session.request_id).result()
    assert [each.text for each in result.messages if isinstance(each, UserMessage)] == ["go", "and Rome?", "and Oslo?"]


async def test_commands_to_a_request_that_ends_meanwhile_are_answered_as_ended() -> None:
    store = store_of()
    async with node(store, text("Thinking.", 2, delays=1)) as runtime:
        session = runtime.start("go")
        await settle()
        assert await Client(store).request(session.request_id).steer("too late?") in ("done", "ended")
        await session.result()
        assert await Client(store).request(session.request_id).steer("too late") == "ended"


@pytest.mark.parametrize("is_here", [True, False])
async def test_a_command_is_not_refused_before_what_it_is_refused_for_is_written(*, is_here: bool) -> None:
    store, may_write, answers = store_of(), anyio.Event(), list[str]()
    journal: Any = store.journal
    append = journal.append

    async def append_late(entry: Any) -> int:
        await may_write.wait()
        return await append(entry)

    async with node(store) as runtime, anyio.create_task_group() as tasks:
        session = runtime.start("go")
        await settle()
        journal.append = append_late
        assert session.cancel()
        await settle()
        handle = (runtime if is_here else Client(store)).request(session.request_id)

        async def steer() -> None:
            answers.append(await handle.steer("and Rome?"))

        tasks.start_soon(steer)
        await advance(2)
        owner = (await journal.request(session.request_id)).owner
        assert answers == []  # The process may die now. Then another one continues the request.
        assert [each.text for each in await journal.waiting(owner)] == ([] if is_here else ["and Rome?"])
        may_write.set()
        await advance(1)
        assert answers == ["ended"]


@pytest.mark.parametrize("is_here", [True, False])
async def test_a_command_is_refused_at_once_although_another_one_waits_for_the_model(*, is_here: bool) -> None:
    store, answers = store_of(), list[str]()
    steps = calls(("wipe", {"n": 1})), text("Thinking.", 2, delays=60)
    async with node(store, *steps) as runtime, anyio.create_task_group() as tasks:
        session = runtime.start("go")
        await settle()
        [question] = session.pending_approvals
        session.approve(question)
        await advance(2)
        tasks.start_soon(runtime.request(session.request_id).steer, "and Rome?")
        await settle()
        handle = (runtime if is_here else Client(store)).request(session.request_id)
        with anyio.move_on_after(3):
            answers.append(await handle.deny(question))
        session.cancel()
    assert answers == ["ended"]


async def test_a_request_that_was_left_as_its_store_failed_is_found_where_it_continues() -> None:
    store, lab = store_of(), Lab()
    journal: Any = store.journal
    append = journal.append

    async def fail(entry: Any) -> int:
        raise StoreError("the disk is full")

    async with node(store) as old, node(store, lab=lab) as heir:
        session = old.start("go")
        await settle()
        [question] = session.pending_approvals
        journal.append = fail
        assert session.approve(question)
        assert (await session.result()).resumable
        journal.append = append
        await advance(5)
        handle = old.request(session.request_id)
        assert not await handle.has_ended()
        await heir.resume()
        [question] = await handle.pending_approvals()
        assert await handle.approve(question) == "done"
        assert (await handle.result()).outcome == "completed"
    assert len(lab.runs) == 1


@pytest.mark.parametrize("allowed", [True, False, None, "yes"])
@pytest.mark.parametrize("is_async", [True, False])
async def test_only_what_is_authorized_is_sent(where: str, allowed: Any, *, is_async: bool) -> None:
    asked: list[Event] = []

    def decide(command: Event) -> Any:
        asked.append(command)
        return allowed

    async def decide_later(command: Event) -> Any:
        await anyio.sleep(1)
        return decide(command)

    async with node(store_of(), calls(("look", {"n": 1})), text("Done.")) as runtime:
        session = runtime.start("go")
        await settle()
        async with handle_on(session, runtime, where, authorize=decide_later if is_async else decide) as handle:
            if allowed is True:
                assert await handle.cancel("stop") == "done"
            else:
                with pytest.raises(NotAuthorized, match="cancel_requested was not authorized"):
                    await handle.cancel("stop")
                assert (await handle.result()).ok
    assert [(type(each), each.request_id) for each in asked] == [(CancelRequested, session.request_id)]


async def test_a_store_without_an_inbox_is_named_when_a_command_has_to_go_elsewhere() -> None:
    store = store_of()
    journal: Any = store.journal

    class Plain:
        def __getattr__(self, name: str) -> Any:
            if name in ("send", "receipt", "waiting", "settle"):
                raise AttributeError(name)
            return getattr(journal, name)

    setattr(store, "_journal", Plain())  # noqa: B010
    async with node(store, calls(("look", {"n": 1})), text("Done.")) as runtime:
        session = runtime.start("go")
        await settle()
        with pytest.raises(ConfigurationError, match="Plain has no inbox"):
            await Client(store).request(session.request_id).cancel()
        assert await runtime.request(session.request_id).cancel() == "done"
        await session.result()
        assert await Client(store).request(session.request_id).cancel() == "ended"
        assert await Client(store).request("unknown").cancel() == "unknown"


async def test_a_command_that_is_too_large_is_refused_before_it_is_read_or_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_handle, "decode", None)
    store = store_of()
    async with node(store, calls(("look", {"n": 1})), text("Done.")) as runtime:
        session = runtime.start("go")
        await settle()
        with pytest.raises(ConfigurationError, match="over 8,388,608 bytes"):
            await Client(store).request(session.request_id).steer("x" * 9_000_000)


async def test_a_runtime_asks_its_inbox_only_while_requests_run() -> None:
    store = store_of()
    journal: Any = store.journal
    waiting, looks = journal.waiting, 0

    async def counted(owner: str, **options: Any) -> Any:
        nonlocal looks
        looks += 1
        return await waiting(owner, **options)

    journal.waiting = counted
    async with node(store, calls(("look", {"n": 1})), text("Done.")) as runtime:
        await advance(10)
        assert looks == 0
        session = runtime.start("go")
        await advance(10)
        assert 35 < looks <= 40, "every quarter of a second"
        await session.result()


@pytest.mark.parametrize("between", [False, True], ids=["", "which continues between two looks"])
async def test_a_session_that_has_not_continued_yet_gets_many_inputs_in_order_without_a_look_at_each_moment(
    *, between: bool
) -> None:
    store, lab = store_of(), Lab()
    journal: Any = store.journal
    append, waiting = journal.append, journal.waiting

    async def append_late(entry: Any) -> int:
        await anyio.sleep(2)
        return await append(entry)

    async def waiting_late(owner: str, **bounds: Any) -> Any:
        if between and bounds["without"]:
            await anyio.sleep(3)
        return await waiting(owner, **bounds)

    async with node(store, lab=lab, drain_seconds=0) as old:
        session = old.start("go")
        await settle()
    for number in range(25):
        await journal.send(SteeringAdded(request_id=session.request_id, text=str(number)))
    async with node(store, lab=lab) as heir:
        journal.append, journal.waiting = append_late, waiting_late
        [resumed] = await heir.resume()
        await advance(1)
        assert not resumed.is_accepted
        journal.append = append
        await advance(5)
        journal.waiting = waiting
        await advance(5)
        resumed.approve(*resumed.pending_approvals)
        result = await resumed.result()
    steered = [each.text for each in result.messages if isinstance(each, UserMessage)]
    assert steered == ["go", *map(str, range(25))]


async def test_inputs_behind_one_that_cannot_be_given_yet_do_not_wait_for_a_look_of_their_own() -> None:
    store, lab = store_of(), Lab()
    journal: Any = store.journal
    append = journal.append

    async with node(store, lab=lab, drain_seconds=0) as old:
        session = old.start("go")
        await settle()

    async def append_late(entry: Any) -> int:
        if entry.request_id == session.request_id:
            await anyio.sleep(2)
        return await append(entry)

    async with node(store, lab=lab) as heir:
        other = heir.start("and this")
        await settle()
        for request_id, number in [(session.request_id, 0), *((other.request_id, number) for number in range(60))]:
            await journal.send(SteeringAdded(request_id=request_id, text=str(number)))
        journal.append = append_late
        [resumed] = await heir.resume()
        await advance(0.3)  # one look
        assert not resumed.is_accepted
        assert sum(isinstance(each.fact, SteeringAdded) for each in await journal.facts(other.request_id)) == 60
        for each in (other, resumed):
            each.cancel()


async def test_many_inputs_that_cannot_be_given_yet_do_not_keep_those_of_other_requests_waiting() -> None:
    store, lab = store_of(), Lab()
    journal: Any = store.journal
    async with node(store, lab=lab, drain_seconds=0) as old:
        left = old.start("go", conversation_id="c")
        await settle()
    async with node(store, text("Thinking.", 2, delays=60)) as elsewhere:
        elsewhere.start("first", conversation_id="c")
        await settle()
        async with node(store, lab=lab, drain_seconds=0) as heir:
            [resumed] = await heir.resume()
            for number in range(MAX_WAITING_INPUTS):
                await journal.send(SteeringAdded(request_id=left.request_id, text=str(number)))
            other = heir.start("and this")
            await settle()
            await journal.send(CancelRequested(request_id=other.request_id))
            await advance(0.3)  # one look
            assert other.ended
            assert not resumed.is_accepted


async def test_an_outage_of_the_store_delays_commands_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    store = store_of()
    journal: Any = store.journal
    waiting = journal.waiting

    async def away(owner: str, **_options: Any) -> Any:
        raise StoreUnavailable("away")

    with caplog.at_level(logging.INFO, "toolbus.store"):
        async with node(store) as runtime:
            session = runtime.start("go")
            await settle()
            [question] = session.pending_approvals
            journal.waiting = away
            assert await Client(store).request(session.request_id).approve(question) == "queued"
            journal.waiting = waiting
            assert (await session.result()).ok
    assert [each.getMessage() for each in caplog.records if "inputs from other processes" in each.getMessage()] == [
        "the store failed, and inputs from other processes wait until it answers: away",
        "the store answers again, and inputs from other processes are read",
    ]


DONE = text("Done.")


def handing_over(store: MemoryStore, inner: Lab, *asked: Any, last: Any = DONE, **options: Any) -> Runtime:
    """A runtime whose model hands a task to a sub-request, which calls a tool that needs approval, once for each."""
    below = Runtime(
        ScriptedProvider(lambda request: (calls(*asked), text("Inside."))[request.round]),
        tools=[inner.tool("wipe", 1, needs_approval=True), inner.tool("look", 20), External],
    )
    middle = Runtime(
        ScriptedProvider(lambda request: (calls(("pass_on", {"task": "x"})), text("Between."))[request.round]),
        tools=[below.as_tool("pass_on", "Pass it on.")],
    )
    model = ScriptedProvider(lambda request: (calls(("hand_over", {"task": "x"})), last)[request.round])
    if _relays:
        options.setdefault("relay", _relays[0])
    tools = [middle.as_tool("hand_over", "Hand it over.")]
    return Runtime(model, tools=tools, store=store, on_approval="wait", lease_seconds=30, **options)


async def test_the_questions_of_sub_requests_are_found_and_answered_wherever_their_request_runs(where: str) -> None:
    inner = Lab()
    async with handing_over(store_of(), inner, ("wipe", {"n": 1}), ("wipe", {"n": 2})) as runtime:
        session = runtime.start("go")
        await settle()
        async with handle_on(session, runtime, where) as handle:
            first, second = await handle.pending_approvals()
            assert first.request_id == second.request_id != session.request_id
            assert [first.arguments, second.arguments] == [{"n": 1}, {"n": 2}]
            assert await handle.approve(second) == "done"
            await settle()
            assert await handle.pending_approvals() == (first,)
            assert await handle.deny(second) == "ended"
            assert await handle.deny(first, reason="no") == "done"
            result = await handle.result()
            assert (result.outcome, result.text) == ("completed", "Done.")
            assert await handle.approve(first) == "ended"
    [(_, call_id)] = inner.runs
    assert call_id == second.call_id


@pytest.mark.guarantee("G32")
async def test_an_external_call_of_a_sub_request_is_answered_through_the_request_above_it(where: str) -> None:
    requested: list[ToolCallRequested] = []
    async with handing_over(store_of(), Lab(), ("outside", {}), ("look", {"n": 1})) as runtime:
        runtime.bus.connect(ToolCallRequested, requested.append)
        session = runtime.start("go")
        await settle()
        outside, look = requested[-2:]
        async with handle_on(session, runtime, where) as handle:
            with pytest.raises(BusError, match="look is not an external tool"):
                await handle.inject(look.completed("forged"))
            with pytest.raises(BusError, match="no such call"):
                await handle.inject(replace(outside.completed("forged"), call_id="another"))
            answer = outside.completed("42")
            assert await handle.inject(answer) == "done"
            assert await handle.inject(answer) == "done"
            assert (await handle.result()).text == "Done."
            assert await handle.inject(replace(answer, event_id="another")) == "ended"


async def test_an_answer_to_a_call_of_a_sub_request_that_has_ended_is_refused(where: str) -> None:
    requested = list[ToolCallRequested]()
    async with handing_over(store_of(), Lab(), ("outside", {}), last=text("Done.", delays=100)) as runtime:
        runtime.bus.connect(ToolCallRequested, requested.append)
        session = runtime.start("go")
        await settle()
        outside = requested[-1]
        async with handle_on(session, runtime, where) as handle:
            answer = outside.completed("42")
            assert await handle.inject(answer) == "done"
            await settle()
            assert not session.ended
            assert await handle.inject(answer) == "done"
            with pytest.raises(BusError, match="no such call, or the sub-request that made it has ended"):
                await handle.inject(outside.completed("another"))
            await handle.cancel()


async def test_an_answer_to_an_external_call_of_a_sub_request_that_is_gone_is_refused() -> None:
    store, requested = store_of(), list[ToolCallRequested]()
    async with handing_over(store, Lab(), ("outside", {}), drain_seconds=0) as first:
        first.bus.connect(ToolCallRequested, requested.append)
        session = first.start("go")
        await settle()
    handle = Client(store, timeout_seconds=1).request(session.request_id)
    answer = requested[-1].completed("42")
    assert await handle.inject(answer) == "queued"
    async with handing_over(store, Lab(), ("outside", {})) as second:
        [resumed] = await second.resume()
        assert [each.reason for each in (await resumed.result()).tool_calls] == ["interrupted"]
        assert await handle.inject(answer) == "ended"


async def test_events_with_those_of_sub_requests_end_after_the_ending_of_their_own_request() -> None:
    async with handing_over(MemoryStore(), Lab(), ("wipe", {"n": 1})) as runtime:
        session = runtime.start("go")
        handle = runtime.request(session.request_id)
        reads, own = handle.events(sub_requests=True), handle.events()
        await settle()
        session.approve(*session.pending_approvals)
        ended = [each.request_id async for each in reads if isinstance(each, RequestCompleted)]
        assert (len(ended), ended[-1]) == (3, session.request_id)
        assert {each.request_id async for each in own} == {session.request_id}


async def test_the_question_of_a_sub_request_ends_with_the_process_that_ran_it() -> None:
    """A tool that may not run twice is not run again, so nobody asks the question once more."""
    inner, store = Lab(), store_of()
    async with handing_over(store, inner, ("wipe", {"n": 1}), drain_seconds=0) as first:
        session = first.start("go")
        await settle()
    handle = Client(store, timeout_seconds=1).request(session.request_id)
    [question] = await handle.pending_approvals()
    assert await handle.approve(question) == "queued"
    async with handing_over(store, inner, ("wipe", {"n": 1})) as second:
        [resumed] = await second.resume()
        result = await resumed.result()
        await settle()
        assert await handle.pending_approvals() == ()
        assert await handle.approve(question) == "ended"
    assert ([each.reason for each in result.tool_calls], inner.runs) == (["interrupted"], [])


# ------------------------------------------------------------------------------------------------ watching


async def test_the_events_of_another_process_are_those_of_the_session_and_its_signals_need_a_relay(where: str) -> None:
    async with node(store_of(), calls(("look", {"n": 1})), text("Done.", 3)) as runtime:
        session = runtime.start("go")
        reads = session.events()
        await settle()
        async with handle_on(session, runtime, where) as handle:
            events = [each async for each in handle.events()]
            own = [each async for each in reads]
            late = [each async for each in handle.events()]
    facts = [each for each in own if each.is_fact]
    assert any(isinstance(each, MessageAppended) for each in facts)
    assert [each for each in events if each.is_fact] == facts
    assert [each for each in late if each.is_fact] == facts
    assert any(isinstance(each, TextDelta) for each in events) == (where in {"here", "relayed"})


async def test_a_reader_comes_back_at_every_event_in_another_process_and_misses_no_fact() -> None:
    async with node(store_of(), calls(("look", {"n": 1}), ("look", {"n": 2})), text("Done.", 3)) as runtime:
        session = runtime.start("go")
        cursors: list[str] = []
        reads = session.events()
        own: list[Event] = []
        async for event in reads:
            own.append(event)
            cursors.append(reads.cursor)
        facts = [each for each in own if each.is_fact]
        for number, cursor in enumerate(cursors, 1):
            read = sum(each.is_fact for each in own[:number])
            again = Client(runtime.store).request(session.request_id).events(after=cursor)
            rest = [each async for each in again]
            assert rest == facts[read:]
            assert not rest or again.cursor.partition(".")[0] == str(len(facts))


async def test_events_of_some_kinds_come_alone_and_have_no_cursor(where: str) -> None:
    async with node(store_of(), calls(("look", {"n": 1})), text("Done.")) as runtime:
        session = runtime.start("go")
        await settle()
        async with handle_on(session, runtime, where) as handle:
            reads = handle.events(ToolCallRequested, RequestCompleted)
            assert [type(each) async for each in reads] == [ToolCallRequested, RequestCompleted]
            with pytest.raises(BusError, match="no cursor"):
                _ = reads.cursor


async def test_from_now_on_only_later_events_come(where: str) -> None:
    async with node(store_of(), calls(("look", {"n": 1})), text("Done.")) as runtime:
        session = runtime.start("go")
        await settle()
        async with handle_on(session, runtime, where) as handle:
            reads, found = handle.events(after="now"), list[Event]()
            async with anyio.create_task_group() as tasks:

                async def read() -> None:
                    found.extend([each async for each in reads])

                tasks.start_soon(read)
                await settle()
                await session.result()
    assert not any(isinstance(each, ToolCallRequested) for each in found)
    assert isinstance(found[-1], RequestCompleted)


async def test_the_text_of_another_process_comes_reply_by_reply(where: str) -> None:
    async with node(store_of(), calls(("look", {"n": 1}), text="Let me see."), text("It is so.", 3)) as runtime:
        session = runtime.start("go")
        await settle()
        async with handle_on(session, runtime, where) as handle:
            assert "".join([each async for each in handle.text()]) == "Let me see.\n\nIt is so."
            assert "".join([each async for each in handle.text(final_only=True)]) == "It is so."


@pytest.mark.parametrize("after", ["", "now"])
async def test_a_reader_continues_where_its_request_moves(after: str) -> None:
    store, lab = store_of(), Lab()
    steps = (calls(("look", {"n": 1})), calls(("look", {"n": 2})), text("Done."))
    found: list[Event] = []
    async with node(store) as heir:
        async with node(store, *steps, lab=lab, drain_seconds=0) as old:
            session = old.start("go")
            await settle()
            reads = old.request(session.request_id).events(after=after)
            waits = old.request(session.request_id).result
            async with anyio.create_task_group() as tasks:

                async def read() -> None:
                    found.extend([each async for each in reads])

                async def wait() -> None:
                    assert (await waits()).text == "Done."

                tasks.start_soon(read)
                tasks.start_soon(wait)
                await advance(22)
                await old.drain()
                heir.providers = old.providers
                await heir.resume()
        stored: Any = store.journal
        facts = [each.fact.event_id for each in await stored.facts(session.request_id)]
    heard = [each.event_id for each in found if each.is_fact and not each.is_derived]
    assert heard == (facts if not after else facts[facts.index(heard[0]) :])
    assert len(heard) > 4


async def test_a_reader_from_now_on_gets_what_was_written_while_its_request_moved() -> None:
    store, lab = store_of(), Lab()
    steps = (calls(("look", {"n": 1})), calls(("look", {"n": 2})), text("Done."))
    async with node(store, *steps, lab=lab) as heir:
        async with node(store, *steps, lab=lab, drain_seconds=0) as old:
            session = old.start("go")
            await settle()
            reads = old.request(session.request_id).events(after="now")
            await advance(22)
        await heir.resume()
        await advance(1)
        heard = [each.event_id async for each in reads if each.is_fact and not each.is_derived]
        stored: Any = store.journal
        facts = [each.fact.event_id for each in await stored.facts(session.request_id)]
    assert heard == facts[facts.index(heard[0]) :]


async def test_a_reader_whose_request_moves_into_its_process_and_out_again_gets_each_fact_once() -> None:
    store, lab = store_of(), Lab()
    steps = (calls(("look", {"n": 1})), calls(("look", {"n": 2})), text("Done."))
    heard: list[Event] = []
    async with node(store, *steps, lab=lab) as last, node(store, *steps, lab=lab, drain_seconds=0) as middle:
        async with node(store, *steps, lab=lab, drain_seconds=0) as first:
            session = first.start("go")
            await settle()

        async def read() -> None:
            heard.extend([each async for each in middle.request(session.request_id).events()])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await advance(1)
            await middle.resume()
            await advance(22)
            await middle.drain()
            await last.resume()
            await advance(60)
        stored: Any = store.journal
        facts = [each.fact.event_id for each in await stored.facts(session.request_id)]
    assert [each.event_id for each in heard if each.is_fact and not each.is_derived] == facts


async def test_a_wait_for_an_event_that_is_cancelled_loses_nothing(where: str) -> None:
    async with node(store_of(), calls(("look", {"n": 1})), text("Done.")) as runtime:
        session = runtime.start("go")
        await settle()
        async with handle_on(session, runtime, where) as handle:
            reads, found = handle.events(), list[Event]()
            while True:
                with anyio.move_on_after(0.1), contextlib.suppress(StopAsyncIteration):
                    while True:
                        found.append(await anext(reads))
                if found and isinstance(found[-1], RequestCompleted):
                    break
            facts = [each async for each in session.events() if each.is_fact]
    assert [each for each in found if each.is_fact] == facts


async def test_closed_events_end() -> None:
    async with node(store_of()) as runtime:
        session = runtime.start("go")
        await settle()
        for handle in (runtime.request(session.request_id), Client(runtime.store).request(session.request_id)):
            reads = handle.events()
            await anext(reads)
            await reads.aclose()
            with pytest.raises(StopAsyncIteration):
                await anext(reads)
        assert not runtime.bus.statistics().subscriptions
        session.cancel()


async def test_events_that_are_closed_while_another_task_waits_for_the_next_one_end_in_that_task(where: str) -> None:
    async with node(store_of()) as runtime:
        session = runtime.start("go")
        await settle()
        async with handle_on(session, runtime, where) as handle:
            reads, found = handle.events(), list[Event]()

            async def read() -> None:
                async for event in reads:
                    found.append(event)

            with anyio.fail_after(10):
                async with anyio.create_task_group() as group:
                    group.start_soon(read)
                    await advance(5)
                    before = len(found)
                    reads.close()
            assert before
            assert len(found) == before
            await settle()  # The process that runs the request may be another one.
            assert not runtime.bus.statistics().subscriptions
        session.cancel()


async def test_the_result_of_an_abandoned_request_says_that_its_ending_is_missing() -> None:
    store = store_of()
    async with node(store, drain_seconds=0) as runtime:
        session = runtime.start("go")
        await settle()
    journal: Any = store.journal
    assert await journal.abandon(session.request_id, 1)
    handle = Client(store).request(session.request_id)
    with pytest.raises(Exception, match=r"was abandoned: .* its ending could not be written"):
        await handle.result()
    assert await handle.pending_approvals() == ()
    assert (await handle.cancel()) == "ended"
    assert [each async for each in handle.events()]


async def test_a_structured_output_needs_its_type_for_the_result_only() -> None:
    store = store_of()
    async with node(store, text('{"n": 3}')) as runtime:
        session = runtime.start("go", output=dict[str, int])
        await session.result()
        plain = Client(store).request(session.request_id)
        assert [each async for each in plain.events()]
        with pytest.raises(Exception, match="structured output"):
            await plain.result()
        typed = Client(store, options=lambda _: {"output": dict[str, int]}).request(session.request_id)
        assert (await typed.result()).output == {"n": 3}


async def test_a_handle_shows_where_its_request_is() -> None:
    async with node(store_of()) as runtime:
        session = runtime.start("go")
        await settle()
        name = f"<RequestHandle {session.request_id!r}, "
        assert repr(runtime.request(session.request_id)) == f"{name}here>"
        assert repr(Client(runtime.store).request(session.request_id)) == f"{name}elsewhere>"
        session.cancel()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Client(MemoryStore()), "the store has no journal"),
        (lambda: Client(cast("Any", MemoryStore)), "pass a Store"),
        (lambda: Client(store_of(), inbox_poll_seconds=0), "inbox_poll_seconds"),
        (lambda: node(store_of(), inbox_poll_seconds=-1), "inbox_poll_seconds"),
    ],
)
async def test_wrong_options_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


async def test_a_client_reports_a_store_that_cannot_be_opened_when_it_is_entered(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "no" / "such.db")
    with pytest.raises(StoreError, match="there is no folder"):
        async with Client(store):
            pytest.fail("the client was entered")
    assert not store._writer.is_running, "it is closed"  # pyright: ignore[reportPrivateUsage]


async def test_steering_that_came_in_another_process_is_given_before_the_next_round() -> None:
    store = store_of()
    async with node(store, calls(("look", {"n": 1})), text("Done.")) as runtime:
        session = runtime.start("go")
        await settle()
        heard: list[Event] = []
        runtime.bus.connect(SteeringAdded, heard.append)
        handle = Client(store).request(session.request_id)
        answers: list[Awaitable[Any]] = [handle.steer(str(number)) for number in range(5)]
        for each in answers:
            assert await each == "done"
        result = await session.result()
    said = [each.text for each in result.messages if isinstance(each, UserMessage)]
    assert said == ["go", "0", "1", "2", "3", "4"]
    assert len(heard) == 5


async def test_steering_that_a_session_has_no_place_for_waits_in_the_inbox_and_keeps_its_order() -> None:
    store = store_of()
    journal: Any = store.journal
    script = [calls(("look", {"n": 1})), text("Done.", delays=9), text("All.")]
    async with node(store, *script) as runtime:
        session = runtime.start("go")
        await settle()
        for number in range(99):
            assert session.steer(str(number))
        for number in range(99, 105):
            await journal.send(SteeringAdded(request_id=session.request_id, text=str(number)))
        result = await session.result()
    said = [each.text for each in result.messages if isinstance(each, UserMessage)]
    assert said[1:] == [*map(str, range(105))]


async def test_steering_that_was_sent_later_is_not_given_before_steering_that_had_no_place() -> None:
    store = store_of()
    journal: Any = store.journal
    waiting, pages = journal.waiting, 0

    async def waiting_until_there_is_room(*given: Any, **named: Any) -> Any:
        nonlocal pages
        found = await waiting(*given, **named)
        pages += 1
        if pages == 2:
            await anyio.sleep(15)  # The session takes what waits meanwhile, so it has room for the next page.
        return found

    async with node(store, calls(("look", {"n": 1})), text("Done.", delays=9), text("All.", delays=9)) as runtime:
        session = runtime.start("go")
        await settle()
        for number in range(99):
            assert session.steer(str(number))
        for number in range(99, 99 + INPUTS_AT_ONCE + 5):
            await journal.send(SteeringAdded(request_id=session.request_id, text=str(number)))
        journal.waiting = waiting_until_there_is_room
        result = await session.result()
    said = [each.text for each in result.messages if isinstance(each, UserMessage)]
    assert said[1:] == [*map(str, range(99 + INPUTS_AT_ONCE + 5))]


async def test_inputs_that_wait_together_are_given_in_the_order_in_which_they_were_sent() -> None:
    store = store_of()
    journal: Any = store.journal
    async with node(store, calls(("look", {"n": 1})), text("Done.")) as runtime:
        session = runtime.start("go")
        await settle()
        for number in range(20):
            await journal.send(SteeringAdded(request_id=session.request_id, text=str(number)))
        result = await session.result()
        writer: Any = runtime._journal_writer  # pyright: ignore[reportPrivateUsage]
        assert not writer.received
    said = [each.text for each in result.messages if isinstance(each, UserMessage)]
    assert said == ["go", *map(str, range(20))]


async def test_whoever_asks_for_a_look_hears_when_an_input_waits_no_more_also_of_one_that_is_not_there() -> None:
    store = store_of()
    journal: Any = store.journal
    settled: list[str] = []
    async with node(store, text("Thinking.", 2, delays=20), text("Done."), inbox_poll_seconds=1_000) as runtime:
        session = runtime.start("go")
        await settle()
        steered = SteeringAdded(request_id=session.request_id, text="and Rome?")
        await journal.send(steered)
        writer: Any = runtime._journal_writer  # pyright: ignore[reportPrivateUsage]
        reader = InboxReader(journal, writer, 1_000)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader.run)
            for event_id in (steered.event_id, "not there"):
                reader.look(event_id, lambda event_id=event_id: settled.append(event_id))
            await settle()
            assert settled == ["not there"]
            await session.result()
            await settle()
            assert settled == ["not there", steered.event_id]
            tasks.cancel_scope.cancel()


async def test_a_command_that_waits_in_the_process_of_its_request_is_queued_durably() -> None:
    store = store_of()
    journal: Any = store.journal
    async with node(store, text("Thinking.", 2, delays=20), text("Done.")) as runtime:
        session = runtime.start("go")
        await settle()
        began = anyio.current_time()
        assert await runtime.request(session.request_id).steer("and Rome?") == "queued"
        assert anyio.current_time() == began  # the user's next message is not kept waiting
        owner = (await journal.request(session.request_id)).owner
        [waits] = await journal.waiting(owner)  # another process has it, if this one dies now
        assert waits.text == "and Rome?"
        for handle in (runtime.request(session.request_id), Client(store).request(session.request_id)):
            [pending] = await handle.pending_messages()
            assert (pending.event_id, pending.text) == (waits.event_id, "and Rome?")
            assert pending.conversation_id == session.conversation_id
        result = await session.result()
        assert await runtime.request(session.request_id).pending_messages() == ()
        assert await Client(store).request(session.request_id).pending_messages() == ()
        await advance(1)
        assert (await journal.receipt(session.request_id, waits.event_id)).state == "taken"
        assert [each.text for each in result.messages if isinstance(each, UserMessage)] == ["go", "and Rome?"]


async def test_a_command_to_a_turn_that_waits_for_the_turn_before_it_waits_with_it() -> None:
    async with node(store_of()) as runtime:
        before = runtime.start("go", conversation_id="talk")
        waits = runtime.start("and then?", conversation_id="talk")
        await settle()
        assert await runtime.request(waits.request_id).steer("and Rome?") == "queued"
        before.cancel()
        await waits.accepted()
        await settle()
        assert [each.text for each in waits.messages if isinstance(each, UserMessage)] == [
            "go",
            "and then?",
            "and Rome?",
        ]


async def test_a_busy_requests_inputs_do_not_keep_those_of_others_from_being_read() -> None:
    store = store_of()
    journal: Any = store.journal
    async with node(store, text("Thinking.", 2, delays=600), text("Done.")) as runtime:
        busy = runtime.start("go")
        await settle()
        for number in range(MAX_WAITING_INPUTS):
            await journal.send(SteeringAdded(request_id=busy.request_id, text=str(number)))
        other = runtime.start("go")
        await settle()
        cancelled = CancelRequested(request_id=other.request_id)
        await journal.send(cancelled)
        await advance(5)
        assert other.ended
        busy.cancel()


@pytest.mark.parametrize("fault", ["error", "cancelled"])
async def test_a_reader_whose_first_read_failed_still_gets_only_what_it_lacks(fault: str) -> None:
    store = store_of()
    async with node(store, calls(("look", {"n": 1})), text("Done.")) as runtime:
        session = runtime.start("go")
        reads = session.events()
        for _ in range(4):
            await anext(reads)
        facts = [each async for each in session.events() if each.is_fact]
        journal: Any = store.journal
        read = journal.facts

        async def away(request_id: str, *, start: int = 0) -> Any:
            if fault == "error":
                raise StoreUnavailable("away")
            await anyio.sleep_forever()

        again = Client(store).request(session.request_id).events(after=reads.cursor)
        journal.facts = away
        with anyio.move_on_after(1), contextlib.suppress(StoreUnavailable):
            await anext(again)
        journal.facts = read
        rest = [each async for each in again]
        assert [each.event_id for each in rest] == [each.event_id for each in facts[-len(rest) :]]
        assert 0 < len(rest) < len(facts)


# ------------------------------------------------------------------------------------------- open requests


@pytest.mark.parametrize("from_where", ["a client", "one of the processes"])
async def test_the_open_requests_of_all_processes_are_listed_with_their_questions(from_where: str) -> None:
    store, inner = store_of(), Lab()
    async with node(store, max_sessions=1) as one, handing_over(store, inner, ("wipe", {"n": 1})) as two:
        asks = one.start("erase it", conversation_id="talk")
        await settle()
        queued = one.start("later")
        hands_over = two.start("hand it over")
        async with node(store, text("Hello.")) as three:
            await three.run("Hi")
        await settle()
        listed = Client(store) if from_where == "a client" else one
        found = {each.record.request_id: each for each in await listed.open_requests()}
        expected = {asks.request_id: "running", hands_over.request_id: "running"}
        if listed is one:
            expected[queued.request_id] = "queued"
            assert found[queued.request_id].prompt == "later"
        assert {name: each.state for name, each in found.items()} == expected
        waits, below = found[asks.request_id], found[hands_over.request_id]
        assert (waits.prompt, waits.record.conversation_id) == ("erase it", "talk")
        assert (waits.pending_approvals, below.pending_approvals) == (
            asks.pending_approvals,
            hands_over.pending_approvals,
        )
        assert below.pending_approvals[0].request_id != hands_over.request_id
        assert [each.record.request_id for each in await listed.open_requests(conversation_id="talk")] == [
            asks.request_id
        ]
        assert [each.prompt for each in await listed.open_requests(prefix="ta", limit=1)] == ["erase it"]
        assert await listed.open_requests(conversation_id="talk", prefix="tb") == []
        assert len(await listed.open_requests(limit=1)) == 1
        for each in found.values():
            for question in each.pending_approvals:
                assert await listed.request(each.record.request_id).deny(question) == "done"
        await hands_over.result()
        assert hands_over.request_id not in {each.record.request_id for each in await listed.open_requests()}


async def test_an_open_request_that_no_process_has_is_left_or_parked() -> None:
    store = store_of()
    async with node(store, calls(("outside", {})), text("Done."), drain_seconds=0) as old:
        session = old.start("go")
        await settle()
    [left] = await Client(store).open_requests()
    assert (left.state, left.record.request_id, left.pending_approvals) == ("released", session.request_id, ())
    journal: Any = store.journal
    await journal.take(session.request_id, "somebody", 30)
    await journal.park(session.request_id, 2, 60)
    async with node(store) as runtime:
        assert [each.state for each in await runtime.open_requests()] == ["parked"]
    async with node(MemoryStore()) as runtime:
        session = runtime.start("go")
        await settle()
        [here] = await runtime.open_requests()
        assert (here.state, here.prompt, here.pending_approvals) == ("running", "go", session.pending_approvals)


async def test_only_a_request_that_is_deleted_while_open_requests_are_listed_is_not_among_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = store_of()
    async with node(store, drain_seconds=0) as runtime:
        session, *others = [runtime.start("go"), runtime.start("go"), runtime.start("go")]
        await settle()
    journal: Any = store.journal
    listed = journal.requests

    async def requests(**given: Any) -> Any:
        found = sorted(await listed(**given), key=lambda each: each.request_id != session.request_id)
        await journal.take(session.request_id, "somebody", 30)
        await journal.abandon(session.request_id, 2)
        await store.forget(session.conversation_id)
        return found

    monkeypatch.setattr(journal, "requests", requests)
    found = {each.record.request_id for each in await Client(store).open_requests()}
    assert found == {each.request_id for each in others}


async def test_a_request_whose_journal_cannot_be_read_hides_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of()
    async with node(store, drain_seconds=0) as runtime:
        damaged, whole = runtime.start("a"), runtime.start("b")
        await settle()
    journal: Any = store.journal
    read = journal.facts

    async def facts(request_id: str, *, start: int = 0) -> Any:
        if request_id == damaged.request_id:
            raise StoreDamaged("it is damaged", request_id=request_id)
        return await read(request_id, start=start)

    monkeypatch.setattr(journal, "facts", facts)
    found = {each.record.request_id: each for each in await Client(store).open_requests()}
    assert (found[damaged.request_id].problem, found[damaged.request_id].pending_approvals) == ("it is damaged", ())
    assert (found[whole.request_id].problem, len(found[whole.request_id].pending_approvals)) == ("", 1)
