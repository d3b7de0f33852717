"""The spans, and the metrics of how long their work took. Imports the API of OpenTelemetry, so it is imported late."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from time import perf_counter
from typing import Any

import anyio
from opentelemetry import context, metrics, trace
from opentelemetry.trace import Link, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from .._version import __version__
from ..errors import ToolbusError
from ..events import ToolCallRequested
from ..failures import ReportedFailure, is_cancellation
from ..messages import Usage
from ..protocols import ModelReply, ModelRequest, Provider, RequestView
from ..request_result import RequestResult
from ..tool_results import RenderedResult
from . import _names as names
from ._content import arguments_text, cut_text, input_messages, output_messages, system_instructions
from ._texts import Labels, clean

_FUNCTION = "function"
_NO_USAGE = Usage()
_W3C = TraceContextTextMapPropagator()

# The boundaries of the histograms, in seconds and in tokens, are those that the conventions advise.
_SECONDS = [0.01 * 2**power for power in range(14)]
_REQUEST_SECONDS = [0.1 * 2**power for power in range(13)]
_TOKENS = [4**power for power in range(14)]
_MAX_COMBINATIONS, _MAX_COMBINATION_CHARS = 1_000, 2_000


def records(provider: object) -> bool:
    """Return whether a provider records anything: those that the API itself brings along do not."""
    return not type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


class Spans:
    """The spans around the work of requests, and the metrics of how long it took.

    `is_on` is true if something was recorded at the last `look`; an SDK that is there stays. Attributes of metrics are
    made once for each combination, and shared; nobody may change them.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None,
        meter_provider: metrics.MeterProvider | None,
        label: Labels,
        *,
        include_content: bool,
    ) -> None:
        self.tracer = trace.get_tracer("toolbus", __version__, tracer_provider)
        self.include_content = include_content
        self.label = label
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider
        self._asks_globally = True
        self.is_on = self.records_metrics = False
        self.look()
        self._asks_globally = tracer_provider is None or meter_provider is None
        self._labelled: dict[tuple[str, ...], dict[str, str]] = {}
        meter = metrics.get_meter("toolbus", __version__, meter_provider)
        self.request_seconds, self.model_seconds, self.tool_seconds = [
            meter.create_histogram(
                name, unit="s", explicit_bucket_boundaries_advisory=boundaries, description=description
            )
            for name, boundaries, description in (
                (names.REQUEST_SECONDS, _REQUEST_SECONDS, "Requests"),
                (names.MODEL_SECONDS, _SECONDS, "Model calls, each attempt"),
                (names.TOOL_SECONDS, _SECONDS, "Tools, each attempt"),
            )
        ]
        self.tokens = meter.create_histogram(
            names.TOKEN_USAGE,
            unit="{token}",
            explicit_bucket_boundaries_advisory=_TOKENS,
            description="Tokens of one model call",
        )

    def look(self) -> bool:
        """Return whether anything is recorded now: an application may set the global providers later."""
        if self._asks_globally:
            meters, tracers = self._meter_provider, self._tracer_provider
            self.records_metrics = records(meters or metrics.get_meter_provider())
            self.is_on = self.records_metrics or records(tracers or trace.get_tracer_provider())
        return self.is_on

    def labels(self, *pairs: str) -> dict[str, str]:
        """Return attributes of a metric: names and values in turn. Empty values are left out."""
        found = self._labelled.get(pairs)
        if found is None:
            named = zip(pairs[::2], pairs[1::2], strict=True)
            found = {name: self.label(name, value) for name, value in named if value}
            if len(self._labelled) < _MAX_COMBINATIONS and sum(map(len, pairs)) < _MAX_COMBINATION_CHARS:
                self._labelled[pairs] = found
        return found


