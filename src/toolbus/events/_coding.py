"""Events to and from JSON: one discriminated union, built on first use; orjson writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Union, cast

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from ..errors import DecodeError
from ._base import Event, declared

# Complete because the package imports the modules of facts and signals before this one.
EVENT_TYPES: tuple[type[Event], ...] = tuple(cls for cls in declared if cls is not Event)
FACT_TYPES: tuple[type[Event], ...] = tuple(cls for cls in EVENT_TYPES if cls.is_fact)


@cache
def _adapter() -> TypeAdapter[Any]:
    union: Any = Annotated[Union[EVENT_TYPES], Field(discriminator="type")]  # pyright: ignore  # noqa: UP007, PGH003 -- a tuple made at run time
    return TypeAdapter(union)


def encode(event: Event, *, default: Callable[[Any], Any] | None = None) -> bytes:
    """The event as one line of JSON, without a line break.

    `default` is asked for values that JSON does not have (in `metadata` or `data`), as orjson does.
    Half a surrogate pair, which no JSON can carry, becomes a question mark. Raises `TypeError` where a value stays that
    cannot be written.
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
    """The event that `data` (one JSON object) describes, validated field by field.

    By the rules of JSON: `"yes"` is no boolean, `"3"` no integer, and NaN or 1e999 no number. Unknown fields are
    ignored, so that a newer writer can be read. Raises `DecodeError` with the path and what was expected; also for
    JSON that is nested more than about 200 deep.
    """
    try:
        orjson.loads(data)  # pydantic's own parser takes NaN and makes 1e999 infinite
        return _adapter().validate_json(data, strict=True)
    except orjson.JSONDecodeError as exc:
        raise DecodeError(f"event: not JSON: {exc}") from exc
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "event"
        raise DecodeError(f"{where}: {first['msg']}") from exc


def json_schema() -> dict[str, Any]:
    """The JSON schema of the union of all events, discriminated by `type`."""
    return _adapter().json_schema()
