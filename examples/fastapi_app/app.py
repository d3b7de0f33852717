"""The application: one toolbus runtime for the process, and the routes around it.

The runtime lives as long as the server, in the lifespan. Each route starts a request on it and passes on what comes of
it, so a route is a few lines; limits, tools, conversations and shutting down are the runtime's business.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Literal, cast
from urllib.parse import quote

import anyio
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from toolbus import RequestSession, Runtime
from toolbus.errors import NotRunning, Overloaded
from toolbus.providers import choose_from_environment
from toolbus.toolsets.workspace import workspace_tools

from .closing import OpenResponses, SentByOwnTask
from .models import Answer, Question
from .reading import StrictRoute, refuse_invalid
from .sse import EventStreamResponse, event_frames, text_frames, until_disconnected

__all__ = ["create_app", "runtime_from_environment"]

_logger = logging.getLogger(__name__)
router = APIRouter(route_class=StrictRoute)

MAX_BODY_BYTES = 256 * 1024
"""A question of 20,000 characters takes at most 240,000 bytes, where each is a pair of JSON's escapes."""
END_SECONDS = 5.0
"""What a client has to read the end of its response, once the runtime has drained."""


def get_runtime(request: Request) -> Runtime:
    """The runtime of the application that serves this request."""
    return cast("Runtime", request.app.state.runtime)


TheRuntime = Annotated[Runtime, Depends(get_runtime)]
OnDisconnect = Literal["cancel", "continue"]
"""What becomes of a request when its client goes away before the end: it is cancelled, or runs on."""


# ------------------------------------------------------------------------------------------------- routes


@router.post("/ask")
async def ask(
    question: Question,
    runtime: TheRuntime,
    request: Request,
    response: Response,
    on_disconnect: OnDisconnect = "cancel",
) -> Answer:
    """Ask, and get the whole result once it is there."""
    with started(runtime, question) as session:
        response.headers.update(headers_of(session, runtime))
        async with watched(request, session, on_disconnect):
            result = await session.result()
    answer = Answer.model_validate(result)
    answer.provider = runtime.provider.vendor
    return answer


@router.post("/ask/stream")
async def ask_stream(
    question: Question, runtime: TheRuntime, request: Request, on_disconnect: OnDisconnect = "cancel"
) -> EventStreamResponse:
    """Ask, and get every event of the request as a server-sent event; the request's ending is the last one."""
    with started(runtime, question) as session:
        # Subscribed before anything is awaited, so nothing of the request can have happened yet.
        return stream(request, session, event_frames(session.events()), on_disconnect)


@router.post("/ask/text")
async def ask_text(
    question: Question, runtime: TheRuntime, request: Request, on_disconnect: OnDisconnect = "cancel"
) -> EventStreamResponse:
    """Ask, and get the model's text piece by piece."""
    with started(runtime, question) as session:
        return stream(request, session, text_frames(session), on_disconnect)


@router.post("/requests/{request_id}/cancel", status_code=202)
async def cancel(request_id: str, runtime: TheRuntime) -> dict[str, str]:
    """Ask a running request to end. Its id is in the header `X-Request-Id`, and on every event."""
    session = runtime.session(request_id)
    if session is None or not session.cancel("cancelled over HTTP"):
        raise HTTPException(404, f"no request {request_id!r} is running")
    return {"request_id": request_id, "status": "cancelling"}


# ------------------------------------------------------------------------------------------------- helpers


@contextmanager
def started(runtime: Runtime, question: Question) -> Generator[RequestSession]:
    """Begin the request, and cancel it where no response can be made. `Overloaded` and `NotRunning` have handlers."""
    session = runtime.start(question.prompt, conversation_id=question.conversation_id)
    try:
        yield session
    except BaseException:
        session.cancel("no response could be made of it")
        raise


def stream(
    request: Request, session: RequestSession, frames: AsyncGenerator[bytes], on_disconnect: OnDisconnect
) -> EventStreamResponse:
    """The response that sends `frames` and does as `on_disconnect` says when the client goes away."""

    def on_close() -> None:
        if on_disconnect == "cancel":
            session.cancel("the client went away")  # does nothing when the request has ended

    return EventStreamResponse(
        frames,
        heartbeat_seconds=request.app.state.heartbeat_seconds,
        on_close=on_close,
        headers=headers_of(session, get_runtime(request)),
    )


@asynccontextmanager
async def watched(request: Request, session: RequestSession, on_disconnect: OnDisconnect) -> AsyncGenerator[None]:
    """Do as `on_disconnect` says when the client goes away inside the block: a server does not do it by itself."""

    async def watch() -> None:
        await until_disconnected(request.receive)
        session.cancel("the client went away")

    async with anyio.create_task_group() as group:
        if on_disconnect == "cancel":
            group.start_soon(watch)
        yield
        group.cancel_scope.cancel()


def headers_of(session: RequestSession, runtime: Runtime) -> dict[str, str]:
    """What a client wants to know before the body: how to cancel, how to continue, and who answers.

    Headers are ASCII, so the conversation's id is percent-encoded.
    """
    return {
        "X-Request-Id": session.request_id,
        "X-Conversation-Id": quote(session.conversation_id),
        "X-Provider": runtime.provider.vendor,
    }


# ------------------------------------------------------------------------------------------------- the application


def create_app(runtime: Runtime | None = None, *, heartbeat_seconds: float = 15.0) -> FastAPI:
    """The application around `runtime`, or around one made from the environment."""
    served = runtime if runtime is not None else runtime_from_environment()
    responses = OpenResponses()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        # Leaving the runtime drains it: running requests get `drain_seconds` to end, and their responses end with them.
        async with responses.kept(end_seconds=END_SECONDS), served:
            yield

    app = FastAPI(title="Ask", lifespan=lifespan, max_body_size=MAX_BODY_BYTES)
    app.state.runtime = served
    app.state.heartbeat_seconds = heartbeat_seconds
    app.include_router(router)
    app.add_middleware(SentByOwnTask, responses=responses)
    app.add_exception_handler(RequestValidationError, refuse_invalid)
    app.add_exception_handler(Overloaded, refuse)
    app.add_exception_handler(NotRunning, refuse)
    return app


async def refuse(_request: Request, exc: Exception) -> JSONResponse:
    """503 for a request that was not started: no place is free, or the server is closing."""
    seconds = exc.retry_after_seconds if isinstance(exc, Overloaded) else 1.0
    return JSONResponse({"detail": str(exc)}, 503, {"Retry-After": str(math.ceil(seconds))})


def runtime_from_environment() -> Runtime:
    """The provider that the environment names, and read-only tools over the directory in `ASK_DIR` (or this one).

    A demonstration has to run without a key, so it falls back to the extractive provider, which is no language model:
    it quotes files. An application of yours would rather fail when its provider is not configured.
    """
    provider = choose_from_environment()
    if provider is None:
        _logger.warning("no provider is configured: 'extractive' answers, which quotes files and is no language model")
        provider = "extractive"
    return Runtime(
        provider,
        tools=workspace_tools(os.environ.get("ASK_DIR", ".")),
        max_sessions=100,
        max_queued=0,  # a browser that waits is better told to come back than kept in a queue
    )
