"""A stream that sends no piece is alive as long as anything comes: work of a server's own tools, pings, comments."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import orjson
import pytest

from support.wire_events import BUILDERS, ERRORS, MIB, Frame, begin, chat, completed, end, item, piece, start, stop
from toolbus import Limits, RequestResult
from toolbus.protocols import Emit, Heartbeat, ModelReply, ModelRequest
from toolbus.providers._shared.reply_reader import read_reply
from toolbus.providers._shared.stream_events import EventLines, JsonLines
from toolbus.testing import Harness, virtual_backends

anyio_backend = virtual_backends()
pytestmark = pytest.mark.guarantee("G10")
LIMITS = Limits(stream_idle_seconds=10, max_model_attempts=1)
PACE = 8.0
ACCURACY = 1e-5


class Body:
    """An answer that comes in pieces, one every `pace` seconds."""

    headers = {"content-type": "text/event-stream"}

    def __init__(self, pieces: Sequence[bytes], pace: float, *, hangs: bool) -> None:
        self.pieces = pieces
        self.pace = pace
        self.hangs = hangs

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        for each in self.pieces:
            await anyio.sleep(self.pace)
            yield each
        if self.hangs:
            await anyio.sleep_forever()

    async def aclose(self) -> None:
        pass


class Streaming:
    """A model whose server sends these pieces of a body."""

    vendor = "stub"

    def __init__(self, wire: str, pieces: Sequence[bytes], pace: float = PACE, *, hangs: bool = False) -> None:
        self.wire = wire
        self.body = Body(pieces, pace, hangs=hangs)

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        errors: Any = ERRORS[self.wire]
        reply = BUILDERS[self.wire](model="m", emit=emit, limit_bytes=MIB, errors=errors)
        lines = (JsonLines if self.wire == "ollama" else EventLines)(MIB, errors)
        await read_reply(self.body, reply, lines, emit)
        return reply.finish()


async def run(wire: str, pieces: Sequence[bytes], pace: float = PACE, *, hangs: bool = False) -> RequestResult:
    async with Harness(Streaming(wire, pieces, pace, hangs=hangs), limits=LIMITS) as harness:
        return await harness.start("?").result()


def sent(*frames: Frame) -> list[bytes]:
    return [b"data: " + orjson.dumps(frame) + b"\n\n" for frame in frames]


SEARCH: Frame = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
FOUND: Frame = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
SAID: Frame = {"type": "message", "id": "m_1", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
TEXT: Frame = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "hi"}

ALIVE: dict[str, tuple[str, list[bytes]]] = {
    "the input of a server's tool": (
        "anthropic",
        sent(
            start(),
            begin(0, {"type": "text", "text": ""}),
            piece(0, "text", "hi"),
            stop(0),
            begin(1, SEARCH),
            piece(1, "input_json", '{"query":'),
            piece(1, "input_json", '"x"}'),
            stop(1),
            begin(2, FOUND),
            stop(2),
            *end(),
        ),
    ),
    "pings": (
        "anthropic",
        [
            *sent(start(), begin(0, {"type": "text", "text": ""}), piece(0, "text", "hi")),
            *[b'event: ping\ndata: {"type": "ping"}\n\n'] * 3,
            *sent(stop(0), *end()),
        ],
    ),
    "events of a search": (
        "responses",
        sent(
            TEXT,
            item(0, SAID),
            item(1, {"type": "web_search_call", "id": "ws_1"}, kind="added"),
            {"type": "response.web_search_call.searching", "output_index": 1},
            {"type": "response.web_search_call.completed", "output_index": 1},
            completed(),
        ),
    ),
    "comments": ("openai", [*sent(chat(content="hi")), *[b": PROCESSING\n\n"] * 4, *sent(chat(finish_reason="stop"))]),
    "an event that comes slowly": (
        "ollama",
        [b'{"message": {"content": "hi"}}\n', b'{"done"', b": ", b"true", b"}\n"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("wire", "pieces"), ALIVE.values(), ids=ALIVE)
async def test_a_stream_in_which_anything_comes_does_not_stand_still(wire: str, pieces: list[bytes]) -> None:
    result = await run(wire, pieces, pace=4 if len(pieces) > 8 else PACE)
    assert (result.outcome, result.text) == ("completed", "hi")


async def test_a_server_that_only_pings_is_bounded_by_the_models_limit() -> None:
    result = await run("anthropic", [*sent(start()), *[b'data: {"type": "ping"}\n\n'] * 100])
    assert anyio.current_time() == pytest.approx(300, abs=ACCURACY)
    assert "model_timeout_seconds=300" in str(result.error)


async def test_what_comes_before_the_first_piece_begins_no_idle_time() -> None:
    """A model that reasons in silence is no stream that stands still: its server has said that it began."""
    async with Harness(Slow(), limits=LIMITS) as harness:
        assert (await harness.start("?").result()).outcome == "completed"
    assert anyio.current_time() > 50


class Slow:
    vendor = "stub"

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        emit(Heartbeat())
        await anyio.sleep(50)
        return await Streaming("openai", sent(chat(content="hi", finish_reason="stop")), 1).respond(request, emit)


async def test_a_stream_in_which_nothing_comes_any_more_ends_by_its_idle_limit() -> None:
    result = await run("openai", [*sent(chat(content="hi")), b": here\n\n"], hangs=True)
    assert "stream_idle_seconds=10" in str(result.error)
    assert anyio.current_time() == pytest.approx(2 * PACE + 10, abs=1 + ACCURACY)
