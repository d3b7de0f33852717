"""A store that fails, hangs or comes back, under a runtime: what is told, what is begun, and what is written in the end."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import anyio
import anyio.lowlevel
import pytest

from endings.ended_well import ENDINGS, assert_valid, listen
from support.journaled import JournaledStore
from support.results import result_of
from support.resuming import PROMPT, Lab, Scene, Wall, facts_of, model, virtual_walls
from toolbus import Compression, Limits, RequestResult, Runtime
from toolbus._timers import EARLY_SECONDS
from toolbus.durability import _journal_writer
from toolbus.durability._inbox_reader import InboxReader
from toolbus.durability._journal_writer import JournalWriter
from toolbus.durability._store_calls import PendingCalls
from toolbus.errors import LeaseLost, StoreError, StoreUnavailable
from toolbus.events import ApprovalRequested, HistoryCompressed, RequestStarted, ToolCallRequested
from toolbus.messages import AssistantMessage
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.storage import TIMEOUT_SECONDS, WRITE_SECONDS, Entry, JournalStore, RequestRecord
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, advance, calls, hang, settle, text, virtual_backends

anyio_backend = virtual_backends()
wall = virtual_walls()

WORK = Scene(
    lambda: [
        model(
            calls(("pay", {"n": 1}), ("step_on", {"n": 2}), ("step_on", {"n": 3})),
            calls(("look", {"n": 4})),
            text("Done."),
        )
    ],
    wall=Wall(),
)


class Faulty(JournaledStore):
    """A store in which appends number `first` to `last`, from 0, fail, hang, or are taken without an answer.

    With "loses the answer, then fails", only the first of them is taken without an answer, and the others fail.
    """

    def __init__(self, how: str, first: int, last: int | None = None) -> None:
        super().__init__(self._trouble)
        self.how, self.first, self.last = how, first, first if last is None else last
        self.count = -1
        journal: Any = self.journal
        append = journal.append

        async def unanswered(entry: Entry) -> int:
            size = await append(entry)
            last = self.last if self.how == "loses the answer" else self.first
            if self.how.startswith("loses") and self.first <= self.count <= last:
                await anyio.sleep_forever()
            return size

        journal.append = unanswered

    async def _trouble(self, _entry: Entry) -> None:
        self.count += 1
        if self.first <= self.count <= self.last:
            if self.how == "fails" or (self.how == "loses the answer, then fails" and self.count > self.first):
                raise StoreError("the disk is full")
            if self.how == "breaks":
                raise OSError("no such device")
            if self.how == "hangs":
                await anyio.sleep_forever()


async def run(store: MemoryStore, lab: Lab, on_failure: Any) -> tuple[RequestResult[Any], list[Any]]:
    async with WORK.runtime(store, lab, on_store_failure=on_failure) as runtime:
        heard = listen(runtime.bus)
        result = await result_of(runtime.run(PROMPT, conversation_id="c"))
        journaled = {
            fact.call_id for fact in await facts_of(store, result.request_id) if isinstance(fact, ToolCallRequested)
        }
        assert {key for _, key in lab.runs} <= journaled or on_failure == "warn"
        await advance(20)  # what is owed is written
    return result, heard


@pytest.mark.guarantee("G11", "G19", "G21")
@pytest.mark.parametrize("how", ["fails", "breaks", "hangs", "loses the answer"])
async def test_a_request_whose_store_fails_stops_before_its_next_effect_and_whoever_resumes_it_completes_it(
    how: str,
) -> None:
    for at in range(7):
        store, lab = Faulty(how, at), Lab()
        began = anyio.current_time()
        result, heard = await run(store, lab, "stop")
        assert (result.outcome, result.journaled, result.resumable) == ("failed", False, at > 0), at
        assert isinstance(result.error, StoreError)
        assert isinstance(result.error, StoreUnavailable) == (how in ("hangs", "loses the answer"))
        assert anyio.current_time() - began < 9 + 6 + 20
        assert len([each for each in heard if isinstance(each, ENDINGS)]) == 1
        assert_valid(result.messages)
        another, _ = await run(store, Lab(), "stop")
        assert (another.outcome, another.journaled) == ("completed", True)
        assert store.journal is not None
        record = await store.journal.request(result.request_id)
        if at == 0:
            assert record is None or record.ending == "abandoned", "it has not begun, and does not later"
        else:
            assert record is not None
            assert (record.ending, record.owner) == ("completed" if at == 6 else None, "")
        async with WORK.runtime(store, lab) as runtime:
            for session in await runtime.resume():
                assert (await session.result()).outcome == "completed"
        never_ran = at == 0 or (
            at == 1 and how == "loses the answer"
        )  # then its call had been requested, for all we know
        assert [*lab.keys("pay").values()] == ([] if never_ran else [1])
        prompts = [each.message_id for each in await store.history("c") if each.role == "user"]
        assert sorted(prompts) == sorted(f"{each.request_id}_u" for each in (result, another) if at or each is another)


@pytest.mark.guarantee("G19")
async def test_a_turn_that_could_not_begin_is_in_no_conversation_though_its_store_takes_its_time_to_say_so() -> None:
    store = Faulty("hangs", 0)
    remember = store.remember

    async def slow(conversation_id: str, messages: Any) -> None:
        await remember(conversation_id, messages)
        await anyio.sleep(4.8)

    store.remember = slow  # type: ignore[method-assign]
    result, _ = await run(store, Lab(), "stop")
    assert (result.outcome, result.resumable) == ("failed", False)
    assert await store.history("c") == ()


@pytest.mark.guarantee("G19")
@pytest.mark.parametrize("how", ["hangs", "loses the answer"])
async def test_a_result_says_nothing_of_a_journal_that_is_written_after_the_session_gave_it_up(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process that has stood still finds its own time over as well as that of its journal.
    monkeypatch.setattr("toolbus.session._steps.WRITE_SECONDS", 4.0)
    store = Faulty(how, 6)  # the ending
    result, _ = await run(store, Lab(), "warn")
    assert store.journal is not None
    record = await store.journal.request(result.request_id)
    assert record is not None
    assert (result.outcome, result.resumable, result.journaled) == ("failed", True, False)
    assert record.ending == "completed"


async def test_a_request_that_failed_as_it_began_is_not_written_again_after_its_conversation_was_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The process has stood still for longer than its lease, as above, and others have ended the request meanwhile.
    monkeypatch.setattr("toolbus.session._steps.WRITE_SECONDS", 4.0)
    store = Faulty("loses the answer", 0)
    journal: Any = store.journal
    append = journal.append

    async def deleted(entry: Entry) -> int:
        try:
            return await append(entry)
        except BaseException:
            if await journal.abandon(entry.request_id, entry.epoch):
                await store.forget("c")
            raise

    journal.append = deleted
    result, _ = await run(store, Lab(), "warn")
    assert (result.outcome, result.resumable, result.journaled) == ("failed", False, False)
    assert await journal.request(result.request_id) is None
    assert await store.history("c") == ()


@pytest.mark.guarantee("G19", "G21")
async def test_a_request_whose_store_is_away_for_longer_than_its_lease_is_left_to_the_process_that_completes_it(
    wall: Wall, caplog: pytest.LogCaptureFixture
) -> None:
    store, lab = Faulty("fails", 3, 1_000), Lab()
    journal: Any = store.journal
    release = journal.release

    async def away(request_id: str, epoch: int) -> bool:
        if store.last:
            raise StoreUnavailable("the database is away")
        return await release(request_id, epoch)

    journal.release = away
    async with WORK.runtime(store, lab) as stale, WORK.runtime(store, lab) as fresh:
        heard = listen(stale.bus)
        result = await result_of(stale.run(PROMPT, conversation_id="c"))
        assert (result.outcome, result.reason, result.resumable) == ("failed", "store_error", True)
        lines = [each for each in caplog.records if getattr(each, "request_id", "") == result.request_id]
        assert [(each.levelname, each.exc_info) for each in lines] == [("WARNING", None)]
        wall.put_to(wall() + 3_600)
        store.last = 0  # it is back, and the other process is the first to notice
        (session,) = await fresh.resume()
        assert (await session.result()).outcome == "completed"
        await advance(5)
    assert [each.type for each in heard if isinstance(each, ENDINGS)] == ["request_failed"]
    assert (lab.keys("pay"), len(await store.history("c"))) == (Counter({f"{result.request_id}_0_0": 1}), 8)


@pytest.mark.guarantee("G21")
@pytest.mark.parametrize("how", ["fails", "hangs", "loses the answer", "loses the answer, then fails"])
@pytest.mark.parametrize("times", [1, 3, 100])
async def test_with_warn_the_request_goes_on_and_its_journal_is_whole_in_the_end(how: str, times: int) -> None:
    for at in range(7):
        store, lab = Faulty(how, at, at + times - 1), Lab()
        async with WORK.runtime(store, lab, on_store_failure="warn") as runtime:
            heard = listen(runtime.bus)
            result = await runtime.run(PROMPT, conversation_id="c")
            assert result.outcome == "completed", at
            store.last = -1
            await advance(10)
        assert result.journaled, at
        facts = await facts_of(store, result.request_id)
        assert Counter(each.event_id for each in heard if each.is_fact and not each.is_derived) == Counter(
            each.event_id for each in facts
        )
        assert [*await store.history("c")] == result.messages
        assert store.journal is not None
        record = await store.journal.request(result.request_id)
        assert record is not None
        assert (record.ending, record.owner) == ("completed", "")
        assert len(lab.runs) == 4


async def test_with_warn_a_store_that_never_comes_back_keeps_nothing_and_stops_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, lab = Faulty("fails", 1, 10_000), Lab()
    caplog.set_level(logging.INFO, "toolbus.store")
    async with WORK.runtime(store, lab, on_store_failure="warn") as runtime:
        result = await runtime.run(PROMPT, conversation_id="c")
        await advance(600)
    assert (result.outcome, result.journaled, len(lab.runs)) == ("completed", False, 4)
    warnings = [each for each in caplog.records if (each.name, each.levelname) == ("toolbus.store", "WARNING")]
    assert len(warnings) == 2  # not one a second
    assert await store.history("c") == ()


@pytest.mark.parametrize("first", [0, 1])
async def test_with_warn_steps_that_a_store_refuses_for_long_are_given_up_and_nobody_continues_the_request(
    first: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_journal_writer, "_REFUSED_SECONDS", 30.0)
    store, lab = Faulty("fails", first, 100_000), Lab()
    async with WORK.runtime(store, lab, on_store_failure="warn") as runtime:
        session = runtime.start(PROMPT, conversation_id="c")
        await advance(1.5)
        assert session.release("moving")
        await session.result()
        await advance(25)
        assert [each for each in caplog.records if each.levelno == logging.ERROR] == []
        await advance(10)
        count = store.count
        await advance(30)
        assert store.count == count
    assert store.journal is not None
    record = await store.journal.request(session.request_id)
    assert (record and record.ending) == ("abandoned" if first else None)
    assert [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR] == [
        f"request {session.request_id}: the store refuses its last steps, which are given up: the disk is full"
    ]


@pytest.mark.guarantee("G20")
async def test_with_warn_a_request_whose_first_step_was_taken_without_an_answer_stops_where_another_has_it(
    wall: Wall,
) -> None:
    store, stale, fresh = Faulty("loses the answer, then fails", 0, 1), Lab(), Lab()
    async with WORK.runtime(store, stale, on_store_failure="warn") as first, WORK.runtime(store, fresh) as second:
        session = first.start(PROMPT, conversation_id="c")
        await advance(4.5)  # The store has not answered, and the model is asked.
        wall.put_to(wall() + 3_600)
        (continued,) = await second.resume()
        await advance(60)
        result = await session.result()
        assert (await continued.result()).outcome == "completed"
    assert isinstance(result.error, LeaseLost)
    assert (result.outcome, result.resumable) == ("failed", True)
    assert len(await store.history("c")) == len((await continued.result()).messages)
    assert (len(stale.keys("look")), len(fresh.keys("look"))) == (0, 1)


@pytest.mark.guarantee("G20")
@pytest.mark.parametrize("on_failure", ["stop", "warn"])
async def test_a_request_that_another_process_has_ended_and_that_was_deleted_since_stops_like_one_without_its_lease(
    on_failure: Any, wall: Wall
) -> None:
    store, stale = MemoryStore(journal=True), Lab()
    slow = ScriptedProvider([calls(("look", {}), delays=10), text("Done.")])
    # It renews no lease meanwhile, which would find out.
    first = Runtime(slow, tools=stale.standard(), store=store, on_store_failure=on_failure, lease_seconds=600)
    async with first, WORK.runtime(store, Lab()) as second:
        session = first.start(PROMPT, conversation_id="c")
        await settle()  # The model is asked.
        wall.put_to(wall() + 3_600)
        (continued,) = await second.resume()
        await continued.result()
        assert await store.forget("c")
        result = await session.result()
    assert isinstance(result.error, LeaseLost)
    assert not stale.runs
    assert await store.history("c") == ()


@pytest.mark.guarantee("G19")
@pytest.mark.parametrize("taken_over", [False, True])
async def test_with_warn_a_result_is_not_final_while_another_process_may_give_another(
    taken_over: bool, wall: Wall
) -> None:
    """The store fails from the second step on, and has the request as unfinished when its result is reported."""
    store, lab = Faulty("fails", 1, 10_000), Lab()
    async with WORK.runtime(store, lab, on_store_failure="warn") as first, WORK.runtime(store, lab) as second:
        result = await first.run(PROMPT, conversation_id="c")
        assert (result.outcome, result.journaled, result.resumable) == ("completed", False, True)
        again = await first.request(result.request_id).events().__anext__()  # it ended here, and can be read here
        assert isinstance(again, RequestStarted)
        if taken_over:
            wall.put_to(wall() + 3_600)
            store.last = 0  # the other process is the first to notice that the store is back
            (session,) = await second.resume()
            await session.result()
        store.last = -1
        await advance(10)
        assert (result.journaled, result.resumable) == ((False, True) if taken_over else (True, False))


@pytest.mark.parametrize("reason", ["moving", ""])
async def test_a_request_that_is_left_while_its_store_fails_is_whole_when_it_works_again(reason: str) -> None:
    store, lab = Faulty("fails", 2, 10), Lab()
    async with WORK.runtime(store, lab, on_store_failure="warn", drain_seconds=0) as runtime:
        session = runtime.start(PROMPT, conversation_id="c")
        await advance(1.5)  # a step is done that the store has not taken
        assert session.release(reason)
        result = await session.result()
        store.last = -1
        await advance(5)
    assert (result.resumable, result.journaled) == (True, False)
    async with WORK.runtime(store, lab) as runtime:
        (again,) = await runtime.resume()
        result = await again.result()
    assert result.outcome == "completed"
    ran = [name for name, _ in lab.runs]
    assert (ran.count("pay"), ran.count("step_on")) == (1, 2)


@pytest.mark.guarantee("G21")
async def test_a_request_that_only_warns_is_accepted_though_its_first_step_is_not_taken() -> None:
    store = Faulty("hangs", 0)
    async with Runtime(ScriptedProvider([hang()]), store=store, on_store_failure="warn") as runtime:
        session = runtime.start("hi")
        with anyio.fail_after(4.6):
            await session.accepted()
        assert session.cancel("enough")


@pytest.mark.guarantee("G21")
async def test_a_step_before_the_model_is_asked_costs_the_model_no_time_if_it_is_not_taken() -> None:
    class Shapes(JournaledStore):
        def __init__(self) -> None:
            super().__init__(self._trouble)

        async def _trouble(self, entry: Entry) -> None:
            if isinstance(entry.facts[0], HistoryCompressed):
                await anyio.sleep_forever()

    store = Shapes()
    compression = Compression(max_context_tokens=1_500)
    async with Runtime(
        ScriptedProvider([text("one " * 3_000), text("two")]),
        store=store,
        on_store_failure="warn",
        compression=compression,
    ) as runtime:
        await runtime.run("first", conversation_id="c")
        heard = listen(runtime.bus)
        result = await runtime.run("second", conversation_id="c")
    kinds = [each.type for each in heard]
    assert (result.text, "history_compressed" in kinds, "model_retrying" in kinds) == ("two", True, False)


@pytest.mark.guarantee("G21")
async def test_a_request_that_is_left_is_let_go_though_its_store_hangs_once_more() -> None:
    store = Faulty("fails", 3)
    journal: Any = store.journal
    release, hung = journal.release, list[str]()

    async def hangs_once(request_id: str, epoch: int) -> bool:
        if not hung:
            hung.append(request_id)
            await anyio.sleep_forever()
        return await release(request_id, epoch)

    journal.release = hangs_once
    result, _ = await run(store, Lab(), "stop")
    assert (result.outcome, result.resumable, hung) == ("failed", True, [result.request_id])
    record = await journal.request(result.request_id)
    assert (record.ending, record.owner) == (None, "")


@pytest.mark.guarantee("G21")
async def test_a_request_that_could_not_begin_has_its_result_in_time_though_its_store_stays_away() -> None:
    store = Faulty("hangs", 0, 100)
    journal: Any = store.journal

    async def hangs(_request_id: str, _epoch: int) -> bool:
        await anyio.sleep_forever()
        raise AssertionError

    journal.abandon = hangs
    began = anyio.current_time()
    async with WORK.runtime(store, Lab(), drain_seconds=0) as runtime:
        result = await result_of(runtime.run(PROMPT))
        assert anyio.current_time() - began <= WRITE_SECONDS
        assert (result.outcome, result.journaled) == ("failed", False)


@pytest.mark.guarantee("G21")
async def test_a_request_that_could_not_begin_has_its_result_as_soon_as_its_store_works_again() -> None:
    store = Faulty("fails", 0, 100)
    journal: Any = store.journal
    abandon, refused = journal.abandon, list[str]()

    async def fails_first(request_id: str, epoch: int) -> bool:
        if len(refused) < 2:
            refused.append(request_id)
            raise StoreUnavailable("away")
        return await abandon(request_id, epoch)

    journal.abandon = fails_first
    began = anyio.current_time()
    async with WORK.runtime(store, Lab(), drain_seconds=0) as runtime:
        await result_of(runtime.run(PROMPT))
        assert len(refused) == 2
        assert anyio.current_time() - began < 4


@pytest.mark.guarantee("G06")
async def test_a_request_that_is_left_is_not_resumed_here_while_the_store_is_told_so(wall: Wall) -> None:
    store = Faulty("fails", 3)
    journal: Any = store.journal
    release, asked = journal.release, list[str]()

    async def slow(request_id: str, epoch: int) -> bool:
        asked.append(request_id)
        await anyio.sleep(3)
        return await release(request_id, epoch)

    journal.release = slow
    async with WORK.runtime(store, Lab()) as runtime:
        session = runtime.start(PROMPT)
        while not asked:
            await advance(0.1)
        assert (await session.result()).resumable
        wall.put_to(wall() + 3_600)  # its lease is over
        resumed = await runtime.resume()
        assert (list(resumed), resumed.held) == ([], 1)
        await advance(5)
        (again,) = await runtime.resume()
        assert (await again.result()).outcome == "completed"


@pytest.mark.guarantee("G19")
async def test_a_turn_is_kept_once_though_its_beginning_failed_here_and_went_on_elsewhere(wall: Wall) -> None:
    store = MemoryStore(journal=True)
    journal: Any = store.journal
    append = journal.append
    async with WORK.runtime(store, Lab()) as fresh:

        async def breaks(entry: Entry) -> int:
            journal.append = append
            await append(entry)
            wall.put_to(wall() + 3_600)  # so long did it take, and another process has gone on
            for session in await fresh.resume():
                await session.result()
            raise OSError("the connection was lost")

        journal.append = breaks
        async with WORK.runtime(store, Lab()) as stale:
            result = await result_of(stale.run(PROMPT, conversation_id="c"))
        assert result.outcome == "failed"
    kept = await store.history("c")
    assert [each.message_id for each in kept if each.role == "user"] == [f"{result.request_id}_u"]


@pytest.mark.guarantee("G26")
async def test_a_decision_that_the_store_has_not_taken_is_remembered_for_no_later_turn() -> None:
    wipes = Scene(lambda: [model(calls(("wipe", {"n": 1})), text("Done."))])
    store, asked = Faulty("fails", 2), list[ApprovalRequested]()  # what a person has decided
    async with wipes.runtime(store, Lab()) as runtime:

        def decide(question: ApprovalRequested) -> None:
            asked.append(question)
            runtime.bus.publish(question.decided(approved=True, remember=True))

        runtime.bus.connect(ApprovalRequested, decide)
        outcomes = [(await result_of(runtime.run(PROMPT, conversation_id="c"))).outcome for _ in range(3)]
    assert outcomes == ["failed", "completed", "completed"]
    assert len({each.request_id for each in asked}) == 2, "nobody has heard the first decision"


@pytest.mark.parametrize(
    ("error", "times"), [(StoreUnavailable("it is too large to be sent in time"), 2), (StoreError("it is damaged"), 1)]
)
async def test_a_pending_call_that_never_works_does_not_keep_the_others_from_the_store(
    error: StoreError, times: int
) -> None:
    """Others wait for the next time if the store may be away."""
    pending, written = PendingCalls(), list[str]()

    async def never() -> None:
        raise error

    async def works() -> None:
        written.append("this")

    pending.add("a", never)
    pending.add("b", works)
    for _ in range(times):
        assert not written
        await pending.flush()
    assert (written, "a" in pending, "b" in pending) == (["this"], True, False)


async def test_the_ends_of_turns_of_one_conversation_are_written_without_the_others() -> None:
    pending, written = PendingCalls(), list[str]()

    def add(name: str, conversation_id: str, error: StoreError | None = None) -> None:
        async def call() -> None:
            written.append(name)
            if error is not None:
                raise error

        pending.add(name, call, conversation_id)

    broken, damaged = StoreError("it is broken"), StoreError("it is damaged")
    for name, error in (("a", broken), ("b", None), ("c", damaged)):
        add(f"{name} of another", "another", error)
        add(name, "this", error)
    add("of none", "")
    assert await pending.flush("this") is broken, "the first problem"
    assert written == ["a", "b", "c"]
    assert [each for each in ("a", "b", "c", "b of another", "of none") if each not in pending] == ["b"]


async def test_a_pending_call_that_is_being_tried_is_waited_for() -> None:
    pending, tried = PendingCalls(), 0

    async def call() -> None:
        nonlocal tried
        tried += 1
        await answers.wait()
        if tried == 1:
            raise StoreError("it is broken")

    async def flush() -> None:
        found.append(await pending.flush())

    pending.add("a", call)
    for fails in (True, False):  # the first attempt, and the second one
        answers, found = anyio.Event(), list[StoreError | None]()
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(flush)
            await settle()
            assert found == []
            answers.set()
        assert [each is not None for each in found] == [fails] * 2
    assert (tried, len(pending)) == (2, 0)


async def test_a_pending_call_is_tried_once_a_second_and_the_outage_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pending, tried = PendingCalls(), list[float]()

    async def works_at_last() -> None:
        tried.append(anyio.current_time())
        if len(tried) < 4:
            raise StoreUnavailable("away")

    async def renews() -> None:
        """Do something that works although the calls do not."""

    caplog.set_level(logging.INFO, "toolbus.store")
    began = anyio.current_time()
    assert await pending.attempt(renews()) is None
    await pending.wait(began + 3)
    pending.add("a", works_at_last)
    while len(pending):
        await pending.flush()
        fails = pending.fails
        await pending.attempt(renews())
        assert fails == pending.fails == (len(tried) < 4)
        await pending.wait(anyio.current_time() + (60 if len(pending) else 0))
    assert [each - began for each in tried] == [3, 4, 5, 6]
    assert [each.getMessage() for each in caplog.records] == [
        "the store failed, and the call is repeated until it answers: away",
        "the store answers again",
    ]


@pytest.mark.parametrize("answer", [None, LeaseLost("r", 1)])
async def test_an_outage_is_over_once_every_pending_call_has_any_answer(answer: StoreError | None) -> None:
    pending, is_away = PendingCalls(), True

    async def call() -> None:
        if is_away:
            raise StoreUnavailable("away")
        if answer is not None:
            raise answer

    pending.add("a", call)
    pending.add("b", call)
    await pending.flush()
    assert (len(pending), pending.fails) == (2, True)
    is_away = False
    await pending.flush()
    assert (len(pending), pending.fails) == (0, False), "a process without requests calls the store no more"


@pytest.mark.guarantee("G11")
async def test_a_request_whose_beginning_is_not_durable_is_not_accepted() -> None:
    store = Faulty("fails", 0)
    async with WORK.runtime(store, Lab()) as runtime:
        session = runtime.start(PROMPT)
        with pytest.raises(StoreError, match="the disk is full"):
            await session.accepted()
        with pytest.raises(StoreError):
            await session.accepted()
        fine = runtime.start(PROMPT)
        await fine.accepted()
        assert store.journal is not None
        assert await store.journal.request(fine.request_id) is not None


@pytest.mark.guarantee("G11", "G20")
async def test_a_host_that_cancels_tells_no_ending_of_a_request_that_another_has_taken(wall: Wall) -> None:
    store = MemoryStore(journal=True)
    async with WORK.runtime(store, Lab()) as stale, WORK.runtime(store, Lab()) as fresh:
        heard = listen(stale.bus)
        results: list[RequestResult[Any]] = []

        async def host() -> None:
            results.append(await stale.run(PROMPT))

        async with anyio.create_task_group() as group:
            group.start_soon(host)
            await settle()
            wall.put_to(wall() + 3_600)
            assert len(await fresh.resume()) == 1
            group.cancel_scope.cancel()
        assert [each for each in heard if isinstance(each, ENDINGS)] == []
        await fresh.drain()
    assert results == []


# --------------------------------------------------------------------------------------------------- renewals


@asynccontextmanager
async def held(renew: Callable[[int], Awaitable[object]], lease_seconds: float = 30.0) -> AsyncGenerator[JournalStore]:
    """A request that only waits, and its store's journal, which awaits `renew(number)` before each renewal."""
    store = MemoryStore(journal=True)
    journal: Any = store.journal
    renewed, number = journal.renew, count()

    async def renewing(owner: str, seconds: float) -> Collection[str]:
        await renew(next(number))
        return await renewed(owner, seconds)

    journal.renew = renewing
    limits = Limits(timeout_seconds=10_000, model_timeout_seconds=10_000)
    async with Runtime(ScriptedProvider([hang()]), store=store, lease_seconds=lease_seconds) as runtime:
        session = runtime.start(PROMPT, limits=limits)
        await settle()
        yield journal
        assert not session.ended
        session.cancel()
        assert (await session.result()).outcome == "cancelled"


