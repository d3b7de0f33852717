"""Requests that have ended can be asked for a while, and are few objects and bounded bytes until then."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from support.watchdog import MAX_SECONDS, cpu_seconds
from toolbus import Limits, Runtime, ToolResult, tool
from toolbus.errors import ConfigurationError, ProviderUnavailable, UnknownRequest
from toolbus.events import Artifact, ModelResponded, RoundStarted, ToolCallCompleted
from toolbus.messages import AssistantMessage, ToolCall, UserMessage
from toolbus.providers.scripted import ScriptedProvider, calls, error, text
from toolbus.runtime._ended import _count_values  # pyright: ignore[reportPrivateUsage]
from toolbus.stores.memory import MemoryStore
from toolbus.testing import advance, virtual_backend


@tool
def look_up(city: str) -> str:
    """Look up a city."""
    return f"{city} is sunny"


SCRIPT = [calls(("look_up", {"city": "Paris"}), text="Let me see."), text("It is sunny.", 3)]


@pytest.mark.parametrize("seconds", [60.0, 0.0])
async def test_a_request_that_has_ended_can_be_had_for_a_while(seconds: float) -> None:
    async with Runtime(ScriptedProvider([text("Hello.")]), keep_ended_seconds=seconds) as runtime:
        result = await runtime.run("Hi")
        assert runtime.session(result.request_id) is None
        assert await runtime.recall(result.request_id) == (result if seconds else None)
        found = runtime.request(result.request_id)
        if seconds:
            assert [type(each) async for each in found.events(RoundStarted)] == [RoundStarted]
            assert await found.result() == result
            assert await found.cancel() == "ended"
        else:
            with pytest.raises(UnknownRequest):
                await found.result()
            assert await found.cancel() == "unknown"


class Answer(BaseModel):
    city: str
    warm: bool


class Anything:
    """A value without a JSON form."""

    @staticmethod
    def instructions(_context: object) -> str:
        raise RuntimeError("no instructions")


@tool
def fail(city: str) -> str:
    """Fail."""
    raise RuntimeError(city)


@tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


ENDED: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "completed": (SCRIPT, {"history": [UserMessage(content="Hi"), AssistantMessage(text="Hello.")]}),
    "output": ([text('{"city": "Paris", "warm": true}')], {"output": Answer, "output_mode": "native"}),
    "output by a tool": ([calls(("final_answer", {"city": "Paris", "warm": False}))], {"output": Answer}),
    "stopped": ([calls(("fail", {"city": "Rome"}))] * 3, {"limits": Limits(max_rounds=2, on_limit="stop")}),
    "failed": ([error(ProviderUnavailable("away"))] * 9, {"limits": Limits(max_model_attempts=1)}),
    "denied": ([calls(("pay", {"amount": 3})), text("No.")], {"metadata": {"user": 7}}),
    "secret": ([calls(("look_up", {"city": "Paris"})), text("Done.")], {"secrets": [("key", "Paris-it-is")]}),
    "not JSON": (SCRIPT, {"metadata": {"it": Anything()}}),
    "broken": ([text("Never.")], {"instructions": Anything.instructions}),
}


@pytest.mark.parametrize("case", ENDED)
async def test_a_session_that_has_ended_gives_the_same_afterwards(case: str) -> None:
    script, options = ENDED[case]
    model = ScriptedProvider(script, native_output="with_tools" if case == "output" else "")
    async with Runtime(model, tools=[look_up, fail, pay]) as runtime:
        session = runtime.start("How is Paris?", **options)
        result = await session.result()
        runtime.tools.remove("look_up")
        found = runtime._requests.ended.get(session.request_id)  # pyright: ignore[reportPrivateUsage]
        assert found is not None
        assert (found is session) is (case == "not JSON"), "all others are kept as JSON, which is small"
        again = await found.result()
        assert replace(again, error=None) == replace(result, error=None)
        assert (type(again.error), str(again.error)) == (type(result.error), str(result.error))
        assert [each.text for each in again.messages] == [each.text for each in result.messages]
        assert [each async for each in found.events()] == [each async for each in session.events()]
        assert "".join([each async for each in found.text()]) == "".join([each async for each in session.text()])
        assert found.status == session.status
        assert [*found.messages] == [*session.messages]
        assert (found.spent, found.metadata) == (session.spent, session.metadata)
        assert not found.cancel()
        assert not found.steer("Faster.")
        assert found.ended
        assert repr(found) == repr(session)
        await found.accepted()
        assert not runtime.pending_approvals()
        with pytest.raises(ConfigurationError, match="runs once"):
            await found.run()


async def test_ended_requests_are_few_objects_for_the_garbage_collector() -> None:
    """A process that has served thousands of requests would otherwise spend half of its time in full collections."""
    model = ScriptedProvider(SCRIPT * 220, record=False)
    async with Runtime(model, tools=[look_up], store=MemoryStore(max_conversations=1)) as runtime:

        async def tracked(count: int) -> int:
            for _ in range(count):
                await runtime.run("How is Paris?")
            gc.collect()
            return len(gc.get_objects())

        before = await tracked(20)
        assert await tracked(200) - before < 200 * 8


async def test_ended_requests_are_bounded_in_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolbus.runtime._ended._MAX_REQUESTS", 3)
    async with Runtime(ScriptedProvider([text("x")] * 4 + [text("x" * 50_000)] * 2)) as runtime:
        ids = [(await runtime.run("Hi")).request_id for _ in range(4)]
        assert [await runtime.recall(each) is not None for each in ids] == [False, True, True, True]
        monkeypatch.setattr("toolbus.runtime._ended._MAX_BYTES", 150_000)
        large = [(await runtime.run("Hi")).request_id for _ in range(2)]
        assert [await runtime.recall(each) is not None for each in [*ids, *large]] == [False] * 5 + [True]


@pytest.mark.parametrize("anyio_backend", [virtual_backend("asyncio")], ids=["asyncio"])
async def test_all_ended_requests_whose_time_is_over_are_dropped() -> None:
    async with Runtime(ScriptedProvider([text("x")] * 2), keep_ended_seconds=60) as runtime:
        ids = [(await runtime.run("Hi")).request_id for _ in range(2)]
        await advance(59)
        assert await runtime.recall(ids[0]) is not None
        await advance(2)
        assert await runtime.recall(ids[1]) is None


async def test_requests_whose_facts_are_no_json_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept as they are."""
    monkeypatch.setattr("toolbus.runtime._ended._MAX_BYTES", 5_000)
    async with Runtime(ScriptedProvider([text("x")] * 3)) as runtime:
        ids = [(await runtime.run("Hi", metadata={"object": object()})).request_id for _ in range(3)]
        assert [await runtime.recall(each) is not None for each in ids] == [False, False, True]


