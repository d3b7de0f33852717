"""What a type checker knows of tools. pyright checks this file; the tests only keep it importable.

`assert_type` says what must be inferred. A line that must be an error carries `# pyright: ignore[rule]`, and this file
makes an ignore that ignores nothing an error, so both directions are checked.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=error
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_type

from toolbus.tools import Tool, ToolContext, ToolRegistry, tool

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from toolbus.messages import Message
    from toolbus.request_result import CallRecord, RequestOutcome, RequestResult
    from toolbus.testing.contracts.tool import MakeToolset


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


def look_at(result: RequestResult[Deps], listed: RequestResult[list[int]], plain: RequestResult[None]) -> None:
    """Never called: what a type checker must know of a result."""
    assert_type(result.output, Deps)
    assert_type(result.output.user, str)
    assert_type(listed.output[0], int)
    assert_type(plain.output, None)
    assert_type(result.tool_calls, list[CallRecord])
    assert_type(result.tool_calls[0].data, Any)
    assert_type(result.outcome, RequestOutcome)
    result.output.age  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # noqa: B018
    other: RequestResult[int] = result  # pyright: ignore[reportAssignmentType]
    print(other)  # noqa: T201


def take(context: ToolContext[Deps]) -> None:
    """Never called: contexts of different dependencies are different types."""


def mix_up(numbers: ToolContext[int]) -> None:
    """Never called."""
    assert_type(numbers.deps, int)
    assert_type(numbers.messages, Sequence[Message])
    assert_type(numbers.last_user_message, str)
    take(numbers)  # pyright: ignore[reportArgumentType]


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


class Library:
    def find(self, title: str, shelf: int = 0) -> list[str]:
        """Find a book."""
        return [title] * shelf


def test_a_tool_from_a_bound_method_keeps_its_parameters_without_self():
    find = Tool(handler=Library().find)
    assert assert_type(find("Emma", shelf=1), list[str]) == ["Emma"]
    if TYPE_CHECKING:
        find(1)  # pyright: ignore[reportArgumentType]


async def test_a_tool_that_is_called_async_gives_an_awaitable():
    if TYPE_CHECKING:
        weather(3)  # pyright: ignore[reportArgumentType, reportUnusedCoroutine]
        assert_type(await weather("Paris"), list[int])  # pyright: ignore[reportAssertTypeFailure]
    assert (await weather("Rome"))["Rome"] == 1


def test_a_registry_takes_functions_and_tools_of_any_signature():
    registry = ToolRegistry([weather, shout, Library().find])
    assert_type(registry.get("weather"), Tool | None)
    assert [each.name for each in registry] == ["weather", "shout", "find"]


class Shop:
    """A toolset whose block has the signature of every other context manager."""

    registry = ToolRegistry()

    async def __aenter__(self) -> Shop:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def test_a_toolset_may_leave_its_block_as_any_context_manager_does() -> None:
    make: MakeToolset = Shop
    assert make().registry is Shop.registry
