"""Bodies of requests, read before anything is started: strict JSON, and errors that can always be sent.

FastAPI reads JSON with the standard library, which accepts NaN and lone surrogates. Its answer to an invalid question
quotes the question, and such values would turn that answer into a 500.
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
        return orjson.loads(await self.body())  # FastAPI answers 422 to its error, a `json.JSONDecodeError`


class StrictRoute(APIRoute):
    """A route that refuses NaN, lone surrogates and broken UTF-8 in JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read_strictly(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return read_strictly


async def refuse_invalid(_request: Request, exc: Exception) -> JSONResponse:
    """Answer 422 with the location and the reason of each error, without the values, which may not be JSON."""
    errors = cast("RequestValidationError", exc).errors()
    return JSONResponse({"detail": [{name: each[name] for name in ("type", "loc", "msg")} for each in errors]}, 422)
