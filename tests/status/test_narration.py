"""The fold of a request's events to a stage and a sentence, and what its sentences never hold."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.event_strategies import events_of
from toolbus.events import (
    ApprovalDecided,
    ApprovalRequested,
    CallOutcome,
    Event,
    FailureReason,
    MessageAppended,
    ModelResponded,
    ModelRetrying,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RequestStarted,
    RoundStarted,
    SteeringAdded,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallPaused,
    ToolCallProgress,
    ToolCallRequested,
    ToolCallResumed,
    ToolCallRetrying,
    ToolCallStarted,
)
from toolbus.messages import AssistantMessage, ToolCall, UserMessage
from toolbus.protocols import ToolSpec
from toolbus.records import replace
from toolbus.secrets import MASK
from toolbus.status import display_name
from toolbus.status._sentences import Status, StatusFold, call_sentence, sentence

STARTED = RequestStarted(timeout_seconds=120.0)
TEXT = TextDelta(message_id="m", text="a")
ARGUMENTS = ToolArgumentsDelta(message_id="m", index=0, name="x", text="{")
STAGES = {"idle", "submitted", "streaming", "executing", "waiting", "processing", "complete", "error"}


def rounds(number: int, *after: tuple[str, bool], tools_offered: bool = True) -> Event:
    outcomes = tuple(CallOutcome(name=name, ok=success) for name, success in after)
    return RoundStarted(round=number, message_count=1, call_outcomes=outcomes, tools_offered=tools_offered)


def replied(*call_ids: str) -> Event:
    calls = tuple(ToolCall(name="lookup_tool", arguments="{}", call_id=call_id) for call_id in call_ids)
    return ModelResponded(round=0, message=AssistantMessage(tool_calls=calls))


def requested(call_id: str = "a", name: str = "lookup_tool", **arguments: object) -> Event:
    return ToolCallRequested(
        call_id=call_id, name=name, arguments=arguments, round=0, timeout_seconds=30.0, idempotency_key="k"
    )


def completed(call_id: str = "a", name: str = "lookup_tool") -> Event:
    return ToolCallCompleted(call_id=call_id, name=name, content="ok")


def failed(call_id: str = "a", name: str = "lookup_tool", reason: FailureReason = "error") -> Event:
    return ToolCallFailed(call_id=call_id, name=name, reason=reason, error="no")


def progress(message: str, call_id: str = "a") -> Event:
    return ToolCallProgress(call_id=call_id, name="lookup_tool", message=message)


def approval(call_id: str = "a", name: str = "delete_file") -> Event:
    return ApprovalRequested(call_id=call_id, name=name, arguments={}, timeout_seconds=30.0)


def decided(call_id: str = "a", *, approved: bool = True) -> Event:
    return ApprovalDecided(call_id=call_id, approved=approved)


def fed(fold: StatusFold, event: Event, specs: Mapping[str, ToolSpec]) -> Status | None:
    """Return the status after an event, if it is new."""
    return fold.new_status(specs) if fold.take(event) else None


def story(*events: Event, specs: Mapping[str, ToolSpec] | None = None) -> list[Status | None]:
    narration = StatusFold()
    return [fed(narration, event, specs or {}) for event in events]


def last(*events: Event, specs: Mapping[str, ToolSpec] | None = None) -> Status | None:
    return story(*events, specs=specs)[-1]


# ------------------------------------------------------------------------------------------------ sentences


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("lookup_tool", "Lookup Tool"),
        ("file_read", "File Read"),
        ("get-weather", "Get Weather"),
        ("searchText", "Search Text"),
        ("server.tool", "Server Tool"),
        ("read_PDF", "Read PDF"),
        ("\x1b[31mx", "X"),
        ("__", "(no name)"),
        ("x" * 1000, "X" + "x" * 78 + "…"),
    ],
)
def test_a_tools_name_is_shown_in_title_case(name: str, shown: str):
    assert display_name(name) == shown


def test_a_name_that_a_model_has_made_long_is_not_kept():
    name = "name" * 1_000
    before = sys.getrefcount(name)
    assert display_name(name).endswith("…")
    assert sys.getrefcount(name) == before


@pytest.mark.parametrize(
    ("template", "arguments", "shown"),
    [
        ("Looking {city} up", {"city": "Paris"}, "Looking Paris up"),
        ("Reading the news", {}, "Reading the news"),
        ("{a} of {b}", {"a": 1, "b": 2.5}, "1 of 2.5"),
        ("Sorting {items}", {"items": [1, {"a": None}]}, 'Sorting [1,{"a":null}]'),
        ("On: {on}", {"on": False}, "On: false"),
        ("{{literal}} {x-y}", {"x-y": "z"}, "{literal} z"),
        ("Reading\n {path}", {"path": "a\nb\x1b[31m c\u202e"}, "Reading a b c"),
        ("Reading {text}", {"text": "x" * 100}, "Reading " + "x" * 59 + "…"),
        ("{a}{a}{a}{a}", {"a": "x" * 60}, "x" * 199 + "…"),
        ("Login {user} {password}", {"user": "me", "password": "hunter2"}, f"Login me {MASK}"),
        ("Asking {url}", {"url": "https://a:b@c/?token=d"}, f"Asking https://a:{MASK}@c/?token={MASK}"),
        ("Asking for {max_tokens} tokens", {"max_tokens": 200}, "Asking for 200 tokens"),
        ("Using {tokens}, {token}", {"tokens": ["abc"], "token": 7}, f"Using {MASK}, {MASK}"),
        ("ContextWindow {body}", {"body": {"pin": 1234}}, f'ContextWindow {{"pin":"{MASK}"}}'),
    ],
)
def test_a_tools_template_is_filled_with_the_arguments(template: str, arguments: Any, shown: str):
    assert call_sentence("lookup_tool", arguments, ToolSpec(name="lookup_tool", status=template)) == shown


@pytest.mark.parametrize(
    "template",
    [
        "Looking {town} up", "Looking {empty} up", "Looking {none} up", "Looking {city up", "Looking city} up", "{}",
        "{0}", "{city.__class__}", "{city[0]}", "{city!r}", "{city:>100000000}", "{city:{city}}", "{ city }", " ", "",
    ],
)  # fmt: skip
def test_a_template_that_cannot_be_filled_falls_back(template: str):
    arguments = {"city": "Paris", "empty": "", "none": None}
    spec = ToolSpec(name="lookup_tool", status=template)
    assert call_sentence("lookup_tool", arguments, spec) == "Using Lookup Tool..."


def test_a_sentence_of_others_is_one_short_line_without_keys():
    assert sentence("a\n\x1b]0;t\x07b sk-abcdefghijkl") == f"a b {MASK}"
    assert len(sentence("word " * 1_000_000)) <= 200


# ------------------------------------------------------------------------------------------------ the fold


def test_a_request_with_one_call_is_reported_from_its_start_to_its_end():
    reported = story(
        STARTED,
        MessageAppended(message=UserMessage(content="hi")),
        rounds(0),
        ARGUMENTS,
        ARGUMENTS,
        replied("a"),
        requested(user_id=123),
        ToolCallStarted(call_id="a", name="lookup_tool"),
        completed(),
        rounds(1, ("lookup_tool", True)),
        TEXT,
        TEXT,
        RequestCompleted(),
    )
    assert [each for each in reported if each] == [
        ("submitted", "Analyzing request..."),
        ("streaming", "Selecting appropriate tools..."),
        ("executing", "Using Lookup Tool..."),
        ("processing", "Processing tool results..."),
        ("streaming", "Formulating final response..."),
        ("complete", "Done"),
    ]
    assert reported[4] is None
    assert reported[11] is None


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (RequestCompleted(outcome="stopped", reason="max_rounds=10", limit="max_rounds"), ("error", "I stopped after 10 steps without finishing.")),
        (RequestCompleted(outcome="stopped", reason="no such\ncity"), ("error", "I could not finish: no such city.")),
        (RequestFailed(reason="x", error="the model\nis gone"), ("error", "I could not finish because of an internal error.")),
        (RequestFailed(reason="empty_reply", error=""), ("error", "I could not finish because the language model gave no answer.")),
        (RequestCompleted(outcome="stopped"), ("error", "I could not finish.")),
        (RequestCancelled(reason="enough"), ("idle", "Cancelled")),
    ],
)  # fmt: skip
def test_each_ending_has_its_sentence_and_nothing_is_said_after_it(ending: Event, status: Status):
    reported = story(STARTED, requested(), ending, completed(), rounds(1), TEXT, RequestCompleted())
    assert reported[2:] == [status, None, None, None, None]


def test_of_several_calls_the_newest_that_runs_is_reported():
    specs = {"b": ToolSpec(name="b", status="B with {x}")}
    reported = story(
        requested("1", "a"), requested("2", "b", x=1), requested("3", "c"), completed("1"), completed("3"), completed("2"),
        specs=specs,
    )  # fmt: skip
    assert reported == [
        ("executing", "Using A..."),
        ("executing", "B with 1"),
        ("executing", "Using C..."),
        None,
        ("executing", "B with 1"),
        None,
    ]


def test_equal_sentences_are_not_said_twice_in_a_row():
    assert story(requested("1"), requested("2"), completed("2")) == [("executing", "Using Lookup Tool..."), None, None]


def test_a_failure_is_reported_when_nothing_else_runs():
    alternative = ("processing", "Tool Lookup Tool failed, trying alternative approach...")
    assert story(requested(), failed(), rounds(1, ("lookup_tool", False)))[1:] == [alternative, None]
    reported = story(requested("1"), requested("2", "other"), failed("1"), completed("2", "other"))
    assert reported[2:] == [None, None]
    assert last(rounds(1, ("lookup_tool", False), ("other", True))) == alternative


def test_a_call_that_is_refused_before_another_one_begins_is_not_told_as_the_last():
    assert story(replied("a", "b"), failed("a"), requested("b"))[1:] == [None, ("executing", "Using Lookup Tool...")]
    assert story(replied("a", "b"), failed("a"), failed("b", "other"))[1:] == [
        None,
        ("processing", "Tool Other failed, trying alternative approach..."),
    ]


def test_of_several_failures_the_last_one_is_named_and_stays():
    reported = story(requested("1"), requested("2", "x"), failed("2", "x"), failed("1"), rounds(1, ("lookup_tool", False), ("x", False)))  # fmt: skip
    assert reported[3:] == [("processing", "Tool Lookup Tool failed, trying alternative approach..."), None]


def test_a_failure_in_an_earlier_round_is_not_the_last_one():
    later = rounds(2, ("lookup_tool", False), ("x", False))
    assert last(failed(), rounds(1, ("lookup_tool", False)), later) == (
        "processing",
        "Tool X failed, trying alternative approach...",
    )


def test_a_call_in_the_background_is_shown_only_until_the_next_round_unless_it_fails():
    reported = story(
        replied("a", "b", "c"), replace(requested("a"), background=True), ToolCallPaused(call_id="a"), rounds(1),
        requested("d", "other"), progress("half", "a"), completed("d"), failed("a"),
    )  # fmt: skip
    assert reported[1:] == [
        ("executing", "Using Lookup Tool..."),
        ("waiting", "Waiting for approval: Lookup Tool..."),
        ("processing", "Processing tool results..."),
        ("executing", "Using Other..."),
        None,
        None,
        ("processing", "Tool Lookup Tool failed, trying alternative approach..."),
    ]


def test_a_call_in_the_background_that_is_requested_again_is_waited_for_until_it_ends():
    again = replace(requested("a"), background=True)
    paused = ToolCallPaused(call_id="x")
    reported = story(replied("a"), again, rounds(1), replied(), again, paused, completed("a"), rounds(2), replied())
    assert reported[1:4] == [
        ("executing", "Using Lookup Tool..."),
        ("processing", "Processing tool results..."),
        ("waiting", "Waiting for Lookup Tool..."),
    ]
    assert reported[4:6] == [None, None]
    assert reported[7:] == [("processing", "Processing tool results..."), None]


def test_a_call_that_was_cancelled_with_its_request_is_no_failure():
    reported = story(requested(), failed(reason="cancelled"), RequestCancelled())
    assert reported[1:] == [None, ("idle", "Cancelled")]


def test_the_last_answer_after_a_limit_is_reported_as_such():
    assert last(rounds(3, ("x", False), tools_offered=False)) == ("processing", "Formulating final response...")


def test_a_round_that_the_user_s_word_began_processes_no_results():
    assert last(STARTED, rounds(0), TEXT, SteeringAdded(text="and Rome?"), rounds(1)) == (
        "processing",
        "Analyzing request...",
    )
    assert last(SteeringAdded(text="x"), rounds(1, ("a", True))) == ("processing", "Processing tool results...")
    for before in ((), (SteeringAdded(text="x"), rounds(1))):
        assert last(*before, TEXT, rounds(2)) == ("processing", "Processing tool results...")


def test_pieces_that_take_turns_are_reported_by_their_first_ones():
    assert story(rounds(0), TEXT, ARGUMENTS, TEXT, ARGUMENTS)[3:] == [None, None]


def test_a_model_that_is_asked_again_streams_anew():
    reported = story(rounds(0), TEXT, ModelRetrying(round=0, reason="provider_unavailable"), TEXT, ARGUMENTS)
    assert reported[2:] == [
        ("processing", "Asking the model again..."),
        ("streaming", "Formulating final response..."),
        ("streaming", "Selecting appropriate tools..."),
    ]


def test_a_call_that_needs_approval_waits_for_it_whatever_else_runs():
    waiting = ("waiting", "Waiting for approval: Delete File...")
    reported = story(approval("1"), requested("2"), progress("half", "2"), decided("1"), requested("1", "delete_file"))
    assert reported == [waiting, None, None, ("executing", "half"), ("executing", "Using Delete File...")]


def test_the_newest_approval_is_reported_and_then_the_one_before_it():
    reported = story(approval("1"), approval("2", "send_mail"), decided("2", approved=False), failed("2", "send_mail", "denied"), decided("1"), requested("1"))  # fmt: skip
    assert reported == [
        ("waiting", "Waiting for approval: Delete File..."),
        ("waiting", "Waiting for approval: Send Mail..."),
        ("waiting", "Waiting for approval: Delete File..."),
        None,
        None,
        ("executing", "Using Lookup Tool..."),
    ]


def test_a_denied_call_is_a_failure():
    reported = story(replied("a"), approval(), decided(approved=False), failed("a", "delete_file", "denied"))
    assert reported[2:] == [None, ("processing", "Tool Delete File failed, trying alternative approach...")]


def test_what_a_call_says_of_itself_takes_the_place_of_its_sentence():
    again = ToolCallRetrying(call_id="a", name="lookup_tool", attempt=1, error="busy", delay_seconds=1.0)
    reported = story(requested("a"), progress("page 1\nof 2"), progress(" "), again, progress("page 2"), progress("x", "of another"))  # fmt: skip
    assert reported[1:] == [
        ("executing", "page 1 of 2"),
        None,
        ("executing", "Trying Lookup Tool again..."),
        ("executing", "page 2"),
        None,
    ]


def test_progress_of_an_older_call_is_reported_and_is_kept_for_later():
    reported = story(requested("a"), requested("b", "other"), progress("half"), completed("b"))
    assert reported[2:] == [("executing", "half"), None]


def test_a_narrated_sentence_stands_for_its_call_until_the_call_says_something_itself():
    narration = StatusFold()
    fed(narration, requested("a"), {})
    fed(narration, requested("b", "other"), {})
    assert not narration.narrate("a", "Looking something up")  # kept, not shown: b is newer
    assert narration.narrate("b", "Doing the other thing")
    assert narration.new_status({}) == ("executing", "Doing the other thing")
    assert fed(narration, completed("b"), {}) == ("executing", "Looking something up")
    assert fed(narration, progress("half"), {}) == ("executing", "half")
    assert not narration.narrate("a", "Too late")
    assert not narration.narrate("never opened", "x")
    assert narration.status({}) == ("executing", "half")


def test_the_status_is_right_for_whoever_asks_midway_and_asking_changes_nothing():
    narration = StatusFold()
    assert narration.status({}) == ("idle", "")
    for event in (STARTED, rounds(0), ARGUMENTS, replied("a", "b"), requested("a"), requested("b", "other")):
        narration.take(event)
    assert narration.status({}) == ("executing", "Using Other...")
    assert narration.new_status({}) == ("executing", "Using Other...")
    assert narration.new_status({}) is None
    narration.forget()
    assert narration.new_status({}) == ("executing", "Using Other...")


def test_whoever_asks_after_the_last_call_and_before_the_next_round_reads_that_results_are_processed():
    narration = StatusFold()
    fed(narration, requested("a"), {})
    assert fed(narration, completed("a"), {}) is None
    assert narration.status({}) == ("processing", "Processing tool results...")


def test_an_event_that_shows_nothing_new_asks_nobody_to_read_the_status():
    narration = StatusFold()
    begun = replace(requested("a", "order"), background=True)
    for event in (STARTED, rounds(0), replied("a"), begun, rounds(1), replied()):
        narration.take(event)
    waiting = narration.status({})
    assert waiting == ("waiting", "Waiting for Order...")
    for event in (begun, ToolCallPaused(call_id="b"), ToolCallResumed(call_id="b"), decided("b"), decided("b")):
        assert not narration.take(event)
        assert narration.status({}) == waiting


# --------------------------------------------------------------------------------------- whatever happens

SECRET = "hunter2-hunter2"
KEY = "sk-proj-abcdefghij0123456789"
NARRATED: tuple[type[Event], ...] = (
    RequestStarted, SteeringAdded, RoundStarted, TextDelta, ToolArgumentsDelta, ModelRetrying, ModelResponded,
    MessageAppended, ApprovalRequested, ApprovalDecided, ToolCallRequested, ToolCallStarted, ToolCallProgress,
    ToolCallRetrying, ToolCallCompleted, ToolCallFailed,
)  # fmt: skip
ENDINGS: tuple[type[Event], ...] = (RequestCompleted, RequestFailed, RequestCancelled)
TEMPLATES = ["", "Doing {q}", "{password} and {q}", "{headers}", "{q.__class__}", "{", "{token}{key}", "\x1b[31m{q}"]
ids = st.sampled_from(["a", "b", "c"])
names = st.sampled_from(["lookup_tool", "x", ""])
words = st.text(max_size=30)
secretive = st.fixed_dictionaries(
    {},
    optional={
        "q": st.tuples(words, words).map(lambda around: f"{around[0]} {KEY} {around[1]}")
        | st.just(KEY * 20)
        | st.integers()
        | st.none(),
        "password": st.just(SECRET) | st.just([SECRET]),
        "token": st.just(SECRET),
        "headers": st.just({"Authorization": SECRET, "x": [{"name": "cookie", "value": SECRET}]}),
        "key": st.just(KEY),
    },
)
told_of_a_call = st.one_of(
    st.builds(requested, ids, names).flatmap(
        lambda event: secretive.map(lambda arguments: requested(event.call_id, event.name, **arguments))  # type: ignore[attr-defined]
    ),
    st.builds(approval, ids, names),
    st.builds(decided, ids, approved=st.booleans()),
    st.builds(progress, words.map(lambda text: f"{text} {KEY}"), ids),
    st.builds(ToolCallRetrying, call_id=ids, name=names, attempt=st.just(1), error=words, delay_seconds=st.just(1.0)),
    st.builds(completed, ids, names),
    st.builds(failed, ids, names, st.sampled_from(["error", "cancelled", "denied"])),
)
anything = st.one_of(
    told_of_a_call,
    st.sampled_from(NARRATED).flatmap(events_of),
    st.just(rounds(1, ("x", False))),
    st.just(RequestFailed(reason="x", error=f"refused: {KEY} and\nmore")),
)


@given(events=st.lists(anything, max_size=30), templates=st.lists(st.sampled_from(TEMPLATES), min_size=2, max_size=2))
def test_whatever_happens_in_whatever_order_sentences_are_short_lines_without_secrets(
    events: list[Event], templates: list[str]
):
    specs = {name: ToolSpec(name=name, status=status) for name, status in zip(["lookup_tool", "x"], templates, strict=True)}  # fmt: skip
    narration = StatusFold()
    before: Status | None = None
    for event in events:
        said = fed(narration, event, specs)
        if said is None:
            continue
        stage, text = said
        assert said != before
        assert stage in STAGES
        assert 0 < len(text) <= 200
        assert text == " ".join(text.split())
        assert text.isprintable() or not any(character < " " or "\x7f" <= character <= "\x9f" for character in text)
        assert SECRET not in text
        assert KEY not in text
        before = said


@given(events=st.lists(anything, max_size=20), ending=st.sampled_from(ENDINGS).flatmap(events_of), more=st.lists(anything, max_size=5))  # fmt: skip
def test_an_ending_is_the_last_thing_that_is_said(events: list[Event], ending: Event, more: list[Event]):
    narration = StatusFold()
    for event in [*events, ending]:
        fed(narration, event, {})
    ended = narration.status({})
    assert ended[0] in {"complete", "error", "idle"}
    assert [fed(narration, event, {}) for event in more] == [None] * len(more)
    assert narration.status({}) == ended


@given(events=st.lists(anything, max_size=30), since=st.integers(0, 30))
def test_whoever_begins_to_listen_midway_hears_what_those_before_have_heard(events: list[Event], since: int):
    always, midway = StatusFold(), StatusFold()
    for number, event in enumerate(events):
        heard = fed(always, event, {})
        if midway.take(event) and number >= since:
            said = midway.new_status({})
            assert heard is None or said is None or said == heard
        assert midway.status({}) == always.status({})
