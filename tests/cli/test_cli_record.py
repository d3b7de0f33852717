"""`toolbus ask --record FILE` and `toolbus replay FILE`."""

from __future__ import annotations

import logging
from pathlib import Path

import orjson
import pytest
import scenes
from desk import Command

from toolbus.providers.scripted import calls, text
from toolbus.testing import read_recording

ASK = ("ask", "What is one and one?", "-p", "scenes:scripted", "-t", "scenes:add")


@pytest.fixture
def recording(toolbus: Command, folder: Path) -> Path:
    scenes.play(calls(("add", {"a": 1, "b": 1})), text("It is 2."))
    assert toolbus(*ASK, "--record", "sum.jsonl", "-q").err == ""
    return folder / "sum.jsonl"


def test_a_recorded_question_is_told_of_and_replays_the_same(toolbus: Command, folder: Path):
    scenes.play(calls(("add", {"a": 1, "b": 1})), text("It is 2."))
    ended = toolbus(*ASK, "--record", "sum.jsonl")
    assert (ended.status, ended.out.strip()) == (0, "It is 2.")
    assert "toolbus: recorded in sum.jsonl: 1 request, 9 facts" in ended.err
    scenes.forget()  # neither the model nor the tools are needed any more
    ended = toolbus("replay", "sum.jsonl")
    assert (ended.status, ended.out, ended.err) == (0, "sum.jsonl: the same (1 request, 9 facts)\n", "")
    assert (folder / "sum.jsonl").exists()


def test_the_turns_of_a_chat_are_recorded_together(toolbus: Command):
    scenes.play(text("One."), text("Two."))
    toolbus("chat", "-p", "scenes:scripted", "--record", "chat.jsonl", "-q", stdin="first\nsecond\n")
    assert toolbus("replay", "chat.jsonl").out == "chat.jsonl: the same (2 requests, 10 facts)\n"


def test_signals_and_masks_are_options(toolbus: Command, folder: Path):
    scenes.play(text("The password=hunter2hunter2."))
    toolbus("ask", "What is it?", "-p", "scenes:scripted", "--record", "a.jsonl", "--record-signals", "--record-masked")
    assert "hunter2" not in (folder / "a.jsonl").read_text(encoding="utf-8")
    assert {each.type for each in read_recording(folder / "a.jsonl").signals} == {"status_changed"}
    assert toolbus("replay", "a.jsonl").status == 0


def test_a_difference_is_reported_with_its_line_and_status_1(toolbus: Command, recording: Path):
    lines = recording.read_bytes().splitlines(keepends=True)
    requested = next(at for at, line in enumerate(lines) if b'"tool_call_requested"' in line)
    lines[requested] = lines[requested].replace(b'"b":1', b'"b":7')
    recording.write_bytes(b"".join(lines))
    ended = toolbus("replay", str(recording), str(recording))
    assert ended.status == 1
    reported = ended.out.splitlines()
    assert reported[0].startswith(f"{recording}:{requested + 1}: tool_call_requested differs (request ")
    assert reported[1:4] == ["  field     arguments.b", "  expected  7", "  got       1"]
    assert ended.out.count("tool_call_requested differs") == 2
    assert ended.err == ""
    found = orjson.loads(toolbus("replay", str(recording), "--json").out)
    problem = found.pop("problem")
    assert "arguments.b" in problem
    assert found.pop("request_id")
    assert found == {
        "file": str(recording), "same": False, "line": requested + 1, "field": "arguments.b", "expected": 7, "got": 1,
    }  # fmt: skip
    assert "was changed after it was written" in toolbus("replay", str(recording), "--ignore", "arguments").out


def test_a_damaged_file_is_told_with_its_line_and_the_others_are_compared(toolbus: Command, recording: Path):
    cut = recording.with_name("cut.jsonl")
    cut.write_bytes(recording.read_bytes()[:-300])
    ended = toolbus("replay", str(cut), str(recording))
    assert ended.status == 1
    first, second = ended.out.splitlines()
    assert first.startswith(f"{cut}:11: the file is cut off")
    assert second == f"{recording}: the same (1 request, 9 facts)"
    same = orjson.loads(toolbus("replay", str(recording), "--json").out)
    assert same == {"file": str(recording), "same": True, "requests": 1, "facts": 9}


def test_a_file_whose_name_is_not_utf8_is_compared_and_named_with_question_marks(toolbus: Command, recording: Path):
    odd = recording.rename(recording.with_name("\udcff.jsonl"))
    assert orjson.loads(toolbus("replay", odd.name, "--json").out)["file"] == "?.jsonl"
    odd.write_bytes(b"{")
    found = orjson.loads(toolbus("replay", odd.name, "--json").out)
    assert (found["file"], found["same"]) == ("?.jsonl", False)


def test_failures_of_recorded_calls_are_not_logged_again(
    toolbus: Command, folder: Path, caplog: pytest.LogCaptureFixture
):
    scenes.play(calls(("add", {"a": "\x1b[31m", "b": 1})), text("No."))
    toolbus("ask", "What is it?", "-p", "scenes:scripted", "-t", "scenes:add", "--record", "a.jsonl", "-q")
    caplog.clear()
    ended = toolbus("replay", "a.jsonl")
    assert (ended.status, ended.err, caplog.messages) == (0, "", [])
    assert logging.getLogger("toolbus").level == logging.NOTSET


def test_a_file_that_is_not_there_is_wrong_usage(toolbus: Command):
    ended = toolbus("replay", "nowhere.jsonl")
    assert (ended.status, ended.out, ended.err) == (2, "", "toolbus: there is no file nowhere.jsonl\n")
    assert toolbus("replay").status == 2


def test_a_path_that_no_file_can_have_is_wrong_usage(toolbus: Command):
    ended = toolbus("replay", "a" * 300)
    assert (ended.status, ended.err) == (2, f"toolbus: {'a' * 300} cannot be read: File name too long\n")


def test_a_file_that_cannot_be_read_is_told_and_the_others_are_compared(toolbus: Command, recording: Path):
    ended = toolbus("replay", "/proc/self/mem", str(recording))
    unread, compared = ended.out.splitlines()
    assert (ended.status, unread) == (1, "/proc/self/mem: Input/output error")
    assert compared.startswith(f"{recording}: the same")
    ended = toolbus("replay", "/proc/self/mem", "--json")
    problem = "/proc/self/mem: Input/output error"
    assert orjson.loads(ended.out) == {"file": "/proc/self/mem", "same": False, "problem": problem}


def test_a_file_that_cannot_be_made_is_refused_before_anything_is_asked(toolbus: Command, folder: Path):
    scenes.play(text("never"))
    ended = toolbus("ask", "q", "-p", "scenes:scripted", "--record", str(folder))
    assert (ended.status, ended.out) == (2, "")
    assert "--record" in ended.err
    assert not scenes.seen


def test_a_full_disk_costs_the_recording_and_not_the_answer(toolbus: Command):
    scenes.play(text("Hello."))
    ended = toolbus("ask", "q", "-p", "scenes:scripted", "--record", "/dev/full", "-q")
    assert (ended.status, ended.out) == (0, "Hello.\n")
    assert "the recording could not be written" in ended.err
