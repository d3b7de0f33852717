"""The permissions that the page on deployment gives the processes of sessions: they are enough, and lack none."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from remote_workers import Held

from support.nats_server import NatsServer
from toolbus import Runtime, SqliteStore, ToolContext, tool
from toolbus.remote import Client
from toolbus.remote.nats import NatsExecutor, NatsRelay, ToolWorker
from toolbus.testing import ScriptedProvider, calls, text

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "deploy.md"
ACCOUNTS = """
authorization {{ users = [
    {{ user: worker, password: p }}
    {{ user: session, password: p, permissions: {{
        {}
    }} }}
] }}
"""


@pytest.fixture(params=["asyncio"])  # nats-py works on asyncio only
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server whose account `session` may do what the page says, and whose account `worker` may do everything."""
    found = re.search(r"^publish = \[.*?^subscribe = \[.*?\]$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    server = NatsServer(ACCOUNTS.format(found[0]))
    yield server
    server.close()


def url_of(server: NatsServer, user: str) -> str:
    return server.url.replace("//", f"//{user}:p@")


@pytest.mark.guarantee("G24")
async def test_what_the_page_gives_a_session_is_enough_for_calls_and_for_the_relay(
    server: NatsServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "toolbus")
    url = url_of(server, "session")
    held = Held()

    @tool(pool="gpu")
    async def repeat(words: str, context: ToolContext[Any]) -> str:
        """Repeat words that are too many for one message, and the model's answer."""
        return words * 2 + (await context.ask("More?")).text

    def reply(request: Any) -> Any:
        if not request.tools:
            return text("No.")
        repeats = request.messages[0].text == "Repeat."
        asked: tuple[str, dict[str, Any]] = ("repeat", {"words": "x" * 2**20}) if repeats else ("held", {})
        return text("Done.") if request.round else calls(asked)

    def store() -> SqliteStore:
        return SqliteStore(tmp_path / "requests.db")

    def runtime_here() -> Runtime[None]:
        return Runtime(
            ScriptedProvider(reply),
            tools=[held.tool, repeat],
            store=store(),
            executors=[NatsExecutor(url, pool="gpu")],
            relay=NatsRelay(url),
            drain_seconds=0,
            inbox_poll_seconds=4,  # A reader that comes while nobody has the request looks again.
        )

    worker = ToolWorker(url_of(server, "worker"), [held.tool, repeat], pool="gpu")
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(worker.run)
            # A process that leaves its request, and one that finds the answer which came meanwhile.
            async with runtime_here() as runtime:
                session = runtime.start("Go.")
                await held.began.wait()
            held.released.set()
            async with runtime_here() as runtime, Client(store(), relay=NatsRelay(url), inbox_poll_seconds=4) as client:
                await runtime.resume()
                assert (await client.request(session.request_id).result()).tool_calls[0].content == "held"
                # A call that is stopped.
                held.began, held.released = anyio.Event(), anyio.Event()
                session = runtime.start("Go again.")
                await held.began.wait()
                assert await client.request(session.request_id).cancel() == "done"
                assert (await session.result()).outcome == "cancelled"
                # A call and an answer that do not fit into one message.
                assert len((await runtime.run("Repeat.")).tool_calls[0].content) == 2**21 + 3
            group.cancel_scope.cancel()
    assert [each.getMessage() for each in caplog.records] == []


async def test_a_session_may_not_answer_calls(server: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    executor: Any = NatsExecutor(url_of(server, "session"), pool="gpu")
    async with executor._link() as link:
        await link._connection.tell("toolbus.done.gpu.r.c", b"forged")
        with anyio.fail_after(30):
            while not link._connection.violations:
                await link._connection.client.flush()
        assert "toolbus.done.gpu.r.c" in link._connection.violations[0]
