"""The `toolbus` command: ask about files, chat, go on with what was cut off, look into what is kept.

Importing this imports next to nothing: `--version` and `--help` must answer at once. What runs a request is imported by
the command that runs one. Nothing in the library imports this package.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]

_THREAD_SECONDS = 0.2  # for threads that are about to end; a handler that hangs gets no more


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` (without the program's name) ask for, and return its exit status.

    Without `arguments` it is this process's own command line: then the process may end here, so that no thread of a
    tool that was given up keeps it alive. Raises nothing.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    status = _run(given)
    if arguments is None and _threads_are_left():
        _leave(status)
    return status


def _run(arguments: list[str]) -> int:
    try:
        if arguments in (["--version"], ["-V"]):
            return _printed(f"toolbus {_version()}")
        from ._main import run  # noqa: PLC0415 -- see the module's docstring

        return run(arguments)
    except KeyboardInterrupt:  # before a request runs: while modules are imported, or at a prompt
        return 130


def _printed(line: str) -> int:
    try:
        print(line, flush=True)
    except OSError as exc:
        from ._main import not_written  # noqa: PLC0415 -- see the module's docstring

        return not_written(exc)
    return 0


def _version() -> str:
    """The version of what is installed. Asking importlib.metadata takes four times as long as starting Python."""
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208 -- pathlib costs more than the rest of this
        except OSError:
            continue
        for name in names:
            if name.startswith("toolbus-") and name.endswith(".dist-info"):
                return name[len("toolbus-") : -len(".dist-info")]
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("toolbus")
    except PackageNotFoundError:
        return "(not installed)"


def _threads_are_left() -> bool:
    """Whether threads that Python would wait for at exit are still running."""
    others = [each for each in threading.enumerate() if each is not threading.current_thread() and not each.daemon]
    for each in others:
        each.join(_THREAD_SECONDS / len(others))
    return any(each.is_alive() for each in others)


def _leave(status: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # gone, closed, or never there
            continue
    os._exit(status)
