"""An assistant for a graph: tools in several rounds, each step shown, and answers from the results of tools."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator, Sequence

import anyio

from toolbus import RequestResult
from toolbus.errors import ConfigurationError
from toolbus.testing import ScriptedProvider

from .assistant import ask, make_runtime
from .graph import cats_and_humans
from .script import play

DIALOGUES = [
    "What are some sample nodes?",
    "How many nodes are there?",
    "Find all cats and make them blue",
    "Style all dogs red",
    "Color all humans older than 60 green, and their edges",
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer the questions, and return the exit status: 0 if all have an answer."""
    options = _options(arguments)
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(errors="replace")  # a model may write what this terminal cannot show
    if reconfigure := getattr(sys.stdin, "reconfigure", None):
        reconfigure(errors="replace")  # the input may have another encoding
    try:
        status = 0 if all(each.ok for each in _answers(options)) else 1
        sys.stdout.flush()
        return status
    except ConfigurationError as wrong:
        print(f"graph_assistant: {wrong}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print()
        return 130
    except BrokenPipeError:  # nobody reads the output any more, and Python would complain when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as wrong:  # a full disk
        print(f"graph_assistant: {wrong}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2


def _answers(options: argparse.Namespace) -> list[RequestResult[None]]:
    graph = cats_and_humans()
    runtime = make_runtime(
        options.provider or ScriptedProvider(play),
        graph,
        max_rounds=options.max_rounds,
        max_result_chars=options.max_result_chars,
        include_data=not options.no_data,
    )
    who = options.provider or "a script, not a language model (--provider NAME asks one)"
    print(f"A graph of {len(graph.nodes)} nodes and {len(graph.edges)} edges. Model: {who}.")
    if not options.chat:
        return anyio.run(ask, runtime, _announced(DIALOGUES if options.ask is None else [options.ask]))
    # input() blocks, so each question gets its own event loop. The runtime remembers the conversation.
    return [each for typed in _typed() for each in anyio.run(ask, runtime, [typed], print, "chat")]


def _announced(questions: Sequence[str]) -> Iterator[str]:
    for question in questions:
        print(f"\nYou: {question}")
        yield question


def _typed() -> Iterator[str]:
    """Yield the lines that the user types, until the end of the input."""
    print("Ask about the graph; Ctrl-D ends it.")
    try:
        while True:
            if line := input("\nYou: ").strip():
                yield line
    except EOFError:
        print()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="graph_assistant", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--ask", metavar="QUESTION", help="one question instead of the dialogues")
    what.add_argument("--chat", action="store_true", help="type questions, one conversation, until Ctrl-D")
    parser.add_argument("--provider", metavar="NAME", help="a real model, such as openai:gpt-5-mini or ollama:llama3.2")
    parser.add_argument("--max-rounds", type=int, default=5, metavar="N", help="replies with tool calls (default: 5)")
    parser.add_argument(
        "--max-result-chars",
        type=int,
        default=4_000,
        metavar="N",
        help="characters that are sent of one result (default: 4000, at least 200)",
    )
    parser.add_argument("--no-data", action="store_true", help="send the model only the messages of results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    logging.getLogger("toolbus").setLevel(logging.CRITICAL)  # the screen shows what it would log
    sys.exit(main())
