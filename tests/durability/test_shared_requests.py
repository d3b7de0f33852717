"""Leases between real processes: each request is gone on with by one, and who was stopped for too long is fenced off."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lease_child
import pytest

from support import forked
from support.postgres_server import PostgresServer

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked and stopped: POSIX")


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    if request.param == "sqlite":
        yield {"store": "sqlite", "place": str(tmp_path)}
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database() as url:
        yield {"store": "postgres", "url": url, "place": str(tmp_path)}


def play(**config: Any) -> dict[str, Any]:
    with forked.Process(lease_child.main, config) as process:
        printed = process.stdout.read()
        assert process.wait() == 0
    seen = json.loads(printed)
    assert set(seen["codes"]) == {0}
    return seen


@pytest.mark.guarantee("G19", "G20")
def test_of_two_processes_one_goes_on_with_each_of_two_hundred_requests(where: dict[str, Any]) -> None:
    seen = play(scene="fight", requests=200, **where)
    results = [each for each in seen["noted"] if each[1] == "result"]
    assert Counter(each[2] for each in results) == Counter([*seen["facts"]])
    assert {(each[3], each[4]) for each in results} == {("completed", False)}
    assert {each[0] for each in results} == {"one", "other"}, "one of them did not get any"
    for facts in seen["facts"].values():
        reported = Counter[str](facts)
        assert (reported["request_resumed"], reported["request_completed"]) == (1, 1)
        assert (reported["tool_call_requested look"], reported["tool_call_requested pay"]) == (2, 1)
    started = Counter((each[2], each[3]) for each in seen["noted"] if each[1] == "started")
    assert set(started.values()) == {1}
    assert len(started) == 400
    endings = Counter(each[3] for each in seen["noted"] if each[1] == "ending" and each[2] == "request_completed")
    assert set(endings.values()) == {1}


@pytest.mark.guarantee("G20")
def test_a_process_that_was_stopped_for_longer_than_its_lease_does_nothing_more(where: dict[str, Any]) -> None:
    seen = play(scene="stopped", **where)
    assert [each[0] for each in seen["before"]] == ["stale"] * 5
    assert {each[0] for each in seen["meanwhile"]} == {"fresh"}
    assert seen["is_unchanged"], "the stale process has written"
    assert {(each[0], each[1]) for each in seen["afterwards"]} == {("stale", "result")}, seen["afterwards"]
    assert len(seen["afterwards"]) == 5
    assert {each[4] for each in seen["afterwards"]} == {True}
    assert {each[3] for each in seen["afterwards"]} <= {"failed", "cancelled"}  # it finds out at a step, or a renewal
    for facts in seen["facts"].values():
        reported = Counter[str](facts)
        assert (reported["request_resumed"], reported["request_completed"], reported["tool_call_completed"]) == (
            1,
            1,
            2,
        )
