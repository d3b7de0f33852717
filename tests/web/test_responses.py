"""The responses, called as a server calls them: rejoining, disconnects, heartbeats, shutdown and slow clients."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from fastapi import FastAPI
from starlette.background import BackgroundTask
from starlette.responses import Response
from ui_grammar import check_agui, check_vercel

from toolbus import EventBus, RequestSession, Runtime, Tool, tool
from toolbus.errors import ConfigurationError, ProviderUnavailable, StoreUnavailable
from toolbus.events import (
    Event,
    MessageAppended,
    ModelResponded,
    ModelRetrying,
    ReceiverFailed,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RequestStarted,
    SteeringAdded,
    SubscriberLagged,
    TextDelta,
    ToolCallFailed,
    decode,
)
from toolbus.handles import RequestHandle
from toolbus.messages import AssistantMessage
from toolbus.providers.scripted import ScriptedProvider, calls, error, hang, text
from toolbus.stores.memory import MemoryStore
from toolbus.testing import virtual_backends
from toolbus.web import (
    AguiResponse,
    ClientRequest,
    EventsResponse,
    TextResponse,
    VercelEncoder,
    VercelResponse,
    sse_frame,
)
from toolbus.web._responses import _is_counted, _NoRequest, _pending_messages  # pyright: ignore[reportPrivateUsage]

anyio_backend = virtual_backends()
INCOMING = ClientRequest(conversation_id="thread", run_id="run", protocol_version="1.0")
Respond = Callable[[Any], Response]
ALL: dict[str, Respond] = {
    "events": EventsResponse,
    "text": TextResponse,
    "vercel": VercelResponse,
    "ag-ui": lambda source: AguiResponse(source, INCOMING),
}


@pytest.mark.parametrize(
    ("event", "counted"),
    [
        (RequestCancelled(request_id="r", reason="x"), True),
        (RequestCancelled(request_id="other", reason="x"), False),
        (MessageAppended(request_id="r", message=AssistantMessage(text="hi")), False),
        (TextDelta(request_id="r", message_id="m", text="hi"), False),
    ],
)
def test_only_the_facts_that_the_store_counts_are_counted(event: Event, counted: bool):
    assert _is_counted(event, "r") is counted


class Client:
    """A client that reads `frames` frames and then goes away. Frames are dictionaries of their fields."""

    def __init__(
        self,
        frames: int | None = None,
        *,
        last_event_id: str = "",
        reads: anyio.Event | None = None,
        method: str = "GET",
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.frames: list[dict[str, str]] = []
        self.comments = 0
        self.ended = False
        self._left = anyio.Event()
        self._limit = frames
        self._reads = reads
        self._has_sent = False
        head = [(b"last-event-id", last_event_id.encode())] if last_event_id else []
        self._scope = {"type": "http", "method": method, "path": "/", "headers": head, "asgi": {"spec_version": "2.3"}}

    async def read(self, response: Response) -> Client:
        """Read the response, to its end or as far as the client wants."""
        await response(self._scope, self._receive, self._send)
        return self

    def leave(self) -> None:
        """Go away."""
        self._left.set()

    async def _receive(self) -> dict[str, Any]:
        if not self._has_sent:
            self._has_sent = True
            return {"type": "http.request", "body": b""}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await anyio.lowlevel.checkpoint()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        if self._reads is not None:
            await self._reads.wait()
        for block in message["body"].decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            self.comments += block.startswith(":")
            if fields and not self._left.is_set():
                self.frames.append(fields)
            if self._limit is not None and len(self.frames) >= self._limit:
                self._left.set()
        if not message.get("more_body"):
            self.ended = True
            self._left.set()  # a server reports this at the end of every response

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The data of all frames."""
        return [json.loads(each["data"]) for each in self.frames if each["data"] != "[DONE]"]

    @property
    def text(self) -> str:
        """The text of a `TextResponse`."""
        return "".join(json.loads(each["data"])["text"] for each in self.frames if each["event"] == "text")


@tool
async def look_up(city: str) -> str:
    """Look up a city."""
    await anyio.sleep(0.5)
    return f"{city} is sunny"


ANSWER = "It is sunny in Paris, and in Rome it is sunny, too."


def long_script() -> list[Any]:
    return [
        calls(("look_up", {"city": "Paris"}), ("look_up", {"city": "Rome"}), text="Let me see.", delays=0.1),
        text(ANSWER, list(ANSWER), delays=0.1),
    ]


