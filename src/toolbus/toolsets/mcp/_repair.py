"""Repairs of a server's messages, for which the SDK would drop more than the part that is wrong.

The SDK refuses a whole list of tools because of one definition that breaks the protocol, and a result because of one
part of an unknown type, or because a field is missing whose value can be assumed. It drops an answer over stdio that it
cannot read, so that the call would wait for its deadline.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import anyio.lowlevel
import orjson
from pydantic import ValidationError
from pydantic_core import from_json

from ...records import replace

if TYPE_CHECKING:
    from mcp.types import ListToolsResult, Tool

MAX_TOOLS = 1_000
"""The most tools of a server."""

_MAX_PARTS = 10_000  # of a result; the SDK takes 3 us for each, on the event loop
_KINDS = frozenset({"text", "image", "audio", "resource", "resource_link"})
_MAX_KIND_CHARS = 50
# The largest definition: those of public servers have less than 10 kB.
_MAX_DEFINITION_BYTES = 65_536
# The most faults of a message that are looked at.
_MAX_FAULTS = 1_000
# What the protocol from 2026 on requires of results, and some of its servers leave out. An absent `resultType` means a
# complete result; the others are about a cache, which is not used.
_ASSUMED = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
_PAGE = "toolbus/page"
_BREAKS = "its definition breaks the protocol: "
# The first protocol version whose arguments may be sent as headers.
_HEADERS_SINCE = "2026"


class Repair:
    """The repair of the messages of one connection.

    `left_out(tool, why)` is called for each definition that was removed. The definitions of a list are read here, one
    by one, and other tasks run in between: the SDK would read all of them at once. It gets only what it needs itself.
    """

    def __init__(self, left_out: Callable[[str, str], None]) -> None:
        self.version: Callable[[], str] = str
        """Returns the protocol version, for lists of tools. Raises `RuntimeError` before it is negotiated."""
        self._left_out = left_out
        self._pages: dict[str, list[Tool]] = {}

    async def __call__(self, item: Any) -> Any:
        """Return an item of the SDK's transports, a message or the error for one, in a form that the SDK can use."""
        if isinstance(item, ValidationError):
            return _unreadable(item)
        message: Any = getattr(item, "message", None)
        result: Any = getattr(message, "result", None)
        if not isinstance(result, dict):
            return item
        repaired = {**_ASSUMED, **cast("dict[str, Any]", result)}
        parts: Any = repaired.get("content")
        if isinstance(parts, list):
            if len(cast("list[Any]", parts)) > _MAX_PARTS:
                return _error(message.id, f"The result has more than {_MAX_PARTS:,} parts")
            repaired["content"] = [_known(each) for each in cast("list[Any]", parts)]
        elif parts is None and "structuredContent" in repaired:
            repaired["content"] = []
        return replace(item, message=message.model_copy(update={"result": await self._page(repaired)}))

    async def shortened(self, body: bytes) -> bytes:
        """Return a JSON text, the answer to a request for tools, with no more definitions than the SDK needs.

        The SDK takes three times as long to read it as to parse it.
        """
        try:
            message: Any = from_json(body)
        except ValueError:
            return body
        result: Any = cast("dict[str, Any]", message).get("result") if isinstance(message, dict) else None
        if not isinstance(result, dict):
            return body
        page = await self._page({**_ASSUMED, **cast("dict[str, Any]", result)})
        return json.dumps({**message, "result": page}).encode()

    def tools_of(self, page: ListToolsResult) -> list[Tool]:
        """Return the tools of a page that the SDK returned, once."""
        return self._pages.pop(self._key_of(page.meta), page.tools)

    async def _page(self, result: dict[str, Any]) -> dict[str, Any]:
        """Keep the definitions of a list, and return it with those that the SDK needs; any other result as it is."""
        if not isinstance(result.get("tools"), list) or self._key_of(result.get("_meta")) in self._pages:
            return result
        try:
            return await self._read(result, self.version())
        except ValidationError:
            # The SDK finds the other faults of the list.
            return {**result, "tools": []}
        except (RuntimeError, ValueError, KeyError):
            # The version is unknown, has no such method, or is not negotiated, so nobody has asked for tools.
            return result

    @staticmethod
    def _key_of(meta: Any) -> str:
        return str(cast("dict[str, Any]", meta).get(_PAGE)) if isinstance(meta, dict) else ""

    async def _read(self, result: dict[str, Any], version: str) -> dict[str, Any]:
        from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map  # noqa: PLC0415 -- an extra

        found: list[Tool] = []
        needed: list[dict[str, Any]] = []
        # One more is enough to notice that there are too many.
        definitions = result["tools"][: MAX_TOOLS + 1]
        # The SDK copies it each time.
        frame = {name: each for name, each in result.items() if name != "_meta"}
        for position, definition in enumerate(definitions, 1):
            await anyio.lowlevel.checkpoint()
            if why := too_large(definition):
                self._left_out(_name(definition, position), why)
                continue
            try:
                tool = _tool(frame, definition, version)
            except ValidationError as exc:
                if not (why := _fault_of_tool(exc)):
                    raise
                self._left_out(_name(definition, position), f"{_BREAKS}{why}")
                continue
            # The SDK would remove such a tool too, and log it elsewhere.
            if version >= _HEADERS_SINCE and (why := find_invalid_x_mcp_header(tool.input_schema)):
                self._left_out(tool.name, f"{_BREAKS}{why}")
                continue
            found.append(tool)
            if version >= _HEADERS_SINCE and x_mcp_header_map(tool.input_schema):
                needed.append({"name": tool.name, "inputSchema": tool.input_schema})
        # Only the newest pages may still be asked for.
        for key in tuple(self._pages)[:-1]:
            del self._pages[key]
        key = str(id(found))
        self._pages[key] = found
        return {**result, "tools": needed, "_meta": {_PAGE: key}}


