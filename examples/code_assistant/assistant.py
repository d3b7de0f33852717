"""The assistant without a user interface: one runtime with its tools, its model and its instructions."""

from __future__ import annotations

from pathlib import Path

from toolbus import Compression, Runtime
from toolbus.protocols import Provider
from toolbus.toolsets.code_context import Retriever, code_context_tool
from toolbus.toolsets.workspace import workspace_tools

__all__ = ["make_runtime"]

INSTRUCTIONS = """\
You answer questions about the source tree that your tools look into. Ask request_code_context for code before you
answer. Use names or words of your own as the hint if the code uses other words than the question. Give the sources
that you rely on as path:line. Say so when you have not found an answer."""


def make_runtime(provider: Provider | str, directory: Path, retriever: Retriever | None) -> Runtime:
    """A runtime over `directory`, for `async with`. Without a retriever, each call for code context fails and says so.

    Raises `ConfigurationError` for an unknown provider, a missing key, or a path that is not a directory.
    """
    return Runtime(
        provider,
        tools=[code_context_tool(retriever), *workspace_tools(directory)],
        instructions=INSTRUCTIONS,
        note_failures=True,  # the result is {"ok": false, ...}, and a system message says what failed
        compression=Compression(max_context_tokens=100_000),
        drain_seconds=0,  # leaving does not wait for answers
    )
