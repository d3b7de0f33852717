"""Requests on pages: the streams of Vercel's AI SDK and of AG-UI, server-sent events, and the reading of answers.

    incoming = read_vercel(await request.body())
    session = runtime.start(incoming.prompt, conversation_id=incoming.conversation_id)
    return VercelResponse(session)

`create_app(runtime, authorize=...)` is a whole application of these parts, to serve or to mount into another one.
`create_status_app(runtime)` is an application for probes and operators: the health and the numbers of a runtime.

The encoders and readers are pure, and need no web framework. Everything else needs Starlette (the extra `web`), which
is imported when the first of these names is used; FastAPI is built on Starlette. A response takes anything with
`events()`, so requests of other processes are shown in the same way; messages that wait are shown for sessions and
handles. Only the applications know runtimes and stores. Invariants:

1. An encoder's chunks follow from the events only, so a page that comes late, in any process, ends with the same
   message. If they depended on time, or on what was sent before, a reload would show something else.
2. At the end, a page has the transcript, byte for byte. Pieces are shown as they come, as long as they are the
   beginning of the whole; after a gap the rest waits for the whole reply. Otherwise a slow page would lack a part of
   the text.
3. Everything that was begun is closed once: texts, reasoning, calls and steps, also when a reply is void, when the
   request ends, and when the server stops. Otherwise a page would wait for the rest for ever, and AG-UI's client
   would refuse the run.
4. What a page sends is not trusted. Of the history, only the newest message is read; a decision or a result counts only
   for a call that is open, for the definition that was shown, and for tools that the page may run. Otherwise a page
   could invent replies of the model, or approve a call that nobody saw.
5. A conversation and its requests belong to the user whom `authorize` named when it began. The user's id is the
   beginning of the conversation's id in the store, so this holds in every process without a separate list. Data of
   another user is answered like data that does not exist. Otherwise a user could find out which ids exist.
6. Errors are one sentence for people (`core.endings`). Ids, options and tracebacks are only in the log, which users do
   not see.

Example:
    from starlette.requests import Request

    from toolbus import Runtime
    from toolbus.testing import ScriptedProvider, text
    from toolbus.web import AuthorizeRequest, Chunk, EventEncoder, VercelEncoder
    from toolbus.web import create_app, sse_frame

    def user_of(request: Request) -> str | None:
        return {"the-token-of-ann": "ann"}.get(request.headers.get("authorization", "").removeprefix("Bearer "))

    authorize: AuthorizeRequest = user_of
    runtime = Runtime(ScriptedProvider([text("Hello.", pieces=1)]))
    app = create_app(runtime, authorize=authorize)  # for uvicorn
    async with runtime:
        encoder: EventEncoder = VercelEncoder()  # in a server of another kind
        async for event in runtime.start("Hello?").events():
            chunks: list[Chunk] = encoder.feed(event)
            for chunk in chunks:
                frame = sse_frame(chunk)
                if chunk["type"] == "text-delta":
                    print(chunk["delta"])  # Hello.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import imported_when_used
from ._agui import AguiEncoder
from ._encoder import Chunk, EventEncoder, sse_frame
from ._incoming import AnswerableRequest, ClientAnswer, ClientDecision, ClientRequest, read_agui, read_vercel
from ._vercel import VercelEncoder

if TYPE_CHECKING:
    from ._app import create_app
    from ._middleware import RuntimeMiddleware
    from ._ownership import AuthorizeRequest
    from ._responses import AguiResponse, EventReader, EventsResponse, ShownRequest, TextResponse, VercelResponse
    from ._status_app import create_status_app
    from .inspector import Inspector, create_inspector

__all__ = [
    "AguiEncoder",
    "AguiResponse",
    "AnswerableRequest",
    "AuthorizeRequest",
    "Chunk",
    "ClientAnswer",
    "ClientDecision",
    "ClientRequest",
    "EventEncoder",
    "EventReader",
    "EventsResponse",
    "Inspector",
    "RuntimeMiddleware",
    "ShownRequest",
    "TextResponse",
    "VercelEncoder",
    "VercelResponse",
    "create_app",
    "create_inspector",
    "create_status_app",
    "read_agui",
    "read_vercel",
    "sse_frame",
]

_MODULES = {
    "._app": ["create_app"],
    "._middleware": ["RuntimeMiddleware"],
    "._ownership": ["AuthorizeRequest"],
    "._responses": ["AguiResponse", "EventReader", "EventsResponse", "ShownRequest", "TextResponse", "VercelResponse"],
    "._status_app": ["create_status_app"],
    ".inspector": ["Inspector", "create_inspector"],
}

if not TYPE_CHECKING:  # A type checker would take every name that is spelt wrong.
    __getattr__, __dir__ = imported_when_used(__name__, _MODULES)
