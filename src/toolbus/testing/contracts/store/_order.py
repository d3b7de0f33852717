"""Checks of the order of turns: of the processes that share a conversation, one at a time runs a turn."""

from __future__ import annotations

import anyio

from ....storage import Inbox, JournalStore
from ._bench import HOUR, INBOX, JOURNAL, SHARED, Bench, check, turn

_SHORT = 0.05  # seconds; such a turn is free again while the check waits


@check("turns", JOURNAL)
async def turns(bench: Bench) -> None:
    """A conversation's turn belongs to one owner, before its request begins and while it runs, and then is free."""
    a, b = bench.new_id("owner"), bench.new_id("owner")
    first = bench.writing()
    talk = first.conversation_id
    await _gets(bench, "the turn of a new conversation", talk, first.request_id, a)
    second = bench.new_id("second")
    await _waits(bench, "a turn that another owner has taken", talk, second, b)
    await _gets(bench, "the own turn, once more", talk, first.request_id, a)
    await _gets(bench, "the turn of another conversation", bench.new_id("talk"), second, b)
    await first.begin(owner=a)
    await _waits(bench, "a turn whose request has begun", talk, second, b)
    await first.step()
    await _waits(bench, "a turn whose request runs", talk, second, b)
    await first.end()
    await _gets(bench, "a turn whose request has ended", talk, second, b)
    await _waits(bench, "a turn that the other owner has now", talk, bench.new_id("third"), a)


@check("turns-of-one-owner", JOURNAL)
async def turns_of_one_owner(bench: Bench) -> None:
    """Requests of one owner take the turn of their conversation from each other."""
    a, b = bench.new_id("owner"), bench.new_id("owner")
    first = bench.writing()
    talk, second = first.conversation_id, bench.new_id("second")
    await _gets(bench, "the turn of a new conversation", talk, first.request_id, a)
    await first.begin(owner=a)
    await _gets(bench, "a turn that the same owner has", talk, second, a)
    await _waits(bench, "that turn, for another owner", talk, bench.new_id("third"), b)


@check("turns-given-back", JOURNAL)
async def turns_given_back(bench: Bench) -> None:
    """A turn is free once its request was returned, released or abandoned, or its time or its lease has run out."""
    journal, a, b = bench.journal, bench.new_id("owner"), bench.new_id("owner")
    talk, request_id = bench.new_id("talk"), bench.new_id("request")
    await _gets(bench, "the turn of a new conversation", talk, request_id, a)
    await journal.return_turn(talk, bench.new_id("stranger"))
    await _waits(bench, "a turn that another request wanted to return", talk, bench.new_id("next"), b)
    await journal.return_turn(talk, request_id)
    await _gets(bench, "a turn that was returned", talk, bench.new_id("next"), b)
    talk = bench.new_id("talk")
    await journal.take_turn(talk, bench.new_id("request"), a, _SHORT)
    late = bench.new_id("late")
    is_free = await bench.until(lambda: journal.take_turn(talk, late, b, HOUR))
    bench.expect("whether a turn that never began is free when its time has run out", True, is_free)
    for how in ("released", "abandoned"):
        running = bench.writing()
        await _gets(bench, "the turn of a new conversation", running.conversation_id, running.request_id, a)
        await running.begin(owner=a)
        await (journal.release if how == "released" else journal.abandon)(running.request_id, 1)
        await _gets(bench, f"the turn of a request that was {how}", running.conversation_id, late, b)
    dying = bench.writing()
    await journal.take_turn(dying.conversation_id, dying.request_id, a, HOUR)
    await dying.begin(owner=a, seconds=_SHORT)
    is_free = await bench.until(lambda: journal.take_turn(dying.conversation_id, late, b, HOUR))
    bench.expect("whether the turn of a request is free when its lease has run out", True, is_free)


