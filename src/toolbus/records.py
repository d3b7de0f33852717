"""Records: the frozen values that events, messages, replies and results are, with their JSON.

A record is a `msgspec.Struct`. Its fields are set when it is made, by keywords, and cannot be set again:

    later = replace(event, at=12.0)   a copy with other values
    asdict(message)                   its fields, and its `type` or `role`, as JSON values

Records can be compared, copied, pickled and matched (`case ToolCallFailed(reason="timeout")`), and pydantic models,
tools and FastAPI routes may have fields, parameters and annotated results of these types. Making a record checks
nothing, and reading one from JSON checks each field. Knows msgspec, orjson and pydantic's core. Must not know any
record.

Example:
    from toolbus.events import ToolCallStarted
    from toolbus.records import HandlerRecord, Record, asdict, defaults_of, event_json, fields_of, json_bytes, replace

    event: Record = ToolCallStarted(call_id="c1", name="add", event_id="e1", at=0.0)
    print(replace(event, attempt=2).attempt, asdict(event)["type"])  # 2 tool_call_started
    print(fields_of(event)["name"], defaults_of(ToolCallStarted)["attempt"])  # add 1
    print(json_bytes({"a": 1}), event_json([]))  # b'{"a":1}' b'[]'

    class Seat(HandlerRecord, frozen=True):  # Seat(number=3) raises: "there is no field number; the fields are row"
        row: int
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast, get_args

import msgspec
import orjson
from msgspec import field

from ._option_checks import no_option
from .errors import DecodeError

if TYPE_CHECKING:
    from types import TracebackType

    from pydantic import GetCoreSchemaHandler
    from pydantic_core.core_schema import CoreSchema

__all__ = [
    "HandlerRecord",
    "JsonForm",
    "Record",
    "asdict",
    "defaults_of",
    "event_json",
    "field",
    "fields_of",
    "json_bytes",
    "replace",
]

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_make = msgspec.StructMeta.__call__


class Record(msgspec.Struct, frozen=True):
    """The base of all records. A subclass declares its fields as annotations, with defaults where it has any.

    `gc=False` is only for a subclass that holds nothing but text, numbers and such records: the garbage collector does
    not see it, so a cycle through it would never be freed.
    """

    __struct_fields__: ClassVar[tuple[str, ...]]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return pydantic's schema of this record: an instance passes as it is, and an object with its fields."""
        from pydantic_core import core_schema  # noqa: PLC0415 -- pydantic has loaded it when it calls this

        config = cls.__struct_config__
        inside = {
            each.name: core_schema.typed_dict_field(handler.generate_schema(each.type), required=each.required)
            for each in msgspec.structs.fields(cls)
        }
        if config.tag_field is not None:
            tag = core_schema.literal_schema([config.tag])
            inside[config.tag_field] = core_schema.typed_dict_field(tag, required=False)

        def make(values: dict[str, Any]) -> Record:
            return cls(**{name: value for name, value in values.items() if name != config.tag_field})

        made = core_schema.no_info_after_validator_function(make, core_schema.typed_dict_schema(inside))
        return core_schema.json_or_python_schema(
            json_schema=made,
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), made]),
            serialization=core_schema.plain_serializer_function_ser_schema(asdict),
        )


class _NamingFields(msgspec.StructMeta):
    """The class of `HandlerRecord` and of the classes that derive from it: it words the errors."""

    if not TYPE_CHECKING:  # A type checker takes the arguments from the fields.

        def __call__(self, /, *given: Any, **named: Any) -> Any:
            try:
                return _make(self, *given, **named)
            except TypeError as exc:
                if cast("TracebackType", exc.__traceback__).tb_next is not None:
                    raise  # A default factory or a `__post_init__` has raised it.
                names = self.__struct_fields__
                if unknown := named.keys() - set(names):
                    raise TypeError(f"{self.__name__}: {no_option(unknown, names, 'field')}") from None
                problem = "give its fields by name" if given else str(exc)
                raise TypeError(f"{self.__name__}: {problem}; the fields are {', '.join(names)}") from None


