"""The application: one toolbus runtime for the process, and the routes around it.

The runtime lives as long as the server, in the lifespan. Each route starts a request on it and passes its outcome on,
so a route is a few lines; the runtime handles limits, tools, conversations and the shutdown.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any, Literal, cast
from urllib.parse import quote

import anyio
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from toolbus import RequestResult, RequestSession, Runtime
from toolbus.errors import NotRunning, Overloaded, UnknownRequest
from toolbus.providers import choose_from_environment
from toolbus.toolsets.workspace import workspace_tools
from toolbus.web import EventsResponse, TextResponse

from .closing import OpenResponses, SentByOwnTask
from .models import Answer, Question
from .reading import StrictRoute, refuse_invalid

__all__ = ["create_app", "runtime_from_environment"]

_logger = logging.getLogger(__name__)
router = APIRouter(route_class=StrictRoute)

MAX_BODY_BYTES = 256 * 1024
"""The bound of a body. A question of 20,000 characters takes at most 240,000 bytes, if each is a pair of escapes."""
END_SECONDS = 5.0
"""The time in which a client may read the end of its response, once the runtime has drained."""


def get_runtime(request: Request) -> Runtime:
    """The runtime of the application that serves this request."""
    return cast("Runtime", request.app.state.runtime)


TheRuntime = Annotated[Runtime, Depends(get_runtime)]
OnDisconnect = Literal["cancel", "continue"]
"""The effect on a request when its client disconnects before the end: it is cancelled, or it continues."""


# ------------------------------------------------------------------------------------------------- routes


@router.post("/ask")
async def ask(
    question: Question,
    runtime: TheRuntime,
    request: Request,
    response: Response,
    on_disconnect: OnDisconnect = "cancel",
) -> Answer:
    """Ask, and get the whole result when the request has ended."""
    with started(runtime, question) as session:
        response.headers.update(headers_of(session, runtime))
        async with watched(request, session, on_disconnect):
            result = await session.result()
    response.status_code = status_of(result)
    answer = Answer.model_validate(result)
    answer.provider = runtime.provider.vendor
    return answer


@router.post("/ask/stream", response_class=EventsResponse)
async def ask_stream(
    question: Question, runtime: TheRuntime, request: Request, on_disconnect: OnDisconnect = "cancel"
) -> EventsResponse:
    """Ask, and get every event of the request as a server-sent event; the request's ending is the last one."""
    with started(runtime, question) as session:
        return EventsResponse(session, **streamed(request, session, on_disconnect))


@router.post("/ask/text", response_class=TextResponse)
async def ask_text(
    question: Question, runtime: TheRuntime, request: Request, on_disconnect: OnDisconnect = "cancel"
) -> TextResponse:
    """Ask, and get the model's text piece by piece."""
    with started(runtime, question) as session:
        return TextResponse(session, **streamed(request, session, on_disconnect))


@router.get("/requests/{request_id}/events", response_class=EventsResponse)
async def rejoin(request_id: str, runtime: TheRuntime, request: Request) -> EventsResponse:
    """Get the events of a request from its beginning, or from the `Last-Event-ID` of a stream that was cut off.

    With a store that lasts, the request may run in any worker process of the server, or have ended long ago.
    """
    return EventsResponse(
        runtime.request(request_id),
        heartbeat_seconds=request.app.state.heartbeat_seconds,
        headers={"X-Request-Id": request_id},
    )


@router.post("/requests/{request_id}/cancel", status_code=202)
async def cancel(request_id: str, runtime: TheRuntime) -> dict[str, str]:
    """Ask a running request to end. Its id is in the header `X-Request-Id`, and on every event."""
    answer = await runtime.request(request_id).cancel("cancelled over HTTP")
    if answer in ("ended", "unknown"):
        raise HTTPException(404, f"no request {request_id!r} is running")
    return {"request_id": request_id, "status": "cancelling"}


# ------------------------------------------------------------------------------------------------- helpers


def status_of(result: RequestResult[Any]) -> int:
    """The HTTP status: 200 unless the request failed; then 502 if the provider is to blame, and otherwise 500."""
    if result.error is None:
        return 200
    return 502 if result.error.fault == "provider" else 500


@contextmanager
def started(runtime: Runtime, question: Question) -> Generator[RequestSession]:
    """Begin the request, and cancel it if no response can be made. `Overloaded` and `NotRunning` have handlers."""
    session = runtime.start(question.prompt, conversation_id=question.conversation_id)
    try:
        yield session
    except BaseException:
        session.cancel("no response could be made of it")
        raise


def streamed(request: Request, session: RequestSession, on_disconnect: OnDisconnect) -> dict[str, Any]:
    """The options of a response that is a stream."""
    return {
        "heartbeat_seconds": request.app.state.heartbeat_seconds,
        "cancel_on_disconnect": on_disconnect == "cancel",
        "headers": headers_of(session, get_runtime(request)),
    }


@asynccontextmanager
async def watched(request: Request, session: RequestSession, on_disconnect: OnDisconnect) -> AsyncGenerator[None]:
    """Do what `on_disconnect` says when the client disconnects in the block, since a server does not do so itself."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        session.cancel("the client went away")

    async with anyio.create_task_group() as group:
        if on_disconnect == "cancel":
            group.start_soon(watch)
        yield
        group.cancel_scope.cancel()


def headers_of(session: RequestSession, runtime: Runtime) -> dict[str, str]:
    """The headers that a client needs before the body: how to cancel, how to continue, and which model answers.

    Headers are ASCII, so the conversation's id is percent-encoded.
    """
    return {
        "X-Request-Id": session.request_id,
        "X-Conversation-Id": quote(session.conversation_id),
        "X-Provider": runtime.provider.vendor,
    }


# ------------------------------------------------------------------------------------------------- the application


def create_app(runtime: Runtime | None = None, *, heartbeat_seconds: float = 15.0) -> FastAPI:
    """The application around `runtime`, or around a runtime that the environment configures."""
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
    app.add_exception_handler(UnknownRequest, unknown)
    return app


async def refuse(_request: Request, exc: Exception) -> JSONResponse:
    """Answer 503 for a request that was not started: too many are running, or the server is closing."""
    seconds = exc.retry_after_seconds if isinstance(exc, Overloaded) else 1.0
    return JSONResponse({"detail": str(exc)}, 503, {"Retry-After": str(math.ceil(seconds))})


async def unknown(_request: Request, exc: Exception) -> JSONResponse:
    """Answer 404 for a request that neither this process nor the store knows."""
    return JSONResponse({"detail": str(exc)}, 404)


def runtime_from_environment() -> Runtime:
    """The provider that the environment names, and read-only tools over the directory in `ASK_DIR` (or this one).

    A demonstration has to run without a key, so it falls back to the extractive provider, which is not a language
    model: it quotes files. Your application should fail instead if its provider is not configured.
    """
    provider = choose_from_environment()
    if provider is None:
        _logger.warning("no provider is configured: 'extractive' answers: it quotes files, and is not a language model")
        provider = "extractive"
    return Runtime(
        provider,
        tools=workspace_tools(os.environ.get("ASK_DIR", ".")),
        max_sessions=100,
        max_queued=0,  # a browser should get an error at once and try again, and not wait in a queue
    )
