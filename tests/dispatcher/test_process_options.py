"""What can run in a process and what is refused when the tool is made; scripts with tools that do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import process_tools
import pytest
from dispatch_desk import Desk

from toolbus import EventBus, ToolDispatcher, ToolRegistry, tool
from toolbus.dispatcher._processes import _exit_status, _find, _prepared  # pyright: ignore[reportPrivateUsage]
from toolbus.errors import ConfigurationError
from toolbus.tools import Tool, ToolContext

pytestmark = pytest.mark.leaves("buses", reason="requests are opened by hand, and no session ends them")


async def asynchronous() -> None:
    raise AssertionError


def with_context(context: ToolContext[None]) -> None:
    raise AssertionError(context)


def fine() -> None:
    raise AssertionError


def is_fine(exc: Exception) -> bool:
    raise AssertionError(exc)


def local() -> Callable[[], None]:
    def inside() -> None:
        raise AssertionError

    return inside


class Thing:
    def method(self) -> None:
        raise AssertionError

    def __call__(self) -> None:
        raise AssertionError


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "async": (asynchronous, {}, "its handler is async; make it a plain function"),
    "context": (with_context, {}, "takes a ToolContext"),
    "local": (local(), {}, "define it as a function of a module"),
    "lambda": (lambda: None, {"name": "it"}, "define it as a function of a module"),
    "method": (Thing().method, {}, "define it as a function of a module"),
    "object": (Thing(), {"name": "it"}, "define it as a function of a module"),
    "rule": (fine, {"retry_on": bool, "name": "it"}, "pass a tuple of exception types"),
    "function rule": (fine, {"retry_on": is_fine}, "pass exception types"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_in_a_process_is_refused_when_the_tool_is_made(case: str):
    handler, options, problem = REFUSED[case]
    with pytest.raises(ConfigurationError, match=problem):
        Tool(handler=handler, isolation="process", **options)


def test_an_external_tool_has_no_handler_to_put_into_a_process():
    with pytest.raises(ConfigurationError, match="it is external, and has no handler here"):
        Tool("it", "Of it.", {}, external=True, isolation="process")


def test_a_function_that_is_decorated_where_it_is_local_is_refused():
    with pytest.raises(ConfigurationError, match="cannot run in a process"):

        @tool(isolation="process")
        def inside() -> None:
            """Inside."""


@pytest.mark.parametrize("bound", [0, -1])
def test_fewer_processes_than_one_are_refused(bound: int):
    with pytest.raises(ConfigurationError, match=f"max_processes is {bound}; it must be a whole number of at least 1"):
        ToolDispatcher(EventBus(), max_processes=bound)


# ------------------------------------------------------------------------------------------------- whole programs


@pytest.mark.guarantee("G17")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_nothing_is_left_of_the_processes_when_the_event_loop_has_ended(backend: str):
    async def main() -> int:
        desk = Desk()
        async with ToolDispatcher(desk.bus, ToolRegistry([process_tools.where])):
            desk.ask("where")
            pid: int = (await desk.completed(seconds=30)).data
            os.kill(pid, 0)
        return pid

    with pytest.raises(ProcessLookupError):
        os.kill(anyio.run(main, backend=backend), 0)


SCRIPT = '''
import os
import sys

import anyio

from toolbus import Runtime, tool
from toolbus.testing import ScriptedProvider, calls, text


class Busy(Exception):
    pass


@tool(isolation="process", retries=1, retry_on=(Busy,))
def parent(fails: bool) -> int:
    """The process above."""
    if fails:
        raise Busy
    return os.getppid()


async def main() -> None:
    script = ScriptedProvider([calls(("parent", {"fails": False}), ("parent", {"fails": True})), text("Done.")])
    async with Runtime(script, tools=[parent]) as runtime:
        result = await runtime.run("Go.")
        print([each.content == str(os.getpid()) for each in result.tool_calls])


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1])
'''


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_handler_of_a_script_runs_in_a_process(backend: str, tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), backend], capture_output=True, text=True, check=False, timeout=60, env=os.environ
    )
    assert (done.returncode, done.stdout) == (0, "[True, False]\n"), done.stderr
    assert "is tried again" in done.stderr, "its exceptions are known by their names in the script"


def test_a_name_that_the_process_does_not_find_is_named_with_its_module() -> None:
    with pytest.raises(ConfigurationError, match=r"found no path\.nothing in os; define it where an import"):
        _find("os", "path.nothing")
    with pytest.raises(ConfigurationError, match=r"path\.exists in os is .* and not the tool's handler"):
        _find("os", "path.exists")


@pytest.mark.parametrize(
    ("exc", "status"),
    [
        (None, 0),
        (ValueError(), 1),
        (SystemExit(), 0),
        (SystemExit(0), 0),
        (SystemExit(3), 3),
        (SystemExit(256 + 3), 3),
        (SystemExit("no more"), 1),
    ],
)
def test_a_fork_ends_with_the_status_that_its_error_stands_for(exc: BaseException | None, status: int) -> None:
    assert _exit_status(exc) == status


def test_a_handler_is_called_with_arguments_of_its_types_unless_the_application_wrote_the_schema() -> None:
    arguments = {"day": "2026-11-29"}
    assert _prepared("process_tools", "plain", arguments, has_schema=False)() == "date"
    assert _prepared("process_tools", "plain", arguments, has_schema=True)() == "str"
    assert _prepared("process_tools", "list_rows", {}, has_schema=False)() == [1, 2, 3]
    with pytest.raises(ConfigurationError, match="gone in process_tools is 3 in the tool's process"):
        _find("process_tools", "gone")
