"""A client that reads as fast as its server sends holds up no other task, however much it is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
from starlette.responses import Response

from support.watchdog import MAX_SECONDS, watching
from toolbus.events import Event, RequestStarted, ToolCallCompleted, ToolCallProgress
from toolbus.tool_results import MAX_RESULT_BYTES
from toolbus.web import AguiResponse, ClientRequest, EventsResponse, TextResponse, VercelResponse

ALL: dict[str, Callable[[Any], Response]] = {
    "events": EventsResponse,
    "text": TextResponse,
    "vercel": VercelResponse,
    "ag-ui": lambda source: AguiResponse(source, ClientRequest(conversation_id="thread", run_id="run")),
}


class Ready:
    """A request whose events are all there already."""

    request_id = "r1"
    cursor = "1.0"

    def __init__(self, events: Iterator[Event]) -> None:
        self._events = events

    async def has_ended(self) -> bool:
        """Return whether the request has ended."""
        return False

    def events(self, *, after: str = "", capacity: int = 1_000) -> Any:
        return self

    def cancel(self, reason: str = "") -> None:
        """Nobody asks for it."""

    async def aclose(self) -> None:
        """Nothing is open."""

    def __aiter__(self) -> Ready:
        return self

    async def __anext__(self) -> Event:
        for event in self._events:
            return event
        raise StopAsyncIteration


def many() -> Iterator[Event]:
    yield RequestStarted(request_id="r1", timeout_seconds=9)
    for number in range(30_000):
        yield ToolCallProgress(request_id="r1", call_id=f"r1_0_{number}", name="look_up", message="It goes on.")


def large() -> Iterator[Event]:
    yield RequestStarted(request_id="r1", timeout_seconds=9)
    for number in range(8):
        content = '"' * (MAX_RESULT_BYTES // 4)
        yield ToolCallCompleted(request_id="r1", call_id=f"r1_0_{number}", name="look_up", content=content)


async def receive() -> Any:
    await anyio.sleep_forever()


@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
@pytest.mark.parametrize(
    ("kind", "events"), [*((kind, many) for kind in ALL), ("events", large)], ids=[*ALL, "events of megabytes"]
)
async def test_a_backlog_is_sent_without_holding_up_other_tasks(
    kind: str, events: Callable[[], Iterator[Event]]
) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    longest: list[float] = []
    for _ in range(3):  # Whatever else the machine does only adds to the time.
        async with watching() as watchdog:
            await ALL[kind](Ready(events()))({"type": "http", "method": "GET", "headers": []}, receive, send)
        longest.append(watchdog.longest)
        if min(longest) < MAX_SECONDS:
            break
    assert sent[-1] == "http.response.body"
    assert min(longest) < MAX_SECONDS
