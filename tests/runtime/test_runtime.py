"""The runtime: handles, overrides, conversations, admission, draining."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from toolbus import (
    EventBus,
    Limits,
    ModelSettings,
    RequestResult,
    RequestSession,
    Runtime,
    ToolContext,
    ToolRegistry,
    tool,
)
from toolbus.core.transcript import validate
from toolbus.errors import (
    ConfigurationError,
    InvalidHistory,
    LimitReached,
    MissingExtra,
    NotRunning,
    Overloaded,
    ProviderUnavailable,
    RequestCancelledError,
    ScriptError,
    StoreError,
)
from toolbus.events import CancelRequested, Event, RequestStarted, RoundStarted, ToolCallLate, ToolCallRequested
from toolbus.messages import AssistantMessage, Message, UserMessage
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.providers.scripted import ScriptedProvider, calls, error, hang, text
from toolbus.storage import RequestRecord
from toolbus.stores.memory import MemoryStore


@tool
async def get_weather(city: str) -> dict[str, str]:
    """Weather in a city."""
    return {"city": city, "sky": "clear"}


class Gate:
    """A model that waits until it is let go, and counts how many ask at once."""

    vendor = "gate"

    def __init__(self) -> None:
        self.open = anyio.Event()
        self.inside = 0
        self.most = 0

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.open.wait()
        finally:
            self.inside -= 1
        said = [message.content for message in request.messages if isinstance(message, UserMessage)]
        return ModelReply(message=AssistantMessage(text=" / ".join(map(str, said))))


def weather_script() -> ScriptedProvider:
    return ScriptedProvider([calls(("get_weather", {"city": "Paris"})), text("Clear.")])


async def test_the_quickstart_gives_the_answer_that_the_tool_made_possible() -> None:
    async with Runtime(weather_script(), tools=[get_weather]) as runtime:
        result = await runtime.run("Weather in Paris?")
    assert (result.text, result.outcome, result.ok) == ("Clear.", "completed", True)
    assert [(call.name, call.arguments, call.data) for call in result.tool_calls] == [
        ("get_weather", {"city": "Paris"}, {"city": "Paris", "sky": "clear"})
    ]
    validate(result.messages)


async def test_start_returns_a_handle_at_once_and_the_events_from_the_very_first() -> None:
    async with Runtime(weather_script(), tools=[get_weather]) as runtime:
        session = runtime.start("Weather in Paris?")
        assert runtime.session(session.request_id) is session
        kinds = [event.type async for event in session.events()]
        result = await session.result()
    assert (kinds[0], kinds[-1]) == ("request_started", "request_completed")
    assert runtime.session(session.request_id) is None
    assert result.request_id == session.request_id


def test_run_sync_serves_scripts_and_keeps_the_conversation(anyio_backend_name: str) -> None:
    script = ScriptedProvider([text("one"), text("two")])
    runtime = Runtime(script)
    first = runtime.run_sync("first", backend=anyio_backend_name)
    second = runtime.run_sync("second", backend=anyio_backend_name, conversation_id=first.conversation_id)
    assert [message.role for message in second.messages] == ["user", "assistant", "user", "assistant"]


def test_a_runtime_with_a_journal_runs_in_one_event_loop_after_the_other() -> None:
    @tool
    async def look() -> str:
        await anyio.wait_all_tasks_blocked()  # The inbox is waited for meanwhile.
        return "seen"

    model = ScriptedProvider([calls(("look", {})), text("Done.")] * 4)
    runtime = Runtime(model, tools=[look], store=MemoryStore(journal=True))
    backends = ("asyncio", "asyncio", "trio", "asyncio")
    assert [runtime.run_sync("go", backend=each).text for each in backends] == ["Done."] * 4


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend_name(request: pytest.FixtureRequest) -> str:
    return request.param


async def test_run_sync_inside_a_loop_says_what_to_do_instead() -> None:
    with pytest.raises(NotRunning, match=r"await runtime\.run"):
        Runtime(ScriptedProvider([])).run_sync("hi")


def test_run_sync_names_the_backends_and_what_to_install_for_trio(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(ScriptedProvider([]))
    with pytest.raises(ConfigurationError, match=r"^backend is 'curio'; it must be 'asyncio' or 'trio'$"):
        runtime.run_sync("hi", backend="curio")

    def unavailable(*_given: Any, **_options: Any) -> None:
        raise LookupError("Backend 'trio' is not available.")

    monkeypatch.setattr(anyio, "run", unavailable)
    with pytest.raises(LookupError):
        runtime.run_sync("hi", backend="trio")
    monkeypatch.setattr("toolbus.runtime._runtime.find_spec", {"trio": None}.get)
    with pytest.raises(MissingExtra, match=r"pip install 'toolbus\[trio\]'"):
        runtime.run_sync("hi", backend="trio")


def test_a_runtime_without_a_provider_names_the_variables_that_it_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("OPENAI", "TOOLBUS_PROVIDER", "OLLAMA")):
            monkeypatch.delenv(name)
    with pytest.raises(ConfigurationError, match="TOOLBUS_PROVIDER") as caught:
        Runtime()
    assert "OPENAI_API_KEY" in str(caught.value)
    monkeypatch.setenv("TOOLBUS_PROVIDER", "extractive")
    assert Runtime().provider.vendor == "extractive"
    with pytest.raises(ConfigurationError, match="nonsense"):
        Runtime("nonsense:x")


async def test_requests_outside_the_block_are_refused() -> None:
    runtime = Runtime(ScriptedProvider([]))
    with pytest.raises(NotRunning, match="is not running"):
        runtime.start("hi")
    for ask in (runtime.requests, runtime.resume, lambda: runtime.recall("r")):
        with pytest.raises(NotRunning, match="is not running"):
            await ask()
    async with runtime:
        with pytest.raises(NotRunning, match="is running already"):
            await runtime.__aenter__()
        await runtime.drain()
        with pytest.raises(NotRunning, match="is closing"):
            await runtime.run("hi")


async def test_a_thread_that_enters_a_runtime_which_is_being_entered_is_refused_and_harms_nobody() -> None:
    refused: list[NotRunning] = []

    def enter_it_too() -> None:
        with pytest.raises(NotRunning, match="Threads share one block: see") as caught:
            runtime.run_sync("me, too")
        refused.append(caught.value)

    class Opening(MemoryStore):
        async def open(self) -> None:
            await anyio.to_thread.run_sync(enter_it_too)

    runtime = Runtime(ScriptedProvider([text("Hello."), text("Again.")]), store=Opening())
    for _ in range(2):
        async with runtime:
            assert (await runtime.run("hi")).ok
    assert len(refused) == 2


async def test_a_store_that_cannot_be_opened_is_closed_and_may_take_some_time_for_it() -> None:
    class Broken(MemoryStore):
        is_closed = False

        async def open(self) -> None:
            raise StoreError("it is of a later release")

        async def aclose(self) -> None:
            await anyio.lowlevel.checkpoint()
            self.is_closed = True

    store = Broken()
    with pytest.raises(StoreError, match="it is of a later release"):
        async with Runtime(ScriptedProvider([]), store=store):
            raise AssertionError
    assert store.is_closed


def test_a_runtime_that_was_entered_in_another_event_loop_of_the_thread_is_refused_and_so_is_none() -> None:
    runtime, loop = Runtime(ScriptedProvider([text("Hello.")])), asyncio.new_event_loop()
    entered, over = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with runtime:
            entered.set()
            await over.wait()
            assert (await runtime.run("hi")).ok

    async def elsewhere() -> None:
        with pytest.raises(NotRunning, match="in another event loop of this thread"):
            await runtime.run("hi")

    held = loop.create_task(hold())
    loop.run_until_complete(entered.wait())
    never_run = RequestSession(EventBus(), ScriptedProvider([]), "hi")
    for use in (partial(runtime.start, "hi"), never_run.events, never_run.text, never_run.cancel):
        with pytest.raises(NotRunning, match="no event loop runs here; call this in an async function"):
            use()
    asyncio.run(elsewhere())
    over.set()
    loop.run_until_complete(held)
    loop.close()


async def test_what_a_request_gives_replaces_the_runtime_s_own() -> None:
    @tool
    async def other(context: ToolContext[str]) -> str:
        """Another tool."""
        return f"deps={context.deps}"

    theirs = ScriptedProvider([calls(("other", {})), text("done")])
    bus = EventBus()
    started: list[RequestStarted] = []
    bus.connect(RequestStarted, started.append)
    async with Runtime(
        ScriptedProvider([]), tools=[get_weather], deps="ours", metadata={"app": "a", "user": "x"}, bus=bus
    ) as runtime:
        result = await runtime.run(
            "go",
            provider=theirs,
            tools=[other],
            deps="theirs",
            metadata={"user": "y"},
            limits=Limits(timeout_seconds=9),
            settings=ModelSettings(temperature=0.5),
            instructions="Be brief.",
        )
    assert result.tool_calls[0].content == "deps=theirs"
    request = theirs.requests[0]
    assert [spec.name for spec in request.tools] == ["other"]
    assert request.settings.temperature == 0.5
    assert request.messages[0].role == "system"
    assert (started[0].timeout_seconds, started[0].metadata) == (9, {"app": "a", "user": "y"})


async def test_tools_may_change_while_a_request_runs() -> None:
    registry = ToolRegistry()

    @registry.add
    async def learn() -> str:
        """Learn a new trick."""
        registry.add(get_weather)
        registry.remove("learn")
        return "learnt"

    script = ScriptedProvider([calls(("learn", {})), calls(("get_weather", {"city": "Paris"})), text("ok")])
    async with Runtime(script, tools=registry) as runtime:
        result = await runtime.run("go")
    assert [call.ok for call in result.tool_calls] == [True, True]
    assert [[spec.name for spec in request.tools] for request in script.requests] == [
        ["learn"],
        ["get_weather"],
        ["get_weather"],
    ]


async def test_run_raises_the_error_of_a_request_that_fails_with_what_happened_until_then() -> None:
    away = ProviderUnavailable("nobody there", retryable=False)
    async with Runtime(ScriptedProvider([calls(("nope", {})), error(away)])) as runtime:
        with pytest.raises(ProviderUnavailable, match="nobody there") as caught:
            await runtime.run("go", conversation_id="c")
        result = caught.value.result
        assert (result.outcome, result.reason, result.error) == ("failed", "provider_unavailable", caught.value)
        assert [call.reason for call in result.tool_calls] == ["unknown_tool"]
        assert [*await runtime.store.history("c")] == result.messages


def test_run_sync_raises_the_error_of_a_request_that_fails() -> None:
    with pytest.raises(ScriptError) as caught:
        Runtime(ScriptedProvider([])).run_sync("go")
    assert caught.value.result.outcome == "failed"


async def test_an_error_before_the_request_began_has_no_result() -> None:
    with pytest.raises(NotRunning) as caught:
        await Runtime(ScriptedProvider([])).run("go")
    assert caught.value.result is None


async def test_limits_and_cancellations_are_results_and_a_session_s_result_never_raises() -> None:
    async with Runtime(ScriptedProvider(lambda _request: calls(("nope", {})))) as runtime:
        result = await runtime.run("go", limits=Limits(max_rounds=1, on_limit="stop"))
        assert (result.outcome, result.reason) == ("stopped", "max_rounds=1")
        with pytest.raises(LimitReached):
            result.raise_for_outcome()

        def cancel(event: RoundStarted) -> None:
            runtime.bus.publish(CancelRequested(request_id=event.request_id, reason="no"))

        disconnect = runtime.bus.connect(RoundStarted, cancel)
        result = await runtime.run("go", provider=Gate())
        assert (result.outcome, result.reason) == ("cancelled", "no")
        with pytest.raises(RequestCancelledError):
            result.raise_for_outcome()
        disconnect()
        failed = runtime.start("go", provider=ScriptedProvider([]))
        assert [(await failed.result()).outcome, (await failed.result()).outcome] == ["failed", "failed"]


# ------------------------------------------------------------------------------------------- conversations


async def test_a_conversation_remembers_its_turns_with_their_calls_and_results() -> None:
    script = ScriptedProvider([calls(("get_weather", {"city": "Paris"})), text("Clear."), text("As I said.")])
    async with Runtime(script, tools=[get_weather]) as runtime:
        first = await runtime.run("Weather in Paris?")
        second = await runtime.run("Sure?", conversation_id=first.conversation_id)
    assert second.history_count == 4
    assert second.messages[:4] == first.messages
    assert [message.role for message in second.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]


async def test_turns_of_one_conversation_run_one_at_a_time_in_the_order_of_start() -> None:
    gate = Gate()
    async with Runtime(gate) as runtime:
        sessions = [runtime.start(f"turn {number}", conversation_id="c") for number in range(5)]
        free = runtime.start("elsewhere")
        await anyio.wait_all_tasks_blocked()
        assert gate.inside == 2
        gate.open.set()
        texts = [(await session.result()).text for session in sessions]
        assert (await free.result()).text == "elsewhere"
    assert texts[4] == "turn 0 / turn 1 / turn 2 / turn 3 / turn 4"
    assert gate.most == 2


async def test_a_waiting_turn_can_be_cancelled_and_lets_the_next_one_pass() -> None:
    gate = Gate()
    async with Runtime(gate) as runtime:
        first = runtime.start("one", conversation_id="c")
        second = runtime.start("two", conversation_id="c")
        third = runtime.start("three", conversation_id="c")
        await anyio.wait_all_tasks_blocked()
        second.cancel("not needed")
        assert (await second.result()).outcome == "cancelled"
        gate.open.set()
        assert (await first.result()).text == "one"
        assert (await third.result()).text.endswith("three")


async def test_a_cancelled_turn_stays_in_the_conversation_and_a_follow_up_works() -> None:
    gate = Gate()
    async with Runtime(gate) as runtime:
        first = runtime.start("one", conversation_id="c")
        await anyio.wait_all_tasks_blocked()
        first.cancel()
        await first.result()
        with anyio.move_on_after(0):
            await runtime.run("two", conversation_id="c")
        gate.open.set()
        third = await runtime.run("three", conversation_id="c")
    assert third.text == "one / two / three"
    validate(third.messages)


async def test_a_history_of_the_application_s_own_begins_a_conversation() -> None:
    script = ScriptedProvider([text("b"), text("d")])
    given: list[Message] = [UserMessage(content="old"), AssistantMessage(text="a")]
    async with Runtime(script) as runtime:
        first = await runtime.run("new", history=given)
        assert [message.role for message in first.messages] == ["user", "assistant", "user", "assistant"]
        second = await runtime.run("newer", conversation_id=first.conversation_id)
        assert second.history_count == 4
        with pytest.raises(ConfigurationError, match="not both"):
            await runtime.run("newest", conversation_id=first.conversation_id, history=given)
        with pytest.raises(InvalidHistory):
            runtime.start("x", history=[AssistantMessage(text="before any user")])
    assert len(given) == 2


async def test_a_store_that_fails_to_give_a_history_fails_that_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryStore):
        async def history(self, conversation_id: str) -> Sequence[Message]:
            if conversation_id == "bad":
                raise OSError("gone")
            return await super().history(conversation_id)

    async with Runtime(ScriptedProvider([text("x")]), store=Broken()) as runtime:
        with pytest.raises(StoreError, match="gone"):
            await runtime.run("hi", conversation_id="bad")
        assert (await runtime.run("hi", conversation_id="good")).ok
    assert "its store failed: OSError: gone" in caplog.text
    assert "Traceback" not in caplog.text


# ----------------------------------------------------------------------------------------------- admission


async def test_requests_past_the_places_wait_and_past_the_queue_are_refused() -> None:
    gate = Gate()
    async with Runtime(gate, max_sessions=2, max_queued=1) as runtime:
        sessions = [runtime.start(f"request {number}") for number in range(3)]
        await anyio.wait_all_tasks_blocked()
        assert gate.inside == 2
        with pytest.raises(Overloaded, match=r"full \(2 running, 1 waiting\)") as caught:
            runtime.start("one too many")
        assert caught.value.retry_after_seconds >= 1
        assert caught.value.retryable
        gate.open.set()
        assert [(await session.result()).outcome for session in sessions] == ["completed"] * 3
        assert (await runtime.run("again")).ok
    assert gate.most == 2


async def test_requests_that_wait_for_a_slot_begin_in_the_order_in_which_they_were_started() -> None:
    provider = ScriptedProvider(lambda _request: text("done"))
    async with Runtime(provider, max_sessions=1) as runtime:
        sessions = [
            runtime.start(f"{number}", **({"conversation_id": "c"} if number % 3 == 0 else {})) for number in range(20)
        ]
        for session in sessions:
            await session.result()
    asked = [request.messages[-1].text for request in provider.requests]
    alone = [str(number) for number in range(20) if number % 3]
    assert [each for each in asked if each in alone] == alone
    assert [each for each in asked if each not in alone] == [str(number) for number in range(0, 20, 3)]
    assert asked[:3] == ["0", "1", "2"]


async def test_a_request_that_gives_up_while_it_waits_frees_its_place_in_the_queue() -> None:
    gate = Gate()
    async with Runtime(gate, max_sessions=1, max_queued=1) as runtime:
        first, second = runtime.start("one"), runtime.start("two")
        await anyio.wait_all_tasks_blocked()
        second.cancel()
        await second.result()
        third = runtime.start("three")
        await anyio.wait_all_tasks_blocked()
        gate.open.set()
        assert (await first.result()).ok
        assert (await third.result()).ok


@pytest.mark.parametrize("options", [{"max_sessions": 0}, {"max_queued": -1}, {"max_concurrency": 0}])
def test_bounds_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Runtime(ScriptedProvider([]), **options)


# ------------------------------------------------------------------------------------------------- leaving


async def test_leaving_the_block_waits_for_running_requests() -> None:
    gate = Gate()
    async with Runtime(gate) as runtime:
        session = runtime.start("hi")
        await anyio.wait_all_tasks_blocked()
        gate.open.set()
    assert (await session.result()).ok


async def test_draining_cancels_what_does_not_end_in_its_grace() -> None:
    gate = Gate()
    async with Runtime(gate) as runtime:
        sessions = [runtime.start("hi"), runtime.start("ho")]
        await anyio.wait_all_tasks_blocked()
        assert await runtime.drain(timeout_seconds=0) == 2
        results: list[RequestResult[Any]] = [await session.result() for session in sessions]
    assert {(result.outcome, result.reason) for result in results} == {("cancelled", "the runtime is closing")}


async def test_an_exception_cancels_at_once_and_leaves_as_it_came() -> None:
    gate = Gate()
    with pytest.raises(KeyError, match="mine"):
        async with Runtime(gate) as runtime:
            session = runtime.start("hi")
            await anyio.wait_all_tasks_blocked()
            raise KeyError("mine")
    assert (await session.result()).outcome == "cancelled"


async def test_a_cancelled_run_ends_its_request_and_passes_the_cancellation_on() -> None:
    gate = Gate()
    bus = EventBus()
    heard: list[Event] = []
    bus.connect(Event, heard.append)
    async with Runtime(gate, bus=bus) as runtime:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(runtime.run, "hi")
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        assert scope.cancelled_caught
        gate.open.set()
        assert heard[-1].type == "request_cancelled"
        assert (await runtime.run("after")).ok
    assert bus.statistics().mailboxes == 0


@pytest.mark.guarantee("G16")
async def test_a_cancelled_request_ends_though_its_tool_swallows_the_cancellation() -> None:
    begun, let_go = anyio.Event(), anyio.Event()

    @tool
    async def stubborn() -> str:
        """Goes on whatever happens."""
        begun.set()
        with anyio.CancelScope(shield=True):
            await let_go.wait()
        return "done all the same"

    script = ScriptedProvider([calls(("get_weather", {"city": "Paris"}), ("stubborn", {}))])
    async with Runtime(script, tools=[get_weather, stubborn]) as runtime:
        session = runtime.start("go")
        late = runtime.bus.subscribe(ToolCallLate).open()
        with anyio.fail_after(30):
            await begun.wait()
            await anyio.wait_all_tasks_blocked()
            session.cancel("enough")
            result = await session.result()
            assert runtime.dispatcher.statistics().overdue == ("stubborn",)
            let_go.set()
            await anext(late)
        late.close()
    assert (result.outcome, [call.reason for call in result.tool_calls]) == ("cancelled", ["", "cancelled"])
    validate(result.messages)


async def test_a_runtime_can_be_entered_again() -> None:
    runtime = Runtime(ScriptedProvider([text("a"), text("b")]))
    for expected in ("a", "b"):
        async with runtime:
            assert (await runtime.run("hi")).text == expected


async def test_the_caller_s_context_variables_reach_the_tool() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")

    @tool
    async def whoami() -> str:
        """Who asks."""
        return user.get("nobody")

    script = ScriptedProvider(lambda request: text("ok") if request.round else calls(("whoami", {})))
    async with Runtime(script, tools=[whoami]) as runtime:
        found: dict[str, str] = {}

        async def ask(name: str) -> None:
            user.set(name)
            found[name] = (await runtime.run("hi")).tool_calls[0].content

        async with anyio.create_task_group() as group:
            for name in ("ada", "bob", "eve"):
                group.start_soon(ask, name)
        user.set("started")
        assert (await runtime.start("hi").result()).tool_calls[0].content == "started"
    assert found == {"ada": "ada", "bob": "bob", "eve": "eve"}


@pytest.mark.repeats("ten thousand times")
@pytest.mark.guarantee("G04")
async def test_ten_thousand_sessions_wait_at_once_and_each_ends_by_its_own_event(anyio_backend: str) -> None:
    bus = EventBus()
    waiting: list[ToolCallRequested] = []
    all_wait = anyio.Event()
    total = 10_000 if anyio_backend == "asyncio" else 2_000

    def collect(event: ToolCallRequested) -> None:
        waiting.append(event)
        if len(waiting) == total:
            all_wait.set()

    bus.connect(ToolCallRequested, collect)

    @tool(external=True)
    async def ask_person(question: str) -> str:  # pyright: ignore[reportReturnType]
        """Ask a person."""

    def script(request: ModelRequest) -> Any:
        if request.round == 0:
            return calls(("ask_person", {"question": request.request_id}))
        answer = request.messages[-1]
        return text(getattr(answer, "content", ""))

    from toolbus.events import ToolCallCompleted

    async with Runtime(ScriptedProvider(script), tools=[ask_person], bus=bus, max_sessions=total) as runtime:
        sessions = [runtime.start("go") for _ in range(total)]
        with anyio.fail_after(60):
            await all_wait.wait()
            assert bus.statistics().open_calls == total
            for event in reversed(waiting):
                assert bus.publish(
                    ToolCallCompleted(
                        request_id=event.request_id,
                        call_id=event.call_id,
                        name=event.name,
                        content=f"answer to {event.arguments['question']}",
                    )
                )
            for session in sessions:
                assert (await session.result()).text == f"answer to {session.request_id}"
    statistics = bus.statistics()
    assert (statistics.open_calls, statistics.mailboxes, statistics.open_calls_peak) == (0, 0, total)


async def test_an_option_that_does_not_exist_is_refused_by_name() -> None:
    async with Runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(
            TypeError,
            match=r"a request: there is no option tool \(did you mean tools\?\); the options are output, limits",
        ):
            runtime.start("hi", tool=[get_weather])  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("keep_ended_seconds", [60.0, 0.0])
async def test_the_requests_of_one_conversation_are_listed_without_a_look_at_all_others(
    keep_ended_seconds: float, monkeypatch: pytest.MonkeyPatch
):
    """A batch of thousands looks for the requests of each of its conversations, which would take the square of that."""
    model = ScriptedProvider(lambda request: hang() if "wait" in str(request.messages[-1]) else text("Hi."))
    async with Runtime(model, keep_ended_seconds=keep_ended_seconds) as runtime:
        for number in range(10):
            await runtime.run("Hello?", conversation_id=f"ended {number}")
        running = [runtime.start("Please wait.", conversation_id=f"runs {number}") for number in range(10)]
        make, made = RequestRecord.__init__, list[str]()

        def noted(record: RequestRecord, **fields: Any) -> None:
            make(record, **fields)
            made.append(record.request_id)

        monkeypatch.setattr(RequestRecord, "__init__", noted)
        found = [each.request_id for each in await runtime.requests(conversation_id="runs 3")]
        assert found == made == [running[3].request_id]
        for each in running:
            each.cancel()


@pytest.mark.parametrize("is_stored", [False, True])
async def test_requests_are_listed_with_and_without_a_journal(is_stored: bool):
    model = ScriptedProvider(lambda request: hang() if "wait" in str(request.messages[-1]) else text("Hi."))
    store = MemoryStore(journal=is_stored)
    async with Runtime(model, store=store) as runtime:
        assert [*await runtime.requests()] == []
        ended = await runtime.run("Hello?", conversation_id="a")
        waits = runtime.start("Please wait.", conversation_id="b")
        queued = runtime.start("Me, too.", conversation_id="b")
        await waits.accepted()
        found = [*await runtime.requests()]
        assert [each.request_id for each in found] == [queued.request_id, waits.request_id, ended.request_id]
        assert [each.ending for each in found] == [None, None, "completed"]
        assert [each.fact_count > 0 for each in found] == [False, True, True]
        of_b = [each.request_id for each in await runtime.requests(conversation_id="b")]
        assert of_b == [queued.request_id, waits.request_id]
        assert [each.request_id for each in await runtime.requests(limit=1)] == [queued.request_id]
        queued.cancel()
        await queued.result()
        newest = await runtime.run("Hello again?", conversation_id="a")  # One that runs is not always the newest.
        assert [each.request_id for each in await runtime.requests(limit=1)] == [newest.request_id]
        waits.cancel()
