"""The requests to authorization servers, bounded in time and size, and the reasons of failures without secrets."""

from __future__ import annotations

import contextlib
import re
import ssl
from collections import deque
from typing import Any, cast
from urllib.parse import parse_qsl

import anyio
import httpx2
import orjson
from pydantic import ValidationError

from ...network import check_allowed
from ...secrets import MASK, TextMask
from ._repair import broken
from ._transport import SignInFailed

# The time for the whole answer to a request.
_ASK_SECONDS = 30.0
# The largest answer; metadata has some 5 kB. All of an answer is searched for secrets.
_MAX_BYTES = 65_536
_MAX_WHY_CHARS = 500
_SECRETS = re.compile(r"(\w+_)?(assertion|code|password|secret|token|verifier)")


class AuthorizationServers:
    """The authorization servers of one MCP server. Each of them is named by the MCP server or by its metadata.

    If the MCP server has an https address, its authorization servers need one too. Without this it could have requests
    sent to services inside a network, of which most have http addresses, and the model could read their answers.
    """

    def __init__(self, server: str) -> None:
        self.is_away = False
        """True after a request to which a server gave no answer, or said that it has a fault."""
        self._server = httpx2.URL(server)
        self._secrets = deque[str](maxlen=20)

    def opened(self, certificates: ssl.SSLContext) -> httpx2.AsyncClient:
        """Return the client for the requests, to be entered."""
        self._client = httpx2.AsyncClient(verify=certificates)
        return self._client

    async def ask(self, request: httpx2.Request) -> httpx2.Response:
        """Return the whole response to a request that the `Auth` itself makes."""
        where = request.url.copy_with(userinfo=b"", query=None, fragment=None)
        if self._server.scheme == "https" and where.scheme != "https":
            raise SignInFailed(f"{where} is not an https address, as that of the server is")
        check_allowed("mcp", str(where))
        self._keep_secret(parse_qsl(request.content.decode("utf-8", "replace")))
        request.headers["accept-encoding"] = "identity"
        request.extensions = {**request.extensions, "timeout": httpx2.Timeout(None).as_dict()}
        body = bytearray()
        try:
            with anyio.fail_after(_ASK_SECONDS):
                response = await self._client.send(request, stream=True)
                async with contextlib.aclosing(response), contextlib.aclosing(response.aiter_raw()) as pieces:
                    async for piece in pieces:
                        body += piece
                        if len(body) > _MAX_BYTES:
                            raise SignInFailed(f"the answer of {where} has more than {_MAX_BYTES} bytes")
        except TimeoutError as exc:
            self.is_away = True
            raise SignInFailed(f"{where} does not answer within {_ASK_SECONDS:g} s") from exc
        except httpx2.TransportError as exc:
            self.is_away = True
            raise SignInFailed(f"{where} cannot be reached: {str(exc) or type(exc).__name__}") from exc
        self._keep_secret(_members(body))
        if response.status_code >= 500 or response.status_code == 429:
            self.is_away = True
            if request.method == "POST":
                # The SDK would take a refresh token for invalid, and ask a person.
                raise SignInFailed(f"{where} answers HTTP {response.status_code} {response.reason_phrase}")
        # A compressed answer may become a thousand times as large, so the response is not decompressed.
        coding = response.headers.pop("content-encoding", "identity")
        if coding.lower() != "identity" and request.method == "POST":
            raise SignInFailed(f"{where} answers with the content encoding {coding[:20]}, which was not asked for")
        whole = httpx2.Response(response.status_code, headers=response.headers, content=bytes(body), request=request)
        whole.next_request = response.next_request
        return whole

    def _keep_secret(self, members: list[tuple[str, Any]]) -> None:
        for name, value in members:
            if isinstance(value, str) and _SECRETS.fullmatch(name):
                self._secrets.append(value)

    def reason_of(self, exc: Exception) -> str:
        """Return the reason of a failure without secrets. The SDK puts answers and parts of them into its errors."""
        if isinstance(exc, SignInFailed):
            return str(exc)
        text = str(exc) or type(exc).__name__
        if isinstance(exc, ValidationError):
            text = f"{exc.title}: {broken(exc)}"
        elif isinstance(exc.__context__, ValidationError):
            text = f"{text.partition(':')[0]}: {broken(exc.__context__)}"
        if text.startswith("State parameter mismatch"):
            text = "the answer to another sign-in came back"
        mask = TextMask()
        for secret in self._secrets:
            mask.add(secret, MASK)
        return mask.mask(text)[:_MAX_WHY_CHARS]


def _members(body: bytes | bytearray) -> list[tuple[str, Any]]:
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return []
    return list(cast("dict[str, Any]", found).items()) if isinstance(found, dict) else []
