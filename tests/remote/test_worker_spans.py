"""Spans on a worker: the handler's own span is inside of `execute_tool`, which is inside of the request's span."""

from __future__ import annotations

from typing import Any

import pytest
from remote_workers import Broker, model, worker_here

from support.collected import Collected
from toolbus import Runtime, tool
from toolbus.remote.nats import NatsExecutor


@pytest.fixture(params=["asyncio"])  # nats-py works on asyncio only
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


async def spans_of(broker: Broker, collected: Collected, *, on_worker: Any, in_session: Any) -> list[str]:
    @tool(pool="gpu")
    async def look() -> str:
        """Make a span."""
        with collected.own.start_as_current_span("own"):
            return "seen"

    @tool(pool="gpu")
    def look_in_thread() -> str:
        """Make a span in a thread."""
        with collected.own.start_as_current_span("own in thread"):
            return "seen"

    tools = [look, look_in_thread]
    executor = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    runtime = Runtime(model("look", "look_in_thread"), tools=tools, executors=[executor], instrumentation=in_session)
    async with worker_here(broker, tools, instrumentation=on_worker, max_concurrency=1), runtime:
        result = await runtime.run("go")
    assert result.text == "Done."
    return collected.tree


async def test_a_call_on_a_worker_is_inside_of_its_request_and_a_handler_s_own_span_inside_of_the_call(broker: Broker):
    collected = Collected()
    tree = await spans_of(broker, collected, on_worker=[collected.telemetry], in_session=[collected.telemetry])
    assert tree == [
        "invoke_agent",
        "  chat",
        "  execute_tool look",
        "    own",
        "  execute_tool look_in_thread",
        "    own in thread",
        "  chat",
    ]
    assert len({each.context.trace_id for each in collected.spans if each.context}) == 1
    named = [{"gen_ai.tool.name": each} for each in ("look", "look_in_thread")]
    assert collected.metrics["toolbus.tool.calls"] == [(each, 1) for each in named], "and not once more on the worker"


async def test_a_worker_whose_sessions_are_not_traced_has_traces_of_its_own(broker: Broker):
    collected = Collected()
    tree = await spans_of(broker, collected, on_worker=[collected.telemetry], in_session=[])
    assert tree == ["execute_tool look", "  own", "execute_tool look_in_thread", "  own in thread"]


async def test_a_worker_without_instrumentation_makes_no_spans_of_its_own(broker: Broker):
    collected = Collected()
    tree = await spans_of(broker, collected, on_worker=[], in_session=[collected.telemetry])
    assert tree == ["invoke_agent", "  chat", "own", "own in thread", "  chat"]
