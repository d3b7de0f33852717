"""Turns of one conversation in several processes: one at a time, each with the messages of those before (G34)."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import anyio
import pytest

from support.journaled import JournaledStore, journal_of
from support.resuming import virtual_walls
from support.turns import look, prompts
from toolbus import Interceptor, Limits, RequestSession, Runtime, ToolContext, tool
from toolbus.errors import ConfigurationError, ConversationBusy, StoreUnavailable, TurnLost
from toolbus.messages import AssistantMessage, Message, UserMessage
from toolbus.testing import ScriptedProvider, advance, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()
wall = virtual_walls()
pytestmark = pytest.mark.guarantee("G34")


def node(store: JournaledStore, seconds: float = 5, *, lease_seconds: float = 30, **options: Any) -> Runtime:
    """A process whose turns take `seconds`, and whose answers say how many messages the model was sent."""
    model = ScriptedProvider(
        lambda request: (
            text(f"after {len(request.messages)}") if request.round else calls(("look", {"seconds": seconds}))
        )
    )
    return Runtime(model, tools=[look], store=store, lease_seconds=lease_seconds, **options)


async def history(store: JournaledStore) -> list[Message]:
    return [*await store.history("c")]


async def test_a_turn_waits_for_the_one_in_another_process_and_has_its_messages() -> None:
    store = JournaledStore()
    async with node(store) as here, node(store) as there:
        first = here.start("one", conversation_id="c")
        await settle()
        second = there.start("two", conversation_id="c")
        await advance(4.9)
        assert (second.snapshot().facts, first.snapshot().result) == ([], None)
        await advance(1.2)
        assert (await first.result()).text == "after 3"
        await advance(5)
        assert (await second.result()).text == "after 7"
    assert prompts(await history(store)) == ["one", "two"]


async def test_a_turn_that_waits_asks_at_once_and_then_at_least_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    store = JournaledStore()
    async with node(store) as here, node(store) as there:
        here.start("one", conversation_id="c")
        await settle()
        journal: Any = journal_of(store)
        take, asked = journal.take_turn, list[float]()

        async def noted(*turn: Any) -> bool:
            asked.append(anyio.current_time())
            return await take(*turn)

        monkeypatch.setattr(journal, "take_turn", noted)
        began = anyio.current_time()
        there.start("two", conversation_id="c")
        await advance(30)
    assert asked[0] == began
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    longest = [min(0.1 * 2**number, 1.0) for number in range(len(pauses))]
    assert len(pauses) > 6
    assert all(most / 2 <= pause <= most + 0.001 for pause, most in zip(pauses, longest, strict=True))


async def test_other_conversations_do_not_wait() -> None:
    store = JournaledStore()
    async with node(store) as here, node(store) as there:
        here.start("one", conversation_id="c")
        await settle()
        other = there.start("two", conversation_id="d")
        await advance(5)
        assert (await other.result()).text == "after 3"


async def test_turns_of_three_processes_never_overlap() -> None:
    store = JournaledStore()
    async with node(store, 1) as one, node(store, 1) as two, node(store, 1) as three:
        sessions = [
            runtime.start(f"{name}{number}", conversation_id="c")
            for number in range(5)
            for name, runtime in (("a", one), ("b", two), ("c", three))
        ]
        await advance(60)
        results = [await each.result() for each in sessions]
    assert sorted(each.history_count for each in results) == [4 * number for number in range(15)]
    messages = await history(store)
    assert [each.text for each in messages if each.role == "assistant"][1::2] == [
        f"after {4 * n + 3}" for n in range(15)
    ]
    for name in "abc":
        assert [each for each in prompts(messages) if each[0] == name] == [f"{name}{number}" for number in range(5)]


async def test_a_first_turn_without_an_id_is_waited_for_too() -> None:
    store = JournaledStore()
    async with node(store) as here, node(store) as there:
        first = here.start("one")
        await settle()
        second = there.start("two", conversation_id=first.conversation_id)
        await advance(20)
        assert (await second.result()).history_count == 4


async def test_where_it_must_not_wait_it_is_refused_and_nothing_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    store = JournaledStore()
    async with node(store) as here, node(store, on_busy="refuse") as there:
        first = here.start("one", conversation_id="c")
        await settle()
        with pytest.raises(
            ConversationBusy, match="'c' has a turn that has not ended yet in another process"
        ) as caught:
            await there.run("two", conversation_id="c")
        await advance(5)
        assert (await first.result()).ok
        assert (await there.run("three", conversation_id="c")).history_count == 4
    assert caught.value.retryable
    assert prompts(await history(store)) == ["one", "three"]
    assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == []
    assert len(await journal_of(store).requests()) == 2


async def test_a_turn_that_is_cancelled_while_it_waits_leaves_nothing() -> None:
    store = JournaledStore()
    async with node(store) as here, node(store) as there:
        first = here.start("one", conversation_id="c")
        await settle()
        second = there.start("two", conversation_id="c")
        await advance(1)
        assert second.cancel("never mind")
        assert (await second.result()).outcome == "cancelled"
        await advance(10)
        assert (await first.result()).ok
        third = there.start("three", conversation_id="c")
        await advance(5)
        assert (await third.result()).history_count == 4


async def test_a_turn_that_cannot_begin_gives_its_place_back_at_once() -> None:
    store = JournaledStore()
    await store.remember("c", [UserMessage(content="zero"), AssistantMessage(text="0")])
    async with node(store) as here, node(store) as there:
        with pytest.raises(ConfigurationError, match="has a history already"):
            await here.run("one", conversation_id="c", history=[UserMessage(content="hi"), AssistantMessage(text="hi")])
        second = there.start("two", conversation_id="c")
        await advance(5)
        assert (await second.result()).history_count == 2


@pytest.mark.parametrize("end", ["cancelled", "no answer"])
async def test_a_turn_that_the_store_gives_without_an_answer_holds_no_other_process_up(end: str) -> None:
    store = JournaledStore()
    journal: Any = journal_of(store)
    take_turn, answers = journal.take_turn, itertools.count()

    async def slow(*wanted: Any) -> bool:
        is_taken: bool = await take_turn(*wanted)
        if next(answers) == 0:
            await anyio.sleep_forever()
        return is_taken

    journal.take_turn = slow
    async with node(store) as here, node(store) as there:
        first = here.start("one", conversation_id="c")
        await advance(1)
        if end == "cancelled":
            first.cancel("never mind")
        assert (await first.result()).outcome == ("cancelled" if end == "cancelled" else "failed")
        second = there.start("two", conversation_id="c")
        await advance(2)
        assert second.snapshot().facts


@pytest.mark.parametrize("on_store_failure", ["stop", "warn"])
async def test_a_turn_whose_first_step_the_store_refuses_holds_no_other_process_up(on_store_failure: Any) -> None:
    async def refuse(_entry: Any) -> None:
        store.before = None
        raise StoreUnavailable("the disk is full")

    store = JournaledStore(refuse)
    async with node(store, 0, on_store_failure=on_store_failure) as here, node(store) as there:
        first = await here.start("one", conversation_id="c").result()
        assert first.ok == (on_store_failure == "warn")
        second = there.start("two", conversation_id="c")
        await advance(2)
        assert second.snapshot().facts


class Guard(Interceptor):
    """A guardrail that takes some time for each prompt."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
        del context
        await anyio.sleep(self.seconds)
        return prompt


