"""Telemetry under attack: an SDK that raises, blocks or is cut off, and models and servers that choose what is recorded."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import tracemalloc
from typing import Any

import anyio
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span

from support.collected import Collected
from toolbus import Runtime, tool
from toolbus.events import ToolCallCompleted, ToolCallFailed
from toolbus.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.runtime._tally import Tally
from toolbus.telemetry import OpenTelemetry
from toolbus.testing import ScriptedProvider, calls, text

HALF = "\ud800"
NOTHING: dict[str, Any] = {}
LONG = "x" * 10_000_000


@tool
async def look() -> str:
    """Look."""
    return "seen"


def asking() -> ScriptedProvider:
    return ScriptedProvider([calls(("look", {})), text("done")])


# --------------------------------------------------------------------------------------- an SDK that misbehaves


class Raises:
    """Has every method of a tracer, a span, a meter and an instrument; `where` says which of them raises."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __getattr__(self, name: str) -> Any:
        def called(*_arguments: Any, **_options: Any) -> Any:
            if name == self._where:
                raise RuntimeError(name)
            return Raises(self._where)

        return called


@pytest.mark.parametrize("where", ["start_span", "is_recording", "set_attribute", "set_attributes", "end", "record"])
async def test_an_sdk_that_raises_breaks_no_request_and_is_reported_once(where: str, caplog: pytest.LogCaptureFixture):
    broken: Any = Raises(where)
    telemetry = OpenTelemetry(broken, broken, include_content=True)
    with caplog.at_level(logging.ERROR, "toolbus"):
        async with Runtime(asking(), tools=[look], instrumentation=[telemetry]) as runtime:
            result = await runtime.run("go")
    assert (result.text, result.tool_calls[0].ok) == ("done", True)
    lines = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert lines == ["OpenTelemetry failed; it is not reported again"]


@pytest.mark.parametrize("at", ["end", "begin"])
async def test_a_span_that_fails_leaves_nothing_current(at: str, monkeypatch: pytest.MonkeyPatch):
    collected = Collected()
    broken: Any = Raises("record" if at == "end" else "")
    telemetry = OpenTelemetry(collected.tracers, broken, include_content=True)
    if at == "begin":
        monkeypatch.setattr("toolbus.telemetry._spans.input_messages", None)
    async with Runtime(asking(), tools=[look], instrumentation=[telemetry]) as runtime:
        await runtime.run("go")
        await runtime.run("again", provider=asking())
    whole = ["invoke_agent", "  chat", "  execute_tool look", "  chat"]
    assert collected.tree == [each for each in whole if at == "end" or "chat" not in each] * 2


async def test_a_tracer_that_blocks_the_event_loop_is_named_in_the_log():
    named = threading.Event()
    lines: list[str] = []  # The log's thread hands a line to other handlers only after this one.

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            if "on_start" in record.getMessage():
                named.set()

    class Blocks(BatchSpanProcessor):
        def __init__(self) -> None: ...

        def on_start(self, span: Span, parent_context: Any = None) -> None:
            assert named.wait(60)

        def on_end(self, span: ReadableSpan) -> None: ...

        def shutdown(self) -> None: ...

    tracers, seen = TracerProvider(), Seen()
    tracers.add_span_processor(Blocks())
    logging.getLogger("toolbus.runtime").addHandler(seen)
    try:
        async with Runtime(
            ScriptedProvider([text("ok")]), instrumentation=[OpenTelemetry(tracers)], blocked_loop_seconds=0.05
        ) as runtime:
            assert (await runtime.run("go")).text == "ok"
    finally:
        logging.getLogger("toolbus.runtime").removeHandler(seen)
    assert any("is blocked" in each for each in lines)


async def test_an_exporter_that_is_away_keeps_no_request_waiting():
    tracers = TracerProvider()
    exporter = OTLPSpanExporter("http://127.0.0.1:9/v1/traces", timeout=1)
    tracers.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=8, max_export_batch_size=4))
    with anyio.fail_after(60):
        async with Runtime(lambda_model(), tools=[look], instrumentation=[OpenTelemetry(tracers)]) as runtime:
            for _ in range(20):
                assert (await runtime.run("go")).text == "done"
    exporter.shutdown()
    await anyio.to_thread.run_sync(tracers.shutdown)


