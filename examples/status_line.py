"""A status line that shows what a request is doing, only from events on the bus.

The line subscribes to the bus. It knows neither the provider nor the tools, and they know nothing of it. Nothing waits
for it: if it is too slow, the bus drops signals for it, and publishes an event that says so.

python examples/status_line.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import anyio

from toolbus import Runtime, ToolContext, tool
from toolbus.bus import Subscription
from toolbus.events import (
    Event,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RoundStarted,
    SubscriberLagged,
    TextDelta,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallProgress,
    ToolCallRequested,
)
from toolbus.testing import ScriptedProvider, calls, text


class Status:
    """A fold of events into one sentence."""

    def __init__(self) -> None:
        self.sentence = ""
        self._running: dict[str, str] = {}  # the activity of each open call, by its id

    def on_event(self, event: Event) -> None:
        """Take one event into account."""
        match event:
            case RoundStarted():
                self.sentence = "thinking"
            case ToolCallRequested():
                self._running[event.call_id] = event.name
            case ToolCallProgress() if event.call_id in self._running:
                self._running[event.call_id] = f"{event.name}: {event.message}"
            case ToolCallCompleted() | ToolCallFailed():
                self._running.pop(event.call_id, None)
            case TextDelta():
                self.sentence = "answering"
            case RequestCompleted() | RequestFailed() | RequestCancelled():
                self._running.clear()
                self.sentence = event.type.removeprefix("request_")
            case SubscriberLagged():
                self.sentence = f"too much happens: {event.count} events missed"
            case _:
                pass
        if self._running:
            self.sentence = ", ".join(self._running.values())


async def show_status(events: Subscription, show: Callable[[str], None]) -> None:
    """Show each new sentence, until the subscription ends."""
    status = Status()
    shown = ""
    async for event in events:
        status.on_event(event)
        if status.sentence != shown:
            shown = status.sentence
            show(shown)


def on_one_line(sentence: str) -> None:
    """Overwrite the line on a terminal; elsewhere, write a line for each sentence."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{sentence}")
    else:
        sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


@tool
async def count_sheep(upto: int, context: ToolContext[None]) -> int:
    """Count sheep."""
    for number in range(1, upto + 1):
        await context.progress(f"sheep {number}", done=number, total=upto)
        await anyio.sleep(0.02)
    return upto


async def main() -> None:
    """Run one request with a status line."""
    provider = ScriptedProvider([calls(("count_sheep", {"upto": 3})), text("There are three sheep.")])
    async with Runtime(provider, tools=[count_sheep]) as runtime:
        session = runtime.start("How many sheep are there?")
        await show_status(session.events(), on_one_line)  # ends with the request; an application starts it in a task
        result = await session.result()
    print(f"\n{result.text}")


if __name__ == "__main__":
    anyio.run(main)
