"""A runtime, or a model with tools of its own, as a tool of another request."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from toolbus import Limits, Price, Runtime, ToolContext, ToolError, ToolRegistry, sub_request_tool, tool
from toolbus.core.transcript import validate
from toolbus.errors import ConfigurationError
from toolbus.events import Event, RequestStarted, ToolCallRequested
from toolbus.messages import SystemMessage, Usage
from toolbus.protocols import ModelRequest
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, calls, settle, text, virtual_backends
from toolbus.tools import ToolOptions
from toolbus.toolsets.control import give_up

anyio_backend = virtual_backends()


@tool
async def get_weather(city: str, context: ToolContext[Any]) -> str:
    """Weather in a city."""
    return f"sunny in {city} for {context.deps}"


@tool
async def wait() -> str:
    """Wait for ever."""
    await anyio.sleep_forever()
    return ""


def once(*steps: Any) -> ScriptedProvider:
    """A script that each request begins anew."""
    return ScriptedProvider(lambda request: steps[request.round])


ASKS = ("weather_desk", {"task": "Weather in Paris?"})
LOOKS_UP = once(calls(("get_weather", {"city": "Paris"})), text("Sunny in Paris."))
BOSS = once(calls(ASKS), text("Take no coat."))


async def test_a_runtime_is_a_tool_of_another_one_with_its_own_model_tools_and_instructions() -> None:
    inner = once(calls(("get_weather", {"city": "Paris"})), text("Sunny in Paris."))
    desk = Runtime(inner, tools=[get_weather], instructions="You are the weather desk.")
    boss = ScriptedProvider([calls(ASKS), text("Take no coat.")])
    async with Runtime(boss, tools=[desk.as_tool("weather_desk", "Knows the weather.")], deps="Ada") as runtime:
        result = await runtime.run("A coat?")
    assert result.text == "Take no coat."
    assert [(call.name, call.content) for call in result.tool_calls] == [
        ("weather_desk", '{"ok":true,"message":"Sunny in Paris."}')
    ]
    offered = boss.requests[0].tools[0]
    assert (offered.name, offered.description) == ("weather_desk", "Knows the weather.")
    first = inner.requests[0].messages
    assert [message.role for message in first] == ["system", "user"]
    assert isinstance(first[0], SystemMessage)
    assert first[0].text == "You are the weather desk."
    assert "sunny in Paris for Ada" in repr(inner.requests[1].messages)  # deps come from the request that asks
    validate(result.messages)


async def test_an_option_that_is_none_is_not_given_to_a_sub_request() -> None:
    desk = Runtime(LOOKS_UP, tools=[get_weather], deps=None, prices=None, interceptors=[])
    tools, prices = (
        [desk.as_tool("weather_desk", "Knows the weather.")],
        {"*": Price(input_per_million=1, output_per_million=1)},
    )
    async with Runtime(BOSS, tools=tools, deps="Ada", prices=prices, limits=Limits(max_cost=1)) as runtime:
        (call,) = (await runtime.run("A coat?")).tool_calls
    assert call.content == '{"ok":true,"message":"Sunny in Paris."}'


async def test_the_events_of_a_sub_request_can_be_heard_with_its_parents() -> None:
    tools = [sub_request_tool("weather_desk", "Knows the weather.", provider=LOOKS_UP, tools=[get_weather])]

    async with Runtime(BOSS, tools=tools) as runtime:
        session = runtime.start("A coat?")
        whole, own, pieces = session.events(sub_requests=True), session.events(), session.text()
        events = [event async for event in whole]
        alone = [event async for event in own]
        assert [piece async for piece in pieces] == ["Take no coat."]
    started = [event for event in events if isinstance(event, RequestStarted)]
    assert [event.request_id == session.request_id for event in started] == [True, False]
    assert (started[1].parent_request_id, started[1].prompt) == (session.request_id, "Weather in Paris?")
    assert started[1].parent_call_id == (await session.result()).tool_calls[0].call_id
    assert [event.type for event in events].count("request_completed") == 2
    assert (events[-1].type, events[-1].request_id) == ("request_completed", session.request_id)
    assert {event.request_id for event in alone} == {session.request_id}


async def test_what_a_sub_request_spends_counts_for_the_request_that_asked() -> None:
    def usage(tokens: int) -> Usage:
        return Usage(input_tokens=tokens)

    inner = once(calls(("get_weather", {"city": "Paris"}), usage=usage(100)), text("Sunny.", usage=usage(100)))
    boss = once(calls(ASKS, usage=usage(10)), text("No coat.", usage=usage(10)))
    tools = [sub_request_tool("weather_desk", "Knows the weather.", provider=inner, tools=[get_weather])]
    prices = {"*": Price(input_per_million=1_000_000, output_per_million=0)}
    async with Runtime(boss, tools=tools, prices=prices) as runtime:
        result = await runtime.run("A coat?")
        assert (result.usage.input_tokens, result.cost) == (220, 220)
        stopped = await runtime.run("A coat?", limits=Limits(max_cost=150))
        assert (stopped.outcome, stopped.reason, stopped.cost) == ("stopped", "max_cost=150", 210)
        few = await runtime.run("A coat?", limits=Limits(max_tool_calls=1))
        assert few.outcome == "completed"


async def test_a_sub_request_has_no_more_time_than_is_left_of_the_request_that_asked() -> None:
    inner = once(calls(("wait", {})), text("Too late."))
    tools = [sub_request_tool("weather_desk", "Knows the weather.", provider=inner, tools=[wait])]
    async with Runtime(BOSS, tools=tools, limits=Limits(timeout_seconds=50, tool_timeout_seconds=1_000)) as runtime:
        session = runtime.start("A coat?")
        started = [event async for event in session.events(RequestStarted, sub_requests=True)]
        result = await session.result()
        assert anyio.current_time() == pytest.approx(50)
    assert [getattr(event, "timeout_seconds", 0) for event in started] == [50, pytest.approx(50)]
    assert (result.outcome, result.reason) == ("stopped", "timeout_seconds=50")


async def test_a_sub_request_is_cancelled_with_the_request_that_asked() -> None:
    inner = once(calls(("wait", {})), text("Too late."))
    tools = [sub_request_tool("weather_desk", "Knows the weather.", provider=inner, tools=[wait])]
    async with Runtime(BOSS, tools=tools) as runtime:
        session = runtime.start("A coat?")
        heard: list[str] = []
        async for event in session.events(sub_requests=True):
            heard.append(event.type)
            if heard.count("tool_call_started") == 2:
                session.cancel("enough")
        assert (await session.result()).outcome == "cancelled"
        await anyio.wait_all_tasks_blocked()
        assert runtime.bus.statistics().mailboxes == 0
    assert heard[-1] == "request_cancelled"


async def test_a_sub_request_that_was_stopped_gives_what_it_has_and_says_why() -> None:
    inner = once(calls(("give_up", {"reason": "no such city"}), text="I looked."))
    tools = [sub_request_tool("weather_desk", "Knows the weather.", provider=inner, tools=[give_up])]
    async with Runtime(BOSS, tools=tools) as runtime:
        (call,) = (await runtime.run("A coat?")).tool_calls
    assert call.ok
    assert "I looked.\\n[I could not finish: no such city.]" in call.content


@pytest.mark.parametrize(("last", "data"), [("I looked.", None), ("[7]", [7])])
async def test_a_sub_request_with_an_output_says_why_it_was_stopped(last: str, data: Any) -> None:
    inner, limits = once(calls(("get_weather", {"city": "Paris"})), text(last)), Limits(max_rounds=1)
    desk = sub_request_tool(
        "weather_desk", "Knows it.", provider=inner, tools=[get_weather], output=list[int], limits=limits
    )
    async with Runtime(BOSS, tools=[desk]) as runtime:
        (call,) = (await runtime.run("A coat?")).tool_calls
    assert (call.ok, call.data) == (True, data)
    assert "\\n[I stopped after" in call.content
    assert last in call.content


async def test_a_sub_request_may_be_given_the_transcript_without_the_reply_that_made_its_call() -> None:
    inner = ScriptedProvider([text("One."), text("Two.")])

    @tool
    async def weather_desk(task: str, context: ToolContext[Any]) -> str:
        """Knows the weather."""
        return (await context.ask(task, provider=inner, history=context.messages)).text

    boss = ScriptedProvider([calls(ASKS, text="Let me ask."), calls(ASKS, ASKS), text("Done.")])
    async with Runtime(boss, tools=[weather_desk]) as runtime:
        result = await runtime.run("A coat?", limits=Limits(max_tool_calls=2))
    assert [call.content for call in result.tool_calls[:2]] == ["One.", "Two."]
    assert [[message.role for message in request.messages] for request in inner.requests] == [
        ["user", "user"],
        ["user", "assistant", "tool", "user"],
    ]


async def test_an_option_that_a_sub_request_does_not_have_is_named_with_those_that_it_has() -> None:
    @tool
    async def weather_desk(task: str, context: ToolContext[Any]) -> str:
        """Knows the weather."""
        return (await context.ask(task, repair_history=True)).text

    async with Runtime(BOSS, tools=[weather_desk]) as runtime:
        (call,) = (await runtime.run("A coat?")).tool_calls
    assert str(call.exception).startswith(
        "ask(): there is no option repair_history (did you mean history?); the options are"
    )


async def test_a_sub_request_whose_time_is_over_gives_what_it_has_and_says_why() -> None:
    inner = once(calls(("wait", {}), text="It rains in Rome."))
    limits = Limits(timeout_seconds=5)
    tools = [sub_request_tool("weather_desk", "Knows the weather.", provider=inner, tools=[wait], limits=limits)]
    async with Runtime(BOSS, tools=tools) as runtime:
        (call,) = (await runtime.run("A coat?")).tool_calls
    assert call.ok
    assert "It rains in Rome.\\n[I stopped because it took longer than 5 seconds.]" in call.content


async def test_a_sub_request_that_failed_is_a_failed_call() -> None:
    def broken(_request: ModelRequest) -> Any:
        raise KeyError("the password is tiger")

    tools = [sub_request_tool("weather_desk", "Knows the weather.", provider=ScriptedProvider(broken))]
    async with Runtime(BOSS, tools=tools) as runtime:
        result = await runtime.run("A coat?")
    assert (result.text, result.tool_calls[0].ok) == ("Take no coat.", False)
    (call,) = result.tool_calls
    assert call.error == "weather_desk failed: I could not finish because of an internal error."
    assert "tiger" in call.detail  # for operators: neither the model nor a page reads it


class Forecast(BaseModel):
    celsius: int


async def test_a_sub_request_may_give_structured_output() -> None:
    inner = once(calls(("final_answer", {"celsius": 21})))
    tools = [sub_request_tool("weather_desk", "Knows the weather.", provider=inner, output=Forecast)]
    async with Runtime(BOSS, tools=tools) as runtime:
        (call,) = (await runtime.run("A coat?")).tool_calls
    assert call.data == {"celsius": 21}


def test_a_sub_request_s_tool_takes_the_options_of_other_tools() -> None:
    options: ToolOptions = {"idempotent": True, "status": "Asking about {task}", "timeout_seconds": 5}
    for expert in (
        Runtime(ScriptedProvider([])).as_tool("expert", "Knows.", tool_options=options),
        sub_request_tool("expert", "Knows.", tool_options=options),
    ):
        assert (expert.spec.idempotent, expert.spec.status, expert.spec.timeout_seconds) == (*options.values(),)
    assert sub_request_tool("expert", "Knows.", tool_options={"background": True}).spec.timeout_seconds == 601
    with pytest.raises(ConfigurationError, match="cache_seconds is for handlers whose result depends only on"):
        sub_request_tool("expert", "Knows.", tool_options={"cache_seconds": 5})


def test_a_wrong_output_type_is_an_error_where_the_tool_is_made() -> None:
    wrong: Any = 5
    with pytest.raises(ConfigurationError, match="output"):
        sub_request_tool("weather_desk", "Knows the weather.", output=wrong)


async def test_a_handler_may_ask_itself_and_read_the_result() -> None:
    @tool
    async def second_opinion(question: str, context: ToolContext[Any]) -> str:
        """Ask again, without the talk so far."""
        result = await context.ask(question, instructions="Be strict.")
        if not result.ok:
            raise ToolError(f"no opinion: {result.reason}")
        return result.text.upper()

    def script(request: ModelRequest) -> Any:
        if request.messages[0].role == "system":
            return text("No.")
        return text("They say no.") if request.round else calls(("second_opinion", {"question": "Sure?"}))

    async with Runtime(ScriptedProvider(script), tools=[second_opinion]) as runtime:
        result = await runtime.run("Is it so?")
    assert (result.text, result.tool_calls[0].content) == ("They say no.", "NO.")


async def test_all_that_one_call_asks_is_paid_for_by_its_request() -> None:
    @tool
    async def two_opinions(context: ToolContext[Any]) -> str:
        """Ask twice."""
        return " ".join([(await context.ask("Sure?", instructions="Be strict.")).text for _ in range(2)])

    def script(request: ModelRequest) -> Any:
        if request.messages[0].role == "system":
            return text("No.", usage=Usage(input_tokens=10))
        return text("They say no.") if request.round else calls(("two_opinions", {}))

    async with Runtime(ScriptedProvider(script), tools=[two_opinions]) as runtime:
        session = runtime.start("Is it so?")
        result = await session.result()
    assert (result.tool_calls[0].content, session.spent.usage.input_tokens) == ("No. No.", 20)


@pytest.mark.parametrize("journal", [True, False])
@pytest.mark.parametrize("has_ended", [True, False])
async def test_a_call_that_somebody_else_answers_is_charged_for_its_sub_requests(
    journal: bool, has_ended: bool
) -> None:
    @tool
    async def opinion(context: ToolContext[Any]) -> str:
        """Ask, and think about it."""
        await context.ask("Sure?", instructions="Be strict.", tools=[wait])
        await anyio.sleep_forever()
        return ""

    def script(request: ModelRequest) -> Any:
        if request.messages[0].role == "system":
            used = Usage(input_tokens=10)
            return text("No.", usage=used) if has_ended else calls(("wait", {}), usage=used)
        return text("They say no.") if request.round else calls(("opinion", {}))

    store = MemoryStore(journal=journal)
    async with Runtime(ScriptedProvider(script), tools=[opinion], store=store) as runtime:
        requested: list[ToolCallRequested] = []
        runtime.bus.connect(ToolCallRequested, requested.append)
        session = runtime.start("Is it so?")
        await settle()
        assert runtime.bus.publish(requested[0].completed("Never mind."))
        result = await session.result()
    assert (result.tool_calls[0].content, result.usage.input_tokens) == ("Never mind.", 10)


async def test_models_that_hand_the_task_on_for_ever_come_to_an_end() -> None:
    tools = ToolRegistry()
    script = ScriptedProvider(lambda request: calls(ASKS) if request.round == 0 else text("Somebody else knows."))
    tools.add(sub_request_tool("weather_desk", "Knows the weather.", tools=tools))
    depth: list[Event] = []
    async with Runtime(script, tools=tools) as runtime:
        runtime.bus.connect(RequestStarted, depth.append)
        result = await runtime.run("A coat?")
    assert result.ok
    assert len(depth) == 9
