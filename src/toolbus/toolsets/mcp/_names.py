"""What tools are called: `server__tool`, in 1 to 64 of the characters that model providers take.

A server's part never has two underscores in a row and never ends in one, so the first two underscores of a name end
it: no tool of one server can have the name of another's. What does not fit is shortened, and a digest of the whole
keeps it apart. Pure; the same names give the same names, whatever else there is.
"""

from __future__ import annotations

import hashlib
import re

__all__ = ["prefix_of", "tool_name"]

_MOST = 64  # of a tool's name, for OpenAI and Anthropic alike
_MOST_PREFIX = 28
_PREFIX = re.compile(r"[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_ODD = re.compile(r"[^A-Za-z0-9_-]+")


def prefix_of(server: str) -> str:
    """A server's part of its tools' names; the server's own name, where that can be one."""
    if len(server) <= _MOST_PREFIX and _PREFIX.fullmatch(server):
        return server
    kept = re.sub(r"_+", "_", _ODD.sub("_", server)).strip("_")[: _MOST_PREFIX - 9].rstrip("_")
    return f"{kept}-{_digest(server)}" if kept else f"mcp-{_digest(server)}"


def tool_name(prefix: str, tool: str) -> str:
    """The name that models call, of a tool with the name that its server has for it."""
    room = _MOST - len(prefix) - 2
    if len(tool) <= room and _NAME.fullmatch(tool):
        return f"{prefix}__{tool}"
    return f"{prefix}__{_ODD.sub('_', tool)[: room - 9]}-{_digest(tool)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]
