"""The script of a stub server, in terms that belong to no vendor: replies, refusals, and streams that break.

Plain data. A dialect turns the script into a vendor's bytes, and `WireServer` sends them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast, get_args

from ..._option_checks import check, one_of, shown
from ...errors import ConfigurationError
from ...messages import Message, Usage
from ...protocols import FinishReason, ToolSpec
from ...providers.scripted import Step

_PIECES = 3  # enough that a client has to join the pieces


def pieces_of(whole: str, count: int = _PIECES) -> tuple[str, ...]:
    """Split `whole` into at most `count` pieces of about the same length, none of them empty."""
    size = max(1, -(-len(whole) // max(1, count)))
    return tuple(whole[start : start + size] for start in range(0, len(whole), size))


@dataclass(frozen=True, slots=True, kw_only=True)
class WireCall:
    """A tool call of a reply.

    `arguments` is the text as the model writes it, malformed or not; if the wire format has only objects, text that is
    not a JSON object raises `ConfigurationError`. `call_id` is the id on the wire: it may be empty or repeated, and
    None leaves it out. `pieces` is the argument text as it is streamed; by default in three pieces.
    """

    name: str
    arguments: str = "{}"
    call_id: str | None = "call_0"
    pieces: tuple[str, ...] = ()

    def streamed(self) -> tuple[str, ...]:
        """Return the argument text in its pieces."""
        return self.pieces or pieces_of(self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireReply:
    """A whole reply: reasoning, then text, then calls, then the finish reason.

    `text` and `reasoning` are text, or the pieces in which it is streamed. `opaque_reasoning` is reasoning that clients
    cannot read and the vendor wants back. `refusal` is the text of a model that refuses. Without a `finish_reason` the
    reason is "refusal" with a refusal, "tool_calls" with calls, else "stop". `usage` None sends no usage, if the wire
    format can leave it out. `model` is the model's name in the reply.
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
        """Return the text in the pieces in which it is streamed."""
        return pieces_of(self.text) if isinstance(self.text, str) else self.text

    def reasoning_pieces(self) -> tuple[str, ...]:
        """Return the reasoning in the pieces in which it is streamed."""
        return pieces_of(self.reasoning) if isinstance(self.reasoning, str) else self.reasoning

    def ended(self) -> FinishReason:
        """Return the reason why the reply ended."""
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
"""The reasons for which a server refuses a request: 429, 500, 503 while a model is loaded, 400, 401, 404, a history
that is longer than the model's context, and a schema that the server was asked to hold the reply to. Each vendor has
its own texts and statuses for the last two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFault:
    """An error answer instead of a reply. `message` is the server's text, unless the vendor has a fixed one.

    `retry_after_seconds` becomes a `Retry-After` header. If a vendor has several wordings for the same error, `wording`
    is the index of one (see `Dialect.refusals`). Raises `ConfigurationError` for another `kind`.
    """

    kind: FaultKind
    message: str = "the stub says no"
    retry_after_seconds: int | None = None
    wording: int = 0

    def __post_init__(self) -> None:
        check("kind", self.kind, one_of(*get_args(FaultKind)))


Breaking: TypeAlias = Literal["cut", "reset", "end", "stall", "error", "garbage", "flood"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WireBreak:
    """A reply whose stream breaks after `after` of its frames; with None, before the first byte of the answer.

    "cut" closes the connection inside the body, "reset" does so with a TCP reset, "end" ends the body as if it were
    complete; "stall" sends nothing more until `WireServer.release`, and then the rest; "error" is the vendor's error
    inside a stream, with `message`; "garbage" is an unreadable line; "flood" sends `size_bytes` without an end of line.
    """

    reply: WireReply
    how: Breaking
    after: int | None = 1
    message: str = "the stub broke off"
    wording: int = 0
    size_bytes: int = 9 * 2**20

    def __post_init__(self) -> None:
        check("how", self.how, one_of(*get_args(Breaking)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WirePage:
    """A web page instead of a reply, as proxies and wrong URLs return it."""

    status: int = 200
    html: str = "<!doctype html><html><body>It works!</body></html>"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request that a client sent. Names of `headers` are in lower case; `body` is the JSON, or None without a body.

    `connection` numbers the TCP connections, from 1.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRequest:
    """The meaning of a recorded request.

    `messages` have the wire's own ids as their `call_id`. `tools` have name, description and parameters. The reply has
    to be JSON of `output_schema`, which is in the vendor's dialect of JSON schema. `settings` has the settings that
    were sent, by the names of `ModelSettings`. `opaque` holds the opaque data that the vendor got back: signatures,
    encrypted reasoning. `problems` are the vendor's rules that the request breaks; for a valid request it is empty.
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    output_schema: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    opaque: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


WireStep: TypeAlias = WireReply | WireFault | WireBreak | WirePage | Step
"""One answer. `toolbus.testing.calls` and `text` make a `Step`, so one script can serve both kinds of stub."""

WireScript: TypeAlias = Sequence[WireStep] | Callable[[HttpRequest], WireStep]


def checked_script(script: WireScript) -> WireScript:
    """Return a script. Raises `ConfigurationError` for a step in it that a server cannot send."""
    for index, step in enumerate(() if callable(script) else script):
        if isinstance(step, Step):
            reply_of(step)
        elif not isinstance(cast("object", step), (WireReply, WireFault, WireBreak, WirePage)):
            advice = "use calls(...), text(...), WireReply(...), WireFault(...), WireBreak(...) or WirePage(...)"
            raise ConfigurationError(f"step {index} is {shown(step)}; {advice}")
    return script


def reply_of(step: Step) -> WireReply:
    """Return a scripted model's step as a reply on the wire. Raises `ConfigurationError` for a step without a reply."""
    if step.exception is not None or step.hangs:
        raise ConfigurationError("a step that raises or hangs cannot go over a wire: use WireFault or WireBreak")
    return WireReply(
        text=step.text,
        reasoning=step.reasoning,
        calls=tuple(WireCall(name=name, arguments=text, call_id=wire_id) for name, text, wire_id in step.calls),
        finish_reason=step.finish_reason,
        usage=step.usage,
    )
