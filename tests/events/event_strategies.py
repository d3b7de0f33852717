"""Hypothesis strategies for events: every type, every field, built from the annotations so that none is forgotten."""

from __future__ import annotations

import types
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from toolbus.events import EVENT_TYPES, Event
from toolbus.records import Record

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)
integers = st.integers(-(2**63), 2**63 - 1)  # what orjson writes
floats = st.floats(allow_nan=False, allow_infinity=False)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | integers | floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
json_objects = st.dictionaries(texts, json_values, max_size=3)


@cache
def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a field with this annotation, as they come back from JSON."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return json_values
    if origin is Annotated:
        return values(arguments[0])
    if origin in {Union, types.UnionType}:
        return st.one_of([values(each) for each in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin in {dict, Mapping}:
        return json_objects
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return instances(annotation)
    return {str: texts, int: integers, float: floats, bool: st.booleans(), types.NoneType: st.none()}[annotation]


@cache
def instances(cls: type[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls, include_extras=True)
    fields = {name: values(hints[name]) for name in cls.__struct_fields__}
    return st.builds(cls, **fields)


def events_of(kind: type[Event]) -> st.SearchStrategy[Event]:
    return instances(kind)


events: st.SearchStrategy[Event] = st.sampled_from(EVENT_TYPES).flatmap(events_of)
