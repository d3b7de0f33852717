"""What MCP servers may be given as, in code and in a file."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from toolbus.errors import ConfigurationError, MissingExtra
from toolbus.toolsets.mcp import McpServer, McpTools, servers_from


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("", {"command": "x"}, "name is ''"),
        ("a\nb", {"command": "x"}, "printable"),
        ("a" * 129, {"command": "x"}, "1 to 128"),
        ("a", {}, "pass exactly one of command, url and connect"),
        ("a", {"command": ""}, "pass exactly one of command, url and connect"),
        ("a", {"command": "x", "url": "http://x"}, "pass exactly one of"),
        ("a", {"command": "x", "args": "--all *"}, "args is a string"),
        ("a", {"command": "x", "tools": "add"}, "tools is a string"),
        ("a", {"command": "x", "tools": {"add": {}}}, "options as tool_options"),
        ("a", {"url": "ftp://x"}, "is not an http or https address"),
        ("a", {"url": "http://[x"}, "is not an http or https address"),
        ("a", {"url": "http://x", "args": ["y"]}, "can be given only with a command"),
        ("a", {"command": "x", "headers": {"a": "b"}}, "headers and auth can be given only with a url"),
        ("a", {"command": "x", "args": [Path("y")]}, "args has a value that is not a text"),
        ("a", {"command": "x", "env": {"PORT": 80}}, "env has a value that is not a text"),
        ("a", {"url": "http://x", "headers": {"a": None}}, "headers has a value that is not a text"),
        ("a", {"command": "x", "timeout_seconds": 0}, "timeout_seconds is 0"),
        ("a", {"command": "x", "needs_approval": "never"}, "needs_approval is 'never'"),
        (
            "a",
            {"command": "x", "protocol": "2025-11-25"},
            "protocol is '2025-11-25'; it must be one of 'auto', 'legacy'",
        ),
        ("a", {"url": "http://x", "max_response_bytes": 0}, "max_response_bytes is 0"),
    ],
)
def test_servers_that_make_no_sense_are_refused(name: str, options: dict[str, Any], problem: str):
    with pytest.raises(ConfigurationError, match=problem):
        McpServer(name, **options)


@pytest.mark.parametrize("value", ["Bearer k1\n", " k1", "k1 ", "k1\0", "k1\u20ac"])
def test_a_header_that_cannot_be_sent_is_refused_without_its_value(value: str):
    with pytest.raises(ConfigurationError, match="the value of the header 'Authorization' has characters") as refused:
        McpServer("a", url="http://x", headers={"Authorization": value})
    assert "k1" not in str(refused.value)
    McpServer("a", url="http://x", headers={"Authorization": "Bearer k1", "Empty": "", "One": "1"})


def test_what_may_be_secret_is_not_shown():
    shown = repr(McpServer("a", command="x", args=["--key=k1"], env={"KEY": "k2"}))
    shown += repr(McpServer("b", url="https://u:k3@x/?key=k4", headers={"Authorization": "k5"}))
    assert not any(f"k{number}" in shown for number in range(1, 6))


def written(path: Path, servers: Any) -> Path:
    file = path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return file


def test_a_file_as_other_applications_have_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKEN", "t0")
    monkeypatch.delenv("PORT", raising=False)
    file = written(
        tmp_path,
        {
            "time": {
                "command": "mcp-server-time",
                "args": ["--zone", "${TOKEN}x"],
                "env": {"A": "${TOKEN}", "B": "${env:TOKEN}"},
                "cwd": "/",
            },
            "docs": {
                "type": "http",
                "url": "http://localhost:${PORT:-80}/mcp",
                "headers": {"Authorization": "Bearer ${TOKEN}"},
                "autoApprove": ["x"],
            },
            "old": {"command": "x", "disabled": True},
        },
    )
    assert servers_from(file) == [
        McpServer("time", command="mcp-server-time", args=("--zone", "t0x"), env={"A": "t0", "B": "t0"}, cwd="/"),
        McpServer("docs", url="http://localhost:80/mcp", headers={"Authorization": "Bearer t0"}),
    ]


@pytest.mark.parametrize(
    ("servers", "problem"),
    [
        ([], 'no object "mcpServers"'),
        ({"a": "x"}, "MCP server 'a' is not an object"),
        ({"a": {"type": "sse", "url": "http://x"}}, "old SSE transport"),
        ({"a": {"command": 3}}, "command has a value that is not a text"),
        ({"a": {"command": "x", "args": "y"}}, "args is not a list"),
        ({"a": {"command": "x", "env": ["y"]}}, "env is not an object"),
        ({"a": {"command": "x", "env": {"y": 3}}}, "env has a value that is not a text"),
        ({"a": {"command": "${NO_SUCH_VARIABLE}"}}, "the environment has no NO_SUCH_VARIABLE"),
        ({"a": {}}, "mcp.json: MCP server 'a': pass exactly one of command"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_place(servers: Any, problem: str, tmp_path: Path):
    with pytest.raises(ConfigurationError, match=problem) as caught:
        servers_from(written(tmp_path, servers))
    assert "mcp.json" in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        servers_from(tmp_path / "none.json")
    (tmp_path / "mcp.json").write_text("{")
    with pytest.raises(ConfigurationError, match="is not valid JSON"):
        servers_from(tmp_path / "mcp.json")


@pytest.mark.parametrize("missing", ["mcp", "jsonschema_rs"])
def test_what_is_not_installed_is_named(missing: str, monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def importing(name: str, *args: Any, **options: Any) -> Any:
        if name == missing:
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(MissingExtra, match=r"toolbus\[mcp\]"):
        McpTools([])
