"""Options of a runtime's requests: limits by preset, guidance, notes on failures, a model per round, and prices."""

from __future__ import annotations

from typing import Any

import pytest

from toolbus import Limits, Price, Runtime, ToolError, tool
from toolbus.core.transcript import validate
from toolbus.errors import ConfigurationError, LimitReached, ProviderUnavailable
from toolbus.events import Event, ModelResponded, ModelRetrying
from toolbus.messages import SystemMessage, Usage, to_anthropic, to_openai
from toolbus.protocols import ModelRequest
from toolbus.testing import ScriptedProvider, calls, error, text, virtual_backends

anyio_backend = virtual_backends()


@tool
async def get_weather(city: str) -> str:
    """Weather in a city.

    Args:
        city: Where.
    """
    if city == "Atlantis":
        raise ToolError("there is no such city")
    return f"sunny in {city}"


@tool
async def get_time(city: str) -> str:
    """Time in a city."""
    return "noon"


PARIS = ("get_weather", {"city": "Paris"})
ATLANTIS = ("get_weather", {"city": "Atlantis"})


def never_done(request: ModelRequest) -> Any:
    """Calls something else in each round, for as long as there are tools."""
    return calls(("get_weather", {"city": f"town {request.round}"})) if request.tools else text("What I know so far.")


# ------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("limits", "rounds", "seconds"),
    [(Limits.brief(), 5, 120), (Limits.standard(), 10, 600), (Limits.thorough(), 20, 600)],
    ids=["brief", "standard", "thorough"],
)
async def test_a_preset_gives_a_request_its_rounds_and_a_last_answer(limits: Limits, rounds: int, seconds: int) -> None:
    script = ScriptedProvider(never_done)
    async with Runtime(script, tools=[get_weather], limits=limits) as runtime:
        result = await runtime.run("Everywhere?")
    assert (result.outcome, result.reason, result.text) == ("stopped", f"max_rounds={rounds}", "What I know so far.")
    assert len(script.requests) == rounds + 1
    assert len(result.tool_calls) == rounds
    assert limits.timeout_seconds == seconds
    validate(result.messages)


async def test_the_limits_of_a_request_stand_in_the_place_of_the_runtimes_own() -> None:
    async with Runtime(ScriptedProvider(never_done), tools=[get_weather], limits=Limits.thorough()) as runtime:
        result = await runtime.run("Everywhere?", limits=Limits(max_rounds=2, on_limit="stop"))
        default = await runtime.run("Everywhere?", limits=None)
    assert (result.reason, result.text, result.rounds) == ("max_rounds=2", "", 2)
    assert default.reason == "max_rounds=20"


# ------------------------------------------------------------------------------------------------- guidance


def instructions_in(request: ModelRequest) -> str:
    first = request.messages[0]
    assert isinstance(first, SystemMessage)
    return first.text


async def test_guidance_lists_the_tools_behind_the_instructions_and_says_when_to_stop() -> None:
    script = ScriptedProvider([text("ok")])
    limits = Limits(max_rounds=7)
    async with Runtime(
        script, tools=[get_weather, get_time], instructions="Be brief.", guidance=True, limits=limits
    ) as runtime:
        result = await runtime.run("hi")
    reported = instructions_in(script.requests[0])
    assert reported.startswith("Be brief.\n\nYou can use these tools, in at most 7 rounds:\n")
    assert "- get_weather: Weather in a city.\n- get_time: Time in a city.\n" in reported
    assert "When you know enough to answer, stop calling tools and answer." in reported
    assert all(message.role != "system" for message in result.messages)


async def test_guidance_is_left_out_where_there_are_no_tools_and_where_nobody_asked_for_it() -> None:
    script = ScriptedProvider(lambda _request: text("ok"))
    async with Runtime(script, tools=[get_weather], guidance=True) as runtime:
        await runtime.run("hi", tools=[])
        await runtime.run("hi", guidance=False)
    assert [request.messages[0].role for request in script.requests] == ["user", "user"]


