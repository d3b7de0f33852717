"""The work that is measured, in toolbus and by hand: a request is rounds of tool calls, then a text.

The model and the tool answer at once, so that only the code between them is measured. The loop by hand is what a
careful engineer writes: it validates arguments, has a time-out around the request, around every call of the model and
around every call of a tool, and turns errors into data. It stores no conversation.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anyio
import trio
from pydantic import BaseModel, ConfigDict

from toolbus import EventBus, Limits, RequestSession, Runtime, ToolDispatcher, ToolRegistry
from toolbus.events import Event
from toolbus.messages import AssistantMessage, ToolCall
from toolbus.protocols import Emit, ModelReply, ModelRequest, Provider
from toolbus.stores.memory import MemoryStore

ROUNDS, CALLS = 3, 2
One: TypeAlias = Callable[[], Awaitable[str]]
"""A function that runs one request and returns its answer, "done"."""


async def lookup(city: str, n: int) -> dict[str, Any]:
    """Look a city up."""
    return {"ok": True, "city": city, "n": n}


# ------------------------------------------------------------------------------------------------- by hand


class Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")
    city: str
    n: int


async def model_by_hand(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The reply as a vendor's dictionary."""
    done = sum(message["role"] == "assistant" for message in messages)
    if done == ROUNDS:
        return {"role": "assistant", "content": "done"}
    calls = [
        {
            "id": f"call_{done}_{index}",
            "type": "function",
            "function": {"name": "lookup", "arguments": json.dumps({"city": "Paris", "n": index})},
        }
        for index in range(CALLS)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


async def run_call(call: dict[str, Any]) -> dict[str, Any]:
    try:
        async with asyncio.timeout(30):
            arguments = Arguments.model_validate_json(call["function"]["arguments"])
            result = await lookup(**arguments.__dict__)
    except Exception as exc:
        result = {"ok": False, "error": str(exc)}
    return {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)}


async def careful() -> str:
    """The loop on asyncio."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    async with asyncio.timeout(120):
        while True:
            async with asyncio.timeout(60):
                message = await model_by_hand(messages)
            messages.append(message)
            if not message.get("tool_calls"):
                return message["content"]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(run_call(call)) for call in message["tool_calls"]]
            messages.extend(task.result() for task in tasks)


async def run_call_on_anyio(call: dict[str, Any], results: dict[str, dict[str, Any]]) -> None:
    try:
        with anyio.fail_after(30):
            arguments = Arguments.model_validate_json(call["function"]["arguments"])
            result = await lookup(**arguments.__dict__)
    except Exception as exc:
        result = {"ok": False, "error": str(exc)}
    results[call["id"]] = {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)}


async def careful_on_anyio() -> str:
    """The same loop with anyio's time-outs and task groups."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    with anyio.fail_after(120):
        while True:
            with anyio.fail_after(60):
                message = await model_by_hand(messages)
            messages.append(message)
            if not message.get("tool_calls"):
                return message["content"]
            results: dict[str, dict[str, Any]] = {}
            async with anyio.create_task_group() as group:
                for call in message["tool_calls"]:
                    group.start_soon(run_call_on_anyio, call, results)
            messages.extend(results[call["id"]] for call in message["tool_calls"])


async def run_call_on_trio(call: dict[str, Any], results: dict[str, dict[str, Any]]) -> None:
    try:
        with trio.fail_after(30):
            arguments = Arguments.model_validate_json(call["function"]["arguments"])
            result = await lookup(**arguments.__dict__)
    except Exception as exc:
        result = {"ok": False, "error": str(exc)}
    results[call["id"]] = {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)}


