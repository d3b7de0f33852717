"""Checks of how requests end: in the journal, in their conversation, and when they are forgotten or pruned."""

from __future__ import annotations

from typing import get_args

import anyio

from ....events import ToolCallCompleted
from ....messages import UserMessage
from ....storage import Ending, StoreStatistics
from ._bench import EMPTY, HOUR, JOURNAL, Bench, Writing, check, turn


@check("endings", JOURNAL)
async def endings(bench: Bench) -> None:
    """An ending of each kind is recorded, with its time; the lease is given back, and every later write is refused."""
    journal = bench.journal
    begun = {ending: await bench.begun() for ending in get_args(Ending)}
    await bench.tick()
    for ending, writing in begun.items():
        await writing.end(*turn("asked"), ending=ending)
        record = await writing.record()
        bench.expect("the ending", ending, record.ending)
        later = record.ended_at is not None and record.started_at < record.ended_at < record.started_at + HOUR
        bench.require("the time of the ending", "after the beginning", record, ok=later)
        bench.expect("the lease of a request that has ended", ("", 0.0), (record.owner, record.lease_until))
        bench.expect("the number of facts", 2, record.fact_count)
        bench.expect(
            f"the history after the ending {ending}", turn("asked"), await bench.history(writing.conversation_id)
        )
        again = writing.entry(writing.made(1), ending="failed", turn=turn("once more"))
        await bench.refused("a second ending", journal.append(again))
        await bench.refused("an append after the ending", journal.append(writing.entry(writing.made(1))))
        await writing.expect_nothing_new("its ending")
        bench.expect("whether the request is unfinished", False, await writing.is_free())
        bench.expect(
            "the lease that is taken after the ending", None, await journal.take(writing.request_id, "b", HOUR)
        )
        await bench.expect_history("the history at the end", turn("asked"), writing.conversation_id)
        bench.expect("the final ending", ending, (await writing.record()).ending)


@check("short-requests", JOURNAL)
async def short_requests(bench: Bench) -> None:
    """A request may begin and end in one step, and a request that ends may add no messages."""
    writing = bench.writing()
    await writing.begin(*writing.made(2), ending="completed", turn=turn("asked"))
    record = await writing.record()
    bench.expect("ending and owner", ("completed", ""), (record.ending, record.owner))
    bench.expect("whether the request is unfinished", False, await writing.is_free())
    await bench.expect_history("the history", turn("asked"), writing.conversation_id)
    await writing.expect_facts()
    silent = await bench.ended(writing.conversation_id)
    bench.expect("the ending without messages", "completed", (await silent.record()).ending)
    await bench.expect_history("the history after it", turn("asked"), writing.conversation_id)


@check("order-of-endings", JOURNAL)
async def order_of_endings(bench: Bench) -> None:
    """Turns are in the order in which their requests ended, among those that were remembered without a request."""
    conversation_id = bench.new_id("conversation")
    first, second = await bench.begun(conversation_id), await bench.begun(conversation_id)
    await bench.store.remember(conversation_id, turn("remembered"))
    await second.end(*turn("second"))
    await bench.store.remember(conversation_id, turn("remembered later"))
    await first.end(*turn("first"))
    expected = [*turn("remembered"), *turn("second"), *turn("remembered later"), *turn("first")]
    await bench.expect_history("the history", expected, conversation_id)


@check("messages-after-the-ending", JOURNAL)
async def messages_after_the_ending(bench: Bench) -> None:
    """Messages of a request that has ended come after its turn; after its deletion, they are not appended any more."""
    conversation_id = bench.new_id("conversation")
    ended = await bench.ended(conversation_id, *turn("asked"))
    await bench.store.remember(conversation_id, turn("later"), request_id=ended.request_id)
    await bench.expect_history("the history", [*turn("asked"), *turn("later")], conversation_id)
    for anew in ([], turn("anew")):
        await bench.store.forget(conversation_id)
        await bench.store.remember(conversation_id, anew)
        await bench.store.remember(conversation_id, turn("too late"), request_id=ended.request_id)
        await bench.expect_history("the history after it was deleted", anew, conversation_id)


