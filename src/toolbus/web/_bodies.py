"""The bodies of requests to the application of `create_app`, and the errors that it answers with."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from ..core.plain_text import one_line
from ..errors import (
    BusError,
    ConversationBusy,
    DecodeError,
    InboxFull,
    InvalidHistory,
    NotAuthorized,
    NotRunning,
    Overloaded,
    StoreError,
    UnknownRequest,
)
from ..records import json_bytes
from ..schemas import first_problems
from ._guard import read_body
from ._incoming import json_object
from ._starlette import HTTPException, Request, Response

_logger = logging.getLogger("toolbus.runtime")
_BODY_SECONDS = 60.0
"""The time in which a body has to arrive. It may contain images, and come over a slow mobile connection."""
_ModelT = TypeVar("_ModelT", bound=BaseModel)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("blank", "it is empty")
    return text


_Words = Annotated[str, AfterValidator(_not_blank)]


class Question(_Body):
    """A prompt for a conversation; without an id, a new one begins."""

    prompt: _Words
    conversation_id: str = ""


class Cancel(_Body):
    """The end of a request before its time."""

    reason: str = ""


class Steering(_Body):
    """A message that joins the request at the next round."""

    text: _Words


class Decision(_Body):
    """A decision on an approval, by the `id` of the question."""

    id: str
    approved: bool
    reason: str = ""
    arguments: dict[str, Any] | None = None
    remember: bool = False


class Answer(_Body):
    """The result of a client's own tool: its output, or an error."""

    call_id: str
    name: str
    output: Any = None
    error: str = ""


async def body_of(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request that says that it is JSON. Raises `HTTPException` (413, 415).

    A page of another site cannot send this header without the browser's preflight request, so it cannot act for a user
    who is logged in.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "send JSON, with the header Content-Type: application/json")
    return await read_body(request, max_bytes=max_bytes, seconds=_BODY_SECONDS)


async def read_json(request: Request, model: type[_ModelT], max_bytes: int) -> _ModelT:
    """Return the body of a request as `model`. Raises `HTTPException`, and `DecodeError` that names the field."""
    body = json_object(await body_of(request, max_bytes))
    try:
        return model.model_validate(body)
    except ValidationError as exc:
        (first,) = first_problems(exc, 1)
        where = ".".join(str(each) for each in first["loc"])
        raise DecodeError(f"{where}: {first['msg']}") from None


def json_response(fields: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with JSON. Values that JSON does not have are written as text."""
    given = {"Cache-Control": "no-store", **(headers or {})}
    return Response(json_bytes(fields, str), status, given, media_type="application/json")


def _refusing(status: int, words: str = "") -> Callable[[Request, Exception], Awaitable[Response]]:
    async def refuse(_request: Request, exc: Exception) -> Response:
        if status >= 500:
            _log_refusal(status, exc)
        return json_response({"error": words or str(exc)}, status)

    return refuse


def _log_refusal(status: int, exc: Exception) -> None:
    """Log the failure, which the response does not describe."""
    _logger.warning("a request over HTTP was refused with %d: %s", status, one_line(str(exc)))


async def _refuse_for_now(_request: Request, exc: Exception) -> Response:
    seconds, words = 1.0, "the server is starting or closing"
    if isinstance(exc, Overloaded):
        seconds, words = exc.retry_after_seconds, "the server is busy at the moment"
    else:  # The runtime is closing, or nobody has entered it.
        _log_refusal(503, exc)
    return json_response({"error": words}, 503, {"Retry-After": str(math.ceil(seconds))})


async def _refuse_by_status(_request: Request, exc: Exception) -> Response:
    refused = cast("HTTPException", exc)
    return json_response({"error": refused.detail}, refused.status_code, refused.headers)


exception_handlers: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    HTTPException: _refuse_by_status,
    Overloaded: _refuse_for_now,
    NotRunning: _refuse_for_now,
    UnknownRequest: _refusing(404, "there is no such request"),
    NotAuthorized: _refusing(403, "you are not allowed to do this"),
    ConversationBusy: _refusing(409, "the conversation is busy with its last question"),
    InboxFull: _refusing(503, "too much waits for this request"),
    StoreError: _refusing(503, "the store cannot be used at the moment"),
    BusError: _refusing(409, "this call does not accept this answer"),
    DecodeError: _refusing(400),
    InvalidHistory: _refusing(400),
}
"""The answers to the errors of toolbus: JSON with an `error`."""