@pytest.mark.parametrize("lease_seconds", [12.0, 30.0])
async def test_a_renewal_that_hangs_for_its_whole_time_loses_no_lease(lease_seconds: float) -> None:
    hung: list[int] = []

    async def hang_every_second_time(number: int) -> None:
        if number % 2:
            hung.append(number)
            await anyio.sleep_forever()

    async with held(hang_every_second_time, lease_seconds) as journal:
        for second in range(200):
            await advance(1)
            assert await journal.unfinished() == [], f"after {second} s another process could take it"
    assert len(hung) > 5


@pytest.mark.guarantee("G20")
async def test_many_leases_that_are_lost_at_once_are_found_by_one_call_of_the_store(
    wall: Wall, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore(journal=True)
    journal: Any = store.journal
    read = journal.request

    async def slowly(request_id: str) -> Any:
        await anyio.sleep(0.1)
        return await read(request_id)

    journal.request = slowly
    async with Runtime(ScriptedProvider(lambda _: hang()), store=store, lease_seconds=30) as runtime:
        sessions = [runtime.start(PROMPT) for _ in range(100)]
        await settle()
        wall.put_to(wall() + 3_600)
        for each in sessions[1:]:
            assert await journal.take(each.request_id, "another", 3_600)
        await advance(11)
        assert [each.ended for each in sessions] == [False] + [True] * 99
        sessions[0].cancel()
    assert {(await each.result()).resumable for each in sessions[1:]} == {True}
    assert "the store failed" not in caplog.text


async def test_two_outages_of_a_store_make_two_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "toolbus.store")
    is_away = False

    async def fail_while_away(_number: int) -> None:
        if is_away:
            raise StoreUnavailable("the server is away")

    async with held(fail_while_away):
        for _ in range(5):
            await advance(100)
            is_away = not is_away
    reported = [(each.levelno, each.getMessage()) for each in caplog.records if each.name == "toolbus.store"]
    away = (logging.WARNING, "the store failed, and the call is repeated until it answers: the server is away")
    assert reported == [away, (logging.INFO, "the store answers again")] * 2


