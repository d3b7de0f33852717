from __future__ import annotations

import io
from collections.abc import Iterable

import pytest
from desk import Terminal

from toolbus.cli._terminal.live_screen import LiveScreen
from toolbus.cli._terminal.progress import Narrator, plan_lines
from toolbus.cli._terminal.screen import Screen
from toolbus.cli._terminal.text import cut
from toolbus.core.plain_text import clean
from toolbus.events import (
    ApprovalDecided,
    ApprovalRequested,
    CallOutcome,
    CancelRequested,
    Event,
    ModelResponded,
    ModelRetrying,
    PlanChanged,
    PlanStep,
    RequestCancelled,
    RequestCompleted,
    RoundStarted,
    StatusChanged,
    SteeringAdded,
    TextDelta,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallProgress,
    ToolCallRequested,
    ToolCallRetrying,
)
from toolbus.messages import AssistantMessage, ToolCall

ROUND = RoundStarted(round=0, message_count=1)


def requested(call_id: str = "c1", name: str = "search_text", **arguments: object) -> Event:
    return ToolCallRequested(
        call_id=call_id, name=name, arguments=arguments, round=0, timeout_seconds=30.0, idempotency_key="k"
    )


def completed(call_id: str = "c1", name: str = "search_text", seconds: float = 0.012) -> Event:
    return ToolCallCompleted(call_id=call_id, name=name, content="ok", duration_seconds=seconds)


def progress(message: str = "", done: float | None = None, total: float | None = None) -> Event:
    return ToolCallProgress(call_id="c1", name="search_text", message=message, done=done, total=total)


def replied(text: str = "", *calls: ToolCall, message_id: str = "m1") -> Event:
    message = AssistantMessage(text=text, tool_calls=calls, message_id=message_id)
    return ModelResponded(round=0, message=message)


def piece(text: str, message_id: str = "m1") -> Event:
    return TextDelta(message_id=message_id, text=text)


class Desk:
    """A narrator, its two streams and its clock."""

    def __init__(self, *, live: Terminal | None = None, show_text: bool = True, show_calls: bool = True) -> None:
        self.now = 100.0
        self.out: io.StringIO = live or io.StringIO()
        self.err: io.StringIO = live or io.StringIO()
        self.screen = LiveScreen(self.out, self.err) if live else Screen(self.out, self.err)
        self.narrator = Narrator(self.screen, show_text=show_text, show_calls=show_calls, clock=lambda: self.now)

    def tell(self, events: Iterable[Event]) -> None:
        for event in events:
            self.narrator(event)

    def last_line(self) -> str:
        return clean(self.err.getvalue().rpartition("\x1b[2K")[2].rpartition("\n")[2])


@pytest.fixture(autouse=True)
def size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")


def test_a_log_tells_of_each_call_when_it_begins_and_when_it_ends():
    desk = Desk()
    desk.tell([ROUND, requested(query="limits"), completed()])
    assert desk.err.getvalue() == '→ Search Text  query="limits"\n✓ Search Text  query="limits"  12 ms\n'
    assert desk.out.getvalue() == ""


def test_a_failed_call_shows_its_reason():
    desk = Desk()
    failed = ToolCallFailed(
        call_id="c1", name="search_text", reason="timeout", error="No result\nwithin \x1b[1m30 s", duration_seconds=30.0
    )
    desk.tell([requested(), failed])
    assert desk.err.getvalue().splitlines()[1:] == ["✗ Search Text  30.0 s", "  timeout: No result within 30 s"]


def test_a_call_that_was_refused_shows_the_arguments_as_the_model_wrote_them_and_no_time():
    desk = Desk()
    call = ToolCall(name="search_text", arguments='{"query":', call_id="c1")
    failed = ToolCallFailed(call_id="c1", name="search_text", reason="invalid_arguments", error="not JSON")
    desk.tell([ROUND, replied("", call), failed])
    assert desk.err.getvalue() == '✗ Search Text  {"query":\n  invalid_arguments: not JSON\n'


def test_a_call_that_nobody_timed_shows_how_long_it_was_under_way():
    desk = Desk()
    desk.tell([requested()])
    desk.now += 3
    desk.tell([completed(seconds=0.0)])
    assert desk.err.getvalue().endswith("✓ Search Text  3.0 s\n")


