"""The provider for the Messages API, over the official `anthropic` SDK. See the package for the division of work."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from ...errors import ConfigurationError, MissingExtra, ProviderError, ProviderUnavailable, ToolbusError
from ...network import check_allowed
from ...protocols import Emit, ModelReply, ModelRequest, NativeOutput
from .._shared.clients import Clients
from .._shared.native_output import RefusedSchemas
from .._shared.options import (
    MAX_REPLY_BYTES,
    ApiKey,
    ask_for_key,
    check_limits,
    checked_url,
    clean_key,
    secrets_in,
    shown_url,
)
from .._shared.reply_reader import read_reply
from .._shared.stream_events import EventLines
from .._shared.strict_schema import ANTHROPIC, strict_schema
from .._shared.wire_text import without_half_characters
from ._errors import AnthropicErrors
from ._request import MAX_OUTPUT_TOKENS, Cache, request_body
from ._stream import MessageBuilder

if TYPE_CHECKING:
    import httpx2
    from anthropic import AsyncAnthropic
    from anthropic.lib.vertex import AsyncAnthropicVertex

__all__ = ["MAX_OUTPUT_TOKENS", "AnthropicProvider", "Cache"]

_DEFAULT_URL = "https://api.anthropic.com"
_NO_KEY = "none"  # the SDK requires a key, and servers without keys ignore it
_CONNECT_SECONDS = 5.0  # the SDK's own limit for connecting
_HINT = "check the network, and that base_url= (or ANTHROPIC_BASE_URL) is right"
# The attributes of the SDK's clients that have keys; the client for Vertex has another one than the rest.
_KEY_NAMES = (
    "api_key",
    "auth_token",
    "access_token",
)
_MAX_PAUSES = 10  # of one reply; the API pauses about every ten calls of its own tools


class AnthropicProvider:
    """A model with the Messages API.

        AnthropicProvider("claude-haiku-5-5")                                   # key from ANTHROPIC_API_KEY
        AnthropicProvider("glm-5", base_url="https://example.com/anthropic")    # a compatible server
        AnthropicProvider("claude-sonnet-5-5", client=AsyncAnthropic(...))      # a ready client

    `api_key` is text, or an async callable that returns the key before each request, for keys that expire; `base_url`
    ends before `/v1`. Without these options, ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL are read. A server with a
    `base_url` needs no key. `vendor` is the short name on events. `max_output_tokens` is for requests that do not state
    a limit, since the API requires one. `cache` marks tools, instructions and the transcript for the prompt cache:
    "auto" for five minutes, "1h" for an hour, "off" not at all. `server_tools` are definitions of tools that Anthropic
    runs, offered in addition to the request's own; where the API pauses a turn for them, `respond` continues the turn.
    `timeout_seconds` is the longest silence of the server; a request's own limits are usually shorter.
    `max_reply_bytes` bounds text, reasoning, arguments and other blocks of one reply together, and any one event.

    Reasoning is sent back unchanged, with its signatures, to the model that it came from: its blocks are in the
    message's `vendor_data["anthropic"]`. The API refuses the signatures of other models and servers.

    The constructor imports the SDK and builds its client, which takes about two seconds the first time: construct
    providers at start-up. Connections belong to an event loop, so in a second loop the provider builds another client.
    Works on asyncio and trio. Errors are as in `toolbus.protocols.Provider`; the SDK's retries are off, and so is its
    tracing, except for a client that was given. Keys do not appear in the repr, in errors or in logs.

    Raises `MissingExtra` without the SDK, and `ConfigurationError` for an invalid option or a missing key.
    """

    __slots__ = (
        "_api_key",
        "_base_url",
        "_cache",
        "_clients",
        "_compatible",
        "_default_headers",
        "_errors",
        "_max_output_tokens",
        "_max_reply_bytes",
        "_model",
        "_refused",
        "_server_tools",
        "_timeout_seconds",
    )

    def __init__(
        self,
        model: str,
        *,
        api_key: ApiKey | None = None,
        base_url: str | None = None,
        client: AsyncAnthropic | AsyncAnthropicVertex | None = None,
        default_headers: Mapping[str, str] | None = None,
        vendor: str = "anthropic",
        max_output_tokens: int = MAX_OUTPUT_TOKENS,
        cache: Cache = "auto",
        server_tools: Sequence[Mapping[str, Any]] = (),
        timeout_seconds: float = 600.0,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        check_limits(model, timeout_seconds, max_reply_bytes)
        if max_output_tokens < 1:
            raise ConfigurationError(f"max_output_tokens is {max_output_tokens}; it must be at least 1")
        if cache not in {"auto", "1h", "off"}:
            raise ConfigurationError(f"cache is {cache!r}; it must be 'auto', '1h' or 'off'")
        if client is not None and any(option is not None for option in (api_key, base_url, default_headers)):
            raise ConfigurationError(
                "client= has its own key, URL and headers: leave api_key=, base_url= and default_headers= out"
            )
        if any(kind.__name__ == "BaseBedrockClient" for kind in type(client).__mro__):
            raise ConfigurationError(
                "client= is for Bedrock, whose stream has a different format that toolbus cannot read; "
                "give a client for Anthropic or Vertex"
            )
        if client is None:
            base_url = base_url or os.environ.get("ANTHROPIC_BASE_URL") or None
            api_key = _usable_key(api_key or os.environ.get("ANTHROPIC_API_KEY"), base_url)
        self._model = model
        self._base_url = checked_url(str(client.base_url) if client is not None else base_url or _DEFAULT_URL)
        self._compatible = not _is_anthropic(self._base_url)
        self._errors = AnthropicErrors(vendor=vendor, where=shown_url(self._base_url), hint=_HINT)
        self._max_output_tokens = max_output_tokens
        self._cache: Cache = cache
        self._server_tools = tuple(server_tools)
        self._refused = RefusedSchemas()
        self._timeout_seconds = timeout_seconds
        self._max_reply_bytes = max_reply_bytes
        self._api_key = api_key
        self._default_headers = default_headers
        given = cast("AsyncAnthropic | None", client)  # both classes have the methods that are used here
        self._clients: Clients[AsyncAnthropic] = Clients(self._build, lambda each: each.close(), given=given)
        if given is not None:
            self._hide(given)

    @property
    def vendor(self) -> str:
        """The vendor's name on events."""
        return self._errors.vendor

    @property
    def model(self) -> str:
        """The model's name, as it is sent."""
        return self._model

    def __repr__(self) -> str:
        return f"AnthropicProvider({self._model!r}, vendor={self.vendor!r}, base_url={self._errors.where!r})"

    def native_output(self, schema: Mapping[str, Any]) -> NativeOutput:
        """See `NativeOutputProvider`. The API allows neither objects with arbitrary property names nor recursion."""
        able: NativeOutput = "" if strict_schema(schema, ANTHROPIC) is None else "with_tools"
        return self._refused.remaining(schema, able)

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Ask the model once, streaming. Under cancellation the connection is closed, not drained.

        A turn that the API pauses for its own tools is one reply: it is sent back and continued, at most ten times.
        Raises, in addition to the errors of the protocol, `ConfigurationError` for a `tool_choice` that is not offered,
        and `ApplicationError` when the `api_key` callable fails.
        """
        check_allowed(self.vendor, self._errors.where)
        body = request_body(
            self._model,
            request,
            max_output_tokens=self._max_output_tokens,
            cache=self._cache,
            server_tools=self._server_tools,
            compatible=self._compatible,
        )
        reply = MessageBuilder(model=self._model, emit=emit, limit_bytes=self._max_reply_bytes, errors=self._errors)
        try:
            await self._whole_turn(body, reply, emit)
        except ProviderError as exc:
            judged = self._refused.classified(request, exc)
            if judged is exc:
                raise
            raise judged from exc
        except ToolbusError:
            raise
        except Exception as exc:
            # Exceptions of the emit function arrive here too, and are raised again unchanged.
            found = self._errors.translate(exc)
            if found is None:
                raise
            error, cause = self._refused.classified(request, found), exc
        else:
            return reply.finish()
        # The error is raised outside of the except block, so that its context is not an SDK error that quotes a key.
        raise error from (None if self._errors.leaks_secret(cause) else cause)

    async def aclose(self) -> None:
        """Close the connections that were opened in this event loop; a client that was given stays open. Idempotent.

        A provider that is used again afterwards builds a new client.
        """
        await self._clients.aclose()

    # --------------------------------------------------------------------------------------------- client

    def _build(self) -> AsyncAnthropic:
        try:
            import anthropic  # noqa: PLC0415 -- an optional dependency, and slow to import
            import httpx2  # noqa: PLC0415
        except ImportError as exc:
            raise MissingExtra("anthropic", "anthropic") from exc
        client = anthropic.AsyncAnthropic(
            api_key=_NO_KEY if callable(self._api_key) else self._api_key,
            base_url=self._base_url,
            default_headers=self._default_headers,
            timeout=httpx2.Timeout(self._timeout_seconds, connect=_CONNECT_SECONDS),
            max_retries=0,
            open_telemetry=False,
        )
        self._hide(client)
        return client

    def _hide(self, client: AsyncAnthropic) -> None:
        # The SDK adds headers of its own, some of them from the environment.
        headers = {name: value for name, value in client.default_headers.items() if isinstance(value, str)}
        own = (getattr(client, name, None) for name in _KEY_NAMES)
        for secret in (*own, *secrets_in(self._base_url, headers)):
            if isinstance(secret, str):
                self._errors.keep_secret(secret.removeprefix("Bearer "))

    async def _client(self) -> AsyncAnthropic:
        """Return the client of the running event loop, with the key for this request if `api_key` is a callable."""
        client = self._clients.get()
        if not callable(self._api_key):
            return client
        key = await ask_for_key(self._api_key)
        self._errors.keep_secret(key)
        # The copy shares the connections. A key in a header of the request would be logged.
        return client.with_options(api_key=key)

    # --------------------------------------------------------------------------------------------- asking

    async def _whole_turn(self, body: dict[str, Any], reply: MessageBuilder, emit: Emit) -> None:
        messages = body["messages"]
        for _ in range(_MAX_PAUSES + 1):
            try:
                response = await self._post(body)
            except UnicodeEncodeError:
                response = await self._post(without_half_characters(body))
            lines = EventLines(self._max_reply_bytes, self._errors)
            await read_reply(response, reply, lines, emit=emit, limit_bytes=self._max_reply_bytes, errors=self._errors)
            if not reply.paused:
                return
            body = {**body, "messages": [*messages, {"role": "assistant", "content": reply.so_far()}]}
            if reply.container:
                body["container"] = reply.container
            reply.begin_continuation()
        raise ProviderUnavailable(
            f"{self.vendor} paused its turn {_MAX_PAUSES + 1} times without finishing it", vendor=self.vendor
        )

    async def _post(self, body: dict[str, Any]) -> httpx2.Response:
        import httpx2  # noqa: PLC0415
        from anthropic import AsyncStream  # noqa: PLC0415

        # The method messages.create has no parameters for several fields of the body.
        client = await self._client()
        response: Any = await client.post(
            "/v1/messages",
            cast_to=httpx2.Response,
            body=body,
            options={"max_retries": 0},
            stream=True,
            stream_cls=AsyncStream[Any],
        )
        return response


def _is_anthropic(base_url: str) -> bool:
    """Return whether the URL belongs to Anthropic itself, or to Vertex, which serves its models."""
    host = urlsplit(base_url).hostname or ""
    return host == "api.anthropic.com" or host.endswith(".googleapis.com")


def _usable_key(key: ApiKey | None, base_url: str | None) -> ApiKey:
    if callable(key):
        return key
    if key and key.strip():
        return clean_key(key)
    if base_url:
        return _NO_KEY
    raise ConfigurationError(
        "there is no key for Anthropic: set ANTHROPIC_API_KEY, give api_key=, or name another server with base_url= or "
        "ANTHROPIC_BASE_URL"
    )
