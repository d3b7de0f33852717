"""The application of `create_app`: asking, watching and commanding, each user's own requests, and what is refused."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import quote, unquote

import anyio
import httpx2
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Mount
from starlette.testclient import TestClient

from toolbus import Limits, Runtime, Tool, ToolContext, tool
from toolbus.errors import ConfigurationError, MissingExtra, ProviderUnavailable, StoreUnavailable
from toolbus.events import ReasoningDelta, RequestCancelled, RequestCompleted
from toolbus.handles import RequestHandle
from toolbus.providers.scripted import ScriptedProvider, calls, error, hang, text
from toolbus.stores.memory import MemoryStore
from toolbus.stores.sqlite import SqliteStore
from toolbus.testing import virtual_backends
from toolbus.toolsets.control import task_complete
from toolbus.web import AguiEncoder, create_app
from toolbus.web._ownership import Owner
from toolbus.web._vercel import page_messages

anyio_backend = virtual_backends()
Backend = Literal["asyncio", "trio"]


class Client(TestClient):
    """A client of a user, with the runtime of its application."""

    runtime: Runtime


@tool(needs_approval=True)
async def remove(path: str) -> str:
    """Remove a file."""
    return f"removed {path}"


@tool
async def whoami(context: ToolContext[Any]) -> str:
    """Tell who asks."""
    return str(context.deps)


@tool(return_direct=True)
async def receipt() -> str:
    """Show the receipt."""
    return "Paid: 7 euros."


def _external(name: str) -> Tool:
    return Tool(name=name, description="Ask.", schema={"type": "object"}, external=True)


SCRIPTS: dict[str, list[Any]] = {
    "hi": [text("Hello.")],
    "remove": [calls(("remove", {"path": "/a"}), text="May I?"), text("It is gone.")],
    "locate": [calls(("locate", {})), text("You are in Kyiv.")],
    "pay": [calls(("pay", {})), text("It is paid.")],
    "who": [calls(("whoami", {})), text("That is you.")],
    "receipt": [calls(("receipt", {}), text="Here:")],
    "wait": [hang(after=text("I am beg"))],
    "think": [hang(after=text("", reasoning="Hm, perhaps"))],
    "weigh": [hang(after=text("It is he", reasoning="I weigh it."))],
    "busy": [error(ProviderUnavailable("it is away: secret-host"))],
}


def model() -> ScriptedProvider:
    """The model does what the newest prompt says."""

    def reply(request: Any) -> Any:
        words = [each.text.split()[0] for each in request.messages if each.role == "user"]
        return SCRIPTS[[each for each in words if each in SCRIPTS][-1]][request.round]

    return ScriptedProvider(reply)


def user_of(request: Request) -> str | None:
    """The user, from a header. A real application reads a session or a token."""
    return unquote(request.headers.get("x-user", "")) or None


@contextmanager
def client_of(backend: Backend, user: str = "ann", **options: Any) -> Generator[Client]:
    store = options.pop("store", None)
    tools = [remove, whoami, receipt, _external("locate"), _external("pay")]
    runtime = Runtime(model(), tools=tools, on_approval="wait", store=store, drain_seconds=0, max_queued=0)
    app = cast("Any", create_app)(runtime, **{"authorize": user_of, "client_tools": ["locate"], **options})
    with Client(app, backend=backend) as client:
        client.headers["x-user"] = quote(user)
        client.runtime = runtime
        yield client


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param


@pytest.fixture
def client(backend: Backend) -> Generator[Client]:
    with client_of(backend, may_edit=True) as found:
        yield found


def say(words: str, conversation_id: str = "c1") -> dict[str, Any]:
    """What `useChat` sends."""
    return {"id": conversation_id, "messages": [{"role": "user", "parts": [{"type": "text", "text": words}]}]}


def as_user(name: str) -> dict[str, str]:
    return {"x-user": quote(name)}


def begun(client: Client, words: str, conversation_id: str = "c1") -> str:
    """Begin a request that waits for its page, and return its id."""
    response = client.post("/chat", json=say(words, conversation_id))
    assert response.status_code == 200, response.text
    return response.headers["x-request-id"]


def started(client: Client, words: str, conversation_id: str) -> str:
    """Begin a request beside the routes, and return its id."""
    assert client.portal is not None
    session = client.portal.call(lambda: client.runtime.start(words, conversation_id=conversation_id))
    client.portal.call(session.accepted)
    return session.request_id


def chunks_of(body: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]


def texts_of(body: str) -> str:
    return "".join(each.get("delta", "") for each in chunks_of(body) if each["type"] == "text-delta")


# ------------------------------------------------------------------------------------------------- asking


def test_asking_returns_the_result(client: Client):
    response = client.post("/ask", json={"prompt": "hi", "conversation_id": "c1"})
    found = response.json()
    assert (response.status_code, found["outcome"], found["text"]) == (200, "completed", "Hello.")
    assert (found["conversation_id"], found["explanation"]) == ("c1", "")
    assert found["request_id"] == response.headers["x-request-id"]
    failed = client.post("/ask", json={"prompt": "busy"})
    assert (failed.status_code, failed.json()["outcome"]) == (502, "failed")
    assert "secret" not in json.dumps(failed.json()["explanation"])


@pytest.mark.parametrize("where", ["memory", "here", "restarted", "damaged"])
def test_a_page_that_is_loaded_again_says_why_an_answer_is_not_whole(backend: Backend, tmp_path: Path, where: str):
    def in_one_round(*_: object) -> dict[str, Any]:
        return {"limits": Limits(max_rounds=1)}

    def opened() -> Any:
        store = None if where == "memory" else SqliteStore(tmp_path / "toolbus.db")
        return client_of(backend, store=store, options=in_one_round)

    def shown(client: Client) -> list[Any]:
        listed = client.get("/conversations/c1").json()["requests"]
        last = connected(client, "c1")[-1]
        return [*[each["explanation"] for each in listed], last["type"], last.get("result")]

    with opened() as client:
        stopped = chunks_of(client.post("/chat", json=say("who")).text)[-1]["messageMetadata"]["explanation"]
        failed = chunks_of(client.post("/chat", json=say("busy")).text)[-1]["errorText"]
        assert stopped != failed != ""
        expected = [failed, stopped, "RUN_FINISHED", {"explanation": failed}]
        found = shown(client)
        newest = client.get(f"/requests/{client.get('/conversations/c1').json()['requests'][0]['request_id']}").json()
        assert newest["explanation"] == failed
    if where == "damaged":
        with closing(sqlite3.connect(tmp_path / "toolbus.db")) as database, database:
            database.execute("UPDATE facts SET data = 'x'")
        expected = ["", "", "RUN_FINISHED", None]
    if where in {"restarted", "damaged"}:
        with opened() as client:
            found = shown(client)
            assert len(client.get("/conversations/c1").json()["messages"]) == 3
            begun(client, "hi")
            assert shown(client)[-2:] == ["RUN_FINISHED", None]
    assert found == expected


@pytest.mark.parametrize("where", ["memory", "here", "restarted"])
def test_reasoning_of_a_reply_that_was_cut_off_is_shown_after_a_page_is_loaded_again(
    backend: Backend, tmp_path: Path, where: str
):
    def opened() -> Any:
        store = None if where == "memory" else SqliteStore(tmp_path / "toolbus.db")
        return client_of(backend, store=store)

    def shown(client: Client) -> list[Any]:
        messages = client.get("/conversations/c1").json()["messages"]
        snapshot = next(each["messages"] for each in connected(client, "c1") if each["type"] == "MESSAGES_SNAPSHOT")
        parts = [(each["role"], *[part["text"] for part in each["parts"] if "text" in part]) for each in messages]
        return [parts, [(each["role"], each["content"]) for each in snapshot]]

    async def cut_off(client: Client, words: str) -> None:
        session = client.runtime.start(words, conversation_id="ann/c1")
        await anext(aiter(session.events(ReasoningDelta)))
        await anyio.wait_all_tasks_blocked()
        session.steer("Quick!")
        session.cancel()
        await session.result()

    with opened() as client:
        assert client.portal is not None
        client.portal.call(cut_off, client, "think")
        client.portal.call(cut_off, client, "weigh")
        found = shown(client)
    if where == "restarted":
        with opened() as client:
            found = shown(client)
    assert found[0] == [
        *(("user", "think"), ("assistant", "Hm, perhaps"), ("user", "Quick!")),
        *(("user", "weigh"), ("assistant", "I weigh it.", "It is he"), ("user", "Quick!")),
    ]
    assert found[1] == [
        *(("user", "think"), ("reasoning", "Hm, perhaps"), ("user", "Quick!")),
        *(("user", "weigh"), ("reasoning", "I weigh it."), ("assistant", "It is he"), ("user", "Quick!")),
    ]


def test_asking_streams_events_and_text_that_can_be_rejoined(client: Client):
    events = client.post("/ask/events", json={"prompt": "hi"})
    assert events.text.startswith("id: 1.0\nevent: request_started\n")
    assert events.text.split("\n\n")[-2].startswith("id: ")
    words = client.post("/ask/text", json={"prompt": "hi"})
    assert "event: end\n" in words.text
    path = f"/requests/{events.headers['x-request-id']}"
    assert "event: request_completed\n" in client.get(f"{path}/events").text
    again = client.get(f"{path}/events", headers={"Last-Event-ID": "1.0"}).text
    assert "request_started" not in again
    assert "request_completed" in again
    assert '"outcome":"completed"' in client.get(f"{path}/text").text
    assert client.get(f"{path}/events", headers={"Last-Event-ID": "nonsense"}).status_code == 400
    for whole in (events, words):
        last = whole.text.rpartition("id: ")[2].partition("\n")[0]
        for kind in ("events", "text"):
            path = f"/requests/{whole.headers['x-request-id']}/{kind}"
            assert client.get(path, headers={"Last-Event-ID": last}).status_code == 204


def test_a_client_that_repeats_its_question_when_it_comes_back_starts_nothing(client: Client):
    for path in ("/ask/events", "/ask/text"):
        again = client.post(path, json={"prompt": "hi", "conversation_id": "c1"}, headers={"Last-Event-ID": "3.0"})
        assert (again.status_code, "GET /requests/ID/events" in again.json()["error"]) == (400, True)
    assert client.get("/conversations/c1").json()["requests"] == []


def test_options_of_a_request_come_from_the_application(backend: Backend):
    def options(http: Request, user: str) -> Any:
        return {"deps": f"{user} at {http.headers['x-desk']}"}

    with client_of(backend, options=options) as client:
        found = client.post("/ask", json={"prompt": "who"}, headers={"x-desk": "7"}).json()
        assert found["tool_calls"][0]["ok"]
        path = f"/requests/{found['request_id']}/events"
        assert '"content":"ann at 7"' in client.get(path).text


def test_a_conversation_that_is_busy_in_another_process_is_refused_as_in_this_one(backend: Backend):
    def options(_http: Request, _user: str) -> Any:
        return {"on_busy": "refuse"}

    store = MemoryStore(journal=True)
    assert store.journal is not None
    with client_of(backend, store=store, options=options) as client:
        assert client.portal is not None
        client.portal.call(store.journal.take_turn, "ann/c1", "another request", "another process", 30)
        asked = client.post("/ask", json={"prompt": "hi", "conversation_id": "c1"})
        assert (asked.status_code, asked.json()["reason"]) == (409, "conversation_busy")
        assert asked.json()["explanation"] == "I am still busy with your last message."
        failed = chunks_of(client.post("/ask/events", json={"prompt": "hi", "conversation_id": "c1"}).text)[-1]
        assert (failed["type"], failed["reason"], failed["retryable"]) == ("request_failed", "conversation_busy", True)


SLOW = [text("Hello.", 1, delays=10)]


async def ask_and_leave(
    path: str, leave_seconds: float, script: list[Any] = SLOW, **options: Any
) -> tuple[list[Any], Any]:
    """Ask for an answer, which may take 10 seconds, and leave. Return what the client has got, and the ending."""
    agent = {"threadId": "c1", "runId": "r1", "messages": [{"role": "user", "content": "Hi."}]}
    wire: dict[str, Any] = {"/ask": {"prompt": "Hi."}, "/chat": say("Hi."), "/agent": agent}[path]
    comes = [{"type": "http.request", "body": json.dumps(wire).encode()}, {"type": "http.request", "body": b""}]
    sent: list[Any] = []
    endings: list[Any] = []

    async def receive() -> Any:
        if not comes:
            await anyio.sleep(leave_seconds)
        return comes.pop(0) if comes else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async with Runtime(ScriptedProvider([*script])) as runtime:
        runtime.bus.connect((RequestCompleted, RequestCancelled), endings.append)
        app = create_app(runtime, authorize=lambda _: "ann", **options)
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        with anyio.fail_after(12):
            await app(scope, receive, send)
        await anyio.sleep(20)
    return sent, endings[0]


@pytest.mark.parametrize("path", ["/ask", "/chat", "/agent"])
async def test_a_client_that_leaves_ends_its_request_only_where_that_was_asked(path: str):
    _, ending = await ask_and_leave(path, 1, cancel_on_disconnect=True)
    assert (ending.type, ending.reason) == ("request_cancelled", "the client went away")
    _, ending = await ask_and_leave(path, 1)
    assert ending.type == "request_completed"
    sent, ending = await ask_and_leave(path, 15, cancel_on_disconnect=True)
    assert (ending.type, sent[-1].get("more_body", False)) == ("request_completed", False)


# ------------------------------------------------------------------------------------------------- chat pages


def test_a_page_decides_and_is_loaded_again_in_the_middle(client: Client):
    request_id = begun(client, "remove it", "chat/1")
    page = client.get("/conversations/chat/1").json()
    assert [each["role"] for each in page["messages"]] == ["user"]
    assert page["requests"] == [{**page["requests"][0], "request_id": request_id, "outcome": None}]
    resumed = client.get("/chat/chat/1/stream")
    assert resumed.headers["x-request-id"] == request_id
    (question,) = [each for each in chunks_of(resumed.text) if each["type"] == "tool-approval-request"]
    part = {
        "type": "dynamic-tool",
        "toolCallId": question["toolCallId"],
        "state": "approval-responded",
        "approval": {"id": question["approvalId"], "approved": True},
    }
    body = {"id": "chat/1", "messages": [{"role": "assistant", "parts": [part]}]}
    assert texts_of(client.post("/chat", json=body).text) == "It is gone."
    assert client.get("/chat/chat/1/stream").status_code == 204
    page = client.get("/conversations/chat/1").json()
    assert [each["role"] for each in page["messages"]] == ["user", "assistant"]
    assert page["requests"][0]["outcome"] == "completed"


def test_the_answer_of_a_tool_is_shown_at_once_and_after_a_page_is_loaded_again(client: Client):
    assert client.post("/ask", json={"prompt": "receipt"}).json()["text"] == "Paid: 7 euros."
    assert client.post("/ask/text", json={"prompt": "receipt"}).text.count("Paid: 7 euros.") == 1
    assert texts_of(client.post("/chat", json=say("receipt")).text).endswith("Paid: 7 euros.")
    *_, newest = client.get("/conversations/c1").json()["messages"]
    texts = [each["text"] for each in newest["parts"] if each["type"] == "text"]
    assert texts == ["Here:", "Paid: 7 euros."]


@pytest.mark.parametrize("kind", ["task_complete", "final_answer"])
def test_an_answer_that_is_in_a_call_is_shown_at_once_and_after_a_page_is_loaded_again(backend: Backend, kind: str):
    arguments = {"answer": "All sorted."}
    options: dict[str, Any] = {"output": dict[str, str], "output_mode": "tool"} if kind == "final_answer" else {}
    model = ScriptedProvider([calls((kind, {"answer": "?"}) if options else ("whoami", {})), calls((kind, arguments))])
    runtime = Runtime(model, tools=[task_complete, whoami])
    app = create_app(runtime, authorize=user_of, options=lambda _http, _user: cast("Any", options))
    with Client(app, backend=backend, headers=as_user("ann")) as client:
        shown = texts_of(client.post("/chat", json=say("hi")).text)
        *_, newest = client.get("/conversations/c1").json()["messages"]
    assert [each["text"] for each in newest["parts"] if each["type"] == "text"] == [shown]
    assert "All sorted." in shown or options


async def test_a_page_that_is_loaded_again_is_asked_although_its_next_message_waits():
    async with Runtime(model(), tools=[remove], on_approval="wait") as runtime:
        app = create_app(runtime, authorize=lambda _: "ann")
        asked = runtime.start("remove it", conversation_id="ann/c1")
        waiting = runtime.start("hi there", conversation_id="ann/c1")
        await asked.accepted()
        sent: list[Any] = []

        async def receive() -> Any:
            await anyio.sleep_forever()

        async def send(message: Any) -> None:
            sent.append(message)

        scope: dict[str, Any] = {
            "type": "http",
            "method": "GET",
            "path": "/chat/c1/stream",
            "query_string": b"",
            "headers": [],
        }
        with anyio.fail_after(10):
            await app(scope, receive, send)
        assert b"tool-approval-request" in b"".join(each.get("body", b"") for each in sent)
        asked.cancel()
        waiting.cancel()


async def test_a_page_that_is_loaded_again_shows_the_message_that_waits_for_its_turn():
    async with Runtime(model(), tools=[remove], on_approval="wait", drain_seconds=0) as runtime:
        asked = runtime.start("remove it", conversation_id="ann/c1")
        await asked.accepted()
        runtime.start("hi there", conversation_id="ann/c1")
        transport = httpx2.ASGITransport(app=create_app(runtime, authorize=lambda _: "ann"))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            page = (await client.get("/conversations/c1")).json()
        assert [each["parts"][0]["text"] for each in page["messages"]] == ["remove it", "hi there"]


def test_a_page_has_the_prompt_of_a_request_that_no_process_runs(backend: Backend, tmp_path: Path):
    with client_of(backend, store=SqliteStore(tmp_path / "toolbus.db")) as client:
        begun(client, "remove it")
    with client_of(backend, store=SqliteStore(tmp_path / "toolbus.db")) as client:
        (message,) = client.get("/conversations/c1").json()["messages"]
    assert message["parts"] == [{"type": "text", "text": "remove it"}]


def test_a_long_conversation_is_written_outside_of_the_event_loop(client: Client, monkeypatch: pytest.MonkeyPatch):
    begun(client, "hi there")
    in_loop: list[bool] = []

    def noted(make: Any) -> Any:
        def written(*given: Any, **options: Any) -> Any:
            try:
                anyio.get_current_task()
            except Exception:
                in_loop.append(False)
            else:
                in_loop.append(True)
            return make(*given, **options)

        return written

    monkeypatch.setattr("toolbus.web._app.page_messages", noted(page_messages))
    monkeypatch.setattr("toolbus.web.AguiEncoder.begin", noted(AguiEncoder.begin))
    assert len(client.get("/conversations/c1").json()["messages"]) == 2
    assert len(connected(client, "c1")[1]["messages"]) == 2
    assert in_loop == [False, False]


@pytest.mark.parametrize(("options", "resets"), [({}, 0), ({"ai_sdk_version": 7}, 1)])
async def test_only_a_page_of_the_newer_sdk_is_asked_to_reset_a_step(options: dict[str, Any], resets: int):
    busy = ProviderUnavailable("busy", retryable=True, retry_after_seconds=1)
    sent, _ = await ask_and_leave("/chat", 30, [error(busy, after="I beg"), text("Hello.")], **options)
    assert b"".join(each.get("body", b"") for each in sent).count(b'"reset-step"') == resets


def test_a_client_may_choose_that_its_message_replaces_the_request_that_waits_for_an_answer(backend: Backend):
    def chosen(http: Request, _user: str) -> Any:
        return {"on_busy": http.headers["x-on-busy"]}

    with client_of(backend, options=chosen) as client:
        client.headers["x-on-busy"] = "replace"
        asks = begun(client, "remove")
        assert texts_of(client.post("/chat", json=say("hi")).text) == "Hello."
        about = client.get(f"/requests/{asks}").json()
        assert (about["outcome"], about["approvals"]) == ("cancelled", [])
        ended = chunks_of(client.get(f"/requests/{asks}/events").text)[-1]
        assert (ended["type"], ended["reason"]) == ("request_cancelled", "replaced by a newer message")


def test_an_agent_of_ag_ui_asks_and_its_page_answers(client: Client):
    prompt = {"id": "u", "role": "user", "content": "locate me"}
    body = {"threadId": "t1", "runId": "r1", "messages": [prompt]}
    first = client.post("/agent", json=body)
    assert chunks_of(first.text)[0]["threadId"] == "t1"
    call_id = next(each["toolCallId"] for each in chunks_of(first.text) if each["type"] == "TOOL_CALL_START")
    call = {"id": call_id, "type": "function", "function": {"name": "locate", "arguments": "{}"}}
    reply = {"id": "a", "role": "assistant", "toolCalls": [call]}
    answer = {"id": "t", "role": "tool", "toolCallId": call_id, "content": "Kyiv"}
    rest = client.post("/agent", json={**body, "runId": "r2", "messages": [prompt, reply, answer]})
    said = [each["delta"] for each in chunks_of(rest.text) if each["type"] == "TEXT_MESSAGE_CONTENT"]
    assert "".join(said) == "You are in Kyiv."


def connected(client: Client, thread: str, **options: Any) -> list[dict[str, Any]]:
    """The chunks that a page of AG-UI gets that was loaded again."""
    return chunks_of(client.post("/agent/connect", json={"threadId": thread, "runId": "r9"}, **options).text)


def said_in(chunks: list[dict[str, Any]], kind: str = "TEXT_MESSAGE_CONTENT") -> str:
    return "".join(each["delta"] for each in chunks if each["type"] == kind)


def test_a_page_of_ag_ui_connects_before_while_and_after_a_request_runs(client: Client):
    assert [each["type"] for each in connected(client, "t1")] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    prompt = {"id": "u", "role": "user", "content": [{"type": "text", "text": "remove it"}]}
    asked = chunks_of(client.post("/agent", json={"threadId": "t1", "runId": "r1", "messages": [prompt]}).text)
    again = connected(client, "t1")
    (shown,) = again[1]["messages"]
    assert (shown["role"], shown["content"]) == ("user", [{"type": "text", "text": "remove it"}])
    assert [said_in(again, name) for name in ("TEXT_MESSAGE_CONTENT", "TOOL_CALL_ARGS")] == ["May I?", '{"path":"/a"}']
    (interrupt,) = again[-1]["outcome"]["interrupts"]
    assert again[-1] == {**asked[-1], "runId": "r9"}
    resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
    client.post("/agent", json={"threadId": "t1", "runId": "r2", "messages": [prompt], "resume": resume})
    started, snapshot, finished = connected(client, "t1")
    assert started["runId"] == finished["runId"] == "r9"
    assert [each["role"] for each in snapshot["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert snapshot["messages"][1]["toolCalls"][0]["function"] == {"name": "remove", "arguments": '{"path":"/a"}'}
    assert connected(client, "t1", headers=as_user("bob"))[1]["messages"] == []


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"threadId": 1}'])
def test_a_page_of_ag_ui_that_connects_with_a_wrong_body_is_told(client: Client, body: bytes):
    refused = client.post("/agent/connect", content=body, headers={"content-type": "application/json"})
    assert refused.status_code == 400
    assert refused.json()["error"]


def ends_meanwhile(client: Client, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Begin a request that ends before or after the history is read for its page."""
    request_id = begun(client, "remove it")
    history = client.runtime.store.history

    async def read(conversation_id: str) -> Any:
        found = await history(conversation_id)
        handle = client.runtime.request(request_id)
        for question in await handle.pending_approvals():
            await handle.approve(question)
        await handle.result()
        return found if when == "after" else await history(conversation_id)

    monkeypatch.setattr(client.runtime.store, "history", read)


