"""A tool without a handler: any listener on the bus may answer its calls.

`Tool(..., external=True)` is offered to the model, but the runtime does not run its calls. An answer takes two steps:
receive `ToolCallRequested`, publish `ToolCallCompleted`. Here a function on the event loop does so first, and then a
worker in its own thread. Nothing else notices the difference.

python examples/bus_handler.py
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import anyio

from toolbus import EventBus, Runtime, Tool
from toolbus.events import ToolCallCompleted, ToolCallRequested
from toolbus.messages import ToolMessage
from toolbus.protocols import ModelRequest
from toolbus.providers.scripted import Step
from toolbus.testing import ScriptedProvider, calls, text

get_price: Tool = Tool(
    "get_price",
    "The price of a drink, in euros.",
    {"type": "object", "properties": {"drink": {"enum": ["coffee", "tea"]}}, "required": ["drink"]},
    external=True,
)


def answer(requested: ToolCallRequested) -> ToolCallCompleted:
    """The one event that ends the call. The ids say whose call it is; `content` is the text that the model reads."""
    price = {"coffee": 4, "tea": 3}[requested.arguments["drink"]]  # the runtime has checked the arguments
    return ToolCallCompleted(
        request_id=requested.request_id,
        conversation_id=requested.conversation_id,
        call_id=requested.call_id,
        name=requested.name,
        content=str(price),
    )


def answer_on_the_loop(bus: EventBus) -> Callable[[], None]:
    """Answer at once, in a receiver of the call. It must be quick, because everybody waits for a receiver."""

    def on_requested(requested: ToolCallRequested) -> None:
        if requested.name == get_price.name:  # the receiver gets the calls of all tools
            bus.publish(answer(requested))

    return bus.connect(ToolCallRequested, on_requested)


def answer_from_a_thread(bus: EventBus) -> Callable[[], None]:
    """Answer from a thread: for code that blocks, or that runs its own loop."""
    waiting: queue.SimpleQueue[ToolCallRequested | None] = queue.SimpleQueue()

    def on_requested(requested: ToolCallRequested) -> None:
        if requested.name == get_price.name:
            waiting.put(requested)

    def work() -> None:
        while (requested := waiting.get()) is not None:
            bus.publish_threadsafe(answer(requested))  # returns False if the call was cancelled or timed out

    disconnect = bus.connect(ToolCallRequested, on_requested)
    threading.Thread(target=work, name="prices", daemon=True).start()

    def stop() -> None:
        disconnect()
        waiting.put(None)

    return stop


def script(request: ModelRequest) -> Step:
    """Play the model: ask for both prices, then report them."""
    if request.round == 0:
        return calls(("get_price", {"drink": "coffee"}), ("get_price", {"drink": "tea"}))
    coffee, tea = [each.content for each in request.messages if isinstance(each, ToolMessage)]
    return text(f"Coffee is {coffee} euros, tea is {tea}.")


async def main() -> None:
    """Ask the same question twice: the loop answers the first time, and the thread the second time."""
    for begin in (answer_on_the_loop, answer_from_a_thread):
        async with Runtime(ScriptedProvider(script), tools=[get_price]) as runtime:
            stop = begin(runtime.bus)
            result = await runtime.run("What do coffee and tea cost?")
            stop()
        print(f"{begin.__name__}: {result.text}")


if __name__ == "__main__":
    anyio.run(main)
