"""The assistant: a runtime with its tools and limits, and questions to it. Only this module configures toolbus."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from toolbus import Limits, RequestResult, Runtime
from toolbus.protocols import Provider
from toolbus.records import replace

from . import screen
from .graph import Graph
from .tools import TOOLS, ResultForm

__all__ = ["ask", "make_runtime"]

INSTRUCTIONS = """\
You are an assistant for a graph of nodes and edges. Answer from what the tools return, and from nothing else: look up
what you do not know, then tell the user what was found, with names and values, not that something was found. When a
search finds nothing, say which values there are."""


def make_runtime(
    provider: Provider | str,
    graph: Graph,
    *,
    max_rounds: int = 5,
    max_result_chars: int = 4_000,
    include_data: bool = True,
) -> Runtime:
    """The runtime of an assistant for `graph`. Raises `ConfigurationError` for an invalid provider or limit."""
    return Runtime(
        provider,
        tools=TOOLS,
        deps=graph,
        instructions=INSTRUCTIONS,
        interceptors=[ResultForm()],
        limits=replace(Limits.brief(), max_rounds=max_rounds),
        max_result_chars=max_result_chars,
        include_data=include_data,
    )


async def ask(
    runtime: Runtime,
    questions: Iterable[str],
    show: Callable[[str], object] = print,
    conversation_id: str | None = None,
) -> list[RequestResult[None]]:
    """Ask one question after the other, and show the answers. Without an id, each question begins a conversation."""
    results: list[RequestResult[None]] = []
    async with runtime:
        for question in questions:
            session = runtime.start(question, conversation_id=conversation_id)
            async for event in session.events(*screen.SHOWN):
                show(screen.line(event))
            results.append(await session.result())
            show(screen.ending(results[-1]))
    return results
