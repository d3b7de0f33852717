"""The bench on which tools are checked: a dispatcher runs them, and what their handlers do is seen from outside."""

from __future__ import annotations

import copy
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import anyio
import anyio.lowlevel

from ....dispatcher import ToolDispatcher
from ....errors import ConfigurationError, InvalidArguments, MissingExtra, NotRunning
from ....events import ToolCallCompleted, ToolCallFailed, ToolCallRequested
from ....failures import classify
from ....messages import Message, UserMessage
from ....protocols import CallView, SecretHandling, ToolSource
from ....schemas import json_schema_validator
from ....secrets import NO_SECRETS
from ....tools import Tool, ToolRegistry
from .._checks import Checks, Ledger
from .._desk import Desk, Terminal, numbers

__all__ = [
    "EXAMPLES",
    "SCHEMA",
    "STRICT",
    "Bench",
    "Calls",
    "ExampleCall",
    "MakeToolset",
    "OpenToolset",
    "ToolsetBench",
    "check",
    "fits",
    "in_words",
    "key_of_its_own",
    "open_files",
    "said",
    "steps",
    "tool_table",
    "toolset_check",
    "toolset_table",
    "until",
    "why_no_schema",
]

EXAMPLES: Final = "examples"
SCHEMA: Final = "jsonschema"
STRICT: Final = "strict"
"""What a check may need: example calls, the library of the extra `schema`, that somebody wants strict mode."""

_POLL_SECONDS = 0.001
_LONGEST_POLL_SECONDS = 0.05
_LATER_SECONDS = 0.01  # for handlers that wait for something else than a turn
_INTERNAL = classify(Exception()).error
_CAME_FROM = "Please."


@dataclass(frozen=True, slots=True)
class ExampleCall:
    """A call that goes well: the tool's name, its arguments, and what the result has to be.

    `output` is a type that pydantic can read, or a JSON schema, of the data; where there is none, of the text. Without
    it any result does. A check may call it several times, also cancelled half way: what it does must be harmless.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    output: Any = None


class OpenToolset(Protocol):
    """A toolset that is opened: it keeps its tools in `registry` while its block is entered."""

    @property
    def registry(self) -> ToolRegistry:
        """Where its tools are while it is open."""
        ...

    async def __aenter__(self) -> Any: ...
    async def __aexit__(self, *exc_info: object) -> bool | None: ...


MakeToolset: TypeAlias = Callable[[], OpenToolset]
"""Gives a new toolset, which is not open yet."""


@dataclass(slots=True)
class _View:
    """What handlers see of the request."""

    request_id: str
    deps: Any
    tools: ToolSource
    conversation_id: str = "contract"
    messages: Sequence[Message] = (UserMessage(content=_CAME_FROM),)
    metadata: Mapping[str, Any] | None = None
    interceptors: Sequence[Any] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    calls: Mapping[str, CallView] = field(default_factory=dict[str, CallView])
    stops: bool = False
    is_left: bool = False
    secrets: SecretHandling = NO_SECRETS

    def narrate(self, call_id: str, text: str) -> None:
        """Nobody shows a status line."""

    def child(self, call_id: str, prompt: Any, **options: Any) -> Any:  # noqa: ARG002 -- the seam's
        raise NotRunning("a contract check has no model for requests within requests; give the tool's own a stand-in")


class Calls(Desk):
    """A request whose calls a dispatcher runs. `began` and `running` are handlers, by their tools' names."""

    def __init__(self, bench: Bench) -> None:
        self.registry = ToolRegistry()
        super().__init__(bench, bench.patience_seconds, _View("", bench.deps, self.registry))
        self.bench = bench
        self.began: list[str] = []
        self.running: Counter[str] = Counter()
        self.dispatcher = ToolDispatcher(self.bus, self.registry, grace_seconds=bench.grace_seconds)

    def add(self, tools: Iterable[Tool[..., Any]]) -> None:
        """Have these tools' calls run."""
        for each in tools:
            self.registry.replace(self._watched(each))

    def _watched(self, tool: Tool[..., Any]) -> Tool[..., Any]:
        """The tool, with a handler that is counted. One that runs in a process has to stay as it is."""
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
        """Request an example."""
        return self.request(example.name, example.arguments, key=key)

    async def completed(self, example: ExampleCall, *, key: str = "", told: str = "") -> ToolCallCompleted | None:
        """Call what has to go well; None, written down, where it does not."""
        answer = await self.answer(self.ask(example, key=key))
        if isinstance(answer, ToolCallCompleted):
            return answer
        self.bench.fail(f"the call of {example.name}{told}", "a result", said(answer))
        return None

    async def is_quiet(self) -> bool:
        """Whether within the grace no handler runs any more, and no thread of one.

        A thread has the grace in real seconds, too: a loop in virtual time does not wait for it.
        """
        pause = _POLL_SECONDS
        over_at = time.monotonic() + self.bench.grace_seconds
        with anyio.move_on_after(self.bench.grace_seconds):
            while self.is_busy():  # nothing tells when a thread has ended that was given up
                await anyio.sleep(pause)
                pause = min(2 * pause, _LONGEST_POLL_SECONDS)
        while self.dispatcher.statistics().threads and time.monotonic() < over_at:
            time.sleep(_POLL_SECONDS)  # noqa: ASYNC251 -- see above
            await anyio.lowlevel.checkpoint()
        return not self.is_busy()

    def is_busy(self) -> bool:
        """Whether a handler runs, or a thread of one."""
        statistics = self.dispatcher.statistics()
        return bool(statistics.running or statistics.overdue or +self.running)


