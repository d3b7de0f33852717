"""The cost of an event that nobody listens to, that some listen to, or that is published beside many other listeners.

The event is built beforehand. A direct call is a call of the listener by its name, also in a loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from toolbus import EventBus
from toolbus.events import Event, StatusChanged, TextDelta, ToolCallProgress

from .plumbing import Effort, Row, alternate, compared, ratio_row, run

EVENTS, CROWD = 50_000, 1_000


def _listener(_event: Event) -> None:
    pass


async def _timed(work: Callable[[], object], count: int) -> float:
    """Microseconds of CPU time for each call of `work`, and for the loop around it."""
    started = time.process_time()
    for _ in range(count):
        work()
    return (time.process_time() - started) / count * 1e6


def _subscribed(bus: EventBus, count: int, stack: ExitStack, *, to_requests: bool) -> None:
    """Add listeners that want other types of events, or events of other requests."""
    for number in range(count):
        subscription = bus.subscribe(request_id=f"other{number}") if to_requests else bus.subscribe(TextDelta)
        stack.callback(subscription.open().close)
        if not to_requests:
            stack.callback(bus.connect(StatusChanged, _listener))


async def _figure(effort: Effort) -> list[Row]:
    count, crowd = effort.of(EVENTS, least=20), effort.of(CROWD, least=20)
    progress = ToolCallProgress(request_id="r1", conversation_id="c1", call_id="call_1", name="lookup")
    rows: list[Row] = []

    async def row(
        name: str,
        bus: EventBus,
        against: str,
        other: Callable[[], object],
        *,
        listeners: int = 1,
        goal: float | None = None,
    ) -> None:
        rounds = max(5, count // listeners)
        ours, theirs = await alternate(
            effort.repeats,
            lambda: _timed(lambda: bus.publish(progress), rounds),
            lambda: _timed(other, rounds),
        )
        figures = compared([each / listeners for each in ours], [each / listeners for each in theirs])
        rows.append(ratio_row(name, figures, against, goal=goal))

    silent = EventBus()
    await row("event without listeners", silent, "a direct call", lambda: _listener(progress))
    for listeners in (1, 10, crowd):
        bus = EventBus()
        for _ in range(listeners):
            bus.connect(ToolCallProgress, _listener)

        def directly(listeners: int = listeners) -> None:
            for _ in range(listeners):
                _listener(progress)

        if listeners == 1:
            await row("event with one listener", bus, "a direct call", lambda: _listener(progress))
        else:
            await row(f"event with {listeners:,} listeners, each", bus, "a direct call", directly, listeners=listeners)
    for to_requests in (False, True):
        what = "requests" if to_requests else "types"
        # The bus looks at the request as soon as anybody listens to one request, so the base has one such listener.
        base = 1 if to_requests else 0
        with ExitStack() as stack:
            few, many = EventBus(), EventBus()
            _subscribed(few, base, stack, to_requests=to_requests)
            _subscribed(many, crowd, stack, to_requests=to_requests)
            name = f"event beside {crowd:,} listeners to other {what}"
            await row(name, many, f"beside {base or 'none'}", lambda bus=few: bus.publish(progress), goal=1.2)
    return rows


def events(effort: Effort) -> list[Row]:
    """Measure the CPU time of publishing an event."""
    return run(_figure, effort)
