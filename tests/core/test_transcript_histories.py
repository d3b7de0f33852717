"""Histories as applications keep them, broken in the ways in which they break: each is mended, and every vendor takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from messages.wire_strategies import transcripts
from support.transcript_strategies import histories
from support.wire_oracle import check_openai, check_wires
from toolbus.core.transcript import Dialect, repair, validate
from toolbus.errors import InvalidHistory
from toolbus.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolMessage,
    UserMessage,
    from_anthropic,
    from_openai,
    to_anthropic,
    to_openai,
)
from toolbus.session import read_messages

pytestmark = pytest.mark.guarantee("G08")

Wire = list[dict[str, Any]]
ANY = settings(suppress_health_check=[HealthCheck.too_slow])
CUT = "The call was interrupted; its result is not known."


def asked(*ids: str, name: str = "clock", text: str | None = None) -> dict[str, Any]:
    calls = [{"id": each, "type": "function", "function": {"name": name, "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def gave(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "What time is it?"}
THANKS = {"role": "user", "content": "Thanks."}
NOON = {"role": "assistant", "content": "Noon."}
TURN: Wire = [
    SYSTEM,
    USER,
    asked("a", "b"),
    gave("a", "12:00"),
    gave("b", "12:01"),
    asked("c"),
    gave("c", "12:02"),
    NOON,
]


def repaired(history: Wire) -> list[Message]:
    """As `RequestOptions` with repair would have it; checked by our rules and by the vendors'."""
    messages = repair(read_messages(history))
    for dialect in get_args(Dialect):
        validate(messages, dialect)
    check_wires(messages)
    return messages


def results(messages: list[Message]) -> list[str]:
    return [CUT if CUT in each.content else each.content for each in messages if isinstance(each, ToolMessage)]


def roles(messages: list[Message]) -> str:
    return " ".join(each.role for each in messages)


# ------------------------------------------------------------------------------------------- cut, and windows


@pytest.mark.parametrize("end", range(len(TURN) + 1))
def test_a_turn_that_was_cut_anywhere_goes_on_with_all_that_had_come(end: int) -> None:
    cut = repaired([*TURN[:end], THANKS])
    had_come = [each["content"] for each in TURN[:end] if each["role"] == "tool"]
    assert [each for each in results(cut) if each != CUT] == had_come
    calls = sum(len(each.get("tool_calls", ())) for each in TURN[:end])
    assert results(cut).count(CUT) == calls - len(had_come)
    assert cut[-1].text == "Thanks." if isinstance(cut[-1], UserMessage) else False


@pytest.mark.parametrize("start", range(len(TURN) + 1))
def test_a_window_that_begins_anywhere_begins_with_a_user_message(start: int) -> None:
    window = repaired([*TURN[start:], THANKS, *TURN[1:], THANKS])
    begun = [each for each in window if not isinstance(each, SystemMessage)]
    assert isinstance(begun[0], UserMessage)
    assert results(window)[-3:] == ["12:00", "12:01", "12:02"]
    assert len(results(window)) == (6 if start <= 1 else 3)


@pytest.mark.parametrize("size", range(1, 17))
def test_a_sliding_window_is_repaired_at_each_of_its_places(size: int) -> None:
    long = [*TURN, THANKS, *TURN[1:], THANKS, *TURN[1:]]
    for start in range(len(long) - size + 1):
        window = repaired(long[start : start + size])
        assert len(window) <= size + 3
        assert not window or not isinstance(window[0], ToolMessage)


def test_a_window_with_its_instructions_in_front_of_a_tool_message_keeps_them() -> None:
    window = repaired([SYSTEM, gave("b", "12:01"), asked("c"), gave("c", "12:02"), NOON, THANKS])
    assert roles(window) == "system user"


# ------------------------------------------------------------------------------------------------ applications


def test_an_interface_that_keeps_calls_without_their_results_gets_them_as_interrupted() -> None:
    shown: Wire = [
        USER,
        asked("a", text="I look it up."),
        NOON,
        THANKS,
        asked("b"),
        {"role": "assistant", "content": "Bye."},
    ]
    messages = repaired(shown)
    assert roles(messages) == "user assistant tool assistant user assistant tool assistant"
    assert results(messages) == [CUT, CUT]
    made_up = [each for each in messages if isinstance(each, ToolMessage)]
    assert [(each.name, each.is_error, each.content[:11]) for each in made_up] == [("clock", True, '{"ok":false')] * 2


