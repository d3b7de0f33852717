"""The reading of what pages send: `useChat` of the AI SDK, and AG-UI's `RunAgentInput`. Pure.

Only the newest message is read: the history in a body is not trusted, because the server has its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast
from urllib.parse import quote, unquote

import orjson

from .._option_checks import listed
from ..errors import BusError, ConfigurationError, DecodeError, InvalidHistory
from ..events import ApprovalRequested, ToolCallCompleted, ToolCallFailed
from ..messages import FilePart, ImagePart, Part, TextPart, UserMessage, from_vercel
from ..messages.wire import label, list_at, mapping_at, text_at
from ..records import event_json
from ..schemas import MAX_VALUES, has_many_values, with_whole_characters
from ..session import read_prompt

_Wire: TypeAlias = Mapping[str, Any]
MAX_BODY_BYTES = 4 * 1024 * 1024
_MAX_ANSWERS = 1_000
_NO_MESSAGE = "the body has no messages"
_MAX_PARTS = 1_000
"""The number of parts of a prompt. Checking tens of thousands would hold the event loop for too long."""


class AnswerableRequest(Protocol):
    """A request that takes answers: a `RequestSession`, or a `RequestHandle`, whose members are awaited.

    Example:
        from toolbus.web import AnswerableRequest, ClientAnswer, ClientDecision, ClientRequest, read_vercel

        message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hello?"}]}
        body = {"id": "chat-1", "messages": [message]}
        asked: ClientRequest = read_vercel(body)
        print(asked.conversation_id, asked.prompt.content)  # chat-1 Hello?

        async def answer(request: AnswerableRequest) -> None:  # a session, or a handle of a request anywhere
            decisions: tuple[ClientDecision, ...] = asked.decisions
            answers: tuple[ClientAnswer, ...] = asked.answers
            if decisions or answers:
                await asked.answer(request)
    """

    request_id: str

    @property
    def pending_approvals(self) -> Any:
        """The questions that are open, or an async function that returns them."""
        ...

    @property
    def approve(self) -> Callable[..., Any]:
        """The function that lets a call run."""
        ...

    @property
    def deny(self) -> Callable[..., Any]:
        """The function that denies a call."""
        ...

    @property
    def inject(self) -> Callable[..., Any]:
        """The function that answers the call of an external tool."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientDecision:
    """A person's decision on one call. `definition` is that of the question: see `ApprovalRequested`.

    `request_id` is the request that the page shows, if one of its sub-requests has asked; otherwise empty.
    """

    call_id: str
    definition: str
    approved: bool
    reason: str = ""
    arguments: dict[str, Any] | None = None
    request_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAnswer:
    """The result of a call that the page has run. `error` is set for a failure; `content` is text for the model."""

    call_id: str
    name: str
    content: str = ""
    data: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """The content of one HTTP request of a page: a prompt, or answers to calls that a request waits for.

    None of it can be trusted: the application decides who may use `conversation_id`. `prompt` is None if the page sends
    answers. `regenerate` asks for another answer to the same prompt. `run_id` and `protocol_version` are those of
    AG-UI, whose clients before version 1 send no version; for `useChat` both are empty.
    """

    conversation_id: str
    run_id: str = ""
    protocol_version: str = ""
    prompt: UserMessage | None = None
    decisions: tuple[ClientDecision, ...] = ()
    answers: tuple[ClientAnswer, ...] = ()
    regenerate: bool = False

    @property
    def answered(self) -> frozenset[str]:
        """The calls that the page decides, and the results that it brings, for an encoder or a response."""
        results = (result_id(each.call_id) for each in self.answers)
        return frozenset([*(each.call_id for each in self.decisions), *results])

    @property
    def request_id(self) -> str:
        """The id of the request whose calls are answered; empty without answers, or if several requests have them."""
        above = {each.call_id: each.request_id for each in self.decisions}
        calls = [each.call_id for each in (*self.decisions, *self.answers)]
        found = {above.get(each) or each.rsplit("_", 2)[0] for each in calls}
        return found.pop() if len(found) == 1 else ""

    async def answer(self, request: AnswerableRequest, *, client_tools: Collection[str] = (), by: str = "") -> int:
        """Give the decisions and answers to their request, and return how many of them count.

        The others change nothing: those for a call that is not open, for another definition of the tool than the one
        that was shown, or for a tool that is not one of `client_tools` (which the page may run). An answer that is
        queued for the process of its request counts. `by` names the person.
        """
        counted, names = 0, tool_names(client_tools)
        questions: Sequence[ApprovalRequested] = ()
        if self.decisions:
            pending: Any = request.pending_approvals
            questions = await pending() if inspect.ismethod(pending) else pending
        for decision in self.decisions:
            asked = (decision.call_id, decision.definition)
            for question in questions:
                if (question.call_id, question.definition) == asked:
                    counted += await _counts(_decided(request, question, decision, by))
        for given in self.answers:
            if given.name in names:
                counted += await _inject(request, given)
        return counted


