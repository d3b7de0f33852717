"""The control tools over a runtime: the end of a task, its plan, and the text that a reader of the stream gets."""

from __future__ import annotations

from typing import Any

import pytest

from toolbus import Limits, Runtime, tool
from toolbus.core.transcript import validate
from toolbus.errors import LimitReached, ProviderRejected
from toolbus.events import Event, PlanChanged, PlanStep, ToolCallRequested
from toolbus.messages import SystemMessage
from toolbus.protocols import ModelRequest
from toolbus.testing import ScriptedProvider, calls, error, text, virtual_backends
from toolbus.toolsets.control import give_up, task_complete, update_plan

anyio_backend = virtual_backends()


@tool
async def get_weather(city: str) -> str:
    """Weather in a city."""
    return f"sunny in {city}"


PARIS = ("get_weather", {"city": "Paris"})
DONE = ("task_complete", {"answer": "Paris is sunny."})
GIVEN_UP = ("give_up", {"reason": "the weather service does not know the city"})
TOOLS = [get_weather, task_complete, give_up, update_plan]


def plan(*steps: tuple[str, str]) -> tuple[str, dict[str, Any]]:
    return "update_plan", {"steps": [{"text": text, "status": status} for text, status in steps]}


# ------------------------------------------------------------------------------------------------- endings


async def test_task_complete_ends_the_request_with_its_answer_and_asks_no_model_again() -> None:
    script = ScriptedProvider([calls(PARIS), calls(DONE)])
    requested: list[ToolCallRequested] = []
    async with Runtime(script, tools=TOOLS) as runtime:
        runtime.bus.connect(ToolCallRequested, requested.append)
        result = await runtime.run("Where?")
    assert (result.outcome, result.reason, result.text) == ("completed", "", "Paris is sunny.")
    assert [event.name for event in requested] == ["get_weather"]  # nobody has to run the others
    assert [(call.name, call.ok) for call in result.tool_calls] == [("get_weather", True), ("task_complete", True)]
    validate(result.messages)


async def test_calls_beside_task_complete_are_run_before_the_request_ends() -> None:
    async with Runtime(ScriptedProvider([calls(DONE, PARIS)]), tools=TOOLS) as runtime:
        result = await runtime.run("Where?")
    assert (result.text, result.tool_calls[1].content) == ("Paris is sunny.", "sunny in Paris")


async def test_give_up_stops_the_request_with_the_models_own_reason() -> None:
    script = ScriptedProvider(lambda _request: calls(GIVEN_UP, text="I looked everywhere."))
    async with Runtime(script, tools=TOOLS) as runtime:
        result = await runtime.run("Where?")
        assert (result.outcome, result.reason) == ("stopped", "the weather service does not know the city")
        assert result.text == "I looked everywhere."
        with pytest.raises(LimitReached, match="does not know the city") as raised:
            result.raise_for_outcome()
        assert (raised.value.limit, raised.value.value) == ("", None)


async def test_a_conversation_goes_on_behind_each_ending() -> None:
    script = ScriptedProvider([calls(DONE), calls(GIVEN_UP), text("Hello again.")])
    async with Runtime(script, tools=TOOLS) as runtime:
        for _ in range(2):
            await runtime.run("Where?", conversation_id="c")
        result = await runtime.run("Hello?", conversation_id="c")
    assert result.text == "Hello again."
    assert [message.role for message in result.messages] == [*("user", "assistant", "tool") * 2, "user", "assistant"]
    validate(result.messages)


async def test_an_ending_without_its_words_is_refused_and_the_model_may_try_again() -> None:
    script = ScriptedProvider([calls(("task_complete", {"answer": ""})), calls(("task_complete", {})), calls(DONE)])
    async with Runtime(script, tools=TOOLS) as runtime:
        result = await runtime.run("Where?")
    assert [call.reason for call in result.tool_calls] == ["invalid_arguments", "invalid_arguments", ""]
    assert result.text == "Paris is sunny."


async def test_the_task_can_be_completed_when_the_calls_are_used_up() -> None:
    async with Runtime(ScriptedProvider([calls(PARIS), calls(DONE)]), tools=TOOLS) as runtime:
        result = await runtime.run("Where?", limits=Limits(max_tool_calls=1))
    assert (result.outcome, result.text) == ("completed", "Paris is sunny.")


