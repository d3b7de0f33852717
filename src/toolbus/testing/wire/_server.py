"""An HTTP server on a loopback socket that streams, stalls and breaks off as an `Answer` says.

The module knows sockets and HTTP/1.1, and no vendor.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import anyio.to_thread

from ._script import HttpRequest

Ending: TypeAlias = Literal["whole", "cut", "reset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a request: `frames`, each sent as soon as it is there, then the `ending`.

    "whole" ends the body as HTTP does; "cut" closes the connection inside it, "reset" does so with a TCP reset. After
    `stall_after` frames nothing is sent until `LoopbackServer.release`; -1 stalls before the headers. With
    `before_headers`, "cut" and "reset" happen before the first byte. With `streamed=False` the frames are one body with
    its length.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    frames: Iterable[bytes] = ()
    ending: Ending = "whole"
    stall_after: int | None = None
    before_headers: bool = False
    streamed: bool = True


class LoopbackServer:
    """The server: `with LoopbackServer(answer) as server`. `answer` is called in a thread for each request.

    `connections` is the number of connections so far, `open_connections` that of the open ones. `stalled` is set when
    an answer stalls, `left` when a client closed its end meanwhile. Leaving the block ends stalled answers, closes all
    connections and waits for the threads.
    """

    def __init__(self, answer: Callable[[HttpRequest], Answer]) -> None:
        self.answer = answer
        self.connections = 0
        self.stalled = threading.Event()
        self.left = threading.Event()
        self._changed = threading.Condition()
        self._stopping = False
        self._open: set[socket.socket] = set()
        self._wakers: list[socket.socket] = []
        self._http = _Http(("127.0.0.1", 0), self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), name="toolbus-stub-server")

    @property
    def origin(self) -> str:
        """The server's URL, without a path."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def open_connections(self) -> int:
        """The number of connections that neither side has closed."""
        return len(self._open)

    @property
    def stalls(self) -> int:
        """The number of answers that are stalled now."""
        return len(self._wakers)

    def release(self) -> None:
        """Let the answers continue that are stalled now."""
        with self._changed:
            for waker in self._wakers:
                waker.send(b"x")

    def hang_up(self) -> None:
        """Close all connections."""
        with self._changed:
            for each in self._open:
                _hang_up(each)

    async def reached(self, what: Callable[[], bool], seconds: float) -> bool:
        """Wait until `what()` is true, for at most `seconds`, and return whether it is.

        It is tested whenever something happens on the server, in a thread, so a cancellation waits for the result.
        """
        if what():
            return True

        def wait() -> bool:
            with self._changed:
                return self._changed.wait_for(what, seconds)

        return await anyio.to_thread.run_sync(wait)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._thread.join()
        with self._changed:
            self._stopping = True
        self.hang_up()
        self._http.server_close()  # waits for the threads of connections

    # ------------------------------------------------------------------------------------- for the handlers

    def opened(self, connection: socket.socket) -> int:
        """Count a new connection, and return its number."""
        with self._changed:
            self.connections += 1
            self._open.add(connection)
            if self._stopping:  # accepted just before the end
                _hang_up(connection)
            self._changed.notify_all()
            return self.connections

    def closed(self, connection: socket.socket) -> None:
        """Count a connection's end."""
        with self._changed:
            self._open.discard(connection)
            self._changed.notify_all()

    def notify(self) -> None:
        """Wake the callers that wait for something to happen."""
        with self._changed:
            self._changed.notify_all()

    def wait_for_release(self, connection: socket.socket) -> bool:
        """Wait to be released. Returns False if the client leaves, or the server stops, before."""
        asleep, waker = socket.socketpair()
        with asleep, waker, selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ)
            selector.register(asleep, selectors.EVENT_READ)
            with self._changed:
                self._wakers.append(waker)
                self.stalled.set()
                self._changed.notify_all()
            released = any(key.fileobj is asleep for key, _ in selector.select())
            with self._changed:
                self._wakers.remove(waker)
                if not released and not self._stopping:
                    self.left.set()
                self._changed.notify_all()
        return released


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the client closed it first
        connection.shutdown(socket.SHUT_RDWR)


class _Http(ThreadingHTTPServer):
    daemon_threads = False  # server_close has to wait for the threads
    block_on_close = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], owner: LoopbackServer) -> None:
        self.owner = owner
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: clients that hang up are expected."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def owner(self) -> LoopbackServer:
        assert isinstance(self.server, _Http)
        return self.server.owner

    def setup(self) -> None:
        super().setup()
        self.number = self.owner.opened(self.connection)

    def finish(self) -> None:
        try:
            super().finish()
        finally:
            self.owner.closed(self.connection)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base's name
        """Print nothing."""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = self.owner.answer(
            HttpRequest(self.command, self.path, headers, json.loads(raw) if raw else None, self.number)
        )
        self.owner.notify()
        if answer.stall_after == -1 and not self._stalled():
            return
        if answer.before_headers:
            self._end(answer.ending)
        elif answer.streamed:
            self._stream(answer)
        else:
            body = b"".join(answer.frames)
            self._head(answer, {"Content-Length": str(len(body))})
            self.wfile.write(body)

    def _head(self, answer: Answer, more: Mapping[str, str]) -> None:
        self.send_response(answer.status)
        for name, value in {**answer.headers, **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def _stream(self, answer: Answer) -> None:
        self._head(answer, {"Transfer-Encoding": "chunked"})
        number = 0
        for number, frame in enumerate(answer.frames):
            if answer.stall_after == number and not self._stalled():
                return
            self.wfile.write(b"%x\r\n%s\r\n" % (len(frame), frame))
            self.wfile.flush()
        if answer.stall_after is not None and answer.stall_after > number and not self._stalled():
            return
        self._end(answer.ending)

    def _stalled(self) -> bool:
        self.wfile.flush()
        released = self.owner.wait_for_release(self.connection)
        self.close_connection = not released
        return released

    def _end(self, ending: Ending) -> None:
        if ending == "whole":
            self.wfile.write(b"0\r\n\r\n")
            return
        self.close_connection = True
        if ending == "reset":
            linger = struct.pack("ii", 1, 0)  # close() then sends RST instead of FIN
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.owner.closed(self.connection)
            self.connection.close()
