"""The provider for chat completions and Responses, over the official `openai` SDK.

See the package for the division of work.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from ..._option_checks import check, one_of, or_none
from ...errors import ProviderError
from ...protocols import Emit, ModelReply, ModelRequest, NativeOutput
from .._shared.adapter import Adapter
from .._shared.clients import Clients, make_client
from .._shared.options import MAX_REPLY_BYTES, ApiKey, check_limits, client_options, shown_url
from .._shared.request_parts import given
from ..vendors import VENDORS
from ._calls_in_text import HeldText
from ._chat_request import has_responses, is_openai, request_body
from ._chat_stream import ReplyBuilder
from ._errors import OpenAIErrors, ResponsesErrors
from ._failed_generation import FailedGeneration
from ._responses_request import response_body
from ._responses_stream import ResponseBuilder
from ._wrapped_calls import CallUnwrapper

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Api: TypeAlias = Literal["chat", "responses"]
"""One of OpenAI's two APIs: chat completions, or Responses."""

_APIS = {
    "chat": ("/chat/completions", request_body, ReplyBuilder, OpenAIErrors),
    "responses": ("/responses", response_body, ResponseBuilder, ResponsesErrors),
}
_VENDORS = frozenset(name for name, each in VENDORS.items() if each.adapter == "openai")


class OpenAIProvider(Adapter[ReplyBuilder | ResponseBuilder]):
    """A model of OpenAI, or of a server with a compatible API.

        OpenAIProvider("gpt-5-mini")                                            # key from OPENAI_API_KEY
        OpenAIProvider("llama-3.3-70b-versatile", vendor="groq")                # key from GROQ_API_KEY
        OpenAIProvider("qwen3", base_url="http://127.0.0.1:8000/v1")            # any compatible server
        OpenAIProvider("my-deployment", client=AsyncAzureOpenAI(...))           # a ready client

    `api` is "chat" for chat completions, or "responses". Without it, OpenAI itself is asked by Responses (its models
    for audio and search, which do not have it, are not), and every other server by chat completions, which all of them
    have. With Responses, a model gets its reasoning back with each round's results, which saves tokens and improves its
    tool calls; and OpenAI refuses the tools of newer models in chat completions. Nothing is stored at OpenAI: reasoning
    comes encrypted, and is kept in the messages' `vendor_data`.

    `api_key` is text, or an async callable that returns the key before each request, for keys that expire; `base_url`,
    `organization` and `project` are as in the SDK. Without these options, OPENAI_API_KEY, OPENAI_BASE_URL,
    OPENAI_ORG_ID and OPENAI_PROJECT_ID are read. A server with a `base_url` needs no key. `vendor` is the short name on
    events. If it is in `toolbus.providers.VENDORS`, URL and key are that vendor's, and come from its own variables; the
    options that are not given are as that vendor needs them. `timeout_seconds` is the longest silence of the server; a
    request's own limits are usually shorter. `max_reply_bytes` bounds text, reasoning and arguments of one reply
    together, and any one chunk. `compatible` selects the dialect of OpenAI's imitators (`max_tokens`, and tool choices
    by the list of offered tools); if it is not given, the name of the host decides.

    For chat completions: `reasoning_field` sends reasoning back under that name, for servers that ask for it.
    `include_usage=False` is for servers that refuse `stream_options`. `mistral_checks` is for Mistral's API, and for
    servers that check ids and the order of roles as it does: see `toolbus.messages.to_openai`.

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

    Example:
        from toolbus import Runtime
        from toolbus.providers.openai import Api, ApiKey, OpenAIProvider

        api: Api = "responses"
        key: ApiKey = "the-key"  # or an async function that returns one
        provider = OpenAIProvider("gpt-5-mini", api_key=key, api=api)
        runtime = Runtime(provider)  # with the key in OPENAI_API_KEY: Runtime("openai:gpt-5-mini")
    """

    send_options: ClassVar[Mapping[str, Any]] = {"max_retries": 0, "security": {"bearer_auth": True}}

    def __init__(
        self,
        model: str,
        *,
        api: Api | None = None,
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
        include_usage: bool | None = None,
        mistral_checks: bool | None = None,
        encrypted_reasoning: bool | None = None,
        reasoning_summary: str | None = None,
        strict_tools: bool = False,
        images: bool = True,
        calls_in_text: bool = False,
    ) -> None:
        check_limits(model, timeout_seconds, max_reply_bytes)
        check("api", api, or_none(one_of(*_APIS)))
        more = {"organization": organization, "project": project, "default_headers": default_headers}
        known = VENDORS[vendor if vendor in _VENDORS else "openai"]
        options = client_options(known, client, api_key=api_key, base_url=base_url, **more)
        url = options["base_url"]
        chosen = {"compatible": compatible, "include_usage": include_usage, "reasoning_field": reasoning_field}
        own = {**known.options, **given(chosen | {"mistral_checks": mistral_checks})}
        self._compatible = own.pop("compatible", not is_openai(url))
        self._calls_in_text = calls_in_text
        api = api or ("responses" if has_responses(url, model) else "chat")
        path, body, builder, errors = _APIS[api]
        if api == "responses":
            own = {"encrypted_reasoning": encrypted_reasoning, "reasoning_summary": reasoning_summary}
        make = partial(make_client, "openai", "AsyncOpenAI", timeout_seconds=timeout_seconds, **options)
        hint = f"check that the server is running, and that base_url= (or {known.url_variable}) is right"
        super().__init__(
            model,
            body=partial(body, model, vendor=vendor, compatible=self._compatible, strict=strict_tools, **own),
            builder=builder,
            errors=errors(vendor=vendor, where=shown_url(url), hint=hint, key_variable=known.key_variable),
            clients=Clients(make, given=client),
            max_reply_bytes=max_reply_bytes,
            images=images,
            path=path,
            api_key=options["api_key"],
        )

    def __repr__(self) -> str:
        api = "responses" if self._builder is ResponseBuilder else "chat"
        return f"OpenAIProvider({self._model!r}, {api=}, vendor={self.vendor!r}, base_url={self._errors.where!r})"

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
        offered = {tool.name for tool in request.tools} if request.settings.tool_choice != "none" else set[str]()
        unwrapper = CallUnwrapper(emit, offered) if offered else None
        held = HeldText(unwrapper or emit, offered) if self._calls_in_text and offered else None
        filtered_emit = held or unwrapper or emit
        reply = self._begin(filtered_emit)
        try:
            whole = await self._ask(request, reply, emit)
        except FailedGeneration as exc:
            meant = exc.reply(reply.text_so_far, model=self._model, emit=filtered_emit, offered=offered)
            if meant is None:
                raise
            whole = meant
        whole = held.settle(whole) if held else whole
        if offered and whole.finish_reason == "tool_calls" and not whole.message.tool_calls:
            # mlx_lm.server leaves out a call that it cannot read.
            raise self._errors.unavailable("ended its reply for tool calls, and sent none")
        return unwrapper.settle(whole) if unwrapper else whole

    def _classified(self, request: ModelRequest, error: ProviderError) -> ProviderError:
        # The model is at fault for a text that the server could not read, not the schema.
        if isinstance(error, FailedGeneration):
            return error
        return super()._classified(request, error)
