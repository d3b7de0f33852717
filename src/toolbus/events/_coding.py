"""The encoding of events to JSON by orjson, and their decoding by one union, discriminated by `type`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Union

from ..errors import DecodeError
from ..records import JsonForm, fields_of, json_bytes
from ._base import Event

# The tuple is complete, because the package imports the modules of facts and signals before this one.
EVENT_TYPES: tuple[type[Event], ...] = tuple(Event.__subclasses__())
FACT_TYPES: tuple[type[Event], ...] = tuple(cls for cls in EVENT_TYPES if cls.is_fact)

_form = JsonForm[Event](Union[EVENT_TYPES], "event")  # noqa: UP007 -- a tuple made at run time


def encode(event: Event, *, default: Callable[[Any], Any] | None = None) -> bytes:
    """Return the event as one line of JSON, without a line break.

    `default` is called for each value in `metadata` or `data` that has no JSON form, as in orjson, and returns a value
    to write instead. Half of a surrogate pair, which UTF-8 cannot carry, becomes a question mark. Raises `TypeError`
    for a value that still cannot be written.
    """
    return json_bytes(event, default)


def decode(data: bytes | str) -> Event:
    """Return the event that `data` (one JSON object) describes, validated field by field.

    The types are those of JSON: `"yes"` is not accepted as a boolean, `"3"` as an integer, or NaN and 1e999 as a
    number. Unknown fields are ignored, so that events of a newer version can be read. Raises `DecodeError` with the
    path of the wrong value and what was expected there; also for JSON that is nested hundreds of levels deep.
    """
    return _form.read(data)


def problem_in(event: Event, *, is_kept: bool = True) -> str:
    """Return what is wrong with an event that anybody may have made, with its path; an empty text if it can be used.

    Making an event checks nothing. One that `is_kept` in a journal has only values of JSON; any other one may have
    other values in its `data` and its `metadata`, and in those of the questions in it.
    """
    free = {} if is_kept else {"data": None, "metadata": None, "pending_approvals": ()}
    try:
        decode(json_bytes({**fields_of(event), **free}))
    except TypeError as exc:
        return f"it is not JSON: {exc}"
    except DecodeError as exc:
        return str(exc)
    return ""


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of the union of all events, discriminated by `type`."""
    return _form.schema()