@pytest.mark.parametrize(("when", "roles"), [("before", ["user", "assistant"]), ("after", ["user"])])
def test_the_prompt_of_a_turn_that_ends_while_its_page_is_loaded_is_shown_once(
    client: Client, monkeypatch: pytest.MonkeyPatch, when: str, roles: list[str]
):
    ends_meanwhile(client, monkeypatch, when)
    page = client.get("/conversations/c1").json()
    assert [each["role"] for each in page["messages"]] == roles
    assert page["requests"][0]["outcome"] is None  # so the page goes on to read its stream


@pytest.mark.parametrize("when", ["before", "after"])
def test_replies_that_the_store_has_already_come_only_with_the_events_of_their_request(
    client: Client, monkeypatch: pytest.MonkeyPatch, when: str
):
    ends_meanwhile(client, monkeypatch, when)
    again = connected(client, "c1")
    assert [each["role"] for each in again[1]["messages"]] == ["user"]
    assert said_in(again) == "May I?It is gone."


def test_a_page_has_the_prompt_of_a_later_turn_while_it_runs(client: Client):
    begun(client, "hi")
    request_id = started(client, "wait a little", "ann/c1")
    page = client.get("/conversations/c1").json()
    client.post(f"/requests/{request_id}/cancel", json={})
    assert [each["parts"][0]["text"] for each in page["messages"] if each["role"] == "user"] == ["hi", "wait a little"]


