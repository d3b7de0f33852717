"""The errors that toolbus raises, and whose fault each of them is.

Knows nothing but the standard library. Everything raised on purpose is a `ToolbusError`; foreign exceptions are
translated at the adapter's edge, with `from exc`. What goes wrong *inside a tool* is not raised at all: it becomes a
`ToolCallFailed` event, data for the model. `ToolError` and `ToolRetry` are how a handler words that data itself.
"""

from __future__ import annotations

from typing import ClassVar, Literal

__all__ = [
    "ApplicationError",
    "BusError",
    "ConfigurationError",
    "ContentFiltered",
    "ContextOverflow",
    "ConversationBusy",
    "DecodeError",
    "Denied",
    "EmptyReply",
    "Fault",
    "InvalidArguments",
    "InvalidHistory",
    "InvalidOutput",
    "LeaseLost",
    "LimitReached",
    "MissingExtra",
    "NativeOutputUnsupported",
    "NotRunning",
    "Overloaded",
    "ProtocolViolation",
    "ProviderError",
    "ProviderRejected",
    "ProviderTimeout",
    "ProviderUnavailable",
    "ReplyTooLarge",
    "RequestCancelledError",
    "ResumeMismatch",
    "ScriptError",
    "StoreDamaged",
    "StoreError",
    "StoreFormat",
    "StoreUnavailable",
    "SubscriptionOverflow",
    "ToolError",
    "ToolRetry",
    "ToolbusError",
    "UnserialisableResult",
]

Fault = Literal["caller", "model", "tool", "provider", "environment", "limit", "toolbus"]


class ToolbusError(Exception):
    """Base of every error that toolbus raises on purpose.

    `fault` says who can mend it: the calling code, the model, a tool, the model's provider, the environment
    (keys, disks, missing packages), a limit that did its work, or toolbus itself. `retryable` says whether the
    same call may succeed later without a change. `code` is a stable snake-case word for logs and for
    `RequestResult.reason`; the error catalogue in docs/reference/errors.md lists them all.
    """

    fault: ClassVar[Fault] = "toolbus"
    code: ClassVar[str] = "error"
    retryable: bool = False


# ------------------------------------------------------------------------------------------------ caller


class ConfigurationError(ToolbusError, ValueError):
    """Something was put together wrongly: an unknown provider name, a bad option, a limit that is no number."""

    fault = "caller"
    code = "configuration"


class MissingExtra(ConfigurationError, ImportError):
    """An optional package is not installed. `extra` is what to install: `pip install 'toolbus[extra]'`."""

    code = "missing_extra"

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(f"{package!r} is not installed; install it with: pip install 'toolbus[{extra}]'")
        self.extra = extra
        self.package = package


class NotRunning(ToolbusError, RuntimeError):
    """The runtime, bus or dispatcher is not entered yet, or is closing; nothing was started."""

    fault = "caller"
    code = "not_running"


class Overloaded(ToolbusError):
    """Admission refused the request: all places and the queue are full. Nothing was started.

    `retry_after_seconds` is an estimate from the recent rate of endings, at least one second.
    """

    fault = "environment"
    code = "overloaded"
    retryable = True

    def __init__(self, retry_after_seconds: float, running: int, queued: int) -> None:
        super().__init__(
            f"{running} requests are running and {queued} wait; try again in {retry_after_seconds:g} seconds"
        )
        self.retry_after_seconds = retry_after_seconds
        self.running = running
        self.queued = queued


class ConversationBusy(ToolbusError):
    """A turn was begun while an earlier one of its conversation runs, and `on_busy="refuse"`. Nothing was started."""

    fault = "environment"
    code = "conversation_busy"
    retryable = True


class InvalidHistory(ToolbusError, ValueError):
    """A message list breaks the rules of tool calling. `index` is the offending message's place in it.

    `problem` is the rule that it breaks; the text says as well what mends it, where something does.
    """

    fault = "caller"
    code = "invalid_history"

    def __init__(self, index: int, problem: str, way_out: str = "") -> None:
        super().__init__(f"history[{index}]: {problem}{'; ' if way_out else ''}{way_out}")
        self.index = index
        self.problem = problem


class DecodeError(ToolbusError, ValueError):
    """Bytes from outside are no event: not JSON, of an unknown type, or with a wrong field."""

    fault = "caller"
    code = "decode"


# ------------------------------------------------------------------------------------------------ bus


class BusError(ToolbusError, RuntimeError):
    """The bus was used in a way that it cannot serve, such as publishing from a thread before it is running."""

    fault = "caller"
    code = "bus"


class SubscriptionOverflow(ToolbusError):
    """A subscription's buffer was full of what may not be dropped, so the subscription has ended.

    `capacity` is the bound, `position` the bus position of the event that did not fit.
    """

    fault = "caller"
    code = "subscription_overflow"

    def __init__(self, capacity: int, position: int) -> None:
        super().__init__(
            f"the subscription's {capacity} places were full at bus position {position}; "
            "read faster, subscribe to fewer types, or raise capacity="
        )
        self.capacity = capacity
        self.position = position


class ProtocolViolation(ToolbusError):
    """A fact that is illegal in the turn machine's phase: a bug in toolbus or in a hand-made journal.

    The machine's state is unchanged when this is raised.
    """

    fault = "toolbus"
    code = "protocol_violation"


# ------------------------------------------------------------------------------------------------ store


