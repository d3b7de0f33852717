"""Checks of the order of turns: of the processes that share a conversation, only one at a time runs a turn."""

from __future__ import annotations

import anyio

from ....errors import LeaseLost, TurnLost
from ....storage import Inbox, JournalStore
from ._bench import HOUR, INBOX, JOURNAL, SHARED, SHORT_SECONDS, Bench, Writing, check, turn


@check("turns", JOURNAL)
async def turns(bench: Bench) -> None:
    """A conversation's turn belongs to one owner, before its request begins and while it runs, and then is free."""
    a, b = bench.new_id("owner"), bench.new_id("owner")
    first = bench.writing()
    conversation = first.conversation_id
    await _gets(bench, "the turn of a new conversation", conversation, first.request_id, a)
    second = bench.new_id("second")
    await _waits(bench, "a turn that another owner has taken", conversation, second, b)
    await _gets(bench, "its own turn, once more", conversation, first.request_id, a)
    await _gets(bench, "the turn of another conversation", bench.new_id("conversation"), second, b)
    await first.begin(owner=a, has_turn=True)
    await _waits(bench, "a turn whose request has begun", conversation, second, b)
    await first.step()
    await _waits(bench, "a turn whose request runs", conversation, second, b)
    await first.end()
    await _gets(bench, "a turn whose request has ended", conversation, second, b)
    await _waits(bench, "a turn that the other owner has now", conversation, bench.new_id("third"), a)


@check("turns-of-one-owner", JOURNAL)
async def turns_of_one_owner(bench: Bench) -> None:
    """Requests of one owner take the turn of their conversation from each other."""
    a, b = bench.new_id("owner"), bench.new_id("owner")
    first = bench.writing()
    conversation, second = first.conversation_id, bench.new_id("second")
    await _gets(bench, "the turn of a new conversation", conversation, first.request_id, a)
    await first.begin(owner=a)
    await _gets(bench, "a turn that the same owner has", conversation, second, a)
    await _waits(bench, "that turn, for another owner", conversation, bench.new_id("third"), b)


@check("turns-given-back", JOURNAL)
async def turns_given_back(bench: Bench) -> None:
    """A turn is free once its request was returned, released or abandoned, or its time or its lease has run out."""
    journal, a, b = bench.journal, bench.new_id("owner"), bench.new_id("owner")
    conversation, request_id = bench.new_id("conversation"), bench.new_id("request")
    await _gets(bench, "the turn of a new conversation", conversation, request_id, a)
    await journal.return_turn(conversation, bench.new_id("stranger"))
    await _waits(bench, "a turn that another request wanted to return", conversation, bench.new_id("next"), b)
    await journal.return_turn(conversation, request_id)
    await _gets(bench, "a turn that was returned", conversation, bench.new_id("next"), b)
    conversation = bench.new_id("conversation")
    await journal.take_turn(conversation, bench.new_id("request"), a, SHORT_SECONDS)
    late = bench.new_id("late")
    is_free = await bench.until(lambda: journal.take_turn(conversation, late, b, HOUR))
    bench.expect("whether a turn that never began is free when its time has run out", True, is_free)
    for how in ("released", "abandoned"):
        running = bench.writing()
        await _gets(bench, "the turn of a new conversation", running.conversation_id, running.request_id, a)
        await running.begin(owner=a)
        await (journal.release if how == "released" else journal.abandon)(running.request_id, 1)
        await _gets(bench, f"the turn of a request that was {how}", running.conversation_id, late, b)
    dying = bench.writing()
    await journal.take_turn(dying.conversation_id, dying.request_id, a, HOUR)
    await dying.begin(owner=a, seconds=SHORT_SECONDS)
    is_free = await bench.until(lambda: journal.take_turn(dying.conversation_id, late, b, HOUR))
    bench.expect("whether the turn of a request is free when its lease has run out", True, is_free)


@check("turns-lost", JOURNAL)
async def turns_lost(bench: Bench) -> None:
    """A process that has lost its turn begins nothing in it (`TurnLost`), and writes nothing if its lease ran out."""
    journal, a, b = bench.journal, bench.new_id("owner"), bench.new_id("owner")
    never = bench.writing()
    await _is_refused(bench, "a request that never had the turn", never, a)
    returned = bench.writing()
    await _gets(bench, "the turn of a new conversation", returned.conversation_id, returned.request_id, a)
    await journal.return_turn(returned.conversation_id, returned.request_id)
    renewed = await journal.renew_turn(returned.conversation_id, returned.request_id, a, HOUR)
    bench.expect("whether a turn that was given back could be renewed", False, renewed)
    await _is_refused(bench, "a request whose turn was given back", returned, a)
    late = bench.writing()
    conversation, kept = late.conversation_id, (late.request_id, a, HOUR)
    await journal.take_turn(conversation, late.request_id, a, 0)
    renewed = await journal.renew_turn(conversation, *kept)
    bench.expect("whether a turn that nobody else has taken could be renewed", True, renewed)
    await _waits(bench, "a turn that was renewed", conversation, bench.new_id("next"), b)
    await journal.renew_turn(conversation, late.request_id, a, 0)
    await bench.tick()
    other = bench.writing(conversation)
    await _gets(bench, "a turn that never began, when its time has run out", conversation, other.request_id, b)
    bench.expect("whether a turn that was lost could be renewed", False, await journal.renew_turn(conversation, *kept))
    await _is_refused(bench, "a request whose turn another one has", late, a)
    await _is_refused(bench, "a request of an owner that does not have its turn", other, a)
    await other.begin(owner=b, seconds=0, has_turn=True)
    await other.step()
    await bench.until(other.is_free)
    await _gets(bench, "the turn of a request whose lease has run out", conversation, bench.new_id("third"), a)
    step = other.entry(other.made(1))
    await bench.refused("a step without a lease, in the turn of another request", journal.append(step), LeaseLost)
    await other.expect_nothing_new("a step in the turn of another request")
    taken = await journal.take(other.request_id, b, HOUR)
    bench.expect("whether the request without a lease could be taken", True, taken is not None and taken.epoch > 1)


