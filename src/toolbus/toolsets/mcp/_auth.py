"""The authentication of requests to one HTTP server, by an `httpx2.Auth` of the application.

An `Auth` of the SDK handles one request at a time: all others wait until the response to it begins, also while a person
signs in. So one call would delay all others, and a call that passes its deadline would end the sign-in. Here an `Auth`
works in a task of the connection, and its requests to the authorization server have time-outs.
"""

from __future__ import annotations

import contextlib
import logging
import re
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl

import anyio
import httpx2
import orjson
from mcp.client.auth import OAuthClientProvider
from pydantic import ValidationError

from ...network import check_allowed
from ...secrets import MASK, TextMask
from ._repair import broken
from ._transport import FAILED, NOT_YET, SignInFailed, is_one_way, method_of

_T = TypeVar("_T")
# The time for the whole answer to a request to the authorization server.
_ASK_SECONDS = 30.0
# The largest answer of an authorization server; its metadata has some 5 kB. All of an answer is searched for secrets.
_MOST_BYTES = 65_536
# The time for which a call waits for a person. A call has 30 s by default.
_PATIENCE_SECONDS = 20.0
# The time after a sign-in that failed before a person is asked again.
_REST_SECONDS = 300.0
_REFUSED = (401, 403)
_MOST_ROUNDS = 3
_MOST_WHY_CHARS = 500
_SECRETS = re.compile(r"(\w+_)?(assertion|code|password|secret|token|verifier)")
_WORKS: ContextVar[bool] = ContextVar("whether an `Auth` works for toolbus in this task", default=False)


def _is_reported(record: logging.LogRecord) -> bool:
    """Return whether the SDK may log a record: its tracebacks may show tokens, and the reason is reported here."""
    return record.exc_info is None or not _WORKS.get()


logging.getLogger("mcp.client.auth.oauth2").addFilter(_is_reported)


