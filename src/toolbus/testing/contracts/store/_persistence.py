"""Checks of data that outlive a store object: later and concurrent stores over the same data have them."""

from __future__ import annotations

import anyio

from ....errors import StoreError
from ._bench import HOUR, JOURNAL, SHARED, Bench, Writing, check, turn
from ._samples import all_messages, facts_of_all_types


@check("closing-with-a-journal", JOURNAL)
async def closing_with_a_journal(bench: Bench) -> None:
    """A store may be closed twice, and its journal used afterwards: its facts are there, and more can be added."""
    writing = await bench.begun()
    await bench.store.aclose()
    await bench.store.aclose()
    await writing.expect_nothing_new("closing")
    await bench.store.aclose()
    await writing.step()
    await bench.store.aclose()
    await writing.end(*turn("asked"))
    await writing.expect_nothing_new("closing")
    await bench.expect_history("the history", turn("asked"), writing.conversation_id)


@check("survival", SHARED)
async def survival(bench: Bench) -> None:
    """Remembered turns are there for a store that is opened after the first one is closed."""
    conversation_id, forgotten = bench.new_id("conversation"), bench.new_id("forgotten")
    await bench.store.remember(conversation_id, all_messages())
    await bench.store.remember(forgotten, turn("forgotten"))
    await bench.store.forget(forgotten)
    await bench.store.aclose()
    other = await bench.another()
    await bench.expect_history("the history", all_messages(), conversation_id, other)
    await bench.expect_history("the history of a forgotten conversation", [], forgotten, other)
    await other.remember(conversation_id, turn("more"))
    await bench.expect_history("the history in the first store", all_messages() + turn("more"), conversation_id)


@check("survival-of-requests", JOURNAL, SHARED)
async def survival_of_requests(bench: Bench) -> None:
    """Requests are there for a store that is opened after the first one is closed: facts, leases, endings, turns."""
    writing = bench.writing()
    ids = {"request_id": writing.request_id, "conversation_id": writing.conversation_id}
    await writing.begin(*facts_of_all_types(**ids), agreed={"model": "stub"})
    await writing.step(*writing.made(2))
    free = await bench.begun(seconds=0)
    ended = await bench.ended("", *turn("asked"))
    before = [await each.record() for each in (writing, free, ended)]
    await bench.store.aclose()
    other = bench.journal_of(await bench.another())
    bench.expect("the records", before, [await each.record(other) for each in (writing, free, ended)])
    for each in (writing, free, ended):
        await each.expect_facts(f"the facts of {each.request_id}", other)
    bench.expect("a lease that is held", None, await other.take(writing.request_id, "b", HOUR))
    bench.expect("whether a free lease is free", True, await bench.until(lambda: free.is_free(other)))
    taken = await other.take(free.request_id, "b", HOUR)
    bench.expect("the epoch of a lease that is taken", 2, taken and taken.epoch)
    await bench.refused("an append after the ending", other.append(ended.entry(ended.made(1))))


@check("seen-at-once", JOURNAL, SHARED)
async def seen_at_once(bench: Bench) -> None:
    """Another store over the same data sees at once everything that one has written: facts, endings, turns, leases."""
    other = await bench.another()
    journal = bench.journal_of(other)
    writing = bench.writing()
    bench.expect("an unknown request", None, await journal.request(writing.request_id))
    await bench.expect_history("the history", [], writing.conversation_id, other)
    await writing.begin()
    for _ in range(3):
        await writing.expect_nothing_new("a step", journal)
        await writing.step()
    await bench.journal.release(writing.request_id, 1)
    bench.expect("whether the lease is free", True, await writing.is_free(journal))
    await writing.end(*turn("asked"))
    bench.expect("the ending", "completed", (await writing.record(journal)).ending)
    await bench.expect_history("the history", turn("asked"), writing.conversation_id, other)
    await other.remember(writing.conversation_id, turn("there"))
    await bench.expect_history("the history here", turn("asked") + turn("there"), writing.conversation_id)
    bench.expect("whether the conversation was forgotten", True, await other.forget(writing.conversation_id))
    await bench.expect_history("the history here, after the other store forgot it", [], writing.conversation_id)


@check("closed-while-writing", JOURNAL, SHARED)
async def closed_while_writing(bench: Bench) -> None:
    """A store that is closed during appends writes them or refuses them: an append that returned has been written."""
    writings = [await bench.begun() for _ in range(8)]
    steps = [each.made(3) for each in writings]
    written: list[int] = []

    async def write(number: int, writing: Writing) -> None:
        try:
            await bench.journal.append(writing.entry(steps[number]))
        except StoreError:
            return
        written.append(number)

    async with anyio.create_task_group() as tasks:
        for number, writing in enumerate(writings):
            tasks.start_soon(write, number, writing)
        await anyio.lowlevel.checkpoint()
        await bench.store.aclose()
    other = bench.journal_of(await bench.another())
    for number in written:
        writings[number].steps.append(steps[number])
    for each in writings:
        await each.expect_nothing_new("closing", other)
