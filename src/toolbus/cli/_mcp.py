"""MCP servers for the command: the tools of the servers that a file names. Needs the extra `mcp`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import anyio

from ..core.plain_text import clean, one_line
from ..tools import Tool, ToolRegistry
from ._terminal.screen import Screen

if TYPE_CHECKING:
    from ..toolsets.mcp import McpTools

__all__ = ["mcp_tools", "tools_with", "warnings_shown"]


def mcp_tools(files: Sequence[str], registry: ToolRegistry) -> McpTools | None:
    """Return a context manager that adds the tools of the files' servers to `registry`, or None without a file.

    Raises `ConfigurationError`.
    """
    if not files:
        return None
    from ..toolsets.mcp import McpTools, servers_from  # noqa: PLC0415 -- an extra

    return McpTools([server for file in files for server in servers_from(file)], registry=registry)


def tools_with(files: Sequence[str], registry: ToolRegistry, screen: Screen) -> tuple[list[Tool[..., Any]], bool]:
    """Return all tools, those of the files' servers included, and whether all servers could be reached.

    Raises `ConfigurationError`.
    """
    with warnings_shown(screen):
        mcp = mcp_tools(files, registry)
        if mcp is None:
            return list(registry), True

        async def look() -> tuple[list[Tool[..., Any]], bool]:
            async with mcp:
                return list(registry), all(each.connected for each in mcp.status())

        return anyio.run(look)


@contextlib.contextmanager
def warnings_shown(screen: Screen) -> Generator[None]:
    """Inside, report on stderr which servers are unreachable, which tools are left out, and which have changed."""
    logger = logging.getLogger("toolbus.mcp")
    handler = _WarningHandler(screen)
    before = (logger.level, logger.propagate)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class _WarningHandler(logging.Handler):
    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        self._screen.report(f"toolbus: {one_line(clean(record.getMessage()))}")
