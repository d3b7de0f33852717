"""The pure functions of the page, run by Node.js: times, the scale of the timeline, frames, addresses and the search."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import toolbus.web.inspector
from support import npm_servers

STATIC = Path(toolbus.web.inspector.__file__).parent / "static"


def run(*asked: tuple[str, list[Any]]) -> list[Any]:
    command = [npm_servers.node(), str(Path(__file__).with_name("times.mjs")), (STATIC / "time.js").as_uri()]
    done = subprocess.run(command, check=True, capture_output=True, text=True, input=json.dumps(asked))
    return json.loads(done.stdout)


def row(*segments: tuple[str, float, float | None]) -> dict[str, Any]:
    return {"segments": [list(each) for each in segments]}


def test_durations_have_three_digits_and_the_largest_unit():
    seconds = [0, 0.0042, 0.25, 1.234, 59.96, 61, 3_600, 90_000, None]
    found = run(*(("duration", [each]) for each in seconds))
    assert found == ["0 ms", "4.2 ms", "250 ms", "1.23 s", "60.0 s", "1 min 1 s", "1 h 0 min", "1 d 1 h", ""]


def test_counts_and_costs_are_short():
    assert run(("count", [9_999]), ("count", [12_345]), ("count", [2_500_000]), ("money", [0.0019]), ("money", [1.5])) == [
        "9,999", "12.3k", "2.5M", "0.00190", "1.500",
    ]  # fmt: skip


def test_times_are_placed_in_proportion_while_something_happens():
    rows = [row(("request", 100, 110)), row(("model", 100, 104)), row(("tool", 104, 110))]
    [found] = run(("scale", [rows, 110, False, [100, 105, 110, 90, 120]]))
    assert found["at"] == [0, 0.5, 1, 0, 1]
    assert found["gaps"] == []
    assert [each["text"] for each in found["ticks"]] == ["0", "2 s", "4 s", "6 s", "8 s"]


def test_a_long_wait_for_a_person_is_shortened_and_nothing_else():
    rows = [row(("request", 0, None)), row(("model", 0, 1)), row(("person", 1, 7_201)), row(("tool", 7_201, 7_202))]
    short, whole = run(
        ("scale", [rows, 7_202, False, [0, 1, 7_201, 7_202]]), ("scale", [rows, 7_202, True, [0, 1, 7_201, 7_202]])
    )
    assert short["gaps"] == [[1, 7_201]]
    assert short["at"] == pytest.approx([0, 1 / 2.16, 1.16 / 2.16, 1])
    assert whole["gaps"] == []
    assert whole["at"] == pytest.approx([0, 1 / 7_202, 7_201 / 7_202, 1])
    assert all(0 <= each["at"] < 1 for each in short["ticks"] + whole["ticks"])


def test_a_request_without_any_time_and_one_of_a_year_have_a_scale():
    year = 365 * 86_400
    found = run(
        ("scale", [[], 5, False, [5]]),
        ("scale", [[row(("request", 5, 5))], 5, False, [5]]),
        ("scale", [[row(("tool", 0, year))], year, False, [year / 2]]),
        ("scale", [[row(("tool", 0, 1), ("person", 1, year), ("tool", year, year + 1))], year, False, [year + 1]]),
    )
    assert [each["at"] for each in found] == [[0], [0], [0.5], [1]]
    assert all(len(each["ticks"]) <= 12 for each in found)


def test_frames_are_read_however_they_are_cut():
    text = 'event: view\ndata: {"a": 1}\n\n: \n\ndata: x\n\n'
    found = run(("parser", [text]), ("parser", list(text)))
    assert found == [[["view", '{"a": 1}'], ["message", "x"]]] * 2


def test_addresses_are_read_back():
    id_ = "a/b c#%"
    [address] = run(("address", [id_, "events"]))
    assert run(("route", [address]), ("route", ["#/requests/%E0%A4%A/x"]), ("route", [""])) == [
        {"id": id_, "tab": "events"},
        {"id": "%E0%A4%A", "tab": "timeline"},
        {"id": "", "tab": ""},
    ]


def test_the_list_is_searched_by_words_and_grouped_by_state():
    base = {"conversation_id": "c1", "models": ["openai:gpt"]}
    requests = [
        {**base, "request_id": "r1", "prompt": "Weather in Paris", "state": "completed"},
        {**base, "request_id": "r2", "prompt": "Weather in Rome", "state": "stopped"},
        {**base, "request_id": "r3", "prompt": "Trip", "state": "waiting"},
    ]
    asked = [("all", "paris WEATHER"), ("failed", ""), ("waiting", "gpt"), ("running", "")]
    found = run(*(("wanted", [requests, *each]) for each in asked))
    assert [[each["request_id"] for each in some] for some in found] == [["r1"], ["r2"], ["r3"], []]
