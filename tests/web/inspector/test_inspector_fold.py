"""The fold over events, the transcript beside what was sent, the list of events, and what is masked. All are pure."""

from __future__ import annotations

from typing import Any

import anyio.lowlevel
import msgspec
import pytest

from support.watchdog import MAX_SECONDS, cpu_seconds
from toolbus import EventBus, RequestSession
from toolbus.errors import ConfigurationError
from toolbus.events import (
    ApprovalRequested,
    CancelRequested,
    Event,
    HistoryCompressed,
    MessageAppended,
    ModelResponded,
    ModelRetrying,
    PlanChanged,
    PlanStep,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RequestResumed,
    RequestStarted,
    RequestTakenOver,
    RoundStarted,
    Spent,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallPaused,
    ToolCallProgress,
    ToolCallRequested,
    ToolCallResumed,
    ToolCallRetrying,
    ToolCallStarted,
)
from toolbus.messages import (
    AssistantMessage,
    ImagePart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    size_of,
)
from toolbus.records import replace
from toolbus.testing import ScriptedProvider, text
from toolbus.web.inspector import _event_log
from toolbus.web.inspector._event_list import EventFilter, line_of, listed
from toolbus.web.inspector._event_log import EventLog
from toolbus.web.inspector._fold import FEW_ROWS, RequestFold
from toolbus.web.inspector._shown import restored, shown_arguments, shown_event, shown_text
from toolbus.web.inspector._transcript import MAX_MESSAGES, transcript

KEY = "sk-live-4f9Zq7Lr2Xc8Vb1Nm5"


def started(at: float = 0.0, request_id: str = "r", prompt: str = "Hello", **more: Any) -> RequestStarted:
    return RequestStarted(request_id=request_id, conversation_id="c", at=at, prompt=prompt, timeout_seconds=600, **more)


def requested(at: float, call_id: str = "a", request_id: str = "r", **more: Any) -> ToolCallRequested:
    given: dict[str, Any] = {
        "name": "look",
        "arguments": {"page": 1},
        "round": 0,
        "timeout_seconds": 9,
        "idempotency_key": call_id,
        **more,
    }
    return ToolCallRequested(request_id=request_id, call_id=call_id, at=at, **given)


def completed(at: float, call_id: str = "a", **more: Any) -> ToolCallCompleted:
    return ToolCallCompleted(request_id="r", call_id=call_id, name="look", content="x", at=at, **more)


def asked(at: float, call_id: str = "a", request_id: str = "r") -> ApprovalRequested:
    return ApprovalRequested(
        request_id=request_id, call_id=call_id, name="look", arguments={"page": 1}, timeout_seconds=60, at=at
    )


def responded(at: float, round_: int = 0, **more: Any) -> ModelResponded:
    usage = Usage(input_tokens=10, output_tokens=3, cached_tokens=4, reasoning_tokens=1)
    given: dict[str, Any] = {
        "vendor": "openai",
        "model": "gpt",
        "usage": usage,
        "message": AssistantMessage(text="Yes."),
        **more,
    }
    return ModelResponded(request_id="r", at=at, round=round_, **given)


def fold(*events: Event, **more: Any) -> RequestFold:
    found = RequestFold("r", **more)
    for each in events:
        found.feed(each)
    return found


def on_gpu(_request_id: str, name: str) -> tuple[bool, str]:
    return name == "look", "gpu"


def bars(found: RequestFold, label: str) -> list[list[Any]]:
    [row] = [each for each in found.view()["rows"] if each["label"] == label]
    return row["segments"]


def note(found: RequestFold, label: str) -> str:
    [row] = [each for each in found.view()["rows"] if each["label"] == label]
    return row["note"]


def test_a_call_waits_for_its_turn_runs_is_tried_again_and_ends():
    retrying = ToolCallRetrying(
        request_id="r", call_id="a", name="look", attempt=1, error="busy", delay_seconds=2, at=4
    )
    begins = [
        ToolCallStarted(request_id="r", call_id="a", name="look", attempt=each, at=at) for each, at in ((1, 2), (2, 6))
    ]
    found = fold(started(), requested(1), begins[0], retrying, begins[1], completed(7))
    assert bars(found, "look") == [["queued", 1, 2], ["tool", 2, 4], ["retry", 4, 6], ["tool", 6, 7]]
    assert (found.summary()["retries"], note(found, "look")) == (1, "attempt 1 failed: busy")


def test_a_call_waits_for_a_person_and_pauses_for_one():
    question = asked(1)
    below = asked(6, request_id="below")  # a store has it only with the call that has made the request below
    pause = ToolCallPaused(request_id="r", call_id="a", at=6, pending_approvals=(below,))
    resume = ToolCallResumed(request_id="r", call_id="a", at=8)
    found = fold(started(), question)
    assert (found.state, found.doing) == ("waiting", "waits for a decision: look")
    assert found.view()["approvals"][0]["deadline"] == 61
    found.feed(question.decided(approved=True, by="ann"))
    [row] = [each for each in found.view()["rows"] if each["label"] == "look"]
    assert row["note"] == "approved by ann"
    found.feed(question.decided(approved=True, arguments={"page": 2}))
    assert found.view()["rows"][1]["detail"] == '{"page":2}'
    found = fold(started(), requested(1), pause)
    assert found.questions == {("below", "a"): below}
    assert (found.state, found.view()["rows"][0]["state"], found.view()["rows"][1]["state"]) == ("waiting",) * 3
    found.feed(resume)
    assert (found.state, found.view()["rows"][1]["state"], found.questions) == ("running", "running", {})
    assert fold(started(), question, requested(5)).view()["rows"][1]["state"] == "running"
    found = fold(started(), question, requested(5), pause, resume, completed(9))
    assert bars(found, "look") == [["person", 1, 5], ["tool", 5, 6], ["person", 6, 8], ["tool", 8, 9]]


