"""The relay over a real NATS server: events and wake-ups between a runtime and a client of one store."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import anyio
import pytest
from remote_workers import Broker, Said

from toolbus import Runtime, tool
from toolbus.errors import ConfigurationError
from toolbus.events import ApprovalRequested, ModelResponded, RequestCompleted, TextDelta
from toolbus.remote import Client, _nats_relay
from toolbus.remote._transport import Unavailable
from toolbus.remote.nats import NatsRelay
from toolbus.stores.sqlite import SqliteStore
from toolbus.testing import ScriptedProvider, calls, text, virtual_backend

pytestmark = pytest.mark.guarantee("G32")


@pytest.fixture(params=["asyncio"])  # nats-py works on asyncio only
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@tool(needs_approval=True)
async def wipe() -> str:
    """Wipe."""
    return "wiped"


async def test_events_come_and_commands_are_taken_without_a_look_into_the_store(broker: Broker, tmp_path: Path) -> None:
    relay = NatsRelay(broker[0].url, prefix=broker[1])
    released = anyio.Event()

    class Speaker(ScriptedProvider):
        async def respond(self, request: Any, emit: Any) -> Any:
            reply = await super().respond(request, emit)
            if request.round:
                await released.wait()
            return reply

    model = Speaker([calls(("wipe", {})), text("One two three.", 3)])
    runtime = Runtime(
        model,
        tools=[wipe],
        on_approval="wait",
        store=SqliteStore(tmp_path / "requests.db"),
        relay=relay,
        inbox_poll_seconds=1_000,
    )
    client = Client(SqliteStore(tmp_path / "requests.db"), relay=relay, inbox_poll_seconds=1_000)
    with anyio.fail_after(60):
        async with runtime, client:
            session = runtime.start("Go.")
            await session.accepted()
            handle = client.request(session.request_id)
            heard: list[Any] = []
            said = ""
            async for event in handle.events():
                heard.append(event)
                if isinstance(event, ApprovalRequested):
                    assert await handle.approve(event) == "done"
                if isinstance(event, TextDelta):
                    # The whole text is heard while the model has not finished its reply.
                    said += event.text
                    if said == "One two three.":
                        released.set()
            assert (await handle.result()).text == said == "One two three."
            facts = [each async for each in session.events() if each.is_fact]
    assert [each for each in heard if each.is_fact] == facts
    assert sum(isinstance(each, ModelResponded) for each in heard) == 2


async def test_a_reader_continues_with_the_store_while_the_server_is_away_and_hears_the_end(
    broker: Broker, tmp_path: Path
) -> None:
    server, prefix = broker
    relay = NatsRelay(server.url, prefix=prefix)
    began, released = anyio.Event(), anyio.Event()

    @tool
    async def hold() -> str:
        """Hold."""
        began.set()
        await released.wait()
        return "held"

    store, same = (SqliteStore(tmp_path / "requests.db") for _ in range(2))
    model = ScriptedProvider([calls(("hold", {})), text("Done.")])
    with anyio.fail_after(60):
        async with (
            Runtime(model, tools=[hold], store=store, relay=relay) as runtime,
            Client(same, relay=relay) as client,
        ):
            session = runtime.start("Go.")
            await began.wait()
            reads = client.request(session.request_id).events()
            heard = [await anext(reads)]
            server.kill()
            released.set()
            await session.result()
            server.start()
            async for event in reads:
                heard.append(event)
            facts = [each async for each in session.events() if each.is_fact]
    assert [each for each in heard if each.is_fact] == facts
    assert isinstance(heard[-1], RequestCompleted)


@pytest.mark.parametrize("anyio_backend", [virtual_backend("asyncio")], ids=["asyncio"])
async def test_a_message_that_the_driver_cannot_take_is_lost_and_the_sender_pauses() -> None:
    full: Any = SimpleNamespace(tell=AsyncMock(side_effect=Unavailable("the buffer is full")))
    await _nats_relay._Link(Mock(), full).send("you", b"gone")
    assert anyio.current_time() == 0.05


@pytest.mark.usefixtures("impatient")
async def test_a_wrong_url_is_refused_when_the_runtime_starts(tmp_path: Path) -> None:
    relay = NatsRelay("nats://user:hunter2@127.0.0.1:1")
    with pytest.raises(ConfigurationError, match=r"the NATS server at nats://127\.0\.0\.1:1 cannot be used"):
        async with Client(SqliteStore(tmp_path / "requests.db"), relay=relay):
            raise AssertionError


async def test_an_outage_of_the_broker_is_logged_once_and_its_end(broker: Broker, said: Said, tmp_path: Path) -> None:
    relay = NatsRelay(broker[0].url, prefix=broker[1])
    runtime = Runtime(ScriptedProvider([]), store=SqliteStore(tmp_path / "requests.db"), relay=relay)
    with anyio.fail_after(60):
        async with runtime:
            broker[0].kill()
            await said.until("is lost: calls, answers and what it relays wait for it")
            broker[0].start()
            await said.until("is back")
    assert len(said.lines) == 2
