"""An assistant for a source tree in the terminal: answers are updated in place, tool calls are shown, Escape cancels.

Without `--provider`, a script answers instead of a language model: it asks for the code that fits the question, and
shows the best match.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio

import toolbus
from toolbus.errors import ToolbusError
from toolbus.toolsets.code_context import CodeIndex

from . import plain
from .assistant import make_runtime
from .scripted import scripted_model


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer as the arguments ask, and return the exit status."""
    options = _parser().parse_args(arguments)
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark
    question: str | None = options.ask
    if question is None and not all(each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr)):
        return _fail('the screen needs a terminal; for pipes there is --ask "QUESTION"')
    if question is not None and not question.strip():
        return _fail('the question is empty: --ask "QUESTION"')
    directory: Path = options.dir
    try:
        index = None if options.no_index else CodeIndex(directory, rerank=False if options.words_only else None)
        provider = options.provider or scripted_model(0 if question else 0.02)
        runtime = make_runtime(provider, directory, index)
        if question is not None:
            turn = anyio.run(plain.ask, runtime, index, question.strip())
            return 0 if turn.status == "completed" else 1
        from .screen import show  # noqa: PLC0415 -- Textual is not needed for anything else

        model = options.provider or "a script, not a language model (--provider NAME asks one)"
        return anyio.run(show, runtime, index, f"Model: {model}.\n\n{directory}")
    except ToolbusError as wrong:
        return _fail(str(wrong))
    except KeyboardInterrupt:
        print()
        return 130
    except BrokenPipeError:  # nobody reads the output any more, and Python would complain when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as wrong:  # a full disk
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _fail(str(wrong))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="code_assistant", description="Ask about a source tree.")
    sources = Path(toolbus.__file__).parent
    parser.add_argument("--dir", type=Path, metavar="PATH", default=sources, help="the sources (toolbus's own)")
    parser.add_argument("--provider", metavar="NAME", help="a real model, such as openai:gpt-5-mini or ollama:llama3.2")
    parser.add_argument("--ask", metavar="QUESTION", help="answer one question, without a screen")
    parser.add_argument("--words-only", action="store_true", help="search by words, without the model for the order")
    parser.add_argument("--no-index", action="store_true", help="show what happens when a tool fails")
    return parser


def _fail(problem: str) -> int:
    print(f"code_assistant: {problem}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    logging.getLogger("toolbus").setLevel(logging.CRITICAL)  # the screen shows what it would log
    sys.exit(main())
