"""A game client: a model plays a game on an MCP server by itself, and you may type into the same conversation."""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.lowlevel

from toolbus.errors import ConfigurationError, StoreError
from toolbus.stores import SqliteStore
from toolbus.testing import ScriptedProvider
from toolbus.toolsets.mcp import McpServer

from . import player
from .client import play
from .screen import Screen


def usual_store() -> Path:
    """Return the default file of the store, and make its folder. Raises `OSError` and `RuntimeError`."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "toolbus"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "game_client.db"


async def typed_lines(source: int = 0) -> AsyncIterator[str]:
    """Yield the lines that are typed into a file (by its descriptor; stdin), until its end."""
    send, receive = anyio.create_memory_object_stream[str](100)
    token = anyio.lowlevel.current_token()

    # A separate thread reads, because a read cannot be cancelled, and nothing waits for the thread. It does not read
    # from sys.stdin, because the interpreter locks that when it ends.
    def read() -> None:
        with open(source, closefd=False, errors="replace") as stdin:
            try:
                for line in stdin:
                    if line.strip():
                        anyio.from_thread.run(send.send, line.strip(), token=token)
                anyio.from_thread.run(send.aclose, token=token)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, RuntimeError):
                return  # the reader of the lines has left

    threading.Thread(target=read, daemon=True).start()
    async with receive:
        async for line in receive:
            yield line


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser(prog="game_client", description=__doc__)
    parser.add_argument("--turns", type=int, default=None, metavar="N", help="turns of autoplay (15; with --chat 0)")
    parser.add_argument("--chat", action="store_true", help="continue with what you type, until Ctrl-D")
    parser.add_argument("--provider", metavar="NAME", help="a real model, such as openai:gpt-5-mini or ollama:llama3.2")
    parser.add_argument("--conversation", default="ada", metavar="NAME", help="the pilot, and the conversation (ada)")
    parser.add_argument("--store", type=Path, metavar="FILE", help="the file to save in (default: in the state folder)")
    parser.add_argument("--seed", type=int, default=7, metavar="N", help="which galaxy (7)")
    given = parser.parse_args(arguments)
    if given.turns is None:
        given.turns = 0 if given.chat else 15
    if given.turns < 0:
        parser.error(f"--turns is {given.turns}; pass 0 or more")
    if not given.conversation.strip() or len(given.conversation.split()) != 1:
        parser.error(f"--conversation is {given.conversation!r}; pass one word")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, and return the exit status."""
    given = parse(arguments)
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark
    password = secrets.token_hex(8)
    try:
        path: Path = given.store or usual_store()
        galaxy = path.absolute().with_name(f"{path.name}.galaxy-{given.seed}.json")
        server = McpServer(
            "game",
            command=sys.executable,
            args=[str(Path(__file__).with_name("server.py")), f"--seed={given.seed}", f"--save={galaxy}"],
            env={"GAME_PASSWORD": password},
        )
        game = partial(
            play,
            given.provider or ScriptedProvider(player.play, record=False),
            server,
            SqliteStore(path),
            Screen(),
            pilot=given.conversation,
            password=password,
            turns=given.turns,
            typed=typed_lines(),
            waits=given.chat,
        )
        print(f"Model: {given.provider or 'a script, not a language model (--provider NAME asks one)'}.")
        if given.chat:
            print("Type to the model; Ctrl-D ends it.")
        came_through = anyio.run(game)
    except BrokenPipeError:  # nobody reads the output any more, and Python would complain when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ConfigurationError, StoreError, OSError, RuntimeError) as exc:
        print(f"game_client: {exc}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nLeft; the same command continues.", file=sys.stderr)
        return 130
    print(f"Saved in {path}; the same command continues from there.")
    return 0 if came_through else 1


if __name__ == "__main__":
    logging.getLogger("toolbus").setLevel(logging.CRITICAL)  # the screen shows what it would log
    sys.exit(main())