async def test_a_store_whose_disk_is_full_stays_away_until_it_takes_what_is_written() -> None:
    store, is_full = MemoryStore(journal=True), True
    journal: Any = store.journal

    def writing(name: str) -> None:
        write = getattr(journal, name)

        async def refuse(*args: Any) -> Any:
            if is_full:
                raise StoreError("the disk is full")
            return await write(*args)

        setattr(journal, name, refuse)

    for name in ("append", "take_turn"):  # A renewal without leases has nothing to write.
        writing(name)
    async with WORK.runtime(store, Lab()) as runtime:
        assert (await result_of(runtime.run(PROMPT))).reason == "store_error"
        for _ in range(10):
            await advance(10)
            assert runtime.statistics().store_unavailable
        is_full = False
        await advance(20)
        assert not runtime.statistics().store_unavailable
        assert not journal._turns


@pytest.mark.parametrize("on_failure", ["stop", "warn"])
async def test_a_reply_that_no_journal_can_keep_is_asked_for_once_and_is_no_failure_of_the_store(
    on_failure: Any,
) -> None:
    asked: list[ModelRequest] = []

    class Odd:
        vendor = "odd"

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            asked.append(request)
            return ModelReply(message=AssistantMessage(text="Hi.", vendor_data={"odd": {"raw": [object()]}}))

    store = MemoryStore(journal=True)
    async with Runtime(Odd(), store=store, on_store_failure=on_failure) as runtime:
        await runtime.resume(watch=True)
        result = await result_of(runtime.run(PROMPT))
        assert not runtime.statistics().store_unavailable
        await advance(300)
        assert (len(asked), result.resumable, result.journaled) == (1, False, False)
        assert store.journal is not None
        record = await store.journal.request(result.request_id)
        assert record is not None
        assert record.ending == "abandoned"
    if on_failure == "stop":
        assert "not JSON serializable: object, at message.vendor_data.odd.raw[0]" in str(result.error)


