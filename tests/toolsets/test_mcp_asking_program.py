"""A real program that asks back over stdio: people answer its questions, and the model its prompts. In both eras."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

import support
from support.mcp_server import ERAS, Era
from toolbus import Runtime
from toolbus.events import ApprovalRequested, ToolCallPaused, ToolCallResumed
from toolbus.messages import Usage
from toolbus.testing import ScriptedProvider, calls, text
from toolbus.toolsets.mcp import McpServer, McpTools, ask_model, ask_people

PROGRAM = str(Path(support.__path__[0]) / "asking_mcp_program.py")
BOOK = ("asking__book", {"hotel": "Inn"})
PAY: tuple[str, dict[str, Any]] = ("asking__pay", {})
SUM_UP = ("asking__sum_up", {"text": "A long text."})


def program(era: Era) -> McpServer:
    return McpServer(
        "asking",
        command=sys.executable,
        args=[PROGRAM],
        protocol=era,
        needs_approval=False,
        on_elicitation=ask_people,
        on_sampling=ask_model,
    )


# The program takes over a second to begin. `test_mcp_questions.py` asks in both protocols on both event loops.
@pytest.mark.parametrize(("era", "anyio_backend"), [*zip(ERAS, ["asyncio", "trio"], strict=True)])
async def test_people_answer_the_questions_of_a_program_and_the_model_its_prompts(era: Era, anyio_backend: str) -> None:
    asked: list[ApprovalRequested] = []
    pauses: list[ToolCallPaused | ToolCallResumed] = []
    steps = [calls(BOOK, PAY), calls(SUM_UP), text("Short.", usage=Usage(input_tokens=7)), text("Done.")]
    async with McpTools([program(era)]) as mcp, Runtime(ScriptedProvider(steps), tools=mcp.registry) as runtime:

        def decide(question: ApprovalRequested) -> None:
            asked.append(question)
            answer: dict[str, Any] | None = question.arguments.get("answer")
            edited = None if answer is None else {**question.arguments, "answer": {**answer, "name": "Ada"}}
            runtime.bus.publish(question.decided(approved=True, arguments=edited))

        runtime.bus.connect(ApprovalRequested, decide)
        runtime.bus.connect(ToolCallPaused, pauses.append)
        runtime.bus.connect(ToolCallResumed, pauses.append)
        result = await runtime.run("Go.")
    assert [each.content for each in result.tool_calls] == [
        "Inn: Guest(name='Ada', nights=2, bed='single', note=None)",
        "accept",
        "script, endTurn: Short.",
    ]
    form, visit, prompt = sorted(asked, key=lambda each: each.arguments["tool"])
    assert (form.name, form.arguments["tool"], form.arguments["message"]) == (
        "mcp_question",
        "asking__book",
        "Who is coming?",
    )
    assert form.arguments["fields"]["name"]["description"] == "The name on the booking"
    assert form.arguments["answer"] == {"name": None, "nights": 2, "bed": "single", "note": None}
    assert visit.arguments == {"tool": "asking__pay", "message": "Please pay.", "url": "https://pay.example.com/1"}
    assert (prompt.name, prompt.arguments["system_prompt"]) == ("mcp_sampling", "Be brief.")
    assert prompt.arguments["messages"][1:] == [
        {"role": "assistant", "content": "Gladly."},
        {"role": "user", "content": "A long text."},
    ]
    assert result.usage.input_tokens == 7
    assert sum(isinstance(each, ToolCallPaused) for each in pauses) == 3
    assert {each.request_id for each in pauses} == {result.request_id}


async def test_a_question_of_the_older_protocol_is_refused_while_calls_of_several_requests_run() -> None:
    """It does not say which call it is about, and the wrong person could be asked."""
    both = anyio.Event()
    async with McpTools([program("legacy")]) as mcp, Runtime(ScriptedProvider([]), tools=mcp.registry) as runtime:
        asked: list[ApprovalRequested] = []

        def hear(question: ApprovalRequested) -> None:
            asked.append(question)
            both.set()

        runtime.bus.connect(ApprovalRequested, hear)
        first = runtime.start("Pay.", provider=ScriptedProvider([calls(PAY), text("Done.")]))
        with anyio.fail_after(60):
            await both.wait()
        second = await runtime.run("Pay.", provider=ScriptedProvider([calls(PAY), text("Done.")]))
        runtime.bus.publish(asked[0].decided(approved=True))
        result = await first.result()
    assert "does not say which call it is about, and 2 calls run" in second.tool_calls[0].error
    assert result.tool_calls[0].content == "accept"
    assert len(asked) == 1
