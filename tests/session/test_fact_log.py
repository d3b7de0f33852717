"""The log lines of requests: one that closes each, with the whole account, at a level that says whether to look."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from toolbus import Limits, Price, Runtime, tool
from toolbus.errors import ProviderError, ProviderUnavailable
from toolbus.events import ApprovalRequested
from toolbus.messages import Usage
from toolbus.testing import ScriptedProvider, calls, error, settle, text, virtual_backends

anyio_backend = virtual_backends()


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="toolbus")


@tool(timeout_seconds=100)
async def wait(seconds: float) -> str:
    """Wait."""
    await anyio.sleep(seconds)
    return "waited"


@tool(needs_approval=True)
async def wipe() -> str:
    """Wipe it."""
    return "wiped"


async def refuse(_question: ApprovalRequested) -> bool:
    return False


def lines(caplog: pytest.LogCaptureFixture, request_id: str) -> list[tuple[str, str]]:
    """The lines of a request, with its id as R."""
    return [
        (each.levelname, each.getMessage().replace(request_id, "R"))
        for each in caplog.records
        if getattr(each, "request_id", "") == request_id
    ]


async def test_the_closing_line_has_the_account(caplog: pytest.LogCaptureFixture) -> None:
    script = [
        calls(("wait", {"seconds": 3.2}), usage=Usage(input_tokens=400, output_tokens=30)),
        text("Done.", usage=Usage(input_tokens=412, output_tokens=10)),
    ]
    prices = {"scripted:script": Price(input_per_million=4.0, output_per_million=18.8)}
    async with Runtime(ScriptedProvider(script), tools=[wait]) as runtime:
        result = await runtime.run("go", prices=prices)
    assert lines(caplog, result.request_id)[-1] == (
        "INFO",
        "request R completed in 3.2 s, 2 rounds, 1 call, 812/40 tokens, cost 0.004",
    )


async def test_a_model_that_is_asked_again_and_a_request_that_fails_are_warnings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    busy = error(ProviderUnavailable("busy", retryable=True))
    async with Runtime(ScriptedProvider([busy, error(ProviderError("gone"))])) as runtime:
        result = await runtime.start("go").result()
    told = lines(caplog, result.request_id)
    assert [level for level, _ in told] == ["INFO", "WARNING", "WARNING"]
    assert told[1][1].startswith("request R: the model is asked again in ")
    assert told[1][1].endswith(" s, after provider_unavailable: busy")
    assert told[2][1].startswith("request R failed in ")
    assert told[2][1].endswith(" tokens: provider_error: gone")


async def test_what_people_have_chosen_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    script = ScriptedProvider([calls(("wipe", {})), calls(("wait", {"seconds": 50})), text("no")])
    async with Runtime(script, tools=[wait, wipe], on_approval=refuse) as runtime:
        session = runtime.start("go")
        await settle()
        session.cancel("enough")
        result = await session.result()
    told = lines(caplog, result.request_id)
    assert {level for level, _ in told} == {"INFO"}
    assert [each for _, each in told if "failed" in each] == [
        "call R_0_0: tool wipe failed in 0.000 s: denied: A person denied the call.",
        "call R_1_0: tool wait failed in 0.000 s: cancelled: The request was cancelled.",
    ]
    assert told[-1][1] == "request R was cancelled in 0.0 s, 2 rounds, 2 calls, 0/0 tokens: enough"


async def test_a_limit_is_named_behind_the_account(caplog: pytest.LogCaptureFixture) -> None:
    async with Runtime(ScriptedProvider([calls(("wait", {"seconds": 1})), text("so far")]), tools=[wait]) as runtime:
        result = await runtime.run("go", limits=Limits(max_rounds=1))
    level, line = lines(caplog, result.request_id)[-1]
    assert (level, line.partition(", ")[0]) == ("INFO", "request R stopped in 1.0 s")
    assert line.endswith(f"tokens: {result.reason}")


async def test_with_info_off_only_what_deserves_a_look_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="toolbus")
    script = ScriptedProvider([calls(("wipe", {}), ("wait", {"seconds": "x"})), text("no")])
    options: dict[str, Any] = {"on_approval": refuse}
    async with Runtime(script, tools=[wait, wipe], **options) as runtime:
        result = await runtime.run("go")
    assert [each[:47] for _, each in lines(caplog, result.request_id)] == [
        "call R_0_1: tool wait failed in 0.000 s: invali"
    ]
