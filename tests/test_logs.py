"""`toolbus.logs`: lines for applications that configure no logging, in text or JSON, and nothing by itself."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from toolbus import logs
from toolbus.errors import ConfigurationError
from toolbus.secrets import GivenSecrets

LOGGER = logging.getLogger("toolbus.session")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger("toolbus")
    before = root.handlers[:], root.level, root.propagate
    yield
    root.handlers[:], level, root.propagate = before
    root.setLevel(level)


def read(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_of_json_has_the_ids_and_leaves_out_what_is_missing() -> None:
    stream = io.StringIO()
    logs.configure(json=True, stream=stream)
    LOGGER.info("request %s started", "r", extra={"request_id": "r", "call_id": "", "metadata": {"tenant": 7}})
    (line,) = read(stream)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "INFO",
        "logger": "toolbus.session",
        "message": "request r started",
        "request_id": "r",
        "metadata": {"tenant": 7},
    }


def test_a_traceback_is_one_field() -> None:
    stream = io.StringIO()
    logs.configure(json=True, stream=stream)
    try:
        raise ValueError("bad\nthing")
    except ValueError:
        LOGGER.exception("the session broke")
    (line,) = read(stream)
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: bad\nthing")


def test_a_traceback_from_which_secrets_were_removed_is_there_as_well() -> None:
    stream = io.StringIO()
    logs.configure(json=True, stream=stream)
    secrets = GivenSecrets([("mail", "hunter2-hunter2")], "r", "c")
    try:
        raise ValueError("hunter2-hunter2 is wrong")
    except ValueError:
        LOGGER.exception("the call failed", extra={"request_id": "r"})
    del secrets
    (line,) = read(stream)
    assert line["exception"].startswith("Traceback")
    assert "hunter2" not in line["exception"]


def test_a_record_whose_arguments_do_not_fit_its_message_is_written_with_both() -> None:
    stream = io.StringIO()
    logs.configure(json=True, stream=stream)
    LOGGER.warning("%d calls", "some")
    (line,) = read(stream)
    assert line["message"] == "'%d calls' with ('some',)"


CYCLE: dict[str, Any] = {}
CYCLE["self"] = CYCLE


@pytest.mark.parametrize(
    "value", [object(), {1: {2}}, "\ud800", 2**80, CYCLE], ids=["object", "set", "surrogate", "big", "cycle"]
)
def test_what_has_no_json_form_is_written_all_the_same(value: object) -> None:
    # The record is not logged: a test runner that gathers log lines from processes cannot carry half a surrogate pair.
    made = {
        "name": "toolbus.session",
        "msg": "it is %r",
        "args": (value,),
        "metadata": {"it": value},
        "request_id": "r",
    }
    line = json.loads(logs.JsonFormatter().format(logging.makeLogRecord(made)))
    assert "r" in line["request_id"]
    assert line["metadata"]


def test_text_cannot_forge_a_line_or_steer_a_terminal() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream)
    LOGGER.warning("tool failed: %s", "x\n2026-01-01 ERROR all is lost \x1b[2J")
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(r"WARNING tool failed: x\x0a2026-01-01 ERROR all is lost \x1b[2J")


def test_a_second_call_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure(stream=first)
    logs.configure(level="WARNING", stream=second)
    LOGGER.info("too quiet")
    LOGGER.warning("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1
    assert "too quiet" not in second.getvalue()


def test_the_lines_do_not_reach_the_handlers_of_the_root_logger_as_well(caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    logs.configure(stream=stream)
    LOGGER.warning("once")
    assert "once" in stream.getvalue()
    assert caplog.records == []


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="level"):
        logs.configure(level="LOUD")
    with pytest.raises(ConfigurationError, match="an open text file"):
        logs.configure(stream="toolbus.log")  # type: ignore[arg-type]


def test_importing_configures_nothing() -> None:
    code = "import logging, toolbus, toolbus.logs; print(logging.root.handlers, logging.getLogger('toolbus').handlers)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] []\n"


def test_the_text_of_an_exception_looks_like_no_record_and_cannot_control_a_terminal() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream)
    try:
        raise ValueError("bad\x1b]0;t\x07\n2026-01-01 ERROR   \x9b31m\u202eforged")
    except ValueError:
        LOGGER.exception("the session\u2028broke")
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("the session\\u2028broke")
    assert rest[0] == "  Traceback (most recent call last):"
    assert rest[-2:] == ["  ValueError: bad\\x1b]0;t\\x07", "  2026-01-01 ERROR   \\x9b31m\\u202eforged"]


def test_a_line_of_json_is_printable_and_has_the_same_text() -> None:
    stream, said = io.StringIO(), "\x1b[31m \x7f\x9b31m\u202e\u2028 ok é"
    logs.configure(json=True, stream=stream)
    LOGGER.warning("%s", said)
    assert stream.getvalue().removesuffix("\n").isprintable()
    assert read(stream)[0]["message"] == said
