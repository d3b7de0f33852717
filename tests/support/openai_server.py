"""A server that sends given chat chunks, for replies that the neutral terms of `toolbus.testing.wire` cannot express.

Examples are missing indices or only 0, chunks without choices, ids that change, and bodies that are not streamed. Use
`WireServer` for everything that neutral terms can express. Replies are scripted, and requests are recorded:

    with OpenAIServer([calls(("get_weather", {"city": "Paris"})), text("Sunny.")]) as server:
        provider = OpenAIProvider("test-model", api_key="k", base_url=server.base_url)
        ...
    assert server.requests[1].messages[-1]["role"] == "tool"

A request after the end of the script gets a 500 that says so.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from toolbus.records import replace
from toolbus.testing import wire
from toolbus.testing.wire import Answer, LoopbackServer

Ending = Literal["done", "no_done", "cut", "reset", "hang"]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One scripted answer. `chunks` are sent as `data:` lines (text as it is, objects as JSON), then `ending`:

    "done" is `[DONE]`; "no_done" ends the body without it; "cut" closes the connection inside the chunked body;
    "reset" does so with a TCP reset; "hang" keeps the connection open until the client leaves or the server stops.
    With `status` other than 200, or with `body`, nothing is streamed: `body` is sent (text as it is, else as JSON).
    `before_headers=True` makes "hang", "cut" and "reset" happen before a single byte of the answer.
    """

    chunks: Sequence[Mapping[str, Any] | str] = ()
    ending: Ending = "done"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Any = None
    before_headers: bool = False


Script = Sequence["Reply | Callable[[RecordedRequest], Reply]"] | Callable[["RecordedRequest"], Reply]

USAGE: dict[str, Any] = {
    "prompt_tokens": 20,
    "completion_tokens": 10,
    "total_tokens": 30,
    "prompt_tokens_details": {"cached_tokens": 5},
    "completion_tokens_details": {"reasoning_tokens": 3},
}


def chunk(delta: Mapping[str, Any] | None = None, *, finish_reason: str | None = None, **more: Any) -> dict[str, Any]:
    """One wire chunk with one choice."""
    choice = {"index": 0, "delta": dict(delta or {}), "logprobs": None, "finish_reason": finish_reason}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "test-model-2026"}
    return {**head, "choices": [choice], **more}


