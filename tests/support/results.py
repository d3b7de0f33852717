"""The result of a request, however it has ended."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

from toolbus import RequestResult
from toolbus.errors import ToolbusError

__all__ = ["result_of"]


async def result_of(running: Awaitable[RequestResult[Any]]) -> RequestResult[Any]:
    """Await `runtime.run(...)`, and return its result also if it has raised the error of a request that failed."""
    try:
        return await running
    except ToolbusError as exc:
        if exc.result is None:
            raise
        return cast("RequestResult[Any]", exc.result)