async def test_a_turn_whose_guardrail_takes_longer_than_a_lease_keeps_its_place() -> None:
    store = JournaledStore()
    async with node(store, interceptors=[Guard(100)]) as here, node(store) as there:
        first = here.start("one", conversation_id="c")
        await settle()
        second = there.start("two", conversation_id="c")
        await advance(99)
        assert not second.snapshot().facts
        await advance(6)
        assert (await first.result()).ok
        await advance(6)
        assert (await second.result()).history_count == 4


async def away(*_given: Any) -> bool:
    raise StoreUnavailable("no answer")


async def unheard(*_given: Any) -> bool:
    """Renew nothing, as in a process that is suspended."""
    return False


async def test_a_process_that_was_suspended_begins_nothing_in_a_turn_that_another_was_given() -> None:
    store = JournaledStore()
    async with node(store, interceptors=[Guard(100)]) as here, node(store) as there:
        setattr(journal_of(store), "renew_turn", unheard)  # noqa: B010 -- a method of one object
        first = here.start("one", conversation_id="c")
        await settle()
        second = there.start("two", conversation_id="c")
        await advance(40)
        assert (await second.result()).ok
        await advance(61)
        result = await first.result()
        assert isinstance(result.error, TurnLost)
        assert (result.outcome, result.resumable, result.error.retryable) == ("failed", False, True)
        assert here.health().reasons == ()
        assert await journal_of(store).request(first.request_id) is None
    assert prompts(await history(store)) == ["two"]


