"""The weights by which passages are chosen, pinned on a few files: a change of one of them is made on purpose.

The weights were chosen by the questions of `test_extractive_quality.py`, which notice only what spoils an answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest

from toolbus.core.text_structure import Line, Scope
from toolbus.providers.extractive._answer import nothing_found_answer, quoted_answer
from toolbus.providers.extractive._constants import constants_in
from toolbus.providers.extractive._passages import (
    Passage,
    Weigher,
    _around,  # pyright: ignore[reportPrivateUsage]
    _fields,  # pyright: ignore[reportPrivateUsage]
    _line_scores,  # pyright: ignore[reportPrivateUsage]
    _lines_of,  # pyright: ignore[reportPrivateUsage]
    _part,  # pyright: ignore[reportPrivateUsage]
    _spot,  # pyright: ignore[reportPrivateUsage]
    _weigh,  # pyright: ignore[reportPrivateUsage]
    best_passages,
)
from toolbus.providers.extractive._question import Question, Term, read_question
from toolbus.providers.extractive._transcript import Search, Turn

FILES = {
    "kiln/firing.py": '''"""Firing pots."""

import time
from kiln.stock import shelf_limit

SOAK_MINUTES = 45
SOAK_RETRIES = time.monotonic()


class FiringPlan(Plan):
    """How hot a kiln gets, and for how long.

    The peak is reached by a ramp.

    A soak holds it there.
    """

    peak_celsius: int = 1240
    ramp_per_hour: float = 150.0
    glaze: str = "ash"

    def __init__(self, peak_limit=1300, *, soak_minutes=SOAK_MINUTES):
        self.peak_limit = peak_limit

    # Vents stay shut.
    def cool_down(self, vent=False):
        """Cool slowly; cracks come from haste."""
        vent_limit = 600
        if vent:
            raise RuntimeError("never vent above 600")
        log.info("cooling")
        return time.monotonic()


def soak(plan, minutes=SOAK_MINUTES, retries=3):
    """Hold the peak temperature.

    >>> soak(plan)
    """
    return plan.peak_celsius, minutes
''',
    "kiln/soaker.py": "def count_pots(shelf):\n    return len(shelf) + SOAK_MINUTES\n\n\n"
    "def hold(plan):\n"
    + "".join(f"    step_{number} = peak(plan, {number})\n" for number in range(20))
    + "    peak_limit = 7  # of the soak\n",
    "README.md": "# Kiln\n\nRuns a kiln.\n\n## Soaking\n\nA soak takes 45 minutes.\nIt holds the peak.\n\n"
    + "".join(f"Note {number} on the peak limit.\n" for number in range(12)),
    "tests/test_firing.py": "def test_soak_minutes():\n    assert soak(plan, minutes=45)\n",
    "web/gauge.js": "const PEAK_LIMIT = 'red'\n\nexport class Gauge {\n  constructor(scale) {\n    this.limit = scale\n  }\n\n"
    "  drawPeak(angle) {\n    return rotate(angle)\n  }\n}\n\nexport const soakGauge = async (url) => {\n  return fetch(url)\n}\n",
    "web/index.js": "import { soak } from './gauge.js'\nprecompress(soak) // " + "x" * 300 + "\n",
}
METHODS = "".join(f"\n    def other_{number}(self):\n        return {number}\n" for number in range(12))
COUNTED = {"soak": 4, "peak": 5, "limit": 3, "kiln": 2, "vent": 1}


def found(question: str) -> list[str]:
    """The passages as `path name score first,second,...`, with the numbers of their lines."""
    lines = {path: dict(enumerate(text.split("\n"), start=1)) for path, text in FILES.items()}
    passages = best_passages(Weigher(read_question(question), COUNTED, 8), lines)
    return [
        f"{each.scope.path} {each.scope.name or '-'} {each.score:.4f} {','.join(str(line.number) for line in each.lines)}"
        for each in passages
    ]


@pytest.mark.parametrize(
    ("question", "passages"),
    [
        (
            "How long is a soak?",
            [
                "kiln/firing.py soak 2.2546 35,36,38,39,40",
                "kiln/soaker.py hold 1.4675 5,25,26",
                "README.md Soaking 1.3341 5,7,8,10,11,12",
                "kiln/soaker.py count_pots 1.3341 1,2",
                "web/gauge.js soakGauge 1.3341 13,14,15",
            ],
        ),
        ("What is the default peak limit of FiringPlan?", ["kiln/firing.py FiringPlan 5.0659 10,11,13,18,19,20,22"]),
        ("which values does `FiringPlan` have", ["kiln/firing.py FiringPlan 5.2421 10,11,13,18,19,20,22"]),
        (
            "What happens when a kiln vents too early?",
            [
                "README.md Kiln 1.2171 1,3",
                "kiln/firing.py cool_down 1.0674 25,26,28,29,30",
                "kiln/firing.py FiringPlan 0.8426 10,11",
            ],
        ),
        ("where is soakGauge defined", ["web/gauge.js soakGauge 6.0000 13,14,15"]),
        (
            "the logging of the kiln",
            [
                "README.md Kiln 1.4134 1,3",
                "kiln/firing.py cool_down 1.2063 26,30,31,32",
                "kiln/firing.py FiringPlan 0.9785 10,11",
            ],
        ),
        (
            "how does the kiln soaker fire peaks",
            [
                "kiln/soaker.py hold 1.4688 5,6,7,8,9,10,11,12,13,14,15,16,17,18",
                "kiln/firing.py FiringPlan 1.2763 10,11,13,18,19",
                "README.md Kiln 1.1449 1,3",
            ],
        ),
        ("What is the peak limit?", ["web/gauge.js - 3.4211 1", "kiln/firing.py __init__ 1.7544 22,23"]),
        (
            "vent soak peak kiln limit",
            [
                "kiln/soaker.py hold 2.7347 5,6,7,8,9,10,11,12,13,14,15,16,25,26",
                "kiln/firing.py __init__ 2.6723 22,23",
                "kiln/firing.py FiringPlan 2.3442 10,11,13,15,18,19",
                "kiln/firing.py soak 2.5753 35,36,38,39,40",
                "kiln/firing.py cool_down 2.1603 25,26,28,29,30",
            ],
        ),
        ("what is `SOAK_RETRIES`", ["kiln/firing.py - 2.5500 6,7"]),
        ("retries of the soak", ["kiln/firing.py soak 2.7343 35,36,38,39,40", "kiln/firing.py - 2.5006 6,7"]),
        (
            "where is compress called",
            [
                "web/index.js - 1.3200 1,2,3",
                "kiln/firing.py __init__ 0.8411 22,23",
                "kiln/firing.py cool_down 0.8411 25,26,27,28,29,30,31,32",
                "web/gauge.js constructor 0.8411 4,5,6",
                "web/gauge.js drawPeak 0.8411 8,9,10,11",
            ],
        ),
        (
            "Soaking minutes",
            [
                "kiln/firing.py soak 2.7343 35,36,38,39,40",
                "kiln/firing.py - 2.5006 6,7",
                "README.md Soaking 2.1341 5,7,8",
                "kiln/soaker.py count_pots 2.1341 1,2",
                "kiln/firing.py __init__ 1.6670 22,23",
            ],
        ),
        ("the stock, and notes on it", ["README.md Soaking 0.7000 5,10,11,12,13,14,15,16,17,18,19,20,21"]),
        ("pots in the gauge module", ["web/gauge.js Gauge 3.1360 3", "web/gauge.js soakGauge 3.1360 13,14,15"]),
    ],
)
def test_the_passages_of_a_question_have_their_scores_and_lines(question: str, passages: list[str]) -> None:
    assert found(question) == passages


def test_of_a_class_the_first_lines_of_the_methods_that_are_asked_for_are_quoted_with_their_summaries() -> None:
    text = '''class Oven(Base):
    """Bakes bread."""

    # Heat rises.
    def bake(
        self,
        loaf,
    ):
        """Bake a loaf.

        Slowly, with steam.
        """
        return self.heat(loaf)

    def heat(self, loaf):
        return loaf
'''
    lines = {"oven.py": dict(enumerate(f"{text}{METHODS}".split("\n"), start=1))}
    counted = {"oven": 1, "bake": 1}
    (oven, *_) = best_passages(Weigher(read_question("What does Oven bake?"), counted, 8), lines)
    assert [line.number for line in oven.lines] == [1, 2, 5, 9]


def test_lines_count_together_with_those_of_five_lines_before_and_after() -> None:
    said = [(Line(number, "soak", "code"), dict[Any, float]()) for number in (1, 3, 4, 8, 9, 13, 14, 20)]
    assert [line.number for line, _ in _around(said, 3)] == [3, 4, 8, 9, 13]


def passage(path: str, text: str) -> Passage:
    line = Line(7, text, "code")
    return Passage(Scope(path, lines=[line]), 1.0, [line])


@pytest.mark.parametrize(
    ("count", "rest"), [(3, []), (4, ["See also `3.py:7`."]), (5, ["See also `3.py:7`, `4.py:7`."])]
)
def test_of_more_than_three_passages_the_answer_has_only_the_positions(count: int, rest: list[str]) -> None:
    weigher = Weigher(read_question("How long does it soak?"), {}, 1)
    answer = quoted_answer(weigher, [passage(f"{number}.py", "soak") for number in range(count)], Turn())
    paragraphs = answer.split("\n\n")
    assert [each for each in paragraphs if each.startswith("See also")] == rest
    assert [f"**`{number}.py:7`**" in paragraphs for number in range(count)] == [number < 3 for number in range(count)]


def test_three_constants_of_the_best_two_passages_are_looked_for() -> None:
    lines = ["fire(KILN_NAME, soak=FIRST_SOAK)", "fire(peak=PEAK_LIMIT, SOAK_STEPS, ash=ASH_KIND)", "fire(x=THE_LAST)"]
    passages = [passage("a.py", line) for line in lines]
    question = read_question("How long does it soak?")
    assert constants_in(question, passages) == ["FIRST_SOAK", "PEAK_LIMIT", "SOAK_STEPS"]
    assert constants_in(question, passages[1:]) == ["PEAK_LIMIT", "SOAK_STEPS", "ASH_KIND"]
    assert constants_in(question, passages[2:]) == ["THE_LAST"]


TERMS = SOAK, PEAK = Term("soak", ("soak",)), Term("peak", ("peak", "summit"))
BOTH = Weigher(Question(TERMS), {}, 8)


@pytest.mark.parametrize(
    ("line", "quality"),
    [
        (Line(1, "import soak", "import"), 0.2),
        (Line(1, ">>> soak(plan)", "code"), 0.5),
        (Line(1, "soak(plan)", "code"), 0.8),
        (Line(1, "A soak.".ljust(300), "text"), 1.0),
        (Line(1, "A soak.".ljust(301), "text"), 0.8),
        (Line(1, "soak_time = 1", "assign", "soak_time"), 1.5),
        (Line(1, "soak = 1", "assign", "soak"), 1.7),
        (Line(1, "def soak_time():", "define", "soak_time"), 2.0),
        (Line(1, "def soak():", "define", "soak"), 2.6),
        (Line(1, "def f(soak):", "define", "f"), 1.0),
    ],
)
def test_a_word_weighs_more_the_more_its_line_is_about_it(line: Line, quality: float) -> None:
    assert BOTH.in_line(line, Scope("a.py", lines=[line])) == {SOAK: quality}


@pytest.mark.parametrize(
    ("path", "qualities"),
    [
        ("soak.py", {SOAK: 1.5}),
        ("soak/a.py", {SOAK: 1.0}),
        ("soak/__init__.py", {SOAK: 1.5}),
        ("a/soak_it.min.js", {SOAK: 0.5}),
        ("soakpeak.py", {SOAK: 1.5, PEAK: 1.5}),
        ("soak_summit.py", {SOAK: 1.5, PEAK: 1.5}),
        ("soakpeakxxxx.py", {SOAK: 1.5, PEAK: 1.5}),
        ("soakpeakxxxxx.py", {SOAK: 0.5}),
    ],
)
def test_a_word_weighs_most_in_the_name_of_a_file(path: str, qualities: dict[Term, float]) -> None:
    assert BOTH.in_path(path) == qualities


@pytest.mark.parametrize(
    ("form", "text", "is_in"),
    [
        ("size", "blocksize", True),
        ("size", "blocksizes", True),
        ("size", "blocksized", False),
        ("size", "xsize", False),
        ("size", "resizeable", False),
        ("size", "sizeable", True),
        ("size", "maxSize", True),
        ("log", "logged", True),
        ("log", "logic", False),
        ("log", "syslog", False),
    ],
)
def test_a_word_of_four_letters_may_also_end_a_longer_word(form: str, text: str, is_in: bool) -> None:
    assert bool([*Weigher(Question((Term(form, (form,)),)), {}, 8).in_text(text)]) is is_in


def test_the_rarity_of_a_word_is_that_of_its_most_frequent_form() -> None:
    rare, frequent = ({"peak": 1, "summit": count} for count in (1, 8))
    weights = [Weigher(Question((PEAK,)), counted, 8).weights[PEAK] for counted in (rare, frequent)]
    assert weights == pytest.approx([0.3 + math.log(1 + 8.5 / 1.5) / math.log(18), 0.3 + math.log(2) / math.log(18)])


def test_a_word_far_from_the_best_place_of_a_scope_counts_a_quarter() -> None:
    lines = [Line(1, "A soak.", "text"), Line(20, "A peak.", "text")]
    found = _weigh(BOTH, Scope("a.py", lines=lines))
    assert found is not None
    assert found.score == pytest.approx(1.0 * (0.4 + 0.6 / 2) + 0.25)


def test_the_first_line_of_a_scopes_head_counts_for_all_of_it() -> None:
    head = [Line(1, "def f(soak,", "define", "f"), Line(2, "summit):", "code")]
    lines = [*head, Line(9, "It is here.", "text"), Line(10, "A peak.", "text")]
    said = [(line, BOTH.in_line(line, Scope("a.py", head=head))) for line in lines]
    scores = [_spot(BOTH, Scope("a.py", head=head, lines=lines), said, index, {})[0] for index in (2, 3)]
    assert scores == pytest.approx([(0.7 + 0.9) * 1.0, (0.7 + 1.0) * 1.0])
    far = [(Line(9, "It is here.", "text"), dict[Term, float]())]
    assert _spot(BOTH, Scope("a.py", head=head), far, 0, {})[0] == pytest.approx(0.7 * (0.4 + 0.6 / 2))


def test_of_the_best_passage_more_lines_are_quoted_than_of_the_others() -> None:
    text = dict(enumerate(["def hold(plan):", *[f"    step_{number} = soak(peak)" for number in range(40)]], start=1))
    passages = best_passages(BOTH, {f"{name}.py": text for name in "abcdef"})
    assert [len(each.lines) for each in passages] == [14, 9, 6, 6, 5]


def numbers(lines: Iterable[Line]) -> list[int]:
    return [line.number for line in lines]


def scope_of(*texts: str, head: int = 1, what: str = "def", start: int = 1, **more: Any) -> Scope:
    """A scope of lines of code, of which the first ones are its head."""
    lines = [Line(number, text, "code") for number, text in enumerate(texts, start=start)]
    return Scope("a.py", head=lines[:head], lines=lines, what=what, **more)


VALUES = Question(TERMS, wants_values=True)


def test_a_value_counts_more_under_a_name_that_has_two_words_of_the_question() -> None:
    weigher = Weigher(VALUES, {}, 8)

    def score(question: Weigher, name: str) -> float:
        line = Line(1, f"{name} = 7  # soak peak", "assign", name)
        scope = Scope("a.py", lines=[line])
        return _spot(question, scope, [(line, weigher.in_line(line, scope))], 0, {})[0]

    factors = [score(weigher, name) / score(BOTH, name) for name in ("soak", "soak_peak")]
    assert factors == pytest.approx([1.3, 1.3 * 1.3])


def test_the_parts_of_a_named_scope_count_by_their_role() -> None:
    head, *doc = lines = [Line(number, "x", "text") for number in range(1, 6)]
    field, other = Line(6, "x = y", "assign", "x"), Line(7, "x", "code")
    lines += [field, other]
    for what, roles, values in (
        ("class", [0.8, 0.8, 0.8, 0.8, 0.4, 0.5, 0.0], [1.2, 0.8, 0.8, 0.8, 0.4, 1.2, 0.0]),
        ("def", [0.8, 0.8, 0.8, 0.8, 0.4, 0.0, 0.0], [1.2, 0.8, 0.8, 0.8, 0.4, 0.0, 0.0]),
        ("section", [0.8, 0.8, 0.8, 0.8, 0.4, 0.5, 0.5], [1.2, 0.8, 0.8, 0.8, 0.4, 0.5, 0.5]),
    ):
        scope = Scope("a.py", head=[head], doc=doc, lines=lines, what=what)
        for question, expected in ((Question(TERMS), roles), (VALUES, values)):
            assert [_part(question, scope, line) for line in lines] == expected


@pytest.mark.parametrize(
    ("question", "line", "score"),
    [
        (Question(TERMS), Line(2, "soak = 7", "assign"), 1.0),
        (VALUES, Line(2, "soak = 7", "assign"), 1.4),
        (VALUES, Line(2, "soak = x", "assign"), 1.0),
        (VALUES, Line(2, "soak, 7", "text"), 1.0),
        (VALUES, Line(2, "x = 7", "assign"), 0.0),
        (VALUES, Line(2, "raise soak", "text"), 1.0),
        (Question(TERMS, wants_consequence=True), Line(2, "raise soak", "text"), 1.4),
        (Question(TERMS, wants_consequence=True), Line(2, "raise x", "text"), 0.0),
    ],
)
def test_a_line_counts_more_if_it_is_of_the_kind_that_was_asked_for(
    question: Question, line: Line, score: float
) -> None:
    scope = Scope("a.py", lines=[line], what="def")
    assert _line_scores(Weigher(question, {}, 8), scope, 0.0) == {2: pytest.approx(score)}


def test_the_better_neighbour_of_a_line_counts_a_third() -> None:
    scope = scope_of("x", "x", "soak", "x", "soak peak", head=0)
    scope.lines[1] = Line(2, "", "blank")
    assert _line_scores(BOTH, scope, 0.0) == pytest.approx({1: 0.0, 2: 0.0, 3: 0.8, 4: 0.35 * 1.6, 5: 1.6})


def test_the_fields_with_words_of_the_question_come_first_and_are_eight_at_most() -> None:
    texts = [f"x{number} = 1" for number in range(30)]
    for count in (1, 9):
        lines = [Line(number, text, "assign") for number, text in enumerate([*texts, *["soak = 1"] * count], start=1)]
        found = _fields(BOTH, Scope("a.py", lines=lines, what="class"))
        spoken = [*range(31, 31 + min(count, 8))]
        assert numbers(found) == [*spoken, *range(1, 27 - len(spoken))]


@pytest.mark.parametrize(("lines", "quoted"), [(16, 16), (17, 10)])
def test_a_definition_that_is_asked_for_is_quoted_whole_up_to_16_lines_for_10(lines: int, quoted: int) -> None:
    assert len(_lines_of(BOTH, scope_of("def soak(", *["peak"] * (lines - 1)), 10)) == quoted


def test_lines_without_a_word_of_the_question_are_not_quoted_beside_the_first_line_of_the_head() -> None:
    assert numbers(_lines_of(BOTH, scope_of("def f(", "x):", "x", "x", head=2), 10)) == [1]
    assert numbers(_lines_of(BOTH, scope_of("def f(soak):", *["x"] * 4), 1)) == [1]
    assert numbers(_lines_of(BOTH, scope_of("x", "x", "soak", "x", "x", "x", head=0), 10)) == [2, 3, 4]


def test_lines_with_less_than_three_tenths_of_the_best_one_are_left_out() -> None:
    weak = Term("summit", ("summit",), weight=0.3)
    weigher = Weigher(Question((SOAK, weak)), {}, 8)
    scope = scope_of("summit", "x", "x", "soak", "x", "x", "summit, summit", head=0)
    assert numbers(_lines_of(weigher, scope, 10)) == [1, 3, 4, 5, 7]
    scope.lines[3] = Line(4, "soak: a bit more", "text")
    assert numbers(_lines_of(weigher, scope, 10)) == [3, 4, 5]


def test_of_a_class_half_of_the_lines_are_for_the_methods_that_are_asked_for_and_five_more_for_others() -> None:
    methods = [scope_of(f"def soak_{number}():", start=100 + number) for number in range(9)]
    oven = scope_of("class Oven:", *["soak, peak"] * 20, what="class", inside=methods)
    assert numbers(_lines_of(BOTH, oven, 6)) == [1, *range(2, 7), 100, 101, 102]
    fields = [Line(number, f"soak_{number} = 1", "assign") for number in range(40, 80)]
    oven.lines += fields
    oven.head[0].name = "Soak"
    found = numbers(_lines_of(Weigher(VALUES, {}, 8), oven, 6))
    assert [number for number in found if number < 100] == [1, *range(40, 63)]


@pytest.mark.parametrize(
    ("text", "ticks"), [("soak", 3), ("`soak`", 3), ("``soak``", 3), ("```soak``` and `peak`", 4), ("` and ````", 5)]
)
def test_a_fence_is_longer_than_the_runs_of_its_mark_in_the_text(text: str, ticks: int) -> None:
    answer = quoted_answer(Weigher(read_question("How long does it soak?"), {}, 1), [passage("a.py", text)], Turn())
    fences = [each.removesuffix("text") for each in answer.split("\n") if each.startswith("```")]
    assert fences == ["`" * ticks] * 2


def test_a_passage_shows_the_first_lines_of_the_two_definitions_around_it() -> None:
    outer = scope_of("class Outer(", "Base):", head=2, what="class")
    middle = scope_of("class Middle(", "Base):", head=2, what="class", start=10, parent=outer)
    inner = scope_of("class Inner:", what="class", start=20, parent=middle)
    line = Line(30, "soak", "code")
    found = Passage(Scope("a.py", lines=[line], parent=inner), 1.0, [line])
    answer = quoted_answer(Weigher(read_question("How long does it soak?"), {}, 1), [found], Turn())
    assert [text in answer for text in ("Outer", "Middle(", "Base", "Inner")] == [False, True, False, True]


@pytest.mark.parametrize(("searched", "files"), [([], 0), ([7], 7), ([3, 9, 1], 9)])
def test_where_nothing_was_found_the_most_files_that_were_searched_are_named(searched: list[int], files: int) -> None:
    turn = Turn(searches=[Search({}, 1, files_searched=each) for each in searched])
    assert nothing_found_answer(Question(TERMS), turn).endswith(f"nothing for: soak, peak ({files} files searched).")
