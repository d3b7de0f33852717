"""Make the pictures of the documentation in a real browser: the inspector, the chat page, and the terminal.

All three show the same request. It is a script, and times and ids are fixed: the inspector reads a recording, and the
terminal's narrator gets its events on a clock of its own. So a picture changes only with what it shows. Chromium is the
one of tests/support/npm; the fonts are the machine's, and DejaVu where it has them.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import rich.console
import rich.terminal_theme
import rich.text

from toolbus import Runtime, tool
from toolbus.cli._terminal.live_screen import LiveScreen
from toolbus.cli._terminal.progress import Narrator
from toolbus.events import (
    ApprovalRequested,
    Event,
    ModelResponded,
    ModelRetrying,
    RequestCompleted,
    RequestStarted,
    RoundStarted,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import AssistantMessage, ToolCall, Usage
from toolbus.providers.scripted import ScriptedProvider, calls, text
from toolbus.stores.memory import MemoryStore
from toolbus.testing.recording import RecordedRequest, recording_of
from toolbus.web.chat import create_chat
from toolbus.web.inspector import Inspector, RecordingSource

from .build import ROOT

__all__ = ["PICTURES", "draw"]

PICTURES = ROOT / "docs" / "pictures"
_TOKEN = "the-token-of-this-picture"  # noqa: S105 -- it guards nothing
_QUESTION = "Refund order 7 if it is lost, and tell the customer"
_COLUMNS = 78
_BEGAN = 1_767_265_200.0  # 2026-01-01, 11:00 UTC


class _Request:
    """The script of one request, which begins `begins` seconds after the first one."""

    def __init__(self, request_id: str, begins: float, prompt: str) -> None:
        self._id = request_id
        self._begins = begins
        self._facts: list[Event] = []
        self._add(RequestStarted, 0, prompt=prompt, timeout_seconds=600)

    def _add(self, kind: type[Event], at: float, **fields: Any) -> None:
        event_id = f"{self._id}{len(self._facts)}"
        moment = _BEGAN + self._begins + at
        self._facts.append(
            kind(request_id=self._id, conversation_id=f"c{self._id}", event_id=event_id, at=moment, **fields)
        )

    def round(self, number: int, begins: float, ends: float, *names: str, text: str = "", tokens: int = 0) -> None:
        """Let the model answer with text, or call tools."""
        self._add(RoundStarted, begins, round=number, message_count=1 + 3 * number)
        if number == 1 and not text:
            self._add(
                ModelRetrying, begins + 0.4, round=1, reason="provider_unavailable", error="busy", delay_seconds=0.9
            )
        calls = tuple(ToolCall(name=each, call_id=f"{number}{place}") for place, each in enumerate(names))
        message = AssistantMessage(text=text, tool_calls=calls, message_id=f"m{number}")
        usage = Usage(input_tokens=tokens, output_tokens=tokens // 14, cached_tokens=tokens // 2)
        about: dict[str, Any] = {"vendor": "openai", "model": "gpt-5-mini", "usage": usage, "cost": tokens * 6e-7}
        self._add(ModelResponded, ends, round=number, message=message, **about)

    def call(
        self, call_id: str, name: str, begins: float, ends: float | None, error: str = "", **arguments: Any
    ) -> None:
        """Run a tool."""
        given = arguments or {"order": 7}
        asked: dict[str, Any] = {"arguments": given, "round": 0, "timeout_seconds": 30, "idempotency_key": call_id}
        self._add(ToolCallRequested, begins, call_id=call_id, name=name, **asked)
        if ends is not None and error:
            self._add(ToolCallFailed, ends, call_id=call_id, name=name, reason="error", error=error)
        elif ends is not None:
            self._add(ToolCallCompleted, ends, call_id=call_id, name=name, content="ok")

    def ask(self, call_id: str, name: str, at: float) -> None:
        """Ask a person for a decision."""
        self._add(ApprovalRequested, at, call_id=call_id, name=name, arguments={"order": 7}, timeout_seconds=3_600)

    def end(self, at: float, text: str) -> None:
        """End with an answer."""
        self._add(RequestCompleted, at, text=text)

    @property
    def facts(self) -> list[Event]:
        """The facts, in the order of their times."""
        return sorted(self._facts, key=lambda each: each.at)

    def recorded(self) -> RecordedRequest:
        """Return the request for a recording."""
        facts = self.facts
        agreed = {"request_id": self._id, "conversation_id": f"c{self._id}"}
        found = RecordedRequest(self._id, agreed, 0, facts=facts, steps=list(range(len(facts))))
        found.was_released = not found.is_whole
        return found


def _refund() -> _Request:
    """Return the request that all pictures show."""
    found = _Request("8f2c41d09a7d", 40, _QUESTION)
    found.round(0, 0.1, 1.3, "get_order", "search_tickets", "track", tokens=2_480)
    found.call("00", "get_order", 1.3, 2.1)
    found.call("01", "search_tickets", 1.3, 3.6, query="order 7")
    found.call("02", "track", 1.3, 2.8, error="no such parcel")
    found.round(1, 3.6, 6.6, "check_policy", tokens=3_950)
    found.call("10", "check_policy", 6.6, 7.6, policy="lost parcels")
    found.round(2, 7.6, 9.2, "refund", tokens=4_410)
    found.ask("20", "refund", 9.2)
    return found


def _script() -> bytes:
    """Return the recording that is shown."""
    first = _Request("8f2c41d09a7b", 0, "Summarise the open tickets of last week")
    first.round(0, 0.1, 1.2, "search_tickets", tokens=2_140)
    first.call("00", "search_tickets", 1.2, 2.0)
    first.round(1, 2.0, 4.4, text="Twelve tickets are open.", tokens=5_230)
    first.end(4.4, "Twelve tickets are open.")
    second = _Request("8f2c41d09a7c", 20, "Why did order 7 arrive late?")
    second.round(0, 0.1, 1.0, "track", tokens=1_310)
    second.call("00", "track", 1.0, 1.4, error="the carrier does not answer")
    second.round(1, 1.4, 3.0, text="The carrier cannot be reached.", tokens=1_620)
    second.end(3.0, "The carrier cannot be reached.")
    fourth = _Request("8f2c41d09a7e", 66, "Draft a reply to ticket 118")
    fourth.round(0, 0.1, 1.9, "search_tickets", tokens=1_730)
    fourth.call("00", "search_tickets", 1.9, None)
    return recording_of([each.recorded() for each in (first, second, _refund(), fourth)])


async def _inspector(chromium: Any, served: Callable[..., Any]) -> Path:
    async with anyio.TemporaryDirectory() as folder:
        recording = anyio.Path(folder, "support.jsonl")
        await recording.write_bytes(_script())
        inspector = Inspector(RecordingSource(Path(recording)))
        async with inspector.opened(), served(inspector) as port, _page(chromium, 1180, 640) as page:
            await page.goto(f"http://127.0.0.1:{port}/#token={inspector.token}")
            await page.get_by_role("navigation").get_by_role("link", name="Refund order 7").click()
            await page.locator(".timeline .row").last.wait_for()
            return await _drawn(page, "inspector.png")


# ---------------------------------------------------------------------------------------------------- the chat page

_REPLIES: dict[str, Sequence[Any]] = {
    "Summarise the open tickets of last week": [text("Twelve tickets are open.")],
    "Why did order 7 arrive late?": [text("The carrier cannot be reached.")],
    _QUESTION: [
        calls(("get_order", {"order": 7}), ("track", {"order": 7}), text="I will look at the order and its parcel."),
        calls(("refund", {"order": 7, "amount": 48.9}), text="The carrier has no such parcel, so it is lost. May I?"),
    ],
}


@tool
async def get_order(order: int) -> str:  # noqa: ARG001 -- the script asks with it
    """Return an order."""
    return "a lamp, paid, sent on 12 December"


@tool
async def track(order: int) -> str:  # noqa: ARG001 -- as above
    """Find the parcel of an order."""
    return "no such parcel"


@tool(needs_approval=True)
async def refund(order: int, amount: float) -> str:  # noqa: ARG001 -- as above
    """Pay an order back."""
    return "refunded"


async def _chat(chromium: Any, served: Callable[..., Any]) -> Path:
    def reply(request: Any) -> Any:
        prompts = [each.text for each in request.messages if each.role == "user"]
        return _REPLIES[prompts[-1]][request.round]

    async with Runtime(
        ScriptedProvider(reply), tools=[get_order, track, refund], store=MemoryStore(), on_approval="wait"
    ) as runtime:
        app = create_chat(runtime, token=_TOKEN, user="you")
        async with served(app) as port, _page(chromium, 900, 560) as page:
            await page.goto(f"http://127.0.0.1:{port}/#token={_TOKEN}")
            for prompt in _REPLIES:
                await page.get_by_label("Question").fill(prompt)
                await page.get_by_role("button", name="Send").click()
                if prompt != _QUESTION:
                    await page.get_by_role("link", name=prompt).wait_for()
                    await page.get_by_role("button", name="New conversation").click()
            await page.get_by_role("button", name="Approve").wait_for()
            await page.get_by_role("button", name="Stop").wait_for(state="hidden")
            return await _drawn(page, "chat.png")


# ---------------------------------------------------------------------------------------------------- the terminal

_TERMINAL = """<style>
  body { margin: 0; background: #fff; }
  pre { margin: 0; padding: 18px 22px; font: 16px/1.5 "DejaVu Sans Mono", monospace; width: max-content; }
  span span { display: inline-block; width: 1ch; }
</style><pre>{code}</pre>"""


class _Terminal(io.StringIO):
    """The text that the command writes to a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def _written(until: float) -> str:
    """Return what is on the terminal `until` seconds after the request of the pictures has begun."""
    now = 0.0
    terminal = _Terminal()
    narrator = Narrator(LiveScreen(terminal, terminal), show_calls=True, clock=lambda: now)
    facts = _refund().facts
    for event in (each for each in facts if each.at <= facts[0].at + until):
        now = event.at
        narrator(event)
    now = facts[0].at + until
    narrator.tick()
    # Each redrawn line begins with a carriage return, and the sequence that erases what stood there.
    lines = [line.rpartition("\r\x1b[2K")[2] for line in terminal.getvalue().split("\n")]
    return "\n".join([f'$ toolbus ask "{_QUESTION}"', *lines])


async def _terminal(chromium: Any, _served: Callable[..., Any]) -> Path:
    os.environ.update(COLUMNS=str(_COLUMNS), TERM="xterm-256color")
    console = rich.console.Console(record=True, file=io.StringIO(), width=_COLUMNS, force_terminal=True)
    console.print(rich.text.Text.from_ansi(_written(7.2)))
    theme = rich.terminal_theme.DEFAULT_TERMINAL_THEME
    code = console.export_html(theme=theme, inline_styles=True, code_format="{code}")
    # The font of the terminal may lack the mark of the live line, and that of another one is wider.
    code = re.sub("[\u2800-\u28ff]", r"<span>\g<0></span>", code)
    async with _page(chromium, 1180, 640) as page:
        await page.set_content(_TERMINAL.replace("{code}", code))
        return await _drawn(page.locator("pre"), "terminal.png")


# ---------------------------------------------------------------------------------------------------- all of them


@asynccontextmanager
async def _page(chromium: Any, width: int, height: int) -> AsyncGenerator[Any]:
    size: Any = {"width": width, "height": height}
    page = await chromium.new_page(viewport=size, color_scheme="light", reduced_motion="reduce", timezone_id="UTC")
    yield page
    await page.close()


async def _drawn(shown: Any, name: str) -> Path:
    """Make a picture of a page, or of a part of it."""
    path = PICTURES / name
    await shown.screenshot(path=path, animations="disabled", caret="hide")
    return path


async def _draw() -> list[Path]:
    sys.path.insert(0, str(ROOT / "tests"))
    from support import browser  # noqa: PLC0415 -- tests/ is no package that is installed
    from support.asgi_serving import served  # noqa: PLC0415

    async with browser.opened() as chromium:
        return [await draw_one(chromium, served) for draw_one in (_inspector, _chat, _terminal)]


def draw() -> list[Path]:
    """Make all pictures, and return their paths. Raises `RuntimeError` if the browser cannot be installed."""
    PICTURES.mkdir(exist_ok=True)
    return anyio.run(_draw)
