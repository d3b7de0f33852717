"""Checks of leases: one process at a time may continue a request, and no other process can write it."""

from __future__ import annotations

import contextlib
from typing import Any

import anyio

from ....errors import LeaseLost
from ....storage import JournalStore, RequestRecord
from ._bench import EMPTY, HOUR, JOURNAL, SHARED, SHORT_SECONDS, Bench, Writing, check, turn


@check("unfinished", JOURNAL, EMPTY)
async def unfinished(bench: Bench) -> None:
    """Unfinished requests with a free lease are listed, oldest first, at most `limit`; held and ended ones are not."""
    journal = bench.journal
    bench.expect("the unfinished requests of an empty store", [], [*await journal.unfinished()])
    free: list[str] = []
    for number in range(4):
        await bench.begun()
        await bench.ended()
        free.append((await bench.begun(seconds=0)).request_id)
        if number == 1:
            abandoned = await bench.begun(seconds=0)
            await journal.abandon(abandoned.request_id, 1)
        await bench.tick()
    got = [each.request_id for each in await journal.unfinished()]
    bench.expect("the free requests", free, got)
    for limit, few in ((2, free[:2]), (0, []), (-1, [])):
        found = [each.request_id for each in await journal.unfinished(limit=limit)]
        bench.expect(f"the free requests, at most {limit}", few, found)
    await journal.take(free[0], "b", HOUR)
    left = await journal.unfinished()
    bench.expect("the free requests after one was taken", free[1:], [each.request_id for each in left])
    known = [await journal.request(each.request_id) for each in left]
    bench.expect("the list's records, as they are stored", known, [*left])


@check("listing-requests", JOURNAL, EMPTY)
async def listing_requests(bench: Bench) -> None:
    """All requests are listed, or those of one conversation, of one prefix, or not ended, the newest first."""
    journal = bench.journal
    bench.expect("the requests of an empty store", [], [*await journal.requests()])
    begun: list[str] = []
    for number in range(4):
        writing = await (bench.ended() if number == 1 else bench.begun(seconds=HOUR * number))
        begun.insert(0, writing.request_id)
        await bench.tick()
    got = [*await journal.requests()]
    bench.expect("the ids", begun, [each.request_id for each in got])
    bench.expect("the list's records, as they are stored", [await journal.request(each) for each in begun], got)
    for limit, few in ((2, begun[:2]), (0, []), (-1, [])):
        found = [each.request_id for each in await journal.requests(limit=limit)]
        bench.expect(f"the ids, at most {limit}", few, found)
    has_ended = {each.request_id for each in got if each.ending is not None}
    unfinished = [each.request_id for each in await journal.requests(is_unfinished=True, limit=3)]
    bench.expect("those that have not ended", [each for each in begun if each not in has_ended], unfinished)
    one = got[-1]
    of_it = [each.request_id for each in await journal.requests(conversation_id=one.conversation_id)]
    expected = [each.request_id for each in got if each.conversation_id == one.conversation_id]
    bench.expect("the requests of one conversation", expected, of_it)
    conversation = next(each.conversation_id for each in got if each.ending is not None)
    bench.expect(
        "those of an ended one", [], [*await journal.requests(conversation_id=conversation, is_unfinished=True)]
    )
    bench.expect("those of an unknown one", [], [*await journal.requests(conversation_id="nobody's")])
    for each in ("ann/1", "annie/1", "%/1"):
        await bench.begun(each)
    await bench.ended("ann/2")
    for prefix, only_unfinished, expected in (
        ("ann/", False, ["ann/1", "ann/2"]),
        ("ann/", True, ["ann/1"]),
        ("%", False, ["%/1"]),
        ("an_", False, []),
    ):
        found_there = await journal.requests(prefix=prefix, is_unfinished=only_unfinished)
        begin = sorted(each.conversation_id for each in found_there)
        bench.expect(f"the conversations of the requests with the prefix {prefix!r}", expected, begin)
    neither = [*await journal.requests(conversation_id="annie/1", prefix="ann/")]
    bench.expect("those of a conversation with another prefix", [], neither)


