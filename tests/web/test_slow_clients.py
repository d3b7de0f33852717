"""Many slow and vanished clients of one request, in virtual time: nobody else waits for them, and nothing is kept for them.

TOOLBUS_WEB_CLIENTS=1000 is how many there are in `dev.py soak --only pages`.
"""

from __future__ import annotations

import os
from typing import Any

import anyio
import pytest
from test_responses import ALL, Client
from ui_grammar import check_agui, check_vercel

from toolbus import Runtime
from toolbus.events import RequestCompleted
from toolbus.providers.scripted import ScriptedProvider, text
from toolbus.testing import virtual_backends

anyio_backend = virtual_backends()
CLIENTS = int(os.environ.get("TOOLBUS_WEB_CLIENTS", "48"))
WORDS = "word " * 1_500
PIECES = 1_500
PIECE_SECONDS = 0.01


class Stalled(Client):
    """A client that reads the head of the response, and then nothing, until the server gives it up."""

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            await super()._send(message)
            return
        await anyio.sleep_forever()


class Slow(Client):
    """A client that takes a second for each frame."""

    async def _send(self, message: Any) -> None:
        await anyio.sleep(1)
        await super()._send(message)


def runtime() -> Runtime:
    return Runtime(ScriptedProvider(lambda _: text(WORDS, PIECES, delays=PIECE_SECONDS)))


async def seconds_alone() -> float:
    """The time that the request takes without a client."""
    async with runtime() as alone:
        return (await alone.run("Talk.")).duration_seconds


@pytest.mark.timeout(1_200)
async def test_slow_and_vanished_clients_hurt_nobody():
    expected = await seconds_alone()
    kinds = list(ALL)
    async with runtime() as served:
        session = served.start("Talk.")
        readers = {kind: Client() for kind in kinds}
        slow = [(kind, Slow()) for kind in kinds]
        vanishing: list[tuple[int, Client]] = []
        async with anyio.create_task_group() as stalled, anyio.create_task_group() as reading:
            for number in range(CLIENTS):
                respond = ALL[kinds[number % len(kinds)]]
                if number % 2:
                    stalled.start_soon(Stalled().read, respond(session))
                else:
                    vanishing.append((1 + number % 40, Client(1 + number % 40)))
                    reading.start_soon(vanishing[-1][1].read, respond(session))
            for kind, client in (*readers.items(), *slow):
                reading.start_soon(client.read, ALL[kind](session))
            await anyio.sleep(PIECES * PIECE_SECONDS * 0.9)
            numbers = served.bus.statistics().subscriptions
            assert len(numbers) >= CLIENTS // 2
            assert all(each.peak <= 1_001 for each in numbers)
            result = await session.result()
            with anyio.fail_after(10_000):
                while not all(client.ended for client in (*readers.values(), *(each for _, each in slow))):  # noqa: ASYNC110
                    await anyio.sleep(1)
            stalled.cancel_scope.cancel()  # the server gives them up
        assert served.bus.statistics().subscriptions == ()
        assert result.text == WORDS
        assert result.duration_seconds == pytest.approx(expected, abs=PIECE_SECONDS)
        again = await served.run("Talk again.", conversation_id="other")
        assert again.duration_seconds == pytest.approx(expected, abs=PIECE_SECONDS)
    assert all(len(client.frames) == frames for frames, client in vanishing)
    for kind, client in (*readers.items(), *slow):
        check_whole(kind, client)


def check_whole(kind: str, client: Client) -> None:
    """The client has the whole answer, and the ending."""
    if kind == "text":
        assert client.text == WORDS
        assert client.frames[-1]["event"] == "end"
    elif kind == "events":
        assert client.frames[-1]["event"] == RequestCompleted.type
    else:
        check = check_vercel if kind == "vercel" else check_agui
        assert list(check(client.chunks).values()) == [WORDS]