def facts_of(frames: Sequence[dict[str, str]]) -> list[Event]:
    events = [decode(each["data"]) for each in frames]
    return [each for each in events if each.is_fact]


def texts_of(frames: Sequence[dict[str, str]]) -> dict[str, str]:
    """What a page shows that is made of these events."""
    encoder = VercelEncoder()
    return check_vercel([chunk for each in frames for chunk in encoder.feed(decode(each["data"]))])


async def test_a_client_that_comes_back_at_any_of_fifty_points_misses_nothing():
    async with Runtime(ScriptedProvider(long_script()), tools=[look_up]) as runtime:
        session = runtime.start("How is the weather?")
        wholes: dict[str, Client] = {}
        pairs: dict[tuple[str, int], tuple[Client, Client]] = {}

        async def whole(kind: str) -> None:
            wholes[kind] = await Client().read(ALL[kind](session))

        async def broken(kind: str, frames: int) -> None:
            first = await Client(frames).read(ALL[kind](session))
            await anyio.sleep(0.05 * (frames % 7))
            position = first.frames[-1]["id"]
            second = await Client(last_event_id=position).read(ALL[kind](session))
            pairs[kind, frames] = first, second

        async with anyio.create_task_group() as group:
            for kind in ("events", "text"):
                group.start_soon(whole, kind)
                for frames in range(1, 51):
                    group.start_soon(broken, kind, frames)
    facts = facts_of(wholes["events"].frames)
    assert isinstance(facts[-1], RequestCompleted)
    shown = texts_of(wholes["events"].frames)
    assert list(shown.values()) == ["Let me see.", ANSWER]
    for (kind, frames), (first, second) in pairs.items():
        assert len(first.frames) == frames
        both = [*first.frames, *second.frames]
        if kind == "events":
            assert facts_of(both) == facts
            assert texts_of(both) == shown
        else:
            assert first.text + second.text == wholes["text"].text, frames
            assert both[-1]["event"] == "end"
    assert wholes["text"].text == f"Let me see.\n\n{ANSWER}"


@pytest.mark.parametrize("kind", ["events", "text"])
async def test_a_client_that_comes_back_with_the_last_id_of_an_ended_request_is_told_to_stop(kind: str):
    async with Runtime(ScriptedProvider([text("Hi.", 2)])) as runtime:
        session = runtime.start("Hello?")
        whole = await Client().read(ALL[kind](session))
        assert all(each.get("id") for each in whole.frames)
        for source in (session, runtime.request(session.request_id)):
            again = await Client(last_event_id=whole.frames[-1]["id"]).read(ALL[kind](source))
            assert (again.status, again.ended, again.frames) == (204, True, [])
            # Whoever lacks the ending gets it.
            rest = await Client(last_event_id=whole.frames[-2]["id"]).read(ALL[kind](source))
            assert (rest.status, rest.frames) == (200, whole.frames[-1:])
            # A browser that comes back to an address with `after` has more than that.
            made = EventsResponse if kind == "events" else TextResponse
            rest = await Client(last_event_id=whole.frames[-2]["id"]).read(made(source, after="1.0"))
            assert (rest.status, rest.frames) == (200, whole.frames[-1:])


@pytest.mark.parametrize("kind", ["events", "text"])
async def test_a_client_that_has_all_of_a_running_request_waits_for_more(kind: str):
    async with Runtime(ScriptedProvider([text("Hi.", 1, delays=100)])) as runtime:
        session = runtime.start("Hello?")
        await anyio.sleep(1)
        client = Client(last_event_id=f"{session.snapshot().view.state.facts}.0")
        async with anyio.create_task_group() as group:
            group.start_soon(client.read, ALL[kind](session))
            await anyio.wait_all_tasks_blocked()
            assert (client.status, len(runtime.bus.statistics().subscriptions)) == (200, 1)
        assert client.comments == 6  # one in 15 seconds
        assert client.frames[-1]["event"] == ("end" if kind == "text" else "request_completed")


