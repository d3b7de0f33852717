"""Tools whose results are the answer, over a runtime: what the caller, listeners, streams and the next turn get."""

from __future__ import annotations

from typing import Any, Literal

import anyio
import pytest
from pydantic import BaseModel, Field, field_validator

from toolbus import Limits, Runtime, Tool, ToolContext, ToolError, ToolResult, ToolRetry, sub_request_tool, tool
from toolbus.core.transcript import validate
from toolbus.errors import ConfigurationError
from toolbus.events import (
    ApprovalRequested,
    Artifact,
    Event,
    MessageAppended,
    RequestCompleted,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import AssistantMessage, ImagePart, to_openai
from toolbus.testing import ScriptedProvider, calls, text, virtual_backends

anyio_backend = virtual_backends()


class Receipt(BaseModel):
    number: int


@tool(return_direct=True)
async def order(article: str) -> ToolResult:
    """Order an article."""
    await anyio.sleep(1)
    receipt = Artifact(name="receipt.txt", content="7")
    return ToolResult(message=f"Ordered: {article}.", data={"number": 7}, artifacts=[receipt], affected=["order 7"])


@tool(return_direct=True)
async def show(what: str, context: ToolContext[Any]) -> str:
    """Show something."""
    if what == "secret":
        raise ToolError("That is secret.")
    if what == "it":
        raise ToolRetry("Say what.")
    return f"This is {what}."


@tool
async def look(what: str) -> str:
    """Look something up."""
    await anyio.sleep(1)
    return f"{what} is here"


LAMP = ("order", {"article": "lamp"})
TOOLS = [order, show, look]


def shows(what: str) -> tuple[str, dict[str, str]]:
    return "show", {"what": what}


# ------------------------------------------------------------------------------------------------- the result


async def test_the_result_is_the_answer_and_no_model_is_asked_again() -> None:
    model = ScriptedProvider([calls(LAMP, text="I order it.")])
    heard: list[Event] = []
    async with Runtime(model, tools=TOOLS) as runtime:
        runtime.bus.connect(Event, heard.append)
        result = await runtime.run("A lamp, please.")
    assert (result.outcome, result.reason, result.text, result.output) == ("completed", "", "Ordered: lamp.", None)
    assert (len(model.requests), result.rounds, result.affected) == (1, 1, ["order 7"])
    assert [each.name for each in result.artifacts] == ["receipt.txt"]
    assert [each.role for each in result.messages] == ["user", "assistant", "tool", "assistant"]
    validate(result.messages)
    *_, results, answer = [each for each in heard if isinstance(each, MessageAppended)]
    assert (results.is_derived, answer.is_derived) == (True, False)
    ending = heard[-1]
    assert isinstance(ending, RequestCompleted)
    assert (ending.text, ending.outcome) == ("Ordered: lamp.", "completed")


async def test_the_data_is_the_output_that_was_asked_for() -> None:
    async with Runtime(ScriptedProvider([calls(LAMP)]), tools=TOOLS) as runtime:
        result = await runtime.run("A lamp, please.", output=Receipt)
    assert (result.text, result.output) == ("Ordered: lamp.", Receipt(number=7))


async def test_a_result_that_is_not_the_output_is_read_by_the_model() -> None:
    model = ScriptedProvider([calls(shows("a lamp")), calls(("final_answer", {"number": 3}))])
    async with Runtime(model, tools=TOOLS) as runtime:
        result = await runtime.run("A lamp, please.", output=Receipt)
    assert (result.outcome, result.output) == ("completed", Receipt(number=3))
    validate(result.messages)


async def test_a_model_whose_fields_have_aliases_is_the_output_as_the_tool_returns_it() -> None:
    class Place(BaseModel):
        city_name: str = Field(alias="cityName")

    @tool(return_direct=True)
    async def find() -> Place:
        """Find the place."""
        return Place(cityName="Rome")

    async with Runtime(ScriptedProvider([calls(("find", {}))]), tools=[find]) as runtime:
        result = await runtime.run("Where is it?", output=Place)
    assert result.output == Place(cityName="Rome")


async def test_a_bug_in_a_validator_is_logged_also_for_a_direct_result(caplog: pytest.LogCaptureFixture) -> None:
    class Checked(Receipt):
        @field_validator("number")
        @classmethod
        def exists(cls, number: int) -> int:
            if number != 3:
                raise KeyError(number)
            return number

    model = ScriptedProvider([calls(LAMP), calls(("final_answer", {"number": 3}))])
    async with Runtime(model, tools=TOOLS) as runtime:
        result = await runtime.run("A lamp, please.", output=Checked)
    assert result.output == Checked(number=3)
    assert [each.message for each in caplog.records if "a validator of the output failed" in each.message]


async def test_several_results_are_one_answer() -> None:
    async with Runtime(ScriptedProvider([calls(LAMP, shows("a chair"))]), tools=TOOLS) as runtime:
        result = await runtime.run("A lamp, and a chair.")
    assert result.text == "Ordered: lamp.\n\nThis is a chair."


@pytest.mark.parametrize("other", [("look", {"what": "it"}), shows("secret"), shows("it"), ("show", {}), ("gone", {})])
async def test_the_model_reads_a_direct_result_that_stands_beside_another_result_or_a_failure(
    other: tuple[str, dict[str, str]],
) -> None:
    model = ScriptedProvider([calls(LAMP, other), text("I ordered the lamp.")])
    async with Runtime(model, tools=TOOLS) as runtime:
        result = await runtime.run("A lamp, and it.")
    assert (result.text, result.rounds) == ("I ordered the lamp.", 2)


async def test_an_image_by_itself_is_no_text_and_the_models_words_stay() -> None:
    @tool(return_direct=True)
    async def draw() -> ImagePart:
        """Draw."""
        return ImagePart.from_bytes(b"not really a picture", "image/png")

    async with Runtime(ScriptedProvider([calls(("draw", {}), text="Look:")]), tools=[draw]) as runtime:
        result = await runtime.run("Draw.")
    assert (result.outcome, result.text) == ("completed", "Look:")


@pytest.mark.parametrize("final_only", [False, True])
async def test_a_stream_ends_with_the_answer(*, final_only: bool) -> None:
    async with Runtime(ScriptedProvider([calls(LAMP, text="I order it.")]), tools=TOOLS) as runtime:
        pieces = [each async for each in runtime.start("A lamp.").text(final_only=final_only)]
    assert "".join(pieces) == ("" if final_only else "I order it.\n\n") + "Ordered: lamp."


# ------------------------------------------------------------------------------------------------- the next turn


@pytest.mark.parametrize("mistral_checks", [False, True])
async def test_the_next_turn_has_the_answer_as_a_reply(*, mistral_checks: bool) -> None:
    model = ScriptedProvider([calls(LAMP), text("Red.")])
    async with Runtime(model, tools=TOOLS) as runtime:
        first = await runtime.run("A lamp, please.", conversation_id="c")
        await runtime.run("Which colour?", conversation_id="c")
    sent = model.requests[1].messages
    assert [each.role for each in sent] == ["user", "assistant", "tool", "assistant", "user"]
    assert isinstance(sent[3], AssistantMessage)
    assert (sent[3].text, sent[3].tool_calls) == (first.text, ())
    wire = to_openai(sent, mistral_checks=mistral_checks)
    assert [(each["role"], each["content"]) for each in wire[-2:]] == [
        ("assistant", first.text),
        ("user", "Which colour?"),
    ]


# --------------------------------------------------------------------------------------- people, and other code


@pytest.mark.parametrize("approved", [True, False])
async def test_a_call_that_is_approved_ends_the_request_and_a_denied_one_does_not(*, approved: bool) -> None:
    async def decide(question: ApprovalRequested) -> bool:
        return approved

    model = ScriptedProvider([calls(LAMP), text("As you wish.")])
    async with Runtime(model, tools=TOOLS, needs_approval=True, on_approval=decide) as runtime:
        result = await runtime.run("A lamp, please.")
    assert (result.text, result.rounds) == (("Ordered: lamp.", 1) if approved else ("As you wish.", 2))


@pytest.mark.parametrize("fails", [False, True])
async def test_a_call_that_other_code_answers_ends_the_request(*, fails: bool) -> None:
    outside: Tool = Tool("outside", "Ask outside.", {"type": "object"}, external=True, return_direct=True)
    async with Runtime(ScriptedProvider([calls(("outside", {})), text("Too bad.")]), tools=[outside]) as runtime:

        def answer(asked: ToolCallRequested) -> None:
            ids: dict[str, Any] = {"request_id": asked.request_id, "call_id": asked.call_id, "name": asked.name}
            failed = ToolCallFailed(**ids, reason="error", error="broken")
            runtime.bus.publish(failed if fails else ToolCallCompleted(**ids, content="It rains."))

        runtime.bus.connect(ToolCallRequested, answer)
        result = await runtime.run("What is it like?")
    assert (result.text, result.rounds) == (("Too bad.", 2) if fails else ("It rains.", 1))


async def test_a_message_that_comes_meanwhile_is_answered_by_the_model() -> None:
    async with Runtime(ScriptedProvider([calls(LAMP), text("A red lamp.")]), tools=TOOLS) as runtime:
        session = runtime.start("A lamp, please.")
        await anyio.sleep(0.5)
        assert session.steer("A red one.")
        result = await session.result()
    assert [each.role for each in result.messages] == ["user", "assistant", "tool", "user", "assistant"]
    assert result.text == "A red lamp."


async def test_background_work_is_not_given_up_for_a_direct_result() -> None:
    @tool(background=True)
    async def bake() -> str:
        """Bake a cake."""
        await anyio.sleep(60)
        return "The cake is ready."

    script = [calls(("bake", {})), calls(shows("an oven")), text("This is an oven; wait."), text("Here is your cake.")]
    async with Runtime(ScriptedProvider(script), tools=[bake, *TOOLS]) as runtime:
        result = await runtime.run("Bake, and show me the oven.")
    assert (result.outcome, result.text) == ("completed", "Here is your cake.")


# --------------------------------------------------------------------------------------------- sub-requests


async def test_a_direct_result_within_a_sub_request_ends_only_the_sub_request() -> None:
    clerk = sub_request_tool("clerk", "Orders.", provider=ScriptedProvider([calls(LAMP)]), tools=TOOLS)
    async with Runtime(ScriptedProvider([calls(("clerk", {"task": "lamp"})), text("Done.")]), tools=[clerk]) as runtime:
        result = await runtime.run("A lamp, please.")
    assert (result.text, result.tool_calls[0].content) == (
        "Done.",
        '{"ok":true,"message":"Ordered: lamp.","affected":1}',
    )


async def test_the_answer_of_a_sub_request_may_be_that_of_the_request() -> None:
    desk = Runtime(ScriptedProvider([calls(LAMP), text("Hello, I am the desk.")]), tools=TOOLS)
    clerk = desk.as_tool("clerk", "Orders.", tool_options={"return_direct": True})
    script = [calls(("clerk", {"task": "lamp"})), calls(("clerk", {"task": "hello"}))]
    async with Runtime(ScriptedProvider(script), tools=[clerk]) as runtime:
        texts = [(await runtime.run("Ask the desk.")).text for _ in range(2)]
    assert texts == ["Ordered: lamp.", "Hello, I am the desk."]


async def test_a_sub_request_that_fails_ends_nothing() -> None:
    clerk = sub_request_tool("clerk", "Orders.", provider=ScriptedProvider([]), tool_options={"return_direct": True})
    async with Runtime(
        ScriptedProvider([calls(("clerk", {"task": "x"})), text("It failed.")]), tools=[clerk]
    ) as runtime:
        assert (await runtime.run("Ask.")).text == "It failed."


async def test_a_sub_request_that_spends_the_rest_still_gives_the_answer() -> None:
    clerk = sub_request_tool(
        "clerk", "Orders.", provider=ScriptedProvider([calls(LAMP)]), tools=TOOLS, tool_options={"return_direct": True}
    )
    limits = Limits(max_rounds=1, max_tool_calls=2, on_limit="stop")
    async with Runtime(ScriptedProvider([calls(("clerk", {"task": "lamp"}))]), tools=[clerk], limits=limits) as runtime:
        result = await runtime.run("A lamp, please.")
    assert (result.outcome, result.text) == ("completed", "Ordered: lamp.")


# ------------------------------------------------------------------------------------------------ options


def test_a_background_tool_cannot_return_its_result_directly() -> None:
    with pytest.raises(ConfigurationError, match="so it cannot be the answer; leave one out"):
        tool(name="x", background=True, return_direct=True)(lambda: None)
    wrong: Any = "yes"
    with pytest.raises(ConfigurationError, match="return_direct is 'yes'; say True or False"):
        tool(name="x", return_direct=wrong)(lambda: None)


async def test_a_literal_is_an_output_as_data_and_not_as_plain_text() -> None:
    @tool(return_direct=True)
    async def judge(word: str) -> ToolResult:
        """Judge."""
        return ToolResult(message="I think so.", data=word)

    wanted: Any = Literal["yes", "no"]
    model = ScriptedProvider([calls(("judge", {"word": "perhaps"})), calls(("judge", {"word": "yes"}))])
    async with Runtime(model, tools=[judge]) as runtime:
        result = await runtime.run("Is it?", output=wanted)
    assert (result.output, result.text, result.rounds) == ("yes", "I think so.", 2)


async def test_a_large_result_is_the_output_itself() -> None:
    @tool(return_direct=True)
    async def measure() -> list[dict[str, int]]:
        """Measure everything."""
        return [dict.fromkeys("abcdefghij", 1)] * 3_000

    async with Runtime(ScriptedProvider([calls(("measure", {}))]), tools=[measure]) as runtime:
        result = await runtime.run("Measure.", output=list[dict[str, int]])
    assert len(result.output or ()) == 3_000
