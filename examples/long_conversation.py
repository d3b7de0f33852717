"""A conversation that outgrows its context window: it is stored whole, and sent shortened.

The example runs without a key. With a key, name a real model:

python examples/long_conversation.py
python examples/long_conversation.py openai:gpt-5-mini
"""

from __future__ import annotations

import sys

import anyio

from toolbus import Compression, Interceptor, Runtime, ToolContext, ToolError, tool
from toolbus.core.tokens import estimate_message
from toolbus.interceptors import Ask
from toolbus.messages import Message, SystemMessage, ToolMessage, UserMessage
from toolbus.protocols import ModelReply, ModelRequest, Provider
from toolbus.providers.scripted import Step
from toolbus.testing import ScriptedProvider, calls, text

WINDOW_TOKENS = 2_000
KEEP_TURNS = 4
SESSION = "s-4711"
ZONES = ["kitchen", "hall", "study", "attic", "cellar", "garage"]
temperatures = dict.fromkeys(ZONES, 18)


@tool(keep_full_results=True)
async def log_in(user: str) -> str:
    """Log in to the heating. Returns the session that the other tools need."""
    return f"Welcome, {user}. Your session is {SESSION}. It ends at midnight; keep it to yourself."


def check(session: str) -> None:
    if session != SESSION:
        raise ToolError("this session does not exist; log in first")


@tool(kind="query")
async def get_state(session: str) -> dict[str, dict[str, object]]:
    """Return the state of all zones."""
    check(session)
    return {zone: {"celsius": warm, "window": "closed", "light": "off"} for zone, warm in temperatures.items()}


@tool(kind="action")
async def set_temperature(session: str, zone: str, celsius: int) -> str:
    """Set the temperature of a zone."""
    check(session)
    temperatures[zone] = celsius
    log = " ".join(f"Valve {number} of the {zone} has been moved." for number in range(1, 9))
    return f"The {zone} is set to {celsius} degrees. {log}"


PROMPTS = ["Log in as Ada.", *(f"Make the {ZONES[number % 6]} {18 + number % 5} degrees." for number in range(15))]


def play(request: ModelRequest) -> Step:
    """Play the model: look, set the temperature, and report that it is done."""
    asked = max(place for place, each in enumerate(request.messages) if isinstance(each, UserMessage))
    prompt = str(request.messages[asked].content)  # type: ignore[union-attr]
    rounds = len(request.messages) - asked - 1
    if prompt.startswith("Log in"):
        return text("You are logged in.") if rounds else calls(("log_in", {"user": "Ada"}))
    if not rounds:
        return calls(("get_state", {"session": SESSION}))
    zone, celsius = prompt.split()[2:4]
    if rounds == 2:
        return calls(("set_temperature", {"session": SESSION, "zone": zone, "celsius": int(celsius)}))
    return text(f"The {zone} is set to {celsius} degrees.")


class TokenCounter(Interceptor):
    """An interceptor that records the transcript, and the messages that are sent, at each call of the model."""

    def __init__(self) -> None:
        self.whole: list[Message] = []
        self.sent: list[Message] = []

    async def around_model(self, request: ModelRequest, context: ToolContext[None], ask: Ask) -> ModelReply:
        self.whole, self.sent = list(context.messages), list(request.messages)
        return await ask(request)


def weight(messages: list[Message]) -> int:
    return sum(estimate_message(each) for each in messages)


async def main(provider: Provider | str) -> None:
    """Run a conversation, and print a line for each turn: the size of the transcript, and of what was sent last."""
    counter = TokenCounter()
    compression = Compression(max_context_tokens=WINDOW_TOKENS, keep_turns=KEEP_TURNS)
    tools = [log_in, get_state, set_temperature]
    print(f"{'turn':>4}  {'prompt':<34}{'messages':>9} {'sent':>5}   {'tokens':>7} {'sent':>6} {'saved':>6}")
    async with Runtime(provider, tools=tools, compression=compression, interceptors=[counter]) as runtime:
        for turn, prompt in enumerate(PROMPTS, 1):
            await runtime.run(prompt, conversation_id="heating")
            whole, sent = weight(counter.whole), weight(counter.sent)
            counts = f"{len(counter.whole):>9} {len(counter.sent):>5}   {whole:>7,} {sent:>6,} {1 - sent / whole:>6.0%}"
            print(f"{turn:>4}  {prompt:<34}{counts}")
    print("\nWhat the last request had of earlier turns:")
    for message in counter.sent:
        if isinstance(message, (SystemMessage, ToolMessage)):
            said = message.text if isinstance(message, SystemMessage) else f"{message.name}: {message.content}"
            print(f"  {said[:110]}")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else ScriptedProvider(play))
