"""The clients of SDKs: how one is made, and one for each event loop, because connections belong to a loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import Any

from anyio.lowlevel import RunVar

from .options import NO_KEY, ApiKey
from .reply_reader import close_response

CONNECT_SECONDS = 5.0  # the SDKs' own limit for connecting
_MAX_REFUSAL_BYTES = 65_536
_MAX_PACKED_REFUSAL_BYTES = 8_192  # a compressed body may become a thousand times as long
# The HTTP libraries cannot read only the beginning of a body in another coding, such as zstd.
_CODINGS = {"Accept-Encoding": "gzip, deflate"}


class Clients:
    """The clients of a provider, by event loop.

    The first client is built at once, so that wrong options are noticed early, unless a client is given.
    """

    __slots__ = ("_build", "_given", "_here", "_spare")

    def __init__(self, build: Callable[[], Any], *, given: Any = None) -> None:
        """Use `given`, in every loop and without ever closing it, or the clients of `build`. Raises what it raises."""
        self._build = build
        self._given = given
        self._here: RunVar[Any] = RunVar("toolbus_provider_client")
        self._spare = build() if given is None else None

    def get(self) -> Any:
        """Return the client of the running event loop."""
        if self._given is not None:
            return self._given
        client = self._here.get(None)
        if client is None:
            client, self._spare = self._spare or self._build(), None
            self._here.set(client)
        return client

    async def aclose(self) -> None:
        """Close the client of this event loop. Idempotent; `get` builds a new client afterwards."""
        clients = (self._here.get(None), self._spare)
        self._here.set(None)
        self._spare = None
        for client in clients:
            if client is not None:
                await client.close()


def make_client(sdk: str, kind: str, *, api_key: ApiKey, timeout_seconds: float, **options: Any) -> Any:
    """Make a client of a kind that an SDK has. `client_options` has checked that the SDK is installed."""
    timeout = import_module("httpx2").Timeout(timeout_seconds, connect=CONNECT_SECONDS)
    module = import_module(sdk)
    http = module.DefaultAsyncHttpxClient(timeout=timeout, headers=_CODINGS, event_hooks={"response": [bound_refusal]})
    key = NO_KEY if callable(api_key) else api_key  # a callable is asked before each request
    return getattr(module, kind)(api_key=key, timeout=timeout, max_retries=0, http_client=http, **options)


async def bound_refusal(response: Any) -> None:
    """Let the body of a refusal or a redirect end after its beginning. A hook of the HTTP libraries.

    The SDKs read such a body whole, however long it is.
    """
    if not response.is_success:
        # Only the library of this response knows the class that it requires of a stream.
        required = next(each for each in type(response.stream).__mro__ if each.__name__ == "AsyncByteStream")
        packed = "content-encoding" in response.headers
        limit = _MAX_PACKED_REFUSAL_BYTES if packed else _MAX_REFUSAL_BYTES
        response.stream = type("_Begun", (_Beginning, required), {})(response.stream, limit)


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
