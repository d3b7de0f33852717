"""Make the pictures of the documentation: screenshots of the inspector's page, in a real browser.

The requests are a script, times and ids are fixed, and the page is that of a recording. So a picture changes only with
the page. Chromium is the one of tests/support/npm, which makes the same pixels on every machine.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio

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
from toolbus.testing.recording import RecordedRequest, recording_of
from toolbus.web.inspector import Inspector, RecordingSource

from .build import ROOT

__all__ = ["PICTURES", "draw"]

PICTURES = ROOT / "docs" / "pictures"
_SIZES = {"inspector.png": (1180, 640)}
_BEGAN = 1_767_265_200.0  # 2026-01-01, 11:00 UTC


class _Request:
    """The script of one request, which begins `begins` seconds after the first one."""

    def __init__(self, request_id: str, begins: float, prompt: str) -> None:
        self._id = request_id
        self._begins = begins
        self._facts: list[Event] = []
        self._add(RequestStarted, 0, prompt=prompt, deadline=600)

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

    def call(self, call_id: str, name: str, begins: float, ends: float | None, error: str = "") -> None:
        """Run a tool."""
        asked: dict[str, Any] = {"arguments": {"order": 7}, "round": 0, "deadline": 30, "idempotency_key": call_id}
        self._add(ToolCallRequested, begins, call_id=call_id, name=name, **asked)
        if ends is not None and error:
            self._add(ToolCallFailed, ends, call_id=call_id, name=name, reason="error", error=error)
        elif ends is not None:
            self._add(ToolCallCompleted, ends, call_id=call_id, name=name, content="ok")

    def ask(self, call_id: str, name: str, at: float) -> None:
        """Ask a person for a decision."""
        self._add(ApprovalRequested, at, call_id=call_id, name=name, arguments={"order": 7}, deadline=3_600)

    def end(self, at: float, text: str) -> None:
        """End with an answer."""
        self._add(RequestCompleted, at, text=text)

    def recorded(self) -> RecordedRequest:
        """Return the request for a recording."""
        facts = sorted(self._facts, key=lambda each: each.at)
        agreed = {"request_id": self._id, "conversation_id": f"c{self._id}"}
        found = RecordedRequest(self._id, agreed, 0, facts=facts, steps=list(range(len(facts))))
        found.was_left = not found.is_whole
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
    third = _Request("8f2c41d09a7d", 40, "Refund order 7 if it is lost, and tell the customer")
    third.round(0, 0.1, 1.3, "get_order", "search_tickets", "track", tokens=2_480)
    third.call("00", "get_order", 1.3, 2.1)
    third.call("01", "search_tickets", 1.3, 3.6)
    third.call("02", "track", 1.3, 2.8, error="no such parcel")
    third.round(1, 3.6, 6.6, "check_policy", tokens=3_950)
    third.call("10", "check_policy", 6.6, 7.6)
    third.round(2, 7.6, 9.2, "refund", tokens=4_410)
    third.ask("20", "refund", 9.2)
    fourth = _Request("8f2c41d09a7e", 66, "Draft a reply to ticket 118")
    fourth.round(0, 0.1, 1.9, "search_tickets", tokens=1_730)
    fourth.call("00", "search_tickets", 1.9, None)
    return recording_of([each.recorded() for each in (first, second, third, fourth)])


async def _draw(recording: Path) -> list[Path]:
    sys.path.insert(0, str(ROOT / "tests"))
    from support import browser  # noqa: PLC0415 -- tests/ is no package that is installed
    from support.asgi_serving import served  # noqa: PLC0415

    drawn: list[Path] = []
    inspector = Inspector(RecordingSource(recording))
    async with inspector.opened(), served(inspector) as port, browser.opened() as chromium:
        for name, (width, height) in _SIZES.items():
            page = await chromium.new_page(
                viewport={"width": width, "height": height},
                color_scheme="light",
                reduced_motion="reduce",
                timezone_id="UTC",
            )
            await page.goto(f"http://127.0.0.1:{port}/#token={inspector.token}")
            await page.get_by_role("navigation").get_by_role("link", name="Refund order 7").click()
            await page.locator(".timeline .row").last.wait_for()
            await page.mouse.move(0, 0)
            await page.screenshot(path=PICTURES / name, animations="disabled", caret="hide")
            drawn.append(PICTURES / name)
            await page.close()
    return drawn


def draw() -> list[Path]:
    """Make all pictures, and return their paths. Raises `RuntimeError` if the browser cannot be installed."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder, "support.jsonl")
        recording.write_bytes(_script())
        return anyio.run(_draw, recording)