async def test_a_turn_that_no_journal_can_keep_is_in_its_conversation_if_that_can() -> None:
    reason: Any = object()

    class Odd:
        vendor = "odd"

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            return ModelReply(message=AssistantMessage(text="Hi."), finish_reason=reason)

    store = MemoryStore(journal=True)
    async with Runtime(Odd(), store=store, on_store_failure="warn") as runtime:
        result = await runtime.run(PROMPT, conversation_id="c")
        (record,) = await runtime.requests(conversation_id="c")
    assert (result.text, result.journaled, record.ending) == ("Hi.", False, "abandoned")
    assert [each.role for each in await store.history("c")] == ["user", "assistant"]


@pytest.mark.guarantee("G34")
@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_the_next_turn_has_the_messages_of_one_whose_end_the_store_had_not_taken(how: str) -> None:
    store = Faulty(how, 6)  # the ending
    async with WORK.runtime(store, Lab(), on_store_failure="stop") as runtime:
        sessions = [runtime.start(each, conversation_id="c") for each in (PROMPT, "And then?")]
        failed, after = [await result_of(each.result()) for each in sessions]
    assert isinstance(failed.error, StoreError)
    history = after.messages[: after.history_count]
    assert [each.message_id for each in history] == [each.message_id for each in failed.messages]
    assert await store.history("c") == tuple(after.messages)