async def _counts(answer: Any) -> bool:
    """Return whether a command counts, from the answer of a session or a handle."""
    return (await answer if inspect.isawaitable(answer) else answer) in {True, "done", "queued"}


def _decided(request: AnswerableRequest, question: ApprovalRequested, decision: ClientDecision, by: str) -> Any:
    if decision.approved:
        return request.approve(question, arguments=decision.arguments, by=by, reason=decision.reason)
    return request.deny(question, by=by, reason=decision.reason)


async def _inject(request: AnswerableRequest, given: ClientAnswer) -> bool:
    try:
        return await _counts(request.inject(event_of(given, request.request_id)))
    except BusError:
        return False


def event_of(given: ClientAnswer, request_id: str) -> ToolCallCompleted | ToolCallFailed:
    """Return an answer as an event whose id depends only on the call, so an answer that is sent twice is one answer."""
    about: Any = {"request_id": request_id, "call_id": given.call_id, "name": given.name}
    about["event_id"] = f"{given.call_id}_page"
    if given.error:
        return ToolCallFailed(**about, reason="error", error=given.error)
    return ToolCallCompleted(**about, content=given.content, data=given.data)


def tool_names(client_tools: Collection[str]) -> frozenset[str]:
    """Return the names of the tools that a page runs. Raises `ConfigurationError` for one name without a list."""
    return frozenset(listed("client_tools", client_tools, "pass a list of names of tools"))


def approval_id(question: ApprovalRequested, request_id: str) -> str:
    """Return the id of a question on a page that shows the request, which may be above the one that asks.

    A decision with it covers only the definition that was asked about.
    """
    above = "" if question.request_id == request_id else f"{quote(request_id, '')}/"
    return f"{above}{quote(question.call_id, '')}.{question.definition}"


# ------------------------------------------------------------------------------------------------- reading


def read_vercel(body: bytes | str | _Wire, *, max_bytes: int = MAX_BODY_BYTES) -> ClientRequest:
    """Read the body that `useChat` sends, of the AI SDK 6 or 7, with all messages or only the newest as `message`.

    The newest message is the user's, or the assistant's with decisions and results of calls in its last step. Raises
    `DecodeError`, with the path of what is wrong, for a body that is not such an object, that has more than
    `max_bytes` (unless it was read already) or 100,000 values, or whose message has more than 1,000 parts or asks
    nothing.
    """
    wire = _object(body, max_bytes)
    with _as_decode_error():
        messages = list_at(0, wire.get("messages"), "messages") or [wire.get("message")]
        if messages == [None]:
            raise DecodeError(_NO_MESSAGE)
        index = len(messages) - 1
        newest = mapping_at(index, messages[-1], "a message")
        about: dict[str, Any] = {
            "conversation_id": text_at(index, wire.get("id"), "id"),
            "regenerate": wire.get("trigger") == "regenerate-message",
        }
        if newest.get("role") == "user":
            return ClientRequest(prompt=_prompt(index, newest), **about)
        if newest.get("role") != "assistant":
            raise InvalidHistory(index, f"the newest message has the role {label(newest.get('role'))!r}, not user")
        parts = [mapping_at(index, each, "a part") for each in list_at(index, newest.get("parts"), "parts")]
        begins = [at for at, each in enumerate(parts) if each.get("type") == "step-start"]
        step = parts[begins[-1] :] if begins else parts
        decisions, answers = _answers_of(index, step)
    if not decisions and not answers:
        raise DecodeError("the newest message is the assistant's, and has no answer to a call")
    return ClientRequest(decisions=decisions, answers=answers, **about)


