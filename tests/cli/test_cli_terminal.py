"""The command in processes of its own: on a real terminal, and with pipes that close."""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import command_on_terminal
import pytest

from support import forked

pty = pytest.importorskip("pty", reason="terminals of this kind are a Unix thing")
IS_LIBEDIT = "libedit" in (pytest.importorskip("readline").__doc__ or "")

PATIENCE_SECONDS = 30

TOOLS = '''
import os, pathlib, time
import anyio
from toolbus import tool
from toolbus.providers.scripted import ScriptedProvider, calls, text

@tool
async def wait() -> str:
    """Wait for ever."""
    await anyio.sleep_forever()

@tool
def hang() -> str:
    """Hang in a thread."""
    time.sleep(600)

@tool
async def freeze() -> str:
    """Freeze the loop."""
    print("frozen", flush=True)
    time.sleep(600)

@tool(destructive=True)
async def delete_file(path: str, force: bool = False) -> str:
    """Delete a file."""
    return f"deleted {path} {force}"

@tool
async def chatter() -> str:
    """Print while a question stands."""
    while not pathlib.Path("go").exists():
        await anyio.sleep(0.01)
    print("printed by a tool")
    pathlib.Path("printed").touch()
    return "ok"

tools = [wait, hang, freeze, delete_file, chatter]
DELETE = ("delete_file", {"path": "notes.txt"})

def waiting(): return ScriptedProvider([calls(("wait", {})), text("Never.")])
def hanging(): return ScriptedProvider([calls(("hang", {})), text("Never.")])
def freezing(): return ScriptedProvider([calls(("freeze", {})), text("Never.")])
def talking(): return ScriptedProvider([text("First."), text("Second.")])
def deleting(): return ScriptedProvider([calls(DELETE), text("Done."), calls(DELETE), text("Again.")])
def chattering(): return ScriptedProvider([calls(("chatter", {}), DELETE), text("Done.")])
def echoing(): return ScriptedProvider(lambda request: text(f"asked: {request.messages[-1].text!r}"))
def endless(): return ScriptedProvider([text("word " * 200_000)])
'''


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    (tmp_path / "slow_tools.py").write_text(TOOLS, encoding="utf-8")
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOOLBUS_", "OPENAI_"))}
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        kept.pop(name, None)
    return {**kept, "TERM": "xterm-256color", "PYTHONUTF8": "1", "TOOLBUS_STORE": "none", **more}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "toolbus", *arguments]