def test_a_request_that_waits_for_its_turn_has_no_questions(client: Client):
    begun(client, "remove it")
    assert client.portal is not None
    waiting = client.portal.call(lambda: client.runtime.start("hi", conversation_id="ann/c1"))
    about = client.get(f"/requests/{waiting.request_id}").json()
    assert (about["outcome"], about["approvals"]) == (None, [])


def test_the_same_prompt_is_answered_again(client: Client):
    begun(client, "hi there")
    again = client.post("/chat", json={**say("hi there"), "trigger": "regenerate-message"})
    assert texts_of(again.text) == "Hello."
    assert len(client.get("/conversations/c1").json()["messages"]) == 4


# ------------------------------------------------------------------------------------------------- commands


def test_requests_are_decided_steered_and_cancelled_by_their_owner(client: Client):
    request_id = begun(client, "remove it")
    path = f"/requests/{request_id}"
    about = client.get(path).json()
    assert (about["outcome"], about["conversation_id"]) == (None, "c1")
    (question,) = about["approvals"]
    assert (question["name"], question["arguments"]) == ("remove", {"path": "/a"})
    assert client.post(f"{path}/steer", json={"text": "Be brief."}).json() == {"status": "done"}
    other = {"id": question["id"] + "0", "approved": True}
    assert client.post(f"{path}/decide", json=other).status_code == 409
    edited = {"id": question["id"], "approved": True, "arguments": {"path": "/b"}}
    deep = {**edited, "arguments": {"path": json.loads("[" * 253 + "]" * 253)}}
    refused = client.post(f"{path}/decide", json=deep)
    assert (refused.status_code, refused.json()["error"].partition(":")[0]) == (400, "arguments cannot be kept")
    assert client.post(f"{path}/decide", json=edited).json() == {"status": "done"}
    client.get(f"{path}/text")
    assert client.get(path).json() == {**about, "outcome": "completed", "approvals": []}
    assert '"removed /b"' in client.get(f"{path}/events").text
    assert '"by":"ann"' in client.get(f"{path}/events").text
    late = client.post(f"{path}/decide", json=edited)
    assert (late.status_code, late.json()) == (409, {"status": "ended"})
    assert client.post(f"{path}/cancel", json={}).status_code == 409
    waits = begun(client, "remove it", "c2")
    assert client.post(f"/requests/{waits}/cancel", json={"reason": "enough"}).json() == {"status": "done"}
    client.get(f"/requests/{waits}/text")
    assert client.get(f"/requests/{waits}").json()["outcome"] == "cancelled"


