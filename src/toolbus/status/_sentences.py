"""The status of one request, for people: a stage and a sentence, made from the request's events. Pure.

`StatusFold` folds the events, and makes a sentence only when its status is read. `events_so_far` lets it begin in the
middle of a request. A sentence is one line of at most 200 characters, without control characters and without what looks
like a secret: see `toolbus.secrets`.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import string
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

from ..core.endings import explain
from ..core.plain_text import clip, one_line
from ..core.turn import CallState, CallStatus, Phase, TurnState, was_steered
from ..events import (
    ApprovalDecided,
    ApprovalRequested,
    CallOutcome,
    Event,
    ModelResponded,
    ModelRetrying,
    RequestCancelled,
    RequestCompleted,
    RequestEnding,
    RequestFailed,
    RequestStarted,
    RoundStarted,
    Stage,
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
)
from ..messages import AssistantMessage
from ..protocols import ToolSpec
from ..secrets import MASK, is_secret_name, masked, redacted

Status: TypeAlias = tuple[Stage, str]
"""The stage of a request, and a sentence for people."""

ANALYZING = "Analyzing request..."
SELECTING = "Selecting appropriate tools..."
PROCESSING = "Processing tool results..."
FORMULATING = "Formulating final response..."
ASKING_AGAIN = "Asking the model again..."

_MAX_SENTENCE_CHARS = 200  # characters, which are two lines of a narrow window
_MAX_VALUE_CHARS = 60  # characters
_MAX_NAME_CHARS = 80  # characters
_MAX_EXAMINED_CHARS = 2_000  # of a text that is cut to a sentence
_SPACED = re.compile(r"[\s_\-.]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")  # a name only, without an attribute or an index
_PIECES: Mapping[type[Event], str] = {ToolArgumentsDelta: SELECTING, TextDelta: FORMULATING}
# A failure for one of these reasons means that the request ends; it is not the call's fault.
_UNASKED = frozenset({"cancelled", "interrupted"})


# ------------------------------------------------------------------------------------------------- sentences


def display_name(name: str) -> str:
    """Return a tool's name for people: "Lookup Tool" for `lookup_tool` and `lookupTool`, "Read PDF" for `read_PDF`.

    It is one line of at most 80 characters, or "(no name)" if nothing is left.
    """
    return _display_name(name[:_MAX_EXAMINED_CHARS])


@lru_cache(maxsize=1024)  # A model may make names of megabytes, which must not be kept.
def _display_name(name: str) -> str:
    words = _SPACED.split(_HUMP.sub(" ", one_line(name)))
    return clip(" ".join(word[:1].upper() + word[1:] for word in words if word) or "(no name)", _MAX_NAME_CHARS)


def sentence(text: str) -> str:
    """Return a text of a tool, a model or a user as a sentence: one line of at most 200 characters, keys hidden."""
    return clip(masked(one_line(text[:_MAX_EXAMINED_CHARS])), _MAX_SENTENCE_CHARS)


def call_sentence(name: str, arguments: Mapping[str, Any], spec: ToolSpec | None) -> str:
    """Return the sentence for a call that runs: the tool's own `status` template, filled, or "Using Lookup Tool...".

    A template's fields are names of arguments, without attributes or indexes. Their values are shown on one line of at
    most 60 characters each, secrets as •••. If a value is missing, null or empty, or the template is broken, the
    default sentence is returned.
    """
    if spec is not None and spec.status:
        filled = _filled(spec.status, arguments)
        if filled:
            return clip(filled, _MAX_SENTENCE_CHARS)
    return f"Using {_display_name(name[:_MAX_EXAMINED_CHARS])}..."


def round_status(event: RoundStarted, failed: str = "") -> Status:
    """Return the status while the model is called. `failed` is the tool that failed last, or "" if it is not known."""
    if not event.tools_offered:
        return "processing", FORMULATING
    failures = [each.name for each in event.call_outcomes if not each.ok]
    if failures:
        return "processing", _failed(failed if failed in failures else failures[-1])
    return ("submitted", ANALYZING) if event.round == 0 else ("processing", PROCESSING)


def _status_of(event: RoundStarted, failed: str, steered: bool) -> Status:  # noqa: FBT001 -- only the fold calls it
    stage, text = round_status(event, failed)
    # The model had answered, and the user has steered the request since.
    if steered and not event.call_outcomes and text == PROCESSING:
        text = ANALYZING
    return stage, text


def _failed(name: str) -> str:
    return f"Tool {display_name(name)} failed, trying alternative approach..."


def _filled(template: str, arguments: Mapping[str, Any]) -> str:
    """Return the template with its fields filled; empty if that cannot be done."""
    pieces: list[str] = []
    for literal, field in _parsed(template):
        pieces.append(literal)
        if field:
            value = _shown(field, arguments.get(field))
            if not value:
                return ""
            pieces.append(value)
    return one_line("".join(pieces))


@lru_cache(maxsize=1024)
def _parsed(template: str) -> tuple[tuple[str, str], ...]:
    """Return a template as pairs of literal text and the name of an argument; empty for a broken template.

    `str.format` is not used, because it would follow `{x.__class__.__init__.__globals__}` to the process's data.
    """
    parts: list[tuple[str, str]] = []
    try:
        for literal, field, spec, conversion in string.Formatter().parse(template):
            if field is not None and (spec or conversion or not _FIELD.fullmatch(field)):
                return ()
            parts.append((literal, field or ""))
    except ValueError:  # A brace is not closed.
        return ()
    return tuple(parts)


def _shown(name: str, value: Any) -> str:
    """Return an argument in a few words; empty if there is nothing to show."""
    if value is None or value == "":
        return ""
    if not isinstance(value, str):
        value = redacted({name: value}).popitem()[1]
        value = value if value == MASK else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    elif is_secret_name(name):
        return MASK
    return clip(masked(one_line(value[:_MAX_EXAMINED_CHARS])), _MAX_VALUE_CHARS)


# ------------------------------------------------------------------------------------------------- the fold


class StatusFold:
    """A fold of one request's events, in their order, to its status. Events of other requests must not be passed.

    `take` is called for every event, and `new_status` when somebody listens. An event is passed only once; signals
    (deltas, progress, retries) may be left out. While an approval is open, the request is `waiting`, whatever else
    runs, because a person is needed. It is `waiting` too when the model has answered, and calls run in the background.
    """

    __slots__ = (
        "_background",
        "_calls",
        "_ended",
        "_failed",
        "_last",
        "_piece_kinds",
        "_round",
        "_shown",
        "_status",
        "_steered",
        "_unsettled",
        "_waiting",
    )

    def __init__(self) -> None:
        self._status: Status = ("idle", "")
        # The round whose status is not made yet: its event, the tool that failed last, and whether the user steered.
        self._round: tuple[RoundStarted, str, bool] | None = None
        self._shown: ToolCallRequested | None = None  # the call whose sentence is the status
        self._calls: dict[str, tuple[ToolCallRequested, str]] = {}  # the running calls and their messages, by call id
        self._waiting: dict[str, str] = {}  # the tools of the calls that wait for a person, by call id
        self._background: dict[str, str] = {}  # the tools of the calls in the background, by call id
        self._unsettled = 0  # the number of the reply's calls that are not settled yet
        self._failed = ""
        self._piece_kinds: tuple[type[Event], ...] = ()  # the kinds of pieces that came in this round
        self._steered = False
        self._last: Status | None = None
        self._ended = False

    def take(self, event: Event) -> bool:
        """Take `event`. Return whether the status may have changed."""
        handler = self._handlers.get(type(event))
        return handler is not None and not self._ended and handler(self, event)

    @property
    def ended(self) -> bool:
        """True once the request has ended, so that the status does not change any more."""
        return self._ended

    @property
    def has_calls(self) -> bool:
        """True while a tool call runs."""
        return bool(self._calls)

    def take_piece(self, kind: type[Event]) -> bool:
        """Take a piece of the model's reply, by the type of its event. Return as `take` does."""
        if kind in self._piece_kinds or kind not in _PIECES or self._ended:
            return False
        self._piece_kinds += (kind,)
        return self._set("streaming", _PIECES[kind])

    def narrate(self, call_id: str, text: str) -> bool:
        """Use `text` for a call, unless it has ended or has a message already. Return whether the call is shown."""
        call, message = self._calls.get(call_id, (None, ""))
        if call is None or message:
            return False
        self._calls[call_id] = (call, text)
        return self._shown is call

    def status(self, specs: Mapping[str, ToolSpec]) -> Status:
        """Return the present status. It does not count as read: `new_status` still returns it."""
        if self._round is not None:
            self._status, self._round = _status_of(*self._round), None
        call = self._shown
        if call is None:
            return self._status
        message = self._calls[call.call_id][1]
        text = sentence(message) if message else call_sentence(call.name, call.arguments, specs.get(call.name))
        return "executing", text

    def new_status(self, specs: Mapping[str, ToolSpec]) -> Status | None:
        """Return the status, or None if it is the one that was returned last. `specs` are the tools by name."""
        status = self.status(specs)
        if status == self._last:
            return None
        self._last = status
        return status

    def forget(self) -> None:
        """Treat the next status as new, because nobody who received the last one still listens."""
        self._last = None

    # ---------------------------------------------------------------------------------------- what happened

    def _set(self, stage: Stage, text: str) -> bool:
        self._shown = None
        self._round = None
        self._status = (stage, text)
        return True

    def _show(self, call: ToolCallRequested | None = None) -> bool:
        """Show the call that waits for a person, or else `call`, or else the newest running call.

        Returns False if there is no such call.
        """
        if self._waiting:
            name = next(reversed(self._waiting.values()))
            return self._set("waiting", f"Waiting for approval: {display_name(name)}...")
        if call is None:
            if not self._calls:
                return False
            call = next(reversed(self._calls.values()))[0]
        self._shown = call
        self._round = None
        return True

    def _on_started(self, _event: RequestStarted) -> bool:
        return self._set("submitted", ANALYZING)

    def _on_steering(self, _event: SteeringAdded) -> bool:
        self._steered = True
        return False

    def _on_round(self, event: RoundStarted) -> bool:
        self._round = (event, self._failed, self._steered)
        self._shown = None
        self._calls.clear()
        self._waiting.clear()
        self._piece_kinds = ()
        self._unsettled = 0
        self._failed = ""
        self._steered = False
        return True

    def _on_piece(self, event: Event) -> bool:
        return self.take_piece(type(event))

    def _on_model_retry(self, _event: ModelRetrying) -> bool:
        self._piece_kinds = ()
        return self._set("processing", ASKING_AGAIN)

    def _on_reply(self, event: ModelResponded) -> bool:
        self._unsettled = len(event.message.tool_calls)
        if self._unsettled or not self._background:
            return False
        return self._set("waiting", f"Waiting for {display_name(next(reversed(self._background.values())))}...")

    def _on_approval(self, event: ApprovalRequested) -> bool:
        self._waiting[event.call_id] = event.name
        return self._show()

    def _on_decision(self, event: ApprovalDecided | ToolCallResumed) -> bool:
        return self._waiting.pop(event.call_id, None) is not None and self._show()

    def _on_requested(self, event: ToolCallRequested) -> bool:
        self._waiting.pop(event.call_id, None)
        if event.background:
            self._background[event.call_id] = event.name
            if self._status[0] == "waiting" and not self._unsettled:
                return False  # The call is requested again for a request that waits for it.
        self._calls[event.call_id] = (event, "")
        return self._show()

    def _on_paused(self, event: ToolCallPaused) -> bool:
        call = self._calls.get(event.call_id)
        if call is None:
            return False
        self._waiting[event.call_id] = call[0].name
        return self._show()

    def _on_progress(self, event: ToolCallProgress) -> bool:
        return bool(event.message) and not event.message.isspace() and self._set_message(event.call_id, event.message)

    def _on_retry(self, event: ToolCallRetrying) -> bool:
        return self._set_message(event.call_id, f"Trying {display_name(event.name)} again...")

    def _set_message(self, call_id: str, text: str) -> bool:
        if call_id not in self._calls:
            return False
        call = self._calls[call_id][0]
        self._calls[call_id] = (call, text)
        return self._show(call)

    def _on_completed(self, event: ToolCallCompleted) -> bool:
        return self._settle(event.call_id)

    def _on_failed(self, event: ToolCallFailed) -> bool:
        if event.reason not in _UNASKED:
            self._failed = event.name
        if self._settle(event.call_id):
            return True
        return event.reason not in _UNASKED and self._unsettled == 0 and self._set("processing", _failed(event.name))

    def _settle(self, call_id: str) -> bool:
        """Remove a call that has ended. Return whether a call is shown now.

        Otherwise, the sentence of the ended call stays until the next round.
        """
        self._unsettled = max(self._unsettled - 1, 0)
        self._waiting.pop(call_id, None)
        self._background.pop(call_id, None)
        self._calls.pop(call_id, None)
        if self._shown is not None and self._shown.call_id == call_id:
            self._set("processing", PROCESSING)
        return self._show()

    def _on_end(self, event: RequestEnding) -> bool:
        self._ended = True
        self._calls.clear()
        self._waiting.clear()
        if isinstance(event, RequestCancelled):
            return self._set("idle", "Cancelled")
        why = explain(event)
        return self._set("error", sentence(why)) if why else self._set("complete", "Done")

    _handlers: ClassVar[Mapping[type[Event], Callable[[Any, Any], bool]]] = {
        RequestStarted: _on_started,
        SteeringAdded: _on_steering,
        RoundStarted: _on_round,
        TextDelta: _on_piece,
        ToolArgumentsDelta: _on_piece,
        ModelRetrying: _on_model_retry,
        ModelResponded: _on_reply,
        ApprovalRequested: _on_approval,
        ApprovalDecided: _on_decision,
        ToolCallRequested: _on_requested,
        ToolCallPaused: _on_paused,
        ToolCallResumed: _on_decision,
        ToolCallProgress: _on_progress,
        ToolCallRetrying: _on_retry,
        ToolCallCompleted: _on_completed,
        ToolCallFailed: _on_failed,
        RequestCompleted: _on_end,
        RequestFailed: _on_end,
        RequestCancelled: _on_end,
    }


