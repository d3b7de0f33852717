"""The `toolbus` command on a terminal, as a program of `support.forked`.

    forked.Process(command_on_terminal.main, TERMINAL, FOLDER, ENVIRONMENT, ["ask", "q"])

It writes a line once it has opened the terminal. The command imports most modules only when it needs them, so this
module imports them before the fork.
"""
# ruff: noqa: F401
# pyright: reportPrivateUsage=false, reportUnusedImport=false

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import toolbus.providers.scripted
from toolbus.cli import main as run_command
from toolbus.cli._commands import ask, chat


def main(terminal: str, folder: str, environment: Mapping[str, str], arguments: Sequence[str]) -> None:
    file = os.open(terminal, os.O_RDWR)  # Thus, it controls this process, which leads a session.
    os.write(1, b"opened\n")
    for standard in (0, 1, 2):
        os.dup2(file, standard)
    os.close(file)
    sys.stdin = os.fdopen(0, encoding="utf-8")
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", buffering=1)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.exit(run_command(arguments))
