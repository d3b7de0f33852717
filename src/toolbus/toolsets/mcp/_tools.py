"""The servers' tools in a registry: their names, their need for approval, and their changes."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import anyio.lowlevel

from ..._option_checks import POSITIVE, Rule, check, listed
from ...errors import ConfigurationError
from ...protocols import ToolSpec
from ...secrets import find_marks
from ...tools import Tool, ToolContext, ToolOptions, ToolRegistry
from ._connection import Connection
from ._names import argument_names, prefix_of, renamed, tool_name
from ._pins import Pins, difference, pin_of
from ._repair import too_large
from ._results import check_answer, form_of, result_of
from ._servers import McpServer
from ._transport import need_sdk

if TYPE_CHECKING:
    from mcp import types

_logger = logging.getLogger("toolbus.mcp")
# The time for closing: the SDK gives a program 2 s to end, 2 s to be terminated, and 2 s to be killed.
_CLOSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class McpStatus:
    """The status of one server. `seconds` is the time since it was connected or lost; `reason` says why it is away.

    `tools` are the names by which models call its tools; while it is away, those that it had.
    """

    server: str
    connected: bool
    seconds: float
    reason: str
    protocol: str
    tools: tuple[str, ...]


class McpTools:
    """The connections to MCP servers, and their tools in a registry, while the object is entered.

        async with McpTools(servers_from("mcp.json"), pins="pins.json") as mcp, Runtime(..., tools=mcp.registry):
            ...

    Entering waits until each server is connected or cannot be reached, for at most `connect_seconds` (twice for a
    program that ends by itself and is started as an older one) and 7 s in which a program that hangs is ended. A server
    that is away is tried again, with growing waits of at most 8 s. Its calls fail at once and say so, and requests
    continue. A call that is running when the connection is lost fails too; if its tool is not read-only, it is not
    known whether the call was carried out. Every `ping_seconds`, each server is checked, unless it is busy with calls.
    Changes of the servers' lists of tools are applied to the registry.

    While a person signs in to a server with `auth`, its time to connect is paused, but entering does not wait longer
    than `connect_seconds`, and the tools are added later. A call waits for a sign-in for at most 20 s, and then
    fails as one that was not carried out. After a sign-in that failed, nobody is asked again for 5 minutes.

    A tool's name is `server__tool`. The server's hints decide about approval: a read-only tool and a tool that only
    adds something need none; for any other tool, also without hints, a person has to approve each call. The same holds
    for each tool that takes secrets, because the server itself chooses which arguments get values for references.

    `pins` keep digests of each tool as it was first seen: in a mapping by tool name, in a JSON file or, by default, in
    this object. A tool that differs from its pin needs approval for each call, and a warning is logged: see `changed`.

    Leaving ends the servers' programs, which takes at most 10 s, and removes the tools from the registry. Use it from
    one thread only, and enter it once. Raises `MissingExtra`, and `ConfigurationError` if two servers have the same
    name, or if it is entered a second time.
    """

    def __init__(
        self,
        servers: Iterable[McpServer],
        *,
        registry: ToolRegistry | None = None,
        pins: MutableMapping[str, str] | str | Path | None = None,
        connect_seconds: float = 30.0,
        ping_seconds: float = 30.0,
    ) -> None:
        need_sdk()
        check("McpTools: connect_seconds", connect_seconds, POSITIVE)
        check("McpTools: ping_seconds", ping_seconds, POSITIVE)
        self.registry = ToolRegistry() if registry is None else registry
        self._pins = Pins(pins)
        self._connect_seconds = connect_seconds
        self._ping_seconds = ping_seconds
        self._servers: dict[str, McpServer] = {}
        advice = "pass a list of McpServer, for example servers_from('mcp.json')"
        for server in listed("servers", servers, advice):
            check("servers", server, Rule(lambda given: isinstance(given, McpServer), advice))
            prefix = prefix_of(server.name)
            if prefix in self._servers:
                raise ConfigurationError(f"there are two MCP servers named {server.name!r}; their tools would be mixed")
            if prefix != server.name:
                _logger.warning("the tools of MCP server %s are named %s__...", server.name, prefix)
            self._servers[prefix] = server
        self._connections: dict[str, Connection] = {}
        self._known: dict[str, _Known] = {}
        self._logged: set[str] = set()
        # The lists of tools that were read while the object is being entered.
        self._first: dict[str, list[types.Tool]] | None = None
        self._group: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> McpTools:
        if self._group is not None:
            raise ConfigurationError("this McpTools was entered already; make another one")
        for prefix, server in self._servers.items():
            self._connections[prefix] = Connection(
                server,
                functools.partial(self._take, prefix),
                functools.partial(self._warn_left_out, prefix),
                connect_seconds=self._connect_seconds,
                ping_seconds=self._ping_seconds,
            )
        self._first = {}
        self._taking = anyio.Lock()
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        try:
            for connection in self._connections.values():
                self._group.start_soon(connection.run)
            for connection in self._connections.values():
                await connection.tried.wait()
            first, self._first = self._first, None
            # The order does not depend on which server is faster, so that models get the same list of tools each time.
            for prefix in self._servers:
                if prefix in first:
                    await self._take(prefix, first[prefix])
        except BaseException:
            self._group.cancel_scope.cancel()
            await self.__aexit__()  # The task group would wrap the exception.
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        group = self._group
        assert group is not None
        for connection in self._connections.values():
            connection.close()
        group.cancel_scope.deadline = anyio.current_time() + _CLOSE_SECONDS
        try:
            await group.__aexit__(None, None, None)
        finally:
            self._group = None
            for name in tuple(self._known):
                self._remove(name)
            self._connections.clear()

    # --------------------------------------------------------------------------------------------------- questions

    def status(self) -> tuple[McpStatus, ...]:
        """Return the status of each server, in the order in which they were given; empty outside of `async with`."""
        return tuple(
            McpStatus(
                server=each.server.name,
                connected=each.is_connected,
                seconds=each.seconds(),
                reason=each.why,
                protocol=each.protocol,
                tools=tuple(name for name, known in self._known.items() if known.prefix == prefix),
            )
            for prefix, each in self._connections.items()
        )

    @property
    def changed(self) -> Mapping[str, str]:
        """The tools that differ from their pins, by name, with the difference: "its description changed since ..."."""
        return MappingProxyType({name: known.change for name, known in self._known.items() if known.change})

    def accept(self, name: str, read: ToolSpec) -> None:
        """Pin a tool as somebody has read it, so that it needs no more approval than its server's hints ask for.

        `read` is what `registry.specs[name]` was then. A file of pins is written at once; if that fails, a warning is
        logged, and the pin is valid in this process. Raises `KeyError` if there is no such tool, and
        `ConfigurationError` if its server has changed it again since it was read.
        """
        known = self._known[name]
        if known.tool.spec is not read:
            raise ConfigurationError(f"tool {name} has changed since it was read: read it again, and then accept it")
        self._pins.set({name: known.pin})
        self._put(name, known.prefix, known.definition, known.pin)

    def origin(self, name: str) -> tuple[str, str]:
        """Return the server's name, and the tool's name there, of the tool that models call `name`.

        Raises `KeyError` if there is no such tool.
        """
        known = self._known[name]
        return self._servers[known.prefix].name, known.definition.name

    def name_of(self, server: str, tool: str) -> str:
        """Return the name by which models call a server's tool, even if there is no such tool."""
        return tool_name(prefix_of(server), tool)

    # ------------------------------------------------------------------------------------------------- the registry

    async def _take(self, prefix: str, listed: list[types.Tool]) -> None:
        """Update the registry from a server's list, tool by tool, so that other tasks can run in between."""
        if self._first is not None:
            self._first[prefix] = listed
            return
        async with self._taking:
            await self._take_all(prefix, listed)

    async def _take_all(self, prefix: str, listed: list[types.Tool]) -> None:
        server = self._servers[prefix]
        found: dict[str, types.Tool] = {}
        for each in listed:
            name = tool_name(prefix, each.name)
            if name in found:
                self._warn_left_out(prefix, each.name, "the server lists another tool of that name before it")
            elif server.tools is None or each.name in server.tools:
                found[name] = each
        for option, names in (("tool_options", server.tool_options.keys()), ("tools", server.tools or ())):
            for name in sorted(set(names) - {each.name for each in listed}):
                self._warn(f"MCP server {server.name!r} has no tool {name!r}, which is in its {option}")
        for name in [name for name, known in self._known.items() if known.prefix == prefix and name not in found]:
            self._remove(name)
        pins: dict[str, str] = {}
        try:
            for name, definition in found.items():
                # Reading a definition may take some time, and there may be many.
                await anyio.lowlevel.checkpoint()
                if pin := self._take_one(name, prefix, definition):
                    pins[name] = pin
        finally:
            for name in self._pins.add(pins):
                self._put(name, prefix, found[name], pins[name])

    def _take_one(self, name: str, prefix: str, definition: types.Tool) -> str:
        """Register a tool that is new or has changed. Return its pin if it was registered, else an empty text."""
        wire = definition.model_dump(mode="json", by_alias=True, exclude_none=True)
        if problem := _problem_of(wire):
            self._warn_left_out(prefix, definition.name, problem)
            self._remove(name)
            return ""
        pin = pin_of(wire)
        known = self._known.get(name)
        is_new = known is None or known.pin != pin
        return pin if is_new and self._put(name, prefix, definition, pin) else ""

    def _put(self, name: str, prefix: str, definition: types.Tool, pin: str) -> bool:
        """Make a tool from a definition and register it. If that is impossible, log why and return False."""
        known = self._known.get(name)
        current = self.registry.get(name)
        if current is not None and (known is None or current is not known.tool):
            self._warn_left_out(prefix, definition.name, f"the registry has a tool {name!r} that is not of this server")
            return False
        pinned = self._pins.get(name)
        change = "" if pinned is None else difference(pinned, pin)
        try:
            tool = _tool(self._connections[prefix], name, definition, changed=bool(change))
        except Exception as exc:
            # The schema is untrusted, so a library may raise anything for it.
            self._warn_left_out(prefix, definition.name, str(exc) or type(exc).__name__)
            self._remove(name)
            return False
        self.registry.replace(tool)
        self._known[name] = _Known(prefix, definition, tool, pin, change)
        if change:
            _logger.warning("tool %s needs approval from now on: %s", name, change)
        return True

    def _remove(self, name: str) -> None:
        known = self._known.pop(name, None)
        if known is not None and self.registry.get(name) is known.tool:
            self.registry.remove(name)

    def _warn_left_out(self, prefix: str, tool: str, why: str) -> None:
        """Log once why a tool is not offered."""
        self._warn(f"tool {tool!r} of MCP server {self._servers[prefix].name!r} is left out: {why}")

    def _warn(self, text: str) -> None:
        """Log a warning of at most 2,000 characters, unless it was logged before."""
        text = text[:2_000]
        if text not in self._logged and len(self._logged) < 1_000:
            self._logged.add(text)
            _logger.warning("%s", text)


