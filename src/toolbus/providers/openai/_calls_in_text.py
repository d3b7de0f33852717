"""Tool calls that a model writes as text, because it was not trained on its server's format for calls. Pure.

Small local models do so: instead of the tag that their template requires, they write the call's JSON as their answer,
bare or in a code fence. Content counts as calls only if all of it is calls, of offered tools, in one of the formats
that models are trained on; any other content stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, cast

from ...core.arguments import encodable_json
from ...messages import ToolCall
from ...protocols import MAX_REPLY_CALLS, ArgumentsPiece, Delta, Emit, ModelReply, TextPiece
from ...records import replace
from ...schemas import has_many_values

_FENCE = "```"
_FENCE_START = re.compile(r"```[ \t]*(?P<info>\w*)[ \t\r]*(?:\n\s*(?P<first>\S)?.*)?", re.DOTALL)
_INFOS = frozenset({"", "json", "tool_call", "tool_calls"})
_TAG, _TAG_END = "<tool_call>", "</tool_call>"
_ARGUMENTS = ("arguments", "parameters")  # Hermes, Qwen and Mistral write the first, Llama the second
_OPTIONAL = frozenset({"type", "id"})
_BEGINNING_CHARS = 64  # They decide whether text may become calls; the longest such start is a fence's first line


def calls_in_text(text: str, names: Collection[str] | None) -> tuple[ToolCall, ...]:
    """Return the calls that `text` consists of, in order; none for any other text.

    A call is an object with the name of a tool (one of `names`, or any tool without `names`) and an object of
    arguments, and nothing else: `{"name": ..., "arguments": {...}}`, also with "parameters", with "id" and "type", or
    inside `{"type": "function", "function": ...}`. The text is one such object or a list of them, bare or in a fence,
    or each in `<tool_call>` tags, of which the last may be unclosed. JSON with a repeated key, NaN or another fault is
    text. If there are more calls than a reply may have, the result has one too many.
    """
    text = text.strip()
    if text.startswith(_FENCE):
        head, _, inside = text.removeprefix(_FENCE).partition("\n")
        text, fence, rest = inside.partition(_FENCE)
        if head.strip(" \t\r") not in _INFOS or not fence or rest:
            return ()
        text = text.strip()
    if has_many_values(text.encode("utf-8", "surrogatepass")):
        return ()
    values = [text]
    if text.startswith(_TAG):
        values = [value.strip().removesuffix(_TAG_END) for value in text.split(_TAG)[1:]]
    calls: list[ToolCall] = []
    for value in values:
        found = _calls(value, names)
        if not found:
            return ()
        calls += found
        if len(calls) > MAX_REPLY_CALLS:
            break
    return tuple(calls[: MAX_REPLY_CALLS + 1])


def may_become_calls(text: str) -> bool:
    """Return whether `text` may be the beginning of a text in which `calls_in_text` finds calls."""
    text = text.lstrip()[:_BEGINNING_CHARS]
    if text[:1] in {"", "{", "["}:
        return True
    if text.startswith(_FENCE):
        start = _FENCE_START.fullmatch(text)
        if start is None or start["first"] not in {None, "{", "[", "<"}:
            return False
        return any(each.startswith(start["info"]) for each in _INFOS)
    return _TAG.startswith(text[: len(_TAG)]) or _FENCE.startswith(text)


def _calls(text: str, names: Collection[str] | None) -> list[ToolCall]:
    try:
        value: Any = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return []
    values = cast("list[Any]", value)[: MAX_REPLY_CALLS + 1] if isinstance(value, list) else [value]
    calls = [_call(each, names) for each in values]
    return [call for call in calls if call] if all(calls) else []


def _call(value: object, names: Collection[str] | None) -> ToolCall | None:
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    if set(fields) - _OPTIONAL == {"function"}:
        return _call(fields["function"], names)
    keys = [key for key in _ARGUMENTS if key in fields]
    if len(keys) != 1 or set(fields) - _OPTIONAL != {"name", keys[0]} or fields.get("type", "function") != "function":
        return None
    name, arguments = fields["name"], fields[keys[0]]
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    if names is not None and name not in names:
        return None
    written = encodable_json(json.dumps(arguments, ensure_ascii=False))
    return ToolCall(name=name, arguments=written)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises `ValueError` for a repeated key, since it is not clear which value is meant."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is repeated")
    return found


def _refuse_constant(constant: str) -> Any:
    raise ValueError(constant)


class HeldText:
    """An emit function that holds text back as long as it may become calls; `settle` then decides what it is.

    Text that cannot become calls, as nearly all text, is passed on from its first characters. While text is held,
    empty pieces are passed on instead: no listener gets them, and they show that the stream has not stalled.
    """

    def __init__(self, emit: Emit, names: Collection[str]) -> None:
        """Take `names`, the tools that are offered."""
        self._emit = emit
        self._names = names
        self._held: list[str] | None = []  # None once the held pieces are known to be text
        self._beginning = ""

    def __call__(self, delta: Delta) -> None:
        """Pass a piece on, now or later."""
        if not isinstance(delta, TextPiece) or self._held is None:
            self._emit(delta)
            return
        self._held.append(delta.text)
        if len(self._beginning) < _BEGINNING_CHARS:
            self._beginning += delta.text
            if not may_become_calls(self._beginning):
                self._release()
                return
        self._emit(TextPiece(""))

    def _release(self) -> None:
        text = "".join(self._held or ())
        self._held = None
        if text:
            self._emit(TextPiece(text))

    def settle(self, reply: ModelReply) -> ModelReply:
        """Return the reply, with calls instead of its text if the text consists of calls."""
        message = reply.message
        whole = reply.finish_reason in {"", "stop", "tool_calls", "other"} and not message.tool_calls
        calls = calls_in_text(message.text, self._names) if whole else ()
        if not calls:
            self._release()
            return reply
        for index, call in enumerate(calls[:MAX_REPLY_CALLS]):  # The session refuses a reply with more of them.
            self._emit(ArgumentsPiece(index, call.name, call.arguments))
        return replace(reply, message=replace(message, text="", tool_calls=calls), finish_reason="tool_calls")