@pytest.mark.parametrize("kind", ALL)
async def test_every_response_begins_at_once_and_says_what_it_is(kind: str):
    session = RequestSession(EventBus(), ScriptedProvider([text("Hi.")]), "Hello?")
    await session.run()
    client = await Client().read(ALL[kind](session))
    assert (client.status, client.ended) == (200, True)
    assert client.headers["content-type"].startswith("text/event-stream")
    assert client.headers["cache-control"] == "no-store, no-transform"
    assert client.headers.get("x-vercel-ai-ui-message-stream") == ("v1" if kind == "vercel" else None)
    if kind == "vercel":
        assert check_vercel(client.chunks) == {f"{session.request_id}_r0": "Hi."}
        assert client.frames[-1] == {"data": "[DONE]"}
    elif kind == "ag-ui":
        assert check_agui(client.chunks) == {f"{session.request_id}_r0": "Hi."}


@pytest.mark.parametrize("kind", ALL)
async def test_a_client_that_asks_only_for_the_head_does_not_wait_for_the_request(kind: str):
    async with Runtime(ScriptedProvider([hang()])) as runtime:
        session = runtime.start("Hello?")
        response = ALL[kind](session)
        head = Client(method="HEAD")
        with anyio.fail_after(1):
            await head.read(response)
        assert (head.status, head.ended, head.frames) == (200, True, [])
        assert head.headers["content-type"].startswith("text/event-stream")
        assert not runtime.bus.statistics().subscriptions
        session.cancel()


@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize("source", ["session", "handle"])
@pytest.mark.parametrize("kind", ["events", "vercel"])
async def test_a_client_that_goes_away_cancels_the_request_only_where_that_was_asked(
    kind: str, source: str, cancels: bool
):
    async with Runtime(ScriptedProvider([hang(after=text("I am beg"))])) as runtime:
        session = runtime.start("Hello?")
        made: Any = {"events": EventsResponse, "vercel": VercelResponse}[kind]
        shown = session if source == "session" else runtime.request(session.request_id)
        await Client(3).read(made(shown, cancel_on_disconnect=cancels))
        with anyio.move_on_after(1):
            await session.result()
        assert session.ended is cancels
        session.cancel()


async def test_a_response_that_has_ended_cancels_nothing():
    ask: Tool = Tool(name="ask", description="Ask.", schema={"type": "object"}, external=True)
    async with Runtime(ScriptedProvider([calls(("ask", {})), text("Good.")]), tools=[ask]) as runtime:
        session = runtime.start("Ask.")
        client = await Client().read(VercelResponse(session, client_tools=["ask"], cancel_on_disconnect=True))
        check_vercel(client.chunks)
        assert client.chunks[-1]["finishReason"] == "tool-calls"
        await anyio.sleep(1)
        assert not session.ended
        session.cancel()


@pytest.mark.parametrize("kind", ALL)
async def test_the_background_task_of_a_response_runs_after_its_last_frame(kind: str):
    client = Client()
    done: list[bool] = []
    async with Runtime(ScriptedProvider([text("Paris.")])) as runtime:
        response = ALL[kind](runtime.start("Where?"))
        response.background = BackgroundTask(lambda: done.append(client.ended))
        await client.read(response)
    assert done == [True]


async def test_a_stream_that_stays_open_waits_for_the_answers_of_others():
    ask: Tool = Tool(name="ask", description="Ask.", schema={"type": "object"}, external=True)
    async with Runtime(ScriptedProvider([calls(("ask", {})), text("Good.")]), tools=[ask]) as runtime:
        session = runtime.start("Ask.")

        async def answer() -> None:
            await anyio.sleep(5)
            session.inject(made.completed("yes"))

        async with session.events() as events, anyio.create_task_group() as group:
            made: Any = next(iter([each async for each in until(events, "tool_call_requested")][-1:]))
            group.start_soon(answer)
            client = await Client().read(VercelResponse(session, client_tools=["ask"], stays_open=True))
        assert check_vercel(client.chunks) == {f"{session.request_id}_r1": "Good."}


async def test_a_page_is_asked_at_once_and_after_five_seconds_once_more_if_its_answer_has_no_effect():
    ask: Tool = Tool(name="ask", description="Ask.", schema={"type": "object"}, external=True)
    async with Runtime(ScriptedProvider([calls(("ask", {}))]), tools=[ask], drain_seconds=0) as runtime:
        session = runtime.start("Ask.")
        async with session.events() as events:
            made: Any = [each async for each in until(events, "tool_call_requested")][-1]
        for answered, seconds in (([], 0.05), ([made.call_id], 5)):
            began = anyio.current_time()
            client = await Client().read(VercelResponse(session, client_tools=["ask"], answered=answered))
            assert anyio.current_time() - began == pytest.approx(seconds, abs=0.01)
            assert client.ended


