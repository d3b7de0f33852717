"""MCP servers for the command: the tools of those that a file names, beside the others. Needs the extra `mcp`."""

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

__all__ = ["mcp_tools", "tools_with", "warnings_told"]


def mcp_tools(files: Sequence[str], registry: ToolRegistry) -> McpTools | None:
    """What has to be entered for the tools of the files' servers to be in `registry`; None where there is no file.

    Raises `ConfigurationError`.
    """
    if not files:
        return None
    from ..toolsets.mcp import McpTools, servers_from  # noqa: PLC0415 -- an extra

    return McpTools([server for file in files for server in servers_from(file)], registry=registry)


def tools_with(files: Sequence[str], registry: ToolRegistry, screen: Screen) -> tuple[list[Tool[..., Any]], bool]:
    """The tools there are with those of the files' servers, and whether all servers could be reached.

    Raises `ConfigurationError`.
    """
    with warnings_told(screen):
        mcp = mcp_tools(files, registry)
        if mcp is None:
            return list(registry), True

        async def look() -> tuple[list[Tool[..., Any]], bool]:
            async with mcp:
                return list(registry), all(each.connected for each in mcp.status())

        return anyio.run(look)


@contextlib.contextmanager
def warnings_told(screen: Screen) -> Generator[None]:
    """Inside, lines on stderr say which servers are away, which tools are left out, and which have changed."""
    logger = logging.getLogger("toolbus.mcp")
    handler = _Teller(screen)
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


class _Teller(logging.Handler):
    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        self._screen.tell(f"toolbus: {one_line(clean(record.getMessage()))}")
