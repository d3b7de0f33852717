"""The first difference between a recording and its replay: the code that finds it, and a readable error for it."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, cast

from ...events import Event
from .._timeline import event_line
from ._format import RecordedRequest, values_of

_CONTEXT_LINES = 3  # before and after
_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 200
_shown.maxlist = _shown.maxdict = _shown.maxtuple = 8
_MISSING = object()


class ReplayDifference(AssertionError):
    """A replay made a fact that differs from the recorded one, or one too few or too many.

    `path` and `line` locate the recorded fact, `request_id` is its request, `field` is the field that differs
    ("arguments.city"; empty if the facts have different types), `expected` and `got` are the field's two values.
    """

    def __init__(
        self, problem: str, *, path: Path, line: int, request_id: str, field: str = "", expected: Any, got: Any
    ) -> None:
        super().__init__(problem)
        self.path = path
        self.line = line
        self.request_id = request_id
        self.field = field
        self.expected = expected
        self.got = got


def compare(expected: Event, got: Event, ignore: Collection[str]) -> tuple[str, Any, Any] | None:
    """Return the first field that differs, and its two values; None if the facts are equal.

    `ignore` has names of top-level fields, in all events ("at") or in one type ("tool_call_requested.timeout_seconds").
    """
    was, made = values_of(expected), values_of(got)
    for name in was.keys() | made.keys() if was.get("type") != made.get("type") else was:
        if name not in ignore and f"{expected.type}.{name}" not in ignore:
            for path, one, other in _differences(name, was.get(name, _MISSING), made.get(name, _MISSING)):
                return path, one, other
    return None


def difference_at(
    path: Path, request: RecordedRequest, position: int, what: str, *, got: Event | None = None, field: Any = None
) -> ReplayDifference:
    """Return the error for a fact at `position`. The replay made `got` there; `compare` returned `field`."""
    facts, lines = request.facts, request.lines
    expected = facts[position] if position < len(facts) else None
    line = lines[position] if expected is not None else (lines[-1] if lines else request.line)
    name, was, made = field or ("", expected and expected.type, got and got.type)
    report = [f"{path}:{line}: {what} (request {request.request_id}, fact {position})"]
    if name:
        report.append(f"  field     {name}")
    if name or got is not None or expected is None:
        report += [f"  expected  {_value(was)}", f"  got       {_value(made)}"]
    began = facts[0].at if facts else 0.0
    report.append("the recording around it:")
    for at in range(max(0, position - _CONTEXT_LINES), min(len(facts), position + _CONTEXT_LINES + 1)):
        report.append(f"{'>' if at == position else ' '} {_line(lines[at], facts[at], began)}")
    if got is not None:
        report.append(f"the replay made:\n> {_line(0, got, began)}")
    return ReplayDifference(
        "\n".join(report), path=path, line=line, request_id=request.request_id, field=name, expected=was, got=made
    )


def _line(number: int, event: Event, began: float) -> str:
    return f"{number or '':>5} {event.at - began:10.3f}s  {event_line(event)}"


def _value(value: Any) -> str:
    return "nothing" if value is _MISSING or value is None else _shown.repr(value)


def _differences(path: str, was: Any, made: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the innermost paths at which two JSON values differ, with both values."""
    if isinstance(was, dict) and isinstance(made, dict):
        one, other = cast("dict[str, Any]", was), cast("dict[str, Any]", made)
        for name in [*one, *(each for each in other if each not in one)]:
            yield from _differences(f"{path}.{name}", one.get(name, _MISSING), other.get(name, _MISSING))
    elif isinstance(was, list) and isinstance(made, list):
        ours, theirs = cast("list[Any]", was), cast("list[Any]", made)
        for position in range(max(len(ours), len(theirs))):
            one = ours[position] if position < len(ours) else _MISSING
            other = theirs[position] if position < len(theirs) else _MISSING
            yield from _differences(f"{path}[{position}]", one, other)
    elif was is not made and (was != made or isinstance(was, bool) is not isinstance(made, bool)):
        yield path, None if was is _MISSING else was, None if made is _MISSING else made
