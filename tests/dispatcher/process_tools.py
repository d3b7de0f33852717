"""Tools that run in processes of their own. Imported there too, so it imports little, and nothing of the tests."""

from __future__ import annotations

import datetime as dt
import os
import socket
import subprocess
import sys
from typing import Any

from pydantic import BaseModel

from toolbus import ToolError, ToolResult, ToolRetry, tool
from toolbus.errors import InvalidArguments
from toolbus.events import Artifact
from toolbus.messages import FilePart, ImagePart
from toolbus.tools import Tool


class Place(BaseModel):
    city: str


class Busy(Exception):
    """Never fits through a pipe."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("busy")
        self.where = (one, two, lambda: None)


@tool(isolation="process")
def where() -> int:
    """The process that this runs in."""
    return os.getpid()


@tool(isolation="process")
def describe(place: Place, day: dt.date, days: int = 1) -> ToolResult:
    """Use every kind of argument, and every field of a result."""
    assert isinstance(place, Place)
    return ToolResult(
        message=f"{place.city} on {day:%d.%m.} for {days}",
        data={"day": day, "nested": [1, None]},
        artifacts=[Artifact(name="a", content="b", media_type="text/csv")],
        affected=["x"],
        parts=[
            ImagePart.from_bytes(b"plot", "image/png"),
            FilePart.from_bytes(b"file", "application/pdf", "a.pdf"),
        ],
    )


def plain(day: dt.date) -> str:
    return type(day).__name__


class Shop:
    @classmethod
    def open(cls, day: int) -> str:
        """Whether it is open."""
        return f"{cls.__name__} {day}"

    @staticmethod
    def close(day: int) -> str:
        """Whether it is closed."""
        return f"closed {day}"


moved = Tool("moved", handler=plain)  # another name for a handler that stands elsewhere, too


def gone() -> None:
    raise AssertionError


gone_handler = gone
gone = 3  # type: ignore[assignment] # pyright: ignore[reportAssignmentType] -- the name leads elsewhere


FAILURES: dict[str, Any] = {
    "ToolError": lambda: ToolError("no such city \ud83d"),
    "ToolRetry": lambda: ToolRetry("ask with a country"),
    "InvalidArguments": lambda: InvalidArguments("$.city: too short"),
    "grouped": lambda: ExceptionGroup("", [ToolError("deep inside")]),
    "ValueError": lambda: ValueError("the password is 123"),
    "Busy": lambda: Busy(1, 2),
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "two": lambda: ExceptionGroup("", [Busy(1, 2), ValueError()]),
}


def made_of(how: str) -> BaseException:
    return FAILURES[how]()


@tool(isolation="process", summarize=lambda data: f"{len(data)} rows")
def list_rows() -> list[int]:
    """List rows."""
    return [1, 2, 3]


@tool(isolation="process", include_data=False)
def save_rows() -> ToolResult:
    """Save rows."""
    return ToolResult(message="Saved.", data=[1, 2, 3], affected=["a", "b"])


@tool(isolation="process")
def fail(how: str) -> None:
    """Fail."""
    raise made_of(how)


@tool(isolation="process", retries=2, retry_on=(Busy,))
def fail_again(how: str) -> None:
    """Fail, and be tried again."""
    raise made_of(how)


@tool(isolation="process")
def give(what: str) -> Any:
    """Give what cannot be written."""
    return {"bytes": b"raw", "object": object()}[what]


@tool(isolation="process")
def die() -> None:
    """End the process without a word."""
    os._exit(3)


@tool(isolation="process", retries=1)
def die_again() -> None:
    """End the process without a word, and be tried again."""
    os._exit(3)


@tool(isolation="process")
def speak() -> str:
    """Write to where the answers go, and read from where the questions come."""
    print("printed")  # noqa: T201 -- what is tested
    os.write(1, b"RETURN 3\nxyz")
    subprocess.run([sys.executable, "-c", "print('a program speaks'); print(input())"], check=False, stderr=-3)
    return "spoken"


@tool(isolation="process")
def complain() -> str:
    """Write more to stderr than any buffer takes."""
    os.write(2, bytes(2_000_000))
    return "complained"


@tool(isolation="process")
def fork(how: str) -> int:
    """Split in two, and return how the other half has ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if how == "returns":
        return -1
    raise {"exits": SystemExit(), "exits with 3": SystemExit(3), "exits with words": SystemExit("no")}.get(
        how, ValueError(how)
    )


def _visit(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(str(os.getpid()).encode())
    return connection


@tool(isolation="process")
def spin(port: int) -> None:
    """Loop for ever, and look at nothing."""
    connection = _visit(port)
    while connection:
        pass


@tool(isolation="process")
def wait(port: int) -> str:
    """Wait to be let go."""
    with _visit(port) as connection:
        return connection.recv(10).decode()
