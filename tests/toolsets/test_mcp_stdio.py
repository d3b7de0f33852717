"""MCP servers that are programs: real processes, with real signals."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

import support
from support.mcp_server import Caller, until
from toolbus.events import ToolCallFailed
from toolbus.toolsets.mcp import McpServer, McpTools

PROGRAM = str(Path(support.__path__[0]) / "small_mcp_program.py")


def small(*args: str, **options: Any) -> McpServer:
    return McpServer("small", command=sys.executable, args=[PROGRAM, *args], **options)


async def said(call: Caller, tool: str) -> Any:
    return json.loads((await call.completed(tool)).content)


async def test_a_program_gets_the_variables_that_are_allowed_and_those_that_are_given(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    server = small(env={"TOKEN": "t", "HOME": "/elsewhere", "TZ": "UTC"})
    async with McpTools([server]) as mcp:
        got = await said(Caller(mcp.registry), "small__environment")
    given = ("TOKEN", "HOME", "LC_ALL", "TZ")
    assert [got.pop(each) for each in given] == ["t", "/elsewhere", "C.UTF-8", "UTC"]
    assert got["PATH"] == os.environ["PATH"]
    allowed = {"PATH", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "LANG", "LC_CTYPE", "LC_MESSAGES"}
    assert got.keys() <= allowed


async def test_no_shell_reads_the_arguments_and_the_program_runs_where_it_is_to(tmp_path: Path):
    async with McpTools([small("$HOME", "; echo *", cwd=tmp_path)]) as mcp:
        cwd, *arguments = await said(Caller(mcp.registry), "small__arguments")
    assert (Path(cwd).name, arguments) == (tmp_path.name, ["$HOME", "; echo *"])


async def test_a_program_that_ends_at_a_message_of_the_newer_protocol_is_started_as_an_older_one():
    async with McpTools([small("--strict")]) as mcp:
        assert (mcp.status()[0].connected, mcp.status()[0].protocol) == (True, "2025-11-25")


@pytest.mark.guarantee("G30")
async def test_a_program_killed_in_the_middle_of_a_call_fails_it_and_is_started_again():
    async with McpTools([small()]) as mcp:
        call = Caller(mcp.registry)
        first = await said(call, "small__pid")
        ended: list[ToolCallFailed] = []
        async with anyio.create_task_group() as group:

            async def hang() -> None:
                ended.append(await Caller(mcp.registry).failed("small__hang"))

            group.start_soon(hang)
            await anyio.wait_all_tasks_blocked()
            os.kill(first, signal.SIGKILL)
        assert (ended[0].reason, ended[0].outcome_unknown, ended[0].retryable) == ("error", True, False)
        await until(lambda: mcp.status()[0].connected)
        assert await said(call, "small__pid") != first
        assert (await call.failed("small__die")).outcome_unknown


@pytest.mark.guarantee("G30")
@pytest.mark.parametrize(
    ("tool", "reported"), [("endless", "a line has more than 200000 bytes"), ("many", "more than 100,000 values")]
)
async def test_a_program_that_writes_too_much_in_a_line_is_given_up(
    tool: str, reported: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING, "toolbus.mcp")
    async with McpTools([small(max_response_bytes=800_000 if tool == "many" else 200_000)]) as mcp:
        call = Caller(mcp.registry)
        first = await said(call, "small__pid")
        failed = await call.failed(f"small__{tool}")
        assert (failed.reason, failed.outcome_unknown) == ("error", True)
        await until(lambda: mcp.status()[0].connected)
        assert await said(call, "small__pid") != first
    assert reported in caplog.text


async def test_a_program_that_is_stopped_is_given_up_and_another_one_is_started(monkeypatch: pytest.MonkeyPatch):
    async with McpTools([small()], ping_seconds=0.2) as mcp:
        call = Caller(mcp.registry)
        first = await said(call, "small__pid")
        os.kill(first, signal.SIGSTOP)
        monkeypatch.setattr("toolbus.toolsets.mcp._connection._LIST_SECONDS", 0.6)
        try:
            late = await call.failed("small__pid", seconds=0.2)
            assert late.reason == "timeout"
            await until(lambda: not mcp.status()[0].connected)
            away = await call.failed("small__pid")
            assert (away.retryable, away.outcome_unknown) == (True, False)
            assert "it did not answer within 0.6 s" in away.error
            monkeypatch.undo()  # The next program has the usual time.
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)  # else ending it takes 4 s
        await until(lambda: mcp.status()[0].connected)
        assert await said(call, "small__pid") != first


async def test_what_a_program_prints_between_its_answers_is_passed_over_in_any_encoding(
    caplog: pytest.LogCaptureFixture,
):
    async with McpTools([small("--chatty")], connect_seconds=60) as mcp:
        assert mcp.status()[0].connected, mcp.status()[0].reason
        assert (await said(Caller(mcp.registry), "small__arguments"))[1:] == ["--chatty"]
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == []


@pytest.mark.guarantee("G30")
async def test_an_answer_that_cannot_be_read_ends_its_call_at_once():
    async with McpTools([small()]) as mcp:
        call = Caller(mcp.registry)
        with anyio.fail_after(60):
            for tool in ("nothing", "deep"):
                failed = await call.failed(f"small__{tool}", seconds=60)
                assert (failed.reason, failed.outcome_unknown, failed.retryable) == ("error", True, False)
                assert failed.error.startswith("The MCP server 'small' gave no answer that can be used: ")
        assert (await call.completed("small__half")).content == "\ufffd"
        assert mcp.status()[0].connected


async def test_the_last_words_of_a_program_are_reported(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "toolbus.mcp")
    # It reads first: the SDK drops what a program has printed if it cannot write to that program any more.
    script = "read request; echo 'Usage: serve [--stdio]'; echo '{'"
    usage = McpServer("usage", command="sh", args=["-c", script])
    servers = [small("--fail"), McpServer("none", command="no-such-program"), usage]
    servers.append(McpServer("line", command="npx -y no-such-server"))
    async with McpTools(servers) as mcp:
        failed, none, other, line = mcp.status()
        assert other.reason.endswith("it said: Usage: serve [--stdio] | {")
        assert failed.reason.endswith("it said: the key is wrong | get another one")
        assert none.reason == "there is no no-such-program"
        assert line.reason == "there is no npx -y no-such-server; if that has arguments, pass them as args=[...]"
    assert "MCP server small says: get another one" in caplog.text
