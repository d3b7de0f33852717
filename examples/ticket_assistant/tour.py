"""The tour: one conversation with three restarts, and one that another application has begun."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import anyio.to_thread
import httpx2

from toolbus.events import ApprovalRequested
from toolbus.messages import Message

from . import screen
from .assistant import Application
from .database import documents, write_old_conversation

__all__ = ["Tour", "TurnFailed"]


class TurnFailed(Exception):
    """The end of the tour after a turn without an answer; the reason was shown before."""


class Tour:
    """The scenes of the tour. The conversations are in `database` of the server at `url`."""

    def __init__(self, application: Application, url: str, database: str) -> None:
        self._application = application
        application.approve = self._yes
        self._place = url, database
        self._show: Callable[[str], object] = application.show

    async def run(self, conversation_id: str) -> None:
        """Play all scenes."""
        self._title("1. A dialogue with a tool call")
        await self._say(conversation_id, "Show me tickets for project X.")

        self._title("2. A new runtime over the same database: the model is sent the earlier call and its result")
        await self._show_stored(conversation_id)
        self._show_sent(await self._say(conversation_id, "Now show me tickets for project Y."))
        await self._say(conversation_id, "Which of them was the oldest I saw?")

        self._title("3. The tracker refuses: the model reads why")
        await self._say(conversation_id, "Show me tickets for project Z.")

        self._title("4. Closing cannot be undone: a person is asked")
        await self._say(conversation_id, "Close T1.", "Move T1 to in_progress.")

        self._title(
            "5. A restart while a ticket is created: the same key is sent again, and the ticket is created once"
        )
        await self._restart(conversation_id, "Create a ticket in project Y: Dark mode is too dark")
        await self._say(conversation_id, "Show me tickets for project Y.")

        self._title("6. A conversation that another application has begun")
        old = await anyio.to_thread.run_sync(write_old_conversation, *self._place)
        await self._show_stored(old)
        self._show_sent(
            await self._say(old, "Now show me tickets for project Y.", "Which of them was the oldest I saw?")
        )

    async def _yes(self, question: ApprovalRequested) -> bool:
        self._show(f"{screen.question(question)}\ny")
        return True

    def _title(self, title: str) -> None:
        self._show(f"\n=== {title}")

    async def _say(self, conversation_id: str, *texts: str) -> Sequence[Message]:
        """Send prompts to a newly started application, and return what the model was sent last."""
        async with self._application.open() as assistant:
            for text in texts:
                self._show(f"\nYou: {text}")
                if not (await assistant.say(text, conversation_id)).ok:
                    raise TurnFailed
        return assistant.sent.messages

    async def _show_stored(self, conversation_id: str) -> None:
        stored = await anyio.to_thread.run_sync(documents, *self._place, conversation_id)
        self._show(f"\nStored in MongoDB:\n{screen.as_stored(stored)}")

    def _show_sent(self, messages: Sequence[Message]) -> None:
        self._show(f"\nSent to the model with that question:\n{screen.as_sent(messages)}")

    async def _restart(self, conversation_id: str, text: str) -> None:
        """Close the runtime when a ticket was created and the answer is lost, and continue in another one."""
        lost = anyio.Event()

        async def lose(response: httpx2.Response) -> None:
            if response.request.method == "POST" and not lost.is_set():
                self._show(f"    the tracker answers {response.status_code}; the answer is lost, and this process ends")
                lost.set()
                await anyio.sleep_forever()

        self._show(f"\nYou: {text}")
        self._application.on_response.append(lose)
        async with self._application.open() as assistant, anyio.create_task_group() as group:
            session = assistant.runtime.start(text, conversation_id=conversation_id)

            async def follow() -> None:
                await assistant.follow(session)
                lost.set()  # the model has not created anything

            group.start_soon(follow)
            await lost.wait()
            await assistant.runtime.drain(timeout_seconds=0)
        self._show("(the next process)")
        self._application.on_response.remove(lose)
        async with self._application.open() as assistant:
            # After a crash, this works only once the lease of the dead process has run out (lease_seconds, 30).
            for session in await assistant.runtime.resume():
                await assistant.follow(session)