@pytest.mark.guarantee("G21", "G34")
async def test_the_next_turn_fails_in_time_while_the_store_does_not_take_the_end_of_the_turn_before() -> None:
    store = Faulty("hangs", 6, 100)
    async with WORK.runtime(store, Lab(), on_store_failure="stop") as runtime:
        await result_of(runtime.run(PROMPT, conversation_id="c"))
        began = anyio.current_time()
        after = await result_of(runtime.run("And then?", conversation_id="c"))
        assert (after.outcome, after.rounds) == ("failed", 0)
        assert isinstance(after.error, StoreError)
        assert anyio.current_time() - began < 5
        store.last = 0


async def test_a_request_that_a_full_disk_has_refused_does_not_show_that_it_has_space_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def full(_entry: Entry) -> None:
        raise StoreError("there is no space")

    async with Runtime(ScriptedProvider([]), store=JournaledStore(full)) as runtime:
        for _ in range(3):
            await runtime.start("go").result()
            assert runtime.health().reasons == ("the store fails",)
        await advance(30)
        assert runtime.health().reasons == ()
    assert [each.message for each in caplog.records if each.name == "toolbus.store"] == [
        "the store failed, and the call is repeated until it answers: there is no space"
    ]


@pytest.mark.guarantee("G20")
@pytest.mark.parametrize(("fact_count", "epoch", "is_lost"), [(2, 2, False), (3, 1, False), (3, 2, True)])
async def test_a_step_that_another_process_has_taken_over_is_lost_also_if_the_store_has_all_of_it(
    fact_count: int, epoch: int, is_lost: bool
) -> None:
    record = RequestRecord(request_id="r", conversation_id="c", epoch=epoch, fact_count=fact_count)
    writer, request = JournalWriter.__new__(JournalWriter), SimpleNamespace(epoch=1)
    writer.store = cast("Any", SimpleNamespace(request=AsyncMock(return_value=record)))
    step = cast("Any", SimpleNamespace(request_id="r", seq=2, facts=("fact",)))
    if is_lost:
        with pytest.raises(LeaseLost):
            await writer._find_written(cast("Any", request), step)
    else:
        found = await writer._find_written(cast("Any", request), step)
        assert found == (record if fact_count > 2 else None)


