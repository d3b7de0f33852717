"""The file: a header, what was agreed for each request, its facts in order, and a last line that says it is whole.

Knows events and JSON, and neither sessions nor how a recording comes about. Every line is one JSON object with a
`type`; all but five types are those of events, in their wire form; facts have
beside it the place at which their step began.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import orjson

from ...errors import DecodeError, ToolbusError
from ...events import (
    ApprovalDecided,
    CancelRequested,
    Event,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RequestStarted,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallPaused,
    ToolCallResumed,
    decode,
)

__all__ = [
    "AGREED",
    "CHANGED",
    "END",
    "FORMAT",
    "FORMAT_VERSION",
    "HEADER",
    "LEFT",
    "RecordedRequest",
    "Recording",
    "RecordingError",
    "read_lines",
    "read_recording",
]

FORMAT = "toolbus-recording"
FORMAT_VERSION = 1
"""Goes up when an older toolbus could not read a file rightly. New fields and options alone do not need it."""

Line: TypeAlias = Literal["recording", "request", "changed", "left", "end"]
HEADER: Line = "recording"
AGREED: Line = "request"
CHANGED: Line = "changed"  # what is agreed from here on
LEFT: Line = "left"  # its session was left by its host, or broke, and wrote no ending
END: Line = "end"

_ENDINGS = (RequestCompleted, RequestFailed, RequestCancelled)
_ASKED = (ApprovalDecided, CancelRequested, SteeringAdded, ToolCallPaused, ToolCallResumed)
_TERMINAL = (ToolCallCompleted, ToolCallFailed)


class RecordingError(ToolbusError, ValueError):
    """A file that is no recording, or not a whole one: its text names the file and the line."""

    fault = "caller"
    code = "recording"

    def __init__(self, path: Path, line: int, problem: str) -> None:
        super().__init__(f"{path}:{line}: {problem}" if line else f"{path}: {problem}")
        self.path = path
        self.line = line
        self.problem = problem


@dataclass(slots=True)
class RecordedRequest:
    """One request of a recording: what was agreed for it, and its facts in order with the line of each.

    `steps` are the places at which the step of each fact began: what a session decides in one go, it writes in one go.
    `changes` are those of what was agreed: the place of the first fact that was made with it, and what is agreed then.
    """

    request_id: str
    agreed: Mapping[str, Any]
    line: int
    facts: list[Event] = field(default_factory=list[Event])
    lines: list[int] = field(default_factory=list[int])
    steps: list[int] = field(default_factory=list[int])
    changes: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list[tuple[int, Mapping[str, Any]]])
    was_left: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether its ending is there."""
        return bool(self.facts) and isinstance(self.facts[-1], _ENDINGS)

    @property
    def is_below(self) -> bool:
        """Whether it worked for a call of another request."""
        return bool(self.facts) and bool(cast("RequestStarted", self.facts[0]).parent_request_id)

    def is_own(self, place: int) -> bool:
        """Whether the session made the fact itself; else somebody published it: a result, or what a person asked."""
        fact = self.facts[place]
        if isinstance(fact, _TERMINAL):
            return fact.event_id.startswith(f"{self.request_id}_f")  # as `core.facts` names them
        return not isinstance(fact, _ASKED)


@dataclass(slots=True)
class Recording:
    """A file that was read: `version` is that of its format, `toolbus` who wrote it. `lines` are as they were.

    `damage` is set where they are not those that were written, though each of them can be read.
    """

    path: Path
    version: int
    toolbus: str
    requests: list[RecordedRequest]
    lines: list[bytes]
    signals: list[Event] = field(default_factory=list[Event])
    damage: RecordingError | None = None

    @property
    def facts(self) -> int:
        """How many there are, of all requests."""
        return sum(len(each.facts) for each in self.requests)


def read_recording(path: str | Path, *, partial: bool = False) -> Recording:
    """The recording in a file. `partial` takes one that is cut off at its end, as a process that died leaves it.

    Raises `RecordingError`, which names the line, for a file that is damaged, cut off, or of a format that this version
    does not know; and `OSError`.
    """
    recording = read_lines(Path(path), partial=partial)
    if recording.damage is not None:
        raise recording.damage
    return recording


def read_lines(path: Path, *, partial: bool) -> Recording:
    """`read_recording` for who can tell more of a damaged file than that it is damaged."""
    lines = path.read_bytes().split(b"\n")
    unfinished = bool(lines.pop())  # behind the last line break
    if unfinished and not partial:
        raise RecordingError(path, len(lines) + 1, "the file is cut off in this line")
    return _Reader(path, lines).read(partial=partial)