def test_a_model_is_asked_again_after_a_delay():
    retrying = ModelRetrying(request_id="r", round=0, reason="provider_unavailable", delay_seconds=3, at=2)
    begins = RoundStarted(request_id="r", round=0, message_count=1, at=1)
    found = fold(started(), begins, retrying, responded(6))
    assert bars(found, "model, round 1") == [["model", 1, 2], ["retry", 2, 5], ["model", 5, 6]]
    found = fold(started(), begins, retrying)
    assert (found.view()["rows"][1]["note"], found.summary()["retries"]) == (
        "asked again after provider_unavailable",
        1,
    )


def test_tokens_and_cost_are_those_of_replies_summaries_and_sub_requests():
    useless = ModelRetrying(request_id="r", round=0, reason="empty_reply", usage=Usage(input_tokens=8))
    assert fold(started(), useless, responded(1)).summary()["tokens"]["input"] == 18
    spent = Spent(usage=Usage(input_tokens=100, output_tokens=30), cost=0.5)
    summary = HistoryCompressed(
        request_id="r",
        before_tokens=9,
        after_tokens=3,
        usage=Usage(input_tokens=1),
        vendor="groq",
        model="m",
        cost=0.125,
    )
    found = fold(started(), responded(1, cost=0.25), requested(2), completed(3, spent=spent), summary).summary()
    assert found["tokens"] == {"input": 111, "output": 33, "cached": 4, "reasoning": 1}
    assert (found["cost"], found["models"]) == (0.875, ["openai:gpt", "groq:m"])
    assert fold(started(), responded(1)).summary()["cost"] is None
    lost = ModelRetrying(
        request_id="r",
        round=0,
        reason="context_overflow",
        usage=Usage(input_tokens=1),
        vendor="openai",
        model="mini",
        cost=0.5,
    )
    tried = fold(started(), lost, responded(1, cost=0.25)).summary()
    assert (tried["cost"], tried["tokens"]["input"]) == (0.75, 11)
    assert tried["models"] == ["openai:mini", "openai:gpt"]
    # The ending counts a last reply that could not be used.
    ending = RequestCompleted(request_id="r", cost=1.5)
    assert fold(started(), requested(2), completed(3, spent=spent), lost, ending).summary()["cost"] == 1.5


@pytest.mark.parametrize(
    ("ending", "state", "row"),
    [
        (RequestCompleted(request_id="r", at=9), "completed", "ok"),
        (
            RequestCompleted(request_id="r", at=9, outcome="stopped", reason="max_rounds=3", limit="max_rounds"),
            "stopped",
            "stopped",
        ),
        (RequestFailed(request_id="r", at=9, reason="provider_error", error="no"), "failed", "failed"),
        (RequestCancelled(request_id="r", at=9, reason="enough"), "cancelled", "cancelled"),
    ],
)
def test_an_ending_ends_every_row(ending: Event, state: str, row: str):
    found = fold(
        started(), RoundStarted(request_id="r", round=0, message_count=1, at=1), requested(2), asked(3, "b"), ending
    )
    view = found.view()
    assert (view["state"], view["ended_at"], view["approvals"], view["open_calls"]) == (state, 9, [], [])
    assert all(segment[2] is not None for each in view["rows"] for segment in each["segments"])
    assert view["rows"][0]["state"] == row


def test_an_ending_cancels_what_was_to_run_and_leaves_what_has_ended():
    denied = asked(3, "c").decided(approved=True)
    end = RequestFailed(request_id="r", at=9, reason="provider_error", error="no", usage=Usage(input_tokens=7))
    found = fold(started(), responded(1), requested(2), completed(3), asked(3, "c"), denied, end)
    assert [each["state"] for each in found.view()["rows"]] == ["failed", "ok", "ok", "cancelled"]
    assert found.usage == Usage(input_tokens=7), "an ending tells the sum of all"
    assert fold(started(), responded(1), RequestCancelled(request_id="r", at=9)).usage.input_tokens == 10
    asked_model = fold(started(), RoundStarted(request_id="r", round=0, message_count=1, at=1), end)
    assert [each["state"] for each in asked_model.view()["rows"]] == ["failed", "failed"]


