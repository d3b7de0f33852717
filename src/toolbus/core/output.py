r"""Structured output: a type as a tool that the model calls with its answer, and a reader of answers in text. Pure.

The answer is a JSON object; a type that is not an object (a list, a number) is wrapped as `{"value": ...}`. The model
may call the tool, or write the JSON as its text, which its provider may enforce. Both are validated by pydantic in its
JSON mode.

Example:
    from toolbus.core.output import FINAL_ANSWER, OutputType, json_in, repair_prompt

    output = OutputType(list[int])
    print(output.load(output.read('{"value": [1, 2]}')))  # [1, 2]
    print(output.spec.name == FINAL_ANSWER)  # True
    print(json_in("Here it is:\n```json\n[1]\n```"))  # [1]
    print("number" in repair_prompt("value: expected a number", native=True))  # True
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Generic, Literal, TypeVar, cast, get_args
from weakref import WeakKeyDictionary, WeakMethod

from pydantic import (
    BaseModel,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic_core import PydanticSerializationError, SchemaError

from ..errors import ConfigurationError, InvalidArguments
from ..protocols import ToolSpec
from ..records import json_bytes
from ..schemas import TypedCost, checkable, explain, tidy, without_schema
from .arguments import parse_arguments

__all__ = ["FINAL_ANSWER", "OutputType", "json_in", "repair_prompt"]

T = TypeVar("T")
FINAL_ANSWER = "final_answer"
_OPENING = re.compile(r"```\w*$")
_BEGIN_OF_JSON = ("", "{", "[", '"')  # or of nothing
_schemas: WeakKeyDictionary[type, dict[str, Any]] = WeakKeyDictionary()  # no schema refers to its class


class OutputType(Generic[T]):
    """The type of a request's answer. Raises `ConfigurationError` for a type without a JSON schema in pydantic.

    Validators get `deps` as `info.context`.
    """

    __slots__ = ("__weakref__", "_adapter", "_checked", "_cost", "_deps", "_extra", "_wrapped", "deliver", "spec")

    def __init__(self, wanted: type[T], deps: Any = None) -> None:
        self._deps = deps
        # `deliver` replaces the marks for secrets in an answer by the secrets, where the request has any.
        self.deliver: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
        self._checked: tuple[bytes, T] | None = None  # the newest valid answer, and its value
        if what := _no_type(wanted):
            raise ConfigurationError(f"output={wanted!r} has no JSON schema: it is {what}")
        try:
            form = checkable(wanted)
            self._adapter: TypeAdapter[Any] = TypeAdapter(form)
            schema = _schema_of(wanted, self._adapter)
            self._wrapped = schema.get("type") != "object"
            if self._wrapped:
                self._adapter = TypeAdapter(create_model("Answer", value=(form, ...)))
                schema = self._adapter.json_schema()
            is_closed = self._wrapped and _is_closed_union(schema) and not any(map(_ignores_unknown, get_args(wanted)))
            self._extra: Literal["forbid"] | None = "forbid" if is_closed else None
        except (PydanticSchemaGenerationError, PydanticSerializationError, PydanticUserError, SchemaError) as exc:
            raise ConfigurationError(without_schema(f"output={wanted!r}", exc)) from exc
        self._cost = TypedCost(schema, is_closed=is_closed)
        # With a strong reference, only the garbage collector would free this object and its spec.
        check: Any = WeakMethod(self._check)
        self.spec = ToolSpec(
            name=FINAL_ANSWER,
            description=(
                "Give the final answer. Call this once, on its own, when you know it: the arguments are the answer."
            ),
            parameters=tidy(schema),
            validate=lambda arguments: check()(arguments),  # noqa: PLW0108 -- nothing else may hold the method
            control="output",
        )

    def load(self, arguments: Mapping[str, Any]) -> T:
        """Return the arguments as a value of the type. Raises `InvalidArguments`, worded for the model.

        Arguments that were just checked are not validated again, since a validator may accept each answer only once.
        """
        known, self._checked = self._checked, None
        written = self._written(arguments)
        return known[1] if known is not None and known[0] == written else self._validated(written, arguments)

    def _written(self, arguments: Mapping[str, Any]) -> bytes:
        """Return the answer as JSON, with its secrets: from JSON, strict types take strings for dates, for example."""
        return json_bytes(arguments if self.deliver is None else self.deliver(arguments), dict)

    def _validated(self, written: bytes, arguments: Mapping[str, Any]) -> T:
        if len(written) > self._cost.free_bytes:
            self._cost.check(arguments, len(written))
        try:
            # The data of a tool's result has the names of fields, and the schema has their aliases.
            value = self._adapter.validate_json(
                written, context=self._deps, by_alias=True, by_name=True, extra=self._extra
            )
        except ValidationError as exc:
            raise InvalidArguments(explain(exc)) from None
        except Exception as exc:  # A validator of the application may raise what pydantic does not translate.
            raise InvalidArguments(f"the answer could not be checked: {type(exc).__name__}") from exc
        return cast("T", cast("Any", value).value if self._wrapped and isinstance(value, BaseModel) else value)

    def read(self, text: str) -> dict[str, Any]:
        """Return the arguments that a model has written as text: JSON, by itself or in a fenced block.

        A text, a choice or a date may lack its quotes. Raises `InvalidArguments`.
        """
        try:
            arguments = self._parsed(json_in(text))
            self._check(arguments)
        except InvalidArguments as problem:
            arguments = {"value": text.strip()}
            if not self._wrapped or arguments["value"][:1] in _BEGIN_OF_JSON:
                raise
            try:
                self._check(arguments)
            except InvalidArguments:
                raise problem from None
        return arguments

    def _parsed(self, written: str) -> dict[str, Any]:
        """Return the arguments in JSON text, which are not checked yet."""
        if not written:
            raise InvalidArguments("the answer is empty")
        if self._wrapped and not written.startswith("{"):
            written = f'{{"value": {written}}}'
        try:
            arguments = parse_arguments(written)
        except InvalidArguments as exc:
            raise InvalidArguments(_about_answer(str(exc))) from None
        if self._wrapped and arguments.keys() != {"value"}:  # for example an object that is a member of a union
            arguments = {"value": arguments}
        return arguments

    def _check(self, arguments: Mapping[str, Any]) -> None:
        written = self._written(arguments)
        self._checked = written, self._validated(written, arguments)


def _no_type(wanted: Any) -> str:
    """Return what a value is that is not a type, and what to pass instead; empty for what may be a type."""
    if isinstance(wanted, str):
        return "a text; pass the type itself"
    if isinstance(wanted, BaseModel) or is_dataclass(cast("type[object]", type(wanted))):
        return f"a value; its type is {type(wanted).__name__}; pass the type itself"
    if isinstance(wanted, (list, tuple)):
        return "several types; pass a union, such as int | str, or list[int] for a list"
    if inspect.isroutine(wanted):
        return "a function; pass a type, and make a tool of the function: @tool(return_direct=True)"
    return ""


def _ignores_unknown(member: Any) -> bool:
    """Return whether a type says by itself that it ignores unknown fields, which its schema does not show."""
    config = getattr(member, "model_config", None) or getattr(member, "__pydantic_config__", {})
    return config.get("extra") == "ignore"


def _is_closed_union(schema: Mapping[str, Any]) -> bool:
    """Return whether an answer is one of several objects, none of which says that it allows unknown fields.

    Such an answer may have no unknown fields. Otherwise a wrong answer for one member fits another member that has no
    required fields, and the model does not read what was wrong.
    """
    members: Sequence[Mapping[str, Any]] = schema["properties"]["value"].get("anyOf", ())
    objects = [each for each in members if each.get("type", "object") == "object"]  # a reference has no type
    return len(objects) > 1 and b'"additionalProperties":true' not in json_bytes(schema)


def _schema_of(wanted: Any, adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """Return the JSON schema of a type. That of a class is made once, since it takes a millisecond of each request."""
    if not isinstance(wanted, type) or type(wanted).__hash__ is None:
        return _opened(adapter.json_schema())
    found = _schemas.get(wanted)
    if found is None:
        found = _schemas[wanted] = _opened(adapter.json_schema())
    return found


def _opened(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with the definition that it refers to at its top, which is how a recursive model begins."""
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    return {**schema["$defs"][name], "$defs": schema["$defs"]} if name else schema


