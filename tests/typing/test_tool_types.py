"""What a type checker knows of tools. pyright checks this file; the tests only keep it importable.

`assert_type` says what must be inferred. A line that must be an error carries `# pyright: ignore[rule]`, and this file
makes an ignore that ignores nothing an error, so both directions are checked.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=error
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_type

from toolbus.tools import Tool, ToolContext, tool

if TYPE_CHECKING:
    from toolbus.outcome import RequestResult


@dataclass
class Deps:
    user: str


@tool
async def weather(city: str, *, days: int = 1) -> dict[str, int]:
    """Weather."""
    return {city: days}


@tool(timeout_seconds=5)
def shout(word: str) -> str:
    """Shout."""
    return word.upper()


async def greet(context: ToolContext[Deps]) -> str:
    """Greet the user."""
    assert_type(context.deps, Deps)
    return context.deps.user


def misuse(context: ToolContext[Deps]) -> None:
    """Never called: what a type checker must refuse."""
    print(context.deps.age)  # noqa: T201  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    shout(3)  # pyright: ignore[reportArgumentType]
    shout(words="hi")  # pyright: ignore[reportCallIssue]


def look_at(result: RequestResult[Deps]) -> None:
    """Never called: what a type checker must know of a result."""
    assert_type(result.output, Deps)
    assert_type(result.tool_calls[0].data, Any)


async def test_a_tool_is_called_like_its_function():
    assert assert_type(await weather("Paris", days=2), dict[str, int]) == {"Paris": 2}
    assert assert_type(shout("hi"), str) == "HI"


async def test_a_context_knows_the_type_of_its_dependencies():
    context = ToolContext(deps=Deps("Ada"))
    assert_type(context, ToolContext[Deps])
    assert await greet(context) == "Ada"


def test_a_tool_from_a_handler_keeps_its_parameters():
    def double(number: int) -> float:
        """Double."""
        return 2 * number

    made = Tool(handler=double)
    assert assert_type(made(number=2), float) == 4
