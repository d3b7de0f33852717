"""The assistant: its parts and their lifetime. Only this module and `tools` use toolbus."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2

from toolbus import Interceptor, RequestResult, RequestSession, Runtime, ToolContext
from toolbus.events import ApprovalDecided, ApprovalRequested
from toolbus.interceptors import Ask
from toolbus.messages import Message
from toolbus.protocols import ModelReply, ModelRequest, Provider
from toolbus.storage import Store

from . import screen
from .tools import TOOLS

__all__ = ["Application", "Assistant"]

INSTRUCTIONS = """\
You are an assistant for an issue tracker. Look tickets up with your tools, and name each with its id. \
Do not look up again what you have seen earlier in the conversation. When a tool fails, tell the user why."""

Approve = Callable[[ApprovalRequested], Awaitable[bool]]
Hook = Callable[[httpx2.Response], Awaitable[None]]


async def nobody(_question: ApprovalRequested) -> bool:
    """Deny the call, because nobody is there to approve it."""
    return False


class Sent(Interceptor):
    """An interceptor that records the messages sent at the beginning of the last turn, to show them."""

    def __init__(self) -> None:
        self.messages: Sequence[Message] = ()

    async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:  # noqa: ARG002 -- not used
        if request.round == 0:
            self.messages = tuple(request.messages)
        return await ask(request)


@dataclass
class Application:
    """The parts of the assistant. `open` may be called again, as after a restart: it starts from the database."""

    provider: Provider | str
    new_store: Callable[[], Store]
    service: str
    """The tracker's URL."""
    approve: Approve = nobody
    """The function that asks a person whether a call may run."""
    show: Callable[[str], object] = print
    transport: httpx2.AsyncBaseTransport | None = None
    on_response: list[Hook] = field(default_factory=list[Hook])
    """A function that gets each answer of the tracker, and may delay it."""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Assistant]:
        """Open the connections and the runtime, and close them: a web backend does this in its lifespan.

        Raises `ConfigurationError` and `StoreError`.
        """
        sent, one_at_a_time = Sent(), anyio.Lock()

        async def decide(question: ApprovalRequested) -> ApprovalDecided:
            async with one_at_a_time:
                return question.decided(approved=await self.approve(question), by="the user")

        pool = httpx2.AsyncClient(
            base_url=self.service,
            transport=self.transport,
            timeout=10,
            trust_env=False,
            event_hooks={"response": self.on_response},
        )
        runtime = Runtime(
            self.provider,
            tools=TOOLS,
            deps=pool,
            store=self.new_store(),
            instructions=INSTRUCTIONS,
            interceptors=[sent],
            on_approval=decide,
        )
        async with pool, runtime:
            yield Assistant(runtime, sent, self.show)


@dataclass
class Assistant:
    """A running assistant."""

    runtime: Runtime
    sent: Sent
    show: Callable[[str], object]

    async def say(self, text: str, conversation_id: str) -> RequestResult[Any]:
        """Run a turn, and show it."""
        return await self.follow(self.runtime.start(text, conversation_id=conversation_id))

    async def follow(self, session: RequestSession) -> RequestResult[Any]:
        """Show the events of a turn until its end; for a resumed turn, also the earlier ones."""
        async for event in session.events(*screen.SHOWN):
            self.show(screen.line(event))
        result = await session.result()
        if not result.resumable:
            self.show(screen.ending(result))
        return result