def test_a_text_that_comes_whole_begins_a_paragraph_of_its_own():
    desk = Desk()
    call = ToolCall(name="search_text", arguments="{}", call_id="c1")
    desk.tell(
        [ROUND, replied("One.", call), RoundStarted(round=1, message_count=3), replied("\nTwo.", message_id="m2")]
    )
    desk.tell([RequestCompleted(text="\nTwo.")])
    assert desk.out.getvalue() == "One.\n\nTwo.\n"


def test_a_retry_is_reported_with_its_cause():
    desk = Desk()
    retrying = ToolCallRetrying(call_id="c1", name="search_text", attempt=1, error="busy\nnow", delay_seconds=1.0)
    desk.tell([requested(), retrying, ModelRetrying(round=0, reason="empty_reply")])
    assert desk.err.getvalue().splitlines()[1:] == [
        "↻ Search Text  attempt 1 failed: busy now",
        "↻ Asking again  empty_reply",
    ]


def test_a_long_reason_is_wrapped_on_a_terminal_and_whole_in_a_log(terminal: Terminal):
    failed = ToolCallFailed(call_id="c1", name="search_text", reason="error", error="word " * 100)
    live, log = Desk(live=terminal), Desk()
    live.tell([failed])
    log.tell([failed])
    shown = [clean(line) for line in terminal.getvalue().splitlines()]
    assert len(shown) == 4
    assert max(map(len, shown)) < 60
    assert shown[-1].endswith(" …")
    assert log.err.getvalue().count("word") == 100


def test_the_live_line_tells_what_is_being_done_and_since_when(terminal: Terminal):
    desk = Desk(live=terminal)
    desk.tell([ROUND])
    desk.now += 2
    desk.narrator.tick()
    assert desk.last_line().endswith("Analyzing request...  2.0 s")
    desk.tell([requested("c1", city="Paris"), requested("c2", "add", a=1)])
    desk.now += 1
    desk.narrator.tick()
    assert desk.last_line()[2:] == "Add  a=1  1.0 s +1"
    desk.tell([completed("c2", "add")])
    desk.narrator.tick()
    assert desk.last_line()[2:] == 'Search Text  city="Paris"  1.0 s'
    desk.tell([completed("c1"), RoundStarted(round=1, message_count=4)])
    assert desk.last_line()[2:] == "Processing tool results...  0 ms"


def test_the_live_line_tells_of_a_failure_that_the_model_works_on_and_of_a_model_that_is_asked_again(
    terminal: Terminal,
):
    desk = Desk(live=terminal)
    failed = ToolCallFailed(call_id="c1", name="search_text", reason="error", error="no")
    after = (CallOutcome(name="search_text", ok=False),)
    desk.tell([ROUND, requested(), failed, RoundStarted(round=1, message_count=4, call_outcomes=after)])
    assert desk.last_line()[2:] == "Tool Search Text failed, trying alternative approa…  0 ms"
    desk.now += 5
    desk.tell([piece("half\n"), ModelRetrying(round=1, reason="provider_unavailable")])
    desk.now += 1
    desk.narrator.tick()
    assert desk.last_line()[2:] == "Asking the model again...  1.0 s"
    desk.tell([RoundStarted(round=2, message_count=4, tools_offered=False)])
    assert desk.last_line()[2:] == "Formulating final response...  0 ms"


def test_progress_takes_the_place_of_the_arguments(terminal: Terminal):
    desk = Desk(live=terminal)
    desk.tell([requested(query="limits"), progress(message="files", done=3, total=4)])
    assert desk.last_line()[2:] == "Search Text  3/4 files  0 ms"
    desk.tell([progress(done=3.5)])
    assert desk.last_line()[2:] == "Search Text  3.5  0 ms"
    before = terminal.getvalue()
    desk.tell([ToolCallProgress(call_id="of another", name="x")])
    assert terminal.getvalue() == before


def test_of_a_long_message_only_the_beginning_is_looked_at_for_each_frame(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
):
    measured: list[int] = []

    def measure(shown: str, width: int, mark: str) -> str:
        measured.append(len(shown))
        return cut(shown, width, mark)

    monkeypatch.setattr("toolbus.cli._terminal.screen.cut", measure)
    Desk(live=terminal).tell([requested(query="limits"), progress(message="漢" * 1_000_000)])
    assert max(measured) == 2_000


