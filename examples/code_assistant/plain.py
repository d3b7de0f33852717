"""The assistant without a screen: one question, lines of progress, and the answer. For pipes and tests."""

from __future__ import annotations

import contextlib

from toolbus import Runtime
from toolbus.errors import ToolbusError
from toolbus.toolsets.code_context import CodeIndex

from .turn import Turn

__all__ = ["ask"]


async def ask(runtime: Runtime, index: CodeIndex | None, question: str) -> Turn:
    """Ask, and print what the screen would show. The whole answer is printed at once, at its end."""
    turn = Turn(question)
    print(f"You: {question}\n{turn.head}", flush=True)
    async with runtime:
        if index is not None:
            with contextlib.suppress(ToolbusError):  # the calls for code report the error
                await index.refresh()  # the first indexing takes longer than a call may
        async for event in runtime.start(question).events():
            for line in turn.take(event):
                print(line, flush=True)
    print(turn.head, *([turn.text] if turn.text else []), f"[{turn.figures}]", sep="\n\n", flush=True)
    return turn
