"""What operators read of a handler's exception, and neither the model nor a page of users does."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from toolbus import Runtime, SqliteStore, sub_request_tool, tool
from toolbus.core.limits import Limits
from toolbus.core.prices import Price
from toolbus.errors import ToolError
from toolbus.events import ToolCallFailed
from toolbus.failures import ReportedFailure, classify, detail_of
from toolbus.messages import Usage
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, calls, text
from toolbus.web import EventsResponse


class NoStock(Exception):
    """An exception of the application."""


@tool
async def order(article: str) -> str:
    """Order an article."""
    raise NoStock(f"no {article} on\nshelf 7")


def asks(name: str, **arguments: Any) -> ScriptedProvider:
    return ScriptedProvider([calls((name, arguments)), text("It failed.")])


async def test_the_store_and_the_result_have_the_exception_and_the_model_does_not(tmp_path: Path) -> None:
    model = asks("order", article="tea")
    async with Runtime(model, tools=[order], store=SqliteStore(tmp_path / "a.db")) as runtime:
        result = await runtime.run("Order tea")
        again = await runtime.request(result.request_id).result()
    for each in (result, again):
        detail = each.tool_calls[0].detail
        assert detail.startswith("NoStock: no tea on shelf 7 at ")
        assert f"{Path(__file__).name}:" in detail
        assert each.tool_calls[0].error == "The tool failed with an internal error."
        assert "NoStock" in each.timeline()
        assert "NoStock" in repr(each.tool_calls[0])
        assert "NoStock" not in repr(each.messages)
    assert "NoStock" not in repr(model.requests)


async def test_a_page_of_users_does_not_get_it() -> None:
    sent: list[bytes] = []

    async def receive() -> Any:
        await anyio.sleep_forever()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async with Runtime(asks("order", article="tea"), tools=[order]) as runtime:
        session = runtime.start("Order tea")
        await session.result()
        await EventsResponse(session)({"type": "http", "headers": []}, receive, send)
    body = b"".join(sent)
    assert b"event: tool_call_failed" in body
    assert b"NoStock" not in body
    assert Path(__file__).name.encode() not in body


async def test_a_text_that_the_model_reads_is_not_repeated() -> None:
    @tool
    async def refuse() -> str:
        raise ToolError("There is no tea.")

    async with Runtime(asks("refuse"), tools=[refuse]) as runtime:
        call = (await runtime.run("Order tea")).tool_calls[0]
    assert (call.error, call.detail) == ("There is no tea.", "")
    assert repr(call).endswith("reason='error', error='There is no tea.')")


async def test_the_cause_of_a_failure_in_the_authors_words_is_for_operators() -> None:
    @tool
    async def refuse() -> str:
        raise ToolError("There is no tea.") from NoStock("shelf 7")

    model = asks("refuse")
    async with Runtime(model, tools=[refuse]) as runtime:
        call = (await runtime.run("Order tea")).tool_calls[0]
    assert (call.error, call.detail) == ("There is no tea.", "NoStock: shelf 7")
    assert "shelf" not in repr(model.requests)


async def test_a_secret_in_the_exception_is_masked() -> None:
    @tool
    async def log_in(password: SecretStr) -> str:
        raise NoStock(f"wrong password {password.get_secret_value()}")

    events: list[ToolCallFailed] = []
    async with Runtime(asks("log_in", password="hunter2-hunter2"), tools=[log_in]) as runtime:
        runtime.bus.connect(ToolCallFailed, events.append)
        await runtime.run("Log in")
    assert events[0].detail.startswith("NoStock: wrong password ")
    assert "hunter2" not in events[0].detail


KEY = "-----BEGIN KEY-----\nMIIBVgIBADANBgkqhkiG\n  9w0BAQEFAASCAUAwggE8\n-----END KEY-----"


@pytest.mark.parametrize("before", ["", "x" * 780])
async def test_a_secret_is_hidden_before_a_detail_is_put_on_one_line_and_cut(
    before: str, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(retries=1)
    async def sign() -> str:
        """Sign."""
        raise NoStock(f"{before}{KEY}")

    events: list[ToolCallFailed] = []
    async with Runtime(asks("sign"), tools=[sign], secrets=[KEY]) as runtime:
        runtime.bus.connect(ToolCallFailed, events.append)
        await runtime.run("Sign")
    assert events[0].detail.startswith(f"NoStock: {before}secret:")
    assert not any(line.strip() in caplog.text + events[0].detail for line in KEY.splitlines())
    assert "BEGIN" not in caplog.text + events[0].detail


async def test_a_secret_of_several_lines_is_hidden_in_the_log_of_a_group(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def sign() -> str:
        """Sign twice."""
        raise ExceptionGroup("two", [NoStock(f"bad {KEY}"), NoStock(KEY)])

    async with Runtime(asks("sign"), tools=[sign], secrets=[KEY]) as runtime:
        await runtime.run("Sign")
    assert "secret:" in caplog.text
    assert not any(line.strip() in caplog.text for line in KEY.splitlines())


def test_a_detail_is_one_bounded_line_of_the_first_exception() -> None:
    assert len(detail_of(NoStock("x" * 10_000))) <= 1_000
    assert detail_of(ExceptionGroup("two", [NoStock("tea"), KeyError("b")])) == "NoStock: tea"
    elsewhere = ReportedFailure(classify(NoStock()), "a traceback", "NoStock at /app/tools.py:7")
    assert detail_of(elsewhere) == "NoStock at /app/tools.py:7"


async def test_the_log_line_of_a_sub_request_names_the_call_that_made_it(caplog: pytest.LogCaptureFixture) -> None:
    inner = sub_request_tool("research", "Find out.", provider=ScriptedProvider([text("Rome.")]))
    with caplog.at_level(logging.INFO, "toolbus.session"):
        async with Runtime(asks("research", task="Where?"), tools=[inner]) as runtime:
            result = await runtime.run("Where?")
    started = [each.getMessage() for each in caplog.records if " started" in each.getMessage()]
    assert started[0] == f"request {result.request_id} started"
    assert started[1].endswith(f" started for call {result.tool_calls[0].call_id}")


async def test_a_limit_of_costs_that_no_usage_is_reported_for_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    prices, limits = {"*": Price(input_per_million=1.0, output_per_million=1.0)}, Limits(max_cost=1.0)
    silent = ScriptedProvider(lambda request: text("Hi."))
    async with Runtime(silent, prices=prices, limits=limits, store=MemoryStore()) as runtime:
        for _ in range(3):
            await runtime.run("Hello?")
    usages = Usage(input_tokens=1, output_tokens=1), Usage(input_tokens=1), Usage(output_tokens=1)
    told = ScriptedProvider([text("Hi.", usage=usage) for usage in usages])
    async with Runtime(told, prices=prices, limits=limits) as runtime:
        for _ in usages:
            await runtime.run("Hello?")
    silent = ScriptedProvider([text("Hi.")])
    async with Runtime(silent) as runtime:
        await runtime.run("Hello?")
    lines = [each.getMessage() for each in caplog.records if "max_cost" in each.getMessage()]
    assert lines == ["max_cost is set, and scripted:script reports no usage, so its replies count as free"]
