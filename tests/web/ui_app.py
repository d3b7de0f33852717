"""A small chat application: each scene is a script of the model, served for `useChat` and for AG-UI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from toolbus import Runtime, Tool, ToolContext, ToolResult, sub_request_tool, tool
from toolbus.errors import DecodeError, ProviderUnavailable, ToolError
from toolbus.messages import AssistantMessage, ImagePart, TextPart
from toolbus.protocols import Emit, ModelReply, ModelRequest, TextPiece
from toolbus.providers.scripted import Script, ScriptedProvider, Step, calls, error, hang, text
from toolbus.session import RequestSession
from toolbus.web import (
    AguiResponse,
    ClientRequest,
    EventsResponse,
    TextResponse,
    VercelResponse,
    read_agui,
    read_vercel,
)

PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@tool
async def weather(city: str, context: ToolContext[Any]) -> dict[str, Any]:
    """Look up the weather."""
    await context.progress("looking", done=1, total=2)
    if city == "Atlantis":
        raise ToolError("there is no such city")
    # Pages refuse to read such a name, which a file or a server may have.
    return {"city": city, "sky": "clear"} | ({"__proto__": {}} if city == "Rome" else {})


@tool(needs_approval=True)
async def remove(path: str) -> ToolResult:
    """Remove a file."""
    return ToolResult(message=f"removed {path}", affected=[path])


@tool
async def photo() -> list[TextPart | ImagePart]:
    """Take a photo."""
    return [TextPart(text="a pixel"), ImagePart(url=PIXEL)]


@tool(return_direct=True)
async def order(article: str) -> ToolResult:
    """Order an article. The user reads the receipt."""
    return ToolResult(message=f"Ordered: {article}.")


LOCATE: Tool = Tool(
    name="locate",
    description="Ask the page where the user is.",
    schema={"type": "object", "properties": {"precise": {"type": "boolean"}}},
    external=True,
)
WATCH: Tool = Tool(
    name="watch",
    description="Let the page open the camera.",
    schema={"type": "object", "properties": {"path": {"type": "string"}}},
    external=True,
    needs_approval=True,
)
CLERK = sub_request_tool(
    "clerk",
    "Remove files.",
    provider=ScriptedProvider(
        lambda request: text("That is all.") if request.round else calls(("remove", {"path": request.messages[0].text}))
    ),
    tools=[remove],
)
TOOLS: list[Tool] = [weather, remove, photo, order, LOCATE, WATCH, CLERK]
CLIENT_TOOLS = ["locate", "watch"]


class Paced:
    """A model whose answer has one piece more each time that its page is loaded again, however slow the machine is."""

    vendor = "paced"

    def __init__(self) -> None:
        self.loads = anyio.Semaphore(0)
        self._first = ScriptedProvider([calls(("weather", {"city": "Rome"}), text="Let me look. ")])

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Call a tool, and then answer."""
        if not request.round:
            return await self._first.respond(request, emit)
        answer = "The sky over Rome is clear, and it will be clear tomorrow as well."
        for at in range(0, len(answer), 2):
            emit(TextPiece(answer[at : at + 2]))
            await self.loads.acquire()
        return ModelReply(message=AssistantMessage(text=answer))


SCENES: dict[str, Callable[[], Script | list[Step] | Paced]] = {
    "text": lambda: [text("Grüße, 世界 🌍!\nBye.", delays=0.01)],
    "reasoning": lambda: [text("Yes.", reasoning="Let me think about this.", delays=0.01)],
    "tools": lambda: [
        calls(("weather", {"city": "Paris"}), ("weather", {"city": "Rome"}), text="Let me look. "),
        text("Clear in both."),
    ],
    "refused": lambda: [
        calls(("weather", {"town": 1}), ("nope", {}), ("weather", '{"city":'), ("weather", {"city": "Atlantis"})),
        text("Sorry."),
    ],
    "approval": lambda: [
        calls(("remove", {"path": "/a"}), ("remove", {"path": "/b"}), ("weather", {"city": "Rome"}), text="May I?"),
        text("Done with that."),
    ],
    "client": lambda: [
        calls(("locate", {"precise": True}), ("weather", {"city": "Rome"})),
        calls(("locate", {}), text="Once more."),
        text("You are in Kyiv."),
    ],
    "below": lambda: [
        calls(("clerk", {"task": "/a"}), ("clerk", {"task": "/b"}), ("remove", {"path": "/c"}), text="May they?"),
        text("Tidy."),
    ],
    "both": lambda: [calls(("locate", {}), ("remove", {"path": "/a"})), text("Both.")],
    "permit": lambda: [calls(("watch", {"path": "/a"}), ("watch", {"path": "/b"})), text("One of them.")],
    "direct": lambda: [calls(("order", {"article": "lamp"}), text="I order it.")],
    "image": lambda: [calls(("photo", {})), text("A pixel.")],
    "error": lambda: [calls(("weather", {"city": "Rome"})), error(ValueError("secret-token at 0x7f"))],
    "retry": lambda: [
        error(
            ProviderUnavailable("busy", retryable=True, retry_after_seconds=0.01),
            after=calls(("weather", {"city": "Oslo"}), ("weather", {"city": "Bonn"}), text="I begin bad"),
        ),
        calls(("weather", {"city": "Rome"}), text="I begin well."),
        text("It is clear."),
    ],
    "cancel": lambda: [calls(("weather", {"city": "Rome"}), text="Wait. "), hang(after=text("I am begin"))],
    "quiet": lambda: [text("After a while.", delays=[0.2])],
    "steered": lambda: [calls(("weather", {"city": "Rome"}), text="Let me look. "), text("Il fait beau.")],
    "rejoin": Paced,
}


