"""The errors that toolbus raises, each with whose fault it is.

Knows only the standard library. Errors are subclasses of `ToolbusError`; only an unknown keyword and an object of the
wrong kind raise `TypeError`. Foreign exceptions are translated at the adapter's edge, with `from exc`. A failure
*inside a tool* is not raised: it becomes a `ToolCallFailed` event, which is data for the model. A handler raises
`ToolError` or `ToolRetry` to write that text itself.

Example:
    from toolbus import Limits, Runtime
    from toolbus.errors import ConfigurationError, MissingExtra, Overloaded
    from toolbus.errors import LeaseLost, ProviderError, ProviderUnavailable, StoreDamaged, StoreUnavailable
    from toolbus.errors import ToolbusError, TurnLost, UnsupportedStoreFormat
    from toolbus.testing import ScriptedProvider, error

    busy = error(ProviderUnavailable("no capacity", vendor="scripted", status=503, retryable=True))
    async with Runtime(ScriptedProvider([busy]), limits=Limits(max_model_attempts=1)) as runtime:
        try:
            answer = (await runtime.run("Hello?")).text
        except Overloaded as refused:  # nothing was started
            answer = f"Try again in {refused.retry_after_seconds:.0f} seconds."
        except ProviderError as failed:  # also its subclasses, such as ProviderTimeout
            answer = failed.result.explanation  # one sentence for people
            print(failed.code, failed.fault, failed.retryable)  # provider_unavailable provider True
        except LeaseLost as taken:
            answer = f"Another process continues request {taken.request_id}."
        except (StoreUnavailable, TurnLost):
            answer = "Try again later."
        except (StoreDamaged, UnsupportedStoreFormat) as broken:  # somebody has to look at the store
            answer = f"The conversation cannot be read: {broken}"
        except ToolbusError as failed:  # every other error of toolbus
            answer = f"{failed.code}: {failed}"

    try:
        Runtime("no-such-vendor:x")
    except MissingExtra as missing:  # a ConfigurationError
        print(missing.extra)
    except ConfigurationError as wrong:
        print(wrong.fault)  # caller
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

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
    "InboxFull",
    "InvalidArguments",
    "InvalidHistory",
    "InvalidOutput",
    "LeaseLost",
    "LimitReached",
    "MissingExtra",
    "NativeOutputUnsupported",
    "NotAuthorized",
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
    "StoreUnavailable",
    "SubscriptionOverflow",
    "ToolError",
    "ToolRetry",
    "ToolbusError",
    "TurnLost",
    "UnknownRequest",
    "UnserializableResult",
    "UnsupportedStoreFormat",
]

Fault = Literal["caller", "model", "tool", "provider", "environment", "limit", "toolbus"]


class ToolbusError(Exception):
    """The base of every error that toolbus raises on purpose.

    `fault` says who can repair it: the calling code, the model, a tool, the model's provider, the environment (keys,
    disks, missing packages), a limit that worked as intended, or toolbus itself. `retryable` says whether the same call
    may succeed later without a change. `code` is a stable snake-case word for logs and for `RequestResult.reason`; the
    error catalogue in docs/reference/errors.md lists all codes. `result` is the `RequestResult` of the request that has
    ended with this error, for an error that `Runtime.run` or `RequestResult.raise_for_outcome` has raised; else None.
    """

    fault: ClassVar[Fault] = "toolbus"
    code: ClassVar[str] = "error"
    retryable: bool = False
    result: Any = None


# ------------------------------------------------------------------------------------------------ caller


class ConfigurationError(ToolbusError, ValueError):
    """A wrong set-up: for example an unknown provider name, a bad option, or a limit that is not a number."""

    fault = "caller"
    code = "configuration_error"


class MissingExtra(ConfigurationError, ImportError):
    """An optional package is not installed. `extra` names the extra that has it: `pip install 'toolbus[extra]'`."""

    code = "missing_extra"

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(f"{package!r} is not installed; install it with: pip install 'toolbus[{extra}]'")
        self.extra = extra
        self.package = package


class NotRunning(ToolbusError, RuntimeError):
    """The runtime, bus or dispatcher is not entered yet, is running already, or is closing. Nothing was started.

    It is also raised where an event loop is needed and none runs.
    """

    fault = "caller"
    code = "not_running"


class NotAuthorized(ToolbusError):
    """The application's `authorize` has refused a command to a request. The request has not seen it."""

    fault = "caller"
    code = "not_authorized"


class UnknownRequest(ToolbusError, LookupError):
    """Neither this process nor its store has a request with this id, or it was deleted since."""

    fault = "caller"
    code = "unknown_request"


class InboxFull(ToolbusError):
    """Too many inputs wait for one request, or for its model to read them. This one was not sent."""

    fault = "environment"
    code = "inbox_full"
    retryable = True