def lambda_model() -> ScriptedProvider:
    return ScriptedProvider(lambda asked: text("done") if len(asked.messages) > 1 else calls(("look", {})))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_sdk_that_is_set_up_after_the_runtime_has_begun_records_from_then_on():
    script = """
import anyio
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from toolbus import Runtime
from toolbus.telemetry import OpenTelemetry
from toolbus.testing import ScriptedProvider, text

async def main():
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    async with Runtime(ScriptedProvider([text("a"), text("b"), text("c")]), instrumentation=[OpenTelemetry()]) as runtime:
        await runtime.run("one")
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(tracers)
        await runtime.run("two")
        metrics.set_meter_provider(MeterProvider([reader]))
        await runtime.run("three")
        found = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
        points = {each.name: each.data.data_points[0] for each in found if each.data.data_points}
        print([each.name for each in exporter.get_finished_spans()])
        print(points["gen_ai.invoke_agent.duration"].count, points["toolbus.requests.running"].value)

anyio.run(main)
"""
    done = await anyio.run_process([sys.executable, "-c", script], stderr=subprocess.STDOUT)
    assert done.stdout.decode() == "['chat', 'invoke_agent', 'chat', 'invoke_agent']\n1 0\n"


async def test_two_instrumentations_of_one_provider_count_everything():
    collected = Collected()
    second = OpenTelemetry(collected.tracers, collected.meters)
    one = Runtime(asking(), tools=[look], instrumentation=[collected.telemetry])
    two = Runtime(asking(), tools=[look], instrumentation=[second])
    async with one, two:
        await one.run("go")
        await two.run("go")
        assert collected.metrics["toolbus.tool.calls"] == [({"gen_ai.tool.name": "look"}, 2)]
    assert collected.metrics["toolbus.requests.running"] == [({}, 0)]


# -------------------------------------------------------------------------- what models and servers choose


class Hostile:
    """A model whose server chooses every text of its replies."""

    def __init__(self, word: str, *, vendor: str = "maker", model: str = "m") -> None:
        self.word, self.vendor, self.model = word, vendor, model
        self.asked = 0

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        self.asked += 1
        if request.round:
            return ModelReply(message=AssistantMessage(text=self.word), model=f"{self.word}{self.asked}")
        call = ToolCall(name="look", arguments="{}", provider_call_id=self.word)
        message = AssistantMessage(text=self.word, tool_calls=(call,))
        return ModelReply(message=message, model=f"{self.word}{self.asked}")


@pytest.mark.parametrize("word", [HALF, LONG], ids=["half a pair", "10 MB"])
async def test_texts_that_a_server_chooses_are_valid_and_bounded_in_spans(word: str):
    collected = Collected(include_content=True)
    async with Runtime(
        Hostile(word, vendor=f"v{word}", model=f"m{word}"), tools=[look], instrumentation=[collected.telemetry]
    ) as runtime:
        await runtime.start(word if word is LONG else "go").result()
    sent = encode_spans(collected.spans).SerializeToString()
    assert len(collected.spans) == 4
    assert len(sent) < 800_000
    for span in collected.spans:
        assert len(span.name) < 1_100
        assert len(str((span.attributes or {}).get("gen_ai.provider.name", ""))) <= 1_000
        for name, value in (span.attributes or {}).items():
            assert len(str(value)) <= 110_000, name
            if name.endswith(".messages"):
                json.loads(str(value))


async def test_of_a_long_history_the_newest_messages_are_recorded():
    collected = Collected(include_content=True)
    history = [UserMessage(content=f"{number} " + "x" * 19_000) for number in range(30)]
    async with Runtime(ScriptedProvider([text("ok")]), instrumentation=[collected.telemetry]) as runtime:
        await runtime.run("go", history=history, repair_history=True)
    attributes: Any = collected.named("chat").attributes
    found = json.loads(attributes["gen_ai.input.messages"])
    assert found[-1]["parts"] == [{"type": "text", "content": "go"}]
    assert attributes["toolbus.content.omitted_messages"] == 31 - len(found)
    assert 4 <= len(found) <= 6


