"""Markdown on a terminal: laid out block by block, without loss, and without anything that controls the terminal."""

from __future__ import annotations

import io
import re

import pytest
import scenes
from desk import Command, Terminal
from hypothesis import given
from hypothesis import strategies as st

from toolbus.cli._terminal.live_screen import LiveScreen
from toolbus.cli._terminal.markdown import MarkdownText
from toolbus.core.plain_text import clean
from toolbus.providers.scripted import calls, text

BOLD, END = "\x1b[1m", "\x1b[0m"


def shown(markdown: str, *, columns: int = 60, size: int = 7) -> str:
    """What is shown of a text that arrives in pieces of `size` characters."""
    made = MarkdownText(lambda: columns)
    pieces = [made.feed(markdown[at : at + size]) for at in range(0, len(markdown), size)]
    return "".join(pieces) + made.flush()


@pytest.mark.parametrize(
    ("markdown", "looks"),
    [
        ("# Limits\nText.", "\x1b[1;4mLimits\x1b[0m\n\nText.\n"),
        ("a *b* **c** `d` ~~e~~", "a \x1b[3mb\x1b[0m \x1b[1mc\x1b[0m \x1b[36md\x1b[0m \x1b[9me\x1b[0m\n"),
        ("- a\n- b\n  - c", f"{BOLD} • {END}a\n{BOLD} • {END}b\n   {BOLD} • {END}c\n"),
        ("3. a\n4. b", f"{BOLD} 3 {END}a\n{BOLD} 4 {END}b\n"),
        ("```python\nx = *y*\n\nz\n```", "  \x1b[36mx = *y*\x1b[0m\n\n  \x1b[36mz\x1b[0m\n"),
        ("| a | b |\n|---|--:|\n| c | 1 |", f" {BOLD}a{END}  {BOLD}b{END}\n\x1b[2m ──── {END}\n c  1\n"),
        ("> a", "\x1b[3m▌ \x1b[0m\x1b[3ma\x1b[0m\n"),
        ("one\ntwo", "one\ntwo\n"),
        ("[docs](http://a.b/c) <http://d.e>", "\x1b[4mdocs\x1b[0m (\x1b[2mhttp://a.b/c\x1b[0m) http://d.e\n"),
        ("![cat](cat.png)", "!\x1b[4mcat\x1b[0m (\x1b[2mcat.png\x1b[0m)\n"),
        ("List<String> & [1]\n\n[1]: http://a", "List<String> & [1]\n\n[1]: http://a\n"),
        ("snake_case_name 2 * 3 * 4", "snake_case_name 2 * 3 * 4\n"),
    ],
)
@pytest.mark.parametrize("size", [1, 1_000])
def test_each_kind_of_block_is_laid_out(markdown: str, looks: str, size: int):
    assert shown(markdown, size=size) == looks


def test_a_block_is_shown_when_the_next_one_begins_and_the_last_one_at_the_end():
    made = MarkdownText(lambda: 60)
    assert made.feed("One **b") == ""
    assert made.feed("** more.\n\n") == ""
    assert made.feed("T") == f"One {BOLD}b{END} more.\n"
    assert made.feed("wo.\n") == ""
    assert made.flush() == "\nTwo.\n"
    assert made.feed("Next answer.") + made.flush() == "Next answer.\n"


def test_a_code_block_is_as_wide_as_the_terminal():
    lines = re.sub(r"\x1b\[[\d;]*m", "", shown(f"```\n{'x' * 59}\n```", columns=60)).splitlines()
    assert lines == ["  " + "x" * 58, "  x"]


def test_an_empty_line_does_not_end_a_code_block_or_an_item_of_a_list():
    made = MarkdownText(lambda: 60)
    assert made.feed("- item\n\n  its second part\n\n  ~~~\n\ncode\n~~~\n") == ""
    assert "its second part" in made.feed("\nafter")
    made = MarkdownText(lambda: 60)
    assert made.feed("1. one\n\n 2. two\n") == "", "one space is enough"


@pytest.mark.parametrize(
    "markdown",
    [
        "> " * 30 + "deep\n",
        "word " * 2_000,
        "- item\n" * 500,
        f"|{'long_word|' * 9}\n|{'-|' * 9}\n|{'longer_word|' * 9}",
    ],
    ids=["nested", "long", "many-lines", "wide"],
)
def test_a_block_that_cannot_be_laid_out_whole_is_shown_as_it_is(markdown: str):
    looks = shown(f"**before**\n\n{markdown}\n\n**after**", columns=40)
    assert markdown.strip() in looks
    assert looks.startswith(f"{BOLD}before{END}\n\n")
    assert looks.endswith(f"\n{BOLD}after{END}\n")


def test_an_error_of_the_library_costs_nobody_the_answer(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("rich.console.Console.render", broken)
    assert shown("# Text") == "# Text\n"


PIECES = st.sampled_from(
    [
        *"\n\n\n *_`~#>|-[]()!<>&;\\:.x1\t",
        "```",
        "~~~",
        "- ",
        "1. ",
        "    ",
        "word",
        "|-|-|\n",
        "&#8238;",
        "&#27;",
        "<b>",
    ]
)


@given(st.lists(PIECES, max_size=60).map("".join), st.integers(1, 40))
def test_whatever_a_model_writes_no_word_is_lost_and_no_control_character_is_shown(markdown: str, size: int):
    looks = re.sub(r"\x1b\[[\d;]*m", "", shown(markdown, columns=20, size=size))
    assert looks == clean(looks)
    words = re.sub(r"&#\d+;|(?m:^.*?(?:```|~~~).*$)", "", markdown)
    assert looks.count("w") >= words.count("w")


def test_the_answer_is_laid_out_on_a_terminal_and_nowhere_else(
    toolbus: Command, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
):
    script = calls(("get_weather", {"city": "Paris"})), text("It is **fine**.")
    played = ("ask", "q", "--provider", "scenes:scripted", "--tools", "scenes:everything")
    scenes.play(*script)
    assert toolbus(*played).out == "It is **fine**.\n"
    monkeypatch.setattr("sys.stderr", terminal)
    scenes.play(*script)
    assert toolbus(*played).out == "It is **fine**.\n"
    monkeypatch.setattr("sys.stdout", terminal)
    scenes.play(*script)
    toolbus(*played)
    assert terminal.getvalue().rpartition("\x1b[2K")[2] == f"It is {BOLD}fine{END}.\n"
    scenes.play(*script)
    toolbus(*played, "--json")
    assert '"text":"It is **fine**."' in terminal.getvalue()


def test_the_lines_that_the_embedded_provider_quotes_are_laid_out_by_file(
    toolbus: Command, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("sys.stdout", terminal)
    toolbus("ask", "What is the default timeout?")
    assert "3  DEFAULT_TIMEOUT_SECONDS = 120" in terminal.getvalue()
    assert "**" not in terminal.getvalue()
    assert "```" not in terminal.getvalue()


def test_a_terminal_that_lacks_the_signs_of_lists_gets_the_text_as_it_is(terminal: Terminal):
    terminal.encoding = "ascii"
    screen = LiveScreen(terminal, terminal)
    screen.answer("- a")
    screen.end_answer()
    assert terminal.getvalue() == "- a"


def test_a_screen_without_a_terminal_for_the_answer_streams_it(terminal: Terminal):
    out = io.StringIO()
    screen = LiveScreen(out, terminal)
    screen.answer("**a")
    assert out.getvalue() == "**a"
    assert not screen.waits_for_blocks