def test_a_failed_call_says_why():
    failed = ToolCallFailed(request_id="r", call_id="a", name="look", reason="timeout", error="too slow", at=4)
    found = fold(started(), requested(1), failed)
    [row] = [each for each in found.view()["rows"] if each["label"] == "look"]
    assert (row["state"], row["note"]) == ("failed", "timeout: too slow")
    assert found.summary()["failed_calls"] == 1
    found = fold(started(), asked(1), failed)
    assert (found.view()["approvals"], found.state) == ([], "running")
    refused = fold(started(), msgspec.structs.replace(failed, reason="unknown_tool")).summary()
    assert (refused["tool_calls"], refused["failed_calls"]) == (1, 1), "a call that never ran is a call"
    slow = msgspec.structs.replace(failed, duration_seconds=1)
    assert bars(fold(started(), requested(1), slow, tool_facts=on_gpu), "look") == [["queued", 1, 3], ["tool", 3, 4]]


def test_a_request_that_has_only_begun_has_counted_nothing():
    found = fold(started())
    assert (found.state, found.doing) == ("running", "begins")
    view = found.view()
    counted = ("rounds", "tool_calls", "failed_calls", "retries", "resumptions", "history_count", "message_count")
    assert [view[each] for each in counted] == [0] * len(counted)
    found.feed(responded(1, round_=4))
    assert (found.doing, found.view()["rounds"]) == ("asks the model", 5)
    found.feed(responded(2, round_=2))
    assert (found.view()["rounds"], found.view()["models"]) == (5, ["openai:gpt"])


def test_a_request_whose_beginning_nobody_saw_has_the_time_of_its_newest_event():
    assert fold(requested(5), completed(7), completed(6, "b")).summary()["started_at"] == 7
    view = fold(completed(7)).view()
    assert (view["rows"][1]["detail"], view["history_count"]) == ("x", 0)


def test_a_call_that_is_requested_again_is_one_call():
    found = fold(started(), requested(1, resumed=True))
    assert found.summary()["tool_calls"] == 1
    found.feed(requested(5, resumed=True))
    assert (bars(found, "look"), note(found, "look")) == ([["tool", 1, None]], "requested again after a restart")
    assert found.summary()["tool_calls"] == 1
    found = fold(started(), requested(1), requested(5, attempt=2))
    assert (found.summary()["tool_calls"], note(found, "look")) == (1, "delivery 2")
    assert note(fold(started(), requested(1)), "look") == ""
    second = ToolCallStarted(request_id="r", call_id="a", name="look", attempt=2, at=4)
    assert bars(fold(started(), requested(1), second), "look") == [["tool", 1, None]]


@pytest.mark.parametrize("before", [[], [requested(1), completed(2)]], ids=["unknown", "ended"])
def test_late_signals_of_a_call_change_nothing(before: list[Event]):
    found = fold(started(), *before)
    view = found.view()
    about: dict[str, Any] = {"request_id": "r", "call_id": "a", "at": 3}
    found.feed(ToolCallStarted(name="look", attempt=1, **about))
    found.feed(ToolCallProgress(name="look", message="late", **about))
    found.feed(ToolCallPaused(**about))
    found.feed(ToolCallResumed(**about))
    assert found.view() == view


def test_a_request_below_an_unknown_one_is_ignored():
    found = fold(started(), started(2, "s", parent_request_id="t", parent_call_id="a"), requested(3, "b", "s"))
    assert (found.summary()["sub_requests"], found.view()["open_calls"]) == (0, [])


def test_what_was_compressed_is_shown():
    fact = HistoryCompressed(
        request_id="r", before_tokens=9, after_tokens=3, results_shortened=2, turns_omitted=1, summary="Hi.", at=2
    )
    assert fold(started(), fact).view()["compressions"] == [
        {
            "at": 2,
            "before_tokens": 9,
            "after_tokens": 3,
            "results_shortened": 2,
            "turns_omitted": 1,
            "summary": "Hi.",
        }
    ]


def test_a_sub_request_is_shown_below_its_call_and_its_question_is_one_of_the_request():
    below = started(2, "s", parent_request_id="r", parent_call_id="a")
    question = asked(3, "b", request_id="s")
    pause = ToolCallPaused(request_id="r", call_id="a", at=3, pending_approvals=(question,))
    found = fold(started(), requested(1), below, question, pause)
    rows = [(each["label"], each["depth"]) for each in found.view()["rows"]]
    assert rows == [("Hello", 0), ("look", 1), ("Hello", 2), ("look", 3)]
    assert (found.state, [each["request_id"] for each in found.view()["approvals"]]) == ("waiting", ["s"])
    found.feed(question.decided(approved=False))
    found.feed(requested(4, "z", "unknown"))
    assert (found.view()["approvals"], found.summary()["sub_requests"]) == ([], 1)


def test_the_open_calls_of_requests_below_are_those_that_have_not_ended():
    below = [started(2, each, parent_request_id="r", parent_call_id="a") for each in "st"]
    found = fold(started(), requested(1), *below, *(requested(3, f"of {each}", each) for each in "st"))

    def still_open() -> set[str]:
        return {each["call_id"] for each in found.view()["open_calls"]}

    assert still_open() == {"a", "of s", "of t"}
    found.feed(msgspec.structs.replace(completed(4, "of s"), request_id="s"))
    assert still_open() == {"a", "of t"}


def test_a_restart_ends_the_round_that_was_interrupted():
    begins = RoundStarted(request_id="r", round=0, message_count=1, at=1)
    found = fold(started(), begins, RequestResumed(request_id="r", resumption=1, at=5), requested(6, resumed=True))
    assert bars(found, "model, round 1") == [["model", 1, 5]]
    assert found.view()["rows"][0]["note"] == "resumed once"