def _known(part: Any) -> Any:
    """Return a part of a result, or a text in place of one whose type a later version of the protocol may have."""
    kind: Any = cast("dict[str, Any]", part).get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind in _KINDS:
        return cast("Any", part)
    return {"type": "text", "text": f"[content of the type {kind[:_MAX_KIND_CHARS]!r}, which cannot be shown]"}


def too_large(definition: Any) -> str:
    """Return the reason why a definition cannot be used because of its size; empty if it can."""
    try:
        size = len(orjson.dumps(definition))
    except TypeError as exc:
        # It has integers of more than 64 bits, or objects that are nested too deeply.
        return f"its definition cannot be written as JSON: {exc}"
    if size > _MAX_DEFINITION_BYTES:
        return f"its definition has {size} bytes; at most {_MAX_DEFINITION_BYTES} are allowed"
    return ""


def _tool(frame: dict[str, Any], definition: Any, version: str) -> Tool:
    """Return the tool of one definition in a list with these other fields.

    Raises `ValidationError`, also for faults of the other fields.
    """
    from mcp.types import methods  # noqa: PLC0415 -- an extra

    listed = methods.parse_server_result("tools/list", version, {**frame, "tools": [definition]})
    return cast("ListToolsResult", listed).tools[0]


def _fault_of_tool(error: ValidationError) -> str:
    """Return what is wrong with a definition; empty if the list has other faults only."""
    for path, problem in _faults(error):
        if not path or path[0] == "tools":
            return _said(path[2:], problem)
    return ""


def broken(error: ValidationError) -> str:
    """Return where a message first breaks the protocol, and how: "content: Field required"."""
    return _said(*_faults(error)[0])


def _faults(error: ValidationError) -> list[tuple[tuple[int | str, ...], str]]:
    """Return where a message breaks the protocol, and how; for many faults only their number."""
    count = error.error_count()
    if count > _MAX_FAULTS:
        # To list them takes as long as to find them.
        return [((), f"it has {count} faults")]
    return [(each["loc"], each["msg"]) for each in error.errors(include_url=False, include_input=False)]


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
                # This parser accepts deeper values than that of the SDK.
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
