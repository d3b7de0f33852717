"""The body of an answer, in pieces of any size and at any time: what is read, for how long, and within which bounds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import orjson
import pytest

from support.wire_events import BUILDERS, ERRORS
from toolbus.errors import ReplyTooLarge
from toolbus.protocols import Delta, ModelReply
from toolbus.providers._shared.reply_reader import close_response, read_reply
from toolbus.providers._shared.stream_events import EventLines, JsonLines, Lines
from toolbus.testing import virtual_backends

anyio_backend = virtual_backends()
HI = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}
CHUNK = {"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}
STREAM = b"data: " + orjson.dumps(CHUNK) + b"\n\ndata: [DONE]\n\n"
EVENTS, JSON = "text/event-stream", "application/json"
SLICE = 2**16


def ignore(_delta: Delta) -> None:
    """Listen to nothing."""


class Body:
    """An answer with these pieces. Then it hangs if it `hangs`, and so does its end if it `cannot_close`."""

    def __init__(self, kind: str, pieces: Sequence[bytes], *, hangs: bool = False, cannot_close: bool = False) -> None:
        self.headers = {"content-type": kind}
        self.pieces = pieces
        self.hangs = hangs
        self.cannot_close = cannot_close
        self.read = 0
        self.is_closed = False

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        for each in self.pieces:
            if self.is_closed:
                return
            self.read += 1
            yield each
        if self.hangs:
            await anyio.sleep_forever()

    async def aclose(self) -> None:
        self.is_closed = True
        if self.cannot_close:
            await anyio.sleep_forever()


async def read(body: Body, limit_bytes: int = 2**23) -> ModelReply:
    errors: Any = ERRORS["openai"]
    reply = BUILDERS["openai"](model="m", emit=ignore, limit_bytes=limit_bytes, errors=errors)
    await read_reply(body, reply, EventLines(limit_bytes, errors), ignore)
    return reply.finish()


@pytest.mark.parametrize("size", [1, 7, 50])
async def test_a_body_that_is_not_streamed_may_come_in_pieces(size: int) -> None:
    whole = orjson.dumps(HI)
    pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
    assert (await read(Body(JSON, pieces))).message.text == "hi"


async def test_a_body_that_is_not_streamed_is_read_up_to_the_bound() -> None:
    body = Body(JSON, [b"{", *[b" " * 100] * 1_000])
    with pytest.raises(ReplyTooLarge):
        await read(body, 1_000)
    assert body.read < 20


async def test_the_rest_of_a_body_after_a_whole_reply_is_awaited_for_half_a_second() -> None:
    began = anyio.current_time()
    assert (await read(Body(EVENTS, [STREAM], hangs=True))).message.text == "hi"
    assert anyio.current_time() - began == pytest.approx(0.5)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_connection_that_cannot_be_closed_is_left_after_two_seconds(is_cancelled: bool) -> None:
    began, body = anyio.current_time(), Body(EVENTS, [], cannot_close=True)
    with anyio.CancelScope() as scope:
        if is_cancelled:
            scope.cancel()
        await close_response(body, body.aiter_bytes())
    assert anyio.current_time() - began == pytest.approx(2.0)


async def test_other_tasks_run_between_the_slices_of_a_large_piece() -> None:
    steps, is_read = 0, False

    async def count() -> None:
        nonlocal steps
        while not is_read:
            steps += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(count)
        await anyio.lowlevel.checkpoint()
        before = steps
        await read(Body(EVENTS, [b":" + b" " * (10 * SLICE) + b"\n" + STREAM]))
        is_read = True
        assert steps - before >= 9  # trio runs tasks in any order, so one of the ten may be missed


@pytest.mark.parametrize(
    ("kind", "line"),
    [(EventLines, b'{"a": "long enough"}'), (JsonLines, b'{"a": "long enough"}'), (EventLines, b"data: long enough")],
)
def test_a_line_that_comes_whole_is_bounded_too(kind: type[Lines], line: bytes) -> None:
    with pytest.raises(ReplyTooLarge):
        kind(10, ERRORS["openai"]).feed(line + b"\n")
    assert kind(100, ERRORS["openai"]).feed(line + b"\n\n")


def test_a_byte_order_mark_counts_only_at_the_beginning_of_a_body() -> None:
    lines = EventLines(100, ERRORS["openai"])
    assert lines.feed(b"\xef\xbb\xbfdata: 1\n\n\xef\xbb\xbfdata: 2\n\ndata: 3\n\n") == [("", b"1"), ("", b"3")]
