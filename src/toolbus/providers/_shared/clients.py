"""The clients of SDKs: how one is made, and one for each event loop, because connections belong to a loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any, cast

from anyio.lowlevel import current_token

from .errors import chain_of
from .options import NO_KEY, ApiKey
from .reply_reader import close_response

CONNECT_SECONDS = 5.0  # the SDKs' own limit for connecting
_MAX_REFUSAL_BYTES = 65_536
_MAX_PACKED_REFUSAL_BYTES = 8_192  # a compressed body may become a thousand times as long
CODINGS = {"Accept-Encoding": "gzip, deflate"}
"""The HTTP libraries cannot read only the beginning of a body in another coding, such as zstd."""
_CUT_OFF = frozenset({"RemoteProtocolError", "ReadError", "WriteError"})


class Clients:
    """The clients of a provider, by event loop.

    The first client is built at once, so that wrong options are noticed early, unless a client is given. A client that
    nobody has closed is closed with its event loop, or when the provider is dropped: a program may run an event loop
    for each of its requests, and each client keeps a connection open.
    """

    def __init__(self, build: Callable[[], Any], *, given: Any = None) -> None:
        """Use `given`, in every loop and without ever closing it, or the clients of `build`. Raises what it raises."""
        self._build = build
        self._given = given
        # By event loop: a client, and the generator that closes it.
        self._opened: dict[object, tuple[Any, Any]] = {}
        self._spare = build() if given is None else None

    def get(self) -> Any:
        """Return the client of the running event loop."""
        if self._given is not None:
            return self._given
        loop = current_token().native_token
        opened = self._opened.get(loop)
        if opened is None:
            for ended in [each for each, (_, closing) in [*self._opened.items()] if closing.ag_frame is None]:
                del self._opened[ended]
            client, self._spare = self._spare or self._build(), None
            opened = self._opened[loop] = client, _open(client)
            # Once it has begun, the event loop knows it, and ends it before the loop ends.
            with suppress(StopIteration):
                opened[1].asend(None).send(None)
        return opened[0]

    async def aclose(self) -> None:
        """Close the client of this event loop. Idempotent; `get` builds a new client afterwards."""
        opened, spare = self._opened.pop(current_token().native_token, None), self._spare
        self._spare = None
        if opened is not None:
            await opened[1].aclose()
        if spare is not None:
            await spare.close()


async def _open(client: Any) -> AsyncGenerator[None]:
    """Close `client` when this generator is ended."""
    try:
        yield
    finally:
        await client.close()


def make_client(sdk: str, kind: str, *, api_key: ApiKey, timeout_seconds: float, **options: Any) -> Any:
    """Make a client of a kind that an SDK has. `client_options` has checked that the SDK is installed."""
    timeout = import_module("httpx2").Timeout(timeout_seconds, connect=CONNECT_SECONDS)
    module = import_module(sdk)
    http = module.DefaultAsyncHttpxClient(timeout=timeout, headers=CODINGS, event_hooks=HOOKS)
    key = NO_KEY if callable(api_key) else api_key  # a callable is asked before each request
    return getattr(module, kind)(api_key=key, timeout=timeout, max_retries=0, http_client=http, **options)


class _Connection:
    """The connection that carries a request: a new one, or one that an earlier request has left open.

    It is the request's extension `trace`, which the HTTP libraries await at each of their steps.
    """

    __slots__ = ("is_new",)

    def __init__(self) -> None:
        self.is_new = False

    async def __call__(self, step: str, _details: object) -> None:
        self.is_new = self.is_new or step.startswith("connection.connect")


async def watch_connection(request: Any) -> None:
    """Note which connection carries the request, for `lost_kept_connection`. A hook of the HTTP libraries."""
    request.extensions["trace"] = _Connection()


def lost_kept_connection(exc: BaseException) -> bool:
    """Return whether a request failed because the server closed a connection that an earlier request had left open.

    Some servers close it after each stream, although they promise to keep it (llama.cpp's server), and others after a
    few idle seconds (uvicorn after 5, and httpx keeps it as long). The client learns of that too late if it sends the
    next request at the same moment. Only a server that failed while it worked on this request has seen it.
    """
    for each in chain_of(exc):
        if type(each).__name__ in _CUT_OFF:
            with suppress(AttributeError, RuntimeError):  # The error of another library, or one without a request.
                connection: Any = cast("Any", each).request.extensions.get("trace")
                return type(connection) is _Connection and not connection.is_new
    return False


async def bound_refusal(response: Any) -> None:
    """Let the body of a refusal or a redirect end after its beginning. A hook of the HTTP libraries.

    The SDKs read such a body whole, however long it is.
    """
    if not response.is_success:
        # Only the library of this response knows the class that it requires of a stream.
        required = next(each for each in type(response.stream).__mro__ if each.__name__ == "AsyncByteStream")
        packed = "content-encoding" in response.headers
        limit = _MAX_PACKED_REFUSAL_BYTES if packed else _MAX_REFUSAL_BYTES
        response.stream = _begun(required)(response.stream, limit)


@cache  # Only the garbage collector frees a class, and the libraries have two.
def _begun(required: type) -> type[_Beginning]:
    return type("_Begun", (_Beginning, required), {})


class _Beginning:
    """The beginning of a body. It is not a generator, which would have to be closed if left half-way."""

    def __init__(self, stream: Any, max_bytes: int) -> None:
        self._stream = stream
        self._pieces: AsyncIterator[bytes] = aiter(stream)
        self._left_bytes = max_bytes

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._left_bytes <= 0:
            raise StopAsyncIteration
        piece = await anext(self._pieces)
        self._left_bytes -= len(piece)
        return piece

    async def aclose(self) -> None:
        await close_response(self._stream, self._pieces)


HOOKS = {"request": [watch_connection], "response": [bound_refusal]}
"""The hooks of a client that an SDK makes."""
