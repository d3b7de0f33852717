"""The weights by which a search for words sorts what it finds, pinned on a few files: a change is made on purpose."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from toolbus.toolsets.workspace import _rank, workspace_tools

FILES = {
    "kiln/firing.py": '''import time
from kiln.stock import shelf_limit

SOAK_MINUTES = 45
"glaze": "ash"

class FiringPlan(Plan):
    """How hot a kiln gets, and for how long."""

    peak_celsius: int = 1240
    def cool_down(self, vent=False):
        """Cool slowly; cracks come from haste."""
        vent_limit = 600
        if vent == 3:
            raise RuntimeError("never vent above 600")
        log.info("cooling")
        blocksize = delimiter(overlimit, limits)
        logic, catalog, logged, logs, LogFile = 1
''',
    "kiln/soak_time.py": "".join(f"x{number} = {number}\n" for number in range(9)) + "def hold(soak):\n    pass\n" * 3
    + "y = 1\n" * 12 + "soaking = peak.soak(1)\n",
    "kiln/__init__.py": "from .firing import soak\n",
    "README.md": "# Soak the kiln\n\nRuns a kiln.\n\nA soak takes 45 minutes. It holds the peak limit.\n",
    "tests/test_firing.py": "def test_soak_minutes():\n    assert soak(plan, minutes=45)\n",
    "web/soak.min.js": "var soak=1;" + "x" * 600 + "peak\n",
    "web/gauge.js": "export const PEAK_LIMIT = 'red'\nexport class SoakGauge {\n  drawPeak(angle) {\n  }\n}\n",
    "notes/kiln.txt": "\n\nNothing here.\n",
}  # fmt: skip


def search(root: Path, query: str, max_result_bytes: int = 24_000, **arguments: Any) -> dict[str, Any]:
    tools = {tool.name: tool for tool in workspace_tools(root, max_result_bytes=max_result_bytes)}
    return tools["search_text"].prepare({"query": query, "mode": "words", **arguments}, None)().data


def shown(data: dict[str, Any]) -> list[str]:
    """The matches as `path:line score words`."""
    return [f"{each['path']}:{each['line']} {each['score']} {','.join(each['words'])}" for each in data["matches"]]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("query", "more", "matches", "files_with_word"),
    [
        (
            "soak",
            0,
            [
                "web/gauge.js:2 4.55 soak",
                "kiln/soak_time.py:28 4.14 soak",
                "kiln/soak_time.py:10 3.96 soak",
                "README.md:1 3.68 soak",
                "kiln/firing.py:4 3.19 soak",
                "tests/test_firing.py:1 2.16 soak",
                "kiln/__init__.py:1 1.29 soak",
                "web/soak.min.js:1 0.61 soak",
            ],
            {"soak": 7},
        ),
        (
            "soak minutes",
            0,
            [
                "kiln/firing.py:4 8.37 soak,minutes",
                "README.md:5 6.97 soak,minutes",
                "tests/test_firing.py:1 5.68 soak,minutes",
                "web/gauge.js:2 4.55 soak",
                "kiln/soak_time.py:28 4.14 soak",
                "kiln/soak_time.py:10 3.96 soak",
                "kiln/__init__.py:1 1.29 soak",
                "web/soak.min.js:1 0.61 soak",
            ],
            {"soak": 7, "minutes": 3},
        ),
        (
            "peak limit",
            0,
            [
                "web/gauge.js:1 10.26 peak,limit",
                "kiln/firing.py:10 7.29 limit,peak",
                "README.md:5 6.97 peak,limit",
                "kiln/soak_time.py:28 3.53 peak",
                "web/soak.min.js:1 0.36 peak",
            ],
            {"peak": 5, "limit": 3},
        ),
        (
            "kiln",
            0,
            [
                "README.md:1 5.99 kiln",
                "kiln/firing.py:8 4.53 kiln",
                "kiln/__init__.py:1 1.16 ",
                "notes/kiln.txt:3 1.16 ",
                "kiln/soak_time.py:1 0.75 ",
            ],
            {"kiln": 2},
        ),
        (
            "soak time",
            0,
            [
                "kiln/soak_time.py:28 6.73 soak",
                "kiln/soak_time.py:10 6.56 soak",
                "kiln/firing.py:4 4.83 time,soak",
                "web/gauge.js:2 4.55 soak",
                "README.md:1 3.68 soak",
                "tests/test_firing.py:1 2.16 soak",
                "kiln/firing.py:15 1.83 time",
                "kiln/__init__.py:1 1.29 soak",
                "web/soak.min.js:1 0.61 soak",
            ],
            {"soak": 7, "time": 1},
        ),
        ("log", 0, ["kiln/firing.py:16 4.11 log"], {"log": 1}),
        ("size delim", 0, ["kiln/firing.py:17 8.38 size,delim"], {"size": 1, "delim": 1}),
        (
            "firing plan cool down",
            0,
            [
                "kiln/firing.py:11 29.87 firing,plan,cool,down",
                "kiln/__init__.py:1 2.54 firing",
                "tests/test_firing.py:2 2.02 plan",
            ],
            {"firing": 2, "plan": 2, "cool": 1, "down": 1},
        ),
        (
            "soak",
            12,
            [
                "web/gauge.js:2 2.28 soak",
                "kiln/soak_time.py:28 2.26 soak",
                "kiln/soak_time.py:10 2.17 soak",
                "README.md:1 1.84 soak",
                "more0.py:1 1.84 soak",
                "more4.py:5 1.8 soak",
                "more8.py:9 1.77 soak",
                "kiln/firing.py:4 1.58 soak",
                "tests/test_firing.py:1 1.1 soak",
                "kiln/__init__.py:1 0.64 soak",
                "web/soak.min.js:1 0.45 soak",
            ],
            {"soak": 10},
        ),
        (
            "glaze vent",
            3,
            ["kiln/firing.py:5 10.54 glaze,vent", "kiln/firing.py:14 5.32 vent"],
            {"glaze": 1, "vent": 1},
        ),
        (
            "soak peak limit kiln",
            12,
            [
                "README.md:1 11.34 soak,kiln,peak,limit",
                "kiln/firing.py:10 9.91 limit,kiln,soak,peak",
                "web/gauge.js:1 9.79 peak,limit,soak",
                "kiln/soak_time.py:28 5.51 soak,peak",
                "kiln/soak_time.py:10 3.51 soak",
                "kiln/__init__.py:1 2.11 soak",
                "more0.py:1 1.84 soak",
                "more4.py:5 1.8 soak",
                "more8.py:9 1.77 soak",
                "notes/kiln.txt:3 1.47 ",
                "tests/test_firing.py:1 1.1 soak",
                "web/soak.min.js:1 0.69 soak,peak",
            ],
            {"soak": 10, "peak": 5, "limit": 3, "kiln": 2},
        ),
    ],
)
def test_the_matches_of_words_have_their_scores(
    tree: Path, query: str, more: int, matches: list[str], files_with_word: dict[str, int]
) -> None:
    for number in range(more):
        (tree / f"more{number}.py").write_text("z = 1\n" * number + ("" if number % 4 else "soak = 2\n"))
    data = search(tree, query)
    assert shown(data) == matches
    assert data["files_with_word"] == files_with_word
    assert "truncated" not in data


def test_the_two_best_files_of_many_show_six_places_each_and_the_others_three(tmp_path: Path) -> None:
    for number in range(5):
        lines = [f"soak = {line}\n" + "x = 1\n" * 30 for line in range(9)]
        (tmp_path / str(number)).write_text("".join(lines) + "soak = 1\n" * (1 + number))
    found = search(tmp_path, "soak", max_results=50)
    assert Counter(each["path"] for each in found["matches"]) == dict.fromkeys("43", 6) | dict.fromkeys("210", 3)


@pytest.mark.parametrize(("files", "places"), [(3, 27), (4, 18)])
def test_of_three_files_every_place_is_shown(tmp_path: Path, files: int, places: int) -> None:
    for number in range(files):
        (tmp_path / str(number)).write_text("".join(f"soak = {line}\n" + "x = 1\n" * 30 for line in range(9)))
    found = search(tmp_path, "soak", max_results=50)
    assert len(found["matches"]) == places


def test_places_are_left_out_from_the_first_one_that_does_not_fit_into_the_bytes_of_a_result(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / str(number)).write_text("soak = 1\n")
    size = len(str(search(tmp_path, "soak")["matches"][0]).encode())
    for bytes_more, shown_places in ((-1, 1), (0, 2)):
        found = search(tmp_path, "soak", 2 * size + bytes_more)
        assert len(found["matches"]) == shown_places
        assert found["truncated"]


def test_a_file_that_only_its_name_matches_shows_its_first_line_with_text(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"soak{number}_x.py").write_text("\n" if number else "\n\ny = 1\n")
    (tmp_path / "other.py").write_text("x = 1\n" * 12)
    found = [(each["path"], each["line"], each["text"]) for each in search(tmp_path, "soak", max_results=50)["matches"]]
    assert found == [("soak0_x.py", 3, "y = 1"), *sorted((f"soak{number}_x.py", 1, "") for number in range(1, 12))]


def test_a_word_counts_up_to_eight_lines_away_and_less_with_each_line() -> None:
    hits = [_rank._Hit(line, "", {line: 1.0}) for line in range(20)]  # pyright: ignore[reportPrivateUsage]
    near = _rank._near(hits, 9)  # pyright: ignore[reportPrivateUsage]
    assert near == {line: pytest.approx(1 - abs(line - 9) / 20) for line in range(1, 18)}


@pytest.mark.parametrize(
    ("line", "prose", "weight"),
    [
        ("# Presoak", True, 1.6 * 0.7),
        ("presoak it", True, 0.7),
        ("import presoak", False, 0.3 * 0.7),
        ("def presoak():", False, 2.2 * 0.7),
        ("presoak = 1", False, 1.6 * 0.7),
        ("def x(presoak):", False, 1.5 * 0.7),
        ("presoak()", False, 0.7),
        ("presoak " * 63, False, 0.3 * 0.7),
    ],
)
def test_the_weight_of_a_line_multiplies_that_of_the_word_in_it(line: str, prose: bool, weight: float) -> None:
    word = _rank._Word("soak", b"soak")  # pyright: ignore[reportPrivateUsage]
    found = _rank._weighed(line.encode(), {0: 0.7}, [word], prose=prose)  # pyright: ignore[reportPrivateUsage]
    assert found == {0: pytest.approx(weight)}


@pytest.mark.parametrize(
    ("word", "text", "weight"),
    [
        ("limit", "limit", 1.0),
        ("limit", "a limit", 1.0),
        ("limit", "delimiter", 0.15),
        ("limit", "overlimit", 0.7),
        ("limit", "overlimits", 0.7),
        ("limit", "overlimits2", 0.7),
        ("limit", "xxlimit", 0.15),
        ("limit", "xxxlimit", 0.7),
        ("limit", "x1xlimit", 0.15),
        ("limit", "maxLimit", 1.0),
        ("limit", "aLimit", 1.0),
        ("limit", "aBcLimit", 1.0),
        ("limit", "MAXLimit", 0.7),
        ("limit", "limit limit", 2.0),
        ("log", "log", 1.0),
        ("log", "logs", 1.0),
        ("log", "logged", 1.0),
        ("log", "logic", 0.0),
        ("log", "catalog", 0.0),
        ("log", "LogFile", 1.0),
        ("log", "myLog", 1.0),
        ("log", "log2", 1.0),
        ("log", "logLog", 2.0),
        ("size", "blocksize", 0.7),
        ("size", "sized", 1.0),
        ("s", "s", 1.0),
    ],
)
def test_an_occurrence_weighs_as_much_as_it_is_a_word(word: str, text: str, weight: float) -> None:
    raw = text.encode()
    assert _rank._Word(word, word.encode()).count(raw, raw.lower()) == weight  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("query", "path", "bonus"),
    [
        ("soak", "soak.py", [2.0]),
        ("soak", "a/soak.py", [2.0]),
        ("soak", "soak/a.py", [1.3]),
        ("soak", "soak/__init__.py", [2.0]),
        ("soak", "__init__.py", [0.0]),
        ("soak", "soaked.py", [2.0]),
        ("soak", "a_soak.py", [0.7]),
        ("soak", "a/x_soak_y.py", [0.7]),
        ("soak", "a/presoak.py", [0.0]),
        ("limit", "a/delimiter.py", [0.4]),
        ("log", "catalog.py", [0.0]),
        ("log", "log_file.py", [0.7]),
        ("web browser", "webbrowser.py", [2.0, 2.0]),
        ("web browser", "web_browsers.py", [2.0, 2.0]),
        ("web browser", "webbrowsering.py", [2.0, 2.0]),
        ("web browser", "webbrowserxxxx.py", [2.0, 2.0]),
        ("web browser", "webbrowserxxxxx.py", [0.0, 0.4]),
        ("web browser", "a/b.py", [0.0, 0.0]),
        ("soak", "_soak_.py", [2.0]),
        ("kiln soak", "Kiln/Soak.py", [1.3, 2.0]),
        ("soak", ".soak", [0.7]),
        ("index", "index.js", [2.0]),
        ("web", "web/index.js", [2.0]),
        ("min", "x.min.js", [0.7]),
    ],
)
def test_a_word_in_a_path_counts_most_in_the_files_own_name(query: str, path: str, bonus: list[float]) -> None:
    words = [_rank._Word(text, text.encode()) for text in query.split()]  # pyright: ignore[reportPrivateUsage]
    assert _rank._in_path(path, words) == bonus  # pyright: ignore[reportPrivateUsage]


def test_a_word_counts_up_to_64_times_in_a_file() -> None:
    word, text = _rank._Word("log", b"log"), b"log " * 90  # pyright: ignore[reportPrivateUsage]
    assert word.count(text, text) == 64


def test_only_the_first_lines_of_a_file_with_a_word_get_a_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_rank, "_MAX_HITS", 3)
    between = "\n" * 30
    (tmp_path / "log.txt").write_text(between.join(["soak", "soak", "soak", "soak the peak"]))
    assert sorted(each["line"] for each in search(tmp_path, "soak peak")["matches"]) == [1, 31, 61]