# ------------------------------------------------------------------------------------------------- notes on failures


async def test_a_note_on_failures_stands_behind_all_results_of_its_round() -> None:
    script = ScriptedProvider([calls(ATLANTIS, PARIS, ("nope", {})), text("Paris is sunny.")])
    async with Runtime(script, tools=[get_weather], note_failures=True) as runtime:
        result = await runtime.run("Where?")
        follow_up = await runtime.run("Thanks", provider=ScriptedProvider([text("Bye.")]), conversation_id=result.conversation_id)  # fmt: skip
    assert [message.role for message in result.messages] == [
        *("user", "assistant", "tool", "tool", "tool", "system", "assistant")
    ]
    (note,) = [message for message in result.messages if isinstance(message, SystemMessage)]
    assert "get_weather failed (error): there is no such city" in note.text
    assert "nope failed (unknown_tool)" in note.text
    assert "Paris" not in note.text
    assert script.requests[1].messages[-1] == note
    validate(follow_up.messages)


async def test_a_transcript_with_a_note_is_valid_for_both_vendors() -> None:
    script = ScriptedProvider([calls(ATLANTIS, PARIS), text("Paris is sunny.")])
    async with Runtime(script, tools=[get_weather], note_failures=True, instructions="Be brief.") as runtime:
        result = await runtime.run("Where?")
    for dialect in ("openai", "anthropic"):
        validate(result.messages, dialect)
    roles = [message["role"] for message in to_openai(result.messages)]
    assert roles == ["user", "assistant", "tool", "tool", "system", "assistant"]
    sent = to_anthropic(script.requests[1].messages)
    assert sent["system"] == "Be brief."
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "user"]
    blocks = sent["messages"][2]["content"]
    assert [block["type"] for block in blocks] == ["tool_result", "tool_result", "text"]
    assert "there is no such city" in blocks[2]["text"]


async def test_a_round_without_failures_has_no_note_nor_has_a_request_that_did_not_ask() -> None:
    script = ScriptedProvider(lambda request: text("ok") if request.round else calls(PARIS, ATLANTIS))
    fine = ScriptedProvider([calls(PARIS), text("ok")])
    async with Runtime(script, tools=[get_weather]) as runtime:
        not_asked = await runtime.run("Where?")
        no_failure = await runtime.run("Where?", provider=fine, note_failures=True)
    assert "system" not in {message.role for message in [*not_asked.messages, *no_failure.messages]}


# ------------------------------------------------------------------------------------------------- a model per round


async def test_each_round_can_have_a_model_of_its_own() -> None:
    thinker = ScriptedProvider([calls(PARIS)])
    cheap = ScriptedProvider([text("Sunny.")])
    usual = ScriptedProvider([calls(("get_time", {"city": "Paris"}))])
    chosen = {0: thinker, 2: cheap}
    async with Runtime(usual, tools=[get_weather, get_time], provider_for_round=chosen.get) as runtime:
        result = await runtime.run("Where?")
    assert result.text == "Sunny."
    assert [[request.round for request in each.requests] for each in (thinker, usual, cheap)] == [[0], [1], [2]]


async def test_a_model_for_a_round_may_be_a_name_of_a_vendor() -> None:
    usual = ScriptedProvider([])
    replies: list[ModelResponded] = []
    async with Runtime(usual, provider_for_round=lambda _number: "extractive") as runtime:
        runtime.bus.connect(ModelResponded, replies.append)
        first = await runtime.run("hi")
        second = await runtime.run("hi again")
    assert (first.outcome, second.outcome, usual.requests) == ("completed", "completed", [])
    assert [event.vendor for event in replies] == ["extractive", "extractive"]


