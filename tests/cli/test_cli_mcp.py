"""`--mcp FILE`: the tools of MCP servers, listed and called. Over a small program, and one that many people use."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import scenes
from cut_off import COMMAND, cut_off
from desk import Command

import support
from support import npm_servers
from toolbus.testing import calls, text


@pytest.fixture
def servers(folder: Path) -> str:
    program = str(Path(support.__path__[0]) / "small_mcp_program.py")
    written = {"small": {"command": sys.executable, "args": [program]}}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": written}))
    (folder / "away.json").write_text(json.dumps({"mcpServers": {"away": {"command": "no-such-program"}}}))
    (folder / "asking.py").write_text(
        "from toolbus.testing import ScriptedProvider, calls, text\n"
        "provider = ScriptedProvider([calls(('small__pid', {})), text('Done.')])\n"
    )
    return "mcp.json"


def test_the_tools_of_servers_are_listed_beside_the_others(toolbus: Command, servers: str):
    ended = toolbus("tools", "--mcp", servers, "--json")
    assert (ended.status, ended.err) == (0, "")
    names = [each["name"] for each in json.loads(ended.out)]
    assert names[:5] == ["list_files", "search_text", "read_lines", "request_code_context", "small__pid"]


def test_lines_of_a_server_that_are_not_of_the_protocol_are_not_shown(
    toolbus: Command, folder: Path, servers: str, caplog: pytest.LogCaptureFixture
):
    written = json.loads((folder / servers).read_text())
    written["mcpServers"]["small"]["args"].append("--chatty")
    (folder / servers).write_text(json.dumps(written))
    assert toolbus("tools", "--mcp", servers, "--json").err == ""
    scenes.play(calls(("small__pid", {})), text("Done."))
    ended = toolbus("ask", "Go.", "--mcp", servers, "-p", "scenes:scripted", "--approve", "all", "-q")
    assert (ended.status, ended.out, ended.err) == (0, "Done.\n", "")
    assert caplog.messages == []


def test_the_tools_of_a_server_from_npm_are_listed(toolbus: Command, folder: Path):
    files = npm_servers.program("filesystem", str(folder))
    (folder / "files.json").write_text(json.dumps({"mcpServers": {"files": files}}))
    ended = toolbus("tools", "--mcp", "files.json", "--json")
    assert (ended.status, ended.err) == (0, "")
    listed = {each["name"]: each for each in json.loads(ended.out)}
    assert listed["files__read_text_file"]["description"].startswith("Read the complete contents of a file")
    assert listed["files__read_text_file"]["parameters"]["required"] == ["path"]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_server_that_cannot_be_reached_is_reported_and_the_status_says_so(
    toolbus: Command, servers: str, options: tuple[str, ...]
):
    ended = toolbus("tools", "--mcp", servers, "--mcp", "away.json", *options)
    assert ended.status == 1
    assert ended.err == "toolbus: MCP server away is away: there is no no-such-program\n"
    assert "small__hang" in ended.out


def test_a_question_may_be_answered_by_a_servers_tool(toolbus: Command, servers: str):
    ended = toolbus(
        "ask", "Go.", "--mcp", servers, "--mcp", "away.json", "-p", "asking:provider", "--approve", "all", "--json"
    )
    assert ended.status == 0, ended.err
    result = json.loads(ended.out)
    assert [(each["name"], each["ok"]) for each in result["tool_calls"]] == [("small__pid", True)]
    assert "toolbus: MCP server away is away" in ended.err


def test_a_file_that_is_no_list_of_servers_is_wrong_usage(toolbus: Command, folder: Path):
    (folder / "mcp.json").write_text("{}")
    for command in (("tools",), ("ask", "Go.")):
        ended = toolbus(*command, "--mcp", "mcp.json")
        assert ended.status == 2
        assert 'mcp.json has no object "mcpServers"' in ended.err


def test_a_request_with_servers_is_not_resumed_without_them(toolbus: Command, kept: Path):
    cut_off(kept, ("send", {"to": "Ann"}), "Send", command={**COMMAND, "mcp": ["mcp.json"]})
    ended = toolbus("resume", "-p", "scenes:scripted", "-t", "scenes:resumable")
    assert ended.status == 1
    assert "it needs MCP servers, which resume does not connect" in ended.err
