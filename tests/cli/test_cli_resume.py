"""`toolbus resume`: requests that were cut off go on."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
import scenes
from cut_off import COMMAND, NOBODY, cut_off, hold, with_store
from desk import Command, Terminal

from toolbus import Limits
from toolbus.cli import main
from toolbus.cli._commands import resume as _resume
from toolbus.cli._open_store import holder_of
from toolbus.cli._terminal.progress_of_many import NarratorOfMany
from toolbus.cli._terminal.screen import Line, Screen
from toolbus.core.plain_text import clean
from toolbus.errors import StoreError
from toolbus.events import ApprovalRequested, RequestCancelled, RequestFailed, RequestResumed, ToolCallRequested
from toolbus.messages import ToolMessage, Usage
from toolbus.providers.scripted import calls, text
from toolbus.storage import Entry, RequestRecord
from toolbus.stores.sqlite import SqliteStore

RESUME = ("resume", "-p", "scenes:scripted", "-t", "scenes:resumable")
WRITE = ("send", {"to": "Ann"})
NOTHING = "There is nothing to resume.\n"


@pytest.mark.parametrize(("number", "holder"), [("9" * 30, "gone"), ("\u00b2", "elsewhere"), ("x", "elsewhere")])
def test_the_holder_of_a_request_is_known_whatever_the_store_says(number: str, holder: str):
    owner = f"{socket.gethostname()}:{number}:1"
    record = RequestRecord(request_id="r", conversation_id="c", owner=owner, lease_until=time.time() + 60)
    assert holder_of(record) == holder


def test_one_goes_on_where_it_stood_and_is_shown_as_ask_shows_it(toolbus: Command, kept: Path):
    request_id = cut_off(kept, ("fetch", {"what": "mail"}), "Is there mail?")
    scenes.play(text("There is."))
    ended = toolbus(*RESUME)
    assert ended.status == 0
    assert ended.out == f"request {request_id}: Is there mail?\n\nThere is.\n"
    assert '✓ Fetch  what="mail"' in ended.err
    assert scenes.did == ["fetch mail"]
    assert toolbus("resume").out == NOTHING


def test_what_may_have_run_is_not_run_again_and_the_model_is_told(toolbus: Command, kept: Path):
    cut_off(kept, WRITE, "Write to Ann")
    scenes.play(text("I cannot tell."))
    ended = toolbus(*RESUME)
    assert (ended.status, scenes.did) == (0, [])
    assert "  interrupted: The process ended while send ran; it may have had its effect.\n" in ended.err
    [result] = [each for each in scenes.seen[-1].messages if isinstance(each, ToolMessage)]
    assert result.is_error


def test_one_whose_store_fails_is_reported_and_left_for_another_time(
    toolbus: Command, kept: Path, monkeypatch: pytest.MonkeyPatch
):
    async def full(_store: SqliteStore, _entry: Entry) -> int:
        raise StoreError("there is no room")

    cut_off(kept, ("fetch", {"what": "mail"}), "Is there mail?")
    scenes.play(text("There is."))
    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "append", full)
        ended = toolbus(*RESUME)
    assert (ended.status, ended.out) == (1, "")
    assert "toolbus: failed: there is no room\n" in ended.err
    assert "toolbus: 1 request is left unfinished: toolbus resume continues it\n" in ended.err
    assert toolbus(*RESUME).out.endswith("There is.\n")


def test_one_that_is_stopped_by_a_limit_names_no_option_that_resume_does_not_have(toolbus: Command, kept: Path):
    cut_off(kept, ("fetch", {"what": "mail"}), "Is there mail?", limits=Limits(max_rounds=1))
    ended = toolbus(*RESUME)
    assert "toolbus: stopped by a limit: max_rounds=1\n" in ended.err


def test_one_that_cannot_continue_without_its_program_is_reported_with_what_to_do(toolbus: Command, kept: Path):
    request_id = cut_off(kept, ("fetch", {"what": "mail"}), "Is there mail?", output=int)
    ended = toolbus(*RESUME)
    assert (ended.status, ended.out) == (1, "")
    assert f"toolbus: request {request_id} cannot be resumed: " in ended.err
    assert "; toolbus resume --abandon drops it\n" in ended.err
    assert "store verify" not in ended.err


def test_of_several_there_is_a_line_for_each_and_the_answers_with_their_ids(toolbus: Command, kept: Path):
    first = cut_off(kept, ("fetch", {"what": "1"}), "one?")
    second = cut_off(kept, ("fetch", {"what": "2"}), "two?")
    scenes.play(text("Yes."))
    ended = toolbus(*RESUME)
    assert ended.status == 0
    assert ended.out.count("Yes.") == 2
    for request_id, prompt in ((first, "one?"), (second, "two?")):
        assert f"→ {request_id}  {prompt}\n" in ended.err
        assert f"✓ {request_id}  {prompt}  completed  " in ended.err
        assert f"request {request_id}: {prompt}\nYes.\n" in ended.out
    assert ended.out.count("Yes.\n\nrequest ") == 1


def test_on_a_terminal_each_answer_is_shown_to_its_end(
    kept: Path, folder: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
):
    for each in ("one?", "two?"):
        cut_off(kept, ("fetch", {"what": each}), each)
    scenes.play(text("- Yes."))
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("sys.stderr", terminal)
    assert main(RESUME) == 0
    assert clean(terminal.getvalue()).count(" • Yes.\n") == 2


def test_each_is_one_object_with_json(toolbus: Command, kept: Path):
    ids = {cut_off(kept, ("fetch", {"what": each}), each) for each in "ab"}
    scenes.play(text("Yes."))
    found = [orjson.loads(line) for line in toolbus(*RESUME, "--json", "-q").out.splitlines()]
    assert {each["request_id"] for each in found} == ids
    assert {each["text"] for each in found} == {"Yes."}
    assert toolbus("resume", "--json").out == ""


class TestWhatItNeeds:
    def test_code_is_never_run_because_a_store_says_so(self, toolbus: Command, kept: Path):
        request_id = cut_off(kept, WRITE, "Write")
        ended = toolbus("resume")
        assert (ended.status, ended.out) == (1, "")
        assert ended.err == (
            f"toolbus: request {request_id} cannot be resumed: it needs your own code: "
            "toolbus resume --provider scenes:scripted --tools scenes:resumable\n"
        )
        ended = toolbus("resume", "-p", "extractive", "--store", str(kept))
        assert "it needs your own tools: toolbus resume --store " in ended.err
        assert ended.err.endswith(" --provider extractive --tools scenes:resumable\n")

    def test_directory_and_provider_are_its_own_where_toolbus_has_it_by_name(
        self, toolbus: Command, kept: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ):
        command = {**COMMAND, "provider": "extractive", "dir": str(folder)}
        cut_off(kept, WRITE, "What is the default timeout?", command=command)
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)
        ended = toolbus("resume", "-t", "scenes:resumable")
        assert ended.status == 0
        assert "\n3  DEFAULT_TIMEOUT_SECONDS = 120\n" in ended.out

    def test_a_directory_that_is_gone_is_reported(self, toolbus: Command, kept: Path):
        cut_off(kept, WRITE, "Write", command={**COMMAND, "dir": "/nowhere"})
        ended = toolbus(*RESUME)
        assert ended.status == 1
        assert "cannot be resumed: --dir /nowhere does not exist" in ended.err

    def test_what_a_program_has_begun_wants_its_model_named(self, toolbus: Command, kept: Path):
        cut_off(kept, WRITE, "Write", command=None)
        assert "it was begun by another program: name its model and its tools" in toolbus("resume").err
        scenes.play(text("Done."))
        assert toolbus(*RESUME).status == 0

    @pytest.mark.parametrize(
        "damage", ["UPDATE facts SET data = ? WHERE seq = 2 AND", "UPDATE agreements SET data = ? WHERE"]
    )
    def test_one_that_is_damaged_is_reported_with_what_to_do_and_the_others_go_on(
        self, toolbus: Command, kept: Path, damage: str
    ):
        damaged = cut_off(kept, WRITE, "one")
        cut_off(kept, WRITE, "two")
        with contextlib.closing(sqlite3.connect(kept)) as database:
            database.execute(f"{damage} request_id = ?", (b"{", damaged))
            database.commit()
        scenes.play(text("Done."))
        ended = toolbus(*RESUME)
        assert ended.status == 1
        assert "Done." in ended.out
        [reported] = [line for line in ended.err.splitlines() if "cannot be resumed" in line]
        assert reported.startswith(f"toolbus: request {damaged} cannot be resumed: ")
        assert reported.endswith("; toolbus store verify checks the whole store, toolbus resume --abandon drops it")
        assert "Done." not in toolbus(*RESUME).out
        assert toolbus("resume", "--abandon").out == f"{damaged}  abandoned  one\n"
        assert toolbus("resume").out == NOTHING


class TestPeople:
    def test_a_question_that_waited_is_asked_again(
        self, toolbus: Command, kept: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ):
        cut_off(kept, ("delete_file", {"path": "notes.txt"}), "Delete it")
        scenes.play(text("Done."))
        terminal.readline = lambda *_: "y\n"  # type: ignore[method-assign]
        monkeypatch.setattr("sys.stdin", terminal)
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setenv("TERM", "dumb")
        assert main([*RESUME]) == 0
        assert scenes.did == ["notes.txt"]
        assert '? Delete File  path="notes.txt"\n' in terminal.getvalue()

    def test_without_a_terminal_it_is_denied_or_approved_as_the_option_says(self, toolbus: Command, kept: Path):
        for option, did in (((), []), (("--approve", "all"), ["notes.txt"])):
            cut_off(kept, ("delete_file", {"path": "notes.txt"}), "Delete it")
            scenes.play(text("Done."))
            assert toolbus(*RESUME, *option).status == 0
            assert scenes.did == did

    def test_ctrl_c_leaves_what_is_not_finished(self, toolbus: Command, kept: Path):
        request_id = cut_off(kept, WRITE, "Write to Ann")
        scenes.play(calls(("interrupted", {})), text("never"))
        ended = toolbus(*RESUME)
        assert ended.status == 130
        assert ended.err.endswith("toolbus: 1 request is left unfinished: toolbus resume continues it\n")
        scenes.play(text("Done."))
        ended = toolbus(*RESUME)
        assert (ended.status, ended.out) == (0, f"request {request_id}: Write to Ann\n\nDone.\n")

    def test_what_nobody_wants_any_more_is_abandoned_and_nothing_of_it_runs(self, toolbus: Command, kept: Path):
        request_id = cut_off(kept, WRITE, "Write to Ann")
        ended = toolbus("resume", "--abandon")
        assert (ended.status, ended.out) == (0, f"{request_id}  abandoned  Write to Ann\n")
        assert toolbus("resume").out == NOTHING
        [found] = with_store(kept, lambda store: store.found_requests())
        assert found.record.ending == "abandoned"


class TestLeases:
    def test_the_hold_of_a_process_that_is_gone_is_waited_for(
        self, toolbus: Command, kept: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(_resume, "_LOOK_SECONDS", 0.01)
        hold(kept, cut_off(kept, WRITE, "Write"), 0.3, process=NOBODY)
        scenes.play(text("Done."))
        ended = toolbus(*RESUME)
        assert ended.status == 0
        assert ended.err.startswith(
            "toolbus: waiting for the lease of a process that is gone to expire, 10 s at most\n"
        )

    def test_the_time_until_the_last_lease_expires_is_shown(
        self, toolbus: Command, kept: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ):
        for seconds in (60, 3_000, 60):
            hold(kept, cut_off(kept, WRITE, "Write"), seconds, process=NOBODY)

        waits: list[float] = []

        async def interrupted(seconds: float) -> None:
            waits.append(seconds)
            raise KeyboardInterrupt

        monkeypatch.setattr("toolbus.cli._commands.resume.anyio.sleep", interrupted)
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        assert main(["resume"]) == 130
        assert waits == [0.5]
        assert re.search(r"to expire.*(2999|3000) s", terminal.getvalue())

    def test_what_runs_in_another_process_is_left_to_it(self, toolbus: Command, kept: Path):
        hold(kept, cut_off(kept, WRITE, "Write"), 60)
        ended = toolbus("resume")
        assert (ended.status, ended.out) == (0, "There is nothing to resume: 1 request runs in another process.\n")

    def test_ctrl_c_while_it_waits_leaves_all_as_it_is(
        self, toolbus: Command, kept: Path, monkeypatch: pytest.MonkeyPatch
    ):
        hold(kept, cut_off(kept, WRITE, "Write"), 60, process=NOBODY)

        async def interrupted(_seconds: float) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("toolbus.cli._commands.resume.anyio.sleep", interrupted)
        ended = toolbus("resume")
        assert ended.status == 130
        assert ended.err.endswith(
            "toolbus: interrupted before anything was resumed; unfinished requests stay as they were\n"
        )


class _Shown(Screen):
    """A terminal's screen, whose moving lines are kept."""

    live = True

    def __init__(self) -> None:
        super().__init__(None, None)
        self.lines: list[str] = []

    def busy(self, line: Line | None) -> None:
        if line is not None:
            self.lines.append("  ".join(each for each in (line.name, line.detail, line.tail) if each))