def _answers_of(index: int, step: Sequence[_Wire]) -> tuple[tuple[ClientDecision, ...], tuple[ClientAnswer, ...]]:
    decisions: list[ClientDecision] = []
    answers: list[ClientAnswer] = []
    for part in step:
        kind, state = label(part.get("type")) or "", label(part.get("state"))
        if kind != "dynamic-tool" and not kind.startswith("tool-"):
            continue
        approval = mapping_at(index, part.get("approval") or {}, "approval")
        if state == "approval-responded":
            approved = approval.get("approved")
            if not isinstance(approved, bool):
                raise InvalidHistory(index, "approval.approved must be true or false")
            asked = text_at(index, approval.get("id"), "approval.id")
            decisions.append(
                _decision(asked, approved=approved, reason=text_at(index, approval.get("reason"), "approval.reason"))
            )
        elif kind != "dynamic-tool" and state in {"output-available", "output-error"}:
            name, call_id = kind.removeprefix("tool-"), text_at(index, part.get("toolCallId"), "toolCallId")
            error = ""
            if state == "output-error":
                error = text_at(index, part.get("errorText"), "errorText") or "The call failed."
            answers.append(answer_of(call_id, name, part.get("output"), error))
    return _bounded(decisions), _bounded(answers)


def read_agui(body: bytes | str | _Wire, *, connects: bool = False, max_bytes: int = MAX_BODY_BYTES) -> ClientRequest:
    """Read AG-UI's `RunAgentInput`. `conversation_id` is its `threadId`.

    Entries of `resume` are decisions: the payload of a resolved one is `{"approved": true, "reason": "...",
    "editedArgs": {...}}`, and a cancelled one denies. The results after the newest reply are answers, except those of
    calls that are decided now (some clients write the decision there), and those that the page was shown (`AguiEncoder`
    has given them their ids); these only count if there is nothing else. Without any of these, the newest message has
    to be the user's. With `connects`, the page asks for what runs already, and only its ids are read. Raises as
    `read_vercel` does.
    """
    wire = _object(body, max_bytes)
    with _as_decode_error():
        messages = list_at(0, wire.get("messages"), "messages")
        index = max(len(messages) - 1, 0)
        about: dict[str, Any] = {
            "conversation_id": text_at(index, wire.get("threadId"), "threadId"),
            "run_id": text_at(index, wire.get("runId"), "runId"),
            "protocol_version": text_at(index, wire.get("protocolVersion"), "protocolVersion"),
        }
        if connects:
            return ClientRequest(**about)
        entries = list_at(index, wire.get("resume"), "resume")
        decisions = _bounded([_resumed(index, mapping_at(index, each, "an entry of resume")) for each in entries])
        own, shown = _results(messages)
        # A page that sends only what it was shown asks for the rest.
        decided = {each.call_id for each in decisions}
        answers = _bounded([each for each in own if each.call_id not in decided] if own or decisions else shown)
        if decisions or answers:
            return ClientRequest(decisions=decisions, answers=answers, **about)
        if not messages:
            raise DecodeError(_NO_MESSAGE)
        newest = mapping_at(index, messages[-1], "a message")
        if newest.get("role") != "user":
            raise InvalidHistory(index, f"the newest message has the role {label(newest.get('role'))!r}, not user")
        content = newest.get("content")
        if isinstance(content, str):
            return ClientRequest(prompt=_checked(index, UserMessage(content=content)), **about)
        parts = [_agui_part(index, mapping_at(index, each, "a part")) for each in _parts(index, content, "content")]
        return ClientRequest(prompt=_checked(index, UserMessage(content=tuple(parts))), **about)