@pytest.mark.parametrize(
    ("named", "reported"), [("nonsense:x", "there is no provider 'nonsense:x'"), (3, "3 is not a provider")]
)
async def test_a_model_for_a_round_that_is_none_fails_the_request_and_says_so(named: Any, reported: str) -> None:
    async with Runtime(ScriptedProvider([]), provider_for_round=lambda _number: named) as runtime:
        result = await runtime.start("hi").result()
    assert (result.outcome, result.reason) == ("failed", "configuration_error")
    assert isinstance(result.error, ConfigurationError)
    assert reported in str(result.error)


async def test_when_a_rounds_model_stays_away_the_request_turns_to_the_second_of_providers() -> None:
    away = error(ProviderUnavailable("busy", vendor="x", status=503, retryable=True))
    special = ScriptedProvider([away, away, away])
    first, second = ScriptedProvider([]), ScriptedProvider([calls(PARIS), text("Sunny.")])
    heard: list[Event] = []
    async with Runtime(
        providers=[first, second], tools=[get_weather], provider_for_round=lambda _number: special
    ) as runtime:
        runtime.bus.connect(ModelRetrying, heard.append)
        result = await runtime.run("Where?")
    assert result.text == "Sunny."
    assert (len(special.requests), len(first.requests), len(second.requests)) == (3, 0, 2)
    assert [getattr(event, "provider_index", None) for event in heard] == [0, 0, 1]


# ------------------------------------------------------------------------------------------------- cost

PRICES = {
    "scripted": Price(input_per_million=1, output_per_million=1),
    "*": Price(input_per_million=2.0, output_per_million=10.0, cached_per_million=0.5),
}
MILLION = 1_000_000


async def test_a_result_has_the_cost_of_all_its_rounds() -> None:
    script = ScriptedProvider(
        [
            calls(PARIS, usage=Usage(input_tokens=MILLION, output_tokens=100_000)),
            text("ok", usage=Usage(input_tokens=MILLION, cached_tokens=MILLION // 2, output_tokens=MILLION)),
        ]
    )
    async with Runtime(script, tools=[get_weather], prices=PRICES) as runtime:
        result = await runtime.run("Where?")
    assert result.cost == pytest.approx((2.0 + 1.0) + (1.0 + 0.25 + 10.0))


async def test_without_prices_there_is_no_cost() -> None:
    script = ScriptedProvider([text("ok", usage=Usage(input_tokens=MILLION))])
    async with Runtime(script) as runtime:
        assert (await runtime.run("Where?")).cost == 0


async def test_a_request_that_costs_more_than_it_may_is_stopped_after_the_round_that_did() -> None:
    def dear(request: ModelRequest) -> Any:
        return calls(("get_weather", {"city": f"town {request.round}"}), usage=Usage(input_tokens=MILLION), text="...")

    limits = Limits(max_cost=5.0, max_input_tokens=10 * MILLION)
    async with Runtime(ScriptedProvider(dear), tools=[get_weather], prices=PRICES) as runtime:
        result = await runtime.run("Everywhere?", limits=limits)
        assert (result.outcome, result.reason, result.text) == ("stopped", "max_cost=5", "...")
        assert (result.rounds, result.cost) == (3, 6.0)
        with pytest.raises(LimitReached, match="max_cost=5"):
            result.raise_for_outcome()
    validate(result.messages)


async def test_a_cost_limit_without_a_price_for_the_model_says_which_one_is_missing() -> None:
    script = ScriptedProvider([text("ok")])
    async with Runtime(script, prices={"openai:other": Price(input_per_million=1, output_per_million=1)}) as runtime:
        result = await runtime.start("hi", limits=Limits(max_cost=1)).result()
    assert (result.outcome, result.reason) == ("failed", "configuration_error")
    assert "there is no price for 'scripted:" in str(result.error)


async def test_an_option_counts_whatever_options_are_given_before_it() -> None:
    script = ScriptedProvider([text("Hello.")])
    async with Runtime(script) as runtime:
        await runtime.run("hi", deps=None, history=None, on_busy="queue", conversation_id="c", instructions="Be brief.")
    first = script.requests[0].messages[0]
    assert isinstance(first, SystemMessage)
    assert first.text == "Be brief."
