"""What `ask`, `chat` and `resume` share: a runtime made of the options, and how an ending is told."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import os
import sys
import traceback
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TextIO

from ..core.limits import Limits
from ..core.plain_text import clean, one_line
from ..errors import ConfigurationError, StoreError
from ..events import Event
from ..request_result import RequestResult
from ..runtime import Runtime
from ._approval import arrange
from ._host import Host
from ._load import load_limits, load_provider, load_tools
from ._mcp import mcp_tools, warnings_told
from ._store_place import LEASE_SECONDS, place_of
from ._terminal.prompt import take_any_bytes
from ._terminal.screen import Screen
from ._terminal.tool_output import printed_apart

if TYPE_CHECKING:
    from ._open_store import Kept

__all__ = ["INSTRUCTIONS", "Opened", "ScreenHandler", "opened", "status_of", "tell_ending", "told_apart"]

INSTRUCTIONS = """\
You answer questions about the files of a workspace. Your tools read these files; nothing can be changed with them. \
Other tools may be offered beside them: use each for what its description says.

Search before you answer, and read the lines around what you find. Ask for several things in one turn where none needs \
another's result. Do not guess: say only what you have read, and where the files do not tell, say that.

Answer in the language of the question, briefly and in plain text. Behind each statement give the place that shows it, \
as path:line, and quote the line itself where its wording matters."""

_STATUS = {"completed": 0, "failed": 1, "stopped": 3}
_LIMITS = {each.name: each.default for each in dataclasses.fields(Limits)}
_RAISABLE = frozenset(name for name, default in _LIMITS.items() if not isinstance(default, (str, frozenset)))


@dataclasses.dataclass(slots=True)
class Opened:
    """A host that runs, what to call its provider, and what its requests are kept in, if they are."""

    host: Host
    provider: str
    kept: Kept | None = None

    @property
    def conversation_id(self) -> str | None:
        """The conversation to go on with."""
        conversation = None if self.kept is None else self.kept.conversation
        return None if conversation is None else conversation.conversation_id


@contextlib.contextmanager
def opened(
    options: argparse.Namespace, screen: Screen, show: Callable[[Event], None], tick: Callable[[], None] | None
) -> Generator[Opened]:
    """The host that the options ask for. What tools and their modules print goes to stderr: stdout is the answer's.

    Raises `ConfigurationError`.
    """
    with told_apart(options, screen) as stdout:
        given = {name: value for name, value in vars(options).items() if name in _LIMITS and value is not None}
        limits = load_limits(given, options.limit)
        tools = load_tools(options.dir, options.tools)
        provider, name, remark = load_provider(options.provider)
        if remark and not options.quiet:
            screen.tell(f"toolbus: {remark}")
        kept = _kept(options, screen, name)
        runtime = Runtime(
            provider,
            tools=tools,
            instructions=INSTRUCTIONS if options.instructions is None else options.instructions,
            limits=limits,
            store=None if kept is None else kept.store,
            lease_seconds=LEASE_SECONDS,
            # A store that nobody asked for must not cost the answer.
            on_store_failure="warn" if kept is not None and not kept.is_asked_for else "stop",
        )
        person = arrange(runtime, options, screen, stdout)
        quiet = options.quiet or options.log_level is not None  # then these warnings are among what is logged
        with contextlib.nullcontext() if quiet else warnings_told(screen):
            mcp = mcp_tools(options.mcp, tools)
            host = Host(runtime, screen, show, tick, person, _recorded(options, runtime, screen), before=mcp)
            with host:
                yield Opened(host, name, kept)


@contextlib.contextmanager
def told_apart(options: argparse.Namespace, screen: Screen) -> Generator[TextIO]:
    """Inside, what is printed and logged goes to stderr, cleaned. Gives stdout."""
    stdout = sys.stdout
    take_any_bytes(sys.stdin)
    with printed_apart(screen), _logging(options.log_level, screen):
        yield stdout


def _kept(options: argparse.Namespace, screen: Screen, provider: str) -> Kept | None:
    if place_of(options, os.environ) is None and options.continue_ is None:
        return None
    try:
        from ._open_store import kept_for  # noqa: PLC0415 -- imports a database
    except ImportError as exc:
        if options.store is not None or options.continue_ is not None:
            raise ConfigurationError(f"this Python has no SQLite, so nothing can be kept: {exc}") from exc
        return None
    command: dict[str, Any] = {"provider": provider, "dir": os.path.abspath(options.dir), "tools": options.tools}  # noqa: PTH100
    if options.mcp:
        command["mcp"] = options.mcp
    return kept_for(options, screen, command)


def _recorded(
    options: argparse.Namespace, runtime: Runtime, screen: Screen
) -> contextlib.AbstractContextManager[None] | None:
    if options.record is None:
        return None
    from ._recordings import recorded  # noqa: PLC0415 -- the testing kit, which most commands do not need

    return recorded(options, runtime, screen)


def status_of(result: RequestResult[Any], signal: int | None) -> int:
    """The exit status: see docs/reference/cli.md."""
    if result.outcome == "cancelled":
        return 128 + (signal or 2)
    return _STATUS[result.outcome]


def tell_ending(
    result: RequestResult[Any],
    screen: Screen,
    *,
    verbose: bool,
    debug: bool,
    kept: Kept | None = None,
    can_raise: bool = True,
) -> None:
    """Say on stderr how the request ended, unless it was answered; and whether what it is `kept` in failed.

    `can_raise` is whether the command takes limits.
    """
    if verbose:
        screen.tell(clean(result.timeline()))
    if debug:
        raised = [call.exception for call in result.tool_calls if call.exception is not None]
        for exc in [*raised, *([result.error] if result.error is not None else [])]:
            screen.tell(clean("".join(traceback.format_exception(exc))))
    if result.outcome == "failed":
        screen.tell(f"toolbus: failed: {one_line(str(result.error or result.reason))}")
    elif result.outcome == "cancelled" and screen.failure is None:
        screen.tell("toolbus: cancelled")
    elif result.outcome == "stopped":
        name = result.reason.partition("=")[0]
        by = " by a limit" if name in _LIMITS else ""  # else it is the model's own word
        hint = f"; raise it with --limit {name}=VALUE" if can_raise and name in _RAISABLE else ""
        screen.tell(f"toolbus: stopped{by}: {one_line(result.reason)}{hint}")
    if kept is not None and not result.journaled and not isinstance(result.error, StoreError):
        screen.tell(clean(f"toolbus: this is not kept: {kept.place.path} failed (--log-level warning says how)"))


# ------------------------------------------------------------------------------------------------ logging


class ScreenHandler(logging.Handler):
    """Writes records to stderr, between the other lines."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception:  # the arguments do not fit the message, say
            text = f"{record.levelname} {record.name}: {record.msg!r} with {record.args!r}"
        self._screen.tell(clean(text))


@contextlib.contextmanager
def _logging(level: str | None, screen: Screen) -> Generator[None]:
    """Wire logging to stderr. Without a level, toolbus's own records are left out: the screen shows as much."""
    root, ours = logging.getLogger(), logging.getLogger("toolbus")
    handler = ScreenHandler(screen)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before = (root.level, ours.level)
    root.setLevel(logging.WARNING if level is None else level.upper())
    ours.setLevel(logging.CRITICAL + 1 if level is None else logging.NOTSET)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before[0])
        ours.setLevel(before[1])