class Chat:
    """The application, and the requests that it has begun, newest last."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.sessions: list[RequestSession] = []
        self.bodies: list[Any] = []
        self.paced: Paced | None = None
        self.app = Starlette(
            routes=[
                Route("/vercel/{scene}", self.vercel, methods=["POST"]),
                Route("/vercel/{scene}/{chat}/stream", self.resumed),
                Route("/agui/{scene}", self.agui, methods=["POST"]),
                Route("/agui/{scene}/connect", self.connected, methods=["POST"]),
                Route("/events/{request_id}", self.events),
                Route("/text/{request_id}", self.text),
                Route("/cancel", self.cancel, methods=["POST"]),
            ]
        )

    async def start(self, scene: str, incoming: ClientRequest) -> RequestSession:
        """Begin a request, or send its answers to the one that waits."""
        if incoming.prompt is not None:
            made = SCENES[scene]()
            provider = made if isinstance(made, Paced) else ScriptedProvider(made)
            self.paced = provider if isinstance(provider, Paced) else self.paced
            session = self.runtime.start(incoming.prompt, provider=provider, conversation_id=incoming.conversation_id)
            self.sessions.append(session)
            if scene == "steered":
                session.steer("In French, please.")
            return session
        session = self.session(incoming.request_id)
        await incoming.answer(session, client_tools=CLIENT_TOOLS, by="page")
        return session

    def session(self, request_id: str) -> RequestSession:
        """The session of a request that was begun here."""
        (found,) = [each for each in self.sessions if each.request_id == request_id]
        return found

    async def vercel(self, request: Request) -> Response:
        """Answer `useChat`."""
        body = await request.body()
        self.bodies.append(await request.json())
        try:
            incoming = read_vercel(body)
        except DecodeError as exc:
            return JSONResponse({"error": str(exc)}, 400)
        session = await self.start(request.path_params["scene"], incoming)
        ai_sdk_version = 7 if request.query_params.get("v") == "7" else 6
        return VercelResponse(
            session,
            client_tools=CLIENT_TOOLS,
            answered=incoming.answered,
            ai_sdk_version=ai_sdk_version,
            heartbeat_seconds=0.05,
            cancel_on_disconnect=True,
        )

    async def resumed(self, request: Request) -> Response:
        """Answer a page that was loaded again."""
        if self.paced is not None:
            self.paced.loads.release()
        newest = [each for each in self.sessions if each.conversation_id == request.path_params["chat"]]
        return VercelResponse(newest[-1], client_tools=CLIENT_TOOLS) if newest else Response(status_code=204)

    async def agui(self, request: Request) -> Response:
        """Answer an `HttpAgent`."""
        body = await request.body()
        self.bodies.append(await request.json())
        try:
            incoming = read_agui(body)
        except DecodeError as exc:
            return JSONResponse({"error": str(exc)}, 400)
        session = await self.start(request.path_params["scene"], incoming)
        return AguiResponse(
            session, incoming, client_tools=CLIENT_TOOLS, heartbeat_seconds=0.05, cancel_on_disconnect=True
        )

    async def connected(self, request: Request) -> Response:
        """Answer an `HttpAgent` that connects."""
        if self.paced is not None:
            self.paced.loads.release()
        incoming = read_agui(await request.body(), connects=True)
        (newest,) = [each for each in self.sessions if each.conversation_id == incoming.conversation_id]
        messages = await self.runtime.store.history(incoming.conversation_id)
        if await newest.has_ended():
            return AguiResponse(None, incoming, messages=messages)
        prompt = newest.snapshot().prompt
        return AguiResponse(
            newest, incoming, client_tools=CLIENT_TOOLS, messages=[*messages, *([prompt] if prompt else [])]
        )

    async def events(self, request: Request) -> Response:
        """Send the events of a request."""
        return EventsResponse(self.session(request.path_params["request_id"]))

    async def text(self, request: Request) -> Response:
        """Send the text of a request."""
        return TextResponse(self.session(request.path_params["request_id"]))

    async def cancel(self, _request: Request) -> Response:
        """Cancel the newest request."""
        return JSONResponse(self.sessions[-1].cancel("enough"))
