"""One process of the fleet: `python -m examples.fleet.process web PORT`, or `worker POOL`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount

from toolbus import Runtime, SqliteStore, ToolContext, tool
from toolbus.events import Event, RequestCompleted, RequestResumed, RequestStarted, RoundStarted, ToolCallCompleted
from toolbus.messages import ToolMessage, UserMessage
from toolbus.protocols import ModelRequest
from toolbus.providers.scripted import Step
from toolbus.remote.nats import NatsExecutor, ToolWorker
from toolbus.testing import ScriptedProvider, calls, text
from toolbus.web import RuntimeMiddleware, create_app

BROKER, SECONDS = os.environ.get("FLEET_BROKER", ""), float(os.environ.get("FLEET_SECONDS", "4"))
LEASE_SECONDS = 2.0  # short, so that nobody waits long after a kill; 30 is usual


def say(request_id: str, what: str) -> None:
    """Write a line for the screen."""
    print(f"[{request_id[-4:]}] {what}", flush=True)


async def work(context: ToolContext[Any], what: str, result: str) -> str:
    """Work for some seconds."""
    say(context.request_id, f"{what}, attempt {context.attempt}")
    await anyio.sleep(SECONDS)
    say(context.request_id, "is done")
    return result


@tool(pool="pictures", idempotent=True, timeout_seconds=300)
async def draw(what: str, context: ToolContext[Any]) -> str:
    """Draw a picture."""
    return await work(context, f"draws {what!r}", f"a picture of {what!r}")


@tool(pool="sums", idempotent=True, timeout_seconds=300)
async def count(letters_of: str, context: ToolContext[Any]) -> str:
    """Count letters."""
    return await work(context, f"counts {letters_of!r}", f"{sum(map(str.isalpha, letters_of))} letters")


def play(request: ModelRequest) -> Step:
    """Play the model: ask for a picture and a sum, then report them."""
    if request.round == 0:
        asked = next(each.text for each in request.messages if isinstance(each, UserMessage))
        return calls(("draw", {"what": asked}), ("count", {"letters_of": asked}), delays=0.1)
    picture, number = [each.content for each in request.messages if isinstance(each, ToolMessage)]
    return text(f"Here is {picture}, with {number}.", delays=0.2)


def show(event: Event) -> None:
    """Say what a request does in this process."""
    say(event.request_id, f"{event.type.replace('_', ' ')} {getattr(event, 'content', '')}".rstrip())


def web(port: int) -> None:
    """Serve requests, and continue those that other processes leave."""
    runtime = Runtime(
        os.environ.get("FLEET_PROVIDER") or ScriptedProvider(play),
        tools=[draw, count],
        store=SqliteStore(os.environ["FLEET_STORE"]),
        executors=[NatsExecutor(BROKER, pool="pictures"), NatsExecutor(BROKER, pool="sums")],
        lease_seconds=LEASE_SECONDS,
    )
    runtime.bus.connect((RequestStarted, RequestResumed, RoundStarted, ToolCallCompleted, RequestCompleted), show)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncGenerator[None]:
        await runtime.resume(watch=True)
        print("is ready", flush=True)
        yield

    api = create_app(runtime, authorize=lambda _request: "you")  # an application knows its users
    middleware = [Middleware(RuntimeMiddleware, runtime=runtime)]
    app = Starlette(routes=[Mount("/", api)], middleware=middleware, lifespan=lifespan)
    uvicorn.run(app, port=port, log_level="error", timeout_graceful_shutdown=5)


def worker(pool: str) -> None:
    """Run the calls of a pool, as `toolbus worker` does."""
    runner = ToolWorker(BROKER, [draw, count], pool=pool, lease_seconds=LEASE_SECONDS)
    anyio.run(runner.run, lambda: print("is ready", flush=True))


if __name__ == "__main__":
    web(int(sys.argv[2])) if sys.argv[1] == "web" else worker(sys.argv[2])
