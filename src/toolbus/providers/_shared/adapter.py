"""The base of the adapters: the frame of a request, which is the same for every vendor.

The module knows the order of the steps, and the shape that the clients of OpenAI's and Anthropic's SDKs have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from ...errors import ProviderError, ToolbusError
from ...messages import without_images
from ...network import check_allowed
from ...protocols import Emit, ModelReply, ModelRequest
from ...records import replace
from .clients import Clients, lost_kept_connection
from .errors import ErrorTranslator
from .image_limits import of_whole_history
from .native_output import RefusedSchemas
from .options import ApiKey, ask_for_key, secrets_in
from .reply_parts import ReplyParts
from .reply_reader import Response, read_reply
from .stream_events import EventLines, Lines
from .unreadable import UnreadableReasoning
from .wire_text import count_at, without_half_characters

ReplyT = TypeVar("ReplyT", bound=ReplyParts)

# The attributes of the SDKs' clients that have keys; Anthropic's client for Vertex has another one than the rest.
_KEY_NAMES = ("api_key", "auth_token", "access_token")


class Adapter(Generic[ReplyT]):
    """A model behind a vendor's SDK, which sends the request; toolbus reads the answer itself.

    A vendor's subclass gives the parts that differ: `body` makes the body of a request, a `builder` reads the events of
    a reply, and `errors` distinguishes errors. A class variable names the splitter of the stream into events. Unless
    the subclass has a `_post` of its own, a body is sent to `path` by a client like those of OpenAI and Anthropic; if
    `api_key` is a callable, it returns the key for each request.
    """

    lines: ClassVar[type[Lines]] = EventLines
    send_options: ClassVar[Mapping[str, Any]] = {"max_retries": 0}
    """The SDK's options of one request."""
    data_key: ClassVar[str] = ""
    """The key of the replies' `vendor_data`, where it is not the vendor's name."""

    def __init__(
        self,
        model: str,
        *,
        body: Callable[[ModelRequest], dict[str, Any]],
        builder: type[ReplyT],
        errors: ErrorTranslator,
        clients: Clients,
        max_reply_bytes: int,
        images: bool = True,
        path: str = "",
        api_key: ApiKey | None = None,
    ) -> None:
        self._model = model
        self._body = body
        self._builder: type[ReplyT] = builder
        self._errors = errors
        self._clients = clients
        self._max_reply_bytes = max_reply_bytes
        self._images = images
        self._path = path
        self._api_key = api_key
        self._refused = RefusedSchemas()
        self._unreadable = UnreadableReasoning(self.data_key or errors.vendor)

    @property
    def vendor(self) -> str:
        """The vendor's name on events."""
        return self._errors.vendor

    @property
    def model(self) -> str:
        """The model's name, as it is sent."""
        return self._model

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Ask the model once, streaming. Under cancellation the connection is closed, not drained.

        Raises, in addition to the errors of the protocol, `ConfigurationError` for a `tool_choice` that is not offered,
        and `ApplicationError` when an `api_key` callable fails.
        """
        return await self._ask(request, self._begin(emit), emit)

    async def aclose(self) -> None:
        """Close the connections that were opened in this event loop; a client that was given stays open. Idempotent.

        A provider that is used again afterwards builds a new client.
        """
        await self._clients.aclose()

    # ---------------------------------------------------------------------------------------------- a request

    def _begin(self, emit: Emit) -> ReplyT:
        return self._builder(model=self._model, emit=emit, limit_bytes=self._max_reply_bytes, errors=self._errors)

    async def _ask(self, request: ModelRequest, reply: ReplyT, emit: Emit) -> ModelReply:
        """Fill `reply` with the model's answer, and return it whole."""
        check_allowed(self.vendor, self._errors.where)
        messages = self._unreadable.left_out(request.messages)
        if messages is not request.messages or not self._images:
            request = replace(request, messages=messages if self._images else without_images(messages))
        body = self._body(request)
        reply.limit_tokens = count_at(body, "max_output_tokens")
        error = cause = None
        try:
            try:
                await self._read(body, reply, emit)
            except Exception as exc:
                # Exceptions of the emit function arrive here too, and are raised again unchanged.
                error, cause = self._judged(request, exc), exc
                if error is None or error is exc:
                    raise
            else:
                return reply.finish()
            # The error is raised outside of the except block: its context must not be an SDK error that quotes a key.
            raise error from (None if self._errors.leaks_secret(cause) else cause)
        finally:
            del error, cause  # Their tracebacks refer to this frame: only the garbage collector would free all of it.

    def _judged(self, request: ModelRequest, exc: Exception) -> ProviderError | None:
        """Return the provider's error for an exception, or None if the exception is not the provider's."""
        found = exc if isinstance(exc, ProviderError) else None
        if not isinstance(exc, ToolbusError):
            found = self._errors.translate(exc)
        return self._classified(request, found) if found else None

    def _classified(self, request: ModelRequest, error: ProviderError) -> ProviderError:
        error = of_whole_history(request.messages, self._unreadable.classified(request.messages, error))
        return self._refused.classified(request, error)

    async def _read(self, body: dict[str, Any], reply: ReplyT, emit: Emit) -> None:
        """Send a body, and feed the answer to `reply`."""
        try:
            response = await self._sent(body)
        except UnicodeEncodeError:
            response = await self._sent(without_half_characters(body))
        await read_reply(response, reply, self.lines(self._max_reply_bytes + reply.echo_bytes, self._errors), emit)

    async def _sent(self, body: dict[str, Any]) -> Response:
        """Send a body, and send it again where a connection that was kept is lost. Raises what `_post` raises.

        The client gives such a connection up, so the last one is new, and is not replaced.
        """
        while True:
            try:
                return await self._post(body)
            except Exception as exc:
                if not lost_kept_connection(exc):
                    raise

    async def _post(self, body: dict[str, Any]) -> Response:
        """Send a body, and return the answer before anything of it was read. Raises what the SDK raises."""
        import httpx2  # noqa: PLC0415 -- part of the SDKs' extras

        client = self._clients.get()
        if callable(self._api_key):
            # The copy shares the connections. A key in a header of the request would be logged.
            client = client.with_options(api_key=await ask_for_key(self._api_key))
        # The SDK adds headers of its own, some of them from the environment.
        headers = {name: value for name, value in client.default_headers.items() if isinstance(value, str)}
        own = (getattr(client, name, None) for name in _KEY_NAMES)
        for secret in (*own, *secrets_in(str(client.base_url), headers)):
            if isinstance(secret, str):
                self._errors.keep_secret(secret.removeprefix("Bearer "))
        # The SDKs' own methods convert the whole history on every call, and have no parameters for some fields.
        return await client.post(self._path, cast_to=httpx2.Response, body=body, options=self.send_options, stream=True)
