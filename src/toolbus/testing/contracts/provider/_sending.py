"""Checks of what a provider sends: histories that the vendor accepts, tools and settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....errors import NativeOutputUnsupported
from ....messages import (
    AssistantMessage,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from ....protocols import ModelReply, ModelSettings
from ....records import replace
from ....schemas import as_object
from ...wire import Lack, WireCall, WireFault, WireReply, WireRequest
from ._bench import CITY, CLOCK, FORECAST, WEATHER, Bench, can_hold, check, facts_of, request_of

_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_IMAGE = ImagePart(url=f"data:image/png;base64,{_PIXEL}")
_ANSWER = '{"city": "Rome", "celsius": null, "rain": "some"}'
_FAILED = '{"ok":false,"reason":"error","error":"no such place"}'


def _call(position: int, name: str, arguments: str, wire_id: str) -> ToolCall:
    return ToolCall(name=name, arguments=arguments, call_id=f"req_{position}", provider_call_id=wire_id)


def _history(*wire_ids: str) -> tuple[Message, ...]:
    """Return a conversation with an image, a failure and two rounds of calls under these ids of the provider."""
    first, second, third = wire_ids
    return (
        SystemMessage(text="Be brief."),
        UserMessage(content=(TextPart(text="Where is this?"), _IMAGE)),
        AssistantMessage(
            text="Let me look.",
            tool_calls=(
                _call(0, "get_weather", CITY, first),
                _call(1, "get_weather", '{"city": "Rome"}', second),
            ),
        ),
        ToolMessage(call_id="req_0", name="get_weather", content="sunny 😀"),
        ToolMessage(call_id="req_1", name="get_weather", content=_FAILED, is_error=True),
        AssistantMessage(tool_calls=(_call(2, "get_time", "{}", third),)),
        ToolMessage(call_id="req_2", name="get_time", content="12:00"),
        AssistantMessage(text="Zürich, at noon."),
        UserMessage(content="And now? 日本語"),
    )


async def _arrives(bench: Bench, messages: tuple[Message, ...]) -> None:
    sent = await bench.send(request_of(*messages))
    bench.expect("the conversation that the server received", facts_of(messages), facts_of(sent.messages))


@check("history")
async def history(bench: Bench) -> None:
    """A conversation with instructions, an image, calls and results is sent whole, in order, by the vendor's rules."""
    await _arrives(bench, _history("id_a", "id_b", "id_c"))


@check("history-with-odd-ids")
async def history_with_odd_ids(bench: Bench) -> None:
    """Repeated, empty or odd ids of a provider are sent so that each result still belongs to its call."""
    for wire_ids in (("call_0", "call_0", "call_0"), ("", "", ""), ("a b/ç", "req_0", "functions.f:0")):
        await _arrives(bench, _history(*wire_ids))


@check("malformed-history")
async def malformed_history(bench: Bench) -> None:
    """A history with argument text that is not JSON is still sent by the vendor's rules."""
    for written in ('{"city": "Par', "[1, 2]", ""):
        messages = (
            UserMessage(content="Weather?"),
            AssistantMessage(tool_calls=(_call(0, "get_weather", written, "id_a"),)),
            ToolMessage(call_id="req_0", name="get_weather", content="no JSON", is_error=True),
        )
        sent = await bench.send(request_of(*messages))
        kinds = [fact[:2] for fact in facts_of(sent.messages)]
        expected = [("user", "Weather?"), ("call", "get_weather"), ("result", "get_weather")]
        bench.expect(f"the conversation that is sent with the arguments {written!r}", expected, kinds)


@check("result-images")
async def result_images(bench: Bench) -> None:
    """An image that a tool returned reaches the model, and the results stay with their calls."""
    messages = (
        UserMessage(content="Look."),
        AssistantMessage(tool_calls=(_call(0, "look", "{}", "id_a"), _call(1, "look", "{}", "id_b"))),
        ToolMessage(call_id="req_0", name="look", content="here", parts=(_IMAGE,)),
        ToolMessage(call_id="req_1", name="look", content="there"),
    )
    facts = facts_of((await bench.send(request_of(*messages))).messages)
    bench.require("the image", "in the request", facts, ok=("image", _PIXEL) in facts)
    results = [fact for fact in facts if fact[0] == "result"]
    bench.expect("the results", [("result", "look", "here"), ("result", "look", "there")], results)


@check("opaque-reasoning", "opaque_reasoning", "reasoning")
async def opaque_reasoning(bench: Bench) -> None:
    """Opaque parts of a reply (signatures, encrypted reasoning) are sent back to the vendor unchanged."""
    calls = (WireCall(name="get_time", call_id="a"), WireCall(name="get_time", call_id="b"))
    for scripted in (
        WireReply(reasoning=("Let me ", "see."), text="One moment.", calls=calls),
        WireReply(opaque_reasoning="c2VjcmV0", calls=calls),
    ):
        reply, _ = await bench.ask(scripted)
        sent = await bench.send(request_of(*_answered(reply)))
        bench.expect("the opaque parts that came back", tuple(bench.dialect.opaque(scripted)), sent.opaque)


def _answered(reply: ModelReply) -> tuple[Message, ...]:
    """Return the conversation after a reply, with ids and results."""
    calls = tuple(replace(call, call_id=f"req_{position}") for position, call in enumerate(reply.message.tool_calls))
    results = [ToolMessage(call_id=call.call_id, name=call.name, content="12:00") for call in calls]
    return (UserMessage(content="What time is it?"), replace(reply.message, tool_calls=calls), *results)


