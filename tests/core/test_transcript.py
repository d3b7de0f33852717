"""Which message lists are valid, and how broken ones are mended."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings

from support.transcript_strategies import histories
from support.wire_oracle import check_anthropic, check_wires
from toolbus.core.transcript import Dialect, Rules, repair, validate
from toolbus.errors import ConfigurationError, InvalidHistory
from toolbus.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
    from_anthropic,
    to_anthropic,
    to_openai,
    to_openai_responses,
)
from toolbus.records import replace

pytestmark = pytest.mark.guarantee("G08")

INTERRUPTED = '{"ok":false,"reason":"interrupted","error":"The call was interrupted; its result is not known."}'
WAY_OUT = "repair_history=True, or toolbus.core.transcript.repair(messages), makes it valid"
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
ANY = settings(suppress_health_check=[HealthCheck.too_slow])
THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "s"}


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


@pytest.mark.parametrize("dialect", DIALECTS)
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
        [user(), AssistantMessage(vendor_data={"anthropic": {"content": [THINKING, {"type": "server_tool_use"}]}})],
        [user(), AssistantMessage(vendor_data={"openai": {"message": {"audio": {"id": "a"}}}})],
        [
            user(),
            asks("a"),
            ToolMessage(call_id="a", name="clock", content="", parts=(ImagePart(url="https://x/a.png"),)),
        ],
    ],
)
def test_what_all_vendors_take_is_valid_and_not_repaired(messages: list[Message], dialect: Dialect) -> None:
    validate(messages, dialect)
    assert repair(messages) == messages


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("messages", "index", "problem"),
    [
        ([user(), asks("a")], 2, "the transcript ends without a result for call 'a'"),
        ([user(), asks("a", "b"), gives("a")], 3, "the transcript ends without a result for call 'b'"),
        ([user(), asks("a"), user()], 2, "a result for call 'a' is missing before this user message"),
        ([user(), asks("a"), system(), gives("a")], 2, "a result for call 'a' is missing before this system message"),
        ([user(), asks("a"), asks("b")], 2, "a result for call 'a' is missing before this assistant message"),
        ([user(), gives("a")], 1, "a tool message for call 'a', but no call is waiting for a result here"),
        (
            [user(), asks("a"), gives("a"), gives("a")],
            3,
            "a tool message for call 'a', but no call is waiting for a result here",
        ),
        ([user(), said(), gives("a")], 2, "a tool message for call 'a', but no call is waiting for a result here"),
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


def accepting(messages: list[Message]) -> set[str]:
    """The dialects in which a list is valid."""
    return {dialect for dialect in DIALECTS if is_valid(messages, dialect)}


def test_a_user_message_of_no_parts_is_valid_where_nothing_is_refused() -> None:
    assert accepting([UserMessage(content=())]) == {"ollama"}


REASONING_ALONE: list[dict[str, Any]] = [
    {"anthropic": {"content": [THINKING]}},
    {"anthropic": {"content": [{"type": "redacted_thinking", "data": "x"}]}},
    {"openai": {"responses": [{"type": "reasoning", "id": "rs_1", "summary": []}]}},
    {"anthropic": {"content": [THINKING, {"type": "tool_use", "id": "x", "name": "gone", "input": {}}]}},
    {"openai": {"tool_calls": [None]}},
]


@pytest.mark.parametrize("kept", REASONING_ALONE)
def test_reasoning_alone_is_no_reply(kept: dict[str, Any]) -> None:
    alone: list[Message] = [user(), AssistantMessage(vendor_data=kept, reasoning="Hm."), user("and?")]
    assert accepting(alone) == {"openai", "ollama"}
    with pytest.raises(InvalidHistory, match="neither text nor tool calls but reasoning"):
        validate(alone)
    assert repair(alone) == [user(), user("and?")]
    with_text: list[Message] = [user(), AssistantMessage(text="Yes.", vendor_data=kept)]
    assert accepting(with_text) == {*DIALECTS}


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
    ("broken", "repaired"),
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
def test_a_broken_transcript_is_repaired(broken: list[Message], repaired: list[Message]) -> None:
    assert repair(broken) == repaired
    validate(repaired)


def test_a_result_that_comes_later_belongs_to_the_oldest_call_with_its_id_that_has_none() -> None:
    answered = [asks("a"), gives("a", "one"), asks("a"), gives("a", "two")]
    repaired = repair([user(), *answered, asks("a"), user("well?"), gives("a", "three"), said()])
    assert [each.content for each in repaired if isinstance(each, ToolMessage)] == ["one", "two", "three"]


def test_a_made_up_result_names_its_tool_and_is_an_error() -> None:
    calls = (ToolCall(name="weather", call_id="a"),)
    result = repair([user(), AssistantMessage(tool_calls=calls)])[-1]
    assert result == ToolMessage(call_id="a", name="weather", content=INTERRUPTED, is_error=True)


@pytest.mark.parametrize("check", [validate, repair])
def test_dictionaries_are_no_messages_and_never_pass_for_valid_ones(check: Any) -> None:
    with pytest.raises(
        InvalidHistory, match=r"history\[1\]: a dict is not a message; for example, toolbus.messages.from_openai"
    ):
        check([user(), {"role": "user", "content": "hi"}])


def test_a_dialect_that_there_is_not_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="the dialect is 'claude'; it must be one of 'openai', 'responses', 'anthropic'"
    ):
        validate([user()], "claude")  # type: ignore[arg-type]


def test_what_need_not_be_changed_is_the_very_same_object() -> None:
    broken: list[Message] = [user(), asks("a"), user(), gives("a"), said()]
    repaired = repair(broken)
    assert all(any(each is before for before in broken) for each in repaired)


def test_notes_between_a_call_and_its_results_do_not_part_them() -> None:
    broken = [user(), asks("a"), user(), asks("a"), system("Late."), gives("a", "second"), said()]
    assert repair(broken) == [user(), asks("a"), cut("a"), user(), asks("a"), gives("a", "second"), system("Late."), said()]  # fmt: skip


def test_a_result_keeps_its_parts_and_its_own_id_under_the_id_of_its_call() -> None:
    picture = (ImagePart(url="https://example.com/a.png"),)
    first, second = (
        ToolMessage(call_id="a", name="clock", content=each, parts=picture, is_error=True, message_id=f"m{each}")
        for each in "12"
    )
    repaired = repair([user(), asks("a", "a"), user(), first, second])
    assert repaired == [user(), asks("a", "a-2"), first, replace(second, call_id="a-2"), user()]
    assert repaired[2] is first


def test_what_a_vendor_keeps_follows_ids_that_had_to_change() -> None:
    uses = [{"type": "tool_use", "id": "toolu_1", "name": "clock", "input": {"n": n}} for n in range(2)]
    (reply,) = from_anthropic([{"role": "assistant", "content": [THINKING, *uses]}])
    assert isinstance(reply, AssistantMessage)
    poor = tuple(replace(call, call_id="a") for call in reply.tool_calls)
    repaired = repair([user(), replace(reply, tool_calls=poor), gives("a", "1"), gives("a", "2")])
    wire = to_anthropic(repaired)
    check_anthropic(wire)
    sent = wire["messages"][1]["content"]
    assert sent[0] == THINKING
    assert [block["input"] for block in sent[1:]] == [{"n": 0}, {"n": 1}]
    assert [block["tool_use_id"] for block in wire["messages"][2]["content"]] == [block["id"] for block in sent[1:]]
    extras = [{"extra_content": {"thought_signature": each}} for each in "xy"]
    kept = replace(asks("a", "a"), vendor_data={"openai": {"tool_calls": extras}})
    calls = to_openai(repair([user(), kept]))[1]["tool_calls"]
    assert [(call["id"], call["extra_content"]["thought_signature"]) for call in calls] == [("a", "x"), ("a-2", "y")]


@pytest.mark.parametrize("wire_id", ["x" * 41, "x" * 65, "a.b:0", ""])
def test_ids_that_a_vendor_takes_not_are_others_on_its_wire(wire_id: str) -> None:
    long = "y" * 70
    calls = [ToolCall(name="clock", call_id=each, provider_call_id=wire_id) for each in (long, f"{long}z", "a.b")]
    check_wires(repair([user(), AssistantMessage(tool_calls=tuple(calls)), said(), user()]))


@pytest.mark.parametrize("name", ["", "functions.clock", "clock (now)", "c" * 65, "\u00fchr"])
def test_names_that_models_make_up_are_no_error_for_the_rest_of_a_conversation(name: str) -> None:
    """Each is refused as an unknown tool, and stands in the transcript from there on."""
    check_wires([user(), AssistantMessage(tool_calls=(ToolCall(name=name, call_id="a"),)), gives("a"), said(), user()])


def test_a_reply_that_stands_there_twice_brings_the_ids_of_its_items_once() -> None:
    items: list[dict[str, Any]] = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": 5},
        {"type": "function_call", "id": "fc_1"},
    ]
    reply = replace(asks("a", text="hello"), vendor_data={"openai": {"responses": items}})
    history = repair([user(), reply, gives("a"), user(), reply, gives("a")])
    check_wires(history)
    sent = to_openai_responses(history)
    assert [each.get("id") for each in sent if each.get("id")] == ["rs_1", "msg_1", "fc_1"]
    assert [each["output"] for each in sent if "output" in each] == ["noon", "noon"]


# ------------------------------------------------------------------------------------------------- properties


def is_valid(history: Sequence[Message], dialect: Dialect = "anthropic") -> bool:
    try:
        validate(history, dialect)
    except InvalidHistory:
        return False
    return True


def same(one: Sequence[Message], other: Sequence[Message]) -> bool:
    """Whether these are the very same messages."""
    return len(one) == len(other) and all(before is after for before, after in zip(one, other, strict=True))


@given(histories)
@ANY
def test_whatever_was_repaired_is_valid_in_every_dialect_and_stays_as_it_is(history: list[Message]) -> None:
    before = copy.deepcopy(history)
    repaired = repair(history)
    assert history == before, "the input was changed"
    for dialect in DIALECTS:
        validate(repaired, dialect)
    assert same(repair(repaired), repaired)
    assert repair(copy.deepcopy(history)) == repaired


@given(histories)
@ANY
def test_what_is_valid_by_default_is_valid_in_every_dialect_and_not_repaired(history: list[Message]) -> None:
    for given_list in (history, repair(history)):
        if is_valid(given_list):
            assert accepting(given_list) == {*DIALECTS}
            assert same(repair(given_list), given_list)


@given(histories)
@ANY
def test_whatever_was_repaired_is_what_each_vendor_takes_on_the_wire(history: list[Message]) -> None:
    check_wires(repair(history))


@given(histories)
@ANY
def test_what_is_not_changed_is_the_very_same_object(history: list[Message]) -> None:
    """Made or changed are results that were missing, and replies and results of calls with ids that were not their own."""
    given_ones = {id(each) for each in history}
    poor = {
        call.name
        for each in history
        if isinstance(each, AssistantMessage)
        and len({*(ids := [call.call_id for call in each.tool_calls]), ""}) <= len(ids)
        for call in each.tool_calls
    }
    for each in repair(history):
        if id(each) in given_ones or (isinstance(each, ToolMessage) and each.content == INTERRUPTED):
            continue
        assert isinstance(each, (AssistantMessage, ToolMessage))
        assert poor


@given(histories)
@ANY
def test_every_result_that_can_be_kept_is_kept_and_none_is_invented_or_doubled(history: list[Message]) -> None:
    """A result can be kept where there is a call for it: before it, of its id, not dropped, not yet answered."""
    given_ones = [each for each in history if isinstance(each, ToolMessage)]
    made_up = ToolMessage(call_id="", name="", content=INTERRUPTED, is_error=True)
    kept = Counter(
        shown(each)
        for each in repair(history)
        if isinstance(each, ToolMessage) and shown(each) != shown(made_up)
    )  # fmt: skip
    assert kept <= Counter(map(shown, given_ones))
    opened, unanswered, expected = False, Counter[str](), 0
    for message in history:
        if isinstance(message, UserMessage):
            opened = opened or is_valid([message])
        elif isinstance(message, AssistantMessage) and opened:
            unanswered.update(call.call_id for call in message.tool_calls)
        elif isinstance(message, ToolMessage) and unanswered[message.call_id]:
            unanswered[message.call_id] -= 1
            expected += 1
    assert kept.total() == expected


def shown(result: ToolMessage) -> tuple[object, ...]:
    """What the model and people see of a result; its name, and its call's id, may be another."""
    return result.content, result.parts.__repr__(), result.is_error, result.message_id