def test_the_pool_of_a_call_and_whether_it_is_external_are_asked_for():
    found = fold(started(), requested(1), tool_facts=on_gpu)
    assert bars(found, "look") == [["external", 1, None]]
    assert (found.view()["rows"][1]["pool"], found.view()["open_calls"][0]["external"]) == ("gpu", True)


@pytest.mark.parametrize(
    ("seconds", "segments"),
    [
        (0, [["external", 1, 5]]),  # whoever answers a call from outside reports no time
        (1, [["queued", 1, 4], ["tool", 4, 5]]),
        (3.5, [["queued", 1, 1.5], ["tool", 1.5, 5]]),
        (4, [["tool", 1, 5]]),
        (9, [["tool", 1, 5]]),
    ],
)
def test_a_result_shows_that_a_call_was_not_external_where_nothing_else_does(seconds: float, segments: list[Any]):
    end = completed(5, duration_seconds=seconds)
    assert bars(fold(started(), requested(1), end, tool_facts=on_gpu), "look") == segments


def a_whole_story() -> RequestFold:
    """One request in which most of what can happen happens: everything but its ending."""
    calls = tuple(ToolCall(name="look", call_id=each) for each in "ab")
    edited = asked(6, "b").decided(approved=True, by="ann", arguments={"page": 2})
    return fold(
        started(1, history_count=2),
        MessageAppended(request_id="r", message=UserMessage(content="Hello"), at=1),
        RoundStarted(request_id="r", round=0, message_count=1, at=2),
        responded(3, cost=0.25, message=AssistantMessage(tool_calls=calls)),
        requested(3, "a"),
        ToolCallProgress(request_id="r", call_id="a", name="look", message="reading", done=2, total=8, at=4),
        asked(6, "b"),
        msgspec.structs.replace(edited, at=7),
        requested(8, "b", arguments={"page": 2}, attempt=2),
        ToolCallProgress(request_id="r", call_id="b", name="look", done=0.5, at=8),
        completed(9, "b"),
        ToolCallFailed(request_id="r", call_id="x", name="gone", reason="denied", error="not now", at=9),
        PlanChanged(request_id="r", steps=(PlanStep(text="Look.", status="done"),), at=9),
        started(10, "s", parent_request_id="r", parent_call_id="lost"),
        requested(11, "d", "s"),
        RequestResumed(request_id="r", resumption=2, at=12),
        RoundStarted(request_id="r", round=1, message_count=4, tools_offered=False, at=13),
    )


def test_a_view_tells_the_whole_story_of_a_request():
    view = a_whole_story().view()
    fields = ("depth", "kind", "label", "state", "note", "detail", "segments")
    assert [tuple(row[each] for each in fields) for row in view.pop("rows")] == [
        (0, "request", "Hello", "running", "resumed 2 times", "", [["request", 1, None]]),
        (1, "model", "model, round 1", "ok", "openai:gpt, 10 + 3 tokens", "calls look, look", [["model", 2, 3]]),
        (1, "call", "look", "running", "reading 2 of 8", '{"page":1}', [["tool", 3, None]]),
        (1, "call", "look", "ok", "0.5", '{"page":2}', [["person", 6, 7], ["tool", 8, 9]]),
        (1, "call", "gone", "cancelled", "denied: not now", "", [["tool", 9, 9]]),
        (1, "model", "model, round 2", "running", "last answer, without tools", "", [["model", 13, None]]),
        (1, "request", "Hello", "running", "", "", [["request", 10, None]]),
        (2, "call", "look", "running", "", '{"page":1}', [["tool", 11, None]]),
    ]
    open_call = {"name": "look", "arguments": {"page": 1}, "external": False}
    assert view == {
        "request_id": "r",
        "conversation_id": "c",
        "prompt": "Hello",
        "state": "running",
        "doing": "runs look",
        "started_at": 1,
        "ended_at": None,
        "rounds": 2,
        "tool_calls": 3,
        "failed_calls": 1,
        "retries": 0,
        "resumptions": 2,
        "sub_requests": 1,
        "questions": 0,
        "models": ["openai:gpt"],
        "tokens": {"input": 10, "output": 3, "cached": 4, "reasoning": 1},
        "cost": 0.25,
        "reason": "",
        "error": "",
        "output": None,
        "history_count": 2,
        "message_count": 1,
        "rows_omitted": 0,
        "plan": [{"text": "Look.", "status": "done"}],
        "approvals": [],
        "open_calls": [
            {"request_id": "r", "call_id": "a", "at": 3, **open_call},
            {"request_id": "s", "call_id": "d", "at": 11, **open_call},
        ],
        "compressions": [],
    }


def test_a_request_that_leaves_or_is_being_cancelled_says_so():
    found = a_whole_story()
    found.feed(RequestTakenOver(request_id="r", at=14))
    assert (found.state, found.doing, found.has_ended) == ("elsewhere", "continues in another process", False)
    found.feed(RequestResumed(request_id="r", resumption=3, at=15))
    assert (found.state, found.doing) == ("running", "runs look")
    found.feed(CancelRequested(request_id="r", at=16))
    assert (found.state, found.doing) == ("running", "is being cancelled")
    found.feed(RequestCancelled(request_id="r", reason="enough", at=17))
    assert (found.state, found.has_ended) == ("cancelled", True)