async def test_a_client_that_does_not_read_has_a_second_for_the_last_frame():
    async with Runtime(ScriptedProvider([hang()]), drain_seconds=0) as runtime:
        began = anyio.current_time()
        with anyio.move_on_after(5):
            await Client(reads=anyio.Event()).read(EventsResponse(runtime.start("Hello?")))
        assert anyio.current_time() - began == pytest.approx(6, abs=0.01)


async def until(events: AsyncIterator[Event], kind: str) -> AsyncIterator[Event]:
    async for event in events:
        yield event
        if event.type == kind:
            return


@pytest.mark.parametrize("kind", ["vercel", "ag-ui"])
@pytest.mark.parametrize("where", ["without a journal", "session", "here", "elsewhere", "released"])
async def test_messages_that_the_model_has_not_read_are_shown_once_to_a_page_that_comes_late(where: str, kind: str):
    sent = ["At once.", "By day.", "In French.", "By day."]
    store = MemoryStore(journal=where != "without a journal")
    steps = text("Thinking.", 2, delays=20), text("Done.")
    async with AsyncExitStack() as stack:
        model = ScriptedProvider(lambda request: steps[request.round])
        one, two = (Runtime(model, store=store, drain_seconds=0) for _ in range(2))
        await stack.enter_async_context(two)
        left = await stack.enter_async_context(AsyncExitStack())
        await left.enter_async_context(one)
        session = one.start("Hello?")
        session.steer(sent[0])  # The request takes this one when it begins, although its first reply does not read it.
        await session.accepted()
        for each in sent[1:]:
            await one.request(session.request_id).steer(each)
        if where == "released":
            await left.aclose()
        runtime = two if where in {"elsewhere", "released"} else one
        source = session if where == "session" else runtime.request(session.request_id)
        early = Client()
        with anyio.move_on_after(2):
            await early.read(ALL[kind](source))
        assert waiting_in(early) == sent
        if where == "released":
            await two.resume()
        late = await Client().read(ALL[kind](source))
        (check_vercel if kind == "vercel" else check_agui)(late.chunks)
        assert (waiting_in(late), steered_in(late)) == (sent, sent)
        assert late.chunks[-1]["type"] in {"finish", "RUN_FINISHED"}


def waiting_in(client: Client) -> list[str]:
    found = [each for each in client.chunks if "steering" in (each["type"], each.get("name"), each["type"][5:])]
    return [(each.get("data") or each["value"])["text"] for each in found]


def steered_in(client: Client) -> list[str]:
    ids = [each["messageId"] for each in client.chunks if each.get("role") == "user"]
    return [
        each["data"]["text"] if each["type"] == "data-steered" else each["delta"]
        for each in client.chunks
        if each["type"] == "data-steered" or (each.get("messageId") in ids and "delta" in each)
    ]


@pytest.mark.parametrize("kind", [EventsResponse, TextResponse, VercelResponse, AguiResponse])
def test_fastapi_describes_a_route_with_the_response(kind: type[Response]):
    app = FastAPI()
    app.get("/", response_class=kind)(lambda: None)
    assert app.openapi()["paths"]["/"]["get"]["responses"]["200"]["content"].keys() == {"text/event-stream"}


@pytest.mark.parametrize("kind", ALL)
async def test_a_quiet_stream_has_heartbeats(kind: str):
    async with Runtime(ScriptedProvider([text("Hi.", 1, delays=100)])) as runtime:
        session = runtime.start("Hello?")
        client = await Client().read(ALL[kind](session))
        assert client.comments == 6  # one in 15 seconds
        assert client.ended


@pytest.mark.parametrize("kind", ALL)
async def test_a_stream_that_is_not_quiet_has_no_heartbeats(kind: str):
    async with Runtime(ScriptedProvider([text("Hello.", 6, delays=10)])) as runtime:
        client = await Client().read(ALL[kind](runtime.start("Hello?")))
        assert client.comments == 0


