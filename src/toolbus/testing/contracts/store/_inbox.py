"""Checks of inboxes: inputs from other processes wait, come to the holder of the lease, and count once."""

from __future__ import annotations

import contextlib
from typing import cast

import anyio

from ....errors import InboxFull, LeaseLost
from ....events import Event, SteeringAdded
from ....storage import MAX_WAITING_INPUTS, Inbox, InboxReceipt
from ._bench import HOUR, INBOX, JOURNAL, SHARED, SHORT_SECONDS, Bench, Writing, check

_UNKNOWN, _TAKEN, _ENDED = (InboxReceipt(state=state) for state in ("unknown", "taken", "ended"))


def _inbox(bench: Bench) -> Inbox:
    return cast("Inbox", bench.journal)


def _input(writing: Writing, words: str = "and Rome?") -> Event:
    return SteeringAdded(request_id=writing.request_id, conversation_id=writing.conversation_id, text=words)


@check("inbox", JOURNAL, INBOX)
async def inbox(bench: Bench) -> None:
    """Inputs come to the holder of the lease, whole and in the order of sending, until they are settled."""
    journal, owner = _inbox(bench), bench.new_id("owner")
    second = await bench.begun(owner=owner)
    writing, other = await bench.begun(owner=owner), await bench.begun(owner=bench.new_id("other"))
    await journal.send(beside := _input(second))
    sent = [_input(writing, f"number {number} \0 \N{GRINNING FACE}") for number in range(4)]
    for each in sent:
        bench.expect("the receipt", InboxReceipt(state="waiting", is_held=True), await journal.send(each))
        await journal.send(_input(other))
    one, other_one = writing.request_id, second.request_id
    bench.expect("the inputs of one request", sent, [*await journal.waiting(owner, request_id=one)])
    bench.expect("its first two inputs", sent[:2], [*await journal.waiting(owner, request_id=one, limit=2)])
    bench.expect("the inputs of another one", [beside], [*await journal.waiting(owner, request_id=other_one)])
    await journal.settle(second.request_id, beside.event_id, "taken")
    bench.expect("the inputs of the owner", sent, [*await journal.waiting(owner)])
    bench.expect("the first two inputs", sent[:2], [*await journal.waiting(owner, limit=2)])
    known = [each.event_id for each in (sent[0], sent[2])]
    bench.expect("the inputs without two", sent[1::2], [*await journal.waiting(owner, without=known)])
    bench.expect("the first input without two", sent[1:2], [*await journal.waiting(owner, without=known, limit=1)])
    bench.expect("the inputs of nobody", [], [*await journal.waiting("")])
    await journal.settle(writing.request_id, sent[0].event_id, "taken")
    await journal.settle(writing.request_id, sent[1].event_id, "refused", "too late")
    await journal.settle(writing.request_id, sent[1].event_id, "taken")
    bench.expect("the inputs that still wait", sent[2:], [*await journal.waiting(owner)])
    refused = InboxReceipt(state="refused", reason="too late")
    for number, expected in enumerate((_TAKEN, refused)):
        got = await journal.receipt(writing.request_id, sent[number].event_id)
        bench.expect(f"the receipt of a {expected.state} input", expected, got)
    await writing.expect_nothing_new("inputs")


