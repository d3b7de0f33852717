"""The memory store: what it keeps, in which order, and what its bounds drop."""

from __future__ import annotations

from typing import Any

import pytest

from support.store_entries import entry, write_whole
from toolbus.clock import wall_time_from
from toolbus.errors import ConfigurationError
from toolbus.events import CancelRequested
from toolbus.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from toolbus.stores.memory import MemoryStore


def turn(text: str) -> list[Message]:
    return [UserMessage(content=text), AssistantMessage(text=text)]


async def test_turns_are_given_back_in_their_order_and_conversations_do_not_mix() -> None:
    store = MemoryStore()
    await store.remember("a", turn("one"))
    await store.remember("b", turn("other"))
    await store.remember("a", turn("two"))
    assert list(await store.history("a")) == turn("one") + turn("two")
    assert list(await store.history("b")) == turn("other")
    assert list(await store.history("unknown")) == []
    assert store.journal is None
    await store.aclose()
    await store.aclose()


async def test_the_newest_conversation_is_listed_first_though_the_clock_stands_still() -> None:
    store = MemoryStore()
    with wall_time_from(lambda: 1_750_000_000.0):
        for name in ("a", "b", "a"):
            await store.remember(name, turn(name))
    await store.history("b")
    assert [each.conversation_id for each in await store.conversations()] == ["a", "b"]


async def test_a_history_that_was_given_does_not_grow() -> None:
    store = MemoryStore()
    await store.remember("a", turn("one"))
    history = await store.history("a")
    await store.remember("a", turn("two"))
    assert len(history) == 2


@pytest.mark.parametrize("use", ["read", "written"])
async def test_past_its_bound_in_conversations_the_one_used_longest_ago_is_dropped(use: str) -> None:
    store = MemoryStore(max_conversations=2)
    for name in ("a", "b"):
        await store.remember(name, turn(name))
    await (store.history("a") if use == "read" else store.remember("a", turn("more")))
    await store.remember("c", turn("c"))
    assert [bool(await store.history(name)) for name in ("a", "b", "c")] == [True, False, True]
    assert (store.statistics().conversations, store.statistics().dropped) == (2, 1)


async def test_past_its_bound_in_bytes_old_conversations_go_but_the_newest_stays() -> None:
    store = MemoryStore(max_bytes=5_000)
    for number in range(10):
        await store.remember(f"c{number}", turn("x" * 500))
    assert store.statistics().size_bytes <= 5_000
    await store.remember("huge", turn("y" * 50_000))
    assert len(await store.history("huge")) == 2
    assert store.statistics().conversations == 1
    await store.remember("next", turn("z"))
    assert store.statistics().size_bytes < 5_000


async def test_what_its_bound_in_bytes_just_holds_is_kept() -> None:
    store = MemoryStore(max_bytes=1_000)
    for name in ("a", "b"):
        await store.remember(name, [SystemMessage(text="s" * 100)])
    assert (store.statistics().size_bytes, store.statistics().dropped) == (1_000, 0)


async def test_every_kind_of_message_counts() -> None:
    store = MemoryStore()
    before = 0
    messages: list[Message] = [
        SystemMessage(text="s" * 100),
        UserMessage(content=(TextPart(text="t" * 100), ImagePart(url="u" * 100))),
        AssistantMessage(reasoning="r" * 100, tool_calls=(ToolCall(name="n", arguments="a" * 100),)),
        ToolMessage(call_id="c", name="n", content="é" * 100),
    ]
    for message in messages:
        await store.remember("c", [message])
        assert store.statistics().size_bytes >= before + 100
        before = store.statistics().size_bytes


async def test_pruning_reports_what_is_counted_no_more() -> None:
    journal: Any = MemoryStore(journal=True).journal
    now = 1_750_000_000.0
    with wall_time_from(lambda: now):
        await write_whole(journal, "r1", "old")
        await write_whole(journal, "r2", "old")
        await write_whole(journal, "r3", "busy")
        assert await journal.take_turn("old", "r5", "a process that was killed", 1.0)
        now += 60
        await write_whole(journal, "r4", "busy")
        for conversations, expected in ((False, (3, 0)), (True, (0, 1)), (True, (0, 0))):
            before = await journal.statistics()
            pruned = await journal.prune(before=now, conversations=conversations)
            after = await journal.statistics()
            assert (pruned.requests, pruned.conversations) == expected
            assert pruned.requests == before.requests - after.requests
            assert pruned.conversations == before.conversations - after.conversations
            assert pruned.size_bytes == before.size_bytes - after.size_bytes
            assert (pruned.size_bytes > 0) == any(expected)
        assert (after.requests, after.conversations) == (1, 1)


