"""The official conformance suite of MCP, from npm.

    reports = await run_suite(client, "--suite", "all")

The suite starts a server for each of its scenarios, all at the same time, and a program for each server: the client.
This program asks the test, which calls `client` with the `Scenario`. So no new interpreter has to import the SDK.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc

from . import npm_servers

# Python's own `socket`, `os` and `json` would take twice as long as all the rest of this program, which starts 200 times.
_PROGRAM = """
import _socket, posix, sys
test = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
test.connect(("127.0.0.1", int(sys.argv[1])))
given = [posix.environ.get(b"MCP_CONFORMANCE_" + each, b"") for each in (b"SCENARIO", b"PROTOCOL_VERSION", b"CONTEXT")]
test.sendall(b"\\0".join([*given, sys.argv[2].encode()]))
test.shutdown(_socket.SHUT_WR)
test.recv(1)
"""
_SUITE_SECONDS = 200.0
# A line with the verdict on a scenario, and the lines with what has failed.
_REPORT = re.compile(r"^([✓✗]) (\S+): .*((?:\n    .*)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario: the protocol version and the address of its server, and what the client has to know."""

    name: str
    version: str
    given: dict[str, Any]
    url: str


async def run_suite(client: Callable[[Scenario], Awaitable[None]], *options: str) -> dict[str, str]:
    """Run scenarios, and return what has failed in each of them: an empty text for those that passed."""

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            sent = b"".join([piece async for piece in stream])
            name, version, given, url = sent.decode().split("\0")
            await client(Scenario(name, version, json.loads(given or "{}"), url))

    script = npm_servers.installed() / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        program = shlex.join([sys.executable, "-IS", "-c", _PROGRAM, str(port)])
        patience = ["--timeout", "180000"]  # milliseconds for a scenario; by default 30 s, in which all of them run
        command = [npm_servers.node(), str(script), "client", *options, *patience, "--verbose", "--command", program]
        with anyio.fail_after(_SUITE_SECONDS):
            done = await anyio.run_process(command, check=False)
        group.cancel_scope.cancel()
    said = done.stdout.decode()
    found = _REPORT.findall(said)
    assert found, f"{said}{done.stderr.decode()}"[-5_000:]
    return {name: "" if mark == "✓" else why.strip() or "no reason" for mark, name, why in found}
