"""The seven scenarios of sequential tool calling, each over a whole runtime, from the prompt to a follow-up turn."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from endings.ended_well import (
    assert_ended_well,
    assert_goes_on,
    assert_kept,
    assert_left_idle,
    assert_valid,
    facts,
    listen,
    of_request,
    stages,
)
from toolbus import Limits, RequestResult, Runtime, ToolError, tool
from toolbus.events import Event, ToolCallFailed, ToolCallRequested
from toolbus.messages import ToolMessage
from toolbus.protocols import ModelRequest
from toolbus.providers.scripted import Step
from toolbus.testing import ScriptedProvider, calls, text, virtual_backends

anyio_backend = virtual_backends()

ANALYZING = ("submitted", "Analyzing request...")
SELECTING = ("streaming", "Selecting appropriate tools...")
PROCESSING = ("processing", "Processing tool results...")
FORMULATING = ("streaming", "Formulating final response...")
DONE = ("complete", "Done")

CALL = ["round_started", "model_responded", "message_appended", "tool_call_requested"]
ANSWER = ["round_started", "model_responded", "message_appended", "request_completed"]
BEGIN = ["request_started", "message_appended"]
SETTLED = ["tool_call_completed", "message_appended"]
FAILED = ["tool_call_failed", "message_appended"]


def using(name: str) -> tuple[str, str]:
    return ("executing", f"Using {name}...")


def failed(name: str) -> tuple[str, str]:
    return ("processing", f"Tool {name} failed, trying alternative approach...")


def stopped(sentence: str) -> tuple[str, str]:
    return ("error", sentence)


# ------------------------------------------------------------------------------------------------- tools


@tool
async def find_user(name: str) -> int:
    """The id of a user."""
    await anyio.sleep(1)
    return len(name)


@tool
async def find_orders(user_id: int) -> list[int]:
    """The orders of a user."""
    await anyio.sleep(1)
    return [user_id * 100 + number for number in range(2)]


@tool
async def find_parcel(order_id: int) -> str:
    """The parcel of an order."""
    await anyio.sleep(1)
    return f"P{order_id}"


@tool(status="Asking where parcel {parcel} is")
async def track(parcel: str) -> dict[str, str]:
    """Where a parcel is."""
    await anyio.sleep(1)
    return {"parcel": parcel, "place": "Graz"}


@tool
async def read_cache(key: str) -> str:
    """Read the cache, which is down."""
    raise ToolError("the cache is down")


@tool
async def read_disk(key: str) -> str:
    """Read the disk."""
    return f"{key} from disk"


@tool
async def wait_long(seconds: float) -> str:
    """Wait."""
    await anyio.sleep(seconds)
    return "waited"


TOOLS = [find_user, find_orders, find_parcel, track, read_cache, read_disk, wait_long]


def given(reply: Callable[[str], Step]) -> Callable[[ModelRequest], Step]:
    """A step of the model that needs the newest result."""

    def step(request: ModelRequest) -> Step:
        newest = request.messages[-1]
        assert isinstance(newest, ToolMessage)
        return reply(newest.content)

    return step


@dataclass
class Scene:
    """A finished request, with what was heard of it."""

    result: RequestResult[Any]
    events: list[Event]
    provider: ScriptedProvider
    seconds: float
    steps: list[tuple[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        self.steps = stages(self.events)


async def play(script: Sequence[Any], **options: Any) -> Scene:
    """Run the script over a runtime; check what holds for every ending, and that the conversation goes on."""
    provider = ScriptedProvider(script)
    async with Runtime(provider, tools=TOOLS) as runtime:
        heard = listen(runtime.bus)
        began = anyio.current_time()
        result = await runtime.run("Where is Ada's parcel?", **options)
        seconds = anyio.current_time() - began
        events = of_request(heard, result.request_id)
        provider.assert_done()
        assert_ended_well(heard, result)
        assert_kept(heard, result)
        for request in provider.requests:
            assert_valid(request.messages)
        await assert_goes_on(runtime, result.conversation_id, result.messages)
    await assert_left_idle(runtime)
    return Scene(result, events, provider, seconds)


# ------------------------------------------------------------------------------------------------- scenarios


async def test_one_call_gives_the_answer() -> None:
    scene = await play([calls(("find_user", {"name": "Ada"})), text("Ada is number 3.")])
    result = scene.result
    assert (result.outcome, result.reason, result.text, result.rounds) == ("completed", "", "Ada is number 3.", 2)
    assert [(call.name, call.arguments, call.data) for call in result.tool_calls] == [("find_user", {"name": "Ada"}, 3)]
    assert facts(scene.events) == [*BEGIN, *CALL, *SETTLED, *ANSWER]
    assert scene.steps == [ANALYZING, SELECTING, using("Find User"), PROCESSING, FORMULATING, DONE]
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert scene.seconds == pytest.approx(1)


@pytest.mark.guarantee("G08")
async def test_four_calls_in_sequence_use_each_the_result_of_the_one_before() -> None:
    scene = await play([
        calls(("find_user", {"name": "Ada"})),
        given(lambda user: calls(("find_orders", {"user_id": int(user)}))),
        given(lambda orders: calls(("find_parcel", {"order_id": json.loads(orders)[1]}))),
        given(lambda parcel: calls(("track", {"parcel": parcel}))),
        given(lambda place: text(f"It is here: {place}")),
    ])  # fmt: skip
    result = scene.result
    assert result.text == 'It is here: {"parcel":"P301","place":"Graz"}'
    assert [(call.arguments, call.content) for call in result.tool_calls] == [
        ({"name": "Ada"}, "3"),
        ({"user_id": 3}, "[300,301]"),
        ({"order_id": 301}, "P301"),
        ({"parcel": "P301"}, '{"parcel":"P301","place":"Graz"}'),
    ]
    assert facts(scene.events) == [*BEGIN, *([*CALL, *SETTLED] * 4), *ANSWER]
    assert scene.steps == [
        ANALYZING, SELECTING, using("Find User"),
        PROCESSING, SELECTING, using("Find Orders"),
        PROCESSING, SELECTING, using("Find Parcel"),
        PROCESSING, SELECTING, ("executing", "Asking where parcel P301 is"),
        PROCESSING, FORMULATING, DONE,
    ]  # fmt: skip
    assert (result.rounds, scene.seconds) == (5, pytest.approx(4))


async def test_three_calls_in_sequence_of_several_at_once_keep_call_order() -> None:
    scene = await play([
        calls(("wait_long", {"seconds": 3}), ("find_user", {"name": "Ada"})),
        calls(("find_user", {"name": "Bo"}), ("wait_long", {"seconds": 2})),
        calls(("find_user", {"name": "Cleo"})),
        text("Three of them."),
    ])  # fmt: skip
    assert [call.content for call in scene.result.tool_calls] == ["waited", "3", "2", "waited", "4"]
    assert [message.content for message in scene.result.messages if isinstance(message, ToolMessage)] == [
        call.content for call in scene.result.tool_calls
    ]
    assert scene.seconds == pytest.approx(3 + 2 + 1)


@pytest.mark.guarantee("G09")
async def test_a_failure_is_recovered_from_by_another_way() -> None:
    scene = await play([
        calls(("read_cache", {"key": "parcel"})),
        given(lambda failure: calls(("read_disk", {"key": "parcel" if "the cache is down" in failure else "?"}))),
        given(lambda found: text(f"Found: {found}.")),
    ])  # fmt: skip
    result = scene.result
    assert (result.outcome, result.text) == ("completed", "Found: parcel from disk.")
    assert [(call.name, call.ok, call.reason) for call in result.tool_calls] == [
        ("read_cache", False, "error"),
        ("read_disk", True, ""),
    ]
    assert facts(scene.events) == [*BEGIN, *CALL, *FAILED, *CALL, *SETTLED, *ANSWER]
    assert scene.steps == [
        ANALYZING, SELECTING, using("Read Cache"), failed("Read Cache"), SELECTING, using("Read Disk"),
        PROCESSING, FORMULATING, DONE,
    ]  # fmt: skip


@pytest.mark.guarantee("G10")
async def test_at_the_maximum_of_rounds_the_model_gives_the_best_answer_there_is() -> None:
    scene = await play(
        [
            calls(("find_user", {"name": "Ada"}), text="I look Ada up."),
            calls(("find_user", {"name": "Bo"}), text="I look Bo up."),
            text("Ada is 3, Bo is 2; I did not get further."),
        ],
        limits=Limits(max_rounds=2),
    )
    result = scene.result
    assert (result.outcome, result.reason) == ("stopped", "max_rounds=2")
    assert result.text == "Ada is 3, Bo is 2; I did not get further."
    assert [len(request.tools) for request in scene.provider.requests] == [len(TOOLS), len(TOOLS), 0]
    assert facts(scene.events) == [*BEGIN, *([*CALL, *SETTLED] * 2), *ANSWER]
    assert scene.steps == [
        ANALYZING, FORMULATING, SELECTING, using("Find User"), PROCESSING, FORMULATING, SELECTING, using("Find User"),
        ("processing", "Formulating final response..."), FORMULATING, stopped("I stopped after 2 steps without finishing."),
    ]  # fmt: skip


@pytest.mark.guarantee("G10")
async def test_at_the_maximum_of_rounds_with_on_limit_stop_the_request_ends_with_the_last_text() -> None:
    scene = await play(
        [
            calls(("find_user", {"name": "Ada"}), text="I look Ada up."),
            calls(("find_user", {"name": "Bo"}), text="I look Bo up."),
        ],
        limits=Limits(max_rounds=2, on_limit="stop"),
    )
    result = scene.result
    assert (result.outcome, result.reason, result.text) == ("stopped", "max_rounds=2", "I look Bo up.")
    assert facts(scene.events) == [*BEGIN, *([*CALL, *SETTLED] * 2), "request_completed"]
    assert scene.steps[-2:] == [using("Find User"), stopped("I stopped after 2 steps without finishing.")]
    assert [message.role for message in result.messages][-2:] == ["assistant", "tool"]


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("on_limit", ["answer", "stop"])
async def test_three_errors_in_a_row_stop_and_report(on_limit: Any) -> None:
    failing = [calls(("read_cache", {"key": str(number)})) for number in range(3)]
    last = [text("The cache is down.")] if on_limit == "answer" else []
    scene = await play([*failing, *last], limits=Limits(on_limit=on_limit))
    result = scene.result
    assert (result.outcome, result.reason) == ("stopped", "max_consecutive_errors=3")
    assert result.text == ("The cache is down." if last else "")
    assert [call.error for call in result.tool_calls] == ["the cache is down"] * 3
    end = ANSWER if last else ["request_completed"]
    assert facts(scene.events) == [*BEGIN, *([*CALL, *FAILED] * 3), *end]
    assert scene.steps[-1] == stopped("I stopped because my tools failed 3 times in a row.")
    assert scene.steps[:5] == [ANALYZING, SELECTING, using("Read Cache"), failed("Read Cache"), SELECTING]


@pytest.mark.guarantee("G10")
async def test_a_success_between_errors_begins_the_count_anew() -> None:
    failing = [calls(("read_cache", {"key": str(number)})) for number in range(2)]
    again = [calls(("read_cache", {"key": f"again {number}"})) for number in range(2)]
    scene = await play([*failing, calls(("read_disk", {"key": "x"})), *again, text("From disk, then.")])
    assert scene.result.outcome == "completed"


@pytest.mark.guarantee("G10")
async def test_the_time_out_of_the_whole_ends_at_its_moment_and_keeps_what_was_done() -> None:
    scene = await play(
        [
            calls(("find_user", {"name": "Ada"}), text="I look Ada up."),
            calls(("find_user", {"name": "Bo"}), ("wait_long", {"seconds": 600})),
        ],
        limits=Limits(timeout_seconds=10),
    )
    result = scene.result
    assert (result.outcome, result.reason, result.text) == ("stopped", "timeout_seconds=10", "I look Ada up.")
    assert scene.seconds == pytest.approx(10)
    assert [(call.ok, call.reason) for call in result.tool_calls] == [(True, ""), (True, ""), (False, "timeout")]
    requested = [event for event in scene.events if isinstance(event, ToolCallRequested)]
    assert [event.timeout_seconds for event in requested] == [pytest.approx(10), pytest.approx(9), pytest.approx(9)]
    assert [event.call_id for event in scene.events if isinstance(event, ToolCallFailed)] == [requested[2].call_id]
    assert using("Wait Long") in scene.steps
    assert scene.steps[-1] == stopped("I stopped because it took longer than 10 seconds.")


async def test_without_need_of_tools_the_model_answers_at_once() -> None:
    scene = await play([text("Parcels are sent from Graz.")])
    result = scene.result
    assert (result.outcome, result.text, result.tool_calls, result.rounds) == (
        "completed",
        "Parcels are sent from Graz.",
        [],
        1,
    )
    assert facts(scene.events) == [*BEGIN, *ANSWER]
    assert scene.steps == [ANALYZING, FORMULATING, DONE]
    assert scene.seconds == 0
