"""The `toolbus` command: ask about files, chat, resume interrupted requests, and inspect the store.

This package knows the command line, the terminal and the signals of the process, and makes a `Runtime` for each command
that needs one. No other package of the library imports it. Its invariants:

1. Importing this module imports almost nothing, so that `--version` and `--help` answer at once. Each command imports
   what it needs when it runs; an import at the top of this module would slow down every command.
2. Only the answer and data go to stdout. Progress, remarks, errors and the output of tools go to stderr; otherwise a
   pipe or a file that reads the answer would receive them too.
3. Text of models, tools and files is cleaned before it is shown, because an escape sequence in it could control the
   user's terminal.
4. The event loop runs in its own thread, and the main thread takes signals and reads prompts. A tool that blocks
   the loop would otherwise block Ctrl-C as well.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]

_THREAD_SECONDS = 0.2
"""The time that all remaining threads together have to end. A handler that hangs does not get more."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` (without the program's name) ask for, and return its exit status.

    Without `arguments`, the command line of this process is used. In that case the process may end here, so that no
    thread of an abandoned tool call keeps it alive. Raises nothing.

    Example:
        from toolbus.cli import main

        status = main(["events"])  # as the command `toolbus events`; 0 if all went well
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    status = _run(given)
    if arguments is None and _threads_are_left():
        _leave(status)
    return status


def _run(arguments: list[str]) -> int:
    try:
        if arguments in (["--version"], ["-V"]):
            from .._version import __version__  # noqa: PLC0415 -- see the module's docstring

            return _printed(f"toolbus {__version__}")
        from ._main import run  # noqa: PLC0415 -- see the module's docstring

        return run(arguments)
    except KeyboardInterrupt:
        # Ctrl-C was pressed before a request ran: while modules were imported, or at a prompt.
        return 130


def _printed(line: str) -> int:
    try:
        print(line, flush=True)
    except OSError as exc:
        from ._main import not_written  # noqa: PLC0415 -- see the module's docstring

        return not_written(exc)
    return 0


def _threads_are_left() -> bool:
    """Return whether threads that Python would wait for at exit are still running."""
    others = [each for each in threading.enumerate() if each is not threading.current_thread() and not each.daemon]
    for each in others:
        each.join(_THREAD_SECONDS / len(others))
    return any(each.is_alive() for each in others)


def _leave(status: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        # The stream may be gone or closed, or the process was started without it.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)
