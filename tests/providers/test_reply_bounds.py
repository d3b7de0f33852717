"""What one reply may hold, whoever sends it, and that reading any of it never holds the event loop."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from support.watchdog import cpu_seconds
from support.wire_events import (
    MIB,
    Frame,
    begin,
    builder,
    chat,
    chat_call,
    completed,
    end,
    feed,
    function_call,
    holds_the_loop,
    item,
    piece,
    read,
    start,
    stop,
    use,
)
from toolbus import Budget, Interceptor, Price, Runtime, ToolContext, tool
from toolbus.errors import ProviderError, ReplyTooLarge
from toolbus.interceptors import Ask
from toolbus.messages import AssistantMessage, ToolCall, Usage
from toolbus.protocols import MAX_REPLY_CALLS, ArgumentsPiece, Emit, ModelReply, ModelRequest
from toolbus.providers import OpenAIProvider
from toolbus.providers.openai._calls_in_text import calls_in_text, may_become_calls
from toolbus.testing import WireServer
from toolbus.testing.wire import WireReply

pytestmark = [pytest.mark.guarantee("G10"), pytest.mark.repeats("it measures CPU time, which tracing multiplies")]
WIRES = ("openai", "responses", "anthropic", "ollama")
Streams = Callable[[int], Iterator[Frame]]


# ------------------------------------------------------------------------------------------------ calls


def one_by_one(count: int) -> Iterator[Frame]:
    for number in range(count):
        yield chat(chat_call(number))


def all_in_one(count: int) -> Iterator[Frame]:
    yield chat(*(chat_call(number) for number in range(count)))


def all_at_index_0(count: int) -> Iterator[Frame]:
    for number in range(count):
        yield chat({**chat_call(number), "index": 0})


def items(count: int) -> Iterator[Frame]:
    for number in range(count):
        yield item(number, function_call(number))


def items_that_begin(count: int) -> Iterator[Frame]:
    for number in range(count):
        yield item(number, function_call(number), kind="added")


def pieces_of_items(count: int) -> Iterator[Frame]:
    for number in range(count):
        yield {"type": "response.function_call_arguments.delta", "output_index": number, "delta": "{}"}


def items_at_the_end(count: int) -> Iterator[Frame]:
    yield completed(*(function_call(number) for number in range(count)))


def blocks(count: int) -> Iterator[Frame]:
    yield start()
    for number in range(count):
        yield from (begin(number, use(f"toolu_{number}")), stop(number))


def blocks_at_the_start(count: int) -> Iterator[Frame]:
    yield start("msg_1", *(use(f"toolu_{number}") for number in range(count)))
    yield from end("tool_use")


def lines(count: int) -> Iterator[Frame]:
    for number in range(count):
        yield {"message": {"tool_calls": [{"function": {"name": "f", "arguments": {"n": number}}}]}}


STREAMS: list[tuple[str, Streams]] = [
    ("openai", one_by_one),
    ("openai", all_in_one),
    ("openai", all_at_index_0),
    ("responses", items),
    ("responses", items_that_begin),
    ("responses", pieces_of_items),
    ("responses", items_at_the_end),
    ("anthropic", blocks),
    ("anthropic", blocks_at_the_start),
    ("ollama", lines),
]
ENDS: dict[Streams, list[Frame]] = {
    one_by_one: [chat(finish_reason="tool_calls")],
    all_in_one: [chat(finish_reason="tool_calls")],
    all_at_index_0: [chat(finish_reason="tool_calls")],
    items: [completed()],
    items_that_begin: [completed()],
    pieces_of_items: [completed()],
    blocks: end("tool_use"),
    lines: [{"done": True, "done_reason": "stop"}],
}


@pytest.mark.parametrize(("wire", "stream"), STREAMS)
def test_reading_stops_at_a_thousand_calls(wire: str, stream: Streams) -> None:
    whole = read(wire, [*stream(MAX_REPLY_CALLS), *ENDS.get(stream, [])])
    assert len(whole.message.tool_calls) == MAX_REPLY_CALLS
    with pytest.raises(ReplyTooLarge, match="more than 1000 calls: reading stopped") as caught:
        read(wire, [*stream(MAX_REPLY_CALLS + 1), *ENDS.get(stream, [])])
    assert not caught.value.retryable


@pytest.mark.parametrize(("wire", "stream"), STREAMS)
def test_a_stream_of_calls_takes_little_memory(wire: str, stream: Streams) -> None:
    frames = [orjson.dumps(each) for each in stream(20_000)]
    reply = builder(wire)
    tracemalloc.start()
    try:
        with pytest.raises(ReplyTooLarge):
            feed(reply, frames)
            reply.finish()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 * MIB


@pytest.mark.parametrize("form", ["a list", "tags"])
def test_calls_that_are_written_as_text_are_made_up_to_the_bound(form: str) -> None:
    one = '{"name": "f", "arguments": {}}'
    text = f"[{', '.join([one] * 5_000)}]" if form == "a list" else f"<tool_call>{one}</tool_call>" * 5_000
    assert len(calls_in_text(text, {"f"})) == MAX_REPLY_CALLS + 1


@tool
async def f() -> str:
    """Do nothing."""
    return "done"


async def test_a_text_of_too_many_calls_fails_its_request() -> None:
    text = "[" + ", ".join(['{"name": "f", "arguments": {}}'] * 5_000) + "]"
    with WireServer([WireReply(text=text, usage=Usage(input_tokens=3, output_tokens=7))], dialect="openai") as server:
        provider = OpenAIProvider("m", api_key="k", base_url=server.base_url, calls_in_text=True)
        async with Runtime(provider=provider, tools=[f]) as runtime:
            result = await runtime.start("?").result()
        await provider.aclose()
    assert (result.outcome, result.reason) == ("failed", "reply_too_large")
    assert "openai's reply has more than 1000 calls: reading stopped" in str(result.error)
    assert result.usage.output_tokens == 7, "it is paid for"


class Generous:
    """A model of the application's own, with as many calls as it likes."""

    vendor = "own"

    def __init__(self, *, count: int, emits: bool = False, returns: bool = True) -> None:
        self.count = count
        self.emits = emits
        self.returns = returns
        self.emitted = 0

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        if request.round:
            return ModelReply(message=AssistantMessage(text="done"))
        if self.emits:
            for number in range(self.count):
                emit(ArgumentsPiece(number, "f", "{}"))
                self.emitted += 1
        calls = tuple(ToolCall(name="f", arguments=f'{{"n": {number}}}') for number in range(self.count))
        usage = Usage(input_tokens=3, output_tokens=7)
        return ModelReply(message=AssistantMessage(tool_calls=calls if self.returns else ()), usage=usage, vendor="own")


