"""The encoding of events to JSON by orjson, and their decoding by one discriminated union, built on first use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Union, cast

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from ..errors import DecodeError
from ._base import Event, declared

# The tuple is complete, because the package imports the modules of facts and signals before this one.
EVENT_TYPES: tuple[type[Event], ...] = tuple(cls for cls in declared if cls is not Event)
FACT_TYPES: tuple[type[Event], ...] = tuple(cls for cls in EVENT_TYPES if cls.is_fact)


@cache
def _adapter() -> TypeAdapter[Any]:
    union: Any = Annotated[Union[EVENT_TYPES], Field(discriminator="type")]  # pyright: ignore  # noqa: UP007, PGH003 -- a tuple made at run time
    return TypeAdapter(union)


def encode(event: Event, *, default: Callable[[Any], Any] | None = None) -> bytes:
    """Return the event as one line of JSON, without a line break.

    `default` is called for each value in `metadata` or `data` that has no JSON form, as in orjson, and returns a value
    to write instead. Half of a surrogate pair, which UTF-8 cannot carry, becomes a question mark. Raises `TypeError`
    for a value that still cannot be written.
    """
    try:
        return orjson.dumps(event, default=default)
    except TypeError:
        return orjson.dumps(_without_surrogates(dataclasses.asdict(event)), default=default)


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        mapping = cast("dict[Any, Any]", value)
        return {_without_surrogates(key): _without_surrogates(each) for key, each in mapping.items()}
    if isinstance(value, (list, tuple)):
        return [_without_surrogates(each) for each in cast("list[Any]", value)]
    return value


def decode(data: bytes | str) -> Event:
    """Return the event that `data` (one JSON object) describes, validated field by field.

    The types are those of JSON: `"yes"` is not accepted as a boolean, `"3"` as an integer, or NaN and 1e999 as a
    number. Unknown fields are ignored, so that events of a newer version can be read. Raises `DecodeError` with the
    path of the wrong value and what was expected there; also for JSON that is nested more than about 200 levels deep.
    """
    try:
        # pydantic's own parser would accept NaN and read 1e999 as infinity.
        orjson.loads(data)
        return _adapter().validate_json(data, strict=True)
    except orjson.JSONDecodeError as exc:
        raise DecodeError(f"event: not JSON: {exc}") from exc
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "event"
        raise DecodeError(f"{where}: {first['msg']}") from exc


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of the union of all events, discriminated by `type`."""
    return _adapter().json_schema()
