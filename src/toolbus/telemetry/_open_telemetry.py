"""`OpenTelemetry`, the instrumentation that an application gives to its runtime.

Imports the extra's package when it is used, and not before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING

from .._option_checks import FLAG, Rule, check, or_none
from ..bus import EventBus
from ..errors import MissingExtra
from ..events import ToolCallRequested
from ..instrumentation import Instrumentation, ModelEnded, RequestEnded, RuntimeNumbers, ToolEnded
from ..protocols import ModelRequest, Provider, RequestView
from . import _names as names
from ._texts import Labels

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

_MAKES_TRACERS = or_none(
    Rule(lambda given: hasattr(given, "get_tracer"), "pass a TracerProvider"), "for the global one"
)
_MAKES_METERS = or_none(Rule(lambda given: hasattr(given, "get_meter"), "pass a MeterProvider"), "for the global one")


class OpenTelemetry(Instrumentation):
    """Records each request, model call and tool attempt as a span, and durations, tokens and counts as metrics.

    Give it to the runtime, and to each `ToolWorker`. Spans are `invoke_agent`, `chat MODEL` and `execute_tool TOOL`,
    with the attributes of OpenTelemetry's conventions for generative AI. A failed one has the status ERROR and
    `error.type`: a code of toolbus, "cancelled", or the class of the exception. The text of an error is never
    recorded. A request that continues in another process is a new `invoke_agent` span with a link to the earlier one,
    whose `traceparent` is in the metadata of the request's events. With content, an attribute has at most 100,000
    characters: `toolbus.content.omitted_messages` is the number of earlier messages that do not fit.

    Metrics are the durations of requests, model calls and tools, tokens, and what is counted while a runtime or a
    worker runs: settled tool calls, late results, dead letters, model retries, cost, requests that run, wait or were
    refused, questions to people, leases, the journal, and what is stuck. Instrumentation of a single request has the
    durations and tokens only.

    `tracer_provider` and `meter_provider` are those of the SDK; without them the global ones are used. With
    `include_content`, spans have the messages, arguments and results too, without secrets. By default (None) the
    variable OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT decides: SPAN_ONLY or SPAN_AND_EVENT. Raises
    `MissingExtra`.

    Example:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        from toolbus import Runtime
        from toolbus.telemetry import OpenTelemetry
        from toolbus.testing import ScriptedProvider, text

        exporter = InMemorySpanExporter()  # in production: OTLPSpanExporter()
        traces = TracerProvider()
        traces.add_span_processor(SimpleSpanProcessor(exporter))
        async with Runtime(ScriptedProvider([text("Hello.")]), instrumentation=[OpenTelemetry(traces)]) as runtime:
            await runtime.run("Hello?")
        print(len(exporter.get_finished_spans()) > 1)  # True
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        include_content: bool | None = None,
    ) -> None:
        check("tracer_provider", tracer_provider, _MAKES_TRACERS)
        check("meter_provider", meter_provider, _MAKES_METERS)
        check("include_content", include_content, or_none(FLAG))
        if include_content is None:
            include_content = os.environ.get(names.CAPTURE_CONTENT, "").strip().upper() in names.IN_SPANS
        recording, counts = _recording()
        label = Labels()
        self._recording = recording
        self._spans = recording.Spans(tracer_provider, meter_provider, label, include_content=include_content)
        is_off = meter_provider is not None and not recording.records(meter_provider)
        self._counts = None if is_off else counts.counts_of(meter_provider, label)

    def process(self, bus: EventBus, numbers: RuntimeNumbers | None) -> AbstractContextManager[object]:
        """Count what is published on `bus`, and report the `numbers`, until the runtime or the worker has ended."""
        return super().process(bus, numbers) if self._counts is None else self._counts.of(bus, numbers)

    def request(self, view: RequestView) -> AbstractContextManager[RequestEnded | None]:
        """Record a request as `invoke_agent`."""
        spans = self._spans
        return self._recording.RequestSpan(spans, view) if spans.look() else super().request(view)

    def model(self, request: ModelRequest, provider: Provider) -> AbstractContextManager[ModelEnded | None]:
        """Record a model call as `chat`."""
        spans = self._spans
        if spans.is_on or spans.look():
            return self._recording.ModelSpan(spans, request, provider)
        return super().model(request, provider)

    def tool(self, requested: ToolCallRequested) -> AbstractContextManager[ToolEnded | None]:
        """Record an attempt of a tool as `execute_tool`."""
        spans = self._spans
        return self._recording.ToolSpan(spans, requested) if spans.is_on or spans.look() else super().tool(requested)

    def carried(self) -> Mapping[str, str]:
        """Return the present span as a W3C `traceparent`, and a `tracestate` if there is one."""
        return self._recording.carried()

    @classmethod
    def continued(cls, carried: Mapping[str, str]) -> AbstractContextManager[object]:
        """Make the span current that was carried."""
        return _recording()[0].continued(carried)


def _recording() -> tuple[ModuleType, ModuleType]:
    try:
        from . import _counts as counts  # noqa: PLC0415 -- an extra
        from . import _spans as spans  # noqa: PLC0415 -- an extra
    except ImportError as exc:
        raise MissingExtra("otel", "opentelemetry-api") from exc
    return spans, counts
