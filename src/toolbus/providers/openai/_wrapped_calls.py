"""The wrapper `multi_tool_use.parallel`, in which OpenAI's models call several tools at once, though it is not offered.

Models were trained on it, and sometimes call it as if it were a function: `{"tool_uses": [{"recipient_name":
"functions.get_weather", "parameters": {...}}]}`. They mean the calls inside. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from ...core.arguments import parse_arguments
from ...errors import InvalidArguments
from ...messages import ToolCall
from ...protocols import MAX_REPLY_CALLS, ArgumentsPiece, Delta, Emit, ModelReply
from ...records import replace
from .._shared.wire_text import dumped

_NAMES = frozenset({"multi_tool_use.parallel", "multi_tool_use_parallel", "parallel"})
_PREFIX = "functions."


class CallUnwrapper:
    """An emit function that holds back the wrapper's pieces, with `settle`, which replaces the wrapper by its calls.

    The pieces name the wrapper and not the tools, so it would not be known whose arguments may be shown.
    """

    def __init__(self, emit: Emit, names: Collection[str]) -> None:
        """Take `names`, the tools that are offered. A tool with one of these names is never the wrapper."""
        self._emit = emit
        self._wrappers = _NAMES.difference(names)

    def __call__(self, delta: Delta) -> None:
        """Pass a piece on; a piece of the wrapper without its text."""
        if isinstance(delta, ArgumentsPiece) and delta.name in self._wrappers:
            delta = ArgumentsPiece(delta.index, delta.name, "")
        self._emit(delta)

    def settle(self, reply: ModelReply) -> ModelReply:
        """Return the reply with the calls in the wrapper instead of the wrapper.

        The first of them gets the wrapper's position and id, and the others come after all other calls, whose positions
        stay the same as in the pieces. A wrapper that cannot be read stays, and is refused as an unknown tool. If there
        are more calls than a reply may have, the result has one too many.
        """
        message = reply.message
        calls = list(message.tool_calls)
        more: list[ToolCall] = []
        for position, call in enumerate(message.tool_calls):
            if call.name in self._wrappers and (uses := self._uses(call)):
                calls[position] = uses[0]
                more += uses[1:]
            if len(calls) + len(more) > MAX_REPLY_CALLS:
                break
        if all(after is before for after, before in zip(calls, message.tool_calls, strict=True)):
            return reply
        after = tuple([*calls, *more][: MAX_REPLY_CALLS + 1])
        for position, call in enumerate(after[:MAX_REPLY_CALLS]):  # The session refuses a reply with more of them.
            if position >= len(calls) or call is not message.tool_calls[position]:
                self._emit(ArgumentsPiece(position, call.name, call.arguments))
        # The vendor data refers to the wrapper, so it is dropped.
        return replace(reply, message=replace(message, tool_calls=after, vendor_data=None))

    def _uses(self, wrapper: ToolCall) -> list[ToolCall]:
        """Return the calls in a wrapper; none if its arguments are malformed."""
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