def repair_prompt(problem: object, *, native: bool) -> str:
    """Return the request to the model to repair an answer that is not the output.

    `native` is whether the provider was asked to enforce the schema.
    """
    way = "Answer again, with the whole JSON and nothing else." if native else f"Call {FINAL_ANSWER} with it."
    return f"This is not the answer that was asked for: {problem}. {way}"


def json_in(text: str) -> str:
    """Return the last fenced block of `text`, else all of it. Takes one pass, since a text may be long and odd."""
    found: str | None = None
    block: list[str] | None = None
    for line in text.split("\n"):  # Only "\n" ends a line, since strings in JSON may hold the other separators.
        bare = line.rstrip()
        if block is None:
            block = [] if _OPENING.search(bare) else None
        elif bare.endswith("```"):  # A string in JSON cannot end a line, so this closes the block.
            found, block = "\n".join([*block, bare[:-3]]), None
        else:
            block.append(line)
    return (text if found is None else found).strip()


def _about_answer(error: str) -> str:
    """Return an error about arguments, reworded to be about an answer."""
    for arguments, answer in (
        ("arguments are", "answer is"),
        ("arguments have", "answer has"),
        ("arguments", "answer"),
    ):
        error = error.replace(f"the {arguments}", f"the {answer}")
    return error