class Authentication(httpx2.Auth):
    """The `Auth` of the requests to one server, while it is opened. It may be opened again.

    It runs the flow of the application's `Auth` up to the request, for its headers, and from there on only for a
    response with the status 401 or 403. `pausing()` is entered for each sign-in, and yields the seconds after which
    `on_long_wait` is called, unless the sign-in has ended.
    """

    def __init__(
        self,
        auth: httpx2.Auth,
        pausing: Callable[[], AbstractContextManager[float]],
        on_long_wait: Callable[[], object],
    ) -> None:
        self._auth = auth
        self._pausing = pausing
        self._on_long_wait = on_long_wait
        self._sign_in: _SignIn | None = None
        self._rest_until = -1.0
        self._why = ""
        # The header of the newest request, which serves others during a sign-in.
        self._bearer = ""
        self._secrets = deque[str](maxlen=20)
        self._is_away = False

    @property
    def is_signing_in(self) -> bool:
        return self._sign_in is not None

    @contextlib.asynccontextmanager
    async def opened(self, certificates: ssl.SSLContext) -> AsyncGenerator[httpx2.Auth]:
        async with httpx2.AsyncClient(verify=certificates) as self._client, anyio.create_task_group() as self._group:
            try:
                yield self
            finally:
                self._group.cancel_scope.cancel()

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Authenticate a request; send it again after a refreshed token, a sign-in, or a sign-in for more scopes.

        Raises `SignInFailed`.
        """
        is_brief = is_one_way(request) or request.method == "DELETE"
        await self._prepare(request, is_brief=is_brief)
        response = yield request
        done = list[tuple[int, str]]()
        while response.status_code in _REFUSED and not is_brief:
            if (response.status_code, "signed in") in done or len(done) == _MOST_ROUNDS:
                self._rest("the server refuses the new token")
                raise SignInFailed(f"{FAILED}{self._why}")
            try:
                # While a person signs in, the connection of the response is free.
                await response.aread()
            except httpx2.StreamError as exc:
                raise SignInFailed(f"{FAILED}{exc}") from exc
            how = await self._renewed(request, response, may_refresh=not done)
            if not how:
                return
            done.append((response.status_code, how))
            await self._prepare(request)
            response = yield request

    async def _prepare(self, request: httpx2.Request, *, is_brief: bool = False) -> None:
        """Add the headers that authenticate a request. With `is_brief` it must not wait, and gets the newest token.

        During a sign-in no request waits for it here, because the server may not need a token for the request.
        """
        is_held = self.is_signing_in and (self._bearer or isinstance(self._auth, OAuthClientProvider))
        if is_held or (is_brief and self._bearer):
            if self._bearer:
                request.headers["authorization"] = self._bearer
            return
        await self._in_own_task(lambda: self._flow(request, None))
        given = request.headers.get("authorization", "")
        self._bearer = given if given.lower().startswith("bearer ") else ""

    async def _renewed(self, request: httpx2.Request, response: httpx2.Response, *, may_refresh: bool) -> str:
        """Return "refreshed" or "signed in" after that; empty if the `Auth` does nothing about the response."""
        if self._sign_in is None:
            if anyio.current_time() < self._rest_until:
                raise SignInFailed(f"{FAILED}{self._why}")
            self._sign_in = _SignIn(request, response, may_refresh)
            self._group.start_soon(self._work, self._sign_in)
        waited_for = self._sign_in
        is_call = method_of(request) == b"tools/call"
        with anyio.move_on_after(_PATIENCE_SECONDS if is_call else None) as patience:
            await waited_for.ended.wait()
        if patience.cancelled_caught:
            raise SignInFailed(NOT_YET)
        if waited_for.failure:
            raise SignInFailed(f"{FAILED}{waited_for.failure}")
        return waited_for.how

    async def _work(self, sign_in: _SignIn) -> None:
        """Sign in, or refresh the token, for all requests that wait for it."""
        self._is_away = False
        try:
            with self._pausing() as seconds, self._refreshing(sign_in):
                self._group.start_soon(self._remind, sign_in, seconds)
                sign_in.how = await self._flow(sign_in.request, sign_in.response)
            sign_in.failure = ""
        except Exception as exc:
            # The functions of the application, and an `Auth` of its own, may raise anything.
            sign_in.failure = self._said(exc)
            if not self._is_away:
                self._rest(sign_in.failure)
        finally:
            self._sign_in = None
            sign_in.ended.set()

    async def _remind(self, sign_in: _SignIn, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await sign_in.ended.wait()
        if not sign_in.ended.is_set():
            self._on_long_wait()

    def _rest(self, why: str) -> None:
        self._why = why
        self._rest_until = anyio.current_time() + _REST_SECONDS

    @contextlib.contextmanager
    def _refreshing(self, sign_in: _SignIn) -> Generator[None]:
        """Have the SDK find the authorization server, and then try the refresh token before a person is asked.

        By itself, the SDK refreshes only a token that it knows to have expired, and a new process does not know that.
        """
        if not (sign_in.may_refresh and isinstance(self._auth, OAuthClientProvider)):
            yield
            return
        context = self._auth.context
        ask = context.redirect_handler

        async def ask_if_needed(url: str) -> None:
            if context.can_refresh_token():
                raise _Refresh
            if ask is not None:
                await ask(url)

        if ask is not None:
            context.redirect_handler = ask_if_needed
        try:
            yield
        finally:
            context.redirect_handler = ask

    async def _flow(self, request: httpx2.Request, response: httpx2.Response | None) -> str:
        """Run the flow up to the request, and then, with a response to it, up to the next request."""
        refused = request.headers.get("authorization")
        try:
            return await self._flow_once(request, response, refused)
        except _Refresh:
            # The token has not expired as far as the SDK knows, but the server refuses it.
            cast("OAuthClientProvider", self._auth).context.token_expiry_time = 1.0
            return await self._flow_once(request, response, refused)

    async def _flow_once(self, request: httpx2.Request, response: httpx2.Response | None, refused: str | None) -> str:
        _WORKS.set(True)
        async with contextlib.aclosing(self._auth.async_auth_flow(request)) as flow:
            with contextlib.suppress(StopAsyncIteration):
                await self._until(request, flow, await anext(flow))
                if response is None or request.headers.get("authorization") != refused:
                    return "refreshed"
                await self._until(request, flow, await flow.asend(response))
                return "signed in"
        return ""

    async def _until(
        self, request: httpx2.Request, flow: AsyncGenerator[httpx2.Request, httpx2.Response], asked: httpx2.Request
    ) -> None:
        while asked is not request:
            asked = await flow.asend(await self._ask(asked))

    async def _ask(self, request: httpx2.Request) -> httpx2.Response:
        """Return the whole response to a request that the `Auth` itself makes."""
        where = request.url.copy_with(userinfo=b"", query=None, fragment=None)
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
                        if len(body) > _MOST_BYTES:
                            raise SignInFailed(f"the answer of {where} has more than {_MOST_BYTES} bytes")
        except TimeoutError as exc:
            self._is_away = True
            raise SignInFailed(f"{where} does not answer within {_ASK_SECONDS:g} s") from exc
        except httpx2.TransportError as exc:
            self._is_away = True
            raise SignInFailed(f"{where} cannot be reached: {str(exc) or type(exc).__name__}") from exc
        self._keep_secret(_members(body))
        if response.status_code >= 500 or response.status_code == 429:
            self._is_away = True
            if request.method == "POST":
                # The SDK would take a refresh token for invalid, and ask a person.
                raise SignInFailed(f"{where} answers HTTP {response.status_code} {response.reason_phrase}")
        whole = httpx2.Response(response.status_code, headers=response.headers, content=bytes(body), request=request)
        whole.next_request = response.next_request
        return whole

    def _keep_secret(self, members: list[tuple[str, Any]]) -> None:
        for name, value in members:
            if isinstance(value, str) and _SECRETS.fullmatch(name):
                self._secrets.append(value)

    def _said(self, exc: Exception) -> str:
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
        return mask.mask(text)[:_MOST_WHY_CHARS]

    async def _in_own_task(self, work: Callable[[], Awaitable[_T]]) -> None:
        """Run `work` to its end, even if the caller is cancelled. Raises `SignInFailed`."""
        ended, failure = anyio.Event(), "the connection was closed"

        async def run() -> None:
            nonlocal failure
            try:
                await work()
                failure = ""
            except Exception as exc:
                failure = self._said(exc)
            finally:
                ended.set()

        self._group.start_soon(run)
        await ended.wait()
        if failure:
            raise SignInFailed(f"{FAILED}{failure}")


@dataclass(slots=True, eq=False)
class _SignIn:
    """A sign-in, or a refresh of the token, for which requests wait."""

    request: httpx2.Request
    response: httpx2.Response
    may_refresh: bool
    ended: anyio.Event = field(default_factory=anyio.Event)
    how: str = ""
    failure: str = "the connection was closed"


class _Refresh(Exception):
    """The authorization server is known, and there is a refresh token."""


def _members(body: bytes | bytearray) -> list[tuple[str, Any]]:
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return []
    return list(cast("dict[str, Any]", found).items()) if isinstance(found, dict) else []
