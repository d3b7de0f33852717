"""A validator for JSON schemas that somebody else has written (extra `schema`: jsonschema-rs).

Knows that library and the bounds on its cost (`_cost`), and nothing of tools. The package's invariants say why the cost
is bounded before a check. A thread would not help, because the library keeps the interpreter's lock.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import orjson

from ..errors import ConfigurationError, InvalidArguments, MissingExtra
from ._allowance import allowance
from ._cost import Bounds
from ._keywords import Meter, UniqueItems
from ._shape import Shape, TooCostly, depth, shape_of
from ._signatures import joined, path_of, short_line

MAX_SCHEMA_BYTES: Final = 262_144
"""The size of the largest schema that is read: schemas of public MCP servers are under 10 kB."""

_MAX_SCHEMA_DEPTH = 100  # levels of its JSON; the library refuses 128
_MAX_PATTERN_BYTES = 1_048_576  # size of a compiled pattern; `^.{1,1000}$` is just below it
_MAX_LINES = 8
_TOO_COSTLY = "$: it cannot be checked, since it is too big for a schema with this many parts"
_NOT_LINEAR = (
    "is not a regular expression that can be matched in linear time: such an expression has no look-around and no "
    "back-references, and is not too big"
)

_DRAFTS = {
    "json-schema.org/draft-04/schema": "Draft4Validator",
    "json-schema.org/draft-06/schema": "Draft6Validator",
    "json-schema.org/draft-07/schema": "Draft7Validator",
    "json-schema.org/draft/2019-09/schema": "Draft201909Validator",
    "json-schema.org/draft/2020-12/schema": "Draft202012Validator",
}


class JsonSchema:
    """A compiled schema that checks values.

    The draft is the one that `$schema` names, and 2020-12 without a known name. `format` is an annotation, as it is by
    default since 2019-09: it informs the model and is not checked.
    """

    def __init__(self, schema: Mapping[str, Any] | bool) -> None:  # noqa: FBT001 -- a schema may be one
        """Raise `MissingExtra` without the library, `ConfigurationError` for a schema that cannot be checked."""
        try:
            import jsonschema_rs  # noqa: PLC0415 -- an extra
        except ImportError as exc:
            raise MissingExtra("schema", "jsonschema-rs") from exc
        read: Any = orjson.loads(_written(schema))
        cannot = "the schema cannot be checked"
        try:
            self._bounds = Bounds(read)
        except ConfigurationError as exc:
            raise ConfigurationError(f"{cannot}: {exc}") from None
        maker: Any = getattr(jsonschema_rs, _draft(read))
        linear = jsonschema_rs.RegexOptions(size_limit=_MAX_PATTERN_BYTES)
        matches: dict[str, Callable[[str], bool]] = {}
        for each in self._bounds.patterns:
            try:
                matches[each] = maker({"pattern": each}, pattern_options=linear).is_valid
            except jsonschema_rs.ValidationError:
                raise ConfigurationError(f"{cannot}: its pattern {short_line(each)!r} {_NOT_LINEAR}") from None
        self._meter = Meter()
        try:
            self._validator = maker(
                read,
                pattern_options=linear,
                validate_formats=False,
                offline=True,
                mask="the value",  # The value may be long or secret, and the sender knows it.
                keywords={"pattern": self._meter.keyword(matches), "uniqueItems": UniqueItems},
            )
        except jsonschema_rs.ValidationError as exc:
            raise ConfigurationError(f"the schema is not a valid JSON schema: {_fault(exc)}") from None
        except BaseException as exc:
            raise ConfigurationError(f"the schema cannot be used: {_reason(exc)}") from None

    def check(self, value: Any) -> None:
        """Raise `InvalidArguments`, worded for the model, for a value that does not fit.

        Raises `TooCostly`, a subclass, where the check, or the report on what is wrong, might take too long.
        """
        shape = shape_of(value)
        allowance.take(self._bounds.cost(shape), _TOO_COSTLY)
        if problem := self._problem(value if shape.is_plain else _plain(value), shape):
            raise InvalidArguments(problem)

    def _problem(self, value: Any, shape: Shape) -> str:
        problems: list[Any] = []
        self._meter.start(allowance.left_ns / 1e9)
        try:
            fits = self._validator.is_valid(value)
            is_checked = not self._meter.is_over
            if is_checked and not fits and self._can_report(shape):
                problems = sorted(self._validator.iter_errors(value), key=lambda each: [*map(str, each.instance_path)])
        except BaseException as exc:
            return f"$: it cannot be checked: {_reason(exc)}"
        finally:
            if self._bounds.patterns:
                allowance.spend(self._meter.used_seconds())
        if not is_checked:
            raise TooCostly("$: it cannot be checked, since it is too big for the schema's patterns")
        if fits:
            return ""
        if not problems or self._meter.is_over:
            raise TooCostly("$: it does not fit the schema, and is too big to say where")
        lines = [short_line(f"{path_of(each.instance_path)}: {each.message}") for each in problems[:_MAX_LINES]]
        return joined(lines, len(problems))

    def _can_report(self, shape: Shape) -> bool:
        try:
            allowance.take(self._bounds.cost_of_report(shape), _TOO_COSTLY)
        except TooCostly:
            return False
        return True


def json_schema_validator(schema: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], None]:
    """Return a validator of arguments for an existing JSON schema. The validator raises `InvalidArguments`.

    A schema that requires only an object needs no library. The cost of a check is bounded: for arguments that could
    hold the event loop the validator raises `TooCostly`, a subclass of `InvalidArguments`. Raises `MissingExtra` where
    the library is not installed. Raises `ConfigurationError` for a schema that is invalid, refers to something outside
    of itself, or has too many alternatives.
    """
    if {"properties": {}, **schema} == {"type": "object", "properties": {}}:
        return _check_object
    return JsonSchema(schema).check


def _check_object(arguments: Mapping[str, Any]) -> None:
    if not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] -- a model sends anything
        raise InvalidArguments('$: the value is not of type "object"')


def _fault(exc: Any) -> str:
    """Return the text for a schema that is itself invalid, from the library's error about the meta-schema."""
    shown = short_line(repr(exc.instance))
    return short_line(f"{path_of(exc.instance_path)}: {exc.message.replace('the value', shown, 1)}")