async def test_of_a_history_with_long_arguments_the_newest_messages_are_recorded():
    collected = Collected(include_content=True)
    history: list[Message] = [UserMessage(content="Look.")]
    for number in range(30):
        call = ToolCall(name="look", arguments=json.dumps({"what": "x" * 19_000}), call_id=f"c{number}")
        history += [
            AssistantMessage(tool_calls=(call,)),
            ToolMessage(call_id=call.call_id, name="look", content="seen"),
        ]
    async with Runtime(ScriptedProvider([text("ok")]), instrumentation=[collected.telemetry]) as runtime:
        await runtime.run("go", history=history, repair_history=True)
    recorded = str((collected.named("chat").attributes or {})["gen_ai.input.messages"])
    assert len(recorded) < 110_000
    assert json.loads(recorded)[-1]["parts"] == [{"type": "text", "content": "go"}]
    assert recorded.count('"what"') == 5


async def test_names_that_a_model_makes_up_do_not_become_attributes_of_metrics():
    collected = Collected()

    def invent(asked: ModelRequest) -> Any:
        return (
            calls(*[(f"tool_{id(asked)}_{number}", NOTHING) for number in range(100)])
            if len(asked.messages) == 1
            else text("ok")
        )

    async with Runtime(
        ScriptedProvider(invent), tools=[look], instrumentation=[collected.telemetry], detailed_statistics=True
    ) as runtime:
        for _ in range(5):
            await runtime.run("go")
        assert collected.metrics["toolbus.tool.calls"] == [
            ({"error.type": "unknown_tool"}, 320),
            ({"error.type": "limit"}, 180),
        ]
        tools = runtime.statistics().tools
        assert {name: each.outcomes for name, each in tools.items()} == {
            "(others)": {"unknown_tool": 320, "limit": 180}
        }


async def test_names_of_models_that_a_server_makes_up_are_bounded_in_metrics():
    collected = Collected()
    server = Hostile("m")
    async with Runtime(server, tools=[look], instrumentation=[collected.telemetry]) as runtime:
        for _ in range(520):
            await runtime.run("go")
    points = collected.metrics["gen_ai.client.operation.duration"]
    assert server.asked == 1_040
    assert len(points) == 1_001
    assert any(each["gen_ai.response.model"] == "(others)" for each, _ in points)


def test_a_call_that_ran_before_it_was_cancelled_is_counted_under_its_name():
    """A call that was cancelled before it ran may be one of a tool that the model has made up."""
    collected = Collected()
    counts: Any = vars(collected.telemetry)["_counts"]
    for name, seconds in (("slow", 0.5), ("made_up", 0.0)):
        event = ToolCallFailed(call_id="c", name=name, reason="cancelled", error="none", duration_seconds=seconds)
        counts._counters[ToolCallFailed](event)
    assert sorted(collected.metrics["toolbus.tool.calls"], key=str) == [
        ({"error.type": "cancelled"}, 1),
        ({"gen_ai.tool.name": "slow", "error.type": "cancelled"}, 1),
    ]


@pytest.mark.repeats("the memory after many calls")
def test_counts_of_many_calls_take_bounded_memory():
    collected = Collected()
    counts: Any = vars(collected.telemetry)["_counts"]
    tally = Tally(None)  # type: ignore[arg-type]

    def count(number: int) -> None:
        name = f"tool_{number % 5_000}"
        done = ToolCallCompleted(call_id="c", name=name, content="", duration_seconds=number % 977 / 100 + 0.001)
        failed = ToolCallFailed(call_id="c", name=name, reason="unknown_tool", error="none")
        for event in (done, failed):
            tally(event)
            counts._counters[type(event)](event)

    for number in range(5_000):
        count(number)
    tracemalloc.start()
    try:
        for number in range(20_000):
            count(number)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 2_000_000
    assert len(tally.tools()) == 1_001
    assert sum(each.calls for each in tally.tools().values()) == 50_000
