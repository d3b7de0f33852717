"""Parts that `ask`, `chat` and `resume` share: a runtime built from the options, and the report of an ending."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
import traceback
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TextIO

from ..core.limits import Limits
from ..core.plain_text import clean, one_line
from ..errors import ConfigurationError, StoreError
from ..events import Event
from ..failures import classify, raised_at
from ..request_result import RequestResult
from ..runtime import Runtime
from ._approval import connect_approval
from ._host import Host
from ._load import load_limits, load_prices, load_provider, load_tools
from ._log_lines import log_shown, warnings_shown
from ._mcp import mcp_tools
from ._store_location import LEASE_SECONDS, location_of
from ._terminal.prompt import take_any_bytes
from ._terminal.screen import Screen
from ._terminal.tool_output import printed_apart

if TYPE_CHECKING:
    from ._open_store import OpenStore

INSTRUCTIONS = """\
You answer questions about the files of a workspace. Your tools read these files; nothing can be changed with them. \
Other tools may be offered beside them: use each for what its description says.

Search before you answer, and read the lines around what you find. Ask for several things in one turn where none needs \
another's result. Do not guess: say only what you have read, and where the files do not tell, say that.

Answer in the language of the question, briefly, in Markdown. After each statement give the line that shows it, as \
`path:line` in backticks, and quote the line itself where its wording matters."""

_STATUS = {"completed": 0, "failed": 1, "stopped": 3}
_LIMITS = {each.name: each.default for each in dataclasses.fields(Limits)}
_RAISABLE = frozenset(name for name, default in _LIMITS.items() if not isinstance(default, (str, frozenset)))


@contextlib.contextmanager
def opened(
    options: argparse.Namespace, screen: Screen, show: Callable[[Event], None], tick: Callable[[], None] | None
) -> Generator[tuple[Host, Configured]]:
    """Open the host that the options ask for, and give it with what it was made of. Raises `ConfigurationError`."""
    with configured(options, screen) as found:
        runtime = found.runtime
        person = connect_approval(runtime, options, screen, found.stdout)
        recorder = _recorded(options, runtime, screen)
        with Host(runtime, screen, show, tick, person, recorder, before=found.mcp) as host:
            yield host, found


@dataclasses.dataclass(slots=True)
class Configured:
    """A runtime that is not entered yet, the name of its provider, and what belongs to it.

    `mcp` has the servers of its tools, which are entered before it; `stdout` is the real one.
    """

    runtime: Runtime
    provider: str
    stdout: TextIO
    kept: OpenStore | None = None
    mcp: contextlib.AbstractAsyncContextManager[object] | None = None

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation to continue, or None."""
        conversation = None if self.kept is None else self.kept.conversation
        return None if conversation is None else conversation.conversation_id


@contextlib.contextmanager
def configured(options: argparse.Namespace, screen: Screen, **more: Any) -> Generator[Configured]:
    """Make the runtime that the options ask for; `more` are options of the runtime.

    The output of tools and their modules goes to stderr, because stdout is reserved for the answer. Raises
    `ConfigurationError`.
    """
    with output_on_stderr(options, screen) as stdout:
        given = {name: value for name, value in vars(options).items() if name in _LIMITS and value is not None}
        limits = load_limits(given, options.limit)
        prices = load_prices(options.price, limits)
        tools = load_tools(options.dir, options.tools)
        provider, name, remark = load_provider(options.provider)
        if remark and not options.quiet:
            screen.report(f"toolbus: {remark}")
        kept = _kept(options, screen, name)
        runtime = Runtime(
            provider,
            tools=tools,
            instructions=INSTRUCTIONS if options.instructions is None else options.instructions,
            limits=limits,
            prices=prices,
            store=None if kept is None else kept.store,
            lease_seconds=LEASE_SECONDS,
            # The default store may fail without ending the request, because the user did not ask for it.
            on_store_failure="warn" if kept is not None and not kept.is_asked_for else "stop",
            **more,
        )
        # With a log level, the warnings of MCP servers appear in the log.
        quiet = options.quiet or options.log_level is not None
        with contextlib.nullcontext() if quiet else warnings_shown(screen, "toolbus.mcp"):
            yield Configured(runtime, name, stdout, kept, mcp_tools(options.mcp, tools))


