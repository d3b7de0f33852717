"""CPU time of a request with `OpenTelemetry`, against the same request without any instrumentation.

`python -m benchmarks --only telemetry`. All sides run in one process, in turn. One side has no SDK behind the API, one
records spans, one spans and metrics, with the bus connected. The last side is the cost of only the SDK: a loop that
makes the same spans and points with direct calls, which no instrumentation can go below.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter

from opentelemetry import trace
from opentelemetry.metrics import MeterProvider as Meters
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracerProvider, SpanKind

from toolbus import Runtime
from toolbus.stores.memory import MemoryStore
from toolbus.telemetry import OpenTelemetry

from .plumbing import Effort, Row, Side, alternate, compared, cpu_us, ratio_row, run
from .work import CALLS, ROUNDS, Model, One, at_once, lookup

REQUESTS = 1_000


@asynccontextmanager
async def _requests(telemetry: OpenTelemetry | None = None) -> AsyncGenerator[One]:
    store, given = MemoryStore(max_conversations=1), [] if telemetry is None else [telemetry]
    async with Runtime(Model(), tools=[lookup], store=store, instrumentation=given) as runtime:

        async def one() -> str:
            return (await runtime.run("go")).text

        yield one


def _by_hand(tracers: TracerProvider, meters: Meters | None) -> One:
    """Return a function that makes the spans and points of a request with direct calls of the SDK."""
    tracer = tracers.get_tracer("bare")
    meter = None if meters is None else meters.get_meter("bare")
    seconds = None if meter is None else meter.create_histogram("seconds")
    count = None if meter is None else meter.create_up_down_counter("count")

    def span(name: str, kind: SpanKind, measured: dict[str, str], known: dict[str, str | int]) -> trace.Span:
        return tracer.start_span(name, kind=kind, attributes={**measured, **known})

    def point(measured: dict[str, str]) -> None:
        if seconds is not None:
            seconds.record(perf_counter(), measured)

    def add(number: int, measured: dict[str, str]) -> None:
        if count is not None:
            count.add(number, measured)

    async def one() -> str:
        asked = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "benchmark"}
        called = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "lookup"}
        ids: dict[str, str | int] = {"gen_ai.conversation.id": "c", "toolbus.request.id": "r"}
        begun = {"gen_ai.operation.name": "invoke_agent"}
        add(1, {})
        with trace.use_span(span("invoke_agent", SpanKind.INTERNAL, begun, ids), end_on_exit=True) as whole:
            for round_ in range(ROUNDS + 1):
                known = {**ids, "toolbus.round": round_}
                with trace.use_span(span("chat", SpanKind.CLIENT, asked, known), end_on_exit=True) as of_model:
                    of_model.set_attributes({"gen_ai.response.finish_reasons": ["stop"]})
                point(asked)
                for _ in range(CALLS if round_ < ROUNDS else 0):
                    known = {**ids, "gen_ai.tool.type": "function", "gen_ai.tool.call.id": "call"}
                    with trace.use_span(
                        span("execute_tool lookup", SpanKind.INTERNAL, called, known), end_on_exit=True
                    ):
                        pass
                    point(called)
                    add(1, called)
            whole.set_attributes({"toolbus.request.outcome": "completed"})
        point({**begun, "toolbus.request.outcome": "completed"})
        add(-1, {})
        return "done"

    return one


async def _figure(effort: Effort) -> list[Row]:
    count = effort.of(REQUESTS, least=2)
    no_sdk = OpenTelemetry(NoOpTracerProvider(), NoOpMeterProvider())
    of_spans = OpenTelemetry(TracerProvider(), NoOpMeterProvider())
    of_all = OpenTelemetry(TracerProvider(), MeterProvider([InMemoryMetricReader()]))
    async with AsyncExitStack() as stack:
        sides = [
            await stack.enter_async_context(_requests()),
            await stack.enter_async_context(_requests(no_sdk)),
            await stack.enter_async_context(_requests(of_spans)),
            await stack.enter_async_context(_requests(of_all)),
            _by_hand(TracerProvider(), None),
            _by_hand(TracerProvider(), MeterProvider([InMemoryMetricReader()])),
        ]
        for each in sides:
            await at_once(each, effort.of(200))

        def timed(one: One) -> Side:
            return lambda: cpu_us(at_once(one, count), count)

        bare, silent, spans, both, *alone = await alternate(effort.repeats, *map(timed, sides))
    against = "without instrumentation"
    least = [[one + more for one, more in zip(bare, each, strict=True)] for each in alone]
    return [
        ratio_row("Runtime.run with OpenTelemetry, without an SDK", compared(silent, bare), against, goal=1.2),
        ratio_row("Runtime.run that records spans", compared(spans, bare), against, goal=2),
        ratio_row("Runtime.run that records spans and metrics", compared(both, bare), against, goal=2),
        ratio_row("the same spans by direct calls of the SDK, and Runtime.run", compared(least[0], bare), against),
        ratio_row("the same spans and metrics by direct calls, and Runtime.run", compared(least[1], bare), against),
    ]


def telemetry(effort: Effort) -> list[Row]:
    """Measure the CPU time of a request with its spans and metrics."""
    return run(_figure, effort)
