"""A chat that shows live what it is doing, and why it stopped: a tour of nine endings, over Ollama or a stub of it."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import anyio

from toolbus import RequestResult, Runtime
from toolbus.errors import ConfigurationError

from .assistant import LIMITS, ask, make_runtime
from .scenarios import SCENARIOS, Scenario
from .screen import Screen, open_screen
from .stub import MODEL, QUICK, stub_ollama
from .tools import Backend

_WORD_SECONDS = 0.05  # the time that the stub takes for each word
_STATUS = {"completed": 0, "stopped": 0, "cancelled": 130, "failed": 1}  # a limit is not a failure of the program


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the flags."""
    names = "\n".join(f"  {each.name:15} {each.shows}" for each in SCENARIOS.values())
    parser = argparse.ArgumentParser(
        prog="status_chat",
        description=__doc__,
        epilog=f"scenarios:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--scenario", metavar="NAME", choices=SCENARIOS, help="one scenario, instead of all of them")
    what.add_argument("--chat", action="store_true", help="type your own questions, until Ctrl-D")
    parser.add_argument("--provider", metavar="NAME", help="a real model, such as openai:gpt-5-mini or ollama:llama3.2")
    parser.add_argument("--quick", metavar="NAME", help="the model for the status line (default: that of --provider)")
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="the time of a request (600; 3 in the time-out scenario)"
    )
    parser.add_argument(
        "--pace", type=float, default=1.0, metavar="FACTOR", help="slows the stub and the tools down; 0 is fastest"
    )
    parser.add_argument("--timeline", action="store_true", help="after each answer, list its calls with their times")
    parser.add_argument("--debug", action="store_true", help="log what toolbus does, on standard error")
    given = parser.parse_args(arguments)
    if not 0 <= given.pace <= 10:
        parser.error(f"--pace is {given.pace:g}; pass 0 to 10")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the flags select, and return the exit status."""
    given = parse(arguments)
    out = sys.stdout
    if reconfigure := getattr(out, "reconfigure", None):
        reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark
    if reconfigure := getattr(sys.stdin, "reconfigure", None):
        reconfigure(errors="replace")  # the input may have another encoding
    if given.debug:
        logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
        logging.getLogger("toolbus").setLevel(logging.DEBUG)
    try:
        with contextlib.ExitStack() as stack:
            if given.provider is None:
                stack.enter_context(stub_ollama(_WORD_SECONDS * given.pace))
            status = _Program(given, open_screen(out)).run()
        sys.stdout.flush()
        return status
    except ConfigurationError as exc:
        print(f"status_chat: {exc}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print()
        return 130
    except BrokenPipeError:  # nobody reads the output any more, and Python would complain when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        return 141
    except OSError as exc:  # a full disk
        print(f"status_chat: {exc}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        return 2


class _Program:
    """The tour, one scenario, or the chat."""

    def __init__(self, given: argparse.Namespace, screen: Screen) -> None:
        self._given = given
        self._screen = screen
        self._provider = given.provider or MODEL
        self._quick = given.quick or given.provider or QUICK
        self._model = f"Model: {given.provider or 'a script, not a language model (--provider NAME asks one)'}."

    def run(self) -> int:
        """Run all of it, and return the exit status."""
        given = self._given
        if given.chat:
            return self._chat()
        return self._tour([SCENARIOS[given.scenario]] if given.scenario else SCENARIOS.values())

    def _tour(self, scenarios: Iterable[Scenario]) -> int:
        """Run the scenarios until one cannot reach its model, and print how each of them ended."""
        lines: list[str] = []
        status = 0
        for each in scenarios:
            runtime = self._make(each.timeout_seconds)
            if not lines:
                self._screen.show(f"{self._model}\n")
            self._screen.show(f"{each.name}: {each.shows}\n> {each.question}")
            result = self._ask(runtime, each.question)
            lines.append(f"{each.name:15} {result.outcome:10} {result.explanation}".rstrip())
            status = _STATUS[result.outcome]
            if status:
                break
        if len(lines) > 1:
            self._screen.show("\n".join(["How they ended:", *lines]))
        return status

    def _chat(self) -> int:
        """Run one conversation, line by line."""
        runtime = self._make(LIMITS.timeout_seconds)
        self._screen.show(f"{self._model}\nType to it; Ctrl-C stops an answer, Ctrl-D ends the chat.")
        while True:
            try:
                question = input("> " if sys.stdin.isatty() else "").strip()
            except EOFError:
                self._screen.show()
                return 0
            if question:
                with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C stops the answer, not the chat
                    self._ask(runtime, question, conversation_id="chat")

    def _make(self, seconds: float) -> Runtime:
        """A runtime whose requests have `seconds`, unless a flag sets another time."""
        given = self._given
        return make_runtime(
            self._provider,
            self._quick,
            backend=Backend(seconds=0.5 * given.pace),
            timeout_seconds=seconds if given.timeout is None else given.timeout,
        )

    def _ask(self, runtime: Runtime, question: str, **options: str) -> RequestResult[Any]:
        result = anyio.run(partial(ask, runtime, question, self._screen, **options))
        if self._given.timeline:
            self._screen.show(f"\n{result.timeline()}")
        self._screen.show()
        return result


if __name__ == "__main__":
    # The screen shows what toolbus would log, unless --debug asks for the log.
    logging.getLogger("toolbus").setLevel(logging.CRITICAL)
    sys.exit(main())
