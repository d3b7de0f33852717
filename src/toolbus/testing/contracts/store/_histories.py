"""Checks of conversations: how turns are remembered, listed, found and forgotten."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from ....errors import ToolbusError
from ....messages import AssistantMessage, Message, SystemMessage, TextPart, ToolMessage, UserMessage
from ....storage import ConversationRecord
from ._bench import EMPTY, MOMENTS, SHARED, Bench, check, interrupted, turn
from ._samples import HALVES, ODD_IDS, UNUSUAL_IDS, all_messages

_MIB = 2**20


@check("histories")
async def histories(bench: Bench) -> None:
    """Turns are returned in their order, and conversations do not mix; an unknown conversation has no messages."""
    one, other = bench.new_id("one"), bench.new_id("other")
    await bench.expect_history("the history of an unknown conversation", [], one)
    await bench.store.remember(one, turn("first"))
    await bench.store.remember(other, turn("second"))
    earlier = await bench.store.history(one)
    await bench.store.remember(one, turn("third"))
    await bench.expect_history("the history", turn("first") + turn("third"), one)
    await bench.expect_history("the other history", turn("second"), other)
    bench.expect("a history that was read before the newest turn", turn("first"), [*earlier])


@check("messages")
async def messages(bench: Bench) -> None:
    """Each kind of message comes back equal, with all its fields and parts, including NUL and emoji."""
    conversation_id = bench.new_id("kinds")
    for each in all_messages():
        await bench.store.remember(conversation_id, [each])
    await bench.expect_history("the history", all_messages(), conversation_id)
    whole = bench.new_id("whole")
    await bench.store.remember(whole, all_messages())
    await bench.expect_history("the history", all_messages(), whole)


@check("half-characters")
async def half_characters(bench: Bench) -> None:
    """Half of a surrogate pair is kept as it is or as a question mark, and the text around it is kept."""
    conversation_id = bench.new_id("halves")
    await bench.store.remember(conversation_id, [UserMessage(content=HALVES), *turn(f"behind {conversation_id}")])
    [first, *rest] = await bench.history(conversation_id)
    text = first.content if isinstance(first, UserMessage) else None
    asked = HALVES.encode("utf-8", "replace").decode()
    bench.require("the text", f"{asked!r}, or half characters in place of the marks", text, ok=text in {asked, HALVES})
    bench.expect("the messages after it", turn(f"behind {conversation_id}"), rest)
    found = [each.conversation_id for each in await bench.store.conversations(search=f"behind {conversation_id}")]
    bench.expect("the conversations with that text", [conversation_id], found)


@check("odd-ids", EMPTY)
async def odd_ids(bench: Bench) -> None:
    """Ids of conversations are any text, and are compared exactly; an id with NUL may be refused with an error."""
    refused: list[str] = []
    for each in (*ODD_IDS, *UNUSUAL_IDS):
        try:
            await bench.store.remember(each, turn(f"in {each!r}"))
        except ToolbusError:
            refused.append(each)
    bench.expect("ids that were refused", [], [each for each in refused if each in ODD_IDS])
    kept = [each for each in (*ODD_IDS, *UNUSUAL_IDS) if each not in refused]
    for each in kept:
        await bench.expect_history(f"the history of {each!r}", turn(f"in {each!r}"), each)
    listed = [each.conversation_id for each in await bench.store.conversations()]
    bench.expect("the ids in the list, sorted", sorted(kept), sorted(listed))


@check("large-messages", EMPTY)
async def large_messages(bench: Bench) -> None:
    """A turn with texts of 1 MiB and results of 5 MiB, 18 MiB in all, comes back whole."""
    conversation_id = bench.new_id("large")
    large: list[Message] = [
        UserMessage(content="ü" * (_MIB // 2)),
        AssistantMessage(text="x" * _MIB),
        *(ToolMessage(call_id=f"r_0_{n}", name="read", content=f"line {n} of a log\n" * (_MIB // 3)) for n in range(3)),
        AssistantMessage(text="😀" * (_MIB // 4)),
    ]
    await bench.store.remember(conversation_id, large)
    await bench.expect_history("the history", large, conversation_id)


@check("many-turns")
async def many_turns(bench: Bench) -> None:
    """Turns that are remembered at once do not mix: each is whole and in one piece, even for a concurrent reader."""
    conversation_id = bench.new_id("crowded")
    turns = _turns_of_three(20)
    torn: list[int] = []

    async def read() -> None:
        while True:
            length = len(await bench.history(conversation_id))
            if length % 3:
                torn.append(length)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as readers:
        readers.start_soon(read)
        async with anyio.create_task_group() as writers:
            for each in turns:
                writers.start_soon(bench.store.remember, conversation_id, each)
        readers.cancel_scope.cancel()
    bench.expect("lengths in the middle of a turn", [], torn)
    await _expect_turns(bench, conversation_id, turns)


@check("many-turns-of-two-stores", SHARED)
async def many_turns_of_two_stores(bench: Bench) -> None:
    """If two stores over the same data remember turns of one conversation at once, each turn is kept, whole."""
    conversation_id = bench.new_id("crowded from two sides")
    turns = _turns_of_three(20)
    stores = [bench.store, await bench.another()]
    async with anyio.create_task_group() as writers:
        for number, each in enumerate(turns):
            writers.start_soon(stores[number % 2].remember, conversation_id, each)
    await _expect_turns(bench, conversation_id, turns)


def _turns_of_three(count: int) -> list[list[Message]]:
    return [
        [UserMessage(content=f"{n}"), AssistantMessage(text=f"{n}a"), AssistantMessage(text=f"{n}b")]
        for n in range(count)
    ]


async def _expect_turns(bench: Bench, conversation_id: str, turns: Sequence[Sequence[Message]]) -> None:
    kept = await bench.history(conversation_id)
    pieces = [kept[n : n + 3] for n in range(0, len(kept), 3)]
    wanted = f"{len(turns)} whole turns of 3 messages, in any order"
    bench.require("the history", wanted, kept, ok=_sorted(turns) == _sorted(pieces))


def _sorted(turns: Sequence[Sequence[Message]]) -> list[str]:
    return sorted(repr([*each]) for each in turns)


@check("remember-cancelled")
async def remember_cancelled(bench: Bench) -> None:
    """A turn whose writing is cancelled is stored whole or not at all, at once and for good."""
    for moment in MOMENTS:
        conversation_id = bench.new_id("cancelled")
        messages = turn("one") + turn("two") + turn("three")

        async def act(conversation_id: str = conversation_id, messages: Sequence[Message] = messages) -> None:
            await bench.store.remember(conversation_id, messages)

        done = await interrupted(act, moment)
        got = await bench.history(conversation_id)
        if done or got:
            bench.expect("the turn, if remember() returned or a part of the turn is stored", messages, got)
        await bench.store.remember(conversation_id, turn("behind"))
        await bench.expect_history("the history, with one more turn", got + turn("behind"), conversation_id)


@check("reads-cancelled")
async def reads_cancelled(bench: Bench) -> None:
    """A cancelled read leaves the store as it was: the next read and the next turn work as usual."""
    conversation_id = bench.new_id("read")
    for moment in MOMENTS:
        await bench.store.remember(conversation_id, turn(f"at {moment}") * 50)
        for act in (
            lambda: bench.store.history(conversation_id),
            lambda: bench.store.conversations(search=conversation_id),
        ):
            await interrupted(act, moment)
    expected = [message for moment in MOMENTS for message in turn(f"at {moment}") * 50]
    await bench.expect_history("the history", expected, conversation_id)


@check("listing", EMPTY)
async def listing(bench: Bench) -> None:
    """Conversations are listed with title, size and times, the most recently changed first, at most `limit`."""
    store = bench.store
    bench.expect("the conversations of an empty store", [], [*await store.conversations()])
    prompt = "What is the weather like in Zürich?"
    await store.remember("a", [SystemMessage(text="Be brief."), *turn(prompt)])
    await bench.tick()
    await store.remember("b", turn("word " * 1_000))
    await bench.tick()
    await store.remember("c", turn("third"))
    await bench.tick()
    await store.remember("a", turn("And tomorrow?"))
    got = [*await store.conversations()]
    bench.expect("the ids", ["a", "c", "b"], [each.conversation_id for each in got])
    bench.expect(
        "the ids, at most two", ["a", "c"], [each.conversation_id for each in await store.conversations(limit=2)]
    )
    for conversation_id in ("Ann/1", "ann/1", "ann/2", "ann", "annie/1", "%/1", "an_/1"):
        await store.remember(conversation_id, turn("first"))
    for prefix, expected in (("ann/", ["ann/1", "ann/2"]), ("%", ["%/1"]), ("an_", ["an_/1"]), ("nobody", [])):
        begin = [each.conversation_id for each in await store.conversations(prefix=prefix)]
        bench.expect(f"the ids that begin with {prefix!r}", expected, sorted(begin))
    both = [each.conversation_id for each in await store.conversations(prefix="ann/", search="first", limit=1)]
    bench.expect("the number of those with a text, at most one", 1, len(both))
    found = {each.conversation_id: each for each in got}
    if len(found) == 3:
        _described(bench, found, prompt)


def _described(bench: Bench, found: dict[str, ConversationRecord], prompt: str) -> None:
    a, b, c = (found[each] for each in "abc")
    bench.expect("the numbers of messages", [5, 2, 2], [each.message_count for each in (a, b, c)])
    bench.expect("the title", prompt, a.title)
    began = b.title.startswith("word word word") and len(b.title) < 1_000
    bench.require("the title for a long prompt", "its beginning", b.title, ok=began)
    begun = [each.started_at for each in (a, b, c)]
    bench.require("the times of the first turns", "later for each", begun, ok=begun == sorted(set(begun)))
    bench.require("the newest turn of a", "after its first", a, ok=a.updated_at > a.started_at)
    bench.expect("the newest turn of c, which is its first", c.started_at, c.updated_at)


@check("search", EMPTY)
async def search(bench: Bench) -> None:
    """A search finds texts of messages of all roles, without wildcards; ASCII letters match in both cases."""
    said: dict[str, Sequence[Message]] = {
        "percent": turn("100% of it"),
        "digits": turn("1000 of it, a_b"),
        "letters": turn("axb and back\\slash, it's"),
        "city": turn("Zürich, the KELVIN scale, straße \x00 behind nul"),
        "kelvin sign": turn("300 \u212a"),
        "parts": [UserMessage(content=(TextPart(text="one part"), TextPart(text="another 😀")))],
        "tool": [*turn("x"), ToolMessage(call_id="c", name="n", content="from the Tool")],
        "notes": [SystemMessage(text="from the system"), *turn("y")],
    }
    for conversation_id, messages in said.items():
        await bench.store.remember(conversation_id, messages)
    wanted: dict[str, set[str]] = {
        "": set(said),
        "100%": {"percent"},
        "%": {"percent"},
        "A_B": {"digits"},
        "_": {"digits"},
        "x": {"letters", "tool"},
        "back\\s": {"letters"},
        "it's": {"letters"},
        "züRICH": {"city"},
        "ZÜRICH": set(),
        "kelvin": {"city"},
        "k": {"city", "letters"},
        "STRASSE": set(),
        "behind NUL": {"city"},
        "😀": {"parts"},
        "FROM THE tool": {"tool"},
        "from the": {"tool", "notes"},
        "answer to: 1": {"percent", "digits"},
        "of itAnswer": set(),
        ".*": set(),
        "[a-z]": set(),
        "nobody said this": set(),
    }
    for text, ids in wanted.items():
        got = {each.conversation_id for each in await bench.store.conversations(search=text)}
        bench.expect(f"the conversations with {text!r}", sorted(ids), sorted(got))
    few = await bench.store.conversations(search="of it", limit=1)
    bench.expect("conversations with 'of it', at most one", 1, len(few))


@check("forgetting")
async def forgetting(bench: Bench) -> None:
    """A forgotten conversation is gone, and may begin again; others stay. Returns False for an unknown conversation."""
    store = bench.store
    one, other = bench.new_id("one"), bench.new_id("other")
    await store.remember(one, turn("first"))
    await store.remember(other, turn("second"))
    bench.expect("whether an unknown conversation was forgotten", False, await store.forget(bench.new_id("unknown")))
    bench.expect("whether the conversation was forgotten", True, await store.forget(one))
    await bench.expect_history("its history", [], one)
    listed = [each.conversation_id for each in await store.conversations(limit=1_000)]
    bench.require("the conversations", "only the other one", listed, ok=one not in listed and other in listed)
    bench.expect("whether the conversation was forgotten a second time", False, await store.forget(one))
    await bench.expect_history("the other history", turn("second"), other)
    await store.remember(one, turn("anew"))
    await bench.expect_history("its history, begun again", turn("anew"), one)


@check("closing")
async def closing(bench: Bench) -> None:
    """A store may be closed twice, and used afterwards: its data are there, and more can be added."""
    conversation_id = bench.new_id("closed")
    await bench.store.remember(conversation_id, turn("before"))
    await bench.store.aclose()
    await bench.store.aclose()
    await bench.expect_history("the history after it", turn("before"), conversation_id)
    await bench.store.aclose()
    await bench.store.remember(conversation_id, turn("after"))
    await bench.expect_history("the history with another turn", turn("before") + turn("after"), conversation_id)