@contextlib.contextmanager
def output_on_stderr(options: argparse.Namespace, screen: Screen) -> Generator[TextIO]:
    """Inside, send printed text and log lines to stderr, cleaned. Gives the real stdout."""
    stdout = sys.stdout
    take_any_bytes(sys.stdin)
    with printed_apart(screen), log_shown(screen, options.log_level):
        yield stdout


def _kept(options: argparse.Namespace, screen: Screen, provider: str) -> OpenStore | None:
    if location_of(options, os.environ) is None and options.continue_ is None:
        return None
    try:
        from ._open_store import SERVED, open_store_for  # noqa: PLC0415 -- imports a database
    except ImportError as exc:
        if options.store is not None or options.continue_ is not None:
            raise ConfigurationError(f"this Python has no SQLite, so nothing can be kept: {exc}") from exc
        return None
    command: dict[str, Any] = {"provider": provider, "dir": os.path.abspath(options.dir), "tools": options.tools}  # noqa: PTH100
    if options.mcp:
        command["mcp"] = options.mcp
    if options.command == "serve":
        command[SERVED] = True
    return open_store_for(options, screen, command)


def _recorded(
    options: argparse.Namespace, runtime: Runtime, screen: Screen
) -> contextlib.AbstractAsyncContextManager[None] | None:
    if options.record is None:
        return None
    from ._recordings import recorded  # noqa: PLC0415 -- the testing kit, which most commands do not need

    return recorded(options, runtime, screen)


def status_of(result: RequestResult[Any], signal: int | None) -> int:
    """Return the exit status: see docs/reference/cli.md."""
    if result.outcome == "cancelled":
        return 128 + (signal or 2)
    return _STATUS[result.outcome]


def report_ending(
    result: RequestResult[Any],
    screen: Screen,
    options: argparse.Namespace,
    *,
    kept: OpenStore | None = None,
    can_raise: bool = True,
) -> None:
    """Report on stderr how the request ended, unless it was answered, and whether its store (`kept`) has failed.

    `can_raise` says whether the command has options for limits.
    """
    if options.verbose:
        screen.report(clean(result.timeline()))
    raised = [(call.name, call.exception) for call in result.tool_calls if call.exception is not None]
    if options.debug:
        for exc in [*(exc for _, exc in raised), *([result.error] if result.error is not None else [])]:
            screen.report(clean("".join(traceback.format_exception(exc))))
    else:
        # The model reads only that the tool failed, so nobody else reports a bug of the tool's author.
        for bug in dict.fromkeys(f"{name} raised {raised_at(exc)}" for name, exc in raised if not classify(exc).shown):
            screen.report(f"toolbus: {one_line(bug)}; --debug shows the traceback")
    if result.outcome == "failed":
        screen.report(f"toolbus: failed: {one_line(str(result.error or result.reason))}")
    elif result.outcome == "cancelled" and screen.failure is None:
        screen.report("toolbus: cancelled")
    elif result.outcome == "stopped":
        name = result.reason.partition("=")[0]
        # A reason that is not the name of a limit was given by the model.
        by = " by a limit" if name in _LIMITS else ""
        hint = f"; raise it with --limit {name}=VALUE" if can_raise and name in _RAISABLE else ""
        screen.report(f"toolbus: stopped{by}: {one_line(result.reason)}{hint}")
    if kept is not None and not result.journaled and not isinstance(result.error, StoreError):
        screen.report(clean(f"toolbus: this is not kept: {kept.location.path} failed (--log-level warning says how)"))
