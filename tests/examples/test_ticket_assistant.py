"""The ticket assistant: what its user sees of restarts, histories in MongoDB, a tracker that refuses, and approval."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false
# The type checker does not look into examples/ for imports yet.

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from typing import Any

import anyio
import httpx2
import pytest

from support import mongo_server
from support.mongo_server import MongoServer
from ticket_assistant.__main__ import main
from ticket_assistant.assistant import Application
from ticket_assistant.chat import chat
from ticket_assistant.database import documents
from ticket_assistant.script import scripted_model
from ticket_assistant.tour import Tour
from ticket_assistant.tracker import create_tracker
from toolbus.stores import MemoryStore, MongoStore
from toolbus.testing import ScriptedProvider, calls, text

LISTED = [{"id": "T1", "summary": "Basket", "status": "open"}]


@pytest.fixture(scope="session")
def mongo() -> MongoServer:
    return mongo_server.shared()


@pytest.fixture
def place(mongo: MongoServer) -> Iterator[tuple[str, str]]:
    """The URL, and a database that nobody has used."""
    with mongo.database() as place:
        yield place


class Screen(list[str]):
    """What is shown; `words` are without line breaks, since long lines are wrapped."""

    @property
    def words(self) -> str:
        return " ".join(" ".join(self).split())


def over(transport: httpx2.AsyncBaseTransport, show: Callable[[str], object], **options: Any) -> Application:
    options = {"provider": scripted_model(), "new_store": MemoryStore, **options}
    return Application(service="http://tracker", transport=transport, show=show, **options)


# ------------------------------------------------------------------------------------------------- the tour


def test_the_command_starts_what_it_needs_gives_the_tour_and_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    check_tour(Screen([shown]).words)
    assert "Model: a script, not a language model (--provider NAME asks one)." in shown.splitlines()[0]
    host, _, port = shown.split("Tracker: http://")[1].split(". ")[0].partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


@pytest.mark.parametrize("anyio_backend", ["trio"])  # the command runs on asyncio
async def test_the_tour_shows_the_same_on_trio(place: tuple[str, str]) -> None:
    screen = Screen()
    application = over(httpx2.ASGITransport(create_tracker()), screen.append, new_store=partial(MongoStore, *place))
    with anyio.fail_after(30):
        await Tour(application, *place).run("ada")
    check_tour(screen.words)


def check_tour(shown: str) -> None:
    """A model is sent earlier calls and their results, whoever has written them; refusals, approval and a restart."""
    _, first, again, refused, person, restart, old = shown.split("=== ")

    assert 'call get_tickets(project="X") GET /projects/X/tickets -> 200 OK' in first
    assert "Assistant: Here is ticket T1: Login page is empty in Firefox (open)." in first

    stored, sent = again.split("Sent to the model with that question:")
    assert '{"sender": "user", "content": "Show me tickets for project X.", "messageType": "text"}' in stored
    assert '{"sender": "assistant", "content": null, "messageType": "tool_calls", "data": {"toolCalls": [' in stored
    assert '"toolName": "get_tickets", "args": {"project": "X"}}], "toolResults": [{"toolCallId": ' in stored
    assert '"result": [{"id": "T1", "project": "X"' in stored
    roles = [part.split('"')[0] for part in sent.split('{"role": "')[1:]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert '"name": "get_tickets", "arguments": "{\\"project\\":\\"X\\"}"' in sent
    assert '{"role": "tool", "tool_call_id": "call1", "content": "[{\\"id\\":\\"T1\\"' in sent
    assert "The oldest of the 3 that I saw is T1 of project X" in sent
    assert "call get_tickets" not in sent.split("You: Which")[1], "it is known from the history alone"

    assert "Assistant: That was not done: there is no project Z; the projects are X, Y (HTTP 404)." in refused

    assert 'May close_ticket run with {"ticket": "T1"}? y or n: y call close_ticket(ticket="T1") PATCH' in person
    assert "failed T1 is closed, and a closed ticket does not change any more (HTTP 409)" in person

    assert "the tracker answers 201; the answer is lost" in restart
    assert restart.count("POST") == restart.count("POST /projects/Y/tickets -> 200 OK") == 1
    assert "Created T4" in restart
    assert "Here are 3 tickets: T2:" in restart

    assert '"toolName": "jira_fetchTickets", "args": {"projectKey": "AAD"}' in old
    assert '"id": "id1", "type": "function", "function": {"name": "jira_fetchTickets"' in old
    assert '{"role": "tool", "tool_call_id": "id1"' in old
    assert "The oldest of the 4 that I saw is AAD-7" in old


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--service", "nonsense"], "there is no issue tracker at nonsense: "),
        (["--service", "http://127.0.0.1:1"], "there is no issue tracker at http://127.0.0.1:1: "),
        (["--service", "http://127.0.0.1:x"], "there is no issue tracker at http://127.0.0.1:x: "),
    ],
)
def test_what_cannot_be_done_is_reported_in_a_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    reported = capsys.readouterr().err
    assert reported.startswith("ticket_assistant: ")
    assert said in reported
    assert reported.count("\n") == 1


# ------------------------------------------------------------------------------------------------- the chat


async def test_in_the_chat_a_person_who_says_no_keeps_a_ticket_open(
    place: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    async def typed() -> AsyncGenerator[str]:
        for line in ("Close T2.", "no", "Show me tickets for project Y.", "history"):
            yield line

    asked: list[str] = []
    application = over(httpx2.ASGITransport(create_tracker()), print, new_store=partial(MongoStore, *place))
    application.on_response.append(_noting(asked))
    with anyio.fail_after(30):
        await chat(application, partial(documents, *place, "ada"), typed(), "ada")
    shown = Screen([capsys.readouterr().out]).words
    assert 'May close_ticket run with {"ticket": "T2"}? y or n: failed the user denied the call.' in shown
    assert "T2: App forgets the basket (open)" in shown
    assert asked == ["GET"]
    assert '"result": {"ok": false, "reason": "denied"' in shown
    assert 'Sent with your last question: {"role": "system"' in shown


def _noting(methods: list[str]) -> Callable[[httpx2.Response], Any]:
    async def note(response: httpx2.Response) -> None:
        methods.append(response.request.method)

    return note


# ------------------------------------------------------------------------------------------------- a tracker that fails


def _gone(_request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("refused")


@pytest.mark.parametrize(
    ("answers", "requests", "said"),
    [
        ([httpx2.Response(503), httpx2.Response(200, json=LISTED)], 2, "Here is ticket T1: Basket (open)."),
        ([httpx2.Response(503)] * 3, 3, "not done: the issue tracker is out of order (HTTP 503)."),
        ([httpx2.Response(403, text="<html>")], 1, "not done: the issue tracker refused this (HTTP 403)."),
        ([_gone] * 3, 3, "not done: the issue tracker cannot be reached; it is not known whether it did this."),
    ],
    ids=["for a moment", "out of order", "without a detail", "out of reach"],
)
@pytest.mark.usefixtures("toolbus_clock")
async def test_what_fails_for_a_moment_is_tried_again_and_the_model_can_tell_what_does_not_go_away(
    answers: list[Any], requests: int, said: str
) -> None:
    left, screen, keys = iter(answers), Screen(), list[str]()

    def answer(request: httpx2.Request) -> httpx2.Response:
        keys.append(request.headers["Idempotency-Key"])
        given = next(left)
        return given if isinstance(given, httpx2.Response) else given(request)

    async with over(httpx2.MockTransport(answer), screen.append).open() as assistant:
        await assistant.say("Show me tickets for project X.", "ada")
    assert said in screen[-1]
    assert len(keys) == requests
    assert sum("tries again: the issue tracker" in line for line in screen) == requests - 1
    assert len({*keys}) == 1, "each attempt has the same key"


async def test_an_id_that_would_lead_to_another_path_is_refused_before_anything_is_asked_for() -> None:
    screen = Screen()
    model = ScriptedProvider([calls(("add_comment", {"ticket": "T1/../T2", "text": "x"})), text("I cannot.")])
    async with over(httpx2.MockTransport(_gone), screen.append, provider=model).open() as assistant:
        await assistant.say("Comment on T1/../T2: x", "ada")
    assert "failed $.ticket" in screen[0]
    assert screen[-1] == "Assistant: I cannot."
