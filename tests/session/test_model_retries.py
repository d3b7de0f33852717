"""What happens when a provider fails: bounded retries with backoff, then the next provider, in virtual time."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from toolbus import EventBus, Interceptor, Limits, RequestSession, Runtime, ToolContext
from toolbus.core.backoff import backoff_seconds
from toolbus.core.transcript import validate
from toolbus.errors import (
    ConfigurationError,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
)
from toolbus.events import ModelRetrying
from toolbus.interceptors import Ask
from toolbus.messages import AssistantMessage, Usage
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.testing import ScriptedProvider, error, hang, text, virtual_backends

anyio_backend = virtual_backends()


def unavailable(retry_after_seconds: float | None = None) -> Any:
    return error(
        ProviderUnavailable(
            "overloaded", vendor="test", status=503, retryable=True, retry_after_seconds=retry_after_seconds
        )
    )


async def carry_out(provider: Any, **limits: Any) -> tuple[Any, list[ModelRetrying], float]:
    bus = EventBus()
    retried: list[ModelRetrying] = []
    bus.connect(ModelRetrying, retried.append)
    began = anyio.current_time()
    result = await RequestSession(bus, provider, "hi", limits=Limits(**limits)).run()
    validate(result.messages)
    return result, retried, anyio.current_time() - began


@pytest.mark.guarantee("G28")
async def test_a_provider_that_is_overloaded_is_asked_again_after_a_growing_wait() -> None:
    result, retried, seconds = await carry_out(ScriptedProvider([unavailable(), unavailable(), text("here")]))
    assert (result.outcome, result.text, result.error) == ("completed", "here", None)
    assert [(event.reason, event.vendor) for event in retried] == [("provider_unavailable", "scripted")] * 2
    first, second = (event.delay_seconds for event in retried)
    assert 0.25 <= first <= 0.5
    assert 0.5 <= second <= 1
    assert seconds == pytest.approx(first + second, abs=1e-3)
    assert result.rounds == 1


class AsksTwice(Interceptor):
    """Asks the model twice, and returns the second reply."""

    async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
        await ask(request)
        return await ask(request)


async def test_a_reply_counts_if_its_interceptor_failed_afterwards_and_is_asked_again() -> None:
    used = Usage(input_tokens=5, output_tokens=100)
    one = text("one", usage=used)
    for most in (1_000, 99):
        retried: list[ModelRetrying] = []
        bus, model = EventBus(), ScriptedProvider([one, unavailable(), one, one])
        bus.connect(ModelRetrying, retried.append)
        limits = Limits(max_output_tokens=most)
        result = await RequestSession(bus, model, "hi", limits=limits, interceptors=[AsksTwice()]).run()
        if most == 1_000:
            assert [(each.usage, each.vendor, each.model) for each in retried] == [(used, "scripted", "script")]
            assert (result.text, result.usage.output_tokens, result.trace[0].usage.output_tokens) == ("one", 300, 300)
        else:
            assert not retried
            assert (result.outcome, result.reason) == ("stopped", "max_output_tokens=99")
            assert result.usage == used


@pytest.mark.guarantee("G28")
async def test_the_wait_that_the_server_asks_for_is_honoured() -> None:
    result, retried, seconds = await carry_out(ScriptedProvider([unavailable(20), text("here")]))
    assert (result.text, retried[0].delay_seconds) == ("here", 20)
    assert seconds == pytest.approx(20, abs=1e-3)


@pytest.mark.guarantee("G28")
async def test_a_wait_past_the_request_s_deadline_is_not_begun() -> None:
    result, retried, seconds = await carry_out(ScriptedProvider([unavailable(700)]))
    assert (result.outcome, result.reason, retried, seconds) == ("failed", "provider_unavailable", [], 0)
    assert result.error is not None
    assert result.error.retry_after_seconds == 700


@pytest.mark.guarantee("G28")
async def test_retries_are_bounded_and_the_last_error_is_the_request_s() -> None:
    script = ScriptedProvider([unavailable() for _ in range(5)])
    result, retried, _ = await carry_out(script, max_model_attempts=4)
    assert (result.outcome, len(retried), len(script.requests)) == ("failed", 3, 4)
    assert isinstance(result.error, ProviderUnavailable)


@pytest.mark.guarantee("G28")
@pytest.mark.parametrize("refusal", [ProviderRejected("bad key", status=401), ProviderError("odd")])
async def test_what_the_provider_refuses_is_not_asked_again(refusal: ProviderError) -> None:
    result, retried, seconds = await carry_out(ScriptedProvider([error(refusal), text("never")]))
    assert (result.outcome, result.error, retried, seconds) == ("failed", refusal, [], 0)


@pytest.mark.guarantee("G28")
async def test_a_model_that_does_not_answer_in_time_is_asked_again_with_its_whole_time() -> None:
    class SlowAtFirst:
        vendor = "slow"
        calls = 0

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            self.calls += 1
            if self.calls == 1:
                await anyio.sleep(1000)
            await anyio.sleep(9)
            return ModelReply(message=AssistantMessage(text="whole"))

    result, retried, seconds = await carry_out(SlowAtFirst(), model_timeout_seconds=10)
    assert (result.outcome, result.text, retried[0].reason) == ("completed", "whole", "provider_timeout")
    assert seconds == pytest.approx(10 + retried[0].delay_seconds + 9, abs=1e-3)


async def test_a_wait_before_the_next_attempt_outlasts_the_deadline_of_the_one_before() -> None:
    class LateRefusal:
        vendor = "slow"
        calls = 0

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            self.calls += 1
            if self.calls == 1:
                await anyio.sleep(9)
                raise ProviderUnavailable("overloaded", retryable=True, retry_after_seconds=20)
            return ModelReply(message=AssistantMessage(text="here"))

    result, retried, seconds = await carry_out(LateRefusal(), model_timeout_seconds=10)
    assert (result.outcome, result.text, len(retried)) == ("completed", "here", 1)
    assert seconds == pytest.approx(29, abs=1e-3)


async def test_a_model_that_never_answers_in_time_fails_by_name() -> None:
    class Silent:
        vendor = "silent"

        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            await anyio.sleep_forever()
            raise AssertionError

    result, retried, _ = await carry_out(Silent(), model_timeout_seconds=10)
    assert (result.outcome, result.reason, len(retried)) == ("failed", "provider_timeout", 2)
    assert isinstance(result.error, ProviderTimeout)


async def test_a_request_turns_to_its_next_provider_and_stays_with_it() -> None:
    first = ScriptedProvider([unavailable(), unavailable()])
    second = ScriptedProvider([text(""), text("from the second")])
    result, retried, _ = await carry_out([first, second], max_model_attempts=2)
    assert (result.outcome, result.text) == ("completed", "from the second")
    assert [(event.provider_index, event.reason) for event in retried] == [
        (0, "provider_unavailable"),
        (1, "provider_unavailable"),
        (1, "empty_reply"),
    ]
    assert retried[1].delay_seconds == 0, "the next provider is asked at once"
    first.assert_done()
    second.assert_done()


async def test_when_all_providers_fail_the_request_fails_with_the_last_one_s_error() -> None:
    providers = [ScriptedProvider([unavailable()]), ScriptedProvider([error(ProviderRejected("no such model"))])]
    result, _, _ = await carry_out(providers, max_model_attempts=1)
    assert (result.reason, str(result.error)) == ("provider_rejected", "no such model")


async def test_the_request_s_timeout_ends_a_series_of_retries() -> None:
    script = ScriptedProvider(lambda _request: unavailable(4))
    result, retried, seconds = await carry_out(script, max_model_attempts=50, timeout_seconds=10)
    assert (result.outcome, result.reason, len(retried)) == ("failed", "provider_unavailable", 2)
    assert seconds == pytest.approx(8, abs=1e-3)


async def test_a_cancel_ends_the_wait_at_once_and_steering_does_not() -> None:
    bus = EventBus()
    session = RequestSession(bus, ScriptedProvider([unavailable(60), text("never")]), "hi")
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await anyio.sleep(10)
        assert session.steer("hurry") is True
        await anyio.sleep(10)
        assert not session.ended
        session.cancel("enough")
        result = await session.result()
    assert (result.outcome, result.reason, anyio.current_time() < 21) == ("cancelled", "enough", True)


async def test_a_runtime_takes_providers_in_order_and_not_beside_one() -> None:
    async with Runtime(providers=[ScriptedProvider([unavailable()]), ScriptedProvider([text("second")])]) as runtime:
        result = await runtime.run("hi", limits=Limits(max_model_attempts=1))
        assert result.text == "second"
        other = await runtime.run("hi", providers=[ScriptedProvider([text("third")])])
        assert other.text == "third"
    with pytest.raises(ConfigurationError, match="providers="):
        Runtime(ScriptedProvider([]), providers=[ScriptedProvider([])])
    with pytest.raises(ConfigurationError, match="needs a provider"):
        RequestSession(EventBus(), [], "hi")


def test_waits_double_up_to_a_bound_and_differ_by_seed() -> None:
    waits = [backoff_seconds(attempts, "seed") for attempts in range(1, 9)]
    for wait, longest in zip(waits, [0.5, 1, 2, 4, 8, 8, 8, 8], strict=True):
        assert longest / 2 <= wait <= longest
    assert backoff_seconds(3, "a") == backoff_seconds(3, "a") != backoff_seconds(3, "b")
    assert backoff_seconds(10_000, "a") <= 8


async def test_the_timeline_shows_retries_and_a_model_that_did_not_answer() -> None:
    result, _, _ = await carry_out(ScriptedProvider([unavailable(), text(""), error(ProviderError("gone"))]))
    lines = [line.partition("s  ")[2] for line in result.timeline().splitlines()[1:]]
    assert lines[0] == "model did not answer"
    assert lines[1].startswith("  asked again: provider_unavailable: ")
    assert lines[2] == "  asked again: empty_reply: the model answered with neither text nor tool calls"
    assert lines[3].startswith("failed: provider_error: gone")
    assert result.trace[0].model_seconds is None


async def test_the_timeline_shows_how_long_a_model_took_that_was_asked_again() -> None:
    result, retried, seconds = await carry_out(ScriptedProvider([unavailable(), text("here")]))
    lines = [line.partition("s  ")[2] for line in result.timeline().splitlines()[1:]]
    assert lines[0] == f"model (script) answered in {seconds:.3f}s"
    assert lines[1].startswith("  asked again: provider_unavailable: ")
    assert tuple(result.trace[0].retries) == tuple(retried)


async def test_the_error_of_a_request_is_that_of_its_newest_model_call() -> None:
    slow = ProviderTimeout("the first call was slow", retryable=True)
    provider = ScriptedProvider([error(slow), hang()])
    result, _, _ = await carry_out(provider, max_model_attempts=2)
    assert (result.outcome, result.reason) == ("failed", "provider_timeout")
    assert isinstance(result.error, ProviderTimeout)
    assert "first" not in str(result.error)


@pytest.mark.guarantee("G28")
async def test_a_model_whose_stream_stands_still_is_asked_again() -> None:
    provider = ScriptedProvider([hang(after="Half of"), text("here")])
    result, retried, _ = await carry_out(provider, stream_idle_seconds=10)
    assert (result.outcome, result.text) == ("completed", "here")
    assert [(each.reason, "stalled" in each.error) for each in retried] == [("provider_timeout", True)]
