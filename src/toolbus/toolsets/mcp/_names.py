"""The names of tools: `server__tool`, in 1 to 64 of the characters that model providers accept.

The server's part never has two underscores in a row and never ends with one, so it ends before the first two
underscores of a name, and tools of different servers never have the same name. A part that does not fit is shortened,
and gets a digest of the whole that keeps it unique. Pure: a name depends only on those of the server and the tool.
"""

from __future__ import annotations

import hashlib
import re

__all__ = ["prefix_of", "tool_name"]

_MOST = 64  # characters of a tool's name, the limit of both OpenAI and Anthropic
_MOST_PREFIX = 28
_PREFIX = re.compile(r"[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_ODD = re.compile(r"[^A-Za-z0-9_-]+")


def prefix_of(server: str) -> str:
    """Return the server's part of its tools' names: the server's own name if it fits, else a shortened one."""
    if len(server) <= _MOST_PREFIX and _PREFIX.fullmatch(server):
        return server
    kept = re.sub(r"_+", "_", _ODD.sub("_", server)).strip("_")[: _MOST_PREFIX - 9].rstrip("_")
    return f"{kept}-{_digest(server)}" if kept else f"mcp-{_digest(server)}"


def tool_name(prefix: str, tool: str) -> str:
    """Return the name by which models call a tool, from the name that its server lists."""
    left = _MOST - len(prefix) - 2
    if len(tool) <= left and _NAME.fullmatch(tool):
        return f"{prefix}__{tool}"
    return f"{prefix}__{_ODD.sub('_', tool)[: left - 9]}-{_digest(tool)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]
