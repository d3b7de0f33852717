"""Checks of the journal: appended facts are there, whole, once, and at their position."""

from __future__ import annotations

import copy

import anyio

from ....errors import LeaseLost, StoreError
from ....events import ApprovalRequested, Event, MessageAppended, RequestCompleted, ToolCallCompleted
from ....messages import UserMessage
from ....storage import JournalStore
from ._bench import EMPTY, HOUR, JOURNAL, MOMENTS, SHARED, Bench, Writing, check, interrupted, turn
from ._samples import HALVES, ODD_TEXT, facts_of_all_types

_MIB = 2**20


@check("appends", JOURNAL)
async def appends(bench: Bench) -> None:
    """Facts are read back in order, numbered from 0 without gaps, with the end of their step; `start` skips facts."""
    writing = bench.writing()
    bench.expect("the facts of an unknown request", [], [*await bench.journal.facts(writing.request_id)])
    await writing.begin(*writing.made(3))
    await writing.step()
    await writing.step(*writing.made(4))
    await writing.expect_facts()
    for start in (0, 1, 3, 5, 7, 8, 100):
        got = [each.seq for each in await bench.journal.facts(writing.request_id, start=start)]
        bench.expect(f"positions from {start} on", [*range(start, 8)], got)
    [fifth, *_] = await bench.journal.facts(writing.request_id, start=5)
    bench.expect("the end of the step that position 5 is in the middle of", 7, fifth.step_end)
    bench.expect("the fact at position 5", writing.facts[5], fifth.fact)


@check("requests", JOURNAL)
async def requests(bench: Bench) -> None:
    """A request's record has its owner, its agreement, its times in seconds since the epoch, and a count of facts."""
    writing = bench.writing()
    bench.expect("an unknown request", None, await bench.journal.request(writing.request_id))
    agreed = {"model": "stub 😀", "limits": {"max_rounds": 8, "cost": None}, "tools": ["a", "b"], "text": ODD_TEXT}
    size = await writing.begin(owner="worker 1", seconds=HOUR, agreed=agreed)
    record = await writing.record()
    bench.expect("the id", writing.request_id, record.request_id)
    bench.expect("the conversation", writing.conversation_id, record.conversation_id)
    bench.expect("the epoch", 1, record.epoch)
    bench.expect("the owner", "worker 1", record.owner)
    bench.expect("the agreement", agreed, dict(record.agreed))
    bench.expect("the number of facts", 1, record.fact_count)
    bench.expect("the size, which the append returned", size, record.size_bytes)
    bench.expect("the ending", (None, None), (record.ending, record.ended_at))
    lasts = record.lease_until - record.started_at
    bench.require("the length of the lease", "an hour, in seconds", lasts, ok=HOUR - 60 < lasts < HOUR + 60)
    year_2020, year_2100 = 1_577_836_800, 4_102_444_800
    known = year_2020 < record.started_at < year_2100
    bench.require("the time at which it began", "seconds since the epoch", record.started_at, ok=known)
    bare = bench.writing()
    await bare.begin()
    bench.expect("the agreement of a request without one", {}, dict((await bare.record()).agreed))


@check("facts-of-all-types", JOURNAL)
async def facts_of_each_type(bench: Bench) -> None:
    """Each type of fact comes back equal: parts, artifacts, JSON values, metadata, usage, NUL and emoji included."""
    writing = bench.writing()
    facts = facts_of_all_types(request_id=writing.request_id, conversation_id=writing.conversation_id)
    await writing.begin(*facts)
    for each in facts:
        await writing.step(each)
    await writing.expect_facts()


