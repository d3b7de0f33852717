"""An assistant for an issue tracker: its conversations are documents in MongoDB, and continue with all tool results."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from uuid import uuid4

import anyio
import httpx2
from pymongo.errors import PyMongoError

from toolbus.errors import ConfigurationError, StoreError
from toolbus.stores import MongoStore

from .assistant import Application
from .chat import chat, typed_lines
from .database import documents
from .script import scripted_model
from .services import mongo_server, serve_tracker, tracker_in_a_thread
from .tour import Tour, TurnFailed

_DATABASE = "ticket_assistant"
_LAST_PORT = 65_535


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the flags select, and return the exit status."""
    given = _parser().parse_args(arguments)
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark
    status = 0
    try:
        if given.serve is not None:
            serve_tracker(given.serve)
        else:
            _run(given)
    except* TurnFailed:
        status = 1
    except* KeyboardInterrupt:
        print()
        status = 130
    except* BrokenPipeError:  # nobody reads the output any more, and Python would complain when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    except* (ConfigurationError, StoreError, PyMongoError, OSError) as wrong:
        print(f"ticket_assistant: {_first(wrong)}", file=sys.stderr)
        status = 2
    return status


def _first(raised: BaseException) -> BaseException:
    """The error itself, without the exception groups around it."""
    inner: Sequence[BaseException] = getattr(raised, "exceptions", ())
    return _first(inner[0]) if inner else raised


def _run(given: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        service = _reached(given.service) if given.service else stack.enter_context(tracker_in_a_thread())
        _talk(given, service, given.mongo or stack.enter_context(mongo_server()))


def _reached(service: str) -> str:
    """The URL, if a tracker answers there."""
    try:
        httpx2.head(service, trust_env=False)
    except (httpx2.RequestError, httpx2.InvalidURL) as exc:
        raise ConfigurationError(f"there is no issue tracker at {service}: {exc}") from exc
    return service


def _talk(given: argparse.Namespace, service: str, mongo: str) -> None:
    store = partial(MongoStore, mongo, _DATABASE)
    application = Application(given.provider or scripted_model(), store, service)
    conversation_id = given.conversation or uuid4().hex[:8]
    model = given.provider or "a script, not a language model (--provider NAME asks one)"
    print(f"Tracker: {service}. Model: {model}.")
    if given.chat:
        talk = partial(chat, application, lambda: documents(mongo, _DATABASE, conversation_id), typed_lines())
    else:
        talk = Tour(application, mongo, _DATABASE).run
    anyio.run(talk, conversation_id, backend=given.backend)
    if given.mongo:
        print(f"\nSaved. To continue, pass the same --mongo with --chat --conversation {conversation_id}")


def _port(given: str) -> int:
    """Read a port; 0 is any free one."""
    if not given.isdigit() or int(given) > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{given!r} is not a port; pass a number up to {_LAST_PORT}")
    return int(given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ticket_assistant", description=__doc__)
    parser.add_argument("--chat", action="store_true", help="type your own questions, instead of the tour")
    parser.add_argument("--provider", metavar="NAME", help="a real model, such as openai:gpt-5-mini or ollama:llama3.2")
    parser.add_argument("--mongo", metavar="URL", help="your own MongoDB, such as mongodb://127.0.0.1:27017")
    parser.add_argument("--conversation", metavar="ID", help="continue this conversation, or begin one with this id")
    parser.add_argument("--service", metavar="URL", help="a tracker that runs elsewhere, for example with --serve")
    parser.add_argument("--serve", metavar="PORT", type=_port, help="only serve the tracker, at this port")
    parser.add_argument("--backend", choices=["asyncio", "trio"], default="asyncio", help="the event loop (asyncio)")
    return parser


if __name__ == "__main__":
    logging.getLogger("toolbus").setLevel(logging.CRITICAL)  # the screen shows what it would log
    sys.exit(main())
