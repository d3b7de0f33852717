"""Chat completions over the official `openai` SDK: OpenAI, Azure, Ollama, vLLM, llama.cpp and the like.

The only module that imports the SDK (extra `openai`), and only when a provider is constructed. The SDK does keys, URLs,
headers and connections; reading the stream is ours, since it must bear what compatible servers send, stop at a size,
and tell a cut stream from a whole one.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import urlsplit, urlunsplit

import anyio
import orjson
from anyio.lowlevel import RunVar

from ..errors import ApplicationError, ConfigurationError, MissingExtra, ToolbusError
from ..protocols import Emit, ModelReply, ModelRequest
from ._openai_errors import ErrorTranslator
from ._openai_request import request_body, speaks_for_openai, without_half_characters
from ._openai_stream import EventLines, ReplyBuilder

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

__all__ = ["MAX_REPLY_BYTES", "ApiKey", "OpenAIProvider"]

ApiKey: TypeAlias = str | Callable[[], Awaitable[str]]

MAX_REPLY_BYTES = 8 * 2**20
"""Where reading a reply stops: far beyond any real one, and still harmless in memory."""

_DEFAULT_URL = "https://api.openai.com/v1"
_NO_KEY = "none"  # servers without keys ignore it; the SDK insists on one
_CONNECT_SECONDS = 5.0  # the SDK's own limit for connecting
_DRAIN_SECONDS = 0.5  # the end of the body after [DONE] comes with it, as a rule; without it the connection is lost
_CLOSE_SECONDS = 2.0
_HINT = "check that the server is running, and that base_url= (or OPENAI_BASE_URL) is right"
_SECRET_HEADERS = ("auth", "key", "token", "secret", "cookie")


class OpenAIProvider:
    """A model behind an OpenAI-compatible chat-completions endpoint.

        OpenAIProvider("gpt-5-mini")                                            # key from OPENAI_API_KEY
        OpenAIProvider("qwen3", base_url="http://127.0.0.1:8000/v1")            # any compatible server
        OpenAIProvider("my-deployment", client=AsyncAzureOpenAI(...))           # a ready client

    `api_key` is text, or an async callable that is asked before each request, for keys that expire; `base_url`,
    `organization` and `project` are as in the SDK. What is not given is read from OPENAI_API_KEY, OPENAI_BASE_URL,
    OPENAI_ORG_ID and OPENAI_PROJECT_ID. A server with a `base_url` needs no key. `vendor` is the short name on events.
    `timeout_seconds` is the longest silence of the server; a request's own limits are usually shorter.
    `max_reply_bytes` bounds text, reasoning and arguments of one reply together, and any one chunk.
    `compatible` says whether the server takes the dialect of OpenAI's imitators (`max_tokens`, and tool choices by what
    is offered); without it the host's name decides. `reasoning_field` sends reasoning back under that name, for servers
    that want it. `include_usage=False` is for servers that refuse `stream_options`.

    The constructor imports the SDK and builds its client, which takes about a second the first time: construct
    providers at start-up. Connections belong to an event loop, so in a second loop the provider builds a client more.
    Works on asyncio and trio. Errors are as in `toolbus.protocols.Provider`; the SDK's retries are off. Keys do not
    appear in the repr, in errors or in logs.

    Raises `MissingExtra` without the SDK, and `ConfigurationError` for an option that cannot be or a missing key.
    """

    __slots__ = (
        "_api_key",
        "_base_url",
        "_client_options",
        "_compatible",
        "_errors",
        "_given",
        "_here",
        "_include_usage",
        "_max_reply_bytes",
        "_model",
        "_reasoning_field",
        "_spare",
    )

    def __init__(
        self,
        model: str,
        *,
        api_key: ApiKey | None = None,
        base_url: str | None = None,
        client: AsyncOpenAI | None = None,
        organization: str | None = None,
        project: str | None = None,
        default_headers: Mapping[str, str] | None = None,
        vendor: str = "openai",
        timeout_seconds: float = 600.0,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        compatible: bool | None = None,
        reasoning_field: str | None = None,
        include_usage: bool = True,
        unreachable_hint: str = _HINT,
    ) -> None:
        _check(model, timeout_seconds, max_reply_bytes)
        own = (api_key, base_url, organization, project, default_headers)
        if client is not None and any(option is not None for option in own):
            raise ConfigurationError(
                "client= brings its own key, URL and headers: leave api_key=, base_url=, organization=, project= and "
                "default_headers= out"
            )
        if client is None:
            base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
            api_key = _usable_key(api_key or os.environ.get("OPENAI_API_KEY"), base_url)
        self._model = model
        self._base_url = _checked_url(str(client.base_url) if client is not None else base_url or _DEFAULT_URL)
        self._errors = ErrorTranslator(vendor=vendor, where=_shown(self._base_url), hint=unreachable_hint)
        self._compatible = not speaks_for_openai(self._base_url) if compatible is None else compatible
        self._max_reply_bytes = max_reply_bytes
        self._reasoning_field = reasoning_field
        self._include_usage = include_usage
        self._api_key = api_key
        self._hide(default_headers)
        self._client_options: dict[str, Any] = {
            "organization": organization,
            "project": project,
            "default_headers": default_headers,
            "timeout_seconds": timeout_seconds,
        }
        self._here: RunVar[AsyncOpenAI | None] = RunVar("toolbus_openai_client")
        self._given = client
        self._spare = self._build() if client is None else None

    @property
    def vendor(self) -> str:
        """What stands on events as the vendor."""
        return self._errors.vendor

    @property
    def model(self) -> str:
        """The model's name, as it is sent."""
        return self._model

    def __repr__(self) -> str:
        return f"OpenAIProvider({self._model!r}, vendor={self.vendor!r}, base_url={self._errors.where!r})"

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Ask the model once, streaming. Under cancellation the connection is closed, not drained.

        Raises, beside the errors of the contract, `ConfigurationError` for a `tool_choice` that is not offered, and
        `ApplicationError` when the `api_key` callable fails.
        """
        body = request_body(
            self._model,
            request,
            vendor=self.vendor,
            compatible=self._compatible,
            include_usage=self._include_usage,
            reasoning_field=self._reasoning_field,
        )
        reply = ReplyBuilder(model=self._model, emit=emit, limit_bytes=self._max_reply_bytes, errors=self._errors)
        try:
            try:
                response = await self._post(body)
            except UnicodeEncodeError:
                response = await self._post(without_half_characters(body))
            await self._read(response, reply)
        except ToolbusError:
            raise
        except Exception as exc:
            # Also what the emit function raises comes by here, and goes on as it is.
            found = self._errors.translate(exc)
            if found is None:
                raise
            error, cause = found, exc
        else:
            return reply.finish()
        # Raised out here, so that no context hangs on to an SDK error that quotes a key.
        raise error from (None if self._errors.tells(cause) else cause)

    async def aclose(self) -> None:
        """Close the connections that were opened in this event loop; a client that was given stays open. Idempotent.

        A provider that is used again afterwards builds a new client.
        """
        clients = (self._here.get(None), self._spare)
        self._here.set(None)
        self._spare = None
        for client in clients:
            if client is not None:
                await client.close()

    # --------------------------------------------------------------------------------------------- client

    def _build(self) -> AsyncOpenAI:
        try:
            import httpx2  # noqa: PLC0415 -- an optional dependency, and slow to import
            import openai  # noqa: PLC0415
        except ImportError as exc:
            raise MissingExtra("openai", "openai") from exc
        options = self._client_options
        key = self._api_key
        if isinstance(key, str):
            self._errors.keep_secret(key)
        return openai.AsyncOpenAI(
            api_key=self._fresh_key if callable(key) else key,
            base_url=self._base_url,
            organization=options["organization"],
            project=options["project"],
            default_headers=options["default_headers"],
            timeout=httpx2.Timeout(options["timeout_seconds"], connect=_CONNECT_SECONDS),
            max_retries=0,
        )

    def _client(self) -> AsyncOpenAI:
        """The client of the running event loop."""
        if self._given is not None:
            self._errors.keep_secret(self._given.api_key)
            return self._given
        client = self._here.get(None)
        if client is None:
            client, self._spare = self._spare or self._build(), None
            self._here.set(client)
        return client

    async def _fresh_key(self) -> str:
        ask = self._api_key
        try:
            key = await ask() if callable(ask) else ask
        except Exception as exc:
            raise ApplicationError(f"the api_key callable raised {type(exc).__name__}") from exc
        key = _clean_key(key)
        self._errors.keep_secret(key)
        return key

    def _hide(self, headers: Mapping[str, str] | None) -> None:
        for name, value in (headers or {}).items():
            if any(word in name.lower() for word in _SECRET_HEADERS):
                self._errors.keep_secret(value)
        if password := urlsplit(self._base_url).password:
            self._errors.keep_secret(password)

    # --------------------------------------------------------------------------------------------- reading

    async def _post(self, body: dict[str, Any]) -> httpx2.Response:
        import httpx2  # noqa: PLC0415
        from openai import AsyncStream  # noqa: PLC0415

        # Not chat.completions.create: it walks the whole history through typed dictionaries on every call.
        client = self._client()
        response: Any = await client.post(
            "/chat/completions",
            cast_to=httpx2.Response,
            body=body,
            options={"max_retries": 0, "security": {"bearer_auth": True}},
            stream=True,
            stream_cls=AsyncStream[Any],
        )
        return response

    async def _read(self, response: httpx2.Response, reply: ReplyBuilder) -> None:
        pieces = response.aiter_bytes()
        try:
            content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if content_type == "text/html":
                raise self._errors.no_such_service(content_type)
            if content_type == "application/json":
                reply.whole(await self._whole_body(pieces))
            else:
                await self._events(pieces, reply)
        finally:
            with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                await response.aclose()
                # The HTTP library nests generators that do not close each other, and trio complains of one that is
                # left half way. Reading on after the close takes what is buffered and ends in an error in all of them.
                with contextlib.suppress(Exception):
                    async for _ in pieces:
                        pass

    async def _events(self, pieces: AsyncIterator[bytes], reply: ReplyBuilder) -> None:
        lines = EventLines(self._max_reply_bytes, self._errors)
        async for piece in pieces:
            for event, data in lines.feed(piece):
                reply.feed(event, data)
            if reply.done:
                break
        else:
            for event, data in lines.finish():
                reply.feed(event, data)
            return
        # The reply is whole: what comes after it only decides whether the connection can be used again.
        with contextlib.suppress(Exception), anyio.move_on_after(_DRAIN_SECONDS):
            async for _ in pieces:
                pass

    async def _whole_body(self, pieces: AsyncIterator[bytes]) -> Mapping[str, Any]:
        """The body of a server that does not stream."""
        body = bytearray()
        async for piece in pieces:
            body += piece
            if len(body) > self._max_reply_bytes:
                raise self._errors.too_large(self._max_reply_bytes)
        try:
            found: Any = orjson.loads(body)
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, Mapping):
            raise self._errors.unavailable("answered with a body that is no JSON object")
        return cast("Mapping[str, Any]", found)


def _check(model: str, timeout_seconds: float, max_reply_bytes: int) -> None:
    if not model:
        raise ConfigurationError("the model's name is empty")
    if not 0 < timeout_seconds < math.inf:
        raise ConfigurationError(f"timeout_seconds is {timeout_seconds}; it must be above 0 and finite")
    if max_reply_bytes < 1:
        raise ConfigurationError(f"max_reply_bytes is {max_reply_bytes}; it must be at least 1")


def _usable_key(key: ApiKey | None, base_url: str | None) -> ApiKey:
    if callable(key):
        return key
    if key and key.strip():
        return _clean_key(key)
    if base_url:
        return _NO_KEY
    raise ConfigurationError(
        "there is no key for OpenAI: set OPENAI_API_KEY, give api_key=, or name another server with base_url= or "
        "OPENAI_BASE_URL"
    )


def _clean_key(key: object) -> str:
    """The key without white space around it. Nothing of it is quoted where it is refused."""
    text = key.strip() if isinstance(key, str) else ""
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigurationError("api_key is no key: it must be text of printable ASCII characters without spaces")
    return text


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        shown = re.sub(r"//[^/]*@", "//***@", url)
        raise ConfigurationError(f"base_url {shown!r} is no URL of a server: it must look like http://host:port/v1")
    return url


def _shown(url: str) -> str:
    """The URL for people: without user and password, query and fragment."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
