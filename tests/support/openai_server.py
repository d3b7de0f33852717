"""An OpenAI-compatible chat-completions server on a loopback socket, for tests.

It streams real wire chunks over HTTP/1.1, and misbehaves as it is told. Replies are scripted, requests recorded:

    with OpenAIServer([calls(("get_weather", {"city": "Paris"})), text("Sunny.")]) as server:
        provider = OpenAIProvider("test-model", api_key="k", base_url=server.base_url)
        ...
    assert server.requests[1].messages[-1]["role"] == "tool"

Threads of the standard library, so it serves tests on any event loop, and subprocesses. Leaving the block ends
hanging replies, closes all connections and waits for the threads. A request beyond the script gets a 500 that says so.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self

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
    """`whole` cut every `size` characters."""
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
class RecordedRequest:
    """What a client sent."""

    method: str
    path: str
    headers: Mapping[str, str]  # names in lower case
    body: Any

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.body["messages"]


class OpenAIServer:
    """The server. `script` is a list of replies, used up in order of arrival, or one function of the request.

    `base_url` is what a client needs; `requests` are the chat requests received; `connections` counts TCP
    connections; `left` is set when a client closed its end while a reply was hanging. With `api_key`, others get a 401
    that quotes the key that they sent, as careless servers do.
    """

    def __init__(self, script: Script = (), *, api_key: str | None = None) -> None:
        self.script = script
        self.api_key = api_key
        self.requests: list[RecordedRequest] = []
        self.connections = 0
        self.hanging = threading.Event()
        self.left = threading.Event()
        self._taken = 0
        self._stopping = False
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._http = _Http(("127.0.0.1", 0), self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), name="openai-server")

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def base_url(self) -> str:
        return f"{self.origin}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._http.shutdown()
        self._thread.join()
        with self._lock:
            self._stopping = True
            for each in self._open:
                _hang_up(each)
        self._http.server_close()  # waits for the threads of connections

    def opened(self, connection: socket.socket) -> None:
        with self._lock:
            self.connections += 1
            self._open.add(connection)
            if self._stopping:  # accepted just before the end
                _hang_up(connection)

    def closing(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)

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


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the client was quicker
        connection.shutdown(socket.SHUT_RDWR)


class _Http(ThreadingHTTPServer):
    daemon_threads = False  # so that server_close waits for them
    block_on_close = True

    def __init__(self, address: tuple[str, int], owner: OpenAIServer) -> None:
        self.owner = owner
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of the tests; nothing is printed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def owner(self) -> OpenAIServer:
        assert isinstance(self.server, _Http)
        return self.server.owner

    def setup(self) -> None:
        super().setup()
        self.owner.opened(self.connection)

    def finish(self) -> None:
        self.owner.closing(self.connection)
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base's name
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._whole(200, {"object": "list", "data": [{"id": "test-model", "object": "model"}]}, {})
        else:
            self._whole(404, "not here", {})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path != "/v1/chat/completions":
            self._whole(404, {"error": {"message": f"no route {self.path}"}}, {})
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.owner.reply_to(RecordedRequest(self.command, self.path, headers, json.loads(raw)))
        if reply.before_headers:
            self._end(reply.ending)
        elif reply.status != 200 or reply.body is not None:
            self._whole(reply.status, reply.body, reply.headers)
        else:
            self._stream(reply)

    def _whole(self, code: int, body: Any, headers: Mapping[str, str]) -> None:
        written = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(code)
        kind = "text/html" if isinstance(body, str) else "application/json"
        for name, value in {"Content-Type": kind, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(written)))
        self.end_headers()
        self.wfile.write(written)

    def _stream(self, reply: Reply) -> None:
        self.send_response(200)
        for name, value in {"Content-Type": "text/event-stream; charset=utf-8", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in self._lines(reply):
            data = line.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        self._end(reply.ending)

    def _lines(self, reply: Reply) -> Iterator[str]:
        yield ": a comment, as some gateways send to keep the line alive\n\n"
        for each in reply.chunks:
            yield each if isinstance(each, str) else f"data: {json.dumps(each)}\n\n"
        if reply.ending == "done":
            yield "data: [DONE]\n\n"

    def _end(self, ending: Ending) -> None:
        if ending in {"done", "no_done"}:
            self.wfile.write(b"0\r\n\r\n")
            return
        self.close_connection = True
        if ending == "hang":
            self.owner.hanging.set()
            if not self.connection.recv(1):
                self.owner.left.set()
        elif ending == "reset":
            linger = struct.pack("ii", 1, 0)  # closing then sends RST instead of FIN
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.owner.closing(self.connection)
            self.connection.close()