def test_a_view_has_a_bounded_number_of_rows_and_the_newest_ones():
    events = [each for at in range(3_000) for each in (requested(at, f"c{at}"), completed(at + 0.5, f"c{at}"))]
    view = fold(started(), *events).view()
    assert "open" in [each["call_id"] for each in fold(started(), requested(0, "open"), *events).rows_from(0)]
    assert len(view["rows"]) == FEW_ROWS
    assert view["rows_omitted"] == 2_000 + 1 - FEW_ROWS
    assert (view["rows"][0]["kind"], view["rows"][-1]["call_id"]) == ("request", "c2999")


def test_secrets_are_masked_in_every_part_of_a_view():
    reply = AssistantMessage(text=f"key {KEY}", tool_calls=(ToolCall(name="look", arguments=f'{{"key": "{KEY}"}}'),))
    found = fold(
        RequestStarted(request_id="r", prompt=f"use {KEY}", timeout_seconds=1),
        responded(1, message=reply),
        requested(2, arguments={"password": "hunter2", "text": KEY}),
        ApprovalRequested(
            request_id="r", call_id="q", name="look", arguments={"token": "abc", "nested": [KEY]}, timeout_seconds=1
        ),
        MessageAppended(request_id="r", message=reply),
        MessageAppended(request_id="r", message=ToolMessage(call_id="a", name="look", content=f"Bearer {KEY}")),
        RequestFailed(request_id="r", reason="error", error=f"{KEY} is refused"),
    )
    view, messages = found.view(), transcript(list(found.messages), None, count=9)
    assert KEY not in str(view) + str(messages)
    assert "hunter2" not in str(view)


# ----------------------------------------------------------------------------------------- values that are edited


def test_edited_arguments_get_their_real_values_back_where_they_were_left():
    real = {"user": "ann", "password": "hunter2", "to": [{"token": "t1"}, {"name": "Bob"}], "nights": 3}
    shown, is_whole = shown_arguments(real)
    assert (is_whole, shown["password"], shown["to"][0]["token"]) == (True, "•••", "•••")
    edited = {**shown, "nights": 5, "to": [shown["to"][0], {"name": "Eve"}]}
    assert restored(edited, real) == {**real, "nights": 5, "to": [{"token": "t1"}, {"name": "Eve"}]}
    assert restored({**shown, "password": "new"}, real)["password"] == "new"
    assert restored({"nights": True}, {"nights": 1}) == {"nights": True}


def test_integers_that_javascript_would_round_are_shown_as_texts_and_given_back_as_they_were():
    real = {"user": 1234567890123456789, "debt": -(2**53) - 1, "most": 2**53, "nights": 3}
    shown, _ = shown_arguments(real)
    assert shown == {"user": "1234567890123456789", "debt": "-9007199254740993", "most": 2**53, "nights": 3}
    assert restored({**shown, "nights": 5}, real) == {**real, "nights": 5}
    arguments = {**real, "huge": 2**70}  # No call has it, but a recording that somebody has edited.
    assert shown_event(requested(1, arguments=arguments))["arguments"] == {**shown, "huge": str(2**70)}


@pytest.mark.parametrize("edited", [{"password": "x •••"}, {"other": "•••"}, {"to": ["•••", "•••"]}])
def test_a_mask_in_a_new_place_is_refused(edited: dict[str, Any]):
    with pytest.raises(ConfigurationError, match="stands for a value that is not shown"):
        restored(edited, {"password": "hunter2", "to": ["a"]})


def test_arguments_that_were_not_shown_whole_cannot_be_edited():
    assert shown_arguments({"text": "x" * 1_000}) == ({"text": "x" * 1_000}, True)
    for real in ({"text": "x" * 2_000}, {"items": list(range(600))}):
        assert not shown_arguments(real)[1]
        with pytest.raises(ConfigurationError, match="too long to be edited here"):
            restored({}, real)


@pytest.mark.parametrize(
    "command",
    [
        'curl -H "Authorization: Bearer x" https://example.com; rm -rf ~',
        "echo # -----BEGIN KEY-----\nrm -rf ~",
        '{"pin":"rm -rf ~","pin":1}',
        f"login --password {KEY}",
    ],
)
def test_a_person_who_decides_on_a_call_sees_each_text_in_it_as_it_is(command: str):
    assert shown_arguments({"command": [command], "token": command}) == ({"command": [command], "token": "•••"}, True)


def test_no_argument_is_missing_silently_because_its_long_name_begins_like_another_one():
    names = ["x" * 1_000 + each for each in "ab"]
    assert shown_arguments({names[0]: 1}) == ({"x" * 999 + "…": 1}, False)
    assert shown_arguments(dict.fromkeys(names, 1)) == ({"x" * 999 + "…": 1, "… left out": 1}, False)


def test_arguments_up_to_500_values_and_16_levels_are_whole_and_the_rest_is_said_to_be_left_out():
    def deep(levels: int) -> dict[str, Any]:
        return {"a": deep(levels - 1)} if levels else {}

    for whole, cut in (({"a": [1] * 498}, {"a": [1] * 499}), (deep(16), deep(17))):
        assert shown_arguments(whole) == (whole, True)
        assert not shown_arguments(cut)[1]
    assert shown_arguments({"a": [1] * 499})[0] == {"a": [*[1] * 498, "… left out"]}