# ------------------------------------------------------------------------------------------------- the text


async def pieces(runtime: Runtime, *, final_only: bool, **options: Any) -> list[str]:
    session = runtime.start("Where?", **options)
    return [piece async for piece in session.text(final_only=final_only)]


@pytest.mark.parametrize(
    ("final_only", "reported"),
    [
        (False, ["Let me ", "look. ", "\n\nIt is hard.", "\n\n[I stopped after 1 step without finishing.]"]),
        (True, ["It is hard.", "\n\n[I stopped after 1 step without finishing.]"]),
    ],
)
async def test_the_text_of_a_stopped_request_ends_with_the_reason(final_only: bool, reported: list[str]) -> None:
    def script(request: ModelRequest) -> Any:
        return text("It is hard.") if request.round else calls(PARIS, text="Let me look. ")

    async with Runtime(ScriptedProvider(script), tools=TOOLS) as runtime:
        heard = await pieces(runtime, final_only=final_only, limits=Limits(max_rounds=1))
    assert "".join(heard) == "".join(reported)
    assert heard[-1] == reported[-1]


@pytest.mark.parametrize("final_only", [False, True])
async def test_a_stopped_request_without_any_text_has_the_reason_alone(final_only: bool) -> None:
    limits = Limits(max_rounds=1, on_limit="stop")
    async with Runtime(ScriptedProvider([calls(PARIS)]), tools=TOOLS) as runtime:
        heard = await pieces(runtime, final_only=final_only, limits=limits)
    assert heard == ["[I stopped after 1 step without finishing.]"]


@pytest.mark.parametrize("final_only", [False, True])
async def test_the_text_of_a_request_that_has_failed_ends_with_the_reason_in_words_for_people(final_only: bool) -> None:
    async with Runtime(ScriptedProvider([error(ProviderRejected("no key", status=401))]), tools=TOOLS) as runtime:
        heard = await pieces(runtime, final_only=final_only)
    assert heard == ["[I could not finish because the language model did not accept the request.]"]


@pytest.mark.parametrize("final_only", [False, True])
async def test_what_was_said_before_a_stop_comes_once(final_only: bool) -> None:
    script = ScriptedProvider([calls(GIVEN_UP, text="I looked everywhere.")])
    async with Runtime(script, tools=TOOLS) as runtime:
        heard = await pieces(runtime, final_only=final_only)
    mark = "\n\n[I could not finish: the weather service does not know the city.]"
    assert "".join(heard) == f"I looked everywhere.{mark}"


@pytest.mark.parametrize(
    ("final_only", "reported"), [(False, "Done soon. \n\nParis is sunny."), (True, "Paris is sunny.")]
)
async def test_an_answer_by_task_complete_is_text_like_any_other(final_only: bool, reported: str) -> None:
    script = ScriptedProvider([calls(PARIS), calls(DONE, text="Done soon. ")])
    async with Runtime(script, tools=TOOLS) as runtime:
        heard = await pieces(runtime, final_only=final_only)
    assert "".join(heard) == reported
    assert heard[-1].strip() == "Paris is sunny."


async def test_an_answer_that_was_streamed_already_is_not_told_again() -> None:
    script = ScriptedProvider([calls(DONE, text="Paris is sunny.")])
    async with Runtime(script, tools=TOOLS) as runtime:
        assert "".join(await pieces(runtime, final_only=False)) == "Paris is sunny."


@pytest.mark.parametrize("final_only", [False, True])
async def test_what_was_said_before_a_failure_is_parted_from_the_reason_and_a_cancelled_request_has_none(
    final_only: bool,
) -> None:
    failing = ScriptedProvider([calls(PARIS, text="Let me look."), error(RuntimeError("a bug"))])
    async with Runtime(failing, tools=TOOLS) as runtime:
        heard = await pieces(runtime, final_only=final_only)
        session = runtime.start("Where?")
        session.cancel("enough")
        cancelled = [piece async for piece in session.text(final_only=final_only)]
    mark = "[I could not finish because of an internal error.]"
    assert ("".join(heard), cancelled) == (mark if final_only else f"Let me look.\n\n{mark}", [])