@pytest.mark.parametrize(
    ("ending", "outcome", "words"),
    [
        (RequestCompleted(request_id="r1"), "completed", ""),
        (
            RequestCompleted(request_id="r1", outcome="stopped", reason="max_rounds=3", limit="max_rounds"),
            "stopped",
            "I stopped after 3 steps without finishing.",
        ),
        (RequestCancelled(request_id="r1", reason="enough"), "cancelled", "The request was cancelled: enough."),
        (
            RequestFailed(request_id="r1", reason="provider_error", error="401 for key sk-123"),
            "failed",
            "I could not finish because the language model failed.",
        ),
    ],
)
async def test_text_ends_with_the_outcome_in_words_for_people(ending: Any, outcome: str, words: str):
    client = await Client().read(TextResponse(Elsewhere([RequestStarted(request_id="r1", timeout_seconds=9), ending])))
    assert (client.frames[-1]["event"], json.loads(client.frames[-1]["data"])) == (
        "end",
        {"request_id": "r1", "outcome": outcome, "reason": ending.reason, "explanation": words},
    )


async def test_events_have_no_texts_of_exceptions():
    words, said = "connection to db://admin@10.0.0.3 refused", "I could not finish because of an internal error."
    about: Any = {"request_id": "r1", "call_id": "c1", "name": "look_up"}
    events: list[Event] = [
        ReceiverFailed(request_id="r1", receiver="app.audit", event_type="", failed_event_id="", error=words),
        ModelRetrying(request_id="r1", round=0, reason="provider_unavailable", error=words),
        ToolCallFailed(**about, reason="error", error="The tool failed.", detail=words),
        RequestFailed(request_id="r1", reason="application_error", error=words),
    ]
    client = await Client().read(EventsResponse(Elsewhere(events)))
    assert [(each["type"], each["error"]) for each in client.chunks] == [
        ("model_retrying", ""),
        ("tool_call_failed", "The tool failed."),
        ("request_failed", said),
    ]
    assert all(words not in each["data"] for each in client.frames)


async def test_text_after_a_gap_waits_for_the_whole_reply():
    about: dict[str, Any] = {"request_id": "r1"}
    lagged = SubscriberLagged(first_position=1, last_position=1, count=1)
    pieces = [TextDelta(**about, message_id="m", text=each) for each in ("He", "o.")]
    reply = ModelResponded(**about, round=0, message=AssistantMessage(message_id="m", text="Hello."))
    started, ended = RequestStarted(**about, timeout_seconds=9), RequestCompleted(**about)
    events = [started, pieces[0], lagged, pieces[1], reply, ended]
    assert (await Client().read(TextResponse(Elsewhere(events)))).text == "Hello."
    following = [TextDelta(**about, message_id="n", text=each) for each in (" And", " more.")]
    client = await Client().read(TextResponse(Elsewhere([*events[:-1], *following, ended])))
    assert client.text == "Hello.\n\n And more.", "the gap is over with the reply"


@pytest.mark.parametrize("kind", ALL)
async def test_a_server_that_stops_sends_a_last_frame(kind: str):
    async with Runtime(ScriptedProvider([hang(after=text("I am beg"))])) as runtime:
        session = runtime.start("Hello?")
        client = Client()
        with anyio.move_on_after(5):
            await client.read(ALL[kind](session))
        assert client.ended
        check_last(kind, client)
        session.cancel()


def check_last(kind: str, client: Client) -> None:
    """The stream was closed in the words of its protocol."""
    words = "The connection ends here, and the work is not finished."
    if kind == "vercel":
        check_vercel(client.chunks)
        assert client.chunks[-1] == {"type": "error", "errorText": words}
    elif kind == "ag-ui":
        check_agui(client.chunks)
        assert client.chunks[-1]["message"] == words
    else:
        assert client.frames[-1] == {
            "event": "stream_closed",
            "data": json.dumps({"error": words}, separators=(",", ":")),
        }


class Elsewhere:
    """A request of another process, whose events end before the request does."""

    request_id = "r1"
    cursor = "1.0"

    def __init__(self, events: Sequence[Event], error: Exception | None = None) -> None:
        self._events = iter(events)
        self._error = error

    async def has_ended(self) -> bool:
        """Return whether the request has ended."""
        return False

    def events(self, *, after: str = "", capacity: int = 1_000) -> Any:
        return self

    def cancel(self, reason: str = "") -> None:
        """Nobody asks for it."""

    async def aclose(self) -> None:
        """Nothing is open."""

    def __aiter__(self) -> Elsewhere:
        return self

    async def __anext__(self) -> Event:
        await anyio.lowlevel.checkpoint()
        for event in self._events:
            return event
        raise self._error or StopAsyncIteration


