"""The builder of a reply from a streamed chat completion: chunks become the one whole reply.

The module knows the stream of OpenAI and the deviations of compatible servers; it does no I/O. Tolerated: no `index`,
the same `index` for all calls, calls that arrive whole, ids that are empty, repeated or new in each chunk, names
repeated in each chunk or cut, arguments as an object, behind an empty object, or once more when they are whole, no
usage, no `[DONE]`, reasoning under any of its names, characters cut in half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack, cast

from ...messages import AssistantMessage, ToolCall, Usage
from ...protocols import ArgumentsPiece, FinishReason, ModelReply
from ...schemas import as_object, as_objects
from .._shared.reply_parts import PART_OVERHEAD_BYTES, BuilderOptions, ReplyParts, read_object
from .._shared.wire_text import Characters, WholeObject, count_at, dumped, object_in, size_bytes

_FINISH_REASONS: Mapping[str, FinishReason] = {
    "": "",
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "model_length": "length",  # Mistral's, for a full context window
    "max_tokens": "length",
    "content_filter": "content_filter",
    "refusal": "refusal",
    "sensitive": "content_filter",  # GLM's; the others are Gemini's, which its compatible API and gateways pass on
    **dict.fromkeys(("safety", "recitation", "blocklist", "prohibited_content", "spii"), "content_filter"),
}
# The server gave up: OpenRouter and Mistral; vLLM and SGLang; DeepSeek; GLM; and Gemini, for a call that it could not
# read, "function_call_filter: MALFORMED_FUNCTION_CALL".
_BROKEN_OFF = frozenset(
    {
        *("error", "abort", "insufficient_system_resource", "network_error"),
        *("function_call_filter", "malformed_function_call", "unexpected_tool_call", "malformed_response"),
    }
)
_MAX_CUT_NAME_CHARS = 1_000  # characters; each further piece copies those before it
_MAX_EMPTY_OBJECT_CHARS = 8  # more than any server writes for it
_KNOWN_IN_CALL = frozenset({"index", "id", "type", "function"})


class _Call:
    """A tool call of the reply, as far as it has arrived."""

    __slots__ = ("_whole", "arguments", "extra", "held_back", "name", "position", "wire_id")

    def __init__(self, position: int) -> None:
        self.position = position
        self.wire_id = ""
        self.name = ""
        self.arguments = Characters()
        self.extra: dict[str, Any] = {}
        self.held_back = ""  # arguments of `{}` that were not passed on, since others may follow
        self._whole = WholeObject()

    def is_complete(self) -> bool:
        """Return whether the arguments so far are a JSON object."""
        return self._whole.is_whole(self.arguments.parts)

    def is_repeated_by(self, piece: str) -> bool:
        """Return whether a piece has the complete arguments once more, as gateways send them at the end of a stream."""
        if len(piece) < max(1, self.arguments.length) or not self.is_complete():
            return False
        so_far = "".join(self.arguments.parts)
        return piece in {so_far, dumped(so_far)}

    def is_empty_object(self) -> bool:
        """Return whether one piece was `{}`, with which gateways to Claude begin a call whose arguments follow."""
        is_short = len(self.arguments.parts) == 1 and self.arguments.length < _MAX_EMPTY_OBJECT_CHARS
        return is_short and self.is_complete() and not object_in(self.arguments.whole())

    def begin_again(self) -> None:
        """Forget the arguments so far."""
        self.arguments, self._whole, self.held_back = Characters(), WholeObject(), ""


class _Detail:
    """An entry of OpenRouter's `reasoning_details`, as far as it has arrived."""

    __slots__ = ("fields", "pieces")

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.fields = dict(entry)
        self.pieces = Characters()
        self.pieces.add(_shown_in(entry))

    def takes(self, entry: Mapping[str, Any]) -> bool:
        """Return whether an entry continues this one, and add it. Encrypted ones are whole; a signature is the end."""
        same = all(self.fields.get(name) == entry.get(name) for name in ("type", "index"))
        if not same or str(entry.get("type")) not in _SHOWN or self.fields.get("signature"):
            return False
        self.pieces.add(_shown_in(entry))
        if signature := entry.get("signature"):
            self.fields["signature"] = signature
        return True

    def wire(self) -> dict[str, Any]:
        """Return the entry in the form in which it is sent back."""
        field = _SHOWN.get(str(self.fields.get("type")))
        return {**self.fields, field: self.pieces.whole()} if field else self.fields


