"""OpenTelemetry over a runtime: the tree of spans, asserted whole, what they hold, and what they must not hold.

A handler's own span is the child of its `execute_tool` span, wherever the handler runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from opentelemetry import trace
from opentelemetry.util.genai.handler import TelemetryHandler  # pyright: ignore[reportMissingTypeStubs]
from pydantic import SecretStr
from traced_process_tools import NotContinued, NotLeft, traced

from support.collected import Collected, id_of
from support.journaled import JournaledStore
from support.mcp_server import FakeMcp, definition, said
from toolbus import Compression, Limits, Price, Runtime, Summarizer, ToolError, telemetry, tool
from toolbus.errors import ConfigurationError, MissingExtra, ProviderUnavailable
from toolbus.events import ApprovalRequested, HistoryCompressed, ModelRetrying, ToolCallLate
from toolbus.messages import FilePart, ImagePart, Message, TextPart, Usage, UserMessage
from toolbus.protocols import ModelRequest, ModelSettings, Provider, Summary
from toolbus.records import replace
from toolbus.telemetry import OpenTelemetry, _names
from toolbus.testing import ScriptedProvider, calls, error, hang, settle, text
from toolbus.toolsets.mcp import McpTools
from toolbus.toolsets.sub_request import sub_request_tool

USAGE = Usage(input_tokens=100, output_tokens=7, cached_tokens=60, reasoning_tokens=3)


@pytest.fixture
def collected() -> Collected:
    return Collected()


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_names.CAPTURE_CONTENT, raising=False)


def scripted(*steps: Any) -> ScriptedProvider:
    return ScriptedProvider(list(steps), vendor="maker")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch):
    for name in ("_counts", "_spans"):
        monkeypatch.delattr(telemetry, name, raising=False)
        monkeypatch.delitem(sys.modules, f"toolbus.telemetry.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtra, match=r"pip install 'toolbus\[otel\]'"):
        OpenTelemetry()


# ------------------------------------------------------------------------------------------------ the tree


async def test_parallel_tools_are_beside_each_other_and_a_handler_s_own_spans_are_inside_of_them(collected: Collected):
    begun = anyio.Event()

    @tool
    async def first() -> str:
        """Wait for the second one in the middle of a span."""
        with collected.own.start_as_current_span("own of first"):
            await begun.wait()
        return "1"

    @tool
    async def second() -> str:
        """Begin while the first one waits."""
        with collected.own.start_as_current_span("own of second"):
            begun.set()
            await anyio.lowlevel.checkpoint()
        return "2"

    provider = scripted(calls(("first", {}), ("second", {})), text("done"))
    async with Runtime(provider, tools=[first, second], instrumentation=[collected.telemetry]) as runtime:
        with collected.own.start_as_current_span("POST /chat"):
            await runtime.run("go")
    assert collected.tree == [
        "POST /chat",
        "  invoke_agent",
        "    chat",
        "    execute_tool first",
        "      own of first",
        "    execute_tool second",
        "      own of second",
        "    chat",
    ]
    assert len({each.context.trace_id for each in collected.spans if each.context}) == 1


async def test_each_attempt_of_a_model_and_of_a_tool_is_a_span_beside_the_failed_one(
    collected: Collected, toolbus_clock: object
):
    attempts: list[int] = []

    @tool(retries=1)
    async def flaky() -> str:
        """Fail once."""
        with collected.own.start_as_current_span(f"own {len(attempts)}"):
            attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionError("secret address")
        return "now"

    busy = error(ProviderUnavailable("busy", retryable=True))
    async with Runtime(
        scripted(busy, calls(("flaky", {})), text("done")), tools=[flaky], instrumentation=[collected.telemetry]
    ) as runtime:
        await runtime.run("go")
    assert collected.tree == [
        "invoke_agent",
        "  chat provider_unavailable",
        "  chat",
        "  execute_tool flaky ConnectionError",
        "    own 0",
        "  execute_tool flaky",
        "    own 1",
        "  chat",
    ]
    assert "secret address" not in "".join(each.to_json() for each in collected.spans)


async def test_a_sub_request_is_inside_of_the_tool_that_makes_it(collected: Collected):
    @tool
    async def inner() -> str:
        """Make a span."""
        with collected.own.start_as_current_span("own"):
            return "x"

    research = sub_request_tool("research", "r", provider=scripted(calls(("inner", {})), text("fine")), tools=[inner])
    provider = scripted(calls(("research", {"task": "t"})), text("done"))
    async with Runtime(provider, tools=[research], instrumentation=[collected.telemetry]) as runtime:
        await runtime.run("go")
    assert collected.tree == [
        "invoke_agent",
        "  chat",
        "  execute_tool research",
        "    invoke_agent",
        "      chat",
        "      execute_tool inner",
        "        own",
        "      chat",
        "  chat",
    ]


async def test_a_tool_in_a_thread_has_its_span_there(collected: Collected):
    @tool
    def sync() -> str:
        """Make a span."""
        with collected.own.start_as_current_span("own"):
            return "x"

    async with Runtime(
        scripted(calls(("sync", {})), text("done")), tools=[sync], instrumentation=[collected.telemetry]
    ) as runtime:
        await runtime.run("go")
    assert collected.tree == ["invoke_agent", "  chat", "  execute_tool sync", "    own", "  chat"]


async def test_a_span_of_a_handler_in_a_process_is_the_child_of_the_call_s_whatever_else_is_carried(
    collected: Collected,
):
    class Local(NotContinued):
        """A class that the process cannot import."""

    among = [NotContinued(), collected.telemetry, NotLeft(), Local()]
    provider = scripted(calls(("traced", {})), text("done"))
    async with Runtime(provider, tools=[traced], instrumentation=among) as runtime:
        result = await runtime.run("go")
    assert collected.tree == ["invoke_agent", "  chat", "  execute_tool traced", "  chat"]
    span = collected.named("execute_tool traced")
    assert span.context is not None
    assert result.tool_calls[0].data == [format(span.context.trace_id, "032x"), format(span.context.span_id, "016x")]


async def test_an_mcp_server_gets_the_span_of_the_call(collected: Collected):
    seen: list[int] = []

    async def answer(_context: Any, _params: Any) -> Any:
        seen.append(trace.get_current_span().get_span_context().span_id)
        return said("ok")

    fake = FakeMcp([definition("add")], answer)
    async with (
        McpTools([fake.named("calc")]) as mcp,
        Runtime(
            scripted(calls(("calc__add", {})), text("done")),
            tools=mcp.registry,
            instrumentation=[collected.telemetry],
            needs_approval=False,
        ) as runtime,
    ):
        await runtime.run("go")
    assert collected.tree == ["invoke_agent", "  chat", "  execute_tool calc__add", "  chat"]
    assert seen == [id_of(collected.named("execute_tool calc__add"))]


async def test_a_resumed_request_is_a_trace_of_its_own_with_a_link_to_the_earlier_one(
    collected: Collected, toolbus_clock: object
):
    store, before = JournaledStore(), Collected()
    async with Runtime(scripted(hang()), store=store, instrumentation=[before.telemetry]) as runtime:
        session = runtime.start("go")
        await session.accepted()
        await settle()
        await runtime.drain(timeout_seconds=0)
    assert before.tree == ["invoke_agent", "  chat cancelled"]
    assert (before.named("invoke_agent").attributes or {})["toolbus.request.outcome"] == "released"
    async with Runtime(scripted(text("done")), store=store, instrumentation=[collected.telemetry]) as runtime:
        (session,) = await runtime.resume()
        await session.result()
    assert collected.tree == ["invoke_agent", "  chat"]
    (link,) = collected.named("invoke_agent").links
    assert link.context.span_id == id_of(before.named("invoke_agent"))
    assert collected.named("invoke_agent").parent is None


async def test_a_request_that_the_application_has_cancelled_is_an_error_without_its_reason(
    collected: Collected, toolbus_clock: object
):
    async with Runtime(scripted(hang()), instrumentation=[collected.telemetry]) as runtime:
        session = runtime.start("go")
        await settle()
        session.cancel("Ann has left")
        await session.result()
    span = collected.named("invoke_agent")
    assert span.status.status_code is trace.StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "cancelled"
    assert "Ann" not in repr(span.to_json())


# ------------------------------------------------------------------------------------------------ attributes


async def one_request(collected: Collected, **options: Any) -> None:
    @tool
    async def login(name: str) -> dict[str, Any]:
        """Log in."""
        return {"name": name, "token": SecretStr("hunter2000")}

    provider = scripted(calls(("login", {"name": "tiger-1234"}), usage=USAGE), text("Welcome, tiger-1234."))
    async with Runtime(provider, tools=[login], instrumentation=[collected.telemetry], **options) as runtime:
        result = await runtime.run("My password is tiger-1234", conversation_id="c1")
    assert result.outcome == "completed"


async def test_spans_have_the_attributes_of_the_conventions_and_no_content_by_default(collected: Collected):
    await one_request(collected)
    request, asked, called, _ = [dict(each.attributes or {}) for each in collected.spans]
    request_id = request.pop("toolbus.request.id")
    assert request == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.conversation.id": "c1",
        "toolbus.request.outcome": "completed",
    }
    assert asked == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "maker",
        "gen_ai.conversation.id": "c1",
        "gen_ai.response.model": "script",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 60,
        "gen_ai.usage.reasoning.output_tokens": 3,
        "toolbus.request.id": request_id,
        "toolbus.round": 0,
    }
    assert called == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "login",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "call_0",
        "toolbus.request.id": request_id,
    }
    kinds = [each.kind for each in collected.spans]
    assert kinds == [trace.SpanKind.INTERNAL, trace.SpanKind.CLIENT, trace.SpanKind.INTERNAL, trace.SpanKind.CLIENT]


async def test_names_are_those_that_util_genai_gives():
    ours, theirs = Collected(), Collected()

    @tool
    async def login() -> str:
        """Log in."""
        return "in"

    class Named(ScriptedProvider):
        model = "m"

    model = Named([calls(("login", {}), usage=USAGE)], vendor="maker")
    settings = ModelSettings(max_output_tokens=50, temperature=0.5)
    async with Runtime(model, tools=[login], instrumentation=[ours.telemetry], settings=settings) as runtime:
        await runtime.start("go", conversation_id="c1", limits=Limits(max_rounds=1)).result()
    handler = TelemetryHandler(theirs.tracers, theirs.meters)
    with handler.invoke_local_agent(conversation_id="c1"):
        with handler.inference("maker", request_model="m", conversation_id="c1") as asked:
            asked.response_model_name, asked.finish_reasons = "script", ["tool_calls"]
            asked.max_tokens, asked.temperature = 50, 0.5
            asked.input_tokens, asked.output_tokens = USAGE.input_tokens, USAGE.output_tokens
            asked.cache_read_input_tokens, asked.thinking_tokens = USAGE.cached_tokens, USAGE.reasoning_tokens
        with handler.tool("login", tool_type="function") as called:
            called.tool_call_id = "call_0"

    def spans(collected: Collected) -> list[Any]:
        return [
            (each.name, each.kind, {name: value for name, value in (each.attributes or {}).items() if "gen_ai" in name})
            for each in collected.spans[:3]
        ]

    assert spans(ours) == spans(theirs)
    wanted = {name: points for name, points in theirs.shapes.items() if name.startswith("gen_ai")}
    assert len(wanted) == 4
    assert {name: [each for each in points if each not in ours.shapes[name]] for name, points in wanted.items()} == {
        name: [] for name in wanted
    }


async def test_content_is_recorded_if_asked_for_and_without_secrets():
    collected = Collected(include_content=True)
    await one_request(collected, secrets=["tiger-1234"], instructions="Be brief.")
    recorded = json.dumps([dict(each.attributes or {}) for each in collected.spans])
    assert "tiger" not in recorded
    assert "hunter" not in recorded
    _, _, called, asked = [dict(each.attributes or {}) for each in collected.spans]
    assert json.loads(str(asked["gen_ai.system_instructions"])) == [{"type": "text", "content": "Be brief."}]
    user, assistant, answered = json.loads(str(asked["gen_ai.input.messages"]))
    assert user["role"] == "user"
    assert user["parts"][0]["content"].startswith("My password is secret:")
    (call,) = assistant["parts"]
    assert (call["type"], call["name"]) == ("tool_call", "login")
    assert (answered["role"], answered["parts"][0]["id"]) == ("tool", call["id"])
    (reply,) = json.loads(str(asked["gen_ai.output.messages"]))
    assert reply["parts"][0]["content"].startswith("Welcome, secret:")
    assert json.loads(str(called["gen_ai.tool.call.arguments"]))["name"].startswith("secret:")
    assert "token" in str(called["gen_ai.tool.call.result"])


async def test_of_images_and_files_only_their_kind_is_recorded():
    collected = Collected(include_content=True)
    image, file = (kind.from_bytes(b"tiger", what) for kind, what in ((ImagePart, "image/png"), (FilePart, "text/csv")))
    async with Runtime(ScriptedProvider([text("A cat.")]), instrumentation=[collected.telemetry]) as runtime:
        await runtime.run([TextPart(text="What is it?"), image, file])
    (asked,) = json.loads(str(dict(collected.named("chat").attributes or {})["gen_ai.input.messages"]))
    assert asked["parts"] == [
        {"type": "text", "content": "What is it?"},
        {"type": "blob", "modality": "image", "content": ""},
        {"type": "blob", "modality": "file", "content": ""},
    ]


@pytest.mark.parametrize(("value", "is_recorded"), [("span_only", True), ("EVENT_ONLY", False), ("", False)])
async def test_the_standard_variable_decides_on_content(value: str, is_recorded: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(_names.CAPTURE_CONTENT, value)
    collected = Collected()
    await one_request(collected)
    assert ("gen_ai.input.messages" in (collected.spans[1].attributes or {})) is is_recorded


async def test_a_failed_request_has_its_code_and_the_span_of_a_stopped_one_its_limit(collected: Collected):
    async with Runtime(scripted(error(ProviderUnavailable("down"))), instrumentation=[collected.telemetry]) as runtime:
        await runtime.start("go").result()
        provider = scripted(calls(("missing", {})), text("sorry"))
        await runtime.start("go", provider=provider, limits=Limits(max_rounds=1)).result()
    failed, stopped = [each for each in collected.spans if each.name == "invoke_agent"]
    assert (failed.attributes or {})["error.type"] == "provider_unavailable"
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert (stopped.attributes or {})["toolbus.request.limit"] == "max_rounds"
    assert stopped.status.status_code is trace.StatusCode.UNSET


async def test_without_an_sdk_nothing_is_recorded_and_everything_works():
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    async with Runtime(
        scripted(calls(("look", {})), text("done")), tools=[look], instrumentation=[OpenTelemetry()]
    ) as runtime:
        assert (await runtime.run("go")).text == "done"


# ------------------------------------------------------------------------------------------------ metrics


async def test_metrics_count_requests_model_calls_tokens_and_tools(collected: Collected):
    await one_request(collected)
    metrics = collected.metrics
    chat = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "maker", "gen_ai.response.model": "script"}
    assert [each for each, _ in metrics["gen_ai.client.operation.duration"]] == [chat]
    assert metrics["gen_ai.client.token.usage"] == [
        ({**chat, "gen_ai.token.type": "input"}, 100),
        ({**chat, "gen_ai.token.type": "output"}, 7),
    ]
    assert [each for each, _ in metrics["gen_ai.invoke_agent.duration"]] == [{"toolbus.request.outcome": "completed"}]
    assert [each["gen_ai.tool.name"] for each, _ in metrics["gen_ai.execute_tool.duration"]] == ["login"]
    assert metrics["toolbus.requests.running"] == [({}, 0)]
    assert metrics["toolbus.requests.refused"] == [({}, 0)]


async def test_the_totals_of_runtimes_that_have_ended_stay(collected: Collected):
    steps = list[float]()
    for _ in range(2):
        async with Runtime(
            scripted(text("done")), store=JournaledStore(), instrumentation=[collected.telemetry]
        ) as own:
            await own.run("go")
            steps += [value for _, value in collected.metrics["toolbus.journal.appends"]]
        assert collected.metrics["toolbus.journal.appends"] == [({}, steps[-1])]
    first, both = steps
    assert first > 0
    assert both == 2 * first


async def test_what_a_runtime_publishes_is_counted_by_reason(collected: Collected, toolbus_clock: object):
    @tool(needs_approval=True)
    async def careful() -> str:
        """Fail."""
        raise ToolError("no")

    busy = error(ProviderUnavailable("busy", retryable=True))
    provider = scripted(busy, calls(("careful", {"x": 1}), ("careful", {}), ("made_up", {})), text("done"))
    waiting: list[Any] = []

    def approve(asked: ApprovalRequested) -> None:
        waiting.extend(value for _, value in collected.metrics["toolbus.approvals.pending"])
        runtime.bus.publish(asked.decided(approved=True))

    async with Runtime(provider, tools=[careful], instrumentation=[collected.telemetry]) as runtime:
        runtime.bus.connect(ApprovalRequested, approve)
        await runtime.run("go")
        metrics = collected.metrics
        assert waiting == [1]
        assert metrics["toolbus.approvals.pending"] == [({}, 0)]
        assert metrics["toolbus.model.retries"] == [({"error.type": "provider_unavailable"}, 1)]
        assert metrics["toolbus.leases.lost"] == [({}, 0)], "a counter without attributes begins at 0"
        assert sorted(metrics["toolbus.tool.calls"], key=str) == [
            ({"error.type": "unknown_tool"}, 1),
            ({"gen_ai.tool.name": "careful", "error.type": "error"}, 1),
            ({"gen_ai.tool.name": "careful", "error.type": "invalid_arguments"}, 1),
        ]
    runtime.bus.publish(ToolCallLate(call_id="c", name="careful", event_type="tool_call_completed"))
    assert "toolbus.tool.late_results" not in collected.metrics


async def test_the_cost_of_a_summary_and_of_a_reply_that_could_not_be_used_is_counted_for_its_model(
    collected: Collected,
):
    async with Runtime(scripted(), instrumentation=[collected.telemetry]) as runtime:
        retrying = ModelRetrying(round=0, reason="provider_unavailable", vendor="maker", model="script", cost=0.5)
        runtime.bus.publish(retrying)
        runtime.bus.publish(replace(retrying, event_id="e", cost=0.0))
        runtime.bus.publish(
            HistoryCompressed(before_tokens=9, after_tokens=1, vendor="maker", model="script", cost=0.25)
        )
        named = {"gen_ai.provider.name": "maker", "gen_ai.response.model": "script"}
        assert collected.metrics["toolbus.model.cost"] == [(named, 0.75)]


class Own:
    """A summarizer of the application, which asks the model of the request."""

    provider = "the name of something else"

    async def summarize(self, earlier: str, messages: Sequence[Message], provider: Provider) -> Summary:
        request = ModelRequest(messages=[UserMessage(content="Sum up.")])
        reply = await provider.respond(request, lambda _piece: None)
        return Summary(text=reply.message.text, usage=reply.usage, vendor=reply.vendor, model=reply.model)


@pytest.mark.parametrize("whose", ["another model", "the same model", "the application's own"])
async def test_a_summary_of_the_history_is_a_span_and_its_tokens_are_counted(whose: str):
    collected = Collected(include_content=True)
    summary, quick = text("So far: tiger-1234.", usage=USAGE), ScriptedProvider([], vendor="quick")
    script = [text("One. " * 200), text("Two.")]
    if whose == "another model":
        quick = ScriptedProvider([summary], vendor="quick")
        summarizer: Any = Summarizer(quick)
    else:
        script.insert(1, summary)
        summarizer = Summarizer() if whose == "the same model" else Own()
    compression = Compression(max_context_tokens=300, summarizer=summarizer)
    async with Runtime(
        scripted(*script), compression=compression, instrumentation=[collected.telemetry], secrets=["tiger-1234"]
    ) as runtime:
        for _ in range(2):
            result = await runtime.run("Go.", conversation_id="c")
    assert collected.tree == ["invoke_agent", "  chat", "invoke_agent", "  chat", "  chat"]
    summed = dict(collected.spans[3].attributes or {})
    vendor = "quick" if whose == "another model" else "maker"
    assert (summed["gen_ai.provider.name"], summed["gen_ai.usage.input_tokens"]) == (vendor, 100)
    assert (summed["gen_ai.conversation.id"], summed["toolbus.request.id"]) == ("c", result.request_id)
    assert "So far: secret:" in str(summed["gen_ai.output.messages"])
    assert [value for _, value in collected.metrics["gen_ai.client.token.usage"]] == [100, 7]


@pytest.mark.parametrize(
    ("vendor", "named"),
    [("azure", "azure.ai.openai"), ("gemini", "gcp.gemini"), ("mistral", "mistral_ai"), ("xai", "x_ai"), ("vllm",) * 2],
)
async def test_vendors_have_the_names_of_the_conventions(vendor: str, named: str, collected: Collected):
    provider = ScriptedProvider([text("Hi", usage=USAGE)], vendor=vendor)
    prices = {"*": Price(input_per_million=1e6, output_per_million=0)}
    async with Runtime(provider, prices=prices, instrumentation=[collected.telemetry]) as runtime:
        await runtime.run("Hi")
    assert (collected.named("chat").attributes or {})["gen_ai.provider.name"] == named
    assert (collected.named("invoke_agent").attributes or {})["toolbus.request.cost"] == 100
    for metric in ("gen_ai.client.operation.duration", "gen_ai.client.token.usage", "toolbus.model.cost"):
        assert {each["gen_ai.provider.name"] for each, _ in collected.metrics[metric]} == {named}


async def test_a_call_has_the_same_id_in_all_spans():
    collected = Collected(include_content=True)

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    provider = scripted(calls(("look", {})), text("done"))
    async with Runtime(provider, tools=[look], instrumentation=[collected.telemetry]) as runtime:
        await runtime.run("go")
    asked, called, again = [dict(each.attributes or {}) for each in collected.spans[1:]]
    (reply,) = json.loads(str(asked["gen_ai.output.messages"]))
    _, assistant, answered = json.loads(str(again["gen_ai.input.messages"]))
    ids = [each["parts"][0]["id"] for each in (reply, assistant, answered)]
    assert [*ids, called["gen_ai.tool.call.id"]] == ["call_0"] * 4


@pytest.mark.parametrize("name", ["tracer_provider", "meter_provider"])
def test_what_is_not_a_provider_of_the_sdk_is_refused(name: str):
    make: Any = OpenTelemetry
    with pytest.raises(
        ConfigurationError, match=rf"^{name} is .*; pass a (Tracer|Meter)Provider, or None for the global"
    ):
        make(**{name: trace.get_tracer("shop")})
