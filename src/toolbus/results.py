"""From what a handler returned to the exact text that the model reads.

A plain value is itself: text as it is, anything else as JSON; `None` is `{"ok": true}`. A `ToolResult` becomes
`{"ok": true, "message": ..., "data": ...}`. A failure is `{"ok": false, "reason": ..., "error": ...}`.
"""

from __future__ import annotations

import decimal
import pathlib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, cast

import orjson
from pydantic import BaseModel

from .errors import UnserialisableResult
from .events import Artifact

__all__ = ["Rendered", "ToolResult", "clean", "failure_content", "render"]


@dataclass(slots=True, kw_only=True)
class ToolResult:
    """What a handler returns when a plain value does not say enough.

    `message` is a sentence for the model, `data` any JSON value; `artifacts` are kept with the request and not sent
    to the model; `affected` names what the tool changed (paths, ids), and is gathered on the `RequestResult`.
    """

    message: str = ""
    data: Any = None
    artifacts: Sequence[Artifact] = field(default_factory=tuple)
    affected: Sequence[str] = field(default_factory=tuple)


@dataclass(slots=True)
class Rendered:
    """A success, ready for `ToolCallCompleted`. `data` holds JSON values only."""

    content: str
    data: Any = None
    artifacts: tuple[Artifact, ...] = ()
    affected: tuple[str, ...] = ()


_OK = '{"ok":true}'


def render(value: Any) -> Rendered:
    """Render what a handler returned. Raises `UnserialisableResult`, which names the type."""
    if isinstance(value, str):
        return Rendered(clean(value))
    if value is None:
        return Rendered(_OK)
    if isinstance(value, ToolResult):
        return _render_result(value)
    content, data = _to_json(value)
    return Rendered(content, data)


def _render_result(result: ToolResult) -> Rendered:
    payload: dict[str, Any] = {"ok": True}
    if result.message:
        payload["message"] = clean(result.message)
    if result.data is not None:
        payload["data"] = result.data
    content, written = _to_json(payload)
    affected = (result.affected,) if isinstance(result.affected, str) else result.affected
    return Rendered(
        content,
        written.get("data"),
        tuple(_clean_artifact(each) for each in result.artifacts),
        tuple(clean(str(each)) for each in affected),  # paths are natural here
    )


def _clean_artifact(artifact: Any) -> Artifact:
    if not isinstance(artifact, Artifact):
        raise UnserialisableResult(
            f"the tool returned an artifact of type {type(artifact).__name__}; use toolbus.events.Artifact"
        )
    if not isinstance(artifact.content, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- untyped callers
        raise UnserialisableResult(
            f"the content of artifact {artifact.name!r} is of type {type(artifact.content).__name__}; "
            "binary content is given as base64 text, with encoding='base64'"
        )
    return Artifact(
        name=clean(artifact.name),
        content=clean(artifact.content),
        media_type=artifact.media_type,
        encoding=artifact.encoding,
    )


def failure_content(reason: str, error: str) -> str:
    """The tool message of a failed call."""
    return orjson.dumps({"ok": False, "reason": reason, "error": clean(error)}).decode()


def clean(text: str) -> str:
    """The text as a plain `str` without lone surrogates, which no JSON can carry; each becomes a question mark."""
    plain = str.__str__(text)  # of a subclass, such as an enum's member, its text
    return plain if plain.isascii() else plain.encode("utf-8", "replace").decode("utf-8")


def _to_json(value: Any) -> tuple[str, Any]:
    """The JSON text, and what it says: fresh objects, which the handler has no hand on."""
    try:
        written = orjson.dumps(value)
    except TypeError:
        written = _write_slowly(value)
    return written.decode(), orjson.loads(written)


def _write_slowly(value: Any) -> bytes:
    try:
        try:
            return orjson.dumps(value, default=_default, option=orjson.OPT_NON_STR_KEYS)
        except TypeError as exc:
            if "surrogate" not in str(exc):
                raise
            return orjson.dumps(_without_surrogates(value), default=_default, option=orjson.OPT_NON_STR_KEYS)
    except (TypeError, RecursionError) as exc:
        cause = exc.__cause__ or exc
        raise UnserialisableResult(
            f"the tool returned a value of type {type(value).__name__} that cannot be written as JSON: {cause}"
        ) from exc


def _default(value: Any) -> Any:
    """One step towards JSON for what orjson does not know."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    if isinstance(value, tuple):  # a named one
        named = cast("Any", value)
        return named._asdict() if hasattr(named, "_asdict") else list(named)
    if isinstance(value, AbstractSet):
        return sorted(cast("AbstractSet[Any]", value), key=str)
    if isinstance(value, (decimal.Decimal, pathlib.PurePath)):
        return str(value)
    raise TypeError(f"it holds a value of type {type(value).__name__}")


def _without_surrogates(value: Any) -> Any:
    """The same value with every text in it cleaned. orjson asks nobody about such a text."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, BaseModel):
        return _without_surrogates(value.model_dump(mode="json"))
    if is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: _without_surrogates(getattr(value, each.name)) for each in fields(value) if each.name[0] != "_"
        }
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return {_without_surrogates(key): _without_surrogates(each) for key, each in pairs}
    if isinstance(value, (list, tuple, AbstractSet)):
        return [_without_surrogates(each) for each in cast("Sequence[Any]", value)]
    if isinstance(value, pathlib.PurePath):  # file names of the platform may hold surrogates
        return clean(str(value))
    return value
