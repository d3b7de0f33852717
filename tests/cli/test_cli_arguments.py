"""The command line: which arguments each command takes, and what they are unless they are given."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, cast

import pytest

from toolbus.cli import _arguments

USAGES = [
    "[-h] [-V] COMMAND ...",
    "ask [-h] [-d PATH] [-t MODULE:NAME] [--mcp FILE] [-p NAME] [-i TEXT] [--continue [ID]] [--store PATH | --no-store] [--approve {ask,all,none}] [--timeout SECONDS] [--model-timeout SECONDS] [--tool-timeout SECONDS] [--max-rounds N] [--max-tool-calls N] [--limit NAME=VALUE] [--price IN/OUT] [--record FILE] [--record-signals] [--record-masked] [--json | --events] [-v] [-q] [--log-level LEVEL] [--debug] [QUESTION]",
    "chat [-h] [-d PATH] [-t MODULE:NAME] [--mcp FILE] [-p NAME] [-i TEXT] [--continue [ID]] [--store PATH | --no-store] [--approve {ask,all,none}] [--timeout SECONDS] [--model-timeout SECONDS] [--tool-timeout SECONDS] [--max-rounds N] [--max-tool-calls N] [--limit NAME=VALUE] [--price IN/OUT] [--record FILE] [--record-signals] [--record-masked] [-v] [-q] [--log-level LEVEL] [--debug]",
    (
        "serve [-h] [-d PATH] [-t MODULE:NAME] [--mcp FILE] [-p NAME] [-i TEXT] [--store PATH | --no-store] "
        "[--approve {ask,all,none}] [--timeout SECONDS] [--model-timeout SECONDS] [--tool-timeout SECONDS] [--max-rounds N] "
        "[--max-tool-calls N] [--limit NAME=VALUE] [--price IN/OUT] [--port N] [--open] [-q] [--log-level LEVEL] "
        "[--debug]"
    ),
    "resume [-h] [-d PATH] [-t MODULE:NAME] [-p NAME] [--store PATH] [--abandon] [--approve {ask,all,none}] [--json] [-v] [-q] [--log-level LEVEL] [--debug]",
    "status [-h] [--store PATH | --url URL] [--json] [--debug]",
    "inspect [-h] [--store PATH | --url URL | --recording FILE] [--port N] [--open] [--debug]",
    "store [-h] COMMAND ...",
    "store stats [-h] [--store PATH] [--json] [--debug]",
    "store list [-h] [--store PATH] [--json] [--debug] [--search TEXT] [--limit N]",
    "store show [-h] [--store PATH] [--json] [--debug] [--whole] ID",
    "store prune [-h] [--store PATH] [--json] [--debug] --before WHEN [--conversations] [--dry-run]",
    "store verify [-h] [--store PATH] [--json] [--debug]",
    "store export [-h] [--store PATH] [--debug] --to FILE",
    "store import [-h] [--store PATH] [--debug] FILE",
    (
        "worker [-h] --url URL --pool POOL [--concurrency N] [--prefix NAME] [--lease SECONDS] "
        "[--secret NAME=VARIABLE] [--check] [-q] [--log-level LEVEL] [--debug] MODULE:NAME"
    ),
    "events [-h] [--json-schema] [--debug]",
    "tools [-h] [-d PATH] [-t MODULE:NAME] [--mcp FILE] [--json] [--debug]",
    "replay [-h] [--ignore FIELD] [--json] [--debug] FILE [FILE ...]",
    "simulate [-h] [--seeds N] [--first SEED] [--seed SEED] [--seconds SECONDS] [--jobs N] [--keep-going] [--json] [--debug]",
]
CONVERSING: dict[str, Any] = {
    "dir": ".", "tools": [], "mcp": [], "provider": None, "instructions": None, "continue_": None, "store": None,
    "no_store": False, "approve": "ask", "timeout_seconds": None, "model_timeout_seconds": None,
    "tool_timeout_seconds": None, "max_rounds": None, "max_tool_calls": None, "limit": [], "price": None, "record": None,
    "record_signals": False, "record_masked": False, "verbose": False, "quiet": False, "log_level": None,
}  # fmt: skip
DEFAULTS: dict[str, dict[str, Any]] = {
    "ask": {**CONVERSING, "question": None, "json": False, "events": False},
    "chat": {**CONVERSING},
    "serve": {
        **{name: value for name, value in CONVERSING.items() if not name.startswith("record") and name != "verbose"},
        "port": 0,
        "open": False,
    },
    "resume": {
        "dir": None,
        "tools": [],
        "provider": None,
        "store": None,
        "abandon": False,
        "approve": "ask",
        "json": False,
        "verbose": False,
        "quiet": False,
        "log_level": None,
    },
    "events": {"json_schema": False},
    "tools": {"dir": ".", "tools": [], "mcp": [], "json": False},
    "replay f": {"files": ["f"], "ignore": [], "json": False},
    "simulate": {
        "seeds": 1000,
        "first": 0,
        "seed": None,
        "seconds": None,
        "jobs": 1,
        "keep_going": False,
        "json": False,
    },
    "worker m:t --url u --pool p": {
        "tools": "m:t",
        "url": "u",
        "pool": "p",
        "concurrency": 100,
        "prefix": "toolbus",
        "lease": 30.0,
        "secret": [],
        "check": False,
        "quiet": False,
        "log_level": None,
    },
    "status": {"store": None, "url": None, "json": False},
    "store stats": {"store": None, "json": False},
    "store list": {"store": None, "json": False, "search": "", "limit": 50},
    "store show i": {"store": None, "json": False, "id": "i", "whole": False},
    "store prune --before 1d": {"store": None, "json": False, "before": "1d", "conversations": False, "dry_run": False},
    "store verify": {"store": None, "json": False},
    "store export --to f": {"store": None, "to": "f"},
    "store import f": {"store": None, "file": "f"},
}


@pytest.fixture(autouse=True)
def _own_parser() -> None:
    """Build the parser in each test here, while all other tests share one."""
    cast("Any", _arguments._parser).cache_clear()


def usages(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The usage of a parser and of its commands, each in one line."""
    yield " ".join(parser.format_usage().split()).removeprefix("usage: toolbus ")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in cast("Any", action).choices.values():
                yield from usages(command)


