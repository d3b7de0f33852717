"""`toolbus ask`: one question, one answer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, TextIO

from ...errors import ConfigurationError
from ...events import Event, encode
from ...records import json_bytes
from ...request_result import RequestResult
from .._requests import opened, report_ending, status_of
from .._terminal.progress import Narrator
from .._terminal.screen import Screen, is_terminal
from .._terminal.text import escape_json


def ask(options: argparse.Namespace, screen: Screen) -> int:
    """Ask the question, show the answer, and return the exit status.

    Raises `ConfigurationError` before the model is asked.
    """
    _separate_question_from_id(options)
    question = read_question(options.question, sys.stdin)
    as_data: bool = options.json or options.events
    # On a terminal, the printed events already show the progress.
    on_top = options.events and is_terminal(sys.stdout)
    narrator = Narrator(screen, show_text=not as_data, show_calls=not (options.quiet or on_top))
    show = _both(narrator, _writer(screen)) if options.events else narrator
    tick = narrator.tick if screen.live else None
    with opened(options, screen, show, tick) as (host, found):
        result = host.ask(question, found.conversation_id)
    if options.json:
        screen.data(as_json(result))
    report_ending(result, screen, options, kept=found.kept)
    return status_of(result, host.signal)


def _separate_question_from_id(options: argparse.Namespace) -> None:
    """Treat the text in `toolbus ask --continue "And where?"` as the question, because an id has no spaces."""
    if options.question is None and options.continue_ and " " in options.continue_.strip():
        options.question, options.continue_ = options.continue_, ""


def read_question(given: str | None, stdin: TextIO | None) -> str:
    """Return the question, from the command line or from `stdin`. Raises `ConfigurationError` without a question."""
    if given is None or given == "-":
        if stdin is None or (given is None and is_terminal(stdin)):
            raise ConfigurationError('there is no question: toolbus ask "QUESTION" (see toolbus ask --help)')
        try:
            given = _read(stdin)
        except OSError as exc:
            raise ConfigurationError(f"the question cannot be read from stdin: {exc.strerror or exc}") from exc
    question = given.encode("utf-8", "surrogateescape").decode("utf-8", "replace").strip()
    if not question:
        raise ConfigurationError('the question is empty: toolbus ask "QUESTION" (see toolbus ask --help)')
    return question


def _read(stdin: TextIO) -> str:
    raw = getattr(stdin, "buffer", None)
    return stdin.read() if raw is None else raw.read().decode("utf-8", "replace")


def _writer(screen: Screen) -> Callable[[Event], None]:
    def write(event: Event) -> None:
        screen.data(escape_json(encode(event, default=str).decode()))

    return write


def _both(first: Callable[[Event], None], second: Callable[[Event], None]) -> Callable[[Event], None]:
    def show(event: Event) -> None:
        first(event)
        second(event)

    return show


def as_json(result: RequestResult[Any]) -> str:
    """Return the result as one line of JSON. docs/reference/cli.md describes its fields."""
    error = str(result.error) if result.error is not None else None
    fields = {"outcome": result.outcome, "reason": result.reason, "error": error, **result.summary()}
    return escape_json(json_bytes(fields, str).decode())
