"""MCP servers over streamable HTTP: real sockets, both eras, restarts, redirects, and answers that are too large."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Annotated, Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import ElicitResult
from pydantic import Field

from support.mcp_http import Served, response, written_down
from support.mcp_server import ERAS, Caller, Era, until
from support.watchdog import MAX_SECONDS, watching
from toolbus.errors import ConfigurationError
from toolbus.events import ToolCallFailed, ToolCallProgress
from toolbus.failures import ReportedFailure
from toolbus.tools import ToolContext
from toolbus.toolsets.mcp import McpServer, McpTools

eras = pytest.mark.parametrize("era", ERAS)
RESULTS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "x", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "big", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "x" * 5_000}]},
    "ping": {},
}


hanging = list[str]()  # the calls of `hang` that have arrived


def make() -> MCPServer:
    server = MCPServer("web")

    @server.tool()
    async def hello(context: Context[Any, Any]) -> str:  # pyright: ignore[reportUnusedFunction]
        await context.report_progress(1, 2, "saying")
        request: Any = context.request_context.request
        return f"hello {request.headers.get('x-key')}"

    @server.tool()
    async def mirror(  # pyright: ignore[reportUnusedFunction]
        region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
        context: Context[Any, Any],
        verbose: Annotated[bool, Field(json_schema_extra={"x-mcp-header": "Verbose"})] = True,
        note: str | None = "nothing",
    ) -> str:
        request: Any = context.request_context.request
        headers = [request.headers.get(f"mcp-param-{name}") for name in ("region", "verbose")]
        return f"{headers}, {region}, {verbose}, {note}"

    @server.tool()
    async def hang() -> None:  # pyright: ignore[reportUnusedFunction]
        hanging.append("hang")
        await anyio.sleep_forever()

    return server


@pytest.fixture
def served() -> Generator[Served]:
    hanging.clear()
    served = Served(make)
    served.start()
    yield served
    served.stop()


@eras
async def test_a_server_is_called_with_its_headers_and_another_one_in_its_place_too(era: Era, served: Served):
    server = McpServer("web", url=served.url, headers={"X-Key": "k"}, protocol="auto" if era != "legacy" else era)
    async with McpTools([server]) as mcp:
        assert mcp.status()[0].protocol == ("2025-11-25" if era == "legacy" else era)
        call = Caller(mcp.registry)
        assert (await call.completed("web__hello")).content == "hello k"
        assert [each.message for each in call.events if isinstance(each, ToolCallProgress)] == ["saying"]
        await call.overdue("web__hang", lambda: bool(hanging))
        hanging.clear()

        ended: list[ToolCallFailed] = []
        async with anyio.create_task_group() as group:

            async def hang() -> None:
                ended.append(await Caller(mcp.registry).failed("web__hang"))

            group.start_soon(hang)
            await until(lambda: bool(hanging))
            await anyio.to_thread.run_sync(served.stop)
        assert (ended[0].reason, ended[0].outcome_unknown) == ("error", True)

        failed = await call.failed("web__hello")  # by it at the latest, it is known
        assert failed.reason == "error"
        await until(lambda: not mcp.status()[0].connected)
        away = await call.failed("web__hello")
        assert (away.retryable, away.outcome_unknown) == (True, False)
        await anyio.to_thread.run_sync(served.start)
        await until(lambda: mcp.status()[0].connected)
        assert (await call.completed("web__hello")).content == "hello k"


async def test_a_null_argument_has_no_header_and_is_sent_only_if_the_schema_accepts_it(served: Served):
    """The nulls of the scenario `http-custom-headers` in the official conformance suite."""
    async with McpTools([McpServer("web", url=served.url, protocol="2026-07-28")]) as mcp:
        call = Caller(mcp.registry)
        with_null = await call.completed("web__mirror", region="eu", verbose=None, note=None)
        assert with_null.content == "['eu', None], eu, True, None"
        without = await call.completed("web__mirror", region="eu", verbose=False)
        assert without.content == "['eu', 'false'], eu, False, nothing"


@eras
async def test_a_server_restarted_between_calls_is_found_again(era: Era, served: Served):
    async with McpTools([McpServer("web", url=served.url, protocol=era)]) as mcp:
        await anyio.to_thread.run_sync(served.stop)
        await anyio.to_thread.run_sync(served.start)
        call = Caller(mcp.registry)
        with anyio.fail_after(60):
            while (ended := await call("web__hello")).type != "tool_call_completed":
                assert isinstance(ended, ToolCallFailed)
                assert ended.reason == "error"
                await anyio.sleep(0.1)


@pytest.mark.parametrize("status", ["307 Temporary Redirect", "308 Permanent Redirect", "302 Found"])
async def test_a_redirect_to_another_address_is_not_followed(status: str):
    async with written_down(lambda _: response("200 OK", b"{}")) as (private, asked):
        private = private.replace("127.0.0.1", "localhost")  # another origin, and a private one
        async with (
            written_down(lambda _: response(status, location=private)) as (url, _),
            McpTools([McpServer("web", url=url, headers={"Authorization": "secret"})]) as mcp,
        ):
            (web,) = mcp.status()
            assert not web.connected
            assert f"Redirect to {private} not followed" in web.reason
        assert asked == []


@pytest.mark.parametrize("streamed", [False, True], ids=["body", "event"])
@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("large", "2000 byte"),
        ("many values", "more than 100,000 values"),
        ("many parts", "more than 10,000 parts"),
        ("compressed", "is compressed, which was not asked for"),
    ],
)
async def test_an_answer_that_is_too_large_is_not_read(kind: str, problem: str, streamed: bool):
    content = {"many values": [], "many parts": [{"type": "text", "text": ""}] * 10_001}.get(kind)
    results: dict[str, Any] = {**RESULTS}
    if content is not None:
        results["tools/call"] = {"content": content, "structuredContent": {"values": [0] * 100_000 * (not content)}}

    def answer(body: str) -> bytes:
        request = json.loads(body)
        if "id" not in request:
            return response("202 Accepted")
        result = results[request["method"]]
        reported = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}, separators=(",", ":")).encode()
        form = {"content-type": "text/event-stream" if streamed else "application/json"}
        if streamed:
            # JSON may have line ends between its values.
            reported = b"retry: 9\r\nid: 1\r\ndata: " + reported.replace(b",", b",\r\ndata:") + b"\r\n\r\n"
        if kind == "compressed" and request["method"] == "tools/call":
            return response("200 OK", gzip.compress(reported), content_encoding="gzip", **form)
        return response("200 OK", reported, **form)

    most = 1_000_000 if content is not None else 2_000
    async with (
        written_down(answer) as (url, _),
        McpTools([McpServer("web", url=url, protocol="legacy", max_response_bytes=most)]) as mcp,
    ):
        failed = await Caller(mcp.registry).failed("web__big")
        assert failed.outcome_unknown
        assert problem in failed.error
        assert mcp.status()[0].connected


@pytest.mark.parametrize("reported", [None, {"code": -32000, "message": "Bad Request: No valid session ID provided"}])
async def test_a_server_that_has_forgotten_its_sessions_is_connected_anew(reported: dict[str, Any] | None):
    knows, connections = True, 0

    def answer(asked: str) -> bytes:
        nonlocal knows, connections
        request = json.loads(asked)
        if request["method"] == "initialize":
            knows, connections = True, connections + 1
        if not knows:
            body = {"jsonrpc": "2.0", "id": request.get("id"), "error": reported}
            return response(
                "400 Bad Request", json.dumps(body).encode() if reported else b""
            )  # not 404, as it should be
        if "id" not in request:
            return response("202 Accepted")
        body = {"jsonrpc": "2.0", "id": request["id"], "result": RESULTS[request["method"]]}
        return response("200 OK", json.dumps(body).encode())

    async with written_down(answer) as (url, _), McpTools([McpServer("web", url=url, protocol="legacy")]) as mcp:
        call = Caller(mcp.registry)
        await call.completed("web__big")
        knows = False
        assert (await call.failed("web__big")).outcome_unknown
        await until(lambda: connections == 2 and mcp.status()[0].connected)
        await call.completed("web__big")


@pytest.mark.parametrize("code", [-32600, -32001])  # of the SDKs for Python and for TypeScript
async def test_a_session_that_was_not_found_is_begun_anew_and_its_call_was_not_carried_out(code: int):
    knows, connections = True, 0

    def answer(asked: str) -> bytes:
        nonlocal knows, connections
        request = json.loads(asked or '{"method": ""}')
        if request["method"] == "initialize":
            knows, connections = True, connections + 1
        if not knows:
            body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "Session not found"}}
            return response("404 Not Found", json.dumps(body).encode())
        if "id" not in request:
            return response("202 Accepted")
        body = {"jsonrpc": "2.0", "id": request["id"], "result": RESULTS[request["method"]]}
        return response("200 OK", json.dumps(body).encode(), mcp_session_id=f"of-{connections}")

    async with written_down(answer) as (url, _), McpTools([McpServer("web", url=url, protocol="legacy")]) as mcp:
        call = Caller(mcp.registry)
        await call.completed("web__big")
        knows = False
        failed = await call.failed("web__big")
        assert (failed.retryable, failed.outcome_unknown) == (True, False)
        assert "Session not found. The call was not carried out" in failed.error
        await until(lambda: connections == 2 and mcp.status()[0].connected)
        await call.completed("web__big")


@pytest.mark.guarantee("G30")
@pytest.mark.parametrize("reported", [b"202 Accepted", b"200 OK", b"204 No Content"])
async def test_a_success_without_a_result_says_nothing_of_what_was_done(reported: bytes):
    def answer(asked: str) -> bytes:
        request = json.loads(asked)
        if request["method"] == "tools/call":
            return (
                b"HTTP/1.1 "
                + reported
                + b"\r\ncontent-type: text/html\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
        if "id" not in request:
            return response("202 Accepted")
        body = {"jsonrpc": "2.0", "id": request["id"], "result": RESULTS[request["method"]]}
        return response("200 OK", json.dumps(body).encode())

    async with written_down(answer) as (url, _), McpTools([McpServer("web", url=url, protocol="legacy")]) as mcp:
        failed = await Caller(mcp.registry).failed("web__big")
        assert (failed.retryable, failed.outcome_unknown) == (False, True)
        assert failed.error.startswith("The MCP server 'web' gave no answer that can be used: ")


async def test_only_a_tool_that_changes_nothing_may_be_called_again_where_http_refused_it():
    def answer(asked: str) -> bytes:
        request = json.loads(asked)
        if request["method"] == "tools/call":
            return response("503 Service Unavailable")
        if "id" not in request:
            return response("202 Accepted")
        look = {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
        write = {"name": "write", "inputSchema": {"type": "object"}}
        result = {"tools": [look, write]} if request["method"] == "tools/list" else RESULTS[request["method"]]
        return response("200 OK", json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode())

    async with written_down(answer) as (url, _), McpTools([McpServer("web", url=url, protocol="legacy")]) as mcp:
        call = Caller(mcp.registry)
        look, write = await call.failed("web__look"), await call.failed("web__write")
    assert (look.retryable, look.outcome_unknown) == (True, False)
    assert look.error.endswith(": HTTP 503 Service Unavailable; it changes nothing, so try again.")
    assert (write.retryable, write.outcome_unknown) == (False, True)
    assert write.error.endswith(": HTTP 503 Service Unavailable")


def refusing(status: str, body: bytes = b"", *, era: Era = "legacy") -> Callable[[str], bytes]:
    """Return the answers of a server that refuses each call with a status."""

    def answer(asked: str) -> bytes:
        request = json.loads(asked or '{"method": "", "id": 0}')
        if request["method"] == "tools/call":
            return response(status, body)
        if "id" not in request:
            return response("202 Accepted")
        if request["method"] not in RESULTS:
            return response("404 Not Found")
        result = RESULTS[request["method"]]
        if era != "legacy":
            result = {**result, "resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
        body_of = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()
        return response("200 OK", body_of, mcp_session_id="one")

    return answer


@eras
@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        ("401 Unauthorized", False),
        ("403 Forbidden", False),
        ("404 Not Found", None),
        ("405 Method Not Allowed", False),
        ("407 Proxy Authentication Required", False),
        ("410 Gone", False),
        ("413 Content Too Large", False),
        ("415 Unsupported Media Type", False),
        ("429 Too Many Requests", True),
    ],
)
async def test_a_call_that_http_refused_is_reported_with_its_status_and_was_not_carried_out(
    status: str, retryable: bool | None, era: Era
):
    if retryable is None:
        # With a session, this status says that the server does not know the session.
        retryable = era == "legacy"
    async with (
        written_down(refusing(status, era=era)) as (url, _),
        McpTools([McpServer("web", url=url, protocol=era)]) as mcp,
    ):
        failed = await Caller(mcp.registry).failed("web__big")
    assert f"HTTP {status}" in failed.error
    assert "not carried out" in failed.error
    assert (failed.retryable, failed.outcome_unknown) == (retryable, False)


async def test_a_call_that_is_refused_in_json_too_is_reported_with_both_texts():
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "Slow down"}}).encode()
    async with (
        written_down(refusing("429 Too Many Requests", body)) as (url, _),
        McpTools([McpServer("web", url=url, protocol="legacy")]) as mcp,
    ):
        failed = await Caller(mcp.registry).failed("web__big")
        assert mcp.status()[0].connected
    assert "HTTP 429 Too Many Requests: Slow down; it was not carried out" in failed.error
    assert (failed.retryable, failed.outcome_unknown) == (True, False)


async def test_calls_do_not_wait_for_each_other_s_connections():
    given, arrived, all_arrived = refusing("403 Forbidden"), 0, anyio.Event()

    async def answer(asked: str) -> bytes:
        nonlocal arrived
        if '"tools/call"' in asked:
            arrived += 1
            if arrived == 101:
                all_arrived.set()
            await all_arrived.wait()
        return given(asked)

    async def call(tool: Any) -> None:
        with suppress(ReportedFailure):
            await tool(toolbus_context=ToolContext(deps=None))

    async with written_down(answer) as (url, _), McpTools([McpServer("web", url=url, protocol="legacy")]) as mcp:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for _ in range(101):
                    group.start_soon(call, mcp.registry.get("web__big"))
        assert mcp.status()[0].connected


def has_call(asked: list[str]) -> bool:
    return any('"tools/call"' in each for each in asked)


def never(given: Callable[[str], bytes], is_silent: Callable[[str], bool]) -> Callable[[str], Awaitable[bytes]]:
    """Return the answers of a server that answers some requests never."""

    async def answer(asked: str) -> bytes:
        if is_silent(asked):
            await anyio.sleep_forever()
        return given(asked)

    return answer


async def test_a_notification_that_is_never_answered_does_not_hold_up_calls(monkeypatch: pytest.MonkeyPatch):
    called = list[str]()

    def is_silent(asked: str) -> bool:
        called.extend([asked] * ('"tools/call"' in asked))
        return called[:1] == [asked] or "notifications/cancelled" in asked

    answer = never(refusing("403 Forbidden"), is_silent)
    async with written_down(answer) as (url, _), McpTools([McpServer("web", url=url, protocol="legacy")]) as mcp:
        call = Caller(mcp.registry)
        monkeypatch.setattr("toolbus.toolsets.mcp._transport._ONE_WAY_SECONDS", 0.02)
        await call.overdue("web__big", lambda: bool(called))
        assert "HTTP 403" in (await call.failed("web__big")).error
        assert mcp.status()[0].connected


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"", "went away during the call (Connection closed: "),
        (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{", "the response was cut: "),
    ],
)
async def test_a_call_whose_connection_is_cut_ends_no_other_call(
    reply: bytes, why: str, caplog: pytest.LogCaptureFixture
):
    given, one_runs, cut = refusing("403 Forbidden"), anyio.Event(), anyio.Event()

    async def answer(asked: str) -> bytes:
        if '"tools/call"' not in asked:
            return given(asked)
        if one_runs.is_set():
            return reply
        one_runs.set()
        await cut.wait()
        return given(asked)

    ended: list[ToolCallFailed] = []
    async with written_down(answer) as (url, _), McpTools([McpServer("web", url=url, protocol="legacy")]) as mcp:

        async def call() -> None:
            ended.append(await Caller(mcp.registry).failed("web__big"))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await one_runs.wait()
            await call()
            cut.set()
        assert mcp.status()[0].connected
    assert why in ended[0].error
    assert ended[0].outcome_unknown
    assert "HTTP 403" in ended[1].error
    assert [each for each in caplog.records if each.exc_info] == []


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"])
@pytest.mark.parametrize("method", ["ping", "tools/list"])
async def test_a_check_that_is_cut_or_refused_ends_no_call_and_with_the_calls_the_connection(method: str, reply: bytes):
    given, one_runs, proceed, is_cut = refusing("403 Forbidden"), anyio.Event(), anyio.Event(), False
    change = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    cuts = 0

    async def answer(asked: str) -> bytes:
        nonlocal cuts
        if '"tools/call"' in asked and not one_runs.is_set():
            one_runs.set()
            await proceed.wait()
        elif '"tools/call"' in asked:
            # After it, the connection is checked.
            return b""
        elif not asked and method == "tools/list":
            await one_runs.wait()
            events = f"data: {json.dumps(change)}\n\n".encode()
            return response("200 OK", events, **{"content-type": "text/event-stream"})
        elif is_cut and f'"method":"{method}"' in asked:
            cuts += 1
            return reply
        return given(asked)

    ended: list[ToolCallFailed] = []
    async with (
        written_down(answer) as (url, _),
        McpTools([McpServer("web", url=url, protocol="legacy")], ping_seconds=0.02) as mcp,
    ):

        async def call() -> None:
            ended.append(await Caller(mcp.registry).failed("web__big"))

        is_cut = True
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await one_runs.wait()
            await call()
            await until(lambda: cuts > 0)
            proceed.set()
        assert "HTTP 403" in ended[1].error
        if method == "ping":
            await until(lambda: not mcp.status()[0].connected)


async def test_a_call_that_cannot_be_sent_was_not_carried_out(monkeypatch: pytest.MonkeyPatch):
    real = httpx2.AsyncClient.send

    async def send(client: Any, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if b'"tools/call"' in request.content:
            raise httpx2.ConnectError("All connection attempts failed")
        return await real(client, request, **options)

    monkeypatch.setattr(httpx2.AsyncClient, "send", send)
    async with (
        written_down(refusing("")) as (url, _),
        McpTools([McpServer("web", url=url, protocol="legacy")]) as mcp,
    ):
        failed = await Caller(mcp.registry).failed("web__big")
    assert "it cannot be reached: All connection attempts failed. The call was not carried out" in failed.error
    assert (failed.retryable, failed.outcome_unknown) == (True, False)


async def test_a_call_that_has_ended_keeps_no_connection_open():
    given = refusing("")

    async def answer(asked: str) -> bytes | None:
        return None if '"tools/call"' in asked else given(asked)

    async with (
        written_down(answer) as (url, asked),
        McpTools([McpServer("web", url=url, protocol="legacy")]) as mcp,
    ):
        await Caller(mcp.registry).overdue("web__big", lambda: has_call(asked))
        await until(lambda: "closed" in asked)
        assert mcp.status()[0].connected


@pytest.mark.parametrize(
    ("body", "problem"), [(b"{", "EOF while parsing an object at line 1 column 1"), (b'{"id": 1}', "Field required")]
)
async def test_an_answer_that_is_not_of_the_protocol_is_reported_in_one_line(body: bytes, problem: str):
    async with (
        written_down(refusing("200 OK", body)) as (url, _),
        McpTools([McpServer("web", url=url, protocol="legacy")]) as mcp,
    ):
        failed = await Caller(mcp.registry).failed("web__big")
    said = failed.error.removeprefix(
        "The MCP server 'web' gave no answer that can be used: Failed to parse JSON response: "
    )
    assert said in {problem, f"Invalid JSON: {problem}"}


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
async def test_half_of_a_surrogate_pair_costs_a_result_this_character_only(content_type: str):
    given = refusing("")

    def answer(asked: str) -> bytes:
        if '"tools/call"' not in asked:
            return given(asked)
        result = {"content": [{"type": "text", "text": "It is sunny \ud83d"}]}
        body = json.dumps({"jsonrpc": "2.0", "id": json.loads(asked)["id"], "result": result}).encode()
        frame = b"data: " + body + b"\n\n" if content_type.startswith("text") else body
        return response("200 OK", frame, **{"content-type": content_type})

    async with written_down(answer) as (url, _), McpTools([McpServer("web", url=url, protocol="legacy")]) as mcp:
        assert (await Caller(mcp.registry).completed("web__big")).content == "It is sunny \ufffd"


@pytest.mark.parametrize("retry", ["0", "-1", "9" * 400])
async def test_a_stream_that_ends_is_asked_for_again_after_a_time_that_no_server_can_choose(
    retry: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("toolbus.toolsets.mcp._http_bounds._MIN_RETRY_MS", 20)
    monkeypatch.setattr("toolbus.toolsets.mcp._http_bounds._MAX_RETRY_MS", 40)
    waited = list[float]()
    sleep = anyio.sleep

    async def noted(seconds: float) -> None:
        waited.append(seconds)
        await sleep(seconds)

    def answer(asked: str) -> bytes:
        if not asked or '"tools/call"' in asked:
            return response(
                "200 OK", f"retry: {retry}\nid: 1\ndata:\n\n".encode(), **{"content-type": "text/event-stream"}
            )
        return refusing("")(asked)

    async with (
        written_down(answer) as (url, asked),
        McpTools([McpServer("web", url=url, protocol="legacy")]) as mcp,
    ):
        with monkeypatch.context() as patch:
            patch.setattr("mcp.client.streamable_http.anyio.sleep", noted)
            await Caller(mcp.registry).overdue("web__big", lambda: asked.count("") > 2)
        assert mcp.status()[0].connected
    assert not {0.02, 0.04}.isdisjoint(waited)


async def test_a_session_whose_end_is_never_answered_holds_up_nobody_who_closes(monkeypatch: pytest.MonkeyPatch):
    # Only the limit of this request ends the wait, and not that of closing as a whole.
    monkeypatch.setattr("toolbus.toolsets.mcp._tools._CLOSE_SECONDS", 600.0)
    monkeypatch.setattr("toolbus.toolsets.mcp._connection._LEAVE_SECONDS", 600.0)
    unanswered = list[str]()

    def is_silent(asked: str) -> bool:
        unanswered.extend([asked] * is_still)
        return is_still

    is_still = False
    async with (
        written_down(never(refusing(""), is_silent)) as (url, _),
        McpTools([McpServer("web", url=url, protocol="legacy")]),
    ):
        is_still = True
        monkeypatch.setattr("toolbus.toolsets.mcp._transport._ONE_WAY_SECONDS", 0.02)
    assert "" in unanswered


async def test_a_server_that_stood_still_once_is_connected_again(monkeypatch: pytest.MonkeyPatch):
    sessions, is_still, given = 0, False, refusing("")

    def stand(*, still: bool) -> None:
        """Answer nothing, and be given up soon; or answer, and have the usual time."""
        nonlocal is_still
        is_still = still
        monkeypatch.setattr("toolbus.toolsets.mcp._transport._ONE_WAY_SECONDS", 0.02 if still else 60)
        monkeypatch.setattr("toolbus.toolsets.mcp._connection._LIST_SECONDS", 0.02 if still else 60)

    def is_silent(asked: str) -> bool:
        nonlocal sessions
        if '"initialize"' in asked:
            sessions += 1
            stand(still=False)
        return is_still

    def answered(asked: str) -> bytes:
        if sessions == 1 and '"tools/list"' in asked:
            stand(still=True)
        return given(asked)

    async with (
        written_down(never(answered, is_silent)) as (url, _),
        McpTools([McpServer("web", url=url, protocol="legacy")], ping_seconds=0.02) as mcp,
    ):
        await until(lambda: sessions == 2 and mcp.status()[0].connected)
    assert sessions == 2


async def test_a_server_that_stands_still_is_given_up_even_if_calls_keep_coming(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolbus.toolsets.mcp._transport._ONE_WAY_SECONDS", 0.005)
    monkeypatch.setattr("toolbus.toolsets.mcp._connection._LIST_SECONDS", 0.02)
    is_still = False
    answer = never(refusing(""), lambda _: is_still)
    async with (
        written_down(answer) as (url, _),
        McpTools([McpServer("web", url=url, protocol="legacy")], ping_seconds=0.02) as mcp,
        anyio.create_task_group() as group,
    ):
        is_still = True

        async def call(seconds: float) -> None:
            while mcp.status()[0].connected:
                await Caller(mcp.registry).failed("web__big", seconds=seconds)

        group.cancel_scope.deadline = anyio.current_time() + 60
        for seconds in (0.03, 0.04):
            group.start_soon(call, seconds)
    assert not group.cancel_scope.cancelled_caught


async def test_a_question_of_a_call_that_has_ended_is_refused():
    ended, answered = anyio.Event(), anyio.Event()
    given, said = refusing(""), ""
    form: dict[str, Any] = {"message": "Really?", "requestedSchema": {"type": "object", "properties": {}}}
    question: dict[str, Any] = {"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": form}

    async def answer(asked: str) -> bytes:
        nonlocal said
        if '"id":"q"' in asked:
            said = asked
            answered.set()
            return response("202 Accepted")
        if '"tools/call"' in asked:
            await ended.wait()
            events = f"data: {json.dumps(question)}\n\n".encode()
            return response("200 OK", events, **{"content-type": "text/event-stream"})
        return given(asked)

    async def decide(_context: Any, _params: Any) -> Any:
        raise AssertionError

    def server(url: str) -> McpServer:
        return McpServer("web", connect=lambda: streamable_http_client(url), protocol="legacy", on_elicitation=decide)

    async with (
        written_down(answer) as (url, asked),
        McpTools([server(url)]) as mcp,
    ):
        await Caller(mcp.registry).overdue("web__big", lambda: has_call(asked))
        ended.set()
        with anyio.fail_after(60):
            await answered.wait()
    assert "the call has ended" in said


@pytest.mark.parametrize("name", ["way", "method"])
async def test_an_answer_to_a_question_whose_connection_is_cut_ends_no_call(name: str):
    called, given = anyio.Event(), refusing("")
    form = {"message": "How?", "requestedSchema": {"type": "object", "properties": {name: {"type": "string"}}}}
    question: dict[str, Any] = {"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": form}
    replies = [f"data: {json.dumps(question)}\n\n".encode()]
    said = list[str]()

    async def answer(asked: str) -> bytes | None:
        if '"tools/call"' in asked:
            if called.is_set():
                return given(asked)
            called.set()
            return None
        if '"id":"q"' in asked:
            said.append(asked)
            return b""
        if asked or not replies:
            return given(asked)
        await called.wait()
        return response("200 OK", replies.pop(), **{"content-type": "text/event-stream"})

    async def decide(_context: Any, _params: Any) -> Any:
        return ElicitResult(action="accept", content={name: "by card"})

    async with (
        written_down(answer) as (url, _),
        McpTools([McpServer("web", url=url, protocol="legacy", on_elicitation=decide)]) as mcp,
    ):
        is_next_one_over = False
        async with anyio.create_task_group() as group:
            group.start_soon(Caller(mcp.registry).overdue, "web__big", lambda: is_next_one_over)
            await until(lambda: bool(said))
            await Caller(mcp.registry).failed("web__big")
            is_next_one_over = True
        assert mcp.status()[0].connected
    assert "by card" in said[0]


async def test_an_error_that_names_no_call_is_that_of_the_call_which_it_answers():
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "no such city"}}).encode()
    async with (
        written_down(refusing("200 OK", body)) as (url, _),
        McpTools([McpServer("web", url=url, protocol="legacy")]) as mcp,
    ):
        assert (await Caller(mcp.registry).failed("web__big")).error == "no such city"


async def test_an_error_in_a_list_is_no_answer():
    body = json.dumps([{"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "no such city"}}]).encode()
    async with (
        written_down(refusing("200 OK", body)) as (url, _),
        McpTools([McpServer("web", url=url, protocol="legacy")]) as mcp,
    ):
        failed = await Caller(mcp.registry).failed("web__big")
        assert mcp.status()[0].connected
    assert "gave no answer that can be used" in failed.error


@eras
async def test_a_server_that_wants_to_be_checked_less_often_is_not_away(era: Era, monkeypatch: pytest.MonkeyPatch):
    checks = 0
    given = refusing("200 OK", era=era)
    monkeypatch.setattr("toolbus.toolsets.mcp._connection._REST_SECONDS", 0.01)

    def answer(asked: str) -> bytes:
        nonlocal checks
        if '"method":"ping"' in asked or (checks and '"method":"tools/list"' in asked):
            checks += 1
            return response("429 Too Many Requests")
        checks = checks or '"method":"tools/list"' in asked
        return given(asked)

    async with (
        written_down(answer) as (url, asked),
        McpTools([McpServer("web", url=url, protocol=era)], ping_seconds=0.02) as mcp,
    ):
        await until(lambda: checks > 3)
        assert mcp.status()[0].connected
    assert sum("initialize" in each for each in asked) == 2 * (era == "legacy")


@pytest.mark.repeats("one definition a thousand times")
@pytest.mark.guarantee("G12")
@eras
@pytest.mark.parametrize("streamed", [False, True], ids=["body", "event"])
async def test_a_long_list_of_tools_does_not_hold_the_loop(era: Era, streamed: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolbus.toolsets.mcp._connection._REST_SECONDS", 0.01)
    field = {"type": "string", "description": "x" * 200, "enum": ["a", "b", "c"]}
    schema: dict[str, Any] = {"type": "object", "properties": {f"p{number}": field for number in range(8)}}
    tools = [{"name": f"tool{number}", "inputSchema": schema, "description": "d" * 1_000} for number in range(1_000)]
    long = json.dumps({"tools": tools, "resultType": "complete", "ttlMs": 0, "cacheScope": "public"})
    change = json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    given, grown = refusing("200 OK", era=era), anyio.Event()
    stream = {"content-type": "text/event-stream"}

    async def answer(asked: str) -> bytes:
        if not asked:
            await grown.wait()
            return response("200 OK", f"data: {change}\n\n".encode(), **stream)
        if not (grown.is_set() and '"tools/list"' in asked):
            return given(asked)
        body = f'{{"jsonrpc": "2.0", "id": {json.loads(asked)["id"]}, "result": {long}}}'
        return (
            response("200 OK", f"data: {body}\n\n".encode(), **stream)
            if streamed
            else response("200 OK", body.encode())
        )

    async with (
        written_down(answer) as (url, _),
        McpTools([McpServer("web", url=url, protocol=era, tools=["big", "tool999"])], ping_seconds=0.05) as mcp,
    ):
        assert list(mcp.registry.specs) == ["web__big"]
        async with watching() as dog:
            grown.set()
            await until(lambda: list(mcp.registry.specs) == ["web__tool999"])
        assert mcp.status()[0].connected
    assert dog.longest < MAX_SECONDS


async def test_definitions_that_are_none_and_an_empty_cursor_cost_a_server_those_tools_alone(
    caplog: pytest.LogCaptureFixture,
):
    tools: list[Any] = [
        {"name": "bare"},
        {"name": "text", "inputSchema": {"type": "string"}},
        {"name": "good", "inputSchema": {"type": "object"}},
        {"name": "flag", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": "perhaps"}},
        "tool",
        {"inputSchema": {"type": "object"}},
        {"name": "fine", "inputSchema": {"type": "object", "required": None, "properties": None}, "description": None},
    ]

    def answer(asked: str) -> bytes:
        request = json.loads(asked)
        if "id" not in request:
            return response("202 Accepted")
        result = {**RESULTS[request["method"]], "tools": tools, "nextCursor": ""}  # and where nobody asks for them
        return response("200 OK", json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode())

    async with written_down(answer) as (url, _), McpTools([McpServer("web", url=url, protocol="legacy")]) as mcp:
        assert mcp.status()[0].connected, mcp.status()[0].reason
        assert [tool.name for tool in mcp.registry] == ["web__good", "web__fine"]
    reported = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert [each.partition(" is left out: ")[0] for each in reported] == [
        f"tool {name} of MCP server 'web'" for name in ("'bare'", "'text'", "'flag'", "'number 5'", "'number 6'")
    ]
    assert reported[0].endswith("its definition breaks the protocol: inputSchema: Field required")


@pytest.mark.parametrize("status", ["401 Unauthorized", "405 Method Not Allowed"])
async def test_a_server_that_wants_no_visitors_is_reported_with_its_status(status: str):
    async with written_down(lambda _: response(status)) as (url, _), McpTools([McpServer("web", url=url)]) as mcp:
        assert mcp.status()[0].reason == f"HTTP {status}"


async def test_what_breaks_the_protocol_is_reported_by_its_field_and_structured_content_needs_no_other(
    monkeypatch: pytest.MonkeyPatch,
):
    result: dict[str, Any] = {}

    def answer(asked: str) -> bytes:
        request = json.loads(asked)
        if "id" not in request:
            return response("202 Accepted")
        look = {"name": "look", "inputSchema": {"type": "object"}}
        read = {**look, "name": "read", "annotations": {"readOnlyHint": True}}
        results = {**RESULTS, "tools/list": {"tools": [look, read]}, "tools/call": result}
        body = {"jsonrpc": "2.0", "id": request["id"], "result": results[request["method"]]}
        return response("200 OK", json.dumps(body).encode())

    async with written_down(answer) as (url, _):
        async with McpTools([McpServer("web", url=url, protocol="legacy")]) as mcp:
            call = Caller(mcp.registry)
            for name, is_unknown in (("web__look", True), ("web__read", False)):
                failed = await call.failed(name)
                assert failed.error.endswith("is not the result of a tool: content: Field required")
                assert failed.outcome_unknown == is_unknown
            result = {"structuredContent": {"sum": 3}}
            assert (await call.completed("web__look")).data == {"sum": 3}
        monkeypatch.setitem(RESULTS, "initialize", {})
        async with McpTools([McpServer("web", url=url, protocol="legacy")]) as mcp:
            assert mcp.status()[0].reason == "its answer breaks the protocol: capabilities: Field required"


@eras
async def test_content_of_an_unknown_type_costs_a_result_that_part_only(era: Era):
    film = {"type": "video", "data": "AA==", "mimeType": "video/mp4"}
    content = [{"type": "text", "text": "one"}, film, {"type": "x" * 99}, {"type": "text", "text": "two"}]

    def answer(asked: str) -> bytes:
        request = json.loads(asked or "{}")
        if request.get("method") != "tools/call":
            return refusing("", era=era)(asked)
        result = {"content": content, "resultType": "complete"}
        return response("200 OK", json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode())

    async with written_down(answer) as (url, _), McpTools([McpServer("web", url=url, protocol=era)]) as mcp:
        done = await Caller(mcp.registry).completed("web__big")
    unknown = [f"[content of the type {kind!r}, which cannot be shown]" for kind in ("video", "x" * 50)]
    assert done.content == "\n".join(["one", *unknown, "two"])


@pytest.mark.parametrize("form", ["application/json", "text/event-stream"])
async def test_a_server_of_the_newer_protocol_that_leaves_out_what_can_be_assumed_can_be_used(form: str):
    """Servers in Go and C# have left out these fields."""
    results: dict[str, Any] = {
        "server/discover": {
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": "x", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "seen"}]},
    }

    def answer(asked: str) -> bytes:
        request = json.loads(asked)
        body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": results[request["method"]]}).encode()
        is_stream = form == "text/event-stream"
        return response("200 OK", b"data: " + body + b"\n\n" if is_stream else body, **{"content-type": form})

    async with written_down(answer) as (url, _), McpTools([McpServer("web", url=url)]) as mcp:
        assert mcp.status()[0].protocol == "2026-07-28", mcp.status()[0].reason
        assert (await Caller(mcp.registry).completed("web__look")).content == "seen"


async def test_tests_ask_no_servers_of_other_machines():
    async with McpTools([McpServer("web", url="https://u:p@example.org/mcp?key=k")]) as mcp:
        why = mcp.status()[0].reason
        assert why.startswith("a test was about to ask mcp at https://example.org/mcp, and")
    assert issubclass(ConfigurationError, ValueError)