def test_long_deep_and_broad_values_are_cut():
    deep: Any = "bottom"
    for _ in range(50):
        deep = {"a": deep}
    event = requested(1, arguments={"text": "x" * 9_000, "deep": deep, "broad": {str(each): 1 for each in range(900)}})
    assert len(str(shown_event(event))) < 12_000
    halves = {half: {f"{half}{each}": "leaf" for each in range(300)} for half in "ab"}
    assert str(shown_event(requested(1, arguments=halves))).count("leaf") < 500, "the bound is that of the whole event"
    nested: Any = "bottom"
    for _ in range(50):
        nested = [nested]
    shown = str(shown_event(requested(1, arguments={"deep": deep, "nested": nested}))["arguments"])
    assert "bottom" not in shown
    assert shown.count("[") == 15
    assert shown.count("{'a'") == 14
    assert shown_text("a" * 5_000, 100) == "a" * 99 + "…"


# --------------------------------------------------------------------------------------------------- transcripts


def test_a_transcript_shows_all_of_each_message_that_fits():
    call = ToolCall(name="look", call_id="a", arguments='{"page":1}')
    stored = [
        UserMessage(content=(TextPart(text="Look:"), ImagePart(url="https://example.com/a.png"))),
        AssistantMessage(text="I will.", reasoning="Hm.", tool_calls=(call,), interrupted=True),
        ToolMessage(call_id="a", name="look", content="x" * 30_000, is_error=True),
    ]
    found = transcript(stored, None, count=700)
    user, assistant, result = found.pop("messages")
    assert user == {"role": "user", "text": "Look:", "omitted": 0, "parts": ["image"]}
    calls = [{"name": "look", "call_id": "a", "arguments": '{"page":1}'}]
    said = {"text": "I will.", "omitted": 0, "reasoning": "Hm.", "interrupted": True, "calls": calls, "parts": []}
    assert assistant == {"role": "assistant", **said}
    shown = len(result.pop("text"))
    about: dict[str, Any] = {"role": "tool", "name": "look", "call_id": "a", "is_error": True, "parts": []}
    assert result == {**about, "omitted": 30_000 - shown}
    assert found == {
        "earlier": 700 - MAX_MESSAGES,
        "is_known": False,
        "changes": {"shortened": 0, "omitted": 0, "added": 0},
    }
    assert [transcript(stored, stored, count=count)["earlier"] for count in (0, 200, 201)] == [0, 0, 1]


def test_each_message_has_its_fate():
    prompt, reply = UserMessage(content="Hi", message_id="m1"), AssistantMessage(text="Yes", message_id="m2")
    result = ToolMessage(call_id="a", name="look", content="x" * 500)
    system, short = SystemMessage(text="Be brief."), ToolMessage(call_id="a", name="look", content="x…")
    found = transcript([prompt, reply, result], [system, reply, short], count=3)
    fates = [(each["role"], each["fate"]) for each in found["messages"]]
    assert fates == [("system", "added"), ("user", "omitted"), ("assistant", "whole"), ("tool", "shortened")]
    assert found["messages"][-1]["sent"] == "x…"
    assert found["changes"] == {"shortened": 1, "omitted": 1, "added": 1}
    later = transcript([prompt, reply, UserMessage(content="More", message_id="m3")], [reply], count=3)
    assert [each["fate"] for each in later["messages"]] == ["omitted", "whole", "new"]
    nameless = [UserMessage(content="Hi"), AssistantMessage(text="Yes")]  # as older histories are
    fates = [each["fate"] for each in transcript(nameless, nameless[1:], count=2)["messages"]]
    assert fates == ["omitted", "whole"]
    unknown = transcript([prompt], None, count=900)
    assert (unknown["is_known"], unknown["earlier"]) == (False, 700)
    assert "fate" not in unknown["messages"][0]


# --------------------------------------------------------------------------------------------------------- events


def test_events_are_filtered_by_kind_type_text_and_call():
    failed = ToolCallFailed(request_id="r", call_id="b", name="look", reason="error", error="No such Page", at=4)
    events = [started(), requested(1), ToolCallStarted(request_id="r", call_id="a", name="look", at=2), failed]

    def types(**wanted: Any) -> list[str]:
        return [each["type"] for each in listed(events, EventFilter(**wanted), first=0)["events"]]

    assert types() == ["tool_call_failed", "tool_call_started", "tool_call_requested", "request_started"]
    assert types(kind="signals") == ["tool_call_started"]
    assert types(kind="problems") == ["tool_call_failed"]
    assert types(kind="facts", search="no such page") == ["tool_call_failed"]
    assert types(types=frozenset({"request_started"})) == ["request_started"]
    assert types(call_id="a") == ["tool_call_started", "tool_call_requested"]
    assert types(request_id="other") == []
    wrongs: list[dict[str, Any]] = [{"kind": "x"}, {"types": frozenset({"x"})}]
    for wrong in wrongs:
        with pytest.raises(ConfigurationError, match=r"pass all, facts|events of the types x"):
            EventFilter(**wrong)


