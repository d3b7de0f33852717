"""From a function's signature and docstring to a JSON schema and a strict validator of its arguments.

Knows pydantic and `inspect`, and nothing of tools, events or the bus. The rules are JSON's: an ISO date is a string
that passes for a `date`, an enum's value passes for the enum, and `"3"` is no integer.
"""

from __future__ import annotations

import copy
import enum
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, TypeAlias

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from .errors import ConfigurationError, InvalidArguments, MissingExtra

__all__ = ["ArgumentBinder", "binder_for", "describe", "json_schema_validator"]

Json: TypeAlias = dict[str, Any]


@dataclass(slots=True, frozen=True)
class ArgumentBinder:
    """What a signature asks for: the JSON schema, and `bind`, which turns arguments into keyword arguments.

    `bind` parses into fresh objects at each call, so no two handlers share any, and raises `InvalidArguments`.
    `context` is the name of the parameter that takes the tool context, or None.
    """

    parameters: Json
    bind: Callable[[Mapping[str, Any]], Json]
    context: str | None


def binder_for(function: Callable[..., Any], is_context: Callable[[Any], bool]) -> ArgumentBinder:
    """Read `function`'s signature; `is_context` tells the annotation that marks the context parameter.

    Raises `ConfigurationError` for signatures that a model cannot call: `*args`, `**kwargs`, positional-only
    parameters, a parameter without a type.
    """
    where = getattr(function, "__qualname__", repr(function))
    try:
        hints = typing.get_type_hints(inspect.unwrap(_underlying(function)), include_extras=True)
    except NameError as exc:
        raise ConfigurationError(f"tool {where}: a type in its signature cannot be resolved: {exc}") from exc
    described = describe(function)[1]
    context: str | None = None
    fields: list[Any] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in hints and is_context(hints[name]):
            context = name
            continue
        fields.append(_field(where, parameter, hints, described.get(name)))
    model = make_dataclass(
        "Arguments",
        fields,
        kw_only=True,
        namespace={"__pydantic_config__": ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=False)},
    )
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(model)
        schema = adapter.json_schema()
    except Exception as exc:
        raise ConfigurationError(f"tool {where}: its signature has no JSON schema: {exc}") from exc
    validate_json = adapter.validator.validate_json

    def bind(arguments: Mapping[str, Any]) -> Json:
        try:
            bound = validate_json(orjson.dumps(arguments))
        except ValidationError as exc:
            raise InvalidArguments(explain(exc)) from None
        except TypeError as exc:
            raise InvalidArguments(f"arguments are not JSON: {exc}") from None
        return bound.__dict__

    return ArgumentBinder(parameters=_tidy(schema), bind=bind, context=context)


