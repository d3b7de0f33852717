"""Checks of the replies that a provider reads."""

from __future__ import annotations

from ....messages import Usage
from ....protocols import FinishReason, ModelReply
from ...wire import Lack, WireBreak, WireCall, WireReply
from ._bench import CITY, Bench, check

_TEXT = ("Grü", "ezi, ", "\n\n", "Zürich 😀", ' is \\ "sunny"', "\u2028\x85today.")
_THOUGHT = ("Let me ", "see: ", "é…")


def _calls(reply: ModelReply) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in reply.message.tool_calls]


@check("text")
async def text(bench: Bench) -> None:
    """The pieces of text, joined, are the reply's text; they are emitted in order, or none is emitted."""
    reply, outcome = await bench.ask(WireReply(text=_TEXT))
    bench.expect("the text", "".join(_TEXT), reply.message.text)
    if outcome.text:
        bench.expect("the pieces emitted, joined", "".join(_TEXT), outcome.text)
    bench.expect("the calls", [], _calls(reply))


@check("reasoning", "reasoning")
async def reasoning(bench: Bench) -> None:
    """Reasoning is kept apart from text, and joined in the same way."""
    reply, outcome = await bench.ask(WireReply(reasoning=_THOUGHT, text="Sunny."))
    bench.expect("the reasoning", "".join(_THOUGHT), reply.message.reasoning)
    bench.expect("the text", "Sunny.", reply.message.text)
    if outcome.reasoning:
        bench.expect("the pieces of reasoning emitted, joined", "".join(_THOUGHT), outcome.reasoning)


@check("pieces-at-once")
async def pieces_at_once(bench: Bench) -> None:
    """A provider that streams emits a piece when it arrives, not when the reply is complete."""
    whole = WireReply(text=("One ", "moment."))
    _, streamed = await bench.ask(whole)
    if not streamed.text:
        return  # it does not stream
    frames = bench.dialect.render(whole).frames
    first = next(number for number, frame in enumerate(frames) if b"One " in frame)
    step = WireBreak(reply=whole, how="stall", after=first + 1)
    held = await bench.held(step, lambda outcome: outcome.text == "One ")
    bench.expect("the pieces emitted while the server waits", "One ", held.text)


@check("parallel-calls")
async def parallel_calls(bench: Bench) -> None:
    """Calls keep the order in which the model made them, after the reply's text, and have no ids of toolbus's."""
    asked = [(f"tool_{number}", f'{{"n": {number}}}') for number in (3, 1, 2, 1)]
    calls = tuple(
        WireCall(name=name, arguments=text, call_id=f"id_{position}") for position, (name, text) in enumerate(asked)
    )
    reply, _ = await bench.ask(WireReply(text="One moment.", calls=calls))
    bench.expect("the names, in order", [name for name, _ in asked], [call.name for call in reply.message.tool_calls])
    bench.expect("the numbers of the arguments", ["3", "1", "2", "1"], [_digits(text) for _, text in _calls(reply)])
    bench.expect("the text", "One moment.", reply.message.text)
    bench.expect("call_id, which the session mints", {""}, {call.call_id for call in reply.message.tool_calls})


def _digits(text: str) -> str:
    return "".join(each for each in text if each.isdigit())


@check("split-arguments", "split_arguments")
async def split_arguments(bench: Bench) -> None:
    """Arguments that arrive one character at a time are joined, each piece with its own call."""
    pieces = tuple(CITY)
    calls = tuple(WireCall(name="get_weather", arguments=CITY, call_id=f"id_{n}", pieces=pieces) for n in range(2))
    reply, outcome = await bench.ask(WireReply(calls=calls))
    bench.expect("the arguments", [CITY, CITY], [arguments for _, arguments in _calls(reply)])
    if outcome.arguments:
        bench.expect("the pieces emitted, joined, by call", {0: CITY, 1: CITY}, outcome.arguments)


async def _with_ids(bench: Bench, *ids: str | None) -> None:
    names = [f"tool_{position}" for position in range(len(ids))]
    calls = tuple(WireCall(name=name, call_id=wire_id) for name, wire_id in zip(names, ids, strict=True))
    reply, _ = await bench.ask(WireReply(calls=calls))
    bench.expect("the calls", names, [call.name for call in reply.message.tool_calls])
    got = [call.provider_call_id for call in reply.message.tool_calls]
    bench.expect("the provider's ids", [wire_id or "" for wire_id in ids], got)


@check("ids-empty", "ids")
async def ids_empty(bench: Bench) -> None:
    """Calls with an empty id are read like others."""
    await _with_ids(bench, "", "", "x")


