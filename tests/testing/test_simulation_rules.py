"""What the simulation's checks count as broken, and what they do not: one process, its events made by hand."""

# pyright: reportPrivateUsage=false
# What checks a world is private.

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from toolbus import EventBus, RequestResult
from toolbus.clock import wall_time_from
from toolbus.core.result_notes import TICKET
from toolbus.events import (
    ApprovalRequested,
    Event,
    MessageAppended,
    ModelResponded,
    RequestCompleted,
    RequestFailed,
    RequestResumed,
    RequestStarted,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallRequested,
)
from toolbus.messages import AssistantMessage, ToolCall, ToolMessage, Usage
from toolbus.records import replace
from toolbus.testing import virtual_backends
from toolbus.testing.simulation import _watch
from toolbus.testing.simulation._end import _check_result
from toolbus.testing.simulation._findings import Broken
from toolbus.testing.simulation._process import Process
from toolbus.testing.simulation._watch import Watch

anyio_backend = virtual_backends()

STARTED = RequestStarted(event_id="f0", request_id="r", prompt="hi", history_count=0, timeout_seconds=30.0)
ASKED = ModelResponded(
    event_id="f1",
    request_id="r",
    round=0,
    message=AssistantMessage(tool_calls=(ToolCall(name="work", arguments="{}", call_id="c"),)),
)
REQUESTED = ToolCallRequested(
    event_id="f2",
    request_id="r",
    call_id="c",
    name="work",
    arguments={},
    round=0,
    timeout_seconds=9.0,
    idempotency_key="c",
)
FAILED = ToolCallFailed(event_id="f3", request_id="r", call_id="c", name="work", reason="error", error="no")


class Desk:
    """A process's bus under watch."""

    def __init__(self) -> None:
        self.bus = EventBus()
        self.broken: list[Broken] = []
        self.watch = Watch(self.bus, 0.0, self.broken.append)
        self.bus.connect(Event, self.watch)

    def tell(self, *events: Event) -> None:
        for event in events:
            self.bus.arbitration.announce(event)


async def test_a_handler_that_runs_on_after_its_call_was_settled_breaks_g17() -> None:
    with wall_time_from(anyio.current_time):
        desk = Desk()
        desk.tell(STARTED, ASKED, REQUESTED, FAILED)
        desk.watch.runs("r", "c")
        assert desk.broken == []
        await anyio.sleep(1)
        desk.watch.runs("r", "c")
    assert [each.guarantee for each in desk.broken] == ["G17"]


@pytest.mark.parametrize("settled_first", [True, False])
async def test_the_time_in_which_a_process_stands_still_is_not_its_handlers(settled_first: bool) -> None:
    with wall_time_from(anyio.current_time):
        desk = Desk()
        desk.tell(STARTED, ASKED, REQUESTED)
        if settled_first:
            desk.tell(FAILED)
        desk.watch.note_pause(40.0)
        if not settled_first:
            desk.tell(FAILED)  # in the same moment
        await anyio.sleep(40)
        desk.watch.runs("r", "c")
        assert desk.broken == []
        await anyio.sleep(1)
        desk.watch.runs("r", "c")
    assert [each.guarantee for each in desk.broken] == ["G17"]


class Journaled:
    """A journal, and its disk, that has the `written` facts of each request, and in which nothing has failed."""

    remembered: set[str] = set()
    given_up: set[str] = set()
    asked_at: dict[str, float] = {}
    newest_fault = math.inf

    def __init__(self) -> None:
        self.disk = self
        self.written: list[Event] = []

    def facts(self, request_id: str) -> Sequence[Event]:
        return [each for each in self.written if each.request_id == request_id]

    def is_durable(self, fact: Event) -> bool:
        return fact in self.written

    def is_ours(self, request_id: str) -> bool:
        return True

    def has_failed(self, request_id: str) -> bool:
        return False

    is_unanswered = has_failed

    def reports(self, event: Event) -> bool:
        return True

    def begins(self, request_id: str, call_id: str, key: str) -> tuple[bool, str]:
        return True, key


class Home(Desk):
    """A process with a journal."""

    def __init__(self) -> None:
        super().__init__()
        self.journal: Any = Journaled()
        self.watch.journal = self.journal

    def write(self, *events: Event) -> None:
        """Facts of this process, or of another one."""
        self.journal.written += events


RESUMED = RequestResumed(event_id="f4", request_id="r", resumption=1)
STORE_FAILED = RequestFailed(event_id="f5", request_id="r", reason="store_unavailable", error="away")


async def test_a_request_that_others_had_meanwhile_goes_on_here_with_what_the_journal_has() -> None:
    with wall_time_from(anyio.current_time):
        home = Home()
        home.write(STARTED, ASKED, REQUESTED)
        home.tell(STARTED, ASKED, REQUESTED)
        home.write(FAILED, RESUMED)  # by another process
        home.tell(RESUMED)
        assert home.broken == []
        home.tell(FAILED)
    assert [str(each) for each in home.broken] == ["G19: c was settled elsewhere, and is settled again"]


async def test_a_request_that_was_left_may_fail_for_its_store_once_more_when_it_is_resumed() -> None:
    with wall_time_from(anyio.current_time):
        home = Home()
        home.write(STARTED)
        home.tell(STARTED, STORE_FAILED, replace(STORE_FAILED, event_id="f6"))
        assert home.broken == []
        home.tell(replace(RESUMED, event_id="f7"))  # which is not durable
    assert [each.guarantee for each in home.broken] == ["G31"]


