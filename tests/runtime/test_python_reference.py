"""docs/reference/python.md has every option, field and default, and none that there is not."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from toolbus import Limits, RequestResult, RequestSession, Runtime, ToolContext, records, web
from toolbus.handles import RequestHandle
from toolbus.messages import Message
from toolbus.session import RequestOptions, SessionOptions
from toolbus.tools import ToolOptions

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
TABLES = [table.splitlines()[2:] for table in re.findall(r"(?m)(?:^\|.*\n)+", PAGE)]
OF_RUNTIME, METHODS, OF_REQUEST, OF_SESSION, SESSION, HANDLE, RESULT, MESSAGES, LIMITS, *OTHERS = TABLES
OF_TOOL, CONTEXT, PAGES, RECORDS = OTHERS


def names(table: Iterable[str]) -> set[str]:
    """What the first column names, without its arguments."""
    return {name for row in table for name in re.findall(r"`(\w+)[^`]*`", row.split("|")[1])}


def defaults(table: Iterable[str]) -> dict[str, str]:
    """The second column, by the first."""
    cells = [row.split("|") for row in table]
    return {each[1].strip().strip("`"): each[2].strip().strip("`") for each in cells}


def public(kind: type[Any]) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def written(default: object) -> str:
    return f'"{default}"' if isinstance(default, str) else repr(default)


@pytest.mark.parametrize(
    ("table", "there"),
    [
        (METHODS, public(Runtime)),
        (OF_REQUEST, {"output", *RequestOptions.__annotations__} - SessionOptions.__annotations__.keys()),
        (OF_SESSION, set(SessionOptions.__annotations__)),
        (
            RESULT,
            public(RequestResult) | {each.name for each in dataclasses.fields(RequestResult) if each.name[0] != "_"},
        ),
        (OF_TOOL, set(ToolOptions.__annotations__)),
        (CONTEXT, public(ToolContext)),
        (HANDLE, public(RequestHandle) - {"request_id"}),
    ],
    ids=["methods", "request", "session-options", "result", "tool", "context", "handle"],
)
def test_each_table_names_all_that_there_is_and_nothing_else(table: list[str], there: set[str]) -> None:
    assert names(table) == there


def test_each_message_has_all_of_its_fields() -> None:
    for kind, row in zip(get_args(Message), MESSAGES, strict=True):
        fields = {each.name for each in msgspec.structs.fields(kind)} - {"message_id", "text"}
        assert f'`{kind.__name__}`, `"{kind.role}"`' in row
        assert {each for each in fields if f"`{each}`" not in row} == set(), row


def test_what_is_done_with_records_is_there() -> None:
    assert names(RECORDS) == {"replace", "asdict"}
    assert names(RECORDS) <= set(records.__all__)


def test_what_is_said_of_pages_is_there() -> None:
    assert names(PAGES) <= set(web.__all__)


def test_what_is_said_of_a_session_is_there() -> None:
    given = inspect.signature(RequestSession).parameters
    assert {name for name in names(SESSION) if not hasattr(RequestSession, name) and name not in given} == set()


def test_the_options_of_a_runtime_have_the_defaults_that_they_are_said_to_have() -> None:
    said = defaults(OF_RUNTIME)
    assert said.pop("provider") == "TOOLBUS_PROVIDER"
    assert said == {name: written(value) for name, value in (Runtime.__init__.__kwdefaults__ or {}).items()}


def test_the_limits_have_the_defaults_that_they_are_said_to_have() -> None:
    said = defaults(LIMITS)
    assert said.pop("stop_on") == "none"
    fields = [each.name for each in dataclasses.fields(Limits) if each.name != "stop_on"]
    assert said == {name: written(getattr(Limits(), name)) for name in fields}