def test_arguments_are_edited_only_where_the_application_lets_users_do_it(backend: Backend):
    with client_of(backend) as client:
        request_id = begun(client, "remove it")
        path = f"/requests/{request_id}"
        (question,) = client.get(path).json()["approvals"]
        payload = {"approved": True, "editedArgs": {"path": "/b"}}
        resumed = [{"interruptId": question["id"], "status": "resolved", "payload": payload}]
        for refused in (
            client.post(f"{path}/decide", json={"id": question["id"], "approved": True, "arguments": {"path": "/b"}}),
            client.post("/agent", json={"threadId": "c1", "runId": "r", "messages": [], "resume": resumed}),
        ):
            assert (refused.status_code, "cannot be edited here" in refused.json()["error"]) == (403, True)
        assert client.post(f"{path}/decide", json={"id": question["id"], "approved": True}).json() == {"status": "done"}
        assert '"removed /a"' in client.get(f"{path}/events").text


def test_a_denial_keeps_its_reason_and_whether_it_is_for_good(client: Client):
    request_id = begun(client, "remove it")
    path = f"/requests/{request_id}"
    (question,) = client.get(path).json()["approvals"]
    denied = {"id": question["id"], "approved": False, "reason": "too risky", "remember": True}
    assert client.post(f"{path}/decide", json=denied).json() == {"status": "done"}
    client.get(f"{path}/text")
    (decided,) = [each for each in chunks_of(client.get(f"{path}/events").text) if each["type"] == "approval_decided"]
    assert {"approved": False, "reason": "too risky", "remember": True, "by": "ann"}.items() <= decided.items()


