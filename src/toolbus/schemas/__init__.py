"""From a function's signature and docstring to a JSON schema and a strict validator of its arguments.

Knows pydantic and `inspect`, and nothing of tools, events or the bus. The rules are JSON's: an ISO date is a string
that passes for a `date`, an enum's value passes for the enum, and `"3"` is no integer.
"""

from __future__ import annotations

from ._json_schema import JsonSchema, json_schema_validator
from ._json_text import MAX_VALUES, has_big_number, has_many_values
from ._patterns import cost_of, matcher
from ._shape import TooCostly
from ._signatures import (
    ArgumentBinder,
    binder_for,
    checkable,
    context_parameter,
    describe,
    explain,
    hints_of,
    joined,
    path_of,
    tidy,
)

__all__ = [
    "MAX_VALUES",
    "ArgumentBinder",
    "JsonSchema",
    "TooCostly",
    "binder_for",
    "checkable",
    "context_parameter",
    "cost_of",
    "describe",
    "explain",
    "has_big_number",
    "has_many_values",
    "hints_of",
    "joined",
    "json_schema_validator",
    "matcher",
    "path_of",
    "tidy",
]