class OnTerminal:
    """The command in a process whose three streams are one terminal."""

    def __init__(self, folder: Path, *arguments: str, columns: int = 60) -> None:
        import fcntl
        import struct
        import termios

        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        name = os.ttyname(theirs)
        self.process = forked.Process(command_on_terminal.main, name, str(folder), environment(), arguments)
        assert self.process.stdout.readline() == b"opened\n"
        os.close(theirs)
        self.shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may come in pieces

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def read_until(self, text: str, *, after: int = 0) -> str:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in self.shown[after:]:
            assert self._read(deadline), f"{text!r} was not shown, but {self.shown!r}"
        return self.shown

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self.ours], [], [], max(deadline - time.monotonic(), 0))
        try:
            piece = os.read(self.ours, 65536) if ready else b""
        except OSError:  # the other end is closed
            piece = b""
        self.shown += self._decoder.decode(piece)
        return bool(piece)

    def wait(self) -> int | None:
        """Read to the end; the exit status."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._read(deadline):
            pass
        return self.process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        self.process.close()
        os.close(self.ours)


@contextlib.contextmanager
def on_terminal(folder: Path, *arguments: str, columns: int = 60) -> Generator[OnTerminal]:
    opened = OnTerminal(folder, *arguments, columns=columns)
    try:
        yield opened
    finally:
        opened.close()


def played(name: str) -> tuple[str, ...]:
    return ("--provider", f"slow_tools:{name}", "--tools", "slow_tools:tools")


def test_the_live_line_moves_and_ctrl_c_cancels(desk: Path):
    with on_terminal(desk, "ask", "q", *played("waiting")) as terminal:
        terminal.read_until("\x1b[1mWait\x1b[0m  ")
        terminal.type("\x03")
        assert terminal.wait() == 130, terminal.shown
    last = terminal.shown.rpartition("\x1b[2K")[2].replace("\r\n", "\n")
    assert "cancelled: The request was cancelled." in last
    assert last.endswith("toolbus: cancelled\n")
    assert "Traceback" not in terminal.shown


def test_a_thread_that_hangs_does_not_delay_the_end(desk: Path):
    with on_terminal(desk, "ask", "q", *played("hanging")) as terminal:
        terminal.read_until("\x1b[1mHang\x1b[0m  ")
        terminal.type("\x03")
        assert terminal.wait() == 130, terminal.shown


def test_a_second_ctrl_c_kills_even_while_a_tool_holds_the_loop(desk: Path):
    with on_terminal(desk, "ask", "q", *played("freezing")) as terminal:
        terminal.read_until("frozen")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while terminal.process.wait(0.05) is None and time.monotonic() < deadline:
            terminal.type("\x03")
        assert terminal.process.returncode == -signal.SIGINT
        terminal.wait()
    assert "Traceback" not in terminal.shown


def test_a_chat_can_be_edited_and_left(desk: Path):
    with on_terminal(desk, "chat", *played("talking"), "-q") as terminal:
        terminal.read_until("> ")
        terminal.type("onx\x7fe\n")  # with a key that takes back
        terminal.read_until("First.\r\n")
        so_far = terminal.shown.index("First.")
        terminal.read_until("> ", after=so_far)
        terminal.type("\x1b[A\n")  # the line before, once more
        terminal.read_until("one", after=so_far)
        terminal.read_until("Second.\r\n", after=so_far)
        terminal.read_until("> ", after=terminal.shown.index("Second."))
        terminal.type("\x04")
        assert terminal.wait() == 0


def test_a_text_that_is_pasted_is_one_question(desk: Path):
    if IS_LIBEDIT:
        pytest.skip("only GNU's readline recognises what is pasted")
    with on_terminal(desk, "chat", *played("echoing"), "-q") as terminal:
        terminal.read_until("\x1b[?2004h")  # asks the terminal to mark what is pasted
        terminal.read_until("> ")
        terminal.type("\x1b[200~first line\nsecond line\x1b[201~\n")
        terminal.read_until("asked: 'first line\\nsecond line'")
        terminal.read_until("> ", after=terminal.shown.index("asked"))
        terminal.type("\x04")
        assert terminal.wait() == 0


def test_a_pipe_that_closes_early_is_quiet(desk: Path):
    process = subprocess.Popen(
        command("ask", "q", *played("endless")),
        cwd=desk,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        assert process.stdout.read(5) == b"word "
        process.stdout.close()
        assert process.wait(PATIENCE_SECONDS) == 141
        assert process.stderr.read() == b""


def test_sigterm_cancels(desk: Path):
    with on_terminal(desk, "ask", "q", *played("waiting")) as terminal:
        terminal.read_until("\x1b[1mWait\x1b[0m  ")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.wait() == 143
    assert "toolbus: cancelled" in terminal.shown


ASKED = "ne[v]er \u203a "


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not come to be"
        time.sleep(0.01)


def test_a_question_stands_undisturbed_while_other_calls_run(desk: Path):
    with on_terminal(desk, "ask", "q", *played("chattering"), columns=80) as terminal:
        terminal.read_until(ASKED)
        so_far = len(terminal.shown)
        terminal.type("n use")
        terminal.read_until("use", after=so_far)
        (desk / "go").touch()
        wait_for(desk / "printed")
        terminal.type(" the other\n")
        terminal.read_until("Done.")
        assert terminal.wait() == 0
    shown = terminal.shown.replace("\r\n", "\n")
    assert f"{ASKED}n use the other\n" in shown.replace("\x1b[?2004l", "").replace("\r", "")
    answered = shown.index("the other\n")
    assert shown.index("printed by a tool") > answered
    assert shown.index("The user denied the call: use the other") > answered


def test_what_was_typed_before_the_question_does_not_answer_it(desk: Path):
    with on_terminal(desk, "chat", *played("deleting"), columns=80) as terminal:
        terminal.read_until("> ")
        terminal.type("one\ny\ny\n")
        terminal.read_until(ASKED)
        terminal.type("\n")
        terminal.read_until("The user denied the call.")


def test_arguments_can_be_edited_in_place_and_answers_are_not_in_the_history(desk: Path):
    with on_terminal(desk, "chat", *played("deleting"), "-q", columns=80) as terminal:
        terminal.read_until("> ")
        terminal.type("one\n")
        terminal.read_until(ASKED)
        terminal.type("e\n")
        if IS_LIBEDIT:
            terminal.read_until('{"path": "notes.txt"}\r\n  Type new arguments as JSON; an empty line keeps these.')
            terminal.type('{"path": "notes.txt", "force": true}\n')
        else:
            terminal.read_until('Arguments, as JSON \u203a {"path": "notes.txt"}')
            terminal.type('\x7f, "force": true}\n')  # behind what is there
        terminal.read_until('path="notes.txt" force=true')
        terminal.read_until(ASKED, after=terminal.shown.index("force=true"))
        terminal.type("y\n")
        terminal.read_until("Done.")
        so_far = terminal.shown.index("Done.")
        terminal.read_until("> ", after=so_far)
        terminal.type("\x1b[A\n")  # the line before is the question, and no answer
        terminal.read_until("one", after=so_far)
        terminal.read_until(ASKED, after=so_far)
        terminal.type("n\n")
        terminal.read_until("Again.")
        terminal.read_until("> ", after=terminal.shown.index("Again."))
        terminal.type("\x04")
        assert terminal.wait() == 0


def test_ctrl_c_at_a_question_cancels(desk: Path):
    with on_terminal(desk, "ask", "q", *played("deleting"), columns=80) as terminal:
        terminal.read_until(ASKED)
        terminal.type("\x03")
        assert terminal.wait() == 130, terminal.shown
    assert "Traceback" not in terminal.shown
    assert terminal.shown.endswith("toolbus: cancelled\r\n")


def test_a_question_that_expires_gives_the_terminal_back(desk: Path):
    import termios

    expiring = ("--limit", "approval_timeout_seconds=0.3")
    with on_terminal(desk, "ask", "q", *played("deleting"), *expiring, columns=80) as terminal:
        terminal.read_until(ASKED)
        terminal.type("half an answ")
        assert terminal.wait() == 0
        modes = termios.tcgetattr(terminal.ours)[3]
    assert modes & termios.ECHO
    assert modes & termios.ICANON
    assert "An answer is no longer needed." in terminal.shown
    assert "Nobody decided on the call in time" in terminal.shown
    assert "Done." in terminal.shown


def test_on_a_narrow_terminal_the_question_is_short(desk: Path):
    with on_terminal(desk, "ask", "q", *played("deleting"), columns=40) as terminal:
        terminal.read_until("  Run it? [y/n/a/e/v/?] \u203a ")
        terminal.type("y\n")
        terminal.read_until("Done.")
        assert terminal.wait() == 0