@check("inbox-sent-twice", JOURNAL, INBOX)
async def inbox_sent_twice(bench: Bench) -> None:
    """An input that is sent twice waits once, and is not sent again after it was settled; similar ids are others."""
    journal, owner = _inbox(bench), bench.new_id("owner")
    writing = await bench.begun(owner=owner)
    given = _input(writing)
    for _ in range(3):
        await journal.send(given)
    bench.expect("the inputs", [given], [*await journal.waiting(owner)])
    await journal.settle(writing.request_id, given.event_id, "taken")
    bench.expect("the receipt of an input that was taken and is sent again", _TAKEN, await journal.send(given))
    bench.expect("the inputs after that", [], [*await journal.waiting(owner)])
    longer = bench.writing(request_id=f"{writing.request_id}:a")
    await longer.begin(owner=owner)
    similar = {
        (each.request_id, event_id): SteeringAdded(request_id=each.request_id, event_id=event_id, text=event_id)
        for each, event_id in ((writing, "a:b"), (longer, "b"))
    }
    for each in similar.values():
        await journal.send(each)
    waiting = {(each.request_id, each.event_id): each for each in await journal.waiting(owner)}
    got = {key: waiting.get(key) for key in similar}
    bench.expect("inputs whose ids look alike together with those of their requests", similar, got)
    for request_id, event_id in similar:
        await journal.settle(request_id, event_id, "refused")


@check("inbox-endings", JOURNAL, INBOX)
async def inbox_endings(bench: Bench) -> None:
    """Nothing is kept for a request that is unknown or has ended; an input that waited at the ending has ended."""
    journal, owner = _inbox(bench), bench.new_id("owner")
    unknown = _input(bench.writing())
    bench.expect("the receipt for an unknown request", _UNKNOWN, await journal.send(unknown))
    writing = await bench.begun(owner=owner)
    waits, taken = _input(writing), _input(writing)
    bench.expect("the receipt of an unknown input", _UNKNOWN, await journal.receipt(writing.request_id, "no such"))
    await journal.send(waits)
    await journal.send(taken)
    await journal.settle(writing.request_id, taken.event_id, "taken")
    await writing.end()
    bench.expect("the inputs of an ended request", [], [*await journal.waiting(owner)])
    bench.expect("what waited", _ENDED, await journal.receipt(writing.request_id, waits.event_id))
    bench.expect("what was taken", _TAKEN, await journal.receipt(writing.request_id, taken.event_id))
    bench.expect("an input after the ending", _ENDED, await journal.send(_input(writing)))


@check("inbox-appends", JOURNAL, INBOX)
async def inbox_appends(bench: Bench) -> None:
    """An input is taken together with the step that has its fact; a refused step takes none."""
    journal, owner = bench.journal, bench.new_id("owner")
    writing = await bench.begun(owner=owner)
    given, ending = _input(writing), _input(writing)
    for each in (given, ending):
        await _inbox(bench).send(each)
    with contextlib.suppress(LeaseLost):
        await journal.append(writing.entry([given], epoch=7, received=[given.event_id]))
    bench.expect("the inputs after a refused step", [given, ending], [*await _inbox(bench).waiting(owner)])
    await journal.append(writing.entry([given], received=[given.event_id]))
    writing.steps.append([given])
    bench.expect("the inputs after the step", [ending], [*await _inbox(bench).waiting(owner)])
    await journal.append(writing.entry([ending], received=[ending.event_id], ending="completed"))
    writing.steps.append([ending])
    for each in (given, ending):
        bench.expect("the receipt", _TAKEN, await _inbox(bench).receipt(writing.request_id, each.event_id))
    await writing.expect_nothing_new("inputs")


@check("inbox-bound", JOURNAL, INBOX)
async def inbox_bound(bench: Bench) -> None:
    """At most `MAX_WAITING_INPUTS` inputs wait for one request; one more raises `InboxFull`, and others may be sent."""
    journal = _inbox(bench)
    writing, other = await bench.begun(), await bench.begun()
    first = _input(writing)
    await journal.send(first)
    async with anyio.create_task_group() as tasks:
        for _ in range(MAX_WAITING_INPUTS - 1):
            tasks.start_soon(journal.send, _input(writing))
    try:
        got: object = await journal.send(_input(writing))
    except InboxFull:
        got = "InboxFull"
    bench.expect("one input too many", "InboxFull", got)
    bench.expect("the first one again", "waiting", (await journal.send(first)).state)
    bench.expect("an input of another request", "waiting", (await journal.send(_input(other))).state)
    await journal.settle(writing.request_id, first.event_id, "taken")
    bench.expect("an input after one was taken", "waiting", (await journal.send(_input(writing))).state)