@pytest.mark.parametrize("call_id", ["c", "d"])
async def test_a_late_result_is_of_a_call_that_was_written_also_where_the_request_failed_at_once(call_id: str) -> None:
    late = ToolCallLate(event_id="f8", request_id="r", call_id=call_id, name="work", event_type="tool_call_completed")
    with wall_time_from(anyio.current_time):
        home = Home()
        home.write(STARTED, ASKED, REQUESTED)  # by another process
        home.tell(STORE_FAILED, late)  # It was taken over here, and did not get as far as `RequestResumed`.
    assert [each.guarantee for each in home.broken] == ([] if call_id == "c" else ["G07"])


@pytest.mark.parametrize("written", [True, False])
async def test_a_derived_event_may_come_without_its_cause_where_that_is_a_call_that_may_not_begin(
    written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_watch, "BACKGROUND", frozenset({"work"}))
    ticket = MessageAppended(
        event_id="f2_m0", request_id="r", message=ToolMessage(content=TICKET, call_id="c", name="work")
    )
    with wall_time_from(anyio.current_time):
        home = Home()
        home.write(STARTED, ASKED)
        home.tell(STARTED, ASKED)
        if written:
            home.write(REQUESTED)
        home.tell(ticket)
    assert [each.guarantee for each in home.broken] == ([] if written else ["G01"])


async def test_a_question_of_a_request_that_is_resumed_here_is_the_event_that_it_was_and_no_other_event_is() -> None:
    question = ApprovalRequested(
        event_id="f2", request_id="r", call_id="c", name="work", arguments={}, timeout_seconds=9.0
    )
    with wall_time_from(anyio.current_time):
        home = Home()
        home.write(STARTED, ASKED, question)
        home.tell(STARTED, ASKED, question, STORE_FAILED)
        home.write(RESUMED)
        home.tell(RESUMED, question)
        assert home.broken == []
        home.tell(RESUMED)
    assert [str(each) for each in home.broken] == ["G01: two events have the id 'f4'"]


@pytest.mark.parametrize("below", [True, False])
async def test_a_request_of_a_tool_may_use_a_word_that_its_journal_has_not_taken_yet(
    below: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_watch, "NEEDS_APPROVAL", frozenset({"work"}))
    with wall_time_from(anyio.current_time):
        home = Home()
        home.write(STARTED)
        home.tell(STARTED)
        home.watch.trusts("r")
        events = [replace(each, request_id="s", event_id=f"s{each.event_id}") for each in (STARTED, ASKED, REQUESTED)]
        if below:
            events[0] = replace(events[0], parent_request_id="r")
        home.write(*events)
        home.tell(*events)
    assert [each.guarantee for each in home.broken] == ([] if below else ["G26"])


@pytest.mark.parametrize(
    ("ending", "broken"), [(STORE_FAILED, []), (RequestCompleted(event_id="f5", request_id="r"), ["G06"])]
)
async def test_a_request_goes_on_after_an_ending_only_where_its_store_had_failed(
    ending: Event, broken: list[str]
) -> None:
    with wall_time_from(anyio.current_time):
        home = Home()
        home.write(STARTED)
        home.tell(STARTED)
        if broken:
            home.write(ending)
        home.tell(ending)
        home.write(RESUMED)
        home.tell(RESUMED)
    assert [each.guarantee for each in home.broken] == broken


async def test_a_result_is_held_to_what_its_process_had_heard_when_it_was_given() -> None:
    left = RequestResult(
        outcome="cancelled", reason="", text="", output=None, messages=[], history_count=0, artifacts=[], affected=[],
        usage=Usage(), cost=0.0, rounds=0, request_id="r", conversation_id="c", duration_seconds=0.0, resumable=True,
    )  # fmt: skip
    with wall_time_from(anyio.current_time):
        home = Home()
        completed = ToolCallCompleted(event_id="f3", request_id="r", call_id="c", name="work", content="done")
        home.write(STARTED, ASKED, REQUESTED, completed)
        process: Any = SimpleNamespace(watch=home.watch)
        before = home.watch.requests.get("r")
        home.tell(STARTED, ASKED, REQUESTED, completed)  # it was resumed here after it had been left
        assert home.broken == []
        _check_result(process, left, before)
        with pytest.raises(Broken, match="G09: the result of c is not in the transcript of r"):
            _check_result(process, left, home.watch.requests["r"])


async def test_a_result_is_not_compared_with_the_events_of_a_later_life_in_the_same_process() -> None:
    """The host of a request stopped waiting for it, and the request was resumed before the result was looked at."""

    class Session:
        def __init__(self, outcome: str) -> None:
            self.request_id, self.outcome = "r", outcome

        async def result(self) -> Any:
            return self.outcome

    left, resumed = Session("failed"), Session("completed")
    taken: list[Any] = []
    process: Any = SimpleNamespace(_started=[], _newest={}, results=[], is_dead=False)

    def take(result: Any, **_: Any) -> None:
        taken.append(result)

    process._take = take
    for session in (left, resumed):
        Process._note_session(process, session)  # type: ignore[arg-type]
    for session in (resumed, left):
        await Process._wait_for(process, session)  # type: ignore[arg-type]
    assert (taken, process.results, process._started) == (["completed"], [("failed", None)], [])
