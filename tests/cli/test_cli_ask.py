from __future__ import annotations

import io
import json
import logging
import re
import sys
from pathlib import Path

import orjson
import pytest
import scenes
from desk import Command, Terminal

from support.openai_server import OpenAIServer
from support.openai_server import calls as wire_calls
from support.openai_server import text as wire_text
from toolbus.cli import main
from toolbus.cli._commands.ask import read_question
from toolbus.cli._log_lines import ScreenHandler
from toolbus.cli._terminal.screen import Screen
from toolbus.errors import ConfigurationError, ProviderUnavailable
from toolbus.events import RequestCompleted, ToolCallCompleted, decode
from toolbus.messages import SystemMessage, Usage
from toolbus.providers.scripted import calls, error, text

PARIS = calls(("get_weather", {"city": "Paris"}))
PLAYED = ("--provider", "scenes:scripted", "--tools", "scenes:everything")


def test_the_built_in_provider_answers_with_the_lines_and_says_what_it_is(toolbus: Command):
    ended = toolbus("ask", "What is the default timeout?")
    assert ended.status == 0
    assert "**`limits.py:3`**\n\n```text\n" in ended.out
    assert "\n3  DEFAULT_TIMEOUT_SECONDS = 120\n" in ended.out
    assert ended.err.splitlines()[0].startswith("toolbus: no model is named, so the built-in provider 'extractive'")
    assert "✓ Search Text" in ended.err
    assert "✓ Read Lines" in ended.err


def test_the_answer_is_on_stdout_and_the_work_on_stderr(toolbus: Command):
    scenes.play(PARIS, text("Sunny."))
    ended = toolbus("ask", "Weather in Paris?", *PLAYED)
    assert (ended.status, ended.out) == (0, "Sunny.\n")
    assert '→ Get Weather  city="Paris"\n✓ Get Weather  city="Paris"  ' in ended.err


def test_the_model_is_told_how_to_answer_unless_the_user_tells_it(toolbus: Command):
    scenes.play(text("x"))
    toolbus("ask", "q", *PLAYED)
    scenes.play(text("x"))
    toolbus("ask", "q", *PLAYED, "--instructions", "Be kind.")
    ours, theirs = (request.messages[0] for request in scenes.seen)
    assert isinstance(ours, SystemMessage)
    assert "path:line" in ours.text
    assert isinstance(theirs, SystemMessage)
    assert theirs.text == "Be kind."


def test_the_price_of_the_model_makes_a_limit_of_the_cost_possible(toolbus: Command):
    again = calls(("get_weather", {"city": "Paris"}), usage=Usage(input_tokens=1_000, output_tokens=1_000))
    scenes.play(*[again] * 3)
    ended = toolbus("ask", "q", *PLAYED, "--limit", "max_cost=5", "--price", "1000/2500")
    assert ended.status == 3
    assert ended.err.endswith("toolbus: stopped by a limit: max_cost=5; raise it with --limit max_cost=VALUE\n")
    scenes.play(*[again] * 3)
    shown = toolbus("ask", "q", *PLAYED, "--limit", "max_cost=5", "--price", "1000/2500", "--json")
    assert json.loads(shown.out)["cost"] == 7


def test_dir_is_what_the_tools_see(toolbus: Command, folder: Path):
    (folder / "deep").mkdir()
    (folder / "deep" / "inside.txt").write_text("x", encoding="utf-8")
    scenes.play(calls(("list_files", {})), text("x"))
    ended = toolbus("ask", "q", *PLAYED, "--dir", "deep", "--events")
    (listed,) = [each for each in map(decode, ended.out.splitlines()) if isinstance(each, ToolCallCompleted)]
    assert listed.data["files"] == ["inside.txt"]