def events_so_far(state: TurnState) -> list[Event]:
    """Return events that bring a new `StatusFold` to the status of the request: a short form of its history.

    They are made from the state: the calls of the current reply, with their approvals and outcomes, and the outcomes of
    the round before.
    """
    if state.phase is Phase.NEW:
        return []
    events: list[Event] = [RequestStarted(timeout_seconds=math.inf)]
    in_tools = state.phase is Phase.TOOLS
    for each in state.open_calls.values():
        if each.is_background and each.has_ticket:
            events += _events_of(each)
    if state.rounds:
        before = state.rounds[-2].calls if in_tools and len(state.rounds) > 1 else () if in_tools else state.calls
        after = tuple(CallOutcome(name=each.call.name, ok=not _has_failed(each)) for each in before)
        if _has_steering(state):
            events.append(SteeringAdded(text=""))
        events.append(
            RoundStarted(round=state.round, message_count=0, call_outcomes=after, tools_offered=state.tools_offered)
        )
    if in_tools:
        reply = AssistantMessage(tool_calls=tuple(each.call for each in state.calls))
        events.append(ModelResponded(round=state.round, message=reply))
        for each in state.calls:
            events += _events_of(each)
    elif state.is_idle and state.background:
        events.append(ModelResponded(round=state.round, message=AssistantMessage()))
    if state.steering:
        events.append(SteeringAdded(text=""))
    if state.ending is not None:
        events.append(state.ending)
    return events


def _has_steering(state: TurnState) -> bool:
    """Return whether steering has joined the transcript since the newest reply."""
    newest = itertools.takewhile(lambda each: not isinstance(each, AssistantMessage), reversed(state.messages))
    return any(was_steered(each, state.request_id) for each in newest)


def _has_failed(each: CallState) -> bool:
    return isinstance(each.outcome, ToolCallFailed)


def _events_of(each: CallState) -> list[Event]:
    call, events = each.call, list[Event]()
    arguments = each.arguments or {}
    if each.status is CallStatus.WAITING:
        events.append(
            ApprovalRequested(call_id=call.call_id, name=call.name, arguments=arguments, timeout_seconds=math.inf)
        )
    elif each.requested_at is not None:
        events.append(
            ToolCallRequested(
                call_id=call.call_id,
                name=call.name,
                arguments=arguments,
                round=each.round,
                timeout_seconds=math.inf,
                idempotency_key="",
                background=each.is_background,
            )
        )
    if each.remaining_seconds is not None:
        events.append(ToolCallPaused(call_id=call.call_id))
    if each.outcome is not None:
        events.append(each.outcome)
    return events
