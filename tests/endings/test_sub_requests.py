"""Requests that tools make: they all finish however few places there are, spend their parent's limits, and outlive nothing."""

from __future__ import annotations

import contextlib
import gc
import itertools
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, cast

import anyio
import pytest

from endings.ended_well import (
    ENDINGS,
    assert_ended_well,
    assert_goes_on,
    assert_left_idle,
    listen,
    of_request,
)
from endings.stepping import Moment, Place, stepped
from toolbus import (
    Limits,
    Price,
    RequestResult,
    RequestSession,
    Runtime,
    ToolContext,
    ToolError,
    ToolRegistry,
    sub_request_tool,
    tool,
)
from toolbus.errors import LimitReached, NotRunning
from toolbus.events import (
    CancelRequested,
    Event,
    RequestCancelled,
    RequestStarted,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import Usage
from toolbus.protocols import ModelRequest
from toolbus.providers.scripted import Step
from toolbus.session._view import SessionView
from toolbus.testing import ScriptedProvider, advance, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()

Call: TypeAlias = tuple[str, dict[str, Any]]


# ------------------------------------------------------------------------------------------------- tools


@tool
async def look_up(key: str) -> str:
    """Look a key up, in a second."""
    await anyio.sleep(1)
    return f"{key} it is"


@tool
def in_thread(key: str) -> str:
    """Look a key up, in a thread."""
    return f"{key} from a thread"


class Running:
    """How many handlers are in a place where they wait for ever."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.tool = tool(self.wait)

    async def wait(self) -> str:
        """Wait for ever."""
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await anyio.sleep_forever()
        finally:
            self.now -= 1
        return ""


@tool
async def fails_later() -> str:
    """Fail in two seconds."""
    await anyio.sleep(2)
    raise ToolError("it is broken")


def model(*steps: Step) -> ScriptedProvider:
    """A script that each request begins anew."""
    return ScriptedProvider(lambda request: steps[request.round])


LOOK_UP: Call = ("look_up", {"key": "a"})
WAIT: Call = ("wait", {})
ASK: Call = ("desk", {"task": "Look it up."})
CHILD = model(calls(LOOK_UP, LOOK_UP), text("Found."))
PARENT = model(calls(ASK), text("All found."))


def asking(provider: Any, tools: Sequence[Any], **options: Any) -> Any:
    """The tool `desk`, which asks by its context."""

    async def desk(task: str, context: ToolContext[Any]) -> str:
        """Hand a task over."""
        result: RequestResult[Any] = await context.ask(task, provider=provider, tools=tools)
        result.raise_for_outcome()
        return result.text

    return tool(**options)(desk)


def by_context(provider: Any, tools: Sequence[Any]) -> Any:
    return asking(provider, tools)


def by_tool(provider: Any, tools: Sequence[Any]) -> Any:
    return sub_request_tool("desk", "Looks things up.", provider=provider, tools=tools)


def by_runtime(provider: Any, tools: Sequence[Any]) -> Any:
    return Runtime(provider, tools=tools).as_tool("desk", "Looks things up.")


WAYS = {"context": by_context, "tool": by_tool, "runtime": by_runtime}


def started(events: Sequence[Event]) -> list[RequestStarted]:
    return [event for event in events if isinstance(event, RequestStarted)]


def children_of(events: Sequence[Event], session: RequestSession) -> list[str]:
    return [event.request_id for event in started(events) if event.parent_request_id == session.request_id]


def assert_children_ended(events: Sequence[Event]) -> None:
    """Each sub-request has one ending, and one answer to each of its calls."""
    for child in started(events):
        if not child.parent_request_id:
            continue
        mine = of_request(events, child.request_id)
        assert sum(isinstance(event, ENDINGS) for event in mine) == 1
        asked = [event.call_id for event in mine if isinstance(event, ToolCallRequested)]
        answered = [event.call_id for event in mine if isinstance(event, (ToolCallCompleted, ToolCallFailed))]
        assert len(set(answered)) == len(answered)
        assert set(asked) <= set(answered)


# ------------------------------------------------------------------------------------------------- places


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("places", [8, 3, 1])
async def test_eight_parents_that_wait_for_children_on_few_places_all_finish(way: str, places: int) -> None:
    desk = WAYS[way](CHILD, [look_up])
    async with Runtime(PARENT, tools=[desk], max_concurrency=places) as runtime:
        heard = listen(runtime.bus)
        sessions = [runtime.start("Go.") for _ in range(8)]
        results = [await session.result() for session in sessions]
        assert [result.text for result in results] == ["All found."] * 8
        assert len(started(heard)) == 16
        for result in results:
            assert_ended_well(heard, result)
        assert_children_ended(heard)
        assert runtime.dispatcher.statistics().running_peak <= places
        assert runtime.dispatcher.statistics().suspended == 0
    await assert_left_idle(runtime)


@pytest.mark.guarantee("G10")
async def test_parents_of_parents_on_one_place_all_finish() -> None:
    innermost = by_tool(model(calls(LOOK_UP, LOOK_UP), text("Found.")), [look_up])
    await parents_of_parents(innermost, max_concurrency=1)


@pytest.mark.guarantee("G10")
async def test_parents_of_parents_on_one_place_and_one_thread_all_finish() -> None:
    innermost = by_tool(model(calls(("in_thread", {"key": "b"}), LOOK_UP), text("Found.")), [look_up, in_thread])
    await parents_of_parents(innermost, max_concurrency=1, max_threads=1)


async def parents_of_parents(innermost: Any, **bounds: int) -> None:
    middle = by_tool(model(calls(ASK, ASK), text("Both found.")), [innermost])
    async with Runtime(PARENT, tools=[middle], **cast("Any", bounds)) as runtime:
        heard = listen(runtime.bus)
        sessions = [runtime.start("Go.") for _ in range(4)]
        assert [(await session.result()).text for session in sessions] == ["All found."] * 4
        assert len(started(heard)) == 4 * (1 + 1 + 2)
        assert_children_ended(heard)
    await assert_left_idle(runtime)


@pytest.mark.guarantee("G10")
async def test_a_tool_that_is_bounded_itself_lets_its_children_have_its_place() -> None:
    inner = asking(CHILD, [look_up], max_concurrency=1)
    outer_script = model(calls(ASK, ASK, ASK), text("All found."))
    async with Runtime(outer_script, tools=[inner], max_concurrency=2) as runtime:
        result = await runtime.run("Go.")
        assert [call.ok for call in result.tool_calls] == [True] * 3
    await assert_left_idle(runtime)


# ------------------------------------------------------------------------------------------------- outliving nothing

End: TypeAlias = Callable[[Runtime, RequestSession, anyio.CancelScope], Awaitable[None]]


async def cancel(_runtime: Runtime, session: RequestSession, _scope: anyio.CancelScope) -> None:
    session.cancel("enough")


async def cancel_scope(_runtime: Runtime, _session: RequestSession, scope: anyio.CancelScope) -> None:
    scope.cancel()


async def drain(runtime: Runtime, _session: RequestSession, _scope: anyio.CancelScope) -> None:
    await runtime.drain(timeout_seconds=1)


async def wait(_runtime: Runtime, session: RequestSession, _scope: anyio.CancelScope) -> None:
    await session.result()


ENDS: dict[str, tuple[End, Limits, tuple[Call, ...], tuple[str, str]]] = {
    "cancelled": (cancel, Limits(), (ASK,), ("cancelled", "enough")),
    "host gone": (cancel_scope, Limits(), (ASK,), ("cancelled", "the host cancelled the request")),
    "drained": (drain, Limits(), (ASK,), ("cancelled", "the runtime is closing")),
    "call timed out": (wait, Limits(tool_timeout_seconds=5), (ASK,), ("completed", "")),
    "request timed out": (wait, Limits(timeout_seconds=5), (ASK,), ("stopped", "timeout_seconds=5")),
    "fail_fast": (
        wait,
        Limits(on_failure="fail_fast"),
        (ASK, ("fails_later", {})),
        ("stopped", "on_failure=fail_fast"),
    ),
}


@pytest.mark.guarantee("G06", "G10", "G16", "G17")
@pytest.mark.parametrize("way", ["context", "tool"])
@pytest.mark.parametrize("end", ENDS)
async def test_a_sub_request_outlives_nothing(end: str, way: str) -> None:
    act, limits, asked, ending = ENDS[end]
    running = Running()
    child = model(calls(WAIT, LOOK_UP), text("Found."))
    grandchild = WAYS[way](child, [running.tool, look_up])
    desk = WAYS[way](model(calls(ASK, WAIT), text("Found.")), [grandchild, running.tool])
    if way == "tool" and end == "call timed out":
        desk = sub_request_tool(
            "desk",
            "Looks up.",
            provider=desk_model(),
            tools=[grandchild, running.tool],
            limits=Limits(timeout_seconds=5),
        )
    runtime = Runtime(model(calls(*asked), text("All found.")), tools=[desk, fails_later], limits=limits)
    async with runtime:
        heard = listen(runtime.bus)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(runtime.run, "Go.")
                await settle()
                session = cast("RequestSession", runtime.session(started(heard)[0].request_id))
                assert (running.now, len(started(heard))) == (2, 3)
                await act(runtime, session, scope)
        result = await session.result()
        assert (result.outcome, result.reason) == ending
        await settle()
        assert running.now == 0
        assert runtime.dispatcher.statistics().running == 0
        assert_ended_well(heard, result)
        assert_children_ended(heard)
        endings = [event for event in heard if isinstance(event, ENDINGS) and event.request_id != result.request_id]
        assert [type(event) for event in endings] == [RequestCancelled] * 2 or ending[0] in {"completed", "stopped"}
        if end != "drained":
            await assert_goes_on(runtime, result.conversation_id, result.messages)
    await assert_left_idle(runtime)


def desk_model() -> ScriptedProvider:
    return model(calls(ASK, WAIT), text("Found."))


@pytest.mark.guarantee("G06", "G10")
async def test_a_runtime_that_is_left_by_an_exception_takes_the_sub_requests_with_it() -> None:
    running = Running()
    desk = by_tool(model(calls(WAIT), text("Found.")), [running.tool])
    runtime = Runtime(PARENT, tools=[desk])
    heard = listen(runtime.bus)
    with contextlib.suppress(KeyError):
        async with runtime:
            session = runtime.start("Go.")
            await settle()
            assert running.now == 1
            raise KeyError("mine")
    assert (running.now, (await session.result()).outcome) == (0, "cancelled")
    assert_ended_well(heard, await session.result())
    assert_children_ended(heard)
    await assert_left_idle(runtime)


@pytest.mark.guarantee("G09", "G16")
async def test_a_sub_request_that_is_cancelled_alone_is_a_failed_call_of_its_parent() -> None:
    running = Running()
    desk = by_tool(model(calls(WAIT), text("Found.")), [running.tool])
    async with Runtime(model(calls(ASK, LOOK_UP), text("Without it.")), tools=[desk, look_up]) as runtime:
        heard = listen(runtime.bus)
        session = runtime.start("Go.")
        await settle()
        (child,) = children_of(heard, session)
        assert runtime.bus.publish(CancelRequested(request_id=child, reason="not needed"))
        result = await session.result()
        assert (result.outcome, result.text) == ("completed", "Without it.")
        assert [(call.ok, call.error) for call in result.tool_calls] == [
            (False, "desk cancelled: not needed"),
            (True, ""),
        ]
        assert running.now == 0
        assert_ended_well(heard, result)
        assert_children_ended(heard)
    await assert_left_idle(runtime)


# ------------------------------------------------------------------------------------------------- at each suspension


async def cancel_at(at: int, moment: Moment, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Cancel the parent at a suspension of its child's `run`. Returns whether there is one of that number."""
    place = Place(at, moment)
    run = RequestSession.run

    def stepped_run(session: RequestSession, **options: Any) -> Any:
        running = run(session, **options)
        return stepped(running, place) if cast("Any", session)._parent_id else running

    with monkeypatch.context() as patch:
        patch.setattr(RequestSession, "run", stepped_run)
        desk = by_tool(model(calls(LOOK_UP), calls(LOOK_UP), text("Found.")), [look_up])
        async with Runtime(model(calls(ASK, LOOK_UP), text("All found.")), tools=[desk, look_up]) as runtime:
            heard = listen(runtime.bus)
            session = runtime.start("Go.")
            asked: list[bool] = []
            place.act = lambda: asked.append(session.cancel("enough"))
            result = await session.result()
            await settle()
            assert (result.outcome, asked) == (("cancelled", [True]) if place.reached else ("completed", []))
            assert_ended_well(heard, result)
            assert_children_ended(heard)
            assert runtime.bus.statistics().mailboxes == 0
            assert runtime.dispatcher.statistics().suspended == 0
            await assert_goes_on(runtime, result.conversation_id, result.messages)
        await assert_left_idle(runtime)
    return place.reached


@pytest.mark.guarantee("G06", "G16", "G17")
@pytest.mark.parametrize("moment", ["suspended", "resumed"])
async def test_a_parent_that_is_cancelled_at_any_suspension_of_its_child_takes_it_along(
    moment: Moment, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in itertools.count():
        try:
            if not await cancel_at(at, moment, monkeypatch):
                assert at >= 2
                return
        except BaseException as exc:
            exc.add_note(f"cancelled at suspension {at} of the child, {moment}")
            raise


# ------------------------------------------------------------------------------------------------- limits

USED = Usage(input_tokens=10, output_tokens=1)
PRICES = {"*": Price(input_per_million=1_000_000, output_per_million=0)}


def limits_of_children(limits: Limits, given: Limits | None = None) -> Callable[[], Awaitable[list[Limits]]]:
    """Runs a parent whose second round asks, and tells what limits its child has."""
    seen: list[Limits] = []

    @tool(timeout_seconds=40)
    async def desk(task: str, context: ToolContext[Any]) -> str:
        """Hand a task over."""
        options: dict[str, Any] = {} if given is None else {"limits": given}
        result: RequestResult[Any] = await context.ask(task, provider=model(text("Found.")), **options)
        return result.text

    async def run() -> list[Limits]:
        child = SessionView.child

        def noted(view: SessionView, *args: Any, **options: Any) -> RequestSession:
            made = child(view, *args, **options)
            seen.append(made._state.limits)
            return made

        script = model(calls(LOOK_UP, usage=USED), calls(ASK, usage=USED), text("Done."))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SessionView, "child", noted)
            async with Runtime(script, tools=[desk, look_up], limits=limits, prices=PRICES) as runtime:
                assert (await runtime.run("Go.")).outcome == "completed"
        return seen

    return run


@pytest.mark.guarantee("G10")
async def test_a_sub_request_has_the_limits_that_are_left() -> None:
    limits = Limits(
        max_tool_calls=7, max_input_tokens=100, max_output_tokens=50, max_cost=35.0, timeout_seconds=30, max_rounds=4
    )
    (left,) = await limits_of_children(limits)()
    assert (left.max_tool_calls, left.max_input_tokens, left.max_output_tokens) == (5, 80, 48)
    assert (left.max_cost, left.max_rounds) == (15.0, 4)
    assert left.timeout_seconds == pytest.approx(29)


@pytest.mark.guarantee("G10")
async def test_a_sub_request_may_ask_for_less_and_never_has_more() -> None:
    less = Limits(max_tool_calls=1, max_input_tokens=5, max_output_tokens=2, max_cost=1.0, timeout_seconds=3)
    assert await limits_of_children(Limits(max_cost=1_000.0), less)() == [less]
    more = Limits(
        max_tool_calls=1_000, max_input_tokens=10**7, max_output_tokens=10**7, max_cost=10.0**7, timeout_seconds=10**4
    )
    (left,) = await limits_of_children(Limits(max_cost=1_000.0), more)()
    assert (left.max_tool_calls, left.max_cost, left.timeout_seconds) == (98, 980.0, pytest.approx(40))
    assert (left.max_input_tokens, left.max_output_tokens) == (999_980, 99_998)


@pytest.mark.guarantee("G10")
async def test_where_nothing_is_left_the_call_fails_and_the_request_ends_by_its_limit() -> None:
    asked: list[str] = []

    @tool
    async def desk(task: str, context: ToolContext[Any]) -> str:
        """Hand a task over."""
        try:
            await context.ask(task, provider=model(text("Found.", usage=Usage(input_tokens=15))))
        except LimitReached as exc:
            asked.append(exc.reason)
            raise
        asked.append("done")
        return ""

    script = model(calls(ASK, usage=Usage(input_tokens=20)), text("So far."))
    async with Runtime(script, tools=[desk]) as runtime:
        none = await runtime.run("Go.", limits=Limits(max_input_tokens=20))
        little = await runtime.run("Go.", limits=Limits(max_input_tokens=30))
    assert asked == ["the request that asks has used up its limits", "done"]
    assert [call.error for call in (*none.tool_calls, *little.tool_calls)] == [asked[0], ""]
    assert (little.outcome, little.reason, little.usage.input_tokens) == ("stopped", "max_input_tokens=30", 35)


@pytest.mark.guarantee("G10")
async def test_what_a_sub_request_has_spent_is_not_left_for_the_next_one_of_its_call() -> None:
    asked: list[str] = []

    @tool
    async def desk(task: str, context: ToolContext[Any]) -> str:
        """Hand a task over again and again."""
        while True:
            asked.append((await context.ask(task, provider=model(text("Found.", usage=USED)))).text)

    async with Runtime(model(calls(ASK), text("So far.")), tools=[desk]) as runtime:
        result = await runtime.run("Go.", limits=Limits(max_input_tokens=50))
    assert (len(asked), result.usage.input_tokens) == (5, 50)
    assert result.tool_calls[0].error == "the request that asks has used up its limits"


@pytest.mark.guarantee("G10")
async def test_sub_requests_at_the_same_time_exceed_a_limit_by_one_reply_each() -> None:
    def says(request: ModelRequest) -> Step:
        return calls(LOOK_UP, usage=USED) if request.tools else text("So far.", usage=USED)

    low = by_tool(ScriptedProvider(says), [look_up])
    desk = by_tool(model(calls(*[ASK] * 3, usage=USED), text("So far.", usage=USED)), [low])
    script = model(calls(ASK, ASK, usage=USED), text("So far."))
    async with Runtime(script, tools=[desk], prices=PRICES, limits=Limits(max_cost=200.0, max_rounds=99)) as runtime:
        result = await runtime.run("Go.")
    assert (result.outcome, result.reason, result.cost) == ("stopped", "max_cost=200", 210.0)


@pytest.mark.guarantee("G10")
async def test_a_request_asks_no_model_any_more_once_it_has_exceeded_a_limit_with_a_background_sub_request() -> None:
    desk = asking(model(calls(WAIT, usage=USED)), [Running().tool], background=True)
    script = model(calls(ASK, usage=USED), *[calls(LOOK_UP, usage=USED)] * 9)
    async with Runtime(script, tools=[desk, look_up], limits=Limits(max_input_tokens=25)) as runtime:
        result = await runtime.run("Go.")
    assert (result.outcome, result.reason, result.usage.input_tokens) == ("stopped", "max_input_tokens=25", 30)


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("way", ["context", "tool"])
async def test_what_a_sub_request_spends_is_its_parents(way: str) -> None:
    child = model(calls(LOOK_UP, LOOK_UP, usage=USED), text("Found.", usage=USED))
    desk = WAYS[way](child, [look_up])
    script = model(calls(ASK, ASK, usage=USED), text("Done.", usage=USED))
    async with Runtime(script, tools=[desk], prices=PRICES) as runtime:
        result = await runtime.run("Go.")
        assert (result.usage.input_tokens, result.usage.output_tokens, result.cost) == (60, 6, 60.0)
        few = await runtime.run("Go.", limits=Limits(max_tool_calls=5, max_rounds=20))
        assert [call.ok for call in few.tool_calls] == [True, True]
        costly = await runtime.run("Go.", limits=Limits(max_cost=45.0))
        assert (costly.outcome, costly.reason, costly.cost) == ("stopped", "max_cost=45", 50.0)
    await assert_left_idle(runtime)


@pytest.mark.guarantee("G10")
async def test_the_calls_of_sub_requests_count_towards_the_parents_bound() -> None:
    child = model(calls(LOOK_UP, LOOK_UP), text("Found."))
    script = model(calls(ASK), calls(ASK), text("Enough."))
    async with Runtime(script, tools=[by_tool(child, [look_up])], limits=Limits(max_tool_calls=3)) as runtime:
        result = await runtime.run("Go.")
    assert (result.outcome, result.reason) == ("stopped", "max_tool_calls=3")
    assert [call.ok for call in result.tool_calls] == [True, False]


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize(("most", "offered"), [(1, []), (2, ["look_up"])])
async def test_a_sub_request_of_the_last_call_that_is_left_has_no_tools(most: int, offered: list[str]) -> None:
    child = model(text("Found."))
    script = model(calls(ASK), text("Done."))
    async with Runtime(script, tools=[by_tool(child, [look_up])], limits=Limits(max_tool_calls=most)) as runtime:
        result = await runtime.run("Go.")
    assert result.tool_calls[0].ok
    assert [[each.name for each in request.tools] for request in child.requests] == [offered]


@pytest.mark.guarantee("G10")
async def test_what_a_failed_call_has_spent_counts_too() -> None:
    @tool
    async def desk(task: str, context: ToolContext[Any]) -> str:
        """Ask, and fail."""
        await context.ask(task, provider=model(text("Found.", usage=USED)))
        raise ToolError("of no use")

    script = model(calls(ASK, usage=USED), text("Done.", usage=USED))
    async with Runtime(script, tools=[desk], prices=PRICES) as runtime:
        result = await runtime.run("Go.")
    assert (result.tool_calls[0].ok, result.usage.input_tokens, result.cost) == (False, 30, 30.0)


@pytest.mark.guarantee("G10")
async def test_each_attempt_of_a_tool_that_is_tried_again_is_paid_for() -> None:
    attempts: list[int] = []

    @tool(retries=2)
    async def desk(task: str, context: ToolContext[Any]) -> str:
        """Ask, and fail at first."""
        attempts.append(context.attempt)
        await context.ask(task, provider=model(text("Found.", usage=USED)))
        if context.attempt < 3:
            raise OSError("for a moment")
        return "ok"

    script = model(calls(ASK, usage=USED), text("Done.", usage=USED))
    async with Runtime(script, tools=[desk]) as runtime:
        result = await runtime.run("Go.")
    assert (attempts, result.usage.input_tokens) == ([1, 2, 3], 50)


# ------------------------------------------------------------------------------------------------- depth, events


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("way", ["context", "tool"])
async def test_the_ninth_request_within_requests_is_refused_and_the_others_end_well(way: str) -> None:
    refused: list[str] = []
    tools = ToolRegistry()

    @tool
    async def desk(task: str, context: ToolContext[Any]) -> str:
        """Hand the task on."""
        try:
            result: RequestResult[Any] = await context.ask(task, tools=tools)
        except LimitReached as exc:
            refused.append(str(exc))
            raise
        return result.text

    if way == "context":
        tools.add(desk)
    else:
        tools.add(sub_request_tool("desk", "Hands it on.", tools=tools))
    deepest = ScriptedProvider(lambda request: calls(ASK) if request.round == 0 else text("Somebody else knows."))
    async with Runtime(deepest, tools=tools) as runtime:
        heard = listen(runtime.bus)
        result = await runtime.run("Go.")
        assert (result.outcome, result.text) == ("completed", "Somebody else knows.")
        assert len(started(heard)) == 9
        assert refused == (["sub-requests may be nested at most 8 deep"] if way == "context" else [])
        failed = [event for event in heard if isinstance(event, ToolCallFailed)]
        assert [event.request_id for event in failed] == [started(heard)[-1].request_id]
        assert failed[0].error == "sub-requests may be nested at most 8 deep"
        assert_ended_well(heard, result)
        assert_children_ended(heard)
    await assert_left_idle(runtime)


@pytest.mark.guarantee("G06")
@pytest.mark.parametrize("end", ["completed", "cancelled"])
async def test_who_listens_to_a_parent_hears_its_children_until_the_parents_ending(end: str) -> None:
    running = Running()
    desk = by_tool(model(calls(LOOK_UP), text("Found.")), [look_up])
    script = model(calls(ASK, *([WAIT] if end == "cancelled" else [])), text("All found."))
    async with Runtime(script, tools=[desk, running.tool]) as runtime:
        session = runtime.start("Go.")
        whole: list[Event] = []
        alone: list[Event] = []
        async with anyio.create_task_group() as group:
            group.start_soon(collect, session.events(sub_requests=True), whole)
            group.start_soon(collect, session.events(), alone)
            await advance(0.5)
            assert len(started(whole)) == 2
            if end == "cancelled":
                await advance(5)
                session.cancel("enough")
        kinds = {"completed": "request_completed", "cancelled": "request_cancelled"}
        assert (whole[-1].type, whole[-1].request_id) == (kinds[end], session.request_id)
        (child,) = children_of(whole, session)
        assert [event.type for event in of_request(whole, child) if event.is_fact] == [
            "request_started", "message_appended", "round_started", "model_responded", "message_appended",
            "tool_call_requested", "tool_call_completed", "message_appended", "round_started", "model_responded",
            "message_appended", "request_completed",
        ]  # fmt: skip
        assert of_request(whole, session.request_id) == alone
    await assert_left_idle(runtime)


async def test_who_listens_hears_the_end_of_a_request_whose_own_parent_has_ended_before_it() -> None:
    running = Running()
    low = sub_request_tool("low", "Waits.", provider=model(calls(WAIT)), tools=[running.tool])
    limits = Limits(timeout_seconds=5)
    middle = model(calls(("low", {"task": "Wait."})))
    desk = sub_request_tool("desk", "Hands it on.", provider=middle, tools=[low], limits=limits)
    script = model(calls(ASK), calls(LOOK_UP), text("All found."))
    async with Runtime(script, tools=[desk, look_up]) as runtime:
        everything = listen(runtime.bus)
        session = runtime.start("Go.")
        whole = [event async for event in session.events(sub_requests=True)]
        assert (await session.result()).ok
    ids = [event.request_id for event in started(everything)]
    assert (len(ids), ids) == (3, [event.request_id for event in started(whole)])
    for each in ids:
        (ending,) = [event for event in of_request(everything, each) if isinstance(event, ENDINGS)]
        assert ending in of_request(whole, each)
    await assert_left_idle(runtime)


async def collect(events: Any, heard: list[Event]) -> None:
    async for event in events:
        heard.append(event)


async def test_a_child_knows_whom_it_works_for() -> None:
    async with Runtime(PARENT, tools=[by_tool(CHILD, [look_up])], deps="Ada", metadata={"tenant": "t"}) as runtime:
        heard = listen(runtime.bus)
        result = await runtime.run("Go.")
    parent, child = started(heard)
    assert (parent.parent_request_id, parent.parent_call_id) == ("", "")
    assert (child.parent_request_id, child.parent_call_id) == (result.request_id, result.tool_calls[0].call_id)
    assert child.metadata == {"tenant": "t"}
    assert child.conversation_id != parent.conversation_id


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("end", ["timed out", "cancelled", "failed fast"])
async def test_what_a_call_that_was_given_up_has_spent_counts_too(end: str) -> None:
    running = Running()
    desk = by_context(model(calls(WAIT, usage=USED), text("Found.")), [running.tool])
    limits = Limits(tool_timeout_seconds=5, on_failure="fail_fast" if end == "failed fast" else "collect")
    script = model(calls(ASK, ("fails_later", {}), usage=USED), text("Done.", usage=USED))
    async with Runtime(script, tools=[desk, fails_later], limits=limits) as runtime:
        session = runtime.start("Go.")
        if end == "cancelled":
            await settle()
            session.cancel()
        result = await session.result()
    assert result.usage.input_tokens == 20 + 10 * (result.outcome == "completed")


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("end", ["timed out", "cancelled"])
async def test_what_a_sub_request_of_a_sub_request_has_spent_counts_while_it_runs_and_when_all_are_given_up(
    end: str,
) -> None:
    running = Running()
    low = by_context(model(calls(WAIT, usage=USED)), [running.tool])
    desk = by_context(model(calls(ASK, usage=USED)), [low])
    script = model(calls(ASK, usage=USED), text("Done."))
    async with Runtime(script, tools=[desk], limits=Limits(tool_timeout_seconds=5)) as runtime:
        session = runtime.start("Go.")
        await settle()
        assert (session.spent.usage.input_tokens, session.spent.tool_calls) == (30, 3)
        if end == "cancelled":
            session.cancel()
        result = await session.result()
    assert (result.usage.input_tokens, running.now) == (30, 0)


@pytest.mark.guarantee("G10")
async def test_listeners_hear_what_a_call_has_spent_that_somebody_else_answers() -> None:
    running = Running()
    desk = by_context(model(calls(WAIT, usage=USED)), [running.tool])
    heard, requested = list[ToolCallCompleted](), list[ToolCallRequested]()
    async with Runtime(model(calls(ASK, usage=USED), text("Done.")), tools=[desk]) as runtime:
        runtime.bus.connect(ToolCallCompleted, heard.append)
        runtime.bus.connect(ToolCallRequested, requested.append)
        session = runtime.start("Go.")
        await settle()
        assert runtime.bus.publish(requested[0].completed("It is here."))
        result = await session.result()
        facts = [each async for each in session.events(ToolCallCompleted)]
    assert (result.outcome, result.usage.input_tokens, running.now) == ("completed", 20, 0)
    assert heard == facts
    assert heard[0].spent is not None
    assert (heard[0].spent.usage.input_tokens, heard[0].spent.tool_calls) == (10, 1)


@pytest.mark.guarantee("G10", "G16")
@pytest.mark.parametrize("moment", ["before it asks", "while it waits"])
async def test_a_handler_that_outlives_its_call_has_no_sub_request(moment: str) -> None:
    running = Running()
    raised: list[str] = []

    @tool
    async def desk(task: str, context: ToolContext[Any]) -> str:
        """Hand a task over, whatever happens."""
        with anyio.CancelScope(shield=True):
            if moment == "before it asks":
                await anyio.sleep(4)
            try:
                await context.ask(task, provider=model(calls(WAIT)), tools=[running.tool])
            except NotRunning as exc:
                raised.append(str(exc))
        return ""

    async with Runtime(PARENT, tools=[desk]) as runtime:
        heard = listen(runtime.bus)
        session = runtime.start("Go.")
        await settle()
        session.cancel()
        assert (await session.result()).tool_calls[0].reason == "cancelled"
        await advance(4)
        assert running.now == 0
        assert raised == ["the call has ended, so it cannot have a child request any more"]
        assert_children_ended(heard)
    await assert_left_idle(runtime)


async def test_a_call_keeps_no_sub_request_alive_that_has_ended() -> None:
    views: list[weakref.ref[Any]] = []

    @tool
    async def desk(task: str, context: ToolContext[Any]) -> str:
        """Hand a task over twice."""
        for _ in range(2):
            await context.ask(task, provider=model(text("Found.", usage=USED)))
        gc.collect()
        return str([each() is None for each in views[1:]])

    async with Runtime(PARENT, tools=[desk]) as runtime:
        runtime.bus.connect(
            RequestStarted, lambda event: views.append(weakref.ref(runtime.bus.arbitration.view(event.request_id)))
        )
        result = await runtime.run("Go.")
    assert (result.tool_calls[0].content, result.usage.input_tokens) == ("[True, True]", 20)


async def test_a_result_keeps_no_sub_request_alive() -> None:
    sessions: list[weakref.ref[Any]] = []
    desk = by_context(model(calls(LOOK_UP), text("Found.")), [look_up])
    async with Runtime(model(calls(ASK), text("Done.")), tools=[desk], keep_ended_seconds=0) as runtime:
        runtime.bus.connect(
            RequestStarted, lambda event: sessions.append(weakref.ref(runtime.bus.arbitration.view(event.request_id)))
        )
        result = await runtime.run("Go.")
        await settle()
        gc.collect()
        assert (result.ok, len(sessions)) == (True, 2)
        assert [each() for each in sessions] == [None, None]
