"""The authentication of requests to one HTTP server, by an `httpx2.Auth` of the application.

An `Auth` of the SDK handles one request at a time: all others wait until the response to it begins, also while a person
signs in. So one call would delay all others, and a call that passes its deadline would end the sign-in. Here an `Auth`
works in a task of the connection, and its requests to the authorization server have time-outs.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar, cast

import anyio
import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.utils import extract_scope_from_www_auth

from ._auth_servers import AuthorizationServers
from ._transport import FAILED, NOT_YET, SignInFailed, is_one_way, method_of

_T = TypeVar("_T")
# The time for which a call waits for a person. A call has 30 s by default.
_PATIENCE_SECONDS = 20.0
# The time after a sign-in that failed before a person is asked for the same again.
_REST_SECONDS = 300.0
# The sign-ins that may fail within that time before a person is asked for no other scopes either.
_MAX_REFUSALS = 5
_REFUSED = (401, 403)
_MAX_ROUNDS = 4
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
        server: str,
        pausing: Callable[[], AbstractContextManager[float]],
        on_long_wait: Callable[[], object],
    ) -> None:
        self._auth = auth
        self._servers = AuthorizationServers(server)
        self._pausing = pausing
        self._on_long_wait = on_long_wait
        self._sign_in: _SignIn | None = None
        self._refusals = list[_Refusal]()
        # The header of the newest request, which serves others during a sign-in.
        self._bearer = ""

    @property
    def is_signing_in(self) -> bool:
        return self._sign_in is not None

    @contextlib.asynccontextmanager
    async def opened(self, certificates: ssl.SSLContext) -> AsyncGenerator[httpx2.Auth]:
        async with self._servers.opened(certificates), anyio.create_task_group() as self._group:
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
        done = list[_SignIn]()
        while response.status_code in _REFUSED and not is_brief:
            scopes = _scopes_of(response)
            if any(each.scopes == scopes and each.how == "signed in" for each in done) or len(done) == _MAX_ROUNDS:
                raise self._refuse(scopes, "the server refuses the new token")
            try:
                # While a person signs in, the connection of the response is free.
                await response.aread()
            except httpx2.StreamError as exc:
                raise SignInFailed(f"{FAILED}{exc}") from exc
            # A refreshed token has no other scopes.
            may_refresh = not (done or scopes)
            done.append(await self._renewed(request, _SignIn(request, response, scopes, may_refresh)))
            if not done[-1].how:
                return
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

    async def _renewed(self, request: httpx2.Request, wanted: _SignIn) -> _SignIn:
        """Return the first sign-in that succeeds: one that is under way, or else `wanted`, which is begun."""
        is_call = method_of(request) == b"tools/call"
        with anyio.move_on_after(_PATIENCE_SECONDS if is_call else None):
            while True:
                if self._sign_in is None:
                    self._check_refusals(wanted.scopes)
                    self._sign_in = wanted
                    self._group.start_soon(self._work, wanted)
                waited_for = self._sign_in
                await waited_for.ended.wait()
                if not waited_for.failure:
                    return waited_for
                if waited_for.scopes <= wanted.scopes:
                    raise SignInFailed(f"{FAILED}{waited_for.failure}")
        raise SignInFailed(NOT_YET)

    async def _work(self, sign_in: _SignIn) -> None:
        """Sign in, or refresh the token, for all requests that wait for it."""
        self._servers.is_away = False
        try:
            with self._pausing() as seconds, self._refreshing(sign_in):
                self._group.start_soon(self._remind, sign_in, seconds)
                sign_in.how = await self._flow(sign_in.request, sign_in.response)
            sign_in.failure = ""
        except Exception as exc:
            # The functions of the application, and an `Auth` of its own, may raise anything.
            sign_in.failure = self._servers.reason_of(exc)
            if not self._servers.is_away:
                self._refuse(sign_in.scopes, sign_in.failure)
        finally:
            self._sign_in = None
            sign_in.ended.set()

    async def _remind(self, sign_in: _SignIn, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await sign_in.ended.wait()
        if not sign_in.ended.is_set():
            self._on_long_wait()

    def _refuse(self, scopes: frozenset[str], why: str) -> SignInFailed:
        """Ask nobody for these scopes for some time. Return the error that says why."""
        others = [each for each in self._refusals if each.scopes != scopes]
        self._refusals = [*others, _Refusal(scopes, why, anyio.current_time() + _REST_SECONDS)][-_MAX_REFUSALS:]
        return SignInFailed(f"{FAILED}{why}")

    def _check_refusals(self, scopes: frozenset[str]) -> None:
        """Raise `SignInFailed` if a sign-in for these scopes, or for only some of them, has failed recently."""
        recent = [each for each in self._refusals if anyio.current_time() < each.until]
        for each in reversed(recent):
            # A server that names other scopes each time may not ask a person each time.
            if each.scopes <= scopes or (scopes and len(recent) == _MAX_REFUSALS):
                raise SignInFailed(f"{FAILED}{each.why}")

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
            # Another request may have tried the token meanwhile, after which the SDK reads it from the storage again.
            if sign_in.may_refresh and context.can_refresh_token():
                sign_in.may_refresh = False
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
            asked = await flow.asend(await self._servers.ask(asked))

    async def _in_own_task(self, work: Callable[[], Awaitable[_T]]) -> None:
        """Run `work` to its end, even if the caller is cancelled. Raises `SignInFailed`."""
        ended, failure = anyio.Event(), "the connection was closed"

        async def run() -> None:
            nonlocal failure
            try:
                await work()
                failure = ""
            except Exception as exc:
                failure = self._servers.reason_of(exc)
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
    scopes: frozenset[str]
    may_refresh: bool
    ended: anyio.Event = field(default_factory=anyio.Event)
    how: str = ""
    failure: str = "the connection was closed"


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A sign-in for some scopes that failed. Nobody is asked for them until a time of the event loop's clock."""

    scopes: frozenset[str]
    why: str
    until: float


def _scopes_of(response: httpx2.Response) -> frozenset[str]:
    """Return the scopes that a refused request needs in addition; none if it needs a sign-in.

    The empty text is one of them, because a server may ask for more scopes without naming them.
    """
    if response.status_code == 401:
        return frozenset()
    return frozenset(["", *(extract_scope_from_www_auth(response) or "").split()])


class _Refresh(Exception):
    """The authorization server is known, and there is a refresh token."""