_SHOWN = {"reasoning.text": "text", "reasoning.summary": "summary"}


def _shown_in(entry: Mapping[str, Any]) -> str:
    """Return the text of an entry that people may read."""
    text = entry.get(_SHOWN.get(str(entry.get("type")), ""))
    return text if isinstance(text, str) else ""


class ReplyBuilder(ReplyParts):
    """A builder of one reply from chunks."""

    def __init__(self, **given: Unpack[BuilderOptions]) -> None:
        super().__init__(**given)
        self._asked = self._model
        self._text = Characters()
        self._reasoning = Characters()
        self._details: list[_Detail] = []
        self._calls: list[_Call] = []
        self._by_id: dict[str, _Call] = {}  # the newest call with each id
        self._by_index: dict[int, _Call] = {}
        self._finish_reason = ""
        self._refused = False
        # The first chunk, if there was one, of a stream without choices so far; None once one has come.
        self._strange: Sequence[Mapping[str, Any]] | None = ()
        self._usage: Mapping[str, Any] = {}

    def feed(self, event: str, data: bytes) -> None:
        """Process one event. Raises `ProviderUnavailable`, `ProviderRejected` or `ReplyTooLarge`."""
        if self.done or data.startswith(b"[DONE]"):
            self.done = True
            return
        fields = read_object(data, self._errors, "a chunk")
        if event == "error" or _is_error(fields):
            raise self._errors.in_stream(fields)
        self._chunk(fields)

    def whole(self, completion: Mapping[str, Any]) -> None:
        """Process a completion that the server did not stream."""
        if _is_error(completion):
            raise self._errors.in_stream(completion)
        self._chunk(completion)
        self.done = True

    def _chunk(self, chunk: Mapping[str, Any]) -> None:
        self._name_model(chunk)
        if error := as_object(chunk.get("x_groq")).get("error"):
            raise self._errors.in_stream({"error": error})
        self._count(chunk.get("usage"))
        choices = as_objects(chunk.get("choices"))
        if self._strange is not None:
            self._strange = None if choices else self._strange or (chunk,)
        for choice in choices:
            if choice.get("index"):  # another sample, which was not asked for
                continue
            if choice.get("error"):  # OpenRouter's
                raise self._errors.in_stream(choice)
            self._count(choice.get("usage"))  # where Kimi sends it
            delta: object = choice.get("delta")
            # A message in addition to deltas repeats their text.
            if delta is None or not (delta or self._size_bytes):
                delta = choice.get("message")
            self._delta(as_object(delta))
            if reason := choice.get("finish_reason"):
                self._finish_reason = str(reason)

    def _count(self, usage: object) -> None:
        if isinstance(usage, Mapping):
            self._usage = cast("Mapping[str, Any]", usage)  # the counts are cumulative

    def _delta(self, delta: Mapping[str, Any]) -> None:
        details = as_objects(delta.get("reasoning_details"))
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        self._think(self._reasoning, thought or "".join(map(_shown_in, details)))
        for entry in details:
            if self._details and self._details[-1].takes(entry):
                self._grow(size_bytes(_shown_in(entry)) + size_bytes(str(entry.get("signature") or "")))
            else:
                self._grow(PART_OVERHEAD_BYTES + len(dumped(entry)))
                self._details.append(_Detail(entry))
        content = delta.get("content")
        self._say(self._text, content)
        for part in as_objects(content):
            thinking = "".join(str(each.get("text") or "") for each in as_objects(part.get("thinking")))
            self._think(self._reasoning, thinking)
            self._say(self._text, part.get("text"))
            self._refuse(part.get("refusal"))
        self._refuse(delta.get("refusal"))
        for fragment in as_objects(delta.get("tool_calls")):
            self._fragment(fragment)

    def _refuse(self, piece: object) -> None:
        self._refused = self._refused or bool(piece)
        self._say(self._text, piece)

    def _fragment(self, fragment: Mapping[str, Any]) -> None:
        function = as_object(fragment.get("function"))
        if not function:
            self._refuse_foreign(fragment)
        arguments = function.get("arguments")
        if isinstance(arguments, Mapping):
            arguments = dumped(cast("object", arguments))
        piece = arguments if isinstance(arguments, str) else ""
        name = str(function.get("name") or "")
        wire_id = str(fragment.get("id") or "")
        extra = {key: value for key, value in fragment.items() if key not in _KNOWN_IN_CALL}
        if not (name or wire_id or piece or extra):
            return  # some servers send an empty fragment together with text
        index = fragment.get("index")
        call = self._call_of(index, wire_id, name, piece)
        if wire_id and not call.wire_id:
            self._grow(size_bytes(wire_id))
            call.wire_id = wire_id
            self._by_id[wire_id] = call
        is_cut = isinstance(index, int) and not call.arguments.parts and len(call.name) < _MAX_CUT_NAME_CHARS
        if name and (not call.name or (is_cut and name != call.name)):
            self._grow(size_bytes(name))
            call.name = name if name.startswith(call.name) else call.name + name
        if extra:
            self._grow(len(dumped(extra)))
            call.extra.update(extra)
        if call.is_repeated_by(piece):
            return
        if call.held_back and piece.lstrip().startswith("{"):
            call.begin_again()
        added = self._add(call.arguments, piece)
        if added and call.is_empty_object():
            call.held_back = added
        elif added:
            self._pass_on(call, added)

    def _pass_on(self, call: _Call, added: str) -> None:
        if text := call.held_back + added:
            call.held_back = ""
            self._emit(ArgumentsPiece(call.position, call.name, text))

    def _refuse_foreign(self, fragment: Mapping[str, Any]) -> None:
        """Raise `ProviderRejected` for a call of anything but a function: `{"type": "custom", "custom": {...}}`."""
        kind = fragment.get("type")
        if isinstance(kind, str) and kind != "function" and isinstance(fragment.get(kind), Mapping):
            raise self._errors.no_function(f"a tool call of type {kind!r}")

    def _call_of(self, index: object, wire_id: str, name: str, piece: str) -> _Call:
        """Return the call that a fragment belongs to, which may be a new one.

        A fragment continues the call with its index, or without an index the call with its id, or else the last call.
        It begins a new call if there is no such call, or if it has a name and cannot be a continuation, because it has
        another id, or more text after complete arguments.
        """
        if isinstance(index, int):
            found = self._by_index.get(index)
        else:
            found = self._by_id.get(wire_id) or (self._calls[-1] if self._calls else None)
        begins = found is None
        if found is not None and name and found.name:
            other_id = bool(wire_id and found.wire_id and wire_id != found.wire_id)
            again = bool(wire_id) and wire_id == found.wire_id and name == found.name and found.is_repeated_by(piece)
            begins = other_id or (bool(piece or name != found.name) and found.is_complete() and not again)
        if found is None or begins:
            found = _Call(self._next_call())
            self._calls.append(found)
            self._grow(PART_OVERHEAD_BYTES)
        if isinstance(index, int):
            self._by_index[index] = found
        return found

    @property
    def text_so_far(self) -> str:
        """The text of the reply so far."""
        return self._text.whole()

    def finish(self) -> ModelReply:
        """Return the whole reply. Raises `ProviderUnavailable` if the stream ended before the reply was whole."""
        if _word(self._finish_reason) in _BROKEN_OFF:
            raise self._errors.unavailable(f"gave up on its reply (finish_reason {self._finish_reason!r})")
        if _word(self._finish_reason) == "model_context_window_exceeded":  # GLM's, and that of gateways to Claude
            raise self._errors.context_overflow(f"{self._errors.vendor}'s reply filled the model's context window")
        if self._strange:  # a gateway's own message, with status 200
            raise self._errors.no_reply("completion", self._strange[0])
        if not self._finish_reason and not (self.done and all(call.is_complete() for call in self._calls)):
            raise self._errors.unavailable("ended the stream before the reply was whole")
        for call in self._calls:
            self._pass_on(call, "")
        calls = tuple(
            ToolCall(name=call.name, arguments=call.arguments.whole(), provider_call_id=call.wire_id)
            for call in self._calls
        )
        kept: dict[str, Any] = {}
        if any(call.extra for call in self._calls):
            kept["tool_calls"] = [self._storable(call.extra) or None for call in self._calls]
        if self._details:
            details = [detail.wire() for detail in self._details]
            kept |= {"message": {"reasoning_details": self._storable(details)}, "model": self._asked}
        return ModelReply(
            message=AssistantMessage(
                text=self._text.whole(),
                tool_calls=calls,
                reasoning=self._reasoning.whole(),
                vendor_data={self._errors.vendor: kept} if kept else None,
            ),
            finish_reason=self._neutral_reason(),
            vendor_finish_reason=self._finish_reason,
            usage=usage_of(self._usage, "prompt_tokens", "completion_tokens"),
            vendor=self._errors.vendor,
            model=self._model,
        )

    def _neutral_reason(self) -> FinishReason:
        found = _FINISH_REASONS.get(_word(self._finish_reason), "other")
        return "refusal" if self._refused and found in {"", "stop"} and not self._calls else found


