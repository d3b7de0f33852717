"""Background tools: the model continues at once, and the result wakes the request, or opens the next turn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
import pytest

from support.resuming import Lab, Wall, virtual_walls
from toolbus import Limits, RequestSession, Runtime, Tool, ToolContext, tool
from toolbus.core.transcript import validate
from toolbus.errors import ConfigurationError
from toolbus.events import (
    DeadLetter,
    Event,
    RequestCancelled,
    StatusChanged,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallRequested,
)
from toolbus.messages import Message, SystemMessage, UserMessage
from toolbus.protocols import ModelRequest
from toolbus.providers.scripted import Step
from toolbus.remote import Client
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, advance, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()
wall = virtual_walls()
pytestmark = pytest.mark.guarantee("G33")

HOUR, DAY = 3_600.0, 86_400.0
OUTSIDE: Tool = Tool(
    "outside",
    "Ask outside.",
    {"type": "object"},
    external=True,
    background=True,
    timeout_seconds=10 * DAY,
    validate=lambda _arguments: None,
)
UNDER_WAY = text("It is under way.")


def notes_in(messages: Any) -> list[str]:
    return [each.text for each in messages if isinstance(each, SystemMessage)]


class Model(ScriptedProvider):
    """A model that calls `name`, says that it is under way, and then repeats what it has been told since."""

    def __init__(self, name: str = "outside") -> None:
        self.asked: list[list[Message]] = []

        def reply(request: ModelRequest) -> Step:
            self.asked.append(list(request.messages))
            last = request.messages[-1]
            if isinstance(last, SystemMessage):
                return text(f"Told: {last.text.rpartition('gave: ')[2]}")
            if isinstance(last, UserMessage) and last.text == "go":
                return calls((name, {"n": 1}))
            return UNDER_WAY if last.role == "tool" else text("Soon.")

        super().__init__(reply)


def node(store: MemoryStore | None = None, *tools: Any, name: str = "outside", **options: Any) -> Runtime:
    options = {
        "park_after_seconds": None if store is None else 60.0,
        "drain_seconds": 0,
        "inbox_poll_seconds": 30.0,
        **options,
    }
    return Runtime(Model(name), tools=[OUTSIDE, *tools], store=store, **options)


async def requested_by(session: RequestSession) -> ToolCallRequested:
    async for event in session.events(ToolCallRequested):
        return event
    raise AssertionError("nothing was requested")


async def test_a_handler_runs_while_the_model_continues_and_its_result_wakes_the_request() -> None:
    heard: list[str] = []

    @tool(background=True, timeout_seconds=DAY)
    async def render(n: int, context: ToolContext[Any]) -> str:
        """Render a film."""
        await context.progress("half way")
        await anyio.sleep(10 * HOUR)
        return f"film {n}"

    async with node(None, render, name="render") as runtime:
        runtime.bus.connect(Event, lambda event: heard.append(event.type))
        statuses = list[str]()
        runtime.bus.connect(StatusChanged, lambda event: statuses.append(f"{event.stage}: {event.text}"))
        session = runtime.start("go")
        await settle()
        assert [each.role for each in session.messages] == ["user", "assistant", "tool", "assistant"]
        assert repr(session).endswith("waits for background calls, rounds: 2>")
        assert statuses[-1] == "waiting: Waiting for Render..."
        began = anyio.current_time()
        result = await session.result()
        assert anyio.current_time() - began == pytest.approx(10 * HOUR)
    assert (result.outcome, result.text) == ("completed", "Told: film 1")
    assert [(each.name, each.ok, each.content) for each in result.tool_calls] == [("render", True, "film 1")]
    validate(result.messages)
    # The result comes after the answer of the round that was told to continue without it.
    assert heard.index("tool_call_completed") > [*heard].index("model_responded", heard.index("round_started") + 5)


async def test_the_user_speaks_to_the_request_while_the_call_runs() -> None:
    async with node() as runtime:
        session = runtime.start("go")
        requested = await requested_by(session)
        await settle()
        assert session.steer("How long?")
        await settle()
        assert [each.role for each in session.messages][-2:] == ["user", "assistant"]
        assert not session.ended
        session.inject(requested.completed("42"))
        assert (await session.result()).text == "Told: 42"


@pytest.mark.parametrize("moment", ["early", "while the model is asked", "later", "twice"])
async def test_a_result_counts_once_whenever_it_comes(moment: str) -> None:
    class Slow(Model):
        async def respond(self, request: ModelRequest, emit: Any) -> Any:
            if moment == "while the model is asked":
                await anyio.sleep(10)
            return await super().respond(request, emit)

    heard: list[Event] = []
    async with Runtime(Slow(), tools=[OUTSIDE]) as runtime:
        runtime.bus.connect((ToolCallCompleted, ToolCallLate, DeadLetter), heard.append)
        if moment == "early":
            runtime.bus.connect(ToolCallRequested, lambda event: runtime.bus.publish(event.completed("42")))
        session = runtime.start("go")
        requested = await requested_by(session)
        if moment != "early":
            await advance(15 if moment == "while the model is asked" else 100)
            answer = requested.completed("42")
            for _ in range(2 if moment == "twice" else 1):
                session.inject(answer)
            if moment == "twice":
                assert not session.inject(requested.completed("43"))
        result = await session.result()
    assert [type(each) for each in heard] == [ToolCallCompleted, *[ToolCallLate] * (moment == "twice")]
    assert result.text == ("Told: 42" if moment != "early" else result.text)
    assert len(notes_in(result.messages)) == 1
    validate(result.messages)


async def test_a_cancel_stops_the_handler_and_ends_the_request_at_once() -> None:
    stopped: list[float] = []

    @tool(background=True)
    async def render(n: int) -> str:
        """Render a film."""
        try:
            await anyio.sleep(DAY)
        finally:
            stopped.append(anyio.current_time())
        return str(n)

    heard: list[Event] = []
    async with node(None, render, name="render") as runtime:
        runtime.bus.connect((ToolCallFailed, RequestCancelled), heard.append)
        session = runtime.start("go")
        await advance(50)
        session.cancel("enough")
        result = await session.result()
        await settle()
        assert stopped == [anyio.current_time()]
    assert (result.outcome, [each.reason for each in result.tool_calls]) == ("cancelled", ["cancelled"])
    assert [type(each) for each in heard] == [ToolCallFailed, RequestCancelled]


# ------------------------------------------------------------------------------------------ other processes


@pytest.mark.guarantee("G19", "G32")
async def test_a_call_of_three_days_over_five_restarts_is_parked_and_its_answer_reported_once(wall: Wall) -> None:
    store, heard = MemoryStore(journal=True), list[Event]()
    async with node(store) as runtime:
        await runtime.resume(watch=True)
        session = runtime.start("go", conversation_id="c")
        requested = await requested_by(session)
        await advance(200)
        assert runtime.session(session.request_id) is None  # it has left memory
    for _ in range(5):
        async with node(store) as runtime:
            runtime.bus.connect((ToolCallCompleted, ToolCallFailed, DeadLetter), heard.append)
            await runtime.resume(watch=True)
            await advance(200)
            assert runtime.session(session.request_id) is None
        wall.put_to(wall() + 0.6 * DAY)
    handle = Client(store).request(session.request_id)
    answer = requested.completed("42")
    assert [await handle.inject(answer) for _ in range(2)] == ["queued"] * 2
    async with node(store) as runtime:
        runtime.bus.connect((ToolCallCompleted, ToolCallFailed, DeadLetter), heard.append)
        await runtime.resume(watch=True)
        result = await handle.result()
        assert await handle.inject(answer) == "done"
    assert [each.event_id for each in heard] == [answer.event_id]
    assert (result.outcome, result.text) == ("completed", "Told: 42")
    assert result.duration_seconds > 3 * DAY


@pytest.mark.guarantee("G19", "G32")
@pytest.mark.parametrize("pause", ["before the answer", "after the answer"])
async def test_a_process_that_runs_the_handler_is_gone(pause: str) -> None:
    """The call runs again if it is idempotent, with the time that it had left; its request waits for it anywhere."""
    store, lab = MemoryStore(journal=True), Lab()
    render = lab.tool("render", 5 * HOUR, idempotent=True, background=True, timeout_seconds=12 * HOUR)
    pay = lab.tool("pay", 5 * HOUR, background=True, timeout_seconds=12 * HOUR)
    for name, outcome in (("render", "Told: render 1"), ("pay", "The process ended while pay ran")):
        async with node(store, render, pay, name=name) as runtime:
            session = runtime.start("go")
            await (settle() if pause == "before the answer" else advance(HOUR))
        assert (await session.result()).resumable
        async with node(store, render, pay, name=name) as runtime:
            began = anyio.current_time()
            await runtime.resume()
            result = await runtime.request(session.request_id).result()
            assert anyio.current_time() - began == pytest.approx(5 * HOUR if name == "render" else 0, abs=2)
        assert outcome in result.text
    assert sorted(lab.keys().values()) == [1, 2]  # `pay` has run once


# ------------------------------------------------------------------------------- the next turn of the conversation


async def cancelled(runtime: Runtime) -> tuple[RequestSession, ToolCallRequested]:
    """A request of conversation "c" that was cancelled while its background call ran, and the call."""
    session = runtime.start("go", conversation_id="c")
    requested = await requested_by(session)
    await settle()
    session.cancel("enough")
    await session.result()
    return session, requested


@pytest.mark.parametrize("where", ["here", "elsewhere", "after a restart"])
async def test_a_result_that_comes_after_the_end_opens_the_next_turn_once(where: str) -> None:
    store = MemoryStore(journal=True)
    async with node(store) as runtime:
        session, requested = await cancelled(runtime)
        answers = [requested.completed("42"), requested.completed("42")]
        if where != "after a restart":
            handle = (runtime if where == "here" else Client(store)).request(session.request_id)
            assert [await handle.inject(each) for each in (*answers, answers[0])] == ["queued"] * 3
            result = await runtime.run("And now?", conversation_id="c")
    if where == "after a restart":
        async with node(store) as runtime:
            handle = runtime.request(session.request_id)
            assert [await handle.inject(each) for each in answers] == ["queued"] * 2
            result = await runtime.run("And now?", conversation_id="c")
    told = [each for each in notes_in(result.messages) if each.startswith("A call that was given up earlier")]
    assert [each.rpartition("gave: ")[2] for each in told] == ["42"]
    assert [each.role for each in result.messages[-3:]] == ["system", "user", "assistant"]
    validate(result.messages)


class _Distant(MemoryStore):
    """A store that takes `seconds` for a read and for a write, so that others may write meanwhile."""

    seconds = 0.01

    async def history(self, conversation_id: str) -> Sequence[Message]:
        found = await super().history(conversation_id)
        await anyio.sleep(self.seconds)
        return found

    async def remember(self, conversation_id: str, messages: Sequence[Message], *, request_id: str = "") -> None:
        await anyio.sleep(self.seconds)
        await super().remember(conversation_id, messages, request_id=request_id)


class _Forgetful(MemoryStore):
    """A store in which somebody deletes a conversation before or after it is read, as `deletes` says."""

    deletes = ""

    async def history(self, conversation_id: str) -> Sequence[Message]:
        if self.deletes == "before":
            await self.forget(conversation_id)
        found = await super().history(conversation_id)
        if self.deletes == "after":
            await self.forget(conversation_id)
        return found


@pytest.mark.parametrize("deletes", ["before", "after"])
async def test_a_late_result_does_not_bring_a_conversation_back_that_was_deleted_meanwhile(deletes: str) -> None:
    store = _Forgetful(journal=True)
    async with node(store) as runtime:
        session, requested = await cancelled(runtime)
        store.deletes = deletes
        answer = await runtime.request(session.request_id).inject(requested.completed("42"))
        assert answer == ("ended" if deletes == "before" else "queued")
        assert await store.conversations() == []


@pytest.mark.parametrize("is_published", [False, True], ids=["sent", "published-too"])
async def test_a_late_result_that_comes_on_several_ways_at_once_is_noted_once(*, is_published: bool) -> None:
    store = _Distant(journal=True)
    async with node(store) as runtime:
        session, requested = await cancelled(runtime)
        answers: list[str] = []

        async def send() -> None:
            answers.append(await Client(store).request(session.request_id).inject(requested.completed("42")))

        async with anyio.create_task_group() as tasks:
            if is_published:
                assert not runtime.bus.publish(requested.completed("42"))
                tasks.start_soon(partial(runtime.run, "And now?", conversation_id="c"))
            for _ in range(4):
                tasks.start_soon(send)
        assert answers == ["queued"] * 4
        assert sum("earlier" in getattr(each, "text", "") for each in await store.history("c")) == 1


@pytest.mark.parametrize("stalls", [False, True], ids=["slow-store", "suspended-process"])
async def test_a_late_result_is_noted_once_although_its_writer_is_slow(wall: Wall, *, stalls: bool) -> None:
    """Each call of the store takes nearly as long as it may, or a process stands still between two of them."""
    store = _Distant(journal=True)
    async with node(store) as runtime:
        session, requested = await cancelled(runtime)
        store.seconds = 4.0
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(Client(store).request(session.request_id).inject, requested.completed("42"))
                await advance(1)
                if stalls:
                    wall.put_to(wall() + 60)
        assert sum("earlier" in getattr(each, "text", "") for each in await store.history("c")) == 1


async def test_only_the_answer_to_a_background_call_that_was_given_up_opens_the_next_turn() -> None:
    store = MemoryStore(journal=True)
    async with node(store) as runtime:
        session = runtime.start("go", conversation_id="c")
        requested = await requested_by(session)
        await settle()
        answer = requested.completed("42")
        session.inject(answer)
        await session.result()
        other = Client(store).request(session.request_id)
        assert await other.inject(requested.completed("43")) == "ended"
        assert await other.inject(requested.failed("no").__class__(**_as_other(requested))) == "ended"
        assert not [each for each in await store.history("c") if "earlier" in getattr(each, "text", "")]


def _as_other(requested: ToolCallRequested) -> dict[str, Any]:
    """The fields of an answer to a call that nobody has made."""
    return {"request_id": requested.request_id, "call_id": "r_9_9", "name": "outside", "reason": "error", "error": "x"}


async def test_without_a_journal_a_late_result_is_for_the_next_turn_too() -> None:
    async with node(late_results="event") as runtime:
        session, requested = await cancelled(runtime)
        assert not session.inject(requested.completed("42"))
        result = await runtime.run("And now?", conversation_id="c")
    assert [each.rpartition("gave: ")[2] for each in notes_in(result.messages)][-1:] == ["42"]


# ----------------------------------------------------------------------------------------------------- bad input


def test_what_cannot_be_is_refused_when_the_tool_is_made() -> None:
    with pytest.raises(ConfigurationError, match=r"tool 'render': the calls after a sequential one wait for it"):

        @tool(background=True, sequential=True)
        def render() -> None:
            """Render."""

    with pytest.raises(ConfigurationError, match="background"):
        Tool("x", "x", {"type": "object"}, external=True, background="yes")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="background_timeout_seconds"):
        Limits(background_timeout_seconds=0)
    with pytest.raises(ConfigurationError, match=r"tool 'render': needs_transcript is for a worker"):
        tool(needs_transcript=True, name="render")(lambda: "x")