def test_a_line_that_moves_says_what_the_oldest_does_and_how_many_there_are():
    screen, now = _Shown(), [100.0]
    several = NarratorOfMany(screen, {"a": "one?", "b": "two?"}, clock=lambda: now[0])
    several.tick()
    call: Any = {"call_id": "c", "name": "send_mail", "arguments": {"to": "Ann"}, "timeout_seconds": 1.0}
    for event in (
        RequestResumed(request_id="a", resumption=1),
        RequestResumed(request_id="b", resumption=1),
        ToolCallRequested(request_id="a", idempotency_key="k", round=0, **call),
        ApprovalRequested(request_id="a", **call),
        RequestFailed(request_id="a", reason="provider_unavailable", error="gone", usage=Usage()),
        RequestCancelled(request_id="b", reason="enough"),
    ):
        several(event)
        several.tick()
        now[0] += 1
    assert screen.lines == [
        "a  Analyzing request...  0 ms",
        "a  Analyzing request...  1.0 s +1",
        'a  Send Mail  to="Ann"  2.0 s +1',
        "a  Waiting for approval: Send Mail...  3.0 s +1",
        "b  Analyzing request...  3.0 s",
    ]


def test_one_that_is_resumed_much_later_has_its_time_anew(
    toolbus: Command, kept: Path, monkeypatch: pytest.MonkeyPatch
):
    cut_off(kept, WRITE, "Write to Ann")
    later = time.time() + 3_600
    monkeypatch.setattr("toolbus.clock.wall_time", lambda: later)
    scenes.play(text("Written, or not."))
    ended = toolbus(*RESUME)
    assert (ended.status, "Written, or not." in ended.out) == (0, True)