@check("tools")
async def tools(bench: Bench) -> None:
    """Tools are offered with name, description and schema, in their order; without tools, no tool setting is sent."""
    sent = await bench.send(request_of())
    offered = [(tool.name, tool.description, dict(tool.parameters)) for tool in sent.tools]
    expected = [(tool.name, tool.description, dict(tool.parameters)) for tool in (WEATHER, CLOCK)]
    bench.expect("the tools", expected, offered)
    bare = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    bench.expect(
        "the tools of a request without tools", (), (await bench.send(request_of(tools=(), settings=bare))).tools
    )


@check("native-output", "native_output")
async def native_output(bench: Bench) -> None:
    """A provider that can hold replies to a schema sends it by the vendor's rules, and returns the JSON as text."""
    bench.expect("the schema of a request without one", None, (await bench.send(request_of(tools=()))).output_schema)
    able = can_hold(bench.provider, FORECAST)
    some = [(WEATHER, CLOCK)] if able == "with_tools" else []
    for offered in [(), *some] if able else []:
        request = request_of(tools=offered, output_schema=FORECAST)
        reply, outcome = await bench.ask(WireReply(text=_ANSWER), request=request)
        bench.expect("the reply's text", (_ANSWER, _ANSWER), (reply.message.text, outcome.text))
        sent = bench.server.read()
        bench.expect("the vendor's rules that the request breaks", (), sent.problems)
        bench.expect("the tools", _names(offered), _names(sent.tools))
        names = sorted(as_object((sent.output_schema or {}).get("properties")))
        bench.expect("the properties in the schema that is sent", sorted(FORECAST["properties"]), names)


@check("native-output-refused", "native_output")
async def native_output_refused(bench: Bench) -> None:
    """A schema that the server refuses raises `NativeOutputUnsupported`, and the provider remembers the refusal."""
    if not can_hold(bench.provider, FORECAST):
        return
    for wording in range(len(bench.dialect.refusals(WireFault(kind="native_output")))):
        await bench.close_provider()
        bench.prepare()  # each provider remembers a refused schema
        request = request_of(tools=(), output_schema=FORECAST)
        step = WireFault(kind="native_output", wording=wording)
        outcome = await bench.attempt(step, request=request)
        got = type(outcome.error).__name__ if outcome.error else str(outcome)
        bench.expect(f"the error (wording {wording})", NativeOutputUnsupported.__name__, got)
        bench.expect(f"native_output afterwards (wording {wording})", "", can_hold(bench.provider, FORECAST))
    await bench.close_provider()


@check("settings")
async def settings(bench: Bench) -> None:
    """Settings reach the server, and a setting that is not given is left to the server."""
    plain = await bench.send(request_of())
    odd = set(plain.settings) - {"max_output_tokens"}  # one vendor requires it
    bench.expect("the settings of a request without settings", set[str](), odd)
    wanted: list[tuple[str, Any, tuple[Any, ...], Lack | None]] = [
        ("temperature", 0.5, (0.5,), None),
        ("max_output_tokens", 321, (321,), None),
        ("reasoning_effort", "low", ("low", "on"), "reasoning_effort"),
        ("parallel_tool_calls", False, (False,), "parallel_tool_calls"),
    ]
    for name, value, accepted, needed in wanted:
        if needed not in bench.dialect.lacks:
            sent = await bench.send(request_of(settings=ModelSettings(**{name: value})))
            got = sent.settings.get(name)
            bench.require(f"{name}={value!r} at the server", repr(value), repr(got), ok=got in accepted)
    more = {"toolbus_check": {"a": [1]}}
    await bench.send(request_of(settings=ModelSettings(extra_body=more)))
    body = bench.server.requests[-1].body
    bench.expect("extra_body in the body sent", more["toolbus_check"], body.get("toolbus_check"))


@check("tool-choice")
async def tool_choice(bench: Bench) -> None:
    """A tool choice is sent so that the server keeps it: as a word, or by the choice of tools that are offered."""
    none = await _chosen(bench, "none")
    bench.require("none", "no tools, or the choice", _said(none), ok=not none.tools or _choice(none) == "none")
    named = await _chosen(bench, "get_time")
    only = [tool.name for tool in named.tools] == ["get_time"]
    forced = _choice(named) == "get_time" or (only and _choice(named) == "required")
    weak = "tool_choice" in bench.dialect.lacks
    bench.require("a tool's name", "that tool and no other", _said(named), ok=forced or (weak and only))
    if not weak:
        bench.expect("required", "required", _choice(await _chosen(bench, "required")))
    both = [WEATHER.name, CLOCK.name]
    auto = await _chosen(bench, "auto")
    bench.expect("the tools with auto", both, [tool.name for tool in auto.tools])
    bench.require("auto", "auto, or nothing", _said(auto), ok=_choice(auto) in {"auto", None})


async def _chosen(bench: Bench, choice: str) -> WireRequest:
    return await bench.send(request_of(settings=ModelSettings(tool_choice=choice)))


def _choice(sent: WireRequest) -> Any:
    return sent.settings.get("tool_choice")


def _said(sent: WireRequest) -> str:
    return f"tools {_names(sent.tools)}, choice {_choice(sent)!r}"


def _names(offered: Sequence[Any]) -> list[str]:
    return [tool.name for tool in offered]
