"""The application's own parts: its model, its tools, its users and its pages. `toolbus.web` does everything else."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

from toolbus import Runtime, Tool, tool
from toolbus.providers import choose_from_environment
from toolbus.stores.sqlite import SqliteStore
from toolbus.toolsets.workspace import workspace_tools
from toolbus.web import RuntimeMiddleware
from toolbus.web import create_app as create_api

__all__ = ["TOOLS", "create_app", "runtime_from_environment"]

_logger = logging.getLogger(__name__)
_YEAR_SECONDS = 365 * 86_400
PAGES = Path(__file__).parent / "pages"


@tool(needs_approval=True)
async def send_message(to: str, text: str) -> str:
    """Send a short message to somebody. A person has to approve it."""
    return f"The message to {to} was sent: {text}"


# An external tool has no handler here. The page answers its calls: see `client_tools` below, and pages/chat.js.
local_time: Tool = Tool(
    name="local_time",
    description="The time and the time zone where the user is.",
    schema={"type": "object", "properties": {}},
    external=True,
)
TOOLS = [send_message, local_time]


def user_of(request: Request) -> str | None:
    """The user who sent a request. This example has no accounts: its first page gives each browser a secret.

    Return here the user of your application's session or of a verified token. The name of a user is not secret: a
    denied call shows who denied it.
    """
    secret = request.cookies.get("visitor")
    return f"visitor {sha256(secret.encode()).hexdigest()[:32]}" if secret else None


def create_app(runtime: Runtime[Any] | None = None) -> FastAPI:
    """The application around `runtime`, or around a runtime that the environment configures."""
    served = runtime if runtime is not None else runtime_from_environment()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        if served.store.journal is not None:
            await served.resume(watch=True)  # continues what other processes leave, and what they left before
        yield

    app = FastAPI(title="Ask", lifespan=lifespan)

    @app.get("/health")
    async def health() -> JSONResponse:
        found = served.health()
        return JSONResponse({"ready": found.ready, "reasons": found.reasons}, 200 if found.ready else 503)

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        response = FileResponse(PAGES / "index.html")
        if not user_of(request):
            response.set_cookie(
                "visitor", secrets.token_urlsafe(16), httponly=True, samesite="strict", max_age=_YEAR_SECONDS
            )
        return response

    # All that is about requests: asking, both chat protocols, rejoining, commands, lists. docs/how-to/serve-requests.md
    app.mount("/api", create_api(served, authorize=user_of, client_tools=[local_time.name], ai_sdk_version=7))
    app.mount("/", StaticFiles(directory=PAGES))
    app.add_middleware(RuntimeMiddleware, runtime=served)
    return app


def runtime_from_environment() -> Runtime:
    """The provider that the environment names, and read-only tools over the directory in `ASK_DIR` (or this one).

    A demonstration has to run without a key, so it falls back to the extractive provider, which is not a language
    model: it quotes files. Your application should fail instead if its provider is not configured. With `ASK_STORE`, a
    file, conversations outlive the process, and several processes may serve them.
    """
    provider = choose_from_environment()
    if provider is None:
        _logger.warning("no provider is configured: 'extractive' answers: it quotes files, and is not a language model")
        provider = "extractive"
    path = os.environ.get("ASK_STORE")
    return Runtime(
        provider,
        tools=[*workspace_tools(os.environ.get("ASK_DIR", ".")), *TOOLS],
        store=SqliteStore(path) if path else None,
        on_approval="wait",
        max_sessions=100,
        max_queued=0,  # a browser should get an error at once and try again, and not wait in a queue
    )
