"""The file format: a header, each request's agreement, its facts in order, and a last line that shows it is complete.

The module knows events and JSON, and neither sessions nor the recorder. Every line is one JSON object with a `type`.
Five types belong to the format itself; all others are those of events, in their wire form. The line of a fact also has
the position at which its step began.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import msgspec
import orjson

from ...errors import DecodeError, ToolbusError
from ...events import (
    ApprovalDecided,
    CancelRequested,
    Event,
    RequestEnding,
    RequestStarted,
    SteeringAdded,
    TerminalEvent,
    ToolCallPaused,
    ToolCallResumed,
    decode,
    encode,
)
from ...records import Record, fields_of

FORMAT = "toolbus-recording"
FORMAT_VERSION = 1
"""The version of the format. It rises when an older toolbus could not read a file correctly; new fields and options do
not need a new version."""

Line: TypeAlias = Literal["recording", "request", "changed", "released", "end"]
HEADER: Line = "recording"
AGREED: Line = "request"
CHANGED: Line = "changed"  # the agreement from here on
RELEASED: Line = "released"  # the request has no ending: its host left it, or its session broke
END: Line = "end"

_ASKED = (ApprovalDecided, CancelRequested, SteeringAdded, ToolCallPaused, ToolCallResumed)


class RecordingError(ToolbusError, ValueError):
    """A file that is not a recording, or not a complete one: the text names the file and the line."""

    fault = "caller"
    code = "recording_error"

    def __init__(self, path: Path, line: int, problem: str) -> None:
        super().__init__(f"{path}:{line}: {problem}" if line else f"{path}: {problem}")
        self.path = path
        self.line = line
        self.problem = problem


@dataclass(slots=True)
class RecordedRequest:
    """One request of a recording: its agreement, and its facts in order with the line number of each.

    `steps` has the position at which the step of each fact began; a session writes the facts of one decision in one
    step. `changes` are changes of the agreement: the position of the first fact that was made under it, and the new
    values.
    """

    request_id: str
    agreed: Mapping[str, Any]
    line: int
    facts: list[Event] = field(default_factory=list[Event])
    lines: list[int] = field(default_factory=list[int])
    steps: list[int] = field(default_factory=list[int])
    changes: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list[tuple[int, Mapping[str, Any]]])
    was_released: bool = False

    @property
    def is_whole(self) -> bool:
        """Return whether the request's ending was recorded."""
        return bool(self.facts) and isinstance(self.facts[-1], RequestEnding)

    @property
    def is_sub_request(self) -> bool:
        """Return whether the request is a sub-request: it worked for a call of another request."""
        return bool(self.facts) and bool(cast("RequestStarted", self.facts[0]).parent_request_id)

    def is_own(self, position: int) -> bool:
        """Return whether the session made the fact itself; others publish results of calls, and inputs of people."""
        fact = self.facts[position]
        if isinstance(fact, TerminalEvent):
            return fact.event_id.startswith(f"{self.request_id}_f")  # `core.facts` makes such ids
        return not isinstance(fact, _ASKED)


@dataclass(slots=True)
class Recording:
    """The contents of a file: `version` of the format, and `toolbus`, the version of its writer.

    `damage` is set if the lines are not those that were written, though each of them can be read.
    """

    path: Path
    version: int
    toolbus: str
    requests: list[RecordedRequest]
    signals: list[Event] = field(default_factory=list[Event])
    damage: RecordingError | None = None

    @property
    def facts(self) -> int:
        """The number of facts of all requests."""
        return sum(len(each.facts) for each in self.requests)


def read_recording(path: str | Path, *, partial: bool = False) -> Recording:
    """Return the recording in a file. `partial` accepts one that is cut off at its end, as a killed process leaves it.

    Raises `RecordingError`, which names the line, for a file that is damaged, cut off, or of a format that this version
    does not know; and `OSError`.
    """
    recording = read_lines(Path(path), partial=partial)
    if recording.damage is not None:
        raise recording.damage
    return recording


def read_lines(path: Path, *, partial: bool) -> Recording:
    """Read a recording as `read_recording` does, but return a damaged one, with `damage` set."""
    lines = path.read_bytes().split(b"\n")
    unfinished = bool(lines.pop())  # after the last line break
    if unfinished and not partial:
        raise RecordingError(path, len(lines) + 1, "the file is cut off in this line")
    return _Reader(path, lines).read(partial=partial)


def as_json(value: Any) -> Any:
    """Return a JSON value for a value that JSON does not have. For the option `default` of a JSON writer."""
    if isinstance(value, Record):
        return fields_of(value)
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else str(value)


def line_of(values: Mapping[str, Any]) -> bytes:
    """Return a line of a recording, without its line break."""
    try:
        return orjson.dumps(values, default=as_json, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # An integer has more than 64 bits.
        return json.dumps(values, default=as_json).encode()


def values_of(event: Event) -> dict[str, Any]:
    """Return an event as JSON values."""
    try:
        return orjson.loads(encode(event, default=str))
    except TypeError:  # An integer has more than 64 bits. Only somebody who has edited a file can have put it there.
        return json.loads(msgspec.json.encode(event, enc_hook=str))


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
                raise self._error(number, "there is a line after the last one")
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
            raise self._error(number, f"this is not a recording: its first line has no header of format {FORMAT!r}")
        read = cast("dict[str, Any]", header)
        version = read.get("version")
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise self._error(number, f"the header's version is {version!r}; it has to be a whole number from 1")
        if version > FORMAT_VERSION:
            by = f" (by toolbus {read['toolbus']})" if read.get("toolbus") else ""
            raise self._error(
                number,
                f"the file has format {version}{by}, and this toolbus reads formats up to {FORMAT_VERSION}: "
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
            raise self._error(number, "the line is not a JSON object")
        given = cast("dict[str, Any]", read)
        kind = given.get("type")
        if kind == AGREED:
            self._agree(number, given)
        elif kind == CHANGED:
            request = self._request(number, given)
            request.changes.append((len(request.facts), given))
        elif kind == RELEASED:
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
            here = f"and the file has {len(request.facts)}"
            raise self._error(number, f"{given['facts']} facts of request {request.request_id} were written, {here}")
        request.was_released = True

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
        if request.is_whole or request.was_released:
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
                number, f"the line belongs to request {given.get('request_id')!r}, which no earlier line begins"
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
            if not each.is_whole and not each.was_released:
                raise self._error(
                    last, f"the file is cut off after this line, in the middle of request {each.request_id}"
                )
        if not self._ended:
            raise self._error(last, "the file is cut off after this line: the last one is missing")
        if not self._requests:
            raise self._error(last, "no request was recorded")

    def _error(self, number: int, problem: str) -> RecordingError:
        return RecordingError(self._path, number, problem)
