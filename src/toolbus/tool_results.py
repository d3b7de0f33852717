"""The rendering of results: from the value that a handler returned to the exact text that the model reads.

Text is sent as it is, any other plain value as JSON; `None` is `{"ok": true}`. A `ToolResult` becomes
`{"ok": true, "message": ..., "affected": <number>, "data": ...}`. A failure is
`{"ok": false, "reason": ..., "error": ...}`. Images and files are sent beside the text. Each secret (pydantic's
`SecretStr`, `SecretBytes`, `Secret`), at any depth, is replaced by a mark; `settled` replaces the marks.

Example:
    from toolbus.tool_results import (
        MAX_RESULT_BYTES, RenderedResult, ToolResult, answer_in, failure_content, render, with_summary
    )

    result: RenderedResult = render(ToolResult(message="Two orders.", data={"orders": [7, 8]}))
    print(result.content)  # {"ok":true,"message":"Two orders.","data":{"orders":[7,8]}}
    print(answer_in(result.content))  # Two orders.
    print(with_summary(render([7, 8]), lambda orders: f"{len(orders)} orders").content)  # 2 orders
    print(MAX_RESULT_BYTES)  # 8388608
    print(failure_content("timeout", "after 30 s"))  # {"ok":false,"reason":"timeout","error":"after 30 s"}
"""

from __future__ import annotations

import contextlib
import decimal
import inspect
import itertools
import math
import pathlib
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Sized
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import orjson
from pydantic import BaseModel, Secret, SecretBytes, SecretStr
from pydantic_core import to_jsonable_python

from ._option_checks import is_url, kind_of, shown
from .errors import UnserializableResult
from .events import Artifact
from .messages import FilePart, ImagePart, Part, TextPart
from .records import HandlerRecord, Record, fields_of, replace
from .schemas import MAX_VALUES, has_many_values

__all__ = [
    "MAX_RESULT_BYTES",
    "RenderedResult",
    "ToolResult",
    "answer_in",
    "clean",
    "failure_content",
    "render",
    "settled",
    "with_summary",
    "without_data",
]


class ToolResult(HandlerRecord, kw_only=True, frozen=True):
    """A result with more than a plain value, for a handler to return.

    `message` is a sentence for the model, `data` any JSON value for it, and `parts` are images and files for it.
    `artifacts` are kept with the request and not sent to the model. `affected` names the things that the tool has
    changed (paths, ids): the model reads only their number, and the `RequestResult` has all names. Any text in it may
    be a `SecretStr`.
    """

    message: str | SecretStr = ""
    data: Any = None
    artifacts: Sequence[Artifact] = ()
    affected: Sequence[str | SecretStr] = ()
    parts: Sequence[ImagePart | FilePart] = ()


class RenderedResult(Record, frozen=True):
    """The result of a successful call, ready for `ToolCallCompleted`. `data` holds only JSON values.

    `message` is that of a `ToolResult`, and is in `content` too; it stays None if the handler returned something else.
    `secrets` holds the values of all marks, in clear, in the order of the marks. It is empty in a published result.
    """

    content: str
    data: Any = None
    artifacts: tuple[Artifact, ...] = ()
    affected: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    message: str | None = None
    secrets: tuple[str | float, ...] = ()


MAX_RESULT_BYTES = 8 * 2**20
"""The most bytes of a result's text or data as JSON. Reading and keeping as many takes some 50 ms."""

_OK = '{"ok":true}'
_ENVELOPE = {"ok", "message", "affected", "data"}
_PARTS = (ImagePart, FilePart)
_ANY_PART = frozenset[type[Any]]({ImagePart, FilePart, TextPart})
_BESIDE = _ANY_PART | {str}
_BINARY = (bytes, bytearray, memoryview)
_SECRETS = (SecretStr, SecretBytes, Secret)


