"""The spans and metrics themselves. Imports the API of OpenTelemetry, when an `OpenTelemetry` is made."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from time import perf_counter
from typing import Any

import anyio
from opentelemetry import context, metrics, trace
from opentelemetry.trace import Link, Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from .._version import __version__
from ..bus import EventBus
from ..errors import ToolbusError
from ..events import (
    ApprovalDecided,
    ApprovalRequested,
    DeadLetter,
    Event,
    ModelResponded,
    ModelRetrying,
    SubscriberLagged,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallRequested,
)
from ..failures import ReportedFailure, is_cancellation
from ..instrumentation import ModelEnded, RequestEnded, ToolEnded
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
        self._tracer = trace.get_tracer("toolbus", __version__, tracer_provider)
        self._content = include_content
        meter = metrics.get_meter("toolbus", __version__, meter_provider)
        histogram = functools.partial(meter.create_histogram, unit="s")
        self._request_seconds = histogram(
            names.REQUEST_SECONDS, explicit_bucket_boundaries_advisory=_REQUEST_SECONDS, description="Requests"
        )
        self._model_seconds = histogram(
            names.MODEL_SECONDS, explicit_bucket_boundaries_advisory=_SECONDS, description="Model calls, each attempt"
        )
        self._tool_seconds = histogram(
            names.TOOL_SECONDS, explicit_bucket_boundaries_advisory=_SECONDS, description="Tools, each attempt"
        )
        self._tokens = meter.create_histogram(
            names.TOKEN_USAGE,
            unit="{token}",
            explicit_bucket_boundaries_advisory=_TOKENS,
            description="Tokens of one model call",
        )
        self._running = meter.create_up_down_counter(
            names.REQUESTS_RUNNING, unit="{request}", description="Requests that run, with sub-requests"
        )

    @contextlib.contextmanager
    def request(self, view: RequestView) -> Generator[RequestEnded]:
        """Record a request, with a link to the span of the process that has begun it."""
        measured = {names.OPERATION: names.INVOKE_AGENT}
        known = {names.CONVERSATION: view.conversation_id, names.REQUEST_ID: view.request_id}
        links = _links(view.begun_with or {})
        self._running.add(1)
        try:
            with self._span("", self._request_seconds, measured, known, links=links) as span:
                yield functools.partial(_request_ended, span, measured)
        finally:
            self._running.add(-1)

    @contextlib.contextmanager
    def model(self, request: ModelRequest, provider: Provider) -> Generator[ModelEnded]:
        """Record one call of a model."""
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
        if self._content:
            known[names.SYSTEM_INSTRUCTIONS] = system_instructions(request.messages)
            known[names.INPUT_MESSAGES] = input_messages(request.messages)
        with self._span(model, self._model_seconds, measured, known, kind=SpanKind.CLIENT) as span:
            yield functools.partial(self._replied, span, measured)

    @contextlib.contextmanager
    def tool(self, requested: ToolCallRequested) -> Generator[ToolEnded | None]:
        """Record one attempt of a tool's handler."""
        measured = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: requested.name,
            names.TOOL_TYPE: "function",
        }
        known = {
            names.TOOL_CALL_ID: requested.provider_call_id or requested.call_id,
            names.CONVERSATION: requested.conversation_id,
            names.REQUEST_ID: requested.request_id,
        }
        if self._content:
            known[names.TOOL_ARGUMENTS] = json_text(requested.arguments)
        with self._span(requested.name, self._tool_seconds, measured, known) as span:
            yield functools.partial(_returned, span) if self._content else None

    def carried(self) -> Mapping[str, str]:
        """Return the present span as text; nothing without an SDK."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return carrier

    @contextlib.contextmanager
    def _span(
        self,
        name: str,
        seconds: metrics.Histogram,
        measured: dict[str, Any],
        known: Mapping[str, Any],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Link] = (),
    ) -> Generator[Span]:
        """Make a span current, and record how long it took. `measured` are the attributes of both, `known` the span's.

        `measured` may get more until the end.
        """
        began = perf_counter()
        with self._tracer.start_as_current_span(
            f"{measured[names.OPERATION]} {name}".rstrip(),
            kind=kind,
            attributes={**measured, **known},
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as exc:
                _failed(span, measured, _error_type(exc))
                raise
            finally:
                seconds.record(perf_counter() - began, measured)

    def _replied(self, span: Span, measured: dict[str, Any], reply: ModelReply) -> None:
        usage = reply.usage
        if reply.model:
            measured[names.RESPONSE_MODEL] = reply.model
            span.set_attribute(names.RESPONSE_MODEL, reply.model)
        if reply.finish_reason:
            span.set_attribute(names.FINISH_REASONS, [reply.finish_reason])
        counted = {
            names.INPUT_TOKENS: usage.input_tokens,
            names.OUTPUT_TOKENS: usage.output_tokens,
            names.CACHE_READ_TOKENS: usage.cached_tokens,
            names.CACHE_WRITE_TOKENS: usage.cache_write_tokens,
            names.REASONING_TOKENS: usage.reasoning_tokens,
        }
        span.set_attributes({name: count for name, count in counted.items() if count})
        for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            if count:
                self._tokens.record(count, {**measured, names.TOKEN_TYPE: kind})
        if self._content:
            span.set_attribute(names.OUTPUT_MESSAGES, output_messages(reply))


def _request_ended(span: Span, measured: dict[str, Any], result: RequestResult[Any]) -> None:
    measured[names.OUTCOME] = result.outcome
    span.set_attribute(names.OUTCOME, result.outcome)
    if result.limit:
        span.set_attribute(names.LIMIT, result.limit)
    if result.cost:
        span.set_attribute(names.COST, result.cost)
    if result.outcome == "failed":
        _failed(span, measured, result.reason)
    elif result.outcome == "cancelled":
        # The reason is the application's own text.
        _failed(span, measured, "cancelled")


def _returned(span: Span, rendered: Rendered) -> None:
    span.set_attribute(names.TOOL_RESULT, rendered.content)


def _failed(span: Span, measured: dict[str, Any], error_type: str) -> None:
    measured[names.ERROR_TYPE] = error_type
    span.set_attribute(names.ERROR_TYPE, error_type)
    span.set_status(StatusCode.ERROR)


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
        self._lagged = counter(names.EVENTS_MISSED, unit="{event}", description="Events that slow subscribers missed")
        self._waiting = meter.create_up_down_counter(
            names.APPROVALS_WAITING, unit="{question}", description="Questions that wait for a person"
        )
        self._asked = set[tuple[str, str]]()  # the request and the call of each of these questions
        self._counters: dict[type[Event], Callable[[Any], None]] = {
            ToolCallCompleted: self._settled,
            ToolCallFailed: self._settled,
            ApprovalRequested: self._ask,
            ApprovalDecided: self._answer,
            ToolCallLate: lambda late: self._late.add(1, {names.TOOL_NAME: late.name}),
            DeadLetter: lambda letter: self._letters.add(1, {names.LETTER: letter.letter_type}),
            SubscriberLagged: lambda lagged: self._lagged.add(lagged.count),
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
        key = event.request_id, event.call_id
        if key not in self._asked:
            self._asked.add(key)
            self._waiting.add(1)

    def _answer(self, event: ApprovalDecided | ToolCallCompleted | ToolCallFailed) -> None:
        key = event.request_id, event.call_id
        if key in self._asked:
            self._asked.remove(key)
            self._waiting.add(-1)

    def _spend(self, event: ModelResponded) -> None:
        if event.cost:
            self._cost.add(event.cost, {names.PROVIDER: event.vendor, names.RESPONSE_MODEL: event.model})