async def test_a_process_that_was_suspended_writes_nothing_more_in_a_turn_that_another_was_given() -> None:
    store = JournaledStore()
    limits = Limits(tool_timeout_seconds=100)
    async with node(store, 60, limits=limits) as here, node(store, limits=limits) as there:
        renew = journal_of(store).renew
        setattr(journal_of(store), "renew", unheard)  # noqa: B010 -- a method of one object
        first = here.start("one", conversation_id="c")
        await settle()
        second = there.start("two", conversation_id="c")
        await advance(32)
        setattr(journal_of(store), "renew", renew)  # noqa: B010 -- a method of one object
        await advance(30)
        assert (await second.result()).history_count == 0
        result = await first.result()
        assert (result.outcome, result.resumable) == ("cancelled", True)
        [continued] = await there.resume()
        await advance(70)
        assert (await continued.result()).ok
    assert prompts(await history(store)) == ["two", "one"]


async def test_a_process_that_dies_holds_the_next_turn_up_for_its_lease() -> None:
    store = JournaledStore()
    async with node(store, drain_seconds=0) as old:
        left = old.start("one", conversation_id="c")
        await settle()
    journal = journal_of(store)
    assert await journal.take(left.request_id, "one that dies", 30) is not None
    assert await journal.take_turn("c", left.request_id, "one that dies", 30)
    async with node(store) as there:
        second = there.start("two", conversation_id="c")
        await advance(29)
        assert not second.snapshot().facts
        await advance(7)
        assert (await second.result()).ok


async def test_a_request_that_was_left_waits_when_it_is_continued_while_a_later_turn_runs() -> None:
    store = JournaledStore()
    async with node(store, drain_seconds=0) as old:
        left = old.start("one", conversation_id="c")
        await settle()
    async with node(store, 10) as here, node(store) as there:
        second = here.start("two", conversation_id="c")
        await settle()
        [continued] = await there.resume()
        await advance(8)
        assert continued.snapshot().result is None
        await advance(3)
        assert (await second.result()).history_count == 0
        await advance(6)
        result = await continued.result()
        assert (continued.request_id, result.outcome) == (left.request_id, "completed")
    assert prompts(await history(store)) == ["two", "one"]


@pytest.mark.guarantee("G32")
async def test_a_decision_that_comes_while_a_continued_request_waits_for_its_turn_counts() -> None:
    store = JournaledStore()

    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    model = ScriptedProvider([calls(("pay", {})), text("Paid.")])
    async with Runtime(model, tools=[pay], store=store, drain_seconds=0, on_approval="wait") as old:
        left = old.start("one", conversation_id="c")
        await settle()
        [question] = left.pending_approvals
    async with (
        node(store, 10) as here,
        Runtime(ScriptedProvider([text("Paid.")]), tools=[pay], store=store, on_approval="wait") as there,
        Runtime(ScriptedProvider([]), tools=[pay], store=store, on_approval="wait") as third,
    ):
        second = here.start("two", conversation_id="c")
        await settle()
        [continued] = await there.resume()
        await advance(2)
        assert await third.request(left.request_id).approve(question) == "queued"
        await advance(20)
        assert (await second.result()).ok
        result = await continued.result()
        assert (result.outcome, result.text) == ("completed", "Paid.")
        assert [each.reason for each in result.tool_calls] == [""]