@check("listing-of-turns", JOURNAL, EMPTY)
async def listing_of_turns(bench: Bench) -> None:
    """Conversations whose turns come from requests are listed and found like others; those without a turn are not."""
    store = bench.store
    await bench.ended("a", *turn("What is the weather like?"))
    await bench.tick()
    await store.remember("b", turn("second"))
    await bench.tick()
    later = await bench.begun("a")
    await bench.begun("none yet")
    bench.expect("the ids", ["b", "a"], [each.conversation_id for each in await store.conversations()])
    await later.end(*turn("And tomorrow?"))
    found = [*await store.conversations()]
    listed = [(each.conversation_id, each.title, each.message_count) for each in found]
    bench.expect("the list", [("a", "What is the weather like?", 4), ("b", "second", 2)], listed)
    for text, ids in (("TOMORROW", ["a"]), ("answer to", ["a", "b"]), ("fact", [])):
        got = [each.conversation_id for each in await store.conversations(search=text)]
        bench.expect(f"the conversations with {text!r}", ids, got)
    [first, *_] = found
    bench.require("its times", "of the first turn and of the newest", first, ok=first.started_at < first.updated_at)


@check("atomic-endings", JOURNAL)
async def atomic_endings(bench: Bench) -> None:
    """A request's ending and its turn in the history become visible together, for every reader."""
    for _ in range(3):
        writing = await bench.begun()
        seen: list[str] = []

        async def end(writing: Writing = writing) -> None:
            await writing.end(*turn("asked"))

        async def read(writing: Writing = writing, seen: list[str] = seen) -> None:
            ended = False
            while not ended:
                before = await bench.history(writing.conversation_id)
                ended = (await writing.record()).ending is not None
                after = await bench.history(writing.conversation_id)
                if before and not ended:
                    seen.append("a turn in the history of a request that has not ended")
                if ended and not after:
                    seen.append("a request that has ended, and no turn in the history")
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(end)
        bench.expect("inconsistent reads", [], seen)


@check("many-endings", JOURNAL)
async def many_endings(bench: Bench) -> None:
    """If requests of one conversation end at once, each adds its whole turn; the first turn gives the title."""
    conversation_id = bench.new_id("crowded")
    writings = [await bench.begun(conversation_id) for _ in range(12)]
    async with anyio.create_task_group() as tasks:
        for writing in writings:
            tasks.start_soon(writing.end, *turn(writing.request_id))
    kept = await bench.history(conversation_id)
    pieces = sorted(repr(kept[n : n + 2]) for n in range(0, len(kept), 2))
    expected = sorted(repr(turn(each.request_id)) for each in writings)
    bench.require("the history", "12 whole turns, in any order", kept, ok=pieces == expected)
    titles = [each.title for each in await bench.store.conversations(search=writings[0].request_id)]
    first = [each.content for each in kept[:1] if isinstance(each, UserMessage)]
    bench.expect("the title, which is the first prompt", first, titles)


@check("abandoning", JOURNAL)
async def abandoning(bench: Bench) -> None:
    """Only the holder of a request's lease can abandon it: the request ends without a turn, and does not continue."""
    journal = bench.journal
    writing = await bench.begun(seconds=0)
    await bench.until(writing.is_free)
    await journal.take(writing.request_id, "b", HOUR)
    bench.expect("whether it was abandoned with an old lease", False, await journal.abandon(writing.request_id, 1))
    bench.expect("the ending after that", None, (await writing.record()).ending)
    bench.expect("whether it was abandoned with the newest lease", True, await journal.abandon(writing.request_id, 2))
    record = await writing.record()
    bench.expect("ending and owner", ("abandoned", ""), (record.ending, record.owner))
    bench.require("the time of the ending", "a time", record.ended_at, ok=record.ended_at is not None)
    writing.epoch = 2
    await bench.refused("an append after abandoning", journal.append(writing.entry(writing.made(1))))
    await writing.expect_nothing_new("abandoning it")
    bench.expect("whether the request is unfinished", False, await writing.is_free())
    bench.expect("the lease that is taken after abandoning", None, await journal.take(writing.request_id, "c", HOUR))
    await bench.expect_history("the history", [], writing.conversation_id)
    ended = await bench.ended()
    bench.expect("whether an ended request was abandoned", False, await journal.abandon(ended.request_id, 1))
    bench.expect("its ending", "completed", (await ended.record()).ending)
    bench.expect("whether an unknown request was abandoned", False, await journal.abandon(bench.new_id("unknown"), 1))


