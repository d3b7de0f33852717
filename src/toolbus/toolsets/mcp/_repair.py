"""Repairs of messages that a server has sent, of which the SDK would drop more than the part that is wrong.

The SDK refuses a whole list of tools because of one definition that breaks the protocol, a result because of one part
of an unknown type, and a result with nothing but structured content. It drops an answer over stdio that it cannot read,
so that the call would wait for its deadline.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError

from ...records import replace

MOST_TOOLS = 1_000
"""The most tools of a server."""

_MOST_PARTS = 10_000  # of a result; the SDK takes 3 us for each, on the event loop
_KINDS = frozenset({"text", "image", "audio", "resource", "resource_link"})
_MOST_KIND_CHARS = 50


def repaired(item: Any, version: Callable[[], str], left_out: Callable[[str, str], None]) -> Any:
    """Return an item of the SDK's transports, a message or the error for one, in a form that the SDK can use.

    `version()` returns the protocol version, and is called only for lists of tools. `left_out(tool, why)` is called for
    each definition that was removed.
    """
    if isinstance(item, ValidationError):
        return _unreadable(item)
    message: Any = getattr(item, "message", None)
    result: Any = getattr(message, "result", None)
    if not isinstance(result, dict):
        return item
    listed = cast("dict[str, Any]", result)
    content = parts = listed.get("content")
    if isinstance(parts, list):
        if len(cast("list[Any]", parts)) > _MOST_PARTS:
            return _error(message.id, f"The result has more than {_MOST_PARTS:,} parts")
        content = [_known(each) for each in cast("list[Any]", parts)]
    elif "structuredContent" in listed and parts is None:
        content = []
    if content != parts:
        return replace(item, message=message.model_copy(update={"result": {**listed, "content": content}}))
    if not isinstance(listed.get("tools"), list):
        return item
    try:
        kept = _good_tools(listed, version(), left_out)
    except RuntimeError:
        # The SDK has agreed on no version yet, so this message does not answer a request for tools.
        return item
    if len(kept) == len(listed["tools"]):
        return item
    return replace(item, message=message.model_copy(update={"result": {**listed, "tools": kept}}))


def _known(part: Any) -> Any:
    """Return a part of a result, or a text in place of one whose type a later version of the protocol may have."""
    kind: Any = cast("dict[str, Any]", part).get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind in _KINDS:
        return cast("Any", part)
    return {"type": "text", "text": f"[content of the type {kind[:_MOST_KIND_CHARS]!r}, which cannot be shown]"}


def _good_tools(result: dict[str, Any], version: str, left_out: Callable[[str, str], None]) -> list[Any]:
    """Return the definitions that the protocol allows. Other faults of the list are left to the SDK."""
    from mcp.shared.inbound import find_invalid_x_mcp_header  # noqa: PLC0415 -- an extra
    from mcp.types import methods  # noqa: PLC0415

    # One more is enough to notice that there are too many.
    kept = result["tools"][: MOST_TOOLS + 1]
    wrong: dict[int, str] = {}
    try:
        methods.parse_server_result("tools/list", version, {**result, "tools": kept})
    except ValidationError as exc:
        for problem in _problems(exc):
            where = problem["loc"]
            if where[:1] == ("tools",):
                wrong.setdefault(where[1], _said(where[2:], problem["msg"]))
    except (ValueError, KeyError):
        pass  # The version is unknown, or has no such method.
    for index, each in enumerate(kept):
        # The SDK would remove such a tool too, and log it elsewhere.
        if version >= "2026" and index not in wrong and (why := find_invalid_x_mcp_header(each["inputSchema"])):
            wrong[index] = why
    for index, why in wrong.items():
        left_out(_name(kept[index], index + 1), f"its definition breaks the protocol: {why}")
    return [each for index, each in enumerate(kept) if index not in wrong]


def broken(error: ValidationError) -> str:
    """Return where a message first breaks the protocol, and how: "content: Field required"."""
    problem = _problems(error)[0]
    return _said(problem["loc"], problem["msg"])


def _problems(error: ValidationError) -> list[Any]:
    return [*error.errors(include_url=False, include_input=False)]


def _said(path: Sequence[int | str], problem: str) -> str:
    return ": ".join([*filter(None, [".".join(map(str, path))]), problem])


def _name(definition: Any, position: int) -> str:
    name = cast("Mapping[str, Any]", definition).get("name") if isinstance(definition, Mapping) else None
    return name if isinstance(name, str) else f"number {position}"


def _unreadable(error: ValidationError) -> Any:
    """Return a protocol error for the call that the unreadable message answers, or `error` if it answers none."""
    for problem in error.errors():
        sent: Any = problem["input"]
        if isinstance(sent, (str, bytes)):
            try:
                # This parser accepts lone surrogates, and deeper values than that of the SDK.
                sent = json.loads(sent)
            except (ValueError, RecursionError):
                continue
        if not isinstance(sent, dict) or "method" in sent or not sent.keys() & {"result", "error"}:
            continue
        answered: Any = cast("dict[str, Any]", sent).get("id")
        if cast("dict[str, Any]", sent).get("jsonrpc") != "2.0":
            # This is something else, such as a log line.
            continue
        if isinstance(answered, (int, str)):
            return _error(answered, f"Failed to parse it: {problem['msg']}")
    return error


def _error(answered: int | str, why: str) -> Any:
    from mcp.shared.message import SessionMessage  # noqa: PLC0415 -- an extra
    from mcp.types import ErrorData, JSONRPCError  # noqa: PLC0415

    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=answered, error=ErrorData(code=_PARSE_ERROR, message=why)))


# The code of JSON-RPC, which the SDK's HTTP transport uses for such an answer too.
_PARSE_ERROR = -32700
