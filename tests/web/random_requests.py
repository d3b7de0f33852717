"""Random requests in virtual time: their events in order, and what the store has of them at the end.

What the simulation of `toolbus.testing` does not have: reasoning, pictures, names and values that are hostile to
pages, tools of the page, arguments that are not JSON, structured outputs, and answers by tools.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from toolbus import Denied, Interceptor, Runtime, Tool, ToolContext, sub_request_tool, tool
from toolbus.core.limits import Limits
from toolbus.errors import ProviderUnavailable, ToolError
from toolbus.events import ApprovalRequested, Event, RequestEnding, ToolCallRequested
from toolbus.events.ids import ids_from
from toolbus.messages import FilePart, ImagePart, Message, TextPart
from toolbus.providers.scripted import Step, calls, error, hang, text
from toolbus.testing import ScriptedProvider, virtual_backend
from toolbus.toolsets.control import task_complete, update_plan

PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    2.5,
    2**53 + 1,
    2**63,
    10**19,
    1e300,
    "",
    " ",
    "a text",
    "two\n\nlines",
    "data: {}\n\n",
    "😀",
    "\u202edlrow",
    "\u2028",
    "\x00",
    "<b>x</b>",
    "null",
    "7",
    "[1]",
    '{"a":1}',
    '{"ok":true}',
    "A decision is needed.",
    '{"ok":false,"reason":"denied","error":"not at all"}',
    '{"reason":1,"error":2}',
    "This question is no longer open.",
    [],
    {},
    [[]],
    [None],
    {"": 1},
    {"__proto__": {"a": 1}},
    {"constructor": {"prototype": 1}},
    {"toString": 1},
    {"type": "content", "value": []},
    {"type": "content", "value": [None]},
    {"type": "text", "value": "x"},
    {"type": "content", "value": 7},
    {"ok": False, "reason": "error", "error": "x"},
    {"then": 1},
    {"length": -1},
    {"_malformed_arguments": "x"},
    {"_malformed_arguments": {"a": 1}},
    [{"type": "image-data", "data": "x"}],
]
TEXTS = [
    "",
    "A",
    "A text.",
    "Über 東京 😀",
    "**bold** and `code`",
    "\n",
    " ",
    "- [x] a\n  > 7) \nb",
    "<script>",
    "\u202e",
    "\x00",
    "{}",
]
ARGUMENTS = [
    "",
    "{}",
    '{"v":1}',
    '{"v":[1,{"a":"b"}]}',
    '{"v":"\\u202e"}',
    '{"v":9007199254740993}',
    '{"v":1e400}',
    '{"v":',
    "[]",
    "7",
    '"x"',
    '{"v":1,"v":2}',
    '{"__proto__":{"a":1}}',
    '{"v":{"__proto__":1}}',
    '{"v":"\\ud800"}',
    "null",
    '{"v":NaN}',
    '{"v":"é😀"}',
    " ",
    '{"v":1.0}',
    '{ "v" : 1 }',
    '{"v":123456789012345678901}',
    '{"v":0.1234567890123456789}',
]
GOOD = ["{}", '{"v":1}', '{"v":[1,{"a":"b"}]}', '{ "v" : 1.0 }', '{"v":"é😀"}', '{"v":9007199254740993}']
OUTPUTS = ['{"n":7}', '{"n":', "no JSON", '{"n":"x"}']
NAMES = [
    "plain",
    "plain",
    "plain",
    "fails",
    "picture",
    "remove",
    "remove",
    "locate",
    "watch",
    "later",
    "clerk",
    "deep",
    "order",
]
ODD_NAMES = [
    "nope",
    "",
    "__proto__",
    "a b",
    "toString",
    "plain\n",
    "x" * 300,
    "update_plan",
    "task_complete",
    "final_answer",
]
CLIENT_TOOLS = ["locate", "watch"]


@dataclass
class Output:
    n: int


@dataclass
class Played:
    """A request: its events, those of readers that came late, and what the store has of it."""

    events: list[Event]
    late: list[list[Event]]
    messages: Sequence[Message]
    outcome: str
    explanation: str


class _Guard(Interceptor):
    """Deny some calls."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
        if self._chance.random() < 0.1:
            raise Denied("Not now.")
        return {**arguments, "v": 5} if self._chance.random() < 0.1 and "v" in arguments else arguments


