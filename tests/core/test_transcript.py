"""Which message lists are valid, and how broken ones are mended."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus.core.transcript import Dialect, Rules, repair, validate
from toolbus.errors import InvalidHistory
from toolbus.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    Part,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
    to_anthropic,
    to_openai,
)

pytestmark = pytest.mark.guarantee("G08")

INTERRUPTED = '{"ok":false,"reason":"interrupted","error":"The call was interrupted; its result is not known."}'
WAY_OUT = "toolbus.core.transcript.repair(messages) gives a valid list"
BOTH: tuple[Dialect, ...] = ("openai", "anthropic")


def system(text: str = "Be brief.") -> SystemMessage:
    return SystemMessage(text=text)


def user(text: str = "hi") -> UserMessage:
    return UserMessage(content=text)


def said(text: str = "hello") -> AssistantMessage:
    return AssistantMessage(text=text)


def asks(*ids: str, text: str = "") -> AssistantMessage:
    return AssistantMessage(text=text, tool_calls=tuple(ToolCall(name="clock", call_id=each) for each in ids))


def gives(call_id: str, content: str = "noon") -> ToolMessage:
    return ToolMessage(call_id=call_id, name="clock", content=content)


def cut(call_id: str) -> ToolMessage:
    return ToolMessage(call_id=call_id, name="clock", content=INTERRUPTED, is_error=True)


# --------------------------------------------------------------------------------------------------- validate


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize(
    "messages",
    [
        [],
        [system()],
        [user()],
        [system(), user(), said()],
        [user(), user(), said(), said()],
        [user(), asks("a"), gives("a")],
        [user(), asks("a", "b"), gives("a"), gives("b"), said(), user()],
        [user(), asks("a"), gives("a"), asks("a"), gives("a"), said()],
        [user(), said(), system("By the way."), user()],
        [user(), asks("a", text="let me see"), gives("a", "")],
        [UserMessage(content=(ImagePart(url="https://example.com/a.png"),)), said()],
        [user(), AssistantMessage(vendor_data={"anthropic": {"content": [{"type": "thinking"}]}})],
    ],
)
def test_what_both_vendors_take_is_valid_and_not_repaired(messages: list[Message], dialect: Dialect) -> None:
    validate(messages, dialect)
    assert repair(messages) == messages


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize(
    ("messages", "index", "problem"),
    [
        ([user(), asks("a")], 2, "the transcript ends without a result for call 'a'"),
        ([user(), asks("a", "b"), gives("a")], 3, "the transcript ends without a result for call 'b'"),
        ([user(), asks("a"), user()], 2, "a result for call 'a' is missing before this user message"),
        ([user(), asks("a"), system(), gives("a")], 2, "a result for call 'a' is missing before this system message"),
        ([user(), asks("a"), asks("b")], 2, "a result for call 'a' is missing before this assistant message"),
        ([user(), gives("a")], 1, "a tool message for call 'a', which nothing asked for here"),
        ([user(), asks("a"), gives("a"), gives("a")], 3, "a tool message for call 'a', which nothing asked for here"),
        ([user(), said(), gives("a")], 2, "a tool message for call 'a', which nothing asked for here"),
        ([user(), asks("a", "b"), gives("b")], 2, "the result of call 'a' belongs here, not that of 'b'"),
        ([user(), asks("a"), gives("x")], 2, "the result of call 'a' belongs here, not that of 'x'"),
        ([user(), asks("a", "a"), gives("a"), gives("a")], 1, "two tool calls with the same id in one reply"),
        ([user(), asks(""), gives("")], 1, "a tool call without an id"),
    ],
)
def test_what_no_vendor_takes_is_refused_with_the_place(
    messages: list[Message], index: int, problem: str, dialect: Dialect
) -> None:
    with pytest.raises(InvalidHistory) as raised:
        validate(messages, dialect)
    assert (raised.value.index, raised.value.problem) == (index, problem)
    assert str(raised.value) == f"history[{index}]: {problem}; {WAY_OUT}"


@pytest.mark.parametrize(
    ("messages", "index", "problem"),
    [
        ([said()], 0, "an assistant message before the first user message"),
        ([system(), asks("a"), gives("a")], 1, "an assistant message before the first user message"),
        ([user("")], 0, "an empty user message"),
        ([user(" \n")], 0, "an empty user message"),
        ([UserMessage(content=())], 0, "an empty user message"),
        ([UserMessage(content=(TextPart(text=" "), TextPart(text="")))], 0, "an empty user message"),
        ([user(), said("")], 1, "an assistant message with neither text nor tool calls"),
        ([user(), said("\t")], 1, "an assistant message with neither text nor tool calls"),
    ],
)
def test_what_anthropic_alone_refuses_is_valid_for_openai(messages: list[Message], index: int, problem: str) -> None:
    validate(messages, "openai")
    with pytest.raises(InvalidHistory) as raised:
        validate(messages)
    assert (raised.value.index, raised.value.problem) == (index, problem)


def test_rules_that_refuse_a_message_stand_where_they_stood() -> None:
    rules = Rules()
    refused: list[Message] = [said(), user("")]
    for message in refused:
        with pytest.raises(InvalidHistory):
            rules.add(message)
    rules.add(user())
    for message in (asks(""), asks("a", "a"), gives("a"), said("")):
        with pytest.raises(InvalidHistory) as raised:
            rules.add(message)
        assert raised.value.index == 1
    rules.add(asks("a", "b"))
    for message in (user(), gives("b"), said()):
        with pytest.raises(InvalidHistory) as raised:
            rules.add(message)
        assert raised.value.index == 2
    with pytest.raises(InvalidHistory):
        rules.end()
    rules.add(gives("a"))
    rules.add(gives("b"))
    rules.end()


# ----------------------------------------------------------------------------------------------------- repair


@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        pytest.param([user(), asks("a")], [user(), asks("a"), cut("a")], id="a missing result"),
        pytest.param(
            [user(), asks("a", "b", "c"), gives("b"), user()],
            [user(), asks("a", "b", "c"), cut("a"), gives("b"), cut("c"), user()],
            id="a round that was cut",
        ),
        pytest.param([user(), gives("a"), said()], [user(), said()], id="an orphan"),
        pytest.param([gives("a"), user(), asks("a")], [user(), asks("a"), cut("a")], id="a result before its call"),
        pytest.param(
            [user(), asks("a"), gives("a", "1"), gives("a", "2")],
            [user(), asks("a"), gives("a", "1")],
            id="a second result",
        ),
        pytest.param(
            [user(), asks("a", "b"), gives("b"), gives("a")],
            [user(), asks("a", "b"), gives("a"), gives("b")],
            id="results out of order",
        ),
        pytest.param(
            [user(), asks("a"), user("and?"), system(), gives("a"), said()],
            [user(), asks("a"), gives("a"), user("and?"), system(), said()],
            id="a result that came later",
        ),
        pytest.param(
            [user(), asks("a", "a"), gives("a", "1"), gives("a", "2")],
            [user(), asks("a", "a-2"), gives("a", "1"), gives("a-2", "2")],
            id="an id twice",
        ),
        pytest.param(
            [user(), asks("a", "a", "a-2"), gives("a", "1"), gives("a-2", "3"), gives("a", "2")],
            [user(), asks("a", "a-3", "a-2"), gives("a", "1"), gives("a-3", "2"), gives("a-2", "3")],
            id="an id twice, and the next one taken",
        ),
        pytest.param(
            [user(), asks("", ""), gives("", "1"), gives("", "2")],
            [user(), asks("call-1", "call-2"), gives("call-1", "1"), gives("call-2", "2")],
            id="no ids",
        ),
        pytest.param(
            [user(), asks("a"), user(), asks("a"), gives("a", "second")],
            [user(), asks("a"), cut("a"), user(), asks("a"), gives("a", "second")],
            id="a result belongs to the reply that it stands behind",
        ),
        pytest.param(
            [user(), asks("a"), asks("a"), user(), gives("a", "1"), gives("a", "2")],
            [user(), asks("a"), gives("a", "1"), asks("a"), gives("a", "2"), user()],
            id="else to the oldest",
        ),
        pytest.param(
            [asks("a"), gives("a", "lost"), user(), asks("a"), user(), gives("a", "kept")],
            [user(), asks("a"), gives("a", "kept"), user()],
            id="what was said before the first user message asks for nothing",
        ),
        pytest.param([system(), said(), user(""), said(), user()], [system(), user()], id="no opening"),
        pytest.param(
            [user(), user(" "), UserMessage(content=()), said(""), said()], [user(), said()], id="empty messages"
        ),
    ],
)
def test_a_broken_transcript_is_mended(broken: list[Message], mended: list[Message]) -> None:
    assert repair(broken) == mended
    validate(mended)


def test_a_made_up_result_names_its_tool_and_is_an_error() -> None:
    calls = (ToolCall(name="weather", call_id="a"),)
    result = repair([user(), AssistantMessage(tool_calls=calls)])[-1]
    assert result == ToolMessage(call_id="a", name="weather", content=INTERRUPTED, is_error=True)


def test_what_need_not_be_changed_is_the_very_same_object() -> None:
    broken: list[Message] = [user(), asks("a"), user(), gives("a"), said()]
    mended = repair(broken)
    assert all(any(each is before for before in broken) for each in mended)


# ------------------------------------------------------------------------------------------------- properties

ids = st.sampled_from(["a", "b", "c", "a-2", "call-1", ""])
texts = st.sampled_from(["", " ", "text"])
parts: st.SearchStrategy[Part] = texts.map(lambda text: TextPart(text=text)) | st.just(
    ImagePart(url="https://example.com/a.png")
)
replies = st.builds(
    AssistantMessage,
    text=texts,
    tool_calls=st.lists(st.builds(ToolCall, name=st.sampled_from(["clock", "weather"]), call_id=ids), max_size=3).map(
        tuple
    ),
)
messages: st.SearchStrategy[Message] = (
    st.builds(SystemMessage, text=texts)
    | st.builds(UserMessage, content=texts | st.lists(parts, max_size=2).map(tuple))
    | replies
    | replies
    | st.builds(ToolMessage, call_id=ids, name=st.just("clock"), content=st.uuids().map(str))
    | st.builds(ToolMessage, call_id=ids, name=st.just("clock"), content=st.uuids().map(str))
)
histories = st.lists(messages, max_size=14)


def is_valid(history: list[Message], dialect: Dialect = "anthropic") -> bool:
    try:
        validate(history, dialect)
    except InvalidHistory:
        return False
    return True


@given(histories)
def test_whatever_was_repaired_is_valid_for_both_vendors_and_stays_as_it_is(history: list[Message]):
    before = copy.deepcopy(history)
    mended = repair(history)
    assert history == before, "the input was changed"
    for dialect in BOTH:
        validate(mended, dialect)
    assert repair(mended) == mended
    assert repair(copy.deepcopy(history)) == mended


@given(histories)
def test_what_is_valid_for_anthropic_is_valid_for_openai_and_not_repaired(history: list[Message]):
    if is_valid(history):
        assert is_valid(history, "openai")
        assert repair(history) == history


@given(histories)
def test_every_result_that_can_be_kept_is_kept_and_none_is_invented_or_doubled(history: list[Message]):
    """A result can be kept where there is a call for it: before it, of its id, not dropped, not yet answered."""
    mended = repair(history)
    given = [each.content for each in history if isinstance(each, ToolMessage)]
    kept = [each.content for each in mended if isinstance(each, ToolMessage) and each.content != INTERRUPTED]
    assert len(set(kept)) == len(kept)
    assert set(kept) <= set(given)
    opened, unanswered, expected = False, dict[str, int](), 0
    for message in history:
        if isinstance(message, UserMessage):
            opened = opened or is_valid([message])
        elif isinstance(message, AssistantMessage) and opened:
            for call in message.tool_calls:
                unanswered[call.call_id] = unanswered.get(call.call_id, 0) + 1
        elif isinstance(message, ToolMessage) and unanswered.get(message.call_id):
            unanswered[message.call_id] -= 1
            expected += 1
    assert len(kept) == expected


@given(histories)
def test_all_that_is_said_and_asked_stays_in_its_order(history: list[Message]):
    def gist(messages: list[Message]) -> list[object]:
        opened = False
        found: list[object] = []
        for each in messages:
            if isinstance(each, AssistantMessage):
                if opened and (each.text.strip() or each.tool_calls):
                    found.append((each.text, [call.name for call in each.tool_calls]))
            elif isinstance(each, SystemMessage):
                found.append(each.text)
            elif isinstance(each, UserMessage) and is_valid([each]):
                opened = True
                found.append(each.content)
        return found

    assert gist(repair(history)) == gist(history)


@given(histories)
def test_what_was_repaired_pairs_up_on_the_wire(history: list[Message]):
    mended = repair(history)
    wire = to_anthropic(mended)["messages"]
    assert [each["role"] for each in wire] == (["user", "assistant"] * len(wire))[: len(wire)]
    owed: list[str] = []
    for each in wire:
        blocks: list[dict[str, Any]] = each["content"] if isinstance(each["content"], list) else []
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert results == owed
        owed = [block["id"] for block in blocks if block["type"] == "tool_use"]
    assert owed == []
    calls = [call["id"] for each in to_openai(mended) for call in each.get("tool_calls", ())]
    answers = [each["tool_call_id"] for each in to_openai(mended) if each["role"] == "tool"]
    assert answers == calls
    assert len(set(calls)) == len(calls)


def test_the_refusal_names_the_way_out_and_the_way_out_works():
    broken = [UserMessage(content="Hello"), ToolMessage(call_id="c", name="echo", content="hi")]
    with pytest.raises(InvalidHistory, match=r"history\[1\]: .*; toolbus\.core\.transcript\.repair\(messages\)"):
        validate(broken)
    validate(repair(broken))