def _resumed(index: int, entry: _Wire) -> ClientDecision:
    asked, status = text_at(index, entry.get("interruptId"), "interruptId"), label(entry.get("status"))
    if status == "cancelled":
        return _decision(asked, approved=False)
    if status != "resolved":
        raise InvalidHistory(index, f"resume has the status {status!r}, not one of resolved, cancelled")
    payload = mapping_at(index, entry.get("payload"), "the payload of resume")
    approved, arguments = payload.get("approved"), payload.get("editedArgs")
    if not isinstance(approved, bool):
        raise InvalidHistory(index, "the payload of resume must say whether the call is approved, as true or false")
    edited = None if arguments is None else dict(mapping_at(index, arguments, "editedArgs"))
    storable_json(edited, "editedArgs")
    return _decision(asked, approved=approved, reason=text_at(index, payload.get("reason"), "reason"), arguments=edited)


def _results(messages: Sequence[Any]) -> tuple[list[ClientAnswer], list[ClientAnswer]]:
    """Return the results of tools at the end of the messages: those of the page, and those that it was shown.

    The names are those of the reply before them.
    """
    tail: list[tuple[int, _Wire]] = []
    names: dict[str, str] | None = None
    for index in range(len(messages) - 1, -1, -1):
        message = mapping_at(index, messages[index], "a message")
        role = message.get("role")
        if role == "tool" and names is None and len(tail) <= _MAX_ANSWERS:
            tail.append((index, message))
        elif role == "assistant" and tail:  # A reply that was shown again has several messages.
            names = {} if names is None else names
            for call_id, name in _names_of(index, message):
                names.setdefault(call_id, name)
        elif role != "reasoning":
            break
    own: list[ClientAnswer] = []
    shown: list[ClientAnswer] = []
    for index, message in reversed(tail):
        call_id = text_at(index, message.get("toolCallId"), "toolCallId")
        error = text_at(index, message.get("error"), "error")
        answer = answer_of(call_id, (names or {}).get(call_id, ""), message.get("content"), error)
        (shown if message.get("id") == result_id(call_id) else own).append(answer)
    return own, shown


def _names_of(index: int, reply: _Wire) -> Iterator[tuple[str, str]]:
    """Yield the id and the name of each call of a reply."""
    for each in list_at(index, reply.get("toolCalls"), "toolCalls"):
        call = mapping_at(index, each, "a call")
        function = mapping_at(index, call.get("function"), "function")
        yield text_at(index, call.get("id"), "id"), text_at(index, function.get("name"), "name")


def _agui_part(index: int, part: _Wire) -> Part:
    kind = label(part.get("type"))
    if kind == "text":
        return TextPart(text=text_at(index, part.get("text"), "a part's text"))
    if kind not in {"image", "audio", "video", "document"}:
        raise InvalidHistory(index, f"a part of type {kind!r} is not one of text, image, audio, video, document")
    source = mapping_at(index, part.get("source"), "a source")
    value = text_at(index, source.get("value"), "a source's value")
    media_type = text_at(index, source.get("mimeType"), "mimeType")
    if source.get("type") == "data":
        value = f"data:{media_type};base64,{value}"
    elif source.get("type") != "url":
        raise InvalidHistory(index, f"a source of type {label(source.get('type'))!r} is not one of data, url")
    if kind == "image":
        return ImagePart(url=value)
    about = part.get("metadata")  # Clients give the name of a file here.
    name = text_at(index, cast("_Wire", about).get("filename"), "filename") if isinstance(about, Mapping) else ""
    return FilePart(url=value, media_type=media_type or "application/octet-stream", name=name)


# ------------------------------------------------------------------------------------------------- shared


def _object(body: bytes | str | _Wire, max_bytes: int) -> _Wire:
    if isinstance(body, Mapping):
        return body
    data = body.encode("utf-8", "replace") if isinstance(body, str) else bytes(body)
    if len(data) > max_bytes:
        raise DecodeError(f"the body has {len(data)} bytes, and at most {max_bytes} are read")
    # A page may cut a text within an emoji.
    return json_object(with_whole_characters(data), "; send only the newest message")