def _tools(chance: random.Random) -> list[Tool]:
    async def wait() -> None:
        await anyio.sleep(chance.choice([0, 0, 0.001, 0.5, 3]))

    @tool
    async def plain(context: ToolContext[Any], v: Any = None) -> Any:
        """Return something."""
        for number in range(chance.choice([0, 0, 0, 1, 2])):
            await context.progress(chance.choice(TEXTS), done=number, total=2)
        await wait()
        return chance.choice(VALUES)

    @tool(retries=1)
    async def fails(v: Any = None) -> str:
        """Fail."""
        await wait()
        raise chance.choice([ToolError, ValueError])(chance.choice([*TEXTS, *filter(None, map(str, VALUES))]))

    @tool
    async def picture(v: Any = None) -> list[TextPart | ImagePart | FilePart]:
        """Return a picture."""
        parts = [
            TextPart(text=chance.choice(TEXTS)),
            ImagePart(url=chance.choice([PIXEL, "https://example.org/a.png"])),
            FilePart(url="data:text/plain;base64,aGk=", media_type="text/plain", name=chance.choice(["", "a.txt"])),
        ]
        return [each for each in parts if chance.random() < 0.6] or parts

    @tool(needs_approval=True)
    async def remove(v: Any = None) -> str:
        """Remove something."""
        await wait()
        return f"removed {v!r}"

    @tool(background=True)
    async def later(v: Any = None) -> Any:
        """Work in the background."""
        await anyio.sleep(chance.choice([0, 1, 20]))
        if chance.random() < 0.3:
            raise ToolError("It is full.")
        return chance.choice(VALUES)

    @tool(return_direct=True)
    async def order(v: Any = None) -> str:
        """Answer the person."""
        await wait()
        return chance.choice(["Ordered.", "", "7"])

    @tool
    async def deep(context: ToolContext[Any], v: Any = None) -> str:
        """Ask a sub-request."""
        return (await context.ask("go", tools=[])).text

    external: Any = {"type": "object", "properties": {"v": {}}}
    locate = Tool(name="locate", description="Of the page.", schema=external, external=True, timeout_seconds=30)
    watch = Tool(
        name="watch",
        description="Of the page.",
        schema=external,
        external=True,
        needs_approval=True,
        timeout_seconds=30,
    )
    below = ScriptedProvider(
        lambda request: (
            text("That is all.")
            if request.round > chance.choice([0, 0, 1])
            else calls(*[("remove", {"v": 1})] * chance.choice([1, 2]))
        )
    )
    clerk = sub_request_tool("clerk", "Remove things.", provider=below, tools=[remove])
    return [plain, fails, picture, remove, later, order, deep, locate, watch, clerk]


def _step(chance: random.Random, *, is_last: bool, has_output: bool) -> Step:
    reasoning = chance.choice(["", "", "", "Hm.", "Let me think 😀.\n"])
    delays = chance.choice([0.0, 0.0, 0.01, 1.0])
    said = chance.choice(TEXTS)
    if is_last:
        said = chance.choice(OUTPUTS) if has_output else said
        return text(said, reasoning=reasoning, delays=delays, pieces=chance.choice([None, min(1, len(said)) or None]))
    names = [
        chance.choice(ODD_NAMES if chance.random() < 0.15 else NAMES) for _ in range(chance.choice([1, 1, 2, 3, 5]))
    ]
    pairs = [(each, _arguments(each, chance)) for each in names]
    return calls(*pairs, text=said, reasoning=reasoning, delays=delays)


def _arguments(name: str, chance: random.Random) -> Any:
    if name == "clerk":
        return {"task": "go"} if chance.random() < 0.9 else "{"
    if name == "update_plan":
        return {"steps": [{"text": chance.choice(TEXTS) or "x", "status": chance.choice(["done", "active"])}]}
    if name == "task_complete":
        return {"answer": chance.choice(TEXTS)}
    if name == "final_answer":
        return chance.choice(OUTPUTS)
    return chance.choice(ARGUMENTS if chance.random() < 0.4 else GOOD)


