"""What comes back from MCP servers: values that the Python SDKs wrap, marked secrets, and errors in their words."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any

import pytest
from mcp import types
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field, SecretStr

from support.mcp_server import Caller, FakeMcp, definition, said
from toolbus import Runtime, tool
from toolbus.events import Event, ToolCallCompleted, ToolCallFailed
from toolbus.protocols import ModelRequest
from toolbus.providers.scripted import Step
from toolbus.secrets import REFERENCE
from toolbus.testing import ScriptedProvider, calls, text, virtual_backends
from toolbus.toolsets.mcp import McpServer, McpTools

anyio_backend = virtual_backends()
TOKEN = "tok-4711-of-ada"
SECRET = {"type": "string", "format": "password"}
Password = Annotated[str, Field(json_schema_extra={"format": "password"})]


def wrapped(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"result": schema}, "required": ["result"], **more}


def answering(output: dict[str, Any], answer: types.CallToolResult) -> McpServer:
    async def call(_context: Any, _params: Any) -> types.CallToolResult:
        return answer

    return FakeMcp([definition("do", output=output)], call).named("s")


# ---------------------------------------------------------------------------------------------- wrapped values


class Found(BaseModel):
    result: str


def small() -> MCPServer:
    server = MCPServer("small")

    @server.tool()
    def greet(name: str) -> str:
        if name == "nobody":
            raise ToolError("there is nobody to greet")
        return f"Hello, {name}."

    @server.tool()
    def rows() -> list[dict[str, int]]:
        return [{"a": 1}, {"a": 2}]

    @server.tool()
    def nothing() -> None: ...

    @server.tool()
    def search() -> Found:
        return Found(result="its own model")

    @server.tool()
    def login() -> Password:
        return TOKEN

    return server


async def test_a_value_that_the_sdk_wraps_is_the_result_itself_and_an_error_has_the_tools_own_words():
    async with McpTools([McpServer("s", connect=small)]) as mcp:
        call = Caller(mcp.registry)
        for name, content, data in (
            ("rows", '[{"a":1},{"a":2}]', [{"a": 1}, {"a": 2}]),
            ("nothing", '{"ok":true}', None),
            ("search", '{"result":"its own model"}', {"result": "its own model"}),
        ):
            ended = await call.completed(f"s__{name}")
            assert (ended.content, ended.data) == (content, data), name
        hello = await call.completed("s__greet", name="Ada")
        assert (hello.content, hello.data) == ("Hello, Ada.", None)
        assert (await call.failed("s__greet", name="nobody")).error == "there is nobody to greet"
        assert REFERENCE.fullmatch((await call.completed("s__login")).content)


async def test_a_wrapped_null_with_a_text_is_the_text():
    output = wrapped({"type": "null"}, **{"x-fastmcp-wrap-result": True})
    answer = said("nothing was found", structured_content={"result": None})
    async with McpTools([answering(output, answer)]) as mcp:
        ended = await Caller(mcp.registry).completed("s__do")
    assert (ended.content, ended.data) == ("nothing was found", None)


async def test_an_object_without_the_wrapped_value_is_the_result_itself():
    output = {"type": "object", "properties": {"result": {"type": "string"}}, "x-fastmcp-wrap-result": True}
    answer = types.CallToolResult(content=[], structured_content={"other": 1})
    async with McpTools([answering(output, answer)]) as mcp:
        assert (await Caller(mcp.registry).completed("s__do")).data == {"other": 1}


@pytest.mark.parametrize(
    ("schema", "data", "content"),
    [
        (wrapped({"type": "integer"}, **{"x-fastmcp-wrap-result": True}), {"result": 3}, "3"),
        (wrapped({"type": "integer"}), {"result": 3}, '{"result":3}'),
        (wrapped({"type": "integer"}, title="otherOutput"), {"result": 3}, '{"result":3}'),
        ({"type": "object", "title": "doOutput", "properties": {}}, {"sum": 3}, '{"sum":3}'),
    ],
)
async def test_a_value_is_unwrapped_where_its_schema_says_that_it_is_wrapped(
    schema: dict[str, Any], data: Any, content: str
):
    async with McpTools([answering(schema, said("3", structured_content=data))]) as mcp:
        ended = await Caller(mcp.registry).completed("s__do")
    assert ended.content == content


# ---------------------------------------------------------------------------------------------------- secrets


LOGIN = {"type": "object", "properties": {"session": SECRET, "pin": {"type": "integer", "writeOnly": True}}}


@pytest.mark.parametrize("says", ['{"pin": 123456, "session": "tok-4711-of-ada"}', f"Your session is {TOKEN}.", ""])
async def test_what_an_output_schema_marks_is_reported_as_a_reference_that_marked_arguments_take(says: str):
    used: list[Any] = []

    async def answer(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name == "login":
            return said(says, structured_content={"session": TOKEN, "pin": 123456})
        used.append(params.arguments)
        return said(f"It is {TOKEN}.")

    schema = {"type": "object", "properties": {"session": SECRET}}
    server = FakeMcp([definition("login", output=LOGIN), definition("use", schema=schema)], answer).named("s")

    reported: list[Event] = []

    def completed() -> ToolCallCompleted:
        return next(each for each in reported if isinstance(each, ToolCallCompleted))

    def with_session(_request: ModelRequest) -> Step:
        return calls(("s__use", {"session": completed().data["session"]}))

    provider = ScriptedProvider([calls(("s__login", {})), with_session, text("Done.")])
    async with McpTools([server]) as mcp, Runtime(provider, tools=mcp.registry) as runtime:
        runtime.bus.connect(Event, reported.append)
        await runtime.run("Log in.", needs_approval=False)
    assert REFERENCE.fullmatch(completed().data["session"])
    assert REFERENCE.fullmatch(completed().data["pin"])
    assert used == [{"session": TOKEN}]
    for secret in (TOKEN, "123456"):
        assert secret not in repr(reported) + repr(provider.requests)


async def test_a_server_that_asks_for_secrets_gets_none_without_a_person_whatever_it_says_of_its_tool():
    @tool
    async def log_in() -> SecretStr:
        """Log in to another service."""
        return SecretStr(TOKEN)

    used: list[Any] = []

    async def answer(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        used.append(params.arguments)
        return said("Thank you.")

    def with_token(request: ModelRequest) -> Step:
        token = request.messages[-1].text
        return calls(("s__note", {"note": token}), ("s__keep", {"note": token}))

    nested = {"type": "object", "properties": {"note": {"anyOf": [{"type": "string"}, SECRET]}}}
    plain = {"type": "object", "properties": {"note": {"type": "string"}}}
    tools = [
        definition("note", schema=nested, read_only_hint=True),
        definition("keep", schema=plain, read_only_hint=True),
    ]
    for given, expected in (({}, ["denied", ""]), ({"needs_approval": False}, ["", ""])):
        provider = ScriptedProvider([calls(("log_in", {})), with_token, text("Done.")])
        server = replace(FakeMcp(tools, answer).named("s"), **given)
        async with McpTools([server]) as mcp, Runtime(provider, tools=mcp.registry) as runtime:
            mcp.registry.add(log_in)
            result = await runtime.run("Log in.")
        assert [each.reason for each in result.tool_calls[1:]] == expected
    assert [each["note"] == TOKEN for each in used] == [False, True, False]


async def test_an_error_does_not_tell_what_the_output_schema_marks_and_asterisks_are_no_secret():
    failed = said(f"{TOKEN} is used up", structured_content={"session": TOKEN}, is_error=True)
    async with McpTools([answering(LOGIN, failed)]) as mcp:
        assert (await Caller(mcp.registry).failed("s__do")).error == "••• is used up"
    hidden = said("", structured_content={"session": "**********"})  # what pydantic sends of a SecretStr
    async with McpTools([answering(LOGIN, hidden)]) as mcp:
        assert (await Caller(mcp.registry).completed("s__do")).data == {"session": "**********"}


@pytest.mark.parametrize("is_error", [False, True])
async def test_integers_that_json_has_no_room_for_are_texts(is_error: bool):
    big = {"ids": [10**30, 2**64, 2**64 - 1, -(2**63), -(2**63) - 1], "fine": {"n": 7}}
    server = answering({"type": "object"}, types.CallToolResult(content=[], structured_content=big, is_error=is_error))
    async with McpTools([server]) as mcp:
        ended = await Caller(mcp.registry)("s__do")
    read = {"ids": [str(10**30), str(2**64), 2**64 - 1, -(2**63), str(-(2**63) - 1)], "fine": {"n": 7}}
    assert json.loads(ended.error if isinstance(ended, ToolCallFailed) else ended.content) == read
    assert isinstance(ended, ToolCallFailed) is is_error