def test_an_interface_that_greets_first_and_keeps_empty_bubbles_is_repaired() -> None:
    greeting = {"role": "assistant", "content": "Hello! How can I help?"}
    bubble = {"role": "assistant", "content": ""}
    blank = {"role": "user", "content": "  "}
    assert roles(repaired([greeting, USER, bubble, blank, NOON, bubble, THANKS])) == "user assistant user"


def test_what_people_typed_while_a_tool_ran_stands_behind_its_result() -> None:
    typed = {"role": "user", "content": "Hurry!"}
    messages = repaired([USER, asked("a", "b"), gave("b", "2"), typed, SYSTEM, gave("a", "1"), NOON])
    assert roles(messages) == "user assistant tool tool user system assistant"
    assert results(messages) == ["1", "2"]


@pytest.mark.parametrize("ids", [("call_0", "call_1"), ("", ""), ("call_0", "call_0")])
def test_conversations_that_use_the_same_ids_are_merged_without_mixing_results(ids: tuple[str, str]) -> None:
    def talk(of: str) -> Wire:
        return [
            USER,
            asked(*ids),
            gave(ids[0], f"{of} 1"),
            gave(ids[1], f"{of} 2"),
            asked(ids[0]),
            gave(ids[0], f"{of} 3"),
            NOON,
        ]

    merged = repaired([*talk("one"), *talk("two"), *talk("three")])
    assert results(merged) == [f"{of} {number}" for of in ("one", "two", "three") for number in (1, 2, 3)]


def test_merged_conversations_of_which_one_was_cut_keep_each_its_own_results() -> None:
    merged = repaired([USER, asked("call_0"), USER, asked("call_0"), gave("call_0", "second"), NOON])
    assert results(merged) == [CUT, "second"]


def test_replies_with_one_id_and_their_results_behind_both_are_paired_by_occurrence() -> None:
    late = [USER, asked("call_0"), asked("call_0"), gave("call_0", "first"), gave("call_0", "second"), NOON]
    assert sorted(results(repaired(late))) == ["first", "second"]


def test_a_message_that_was_stored_twice_is_answered_twice_or_once() -> None:
    twice = repaired([USER, asked("a"), asked("a"), gave("a", "noon"), gave("a", "noon"), NOON, NOON])
    assert results(twice) == ["noon", "noon"]
    assert results(repaired([USER, asked("a"), gave("a", "noon"), gave("a", "noon"), NOON])) == ["noon"]


def test_what_was_repaired_is_refused_without_repair() -> None:
    with pytest.raises(InvalidHistory, match="repair"):
        validate(read_messages(TURN[3:]))


# ------------------------------------------------------------------------------------------------- properties


@given(transcripts(), st.integers(0, 40), st.integers(0, 40))
@ANY
def test_any_piece_of_a_valid_history_is_repaired_with_nothing_lost_but_what_begins_nowhere(
    history: list[Message], start: int, size: int
) -> None:
    window = history[start : start + size]
    check_wires(kept := repair(window))
    opening = next((place for place, each in enumerate(window) if isinstance(each, UserMessage)), len(window))
    whole = [each for place, each in enumerate(window) if place >= opening or isinstance(each, SystemMessage)]
    assert kept[: len(whole)] == whole
    assert all(CUT in each.content for each in kept[len(whole) :] if isinstance(each, ToolMessage))
    assert {each.role for each in kept[len(whole) :]} <= {"tool"}


@given(st.lists(transcripts(), min_size=2, max_size=3))
@ANY
def test_merged_histories_over_the_wire_are_repaired_without_a_result_lost(talks: list[list[Message]]) -> None:
    merged = from_openai([each for talk in talks for each in to_openai(talk)])
    check_wires(repair(merged))
    given_ones = [each.content for talk in talks for each in talk if isinstance(each, ToolMessage)]
    assert results(repair(merged)) == given_ones


def spoken(history: Sequence[Message]) -> list[bool]:
    """The replies that say or ask something, and whether they ask; what only their vendor can read, others drop."""
    return [
        bool(each.tool_calls)
        for each in history
        if isinstance(each, AssistantMessage) and (each.text.strip() or each.tool_calls)
    ]


@given(histories)
@ANY
def test_what_was_repaired_can_be_kept_as_dictionaries_and_taken_again(history: list[Message]) -> None:
    kept = repair(history)
    for again in (from_openai(to_openai(kept)), from_anthropic(to_anthropic(kept))):
        check_wires(repair(again))
    back = from_openai(to_openai(kept))
    check_openai(to_openai(back))
    assert spoken(repair(back)) == spoken(kept)