async def test_two_that_were_left_continue_in_two_processes_one_after_the_other() -> None:
    store = JournaledStore()
    async with node(store, drain_seconds=0) as old:
        old.start("one", conversation_id="c")
        await settle()
    async with node(store, drain_seconds=0) as old:
        old.start("two", conversation_id="c")
        await settle()
    async with node(store) as here, node(store) as there:
        [first] = await here.resume(limit=1)
        [second] = await there.resume()
        await advance(30)
        assert {(await each.result()).outcome for each in (first, second)} == {"completed"}
    assert prompts(await history(store)) == ["one", "two"]


@pytest.mark.parametrize("max_sessions", [1, 8])
@pytest.mark.parametrize("in_front", ["a new turn", "a continued one"])
async def test_the_oldest_request_is_continued_also_where_its_process_has_others_that_wait(
    in_front: str, max_sessions: int
) -> None:
    """Another process waits for the oldest one, and those in front of it here wait for that process."""
    store = JournaledStore()
    for prompt in ["one", "two", "three"][: 2 if in_front == "a new turn" else 3]:
        async with node(store, drain_seconds=0) as old:
            left = old.start(prompt, conversation_id="c")
            await settle()
            if prompt == "one":
                oldest = left.request_id
    held = await journal_of(store).take(oldest, "another process", 300)
    assert held is not None
    async with node(store) as here, node(store, max_sessions=max_sessions) as there:
        sessions = [*await here.resume(limit=1)]
        if in_front == "a new turn":
            sessions.append(there.start("three", conversation_id="c"))
        else:
            sessions += await there.resume()
        await advance(20)
        assert (there.statistics().running, there.statistics().queued) == (0, 1)
        await journal_of(store).release(oldest, held.epoch)
        sessions += await there.resume()
        await advance(40)
        results = [await each.result() for each in sessions]
    assert [each.outcome for each in results] == ["completed"] * 3
    assert prompts(await history(store)) == ["one", "two", "three"]


async def test_a_turn_that_waits_for_another_process_takes_no_slot_from_other_conversations() -> None:
    store = JournaledStore()
    async with node(store) as here, node(store, max_sessions=1) as there:
        here.start("one", conversation_id="c")
        await settle()
        waiting, other = there.start("two", conversation_id="c"), there.start("three", conversation_id="d")
        await advance(0.1)
        assert (waiting.snapshot().facts, other.snapshot().facts != []) == ([], True)
        await advance(20)
        assert (await waiting.result()).history_count == 4


async def test_requests_that_continue_in_one_process_keep_their_order_while_they_wait_for_another() -> None:
    for number in range(10):
        store = JournaledStore()
        for prompt in ["one", "two", "three"]:
            async with node(store, drain_seconds=0) as old:
                old.start(prompt, conversation_id="c")
                await advance(0.1)
        async with node(store) as here, node(store) as there:
            sessions = [*await here.resume(limit=1), *await there.resume()]
            await advance(40 + number / 10)
            assert [(await each.result()).outcome for each in sessions] == ["completed"] * 3
        assert prompts(await history(store)) == ["one", "two", "three"]


async def test_a_turn_that_waits_for_another_process_is_not_overtaken_by_all_that_come_later() -> None:
    store = JournaledStore()
    async with node(store) as here, node(store, 10, max_sessions=1) as there:
        here.start("one", conversation_id="c")
        await settle()
        waiting = there.start("two", conversation_id="c")
        others = [there.start("more", conversation_id=f"d{number}") for number in range(5)]
        await advance(25)
        assert waiting.snapshot().facts
        assert [bool(each.snapshot().facts) for each in others] == [True, True, False, False, False]
        await advance(60)
        assert all(each.snapshot().result for each in others)


