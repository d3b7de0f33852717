"""Calls that need approval, in this process: what is asked, what the answers do, and what happens without a person."""

from __future__ import annotations

import builtins
import io
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import orjson
import pytest
import scenes
from desk import Command, Terminal

from toolbus.cli import _approval, main
from toolbus.cli._pending_approvals import PendingApprovals
from toolbus.cli._terminal import prompt as _prompt
from toolbus.cli._terminal.screen import Screen
from toolbus.events import ApprovalDecided, ApprovalRequested, Event, ToolCallFailed, ToolCallStarted, decode
from toolbus.messages import ToolMessage
from toolbus.protocols import ModelRequest
from toolbus.providers.scripted import calls, text

ASK = ("ask", "q", "--provider", "scenes:scripted", "--tools", "scenes:dangerous")
CHAT = ("chat", "-q", *ASK[2:])
NOTES = calls(("delete_file", {"path": "notes.txt"}))
RUN_IT = "  Run it? [y]es, [n]o, [a]lways, [e]dit, ne[v]er \u203a "


def results(request: ModelRequest) -> list[str]:
    """What the model was told of the calls."""
    return [each.content for each in request.messages if isinstance(each, ToolMessage)]


class FakeReadline:
    """What the command uses of readline; the answers' history is what it must keep out of."""

    def __init__(self) -> None:
        self.auto_history = True
        self.hook: Callable[[], None] | None = None
        self.inserted = ""

    def set_auto_history(self, enabled: bool) -> None:
        self.auto_history = enabled

    def set_startup_hook(self, hook: Callable[[], None] | None) -> None:
        self.hook = hook

    def insert_text(self, text: str) -> None:
        self.inserted = text


class Libedit(FakeReadline):
    """Importing this module enables command line editing using libedit readline."""


