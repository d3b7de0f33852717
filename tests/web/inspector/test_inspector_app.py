"""The inspector's application without a browser: its streams, commands and errors, on a runtime, a store and a recording."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from inspected_runtime import RESEARCH, SCENES, TOKEN, TOOLS, trip
from starlette.applications import Starlette
from starlette.routing import Mount

from toolbus import Runtime, sub_request_tool
from toolbus.errors import ConfigurationError, StoreDamaged, StoreUnavailable, UnknownRequest
from toolbus.events import ApprovalDecided, RequestCompleted, RequestStarted, ToolCallRequested
from toolbus.messages import ToolMessage, UserMessage
from toolbus.providers.scripted import ScriptedProvider, calls, error, hang, text
from toolbus.storage import Entry, Store
from toolbus.stores import MemoryStore
from toolbus.testing import record, replay, virtual_backends
from toolbus.testing.recording import RecordingError, ReplayDifference, recording_of
from toolbus.web import create_inspector
from toolbus.web.inspector import Inspector, RecordingSource, StoreSource, _actions, _app  # pyright: ignore[reportPrivateUsage]
from toolbus.web.inspector._event_list import listed
from toolbus.web.inspector._transcript import transcript

anyio_backend = virtual_backends()


class Caller:
    """Calls an ASGI application as a server does, with the token."""

    def __init__(self, app: Any, *, token: str = TOKEN, prefix: str = "") -> None:
        self._app = app
        self._token = token
        self._prefix = prefix

    def _scope(self, method: str, path: str) -> dict[str, Any]:
        where, _, query = path.partition("?")
        head = [(b"host", b"127.0.0.1:8000"), (b"authorization", f"Bearer {self._token}".encode())]
        return {
            "type": "http",
            "method": method,
            "path": self._prefix + where,
            "raw_path": (self._prefix + where).encode(),
            "query_string": query.encode(),
            "headers": head,
            "client": ("127.0.0.1", 5),
            "scheme": "http",
            "server": ("127.0.0.1", 8000),
            "asgi": {"spec_version": "2.3"},
        }

    async def call(self, path: str, body: Any = None, *, method: str = "") -> tuple[int, Any]:
        """Return the status and the body, which is read as JSON where it is JSON."""
        sent: list[Any] = []
        method = method or ("GET" if body is None else "POST")
        written = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()

        async def receive() -> Any:
            return {"type": "http.request", "body": written}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._app(self._scope(method, path), receive, send)
        whole = b"".join(each.get("body", b"") for each in sent[1:])
        kinds = dict(sent[0]["headers"])
        return sent[0]["status"], json.loads(whole) if kinds.get(
            b"content-type"
        ) == b"application/json" else whole.decode()

    async def frames(
        self, path: str, most: int = 1, found: list[tuple[str, Any]] | None = None
    ) -> list[tuple[str, Any]]:
        """Return the first frames of a stream, and go away."""
        found = [] if found is None else found
        left = anyio.Event()

        async def receive() -> Any:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            for block in message.get("body", b"").decode().split("\n\n"):
                fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
                if fields and len(found) < most:
                    found.append((fields["event"], json.loads(fields["data"])))
            if len(found) >= most or (message["type"] == "http.response.start" and message["status"] != 200):
                left.set()

        with anyio.fail_after(60):
            await self._app(self._scope("GET", path), receive, send)
        return found

    async def view(self, request_id: str) -> dict[str, Any]:
        """Return what the page shows of a request."""
        [(event, found)] = await self.frames(f"/api/requests/{request_id}")
        assert event == "view"
        return found

    async def listed(self) -> list[dict[str, Any]]:
        """Return the rows of the list, once the facts of all requests are read."""
        for _ in range(20):
            [(_, found)] = await self.frames("/api/overview")
            if all(each["prompt"] for each in found["requests"]):
                return found["requests"]
        raise AssertionError(found)


@asynccontextmanager
async def inspected(**options: Any) -> AsyncGenerator[tuple[Runtime[Any], Caller]]:
    async with Runtime(ScriptedProvider([]), tools=[*TOOLS, RESEARCH], drain_seconds=0, **options) as runtime:
        yield runtime, Caller(create_inspector(runtime, token=TOKEN, by="tester"))


def begin(runtime: Runtime[Any], scene: str, **options: Any) -> Any:
    return runtime.start(f"Scene {scene}", provider=ScriptedProvider(SCENES[scene]()), **options)


async def asked(session: Any) -> Any:
    """Return the first question of a request."""
    with anyio.fail_after(60):
        while not session.pending_approvals:  # noqa: ASYNC110 -- time is virtual
            await anyio.sleep(0.01)
    return session.pending_approvals[0]


# ------------------------------------------------------------------------------------------------------- streams


async def test_a_list_that_does_not_change_is_sent_once_and_at_once():
    async with inspected() as (runtime, caller):
        await begin(runtime, "plain").result()
        await caller.listed()
        began = anyio.current_time()
        await caller.frames("/api/overview")
        assert anyio.current_time() == began
        with anyio.move_on_after(30) as waiting:
            await caller.frames("/api/overview", 2)
        assert waiting.cancelled_caught


async def test_the_list_and_the_statistics_follow_the_runtime():
    async with inspected() as (runtime, caller):
        await begin(runtime, "plain").result()
        session = begin(runtime, "trip")
        question = await asked(session)
        [(event, found)] = await caller.frames("/api/overview")
        assert (event, found["source"], found["can_act"]) == ("overview", "runtime", True)
        assert [(each["prompt"], each["state"]) for each in found["requests"]] == [
            ("Scene trip", "waiting"),
            ("Scene plain", "completed"),
        ]
        assert found["statistics"]["pending_approvals"] == 1
        session.deny(question)


async def test_a_stream_sends_what_has_changed_and_then_only_heartbeats():
    async with inspected() as (runtime, caller):
        session = begin(runtime, "trip")
        question = await asked(session)
        frames: list[Any] = []
        async with anyio.create_task_group() as group:
            group.start_soon(caller.frames, f"/api/requests/{session.request_id}", 4, frames)
            await anyio.sleep(40)
            before = [event for event, _ in frames]
            session.approve(question)
    assert before == ["view", "transcript"]
    assert [event for event, _ in frames[2:]] in (["view", "transcript"], ["view", "view"])
    assert frames[2][1]["approvals"] == []


async def test_a_stream_that_is_silent_sends_a_comment_every_fifteen_seconds():
    await anyio.sleep(20)
    began, news = anyio.current_time(), [[b"view"]]

    async def look() -> list[bytes]:
        return news.pop() if news else []

    frames = _app._frames(look)  # pyright: ignore[reportPrivateUsage]
    found = [(await anext(frames), anyio.current_time() - began) for _ in range(3)]
    await frames.aclose()
    assert found == [(b"view", 0.0), (b": \n\n", 15.0), (b": \n\n", 30.0)]


async def test_what_comes_after_a_silence_is_sent():
    """A look at a slow store may take longer than the time until a heartbeat."""

    async def look() -> list[bytes]:
        await anyio.sleep(20)
        return [b"view"]

    frames = _app._frames(look)  # pyright: ignore[reportPrivateUsage]
    assert [await anext(frames) for _ in range(2)] == [b"view"] * 2
    await frames.aclose()


async def test_a_page_stays_up_to_date_although_others_look_at_more_requests(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolbus.web.inspector._sources.MAX_FOLLOWED", 1)
    async with inspected(store=MemoryStore(journal=True)) as (runtime, _):
        caller = Caller(Inspector(StoreSource(runtime.store, "store"), token=TOKEN))
        other = await begin(runtime, "plain").result()
        session = begin(runtime, "trip")
        question = await asked(session)
        frames: list[Any] = []
        async with anyio.create_task_group() as group:
            group.start_soon(caller.frames, f"/api/requests/{session.request_id}", 3, frames)
            await anyio.sleep(2)
            assert [len(each[1].get("approvals", "-")) for each in frames] == [1, 1]
            assert (await caller.call(f"/api/requests/{other.request_id}/events"))[0] == 200
            session.approve(question)
    assert (frames[2][0], frames[2][1]["approvals"]) == ("view", [])


async def test_a_request_that_is_unknown_is_404_before_a_stream_begins():
    async with inspected() as (_, caller):
        for path in ("/api/requests/none", "/api/requests/none/events"):
            assert (await caller.call(path))[0] == 404
        assert (await caller.call("/api/requests/none/cancel", {}))[0] == 404


async def test_only_the_headers_of_a_stream_are_sent_where_only_they_were_asked_for():
    async with inspected() as (runtime, caller):
        session = begin(runtime, "hang")
        for path in ("/api/overview", f"/api/requests/{session.request_id}"):
            with anyio.fail_after(5):
                assert await caller.call(path, method="HEAD") == (200, "")
        assert await caller.frames("/api/overview")


async def test_at_most_32_streams_are_open_and_each_is_given_back():
    async with inspected() as (runtime, caller):
        session = begin(runtime, "hang")
        path = f"/api/requests/{session.request_id}"
        async with anyio.create_task_group() as group:
            for _ in range(32):
                group.start_soon(caller.frames, path, 1_000)
            await anyio.sleep(1)
            assert (await caller.call("/api/overview"))[0] == 503
            group.cancel_scope.cancel()
        assert await caller.frames(path) != []
        session.cancel()


async def test_the_page_and_its_files_need_no_token_and_load_nothing_else():
    async with inspected() as (runtime, _):
        inspector = create_inspector(runtime)
        caller = Caller(Starlette(routes=[Mount("/x", inspector)]), token="", prefix="/x")
        status, page = await caller.call("/")
        assert (status, len(inspector.token) >= 32) == (200, True)
        assert "//" not in page.replace("http://www.w3.org/2000/svg", "")
        for path in ("app.js", "parts.js", "time.js", "style.css", "vendor/preact.mjs", "vendor/LICENSES.txt"):
            assert (await caller.call(f"/static/{path}"))[0] == 200
        inside = Caller(inspector, token=inspector.token)
        for path in ("../_app.py", "..%2f_app.py", "vendor/../../_app.py", "/etc/passwd", "nothing.js"):
            assert (await caller.call(f"/static/{path}"))[0] == 401
            assert (await inside.call(f"/static/{path}"))[0] == 404
        assert (await caller.call("/api/overview"))[0] == 401


# ------------------------------------------------------------------------------------------------------ commands


async def test_a_decision_counts_only_for_the_question_that_was_shown():
    async with inspected() as (runtime, caller):
        session = begin(runtime, "trip")
        question = await asked(session)
        path = f"/api/requests/{session.request_id}"
        shown = {"request_id": question.request_id, "call_id": question.call_id, "definition": question.definition}
        for wrong in ({**shown, "definition": "older"}, {**shown, "call_id": "x"}, {}):
            status, sentence = await caller.call(f"{path}/approve", wrong)
            assert (status, sentence.startswith("This was decided in the meantime")) == (409, True)
        assert (await caller.call(f"{path}/approve", {**shown, "arguments": [1]}))[0] == 409
        assert (await caller.call(f"{path}/approve", {**shown, "arguments": {"hotel": "•••"}}))[0] == 400
        done = {"status": "done", "sentence": "Done."}
        assert await caller.call(f"{path}/approve", {**shown, "reason": "ok"}) == (200, done)
        assert (await caller.call(f"{path}/approve", shown))[0] == 409
        await session.result()
        ended = {"status": "ended", "sentence": "This has ended, or was decided, in the meantime."}
        assert await caller.call(f"{path}/cancel", {}) == (200, ended)


@pytest.mark.parametrize("remember", [True, False])
@pytest.mark.parametrize("word", ["approve", "deny"])
async def test_a_decision_keeps_its_reason_who_made_it_and_whether_it_is_for_good(word: str, remember: bool):
    async with inspected() as (runtime, caller):
        session = begin(runtime, "trip")
        await asked(session)
        [shown] = (await caller.view(session.request_id))["approvals"]
        path = f"/api/requests/{session.request_id}/{word}"
        body = {each: shown[each] for each in ("request_id", "call_id", "definition")}
        assert (await caller.call(path, {**body, "reason": "enough", "remember": remember}))[1]["status"] == "done"
        await session.result()
        [decided] = [each async for each in session.events(ApprovalDecided)]
    assert (decided.approved, decided.by, decided.reason) == (word == "approve", "tester", "enough")
    assert (decided.remember, decided.arguments) == (remember, None)


@pytest.mark.parametrize(("edit", "nights"), [({}, None), ({"nights": 4}, 4)])
async def test_a_call_has_the_arguments_that_a_person_has_edited(edit: dict[str, Any], nights: int | None):
    async with inspected() as (runtime, caller):
        session = begin(runtime, "trip")
        await asked(session)
        [shown] = (await caller.view(session.request_id))["approvals"]
        body = {**shown, "arguments": {**shown["arguments"], **edit}}
        assert (await caller.call(f"/api/requests/{session.request_id}/approve", body))[1]["status"] == "done"
        result = await session.result()
        [decided] = [each async for each in session.events(ApprovalDecided)]
    assert (decided.arguments and decided.arguments["nights"]) == nights
    assert f"Avenida is booked for {nights or 3} nights with sk" in [
        each.text for each in result.messages if isinstance(each, ToolMessage)
    ]


async def test_the_model_reads_what_a_person_adds_and_how_an_external_call_has_ended():
    async with inspected() as (runtime, caller):
        for is_error in (False, True):
            session = begin(runtime, "payment")
            await anyio.sleep(1)
            path = f"/api/requests/{session.request_id}"
            assert (await caller.call(f"{path}/steer", {"text": " Be brief. "}))[1]["status"] == "done"
            [call] = (await caller.view(session.request_id))["open_calls"]
            given = {**call, "text": "it bounced", "is_error": is_error}
            assert (await caller.call(f"{path}/answer", given))[1]["status"] == "done"
            assert (await caller.call(f"{path}/answer", given))[0] == 409
            await session.result()
            assert [each.content for each in session.messages if isinstance(each, UserMessage)][1:] == ["Be brief."]
            [result] = [each for each in session.messages if isinstance(each, ToolMessage)]
            assert ("it bounced" in result.content, result.is_error) == (True, is_error)


async def test_a_question_of_a_sub_request_is_decided_at_the_request_above():
    script = [calls(("book_hotel", {"hotel": "A", "nights": 1, "api_key": "k"})), text("Booked.")]
    nested = sub_request_tool("nested", "Nested.", provider=ScriptedProvider(script), tools=TOOLS)
    async with Runtime(ScriptedProvider([calls(("nested", {"task": "t"})), text("Done.")]), tools=[nested]) as runtime:
        caller = Caller(create_inspector(runtime, token=TOKEN))
        session = runtime.start("Nested")
        await asked(session)
        [question] = (await caller.view(session.request_id))["approvals"]
        assert question["request_id"] != session.request_id
        path = f"/api/requests/{session.request_id}/approve"
        assert (await caller.call(path, question))[1]["status"] == "done"
        assert (await session.result()).text == "Done."


async def test_wrong_bodies_get_one_sentence():
    async with inspected() as (runtime, caller):
        session = begin(runtime, "hang")
        path = f"/api/requests/{session.request_id}"
        for body, status in (
            (b"{", 400),
            (b"[]", 400),
            (b'{"text": 1}', 409),
            (b'{"text": " "}', 409),
            (b"[" * 9_999, 400),
        ):
            found, sentence = await caller.call(f"{path}/steer", body)
            assert (found, "\n" not in sentence, "Traceback" not in sentence) == (status, True, True)
        assert (await caller.call(f"{path}/steer", {"text": "x" * 100_001}))[0] == 409
        assert (await caller.call(f"{path}/steer", b"x" * 2_000_000))[0] == 413
        assert (await caller.call(f"{path}/explode", {}))[0] == 404
        assert (await caller.call(f"{path}/events?kind=x"))[0] == 400
        assert (await caller.call(f"{path}/events?before=x"))[0] == 400
        session.cancel()


async def test_only_external_calls_are_answered():
    async with inspected() as (runtime, caller):
        provider = ScriptedProvider([calls(("slow", {})), text("Done.")])

        async def slow() -> str:
            """Wait."""
            await anyio.sleep(20)
            return "own"

        session = runtime.start("Slow", provider=provider, tools=[slow])
        await anyio.sleep(1)
        [call] = (await caller.view(session.request_id))["open_calls"]
        assert call["external"] is False
        status, sentence = await caller.call(f"/api/requests/{session.request_id}/answer", {**call, "text": "forged"})
        assert (status, "is not an external tool" in sentence) == (409, True)
        assert (await session.result()).outcome == "completed"
        assert [each.content for each in session.messages if isinstance(each, ToolMessage)] == ["own"]


async def test_a_question_waits_because_the_inspector_listens():
    async with Runtime(ScriptedProvider(trip()), tools=[*TOOLS, RESEARCH], drain_seconds=0) as runtime:
        session = runtime.start("Nobody listens")
        result = await session.result()
        assert result.outcome == "completed"  # The question was denied at once.
        create_inspector(runtime, token=TOKEN)
        session = runtime.start("Somebody listens", provider=ScriptedProvider(trip()))
        assert (await asked(session)).name == "book_hotel"


async def test_the_messages_as_they_were_sent_last_are_known_also_after_the_end():
    async with inspected() as (runtime, caller):
        session = begin(runtime, "long", max_result_chars=200)
        await session.result()
        for seconds in (0, 100):
            await anyio.sleep(seconds)
            [_, (_, found)] = await caller.frames(f"/api/requests/{session.request_id}", 2)
            fates = [each["fate"] for each in found["messages"] if each["role"] == "tool"]
            assert fates == ["shortened"] * 6
            assert found["messages"][-1]["fate"] == "new"


# ------------------------------------------------------------------------------------------------------ recording


def difference(field: str) -> ReplayDifference:
    return ReplayDifference(
        "other", path=Path("r"), line=3, request_id="r", field=field, expected="x", got="round_started"
    )


async def test_secrets_are_looked_for_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch):
    threads: list[str] = []

    def made(requests: Any) -> bytes:
        threads.append(threading.current_thread().name)
        return recording_of(requests)

    monkeypatch.setattr(_actions, "recording_of", made)
    runtime = Runtime(ScriptedProvider([text("Hello.")]))
    caller = Caller(create_inspector(runtime, token=TOKEN))
    async with runtime:
        result = await runtime.run("Hello?")
        status, found = await caller.call(f"/api/requests/{result.request_id}/record", {})
    assert (status, found["is_verified"]) == (200, True)
    assert threads != [threading.current_thread().name]


async def test_events_and_messages_are_made_fit_to_be_shown_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch):
    threads: list[tuple[str, str]] = []

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any, **named: Any) -> Any:
            threads.append((function.__name__, threading.current_thread().name))
            return function(*given, **named)

        return noted

    for function in (listed, transcript):
        monkeypatch.setattr(f"toolbus.web.inspector._app.{function.__name__}", noting(function))
    runtime = Runtime(ScriptedProvider([text("Hello.")]))
    caller = Caller(create_inspector(runtime, token=TOKEN))
    async with runtime:
        result = await runtime.run("Hello?")
        await caller.frames(f"/api/requests/{result.request_id}", 2)
        await caller.call(f"/api/requests/{result.request_id}/events")
    assert [name for name, _ in threads] == ["transcript", "listed"]
    assert threading.current_thread().name not in {thread for _, thread in threads}


@pytest.mark.parametrize("scene", ["plain", "trip", "attack", "long", "payment"])
@pytest.mark.parametrize("store", [None, MemoryStore])
async def test_a_request_is_recorded_afterwards_and_replays(scene: str, store: Any, tmp_path: Path):
    async with inspected(store=None if store is None else store(journal=True)) as (runtime, caller):
        session = begin(runtime, scene)
        if scene in ("trip", "attack"):
            session.approve(await asked(session))
        if scene == "payment":
            await anyio.sleep(1)
            session.steer("Be brief.")
            [call] = (await caller.view(session.request_id))["open_calls"]
            await caller.call(f"/api/requests/{session.request_id}/answer", {**call, "text": "paid"})
        await session.result()
        status, found = await caller.call(f"/api/requests/{session.request_id}/record", {})
        assert (status, found["is_verified"], found["note"]) == (200, True, "")
        assert found["file_name"] == f"request_{session.request_id[-12:]}.jsonl"
        assert found["file_name"] in found["test"]
        assert "my_application" not in found["test"]
        path = tmp_path / found["file_name"]
        path.write_text(found["recording"], encoding="utf-8")
        assert (await replay(path)).results[0] is not None
        assert "sk-live" not in found["recording"]


async def test_a_request_that_cannot_be_recorded_says_why():
    async with inspected() as (runtime, caller):
        session = begin(runtime, "hang")
        await anyio.sleep(1)
        status, sentence = await caller.call(f"/api/requests/{session.request_id}/record", {})
        assert (status, "only after it has ended" in sentence) == (400, True)
        session.cancel()
        await session.result()
        await anyio.sleep(100)  # The runtime has forgotten it, and the inspector has not.
        assert (await caller.view(session.request_id))["state"] == "cancelled"
        status, found = await caller.call(f"/api/requests/{session.request_id}/record", {})
        assert (status, found["is_verified"]) == (200, True)
        runtime.bus.publish(RequestStarted(request_id="foreign", prompt="Of no session", timeout_seconds=1))
        status, sentence = await caller.call("/api/requests/foreign/record", {})
        assert (status, "not in memory" in sentence) == (400, True)


@pytest.mark.parametrize(
    ("raised", "note"),
    [
        (RecordingError(Path("r"), 3, "it is cut off"), "It cannot be replayed: it is cut off."),
        (difference(field="text"), "A replay makes another fact at line 3: text."),
        (difference(field=""), "A replay makes another fact at line 3: round_started."),
    ],
)
async def test_a_recording_that_does_not_replay_is_given_out_with_the_reason(
    raised: Exception, note: str, monkeypatch: pytest.MonkeyPatch
):
    async def fail(_path: Path) -> None:
        raise raised

    monkeypatch.setattr(_actions, "replay", fail)
    async with inspected() as (runtime, caller):
        session = begin(runtime, "plain")
        await session.result()
        status, found = await caller.call(f"/api/requests/{session.request_id}/record", {})
    assert (status, found["is_verified"], found["note"]) == (200, False, note)


async def test_a_long_recording_is_given_out_without_a_replay(monkeypatch: pytest.MonkeyPatch):
    async with inspected() as (runtime, caller):
        session = begin(runtime, "plain")
        await session.result()
        path = f"/api/requests/{session.request_id}/record"
        facts = len([each async for each in session.events() if each.is_fact and not each.is_derived])
        for most, note in ((facts, ""), (facts - 1, f"It has {facts} facts, and was not replayed here.")):
            monkeypatch.setattr(_actions, "_MAX_REPLAYED_FACTS", most)
            status, found = await caller.call(path, {})
            assert (status, found["is_verified"], found["note"]) == (200, not note, note)


async def test_a_recording_that_would_be_too_large_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_actions, "_MAX_EXPORTED_BYTES", 1_000)
    async with inspected() as (runtime, caller):
        session = begin(runtime, "plain")
        await session.result()
        status, sentence = await caller.call(f"/api/requests/{session.request_id}/record", {})
    assert (status, "would have over 1,000 bytes" in sentence) == (400, True)


# --------------------------------------------------------------------------------- stores, recordings, and runtimes


def comparable(view: dict[str, Any]) -> dict[str, Any]:
    """Return a view without what only this process can know, or what depends on the moment."""
    rows = [
        {name: each[name] for name in ("label", "state", "depth", "call_id")}
        for each in view["rows"]
        if each["depth"] < 2
    ]
    names = (
        "prompt",
        "state",
        "doing",
        "rounds",
        "tool_calls",
        "failed_calls",
        "tokens",
        "cost",
        "models",
        "message_count",
    )
    return {**{name: view[name] for name in names}, "rows": rows}


async def test_a_live_a_stored_and_a_recorded_request_look_alike(tmp_path: Path):
    store = MemoryStore(journal=True)
    async with inspected(store=store) as (runtime, caller):
        with record(tmp_path / "r.jsonl", runtime):
            session = begin(runtime, "trip")
            session.approve(await asked(session), by="ann")
            await session.result()
        live, live_messages = (each for _, each in await caller.frames(f"/api/requests/{session.request_id}", 2))
    for source in (StoreSource(store, "store"), RecordingSource(tmp_path / "r.jsonl")):
        inspector = Inspector(source, token=TOKEN)
        async with inspector.opened():
            there = Caller(inspector)
            path = f"/api/requests/{session.request_id}"
            view, messages = (each for _, each in await there.frames(path, 2))
            assert comparable(view) == comparable(live)
            assert messages["messages"] == live_messages["messages"]
            assert (await there.listed())[0]["prompt"] == "Scene trip"
            assert (await there.call(f"{path}/events?types=request_completed"))[1]["events"][0]["line"]
    assert [each["depth"] for each in view["rows"]] == [0, 1, 1, 1, 1, 2, 3, 1, 1, 1]  # with the sub-request


async def test_a_recording_takes_no_commands_and_records_itself(tmp_path: Path):
    async with inspected() as (runtime, _):
        with record(tmp_path / "r.jsonl", runtime):
            session = begin(runtime, "plain")
            await session.result()
    inspector = Inspector(RecordingSource(tmp_path / "r.jsonl"), token=TOKEN)
    async with inspector.opened():
        caller, path = Caller(inspector), f"/api/requests/{session.request_id}"
        assert (await caller.call(f"{path}/cancel", {}))[0] == 409
        _, found = await caller.call(f"{path}/record", {})
        assert found["is_verified"]
        with pytest.raises(UnknownRequest):
            await RecordingSource(tmp_path / "r.jsonl").follow("none")
        with pytest.raises(ConfigurationError):
            RecordingSource(tmp_path / "r.jsonl").handle("none")


async def test_a_request_of_a_recording_that_is_cut_off_is_given_out_as_far_as_it_goes(tmp_path: Path):
    path = tmp_path / "r.jsonl"
    async with inspected() as (runtime, _):
        with record(path, runtime):
            session = begin(runtime, "plain")
            await session.result()
    written = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(written[:-2]), encoding="utf-8")  # Its writer was killed before the request had ended.
    inspector = Inspector(RecordingSource(path), token=TOKEN)
    async with inspector.opened():
        status, found = await Caller(inspector).call(f"/api/requests/{session.request_id}/record", {})
    assert (status, found["is_verified"], found["note"]) == (200, True, "")


async def test_a_recording_with_an_integer_of_more_than_64_bits_is_shown_whole(tmp_path: Path):
    path = tmp_path / "r.jsonl"
    async with inspected() as (runtime, _):
        with record(path, runtime):
            session = begin(runtime, "long")
            result = await session.result()
    written = path.read_text(encoding="utf-8").replace('"page":3', f'"page":{2**70}')
    path.write_text("".join([*written.splitlines(keepends=True)[:-1], '{"type":"end"}\n']), encoding="utf-8")
    inspector = Inspector(RecordingSource(path), token=TOKEN)
    async with inspector.opened():
        caller = Caller(inspector)
        status, found = await caller.call(f"/api/requests/{session.request_id}/events")
        assert (status, str(2**70) in str(found)) == (200, True)
        assert (await caller.view(session.request_id))["message_count"] == len(result.messages)
        status, found = await caller.call(f"/api/requests/{session.request_id}/record", {})
        assert (status, str(2**70) in found["recording"], found["is_verified"]) == (200, True, False)


async def test_a_request_of_another_process_is_listed_watched_and_decided_through_the_store():
    store = MemoryStore(journal=True)
    async with Runtime(ScriptedProvider(trip()), tools=[*TOOLS, RESEARCH], store=store, drain_seconds=0) as runtime:
        session = runtime.start("Elsewhere")
        await asked(session)
        inspector = Inspector(StoreSource(store, "store"), token=TOKEN, by="ann")
        async with inspector.opened():
            caller, path = Caller(inspector), f"/api/requests/{session.request_id}"
            [row] = await caller.listed()
            assert (row["state"], row["questions"]) == ("waiting", 1)
            [question] = (await caller.view(session.request_id))["approvals"]
            assert (await caller.call(f"{path}/approve", question))[1]["status"] == "done"
            result = await session.result()
            assert result.text == "The hotel is booked, and the sky is clear."
            _, found = await caller.call(f"{path}/record", {})
            assert (found["is_verified"], "tools=tools" in found["test"]) == (False, True)
            assert "from my_application import tools" in found["test"]
            assert found["note"] == "A store does not have the tools, so the test has to give them."


async def test_a_command_to_a_request_that_nobody_holds_is_stored():
    store = MemoryStore(journal=True)
    async with Runtime(ScriptedProvider([hang()]), store=store, drain_seconds=0) as runtime:
        session = runtime.start("Left")
        await anyio.sleep(1)
    inspector = Inspector(StoreSource(store, "store"), token=TOKEN)
    async with inspector.opened():
        caller = Caller(inspector)
        [row] = await caller.listed()
        assert (row["state"], row["doing"]) == ("released", "is held by no process, and waits to be resumed")
        found = await caller.call(f"/api/requests/{session.request_id}/cancel", {"reason": "enough"})
        assert found[1]["status"] == "queued"


async def test_a_runtime_shows_the_older_requests_of_its_store_too():
    store = MemoryStore(journal=True)
    async with Runtime(ScriptedProvider([text("Yes.")]), store=store) as first:
        before = await first.run("Before the restart")
    async with inspected(store=store) as (runtime, caller):
        await begin(runtime, "plain").result()
        assert [each["prompt"] for each in await caller.listed()] == ["Scene plain", "Before the restart"]
        assert (await caller.view(before.request_id))["state"] == "completed"
        assert (await caller.call(f"/api/requests/{before.request_id}/record", {}))[1]["is_verified"]


async def test_a_damaged_request_is_listed_with_the_reason_and_harms_no_other():
    store = MemoryStore(journal=True)
    async with Runtime(ScriptedProvider([text("Yes.")] * 2), store=store) as runtime:
        first, second = await runtime.run("First"), await runtime.run("Second")
    journal: Any = store.journal
    works = journal.facts

    async def facts(request_id: str, *, start: int = 0) -> Any:
        if request_id == first.request_id:
            raise StoreDamaged("fact 2 is not what was written", request_id=request_id, seq=2)
        return await works(request_id, start=start)

    journal.facts = facts
    inspector = Inspector(StoreSource(store, "store"), token=TOKEN)
    async with inspector.opened():
        caller = Caller(inspector)
        [(_, found)] = await caller.frames("/api/overview")
        rows = {each["request_id"]: each for each in found["requests"]}
        assert rows[first.request_id]["doing"] == "fact 2 is not what was written"
        assert rows[second.request_id]["prompt"] == "Second"
        [(event, _)] = await caller.frames(f"/api/requests/{first.request_id}")
        assert event == "problem"


async def test_a_request_that_cannot_be_read_now_is_shown_a_moment_later():
    store = MemoryStore(journal=True)
    async with Runtime(ScriptedProvider([text("Yes.")]), store=store) as runtime:
        result = await runtime.run("First")
    journal: Any = store.journal
    works, fails = journal.facts, [True]

    async def facts(request_id: str, *, start: int = 0) -> Any:
        if fails:
            fails.clear()
            raise StoreDamaged("fact 2 is not what was written", request_id=request_id, seq=2)
        return await works(request_id, start=start)

    inspector = Inspector(StoreSource(store, "store"), token=TOKEN)
    async with inspector.opened():
        journal.facts, began = facts, anyio.current_time()
        frames = await Caller(inspector).frames(f"/api/requests/{result.request_id}", 2)
        assert [event for event, _ in frames] == ["problem", "view"]
        assert anyio.current_time() - began >= 2


async def test_a_store_that_fails_is_a_problem_and_no_crash():
    class Failing(MemoryStore):
        pass

    store: Store = Failing(journal=True)
    inspector = Inspector(StoreSource(store, "store"), token=TOKEN)
    journal: Any = store.journal
    works, fails = journal.requests, [True]

    async def requests(**options: Any) -> Any:
        if fails.pop() if fails else False:
            raise StoreUnavailable("the store is away")
        return await works(**options)

    journal.requests = requests
    await journal.append(
        Entry(
            request_id="r",
            conversation_id="c",
            epoch=1,
            seq=0,
            facts=[RequestStarted(request_id="r", prompt="P", timeout_seconds=1)],
        )
    )
    began = anyio.current_time()
    async with inspector.opened():
        frames = await Caller(inspector).frames("/api/overview", 2)
    assert anyio.current_time() - began >= 2, "the store has some time to come back"
    assert [event for event, _ in frames] == ["problem", "overview"]
    assert frames[0][1]["problem"] == "the store is away"


async def test_events_of_requests_that_began_before_the_inspector_are_shown():
    async with Runtime(ScriptedProvider([error(ValueError("no"))]), tools=TOOLS, drain_seconds=0) as runtime:
        session = begin(runtime, "payment")
        await anyio.sleep(1)
        caller = Caller(create_inspector(runtime, token=TOKEN))
        view = await caller.view(session.request_id)  # The session still has its facts.
        assert (view["prompt"], view["open_calls"][0]["name"]) == ("Scene payment", "wait_for_payment")
        await caller.call(f"/api/requests/{session.request_id}/answer", {**view["open_calls"][0], "text": "paid"})
        await session.result()
        assert (await caller.view(session.request_id))["state"] == "completed"


async def test_a_request_of_the_bus_that_has_no_session_is_shown_as_far_as_it_is_known():
    async with inspected() as (runtime, caller):
        runtime.bus.publish(RequestStarted(request_id="foreign", prompt="From elsewhere", timeout_seconds=1))
        runtime.bus.publish(
            ToolCallRequested(
                request_id="foreign",
                call_id="a",
                name="x",
                arguments={},
                round=0,
                timeout_seconds=1,
                idempotency_key="a",
            )
        )
        runtime.bus.publish(RequestCompleted(request_id="foreign"))
        assert (await caller.view("foreign"))["state"] == "completed"
