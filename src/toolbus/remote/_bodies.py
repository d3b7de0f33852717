"""The bodies of the messages with calls and answers: events, transcripts, and references to payloads.

A body that does not fit into one message is a payload: the transport keeps it beside the messages, and a reference to
it is sent instead. Knows events and messages. Must not know a broker.

    a call        event                             or  event LF transcript, if the tool asks for it
    a large call  event without arguments LF @reference, whose payload is one of the two above
    an answer     event                             or  @reference, whose payload is the event

A line contains no line break.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..errors import DecodeError
from ..events import Event, ToolCallRequested, decode, encode
from ..messages import Message
from ..records import JsonForm, json_bytes, replace

MAX_BYTES = 8 * 2**20
"""The most bytes of a payload: to read or write it takes half of the 100 ms for which an event loop may be held."""

_transcript = JsonForm[list[Message]](list[Message], "the transcript")


class Reference(msgspec.Struct, frozen=True):
    """The reference to a payload of a call: its size, the number of its parts, and the SHA-256 of its bytes."""

    request: str
    call: str
    digest: str
    bytes: int
    parts: int

    @property
    def key(self) -> tuple[str, str]:
        """The id of the call's request, and the call's own id."""
        return (self.request, self.call)

    @property
    def line(self) -> bytes:
        """The reference as a line, which cannot be the beginning of an event."""
        return b"@" + msgspec.json.encode(self)


_reference = JsonForm[Reference](Reference, "the reference to a payload")


def reference_in(line: bytes) -> Reference | None:
    """Return the reference in a line; None for any other line. Raises `DecodeError` for an invalid reference."""
    if not line.startswith(b"@"):
        return None
    found = _reference.read(line[1:])
    if not (0 < found.parts <= found.bytes <= MAX_BYTES and len(found.digest) == 64 and found.digest.isalnum()):
        raise DecodeError(f"the reference to a payload is not one to at most {MAX_BYTES:,} bytes")
    return found


def larger_than(limit: int) -> str:
    """Return a limit of `limit` bytes in words, to follow "it is"."""
    return f"larger than {limit:,} bytes"


def call_body(requested: Event, messages: Sequence[Message] | None) -> bytes:
    """Return the body of a call that fits into one message, or its payload."""
    body = encode(requested)
    return body if messages is None else b"\n".join((body, json_bytes(list(messages))))


def large_call(requested: ToolCallRequested, reference: Reference) -> bytes:
    """Return the body of a call that has a payload. It is enough for a worker to decide whether it may run the call."""
    return b"\n".join((encode(replace(requested, arguments={})), reference.line))


def read_call(body: bytes) -> tuple[Event, Sequence[Message], Reference | None]:
    """Return the event of a body, the transcript that was sent with it, and the reference to the whole call.

    The transcript is () and the reference None if the body has none. Raises `DecodeError`.
    """
    event, _, rest = body.partition(b"\n")
    reference = reference_in(rest)
    messages = _transcript.read(rest) if rest and reference is None else ()
    return decode(event), messages, reference
