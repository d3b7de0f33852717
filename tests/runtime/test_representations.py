"""The `repr` of a runtime, a session and a result, short and without what was said; and the timeline of a result."""

from __future__ import annotations

import re
from typing import Any

import anyio
from pydantic import BaseModel

from toolbus import Limits, Runtime, tool
from toolbus.events import ApprovalRequested, Event
from toolbus.messages import Usage
from toolbus.testing import ScriptedProvider, calls, text, virtual_backends

anyio_backend = virtual_backends()

LONG = "word " * 200


@tool
async def look_up(query: str) -> str:
    """Look something up."""
    return query * 2


@tool(needs_approval=True)
async def send(body: str) -> str:
    """Send a mail."""
    return "sent"


async def test_a_runtime_shows_its_model_its_state_and_its_numbers():
    assert repr(Runtime("extractive")) == "<Runtime extractive, not running, tools: 0, requests: 0>"
    both = Runtime(providers=["extractive", ScriptedProvider([])], tools=[look_up, send])
    assert repr(both) == "<Runtime extractive | ScriptedProvider, not running, tools: 2, requests: 0>"
    async with Runtime(ScriptedProvider([text("ok")])) as runtime:
        session = runtime.start("hi")
        assert repr(runtime) == "<Runtime ScriptedProvider, running, tools: 0, requests: 1>"
        await session.result()


async def test_a_session_shows_its_id_and_what_it_waits_for():
    async with Runtime(ScriptedProvider([calls(("send", {"body": LONG})), text("ok")]), tools=[send]) as runtime:
        session = runtime.start("hi")
        seen = [repr(session)]
        runtime.bus.connect(Event, lambda _event: seen.append(repr(session)))
        runtime.bus.connect(ApprovalRequested, lambda _event: session.cancel() and None)
        await session.result()
        seen.append(repr(session))
    shape = r"<RequestSession '\w+', ([\w ]+), rounds: \d>"
    states = [found[1] for each in seen if (found := re.fullmatch(shape, each))]
    assert len(states) == len(seen)
    assert list(dict.fromkeys(states)) == [
        "not begun",
        "waits for the model",
        "waits for a person",
        "ending",
        "cancelled",
    ]


class City(BaseModel):
    name: str


async def test_a_result_and_its_calls_are_short_whatever_they_contain():
    script = ScriptedProvider([calls(("look_up", {"query": LONG}), ("look_up", {})), text(LONG)])
    async with Runtime(script, tools=[look_up]) as runtime:
        result = await runtime.run(LONG)
    assert re.fullmatch(
        r"RequestResult\(outcome='completed', text='[word ]{56}\.\.\., rounds=2, tool_calls=2\)", repr(result)
    )
    good, bad = map(repr, result.tool_calls)
    assert re.fullmatch(
        r"CallRecord\(name='look_up', arguments={'query': '[word ]+\.\.\., content='[word ]+\.\.\.\)", good
    )
    assert len(good) < 180
    assert bad == "CallRecord(name='look_up', reason='invalid_arguments', error='$.query: Field required')"


async def test_a_result_shows_its_output_and_its_error():
    async with Runtime(ScriptedProvider([text('{"name": "Paris"}')])) as runtime:
        assert "output=City(name='Paris')" in repr(await runtime.run("Where?", output=City))
        failed = repr(await runtime.start("Where?").result())
    assert failed.startswith("RequestResult(outcome='failed', reason='")
    assert "error=" in failed


async def test_a_timeline_says_when_each_part_of_a_request_began_how_long_it_took_and_what_was_wrong():
    @tool
    async def wait(seconds: float) -> str:
        """Wait for a while."""
        await anyio.sleep(seconds)
        if seconds == 3:
            raise KeyError("three")
        return "done"

    usage = Usage(input_tokens=7, output_tokens=2)
    asked: list[tuple[str, dict[str, Any]]] = [("wait", {"seconds": 2}), ("wait", {"seconds": 3}), ("made_up", {})]
    script = ScriptedProvider([
        calls(*asked, delays=0.125, usage=usage),
        calls(("wait", {"seconds": 0.5})),
        text("Done.", usage=usage),
    ])  # fmt: skip
    async with Runtime(script, tools=[wait]) as runtime:
        result = await runtime.run("hi")
    assert re.sub(r"\(KeyError: 'three' at [^)]*\)", "(...)", result.timeline()).splitlines() == [
        f"request {result.request_id}",
        "   0.000s  model (script) answered in 1.000s, 3 calls",
        "   1.000s    ✓ wait in 2.000s",
        "   1.000s    ✗ wait in 3.000s: error: The tool failed with an internal error. (...)",
        "   1.000s    ✗ made_up in 0.000s: unknown_tool: There is no tool 'made_up'. The tools are: wait.",
        "   4.000s  model (script) answered in 0.000s, 1 call",
        "   4.000s    ✓ wait in 0.500s",
        "   4.500s  model (script) answered in 0.000s",
        "   4.500s  completed; 14 tokens in, 4 out",
    ]


async def test_a_summary_names_the_limit_and_says_to_people_why_there_is_no_answer():
    async with Runtime(ScriptedProvider([text("ok"), calls(("look_up", {"query": "a"}))]), tools=[look_up]) as runtime:
        ok = await runtime.run("hi")
        stopped = await runtime.run("hi", limits=Limits(max_rounds=1, on_limit="stop"))
    assert (ok.summary()["limit"], ok.summary()["explanation"]) == ("", "")
    summary = stopped.summary()
    assert (summary["limit"], summary["explanation"]) == ("max_rounds", "I stopped after 1 step without finishing.")
