"""What tools print while a command runs, and characters that turn the direction of writing: nothing steers a terminal."""

from __future__ import annotations

import io
import json
import sys
import threading
import warnings

import pytest
import scenes
from desk import Command, Terminal

from toolbus import Tool
from toolbus.cli._terminal.live_screen import LiveScreen
from toolbus.cli._terminal.screen import Line, Screen
from toolbus.cli._terminal.tool_output import printed_apart
from toolbus.providers.scripted import calls, text

HOSTILE = "\x1b]52;c;cm0gLXJm\x07\x1b[2J\x1b[1mbold\x1b[0m \u202etxt.exe\u2066\u061c"
STEERS = set("\x1b\x07\x9b\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
ASK = ("ask", "q", "--provider", "scenes:scripted", "--tools", "test_cli_tool_output:tools")


def print_hostile(how: str) -> str:
    """Print."""
    if how == "print":
        print(HOSTILE)  # noqa: T201
    elif how == "stderr":
        print(HOSTILE, file=sys.stderr)  # noqa: T201
    elif how == "bytes":
        sys.stdout.buffer.write(HOSTILE.encode() + b"\n")
    elif how == "pieces":
        for byte in HOSTILE.encode():
            sys.stdout.buffer.write(bytes([byte]))
        print()  # noqa: T201
    elif how == "warning":
        sys.stderr.write(warnings.formatwarning(HOSTILE, UserWarning, "file.py", 1, ""))
    elif how == "thread":
        thread = threading.Thread(target=print, args=(HOSTILE,))
        thread.start()
        thread.join()
    elif how == "no end":
        print(HOSTILE, end="")  # noqa: T201
    return "printed"


tools = [Tool("print_hostile", handler=print_hostile)]


@pytest.mark.parametrize("how", ["print", "stderr", "bytes", "pieces", "warning", "thread", "no end"])
def test_what_a_tool_prints_is_shown_without_what_steers_the_terminal(how: str, toolbus: Command):
    scenes.play(calls(("print_hostile", {"how": how})), text("Done."))
    ended = toolbus(*ASK)
    assert (ended.status, ended.out) == (0, "Done.\n")
    assert "bold txt.exe\n" in ended.err, "and what comes after it begins a line"
    assert not STEERS & set(ended.err)


def test_an_answer_a_call_and_a_failure_turn_no_direction(toolbus: Command):
    scenes.play(calls(("no\u202esuch", {"\u2066a": "b\u202ec"}), text="I\u202e will"), text(f"Done {HOSTILE}."))
    ended = toolbus(*ASK)
    assert "Done bold txt.exe." in ended.out
    assert not STEERS & set(ended.out + ended.err)


def test_as_data_they_are_escaped_and_the_same_value(toolbus: Command):
    scenes.play(text("a\u202eb\u061cc"))
    ended = toolbus(*ASK, "--json")
    assert not STEERS & set(ended.out)
    assert json.loads(ended.out)["text"] == "a\u202eb\u061cc"


def test_half_a_character_at_the_end_is_shown_as_a_mark():
    log = io.StringIO()
    with printed_apart(Screen(None, log)):
        sys.stdout.buffer.write(b"half \xc3")
    assert log.getvalue().strip() == "half \ufffd"


def test_the_live_line_is_not_drawn_into_what_a_tool_is_printing():
    terminal = Terminal()
    screen = LiveScreen(terminal, terminal)
    work = Line(mark="work", name="Working")
    screen.busy(work)
    screen.aside("half ")
    before = terminal.getvalue()
    screen.busy(work)
    screen.aside("a line")
    assert terminal.getvalue() == f"{before}a line"
    screen.note(Line(mark="ok", name="Done"))
    screen.busy(work)
    assert "half a line\n" in terminal.getvalue()
    screen.aside("more")
    screen.say("Answer\n")
    assert terminal.getvalue().endswith("more\nAnswer\n")


def test_a_process_without_stderr_may_print_as_well(monkeypatch: pytest.MonkeyPatch):
    out = io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", None)
    with printed_apart(Screen(out, None)):
        print("nowhere")  # noqa: T201
        assert not sys.stdout.isatty()
        with pytest.raises(io.UnsupportedOperation):
            sys.stdout.fileno()
    assert sys.stdout is out
    assert not out.getvalue()