@check("taking", JOURNAL)
async def taking(bench: Bench) -> None:
    """A free lease is taken with the next epoch. A held lease is not taken, nor the lease of an unknown request."""
    journal = bench.journal
    writing = await bench.begun(seconds=HOUR)
    request_id = writing.request_id
    bench.expect("a lease that is held", None, await journal.take(request_id, "b", HOUR))
    bench.expect("the owner after that", ("worker", 1), _held_by(await writing.record()))
    bench.expect("whether the lease was given back", True, await journal.release(request_id, 1))
    given_back = await writing.record()
    bench.expect("owner and end of a lease that was given back", ("", 0.0), (given_back.owner, given_back.lease_until))
    bench.expect("whether a lease that was given back is free", True, await writing.is_free())
    for epoch, owner in ((2, "b"), (3, "c"), (4, "b")):
        taken = await journal.take(request_id, owner, HOUR)
        known = await writing.record()
        bench.expect("the record that the taker gets, compared with the stored one", known, taken)
        bench.expect("owner and epoch", (owner, epoch), _held_by(known))
        bench.expect("a held lease that its owner takes again", None, await journal.take(request_id, owner, HOUR))
        bench.expect("whether the lease is free", False, await writing.is_free())
        bench.expect("whether the lease was given back", True, await journal.release(request_id, epoch))
    bench.expect("the lease of an unknown request", None, await journal.take(bench.new_id("unknown"), "b", HOUR))
    bench.expect(
        "whether the lease of an unknown request was given back",
        False,
        await journal.release(bench.new_id("unknown"), 1),
    )


def _held_by(record: RequestRecord) -> tuple[str, int]:
    return record.owner, record.epoch


@check("lease-lengths", JOURNAL)
async def lease_lengths(bench: Bench) -> None:
    """A lease lasts the given number of seconds, counted from the moment it begins, is taken, or is renewed."""
    journal = bench.journal
    writing = await bench.begun(seconds=0)
    await bench.until(writing.is_free)
    taken = await journal.take(writing.request_id, "b", HOUR)
    started_at = (await writing.record()).started_at
    if taken is None:
        bench.fail("a lease of 0 seconds", "taken", None)
        return
    _lasts(bench, "that was taken", HOUR, taken.lease_until - started_at)
    owner = bench.new_id("owner")
    await journal.release(writing.request_id, 2)
    await journal.take(writing.request_id, owner, HOUR)
    await journal.renew(owner, 10 * HOUR)
    _lasts(bench, "that was renewed", 10 * HOUR, (await writing.record()).lease_until - started_at)


def _lasts(bench: Bench, what: str, expected: float, got: float) -> None:
    near = expected - 60 < got < expected + 60
    bench.require(f"how long a lease lasts {what}", f"{expected:g} seconds", got, ok=near)


@check("running-out", JOURNAL)
async def running_out(bench: Bench) -> None:
    """A lease runs out by itself and can then be taken; until it is taken, its holder can still write and renew it."""
    journal = bench.journal
    begun = await bench.begun(seconds=SHORT_SECONDS)
    taken = await bench.begun(seconds=0)
    renewed_owner = bench.new_id("owner")
    renewed = await bench.begun(seconds=0, owner=renewed_owner)
    await bench.until(taken.is_free)
    await journal.take(taken.request_id, "b", SHORT_SECONDS)
    await journal.renew(renewed_owner, SHORT_SECONDS)
    taken.epoch = 2
    for how, each in (("begun", begun), ("taken", taken), ("renewed", renewed)):
        bench.expect(f"whether a short lease that was {how} runs out", True, await bench.until(each.is_free))
        await each.step()
        await each.expect_nothing_new("its lease had run out, and a step")
        if await journal.take(each.request_id, "c", HOUR) is None:
            bench.fail(f"a short lease that was {how} and has run out", "taken", None)
    late = await bench.begun(seconds=0, owner=bench.new_id("late"))
    await bench.until(late.is_free)
    renewed = [*await journal.renew((await late.record()).owner, HOUR)]
    bench.expect("the renewed leases, of one that has run out", [late.request_id], renewed)
    bench.expect("the lease that was renewed in time", None, await journal.take(late.request_id, "c", HOUR))