class Overloaded(ToolbusError):
    """The runtime refused the request: its slots and its queue are full. Nothing was started.

    `retry_after_seconds` is an estimate from the recent rate of endings, at least one second.
    """

    fault = "environment"
    code = "overloaded"
    retryable = True

    def __init__(self, retry_after_seconds: float, running: int, queued: int) -> None:
        super().__init__(
            f"the runtime is full ({running} running, {queued} waiting); try again in {retry_after_seconds:g} seconds"
        )
        self.retry_after_seconds = retry_after_seconds
        self.running = running
        self.queued = queued


class ConversationBusy(ToolbusError):
    """An earlier turn of the conversation still runs, and `on_busy` is "refuse".

    Nothing was started; if the earlier turn runs in another process, the request has ended as `failed`.
    """

    fault = "environment"
    code = "conversation_busy"
    retryable = True


class InvalidHistory(ToolbusError, ValueError):
    """A message list breaks the rules of tool calling. `index` is the position of the offending message.

    `problem` is the rule that the message breaks. The text also says how to repair the list, if there is a way.
    """

    fault = "caller"
    code = "invalid_history"

    def __init__(self, index: int, problem: str, way_out: str = "") -> None:
        super().__init__(f"history[{index}]: {problem}{'; ' if way_out else ''}{way_out}")
        self.index = index
        self.problem = problem


class DecodeError(ToolbusError, ValueError):
    """Bytes from outside are not an event: not JSON, of an unknown type, or with a wrong field."""

    fault = "caller"
    code = "decode_error"


# ------------------------------------------------------------------------------------------------ bus


class BusError(ToolbusError, RuntimeError):
    """The bus was used in a way that it cannot serve, such as publishing from a thread before it is running."""

    fault = "caller"
    code = "bus_error"


class SubscriptionOverflow(ToolbusError):
    """A subscription has ended because its buffer was full of events that may not be dropped.

    `capacity` is the bound in events, `position` the bus position of the event that did not fit.
    """

    fault = "caller"
    code = "subscription_overflow"

    def __init__(self, capacity: int, position: int) -> None:
        super().__init__(
            f"the subscription's buffer of {capacity} events was full at bus position {position}; "
            "read faster, subscribe to fewer types, or raise capacity="
        )
        self.capacity = capacity
        self.position = position


class ProtocolViolation(ToolbusError):
    """A fact is illegal in the phase of the turn machine: a bug in toolbus, or in a journal that was written by hand.

    The state of the turn machine is unchanged when this is raised.
    """

    fault = "toolbus"
    code = "protocol_violation"


# ------------------------------------------------------------------------------------------------ store


class StoreError(ToolbusError):
    """The store failed: for example a full disk, an I/O error, or a statement that the database refuses.

    Nothing was written, unless the connection broke during the commit: then only the next reading can show whether it
    was written. `retryable` says whether the same call may succeed later by itself. `__cause__` is the driver's own
    exception.
    """

    fault = "environment"
    code = "store_error"


class StoreUnavailable(StoreError):
    """The database is locked by another process, cannot be reached, or did not answer in time. Retryable."""

    code = "store_unavailable"
    retryable = True


class StoreDamaged(StoreError):
    """The store's data is damaged. `request_id` is the request of the damaged facts, `seq` the first damaged position.

    Facts before that position are as they were written, and can be read. If the damage is not in the facts of one
    request, `request_id` is empty.
    """

    code = "store_damaged"

    def __init__(self, message: str, *, request_id: str = "", seq: int = 0) -> None:
        super().__init__(message)
        self.request_id = request_id
        self.seq = seq


class UnsupportedStoreFormat(StoreError):
    """The store was written by a newer toolbus, in a format that this one does not know. The text names both."""

    code = "unsupported_store_format"


class LeaseLost(StoreError):
    """Another process has taken the request over, because this process's lease had run out. Nothing was written.

    `request_id` is the request, `epoch` the epoch of the lease that was lost. The other process may have ended the
    request, and it may have been deleted since.
    """

    code = "lease_lost"

    def __init__(self, request_id: str, epoch: int) -> None:
        super().__init__(f"request {request_id} was taken over by another process: lease {epoch} is out of date")
        self.request_id = request_id
        self.epoch = epoch


class TurnLost(StoreError):
    """A request has not begun, because its conversation's turn was given to another request meanwhile. Retryable.

    Its process was suspended for longer than its lease between reading the history and its first step. Nothing was
    written: start the request again. `request_id` is the request.
    """

    code = "turn_lost"
    retryable = True

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"request {request_id} has not begun, because another request of its conversation was given the turn "
            "meanwhile; start it again"
        )
        self.request_id = request_id


