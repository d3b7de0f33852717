"""The provider for chat completions and Responses, over the official `openai` SDK.

See the package for the division of work.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ...errors import ConfigurationError, MissingExtra, ProviderError, ToolbusError
from ...messages import without_images
from ...network import check_allowed
from ...protocols import MAX_REPLY_CALLS, Emit, ModelReply, ModelRequest, NativeOutput
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
from .._shared.wire_text import without_half_characters
from ._calls_in_text import HeldText
from ._chat_request import is_openai, request_body
from ._chat_stream import ReplyBuilder
from ._errors import OpenAIErrors, ResponsesErrors
from ._failed_generation import FailedGeneration
from ._responses_request import reasons, response_body
from ._responses_stream import ResponseBuilder, max_event_bytes
from ._wrapped_calls import CallUnwrapper

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

__all__ = ["MAX_REPLY_BYTES", "Api", "ApiKey", "OpenAIProvider"]

Api: TypeAlias = Literal["chat", "responses"]
"""One of OpenAI's two APIs: chat completions, or Responses."""

_PATHS: Mapping[Api, str] = {"chat": "/chat/completions", "responses": "/responses"}
_DEFAULT_URL = "https://api.openai.com/v1"
_NO_KEY = "none"  # the SDK requires a key, and servers without keys ignore it
_CONNECT_SECONDS = 5.0  # the SDK's own limit for connecting
_HINT = "check that the server is running, and that base_url= (or OPENAI_BASE_URL) is right"


def _check_together(api: str, client: AsyncOpenAI | None, own: Iterable[object]) -> None:
    if api not in _PATHS:
        raise ConfigurationError(f"api is {api!r}; it must be 'chat' or 'responses'")
    if client is not None and any(option is not None for option in own):
        raise ConfigurationError(
            "client= has its own key, URL and headers: leave api_key=, base_url=, organization=, project= and "
            "default_headers= out"
        )


