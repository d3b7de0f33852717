"""The bench on which tools are checked: a dispatcher runs them, and the bench observes their handlers from outside."""

from __future__ import annotations

import copy
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, TypeAlias

import anyio
import anyio.lowlevel

from ....dispatcher import ToolDispatcher
from ....errors import ConfigurationError, InvalidArguments, MissingExtra, NotRunning
from ....events import TerminalEvent, ToolCallCompleted, ToolCallFailed, ToolCallRequested
from ....failures import classify
from ....messages import Message, UserMessage
from ....protocols import CallView, SecretHandling, ToolSource
from ....schemas import json_schema_validator
from ....secrets import NO_SECRETS
from ....tools import Tool, ToolRegistry
from .._caller import Caller, numbers
from .._checks import Checks, Ledger

EXAMPLES: Final = "examples"
SCHEMA: Final = "jsonschema"
STRICT: Final = "strict"
"""The needs of a check: example calls; the library of the extra `schema`; a caller that asks for strict mode."""

_POLL_SECONDS = 0.001
_MAX_POLL_SECONDS = 0.05
_LATER_SECONDS = 0.01  # for handlers that wait for something else than the event loop
_INTERNAL = classify(Exception()).error
_CAME_FROM = "Please."


@dataclass(frozen=True, slots=True)
class ExampleCall:
    """A call that succeeds: the tool's name, its arguments, and the required result.

    `output` is a type that pydantic can read, or a JSON schema, of the data; if the result has no data, of the text.
    Without `output` any result will do. A check may make the call several times, and cancel it half way, so its effects
    must be harmless.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    output: Any = None


class OpenToolset(Protocol):
    """A toolset that can be opened: it keeps its tools in `registry` while its block is entered.

    Example:
        from toolbus.testing import ExampleCall, check_toolset
        from toolbus.testing.contracts.tool import OpenToolset
        from toolbus.toolsets.mcp import McpServer, McpTools

        def make() -> OpenToolset:
            return McpTools([McpServer("git", command="uvx", args=["mcp-server-git"])])

        async def test_the_servers_tools() -> None:
            await check_toolset(make, [ExampleCall("git__git_status", {"repo_path": "."})])
    """

    @property
    def registry(self) -> ToolRegistry:
        """The registry with the toolset's tools while it is open."""
        ...

    async def __aenter__(self) -> Any: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


MakeToolset: TypeAlias = Callable[[], OpenToolset]
"""Returns a new toolset, which is not open yet."""


@dataclass(slots=True)
class _View:
    """The part of the request that handlers see."""

    request_id: str
    deps: Any
    tools: ToolSource
    conversation_id: str = "contract"
    messages: Sequence[Message] = (UserMessage(content=_CAME_FROM),)
    metadata: Mapping[str, Any] | None = None
    interceptors: Sequence[Any] = ()
    instrumentation: Sequence[Any] = ()
    original_metadata: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    calls: Mapping[str, CallView] = field(default_factory=dict[str, CallView])
    is_stopping: bool = False
    is_released: bool = False
    secrets: SecretHandling = NO_SECRETS

    def narrate(self, call_id: str, text: str) -> None:
        """Do nothing: nobody shows a status line."""

    def child(self, call_id: str, prompt: Any, **options: Any) -> Any:  # noqa: ARG002 -- the signature of the protocol
        raise NotRunning("a contract check has no model for sub-requests; give the tool a stand-in for them")


class Calls(Caller):
    """A request whose calls a dispatcher runs. `began` and `running` count handlers by their tools' names."""

    def __init__(self, bench: Bench) -> None:
        self.registry = ToolRegistry()
        super().__init__(bench, bench.patience_seconds, _View("", bench.deps, self.registry))
        self.bench = bench
        self.began: list[str] = []
        self.running: Counter[str] = Counter()
        self.dispatcher = ToolDispatcher(self.bus, self.registry, grace_seconds=bench.grace_seconds)

    def add(self, tools: Iterable[Tool]) -> None:
        """Add tools whose calls are to run."""
        for each in tools:
            self.registry.replace(self._watched(each))

    def _watched(self, tool: Tool) -> Tool:
        """Return the tool with a handler that is counted. A tool that runs in a process has to stay as it is."""
        handler: Any = tool.handler
        if handler is None or tool.isolation == "process":
            return tool
        name = tool.name

        async def on_loop(**arguments: Any) -> Any:
            self._begin(name)
            try:
                return await handler(**arguments)
            finally:
                self.running[name] -= 1

        def in_thread(**arguments: Any) -> Any:
            self._begin(name)
            try:
                return handler(**arguments)
            finally:
                self.running[name] -= 1

        watched = copy.copy(tool)
        watched.handler = on_loop if tool.is_async else in_thread
        return watched

    def _begin(self, name: str) -> None:
        self.began.append(name)
        self.running[name] += 1

    def ask(self, example: ExampleCall, *, key: str = "") -> ToolCallRequested:
        return self.request(example.name, example.arguments, key=key)

    async def completed(self, example: ExampleCall, *, key: str = "", label: str = "") -> ToolCallCompleted | None:
        """Make a call that has to succeed; return None if it fails, which is recorded."""
        answer = await self.answer(self.ask(example, key=key))
        if isinstance(answer, ToolCallCompleted):
            return answer
        self.bench.fail(f"the call of {example.name}{label}", "a result", said(answer))
        return None

    async def is_quiet(self) -> bool:
        """Return whether all handlers, and their threads, have ended within the grace.

        A thread has the grace in real seconds, too, because an event loop in virtual time does not wait for it.
        """
        pause = _POLL_SECONDS
        over_at = time.monotonic() + self.bench.grace_seconds
        with anyio.move_on_after(self.bench.grace_seconds):
            while self.is_busy():  # no event reports the end of an abandoned thread
                await anyio.sleep(pause)
                pause = min(2 * pause, _MAX_POLL_SECONDS)
        while self.dispatcher.statistics().threads and time.monotonic() < over_at:
            time.sleep(_POLL_SECONDS)  # noqa: ASYNC251 -- see above
            await anyio.lowlevel.checkpoint()
        return not self.is_busy()

    def is_busy(self) -> bool:
        """Return whether a handler runs, or a thread of one."""
        statistics = self.dispatcher.statistics()
        return bool(statistics.running or statistics.overdue or +self.running)


