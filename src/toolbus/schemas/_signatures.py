"""The JSON schema and the strict validator of a function's arguments, from its signature and docstring.

Knows pydantic and `inspect`, and nothing of tools, events or the bus. The first invariant of the package has the rules.
"""

from __future__ import annotations

import copy
import enum
import functools
import inspect
import json
import math
import re
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, is_dataclass, make_dataclass
from typing import Annotated, Any, TypeAlias, cast

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from ..errors import ConfigurationError, InvalidArguments
from ..records import Record
from ._typed_cost import TypedCost

Json: TypeAlias = dict[str, Any]


@dataclass(slots=True, frozen=True)
class ArgumentBinder:
    """The arguments of a signature: their JSON schema, and `bind`, which turns arguments into keyword arguments.

    `bind` makes new objects at each call, so no two handlers share any, and raises `InvalidArguments`. `context` is the
    name of the parameter that takes the tool context, or None.
    """

    parameters: Json
    bind: Callable[[Mapping[str, Any]], Json]
    context: str | None


def binder_for(function: Callable[..., Any], is_context: Callable[[Any], bool]) -> ArgumentBinder:
    """Read `function`'s signature; `is_context` recognises the annotation that marks the context parameter.

    The arguments of a partial are not among the parameters. Raises `ConfigurationError` for signatures that a model
    cannot call: `*args`, `**kwargs`, positional-only parameters, a parameter without a type.
    """
    where = getattr(function, "__qualname__", repr(function))
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError) as exc:  # not a callable, or a builtin without a signature
        raise ConfigurationError(f"tool {where}: it has no signature to read: {exc}") from exc
    for name in _passed(function):
        # The signature of a partial shows these as parameters with a default, which a model could replace.
        parameters.pop(name, None)
    hints = {name: hint for name, hint in hints_of(function).items() if name in parameters}
    described = describe(function)[1]
    asked = {
        name: parameter
        for name, parameter in parameters.items()
        if not (_is_named(where, parameter) and is_context(hints.get(name)))
    }
    fields = [_field(where, parameter, hints, described.get(name)) for name, parameter in asked.items()]
    shape = _shape(asked.values(), hints, described)
    known = _known.get(shape)
    if known is None:
        known = _read(where, fields)
        if shape is not None:
            if len(_known) >= _MAX_KNOWN:
                _known.clear()
            _known[shape] = known
    schema, bind = known
    context = context_parameter(where, hints, is_context)
    return ArgumentBinder(parameters=copy.deepcopy(schema), bind=bind, context=context)


_MAX_KNOWN = 256
_known: dict[Hashable, tuple[Json, Callable[[Mapping[str, Any]], Json]]] = {}
"""A cache of schemas and validators by the shape of signatures, because tools may be made again for each request."""


def _shape(
    parameters: Iterable[inspect.Parameter], hints: Mapping[str, Any], described: Mapping[str, str]
) -> Hashable | None:
    """Return a key of all that the schema depends on, or None where that cannot be hashed or compared.

    Types are compared by their `repr` as well, since unions and literals are equal in any order.
    """
    shape: list[Hashable] = []
    for each in parameters:
        hint, default = hints[each.name], each.default
        if default is not each.empty and type(default) not in (str, int, float, bool, type(None)):
            return None
        shown = None if default is each.empty else repr(default)  # `repr`, since 1, 1.0 and True are equal
        shape.append((each.name, hint, repr(hint), described.get(each.name), shown))
    try:
        hash(key := tuple(shape))
    except TypeError:  # such as Annotated[int, Field(gt=0)]
        return None
    return key


def _read(where: str, fields: list[tuple[Any, ...]]) -> tuple[Json, Callable[[Mapping[str, Any]], Json]]:
    model = make_dataclass(
        "Arguments",
        fields,
        kw_only=True,
        namespace={"__pydantic_config__": ConfigDict(extra="forbid", arbitrary_types_allowed=False)},
    )
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(model)
        schema = adapter.json_schema()
    except Exception as exc:
        raise ConfigurationError(without_schema(f"tool {where}: {_undescribed(fields)}", exc)) from exc
    return tidy(schema), _binder(adapter, schema)


def _undescribed(fields: list[tuple[Any, ...]]) -> str:
    for name, annotation, *_ in fields:
        try:
            TypeAdapter(annotation).json_schema()
        except Exception:
            return f"parameter {name!r}"
    return "its signature"


def without_schema(what: str, exc: Exception) -> str:
    """Return the message for a type that pydantic cannot describe: its reason, without its advice on pydantic."""
    reason = re.split(r"[.;] |\n", str(exc), maxsplit=1)[0]
    return f"{what} has no JSON schema: {reason}; use plain types, a dataclass, a TypedDict or a pydantic model"


