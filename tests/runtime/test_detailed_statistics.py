"""`Runtime(detailed_statistics=True)`: the numbers of each tool and model."""

from __future__ import annotations

import random
from typing import Any

import anyio
import pytest

from toolbus import Compression, EventBus, Interceptor, Limits, Price, Runtime, Summarizer, ToolContext, ToolError, tool
from toolbus.errors import ConfigurationError, ProviderUnavailable
from toolbus.events import ModelResponded, ModelRetrying, ToolCallCompleted
from toolbus.interceptors import Ask
from toolbus.messages import AssistantMessage, Usage
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.records import replace
from toolbus.runtime import ModelStatistics
from toolbus.runtime._tally import Tally
from toolbus.testing import ScriptedProvider, calls, error, hang, text, virtual_backends

anyio_backend = virtual_backends()
USAGE = Usage(input_tokens=100, output_tokens=10)


@tool(retries=1)
async def slow(seconds: float) -> str:
    """Take time."""
    await anyio.sleep(seconds)
    if seconds == 3:
        raise ConnectionError
    return "done"


@tool
async def refusing() -> str:
    """Fail."""
    raise ToolError("no")


async def test_tools_are_counted_by_outcome_with_quantiles_of_their_time() -> None:
    asked = [("slow", {"seconds": each}) for each in (1.0, 2.0, 2.0, 3.0)]
    provider = ScriptedProvider([calls(*asked, ("refusing", {}), ("made_up", {}), ("slow", {})), text("done")])
    async with Runtime(provider, tools=[slow, refusing], detailed_statistics=True) as runtime:
        assert (runtime.statistics().tools, runtime.statistics().models) == ({}, {})
        await runtime.run("go")
        found = runtime.statistics().tools
    assert {name: each.outcomes for name, each in found.items()} == {
        "slow": {"completed": 3, "error": 1, "invalid_arguments": 1},
        "refusing": {"error": 1},
        "(others)": {"unknown_tool": 1},
    }
    assert (found["slow"].calls, found["slow"].retries, found["refusing"].retries) == (5, 1, 0)
    assert found["slow"].p50_seconds == pytest.approx(2, rel=0.05)
    assert 6 < found["slow"].p99_seconds < 8, "two attempts of 3 s, with a wait between them"
    assert found["(others)"].p50_seconds == 0


class Dated(ScriptedProvider):
    """A provider whose replies name the version of its model, as those of vendors do."""

    def __init__(self, model: str, *script: Any) -> None:
        super().__init__(script, vendor="maker")
        self.model = model

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        return replace(await super().respond(request, emit), model=f"{self.model}-2026-01")


async def test_models_are_counted_by_the_name_under_which_they_are_asked() -> None:
    busy = error(ProviderUnavailable("busy", retryable=True))
    call = calls(("refusing", {}), usage=USAGE)
    providers = [Dated("large", busy, busy), Dated("large-mini", busy, call, text("done", usage=USAGE))]
    prices = {"*": Price(input_per_million=1e6, output_per_million=0)}
    limits = Limits(max_model_attempts=2)
    async with Runtime(
        providers=providers, tools=[refusing], prices=prices, limits=limits, detailed_statistics=True
    ) as runtime:
        await runtime.run("go")
        found = runtime.statistics().models
    assert found == {
        "maker:large": ModelStatistics(0, 1, Usage(), 0.0),
        "maker:large-mini": ModelStatistics(2, 2, USAGE + USAGE, 200.0),
    }


async def test_a_model_that_was_chosen_for_a_round_is_asked_again_under_its_own_name() -> None:
    busy = error(ProviderUnavailable("busy", retryable=True))
    chosen = ScriptedProvider([busy, text("done")], vendor="other")
    async with Runtime(Dated("large"), provider_for_round=lambda _round: chosen, detailed_statistics=True) as runtime:
        await runtime.run("go")
        found = runtime.statistics().models
    assert found == {
        "other:": ModelStatistics(0, 1, Usage(), 0.0),
        "other:script": ModelStatistics(1, 0, Usage(), 0.0),
    }