@check("inbox-deleted", JOURNAL, INBOX)
async def inbox_deleted(bench: Bench) -> None:
    """Inputs are deleted together with their request: one that begins again under the same id has none."""
    journal, owner = _inbox(bench), bench.new_id("owner")
    writing = await bench.begun(owner=owner)
    given = _input(writing)
    await journal.send(given)
    await writing.end()
    await bench.store.forget(writing.conversation_id)
    bench.expect("the receipt", _UNKNOWN, await journal.receipt(writing.request_id, given.event_id))
    again = bench.writing(writing.conversation_id, request_id=writing.request_id)
    await again.begin(owner=owner)
    bench.expect("the inputs of the request that begins again", [], [*await journal.waiting(owner)])


@check("inbox-parking", JOURNAL, INBOX)
async def inbox_parking(bench: Bench) -> None:
    """A parked request is neither listed nor taken until its time is over or an input comes; its holder parks it."""
    journal, inbox = bench.journal, _inbox(bench)
    parked, woken, due, late = [await bench.begun() for _ in range(4)]
    bench.expect("whether a stranger could park it", False, await inbox.park(parked.request_id, 7, HOUR))
    bench.expect("the owner after that", "worker", (await parked.record()).owner)
    await inbox.send(_input(late))
    for each, seconds in ((parked, HOUR), (woken, HOUR), (due, SHORT_SECONDS), (late, HOUR)):
        bench.expect("whether the holder could park it", True, await inbox.park(each.request_id, 1, seconds))
        bench.expect("the owner of a parked request", "", (await each.record()).owner)
    bench.expect("whether a request is free that was parked with an input", True, await late.is_free())
    bench.expect("whether a parked request is free", False, await woken.is_free())
    bench.expect("the parked request that is taken", None, await journal.take(woken.request_id, "b", HOUR))
    receipt = await inbox.send(_input(woken))
    bench.expect("the receipt of the input", InboxReceipt(state="waiting", is_held=False), receipt)
    bench.expect("whether it is free after the input", True, await woken.is_free())
    bench.expect("whether it is free after its time", True, await bench.until(due.is_free))
    for each in (woken, due, late):
        taken = await journal.take(each.request_id, "b", HOUR)
        bench.expect("the epoch after it was taken", 2, taken and taken.epoch)
    bench.expect("whether the others are still parked", False, await parked.is_free())
    bench.expect("whether an old holder could park it", False, await inbox.park(woken.request_id, 1, HOUR))
    await parked.step()
    await parked.end()
    bench.expect("whether an ended request could be parked", False, await inbox.park(parked.request_id, 1, HOUR))


@check("inbox-of-the-next-holder", JOURNAL, INBOX, SHARED)
async def inbox_of_the_next_holder(bench: Bench) -> None:
    """Another store over the same data sees inputs at once, and they come to whoever takes the lease next."""
    other = bench.journal_of(await bench.another())
    there = cast("Inbox", other)
    old, new = bench.new_id("old"), bench.new_id("new")
    writing = await bench.begun(owner=old)
    given = _input(writing)
    await _inbox(bench).send(given)
    bench.expect("the inputs, in the other store", [given], [*await there.waiting(old)])
    await bench.journal.release(writing.request_id, 1)
    waits = InboxReceipt(state="waiting", is_held=False)
    bench.expect("the receipt without a holder", waits, await there.receipt(writing.request_id, given.event_id))
    bench.expect("an input without a holder", waits, await there.send(_input(writing)))
    await other.take(writing.request_id, new, HOUR)
    bench.expect("the inputs of the old holder", [], [*await _inbox(bench).waiting(old)])
    bench.expect("the first input of the new holder", [given], [*await there.waiting(new, limit=1)])