async def test_a_reply_of_too_many_calls_is_not_taken_from_any_provider_and_is_paid_for() -> None:
    budget, prices = Budget(max_cost=1.0), {"*": Price(input_per_million=0, output_per_million=10_000)}
    async with Runtime(provider=Generous(count=100_000), tools=[f], budget=budget, prices=prices) as runtime:
        result = await runtime.start("?").result()
    assert budget.cost == pytest.approx(0.07)
    assert (result.outcome, result.reason) == ("failed", "reply_too_large")
    assert "own's reply has more than 1000 calls" in str(result.error)
    assert len(result.messages) == 1
    assert result.usage.output_tokens == 7


async def test_a_provider_that_emits_too_many_calls_is_stopped_where_it_does() -> None:
    provider = Generous(count=100_000, emits=True)
    async with Runtime(provider=provider, tools=[f]) as runtime:
        result = await runtime.start("?").result()
    assert (result.outcome, result.reason) == ("failed", "reply_too_large")
    assert provider.emitted == MAX_REPLY_CALLS


class Gives(Interceptor):
    """Gives a reply of its own, and asks no model for the first one."""

    def __init__(self, count: int) -> None:
        self.model = Generous(count=count)

    async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
        return await self.model.respond(request, lambda _piece: None)


async def test_a_reply_of_too_many_calls_is_not_taken_from_an_interceptor_either() -> None:
    async with Runtime(provider=Generous(count=1), tools=[f], interceptors=[Gives(MAX_REPLY_CALLS + 1)]) as runtime:
        result = await runtime.start("?").result()
    assert (result.outcome, result.reason) == ("failed", "reply_too_large")
    assert result.usage.output_tokens == 7, "it counts what the interceptor says that its reply took"


