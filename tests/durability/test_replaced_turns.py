"""Turns that replace the earlier ones of their conversation, in one process and in several."""

from __future__ import annotations

import contextlib
from typing import Any

import anyio
import pytest

from support.journaled import JournaledStore, journal_of
from support.resuming import Wall, virtual_walls
from support.turns import look, prompts
from toolbus import Interceptor, RequestResult, RequestSession, Runtime, ToolContext, tool
from toolbus.core.transcript import validate
from toolbus.errors import ConfigurationError, InboxFull, Overloaded, StoreUnavailable
from toolbus.events import CancelRequested, DeadLetter, Event, ToolCallCompleted
from toolbus.messages import AssistantMessage, Message, UserMessage
from toolbus.protocols import ModelRequest
from toolbus.storage import Entry, Store
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, advance, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()
wall = virtual_walls()
REPLACED = "replaced by a newer message"


@tool
async def work() -> str:
    """Work, and do not stop when that is asked for."""
    with anyio.CancelScope(shield=True):
        await anyio.sleep(30)
    return "worked"


@tool(needs_approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


@tool(background=True)
async def render() -> str:
    """Render for long."""
    await anyio.sleep(1_000)
    return "rendered"


@tool(external=True, background=True)
async def order() -> str:
    """Order something."""
    raise NotImplementedError


TOOLS: dict[str, dict[str, Any]] = {"look": {"seconds": 5}, "work": {}, "pay": {}, "render": {}, "order": {}}


def model() -> ScriptedProvider:
    """Return a model that calls the tools which the prompt names, or looks, and then answers."""

    def answer(request: ModelRequest) -> Any:
        prompt = next(each.text for each in reversed(request.messages) if each.role == "user")
        names = [each for each in prompt.split() if each in TOOLS] or ["look"]
        if request.round == len(names):
            return text(f"{prompt} of {len(prompts(request.messages))}")
        return calls((names[request.round], TOOLS[names[request.round]]))

    return ScriptedProvider(answer)


def node(store: Store | None, **options: Any) -> Runtime:
    """Return a process whose turns replace each other."""
    given: dict[str, Any] = {"on_busy": "replace", "on_approval": "wait", "lease_seconds": 30, **options}
    return Runtime(model(), tools=[look, work, pay, render, order], store=store, **given)


async def history(store: Store) -> list[Message]:
    messages = [*await store.history("c")]
    validate(messages)
    return messages


async def ended(*sessions: RequestSession) -> list[str]:
    """Return how each of the requests has ended: its answer, or the reason why it has none."""
    results: list[RequestResult[Any]] = [await each.result() for each in sessions]
    assert {each.reason for each in results if each.outcome == "cancelled"} <= {REPLACED}
    return [each.text if each.outcome == "completed" else each.reason for each in results]


STORES = pytest.mark.parametrize("store_kind", [MemoryStore, JournaledStore])


# ------------------------------------------------------------------------------------------------------ one process


@STORES
async def test_a_newer_turn_ends_the_one_that_runs_and_all_that_wait_and_has_what_was_finished(
    store_kind: type[MemoryStore],
) -> None:
    store = store_kind()
    async with node(store) as runtime:
        first = runtime.start("one", conversation_id="c")
        await advance(1)
        second = runtime.start("two", conversation_id="c", on_busy="queue")
        third = runtime.start("three", conversation_id="c", on_busy="queue")
        elsewhere = runtime.start("one", conversation_id="d")
        fourth = runtime.start("four", conversation_id="c")
        await advance(5)
        assert await ended(first, second, third, fourth) == [REPLACED] * 3 + ["four of 2"]
        assert await ended(elsewhere) == ["one of 1"]
        assert (await first.result()).explanation == "The request was cancelled: replaced by a newer message."
    messages = await history(store)
    assert prompts(messages) == ["one", "four"]
    assert ['"reason":"cancelled"' in each.text for each in messages if each.role == "tool"] == [True, False]


async def test_a_turn_that_is_being_written_is_cancelled_once() -> None:
    async def slow(_entry: Entry) -> None:
        await anyio.sleep(1)

    store = JournaledStore()
    async with node(store) as runtime:
        first = runtime.start("one", conversation_id="c")
        await advance(1)
        asked: list[Event] = []
        runtime.bus.connect((CancelRequested, DeadLetter), asked.append)
        store.before = slow
        await advance(4.5)
        second = runtime.start("two", conversation_id="c")
        await advance(0.5)
        assert not first.ended
        await advance(10)
        assert await ended(first, second) == [REPLACED, "two of 2"]
    assert [each.type for each in asked] == ["cancel_requested"]


async def test_run_returns_the_replaced_turn_as_cancelled_and_a_request_may_choose_for_itself() -> None:
    results: list[RequestResult[Any]] = []
    async with node(None, on_busy="queue") as runtime, anyio.create_task_group() as tasks:

        async def ask() -> None:
            results.append(await runtime.run("one", conversation_id="c"))

        tasks.start_soon(ask)
        await advance(1)
        newer = await runtime.run("two", conversation_id="c", on_busy="replace")
    assert [(each.outcome, each.reason) for each in results] == [("cancelled", REPLACED)]
    assert newer.text == "two of 2"


async def test_a_turn_that_cannot_be_started_replaces_nothing() -> None:
    async with node(None, max_sessions=1, max_queued=1) as runtime:
        first = runtime.start("one", conversation_id="c")
        await settle()
        with pytest.raises(ConfigurationError):
            runtime.start("", conversation_id="c")
        waiting = runtime.start("one", conversation_id="d")
        with pytest.raises(Overloaded):
            runtime.start("two", conversation_id="c")
        await advance(12)
        assert await ended(first, waiting) == ["one of 1"] * 2


@STORES
@pytest.mark.parametrize("name", ["work", "pay", "render"])
async def test_neither_a_tool_that_does_not_stop_nor_a_question_nor_a_background_call_delays_the_newer_turn(
    name: str, store_kind: type[MemoryStore]
) -> None:
    store = store_kind()
    async with node(store) as runtime:
        first = runtime.start(name, conversation_id="c")
        await advance(1)
        assert (len(first.pending_approvals), first.ended) == (name == "pay", False)
        second = runtime.start("two", conversation_id="c")
        await settle()
        assert (first.ended, runtime.pending_approvals()) == (True, ())
        await advance(5)
        assert await ended(first, second) == [REPLACED, "two of 2"]
        await advance(30)  # The tool that did not stop ends.
    assert prompts(await history(store)) == [name, "two"]


async def test_the_answer_to_a_background_call_of_a_replaced_turn_is_a_note_of_a_later_one() -> None:
    store = JournaledStore()
    async with node(store) as runtime:
        first = runtime.start("order", conversation_id="c")
        await settle()
        [call] = first.snapshot().view.state.open_calls
        second = runtime.start("two", conversation_id="c")
        await advance(1)
        answer = ToolCallCompleted(request_id=first.request_id, call_id=call, name="order", content="ordered", at=0)
        assert await runtime.request(first.request_id).inject(answer) == "queued"
        await advance(5)
        await runtime.run("three", conversation_id="c")
    assert await ended(first, second) == [REPLACED, "two of 2"]
    assert "ordered" in repr([each for each in await history(store) if each.role == "system"])


async def test_a_replacement_that_is_cancelled_while_it_waits_leaves_nothing() -> None:
    store = JournaledStore()
    async with node(store, max_sessions=1) as runtime:
        first = runtime.start("one", conversation_id="c")
        await advance(1)
        elsewhere = runtime.start("one", conversation_id="d")  # It gets the slot.
        second = runtime.start("two", conversation_id="c")
        await settle()
        assert (first.ended, second.ended) == (True, False)
        second.cancel("never mind")
        assert (await second.result()).reason == "never mind"
        await advance(6)
        assert await ended(first, elsewhere) == [REPLACED, "one of 1"]
    assert prompts(await history(store)) == ["one"]


async def test_sub_requests_of_a_replaced_turn_end_with_it() -> None:
    reached: list[str] = []

    @tool
    async def delegate(context: ToolContext[Any]) -> str:
        """Ask another model."""
        try:
            return (await context.ask("look", tools=[look], provider=model())).text
        finally:
            reached.append("the end")

    script = ScriptedProvider([calls(("delegate", {})), text("Done.")])
    async with Runtime(script, tools=[delegate], on_busy="replace") as runtime:
        first = runtime.start("one", conversation_id="c")
        await advance(1)
        second = runtime.start("two", conversation_id="c")
        await settle()
        assert reached == ["the end"]
        assert await ended(first, second) == [REPLACED, "Done."]


@STORES
async def test_a_runtime_that_drains_ends_the_replaced_turn_and_the_newer_one(store_kind: type[MemoryStore]) -> None:
    store = store_kind()
    async with node(store, drain_seconds=2) as runtime:
        first = runtime.start("work", conversation_id="c")
        await advance(1)
        second = runtime.start("two", conversation_id="c")
    assert await ended(first) == [REPLACED]
    result = await second.result()
    assert (result.outcome, result.reason) == ("cancelled", "the runtime is closing")
    assert result.resumable == (store_kind is JournaledStore)
    if result.resumable:
        async with node(store) as runtime:
            await runtime.resume()
            await advance(6)
            assert (await runtime.request(second.request_id).result()).text == "two of 2"
    assert prompts(await history(store)) == ["work", "two"]


# -------------------------------------------------------------------------------------------------- several processes


async def test_a_newer_turn_ends_the_one_in_another_process_and_has_what_was_finished() -> None:
    store = JournaledStore()
    async with node(store) as here, node(store) as there:
        first = here.start("one", conversation_id="c")
        await advance(1)
        second = there.start("two", conversation_id="c")
        await advance(6)
        assert await ended(first, second) == [REPLACED, "two of 2"]
    assert prompts(await history(store)) == ["one", "two"]
    [cancelled] = [each for each in store.entries if each.ending == "cancelled"]
    assert len(cancelled.received) == 1  # It came as a command of another process does.


@pytest.mark.parametrize("on_busy", ["queue", "replace"])
async def test_turns_that_wait_in_another_process_are_replaced_whichever_of_them_gets_the_turn_first(
    on_busy: Any,
) -> None:
    for _ in range(4):
        store = JournaledStore()
        assert await journal_of(store).take_turn("c", "one that does not begin", "another process", 3)
        async with node(store) as one, node(store) as two:
            waiting = [one.start("zero", conversation_id="c", on_busy="queue")]
            await advance(1)
            waiting.append(one.start("one", conversation_id="c", on_busy=on_busy))
            await advance(0.5)
            second = two.start("two", conversation_id="c")
            await advance(12)
            assert await ended(*waiting) == [REPLACED] * 2
            assert (await second.result()).outcome == "completed"
        assert prompts(await history(store))[-1] == "two"


async def test_of_two_replacements_at_the_same_moment_one_ends_the_other() -> None:
    for busy in (True, False):
        store = JournaledStore()
        async with node(store) as one, node(store) as two, node(store) as three:
            first = one.start("one", conversation_id="c")
            await advance(1 if busy else 6)
            sessions = [two.start("two", conversation_id="c"), three.start("three", conversation_id="c")]
            await advance(20)
            assert (await first.result()).outcome == ("cancelled" if busy else "completed")
            assert sorted([(await each.result()).outcome for each in sessions]) == ["cancelled", "completed"]


async def test_a_turn_in_another_process_ends_also_while_the_newer_one_waits_for_a_slot() -> None:
    store = JournaledStore()
    async with node(store) as here, node(store, max_sessions=1) as there:
        first = here.start("work", conversation_id="c")
        other = there.start("one", conversation_id="d")
        await advance(1)
        second = there.start("two", conversation_id="c")
        await advance(1)
        assert (first.ended, other.ended) == (True, False)
        await advance(10)
        assert await ended(first, other, second) == [REPLACED, "one of 1", "two of 2"]


async def test_a_request_that_no_process_runs_is_cancelled_when_a_process_continues_it() -> None:
    store = JournaledStore()
    async with node(store, drain_seconds=0) as old:
        left = old.start("pay", conversation_id="c")
        await settle()
    async with node(store) as runtime:
        second = runtime.start("two", conversation_id="c")
        await advance(6)
        assert await ended(second) == ["two of 1"]
        await runtime.resume()
        await advance(2)
        result = await runtime.request(left.request_id).result()
        assert (result.outcome, result.reason) == ("cancelled", REPLACED)
    assert prompts(await history(store)) == ["two", "pay"]


async def test_a_parked_request_is_woken_to_end() -> None:
    store = JournaledStore()
    async with node(store, park_after_seconds=10) as here, node(store) as there:
        await here.resume(watch=True)
        parked = here.start("pay", conversation_id="c")
        await advance(15)
        assert (await parked.result()).reason == "parked"
        second = there.start("two", conversation_id="c")
        await advance(10)
        assert await ended(second) == ["two of 1"]
        result = await here.request(parked.request_id).result()
        assert (result.outcome, result.reason) == ("cancelled", REPLACED)
        assert not await there.open_requests()


@pytest.mark.guarantee("G16")
async def test_a_continued_request_that_is_replaced_while_it_waits_for_its_turn_keeps_what_was_finished() -> None:
    store = JournaledStore()

    async with node(store, drain_seconds=0) as old:
        old.start("look work", conversation_id="c")
        await advance(6)
    async with node(store, on_busy="queue") as here, node(store) as there:
        second = here.start("work", conversation_id="c")
        await advance(1)
        [continued] = await there.resume()
        await advance(1)
        assert not continued.ended
        third = there.start("three", conversation_id="c")
        await advance(10)
        assert await ended(continued, second, third) == [REPLACED, REPLACED, "three of 3"]
    messages = await history(store)
    assert prompts(messages) == ["look work", "work", "three"]
    assert next(each.text for each in messages if each.role == "tool") == "seen"


async def test_the_turn_of_a_dead_process_is_replaced_once_its_lease_has_ended() -> None:
    store = JournaledStore()
    async with node(store, drain_seconds=0) as old:
        left = old.start("one", conversation_id="c")
        await settle()
    journal = journal_of(store)
    held = await journal.take(left.request_id, "one that dies", 30)
    assert held is not None
    assert await journal.take_turn("c", left.request_id, "one that dies", 30)
    async with node(store) as there:
        second = there.start("two", conversation_id="c")
        await advance(29)
        assert not second.snapshot().facts
        await advance(7)
        assert await ended(second) == ["two of 1"]
        [continued] = await there.resume()
        await advance(2)
        assert await ended(continued) == [REPLACED]


async def test_a_store_that_is_away_fails_the_newer_turn_and_ends_nothing() -> None:
    store = JournaledStore()
    journal: Any = journal_of(store)
    async with node(store) as here, node(store) as there:
        first = here.start("one", conversation_id="c")
        await settle()

        async def away(*_given: Any, **_options: Any) -> Any:
            raise StoreUnavailable("no answer")

        with contextlib.ExitStack() as stack:
            for name in ("requests", "take_turn"):
                stack.callback(setattr, journal, name, getattr(journal, name))
                setattr(journal, name, away)
            with pytest.raises(StoreUnavailable):
                await there.run("two", conversation_id="c")
        await advance(6)
        assert await ended(first) == ["one of 1"]


async def test_an_inbox_that_is_full_or_a_store_that_is_away_is_asked_again() -> None:
    store = JournaledStore()
    journal: Any = journal_of(store)
    send, faults = journal.send, [InboxFull("too many inputs"), StoreUnavailable("no answer")]

    async def fails_at_first(event: Any) -> Any:
        if faults:
            raise faults.pop()
        return await send(event)

    journal.send = fails_at_first
    async with node(store) as here, node(store) as there:
        first = here.start("work", conversation_id="c")
        await advance(1)
        second = there.start("two", conversation_id="c")
        await advance(8)
        assert (faults, await ended(first, second)) == ([], [REPLACED, "two of 2"])


async def test_many_turns_that_come_at_once_replace_those_before_them() -> None:
    async with node(JournaledStore()) as here:
        turns = [here.start(f"turn {each}", conversation_id="c") for each in range(120)]
        assert {*await ended(*turns[:-1])} == {REPLACED}
        assert (await turns[-1].result()).ok


async def test_where_the_store_has_no_inbox_a_newer_turn_waits_for_another_process() -> None:
    store = JournaledStore()
    journal: Any = journal_of(store)

    class Plain:
        def __getattr__(self, name: str) -> Any:
            if name in ("send", "receipt", "waiting", "settle"):
                raise AttributeError(name)
            return getattr(journal, name)

    setattr(store, "_journal", Plain())  # noqa: B010
    async with node(store) as here, node(store) as there:
        first = here.start("one", conversation_id="c")
        await settle()
        second = there.start("two", conversation_id="c")
        await advance(12)
        assert await ended(first, second) == ["one of 1", "two of 2"]


class Slow(Interceptor):
    """A guardrail that takes a second for each prompt."""

    async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
        del context
        await anyio.sleep(1)
        return prompt


async def test_a_turn_in_another_process_that_has_not_begun_yet_ends_when_it_has() -> None:
    store = JournaledStore()
    async with node(store, interceptors=[Slow()]) as here, node(store) as there:
        first = here.start("one", conversation_id="c")
        await advance(0.5)
        second = there.start("two", conversation_id="c")
        await advance(8)
        assert await ended(first, second) == [REPLACED, "two of 2"]


async def test_clocks_that_differ_do_not_let_an_older_turn_replace_a_newer_one(wall: Wall) -> None:
    store = JournaledStore()
    await store.remember("c", [UserMessage(content="zero"), AssistantMessage(text="0")])
    async with node(store) as here, node(store) as there:
        now = wall()
        wall.put_to(now + 3_600)  # The clock of the process `here` is an hour fast.
        first = here.start("one", conversation_id="c")
        await settle()
        wall.put_to(now)
        second = there.start("two", conversation_id="c")
        await advance(7)
        assert await ended(first, second) == [REPLACED, "two of 3"]
