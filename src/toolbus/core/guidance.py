"""The advice on tool use that a model is given after the application's own instructions. Pure text."""

from __future__ import annotations

from collections.abc import Mapping

from ..protocols import ToolSpec

__all__ = ["guidance_text"]

_RULES = """\
- Call tools one after another where one needs another's result, and together where none does.
- When a call fails, read the error, then try other arguments or another tool; do not repeat a call unchanged.
- When you know enough to answer, stop calling tools and answer.
- When it cannot be done, say so, and why."""


def guidance_text(tools: Mapping[str, ToolSpec], rounds: int) -> str:
    """Return a paragraph that lists `tools` with the first line of each description, and the rules for stopping.

    `rounds` is the number of replies with tool calls that are allowed. The text is empty where there are no tools.

    Example:
        from toolbus import Tool
        from toolbus.core.guidance import guidance_text

        def get_order(number: int) -> str:
            "Get an order."
            return "shipped"

        specs = {"get_order": Tool(handler=get_order).spec}
        print("Get an order." in guidance_text(specs, rounds=10))  # True
    """
    if not tools:
        return ""
    lines = [f"- {spec.name}: {_first_line(spec.description)}".rstrip(": ") for spec in tools.values()]
    listed = "\n".join(lines)
    return f"You can use these tools, in at most {rounds} rounds:\n{listed}\n{_RULES}"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
