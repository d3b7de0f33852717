"""The descriptions of servers: given in code, or read from the `mcpServers` file that many applications share."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, cast

import orjson

from ..._option_checks import FLAG, POSITIVE, Rule, check, is_http_url, no_option, one_of, or_none, takes, whole
from ...errors import ConfigurationError
from ...protocols import ApprovalRule, ToolKind
from ...tools import Summarize, ToolContext, ToolOptions, check_options

if TYPE_CHECKING:
    import httpx2
    from mcp import types

    ElicitAnswer: TypeAlias = types.ElicitResult | types.ErrorData
    SamplingAnswer: TypeAlias = types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData

# The variables that a program inherits in addition to those that the SDK passes on.
_INHERITED = ("LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "TMPDIR", "TZ")
_MAX_NAME_CHARS = 128  # the limit of MCP for the name of a tool


class McpToolOptions(TypedDict, total=False):
    """The application's options for one tool of a server: those of `ToolOptions` that apply to MCP tools.

    Each option takes precedence over the server's definition of the tool, and over the options for all tools of the
    server. There are no retries, because only the model knows whether a call may be repeated, and there is no cache.
    """

    timeout_seconds: float | None
    max_concurrency: int | None
    needs_approval: bool | ApprovalRule | None
    """None leaves it to the server's hints. A tool that differs from its pin needs approval in any case."""
    sequential: bool
    status: str
    idempotent: bool
    repeatable: bool
    return_direct: bool
    kind: ToolKind
    keep_full_results: bool
    max_result_chars: int | None
    include_data: bool | None
    summarize: Summarize | None


_ASKED = Rule(lambda given: takes(given, 2), "pass an async function of a ToolContext and the parameters")
_HEADER = re.compile(r"([!-~]([ -~\t]*[!-~])?)?")
_TOOL_OPTIONS = tuple(McpToolOptions.__annotations__)


@dataclass(frozen=True, slots=True)
class McpServer:
    """One MCP server: a program that speaks on its stdin and stdout, or an address that speaks streamable HTTP.

    `name` is the first part of the names of its tools. Give exactly one of `command`, `url` and `connect`.

    `command` is run with `args` and without a shell, in `cwd`. From the environment it gets PATH, HOME, USER, LOGNAME,
    SHELL, TERM, TMPDIR, TZ and the locale, and the variables in `env`. `headers` are sent with every HTTP request.
    `auth` authenticates them, also after a response with the status 401 or 403: an `OAuthClientProvider` of the SDK, or
    any other `httpx2.Auth`. See `McpTools` for the sign-in of a person.

    `connect` is for other transports: a function that returns an argument of `mcp.Client`, such as a transport or a
    server in this process; it is called for each connection, in the task that holds the connection.

    `needs_approval` says whether a person has to approve each call; None leaves it to the server's hints. `tools` are
    the names, as the server lists them, of the tools to offer; None for all. `timeout_seconds` is the deadline of a
    call, instead of the request's. `tool_options` are options for single tools, by the names that the server lists. A
    name in `tools` or `tool_options` that it does not list is logged as a warning.

    `on_elicitation` answers a server that asks the user, and `on_sampling` one that asks the model: `ask_people` and
    `ask_model`, or async functions of your own. They get the context of the call that the server works for, and the
    parameters of the SDK, and return a result of the SDK; the text of a `ToolError` is sent to the server. Without a
    function, the capability is not offered. In the protocol before 2026 a question does not name its call. So the calls
    of a reply run one after another then, and a question is refused while calls of several requests run.

    `protocol` is the version of MCP: "2026-07-28", "legacy" (older versions, with sessions) or "auto", which asks the
    server, and uses the older one for a program that ends when it is asked. An HTTP response, an event of a stream, and
    a line of a program may each have at most `max_response_bytes`, and 100,000 JSON values. Raises `ConfigurationError`
    for wrong arguments.
    """

    name: str
    _: KW_ONLY
    command: str | None = None
    args: Sequence[str] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | Path | None = None
    # The URL is not shown, because it may contain a key.
    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    auth: httpx2.Auth | None = field(default=None, repr=False)
    connect: Callable[[], Any] | None = None
    needs_approval: bool | None = None
    tools: Collection[str] | None = None
    timeout_seconds: float | None = None
    tool_options: Mapping[str, McpToolOptions] = field(default_factory=dict[str, McpToolOptions])
    on_elicitation: Callable[[ToolContext[Any], types.ElicitRequestParams], Awaitable[ElicitAnswer]] | None = None
    on_sampling: Callable[[ToolContext[Any], types.CreateMessageRequestParams], Awaitable[SamplingAnswer]] | None = None
    protocol: Literal["auto", "legacy", "2026-07-28"] = "auto"
    max_response_bytes: int = 8_388_608

    def __post_init__(self) -> None:
        if not (self.name.strip() and self.name.isprintable() and len(self.name) <= _MAX_NAME_CHARS):
            raise ConfigurationError(f"an MCP server's name is {self.name!r}; pass 1 to 128 printable characters")
        where = f"MCP server {self.name!r}"
        if problem := next(self._problems(), ""):
            raise ConfigurationError(f"{where}: {problem}")
        for tool, options in self.tool_options.items():
            _check_tool_options(where, tool, options)
        for name, callback in (("on_elicitation", self.on_elicitation), ("on_sampling", self.on_sampling)):
            check(f"{where}: {name}", callback, or_none(_ASKED))
        check(f"{where}: needs_approval", self.needs_approval, or_none(FLAG))
        check(f"{where}: protocol", self.protocol, one_of("auto", "legacy", "2026-07-28"))
        check(f"{where}: timeout_seconds", self.timeout_seconds, or_none(POSITIVE))
        check(f"{where}: max_response_bytes", self.max_response_bytes, whole(1))

    def _problems(self) -> Iterator[str]:
        """Yield what is wrong with the server's address and with what is sent to it."""
        if (self.command, self.url, self.connect).count(None) != 2 or "" in (self.command, self.url):
            yield "pass exactly one of command, url and connect"
        if isinstance(self.args, str):
            yield "args is a string, which no shell splits; pass a list of strings"
        if isinstance(self.tools, str):
            yield "tools is a string; pass a list of names"
        if isinstance(self.tools, Mapping):
            yield "tools is a mapping; pass a list of names, and options as tool_options"
        for option, texts in (("args", self.args), ("env", self.env.values()), ("headers", self.headers.values())):
            if not all(isinstance(cast("object", each), str) for each in texts):
                yield f"{option} has a value that is not a text"
        for header, value in self.headers.items():
            # The library for HTTP would put the value into its error, and so into the log.
            if not _HEADER.fullmatch(value):
                yield (
                    f"the value of the header {header!r} has characters that HTTP does not allow: only ASCII, and no "
                    "line break or space around it"
                )
        if self.url is not None and not is_http_url(self.url):
            yield "its url is not an http or https address"
        if self.command is None and (self.args or self.env or self.cwd is not None):
            yield "args, env and cwd can be given only with a command"
        if self.url is None and (self.headers or self.auth is not None):
            yield "headers and auth can be given only with a url"
        if self.auth is not None and not any(each.__module__.startswith("httpx2") for each in type(self.auth).__mro__):
            # The value is not shown, because it may be a token.
            yield (
                f"auth is a {type(self.auth).__qualname__}; pass an OAuthClientProvider of mcp.client.auth, or another "
                "httpx2.Auth (not one of httpx). A fixed token belongs in headers"
            )


