"""Budgets: requests spend them together, none begins a model call once one is used up, and the overshoot is bounded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolbus import (
    Budget,
    Compression,
    EventBus,
    Interceptor,
    Limits,
    Price,
    RequestResult,
    RequestSession,
    Runtime,
    ToolContext,
    tool,
)
from toolbus.core.transcript import validate
from toolbus.errors import ConfigurationError, ProviderUnavailable
from toolbus.events import RequestCancelled
from toolbus.messages import AssistantMessage, Message, ToolCall, Usage, UserMessage
from toolbus.protocols import Emit, ModelReply, ModelRequest, Provider, Summary
from toolbus.records import replace
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, calls, record, replay, text, virtual_backends
from toolbus.toolsets.control import give_up
from toolbus.toolsets.sub_request import sub_request_tool

anyio_backend = virtual_backends()

USED = Usage(input_tokens=90, output_tokens=10)
PRICES = {"*": Price(input_per_million=1_000.0, output_per_million=1_000.0)}  # a call costs 0.1


@tool
async def step(n: int) -> str:
    """Take a step."""
    return f"step {n}"


def endless(request: ModelRequest) -> Any:
    return calls(("step", {"n": request.round}), usage=USED)


def answers() -> ScriptedProvider:
    return ScriptedProvider(lambda _request: text("ok", usage=USED))


def how(result: RequestResult[Any]) -> tuple[str, str, str]:
    return result.outcome, result.reason, result.limit


async def test_a_request_that_would_ask_the_model_while_a_budget_is_used_up_is_stopped():
    budget, model = Budget(max_tokens=250), ScriptedProvider(endless)
    async with Runtime(model, tools=[step], budget=budget) as runtime:
        first = await runtime.run("go")
        second = await runtime.run("go")
    assert how(first) == how(second) == ("stopped", "budget.max_tokens=250", "budget.max_tokens")
    assert (budget.tokens, len(model.requests)) == (300, 3)
    assert [call.content for call in first.tool_calls] == ["step 0", "step 1", "step 2"]
    assert second.text == ""


async def test_an_answer_that_uses_a_budget_up_is_an_answer():
    budget = Budget(max_tokens=100)
    async with Runtime(answers(), budget=budget) as runtime:
        assert (await runtime.run("go")).ok
    assert budget.used_up == "max_tokens=100"


async def test_a_budget_of_money_counts_what_replies_cost():
    budget = Budget(max_cost=0.25)
    async with Runtime(answers(), budget=budget, prices=PRICES) as runtime:
        results = [await runtime.run("go", conversation_id="c") for _ in range(5)]
    assert [each.outcome for each in results] == [*["completed"] * 3, *["stopped"] * 2]
    assert results[-1].reason == "budget.max_cost=0.25"
    assert budget.cost == pytest.approx(0.3)


def test_a_budget_is_used_up_when_its_bound_is_reached():
    budget = Budget(max_cost=0.5)
    budget.spend(USED, 0.25)
    assert budget.used_up == ""
    budget.spend(USED, 0.25)
    assert budget.used_up == "max_cost=0.5"


async def test_fifty_requests_five_at_a_time_exceed_their_budget_by_four_calls_at_most():
    most, at_once = 1_000, 5
    budget = Budget(max_tokens=most)

    class Slow:
        vendor = "slow"

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            await anyio.sleep(1)
            return ModelReply(message=AssistantMessage(text="ok"), usage=USED)

    async with Runtime(Slow(), max_sessions=at_once, budget=budget) as runtime:
        sessions = [runtime.start("go") for _ in range(50)]
        results = [await each.result() for each in sessions]
    done = sum(each.ok for each in results)
    assert budget.tokens == 100 * done
    assert most <= budget.tokens < most + 100 * at_once
    assert {each.reason for each in results if not each.ok} == {"budget.max_tokens=1000"}


async def test_the_budgets_of_a_runtime_and_of_a_request_count_both_and_the_same_one_once():
    whole, own, both = Budget(max_tokens=10_000), Budget(max_tokens=150), [Budget(max_tokens=1_000)]
    async with Runtime(ScriptedProvider(endless), tools=[step], budget=whole) as runtime:
        result = await runtime.run("go", budget=own)
        await runtime.run("go", budget=[whole, *both], limits=Limits(max_rounds=1, on_limit="stop"))
    assert result.reason == "budget.max_tokens=150"
    assert (whole.tokens, own.tokens, both[0].tokens) == (300, 200, 100)


async def test_a_sub_request_spends_from_the_budgets_above_it_once_and_from_its_own():
    own = Budget(max_tokens=150)
    inner: list[RequestResult[Any]] = []

    @tool
    async def ask(context: ToolContext[None]) -> str:
        """Ask somebody else."""
        inner.append(await context.ask("go", tools=[step], provider=ScriptedProvider(endless), budget=own))
        return "done"

    budget = Budget(max_tokens=1_000)
    script = ScriptedProvider([calls(("ask", {}), usage=USED), text("ok", usage=USED)])
    async with Runtime(script, tools=[ask], budget=budget) as runtime:
        assert (await runtime.run("go")).usage.input_tokens == 4 * 90
    assert inner[0].limit == "budget.max_tokens"
    assert (own.tokens, budget.tokens) == (200, 400)


async def test_a_sub_request_cannot_leave_the_budgets_above_it():
    @tool
    async def ask(context: ToolContext[None]) -> str:
        """Ask somebody else."""
        return (await context.ask("go", provider=answers(), budget=None)).text

    budget = Budget(max_tokens=1_000)
    script = ScriptedProvider([calls(("ask", {}), usage=USED), text("ok", usage=USED)])
    async with Runtime(script, tools=[ask], budget=budget) as runtime:
        assert (await runtime.run("go")).ok
    assert budget.tokens == 300


class Fixed:
    async def summarize(self, earlier: str, messages: Sequence[Message], provider: Provider) -> Summary:
        return Summary(text="They talked.", usage=USED, model="m")


async def test_a_summary_counts_and_neither_it_nor_the_reply_is_asked_for_afterwards():
    history: list[Message] = []
    for number in range(20):
        history += [UserMessage(content=f"question {number} " * 30), AssistantMessage(text="answer " * 60)]
    budget, model = Budget(max_tokens=100), answers()
    compression = Compression(max_context_tokens=1000, summarizer=Fixed())
    async with Runtime(model, budget=budget, compression=compression) as runtime:
        results = [await runtime.run("and now?", history=history) for _ in range(2)]
    assert [each.reason for each in results] == ["budget.max_tokens=100"] * 2
    assert (budget.tokens, len(model.requests)) == (100, 0)


@pytest.mark.parametrize(("own", "counted"), [(None, 180), (Usage(input_tokens=7), 7)])
async def test_all_replies_for_which_an_interceptor_asks_count_unless_it_counts_them_itself(
    own: Usage | None, counted: int
):
    class Twice(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Any) -> ModelReply:
            await ask(request)
            reply = await ask(request)
            return reply if own is None else replace(reply, usage=own)

    budget = Budget(max_tokens=1_000)
    async with Runtime(answers(), budget=budget, interceptors=[Twice()]) as runtime:
        result = await runtime.run("go")
    assert (result.usage.input_tokens, budget.tokens) == (counted, 200 if own is None else 7)


@pytest.mark.parametrize(("asks", "cost"), [(0, 0.0), (1, 0.1), (2, 0.2)])
async def test_an_interceptor_that_makes_its_own_reply_pays_for_those_that_it_has_asked_for(asks: int, cost: float):
    class Guard(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Any) -> ModelReply:
            for _ in range(asks):
                await ask(request)
            return ModelReply(message=AssistantMessage(text="I cannot say that."))

    budget, prices = Budget(max_cost=10.0), {"scripted:script": PRICES["*"]}
    async with Runtime(answers(), budget=budget, prices=prices, interceptors=[Guard()]) as runtime:
        result = await runtime.run("go", limits=Limits(max_cost=1))
    assert (result.text, result.usage.input_tokens) == ("I cannot say that.", asks * 90)
    assert result.cost == budget.cost == pytest.approx(cost)


async def test_a_reply_that_may_not_be_used_counts():
    class Broken(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Any) -> ModelReply:
            await ask(request)
            raise ValueError

    budget = Budget(max_tokens=1_000, max_cost=10.0)
    async with Runtime(answers(), budget=budget, prices=PRICES, interceptors=[Broken()]) as runtime:
        assert (await runtime.start("go").result()).outcome == "failed"
    assert (budget.tokens, budget.cost) == (100, pytest.approx(0.1))


class Picky(Interceptor):
    """Takes no reply before the third one."""

    def __init__(self) -> None:
        self.replies = 0

    async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Any) -> ModelReply:
        reply = await ask(request)
        self.replies += 1
        if self.replies < 3:
            raise ProviderUnavailable("a bad reply", retryable=True)
        return reply


async def test_the_cost_of_a_request_counts_replies_that_could_not_be_used():
    store = MemoryStore(journal=True)
    async with Runtime(answers(), store=store, prices=PRICES, interceptors=[Picky()]) as runtime:
        result = await runtime.run("go")
    async with Runtime(answers(), store=store, prices=PRICES) as runtime:
        recalled = await runtime.recall(result.request_id)
    assert recalled is not None
    assert (result.text, result.cost, recalled.cost) == ("ok", pytest.approx(0.3), pytest.approx(0.3))


async def test_replies_that_could_not_be_used_count_for_max_cost_and_the_last_one_too():
    store, limits = MemoryStore(journal=True), Limits(max_cost=0.15)
    async with Runtime(answers(), store=store, prices=PRICES, interceptors=[Picky()]) as runtime:
        result = await runtime.run("go", limits=limits)
        recalled = await runtime.recall(result.request_id)
    assert recalled is not None
    assert how(result) == ("stopped", "max_cost=0.15", "max_cost")
    assert result.cost == recalled.cost == pytest.approx(0.2)


async def test_a_reply_counts_when_an_interceptor_asks_again_in_vain():
    class Silent(ScriptedProvider):
        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            if len(self.requests) == 1:
                await anyio.sleep_forever()
            return await super().respond(request, emit)

    class Twice(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Any) -> ModelReply:
            await ask(request)
            return await ask(request)

    model, budget = Silent(lambda _request: text("ok", usage=USED)), Budget(max_cost=10.0)
    limits = Limits(max_model_attempts=1)
    async with Runtime(model, prices=PRICES, budget=budget, interceptors=[Twice()]) as runtime:
        result = await runtime.start("go", limits=limits).result()
    assert (result.reason, result.usage, result.cost) == ("provider_timeout", USED, pytest.approx(0.1))
    assert budget.cost == pytest.approx(0.1)


@pytest.mark.parametrize("by_host", [False, True])
async def test_a_reply_that_has_come_before_its_request_is_cancelled_counts_once(*, by_host: bool):
    class Checks(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Any) -> ModelReply:
            reply = await ask(request)
            await anyio.sleep_forever()
            return reply

    budget, ended = Budget(max_cost=10.0), list[RequestCancelled]()
    async with Runtime(answers(), prices=PRICES, budget=budget, interceptors=[Checks()]) as runtime:
        runtime.bus.connect(RequestCancelled, ended.append)
        if by_host:
            with anyio.move_on_after(1):
                await runtime.run("go")
        else:
            session = runtime.start("go")
            await anyio.wait_all_tasks_blocked()
            session.cancel()
            await session.result()
    (ending,) = ended
    assert (ending.usage, ending.cost, budget.cost) == (USED, pytest.approx(0.1), pytest.approx(0.1))


@pytest.mark.parametrize("outcome", ["reply", "calls", "empty", "failure", "no price"])
async def test_what_a_model_gives_after_its_request_was_cancelled_counts_and_the_request_ends_cancelled(outcome: str):
    made = {"calls": calls(("step", {"n": 1}), usage=USED), "empty": text("", usage=USED)}
    model = ScriptedProvider(lambda _request: made.get(outcome, text("ok", usage=USED)))

    class InAThread:
        vendor = "scripted"

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            reply = await model.respond(request, emit)
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
            return reply

    class Picks(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Any) -> ModelReply:
            reply = await ask(request)
            if outcome == "failure":
                raise ValueError
            return reply

    prices = {"another": PRICES["*"]} if outcome == "no price" else PRICES
    budget = Budget(max_cost=10.0)
    async with Runtime(InAThread(), tools=[step], prices=prices, budget=budget, interceptors=[Picks()]) as runtime:
        session = runtime.start("go")
        await anyio.wait_all_tasks_blocked()
        session.cancel()
        result = await session.result()
    cost = pytest.approx(0.0 if outcome == "no price" else 0.1)
    assert (result.outcome, result.usage, result.cost, budget.cost) == ("cancelled", USED, cost, cost)
    assert [each.reason for each in result.tool_calls] == (["cancelled"] if outcome == "calls" else [])
    validate(result.messages)


async def test_a_reply_with_arguments_that_are_no_text_counts():
    class Odd:
        vendor = "odd"

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            call = ToolCall(name="step", arguments={"n": 1})  # pyright: ignore[reportArgumentType]
            return ModelReply(message=AssistantMessage(tool_calls=(call,)), usage=USED)

    async with Runtime(Odd(), prices=PRICES) as runtime:
        result = await runtime.start("go").result()
    assert (result.reason, result.cost) == ("application_error", pytest.approx(0.1))


async def test_a_budget_of_money_needs_prices_and_a_price_for_the_model_that_answers():
    with pytest.raises(ConfigurationError, match="max_cost is set, and there is no price table; pass prices"):
        RequestSession(EventBus(), answers(), "go", budget=Budget(max_cost=1))
    unpriced = {"another": Price(input_per_million=1, output_per_million=1)}
    result = await RequestSession(EventBus(), answers(), "go", budget=Budget(max_cost=1), prices=unpriced).run()
    assert (result.outcome, result.reason) == ("failed", "configuration_error")
    assert "there is no price for 'scripted:script'" in str(result.error)


async def test_a_model_that_gives_the_name_of_a_budget_as_its_reason_has_reached_no_limit():
    script = ScriptedProvider([calls(("give_up", {"reason": "budget.max_tokens=1"}))])
    async with Runtime(script, tools=[give_up]) as runtime:
        assert how(await runtime.run("go")) == ("stopped", "budget.max_tokens=1", "")


async def test_the_limit_of_a_request_is_known_elsewhere_and_its_spending_is_not():
    store, budget = MemoryStore(journal=True), Budget(max_tokens=100)
    async with Runtime(ScriptedProvider(endless), tools=[step], store=store, budget=budget) as runtime:
        request_id = (await runtime.run("go")).request_id
    another = Budget(max_tokens=100)
    async with Runtime(answers(), tools=[step], store=store, budget=another) as runtime:
        recalled = await runtime.recall(request_id)
    assert recalled is not None
    assert how(recalled) == ("stopped", "budget.max_tokens=100", "budget.max_tokens")
    assert another.tokens == 0


async def test_a_recording_of_a_request_that_ran_out_of_budget_can_be_replayed(tmp_path: Path):
    async with Runtime(ScriptedProvider(endless), tools=[step], budget=Budget(max_tokens=150)) as runtime:
        with record(tmp_path / "short.jsonl", runtime):
            await runtime.run("go")
            await runtime.run("go")
    replayed = await replay(tmp_path / "short.jsonl")
    assert [each.limit for each in replayed.results if each is not None] == ["budget.max_tokens"] * 2


async def test_what_a_sub_request_loses_when_the_request_above_is_cancelled_counts_there_too():
    class Slow(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Any) -> ModelReply:
            reply = await ask(request)
            await anyio.sleep(3 if reply.message.text else 0)
            return reply

    research = sub_request_tool("research", "r", provider=ScriptedProvider([text("fine", usage=USED)]))
    model, budget = ScriptedProvider([calls(("research", {"task": "t"}), usage=USED)]), Budget(max_tokens=1_000)
    async with Runtime(model, tools=[research], interceptors=[Slow()], budget=budget) as runtime:
        session = runtime.start("go")
        await anyio.sleep(1)
        session.cancel("enough")
        result = await session.result()
        await anyio.sleep(1)
    assert (result.outcome, result.usage, budget.tokens) == ("cancelled", USED + USED, 200)


@pytest.mark.parametrize(
    ("bounds", "reported"),
    [
        ({}, "a Budget has no bound; pass max_cost, max_tokens or both"),
        ({"max_cost": 0}, "max_cost is 0; it must be a finite number above 0"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5; it must be a whole number of at least 1"),
    ],
)
def test_a_budget_without_a_sensible_bound_is_refused(bounds: dict[str, Any], reported: str):
    with pytest.raises(ConfigurationError, match=reported):
        Budget(**bounds)


@pytest.mark.parametrize("budget", [5.0, {"max_cost": 5.0}, [5.0]])
def test_an_option_that_is_not_a_budget_is_refused(budget: Any):
    with pytest.raises(ConfigurationError, match=r"pass a Budget, for example Budget\(max_tokens=100_000\)"):
        Runtime(answers(), budget=budget)


def test_a_budget_shows_what_was_spent():
    budget = Budget(max_cost=5, max_tokens=1_000)
    budget.spend(USED, 0.25)
    assert repr(budget) == "<Budget cost: 0.25 of 5, tokens: 100 of 1000>"


async def test_a_resumed_request_spends_from_the_budgets_that_its_options_give():
    @tool(needs_approval=True)
    async def ask_somebody() -> str:
        """Ask."""
        return "yes"

    def model() -> ScriptedProvider:
        script = [calls(("ask_somebody", {}), usage=USED), text("Done.", usage=USED)]
        return ScriptedProvider(lambda request: script[request.round])

    store = MemoryStore(journal=True)
    first, tenants, later = Budget(max_tokens=1_000), Budget(max_tokens=1_000), Budget(max_tokens=1_000)
    options: dict[str, Any] = {"tools": [ask_somebody], "store": store, "on_approval": "wait", "drain_seconds": 0}
    async with Runtime(model(), budget=first, **options) as runtime:
        await runtime.start("Hello.").accepted()
        await anyio.wait_all_tasks_blocked()
    async with Runtime(model(), budget=later, **options) as runtime:
        (session,) = await runtime.resume(options=lambda _record: {"budget": tenants})
        await session.accepted()
        session.approve(*session.pending_approvals)
        await session.result()
    assert [each.tokens for each in (first, tenants, later)] == [100, 100, 100]
