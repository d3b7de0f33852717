"""What a dialect is: how a vendor's server writes replies and errors, and what a request in its words means."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, cast

from ...messages import Message, ToolCall
from ._script import RecordedRequest, WireFault, WireReply, WireRequest
from ._server import Answer

__all__ = ["Dialect", "Lack", "Pairing", "Stream", "error_answer", "fields_of", "objects_of", "sse"]

Lack: TypeAlias = Literal[
    "argument_text",
    "cache_write_tokens",
    "cached_tokens",
    "content_filter",
    "ids",
    "native_output",
    "opaque_reasoning",
    "parallel_tool_calls",
    "reasoning",
    "reasoning_effort",
    "reasoning_tokens",
    "refusal",
    "split_arguments",
    "tool_choice",
]
"""What a wire format cannot say: argument text as the model wrote it (it has objects), tokens put into a cache or
read from one, a reply that was withheld, ids of calls, a schema that the reply is held to, reasoning that goes back
unread, "one call at a time", reasoning at all, how hard to reason, tokens of reasoning, a refusal, arguments in pieces,
which tool has to be called."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A reply as it is sent: `frames` are the vendor's events, each whole.

    After `whole_from` of them the reply may count as whole, before it must not.
    """

    frames: tuple[bytes, ...]
    whole_from: int
    content_type: str = "text/event-stream; charset=utf-8"


class Dialect(Protocol):
    """A vendor's wire format, from the server's side. No state; called in the server's threads."""

    @property
    def name(self) -> str:
        """A short name, for reports."""
        ...

    @property
    def lacks(self) -> frozenset[Lack]:
        """What the wire format cannot say."""
        ...

    def base_url(self, origin: str) -> str:
        """The URL that a client is given, for a server at `origin` (without a path)."""
        ...

    def serves(self, request: RecordedRequest) -> bool:
        """Whether this asks the model something; anything else is answered 404."""
        ...

    def render(self, reply: WireReply) -> Stream:
        """The reply as a stream. Raises `ConfigurationError` for what the wire cannot say."""
        ...

    def refusals(self, fault: WireFault) -> Sequence[Answer]:
        """The error answers for a fault, one for each way in which servers word it; at least one.

        `fault.retry_after_seconds` is the `Retry-After` header.
        """
        ...

    def breaks(self, message: str) -> Sequence[bytes]:
        """Frames that say an error inside a stream that began well, one for each way in which servers do it."""
        ...

    def garbage(self) -> bytes:
        """A frame that a client has to read, and that is neither JSON nor UTF-8."""
        ...

    def opaque(self, reply: WireReply) -> Sequence[str]:
        """What of this reply has to come back unread with the next request, as `WireRequest.opaque` has it."""
        ...

    def read(self, request: RecordedRequest) -> WireRequest:
        """What a request means, and which of the vendor's rules it breaks."""
        ...


# ------------------------------------------------------------------------------------------------- what dialects share


def sse(data: Mapping[str, Any] | str, event: str = "") -> bytes:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {text}\n\n".encode()


def error_answer(status: int, body: Any, fault: WireFault) -> Answer:
    """An error with a JSON body."""
    headers = {"Content-Type": "application/json"}
    if fault.retry_after_seconds is not None:
        headers["Retry-After"] = str(fault.retry_after_seconds)
    return Answer(status=status, headers=headers, frames=(json.dumps(body).encode(),), streamed=False)


def fields_of(value: object) -> Mapping[str, Any]:
    """`value` if it is an object, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def objects_of(value: object) -> list[Mapping[str, Any]]:
    """The objects in a list; none for what is no list."""
    return [fields_of(each) for each in cast("list[object]", value)] if isinstance(value, list) else []


class Pairing:
    """The rule on calls and results that all vendors have: directly behind a message with calls come their results."""

    def __init__(self, *, unique: bool) -> None:
        """`unique`: no id may be used twice in a request; else not twice in one message."""
        self.problems: list[str] = []
        self._unique = unique
        self._seen: set[str] = set()
        self._waiting: dict[str, ToolCall] = {}

    def call(self, call: ToolCall) -> None:
        """A call of the message that stands here."""
        if not call.call_id:
            self.problems.append(f"the call of {call.name!r} has no id")
        if call.call_id in (self._seen if self._unique else self._waiting):
            self.problems.append(f"the id {call.call_id!r} is used twice")
        self._seen.add(call.call_id)
        self._waiting[call.call_id] = call

    def result(self, wire_id: str) -> str:
        """A result stands here; the name of its tool."""
        call = self._waiting.pop(wire_id, None)
        if call is None:
            self.problems.append(f"a result for {wire_id!r}, which no call directly before it has as its id")
        return call.name if call else ""

    def waiting(self) -> tuple[ToolCall, ...]:
        """The calls that have no result yet, in call order."""
        return tuple(self._waiting.values())

    def other(self, role: str) -> None:
        """A message that is no result stands here, or the end."""
        for wire_id, call in self._waiting.items():
            self.problems.append(f"the call {wire_id!r} of {call.name!r} has no result before {role}")
        self._waiting.clear()

    def finish(self, messages: Sequence[Message]) -> tuple[str, ...]:
        """All that is wrong with calls and results."""
        self.other("the end")
        if not messages:
            self.problems.append("there are no messages")
        return tuple(self.problems)
