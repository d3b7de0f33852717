"""The examples of one file each: what they show is so."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# The type checker does not look into examples/ for imports yet.

from __future__ import annotations

import runpy
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

import bus_handler
import long_conversation
import status_line
from toolbus import EventBus, Runtime
from toolbus.errors import ConfigurationError
from toolbus.events import DeadLetter, Event, RequestCancelled, SubscriberLagged, ToolCallFailed, ToolCallRequested
from toolbus.testing import Harness, ScriptedProvider, calls, text

Begin = Callable[[EventBus], Callable[[], None]]
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("begin", [bus_handler.answer_on_the_loop, bus_handler.answer_from_a_thread])
async def test_a_handler_on_the_bus_answers_its_own_calls_and_no_others(begin: Begin) -> None:
    script = [calls(("get_price", {"drink": "tea"}), ("get_weather", {})), text("Done.")]
    async with Harness(script, tools=[bus_handler.get_price, "get_weather"]) as harness:
        stop = begin(harness.bus)
        session = harness.start("What does tea cost?")
        harness.complete(await harness.expect(ToolCallRequested, name="get_weather"), "sunny")
        with anyio.fail_after(30):
            result = await session.result()
        stop()
        harness.assert_no_pending()
    assert [(call.name, call.content) for call in result.tool_calls] == [("get_price", "3"), ("get_weather", "sunny")]


@pytest.mark.parametrize("begin", [bus_handler.answer_on_the_loop, bus_handler.answer_from_a_thread])
async def test_a_handler_that_was_stopped_answers_no_more(begin: Begin) -> None:
    async with Harness([calls(("get_price", {"drink": "tea"}))], tools=[bus_handler.get_price]) as harness:
        begin(harness.bus)()
        harness.start("What does tea cost?")
        requested = await harness.expect(ToolCallRequested)
        for thread in threading.enumerate():
            if thread.name == "prices":
                await anyio.to_thread.run_sync(thread.join, 5)
        assert harness.pending == [requested]
        assert not any(thread.name == "prices" for thread in threading.enumerate())


async def test_arguments_that_break_the_external_tools_schema_never_reach_the_handler() -> None:
    script = [calls(("get_price", {"drink": "beer"})), text("No beer.")]
    async with Runtime(ScriptedProvider(script), tools=[bus_handler.get_price]) as runtime:
        seen: list[Event] = []
        runtime.bus.connect((ToolCallRequested, ToolCallFailed, DeadLetter), seen.append)
        stop = bus_handler.answer_on_the_loop(runtime.bus)
        await runtime.run("What does beer cost?")
        stop()
    assert [type(each) for each in seen] == [ToolCallFailed]


async def test_the_status_line_tells_each_step_once() -> None:
    shown: list[str] = []
    script = [calls(("count_sheep", {"upto": 2})), text("There are two.")]
    async with Runtime(ScriptedProvider(script), tools=[status_line.count_sheep]) as runtime:
        session = runtime.start("How many?")
        await status_line.show_status(session.events(), shown.append)
    assert shown == [
        "thinking",
        "count_sheep",
        "count_sheep: sheep 1",
        "count_sheep: sheep 2",
        "thinking",
        "answering",
        "completed",
    ]


def test_the_status_line_tells_gaps_and_other_endings() -> None:
    status = status_line.Status()
    status.on_event(SubscriberLagged(first_position=1, last_position=3, count=3))
    assert status.sentence == "too much happens: 3 events missed"
    status.on_event(RequestCancelled(request_id="r"))
    assert status.sentence == "cancelled"


def test_the_status_line_writes_over_itself_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status_line.on_one_line("thinking")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    status_line.on_one_line("answering")
    assert capsys.readouterr().err == "thinking\n\r\x1b[Kanswering"


def test_the_quickstart_takes_the_name_of_a_real_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["quickstart.py", "openai"])
    with pytest.raises(ConfigurationError, match="names no model"):
        runpy.run_path(str(EXAMPLES / "quickstart.py"), run_name="__main__")


async def test_the_long_conversation_stays_in_its_window_and_keeps_its_login(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await long_conversation.main(ScriptedProvider(long_conversation.play))
    table, last = capsys.readouterr().out.split("\n\n")
    figures = [[int(each.replace(",", "")) for each in line.split()[-5:-1]] for line in table.splitlines()[1:]]
    assert len(figures) == len(long_conversation.PROMPTS)
    messages, sent, tokens, sent_tokens = figures[-1]
    assert sent < messages / 2
    assert sent_tokens < tokens / 2
    assert max(each[3] for each in figures) <= long_conversation.WINDOW_TOKENS
    assert f"log_in: Welcome, Ada. Your session is {long_conversation.SESSION}." in last
    assert "get_state: [older result left out, " in last


def test_the_handlers_need_no_more_of_the_bus_than_connect_and_publish() -> None:
    source = (EXAMPLES / "bus_handler.py").read_text()
    assert {name for name in dir(EventBus) if f"bus.{name}(" in source} == {"connect", "publish", "publish_threadsafe"}