def _check_tool_options(where: str, tool: str, options: McpToolOptions) -> None:
    """Raise `ConfigurationError` for unknown options and for invalid values."""
    if unknown := options.keys() - _TOOL_OPTIONS:
        raise ConfigurationError(f"{where}, tool {tool!r}: {no_option(unknown, _TOOL_OPTIONS)}")
    try:
        check_options(tool, cast("ToolOptions", options))
    except ConfigurationError as exc:
        raise ConfigurationError(f"{where}, {exc}") from exc


def environment_of(server: McpServer) -> dict[str, str]:
    """Return the variables for a server's program in addition to the few that the SDK always passes on."""
    return {name: os.environ[name] for name in _INHERITED if name in os.environ} | dict(server.env)


def servers_from(path: str | Path) -> list[McpServer]:
    """Return the servers of a file such as `{"mcpServers": {"time": {"command": "mcp-server-time"}}}`, in its order.

    The keys of a server are `command`, `args`, `env`, `cwd`, `url` and `headers`; a server with `disabled` is left out.
    Other keys are ignored, because they belong to other applications; set the other options of an `McpServer` in code,
    for example with `dataclasses.replace`. In all texts `${NAME}` or `${env:NAME}` is replaced by that environment
    variable, and `${NAME:-text}` by the text if the variable is not set. Raises `ConfigurationError`, which names the
    file and the server.
    """
    try:
        read: object = orjson.loads(Path(path).read_bytes())
    except OSError as exc:
        raise ConfigurationError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    except orjson.JSONDecodeError as exc:
        raise ConfigurationError(f"{path} is not valid JSON: {exc}") from exc
    servers = cast("dict[str, Any]", read).get("mcpServers") if isinstance(read, dict) else None
    if not isinstance(servers, dict):
        raise ConfigurationError(f'{path} has no object "mcpServers"')
    found: list[McpServer] = []
    for name, entry in cast("dict[str, Any]", servers).items():
        if not isinstance(entry, dict):
            raise ConfigurationError(f"{path}: MCP server {name!r} is not an object")
        if cast("dict[str, Any]", entry).get("disabled") is not True:
            found.append(_server(str(path), name, cast("dict[str, Any]", entry)))
    return found


_TEXTS = ("command", "cwd", "url")
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def _server(path: str, name: str, entry: dict[str, Any]) -> McpServer:
    where = f"{path}: MCP server {name!r}"
    if entry.get("type") == "sse":
        raise ConfigurationError(
            f"{where} uses the old SSE transport, which is not supported; use its address for streamable HTTP"
        )

    def text(key: str, value: object) -> str:
        if not isinstance(value, str):
            raise ConfigurationError(f"{where}: {key} has a value that is not a text")
        return _VARIABLE.sub(lambda match: _value(where, match), value)

    options: dict[str, Any] = {key: text(key, entry[key]) for key in _TEXTS if entry.get(key) is not None}
    args: object = entry.get("args") or []
    if not isinstance(args, list):
        raise ConfigurationError(f"{where}: args is not a list")
    options["args"] = tuple([text("args", each) for each in cast("list[object]", args)])
    for key in ("env", "headers"):
        given: object = entry.get(key) or {}
        if not isinstance(given, dict):
            raise ConfigurationError(f"{where}: {key} is not an object")
        options[key] = {each: text(key, value) for each, value in cast("dict[str, object]", given).items()}
    try:
        return McpServer(name, **options)
    except ConfigurationError as exc:
        raise ConfigurationError(f"{path}: {exc}") from exc


def _value(where: str, match: re.Match[str]) -> str:
    value: str | None = match[2]
    value = os.environ.get(match[1], value)
    if value is None:
        raise ConfigurationError(f"{where}: the environment has no {match[1]}; set it, or write ${{{match[1]}:-text}}")
    return value
