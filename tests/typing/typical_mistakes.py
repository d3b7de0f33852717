"""Typical mistakes of an application's author, each with the error that pyright and mypy, both strict, have to report.

pyright makes a `# pyright: ignore[rule]` that ignores nothing an error, and `test_type_checkers.py` compares what mypy
reports with the codes in the comments. So a mistake that is not reported any more is found. Nothing here is ever called.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=error, reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

import toolbus
from toolbus import Limits, RequestSession, Runtime, ToolContext, providers, stores, testing, tool, web
from toolbus.events import ApprovalRequested, RequestCompleted, TextDelta


class Database: ...


class Cache: ...


def show(value: object) -> None: ...


@tool
async def count(table: str, context: ToolContext[Database]) -> int:
    """Count the rows of a table."""
    return len(table) + len(repr(context.deps))


def wrong_names() -> None:
    show(toolbus.Runtimes)  # mypy says attr-defined  # pyright: ignore[reportAttributeAccessIssue]
    show(providers.OpenAiProvider)  # mypy says attr-defined  # pyright: ignore[reportAttributeAccessIssue]
    show(stores.SQLiteStore)  # mypy says attr-defined  # pyright: ignore[reportAttributeAccessIssue]
    show(testing.call)  # mypy says attr-defined  # pyright: ignore[reportAttributeAccessIssue]
    show(web.EventResponse)  # mypy says attr-defined  # pyright: ignore[reportAttributeAccessIssue]


def on_approval(question: ApprovalRequested) -> bool:
    return question.name == "count"


async def wants_database(runtime: Runtime[Database]) -> None:
    await runtime.run("Hello.")


async def wrong_deps(runtime: Runtime[Database]) -> None:
    await runtime.run("Hello.", deps=Cache())  # mypy says call-overload  # pyright: ignore[reportArgumentType]
    await runtime.run("Hello.", output=int, deps=Cache())  # mypy says call-overload  # pyright: ignore[reportArgumentType]
    runtime.start("Hello.", deps="main")  # mypy says call-overload  # pyright: ignore[reportArgumentType]
    runtime.run_sync("Hello.", deps=Cache())  # mypy says call-overload  # pyright: ignore[reportArgumentType]
    declared: Runtime[Database] = Runtime("openai:gpt-5-mini", deps=Cache())  # mypy says arg-type  # pyright: ignore[reportAssignmentType]
    await wants_database(declared)
    await wants_database(Runtime("openai:gpt-5-mini", deps=Cache()))  # mypy says arg-type  # pyright: ignore[reportArgumentType]
    Runtime[Database]("openai:gpt-5-mini", deps=Cache())  # mypy says arg-type  # pyright: ignore[reportArgumentType]
    cached = Runtime("openai:gpt-5-mini", deps=Cache())
    await wants_database(cached)  # mypy says arg-type  # pyright: ignore[reportArgumentType]


async def wrong_options(runtime: Runtime) -> None:
    Runtime("openai:gpt-5-mini", model="gpt-5-mini")  # mypy says call-arg  # pyright: ignore[reportCallIssue]
    Runtime("openai:gpt-5-mini", limits={"max_rounds": 3})  # mypy says arg-type  # pyright: ignore[reportArgumentType]
    Runtime("openai:gpt-5-mini", limits=Limits(max_round=3))  # mypy says call-arg  # pyright: ignore[reportCallIssue]
    Runtime("openai:gpt-5-mini", approval=True)  # mypy says call-arg  # pyright: ignore[reportCallIssue]
    Runtime("openai:gpt-5-mini", needs_approval="always")  # mypy says arg-type  # pyright: ignore[reportArgumentType]
    Runtime("openai:gpt-5-mini", on_approval=on_approval)  # mypy says arg-type  # pyright: ignore[reportArgumentType]
    Runtime("openai:gpt-5-mini", on_approval="ask")  # mypy says arg-type  # pyright: ignore[reportArgumentType]
    await runtime.run("Hello.", late_results="never")  # mypy says call-overload  # pyright: ignore[reportArgumentType]
    await runtime.run("Hello.", raise_on_failure=True)  # mypy says call-overload  # pyright: ignore[reportCallIssue]
    with runtime:  # mypy says attr-defined  # pyright: ignore[reportGeneralTypeIssues]
        pass


async def wrong_tools(context: ToolContext[Database]) -> None:
    show(context.deps.size)  # mypy says attr-defined  # pyright: ignore[reportAttributeAccessIssue]
    tool(needs_approval="always")  # mypy says call-overload  # pyright: ignore[reportArgumentType]
    tool(timeout="5")  # mypy says call-overload  # pyright: ignore[reportCallIssue]
    await count(3, context)  # mypy says arg-type  # pyright: ignore[reportArgumentType]


async def wrong_results(runtime: Runtime, session: RequestSession) -> None:
    result = await runtime.run("How many?", output=int)
    await runtime.run("How many?", output=3)  # mypy says call-overload  # pyright: ignore[reportArgumentType]
    answer: str = result.output  # mypy says assignment  # pyright: ignore[reportAssignmentType]
    show(answer)
    show(result.output.text)  # mypy says attr-defined  # pyright: ignore[reportAttributeAccessIssue]
    session.events("text_delta")  # mypy says call-overload  # pyright: ignore[reportArgumentType]
    async for event in session.events(TextDelta, RequestCompleted):
        show(event.round)  # mypy says union-attr  # pyright: ignore[reportAttributeAccessIssue]
    show(runtime.run_sync("Hello.").txt)  # mypy says attr-defined  # pyright: ignore[reportAttributeAccessIssue]
    runtime.pending_approvals()[0].decided()  # mypy says call-arg  # pyright: ignore[reportCallIssue]
