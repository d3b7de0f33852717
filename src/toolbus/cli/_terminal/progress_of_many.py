"""The display of several requests at once: a line when one begins, a live line meanwhile, and a line at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...core.plain_text import one_line
from ...events import (
    ApprovalRequested,
    Event,
    RequestEnding,
    RequestResumed,
    RoundStarted,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from ...status import ANALYZING, display_name
from .screen import Line, Mark, Screen
from .text import arguments_line, duration

_MARKS: Mapping[str, Mark] = {"completed": "ok", "cancelled": "denied"}


@dataclass(slots=True)
class _Request:
    since: float
    doing: str = ANALYZING
    detail: str = ""


class NarratorOfMany:
    """A listener like `Narrator`, for several requests. `prompts` has their prompts by request id.

    Answers are not shown here: the caller, who has the results, shows them.
    """

    def __init__(
        self,
        screen: Screen,
        prompts: Mapping[str, str],
        *,
        show_calls: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._screen = screen
        self._prompts = prompts
        self._show = show_calls
        self._clock = clock
        self._running: dict[str, _Request] = {}

    def __call__(self, event: Event) -> None:
        """Record `event`, and show a line where a request begins or ends."""
        if isinstance(event, RequestResumed):
            self._running[event.request_id] = _Request(self._clock())
            if not self._screen.live:
                self._note("start", event.request_id, "")
        elif (request := self._running.get(event.request_id)) is not None:
            self._update(event, request)

    def _update(self, event: Event, request: _Request) -> None:
        if isinstance(event, (RoundStarted, ToolCallCompleted, ToolCallFailed)):
            request.doing, request.detail = ANALYZING, ""
        elif isinstance(event, ToolCallRequested):
            request.doing, request.detail = display_name(event.name), arguments_line(event.arguments)
        elif isinstance(event, ApprovalRequested):
            request.doing, request.detail = f"Waiting for approval: {display_name(event.name)}...", ""
        elif isinstance(event, RequestEnding):
            del self._running[event.request_id]
            tail = f"{event.outcome}  {duration(self._clock() - request.since)}"
            self._note(_MARKS.get(event.outcome, "failed"), event.request_id, tail)

    def tick(self) -> None:
        """Redraw the live line, for the request that has been running longest."""
        if not self._show or not self._running:
            return
        request_id, oldest = next(iter(self._running.items()))
        more = f" +{len(self._running) - 1}" if len(self._running) > 1 else ""
        detail = f"{oldest.doing}  {oldest.detail}".strip()
        tail = f"{duration(self._clock() - oldest.since)}{more}"
        self._screen.busy(Line(mark="work", name=request_id, detail=detail, tail=tail))

    def _note(self, mark: Mark, request_id: str, tail: str) -> None:
        if self._show:
            detail = one_line(self._prompts.get(request_id, ""))
            self._screen.note(Line(mark=mark, name=request_id, detail=detail, tail=tail))
