"""Ollama's native chat over the official `ollama` SDK.

The only module, with its private ones, that imports the SDK (extra `ollama`), and only when a provider is constructed.
"""

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
from .._shared.reply_reader import Response, leave, read_reply
from .._shared.stream_events import JsonLines
from ._client import make_client, post
from ._errors import OllamaErrors
from ._host import host_url
from ._request import request_body
from ._stream import ReplyBuilder

if TYPE_CHECKING:
    from ollama import AsyncClient

__all__ = ["OllamaProvider"]

_CONNECT_SECONDS = 5.0
_LONGEST_REFUSAL_BYTES = 65_536
_HINT = "check that Ollama runs (ollama serve), and that OLLAMA_HOST is right"


class OllamaProvider:
    """A model that Ollama runs, here or elsewhere.

        OllamaProvider("qwen3", context_tokens=32_768)
        OllamaProvider("gpt-oss:120b", host="https://ollama.com", api_key="your-key")

    `host` is as in OLLAMA_HOST, which is read where it is not given; without both it is the local server. `api_key`,
    or OLLAMA_API_KEY, is for servers that want one; it is sent to whichever host there is.

    `context_tokens` is the window that the model is loaded with (`num_ctx`). Without it the server decides, and takes
    4,096 tokens on most machines, whatever the model could do; a tool loop needs more. Give it always the same, since
    another one loads the model anew. What does not fit is an error, `ContextOverflow`: the provider asks for that, as
    the server would otherwise leave the oldest messages out without a word. Servers before 0.12.6 do so all the same,
    and each may during a long reply (`extra_body={"shift": False}` ends the reply there, with "length").

    `keep_alive` is how long the model stays loaded afterwards, in seconds or as text such as "10m"; negative: for good.
    `timeout_seconds` is the longest silence of the server, which includes loading the model. `max_reply_bytes` bounds
    text, reasoning and arguments of one reply together, and any one line. `images=False` is for models that cannot see:
    a line of text stands for each image.

    Of the settings, `reasoning_effort` goes as `think`: "low", "medium", "high" or "max", and "none" for no thinking; a
    model without thinking refuses all but the last. Without it models that can think do. `tool_choice` is by what is
    offered: one tool alone, or none; "required" cannot be enforced, so the model may answer with text all the same.
    There is no switch for parallel calls. `extra_body` takes the API's other fields, such as `format` and `options`.

    The constructor imports the SDK, which takes half a second the first time: construct providers at start-up.
    Connections belong to an event loop, so in a second loop the provider builds a client more. Works on asyncio and
    trio. Errors are as in `toolbus.protocols.Provider`. Keys do not appear in the repr, in errors or in logs. Usage is
    what the server counted. Of a prompt that was in its cache, servers from 0.33 on say so; old ones count nothing.

    Raises `MissingExtra` without the SDK, and `ConfigurationError` for an option that cannot be.
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
            self._url = host_url(os.environ.get("OLLAMA_HOST", ""), said_by="OLLAMA_HOST")
        else:
            self._url = host_url(host, said_by="host")
        self._errors = OllamaErrors(model=model, where=shown_url(self._url), hint=_HINT)
        key = os.environ.get("OLLAMA_API_KEY", "").strip() if api_key is None else api_key
        key = clean_key(key) if key or api_key is not None else ""
        credentials = _credentials(self._url)  # in a host they get lost in the SDK
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
        """What stands on events as the vendor."""
        return self._errors.vendor

    @property
    def model(self) -> str:
        """The model's name, as it is sent."""
        return self._model

    def __repr__(self) -> str:
        return f"OllamaProvider({self._model!r}, host={self._errors.where!r})"

    def native_output(self, schema: Mapping[str, Any]) -> NativeOutput:
        """See `NativeOutputProvider`. Held to a schema, a model cannot call tools: the server forbids it the words."""
        return self._refused.left(schema, "alone")

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Ask the model once, streaming. Under cancellation the connection is closed, which stops the model.

        Raises, beside the errors of the contract, `ConfigurationError` for a `tool_choice` that is not offered.
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
            judged = self._refused.judged(request, exc)
            if judged is exc:
                raise
            raise judged from exc
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
        # Raised out here, so that no context hangs on to an error that quotes a key.
        raise error from (None if self._errors.tells(cause) else cause)

    async def aclose(self) -> None:
        """Close the connections that were opened in this event loop. Idempotent.

        A provider that is used again afterwards builds a new client.
        """
        await self._clients.aclose()

    async def _answer(self, body: bytes) -> Response:
        """An answer that is no refusal. Raises the error for one that is."""
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
    except TypeError:  # integers over 64 bits, and lone surrogates, which become question marks
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


async def _refusal(response: Response) -> object:
    """The body of an error answer: JSON, or its start as text."""
    pieces = response.aiter_bytes()
    body = bytearray()
    try:
        async for piece in pieces:
            body += piece
            if len(body) > _LONGEST_REFUSAL_BYTES:
                break
    finally:
        await leave(response, pieces)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace")