def test_a_page_may_answer_that_a_call_has_failed(client: Client):
    request_id = begun(client, "locate me")
    answer = {"call_id": f"{request_id}_0_0", "name": "locate", "error": "no permission"}
    assert client.post(f"/requests/{request_id}/answer", json=answer).json() == {"status": "done"}
    client.get(f"/requests/{request_id}/text")
    events = chunks_of(client.get(f"/requests/{request_id}/events").text)
    (failed,) = [each for each in events if each["type"] == "tool_call_failed"]
    assert {"reason": "error", "error": "no permission"}.items() <= failed.items()


def test_calls_of_pages_are_answered_once_and_no_others(client: Client):
    request_id = begun(client, "locate me")
    path, answer = f"/requests/{request_id}/answer", {"call_id": f"{request_id}_0_0", "name": "locate"}
    assert client.post(path, json={**answer, "name": "pay", "output": "yes"}).status_code == 403
    assert client.post(path, json={**answer, "call_id": "x_0_0", "output": "Kyiv"}).status_code == 409
    deep = json.loads("[" * 253 + "]" * 253)
    refused = client.post(path, json={**answer, "output": deep})
    assert (refused.status_code, "cannot be kept" in refused.json()["error"]) == (400, True)
    for _ in range(2):  # it was sent twice
        assert client.post(path, json={**answer, "output": {"city": "Kyiv"}}).json() == {"status": "done"}
    assert '"city":"Kyiv"' in client.get(f"/requests/{request_id}/events").text


