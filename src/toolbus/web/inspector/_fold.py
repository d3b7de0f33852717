"""The fold over a request's events that the inspector shows: its state, its timeline, its calls, tokens and cost. Pure.

The same events give the same view, whether they come from a bus, from a store or from a recording, and whether they are
read while they happen or later. Everything is bounded, and no text leaves it unmasked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, ClassVar, TypeAlias

import orjson

from ...core.approval import OpenQuestions
from ...core.endings import explain
from ...events import (
    ApprovalDecided,
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
    RequestEnding,
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
from ...messages import Message, Usage
from ._rows import Row, State
from ._shown import shown_arguments, shown_json, shown_text

FEW_ROWS = 400
"""The number of rows of one view; the oldest that have ended are left out beyond it."""
_MAX_ROWS = 2_000
_MAX_MESSAGES = 2_000
_MAX_SUB_REQUESTS = 200
_MAX_NOTES = 50
_PROMPT_CHARS = 300
_LABEL_CHARS = 160
_MAX_SHOWN_CHARS, _LEAST_CHARS = 20_000, 1_000
"""The characters of the arguments of all calls in a view, and the least for each of many."""

ToolFacts: TypeAlias = Callable[[str, str], tuple[bool, str]]
"""A function of a request's id and a tool's name that returns whether the tool is external, and its pool."""


def no_tool(_request_id: str, _name: str) -> tuple[bool, str]:
    """Return the facts of a tool that is not known: see `ToolFacts`."""
    return False, ""


class RequestFold:
    """The state of one request, made by `feed` from its events in order, with those of its sub-requests.

    `messages` is the end of the transcript. `tool_facts` is asked once for each call.
    """

    def __init__(self, request_id: str, tool_facts: ToolFacts = no_tool) -> None:
        self.request_id = request_id
        self.conversation_id = ""
        self.parent: tuple[str, str] = ("", "")
        self.prompt = ""
        self.started_at: float | None = None
        self.seen_at: float | None = None
        self.ended_at: float | None = None
        self.ending: RequestEnding | None = None
        self.rounds = 0
        self.tool_calls = 0
        self.failed_calls = 0
        self.retries = 0
        self.resumptions = 0
        self.is_elsewhere = False
        self.cost: float | None = None
        self.models: list[str] = []
        self.plan: tuple[PlanStep, ...] = ()
        self.compressions: deque[HistoryCompressed] = deque(maxlen=_MAX_NOTES)
        self.messages: deque[Message] = deque(maxlen=_MAX_MESSAGES)
        self.message_count = 0
        self.sub_requests: dict[str, RequestFold] = {}
        self._asked_here = OpenQuestions()
        self._called_here: dict[str, ToolCallRequested] = {}
        self._history_count = 0
        self._usage = Usage()
        self._spent = Spent()
        self._tool_facts = tool_facts
        self._rows: dict[str, Row] = {}
        self._own = Row(key=request_id, kind="request", label=request_id)
        self._owners: dict[str, RequestFold] = {}  # of the requests below this one, by id
        self._is_cancelling = False

    # ------------------------------------------------------------------------------------------------- feeding

    def feed(self, event: Event) -> None:
        """Take the next event of the request, or of a request below it. Events of others are ignored."""
        if event.request_id == self.request_id:
            self.seen_at = event.at if self.seen_at is None else max(self.seen_at, event.at)
            self.conversation_id = self.conversation_id or event.conversation_id
            self._asked_here.feed(event)
            if (take := self._takes.get(type(event))) is not None:
                take(self, event)
            return
        if isinstance(event, RequestStarted) and event.request_id not in self._owners:
            self._adopt(event)
        if (below := self._owners.get(event.request_id)) is not None:
            below.feed(event)

    def _adopt(self, event: RequestStarted) -> None:
        above = self if event.parent_request_id == self.request_id else self._owners.get(event.parent_request_id)
        if above is None or len(self._owners) >= _MAX_SUB_REQUESTS:
            return
        below = RequestFold(event.request_id, self._tool_facts)
        above.sub_requests[event.request_id] = below
        self._owners[event.request_id] = below

    def _started(self, event: RequestStarted) -> None:
        self.started_at = event.at
        self.prompt = shown_text(event.prompt, _PROMPT_CHARS)
        self.parent = (event.parent_request_id, event.parent_call_id)
        self._history_count = event.history_count
        self._own.label = self.prompt or self.request_id
        self._own.begin("request", event.at)

    def _resumed(self, event: RequestResumed) -> None:
        self.resumptions = event.resumption
        self.is_elsewhere = False
        self._own.note = f"resumed {event.resumption} times" if event.resumption > 1 else "resumed once"
        for row in self._rows.values():
            if row.kind == "model" and row.is_open:
                row.end(event.at, "failed", "interrupted by a restart")

    def _taken_over(self, _event: RequestTakenOver) -> None:
        self.is_elsewhere = True

    def _round(self, event: RoundStarted) -> None:
        self.rounds = max(self.rounds, event.round + 1)
        row = self._row(f"{self.request_id}/model/{event.round}", "model", f"model, round {event.round + 1}")
        row.note = "" if event.tools_offered else "last answer, without tools"
        row.begin("model", event.at)

    def _responded(self, event: ModelResponded) -> None:
        self.rounds = max(self.rounds, event.round + 1)
        self._usage += event.usage
        self._add_cost(event.cost)
        name = self._model(event)
        key = f"{self.request_id}/model/{event.round}"
        row = self._rows.get(key) or self._row(key, "model", f"model, round {event.round + 1}")
        calls = ", ".join(each.name for each in event.message.tool_calls)
        row.detail = shown_text(event.message.text or (f"calls {calls}" if calls else ""), _LABEL_CHARS)
        said = [
            name,
            f"{event.usage.input_tokens:,} + {event.usage.output_tokens:,} tokens" if event.usage != Usage() else "",
        ]
        row.end(event.at, "failed" if event.message.interrupted else "ok", ", ".join(each for each in said if each))

    def _model(self, event: ModelResponded | ModelRetrying | HistoryCompressed) -> str:
        name = f"{event.vendor}:{event.model}" if event.model else event.vendor
        if name and name not in self.models and len(self.models) < _MAX_NOTES:
            self.models.append(name)
        return name

    def _retrying(self, event: ModelRetrying) -> None:
        self.retries += 1
        self._usage += event.usage
        self._add_cost(event.cost or None)
        if event.usage != Usage():
            self._model(event)
        row = self._rows.get(f"{self.request_id}/model/{event.round}")
        if row is not None:
            row.begin("retry", event.at)
            row.note = f"asked again after {event.reason}"
            row.begin("model", event.at + event.delay_seconds)

    def _asked(self, event: ApprovalRequested) -> None:
        row = self._call_row(event.call_id, event.name, event.arguments)
        row.state, row.note = "waiting", "waits for a decision"
        row.begin("person", event.at)

    def _decided(self, event: ApprovalDecided) -> None:
        row = self._rows.get(self._key(event.call_id))
        if row is not None:
            row.pause(event.at)
            by = f" by {shown_text(event.by, 60)}" if event.by else ""
            how = "approved" if event.approved else "denied"
            edited = " with other arguments" if event.arguments is not None else ""
            row.state, row.note = "running", f"{how}{by}{edited}"
            if event.arguments is not None:
                row.detail = _line_of(event.arguments)

    def _requested(self, event: ToolCallRequested) -> None:
        self._called_here[event.call_id] = event
        row = self._call_row(event.call_id, event.name, event.arguments)
        is_external, row.pool = self._tool_facts(self.request_id, event.name)
        if event.resumed or event.attempt > 1:
            row.note = "requested again after a restart" if event.resumed else f"delivery {event.attempt}"
        row.state = "running"
        row.begin("external" if is_external else "tool", event.at)

    def _tool_started(self, event: ToolCallStarted) -> None:
        if row := self._open_row(event.call_id):
            last = row.segments[-1]
            if last.kind == "tool" and event.attempt == 1:
                last.kind = "queued"
            row.begin("tool", event.at)

    def _progress(self, event: ToolCallProgress) -> None:
        if row := self._open_row(event.call_id):
            share = "" if event.done is None else f"{event.done:g}"
            if share and event.total is not None:
                share += f" of {event.total:g}"
            row.note = f"{shown_text(event.message, 80)} {share}".strip()

    def _tool_retrying(self, event: ToolCallRetrying) -> None:
        self.retries += 1
        row = self._rows.get(self._key(event.call_id))
        if row is not None:
            row.note = f"attempt {event.attempt} failed: {shown_text(event.error, 80)}"
            row.begin("retry", event.at)

    def _paused(self, event: ToolCallPaused) -> None:
        if row := self._open_row(event.call_id):
            row.state = "waiting"
            row.begin("person", event.at)

    def _call_resumed(self, event: ToolCallResumed) -> None:
        if row := self._open_row(event.call_id):
            row.state = "running"
            row.begin("tool", event.at)

    def _completed(self, event: ToolCallCompleted) -> None:
        row = self._settle(event.call_id, event.name, event.spent)
        row.ran(event.duration_seconds, event.at)
        row.end(event.at, "ok", row.note)
        row.detail = row.detail or shown_text(event.content, _LABEL_CHARS)

    def _call_failed(self, event: ToolCallFailed) -> None:
        row = self._settle(event.call_id, event.name, event.spent)
        self.failed_calls += 1
        row.ran(event.duration_seconds, event.at)
        if not row.segments:
            row.begin("tool", event.at)
        state: State = "cancelled" if event.reason in ("cancelled", "denied") else "failed"
        row.end(event.at, state, f"{event.reason}: {shown_text(event.error, _LABEL_CHARS)}")

    def _settle(self, call_id: str, name: str, spent: Spent | None) -> Row:
        self._called_here.pop(call_id, None)
        if spent is not None:
            self._spent += spent
        return self._rows.get(self._key(call_id)) or self._row(self._key(call_id), "call", name, call_id)

    def _cancelling(self, _event: CancelRequested) -> None:
        self._is_cancelling = True

    def _planned(self, event: PlanChanged) -> None:
        self.plan = event.steps

    def _appended(self, event: MessageAppended) -> None:
        self.messages.append(event.message)
        self.message_count += 1

    def _compressed(self, event: HistoryCompressed) -> None:
        self.compressions.append(event)
        self._model(event)
        self._usage += event.usage
        self._add_cost(event.cost)

    def _ended(self, event: RequestEnding) -> None:
        self.ending, self.ended_at = event, event.at
        if event.cost:  # of the whole request
            self.cost, self._spent = event.cost, Spent()
        for row in self._rows.values():
            if row.is_open or row.state in ("running", "waiting"):
                has_failed = row.kind == "model" and isinstance(event, RequestFailed)
                row.end(event.at, "failed" if has_failed else "cancelled")
        state: State = "ok" if event.outcome == "completed" else event.outcome
        self._own.end(event.at, state, shown_text(event.reason, _LABEL_CHARS))

    def _add_cost(self, cost: float | None) -> None:
        if cost is not None:
            self.cost = cost if self.cost is None else self.cost + cost

    def _key(self, call_id: str) -> str:
        return f"{self.request_id}/call/{call_id}"

    def _open_row(self, call_id: str) -> Row | None:
        row = self._rows.get(self._key(call_id))
        return row if row is not None and row.is_open else None

    def _call_row(self, call_id: str, name: str, arguments: dict[str, Any]) -> Row:
        key = self._key(call_id)
        row = self._rows.get(key) or self._row(key, "call", name, call_id)
        row.detail = _line_of(arguments)
        return row

    def _row(self, key: str, kind: Any, label: str, call_id: str = "") -> Row:
        self.tool_calls += kind == "call"
        row = self._rows[key] = Row(key=key, kind=kind, label=shown_text(label, 80), call_id=call_id)
        if len(self._rows) > _MAX_ROWS:
            # One of the oldest rows that has ended, if there is one among the few that are looked at.
            oldest = islice(self._rows.items(), _MAX_NOTES)
            del self._rows[next((each for each, row in oldest if not row.is_open), next(iter(self._rows)))]
        return row

    # ------------------------------------------------------------------------------------------------- showing

    @property
    def has_ended(self) -> bool:
        """True once the request's ending was fed."""
        return self.ending is not None

    @property
    def questions(self) -> dict[tuple[str, str], ApprovalRequested]:
        """The open questions to people, by request and call, with those of the requests below."""
        if self.ending is not None:
            return {}
        found = {(each.request_id, each.call_id): each for each in self._asked_here}
        # A store has the questions of a sub-request only with the call that made it. Its own events take precedence.
        found = {key: each for key, each in found.items() if key[0] not in self._owners}
        for below in self.sub_requests.values():
            found |= below.questions
        return found

    @property
    def calls(self) -> dict[tuple[str, str], ToolCallRequested]:
        """The open calls, by request and call, with those of the requests below."""
        if self.ending is not None:
            return {}
        found = {(self.request_id, call_id): each for call_id, each in self._called_here.items()}
        for below in self.sub_requests.values():
            found |= below.calls
        return found

    @property
    def state(self) -> str:
        """The state as one word: "running", "waiting", "elsewhere", or the ending as stores name it."""
        if self.ending is not None:
            return self.ending.outcome
        if self.is_elsewhere:
            return "elsewhere"
        return "waiting" if self.questions and set(self.calls) <= set(self.paused_calls()) else "running"

    def paused_calls(self) -> list[tuple[str, str]]:
        """Return the open calls that continue only after a person has decided, also in the requests below."""
        paused = [(self.request_id, row.call_id) for row in self._rows.values() if row.state == "waiting"]
        for below in self.sub_requests.values():
            paused += below.paused_calls()
        return paused

    @property
    def doing(self) -> str:
        """A sentence for people on what happens now, or why the request has ended."""
        if self.ending is not None:
            return explain(self.ending)
        if self._is_cancelling:
            return "is being cancelled"
        if self.is_elsewhere:
            return "continues in another process"
        if self.questions:
            names = sorted({each.name for each in self.questions.values()})
            return f"waits for a decision: {', '.join(names)}"
        if names := sorted({each.name for each in self.calls.values()}):
            return f"runs {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
        return "asks the model" if self.rounds else "begins"

    @property
    def usage(self) -> Usage:
        """The tokens so far, including those of sub-requests whose calls have ended."""
        ending = self.ending
        return ending.usage if ending is not None and ending.usage != Usage() else self._usage + self._spent.usage

    def summary(self) -> dict[str, Any]:
        """Return the request as a row of the list."""
        usage = self.usage
        costs = [each for each in (self.cost, self._spent.cost or None) if each is not None]
        return {
            "request_id": self.request_id,
            "conversation_id": self.conversation_id,
            "prompt": self.prompt,
            "state": self.state,
            "doing": shown_text(self.doing, 300),
            "started_at": self.started_at if self.started_at is not None else self.seen_at,
            "ended_at": self.ended_at,
            "rounds": self.rounds,
            "tool_calls": self.tool_calls,
            "failed_calls": self.failed_calls,
            "retries": self.retries,
            "resumptions": self.resumptions,
            "sub_requests": len(self._owners),
            "questions": len(self.questions),
            "models": list(self.models),
            "tokens": {
                "input": usage.input_tokens,
                "output": usage.output_tokens,
                "cached": usage.cached_tokens,
                "reasoning": usage.reasoning_tokens,
            },
            "cost": sum(costs) if costs else None,
        }

    def view(self) -> dict[str, Any]:
        """Return all that the page shows of the request, except messages and events."""
        rows = self.rows_from(0)
        omitted = max(0, len(rows) - FEW_ROWS)
        if omitted:  # the request's own row, and the newest
            rows = [rows[0], *rows[omitted + 1 :]]
        ending, calls = self.ending, list(self.calls.values())[:_MAX_NOTES]
        max_chars = max(_MAX_SHOWN_CHARS // (len(calls) + len(self.questions) or 1), _LEAST_CHARS)
        return {
            **self.summary(),
            "reason": "" if ending is None else shown_text(ending.reason, 500),
            "error": shown_text(ending.error) if isinstance(ending, RequestFailed) else "",
            "output": shown_json(ending.output) if isinstance(ending, RequestCompleted) else None,
            "history_count": self._history_count,
            "message_count": self.message_count,
            "rows": rows,
            "rows_omitted": omitted,
            "plan": [{"text": shown_text(each.text, 300), "status": each.status} for each in self.plan],
            "approvals": [_question(each, max_chars) for each in self.questions.values()],
            "open_calls": [
                {
                    "request_id": each.request_id,
                    "call_id": each.call_id,
                    "name": each.name,
                    "arguments": shown_json(each.arguments, max_chars),
                    "external": self._tool_facts(each.request_id, each.name)[0],
                    "at": each.at,
                }
                for each in calls
            ],
            "compressions": [_compression(each) for each in self.compressions],
        }

    def rows_from(self, depth: int) -> list[dict[str, Any]]:
        """Return the rows of this request, and of those below it, each below the call that has made it."""
        own = self._own.as_json(depth)
        own["state"] = "waiting" if self.ending is None and self.state == "waiting" else own["state"]
        found = [own]
        by_call: dict[str, list[RequestFold]] = {}
        for below in self.sub_requests.values():
            by_call.setdefault(below.parent[1], []).append(below)
        for row in self._rows.values():
            found.append(row.as_json(depth + 1))
            for below in by_call.pop(row.call_id, ()) if row.call_id else ():
                found += below.rows_from(depth + 2)
        for rest in by_call.values():
            for below in rest:
                found += below.rows_from(depth + 1)
        return found

    _takes: ClassVar[dict[type[Event], Callable[[RequestFold, Any], None]]] = {
        ApprovalDecided: _decided,
        ApprovalRequested: _asked,
        CancelRequested: _cancelling,
        HistoryCompressed: _compressed,
        MessageAppended: _appended,
        ModelResponded: _responded,
        ModelRetrying: _retrying,
        PlanChanged: _planned,
        RequestCancelled: _ended,
        RequestCompleted: _ended,
        RequestFailed: _ended,
        RequestResumed: _resumed,
        RequestStarted: _started,
        RequestTakenOver: _taken_over,
        RoundStarted: _round,
        ToolCallCompleted: _completed,
        ToolCallFailed: _call_failed,
        ToolCallPaused: _paused,
        ToolCallProgress: _progress,
        ToolCallRequested: _requested,
        ToolCallResumed: _call_resumed,
        ToolCallRetrying: _tool_retrying,
        ToolCallStarted: _tool_started,
    }


def _line_of(arguments: dict[str, Any]) -> str:
    shown = shown_json(arguments, 2 * _LABEL_CHARS)
    return shown_text(orjson.dumps(shown, default=str).decode(errors="replace"), _LABEL_CHARS)


def _question(asked: ApprovalRequested, max_chars: int) -> dict[str, Any]:
    arguments, is_whole = shown_arguments(asked.arguments, max_chars)
    return {
        "request_id": asked.request_id,
        "call_id": asked.call_id,
        "definition": asked.definition,
        "name": asked.name,
        "arguments": arguments,
        "editable": is_whole,
        "at": asked.at,
        "deadline": asked.at + asked.timeout_seconds,
    }


def _compression(fact: HistoryCompressed) -> dict[str, Any]:
    return {
        "at": fact.at,
        "before_tokens": fact.before_tokens,
        "after_tokens": fact.after_tokens,
        "results_shortened": fact.results_shortened,
        "turns_omitted": fact.turns_omitted,
        "summary": shown_text(fact.summary),
    }
