"""A typical application, as its author writes it. Nothing in it may be an error in pyright and mypy, both strict.

`assert_type` says what both must infer. `test_type_checkers.py` runs mypy over this file; pyright looks at all files.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, assert_type

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware import Middleware

from toolbus import (
    Interceptor,
    Limits,
    RequestResult,
    RequestSession,
    Runtime,
    SqliteStore,
    ToolContext,
    ToolError,
    ToolRegistry,
    sub_request_tool,
    tool,
)
from toolbus.bus import Subscription
from toolbus.errors import ProviderError, ToolbusError
from toolbus.events import (
    ApprovalDecided,
    ApprovalRequested,
    Event,
    ModelRetrying,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    StatusChanged,
    TextDelta,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import Message
from toolbus.protocols import ModelReply, ModelRequest, ToolSpec
from toolbus.tools import ToolLike
from toolbus.web import RuntimeMiddleware, create_app

log = logging.getLogger(__name__)


@dataclass
class Database:
    name: str

    async def count(self, table: str) -> int:
        return len(table)


class Forecast(BaseModel):
    city: str
    celsius: int


class Unknown(BaseModel):
    reason: str


# ------------------------------------------------------------------------------------------------------- tools


@tool
async def count(table: str, context: ToolContext[Database]) -> int:
    """Count the rows of a table."""
    assert_type(context.deps, Database)
    return await context.deps.count(table)


def is_large(arguments: Mapping[str, Any]) -> bool:
    return bool(arguments["rows"] > 100)


@tool(needs_approval=is_large, timeout_seconds=5)
def delete(table: str, rows: int) -> str:
    """Delete rows."""
    return f"{rows} rows of {table} are gone"


def plain(city: str) -> dict[str, str]:
    """Say how the sky is."""
    return {city: "clear"}


@tool
async def foresee(city: str, context: ToolContext[Any]) -> int:
    """Ask another model for a forecast."""
    assert_type(await context.ask("How is the sky?"), RequestResult[None])
    result = await context.ask(f"How is the sky in {city}?", output=Forecast)
    assert_type(result, RequestResult[Forecast | None])
    if result.output is None:
        raise ToolError(result.explanation)
    return result.output.celsius


own_tools: list[ToolLike] = [count, delete, plain, foresee]  # mypy takes the elements of such a list for objects
strict = Limits(max_rounds=3, stop_on={"timeout", "interrupted"})
research = sub_request_tool("research", "Looks things up.", tools=[plain], limits=strict)

# ----------------------------------------------------------------------------------------------------- runtimes


async def decide(question: ApprovalRequested) -> bool:
    return question.name != "delete"


async def explain(question: ApprovalRequested) -> ApprovalDecided:
    return question.decided(approved=False, reason="not at night")


def outside(spec: ToolSpec, arguments: Mapping[str, Any]) -> bool:
    return spec.needs_approval is not False and "sandbox" not in str(arguments)


def instructions(context: ToolContext[Database]) -> str:
    return f"You know the database {context.deps.name}."


class Watch(Interceptor):
    async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Any) -> ModelReply:
        reply: ModelReply = await ask(request)
        return reply


def without_deps() -> None:
    tools: list[ToolLike] = [*own_tools, research]
    runtime = Runtime("openai:gpt-5-mini", tools=tools, needs_approval=outside, on_approval=decide)
    result = runtime.run_sync("How is the sky?")
    assert_type(result, RequestResult[None])
    assert_type(runtime.run_sync("How is the sky?", output=Forecast).output, Forecast)
    assert_type(runtime.run_sync("How is the sky?", output=Forecast | Unknown).output, Forecast | Unknown)
    assert_type(runtime.run_sync("Is it clear?", output=Literal["yes", "no"]).output, Literal["yes", "no"])
    assert_type(runtime.run_sync("Where is it clear?", output=list[str]).output, list[str])


def with_deps() -> None:
    runtime = Runtime("openai:gpt-5-mini", tools=[count], deps=Database("main"), on_approval="wait")
    assert_type(runtime, Runtime[Database])
    declared: Runtime[Database] = Runtime("openai:gpt-5-mini", instructions=instructions)
    other = Runtime[Database](store=SqliteStore("toolbus.db"), interceptors=[Watch()])
    for each in (runtime, declared, other):
        each.run_sync("How many?", deps=Database("of this user"), metadata={"user": "Ada"})


@asynccontextmanager
async def opened(registry: ToolRegistry) -> AsyncGenerator[Runtime[Database]]:
    async with Runtime("openai:gpt-5-mini", tools=registry, deps=Database("main"), limits=Limits()) as runtime:
        assert_type(runtime, Runtime[Database])
        yield runtime


# ----------------------------------------------------------------------------------------------------- requests


async def ask(runtime: Runtime[Database], history: list[Message]) -> Forecast | None:
    try:
        result = await runtime.run("How many?", deps=Database("other"), on_approval=explain, output=Forecast)
    except ProviderError as problem:
        log.warning("the provider answered %s", problem.status)
        return None
    except ToolbusError as problem:
        log.warning("%s: %s", problem.code, problem.result)
        return None
    assert_type(result, RequestResult[Forecast])
    assert_type(await runtime.run("Again.", history=history), RequestResult[None])
    assert_type((await runtime.run("Again.", output=Forecast | None, deps=Database("other"))).output, Forecast | None)
    return result.output


async def follow(runtime: Runtime) -> str:
    session = runtime.start("Tell me more.", conversation_id="ada")
    assert_type(session, RequestSession[None])
    typed = runtime.start("And how is the sky?", output=Forecast | Unknown)
    assert_type((await typed.result()).output, Forecast | Unknown | None)
    async for piece in session.text():
        assert_type(piece, str)
    async for event in session.events(TextDelta, ApprovalRequested):
        assert_type(event, TextDelta | ApprovalRequested)
        if isinstance(event, ApprovalRequested):
            runtime.bus.publish(event.decided(approved=True))
    for question in (*session.pending_approvals, *runtime.pending_approvals()):
        assert_type(question, ApprovalRequested)
    return (await session.result()).text


async def listen(session: RequestSession, shown: tuple[type[Event], ...]) -> None:
    assert_type(session.events(), Subscription[Event])
    assert_type(session.events(TextDelta, after="now"), Subscription[TextDelta])
    three = session.events(TextDelta, StatusChanged, RequestCompleted, capacity=10, sub_requests=True)
    assert_type(three, Subscription[TextDelta | StatusChanged | RequestCompleted])
    four = session.events(TextDelta, StatusChanged, RequestCompleted, ApprovalRequested)
    assert_type(four, Subscription[TextDelta | StatusChanged | RequestCompleted | ApprovalRequested])
    assert_type(session.events(*shown), Subscription[Event])


async def watch(runtime: Runtime, request_id: str) -> None:
    handle = runtime.request(request_id)
    async for question in handle.events(ApprovalRequested):
        assert_type(question, ApprovalRequested)
    async for event in handle.events(TextDelta, ModelRetrying, after="now"):
        assert_type(event, TextDelta | ModelRetrying)
    async for anything in handle.events():
        assert_type(anything, Event)
    async with runtime.bus.subscribe(ToolCallRequested, where=lambda event: event.name == "count") as calls:
        async for call in calls:
            runtime.bus.publish(call.completed("3"))
    async with runtime.bus.subscribe(
        ToolCallCompleted, ToolCallFailed, where=lambda event: event.name == "count"
    ) as ends:
        async for end in ends:
            assert_type(end, ToolCallCompleted | ToolCallFailed)


def settled(event: ToolCallCompleted | ToolCallFailed) -> None:
    log.info(event.name)


def ended(event: RequestCompleted | RequestFailed | RequestCancelled) -> None:
    log.info("%s", event.cost)


def say(event: TextDelta) -> None:
    log.info(event.text)


async def route(runtime: Runtime[Database]) -> None:
    disconnect = runtime.bus.connect(TextDelta, say)
    runtime.bus.connect((ToolCallCompleted, ToolCallFailed), settled)
    runtime.bus.connect((RequestCompleted, RequestFailed, RequestCancelled), ended)
    await follow(runtime)
    disconnect()


def for_user(request: Any, user: str) -> dict[str, Any]:
    return {"deps": Database(user), "metadata": {"user": user}}


class TheirScope(TypedDict):
    path: str


async def application_of_another_framework(scope: TheirScope, receive: object, send: object) -> None:
    log.info(scope["path"])


def serve(runtime: Runtime[Database]) -> None:
    create_app(runtime, authorize=lambda request: request.headers.get("x-user"), options=for_user)
    RuntimeMiddleware(application_of_another_framework, runtime=runtime)
    Starlette(middleware=[Middleware(RuntimeMiddleware, runtime=runtime)])