# ------------------------------------------------------------------------------------------------- the plan


def reminder(request: ModelRequest) -> str:
    first = request.messages[0]
    return first.text if isinstance(first, SystemMessage) else ""


FIRST = plan(("look up Paris", "active"), ("look up Rome", "pending"))
SECOND = plan(("look up Paris", "done"), ("look up Rome", "dropped"), ("answer", "active"))
FIRST_TEXT = "Your plan (x is done, > is under way, - was dropped):\n[>] look up Paris\n[ ] look up Rome"
SECOND_TEXT = "Your plan (x is done, > is under way, - was dropped):\n[x] look up Paris\n[-] look up Rome\n[>] answer"


async def test_the_plan_stays_in_view_of_the_model_in_each_later_round_and_turn() -> None:
    script = ScriptedProvider(
        [calls(FIRST), calls(PARIS), calls(SECOND), text("Sunny."), text("As I said."), text("Hello.")]
    )
    async with Runtime(script, tools=TOOLS, instructions="Be brief.") as runtime:
        await runtime.run("Where?", conversation_id="c")
        await runtime.run("Sure?", conversation_id="c")
        await runtime.run("Hello?", conversation_id="d")
    begin = "Be brief."
    one, two = f"{begin}\n\n{FIRST_TEXT}", f"{begin}\n\n{SECOND_TEXT}"
    assert [reminder(request) for request in script.requests] == [begin, one, one, two, two, begin]


async def test_each_change_of_the_plan_is_an_event() -> None:
    script = ScriptedProvider([calls(FIRST), calls(PARIS), calls(SECOND), text("Sunny.")])
    heard: list[Event] = []
    async with Runtime(script, tools=TOOLS) as runtime:
        session = runtime.start("Where?")
        heard = [event async for event in session.events()]
        result = await session.result()
    changes = [event for event in heard if isinstance(event, PlanChanged)]
    assert [event.steps for event in changes] == [
        (PlanStep(text="look up Paris", status="active"), PlanStep(text="look up Rome")),
        (
            PlanStep(text="look up Paris", status="done"),
            PlanStep(text="look up Rome", status="dropped"),
            PlanStep(text="answer", status="active"),
        ),
    ]
    assert {event.request_id for event in changes} == {session.request_id}
    assert [call.content for call in result.tool_calls] == ['{"ok":true}', "sunny in Paris", '{"ok":true}']
    validate(result.messages)


async def test_a_plan_that_is_none_changes_nothing() -> None:
    bad: list[Any] = [{"steps": []}, {"steps": [{"text": ""}]}, {"steps": [{"text": "x", "status": "soon"}]}, {}]
    script = ScriptedProvider([calls(FIRST), calls(*(("update_plan", each) for each in bad)), text("Hm.")])
    changes: list[PlanChanged] = []
    async with Runtime(script, tools=TOOLS, limits=Limits(max_consecutive_errors=9)) as runtime:
        runtime.bus.connect(PlanChanged, changes.append)
        result = await runtime.run("Where?")
    assert [call.reason for call in result.tool_calls] == ["", *["invalid_arguments"] * 4]
    assert len(changes) == 1
    assert reminder(script.requests[-1]) == FIRST_TEXT


async def test_a_request_without_the_planning_tool_is_not_reminded_of_an_earlier_plan() -> None:
    script = ScriptedProvider([calls(FIRST), text("Sunny."), text("Hello.")])
    async with Runtime(script, tools=TOOLS) as runtime:
        await runtime.run("Where?", conversation_id="c")
        await runtime.run("Hello?", conversation_id="c", tools=[get_weather])
    assert reminder(script.requests[-1]) == ""


async def test_guidance_stands_between_the_instructions_and_the_plan() -> None:
    script = ScriptedProvider([calls(FIRST), text("Sunny.")])
    async with Runtime(script, tools=TOOLS, instructions="Be brief.", guidance=True) as runtime:
        await runtime.run("Where?")
    reported = reminder(script.requests[-1])
    assert reported.startswith("Be brief.\n\nYou can use these tools")
    assert reported.endswith(f"\n\n{FIRST_TEXT}")
    assert "- update_plan: Write down the plan" in reported
