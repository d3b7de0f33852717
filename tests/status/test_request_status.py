"""The status line of a runtime's requests, from the first sentence to the last, and with a narrator."""

from __future__ import annotations

from typing import Any

import anyio

from toolbus import Limits, RequestSession, Runtime, ToolError, sub_request_tool, tool
from toolbus.events import ApprovalRequested, StatusChanged, TextDelta
from toolbus.messages import UserMessage
from toolbus.protocols import ModelRequest
from toolbus.status import Narrator
from toolbus.status._sentences import Status
from toolbus.testing import ScriptedProvider, advance, calls, error, settle, text, virtual_backends

anyio_backend = virtual_backends()


@tool
async def lookup_tool(city: str) -> str:
    """Look a city up."""
    await anyio.sleep(1)
    if city == "Atlantis":
        raise ToolError("there is no such city")
    return f"{city} is a city"


@tool(status="Reading {path}")
async def read_file(path: str) -> str:
    """Read a file."""
    await anyio.sleep(1)
    return "text"


@tool(needs_approval=True)
async def send_mail(to: str) -> str:
    """Send a mail."""
    await anyio.sleep(1)
    return "sent"


PARIS = ("lookup_tool", {"city": "Paris"})
ATLANTIS = ("lookup_tool", {"city": "Atlantis"})


async def statuses(session: RequestSession) -> list[Status]:
    return [(event.stage, event.text) async for event in session.events(StatusChanged)]  # type: ignore[attr-defined]


@tool
async def slowly(seconds: int) -> str:
    """Take some time."""
    await anyio.sleep(seconds)
    if seconds == 5:
        raise ToolError("it took too long")
    return "done"


async def test_whoever_asks_only_now_is_told_what_a_listener_has_heard() -> None:
    steps = [calls(("slowly", {"seconds": 2}), ("slowly", {"seconds": 5}), ("lookup_tool", {"city": "Paris"}))] * 2
    said: list[Status] = []
    script = [*steps, text("Done.")]
    async with Runtime(ScriptedProvider([]), tools=[lookup_tool, slowly]) as runtime:
        # Whoever is asked once follows from then on, so that each is asked at one moment only.
        heard, *asked = (runtime.start("Go.", provider=ScriptedProvider(script)) for _ in range(30))
        changes = heard.events(StatusChanged)
        while not heard.ended:
            await advance(0.5)
            while (change := changes.receive_nowait()) is not None:
                said.append((change.stage, change.text))
            assert asked.pop().status == said[-1]
    assert len(set(said)) > 4


async def test_whoever_asks_only_while_a_reply_comes_hears_that_it_comes() -> None:
    async with Runtime(ScriptedProvider([])) as runtime:
        script = [text("One. Two.", 2, delays=[1, 5])]
        always, late = (runtime.start("Go.", provider=ScriptedProvider(script)) for _ in range(2))
        await settle()
        before = always.status
        await advance(2)
        assert always.status == late.status != before


async def test_whoever_asks_only_while_a_call_runs_in_the_background_hears_what_is_waited_for() -> None:
    @tool(background=True)
    async def order() -> str:
        """Order a part."""
        await anyio.sleep(10)
        return "It is here."

    script = [calls(("order", {})), text("It is ordered."), text("Done.")]
    async with Runtime(ScriptedProvider([]), tools=[order]) as runtime:
        always, late = (runtime.start("Go.", provider=ScriptedProvider(script)) for _ in range(2))
        assert always.status == ("idle", "")
        await advance(5)
        assert always.status == late.status == ("waiting", "Waiting for Order...")


async def test_a_request_tells_where_it_stands_from_the_first_to_the_last() -> None:
    script = ScriptedProvider([calls(PARIS), calls(ATLANTIS), calls(("read_file", {"path": "a.txt"})), text("Done.")])
    async with Runtime(script, tools=[lookup_tool, read_file]) as runtime:
        reported = await statuses(runtime.start("Where?"))
    assert reported == [
        ("submitted", "Analyzing request..."),
        ("streaming", "Selecting appropriate tools..."),
        ("executing", "Using Lookup Tool..."),
        ("processing", "Processing tool results..."),
        ("streaming", "Selecting appropriate tools..."),
        ("executing", "Using Lookup Tool..."),
        ("processing", "Tool Lookup Tool failed, trying alternative approach..."),
        ("streaming", "Selecting appropriate tools..."),
        ("executing", "Reading a.txt"),
        ("processing", "Processing tool results..."),
        ("streaming", "Formulating final response..."),
        ("complete", "Done"),
    ]


async def test_what_is_streamed_is_said_before_its_first_piece() -> None:
    script = ScriptedProvider([calls(PARIS, text="I look."), text("It is there.")])
    async with Runtime(script, tools=[lookup_tool]) as runtime:
        events = runtime.start("Where?").events(StatusChanged, TextDelta)
        reported: list[str] = [event.text async for event in events]  # type: ignore[attr-defined]
    assert reported[:2] == ["Analyzing request...", "Formulating final response..."]
    assert "".join(reported[2:5]) == "I look."
    assert reported[-5] == "Formulating final response..."
    assert "".join(reported[-4:-1]) == "It is there."


