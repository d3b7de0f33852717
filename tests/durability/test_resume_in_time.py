"""The time of a request that goes on much later: its own by the wall clock, unless it is given anew."""

from __future__ import annotations

import pytest

from support.resuming import Lab, Scene, Wall, cut_off, facts_of, model, virtual_walls
from toolbus import Limits
from toolbus.events import RequestResumed, ToolCallRequested
from toolbus.testing import calls, text, virtual_backends

anyio_backend = virtual_backends()
wall = virtual_walls()


async def resumed_an_hour_later(wall: Wall, limits: Limits | None) -> tuple[str, str, int, RequestResumed, str]:
    """How it ends: outcome, reason, runs of its idempotent tool, the fact that it goes on, and the call's own reason."""
    script = [calls(("look", {"n": 2})), text("Done.")]
    looks = Scene(lambda: [model(*script)], options={"limits": Limits(timeout_seconds=60)})
    whole = await looks.whole()
    request_id = whole.result.request_id
    steps = next(n for n, entry in enumerate(whole.entries, 1) if isinstance(entry.facts[-1], ToolCallRequested))
    store = await cut_off(whole, steps)
    wall.put_to((await facts_of(store, request_id))[-1].at + 3_600)
    lab = Lab()
    async with looks.runtime(store, lab) as runtime:
        given = {} if limits is None else {"limits": limits}
        (session,) = await runtime.resume(options=lambda _request: given)
        result = await session.result()
    (fact,) = [each for each in await facts_of(store, request_id) if isinstance(each, RequestResumed)]
    return result.outcome, result.reason, len(lab.keys("look")), fact, result.tool_calls[0].reason


@pytest.mark.guarantee("G10", "G19")
async def test_its_time_is_over_when_it_comes_too_late(wall: Wall) -> None:
    outcome, reason, runs, fact, call = await resumed_an_hour_later(wall, None)
    assert (outcome, reason, runs) == ("stopped", "timeout_seconds=60", 0)
    assert (fact.timeout_seconds, call) == (None, "interrupted")


@pytest.mark.guarantee("G10", "G19")
async def test_limits_that_are_given_again_begin_its_time_anew(wall: Wall) -> None:
    outcome, reason, runs, fact, call = await resumed_an_hour_later(wall, Limits(timeout_seconds=30))
    assert (outcome, reason, runs) == ("completed", "", 1)
    assert (fact.timeout_seconds, call) == (30, "")