class ResumeMismatch(ToolbusError, ValueError):
    """A request cannot be resumed with the runtime's present set-up. The text says what differs, and what to give."""

    fault = "caller"
    code = "resume_mismatch"


# ------------------------------------------------------------------------------------------------ provider


class ProviderError(ToolbusError):
    """The model's provider failed. `status` is the HTTP status, or None.

    `retry_after_seconds` is the wait that the server asked for, or None.
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
    """The provider could not be reached, broke the connection, or answered with HTTP 408, 409, 429 or 5xx."""

    code = "provider_unavailable"


class ProviderTimeout(ProviderError):
    """The model did not begin to answer within `model_timeout_seconds`, or its stream stalled."""

    code = "provider_timeout"


class EmptyReply(ProviderError):
    """The model answered with neither text nor tool calls, twice."""

    code = "empty_reply"


class ReplyTooLarge(ProviderError):
    """The model's reply exceeded the size at which reading stops."""

    code = "reply_too_large"


class ContextOverflow(ProviderError):
    """The messages do not fit the model's context window, and cannot be shortened further.

    A provider raises this when its server reports it. Then the history is shortened more, and the model is asked once
    more in that round; after that, the next one of the request's providers is asked. `limit_tokens` is the size of the
    window if the server reported it, or None.
    """

    code = "context_overflow"

    def __init__(
        self, message: str, *, vendor: str = "", status: int | None = None, limit_tokens: int | None = None
    ) -> None:
        super().__init__(message, vendor=vendor, status=status)
        self.limit_tokens = limit_tokens


class NativeOutputUnsupported(ProviderError):
    """The server refuses the schema of `output=`: it has no structured output, or not for that schema or model.

    With `output_mode="auto"` the model is asked once more, for a tool call; with "native" the request fails.
    """

    code = "native_output_unsupported"


class ContentFiltered(ProviderError):
    """The provider withheld the reply, or the model refused to answer.

    A refusal raises this if it has no text, or if `output=` asked for a value. Asking again would give the same.
    """

    code = "content_filtered"


class ScriptError(ProviderError):
    """A scripted provider was asked for a step that its script does not have, or has steps left at the end."""

    code = "script_error"


# ------------------------------------------------------------------------------------------------ endings


class LimitReached(ToolbusError):
    """A request was `stopped`, and lacks the `output` that `Runtime.run` was asked for; or no limits are left.

    `RequestResult.raise_for_outcome` raises it for each request that was `stopped`, and `ToolContext.ask` if no limits
    are left for a sub-request.

    `limit` is the limit's name, and `value` its value: a number or, for `stop_on` and `on_failure`, a text. If the
    model itself has stopped the request, `reason` is the model's text, `limit` empty and `value` None.
    """

    fault = "limit"
    code = "limit_reached"

    def __init__(self, reason: str, *, limit: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.limit = limit
        self.value = _value(reason.partition("=")[2]) if limit else None


def _value(text: str) -> float | str:
    """Return the value of a limit: a number if `text` is one."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return text


class RequestCancelledError(ToolbusError):
    """A request was `cancelled` before it had the `output` that `Runtime.run` was asked for.

    `RequestResult.raise_for_outcome` raises it for each request that was `cancelled`.
    """

    fault = "caller"
    code = "cancelled"


class Denied(ToolbusError):
    """Raised by an interceptor, as a guardrail, to forbid what it was given.

    A tool call or its result: the call fails as `denied`, and the text is sent to the model. A prompt, a model call or
    an answer: the request fails with the text.
    """

    fault = "caller"
    code = "denied"


class InvalidOutput(ToolbusError):
    """The model did not give the structured output that was asked for, although it was informed of each mistake."""

    fault = "model"
    code = "invalid_output"


class ApplicationError(ToolbusError):
    """A hook of the application (for example instructions, or its own provider) raised; see `__cause__`."""

    fault = "caller"
    code = "application_error"


# ------------------------------------------------------------------------------------------------ tools


class ToolError(ToolbusError):
    """Raised by a handler to fail its call: the text is sent to the model as it is, as the call's error."""

    fault = "tool"
    code = "tool_error"


class ToolRetry(ToolError):
    """Raised by a handler to fail its call with a hint: the text says how the model should call again, differently."""

    code = "tool_retry"


class InvalidArguments(ToolbusError, ValueError):
    """A call's arguments cannot be parsed, are not an object, or break the tool's schema. The tool does not run.

    The text names the JSON path and what was expected; it is sent to the model.
    """

    fault = "model"
    code = "invalid_arguments"


class UnserializableResult(ToolbusError, TypeError):
    """A handler returned a value that cannot be written as JSON. The text names the type, and where the value is."""

    fault = "tool"
    code = "unserializable_result"
