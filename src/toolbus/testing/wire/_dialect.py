"""The dialect: how a vendor's server writes replies and errors, and how it reads a request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, cast

from ...messages import Message, ToolCall
from ...schemas import as_object
from ._script import HttpRequest, WireFault, WireReply, WireRequest
from ._server import Answer

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
"""The features that a wire format may lack: argument text as the model wrote it (the format has objects), tokens that
are written to a cache or read from one, withheld replies, ids of calls, a schema for the reply, opaque reasoning that
is sent back, "one call at a time", reasoning at all, the effort of reasoning, tokens of reasoning, refusals, arguments
in pieces, and a tool that has to be called."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A reply as it is sent: `frames` are the vendor's events, each of them complete.

    After `whole_from` frames a client may take the reply as complete, but not before.
    """

    frames: tuple[bytes, ...]
    whole_from: int
    content_type: str = "text/event-stream; charset=utf-8"


class Dialect(Protocol):
    """A vendor's wire format, from the server's side. It has no state, and is called in the server's threads."""

    @property
    def name(self) -> str:
        """A short name, for reports."""
        ...

    @property
    def lacks(self) -> frozenset[Lack]:
        """The features that the wire format lacks."""
        ...

    def base_url(self, origin: str) -> str:
        """Return the URL for a client, for a server at `origin` (which has no path)."""
        ...

    def serves(self, request: HttpRequest) -> bool:
        """Return whether a request asks the model; the server answers any other request with 404."""
        ...

    def render(self, reply: WireReply) -> Stream:
        """Return the reply as a stream. Raises `ConfigurationError` for a reply that the wire format cannot express."""
        ...

    def refusals(self, fault: WireFault) -> Sequence[Answer]:
        """Return the error answers for a fault, one for each wording that servers use; at least one.

        `fault.retry_after_seconds` is the `Retry-After` header.
        """
        ...

    def breaks(self, message: str) -> Sequence[bytes]:
        """Return frames with an error inside a stream that began well, one for each form that servers use."""
        ...

    def garbage(self) -> bytes:
        """Return a frame that a client has to read, and that is neither JSON nor UTF-8."""
        ...

    def opaque(self, reply: WireReply) -> Sequence[str]:
        """Return the opaque parts of a reply that the next request has to contain, as in `WireRequest.opaque`."""
        ...

    def read(self, request: HttpRequest) -> WireRequest:
        """Return the meaning of a request, and the vendor's rules that it breaks."""
        ...


# ---------------------------------------------------------------------------------------------- shared by dialects


class OneRoute:
    """The parts of a dialect that vendors have in common: one `route`, and no opaque parts."""

    root: ClassVar[str] = ""
    """The part of the route that belongs to a client's URL."""
    route: ClassVar[str]

    def base_url(self, origin: str) -> str:
        """Implement `Dialect.base_url`."""
        return origin + self.root

    def serves(self, request: HttpRequest) -> bool:
        """Return whether the request uses the one route."""
        return (request.method, request.path.partition("?")[0]) == ("POST", self.route)

    def opaque(self, reply: WireReply) -> Sequence[str]:  # noqa: ARG002 -- named by the protocol
        """Return nothing: the wire format has no opaque parts."""
        return ()


def text_of(content: object) -> str:
    """Return the text of content, which is text itself or a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in objects_of(content))


def sse(data: Mapping[str, Any] | str, event: str = "") -> bytes:
    """Return one server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {text}\n\n".encode()


STATUSES: Mapping[str, int] = {
    "rate_limited": 429,
    "server_error": 500,
    "loading": 503,
    "bad_request": 400,
    "unauthorised": 401,
    "not_found": 404,
}
"""The HTTP status of each fault that all vendors report with the same one."""


def error_answer(status: int, body: Any, fault: WireFault) -> Answer:
    """Return an error with a JSON body."""
    headers = {"Content-Type": "application/json"}
    if fault.retry_after_seconds is not None:
        headers["Retry-After"] = str(fault.retry_after_seconds)
    return Answer(status=status, headers=headers, frames=(json.dumps(body).encode(),), streamed=False)


def objects_of(value: object) -> list[Mapping[str, Any]]:
    """Return the objects in a list; an empty list if `value` is not a list."""
    return [as_object(each) for each in cast("list[object]", value)] if isinstance(value, list) else []


class Pairing:
    """The rule that all vendors share: the results of calls come directly after the message with the calls."""

    def __init__(self, *, unique: bool) -> None:
        """Begin a request. With `unique` each id may be used once in the request, otherwise once in a message."""
        self.problems: list[str] = []
        self._unique = unique
        self._seen: set[str] = set()
        self._waiting: dict[str, ToolCall] = {}

    def call(self, call: ToolCall) -> None:
        """Add a call of the current message."""
        if not call.call_id:
            self.problems.append(f"the call of {call.name!r} has no id")
        if call.call_id in (self._seen if self._unique else self._waiting):
            self.problems.append(f"the id {call.call_id!r} is used twice")
        self._seen.add(call.call_id)
        self._waiting[call.call_id] = call

    def result(self, wire_id: str) -> str:
        """Add a result, and return the name of its tool."""
        call = self._waiting.pop(wire_id, None)
        if call is None:
            self.problems.append(f"a result for {wire_id!r}, which no call directly before it has as its id")
        return call.name if call else ""

    def waiting(self) -> tuple[ToolCall, ...]:
        """Return the calls that have no result yet, in call order."""
        return tuple(self._waiting.values())

    def other(self, role: str) -> None:
        """Add a message that is not a result, or the end."""
        for wire_id, call in self._waiting.items():
            self.problems.append(f"the call {wire_id!r} of {call.name!r} has no result before {role}")
        self._waiting.clear()

    def finish(self, messages: Sequence[Message]) -> tuple[str, ...]:
        """Return all problems of calls and results."""
        self.other("the end")
        if not messages:
            self.problems.append("there are no messages")
        return tuple(self.problems)
