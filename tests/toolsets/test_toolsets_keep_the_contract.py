"""toolbus's own toolsets keep the contracts that are public: what models are told, and how calls go and end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
from mcp import types

from support.mcp_server import FakeMcp, definition
from toolbus.testing import ExampleCall, check_tools, check_toolset, tool_checks, toolset_checks, virtual_backends
from toolbus.toolsets.code_context import CodeIndex, code_context_tool
from toolbus.toolsets.control import give_up, task_complete, update_plan
from toolbus.toolsets.mcp import McpTools
from toolbus.toolsets.workspace import workspace_tools

anyio_backend = virtual_backends()

FOUND: dict[str, Any] = {"type": "object", "required": ["ok", "query", "top_k", "results"]}
ADD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "description": "One."},
        "b": {"type": "integer", "description": "Another.", "default": 0},
    },
    "required": ["a"],
    "additionalProperties": False,
}


def tree(folder: Path) -> Path:
    (folder / "src").mkdir()
    (folder / "src" / "limits.py").write_text("def max_rounds():\n    return 20\n", encoding="utf-8")
    (folder / "notes.md").write_text("# Limits\n\nThere are two.\n", encoding="utf-8")
    return folder


async def test_the_workspace_tools_the_code_context_and_the_control_tools_keep_the_contract(tmp_path: Path) -> None:
    index = CodeIndex(tree(tmp_path), rerank=False, cache_dir=tmp_path / "cache")
    tools = [*workspace_tools(tmp_path), code_context_tool(index), task_complete, give_up, update_plan]
    assert all(each.spec.idempotent for each in tools[:4])  # they only read: so they are called twice, and at once
    examples = [
        ExampleCall("list_files", output={"type": "object", "required": ["files", "total"]}),
        ExampleCall("search_text", {"query": "limits", "mode": "words", "glob": "*.md"}),
        ExampleCall("read_lines", {"path": "src/limits.py", "end": 1}),
        ExampleCall("request_code_context", {"token_budget": 100, "hint": "rounds"}, output=FOUND),
        ExampleCall("request_code_context", {"token_budget": 100}),
    ]
    report = await check_tools(tools, examples)
    assert set(report.skipped) == {"strict-mode"}
    assert {*report.passed, *report.skipped} == set(tool_checks())


async def test_the_tools_of_mcp_servers_keep_the_contract() -> None:
    async def add(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        given = params.arguments or {}
        if params.name == "take":
            await anyio.sleep(0.05)  # so that it is still running when it is cancelled, and when all is closed
        total = given["a"] + given.get("b", 0)
        return types.CallToolResult(content=[], structured_content={"sum": total})

    def make() -> McpTools:
        tools = [definition("add", "Adds.", ADD, read_only_hint=True), definition("take", "Takes.", ADD)]
        return McpTools([FakeMcp(tools, add).named("calc")])

    examples = [
        ExampleCall("calc__add", {"a": 1, "b": 2}, output=dict[str, int]),
        ExampleCall("calc__take", {"a": 1}),
    ]
    report = await check_toolset(make, examples)
    assert {*report.passed, *report.skipped} == {*tool_checks(), *toolset_checks()}