async def test_an_interceptor_may_answer_instead_of_a_reply_of_too_many_calls() -> None:
    class Answers(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
            with pytest.raises(ReplyTooLarge, match="more than 1000 calls"):
                await ask(request)
            return ModelReply(message=AssistantMessage(text="It wanted too much."))

    provider = Generous(count=MAX_REPLY_CALLS + 1)
    async with Runtime(provider=provider, tools=[f], interceptors=[Answers()]) as runtime:
        assert (await runtime.run("?")).text == "It wanted too much."


@pytest.mark.parametrize("interceptors", [[], [Interceptor()], [Gives(MAX_REPLY_CALLS)]])
async def test_a_reply_with_the_most_calls_is_taken(interceptors: list[Interceptor]) -> None:
    async with Runtime(provider=Generous(count=MAX_REPLY_CALLS), tools=[f], interceptors=interceptors) as runtime:
        result = await runtime.run("?")
    assert result.reason != "reply_too_large"
    assert len(result.messages) >= 1 + 1 + MAX_REPLY_CALLS, "each call has its result, run or not"


# ------------------------------------------------------------------------------------------------ other parts


def test_blocks_that_are_no_calls_are_bounded() -> None:
    frames = (begin(number, {"type": "redacted_thinking", "data": "x"}) for number in range(10_001))
    with pytest.raises(ReplyTooLarge, match="more than 10000 blocks"):
        read("anthropic", [start(), *frames])


def test_items_that_are_no_calls_are_bounded() -> None:
    frames = (item(number, {"type": "reasoning", "id": f"rs_{number}"}) for number in range(10_001))
    with pytest.raises(ReplyTooLarge, match="more than 10000 items"):
        read("responses", frames)


LONG = "y" * 20_000
SEALED = {"type": "reasoning.encrypted", "data": LONG}
THOUGHT, SIGNED = ({"type": "reasoning.text", **more} for more in ({"text": "a"}, {"signature": LONG}))
LARGE: list[tuple[str, Callable[[int], Frame]]] = [
    ("openai", lambda number: chat({"index": number % 900, "id": f"{number}", f"x{number}": LONG})),
    ("openai", lambda number: chat({"index": number, "function": {"name": LONG}})),
    ("openai", lambda number: chat({"index": number, "id": LONG, "function": {"name": "f"}})),
    ("openai", lambda number: chat(reasoning_details=[{**SEALED, "index": number}])),
    ("openai", lambda number: chat(reasoning_details=[{**THOUGHT, "index": number}, {**SIGNED, "index": number}])),
    ("responses", lambda number: item(number, {"type": "web_search_call", "query": LONG}, kind="added")),
    ("responses", lambda number: item(number, {"type": "reasoning", "encrypted_content": LONG})),
    ("anthropic", lambda _: start("msg_1", {"type": "redacted_thinking", "data": LONG})),
    ("anthropic", lambda number: begin(number, {"type": "redacted_thinking", "data": LONG})),
    ("ollama", lambda _: {"message": {"tool_calls": [{"id": LONG, "function": {"name": "f"}}]}}),
]


@pytest.mark.parametrize(("wire", "frame"), LARGE)
def test_what_is_kept_of_a_reply_counts_whatever_its_name(wire: str, frame: Callable[[int], Frame]) -> None:
    reply = builder(wire)
    tracemalloc.start()
    try:
        with pytest.raises(ReplyTooLarge, match="passed 8388608 bytes"):
            feed(reply, (frame(number) for number in range(3_000)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 60 * MIB


def test_usage_with_names_that_nobody_knows_is_not_kept() -> None:
    reply = builder("anthropic")
    for number in range(200):
        usage = {f"x{number}_{each}": each for each in range(200)}
        feed(reply, [{"type": "message_delta", "delta": {}, "usage": {**usage, "output_tokens": number}}])
    feed(reply, [start(), *end()])
    assert reply.finish().usage == Usage(output_tokens=199)
    assert len(orjson.dumps(reply._usage)) < 100


# ------------------------------------------------------------------------------------------------ the event loop

VALUES: dict[str, bytes] = {
    "lists": b"[" + b"[]," * (7 * MIB // 3) + b"0]",
    "objects": b"[" + b'{"a":1},' * (7 * MIB // 8) + b"0]",
    "numbers": b"[" + b"0," * (7 * MIB // 2) + b"0]",
    "keys": b"{" + b",".join(b'"%d":0' % number for number in range(600_000)) + b"}",
    "brackets": b"[" * (7 * MIB),
    "quotes": b'["' + b'","' * (7 * MIB // 3) + b'"]',
}
TEXTS: dict[str, str] = {
    "one long text": "x" * (7 * MIB),
    "text of other scripts": "東" * (7 * MIB // 3),
    "JSON in text": '{"a": [1, "b"]}, ' * (3 * MIB // 17),
    "line breaks": "\n" * (2 * MIB),
    "digits": "1 2345678901234567 " * (7 * MIB // 19),
}


def hostile(wire: str, junk: bytes) -> bytes:
    """An event of a wire with any JSON value in it that its server likes."""
    head = {
        "openai": b'{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":',
        "responses": b'{"type":"response.output_item.done","output_index":0,"item":{"a":{"b":{"c":[{"d":',
        "anthropic": b'{"type":"content_block_start","index":0,"content_block":{"a":{"b":{"c":[{"d":',
        "ollama": b'{"message":{"tool_calls":[{"function":{"name":"f","x":[{"arguments":',
    }[wire]
    return head + junk + {"openai": b"}}]}}]}", "responses": b"}]}}}}", "anthropic": b"}]}}}}"}.get(wire, b"}]}}]}}")


@pytest.mark.parametrize("junk", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("wire", WIRES)
def test_an_event_of_millions_of_values_is_not_read(wire: str, junk: bytes) -> None:
    frame = hostile(wire, junk)

    def attempt() -> None:
        with pytest.raises(ReplyTooLarge, match="more than 100000 values in a"):
            builder(wire).feed("", frame)

    assert not holds_the_loop(lambda: attempt)


def in_one_delta(wire: str, text: str) -> list[Frame]:
    """A call with these arguments, all of which come in one event."""
    if wire == "openai":
        return [chat(chat_call(0, arguments=text)), chat(finish_reason="tool_calls")]
    if wire == "responses":
        delta = {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": text}
        return [item(0, function_call(0, arguments=""), kind="added"), delta, completed()]
    if wire == "anthropic":
        return [start(), begin(0, use()), piece(0, "input_json", text), stop(0), *end("tool_use")]
    return [{"message": {"tool_calls": [{"function": {"name": "f", "arguments": {"text": text}}}]}}, {"done": True}]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("wire", WIRES)
def test_arguments_of_megabytes_in_one_delta_do_not_hold_the_loop(wire: str, text: str) -> None:
    frames = [orjson.dumps(each) for each in in_one_delta(wire, json.dumps({"text": text}, ensure_ascii=False))]
    for place, frame in enumerate(frames):

        def one(place: int = place, frame: bytes = frame) -> Callable[[], object]:
            reply = builder(wire)
            feed(reply, frames[:place])
            return lambda: reply.feed("", frame)

        assert not holds_the_loop(one)

    def finished() -> Callable[[], object]:
        reply = builder(wire)
        feed(reply, frames)
        return reply.finish

    assert not holds_the_loop(finished)


def takes_time_by_its_length(frames: Callable[[int], list[bytes]], wire: str) -> bool:
    """Return whether four times as much takes less than 8 times as long: 4 if each byte is read once, and 16 if not."""

    def reading(count: int) -> Callable[[], None]:
        given = frames(count)

        def work() -> None:
            reply = builder(wire)
            feed(reply, given)
            with pytest.raises(ProviderError):
                reply.finish()

        return work

    # The shorter time is the best of several attempts, too: one that was disturbed would permit the longer one too much.
    bound = 8 * cpu_seconds(reading(3_000), below=0, attempts=5)
    return cpu_seconds(reading(12_000), below=bound) < bound


def named_again(count: int) -> list[bytes]:
    """A server that repeats the tool's name in each chunk."""
    begun = chat({"index": 0, "function": {"name": "f", "arguments": '{"a": "'}})
    return [
        orjson.dumps(begun),
        *[orjson.dumps(chat({"index": 0, "function": {"name": "f", "arguments": "x"}}))] * count,
    ]


def braces_again(count: int) -> list[bytes]:
    """The same, of arguments that look whole after each chunk."""
    begun = chat({"index": 0, "function": {"name": "f", "arguments": '{"a": [{}'}})
    more = chat({"index": 0, "function": {"name": "f", "arguments": ",{}"}})
    return [orjson.dumps(begun), *[orjson.dumps(more)] * count]


def spaces_again(count: int) -> list[bytes]:
    """A server that writes spaces after arguments that are whole."""
    begun = chat({"index": 0, "function": {"name": "f", "arguments": '{"a": 1}'}})
    more = chat({"index": 0, "function": {"arguments": " " * 50}})
    return [orjson.dumps(begun), *[orjson.dumps(more)] * count]


def name_in_pieces(count: int) -> list[bytes]:
    return [orjson.dumps(chat({"index": 0, "function": {"name": "n" * 600}}))] + [
        orjson.dumps(chat({"index": 0, "function": {"name": "m" * 600}}))
    ] * count


def done_again(count: int) -> list[bytes]:
    """Text of which each event says that it is over."""
    text = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "x" * 500}
    over = {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "x"}
    return [orjson.dumps(text)] * count + [orjson.dumps(over)] * count


def many_citations(count: int) -> list[bytes]:
    cited = {"type": "citations_delta", "citation": {"a": 1}}
    frame = orjson.dumps({"type": "content_block_delta", "index": 0, "delta": cited})
    return [orjson.dumps(begin(0, {"type": "text", "text": ""})), *[frame] * count]


def unknown_deltas(count: int) -> list[bytes]:
    frame = orjson.dumps({"type": "content_block_delta", "index": 0, "delta": {"type": "x", "y": "z" * 100}})
    return [orjson.dumps(begin(0, {"type": "new"})), *[frame] * count]


@pytest.mark.parametrize(
    ("wire", "frames"),
    [
        ("openai", named_again),
        ("openai", braces_again),
        ("openai", spaces_again),
        ("openai", name_in_pieces),
        ("responses", done_again),
        ("anthropic", many_citations),
        ("anthropic", unknown_deltas),
    ],
)
def test_a_stream_takes_time_by_its_length(wire: str, frames: Callable[[int], list[bytes]]) -> None:
    assert takes_time_by_its_length(frames, wire)


def test_the_last_event_is_compared_with_what_came_in_time_by_its_length() -> None:
    output: list[Frame] = [{"type": "reasoning", "id": f"rs_{number}", "summary": []} for number in range(8_000)]
    frames = [orjson.dumps(item(place, each)) for place, each in enumerate(output)]
    last = orjson.dumps(completed(*output[::-1]))

    def prepared() -> Callable[[], object]:
        reply = builder("responses")
        feed(reply, frames)
        return lambda: reply.feed("", last)

    assert not holds_the_loop(prepared)


@pytest.mark.parametrize(
    "text",
    [
        "```\n" + " " * (2 * MIB) + "x",
        "```" + " " * (2 * MIB) + "x y\n",
        "```json\n" + "\n ```" * (MIB // 2),
        "<tool_call>" * (MIB // 8),
        "[" + '{"name":"f","arguments":{}},' * (2 * MIB // 28) + "0]",
        "[" * (2 * MIB),
    ],
    ids=["spaces in a fence", "spaces after a fence", "fences", "tags", "calls", "brackets"],
)
def test_text_that_looks_like_calls_is_told_apart_in_time_by_its_length(text: str) -> None:
    assert not holds_the_loop(lambda: lambda: calls_in_text(text, {"f"}))
    assert not holds_the_loop(lambda: lambda: may_become_calls(text))


def whole_bodies() -> Iterator[tuple[str, Any]]:
    yield "openai", {"choices": [{"message": {"tool_calls": [chat_call(number) for number in range(1_001)]}}]}
    yield "responses", {"status": "completed", "output": [function_call(number) for number in range(1_001)]}
    yield "anthropic", {"content": [use(f"toolu_{number}") for number in range(1_001)], "stop_reason": "tool_use"}
    calls: list[Frame] = [{"function": {"name": "f", "arguments": {}}}] * 1_001
    yield "ollama", {"message": {"tool_calls": calls}, "done": True}


@pytest.mark.parametrize(("wire", "body"), list(whole_bodies()))
def test_a_reply_that_is_not_streamed_is_bounded_alike(wire: str, body: Any) -> None:
    with pytest.raises(ReplyTooLarge, match="more than 1000 calls"):
        builder(wire).whole(body)