@check("renewing", JOURNAL)
async def renewing(bench: Bench) -> None:
    """All leases of an owner are renewed and returned, but not other owners', ended or released ones."""
    journal = bench.journal
    mine, other = bench.new_id("mine"), bench.new_id("other")
    held = [await bench.begun(owner=mine) for _ in range(3)]
    others = await bench.begun(owner=other)
    until = (await others.record()).lease_until
    ended = await bench.begun(owner=mine)
    await ended.end()
    released = await bench.begun(owner=mine)
    await journal.release(released.request_id, 1)
    ids = sorted(each.request_id for each in held)
    bench.expect("the renewed leases", ids, sorted(await journal.renew(mine, 10 * HOUR)))
    for each in held:
        longer = (await each.record()).lease_until - until
        bench.require("how much longer the leases last", "nine hours", longer, ok=8.9 * HOUR < longer < 9.1 * HOUR)
    bench.expect("the end of another owner's lease", until, (await others.record()).lease_until)
    bench.expect("whether a lease that was given back is free", True, await released.is_free())
    for what, owner in (("an unknown owner", bench.new_id("nobody")), ("an empty owner", "")):
        bench.expect(f"the renewed leases of {what}", [], [*await journal.renew(owner, HOUR)])
    bench.expect("whether a lease that was given back is still free", True, await released.is_free())
    bench.expect("the leases renewed for a shorter time", ids, sorted(await journal.renew(mine, 0)))
    for each in held:
        bench.expect("whether a lease is free that was renewed for a shorter time", False, await each.is_free())
    bench.expect("the renewed leases of another owner", [others.request_id], [*await journal.renew(other, HOUR)])


@check("giving-back", JOURNAL)
async def giving_back(bench: Bench) -> None:
    """Only the holder can give a lease back; with an old epoch, or after the ending, nothing changes (False)."""
    journal = bench.journal
    writing = await bench.begun(seconds=0)
    await bench.until(writing.is_free)
    await journal.take(writing.request_id, "b", HOUR)
    bench.expect("whether an old lease was given back", False, await journal.release(writing.request_id, 1))
    bench.expect("owner and epoch after that", ("b", 2), _held_by(await writing.record()))
    bench.expect("whether the lease is free", False, await writing.is_free())
    ended = await bench.ended()
    bench.expect(
        "whether the lease of an ended request was given back", False, await journal.release(ended.request_id, 1)
    )


@check("one-taker", JOURNAL)
async def one_taker(bench: Bench) -> None:
    """If many callers take a lease at once, one of them gets it, for each of many requests."""
    await _race(bench, [bench.journal] * 6, requests=6)


@check("one-taker-of-two-stores", JOURNAL, SHARED)
async def one_taker_of_two_stores(bench: Bench) -> None:
    """If two stores over the same data take a lease at once, one of them gets it, for each of many requests."""
    other = bench.journal_of(await bench.another())
    await _race(bench, [bench.journal, other] * 2, requests=20)


async def _race(bench: Bench, takers: list[JournalStore], *, requests: int) -> None:
    writings = [await bench.begun(seconds=0) for _ in range(requests)]
    await bench.until(writings[-1].is_free)
    won: dict[str, list[str]] = {each.request_id: [] for each in writings}

    async def take(journal: JournalStore, request_id: str, owner: str) -> None:
        if await journal.take(request_id, owner, HOUR) is not None:
            won[request_id].append(owner)

    async with anyio.create_task_group() as tasks:
        for each in writings:
            for number, journal in enumerate(takers):
                tasks.start_soon(take, journal, each.request_id, f"taker {number}")
    bench.expect("the number of takers of each lease", [1] * requests, [len(each) for each in won.values()])
    for each in writings:
        record = await each.record()
        bench.expect("owner and epoch", ([record.owner], 2), (won[each.request_id], record.epoch))


@check("fencing", JOURNAL)
async def fencing(bench: Bench) -> None:
    """A process that has lost a lease cannot write facts, an ending or a turn, and `LeaseLost` names the lease."""
    await _fenced(bench, bench.journal)


@check("fencing-of-two-stores", JOURNAL, SHARED)
async def fencing_of_two_stores(bench: Bench) -> None:
    """A process that lost a lease to another one cannot write, release, renew or abandon; the other process can."""
    await _fenced(bench, bench.journal_of(await bench.another()))


@check("ended-elsewhere", JOURNAL, SHARED)
async def ended_elsewhere(bench: Bench) -> None:
    """An append to a request that another store ended under the same lease is refused; the first ending stays."""
    other = bench.journal_of(await bench.another())
    for ending, history in (("completed", turn("ended")), ("abandoned", [])):
        for late_ending, late_turn in ((None, ()), ("failed", turn("too late"))):
            here = await bench.begun()
            there = bench.writing(here.conversation_id, journal=other, request_id=here.request_id)
            there.steps = [*here.steps]
            if ending == "abandoned":
                await other.abandon(here.request_id, 1)
            else:
                await there.end(*history)
            late = here.entry(here.made(1), ending=late_ending, turn=late_turn)
            await bench.refused(f"an append to a request that is {ending} elsewhere", bench.journal.append(late))
            await there.expect_nothing_new(f"it was {ending} elsewhere")
            bench.expect("the ending", ending, (await there.record()).ending)
            await bench.expect_history("the history", history, here.conversation_id)