def _word(reason: str) -> str:
    """Return the word that decides: Gemini writes "content_filter: PROHIBITED_CONTENT", and "SAFETY"."""
    return reason.partition(":")[0].strip().lower()


def _is_error(fields: Mapping[str, Any]) -> bool:
    # The last two are the forms of DeepInfra, and of older servers of vLLM.
    return bool(fields.get("error") or fields.get("error_message")) or fields.get("object") == "error"


def usage_of(wire: Mapping[str, Any], read: str, written: str) -> Usage:
    """Return the usage, whose fields begin with what the API calls the tokens that it read and wrote.

    OpenAI counts reasoning as written. xAI and Gemini count it only in the total, and Gemini nowhere else. Gateways to
    Claude have its names for what it has read from its cache or written to it. Some count that only in the total, as
    Claude does, and some with the input.
    """
    details = wire.get(f"{read}_details")
    input_tokens, output_tokens = count_at(wire, read), count_at(wire, written)
    reasoning_tokens = count_at(wire.get(f"{written}_details"), "reasoning_tokens")
    beside_tokens = count_at(wire, "total_tokens") - input_tokens - output_tokens
    from_cache, to_cache = count_at(wire, "cache_read_input_tokens"), count_at(wire, "cache_creation_input_tokens")
    if from_cache + to_cache > input_tokens or 0 < from_cache + to_cache == beside_tokens:
        input_tokens += from_cache + to_cache
    elif beside_tokens > 0 and reasoning_tokens in {0, beside_tokens} and not from_cache + to_cache:
        output_tokens, reasoning_tokens = output_tokens + beside_tokens, beside_tokens
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        # The second is DeepSeek's name, and the third Kimi's.
        cached_tokens=count_at(details, "cached_tokens")
        or count_at(wire, "prompt_cache_hit_tokens")
        or count_at(wire, "cached_tokens")
        or from_cache,
        cache_write_tokens=count_at(details, "cache_write_tokens") or to_cache,
        reasoning_tokens=reasoning_tokens,
    )
