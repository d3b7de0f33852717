"""The reading of a server's list of tools, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._repair import MAX_TOOLS, Repair
from ._server_errors import is_unknown_method

if TYPE_CHECKING:
    import mcp
    from mcp import types

_MAX_PAGES = 100


def is_older(client: mcp.Client) -> bool:
    """Return whether the protocol is from before 2026, with sessions, pings and unsolicited messages."""
    return client.protocol_version < "2026"


async def all_tools(client: mcp.Client, repair: Repair) -> list[types.Tool]:
    """Return the tools of all pages of the list. Raises `ValueError` for too many tools or pages."""
    import mcp  # noqa: PLC0415 -- an extra

    if client.server_capabilities.tools is None and is_older(client):
        return []
    found: list[types.Tool] = []
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(_MAX_PAGES):
        try:
            page = await client.list_tools(cursor=cursor)
        except mcp.MCPError as exc:
            if is_unknown_method(exc) and client.server_capabilities.tools is None:
                return []
            raise
        found += repair.tools_of(page)
        if len(found) > MAX_TOOLS:
            break
        cursor = page.next_cursor
        # Some servers send an empty text if there is no next page, or the last page again and again.
        if not cursor or cursor in seen:
            return found
        seen.add(cursor)
    raise ValueError(f"it lists more than {MAX_TOOLS} tools, or on more than {_MAX_PAGES} pages")