def test_a_failed_call_shows_its_reason_without_escape_sequences(toolbus: Command):
    scenes.play(calls(("closed", {})), text("It is \x1b[31mclosed\x1b[0m."))
    ended = toolbus("ask", "q", *PLAYED)
    assert (ended.status, ended.out) == (0, "It is closed.\n")
    assert "✗ Closed" in ended.err
    assert "  error: the archive is closed on sundays\n" in ended.err
    assert "\x1b" not in ended.err


def test_what_a_tool_prints_does_not_get_into_the_answer(toolbus: Command):
    scenes.play(calls(("printing", {})), text("Answer."))
    ended = toolbus("ask", "q", *PLAYED)
    assert ended.out == "Answer.\n"
    assert "printed by the tool" in ended.err


class TestExitStatus:
    def test_a_failed_request_is_1_with_one_line(self, toolbus: Command):
        scenes.play(error(ProviderUnavailable("could not reach it:\ncheck the server")))
        ended = toolbus("ask", "q", *PLAYED)
        assert ended.status == 1
        assert ended.err == "toolbus: failed: could not reach it: check the server\n"

    def test_an_unreachable_server_is_1_with_what_to_do(self, toolbus: Command, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
        ended = toolbus("ask", "q", "--provider", "openai:m", "--limit", "max_model_attempts=1")
        assert (ended.status, ended.out) == (1, "")
        assert "could not reach openai at http://127.0.0.1:9/v1" in ended.err
        assert "check that the server is running" in ended.err

    def test_a_limit_is_3_and_named_with_how_to_raise_it(self, toolbus: Command):
        scenes.play(PARIS, text("As far as I got."))
        ended = toolbus("ask", "q", *PLAYED, "--max-rounds", "1")
        assert (ended.status, ended.out) == (3, "As far as I got.\n")
        assert ended.err.endswith("toolbus: stopped by a limit: max_rounds=1; raise it with --limit max_rounds=VALUE\n")

    def test_ctrl_c_is_130_and_cancels(self, toolbus: Command):
        scenes.play(calls(("interrupted", {})))
        ended = toolbus("ask", "q", *PLAYED, "--timeout", "20")
        assert ended.status == 130
        assert "✗ Interrupted" in ended.err
        assert ended.err.endswith("toolbus: cancelled\n")

    def test_sigterm_is_143_and_cancels(self, toolbus: Command):
        scenes.play(calls(("terminated", {})))
        ended = toolbus("ask", "q", *PLAYED, "--timeout", "20")
        assert ended.status == 143
        assert ended.err.endswith("toolbus: cancelled\n")

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("ask", ""), "the question is empty"),
            (("ask", " \n"), "the question is empty"),
            (("ask",), "the question is empty"),
            (("ask", "q", "--dir", "nowhere"), "--dir nowhere does not exist"),
            (("ask", "q", "--provider", "nobody"), "there is no provider 'nobody'"),
            (("ask", "q", "--provider", "openai:m"), "OPENAI_API_KEY"),
            (("ask", "q", "--tools", "nothing:x"), "there is no module 'nothing'"),
            (("ask", "q", "--timeout", "0"), "argument --timeout: '0' is not a number of seconds above zero"),
            (("ask", "q", "--timeout", "soon"), "'soon' is not a number of seconds"),
            (("ask", "q", "--max-rounds", "0"), "'0' is not a whole number above zero"),
            (("ask", "q", "--limit", "x=1"), "there is no limit x; the limits are max_rounds, "),
            (
                ("ask", "q", "--limit", "max_cost=1"),
                "--limit max_cost=1 needs the model's price: pass --price IN/OUT, per",
            ),
            (
                ("ask", "q", "--price", "3"),
                "argument --price: '3' is not two prices per million tokens, such as 0.25/2",
            ),
            (("ask", "q", "--price", "3/-1"), "'3/-1' is not two prices"),
            (("ask", "q", "--json", "--events"), "not allowed with argument"),
            (("ask", "q", "--jso"), "unrecognized arguments: --jso (see toolbus --help)"),
            (("store", "list", "--js"), "unrecognized arguments: --js (see toolbus --help)"),
            (
                ("ask", "q", "--max-turns", "5"),
                "unrecognized arguments: --max-turns 5; did you mean --limit max_rounds=VALUE? (see toolbus --help)",
            ),
            (
                ("ask", "q", "--max-repeats=5"),
                "unrecognized arguments: --max-repeats=5; did you mean --limit max_repeats=VALUE? (see toolbus --help)",
            ),
            (
                ("ask", "q", "--model", "openai:m"),
                "unrecognized arguments: --model openai:m; did you mean --provider VENDOR:MODEL? (see toolbus --help)",
            ),
            (("ask", "what", "timeout"), "unrecognized arguments: timeout (see toolbus --help)"),
            (("ask", "q", "--log-level", "loud"), "invalid choice: 'loud'"),
            (("frob",), "invalid choice: 'frob'"),
            (
                (),
                "name a command: ask, chat, serve, resume, status, inspect, store, worker, tools, events, replay or simulate (see toolbus --help)",
            ),
            (("chat", "--dir", "nowhere"), "--dir nowhere does not exist"),
            (("tools", "--dir", "nowhere"), "--dir nowhere does not exist"),
        ],
    )
    def test_wrong_usage_is_2_with_one_line_and_nothing_on_stdout(
        self, toolbus: Command, arguments: tuple[str, ...], said: str
    ):
        ended = toolbus(*arguments)
        assert (ended.status, ended.out) == (2, "")
        assert said in ended.err
        assert ended.err.startswith("toolbus: ")
        assert ended.err.count("\n") == 1

    def test_help_is_0_and_has_examples(self, toolbus: Command):
        for command in ((), ("ask",), ("chat",), ("resume",), ("store",), ("store", "prune"), ("events",), ("tools",)):
            ended = toolbus(*command, "--help")
            assert ended.status == 0
            assert max(map(len, ended.out.splitlines())) < 80
        assert "examples:\n  toolbus ask" in toolbus("--help").out

    def test_a_reader_that_leaves_is_141_and_quiet(self, toolbus: Command, monkeypatch: pytest.MonkeyPatch):
        class Left(io.StringIO):
            def write(self, text: str) -> int:
                raise BrokenPipeError(32, "Broken pipe")

        scenes.play(calls(("closed", {})), *[calls(("add", {"a": 1, "b": 2}))] * 3, text("x"))
        monkeypatch.setattr("sys.stdout", Left())
        ended = toolbus("ask", "q", *PLAYED, "--events", "-q")
        assert ended.status == 141
        assert ended.err == ""
        assert len(scenes.seen) <= 1

    def test_a_full_disk_is_1_and_told(self, toolbus: Command, monkeypatch: pytest.MonkeyPatch):
        class Full(io.StringIO):
            def write(self, text: str) -> int:
                raise OSError(28, "No space left on device")

        scenes.play(text("x"))
        monkeypatch.setattr("sys.stdout", Full())
        ended = toolbus("ask", "q", *PLAYED)
        assert ended.status == 1
        assert ended.err.endswith("toolbus: the output could not be written: No space left on device\n")