async def careful_on_trio() -> str:
    """The same loop on trio."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    with trio.fail_after(120):
        while True:
            with trio.fail_after(60):
                message = await model_by_hand(messages)
            messages.append(message)
            if not message.get("tool_calls"):
                return message["content"]
            results: dict[str, dict[str, Any]] = {}
            async with trio.open_nursery() as nursery:
                for call in message["tool_calls"]:
                    nursery.start_soon(run_call_on_trio, call, results)
            messages.extend(results[call["id"]] for call in message["tool_calls"])


# ------------------------------------------------------------------------------------------------- toolbus


class Model:
    """A provider that answers at once, by the round's number. With many `rounds`, each round has other arguments."""

    vendor = "benchmark"

    def __init__(self, rounds: int = ROUNDS) -> None:
        self.rounds = rounds
        self._step = CALLS if rounds > ROUNDS else 0  # a limit stops a request that repeats equal calls

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:  # noqa: ARG002
        done = request.round
        if done == self.rounds:
            return ModelReply(message=AssistantMessage(text="done"))
        calls = tuple(
            ToolCall(
                name="lookup",
                arguments=json.dumps({"city": "Paris", "n": index + done * self._step}),
                provider_call_id=f"call_{done}_{index}",
            )
            for index in range(CALLS)
        )
        return ModelReply(message=AssistantMessage(tool_calls=calls))


class SilentModel:
    """A provider that never answers. It waits as a bare task does, without a timer of its own."""

    vendor = "benchmark"

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:  # noqa: ARG002
        await asyncio.get_running_loop().create_future()
        raise AssertionError


@asynccontextmanager
async def sessions(
    model: Provider | None = None, *, bus: EventBus | None = None, limits: Limits | None = None
) -> AsyncGenerator[One]:
    """Requests that are one `RequestSession` each, with a `ToolDispatcher` on one bus, without a store or a runtime."""
    bus = bus or EventBus()
    provider = model or Model()
    limits = limits or Limits()
    registry = ToolRegistry([lookup])

    async def one() -> str:
        result = await RequestSession(bus, provider, "go", tools=registry, limits=limits).run()
        return result.text

    async with ToolDispatcher(bus, registry):
        yield one


@asynccontextmanager
async def requests(*, bus: EventBus | None = None, started: bool = False) -> AsyncGenerator[One]:
    """Requests of `Runtime.run`, or, with `started`, of `Runtime.start`.

    The loop by hand stores no conversation, so the store in memory keeps only one: with a thousand of them, the garbage
    collector would add a tenth to the cost of each request.
    """
    async with Runtime(Model(), tools=[lookup], bus=bus, store=MemoryStore(max_conversations=1)) as runtime:

        async def by_run() -> str:
            return (await runtime.run("go")).text

        async def by_start() -> str:
            return (await runtime.start("go").result()).text

        yield by_start if started else by_run


def heard_bus() -> EventBus:
    """A bus with one listener on every type of event."""
    bus = EventBus()
    heard = 0

    def listener(_event: Event) -> None:
        nonlocal heard
        heard += 1

    bus.connect(Event, listener)
    return bus


# ------------------------------------------------------------------------------------------------ all at once


async def at_once(one: One, count: int, width: int = 100) -> None:
    """Run `count` requests, `width` at once, in asyncio's own task group."""
    for flight in flights(count, width):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(answered(one)) for _ in range(flight)]
        for task in tasks:
            task.result()


async def at_once_on_trio(one: One, count: int, width: int = 100) -> None:
    """Run them in the same way in trio's nursery."""
    for flight in flights(count, width):
        async with trio.open_nursery() as nursery:
            for _ in range(flight):
                nursery.start_soon(answered, one)


async def serially(one: One, count: int) -> None:
    """Run one request after the other."""
    for _ in range(count):
        await answered(one)


async def answered(one: One) -> None:
    """Run one request, and check its answer."""
    if (text := await one()) != "done":
        raise RuntimeError(f"the answer is wrong: {text!r}")


def flights(count: int, width: int) -> list[int]:
    """The number of requests that run at once, for each group."""
    whole, rest = divmod(count, width)
    return [width] * whole + [rest] * bool(rest)