@pytest.mark.parametrize(
    ("seconds", "is_late"), [(TIMEOUT_SECONDS - 2 * EARLY_SECONDS, False), (TIMEOUT_SECONDS - EARLY_SECONDS, True)]
)
async def test_a_step_that_was_cut_short_is_not_written_again_at_the_end_of_its_time(
    seconds: float, is_late: bool
) -> None:
    writer, append = JournalWriter.__new__(JournalWriter), AsyncMock(return_value=7)
    writer._clock = cast("Any", SimpleNamespace(loop_time=lambda: seconds))
    writer.store = cast("Any", SimpleNamespace(append=append))
    writer.appends, writer.append_seconds = 0, 0.0
    request: Any = SimpleNamespace(began_at=0.0, is_unsure=False)
    step = cast("Any", SimpleNamespace(request_id="r", seq=0, facts=("fact",), ending=None))
    if is_late:
        with pytest.raises(StoreUnavailable):
            await writer._write(request, step)
    else:
        assert await writer._write(request, step) == 7
    assert append.call_count == writer.appends == (not is_late)


async def test_other_tasks_run_between_the_looks_into_an_inbox_that_has_much() -> None:
    looks, turns = 0, list[int]()

    async def look(*_given: Any) -> bool:
        nonlocal looks
        looks += 1
        return looks < 50

    async def nothing() -> None: ...

    reader = InboxReader.__new__(InboxReader)
    reader._writer = cast("Any", SimpleNamespace(wait_for_requests=nothing, received=set[str]()))
    reader._seconds, reader._asked, reader._fails = 1_000.0, {"an input": []}, False
    reader._look = look  # type: ignore[method-assign]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run)
        while looks < 50:
            turns.append(looks)
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert len({*turns}) > 10