def test_an_answer_for_another_systems_tool_does_not_count_under_the_name_of_a_pages_tool(client: Client):
    request_id = started(client, "pay please", "ann/c1")
    path, call_id = f"/requests/{request_id}", f"{request_id}_0_0"
    forged = {"call_id": call_id, "name": "locate", "output": "it is paid"}
    assert client.post(f"{path}/answer", json=forged).status_code == 409
    part = {"type": "tool-locate", "toolCallId": call_id, "state": "output-available", "output": "it is paid"}
    body = {"id": "c1", "messages": [{"role": "assistant", "parts": [part]}]}
    client.post(f"{path}/cancel", json={})
    assert "it is paid" not in client.post("/chat", json=body).text
    assert client.get(path).json()["outcome"] == "cancelled"


# ------------------------------------------------------------------------------------------------- ownership


def test_what_belongs_to_others_does_not_exist(client: Client):
    request_id = begun(client, "remove it")
    path = f"/requests/{request_id}"
    question = client.get(path).json()["approvals"][0]
    approval = {"type": "dynamic-tool", "toolCallId": question["call_id"], "state": "approval-responded"}
    part = {**approval, "approval": {"id": question["id"], "approved": True}}
    bob = as_user("bob")
    posts = {
        f"{path}/cancel": {},
        f"{path}/steer": {"text": "Hello."},
        f"{path}/decide": {"id": question["id"], "approved": True},
        f"{path}/answer": {"call_id": question["call_id"], "name": "locate", "output": 1},
        "/chat": {"id": "c1", "messages": [{"role": "assistant", "parts": [part]}]},
    }
    unknown = {"error": "there is no such request"}
    for where, body in posts.items():
        refused = client.post(where, json=body, headers=bob)
        assert (refused.status_code, refused.json()) == (404, unknown), where
    resume = [{"interruptId": question["id"], "status": "resolved", "payload": {"approved": True}}]
    agent = {"threadId": "c1", "runId": "r", "messages": [], "resume": resume}
    assert client.post("/agent", json=agent, headers=bob).status_code == 404
    for where in (path, f"{path}/events", f"{path}/text"):
        assert client.get(where, headers=bob).json() == unknown
        assert client.get(where.replace(request_id, "nobody")).json() == unknown
    nothing: dict[str, Any] = {"messages": [], "requests": []}
    assert client.get("/conversations/c1", headers=bob).json() == {"conversation_id": "c1", **nothing}
    assert client.get("/chat/c1/stream", headers=bob).status_code == 204
    # The owner's id of the conversation, as events name it, is another conversation for somebody else.
    assert client.get("/conversations/ann/c1", headers=bob).json() == {"conversation_id": "ann/c1", **nothing}
    assert len(client.get("/conversations/ann/c1").json()["requests"]) == 1
    assert client.get(path).json()["approvals"] == [question]
    # In another conversation of the same user, the request is not the one that was asked.
    assert client.post("/chat", json={**posts["/chat"], "id": "c2"}).status_code == 404


NAMES = ["ann", "an", "ann/c1", "ann%2Fc1", "анна", "%", "a b", "\U0001f600", "ANN"]


def test_no_users_name_is_the_beginning_of_another_ones(client: Client):
    for name in NAMES:
        client.post("/ask", json={"prompt": "hi", "conversation_id": "c1"}, headers=as_user(name))
        client.post("/ask", json={"prompt": "hi", "conversation_id": f"of {name}"}, headers=as_user(name))
    for name in NAMES:
        found = client.get("/conversations", headers=as_user(name)).json()["conversations"]
        assert sorted(each["conversation_id"] for each in found) == sorted(["c1", f"of {name}"])
        assert len(client.get("/conversations/c1", headers=as_user(name)).json()["messages"]) == 2


@pytest.mark.parametrize(
    "conversation_id",
    ["\u0431\u0435\u0441\u0435\u0434\u0430 5", "\u4f1a\u8a71", "\U0001f600", "a%2Fb/c", "../x", "?q=1#f", "/stream"],
)
def test_a_conversations_id_may_be_in_any_alphabet(client: Client, conversation_id: str):
    asked = client.post("/ask", json={"prompt": "hi", "conversation_id": conversation_id})
    assert asked.json()["conversation_id"] == conversation_id
    assert unquote(asked.headers["x-conversation-id"]) == conversation_id
    assert client.get("/conversations").json()["conversations"][0]["conversation_id"] == conversation_id
    if conversation_id not in ("../x", "a%2Fb/c"):  # This client resolves dots, and decodes a path twice.
        path = f"/conversations/{quote(conversation_id, safe='')}"
        assert client.get(path).json()["conversation_id"] == conversation_id


def test_a_conversations_id_is_bounded_and_has_no_control_characters(client: Client):
    for wrong in ("c" * 201, "c\n1", "c\x001", "\x9b"):
        refused = client.post("/ask", json={"prompt": "hi", "conversation_id": wrong})
        assert refused.status_code == 400
        assert "the conversation's id has" in refused.text
    with pytest.raises(HTTPException):
        Owner("ann").stored("\ud800")  # Some servers decode paths so.
    assert client.post("/ask", json={"prompt": "hi", "conversation_id": "c" * 200}).status_code == 200
    assert client.get(f"/conversations/{'c' * 200}").status_code == 200
    assert client.get(f"/conversations/{'c' * 201}").status_code == 400
    assert len(client.get("/conversations").json()["conversations"]) == 1


def test_conversations_are_searched_and_bounded(client: Client):
    for number in range(3):
        client.post("/ask", json={"prompt": f"hi {number}", "conversation_id": f"c{number}"})
    listed = client.get("/conversations?limit=2").json()["conversations"]
    assert [each["conversation_id"] for each in listed] == ["c2", "c1"]
    assert listed[0].keys() == {"conversation_id", "title", "message_count", "started_at", "updated_at"}
    (found,) = client.get("/conversations", params={"search": "hi 1"}).json()["conversations"]
    assert found["title"] == "hi 1"
    (newest,) = client.get("/conversations", params={"limit": "1"}).json()["conversations"]
    assert newest["conversation_id"] == "c2"
    assert client.get("/conversations", params={"limit": "1000"}).status_code == 200
    for limit in ("0", "-1", "x", "9" * 5_000, "1001", "000001", "\u0663"):
        assert client.get("/conversations", params={"limit": limit}).status_code == 400


