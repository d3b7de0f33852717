"""The transcript that a journal gives: which facts append which messages, word for word, and the events for them.

A changed rule would change the transcripts of requests that are resumed, so what is here belongs to the journal's format.
"""

from __future__ import annotations

import pytest

from toolbus.core.turn import TurnState, apply, with_messages
from toolbus.events import (
    Event,
    MessageAppended,
    ModelResponded,
    ModelRetrying,
    RequestCompleted,
    RequestFailed,
    RequestResumed,
    RequestStarted,
    RoundStarted,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import AssistantMessage, ImagePart, Message, ToolCall, ToolMessage, UserMessage
from toolbus.records import replace

pytestmark = pytest.mark.guarantee("G08", "G09")

PROMPT = UserMessage(content="What time is it?", message_id="r_u")
IMAGE = ImagePart(url="https://example.com/a.png")


def reply(round_number: int, text: str = "", *names: str) -> ModelResponded:
    calls = tuple(ToolCall(name=name, call_id=f"r_{round_number}_{place}") for place, name in enumerate(names))
    message = AssistantMessage(text=text, tool_calls=calls, message_id=f"r_r{round_number}")
    return ModelResponded(event_id=f"reply{round_number}", request_id="r", round=round_number, message=message, at=7.0)


def begun() -> list[Event]:
    return [
        RequestStarted(event_id="start", request_id="r", timeout_seconds=9.0, at=0.0),
        MessageAppended(event_id="prompt", request_id="r", message=PROMPT),
        RoundStarted(event_id="round0", request_id="r", round=0, message_count=1, at=0.0),
    ]


def requested(call_id: str, name: str) -> ToolCallRequested:
    return ToolCallRequested(
        request_id="r",
        call_id=call_id,
        name=name,
        arguments={},
        round=0,
        timeout_seconds=5.0,
        idempotency_key=call_id,
        at=0.0,
    )


def applied(*facts: Event) -> TurnState:
    state = TurnState("r")
    for fact in facts:
        apply(state, fact)
    return state


def shown(state: TurnState, *facts: Event) -> list[tuple[str, Message]]:
    """The ids and messages of the appended messages that a listener to these facts hears of."""
    events = with_messages(state, facts)
    return [(each.event_id, each.message) for each in events if isinstance(each, MessageAppended)]


def test_a_reply_appends_its_message_and_the_last_result_appends_all_results_in_call_order() -> None:
    asked = reply(0, "Let me see.", "clock", "camera", "nothing")
    facts = [
        *begun(),
        asked,
        ToolCallFailed(
            event_id="f", request_id="r", call_id="r_0_2", name="nothing", reason="unknown_tool", error="no “such” tool"
        ),
        requested("r_0_0", "clock"),
        requested("r_0_1", "camera"),
        ToolCallCompleted(event_id="b", request_id="r", call_id="r_0_1", name="camera", content="seen", parts=(IMAGE,)),
        ToolCallCompleted(event_id="a", request_id="r", call_id="r_0_0", name="clock", content="noon", data=12),
    ]
    results = [
        ToolMessage(call_id="r_0_0", name="clock", content="noon", message_id="r_0_0_t"),
        ToolMessage(call_id="r_0_1", name="camera", content="seen", parts=(IMAGE,), message_id="r_0_1_t"),
        ToolMessage(
            call_id="r_0_2",
            name="nothing",
            content='{"ok":false,"reason":"unknown_tool","error":"no “such” tool"}',
            is_error=True,
            message_id="r_0_2_t",
        ),
    ]
    assert applied(*facts[:-1]).messages == [PROMPT, asked.message], "results wait for the last of their round"
    state = applied(*facts)
    assert state.messages == [PROMPT, asked.message, *results]
    assert shown(state, *facts) == [
        ("prompt", PROMPT),
        ("reply0_m0", asked.message),
        *((f"a_m{place}", each) for place, each in enumerate(results)),
    ]


def test_each_event_follows_its_cause_at_once_with_its_time_and_the_ids_of_the_request() -> None:
    # Who answers a call from elsewhere may know nothing but its ids.
    settled = ToolCallCompleted(event_id="a", request_id="r", at=3.0, call_id="r_0_0", name="clock", content="noon")
    facts = [*begun(), reply(0, "", "clock"), requested("r_0_0", "clock"), settled]
    following = RoundStarted(event_id="round1", request_id="r", round=1, message_count=3, at=8.0)
    state = applied(*facts, following)
    state.conversation_id, state.parent_id, state.metadata = "c", "p", {"tenant": 1}
    events = with_messages(state, [settled, following], since_round=0)
    assert [each.event_id for each in events] == ["a", "a_m0", "round1"]
    derived = events[1]
    assert (derived.request_id, derived.conversation_id, derived.parent_id, derived.at) == ("r", "c", "p", 3.0)
    assert derived.metadata == {"tenant": 1}


def test_an_empty_reply_appends_nothing() -> None:
    blank = reply(0, " \n")
    again = ModelRetrying(request_id="r", round=0, reason="empty_reply", error="", at=0.0)
    state = applied(*begun(), blank, again)
    assert state.messages == [PROMPT]
    assert shown(state, blank) == []


def test_a_reply_without_a_price_appends_its_message_and_the_failures_of_its_calls() -> None:
    refused = ToolCallFailed(
        event_id="f", request_id="r", call_id="r_0_0", name="clock", reason="cancelled", error="The request ended."
    )
    facts = [
        *begun(),
        reply(0, "", "clock"),
        refused,
        RequestFailed(request_id="r", reason="configuration_error", error=""),
    ]
    content = '{"ok":false,"reason":"cancelled","error":"The request ended."}'
    failure = ToolMessage(call_id="r_0_0", name="clock", content=content, is_error=True, message_id="r_0_0_t")
    assert applied(*facts).messages[2:] == [failure]


def test_results_with_one_event_id_belong_to_the_rounds_of_their_calls() -> None:
    """The ids of events that others publish are theirs to choose, and may repeat."""
    facts = begun()
    for number in range(2):
        call_id = f"r_{number}_0"
        facts += [
            reply(number, "", "clock"),
            requested(call_id, "clock"),
            ToolCallCompleted(event_id="x", request_id="r", call_id=call_id, name="clock", content=f"{number}"),
            RoundStarted(request_id="r", round=number + 1, message_count=2 * number + 3, at=0.0),
        ]
    facts += [reply(2, "Done."), RequestCompleted(request_id="r", text="Done.")]
    state = applied(*facts)
    contents = [each.content for _, each in shown(state, *facts) if isinstance(each, ToolMessage)]
    assert contents == ["0", "1"]
    assert [each for _, each in shown(state, *facts)] == state.messages


def test_a_background_call_that_is_requested_again_appends_the_results_of_its_round_once() -> None:
    first = ToolCallRequested(
        event_id="first",
        request_id="r",
        call_id="r_0_0",
        name="clock",
        arguments={},
        round=0,
        timeout_seconds=5.0,
        idempotency_key="k",
        background=True,
        at=0.0,
    )
    facts = [*begun(), reply(0, "", "clock"), first, RequestResumed(event_id="resumed", request_id="r", resumption=1)]
    facts.append(replace(first, event_id="again", resumed=True))
    state = applied(*facts)
    assert [each for each, _ in shown(state, *facts)] == ["prompt", "reply0_m0", "first_m0"]