class Bench(Ledger):
    """What a check of tools has: the tools, examples, and a list of failures."""

    def __init__(
        self, examples: Sequence[ExampleCall], *, deps: Any, grace_seconds: float, patience_seconds: float
    ) -> None:
        super().__init__()
        self.tools: tuple[Tool[..., Any], ...] = ()
        self.examples = tuple(examples)
        self.deps = deps
        self.grace_seconds = grace_seconds
        self.patience_seconds = patience_seconds

    def runs_here(self, tool: Tool[..., Any]) -> bool:
        """Whether a dispatcher runs its calls: no control tool, and none that somebody else answers."""
        return not (tool.spec.control or tool.spec.external)

    @asynccontextmanager
    async def calls(self, tools: Iterable[Tool[..., Any]] | None = None) -> AsyncGenerator[Calls]:
        """A request whose calls of the tools are run in the block."""
        calls = Calls(self)
        calls.add(self.tools if tools is None else tools)
        try:
            async with calls.dispatcher:
                yield calls
        finally:
            calls.leave()


class ToolsetBench(Bench):
    """What a check of a toolset has beside: how to make one."""

    def __init__(self, make: MakeToolset, examples: Sequence[ExampleCall], **options: Any) -> None:
        super().__init__(examples, **options)
        self.make = make

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[OpenToolset]:
        """A toolset that is open in the block."""
        toolset = self.make()
        async with _as_manager(toolset):
            yield toolset

    async def work(self, tools: Iterable[Tool[..., Any]], told: str = "") -> bool:
        """Whether the first example goes well with these tools; written down, where it does not."""
        async with self.calls(tools) as calls:
            return await calls.completed(self.examples[0], told=told) is not None


def _as_manager(toolset: OpenToolset) -> AbstractAsyncContextManager[Any]:
    manager: Any = toolset
    return manager


def said(answer: Terminal) -> str:
    """An answer for a report."""
    if isinstance(answer, ToolCallFailed):
        return f"a failure, {answer.reason}: {answer.error}"
    return f"a result: {answer.content}"


def in_words(answer: Terminal) -> bool:
    """Whether it is a failure that says why, and no internal error."""
    return isinstance(answer, ToolCallFailed) and answer.error not in ("", _INTERNAL)


def fits(schema: Mapping[str, Any], value: Any) -> str:
    """What of a value breaks a schema; empty where nothing does, where that is no schema, and without the library."""
    try:
        json_schema_validator(dict(schema))(value)
    except InvalidArguments as exc:
        return str(exc)
    except ConfigurationError:  # the library is not installed, or the schema is broken, which is another check's
        return ""
    return ""


def why_no_schema(schema: Mapping[str, Any]) -> str:
    """What is wrong with a schema as such; empty where nothing is, or where the library for it is not installed."""
    try:
        json_schema_validator(dict(schema))
    except MissingExtra:
        return ""
    except ConfigurationError as exc:
        return str(exc)
    return ""


def open_files() -> Counter[str]:
    """The files that this process has open, each as often as it has; empty where the platform does not tell."""
    found: Counter[str] = Counter()
    try:
        handles = os.listdir("/proc/self/fd")  # noqa: PTH208 -- of links that may be gone when they are looked at
    except OSError:
        return found
    for each in handles:
        try:
            target = os.readlink(f"/proc/self/fd/{each}")  # noqa: PTH115 -- as above
        except OSError:  # the one with which they were listed
            continue
        if target.endswith(" (deleted)") or (target.startswith("/") and Path(target).is_file()):
            found[target] += 1
    return found


async def until(moment: int | None) -> None:
    """Let a call come to a moment: give way so many times, or, for None, wait a little."""
    if moment is None:
        await anyio.sleep(_LATER_SECONDS)
    else:
        await steps(moment)


async def steps(count: int) -> None:
    """Give way so many times."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


def key_of_its_own() -> str:
    """An idempotency key that no other call has."""
    return f"key {next(numbers)}"


tool_table: Checks[Bench] = Checks()
toolset_table: Checks[ToolsetBench] = Checks()
"""All checks by name."""
check = tool_table.check
toolset_check = toolset_table.check
