"""The provider for the Messages API, over the official `anthropic` SDK. See the package for the division of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from ..._option_checks import check, one_of, whole
from ...errors import ConfigurationError, ProviderUnavailable
from ...protocols import Emit, NativeOutput
from .._shared.adapter import Adapter
from .._shared.clients import Clients, make_client
from .._shared.options import MAX_REPLY_BYTES, ApiKey, check_limits, client_options, shown_url
from .._shared.strict_schema import ANTHROPIC, strict_schema
from ..vendors import VENDORS
from ._errors import AnthropicErrors
from ._request import MAX_OUTPUT_TOKENS, Cache, request_body
from ._stream import MessageBuilder

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.lib.vertex import AsyncAnthropicVertex

_HINT = "check the network, and that base_url= (or ANTHROPIC_BASE_URL) is right"
_MAX_PAUSES = 10  # of one reply; the API pauses about every ten calls of its own tools


class AnthropicProvider(Adapter[MessageBuilder]):
    """A model with the Messages API.

        AnthropicProvider("claude-haiku-5-5")                                   # key from ANTHROPIC_API_KEY
        AnthropicProvider("glm-5", base_url="https://example.com/anthropic")    # a compatible server
        AnthropicProvider("claude-sonnet-5-5", client=AsyncAnthropic(...))      # a ready client

    `api_key` is text, or an async callable that returns the key before each request, for keys that expire; `base_url`
    ends before `/v1`. Without these options, ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL are read. A server with a
    `base_url` needs no key. `vendor` is the short name on events. `max_output_tokens` is for requests that do not state
    a limit, since the API requires one. `cache` marks tools, instructions and the transcript for the prompt cache:
    "auto" for five minutes, "1h" for an hour, "off" not at all. `server_tools` are definitions of tools that Anthropic
    runs, offered in addition to the request's own; where the API pauses a turn for them, `respond` continues the turn,
    at most ten times, as one reply. `timeout_seconds` is the longest silence of the server; a request's own limits are
    usually shorter. `max_reply_bytes` bounds text, reasoning, arguments and other blocks of one reply together, and any
    one event.

    Reasoning is sent back unchanged, with its signatures, to the model that it came from: its blocks are in the
    message's `vendor_data["anthropic"]`. The API refuses the signatures of other models and servers.

    The constructor imports the SDK and builds its client, which takes about two seconds the first time: construct
    providers at start-up. Connections belong to an event loop, so in a second loop the provider builds another client.
    Works on asyncio and trio. Errors are as in `toolbus.protocols.Provider`; the SDK's retries are off, and so is its
    tracing, except for a client that was given. Keys do not appear in the repr, in errors or in logs.

    Raises `MissingExtra` without the SDK, and `ConfigurationError` for an invalid option or a missing key.

    Example:
        from toolbus import Runtime
        from toolbus.providers.anthropic import AnthropicProvider, Cache

        cache: Cache = "1h"
        provider = AnthropicProvider("claude-sonnet-4-5", api_key="the-key", cache=cache)
        runtime = Runtime(provider)  # with the key in ANTHROPIC_API_KEY: Runtime("anthropic:claude-sonnet-4-5")
    """

    data_key: ClassVar[str] = "anthropic"

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
        check("max_output_tokens", max_output_tokens, whole(1))
        check("cache", cache, one_of("auto", "1h", "off"))
        if any(kind.__name__ == "BaseBedrockClient" for kind in type(client).__mro__):
            raise ConfigurationError(
                "client= is for Bedrock, whose stream has a different format that toolbus cannot read; "
                "pass a client for Anthropic or Vertex"
            )
        options = client_options(
            VENDORS["anthropic"], client, api_key=api_key, base_url=base_url, default_headers=default_headers
        )
        url = options["base_url"]
        make = partial(
            make_client, "anthropic", "AsyncAnthropic", timeout_seconds=timeout_seconds, open_telemetry=False, **options
        )
        super().__init__(
            model,
            body=partial(
                request_body,
                model,
                max_output_tokens=max_output_tokens,
                cache=cache,
                server_tools=tuple(server_tools),
                compatible=not _is_anthropic(url),
            ),
            builder=MessageBuilder,
            errors=AnthropicErrors(vendor=vendor, where=shown_url(url), hint=_HINT),
            clients=Clients(make, given=client),
            max_reply_bytes=max_reply_bytes,
            path="/v1/messages",
            api_key=options["api_key"],
        )

    def __repr__(self) -> str:
        return f"AnthropicProvider({self._model!r}, vendor={self.vendor!r}, base_url={self._errors.where!r})"

    def native_output(self, schema: Mapping[str, Any]) -> NativeOutput:
        """See `NativeOutputProvider`. The API allows neither objects with arbitrary property names nor recursion."""
        able: NativeOutput = "" if strict_schema(schema, ANTHROPIC) is None else "with_tools"
        return self._refused.remaining(schema, able)

    async def _read(self, body: dict[str, Any], reply: MessageBuilder, emit: Emit) -> None:
        messages = body["messages"]
        for _ in range(_MAX_PAUSES + 1):
            await super()._read(body, reply, emit)
            if not reply.paused:
                return
            body = {**body, "messages": [*messages, {"role": "assistant", "content": reply.so_far()}]}
            if reply.container:
                body["container"] = reply.container
            reply.begin_continuation()
        raise ProviderUnavailable(
            f"{self.vendor} paused its turn {_MAX_PAUSES + 1} times without finishing it", vendor=self.vendor
        )


def _is_anthropic(base_url: str) -> bool:
    """Return whether the URL belongs to Anthropic itself, or to Vertex, which serves its models."""
    host = urlsplit(base_url).hostname or ""
    return host == "api.anthropic.com" or host.endswith(".googleapis.com")
