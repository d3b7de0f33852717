"""The chat with live status: what a person reads in each of its scenarios, in virtual time and over a real socket."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# The type checker does not look into examples/ for imports yet.

from __future__ import annotations

import io
import os
import sys
from typing import Any

import anyio
import pytest
from rich.console import Console

import status_chat.__main__ as command
from status_chat.assistant import ask, make_runtime
from status_chat.scenarios import SCENARIOS, play, word
from status_chat.screen import LiveScreen, Screen
from status_chat.tools import Backend
from toolbus import Interceptor, RequestResult, ToolContext
from toolbus.errors import ProviderRejected, ProviderUnavailable
from toolbus.testing import ScriptedProvider, calls, error, text, virtual_backends

anyio_backend = virtual_backends()

ASKED = ["Analyzing request..."]
CHOSEN = ["Selecting appropriate tools..."]
READING = [*CHOSEN, "Using File Read..."]  # the quick model finds no words for it in time
LOOKING_UP = [*CHOSEN, "Using Lookup User...", "Looking up the user in the database"]
RESULTS = ["Processing tool results..."]
FAILED = ["Tool File Read failed, trying alternative approach..."]
LAST = ["Formulating final response..."]


def stopped(why: str) -> list[str]:
    return [f"[{why}]", "Stopped"]


TRANSCRIPTS: dict[str, list[str]] = {
    "single": [
        *ASKED,
        *LOOKING_UP,
        *RESULTS,
        *LAST,
        "User 123 is Ada Lovelace, who has the studio plan.",
        "Done: 1 tool call, 0.5 s",
    ],
    "sequential": [
        *ASKED,
        *LOOKING_UP,
        *RESULTS,
        *LAST,
        "I will look at what her plan includes.",
        *READING,
        *RESULTS,
        *CHOSEN,
        "Working out 200 - 162.5",
        *RESULTS,
        *CHOSEN,
        "Working out 37.5 / 12.5",
        *RESULTS,
        *LAST,
        "She has 37.5 GB left. At 12.5 GB a month that is enough for 3 months.",
        "Done: 4 tool calls, 1.0 s",
    ],
    "recovery": [
        *ASKED,
        *READING,
        *FAILED,
        *READING,
        *RESULTS,
        *LAST,
        "Ada Lovelace's theme is dark.",
        "Done: 3 tool calls, 1.0 s",
    ],
    "max-iterations": [
        *ASKED,
        *(LOOKING_UP + RESULTS) * 9,
        *LOOKING_UP,
        *LAST,
        "None of the first 10 users drinks tea. I did not get to the others.",
        *stopped("I stopped after 10 steps without finishing."),
    ],
    "errors": [
        *ASKED,
        *(READING + FAILED) * 2,
        *READING,
        *LAST,
        "I found no invoice: no file that I tried is there.",
        *stopped("I stopped because my tools failed 3 times in a row."),
    ],
    "timeout": [
        *ASKED,
        *LAST,
        "That may be in the archive.",
        *CHOSEN,
        "Using Search Archive...",
        "Searching the tape archive for old messages",
        *stopped("I stopped because it took longer than 600 seconds."),
    ],
    "no-tools": [*ASKED, *LAST, "Paris.", "Done: 0 tool calls, 0.0 s"],
    "give-up": [*ASKED, *CHOSEN, *stopped("I could not finish: none of my tools can send messages.")],
    "unknown-tool": [*ASKED, *CHOSEN, *stopped("I stopped because a tool failed.")],
}


def lines_of(out: io.StringIO) -> list[str]:
    return [line.removeprefix("  - ") for line in out.getvalue().splitlines()]


async def shown(
    question: str, model: Any = play, quick: ScriptedProvider | None = None, **options: Any
) -> tuple[list[str], RequestResult[Any]]:
    """What a person reads, and the result."""
    out = io.StringIO()
    runtime = make_runtime(ScriptedProvider(model), quick or ScriptedProvider(word), **options)
    result = await ask(runtime, question, Screen(out))
    return lines_of(out), result


@pytest.mark.parametrize("name", SCENARIOS)
async def test_each_scenario_says_what_is_being_done_and_how_it_ended(name: str) -> None:
    lines, result = await shown(SCENARIOS[name].question)
    assert lines == TRANSCRIPTS[name]
    assert result.outcome == SCENARIOS[name].outcome


async def test_a_request_ends_after_its_ten_minutes_and_no_later() -> None:
    _, result = await shown(SCENARIOS["timeout"].question)
    assert result.duration_seconds == pytest.approx(600)


async def test_a_quick_model_that_says_nothing_for_two_seconds_is_asked_no_longer_and_delays_no_tool() -> None:
    quick = ScriptedProvider(word)
    lines, result = await shown("Read settings.toml", quick=quick, backend=Backend(seconds=5))
    assert lines[:4] == [*ASKED, *READING, *RESULTS]
    assert result.tool_calls[0].duration_seconds == pytest.approx(5)
    assert quick.requests[0].settings.max_output_tokens == 20


async def test_a_reply_that_broke_off_begins_anew_on_a_line_of_its_own() -> None:
    gone = ProviderUnavailable("gone", vendor="ollama", retryable=True)
    lines, _ = await shown("?", [error(gone, after="Par"), text("Rome.")])
    assert lines == [*ASKED, *LAST, "Par", "Asking the model again...", *LAST, "Rome.", lines[-1]]


async def test_a_model_that_cannot_be_asked_is_reported_in_words_for_people() -> None:
    lines, _ = await shown("Hello?", [error(ProviderRejected("there is no model 'x'", vendor="ollama"))])
    assert lines == [*ASKED, "[I could not finish because the language model did not accept the request.]", "Failed"]


async def test_an_answer_that_did_not_stream_is_shown_all_the_same() -> None:
    class Shouting(Interceptor):
        async def on_answer(self, text: str, context: ToolContext[Any]) -> str:
            return text.upper()

    out = io.StringIO()
    runtime = make_runtime(ScriptedProvider(play), ScriptedProvider(word))
    await ask(runtime, SCENARIOS["no-tools"].question, Screen(out), interceptors=[Shouting()])
    assert lines_of(out) == [*ASKED, "PARIS.", "Done: 0 tool calls, 0.0 s"]


async def test_ctrl_c_ends_the_turn_in_so_many_words() -> None:
    out = io.StringIO()
    runtime = make_runtime(ScriptedProvider(play), ScriptedProvider(word))
    with anyio.move_on_after(1):  # as Ctrl-C does, it cancels
        await ask(runtime, SCENARIOS["timeout"].question, Screen(out))
    assert lines_of(out)[-1] == "Cancelled"


@pytest.mark.parametrize("path", ["../tools.py", "/etc/passwd", "files/plans.toml"])
async def test_no_file_outside_the_folder_is_read(path: str) -> None:
    _, result = await shown("?", [calls(("file_read", {"name": path})), text("No.")])
    assert not result.tool_calls[0].ok


@pytest.mark.parametrize("expression", ["2 ** 9999", "__import__('os')", "1 / 0", "1 +", "(" * 190])
async def test_what_is_no_sum_is_an_error_that_the_model_can_read(expression: str) -> None:
    _, result = await shown("?", [calls(("calculator", {"expression": expression})), text("No.")])
    assert "cannot be worked out" in result.tool_calls[0].error


# ------------------------------------------------------------------------------------------------- the terminal


def test_on_a_terminal_the_status_changes_in_its_place_above_the_answer() -> None:
    out = io.StringIO()
    screen = LiveScreen(Console(file=out, force_terminal=True, width=60, height=20, color_system=None))
    with screen.turn():
        screen.say("Par", 0)
        screen.status("Analyzing request...")
        screen.take_back(0)
        screen.say("Rome\x1b[2J.", 0)
        screen.end("", "Done")
    *_, before, last = out.getvalue().split("\r\x1b[2K\x1b[1A\x1b[2K")  # two lines wiped, and drawn anew
    assert "Analyzing request...\nPar" in out.getvalue()
    assert "Par" not in before + last
    assert last.startswith("■ Done\nRome.\n")


# ------------------------------------------------------------------------------------------------- the command


def test_the_tour_over_a_socket_tells_how_each_scenario_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "SCENARIOS", {name: each for name, each in SCENARIOS.items() if name != "timeout"})
    environment = dict(os.environ)
    assert command.main(["--pace", "0", "--timeline"]) == 0
    assert dict(os.environ) == environment
    shown, _, table = capsys.readouterr().out.partition("How they ended:\n")
    assert [line.split(maxsplit=2)[:2] for line in table.splitlines()] == [
        [name, each.outcome] for name, each in SCENARIOS.items() if name != "timeout"
    ]
    for name, lines in TRANSCRIPTS.items():
        assert name == "timeout" or all(line in shown for line in lines[-2:-1])
    assert "✗ file_read" in shown


def test_what_is_typed_is_one_conversation(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Who is user 7?\n\nAnd 2 + 3 * 4?\n"))
    assert command.main(["--chat", "--pace", "0"]) == 0
    answers = [line for line in capsys.readouterr().out.splitlines() if line.startswith("This is")]
    assert answers[0].startswith('This is what I found: {"name":"Niklaus Wirth"')
    assert answers[1] == "This is what I found: 14"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--provider", "nobody:x"], "there is no provider 'nobody:x'"),
        (["--provider", "openai:gpt-5-mini"], "OPENAI_API_KEY"),
        (["--timeout", "0"], "it must be a finite number above 0"),
    ],
)
def test_what_cannot_be_is_a_sentence_and_no_traceback(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert command.main(flags) == 2
    reported = capsys.readouterr()
    assert says in reported.err
    assert reported.out == ""
