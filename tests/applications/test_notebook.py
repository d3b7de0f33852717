"""A small application, written with the public documentation: a notebook, whose event loop runs between its cells."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import textwrap
from typing import Any

import pytest

from toolbus.errors import NotRunning
from toolbus.protocols import ModelRequest
from toolbus.testing import ScriptedProvider, hang, text

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # notebooks run on it


class Notebook:
    """Runs cells as IPython does: in one namespace, `await` allowed, each in a task of its own on the running loop."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}

    async def cell(self, source: str) -> str:
        """Run a cell, and return what it prints."""
        code = compile(textwrap.dedent(source), "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            awaitable = eval(code, self.names)
            if inspect.iscoroutine(awaitable):
                await asyncio.create_task(awaitable)  # cancelled with the cell
        return printed.getvalue()


SETUP = """
    from toolbus import Runtime, tool
    from toolbus.testing import ScriptedProvider, calls, text

    @tool
    async def look_up(word: str) -> str:
        \"\"\"Look a word up.\"\"\"
        return f"{word}: a word"

    script = [calls(("look_up", {"word": "bus"})), text("A bus is a word."), text("You asked about the bus.")]
    runtime = Runtime(ScriptedProvider(script), tools=[look_up])
"""


async def test_each_cell_enters_the_runtime_and_the_conversation_goes_on() -> None:
    notebook = Notebook()
    await notebook.cell(SETUP)
    first = await notebook.cell("""
        async with runtime:
            result = await runtime.run("What is a bus?")
        print(result.text)
    """)
    assert first == "A bus is a word.\n"
    second = await notebook.cell("""
        async with runtime:
            session = runtime.start("What did I ask?", conversation_id=result.conversation_id)
            async for piece in session.text():
                print(piece, end="")
        print()
        print((await session.result()).history_count)
    """)
    assert second == "You asked about the bus.\n4\n"
    assert (await notebook.cell("print(result.tool_calls[0].content, len(result.messages))")) == "bus: a word 4\n"


@pytest.mark.parametrize("line", ['runtime.run_sync("What is a bus?")', 'await runtime.run("What is a bus?")'])
async def test_a_line_that_cannot_work_is_answered_with_those_that_do(line: str) -> None:
    """`run_sync` would start an event loop inside of the running one, and `run` needs a runtime that is entered."""
    notebook = Notebook()
    await notebook.cell(SETUP)
    with pytest.raises(NotRunning) as caught:
        await notebook.cell(line)
    advice = str(caught.value).partition(":\n\n")[2].replace("...", "What is a bus?")
    await notebook.cell(advice)
    assert await notebook.cell("print(result.text)") == "A bus is a word.\n"


async def test_a_cell_that_is_interrupted_leaves_a_runtime_that_works() -> None:
    notebook, asked = Notebook(), asyncio.Event()

    def model(_request: ModelRequest) -> Any:
        if asked.is_set():
            return text("Here.")
        asked.set()
        return hang()

    notebook.names["model"] = ScriptedProvider(model)
    await notebook.cell("""
        from toolbus import Runtime

        runtime = Runtime(model)
    """)
    cell = """
        async with runtime:
            print((await runtime.run("Anybody?", conversation_id="c")).text)
    """
    running = asyncio.create_task(notebook.cell(cell))
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await notebook.cell(cell) == "Here.\n"
