"""The command `toolbus chat`: one conversation, line by line."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TextIO

from ...core.plain_text import one_line
from ...errors import ConfigurationError
from ...events import new_id
from .._host import Host, Terminated
from .._requests import Configured, opened, report_ending, status_of
from .._terminal.progress import Narrator
from .._terminal.prompt import read_line
from .._terminal.screen import Screen, is_terminal

_PROMPT = "> "
_COMMAND = re.compile(r"/[a-z]+")
_HELP = """\
Type a question and press Enter. The model remembers the conversation.
  /help     show this text
  /quit     leave (or press Ctrl-D)
  Ctrl-C    cancel the running answer"""


def chat(options: argparse.Namespace, screen: Screen) -> int:
    """Read lines and answer them until the end of input, and return the exit status. Raises `ConfigurationError`."""
    by_hand = is_terminal(sys.stdin)
    narrator = Narrator(screen, show_calls=not options.quiet)
    with opened(options, screen, narrator, narrator.tick if screen.live else None) as (host, found):
        if by_hand and not options.quiet:
            screen.report(f"toolbus chat with {found.provider}; /help lists the commands, Ctrl-D leaves.")
            _show_continued(found, screen)
        conversation = _Conversation(host, found, options, screen)
        try:
            return conversation.run(by_hand=by_hand)
        finally:
            conversation.show_how_to_continue()


class _Conversation:
    """One conversation with the user, from the first prompt to the end of input."""

    def __init__(self, host: Host, found: Configured, options: argparse.Namespace, screen: Screen) -> None:
        self._host = host
        self._kept = found.kept
        self._options = options
        self._screen = screen
        self._stdout = found.stdout
        self._conversation_id = found.conversation_id or f"chat{new_id()}"
        self._is_kept = False

    def run(self, *, by_hand: bool) -> int:
        """Ask line by line until the end of input, and return the exit status."""
        screen, host = self._screen, self._host
        status = 0
        while True:
            try:
                line = _read_line(host, screen, self._stdout, by_hand=by_hand)
            except Terminated:
                return 143
            if line is None or line == "/quit":
                return status
            if not line or _is_command(line, screen):
                continue
            result = host.ask(line, self._conversation_id)
            self._is_kept = self._is_kept or result.journaled
            report_ending(result, screen, self._options, kept=self._kept)
            ended = status_of(result, host.signal)
            if ended == 143 or screen.failure is not None or (ended == 130 and not by_hand):
                return ended
            status = status or (0 if by_hand else ended)

    def show_how_to_continue(self) -> None:
        """Show the command that continues this conversation, if the conversation is kept."""
        kept = self._kept
        if kept is None or not self._is_kept or self._options.quiet or self._screen.failure is not None:
            return
        from shlex import quote  # noqa: PLC0415 -- needs `re`, and is seldom wanted

        typed = f"toolbus chat --continue {quote(self._conversation_id)}{kept.location.options}"
        self._screen.remark(one_line(f"to continue: {typed}"))


def _show_continued(found: Configured, screen: Screen) -> None:
    conversation = None if found.kept is None else found.kept.conversation
    if conversation is not None:
        from .._open_store import ago  # noqa: PLC0415 -- imports the database driver, which is imported by now

        messages = f"{conversation.message_count} messages, the newest {ago(conversation.updated_at)}"
        screen.report(one_line(f'Continuing "{conversation.title}" ({messages}).'))


def _is_command(line: str, screen: Screen) -> bool:
    """Carry out a line such as /help, and return True; return False for a line that is for the model."""
    if not _COMMAND.fullmatch(line):
        return False
    screen.report(_HELP if line == "/help" else f"There is no command {line}; /help lists them.")
    return True


def _read_line(host: Host, screen: Screen, stdout: TextIO, *, by_hand: bool) -> str | None:
    """Read the next line, stripped; None at the end of input. Ctrl-C at the prompt gives an empty line.

    Raises `Terminated`, and from a pipe `KeyboardInterrupt`.
    """
    try:
        with host.prompting():
            line = _prompt(screen, stdout) if by_hand else _next_line()
    except EOFError:
        line = ""
    except OSError as exc:
        raise ConfigurationError(f"stdin cannot be read: {exc.strerror or exc}") from exc
    except KeyboardInterrupt:
        if not by_hand:
            raise
        screen.report("")
        return ""
    if not line:
        if by_hand:
            # With this, the shell's prompt begins on its own line.
            screen.report("")
        return None
    return line.encode("utf-8", "surrogateescape").decode("utf-8", "replace").strip()


def _next_line() -> str:
    stdin: TextIO | None = sys.stdin
    # A process may be started without stdin.
    return "" if stdin is None else stdin.readline()


def _prompt(screen: Screen, stdout: TextIO) -> str:
    # With this, an answer begins directly below its question.
    screen.said = False
    return read_line(screen, stdout, _PROMPT)
