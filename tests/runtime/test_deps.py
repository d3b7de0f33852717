"""The application's object for its tools: a request without it is refused before it starts if a tool needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import pytest

from toolbus import EventBus, RequestSession, Runtime, Tool, ToolContext, ToolRegistry, sub_request_tool, tool
from toolbus.errors import ConfigurationError
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()

T = TypeVar("T")


@dataclass
class Database:
    name: str


@tool
async def which(context: ToolContext[Database]) -> str:
    """Name the database."""
    return context.deps.name


def model() -> ScriptedProvider:
    return ScriptedProvider(lambda request: text("done") if request.round else calls(("which", {})))


REFUSED = (
    r"tool 'which' takes a ToolContext\[Database\], and there are no deps; pass deps= to the runtime or to the request"
)


async def test_a_tool_that_needs_deps_is_refused_where_there_are_none_before_anything_is_asked() -> None:
    provider = model()
    async with Runtime(provider, tools=[which]) as runtime:
        for begin in (runtime.start, runtime.run):
            with pytest.raises(ConfigurationError, match=REFUSED):
                await begin("Which?")  # type: ignore[misc]
        assert runtime.bus.statistics().mailboxes == 0
    assert provider.requests == []
    with pytest.raises(ConfigurationError, match=REFUSED):
        RequestSession(EventBus(), provider, "Which?", tools=[which])


async def test_deps_come_from_the_runtime_or_from_the_request() -> None:
    async with Runtime(model(), tools=[which], deps=Database("main")) as runtime:
        result = await runtime.run("Which?")
        other = await runtime.run("Which?", deps=Database("other"))
    async with Runtime[Database](model(), tools=[which]) as runtime:
        only = await runtime.run("Which?", deps=Database("only"))
    assert [each.tool_calls[0].content for each in (result, other, only)] == ["main", "other", "only"]


def asks(annotation: Any) -> Callable[..., Any]:
    """Return a handler whose context has this annotation."""

    def handler(context: Any) -> str:
        return str(context.deps)

    handler.__annotations__["context"] = annotation
    return handler


@pytest.mark.parametrize(
    "annotation",
    [
        ToolContext,
        ToolContext[Any],
        ToolContext[None],
        ToolContext[object],
        ToolContext[Database | None],
        ToolContext[T],  # type: ignore[valid-type]
    ],
    ids=str,
)
def test_a_tool_that_takes_any_deps_or_none_needs_none(annotation: Any) -> None:
    assert Tool("which", "", handler=asks(annotation)).needs_deps == ""


@pytest.mark.parametrize(
    ("annotation", "needs"),
    [
        (ToolContext[Database], "Database"),
        (ToolContext[Database] | None, "Database"),
        (Annotated[ToolContext[Database], "ours"], "Database"),
        (ToolContext[dict[str, int]], "dict"),
        (ToolContext[Database | int], "Database | int"),
    ],
    ids=str,
)
def test_a_tool_names_the_type_of_deps_that_it_needs(annotation: Any, needs: str) -> None:
    assert Tool("which", "", handler=asks(annotation)).needs_deps.endswith(needs)


async def test_a_tool_that_is_removed_or_replaced_needs_nothing_any_more() -> None:
    registry = ToolRegistry([which])
    assert registry.needs_deps == {"which": "Database"}
    registry.replace(tool(name="which")(asks(ToolContext[Any])))
    assert registry.needs_deps == {}
    registry.replace(which)
    registry.remove("which")
    assert registry.needs_deps == {}


async def test_a_sub_request_has_the_deps_of_the_request_above() -> None:
    desk = sub_request_tool("desk", "Does what it is told.", provider=model(), tools=[which])
    top = ScriptedProvider(lambda request: text("done") if request.round else calls(("desk", {"task": "go"})))
    async with Runtime(top, tools=[desk], deps=Database("main")) as runtime:
        assert (await runtime.run("Which?")).tool_calls[0].ok
        assert not (await runtime.run("Which?", deps=None, tools=[which, desk])).tool_calls[0].error


async def test_a_request_that_cannot_be_resumed_without_deps_is_a_problem_that_says_so() -> None:
    @tool(needs_approval=True)
    async def name_it(context: ToolContext[Database]) -> str:
        """Name the database."""
        return context.deps.name

    provider = ScriptedProvider(lambda request: text("done") if request.round else calls(("name_it", {})))
    store = MemoryStore(journal=True)
    async with Runtime(provider, tools=[name_it], deps=Database("main"), store=store) as runtime:
        runtime.start("Which?")
        await settle()
    async with Runtime[Database](provider, tools=[name_it], store=store) as again:
        resumption = await again.resume()
        assert list(resumption) == []
        assert "there are no deps" in str(next(iter(resumption.problems)))
        (session,) = (await again.resume(options=lambda _request: {"deps": Database("back")})).sessions
        again.bus.publish((await _asked(session)).decided(approved=True))
        result = await session.result()
    assert result.tool_calls[0].content == "back"


async def _asked(session: RequestSession) -> Any:
    await settle()
    (question,) = session.pending_approvals
    return question


async def test_a_request_can_be_read_and_answered_where_there_are_no_deps() -> None:
    store = MemoryStore(journal=True)
    here, there = [
        Runtime[Database](model(), tools=[which], store=store, needs_approval=True, on_approval="wait")
        for _ in range(2)
    ]
    async with here, there:
        session = here.start("Which?", deps=Database("main"))
        await session.accepted()
        await settle()
        handle = there.request(session.request_id)
        (question,) = await handle.pending_approvals()
        assert await handle.approve(question) == "done"
        assert (await handle.result()).tool_calls[0].content == "main"
        assert [each.type async for each in handle.events()][-1] == "request_completed"