async def test_a_stopped_a_failed_and_a_cancelled_request_say_so_last() -> None:
    async with Runtime(ScriptedProvider(lambda _request: calls(PARIS)), tools=[lookup_tool]) as runtime:
        stopped = await statuses(runtime.start("Where?", limits=Limits(max_rounds=1, on_limit="stop")))
        failed = await statuses(runtime.start("Where?", provider=ScriptedProvider([error(RuntimeError("oh"))])))
        session = runtime.start("Where?")
        events = session.events(StatusChanged)
        await advance(0.5)
        session.cancel("enough")
        cancelled = [(event.stage, event.text) async for event in events]  # type: ignore[attr-defined]
    assert stopped[-1] == ("error", "I stopped after 1 step without finishing.")
    assert failed[-1] == ("error", "I could not finish because of an internal error.")
    assert cancelled[-1] == ("idle", "Cancelled")


async def test_a_request_that_waits_for_a_person_says_so() -> None:
    script = ScriptedProvider([calls(("send_mail", {"to": "ada"})), text("Sent.")])
    async with Runtime(script, tools=[send_mail]) as runtime:
        asked: list[ApprovalRequested] = []
        runtime.bus.connect(ApprovalRequested, asked.append)
        session = runtime.start("Write to Ada")
        events = session.events(StatusChanged)
        await settle()
        runtime.bus.publish(asked[0].decided(approved=True))
        reported = [(event.stage, event.text) async for event in events]  # type: ignore[attr-defined]
    assert reported[2:4] == [("waiting", "Waiting for approval: Send Mail..."), ("executing", "Using Send Mail...")]


async def test_a_status_that_is_first_read_while_a_sub_request_waits_for_a_person_is_waiting() -> None:
    inner = ScriptedProvider([calls(("send_mail", {"to": "ada"})), text("Sent.")])
    delegate = sub_request_tool("delegate", "Delegate.", provider=inner, tools=[send_mail])
    script = ScriptedProvider([calls(("delegate", {"task": "Write to Ada."})), text("Done.")])
    async with Runtime(script, tools=[delegate], drain_seconds=0) as runtime:
        runtime.bus.connect(ApprovalRequested, lambda _event: None)
        session = runtime.start("Write to Ada")
        await settle()
        assert session.status == ("waiting", "Waiting for approval: Delegate...")


def sentences(request: ModelRequest) -> Any:
    (message,) = request.messages
    assert isinstance(message, UserMessage)
    return text("Finding Paris on the map" if "Paris" in message.text else "Finding another city")


async def test_a_narrator_words_the_status_while_a_tool_runs() -> None:
    narrator = ScriptedProvider(sentences)
    script = ScriptedProvider([calls(PARIS), calls(("read_file", {"path": "a.txt"})), text("Done.")])
    async with Runtime(script, tools=[lookup_tool, read_file], narrator=narrator) as runtime:
        reported = await statuses(runtime.start("Where?"))
    executing = [said for stage, said in reported if stage == "executing"]
    assert executing == ["Using Lookup Tool...", "Finding Paris on the map", "Reading a.txt"]
    assert len(narrator.requests) == 1  # a tool with a template of its own needs none
    assert reported[-1] == ("complete", "Done")


async def test_a_narrator_that_fails_or_is_slow_costs_a_request_nothing() -> None:
    class Slow:
        vendor = "slow"
        asked = 0

        async def respond(self, request: ModelRequest, emit: Any) -> Any:
            self.asked += 1
            await anyio.sleep_forever()

    broken = ScriptedProvider(lambda _request: error(RuntimeError("oh")))
    for narrator in (slow := Slow(), broken, Narrator(Slow(), timeout_seconds=0.5)):
        script = ScriptedProvider([calls(PARIS), text("Done.")])
        async with Runtime(script, tools=[lookup_tool], narrator=narrator) as runtime:
            began = anyio.current_time()
            session = runtime.start("Where?")
            reported = await statuses(session)
            assert round(anyio.current_time() - began, 3) == 1  # as long as the tool takes
            assert (await session.result()).text == "Done."
        assert [said for stage, said in reported if stage == "executing"] == ["Using Lookup Tool..."]
    assert slow.asked == 1


async def test_a_narrator_is_not_asked_while_nobody_reads_the_status_and_works_again_in_a_second_block() -> None:
    narrator = ScriptedProvider(sentences)
    script = ScriptedProvider(lambda request: text("Done.") if request.round else calls(PARIS))
    runtime = Runtime(script, tools=[lookup_tool], narrator=narrator)
    for asked in (1, 2):
        async with runtime:
            await runtime.run("Where?")
            await statuses(runtime.start("Where?"))
        assert len(narrator.requests) == asked


async def test_several_requests_have_a_status_each() -> None:
    script = ScriptedProvider(lambda request: text("Done.") if request.round else calls(PARIS))
    heard: list[StatusChanged] = []
    async with Runtime(script, tools=[lookup_tool]) as runtime:
        runtime.bus.connect(StatusChanged, heard.append)
        sessions = [runtime.start(f"Where {number}?") for number in range(3)]
        for session in sessions:
            await session.result()
    for session in sessions:
        mine = [event.stage for event in heard if event.request_id == session.request_id]
        assert mine == ["submitted", "streaming", "executing", "processing", "streaming", "complete"]
