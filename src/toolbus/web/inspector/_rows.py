"""The rows of a request's timeline (a Gantt chart): who or what was busy, and when. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

RowKind: TypeAlias = Literal["request", "model", "call"]
State: TypeAlias = Literal["running", "waiting", "ok", "failed", "stopped", "cancelled"]
SegmentKind: TypeAlias = Literal["request", "model", "tool", "queued", "person", "retry", "external"]
"""The kind of a piece of time: a request as a whole, a model that answers, a handler that runs, a call that waits for
its handler, for a person, for its next attempt, or for an answer from outside."""

_MAX_SEGMENTS = 100
_SHORT_SECONDS = 0.001


@dataclass(slots=True)
class Segment:
    """A piece of time, in seconds since the epoch. `end` is None while it lasts."""

    kind: SegmentKind
    start: float
    end: float | None = None


@dataclass(slots=True)
class Row:
    """A row of the timeline: a request, a round of the model, or a tool call. `note` is text for people.

    `key` is unique among all rows of a view. `pool` is the name of the workers that run the call, or empty.
    """

    key: str
    kind: RowKind
    label: str
    state: State = "running"
    note: str = ""
    detail: str = ""
    pool: str = ""
    call_id: str = ""
    segments: list[Segment] = field(default_factory=list[Segment])

    @property
    def is_open(self) -> bool:
        """True while a segment lasts."""
        return bool(self.segments) and self.segments[-1].end is None

    def begin(self, kind: SegmentKind, at: float) -> None:
        """End the segment that lasts, and begin another one. Beyond 100 segments, the last one continues."""
        if self.is_open and (self.segments[-1].kind == kind or len(self.segments) >= _MAX_SEGMENTS):
            return
        self.pause(at)
        self.segments.append(Segment(kind, at))

    def pause(self, at: float) -> None:
        """End the segment that lasts, if there is one."""
        if self.is_open:
            last = self.segments[-1]
            last.end = max(at, last.start)

    def ran(self, seconds: float, at: float) -> None:
        """Note that a handler ran for the last `seconds` until `at`, if the row waits for an answer from outside.

        A store does not say which tools are external, nor when a handler has begun; only a result says how long it ran.
        """
        if not seconds or not self.is_open or self.segments[-1].kind != "external":
            return
        last = self.segments[-1]
        begun = max(at - seconds, last.start)
        if begun - last.start < _SHORT_SECONDS:
            last.kind = "tool"
        else:
            last.kind = "queued"
            self.begin("tool", begun)

    def end(self, at: float, state: State, note: str = "") -> None:
        self.pause(at)
        self.state = state
        if note:
            self.note = note

    def as_json(self, depth: int) -> dict[str, Any]:
        """Return the row as the page draws it. A segment is `[kind, start, end]`."""
        return {
            "key": self.key,
            "kind": self.kind,
            "label": self.label,
            "state": self.state,
            "note": self.note,
            "detail": self.detail,
            "pool": self.pool,
            "call_id": self.call_id,
            "depth": depth,
            "segments": [[each.kind, each.start, each.end] for each in self.segments],
        }