class StoreError(ToolbusError):
    """The store could not do what it was asked: a full disk, an I/O error, a statement that the database refuses.

    Nothing of it was written, unless the connection broke while it was committed: then the next reading tells.
    `retryable` is whether the same may work later without anybody's help. `__cause__` is the driver's own exception.
    """

    fault = "environment"
    code = "store_error"

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class StoreUnavailable(StoreError):
    """The database is locked by somebody else, out of reach, or did not answer in time. Retryable."""

    code = "store_unavailable"

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=True)


class StoreDamaged(StoreError):
    """What the store holds is not what was written. `request_id` is whose facts, `seq` the first that is not whole.

    Facts before it are as they were written, and can be read. Where the damage lies outside of one request's facts,
    `request_id` is empty.
    """

    code = "store_damaged"

    def __init__(self, message: str, *, request_id: str = "", seq: int = 0) -> None:
        super().__init__(message)
        self.request_id = request_id
        self.seq = seq


class StoreFormat(StoreError):
    """The store was written by a newer toolbus, in a format that this one does not know; its text names both."""

    code = "store_format"


class LeaseLost(StoreError):
    """Another process has taken the request over, since this one's lease had run out. Nothing of it was written.

    `request_id` is the request, `epoch` that of the lease that was lost.
    """

    code = "lease_lost"

    def __init__(self, request_id: str, epoch: int) -> None:
        super().__init__(f"request {request_id} was taken over by another process: lease {epoch} is out of date")
        self.request_id = request_id
        self.epoch = epoch


class ResumeMismatch(ToolbusError, ValueError):
    """A request cannot go on with what the runtime has now: its text says what differs, and what to give."""

    fault = "caller"
    code = "resume_mismatch"


# ------------------------------------------------------------------------------------------------ provider


class ProviderError(ToolbusError):
    """The model's provider failed. `status` is the HTTP status where there was one.

    `retry_after_seconds` is what the server asked for, if it did.
    """

    fault = "provider"
    code = "provider_error"

    def __init__(
        self,
        message: str,
        *,
        vendor: str = "",
        status: int | None = None,
        retryable: bool = False,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.vendor = vendor
        self.status = status
        self.retryable = retryable
        self.retry_after_seconds = retry_after_seconds


class ProviderRejected(ProviderError):
    """The provider refused the request itself (HTTP 4xx): a wrong key, model or parameter. Not retryable."""

    code = "provider_rejected"


class ProviderUnavailable(ProviderError):
    """The provider could not be reached, broke the connection, or answered 408, 409, 429 or 5xx."""

    code = "provider_unavailable"


class ProviderTimeout(ProviderError):
    """The model did not answer within `model_timeout_seconds`, or its stream stood still."""

    code = "provider_timeout"


class EmptyReply(ProviderError):
    """The model answered with neither text nor tool calls, twice."""

    code = "empty_reply"


class ReplyTooLarge(ProviderError):
    """The model's reply passed the size at which reading stops."""

    code = "reply_too_large"


class ContextOverflow(ProviderError):
    """What would be sent does not fit the model's context window, and cannot be shortened further.

    Raised by a provider when its server says so: then the history is shortened harder, and the model asked once more in
    that round; after that, the next of the request's providers. `limit_tokens` is the window's size where the server
    told it.
    """

    code = "context_overflow"

    def __init__(
        self, message: str, *, vendor: str = "", status: int | None = None, limit_tokens: int | None = None
    ) -> None:
        super().__init__(message, vendor=vendor, status=status)
        self.limit_tokens = limit_tokens


class NativeOutputUnsupported(ProviderError):
    """The server does not take the schema of `output=`: it has no structured output, or not for that schema or model.

    With `output_mode="auto"` the model is asked once more, for a call of a tool; with "native" the request fails.
    """

    code = "native_output_unsupported"


class ContentFiltered(ProviderError):
    """The provider withheld the reply, or the model refused: without a word, or where `output=` asked for a value.

    Asking again gives the same.
    """

    code = "content_filtered"


class ScriptError(ProviderError):
    """A scripted provider was asked for a step that its script does not have, or kept steps nobody asked for."""

    code = "script"


# ------------------------------------------------------------------------------------------------ endings


class LimitReached(ToolbusError):
    """A request ended `stopped` and the caller asked for exceptions. `reason` names the limit and its value."""

    fault = "limit"
    code = "limit"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RequestCancelledError(ToolbusError):
    """A request ended `cancelled` and the caller asked for exceptions."""

    fault = "caller"
    code = "cancelled"


class Denied(ToolbusError):
    """Raised by an interceptor: what it was shown may not go on. The text is told to the model, or ends the request."""

    fault = "caller"
    code = "denied"


class InvalidOutput(ToolbusError):
    """The model did not give the structured output that was asked for, however often it was told what was wrong."""

    fault = "model"
    code = "invalid_output"


class ApplicationError(ToolbusError):
    """A hook that the application gave (instructions, a provider of its own) raised; see `__cause__`."""

    fault = "caller"
    code = "application_error"


# ------------------------------------------------------------------------------------------------ tools


class ToolError(ToolbusError):
    """Raised by a handler: the text reaches the model as written, as the call's error."""

    fault = "tool"
    code = "tool_error"


class ToolRetry(ToolError):
    """Raised by a handler: the text is a hint to the model on how to call again, differently."""

    code = "tool_retry"


class InvalidArguments(ToolbusError, ValueError):
    """A call's arguments are unparsable, no object, or break the tool's schema. The tool does not run.

    The text names the JSON path and what was expected; it is sent to the model.
    """

    fault = "model"
    code = "invalid_arguments"


class UnserialisableResult(ToolbusError, TypeError):
    """A handler returned what cannot be written as JSON. The text names the type and where it is."""

    fault = "tool"
    code = "unserialisable_result"
