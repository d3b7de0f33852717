"""Values as the inspector shows them: cut, with secrets masked, and restored after a person has edited them.

Pure. Everything that leaves the process for a page passes through here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, cast

import msgspec
import orjson

from ...core.plain_text import clip
from ...errors import ConfigurationError
from ...events import Event
from ...secrets import MASK, hide, is_secret, masked

_LOOK_AHEAD = 200  # characters after the end that are examined too, so that a key that is cut in two is recognised
_LEAF_CHARS = 1_000
_MAX_VALUES = 500
_MAX_DEPTH = 16
_MAX_CHARS = 20_000
"""The characters of one value. Finding the secrets in as many takes up to 15 ms."""
_LEFT_OUT = "… left out"
_URL_CHARS = 200
_MAX_EXACT = 2**53  # JavaScript has no other numbers than doubles


def shown_text(text: str, limit: int = 2_000) -> str:
    """Return at most `limit` characters of a text, without secrets."""
    return _masked(text[: limit + _LOOK_AHEAD], limit)


@lru_cache(maxsize=2_048)
def _masked(text: str, limit: int) -> str:
    return clip(masked(text), limit)


def shown_event(event: Event) -> dict[str, Any]:
    """Return an event as JSON values: texts are cut to 1,000 characters, 20,000 together, and secrets are hidden."""
    return hide(cast("dict[str, Any]", _Cut().of(msgspec.to_builtins(event, str_keys=True, enc_hook=str), 0)))


def shown_json(value: Any, max_chars: int = _MAX_CHARS) -> Any:
    """Return any JSON value, cut and without secrets."""
    return hide({"data": _Cut(max_chars).of(value, 0)})["data"]


def shown_arguments(arguments: Mapping[str, Any], max_chars: int = _MAX_CHARS) -> tuple[Any, bool]:
    """Return arguments as the person sees them who decides on a call, and whether they are whole and can be edited.

    Only values under a secret's name are hidden, and these as a whole. If texts were masked, a model could hide the
    rest of a command by a word such as "authorization" in it.
    """
    cut = _Cut(max_chars, hides_names=True)
    return cut.of(arguments, 0), not cut.has_left_out


def restored(edited: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return edited arguments, in which each value that the person left as it was shown has its real value again.

    Raises `ConfigurationError` if a mask is left where no value is known, or if the arguments were not shown whole.
    """
    shown, is_whole = shown_arguments(arguments)
    if not is_whole:
        raise ConfigurationError("these arguments are too long to be edited here; approve or deny them as they are")
    found = _back(edited, shown, arguments)
    if MASK in orjson.dumps(found).decode() and MASK not in orjson.dumps(arguments, default=str).decode():
        raise ConfigurationError(
            f"{MASK} stands for a value that is not shown; leave the whole value, or pass a new one"
        )
    return cast("dict[str, Any]", found)


def _back(edited: Any, shown: Any, real: Any) -> Any:
    if edited == shown and type(edited) is type(shown):
        return real
    if isinstance(edited, dict) and isinstance(shown, dict):
        was, own = cast("dict[str, Any]", shown), cast("Mapping[str, Any]", real)
        known = was.keys() & own.keys()
        given = cast("dict[str, Any]", edited).items()
        return {name: _back(each, was[name], own[name]) if name in known else each for name, each in given}
    if isinstance(edited, list) and isinstance(shown, list):
        given_items, was_items = cast("list[Any]", edited), cast("list[Any]", shown)
        if len(given_items) == len(was_items):
            items = zip(given_items, was_items, cast("Sequence[Any]", real), strict=True)
            return [_back(each, was, own) for each, was, own in items]
    return cast("Any", edited)


class _Cut:
    """One pass over a JSON value, which bounds its texts, its depth and the number of its values."""

    __slots__ = ("_hides_names", "_left_chars", "_seen", "has_left_out")

    def __init__(self, max_chars: int = _MAX_CHARS, *, hides_names: bool = False) -> None:
        self._left_chars = max_chars
        self._hides_names = hides_names
        self._seen = 0
        self.has_left_out = False

    def of(self, value: Any, depth: int) -> Any:
        self._seen += 1
        if isinstance(value, str):
            limit = min(_URL_CHARS if value.startswith("data:") else _LEAF_CHARS, max(self._left_chars, 1))
            self._left_chars -= min(len(value), limit)
            self.has_left_out |= len(value) > limit
            return value if len(value) <= limit else clip(value, limit)
        if isinstance(value, Mapping):
            return self._of_object(cast("Mapping[str, Any]", value), depth + 1)
        if isinstance(value, (list, tuple)):
            return self._of_list(cast("Sequence[Any]", value), depth + 1)
        # JavaScript would round it, and a person who edits the other arguments would send it back rounded.
        return str(value) if isinstance(value, int) and abs(value) > _MAX_EXACT else value

    def _of_object(self, value: Mapping[str, Any], depth: int) -> dict[str, Any]:
        copy: dict[str, Any] = {}
        for name, each in value.items():
            # Two names may be equal where they are cut.
            if self._is_enough(depth) or (shown := clip(name, _LEAF_CHARS)) in copy:
                self.has_left_out = True
                copy[_LEFT_OUT] = len(value) - len(copy)
                break
            self.has_left_out |= shown != name
            self._left_chars -= len(shown)
            copy[shown] = MASK if self._hides_names and is_secret(name, each) else self.of(each, depth)
        return copy

    def _of_list(self, value: Sequence[Any], depth: int) -> list[Any]:
        copy: list[Any] = []
        for each in islice(value, _MAX_VALUES):
            if self._is_enough(depth):
                break
            copy.append(self.of(each, depth))
        if len(copy) < len(value):
            self.has_left_out = True
            copy.append(_LEFT_OUT)
        return copy

    def _is_enough(self, depth: int) -> bool:
        enough = depth > _MAX_DEPTH or self._seen >= _MAX_VALUES or self._left_chars <= 0
        self.has_left_out |= enough
        return enough
