"""The way from the command line to a command and its exit status. Every error becomes one line on stderr here."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from pathlib import Path

from ..core.plain_text import clean, one_line
from ._arguments import parse
from ._terminal.screen import Screen, open_screen

FAILED = 1
"""The exit status of a command that did not succeed."""
USAGE = 2
_COMMANDS = {
    "ask": "._commands.ask:ask",
    "chat": "._commands.chat:chat",
    "serve": "._commands.serve:serve",
    "resume": "._commands.resume:resume",
    "status": "._commands.status:show_status",
    "status --url": "._commands.process_status:show_process_status",
    "inspect": "._commands.inspect:inspect",
    "store": "._commands.store:run_store_command",
    "worker": "._commands.worker:work",
    "tools": "._commands.listing:list_tools",
    "events": "._commands.listing:list_events",
    "replay": "._recordings:replay_files",
    "simulate": "._commands.simulate:run_simulation",
}
"""The function of each command, by the module that is imported for it: help must not wait for the library."""


def run(arguments: list[str]) -> int:
    """Run the command that `arguments` ask for, and return the exit status. Raises only `KeyboardInterrupt`."""
    try:
        options = parse(arguments)
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else USAGE
    except OSError as exc:
        # The help text could not be written.
        return not_written(exc)
    if options.version:
        from . import main  # noqa: PLC0415 -- the package imports this module

        return main(["--version"])
    if options.command is None:
        *names, last = (name for name in _COMMANDS if " " not in name)
        print(f"toolbus: name a command: {', '.join(names)} or {last} (see toolbus --help)", file=sys.stderr)
        return USAGE
    screen = open_screen(sys.stdout, sys.stderr, os.environ)
    return _ended(_guarded(options, screen), screen)


def _guarded(options: argparse.Namespace, screen: Screen) -> int:
    debug: bool = getattr(options, "debug", False) or os.environ.get("TOOLBUS_DEBUG", "") not in {"", "0"}
    options.debug = debug
    from ..errors import ConfigurationError, ToolbusError  # noqa: PLC0415 -- help must not wait for the library

    try:
        return _command(options, screen)
    except ConfigurationError as exc:
        return _report(exc, screen, USAGE, debug=debug)
    except ToolbusError as exc:
        return _report(exc, screen, FAILED, debug=debug)
    except Exception as exc:
        # This is a bug of toolbus. One line reports it; the traceback is shown only on request.
        if not debug:
            screen.report(
                f"toolbus: internal error: {type(exc).__name__}: {one_line(str(exc))}; "
                "--debug shows where, and a report is welcome"
            )
        return _report(exc, screen, FAILED, debug=debug, say=debug)


def _command(options: argparse.Namespace, screen: Screen) -> int:
    is_process: bool = options.command == "status" and options.url is not None
    module, _, function = _COMMANDS["status --url" if is_process else options.command].partition(":")
    return getattr(importlib.import_module(module, __package__), function)(options, screen)


def _report(exc: Exception, screen: Screen, status: int, *, debug: bool, say: bool = True) -> int:
    if debug:
        import traceback  # noqa: PLC0415

        screen.report(clean("".join(traceback.format_exception(exc))))
    if say:
        screen.report(f"toolbus: {one_line(str(exc))}")
    return status


def _ended(status: int, screen: Screen) -> int:
    """Return `status`, unless stdout failed. A closed pipe is not reported."""
    failure = screen.failure
    return status if failure is None else not_written(failure)


def not_written(failure: OSError) -> int:
    """Return the exit status after stdout failed, and report the reason unless it is a pipe that nobody reads."""
    _forget_stdout()
    if isinstance(failure, BrokenPipeError):
        return 141
    Screen(None, sys.stderr).report(f"toolbus: the output could not be written: {failure.strerror or failure}")
    return FAILED


def _forget_stdout() -> None:
    """Redirect stdout to the null device: Python flushes stdout once more when it exits, and would report an error."""
    # stdout may be no file, or not exist.
    with contextlib.suppress(OSError, ValueError, AttributeError), Path(os.devnull).open("wb") as null:
        os.dup2(null.fileno(), sys.stdout.fileno())
