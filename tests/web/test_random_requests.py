"""Random requests: a page that followed live, one that came late, and one that was reloaded at the end show the same."""

from __future__ import annotations

import json
import random
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Literal

import pytest

from support import npm_servers
from toolbus.events import Event
from toolbus.messages import Message
from toolbus.records import json_bytes
from toolbus.web import VercelEncoder, sse_frame
from toolbus.web._history import insert_cut_off, shown_messages
from toolbus.web._vercel import page_messages
from web.random_requests import play

REQUESTS = 25
PROGRAM = Path(__file__).with_name("chat_views.mjs")
CHAT = files("toolbus.web") / "chat" / "static" / "chat.js"


def chunks_of(events: list[Event], version: Literal[6, 7]) -> list[str]:
    encoder = VercelEncoder(ai_sdk_version=version)
    return [sse_frame(chunk)[6:-2].decode() for event in events for chunk in encoder.feed(event)]


def is_answer(message: Message) -> bool:
    return message.message_id.endswith("_answer")


def line_of(seed: int) -> str:
    """What the chat page is sent of the request of a seed."""
    played = play(seed)
    facts = [each for each in played.events if each.is_fact]
    messages = [*played.messages]
    insert_cut_off(messages, [each for each in facts if each.request_id == facts[0].request_id])
    return json.dumps(
        {
            "seed": seed,
            "streams": [
                chunks_of(each, version) for each in (played.events, facts, *played.late) for version in (6, 7)
            ],
            "page": json_bytes(page_messages(messages), str).decode(),
            # A request can be cancelled after a tool has given its answer. A live page does not show that answer, and a
            # page that is loaded again does.
            "isCompared": not (played.outcome == "cancelled" and any(map(is_answer, shown_messages(messages)))),
            "request": {"outcome": played.outcome, "explanation": played.explanation},
        }
    )


@pytest.mark.parametrize("first", [0, random.randrange(2**31)], ids=["known", "fresh"])
def test_pages_show_the_same_live_late_and_after_a_reload(first: int) -> None:
    lines = [line_of(seed) for seed in range(first, first + REQUESTS)]
    command = [npm_servers.node(), str(PROGRAM), str(CHAT)]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), first
    assert done.stdout.splitlines() == []