def _underlying(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that carries the annotations: of a partial its function, of a callable object its `__call__`."""
    while hasattr(function, "func"):  # functools.partial
        function = function.func  # type: ignore[attr-defined]
    if not (inspect.isfunction(function) or inspect.ismethod(function) or inspect.isbuiltin(function)):
        function = type(function).__call__
    return function


def _field(where: str, parameter: inspect.Parameter, hints: dict[str, Any], text: str | None) -> tuple[Any, ...]:
    name = parameter.name
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise ConfigurationError(
            f"tool {where}: parameter {parameter} cannot be filled from a JSON object; "
            "a tool takes named parameters only"
        )
    if name not in hints:
        hint = " (make a tool of the bound method: Tool(handler=thing.method))" if name == "self" else ""
        raise ConfigurationError(f"tool {where}: parameter {name!r} needs a type annotation{hint}")
    annotation = hints[name]
    if text and not _has_description(annotation):
        annotation = Annotated[annotation, Field(description=text)]
    if parameter.default is inspect.Parameter.empty:
        return (name, annotation)
    default = parameter.default
    if default is None or isinstance(default, (str, int, float, bool, enum.Enum)):
        return (name, annotation, field(default=default))
    return (name, annotation, field(default_factory=lambda: copy.deepcopy(default)))


def _has_description(annotation: Any) -> bool:
    return any(getattr(extra, "description", None) for extra in getattr(annotation, "__metadata__", ()))


def _tidy(schema: Json) -> Json:
    """Drop the titles that pydantic derives from names: they cost tokens and tell a model nothing."""

    def clean(node: Any, *, is_properties: bool = False) -> Any:
        if isinstance(node, dict):
            return {
                key: clean(value, is_properties=key in ("properties", "$defs") and not is_properties)
                for key, value in typing.cast("Json", node).items()
                if is_properties or key != "title" or not isinstance(value, str)
            }
        if isinstance(node, list):
            return [clean(item) for item in typing.cast("list[Any]", node)]
        return node

    tidy: Json = clean(schema)
    tidy.setdefault("properties", {})
    return tidy


def explain(error: ValidationError) -> str:
    """The validation error as one line for a model: JSON path, what was expected; at most eight of them."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    lines = [f"{_path(problem['loc'])}: {problem['msg']}" for problem in problems[:8]]
    if len(problems) > len(lines):
        lines.append(f"and {len(problems) - len(lines)} more")
    return "; ".join(lines)


def _path(location: tuple[int | str, ...]) -> str:
    path = "$"
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path


def json_schema_validator(schema: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], None]:
    """A validator for a JSON schema that somebody already has (extra `schema`: the jsonschema library).

    Raises `MissingExtra` where the library is not installed, `ConfigurationError` for a broken schema.
    """
    try:
        import jsonschema  # pyright: ignore[reportMissingTypeStubs]  # noqa: PLC0415 -- an extra
    except ImportError as exc:
        raise MissingExtra("schema", "jsonschema") from exc
    library: Any = jsonschema  # it has no types
    validator_class = library.validators.validator_for(schema, default=library.Draft202012Validator)
    try:
        validator_class.check_schema(schema)
    except library.SchemaError as exc:
        raise ConfigurationError(f"the tool's schema is no valid JSON schema: {exc.message}") from exc
    validator = validator_class(schema)

    def validate(arguments: Mapping[str, Any]) -> None:
        problems: list[Any] = sorted(validator.iter_errors(arguments), key=_place)
        if problems:
            lines = [f"{_path(tuple(problem.absolute_path))}: {problem.message}" for problem in problems[:8]]
            raise InvalidArguments("; ".join(lines))

    return validate


def _place(problem: Any) -> list[str]:
    return [str(part) for part in problem.absolute_path]


# --------------------------------------------------------------------------------------------- docstrings

_SECTION = re.compile(r"^\s*(args|arguments|parameters|params)\s*:?\s*$", re.IGNORECASE)
_END = re.compile(
    r"^\s*(returns?|raises?|yields?|examples?|notes?|warnings?|see also|references|attributes)\s*:?\s*$", re.IGNORECASE
)
_GOOGLE = re.compile(r"^(\s+)\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY = re.compile(r"^(\w+)\s*(?::.*)?$")
_SPHINX = re.compile(r"^\s*:param\s+(?:[^:]+\s+)?(\w+)\s*:\s*(.*)$")


def describe(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The docstring's description, and the description of each parameter (Google, NumPy or Sphinx style)."""
    lines = (inspect.getdoc(function) or "").splitlines()
    parameters: dict[str, str] = {}
    for index, line in enumerate(lines):
        if _SECTION.match(line):
            _read_section(lines[index + 1 :], parameters)
        elif match := _SPHINX.match(line):
            parameters[match[1]] = " ".join([match[2], *_indented(lines[index + 1 :])]).strip()
    return _summary(lines), parameters


def _summary(lines: list[str]) -> str:
    kept: list[str] = []
    for line in lines:
        if _SECTION.match(line) or _END.match(line) or line.lstrip().startswith((":param", ":return", ":raise")):
            break
        kept.append(line)
    return "\n".join(kept).strip()


def _read_section(lines: list[str], parameters: dict[str, str]) -> None:
    numpy = bool(lines) and set(lines[0].strip()) == {"-"}
    indent: int | None = None
    name = ""
    for line in lines[1 if numpy else 0 :]:
        if not line.strip():
            if not numpy and name:
                name = ""
            continue
        if _END.match(line) or (not numpy and not line.startswith((" ", "\t"))):
            return
        if numpy and not line.startswith(" ") and (match := _NUMPY.match(line)):
            name = match[1]
            parameters[name] = ""
        elif not numpy and (match := _GOOGLE.match(line)) and (indent is None or len(match[1]) == indent):
            indent = len(match[1])
            name = match[2]
            parameters[name] = match[3].strip()
        elif name:
            parameters[name] = f"{parameters[name]} {line.strip()}".strip()


def _indented(lines: list[str]) -> list[str]:
    taken: list[str] = []
    for line in lines:
        if not line.startswith((" ", "\t")) or not line.strip() or line.lstrip().startswith(":"):
            break
        taken.append(line.strip())
    return taken