def test_each_command_takes_its_arguments(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "10000")
    assert [*usages(_arguments._parser())] == USAGES


@pytest.mark.parametrize("line", DEFAULTS)
def test_what_is_not_given_is_the_default(line: str):
    given = vars(_arguments._parser().parse_args(line.split()))
    assert " ".join(filter(None, (given.pop("command"), given.pop("store_command", "")))) in line
    assert given == {"version": False, "debug": False, **DEFAULTS[line]}


def test_a_price_has_a_number_for_tokens_that_are_read_and_one_for_those_that_are_written():
    assert _arguments.parse(["ask", "--price", "0.25/2"]).price == (0.25, 2.0)
    assert _arguments.parse(["ask", "--price", "0/0"]).price == (0.0, 0.0)


def test_the_help_of_the_store_has_a_line_for_each_command(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        _arguments.parse(["store", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "stats show how much is stored list list conversations, the newest first show show a conversation" in shown


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        *(("--timeout", value, "is not a number of seconds above zero") for value in ("0", "-1", "inf", "nan", "soon")),
        *(("--max-rounds", value, "is not a whole number above zero") for value in ("0", "-1", "1.5", "\u00b2", "x")),
        *(("--price", value, "is not two prices per million") for value in ("1", "1/2/3", "-1/2", "1/inf", "1/x")),
    ],
)
def test_numbers_that_make_no_sense_are_refused(
    option: str, value: str, problem: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        _arguments.parse(["ask", f"{option}={value}"])
    assert problem in capsys.readouterr().err
