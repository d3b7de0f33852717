"""The calls of each round: what is searched, what is read around what was found, and what is searched again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from toolbus.core.text_structure import Line, Scope
from toolbus.providers.extractive._constants import constants_in
from toolbus.providers.extractive._passages import Passage
from toolbus.providers.extractive._plan import Call, next_calls
from toolbus.providers.extractive._question import read_question
from toolbus.providers.extractive._transcript import Location, Search, Turn
from toolbus.toolsets._files.patterns import compile_glob

PEAK = read_question("Where is the soak peak?")
Places = Sequence[tuple[str, int]]
SOURCE = '''SOAK_MINUTES = OTHER_MINUTES

def soak(plan, minutes=SOAK_MINUTES, retries=MOST_RETRIES):
    """Hold the temperature."""
    return plan.celsius, minutes
'''


def turn_of(
    *searches: tuple[str, Places],
    lines: Mapping[str, dict[int, str]] | None = None,
    rounds: int = 1,
    read_rounds: int = 0,
) -> Turn:
    """A turn whose searches, by mode, were made in the last round."""
    turn = Turn(rounds=rounds, read_rounds=read_rounds, lines=dict(lines or {}))
    for mode, places in searches:
        found = [Location(path, line, "soak") for path, line in places]
        turn.searches.append(Search({"query": "soak", "mode": mode}, rounds, found))
    return turn


def read(calls: Sequence[Call]) -> list[str]:
    assert {name for name, _ in calls} <= {"read_lines"}
    return [f"{given['path']} {given['start']}-{given['end']}" for _, given in calls]


def searched(calls: Sequence[Call]) -> list[tuple[Any, ...]]:
    assert {name for name, _ in calls} <= {"search_text"}
    return [(given["query"], given["mode"], given["max_results"], given.get("glob")) for _, given in calls]


def test_words_are_searched_everywhere_and_in_files_that_are_named_like_them() -> None:
    files = "**/{soak,peak}*"
    assert searched(next_calls(PEAK, Turn())) == [
        ("soak peak", "words", 24, None),
        ("soak peak", "words", 12, files),
    ]
    long = " ".join("\U0001e900" * 20 + letter for letter in "abcdefghi")  # letters of four bytes
    [_, (_, in_files)] = next_calls(read_question(long), Turn())
    compile_glob(in_files["glob"])
    assert in_files["glob"].count(",") == 7
    *_, definition = next_calls(read_question("What does `SoakPlan` do?"), Turn())
    assert (definition[1]["mode"], definition[1]["max_results"], definition[1]["ignore_case"]) == ("regex", 40, False)
    assert next_calls(read_question("what is it?"), Turn()) == []


@pytest.mark.parametrize(
    ("places", "reads"),
    [
        ([("a.py", 200)], ["a.py 140-300"]),
        ([("a.py", 61), ("a.py", 60)], ["a.py 1-161"]),
        ([("a.py", 200), ("a.py", 280), ("a.py", 140)], ["a.py 140-300"]),
        ([("a.py", 200), ("a.py", 281)], ["a.py 140-381"]),
        ([("a.py", 200), ("a.py", 139)], ["a.py 79-300"]),
        ([("a.py", 30), ("a.py", 191)], ["a.py 1-291"]),
        ([("a.py", 30), ("a.py", 192)], ["a.py 1-130", "a.py 132-292"]),
        ([("a.py", 100), ("a.py", 239)], ["a.py 40-339"]),
        ([("a.py", 100), ("a.py", 240)], ["a.py 40-200", "a.py 180-340"]),
        ([("b.py", 9), ("a.py", 9)], ["b.py 1-109", "a.py 1-109"]),
        ([(f"{number}.py", 9) for number in range(9)], [f"{number}.py 1-109" for number in range(8)]),
    ],
)
def test_lines_around_what_was_found_are_read_together_where_they_overlap(places: Places, reads: list[str]) -> None:
    assert read(next_calls(PEAK, turn_of(("words", places)))) == reads


def test_lines_that_were_read_are_not_read_again_and_later_rounds_read_less() -> None:
    known = {"a.py": {200: "soak"}}
    turn = turn_of(("words", [("a.py", 200), ("b.py", 9)]), lines=known, rounds=3, read_rounds=1)
    turn.searches.insert(0, Search({"mode": "words"}, 1, [Location("before.py", 1, "soak")]))
    assert read(next_calls(PEAK, turn)) == ["b.py 1-109"]
    many = [(f"{number}.py", 9) for number in range(9)]
    assert len(next_calls(PEAK, turn_of(("words", many), lines=known, rounds=3, read_rounds=1))) == 6


def test_definitions_and_the_places_of_each_search_take_turns_and_tests_come_last() -> None:
    named = [("tests/test_a.py", 1), ("a.py", 1), ("soak.py", 1), ("b.py", 1), ("c.py", 1)]
    turn = turn_of(("regex", named), ("words", [("w1.py", 1), ("w2.py", 1)]), ("words", [("v1.py", 1)]))
    paths = [given["path"] for _, given in next_calls(PEAK, turn)]
    assert paths == ["soak.py", "w1.py", "v1.py", "a.py", "w2.py", "b.py", "c.py"]


def test_words_that_were_not_searched_are_searched_where_nothing_was_found() -> None:
    assert searched(next_calls(PEAK, turn_of(("words", [])))) == [("peak", "words", 24, None)]
    assert next_calls(read_question("Where is the soak?"), turn_of(("words", []))) == []
    assert next_calls(PEAK, turn_of(("words", []), rounds=3, read_rounds=1)) == []


def test_the_second_search_looks_for_what_the_best_passages_lack_and_for_the_constants_that_they_name() -> None:
    lines: dict[str, dict[int, str]] = {"kiln/[x].py": dict(enumerate(SOURCE.split("\n"), start=1))}
    turn = turn_of(("words", [("kiln/[x].py", 3)]), lines=lines, rounds=2, read_rounds=1)
    calls = next_calls(read_question("How long is a soak at its peak?"), turn)
    exactly = "kiln/[[]x].py"
    assert searched(calls) == [
        ("soak peak", "words", 12, exactly),
        ("soak peak", "words", 6, "kiln/*"),
        ("peak", "words", 3, exactly),
        (r"^[ \t]*MOST_RETRIES[ \t]*(?::[^=]*)?=", "regex", 4, None),
        (r"^[ \t]*OTHER_MINUTES[ \t]*(?::[^=]*)?=", "regex", 4, None),
    ]
    assert not any(given.get("ignore_case", False) for _, given in calls)
    assert next_calls(PEAK, turn_of(("words", []), rounds=4, read_rounds=2)) == []


def test_the_second_search_is_in_the_files_of_the_two_best_passages_for_words_that_no_passage_has() -> None:
    lines = {"a.py": {1: "soak"}, "b.py": {1: "peak"}, "c.py": {1: "soak"}}
    turn = turn_of(("words", [("a.py", 1)]), lines=lines, rounds=2, read_rounds=1)
    assert searched(next_calls(PEAK, turn)) == [
        ("soak peak", "words", 12, "a.py"),
        ("soak peak", "words", 12, "b.py"),
    ]


def test_the_definitions_of_the_first_three_names_are_searched() -> None:
    calls = next_calls(read_question("Which of `FirstKiln`, `SecondKiln`, `ThirdKiln` and `LastKiln` is hot?"), Turn())
    patterns = [given["query"] for _, given in calls if given["mode"] == "regex"]
    assert [name in pattern for name, pattern in zip(("First", "Second", "Third"), patterns, strict=True)] == [True] * 3


def test_only_the_best_two_passages_name_constants() -> None:
    lines = [Line(1, f"run(limit=MOST_{name})", "text", "") for name in ("FIRST", "SECOND", "THIRD")]
    passages = [Passage(Scope(f"{number}.py", lines=[line]), 1.0, [line]) for number, line in enumerate(lines)]
    assert constants_in(PEAK, passages) == ["MOST_FIRST", "MOST_SECOND"]
    line = Line(1, "SOAK_MINUTES and OTHER_MINUTES are minutes", "text", "")
    passage = Passage(Scope("a.py", lines=[line]), 1.0, [line])
    assert constants_in(PEAK, [passage]) == ["SOAK_MINUTES"], (
        "the other is no value here, and has no word of the question"
    )
