"""Reading what clients send, before anything is started: JSON as its standard has it, and errors that can be sent.

FastAPI reads JSON with the standard library, which takes NaN and half characters, and its answer to an invalid question
quotes the question, which such values turn into a 500.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, cast

import orjson
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

__all__ = ["StrictRoute", "refuse_invalid"]


class _StrictRequest(Request):
    """A request whose body is read by orjson."""

    async def json(self) -> Any:
        return orjson.loads(await self.body())  # its error is a `json.JSONDecodeError`, and FastAPI makes a 422 of it


class StrictRoute(APIRoute):
    """A route that takes no NaN, no half characters and no broken UTF-8 for JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read_strictly(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return read_strictly


async def refuse_invalid(_request: Request, exc: Exception) -> JSONResponse:
    """422 with the place and the reason of each error, and without the values, which may be no JSON."""
    errors = cast("RequestValidationError", exc).errors()
    return JSONResponse({"detail": [{name: each[name] for name in ("type", "loc", "msg")} for each in errors]}, 422)
