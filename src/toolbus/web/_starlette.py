"""The parts of Starlette from which applications and responses are made. The import says which extra is missing."""

from __future__ import annotations

from ..errors import MissingExtra

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Mount, Route
except ImportError as exc:
    raise MissingExtra("web", "starlette") from exc

__all__ = [
    "ClientDisconnect",
    "HTTPException",
    "Middleware",
    "Mount",
    "PlainTextResponse",
    "Request",
    "Response",
    "Route",
    "Starlette",
    "StreamingResponse",
]