@pytest.mark.parametrize("kind", ALL)
async def test_a_request_that_continues_elsewhere_or_breaks_ends_its_streams(kind: str):
    events = [
        RequestStarted(request_id="r1", timeout_seconds=9),
        TextDelta(request_id="r1", message_id="m", text="I am"),
    ]
    check_last(kind, await Client().read(ALL[kind](Elsewhere(events))))
    client = Client()
    with pytest.raises(ExceptionGroup) as caught:
        await client.read(ALL[kind](Elsewhere(events, ValueError("the store"))))
    assert caught.group_contains(ValueError, match="the store")
    check_last(kind, client)


async def stays() -> Any:
    await anyio.sleep_forever()


@pytest.mark.parametrize("kind", ALL)
async def test_a_server_that_raises_when_the_client_is_gone_is_understood(kind: str):
    async with Runtime(ScriptedProvider([hang(after=text("I am beg"))])) as runtime:
        session = runtime.start("Hello?")

        async def send(message: Any) -> None:
            await anyio.lowlevel.checkpoint()
            if message.get("body"):
                raise OSError("the client is gone")

        made: Any = {"events": EventsResponse, "text": TextResponse, "vercel": VercelResponse}.get(kind)
        response = (
            made(session, cancel_on_disconnect=True)
            if made
            else AguiResponse(session, INCOMING, cancel_on_disconnect=True)
        )
        await response({"type": "http", "headers": []}, stays, send)
        assert (await session.result()).reason == "the client went away"


@pytest.mark.parametrize("kind", ALL)
async def test_a_response_ends_also_where_the_server_does_not_report_that_the_client_has_left(kind: str):
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async with Runtime(ScriptedProvider([text("Hi.")])) as runtime:
        with anyio.fail_after(5):
            await ALL[kind](runtime.start("Hello?"))({"type": "http", "headers": []}, stays, send)
    assert sent[-1]["more_body"] is False


@pytest.mark.parametrize("kind", ALL)
async def test_only_a_cursor_ends_a_stream_quietly_and_a_wrong_set_up_is_reported(kind: str):
    wrong = ConfigurationError("the options of the request are wrong")
    with pytest.raises(ExceptionGroup) as caught:
        await Client().read(ALL[kind](Elsewhere([], wrong)))
    assert caught.group_contains(ConfigurationError, match="are wrong")


@pytest.mark.parametrize("last", ["nonsense", "-1.0", "1", "9" * 5000])
async def test_a_wrong_last_event_id_is_refused(last: str):
    client = await Client(last_event_id=last).read(EventsResponse(Elsewhere([])))
    assert client.status == 400


def test_a_run_without_a_request_and_without_messages_is_refused():
    with pytest.raises(ConfigurationError, match="give messages="):
        AguiResponse(None, INCOMING)


async def test_a_cursor_of_another_request_is_refused():
    session = RequestSession(EventBus(), ScriptedProvider([text("Hi.")]), "Hello?")
    await session.run()
    client = await Client(last_event_id="9999.0").read(EventsResponse(session))
    assert client.status == 400


async def test_a_slow_client_gets_the_whole_text_and_holds_up_nobody():
    words = "word " * 5_000
    bus = EventBus()
    session = RequestSession(bus, ScriptedProvider([text(words, 5_000)]), "Talk.")
    reads = anyio.Event()
    clients = {kind: Client(reads=reads) for kind in ALL}
    async with anyio.create_task_group() as group:
        for kind, client in clients.items():
            group.start_soon(client.read, ALL[kind](session))
        await anyio.wait_all_tasks_blocked()
        result = await session.run()
        assert result.text == words
        peaks = [each.peak for each in bus.statistics().subscriptions]
        reads.set()
    assert all(peak <= 1_001 for peak in peaks)
    assert clients["text"].text == words
    assert list(check_vercel(clients["vercel"].chunks).values()) == [words]
    assert list(check_agui(clients["ag-ui"].chunks).values()) == [words]
    assert any(each["event"] == "subscriber_lagged" for each in clients["events"].frames)
    assert clients["events"].frames[-1]["event"] == "request_completed"


def test_a_frame_is_one_event_whatever_is_in_it():
    assert sse_frame({"a": "x\n\ndata: y\r"}, event="text", event_id="1.2") == (
        b'id: 1.2\nevent: text\ndata: {"a":"x\\n\\ndata: y\\r"}\n\n'
    )
    assert sse_frame({"a": "\ud800"}) == b'data: {"a":"?"}\n\n'