# ------------------------------------------------------------------------------------------------- refused


PATHS = ["/ask", "/ask/events", "/ask/text", "/chat", "/agent"]
BODIES: list[bytes] = [
    b"",
    b"null",
    b'["hi"]',
    b'{"prompt": "hi"',
    b'{"prompt": ""}',
    b'{"prompt": " \\n"}',
    b'{"prompt": 7}',
    b'{"prompt": NaN}',
    b'{"prompt": "\\ud83d"}',
    b'{"prompt": "\xff"}',
    b'{"prompt": "hi", "conversation_id": "a\\r\\nX-Admin: yes"}',
    b'{"prompt": "hi", "conversation_id": "\\u0000"}',
    b'{"prompt": "hi", "conversation_id": {}}',
    b'{"prompt": "hi", "conversation_id": "%s"}' % (b"a" * 201),
    b'{"prompt": "hi", "user": "bob"}',
    b'{"prompt": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    b'{"prompt": [' + b"0," * 100_001 + b"0]}",
]


@pytest.mark.parametrize("path", PATHS)
def test_what_is_no_question_is_refused_before_anything_is_started(path: str):
    with client_of("asyncio") as client:
        for body in BODIES:
            refused = client.post(path, content=body, headers={"content-type": "application/json"})
            assert refused.status_code == 400, body[:80]
            assert refused.json().keys() == {"error"}
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
            refused = client.post(path, content=b'{"prompt": "hi"}', headers={"content-type": kind})
            assert refused.status_code == 415
        huge = b'{"prompt": "%s"}' % (b"a" * 4 * 2**20)
        assert client.post(path, content=huge, headers={"content-type": "application/json"}).status_code == 413
        assert client.runtime.bus.statistics().position == 0


def test_commands_with_wrong_bodies_are_refused(client: Client):
    request_id = begun(client, "remove it")
    wrong: dict[str, list[Any]] = {
        "cancel": [[], {"reason": 1}, {"why": ""}],
        "steer": [{}, {"text": " "}, {"text": None}],
        "decide": [{}, {"id": "x"}, {"id": "x", "approved": "yes"}, {"id": "x", "approved": 1}],
        "answer": [{}, {"call_id": "x"}, {"call_id": 1, "name": "locate"}],
    }
    for command, bodies in wrong.items():
        for body in bodies:
            refused = client.post(f"/requests/{request_id}/{command}", json=body)
            assert refused.status_code == 400, body
        assert client.post(f"/requests/{request_id}/{command}", content=b"{}").status_code == 415
        assert client.get(f"/requests/{request_id}/{command}").status_code == 405
    assert len(client.get(f"/requests/{request_id}").json()["approvals"]) == 1


@pytest.mark.parametrize("request_id", ["%00", "%ff%fe", "%ed%a0%80", "..%2f..%2fetc", "a" * 5_000, "%0d%0aX: y"])
def test_odd_ids_of_requests_are_unknown(backend: Backend, request_id: str, tmp_path: Path):
    with client_of(backend, store=SqliteStore(tmp_path / "toolbus.db")) as client:
        for path in ("", "/events", "/text"):
            assert client.get(f"/requests/{request_id}{path}").status_code == 404
        assert client.post(f"/requests/{request_id}/cancel", json={}).status_code == 404


@pytest.mark.parametrize("request_id", ["a%00", "%ff%fe", "%0d%0aX: y"])
def test_an_id_that_a_database_may_refuse_does_not_reach_the_store(client: Client, request_id: str):
    client.runtime.request = cast("Any", None)
    assert client.get(f"/requests/{request_id}").status_code == 404


@pytest.mark.parametrize(("answer", "status"), [("done", 200), ("queued", 202), ("ended", 409), ("unknown", 404)])
def test_a_commands_answer_has_a_status(client: Client, answer: str, status: int, monkeypatch: pytest.MonkeyPatch):
    async def cancel(*_: Any) -> str:
        return answer

    monkeypatch.setattr(RequestHandle, "cancel", cancel)
    response = client.post(f"/requests/{begun(client, 'remove it')}/cancel", json={})
    assert (response.status_code, response.json()) == (status, {"status": answer})


def test_answers_for_several_requests_at_once_are_refused(client: Client):
    parts = [
        {"type": "tool-locate", "toolCallId": f"{request_id}_0_0", "state": "output-available", "output": "Kyiv"}
        for request_id in ("r1", "r2")
    ]
    refused = client.post("/chat", json={"id": "c1", "messages": [{"role": "assistant", "parts": parts}]})
    assert (refused.status_code, "one request" in refused.json()["error"]) == (400, True)


def test_nobody_gets_in_without_a_user(client: Client):
    del client.headers["x-user"]
    gets = ["/conversations", "/conversations/c1", "/chat/c1/stream", "/requests/r", "/requests/r/events"]
    posts = [*PATHS, "/requests/r/cancel", "/requests/r/steer", "/requests/r/decide", "/requests/r/answer"]
    for response in [*map(client.get, gets), *(client.post(path, json={}) for path in posts)]:
        assert (response.status_code, response.json()) == (401, {"error": "log in first"})


def test_who_authorizes_may_wait_and_refuse(backend: Backend):
    async def authorize(http: Request) -> str:
        if http.method == "POST" and http.headers["x-user"] == "guest":
            raise HTTPException(403, "guests may only read")
        return http.headers["x-user"]

    with client_of(backend, "guest", authorize=authorize) as client:
        refused = client.post("/ask", json={"prompt": "hi"})
        assert (refused.status_code, refused.json()) == (403, {"error": "guests may only read"})
        assert client.get("/conversations").status_code == 200


@pytest.mark.parametrize("wrong", ["", 7, True, b"ann"])
def test_a_user_that_is_no_text_is_an_error_of_the_application(wrong: Any):
    def authorize(_http: Request) -> Any:
        return wrong

    with client_of("asyncio", authorize=authorize) as client, pytest.raises(ConfigurationError, match="a text"):
        client.get("/conversations")


async def options_of_tenant(_http: Request, _user: str) -> Any:
    return {}


def no_options(_http: Any, _user: str) -> None:
    """Return nothing, by mistake."""


def test_options_that_are_no_dictionary_are_an_error_of_the_application():
    with (
        client_of("asyncio", options=cast("Any", no_options)) as client,
        pytest.raises(ConfigurationError) as refused,
    ):
        client.post("/ask", json={"prompt": "hi"})
    assert str(refused.value) == "options has returned a NoneType (None); return a dictionary"


def test_an_application_that_was_mounted_without_its_middleware_says_what_is_missing(caplog: pytest.LogCaptureFixture):
    mounted = Starlette(routes=[Mount("/api", create_app(Runtime(model()), authorize=user_of))])
    with TestClient(mounted) as client:
        refused = client.post("/api/ask", json={"prompt": "hi"}, headers={"x-user": "ann"})
    assert (refused.status_code, refused.json()) == (503, {"error": "the server is starting or closing"})
    assert "which RuntimeMiddleware enters if it is around a whole web application" in caplog.text


def test_wrong_options_are_refused():
    runtime, make = Runtime(model()), cast("Any", create_app)
    wrong: list[dict[str, Any]] = [
        {"authorize": "ann"},
        {"authorize": lambda: "ann"},
        {"heartbeat_seconds": 0},
        {"max_body_bytes": 0},
        {"ai_sdk_version": 5},
        {"client_tools": "locate"},
        {"client_tools": None},
        {"options": {"deps": 1}},
        {"options": user_of},
        {"options": options_of_tenant},
    ]
    for options in wrong:
        with pytest.raises(ConfigurationError):
            make(runtime, **{"authorize": user_of, **options})
    for given in (model(), Runtime, lambda: runtime):
        with pytest.raises(ConfigurationError, match=r"^runtime is .*; pass a Runtime$"):
            make(given, authorize=user_of)
    make(runtime, authorize=user_of, max_body_bytes=1)


def test_too_much_at_once_and_a_closing_server_are_503(backend: Backend):
    runtime = Runtime(model(), max_sessions=1, max_queued=0, drain_seconds=0)
    with Client(create_app(runtime, authorize=user_of), backend=backend) as client:
        client.headers["x-user"] = "ann"
        client.runtime = runtime
        started(client, "wait", "ann/c1")
        for path in PATHS[:3]:
            refused = client.post(path, json={"prompt": "hi"})
            assert (refused.status_code, refused.json()["error"]) == (503, "the server is busy at the moment")
            assert int(refused.headers["retry-after"]) >= 1
        assert client.post("/chat", json=say("hi", "c2")).status_code == 503
        assert client.portal is not None
        client.portal.call(runtime.drain)
        closing = client.post("/ask", json={"prompt": "hi"})
        assert (closing.status_code, closing.json()) == (503, {"error": "the server is starting or closing"})


def test_a_store_that_is_away_is_503_without_its_address(backend: Backend):
    class Away(MemoryStore):
        async def conversations(self, **_: Any) -> Any:
            raise StoreUnavailable("postgres://secret-host is away")

    with client_of(backend, store=Away()) as client:
        response = client.get("/conversations")
        assert (response.status_code, "secret" in response.text) == (503, False)


def test_a_question_that_the_store_does_not_take_is_503(backend: Backend):
    store = MemoryStore(journal=True)

    async def away(*_: Any) -> Any:
        raise StoreUnavailable("postgres://secret-host is away")

    with client_of(backend, store=store) as client:
        cast("Any", store.journal).append = away
        response = client.post("/ask", json={"prompt": "hi"})
        words = {"error": "I could not finish because my storage cannot be used at the moment."}
        assert (response.status_code, response.json()) == (503, words)
        asked = client.get(f"/requests/{response.headers['x-request-id']}").json()
        assert (asked["outcome"], asked["explanation"]) == ("failed", words["error"])


def test_a_request_that_no_response_can_be_made_of_is_cancelled(client: Client, monkeypatch: pytest.MonkeyPatch):
    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError("no headers today")

    monkeypatch.setattr("toolbus.web._app._headers_of", fails)
    for path, body in (("/ask/events", {"prompt": "wait"}), ("/chat", say("wait")), ("/ask/text", {"prompt": "wait"})):
        with pytest.raises(ValueError, match="no headers today"):
            client.post(path, json=body)
    assert client.portal is not None
    client.portal.call(anyio.wait_all_tasks_blocked)
    assert client.runtime.statistics().running == 0


def test_requests_of_the_application_itself_are_nobodys(client: Client):
    request_id = started(client, "remove it", "a conversation of the application")
    for user in ("ann", "a conversation of the application", "a"):
        assert client.get(f"/requests/{request_id}", headers=as_user(user)).status_code == 404


@pytest.mark.parametrize("mounted", ["", "/support"])
def test_a_page_is_served_where_it_was_asked_for(mounted: str):
    runtime = Runtime(model())
    app = Starlette(routes=[Mount(mounted or "/", create_app(runtime, authorize=user_of, page=True))])
    with TestClient(app) as client:
        page = client.get(f"{mounted}/")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "script-src 'self'; " in page.headers["content-security-policy"]
        asked_for = re.findall(r'(?:href|src)="([^":]+)"', page.text)
        assert asked_for == ["chat.css", "chat.js"]  # relative, so that the page may be mounted anywhere
        asked_for += ["markdown.js", "vendor/marked.mjs", "vendor/LICENSES.txt"]
        assert [client.get(f"{mounted}/{each}").status_code for each in asked_for] == [200] * 5
        assert client.get(f"{mounted}/conversations").status_code == 401
        assert client.get(f"{mounted}/conversations", headers=as_user("ann")).json() == {"conversations": []}


def test_there_is_no_page_unless_it_is_asked_for(client: Client):
    assert client.get("/").status_code == 404
    assert client.get("/chat.js").status_code == 404


def test_without_starlette_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    monkeypatch.delitem(sys.modules, "toolbus.web._starlette")
    spec = find_spec("toolbus.web._app")
    assert spec
    assert spec.loader
    with pytest.raises(MissingExtra, match=r"toolbus\[web\]"):
        spec.loader.exec_module(module_from_spec(spec))