@check("fencing-in-flight", JOURNAL, SHARED)
async def fencing_in_flight(bench: Bench) -> None:
    """A step under way while another process takes the lease is counted in that process's record, or is refused."""
    other = bench.journal_of(await bench.another())
    writings = [await bench.begun(seconds=0) for _ in range(12)]
    await bench.until(writings[-1].is_free)
    taken: dict[str, int] = {}

    async def write(writing: Writing) -> None:
        with contextlib.suppress(LeaseLost):
            await writing.step(*writing.made(2))

    async def take(request_id: str) -> None:
        record = await other.take(request_id, "b", HOUR)
        taken[request_id] = record.fact_count if record else 0

    async with anyio.create_task_group() as tasks:
        for writing in writings[::2]:
            tasks.start_soon(write, writing)
        for writing in writings:
            tasks.start_soon(take, writing.request_id)
        for writing in writings[1::2]:
            tasks.start_soon(write, writing)
    for writing in writings:
        known_facts = taken[writing.request_id]
        bench.expect("the number of facts in the taker's record", len(writing.facts), known_facts)
        await writing.expect_nothing_new("the lease was taken", other)


async def _fenced(bench: Bench, other: JournalStore) -> None:
    # The first attempt after the lease is lost is an ending.
    ending = await bench.begun(seconds=0)
    await bench.until(lambda: ending.is_free(other))
    await other.take(ending.request_id, "b", HOUR)
    last = ending.entry(ending.made(1), ending="completed", turn=turn("stale"))
    await bench.refused("an ending by a store that has lost the lease", bench.journal.append(last), LeaseLost)
    await ending.expect_nothing_new("an ending by a store that has lost the lease", other)
    bench.expect("the ending", None, (await ending.record(other)).ending)
    await bench.expect_history("the history", [], ending.conversation_id)
    owner = bench.new_id("owner")
    stale = await bench.begun(seconds=0, owner=owner)
    await stale.step()
    await bench.until(lambda: stale.is_free(other))
    taken = await other.take(stale.request_id, "b", HOUR)
    bench.expect("facts and epoch in the other one's record", (2, 2), taken and (taken.fact_count, taken.epoch))
    attempts: dict[str, dict[str, Any]] = {
        "a step": {},
        "an ending": {"ending": "completed", "turn": turn("stale")},
    }
    for what, options in attempts.items():
        try:
            await bench.journal.append(stale.entry(stale.made(2), **options))
            bench.fail(f"{what} by a store that has lost the lease", "LeaseLost", "it was written")
        except LeaseLost as exc:
            bench.expect("request and epoch of LeaseLost", (stale.request_id, 1), (exc.request_id, exc.epoch))
        await stale.expect_nothing_new(what, other)
        bench.expect("the ending", None, (await stale.record(other)).ending)
        await bench.expect_history("the history", [], stale.conversation_id)
    bench.expect("whether the lost lease could be given back", False, await bench.journal.release(stale.request_id, 1))
    bench.expect(
        "whether the request could be abandoned with the lost lease",
        False,
        await bench.journal.abandon(stale.request_id, 1),
    )
    bench.expect("the lost leases that were renewed", [], [*await bench.journal.renew(owner, HOUR)])
    continued = bench.writing(stale.conversation_id, journal=other, request_id=stale.request_id)
    continued.epoch, continued.steps = 2, [*stale.steps]
    await continued.step(*continued.made(2))
    await continued.expect_nothing_new("the other one has continued", bench.journal)
    await other.release(stale.request_id, 2)
    back = await bench.journal.take(stale.request_id, owner, HOUR)
    bench.expect("facts and epoch when it is taken back", (4, 3), back and (back.fact_count, back.epoch))
    continued.journal, continued.epoch = bench.journal, 3
    await continued.step()
    await continued.end(*turn("after all"))
    await continued.expect_nothing_new("it has ended", other)
    await bench.expect_history("the history", turn("after all"), stale.conversation_id)
