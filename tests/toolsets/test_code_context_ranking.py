"""The order of hits: what tests and examples count, and what words count beside similarity."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import Any

import pytest

from toolbus.toolsets.code_context._ranking import _model_input, blended, lexical
from toolbus.toolsets.code_context._storage import Row


def row(number: int, path: str, score: float, text: str = "text") -> Row:
    return Row(id=number, path=path, start=1, end=2, name="holdSoak", text=text, score=score, vector=None)


class Shelf:
    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.asked: list[tuple[str, int]] = []

    def search(self, words: str, count: int) -> list[Row]:
        self.asked.append((words, count))
        return self.rows


def test_tests_and_examples_count_seven_tenths_and_four_times_as_many_hits_are_read() -> None:
    shelf: Any = Shelf(
        [row(1, "tests/test_a.py", 1.0), row(2, "a.py", 0.8), row(3, "examples/b.py", 0.9), row(4, "c.py", 0.65)]
    )
    assert [(each.id, score) for each, score in lexical(shelf, "soak", 3)] == [
        (2, 0.8),
        (1, pytest.approx(0.7)),
        (4, 0.65),
    ]
    assert shelf.asked == [("soak", 12)]


def test_words_count_fifteen_hundredths_relative_to_the_best_hit() -> None:
    found = [(row(1, "a.py", 4.0), 4.0), (row(2, "b.py", 1.0), 1.0), (row(3, "c.py", 2.0), 2.0)]
    assert [(each.id, round(score, 6)) for each, score in blended(found, [0.1, 0.5, 0.5])] == [
        (3, 0.5),
        (2, 0.4625),
        (1, 0.235),
    ]


def test_the_model_reads_the_names_then_the_docstring_then_all() -> None:
    text = 'def hold():\n    """Hold it.\n\n    Long.\n    """\n'
    read = _model_input(row(1, "kiln/soakTime.py", 1.0, text))
    assert read == f"kiln soak Time: hold Soak. Hold it.\n\n    Long.\n{text}"
    assert _model_input(row(1, "Makefile", 1.0, "all:")) == "Makefile: hold Soak. \nall:"