@pytest.mark.parametrize("laid_out", [False, True])
def test_a_line_moves_only_while_blocks_of_the_answer_are_awaited_and_never_after_the_end(
    terminal: Terminal, laid_out: bool
):
    terminal.encoding = "utf-8" if laid_out else "latin-1"
    desk = Desk(live=terminal)
    desk.tell([ROUND, piece("one\n")])
    before = terminal.getvalue()
    desk.narrator.tick()
    assert (terminal.getvalue() != before) is laid_out
    assert ("Formulating final response..." in terminal.getvalue()) is laid_out
    desk.tell([replied("one\n"), RequestCompleted(text="one\n")])
    desk.narrator.tick()
    assert terminal.getvalue().endswith("one\n")


def test_cancelling_shows_in_the_live_line(terminal: Terminal):
    desk = Desk(live=terminal)
    desk.tell([ROUND, piece("half\n")])
    desk.now += 1
    desk.tell([CancelRequested(reason="")])
    desk.narrator.tick()
    assert desk.last_line()[2:] == "Cancelling...  0 ms"


def test_text_is_shown_as_it_comes_and_ends_with_one_line_break():
    desk = Desk()
    desk.tell([ROUND, piece("\n\nAn")])
    assert desk.out.getvalue() == "An"
    desk.tell([piece("swer"), replied("\n\nAnswer"), RequestCompleted(text="Answer")])
    assert desk.out.getvalue() == "Answer\n"


def test_text_of_two_rounds_has_an_empty_line_between():
    desk = Desk()
    desk.tell([ROUND, piece("Let me look."), replied("Let me look."), requested(), completed()])
    desk.tell([piece("Found.", "m2"), replied("Found.", message_id="m2"), RequestCompleted()])
    assert desk.out.getvalue() == "Let me look.\n\nFound.\n"


def test_text_of_a_model_that_does_not_stream_is_shown_whole():
    desk = Desk()
    desk.tell([ROUND, replied("Answer \x1b[31mred"), RequestCompleted()])
    assert desk.out.getvalue() == "Answer red\n"


def test_the_line_that_moves_is_erased_at_the_end():
    desk = Desk(live=Terminal())
    desk.tell([ROUND, requested()])
    desk.narrator.tick()
    assert desk.last_line()
    desk.tell([RequestCancelled(reason="enough")])
    assert not desk.last_line()


def test_a_reply_without_text_shows_nothing():
    desk = Desk()
    desk.tell([ROUND, piece("\n"), replied("\n"), RequestCompleted()])
    assert desk.out.getvalue() == ""


def test_an_answer_that_is_cut_by_the_end_ends_its_line():
    desk = Desk()
    desk.tell([ROUND, piece("half\x1b["), RequestCancelled()])
    assert desk.out.getvalue() == "half\n"


def test_text_that_is_asked_for_again_begins_anew():
    desk = Desk()
    desk.tell([ROUND, piece("hal"), ModelRetrying(round=0, reason="provider_unavailable", error="gone"), piece("half")])
    assert desk.out.getvalue() == "hal\n\nhalf"


def test_without_text_and_calls_nothing_is_shown():
    desk = Desk(show_text=False, show_calls=False)
    failed = ToolCallFailed(call_id="c2", name="x", reason="error", error="e")
    desk.tell([ROUND, piece("x"), requested(), completed(), failed, replied("x"), RequestCompleted()])
    desk.narrator.tick()
    assert (desk.out.getvalue(), desk.err.getvalue()) == ("", "")


def test_events_that_are_of_no_interest_change_nothing():
    desk = Desk()
    desk.tell([StatusChanged(stage="idle", text="x"), SteeringAdded(text="odd")])
    assert (desk.out.getvalue(), desk.err.getvalue()) == ("", "")


QUESTION = ApprovalRequested(call_id="c1", name="delete_file", arguments={"path": "a"}, timeout_seconds=60.0)


def test_a_denied_call_is_marked_and_quotes_who_denied_it():
    desk = Desk()
    call = ToolCall(name="delete_file", arguments='{"path":"a"}', call_id="c1")
    error = "The user denied the call: use\nthe other"
    failed = ToolCallFailed(call_id="c1", name="delete_file", reason="denied", error=error)
    decided = ApprovalDecided(call_id="c1", approved=False)
    desk.tell([ROUND, replied("", call), QUESTION, decided, failed])
    assert desk.err.getvalue() == '⊘ Delete File  path="a"\n  The user denied the call: use the other\n'