@check("own-facts", JOURNAL)
async def own_facts(bench: Bench) -> None:
    """A change to a fact after it was appended, or after it was read, changes nothing that is stored."""
    writing = bench.writing()
    asked = ApprovalRequested(
        request_id=writing.request_id,
        conversation_id=writing.conversation_id,
        call_id="call",
        name="pay",
        arguments={"amount": 1, "to": {"lines": ["rent"]}},
        timeout_seconds=HOUR,
    )
    given = copy.deepcopy(asked)
    size = await bench.journal.append(writing.entry([given], owner="worker", lease_seconds=HOUR))
    writing.steps.append([asked])
    _scribble(given)
    await writing.expect_facts("the facts after a change to one that was written")
    for stored in await bench.journal.facts(writing.request_id):
        _scribble(stored.fact)
    await writing.expect_facts("the facts after a change to one that was read")
    bench.expect("the size", size, (await writing.record()).size_bytes)


def _scribble(fact: Event) -> None:
    if isinstance(fact, ApprovalRequested):
        fact.arguments["amount"] = 999_999
        fact.arguments["to"]["lines"].append("a boat")


@check("half-characters-of-facts", JOURNAL)
async def half_characters_of_facts(bench: Bench) -> None:
    """Half of a surrogate pair in a fact, or in an agreement, is kept as it is or as a question mark."""
    asked = HALVES.encode("utf-8", "replace").decode()
    writing = bench.writing()
    await writing.begin(agreed={"instructions": HALVES})
    agreed = dict((await writing.record()).agreed)
    bench.require("the agreement", asked, agreed, ok=agreed in ({"instructions": asked}, {"instructions": HALVES}))
    fact = MessageAppended(request_id=writing.request_id, message=UserMessage(content=HALVES))
    [after] = writing.made(1)
    await writing.step(fact, after)
    got = [each.fact for each in await bench.journal.facts(writing.request_id, start=1)]
    replaced = MessageAppended(
        request_id=writing.request_id,
        message=UserMessage(content=asked),
        event_id=fact.event_id,
        at=fact.at,
    )
    bench.require("the fact", str(replaced), got[:1], ok=got[:1] in ([fact], [replaced]))
    bench.expect("the fact after it", [after], got[1:])


