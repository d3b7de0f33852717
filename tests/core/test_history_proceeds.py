"""The fold of a conversation's earlier turns, continued in the next one: it sends what a new fold would send."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus.core.compression import Compression, Edit, Fold, HistoryItem
from toolbus.core.history import History
from toolbus.errors import ApplicationError
from toolbus.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage, size_of
from toolbus.protocols import ToolSpec
from toolbus.records import replace

SPECS = {
    "look": ToolSpec(name="look", kind="query"),
    "move": ToolSpec(name="move", kind="action"),
    "login": ToolSpec(name="login", keep_full_results=True),
}
SHORT = Compression(keep_turns=2)


def turn(number: int, names: Sequence[str] = (), *, steered: bool = False, note: bool = False) -> list[Message]:
    """A turn with a call of each of these tools."""
    request = f"r{number}"
    ids = [f"{request}_{index}" for index in range(len(names))]
    calls = tuple(ToolCall(name=name, arguments='{"n":1}', call_id=each) for name, each in zip(names, ids, strict=True))
    made: list[Message] = [SystemMessage(text="A note.", message_id=f"n{number}")] if note else []
    made += [UserMessage(content=f"question {number}", message_id=f"{request}_u")]
    if names:
        made += [AssistantMessage(tool_calls=calls, message_id=f"{request}_r0")]
        made += [
            ToolMessage(call_id=each, name=name, content=f"{name} {number} " * 90)
            for name, each in zip(names, ids, strict=True)
        ]
    if steered:
        made += [UserMessage(content="and?", message_id=f"{request}_s0")]
    return [*made, AssistantMessage(text=f"answer {number}", message_id=f"{request}_r1")]


def of_request(
    number: int, messages: Sequence[Message], compression: Compression = SHORT, max_result_chars: int = 4_000
) -> History:
    return History(messages, compression, request_id=f"r{number}", max_result_chars=max_result_chars)


def sent(history: History) -> list[Message]:
    return list(history.view())


TURNS = st.lists(
    st.tuples(st.lists(st.sampled_from(["look", "move", "login", "gone"]), max_size=3), st.booleans(), st.booleans()),
    min_size=2,
    max_size=9,
)


@given(TURNS)
def test_a_continued_fold_sends_and_reports_what_a_new_one_does(
    turns: list[tuple[list[str], bool, bool]],
) -> None:
    kept: History | None = None
    stored: list[Message] = []
    for number, (names, steered, note) in enumerate(turns):
        whole = turn(number, names, steered=steered, note=note)
        messages = [*stored, *whole[: 1 + note]]
        fresh, again = of_request(number, messages), of_request(number, messages)
        if kept is not None:
            assert kept.proceed(again, SPECS)
            again = kept
        for added in ([], whole[1 + note : -1]):
            messages += added
            fresh.take(SPECS)
            again.take(SPECS)
            assert sent(again) == sent(fresh)
            assert again.what_changed() == fresh.what_changed()
            assert (again.shape(), again.has_shortened) == (fresh.shape(), fresh.has_shortened)
            assert again.size_bytes == fresh.size_bytes
        kept, stored = again, [replace(each) for each in (*messages, whole[-1])]


def test_turns_that_were_left_out_stay_out_and_each_request_reports_them_once() -> None:
    messages = [message for number in range(30) for message in turn(number, ["look"])]
    ageless = Compression(keep_turns=None)
    history = of_request(29, messages, ageless)
    history.take(SPECS)
    assert history.fit(1_500)
    before, shape, memo = sent(history), history.what_changed(), history.memo()
    following = of_request(30, [*messages, *turn(30)[:1]], ageless)
    assert history.proceed(following, SPECS)
    history.take(SPECS)
    assert sent(history) == [*before, *turn(30)[:1]]
    assert shape is not None
    assert (now := history.what_changed()) is not None
    assert now.turns_omitted == shape.turns_omitted
    assert history.what_changed() is None
    assert history.memo() == memo
    assert memo is not None


def test_a_fold_counts_the_bytes_of_the_messages_that_it_has_read_once() -> None:
    messages = [*turn(0, ["look"]), *turn(1)]
    history = of_request(0, messages[:2])
    history.take(SPECS)
    assert history.proceed(of_request(1, messages), SPECS)
    history.take(SPECS)
    assert history.size_bytes == size_of(messages)


def test_a_view_that_an_earlier_request_was_sent_stays_as_it_was() -> None:
    messages = turn(0, ["look"])
    history = of_request(0, messages)
    history.take(SPECS)
    view, before = history.view(), sent(history)
    for number in range(1, 5):
        messages = [*messages, *turn(number, ["look"])]
        assert history.proceed(of_request(number, messages), SPECS)
        history.take(SPECS)
    assert list(view) == before
    assert sent(history)[2].text != before[2].text


def test_what_is_said_to_the_next_request_before_its_first_reply_begins_no_turn() -> None:
    messages = [*turn(0, ["look"]), *turn(1)]
    history = of_request(1, messages)
    history.take(SPECS)
    steered = UserMessage(content="and?", message_id="r2_s0")
    assert history.proceed(of_request(2, [*messages, steered]), SPECS)
    history.take(SPECS)
    assert sent(history) == [*messages, steered]


def edited(messages: list[Message]) -> list[Message]:
    return [UserMessage(content="another question", message_id=messages[0].message_id), *messages[1:]]


def without_its_beginning(messages: list[Message]) -> list[Message]:
    return messages[1:]


def cut_off(messages: list[Message]) -> list[Message]:
    return messages[:2]


def the_same(messages: list[Message]) -> list[Message]:
    """Equal messages, as a store returns them."""
    return [replace(each) for each in messages]


@pytest.mark.parametrize(
    ("change", "options", "specs"),
    [
        (edited, {}, SPECS),
        (without_its_beginning, {}, SPECS),
        (cut_off, {}, SPECS),
        (the_same, {"compression": Compression(keep_turns=3)}, SPECS),
        (the_same, {"max_result_chars": 300}, SPECS),
        (the_same, {}, {**SPECS, "look": ToolSpec(name="look", keep_full_results=True)}),
        (the_same, {}, {"move": SPECS["move"]}),
    ],
    ids=["edited", "without its beginning", "cut off", "other compression", "other length", "other tool", "tool gone"],
)
def test_a_fold_of_something_else_is_not_continued(
    change: Callable[[list[Message]], list[Message]], options: dict[str, Any], specs: Mapping[str, ToolSpec]
) -> None:
    messages = turn(0, ["look"])
    history = of_request(0, messages)
    history.take(SPECS)
    assert not history.proceed(of_request(1, change(messages), **options), specs)
    following = of_request(1, [*the_same(messages), *turn(1)], compression=Compression(keep_turns=2))
    assert history.proceed(following, dict(SPECS))


def test_a_fold_whose_tool_changed_in_the_middle_is_not_continued() -> None:
    """A new fold would read the older results by the tool as it is now."""
    messages = turn(0, ["look"])
    history = of_request(0, messages)
    history.take(SPECS)
    later = {**SPECS, "look": ToolSpec(name="look", kind="query", keep_full_results=True)}
    messages += turn(1, ["look"])
    history.take(later)
    for specs in (SPECS, later):
        assert not history.proceed(of_request(2, [*messages, *turn(2)]), specs)


def test_a_fold_whose_policy_failed_is_not_continued() -> None:
    class Once:
        failed = False

        def fold(self) -> Fold:
            return self

        def add(self, seen: HistoryItem) -> list[Edit]:
            if isinstance(seen.message, AssistantMessage) and not Once.failed:
                Once.failed = True
                raise KeyError("oh")
            return []

    compression = Compression(policies=[Once()])
    messages = turn(0)
    history = of_request(0, messages, compression=compression)
    with pytest.raises(ApplicationError, match="Once failed"):
        history.take(SPECS)
    assert not history.proceed(of_request(1, [*messages, *turn(1)], compression=compression), SPECS)
