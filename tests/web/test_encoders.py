"""Corners of the encoders that neither the simulation nor a real client comes to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from ui_grammar import Chunk, check_agui, check_vercel

from support.transcript_strategies import histories
from toolbus.errors import ConfigurationError
from toolbus.events import (
    ApprovalRequested,
    Event,
    MessageAppended,
    ModelResponded,
    ModelRetrying,
    PlanChanged,
    PlanStep,
    ReasoningDelta,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RequestResumed,
    RequestStarted,
    RoundStarted,
    StatusChanged,
    SteeringAdded,
    SubscriberLagged,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallPaused,
    ToolCallProgress,
    ToolCallRequested,
    ToolCallResumed,
)
from toolbus.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
    to_vercel,
)
from toolbus.records import json_bytes, replace
from toolbus.tool_results import failure_content
from toolbus.web import AguiEncoder, EventEncoder, VercelEncoder, _vercel, sse_frame  # pyright: ignore[reportPrivateUsage]
from toolbus.web._vercel import _readable, page_messages  # pyright: ignore[reportPrivateUsage]

R: dict[str, Any] = {"request_id": "r", "conversation_id": "c"}
BEGIN: list[Event] = [RequestStarted(**R, timeout_seconds=9), RoundStarted(**R, round=0, message_count=1)]
END = RequestCompleted(**R, text="Hi.")


def reply(message_id: str = "r_r0", *names: str, **fields: Any) -> ModelResponded:
    calls = tuple(ToolCall(name=name, arguments='{"n":1}', call_id=f"r_0_{at}") for at, name in enumerate(names))
    return ModelResponded(**R, round=0, message=AssistantMessage(message_id=message_id, tool_calls=calls, **fields))


def fed(encoder: EventEncoder, *events: Event) -> list[Chunk]:
    return [chunk for event in events for chunk in encoder.feed(event)]


def agui(**options: Any) -> AguiEncoder:
    return AguiEncoder("t", "r", **options)


def called(name: str, index: int) -> ToolCallRequested:
    return ToolCallRequested(
        **R, call_id=f"r_0_{index}", name=name, arguments={"n": 1}, round=0, timeout_seconds=9, idempotency_key="k"
    )


def asked(definition: str) -> ApprovalRequested:
    return ApprovalRequested(
        **R, call_id="r_0_0", name="rm", arguments={"n": 1}, timeout_seconds=9, definition=definition, at=0
    )


def arguments(name: str, message_id: str, text: str = '{"n":') -> ToolArgumentsDelta:
    return ToolArgumentsDelta(**R, message_id=message_id, index=0, name=name, text=text)


def test_a_page_whose_answers_did_not_count_is_asked_once_more():
    events = [*BEGIN, reply("r_r0", "rm", "locate"), asked("abc"), called("locate", 1)]
    vercel = VercelEncoder(client_tools=["locate"], answered=["r_0_0", "r_0_1_result"])
    assert fed(vercel, *events) == []
    assert (vercel.waits_for_client, vercel.waits_for_effect) == (True, True)
    chunks = vercel.pause()
    check_vercel(chunks, known=["r_0_0", "r_0_1"])
    assert [each["type"] for each in chunks] == [
        "start",
        "tool-input-available",
        "tool-approval-request",
        "tool-input-available",
        "finish",
    ]
    assert vercel.ended
    assert vercel.pause() == vercel.close() == fed(vercel, END) == []

    run = agui(client_tools=["locate"], answered=["r_0_0"])
    assert fed(run, *events) == []
    chunks = run.pause()
    check_agui(chunks, known=["r_0_0"])
    (interrupt,) = chunks[-1]["outcome"]["interrupts"]
    assert (interrupt["id"], interrupt["expiresAt"]) == ("r_0_0.abc", "1970-01-01T00:00:09.000Z")
    # The protocol's own reason for a question about a call: clients have a form for it.
    assert (interrupt["reason"], interrupt["message"]) == ("tool_call", "Approve this call of rm?")


@pytest.mark.parametrize("approved", [False, True])
def test_a_page_is_asked_once_more_for_the_one_result_that_did_not_count(approved: bool):
    question = replace(asked("abc"), name="locate")
    decided = [question, question.decided(approved=True)] if approved else []
    done = ToolCallCompleted(**R, call_id="r_0_1", name="locate", content="Kyiv")
    encoder = VercelEncoder(client_tools=["locate"], answered=["r_0_0_result", "r_0_1_result"])
    calls = [*decided, called("locate", 0), called("locate", 1)]
    fed(encoder, *BEGIN, reply("r_r0", "locate", "locate"), *calls, done)
    assert encoder.waits_for_client
    chunks = encoder.pause()
    assert [(each["type"], each.get("toolCallId")) for each in chunks][:-1] == [("tool-input-available", "r_0_0")]


def below(number: int) -> ApprovalRequested:
    """A question of a sub-request of the call `r_0_0`."""
    return replace(asked("abc"), request_id=f"s{number}", call_id=f"s{number}_0_0")


def paused(*questions: ApprovalRequested, index: int = 0) -> ToolCallPaused:
    return ToolCallPaused(**R, call_id=f"r_0_{index}", pending_approvals=questions)


RESUMED = ToolCallResumed(**R, call_id="r_0_0")
DONE = ToolCallCompleted(**R, call_id="r_0_0", name="work", content="done")


def test_a_question_of_a_sub_request_is_asked_until_nobody_has_to_answer_it():
    two = [*BEGIN, reply("r_r0", "work"), called("work", 0), paused(below(1)), RESUMED, paused(below(1), below(2))]
    after = [RESUMED, paused(below(2)), RESUMED, DONE, END]
    vercel = VercelEncoder()
    chunks = fed(vercel, *two)
    assert [each["approvalId"] for each in chunks if "approvalId" in each] == ["r/s1_0_0.abc", "r/s2_0_0.abc"]
    assert vercel.waits_for_client
    rest = fed(vercel, *after)
    check_vercel([*chunks, *rest])
    outputs = [(each["toolCallId"], each["output"]) for each in (*chunks, *rest) if "output" in each]
    assert [each for each in outputs if each[0] != "r_0_0"] == [
        ("s1_0_0", "This question is no longer open."),
        ("s2_0_0", "This question is no longer open."),
    ]
    assert outputs[-1] == ("r_0_0", "done")

    again = VercelEncoder(answered=["s1_0_0"])  # the page has everything before its decision takes effect
    assert fed(again, *two) == []
    assert again.waits_for_effect
    assert [each["type"] for each in fed(again, *after[:2])] == [
        "start",
        "tool-output-available",
        "tool-output-available",
    ]
    assert again.waits_for_client

    run = agui()
    fed(run, *two)
    assert [each["id"] for each in run.pause()[-1]["outcome"]["interrupts"]] == ["r/s1_0_0.abc", "r/s2_0_0.abc"]
    second = agui(answered=["s1_0_0", "s2_0_0"])
    chunks = fed(second, *two, *after)
    check_agui(chunks, known=["s1_0_0", "s2_0_0", "r_0_0"])
    assert [each["toolCallId"] for each in chunks if each["type"] == "TOOL_CALL_RESULT"] == [
        "s1_0_0",
        "s2_0_0",
        "r_0_0",
    ]


@pytest.mark.parametrize("last", [DONE, END, replace(called("work", 0), resumed=True)])
def test_a_question_of_a_sub_request_ends_with_its_call(last: Event):
    encoder = VercelEncoder()
    fed(encoder, *BEGIN, reply("r_r0", "work"), called("work", 0), paused(below(1)))
    (closed,) = [each for each in fed(encoder, last) if each.get("toolCallId") == "s1_0_0"]
    assert closed["type"] == ("tool-output-error" if last is END else "tool-output-available")


def test_a_reply_that_arrives_when_an_answer_takes_effect_is_shown_whole():
    """The question of a call in the background is decided while the model writes."""
    events = [
        *BEGIN,
        reply("r_r0", "work"),
        replace(called("work", 0), background=True),
        RoundStarted(**R, round=1, message_count=2),
        paused(below(1)),
        ReasoningDelta(**R, message_id="r_r1", text="I th"),
        TextDelta(**R, message_id="r_r1", text="I am"),
        RESUMED,
        TextDelta(**R, message_id="r_r1", text=" here"),
        replace(reply("r_r1", text="I am here.", reasoning="I think."), round=1),
        DONE,
        replace(END, text="I am here."),
    ]
    for made, check in ((VercelEncoder, check_vercel), (agui, check_agui)):
        chunks = fed(made(answered=["s1_0_0"]), *events)
        assert check(chunks, known=["r_0_0", "s1_0_0"]) == {"r_r1": "I am here."}


@pytest.mark.parametrize("kind", ["reasoning", "arguments"])
def test_reasoning_and_arguments_that_arrive_when_an_answer_takes_effect_are_shown_whole(kind: str):
    call = ToolCall(name="look", arguments='{"n":1}', call_id="r_1_0")
    about: dict[str, Any] = {**R, "message_id": "r_r1"}
    pieces: list[Event] = [ReasoningDelta(**about, text=each) for each in ("I ", "think.")]
    if kind == "arguments":
        pieces = [ToolArgumentsDelta(**about, round=1, index=0, name="look", text=each) for each in ('{"n":', "1}")]
    events = [
        *BEGIN,
        reply("r_r0", "work"),
        replace(called("work", 0), background=True),
        RoundStarted(**R, round=1, message_count=2),
        paused(below(1)),
        pieces[0],
        RESUMED,
        pieces[1],
        ModelResponded(
            **R,
            round=1,
            message=AssistantMessage(
                message_id="r_r1", text="So.", reasoning="I think." if kind == "reasoning" else "", tool_calls=(call,)
            ),
        ),
        replace(called("look", 0), call_id="r_1_0"),
        ToolCallCompleted(**R, call_id="r_1_0", name="look", content="ok"),
        DONE,
        replace(END, text="So."),
    ]
    for made, check in ((VercelEncoder, check_vercel), (agui, check_agui)):
        chunks = fed(made(answered=["s1_0_0"]), *events)
        check(chunks, known=["r_0_0", "s1_0_0"])
        said = "".join(each.get("delta", "") for each in chunks if "REASONING" in each["type"].upper())
        assert said == ("I think." if kind == "reasoning" else "")


def test_a_question_that_follows_a_pause_without_one_stays_open():
    encoder = VercelEncoder()
    fed(encoder, *BEGIN, reply("r_r0", "work", "work"), called("work", 0), called("work", 1))
    fed(encoder, paused(below(1)), paused(index=1), RESUMED, replace(RESUMED, call_id="r_0_1"))
    fed(encoder, paused(below(2), index=1))
    assert fed(encoder, RESUMED) == []


def test_a_pause_for_somebody_other_than_the_page_does_not_end_the_stream():
    encoder = VercelEncoder()
    fed(encoder, *BEGIN, reply("r_r0", "work", "work"), called("work", 0), called("work", 1), paused())
    assert not encoder.waits_for_client
    fed(encoder, paused(below(1), index=1))
    assert not encoder.waits_for_client
    fed(encoder, DONE)
    assert encoder.waits_for_client
    fed(encoder, replace(RESUMED, call_id="r_0_1"))
    assert not encoder.waits_for_client


@pytest.mark.parametrize(
    ("at", "seconds", "shown"),
    [
        (9, 0.5, "1970-01-01T00:00:09.500Z"),
        (0, 1e12, "9999-12-31T23:59:59.000Z"),
        (0, 1e300, "9999-12-31T23:59:59.000Z"),
    ],
)
def test_a_question_that_is_open_for_ever_is_asked(at: float, seconds: float, shown: str):
    run = agui()
    fed(run, *BEGIN, reply("r_r0", "rm"), replace(asked("abc"), at=at, timeout_seconds=seconds))
    assert run.pause()[-1]["outcome"]["interrupts"][0]["expiresAt"] == shown


def test_a_page_is_not_asked_while_the_model_is_asked_again_after_an_empty_reply():
    encoder = VercelEncoder(client_tools=["locate"])
    fed(encoder, *BEGIN, reply("r_r0", "locate"), replace(called("locate", 0), background=True))
    fed(encoder, RoundStarted(**R, round=1, message_count=3))
    assert not encoder.waits_for_client
    fed(encoder, reply("r_r1"))
    assert encoder.waits_for_client  # only the call in the background is left
    fed(encoder, ModelRetrying(**R, round=1, reason="empty_reply", error="", delay_seconds=1))
    assert not encoder.waits_for_client
    fed(encoder, reply("r_r1_1", text="Done."))
    assert encoder.waits_for_client
    fed(encoder, RoundStarted(**R, round=2, message_count=5))
    assert not encoder.waits_for_client  # a message has joined


@pytest.mark.parametrize(
    ("events", "waits"),
    [
        ([], False),
        ([reply(text="Hi.")], False),  # the ending comes next
        ([reply("r_r0", "look", "locate"), called("look", 0), called("locate", 1)], False),
        ([reply("r_r0", "locate", "locate"), called("locate", 0), called("locate", 1)], True),
        ([reply("r_r0", "locate", "locate"), replace(called("locate", 0), background=True), called("locate", 1)], True),
        ([reply("r_r0", "rm"), asked("abc")], True),
        ([reply("r_r0", "rm"), asked("abc"), asked("abc").decided(approved=True)], False),
        ([reply("r_r0", "locate"), called("locate", 0), arguments("look", "r_r1")], False),
    ],
)
def test_a_page_is_asked_only_when_nothing_else_can_happen(events: list[Event], waits: bool):
    encoder = VercelEncoder(client_tools=["locate"])
    fed(encoder, *BEGIN, *events)
    assert encoder.waits_for_client is waits


def test_a_reader_that_begins_late_gets_what_follows():
    call = called("locate", 0)
    late = VercelEncoder(client_tools=["locate"])
    late.feed(call)
    assert late.waits_for_client
    late = VercelEncoder(client_tools=["locate"])
    late.feed(replace(call, background=True))
    assert not late.waits_for_client
    shown = fed(agui(), call)
    assert [(each["type"], each.get("delta")) for each in shown[1:]] == [
        ("TOOL_CALL_START", None),
        ("TOOL_CALL_ARGS", '{"n":1}'),
        ("TOOL_CALL_END", None),
    ]
    for made, check in ((VercelEncoder, check_vercel), (agui, check_agui)):
        assert check(fed(made(), END)) == {"r_answer": "Hi."}
        assert check(made().close()) == {}


def test_a_call_that_is_answered_without_being_requested_shows_its_input_before_its_output():
    """Control tools, such as `final_answer`, are answered by the request itself."""
    answer = ToolCallCompleted(**R, call_id="r_0_0", name="final_answer", content="done", data={"n": 1})
    chunks = fed(VercelEncoder(), *BEGIN, reply("r_r0", "final_answer"), answer, END)
    shown = [each for each in chunks if each.get("toolCallId")]
    assert [each["type"] for each in shown] == ["tool-input-start", "tool-input-available", "tool-output-available"]
    assert shown[1]["input"] == {"n": 1}
    check_vercel(chunks)


def test_an_answer_that_is_not_the_text_of_a_reply_is_the_next_round():
    answer = ToolCallCompleted(**R, call_id="r_0_0", name="final_answer", content="done")
    chunks = fed(agui(), *BEGIN, reply("r_r0", "final_answer"), answer, END)
    assert [each["stepName"] for each in chunks if each["type"] == "STEP_STARTED"] == ["round-0", "round-1"]


def test_a_question_that_was_decided_is_not_asked_again():
    question = replace(asked("abc"), name="locate")
    encoder = VercelEncoder(client_tools=["locate"], answered=["x_0_0"])
    fed(encoder, *BEGIN, reply("r_r0", "locate"), question, question.decided(approved=True), called("locate", 0))
    assert [each["type"] for each in encoder.pause()] == ["start", "tool-input-available", "finish"]


def test_a_page_runs_its_own_tool_once_and_only_after_the_decision():
    question = replace(asked("abc"), name="locate")
    before = [*BEGIN, reply("r_r0", "locate"), question]
    decided = [question.decided(approved=True), called("locate", 0)]
    first = VercelEncoder(client_tools=["locate"])
    chunks = [*fed(first, *before), *first.pause()]
    check_vercel(chunks)
    kinds = [each["type"] for each in chunks if "toolCallId" in each]
    assert kinds == ["tool-input-start", "tool-input-delta", "tool-approval-request"]
    assert [each["inputTextDelta"] for each in chunks if "inputTextDelta" in each] == ['{"n":1}']

    decides = VercelEncoder(client_tools=["locate"], answered=["r_0_0"])
    chunks = [*fed(decides, *before, *decided), *decides.pause()]
    check_vercel(chunks, known=["r_0_0"])
    assert [each["type"] for each in chunks] == ["start", "tool-input-available", "finish"]
    later = fed(VercelEncoder(client_tools=["locate"]), *before, *decided)
    assert later[-1]["type"] == "tool-input-available"  # The page was loaded again.

    done = ToolCallCompleted(**R, call_id="r_0_0", name="locate", content="Kyiv")
    chunks = fed(VercelEncoder(client_tools=["locate"], answered=["r_0_0_result"]), *before, *decided, done, END)
    check_vercel(chunks, known=["r_0_0"])
    assert [each["type"] for each in chunks if "toolCallId" in each] == ["tool-output-available"]


def test_a_page_that_has_run_its_own_tool_does_not_run_it_again_where_another_result_took_effect_first():
    question = replace(asked("abc"), name="locate")
    done = [ToolCallCompleted(**R, call_id=f"r_0_{at}", name="locate", content="Kyiv") for at in range(2)]
    events = [*BEGIN, reply("r_r0", "locate", "locate"), question, called("locate", 1), question.decided(approved=True)]
    encoder = VercelEncoder(client_tools=["locate"], answered=["r_0_0_result", "r_0_1_result"])
    chunks = fed(encoder, *events, done[1], called("locate", 0), done[0], END)
    kinds = [(each["type"], each["toolCallId"]) for each in chunks if "toolCallId" in each]
    assert kinds == [("tool-output-available", "r_0_1"), ("tool-output-available", "r_0_0")]


def test_a_page_does_not_run_its_own_tool_after_a_denial():
    question = replace(asked("abc"), name="locate")
    failed = ToolCallFailed(**R, call_id="r_0_0", name="locate", reason="denied", error="No.")
    events = [*BEGIN, reply("r_r0", "locate"), question, question.decided(approved=False), failed, END]
    chunks = fed(VercelEncoder(client_tools=["locate"], answered=["r_0_0"]), *events)
    check_vercel(chunks, known=["r_0_0"])
    assert [each["type"] for each in chunks if "toolCallId" in each] == ["tool-output-denied"]
    chunks = fed(agui(client_tools=["locate"], answered=["r_0_0"]), *events)
    check_agui(chunks, known=["r_0_0"])
    assert [each["content"] for each in chunks if each["type"] == "TOOL_CALL_RESULT"] == ["No."]
    check_vercel(fed(VercelEncoder(client_tools=["locate"]), *events))


UNREADABLE: list[tuple[Any, Any]] = [
    ({"__proto__": {"x": 1}}, '{"__proto__":{"x":1}}'),
    ([{"constructor": {"prototype": {}}}], '[{"constructor":{"prototype":{}}}]'),
    ({"constructor": 1, "a": '"__proto__":'}, {"constructor": 1, "a": '"__proto__":'}),
    ('{"__proto__":1}', '{"__proto__":1}'),
]


@pytest.mark.parametrize(("value", "shown"), UNREADABLE)
def test_a_value_that_pages_refuse_to_read_is_shown_as_text(value: Any, shown: Any):
    done = ToolCallCompleted(**R, call_id="r_0_0", name="look", content="done", data=value)
    chunks = fed(
        VercelEncoder(), *BEGIN, reply("r_r0", "look"), replace(called("look", 0), arguments={"of": value}), done
    )
    (input_,) = [each["input"] for each in chunks if "input" in each]
    (output,) = [each["output"] for each in chunks if "output" in each]
    assert output == shown
    assert input_ == ({"of": shown} if shown == value else f'{{"of":{shown}}}')


def test_a_value_without_such_names_is_not_written_as_json_to_find_that_out(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"text": '"' * 2**20, "half": "\ud83d"}
    monkeypatch.setattr(_vercel, "json_bytes", None)
    assert _readable({**value, "half": ""}) == {**value, "half": ""}
    monkeypatch.undo()
    assert _readable(value) is value


def test_of_a_long_value_that_pages_refuse_to_read_the_beginning_is_shown() -> None:
    shown = _readable({"__proto__": "\N{GRINNING FACE}" * 2**20})
    assert shown == '{"__proto__":"' + "\N{GRINNING FACE}" * (2**18 - 4)


@pytest.mark.parametrize("levels", [245, 250, 500, 2_000])
def test_arguments_of_too_many_levels_are_shown(levels: int):
    text = "[" * levels + "]" * levels
    call = ToolCall(name="look", arguments=text, call_id="r_0_0")
    message = AssistantMessage(message_id="r_r0", tool_calls=(call,))
    failed = ToolCallFailed(**R, call_id="r_0_0", name="look", reason="invalid_arguments", error="Too deep.")
    replied = ModelResponded(**R, round=0, message=message)
    chunks = fed(VercelEncoder(), *BEGIN, replied, failed, END)
    check_vercel(chunks)
    assert all(sse_frame(each) for each in chunks)
    assert sum(each.get("input") == text for each in chunks) == (levels > 246)
    result = ToolMessage(call_id="r_0_0", name="look", content=text)
    assert json_bytes({"messages": page_messages([message, result])})


def test_an_agent_of_ag_ui_gets_each_result_that_it_has_not_brought():
    done = [
        ToolCallCompleted(**R, call_id=f"r_0_{at}", name=name, content="Yes.")
        for at, name in enumerate(("rm", "locate", "locate"))
    ]
    calls = [asked("abc"), called("locate", 1), called("locate", 2)]
    encoder = agui(client_tools=["locate"], answered=["r_0_0", "r_0_1_result"])
    chunks = fed(
        encoder, *BEGIN, reply("r_r0", "rm", "locate", "locate"), *calls, asked("abc").decided(approved=True), *done
    )
    assert [each["toolCallId"] for each in chunks if each["type"] == "TOOL_CALL_RESULT"] == ["r_0_0", "r_0_2"]


def test_an_agent_of_ag_ui_before_version_1_gets_nothing_that_it_refuses():
    """`@ag-ui/client` 0.0.59, which CopilotKit uses, knows two outcomes without other fields, and text as results."""
    image = ImagePart(url="https://example.org/a.png")
    done = ToolCallCompleted(**R, call_id="r_0_0", name="look", content="A cat.", parts=(image,))
    asks = [*BEGIN, reply("r_r0", "look", "locate"), called("look", 0), done, called("locate", 1)]
    run = agui(client_tools=["locate"], protocol_version="")
    chunks = [*fed(run, *asks), *run.pause()]
    assert [each["content"] for each in chunks if each["type"] == "TOOL_CALL_RESULT"] == ["A cat."]
    assert chunks[-1] == {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"}
    for ending, outcome in ((RequestCancelled(**R), None), (END, {"type": "success"})):
        last = fed(agui(protocol_version=""), *BEGIN, ending)[-1]
        assert (last["type"], last.get("outcome")) == ("RUN_FINISHED", outcome)
    asked_run = agui(protocol_version="")
    fed(asked_run, *BEGIN, reply("r_r0", "rm"), asked("abc"))
    outcome = asked_run.pause()[-1]["outcome"]
    assert outcome["type"] == "interrupt"
    assert "expiresAt" not in outcome["interrupts"][0], "after it, the client would begin no run any more"


def test_answers_to_calls_that_never_existed_leave_the_ending():
    for made, check in ((VercelEncoder, check_vercel), (agui, check_agui)):
        chunks = fed(made(answered=["x_0_0"]), *BEGIN, reply(text="Hi."), END)
        assert check(chunks) == {}


@pytest.mark.parametrize(
    ("piece", "whole", "shown"),
    [
        ("I think", "I think so.", ["I think so."]),
        ("so.", "I think so.", ["so.", "I think so."]),  # the reader began in the middle
        ("I think", "", ["I think"]),  # the reply does not repeat it
    ],
)
def test_reasoning_is_whole_at_the_end(piece: str, whole: str, shown: list[str]):
    events = [*BEGIN, ReasoningDelta(**R, message_id="r_r0", text=piece), reply(text="Hi.", reasoning=whole), END]
    for made, check, kind in (
        (VercelEncoder, check_vercel, "reasoning-delta"),
        (agui, check_agui, "REASONING_MESSAGE_CONTENT"),
    ):
        chunks = fed(made(), *events)
        assert check(chunks) == {"r_r0": "Hi."}
        texts: dict[str, str] = {}
        for each in chunks:
            if each["type"] == kind:
                shown_id = each.get("id") or each["messageId"]
                texts[shown_id] = texts.get(shown_id, "") + each["delta"]
        assert list(texts.values()) == shown


LAGGED = SubscriberLagged(first_position=1, last_position=1, count=1)


@pytest.mark.parametrize(
    "pieces",
    [
        ["Hel", LAGGED, "."],
        [LAGGED, "lo \U0001f600."],
        ["Hello \ud83d", "\ude00."],
    ],
    ids=["in its middle", "at its beginning", "half of a pair"],
)
@pytest.mark.parametrize("made", [TextDelta, ReasoningDelta])
def test_after_a_gap_the_rest_waits_for_the_whole_reply(made: Any, pieces: list[Any]):
    whole = "Hello \U0001f600."
    events = [each if each is LAGGED else made(**R, message_id="r_r0", text=each) for each in pieces]
    kind = "text" if made is TextDelta else "reasoning"
    fields = {"text": whole} if made is TextDelta else {"text": "Hi.", "reasoning": whole}
    encoder = VercelEncoder()
    chunks = fed(encoder, *BEGIN, *events, reply("r_r0", **fields))
    shown = [each for each in chunks if each["type"] == f"{kind}-delta"]
    assert "".join(each["delta"] for each in shown) == whole
    assert len({each["id"] for each in shown}) == 1
    following = encoder.feed(made(**R, message_id="r_r1", text="Next"))
    assert [each["type"] for each in following] == [f"{kind}-start", f"{kind}-delta"]


def test_a_reply_that_gives_way_to_another_one_is_closed():
    beg = TextDelta(**R, message_id="r_r0", text="I beg")
    more = [TextDelta(**R, message_id="r_r1", text="I begin"), reply("r_r1", text="I begin."), END]
    for between in ([], [RoundStarted(**R, round=1, message_count=2)]):
        shown = check_vercel(fed(VercelEncoder(), *BEGIN, beg, *between, *more))
        assert shown == {"r_r0": "I beg", "r_r1": "I begin.", "r_answer": "Hi."}
    for made, check in ((VercelEncoder, check_vercel), (agui, check_agui)):
        failed = RequestFailed(**R, reason="provider_unavailable", error="no answer")
        assert check(fed(made(), *BEGIN, beg, failed)) == {"r_r0": "I beg"}


def test_text_that_is_not_the_beginning_of_the_reply_is_shown_anew():
    events = [*BEGIN, TextDelta(**R, message_id="r_r0", text="lo."), reply(text="Hello."), END]
    assert check_vercel(fed(VercelEncoder(), *events)) == {"r_r0": "lo.", "r_r0_2": "Hello.", "r_answer": "Hi."}


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        (RequestCompleted(**R, text="Ordered."), "Ordered."),
        (RequestCompleted(**R, outcome="stopped", reason="max_rounds=1", limit="max_rounds"), ""),
        (RequestCancelled(**R, reason="replaced by a newer message"), ""),
    ],
)
@pytest.mark.parametrize("answered", [(), ("r_0_0_result",)])
def test_the_newest_step_of_a_request_that_has_ended_has_no_calls(ending: Event, text: str, answered: Any):
    """A page sends the calls of its newest step once all of them have results: `useChat` would not end."""
    done = ToolCallCompleted(**R, call_id="r_0_0", name="locate", content="Kyiv")
    encoder = VercelEncoder(client_tools=["locate"], answered=answered)
    chunks = fed(encoder, *BEGIN, reply("r_r0", "locate"), called("locate", 0), done, ending)
    assert "".join(check_vercel(chunks, known=["r_0_0"] if answered else ()).values()) == text
    kinds = [each["type"] for each in chunks]
    newest = kinds[len(kinds) - kinds[::-1].index("start-step") :]
    assert not [each for each in newest if each.startswith("tool-")]
    assert ("text-delta" in newest) == bool(text)


@pytest.mark.parametrize("again", [ModelRetrying(**R, round=0, reason="x"), RequestResumed(**R, resumption=1)])
def test_arguments_that_are_streamed_again_are_another_call(again: Event):
    void = ToolArgumentsDelta(**R, message_id="r_r0", index=0, name="look", text='{"n":')
    more = ToolArgumentsDelta(**R, message_id="r_r0_1", index=0, name="look", text='{"n":1')
    events = [*BEGIN, void, again, more, reply("r_r0_1", "look"), called("look", 0), END]
    for made, check in ((VercelEncoder, check_vercel), (agui, check_agui)):
        chunks = fed(made(), *events)
        check(chunks)
        ids = {each["toolCallId"] for each in chunks if "toolCallId" in each}
        assert ids == {"r_0_0", "r_0_0~2"}
    run = fed(agui(), *events)
    pieces = [each["delta"] for each in run if each["type"] == "TOOL_CALL_ARGS" and each["toolCallId"] == "r_0_0~2"]
    assert "".join(pieces) == '{"n":1}'
    page = VercelEncoder(ai_sdk_version=7)
    fed(page, *BEGIN, void)
    assert [each["type"] for each in page.feed(again)] == ["tool-input-error", "reset-step"]
    assert page.feed(again) == []
    late = VercelEncoder(ai_sdk_version=7)  # It has not seen the beginning of the step.
    assert [each["type"] for each in fed(late, void, again)][-1] == "tool-input-error"
    resets = [
        [each["type"] for each in fed(made, *events)].count("reset-step")
        for made in (VercelEncoder(), VercelEncoder(ai_sdk_version=7))
    ]
    assert resets == [0, 1], "version 6 does not know it"
    pieces = [each["inputTextDelta"] for each in fed(VercelEncoder(), *events) if each["type"] == "tool-input-delta"]
    assert pieces == ['{"n":', '{"n":1']


@pytest.mark.parametrize(("version", "reset"), [(6, "data-reset-step"), (7, "reset-step")])
def test_what_has_arrived_of_a_reply_stays_at_the_end_of_the_request_only_if_it_is_kept(version: Any, reset: str):
    beg = TextDelta(**R, message_id="r_r0", text="I beg")
    message = AssistantMessage(text="I beg", message_id="r_r0", interrupted=True)
    kept = ModelResponded(**R, round=0, message=message, finish_reason="interrupted")
    steered = MessageAppended(**R, message=UserMessage(content="Quick!", message_id="r_s0"))
    ending = RequestCancelled(**R, reason="enough")
    found = [
        [each["type"] for each in fed(VercelEncoder(ai_sdk_version=version), *BEGIN, beg, *events, steered, ending)]
        for events in ([kept], [])
    ]
    assert [reset in each for each in found] == [False, True]
    assert found[1].index(reset) < found[1].index("data-steered")
    encoder = VercelEncoder(ai_sdk_version=version)
    left = [*fed(encoder, *BEGIN, beg), *encoder.close()]
    assert reset not in [each["type"] for each in left], "the reply comes again when the page connects again"


@pytest.mark.parametrize("said", ["", " "])
def test_the_reasoning_of_an_empty_reply_is_taken_back(said: str):
    """The reply joins no transcript, so a page that is loaded again has none of it."""
    thought = ReasoningDelta(**R, message_id="r_r0", text="Hm")
    message = AssistantMessage(text=said, reasoning="Hm", message_id="r_r0")
    empty = ModelResponded(**R, round=0, message=message)
    page = VercelEncoder(ai_sdk_version=7)
    fed(page, *BEGIN, thought)
    assert [each["type"] for each in page.feed(empty)] == ["reasoning-end", "reset-step"]
    assert fed(VercelEncoder(), *BEGIN, empty)[-1]["type"] == "start-step", "it is not shown to a reader who comes late"


def test_a_call_with_another_name_than_its_pieces_is_another_call():
    chunks = fed(VercelEncoder(), *BEGIN, arguments("find", "r_r0"), reply("r_r0", "look"), called("look", 0))
    ids = {each["type"]: each["toolCallId"] for each in chunks if "toolCallId" in each}
    assert (ids["tool-input-error"], ids["tool-input-available"]) == ("r_0_0", "r_0_0~2")


def test_arguments_that_an_interceptor_has_changed_replace_their_pieces_where_the_protocol_can():
    """The page showed a call that was not finished beside the call, also for a tool that had its result."""
    changed = [*BEGIN, arguments("look", "r_r0", '{"n":2'), reply("r_r0", "look"), called("look", 0)]
    for encoder, shown in (
        (VercelEncoder(), ["r_0_0"]),
        (VercelEncoder(client_tools=["look"]), ["r_0_0", "r_0_0~2"]),
        (agui(), ["r_0_0", "r_0_0~2"]),
    ):
        begins = {"tool-input-start", "TOOL_CALL_START"}
        assert [each["toolCallId"] for each in fed(encoder, *changed) if each["type"] in begins] == shown
    (known,) = [each for each in fed(VercelEncoder(), *changed) if each["type"] == "tool-input-available"]
    assert known["input"] == {"n": 1}


def test_a_page_that_comes_during_the_second_call_of_a_reply_has_the_calls_in_their_order():
    second = replace(arguments("find", "r_r0"), index=1)
    for encoder in (VercelEncoder(), agui()):
        chunks = fed(encoder, *BEGIN, second, reply("r_r0", "look", "find"))
        shown = [each["toolCallId"] for each in chunks if each["type"] in {"tool-input-start", "TOOL_CALL_START"}]
        assert shown == ["r_0_0", "r_0_1"]


@pytest.mark.parametrize("written", ['{"n":123456789012345678901}', '{"n":[{"m":-9223372036854775809}]}'])
def test_a_page_can_be_loaded_after_a_call_with_an_integer_over_64_bits(written: str):
    """The list of its messages could not be written as JSON, so the conversation was answered with 500 from then on."""
    call = ToolCall(name="look", arguments=written, call_id="r_0_0")
    failed = ToolCallFailed(**R, call_id="r_0_0", name="look", reason="invalid_arguments", error="too big")
    answer = AssistantMessage(message_id="r_r0", tool_calls=(call,))
    live = fed(VercelEncoder(), *BEGIN, ModelResponded(**R, round=0, message=answer), failed)
    (arrived,) = [each["input"] for each in live if each["type"] == "tool-input-error"]
    result = ToolMessage(
        call_id="r_0_0", name="look", content=failure_content("invalid_arguments", "too big"), is_error=True
    )
    page = json.loads(json_bytes(page_messages([UserMessage(content="?"), answer, result])))
    assert page[1]["parts"][1]["input"].replace(" ", "") == arrived == written


def test_the_answer_of_a_tool_comes_once_and_last_after_a_reload():
    """As it does while it arrives: after messages that the model has not read, and not again after the same text."""
    call = ToolCall(name="task_complete", arguments='{"answer":"Done."}', call_id="r_0_0")
    done = ToolMessage(call_id="r_0_0", name="task_complete", content='{"ok":true}', message_id="r_0_0_t")
    sent = UserMessage(content="Wait.", message_id="r_s0")
    following = UserMessage(content="Next?", message_id="r2_u")
    for text, texts in (("", ["Wait.", "Done.", "Next?"]), ("Done.", ["Done.", "Wait.", "Next?"])):
        answer = AssistantMessage(text=text, message_id="r_r0_1", tool_calls=(call,))
        page = page_messages([answer, done, sent, following])
        assert [part["text"] for each in page for part in each["parts"] if part["type"] == "text"] == texts
    again = AssistantMessage(text="Done again.", message_id="r_r1")
    page = page_messages([AssistantMessage(message_id="r_r0", tool_calls=(call,)), done, sent, again, following])
    texts = ["Wait.", "Done again.", "Next?"]
    assert [part["text"] for each in page for part in each["parts"] if part["type"] == "text"] == texts


def test_an_answer_before_an_empty_reply_is_shown_once():
    """The empty reply counted as the newest text, so the text of the request seemed to be another one."""
    empty = ModelResponded(**R, round=1, message=AssistantMessage(message_id="r_r1", text="\n"))
    events = [*BEGIN, reply("r_r0", text="Hi."), RoundStarted(**R, round=1, message_count=2), empty, END]
    for encoder, check in ((VercelEncoder(), check_vercel), (agui(), check_agui)):
        assert check(fed(encoder, *events)) == {"r_r0": "Hi."}


def test_a_call_without_arguments_has_an_empty_object():
    call = ToolCall(name="look", arguments="", call_id="r_0_0")
    events = [*BEGIN, ModelResponded(**R, round=0, message=AssistantMessage(message_id="r_r0", tool_calls=(call,)))]
    for encoder, kind in ((agui(), "TOOL_CALL_ARGS"), (VercelEncoder(client_tools=["look"]), "tool-input-delta")):
        (written,) = [each for each in fed(encoder, *events) if each["type"] == kind]
        assert "{}" in written.values()


def test_an_answer_that_an_earlier_reply_has_given_is_shown_once():
    """A request that is stopped has the newest text of the model, whose newest reply may have none."""
    done = ToolCallCompleted(**R, call_id="r_0_0", name="look", content="ok")
    calls = [called("look", 0), done, RoundStarted(**R, round=1, message_count=3)]
    again = [replace(called("look", 0), call_id="r_1_0"), replace(done, call_id="r_1_0")]
    call = ToolCall(name="look", arguments='{"n":1}', call_id="r_1_0")
    silent = ModelResponded(**R, round=1, message=AssistantMessage(message_id="r_r1", tool_calls=(call,)))
    stopped = replace(END, outcome="stopped", reason="max_rounds=2", limit="max_rounds")
    events = [*BEGIN, reply("r_r0", "look", text="Hi."), *calls, silent, *again, stopped]
    for encoder, check in ((VercelEncoder(), check_vercel), (agui(), check_agui)):
        assert check(fed(encoder, *events)) == {"r_r0": "Hi."}


def test_arguments_are_shown_again_only_after_a_person_has_edited_them():
    edited = replace(called("rm", 0), arguments={"n": 2})
    for call, inputs in ((called("rm", 0), [{"n": 1}]), (edited, [{"n": 1}, {"n": 2}])):
        chunks = fed(VercelEncoder(), *BEGIN, reply("r_r0", "rm"), asked("abc"), call)
        assert [each["input"] for each in chunks if each["type"] == "tool-input-available"] == inputs


def test_progress_of_a_call_that_is_not_shown_is_left_out():
    half = ToolCallProgress(**R, call_id="r_0_0", name="look", message="half", done=1, total=2)
    encoder = VercelEncoder()
    fed(encoder, *BEGIN)
    assert encoder.feed(half) == []
    fed(encoder, reply("r_r0", "look"))
    assert encoder.feed(half) == []


def test_only_a_tool_of_the_page_has_a_type_that_the_page_knows():
    events = [*BEGIN, reply("r_r0", "look", "locate"), called("look", 0), called("locate", 1)]
    shown = fed(VercelEncoder(client_tools=["locate"]), *events)
    assert {each["toolCallId"]: each.get("dynamic") for each in shown if each["type"] == "tool-input-available"} == {
        "r_0_0": True,
        "r_0_1": None,
    }


@pytest.mark.parametrize(
    ("asks", "reason", "kind"),
    [
        (True, "denied", "tool-output-denied"),
        (True, "error", "tool-output-error"),
        (False, "denied", "tool-output-error"),
    ],
)
def test_a_call_is_shown_as_denied_if_somebody_was_asked_and_refused(asks: bool, reason: Any, kind: str):
    question = [asked("abc")] if asks else [called("rm", 0)]
    failed = ToolCallFailed(**R, call_id="r_0_0", name="rm", reason=reason, error="No.")
    chunks = fed(VercelEncoder(), *BEGIN, reply("r_r0", "rm"), *question, failed, END)
    check_vercel(chunks)
    assert [each["type"] for each in chunks if each["type"].startswith("tool-output")] == [kind]
    failure = {"type": "data-failure", "id": "r_0_0", "data": {"reason": reason, "error": "No."}}
    assert [each for each in chunks if each["type"] == "data-failure"] == [failure]


def test_a_denied_call_beside_an_open_one_of_the_page_is_shown_as_failed():
    """A page sends the results of its own tools only once each call of the step has an output or an error."""
    events = [*BEGIN, reply("r_r0", "rm", "locate"), asked("abc"), called("locate", 1)]
    denied = ToolCallFailed(**R, call_id="r_0_0", name="rm", reason="denied", error="No.")
    kinds = {each["type"] for each in fed(VercelEncoder(client_tools=["locate"]), *events, denied)}
    assert ("tool-output-error" in kinds, "tool-output-denied" in kinds) == (True, False)


def test_the_answer_in_a_call_that_has_failed_is_not_shown_after_a_reload():
    call = ToolCall(name="task_complete", arguments='{"answer":"All done."}', call_id="r_0_0")
    refused = ToolMessage(call_id="r_0_0", name="task_complete", content="Not yet.", is_error=True)
    shown = page_messages([AssistantMessage(message_id="r_r0", tool_calls=(call,)), refused])
    assert [each for message in shown for each in message["parts"] if each["type"] == "text"] == []


@pytest.mark.parametrize("content", ["broken", '{"ok":false,"reason":"denied"}', '{"reason":1,"error":[]}', "[1]"])
def test_a_failure_of_another_form_is_shown_after_a_reload_as_it_is(content: str):
    result = ToolMessage(call_id="c", name="look", content=content, is_error=True)
    history = [AssistantMessage(tool_calls=(ToolCall(name="look", arguments="{}", call_id="c"),)), result]
    assert page_messages(history) == to_vercel(history, form="ui")


def test_a_streamed_call_that_the_reply_does_not_have_is_shown_as_void():
    pieces = [
        ToolArgumentsDelta(**R, message_id="r_r0", index=at, name=name, text='{"n":1')
        for at, name in enumerate(("look", "gone"))
    ]
    events = [*BEGIN, *pieces, reply("r_r0", "look"), called("look", 0), END]
    chunks = fed(VercelEncoder(), *events)
    check_vercel(chunks)
    assert [each["toolCallId"] for each in chunks if each["type"] == "tool-input-error"] == ["r_0_1"]
    chunks = fed(agui(), *events)
    check_agui(chunks)
    assert [each["type"] for each in chunks if each.get("toolCallId") == "r_0_1"][-2:] == [
        "TOOL_CALL_END",
        "TOOL_CALL_RESULT",
    ]


def test_reasoning_of_a_reply_that_is_asked_for_again_is_closed_first():
    thought = ReasoningDelta(**R, message_id="r_r0", text="Hm")
    events = [*BEGIN, thought, ModelRetrying(**R, round=0, reason="x"), reply("r_r0_1", text="Hi."), END]
    for made, check, ended in (
        (VercelEncoder, check_vercel, "reasoning-end"),
        (agui, check_agui, "REASONING_MESSAGE_END"),
    ):
        chunks = fed(made(), *events)
        check(chunks)
        assert [each["type"] for each in chunks].count(ended) == 1


def test_arguments_whose_beginning_was_missed_wait_for_the_reply():
    middle = ToolArgumentsDelta(**R, message_id="r_r0", index=0, name="look", text='":1}')
    chunks = fed(agui(), *BEGIN, middle, reply("r_r0", "look"), called("look", 0), END)
    check_agui(chunks)
    assert [each["delta"] for each in chunks if each["type"] == "TOOL_CALL_ARGS"] == ['{"n":1}']


def test_refused_arguments_are_shown_as_they_are():
    many = "[" + "[]," * 100_001 + "[]]"
    same = ('{"n":', many, f'{many[:-1]},"1234567890123456789"]', "\ud800")
    for text, shown in (('{"n":1}', {"n": 1}), *zip(same, same, strict=True)):
        message = AssistantMessage(message_id="r_r0", tool_calls=(ToolCall(name="x", arguments=text, call_id="r_0_0"),))
        chunks = fed(VercelEncoder(), *BEGIN, ModelResponded(**R, round=0, message=message), END)
        (refused,) = [each for each in chunks if each["type"] == "tool-input-error"]
        assert refused["input"] == shown
        failed = ToolMessage(call_id="r_0_0", name="x", content="It is wrong.", is_error=True)
        (stored,) = page_messages([message, failed])
        assert [each["input"] for each in stored["parts"] if "input" in each] == [json.loads(json_bytes(shown))]


def test_a_plan_and_the_way_of_the_ending_are_shown():
    plan = PlanChanged(**R, steps=(PlanStep(text="Look."),))
    stopped = RequestCompleted(**R, outcome="stopped", reason="max_rounds=3", limit="max_rounds", text="Hi.")
    steps = [{"text": "Look.", "status": "pending"}]
    chunks = fed(VercelEncoder(), *BEGIN, plan, reply(text="Hi."), stopped)
    assert {"type": "data-plan", "id": "plan", "data": steps} in chunks
    assert chunks[-1]["finishReason"] == "other"
    assert chunks[-1]["messageMetadata"]["explanation"] == "I stopped after 3 steps without finishing."
    run = fed(agui(), *BEGIN, plan, reply(text="Hi."), stopped)
    assert {"type": "CUSTOM", "name": "plan", "value": steps} in run
    assert run[-1]["result"] == {"explanation": "I stopped after 3 steps without finishing."}


PICTURE, PAGE = (
    ImagePart(url="data:image/png;base64,AAAA"),
    FilePart(url="https://example.com/a.pdf", media_type="application/pdf"),
)


@pytest.mark.parametrize(
    ("fields", "of_agui", "of_vercel"),
    [
        ({"content": "Two."}, "Two.", "Two."),
        ({"content": "Two.", "data": [1, 2]}, "Two.", [1, 2]),
        (
            {"content": "Two.", "parts": (TextPart(text="One more."), PICTURE, PAGE)},
            [
                {"type": "text", "text": "Two."},
                {"type": "text", "text": "One more."},
                {"type": "image", "source": {"type": "data", "mimeType": "image/png", "value": "AAAA"}},
                {"type": "document", "source": {"type": "url", "value": "https://example.com/a.pdf"}},
            ],
            None,
        ),
    ],
    ids=["text", "data", "parts"],
)
def test_a_result_is_shown_with_its_data_or_its_parts(fields: dict[str, Any], of_agui: Any, of_vercel: Any):
    done = ToolCallCompleted(**R, call_id="r_0_0", name="look", **fields)
    events = [*BEGIN, reply("r_r0", "look"), called("look", 0), done]
    (shown,) = [each for each in fed(agui(), *events) if each["type"] == "TOOL_CALL_RESULT"]
    assert shown["content"] == of_agui
    (shown,) = [each for each in fed(VercelEncoder(), *events) if each["type"] == "tool-output-available"]
    if of_vercel is None:  # It is what a page gets after a reload.
        stored = ToolMessage(call_id="r_0_0", name="look", **fields)
        of_vercel = to_vercel([stored], form="ui")[0]["parts"][-1]["output"]
    assert shown["output"] == of_vercel


def test_a_message_of_the_user_is_shown_when_it_is_sent_and_once_more_when_it_joins_the_transcript():
    prompt = UserMessage(content="Hello?", message_id="r_u")
    repair = UserMessage(content="Repair it.", message_id="r_o0")
    steered = UserMessage(content="By day.", message_id="r_s0")
    joined = [MessageAppended(**R, message=each) for each in (prompt, repair, steered)]
    events = [*BEGIN, SteeringAdded(**R, text="By day."), reply(text="At 10."), *joined, END]
    shown = fed(VercelEncoder(), *events)
    check_vercel(shown)
    assert [each for each in shown if each["type"].startswith("data")] == [
        {"type": "data-steering", "data": {"text": "By day."}, "transient": True},
        {"type": "data-steered", "id": "r_s0", "data": {"text": "By day."}},
    ]
    run = fed(agui(), *events)
    assert check_agui(run) == {"r_r0": "At 10.", "r_s0": "By day.", "r_answer": "Hi."}
    assert {"type": "CUSTOM", "name": "steering", "value": {"text": "By day."}} in run
    assert [each["messageId"] for each in run if each.get("role") == "user"] == ["r_s0"]


def test_progress_failures_and_the_status_are_shown():
    half = ToolCallProgress(**R, call_id="r_0_0", name="look", message="half", done=1, total=2)
    failed = ToolCallFailed(**R, call_id="r_0_0", name="look", reason="error", error="It broke.")
    status = StatusChanged(**R, stage="submitted", text="Asking.")
    events = [*BEGIN, status, reply("r_r0", "look"), called("look", 0), half, failed]
    shown = fed(agui(), *events)
    assert [(each["name"], each["value"]) for each in shown if each["type"] == "CUSTOM"] == [
        ("status", {"stage": "submitted", "text": "Asking."}),
        ("progress", {"toolCallId": "r_0_0", "message": "half", "done": 1, "total": 2}),
    ]
    assert [each["content"] for each in shown if each["type"] == "TOOL_CALL_RESULT"] == ["It broke."]
    shown = fed(VercelEncoder(), *events)
    assert [(each["data"], each["transient"]) for each in shown if each["type"] == "data-status"] == [
        ({"stage": "submitted", "text": "Asking."}, True)
    ]
    (progress,) = [each for each in shown if each["type"] == "tool-output-available"]
    assert (progress["preliminary"], progress["output"]) == (True, {"message": "half", "done": 1, "total": 2})
    assert [each["errorText"] for each in shown if each["type"] == "tool-output-error"] == ["It broke."]


@pytest.mark.parametrize(
    ("ending", "of_agui", "of_vercel"),
    [
        (END, "success", ["finish"]),
        (RequestCancelled(**R, reason="enough"), "cancelled", ["message-metadata", "abort"]),
        (RequestFailed(**R, reason="provider_unavailable", error="no answer"), None, ["finish", "error"]),
    ],
    ids=["completed", "cancelled", "failed"],
)
def test_each_ending_is_shown_as_its_protocol_has_it(ending: Event, of_agui: str | None, of_vercel: list[str]):
    events = [*BEGIN, reply(text="Hi."), ending]
    last = fed(agui(), *events)[-1]
    assert last["type"] == ("RUN_ERROR" if of_agui is None else "RUN_FINISHED")
    assert last.get("outcome", {}).get("type") == of_agui
    assert [each["type"] for each in fed(VercelEncoder(), *events)][-len(of_vercel) :] == of_vercel


def test_an_error_is_one_sentence_without_its_cause():
    failed = RequestFailed(**R, reason="provider_error", error="401 for key sk-123 at request r")
    for encoder in (VercelEncoder(), agui()):
        last = fed(encoder, *BEGIN, failed)[-1]
        assert "I could not finish because the language model failed." in last.values()
        assert "sk-123" not in str(last)


def test_wrong_options_of_an_encoder_are_refused():
    with pytest.raises(ConfigurationError, match=r"client_tools is a str \('look'\); pass a list of names of tools"):
        VercelEncoder(client_tools="look")
    with pytest.raises(ConfigurationError, match="it must be 6 or 7"):
        VercelEncoder(ai_sdk_version=5)  # pyright: ignore[reportArgumentType]


# ------------------------------------------------------------------------------------------- a page that connects


@given(histories)
def test_whatever_the_history_a_page_of_ag_ui_that_connects_gets_messages_and_an_ending(history: list[Message]):
    encoder = agui()
    chunks = [*encoder.begin(history), *encoder.pause()]
    assert [each["type"] for each in chunks] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert all(sse_frame(each).count(b"\n") == 2 for each in chunks)
    assert all(each["id"] and each["role"] != "system" for each in chunks[1]["messages"])
    assert encoder.ended
    assert encoder.close() == []


def test_a_page_of_ag_ui_that_connects_gets_the_replies_of_its_request_from_the_events_only():
    call = ToolCall(name="look", arguments='{"n":1}', call_id="r_0_0")
    history = [
        SystemMessage(text="Be brief.", message_id="r_i"),
        UserMessage(content="Before?", message_id="q_u"),
        AssistantMessage(text="Yes.", message_id="q_r0"),
        UserMessage(
            content=(TextPart(text="This?"), FilePart(url="https://a.example/b", media_type="text/x", name="b"))
        ),
        AssistantMessage(message_id="r_r0", reasoning="Hm.", tool_calls=(call,)),
        ToolMessage(call_id="r_0_0", name="look", content="ok", message_id="r_0_0_t"),
        UserMessage(content="By day.", message_id="r_s0"),
    ]
    encoder = agui()
    begun = encoder.begin(history, request_id="r")
    assert begun[1]["messages"] == [
        {"id": "q_u", "role": "user", "content": "Before?"},
        {"id": "q_r0", "role": "assistant", "content": "Yes."},
        {
            "id": "message-2",
            "role": "user",
            "content": [
                {"type": "text", "text": "This?"},
                {
                    "type": "document",
                    "source": {"type": "url", "value": "https://a.example/b"},
                    "metadata": {"filename": "b"},
                },
            ],
        },
    ]
    check_agui([*begun, *fed(encoder, *BEGIN, reply("r_r0", text="Hi."), END)])


def test_a_page_of_ag_ui_has_its_messages_also_if_the_server_stops_before_the_first_event():
    encoder = agui()
    begun = encoder.begin([UserMessage(content="Before?")], request_id="r")
    assert [each["type"] for each in (*begun, *encoder.close())] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_ERROR"]