def _reason(exc: BaseException) -> str:
    """Return the text for an exception of the library; raise any other one, such as `KeyboardInterrupt`, again.

    A panic in Rust is a `BaseException`, since it is a bug in the library; it must not end a runtime.
    """
    if isinstance(exc, UnicodeError):
        return "there is a lone surrogate in it, which JSON cannot carry"
    if isinstance(exc, Exception) or type(exc).__name__ == "PanicException":
        return short_line(str(exc) or type(exc).__name__)
    raise exc


def _written(schema: Any) -> bytes:
    try:
        text = orjson.dumps(schema, default=dict)
    except (TypeError, ValueError) as exc:  # integers over 64 bits, keys that are not texts, too deep, cyclic
        raise ConfigurationError(f"the schema cannot be written as JSON: {exc}") from None
    if len(text) > MAX_SCHEMA_BYTES:
        raise ConfigurationError(f"the schema has {len(text)} bytes; at most {MAX_SCHEMA_BYTES} are allowed")
    if depth(orjson.loads(text)) > _MAX_SCHEMA_DEPTH:
        raise ConfigurationError(f"the schema is nested deeper than {_MAX_SCHEMA_DEPTH} levels")
    return text


def _draft(schema: Any) -> str:
    """Return the name of the library's class for the draft of a schema; that of the newest if it names no known one."""
    named: object = cast("dict[str, Any]", schema).get("$schema") if isinstance(schema, dict) else None
    known = _DRAFTS.get(named.rstrip("#").partition("://")[2]) if isinstance(named, str) else None
    return known or "Draft202012Validator"


def _plain(value: Any) -> Any:
    """Return a value in the form that the library takes: dictionaries, and floats instead of integers over 64 bits."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in cast("list[Any]", value)]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return float(max(-_MAX_NUMBER, min(value, _MAX_NUMBER)))
    return value


_MAX_NUMBER = int(sys.float_info.max)
