"""The assistant: one runtime with its tools and limits, one question asked of it, and how the end is told.

This is all that a status line needs of an application. The sentences are toolbus's own, those on running calls a quick
model's; the limits are toolbus's, and so is what the transcript looks like after any of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from toolbus import Limits, RequestResult, Runtime
from toolbus.events import ModelRetrying, StatusChanged, TextDelta
from toolbus.protocols import Provider
from toolbus.toolsets.control import give_up

from .endings import note_of, status_of
from .screen import Screen
from .tools import TOOLS, Backend

__all__ = ["LIMITS", "ask", "make_runtime"]

LIMITS = Limits(max_rounds=10, max_consecutive_errors=3, timeout_seconds=120, stop_on=frozenset({"unknown_tool"}))

INSTRUCTIONS = """\
You are a helpful assistant. Answer briefly, and only from what your tools have told you or what everybody knows."""


def make_runtime(
    provider: Provider | str,
    quick: Provider | str,
    *,
    backend: Backend | None = None,
    timeout_seconds: float = LIMITS.timeout_seconds,
) -> Runtime:
    """The runtime: `provider` answers, `quick` words the status line while tools run. Raises `ConfigurationError`."""
    return Runtime(
        provider,
        tools=[*TOOLS, give_up],  # with `give_up` a model can say that it cannot be done, and why
        narrator=quick,  # in at most 10 words and 2 seconds, which are its defaults
        instructions=INSTRUCTIONS,
        guidance=True,  # lists the tools, and says when to try another one and when to stop
        note_failures=True,  # small models overlook errors among results
        limits=replace(LIMITS, timeout_seconds=timeout_seconds),
        deps=backend or Backend(),
    )


async def ask(runtime: Runtime, question: str, screen: Screen, **options: Any) -> RequestResult[Any]:
    """Ask, and show on `screen` what is being done, the answer as it comes, and how it ended."""
    async with runtime:
        session = runtime.start(question, **options)
        said: dict[int, str] = {}  # by round
        with screen.turn():
            async for event in session.events(StatusChanged, TextDelta, ModelRetrying):
                match event:
                    case StatusChanged(stage="submitted" | "streaming" | "executing" | "waiting" | "processing"):
                        screen.status(event.text)
                    case TextDelta():
                        said[event.round] = said.get(event.round, "") + event.text
                        screen.say(event.text, event.round)
                    case ModelRetrying():
                        said.pop(event.round, "")  # what came of this reply is void: it begins anew
                        screen.take_back(event.round)
                    case _:
                        pass  # the end, which the result tells better
            result = await session.result()
            if result.text and result.text not in said.values():  # it came whole: of an interceptor, or a tool
                screen.say(result.text, result.rounds)
            screen.end(note_of(result), status_of(result))
    return result