async def test_a_request_that_ends_twice_in_a_process_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolbus.runtime._ended._MAX_BYTES", 150_000)
    async with Runtime(ScriptedProvider([text("x" * 50_000)])) as runtime:
        session = runtime.start("Hi")
        await session.result()
        ended: Any = runtime._requests.ended  # pyright: ignore[reportPrivateUsage]
        ended.add(session, session.snapshot())
        assert await runtime.recall(session.request_id) is not None


@pytest.mark.guarantee("G14")
@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
async def test_a_request_with_a_long_reply_is_kept_without_a_pause_of_the_loop() -> None:
    async with Runtime(ScriptedProvider([text('\\"' * 2**22)])) as runtime:
        session = runtime.start("Hi")
        result = await session.result()
        ended: Any = runtime._requests.ended  # pyright: ignore[reportPrivateUsage]
        assert cpu_seconds(lambda: ended.add(session, session.snapshot())) < MAX_SECONDS
        assert await runtime.recall(session.request_id) == result


@tool
def draw(shapes: list[Any]) -> ToolResult:
    """Draw shapes."""
    return ToolResult(message="Drawn.", artifacts=(Artifact(name="picture", content='"' * 2**21),))


@pytest.mark.guarantee("G14")
async def test_a_request_with_a_long_artifact_is_kept_as_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its values are counted, too: the text of an empty object is a small part of the object."""
    script = [calls(("draw", {"shapes": [dict[str, int]()] * 20_000})), text("Done.")]
    async with Runtime(ScriptedProvider(script * 2), tools=[draw]) as runtime:
        session = runtime.start("Draw.")
        result = await session.result()
        ended: Any = runtime._requests.ended  # pyright: ignore[reportPrivateUsage]
        assert ended.get(session.request_id) is session
        assert await runtime.recall(session.request_id) == result
        monkeypatch.setattr("toolbus.runtime._ended._MAX_BYTES", 8 * 2**20)
        await runtime.run("Draw.")
        assert ended.get(session.request_id) is None


def test_the_values_of_arguments_and_of_the_data_of_results_are_counted() -> None:
    about: Any = {"request_id": "r", "call_id": "c", "name": "f", "content": '[1, {"a": [2, 3]}]'}
    message = AssistantMessage(tool_calls=(ToolCall(call_id="c", name="f", arguments='{"b": [1, 2]}'),))
    asked = ModelResponded(request_id="r", round=0, message=message)
    assert _count_values([asked]) == 3
    assert _count_values([ToolCallCompleted(**about, data=[1])]) == 5
    assert _count_values([ToolCallCompleted(**about, data="text")]) == 0
    assert _count_values([asked, ToolCallCompleted(**about, data={})]) == 8