async def test_at_the_moment_at_which_a_lease_runs_out_it_is_free_for_everything() -> None:
    journal: Any = MemoryStore(journal=True).journal
    now = begun = 1_750_000_000.0
    with wall_time_from(lambda: now):
        for request_id in ("held", "free at once", "parked", "parked too", "awake"):
            await journal.append(entry(request_id, conversation_id=request_id, lease_seconds=60))
        await journal.release("free at once", 1)
        for request_id in ("parked", "parked too", "awake"):
            await journal.park(request_id, 1, 60)
        for request_id in ("held", "awake"):
            await journal.send(CancelRequested(request_id=request_id, event_id=request_id))
        for attempt in (1, 2):  # the second time, it is parked although an input waits
            assert (await journal.request("awake")).lease_until == 0
            assert (await journal.take("awake", "heir", 3_600)).owner == "heir"
            if attempt == 1:
                await journal.park("awake", 2, 60)
        assert await journal.take_turn("talk", "waits", "worker", 60)

        async def state() -> tuple[list[str], bool, bool, bool]:
            is_held = (await journal.receipt("held", "held")).is_held
            turns = [await journal.take_turn(*each, "other", 60) for each in (("held", "next"), ("talk", "next"))]
            return [each.request_id for each in await journal.unfinished()], is_held, *turns

        now = begun + 59
        assert await state() == (["free at once"], True, False, False)
        now = begun + 60
        assert await state() == (["held", "free at once", "parked", "parked too"], False, True, True)
        for request_id in ("held", "free at once", "parked", "parked too"):
            assert (await journal.take(request_id, "heir", 60)).owner == "heir"
        assert await journal.unfinished() == []


async def test_each_lease_of_an_owner_runs_out_at_its_own_time_and_a_renewal_shortens_none() -> None:
    journal: Any = MemoryStore(journal=True).journal
    now = begun = 1_750_000_000.0

    async def free(seconds: float = 0.0) -> list[str]:
        nonlocal now
        now = begun + seconds if seconds else now
        return [each.request_id for each in await journal.unfinished()]

    with wall_time_from(lambda: now):
        for request_id, seconds in (("short", 10), ("long", 100), ("shorter", 5)):
            await journal.append(entry(request_id, lease_seconds=seconds))
        assert [await free(4), await free(5), await free(10)] == [[], ["shorter"], ["short", "shorter"]]
        assert len(await journal.renew("worker", 20)) == 3
        assert [await free(), (await journal.request("long")).lease_until] == [[], begun + 100]
        assert await free(30) == ["short", "shorter"]
        assert (await journal.take("short", "heir", 5)).owner == "heir"
        await journal.release("shorter", 1)
        assert len(await journal.renew("worker", 1)) == 1
        assert [await free(34), await free(35)] == [["shorter"], ["short", "shorter"]]
        assert await free(100) == ["short", "long", "shorter"]
        assert len(await journal.renew("", 9)) == 0


async def test_a_turn_waits_for_an_earlier_request_and_not_for_itself() -> None:
    journal: Any = MemoryStore(journal=True).journal
    await journal.append(entry("r"))
    await journal.append(entry("later"))
    assert not await journal.take_turn("c", "later", "another", 60)
    assert await journal.take_turn("c", "r", "another", 60)


async def test_inputs_wait_until_each_of_them_is_settled() -> None:
    journal: Any = MemoryStore(journal=True).journal
    for request_id in ("r", "s"):
        await journal.append(entry(request_id))
        for number in range(3):
            await journal.send(CancelRequested(request_id=request_id, event_id=f"{request_id}{number}"))

    async def waiting(**options: Any) -> list[str]:
        return [each.event_id for each in await journal.waiting("worker", **options)]

    assert await waiting() == ["r0", "r1", "r2", "s0", "s1", "s2"]
    assert await waiting(without=["r1"], limit=2) == ["r0", "r2"]
    await journal.settle("r", "r1", "refused", "no")
    await journal.settle("r", "r1", "taken")  # The first decision counts.
    await journal.settle("r", "x", "taken")
    assert await waiting() == ["r0", "r2", "s0", "s1", "s2"]
    for event_id, state, reason in (("r0", "waiting", ""), ("r1", "refused", "no"), ("x", "unknown", "")):
        receipt = await journal.receipt("r", event_id)
        assert (receipt.state, receipt.reason) == (state, reason)
    await journal.release("r", 1)
    assert await waiting() == ["s0", "s1", "s2"]
    assert await journal.waiting("") == []


async def test_requests_are_counted() -> None:
    journal: Any = MemoryStore(journal=True).journal
    await write_whole(journal, "r1")
    await journal.append(entry("r2", lease_seconds=0))
    await journal.append(entry("r3", lease_seconds=0))
    found = await journal.statistics()
    assert (found.requests, found.unfinished, found.appends, found.commits) == (3, 2, 5, 5)


@pytest.mark.parametrize(
    ("message", "size_bytes"),
    [
        (SystemMessage(text="s" * 100), 100),
        (SystemMessage(text="é" * 100), 400),
        (UserMessage(content="t" * 100), 100),
        (UserMessage(content=(TextPart(text="t" * 100), ImagePart(url="u" * 100))), 200),
        (AssistantMessage(text="t" * 10, reasoning="r" * 100), 410),
        (AssistantMessage(tool_calls=(ToolCall(name="n", arguments="a" * 100),)), 500),
        (AssistantMessage(tool_calls=(ToolCall(name="n", arguments="é" * 100),)), 800),
        (ToolMessage(call_id="c", name="n", content="c" * 100), 100),
    ],
)
async def test_a_message_counts_with_its_overhead_and_four_bytes_for_a_wide_character(
    message: Message, size_bytes: int
) -> None:
    store = MemoryStore()
    await store.remember("c", [message])
    assert store.statistics().size_bytes == 400 + size_bytes


@pytest.mark.parametrize("options", [{"max_conversations": 0}, {"max_bytes": 0}])
def test_bounds_below_one_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="at least 1"):
        MemoryStore(**options)