@check("turns-of-continued-requests", JOURNAL)
async def turns_of_continued_requests(bench: Bench) -> None:
    """Of requests that processes continue, the one that began first has the turn, and the others wait for it."""
    journal, a, b = bench.journal, bench.new_id("owner"), bench.new_id("owner")
    first = await bench.begun(owner=a)
    await bench.tick()
    conversation = first.conversation_id
    second = await bench.begun(conversation, owner=b)
    await _waits(bench, "the turn of the later one, which never had it", conversation, second.request_id, b)
    await _gets(bench, "the turn of the earlier one, which never had it", conversation, first.request_id, a)
    await _waits(bench, "the turn of the later one", conversation, second.request_id, b)
    await _waits(bench, "the turn of a third one", conversation, bench.new_id("third"), bench.new_id("owner"))
    await journal.release(first.request_id, 1)
    await _gets(bench, "the turn of the later one, when the earlier one was left", conversation, second.request_id, b)
    taken = await journal.take(first.request_id, a, HOUR)
    bench.expect("whether the earlier one could be continued", True, taken is not None)
    await _waits(bench, "the turn of the earlier one, while the later one has it", conversation, first.request_id, a)
    await second.end()
    await _gets(bench, "the turn of the earlier one, when the later one has ended", conversation, first.request_id, a)
    first.epoch = 2
    await first.end()
    left = [bench.writing(conversation) for _ in range(2)]
    for each in left:
        await _gets(bench, "the turn of a request that will be left", conversation, each.request_id, a)
        await each.begin(owner=a)
        await journal.release(each.request_id, 1)
        await bench.tick()
    for each, owner in zip(left, (a, b), strict=True):
        await journal.take(each.request_id, owner, HOUR)
    await _gets(
        bench, "the turn of the earlier one, after both were left and taken", conversation, left[0].request_id, a
    )
    await _waits(
        bench, "the turn of the later one, after both were left and taken", conversation, left[1].request_id, b
    )
    stale = await bench.begun(owner=b, seconds=0)
    await bench.until(stale.is_free)
    await _gets(bench, "the turn of its request, whose lease ran out", stale.conversation_id, stale.request_id, a)
    step = stale.entry(stale.made(1))
    await bench.refused("a step without a lease, in the turn of its own request", journal.append(step), LeaseLost)
    held = await bench.begun(owner=b)
    await _gets(bench, "the turn of a request that another owner holds", held.conversation_id, held.request_id, a)
    await held.step()


@check("turns-of-parked-requests", JOURNAL, INBOX)
async def turns_of_parked_requests(bench: Bench) -> None:
    """A parked request does not keep the turn."""
    a, b = bench.new_id("owner"), bench.new_id("owner")
    parked = bench.writing()
    await bench.journal.take_turn(parked.conversation_id, parked.request_id, a, HOUR)
    await parked.begin(owner=a)
    assert isinstance(bench.journal, Inbox)
    bench.expect("whether the request was parked", True, await bench.journal.park(parked.request_id, 1, HOUR))
    await _gets(bench, "the turn of a parked request", parked.conversation_id, bench.new_id("next"), b)


