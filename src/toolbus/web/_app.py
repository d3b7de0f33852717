"""The application of `create_app`: routes to ask, watch and command the requests of a runtime, each for its owner."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, cast
from urllib.parse import quote

import anyio
import anyio.to_thread

from .._option_checks import FLAG, POSITIVE, Rule, check, is_async, or_none, shown, takes, whole
from ..core.endings import explain
from ..durability import call_store_in_time
from ..errors import (
    ConfigurationError,
    ConversationBusy,
    StoreDamaged,
    StoreError,
    UnknownRequest,
    UnsupportedStoreFormat,
)
from ..events import Event, MessageAppended, RequestEnding
from ..handles import CommandStatus, RequestHandle
from ..messages import Message, PromptLike, UserMessage
from ..request_result import RequestResult
from ..session import RequestSession
from ..storage import RequestRecord
from ._bodies import Answer, Cancel, Decision, Question, Steering, body_of, exception_handlers, json_response, read_json
from ._encoder import LOST
from ._history import insert_cut_off
from ._incoming import (
    MAX_BODY_BYTES,
    ClientRequest,
    answer_of,
    approval_id,
    event_of,
    read_agui,
    read_vercel,
    storable_json,
    tool_names,
)
from ._middleware import IS_RUNTIME, RuntimeMiddleware
from ._ownership import AuthorizeRequest, Owner, owner_of
from ._page_files import chat_routes
from ._responses import AguiResponse, EventsResponse, TextResponse, VercelResponse
from ._starlette import HTTPException, Middleware, Request, Response, Route, Starlette
from ._vercel import VercelEncoder, page_messages

if TYPE_CHECKING:
    from ..runtime import RequestOptions, Runtime

_AUTHORIZES = Rule(lambda given: takes(given, 1), "pass a function of the HTTP request that returns its user")
_GIVES_OPTIONS = or_none(
    Rule(
        lambda given: takes(given, 2) and not is_async(given),
        "pass a function of the HTTP request and its user, not async, that returns a dictionary",
    )
)
_Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
_NEWEST = 20  # requests of a conversation that are looked at and listed
_LAST_FACTS = 50  # of a request that are looked at; between a reply that was cut off and the ending there are few
_STATUS: Mapping[CommandStatus, int] = {"done": 200, "queued": 202, "ended": 409, "unknown": 404}


def create_app(
    runtime: Runtime[Any],
    *,
    authorize: AuthorizeRequest,
    options: Callable[[Request, str], Mapping[str, Any]] | None = None,
    client_tools: Collection[str] = (),
    ai_sdk_version: Literal[6, 7] = 6,
    page: bool = False,
    heartbeat_seconds: float = 15.0,
    cancel_on_disconnect: bool = False,
    may_edit: bool = False,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> Starlette:
    """Return an ASGI application in front of a runtime, for chat pages and other programs, to serve or to mount.

        app = create_app(runtime, authorize=lambda request: request.session.get("user"))

    `authorize` gets each HTTP request, and returns the id of its user, or None for nobody (401). Conversations belong
    to the user who has begun them, in every process: in the store, their ids begin with the user's. Those of others do
    not exist for a user (404). `options` returns options of a new request, such as `deps`, for its HTTP request and its
    user. `client_tools` are the external tools that pages run; other external calls are not answered here.

    | route | answer |
    | --- | --- |
    | `POST /ask` | the result as JSON when the request has ended; body: `prompt`, `conversation_id` |
    | `POST /ask/events`, `POST /ask/text` | the same as an `EventsResponse` or a `TextResponse` |
    | `POST /chat`, `GET /chat/ID/stream` | `useChat` of the AI SDK, and its resuming (204: nothing runs) |
    | `POST /agent`, `POST /agent/connect` | `HttpAgent` of AG-UI, and its conversation with what runs in it |
    | `GET /` | with `page`: a chat page on these routes, that of `toolbus serve` |
    | `GET /conversations` | the user's conversations, the newest first; `search`, `limit` |
    | `GET /conversations/ID` | its `messages` for `useChat`, and its newest `requests`; both empty for a new one |
    | `GET /requests/ID` | its `outcome` (null while it runs), `explanation` for people, and the `approvals` that wait |
    | `GET /requests/ID/events`, `/text` | its events or its text, after `Last-Event-ID` |
    | `POST /requests/ID/cancel`, `/steer`, `/decide`, `/answer` | `{"status": "done"}`, "queued" (202), "ended" (409) |

    The page itself is public, and contains no user's data: `authorize` is called for the requests that it then sends.
    These carry the cookies of its origin, and `Authorization: Bearer TOKEN` if it was opened as `/#token=TOKEN`.

    Bodies are JSON of at most `max_body_bytes`, with `Content-Type: application/json`. Errors are JSON with an `error`.
    503 with `Retry-After` says that too much runs, or that the server is closing. 503 of `POST /ask` with the id of a
    request says that this process cannot finish it, and that another one may. With `cancel_on_disconnect`, a
    request is cancelled when the client that has begun it disconnects; otherwise it continues, and a client can
    reconnect to it. With `may_edit`, users may edit the arguments of calls that they approve, also into some that an
    interceptor would refuse; otherwise an edit is 403. The application enters and drains the runtime
    (`RuntimeMiddleware`); if it is mounted, the outer application has to do that.
    """
    check("runtime", runtime, IS_RUNTIME)
    check("authorize", authorize, _AUTHORIZES)
    check("options", options, _GIVES_OPTIONS)
    VercelEncoder(ai_sdk_version=ai_sdk_version)  # It checks the version.
    app = _App(
        runtime=runtime,
        authorize=authorize,
        options=options,
        client_tools=tool_names(client_tools),
        ai_sdk_version=ai_sdk_version,
        streaming={
            "heartbeat_seconds": check("heartbeat_seconds", heartbeat_seconds, POSITIVE),
            "cancel_on_disconnect": check("cancel_on_disconnect", cancel_on_disconnect, FLAG),
        },
        may_edit=check("may_edit", may_edit, FLAG),
        max_body_bytes=check("max_body_bytes", max_body_bytes, whole(1)),
    )
    pages = chat_routes() if check("page", page, FLAG) else []
    return Starlette(
        routes=[*pages, *app.routes()],
        exception_handlers=exception_handlers,
        middleware=[Middleware(RuntimeMiddleware, runtime=runtime)],
    )


class _Streaming(TypedDict):
    heartbeat_seconds: float
    cancel_on_disconnect: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _App:
    """The routes of one application."""

    runtime: Runtime[Any]
    authorize: AuthorizeRequest
    options: Callable[[Request, str], Mapping[str, Any]] | None
    client_tools: frozenset[str]
    ai_sdk_version: Literal[6, 7]
    streaming: _Streaming
    may_edit: bool
    max_body_bytes: int

    def routes(self) -> list[Route]:
        """Return the routes. An id of a conversation may have slashes."""
        owned, of_request = self._owned, self._of_request
        return [
            Route("/ask", owned(self._ask), methods=["POST"]),
            Route("/ask/events", owned(partial(self._ask_streaming, EventsResponse)), methods=["POST"]),
            Route("/ask/text", owned(partial(self._ask_streaming, TextResponse)), methods=["POST"]),
            Route("/chat", owned(self._chat), methods=["POST"]),
            Route("/chat/{conversation_id:path}/stream", owned(self._resume_chat)),
            Route("/agent", owned(self._agent), methods=["POST"]),
            Route("/agent/connect", owned(self._connect_agent), methods=["POST"]),
            Route("/conversations", owned(self._conversations)),
            Route("/conversations/{conversation_id:path}", owned(self._conversation)),
            Route("/requests/{request_id}", owned(self._request)),
            Route("/requests/{request_id}/events", of_request(partial(self._show, EventsResponse))),
            Route("/requests/{request_id}/text", of_request(partial(self._show, TextResponse))),
            Route("/requests/{request_id}/cancel", of_request(self._cancel), methods=["POST"]),
            Route("/requests/{request_id}/steer", of_request(self._steer), methods=["POST"]),
            Route("/requests/{request_id}/decide", of_request(self._decide), methods=["POST"]),
            Route("/requests/{request_id}/answer", of_request(self._answer), methods=["POST"]),
        ]

    def _owned(self, endpoint: Callable[[Request, Owner], Awaitable[Response]]) -> _Endpoint:
        """Return an endpoint that first asks who has sent the request."""

        async def respond(http: Request) -> Response:
            return await endpoint(http, await owner_of(http, self.authorize))

        return respond

    def _of_request(self, endpoint: Callable[[Request, Owner, RequestHandle], Awaitable[Response]]) -> _Endpoint:
        """Return an endpoint for a request that its path names, and that has to be the user's."""

        async def respond(http: Request, owner: Owner) -> Response:
            handle, _ = await self._found(owner, http.path_params["request_id"])
            return await endpoint(http, owner, handle)

        return self._owned(respond)

    # ------------------------------------------------------------------------------------------------ asking

    async def _ask(self, http: Request, owner: Owner) -> Response:
        question = await read_json(http, Question, self.max_body_bytes)
        with self._started(http, owner, question.prompt, question.conversation_id) as session:
            async with self._watched(http, session):
                result = await session.result()
            headers = _headers_of(owner, session)
            if result.resumable or isinstance(result.error, StoreError):  # Another process may still answer it.
                return json_response({"error": result.explanation or LOST}, 503, headers)
            fields = {**result.summary(), "conversation_id": owner.shown(result.conversation_id)}
            return json_response(fields, _status_of(result), headers)

    async def _ask_streaming(self, kind: type[EventsResponse | TextResponse], http: Request, owner: Owner) -> Response:
        question = await read_json(http, Question, self.max_body_bytes)
        if "last-event-id" in http.headers:  # Some clients repeat the whole request when they come back.
            raise HTTPException(400, "a question is asked once; to read on, GET /requests/ID/events or /text")
        with self._started(http, owner, question.prompt, question.conversation_id) as session:
            return kind(session, headers=_headers_of(owner, session), **self.streaming)

    @contextmanager
    def _started(
        self, http: Request, owner: Owner, prompt: PromptLike, conversation_id: str
    ) -> Generator[RequestSession]:
        """Begin a request, and cancel it if no response can be made of it."""
        options: Any = {} if self.options is None else self.options(http, owner.name)
        if not isinstance(options, Mapping):
            raise ConfigurationError(f"options has returned {shown(options)}; return a dictionary")
        given = cast("RequestOptions[Any]", {**options, "conversation_id": owner.stored(conversation_id)})
        session = self.runtime.start(prompt, **given)
        try:
            yield session
        except BaseException:
            session.cancel("no response could be made of it")
            raise

    @asynccontextmanager
    async def _watched(self, http: Request, session: RequestSession) -> AsyncGenerator[None]:
        """With `cancel_on_disconnect`, cancel the request if its client disconnects in this block."""

        async def watch() -> None:
            while (await http.receive())["type"] != "http.disconnect":
                pass
            session.cancel("the client went away")

        async with anyio.create_task_group() as group:
            if self.streaming["cancel_on_disconnect"]:
                group.start_soon(watch)
            yield
            group.cancel_scope.cancel()

    # ------------------------------------------------------------------------------------------------ chat pages

    async def _chat(self, http: Request, owner: Owner) -> Response:
        incoming = read_vercel(await body_of(http, self.max_body_bytes), max_bytes=self.max_body_bytes)

        def respond(source: RequestSession | RequestHandle, headers: Mapping[str, str]) -> Response:
            return VercelResponse(
                source,
                client_tools=self.client_tools,
                answered=incoming.answered,
                ai_sdk_version=self.ai_sdk_version,
                headers=headers,
                **self.streaming,
            )

        return await self._respond(http, owner, incoming, respond)

    async def _agent(self, http: Request, owner: Owner) -> Response:
        incoming = read_agui(await body_of(http, self.max_body_bytes), max_bytes=self.max_body_bytes)

        def respond(source: RequestSession | RequestHandle, headers: Mapping[str, str]) -> Response:
            return AguiResponse(source, incoming, client_tools=self.client_tools, headers=headers, **self.streaming)

        return await self._respond(http, owner, incoming, respond)

    async def _respond(
        self,
        http: Request,
        owner: Owner,
        incoming: ClientRequest,
        respond: Callable[[RequestSession | RequestHandle, Mapping[str, str]], Response],
    ) -> Response:
        """Begin a request, or send answers to the one that waits for them, and respond with it."""
        if incoming.prompt is not None:
            with self._started(http, owner, incoming.prompt, incoming.conversation_id) as session:
                return respond(session, _headers_of(owner, session))
        if not incoming.request_id:
            raise HTTPException(400, "the answers have to be for the calls of one request")
        handle, record = await self._found(owner, incoming.request_id)
        if record.conversation_id != owner.stored(incoming.conversation_id):
            raise UnknownRequest("the request belongs to another conversation")
        for each in incoming.decisions:
            self._check_edits(each.arguments)
        await incoming.answer(handle, client_tools=self.client_tools, by=owner.name)
        return respond(handle, {"X-Request-Id": handle.request_id})

    async def _resume_chat(self, http: Request, owner: Owner) -> Response:
        stored_id = owner.stored(http.path_params["conversation_id"])
        record = _shown_of(await self.runtime.requests(conversation_id=stored_id, limit=_NEWEST))
        if record is None:
            return Response(status_code=204)
        return VercelResponse(
            self.runtime.request(record.request_id),
            client_tools=self.client_tools,
            ai_sdk_version=self.ai_sdk_version,
            heartbeat_seconds=self.streaming["heartbeat_seconds"],
            headers={"X-Request-Id": record.request_id},
        )

    async def _connect_agent(self, http: Request, owner: Owner) -> Response:
        body = await body_of(http, self.max_body_bytes)
        incoming = read_agui(body, connects=True, max_bytes=self.max_body_bytes)
        requests, explanations, messages = await self._content_of(owner.stored(incoming.conversation_id))
        record = _shown_of(requests)
        return AguiResponse(
            None if record is None else self.runtime.request(record.request_id),
            incoming,
            messages=messages,
            explanation=explanations[0] if explanations and record is None else "",
            client_tools=self.client_tools,
            heartbeat_seconds=self.streaming["heartbeat_seconds"],
            headers={} if record is None else {"X-Request-Id": record.request_id},
        )

    # ------------------------------------------------------------------------------------------------ lists

    async def _conversations(self, http: Request, owner: Owner) -> Response:
        search, limit = http.query_params.get("search", ""), http.query_params.get("limit", "100")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 6 and 0 < int(limit) <= 1_000):
            raise HTTPException(400, "limit has to be a whole number from 1 to 1000")
        listing = self.runtime.store.conversations(search=search, prefix=owner.prefix, limit=int(limit))
        found = [
            {
                "conversation_id": owner.shown(each.conversation_id),
                "title": each.title,
                "message_count": each.message_count,
                "started_at": each.started_at,
                "updated_at": each.updated_at,
            }
            for each in await call_store_in_time(listing)
        ]
        return json_response({"conversations": found})

    async def _conversation(self, http: Request, owner: Owner) -> Response:
        stored_id = owner.stored(http.path_params["conversation_id"])
        requests, explanations, messages = await self._content_of(stored_id)
        listed = [_listed(each, explanation) for each, explanation in zip(requests, explanations, strict=True)]
        about = {"conversation_id": owner.shown(stored_id), "requests": listed}
        # In a thread, since a long conversation takes long to write.
        return await anyio.to_thread.run_sync(lambda: json_response({**about, "messages": page_messages(messages)}))

    async def _content_of(self, stored_id: str) -> tuple[Sequence[RequestRecord], list[str], list[Message]]:
        """Return the newest requests of a conversation, why each has no whole answer, and its messages.

        These include the prompts of requests that run, and replies that were cut off.
        """
        # The store has the messages of a turn once it has ended. In this order, no turn that ends meanwhile is missed.
        requests = await self.runtime.requests(conversation_id=stored_id, limit=_NEWEST)
        prompts = [await self._prompt_of(each) for each in reversed(requests) if each.ending is None]
        history = await call_store_in_time(self.runtime.store.history(stored_id))
        known = {each.message_id for each in history}
        messages = [*history, *(each for each in prompts if each and each.message_id not in known)]
        explanations: list[str] = []
        for each in requests:
            facts = await self._last_facts_of(each)
            explanations.append(_explanation_in(facts))
            insert_cut_off(messages, facts)
        return requests, explanations, messages

    async def _prompt_of(self, record: RequestRecord) -> UserMessage | None:
        session, journal = self.runtime.session(record.request_id), self.runtime.store.journal
        if session is not None:
            found = session.snapshot()
            if not found.view.state.facts:  # It waits for its turn, or for a slot.
                return found.prompt
            begun = found.view.state.messages[found.earlier :]
            return next((each for each in begun if isinstance(each, UserMessage)), None)
        if journal is None:
            return None
        facts = [each.fact for each in await call_store_in_time(journal.facts(record.request_id))]
        appended = [each.message for each in facts if isinstance(each, MessageAppended)]
        return next((each for each in appended if isinstance(each, UserMessage)), None)

    async def _last_facts_of(self, record: RequestRecord) -> Sequence[Event]:
        """Return the last facts of a request that has no whole answer; none of any other request."""
        if record.ending in {None, "completed", "abandoned"}:
            return ()
        journal = self.runtime.store.journal
        try:
            if journal is not None and record.fact_count:
                start = max(record.fact_count - _LAST_FACTS, 0)
                if found := await call_store_in_time(journal.facts(record.request_id, start=start)):
                    return [each.fact for each in found]
            # Only the memory of this process has it: there is no journal, or the store failed before the request began.
            return [each async for each in self.runtime.request(record.request_id).events() if each.is_fact]
        except (StoreDamaged, UnsupportedStoreFormat, UnknownRequest):
            return ()  # The messages are stored apart, and are shown.

    # ------------------------------------------------------------------------------------------------ one request

    async def _found(self, owner: Owner, request_id: str) -> tuple[RequestHandle, RequestRecord]:
        """Return a handle on a request of the user. Raises `UnknownRequest` also for a request of somebody else."""
        if not request_id.isascii() or not request_id.isprintable():  # Some databases refuse such an id.
            raise UnknownRequest("no request has such an id")
        handle = self.runtime.request(request_id)
        record = await handle.record()
        if not owner.owns(record.conversation_id):
            raise UnknownRequest("the request belongs to somebody else")
        return handle, record

    async def _request(self, http: Request, owner: Owner) -> Response:
        handle, record = await self._found(owner, http.path_params["request_id"])
        questions = await handle.pending_approvals() if record.fact_count and record.ending is None else ()
        approvals = [
            {
                "id": approval_id(each, record.request_id),
                "name": each.name,
                "arguments": each.arguments,
                "call_id": each.call_id,
            }
            for each in questions
        ]
        listed = _listed(record, _explanation_in(await self._last_facts_of(record)))
        about = {**listed, "conversation_id": owner.shown(record.conversation_id)}
        return json_response({**about, "approvals": approvals})

    async def _show(
        self, kind: type[EventsResponse | TextResponse], _http: Request, _owner: Owner, handle: RequestHandle
    ) -> Response:
        return kind(handle, heartbeat_seconds=self.streaming["heartbeat_seconds"])

    async def _cancel(self, http: Request, _owner: Owner, handle: RequestHandle) -> Response:
        given = await read_json(http, Cancel, self.max_body_bytes)
        return _answered(await handle.cancel(given.reason))

    async def _steer(self, http: Request, _owner: Owner, handle: RequestHandle) -> Response:
        given = await read_json(http, Steering, self.max_body_bytes)
        return _answered(await handle.steer(given.text))

    async def _decide(self, http: Request, owner: Owner, handle: RequestHandle) -> Response:
        given = await read_json(http, Decision, self.max_body_bytes)
        self._check_edits(given.arguments)
        storable_json(given.arguments, "arguments")
        for question in await handle.pending_approvals():
            if approval_id(question, handle.request_id) == given.id:
                about: Any = {"by": owner.name, "reason": given.reason, "remember": given.remember}
                if given.approved:
                    return _answered(await handle.approve(question, arguments=given.arguments, **about))
                return _answered(await handle.deny(question, **about))
        return _answered("ended")

    def _check_edits(self, arguments: Mapping[str, Any] | None) -> None:
        if arguments is not None and not self.may_edit:
            raise HTTPException(403, "arguments cannot be edited here; approve or deny the call as it is")

    async def _answer(self, http: Request, _owner: Owner, handle: RequestHandle) -> Response:
        given = await read_json(http, Answer, self.max_body_bytes)
        if given.name not in self.client_tools:
            raise HTTPException(403, "clients do not run this tool")
        answer = answer_of(given.call_id, given.name, given.output, given.error)
        return _answered(await handle.inject(event_of(answer, handle.request_id)))