@dataclass(frozen=True, slots=True)
class _Known:
    """A tool that is in the registry, with its definition and pin."""

    prefix: str
    definition: types.Tool
    tool: Tool
    pin: str
    change: str


def _problem_of(wire: dict[str, Any]) -> str:
    """Return the reason why a definition cannot be used; empty if it can."""
    # Only the protocol version 2025-11-25 has this field.
    if wire.get("execution", {}).get("taskSupport") == "required":
        return "it can be called only as a task, which toolbus does not support"
    return too_large(wire)


def _tool(connection: Connection, name: str, definition: types.Tool, *, changed: bool) -> Tool:
    """Return the tool of a definition. Raises `ConfigurationError` for an invalid schema."""
    hints = definition.annotations
    read_only = hints is not None and hints.read_only_hint is True
    adds = hints is not None and hints.destructive_hint is False
    idempotent = hints is not None and hints.idempotent_hint is True
    server, original, form = connection.server, definition.name, form_of(definition)
    given = server.tool_options.get(original, {})
    approval = given.get("needs_approval", server.needs_approval)
    # Some servers write null for a part that they leave out, such as "required".
    schema = {key: part for key, part in definition.input_schema.items() if part is not None}
    names = argument_names(schema)
    originals = {other: argument for argument, other in names.items()}

    async def call(*, toolbus_context: ToolContext[Any], **arguments: Any) -> Any:
        # A name that the schema does not list may be an original one.
        arguments = {
            name if (other := originals.get(name, name)) in arguments else other: value
            for name, value in arguments.items()
        }
        answer = await connection.call(original, arguments, toolbus_context, read_only=read_only)
        check_answer(answer, form, server.name, unknown=not read_only)
        return result_of(answer, form)

    options: ToolOptions = {
        # MCP's default is destructive. The server itself says that it takes secrets, perhaps those of other tools.
        "destructive": not (read_only or adds) or find_marks(schema) is not None,
        "kind": "query" if read_only else "",
        "idempotent": read_only or idempotent,
        "sequential": connection.asks_by_itself,
        "timeout_seconds": server.timeout_seconds,
        **given,
        "needs_approval": True if changed else approval,
    }
    title = definition.title or (hints.title if hints is not None else None)
    return Tool(
        name, definition.description or title or "", renamed(schema, names) if names else schema, call, **options
    )