def test_the_time_of_a_question_is_no_time_of_the_work(terminal: Terminal):
    desk = Desk(live=terminal)
    desk.tell([ROUND, piece("half\n")])
    desk.now += 5
    desk.tell([QUESTION])
    desk.now += 1
    desk.narrator.tick()
    assert desk.last_line()[2:] == "Waiting for approval: Delete File...  1.0 s"
    desk.now += 3_000
    desk.tell([ApprovalDecided(call_id="c1", approved=True)])
    desk.narrator.tick()
    assert desk.last_line()[2:] == "Waiting for approval: Delete File...  0 ms"
    desk.tell([requested("c1", "delete_file", path="b")])
    assert desk.last_line()[2:] == 'Delete File  path="b"  0 ms'


def steps(*texts: str) -> tuple[PlanStep, ...]:
    """`x` in front is done, `>` under way, `-` dropped."""
    words = {"x": "done", ">": "active", "-": "dropped", " ": "pending"}
    return tuple(PlanStep(text=each[1:], status=words[each[0]]) for each in texts)  # type: ignore[arg-type]


def test_a_plan_is_shown_when_it_changes_and_its_call_is_not():
    desk = Desk()
    first, second = steps(">Read the file", " Write it"), steps("xRead the file", ">Write it")
    for plan in (first, first, second):
        desk.tell([PlanChanged(steps=plan), completed(name="update_plan")])
    assert desk.err.getvalue() == (
        "Plan: [>] Read the file  [ ] Write it\nPlan: [x] Read the file  [>] Write it\n"  # and not a third time
    )
    quiet = Desk(show_calls=False)
    quiet.tell([PlanChanged(steps=first)])
    assert quiet.err.getvalue() == ""


def test_an_answer_that_no_message_had_is_shown_once():
    desk = Desk()
    desk.tell([ROUND, piece("Let me see."), replied("Let me see."), completed(name="task_complete")])
    desk.tell([RequestCompleted(text="Done \x1b[1mnow.")])
    assert desk.out.getvalue() == "Let me see.\n\nDone now.\n"
    again = Desk()
    again.tell([ROUND, piece("As far as I got."), replied("As far as I got."), ROUND_1])
    again.tell([RequestCompleted(outcome="stopped", reason="max_rounds=1", text="As far as I got.")])
    assert again.out.getvalue() == "As far as I got.\n"


ROUND_1 = RoundStarted(round=1, message_count=4)


class TestPlanLines:
    def test_a_plan_that_does_not_fit_on_a_line_has_one_for_each_step(self):
        plan = steps("xRead\x1b[1m the\nfile", "-Ask somebody who knows about it", ">Write it")
        assert plan_lines(plan, 30) == [
            "Plan:",
            "  [x] Read the file",
            "  [-] Ask somebody who knows…",
            "  [>] Write it",
        ]

    @pytest.mark.parametrize("at", [0, 1, 2, 3, 6, 12, 19, 20])
    def test_a_long_one_is_short_around_the_step_under_way(self, at: int):
        plan = steps(*(f"{'x' if each < at else '>' if each == at else ' '}step {each}" for each in range(20)))
        lines = plan_lines(plan, 40)
        assert len(lines) <= 9
        assert at == 20 or f"  [>] step {at}" in lines
        # A line that counts a single step would take as much room as the step.
        finished = range(at - 1 if at > 2 else 0, at)
        assert [line for line in lines if "[x] step" in line] == [f"  [x] step {each}" for each in finished]
        shown = sum("] step" in line for line in lines)
        counted = sum(int(line.split()[1]) for line in lines if " steps" in line)
        assert shown + counted == 20

    def test_eight_steps_are_all_shown(self):
        lines = plan_lines(steps(*(f"xstep {each}" for each in range(8))), 40)
        assert lines == ["Plan:", *(f"  [x] step {each}" for each in range(8))]

    def test_a_model_that_writes_lines_without_end_fills_no_screen(self):
        lines = plan_lines(steps(*[f">{'word ' * 500}"] * 50), 80)
        assert len(lines) == 9
        assert max(map(len, lines)) <= 80
