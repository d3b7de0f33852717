"""The record of an OpenTelemetry SDK, as trees and numbers that tests can compare."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from toolbus.telemetry import OpenTelemetry


class Collected:
    """An SDK that keeps all that is recorded, and the instrumentation that records to it."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])
        self.telemetry = OpenTelemetry(self.tracers, self.meters, **options)
        self.own = self.tracers.get_tracer("own")

    @property
    def spans(self) -> list[ReadableSpan]:
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> ReadableSpan:
        (found,) = [each for each in self.spans if each.name == name]
        return found

    @property
    def tree(self) -> list[str]:
        """The names in the order in which they began, indented under their parents, failures with their type."""
        depths: dict[int, int] = {}
        lines: list[str] = []
        for span in self.spans:
            depth = depths[span.parent.span_id] + 1 if span.parent and span.parent.span_id in depths else 0
            depths[id_of(span)] = depth
            failed = (span.attributes or {}).get("error.type", "")
            lines.append("  " * depth + f"{span.name} {failed}".rstrip())
        return lines

    @property
    def metrics(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        """The attributes and the value of each point, by the metric's name; for a histogram its sum."""
        found = self._reader.get_metrics_data()
        return {
            metric.name: [
                (dict(point.attributes or {}), getattr(point, "value", None) or getattr(point, "sum", 0))
                for point in metric.data.data_points
            ]
            for resource in (found.resource_metrics if found else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    @property
    def shapes(self) -> dict[str, list[Any]]:
        """The unit, the attributes and the boundaries of each histogram, by name; those of toolbus left out."""
        found = self._reader.get_metrics_data()
        return {
            metric.name: [
                [
                    metric.unit,
                    {name: value for name, value in (each.attributes or {}).items() if "gen_ai" in name},
                    *getattr(each, "explicit_bounds", ()),
                ]
                for each in metric.data.data_points
            ]
            for resource in (found.resource_metrics if found else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id
