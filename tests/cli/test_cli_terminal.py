"""The command in processes of its own: on a real terminal, and with pipes that close."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

pty = pytest.importorskip("pty", reason="terminals of this kind are a Unix thing")

PATIENCE_SECONDS = 30

TOOLS = '''
import os, time
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

tools = [wait, hang, freeze]

def waiting(): return ScriptedProvider([calls(("wait", {})), text("Never.")])
def hanging(): return ScriptedProvider([calls(("hang", {})), text("Never.")])
def freezing(): return ScriptedProvider([calls(("freeze", {})), text("Never.")])
def talking(): return ScriptedProvider([text("First."), text("Second.")])
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
    return {**kept, "TERM": "xterm-256color", "PYTHONUTF8": "1", **more}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "toolbus", *arguments]


class OnTerminal:
    """A process whose three streams are one terminal."""

    def __init__(self, folder: Path, *arguments: str, columns: int = 60) -> None:
        import fcntl
        import struct
        import termios

        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            command(*arguments),
            cwd=folder,
            env=environment(),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def read_until(self, text: str, *, after: int = 0) -> str:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in self.shown[after:]:
            assert self._read(deadline), f"{text!r} was not shown, but {self.shown!r}"
        return self.shown

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], max(deadline - time.monotonic(), 0))
        try:
            piece = os.read(self._ours, 65536) if ready else b""
        except OSError:  # the other end is closed
            piece = b""
        self.shown += piece.decode("utf-8", "replace")
        return bool(piece)

    def wait(self) -> int:
        """Read to the end; the exit status."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._read(deadline):
            pass
        return self.process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)


@contextlib.contextmanager
def on_terminal(folder: Path, *arguments: str) -> Generator[OnTerminal]:
    opened = OnTerminal(folder, *arguments)
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
        assert terminal.wait() == 130
    last = terminal.shown.rpartition("\x1b[2K")[2].replace("\r\n", "\n")
    assert "cancelled: The request was cancelled." in last
    assert last.endswith("toolbus: cancelled\n")
    assert "Traceback" not in terminal.shown


def test_a_thread_that_hangs_does_not_delay_the_end(desk: Path):
    with on_terminal(desk, "ask", "q", *played("hanging")) as terminal:
        terminal.read_until("\x1b[1mHang\x1b[0m  ")
        terminal.type("\x03")
        assert terminal.wait() == 130


def test_a_second_ctrl_c_kills_even_while_a_tool_holds_the_loop(desk: Path):
    with on_terminal(desk, "ask", "q", *played("freezing")) as terminal:
        terminal.read_until("frozen")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while terminal.process.poll() is None and time.monotonic() < deadline:
            terminal.type("\x03")
            with contextlib.suppress(subprocess.TimeoutExpired):
                terminal.process.wait(0.05)
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
        terminal.process.terminate()
        assert terminal.wait() == 143
    assert "toolbus: cancelled" in terminal.shown
