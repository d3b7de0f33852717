"""Requests that are cut off behind any of their steps, and gone on with: each ends well, and reports all of it once."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from support.resuming import Lab, Scene, assert_goes_on_everywhere, cut_off, model, virtual_walls
from toolbus import Compression, Limits, ModelSettings, Price, Runtime, ToolResult, sub_request_tool
from toolbus.core.compression import StubOldQueries
from toolbus.errors import NativeOutputUnsupported, ProviderUnavailable
from toolbus.events import ApprovalRequested
from toolbus.messages import Usage, UserMessage, from_openai
from toolbus.protocols import ModelRequest, OutputMode
from toolbus.providers.scripted import Step
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, calls, error, text, virtual_backends
from toolbus.toolsets.control import task_complete, update_plan

anyio_backend = virtual_backends()
wall = virtual_walls()
pytestmark = pytest.mark.guarantee("G08", "G19")

SPENT = Usage(input_tokens=100, output_tokens=10)


class Receipt(BaseModel):
    number: int


class People:
    """Decide on each question, five seconds after it was asked; of `remember`, for good."""

    def __init__(self, *denied: str, remember: bool = False) -> None:
        self.denied, self.remember = denied, remember

    def __call__(self, runtime: Runtime) -> None:
        async def decide(asked: ApprovalRequested) -> None:
            await anyio.sleep(5)
            decided = asked.decided(approved=asked.name not in self.denied, by="Ada", remember=self.remember)
            runtime.bus.publish(decided)

        def hear(asked: ApprovalRequested) -> None:
            group: Any = vars(runtime)["_requests"].group
            group.start_soon(decide, asked)

        runtime.bus.connect(ApprovalRequested, hear)


def changed(limits: Limits) -> str:
    default = Limits()
    fields = [name for name in Limits.__slots__ if getattr(limits, name) != getattr(default, name)]
    return ",".join(fields)


async def test_calls_side_by_side_and_in_order_with_some_that_cannot_run() -> None:
    scene = Scene(
        lambda: [
            model(
                calls(("pay", {"n": 1}), ("look", {"n": 2}), ("look", '{"n": '), ("nothing", {}), usage=SPENT),
                calls(("step_on", {"n": 1}), ("sure_step", {"n": 2}), ("step_on", {"n": 3}), ("pay", {"n": 4})),
                calls(("look", {"n": 5}), ("look", {"n": 6}), text="Nearly there.", usage=SPENT),
                text("Done.", usage=SPENT),
            )
        ],
        options={"metadata": {"tenant": "t1"}, "note_failures": True},
    )
    assert await assert_goes_on_everywhere(scene, again=True) >= 50


@pytest.mark.guarantee("G26")
async def test_questions_to_people_are_asked_again_and_answers_count_once() -> None:
    scene = Scene(
        lambda: [
            model(
                calls(("wipe", {"n": 1}), ("look", {"n": 2}), ("wipe", {"n": 3})),
                calls(("wipe", {"n": 4}), ("step_on", {"n": 5})),
                text("Wiped."),
            )
        ],
        people=People(),
    )
    assert await assert_goes_on_everywhere(scene) > 8


@pytest.mark.guarantee("G26")
async def test_decisions_that_are_to_be_remembered_are() -> None:
    script = [calls(("wipe", {"n": 1})), calls(("wipe", {"n": 2}), ("wipe", {"n": 3})), text("Over.")]
    for people in (People(remember=True), People("wipe", remember=True)):
        assert await assert_goes_on_everywhere(Scene(lambda: [model(*script)], people=people)) > 3


async def test_retries_wait_as_long_as_they_have_to_and_a_second_provider_is_stayed_with() -> None:
    def models() -> list[Any]:
        down = error(ProviderUnavailable("busy", retryable=True))
        first = model(calls(("look", {"n": 1})), down, down, down, vendor="first")
        return [first, model(down, calls(("look", {"n": 2})), text("Here I am."), vendor="second")]

    assert await assert_goes_on_everywhere(Scene(models, options={"limits": Limits(max_model_attempts=2)})) > 4


async def test_what_was_said_to_a_request_and_its_plan_stay() -> None:
    async def meddle(runtime: Runtime, session: Any) -> None:
        await anyio.sleep(1)
        session.steer("And be quick.")

    steps = [{"text": "pay", "status": "active"}, {"text": "rest"}]
    scene = Scene(
        lambda: [
            model(
                calls(("update_plan", {"steps": steps}), ("pay", {"n": 1})),
                calls(("look", {"n": 1})),
                calls(("task_complete", {"answer": "All paid."})),
            )
        ],
        tools=lambda lab: [*lab.standard(), update_plan, task_complete],
        meddle=meddle,
        exact=False,
    )
    assert await assert_goes_on_everywhere(scene) > 4


@pytest.mark.parametrize("wanted", [None, Receipt])
async def test_a_direct_result_is_the_answer_after_a_restart_unless_its_call_was_interrupted(wanted: Any) -> None:
    receipt = ToolResult(message="Paid: 7.", data={"number": 7})
    last = calls(("final_answer", {"number": 0})) if wanted else text("It may be paid.")
    scene = Scene(
        lambda: [
            model(
                calls(("look", {"n": 1}), ("sure_receipt", {}), text="I look."),
                calls(("receipt", {}), text="I pay."),
                last,
            )
        ],
        tools=lambda lab: [
            *lab.standard(),
            lab.tool("receipt", 2, receipt, return_direct=True),
            lab.tool("sure_receipt", 2, receipt, return_direct=True, idempotent=True),
        ],
        options={"output": wanted} if wanted else {},
        again={"output": wanted} if wanted else {},
    )
    assert await assert_goes_on_everywhere(scene, idempotent=("look", "sure_receipt")) == 4
    whole = await scene.whole()
    assert (whole.result.text, whole.result.rounds) == ("Paid: 7.", 2)


async def test_a_cancel_that_was_asked_for_before_is_carried_out() -> None:
    async def meddle(runtime: Runtime, session: Any) -> None:
        await anyio.sleep(1)
        session.cancel("enough")

    scene = Scene(
        lambda: [model(calls(("pay", {"n": 1}), ("look", {"n": 2})), text("Done."))], meddle=meddle, exact=False
    )
    assert await assert_goes_on_everywhere(scene) >= 2


async def test_long_results_are_read_on_in_and_old_ones_are_shortened() -> None:
    def models() -> list[Any]:
        def reply(request: Any) -> Any:
            results = [each for each in request.messages if each.role == "tool"]
            if not results:
                return calls(("fetch", {"n": 1}))
            if len(results) < 3:
                assert "read_result" in [each.name for each in request.tools]
                return calls(("read_result", {"call_id": results[0].call_id, "offset": 4_000 * len(results)}))
            return text("Read.")

        return [ScriptedProvider(reply)]

    scene = Scene(models, options={"max_result_chars": 1_000, "compression": Compression(policies=[StubOldQueries(1)])})
    assert await assert_goes_on_everywhere(scene) > 4


class Answer(BaseModel):
    sum: int


def no_tools(_lab: Lab) -> list[Any]:
    return []


async def test_a_structured_output_is_repaired_no_more_often_than_before() -> None:
    scene = Scene(
        lambda: [model(calls(("look", {"n": 1})), text("42?"), text("43?"), calls(("final_answer", {"sum": 42})))],
        options={"output": Answer},
        again={"output": Answer},
    )
    assert await assert_goes_on_everywhere(scene) > 4
    scene = Scene(
        lambda: [model(text("41?"), text("42?"), text("43?"))], options={"output": Answer}, again={"output": Answer}
    )
    assert await assert_goes_on_everywhere(scene) >= 2


async def test_a_native_output_is_asked_for_natively_where_the_request_goes_on() -> None:
    seen: list[ScriptedProvider] = []

    def models() -> list[ScriptedProvider]:
        seen.append(model(text("42?"), text('{"sum": 42}'), native_output="alone"))
        return seen[-1:]

    scene = Scene(models, tools=no_tools, options={"output": Answer}, again={"output": Answer})
    assert await assert_goes_on_everywhere(scene) >= 2
    asked = [request for each in seen for request in each.requests]
    assert len(asked) > 4
    assert all(request.output_schema is not None for request in asked)


@pytest.mark.parametrize(("mode", "other"), [("auto", "tool"), ("tool", "auto")])
async def test_the_mode_of_the_output_stays_that_of_the_request(mode: OutputMode, other: OutputMode) -> None:
    answer = text('{"sum": 42}') if mode == "auto" else calls(("final_answer", {"sum": 42}))
    scene = Scene(
        lambda: [model(answer, native_output="alone")],
        tools=no_tools,
        options={"output": Answer, **({} if mode == "auto" else {"output_mode": mode})},
    )
    store = await cut_off(await scene.whole(), 1)
    again = model(answer, native_output="alone")
    async with Runtime(again, store=store, output_mode=other) as runtime:
        (session,) = await runtime.resume(options=lambda _record: {"output": Answer})
        assert (await session.result()).output == Answer(sum=42)
    assert [request.output_schema is not None for request in again.requests] == [mode == "auto"]


async def test_a_server_that_refused_the_schema_is_not_asked_for_it_again_where_the_request_goes_on() -> None:
    refused = error(NativeOutputUnsupported("no schemas here", status=400))
    seen: list[ScriptedProvider] = []

    def models() -> list[ScriptedProvider]:
        def reply(request: ModelRequest) -> Step:
            return refused if request.output_schema is not None else calls(("final_answer", {"sum": 42}))

        seen.append(ScriptedProvider(reply, native_output="alone"))
        return seen[-1:]

    scene = Scene(models, tools=no_tools, options={"output": Answer}, again={"output": Answer})
    assert await assert_goes_on_everywhere(scene) >= 2
    natively = [sum(request.output_schema is not None for request in each.requests) for each in seen]
    assert natively[0] == 1
    assert 0 in natively[1:], "whoever goes on behind the refusal asks for a call at once"


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_rounds=2),
        Limits(max_tool_calls=3),
        Limits(max_repeats=1),
        Limits(max_facts=13),
        Limits(max_journal_bytes=3_000),
        Limits(max_input_tokens=250),
        Limits(max_cost=0.025),
        Limits(max_consecutive_errors=2),
        Limits(max_rounds=2, on_limit="stop"),
        Limits(stop_on=frozenset({"unknown_tool"})),
        Limits(timeout_seconds=5.5),
    ],
    ids=lambda limits: changed(limits),
)
async def test_a_limit_stops_where_it_would_have_stopped(limits: Limits) -> None:
    wrong: tuple[str, dict[str, int]] = (
        ("nothing", {}) if limits.stop_on or limits.max_consecutive_errors == 2 else ("look", {"n": 1})
    )
    scene = Scene(
        lambda: [
            model(
                calls(("look", {"n": 1}), ("look", {"n": 1}), usage=SPENT),
                calls(("look", {"n": 2}), wrong, usage=SPENT),
                calls(("look", {"n": 3}), wrong, usage=SPENT),
                text("All looked at.", usage=SPENT),
            )
        ],
        options={"limits": limits, "prices": {"*": Price(input_per_million=100.0, output_per_million=10.0)}},
        exact=limits.timeout_seconds > 100,  # the time goes on while nobody runs, and what is said of it
    )
    assert await assert_goes_on_everywhere(scene) >= 2


async def test_a_request_within_a_request_is_interrupted_and_its_pauses_end() -> None:
    def tools(lab: Lab) -> list[Any]:
        def reply(request: Any) -> Any:
            return calls(("wipe", {"n": 1})) if len(request.messages) == 1 else text("Wiped inside.", usage=SPENT)

        inner = ScriptedProvider(reply, vendor="inner")
        handed = sub_request_tool(
            "hand_over", "Hand it over.", provider=inner, tools=[lab.tool("wipe", needs_approval=True)]
        )
        return [*lab.standard(), handed]

    scene = Scene(
        lambda: [model(calls(("hand_over", {"task": "wipe"}), ("look", {"n": 2}), usage=SPENT), text("So be it."))],
        tools=tools,
        people=People(),
    )
    assert await assert_goes_on_everywhere(scene) >= 5


@pytest.mark.parametrize("given", [False, True], ids=["stored", "given"])
async def test_a_conversation_is_gone_on_with_from_where_it_was(*, given: bool) -> None:
    earlier = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": None, "tool_calls": [_call("a", "look")]},
        {"role": "tool", "tool_call_id": "a", "content": "seen"},
        {"role": "assistant", "content": "Hello!"},
    ]

    async def before(store: MemoryStore) -> None:
        if not given:
            await store.remember("c", from_openai(earlier))
            await store.remember("c", [UserMessage(content="A turn that nobody answered.")])

    scene = Scene(
        lambda: [model(calls(("look", {"n": 1}), ("pay", {"n": 2})), text("Done."))],
        before=before,
        options={
            "instructions": "Be brief.",
            "settings": ModelSettings(temperature=0.5),
            **({"history": earlier} if given else {}),
        },
    )
    assert await assert_goes_on_everywhere(scene) >= 3


def _call(call_id: str, name: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}