def test_events_are_paged_from_the_newest_to_the_oldest():
    events = [requested(at, f"c{at}") for at in range(7)]
    seen: list[int] = []
    before: int | None = None
    while True:
        page = listed(events, EventFilter(), first=10, before=before, limit=3)
        seen += [each["number"] for each in page["events"]]
        assert len(page["events"]) <= 3
        before = page["before"]
        if before is None:
            break
    assert seen == [16, 15, 14, 13, 12, 11, 10]
    pages = [listed(events, EventFilter(), first=10, before=each)["events"] for each in (3, 10, 11, 99)]
    assert [len(each) for each in pages] == [0, 0, 1, 7]


def test_the_line_of_an_event_has_no_line_breaks_and_no_secrets():
    failed = ToolCallFailed(request_id="r", call_id="b", name="look", reason="error", error=f"no\n{KEY}\x1b[31m")
    assert line_of(failed) == "look: no •••: error"


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (MessageAppended(request_id="r", message=UserMessage(content="Hi")), "user: Hi"),
        (MessageAppended(request_id="r", message=AssistantMessage(text="Yes")), "assistant: Yes"),
        (MessageAppended(request_id="r", message=ToolMessage(call_id="a", name="look", content="x")), "tool: x"),
        (responded(1), "Yes."),
        (responded(1, message=AssistantMessage(tool_calls=(ToolCall(name="look", call_id="a"),))), "look"),
        (RoundStarted(request_id="r", round=1, message_count=4), "round 2"),
        (ToolCallProgress(request_id="r", call_id="a", name="look", message="page 2"), "look: page 2"),
        (completed(1), "look: x"),
        (started(prompt="a" * 300), "a" * 199 + "…"),
    ],
)
def test_the_line_of_an_event_has_its_words(event: Event, line: str):
    assert line_of(event) == line


# ------------------------------------------------------------------------------------------------------- the log


async def test_the_log_keeps_the_newest_requests_and_drops_those_that_ended_first():
    log = EventLog(lambda _request_id, _name: (False, ""), max_requests=3)
    for name in ("a", "b", "c"):
        log.add(started(request_id=name))
    log.add(started(request_id="below", parent_request_id="b"))
    log.add(RequestCompleted(request_id="b"))
    log.add(started(request_id="d"))
    assert [each.fold.request_id for each in log.newest(9)] == ["d", "c", "a"]
    assert log.get("below") is None
    log.add(started(request_id="e"))  # None has ended, so the oldest is dropped.
    assert [(await each.summary())["request_id"] for each in log.newest(2)] == ["e", "d"]
    assert "a" not in log


def test_the_log_is_bounded_in_bytes():
    log = EventLog(lambda _request_id, _name: (False, ""), max_bytes=100_000)
    for number in range(50):
        log.add(started(request_id=f"r{number}"))
        log.add(ToolCallCompleted(request_id=f"r{number}", call_id="a", name="look", content="x" * 5_000))
        log.add(RequestCompleted(request_id=f"r{number}"))
    assert 10 < len(log) < 15
    assert "r49" in log


def logged(**bounds: int) -> EventLog:
    return EventLog(lambda _request_id, _name: (False, ""), **bounds)


def test_a_request_below_one_that_was_dropped_is_a_request_of_its_own():
    log = logged(max_requests=1)
    log.add(started(request_id="a"))
    log.add(started(request_id="below", parent_request_id="a"))
    dropped = log.get("a")
    assert dropped is not None
    assert (log.get("below") is dropped, dropped.is_closed) == (True, False)
    log.add(started(request_id="b"))
    assert dropped.is_closed
    request = log.add(requested(0, "c", request_id="below"))
    assert request is not None
    assert (request.fold.request_id, len(request.events), "b" in log) == ("below", 1, False)


@pytest.mark.parametrize(
    "event",
    [
        started(prompt="x" * 5_000),
        MessageAppended(request_id="r", message=UserMessage(content="x" * 5_000)),
        ModelResponded(request_id="r", round=0, message=AssistantMessage(text="x" * 5_000)),
        requested(0, "a", arguments={"text": "x" * 5_000}),
        ToolCallCompleted(request_id="r", call_id="a", name="look", content="x" * 5_000),
        ToolCallCompleted(request_id="r", call_id="a", name="look", content="", data={"rows": ["x" * 5_000]}),
        ToolCallCompleted(request_id="r", call_id="a", name="look", content="\ud800" + "x" * 5_000),
        ToolCallProgress(request_id="r", call_id="a", name="look", metadata={"of": object()}, message="x" * 5_000),
    ],
)
def test_the_size_of_an_event_counts_all_text_in_it(event: Event):
    request = logged().add(event)
    assert request is not None
    assert 5_600 < request.size_bytes < 6_400


@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
def test_a_reply_of_megabytes_is_kept_in_bounded_time():
    reply = ModelResponded(request_id="r", round=0, message=AssistantMessage(text="\x01" * (8 * 2**20)))
    assert cpu_seconds(lambda: logged().add(reply)) < MAX_SECONDS / 2  # Writing it as JSON would take 100 ms and more.


LARGE = {f"field_{number}": "the token: abc, " * 60 for number in range(500)}


