"""What `ask` and `chat` keep, where, and going on with it."""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import scenes
from cut_off import COMMAND, NOBODY, cut_off, hold, with_store
from desk import Command, Terminal

from toolbus.cli import main
from toolbus.cli._arguments import parse
from toolbus.cli._open_store import ago
from toolbus.cli._store_location import default_path, location_of
from toolbus.cli._terminal.screen import open_screen
from toolbus.errors import StoreError
from toolbus.messages import UserMessage
from toolbus.providers.scripted import calls, text
from toolbus.stores import SqliteStore
from toolbus.stores.sql import DatabaseStore

ASK = ("ask", "-p", "scenes:scripted")
CHAT = ("chat", "-p", "scenes:scripted")


def asked(request: Any) -> list[str]:
    return [str(each.content) for each in request.messages if isinstance(each, UserMessage)]


class TestThePlace:
    @pytest.mark.parametrize(
        ("environment", "platform", "path"),
        [
            ({}, "linux", "{home}/.local/state/toolbus/toolbus.db"),
            ({"XDG_STATE_HOME": "/x"}, "linux", "/x/toolbus/toolbus.db"),
            ({"XDG_STATE_HOME": "x"}, "freebsd14", "{home}/.local/state/toolbus/toolbus.db"),
            ({"XDG_STATE_HOME": "/x"}, "darwin", "{home}/Library/Application Support/toolbus/toolbus.db"),
            ({"LOCALAPPDATA": "/x"}, "win32", "/x/toolbus/toolbus.db"),
            ({}, "win32", "{home}/AppData/Local/toolbus/toolbus.db"),
        ],
    )
    def test_the_default_one_is_the_platforms(
        self, environment: dict[str, str], platform: str, path: str, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setenv("HOME", "/home/somebody")
        assert str(default_path(environment, platform)) == path.format(home="/home/somebody")

    def test_without_a_home_there_is_none(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("HOME", "nowhere")
        assert default_path({}, "linux") is None

    def test_an_option_wins_over_the_variable_and_that_over_the_default(self):
        variable = {"TOOLBUS_STORE": "b.db", "XDG_STATE_HOME": "/x"}
        found = [
            location_of(parse(["ask", *options]), environment)
            for options, environment in (
                (["--store", "a.db"], variable),
                ([], variable),
                ([], {**variable, "TOOLBUS_STORE": ""}),
                (["--no-store"], variable),
                ([], {"TOOLBUS_STORE": "none"}),
                (["--store", "none"], variable),
            )
        ]
        assert [each and (str(each.path), each.asked_by) for each in found] == [
            *(("a.db", "--store"), ("b.db", "TOOLBUS_STORE"), ("/x/toolbus/toolbus.db", ""), None, None, None)
        ]

    def test_folder_and_file_are_for_their_owner_alone(self, toolbus: Command, kept: Path):
        scenes.play(text("x"))
        assert toolbus(*ASK, "q").status == 0
        assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600

    def test_without_a_home_a_line_says_so_and_the_answer_comes(
        self, toolbus: Command, kept: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setenv("HOME", "nowhere")
        scenes.play(text("x"))
        said = "toolbus: nothing is kept: there is no home folder; --store PATH names another file\n"
        ended = toolbus(*ASK, "q")
        assert (ended.status, ended.out, ended.err) == (0, "x\n", said)

    @pytest.mark.parametrize("broken", ["folder", "file"])
    def test_where_the_default_one_cannot_be_used_a_line_says_so_and_the_answer_comes(
        self, toolbus: Command, kept: Path, broken: str
    ):
        kept.parent.parent.mkdir()
        if broken == "folder":
            kept.parent.write_text("a file", encoding="utf-8")
        else:
            kept.parent.mkdir()
            kept.write_text("no database", encoding="utf-8")
        scenes.play(text("x"))
        ended = toolbus(*ASK, "q")
        assert (ended.status, ended.out) == (0, "x\n")
        assert ended.err.count("\n") == 1
        assert ended.err.startswith(f"toolbus: nothing is kept: {kept if broken == 'file' else kept.parent}")
        scenes.play(text("x"))
        assert toolbus(*ASK, "q", "-q").err == ""
        ended = toolbus(*ASK, "q", "--continue")
        assert (ended.status, ended.err.count("\n")) == (2, 1)
        assert ended.err.startswith("toolbus: --continue: ")

    @pytest.mark.parametrize("how", ["--store", "TOOLBUS_STORE"])
    @pytest.mark.parametrize("path", ["missing/a.db", "limits.py", "."])
    def test_one_that_was_asked_for_and_cannot_be_used_is_an_error_before_anything_is_asked(
        self, toolbus: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, how: str, path: str
    ):
        scenes.play(text("never"))
        if how == "TOOLBUS_STORE":
            monkeypatch.setenv(how, path)
        ended = toolbus(*ASK, "q", *(["--store", path] if how == "--store" else []))
        assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)
        assert ended.err.startswith(f"toolbus: {how}: ")
        assert str(folder / path) in ended.err
        assert not scenes.seen

    def test_one_that_cannot_be_written_is_an_error_that_names_it(
        self, toolbus: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
    ):
        with_store(folder / "a.db", SqliteStore.open)
        access = os.access

        def read_only(path: Any, mode: int) -> bool:  # root may write everything
            return access(path, mode) and not (mode == os.W_OK and str(path).endswith("a.db"))

        monkeypatch.setattr(os, "access", read_only)
        ended = toolbus(*ASK, "q", "--store", "a.db")
        assert (ended.status, ended.err.count("\n")) == (2, 1)
        assert "a.db cannot be written" in ended.err

    def test_nothing_is_kept_and_no_database_imported_where_none_is_wanted(
        self, toolbus: Command, kept: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setitem(sys.modules, "toolbus.cli._open_store", None)  # importing it fails
        scenes.play(text("x"))
        assert toolbus(*ASK, "q", "--no-store").err == ""
        assert not kept.parent.exists()

    def test_a_python_without_sqlite_answers_all_the_same(
        self, toolbus: Command, kept: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setitem(sys.modules, "toolbus.cli._open_store", None)
        scenes.play(text("x"))
        assert toolbus(*ASK, "q").out == "x\n"
        ended = toolbus(*ASK, "q", "--store", str(kept))
        assert (ended.status, ended.err.count("\n")) == (2, 1)
        assert "this Python has no SQLite" in ended.err


class TestGoingOn:
    def test_a_question_goes_on_with_the_newest_conversation(self, toolbus: Command, kept: Path):
        for words, more in (("one", ()), ("two", ("--continue",)), ("three", ())):
            scenes.play(text("x"))
            assert toolbus(*ASK, words, *more).status == 0
        scenes.play(text("x"))
        toolbus(*ASK, "--continue", "and four?")
        assert [asked(each) for each in scenes.seen] == [["one"], ["one", "two"], ["three"], ["three", "and four?"]]

    def test_a_chat_says_at_its_end_how_to_go_on_and_does(self, toolbus: Command, kept: Path):
        scenes.play(text("First."))
        ended = toolbus(*CHAT, stdin="one\n")
        assert (ended.status, ended.out) == (0, "First.\n")
        reported, _, typed = ended.err.strip().partition(": ")
        assert reported == "to continue"
        scenes.play(text("x"))
        toolbus(*ASK, "another conversation")
        scenes.play(text("Second."))
        assert toolbus(*typed.split()[1:], "-p", "scenes:scripted", stdin="two\n").out == "Second.\n"
        assert asked(scenes.seen[-1]) == ["one", "two"]
        scenes.play(text("Third."))
        beginning = typed.split()[-1][:-1]
        toolbus(*ASK, "three", "--continue", beginning)
        assert asked(scenes.seen[-1]) == ["one", "two", "three"]

    def test_where_nothing_was_said_or_kept_or_wanted_to_be_told_nothing_is(self, toolbus: Command, kept: Path):
        assert toolbus(*CHAT, stdin="/quit\n").err == ""
        scenes.play(text("x"))
        assert toolbus(*CHAT, "-q", stdin="one\n").err == ""
        scenes.play(text("x"))
        assert toolbus(*CHAT, "--no-store", stdin="one\n").err == ""

    def test_the_line_names_the_store_that_was_named(self, toolbus: Command):
        scenes.play(text("x"))
        assert toolbus(*CHAT, "--store", "my talks.db", stdin="one\n").err.endswith(" --store 'my talks.db'\n")

    def test_on_a_terminal_the_chat_says_what_it_goes_on_with(
        self, toolbus: Command, kept: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ):
        scenes.play(text("x"))
        toolbus(*ASK, "What is \x1b[31mred\x1b[0m?")
        terminal.readline = lambda *_: ""  # type: ignore[method-assign]
        monkeypatch.setattr("sys.stdin", terminal)
        monkeypatch.setattr("sys.stderr", terminal)
        main([*CHAT, "--continue"])
        assert 'Continuing "What is red?" (2 messages, the newest a moment ago).\n' in terminal.getvalue()

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (("--continue", "nope"), "there is no conversation 'nope'; toolbus store list shows the existing ones"),
            (("--continue",), "there is no conversation yet in "),
            (("--continue", "--no-store"), "--continue needs a store, and nothing is kept here"),
        ],
    )
    def test_what_cannot_go_on_is_an_error(self, toolbus: Command, kept: Path, given: tuple[str, ...], said: str):
        for command in (CHAT, (*ASK, "q")):
            ended = toolbus(*command, *given)
            assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)
            assert said in ended.err

    def test_the_beginning_of_several_ids_is_none(self, toolbus: Command, kept: Path):
        for _ in range(2):
            scenes.play(text("x"))
            toolbus(*CHAT, stdin="one\n")
        ended = toolbus(*ASK, "q", "--continue", "chat")
        assert (ended.status, ended.err) == (
            2,
            "toolbus: several conversations begin with 'chat': pass more of the id\n",
        )

    def test_a_cancelled_turn_has_ended_and_is_remembered(self, toolbus: Command, kept: Path):
        scenes.play(calls(("interrupted", {})), text("never"))
        assert toolbus(*ASK, "one", "-t", "scenes:interrupted").status == 130
        scenes.play(text("x"))
        ended = toolbus(*ASK, "two", "--continue")
        assert "unfinished" not in ended.err
        assert asked(scenes.seen[-1]) == ["one", "two"]
        assert toolbus("resume").out == "There is nothing to resume.\n"


class TestUnfinished:
    def test_the_next_command_says_what_is_unfinished_and_what_to_type(self, toolbus: Command, kept: Path):
        cut_off(kept, ("send", {"to": "Ann"}), "Write to \x1b[31mAnn\x1b[0m")
        scenes.play(text("x"))
        assert toolbus(*ASK, "q").err == (
            'toolbus: a request from a moment ago is unfinished ("Write to Ann"): '
            "toolbus resume continues it, toolbus resume --abandon drops it\n"
        )
        scenes.play(text("x"))
        assert toolbus(*ASK, "q", "-q").err == ""
        cut_off(kept, ("send", {"to": "Bob"}), "Write to Bob")
        scenes.play(text("x"))
        assert toolbus(*ASK, "q", "--store", str(kept)).err == (
            f"toolbus: 2 requests are unfinished: toolbus resume --store {kept} continues them, "
            f"toolbus resume --store {kept} --abandon drops them\n"
        )

    def test_one_whose_process_is_gone_counts_at_once_and_one_that_runs_does_not(self, toolbus: Command, kept: Path):
        hold(kept, cut_off(kept, ("send", {"to": "Ann"}), "gone"), 60, process=NOBODY)
        hold(kept, cut_off(kept, ("send", {"to": "Bob"}), "runs"), 60)
        hold(kept, cut_off(kept, ("send", {"to": "Cid"}), "elsewhere"), 60, host="another.example")
        scenes.play(text("x"))
        assert '("gone")' in toolbus(*ASK, "q").err

    def test_it_is_faint_on_a_terminal(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("TERM", "xterm-256color")
        open_screen(None, terminal, {}).remark("unfinished")
        assert terminal.getvalue() == "\x1b[2munfinished\x1b[0m\n"

    @pytest.mark.parametrize(
        ("seconds", "reported"),
        [
            (0, "a moment"),
            (60, "a minute"),
            (119, "a minute"),
            (300, "5 minutes"),
            (7_190, "120 minutes"),
            (7_200, "2 hours"),
            (7_300, "2 hours"),
            (9e5, "10 days"),
        ],
    )
    def test_moments_are_reported_as_people_say_them(self, seconds: float, reported: str):
        assert ago(time.time() - seconds) == f"{reported} ago"


def test_a_recording_and_the_store_have_the_same_request(toolbus: Command, kept: Path):
    scenes.play(calls(("add", {"a": 1, "b": 1})), text("2"))
    ended = toolbus(*ASK, "1 + 1?", "-t", "scenes:add", "--record", "sum.jsonl")
    assert "toolbus: recorded in sum.jsonl: 1 request, 9 facts" in ended.err
    assert toolbus("replay", "sum.jsonl").out == "sum.jsonl: the same (1 request, 9 facts)\n"
    [found] = with_store(kept, lambda store: store.found_requests())
    assert (found.record.ending, found.record.fact_count, found.prompt) == ("completed", 9, "1 + 1?")
    assert found.record.agreed["command"] == {**COMMAND, "dir": str(Path.cwd()), "tools": ["scenes:add"]}


def test_a_store_that_fails_while_it_runs_costs_the_default_one_and_ends_the_one_asked_for(
    toolbus: Command, kept: Path, monkeypatch: pytest.MonkeyPatch
):
    async def full(*_: object) -> int:
        raise StoreError("the disk is full")

    monkeypatch.setattr(DatabaseStore, "append", full)
    scenes.play(text("x"))
    ended = toolbus(*CHAT, stdin="one\n")
    assert (ended.status, ended.out) == (0, "x\n")
    assert ended.err == f"toolbus: this is not kept: {kept} failed (--log-level warning says how)\n"
    scenes.play(text("x"))
    ended = toolbus(*ASK, "q", "--store", str(kept))
    assert (ended.status, ended.out) == (1, "")
    assert ended.err == "toolbus: failed: the disk is full\n"
