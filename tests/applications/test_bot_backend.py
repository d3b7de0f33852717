"""A small application, written with the public documentation: the backend of a bot with a conversation for each user."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolbus import Runtime, SqliteStore, ToolContext, tool
from toolbus.events import ApprovalRequested
from toolbus.messages import AssistantMessage, UserMessage
from toolbus.protocols import Emit, ModelReply, ModelRequest, Provider, TextPiece
from toolbus.testing import ScriptedProvider, calls, text


@tool(destructive=True)
async def send_mail(to: str, outbox: ToolContext[list[str]]) -> str:
    """Send a mail."""
    outbox.deps.append(to)
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
        async for piece in self.runtime.request(self.newest[user]).text():
            yield piece

    async def page(self, user: str) -> list[Line]:
        """Return what was said in the turns that have ended."""
        return [
            Line("user" if isinstance(each, UserMessage) else "bot", each.text)
            for each in await self.runtime.store.history(f"user-{user}")
            if isinstance(each, UserMessage | AssistantMessage) and each.text
        ]

    def questions(self, user: str) -> list[ApprovalRequested]:
        """Return what waits for the user's decision, for the buttons on the page."""
        return [each for each in self.runtime.pending_approvals() if (each.metadata or {}).get("user") == user]

    async def decide(self, user: str, call_id: str, *, approved: bool) -> bool:
        """Take a click on a button, and return whether it counts; it is safe when this returns."""
        for question in self.questions(user):
            session = self.runtime.session(question.request_id)
            if question.call_id == call_id and session is not None:
                decision = question.decided(approved=approved, by=user)
                return self.runtime.bus.publish(decision) and await session.recorded(decision)
        return False

    async def continue_after_restart(self) -> None:
        """Take up the requests that an earlier process has left."""
        for session in await self.runtime.resume():
            self.newest[session.conversation_id.removeprefix("user-")] = session.request_id
            await session.accepted()  # from here on, it has its questions again


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
def outbox() -> list[str]:
    return []


@pytest.fixture
def process(tmp_path: Path, outbox: list[str]) -> Callable[[Provider], Runtime]:
    """Makes the runtime of a process; all of them have one store."""
    return lambda model: Runtime(model, tools=[send_mail], store=SqliteStore(tmp_path / "bot.db"), deps=outbox)


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


MAIL = calls(("send_mail", {"to": "bob"}))


async def asked(bot: Bot, user: str) -> str:
    """Wait for the question, and return the call that the page shows buttons for."""
    session = bot.runtime.session(bot.newest[user])
    assert session is not None
    with anyio.fail_after(60):
        async for question in session.events(ApprovalRequested):
            assert bot.questions(user) == [question]
            assert (question.name, question.arguments) == ("send_mail", {"to": "bob"})
            return question.call_id
    raise AssertionError("nothing is asked")


async def test_a_call_waits_for_the_user_and_for_nobody_else(
    process: Callable[[Provider], Runtime], outbox: list[str]
) -> None:
    async with process(ScriptedProvider([MAIL, text("Done.")])) as runtime:
        bot = Bot(runtime)
        await bot.write("ada", "Mail Bob.")
        call_id = await asked(bot, "ada")
        assert not await bot.decide("bob", call_id, approved=True)
        assert outbox == []
        assert await bot.decide("ada", call_id, approved=True)
        assert not await bot.decide("ada", call_id, approved=False)  # a second click
        assert await all_of(bot.read("ada")) == "Done."
    assert outbox == ["bob"]


async def test_a_question_outlives_the_process_and_the_call_runs_once(
    process: Callable[[Provider], Runtime], outbox: list[str]
) -> None:
    async with process(ScriptedProvider([MAIL])) as runtime:
        bot = Bot(runtime)
        await bot.write("ada", "Mail Bob.")
        await asked(bot, "ada")
    async with process(ScriptedProvider([text("Done.")])) as runtime:
        bot = Bot(runtime)
        await bot.continue_after_restart()
        reply = bot.read("ada")
        assert await bot.decide("ada", await asked(bot, "ada"), approved=True)
        assert await all_of(reply) == "Done."
    assert outbox == ["bob"]
