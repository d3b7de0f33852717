"""The masking of secrets in an event as JSON: found by name and by form, and replaced alike everywhere. Pure.

A masked recording can still be replayed, because a text is replaced in the same way wherever it occurs: in the model's
arguments, in the call's, in the transcript. Unlike `redacted`, this module cuts and leaves out nothing.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

import orjson

from ._redaction import MASK, is_secret, is_secret_name, masked

Mask: TypeAlias = Callable[[str], str]
"""Returns a text without its secrets; the same result for the same text."""

_IDS = frozenset({
    "type", "role", "event_id", "request_id", "conversation_id", "parent_id", "parent_request_id", "parent_call_id",
    "call_id", "provider_call_id", "message_id", "idempotency_key", "vendor", "model", "definition", "media_type",
    "finish_reason", "tools", "limits", "prices", "output_schema", "granted", "url",
})  # fmt: skip
_GIVEN = frozenset({"arguments", "data", "output", "metadata"})  # the application chooses the names in these fields
_NO_IDS = frozenset[str]()
_CALL_ID = re.compile(r"[0-9a-f]{17,40}_\d+_\d+")  # one that the model has written, as an argument of `read_result`
_MAX_PARSED_CHARS = 10_000_000  # A longer text is masked as text, not as JSON


def hide(line: Mapping[str, Any], mask: Mask = masked) -> dict[str, Any]:
    """Return an event, or another line of a recording, without its secrets.

    Ids, tools, limits, images and files stay as they are.
    """
    return {name: value if name in _IDS else _hidden(value, mask, _ids_in(name, _IDS)) for name, value in line.items()}


def _ids_in(name: str, ids: frozenset[str]) -> frozenset[str]:
    """Return the names of ids below a field of this name."""
    return _NO_IDS if name in _GIVEN else ids


def _hidden(value: Any, mask: Mask, ids: frozenset[str]) -> Any:
    if isinstance(value, str):
        return value if _CALL_ID.fullmatch(value) else _text(value, mask)
    if isinstance(value, Mapping):
        return _object(cast("Mapping[str, Any]", value), mask, ids)
    if isinstance(value, (list, tuple)):
        return [_hidden(each, mask, ids) for each in cast("list[Any]", value)]
    return value


def _object(value: Mapping[str, Any], mask: Mask, ids: frozenset[str]) -> dict[str, Any]:
    binary = value.get("encoding") == "base64"
    return {
        name: each
        if name in ids or (binary and name == "content")
        else MASK
        if is_secret(name, each)
        else _hidden(each, mask, _ids_in(name, ids))
        for name, each in value.items()
    }


def _text(text: str, mask: Mask) -> str:
    """Mask a text. JSON is masked value by value, so that a call's arguments are equal as text and as an object."""
    if text.lstrip()[:1] in ("{", "[") and len(text) <= _MAX_PARSED_CHARS:
        # Otherwise the text is not JSON, or it is nested too deeply to be read or written.
        with contextlib.suppress(orjson.JSONDecodeError, TypeError, RecursionError):
            read: Any = orjson.loads(text)
            hidden = _hidden(read, mask, _NO_IDS)
            return _unread(text, mask) if hidden == read else orjson.dumps(hidden).decode()
    return mask(text)


def _unread(text: str, mask: Mask) -> str:
    """Return JSON in whose values nothing is to be hidden. Of a name that an object repeats, only the last was read."""
    names = set[str]()
    has_repeated = False

    def members(pairs: list[tuple[str, object]]) -> None:
        nonlocal has_repeated
        here = {name for name, _ in pairs}
        has_repeated |= len(here) < len(pairs)
        names.update(here)

    json.loads(text, object_pairs_hook=members, parse_int=str, parse_float=str)
    if not has_repeated:
        return text
    return MASK if any(map(is_secret_name, names)) else mask(text)
