"""The tool that a request forces the model to call, independent of any vendor."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ConfigurationError
from ...protocols import ToolSpec

__all__ = ["forced_tool"]

_WORDS = frozenset({None, "auto", "none", "required"})


def forced_tool(tools: Sequence[ToolSpec], choice: str | None) -> ToolSpec | None:
    """Return the tool that `tool_choice` names, or None if it does not name one.

    Raises `ConfigurationError` for a tool that is not offered.
    """
    if choice in _WORDS:
        return None
    for tool in tools:
        if tool.name == choice:
            return tool
    names = ", ".join(tool.name for tool in tools)
    raise ConfigurationError(
        f"tool_choice={choice!r} names no tool that is offered ({names}), and is not one of auto, none, required"
    )
