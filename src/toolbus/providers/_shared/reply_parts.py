"""The base of the builders: the parts of a reply that every vendor's stream has, collected, bounded and passed on.

The module knows no vendor; it does no I/O.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypedDict, cast

from ...protocols import MAX_REPLY_CALLS, ArgumentsPiece, Emit, ModelReply, ReasoningPiece, TextPiece
from ...schemas import MAX_VALUES, as_object
from .errors import ErrorTranslator
from .wire_text import Characters, TooManyValues, excerpt, loads, size_bytes, storable

MAX_REPLY_PARTS = 10_000
"""The maximum number of blocks or items in one reply, of all kinds: each takes a kilobyte of memory, however short."""

PART_OVERHEAD_BYTES = 64
"""The bytes that are counted for each call, item and part, so that a stream of tiny ones reaches the size limit too."""

SEPARATOR = "\n\n"
"""The text between messages of one reply, and between parts of its reasoning, as in `toolbus.messages`."""


class BuilderOptions(TypedDict):
    """The options of a builder, which are the same for every vendor. `model` is the name that was asked for."""

    model: str
    emit: Emit
    limit_bytes: int
    errors: ErrorTranslator


class ReplyParts(ABC):
    """A builder of one reply from events. `feed` every event, then `finish`.

    A vendor's subclass reads the events, and keeps the parts that it finds, each text in `Characters`.
    """

    echo_bytes: ClassVar[int] = 0
    """The bytes by which an event may be larger than a reply, because it repeats other data."""

    def __init__(self, *, model: str, emit: Emit, limit_bytes: int, errors: ErrorTranslator) -> None:
        self.done = False
        """True once the server has sent the end of the reply."""
        self.limit_tokens = 0
        """The tokens that the reply may have at most, if the request has `max_output_tokens`, or else 0."""
        self._model = model
        self._emit = emit
        self._limit_bytes = limit_bytes
        self._errors = errors
        self._size_bytes = 0
        self._call_count = 0
        self._said_in: object = None  # the message whose text was passed on last
        self._thought: Characters | None = None  # the part of reasoning that was passed on last

    @abstractmethod
    def feed(self, event: str, data: bytes) -> None:
        """Process one event. Raises `ProviderError`, such as `ReplyTooLarge`."""

    @abstractmethod
    def whole(self, completion: Mapping[str, Any]) -> None:
        """Process a reply that the server did not stream. Raises what `feed` raises."""

    @abstractmethod
    def finish(self) -> ModelReply:
        """Return the whole reply. Raises `ProviderUnavailable` if the stream ended before the reply was whole."""

    # ------------------------------------------------------------------------------------ for the subclasses

    def _name_model(self, fields: Mapping[str, Any]) -> None:
        if isinstance(model := fields.get("model"), str) and model:
            self._model = model

    def _grow(self, more_bytes: int) -> None:
        self._size_bytes += more_bytes
        if self._size_bytes > self._limit_bytes:
            raise self._errors.too_large(self._limit_bytes)

    def _next_call(self) -> int:
        """Count one more call, and return its position among the calls."""
        if self._call_count == MAX_REPLY_CALLS:
            raise self._errors.too_many(MAX_REPLY_CALLS, "calls")
        self._call_count += 1
        return self._call_count - 1

    def _add(self, part: Characters, piece: object) -> str:
        """Add a piece to a part, and return the text that is whole now; empty for anything but text."""
        if not isinstance(piece, str) or not piece:
            return ""
        self._grow(size_bytes(piece))
        return part.add(piece)

    def _say(self, part: Characters, piece: object, message: object = None) -> None:
        """Add a piece of the reply's text, and pass it on; a separator comes before another `message`."""
        if text := self._add(part, piece):
            if self._said_in is not message and self._said_in is not None:
                self._emit(TextPiece(SEPARATOR))
            self._said_in = message
            self._emit(TextPiece(text))

    def _think(self, part: Characters, piece: object) -> None:
        """Add a piece of reasoning, and pass it on; a separator comes before another part."""
        if text := self._add(part, piece):
            if self._thought is not part and self._thought is not None:
                self._emit(ReasoningPiece(SEPARATOR))
            self._thought = part
            self._emit(ReasoningPiece(text))

    def _argue(self, part: Characters, piece: object, position: int, name: object) -> None:
        """Add a piece of a call's arguments, and pass it on."""
        if text := self._add(part, piece):
            self._emit(ArgumentsPiece(position, str(name or ""), text))

    def _storable(self, value: Any) -> Any:
        """Return data that only the vendor understands, in a form that every store can write."""
        try:
            return storable(value)
        except ValueError:
            raise self._errors.unavailable("sent an integer with more than 308 digits") from None


def read_object(data: bytes, errors: ErrorTranslator, what: str) -> Mapping[str, Any]:
    """Return the JSON object in the data of an event; `what` names the data in errors, such as "a chunk".

    An error in a list, as Google sends it, is the object in it. Raises `ProviderUnavailable` for anything but an
    object, and `ReplyTooLarge` for an object with more than `MAX_VALUES` values.
    """
    try:
        found: Any = loads(data)
    except TooManyValues:
        raise errors.too_many(MAX_VALUES, f"values in {what}") from None
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list) and found:
        found = first if (first := as_object(cast("list[object]", found)[0])).get("error") else None
    if not isinstance(found, Mapping):
        raise errors.unavailable(f"sent {what} that is not a JSON object: {excerpt(data)}")
    return cast("Mapping[str, Any]", found)