@check("turns-after-deletions", JOURNAL)
async def turns_after_deletions(bench: Bench) -> None:
    """A conversation or a request that was forgotten or pruned has no turn; a prune leaves other requests theirs."""
    a, b = bench.new_id("owner"), bench.new_id("owner")
    forgotten = bench.writing()
    conversation = forgotten.conversation_id
    await _gets(bench, "the turn of a conversation", conversation, forgotten.request_id, a)
    await forgotten.begin(owner=a)
    await forgotten.end(*turn("forgotten"))
    await bench.store.forget(conversation)
    await _gets(bench, "the turn of a conversation that was forgotten", conversation, bench.new_id("request"), b)
    running = bench.writing()
    await _gets(bench, "the turn of a conversation", running.conversation_id, running.request_id, a)
    await running.begin(owner=a)
    await bench.tick()
    before = (await (await bench.begun()).record()).started_at
    await bench.journal.prune(before=before, conversations=True)
    await _waits(bench, "the turn of a request that runs, after a prune", running.conversation_id, bench.new_id("x"), b)
    ended = bench.writing()
    await _gets(bench, "the turn of a conversation", ended.conversation_id, ended.request_id, a)
    await ended.begin(owner=a)
    await ended.end()
    await bench.tick()
    before = (await (await bench.begun()).record()).started_at
    await bench.journal.prune(before=before)
    bench.expect(
        "whether a request that has ended before is pruned", None, await bench.journal.request(ended.request_id)
    )
    await _gets(bench, "the turn of a request that was pruned", ended.conversation_id, bench.new_id("y"), b)
    coming = bench.writing()
    await _gets(bench, "the turn of a conversation", coming.conversation_id, coming.request_id, a)
    await bench.journal.prune(before=before + 2 * HOUR)
    what = "the turn of a request that is about to begin, after a prune"
    await _waits(bench, what, coming.conversation_id, bench.new_id("z"), b)


@check("one-turn", JOURNAL)
async def one_turn(bench: Bench) -> None:
    """If many owners take the turn of a conversation at once, one of them gets it, for each of many conversations."""
    await _race(bench, [bench.journal] * 6, conversations=6)


@check("one-turn-of-two-stores", JOURNAL, SHARED)
async def one_turn_of_two_stores(bench: Bench) -> None:
    """If two stores over the same data take the turn of a conversation at once, one of them gets it."""
    other = bench.journal_of(await bench.another())
    await _race(bench, [bench.journal, other] * 2, conversations=20)
    here = bench.writing()
    await _gets(bench, "the turn of a new conversation", here.conversation_id, here.request_id, "here")
    await here.begin(owner="here")
    there = await other.take_turn(here.conversation_id, bench.new_id("there"), "there", HOUR)
    bench.expect("whether another store gets the turn of a request that runs", False, there)


@check("turns-lost-in-flight", JOURNAL, SHARED)
async def turns_lost_in_flight(bench: Bench) -> None:
    """A request that begins or writes while another store takes its turn has written before that, or is refused."""
    other = bench.journal_of(await bench.another())
    beginning, running = [bench.writing() for _ in range(12)], [await bench.begun(seconds=0) for _ in range(12)]
    for each in beginning:
        await bench.journal.take_turn(each.conversation_id, each.request_id, "a", 0)
    await bench.until(running[-1].is_free)
    lost: set[str] = set()
    known: dict[str, int] = {}

    async def write(writing: Writing) -> None:
        try:
            await (writing.step() if writing.steps else writing.begin(owner="a", has_turn=True))
        except (TurnLost, LeaseLost):
            lost.add(writing.request_id)

    async def take(writing: Writing) -> None:
        if await other.take_turn(writing.conversation_id, bench.new_id("next"), "b", HOUR):
            known[writing.request_id] = len(await other.facts(writing.request_id))

    async with anyio.create_task_group() as tasks:
        for number, writing in enumerate([*beginning, *running]):
            for act in (write, take) if number % 2 else (take, write):
                tasks.start_soon(act, writing)
    for writing in beginning:
        has_lost, has_begun = writing.request_id in lost, await other.request(writing.request_id) is not None
        bench.expect("whether a request has begun", not has_lost, has_begun)
        bench.expect("whether another request has its turn", has_lost, writing.request_id in known)
    for writing in running:
        has_known = known.get(writing.request_id, len(writing.facts))
        bench.expect("the number of facts when the turn was taken", len(writing.facts), has_known)
        await writing.expect_nothing_new("the turn was taken", other)


async def _race(bench: Bench, takers: list[JournalStore], *, conversations: int) -> None:
    won: dict[str, int] = {bench.new_id("conversation"): 0 for _ in range(conversations)}

    async def take(journal: JournalStore, conversation: str) -> None:
        if await journal.take_turn(conversation, bench.new_id("request"), bench.new_id("owner"), HOUR):
            won[conversation] += 1

    async with anyio.create_task_group() as tasks:
        for conversation in won:
            for journal in takers:
                tasks.start_soon(take, journal, conversation)
    bench.expect("the number of owners that got each turn", [1] * conversations, [*won.values()])


async def _gets(bench: Bench, what: str, conversation: str, request_id: str, owner: str) -> None:
    bench.expect(f"whether it gets {what}", True, await bench.journal.take_turn(conversation, request_id, owner, HOUR))


async def _waits(bench: Bench, what: str, conversation: str, request_id: str, owner: str) -> None:
    bench.expect(f"whether it gets {what}", False, await bench.journal.take_turn(conversation, request_id, owner, HOUR))


async def _is_refused(bench: Bench, what: str, writing: Writing, owner: str) -> None:
    beginning = writing.entry(writing.made(1), owner=owner, lease_seconds=HOUR, has_turn=True)
    await bench.refused(what, bench.journal.append(beginning), TurnLost)
    bench.expect(f"the record of {what}", None, await bench.journal.request(writing.request_id))