def json_object(data: bytes, advice: str = "") -> dict[str, Any]:
    """Return the JSON object in a body. Raises `DecodeError`, with `advice` if there are more than 100,000 values."""
    if has_many_values(data):
        raise DecodeError(f"the body has more than {MAX_VALUES} values{advice}")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        raise DecodeError(f"the body is not JSON: {exc}") from None
    if not isinstance(value, dict):
        raise DecodeError(f"the body must be an object, not {type(value).__name__}")
    return cast("dict[str, Any]", value)


@contextmanager
def _as_decode_error() -> Generator[None]:
    try:
        yield
    except InvalidHistory as exc:
        raise DecodeError(f"messages[{exc.index}]: {exc.problem}") from None


def _prompt(index: int, message: _Wire) -> UserMessage:
    if "parts" not in message:
        raise InvalidHistory(index, "the message has no parts; version 5 and later of the AI SDK send them")
    try:
        (found,) = from_vercel([{"role": "user", "parts": _parts(index, message.get("parts"), "parts")}])
    except InvalidHistory as exc:
        raise InvalidHistory(index, exc.problem) from None
    assert isinstance(found, UserMessage)
    return _checked(index, found)


def _parts(index: int, value: object, what: str) -> Sequence[Any]:
    parts = list_at(index, value, what)
    if len(parts) > _MAX_PARTS:
        raise InvalidHistory(index, f"the message has more than {_MAX_PARTS} parts")
    return parts


def _checked(index: int, prompt: UserMessage) -> UserMessage:
    """Return a prompt that may be asked. Raises `InvalidHistory`.

    A model's vendor might open other URLs, such as a local file or a private bucket, with rights that no page has.
    """
    for part in () if isinstance(prompt.content, str) else prompt.content:
        if not isinstance(part, TextPart) and not part.url.lower().startswith(("http://", "https://", "data:")):
            raise InvalidHistory(index, f"the URL {part.url[:40]!r} is not one of http, https or data")
    try:
        return read_prompt(prompt)
    except ConfigurationError as exc:
        raise InvalidHistory(index, str(exc)) from None


def result_id(shown_id: str) -> str:
    """Return the id of the result of a call: in AG-UI, that of the message with which a page was shown it."""
    return f"{shown_id}_result"


def _decision(
    asked: str, *, approved: bool, reason: str = "", arguments: dict[str, Any] | None = None
) -> ClientDecision:
    above, _, own = asked.rpartition("/")
    call_id, _, definition = own.rpartition(".")
    about = {"call_id": unquote(call_id), "definition": definition, "request_id": unquote(above)}
    return ClientDecision(**about, approved=approved, reason=reason, arguments=arguments)


def answer_of(shown_id: str, name: str, output: object, error: str) -> ClientAnswer:
    """Return the answer of a page to a call: its error, or its output as text, and as data unless it is a text.

    `shown_id` is that of `ShownCall`. Raises `DecodeError` for an output that cannot be written as JSON.
    """
    call_id = shown_id.partition("~")[0]
    if error:
        return ClientAnswer(call_id=call_id, name=name, error=error)
    written = storable_json(output, f"the output of call {shown_id[:80]!r}")
    content, data = (output, None) if isinstance(output, str) else (written, output)
    return ClientAnswer(call_id=call_id, name=name, content=content, data=data)


def storable_json(value: object, what: str) -> str:
    """Return the JSON of a value. Raises `DecodeError`, which names `what`, for one that an event cannot hold."""
    try:
        return event_json(value).decode()
    except (TypeError, RecursionError) as exc:
        raise DecodeError(f"{what} cannot be kept: {exc}") from None


def _bounded(found: list[Any]) -> tuple[Any, ...]:
    if len(found) > _MAX_ANSWERS:
        raise DecodeError(f"the body has more than {_MAX_ANSWERS} answers")
    return tuple(found)
