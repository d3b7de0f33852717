"""What a worker sends to the nodes, over a driver that makes it wait until its buffer is written."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from toolbus.remote import nats as over_nats
from toolbus.testing import settle, virtual_backends

letters: Any = over_nats


anyio_backend = virtual_backends("asyncio")  # nats-py works on asyncio only


class Driver:
    """A driver whose buffer is full until it is `written`, or that `refuses` what is published."""

    max_payload = 20

    def __init__(self) -> None:
        self.written, self.refuses = anyio.Event(), False
        self.letters: list[bytes] = []

    async def publish(self, subject: str, body: bytes) -> None:
        assert subject == "node"
        assert len(body) <= self.max_payload
        if self.refuses:
            raise ConnectionError("the buffer is full")
        self.letters.append(body)
        await self.written.wait()


async def test_an_answer_that_comes_while_another_one_is_written_is_sent_once() -> None:
    driver = Driver()
    post = letters._Post(SimpleNamespace(client=driver))
    async with anyio.create_task_group() as group:
        for body in (b"first", b"second", b"third"):
            post.put("node", body, may_be_lost=False)
            group.start_soon(post.flush)
            await settle()
        driver.written.set()
    assert driver.letters == [b"first", b"second", b"third"]


async def test_what_the_driver_refuses_is_sent_later_and_before_what_came_meanwhile() -> None:
    driver = Driver()
    driver.refuses = True
    driver.written.set()
    post = letters._Post(SimpleNamespace(client=driver))
    post.put("node", b"first", may_be_lost=False)
    await post.flush()
    post.put("node", b"second", may_be_lost=False)
    driver.refuses = False
    await post.flush()
    assert driver.letters == [b"first\nsecond"]


async def test_what_the_server_takes_no_more_is_not_sent_and_delays_nothing(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver()
    driver.written.set()
    post = letters._Post(SimpleNamespace(client=driver))
    for body in (b"x" * 12, b"y" * 6, b"z" * 12, b"w" * 21, b"last"):
        post.put("node", body, may_be_lost=False)
    await post.flush()
    assert driver.letters == [b"x" * 12 + b"\n" + b"y" * 6, b"z" * 12, b"last"]
    assert [each.getMessage() for each in caplog.records] == [
        "21 bytes were not sent to a node: the server takes 20 at most"
    ]


async def test_a_worker_reports_what_becomes_of_a_delivery() -> None:
    reported = list[str]()

    async def report(what: str, **_options: float) -> None:
        reported.append(what)

    message = SimpleNamespace(
        subject="calls.pool.x.cg.t.Yw",
        data=b"",
        headers=None,
        metadata=SimpleNamespace(num_delivered=1, sequence=SimpleNamespace(stream=1)),
        **{each: partial(report, each) for each in ("in_progress", "ack", "nak")},
    )
    delivery = letters._Delivery(SimpleNamespace(connection=None), SimpleNamespace(), message)
    for each in (delivery.renew, delivery.done, delivery.give_back):
        await each()
    assert reported == ["in_progress", "ack", "nak"]