def _script(chance: random.Random, *, has_output: bool) -> list[Step]:
    steps: list[Step] = []
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        step = _step(chance, is_last=False, has_output=has_output)
        if chance.random() < 0.08:
            steps.append(
                error(
                    _busy() if chance.random() < 0.8 else ValueError("secret"),
                    after=chance.choice([step, "I begin", ""]),
                )
            )
        steps.append(step)
    if chance.random() < 0.05:
        steps.append(text(""))
    steps.append(_step(chance, is_last=True, has_output=has_output) if chance.random() < 0.95 else hang(after="I hang"))
    return steps


def _busy() -> ProviderUnavailable:
    return ProviderUnavailable("busy", retryable=True, retry_after_seconds=0.01)


def play(seed: int) -> Played:
    """Play one request. The same seed is the same request."""
    backend, options = virtual_backend("asyncio")
    with ids_from(f"s{seed}_"):
        return anyio.run(_play, seed, backend=backend, backend_options=options)


async def _play(seed: int) -> Played:
    chance = random.Random(seed)
    has_output = chance.random() < 0.25
    provider = ScriptedProvider([*_script(chance, has_output=has_output), *[text("The end.")] * 6])
    events: list[Event] = []
    late: list[list[Event]] = []
    joins_at = {chance.randrange(60) for _ in range(3)}
    acts_at = {
        chance.randrange(40): chance.choice(["steer", "steer", "cancel", "nothing", "nothing"]) for _ in range(2)
    }
    options: dict[str, Any] = {}
    limits = Limits(timeout_seconds=300, approval_timeout_seconds=100, max_rounds=chance.choice([1, 20, 20, 20]))
    if has_output:
        options["output"] = Output
        options["output_mode"] = chance.choice(["auto", "tool"])
    runtime = Runtime(
        provider,
        tools=[*_tools(chance), *chance.choice([[], [task_complete, update_plan]])],
        interceptors=[_Guard(chance)] if chance.random() < 0.3 else [],
        on_approval="wait",
    )
    async with runtime, anyio.create_task_group() as group:
        session = runtime.start(chance.choice(["Go.", "Go\n\n😀"]), conversation_id="c", limits=limits, **options)

        async def decide(asked: ApprovalRequested) -> None:
            for _ in range(chance.choice([0, 1, 1, 1, 2])):
                await anyio.sleep(chance.choice([0, 0.01, 2]))
                approved = chance.random() < 0.6
                runtime.bus.publish(asked.decided(approved=approved, by="ann", reason=chance.choice(["", "no"])))

        async def answer(asked: ToolCallRequested) -> None:
            await anyio.sleep(chance.choice([0, 0.01, 2, 50]))
            value = chance.choice(VALUES)
            content = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
            done = asked.completed(content, data=None if isinstance(value, str) else value)
            runtime.bus.publish(done if chance.random() < 0.8 else asked.failed(chance.choice(TEXTS) or "x"))

        async def join() -> None:
            joined: list[Event] = []
            late.append(joined)
            async for event in session.events():
                joined.append(event)

        def listen(event: Event) -> None:
            events.append(event)
            if len(events) in joins_at:
                group.start_soon(join)
            if isinstance(event, ApprovalRequested):
                group.start_soon(decide, event)
            elif isinstance(event, ToolCallRequested) and event.name in CLIENT_TOOLS:
                group.start_soon(answer, event)
            match acts_at.pop(len(events), "nothing"):
                case "steer":
                    session.steer(chance.choice([each for each in TEXTS if each.strip()]))
                case "cancel":
                    session.cancel("enough")
                case _:
                    pass

        runtime.bus.connect(Event, listen)
        result = await session.result()
        with anyio.move_on_after(60):
            await anyio.sleep(30)
        group.cancel_scope.cancel()
    messages = await runtime.store.history("c")
    own = [at for at, each in enumerate(events) if each.request_id == session.request_id]
    (ends,) = [at for at in own if isinstance(events[at], RequestEnding)]
    return Played(events[: ends + 1], late, messages, result.outcome, result.explanation)
