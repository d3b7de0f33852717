"""What goes wrong around the window: summaries that fail, hang or cost too much, models that refuse, functions that break."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, cast

import anyio
import pytest

from support.long_talks import sent, talk, too_long
from toolbus import (
    Compression,
    EventBus,
    Interceptor,
    Limits,
    Price,
    RequestResult,
    RequestSession,
    Runtime,
    Summarizer,
    Tool,
)
from toolbus.core.compression import Edit, Fold, HistoryItem
from toolbus.core.tokens import Calibration, estimate_message, estimate_text, estimate_tools
from toolbus.errors import ApplicationError, ContentFiltered, ContextOverflow, ProviderUnavailable
from toolbus.events import (
    ApprovalDecided,
    ApprovalRequested,
    Event,
    HistoryCompressed,
    ModelRetrying,
    RequestFailed,
    ToolCallRequested,
)
from toolbus.messages import AssistantMessage, Message, SystemMessage, ToolMessage, Usage, UserMessage
from toolbus.protocols import Emit, ModelReply, ModelRequest, Provider, Summary
from toolbus.records import replace
from toolbus.session import SessionStart
from toolbus.session._context_window import _counter  # pyright: ignore[reportPrivateUsage]
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, calls, error, settle, text, virtual_backends

anyio_backend = virtual_backends()

LONG = "0123456789" * 1000


def fetch(result: str = "word " * 100, description: str = "", **options: Any) -> Tool:
    async def handler(**_arguments: Any) -> str:
        return result

    schema: dict[str, Any] = {"type": "object", "properties": {}}
    return Tool("fetch", description, schema, handler, validate=lambda _arguments: None, **options)


def size(request: ModelRequest) -> int:
    return sum(map(estimate_message, request.messages)) + estimate_tools(request.tools)


async def carry_out(provider: Any, messages: Any, **options: Any) -> tuple[RequestResult[Any], list[Event]]:
    bus = EventBus()
    seen: list[Event] = []
    bus.connect((ModelRetrying, HistoryCompressed, RequestFailed), seen.append)
    result = await RequestSession(bus, provider, messages, **options).run()
    return result, seen


class Fixed:
    """Anything in the place of a model: a summarizer that counts how often it is asked."""

    def __init__(self, *given: Any) -> None:
        self.given = list(given)
        self.asked: list[str] = []

    async def summarize(self, earlier: str, messages: Sequence[Message], provider: Provider) -> Any:
        self.asked.append(earlier)
        given = self.given.pop(0)
        if given is None:
            await anyio.sleep_forever()
        if isinstance(given, Exception):
            raise given
        return given


# ------------------------------------------------------------------------------------------------------- summaries


async def test_a_summarizer_that_hangs_costs_half_of_the_model_s_time_once() -> None:
    provider = ScriptedProvider([calls(("fetch", {})), text("here")])
    summarizer = Fixed(None)
    compression = Compression(max_context_tokens=1000, summarizer=summarizer)
    limits = Limits(model_timeout_seconds=40)
    async with Runtime(provider, tools=[fetch()], compression=compression, limits=limits) as runtime:
        result = await runtime.run("and now?", history=talk(20)[:-1])
    assert result.ok
    assert result.duration_seconds == pytest.approx(20, abs=0.1)
    assert len(summarizer.asked) == 1
    assert len(provider.requests) == 2


@pytest.mark.parametrize("summed", ["The old one.", ""])
async def test_a_summary_is_reported_and_paid_for_once_however_many_rounds_follow(summed: str) -> None:
    provider = ScriptedProvider([*[calls(("fetch", {}))] * 3, text("here")])
    summarizer = Fixed(Summary(text=summed, usage=Usage(input_tokens=100)))
    compression = Compression(max_context_tokens=2_500, summarizer=summarizer)
    async with Runtime(provider, tools=[fetch("short")], compression=compression) as runtime:
        reported: list[HistoryCompressed] = []
        runtime.bus.connect(HistoryCompressed, reported.append)
        result = await runtime.run("and now?", history=talk(20)[:-1])
    assert result.ok
    assert result.usage.input_tokens == 100
    assert [each.usage.input_tokens for each in reported] == [100]


@pytest.mark.parametrize("given", ["a text alone", ProviderUnavailable("away"), TimeoutError(), Summary(text=3), None])  # type: ignore[arg-type]
async def test_a_summarizer_that_fails_is_asked_once_in_a_request(given: Any, caplog: pytest.LogCaptureFixture) -> None:
    provider = ScriptedProvider([*[calls(("fetch", {}))] * 3, text("here")])
    summarizer = Fixed(given)
    compression = Compression(max_context_tokens=2000, summarizer=summarizer)
    async with Runtime(provider, tools=[fetch("word " * 20)], compression=compression) as runtime:
        result = await runtime.run("and now?", history=talk(12)[:-1])
    assert result.ok
    assert len(summarizer.asked) == 1
    assert "the history was not summed up" in caplog.text
    assert ("the summarizer gave a str, not a Summary" in caplog.text) == isinstance(given, str)
    assert result.messages[:24] == talk(12)[:-1]


@pytest.mark.parametrize("hangs", [True, False])
async def test_what_a_summarizer_was_given_before_it_failed_is_paid_for(hangs: bool) -> None:
    class Strict:
        async def summarize(self, earlier: str, messages: Sequence[Message], provider: Provider) -> Summary:
            for _ in range(2):
                await provider.respond(ModelRequest(messages=[UserMessage(content="In short?")]), lambda _delta: None)
            if hangs:
                await anyio.sleep_forever()
            raise ValueError("that is no summary")

    used = Usage(input_tokens=70, output_tokens=7)
    provider = ScriptedProvider([text("no", usage=used), text("no", usage=used), text("here")])
    compression = Compression(max_context_tokens=1000, summarizer=Strict())
    prices = {"*": Price(input_per_million=1e6, output_per_million=0.0)}
    result, seen = await carry_out(provider, talk(20), compression=compression, prices=prices)
    assert (result.text, result.usage, result.cost) == ("here", used + used, 140.0)
    assert [each.usage for each in seen if isinstance(each, HistoryCompressed)] == [used + used]
    provider = ScriptedProvider([*[text("no", usage=used)] * 2, error(ProviderUnavailable("away"))])
    once = Limits(max_model_attempts=1)
    result, _ = await carry_out(provider, talk(20), compression=compression, prices=prices, limits=once)
    assert (result.outcome, result.usage, result.cost) == ("failed", used + used, 140.0), "they are not counted twice"


async def test_what_a_summarizer_was_given_before_it_failed_is_paid_for_by_the_name_of_the_newest_model() -> None:
    class Changing:
        vendor, count = "own", 0

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            self.count += 1
            return ModelReply(message=AssistantMessage(text="no"), usage=Usage(input_tokens=1), model=f"m{self.count}")

    class Strict:
        provider = Changing()

        async def summarize(self, earlier: str, messages: Sequence[Message], provider: Provider) -> Summary:
            for _ in range(2):
                await provider.respond(ModelRequest(messages=[UserMessage(content="In short?")]), lambda _delta: None)
            raise ValueError("that is no summary")

    compression = Compression(max_context_tokens=1000, summarizer=Strict())
    _, seen = await carry_out(ScriptedProvider([text("here")]), talk(20), compression=compression)
    assert [each.model for each in seen if isinstance(each, HistoryCompressed)] == ["m2"]


@pytest.mark.parametrize("ends", ["cancelled", "stopped"])
async def test_what_a_summarizer_was_given_is_paid_for_if_the_request_ends_meanwhile(ends: str) -> None:
    class Hanging:
        async def summarize(self, earlier: str, messages: Sequence[Message], provider: Provider) -> Summary:
            await provider.respond(ModelRequest(messages=[UserMessage(content="In short?")]), lambda _delta: None)
            await anyio.sleep_forever()
            raise AssertionError

    used = Usage(input_tokens=70, output_tokens=7)
    limits = Limits(timeout_seconds=5 if ends == "stopped" else 600)
    compression = Compression(max_context_tokens=1000, summarizer=Hanging())
    prices = {"*": Price(input_per_million=1e6, output_per_million=0.0)}
    provider = ScriptedProvider([text("no", usage=used)])
    session = RequestSession(EventBus(), provider, talk(20), limits=limits, compression=compression, prices=prices)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.run)
        await settle()
        if ends == "cancelled":
            session.cancel("enough")
    result = await session.result()
    assert (result.outcome, result.usage, result.cost) == (ends, used, 70.0)


async def test_a_summarizer_whose_own_provider_gives_no_reply_is_left_out() -> None:
    class Wrong:
        vendor = "own"

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            return cast("ModelReply", None)

    class Asking:
        provider = Wrong()

        async def summarize(self, earlier: str, messages: Sequence[Message], provider: Provider) -> Summary:
            return Summary(text=(await provider.respond(ModelRequest(messages=()), lambda _delta: None)).message.text)

    compression = Compression(max_context_tokens=1000, summarizer=Asking())
    result, _ = await carry_out(ScriptedProvider([text("here")]), talk(20), compression=compression)
    assert (result.outcome, result.text) == ("completed", "here")


async def test_a_summarizer_reads_the_attributes_of_the_provider_that_it_asks() -> None:
    class Curious:
        async def summarize(self, earlier: str, messages: Sequence[Message], provider: Any) -> Summary:
            return Summary(text=f"{provider.vendor} was asked {len(provider.requests)} times.")

    model = ScriptedProvider([text("here")])
    compression = Compression(max_context_tokens=1000, summarizer=Curious())
    await carry_out(model, talk(20), compression=compression)
    assert "scripted was asked 0 times." in str(model.requests[0].messages)


async def test_a_request_that_goes_on_growing_is_summed_up_again() -> None:
    provider = ScriptedProvider([*[calls(("fetch", {"n": number})) for number in range(9)], text("here")])
    summarizer = Fixed(*[Summary(text=f"summary {number}") for number in range(9)])
    compression = Compression(max_context_tokens=4000, summarizer=summarizer)
    async with Runtime(provider, tools=[fetch("word " * 300)], compression=compression) as runtime:
        result = await runtime.run("and now?", history=talk(20)[:-1])
    assert result.ok
    assert summarizer.asked[:2] == ["", "summary 0"]
    assert all("summary 0" not in str(message) for message in sent(provider))


async def test_a_summary_without_text_is_paid_for_and_the_one_before_stays() -> None:
    provider = ScriptedProvider(lambda _request: text("answer " * 100))
    used = Usage(input_tokens=70, output_tokens=7)
    summarizer = Fixed(Summary(text="They talked.", usage=used), *[Summary(text=" ", usage=used)] * 9)
    compression = Compression(max_context_tokens=1000, summarizer=summarizer)
    seen: list[Event] = []
    async with Runtime(provider, compression=compression) as runtime:
        runtime.bus.connect(HistoryCompressed, seen.append)
        usages = [(await runtime.run("question " * 9, conversation_id="c")).usage for _ in range(20)]
    asked = len(summarizer.asked)
    assert 2 <= asked < 10
    assert set(summarizer.asked[1:]) == {"They talked."}
    assert sum(usages, Usage()) == Usage(input_tokens=70 * asked, output_tokens=7 * asked)
    assert [each.summary for each in seen if isinstance(each, HistoryCompressed) and each.summary] == ["They talked."]
    assert sent(provider)[0].text.endswith("In short:]\nThey talked.")  # type: ignore[union-attr]


async def test_a_summary_of_broken_text_can_be_sent() -> None:
    provider = ScriptedProvider([text("here")])
    compression = Compression(max_context_tokens=1000, summarizer=Fixed(Summary(text="half \ud800")))
    result, seen = await carry_out(provider, talk(20), compression=compression)
    assert result.ok
    assert sent(provider)[0].text.endswith("half ?")  # type: ignore[union-attr]
    assert next(each.summary for each in seen if isinstance(each, HistoryCompressed)) == "half ?"


async def test_a_summary_as_long_as_the_window_leaves_room_and_is_not_asked_for_again() -> None:
    provider = ScriptedProvider([*[calls(("fetch", {}))] * 3, text("here")])
    summarizer = Fixed(*[Summary(text="on and on " * 2000)] * 4)
    compression = Compression(max_context_tokens=2000, summarizer=summarizer)
    async with Runtime(provider, tools=[fetch("word " * 20)], compression=compression) as runtime:
        result = await runtime.run("and now?", history=talk(20)[:-1])
    assert result.ok
    assert len(summarizer.asked) == 1
    assert max(map(size, provider.requests)) <= 2000


async def test_a_summary_that_has_no_price_ends_a_request_whose_cost_is_limited() -> None:
    provider = ScriptedProvider([text("never")])
    quick = ScriptedProvider([text("in short", usage=Usage(input_tokens=70))], vendor="quick")
    compression = Compression(max_context_tokens=1000, summarizer=Summarizer(quick))
    prices = {"scripted:script": Price(input_per_million=1, output_per_million=1)}
    result, _ = await carry_out(provider, talk(20), compression=compression, prices=prices, limits=Limits(max_cost=9.0))
    assert (result.outcome, result.reason) == ("failed", "configuration_error")
    assert "there is no price for 'quick:script'" in str(result.error)
    assert result.usage == Usage(input_tokens=70)
    assert provider.requests == []


async def test_a_summary_that_costs_nothing_needs_no_price() -> None:
    provider = ScriptedProvider([text("here")])
    compression = Compression(max_context_tokens=1000, summarizer=Fixed(Summary(text="by hand")))
    prices = {"scripted:script": Price(input_per_million=1, output_per_million=1)}
    result, _ = await carry_out(provider, talk(20), compression=compression, prices=prices, limits=Limits(max_cost=9.0))
    assert result.ok


@pytest.mark.parametrize("limits", [Limits(max_input_tokens=50), Limits(max_cost=1.0)])
async def test_the_model_is_not_asked_once_a_summary_has_used_up_the_limits(limits: Limits) -> None:
    provider = ScriptedProvider([text("never")])
    used = Usage(input_tokens=70)
    compression = Compression(max_context_tokens=1000, summarizer=Fixed(Summary(text="so", usage=used, model="m")))
    prices = {"*": Price(input_per_million=1_000_000, output_per_million=0)}
    result, _ = await carry_out(provider, talk(20), compression=compression, prices=prices, limits=limits)
    assert result.outcome == "stopped"
    assert result.reason in {"max_input_tokens=50", "max_cost=1"}
    assert result.usage == used
    assert provider.requests == []


async def test_a_request_is_cancelled_while_its_history_is_summed_up() -> None:
    provider = ScriptedProvider([text("never")])
    compression = Compression(max_context_tokens=1000, summarizer=Fixed(None))
    session = RequestSession(EventBus(), provider, talk(20), compression=compression)
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.sleep(1)
        session.cancel("enough")
    result = await session.result()
    assert (result.outcome, result.reason) == ("cancelled", "enough")
    assert result.messages == [*talk(20)[:-1], result.messages[-1]]


# -------------------------------------------------------------------------------------------- models that refuse


@pytest.mark.parametrize(("instructions", "description"), [("Be brief. " * 400, ""), ("Be brief.", "Find it. " * 400)])
async def test_the_limit_that_a_server_tells_is_for_instructions_and_tools_as_well(
    instructions: str, description: str
) -> None:
    provider = ScriptedProvider([too_long(2000), text("here")])
    tools = [fetch(description=description).spec]
    result, _ = await carry_out(provider, talk(40), instructions=instructions, tools=tools)
    assert result.ok
    assert 1200 <= size(provider.requests[1]) <= 2000


@pytest.mark.parametrize("limit_tokens", [0, -5, 1])
async def test_a_limit_that_makes_no_sense_does_no_harm_to_later_turns(limit_tokens: int) -> None:
    provider = ScriptedProvider([*[text("well " * 50)] * 4, too_long(limit_tokens), *[text("here")] * 2])
    async with Runtime(provider) as runtime:
        for _ in range(4):
            await runtime.run("question " * 20, conversation_id="c")
        result = await runtime.run("question", conversation_id="c")
        assert result.ok
    refused, again = len(sent(provider, 4)), len(sent(provider, 5))
    # Without a limit, half of the refused request is sent. With a limit of one token, only the newest turn is left.
    assert (refused, again > 2) == (9, limit_tokens <= 0)


async def test_the_limit_that_a_server_tells_is_in_the_tokens_of_its_model() -> None:
    calibration = Calibration()
    for estimated in (500, 1_000, 2_000, 4_000, 8_000) * 40:
        calibration.observe("scripted:", estimated, 2 * estimated + 800)
    assert calibration.factor("scripted:") == pytest.approx(2, rel=0.1)
    assert calibration.overhead("scripted:") > 500
    provider = ScriptedProvider([too_long(4_000), text("here")])
    result, _ = await carry_out(provider, talk(60), start=SessionStart(calibration=calibration))
    assert result.ok
    assert 2_500 <= 2 * size(provider.requests[1]) + 800 <= 4_000


async def test_what_was_learned_of_one_model_stays_when_another_one_refuses() -> None:
    one, other = (ScriptedProvider([too_long(), text("well"), text("well")], vendor=name) for name in ("one", "other"))
    large = ScriptedProvider([text("well " * 100)] * 16)
    async with Runtime(large) as runtime:
        for provider in (*[large] * 8, one, other, *[large] * 8, one):
            await runtime.run("question " * 20, conversation_id="c", provider=provider)
    refused, _, later = (size(each) for each in one.requests)
    assert later < refused * 0.8


async def test_nothing_is_learned_of_a_model_that_has_refused_from_the_usage_of_the_next_one() -> None:
    calibration = Calibration()
    small = ScriptedProvider([too_long(), too_long()], vendor="small")
    large = ScriptedProvider([text("here", usage=Usage(input_tokens=9_000))])
    result, _ = await carry_out([small, large], talk(20), start=SessionStart(calibration=calibration))
    assert result.ok
    assert (calibration.factor("small:"), calibration.overhead("small:")) == (1.0, 0.0)


async def test_a_request_that_was_refused_once_may_grow_again() -> None:
    kept = fetch("word " * 6_000, keep_full_results=True)
    provider = ScriptedProvider([too_long(), calls(("fetch", {})), text("here")])
    async with Runtime(provider, tools=[kept], max_result_chars=100_000) as runtime:
        result = await runtime.run("and now?", history=talk(20)[:-1])
    assert result.ok
    assert size(provider.requests[2]) > size(provider.requests[0])


@pytest.mark.parametrize("options", [{}, {"compression": Compression(max_context_tokens=100_000)}])
async def test_the_next_provider_is_asked_with_all_of_it_where_the_first_one_s_window_is_too_small(
    options: dict[str, Any],
) -> None:
    small, large = ScriptedProvider([too_long(), too_long()], vendor="small"), ScriptedProvider([text("here")])
    result, seen = await carry_out([small, large], talk(20), **options)
    assert (result.outcome, result.text) == ("completed", "here")
    assert [(each.reason, each.provider_index) for each in seen if isinstance(each, ModelRetrying)] == [
        ("context_overflow", 0),
        ("context_overflow", 1),
    ]
    assert sent(large) == result.messages[:-1]
    assert len(sent(small, 1)) < len(sent(large))


async def test_the_next_provider_is_asked_where_nothing_is_left_to_shorten_for_the_first_one() -> None:
    small, large = ScriptedProvider([too_long()], vendor="small"), ScriptedProvider([text("here")])
    result, _ = await carry_out([small, large], "word " * 500)
    assert result.ok
    assert len(small.requests) == 1


async def test_each_provider_may_refuse_once_and_the_last_one_ends_the_request() -> None:
    small, large = (ScriptedProvider([too_long(), too_long()], vendor=name) for name in ("small", "large"))
    result, seen = await carry_out([small, large], talk(20))
    assert (result.outcome, result.reason) == ("failed", "context_overflow")
    assert isinstance(result.error, ContextOverflow)
    assert (result.error.vendor, result.error.status) == ("test", 400)
    assert [each.provider_index for each in seen if isinstance(each, ModelRetrying)] == [0, 1, 1]
    assert [each.retryable for each in seen if isinstance(each, RequestFailed)] == [False]


async def test_a_window_of_one_s_own_is_the_same_for_all_providers() -> None:
    first, second = ScriptedProvider([text("never")]), ScriptedProvider([text("never")])
    result, _ = await carry_out([first, second], "word " * 5000, compression=Compression(max_context_tokens=1000))
    assert (result.outcome, result.reason) == ("failed", "context_overflow")
    assert first.requests == second.requests == []


async def test_what_was_learned_of_a_model_is_not_held_against_another() -> None:
    small = ScriptedProvider([too_long(), *[text("well")] * 2], vendor="small")
    large = ScriptedProvider([text("well " * 100)] * 5)
    async with Runtime(large) as runtime:
        for _ in range(4):
            await runtime.run("question " * 20, conversation_id="c")
        await runtime.run("question", conversation_id="c", provider=small)
        await runtime.run("question", conversation_id="c", provider=small)
    refused, again, later = (size(each) for each in small.requests)
    assert again < refused * 0.8
    assert later < refused * 0.8


async def test_a_refusal_in_the_last_answer_is_answered_by_less_and_a_second_one_by_the_limit() -> None:
    for script, answer in (([too_long(), text("here")], "here"), ([too_long(), too_long()], "")):
        provider = ScriptedProvider([calls(("fetch", {})), *script])
        async with Runtime(provider, tools=[fetch()], limits=Limits(max_rounds=1)) as runtime:
            result = await runtime.run("go", history=talk(20)[:-1])
        assert (result.outcome, result.reason, result.text) == ("stopped", "max_rounds=1", answer)
        assert provider.requests[-1].tools == ()
        assert size(provider.requests[-1]) < size(provider.requests[-2])


async def test_a_refusal_after_a_steering_keeps_what_was_said() -> None:
    sessions: list[RequestSession] = []

    def steered(_request: ModelRequest) -> Any:
        sessions[0].steer("in Rome")
        return calls(("fetch", {}))

    provider = ScriptedProvider([steered, too_long(), text("here")])
    async with Runtime(provider, tools=[fetch()]) as runtime:
        sessions.append(runtime.start("go", history=talk(20)[:-1]))
        result = await sessions[0].result()
    assert result.ok
    said = [each.content for each in sent(provider) if isinstance(each, UserMessage)]
    assert said[-2:] == ["go", "in Rome"]
    assert sent(provider)[-2].content == "word " * 100  # type: ignore[union-attr]


async def test_what_was_shortened_for_a_model_stays_so_when_it_is_asked_again() -> None:
    away = error(ProviderUnavailable("away", retryable=True))
    small = ScriptedProvider([too_long(), away, text("here")], vendor="small")
    result, seen = await carry_out(small, talk(20), limits=Limits(max_model_attempts=3))
    assert result.ok
    assert [each.reason for each in seen if isinstance(each, ModelRetrying)] == [
        "context_overflow",
        "provider_unavailable",
    ]
    assert size(small.requests[2]) == size(small.requests[1])


async def test_a_reply_that_was_withheld_is_an_error_of_its_own_kind() -> None:
    result, _ = await carry_out(ScriptedProvider([text("", finish_reason="refusal")]), "hi")
    assert isinstance(result.error, ContentFiltered)


# --------------------------------------------------------------------------------------- what applications give


def approved(event: Event) -> ApprovalDecided:
    assert isinstance(event, ApprovalRequested)
    return ApprovalDecided(request_id=event.request_id, call_id=event.call_id, approved=True)


class Policy:
    """One that fails from the first result on."""

    def fold(self) -> Fold:
        return self

    def add(self, seen: HistoryItem) -> list[Edit]:
        if isinstance(seen.message, AssistantMessage):
            raise ValueError("oh")
        return []


@pytest.mark.parametrize("needs_approval", [False, True])
async def test_a_policy_that_fails_ends_the_request_and_loses_nothing(*, needs_approval: bool) -> None:
    provider = ScriptedProvider([calls(("fetch", {})), text("never")])
    options: dict[str, Any] = {"compression": Compression(policies=[Policy()]), "needs_approval": needs_approval}
    async with Runtime(provider, tools=[fetch()], **options) as runtime:
        if needs_approval:
            runtime.bus.connect(ApprovalRequested, lambda event: runtime.bus.publish(approved(event)))
        result = await runtime.start("go", conversation_id="c").result()
        assert (result.outcome, result.reason) == ("failed", "application_error")
        assert isinstance(result.error, ApplicationError)
        assert str(result.error) == "the compression policy Policy failed: add: ValueError: oh"
        assert [each.role for each in await runtime.store.history("c")] == ["user", "assistant", "tool"]


async def test_a_tokenizer_that_fails_is_told_of_once_and_estimated_for(caplog: pytest.LogCaptureFixture) -> None:
    def tokenizer(said: str) -> Any:
        if "<|end|>" in said:
            raise ValueError("special token")
        return None if "nothing" in said else float("nan") if "odd" in said else len(said) / 3

    caplog.set_level(logging.WARNING)
    provider = ScriptedProvider([text("<|end|>"), text("nothing"), text("odd"), text("here")])
    compression = Compression(max_context_tokens=1000, tokenizer=tokenizer)
    async with Runtime(provider, compression=compression) as runtime:
        for _ in range(4):
            result = await runtime.run("say <|end|>", conversation_id="c")
            assert result.ok
    assert caplog.text.count("the tokenizer failed") == 4  # requests
    assert "special token" in caplog.text


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_a_number_that_cannot_be_a_count_is_logged_and_estimated_for(
    wrong: float, caplog: pytest.LogCaptureFixture
) -> None:
    count = _counter(lambda _text: wrong, "r")  # type: ignore[arg-type, return-value]
    assert count("x" * 100) == estimate_text("x" * 100)
    assert f"it gave {wrong}" in caplog.text


async def test_a_tokenizer_may_count_nothing_and_parts_of_tokens(caplog: pytest.LogCaptureFixture) -> None:
    counted: list[float] = [0, 0.5, 3.0]
    count = _counter(lambda _text: counted.pop(0), "r")  # type: ignore[arg-type, return-value]
    assert [count("x" * 100) for _ in range(3)] == [0, 1, 3]
    assert "the tokenizer failed" not in caplog.text


async def test_a_model_is_chosen_once_for_each_call_of_it() -> None:
    asked: list[int] = []
    usual = ScriptedProvider([])
    chosen = ScriptedProvider([too_long(), text("here")], vendor="chosen")

    def for_round(number: int) -> Provider:
        asked.append(number)
        return chosen

    result, _ = await carry_out(usual, talk(20), provider_for_round=for_round)
    assert result.ok
    assert asked == [0, 0]


class Adding(Interceptor):
    """An application that sends more than was measured."""

    async def around_model(self, request: ModelRequest, context: Any, ask: Any) -> ModelReply:
        return await ask(replace(request, messages=[*request.messages, UserMessage(content="word " * 1000)]))


async def test_nothing_is_learned_from_what_an_interceptor_has_put_there() -> None:
    def counted(request: ModelRequest) -> Any:
        return text("well", usage=Usage(input_tokens=size(request)))

    calibration = Calibration()
    session = RequestSession(
        EventBus(),
        ScriptedProvider(counted),
        "go",
        compression=Compression(max_context_tokens=10_000),
        interceptors=[Adding()],
        start=SessionStart(calibration=calibration),
    )
    assert (await session.run()).ok
    assert (calibration.factor("scripted:"), calibration.overhead("scripted:")) == (1.0, 0.0)


async def test_the_tool_to_read_on_with_takes_its_share_of_the_window() -> None:
    provider = ScriptedProvider([calls(("fetch", {})), text("done")])
    compression = Compression(max_context_tokens=380)
    async with Runtime(
        provider, tools=[fetch("word " * 330)], compression=compression, max_result_chars=5000
    ) as runtime:
        result = await runtime.run("go")
    assert result.ok
    assert [each.name for each in provider.requests[1].tools] == ["fetch", "read_result"]
    assert size(provider.requests[1]) <= 380


async def test_the_window_that_a_refusal_has_shown_holds_in_the_next_turn_also_where_no_turn_was_left_out() -> None:
    asked: list[int] = []

    def small(request: ModelRequest) -> Any:
        asked.append(size(request))
        if asked[-1] > 600:
            return too_long()
        return text("done") if isinstance(request.messages[-1], ToolMessage) else calls(("fetch", {}))

    async with Runtime(ScriptedProvider(small), tools=[fetch("word " * 700)]) as runtime:
        for _ in range(2):
            assert (await runtime.run("go", conversation_id="c")).ok
    assert [each > 600 for each in asked] == [False, True, False, False, False], "the model refuses once"


async def test_a_conversation_that_begins_anew_does_not_remember_the_one_before() -> None:
    provider = ScriptedProvider(lambda _request: text("well " * 60))
    compression = Compression(max_context_tokens=1000, summarizer=Fixed(*[Summary(text="The old one.")] * 9))
    store = MemoryStore(max_conversations=1)
    async with Runtime(provider, compression=compression, store=store) as runtime:
        for _ in range(12):
            await runtime.run("question " * 9, conversation_id="c", history=None)
        await runtime.run("else", conversation_id="other")
        await runtime.run("hello", conversation_id="c", history=talk(3)[:-1])
    assert "The old one" not in str(provider.requests[-1].messages[0])
    assert len(sent(provider)) == 7


async def test_late_results_are_read_though_all_older_turns_have_left() -> None:
    provider = ScriptedProvider([*[text("well " * 60)] * 8, calls(("slow", {})), text("gave up"), text("here")])
    compression = Compression(max_context_tokens=400)
    bus = EventBus()
    slow = fetch()
    slow = Tool("slow", "", {"type": "object", "properties": {}}, slow.handler, external=True, validate=lambda _: None)
    held: list[Any] = []
    async with Runtime(
        provider,
        tools=[slow],
        bus=bus,
        compression=compression,
        late_results="next_turn",
        limits=Limits(tool_timeout_seconds=1),
    ) as runtime:
        bus.connect(ToolCallRequested, held.append)
        for _ in range(9):
            await runtime.run("question " * 9, conversation_id="c")
        bus.publish(held[0].completed("the news"))
        await anyio.sleep(1)
        result = await runtime.run("question " * 150, conversation_id="c")
    assert result.ok
    notes = [each.text for each in sent(provider) if isinstance(each, SystemMessage)]
    assert any("the news" in each for each in notes)
    assert not any(isinstance(each, ToolMessage) for each in sent(provider))


# ------------------------------------------------------------------------------------------------- calibration


@pytest.mark.repeats("each turn does what the one before it did")
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)  # What is counted does not depend on the loop.
@pytest.mark.parametrize("factor", [0.3, 1.0, 3.9])
@pytest.mark.parametrize("overhead", [0, 700])
async def test_the_window_is_kept_by_the_model_s_own_count_after_the_first_reports(
    factor: float, overhead: int, anyio_backend: object
) -> None:
    """Input that was read from a cache is part of what is reported."""
    window = 6000
    true: list[float] = []

    def model(request: ModelRequest) -> Any:
        true.append(overhead + factor * size(request))
        tokens = int(true[-1])
        return text("well " * 40, usage=Usage(input_tokens=tokens, cached_tokens=tokens * 9 // 10))

    async with Runtime(ScriptedProvider(model), compression=Compression(max_context_tokens=window)) as runtime:
        for turn in range(150 if factor < 1 else 90):
            assert (await runtime.run(f"question {turn} " * 20, conversation_id="c")).ok
    assert max(true[20:]) <= window * 1.02
    assert max(true[20:]) > window * 0.6


async def test_a_provider_that_reports_nothing_teaches_nothing() -> None:
    provider = ScriptedProvider(lambda _request: text("well " * 40))
    async with Runtime(provider, compression=Compression(max_context_tokens=2000)) as runtime:
        for turn in range(30):
            assert (await runtime.run(f"question {turn} " * 20, conversation_id="c")).ok
    assert 1000 < max(map(size, provider.requests)) <= 2000


async def test_sub_requests_learn_with_the_request_above() -> None:
    def model(request: ModelRequest) -> Any:
        return text("well", usage=Usage(input_tokens=2 * size(request)))

    compression = Compression(max_context_tokens=5000)
    async with Runtime(ScriptedProvider(model), compression=compression) as runtime:
        helper = runtime.as_tool("ask", "Ask.")
        asking = ScriptedProvider([calls(*[("ask", {"task": "word " * 300})] * 3), text("done")], vendor="above")
        result = await runtime.run("go", provider=asking, tools=[helper])
        assert result.ok, result.timeline()
        session = runtime.start("more", conversation_id="d")
        learned = session.snapshot().view.window.calibration
        assert learned is not None
        assert learned.overhead("scripted:") + learned.factor("scripted:") * 300 > 450
        await session.result()


def test_the_estimate_knows_the_instructions_as_a_message() -> None:
    assert estimate_message(SystemMessage(text="Be brief.")) > estimate_text("Be brief.")