def test_there_is_nothing_where_nothing_was_kept(toolbus: Command, kept: Path):
    assert toolbus("resume").out == NOTHING
    assert not kept.parent.exists()
    ended = toolbus("resume", "--store", "missing.db")
    assert (ended.status, ended.err) == (2, "toolbus: --store: there is no store missing.db\n")


HANGS = '''
import anyio
from toolbus import tool
from toolbus.providers.scripted import ScriptedProvider, calls, text

@tool
async def hang() -> str:
    """Hang."""
    await anyio.sleep_forever()

def hanging(): return ScriptedProvider([calls(("hang", {})), text("Never.")])
'''


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")
def test_a_process_that_is_killed_leaves_its_request_to_be_found(toolbus: Command, kept: Path, folder: Path):
    (folder / "hangs.py").write_text(HANGS, encoding="utf-8")
    command = [sys.executable, "-m", "toolbus", "ask", "Hang on", "-p", "hangs:hanging", "-t", "hangs:hang"]
    process = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=os.environ
    )
    assert process.stderr is not None
    with process:
        assert process.stderr.readline().startswith("→ Hang".encode())
        process.kill()
    scenes.play(text("x"))
    assert '("Hang on"): toolbus resume continues it' in toolbus("ask", "q", "-p", "scenes:scripted").err
    [found] = with_store(kept, lambda store: store.found_requests(is_unfinished=True))
    with_store(kept, lambda store: store.release(found.record.request_id, found.record.epoch))  # 10 s sooner
    ended = toolbus("resume")
    assert "toolbus resume --provider hangs:hanging --tools hangs:hang\n" in ended.err
    scenes.play(text("Gone on."))
    assert toolbus("resume", "-p", "scenes:scripted", "-t", "hangs:hang").out.endswith("\n\nGone on.\n")