@check("forgetting-requests", JOURNAL)
async def forgetting_requests(bench: Bench) -> None:
    """Forgetting removes a conversation's requests from the journal too, unless one is unfinished or about to begin."""
    store, journal = bench.store, bench.journal
    writing = await bench.ended("", *turn("first"))
    beside = await bench.ended("", *turn("beside"))
    unfinished = await bench.begun(writing.conversation_id)
    for state in ("is held", "can be taken"):
        await bench.refused(f"forgetting while a request {state}", store.forget(writing.conversation_id))
        await bench.expect_history("the history after that", turn("first"), writing.conversation_id)
        await writing.expect_nothing_new("a refusal")
        await unfinished.expect_nothing_new("a refusal")
        await journal.release(unfinished.request_id, 1)
    await unfinished.end(*turn("second"))
    kept = await store.history(writing.conversation_id)
    coming = writing.conversation_id, bench.new_id("coming")
    bench.expect("whether a request has the turn", True, await journal.take_turn(*coming, bench.new_id("owner"), HOUR))
    await bench.refused("forgetting while a request is about to begin", store.forget(writing.conversation_id))
    bench.expect("the history after that", [*kept], [*await store.history(writing.conversation_id)])
    await journal.return_turn(*coming)
    bench.expect("whether the conversation was forgotten", True, await store.forget(writing.conversation_id))
    await bench.expect_history("the history", [], writing.conversation_id)
    for each in (writing, unfinished):
        bench.expect("the records of its requests", None, await journal.request(each.request_id))
        bench.expect("their facts", [], [*await journal.facts(each.request_id)])
    await beside.expect_nothing_new("another conversation was forgotten")
    await bench.expect_history("the history of another conversation", turn("beside"), beside.conversation_id)
    again = bench.writing(writing.conversation_id, request_id=writing.request_id)
    await again.begin(agreed={"begun": "anew"})
    await again.expect_nothing_new("forgetting, and a new beginning")
    bench.expect("the agreement after the new beginning", {"begun": "anew"}, dict((await again.record()).agreed))
    silent = await bench.ended()
    bench.expect(
        "whether a conversation with a request and no turn was forgotten",
        True,
        await store.forget(silent.conversation_id),
    )


@check("pruning", JOURNAL, EMPTY)
async def pruning(bench: Bench) -> None:
    """Only requests that ended before a moment lose their facts, and their ids may be used again; messages stay."""
    journal = bench.journal
    unfinished = await bench.begun(seconds=0)
    old = [await bench.ended("", *turn("old")) for _ in range(2)]
    await bench.tick()
    new = await bench.ended("", *turn("new"))
    moment = (await new.record()).ended_at
    assert moment is not None
    nothing = await journal.prune(before=(await old[0].record()).started_at)
    bench.expect("requests that ended before the first began", 0, nothing.requests)
    pruned = await journal.prune(before=moment)
    bench.expect("requests and conversations that were pruned", (2, 0), (pruned.requests, pruned.conversations))
    bench.require("the pruned data", "some bytes", pruned, ok=pruned.size_bytes > 0)
    for each in old:
        bench.expect("the facts of an old request", [], [*await journal.facts(each.request_id)])
        await bench.expect_history("its history", turn("old"), each.conversation_id)
    await new.expect_nothing_new("older ones were pruned")
    await unfinished.expect_nothing_new("others were pruned")
    second = await journal.prune(before=moment)
    bench.expect("the second pruning", (0, 0, 0), (second.requests, second.conversations, second.size_bytes))
    await bench.tick()
    everything = await journal.prune(before=moment + HOUR)
    bench.expect("requests that are pruned if all are old", 1, everything.requests)
    await unfinished.expect_nothing_new("all others were pruned")
    again = bench.writing(old[0].conversation_id, request_id=old[0].request_id)
    await again.begin()
    await again.end(*turn("again"))
    messages = len(await bench.history(old[0].conversation_id))
    bench.expect("the number of messages after a request that was pruned has begun again and ended", 4, messages)


