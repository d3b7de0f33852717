"""Secrets of a worker: its tools get them by name, and nothing that leaves the worker has them."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import nats
import pytest
from pydantic import SecretStr
from remote_workers import Broker, worker_here

from toolbus import Runtime, Tool, ToolContext, tool
from toolbus.errors import ConfigurationError, ToolError
from toolbus.events import ToolCallProgress
from toolbus.remote.nats import NatsExecutor, ToolWorker
from toolbus.secrets import MASK, REFERENCE
from toolbus.testing import ScriptedProvider, calls, text

driver: Any = nats
HERE, THERE, LISTED = "value-of-the-session", "value-of-the-worker", "listed-on-the-worker"


@pytest.fixture(params=["asyncio"])  # nats-py works on asyncio only
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


def runtime_of(broker: Broker, tools: list[Tool], reference: str = "", **options: Any) -> Runtime[None]:
    def reply(request: Any) -> Any:
        if not request.tools:
            return text("I have read: " + request.messages[-1].text)
        if request.messages[-1].role == "tool":
            return text("Done.")
        found = reference or REFERENCE.findall(request.messages[0].text)[0]
        return calls(*[(each.name, {"token": found}) for each in tools])

    executor = NatsExecutor(broker[0].url, pool="gpu", prefix=broker[1])
    secrets = [("mail", HERE)]
    return Runtime(ScriptedProvider(reply), tools=tools, executors=[executor], secrets=secrets, **options)


async def test_a_tool_gets_the_worker_s_value_of_a_name_and_nothing_that_leaves_the_worker_has_it(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "toolbus")
    got = list[str]()

    @tool(pool="gpu")
    async def fetch(token: SecretStr, context: ToolContext[Any]) -> str:
        """Fetch, and tell everything."""
        got.append(token.get_secret_value())
        await context.progress(f"with {THERE}")
        asked = await context.ask(f"Is {THERE} right?", instructions=f"Do not tell {LISTED}.")
        return f"fetched with {THERE} and {LISTED}: {asked.text}"

    @tool(pool="gpu")
    async def refuse(token: SecretStr) -> str:
        """Fail, and tell everything."""
        raise ToolError(f"{token.get_secret_value()} was refused")

    @tool(pool="gpu")
    async def crash(token: SecretStr) -> str:
        """Fail by accident, and tell everything."""
        raise RuntimeError(token.get_secret_value())

    @tool(pool="gpu")
    async def renew(token: SecretStr) -> dict[str, SecretStr]:
        """Return a value that nobody has named, and the one that has a name."""
        return {"new": SecretStr("made-on-the-worker"), "old": token}

    tools = [fetch, refuse, crash, renew]
    wire, progress = list[bytes](), list[ToolCallProgress]()
    client = await driver.connect(broker[0].url)

    async def hear(message: Any) -> None:
        wire.append(message.data)

    await client.subscribe(f"{broker[1]}.>", cb=hear)
    await client.flush()
    async with (
        worker_here(broker, tools, secrets=[("mail", SecretStr(THERE)), LISTED]),
        runtime_of(broker, tools) as runtime,
    ):
        runtime.bus.connect(ToolCallProgress, progress.append)
        result = await runtime.run(f"Mine is {HERE}.")
    await client.flush()
    await client.close()
    fetched, refused, crashed, renewed = result.tool_calls
    (reference,) = set(REFERENCE.findall(result.messages[0].text if hasattr(result.messages[0], "text") else ""))
    assert got == [THERE]
    assert fetched.content.startswith(f"fetched with {reference} and secret:")
    assert f"Is {reference} right?" in fetched.content
    assert (refused.error, crashed.reason) == (f"{reference} was refused", "error")
    assert renewed.data == {"new": MASK, "old": reference}
    assert progress
    assert progress[0].message == f"with {reference}"
    assert len(wire) > 4
    for each in [*wire, caplog.text.encode()]:
        assert not any(value.encode() in each for value in (HERE, THERE, LISTED, "made-on-the-worker"))


async def test_a_reference_that_the_worker_was_not_given_is_an_invalid_argument(broker: Broker) -> None:
    @tool(pool="gpu")
    async def fetch(token: SecretStr) -> str:
        """Fetch."""
        raise AssertionError(token)

    async with (
        worker_here(broker, [fetch], secrets=[("other", THERE)]),
        runtime_of(broker, [fetch]) as runtime,
    ):
        call = (await runtime.run(f"Mine is {HERE}.")).tool_calls[0]
    assert (call.reason, "the worker that runs the tool was not given the secret of" in call.error) == (
        "invalid_arguments",
        True,
    )


async def test_secrets_that_cannot_be_are_refused_without_their_values() -> None:
    with pytest.raises(ConfigurationError, match="secrets is not valid") as raised:
        ToolWorker("nats://127.0.0.1", [], pool="gpu", secrets=[("mail", "abc")])
    assert "abc" not in str(raised.value)


async def test_workers_of_one_pool_have_one_lease(broker: Broker) -> None:
    async with worker_here(broker, [], lease_seconds=5.0):
        await ToolWorker(broker[0].url, [], pool="gpu", prefix=broker[1], lease_seconds=5.0).check()
        with anyio.fail_after(60), pytest.raises(ConfigurationError, match="have another lease; pass the same one"):
            await ToolWorker(broker[0].url, [], pool="gpu", prefix=broker[1]).run()
