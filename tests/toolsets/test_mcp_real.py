"""MCP servers that many people use: from PyPI and, in TypeScript, from npm. Real processes, over stdio and HTTP.

`support.npm_servers` installs those from npm, once for all processes; where that is not possible these tests fail.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Generator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from support import npm_servers
from support.guarded_process import GuardedProcess
from support.mcp_server import Caller, until
from toolbus.events import ToolCallFailed, ToolCallProgress
from toolbus.messages import ImagePart
from toolbus.toolsets.mcp import McpServer, McpTools

BIN = Path(sys.executable).parent

# The servers take seconds to start, and are the same to both loops.
one_loop = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    """Outside of the tests, whose calls have deadlines."""
    npm_servers.installed()


def everything(**options: Any) -> McpServer:
    return McpServer("every", **npm_servers.program("everything"), **options)


def pid_of(part: str) -> int:
    """Of the child process that has `part` in its command line."""
    (found,) = [each.pid for each in psutil.Process().children(recursive=True) if part in " ".join(each.cmdline())]
    return found


async def test_what_can_be_called_is_offered_and_gives_what_models_and_people_can_use(caplog: pytest.LogCaptureFixture):
    async with McpTools([everything()]) as mcp:
        (status,) = mcp.status()
        assert status.protocol == "2025-11-25"
        assert not any("sampling" in each or "elicitation" in each for each in status.tools)  # it asks for those
        why = "it can be called only as a task, which toolbus does not support"
        reported = [
            each.getMessage()
            for each in caplog.records
            if each.name == "toolbus.mcp" and each.levelno == logging.WARNING
        ]
        assert reported == [f"tool 'simulate-research-query' of MCP server 'every' is left out: {why}"]

        call = Caller(mcp.registry)
        assert (await call.completed("every__echo", message="größer")).content == "Echo: größer"
        wrong = await call.failed("every__get-sum", a=2, b="three")
        assert (wrong.reason, '$.b: the value is not of type "number"' in wrong.error) == ("invalid_arguments", True)

        weather = await call.completed("every__get-structured-content", location="Chicago")
        assert weather.data == json.loads(weather.content)
        assert weather.data.keys() == {"temperature", "conditions", "humidity"}

        image = await call.completed("every__get-tiny-image")
        (part,) = image.parts
        assert isinstance(part, ImagePart)
        assert (part.url.startswith("data:image/png;base64,iVBOR"), image.artifacts) == (True, ())

        file = await call.completed("every__get-resource-reference", resourceType="Text", resourceId=1)
        (artifact,) = file.artifacts
        assert (artifact.name, artifact.media_type) == ("demo://resource/dynamic/text/1", "text/plain")
        assert artifact.content.startswith("Resource 1: This is a plaintext resource")

        hi = {"name": "hi.gz", "data": "data:text/plain,hi", "outputType": "resource"}
        blob = await call.completed("every__gzip-file-as-resource", **hi)
        assert [(each.name, each.media_type, each.encoding) for each in blob.artifacts] == [
            ("demo://resource/session/hi.gz", "application/gzip", "base64")
        ]
        assert "hi.gz, application/gzip, kept for the user" in blob.content

        links = await call.completed("every__get-resource-links", count=2)
        assert [each.media_type for each in links.artifacts] == ["text/uri-list"] * 2


@one_loop
async def test_progress_is_reported_and_a_call_past_its_deadline_is_given_up():
    async with McpTools([everything()]) as mcp:
        call = Caller(mcp.registry)
        await call.completed("every__trigger-long-running-operation", duration=0.2, steps=4)
        reported = [(each.done, each.total) for each in call.events if isinstance(each, ToolCallProgress)]
        assert reported == [(1, 4), (2, 4), (3, 4), (4, 4)]
        late = await call.failed("every__trigger-long-running-operation", duration=20, steps=1, seconds=0.1)
        assert late.reason == "timeout"
        assert (await call.completed("every__get-sum", a=2, b=3)).content == "The sum of 2 and 3 is 5."


@one_loop
async def test_files_are_read_within_the_allowed_folders_alone(tmp_path: Path):
    (tmp_path / "a.json").write_text('{"a": [1, 2]}')
    files = McpServer("files", **npm_servers.program("filesystem", str(tmp_path)))
    async with McpTools([files]) as mcp:
        call = Caller(mcp.registry)
        read = await call.completed("files__read_text_file", path=str(tmp_path / "a.json"))
        assert (read.data, read.content) == ({"content": '{"a": [1, 2]}'}, r'{"content":"{\"a\": [1, 2]}"}')
        outside = await call.failed("files__read_text_file", path="/etc/passwd")
        assert (outside.reason, outside.outcome_unknown) == ("error", False)
        assert outside.error.startswith("Access denied - path outside allowed directories: /etc/passwd")
        up = await call.failed("files__write_file", path=str(tmp_path / ".." / "b"), content="b")
        assert "outside allowed directories" in up.error
        specs = mcp.registry.specs
        assert (specs["files__read_text_file"].needs_approval, specs["files__read_text_file"].kind) == (False, "query")
        assert (specs["files__write_file"].needs_approval, specs["files__create_directory"].needs_approval) == (
            True,
            False,
        )


@pytest.mark.guarantee("G30")
async def test_a_call_that_was_not_answered_is_not_sent_again_and_the_server_is_started_anew(tmp_path: Path):
    memory = McpServer(
        "memory", **npm_servers.program("memory"), env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    )
    async with McpTools([memory]) as mcp:
        call = Caller(mcp.registry)

        def person(name: str) -> dict[str, Any]:
            return {"entities": [{"name": name, "entityType": "person", "observations": []}]}

        async def known() -> list[str]:
            return [each["name"] for each in (await call.completed("memory__read_graph")).data["entities"]]

        await call.completed("memory__create_entities", **person("Ann"))
        assert await known() == ["Ann"]

        pid = pid_of("server-memory")
        os.kill(pid, signal.SIGSTOP)
        ended: list[ToolCallFailed] = []
        async with anyio.create_task_group() as group:

            async def create() -> None:
                ended.append(await Caller(mcp.registry).failed("memory__create_entities", **person("Bob")))

            group.start_soon(create)
            await anyio.wait_all_tasks_blocked()
            os.kill(pid, signal.SIGKILL)
        assert (ended[0].reason, ended[0].outcome_unknown, ended[0].retryable) == ("error", True, False)

        for _ in range(2):  # in the middle of a call, and then between calls
            await until(lambda: mcp.status()[0].connected)
            assert await known() == ["Ann"]
            os.kill(pid_of("server-memory"), signal.SIGKILL)
            await until(lambda: not mcp.status()[0].connected)


@pytest.fixture(scope="module")
def address() -> Generator[str]:
    """Of server-everything over HTTP, on a port that the system has chosen."""
    program = npm_servers.program("everything", "streamableHttp")
    command = ["env", "PORT=0", program["command"], *program["args"]]
    server = GuardedProcess(command, folder=Path(tempfile.mkdtemp(prefix="toolbus-mcp-")))
    try:
        process = psutil.Process(server.start())
        while not (listening := process.net_connections("inet")):
            assert not server.has_ended(), server.log.read_text()
        yield f"http://127.0.0.1:{listening[0].laddr.port}/mcp"
    finally:
        server.close()


async def test_over_http_there_are_the_same_results_and_progress(address: str):
    async with McpTools([McpServer("every", url=address)]) as mcp:
        call = Caller(mcp.registry)
        assert (await call.completed("every__get-sum", a=2, b=3)).content == "The sum of 2 and 3 is 5."
        await call.completed("every__trigger-long-running-operation", duration=0.1, steps=2)
        reported = [(each.done, each.total) for each in call.events if isinstance(each, ToolCallProgress)]
        assert reported == [(1, 2), (2, 2)]


@one_loop
async def test_servers_from_pypi_work(tmp_path: Path):
    await anyio.run_process(["git", "init", "-q", "-b", "trunk", str(tmp_path)])
    (tmp_path / "new.txt").write_text("new")
    servers = [
        McpServer("time", command=str(BIN / "mcp-server-time"), args=["--local-timezone=UTC"]),
        McpServer("git", command=str(BIN / "mcp-server-git"), args=["-r", str(tmp_path)]),
    ]
    async with McpTools(servers) as mcp:
        call = Caller(mcp.registry)
        now = (await call.completed("time__get_current_time", timezone="Asia/Tokyo")).data
        assert datetime.fromisoformat(now["datetime"]).utcoffset() == timedelta(hours=9)
        assert "new.txt" in (await call.completed("git__git_status", repo_path=str(tmp_path))).content
        outside = await call.failed("git__git_status", repo_path="/")
        assert "outside the allowed repository" in outside.error
        specs = mcp.registry.specs
        assert (specs["git__git_status"].needs_approval, specs["git__git_reset"].needs_approval) == (False, True)
