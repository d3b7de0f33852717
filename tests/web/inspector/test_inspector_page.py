"""The inspector's page in a real Chromium: each action, an attacker's texts, strangers, keys, screens and speed."""

from __future__ import annotations

from typing import Any

import pytest
from inspected_runtime import ATTACKS, SECRET

pytestmark = pytest.mark.timeout(300)
Driven = dict[str, Any]
PARTS = [
    "approve",
    "edit",
    "deny",
    "cancel",
    "answer",
    "record",
    "look",
    "attack",
    "strangers",
    "keyboard",
    "narrow",
    "many",
]


@pytest.mark.parametrize("part", PARTS)
def test_each_part_runs_without_a_complaint_of_the_browser_and_asks_no_other_host(driven: Driven, part: str):
    found = driven[part]
    assert "error" not in found, f"{found['error']}\n{found.get('page')}"
    wanted = (
        ["This document requires 'TrustedHTML' assignment. The action has been blocked."] if part == "attack" else []
    )
    assert found["complaints"] == wanted
    assert found["other_hosts"] == []


def test_a_call_is_approved_without_its_secret_being_shown(driven: Driven):
    found = driven["approve"]
    assert '"hotel": "Avenida"' in found["shown"]
    assert '"api_key": "•••"' in found["shown"]
    assert SECRET not in str(driven)
    assert found["results"][-1] == "Avenida is booked for 3 nights with sk"
    assert (found["by"], found["text"]) == ("tester", "The hotel is booked, and the sky is clear.")


def test_the_timeline_has_a_row_for_each_round_each_call_and_the_sub_request_below_its_call(driven: Driven):
    rows = ["Approve this trip", "model, round 1", "weather", "weather", "research", "hotels", "model, round 1"]
    assert driven["approve"]["rows"] == [*rows, "model, round 2", "book_hotel"]


def test_edited_arguments_keep_the_values_that_were_not_shown(driven: Driven):
    found = driven["edit"]
    assert found["mistake"].startswith("This is not JSON: ")
    assert found["results"][-1] == "Avenida is booked for 5 nights with sk"
    assert "approved by tester with other arguments" in found["rows"]


def test_the_model_reads_the_reason_of_a_denial(driven: Driven):
    assert "tester denied the call: too expensive" in driven["deny"]["results"][-1]


def test_a_request_is_cancelled_and_takes_no_more_commands(driven: Driven):
    found = driven["cancel"]
    assert (found["outcome"], found["reason"]) == ("cancelled", "not needed any more")
    assert "not needed any more" in found["state"]
    assert found["commands_are_gone"]


def test_a_request_is_steered_and_its_external_call_answered(driven: Driven):
    assert driven["answer"]["results"] == ["42 euros have come in"]
    assert driven["answer"]["said"] == ["Answer this", "Be brief."]


def test_a_request_becomes_a_recording_that_replays(driven: Driven):
    found = driven["record"]
    assert "A replay of this recording gives the same facts." in found["shown"]
    assert f'await replay("tests/recordings/{found["name"]}")' in found["shown"]
    assert found["facts"] == 9


def test_the_list_is_searched_and_statistics_are_shown(driven: Driven):
    found = driven["look"]
    assert "requests watched" in found["statistics"]
    assert "running peak" in found["statistics"]
    assert found["nothing"] == "No request matches."
    assert found["listed"] == ["Scene long"]


def test_the_transcript_is_shown_as_stored_and_as_sent(driven: Driven):
    found = driven["look"]
    assert "6 results shortened, 0 turns left out" in found["hint"]
    assert found["stored"].count("sent shortened") == found["sent"].count("sent shortened") == 6
    assert all(f"page {page}: lorem ipsum" in found["stored"] for page in range(6))
    assert found["stored"].count("lorem") > 300
    assert found["sent"].count("lorem") < 100


def test_events_are_listed_newest_first_and_filtered(driven: Driven):
    found = driven["look"]
    assert (found["every"][0], found["every"][-1]) == ("request_completed", "request_started")
    assert found["signals"] == ["message_appended", "tool_call_started"]


def test_what_an_attacker_writes_stays_text(driven: Driven):
    found = driven["attack"]
    assert found["title"].endswith("Attack · toolbus inspector")
    assert found["elements"] == 0
    page, timeline, transcript, events = found["texts"]
    for text in ATTACKS[:4]:
        assert text in transcript
    assert "<img src=x onerror=\"document.title='XSS'\"> Attack" in page
    assert "<script>document.title='XSS'</script>" in timeline
    assert "onerror" in events


def test_even_a_bug_that_inserts_html_is_stopped_by_the_policy(driven: Driven):
    assert driven["attack"]["insert"] == "TypeError"


def test_pages_without_the_token_or_of_another_origin_change_nothing(driven: Driven):
    found = driven["strangers"]
    assert found["without_token"] == 401
    assert (found["cors"], found["no-cors"]) == ("TypeError", "TypeError")
    assert found["frames"][1].startswith("chrome-error:")
    assert found["still_runs"]


def test_the_token_does_not_stay_in_the_address(driven: Driven):
    assert "token" not in driven["strangers"]["address"]


def test_everything_is_reached_by_keys_and_what_has_the_focus_is_visible(driven: Driven):
    found = driven["keyboard"]
    assert found["reached"] == [
        "Keys only: solid",
        "Events (: solid",
        "Skip to the request: solid",
        "Approve: solid",
        "main",
    ]
    assert found["outcome"] == "completed"


def test_nothing_is_wider_than_a_small_screen(driven: Driven):
    assert driven["narrow"] == {
        **driven["narrow"],
        "widths": {"Timeline": 400, "Transcript": 400, "Events": 400},
        "list": 400,
    }


def test_the_focus_goes_along_when_the_list_and_a_request_replace_each_other(driven: Driven):
    request, opened = driven["narrow"]["focused"]
    assert (request.startswith("On a small screen"), opened) == (True, "main")


def test_texts_are_written_in_their_own_direction(driven: Driven):
    assert driven["look"]["directions"] == ["rtl", "ltr", "rtl"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["token", "overview", "timeline", "transcript", "events", "narrow"])
def test_axe_finds_no_barrier(driven: Driven, scheme: str, view: str):
    found = driven["barriers"]
    assert "error" not in found, found["error"]
    assert found[scheme][view] == []


def test_200_live_requests_with_2_000_events_a_second_stay_under_50_ms_a_frame_and_300_mb(driven: Driven):
    found = driven["many"]
    assert found["requests"] >= 200
    assert found["events_a_second"] > 1_800
    assert 0 < found["longest_task_ms"] < 50  # the processor's time, which does not depend on what else runs
    assert found["busy_ms_a_second"] < 500
    assert 0 < found["renderer_mb"] < 300
