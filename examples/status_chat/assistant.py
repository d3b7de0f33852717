"""The assistant: one runtime with its tools and limits, and a loop that shows one question and its ending.

This is all that an application needs for a status line. toolbus writes the sentences, and a quick model those about
running calls; toolbus also applies the limits, and leaves a valid transcript after any of them.
"""

from __future__ import annotations

from typing import Any

from toolbus import Limits, RequestResult, Runtime
from toolbus.events import ModelRetrying, StatusChanged, TextDelta
from toolbus.protocols import Provider
from toolbus.records import replace
from toolbus.toolsets.control import give_up

from .endings import note_of, status_of
from .screen import Screen
from .tools import TOOLS, Backend

__all__ = ["LIMITS", "ask", "make_runtime"]

LIMITS = Limits(stop_on=frozenset({"unknown_tool"}))

INSTRUCTIONS = """\
You are a helpful assistant. Answer briefly, and only from the results of your tools or from common knowledge."""


def make_runtime(
    provider: Provider | str,
    quick: Provider | str,
    *,
    backend: Backend | None = None,
    timeout_seconds: float = LIMITS.timeout_seconds,
) -> Runtime:
    """The runtime: `provider` answers, `quick` writes the status line while tools run. Raises `ConfigurationError`."""
    return Runtime(
        provider,
        tools=[*TOOLS, give_up],  # with `give_up`, a model can say that a task is impossible, and why
        narrator=quick,  # the defaults allow it 10 words and 2 seconds
        instructions=INSTRUCTIONS,
        guidance=True,  # tells the model which tools exist, when to try another one, and when to stop
        note_failures=True,  # small models overlook errors among results
        limits=replace(LIMITS, timeout_seconds=timeout_seconds),
        deps=backend or Backend(),
    )


async def ask(runtime: Runtime, question: str, screen: Screen, **options: Any) -> RequestResult[Any]:
    """Ask, and show the progress, the answer as it arrives, and the ending on `screen`."""
    async with runtime:
        session = runtime.start(question, **options)
        said: dict[int, str] = {}  # the texts by round
        with screen.turn():
            async for event in session.events(StatusChanged, TextDelta, ModelRetrying):
                match event:
                    case StatusChanged(stage="submitted" | "streaming" | "executing" | "waiting" | "processing"):
                        screen.status(event.text)
                    case TextDelta():
                        said[event.round] = said.get(event.round, "") + event.text
                        screen.say(event.text, event.round)
                    case ModelRetrying():
                        said.pop(event.round, "")  # the pieces of this reply are void: it begins again
                        screen.take_back(event.round)
                    case _:
                        pass  # the result describes the ending better
            result = await session.result()
            if result.text and result.text not in said.values():  # it came whole, from an interceptor or a tool
                screen.say(result.text, result.rounds)
            screen.end(note_of(result), status_of(result))
    return result