@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
def test_calls_with_arguments_of_half_a_megabyte_are_folded_and_shown_in_bounded_time():
    def many(event: ToolCallRequested | ApprovalRequested, count: int) -> RequestFold:
        return fold(*(replace(event, call_id=f"{number}") for number in range(count)))

    call = requested(0, arguments=LARGE)
    question = replace(asked(0), arguments=LARGE)
    # So many are folded without a checkpoint.
    assert cpu_seconds(lambda: many(call, 50)) < MAX_SECONDS
    for event in (call, question):
        of_many = many(event, 64)
        assert cpu_seconds(of_many.view) < MAX_SECONDS
    shown = [each["arguments"] for each in many(question, 3).view()["approvals"]]
    assert all(3_000 < len(str(each)) < 15_000 for each in shown)
    assert cpu_seconds(lambda: shown_event(ToolCallCompleted(call_id="a", name="look", content="", data=LARGE))) < 0.05


async def test_the_history_of_an_ended_request_and_the_messages_that_were_sent_count_as_well():
    log = logged(max_bytes=20_000)
    history = [UserMessage(content="x" * 5_000), AssistantMessage(text="y" * 5_000)]
    session = RequestSession(EventBus(), ScriptedProvider([text("Yes.")]), [*history, UserMessage(content="Hi")])
    await session.run()
    log.add(started(request_id="a"))
    log.keep("a", ended=session.snapshot())
    [first] = log.newest(1)
    assert 10_000 < first.size_bytes < 13_000
    log.add(started(request_id="b"))
    log.keep("b", sent=history[:1])
    assert len(log) == 2
    log.keep("b", sent=history)
    assert [each.fold.request_id for each in log.newest(9)] == ["b"]
    [newest] = log.newest(1)
    assert newest.size_bytes < 13_000  # what was sent before is not kept


def test_a_request_with_endless_events_counts_only_those_that_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_event_log, "_MAX_EVENTS", 5)
    log = logged(max_bytes=20_000)
    log.add(started(request_id="other"))
    for _ in range(100):
        log.add(ToolCallProgress(request_id="r", call_id="a", name="look", message="still reading"))
    assert "other" in log


def test_requests_are_dropped_only_beyond_the_bounds_and_the_newest_one_never():
    log = logged(max_bytes=2_700)
    for name in ("a", "b", "c"):
        log.add(started(request_id=name))
    assert len(log) == 3
    log.add(ToolCallCompleted(request_id="c", call_id="a", name="look", content="x" * 900))
    assert [each.fold.request_id for each in log.newest(9)] == ["c"]  # two at once, and not itself
    log.add(started(request_id="d"))
    assert [each.fold.request_id for each in log.newest(9)] == ["d"]
    log.add(started(request_id="e"))
    assert len(log) == 2  # What was dropped does not count any more.


def test_what_the_bound_in_bytes_just_holds_is_kept():
    first = logged().add(started(request_id="a"))
    assert first is not None
    sent = [UserMessage(content="x" * 100)]
    log = logged(max_bytes=2 * first.size_bytes + size_of(sent))
    for name in ("a", "b"):
        log.add(started(request_id=name))
    log.keep("a", sent=sent)
    assert len(log) == 2
    log.keep("a", sent=[UserMessage(content="x" * 101)])
    assert [each.fold.request_id for each in log.newest(9)] == ["a"]
    log = logged(max_bytes=1)
    log.add(started())
    assert "r" in log  # One that is too large is kept until there is another one.


async def test_a_row_is_made_again_only_after_something_new():
    log = logged()
    request = log.add(started())
    assert request is not None
    assert (request.version, request.first) == (1, 0)
    row = await request.summary()
    assert await request.summary() is row
    log.add(RequestCompleted(request_id="r"))
    assert (await request.summary())["state"] == "completed"


async def test_many_events_are_folded_with_checkpoints_and_early_where_nobody_looks(monkeypatch: pytest.MonkeyPatch):
    checkpoints, fed = 0, 0
    checkpoint, feed = anyio.lowlevel.checkpoint, RequestFold.feed

    async def counted() -> None:
        nonlocal checkpoints
        checkpoints += 1
        await checkpoint()

    def feeds(fold: RequestFold, event: Any) -> None:
        nonlocal fed
        fed += 1
        feed(fold, event)

    monkeypatch.setattr(anyio.lowlevel, "checkpoint", counted)
    monkeypatch.setattr(RequestFold, "feed", feeds)
    monkeypatch.setattr(_event_log, "_MAX_EVENTS", 200)
    log = logged()
    for number in range(199):
        log.add(requested(number, f"c{number}"))
    assert fed == 0
    request = log.add(requested(199, "c199"))
    assert request is not None
    assert fed == 50
    await request.update()
    assert (fed, checkpoints) == (200, 3)


async def test_a_request_keeps_its_newest_events_and_all_that_its_fold_has_seen():
    log = EventLog(lambda _request_id, _name: (False, ""))
    for number in range(6_000):
        log.add(requested(number, f"c{number}"))
    request = log.get("r")
    assert request is not None
    await request.update()
    assert (request.version, request.first, len(request.events)) == (6_000, 1_000, 5_000)
    assert request.fold.tool_calls == 6_000
    view = request.fold.view()
    assert len(view["rows"]) + view["rows_omitted"] <= 2_001  # all of its calls are open