@given(histories)
@ANY
def test_a_result_whose_call_is_there_once_survives_behind_it(history: list[Message]) -> None:
    asked = Counter(call.call_id for each in history if isinstance(each, AssistantMessage) for call in each.tool_calls)
    answers = Counter(each.call_id for each in history if isinstance(each, ToolMessage))
    opened = 0
    while opened < len(history) and not (isinstance(history[opened], UserMessage) and is_valid([history[opened]])):
        opened += 1
    repaired = repair(history)
    for place, message in enumerate(history[opened:], opened):
        if not isinstance(message, AssistantMessage):
            continue
        for call in message.tool_calls:
            behind = [
                each for each in history[place:] if isinstance(each, ToolMessage) and each.call_id == call.call_id
            ]
            if asked[call.call_id] == answers[call.call_id] == len(behind) == 1 and call.call_id:
                assert any(each is behind[0] for each in repaired)


@given(histories)
@ANY
def test_all_that_is_said_and_asked_stays_in_its_order(history: list[Message]) -> None:
    def gist(messages: list[Message]) -> list[object]:
        opened = False
        found: list[object] = []
        for each in messages:
            if isinstance(each, AssistantMessage):
                if opened and (each.text.strip() or each.tool_calls or is_valid([user(), each])):
                    found.append(
                        (each.text, each.message_id, each.vendor_data, [call.name for call in each.tool_calls])
                    )
            elif isinstance(each, SystemMessage):
                found.append(each)
            elif isinstance(each, UserMessage) and is_valid([each]):
                opened = True
                found.append(each)
        return found

    assert gist(repair(history)) == gist(history)


def test_the_refusal_names_the_way_out_and_the_way_out_works() -> None:
    broken = [UserMessage(content="Hello"), ToolMessage(call_id="c", name="echo", content="hi")]
    with pytest.raises(
        InvalidHistory, match=r"history\[1\]: .*; repair_history=True, or toolbus\.core\.transcript\.repair\(messages\)"
    ):
        validate(broken)
    validate(repair(broken))
