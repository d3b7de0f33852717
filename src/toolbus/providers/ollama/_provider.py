"""The provider for Ollama's native chat API, over the official `ollama` SDK."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import orjson

from ..._option_checks import check, or_none, whole
from ...protocols import NativeOutput
from .._shared.adapter import Adapter
from .._shared.clients import CODINGS, CONNECT_SECONDS, Clients
from .._shared.options import MAX_REPLY_BYTES, check_limits, clean_key, secrets_in, shown_url
from .._shared.reply_reader import Response, close_response
from .._shared.stream_events import JsonLines, Lines
from .._shared.wire_text import encoded
from ._client import host_url, make_client, post
from ._errors import OllamaErrors
from ._request import request_body
from ._stream import ReplyBuilder

_HINT = "check that Ollama runs (ollama serve), and that OLLAMA_HOST is right"


class OllamaProvider(Adapter[ReplyBuilder]):
    """A model on an Ollama server, local or remote.

        OllamaProvider("qwen3", context_tokens=32_768)
        OllamaProvider("gpt-oss:120b", host="https://ollama.com", api_key="your-key")

    `host` has the form of OLLAMA_HOST, which is read if `host` is not given; without both, it is the local server.
    `api_key`, or OLLAMA_API_KEY, is for servers that require a key; it is sent to any host.

    `context_tokens` is the context window that the model is loaded with (`num_ctx`). Without it the server decides, and
    uses 4,096 tokens on most machines, whatever the model supports; a tool loop needs more. Always give the same
    number, since a different one makes the server load the model again. A request that does not fit is an error,
    `ContextOverflow`: the provider asks for this error, because the server would otherwise silently drop the oldest
    messages. Servers before 0.12.6 drop them nevertheless, and every server may do so during a long reply
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

    Example:
        from toolbus import Runtime
        from toolbus.providers.ollama import OllamaProvider

        runtime = Runtime(OllamaProvider("qwen3:8b", host="http://127.0.0.1:11434"))  # Runtime("ollama:qwen3:8b")
    """

    lines: ClassVar[type[Lines]] = JsonLines

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
        check("context_tokens", context_tokens, or_none(whole(1)))
        if host is None:
            url = host_url(os.environ.get("OLLAMA_HOST", ""), option="OLLAMA_HOST")
        else:
            url = host_url(host, option="host")
        errors = OllamaErrors(model=model, where=shown_url(url), hint=_HINT)
        key = os.environ.get("OLLAMA_API_KEY", "").strip() if api_key is None else api_key
        key = clean_key(key) if key or api_key is not None else ""
        credentials = _credentials(url)  # the SDK drops the credentials in a URL
        for secret in (key, *secrets_in(url, headers), *(credentials or ())[1:]):
            errors.keep_secret(secret)
        own = {"authorization": f"Bearer {key}"} if key else {}
        make = partial(
            make_client,
            url,
            headers={**CODINGS, **(headers or {}), **own},
            auth=credentials,
            timeout=(CONNECT_SECONDS, timeout_seconds, timeout_seconds, timeout_seconds),
        )
        super().__init__(
            model,
            body=partial(request_body, model, context_tokens=context_tokens, keep_alive=keep_alive),
            builder=ReplyBuilder,
            errors=errors,
            clients=Clients(make),
            max_reply_bytes=max_reply_bytes,
            images=images,
        )

    def __repr__(self) -> str:
        return f"OllamaProvider({self._model!r}, host={self._errors.where!r})"

    def native_output(self, schema: Mapping[str, Any]) -> NativeOutput:
        """See `NativeOutputProvider`. A model that is constrained to a schema cannot call tools on this server."""
        return self._refused.remaining(schema, "alone")

    async def _post(self, body: dict[str, Any]) -> Response:
        response = await post(self._clients.get(), self._model, encoded(body))
        if response.status_code < 300:
            return response
        raise self._errors.status(response.status_code, response.headers, await _refusal(response))


def _credentials(url: str) -> tuple[str, str] | None:
    parts = urlsplit(url)
    return (unquote(parts.username or ""), unquote(parts.password or "")) if "@" in parts.netloc else None


async def _refusal(response: Response) -> object:
    """Return the body of an error answer, whose length the client bounds: its JSON, or its beginning as text."""
    pieces = response.aiter_bytes()
    try:
        body = b"".join([piece async for piece in pieces])
    finally:
        await close_response(response, pieces)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace")
