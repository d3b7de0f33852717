"""What a worker sends to the nodes and asks the broker for, over a driver that does what the tests want."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import orjson
import pytest

from toolbus.remote import nats as over_nats
from toolbus.testing import advance, settle, virtual_backends

module: Any = over_nats


anyio_backend = virtual_backends("asyncio")  # nats-py works on asyncio only


class Driver:
    """A driver whose buffer is full until it is `written`, or that `refuses` what is published.

    `at` has the moment of each attempt to publish.
    """

    max_payload = 20

    def __init__(self) -> None:
        self.written, self.refuses = anyio.Event(), False
        self.messages: list[bytes] = []
        self.at: list[float] = []

    async def publish(self, subject: str, body: bytes) -> None:
        assert subject == "node"
        assert len(body) <= self.max_payload
        self.at.append(anyio.current_time())
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


async def test_a_signal_is_sent_after_five_milliseconds_and_again_a_second_after_it_was_refused() -> None:
    driver = Driver()
    driver.refuses = True
    driver.written.set()
    outbox = module._Outbox(SimpleNamespace(client=driver))
    async with anyio.create_task_group() as group:
        group.start_soon(outbox.run)
        outbox.put("node", b"first", may_be_lost=True)
        await advance(0.5)
        driver.refuses = False
        await advance(1.5)
        outbox.put("node", b"second", may_be_lost=True)
        await advance(1)
        group.cancel_scope.cancel()
    assert driver.messages == [b"first", b"second"]
    assert driver.at == pytest.approx([0.005, 1.005, 2.005])


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


class Server:
    """A driver of a server that gives out calls on request, and is sent what a worker asks for."""

    is_connected = True

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.give: Any = None

    def new_inbox(self) -> str:
        return "inbox"

    async def subscribe(self, inbox: str, cb: Any) -> None:
        assert inbox == "inbox"
        self.give = cb

    async def publish(self, subject: str, body: bytes, inbox: str) -> None:
        assert (subject, inbox) == ("next", "inbox")
        self.asked.append(orjson.loads(body))


async def test_what_the_server_gives_out_is_awaited_until_it_has_given_all_or_its_time_is_over() -> None:
    server, found = Server(), list[list[str]]()
    given = module._Calls(SimpleNamespace(client=server), "next")
    await given.open()
    assert await given.fetch(2) == [], "the server has said nothing at all"
    assert anyio.current_time() == 2

    async def take() -> None:
        for calls in (await given.fetch(3), await given.rest()):
            found.append([each.reply for each in calls])

    async with anyio.create_task_group() as group:
        group.start_soon(take)
        for reply in ("first", "second", "third"):
            await settle()
            await server.give(SimpleNamespace(reply=reply))
    assert found == [["first"], ["second", "third"]]
    assert anyio.current_time() == 2, "nothing is awaited once all have come"
    assert server.asked == [{"batch": batch, "expires": 1_000_000_000} for batch in (2, 3)]