@check("ids-repeated", "ids")
async def ids_repeated(bench: Bench) -> None:
    """Calls that have the same id are all kept."""
    await _with_ids(bench, "call_0", "call_0", "call_0")


@check("ids-missing", "ids")
async def ids_missing(bench: Bench) -> None:
    """Calls without an id are all kept."""
    await _with_ids(bench, None, None, "x")


@check("empty-arguments")
async def empty_arguments(bench: Bench) -> None:
    """A call whose argument text is empty has empty arguments, or `{}`."""
    calls = (WireCall(name="get_time", arguments="", call_id="a"), WireCall(name="get_time", call_id="b"))
    reply, _ = await bench.ask(WireReply(calls=calls))
    bench.expect("the arguments", ["{}", "{}"], [arguments.strip() or "{}" for _, arguments in _calls(reply)])


@check("malformed-arguments", "argument_text")
async def malformed_arguments(bench: Bench) -> None:
    """Argument text that is not JSON, or not an object, is passed on as written: the turn machine answers the call."""
    written = ['{"city": Paris}', "[1, 2]", '{"n": NaN}', '{"a": 1, "a": 2}', '{"city": "Par']
    calls = tuple(WireCall(name="get_weather", arguments=text, call_id=f"id_{n}") for n, text in enumerate(written))
    reply, _ = await bench.ask(WireReply(calls=calls))
    bench.expect("the arguments", written, [arguments for _, arguments in _calls(reply)])


@check("token-limit", "argument_text")
async def token_limit(bench: Bench) -> None:
    """A call that the token limit cut off does not become one that can run, not even a call without arguments."""
    for written in ('{"city": "Par', ""):
        cut = (
            WireCall(name="get_time", call_id="a"),
            WireCall(name="get_weather", arguments=written, call_id="b"),
        )
        outcome = await bench.attempt(WireReply(calls=cut, finish_reason="length"))
        if outcome.reply is None:
            continue  # without a reply no call runs
        bench.expect("the finish_reason", "length", outcome.reply.finish_reason)
        ran = [arguments for name, arguments in _calls(outcome.reply) if name == "get_weather"]
        bench.require(
            "the arguments of the cut call",
            "no JSON object",
            ran,
            ok=not any(each.strip().endswith("}") for each in ran),
        )


@check("usage")
async def usage(bench: Bench) -> None:
    """Tokens are counted: cached tokens, read or written, are part of the input, reasoning tokens of the output."""
    lacks = bench.dialect.lacks
    counted = Usage(
        input_tokens=1000,
        output_tokens=200,
        cached_tokens=0 if "cached_tokens" in lacks else 600,
        cache_write_tokens=0 if "cache_write_tokens" in lacks else 100,
        reasoning_tokens=0 if "reasoning_tokens" in lacks else 150,
    )
    reply, _ = await bench.ask(WireReply(text="Sunny.", usage=counted))
    bench.expect("the usage", counted, reply.usage)


@check("finish-reasons")
async def finish_reasons(bench: Bench) -> None:
    """The reason why a reply ended is reported in toolbus's word, and in the vendor's own."""
    expected: list[tuple[FinishReason, Lack | None]] = [
        ("stop", None),
        ("length", None),
        ("content_filter", "content_filter"),
    ]
    for reason, needed in expected:
        if needed not in bench.dialect.lacks:
            reply, _ = await bench.ask(WireReply(text="Sunny.", finish_reason=reason))
            bench.expect("the finish_reason", reason, reply.finish_reason)
            bench.require("vendor_finish_reason", "the vendor's word", "none", ok=bool(reply.vendor_finish_reason))
            bench.expect("the text", "Sunny.", reply.message.text)
    reply, _ = await bench.ask(WireReply(calls=(WireCall(name="get_time"),)))
    bench.expect("the finish_reason of a reply that calls", "tool_calls", reply.finish_reason)


@check("refusal", "refusal")
async def refusal(bench: Bench) -> None:
    """A model's refusal is the reply's text, and the finish_reason is "refusal"."""
    reply, _ = await bench.ask(WireReply(refusal="I cannot help with that."))
    bench.expect("the text", "I cannot help with that.", reply.message.text)
    bench.expect("the finish_reason", "refusal", reply.finish_reason)


@check("names")
async def names(bench: Bench) -> None:
    """A reply names its vendor and its model; its message has no id of its own."""
    reply, _ = await bench.ask(WireReply(text="Sunny.", model="stub-model-of-today"))
    bench.require("the provider's vendor", "a short name", bench.provider.vendor, ok=bool(bench.provider.vendor))
    bench.expect("the reply's vendor", bench.provider.vendor, reply.vendor)
    bench.expect("the reply's model", "stub-model-of-today", reply.model)
    bench.expect("the message_id, which the session mints", "", reply.message.message_id)
