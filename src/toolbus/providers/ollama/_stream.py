"""The builder of a reply from a streamed native chat: lines of JSON become the one whole reply.

The module knows Ollama's stream; it does no I/O. Calls come whole, one or several in a line, and only newer servers
give them ids. Tolerated: arguments as text, calls without arguments, no usage, no `done_reason`, an answer that is not
streamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...messages import AssistantMessage, ToolCall, Usage
from ...protocols import MAX_REPLY_CALLS, ArgumentsPiece, Emit, FinishReason, ModelReply, ReasoningPiece, TextPiece
from .._shared.errors import ErrorTranslator
from .._shared.reply_reader import read_object
from .._shared.wire_text import Characters, as_object, as_objects, count_at, dumped, size_bytes

__all__ = ["ReplyBuilder"]

_CALL_OVERHEAD_BYTES = 64  # counted for each call, so that a stream of empty calls reaches the size limit too
_FINISH_REASONS: Mapping[str, FinishReason] = {"": "", "stop": "stop", "length": "length"}


class ReplyBuilder:
    """A builder of one reply from lines. `feed` every line, then `finish`."""

    __slots__ = (
        "_calls",
        "_emit",
        "_errors",
        "_finish_reason",
        "_limit_bytes",
        "_model",
        "_reasoning",
        "_size_bytes",
        "_text",
        "_usage",
        "done",
    )

    def __init__(self, *, model: str, emit: Emit, limit_bytes: int, errors: ErrorTranslator) -> None:
        self.done = False
        """True once the server has sent the end of the reply."""
        self._model = model
        self._emit = emit
        self._limit_bytes = limit_bytes
        self._errors = errors
        self._size_bytes = 0
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
        if isinstance(thinking := message.get("thinking"), str) and thinking:
            self._grow(size_bytes(thinking))
            if text := self._reasoning.add(thinking):
                self._emit(ReasoningPiece(text))
        if isinstance(content := message.get("content"), str) and content:
            self._grow(size_bytes(content))
            if text := self._text.add(content):
                self._emit(TextPiece(text))
        for call in as_objects(message.get("tool_calls")):
            self._call(call)
        if isinstance(model := completion.get("model"), str) and model:
            self._model = model
        if completion.get("done"):
            self.done = True
            self._finish_reason = str(completion.get("done_reason") or "")
            self._usage = _usage(completion)

    def _call(self, wire: Mapping[str, Any]) -> None:
        function = as_object(wire.get("function"))
        name = str(function.get("name") or "")
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else dumped(arguments) if arguments else ""
        wire_id = str(wire.get("id") or "")
        if len(self._calls) == MAX_REPLY_CALLS:
            raise self._errors.too_many(MAX_REPLY_CALLS, "calls")
        self._grow(_CALL_OVERHEAD_BYTES + size_bytes(name) + size_bytes(wire_id) + size_bytes(text))
        self._emit(ArgumentsPiece(len(self._calls), name, text or "{}"))
        self._calls.append(ToolCall(name=name, arguments=text, provider_call_id=wire_id))

    def _grow(self, more_bytes: int) -> None:
        self._size_bytes += more_bytes
        if self._size_bytes > self._limit_bytes:
            raise self._errors.too_large(self._limit_bytes)

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