class _Reader:
    def __init__(self, path: Path, lines: list[bytes]) -> None:
        self._path = path
        self._lines = lines
        self._digest = hashlib.sha256()
        self._requests: dict[str, RecordedRequest] = {}
        self._signals: list[Event] = []
        self._ended = False
        self._damage: RecordingError | None = None

    def read(self, *, partial: bool) -> Recording:
        numbered = enumerate(self._lines, 1)
        header = self._header(numbered)
        for number, line in numbered:
            if self._ended:
                raise self._error(number, "there is a line behind the last one")
            self._take(number, line)
            self._digest.update(line + b"\n")
        if not partial:
            self._check_end()
        requests = list(self._requests.values())
        return Recording(
            self._path,
            header["version"],
            header.get("toolbus", ""),
            requests,
            self._lines,
            self._signals,
            self._damage,
        )

    def _header(self, numbered: Iterator[tuple[int, bytes]]) -> Mapping[str, Any]:
        number, line = next(numbered, (1, b""))
        try:
            header: Any = orjson.loads(line)
        except orjson.JSONDecodeError:
            header = None
        if not isinstance(header, dict) or cast("dict[str, Any]", header).get("format") != FORMAT:
            raise self._error(number, f"this is no recording: its first line is no header with the format {FORMAT!r}")
        read = cast("dict[str, Any]", header)
        version = read.get("version")
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise self._error(number, f"the header's version is {version!r}; it is a whole number from 1")
        if version > FORMAT_VERSION:
            by = f" (by toolbus {read['toolbus']})" if read.get("toolbus") else ""
            raise self._error(
                number,
                f"the file is of format {version}{by}, and this toolbus reads formats up to {FORMAT_VERSION}: "
                "use a newer one",
            )
        self._digest.update(line + b"\n")
        return read

    def _take(self, number: int, line: bytes) -> None:
        try:
            read: Any = orjson.loads(line)
        except orjson.JSONDecodeError as exc:
            raise self._error(number, f"the line is not JSON: {exc}") from exc
        if not isinstance(read, dict):
            raise self._error(number, "the line is no JSON object")
        given = cast("dict[str, Any]", read)
        kind = given.get("type")
        if kind == AGREED:
            self._agree(number, given)
        elif kind == CHANGED:
            request = self._request(number, given)
            request.changes.append((len(request.facts), given))
        elif kind == LEFT:
            self._leave(number, given)
        elif kind == END:
            self._end(number, given)
        else:
            self._event(number, line, given)

    def _agree(self, number: int, given: Mapping[str, Any]) -> None:
        request_id = given.get("request_id")
        if not isinstance(request_id, str) or not request_id:
            raise self._error(number, "the request has no request_id")
        if request_id in self._requests:
            raise self._error(number, f"request {request_id} begins a second time")
        self._requests[request_id] = RecordedRequest(request_id, given, number)

    def _leave(self, number: int, given: Mapping[str, Any]) -> None:
        request = self._request(number, given)
        if given.get("facts") not in (None, len(request.facts)):
            here = f"and {len(request.facts)} are here"
            raise self._error(number, f"{given['facts']} facts of request {request.request_id} were written, {here}")
        request.was_left = True

    def _event(self, number: int, line: bytes, given: Mapping[str, Any]) -> None:
        try:
            event = decode(line)
        except DecodeError as exc:
            raise self._error(number, f"the event cannot be read: {exc}") from exc
        if not event.is_fact:
            self._signals.append(event)
            return
        request = self._request(number, given)
        if bool(request.facts) is isinstance(event, RequestStarted):
            what = "begins a second time" if request.facts else "does not begin with request_started"
            raise self._error(number, f"request {request.request_id} {what}")
        if request.is_whole or request.was_left:
            raise self._error(number, f"request {request.request_id} has ended already")
        step = given.get("step")
        if not isinstance(step, int) or isinstance(step, bool):
            raise self._error(number, "the fact has no step")
        request.steps.append(step)
        request.facts.append(event)
        request.lines.append(number)

    def _request(self, number: int, given: Mapping[str, Any]) -> RecordedRequest:
        request = self._requests.get(str(given.get("request_id")))
        if request is None:
            raise self._error(
                number, f"it belongs to request {given.get('request_id')!r}, which no line before it begins"
            )
        return request

    def _end(self, number: int, given: Mapping[str, Any]) -> None:
        self._ended = True
        if given.get("lines") not in (None, number - 1):
            self._damage = self._error(number, f"{number - 1} lines are before it, and {given['lines']} were written")
        elif given.get("sha256") not in (None, self._digest.hexdigest()):
            self._damage = self._error(
                number,
                "a line before it was changed after it was written; to keep a change made on purpose, "
                "take `lines` and `sha256` out of this line",
            )

    def _check_end(self) -> None:
        last = len(self._lines)
        for each in self._requests.values():
            if not each.is_whole and not each.was_left:
                raise self._error(
                    last, f"the file is cut off behind this line, in the middle of request {each.request_id}"
                )
        if not self._ended:
            raise self._error(last, "the file is cut off behind this line: the last one is missing")
        if not self._requests:
            raise self._error(last, "no request was recorded")

    def _error(self, number: int, problem: str) -> RecordingError:
        return RecordingError(self._path, number, problem)