def _listed(record: RequestRecord, explanation: str) -> dict[str, Any]:
    about = {"request_id": record.request_id, "outcome": record.ending, "started_at": record.started_at}
    return {**about, "explanation": explanation}


def _explanation_in(facts: Sequence[Event]) -> str:
    """Return why a request has no whole answer, as its stream has said it."""
    return explain(facts[-1]) if facts and isinstance(facts[-1], RequestEnding) else ""


def _shown_of(requests: Sequence[RequestRecord]) -> RequestRecord | None:
    """Return the request that a page shows after it was reloaded; None if nothing runs."""
    unfinished = [each for each in requests if each.ending is None]
    # A request that waits for its turn has nothing to show, and the one before it may wait for an answer of this page.
    return next((each for each in unfinished if each.fact_count), unfinished[0] if unfinished else None)


def _status_of(result: RequestResult[Any]) -> int:
    """Return 200 unless the request failed; then 409 for a busy conversation, 502 if the provider failed, else 500."""
    if result.error is None:
        return 200
    if isinstance(result.error, ConversationBusy):  # It is busy in another process.
        return 409
    return 502 if result.error.fault == "provider" else 500


def _headers_of(owner: Owner, session: RequestSession) -> dict[str, str]:
    """Return the ids that a client needs. Headers are ASCII, so the conversation's id is percent-encoded."""
    conversation_id = quote(owner.shown(session.conversation_id), errors="replace")
    return {"X-Request-Id": session.request_id, "X-Conversation-Id": conversation_id}


def _answered(answer: CommandStatus) -> Response:
    return json_response({"status": answer}, _STATUS[answer])