def render(value: Any) -> RenderedResult:
    """Render the value that a handler returned.

    Raises `UnserializableResult`, which names the type, or says that the value has more than `MAX_RESULT_BYTES` or
    100,000 JSON values.
    """
    kind = cast("type[Any]", type(value))
    # A dictionary is the usual value.
    if kind is not dict:
        if isinstance(value, str):
            text = clean(value)
            # The usual result is short, and then this costs nothing.
            return RenderedResult(text if len(text) < MAX_VALUES else _bounded(text))
        if value is None:
            return RenderedResult(_OK)
        if isinstance(value, ToolResult):
            return _render_result(value)
        if kind in _ANY_PART:
            return _render_parts((value,))
        if (kind is list or kind is tuple) and _are_parts(value):
            return _render_parts(value)
        if isinstance(value, _SECRETS):
            found = _Secrets()
            return RenderedResult(found.mark(value), secrets=tuple(found))
    else:
        for each in value.values():
            # A text such as that of a binary file takes too long even to write.
            if type(each) is str and len(each) > MAX_VALUES:
                _bounded(each)
    content, data, secrets = _to_json(value)
    return RenderedResult(content, data, secrets=secrets)


def _render_result(result: ToolResult) -> RenderedResult:
    found = _Secrets()
    if not isinstance(result.message, (str, *_SECRETS)):  # pyright: ignore[reportUnnecessaryIsInstance] -- untyped callers
        raise UnserializableResult(
            f"the message of a ToolResult is of type {type(result.message).__name__}; pass a string, and values as data"
        )
    message = found.text(result.message)
    # A name may also be a path.
    names = _items("affected", result.affected, (str, *_SECRETS))
    affected = tuple([found.text(each if isinstance(each, _SECRETS) else str(each)) for each in names])
    content, written, _ = _to_json(_envelope(message, affected, result.data), found)
    return RenderedResult(
        content,
        written.get("data"),
        tuple([_clean_artifact(each, found) for each in _items("artifacts", result.artifacts, Artifact)]),
        affected,
        tuple([_clean_part(each) for each in _items("parts", result.parts, _PARTS)]),
        message,
        tuple(found),
    )


def _items(field: str, given: object, single: type[Any] | tuple[type[Any], ...]) -> Sequence[Any]:
    """Return the items of a field of a `ToolResult`; a `single` one may stand for a list of it.

    Raises `UnserializableResult` for what is not a list, and for too many items.
    """
    if isinstance(given, single):
        return (given,)
    try:
        found = [*itertools.islice(cast("Any", given), MAX_VALUES + 1)]
    except TypeError:
        raise UnserializableResult(f"{field} of a ToolResult is of type {type(given).__name__}; pass a list") from None
    return _few(found)


# To find the forms that a secret may have in a text takes 0.1 ms, and 0.4 us for each of its bytes.
_MAX_SECRETS = 500
_MAX_SECRET_BYTES = 100_000


