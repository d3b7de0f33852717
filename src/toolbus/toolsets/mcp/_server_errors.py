"""The meaning and the text of an error that a server, or the SDK for it, answers a request with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

import orjson
from pydantic import ValidationError

from ...failures import leaves_of
from ...tool_results import clean
from ._repair import broken
from ._transport import FAILED, HTTP, NOT_YET, UNSENT, HttpStatus

if TYPE_CHECKING:
    import mcp

# The codes for an answer that cannot be read, also because of its size, and for an internal error.
_PARSE_ERROR = -32700
_UNUSABLE_CODES = (_PARSE_ERROR, -32603)
# The SDK appends all of pydantic's report, with the answer and links. The first problem in it is enough.
_PROBLEM = re.compile(r"\d{1,9} validation errors? for [^\n]*\n(?:\S[^\n]*\n)? {1,9}([^\n]*?) \[type=")
# The SDK's texts for HTTP statuses from 400 on: 404 without a session, and all others.
_NOT_FOUND_TEXT, _REFUSED_TEXT = "Not Found", "Server returned an error response"
# The HTTP statuses of calls that were certainly not carried out. The status 400 may be the server's text for anything.
_NOT_DONE = (401, 403, 405, 407, 410, 413, 415, 429)
NOT_SIGNED_IN = (401, 403)
_NOT_FOUND, TOO_MANY, _FIRST_ERROR = 404, 429, 400
# The most data of an error that the model reads.
_MAX_DATA_CHARS = 1_000
# The SDK's texts for successful HTTP responses without a result.
_NO_RESULT_TEXTS = ("server answered a request with 202", "Unexpected content type")
# The SDK's texts for a connection, and for the stream of an answer, that has ended.
CLOSED = "Connection closed"
_NO_ANSWER_TEXTS = (CLOSED, "SSE stream ")
# The code that the SDK uses if no answer came.
_NO_ANSWER_CODE = -32000
# The codes for an unknown session: that of the SDK, and that of servers in TypeScript.
_SESSION_GONE_CODES = (-32600, -32001)
# The texts for an unknown session: that of the SDK for the HTTP status 404, and that of its servers.
_SESSION_GONE_TEXTS = ("Session terminated", "Session not found")


def is_away(exc: mcp.MCPError) -> bool:
    """Return whether no answer has come, or the server refuses a check as it does an unknown session."""
    return has_no_answer(exc) or exc.message in (*_SESSION_GONE_TEXTS, _REFUSED_TEXT)


def is_refused(exc: mcp.MCPError) -> bool:
    """Return whether the server answers with an HTTP error without a reason. Some do so after a restart."""
    return exc.message == _REFUSED_TEXT


def is_not_found(exc: mcp.MCPError) -> bool:
    """Return whether the server answers with the HTTP status 404, outside of a session."""
    return exc.message == _NOT_FOUND_TEXT


def is_unknown_method(exc: mcp.MCPError) -> bool:
    """Return whether the server has no such method."""
    return exc.code == -32601 and not is_not_found(exc)


def is_not_done(exc: mcp.MCPError, status: HttpStatus) -> bool:
    """Return whether a call was certainly not carried out, because the server, or the sign-in, refused it."""
    is_unknown = status.code == _NOT_FOUND and is_not_found(exc)
    return status.code in _NOT_DONE or is_unknown or exc.message.startswith(FAILED)


def is_for_later(exc: mcp.MCPError, status: HttpStatus) -> bool:
    """Return whether a call that was not carried out may work later: after other calls, or after a sign-in."""
    return status.code == TOO_MANY or exc.message == NOT_YET


def has_no_answer(exc: mcp.MCPError) -> bool:
    """Return whether the SDK says that no answer came. Restarted servers use its code for unknown sessions."""
    return exc.code == _NO_ANSWER_CODE


def is_unsent(exc: mcp.MCPError, status: HttpStatus) -> bool:
    """Return whether the request could not be sent."""
    return has_no_answer(exc) and exc.message.startswith(UNSENT) and not status.code


def is_silence(exc: mcp.MCPError, status: HttpStatus) -> bool:
    """Return whether the connection, or the stream of the answer, ended before the answer."""
    return has_no_answer(exc) and (status.code >= _FIRST_ERROR or exc.message.startswith(_NO_ANSWER_TEXTS))


def is_session_gone(exc: mcp.MCPError) -> bool:
    """Return whether the server was restarted, and does not know this connection."""
    return exc.code in _SESSION_GONE_CODES and exc.message in _SESSION_GONE_TEXTS


def is_of_tool(exc: mcp.MCPError, status: HttpStatus) -> bool:
    """Return whether the tool may have raised the error: TypeScript servers use it for any exception of a tool."""
    return exc.code == -32603 and not is_refused(exc) and status.code < _FIRST_ERROR


def is_unusable(exc: mcp.MCPError) -> bool:
    """Return whether there was an answer that does not say whether the call was carried out."""
    return exc.code in _UNUSABLE_CODES or (exc.code == -32600 and exc.message.startswith(_NO_RESULT_TEXTS))


def reason_of(exc: Exception) -> str:
    """Return the reason why a connection failed: of an exception group, the first exception with a text."""
    import mcp  # noqa: PLC0415 -- an extra

    leaves = list(leaves_of(exc))
    first = next((each for each in leaves if isinstance(each, Exception) and str(each)), leaves[0])
    if isinstance(first, ValidationError):
        return f"its answer breaks the protocol: {broken(first)}"
    if isinstance(first, FileNotFoundError) and first.filename:
        name = str(first.filename)
        return f"there is no {name}" + ("; if that has arguments, pass them as args=[...]" if " " in name else "")
    if isinstance(first, mcp.MCPError):
        return said(first, HTTP.get())
    return str(first) or type(first).__name__


def said(exc: mcp.MCPError, status: HttpStatus) -> str:
    """Return the text of an error, with the HTTP status that it came with if the status says that it is one."""
    text = exc.message
    if exc.code == _PARSE_ERROR and (problem := _PROBLEM.search(text)):
        text = f"{text[: problem.start()]}{problem[1]}"
    if status.code < _FIRST_ERROR:
        return text
    return status.said if text in (_NOT_FOUND_TEXT, _REFUSED_TEXT) else f"{status.said}: {text}"


def with_data(exc: mcp.MCPError) -> str:
    """Return the text of a server's error, with the data that explains it if that is short."""
    text, data = clean(exc.message)[:2_000], cast("object", exc.error.data)
    try:
        more = data if isinstance(data, str) else orjson.dumps(data).decode()
    except TypeError:
        return text
    more = clean(more)
    is_worth = data not in (None, "", {}, []) and len(more) <= _MAX_DATA_CHARS and more not in text
    return f"{text} ({more})" if is_worth else text