class TestData:
    def test_events_prints_every_event_of_the_request_and_nothing_else(self, toolbus: Command):
        scenes.play(PARIS, calls(("printing", {})), text("Sunny.", 2))
        ended = toolbus("ask", "Weather?", *PLAYED, "--events", "--verbose")
        events = [decode(line) for line in ended.out.splitlines()]
        assert [each.type for each in events if each.type != "status_changed"] == [
            "request_started",
            "message_appended",
            *("round_started", "tool_arguments_delta", "tool_arguments_delta", "tool_arguments_delta"),
            *("model_responded", "message_appended"),
            *("tool_call_requested", "tool_call_started", "tool_call_completed", "message_appended"),
            *("round_started", "tool_arguments_delta", "tool_arguments_delta", "model_responded", "message_appended"),
            *("tool_call_requested", "tool_call_started", "tool_call_completed", "message_appended"),
            *("round_started", "text_delta", "text_delta", "model_responded", "message_appended"),
            "request_completed",
        ]
        assert len({each.request_id for each in events}) == 1
        assert isinstance(events[-1], RequestCompleted)
        assert "✓ Get Weather" in ended.err

    def test_events_do_not_carry_raw_control_characters_to_a_terminal(self, toolbus: Command):
        scenes.play(text("\x9b31m\x7f\x1b[0m"))
        ended = toolbus("ask", "q", *PLAYED, "--events")
        assert not {*ended.out} & {"\x9b", "\x7f", "\x1b"}
        assert json.loads(ended.out.splitlines()[-1])["text"] == "\x9b31m\x7f\x1b[0m"

    def test_json_prints_one_object_with_the_result(self, toolbus: Command):
        scenes.play(PARIS, calls(("closed", {})), text("Sunny."))
        ended = toolbus("ask", "Weather?", *PLAYED, "--json")
        result = orjson.loads(ended.out)
        assert ended.out.count("\n") == 1
        assert (result["outcome"], result["text"], result["rounds"]) == ("completed", "Sunny.", 3)
        assert [(each["name"], each["ok"], each["reason"]) for each in result["tool_calls"]] == [
            ("get_weather", True, ""),
            ("closed", False, "error"),
        ]
        assert result["tool_calls"][0]["arguments"] == {"city": "Paris"}
        assert result["error"] is None
        assert "✗ Closed" in ended.err

    def test_json_of_a_failed_request_has_its_error(self, toolbus: Command):
        scenes.play(error(ProviderUnavailable("gone")))
        ended = toolbus("ask", "q", *PLAYED, "--json", "-q")
        result = orjson.loads(ended.out)
        assert (ended.status, result["outcome"], result["reason"], result["error"]) == (
            1,
            "failed",
            "provider_unavailable",
            "gone",
        )

    def test_on_a_terminal_the_events_have_it_to_themselves(
        self, toolbus: Command, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ):
        scenes.play(PARIS, text("Sunny."))
        monkeypatch.setattr("sys.stdout", terminal)
        monkeypatch.setattr("sys.stderr", terminal)
        assert toolbus("ask", "q", *PLAYED, "--events").status == 0
        assert {type(decode(line)).__name__ for line in terminal.getvalue().splitlines()} >= {"RequestCompleted"}