class Person:
    """Somebody at the terminal, who does one thing at each prompt: types a line, or what a function does."""

    def __init__(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
        self.terminal = terminal
        self.readline: FakeReadline | None = FakeReadline()
        self.offered: list[str] = []  # what stood behind each prompt already
        self._patch = monkeypatch
        self._left: Iterator[Any] = iter(())

    def _type(self, prompt: str = "") -> str:
        self.terminal.write(prompt)
        readline = self.readline
        if readline is not None:
            readline.inserted = ""
            if readline.hook is not None:
                readline.hook()
            self.offered.append(readline.inserted)
        step = next(self._left, None)
        if step is None:
            raise EOFError
        typed = step() if callable(step) else step
        self.terminal.write(f"{typed}\n")
        return str(typed)

    def __call__(self, *steps: Any, arguments: tuple[str, ...] = ASK, stdout: io.StringIO | None = None) -> int:
        self._left = iter(steps)
        self.terminal.readline = lambda *_: self._type() + "\n"  # type: ignore[method-assign]
        return self._main(arguments, stdout)

    def at_end(self, *, stdout: io.StringIO) -> int:
        """With nothing more to come, where `readline` says so in its own way."""
        self.terminal.readline = lambda *_: ""  # type: ignore[method-assign]
        return self._main(ASK, stdout)

    def _main(self, arguments: tuple[str, ...], stdout: io.StringIO | None) -> int:
        self._patch.setattr(builtins, "input", self._type)
        self._patch.setattr(_prompt, "_readline", lambda: self.readline)
        self._patch.setattr("sys.stdin", self.terminal)
        self._patch.setattr("sys.stdout", stdout or self.terminal)
        self._patch.setattr("sys.stderr", self.terminal)
        self._patch.setenv("TERM", "dumb")
        return main(arguments)

    @property
    def shown(self) -> str:
        return self.terminal.getvalue()

    @property
    def questions(self) -> list[str]:
        return [line for line in self.shown.splitlines() if line.startswith("? ")]


@pytest.fixture
def person(folder: None, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Person:
    return Person(terminal, monkeypatch)


class TestAnswers:
    def test_yes_runs_the_call_once(self, person: Person):
        scenes.play(NOTES, calls(("delete_file", {"path": "notes.txt"})), text("Done."))
        assert person("y", "n") == 0
        assert scenes.did == ["notes.txt"]
        assert person.shown.startswith(
            f'? Delete File  path="notes.txt"\n{RUN_IT}y\n→ Delete File  path="notes.txt"\n'
            '✓ Delete File  path="notes.txt"  '
        )
        assert person.shown.endswith(
            f'? Delete File  path="notes.txt"\n{RUN_IT}n\n'
            '⊘ Delete File  path="notes.txt"\n  The user denied the call.\nDone.\n'
        )

    def test_no_denies_and_the_reason_is_told_to_the_model(self, person: Person):
        scenes.play(NOTES, text("Then not."))
        assert person("n use the other file") == 0
        assert scenes.did == []
        assert "The user denied the call: use the other file" in results(scenes.seen[-1])[0]
        assert (
            '⊘ Delete File  path="notes.txt"\n  The user denied the call: use the other file\nThen not.' in person.shown
        )

    @pytest.mark.parametrize("steps", [("",), ()], ids=["an empty line", "the end of input"])
    def test_nothing_denies(self, person: Person, steps: tuple[str, ...]):
        scenes.play(NOTES, text("Then not."))
        assert person(*steps) == 0
        assert scenes.did == []
        assert "\n⊘ Delete File" in person.shown

    def test_always_is_for_the_tool_and_for_the_conversation(self, person: Person):
        more = calls(("delete_file", {"path": "b"}), ("send_mail", {"to": "c"}))
        scenes.play(NOTES, text("1"), more, text("2"))
        assert person("one", "a", "two", "n", arguments=CHAT) == 0
        assert scenes.did == ["notes.txt", "b"]
        assert person.questions == ['? Delete File  path="notes.txt"', '? Send Mail  to="c"']

    def test_never_is_too(self, person: Person):
        scenes.play(NOTES, text("1"), calls(("delete_file", {"path": "b"})), text("2"))
        assert person("one", "v it is mine", "two", arguments=CHAT) == 0
        assert scenes.did == []
        assert len(person.questions) == 1
        assert "was denied, and that was to be remembered" in results(scenes.seen[-1])[-1]

    def test_what_is_unclear_is_explained_and_asked_again(self, person: Person):
        scenes.play(calls(("delete_file", {"path": "x" * 600})), text("Done."))
        person("yes but later", "y")
        assert len(scenes.did) == 1
        first, _, second = person.shown.partition("yes but later\n")
        assert "more characters (? shows all)" in first
        assert "  v  do not run it, nor any later call of Delete File in" in second
        assert "more characters" not in second
        assert second.count("x") > 600


class TestSeveral:
    def test_they_are_asked_in_call_order_and_none_is_taken_for_another(self, person: Person):
        paths = [("delete_file", {"path": name}) for name in "abcd"]
        scenes.play(calls(*paths), text("Done."))
        assert person("n not a", "y", "n not c", "y") == 0
        assert person.questions == [f'? Delete File  path="{name}"' for name in "abcd"]
        assert scenes.did == ["b", "d"]
        reported = results(scenes.seen[-1])
        assert [part in each for part, each in zip(["not a", "b is gone", "not c", "d is gone"], reported, strict=True)]
        assert "not a" in reported[0]
        assert "not c" in reported[2]

    def test_always_also_answers_for_those_that_wait_already(self, person: Person):
        paths = [("delete_file", {"path": name}) for name in "abc"]
        scenes.play(calls(*paths, ("send_mail", {"to": "d"})), text("Done."))
        assert person("y", "a", "y") == 0
        assert person.questions == ['? Delete File  path="a"', '? Delete File  path="b"', '? Send Mail  to="d"']
        assert sorted(scenes.did) == ["a", "b", "c", "d"]

    def test_never_denies_those_that_wait_already(self, person: Person):
        scenes.play(calls(*[("delete_file", {"path": name}) for name in "ab"]), text("Done."))
        assert person("v hands off") == 0
        assert len(person.questions) == 1
        assert all("The user denied the call: hands off" in each for each in results(scenes.seen[-1]))

    def test_those_of_a_request_within_the_request_are_asked_too(self, person: Person):
        scenes.play(calls(("helper", {"task": "a"})), calls(("helper", {"task": "b"})), text("Done."))
        assert person("a") == 0
        assert person.questions == ['? Delete File  path="a"']
        assert scenes.did == ["a", "b"]

    def test_their_arguments_can_be_edited_too_and_are_checked_by_their_own_tool(self, person: Person):
        scenes.play(calls(("helper", {"task": "a"})), text("Done."))
        assert person("e", '{"nothing": 1}', "y") == 0
        assert person.questions == ['? Delete File  path="a"', "? Delete File  nothing=1"]
        assert scenes.did == []

    def test_one_that_needs_no_answer_any_more_is_taken_back(self, person: Person):
        def wait() -> str:
            scenes.asked.set()
            threading.Event().wait(20)  # as somebody who thinks about it
            return "y"

        scenes.play(calls(("delete_file", {"path": "a"}), ("failing", {}), ("send_mail", {"to": "b"})), text("never"))
        assert person(wait, "y", arguments=(*ASK, "--limit", "on_failure=fail_fast")) == 3
        assert scenes.did == []
        assert len(person.questions) == 1
        assert "\n  An answer is no longer needed.\n✗ Failing" in person.shown
        assert person.shown.endswith("toolbus: stopped by a limit: on_failure=fail_fast\n")


class TestEditing:
    def test_the_arguments_are_there_to_be_edited_and_the_call_is_asked_about_again(self, person: Person):
        scenes.play(NOTES, text("Done."))
        person("e", '{"path": "other.txt", "force": true}', "y")
        assert person.offered == ["", '{"path": "notes.txt"}', ""]
        assert person.questions == ['? Delete File  path="notes.txt"', '? Delete File  path="other.txt" force=true']
        assert scenes.did == ["other.txt!"]

    def test_what_was_edited_can_still_be_denied(self, person: Person):
        scenes.play(NOTES, text("Done."))
        person("e", '{"path": "other.txt"}', "")
        assert scenes.did == []

    @pytest.mark.parametrize(
        ("typed", "said"),
        [
            ('{"path": ', "  the arguments are not valid JSON"),
            ('{"path": 1}', "path: "),
            ('{"nothing": "x"}', "path: "),
            ("[1]", "  the arguments must be a JSON object, not a"),
        ],
    )
    def test_what_the_tool_cannot_take_is_asked_for_again(self, person: Person, typed: str, said: str):
        scenes.play(NOTES, text("Done."))
        person("e", typed, '{"path": "b"}', "y")
        assert said in person.shown
        assert person.offered[2] == typed.strip()
        assert scenes.did == ["b"]

    def test_bytes_that_are_no_text_become_question_marks(self, person: Person):
        scenes.play(NOTES, text("Done."))
        person("e", '{"path": "\udcff"}', "y")
        assert scenes.did == ["\ufffd"]

    @pytest.mark.parametrize(("prefill", "offered"), [("notes", "notes"), ("n\u00f6tes", "")])
    def test_what_the_terminal_cannot_show_is_not_offered(self, person: Person, prefill: str, offered: str):
        class Ascii(Terminal):
            encoding = "ascii"

        questions, readline = _prompt.Questions(Screen(None, None), Ascii()), person.readline
        person._patch.setattr(_prompt, "_readline", lambda: readline)  # pyright: ignore[reportPrivateUsage]
        assert readline is not None
        with questions._editing(prefill):  # pyright: ignore[reportPrivateUsage]
            if readline.hook is not None:
                readline.hook()
        assert readline.inserted == offered

    def test_an_empty_line_keeps_them_and_asks_again(self, person: Person):
        scenes.play(NOTES, text("Done."))
        person("e", " ", "y")
        assert person.questions == ['? Delete File  path="notes.txt"'] * 2
        assert scenes.did == ["notes.txt"]

    def test_the_end_of_input_denies(self, person: Person):
        scenes.play(NOTES, text("Done."))
        assert person("e") == 0
        assert scenes.did == []

    @pytest.mark.parametrize(
        ("typed", "approved", "arguments"),
        [('{"path":"a"}', "y", None), ('{"path":"b"}', "y", {"path": "b"}), ('{"path":"b"}', "n", None)],
    )
    def test_only_a_change_that_is_approved_is_sent(
        self, terminal: Terminal, typed: str, approved: str, arguments: dict[str, str] | None
    ):
        lines = iter(["e\n", f"{typed}\n", f"{approved}\n"])

        class Reading(_prompt.Questions):
            def read(self, prompt: str, prefill: str = "") -> str:
                return next(lines)

        screen = Screen(terminal, terminal)
        asked = ApprovalRequested(call_id="c1", name="delete_file", arguments={"path": "a"}, timeout_seconds=1.0)
        decided = _approval.Person(screen, Reading(screen, terminal), lambda _question, _arguments: None).decide(asked)
        assert (decided.call_id, decided.approved, decided.by) == ("c1", approved == "y", "The user")
        assert decided.arguments == arguments

    @pytest.mark.parametrize("more", [0, 1, 60])
    def test_they_stand_beside_the_name_only_if_all_of_them_fit_there(self, terminal: Terminal, more: int):
        class Reading(_prompt.Questions):
            def read(self, prompt: str, prefill: str = "") -> str:
                return "n\n"

        screen = Screen(terminal, terminal)
        path = "x" * (screen.width - len('? Delete File  path=""') + more)
        asked = ApprovalRequested(call_id="c1", name="delete_file", arguments={"path": path}, timeout_seconds=1.0)
        _approval.Person(screen, Reading(screen, terminal), lambda _question, _arguments: None).decide(asked)
        lines = terminal.getvalue().splitlines()
        assert lines[0] == ("? Delete File" if more else f'? Delete File  path="{path}"')
        assert max(map(len, lines)) <= screen.width
        assert terminal.getvalue().count("x") == len(path)

    @pytest.mark.parametrize("readline", [None, Libedit()])
    def test_where_none_can_be_offered_they_are_shown_and_typed_anew(self, person: Person, readline: Libedit | None):
        person.readline = readline
        scenes.play(NOTES, text("Done."))
        person("e", '{"path": "b"}', "y")
        assert not any(person.offered)
        assert '  {"path": "notes.txt"}\n  Type new arguments as JSON; an empty line keeps these.\n' in person.shown
        assert scenes.did == ["b"]

    def test_always_with_edited_arguments_remembers_the_tool_and_not_the_arguments(self, person: Person):
        scenes.play(calls(("delete_file", {"path": "a"}), ("delete_file", {"path": "b"})), text("Done."))
        person("e", '{"path": "z"}', "a")
        assert sorted(scenes.did) == ["b", "z"]

    def test_answers_do_not_get_into_the_history(self, person: Person):
        readline = person.readline
        assert readline is not None
        scenes.play(NOTES, text("Done."))
        history: list[bool] = []
        person(lambda: history.append(readline.auto_history) or "y")
        assert history == [False]
        assert readline.auto_history
        assert readline.hook is None


class TestSignals:
    @pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    @pytest.mark.parametrize("before", [(), ("e",)], ids=["at the question", "while editing"])
    def test_one_at_a_question_cancels_the_request(
        self, person: Person, number: int, status: int, before: tuple[str, ...]
    ):
        def press() -> NoReturn:
            signal.raise_signal(number)
            raise AssertionError("the reading went on")

        scenes.play(calls(("delete_file", {"path": "a"}), ("send_mail", {"to": "b"})), text("never"))
        assert person(*before, press) == status
        assert scenes.did == []
        assert not [each for each in person.questions if "Mail" in each]
        assert person.shown.endswith("toolbus: cancelled\n")
        assert " \n✗ Delete File" in person.shown, "what follows stands on a line of its own, below the question"
        assert "An answer is no longer needed" not in person.shown

    def test_a_chat_goes_on_after_one(self, person: Person):
        scenes.play(NOTES, NOTES, text("Done."))
        press = lambda: signal.raise_signal(signal.SIGINT)  # noqa: E731
        assert person("one", press, "two", "y", arguments=CHAT) == 0
        assert scenes.did == ["notes.txt"]


class TestPlaces:
    def test_the_question_does_not_get_into_a_file_of_answers(self, person: Person):
        answers = io.StringIO()
        scenes.play(NOTES, text("Done."))
        assert person("y", stdout=answers) == 0
        assert answers.getvalue() == "Done.\n"
        assert f'? Delete File  path="notes.txt"\n{RUN_IT}y\n' in person.shown

    def test_the_end_of_input_denies_there_too(self, person: Person):
        scenes.play(NOTES, text("Then not."))
        assert person.at_end(stdout=io.StringIO()) == 0
        assert scenes.did == []
        assert f"{RUN_IT}\n⊘ Delete File" in person.shown

    def test_what_a_tool_prints_meanwhile_is_shown_after_the_answer(self, person: Person):
        import sys

        def wait() -> str:
            print("printed by a tool")  # noqa: T201 -- as one in another thread would
            print("and by another", file=sys.stderr)  # noqa: T201
            assert sys.stdout.isatty()
            assert sys.stdout.encoding == "utf-8"
            assert sys.stdout.errors == "backslashreplace"
            sys.stdout.flush()
            with pytest.raises(io.UnsupportedOperation):
                sys.stdout.fileno()  # the fake terminal's
            return "y"

        scenes.play(NOTES, text("Done."))
        person(wait)
        assert f"{RUN_IT}y\nprinted by a tool\nand by another\n" in person.shown

    def test_quiet_asks_all_the_same(self, person: Person):
        scenes.play(NOTES, text("Done."))
        person("y", arguments=(*ASK, "-q"))
        assert person.shown == f'? Delete File  path="notes.txt"\n{RUN_IT}y\nDone.\n'


class TestWithoutAPerson:
    WHY = "Delete File needs approval, and nobody can be asked"

    def test_a_pipe_denies_at_once_and_says_how_to_allow_it(self, toolbus: Command):
        scenes.play(calls(*[("delete_file", {"path": name}) for name in "ab"]), text("Then not."))
        ended = toolbus(*ASK)
        assert (ended.status, ended.out, scenes.did) == (0, "Then not.\n", [])
        assert ended.err.count(f"toolbus: {self.WHY} (stdin is not a terminal); --approve all runs such calls") == 1
        assert ended.err.count("⊘ Delete File") == 2
        reported = results(scenes.seen[-1])
        assert all("nobody can be asked here (stdin is not a terminal)" in each for each in reported)

    @pytest.mark.parametrize("option", ["--json", "--events"])
    def test_so_does_output_for_a_program_even_on_a_terminal(
        self, toolbus: Command, option: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ):
        def is_terminal(_stream: object) -> bool:
            return True

        monkeypatch.setattr(_approval, "is_terminal", is_terminal)
        scenes.play(NOTES, text("Then not."))
        ended = toolbus(*ASK, option, "-q")
        assert ended.err == f"toolbus: {self.WHY} ({option}); --approve all runs such calls without asking\n"
        assert scenes.did == []

    def test_so_does_a_terminal_that_cannot_show_the_question(
        self, toolbus: Command, terminal: Terminal, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ):
        scenes.play(NOTES, text("Then not."))
        monkeypatch.setattr("sys.stdin", terminal)
        assert main(ASK) == 0
        assert f"{self.WHY} (stderr is not a terminal)" in capsys.readouterr().err

    def test_the_events_tell_who_decided(self, toolbus: Command):
        for approve in ("ask", "all", "none"):
            scenes.play(NOTES, text("x"))
            ended = toolbus(*ASK, "--events", "--approve", approve)
            (decided,) = [each for each in map(decode, ended.out.splitlines()) if isinstance(each, ApprovalDecided)]
            assert decided.by.startswith("toolbus")
            assert decided.approved == (approve == "all")

    def test_all_runs_them_and_says_so_once_unless_it_is_to_be_quiet(self, toolbus: Command):
        said = "toolbus: --approve all: calls that need approval run without asking\n"
        for more, times in (((), 1), (("-q",), 0)):
            scenes.play(calls(*[("delete_file", {"path": name}) for name in "ab"]), text("Done."))
            ended = toolbus(*ASK, "--approve", "all", *more)
            assert (ended.status, sorted(scenes.did)) == (0, ["a", "b"])
            assert ended.err.count(said) == times
            scenes.did.clear()

    def test_all_holds_in_a_chat_too(self, toolbus: Command):
        scenes.play(NOTES, text("Done."))
        ended = toolbus(*CHAT, "--approve", "all", stdin="one\n")
        assert (ended.out, ended.err, scenes.did) == ("Done.\n", "", ["notes.txt"])

    def test_none_denies_them_without_asking(self, toolbus: Command, person: Person):
        scenes.play(NOTES, text("Then not."))
        assert person(arguments=(*ASK, "--approve", "none")) == 0
        assert person.questions == []
        assert scenes.did == []
        assert "(--approve none)" in results(scenes.seen[-1])[0]

    def test_the_result_says_denied(self, toolbus: Command):
        scenes.play(NOTES, text("Then not."))
        (call,) = orjson.loads(toolbus(*ASK, "--json", "--approve", "none").out)["tool_calls"]
        assert (call["ok"], call["reason"]) == (False, "denied")

    def test_another_word_is_wrong_usage(self, toolbus: Command):
        ended = toolbus(*ASK, "--approve", "some")
        assert ended.status == 2
        assert "argument --approve: invalid choice: 'some'" in ended.err


class TestControlTools:
    def test_an_answer_that_is_given_by_a_tool_is_the_answer(self, toolbus: Command):
        scenes.play(calls(("task_complete", {"answer": "It is \x1b[31mdone."})))
        ended = toolbus(*ASK)
        assert (ended.status, ended.out, ended.err) == (0, "It is done.\n", "")

    def test_a_model_that_gives_up_is_quoted(self, toolbus: Command):
        scenes.play(calls(("give_up", {"reason": "there is\nno such file"})))
        ended = toolbus(*ASK)
        assert (ended.status, ended.out) == (3, "")
        assert ended.err == "toolbus: stopped: there is no such file\n"

    def test_a_plan_is_shown_in_the_place_of_its_call(self, toolbus: Command):
        steps = [{"text": "Read the file", "status": "done"}, {"text": "Write it", "status": "active"}]
        scenes.play(calls(("update_plan", {"steps": steps})), text("Done."))
        assert toolbus(*ASK).err == "Plan: [x] Read the file  [>] Write it\n"


def test_nobody_is_asked_any_more_once_the_requests_are_over():
    waiting = PendingApprovals()
    question = ApprovalRequested(call_id="c1", name="delete_file", arguments={"path": "a"}, timeout_seconds=1.0)
    waiting.receive(question)
    assert waiting.is_open(question)
    waiting.end()
    assert not waiting.is_open(question)
    waiting.close()
    assert waiting.next() is None


@pytest.mark.parametrize(
    ("event", "is_open"),
    [
        (ApprovalDecided(call_id="c1", approved=True), False),
        (ToolCallFailed(call_id="c1", name="delete_file", reason="cancelled", error="The request ended."), False),
        (ApprovalDecided(call_id="c2", approved=True), True),
        (ToolCallStarted(call_id="c1", name="delete_file"), True),
    ],
    ids=lambda each: each.type if isinstance(each, Event) else str(each),
)
def test_a_question_is_open_until_its_call_is_decided_or_ends(event: Event, is_open: bool):
    waiting = PendingApprovals()
    question = ApprovalRequested(call_id="c1", name="delete_file", arguments={"path": "a"}, timeout_seconds=1.0)
    waiting.receive(question)
    waiting.receive(event)
    assert waiting.is_open(question) is is_open


def test_the_main_thread_runs_handlers_of_signals_ten_times_a_second_while_it_waits():
    waiting, waits = PendingApprovals(), list[float]()

    def get(timeout: float) -> None:
        waits.append(timeout)
        if len(waits) < 3:
            raise queue.Empty

    waiting._queue = cast("Any", SimpleNamespace(get=get))  # pyright: ignore[reportPrivateUsage]
    assert waiting.next() is None
    assert waits == [0.1, 0.1, 0.1]


@pytest.mark.timeout(10)
def test_a_signal_that_another_thread_gets_is_handled_while_the_main_thread_waits():
    waiting = PendingApprovals()

    def close(_number: int, _frame: object) -> None:
        waiting.close()

    before = signal.signal(signal.SIGUSR1, close)
    other = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1))
    start = threading.Timer(0.05, other.start)  # when the main thread waits already
    try:
        start.start()
        assert waiting.next() is None
    finally:
        start.join()
        other.join()
        signal.signal(signal.SIGUSR1, before)
