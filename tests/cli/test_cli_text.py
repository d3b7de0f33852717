from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.watchdog import MAX_SECONDS, cpu_seconds
from toolbus.cli._terminal.text import Cleaner, arguments_line, cells, cut, duration, escape_json, wrapped
from toolbus.core.plain_text import clean, one_line

HOSTILE = [
    ("a\x1b[31mred\x1b[0m", "ared"),
    ("\x1b]0;title\x07x", "x"),
    ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
    ("\x1bP1$r0m\x1b\\x", "x"),
    ("\x9b2Jx", "x"),
    ("\x1bcx", "x"),
    ("\x1b(Bx", "x"),
    ("a\r\nb\tc\x00\x07\x08\x7f", "a\nb\tc"),
    ("\x1b]0;never ends", "0;never ends"),
    ("\x1b[12", "12"),
    ("plain ünï 日本 👍", "plain ünï 日本 👍"),
]


@pytest.mark.parametrize(("text", "shown"), HOSTILE)
def test_escape_sequences_and_control_characters_are_removed(text: str, shown: str):
    assert clean(text) == shown


@pytest.mark.parametrize(("text", "shown"), HOSTILE)
def test_a_sequence_that_is_cut_by_the_stream_is_removed_too(text: str, shown: str):
    cleaner = Cleaner()
    assert "".join(map(cleaner.feed, text)) + cleaner.flush() == shown


@given(st.lists(st.text(st.sampled_from("ab\x1b[]m;\x07\\\n0\x9b"))))
def test_no_control_character_passes_however_the_text_is_cut(pieces: list[str]):
    cleaner = Cleaner()
    shown = "".join(map(cleaner.feed, pieces)) + cleaner.flush()
    assert not {*shown} & {"\x1b", "\x07", "\x9b"}
    assert shown.count("a") <= "".join(pieces).count("a")


def test_text_without_escapes_is_not_held_back():
    assert Cleaner().feed("half a wor") == "half a wor"


def test_an_escape_that_never_ends_does_not_swallow_the_answer():
    cleaner = Cleaner()
    assert cleaner.feed("\x1b]0;" + "x" * 3000) == "0;" + "x" * 3000


@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
@pytest.mark.parametrize("beginning", ["\x1b", "\x1b]", "\x90", "\x98", "\x9b", "\x9d", "\x9f"], ids=ascii)
def test_a_text_of_beginnings_of_sequences_is_cleaned_in_bounded_time(beginning: str):
    text = beginning * 50_000
    assert cpu_seconds(lambda: Cleaner().feed(text)) < MAX_SECONDS


def test_one_line_has_no_breaks_and_no_marks_that_turn_the_direction():
    assert one_line(" a\r\nb\u2028c\td\u202e \x1b[1me\x1f") == "a b c d e"


def test_arguments_are_shown_as_names_and_json_values():
    shown = arguments_line({"query": 'a "b"\n\x1b[31mc', "max": 3, "deep": {"x": [1, None]}, "ok": True})
    assert shown == 'query="a \\"b\\" c" max=3 deep={"x": [1, null]} ok=true'


def test_arguments_as_the_model_wrote_them_are_one_line():
    assert arguments_line('{"a":\n  1') == '{"a": 1'


def test_arguments_of_megabytes_are_not_looked_at_to_the_end():
    assert len(arguments_line({"content": "x" * 10_000_000})) < 500
    assert len(arguments_line({"content": ["x" * 1000]})) < 500
    assert len(arguments_line({"x" * 10_000_000: 1})) < 500
    assert len(arguments_line({f"n{number}": "漢" for number in range(90_000)})) < 20_000


@given(st.text(), st.integers(1, 30))
def test_what_is_cut_fits(text: str, width: int):
    assert cells(cut(text, width)) <= width


def test_wide_characters_take_two_columns_and_accents_none():
    assert (cells("日本"), cells("e\u0301"), cells("abc")) == (4, 1, 3)
    assert cut("日本語", 5) == "日本…"


def test_what_fits_is_not_cut_and_where_there_is_no_place_there_is_nothing():
    assert (cut("abc", 3), cut("abcd", 3), cut("abc", 0), cut("abcdef", 4, "...")) == ("abc", "ab…", "", "a...")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 ms"),
        (-1, "0 ms"),
        (0.0124, "12 ms"),
        (0.9996, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (61, "1 min 1 s"),
    ],
)
def test_a_time_is_shown_in_the_unit_that_fits(seconds: float, shown: str):
    assert duration(seconds) == shown


def test_escaped_json_is_the_same_value_without_raw_control_characters():
    value = {"a": "\x7f\x9b\x1b ü"}
    written = escape_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(written) == value
    assert not {*written} & {"\x7f", "\x9b", "\x1b"}


def test_arguments_are_shown_with_the_letters_that_they_have():
    assert arguments_line({"city": "Zürich", "n": 1}) == 'city="Zürich" n=1'


@pytest.mark.parametrize(("text", "rows"), [("né1", ["né", "1"]), ("日本", ["日", "本"]), ("a日b", ["a", "日", "b"])])
def test_rows_are_full_and_have_every_character(text: str, rows: list[str]) -> None:
    assert wrapped(text, 2) == rows
