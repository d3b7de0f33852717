"""What a model is told about tool use."""

from __future__ import annotations

from toolbus.core.guidance import guidance_text
from toolbus.protocols import ToolSpec

TOOLS = {
    "look": ToolSpec(name="look", description="Look a word up.\n\nIn the big book."),
    "tell": ToolSpec(name="tell"),
}


def test_each_tool_is_listed_with_the_first_line_of_its_description_in_order() -> None:
    lines = guidance_text(TOOLS, 5).splitlines()
    assert lines[0] == "You can use these tools, in at most 5 rounds:"
    assert lines[1:3] == ["- look: Look a word up.", "- tell"]


def test_the_rules_say_when_to_stop() -> None:
    text = guidance_text(TOOLS, 5)
    assert "stop calling tools and answer" in text
    assert text.splitlines()[-1] == "- When it cannot be done, say so, and why."


def test_where_there_are_no_tools_nothing_is_said() -> None:
    assert guidance_text({}, 5) == ""
