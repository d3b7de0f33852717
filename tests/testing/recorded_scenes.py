"""Scenes to be recorded: real requests over a scripted model, each with something of its own that may go wrong.

    .venv/bin/python tests/testing/recorded_scenes.py FOLDER

writes those that are not in the folder yet. The recordings in tests/data/recordings were made in this way: see the README there.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import anyio
from pydantic import BaseModel

from toolbus import (
    Compression,
    Denied,
    EventBus,
    Interceptor,
    Limits,
    Price,
    RequestSession,
    Runtime,
    Summarizer,
    ToolContext,
    ToolResult,
    sub_request_tool,
    tool,
)
from toolbus.clock import wall_time_from
from toolbus.errors import ContextOverflow, NativeOutputUnsupported, ProviderUnavailable
from toolbus.events import ApprovalRequested, RoundStarted, ToolCallRequested
from toolbus.events.ids import ids_from
from toolbus.interceptors import Ask
from toolbus.messages import ImagePart, SystemMessage, ToolMessage, Usage, UserMessage
from toolbus.protocols import Emit, ModelReply, ModelRequest, OutputMode, ToolSpec
from toolbus.providers.scripted import ScriptedProvider, Step, calls, error, hang, text
from toolbus.records import replace
from toolbus.testing import virtual_backend
from toolbus.testing.recording import Recorder, record
from toolbus.toolsets.control import task_complete, update_plan

Scene = Callable[[Path], Awaitable[Any]]
SCENES: dict[str, Scene] = {}
EPOCH = 1_750_000_000.25


def scene(function: Scene) -> Scene:
    SCENES[function.__name__] = function
    return function


# ------------------------------------------------------------------------------------------------------- tools


@tool
async def get_weather(city: str) -> dict[str, Any]:
    """Current weather in a city."""
    await anyio.sleep({"Paris": 0.5, "Rome": 0.25}.get(city, 60))
    return {"city": city, "celsius": 24}


@tool(needs_approval=True)
async def delete_file(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


@tool(needs_approval=lambda arguments: arguments["amount"] > 100)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@tool
async def photograph(what: str) -> ToolResult:
    """A photograph of something."""
    picture = ImagePart.from_bytes(b"not really a picture", "image/png")
    return ToolResult(message=f"a photograph of {what}", data={"of": what}, parts=[picture], affected=["album"])


@tool(kind="query")
async def search(query: str) -> str:
    """Search for something."""
    return f"{query}: " + "much that was found. " * 60


@tool(sequential=True)
async def step(number: int) -> str:
    """One step, after the other."""
    await anyio.sleep(0.1)
    return f"step {number} is done"


@tool(return_direct=True)
async def measure(city: str, celsius: int) -> ToolResult:
    """Measure the weather in a city, and say it."""
    return ToolResult(message=f"{celsius} degrees", data={"city": city, "celsius": celsius if celsius < 50 else "hot"})


class Weather(BaseModel):
    city: str
    celsius: int


class Guardrail(Interceptor):
    async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
        if arguments.get("city") == "Rome":
            raise Denied("not Rome")
        return arguments


class Full:
    """A model whose window is too small for anything but the beginning."""

    vendor = "scripted"

    def __init__(self) -> None:
        self.asked = 0

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        self.asked += 1
        raise ContextOverflow("the context length of this model was exceeded", limit_tokens=1_000)


# ------------------------------------------------------------------------------------------------------ scenes


@scene
async def parallel_calls_of_which_one_times_out(path: Path) -> None:
    script = [
        calls(("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Rome"})),
        text("Paris and Rome have 24 degrees; Oslo did not answer.", usage=Usage(input_tokens=120, output_tokens=12)),
    ]
    runtime = Runtime(ScriptedProvider(script), tools=[get_weather], limits=Limits(tool_timeout_seconds=2))
    async with runtime:
        with record(path, runtime):
            await runtime.run("Where is it warm?", instructions="Answer briefly.", metadata={"tenant": "blue"})


@scene
async def a_result_that_comes_late(path: Path) -> None:
    script = [calls(("get_weather", {"city": "Oslo"})), text("I cannot say.", delays=70), text("Still not.")]
    async with Runtime(
        ScriptedProvider(script), tools=[get_weather], limits=Limits(model_timeout_seconds=100)
    ) as runtime:
        with record(path, runtime, signals=True, deltas=True):
            await runtime.run("Oslo?", late_results="next_turn", conversation_id="c1")
            await runtime.run("And now?", late_results="next_turn", conversation_id="c1")


@scene
async def people_who_approve_deny_edit_and_wait_too_long(path: Path) -> None:
    script = [
        calls(
            ("delete_file", {"path": "a"}),
            ("delete_file", {"path": "b"}),
            ("pay", {"amount": 5}),
            ("pay", {"amount": 500}),
        ),
        calls(("delete_file", {"path": "c"}), ("pay", {"amount": 700})),
        text("Done, as far as I may."),
    ]
    limits = Limits(approval_timeout_seconds=30)
    async with (
        Runtime(ScriptedProvider(script), tools=[delete_file, pay], limits=limits) as runtime,
        anyio.create_task_group() as people,
    ):

        async def decide(asked: ApprovalRequested) -> None:
            await anyio.sleep(3 + len(asked.call_id) % 2)
            name, value = asked.name, asked.arguments
            if value == {"path": "a"}:
                decided = asked.decided(approved=True, arguments={"path": "a.bak"}, by="Ann")
            elif value == {"path": "b"}:
                decided = asked.decided(approved=False, reason="it is needed", by="Ann")
            elif value == {"amount": 500}:
                decided = asked.decided(approved=True, arguments={"amount": "much"}, by="Bob")
            elif name == "pay":
                decided = asked.decided(approved=True, remember=True)
            else:
                return
            runtime.bus.publish(decided)

        runtime.bus.connect(ApprovalRequested, lambda asked: people.start_soon(decide, asked))
        with record(path, runtime):
            await runtime.run("Tidy up and pay.")


@scene
async def a_cancel_in_the_middle_of_calls(path: Path) -> None:
    script = [calls(("get_weather", {"city": "Rome"}), ("get_weather", {"city": "Oslo"}))]
    async with Runtime(ScriptedProvider(script), tools=[get_weather]) as runtime:
        with record(path, runtime):
            session = runtime.start("Where?")
            await anyio.sleep(0.25)
            session.steer("Hurry.")
            await anyio.sleep(0.25)
            session.cancel("enough")
            await session.result()


@scene
async def a_cancel_while_the_model_thinks(path: Path) -> None:
    async with Runtime(ScriptedProvider([text("never", delays=50)])) as runtime:
        with record(path, runtime):
            session = runtime.start("Hello?")
            await anyio.sleep(1)
            session.steer("Are you there?")
            session.cancel("no answer")
            await session.result()


@scene
async def replies_that_are_cut_off_while_they_stream(path: Path) -> None:
    gone = ProviderUnavailable("the connection broke", retryable=True)
    slow = text("So slow.", ["So ", "slo", "w."], delays=[0, 4, 4])
    thinks = text("", reasoning="Let me see", delays=[1])
    scripts = [
        ([hang(after=thinks)], Limits(timeout_seconds=6, model_timeout_seconds=2)),
        ([hang(after="It takes lo")], Limits(timeout_seconds=5)),
        ([slow], Limits(timeout_seconds=6, model_timeout_seconds=2)),
        (
            [hang(after=slow), hang(after=slow)],
            Limits(stream_idle_seconds=5, model_timeout_seconds=2, max_model_attempts=2),
        ),
        ([error(gone, after="It breaks o")], Limits(max_model_attempts=1)),
        ([error(gone, after="It breaks o"), text("It is whole.")], Limits()),
    ]
    async with Runtime(ScriptedProvider([])) as runtime:
        with record(path, runtime):
            session = runtime.start("Hello?", provider=ScriptedProvider([hang(after="I was abo")]))
            await anyio.sleep(1)
            session.cancel("enough")
            await session.result()
            for script, limits in scripts:
                await runtime.start("Hello?", provider=ScriptedProvider(script), limits=limits).result()


@scene
async def a_cancel_before_anything(path: Path) -> None:
    async with Runtime(ScriptedProvider([text("never")])) as runtime:
        with record(path, runtime):
            session = runtime.start("Hello?")
            session.cancel("a slip")
            await session.result()


@scene
async def steering_between_and_within_rounds(path: Path) -> None:
    script = [
        calls(("get_weather", {"city": "Paris"}), delays=2),
        text("24 degrees.", delays=2),
        calls(("get_weather", {"city": "Rome"})),
        text("24 degrees there too."),
    ]
    async with Runtime(ScriptedProvider(script), tools=[get_weather]) as runtime:
        with record(path, runtime):
            session = runtime.start("Paris?")
            for seconds, said in ((1, "In Celsius."), (1.25, "And be brief."), (1, "And in Rome?")):
                await anyio.sleep(seconds)
                session.steer(said)
            await session.result()


@scene
async def limits_with_a_last_answer(path: Path) -> None:
    same = ("get_weather", {"city": "Rome"})
    script = [
        calls(same, same),
        calls(same),
        calls(same),
        calls(same),
        calls(("get_weather", {"city": "Rome", "unit": 3}), same),
        text("24, I say."),
    ]
    limits = Limits(max_repeats=2, max_calls_per_round=2, max_consecutive_errors=5)
    async with Runtime(ScriptedProvider(script), tools=[get_weather], limits=limits) as runtime:
        with record(path, runtime):
            await runtime.run("Rome?", note_failures=True)


@scene
async def the_time_of_a_request_is_over(path: Path) -> None:
    script = [calls(("get_weather", {"city": "Rome"})), text("never", delays=50)]
    async with Runtime(ScriptedProvider(script), tools=[get_weather], limits=Limits(timeout_seconds=20)) as runtime:
        with record(path, runtime):
            await runtime.run("Rome?")


@scene
async def the_first_failure_ends_it(path: Path) -> None:
    script = [calls(("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Rome"}), ("get_weather", {}))]
    limits = Limits(on_failure="fail_fast")
    async with Runtime(ScriptedProvider(script), tools=[get_weather], limits=limits) as runtime:
        with record(path, runtime):
            await runtime.run("Where?")


@scene
async def structured_output_that_is_repaired(path: Path) -> None:
    script = [
        text("It is warm."),
        text('{"city": "Rome"}'),
        calls(("final_answer", {"city": "Rome", "celsius": "warm"})),
        calls(("final_answer", {"city": "Rome", "celsius": 24})),
    ]
    async with Runtime(ScriptedProvider(script), tools=[get_weather]) as runtime:
        with record(path, runtime):
            await runtime.run("Rome?", output=Weather)


@scene
async def structured_output_as_text_and_none(path: Path) -> None:
    async with Runtime(
        ScriptedProvider([text('{"city": "Rome", "celsius": 24}'), text("no"), text("no"), text("no")])
    ) as runtime:
        with record(path, runtime):
            await runtime.run("Rome?", output=Weather)
            await runtime.start("Rome?", output=Weather).result()


@scene
async def answers_by_tools(path: Path) -> None:
    good, bad = ("measure", {"city": "Rome", "celsius": 24}), ("measure", {"city": "Rome", "celsius": 99})
    script = [calls(good), calls(good, good), calls(bad), calls(good), calls(good, ("get_weather", {})), text("Warm.")]
    async with Runtime(ScriptedProvider(script), tools=[measure, get_weather]) as runtime:
        with record(path, runtime):
            await runtime.run("Rome?")
            await runtime.run("Rome twice?")
            await runtime.run("Rome?", output=Weather)
            await runtime.run("Rome, and here?")


@scene
async def structured_output_by_the_providers_own_means(path: Path) -> None:
    repaired = [text("It is warm. Call me."), text('{"city": "Rome", "celsius": 24}')]
    refused = error(NativeOutputUnsupported("no schemas here", status=400))
    called = calls(("final_answer", {"city": "Rome", "celsius": 24}))
    script = [*repaired, refused, text("Warm."), called, text("I would rather not.", finish_reason="refusal"), refused]
    async with Runtime(ScriptedProvider(script, native_output="alone")) as runtime:
        with record(path, runtime):
            for mode in ("native", "auto", "auto", "native"):
                await runtime.start("Rome?", output=Weather, output_mode=cast("OutputMode", mode)).result()


@scene
async def a_history_that_is_shortened_and_summed_up(path: Path) -> None:
    script = [calls(("search", {"query": f"thing {n}"}), usage=Usage(input_tokens=900 + 40 * n)) for n in range(3)]
    turns = [each for n in range(4) for each in (*script, text(f"That was turn {n}. " * 40))]
    summarizer = Summarizer(
        ScriptedProvider(lambda _request: text("They searched.", usage=Usage(input_tokens=300, output_tokens=3)))
    )
    compression = Compression(max_context_tokens=1_200, summarizer=summarizer, keep_turns=2)
    prices = {
        "scripted:scripted": Price(input_per_million=1, output_per_million=4),
        "*": Price(input_per_million=2, output_per_million=8),
    }
    runtime = Runtime(
        ScriptedProvider(turns), tools=[search], compression=compression, prices=prices, max_result_chars=600
    )
    async with runtime:
        with record(path, runtime):
            for turn in range(4):
                await runtime.run(f"Search for much, {turn}. " * 20, conversation_id="c2")


def read_on(request: ModelRequest) -> Step:
    newest = request.messages[-1]
    assert isinstance(newest, ToolMessage)
    return calls(("read_result", {"call_id": newest.call_id, "page": 2}))


@scene
async def a_long_result_that_is_read_on(path: Path) -> None:
    script = [
        calls(("search", {"query": "x"})),
        read_on,
        text("I have read it."),
    ]
    async with Runtime(ScriptedProvider(script), tools=[search], max_result_chars=400) as runtime:
        with record(path, runtime):
            await runtime.run("Search for x.")


@scene
async def requests_within_requests(path: Path) -> None:
    inner = [
        calls(("get_weather", {"city": "Paris"}), usage=Usage(input_tokens=10)),
        text("24", usage=Usage(input_tokens=20, output_tokens=2)),
        calls(("delete_file", {"path": "x"})),
        text("It is deleted."),
        calls(("get_weather", {"city": "Oslo"}), usage=Usage(input_tokens=30)),
    ]
    expert = sub_request_tool(
        "expert",
        "Knows things.",
        provider=ScriptedProvider(inner),
        tools=[get_weather, delete_file],
        limits=Limits(timeout_seconds=9),
    )
    script = [
        calls(("expert", {"task": "Paris?"})),
        calls(("expert", {"task": "Delete x."})),
        calls(("expert", {"task": "Oslo?"})),
        text("Two of three."),
    ]
    async with (
        Runtime(ScriptedProvider(script), tools=[expert], limits=Limits(tool_timeout_seconds=5)) as runtime,
        anyio.create_task_group() as people,
    ):

        async def approve(asked: ApprovalRequested) -> None:
            await anyio.sleep(40)
            runtime.bus.publish(asked.decided(approved=True))

        runtime.bus.connect(ApprovalRequested, lambda asked: people.start_soon(approve, asked))
        with record(path, runtime):
            await runtime.run("Ask the expert.")


@scene
async def a_model_that_is_retried_and_replaced(path: Path) -> None:
    busy = error(ProviderUnavailable("overloaded", retryable=True))
    patient = error(ProviderUnavailable("come back later", retryable=True, retry_after_seconds=7))
    first = ScriptedProvider([busy, text(""), text("One."), patient, text("late", delays=100), busy, busy, busy, busy])
    second = ScriptedProvider([text("Two."), text("", finish_reason="length"), text("")])
    limits = Limits(model_timeout_seconds=10, max_model_attempts=3)
    async with Runtime(providers=[first, second], limits=limits) as runtime:
        with record(path, runtime):
            for number in range(3):
                await runtime.start(f"Question {number}").result()


@scene
async def models_that_fail_for_good(path: Path) -> None:
    refused = error(ProviderUnavailable("wrong key", retryable=False))
    async with Runtime(ScriptedProvider([refused])) as runtime:
        with record(path, runtime):
            await runtime.start("Hello?").result()
            await runtime.start("Hello?", provider=Full()).result()
            have_room = [Full(), ScriptedProvider([text("I have room.")])]
            await runtime.start("Hello?", providers=have_room).result()
            await runtime.start("Hello? " * 400, compression=Compression(max_context_tokens=256)).result()


@scene
async def guardrails_that_deny_and_refuse(path: Path) -> None:
    class Strict(Interceptor):
        async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
            raise Denied("not here")

    script = [
        calls(("get_weather", "[1]"), ("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})),
        text("24 in Paris; Rome I may not ask about."),
    ]
    async with Runtime(ScriptedProvider(script), tools=[get_weather], interceptors=[Guardrail()]) as runtime:
        with record(path, runtime):
            await runtime.run("Where?")
            await runtime.start("Where?", interceptors=[Strict()]).result()


@scene
async def replies_that_a_guardrail_has_lost(path: Path) -> None:
    class Wary(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
            reply = await ask(request)
            if reply.message.text == "Hm.":
                raise ProviderUnavailable("not like that", retryable=True)
            if reply.message.text == "Wait.":
                await anyio.sleep_forever()
            return reply

        async def on_answer(self, text: str, context: ToolContext[Any]) -> str:
            if text == "No.":
                raise Denied("not so rude")
            return text

    used = Usage(input_tokens=20, output_tokens=2)
    model = ScriptedProvider(
        [text(each, usage=used) for each in ("Hm.", "Yes.", "No.", "Hm.", "Hm.", "Wait.", "Wait.")]
    )
    prices = {"scripted:script": Price(input_per_million=1, output_per_million=4)}
    async with Runtime(model, interceptors=[Wary()], prices=prices) as runtime:
        with record(path, runtime):
            await runtime.run("Well?")
            await runtime.start("Well?").result()
            await runtime.start("Well?", limits=Limits(max_output_tokens=3)).result()
            await runtime.start("Well?", limits=Limits(model_timeout_seconds=1)).result()
            await runtime.start("Well?", limits=Limits(timeout_seconds=1)).result()


@scene
async def plans_pictures_and_an_ending_by_a_call(path: Path) -> None:
    script = [
        calls(
            ("update_plan", {"steps": [{"text": "Look", "status": "active"}]}),
            ("photograph", {"what": "a cat"}),
            ("step", {"number": 1}),
            ("step", {"number": 2}),
            ("nothing_like_it", {}),
        ),
        calls(("task_complete", {"answer": "A cat."})),
    ]
    picture = ImagePart(url="data:image/png;base64,AAAA")
    async with Runtime(ScriptedProvider(script), tools=[update_plan, task_complete, photograph, step]) as runtime:
        with record(path, runtime):
            await runtime.run(["What is this?", picture], metadata={"user": {"name": "Ann"}})


@scene
async def tools_that_come_and_go(path: Path) -> None:
    script = [
        calls(("get_weather", {"city": "Rome"})),
        calls(("get_weather", {"city": "Rome"}), ("step", {"number": 1})),
        text("Enough."),
    ]
    async with Runtime(ScriptedProvider(script), tools=[get_weather]) as runtime:

        def change(event: RoundStarted) -> None:
            if event.round == 1:
                runtime.tools.add(step)
                runtime.tools.remove("get_weather")

        runtime.bus.connect(RoundStarted, change)
        with record(path, runtime):
            await runtime.run("Rome?")


@scene
async def a_request_that_its_host_has_left(path: Path) -> None:
    async with Runtime(ScriptedProvider([calls(("get_weather", {"city": "Oslo"}))]), tools=[get_weather]) as runtime:
        with record(path, runtime), anyio.move_on_after(1):
            await runtime.run("Oslo?")


@scene
async def answers_from_elsewhere_on_the_bus(path: Path) -> None:
    """Two results that come at the same moment as a wish, and calls that are answered before their turn."""
    bus = EventBus()
    ask = ToolSpec(name="ask", description="Ask somebody.", external=True)
    script = [calls(("step", {"number": 1}), ("step", {"number": 2}), ("ask", {})), text("Well.")]

    def answer(requested: ToolCallRequested) -> None:
        if requested.name == "ask":
            other = requested.call_id[:-1] + "1"
            bus.publish(requested.failed("nobody is in", reason="lost", outcome_unknown=True))
            bus.publish(replace(requested, call_id=other, name="step").completed("was done"))
            session.steer("Well?")
        else:
            bus.publish(requested.completed("x" * 20_000, data={"half": "\ud83d", "list": [1.5, None]}))

    bus.connect(ToolCallRequested, answer)
    with Recorder(path, bus) as recorder:
        history = [SystemMessage(text="Be kind."), UserMessage(content="Hello.")]
        session = RequestSession(
            bus, ScriptedProvider(script), history, tools=[step.spec, ask], journal=recorder, request_id="r1"
        )
        await session.run()


def make(name: str, path: Path, backend: Any = "asyncio") -> None:
    """Record a scene. On asyncio it is the same each time, byte for byte."""
    chosen, options = virtual_backend(backend)
    with ids_from(f"{name[:4]}-"), wall_time_from(lambda: EPOCH):
        anyio.run(SCENES[name], path, backend=chosen, backend_options=options)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    folder = Path(sys.argv[1])
    for each in SCENES:
        if not (folder / f"{each}.jsonl").exists():
            make(each, folder / f"{each}.jsonl")
            print(each)  # noqa: T201 -- a script
