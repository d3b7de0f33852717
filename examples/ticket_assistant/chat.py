"""The chat: a typed line goes to the assistant, or answers its question whether a call may run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from toolbus.events import ApprovalRequested

from . import screen
from .assistant import Application

__all__ = ["chat", "typed_lines"]


async def chat(
    application: Application,
    read_documents: Callable[[], Iterable[Mapping[str, Any]]],
    typed: AsyncGenerator[str],
    conversation_id: str,
) -> None:
    """Talk until the end of the input. Turns that an earlier process has left unfinished continue first."""

    async def ask(question: ApprovalRequested) -> bool:
        print(screen.question(question), flush=True)
        return (await anext(typed, "")).lower() in ("y", "yes")

    application.approve = ask
    print('Type to the assistant; "history" shows what is stored and sent, Ctrl-D ends it.')
    async with contextlib.aclosing(typed), application.open() as assistant:
        for session in await assistant.runtime.resume():
            await assistant.follow(session)
        while True:
            print("\nYou: ", end="", flush=True)
            said = await anext(typed, None)
            if said is None:
                break
            if said == "history":
                stored = await anyio.to_thread.run_sync(read_documents)
                sent = screen.as_sent(assistant.sent.messages)
                print(f"Stored in MongoDB:\n{screen.as_stored(stored)}\nSent with your last question:\n{sent}")
            elif said:
                await assistant.say(said, conversation_id)
    print()


async def typed_lines(source: int = 0) -> AsyncGenerator[str]:
    """Yield the lines that are typed into a file (by its descriptor; stdin), until its end."""
    send, receive = anyio.create_memory_object_stream[str](100)
    token = anyio.lowlevel.current_token()

    def read() -> None:  # nothing waits for its thread, because a read cannot be cancelled
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, RuntimeError):
            with open(
                source, closefd=False, errors="replace"
            ) as stdin:  # not sys.stdin, which the interpreter locks when it ends
                for line in stdin:
                    anyio.from_thread.run(send.send, line.strip(), token=token)
            anyio.from_thread.run(send.aclose, token=token)

    threading.Thread(target=read, daemon=True).start()
    async with receive:
        async for line in receive:
            yield line
