"""The bodies of calls on their way to workers: the event, and in a second line the transcript, if the tool asks for it.

Knows events and messages. Must not know a broker.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..events import Event, decode, encode
from ..messages import Message
from ..records import JsonForm, json_bytes

__all__ = ["call_body", "read_call"]

_transcript = JsonForm[list[Message]](list[Message], "the transcript")


def call_body(requested: Event, messages: Sequence[Message] | None) -> bytes:
    """Return the body of a call. Neither of its two lines has a line break in it."""
    body = encode(requested)
    return body if messages is None else b"\n".join((body, json_bytes(list(messages))))


def read_call(body: bytes) -> tuple[Event, Sequence[Message]]:
    """Return the event of a body, and the transcript that came along, or (). Raises `DecodeError`."""
    event, _, messages = body.partition(b"\n")
    return decode(event), _transcript.read(messages) if messages else ()
