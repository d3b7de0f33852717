"""What a stub of a model server says, in terms that are no vendor's: replies, refusals, and streams that break.

Plain data. A dialect makes a vendor's bytes of it, and `WireServer` sends them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ...errors import ConfigurationError
from ...messages import Message, Usage
from ...protocols import FinishReason, ToolSpec
from ...providers.scripted import Step

__all__ = [
    "FaultKind",
    "RecordedRequest",
    "WireBreak",
    "WireCall",
    "WireFault",
    "WirePage",
    "WireReply",
    "WireRequest",
    "WireScript",
    "WireStep",
    "pieces_of",
    "reply_of",
]

_PIECES = 3  # enough to see that pieces have to be joined


def pieces_of(whole: str, count: int = _PIECES) -> tuple[str, ...]:
    """`whole` in at most `count` pieces of much the same length, none of them empty."""
    size = max(1, -(-len(whole) // max(1, count)))
    return tuple(whole[start : start + size] for start in range(0, len(whole), size))


@dataclass(frozen=True, slots=True, kw_only=True)
class WireCall:
    """A tool call of a reply.

    `arguments` is the text as the model writes it, malformed or not; where the wire has objects only, text that is no
    JSON object cannot be said, and `ConfigurationError` is raised. `call_id` is the id on the wire: it may be empty or
    repeated, and None leaves it out. `pieces` are the argument text as it is streamed; by default three pieces.
    """

    name: str
    arguments: str = "{}"
    call_id: str | None = "call_0"
    pieces: tuple[str, ...] = ()

    def streamed(self) -> tuple[str, ...]:
        """The argument text in its pieces."""
        return self.pieces or pieces_of(self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireReply:
    """A whole reply: reasoning, then text, then calls, then why it ended.

    `text` and `reasoning` are text, or the pieces in which it is streamed. `opaque_reasoning` is reasoning that nobody
    may read and the vendor wants back. `refusal` is the text of a model that would not. Without a `finish_reason` it is
    "refusal" with one of these, "tool_calls" with calls, else "stop". `usage` None sends none, where that is possible.
    `model` is the name that the server gives itself.
    """

    text: str | tuple[str, ...] = ""
    reasoning: str | tuple[str, ...] = ""
    opaque_reasoning: str = ""
    calls: tuple[WireCall, ...] = ()
    refusal: str = ""
    finish_reason: FinishReason = ""
    usage: Usage | None = field(default_factory=lambda: Usage(input_tokens=20, output_tokens=10))
    model: str = "stub-model-1"

    def text_pieces(self) -> tuple[str, ...]:
        """The text as it is streamed."""
        return pieces_of(self.text) if isinstance(self.text, str) else self.text

    def reasoning_pieces(self) -> tuple[str, ...]:
        """The reasoning as it is streamed."""
        return pieces_of(self.reasoning) if isinstance(self.reasoning, str) else self.reasoning

    def ended(self) -> FinishReason:
        """Why the reply ended."""
        return self.finish_reason or ("refusal" if self.refusal else "tool_calls" if self.calls else "stop")


FaultKind: TypeAlias = Literal[
    "rate_limited",
    "server_error",
    "loading",
    "bad_request",
    "unauthorised",
    "not_found",
    "context_overflow",
    "native_output",
]
"""What a server refuses a request for: 429, 500, 503 while a model is loaded, 400, 401, 404, a history that is longer
than the model's context, and a schema that it was to hold the reply to; the last two each vendor says in words and
statuses of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFault:
    """An error answer instead of a reply. `message` is the server's word, where the vendor leaves it a choice.

    `retry_after_seconds` becomes a `Retry-After` header. Where a vendor has several ways to say the same, `wording`
    picks one (see `Dialect.refusals`).
    """

    kind: FaultKind
    message: str = "the stub says no"
    retry_after_seconds: int | None = None
    wording: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WireBreak:
    """A reply whose stream breaks after `after` of its frames; None is before a single byte of the answer.

    "cut" closes the connection inside the body, "reset" does so with a TCP reset, "end" ends the body as if it were
    whole; "stall" sends nothing more until `WireServer.release`, and then the rest; "error" is the vendor's error
    inside a stream, with `message`; "garbage" is a line of no sense; "flood" sends `size_bytes` without an end of line.
    """

    reply: WireReply
    how: Literal["cut", "reset", "end", "stall", "error", "garbage", "flood"]
    after: int | None = 1
    message: str = "the stub broke off"
    wording: int = 0
    size_bytes: int = 9 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class WirePage:
    """A web page instead of a reply, as proxies and wrong URLs give it."""

    status: int = 200
    html: str = "<!doctype html><html><body>It works!</body></html>"


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """What a client sent. Names of `headers` are in lower case; `body` is the JSON, None where there is none.

    `connection` numbers the TCP connections, from 1.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRequest:
    """What a recorded request means.

    `messages` have the wire's own ids as their `call_id`. `tools` have name, description and parameters.
    `output_schema` is what the reply has to be JSON of, in the vendor's dialect of JSON schema. `settings` has
    the names of `ModelSettings`, those that were sent. `opaque` is what the vendor got back unread: signatures,
    encrypted reasoning. `problems` are the vendor's rules that the request breaks; a valid one has none.
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    output_schema: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    opaque: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


WireStep: TypeAlias = WireReply | WireFault | WireBreak | WirePage | Step
"""One answer. A `Step` is what `toolbus.testing.calls` and `text` make, so a script can serve both kinds of stub."""

WireScript: TypeAlias = Sequence[WireStep] | Callable[[RecordedRequest], WireStep]


def reply_of(step: Step) -> WireReply:
    """A scripted model's step as a reply on the wire. Raises `ConfigurationError` for one that is no reply."""
    if step.exception is not None or step.hangs:
        raise ConfigurationError("a step that raises or hangs cannot go over a wire: use WireFault or WireBreak")
    return WireReply(
        text=step.text,
        reasoning=step.reasoning,
        calls=tuple(WireCall(name=name, arguments=text, call_id=wire_id) for name, text, wire_id in step.calls),
        finish_reason=step.finish_reason,
        usage=step.usage,
    )
