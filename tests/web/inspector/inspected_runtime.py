"""A runtime whose requests show everything that the inspector shows, served on a loopback socket with its inspector."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.routing import Mount

from support.asgi_serving import served
from toolbus import Runtime, Tool, ToolContext, sub_request_tool, tool
from toolbus.core.prices import Price
from toolbus.errors import ProviderUnavailable, ToolError
from toolbus.messages import Usage
from toolbus.providers.scripted import ScriptedProvider, Step, calls, error, hang, text
from toolbus.session import RequestSession
from toolbus.web.inspector import Inspector, create_inspector

TOKEN = "inspector-token-of-the-tests"
SECRET = "sk-live-4f9Zq7Lr2Xc8Vb1Nm5"
ATTACKS = (
    "<img src=x onerror=\"document.title='XSS'\">",
    "<script>document.title='XSS'</script>",
    '"><svg onload="document.title=\'XSS\'">',
    "javascript:document.title='XSS'",
    "</pre></textarea><iframe srcdoc=\"<script>parent.document.title='XSS'</script>\"></iframe>",
    "{{constructor.constructor('document.title=1')()}}",
    "${document.title='XSS'}",
    "<style>*{display:none}</style>",
    "]]><!--",
    "\u202egnp.exe\u0000\u001b[31m",
)
PRICES = {"*": Price(input_per_million=0.25, output_per_million=2.0)}


@tool
async def weather(city: str, context: ToolContext[Any]) -> dict[str, str]:
    """Look up the weather of a city."""
    await context.progress("asking the station", done=1, total=2)
    await anyio.sleep(0.02)
    if city == "Atlantis":
        raise ToolError("there is no such city")
    return {"city": city, "sky": "clear", "wind": "4 m/s"}


@tool(needs_approval=True)
async def book_hotel(hotel: str, nights: int, api_key: str) -> str:
    """Book a hotel."""
    return f"{hotel} is booked for {nights} nights with {api_key[:2]}"


@tool
async def echo(text: str) -> str:
    """Return the text."""
    return text


@tool(kind="query")
async def look(page: int) -> str:
    """Read a page."""
    return f"page {page}: " + "lorem ipsum " * 60


PAYMENT: Tool = Tool(
    name="wait_for_payment",
    description="Wait until the payment has come in.",
    schema={"type": "object", "properties": {"invoice": {"type": "string"}}},
    external=True,
)
TOOLS: list[Any] = [weather, book_hotel, echo, look, PAYMENT]
USAGE = Usage(input_tokens=1_840, output_tokens=96, cached_tokens=1_024)


def trip() -> list[Step]:
    """A request with parallel tools, a failed call, a retry of the model, a sub-request, and a question."""
    return [
        calls(
            ("weather", {"city": "Lisbon"}),
            ("weather", {"city": "Atlantis"}),
            ("research", {"task": "hotels"}),
            text="Let me look.",
            usage=USAGE,
        ),
        error(ProviderUnavailable("busy", retryable=True, retry_after_seconds=0.01)),
        calls(("book_hotel", {"hotel": "Avenida", "nights": 3, "api_key": SECRET}), usage=USAGE),
        text("The hotel is booked, and the sky is clear.", usage=USAGE),
    ]


def attack() -> list[Step]:
    """A request in which everything that somebody else writes is an attack on the page."""
    return [
        calls(*(("echo", {"text": each}) for each in ATTACKS), text=" ".join(ATTACKS)),
        calls(("book_hotel", {"hotel": ATTACKS[0], "nights": 1, "api_key": ATTACKS[2]}), (ATTACKS[1], {ATTACKS[0]: 1})),
        text(ATTACKS[1]),
    ]


SCENES: dict[str, Any] = {
    "trip": trip,
    "attack": attack,
    "pair": lambda: [
        calls(
            *(("book_hotel", {"hotel": "Avenida", "nights": each, "api_key": SECRET}) for each in (1, 2)),
            ("weather", {"city": "ימין"}),
        ),
        text("ימין ושמאל"),
    ],
    "payment": lambda: [calls(("wait_for_payment", {"invoice": "2026-117"})), text("Thank you.")],
    "hang": lambda: [calls(("weather", {"city": "Oslo"}), text="Wait. "), hang(after=text("I am begin"))],
    "plain": lambda: [calls(("weather", {"city": "Rome"})), text("Clear.")],
    "long": lambda: [*(calls(("look", {"page": page})) for page in range(6)), text("I have read six pages.")],
}
RESEARCH: Tool = sub_request_tool(
    "research",
    "Hand a question to a researcher.",
    provider=ScriptedProvider(lambda _request: text("Avenida has good reviews.", usage=USAGE)),
    tools=[weather],
)


@dataclass
class Desk:
    """The runtime, its inspector, and the address of the page with its token."""

    runtime: Runtime[Any]
    inspector: Inspector
    address: str
    sessions: list[RequestSession] = field(default_factory=list[RequestSession])

    def begin(self, scene: str, prompt: str = "", **options: Any) -> RequestSession:
        """Begin a request of a scene."""
        session = self.runtime.start(
            prompt or f"Scene {scene}", provider=ScriptedProvider(SCENES[scene]()), prices=PRICES, **options
        )
        self.sessions.append(session)
        return session

    def begin_long(self) -> RequestSession:
        """Begin a request whose results are shortened when they are sent."""
        return self.begin("long", max_result_chars=200)


@contextlib.asynccontextmanager
async def desk(runtime: Runtime[Any] | None = None) -> AsyncGenerator[Desk]:
    """Serve a runtime's inspector at a free port, mounted below a path."""
    async with runtime or Runtime(ScriptedProvider([]), tools=[*TOOLS, RESEARCH], drain_seconds=0) as entered:
        inspector = create_inspector(entered, token=TOKEN, by="tester")
        app = Starlette(routes=[Mount("/inspector", inspector)])
        async with served(app) as port:
            yield Desk(entered, inspector, f"http://127.0.0.1:{port}/inspector/#token={TOKEN}")
