"""What a worker sends to the nodes, over a driver that makes it wait until its buffer is written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from toolbus.remote import nats as over_nats
from toolbus.testing import settle, virtual_backends

module: Any = over_nats


anyio_backend = virtual_backends("asyncio")  # nats-py works on asyncio only


class Driver:
    """A driver whose buffer is full until it is `written`, or that `refuses` what is published."""

    max_payload = 20

    def __init__(self) -> None:
        self.written, self.refuses = anyio.Event(), False
        self.messages: list[bytes] = []

    async def publish(self, subject: str, body: bytes) -> None:
        assert subject == "node"
        assert len(body) <= self.max_payload
        if self.refuses:
            raise ConnectionError("the buffer is full")
        self.messages.append(body)
        await self.written.wait()


async def test_an_answer_that_comes_while_another_one_is_written_is_sent_once() -> None:
    driver = Driver()
    outbox = module._Outbox(SimpleNamespace(client=driver))
    async with anyio.create_task_group() as group:
        for body in (b"first", b"second", b"third"):
            outbox.put("node", body, may_be_lost=False)
            group.start_soon(outbox.flush)
            await settle()
        driver.written.set()
    assert driver.messages == [b"first", b"second", b"third"]


async def test_what_the_driver_refuses_is_sent_later_and_before_what_came_meanwhile() -> None:
    driver = Driver()
    driver.refuses = True
    driver.written.set()
    outbox = module._Outbox(SimpleNamespace(client=driver))
    outbox.put("node", b"first", may_be_lost=False)
    await outbox.flush()
    outbox.put("node", b"second", may_be_lost=False)
    driver.refuses = False
    await outbox.flush()
    assert driver.messages == [b"first\nsecond"]


async def test_what_the_server_takes_no_more_is_not_sent_and_delays_nothing(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver()
    driver.written.set()
    outbox = module._Outbox(SimpleNamespace(client=driver))
    for body in (b"x" * 12, b"y" * 6, b"z" * 12, b"w" * 21, b"last"):
        outbox.put("node", body, may_be_lost=False)
    await outbox.flush()
    assert driver.messages == [b"x" * 12 + b"\n" + b"y" * 6, b"z" * 12, b"last"]
    assert [each.getMessage() for each in caplog.records] == [
        "21 bytes were not sent to a node: the server takes 20 at most"
    ]


async def test_signals_that_wait_for_the_server_are_dropped_beyond_a_bound_and_answers_are_not() -> None:
    sent: list[bytes] = []
    broker_unavailable = True

    async def publish(_subject: str, body: bytes) -> None:
        if broker_unavailable:
            raise ConnectionError("the driver's buffer is full")
        sent.extend(body.split(b"\n"))

    outbox = module._Outbox(SimpleNamespace(client=SimpleNamespace(publish=publish, max_payload=2**20)))
    signals = [b"%d" % number * 500_000 for number in range(10)] * 2
    for each in signals:
        outbox.put("node", each, may_be_lost=True)
    outbox.put("node", b"answer", may_be_lost=False)
    await outbox.flush()
    assert sent == []
    broker_unavailable = False
    await outbox.flush()
    assert sent == [*signals[:9], b"answer"]
    outbox.put("node", b"signal", may_be_lost=True)
    await outbox.flush()
    assert sent[-1] == b"signal"