def _usage_chunks(usage: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [] if usage is None else [chunk(usage=usage, choices=[])]


def pieces_of(whole: str, size: int) -> list[str]:
    """Cut `whole` every `size` characters."""
    return [whole[start : start + size] for start in range(0, len(whole), size)]


def text(content: str, *, size: int = 4, finish_reason: str = "stop", usage: Any = USAGE, reasoning: str = "") -> Reply:
    """A streamed text, `size` characters in each chunk."""
    chunks = [chunk({"role": "assistant", "content": ""})]
    chunks += [chunk({"reasoning_content": piece}) for piece in pieces_of(reasoning, size)]
    chunks += [chunk({"content": piece}) for piece in pieces_of(content, size)]
    return Reply(chunks=[*chunks, chunk(finish_reason=finish_reason), *_usage_chunks(usage)])


def calls(
    *pairs: tuple[str, Any],
    content: str = "",
    size: int = 5,
    ids: Sequence[str | None] | None = None,
    index: Literal["count", "zero", "none"] = "count",
    whole: bool = False,
    finish_reason: str = "tool_calls",
    usage: Any = USAGE,
) -> Reply:
    """Streamed tool calls: id and name in the first delta of each, argument text `size` characters at a time.

    `ids` are the calls' ids (None leaves the key out); `index` sends the call's number, always 0, or no index;
    `whole` sends each call in one delta.
    """
    chunks = [chunk({"role": "assistant", "content": content or None})]
    for number, (name, arguments) in enumerate(pairs):
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        place = {} if index == "none" else {"index": number if index == "count" else 0}
        wire_id = f"call_{number}" if ids is None else ids[number]
        head = {**place, **({} if wire_id is None else {"id": wire_id}), "type": "function"}
        first, *rest = [written] if whole else ["", *pieces_of(written, size)]
        chunks.append(chunk({"tool_calls": [{**head, "function": {"name": name, "arguments": first}}]}))
        chunks += [chunk({"tool_calls": [{**place, "function": {"arguments": piece}}]}) for piece in rest]
    return Reply(chunks=[*chunks, chunk(finish_reason=finish_reason), *_usage_chunks(usage)])


def status(code: int, message: str = "no", *, headers: Mapping[str, str] | None = None, body: Any = None) -> Reply:
    """An error answer with the body that OpenAI sends, or with `body`."""
    default = {"error": {"message": message, "type": "some_error", "param": None, "code": None}}
    return Reply(status=code, headers=headers or {}, body=default if body is None else body)


def stream_error(message: str, *, after: Sequence[Mapping[str, Any]] = (), **fields: Any) -> Reply:
    """A stream that begins well and then says `data: {"error": ...}`."""
    return Reply(chunks=[*after, {"error": {"message": message, **fields}}])


def ended(reply: Reply, ending: Ending, *, after: int | None = None, before_headers: bool = False) -> Reply:
    """`reply` with another ending, `after` that many of its chunks."""
    chunks = reply.chunks if after is None else reply.chunks[:after]
    return replace(reply, chunks=chunks, ending=ending, before_headers=before_headers)


@dataclass(frozen=True)
class RecordedRequest(wire.HttpRequest):
    """A request as the client sent it."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.body["messages"]


class OpenAIServer(LoopbackServer):
    """The server. `script` is a list of replies, used up in order of arrival, or one function of the request.

    `base_url` is for the client; `requests` are the received chat requests. With `api_key`, a client with another key
    gets a 401 that quotes that key, as careless servers do.
    """

    def __init__(self, script: Script = (), *, api_key: str | None = None) -> None:
        super().__init__(self._answer_to)
        self.script = script
        self.api_key = api_key
        self.requests: list[RecordedRequest] = []
        self._taken = 0
        self._lock = threading.Lock()

    @property
    def base_url(self) -> str:
        return f"{self.origin}/v1"

    def _answer_to(self, asked: wire.HttpRequest) -> Answer:
        if (asked.method, asked.path) == ("GET", "/v1/models"):
            return _whole(Reply(body={"object": "list", "data": [{"id": "test-model", "object": "model"}]}))
        if (asked.method, asked.path) != ("POST", "/v1/chat/completions"):
            return _whole(status(404, body={"error": {"message": f"no route {asked.path}"}}))
        reply = self.reply_to(
            RecordedRequest(asked.method, asked.path, asked.headers, asked.body, connection=asked.connection)
        )
        if not reply.before_headers and (reply.status != 200 or reply.body is not None):
            return _whole(reply)
        frames = tuple(line.encode() for line in _lines(reply))
        return Answer(
            headers={"Content-Type": "text/event-stream; charset=utf-8", **reply.headers},
            frames=frames,
            ending="cut" if reply.ending == "cut" else "reset" if reply.ending == "reset" else "whole",
            stall_after=None if reply.ending != "hang" else -1 if reply.before_headers else len(frames),
            before_headers=reply.before_headers,
        )

    def reply_to(self, request: RecordedRequest) -> Reply:
        with self._lock:
            self.requests.append(request)
            number = self._taken
            self._taken += 1
        if self.api_key is not None and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return status(401, f"Incorrect API key provided: {request.headers.get('authorization')}")
        if callable(self.script):
            return self.script(request)
        if number >= len(self.script):
            return status(500, f"the stub's script has {len(self.script)} replies, and reply {number} was asked for")
        step = self.script[number]
        return step(request) if callable(step) else step


def _whole(reply: Reply) -> Answer:
    kind = "text/html" if isinstance(reply.body, str) else "application/json"
    written = (reply.body if isinstance(reply.body, str) else json.dumps(reply.body)).encode()
    headers = {"Content-Type": kind, **reply.headers}
    return Answer(status=reply.status, headers=headers, frames=(written,), streamed=False)


def _lines(reply: Reply) -> Iterator[str]:
    yield ": a comment, as some gateways send to keep the line alive\n\n"
    for each in reply.chunks:
        yield each if isinstance(each, str) else f"data: {json.dumps(each)}\n\n"
    if reply.ending == "done":
        yield "data: [DONE]\n\n"