class _Secrets(list["str | float"]):
    """The secrets of one result, in the order of their marks."""

    __slots__ = ("_left_bytes", "_seen")

    def __init__(self) -> None:
        super().__init__()
        self._left_bytes = _MAX_SECRET_BYTES
        self._seen = 0

    def see(self) -> None:
        """Count a value that is converted here, and not by orjson. Raises `UnserializableResult` for too many."""
        self._seen += 1
        if self._seen > MAX_VALUES // 2:  # Each takes far longer than one that orjson writes.
            raise _too_many(MAX_VALUES // 2)

    def mark(self, secret: Any) -> str:
        """Add `secret`, and return its mark, which `settled` replaces later. An empty secret stays an empty text."""
        value = secret.get_secret_value()
        if isinstance(value, bytes):
            try:
                value = value.decode()
            except UnicodeDecodeError:
                raise UnserializableResult(
                    "the tool returned a SecretBytes that is not UTF-8 text; return a SecretStr of base64 text"
                ) from None
        if value is None or value == "":
            return ""
        try:
            text = clean(value if isinstance(value, str) else str(value))
        except ValueError:  # Python does not write an integer of more digits.
            raise UnserializableResult(
                "the tool returned a secret integer of over 4,300 digits; return a part"
            ) from None
        is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
        self.append(value if is_number else text)
        self._left_bytes -= len(text.encode())
        if len(self) > _MAX_SECRETS or self._left_bytes < 0:
            raise UnserializableResult(
                f"the tool returned more than {_MAX_SECRETS} secrets, or {_MAX_SECRET_BYTES:,} bytes of them; "
                "return a part of them"
            )
        return _MARK.format(len(self) - 1)

    def text(self, given: Any) -> str:
        """Return a text without lone surrogates, or the mark of a secret."""
        return self.mark(given) if isinstance(given, _SECRETS) else clean(given)


# Characters of the private use area do not occur in a text by chance.
_MARK = "\ue000secret {}\ue001"
_MARKED = re.compile(_MARK.format("([0-9]{1,6})"))


def settled(rendered: RenderedResult, put: Callable[[str | float], str]) -> RenderedResult:
    """Return the result with each secret's mark replaced by `put(value)`, and with empty `secrets`."""
    if not rendered.secrets:
        return rendered
    instead = [put(value) for value in rendered.secrets]

    def of_mark(found: re.Match[str]) -> str:
        number = int(found[1])
        return instead[number] if number < len(instead) else found[0]

    def text(given: str) -> str:
        return _MARKED.sub(of_mark, given) if "\ue000" in given else given

    def of(value: Any) -> Any:
        if isinstance(value, str):
            return text(value)
        if isinstance(value, dict):
            return {text(name): of(each) for name, each in cast("dict[str, Any]", value).items()}
        return [of(each) for each in cast("list[Any]", value)] if isinstance(value, list) else value

    return RenderedResult(
        text(rendered.content),
        of(rendered.data),
        tuple([replace(each, name=text(each.name), content=text(each.content)) for each in rendered.artifacts]),
        tuple([text(each) for each in rendered.affected]),
        rendered.parts,
        None if rendered.message is None else text(rendered.message),
    )


def _envelope(message: str, affected: Sequence[str], data: Any = None) -> dict[str, Any]:
    """Return the fields of a `ToolResult` that the model reads."""
    payload: dict[str, Any] = {"ok": True}
    if message:
        payload["message"] = message
    if affected:
        payload["affected"] = len(affected)
    if data is not None:
        payload["data"] = data
    return payload


def without_data(rendered: RenderedResult) -> RenderedResult:
    """Return the same result with its data left out of the content. Text does not count as data."""
    if rendered.data is None:
        return rendered
    if rendered.message is None:
        return replace(rendered, content=_OK)
    payload = _envelope(rendered.message, rendered.affected)
    return replace(rendered, content=orjson.dumps(payload).decode())


def with_summary(rendered: RenderedResult, summarize: Callable[[Any], str]) -> RenderedResult:
    """Return the same result with a content in which a summary replaces the data, or the whole text of a text result.

    Raises what `summarize` raises, and `TypeError` if it does not return a text.
    """
    has_data = rendered.data is not None
    if not has_data and (rendered.message is not None or rendered.content == _OK):
        return rendered
    text = cast("object", summarize(rendered.data if has_data else rendered.content))
    if not isinstance(text, str):
        raise TypeError(f"it returned {kind_of(text)}; it has to return a text")
    if rendered.message is None:
        return replace(rendered, content=clean(text))
    payload = _envelope(rendered.message, rendered.affected, clean(text))
    return replace(rendered, content=orjson.dumps(payload).decode())


def answer_in(content: str) -> str:
    """Return what people read of the content of a result that is the answer; empty for that of `None`.

    Of a `ToolResult`, this is the message or, without one, the data. Any other content is for people as it is.
    """
    if not content.startswith('{"ok":true'):
        return content
    try:
        payload = orjson.loads(content)
    except orjson.JSONDecodeError:
        return content
    if not payload.keys() <= _ENVELOPE:
        return content
    text = payload.get("message") or payload.get("data", "")
    return text if isinstance(text, str) else orjson.dumps(text).decode()


_ManyT = TypeVar("_ManyT", bound=Sized)

# Characters that JSON writes with a backslash, and those that it writes with six characters.
_ESCAPED = b'"\\\b\t\n\f\r'
_CONTROLS = bytes({*range(0x20)} - {*_ESCAPED})


def _bounded(text: str) -> str:
    """Return `text`. Raises `UnserializableResult` if it has too many bytes as JSON."""
    size = len(text)
    if MAX_RESULT_BYTES // 6 < size <= MAX_RESULT_BYTES:
        raw = text.encode("utf-8", "surrogatepass")
        size = 7 * len(raw) - len(raw.translate(None, _ESCAPED)) - 5 * len(raw.translate(None, _CONTROLS))
    if size > MAX_RESULT_BYTES:
        raise _too_long(size)
    return text


def _too_long(size: int) -> UnserializableResult:
    return UnserializableResult(
        f"the tool returned over {size:,} bytes of JSON; at most {MAX_RESULT_BYTES:,} are kept, "
        "so return a part of them, or the path of a file"
    )


def _few(values: _ManyT) -> _ManyT:
    """Return `values`. Raises `UnserializableResult` if there are too many."""
    if len(values) > MAX_VALUES:
        raise _too_many()
    return values


def _too_many(limit: int = MAX_VALUES) -> UnserializableResult:
    return UnserializableResult(
        f"the tool returned more than {limit:,} JSON values; return a part of them, or the path of a file"
    )


def _are_parts(value: Sequence[Any]) -> bool:
    """Return whether a list consists of texts and at least one part, rather than of data."""
    if not value or type(value[0]) not in _BESIDE or _ANY_PART.isdisjoint(map(type, value)):
        return False
    return _BESIDE.issuperset(map(type, value))


def _render_parts(value: Sequence[str | Part]) -> RenderedResult:
    """Return a result with the texts, line by line, and the images and files beside them."""
    texts: list[str] = []
    parts: list[Part] = []
    for each in _few(value):
        if isinstance(each, (str, TextPart)):
            texts.append(clean(each if isinstance(each, str) else each.text))
        else:
            parts.append(_clean_part(each))
    return RenderedResult(_bounded("\n".join(texts)) if texts else _OK, parts=tuple(parts))


def _clean_part(part: Any) -> Part:
    """Return a clean copy of `part`, which the handler cannot change later."""
    if not isinstance(part, _PARTS):
        raise UnserializableResult(
            f"the tool returned a part of type {type(part).__name__}; use ImagePart or FilePart of toolbus.messages"
        )
    if not isinstance(part.url, str) or not is_url(part.url):  # pyright: ignore[reportUnnecessaryIsInstance] -- untyped callers
        raise UnserializableResult(
            f"the URL of a part is {shown(part.url)}; "
            "use ImagePart.from_bytes or FilePart.from_bytes to make a part of bytes"
        )
    if isinstance(part, ImagePart):
        return ImagePart(url=clean(part.url))
    return FilePart(url=clean(part.url), media_type=clean(part.media_type), name=clean(part.name))


def _clean_artifact(artifact: Any, found: _Secrets) -> Artifact:
    if not isinstance(artifact, Artifact):
        raise UnserializableResult(
            f"the tool returned an artifact of type {type(artifact).__name__}; use toolbus.events.Artifact"
        )
    if not isinstance(artifact.content, (str, *_SECRETS)):  # pyright: ignore[reportUnnecessaryIsInstance] -- untyped callers
        raise UnserializableResult(
            f"the content of artifact {artifact.name!r} is of type {type(artifact.content).__name__}; "
            "binary content is given as base64 text, with encoding='base64'"
        )
    return Artifact(
        name=clean(artifact.name),
        content=found.text(artifact.content),
        media_type=artifact.media_type,
        encoding=artifact.encoding,
    )


def failure_content(reason: str, error: str) -> str:
    """Return the content of the tool message for a failed call."""
    return orjson.dumps({"ok": False, "reason": reason, "error": clean(error)}).decode()


def clean(text: str) -> str:
    """Return a plain `str` without lone surrogates, which JSON cannot carry; each becomes a question mark."""
    # `text` may be of a subclass of `str`, such as an enum's member.
    plain = str.__str__(text)
    return plain if plain.isascii() else plain.encode("utf-8", "replace").decode("utf-8")


def _to_json(value: Any, found: _Secrets | None = None) -> tuple[str, Any, tuple[str | float, ...]]:
    """Return the JSON text, its values as fresh objects, which the handler cannot change, and the secrets in it.

    `found` holds the secrets that were marked before; new ones are added to it.
    """
    secrets: tuple[str | float, ...] = ()
    # As deep as `event_json` allows. That function does not write values of other types, which a tool may return.
    nested = [[[[value]]]]
    try:
        written = orjson.dumps(nested)[4:-4]
    except TypeError:
        found = _Secrets() if found is None else found
        written = _write_slowly(nested, found, type(value).__name__)[4:-4]
        secrets = tuple(found)
    text = written.decode()
    if len(written) > MAX_VALUES:
        _bounded(text)  # In events, this text stands beside its value, with its quotes escaped.
        if has_many_values(written):
            raise _too_many()
    if '"type":"' in text and _holds_part(value, text):
        raise UnserializableResult(
            f"the tool returned a value of type {type(value).__name__} with an image or a file inside; "
            "return it by itself, in a list with texts, or as ToolResult(parts=[...])"
        )
    return text, orjson.loads(written), secrets


def _holds_part(value: Any, written: str) -> bool:
    """Return whether there is a part inside `value`, whose URL the model would read as text, however long it is."""
    if '"type":"image"' not in written and '"type":"file"' not in written:
        return False
    found = False

    def step(each: Any) -> Any:
        nonlocal found
        if isinstance(each, _PARTS):
            found = True
            return None
        if is_dataclass(each) and not isinstance(each, type):
            return {inside.name: getattr(each, inside.name) for inside in fields(each)}
        # Pydantic itself would write a part in a model as an object.
        return dict(each) if isinstance(each, BaseModel) else _default(each, _Secrets())

    # A part that is found before an error still counts.
    with contextlib.suppress(TypeError, RecursionError):
        orjson.dumps(value, default=step, option=orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_NON_STR_KEYS)
    return found


def _write_slowly(value: Any, found: _Secrets, kind: str) -> bytes:
    before = len(found)

    def step(each: Any) -> Any:
        return _default(each, found)

    try:
        try:
            return orjson.dumps(value, default=step, option=orjson.OPT_NON_STR_KEYS)
        except TypeError as exc:
            if "surrogate" not in str(exc):
                raise
            del found[before:]
            return orjson.dumps(_without_surrogates(value, found), default=step, option=orjson.OPT_NON_STR_KEYS)
    except Exception as exc:
        # The code of a model or a mapping may raise anything.
        cause = exc.__cause__ or exc
        if isinstance(cause, UnserializableResult):
            raise cause from None
        advice = next((each for words, each in _ADVICE.items() if words in str(cause)), "")
        raise UnserializableResult(
            f"the tool returned a value of type {kind} that cannot be written as JSON: {cause}{advice}"
        ) from exc


_ADVICE = {
    "64-bit": "; return it as text",
    "Dict key": "; use keys that are text, numbers, dates or members of an enum",
}
"""What to do about errors of orjson, by a part of their text."""


def _default(value: Any, found: _Secrets) -> Any:
    """Convert a value of a type that orjson does not know by one step towards JSON."""
    found.see()
    kind = type(cast("object", value))
    if isinstance(value, _SECRETS):
        return found.mark(value)
    if isinstance(value, BaseModel):
        return _dumped(value, found)
    if isinstance(value, Record):
        return fields_of(value)
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    # orjson refuses named tuples.
    if isinstance(value, (tuple, deque)):
        named = cast("Any", value)
        return named._asdict() if hasattr(named, "_asdict") else list(named)
    if isinstance(value, AbstractSet):
        return sorted(_few(cast("AbstractSet[Any]", value)), key=str)
    if isinstance(value, (decimal.Decimal, pathlib.PurePath)):
        return str(value)
    if isinstance(value, timedelta):
        return to_jsonable_python(value)
    # orjson takes subclasses of `str` and `int` by itself.
    if isinstance(value, float):
        return float.__float__(value)
    # The scalars and arrays of numpy, and the columns of pandas.
    if not issubclass(kind, _BINARY) and callable(getattr(kind, "tolist", None)):
        return value.tolist()
    hint = "return plain values, a dataclass or a pydantic model"
    if issubclass(kind, _BINARY):
        hint = "for an image, return ImagePart.from_bytes(data, media_type)"
    elif inspect.iscoroutine(value):
        hint = "await it, and return its result"
    elif isinstance(value, BaseException):
        hint = "raise it instead"
    raise TypeError(f"it contains a value of type {kind.__name__}; {hint}")


def _dumped(model: BaseModel, found: _Secrets) -> Any:
    """Return a model as JSON values. Pydantic writes asterisks for secrets, so marks are made from the model itself."""
    written = model.model_dump(mode="json")
    return _with_marks(written, model.model_dump(), found) if _has_asterisks(written) else written


def _has_asterisks(written: Any) -> bool:
    if isinstance(written, str):
        return "**********" in written
    if isinstance(written, dict):
        return any(map(_has_asterisks, cast("dict[str, Any]", written).values()))
    return isinstance(written, list) and any(map(_has_asterisks, cast("list[Any]", written)))


def _with_marks(written: Any, held: Any, found: _Secrets) -> Any:
    """Return `written` with marks where `held`, the same data in Python's types, has secrets.

    Asterisks stay where the two cannot be matched.
    """
    if isinstance(held, _SECRETS):
        return found.mark(held) if isinstance(written, str) else written
    if isinstance(written, dict) and isinstance(held, Mapping):
        pairs, values = cast("dict[str, Any]", written).items(), list(cast("Mapping[Any, Any]", held).values())
        if len(pairs) == len(values):
            return {name: _with_marks(each, values[index], found) for index, (name, each) in enumerate(pairs)}
    if isinstance(written, list) and isinstance(held, (list, tuple, AbstractSet)):
        old, values = cast("list[Any]", written), list(cast("Sequence[Any]", held))
        if len(old) == len(values):
            return [_with_marks(each, values[index], found) for index, each in enumerate(old)]
    return cast("Any", written)


def _without_surrogates(value: Any, found: _Secrets) -> Any:
    """Return the same value with every text in it cleaned: orjson does not call `default` for texts."""
    found.see()
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, BaseModel):
        return _without_surrogates(_dumped(value, found), found)
    if isinstance(value, Record):
        return _without_surrogates(fields_of(value), found)
    # A named tuple becomes an object with its field names.
    if issubclass(type(value), tuple) and hasattr(value, "_asdict"):
        return _without_surrogates(value._asdict(), found)
    if is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: _without_surrogates(getattr(value, each.name), found)
            for each in fields(value)
            if each.name[0] != "_"
        }
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return {_without_surrogates(key, found): _without_surrogates(each, found) for key, each in pairs}
    if isinstance(value, (list, tuple, deque, AbstractSet)):
        return [_without_surrogates(each, found) for each in cast("Sequence[Any]", value)]
    # The platform's file names may hold surrogates.
    if isinstance(value, pathlib.PurePath):
        return clean(str(value))
    return value
