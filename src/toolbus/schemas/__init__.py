r"""Schemas of tool arguments: made from a function's signature and docstring, or given as JSON schemas.

Knows pydantic, `inspect` and, as an extra, jsonschema-rs. Must not know tools, events or the bus. `binder_for` makes a
JSON schema and a strict validator from a signature; `json_schema_validator` makes a validator from a JSON schema.

Invariants:

1. The rules are those of JSON: an ISO date in a string is accepted for a `date`, an enum's value for the enum, and
   `"3"` is not an integer. Models write JSON, and a lenient reader would hide their mistakes from them.
2. Nothing in a foreign schema or value may hold the event loop. The cost of a check is bounded before it begins
   (`_cost`, `_patterns`, `_shape`, and `_typed_cost` for Python types), and a check that may exceed `INLINE_NS` is
   refused; the calls of one reply share it (`allowance`). The libraries that check cannot be stopped half way, so one
   hostile server could otherwise stop every request of the process.
3. References point only into the same schema, and nothing is ever fetched. Otherwise a schema could make the process
   call any address, and the bound would not cover what the library reads.
4. Time is measured only for patterns (`_keywords`), whose highest cost says little about the real one. All other checks
   depend only on the schema and the value, because a replayed request has to get the same verdict as the live one.

Example:
    from toolbus.errors import InvalidArguments
    from toolbus.schemas import INLINE_NS, JsonSchema, TooCostly, TypedCost, allowance
    from toolbus.schemas import json_schema_validator, matcher, without_schema
    from toolbus.schemas import as_object, as_objects, way_to, with_whole_characters

    schema = {"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]}
    validate = json_schema_validator(schema)
    try:
        validate({"order": "seven"})
    except InvalidArguments as error:
        print("order" in str(error))  # True
    JsonSchema(schema).check({"order": 7})
    print(matcher("[a-z]+")("abc"))  # True
    print(way_to("#/properties/order", schema)[-1] == {"type": "integer"})  # True
    print(as_object("text"), as_objects([7, {"a": 1}]))  # {} [{'a': 1}]
    print(with_whole_characters(rb'["\ud83d"]').decode())  # ["\ufffd"]
    try:
        allowance.take(INLINE_NS + 1, "too big")
    except TooCostly as error:
        print(error)  # too big
    print(TypedCost({"items": {"type": "integer"}}).cost(["a"]) > 0)  # True
    print("no type; use" in without_schema("f", TypeError("no type. See pydantic.")))  # True
"""

from __future__ import annotations

from ._allowance import INLINE_NS, allowance
from ._json_parts import as_object, as_objects, way_to
from ._json_schema import JsonSchema, json_schema_validator
from ._json_text import MAX_VALUES, has_big_number, has_many_values, with_whole_characters
from ._patterns import cost_of, matcher
from ._shape import TooCostly, depth
from ._signatures import (
    ArgumentBinder,
    binder_for,
    checkable,
    context_parameter,
    describe,
    explain,
    first_problems,
    hints_of,
    joined,
    never_null,
    tidy,
    without_nulls,
    without_schema,
)
from ._typed_cost import TypedCost

__all__ = [
    "INLINE_NS",
    "MAX_VALUES",
    "ArgumentBinder",
    "JsonSchema",
    "TooCostly",
    "TypedCost",
    "allowance",
    "as_object",
    "as_objects",
    "binder_for",
    "checkable",
    "context_parameter",
    "cost_of",
    "depth",
    "describe",
    "explain",
    "first_problems",
    "has_big_number",
    "has_many_values",
    "hints_of",
    "joined",
    "json_schema_validator",
    "matcher",
    "never_null",
    "tidy",
    "way_to",
    "with_whole_characters",
    "without_nulls",
    "without_schema",
]