def test_encoders_need_no_web_framework():
    program = "import sys, toolbus.web as w; w.VercelEncoder(); w.read_agui; assert 'starlette' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_text_that_became_void_is_not_mistaken_for_that_of_the_next_reply():
    busy = ProviderUnavailable("busy", retryable=True, retry_after_seconds=1)
    script = [error(busy, after="I begin bad", delays=0.1), text("I begin well.", delays=0.1)]
    async with Runtime(ScriptedProvider(script)) as runtime:
        session = runtime.start("Begin.")
        wholes: list[Client] = []

        async def whole() -> None:
            wholes.append(await Client().read(TextResponse(session)))

        async with anyio.create_task_group() as group:
            group.start_soon(whole)
            first = await Client(2).read(TextResponse(session))
            await session.result()
        second = await Client(last_event_id=first.frames[-1]["id"]).read(TextResponse(session))
    assert wholes[0].text == "I begin bad\n\nI begin well."
    assert "I begin bad".startswith(first.text)
    assert second.text == "\n\nI begin well."


@pytest.mark.parametrize("kind", ALL)
async def test_a_stream_from_another_process_outlasts_a_store_that_is_away(kind: str, monkeypatch: pytest.MonkeyPatch):
    store, ends, is_away, tries = MemoryStore(journal=True), anyio.Event(), False, 0
    assert store.journal is not None
    facts = store.journal.facts

    async def facts_unless_away(request_id: str, *, start: int = 0) -> Any:
        nonlocal tries
        if is_away:
            tries += 1
            raise StoreUnavailable("the database restarts")
        return await facts(request_id, start=start)

    async def look() -> str:
        """Look."""
        await ends.wait()
        return "seen"

    monkeypatch.setattr(store.journal, "facts", facts_unless_away)
    model = ScriptedProvider([calls(("look", {})), text("It is there.")])
    client = Client()
    async with Runtime(model, tools=[look], store=store) as one, Runtime(model, store=store) as two:
        session = one.start("Look.")
        await session.accepted()
        async with anyio.create_task_group() as group:
            group.start_soon(client.read, ALL[kind](two.request(session.request_id)))
            await anyio.sleep(1)
            is_away = True
            await anyio.sleep(60)
            is_away = False
            ends.set()
    assert "It is there." in str(client.frames)
    assert "is not finished" not in str(client.frames)
    assert 55 <= tries <= 61, "once a second"
    assert client.comments >= 2


async def test_the_text_of_an_ending_is_sent_together_with_the_end():
    """They have one id, with which a client that has come between them would get nothing any more."""
    bodies: list[bytes] = []

    class Noting(Client):
        async def _send(self, message: Any) -> None:
            bodies.append(message.get("body", b""))
            await super()._send(message)

    @tool(return_direct=True)
    async def order() -> str:
        """Order."""
        return "Ordered."

    async with Runtime(ScriptedProvider([calls(("order", {}))]), tools=[order]) as runtime:
        await Noting().read(TextResponse(runtime.start("hi")))
    assert [each.count(b"event: ") for each in bodies if b"event: end" in each] == [2]


@pytest.mark.parametrize("respond", ALL.values(), ids=ALL)
async def test_what_is_no_request_is_refused_with_what_to_pass(respond: Respond) -> None:
    async with Runtime(ScriptedProvider([text("Hello.")])) as runtime:
        session = runtime.start("Hello?")
        for wrong in (session.events(), session.request_id, await session.result()):
            with pytest.raises(
                ConfigurationError, match=r"is not a ShownRequest: it lacks .*; pass what runtime.start"
            ):
                respond(wrong)


async def test_messages_that_wait_are_read_again_once_a_second_while_the_store_is_away():
    class Away(RequestHandle):
        def __init__(self) -> None:
            self.tries = 0

        async def pending_messages(self) -> tuple[SteeringAdded, ...]:
            self.tries += 1
            if self.tries < 4:
                raise StoreUnavailable("the database restarts")
            return ()

    before = anyio.current_time()
    assert await _pending_messages(Away()) == ((), 0)
    assert anyio.current_time() == before + 3


async def test_a_conversation_in_which_nothing_runs_has_no_events():
    assert [each async for each in _NoRequest().events()] == []
