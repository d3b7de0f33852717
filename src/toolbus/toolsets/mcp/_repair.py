"""Mends what a server has sent where the SDK would drop more of it than is wrong.

For one definition that breaks the protocol it refuses the whole list, and of an answer over stdio that it cannot read
nobody hears, so that the call waits for its deadline.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from pydantic import ValidationError

__all__ = ["mended"]


def mended(item: Any, version: Callable[[], str], left_out: Callable[[str, str], None]) -> Any:
    """A message as the SDK's transports give it, or the error that they give for one, so that the SDK can use it.

    `version()` is the protocol that is spoken, asked for lists of tools alone. `left_out(tool, why)` is told of each
    definition that was taken out.
    """
    if isinstance(item, ValidationError):
        return _unreadable(item)
    message: Any = getattr(item, "message", None)
    result: Any = getattr(message, "result", None)
    if not (isinstance(result, dict) and isinstance(cast("dict[str, Any]", result).get("tools"), list)):
        return item
    listed = cast("dict[str, Any]", result)
    try:
        kept = _good_tools(listed, version(), left_out)
    except RuntimeError:  # the SDK's, before a version has been agreed upon: it is no answer to a question for tools
        return item
    if len(kept) == len(listed["tools"]):
        return item
    return dataclasses.replace(item, message=message.model_copy(update={"result": {**listed, "tools": kept}}))


def _good_tools(result: dict[str, Any], version: str, left_out: Callable[[str, str], None]) -> list[Any]:
    """The definitions that the protocol allows. What else may be wrong with the list is left to the SDK."""
    from mcp.types import methods  # noqa: PLC0415 -- an extra

    kept = list(result["tools"])
    places = list(range(1, len(kept) + 1))
    while True:
        try:
            methods.parse_server_result("tools/list", version, {**result, "tools": kept})
            return kept
        except ValidationError as exc:
            problems = exc.errors(include_url=False, include_context=False, include_input=False)
        except (ValueError, KeyError):  # a version that has no such method, or is none
            return kept
        wrong: dict[int, str] = {}
        for problem in problems:
            where = problem["loc"]
            if where[:1] == ("tools",) and len(where) > 1:
                path = ".".join(map(str, where[2:]))
                wrong.setdefault(cast("int", where[1]), f"{path}: {problem['msg']}" if path else problem["msg"])
        if not wrong:
            return kept
        for index, why in wrong.items():
            left_out(_name(kept[index], places[index]), f"its definition breaks the protocol: {why}")
        kept = [each for index, each in enumerate(kept) if index not in wrong]
        places = [each for index, each in enumerate(places) if index not in wrong]


def _name(definition: Any, place: int) -> str:
    name = cast("Mapping[str, Any]", definition).get("name") if isinstance(definition, Mapping) else None
    return name if isinstance(name, str) else f"number {place}"


def _unreadable(error: ValidationError) -> Any:
    """An error of the protocol for the call that the message was to answer; `error` itself where there is none."""
    from mcp.shared.message import SessionMessage  # noqa: PLC0415 -- an extra
    from mcp.types import ErrorData, JSONRPCError  # noqa: PLC0415

    for problem in error.errors(include_url=False, include_context=False):
        sent: Any = problem["input"]
        if isinstance(sent, (str, bytes)):
            try:
                sent = json.loads(sent)  # reads halves of surrogate pairs, and deeper than the SDK's parser
            except (ValueError, RecursionError):
                continue
        if not isinstance(sent, dict) or "method" in sent or not sent.keys() & {"result", "error"}:
            continue
        answered: Any = cast("dict[str, Any]", sent).get("id")
        if cast("dict[str, Any]", sent).get("jsonrpc") != "2.0":  # such as a line of a log
            continue
        if isinstance(answered, (int, str)):
            told = ErrorData(code=_PARSE_ERROR, message=f"Failed to parse it: {problem['msg']}")
            return SessionMessage(JSONRPCError(jsonrpc="2.0", id=answered, error=told))
    return error


_PARSE_ERROR = -32700  # of JSON-RPC, and what the SDK's HTTP says of such an answer