class OpenAIProvider:
    """A model of OpenAI, or of a server with a compatible API.

        OpenAIProvider("gpt-5-mini")                                            # key from OPENAI_API_KEY
        OpenAIProvider("qwen3", base_url="http://127.0.0.1:8000/v1")            # any compatible server
        OpenAIProvider("my-deployment", client=AsyncAzureOpenAI(...))           # a ready client
        OpenAIProvider("gpt-5-mini", api="responses")                           # reasoning is kept between rounds

    `api` is "chat" for chat completions, which every compatible server has, or "responses". For OpenAI's own reasoning
    models "responses" is the better choice: a model gets its reasoning back with each round's results, which chat
    completions drop. That saves tokens and improves the model's tool calls. It is not the default, since few other
    servers have it, and its costs and answers differ. Nothing is stored at OpenAI: reasoning comes encrypted, and is
    kept in the messages' `vendor_data`.

    `api_key` is text, or an async callable that returns the key before each request, for keys that expire; `base_url`,
    `organization` and `project` are as in the SDK. Without these options, OPENAI_API_KEY, OPENAI_BASE_URL,
    OPENAI_ORG_ID and OPENAI_PROJECT_ID are read. A server with a `base_url` needs no key. `vendor` is the short name on
    events. `timeout_seconds` is the longest silence of the server; a request's own limits are usually shorter.
    `max_reply_bytes` bounds text, reasoning and arguments of one reply together, and any one chunk. `compatible`
    selects the dialect of OpenAI's imitators (`max_tokens`, and tool choices by the list of offered tools); without it
    the name of the host decides.

    For chat completions: `reasoning_field` sends reasoning back under that name, for servers that ask for it.
    `include_usage=False` is for servers that refuse `stream_options`.

    For Responses: `encrypted_reasoning` asks for reasoning that can be sent back; without it the name of the model
    decides, since models that do not reason refuse the option. `reasoning_summary` ("auto", "concise", "detailed") asks
    for reasoning that people can read. It is off by default, since OpenAI gives summaries only to verified
    organisations, and answers others with an error 400.

    `strict_tools` asks for arguments that keep to each tool's schema, which then has to be one that OpenAI accepts.
    `images=False` is for models that do not accept images: a line of text replaces each image. A text replaces images
    that are not PNG, JPEG, GIF or WebP; for chat completions, which accept no document but PDF, text files are sent as
    text. `calls_in_text` is for small local models that write calls as text: a reply that consists of the JSON of calls
    of offered tools becomes these calls. Text that begins like one, with a brace, a bracket, a fence or a tag, is then
    not streamed, because only its end shows whether it is a call.

    The constructor imports the SDK and builds its client, which takes about a second the first time: construct
    providers at start-up. Connections belong to an event loop, so in a second loop the provider builds another client.
    Works on asyncio and trio. Errors are as in `toolbus.protocols.Provider`; the SDK's retries are off. Keys do not
    appear in the repr, in errors or in logs.

    Raises `MissingExtra` without the SDK, and `ConfigurationError` for an invalid option or a missing key.
    """

    __slots__ = (
        "_api",
        "_api_key",
        "_base_url",
        "_calls_in_text",
        "_client_options",
        "_clients",
        "_compatible",
        "_encrypted_reasoning",
        "_errors",
        "_images",
        "_include_usage",
        "_max_reply_bytes",
        "_model",
        "_reasoning_field",
        "_reasoning_summary",
        "_refused",
        "_strict_tools",
    )

    def __init__(
        self,
        model: str,
        *,
        api: Api = "chat",
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
        encrypted_reasoning: bool | None = None,
        reasoning_summary: str | None = None,
        strict_tools: bool = False,
        images: bool = True,
        calls_in_text: bool = False,
    ) -> None:
        check_limits(model, timeout_seconds, max_reply_bytes)
        _check_together(api, client, (api_key, base_url, organization, project, default_headers))
        if client is None:
            base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
            api_key = _usable_key(api_key or os.environ.get("OPENAI_API_KEY"), base_url)
        self._model = model
        self._api: Api = api
        self._base_url = checked_url(str(client.base_url) if client is not None else base_url or _DEFAULT_URL)
        errors = ResponsesErrors if api == "responses" else OpenAIErrors
        self._errors = errors(vendor=vendor, where=shown_url(self._base_url), hint=_HINT)
        self._compatible = not is_openai(self._base_url) if compatible is None else compatible
        self._max_reply_bytes = max_reply_bytes
        self._reasoning_field = reasoning_field
        self._include_usage = include_usage
        self._encrypted_reasoning = reasons(model) if encrypted_reasoning is None else encrypted_reasoning
        self._reasoning_summary = reasoning_summary
        self._strict_tools = strict_tools
        self._refused = RefusedSchemas()
        self._images = images
        self._calls_in_text = calls_in_text
        self._api_key = api_key
        for secret in secrets_in(self._base_url, default_headers):
            self._errors.keep_secret(secret)
        self._client_options: dict[str, Any] = {
            "organization": organization,
            "project": project,
            "default_headers": default_headers,
            "timeout_seconds": timeout_seconds,
        }
        self._clients: Clients[AsyncOpenAI] = Clients(self._build, lambda each: each.close(), given=client)

    @property
    def vendor(self) -> str:
        """The vendor's name on events."""
        return self._errors.vendor

    @property
    def model(self) -> str:
        """The model's name, as it is sent."""
        return self._model

    def __repr__(self) -> str:
        api = "" if self._api == "chat" else f"api={self._api!r}, "
        return f"OpenAIProvider({self._model!r}, {api}vendor={self.vendor!r}, base_url={self._errors.where!r})"

    def native_output(self, schema: Mapping[str, Any]) -> NativeOutput:
        """See `NativeOutputProvider`. Few compatible servers can constrain a reply to a schema and offer tools."""
        return self._refused.remaining(schema, "alone" if self._compatible else "with_tools")

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Ask the model once, streaming. Under cancellation the connection is closed, not drained.

        Raises, in addition to the errors of the protocol, `ConfigurationError` for a `tool_choice` that is not offered,
        and `ApplicationError` when the `api_key` callable fails. Of the protocol's errors, `ContextOverflow` means that
        the server found the transcript too long, `ContentFiltered` that it refused the content of the transcript,
        `NativeOutputUnsupported` that it does not accept the output's schema, and `ProviderRejected` also that the
        reply calls something other than a function.

        A reply that was withheld, or refused without text, is not an error, since it has been paid for: it is empty,
        with a `finish_reason`. A call that the server could not read (Groq's `tool_use_failed`) is in the reply as the
        model wrote it, and so is the text of an answer that is not JSON of the schema; the turn machine refuses both.
        """
        check_allowed(self.vendor, self._errors.where)
        body = self._body(request)
        offered = {tool.name for tool in request.tools} if request.settings.tool_choice != "none" else set[str]()
        unwrapper = CallUnwrapper(emit, offered) if offered else None
        held = HeldText(unwrapper or emit, offered) if self._calls_in_text and offered else None
        filtered_emit = held or unwrapper or emit
        reply = self._builder(filtered_emit)
        try:
            await self._read(request, body, reply, emit)
        except FailedGeneration as exc:
            meant = exc.reply(reply.text_so_far, model=self._model, emit=filtered_emit, offered=offered)
            if meant is None:
                raise
            whole = meant
        else:
            whole = reply.finish()
        whole = held.settle(whole) if held else whole
        whole = unwrapper.settle(whole) if unwrapper else whole
        if len(whole.message.tool_calls) > MAX_REPLY_CALLS:
            raise self._errors.too_many(MAX_REPLY_CALLS, "calls")
        return whole

    async def _read(
        self, request: ModelRequest, body: dict[str, Any], reply: ReplyBuilder | ResponseBuilder, emit: Emit
    ) -> None:
        limit_bytes = self._max_reply_bytes if self._api == "chat" else max_event_bytes(self._max_reply_bytes)
        try:
            try:
                response = await self._post(body)
            except UnicodeEncodeError:
                response = await self._post(without_half_characters(body))
            lines = EventLines(limit_bytes, self._errors)
            await read_reply(response, reply, lines, emit=emit, limit_bytes=limit_bytes, errors=self._errors)
        except FailedGeneration:  # the model is at fault, not the schema
            raise
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
            model_failed = isinstance(found, FailedGeneration)
            error, cause = found if model_failed else self._refused.classified(request, found), exc
        else:
            return
        # The error is raised outside of the except block, so that its context is not an SDK error that quotes a key.
        raise error from (None if self._errors.leaks_secret(cause) else cause)

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        if not self._images:
            request = replace(request, messages=without_images(request.messages))
        if self._api == "responses":
            return response_body(
                self._model,
                request,
                vendor=self.vendor,
                compatible=self._compatible,
                encrypted_reasoning=self._encrypted_reasoning,
                reasoning_summary=self._reasoning_summary,
                strict=self._strict_tools,
            )
        return request_body(
            self._model,
            request,
            vendor=self.vendor,
            compatible=self._compatible,
            include_usage=self._include_usage,
            reasoning_field=self._reasoning_field,
            strict=self._strict_tools,
        )

    def _builder(self, emit: Emit) -> ReplyBuilder | ResponseBuilder:
        kind = ResponseBuilder if self._api == "responses" else ReplyBuilder
        return kind(model=self._model, emit=emit, limit_bytes=self._max_reply_bytes, errors=self._errors)

    async def aclose(self) -> None:
        """Close the connections that were opened in this event loop; a client that was given stays open. Idempotent.

        A provider that is used again afterwards builds a new client.
        """
        await self._clients.aclose()

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

    async def _fresh_key(self) -> str:
        key = await ask_for_key(self._api_key or "")
        self._errors.keep_secret(key)
        return key

    # --------------------------------------------------------------------------------------------- reading

    async def _post(self, body: dict[str, Any]) -> httpx2.Response:
        import httpx2  # noqa: PLC0415
        from openai import AsyncStream  # noqa: PLC0415

        # The method chat.completions.create would convert the whole history by typed dictionaries on every call.
        client = self._clients.get()
        self._errors.keep_secret(client.api_key)
        response: Any = await client.post(
            _PATHS[self._api],
            cast_to=httpx2.Response,
            body=body,
            options={"max_retries": 0, "security": {"bearer_auth": True}},
            stream=True,
            stream_cls=AsyncStream[Any],
        )
        return response


def _usable_key(key: ApiKey | None, base_url: str | None) -> ApiKey:
    if callable(key):
        return key
    if key and key.strip():
        return clean_key(key)
    if base_url:
        return _NO_KEY
    raise ConfigurationError(
        "there is no key for OpenAI: set OPENAI_API_KEY, give api_key=, or name another server with base_url= or "
        "OPENAI_BASE_URL"
    )
