"""What is sent of a conversation is worked out once for each message, however many turns it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from toolbus import Compression, Denied, Interceptor, Runtime, ToolContext, tool
from toolbus.core.compression import Edit, Fold, HistoryItem
from toolbus.events import HistoryCompressed
from toolbus.messages import ImagePart, Message, ToolMessage, UserMessage
from toolbus.protocols import ModelRequest
from toolbus.runtime._conversations import BoundedMapping
from toolbus.storage import Store
from toolbus.stores.memory import MemoryStore
from toolbus.stores.sqlite import SqliteStore
from toolbus.testing import ScriptedProvider, calls, text

PIXEL = ImagePart.from_bytes(b"\x89PNG\r\n\x1a\n", "image/png")


@tool(kind="query")
async def look(n: int) -> list[str | ImagePart]:
    """Look around."""
    return [f"{n} trees. " * 60, PIXEL]


class Counting:
    """A policy that counts how often its folds see each message."""

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()
        self.folds = 0

    def fold(self) -> Fold:
        self.folds += 1
        return self

    def add(self, seen: HistoryItem) -> Iterable[Edit]:
        self.seen[seen.position] += 1
        return ()


def model(request: ModelRequest) -> Any:
    turn = sum(isinstance(each, UserMessage) for each in request.messages)
    return calls(("look", {"n": turn})) if request.round == 0 else text(f"Answer {turn}.")


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "toolbus.db")


def shortened(messages: Iterable[Message]) -> int:
    return sum(isinstance(each, ToolMessage) and each.content.startswith("[older") for each in messages)


async def test_each_message_of_a_conversation_is_read_once_on_every_store(store: Store) -> None:
    policy, counted, compressed = Counting(), Counter[str](), list[HistoryCompressed]()

    def tokens(words: str) -> int:
        counted[words] += 1
        return len(words) // 4 + 1

    compression = Compression(keep_turns=2, max_context_tokens=100_000, tokenizer=tokens, policies=[policy])
    provider = ScriptedProvider(model)
    async with Runtime(provider, tools=[look], store=store, compression=compression) as runtime:
        runtime.bus.connect(HistoryCompressed, lambda event: compressed.append(event))  # type: ignore[arg-type]
        for turn in range(12):
            result = await runtime.run(f"Question {turn}", conversation_id="c")
            assert result.ok, result.error
    assert set(policy.seen.values()) == {1}
    assert policy.folds == 1
    assert len(policy.seen) == len(result.messages) - 1 == 47  # nobody is sent the last answer
    assert {counted[f"Question {turn}"] for turn in range(12)} == {1}
    assert shortened(provider.requests[-1].messages) == 10
    assert [each.results_shortened for each in compressed] == list(range(1, 11))  # each request reports all of them


async def test_a_request_that_asks_no_model_leaves_the_fold_to_the_next_one() -> None:
    class NoQuestions(Interceptor):
        async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
            raise Denied("no")

    policy = Counting()
    compression = Compression(policies=[policy])
    async with Runtime(ScriptedProvider(model), tools=[look], compression=compression) as runtime:
        for interceptors in ([], [NoQuestions()], []):
            await runtime.start("Look", conversation_id="c", interceptors=interceptors).result()
    assert set(policy.seen.values()) == {1}


async def test_a_request_with_other_options_is_sent_what_they_ask_for() -> None:
    """The fold of the turns before it was made with other options."""
    provider = ScriptedProvider(model)
    async with Runtime(provider, tools=[look], compression=Compression(keep_turns=3)) as runtime:
        for keep_turns in (3, 3, 3, 3, 1, 3):
            await runtime.run("Look", conversation_id="c", compression=Compression(keep_turns=keep_turns))
    assert [shortened(each.messages) for each in provider.requests[::2]] == [0, 0, 0, 1, 4, 3]


def test_values_are_kept_up_to_their_weight_and_the_oldest_goes_first() -> None:
    kept = BoundedMapping[str](10, len)
    for name, value in [("a", "four"), ("b", "five5"), ("a", "six666")]:
        kept.put(name, value)
    assert (kept.get("a"), kept.get("b")) == ("six666", None)
    kept.put("c", "four")
    assert (kept.pop("a"), kept.pop("a"), kept.get("c")) == ("six666", None, "four")
    kept.put("d", "sixsix")
    assert (kept.get("c"), kept.get("d")) == ("four", "sixsix")
    kept.put("e", "more than ten")
    assert (kept.get("c"), kept.get("d"), kept.get("e")) == (None, None, None)