class HandlerRecord(Record, metaclass=_NamingFields, frozen=True):
    """The base of the records that handlers return, such as `ToolResult`.

    A wrong argument raises a `TypeError` that names the record and its fields; the errors of msgspec name neither. This
    takes two microseconds for each record, so events and messages, of which each request makes many, are plain records.
    """


def replace(value: T, **changes: Any) -> T:
    """Return a copy of a record, or of a dataclass such as `Limits`, with other values for some fields.

    Raises `TypeError` for a field that it does not have.
    """
    if isinstance(value, Record):
        return msgspec.structs.replace(value, **changes)
    return dataclasses.replace(cast("Any", value), **changes)


def asdict(record: Record) -> dict[str, Any]:
    """Return a record as JSON values: its `type` or `role`, and its fields, with dictionaries for the records in it.

    Tuples stay tuples; sets become lists, bytes base64, dates and decimals text. Raises `TypeError` for any other value
    that has no JSON form.
    """
    return msgspec.to_builtins(record, str_keys=True)


def fields_of(record: Record) -> dict[str, Any]:
    """Return the `type` or `role` and the fields of a record in a new dictionary; the values are as they are in it."""
    config = record.__struct_config__
    fields = msgspec.structs.asdict(record)
    return fields if config.tag_field is None else {config.tag_field: config.tag, **fields}


def defaults_of(kind: type[Record]) -> dict[str, Any]:
    """Return the default of each field of `kind` that has one; for a field whose default is made, a new one."""
    found: dict[str, Any] = {}
    for each in msgspec.structs.fields(kind):
        if each.default is not msgspec.NODEFAULT:
            found[each.name] = each.default
        elif each.default_factory is not msgspec.NODEFAULT:
            found[each.name] = each.default_factory()
    return found


# --------------------------------------------------------------------------------------------------------- JSON


_LONG_BYTES = 2**20


def json_bytes(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """Return a value, with records at any depth, as one line of JSON. A record, or a list of them, is quickest.

    What is written can be read back: values of types that JSON does not have, integers over 64 bits, keys that are not
    text, and more than 254 levels are refused with `TypeError`, which names the path. `default` is called for each
    value of another type, and returns one to write instead. Half of a surrogate pair, which UTF-8 cannot carry, becomes
    a question mark.
    """
    if isinstance(value, (Record, list)):
        # msgspec also writes what cannot be read back. orjson refuses that, and is quick with tuples. The long texts of
        # a record are not written a second time: msgspec itself refuses what is wrong with a text.
        try:
            written = _encode(value)
            is_long = len(written) > _LONG_BYTES and isinstance(value, Record)
            orjson.dumps(value, default=_without_texts if is_long else msgspec.structs.astuple)
            return written
        except (TypeError, ValueError, OverflowError, RecursionError):
            pass

    def plain(each: Any) -> Any:
        return fields_of(each) if isinstance(each, Record) else (default or _refused)(each)

    try:
        return orjson.dumps(value, default=plain)
    except TypeError:
        try:
            value = _without_surrogates(value)
            return orjson.dumps(value, default=plain)
        except RecursionError:
            raise TypeError("a value has more than 254 levels") from None
        except TypeError as exc:
            path = "" if "Recursion" in str(exc) else _path_of_refused(value, plain)
            raise TypeError(f"{exc}, at {path}" if path else str(exc)) from exc


def _without_texts(record: Record) -> tuple[Any, ...]:
    return tuple([each for each in msgspec.structs.astuple(record) if type(each) is not str])


def _path_of_refused(value: Any, plain: Callable[[Any], Any], levels: int = 8) -> str:
    """Return the path of the innermost part that is not JSON, such as `data.prices[1]`; empty for `value` itself.

    It has at most so many `levels`, since the value is written once more for each.
    """
    parts: dict[Any, Any] = {}
    if not levels:
        return ""
    if isinstance(value, dict):
        parts = cast("dict[Any, Any]", value)
    elif isinstance(value, list):
        parts = {f"[{index}]": each for index, each in enumerate(cast("list[Any]", value))}
    for name, each in parts.items():
        try:
            orjson.dumps(each, default=plain)
        except TypeError:
            inside = _path_of_refused(each, plain, levels - 1)
            return f"{name}{'' if inside[:1] in ('', '[') else '.'}{inside}"
    return ""


def _refused(value: Any) -> Any:
    raise TypeError(f"a value of type {type(value).__name__} is not JSON")


def event_json(value: Any) -> bytes:
    """Return the JSON of a value, if an event can hold it. Raises `TypeError` as `json_bytes` does.

    In an event and its journal a value is up to four levels down, so it may have no more than 250 levels itself.
    """
    try:
        return json_bytes([[[[value]]]])[4:-4]
    except TypeError:
        json_bytes(value)  # This raises the error with the path in `value`, unless only its depth is wrong.
        raise


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Record):
        return _without_surrogates(fields_of(value))
    if isinstance(value, dict):
        mapping = cast("dict[Any, Any]", value)
        return {_without_surrogates(key): _without_surrogates(each) for key, each in mapping.items()}
    if isinstance(value, (list, tuple)):
        return [_without_surrogates(each) for each in cast("list[Any]", value)]
    return value


