"""`toolbus chat`: one conversation, line by line."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TextIO

from ..events import new_id
from ._host import Host, Terminated
from ._narrator import Narrator
from ._prompt import read_line
from ._requests import opened, status_of, tell_ending
from ._screen import Screen, is_terminal

__all__ = ["chat"]

_PROMPT = "> "
_COMMAND = re.compile(r"/[a-z]+")
_HELP = """\
Type a question and press Enter. The conversation is remembered until you leave.
  /help     this text
  /quit     leave (Ctrl-D too)
  Ctrl-C    cancel the running answer"""


def chat(options: argparse.Namespace, screen: Screen, *, debug: bool) -> int:
    """Read lines and answer them until the end of input; the exit status. Raises `ConfigurationError`."""
    by_hand = is_terminal(sys.stdin)
    stdout = sys.stdout
    narrator = Narrator(screen, show_calls=not options.quiet)
    conversation_id = f"chat{new_id()}"
    status = 0
    with opened(options, screen, narrator, narrator.tick if screen.live else None) as open_:
        host = open_.host
        if by_hand and not options.quiet:
            screen.tell(f"toolbus chat with {open_.provider}; /help tells more, Ctrl-D leaves.")
        while True:
            try:
                line = _read_line(host, screen, stdout, by_hand=by_hand)
            except Terminated:
                return 143
            if line is None or line == "/quit":
                return status
            if not line or _is_command(line, screen):
                continue
            result = host.ask(line, conversation_id)
            tell_ending(result, screen, verbose=options.verbose, debug=debug)
            ended = status_of(result, host.signal)
            if ended == 143 or screen.failure is not None or (ended == 130 and not by_hand):
                return ended
            status = status or (0 if by_hand else ended)


def _is_command(line: str, screen: Screen) -> bool:
    """Whether the line was for us, and not for the model."""
    if not _COMMAND.fullmatch(line):
        return False
    screen.tell(_HELP if line == "/help" else f"There is no command {line}; /help lists them.")
    return True


def _read_line(host: Host, screen: Screen, stdout: TextIO, *, by_hand: bool) -> str | None:
    """The next line, stripped; None at the end of input. Ctrl-C at the prompt gives an empty one.

    Raises `Terminated`, and from a pipe `KeyboardInterrupt`.
    """
    try:
        with host.prompting():
            line = _prompt(screen, stdout) if by_hand else sys.stdin.readline()
    except EOFError:
        line = ""
    except KeyboardInterrupt:
        if not by_hand:
            raise
        screen.tell("")
        return ""
    if not line:
        if by_hand:
            screen.tell("")  # the shell's prompt begins on a line of its own
        return None
    return line.encode("utf-8", "surrogateescape").decode("utf-8", "replace").strip()


def _prompt(screen: Screen, stdout: TextIO) -> str:
    screen.said = False  # an answer begins right below its question
    return read_line(screen, stdout, _PROMPT)
