"""The wrapper in which OpenAI's models call several tools at once, though nobody offers it: `multi_tool_use.parallel`.

Models were trained on it, and call it now and then as if it were a function: `{"tool_uses": [{"recipient_name":
"functions.get_weather", "parameters": {...}}]}`. What they mean are the calls in it. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, cast

from ...core.arguments import parse_arguments
from ...errors import InvalidArguments
from ...messages import ToolCall
from ...protocols import MAX_REPLY_CALLS, ArgumentsPiece, Delta, Emit, ModelReply
from .._shared.wire_text import dumped

__all__ = ["Unwrapping"]

_NAMES = frozenset({"multi_tool_use.parallel", "multi_tool_use_parallel", "parallel"})
_PREFIX = "functions."


class Unwrapping:
    """An emit function that holds the wrapper's pieces back, and `settle`, which puts the calls in its place.

    The pieces name the wrapper and not the tools, so nobody could tell which of them may be shown.
    """

    __slots__ = ("_emit", "_wrappers")

    def __init__(self, emit: Emit, names: Collection[str]) -> None:
        """`names` are the tools that are offered: one of them is never the wrapper."""
        self._emit = emit
        self._wrappers = _NAMES.difference(names)

    def __call__(self, delta: Delta) -> None:
        """Pass a piece on; one of the wrapper without its text."""
        if isinstance(delta, ArgumentsPiece) and delta.name in self._wrappers:
            delta = ArgumentsPiece(delta.index, delta.name, "")
        self._emit(delta)

    def settle(self, reply: ModelReply) -> ModelReply:
        """The reply with the calls that are meant.

        The first has the wrapper's place and id, and the others come after all calls, so that the places of those stay
        as their pieces had them. A wrapper that cannot be read stays, and is refused as an unknown tool. Of more calls
        than a reply may have, one too many is given.
        """
        message = reply.message
        calls = list(message.tool_calls)
        more: list[ToolCall] = []
        for place, call in enumerate(message.tool_calls):
            if call.name in self._wrappers and (uses := self._uses(call)):
                calls[place] = uses[0]
                more += uses[1:]
            if len(calls) + len(more) > MAX_REPLY_CALLS:
                break
        if all(after is before for after, before in zip(calls, message.tool_calls, strict=True)):
            return reply
        after = tuple([*calls, *more][: MAX_REPLY_CALLS + 1])
        for place, call in enumerate(after):
            if place >= len(calls) or call is not message.tool_calls[place]:
                self._emit(ArgumentsPiece(place, call.name, call.arguments))
        # What the vendor keeps beside the message tells of the wrapper.
        return replace(reply, message=replace(message, tool_calls=after, vendor_data=None))

    def _uses(self, wrapper: ToolCall) -> list[ToolCall]:
        """The calls in a wrapper; none where it is anything else."""
        try:
            written = parse_arguments(wrapper.arguments)
        except InvalidArguments:
            return []
        uses: Any = written.get("tool_uses")
        if len(written) != 1 or not isinstance(uses, list):
            return []
        found = [self._use(each) for each in cast("list[object]", uses)[: MAX_REPLY_CALLS + 1]]
        calls = [call for call in found if call]
        if len(calls) != len(found):
            return []
        return [replace(call, provider_call_id=wrapper.provider_call_id) for call in calls[:1]] + calls[1:]

    def _use(self, use: object) -> ToolCall | None:
        if not isinstance(use, Mapping):
            return None
        fields = cast("Mapping[str, Any]", use)
        name, arguments = fields.get("recipient_name"), fields.get("parameters", {})
        name = name.removeprefix(_PREFIX) if isinstance(name, str) else ""
        if not name or name in self._wrappers:
            return None
        if isinstance(arguments, Mapping):
            arguments = dumped(cast("object", arguments))
        return ToolCall(name=name, arguments=arguments) if isinstance(arguments, str) else None
