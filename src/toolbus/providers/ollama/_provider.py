"""The provider for Ollama's native chat API, over the official `ollama` SDK."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import orjson

from ...errors import ConfigurationError, ProviderError, ToolbusError
from ...messages import without_images
from ...network import check_allowed
from ...protocols import Emit, ModelReply, ModelRequest, NativeOutput
from .._shared.clients import Clients
from .._shared.native_output import RefusedSchemas
from .._shared.options import MAX_REPLY_BYTES, check_limits, clean_key, secrets_in, shown_url
from .._shared.reply_reader import Response, close_response, read_reply
from .._shared.stream_events import JsonLines
from ._client import host_url, make_client, post
from ._errors import OllamaErrors
from ._request import request_body
from ._stream import ReplyBuilder

if TYPE_CHECKING:
    from ollama import AsyncClient

__all__ = ["OllamaProvider"]

_CONNECT_SECONDS = 5.0
_LONGEST_REFUSAL_BYTES = 65_536
_HINT = "check that Ollama runs (ollama serve), and that OLLAMA_HOST is right"


class OllamaProvider:
    """A model on an Ollama server, local or remote.

        OllamaProvider("qwen3", context_tokens=32_768)
        OllamaProvider("gpt-oss:120b", host="https://ollama.com", api_key="your-key")

    `host` has the form of OLLAMA_HOST, which is read if `host` is not given; without both, it is the local server.
    `api_key`, or OLLAMA_API_KEY, is for servers that require a key; it is sent to any host.

    `context_tokens` is the context window that the model is loaded with (`num_ctx`). Without it the server decides, and
    uses 4,096 tokens on most machines, whatever the model supports; a tool loop needs more. Always give the same
    number, since a different one makes the server load the model again. A request that does not fit is an error,
    `ContextOverflow`: the provider asks for this error, because the server would otherwise silently drop the oldest
    messages. Servers before 0.12.6 drop them all the same, and every server may do so during a long reply
    (`extra_body={"shift": False}` ends the reply there, with "length").

    `keep_alive` is the time for which the model stays loaded afterwards, in seconds or as text such as "10m"; a
    negative number means for ever. `timeout_seconds` is the longest silence of the server, which includes loading the
    model. `max_reply_bytes` bounds text, reasoning and arguments of one reply together, and any one line.
    `images=False` is for models that do not accept images: a line of text replaces each image.

    Of the settings, `reasoning_effort` is sent as `think`: "low", "medium", "high" or "max", and "none" for no
    thinking; a model that cannot think refuses all but "none". Without it, models that can think do so. `tool_choice`
    works by the tools that are offered: only the forced tool, or none; "required" cannot be enforced, so the model may
    still answer with text. Parallel calls cannot be switched off. `extra_body` takes the API's other fields, such as
    `format` and `options`.

    The constructor imports the SDK, which takes half a second the first time: construct providers at start-up.
    Connections belong to an event loop, so in a second loop the provider builds another client. Works on asyncio and
    trio. Errors are as in `toolbus.protocols.Provider`. Keys do not appear in the repr, in errors or in logs. Usage is
    the server's own count. Servers from 0.33 on report the tokens of a prompt that came from their cache; old ones do
    not count these at all.

    Raises `MissingExtra` without the SDK, and `ConfigurationError` for an invalid option.
    """

    __slots__ = (
        "_clients",
        "_context_tokens",
        "_errors",
        "_images",
        "_keep_alive",
        "_max_reply_bytes",
        "_model",
        "_options",
        "_refused",
        "_url",
    )

    def __init__(
        self,
        model: str,
        *,
        host: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        context_tokens: int | None = None,
        keep_alive: float | str | None = None,
        timeout_seconds: float = 600.0,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        images: bool = True,
    ) -> None:
        check_limits(model, timeout_seconds, max_reply_bytes)
        if context_tokens is not None and context_tokens < 1:
            raise ConfigurationError(f"context_tokens is {context_tokens}; it must be at least 1")
        self._model = model
        self._context_tokens = context_tokens
        self._keep_alive = keep_alive
        self._max_reply_bytes = max_reply_bytes
        self._images = images
        self._refused = RefusedSchemas()
        if host is None:
            self._url = host_url(os.environ.get("OLLAMA_HOST", ""), option="OLLAMA_HOST")
        else:
            self._url = host_url(host, option="host")
        self._errors = OllamaErrors(model=model, where=shown_url(self._url), hint=_HINT)
        key = os.environ.get("OLLAMA_API_KEY", "").strip() if api_key is None else api_key
        key = clean_key(key) if key or api_key is not None else ""
        credentials = _credentials(self._url)  # the SDK drops the credentials in a URL
        for secret in (key, *secrets_in(self._url, headers), *(credentials or ())[1:]):
            self._errors.keep_secret(secret)
        own = {"authorization": f"Bearer {key}"} if key else {}
        self._options: dict[str, Any] = {
            "headers": {**(headers or {}), **own},
            "auth": credentials,
            "timeout": (_CONNECT_SECONDS, timeout_seconds, timeout_seconds, timeout_seconds),
        }
        self._clients: Clients[AsyncClient] = Clients(self._build, lambda each: each.close())

    @property
    def vendor(self) -> str:
        """The vendor's name on events."""
        return self._errors.vendor

    @property
    def model(self) -> str:
        """The model's name, as it is sent."""
        return self._model

    def __repr__(self) -> str:
        return f"OllamaProvider({self._model!r}, host={self._errors.where!r})"

    def native_output(self, schema: Mapping[str, Any]) -> NativeOutput:
        """See `NativeOutputProvider`. A model that is constrained to a schema cannot call tools on this server."""
        return self._refused.remaining(schema, "alone")

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Ask the model once, streaming. Under cancellation the connection is closed, which stops the model.

        Raises, in addition to the errors of the protocol, `ConfigurationError` for a `tool_choice` that is not offered.
        """
        check_allowed(self.vendor, self._errors.where)
        if not self._images:
            request = replace(request, messages=without_images(request.messages))
        body = request_body(self._model, request, context_tokens=self._context_tokens, keep_alive=self._keep_alive)
        reply = ReplyBuilder(model=self._model, emit=emit, limit_bytes=self._max_reply_bytes, errors=self._errors)
        try:
            response = await self._answer(_encoded(body))
            lines = JsonLines(self._max_reply_bytes, self._errors)
            await read_reply(response, reply, lines, emit=emit, limit_bytes=self._max_reply_bytes, errors=self._errors)
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
            error, cause = found, exc
        else:
            return reply.finish()
        # The error is raised outside of the except block, so that its context is not an error that quotes a key.
        raise error from (None if self._errors.leaks_secret(cause) else cause)

    async def aclose(self) -> None:
        """Close the connections that were opened in this event loop. Idempotent.

        A provider that is used again afterwards builds a new client.
        """
        await self._clients.aclose()

    async def _answer(self, body: bytes) -> Response:
        """Return the answer to a body. Raises the error for an answer that is a refusal."""
        response = await post(self._clients.get(), self._model, body)
        if response.status_code < 300:
            return response
        raise self._errors.status(response.status_code, response.headers, await _refusal(response))

    def _build(self) -> AsyncClient:
        return make_client(self._url, **self._options)


def _credentials(url: str) -> tuple[str, str] | None:
    parts = urlsplit(url)
    return (unquote(parts.username or ""), unquote(parts.password or "")) if "@" in parts.netloc else None


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # the body has integers over 64 bits, or lone surrogates, which become question marks
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


async def _refusal(response: Response) -> object:
    """Return the body of an error answer: its JSON, or its beginning as text."""
    pieces = response.aiter_bytes()
    body = bytearray()
    try:
        async for piece in pieces:
            body += piece
            if len(body) > _LONGEST_REFUSAL_BYTES:
                break
    finally:
        await close_response(response, pieces)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace")
