from __future__ import annotations

import builtins
import contextlib
import io
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import scenes
from desk import Command, Terminal

from toolbus import Limits, Runtime
from toolbus.cli import _host, main
from toolbus.cli._host import Host
from toolbus.cli._terminal.screen import Screen
from toolbus.errors import ProviderUnavailable
from toolbus.events import ApprovalRequested
from toolbus.messages import UserMessage
from toolbus.providers.scripted import ScriptedProvider, calls, error, text
from toolbus.testing import virtual_backend

PLAYED = ("chat", "--provider", "scenes:scripted", "--tools", "scenes:everything")


def asked(request: Any) -> list[str]:
    """What the user had said by then."""
    return [str(each.content) for each in request.messages if isinstance(each, UserMessage)]


class TestFromAPipe:
    def test_each_line_is_a_question_of_one_conversation(self, toolbus: Command):
        scenes.play(text("First."), text("Second."))
        ended = toolbus(*PLAYED, stdin="one\n\n  two  ")
        assert (ended.status, ended.out) == (0, "First.\n\nSecond.\n")
        assert ended.err == ""
        assert [asked(each) for each in scenes.seen] == [["one"], ["one", "two"]]

    def test_quit_leaves_and_help_tells_how(self, toolbus: Command):
        ended = toolbus(*PLAYED, stdin="/help\n/frob\n/quit\nnever asked\n")
        assert (ended.status, ended.out) == (0, "")
        assert "/quit" in ended.err
        assert "There is no command /frob; /help lists them.\n" in ended.err

    def test_a_line_that_is_no_utf_8_is_asked_all_the_same(self, toolbus: Command):
        scenes.play(text("Coffee."), text("Tea."))
        ended = toolbus(*PLAYED, stdin="caf\udce9\ntea\n")
        assert (ended.status, ended.out, ended.err) == (0, "Coffee.\n\nTea.\n", "")
        assert [asked(each)[-1] for each in scenes.seen] == ["caf\ufffd", "tea"]

    @pytest.mark.parametrize("command", ["ask", "chat"])
    def test_a_stdin_that_cannot_be_read_is_reported(
        self, command: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ):
        with (folder / "write-only").open("w", encoding="utf-8") as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            assert main([command, "-q"]) == 2
        reported = capsys.readouterr().err
        assert "read" in reported
        assert "stdin" in reported
        assert "internal" not in reported

    @pytest.mark.usefixtures("folder")
    def test_without_stdin_nothing_is_asked(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("sys.stdin", None)
        assert main(["chat", "-q"]) == 0
        assert capsys.readouterr() == ("", "")

    def test_a_path_is_no_command(self, toolbus: Command):
        scenes.play(text("Users."))
        assert toolbus(*PLAYED, stdin="/etc/passwd holds what?\n").out == "Users.\n"

    def test_the_status_is_that_of_the_first_question_that_was_not_answered(self, toolbus: Command):
        scenes.play(text("a"), error(ProviderUnavailable("gone")), calls(("add", {"a": 1, "b": 1})), text("c"))
        ended = toolbus(*PLAYED, "--max-rounds", "1", stdin="one\ntwo\nthree\n")
        assert ended.status == 1
        assert ended.out == "a\n\nc\n"
        assert "toolbus: failed: gone" in ended.err
        assert "toolbus: stopped by a limit: max_rounds=1" in ended.err

    @pytest.mark.parametrize(("tool", "status"), [("interrupted", 130), ("terminated", 143)])
    def test_a_signal_while_an_answer_runs_cancels_it_and_leaves(self, toolbus: Command, tool: str, status: int):
        scenes.play(calls((tool, {})), text("never"))
        ended = toolbus(*PLAYED, stdin="one\ntwo\n")
        assert ended.status == status
        assert ended.err.endswith("toolbus: cancelled\n")
        assert len(scenes.seen) == 1

    def test_a_reader_that_leaves_ends_it(self, toolbus: Command, monkeypatch: pytest.MonkeyPatch):
        class Left(io.StringIO):
            def write(self, text: str) -> int:
                raise BrokenPipeError(32, "Broken pipe")

        scenes.play(text("a"), text("b"))
        monkeypatch.setattr("sys.stdout", Left())
        assert toolbus(*PLAYED, stdin="one\ntwo\n").status == 141
        assert len(scenes.seen) == 1

    def test_ctrl_c_while_it_waits_for_a_line_leaves(self, toolbus: Command, monkeypatch: pytest.MonkeyPatch):
        class Waiting(io.StringIO):
            def readline(self, *_: object) -> str:  # type: ignore[override]
                signal.raise_signal(signal.SIGINT)
                return "never"

        toolbus(*PLAYED)
        monkeypatch.setattr("sys.stdin", Waiting())
        assert main([*PLAYED]) == 130


@pytest.fixture
def by_hand(folder: None, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Chats on a terminal with what a person does at each prompt: text, an exception or a function."""

    def run(*steps: Any, options: tuple[str, ...] = (), stdout: io.StringIO | None = None) -> tuple[int, str]:
        left: Iterator[Any] = iter(steps)

        def prompt(shown: str = "") -> str:
            terminal.write(shown)
            step = next(left, None)
            if step is None:
                raise EOFError
            if callable(step):
                step()
            terminal.write(f"{step}\n")
            return str(step)

        terminal.readline = lambda *_: prompt() + "\n"  # type: ignore[method-assign]
        monkeypatch.setattr(builtins, "input", prompt)
        monkeypatch.setattr("sys.stdin", terminal)
        monkeypatch.setattr("sys.stdout", stdout or terminal)
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setenv("TERM", "dumb")
        return main([*PLAYED, *options]), terminal.getvalue()

    return run


class TestByHand:
    def test_it_says_whom_one_talks_to_and_how_to_leave(self, by_hand: Callable[..., tuple[int, str]]):
        scenes.play(text("First."), text("Second."))
        status, shown = by_hand("one", "two")
        assert status == 0
        assert shown == (
            "toolbus chat with scenes:scripted; /help lists the commands, Ctrl-D leaves.\n> one\nFirst.\n> two\nSecond.\n> \n"
        )

    def test_ctrl_c_at_the_prompt_gives_a_new_one(self, by_hand: Callable[..., tuple[int, str]]):
        scenes.play(text("First."))
        status, shown = by_hand(lambda: signal.raise_signal(signal.SIGINT), "", "one", options=("-q",))
        assert (status, shown) == (0, "> \n> \n> one\nFirst.\n> \n")

    def test_ctrl_c_cancels_the_answer_and_comes_back_to_the_prompt(self, by_hand: Callable[..., tuple[int, str]]):
        scenes.play(calls(("interrupted", {})), text("Second."))
        status, shown = by_hand("one", "two", options=("-q",))
        assert (status, shown) == (0, "> one\ntoolbus: cancelled\n> two\nSecond.\n> \n")
        assert asked(scenes.seen[-1]) == ["one", "two"]

    def test_a_failed_answer_does_not_change_the_status(self, by_hand: Callable[..., tuple[int, str]]):
        scenes.play(error(ProviderUnavailable("gone")))
        assert by_hand("one")[0] == 0

    def test_sigterm_at_the_prompt_leaves(self, by_hand: Callable[..., tuple[int, str]]):
        assert by_hand(lambda: signal.raise_signal(signal.SIGTERM))[0] == 143

    def test_the_prompt_does_not_get_into_a_file_of_answers(self, by_hand: Callable[..., tuple[int, str]]):
        scenes.play(text("First."))
        answers = io.StringIO()
        status, shown = by_hand("one", "/quit", stdout=answers, options=("-q",))
        assert (status, answers.getvalue(), shown) == (0, "First.\n", "> one\n> /quit\n")

    def test_without_readline_lines_are_read_all_the_same(
        self, by_hand: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setitem(__import__("sys").modules, "readline", None)
        scenes.play(text("First."))
        assert "> one\nFirst.\n" in by_hand("one")[1]


def test_the_live_line_is_drawn_again_while_a_request_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_host, "_FRAME_SECONDS", 0.001)
    waiting: list[anyio.Event] = []

    async def wait() -> str:
        """Wait for the next frame."""
        waiting.append(anyio.Event())
        await waiting[0].wait()
        return "drawn"

    def tick() -> None:
        for each in waiting:
            each.set()

    script = ScriptedProvider([calls(("wait", {})), text("Done.")])
    runtime = Runtime(script, tools=[wait], limits=Limits(tool_timeout_seconds=5))
    with Host(runtime, Screen(None, None), lambda _event: None, tick) as host:
        assert [call.content for call in host.ask("q").tool_calls] == ["drawn"]


@pytest.mark.parametrize("anyio_backend", [virtual_backend("asyncio")], ids=["asyncio"])
async def test_the_live_line_is_drawn_ten_times_a_second_until_no_question_is_open():
    drawn: list[float] = []

    def tick() -> None:
        drawn.append(anyio.current_time())
        if len(drawn) == 5:
            host._asked = None  # pyright: ignore[reportPrivateUsage]

    host = Host(Runtime(ScriptedProvider([])), Screen(None, None), lambda _event: None, tick)
    question = ApprovalRequested(request_id="r", call_id="c", name="t", arguments={}, timeout_seconds=9.0)
    host._asked, host.signal = question, signal.SIGINT  # pyright: ignore[reportPrivateUsage]
    await host._finish(())  # pyright: ignore[reportPrivateUsage]
    assert drawn == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


class TestSignals:
    @pytest.fixture
    def host(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
        self.killed: list[tuple[int, object]] = []

        def kill(_pid: int, number: int) -> None:
            self.killed.append((number, signal.getsignal(number)))

        monkeypatch.setattr(_host, "os", SimpleNamespace(getpid=os.getpid, kill=kill))
        before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
        yield Host(Runtime(ScriptedProvider([text("x")])), Screen(None, None), lambda _event: None, None)
        for number, handler in before.items():
            signal.signal(number, handler)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_the_second_one_kills(self, host: Host, number: int):
        with host:
            host._asking = True  # pyright: ignore[reportPrivateUsage]
            signal.raise_signal(number)
            assert self.killed == []
            signal.raise_signal(number)
        assert self.killed == [(number, signal.SIG_DFL)]

    def test_one_that_ends_a_reading_does_so_though_another_is_there_by_then(self, host: Host):
        with pytest.raises(KeyboardInterrupt), host.prompting():
            raise SystemError("returned a result with an exception set") from KeyboardInterrupt()
        with pytest.raises(SystemError), host.prompting():
            raise SystemError("something else")

    def test_one_that_comes_while_everything_closes_kills(self, host: Host):
        with host:
            host.ask("q")
            signal.raise_signal(signal.SIGINT)
        assert self.killed == [(signal.SIGINT, signal.SIG_DFL)]

    @pytest.mark.parametrize("cancelled", [False, True])
    @pytest.mark.parametrize("state", ["no question", "open", "settled"])
    @pytest.mark.parametrize("reads", [False, True])
    def test_the_wake_up_ends_a_reading_only_if_its_question_needs_no_answer_any_more(
        self, host: Host, cancelled: bool, state: str, reads: bool
    ):
        question = ApprovalRequested(request_id="r", call_id="c", name="t", arguments={}, timeout_seconds=9.0)
        host._asked = None if state == "no question" else question  # pyright: ignore[reportPrivateUsage]
        if state == "open":
            host._waiting.receive(question)  # pyright: ignore[reportPrivateUsage]
        host._prompting = reads  # pyright: ignore[reportPrivateUsage]
        host.signal = signal.SIGINT if cancelled else None
        expected = reads and state == "settled" and not cancelled
        with pytest.raises(_host._Settled) if expected else contextlib.nullcontext():  # pyright: ignore[reportPrivateUsage]
            host._on_wake(0, None)  # pyright: ignore[reportPrivateUsage]

    def test_one_that_comes_before_the_request_has_begun_cancels_it(self, host: Host):
        with host:
            host._runtime.start = self._with_signal(host, host._runtime.start)  # type: ignore[method-assign]
            assert host.ask("q").outcome == "cancelled"
            assert host.signal == signal.SIGTERM

    @staticmethod
    def _with_signal(host: Host, start: Callable[..., Any]) -> Callable[..., Any]:
        def started(*args: Any, **kwargs: Any) -> Any:
            host.signal = signal.SIGTERM
            return start(*args, **kwargs)

        return started

    def test_one_that_comes_after_the_loop_has_ended_does_no_harm(self, host: Host):
        with host:
            pass
        host._asking = True  # pyright: ignore[reportPrivateUsage]
        host._on_signal(signal.SIGINT, None)  # pyright: ignore[reportPrivateUsage]
        assert host.signal == signal.SIGINT


def test_a_conversation_is_not_another_one(toolbus: Command):
    for _ in range(2):
        scenes.play(text("x"))
        toolbus(*PLAYED, stdin="one\n")
    assert len({each.conversation_id for each in scenes.seen}) == 2
    assert [asked(each) for each in scenes.seen] == [["one"], ["one"]]
