"""What leaves the process: over OTLP to a server, to Prometheus, and onto the Grafana dashboard of the docs."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import anyio
import pytest
from all_metrics import make_all
from grafana_dashboard import PAGE, written
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client import CollectorRegistry, generate_latest

from toolbus.telemetry import OpenTelemetry, _names

OURS = {value for name, value in vars(_names).items() if isinstance(value, str) and not name.startswith("_")}


class Collector:
    """A server that takes what is exported over OTLP."""

    def __init__(self) -> None:
        self.got: list[tuple[str, bytes]] = []
        got = self.got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002 -- named by the base class

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def spans(self) -> dict[str, tuple[bytes, bytes, dict[str, str]]]:
        """The id, the parent's id and the texts among the attributes of each span, by its name."""
        found: dict[str, tuple[bytes, bytes, dict[str, str]]] = {}
        for path, body in self.got:
            if path == "/v1/traces":
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        for span in scope.spans:
                            texts = {each.key: each.value.string_value for each in span.attributes}
                            found[span.name] = (span.span_id, span.parent_span_id, texts)
        return found

    @property
    def metrics(self) -> set[str]:
        return {
            metric.name
            for path, body in self.got
            if path == "/v1/metrics"
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def metric_names(reader: InMemoryMetricReader) -> set[str]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


async def test_spans_and_metrics_reach_a_collector_over_otlp(collector: Collector, toolbus_clock: object):
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{collector.url}/v1/traces")))
    exported = PeriodicExportingMetricReader(OTLPMetricExporter(f"{collector.url}/v1/metrics"), 3_600_000)
    kept = InMemoryMetricReader()
    meters = MeterProvider([exported, kept])
    await make_all(OpenTelemetry(tracers, meters))
    recorded = metric_names(kept)
    for each in (tracers, meters):
        await anyio.to_thread.run_sync(each.shutdown)
    assert set(collector.spans) == {"invoke_agent", "chat", "execute_tool look"}
    request, _, about = collector.spans["invoke_agent"]
    assert about["toolbus.request.outcome"] == "completed"
    assert collector.spans["execute_tool look"][1] == request
    assert collector.metrics == recorded
    assert len(recorded) > 15


async def exposed() -> str:
    """What Prometheus reads after every metric has a point."""
    registry = CollectorRegistry()
    await make_all(OpenTelemetry(TracerProvider(), MeterProvider([PrometheusMetricReader(registry=registry)])))
    return generate_latest(registry).decode()


async def test_prometheus_reads_every_metric_through_the_sdk_s_reader(toolbus_clock: object):
    lines = await exposed()
    types = set(re.findall(r"^# TYPE (toolbus_\w+|gen_ai_\w+) ", lines, re.MULTILINE))
    names = {name for name in OURS if name.startswith("toolbus.") and name not in attributes()}
    assert {name for name in names if not any(each.startswith(name.replace(".", "_")) for each in types)} == set()
    assert 'toolbus_tool_calls_total{gen_ai_tool_name="look"' in lines
    assert re.search(r"^toolbus_requests_running\{[^}]*\} 0\.0$", lines, re.MULTILINE)


def attributes() -> set[str]:
    return {
        _names.REQUEST_ID,
        _names.OUTCOME,
        _names.LIMIT,
        _names.COST,
        _names.ROUND,
        _names.EVENT_TYPE,
        _names.OMITTED_MESSAGES,
    }


async def test_the_dashboard_has_each_metric_and_asks_for_no_other(toolbus_clock: object):
    assert PAGE.read_text(encoding="utf-8") == written(), f"run {written.__module__} as a program"
    queries = [target["expr"] for panel in json.loads(written())["panels"] for target in panel["targets"]]
    asked = set(re.findall(r"\b(?:toolbus|gen_ai)_\w+(?=[\[)])", re.sub(r"by \([^)]*\)", "", " ".join(queries))))
    lines = await exposed()
    series = set(re.findall(r"^(\w+)(?=\{)", lines, re.MULTILINE))
    assert asked - series == set()
    shortened = {re.sub(r"_(count|sum|bucket)$", "", each) for each in asked}
    there = {
        re.sub(r"_(count|sum|bucket|created)$", "", each) for each in series if each.startswith(("toolbus", "gen_ai"))
    }
    assert there - shortened == set()
    labels = set(re.findall(r"(\w+)=\"", lines))
    wanted = set(re.findall(r"\{\{(\w+)\}\}", written())) | set(re.findall(r"\bby \(([^)]*)\)", " ".join(queries)))
    assert {each for names in wanted for each in names.split(", ")} - labels == set()