@dataclass(eq=False)
class Bench(Ledger):
    """The state of a check of tools: the tools, the examples, and the failures."""

    tools: tuple[Tool, ...] = field(default=(), init=False)
    examples: tuple[ExampleCall, ...]
    deps: Any
    grace_seconds: float
    patience_seconds: float

    @property
    def deps_problem(self) -> str:
        """The error text if an example calls a tool that needs `deps` and they were not given; otherwise ""."""
        called = {each.name for each in self.examples} if self.deps is None else set[str]()
        for tool in self.tools:
            if tool.needs_deps and tool.name in called:
                wanted = f"tool {tool.name!r} takes a ToolContext[{tool.needs_deps}]"
                return f"{wanted}, and there are no deps; pass deps= to the check, too"
        return ""

    def check_deps(self) -> None:
        """Raise `ConfigurationError` with the `deps_problem`, if there is one."""
        if self.deps_problem:
            raise ConfigurationError(self.deps_problem)

    def runs_here(self, tool: Tool) -> bool:
        """Return whether a dispatcher runs the tool's calls: not for control tools and external ones."""
        return not (tool.spec.control or tool.spec.external)

    @asynccontextmanager
    async def calls(self, tools: Iterable[Tool] | None = None) -> AsyncGenerator[Calls]:
        """A request whose calls of these tools run inside the block."""
        calls = Calls(self)
        calls.add(self.tools if tools is None else tools)
        try:
            async with calls.dispatcher:
                yield calls
        finally:
            calls.leave()


@dataclass(eq=False)
class ToolsetBench(Bench):
    """The state of a check of a toolset: also a way to make one."""

    make: MakeToolset

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[OpenToolset]:
        """A toolset that is open inside the block."""
        toolset = self.make()
        async with toolset:
            yield toolset

    async def work(self, tools: Iterable[Tool], label: str = "") -> bool:
        """Return whether the first example succeeds with these tools; a failure is recorded."""
        async with self.calls(tools) as calls:
            return await calls.completed(self.examples[0], label=label) is not None


def said(answer: TerminalEvent) -> str:
    """Return an answer as text for a report."""
    if isinstance(answer, ToolCallFailed):
        return f"a failure, {answer.reason}: {answer.error}"
    return f"a result: {answer.content}"


def in_words(answer: TerminalEvent) -> bool:
    """Return whether an answer is a failure that gives its reason, and not an internal error."""
    return isinstance(answer, ToolCallFailed) and answer.error not in ("", _INTERNAL)


def fits(schema: Mapping[str, Any], value: Any) -> str:
    """Return why a value breaks a schema; empty if it fits, if the schema is broken, or without the library."""
    try:
        json_schema_validator(dict(schema))(value)
    except InvalidArguments as exc:
        return str(exc)
    except ConfigurationError:  # no library, or a broken schema, which another check reports
        return ""
    return ""


def why_no_schema(schema: Mapping[str, Any]) -> str:
    """Return why a schema is not a valid one; empty if it is valid, or if the library is not installed."""
    try:
        json_schema_validator(dict(schema))
    except MissingExtra:
        return ""
    except ConfigurationError as exc:
        return str(exc)
    return ""


def open_files() -> Counter[str]:
    """Return the open files of this process, with the number of times each is open; empty if they cannot be listed."""
    found: Counter[str] = Counter()
    try:
        handles = os.listdir("/proc/self/fd")  # noqa: PTH208 -- a link may be gone when it is read
    except OSError:
        return found
    for each in handles:
        try:
            target = os.readlink(f"/proc/self/fd/{each}")  # noqa: PTH115 -- as above
        except OSError:  # the descriptor that listed the folder
            continue
        if target.endswith(" (deleted)") or (target.startswith("/") and Path(target).is_file()):
            found[target] += 1
    return found


async def until(moment: int | None) -> None:
    """Let a call run for a while: yield `moment` times or, for None, wait a little."""
    if moment is None:
        await anyio.sleep(_LATER_SECONDS)
    else:
        await steps(moment)


async def steps(count: int) -> None:
    """Yield to the event loop `count` times."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


def new_key() -> str:
    """Return an idempotency key that no other call has."""
    return f"key {next(numbers)}"


tool_table: Checks[Bench] = Checks()
toolset_table: Checks[ToolsetBench] = Checks()
"""The checks by name."""
check = tool_table.check
toolset_check = toolset_table.check
