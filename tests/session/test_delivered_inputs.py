"""Inputs that come from another process through `deliver`: whose they are, and when they count."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from toolbus import Runtime
from toolbus.errors import BusError
from toolbus.events import CancelRequested, DeadLetter, Event, SteeringAdded
from toolbus.messages import UserMessage
from toolbus.testing import ScriptedProvider, hang, settle, text, virtual_backends

anyio_backend = virtual_backends()


def steer(request_id: str) -> Event:
    return SteeringAdded(request_id=request_id, text="in Rome")


def cancel(request_id: str) -> Event:
    return CancelRequested(request_id=request_id)


@pytest.mark.parametrize("given", [steer, cancel])
async def test_an_input_of_another_request_is_refused_and_changes_nothing(given: Callable[[str], Event]) -> None:
    async with Runtime(ScriptedProvider([hang(), hang()])) as runtime:
        session, other = runtime.start("Weather?"), runtime.start("Time?")
        await settle()
        heard: list[Event] = []
        runtime.bus.connect(Event, heard.append)
        with pytest.raises(BusError, match=f"an input of request '{other.request_id}' was given to request"):
            session.deliver(given(other.request_id))
        await settle()
        assert (heard, session.ended) == ([], False)
        assert session.cancel()
        assert other.cancel()


async def test_an_input_counts_that_comes_before_its_request_has_begun() -> None:
    provider = ScriptedProvider([text("It rains.")])
    async with Runtime(provider) as runtime:
        lost: list[DeadLetter] = []
        runtime.bus.connect(DeadLetter, lost.append)
        session = runtime.start("Weather?")
        assert session.deliver(steer(session.request_id))
        assert (await session.result()).ok
    asked = [each.text for each in provider.requests[0].messages if isinstance(each, UserMessage)]
    assert (asked, lost) == (["Weather?", "in Rome"], [])
