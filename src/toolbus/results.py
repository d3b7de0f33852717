"""From what a handler returned to the exact text that the model reads.

A plain value is itself: text as it is, anything else as JSON; `None` is `{"ok": true}`. A `ToolResult` becomes
`{"ok": true, "message": ..., "data": ...}`. A failure is `{"ok": false, "reason": ..., "error": ...}`.
"""

from __future__ import annotations

import decimal
import pathlib
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
from pydantic import BaseModel

from .errors import UnserialisableResult
from .events import Artifact

__all__ = ["Rendered", "ToolResult", "failure_content", "render"]


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
        return Rendered(_clean(value))
    if value is None:
        return Rendered(_OK)
    if isinstance(value, ToolResult):
        return _render_result(value)
    content, data = _to_json(value)
    return Rendered(content, data)


def _render_result(result: ToolResult) -> Rendered:
    payload: dict[str, Any] = {"ok": True}
    if result.message:
        payload["message"] = _clean(result.message)
    if result.data is not None:
        payload["data"] = result.data
    content, written = _to_json(payload)
    return Rendered(content, written.get("data"), tuple(result.artifacts), tuple(result.affected))


def failure_content(reason: str, error: str) -> str:
    """The tool message of a failed call."""
    return orjson.dumps({"ok": False, "reason": reason, "error": _clean(error)}).decode()


def _to_json(value: Any) -> tuple[str, Any]:
    """The JSON text, and the value with nothing in it but what JSON has."""
    try:
        return orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATACLASS).decode(), value
    except TypeError:
        pass
    try:
        written = orjson.dumps(value, default=_default, option=orjson.OPT_NON_STR_KEYS)
    except TypeError as exc:
        cause = exc.__cause__ or exc
        raise UnserialisableResult(
            f"the tool returned a {type(value).__name__} that cannot be written as JSON: {cause}"
        ) from exc
    return written.decode(), orjson.loads(written)


def _default(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, AbstractSet):
        return sorted(cast("AbstractSet[Any]", value), key=str)
    if isinstance(value, (decimal.Decimal, pathlib.PurePath)):
        return str(value)
    if isinstance(value, str):  # a lone surrogate, or a subclass
        return _clean(str(value))
    raise TypeError(f"it holds a value of type {type(value).__name__}")


def _clean(text: str) -> str:
    """The text without lone surrogates, which no JSON can carry; each becomes a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
