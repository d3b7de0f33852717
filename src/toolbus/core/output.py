"""Structured output: a type as a tool that the model calls with its answer, and texts read as such an answer. Pure.

The answer is an object; a type that is none (a list, a number) is wrapped as `{"value": ...}`. The model may call
the tool, or write the JSON as its text, to which its provider may hold it: all are validated by pydantic in its mode
for JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, cast

import orjson
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
from ..schemas import checkable, explain, tidy
from .arguments import parse_arguments

__all__ = ["FINAL_ANSWER", "OutputType", "json_in", "repair_prompt"]

T = TypeVar("T")
FINAL_ANSWER = "final_answer"
_OPENING = re.compile(r"```\w*$")


class OutputType(Generic[T]):
    """What a request has to give in the end. Raises `ConfigurationError` for what pydantic has no JSON schema of."""

    __slots__ = ("_adapter", "_checked", "_wrapped", "deliver", "spec")

    def __init__(self, wanted: type[T]) -> None:
        self.deliver: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None  # puts secrets in, where marked
        self._checked: tuple[bytes, T] | None = None  # the newest answer that was found to be valid, and its value
        try:
            form = checkable(wanted)
            self._adapter: TypeAdapter[Any] = TypeAdapter(form)
            schema = self._adapter.json_schema()
            self._wrapped = schema.get("type") != "object"
            if self._wrapped:
                self._adapter = TypeAdapter(create_model("Answer", value=(form, ...)))
                schema = self._adapter.json_schema()
        except (PydanticSchemaGenerationError, PydanticSerializationError, PydanticUserError, SchemaError) as exc:
            raise ConfigurationError(f"output={wanted!r} has no JSON schema: {exc}") from exc
        self.spec = ToolSpec(
            name=FINAL_ANSWER,
            description="Give the final answer. Call this once, alone, when you know it: the arguments are the answer.",
            parameters=tidy(schema),
            validate=self._check,
            control="output",
        )

    def load(self, arguments: Mapping[str, Any]) -> T:
        """The value that the arguments are. Raises `InvalidArguments`, worded for the model.

        Those that were just checked are not validated a second time: a validator may take each answer only once.
        """
        known, self._checked = self._checked, None
        written = self._written(arguments)
        return known[1] if known is not None and known[0] == written else self._validated(written)

    def _written(self, arguments: Mapping[str, Any]) -> bytes:
        """The answer as JSON, with its secrets, so that strict types take what JSON has for them: dates, tuples."""
        return orjson.dumps(arguments if self.deliver is None else self.deliver(arguments), default=dict)

    def _validated(self, written: bytes) -> T:
        try:
            value = self._adapter.validate_json(written)
        except ValidationError as exc:
            raise InvalidArguments(explain(exc)) from None
        except Exception as exc:  # a validator of the application's that raises what pydantic does not translate
            raise InvalidArguments(f"the answer could not be checked: {type(exc).__name__}") from exc
        return cast("T", cast("Any", value).value if self._wrapped and isinstance(value, BaseModel) else value)

    def read(self, text: str) -> dict[str, Any]:
        """The arguments that a model has written as text: JSON, alone or in a fenced block.

        Raises `InvalidArguments`.
        """
        written = json_in(text)
        if not written:
            raise InvalidArguments("the answer is empty")
        if self._wrapped and not written.startswith("{"):
            written = f'{{"value": {written}}}'
        try:
            arguments = parse_arguments(written)
        except InvalidArguments as exc:
            raise InvalidArguments(_of_answer(str(exc))) from None
        if self._wrapped and arguments.keys() != {"value"}:  # an object of a union, say, as it is
            arguments = {"value": arguments}
        self._check(arguments)
        return arguments

    def _check(self, arguments: Mapping[str, Any]) -> None:
        written = self._written(arguments)
        self._checked = written, self._validated(written)


def repair_prompt(problem: object, *, native: bool) -> str:
    """What a model is told of an answer that is not the output. `native` is whether it was held to a schema."""
    way = "Answer again, with the whole JSON and nothing else." if native else f"Call {FINAL_ANSWER} with it."
    return f"This is not the answer that was asked for: {problem}. {way}"


def json_in(text: str) -> str:
    """The last fenced block of `text`, else all of it. In one pass, since models write anything."""
    found: str | None = None
    block: list[str] | None = None
    for line in text.split("\n"):  # nothing else ends a line: JSON's texts may hold the other separators
        bare = line.rstrip()
        if block is None:
            block = [] if _OPENING.search(bare) else None
        elif bare.endswith("```"):  # at a line's end, where no text of JSON's can be
            found, block = "\n".join([*block, bare[:-3]]), None
        else:
            block.append(line)
    return (text if found is None else found).strip()


def _of_answer(error: str) -> str:
    """What is wrong with arguments, said of an answer."""
    for arguments, answer in (
        ("arguments are", "answer is"),
        ("arguments have", "answer has"),
        ("arguments", "answer"),
    ):
        error = error.replace(f"the {arguments}", f"the {answer}", 1)
    return error
