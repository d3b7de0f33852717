"""The builder of a reply from a streamed native chat: lines of JSON become the one whole reply.

The module knows Ollama's stream; it does no I/O. Calls come whole, one or several in a line, and only newer servers
give them ids. Tolerated: arguments as text, calls without arguments, no usage, no `done_reason`, an answer that is not
streamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from ...messages import AssistantMessage, ToolCall, Usage
from ...protocols import ArgumentsPiece, FinishReason, ModelReply
from ...schemas import as_object, as_objects
from .._shared.reply_parts import PART_OVERHEAD_BYTES, BuilderOptions, ReplyParts, read_object
from .._shared.wire_text import Characters, count_at, dumped_with_size, size_bytes

_FINISH_REASONS: Mapping[str, FinishReason] = {"": "", "stop": "stop", "length": "length"}


class ReplyBuilder(ReplyParts):
    """A builder of one reply from lines."""

    def __init__(self, **given: Unpack[BuilderOptions]) -> None:
        super().__init__(**given)
        self._text = Characters()
        self._reasoning = Characters()
        self._calls: list[ToolCall] = []
        self._finish_reason = ""
        self._usage = Usage()

    def feed(self, event: str, data: bytes) -> None:  # noqa: ARG002 -- lines of JSON have no names
        """Process one line. Raises `ProviderUnavailable`, `ContextOverflow` or `ReplyTooLarge`."""
        if self.done:
            return
        self.whole(read_object(data, self._errors, "a line"))

    def whole(self, completion: Mapping[str, Any]) -> None:
        """Process one object: a part of the reply, or all of it from a server that does not stream."""
        if completion.get("error"):
            raise self._errors.in_stream(completion)
        message = as_object(completion.get("message"))
        self._think(self._reasoning, message.get("thinking"))
        self._say(self._text, message.get("content"))
        for call in as_objects(message.get("tool_calls")):
            self._call(call)
        self._name_model(completion)
        if completion.get("done"):
            self.done = True
            self._finish_reason = str(completion.get("done_reason") or "")
            self._usage = _usage(completion)

    def _call(self, wire: Mapping[str, Any]) -> None:
        function = as_object(wire.get("function"))
        name = str(function.get("name") or "")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            text, size = arguments, size_bytes(arguments)
        else:
            text, size = dumped_with_size(arguments) if arguments else ("", 0)
        wire_id = str(wire.get("id") or "")
        position = self._next_call()
        self._grow(PART_OVERHEAD_BYTES + size_bytes(name) + size_bytes(wire_id) + size)
        self._emit(ArgumentsPiece(position, name, text or "{}"))
        self._calls.append(ToolCall(name=name, arguments=text, provider_call_id=wire_id))

    def finish(self) -> ModelReply:
        """Return the whole reply. Raises `ProviderUnavailable` if the stream ended before the reply was whole.

        Ollama's `done_reason` is "stop" also for a reply with tool calls, whose neutral reason is "tool_calls".
        """
        if not self.done:
            raise self._errors.unavailable("ended the stream before the reply was whole")
        finish_reason = _FINISH_REASONS.get(self._finish_reason, "other")
        return ModelReply(
            message=AssistantMessage(
                text=self._text.whole(), tool_calls=tuple(self._calls), reasoning=self._reasoning.whole()
            ),
            finish_reason="tool_calls" if self._calls and finish_reason == "stop" else finish_reason,
            vendor_finish_reason=self._finish_reason,
            usage=self._usage,
            vendor=self._errors.vendor,
            model=self._model,
        )


def _usage(line: Mapping[str, Any]) -> Usage:
    """Return the counts in the last line; tokens from the cache are part of the prompt (llm/llama_server.go).

    Servers before 0.33 do not report their cache, and the oldest do not count the tokens of a prompt that were in it.
    """
    cached = count_at(line, "prompt_eval_cached_count")
    return Usage(
        input_tokens=max(count_at(line, "prompt_eval_count"), cached),
        output_tokens=count_at(line, "eval_count"),
        cached_tokens=cached,
    )