async def test_a_store_that_is_away_fails_the_turn_before_it_begins() -> None:
    store = JournaledStore()
    take_turn = journal_of(store).take_turn
    setattr(journal_of(store), "take_turn", away)  # noqa: B010 -- a method of one object
    async with node(store) as runtime:
        with pytest.raises(StoreUnavailable):
            await runtime.run("one", conversation_id="c")
        for _ in range(3):
            assert runtime.health().reasons == ("the store fails",)
            await advance(10)
        setattr(journal_of(store), "take_turn", take_turn)  # noqa: B010 -- a method of one object
        await advance(30)  # Nobody asks for anything, but the leases would be renewed.
        assert runtime.health().reasons == ()
    assert await history(store) == []


async def test_requests_that_go_on_without_their_store_do_so_without_the_turn(caplog: pytest.LogCaptureFixture) -> None:
    store = JournaledStore()
    setattr(journal_of(store), "take_turn", away)  # noqa: B010 -- a method of one object
    async with node(store, on_store_failure="warn") as runtime:
        assert (await runtime.run("one", conversation_id="c")).ok
    assert prompts(await history(store)) == ["one"]
    assert ["continues without its store" in each.message for each in caplog.records] == [True]


async def test_a_request_that_goes_on_without_its_store_leaves_the_turn_to_others_and_is_written_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = JournaledStore()
    append = journal_of(store).append
    setattr(journal_of(store), "append", away)  # noqa: B010 -- a method of one object
    both: dict[str, Any] = {"seconds": 25, "lease_seconds": 3}
    async with node(store, on_store_failure="warn", **both) as here, node(store, **both) as there:
        first = here.start("one", conversation_id="c")
        while "continues without its store" not in caplog.text:
            await advance(1)
        setattr(journal_of(store), "append", append)  # noqa: B010 -- a method of one object
        second = there.start("two", conversation_id="c")
        await advance(12)  # The lease is over, so the other process has the turn when the first one writes again.
        assert (first.snapshot().result, len(second.snapshot().facts) > 0) == (None, True)
        await advance(60)
        assert ((await first.result()).outcome, (await second.result()).outcome) == ("completed", "completed")
    assert sorted(prompts(await history(store))) == ["one", "two"]


async def test_a_turn_that_waits_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "toolbus.store")
    store = JournaledStore()
    async with node(store) as here, node(store) as there:
        here.start("one", conversation_id="c")
        await settle()
        second: RequestSession = there.start("two", conversation_id="c")
        await advance(20)
    logged = [each for each in caplog.records if "waits for a turn" in each.message]
    assert [each.message for each in logged] == [
        f"request {second.request_id} waits for a turn of its conversation in another process"
    ]
    assert vars(logged[0])["conversation_id"] == "c"


async def test_a_turn_that_waits_asks_again_soon_and_then_about_once_a_second() -> None:
    store, asked = JournaledStore(), list[float]()
    take_turn = journal_of(store).take_turn

    async def counted(*args: Any) -> bool:
        asked.append(anyio.current_time() - began)
        return await take_turn(*args)

    async with node(store, seconds=60) as here, node(store) as there:
        here.start("one", conversation_id="c")
        await settle()
        setattr(journal_of(store), "take_turn", counted)  # noqa: B010 -- a method of one object
        began = anyio.current_time()
        second = there.start("two", conversation_id="c")
        await advance(55)
        pauses = [after - before for before, after in itertools.pairwise(asked)]
        assert 0.05 <= pauses[0] <= 0.1 < pauses[1] <= 0.2 < pauses[2] <= 0.4
        assert all(0.5 <= each <= 1 for each in pauses[4:])
        second.cancel()