@check("turns-of-continued-requests", JOURNAL)
async def turns_of_continued_requests(bench: Bench) -> None:
    """Of requests that processes continue, the one that began first has the turn, and the others wait for it."""
    journal, a, b = bench.journal, bench.new_id("owner"), bench.new_id("owner")
    first = await bench.begun(owner=a)
    await bench.tick()
    talk = first.conversation_id
    second = await bench.begun(talk, owner=b)
    await _waits(bench, "the turn of the later one, which never had it", talk, second.request_id, b)
    await _gets(bench, "the turn of the earlier one, which never had it", talk, first.request_id, a)
    await _waits(bench, "the turn of the later one", talk, second.request_id, b)
    await _waits(bench, "the turn of a third one", talk, bench.new_id("third"), bench.new_id("owner"))
    await journal.release(first.request_id, 1)
    await _gets(bench, "the turn of the later one, when the earlier one was left", talk, second.request_id, b)
    taken = await journal.take(first.request_id, a, HOUR)
    bench.expect("whether the earlier one could be continued", True, taken is not None)
    await _waits(bench, "the turn of the earlier one, while the later one has it", talk, first.request_id, a)
    await second.end()
    await _gets(bench, "the turn of the earlier one, when the later one has ended", talk, first.request_id, a)
    first.epoch = 2
    await first.end()
    left = [bench.writing(talk) for _ in range(2)]
    for each in left:
        await _gets(bench, "the turn of a request that will be left", talk, each.request_id, a)
        await each.begin(owner=a)
        await journal.release(each.request_id, 1)
        await bench.tick()
    for each, owner in zip(left, (a, b), strict=True):
        await journal.take(each.request_id, owner, HOUR)
    await _gets(bench, "the turn of the earlier one, after both were left and taken", talk, left[0].request_id, a)
    await _waits(bench, "the turn of the later one, after both were left and taken", talk, left[1].request_id, b)


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
    """A conversation or a request that was forgotten or pruned has no turn; a prune leaves running requests theirs."""
    a, b = bench.new_id("owner"), bench.new_id("owner")
    forgotten = bench.writing()
    talk = forgotten.conversation_id
    await _gets(bench, "the turn of a conversation", talk, forgotten.request_id, a)
    await forgotten.begin(owner=a)
    await forgotten.end(*turn("forgotten"))
    await bench.store.forget(talk)
    await _gets(bench, "the turn of a conversation that was forgotten", talk, bench.new_id("request"), b)
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


@check("one-turn", JOURNAL)
async def one_turn(bench: Bench) -> None:
    """If many owners take the turn of a conversation at once, one of them gets it, for each of many conversations."""
    await _race(bench, [bench.journal] * 6, talks=6)


@check("one-turn-of-two-stores", JOURNAL, SHARED)
async def one_turn_of_two_stores(bench: Bench) -> None:
    """If two stores over the same data take the turn of a conversation at once, one of them gets it."""
    other = bench.journal_of(await bench.another())
    await _race(bench, [bench.journal, other] * 2, talks=20)
    here = bench.writing()
    await _gets(bench, "the turn of a new conversation", here.conversation_id, here.request_id, "here")
    await here.begin(owner="here")
    there = await other.take_turn(here.conversation_id, bench.new_id("there"), "there", HOUR)
    bench.expect("whether another store gets the turn of a request that runs", False, there)


async def _race(bench: Bench, takers: list[JournalStore], *, talks: int) -> None:
    won: dict[str, int] = {bench.new_id("talk"): 0 for _ in range(talks)}

    async def take(journal: JournalStore, talk: str) -> None:
        if await journal.take_turn(talk, bench.new_id("request"), bench.new_id("owner"), HOUR):
            won[talk] += 1

    async with anyio.create_task_group() as tasks:
        for talk in won:
            for journal in takers:
                tasks.start_soon(take, journal, talk)
    bench.expect("the number of owners that got each turn", [1] * talks, [*won.values()])


async def _gets(bench: Bench, what: str, talk: str, request_id: str, owner: str) -> None:
    bench.expect(f"whether it gets {what}", True, await bench.journal.take_turn(talk, request_id, owner, HOUR))


async def _waits(bench: Bench, what: str, talk: str, request_id: str, owner: str) -> None:
    bench.expect(f"whether it gets {what}", False, await bench.journal.take_turn(talk, request_id, owner, HOUR))