def never_null(schema: Json) -> frozenset[str]:
    """Return the parameters of a valid schema that may be left out and do not accept null."""
    required = schema.get("required", ())
    parameters: dict[str, Any] = schema.get("properties", {})
    definitions: dict[str, Any] = dict(schema.get("$defs", {}))
    return frozenset(
        name for name, each in parameters.items() if name not in required and not _accepts_null(each, definitions)
    )


def _accepts_null(schema: Any, definitions: dict[str, Any]) -> bool:
    """Return whether null may fit; True where only a validator could say. Answers are kept in `definitions`."""
    if not isinstance(schema, dict):
        return schema is not False
    given = cast("Json", schema)
    kinds: str | list[str] = given.get("type", "null")
    if "null" not in ([kinds] if isinstance(kinds, str) else kinds):
        return False
    if None not in given.get("enum", (None,)) or given.get("const") is not None:
        return False
    name = str(given.get("$ref", "")).removeprefix("#/$defs/")
    if name in definitions:
        found, definitions[name] = definitions[name], False  # A definition that only refers to itself accepts nothing.
        definitions[name] = _accepts_null(found, definitions)
        if not definitions[name]:
            return False
    some = [given[each] for each in ("anyOf", "oneOf") if each in given]
    return all(any(_accepts_null(each, definitions) for each in of) for of in some) and all(
        _accepts_null(each, definitions) for each in given.get("allOf", ())
    )


def without_nulls(arguments: Mapping[str, Any], names: AbstractSet[str]) -> Json:
    """Return arguments without the nulls of these parameters: models write null for a parameter that they leave out."""
    return {name: each for name, each in arguments.items() if each is not None or name not in names}


def _binder(adapter: TypeAdapter[Any], schema: Json) -> Callable[[Mapping[str, Any]], Json]:
    validate_json, optional, cost = adapter.validator.validate_json, never_null(schema), TypedCost(schema)

    def bind(arguments: Mapping[str, Any]) -> Json:
        if optional:
            arguments = without_nulls(arguments, optional)
        try:
            text = orjson.dumps(arguments)
        except TypeError as exc:
            raise InvalidArguments(f"arguments are not JSON: {exc}") from None
        if len(text) > cost.free_bytes:
            cost.check(arguments, len(text))
        try:
            # The call asks for strict mode, since nested models do not inherit it from a configuration.
            bound = validate_json(text, strict=True)
        except ValidationError as exc:
            raise InvalidArguments(explain(exc)) from None
        except Exception as exc:  # A validator in the signature may raise what pydantic does not translate.
            raise InvalidArguments(f"the arguments could not be checked: {type(exc).__name__}") from exc
        return bound.__dict__

    return bind


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the resolved types of `function`'s parameters, without those that a partial passes by name.

    The type of its result is ignored, and may be unresolvable. Types that are local to the function which makes the
    tool are found as well. Raises `ConfigurationError` for a type that cannot be resolved.
    """
    target: Any = inspect.unwrap(_underlying(function))
    noted: dict[str, Any] = getattr(target, "__annotations__", {})
    unused = {"return", *_passed(function)}
    shim = types.SimpleNamespace(__annotations__={name: each for name, each in noted.items() if name not in unused})
    known: dict[str, Any] = getattr(target, "__globals__", {})
    try:
        try:
            return typing.get_type_hints(shim, globalns=known, include_extras=True)
        except NameError:
            return typing.get_type_hints(shim, globalns=known, localns=_locals_outside(), include_extras=True)
    except Exception as exc:  # Mostly it is a NameError, but evaluating an annotation may raise anything.
        where = getattr(function, "__qualname__", repr(function))
        is_missing = isinstance(exc, NameError)
        advice = "; a name that is imported under `if TYPE_CHECKING` does not exist at run time" if is_missing else ""
        raise ConfigurationError(f"tool {where}: a type in its signature cannot be resolved: {exc}{advice}") from exc


def _locals_outside() -> dict[str, Any]:
    """Return the local names of the code that called into toolbus."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __name__.partition(".")[0]:
        frame = frame.f_back
    return {} if frame is None else dict(frame.f_locals)


def context_parameter(where: str, hints: Mapping[str, Any], is_context: Callable[[Any], bool]) -> str | None:
    """Return the name of the parameter that takes the tool context, or None.

    Raises `ConfigurationError` when there are two.
    """
    names = [name for name, hint in hints.items() if is_context(hint)]
    if len(names) > 1:
        raise ConfigurationError(f"tool {where}: {' and '.join(names)} both ask for the ToolContext; one is enough")
    return names[0] if names else None


