"""How a call is shown to the person who has to approve it, and what an answer means."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolbus.cli._terminal.approval_question import (
    Answer,
    argument_rows,
    arguments_in_line,
    help_for,
    prompt_for,
    read_answer,
)
from toolbus.cli._terminal.text import cells, indented, visible, visible_json, wrapped


class TestAnswers:
    @pytest.mark.parametrize(
        ("line", "answer"),
        [
            ("y\n", Answer("run")),
            ("  YES ", Answer("run")),
            ("a", Answer("run", remember=True)),
            ("always", Answer("run", remember=True)),
            ("n", Answer("deny")),
            ("no.", Answer("deny")),
            ("n use the  other\tfile\n", Answer("deny", reason="use the other file")),
            ("No, use the other file", Answer("deny", reason="use the other file")),
            ("v", Answer("deny", remember=True)),
            ("never: it is mine", Answer("deny", remember=True, reason="it is mine")),
            ("e", Answer("edit")),
            ("n \x1b[31mred", Answer("deny", reason="red")),
        ],
    )
    def test_letters_and_words_are_understood(self, line: str, answer: Answer):
        assert read_answer(line) == answer

    @pytest.mark.parametrize("line", ["", "\n", "   \n", "\x1b[A\n"])
    def test_an_empty_line_denies(self, line: str):
        assert read_answer(line) == Answer("deny")

    @pytest.mark.parametrize(
        "line", ["yes but not that one", "y n", "maybe", "?", "use the other", "yy", "nope", "a b"]
    )
    def test_what_is_not_plain_runs_nothing_and_asks_again(self, line: str):
        assert read_answer(line) == Answer("help")


class TestArguments:
    def test_they_stand_on_one_line_as_json(self):
        assert arguments_in_line({"path": "notes.txt", "force": True, "keep": [1, None]}) == (
            'path="notes.txt" force=true keep=[1, null]'
        )

    @pytest.mark.parametrize(
        ("value", "seen"),
        [
            ("a\nb\tc", r'"a\nb\tc"'),
            ("\x1b[2K\x9b1m\x7f", r'"\u001b[2K\u009b1m\u007f"'),
            ("txt\u202egpj", r'"txt\u202egpj"'),
            ("a\u200bb\u00a0c", r'"a\u200bb\u00a0c"'),
            ("\U000e0041", r'"\udb40\udc41"'),
            ("\ud800", r'"\ud800"'),
            ("naïve 日本 🎉", '"naïve 日本 🎉"'),
            ("two  spaces", '"two  spaces"'),
        ],
    )
    def test_what_does_not_print_is_seen_and_nothing_is_changed(self, value: str, seen: str):
        assert visible_json(value) == seen
        assert json.loads(seen) == value

    def test_a_name_that_a_model_made_up_cannot_steer_the_terminal(self):
        assert arguments_in_line({"\x1b[2J": 1}) == r"\u001b[2J=1"
        assert visible("plain") == "plain"

    def test_long_ones_stand_below_each_other_and_lose_nothing(self):
        arguments = {"path": "x" * 50, "content": "日本" * 30}
        rows = argument_rows(arguments, 20, whole=True)
        assert max(map(cells, rows)) <= 20
        assert "".join(rows) == 'path="' + "x" * 50 + '"content="' + "日本" * 30 + '"'

    def test_a_very_long_one_is_cut_with_the_number_of_what_is_missing_and_hides_no_other(self):
        rows = argument_rows({"content": "x" * 1_000, "force": True}, 50)
        assert rows[5:] == ["… 760 more characters (? shows all)", "force=true"]
        assert rows[:5] == wrapped('content="' + "x" * 241, 50)
        whole = argument_rows({"content": "x" * 1_000, "force": True}, 50, whole=True)
        assert "".join(whole) == 'content="' + "x" * 1_000 + '"force=true'

    @pytest.mark.parametrize("width", [10, 20, 35])
    def test_what_says_so_fits_too(self, width: int):
        rows = argument_rows({f"n{number}": "x" * 1_000 for number in range(100)}, width)
        assert max(map(cells, rows)) <= width
        assert len(rows) == 25

    def test_very_many_are_counted(self):
        many = {f"n{number}": number for number in range(1_030)}
        assert argument_rows(many, 40)[24:] == ["… 1,006 more arguments (? shows all)"]
        assert len(argument_rows(many, 40, whole=True)) == 1_030

    @pytest.mark.parametrize("width", [1, 2, 3, 10])
    @pytest.mark.parametrize("text", ["", "ascii only", "日本語 and more", "e\u0301e\u0301e\u0301e\u0301"])
    def test_wrapping_keeps_every_character(self, text: str, width: int):
        rows = wrapped(text, width)
        assert "".join(rows) == text
        assert all(cells(row) <= max(width, 2) for row in rows)


class TestWidths:
    @pytest.mark.parametrize("width", [25, 39, 58])
    def test_on_a_narrow_terminal_the_question_is_short(self, width: int):
        assert prompt_for(width, "\u203a") == "  Run it? [y/n/a/e/v/?] \u203a "

    @pytest.mark.parametrize("width", [59, 79, 200])
    def test_on_others_it_says_the_words(self, width: int):
        assert prompt_for(width, ">") == "  Run it? [y]es, [n]o, [a]lways, [e]dit, ne[v]er > "

    @pytest.mark.parametrize("width", [20, 39, 79])
    def test_the_help_fits_and_explains_every_letter(self, width: int):
        lines = help_for("Delete File", width).splitlines()
        assert max(map(len, lines)) <= width
        assert [line[2] for line in lines if line[:2] == "  " and line[2] != " "] == list("ynaev")
        assert "every call of Delete File" in " ".join(help_for("Delete File", 200).split())

    def test_an_indented_text_is_cut_where_it_is_reported(self):
        assert indented("one two three four", 12) == "  one two\n  three four"
        assert indented("one two three four five", 12, 2) == "  one two\n  three …"


def test_a_value_that_is_no_json_is_shown_all_the_same():
    value: dict[str, Any] = {"when": object}
    assert arguments_in_line(value).startswith("when=\"<class 'object'>")
