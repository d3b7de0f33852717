from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from desk import Terminal

from toolbus.cli import main
from toolbus.cli._terminal.live_screen import LiveScreen
from toolbus.cli._terminal.screen import Line, Screen, is_terminal, open_screen
from toolbus.cli._terminal.text import cells
from toolbus.core.plain_text import clean
from toolbus.errors import ConfigurationError

WORK = Line(mark="work", name="Search Text", detail='query="limits"', tail="1.2 s")
DONE = Line(mark="ok", name="Search Text", detail='query="limits"', tail="12 ms")


class Full(io.StringIO):
    """A file on a disk that is full."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.fixture(autouse=True)
def size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "10")


def after(shown: str) -> list[str]:
    """The rows that a terminal which never wraps shows after `shown`."""
    rows: list[str] = []
    for line in shown.split("\n"):
        rows.append(clean(line.rpartition("\x1b[2K")[2]))
    return rows


def test_a_plain_log_has_answer_and_work_on_their_own_streams():
    out, err = io.StringIO(), io.StringIO()
    screen = Screen(out, err)
    screen.say("An")
    screen.note(DONE)
    screen.busy(WORK)
    screen.say("swer")
    screen.end_paragraph()
    screen.end_paragraph()
    assert out.getvalue() == "Answer\n"
    assert err.getvalue() == '✓ Search Text  query="limits"  12 ms\n'


@pytest.mark.parametrize("width", [10, 20, 30, 40, 80])
@pytest.mark.parametrize("mark", ["work", "ok", "failed", ""])
def test_every_line_fits(width: int, mark: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", str(width))
    err = io.StringIO()
    line = Line(mark=mark, name="A Tool With A Name", detail="日本" * 50, tail="12 ms")  # type: ignore[arg-type]
    Screen(None, err).note(line)
    assert 0 < cells(err.getvalue().rstrip("\n")) <= width
    assert width < 20 or "12 ms" in err.getvalue()


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (40, ["Search Text", 'query="limits"', "12 ms"]),
        (30, ["Search Text", 'query="li…', "12 ms"]),
        (24, ["Search Text", "que…", "12 ms"]),
        (23, ["Search Text", "", "12 ms"]),
        (14, ["Search…", "", "12 ms"]),
        (13, ["Search Text", "", ""]),
    ],
)
def test_a_line_that_is_cut_keeps_its_name_then_its_tail_if_that_is_at_most_half_then_the_detail(
    width: int, shown: list[str]
):
    fitted = DONE.fitted(width, "…")
    assert [fitted.name, fitted.detail, fitted.tail] == shown
    assert fitted.mark == "ok"


@pytest.mark.parametrize(
    ("columns", "width"), [("40", 40), ("0", 120), ("-3", 120), ("\u00b2", 120), ("9" * 5000, 120)]
)
def test_a_log_is_as_wide_as_columns_says_where_that_can_be(columns: str, width: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert Screen(io.StringIO(), io.StringIO()).width == width


def test_a_note_begins_on_its_own_line_when_both_streams_are_one_terminal(terminal: Terminal):
    screen = Screen(terminal, terminal)
    screen.say("half a line")
    screen.note(Line(name="a note"))
    assert terminal.getvalue() == "half a line\na note\n"


def test_where_the_encoding_lacks_the_marks_they_are_words():
    raw = io.BytesIO()
    err = io.TextIOWrapper(raw, encoding="ascii")
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    screen = Screen(out, err)
    screen.note(Line(mark="failed", name="Find", detail="x" * 200))
    screen.say("naïve \ud800")
    assert raw.getvalue().startswith(b"failed: Find  xxx")
    assert raw.getvalue().endswith(b"...\n")
    assert out.buffer.getvalue() == b"na?ve ?"  # type: ignore[attr-defined]


def test_without_streams_nothing_is_written_and_nothing_breaks():
    screen = Screen(None, None)
    screen.say("x")
    screen.note(DONE)
    assert screen.failure is None


def test_a_stdout_that_fails_is_reported_once_and_written_no_more():
    reported: list[bool] = []
    screen = Screen(Full(), io.StringIO())
    screen.on_failure = lambda: reported.append(True)
    screen.say("a")
    screen.say("b")
    assert screen.failure is not None
    assert reported == [True]


def test_after_stderr_has_failed_only_the_answer_is_written():
    tried: list[str] = []

    class Broken(Full):
        def write(self, text: str) -> int:
            tried.append(text)
            return super().write(text)

    out = io.StringIO()
    screen = Screen(out, Broken())
    for each in ("a", "b"):
        screen.report(each)
    screen.say("answer")
    assert (tried, out.getvalue(), screen.failure) == (["a\n"], "answer", None)


def test_a_stream_that_is_closed_is_one_that_nobody_reads():
    out, err = io.StringIO(), io.StringIO()
    screen = Screen(out, err)
    out.close()
    err.close()
    screen.say("a")
    screen.report("b")
    assert not open_screen(out, err, {}).live
    assert not is_terminal(err)
    assert isinstance(screen.failure, BrokenPipeError)


def test_the_live_line_is_gone_once_anything_else_is_written(terminal: Terminal):
    screen = LiveScreen(terminal, terminal)
    screen.busy(WORK)
    assert after(terminal.getvalue()) == ['⠋ Search Text  query="limits"  1.2 s']
    screen.busy(WORK)
    assert after(terminal.getvalue()) == ['⠙ Search Text  query="limits"  1.2 s']
    screen.note(DONE)
    assert after(terminal.getvalue()) == ['✓ Search Text  query="limits"  12 ms', ""]
    screen.busy(WORK)
    screen.say("Answer")
    assert after(terminal.getvalue()) == ['✓ Search Text  query="limits"  12 ms', "Answer"]


def test_the_live_line_keeps_out_of_an_answer_that_stands_in_the_middle_of_a_line(terminal: Terminal):
    screen = LiveScreen(terminal, terminal)
    screen.say("half")
    screen.busy(WORK)
    assert terminal.getvalue() == "half"


def test_the_live_line_moves_on_while_the_answer_goes_to_a_file(terminal: Terminal):
    screen = LiveScreen(io.StringIO(), terminal)
    screen.say("half")
    screen.busy(WORK)
    assert after(terminal.getvalue()) == ['⠋ Search Text  query="limits"  1.2 s']


def test_a_live_line_that_the_terminal_has_wrapped_since_is_wiped_whole(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
):
    screen = LiveScreen(None, terminal)
    screen.busy(WORK)  # 36 columns
    monkeypatch.setenv("COLUMNS", "15")
    screen.busy(None)
    assert terminal.getvalue().endswith("\r\x1b[2K\x1b[1A\x1b[2K\x1b[1A\x1b[2K")


def test_colours_are_of_the_basic_eight(terminal: Terminal):
    LiveScreen(None, terminal).note(DONE)
    assert "\x1b[32m✓\x1b[0m" in terminal.getvalue()


@pytest.mark.parametrize(
    "environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": "unknown"}], ids=lambda each: "=".join(*each.items())
)
def test_a_terminal_that_asks_for_it_gets_the_plain_log(terminal: Terminal, environment: dict[str, str]):
    assert not open_screen(terminal, terminal, environment).live


def test_a_terminal_gets_the_live_screen_and_a_file_the_plain_log(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    assert open_screen(terminal, terminal, {"TERM": "xterm", "NO_COLOR": ""}).live
    assert not open_screen(terminal, io.StringIO(), {"TERM": "xterm"}).live
    assert not open_screen(None, None, {}).live


def test_without_rich_a_terminal_gets_the_plain_log(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "rich.color", None)
    assert not open_screen(terminal, terminal, {"TERM": "xterm"}).live


class TestWhileAQuestionStands:
    def test_what_others_write_waits_for_its_end_and_keeps_its_order(self, terminal: Terminal):
        screen = Screen(terminal, terminal)
        screen.say("half a line")
        with screen.held():
            screen.ask_about(Line(mark="ask", name="Delete File", detail='path="a"'))
            screen.ask("  Run it? ")
            screen.note(DONE)
            screen.aside("printed ")
            screen.report("told")
            screen.say("Answer")
            screen.end_paragraph()
            screen.note(DONE)
            assert terminal.getvalue() == 'half a line\n? Delete File  path="a"\n  Run it? '
            assert screen.said
            terminal.write("y\n")
        done = '✓ Search Text  query="limits"  12 ms\n'
        assert terminal.getvalue().partition("y\n")[2] == f"{done}printed \ntold\nAnswer\n{done}"

    def test_the_live_line_is_gone_and_comes_back_afterwards(self, terminal: Terminal):
        screen = LiveScreen(terminal, terminal)
        screen.busy(WORK)
        with screen.held():
            screen.ask("Run it? ")
            screen.busy(WORK)
            assert after(terminal.getvalue()) == ["Run it? "]
            terminal.write("y\n")
        screen.busy(WORK)
        assert after(terminal.getvalue()) == ["Run it? y", '⠙ Search Text  query="limits"  1.2 s']

    def test_an_exception_releases_what_was_held(self, terminal: Terminal):
        screen = Screen(terminal, terminal)
        with pytest.raises(KeyboardInterrupt), screen.held():
            screen.report("told")
            raise KeyboardInterrupt
        screen.report("after")
        assert terminal.getvalue() == "told\nafter\n"

    def test_what_is_held_is_bounded_and_what_is_lost_is_counted_but_for_the_answer(self, terminal: Terminal):
        screen = Screen(None, terminal)
        with screen.held():
            for number in range(1_010):
                screen.report(str(number))
            screen.say("never lost")
        lines = terminal.getvalue().splitlines()
        assert lines[999:] == ["999", "toolbus: 10 lines were not shown while a question was open"]
        with screen.held():
            screen.report("the next question loses nothing")
        assert terminal.getvalue().splitlines()[1001:] == ["the next question loses nothing"]
        assert screen.said

    def test_a_live_line_is_wiped_with_the_rows_that_it_takes_in_a_terminal_that_became_narrow(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ):
        for columns, rows in (("40", 1), ("39", 2), ("20", 2), ("19", 3)):
            monkeypatch.setenv("COLUMNS", "60")
            screen = LiveScreen(None, terminal)
            screen.busy(Line(name="x" * 40))
            before = len(terminal.getvalue())
            monkeypatch.setenv("COLUMNS", columns)
            screen.note(DONE)
            assert terminal.getvalue()[before:].count("\x1b[1A") == rows - 1, columns

    def test_what_is_asked_about_is_not_dimmed(self, terminal: Terminal):
        LiveScreen(None, terminal).ask_about(Line(mark="ask", name="Delete File", detail="a=1"))
        assert terminal.getvalue() == "\x1b[33m?\x1b[0m \x1b[1mDelete File\x1b[0m  a=1\n"


@pytest.mark.parametrize("command", ["ask", "chat"])
@pytest.mark.parametrize("is_live", [True, False])
def test_only_a_screen_with_a_live_line_is_redrawn_while_a_request_runs(
    command: str, is_live: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    screen, ticks = Screen(None, io.StringIO()), list[object]()
    screen.live = is_live

    def open_it(*_: object) -> Screen:
        return screen

    def stop(_options: object, _screen: object, _show: object, tick: object) -> NoReturn:
        ticks.append(tick)
        raise ConfigurationError("seen")

    monkeypatch.setattr("toolbus.cli._main.open_screen", open_it)
    monkeypatch.setattr(f"toolbus.cli._commands.{command}.opened", stop)
    assert main([command, *(["q"] if command == "ask" else [])]) == 2
    assert [each is not None for each in ticks] == [is_live]