def _underlying(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with the annotations: that of a partial, or the `__call__` of a callable object."""
    function = _without_partial(function)
    if inspect.isclass(function):
        return function.__init__
    return function if inspect.isroutine(function) else type(function).__call__


def _passed(function: Callable[..., Any]) -> Iterable[str]:
    """Return the names of the arguments that a partial passes by name."""
    return function.keywords if isinstance(function, functools.partial) else ()


def _without_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _is_named(where: str, parameter: inspect.Parameter) -> bool:
    """Return True; raise `ConfigurationError` for a parameter that cannot be passed by name."""
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        is_wrapper = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        advice = "; if a decorator made the function, write @functools.wraps in the decorator" if is_wrapper else ""
        raise ConfigurationError(
            f"tool {where}: parameter {parameter} cannot be filled from a JSON object; "
            f"a tool takes named parameters only{advice}"
        )
    if parameter.name in ("self", "cls"):
        raise ConfigurationError(
            f"tool {where}: {parameter.name!r} is filled in by Python, and not by a model; "
            "make a tool of the bound method: Tool(handler=thing.method)"
        )
    return True


def _field(where: str, parameter: inspect.Parameter, hints: dict[str, Any], text: str | None) -> tuple[Any, ...]:
    name = parameter.name
    if name not in hints:
        raise ConfigurationError(f"tool {where}: parameter {name!r} needs a type annotation")
    annotation = checkable(hints[name])
    default = parameter.default
    if isinstance(default, FieldInfo):  # `x: int = Field(5, gt=0)`
        annotation, default = Annotated[annotation, default], inspect.Parameter.empty
    if text and not _has_description(annotation):
        annotation = Annotated[annotation, Field(description=text)]
    if default is inspect.Parameter.empty:
        return (name, annotation)
    if default is None or (isinstance(default, (str, int, float, bool, enum.Enum)) and _is_json(default)):
        return (name, annotation, field(default=default))
    if isinstance(default, (list, dict, set, BaseModel, Record)) or is_dataclass(default):
        return (name, annotation, field(default_factory=lambda: copy.deepcopy(cast("Any", default))))
    # The default is passed on as the same object, since it may be a sentinel.
    return (name, annotation, field(default_factory=lambda: default))


def checkable(annotation: Any) -> Any:
    """Return `annotation` with three kinds of types replaced, at any depth, that pydantic does not check as intended.

    Pydantic checks the items of an `Iterable` only when they are read, in the handler: the handler gets a list instead.
    It accepts no JSON for an enum's member in a `Literal`: the member's value is accepted. It accepts no JSON for a
    member whose value is not plain JSON, such as a tuple or a date: the form in the schema is accepted.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Iterable or origin is Iterable:
        return list[tuple(map(checkable, arguments)) or Any]  # type: ignore[misc]
    if origin is typing.Literal:
        return _literal(annotation, arguments)
    if isinstance(annotation, enum.EnumMeta):
        return _taking(annotation, cast("Iterable[enum.Enum]", annotation), every=False)
    if origin is Annotated:
        return Annotated[(checkable(arguments[0]), *arguments[1:])]
    inner = tuple(map(checkable, arguments))
    if inner == arguments:
        return annotation
    if origin in (typing.Union, types.UnionType):
        return typing.Union[inner]  # noqa: UP007 -- of a tuple
    return origin[inner] if origin.__module__ in ("builtins", "collections.abc") else annotation


def _literal(annotation: Any, given: tuple[Any, ...]) -> Any:
    members = [each for each in given if isinstance(each, enum.Enum)]
    if not all(type(each.value) in (str, int, bool) for each in members):
        return _taking(annotation, members, every=True)  # Pydantic does not compare such values.
    known: dict[Any, Any] = {(type(each.value), each.value): each for each in members}
    plain = tuple([each.value if isinstance(each, enum.Enum) else each for each in given])
    take = AfterValidator(lambda value: known.get((type(value), value), value))
    return Annotated[typing.Literal[plain], take] if members else annotation


def _taking(annotation: Any, members: Iterable[enum.Enum], *, every: bool) -> Any:
    """Return a type that takes the JSON of each member, or only of those whose value is not plain JSON."""
    known: dict[bytes, enum.Enum] = {}
    for member in members:
        try:
            shown = to_jsonable_python(member.value)
        except ValueError:  # The value has no form in JSON, which pydantic reports when it makes the schema.
            return annotation
        if (every or shown != member.value) and _is_json(shown):
            known.setdefault(orjson.dumps(shown), member)
    take = BeforeValidator(lambda value: known.get(orjson.dumps(value), value))
    return Annotated[annotation, take] if known else annotation


def _is_json(default: Any) -> bool:
    """Return whether a schema can show the default: JSON has no infinities and no NaN."""
    return not isinstance(default, float) or math.isfinite(default)


def _has_description(annotation: Any) -> bool:
    return any(getattr(extra, "description", None) for extra in getattr(annotation, "__metadata__", ()))


_VALUES = frozenset({"default", "const", "enum", "example", "examples", "discriminator"})  # keywords with values


def tidy(schema: Json) -> Json:
    """Return a schema without the titles that pydantic derives from names: they cost tokens and do not help a model."""
    tidy: Json = _without_titles(schema)
    tidy.setdefault("properties", {})
    return tidy


def _without_titles(node: Any, *, is_properties: bool = False) -> Any:
    if isinstance(node, dict):
        return {
            key: value
            if key in _VALUES and not is_properties
            else _without_titles(value, is_properties=key in ("properties", "$defs") and not is_properties)
            for key, value in cast("Json", node).items()
            if is_properties or key != "title" or not isinstance(value, str)
        }
    if isinstance(node, list):
        return [_without_titles(item) for item in cast("list[Any]", node)]
    return node


_MAX_PROBLEMS = 8  # that are named in one error
_MAX_LINE_CHARS = 400  # of one of them
_decode = json.JSONDecoder().raw_decode
_WORDS = {"unexpected_keyword_argument": "There is no such argument"}  # instead of pydantic's words about Python


def explain(error: ValidationError) -> str:
    """Return a validation error as one line for a model: the JSON path and the expectation of up to eight problems."""
    problems = first_problems(error, _MAX_PROBLEMS)
    lines = [f"{path_of(problem['loc'])}: {_WORDS.get(problem['type'], problem['msg'])}" for problem in problems]
    return joined([short_line(each) for each in lines], error.error_count())


def first_problems(error: ValidationError, limit: int) -> list[Json]:
    """Return the first problems of a validation error, each with its `type`, `loc` and `msg`.

    A value may have 100,000 problems: pydantic makes objects of all of them in 200 ms, and JSON in 25 ms.

    Example:
        from pydantic import TypeAdapter, ValidationError

        from toolbus.schemas import first_problems

        try:
            TypeAdapter(list[int]).validate_python(["a", "b"])
        except ValidationError as exc:
            print([problem["loc"] for problem in first_problems(exc, 1)])  # [[0]]
    """
    written = error.json(include_url=False, include_input=False, include_context=False)
    found: list[Json] = []
    end = 0
    while len(found) < min(limit, error.error_count()):
        problem, end = _decode(written, end + 1)  # after the bracket or the comma
        found.append(problem)
    return found


def short_line(message: str) -> str:
    """Return a message, without its middle if it is long because of a key, a pattern or a constant."""
    if len(message) <= _MAX_LINE_CHARS:
        return message
    return f"{message[: _MAX_LINE_CHARS // 2]} ... {message[-_MAX_LINE_CHARS // 2 :]}"


def joined(lines: list[str], total: int) -> str:
    """Return problems as one line, with the number of those that are left out."""
    more = f"; and {total - len(lines)} more" if total > len(lines) else ""
    return "; ".join(lines) + more


def path_of(location: Iterable[int | str]) -> str:
    """Return a location in a value as a JSON path: `$.items[3].name`."""
    path = "$"
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path


# --------------------------------------------------------------------------------------------- docstrings

_SECTION = re.compile(
    r"^\s*(args|arguments|parameters|params|keyword arg(ument)?s|other parameters)\s*:?\s*$", re.IGNORECASE
)
_END = re.compile(
    r"^\s*(returns?|raises?|yields?|examples?|notes?|warnings?|see also|references|attributes)\s*:?\s*$", re.IGNORECASE
)
_GOOGLE = re.compile(r"^(\s+)\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY = re.compile(r"^(\w+)\s*(?::.*)?$")
_SPHINX_FIELDS = (":param", ":type", ":return", ":rtype", ":raise")
_SPHINX = re.compile(r"^\s*:param\s+(?:[^:]+\s+)?(\w+)\s*:\s*(.*)$")


def describe(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the docstring's description, and that of each parameter by name (Google, NumPy or Sphinx style)."""
    function = _without_partial(function)
    text = inspect.getdoc(function if inspect.isclass(function) else _underlying(function))
    if text is None and not inspect.isroutine(function):  # A callable object may have the text in its class.
        text = inspect.getdoc(type(function))
    lines = (text or "").splitlines()
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
        if _SECTION.match(line) or _END.match(line) or line.lstrip().startswith(_SPHINX_FIELDS):
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
