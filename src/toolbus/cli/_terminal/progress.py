"""The display of one request's events to a person: the text of the answer, and a line for each tool call.

This module knows events and the screen, and neither sessions nor providers. The narrator is a receiver on the bus, so
it misses no event, and it is called only on the loop's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.plain_text import one_line
from ...events import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    Event,
    ModelResponded,
    ModelRetrying,
    PlanChanged,
    PlanStep,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RoundStarted,
    TerminalEvent,
    TextDelta,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallProgress,
    ToolCallRequested,
    ToolCallRetrying,
)
from ...status import ANALYZING, ASKING_AGAIN, FORMULATING, display_name, round_status
from .screen import Line, Screen
from .text import Cleaner, arguments_line, cells, cut, duration, indented

_REASON_LINES = 3
"""The most lines for the reason of a failed call on a terminal. A log has the whole reason."""

_MAX_REASON_CHARS = 2_000  # characters
_MARKS: Mapping[str, str] = {"pending": " ", "active": ">", "done": "x", "dropped": "-"}
_MAX_STEPS = 8  # lines for steps, including the counts of those that are not shown


@dataclass(slots=True)
class _Call:
    """A running call. `since` is a time of the narrator's clock."""

    name: str
    detail: str
    since: float
    progress: str = ""


class Narrator:
    """A listener that shows the events of a request on `screen`.

    `show_text=False` leaves out the answer, `show_calls=False` everything else. `clock` returns seconds, and times work
    in progress; the duration of finished work comes from the events.
    """

    def __init__(
        self,
        screen: Screen,
        *,
        show_text: bool = True,
        show_calls: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._screen = screen
        self._show_text = show_text
        self._show_calls = show_calls
        self._clock = clock
        self._handlers: Mapping[type[Event], Callable[[Any], None]] = {
            RoundStarted: self._on_round,
            TextDelta: self._on_text,
            ModelResponded: self._on_reply,
            ModelRetrying: self._on_model_retry,
            PlanChanged: self._on_plan,
            ApprovalRequested: self._on_question,
            ApprovalDecided: self._on_decision,
            ToolCallRequested: self._on_requested,
            ToolCallProgress: self._on_progress,
            ToolCallRetrying: self._on_retry,
            ToolCallCompleted: self._on_completed,
            ToolCallFailed: self._on_failed,
            CancelRequested: self._on_cancel,
            RequestCompleted: self._on_answer,
            RequestFailed: self._on_end,
            RequestCancelled: self._on_end,
        }
        self._begin()

    def _begin(self) -> None:
        self._calls: dict[str, _Call] = {}  # by call id
        # The arguments of this round's calls, by call id: text from the reply, or an object from an approval question.
        self._asked: dict[str, str | Mapping[str, Any]] = {}
        self._plan: tuple[PlanStep, ...] = ()  # the plan that was shown last
        self._doing = ANALYZING
        self._since = self._clock()
        self._message = ""  # the id of the message whose text is being shown
        self._last_text = ""
        self._cleaner = Cleaner()
        self._fresh = True  # True until the message has shown some text
        self._quiet = False  # True while text streams and after the end: there is no live line then

    def __call__(self, event: Event) -> None:
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def tick(self) -> None:
        """Redraw the live line. The host calls this a few times a second."""
        if self._show_calls and not self._quiet:
            self._screen.busy(self._line())

    def _line(self) -> Line:
        if not self._calls:
            return Line(mark="work", name=self._doing, tail=duration(self._clock() - self._since))
        *others, newest = self._calls.values()
        more = f" +{len(others)}" if others else ""
        tail = f"{duration(self._clock() - newest.since)}{more}"
        return Line(mark="work", name=newest.name, detail=newest.progress or newest.detail, tail=tail)

    # ----------------------------------------------------------------------------------------- the answer

    def _on_round(self, event: RoundStarted) -> None:
        if event.round == 0:
            self._begin()
        self._doing = round_status(event)[1]
        self._since = self._clock()
        self._quiet = False
        self.tick()

    def _on_text(self, event: TextDelta) -> None:
        if event.message_id != self._message:
            self._message = event.message_id
            self._fresh = True
            self._doing = FORMULATING
        self._say(self._cleaner.feed(event.text))

    def _on_reply(self, event: ModelResponded) -> None:
        message = event.message
        # Unstreamed text comes from a provider that does not stream.
        if message.text and message.message_id != self._message:
            self._fresh = True
            self._say(self._cleaner.feed(message.text))
        self._end_text()
        self._last_text = message.text or self._last_text
        self._asked = {call.call_id: call.arguments for call in message.tool_calls}

    def _say(self, text: str) -> None:
        if not self._show_text:
            return
        if self._fresh:
            text = text.lstrip("\n")
            if not text:
                return
            if self._screen.said:
                # An empty line separates this text from that of an earlier round or answer.
                self._screen.end_paragraph()
                self._screen.say("\n")
            self._fresh = False
        self._quiet = not self._screen.waits_for_blocks
        self._screen.answer(text)

    def _end_text(self) -> None:
        self._say(self._cleaner.flush())
        self._screen.end_answer()
        self._message = ""
        self._quiet = False

    def _on_answer(self, event: RequestCompleted) -> None:
        # A different text was given by a tool that ends the task.
        if event.text.strip() != self._last_text.strip():
            self._fresh = True
            self._say(self._cleaner.feed(event.text))
        self._on_end(event)

    def _on_end(self, _event: Event) -> None:
        self._end_text()
        if self._show_text:
            self._screen.end_paragraph()
        self._calls.clear()
        self._quiet = True
        self._screen.busy(None)

    # ----------------------------------------------------------------------------------------- the work

    def _on_plan(self, event: PlanChanged) -> None:
        if self._show_calls and event.steps != self._plan:
            self._plan = event.steps
            self._screen.report("\n".join(plan_lines(event.steps, self._screen.width, self._screen.ellipsis)))

    def _on_question(self, event: ApprovalRequested) -> None:
        self._asked[event.call_id] = event.arguments
        self._doing = f"Waiting for approval: {display_name(event.name)}..."
        self._since = self._clock()
        self._quiet = False

    def _on_decision(self, _event: ApprovalDecided) -> None:
        self._since = self._clock()

    def _on_requested(self, event: ToolCallRequested) -> None:
        call = _Call(display_name(event.name), arguments_line(event.arguments), self._clock())
        self._calls[event.call_id] = call
        if self._screen.live:
            self.tick()
        else:
            self._note(Line(mark="start", name=call.name, detail=call.detail))

    def _on_progress(self, event: ToolCallProgress) -> None:
        call = self._calls.get(event.call_id)
        if call is None:
            return
        done = "" if event.done is None else f"{event.done:g}"
        if done and event.total is not None:
            done += f"/{event.total:g}"
        call.progress = f"{done} {one_line(event.message[:_MAX_REASON_CHARS])}".strip()
        self.tick()

    def _on_retry(self, event: ToolCallRetrying) -> None:
        detail = f"attempt {event.attempt} failed: {one_line(event.error)}"
        self._note(Line(mark="retry", name=display_name(event.name), detail=detail))

    def _on_model_retry(self, event: ModelRetrying) -> None:
        self._end_text()
        self._doing = ASKING_AGAIN
        self._since = self._clock()
        self._note(Line(mark="retry", name="Asking again", detail=one_line(event.error or event.reason)))

    def _on_completed(self, event: ToolCallCompleted) -> None:
        # A call without a `ToolCallRequested` was answered by the request itself: a plan, or the end of the task.
        is_internal = event.call_id not in self._calls
        call = self._pop(event)
        if not is_internal:
            self._note(Line(mark="ok", name=call.name, detail=call.detail, tail=_took(event, call, self._clock())))

    def _on_failed(self, event: ToolCallFailed) -> None:
        refused = event.call_id not in self._calls
        call = self._pop(event)
        if event.reason == "denied":
            self._note(Line(mark="denied", name=call.name, detail=call.detail))
            self._explain(one_line(event.error[:_MAX_REASON_CHARS]))
            return
        tail = "" if refused else _took(event, call, self._clock())
        self._note(Line(mark="failed", name=call.name, detail=call.detail, tail=tail))
        self._explain(f"{event.reason}: {one_line(event.error[:_MAX_REASON_CHARS])}")

    def _on_cancel(self, _event: CancelRequested) -> None:
        self._doing = "Cancelling..."
        self._since = self._clock()
        self._quiet = False

    def _pop(self, event: TerminalEvent) -> _Call:
        """Remove the call that has ended and return it; one that was refused before it ran is made from its event."""
        asked = self._asked.pop(event.call_id, "")
        found = self._calls.pop(event.call_id, None)
        if not self._calls:
            self._since = self._clock()
        return found or _Call(display_name(event.name), arguments_line(asked), self._clock())

    def _note(self, line: Line) -> None:
        if self._show_calls:
            self._screen.note(line)

    def _explain(self, text: str) -> None:
        if not self._show_calls:
            return
        if not self._screen.live:
            self._screen.report(f"  {text}")
            return
        self._screen.report(indented(text, self._screen.width, _REASON_LINES))


def _took(event: TerminalEvent, call: _Call, now: float) -> str:
    """Return the handler's own time, or the time since the request for a call that was not timed."""
    return duration(event.duration_seconds or now - call.since)


def plan_lines(steps: Sequence[PlanStep], width: int, ellipsis: str = "…") -> list[str]:
    """Return `Plan: [x] Read the file  [>] Write it` where that fits into `width` columns, else a line for each step.

    In a long plan, finished steps and steps far ahead are counted instead of shown.
    """
    shown = [f"[{_MARKS.get(step.status, ' ')}] {one_line(step.text)}" for step in steps]
    line = f"Plan: {'  '.join(shown)}"
    if cells(line) <= width:
        return [line]
    if len(shown) > _MAX_STEPS:
        finished = next((at for at, step in enumerate(steps) if step.status in ("pending", "active")), len(steps))
        # The last finished step is shown, because it says how far the model has come.
        finished = max(finished - 1, 0)
        head = [f"[x] {finished} steps before"] if finished > 1 else shown[:finished]
        ahead = shown[finished:]
        lines_left = _MAX_STEPS - len(head)
        tail = [f"{ellipsis} {len(ahead) - lines_left + 1} more steps"] if len(ahead) > lines_left else []
        shown = [*head, *ahead[: lines_left - len(tail)], *tail]
    return ["Plan:", *(cut(f"  {each}", width, ellipsis) for each in shown)]
