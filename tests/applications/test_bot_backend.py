"""A small application, written with the public documentation: the backend of a bot with a conversation for each user."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolbus import Runtime, SqliteStore, tool
from toolbus.messages import AssistantMessage, UserMessage
from toolbus.protocols import Emit, ModelReply, ModelRequest, Provider, TextPiece
from toolbus.testing import ScriptedProvider, text

SENT: list[str] = []


@tool(destructive=True)
async def send_mail(to: str) -> str:
    """Send a mail."""
    SENT.append(to)
    return f"sent to {to}"


# --------------------------------------------------------------------------------------------- the application


@dataclass
class Line:
    """A line on a user's page."""

    by: str
    text: str


@dataclass
class Bot:
    """The backend: users write, and read the replies on pages that may be closed and opened at any time."""

    runtime: Runtime
    newest: dict[str, str] = field(default_factory=dict[str, str])  # the newest request of each user

    async def write(self, user: str, words: str) -> None:
        """Take a message of a user; it is safe when this returns."""
        session = self.runtime.start(words, conversation_id=f"user-{user}", metadata={"user": user})
        self.newest[user] = session.request_id
        await session.accepted()

    async def read(self, user: str) -> AsyncIterator[str]:
        """Yield the reply to the user's newest message, from its beginning, as it is written."""
        session = self.runtime.session(self.newest[user])
        if session is not None:
            async for piece in session.text():
                yield piece

    async def page(self, user: str) -> list[Line]:
        """Return what was said in the turns that have ended."""
        return [
            Line("user" if isinstance(each, UserMessage) else "bot", each.text)
            for each in await self.runtime.store.history(f"user-{user}")
            if isinstance(each, UserMessage | AssistantMessage) and each.text
        ]

    async def continue_after_restart(self) -> None:
        """Take up the requests that an earlier process has left."""
        for session in await self.runtime.resume():
            self.newest[session.conversation_id.removeprefix("user-")] = session.request_id


# -------------------------------------------------------------------------------------------------- the tests


class Slow:
    """A model that stops in the middle of its reply until it may go on."""

    vendor = "slow"

    def __init__(self) -> None:
        self.begun, self.may_end = anyio.Event(), anyio.Event()

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        emit(TextPiece("The sun "))
        self.begun.set()
        await self.may_end.wait()
        emit(TextPiece("shines."))
        return ModelReply(message=AssistantMessage(text="The sun shines."))


def parrot(request: ModelRequest) -> Any:
    """Repeat all that the user has said."""
    return text(" ".join(each.text for each in request.messages if isinstance(each, UserMessage)))


async def all_of(pieces: AsyncIterator[str]) -> str:
    return "".join([piece async for piece in pieces])


@pytest.fixture
def process(tmp_path: Path) -> Callable[[Provider], Runtime]:
    """Makes the runtime of a process; all of them have one store."""
    return lambda model: Runtime(model, tools=[send_mail], store=SqliteStore(tmp_path / "bot.db"))


async def test_each_user_has_a_conversation_that_outlives_the_process(process: Callable[[Provider], Runtime]) -> None:
    async with process(ScriptedProvider(parrot)) as runtime:
        bot = Bot(runtime)
        await bot.write("ada", "I am Ada.")
        await bot.write("bob", "I am Bob.")
        assert [await all_of(bot.read(user)) for user in ("ada", "bob")] == ["I am Ada.", "I am Bob."]
    async with process(ScriptedProvider(parrot)) as runtime:
        bot = Bot(runtime)
        await bot.write("ada", "Who am I?")
        assert await all_of(bot.read("ada")) == "I am Ada. Who am I?"
        await runtime.drain()
        assert await bot.page("ada") == [
            Line("user", "I am Ada."),
            Line("bot", "I am Ada."),
            Line("user", "Who am I?"),
            Line("bot", "I am Ada. Who am I?"),
        ]
        assert len(await bot.page("bob")) == 2


async def test_a_reader_that_leaves_and_rejoins_reads_the_whole_reply(process: Callable[[Provider], Runtime]) -> None:
    model = Slow()
    async with process(model) as runtime:
        bot = Bot(runtime)
        await bot.write("ada", "How is the weather?")
        first = bot.read("ada")
        assert await anext(first) == "The sun "
        await first.aclose()  # type: ignore[attr-defined]
        again, elsewhere = bot.read("ada"), bot.read("ada")
        assert [await anext(again), await anext(elsewhere)] == ["The sun ", "The sun "]
        model.may_end.set()
        assert [await all_of(again), await all_of(elsewhere)] == ["shines.", "shines."]
        assert await all_of(bot.read("ada")) == "The sun shines."  # after the end, too