@check("large-facts", JOURNAL, EMPTY)
async def large_facts(bench: Bench) -> None:
    """A result of 5 MiB between small facts comes back whole, and so do several texts of 1 MiB in one step."""
    writing = bench.writing()
    await writing.begin()
    content = "line of a log 0123456789\n" * (5 * _MIB // 25)
    result = ToolCallCompleted(request_id=writing.request_id, call_id="r_0_0", name="read", content=content)
    await writing.step(*writing.made(1), result, *writing.made(1))
    texts = ("ü" * (_MIB // 2), "x" * _MIB, "😀" * (_MIB // 4))
    await writing.step(
        *(MessageAppended(request_id=writing.request_id, message=UserMessage(content=text)) for text in texts)
    )
    await writing.expect_facts()


@check("sizes", JOURNAL)
async def sizes(bench: Bench) -> None:
    """Each append returns the size of the request: it grows each time, by this request only, and as in the record."""
    writing, other = bench.writing(), await bench.begun()
    grown = [await writing.begin()]
    for _ in range(3):
        await other.step(*other.made(3))
        grown.append(await writing.step())
    large = MessageAppended(request_id=writing.request_id, message=UserMessage(content=bench.new_id("x") * 5_000))
    grown.append(await writing.step(large))
    bench.require(
        "the sizes", "each larger than the one before, from above 0", grown, ok=grown == sorted({*grown, 0})[1:]
    )
    bench.expect("the size in the record", grown[-1], (await writing.record()).size_bytes)


@check("many-sessions", JOURNAL)
async def many_sessions(bench: Bench) -> None:
    """Concurrent appends of many sessions do not mix, and readers see only whole steps."""
    conversation_id = bench.new_id("crowded")
    writings = [bench.writing(conversation_id) for _ in range(40)]
    torn: list[str] = []

    async def write(writing: Writing) -> None:
        await writing.begin()
        for length in (3, 1, 2):
            await writing.step(*writing.made(length))

    async def read() -> None:
        while True:
            for writing in writings[::10]:
                facts = await bench.journal.facts(writing.request_id)
                if facts and facts[-1].seq != facts[-1].step_end:
                    torn.append(f"{writing.request_id} up to {facts[-1].seq}, in a step to {facts[-1].step_end}")
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as readers:
        readers.start_soon(read)
        async with anyio.create_task_group() as writers:
            for writing in writings:
                writers.start_soon(write, writing)
        readers.cancel_scope.cancel()
    bench.expect("steps that were read in part", [], torn)
    for writing in writings:
        await writing.expect_facts(f"the facts of {writing.request_id}")


@check("begun-twice", JOURNAL)
async def begun_twice(bench: Bench) -> None:
    """A request that begins a second time is refused, before and after its ending; the stored facts stay."""
    writing = await bench.begun()
    again = writing.entry(writing.made(2), seq=0, owner="thief", lease_seconds=HOUR)
    await bench.refused("a second beginning", bench.journal.append(again))
    await writing.expect_nothing_new("a second beginning")
    bench.expect("the owner after a second beginning", "worker", (await writing.record()).owner)
    await writing.end()
    await bench.refused("a second beginning after the ending", bench.journal.append(again))
    await writing.expect_nothing_new("a second beginning after the ending")


@check("positions", JOURNAL)
async def positions(bench: Bench) -> None:
    """A taken position, or one of an unknown request, is refused with `LeaseLost`; one after a gap is refused too."""
    writing = await bench.begun()
    await writing.step(*writing.made(3))
    for what, seq in (("the newest position again", 3), ("an old position again", 1)):
        await bench.refused(what, bench.journal.append(writing.entry(writing.made(1), seq=seq)), LeaseLost)
        await writing.expect_nothing_new(what)
    overlap = writing.entry(writing.made(3), seq=3, ending="completed", turn=turn("too early"))
    await bench.refused("an ending at a position that is taken", bench.journal.append(overlap), LeaseLost)
    await writing.expect_nothing_new("an ending at a position that is taken")
    await bench.expect_history("the history", [], writing.conversation_id)
    await bench.refused("a position after a gap", bench.journal.append(writing.entry(writing.made(1), seq=5)))
    await writing.expect_nothing_new("a gap")
    unknown = bench.writing()
    await bench.refused("an unknown request", bench.journal.append(unknown.entry(unknown.made(1), seq=1)), LeaseLost)
    bench.expect("an unknown request", None, await bench.journal.request(unknown.request_id))
    await writing.step()
    await writing.expect_facts("the facts, with one more step")


@check("two-writers", JOURNAL, SHARED)
async def two_writers(bench: Bench) -> None:
    """If two stores write one position at once, one is refused: with `LeaseLost`, or any `StoreError` at position 0."""
    other = bench.journal_of(await bench.another())
    for _ in range(3):
        beginning = bench.writing()
        await _one_of_two(bench, beginning, other, StoreError)
        await beginning.expect_nothing_new("two beginnings at once")
        bench.expect("the owner", "worker", (await beginning.record()).owner)
    for _ in range(5):
        writing = await bench.begun()
        await _one_of_two(bench, writing, other, LeaseLost)
        await writing.expect_nothing_new("two appends at once")


async def _one_of_two(bench: Bench, writing: Writing, other: JournalStore, kind: type[StoreError]) -> None:
    """Let both stores write the next step at once; the step that was written is added to `writing.steps`."""
    steps = [writing.made(2), writing.made(2)]
    refused: list[int] = []

    async def write(number: int, journal: JournalStore) -> None:
        try:
            await journal.append(writing.entry(steps[number], owner="worker", lease_seconds=HOUR))
        except kind:
            refused.append(number)

    async with anyio.create_task_group() as writers:
        writers.start_soon(write, 0, bench.journal)
        writers.start_soon(write, 1, other)
    if len(refused) != 1:
        bench.give_up("the number of refusals, of two appends", 1, len(refused))
    writing.steps.append(steps[1 - refused[0]])


@check("taking-turns", JOURNAL, SHARED)
async def taking_turns(bench: Bench) -> None:
    """Two stores that write one request in turn, under one lease, write one journal: in order, and with one size."""
    writing = await bench.begun()
    journals = [bench.journal, bench.journal_of(await bench.another())]
    sizes = [(await writing.record()).size_bytes]
    for number in range(1, 7):
        step = writing.made(1 + number % 2)
        sizes.append(await journals[number % 2].append(writing.entry(step)))
        writing.steps.append(step)
    bench.require("the sizes", "each larger than the one before", sizes, ok=sizes == sorted({*sizes}))
    bench.expect("the size in the record", sizes[-1], (await writing.record(journals[1])).size_bytes)
    for which, journal in (("one store", journals[0]), ("the other", journals[1])):
        await writing.expect_facts(f"the facts by {which}", journal)
    await writing.end()
    await writing.expect_facts("the facts after the ending", journals[1])


@check("begin-cancelled", JOURNAL)
async def begin_cancelled(bench: Bench) -> None:
    """A cancelled beginning is stored whole or not at all, at once and for good."""
    for moment in MOMENTS:
        writing = bench.writing()
        step = writing.made(4)
        entry = writing.entry(step, owner="worker", lease_seconds=HOUR, agreed={"a": 1})
        done = await interrupted(lambda entry=entry: bench.journal.append(entry), moment)
        if await bench.journal.request(writing.request_id) is None:
            bench.expect("whether the append returned, though the request is unknown", False, done)
            bench.expect("the facts of the unknown request", [], [*await bench.journal.facts(writing.request_id)])
            await bench.journal.append(entry)  # this works, because nothing of the first one arrives late
        writing.steps.append(step)
        await writing.step()
        await writing.expect_nothing_new("a beginning that was cancelled, and one more step")


@check("append-cancelled", JOURNAL)
async def append_cancelled(bench: Bench) -> None:
    """A cancelled step is stored whole or not at all, at once and for good: the next step finds its position."""
    writing = await bench.begun()
    for moment in MOMENTS:
        step = writing.made(5)
        entry = writing.entry(step)
        done = await interrupted(lambda entry=entry: bench.journal.append(entry), moment)
        got = len(await bench.journal.facts(writing.request_id))
        if done or got > len(writing.facts):
            writing.steps.append(step)
        await writing.expect_nothing_new(f"a step that {'was done' if done else 'was cancelled'}")
        await writing.step()
        await writing.expect_nothing_new("the step after it")


@check("reading-facts-cancelled", JOURNAL)
async def reading_facts_cancelled(bench: Bench) -> None:
    """A cancelled read of facts leaves the journal as it was: the next read and step work as usual."""
    writing = await bench.begun()
    for moment in MOMENTS:
        await writing.step(*writing.made(20))
        for act in (
            lambda: bench.journal.facts(writing.request_id),
            lambda: bench.journal.request(writing.request_id),
            bench.journal.unfinished,
        ):
            await interrupted(act, moment)
    await writing.expect_nothing_new("reads that were cancelled")


@check("ending-cancelled", JOURNAL)
async def ending_cancelled(bench: Bench) -> None:
    """A cancelled ending has ended the request and added its turn to the history, or done neither."""
    for moment in MOMENTS:
        writing = await bench.begun()
        step = [*writing.made(1), RequestCompleted(request_id=writing.request_id)]
        messages = turn(writing.request_id)
        entry = writing.entry(step, ending="completed", turn=messages)
        done = await interrupted(lambda entry=entry: bench.journal.append(entry), moment)
        record = await writing.record()
        if record.ending is None:
            bench.expect("whether the append returned, though the request has not ended", False, done)
            await bench.expect_history("the history before the ending", [], writing.conversation_id)
            await writing.expect_nothing_new("an ending that was cancelled")
            await bench.journal.append(entry)
        writing.steps.append(step)
        await writing.expect_nothing_new("an ending")
        bench.expect("the ending", "completed", (await writing.record()).ending)
        await bench.expect_history("the history after it", messages, writing.conversation_id)
