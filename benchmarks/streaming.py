"""CPU time of a piece of streamed text, without and with one subscriber, against an anyio memory stream.

The provider emits pieces, and yields to other tasks after each `BATCH` of them, as one that reads a socket does: one
read brings several pieces. The memory stream is used in two ways: as it is meant to be used, with `await send(item)`,
which yields after each item; and with `send_nowait`, in the same batches and without a bound, since its reader takes
one item at a time.
"""

from __future__ import annotations

import math

import anyio
import anyio.abc
import anyio.lowlevel

from toolbus import EventBus
from toolbus.events import TextDelta
from toolbus.messages import AssistantMessage
from toolbus.protocols import Emit, ModelReply, ModelRequest, TextPiece

from .plumbing import Effort, Row, alternate, compared, cpu_us, ratio_row, run
from .work import answered, sessions

PIECES, BATCH, CAPACITY = 20_000, 16, 1_000


class StreamingModel:
    """A provider that repeats one word."""

    vendor = "benchmark"

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:  # noqa: ARG002
        for number in range(self.pieces):
            emit(TextPiece("word "))
            if number % BATCH == 0:
                await anyio.lowlevel.checkpoint()
        return ModelReply(message=AssistantMessage(text="done"))


async def _listen(bus: EventBus, pieces: int, task_status: anyio.abc.TaskStatus[None]) -> None:
    heard = 0
    async with bus.subscribe(TextDelta, capacity=CAPACITY) as events:
        task_status.started()
        async for _event in events:
            heard += 1
            if heard == pieces:
                return


async def _through_a_stream(pieces: int, *, in_batches: bool) -> None:
    send, receive = anyio.create_memory_object_stream[str](math.inf if in_batches else CAPACITY)

    async def read() -> None:
        async with receive:
            async for _item in receive:
                pass

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        async with send:
            for number in range(pieces):
                if not in_batches:
                    await send.send("word ")
                    continue
                send.send_nowait("word ")
                if number % BATCH == 0:
                    await anyio.lowlevel.checkpoint()


async def _figure(effort: Effort) -> list[Row]:
    pieces = effort.of(PIECES, least=50)
    bus = EventBus()
    async with sessions(StreamingModel(pieces), bus=bus) as one:

        async def heard() -> None:
            async def listen(*, task_status: anyio.abc.TaskStatus[None]) -> None:
                await _listen(bus, pieces, task_status)

            async with anyio.create_task_group() as group:
                await group.start(listen)
                await answered(one)

        unheard, with_one, stream, batches = await alternate(
            effort.repeats,
            lambda: cpu_us(answered(one), pieces),
            lambda: cpu_us(heard(), pieces),
            lambda: cpu_us(_through_a_stream(pieces, in_batches=False), pieces),
            lambda: cpu_us(_through_a_stream(pieces, in_batches=True), pieces),
        )
    rows: list[Row] = []
    for name, ours, goal in (
        ("text delta without subscribers", unheard, 0.3),
        ("text delta with one subscriber", with_one, 1.5),
    ):
        figures = compared(ours, stream)
        remark = f"{1e6 / figures.ours:,.0f} a second"
        rows.append(ratio_row(name, figures, "item through a memory stream, send()", goal=goal, remark=remark))
        against = f"item through a memory stream, send_nowait() in batches of {BATCH}"
        rows.append(ratio_row(name, compared(ours, batches), against))
    return rows


def streaming(effort: Effort) -> list[Row]:
    """Measure the CPU time of a text delta."""
    return run(_figure, effort)