class TestTelling:
    def test_quiet_tells_errors_alone(self, toolbus: Command):
        assert toolbus("ask", "What is the default timeout?", "--quiet").err == ""

    def test_verbose_ends_with_a_timeline(self, toolbus: Command):
        scenes.play(PARIS, text("Sunny."))
        ended = toolbus("ask", "q", *PLAYED, "--verbose")
        assert "✓ get_weather in " in ended.err
        assert "completed; 0 tokens in, 0 out" in ended.err.splitlines()[-1]

    def test_a_log_level_wires_logging_to_stderr(self, toolbus: Command):
        scenes.play(PARIS, calls(("closed", {})), text("Sunny."))
        ended = toolbus("ask", "q", *PLAYED, "--log-level", "INFO")
        assert re.search(r" INFO toolbus\.session: call \S+: tool get_weather is requested\n", ended.err)
        assert re.search(
            r" WARNING toolbus\.session: call \S+: tool closed failed in .*: the archive is closed on sundays\n",
            ended.err,
        )
        assert "\x1b" not in ended.err

    def test_without_a_log_level_nothing_is_logged_that_the_screen_shows(self, toolbus: Command):
        scenes.play(calls(("closed", {})), text("x"))
        assert "WARNING" not in toolbus("ask", "q", *PLAYED).err

    def test_warnings_of_a_tools_own_logger_are_shown(self, toolbus: Command):
        scenes.play(calls(("logging_too", {})), text("x"))
        ended = toolbus("ask", "q", *PLAYED)
        assert "WARNING a_tool: no apples\n" in ended.err
        assert "not wanted" not in ended.err

    def test_a_record_that_cannot_be_formatted_is_shown_as_it_is(self):
        err = io.StringIO()
        record = logging.LogRecord("a_tool", logging.WARNING, "a.py", 1, "%d apples", ("some",), None)
        ScreenHandler(Screen(None, err)).emit(record)
        assert err.getvalue() == "WARNING a_tool: '%d apples' with ('some',)\n"

    def test_no_line_of_a_traceback_in_the_log_looks_like_a_record(self, toolbus: Command):
        scenes.play(calls(("forging", {})), text("x"))
        ended = toolbus("ask", "q", *PLAYED, "--log-level", "error", "--debug")
        assert "\n  ValueError: bad\n  2026-01-01 00:00:00,000 ERROR root: forged\n" in ended.err

    def test_a_record_with_arguments_that_have_no_text_does_not_make_its_tool_fail(self):
        class Detached:
            def __repr__(self) -> str:
                raise RuntimeError("the session is closed")

        err = io.StringIO()
        record = logging.LogRecord("a_tool", logging.WARNING, "a.py", 7, "row %s", (Detached(),), None)
        ScreenHandler(Screen(None, err)).emit(record)
        assert err.getvalue() == "WARNING a_tool: a.py:7 logs what cannot be shown\n"

    @pytest.mark.parametrize("how", ["--debug", "TOOLBUS_DEBUG"])
    def test_debug_shows_the_tracebacks_of_tools_and_of_the_ending(
        self, toolbus: Command, how: str, monkeypatch: pytest.MonkeyPatch
    ):
        if how == "TOOLBUS_DEBUG":
            monkeypatch.setenv(how, "1")
        scenes.play(calls(("raising", {})), error(ProviderUnavailable("gone")))
        ended = toolbus("ask", "q", *PLAYED, *(["--debug"] if how == "--debug" else []))
        assert 'raise LookupError("a bug in the tool")' in ended.err
        assert "toolbus.errors.ProviderUnavailable: gone" in ended.err
        assert ended.status == 1

    def test_a_bug_of_a_tool_is_named_with_its_line_once(self, toolbus: Command):
        scenes.play(calls(("raising", {}), ("raising", {})), text("Sorry."))
        ended = toolbus("ask", "q", *PLAYED)
        line = 1 + Path(scenes.__file__).read_text("utf-8").splitlines().index(
            '    raise LookupError("a bug in the tool")'
        )
        reported = [each for each in ended.err.splitlines() if " raised " in each]
        assert reported == [
            f"toolbus: raising raised LookupError at {scenes.__file__}:{line}; --debug shows the traceback"
        ]
        assert (ended.status, ended.out) == (0, "Sorry.\n")

    def test_debug_shows_the_traceback_of_a_wrong_configuration(self, toolbus: Command):
        ended = toolbus("ask", "q", "--provider", "scenes:broken", "--debug")
        assert ended.status == 2
        assert "Traceback" in ended.err
        assert ended.err.splitlines()[-1].startswith("toolbus: --provider scenes:broken could not be created")

    def test_a_terminal_shows_a_live_line_and_leaves_nothing_of_it(
        self, toolbus: Command, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("sys.stderr", terminal)
        scenes.play(calls(("step_by_step", {})), text("Done."))
        ended = toolbus("ask", "q", *PLAYED)
        assert ended.out == "Done.\n"
        assert "Analyzing request..." in terminal.getvalue()
        assert "3/4 pages" in terminal.getvalue()
        assert "Step By Step" in terminal.getvalue().rstrip("\n").rpartition("\x1b[2K")[0]
        assert terminal.getvalue().endswith("\r\x1b[2K")


class TestBugs:
    def test_one_of_ours_is_a_line_and_no_traceback(self, toolbus: Command, monkeypatch: pytest.MonkeyPatch):
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("odd\nthing\x1b[31m")

        monkeypatch.setattr("toolbus.cli._commands.ask.ask", fail)
        ended = toolbus("ask", "q")
        assert ended.status == 1
        assert ended.err == (
            "toolbus: internal error: RuntimeError: odd thing; --debug shows where, and a report is welcome\n"
        )
        ended = toolbus("ask", "q", "--debug")
        assert "Traceback" in ended.err
        assert "\x1b" not in ended.err

    def test_a_ctrl_c_before_anything_runs_is_quiet(self, toolbus: Command, monkeypatch: pytest.MonkeyPatch):
        def fail(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("toolbus.cli._commands.ask.ask", fail)
        ended = toolbus("ask", "q")
        assert (ended.status, ended.err) == (130, "")


class TestQuestion:
    def test_it_is_read_from_a_pipe(self, toolbus: Command):
        for arguments in ((), ("-",)):
            scenes.play(text("x"))
            assert toolbus("ask", *arguments, *PLAYED, stdin="What is it?\nTell.\n").status == 0
            assert getattr(scenes.seen[-1].messages[-1], "content", None) == "What is it?\nTell."

    def test_on_a_terminal_it_must_be_given(self, terminal: Terminal):
        with pytest.raises(ConfigurationError, match="there is no question"):
            read_question(None, terminal)
        with pytest.raises(ConfigurationError, match="there is no question"):
            read_question(None, None)

    def test_bytes_that_are_no_text_become_question_marks(self):
        assert read_question("a\udcff", None) == "a\ufffd"
        assert read_question("-", io.TextIOWrapper(io.BytesIO(b"b\xff"), encoding="ascii")) == "b\ufffd"
        assert read_question("-", io.StringIO("c")) == "c"


class TestServer:
    SCRIPT = (
        wire_calls(("search_text", {"query": "TIMEOUT"}), ("get_weather", {"city": "Paris"})),
        wire_text("limits.py:3 says 120."),
    )

    def test_a_real_server_is_asked_over_http(self, toolbus: Command, monkeypatch: pytest.MonkeyPatch):
        with OpenAIServer(self.SCRIPT) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
            ended = toolbus("ask", "What is the timeout?", "-p", "openai:test-model", "-t", "scenes:get_weather")
        assert (ended.status, ended.out) == (0, "limits.py:3 says 120.\n")
        assert '✓ Search Text  query="TIMEOUT"' in ended.err
        assert '✓ Get Weather  city="Paris"' in ended.err
        assert [each["function"]["name"] for each in server.requests[0].body["tools"]] == [
            *("list_files", "search_text", "read_lines", "request_code_context", "get_weather")
        ]
        results = [each["content"] for each in server.requests[1].messages if each["role"] == "tool"]
        assert "DEFAULT_TIMEOUT_SECONDS" in results[0]
        assert results[1] == "Sunny in Paris."

    def test_the_key_in_the_environment_chooses_the_server(self, toolbus: Command, monkeypatch: pytest.MonkeyPatch):
        with OpenAIServer(self.SCRIPT, api_key="sk-wrong-and-secret") as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
            monkeypatch.setenv("OPENAI_API_KEY", "sk-right-and-secret")
            ended = toolbus("ask", "q")
        assert ended.status == 1
        assert "401" in ended.err
        assert "secret" not in ended.err


def test_a_model_that_does_not_stream_is_shown_too(toolbus: Command):
    scenes.play(text("Whole."))
    assert toolbus("ask", "q", "--provider", "scenes:Quiet").out == "Whole.\n"


def test_off_the_main_thread_signals_are_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]):
    import threading

    scenes.play(text("From a thread."))
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(main(["ask", "q", "-p", "scenes:scripted"])))
    thread.start()
    thread.join()
    assert statuses == [0]
    assert capsys.readouterr().out == "From a thread.\n"
    assert sys.stdout is not None