class JsonForm(Generic[T]):
    """The JSON of one type: a record, a union of records, or a list of them. `what` names it in messages.

    Unknown fields are ignored, so that what a newer version wrote can be read. The reader is made when it is first
    used.
    """

    __slots__ = ("_decode", "_kind", "_what")

    def __init__(self, kind: Any, what: str) -> None:
        self._kind = kind
        self._what = what
        self._decode: Callable[[bytes | str], T] | None = None

    def read(self, data: bytes | str) -> T:
        """Return the value that JSON describes. Raises `DecodeError`, which names the wrong field and its path.

        The types are those of JSON: `"yes"` is no boolean, `"3"` no integer, and NaN and 1e999 are no numbers.
        """
        if self._decode is None:
            self._decode = msgspec.json.Decoder(self._kind).decode
        try:
            return self._decode(data)
        except msgspec.ValidationError as exc:
            raise DecodeError(self._problem(exc)) from exc
        except RecursionError as exc:
            raise DecodeError(f"{self._what}: it is nested too deep") from exc
        except ValueError as exc:  # msgspec.DecodeError, and bytes that are not UTF-8
            raise DecodeError(f"{self._what}: not JSON: {_not_json(data, exc)}") from exc

    def read_values(self, value: Any) -> T:
        """Return the value that JSON values (dictionaries and lists) describe. Raises `DecodeError`."""
        try:
            return msgspec.convert(value, self._kind)
        except msgspec.ValidationError as exc:
            raise DecodeError(self._problem(exc)) from exc

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema."""
        return orjson.loads(orjson.dumps(msgspec.json.schema(self._kind)))  # tuples become lists

    def _problem(self, exc: msgspec.ValidationError) -> str:
        """Return what is wrong, with its path: "event.call_outcomes[1].name: Expected str, got int"."""
        said, _, path = str(exc).replace("`", "").partition(" - at $")
        tags = [each.__struct_config__.tag for each in get_args(self._kind) if isinstance(each, msgspec.StructMeta)]
        if tags and said.startswith("Invalid value ") and path.count(".") == 1:
            said += f"; it has to be one of {', '.join(map(repr, tags))}"
        return f"{self._what}{path}: {said}"


def _not_json(data: bytes | str, exc: ValueError) -> str:
    """Return what is wrong with JSON in the words of orjson, which says the line; otherwise in those of `exc`."""
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError as said:
        return str(said)
    return str(exc)
