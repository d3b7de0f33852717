"""Values to bytes and back: large texts apart, whatever users write. And the ends of journals that are remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.store_entries import entry, fact
from toolbus.errors import InvalidHistory, StoreError, UnsupportedStoreFormat
from toolbus.events import Artifact, ToolCallCompleted
from toolbus.messages import Message, ToolMessage, UserMessage, from_anthropic, from_openai, from_openai_responses
from toolbus.stores import _encoding
from toolbus.stores._encoding import LARGE_BYTES, Heads, digests_in, fact_from, split, turn_of, whole, written

NO_BLOBS: dict[bytes, bytes] = {}
LONG = "x" * LARGE_BYTES


def references(draw: st.DrawFn) -> Any:
    """What is meant to be taken for a reference."""
    digest = draw(st.sampled_from(["ab" * 32, ""]))
    return draw(st.sampled_from([f"@[[[],{digest!r}]]\t{{}}", "@", {"$blob": digest}, [["a"], digest], f"@{digest}"]))


texts = st.sampled_from(["", "a", "@", LONG, LONG + "é😀", "\t" + LONG, "@[]\tnull" + LONG, "\x00" * LARGE_BYTES])
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | texts
    | st.composite(references)(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "", "@", "0", LONG]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(["a", "", "@", LONG]), values, max_size=3))
def test_any_value_comes_back_from_its_parts_byte_by_byte(value: dict[str, Any]) -> None:
    data = orjson.dumps(value)
    blobs: dict[bytes, bytes] = {}
    stored = split(data, blobs)
    assert whole(stored, blobs.__getitem__) == data
    assert {*digests_in(stored)} == {*blobs}
    assert b"\n" not in stored


def test_a_long_text_that_many_facts_have_is_stored_once() -> None:
    call = ToolCallCompleted(
        call_id="c", name="n", content=LONG, data={"deep": [LONG]}, artifacts=(Artifact(name="a", content=LONG),)
    )
    made = written(entry("r", 3))
    assert not made.blobs
    step = entry("r", 3)
    step.facts = [call, fact(LONG)]
    made = written(step)
    assert [*made.blobs.values()] == [LONG.encode()]
    assert sum(len(data) for _, data in made.rows) < 2_000
    assert [fact_from(data, made.blobs.__getitem__, "it") for _, data in made.rows] == step.facts
    turn = turn_of("c", [ToolMessage(call_id="c", name="n", content=LONG), UserMessage(content="@" + LONG)])
    assert {*made.blobs} < {*turn.blobs}
    assert made.size_bytes == sum(len(data) for _, data in made.rows) + len(LONG)
    assert turn.size_bytes == sum(len(data) for data, _, _ in turn.messages) + sum(map(len, turn.blobs.values()))
    assert all(text is None and digest in turn.blobs for _, text, digest in turn.messages)


def test_what_no_json_can_carry_is_refused_as_the_stores_error() -> None:
    step = entry("r", 1)
    step.facts = [ToolCallCompleted(call_id="c", name="n", content="", data=2**70)]
    with pytest.raises(StoreError, match="a step of request r cannot be written: Integer exceeds"):
        written(step)
    with pytest.raises(StoreError, match="cannot be written: Type is not JSON serializable: object"):
        written(entry(agreed={"x": object()}))
    deep: Any = []
    for _ in range(2_000):
        deep = [deep]
    with pytest.raises(StoreError, match="a turn of conversation 'c' cannot be written"):
        turn_of("c", [UserMessage(content=deep)])


CALL: dict[str, Any] = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
IMPORTS: dict[str, Callable[[int], list[Message]]] = {
    "openai": lambda odd: from_openai([{"role": "assistant", "tool_calls": [{**CALL, "extra": odd}]}]),
    "anthropic": lambda odd: from_anthropic(
        [{"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "s", "extra": [odd]}]}]
    ),
    "responses": lambda odd: from_openai_responses([{"type": "reasoning", "id": "r", "summary": [], "extra": odd}]),
}


@pytest.mark.parametrize("imported", IMPORTS.values(), ids=IMPORTS)
def test_integers_over_64_bits_that_were_imported_for_a_vendor_are_stored_as_floats_or_refused_at_once(
    imported: Callable[[int], list[Message]],
) -> None:
    for odd, kept in ((10**30, 1e30), (-(2**64), -(2.0**64)), (2**64 - 1, 2**64 - 1)):
        messages = imported(odd)
        [(data, _, _)] = turn_of("c", messages).messages
        again = _encoding.message_from(data, NO_BLOBS.__getitem__, "it")
        assert [again] == messages
        assert repr(kept) in repr(again)
    with pytest.raises(InvalidHistory, match="an integer has more than 308 digits"):
        imported(10**400)


def test_a_fact_of_a_newer_toolbus_is_refused_by_name() -> None:
    with pytest.raises(
        UnsupportedStoreFormat, match=r"fact 3 has a form that this version of toolbus does not know: .*'novelty'"
    ):
        fact_from(b'{"type": "novelty"}', NO_BLOBS.__getitem__, "fact 3")
    with pytest.raises(UnsupportedStoreFormat, match="message 1 has a form that this version"):
        _encoding.message_from(b'{"role": "oracle"}', NO_BLOBS.__getitem__, "message 1")


def test_the_ends_of_the_journals_that_were_written_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_encoding, "_MAX_HEADS", 2)
    heads = Heads[str]()
    heads.keep([("a", "1"), ("d", "1"), ("b", "1"), ("c", "1"), ("b", "2")])
    assert [*heads.items()] == [("c", "1"), ("b", "2")]
    heads.keep([("c", None), ("unknown", None)])
    assert heads == {"b": "2"}
