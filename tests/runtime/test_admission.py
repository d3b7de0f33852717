"""Requests past the runtime's places: how long they are told to wait."""

from __future__ import annotations

import anyio
import pytest

from toolbus import Runtime
from toolbus.errors import Overloaded
from toolbus.messages import AssistantMessage
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.testing import advance, settle, virtual_backends

anyio_backend = virtual_backends()


class Slow:
    """A model that takes as long as it is told to."""

    vendor = "slow"
    seconds = 10.0

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        await anyio.sleep(self.seconds)
        return ModelReply(message=AssistantMessage(text="done"))


@pytest.mark.parametrize(("seconds", "first", "waits"), [(0.1, 1, 1), (10, 2, 10), (100, 20, 60)])
async def test_whoever_is_refused_is_told_to_wait_as_long_as_places_took_to_become_free(
    seconds: float, first: float, waits: float
) -> None:
    model = Slow()
    model.seconds = seconds
    async with Runtime(model, max_sessions=1, max_queued=40, drain_seconds=0) as runtime:
        sessions = [runtime.start("go") for _ in range(41)]
        await settle()
        with pytest.raises(Overloaded) as caught:
            runtime.start("one too many")
        assert caught.value.retry_after_seconds == 1, "nobody knows yet how long it takes"
        await advance(seconds * 2.5)
        sessions += [runtime.start("go") for _ in range(2)]
        with pytest.raises(Overloaded) as caught:
            runtime.start("one too many")
        assert caught.value.retry_after_seconds == first, "the newest time counts a fifth"
        await advance(seconds * 28)
        sessions += [runtime.start("go") for _ in range(28)]
        with pytest.raises(Overloaded) as caught:
            runtime.start("one too many")
        assert caught.value.retry_after_seconds == waits
        assert caught.value.retryable
        for session in sessions:
            session.cancel()


async def test_the_time_in_which_nobody_waited_does_not_make_the_wait_longer() -> None:
    async with Runtime(Slow(), max_sessions=1, max_queued=1, drain_seconds=0) as runtime:
        for _ in range(3):
            sessions = [runtime.start("go"), runtime.start("go")]
            await advance(3_600)
            assert [each.ended for each in sessions] == [True, True]
        sessions = [runtime.start("go"), runtime.start("go")]
        with pytest.raises(Overloaded) as caught:
            runtime.start("one too many")
        assert caught.value.retry_after_seconds == 1
        for session in sessions:
            session.cancel()


async def test_a_full_queue_is_logged_once_until_there_was_a_place_again(caplog: pytest.LogCaptureFixture) -> None:
    async with Runtime(Slow(), max_sessions=1, max_queued=1, drain_seconds=0) as runtime:
        for times in (1, 2):
            sessions = [runtime.start("go"), runtime.start("go")]
            await settle()
            for _ in range(2):
                with pytest.raises(Overloaded):
                    runtime.start("one too many")
            for session in sessions:
                session.cancel()
            await settle()
            assert [each.getMessage() for each in caplog.records if "others are refused" in each.getMessage()] == [
                "1 requests run and 1 wait, so others are refused"
            ] * times