async def test_replies_that_could_not_be_used_are_counted_for_the_model_that_gave_them() -> None:
    class Wary(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
            if (reply := await ask(request)).message.text == "Hm.":
                raise ProviderUnavailable("not like that", retryable=True)
            return reply

    providers = [Dated("large", text("Hm.", usage=USAGE)), Dated("small", text("Yes.", usage=USAGE))]
    prices = {"*": Price(input_per_million=1e6, output_per_million=0)}
    async with Runtime(
        providers=providers,
        interceptors=[Wary()],
        prices=prices,
        limits=Limits(max_model_attempts=1),
        detailed_statistics=True,
    ) as runtime:
        result = await runtime.run("go")
        found = runtime.statistics().models
    assert found == {
        "maker:large": ModelStatistics(0, 0, USAGE, 100.0),
        "maker:small": ModelStatistics(1, 1, USAGE, 100.0),
    }
    assert (result.usage, result.cost) == (USAGE + USAGE, 200.0)


@pytest.mark.parametrize(("priced", "cost"), [("*", 100.0), ("another model", 0.0)])
@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_reply_that_is_lost_with_its_request_is_counted_for_its_model(
    is_cancelled: bool, priced: str, cost: float
) -> None:
    class Wary(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
            await ask(request)
            if is_cancelled:
                await anyio.sleep_forever()
            raise ProviderUnavailable("not like that")

    prices = {priced: Price(input_per_million=1e6, output_per_million=0)}
    model = Dated("large", text("Hm.", usage=USAGE))
    async with Runtime(model, interceptors=[Wary()], prices=prices, detailed_statistics=True) as runtime:
        session = runtime.start("go")
        await anyio.sleep(1)
        session.cancel("enough")
        result = await session.result()
        found = runtime.statistics().models
    assert (result.outcome, result.usage, result.cost) == ("cancelled" if is_cancelled else "failed", USAGE, cost)
    assert found == {"maker:large": ModelStatistics(0, 0, USAGE, cost)}
    assert (result.trace[0].usage, result.trace[0].model) == (USAGE, "large-2026-01")
    assert [each.role for each in result.messages] == ["user"]


async def test_a_reply_that_is_interrupted_is_not_counted() -> None:
    async with Runtime(ScriptedProvider([hang(after="Hal")]), detailed_statistics=True) as runtime:
        session = runtime.start("go")
        await anyio.sleep(1)
        session.cancel("enough")
        await session.result()
        assert runtime.statistics().models == {}


async def test_summaries_are_counted_for_the_model_that_wrote_them() -> None:
    quick = Dated("small", *[text("So far: nothing.", usage=USAGE)] * 2)
    compression = Compression(max_context_tokens=300, summarizer=Summarizer(quick))
    prices = {"*": Price(input_per_million=1e6, output_per_million=0)}
    async with Runtime(
        Dated("large", text("One. " * 200), text("Two.")),
        compression=compression,
        prices=prices,
        detailed_statistics=True,
    ) as runtime:
        for _ in range(2):
            result = await runtime.run("Go.", conversation_id="c")
        found = runtime.statistics().models
    assert found["maker:small-2026-01"] == ModelStatistics(0, 0, USAGE, 100.0)
    assert (result.usage, result.cost) == (USAGE, 100.0)


def test_a_reply_of_a_model_that_nobody_knows_is_counted_under_its_own_name() -> None:
    tally = Tally(EventBus())
    reply = ModelResponded(round=0, message=AssistantMessage(text="Hi"), vendor="maker", model="large", cost=0.5)
    for _ in range(2):
        tally(reply)
    tally(ModelRetrying(round=0, reason="provider_error", error="busy"))
    assert tally.models() == {"maker:large": ModelStatistics(2, 0, Usage(), 1.0)}
    for number in range(2_000):
        tally(replace(reply, model=f"model {number}"))
    assert (len(tally.models()), tally.models()["(others)"].calls) == (1_001, 1_001)


async def test_without_the_option_nothing_is_counted() -> None:
    async with Runtime(ScriptedProvider([calls(("refusing", {})), text("done")]), tools=[refusing]) as runtime:
        await runtime.run("go")
        assert (runtime.statistics().tools, runtime.statistics().models) == ({}, {})


async def test_counting_ends_with_the_runtime() -> None:
    bus = EventBus()
    runtime = Runtime(ScriptedProvider([calls(("refusing", {})), text("done")]), tools=[refusing], bus=bus, detailed_statistics=True)  # fmt: skip
    async with runtime:
        await runtime.run("go")
    assert bus.statistics().receivers == 0
    assert runtime.statistics().tools["refusing"].calls == 1


def test_names_are_bounded_and_quantiles_are_correct_to_five_percent() -> None:
    tally = Tally(EventBus())
    for number in range(2_000):
        tally(ToolCallCompleted(call_id="c", content="", name=f"tool {number}", duration_seconds=1.0))
    assert len(tally.tools()) == 1_001
    assert tally.tools()["(others)"].calls == 1_000
    chance, times = random.Random(7), list[float]()
    for _ in range(5_000):
        times.append(chance.lognormvariate(0, 2))
        tally(ToolCallCompleted(call_id="c", content="", name="tool 1", duration_seconds=times[-1]))
    times.sort()
    found = tally.tools()["tool 1"]
    assert found.p50_seconds == pytest.approx(times[2_500], rel=0.06)
    assert found.p95_seconds == pytest.approx(times[4_750], rel=0.06)
    assert found.p99_seconds == pytest.approx(times[4_950], rel=0.06)
    tally = Tally(EventBus())
    for odd in (0.0, 1e-30, 1e30):
        tally(ToolCallCompleted(call_id="c", content="", name="odd", duration_seconds=odd))
    assert tally.tools()["odd"].p99_seconds < 2e5
    for _ in range(9):
        tally(ToolCallCompleted(call_id="c", content="", name="quick", duration_seconds=0.002))
    assert tally.tools()["quick"].p50_seconds == pytest.approx(0.002, rel=0.06)


def test_a_value_that_is_no_flag_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="detailed_statistics is"):
        Runtime(ScriptedProvider([text("x")]), detailed_statistics="yes")  # type: ignore[arg-type]