def carried() -> Mapping[str, str]:
    """Return the present span as text; nothing without one."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier)
    return carrier


class _Recorded(ABC):
    """A span that is current in its block, and the measurement of how long the block took.

    It is a class and not a generator, since each request has a dozen of them.
    """

    __slots__ = ("_began", "_error", "_span", "_spans", "_token")

    kind = SpanKind.INTERNAL

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._error = ""

    def __enter__(self) -> Callable[[Any], object] | None:
        spans = self._spans
        self._span = span = self._begun(spans)
        if spans.include_content and span.is_recording():
            self.add_content()
        # Nothing that may raise follows: a span that is not left must not stay current.
        self._token = context.attach(trace.set_span_in_context(span))
        self._began = perf_counter()
        return self.ended

    def __exit__(self, _kind: object, exc: BaseException | None, _trace: object) -> None:
        if exc is not None:
            self.fail(_error_type(exc))
        try:
            if self._spans.records_metrics:
                self.measure(perf_counter() - self._began)
        finally:
            context.detach(self._token)
            self._span.end()

    @abstractmethod
    def _begun(self, spans: Spans) -> trace.Span: ...

    @abstractmethod
    def measure(self, seconds: float) -> None:
        """Record how long the block took."""

    def fail(self, error_type: str) -> None:
        """Mark the span and the measurement as failed."""
        self._error = error_type
        self._span.set_attribute(names.ERROR_TYPE, error_type)
        self._span.set_status(StatusCode.ERROR)

    def add_content(self) -> None:  # noqa: B027 -- a request adds nothing
        """Add what the work is about."""

    @abstractmethod
    def ended(self, outcome: Any) -> None:
        """Add what the outcome says."""


class RequestSpan(_Recorded):
    """The span of a request, with a link to the span of the process that has begun it."""

    __slots__ = ("_outcome", "_view")

    def __init__(self, spans: Spans, view: RequestView) -> None:
        super().__init__(spans)
        self._view = view
        self._outcome = ""

    def _begun(self, spans: Spans) -> trace.Span:
        view = self._view
        attributes = {
            names.OPERATION: names.INVOKE_AGENT,
            names.CONVERSATION: clean(view.conversation_id),
            names.REQUEST_ID: clean(view.request_id),
        }
        links = () if view.original_metadata is None else _links(view.original_metadata)
        return spans.tracer.start_span(names.INVOKE_AGENT, None, self.kind, attributes, links)

    def measure(self, seconds: float) -> None:
        about = (names.OUTCOME, self._outcome, names.ERROR_TYPE, self._error)
        self._spans.request_seconds.record(seconds, self._spans.labels(*about))

    def ended(self, outcome: RequestResult[Any]) -> None:
        span = self._span
        # A request that continues in another process has not failed.
        is_released = outcome.resumable and outcome.outcome == "cancelled"
        self._outcome = word = "released" if is_released else outcome.outcome
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


class ModelSpan(_Recorded):
    """The span of one call of a model, with the metrics of its tokens."""

    __slots__ = ("_model", "_provider", "_request", "_response_model", "_usage")

    kind = SpanKind.CLIENT

    def __init__(self, spans: Spans, request: ModelRequest, provider: Provider) -> None:
        super().__init__(spans)
        self._request = request
        self._provider = names.VENDORS.get(provider.vendor, provider.vendor)
        self._model: str = getattr(provider, "model", "") or ""
        self._response_model = ""
        self._usage: tuple[tuple[str, int], ...] = ()

    def _begun(self, spans: Spans) -> trace.Span:
        request, model = self._request, clean(self._model)
        attributes: dict[str, Any] = {
            names.OPERATION: names.CHAT,
            names.PROVIDER: clean(self._provider),
            names.CONVERSATION: clean(request.conversation_id),
            names.REQUEST_ID: clean(request.request_id),
            names.ROUND: request.round,
        }
        name = names.CHAT
        if model:
            attributes[names.REQUEST_MODEL] = model
            name = f"{name} {model}"
        settings = request.settings
        if settings.max_output_tokens is not None:
            attributes[names.REQUEST_MAX_TOKENS] = settings.max_output_tokens
        if settings.temperature is not None:
            attributes[names.REQUEST_TEMPERATURE] = settings.temperature
        return spans.tracer.start_span(name, None, self.kind, attributes)

    def add_content(self) -> None:
        messages, span = self._request.messages, self._span
        span.set_attribute(names.SYSTEM_INSTRUCTIONS, system_instructions(messages))
        text, left_out = input_messages(messages)
        span.set_attribute(names.INPUT_MESSAGES, text)
        if left_out:
            span.set_attribute(names.OMITTED_MESSAGES, left_out)

    def measure(self, seconds: float) -> None:
        spans, about = self._spans, (names.OPERATION, names.CHAT, names.PROVIDER, self._provider)
        about = (*about, names.REQUEST_MODEL, self._model, names.RESPONSE_MODEL, self._response_model)
        spans.model_seconds.record(seconds, spans.labels(*about, names.ERROR_TYPE, self._error))
        for kind, count in self._usage:
            spans.tokens.record(count, spans.labels(*about, names.TOKEN_TYPE, kind))

    def ended(self, outcome: ModelReply) -> None:
        usage, span = outcome.usage, self._span
        self._response_model = outcome.model
        both = (("input", usage.input_tokens), ("output", usage.output_tokens))
        self._usage = tuple([each for each in both if each[1]])
        if not span.is_recording():
            return
        found: dict[str, Any] = {}
        if outcome.model:
            found[names.RESPONSE_MODEL] = clean(outcome.model)
        if outcome.finish_reason:
            found[names.FINISH_REASONS] = (outcome.finish_reason,)
        if usage != _NO_USAGE:
            counts = {
                names.INPUT_TOKENS: usage.input_tokens,
                names.OUTPUT_TOKENS: usage.output_tokens,
                names.CACHE_READ_TOKENS: usage.cached_tokens,
                names.CACHE_WRITE_TOKENS: usage.cache_write_tokens,
                names.REASONING_TOKENS: usage.reasoning_tokens,
            }
            found |= {name: count for name, count in counts.items() if count}
        if self._spans.include_content:
            found[names.OUTPUT_MESSAGES] = output_messages(outcome)
        span.set_attributes(found)


class ToolSpan(_Recorded):
    """The span of one attempt of a tool's handler."""

    __slots__ = ("_requested",)

    def __init__(self, spans: Spans, requested: ToolCallRequested) -> None:
        super().__init__(spans)
        self._requested = requested

    def __enter__(self) -> Callable[[Any], object] | None:
        ended = super().__enter__()
        # A result that nobody wants is not rendered here.
        return ended if self._spans.include_content and self._span.is_recording() else None

    def _begun(self, spans: Spans) -> trace.Span:
        requested, name = self._requested, clean(self._requested.name)
        attributes = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: name,
            names.TOOL_TYPE: _FUNCTION,
            names.TOOL_CALL_ID: clean(requested.provider_call_id or requested.call_id),
            names.REQUEST_ID: clean(requested.request_id),
        }
        return spans.tracer.start_span(f"{names.EXECUTE_TOOL} {name}", None, self.kind, attributes)

    def add_content(self) -> None:
        self._span.set_attribute(names.TOOL_ARGUMENTS, arguments_text(self._requested.arguments))

    def measure(self, seconds: float) -> None:
        about = (names.TOOL_NAME, self._requested.name, names.TOOL_TYPE, _FUNCTION)
        self._spans.tool_seconds.record(seconds, self._spans.labels(*about, names.ERROR_TYPE, self._error))

    def ended(self, outcome: RenderedResult) -> None:
        self._span.set_attribute(names.TOOL_RESULT, cut_text(outcome.content))


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
    return clean(kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}")


def _links(carried: Mapping[str, Any]) -> Sequence[Link]:
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
