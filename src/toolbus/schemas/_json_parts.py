"""Access to parts of JSON values that were not validated. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote

_MAX_DIGITS = 9


def as_object(value: object) -> Mapping[str, Any]:
    """Return `value` if it is an object, otherwise an empty object."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def as_objects(value: object) -> list[Mapping[str, Any]]:
    """Return the non-empty objects in a list; an empty list for any other value."""
    if not isinstance(value, list):
        return []
    return [found for each in cast("list[object]", value) if (found := as_object(each))]


def way_to(reference: object, root: object) -> list[Any]:
    """Return the values from `root` to the target of a reference such as "#/$defs/name"; the target is the last one.

    Raises `LookupError` for a reference that leads nowhere, or that is not a JSON pointer (RFC 6901) within the root.
    """
    if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
        raise LookupError(reference)
    way: list[Any] = [root]
    for step in reference.split("/")[1:]:
        name, holder = unquote(step).replace("~1", "/").replace("~0", "~"), way[-1]
        is_index = isinstance(holder, list) and name.isdecimal() and len(name) <= _MAX_DIGITS
        way.append(holder[int(name)] if is_index else as_object(cast("object", holder))[name])
    return way