@check("pruning-conversations", JOURNAL, EMPTY)
async def pruning_conversations(bench: Bench) -> None:
    """With `conversations`, those unchanged since then go too, unless a request is unfinished, new or yet to begin."""
    store, journal = bench.store, bench.journal
    for each in ("plain", "unfinished", "newer", "grown", "coming"):
        await store.remember(each, turn(each))
    old = await bench.ended("old", *turn("old"))
    unfinished = await bench.begun("unfinished", seconds=0)
    newer = await bench.begun("newer")
    await journal.take_turn("coming", bench.new_id("coming"), bench.new_id("owner"), HOUR)
    await bench.tick()
    between = await bench.begun("between")
    await store.remember("edge", turn("edge"))
    [edge] = await store.conversations(search="edge")
    moment = edge.updated_at
    await bench.tick()
    await between.end(*turn("between"))
    await newer.end()
    await store.remember("grown", turn("more"))
    pruned = await journal.prune(before=moment, conversations=True)
    bench.expect("requests and conversations that were pruned", (1, 2), (pruned.requests, pruned.conversations))
    bench.require("the pruned data", "some bytes", pruned, ok=pruned.size_bytes > 0)
    listed = sorted(each.conversation_id for each in await store.conversations())
    bench.expect("the conversations that stay", ["between", "coming", "edge", "grown", "newer", "unfinished"], listed)
    await bench.expect_history("the history of a pruned conversation", [], "plain")
    bench.expect("the facts of its request", [], [*await journal.facts(old.request_id)])
    await bench.expect_history("the history of a conversation with a newer turn", turn("grown") + turn("more"), "grown")
    await bench.expect_history("the history of a conversation with a newer request", turn("newer"), "newer")
    await unfinished.expect_nothing_new("others were pruned")


@check("statistics", JOURNAL, EMPTY)
async def statistics(bench: Bench) -> None:
    """Statistics add up: requests, facts, conversations, messages, bytes; all are 0 after everything is forgotten."""
    store, journal = bench.store, bench.journal
    _held(bench, "an empty store", (0, 0, 0, 0, 0), await journal.statistics())
    ended = await bench.ended("a", *turn("first"))
    unfinished = await bench.begun("b")
    await unfinished.step(*unfinished.made(3))
    await store.remember("c", [*turn("second"), *turn("third")])
    counted = await journal.statistics()
    _held(bench, "two requests", (2, 1, 6, 2, 6), counted)
    bench.expect("the number of appends", 4, counted.appends)
    bench.require("the number of commits", "at least 1", counted.commits, ok=counted.commits >= 1)
    journalled = [(await each.record()).size_bytes for each in (ended, unfinished)]
    enough = counted.size_bytes >= sum(journalled)
    bench.require("the size", f"no less than that of the requests, {journalled}", counted.size_bytes, ok=enough)
    await unfinished.end(*turn("fourth"))
    await journal.prune(before=(await unfinished.record()).started_at + HOUR)
    pruned = await journal.statistics()
    got = (pruned.facts, pruned.conversations, pruned.messages)
    bench.expect("facts, conversations and messages after requests were pruned", (0, 3, 8), got)
    bench.require("the size then", "less than before", pruned.size_bytes, ok=0 < pruned.size_bytes < counted.size_bytes)
    for each in "abc":
        await store.forget(each)
    forgotten = await journal.statistics()
    _held(bench, "a store in which everything was forgotten", (0, 0, 0, 0, 0), forgotten)
    bench.expect("its size", 0, forgotten.size_bytes)


@check("shared-texts", JOURNAL, EMPTY)
async def shared_texts(bench: Bench) -> None:
    """A large text that facts and messages share stays until the last of them is forgotten or pruned."""
    store, journal = bench.store, bench.journal
    text = "one of many lines\n" * 10_000
    for each in "ab":
        await store.remember(each, turn(f"{each}, by itself: {text}"))
        writing = await bench.begun(each)
        await writing.step(ToolCallCompleted(request_id=writing.request_id, call_id="c", name="read", content=text))
        await writing.end(*turn(text))
    unfinished = await bench.begun("c")
    await unfinished.step(ToolCallCompleted(request_id=unfinished.request_id, call_id="c", name="read", content=text))
    await store.forget("a")
    kept = [*turn(f"b, by itself: {text}"), *turn(text)]
    await bench.expect_history("the history after another conversation was forgotten", kept, "b")
    await journal.prune(before=(await unfinished.record()).started_at + HOUR)
    await bench.expect_history("the history after its request was pruned", kept, "b")
    await store.forget("b")
    await unfinished.expect_nothing_new("all others were forgotten")
    await unfinished.end(*turn(text))
    await journal.prune(before=(await unfinished.record()).started_at + HOUR, conversations=True)
    left = await journal.statistics()
    bench.expect(
        "facts, messages and bytes after all was pruned", (0, 0, 0), (left.facts, left.messages, left.size_bytes)
    )


def _held(bench: Bench, what: str, expected: tuple[int, ...], counted: StoreStatistics) -> None:
    got = (counted.requests, counted.unfinished, counted.facts, counted.conversations, counted.messages)
    bench.expect(f"requests, unfinished ones, facts, conversations and messages of {what}", expected, got)
