"""The spans and metrics themselves. Imports the API of OpenTelemetry, when an `OpenTelemetry` is made."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from time import perf_counter
from typing import Any

import anyio
from opentelemetry import context, metrics, trace
from opentelemetry.trace import Link, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from .._version import __version__
from ..bus import EventBus
from ..errors import ToolbusError
from ..events import (
    ApprovalDecided,
    ApprovalOverdue,
    ApprovalRequested,
    DeadLetter,
    Event,
    LoopBlocked,
    ModelResponded,
    ModelRetrying,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RequestResumed,
    RequestTakenOver,
    SubscriptionFull,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallOverdue,
    ToolCallRequested,
)
from ..failures import ReportedFailure, is_cancellation
from ..protocols import ModelReply, ModelRequest, Provider, RequestView
from ..request_result import RequestResult
from ..tool_results import Rendered
from . import _names as names
from ._content import input_messages, json_text, output_messages, system_instructions

__all__ = ["Counts", "Spans", "continued"]

_W3C = TraceContextTextMapPropagator()

# The boundaries of the histograms, in seconds and in tokens, are those that the conventions advise.
_SECONDS = [0.01 * 2**power for power in range(14)]
_REQUEST_SECONDS = [0.1 * 2**power for power in range(13)]
_TOKENS = [4**power for power in range(14)]


class Spans:
    """The spans around the work of requests, and the metrics of how long it took."""

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None,
        meter_provider: metrics.MeterProvider | None,
        *,
        include_content: bool,
    ) -> None:
        self.tracer = trace.get_tracer("toolbus", __version__, tracer_provider)
        self.include_content = include_content
        meter = metrics.get_meter("toolbus", __version__, meter_provider)
        histogram = functools.partial(meter.create_histogram, unit="s")
        self.request_seconds = histogram(
            names.REQUEST_SECONDS, explicit_bucket_boundaries_advisory=_REQUEST_SECONDS, description="Requests"
        )
        self.model_seconds = histogram(
            names.MODEL_SECONDS, explicit_bucket_boundaries_advisory=_SECONDS, description="Model calls, each attempt"
        )
        self.tool_seconds = histogram(
            names.TOOL_SECONDS, explicit_bucket_boundaries_advisory=_SECONDS, description="Tools, each attempt"
        )
        self.tokens = meter.create_histogram(
            names.TOKEN_USAGE,
            unit="{token}",
            explicit_bucket_boundaries_advisory=_TOKENS,
            description="Tokens of one model call",
        )
        self.running = meter.create_up_down_counter(
            names.REQUESTS_RUNNING, unit="{request}", description="Requests that run or wait, with sub-requests"
        )

    def request(self, view: RequestView) -> Recorded:
        """Return the span of a request, with a link to the span of the process that has begun it."""
        return _RequestSpan(self, view)

    def model(self, request: ModelRequest, provider: Provider) -> Recorded:
        """Return the span of one call of a model."""
        return _ModelSpan(self, request, provider)

    def tool(self, requested: ToolCallRequested) -> Recorded:
        """Return the span of one attempt of a tool's handler."""
        return _ToolSpan(self, requested)

    def carried(self) -> Mapping[str, str]:
        """Return the present span as text; nothing without an SDK."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return carrier


class Recorded:
    """A span that is current in its block, and the measurement of how long the block took.

    `measured` are the attributes of both, and may get more until the end; `known` are those of the span only. It is a
    class and not a generator, since each request has a dozen of them.
    """

    __slots__ = ("_began", "_known", "_measured", "_name", "_seconds", "_span", "_spans", "_token")

    kind = SpanKind.INTERNAL

    def __init__(
        self, spans: Spans, name: str, seconds: metrics.Histogram, measured: dict[str, Any], known: dict[str, Any]
    ) -> None:
        self._spans = spans
        self._name = name
        self._seconds = seconds
        self._measured = measured
        self._known = known

    def __enter__(self) -> Callable[[Any], object] | None:
        self._began = perf_counter()
        attributes = {**self._measured, **self._known}
        self._span = span = self._spans.tracer.start_span(self._name, None, self.kind, attributes, self.links())
        # Without an SDK there is nothing to make current.
        self._token = context.attach(trace.set_span_in_context(span)) if span is not trace.INVALID_SPAN else None
        if self._spans.include_content and span.is_recording():
            self.add_content()
        return self.ended

    def __exit__(self, _kind: object, exc: BaseException | None, _trace: object) -> None:
        if exc is not None:
            self.fail(_error_type(exc))
        self._seconds.record(perf_counter() - self._began, self._measured)
        if self._token is not None:
            context.detach(self._token)
        self._span.end()

    def fail(self, error_type: str) -> None:
        """Mark the span and the measurement as failed."""
        self._measured[names.ERROR_TYPE] = error_type
        self._span.set_attribute(names.ERROR_TYPE, error_type)
        self._span.set_status(StatusCode.ERROR)

    def links(self) -> Sequence[Link]:
        """Return the spans of other traces that this one follows."""
        return ()

    def add_content(self) -> None:
        """Add what the work is about."""

    def ended(self, outcome: Any) -> None:
        """Add what the outcome says."""


class _RequestSpan(Recorded):
    __slots__ = ("_begun_with",)

    def __init__(self, spans: Spans, view: RequestView) -> None:
        measured = {names.OPERATION: names.INVOKE_AGENT}
        known = {names.CONVERSATION: view.conversation_id, names.REQUEST_ID: view.request_id}
        super().__init__(spans, names.INVOKE_AGENT, spans.request_seconds, measured, known)
        self._begun_with = view.begun_with

    def __enter__(self) -> Callable[[Any], object] | None:
        self._spans.running.add(1)
        return super().__enter__()

    def __exit__(self, _kind: object, exc: BaseException | None, _trace: object) -> None:
        self._spans.running.add(-1)
        super().__exit__(_kind, exc, _trace)

    def links(self) -> Sequence[Link]:
        return () if self._begun_with is None else _links(self._begun_with)

    def ended(self, outcome: RequestResult[Any]) -> None:
        span = self._span
        # A request that continues in another process has not failed.
        is_left = outcome.resumable and outcome.outcome == "cancelled"
        self._measured[names.OUTCOME] = word = "left" if is_left else outcome.outcome
        span.set_attribute(names.OUTCOME, word)
        if outcome.limit:
            span.set_attribute(names.LIMIT, outcome.limit)
        if outcome.cost:
            span.set_attribute(names.COST, outcome.cost)
        if outcome.outcome == "failed":
            self.fail(outcome.reason)
        elif word == "cancelled":
            # The reason is the application's own text.
            self.fail("cancelled")


class _ModelSpan(Recorded):
    __slots__ = ("_request",)

    kind = SpanKind.CLIENT

    def __init__(self, spans: Spans, request: ModelRequest, provider: Provider) -> None:
        model = getattr(provider, "model", "") or ""
        measured = {names.OPERATION: names.CHAT, names.PROVIDER: provider.vendor}
        if model:
            measured[names.REQUEST_MODEL] = model
        known: dict[str, Any] = {
            names.CONVERSATION: request.conversation_id,
            names.REQUEST_ID: request.request_id,
            names.ROUND: request.round,
        }
        settings = request.settings
        if settings.max_output_tokens is not None:
            known[names.REQUEST_MAX_TOKENS] = settings.max_output_tokens
        if settings.temperature is not None:
            known[names.REQUEST_TEMPERATURE] = settings.temperature
        name = f"{names.CHAT} {model}" if model else names.CHAT
        super().__init__(spans, name, spans.model_seconds, measured, known)
        self._request = request

    def add_content(self) -> None:
        messages = self._request.messages
        self._span.set_attribute(names.SYSTEM_INSTRUCTIONS, system_instructions(messages))
        self._span.set_attribute(names.INPUT_MESSAGES, input_messages(messages))

    def ended(self, outcome: ModelReply) -> None:
        usage, span, measured = outcome.usage, self._span, self._measured
        if outcome.model:
            measured[names.RESPONSE_MODEL] = outcome.model
        for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            if count:
                self._spans.tokens.record(count, {**measured, names.TOKEN_TYPE: kind})
        if not span.is_recording():
            return
        found = {
            names.RESPONSE_MODEL: outcome.model,
            names.FINISH_REASONS: [outcome.finish_reason] if outcome.finish_reason else [],
            names.INPUT_TOKENS: usage.input_tokens,
            names.OUTPUT_TOKENS: usage.output_tokens,
            names.CACHE_READ_TOKENS: usage.cached_tokens,
            names.CACHE_WRITE_TOKENS: usage.cache_write_tokens,
            names.REASONING_TOKENS: usage.reasoning_tokens,
        }
        span.set_attributes({name: value for name, value in found.items() if value})
        if self._spans.include_content:
            span.set_attribute(names.OUTPUT_MESSAGES, output_messages(outcome))


class _ToolSpan(Recorded):
    __slots__ = ("_arguments",)

    def __init__(self, spans: Spans, requested: ToolCallRequested) -> None:
        measured = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: requested.name,
        }
        known = {
            names.TOOL_TYPE: "function",
            names.TOOL_CALL_ID: requested.provider_call_id or requested.call_id,
            names.CONVERSATION: requested.conversation_id,
            names.REQUEST_ID: requested.request_id,
        }
        super().__init__(spans, f"{names.EXECUTE_TOOL} {requested.name}", spans.tool_seconds, measured, known)
        self._arguments = requested.arguments

    def __enter__(self) -> Callable[[Any], object] | None:
        ended = super().__enter__()
        # A result that nobody wants is not rendered here.
        return ended if self._spans.include_content and self._span.is_recording() else None

    def add_content(self) -> None:
        self._span.set_attribute(names.TOOL_ARGUMENTS, json_text(self._arguments))

    def ended(self, outcome: Rendered) -> None:
        self._span.set_attribute(names.TOOL_RESULT, outcome.content)


def _error_type(exc: BaseException) -> str:
    """Return a word for an exception: a code of toolbus, "cancelled", or its class. Its text may have secrets in it."""
    if isinstance(exc, ToolbusError):
        return exc.code
    if isinstance(exc, ReportedFailure):
        return exc.failure.reason
    with contextlib.suppress(anyio.NoEventLoopError):  # raised in a handler's thread
        if is_cancellation(exc):
            return "cancelled"
    kind = type(exc)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _links(carried: Mapping[str, Any]) -> list[Link]:
    """Return a link to the span that was carried, if there is one."""
    texts = {name: text for name, text in carried.items() if isinstance(text, str)}
    found = trace.get_current_span(_W3C.extract(texts, context.Context())).get_span_context()
    return [Link(found)] if found.is_valid else []


@contextlib.contextmanager
def continued(carried: Mapping[str, str]) -> Generator[None]:
    """Make the span current that was carried."""
    token = context.attach(_W3C.extract(carried))
    try:
        yield
    finally:
        context.detach(token)


class Counts:
    """The metrics of what is published on a bus."""

    def __init__(self, meter_provider: metrics.MeterProvider | None) -> None:
        meter = metrics.get_meter("toolbus", __version__, meter_provider)
        counter = meter.create_counter
        self._calls = counter(names.TOOL_CALLS, unit="{call}", description="Tool calls that were settled, by reason")
        self._late = counter(names.LATE_RESULTS, unit="{result}", description="Results of calls that were settled")
        self._letters = counter(names.DEAD_LETTERS, unit="{letter}", description="Events for which nobody had a use")
        self._retries = counter(names.MODEL_RETRIES, unit="{retry}", description="Model calls that are made again")
        self._cost = counter(names.MODEL_COST, unit="{USD}", description="Cost of replies, by the table of prices")
        self._overdue = counter(names.CALLS_OVERDUE, unit="{call}", description="Cancelled calls that still run")
        self._full = counter(names.SUBSCRIPTIONS_FULL, unit="{time}", description="Slow readers that lose events")
        self._forgotten = counter(names.APPROVALS_OVERDUE, unit="{question}", description="Questions left unanswered")
        self._resumed = counter(names.REQUESTS_RESUMED, unit="{request}", description="Requests continued here")
        self._lost = counter(names.LEASES_LOST, unit="{lease}", description="Requests that others have taken over")
        self._blocked = meter.create_histogram(
            names.LOOP_BLOCKED,
            unit="s",
            explicit_bucket_boundaries_advisory=_SECONDS,
            description="Times in which the event loop was blocked",
        )
        self._waiting = meter.create_up_down_counter(
            names.APPROVALS_WAITING, unit="{question}", description="Questions that wait for a person"
        )
        self._asked: dict[str, set[str]] = {}  # the calls of these questions, by the id of their request
        self._counters: dict[type[Event], Callable[[Any], None]] = {
            ToolCallCompleted: self._settled,
            ToolCallFailed: self._settled,
            ApprovalRequested: self._ask,
            ApprovalDecided: self._answer,
            ToolCallLate: lambda late: self._late.add(1, {names.TOOL_NAME: late.name}),
            DeadLetter: lambda letter: self._letters.add(1, {names.LETTER: letter.letter_type}),
            ToolCallOverdue: lambda overdue: self._overdue.add(1, {names.TOOL_NAME: overdue.name}),
            LoopBlocked: lambda blocked: self._blocked.record(
                blocked.seconds, {names.TOOL_NAME: blocked.name} if blocked.name else {}
            ),
            SubscriptionFull: lambda _full: self._full.add(1),
            ApprovalOverdue: lambda overdue: self._forgotten.add(1, {names.TOOL_NAME: overdue.name}),
            RequestResumed: lambda _resumed: self._resumed.add(1),
            RequestTakenOver: self._lose,
            RequestCompleted: self._end,
            RequestFailed: self._end,
            RequestCancelled: self._end,
            ModelRetrying: lambda retrying: self._retries.add(1, {names.ERROR_TYPE: retrying.reason}),
            ModelResponded: self._spend,
        }

    def connect(self, bus: EventBus) -> Callable[[], None]:
        """Count the events of `bus` until the returned function is called."""
        return bus.connect(tuple(self._counters), lambda event: self._counters[type(event)](event))

    def _settled(self, event: ToolCallCompleted | ToolCallFailed) -> None:
        reason = event.reason if isinstance(event, ToolCallFailed) else ""
        # The model may have made up any name of a tool that does not exist.
        name = "" if reason == "unknown_tool" else event.name
        self._calls.add(1, {names.TOOL_NAME: name, **({names.ERROR_TYPE: reason} if reason else {})})
        self._answer(event)

    def _ask(self, event: ApprovalRequested) -> None:
        asked = self._asked.setdefault(event.request_id, set())
        if event.call_id not in asked:
            asked.add(event.call_id)
            self._waiting.add(1)

    def _answer(self, event: ApprovalDecided | ToolCallCompleted | ToolCallFailed) -> None:
        asked = self._asked.get(event.request_id)
        if asked is not None and event.call_id in asked:
            asked.remove(event.call_id)
            self._waiting.add(-1)

    def _end(self, event: Event) -> None:
        """Forget the questions of a request that has ended, or was left: its calls may have no terminal event."""
        if asked := self._asked.pop(event.request_id, None):
            self._waiting.add(-len(asked))

    def _lose(self, event: RequestTakenOver) -> None:
        self._lost.add(1)
        self._end(event)

    def _spend(self, event: ModelResponded) -> None:
        if event.cost:
            self._cost.add(event.cost, {names.PROVIDER: event.vendor, names.RESPONSE_MODEL: event.model})
